//! The state that the handles of one node share: the [`Inbox`] of its [`Host`], and what the host publishes. Each
//! session also has a [`SessionShared`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use once_cell::sync::OnceCell;

use crate::encryption::AtRest;
use crate::machine::Tree;
use crate::node::TimeoutBounds;
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::node::io::{Input, RequestId, WatchId};
use crate::node::request::{ClientRequest, RequestBody};
use crate::runtime::ask::Ask;
use crate::runtime::availability::spare;
use crate::runtime::certificates::Certificates;
use crate::runtime::clock::Clock;
use crate::runtime::cluster::KnownCluster;
use crate::runtime::directory::DataDirectory;
use crate::runtime::end::NodeEnd;
use crate::runtime::engine::Engine;
use crate::runtime::figures::Figures;
use crate::runtime::host::Host;
use crate::runtime::inbox::{Asker, HostMessage, Inbox, RequestOrigin};
use crate::runtime::mailbox::{AnswerSink, Recipient, WatchSink};
use crate::runtime::pending::{Pending, Slot};
use crate::runtime::readiness::Readiness;
use crate::runtime::session::SessionShared;
use crate::runtime::timers::CallerTimer;
use crate::runtime::turns::Turns;
use crate::runtime::watch_sender::WatchSender;
use crate::runtime::{own_thread, spans};
use crate::security::auth::Schemes;
use crate::sync::published::Published;
use crate::transport::tcp::Wake;
use crate::types::error::Result;
use crate::types::membership::{Member, NodeId};
use crate::types::metrics::Metrics;
use crate::types::session::SessionState;
use crate::types::znode::{SessionId, Zxid};

/// The limits of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) pending_requests_max: usize,
    pub(crate) request_timeout: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) tick: Duration,
    /// The bounds for the timeouts of sessions that are opened here.
    pub(crate) timeouts: TimeoutBounds,
    /// How many events wait in a watch's channel: [`Watch::CAPACITY`](crate::Watch::CAPACITY), or
    /// fewer in the simulator.
    pub(crate) watch_capacity: usize,
}

/// The state that the handles of one node share.
pub(crate) struct NodeShared {
    inbox: Inbox,
    pub(super) tree: Published<Tree>,
    /// The last write that replies and events have shown.
    seen: AtomicU64,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    /// Whether `tree` is a replica; otherwise this is a client.
    pub(crate) has_replica: bool,
    pub(crate) certificates: Certificates,
    pub(crate) figures: Figures,
    /// The keys for encryption at rest, if there are any.
    at_rest: OnceCell<AtRest>,
    pub(crate) schemes: Schemes,
    /// Where transactions of this instance take turns.
    pub(crate) turns: Arc<Turns>,
    pub(crate) end: Arc<NodeEnd>,
    pub(crate) cluster: Arc<KnownCluster>,
    pub(crate) readiness: Readiness,
}

impl fmt::Debug for NodeShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeShared").field("node", &self.cluster.node).finish_non_exhaustive()
    }
}

impl NodeShared {
    /// The shared state of a new node, and the inbox of its handles.
    pub(super) fn new(
        engine: &Engine,
        clock: Clock,
        limits: Limits,
        members: Vec<Member>,
        schemes: Schemes,
    ) -> (NodeShared, Receiver<HostMessage>) {
        let (inbox, calls) = Inbox::new();
        let end = Arc::new(NodeEnd::new(clock.clone()));
        let cluster = Arc::new(KnownCluster::new(engine.id(), members));
        let readiness =
            Readiness::new(engine.status(), clock.clone(), Arc::clone(&end), Arc::clone(&cluster));
        let shared = NodeShared {
            inbox,
            tree: Published::new(engine.tree()),
            seen: AtomicU64::new(0),
            clock,
            limits,
            has_replica: engine.node().is_some(),
            certificates: Certificates::default(),
            figures: Figures::default(),
            at_rest: OnceCell::new(),
            schemes,
            turns: Arc::default(),
            end,
            cluster,
            readiness,
        };
        (shared, calls)
    }

    /// This replica's current tree, whatever its age. Handles of sessions take it from `Session::tree`.
    pub(crate) fn tree(&self) -> arc_swap::Guard<Arc<Tree>> {
        self.tree.read()
    }

    /// The last write that a reply or an event has shown to a user.
    pub(crate) fn seen(&self) -> Zxid {
        self.seen.load(Ordering::Acquire)
    }

    pub(super) fn note_seen(&self, zxid: Zxid) {
        self.seen.fetch_max(zxid, Ordering::AcqRel);
    }

    pub(crate) fn next_watch(&self) -> WatchId {
        WatchId(self.inbox.next_id())
    }

    /// Sends a request; the answer is converted for the caller.
    pub(crate) fn ask<A: 'static, T>(
        self: &Arc<Self>,
        origin: RequestOrigin,
        ask: Ask<A>,
        watch: Option<(WatchId, WatchSender)>,
        convert: impl FnOnce(A) -> Result<T> + Send + 'static,
    ) -> Pending<'static, T> {
        self.ask_within(self.limits.pending_requests_max, origin, ask, watch, convert)
    }

    /// As [`NodeShared::ask`], with its own limit: requests that release something are not refused.
    pub(crate) fn ask_within<A: 'static, T>(
        self: &Arc<Self>,
        limit: usize,
        origin: impl Into<Option<RequestOrigin>>,
        ask: Ask<A>,
        watch: Option<(WatchId, WatchSender)>,
        convert: impl FnOnce(A) -> Result<T> + Send + 'static,
    ) -> Pending<'static, T> {
        if let Some(error) = self.end.error() {
            return Pending::ready(Err(error));
        }
        if let Err(error) = self.inbox.admit(limit) {
            return Pending::ready(Err(error));
        }
        let id = RequestId(self.inbox.next_id());
        let slot = Arc::new(Slot::default());
        let origin = origin.into();
        let session = origin.as_ref().map_or(SessionId(0), |origin| origin.session().id);
        let (body, read) = ask.split();
        let request = ClientRequest { id, session, body };
        let convert = |answer| read(answer).and_then(convert);
        let pending = Pending::sent(Arc::clone(&slot), self, request.body.named(), convert);
        let span = spans::of(&request);
        let asker = Asker {
            origin,
            sink: Some(AnswerSink::Slot(slot, span)),
            watch: watch.map(|(id, sender)| (id, WatchSink::Channel(Box::new(sender)))),
        };
        // If the host is gone, dropping the asker answers the request.
        self.inbox.put(HostMessage::Request { request, asker });
        pending
    }

    /// Sends the members a request that belongs to no session.
    pub(crate) fn ask_members(
        self: &Arc<Self>,
        asked: AdminRequest,
    ) -> Pending<'static, Vec<(NodeId, AdminReply)>> {
        self.ask_within(self.limits.pending_requests_max, None, Ask::members(asked), None, Ok)
    }

    /// Sends a request of a gateway's connection. It is not counted, so that no client of a gateway makes calls of
    /// the application fail: the connection limits the number of its own requests.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "only gateways call it"))]
    pub(crate) fn ask_at(
        &self,
        (to, number): (Recipient, u64),
        origin: RequestOrigin,
        body: RequestBody,
        watch: Option<WatchId>,
    ) {
        let watch = watch.map(|watch| (watch, WatchSink::Mailbox(to.clone())));
        let sink = AnswerSink::Mailbox { to, number };
        if let Some(error) = self.end.error() {
            return sink.fail(error);
        }
        let id = RequestId(self.inbox.next_id());
        let request = ClientRequest { id, session: origin.session().id, body };
        let asker = Asker { origin: Some(origin), sink: Some(sink), watch };
        self.inbox.put(HostMessage::Request { request, asker });
    }

    /// A request is answered whose answer goes there.
    pub(super) fn note_answered(&self, sink: &AnswerSink) {
        if matches!(sink, AnswerSink::Slot(..)) {
            self.inbox.answered();
        }
    }

    /// Closes a session without waiting for the answer. The holder must not use it any more.
    pub(crate) fn close_session(&self, session: &Arc<SessionShared>) {
        session.give_up();
        self.ask_and_forget(RequestOrigin::Holder(Arc::clone(session)), Ask::close());
    }

    /// Asks without waiting for the answer.
    pub(crate) fn ask_and_forget<A>(&self, origin: RequestOrigin, ask: Ask<A>) {
        let request =
            ClientRequest { id: RequestId(0), session: origin.session().id, body: ask.body };
        let asker = Asker { origin: Some(origin), sink: None, watch: None };
        if !self.clock.is_forked() {
            // If the node has ended, the request is not needed.
            self.inbox.put(HostMessage::Request { request, asker });
        }
    }

    /// Passes an input on to the node. If the node has ended, it is not needed.
    pub(crate) fn input(&self, input: Input) {
        if !self.clock.is_forked() {
            self.inbox.put(HostMessage::Input(input));
        }
    }

    /// Runs a function on the node's state as soon as its thread can; `None` if the node has
    /// stopped, and where blocking is not allowed.
    pub(crate) fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Option<T> {
        self.look_at_host(|host| look(host.engine()))
    }

    fn look_at_host<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Host) -> T + Send + 'static,
    ) -> Option<T> {
        if own_thread::is_this() || self.clock.is_forked() {
            return None;
        }
        let (sender, seen) = bounded(1);
        let look = move |host: &Host| drop(sender.send(look(host)));
        self.inbox.put(HostMessage::Look(Box::new(look)));
        seen.recv_timeout(self.limits.request_timeout).ok()
    }

    /// Whether handles of this instance held the session and nobody holds it now: see [`Host::has_left`].
    /// Always `false` on a client, which has another id at each start.
    pub(crate) fn has_left(self: &Arc<Self>, session: SessionId) -> Pending<'static, bool> {
        if let Some(error) = self.end.error() {
            return Pending::ready(Err(error));
        }
        let (slot, left) = (Arc::new(Slot::default()), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&left);
        let convert = move |_| Ok(seen.load(Ordering::Acquire));
        let pending = Pending::sent(Arc::clone(&slot), self, ("look for a session", None), convert);
        // If the host is gone, dropping the timer answers it.
        let answer = CallerTimer::new(Duration::ZERO, slot);
        self.inbox.put(HostMessage::Look(Box::new(move |host| {
            left.store(host.has_left(session), Ordering::Release);
            answer.fire();
        })));
        pending
    }

    /// Detaches all sessions that this node holds, and returns their ids and passwords. Waits for
    /// the answers to their requests, at most for this time.
    pub(crate) fn detach_all(self: &Arc<Self>, limit: Duration) -> Vec<(SessionId, [u8; 16])> {
        let until = self.clock.now() + limit;
        let sessions = self.look_at_host(Host::sessions).unwrap_or_default();
        let waiting = sessions.into_iter().map(|session| {
            let asker = RequestOrigin::Holder(Arc::clone(&session));
            let answered = self.ask_within(usize::MAX, asker, Ask::ids(), None, Ok);
            (session, answered)
        });
        let waiting: Vec<_> = waiting.collect();
        let detached = waiting.into_iter().filter_map(|(session, answered)| {
            // Requests without an answer by then have an unknown outcome.
            let _ = answered.timeout(until.saturating_sub(self.clock.now())).wait();
            self.detach(&session).then_some((session.id, session.secret))
        });
        detached.collect()
    }

    /// Detaches a session, if this node holds it and it is open.
    pub(crate) fn detach(&self, session: &Arc<SessionShared>) -> bool {
        let detaches = session.detach();
        if detaches {
            let origin = RequestOrigin::Holder(Arc::clone(session));
            self.ask_and_forget(origin, Ask::abandon(SessionState::Detached));
        }
        detaches
    }

    /// An answer that comes after this time.
    pub(crate) fn timer(self: &Arc<Self>, after: Duration) -> Pending<'static, ()> {
        if let Some(error) = self.end.error() {
            return Pending::ready(Err(error));
        }
        let slot = Arc::new(Slot::default());
        let pending =
            Pending::sent(Arc::clone(&slot), self, ("sleep", None), |_| Ok(())).unlimited();
        let timer = CallerTimer::new(self.clock.now().saturating_add(after), slot);
        // If the host is gone, dropping the timer answers it.
        self.inbox.put(HostMessage::Timer(timer));
        pending
    }

    /// Asks the node to stop. The channel closes when it has stopped.
    pub(crate) fn close(&self) -> Receiver<()> {
        let (closed, closes) = bounded(0);
        if self.clock.is_forked() {
            return closes;
        }
        self.inbox.put(HostMessage::Close(closed));
        closes
    }

    /// Sets the keys for encryption at rest.
    pub(crate) fn set_at_rest(&self, keys: Option<AtRest>) {
        if let Some(keys) = keys {
            let _ = self.at_rest.set(keys);
        }
    }

    pub(crate) fn at_rest(&self) -> Option<&AtRest> {
        self.at_rest.get()
    }

    /// Asks the node to leave the cluster.
    pub(crate) fn leave(&self) {
        self.end.leaves.store(true, Ordering::Relaxed);
        self.input(Input::Leave);
    }

    /// Sets how to wake the thread that takes the calls. Called once, before the first call.
    pub(crate) fn set_wake(&self, wake: Wake) {
        self.inbox.set_wake(wake);
    }

    /// The metrics of the node, of its host and of the network.
    pub(crate) fn metrics(&self) -> Metrics {
        let look = |engine: &Engine| (engine.metrics(), engine.status());
        let (counted, status) = self.look(look).unwrap_or_default();
        let unreachable = status.peers.iter().filter(|(_, problem)| problem.is_some());
        let now = self.clock.now();
        let mut metrics = Metrics {
            has_leader: status.leader.is_some(),
            is_leader: status.is_leader,
            members: self.cluster.members.load().len() as u64,
            unreachable_members: unreachable.count() as u64,
            spare_voters: spare(&status.availability).map(|spare| spare as u64),
            refuses_writes: status.availability.refuses_writes,
            former_directories: self.readiness.directory().map_or(0, DataDirectory::damaged_count),
            certificates_expire: {
                // The first of each kind.
                let all = self.certificates.all().into_iter().rev();
                let wall_ms = self.clock.wall_ms();
                all.map(|of| (of.of.to_owned(), of.after(wall_ms))).collect()
            },
            stale_by: status.fresh_at.map(|fresh| now.saturating_sub(fresh)),
            ..counted
        };
        self.figures.add_to(&mut metrics, now);
        metrics
    }
}
