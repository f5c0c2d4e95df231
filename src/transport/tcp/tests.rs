//! Real sockets on the loopback interface.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, unbounded};

use super::*;
use crate::transport::frame::write_frame;
use crate::transport::handshake::{Answer, Hello};

const PATIENCE: Duration = Duration::from_secs(20);

fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn options() -> TransportOptions {
    TransportOptions {
        retry_min: Duration::from_millis(5),
        retry_max: Duration::from_millis(50),
        ..TransportOptions::default()
    }
}

struct End {
    transport: TcpTransport,
    events: Receiver<TransportEvent>,
}

fn start(
    listener: TcpListener,
    node: u64,
    cluster: u64,
    peers: &[(u64, &str)],
    options: TransportOptions,
) -> End {
    let peers = peers
        .iter()
        .map(|(node, address)| RemotePeer { node: *node, address: (*address).to_owned() })
        .collect();
    let local = LocalPeer { cluster, node, incarnation: node };
    let (sender, events) = unbounded();
    let transport = TcpTransport::start(listener, local, peers, options, move |event| {
        sender.send(event).is_ok()
    })
    .unwrap();
    End { transport, events }
}

/// Two transports that have found each other.
fn pair() -> (End, End) {
    let ((one, one_at), (two, two_at)) = (bind(), bind());
    let one = start(one, 1, 7, &[(2, &two_at)], options());
    let two = start(two, 2, 7, &[(1, &one_at)], options());
    one.connected(2);
    two.connected(1);
    (one, two)
}

fn message(number: u64, bytes: usize) -> PeerMessage {
    PeerMessage::SnapshotChunk { transfer: number, number: 0, bytes: Bytes::from(vec![7; bytes]) }
}

impl End {
    fn next(&self) -> TransportEvent {
        self.events.recv_timeout(PATIENCE).expect("an event in time")
    }

    fn connected(&self, of: u64) {
        loop {
            if let TransportEvent::Connected { peer } = self.next() {
                assert_eq!(peer, of);
                return;
            }
        }
    }

    fn received(&self) -> (u64, PeerMessage) {
        loop {
            if let TransportEvent::Received { from, message } = self.next() {
                return (from, message);
            }
        }
    }

    fn unreachable(&self) -> (String, bool) {
        loop {
            if let TransportEvent::Unreachable { problem, .. } = self.next() {
                return (problem.reason, problem.refused);
            }
        }
    }

    fn send(&self, to: u64, message: PeerMessage) {
        self.transport.send(vec![(to, message)]);
    }
}

/// A greeted connection of our own to a transport.
fn dial(address: &str, hello: &Hello) -> (TcpStream, Answer) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&write_frame(Vec::new(), |buffer| hello.encode(buffer))).unwrap();
    let mut header = [0; 12];
    stream.read_exact(&mut header).unwrap();
    let length = u32::from_le_bytes(header[..4].try_into().unwrap());
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).unwrap();
    (stream, Answer::decode(&payload).unwrap())
}

fn is_closed(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn messages_arrive_in_order_both_ways() {
    let (one, two) = pair();
    for number in 0..1000 {
        one.send(2, message(number, 100));
        two.send(1, message(number, 10));
    }
    one.send(2, message(1000, 2 << 20));
    for number in 0..1000 {
        assert_eq!(two.received(), (1, message(number, 100)));
        assert_eq!(one.received(), (2, message(number, 10)));
    }
    assert_eq!(two.received(), (1, message(1000, 2 << 20)));
}

#[test]
fn a_peer_that_restarts_is_found_again() {
    let ((one, one_at), (two, two_at)) = (bind(), bind());
    let one = start(one, 1, 7, &[(2, &two_at)], options());
    let two_end = start(two, 2, 7, &[(1, &one_at)], options());
    one.connected(2);
    drop(two_end);
    one.unreachable();
    let again =
        TcpListener::bind(&two_at).expect("the port is free as soon as the other is closed");
    let two = start(again, 2, 7, &[(1, &one_at)], options());
    one.connected(2);
    one.send(2, message(1, 1));
    assert_eq!(two.received(), (1, message(1, 1)));
}

#[test]
fn a_name_is_resolved() {
    let ((one, _), (two, two_at)) = (bind(), bind());
    let port = two_at.rsplit(':').next().unwrap();
    let one = start(one, 1, 7, &[(2, &format!("localhost:{port}"))], options());
    let _two = start(two, 2, 7, &[(1, "127.0.0.1:9")], options());
    one.connected(2);
}

#[test]
fn an_absent_peer_is_reported_with_the_reason() {
    let ((one, _), (absent, absent_at)) = (bind(), bind());
    drop(absent);
    let one = start(one, 1, 7, &[(2, &absent_at)], options());
    let (reason, refused) = one.unreachable();
    assert!(reason.contains("refused") && !refused, "{reason}");
}

#[test]
fn peers_of_another_cluster_refuse_each_other() {
    let ((one, one_at), (two, two_at)) = (bind(), bind());
    let one = start(one, 1, 7, &[(2, &two_at)], options());
    let _two = start(two, 2, 8, &[(1, &one_at)], options());
    let (reason, refused) = one.unreachable();
    assert!(reason.contains("another cluster") && refused, "{reason}");
}

#[test]
fn strangers_versions_and_impostors_are_refused() {
    let ((one, one_at), (_two, two_at)) = (bind(), bind());
    let end = start(one, 1, 7, &[(2, &two_at)], options());
    let hello = Hello { cluster: 7, from: 2, to: 1, incarnation: 5 };
    assert_eq!(dial(&one_at, &hello).1, Answer::Welcome);
    for bad in [
        Hello { from: 3, ..hello.clone() },
        Hello { from: 1, ..hello.clone() },
        Hello { to: 2, ..hello.clone() },
    ] {
        let (stream, answer) = dial(&one_at, &bad);
        assert!(matches!(answer, Answer::Refused { .. }), "{bad:?}");
        assert!(is_closed(stream));
    }
    let mut stream = TcpStream::connect(&one_at).unwrap();
    let other_version = write_frame(Vec::new(), |buffer| {
        let mut bytes = hello.encode(buffer);
        let version = bytes.len() - hello.encode(Vec::new()).len() + 4;
        bytes[version] = 99;
        bytes
    });
    stream.write_all(&other_version).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("this is 99"));
    drop(end);
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    let ((one, one_at), (two, two_at)) = (bind(), bind());
    let one = start(
        one,
        1,
        7,
        &[(2, &two_at)],
        TransportOptions { handshake_timeout: Duration::from_millis(200), ..options() },
    );
    let two = start(two, 2, 7, &[(1, &one_at)], options());
    two.connected(1);
    let hello = Hello { cluster: 7, from: 2, to: 1, incarnation: 5 };
    let frame = |payload: &[u8]| {
        write_frame(Vec::new(), |mut buffer| {
            buffer.extend_from_slice(payload);
            buffer
        })
    };
    let mut damaged = frame(b"hello");
    damaged[13] ^= 1;
    let huge = {
        let mut bytes = u32::MAX.to_le_bytes().to_vec();
        bytes.extend([0; 100]);
        bytes
    };
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], &huge, &damaged, &frame(b"noise")]
    {
        let mut stream = TcpStream::connect(&one_at).unwrap();
        stream.write_all(garbage).unwrap();
        assert!(is_closed(stream));
    }
    // Silence, and a greeting that is never finished.
    let silent = TcpStream::connect(&one_at).unwrap();
    let mut slow = TcpStream::connect(&one_at).unwrap();
    slow.write_all(&frame(b"x")[..7]).unwrap();
    assert!(is_closed(silent) && is_closed(slow));
    // Garbage after a proper greeting. It takes the place of the peer's own connection, which the
    // peer then makes anew.
    let (mut stream, answer) = dial(&one_at, &hello);
    assert_eq!(answer, Answer::Welcome);
    stream.write_all(&frame(&[0xff; 100])).unwrap();
    assert!(is_closed(stream));
    two.connected(1);
    two.send(1, message(5, 5));
    assert_eq!(one.received(), (2, message(5, 5)));
}

#[test]
fn a_crowd_of_strangers_does_not_keep_a_peer_out() {
    let ((one, one_at), (_two, two_at)) = (bind(), bind());
    let few = TransportOptions { connections_max: 8, ..options() };
    let _end = start(one, 1, 7, &[(2, &two_at)], few);
    let crowd: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&one_at).unwrap()).collect();
    let hello = Hello { cluster: 7, from: 2, to: 1, incarnation: 5 };
    let (mut peer, answer) = dial(&one_at, &hello);
    assert_eq!(answer, Answer::Welcome);
    let more: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&one_at).unwrap()).collect();
    peer.write_all(&write_frame(Vec::new(), |buffer| message(1, 1).encode(buffer))).unwrap();
    drop((crowd, more));
}

#[test]
fn what_a_peer_does_not_read_is_dropped_beyond_the_limit() {
    let ((one, _), (two, two_at)) = (bind(), bind());
    let limited = TransportOptions { queue_bytes_max: 1 << 20, ..options() };
    let one = start(one, 1, 7, &[(2, &two_at)], limited);
    // A peer that greets and then never reads.
    let (mut stream, _) = two.accept().unwrap();
    let welcome = write_frame(Vec::new(), |buffer| Answer::Welcome.encode(buffer));
    stream.write_all(&welcome).unwrap();
    one.connected(2);
    for number in 0..2000 {
        one.send(2, message(number, 64 << 10));
    }
    // 128 MB were sent; what the sockets hold and one megabyte is all that is kept. Reading then
    // gives the first messages, and far from all of them.
    drop(one);
    let mut arrived = Vec::new();
    stream.read_to_end(&mut arrived).unwrap();
    assert!(arrived.len() < 64 << 20, "{} bytes arrived", arrived.len());
}

#[test]
fn a_hundred_thousand_small_messages() {
    let (one, two) = pair();
    for batch in 0..1000 {
        let batch: Vec<_> = (0..100).map(|n| (2, message(batch * 100 + n, 100))).collect();
        one.transport.send(batch);
    }
    for number in 0..100_000 {
        assert_eq!(two.received().1, message(number, 100));
    }
}
