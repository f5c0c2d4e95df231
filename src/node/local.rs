//! The sessions that this node's users hold: what they have asked for, in order.
//!
//! Each session numbers its writes and keeps them until their outcome is seen
//! in the log, which every replica applies; no answer from the leader is
//! needed. Whenever the leader or its connection changes, or nothing moves for
//! a while, all of them are sent again: the machine runs each once.
//!
//! Invariants: `writes` holds contiguous numbers from `applied + 1`; those up
//! to `sent` have been sent to the present leader; a read waits for the writes
//! before it (`after`), and waits are answered in order. A session in a final
//! state sends nothing more, and is forgotten once all is answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::error::Error;
use crate::machine::command::{Command, OpError, Reply, Request};
use crate::machine::{Tree, Znode};
use crate::node::io::{Answer, Effects, Read, RequestId, Time, WatchId, Write};
use crate::node::rounds::Ticket;
use crate::node::watches::{WatchKind, WatchTable};
use crate::session::SessionState;
use crate::znode::SessionId;

/// How many writes of one session may be under way; the others wait here. It bounds the results
/// that the machine must remember.
const WINDOW: u64 = 4096;

/// How much of a session's timeout this node trusts: the rest covers clocks that run at
/// different rates (`1 - 9/10` of the timeout, so rates may differ by 10 %).
pub(crate) fn trusted(timeout: Duration) -> Duration {
    timeout / 10 * 9
}

#[derive(Debug)]
pub(crate) struct LocalSession {
    pub(crate) id: SessionId,
    pub(crate) holder: u64,
    pub(crate) timeout: Duration,
    pub(crate) state: SessionState,
    opening: Option<Opening>,
    /// When the open (or resume) was first sent: its clock cannot have started earlier.
    first_sent: Option<Time>,
    /// Until when the session is surely alive. Before it is open: not known.
    valid_until: Time,
    /// When the last round that was confirmed for it was sent.
    heard: Time,
    issued: u64,
    /// The last number sent to the present leader; `None`: nothing, not even the open.
    sent: Option<u64>,
    /// The last number ever sent to anyone.
    ever_sent: u64,
    applied: u64,
    writes: VecDeque<PendingWrite>,
    waits: VecDeque<Wait>,
    closing: bool,
    /// A snapshot stands for entries in which it may have been opened, used and ended.
    unseen: bool,
}

#[derive(Debug)]
struct Opening {
    request: RequestId,
    command: Command,
}

#[derive(Debug)]
struct PendingWrite {
    request: RequestId,
    command: Command,
}

#[derive(Debug)]
struct Wait {
    after: u64,
    request: RequestId,
    what: WaitFor,
}

#[derive(Debug)]
enum WaitFor {
    Read {
        read: Read,
        watch: Option<WatchId>,
    },
    Watch {
        watch: WatchId,
        path: String,
        kind: WatchKind,
    },
    Sync {
        ticket: Ticket,
        index: Option<u64>,
    },
    /// The end of a session that is being closed already.
    Close,
}

impl LocalSession {
    pub(crate) fn is_open(&self) -> bool {
        self.opening.is_none() && !self.is_over()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.is_final()
    }

    /// Whether its open (or resume) was answered.
    pub(crate) fn opened(&self) -> bool {
        self.opening.is_none()
    }

    /// The number of the last write answered.
    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// The error that calls on a session in a final state get.
    fn over(&self) -> Error {
        match self.state {
            SessionState::Moved => Error::SessionMoved { session: self.id },
            SessionState::Closed => Error::SessionClosed { session: self.id },
            _ => Error::SessionExpired { session: self.id },
        }
    }

    fn set_state(&mut self, state: SessionState, effects: &mut Effects) {
        if self.state != state && !self.is_over() {
            self.state = state;
            effects.sessions.push((self.id, state));
        }
    }

    fn is_settled(&self) -> bool {
        self.opening.is_none() && self.writes.is_empty() && self.waits.is_empty()
    }

    fn has_unsent(&self) -> bool {
        !self.is_over()
            && (self.sent.is_none_or(|sent| sent < self.issued))
            && (self.opening.is_some() || !self.writes.is_empty())
    }
}

#[derive(Debug, Default)]
pub(crate) struct LocalSessions {
    sessions: BTreeMap<SessionId, LocalSession>,
    /// Sessions with something to send.
    unsent: BTreeSet<SessionId>,
    next_ticket: Ticket,
    /// Sessions whose local deadline has passed and which may owe answers yet.
    lost: BTreeSet<SessionId>,
    /// How many waits there are, of all sessions.
    waits: usize,
    tickets: BTreeMap<Ticket, SessionId>,
    /// Sessions whose waits may be answerable now.
    ready: BTreeSet<SessionId>,
    /// Sessions whose next wait is a sync that this replica has to catch up with.
    catching_up: BTreeSet<SessionId>,
}

impl LocalSessions {
    pub(crate) fn open(
        &mut self,
        request: RequestId,
        session: SessionId,
        holder: u64,
        timeout: Duration,
        command: Command,
        effects: &mut Effects,
    ) {
        if let Some(former) = self.sessions.get_mut(&session) {
            // This very node holds it and resumes it: the former handle loses it, as it would to
            // another node. The shell has told its user: from here on this id means the new one.
            if !former.is_over() {
                former.state = SessionState::Moved;
            }
            // What was sent already may come before the resumption in the log, or not.
            let sent = former.ever_sent.saturating_sub(former.applied);
            let sent = usize::try_from(sent).unwrap_or(usize::MAX).min(former.writes.len());
            let reason = "the session was resumed while the write was under way".to_owned();
            let error = Error::OutcomeUnknown { session, reason };
            for write in former.writes.drain(..sent) {
                let answer = match write.command {
                    Command::Close => Ok(Answer::Reply(Reply::Done)),
                    _ => Err(error.clone()),
                };
                effects.replies.push((write.request, answer));
            }
            self.end(session, SessionState::Moved, effects);
        }
        // What is lost is the former one.
        self.lost.remove(&session);
        self.sessions.insert(
            session,
            LocalSession {
                id: session,
                holder,
                timeout,
                state: SessionState::Connecting,
                opening: Some(Opening { request, command }),
                first_sent: None,
                valid_until: Time::MAX,
                heard: Time::ZERO,
                issued: 0,
                sent: None,
                ever_sent: 0,
                applied: 0,
                writes: VecDeque::new(),
                waits: VecDeque::new(),
                closing: false,
                unseen: false,
            },
        );
        self.unsent.insert(session);
    }

    /// The session, if it takes requests; else the request is answered.
    fn taking(
        &mut self,
        request: RequestId,
        session: SessionId,
        effects: &mut Effects,
    ) -> Option<&mut LocalSession> {
        let error = match self.sessions.get_mut(&session) {
            None => Error::SessionExpired { session },
            Some(held) if held.is_over() => held.over(),
            Some(held) if held.closing => Error::SessionClosed { session },
            Some(held) => return Some(held),
        };
        effects.replies.push((request, Err(error)));
        None
    }

    pub(crate) fn write(
        &mut self,
        request: RequestId,
        session: SessionId,
        write: Write,
        effects: &mut Effects,
    ) {
        let closes = matches!(write, Write::Close);
        if closes && self.sessions.get(&session).is_none_or(LocalSession::is_over) {
            effects.replies.push((request, Ok(Answer::Reply(Reply::Done))));
            return;
        }
        if let Some(held) = self.sessions.get_mut(&session)
            && closes
            && held.closing
        {
            held.waits.push_back(Wait { after: held.issued, request, what: WaitFor::Close });
            self.waits += 1;
            self.ready.insert(session);
            return;
        }
        let Some(held) = self.taking(request, session, effects) else {
            return;
        };
        let command = match write {
            Write::Op(op) => Command::Op(op),
            Write::Multi(ops) => Command::Multi(ops),
            Write::Close => Command::Close,
        };
        held.issued += 1;
        held.closing = closes;
        held.writes.push_back(PendingWrite { request, command });
        self.unsent.insert(session);
    }

    pub(crate) fn read(
        &mut self,
        request: RequestId,
        session: SessionId,
        read: Read,
        watch: Option<WatchId>,
        effects: &mut Effects,
    ) {
        self.wait(request, session, WaitFor::Read { read, watch }, effects);
    }

    pub(crate) fn watch(
        &mut self,
        request: RequestId,
        session: SessionId,
        watch: WatchId,
        path: String,
        kind: WatchKind,
        effects: &mut Effects,
    ) {
        self.wait(request, session, WaitFor::Watch { watch, path, kind }, effects);
    }

    /// Queues a sync and says which ticket a round must carry for it.
    pub(crate) fn sync(
        &mut self,
        request: RequestId,
        session: SessionId,
        effects: &mut Effects,
    ) -> Option<Ticket> {
        let ticket = self.next_ticket;
        if !self.wait(request, session, WaitFor::Sync { ticket, index: None }, effects) {
            return None;
        }
        self.next_ticket += 1;
        self.tickets.insert(ticket, session);
        Some(ticket)
    }

    fn wait(
        &mut self,
        request: RequestId,
        session: SessionId,
        what: WaitFor,
        effects: &mut Effects,
    ) -> bool {
        let Some(held) = self.taking(request, session, effects) else {
            return false;
        };
        held.waits.push_back(Wait { after: held.issued, request, what });
        self.waits += 1;
        self.ready.insert(session);
        true
    }

    /// Whether any read, watch or sync waits for its turn.
    pub(crate) fn has_waits(&self) -> bool {
        self.waits > 0
    }

    /// What has to be sent to the leader now, each session's requests in order.
    pub(crate) fn take_unsent(&mut self, now: Time) -> Vec<Request> {
        let mut requests = Vec::new();
        for session in std::mem::take(&mut self.unsent) {
            let Some(held) = self.sessions.get_mut(&session) else {
                continue;
            };
            if held.is_over() {
                continue;
            }
            let request = |seq, command: &Command| Request {
                session,
                holder: held.holder,
                seq,
                acked: held.applied + 1,
                command: command.clone(),
            };
            if let Some(opening) = &held.opening
                && held.sent.is_none()
            {
                requests.push(request(0, &opening.command));
                held.first_sent.get_or_insert(now);
            }
            let from = held.sent.unwrap_or(0).max(held.applied);
            let upto = held.issued.min(held.applied + WINDOW);
            for seq in from + 1..=upto {
                let place = (seq - held.applied - 1) as usize;
                requests.push(request(seq, &held.writes[place].command));
            }
            held.sent = Some(from.max(upto));
            held.ever_sent = held.ever_sent.max(upto);
        }
        requests
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether something was sent whose outcome has not been seen.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sessions
            .values()
            .any(|held| !held.is_over() && (held.opening.is_some() || !held.writes.is_empty()))
    }

    /// Whatever was sent may be lost: all of it is to be sent again.
    pub(crate) fn send_again(&mut self) {
        for held in self.sessions.values_mut() {
            held.sent = None;
            if held.has_unsent() {
                self.unsent.insert(held.id);
            }
        }
    }

    /// The outcome of a request, as seen in the log; whether it was one of ours.
    pub(crate) fn outcome(
        &mut self,
        session: SessionId,
        holder: u64,
        seq: u64,
        result: &Result<Reply, OpError>,
        effects: &mut Effects,
    ) -> bool {
        let Some(held) = self.sessions.get_mut(&session) else {
            return false;
        };
        if held.holder != holder {
            return false;
        }
        if seq == 0 {
            return self.opened(session, result, effects);
        }
        if matches!(result, Err(OpError::OutOfOrder)) {
            held.sent = None;
            self.unsent.insert(session);
            return false;
        }
        if seq != held.applied + 1 {
            return false;
        }
        let Some(write) = held.writes.pop_front() else {
            return false;
        };
        held.applied = seq;
        let closed = matches!(write.command, Command::Close);
        let answer = match result {
            Ok(reply) => Ok(Answer::Reply(reply.clone())),
            Err(OpError::SessionExpired) if closed => Ok(Answer::Reply(Reply::Done)),
            Err(error) => Err(error.clone().into_error(session)),
        };
        effects.replies.push((write.request, answer));
        self.ready.insert(session);
        if held.has_unsent() {
            self.unsent.insert(session);
        }
        true
    }

    fn opened(
        &mut self,
        session: SessionId,
        result: &Result<Reply, OpError>,
        effects: &mut Effects,
    ) -> bool {
        let Some(held) = self.sessions.get_mut(&session) else {
            return false;
        };
        let Some(opening) = held.opening.take() else {
            return false;
        };
        match result {
            Ok(reply) => {
                if !held.is_over() {
                    let since = held.first_sent.unwrap_or_default();
                    held.heard = since;
                    held.valid_until = since + trusted(held.timeout);
                    effects.leases.push((session, held.valid_until));
                    held.set_state(SessionState::Connected, effects);
                }
                effects.replies.push((opening.request, Ok(Answer::Reply(reply.clone()))));
                self.ready.insert(session);
            }
            Err(error) => {
                if held.unseen {
                    // It may have been let in then, and writes of it run that were sent by now.
                    let sent = held.ever_sent.saturating_sub(held.applied);
                    let sent = usize::try_from(sent).unwrap_or(usize::MAX).min(held.writes.len());
                    let reason = "the session ended while this replica was out of reach".to_owned();
                    let unknown = Error::OutcomeUnknown { session, reason };
                    for write in held.writes.drain(..sent) {
                        let answer = match write.command {
                            Command::Close => Ok(Answer::Reply(Reply::Done)),
                            _ => Err(unknown.clone()),
                        };
                        effects.replies.push((write.request, answer));
                    }
                }
                let error = error.clone().into_error(session);
                effects.replies.push((opening.request, Err(error)));
                self.end(session, SessionState::Expired, effects);
            }
        }
        true
    }

    /// The session is over for its holder here: as the log says, so that no write of it that was
    /// not answered yet can ever happen.
    pub(crate) fn end(&mut self, session: SessionId, state: SessionState, effects: &mut Effects) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        let state = if state == SessionState::Expired && held.closing {
            SessionState::Closed
        } else {
            state
        };
        held.set_state(state, effects);
        let error = held.over();
        if let Some(opening) = held.opening.take() {
            effects.replies.push((opening.request, Err(error.clone())));
        }
        for write in held.writes.drain(..) {
            let answer = match write.command {
                Command::Close => Ok(Answer::Reply(Reply::Done)),
                _ => Err(error.clone()),
            };
            effects.replies.push((write.request, answer));
        }
        self.fail_waits(session, effects);
        self.sessions.remove(&session);
    }

    /// A snapshot was installed, and the session's open (or resume) is not answered by it.
    pub(crate) fn unseen(&mut self, session: SessionId) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.unseen = held.ever_sent > held.applied;
        }
    }

    /// The session is over, and nothing is known of the writes that were not answered.
    pub(crate) fn end_unknown(&mut self, session: SessionId, reason: &str, effects: &mut Effects) {
        if let Some(held) = self.sessions.get_mut(&session) {
            let error = Error::OutcomeUnknown { session, reason: reason.to_owned() };
            for write in held.writes.drain(..) {
                effects.replies.push((write.request, Err(error.clone())));
            }
        }
        self.end(session, SessionState::Expired, effects);
    }

    /// The local deadline of the session has passed: it counts as lost from now on, though writes
    /// already sent may still happen; those are answered when the log says so.
    pub(crate) fn lose(&mut self, session: SessionId, effects: &mut Effects) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        held.set_state(SessionState::Expired, effects);
        self.lost.insert(session);
        let error = held.over();
        // What was never sent to anyone cannot happen any more.
        let keep = usize::try_from(held.ever_sent.saturating_sub(held.applied));
        let keep = keep.unwrap_or(usize::MAX).min(held.writes.len());
        for write in held.writes.drain(keep..) {
            effects.replies.push((write.request, Err(error.clone())));
        }
        self.fail_waits(session, effects);
    }

    fn fail_waits(&mut self, session: SessionId, effects: &mut Effects) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        let error = held.over();
        self.waits -= held.waits.len();
        for wait in held.waits.drain(..) {
            let answer = match wait.what {
                WaitFor::Close => Ok(Answer::Reply(Reply::Done)),
                WaitFor::Sync { ticket, .. } => {
                    self.tickets.remove(&ticket);
                    Err(error.clone())
                }
                WaitFor::Read { .. } | WaitFor::Watch { .. } => Err(error.clone()),
            };
            effects.replies.push((wait.request, answer));
        }
    }

    /// Everything is over, since the node has stopped.
    pub(crate) fn stop(&mut self, error: &Error, effects: &mut Effects) {
        for (_, mut held) in std::mem::take(&mut self.sessions) {
            held.set_state(SessionState::Expired, effects);
            let requests = held
                .opening
                .into_iter()
                .map(|opening| opening.request)
                .chain(held.writes.into_iter().map(|write| write.request))
                .chain(held.waits.into_iter().map(|wait| wait.request));
            effects.replies.extend(requests.map(|request| (request, Err(error.clone()))));
        }
        self.waits = 0;
        self.lost.clear();
        self.unsent.clear();
        self.tickets.clear();
        self.ready.clear();
        self.catching_up.clear();
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&LocalSession> {
        self.sessions.get(&session)
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    /// The sessions that are to be kept alive.
    pub(crate) fn living(&self) -> Vec<SessionId> {
        self.sessions.values().filter(|held| held.is_open()).map(|held| held.id).collect()
    }

    /// The shortest timeout of them.
    pub(crate) fn shortest_timeout(&self) -> Option<Duration> {
        self.sessions.values().filter(|held| held.is_open()).map(|held| held.timeout).min()
    }

    /// A round sent at `sent` was confirmed for the session. After its deadline that comes too
    /// late: its user may have seen that it is not surely alive, and that is for good.
    pub(crate) fn renew(
        &mut self,
        session: SessionId,
        sent: Time,
        now: Time,
        effects: &mut Effects,
    ) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        if !held.is_open() || now >= held.valid_until {
            return;
        }
        held.heard = held.heard.max(sent);
        let valid_until = sent + trusted(held.timeout);
        if valid_until > held.valid_until {
            held.valid_until = valid_until;
            effects.leases.push((session, valid_until));
        }
        held.set_state(SessionState::Connected, effects);
    }

    /// Suspends the sessions that were not confirmed for a third of their timeout, and names those
    /// whose local deadline has passed.
    pub(crate) fn check_deadlines(&mut self, now: Time, effects: &mut Effects) -> Vec<SessionId> {
        let mut lost = Vec::new();
        for held in self.sessions.values_mut().filter(|held| held.is_open()) {
            if now >= held.valid_until {
                lost.push(held.id);
            } else if now >= held.heard + held.timeout / 3 {
                held.set_state(SessionState::Suspended, effects);
            }
        }
        lost
    }

    /// A round carried this sync and was confirmed at this index.
    pub(crate) fn synced(&mut self, ticket: Ticket, at: u64) {
        let Some(session) = self.tickets.remove(&ticket) else {
            return;
        };
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        for wait in &mut held.waits {
            if let WaitFor::Sync { ticket: of, index } = &mut wait.what
                && *of == ticket
            {
                *index = Some(at);
            }
        }
        self.ready.insert(session);
    }

    /// The replica has moved on: syncs may be answerable.
    pub(crate) fn applied(&mut self) {
        self.ready.append(&mut self.catching_up);
    }

    /// Answers the waits whose turn has come.
    pub(crate) fn answer_waits(
        &mut self,
        tree: &Tree,
        applied_index: u64,
        watches: &mut WatchTable,
        effects: &mut Effects,
    ) {
        for session in std::mem::take(&mut self.ready) {
            let Some(held) = self.sessions.get_mut(&session) else {
                continue;
            };
            while let Some(wait) = held.waits.front() {
                let due = held.opening.is_none()
                    && held.applied >= wait.after
                    && match wait.what {
                        WaitFor::Sync { index, .. } => {
                            index.is_some_and(|index| applied_index >= index)
                        }
                        _ => true,
                    };
                if !due {
                    if let WaitFor::Sync { index: Some(_), .. } = wait.what {
                        self.catching_up.insert(session);
                    }
                    break;
                }
                let Some(wait) = held.waits.pop_front() else {
                    break;
                };
                self.waits -= 1;
                let answer = answer(wait.what, session, tree, watches);
                effects.replies.push((wait.request, answer));
            }
        }
    }

    /// Forgets the lost sessions that owe no answer any more.
    pub(crate) fn forget_settled(&mut self) {
        let sessions = &mut self.sessions;
        self.lost.retain(|id| {
            let owes = sessions.get(id).is_some_and(|held| held.is_over() && !held.is_settled());
            if !owes && sessions.get(id).is_some_and(LocalSession::is_over) {
                sessions.remove(id);
            }
            owes
        });
    }
}

fn answer(
    what: WaitFor,
    session: SessionId,
    tree: &Tree,
    watches: &mut WatchTable,
) -> Result<Answer, Error> {
    let (read, watch) = match what {
        WaitFor::Sync { .. } => return Ok(Answer::Synced(tree.zxid())),
        WaitFor::Close => return Ok(Answer::Reply(Reply::Done)),
        WaitFor::Watch { watch, path, kind } => {
            watches.add(watch, &path, kind, session);
            return Ok(Answer::Watching);
        }
        WaitFor::Read { read, watch } => (read, watch),
    };
    let missing = |path: &str| Error::NoNode { path: path.to_owned() };
    let (answer, path, kind) = match &read {
        Read::Get { path } => {
            let znode = tree.get(path).ok_or_else(|| missing(path))?;
            (Answer::Data(znode.data().clone(), znode.stat()), path, WatchKind::Data)
        }
        Read::Exists { path } => {
            (Answer::Exists(tree.get(path).map(Znode::stat)), path, WatchKind::Data)
        }
        Read::Children { path } => {
            let znode = tree.get(path).ok_or_else(|| missing(path))?;
            let children = znode.children().map(str::to_owned).collect();
            (Answer::Children(children), path, WatchKind::Children)
        }
    };
    if let Some(watch) = watch {
        watches.add(watch, path, kind, session);
    }
    Ok(answer)
}

/// A timeout as commands have it.
pub(crate) fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)
}
