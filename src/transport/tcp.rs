//! Peers over TCP: one thread, `quorate-net`, and an event loop for all of them.
//!
//! Each node dials every other and sends over the connection it has made; over
//! those it has accepted it only reads, but for the answer to the greeting.
//! Nothing is kept for a peer that is not connected: Raft sends again what is
//! still wanted.
//!
//! Limits: what waits for a peer is bounded in bytes and dropped beyond that;
//! incoming connections are bounded in number, and the oldest that has not
//! introduced itself goes first; a frame may be 4 KiB before the introduction.
//! When the node is behind, the thread waits for it and so stops reading.

mod dial;
mod serve;

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use mio::{Events, Interest, Poll, Token, Waker};

use super::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};
use crate::machine::command::NodeId;
use crate::node::message::PeerMessage;
use dial::{Outgoing, Resolved};
use serve::Server;

const WAKE: Token = Token(0);
const LISTEN: Token = Token(1);
/// Connections have the tokens from here on, each used once.
const FIRST_CONNECTION: usize = 2;

/// Node -> network, in batches. Full means that the network thread is held up; then they are
/// dropped, and Raft sends again.
const BATCHES_MAX: usize = 8192;

/// The network's end of a node.
#[derive(Debug)]
pub(crate) struct TcpTransport {
    orders: Option<Sender<Order>>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

/// Wakes the thread, at most once until it has looked.
#[derive(Debug)]
struct Wake {
    waker: Waker,
    pending: AtomicBool,
}

impl Wake {
    fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "the network thread cannot be woken");
        }
    }
}

enum Order {
    Send(Vec<(NodeId, PeerMessage)>),
    Resolved(Resolved),
    End,
}

impl TcpTransport {
    /// Starts the thread. `events` gets what happens; it may block to slow the network down, and
    /// returns `false` when nobody listens any more.
    pub(crate) fn start(
        listener: StdListener,
        local: LocalPeer,
        peers: Vec<RemotePeer>,
        options: TransportOptions,
        events: impl Fn(TransportEvent) -> bool + Send + 'static,
    ) -> io::Result<TcpTransport> {
        let poll = Poll::new()?;
        listener.set_nonblocking(true)?;
        let mut listener = mio::net::TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTEN, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let wake = Arc::new(Wake { waker, pending: AtomicBool::new(false) });
        let (orders, inbox) = bounded(BATCHES_MAX);
        let local = Arc::new(local);
        let known: Vec<NodeId> = peers.iter().map(|peer| peer.node).collect();
        let dialler = Dialler { orders: orders.clone(), wake: Arc::clone(&wake) };
        let outgoing = peers
            .into_iter()
            .map(|peer| Outgoing::new(peer, Arc::clone(&local), options.clone(), dialler.clone()))
            .collect();
        let network = Network {
            poll,
            server: Server::new(listener, local, known, options),
            outgoing,
            inbox,
            wake: Arc::clone(&wake),
            dials: BTreeMap::new(),
            next_token: FIRST_CONNECTION,
            events: Box::new(events),
        };
        let thread = std::thread::Builder::new()
            .name("quorate-net".to_owned())
            .spawn(move || network.run())?;
        Ok(TcpTransport { orders: Some(orders), wake, thread: Some(thread) })
    }

    /// Hands messages over, each to be sent to its peer or dropped. Never blocks.
    pub(crate) fn send(&self, messages: Vec<(NodeId, PeerMessage)>) {
        if let Some(orders) = &self.orders
            && orders.try_send(Order::Send(messages)).is_ok()
        {
            self.wake.wake();
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        if let Some(orders) = self.orders.take() {
            // The thread may be held up by a node that has stopped listening; `events` then fails.
            let _ = orders.send_timeout(Order::End, Duration::from_secs(1));
        }
        self.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How a resolver's thread reports back.
#[derive(Clone)]
struct Dialler {
    orders: Sender<Order>,
    wake: Arc<Wake>,
}

type EventSink = Box<dyn Fn(TransportEvent) -> bool + Send>;

struct Network {
    poll: Poll,
    server: Server,
    outgoing: Vec<Outgoing>,
    inbox: Receiver<Order>,
    wake: Arc<Wake>,
    /// Which peer an outgoing connection belongs to.
    dials: BTreeMap<Token, usize>,
    next_token: usize,
    events: EventSink,
}

/// The clock that deadlines of connections go by.
fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "deadlines of connections are the network's own")]
    Instant::now()
}

impl Network {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the network thread ends");
                return;
            }
            let woken = events.iter().any(|event| event.token() == WAKE);
            for event in &events {
                match event.token() {
                    WAKE => {}
                    LISTEN => self.server.want_accept(),
                    token => match self.dials.get(&token) {
                        Some(place) => self.outgoing[*place].ready(token),
                        None => self.server.ready(token),
                    },
                }
            }
            if woken {
                // Before looking, so that what comes after it wakes again.
                self.wake.pending.store(false, Ordering::Release);
            }
            if !self.take_orders() || !self.serve() {
                return;
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.server.has_more() {
            return Some(Duration::ZERO);
        }
        let deadlines = self.outgoing.iter().filter_map(Outgoing::deadline);
        let first = deadlines.chain(self.server.deadline()).min()?;
        // Rounded up: poll's own clock has a resolution of a millisecond.
        Some(first.saturating_duration_since(now()) + Duration::from_millis(1))
    }

    fn take_orders(&mut self) -> bool {
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Send(messages) => {
                    for (to, message) in messages {
                        if let Some(peer) = self.outgoing.iter_mut().find(|peer| peer.is(to)) {
                            peer.queue(&message);
                        }
                    }
                }
                Order::Resolved(resolved) => {
                    if let Some(peer) = self.outgoing.iter_mut().find(|peer| peer.is(resolved.peer))
                    {
                        peer.resolved(resolved);
                    }
                }
                Order::End => return false,
            }
        }
        true
    }

    /// Does what is due on all connections; `false` when nobody listens any more.
    fn serve(&mut self) -> bool {
        let now = now();
        for (place, peer) in self.outgoing.iter_mut().enumerate() {
            let next_token = &mut self.next_token;
            let dials = &mut self.dials;
            let token = || {
                let token = Token(*next_token);
                *next_token += 1;
                dials.insert(token, place);
                token
            };
            for event in peer.work(now, self.poll.registry(), token) {
                if !(self.events)(event) {
                    return false;
                }
            }
            if let Some(old) = peer.take_closed() {
                self.dials.remove(&old);
            }
        }
        self.server.work(now, self.poll.registry(), &mut self.next_token, &self.events)
    }
}

#[cfg(test)]
mod tests;
