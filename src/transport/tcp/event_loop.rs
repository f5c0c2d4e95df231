//! The network thread's loop, and how its thread starts.
//!
//! Readiness is edge-triggered: a socket is read until it has nothing left, in turns, so that a
//! busy peer does not delay the others. While any part has work left, the loop polls without
//! sleeping.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use mio::{Events, Poll};

use super::TcpTransport;
use super::context::{HelperResult, NetworkContext, NetworkTimer};
use super::handler::{Handler, Network};
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::renewal::KeyRenewal;
use super::shared::{LISTENER, WAKER};
use super::sockets::{SocketEvent, Sockets, SystemSockets};
use crate::node::message::PeerMessage;
use crate::transport::{LocalPeer, RemotePeer, TransportOptions};
use crate::types::certificate::Expiry;
use crate::types::membership::NodeId;

/// Longer than any wait.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

pub(super) struct EventLoop {
    poll: Poll,
    /// `None` only during its turn, and after its end.
    handler: Option<Box<dyn Handler>>,
    /// When the handler wants its next turn.
    turn_at: Instant,
    results_rx: Receiver<HelperResult>,
    clock: Clock,
    pub(super) context: NetworkContext,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    renewal: KeyRenewal,
}

/// The clock for the deadlines of connections.
pub(super) type Clock = Box<dyn Fn() -> Instant + Send>;

/// The system's.
fn system_clock() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the network's own deadlines")]
    Instant::now()
}

impl TcpTransport {
    /// Starts a thread of this name. It listens on `listener`, if there is one, connects to
    /// `peers`, looks for nodes at the addresses of `seeds`, and runs `handler` to its end.
    #[expect(
        clippy::too_many_arguments,
        reason = "called once; a struct would only repeat the fields"
    )]
    pub(crate) fn start(
        self,
        name: &str,
        listener: impl Into<Option<std::net::TcpListener>>,
        local: LocalPeer,
        peers: Vec<RemotePeer>,
        seeds: Vec<String>,
        options: TransportOptions,
        handler: Box<dyn Handler>,
    ) -> io::Result<JoinHandle<()>> {
        let listener = listener.into();
        let event_loop = EventLoop::new(self, listener, local, peers, seeds, options, handler)?;
        std::thread::Builder::new().name(name.to_owned()).spawn(move || event_loop.run())
    }
}

impl EventLoop {
    pub(super) fn new(
        transport: TcpTransport,
        listener: Option<std::net::TcpListener>,
        local: LocalPeer,
        peers: Vec<RemotePeer>,
        seeds: Vec<String>,
        options: TransportOptions,
        handler: Box<dyn Handler>,
    ) -> io::Result<EventLoop> {
        let sockets = Box::new(SystemSockets::new(transport.poll.registry().try_clone()?));
        let clock = Box::new(system_clock);
        let mut event_loop = EventLoop::over(sockets, clock, transport, local, options, handler);
        KeyRenewal::start(&mut event_loop.context);
        if let Some(listener) = listener {
            event_loop.listen(listener)?;
        }
        event_loop.begin(peers, seeds);
        Ok(event_loop)
    }

    /// A loop over these sockets, with this clock.
    pub(super) fn over(
        sockets: Box<dyn Sockets>,
        clock: Clock,
        TcpTransport { poll, shared }: TcpTransport,
        local: LocalPeer,
        options: TransportOptions,
        handler: Box<dyn Handler>,
    ) -> EventLoop {
        // Helpers -> network thread: the answer to each look-up, and the content of certificate files.
        let (results_tx, results_rx) = unbounded();
        let now = clock();
        let context = NetworkContext::new(sockets, local, options, shared, results_tx, now);
        EventLoop {
            poll,
            clock,
            handler: Some(handler),
            turn_at: context.now,
            results_rx,
            outgoing: Outgoing::default(),
            renewal: KeyRenewal::default(),
            incoming: Incoming::default(),
            context,
        }
    }

    /// Dials these peers, and looks for others at the addresses of seeds.
    pub(super) fn begin(&mut self, peers: Vec<RemotePeer>, seeds: Vec<String>) {
        self.set_peers(peers);
        self.outgoing.set_seeds(&mut self.context, seeds);
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let failure = loop {
            let timeout = self.sleep();
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                break Some(format!("the network thread cannot wait for its sockets: {error}"));
            }
            #[cfg(test)]
            self.context.shared.turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if !self.turn(events.iter().map(SocketEvent::from)) {
                break None;
            }
        };
        let handler = self.handler.take();
        drop(self);
        if let Some(handler) = handler {
            handler.end(failure);
        }
    }

    /// Handles what the sockets have reported and what is due, and gives the handler its turn. Returns `false` once
    /// the handler has ended.
    pub(super) fn turn(&mut self, ready: impl Iterator<Item = SocketEvent>) -> bool {
        // From here on, no thread need wake this one: it checks the channels before it sleeps.
        self.context.shared.awake.store(true, Release);
        self.context.now = (self.clock)();
        for ready in ready {
            match ready.token {
                WAKER => {}
                LISTENER => self.incoming.listener_ready(),
                token => match self.context.dialled.get(&token) {
                    Some(&target) => self.outgoing.ready(&mut self.context, target, ready),
                    None => {
                        self.incoming.ready(token, ready.ends);
                        if ready.writable {
                            self.incoming.writable(token);
                        }
                    }
                },
            }
        }
        self.take_helper_results();
        self.incoming.accept(&mut self.context);
        self.incoming.read(&mut self.context, &mut self.outgoing);
        self.outgoing.read(&mut self.context);
        self.take_changes();
        self.fire_timers();
        self.take_changes();
        let continues = self.run_handler();
        // Try once to send what was queued just before the end, such as the messages by which a
        // leader hands over.
        self.flush();
        continues
    }

    /// Gives the handler its turn, if it is due. Returns `false` once the handler has ended.
    fn run_handler(&mut self) -> bool {
        let Some(mut handler) = self.handler.take() else { return false };
        let has_events = !self.context.events.is_empty();
        for event in self.context.events.drain(..) {
            handler.take(event);
        }
        let is_due = has_events || self.turn_at <= self.context.now || handler.is_busy();
        let pause = if is_due { handler.turn(self) } else { Some(Duration::ZERO) };
        self.handler = Some(handler);
        if let Some(pause) = pause.filter(|_| is_due) {
            let now = (self.clock)();
            self.turn_at = now.checked_add(pause).unwrap_or(now + PAUSE_MAX);
        }
        pause.is_some()
    }

    fn flush(&mut self) {
        self.outgoing.flush(&mut self.context);
        self.incoming.flush(&mut self.context);
    }

    /// Brings the two connections of each peer in line, after one of them has changed.
    fn take_changes(&mut self) {
        for node in std::mem::take(&mut self.outgoing.changed) {
            self.incoming.peer_changed(&mut self.context, &mut self.outgoing, node);
        }
        // Dials peers that have just been welcomed.
        for peer in std::mem::take(&mut self.incoming.welcomed) {
            self.outgoing.peer_welcomed(&mut self.context, peer);
        }
    }

    /// Returns how long to sleep, after announcing that the thread sleeps.
    pub(super) fn sleep(&self) -> Option<Duration> {
        if self.incoming.is_busy() || self.outgoing.is_busy() {
            return Some(Duration::ZERO);
        }
        // A sender first pushes, then swaps in `true`. If its swap came before this one, the push
        // is visible below; if after, it sees `false` and wakes this thread.
        self.context.shared.awake.swap(false, AcqRel);
        let is_busy = self.handler.as_ref().is_none_or(|handler| handler.is_busy());
        if is_busy || !self.results_rx.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.context.timers.next().unwrap_or(self.turn_at);
        Some(timer.min(self.turn_at).saturating_duration_since((self.clock)()))
    }

    /// Takes the results that have arrived by now. Later ones wait for the next turn of the loop,
    /// since other work waits too.
    fn take_helper_results(&mut self) {
        for result in self.results_rx.try_iter().take(self.results_rx.len()) {
            match result {
                HelperResult::Security(read) => {
                    if let Some(former) = self.renewal.renew(&mut self.context, read) {
                        self.incoming.check_rights(&mut self.context, &former);
                        self.outgoing.check_rights(&mut self.context);
                    }
                }
                HelperResult::Resolved { target, attempt, addresses } => {
                    self.outgoing.with(&mut self.context, target, |peer, context| {
                        peer.resolved(context, attempt, addresses)
                    });
                }
            }
        }
    }

    /// Forgets an unlisted peer that has left. A silent one is also forgotten if there are too
    /// many.
    fn check_unlisted(&mut self, node: NodeId) {
        let silent_since = self.context.now.checked_sub(self.context.options.unlisted_timeout);
        let connection = self.incoming.of_peer(node);
        let has_sent = connection.map(|connection| connection.received_at) > silent_since;
        let is_reached = self.outgoing.is_up(node) && !self.context.known_peers.is_full();
        if has_sent || is_reached {
            return self.context.remember_unlisted(node);
        }
        self.context.forget_unlisted(node);
        self.incoming.disconnect(&mut self.context, node);
        self.outgoing.forget(&mut self.context, node);
        self.context.subjects.forget(node);
    }

    fn fire_timers(&mut self) {
        // Reading may have taken long.
        self.context.now = (self.clock)();
        while let Some(timer) = self.context.timers.pop_due(self.context.now) {
            match timer {
                NetworkTimer::Peer(target) => self.outgoing.timer(&mut self.context, target),
                NetworkTimer::Unlisted(node) => self.check_unlisted(node),
                NetworkTimer::Duplicate(node) => {
                    self.incoming.check_duplicate(&mut self.context, &mut self.outgoing, node)
                }
                NetworkTimer::Handshake(token) => self.incoming.overdue(&mut self.context, token),
                NetworkTimer::Resume(token) => self.incoming.resume(token),
                NetworkTimer::Stall(token) => self.incoming.stalled(&mut self.context, token),
                NetworkTimer::Accept => self.incoming.listener_ready(),
                NetworkTimer::Credentials => self.renewal.read_files(&mut self.context),
            }
        }
    }
}

#[cfg(test)]
impl EventLoop {
    /// Checks what is true after each turn.
    pub(super) fn check_bounds(&self) {
        let NetworkContext { options, dialled, .. } = &self.context;
        assert!(self.incoming.handshaking.len() <= options.handshakes_max);
        let waiting = self.incoming.handshaking.len() + self.incoming.duplicates.len();
        let connections = self.incoming.connections.len();
        assert_eq!(connections, self.incoming.by_peer.len() + waiting, "one for each peer");
        for (node, peer) in &self.outgoing.peers {
            let sends = self.incoming.of_peer(*node).filter(|one| !one.is_client());
            let up = peer.connection().filter(|connection| connection.is_up());
            if let (Some(sends), Some(run)) = (sends, up.and_then(|up| up.run.as_ref()))
                && self.outgoing.changed.is_empty()
            {
                let boot = sends.peer().map(|identity| identity.boot);
                assert_eq!(boot, Some(run.boot), "node {node} is one process in both directions");
            }
        }
        let seeds = self.outgoing.seeds.iter().map(|seed| &seed.peer);
        let open = self.outgoing.peers.values().chain(seeds).filter_map(|peer| peer.connection());
        let open: Vec<usize> = open.map(|connection| connection.writer.queue.len()).collect();
        assert_eq!(open.len(), dialled.len(), "each connection has a peer");
        assert!(open.iter().all(|bytes| *bytes <= options.queue_bytes_max), "{open:?}");
    }
}

impl Network for EventLoop {
    fn send(&mut self, messages: &[(NodeId, PeerMessage)]) {
        for (node, message) in messages {
            if !self.incoming.send_to_client(&mut self.context, *node, message) {
                self.outgoing.send(&mut self.context, *node, message);
            }
        }
        self.flush();
    }

    fn stop(&mut self, reason: String) {
        self.context.stopped = Some(reason);
        self.outgoing.stop(&mut self.context);
        self.incoming.disconnect_all(&mut self.context);
    }

    fn set_peers(&mut self, peers: Vec<RemotePeer>) {
        if self.context.stopped.is_some() {
            return;
        }
        let own = self.context.local.node;
        let peers: Vec<RemotePeer> = peers.into_iter().filter(|peer| peer.node != own).collect();
        for peer in &peers {
            self.context.forget_unlisted(peer.node);
            // Messages for a member go to its listed address, and not to a client that claims its
            // id.
            self.incoming.disconnect_client(&mut self.context, peer.node);
        }
        let members = peers.iter().map(|peer| peer.node).collect();
        for node in self.context.known_peers.set_members(members) {
            // A removed member must still be able to learn of its removal.
            if self.incoming.of_peer(node).is_some() && !self.context.known_peers.is_full() {
                self.context.admit(node);
            } else {
                self.incoming.disconnect(&mut self.context, node);
            }
        }
        self.outgoing.set_peers(&mut self.context, peers);
    }

    fn set_seeking(&mut self, seeks: bool) {
        let seeks = seeks && self.context.stopped.is_none();
        self.outgoing.set_seeking(&mut self.context, seeks);
    }

    fn set_cluster(&mut self, cluster: u64) {
        if self.context.local.cluster == cluster {
            return;
        }
        self.context.local.cluster = cluster;
        self.incoming.disconnect_other_clusters(&mut self.context);
        self.outgoing.send_hello_again(&mut self.context);
    }

    fn look_at(&mut self, addresses: Vec<String>) {
        self.outgoing.look_at(&mut self.context, addresses);
    }

    fn listen(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        self.incoming.listen(&mut self.context, listener)
    }

    fn certificates(&self) -> Arc<[Expiry]> {
        self.context.options.security.certificates()
    }
}
