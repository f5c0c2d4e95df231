//! A node, and delivering its effects to users' handles.
//!
//! This is not a thread: the owner of a [`Host`] passes calls and inputs to it, and steps it.
//! [`NodeShared`] is the state that it shares with the handles.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::machine::command::{Command, Reply};
use crate::node::Node;
use crate::node::io::{
    Answered, Dial, DiskOp, Effects, Input, Now, RequestId, SessionHolder, Time, WatchId,
};
use crate::node::message::PeerMessage;
use crate::node::query::Answer;
use crate::node::request::{ClientRequest, RequestBody};
use crate::runtime::clock::Clock;
use crate::runtime::end::CLOSED;
use crate::runtime::engine::Engine;
use crate::runtime::holder;
use crate::runtime::inbox::{Asker, HostMessage, RequestOrigin};
use crate::runtime::mailbox::{AnswerSink, MailboxDeliveries, WatchSink};
use crate::runtime::session::SessionShared;
use crate::runtime::shared::{Limits, NodeShared};
use crate::runtime::timers::CallerTimers;
use crate::security::auth::Schemes;
use crate::types::error::{Error, Result};
use crate::types::membership::{Member, NodeId};
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// How often the status is updated, at most, while nothing important changes.
const STATUS_EVERY: Duration = Duration::from_millis(20);
/// How long a closing node may take to close its sessions and to hand over.
pub(super) const CLOSE_TIME: Duration = Duration::from_secs(1);
/// How long it first waits for another instance to take a lost voter's place, if the cluster would
/// lose its majority without this node.
pub(super) const STAY_TIME: Duration = Duration::from_secs(10);

/// The effects of a step outside the process's memory.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) messages: Vec<(NodeId, PeerMessage)>,
    pub(crate) disk: Vec<DiskOp>,
    /// The members of the cluster, if they have changed. A member is connected with all of them.
    pub(crate) members: Option<Arc<Vec<Member>>>,
    /// The members that a client should connect to, if they have changed.
    pub(crate) dial: Option<Dial>,
    /// The cluster that the node belongs to, once it is decided.
    pub(crate) cluster: Option<u64>,
}

/// The effects of a step for the handles: see [`Host::notify`].
#[must_use]
pub(crate) struct HandleEffects {
    effects: Effects,
    members: Option<Arc<Vec<Member>>>,
    now: Time,
}

/// The progress of a host that is closing.
#[derive(Clone, Copy, Debug)]
struct Closing {
    /// The end of its time to wait until the others can continue without it.
    stays_until: Time,
    /// Whether it waits for the others.
    stays: bool,
    /// The end of its time to close, after that wait.
    until: Time,
    /// Whether it has led since it began to close.
    led: bool,
    /// Whether its sessions were closed when it was last stepped, so that the others know.
    done: bool,
}

/// A request in flight.
struct PendingRequest {
    sink: AnswerSink,
    /// Whether its refusal is counted in the metrics.
    counts: bool,
    /// The watch that it sets.
    watch: Option<WatchId>,
}

pub(crate) struct Host {
    engine: Engine,
    shared: Arc<NodeShared>,
    calls: Receiver<HostMessage>,
    inputs: Vec<Input>,
    /// Empty: the memory for the next replies.
    replies: Vec<Answered>,
    answers: BTreeMap<RequestId, PendingRequest>,
    watches: BTreeMap<WatchId, WatchSink>,
    /// Deliveries for mailboxes, sent at the end of the step.
    outgoing: MailboxDeliveries,
    /// The sessions with their holders: see [`SessionHolder`].
    sessions: BTreeMap<SessionId, (u64, Weak<SessionShared>)>,
    timers: CallerTimers,
    /// Whether a slow reader of a session's states missed the latest one.
    readers_behind: bool,
    status_at: Time,
    /// The important parts of the status when it was last updated.
    status_key: ((u64, NodeId, bool), u16, bool),
    /// Set while the host is closing.
    closing: Option<Closing>,
    /// Dropped when the host has closed.
    closers: Vec<Sender<()>>,
}

impl Host {
    pub(crate) fn new(
        engine: impl Into<Engine>,
        clock: Clock,
        limits: Limits,
        members: Vec<Member>,
        schemes: Schemes,
    ) -> (Host, Arc<NodeShared>) {
        let engine = engine.into();
        let (shared, calls) = NodeShared::new(&engine, clock, limits, members, schemes);
        let shared = Arc::new(shared);
        let host = Host {
            engine,
            shared: Arc::clone(&shared),
            calls,
            inputs: Vec::new(),
            replies: Vec::new(),
            answers: BTreeMap::new(),
            watches: BTreeMap::new(),
            outgoing: MailboxDeliveries::default(),
            sessions: BTreeMap::new(),
            timers: CallerTimers::new(),
            readers_behind: false,
            status_at: Time::ZERO,
            status_key: ((0, 0, false), 0, false),
            closing: None,
            closers: Vec::new(),
        };
        (host, shared)
    }

    /// The inbox, for waiting for calls.
    pub(crate) fn calls(&self) -> Receiver<HostMessage> {
        self.calls.clone()
    }

    pub(crate) fn shared(&self) -> &NodeShared {
        &self.shared
    }

    /// The member; `None` for a client.
    pub(crate) fn member(&self) -> Option<&Node> {
        self.engine.node()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn input(&mut self, input: Input) {
        self.inputs.push(input);
    }

    /// Whether there is nothing to step for now.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_inputs() && self.calls.is_empty()
    }

    /// Whether there is something to step for besides calls.
    pub(crate) fn has_inputs(&self) -> bool {
        !self.inputs.is_empty()
    }

    /// The first time at which it does anything by itself but exchange heartbeats; `None`: it has something to do.
    pub(crate) fn quiet_until(&self) -> Option<Time> {
        let is_quiet = self.is_idle() && self.answers.is_empty() && self.closing.is_none();
        let member = self.engine.node().filter(|_| is_quiet)?;
        Some(self.timers.next().unwrap_or(Time::MAX).min(member.reaps_at()))
    }

    /// Whether the wait of a caller is over, or will be with the next step.
    pub(crate) fn has_due_timer(&self, now: Time) -> bool {
        self.timers.next().is_some_and(|at| at <= now)
    }

    /// The sessions that a close would close.
    pub(crate) fn held(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// Handles a call. Returns `false` if the host should be dropped now.
    pub(crate) fn call(&mut self, call: HostMessage) -> bool {
        match call {
            HostMessage::Request { request, asker } => self.request(request, asker),
            HostMessage::Look(look) => look(self),
            HostMessage::Input(input) => {
                if let Input::Unwatch(watch) = input {
                    self.watches.remove(&watch);
                }
                self.inputs.push(input);
            }
            HostMessage::Timer(timer) => self.timers.add(timer),
            HostMessage::Close(closed) => return self.begin_close(closed),
        }
        true
    }

    /// The sessions that this node holds.
    pub(super) fn sessions(&self) -> Vec<Arc<SessionShared>> {
        self.sessions.values().filter_map(|(_, held)| held.upgrade()).collect()
    }

    /// Whether handles of this member held the session and no longer do: those of a former run of this
    /// instance, or those for which the session is over. Nobody can use it any more, unless it is resumed.
    pub(super) fn has_left(&self, session: SessionId) -> bool {
        let record = self.member().and_then(|node| node.machine().session(session));
        let held = self.sessions.get(&session).and_then(|(_, held)| held.upgrade());
        let is_held = held.is_some_and(|held| !held.state().is_final());
        record.is_some_and(|record| {
            let was_own = record.owner == self.engine.id() && holder::is_instance(record.holder);
            was_own && !is_held
        })
    }

    /// Closes or detaches the sessions. Returns `false` if there is nothing to wait for.
    fn begin_close(&mut self, closed: Sender<()>) -> bool {
        self.closers.push(closed);
        // Sessions that are closed in the log release their locks now, instead of after their timeout.
        for (session, (_, shared)) in &self.sessions {
            let (session, shared) = (*session, shared.upgrade());
            let body = match shared {
                // A client of a gateway continues its session at another instance.
                Some(shared) if shared.recipient.get().is_some() => {
                    if !shared.detach() {
                        continue;
                    }
                    RequestBody::Abandon(SessionState::Detached)
                }
                // The session is detached; its handle is about to notify this host.
                Some(shared) if !shared.give_up() => continue,
                _ => RequestBody::Command(Command::Close),
            };
            self.inputs.push(Input::Client(ClientRequest { id: RequestId(0), session, body }));
        }
        let now = self.shared.clock.now();
        self.closing.get_or_insert(Closing {
            stays_until: now + STAY_TIME,
            stays: false,
            until: now + CLOSE_TIME,
            led: false,
            done: self.sessions.is_empty(),
        });
        // A member that was just handed the lead knows no leader until it is elected.
        let elects = self.engine.node().is_some_and(|node| node.was_led_lately(now));
        elects || self.engine.status().leader.is_some()
    }

    fn request(&mut self, request: ClientRequest, mut asker: Asker) {
        let origin = asker.origin.take();
        let is_write = matches!(request.body, RequestBody::Command(_));
        let counts = is_write && !matches!(origin, Some(RequestOrigin::Recipe(_)));
        let admitted = match origin {
            None => Ok(()),
            Some(RequestOrigin::Holder(session) | RequestOrigin::Recipe(session)) => {
                self.check_holder(&session)
            }
            Some(RequestOrigin::Opener(session)) => self.open(&session),
        };
        let sink = asker.sink.take();
        if let Err(error) = admitted {
            let closes = matches!(request.body, RequestBody::Command(Command::Close));
            if let Some(sink) = sink {
                self.shared.note_answered(&sink);
                let answer = if closes { Ok(Answer::Reply(Reply::Done)) } else { Err(error) };
                let zxid = self.shared.tree().zxid();
                let answered = Answered { request: request.id, zxid, answer };
                sink.complete(answered, &mut self.outgoing);
            }
            return;
        }
        if let Some(sink) = sink {
            let watch = asker.watch.as_ref().map(|(watch, _)| *watch);
            self.answers.insert(request.id, PendingRequest { sink, counts, watch });
        }
        if let Some((id, sender)) = asker.watch.take() {
            self.watches.insert(id, sender);
        }
        self.inputs.push(Input::Client(request));
    }

    /// Fails if another handle of this host has resumed the session. The node identifies a session only
    /// by its id, so requests of the former handle must not reach it.
    fn check_holder(&self, session: &Arc<SessionShared>) -> Result<()> {
        let held = self.sessions.get(&session.id);
        if held.is_some_and(|(holder, _)| *holder == session.holder) {
            return Ok(());
        }
        let over = session.over(&self.shared.end);
        Err(over.unwrap_or(Error::SessionExpired { session: session.id }))
    }

    fn open(&mut self, session: &Arc<SessionShared>) -> Result<()> {
        let id = session.id;
        if self.closing.is_some() {
            session.set_state(SessionState::Expired);
            return Err(Error::Stopped { reason: "it is being closed".to_owned() });
        }
        let former = self.sessions.get(&id).and_then(|(_, former)| former.upgrade());
        if let Some(former) = former {
            // This node holds the session and knows its password. With a wrong password the holder
            // keeps the session; with the right one it loses the session now. A holder that still waits
            // for the session may be the one with the wrong password: the log decides.
            let is_held = former.state() != SessionState::Connecting;
            if is_held && former.secret != session.secret {
                session.set_state(SessionState::Expired);
                return Err(Error::WrongPassword { session: id });
            }
            former.set_state(SessionState::Moved);
            former.report(SessionState::Moved, &mut self.outgoing);
        }
        self.sessions.insert(id, (session.holder, Arc::downgrade(session)));
        Ok(())
    }

    /// Steps the node with all inputs. Send messages and start writes before notifying the handles,
    /// which may take a while.
    pub(crate) fn step(&mut self) -> (Work, HandleEffects) {
        let clock = &self.shared.clock;
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        if let Some(closing) = &mut self.closing {
            let must_stay = self.engine.node().is_some_and(Node::must_stay);
            closing.stays = must_stay && now.mono < closing.stays_until;
            if closing.stays {
                closing.until = now.mono + CLOSE_TIME;
            } else {
                closing.led |= self.engine.leadership().2;
            }
            closing.done = self.sessions.is_empty();
            // The node resigns at once: the next leader closes the sessions.
            let resigns = !closing.stays && !planted!(ClosesWithoutHandover);
            self.inputs.push(Input::Closing { done: closing.done, resigns });
        }
        let mut effects = self.engine.step(now, self.inputs.drain(..));
        if effects.tree.is_some() {
            let took = clock.now().saturating_sub(now.mono);
            self.shared.figures.measured().apply.record(took);
        }
        let members = effects.members.take().map(Arc::new);
        let work = Work {
            messages: std::mem::take(&mut effects.messages),
            disk: std::mem::take(&mut effects.disk),
            members: members.clone(),
            dial: effects.dial.take(),
            cluster: effects.cluster,
        };
        (work, HandleEffects { effects, members, now: now.mono })
    }

    /// Delivers the effects of a step to the handles. Returns when the node wants its next step.
    pub(crate) fn notify(&mut self, effects: HandleEffects) -> Time {
        let HandleEffects { mut effects, members, now } = effects;
        let mut to_wake = Vec::new();
        let has_events = !effects.events.is_empty();
        if has_events {
            self.shared.tree.announce();
        }
        for (id, event) in effects.events {
            if let Some(watch) = self.watches.get_mut(&id)
                && watch.deliver(id, event, &mut self.outgoing)
            {
                to_wake.push(id);
            }
        }
        self.shared.tree.publish(effects.tree);
        for id in to_wake {
            if let Some(watch) = self.watches.get_mut(&id) {
                watch.wake();
            }
        }
        if has_events {
            let took = self.shared.clock.now().saturating_sub(now);
            self.shared.figures.measured().watch_delivery.record(took);
        }
        if let Some(reason) = &effects.stopped {
            self.answers.values_mut().for_each(|asked| asked.watch = None);
            self.shared.end.set(reason);
            self.watches.clear();
        }
        for (of, until) in effects.leases {
            if let Some(session) = self.session_of(of).and_then(Weak::upgrade) {
                session.set_lease(until);
            }
        }
        if self.readers_behind {
            let sessions = self.sessions.values().filter_map(|(_, session)| session.upgrade());
            self.readers_behind = sessions.fold(false, |some, session| session.catch_up() | some);
        }
        for (of, state) in effects.sessions {
            let Some(session) = self.session_of(of) else {
                continue;
            };
            if let Some(session) = session.upgrade() {
                self.readers_behind |= session.set_state(state);
                session.report(state, &mut self.outgoing);
            }
            if state.is_final() {
                self.sessions.remove(&of.session);
            }
        }
        // Channels close after the session's state is set, so a user that finds one closed also sees
        // the end of the session.
        for id in effects.ended {
            self.watches.remove(&id);
        }
        for (of, ids) in effects.ids {
            if let Some(session) = self.session_of(of).and_then(Weak::upgrade) {
                session.ids.store(Arc::new(ids));
            }
        }
        if let Some(members) = members {
            self.shared.cluster.members.store(members);
        }
        if let Some(cluster) = effects.cluster {
            self.shared.cluster.set_id(cluster);
        }
        self.publish_status(now, effects.stopped.is_some());
        // Before the replies, so that who has one has seen its write.
        self.shared.note_seen(effects.zxid.max(self.engine.zxid()));
        for answered in effects.replies.drain(..) {
            let asked = self.answers.remove(&answered.request);
            let Some(PendingRequest { sink, counts, watch }) = asked else { continue };
            if let Some(watch) = watch {
                if answered.answer.is_err() {
                    // The watch was not set.
                    self.watches.remove(&watch);
                } else if !self.watches.contains_key(&watch) {
                    // The user has dropped the watch before it was set.
                    self.inputs.push(Input::Unwatch(watch));
                }
            }
            let refused = |error: &Error| !error.is_outcome_unknown();
            if counts && answered.answer.as_ref().is_err_and(refused) {
                self.shared.figures.measured().requests_refused += 1;
            }
            self.shared.note_answered(&sink);
            sink.complete(answered, &mut self.outgoing);
        }
        self.replies = effects.replies;
        self.outgoing.send(effects.zxid);
        if effects.stopped.is_some() {
            self.shared.readiness.end_changes();
        }
        self.timers.fire(now);
        if self.closing.is_some_and(|closing| !closing.done) && self.sessions.is_empty() {
            // The others receive that at once.
            return now;
        }
        self.timers.next().map_or(effects.wake_at, |at| at.min(effects.wake_at))
    }

    /// Takes back the memory of a step's work, for the next step's.
    pub(crate) fn reuse(&mut self, messages: Vec<(NodeId, PeerMessage)>, disk: Vec<DiskOp>) {
        let replies = std::mem::take(&mut self.replies);
        self.engine.reuse(Effects::reusing(messages, disk, replies));
    }

    /// The session, if it still has this holder.
    fn session_of(&self, of: SessionHolder) -> Option<&Weak<SessionShared>> {
        let (holder, session) = self.sessions.get(&of.session)?;
        (*holder == of.holder).then_some(session)
    }

    /// Whether a closing host has done what it can, and may be dropped.
    ///
    /// It has [`CLOSE_TIME`]. If other members that began to close later still need this one, it has as long
    /// again: their time is over by then.
    pub(crate) fn is_closed(&self) -> bool {
        let Some(closing) = self.closing else { return false };
        let (node, now) = (self.engine.node(), self.shared.clock.now());
        // An election may be under way that its own sessions wait for.
        let elects = |node: &Node| !closing.done && node.was_led_lately(now);
        let is_needed = || node.is_some_and(|node| node.is_needed_by_closers() || elects(node));
        let is_over = now >= closing.until && (now >= closing.until + CLOSE_TIME || !is_needed());
        // Without a majority, no session can be closed.
        let is_done = closing.done || node.is_some_and(Node::is_abandoned);
        let is_free = || !node.is_some_and(|node| node.is_needed_to_close(closing.led));
        self.shared.end.reason().is_some()
            || (!closing.stays && (is_over || (is_done && is_free())))
    }

    fn publish_status(&mut self, now: Time, at_once: bool) {
        // Who has waited until it is ready finds that it is.
        let key = (self.engine.leadership(), self.engine.version(), self.engine.is_fresh(now));
        let changed = at_once || key != self.status_key;
        if !changed && now < self.status_at + STATUS_EVERY {
            return;
        }
        self.status_key = key;
        self.status_at = now;
        self.shared.readiness.publish(self.engine.status());
    }

    /// Answers all waiting requests for the last time.
    pub(crate) fn close(&mut self) {
        // Readers must not wait for a change that was interrupted.
        self.shared.tree.publish(None);
        // If the node has stopped before, the first reason stays.
        let error = self.shared.end.set(CLOSED);
        // As in a step, states are set before the answers that depend on them.
        for (_, (_, session)) in std::mem::take(&mut self.sessions) {
            if let Some(session) = session.upgrade() {
                session.set_state(SessionState::Expired);
                session.report(SessionState::Expired, &mut self.outgoing);
            }
        }
        self.outgoing.send(0);
        for (_, PendingRequest { sink, .. }) in std::mem::take(&mut self.answers) {
            sink.fail(error.clone());
        }
        self.timers.clear();
        self.shared.readiness.end_changes();
        // A call may still arrive after this loop. Its sender finds the channel closed when this host is
        // dropped.
        while let Ok(call) = self.calls.try_recv() {
            drop(call);
        }
        self.watches.clear();
        let mut status = self.engine.status();
        (status.leader, status.is_leader) = (None, false);
        self.shared.readiness.publish(status);
    }
}

#[cfg(any(test, feature = "simulator"))]
impl Host {
    /// The member, in tests without clients.
    pub(crate) fn node(&self) -> &Node {
        self.engine.node().expect("only tests without clients call this")
    }

    /// Whether a watch's channel is full.
    pub(crate) fn is_full(&mut self, watch: WatchId) -> bool {
        match self.watches.get_mut(&watch) {
            Some(WatchSink::Channel(sender)) => sender.events.is_full(),
            _ => false,
        }
    }
}

#[cfg(any(test, feature = "simulator"))]
impl HandleEffects {
    /// The replies to the requests of handles.
    pub(crate) fn replies_mut(&mut self) -> &mut Vec<Answered> {
        &mut self.effects.replies
    }

    /// The events for the watches.
    pub(crate) fn events_mut(&mut self) -> &mut Vec<(WatchId, crate::types::watch::WatchEvent)> {
        &mut self.effects.events
    }

    /// The tree for readers from now on.
    pub(crate) fn tree_mut(&mut self) -> &mut Option<crate::machine::Tree> {
        &mut self.effects.tree
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "its thread panicked; see the panic message of the process";
            self.shared.end.set(reason);
        }
        self.close();
    }
}
