//! Real sockets on the loopback, every port chosen by the system.

mod delivery;
mod dialling;
mod keys;
mod listening;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, bounded, unbounded};

use super::*;
use crate::node::message::MESSAGE_BYTES_MAX;
use crate::transport::frame::{FrameReader, HEADER_BYTES, append_frame};
use crate::transport::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, RefusalCode};
use crate::version::{OLDEST, VERSION};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

const CLUSTER: u64 = 0xC1;

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

/// Listens where a listener was closed a moment ago.
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
    LocalPeer { cluster: CLUSTER, node, incarnation: node * 10, version: VERSION }
}

fn remote(node: NodeId, address: impl ToString) -> RemotePeer {
    RemotePeer { node, address: address.to_string() }
}

struct Node {
    transport: TcpTransport,
    events: Receiver<TransportEvent>,
}

impl Node {
    fn start(
        listener: TcpListener,
        local: LocalPeer,
        peers: &[RemotePeer],
        options: &TransportOptions,
    ) -> Node {
        let (events_tx, events) = unbounded();
        let transport = TcpTransport::start(listener, local, peers.to_vec(), options.clone(), {
            move |event| events_tx.send(event).is_ok()
        })
        .unwrap();
        Node { transport, events }
    }

    fn event(&self) -> TransportEvent {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// The next message, whatever else is told meanwhile.
    fn received(&self) -> (NodeId, PeerMessage) {
        loop {
            if let TransportEvent::Received { from, message } = self.event() {
                return (from, message);
            }
        }
    }

    /// What the peer can do.
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

    /// Until the network thread has gone round so often.
    #[cfg(feature = "tls")]
    fn await_turns(&self, count: u64) {
        let turns = &self.transport.shared.turns;
        let (wanted, end) = (turns.load(Relaxed) + count, Instant::now() + PATIENCE);
        while turns.load(Relaxed) < wanted {
            assert!(Instant::now() < end, "{:?}", self.transport);
            std::thread::yield_now();
        }
    }

    fn await_refused(&self, count: u64) {
        let end = Instant::now() + PATIENCE;
        let refused = &self.transport.counters().connections_refused;
        while refused.load(Relaxed) < count {
            assert!(Instant::now() < end, "{:?}", self.transport);
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
    Hello { version: VERSION, cluster: CLUSTER, from, to, incarnation: 1 }
}

fn frame(write: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let mut buffer = Vec::new();
    append_frame(&mut buffer, write);
    buffer
}

/// The other end of a connection, played by hand.
struct Hand {
    stream: TcpStream,
    reader: FrameReader,
}

impl Hand {
    fn new(stream: TcpStream) -> Hand {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Hand { stream, reader: FrameReader::new(MESSAGE_BYTES_MAX) }
    }

    fn connect(to: SocketAddr) -> Hand {
        Hand::new(TcpStream::connect(to).unwrap())
    }

    fn introduced(to: SocketAddr, hello: &Hello) -> Hand {
        let mut hand = Hand::connect(to);
        hand.send(&frame(|buffer| hello.encode(buffer)));
        assert_eq!(hand.answer(), Some(Answer::Welcome));
        hand
    }

    /// Takes a connection and welcomes it.
    fn welcome(listener: &TcpListener) -> Hand {
        let mut hand = Hand::new(listener.accept().unwrap().0);
        let hello = hand.frame().expect("a hello");
        Hello::decode(&hello, OLDEST..=VERSION).unwrap();
        hand.send(&frame(|buffer| Answer::Welcome.encode(1, buffer)));
        hand
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

    fn answer(&mut self) -> Option<Answer> {
        Answer::decode(&self.frame()?).map(|(_, answer)| answer)
    }

    fn refusal(&mut self) -> RefusalCode {
        match self.answer() {
            Some(Answer::Refused(refusal)) => refusal.code,
            other => panic!("{other:?}"),
        }
    }
}
