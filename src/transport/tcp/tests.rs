//! Real sockets on the loopback, every port chosen by the system.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, bounded, unbounded};

use super::*;
use crate::node::message::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
use crate::transport::frame::{FrameReader, HEADER_BYTES, append_frame};
use crate::transport::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, RefusalCode};

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
    LocalPeer { cluster: CLUSTER, node, incarnation: node * 10 }
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

    fn await_connected(&self, to: NodeId) {
        loop {
            if let TransportEvent::Connected { peer } = self.event()
                && peer == to
            {
                return;
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
    Hello { protocol: PROTOCOL_VERSION, cluster: CLUSTER, from, to, incarnation: 1 }
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
        Hello::decode(&hello, PROTOCOL_VERSION).unwrap();
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
        Answer::decode(&self.frame()?)
    }

    fn refusal(&mut self) -> RefusalCode {
        match self.answer() {
            Some(Answer::Refused(refusal)) => refusal.code,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn messages_arrive_in_order_both_ways() {
    let (one, two) = pair(&quick());
    for number in 0..100 {
        one.transport.send(vec![(2, numbered(number))]);
        two.transport.send(vec![(1, numbered(1000 + number)), (9, numbered(0))]);
    }
    for number in 0..100 {
        assert_eq!(two.received(), (1, numbered(number)));
        assert_eq!(one.received(), (2, numbered(1000 + number)));
    }
    let counters = two.transport.counters();
    assert_eq!(counters.messages_sent.load(Relaxed), 100);
    assert_eq!(counters.messages_dropped.load(Relaxed), 100, "nobody is node 9");
}

#[test]
fn large_messages_arrive_whole_and_too_large_ones_are_dropped() {
    let (one, two) = pair(&quick());
    for number in 0..8 {
        one.transport.send(vec![
            (2, large(number, 2 << 20)),
            (2, large(99, MESSAGE_BYTES_MAX)),
            (2, numbered(u64::from(number))),
        ]);
    }
    for number in 0..8 {
        assert_eq!(two.received(), (1, large(number, 2 << 20)));
        assert_eq!(two.received(), (1, numbered(u64::from(number))));
    }
    let dropped = &one.transport.counters().messages_dropped;
    assert_eq!(dropped.load(Relaxed), 8);
}

#[test]
fn many_small_messages_all_arrive() {
    const COUNT: u64 = 100_000;
    let (one, two) = pair(&quick());
    let begin = Instant::now();
    for number in 0..COUNT {
        one.transport.send(vec![(2, numbered(number))]);
    }
    for number in 0..COUNT {
        assert_eq!(two.received(), (1, numbered(number)));
    }
    eprintln!("{COUNT} messages in {:?}", begin.elapsed());
}

#[test]
fn answers_do_not_wait_for_company() {
    const COUNT: u64 = 5_000;
    let (one, two) = pair(&quick());
    let begin = Instant::now();
    for number in 0..COUNT {
        one.transport.send(vec![(2, numbered(number))]);
        assert_eq!(two.received(), (1, numbered(number)));
        two.transport.send(vec![(1, numbered(number))]);
        assert_eq!(one.received(), (2, numbered(number)));
    }
    eprintln!("{COUNT} round trips in {:?}", begin.elapsed());
}

#[test]
fn peer_that_restarts_on_its_port_is_reached_again() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut two = Node::start(listener_2, local(2), &[remote(1, address_1)], &quick());
    for round in 0..5 {
        one.await_connected(2);
        two.await_connected(1);
        one.transport.send(vec![(2, numbered(round))]);
        assert_eq!(two.received(), (1, numbered(round)));
        two.transport.close();
        let (peer, _, permanent) = one.unreachable();
        assert_eq!((peer, permanent), (2, false));
        // Nothing sent meanwhile may arrive late.
        one.transport.send(vec![(2, numbered(99))]);
        let dropped = &one.transport.counters().messages_dropped;
        let end = Instant::now() + PATIENCE;
        while dropped.load(Relaxed) == round {
            assert!(Instant::now() < end, "nothing was dropped");
            std::thread::yield_now();
        }
        two = Node::start(listen_again(address_2), local(2), &[remote(1, address_1)], &quick());
    }
}

#[test]
fn restarted_peer_is_dialled_before_the_pause_is_over() {
    let patient =
        TransportOptions { retry_min: PATIENCE * 10, retry_max: PATIENCE * 10, ..quick() };
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    drop(listener_2);
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &patient);
    assert_eq!(one.unreachable(), (2, "connection refused".into(), false));
    let peers = [remote(1, address_1)];
    let two = Node::start(listen_again(address_2), local(2), &peers, &quick());
    two.await_connected(1);
    one.await_connected(2);
}

#[test]
fn nodes_of_different_clusters_refuse_each_other() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let other = LocalPeer { cluster: 0xBAD, ..local(2) };
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let two = Node::start(listener_2, other, &[remote(1, address_1)], &quick());
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (2, true));
    assert!(reason.contains("another cluster (0000000000000bad"), "{reason}");
    let (peer, reason, permanent) = two.unreachable();
    assert_eq!((peer, permanent), (1, true));
    assert!(reason.contains("another cluster"), "{reason}");
    one.await_refused(1);
    two.await_refused(1);
}

#[test]
fn node_under_the_address_of_another_is_refused() {
    let (listener_1, address_1) = listen();
    let (listener_3, address_3) = listen();
    let three = Node::start(listener_3, local(3), &[remote(1, address_1)], &quick());
    let one = Node::start(listener_1, local(1), &[remote(2, address_3)], &quick());
    let refused = (2, "the peer refused: this is node 3, not 2".into(), true);
    assert_eq!(one.unreachable(), refused);
    let refused = "the peer refused: node 3 is not a member known here";
    assert_eq!(three.unreachable(), (1, refused.into(), false));
}

#[test]
fn every_wrong_hello_gets_its_answer_and_is_hung_up_on() {
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], &quick());
    let good = hello(2, 1);
    let wrong = [
        (Hello { protocol: 9, ..good }, RefusalCode::Protocol),
        (Hello { cluster: 9, ..good }, RefusalCode::Cluster),
        (Hello { to: 9, ..good }, RefusalCode::NotAddressed),
        (Hello { from: 1, ..good }, RefusalCode::OwnId),
        (Hello { from: 9, ..good }, RefusalCode::UnknownPeer),
    ];
    for (wrong, code) in wrong {
        let mut hand = Hand::connect(address);
        hand.send(&frame(|buffer| wrong.encode(buffer)));
        assert_eq!(hand.refusal(), code);
        assert_eq!(hand.frame(), None);
    }
    let mut hand = Hand::connect(address);
    hand.send(&frame(|mut buffer| {
        buffer.extend_from_slice(b"quorate\n\x01\x00\xff");
        buffer
    }));
    assert_eq!(hand.refusal(), RefusalCode::Malformed);
    node.await_refused(6);
}

#[test]
fn answer_of_another_version_is_understood() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut hand = Hand::new(listener_2.accept().unwrap().0);
    let hello = hand.frame().unwrap();
    let refusal = Hello::decode(&hello, 7).unwrap_err();
    hand.send(&frame(|buffer| Answer::Refused(refusal).encode(7, buffer)));
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (2, true));
    assert!(reason.contains("version 7 of the protocol, not 1"), "{reason}");
}

#[test]
fn junk_on_the_port_disturbs_nobody() {
    let options = TransportOptions { handshake_timeout: Duration::from_millis(500), ..quick() };
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let peers = [remote(2, address_2), remote(3, "127.0.0.1:1")];
    let one = Node::start(listener_1, local(1), &peers, &options);
    let two = Node::start(listener_2, local(2), &[remote(1, address_1)], &options);
    two.await_connected(1);

    let good = frame(|buffer| hello(3, 1).encode(buffer));
    let mut harmed = good.clone();
    harmed[HEADER_BYTES + 3] ^= 1;
    let oversized = |bytes: usize| [&(bytes as u32).to_le_bytes()[..], &[0; 8]].concat();
    let strangers = [
        b"GET / HTTP/1.1\r\nHost: somebody else\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        harmed,
        oversized(HANDSHAKE_BYTES_MAX + 1),
        // These two stop half-way, and the node gets tired of them.
        oversized(HANDSHAKE_BYTES_MAX),
        good[..good.len() - 1].to_vec(),
        Vec::new(),
    ];
    let introduced = [
        oversized(MESSAGE_BYTES_MAX + 1),
        frame(|mut buffer| {
            buffer.extend_from_slice(&[0xfe; 50]);
            buffer
        }),
        {
            let mut harmed = frame(|buffer| numbered(5).encode(buffer));
            harmed[HEADER_BYTES] ^= 1;
            harmed
        },
    ];
    let count = (strangers.len() + introduced.len()) as u64;
    let mut sent = 0;
    let mut talk = || {
        two.transport.send(vec![(1, numbered(sent))]);
        assert_eq!(one.received(), (2, numbered(sent)));
        sent += 1;
    };
    for junk in strangers {
        let mut hand = Hand::connect(address_1);
        // The node may hang up while we still write.
        let _ = hand.stream.write_all(&junk);
        talk();
        assert_eq!(hand.frame(), None);
        talk();
    }
    for junk in introduced {
        let mut hand = Hand::introduced(address_1, &hello(3, 1));
        hand.send(&junk);
        talk();
        assert_eq!(hand.frame(), None);
        talk();
    }
    one.await_refused(count);
    // Cut off in the middle of a message.
    let mut hand = Hand::introduced(address_1, &hello(3, 1));
    hand.send(&frame(|buffer| large(0, 1000).encode(buffer))[..500]);
    drop(hand);
    one.await_refused(count + 1);
    talk();
    assert_eq!(one.transport.counters().connections_refused.load(Relaxed), count + 1);
}

#[test]
fn crowd_of_silent_strangers_keeps_no_peer_out() {
    let options =
        TransportOptions { connections_max: 4, handshake_timeout: PATIENCE * 10, ..quick() };
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], &options);
    let mut crowd: Vec<Hand> = (0..10).map(|_| Hand::connect(address)).collect();
    // The oldest six have been closed, and the others not.
    node.await_refused(6);
    for hand in &mut crowd[..6] {
        assert_eq!(hand.frame(), None);
    }
    let mut peer = Hand::introduced(address, &hello(2, 1));
    node.await_refused(7);
    crowd.extend((0..10).map(|_| Hand::connect(address)));
    node.await_refused(17);
    peer.send(&frame(|buffer| numbered(3).encode(buffer)));
    assert_eq!(node.received(), (2, numbered(3)));
}

#[test]
fn later_connection_of_a_peer_replaces_the_former() {
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], &quick());
    let mut former = Hand::introduced(address, &hello(2, 1));
    former.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(node.received(), (2, numbered(1)));
    // The first message comes right behind the hello.
    let mut later = Hand::connect(address);
    let both =
        [frame(|buffer| hello(2, 1).encode(buffer)), frame(|buffer| numbered(2).encode(buffer))];
    later.send(&both.concat());
    assert_eq!(later.answer(), Some(Answer::Welcome));
    assert_eq!(former.frame(), None);
    assert_eq!(node.received(), (2, numbered(2)));
    // An empty frame asks for one.
    later.send(&frame(|buffer| buffer));
    assert_eq!(later.frame(), Some(Vec::new()));
}

#[test]
fn peer_that_reads_nothing_costs_bounded_memory_and_is_given_up() {
    let options = TransportOptions {
        queue_bytes_max: 1 << 20,
        stall_timeout: Duration::from_millis(300),
        ..quick()
    };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let mut hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    let counters = one.transport.counters();
    let end = Instant::now() + PATIENCE;
    let mut number = 0;
    while counters.messages_dropped.load(Relaxed) < 1000 {
        assert!(Instant::now() < end, "{counters:?}");
        one.transport.send(vec![(2, large(number, 10_000))]);
        number += 1;
    }
    let reason = "the peer takes or answers nothing";
    assert_eq!(one.unreachable(), (2, reason.into(), false));
    // What does arrive is whole and in order.
    let mut last = None;
    while let Some(bytes) = hand.frame() {
        let Ok(PeerMessage::SnapshotChunk { number, .. }) = PeerMessage::decode(&bytes) else {
            assert!(bytes.is_empty(), "neither a message nor a question");
            continue;
        };
        assert!(last < Some(number));
        last = Some(number);
    }
    assert!(last.is_some());
}

#[test]
fn peer_that_answers_nothing_is_given_up() {
    let options = TransportOptions { stall_timeout: Duration::from_millis(200), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let mut hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(PeerMessage::decode(&hand.frame().unwrap()), Ok(numbered(1)));
    assert_eq!(hand.frame(), Some(Vec::new()));
    let reason = "the peer takes or answers nothing";
    assert_eq!(one.unreachable(), (2, reason.into(), false));
    assert_eq!(hand.frame(), None);
}

#[test]
fn peer_that_answers_is_kept_however_quiet() {
    let options = TransportOptions { stall_timeout: Duration::from_secs(1), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let mut hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    one.transport.send(vec![(2, numbered(2))]);
    assert!(hand.frame().is_some());
    assert_eq!(hand.frame(), Some(Vec::new()));
    hand.send(&frame(|buffer| buffer));
    let quiet = one.events.recv_timeout(options.stall_timeout * 3 / 2);
    assert!(quiet.is_err(), "{quiet:?}");
}

#[test]
fn idle_node_sleeps() {
    let (one, two) = pair(&quick());
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(two.received(), (1, numbered(1)));
    let end = Instant::now() + PATIENCE;
    loop {
        let turns = || one.transport.shared.turns.load(Relaxed);
        let before = turns();
        let quiet = one.events.recv_timeout(Duration::from_millis(300));
        assert!(quiet.is_err(), "{quiet:?}");
        if turns() == before {
            break;
        }
        assert!(Instant::now() < end, "still busy after {} turns", turns());
    }
}

#[test]
fn peer_that_sends_on_our_connection_is_hung_up_on() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut hand = Hand::welcome(&listener_2);
    hand.send(&frame(|buffer| numbered(1).encode(buffer)));
    let (_, reason, _) = one.unreachable();
    assert!(reason.contains("the peer sent a frame of"), "{reason}");
    let mut hand = Hand::new(listener_2.accept().unwrap().0);
    assert!(hand.frame().is_some());
    hand.send(&frame(|buffer| buffer));
    assert_eq!(one.unreachable().1, "the peer is not a quorate node");
}

#[test]
fn peer_that_never_answers_the_handshake_is_tried_again() {
    let options = TransportOptions { handshake_timeout: Duration::from_millis(50), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options);
    let silent = listener_2.accept().unwrap();
    assert_eq!(one.unreachable().1, "the peer did not answer the handshake");
    let _hand = Hand::welcome(&listener_2);
    one.await_connected(2);
    drop(silent);
}

#[test]
fn same_failure_is_reported_once() {
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    for _ in 0..10 {
        let mut hand = Hand::new(listener_2.accept().unwrap().0);
        assert!(hand.frame().is_some());
    }
    let _hand = Hand::welcome(&listener_2);
    let reason = "the peer closed the connection instead of answering";
    assert!(matches!(
        one.event(),
        TransportEvent::Unreachable { peer: 2, reason: told, permanent: false } if told == reason
    ));
    assert!(matches!(one.event(), TransportEvent::Connected { peer: 2 }));
}

#[test]
fn names_are_looked_up() {
    let options = TransportOptions { connect_timeout: Duration::from_millis(500), ..quick() };
    let (listener_1, _) = listen();
    let (listener_2, address_2) = listen();
    // It may stand for an IPv6 address, too, where nobody listens.
    let name = format!("localhost:{}", address_2.port());
    let one = Node::start(listener_1, local(1), &[remote(2, name)], &options);
    let _hand = Hand::welcome(&listener_2);
    one.await_connected(2);

    one.transport.set_peers(vec![remote(3, "no port given")]);
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (3, false));
    assert!(reason.starts_with("cannot look up \"no port given\""), "{reason}");
}

#[test]
fn list_of_peers_can_change() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let (listener_3, address_3) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &quick());
    let mut out_2 = Hand::welcome(&listener_2);
    one.await_connected(2);
    let mut in_2 = Hand::introduced(address_1, &hello(2, 1));

    // The own address in the list is not a peer's.
    let list = vec![remote(1, address_1), remote(3, address_3)];
    one.transport.set_peers(list.clone());
    assert_eq!(out_2.frame(), None);
    assert_eq!(in_2.frame(), None);
    let mut out_3 = Hand::welcome(&listener_3);
    one.await_connected(3);
    let mut in_2 = Hand::connect(address_1);
    in_2.send(&frame(|buffer| hello(2, 1).encode(buffer)));
    assert_eq!(in_2.refusal(), RefusalCode::UnknownPeer);

    // The same list changes nothing; another address does.
    one.transport.set_peers(list);
    one.transport.send(vec![(3, numbered(1))]);
    assert_eq!(PeerMessage::decode(&out_3.frame().unwrap()), Ok(numbered(1)));
    one.transport.set_peers(vec![remote(3, address_2)]);
    let _hand = Hand::welcome(&listener_2);
    one.await_connected(3);
}

#[test]
fn slow_receiver_slows_the_sender_and_nothing_is_reordered() {
    const COUNT: u64 = 20_000;
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let (events_tx, events) = bounded(1);
    // On a busy machine the receiver may be slower than what counts as dead otherwise.
    let patient = TransportOptions { stall_timeout: PATIENCE * 10, ..quick() };
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &patient);
    let two = TcpTransport::start(
        listener_2,
        local(2),
        vec![remote(1, address_1)],
        quick(),
        move |event| events_tx.send(event).is_ok(),
    )
    .unwrap();
    one.await_connected(2);
    for number in 0..COUNT {
        one.transport.send(vec![(2, numbered(number))]);
    }
    let mut next = 0;
    while next < COUNT {
        if let TransportEvent::Received { message, .. } = events.recv_timeout(PATIENCE).unwrap() {
            assert_eq!(message, numbered(next));
            next += 1;
        }
    }
    drop(events);
    two.close();
}

#[test]
fn close_ends_the_thread_and_frees_the_port() {
    let (one, two) = pair(&quick());
    let (events_1, events_2) = (one.events, two.events);
    one.transport.send(vec![(2, numbered(7))]);
    let begin = Instant::now();
    one.transport.close();
    two.transport.close();
    assert!(begin.elapsed() < PATIENCE);
    // The threads are gone, and with them the senders.
    assert!(events_1.iter().count() < 10);
    assert!(events_2.iter().count() < 10);

    let (listener, address) = listen();
    Node::start(listener, local(1), &[], &quick()).transport.close();
    drop(listen_again(address));
}

#[test]
fn last_words_before_close_are_sent() {
    let (one, two) = pair(&quick());
    one.transport.send(vec![(2, numbered(7))]);
    one.transport.close();
    assert_eq!(two.received(), (1, numbered(7)));
}

#[test]
fn transport_ends_when_nobody_listens() {
    let (one, two) = pair(&quick());
    drop(one.events);
    two.transport.send(vec![(1, numbered(1))]);
    let end = Instant::now() + PATIENCE;
    while !one.transport.thread.as_ref().unwrap().is_finished() {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    // Harmless, if useless.
    one.transport.send(vec![(2, numbered(1))]);
    one.transport.close();
}
