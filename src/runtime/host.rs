//! A node and all that its effects reach: the handles of its users.
//!
//! Not a thread: whoever owns a [`Host`] feeds it calls and inputs and steps it.
//! What handles share with it is [`Shared`]: an inbox and the published tree, and
//! for each session [`SessionShared`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use once_cell::sync::OnceCell;

use crate::auth::Schemes;
use crate::availability::Availability;
use crate::error::{Error, Result};
use crate::machine::Tree;
use crate::machine::command::{NodeId, Reply};
use crate::membership::Member;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::node::io::{
    Answer, ClientRequest, DiskOp, Holding, Input, NodeStatus, Now, RequestId, Time, WatchId, Write,
};
use crate::node::message::PeerMessage;
use crate::pending::{Pending, Slot};
use crate::runtime::availability::Readers;
use crate::runtime::clock::Clock;
use crate::runtime::engine::Engine;
use crate::runtime::expect;
use crate::runtime::session::SessionShared;
use crate::runtime::timers::{Timer, Timers};
use crate::session::SessionState;
use crate::sync::published::Published;
use crate::watch::WatchSender;
use crate::znode::SessionId;

/// How often the status is brought up to date, at most, while nothing important changes.
const STATUS_EVERY: Duration = Duration::from_millis(20);
/// How long a closing node takes to close its sessions and to hand over.
pub(super) const CLOSE_TIME: Duration = Duration::from_secs(1);

/// What a handle wants of the host.
pub(crate) enum Call {
    Request(Request),
    /// Somebody waits for a moment.
    Timer(Timer),
    /// Somebody looks at the node's tables.
    Look(Box<dyn FnOnce(&Engine) + Send>),
    /// The node is to be a member no more.
    Leave,
    /// The coordinator is to stop, in good order. What it holds is dropped when it has.
    Close(Sender<()>),
}

/// Who makes a request.
pub(crate) enum Asker {
    /// A handle of the session.
    Holder(Arc<SessionShared>),
    /// The same, with the request that opens or resumes it.
    Opener(Arc<SessionShared>),
}

pub(crate) struct Request {
    request: Option<ClientRequest>,
    /// Who waits for the answer, if anybody.
    slot: Option<(RequestId, Arc<Slot>)>,
    /// The watch that comes with it.
    watch: Option<(WatchId, Box<WatchSender>)>,
    asker: Option<Asker>,
}

/// What a host lets its users do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) pending_requests_max: usize,
    pub(crate) request_timeout: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) tick: Duration,
}

struct Meter(Box<dyn Fn(&mut Metrics) + Send + Sync>);

/// What the handles of one node share.
pub(crate) struct Shared {
    /// Handles -> node. Not bounded by itself: `waiting` counts what is in it and behind it.
    calls: Sender<Call>,
    waiting: AtomicUsize,
    next_id: AtomicU64,
    tree: Published<Tree>,
    status: Mutex<NodeStatus>,
    stopped: OnceCell<String>,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) node: NodeId,
    /// Whether `tree` is a replica; else this is a client.
    pub(crate) has_replica: bool,
    /// The cluster's id, once it is known: 0 before.
    pub(crate) cluster: AtomicU64,
    /// Where others reach it, for as long as it is no member.
    own_address: OnceCell<String>,
    /// The members as this replica, or a client's member, knows them.
    pub(crate) members: ArcSwap<Vec<Member>>,
    pub(crate) availability: Readers,
    /// Why nobody was found at addresses of the list, and whether waiting will not help.
    seeds: Mutex<BTreeMap<String, (String, bool)>>,
    meter: OnceCell<Meter>,
    pub(crate) schemes: Schemes,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Shared {
    /// This replica's tree, as of now.
    pub(crate) fn tree(&self) -> arc_swap::Guard<Arc<Tree>> {
        self.tree.read()
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the node has stopped, if it has.
    pub(crate) fn stopped(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    pub(crate) fn next_watch(&self) -> WatchId {
        WatchId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a request; the answer is converted for its user.
    pub(crate) fn ask<T>(
        &self,
        asker: Asker,
        request: impl FnOnce(RequestId) -> ClientRequest,
        watch: Option<(WatchId, WatchSender)>,
        convert: impl FnOnce(Answer) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.ask_within(self.limits.pending_requests_max, asker, request, watch, convert)
    }

    /// The same with a limit of its own: what lets something go is not refused.
    pub(crate) fn ask_within<T>(
        &self,
        limit: usize,
        asker: Asker,
        request: impl FnOnce(RequestId) -> ClientRequest,
        watch: Option<(WatchId, WatchSender)>,
        convert: impl FnOnce(Answer) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        if let Some(reason) = self.stopped() {
            let error = Error::Stopped { reason: reason.to_owned() };
            return Pending::failed(error, self.clock.clone());
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= limit {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Pending::failed(Error::Busy { limit }, self.clock.clone());
        }
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let slot = Arc::new(Slot::default());
        let pending = Pending::new(Arc::clone(&slot), self.clock.clone(), convert);
        let slot = Some((id, slot));
        let request = Request {
            request: Some(request(id)),
            slot,
            watch: watch.map(|(id, sender)| (id, Box::new(sender))),
            asker: Some(asker),
        };
        // If the host is gone, the dropped request answers itself.
        let _ = self.calls.send(Call::Request(request));
        pending
    }

    /// Makes a request that nobody waits for.
    pub(crate) fn tell(&self, asker: Option<Asker>, request: ClientRequest) {
        let request = Request { request: Some(request), slot: None, watch: None, asker };
        // A node that is gone needs no telling.
        let _ = self.calls.send(Call::Request(request));
    }

    /// What the node's tables show, as soon as its thread has a moment; `None` if it has stopped.
    pub(crate) fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, seen) = bounded(1);
        let look = move |engine: &Engine| drop(sender.send(look(engine)));
        self.calls.send(Call::Look(Box::new(look))).ok()?;
        // The node's own thread, in a waker say, would wait for itself.
        seen.recv_timeout(self.limits.request_timeout).ok()
    }

    /// An answer that comes after so long, and that nothing else delays or brings on.
    pub(crate) fn timer(&self, after: Duration) -> Pending<()> {
        let slot = Arc::new(Slot::default());
        let pending = Pending::new(Arc::clone(&slot), self.clock.clone(), expect::done);
        let timer = Timer::new(self.clock.now().saturating_add(after), slot);
        // If the host is gone, the dropped timer says so.
        let _ = self.calls.send(Call::Timer(timer));
        pending
    }

    /// Tells the node to stop. The channel closes when it has.
    pub(crate) fn close(&self) -> Receiver<()> {
        let (closed, closes) = bounded(0);
        let _ = self.calls.send(Call::Close(closed));
        closes
    }

    /// Waits for an answer as blocking calls do: at most for the request timeout.
    pub(crate) fn settle<T>(
        &self,
        operation: &str,
        path: &str,
        mut pending: Pending<T>,
    ) -> Result<T> {
        let waited = self.limits.request_timeout;
        pending.wait_timeout(waited).unwrap_or_else(|| {
            Err(Error::Timeout {
                operation: format!("{operation} {path}"),
                waited,
                reason: self.waiting_for(),
            })
        })
    }

    pub(crate) fn address(&self, node: NodeId) -> Option<String> {
        let members = self.members.load();
        let member = members.iter().find(|member| member.node == node)?;
        Some(member.address.clone())
    }

    /// Where others reach this instance.
    pub(crate) fn own_address(&self) -> String {
        let listed = self.address(self.node);
        listed.or_else(|| self.own_address.get().cloned()).unwrap_or_default()
    }

    /// Others reach this instance there, unless the members have it elsewhere.
    pub(crate) fn reached_at(&self, address: String) {
        let _ = self.own_address.set(address);
    }

    /// How much the cluster can still lose.
    pub(crate) fn availability(&self) -> Availability {
        if let Some(reason) = self.stopped() {
            return Availability::NoQuorum { reason: format!("the node has stopped: {reason}") };
        }
        let address = |node| self.address(node).unwrap_or_else(|| "a peer".to_owned());
        Availability::of(&self.status().availability, address, || self.waiting_for())
    }

    /// Wants the node to be a member no more. The channel closes when it has stopped.
    pub(crate) fn leave(&self) {
        let _ = self.calls.send(Call::Leave);
    }

    /// Who tells what has passed through the network.
    pub(crate) fn meter_by(&self, meter: impl Fn(&mut Metrics) + Send + Sync + 'static) {
        let _ = self.meter.set(Meter(Box::new(meter)));
    }

    /// What the node and the network have counted.
    pub(crate) fn metrics(&self) -> Metrics {
        let counted = self.look(|engine| engine.node().map(Node::metrics)).flatten();
        let mut metrics = counted.unwrap_or_default();
        if let Some(Meter(meter)) = self.meter.get() {
            meter(&mut metrics);
        }
        metrics
    }

    /// Nobody was found at this address of the list.
    pub(crate) fn seed_unreachable(&self, address: String, reason: String, refused: bool) {
        let mut seeds = self.seeds.lock().unwrap_or_else(PoisonError::into_inner);
        seeds.insert(address, (reason, refused));
    }

    /// Somebody was found: what was the matter before is told anew if it still is.
    pub(crate) fn seed_found(&self) {
        self.seeds.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn seeds(&self) -> BTreeMap<String, (String, bool)> {
        self.seeds.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The peer that refuses this node, if one does.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let refused = |(peer, (reason, refused)): (String, (String, bool))| {
            refused.then_some(Error::PeerRefused { peer, reason })
        };
        if let Some(error) = self.seeds().into_iter().find_map(refused) {
            return Some(error);
        }
        self.status().peers.into_iter().find_map(|(peer, problem)| {
            let reason = problem.filter(|problem| problem.refused)?.reason;
            let peer = self.address(peer)?;
            Some(Error::PeerRefused { peer, reason })
        })
    }

    /// What this node is waiting for, in words.
    pub(crate) fn waiting_for(&self) -> String {
        if let Some(reason) = self.stopped() {
            return format!("the node has stopped: {reason}");
        }
        let status = self.status();
        if let Some(reason) = status.forming {
            let seeds = self.seeds().into_iter();
            let seeds: Vec<String> =
                seeds.map(|(address, (reason, _))| format!("{address}: {reason}")).collect();
            return match seeds.as_slice() {
                [] => reason,
                seeds => format!("{reason} ({})", seeds.join("; ")),
            };
        }
        let unreachable: Vec<String> = status
            .peers
            .iter()
            .filter_map(|(peer, problem)| {
                let address = self.address(*peer).unwrap_or_else(|| "a peer".to_owned());
                problem.as_ref().map(|problem| format!("{address}: {}", problem.reason))
            })
            .collect();
        let peers = match unreachable.len() {
            0 => "all peers are connected".to_owned(),
            count => format!(
                "{count} of {} peers unreachable: {}",
                status.peers.len(),
                unreachable.join(", ")
            ),
        };
        match status.leader.and_then(|leader| self.address(leader)) {
            Some(leader) => format!("the leader is {leader}; {peers}"),
            None => format!("there is no leader; {peers}"),
        }
    }
}

/// What a step wants done outside of the process's memory.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) messages: Vec<(NodeId, PeerMessage)>,
    pub(crate) disk: Vec<DiskOp>,
    /// The members, when they have changed: whom to be connected with.
    pub(crate) members: Option<Arc<Vec<Member>>>,
    /// The cluster that the node belongs to, once that is settled.
    pub(crate) cluster: Option<u64>,
    pub(crate) wake_at: Time,
}

pub(crate) struct Host {
    engine: Engine,
    shared: Arc<Shared>,
    calls: Receiver<Call>,
    inputs: Vec<Input>,
    slots: BTreeMap<RequestId, Arc<Slot>>,
    watches: BTreeMap<WatchId, Box<WatchSender>>,
    /// Requests under way that set a watch.
    watching: BTreeMap<RequestId, WatchId>,
    /// With their holders: see [`Holding`].
    sessions: BTreeMap<SessionId, (u64, Weak<SessionShared>)>,
    timers: Timers,
    /// Somebody who reads a session's states was too slow for the latest.
    readers_behind: bool,
    status_at: Time,
    /// What the status says that was important when it was last brought up to date.
    status_news: ((u64, NodeId, bool), u16),
    /// Until when it takes its time to close.
    closing: Option<Time>,
    /// Who waits for that.
    closers: Vec<Sender<()>>,
}

impl Host {
    pub(crate) fn new(
        engine: impl Into<Engine>,
        clock: Clock,
        limits: Limits,
        members: Vec<Member>,
        schemes: Schemes,
    ) -> (Host, Arc<Shared>) {
        let (engine, (sender, calls)) = (engine.into(), unbounded());
        let shared = Arc::new(Shared {
            calls: sender,
            waiting: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            tree: Published::new(engine.tree()),
            status: Mutex::new(engine.status()),
            stopped: OnceCell::new(),
            clock,
            limits,
            node: engine.id(),
            has_replica: engine.node().is_some(),
            cluster: AtomicU64::new(0),
            own_address: OnceCell::new(),
            members: ArcSwap::from_pointee(members),
            availability: Readers::default(),
            seeds: Mutex::default(),
            meter: OnceCell::new(),
            schemes,
        });
        let host = Host {
            engine,
            shared: Arc::clone(&shared),
            calls,
            inputs: Vec::new(),
            slots: BTreeMap::new(),
            watches: BTreeMap::new(),
            watching: BTreeMap::new(),
            sessions: BTreeMap::new(),
            timers: Timers::new(),
            readers_behind: false,
            status_at: Time::ZERO,
            status_news: ((0, 0, false), 0),
            closing: None,
            closers: Vec::new(),
        };
        (host, shared)
    }

    /// The inbox, for whoever waits for calls.
    pub(crate) fn calls(&self) -> Receiver<Call> {
        self.calls.clone()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The member that runs here; `None` for a client.
    pub(crate) fn member(&self) -> Option<&Node> {
        self.engine.node()
    }

    /// The same, where there are no clients.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn node(&self) -> &Node {
        self.engine.node().expect("only members are looked into")
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn input(&mut self, input: Input) {
        self.inputs.push(input);
    }

    /// Whether there is anything to step for now.
    pub(crate) fn is_idle(&self) -> bool {
        self.inputs.is_empty() && self.calls.is_empty()
    }

    /// Takes a call; `false` when the host is to be dropped now.
    pub(crate) fn call(&mut self, call: Call) -> bool {
        match call {
            Call::Request(request) => {
                self.request(request);
                true
            }
            Call::Look(look) => {
                look(&self.engine);
                true
            }
            Call::Leave => {
                self.inputs.push(Input::Leave);
                true
            }
            Call::Timer(timer) => {
                self.timers.add(timer);
                true
            }
            Call::Close(closed) => {
                self.closers.push(closed);
                // Sessions closed in the log free their locks now and not after their timeout.
                for (session, (_, shared)) in &self.sessions {
                    if let Some(shared) = shared.upgrade() {
                        shared.give_up();
                    }
                    let request = RequestId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
                    self.inputs.push(Input::Client(ClientRequest::Write {
                        request,
                        session: *session,
                        command: Write::Close,
                    }));
                }
                self.closing = Some(self.shared.clock.now() + CLOSE_TIME);
                self.engine.status().leader.is_some()
            }
        }
    }

    fn request(&mut self, mut call: Request) {
        let Some(request) = call.request.take() else {
            return;
        };
        let admitted = match call.asker.take() {
            None => Ok(()),
            Some(Asker::Holder(session)) => self.check_holder(&session),
            Some(Asker::Opener(session)) => self.open(&session),
        };
        if let Err(error) = admitted {
            let closes = matches!(request, ClientRequest::Write { command: Write::Close, .. });
            if let Some((_, slot)) = call.slot.take() {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                slot.complete(if closes { Ok(Answer::Reply(Reply::Done)) } else { Err(error) });
            }
            return;
        }
        if let (Some((request, _)), Some(watch)) = (&call.slot, &call.watch) {
            self.watching.insert(*request, watch.0);
        }
        if let Some((id, slot)) = call.slot.take() {
            self.slots.insert(id, slot);
        }
        if let Some((id, sender)) = call.watch.take() {
            self.watches.insert(id, sender);
        }
        if let ClientRequest::Unwatch { watch } = request {
            self.watches.remove(&watch);
        }
        self.inputs.push(Input::Client(request));
    }

    /// The node knows a session by its id alone, which is now another handle's if that resumed it
    /// here: what the former one asks for is not for the node.
    fn check_holder(&self, session: &Arc<SessionShared>) -> Result<()> {
        let held = self.sessions.get(&session.id);
        if held.is_some_and(|(holder, _)| *holder == session.holder) {
            return Ok(());
        }
        Err(session.over().unwrap_or(Error::SessionExpired { session: session.id }))
    }

    fn open(&mut self, session: &Arc<SessionShared>) -> Result<()> {
        let id = session.id;
        let former = self.sessions.get(&id).and_then(|(_, former)| former.upgrade());
        if let Some(former) = former {
            // Held by this very node, which so has the password too. A wrong one must not cost the
            // holder the session; with the right one, the holder has lost it from here on.
            if former.secret != session.secret {
                session.set_state(SessionState::Expired);
                return Err(Error::WrongPassword { session: id });
            }
            former.set_state(SessionState::Moved);
        }
        self.sessions.insert(id, (session.holder, Arc::downgrade(session)));
        Ok(())
    }

    /// Steps the node with all that has come in, and hands its effects to whom they concern.
    pub(crate) fn step(&mut self) -> Work {
        let clock = &self.shared.clock;
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        if self.closing.is_some() && self.sessions_closed() {
            self.inputs.push(Input::Resign);
        }
        let effects = self.engine.step(now, self.inputs.drain(..));
        let mut unsettled = Vec::new();
        if !effects.events.is_empty() {
            self.shared.tree.announce();
        }
        for (id, event) in effects.events {
            if let Some(watch) = self.watches.get_mut(&id)
                && watch.deliver(event)
            {
                unsettled.push(id);
            }
        }
        self.shared.tree.publish(effects.tree);
        for id in unsettled {
            if let Some(watch) = self.watches.get_mut(&id) {
                watch.settle();
            }
        }
        if let Some(reason) = &effects.stopped {
            self.watching.clear();
            let _ = self.shared.stopped.set(reason.clone());
            self.watches.clear();
        }
        for (of, until) in effects.leases {
            if let Some(session) = self.held(of).and_then(Weak::upgrade) {
                session.set_lease(until);
            }
        }
        if self.readers_behind {
            let sessions = self.sessions.values().filter_map(|(_, session)| session.upgrade());
            self.readers_behind = sessions.fold(false, |some, session| session.catch_up() | some);
        }
        for (of, state) in effects.sessions {
            let Some(session) = self.held(of) else {
                continue;
            };
            if let Some(session) = session.upgrade() {
                self.readers_behind |= session.set_state(state);
            }
            if state.is_final() {
                self.sessions.remove(&of.session);
            }
        }
        // Whoever finds a channel closed finds the session's end, too, if that has closed it.
        for id in effects.ended {
            self.watches.remove(&id);
        }
        for (of, ids) in effects.ids {
            if let Some(session) = self.held(of).and_then(Weak::upgrade) {
                session.ids.store(Arc::new(ids));
            }
        }
        for (request, answer) in effects.replies {
            if let Some(watch) = self.watching.remove(&request)
                && !self.watches.contains_key(&watch)
            {
                // Dropped before it was set.
                self.inputs.push(Input::Client(ClientRequest::Unwatch { watch }));
            }
            if let Some(slot) = self.slots.remove(&request) {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                slot.complete(answer);
            }
        }
        let members = effects.members.map(Arc::new);
        if let Some(members) = &members {
            self.shared.members.store(Arc::clone(members));
        }
        if let Some(cluster) = effects.cluster {
            self.shared.cluster.store(cluster, Ordering::Relaxed);
        }
        self.publish_status(now.mono, effects.stopped.is_some());
        self.timers.ring(now.mono);
        let wake_at = self.timers.next().map_or(effects.wake_at, |at| at.min(effects.wake_at));
        Work {
            messages: effects.messages,
            disk: effects.disk,
            members,
            cluster: effects.cluster,
            wake_at,
        }
    }

    /// The session, if this is the holder that it has here.
    fn held(&self, of: Holding) -> Option<&Weak<SessionShared>> {
        let (holder, session) = self.sessions.get(&of.session)?;
        (*holder == of.holder).then_some(session)
    }

    fn sessions_closed(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whether a host that was told to close has done what it can, and may be dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_some_and(|until| {
            self.shared.clock.now() >= until
                || self.shared.stopped().is_some()
                || (self.sessions_closed() && !self.hands_over())
        })
    }

    /// Whether it leads still, with somebody there to lead instead.
    fn hands_over(&self) -> bool {
        let status = self.engine.status();
        status.is_leader && status.peers.iter().any(|(_, problem)| problem.is_none())
    }

    fn publish_status(&mut self, now: Time, at_once: bool) {
        let news = (self.engine.leadership(), self.engine.version());
        let changed = at_once || news != self.status_news;
        if !changed && now < self.status_at + STATUS_EVERY {
            return;
        }
        self.status_news = news;
        self.status_at = now;
        let status = self.engine.status();
        *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
        self.shared.availability.tell(&self.shared.availability());
    }

    /// Answers everybody for the last time.
    pub(crate) fn close(&mut self) {
        // Whatever was interrupted, nobody may wait for it.
        self.shared.tree.publish(None);
        // A node that had stopped by itself keeps its reason.
        let reason = match self.shared.stopped.try_insert("it was closed".to_owned()) {
            Ok(reason) => reason,
            Err((reason, _)) => reason,
        };
        let error = Error::Stopped { reason: reason.clone() };
        // States before the answers that rest on them, as in a step.
        for (_, (_, session)) in std::mem::take(&mut self.sessions) {
            if let Some(session) = session.upgrade() {
                session.set_state(SessionState::Expired);
            }
        }
        for (_, slot) in std::mem::take(&mut self.slots) {
            slot.complete(Err(error.clone()));
        }
        self.timers.clear();
        self.shared.availability.end();
        // A call may still come in between; its sender sees the channel closed at the latest
        // when this host is dropped.
        while let Ok(call) = self.calls.try_recv() {
            drop(call);
        }
        self.watches.clear();
        let mut status = self.engine.status();
        (status.leader, status.is_leader) = (None, false);
        *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its thread may have been ended by a waker that panicked.
        self.close();
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // A request that was never taken in: its inbox was dropped with the host.
        if let Some((_, slot)) = self.slot.take() {
            slot.complete(Err(Error::Stopped { reason: "it was closed".to_owned() }));
        }
    }
}
