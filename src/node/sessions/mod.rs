//! The sessions that this node's users hold, and their requests, in order.
//!
//! Each session numbers its writes and keeps them until it sees their outcome in the log, which every
//! replica applies. It needs no answer from the leader. Whenever the leader or its connection
//! changes, or nothing moves for a while, the node sends all of them again, and the state machine
//! runs each of them once. A write that not all members are known to support is held back, and so are
//! the writes after it (`versions`).
//!
//! Invariants: the writes of a session have contiguous numbers from `applied + 1`. Those up to `sent` have been
//! sent to the present leader (`requests`). A query waits for the writes before it (`after`), and queries are
//! answered in order. A session in a final state sends nothing more, and is forgotten once everything
//! is answered.

mod agenda;
pub(in crate::node) mod audit;
pub(crate) mod holder;
mod lease;
pub(crate) mod queue;
pub(in crate::node) mod rate;
pub(crate) mod read_index;
mod requests;
mod sending;
pub(in crate::node) mod status;
pub(crate) mod users;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::agenda::{Agenda, SessionTask};
use self::audit::Origin;
use self::holder::LocalSession;
use self::lease::Lease;
use self::queue::QueryQueue;
use self::requests::{Opening, Requests};
use crate::machine::Machine;
use crate::machine::command::{Command, OpError, Outcome, Reply, TIMEOUT_KEPT};
use crate::node::client_message::SessionClaim;
use crate::node::config::TimeoutBounds;
use crate::node::io::{Effects, RequestId, SessionHolder, Time};
use crate::node::message::COMMAND_BYTES_MAX;
use crate::node::query::Answer;
use crate::node::request::{ClientRequest, RequestBody, milliseconds};
use crate::node::session_timers::SessionTimers;
use crate::node::sessions::rate::RequestRate;
use crate::node::sessions::read_index::{ReadIndexRequests, SyncId};
use crate::node::versions::Gate;
use crate::types::acl::{AccessList, Permissions};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::znode::{SessionId, Zxid};

/// How many writes of one session may be under way; the others wait here. It bounds the results
/// that the machine must remember, so a leader takes in no more.
pub(in crate::node) const WINDOW: u64 = 4096;
/// About how many bytes of them may be under way. A single write may be larger. It bounds what a
/// leader must hold.
const WINDOW_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct LocalSessions {
    /// How long requests may make no progress before they are first sent again.
    patience: Duration,
    sessions: BTreeMap<SessionId, LocalSession>,
    /// What is to be done for which of them.
    agenda: Agenda,
    /// The versions of the writes that were sent last.
    gate: Gate,
    /// The error with which writes that take room on disks are refused.
    refuses_writes: Option<Error>,
    pub(crate) read_index: ReadIndexRequests,
    next_sync: SyncId,
    /// When each open session is renewed.
    renewals: SessionTimers,
    /// When each session is checked for suspension or loss: never later than that.
    deadlines: SessionTimers,
    /// How many waits there are, of all sessions.
    waits: usize,
    syncs: BTreeMap<SyncId, SessionId>,
    /// Whether their writes are put into the audit log.
    audit: bool,
}

impl LocalSessions {
    /// `boot` is random at each start.
    pub(crate) fn new(patience: Duration, audit: bool, boot: u64) -> LocalSessions {
        let read_index = ReadIndexRequests::new(boot);
        LocalSessions { patience, audit, read_index, ..LocalSessions::default() }
    }

    /// Takes a user's request to a session, except queries. `owner` is this node, which has everything up
    /// to `zxid`.
    pub(crate) fn take_request(
        &mut self,
        request: ClientRequest,
        owner: NodeId,
        zxid: Zxid,
        bounds: TimeoutBounds,
        effects: &mut Effects,
    ) {
        let ClientRequest { id, session, body } = request;
        match body {
            RequestBody::Begin { holder, mut command, from } => {
                let timeout = match &mut command {
                    Command::Open { timeout_ms, owner: own, base, .. } => {
                        (*own, *base) = (owner, zxid);
                        negotiate(timeout_ms, bounds)
                    }
                    // A resumed session that keeps its timeout has none here until it is known.
                    Command::Resume { timeout_ms: TIMEOUT_KEPT, owner: own, .. } => {
                        *own = owner;
                        Duration::ZERO
                    }
                    Command::Resume { timeout_ms, owner: own, .. } => {
                        *own = owner;
                        negotiate(timeout_ms, bounds)
                    }
                    _ => return,
                };
                self.begin((id, session), holder, timeout, command, from, effects);
            }
            RequestBody::Command(command) => self.write(id, session, command, effects),
            RequestBody::Abandon(state) => {
                let reason = "its holder let go of the session while the write was under way";
                self.end_unknown(session, state, reason, effects);
            }
            // These are answered by a replica, or by the member of a client.
            RequestBody::Query(_) | RequestBody::Admin(_) => {}
        }
    }

    fn begin(
        &mut self,
        (request, session): (RequestId, SessionId),
        holder: u64,
        timeout: Duration,
        command: Command,
        from: Option<String>,
        effects: &mut Effects,
    ) {
        if let Some(former) = self.sessions.get_mut(&session) {
            // This very node holds it and resumes it: the former handle loses it, as it would to
            // another node. The host has notified its user. From here on this id means the new
            // holder.
            if !former.is_over() {
                former.state = SessionState::Moved;
            }
            // Writes that were already sent may come before the resumption in the log, or not.
            let reason = "the session was resumed while the write was under way";
            former.answer_unknown(reason, effects);
            self.end(session, SessionState::Moved, effects);
        }
        // Only the former holder has lost the session.
        self.agenda.remove(SessionTask::Settle, session);
        self.sessions.insert(
            session,
            LocalSession {
                id: session,
                holder,
                state: SessionState::Connecting,
                lease: Lease::new(timeout),
                requests: Requests::new(Opening { request, command }, self.patience),
                waits: QueryQueue::default(),
                closing: false,
                ids: Arc::default(),
                from,
                rate: RequestRate::default(),
            },
        );
        self.agenda.add(SessionTask::Send, session);
    }

    /// Counts a request of a session, whatever becomes of it.
    pub(crate) fn note_request(&mut self, session: SessionId, now: Time) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.rate.note(now);
        }
    }

    /// The rate of a session's requests, if a user of this node holds it.
    pub(in crate::node) fn rate(&self, session: SessionId) -> Option<RequestRate> {
        Some(self.sessions.get(&session)?.rate)
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
        effects.reply(request, Err(error));
        None
    }

    /// The holder of the session and its last write, if it takes requests; otherwise the request is
    /// answered. For requests that are answered elsewhere.
    pub(crate) fn turn(
        &mut self,
        request: RequestId,
        session: SessionId,
        effects: &mut Effects,
    ) -> Option<(u64, u64)> {
        let held = self.taking(request, session, effects)?;
        Some((held.holder, held.requests.issued()))
    }

    /// Refuses writes with this error from now on, or takes them again.
    pub(crate) fn refuse_writes(&mut self, error: Option<Error>) {
        self.refuses_writes = error;
    }

    fn write(
        &mut self,
        request: RequestId,
        session: SessionId,
        command: Command,
        effects: &mut Effects,
    ) {
        let closes = matches!(command, Command::Close);
        if closes && self.sessions.get(&session).is_none_or(LocalSession::is_over) {
            effects.reply(request, Ok(Answer::Reply(Reply::Done)));
            return;
        }
        if let Some(held) = self.sessions.get_mut(&session)
            && closes
            && held.closing
        {
            held.waits.push(request, held.requests.issued(), None, None);
            self.waits += 1;
            self.agenda.add(SessionTask::Answer, session);
            return;
        }
        let refused = self.refuses_writes.clone().filter(|_| command.takes_room());
        let Some(held) = self.taking(request, session, effects) else {
            return;
        };
        // Before the write has a number: it does not enter the log, and no number is skipped.
        if let Some(error) = refused {
            return effects.reply(request, Err(error));
        }
        if let Some(error) = command.too_large(COMMAND_BYTES_MAX) {
            return effects.reply(request, Err(error.into_error(session)));
        }
        held.closing = closes;
        held.requests.push(request, command);
        self.agenda.add(SessionTask::Send, session);
    }

    /// Takes the sessions' ids from a snapshot, in which they may have more.
    pub(crate) fn identify(&mut self, machine: &Machine) {
        for held in self.sessions.values_mut() {
            let record = machine.session(held.id).filter(|record| record.holder == held.holder);
            if let Some(record) = record {
                held.ids = Arc::clone(&record.ids);
            }
        }
    }

    /// Whether a session may read a znode of this access list.
    pub(crate) fn may_read(&self, session: SessionId, acl: Option<&AccessList>) -> bool {
        let held = self.sessions.get(&session);
        held.is_some_and(|held| held.viewer().may(acl, Permissions::READ))
    }

    /// Takes the outcome of a request, seen in the log at `now`, when this replica has `zxid`.
    pub(crate) fn outcome(
        &mut self,
        outcome: &Outcome,
        now: Time,
        zxid: Zxid,
        effects: &mut Effects,
    ) {
        let Outcome { session, holder, seq, zxid: done_at, ref result } = *outcome;
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        if held.holder != holder {
            return;
        }
        if seq == 0 {
            return self.opened(session, result, now, zxid, effects);
        }
        if matches!(result, Err(OpError::OutOfOrder)) {
            held.requests.forget_sent();
            self.agenda.add(SessionTask::Send, session);
            return;
        }
        let Some(write) = held.requests.decided(seq, now, self.patience) else {
            return;
        };
        let closed = matches!(write.command, Command::Close);
        if self.audit {
            let origin = Origin::own(held.from.as_deref());
            audit::note(session, &held.ids, &origin, &write.command, result);
        }
        if let Ok(Reply::Ids(ids)) = result {
            held.ids = Arc::new(ids.clone());
            effects.ids.push((held.session_holder(), ids.clone()));
        }
        let answer = match result {
            Ok(reply) => match write.refused {
                Some(refused) => Err(refused.into_error(session)),
                None => Ok(Answer::Reply(reply.clone())),
            },
            Err(OpError::SessionExpired) if closed => Ok(Answer::Reply(Reply::Done)),
            Err(error) => Err(error.clone().into_error(session)),
        };
        effects.reply_at(done_at, write.request, answer);
        self.agenda.add(SessionTask::Answer, session);
        if held.has_unsent() {
            self.agenda.add(SessionTask::Send, session);
        }
    }

    fn opened(
        &mut self,
        session: SessionId,
        result: &Result<Reply, OpError>,
        now: Time,
        zxid: Zxid,
        effects: &mut Effects,
    ) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        if matches!(result, Err(OpError::StaleOpen)) && held.requests.open_again(zxid) {
            self.agenda.add(SessionTask::Send, session);
            return;
        }
        let Some(opening) = held.requests.opened(now, self.patience) else {
            return;
        };
        if self.audit {
            let origin = Origin::own(held.from.as_deref());
            audit::note(session, &held.ids, &origin, &opening.command, result);
        }
        match result {
            Ok(reply) => {
                if let Reply::Session { timeout_ms } = reply {
                    // The requested timeout, or the one that the session had.
                    held.lease.set_timeout(Duration::from_millis(u64::from(*timeout_ms)));
                }
                if !held.is_over() {
                    let since = held.requests.first_sent().unwrap_or_default();
                    let valid_until = held.lease.begin(since, now);
                    effects.leases.push((held.session_holder(), valid_until));
                    held.set_state(SessionState::Connected, effects);
                    self.begin_lease(session);
                }
                effects.reply(opening.request, Ok(Answer::Reply(reply.clone())));
                self.agenda.add(SessionTask::Answer, session);
            }
            Err(error) => {
                if held.requests.is_unseen() {
                    // The session may have been resumed, and its writes sent so far may have run.
                    let reason = "the session ended while this replica was out of reach";
                    held.answer_unknown(reason, effects);
                }
                let error = error.clone().into_error(session);
                effects.reply(opening.request, Err(error));
                self.end(session, SessionState::Expired, effects);
            }
        }
    }

    /// The session has ended for its holder here, by the log. So no unanswered write of it can ever
    /// happen.
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
        held.requests.fail(&error, effects);
        self.fail_waits(session, effects);
        self.sessions.remove(&session);
        self.end_lease(session);
    }

    /// A snapshot was installed that does not show the outcome of the session's open (or resume).
    pub(crate) fn unseen(&mut self, session: SessionId) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.requests.note_unseen();
        }
    }

    /// The session has ended, and the outcomes of its sent writes are not known.
    pub(crate) fn end_unknown(
        &mut self,
        session: SessionId,
        state: SessionState,
        reason: &str,
        effects: &mut Effects,
    ) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.answer_unknown(reason, effects);
        }
        self.end(session, state, effects);
    }

    /// Ends everything, since the node has stopped.
    pub(crate) fn stop(&mut self, error: &Error, effects: &mut Effects) {
        // Local reads are as fresh as they were.
        let read_index = std::mem::take(&mut self.read_index);
        let ended = LocalSessions { read_index, ..LocalSessions::default() };
        for (_, mut held) in std::mem::replace(self, ended).sessions {
            held.set_state(SessionState::Expired, effects);
            let requests = held.requests.askers().chain(held.waits.askers().copied());
            requests.for_each(|request| effects.reply(request, Err(error.clone())));
        }
    }

    /// The holder's report of each session, for a replica that did not follow it.
    pub(crate) fn claims(&self) -> Vec<SessionClaim> {
        self.sessions.values().map(LocalSession::claim).collect()
    }

    /// Whether this holder holds the session here.
    pub(crate) fn holds(&self, session_holder: SessionHolder) -> bool {
        self.sessions
            .get(&session_holder.session)
            .is_some_and(|held| held.holder == session_holder.holder)
    }

    /// Whether the session was opened here by another one than this holder.
    pub(crate) fn is_of_another(&self, session: SessionId, holder: u64) -> bool {
        let held = self.sessions.get(&session);
        held.is_some_and(|held| held.requests.opening().is_none() && held.holder != holder)
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The host and port of the client of a gateway that uses the session.
    pub(crate) fn from(&self, session: SessionId) -> Option<&str> {
        self.sessions.get(&session)?.from.as_deref()
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }
}

/// The timeout that a command asks for, within these bounds.
fn negotiate(timeout_ms: &mut u32, bounds: TimeoutBounds) -> Duration {
    let timeout = bounds.negotiated(Duration::from_millis(u64::from(*timeout_ms)));
    *timeout_ms = milliseconds(timeout);
    timeout
}
