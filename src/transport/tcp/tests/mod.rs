//! Tests with real sockets on the loopback, on ports that the system chooses.

#[cfg(feature = "tls")]
mod authority;
mod delivery;
mod dialling;
mod duplicates;
mod keys;
mod listening;
mod processes;
mod rights;
mod seeded;
mod seeds;
mod unlisted;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::*;
use crate::node::message::MESSAGE_BYTES_MAX;
use crate::node::message::PeerMessage;
use crate::transport::frame::{FrameReader, HEADER_BYTES, append_frame};
use crate::transport::handshake::{
    self, HANDSHAKE_BYTES_MAX, Hello, HelloReply, ProcessRun, RefusalCode, Responder,
};
use crate::transport::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};
use crate::types::membership::NodeId;
use crate::types::version::{INVENTED, OLDEST, VERSION};

/// Far longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(30);

const CLUSTER: u64 = 0xC1;

/// An address at which nobody listens.
const NOWHERE: &str = "127.0.0.1:1";

fn quick() -> TransportOptions {
    TransportOptions {
        retry_min: Duration::from_millis(2),
        retry_max: Duration::from_millis(20),
        ..TransportOptions::default()
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Listens on the address of a listener that was just closed.
fn listen_again(address: SocketAddr) -> TcpListener {
    let end = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < end, "{address}: {error}"),
        }
        std::thread::yield_now();
    }
}

fn local(node: NodeId) -> LocalPeer {
    LocalPeer {
        cluster: CLUSTER,
        node,
        incarnation: node.wrapping_mul(10),
        version: VERSION,
        address: NOWHERE.to_owned(),
        boot: node.wrapping_mul(100),
    }
}

/// The id of the client that tests call by this number.
fn client_id(number: u64) -> NodeId {
    handshake::client_id(local(number).boot)
}

/// This node, reachable at this address.
fn at(node: NodeId, address: impl ToString) -> LocalPeer {
    LocalPeer { address: address.to_string(), ..local(node) }
}

fn remote(node: NodeId, address: impl ToString) -> RemotePeer {
    RemotePeer { node, address: address.to_string() }
}

/// What a test's handler does in its turn; `None` ends the transport.
type Order = Option<Box<dyn FnOnce(&mut dyn Network) + Send>>;

/// A handler that passes events to the test, and executes the test's orders.
struct Relay<F> {
    /// Returns `false` once the test no longer receives.
    events: F,
    has_receiver: bool,
    orders: Receiver<Order>,
}

impl<F: Fn(TransportEvent) -> bool + Send> Handler for Relay<F> {
    fn take(&mut self, event: TransportEvent) {
        self.has_receiver &= (self.events)(event);
    }

    fn turn(&mut self, network: &mut dyn Network) -> Option<Duration> {
        // A test may send more than a thread that is short of processors takes, and a turn must end: the
        // network's timers fire between two turns.
        for order in self.orders.try_iter().take(100) {
            order?(network);
        }
        self.has_receiver.then_some(Duration::MAX)
    }

    fn is_busy(&self) -> bool {
        !self.has_receiver || !self.orders.is_empty()
    }
}

/// A transport whose handler executes the test's orders.
struct Transport {
    orders: Sender<Order>,
    shared: Arc<NetworkShared>,
    thread: Option<JoinHandle<()>>,
}

impl Transport {
    fn start(
        listener: impl Into<Option<TcpListener>>,
        local: LocalPeer,
        peers: Vec<RemotePeer>,
        seeds: Vec<String>,
        options: TransportOptions,
        events: impl Fn(TransportEvent) -> bool + Send + 'static,
    ) -> io::Result<Transport> {
        let transport = TcpTransport::new()?;
        let shared = Arc::clone(&transport.shared);
        let (sender, orders) = unbounded();
        let handler = Box::new(Relay { events, has_receiver: true, orders });
        let thread =
            transport.start("quorate-test", listener, local, peers, seeds, options, handler)?;
        Ok(Transport { orders: sender, shared, thread: Some(thread) })
    }

    fn order(&self, order: Order) {
        // An error does not matter: the handler may have ended.
        let _ = self.orders.send(order);
        self.shared.wake();
    }

    fn send(&self, messages: Vec<(NodeId, PeerMessage)>) {
        self.order(Some(Box::new(move |network| network.send(&messages))));
    }

    fn set_peers(&self, peers: Vec<RemotePeer>) {
        self.order(Some(Box::new(move |network| network.set_peers(peers))));
    }

    fn set_cluster(&self, cluster: u64) {
        self.order(Some(Box::new(move |network| network.set_cluster(cluster))));
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    fn close(self) {
        drop(self);
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.order(None);
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Node {
    transport: Transport,
    events: Receiver<TransportEvent>,
}

impl Node {
    fn start(
        listener: TcpListener,
        local: LocalPeer,
        peers: &[RemotePeer],
        options: &TransportOptions,
    ) -> Node {
        Node::with_seeds(listener, local, peers, &[], options)
    }

    /// Starts a node that looks for others at these addresses. A node at `NOWHERE` gets the
    /// listener's address.
    fn with_seeds(
        listener: TcpListener,
        mut local: LocalPeer,
        peers: &[RemotePeer],
        seeds: &[String],
        options: &TransportOptions,
    ) -> Node {
        if local.address == NOWHERE {
            local.address = listener.local_addr().unwrap().to_string();
        }
        let (events_tx, events) = unbounded();
        let (peers, seeds) = (peers.to_vec(), seeds.to_vec());
        let transport =
            Transport::start(listener, local, peers, seeds, options.clone(), move |event| {
                events_tx.send(event).is_ok()
            })
            .unwrap();
        Node { transport, events }
    }

    fn event(&self) -> TransportEvent {
        self.events
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("no event: {:?}", self.transport.counters()))
    }

    /// The next message; other events are skipped.
    fn received(&self) -> (NodeId, PeerMessage) {
        loop {
            if let TransportEvent::Received { from, message } = self.event() {
                return (from, message);
            }
        }
    }

    /// Waits until this peer is connected, and returns the version that it supports.
    fn await_connected(&self, to: NodeId) -> u16 {
        loop {
            if let TransportEvent::Connected { peer, version } = self.event()
                && peer == to
            {
                return version;
            }
        }
    }

    /// The next report that a peer is unreachable.
    fn unreachable(&self) -> (NodeId, String, bool) {
        loop {
            if let TransportEvent::Unreachable { peer, reason, permanent } = self.event() {
                return (peer, reason, permanent);
            }
        }
    }

    /// Waits until the network thread's loop has run this many more times.
    fn await_turns(&self, count: u64) {
        let turns = &self.transport.shared.turns;
        let (wanted, end) = (turns.load(Relaxed) + count, Instant::now() + PATIENCE);
        while turns.load(Relaxed) < wanted {
            assert!(Instant::now() < end, "{:?}", self.transport.counters());
            std::thread::yield_now();
        }
    }

    fn await_refused(&self, count: u64) {
        let end = Instant::now() + PATIENCE;
        let refused = &self.transport.counters().connections_refused;
        while refused.load(Relaxed) < count {
            assert!(Instant::now() < end, "{:?}", self.transport.counters());
            std::thread::yield_now();
        }
    }
}

/// Nodes 1 and 2, connected.
fn pair(options: &TransportOptions) -> (Node, Node) {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], options);
    let two = Node::start(listener_2, local(2), &[remote(1, address_1)], options);
    one.await_connected(2);
    two.await_connected(1);
    (one, two)
}

fn numbered(number: u64) -> PeerMessage {
    PeerMessage::StateHash { index: 0, hash: number }
}

fn large(number: u32, bytes: usize) -> PeerMessage {
    PeerMessage::SnapshotChunk {
        transfer: 1,
        number,
        bytes: Bytes::from(vec![number as u8; bytes]),
    }
}

fn hello(from: NodeId, to: NodeId) -> Hello {
    Hello { incarnation: 1, ..Hello::new(&local(from), VERSION, to) }
}

fn welcome(node: NodeId) -> HelloReply {
    HelloReply::Welcome(Responder::of(&local(node)))
}

fn frame(write: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let mut buffer = Vec::new();
    append_frame(&mut buffer, write);
    buffer
}

/// The other end of a connection, driven by the test.
struct RawPeer {
    stream: TcpStream,
    reader: FrameReader,
}

impl RawPeer {
    fn new(stream: TcpStream) -> RawPeer {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        RawPeer { stream, reader: FrameReader::new(MESSAGE_BYTES_MAX) }
    }

    fn connect(to: SocketAddr) -> RawPeer {
        RawPeer::new(TcpStream::connect(to).unwrap())
    }

    /// Connects, sends this hello, and is welcomed.
    fn connect_as(to: SocketAddr, hello: &Hello) -> RawPeer {
        let mut raw = RawPeer::connect(to);
        raw.send(&frame(|buffer| hello.encode(buffer)));
        assert!(matches!(raw.answer(), Some(HelloReply::Welcome(_))));
        raw
    }

    /// Accepts a connection, and welcomes it as the node that its hello addresses.
    fn accept(listener: &TcpListener) -> RawPeer {
        let mut raw = RawPeer::new(listener.accept().unwrap().0);
        let hello = Hello::decode(&raw.frame().expect("a hello"), OLDEST..=VERSION).unwrap();
        raw.send(&frame(|buffer| welcome(hello.to).encode(VERSION, buffer)));
        raw
    }

    /// Accepts a connection, and welcomes it as this node. Returns its hello too.
    fn accept_as(listener: &TcpListener, local: &LocalPeer) -> (RawPeer, Hello) {
        let mut raw = RawPeer::new(listener.accept().unwrap().0);
        let hello = Hello::decode(&raw.frame().expect("a hello"), OLDEST..=VERSION).unwrap();
        let welcome = HelloReply::Welcome(Responder::of(local));
        raw.send(&frame(|buffer| welcome.encode(VERSION, buffer)));
        (raw, hello)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame, or `None` if the connection is closed.
    fn frame(&mut self) -> Option<Vec<u8>> {
        let mut part = [0; 4096];
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                return Some(frame.to_vec());
            }
            match self.stream.read(&mut part) {
                Ok(0) => return None,
                Ok(bytes) => self.reader.push(&part[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn answer(&mut self) -> Option<HelloReply> {
        HelloReply::decode(&self.frame()?).map(|(_, answer)| answer)
    }

    fn refusal(&mut self) -> RefusalCode {
        match self.answer() {
            Some(HelloReply::Refused(refusal)) => refusal.code,
            other => panic!("{other:?}"),
        }
    }
}
