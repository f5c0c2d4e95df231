//! Incoming connections: of peers, of strangers, and with junk.

use super::*;

#[test]
fn every_wrong_hello_is_refused_and_disconnected() {
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], &quick());
    let good = hello(2, 1);
    let wrong = [
        (Hello { version: 9, ..good.clone() }, RefusalCode::Protocol),
        (Hello { cluster: 9, ..good.clone() }, RefusalCode::Cluster),
        (Hello { to: 9, ..good.clone() }, RefusalCode::NotAddressed),
        (Hello { from: 1, ..good }, RefusalCode::Duplicate),
    ];
    for (wrong, code) in wrong {
        let mut raw = RawPeer::connect(address);
        raw.send(&frame(|buffer| wrong.encode(buffer)));
        assert_eq!(raw.refusal(), code);
        assert_eq!(raw.frame(), None);
    }
    let mut raw = RawPeer::connect(address);
    raw.send(&frame(|buffer| {
        let mut hello = hello(2, 1).encode(buffer);
        hello.pop();
        hello
    }));
    assert_eq!(raw.refusal(), RefusalCode::Malformed);
    let mut raw = RawPeer::connect(address);
    raw.send(&frame(|mut buffer| {
        buffer.extend_from_slice(b"quorate\n\x01\x00\xff");
        buffer
    }));
    assert_eq!(raw.refusal(), RefusalCode::Formats);
    node.await_refused(6);
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
    let handshaking = [
        b"GET / HTTP/1.1\r\nHost: somebody else\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        harmed,
        oversized(HANDSHAKE_BYTES_MAX + 1),
        // These stop half-way: the node closes the connection after a timeout.
        oversized(HANDSHAKE_BYTES_MAX),
        good[..good.len() - 1].to_vec(),
        Vec::new(),
    ];
    let after_handshake = [
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
    let count = (handshaking.len() + after_handshake.len()) as u64;
    let mut sent = 0;
    let mut talk = || {
        two.transport.send(vec![(1, numbered(sent))]);
        assert_eq!(one.received(), (2, numbered(sent)));
        sent += 1;
    };
    for junk in handshaking {
        let mut raw = RawPeer::connect(address_1);
        // The node may close the connection while the test still writes.
        let _ = raw.stream.write_all(&junk);
        talk();
        assert_eq!(raw.frame(), None);
        talk();
    }
    for junk in after_handshake {
        let mut raw = RawPeer::connect_as(address_1, &hello(3, 1));
        raw.send(&junk);
        talk();
        assert_eq!(raw.frame(), None);
        talk();
    }
    one.await_refused(count);
    // Cut off in the middle of a message.
    let mut raw = RawPeer::connect_as(address_1, &hello(3, 1));
    raw.send(&frame(|buffer| large(0, 1000).encode(buffer))[..500]);
    drop(raw);
    one.await_refused(count + 1);
    talk();
    assert_eq!(one.transport.counters().connections_refused.load(Relaxed), count + 1);
}

#[test]
fn crowd_of_silent_strangers_keeps_no_peer_out() {
    let options =
        TransportOptions { handshakes_max: 4, handshake_timeout: PATIENCE * 10, ..quick() };
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], &options);
    let mut crowd: Vec<RawPeer> = (0..10).map(|_| RawPeer::connect(address)).collect();
    // The oldest six have been closed; the others are open.
    node.await_refused(6);
    for raw in &mut crowd[..6] {
        assert_eq!(raw.frame(), None);
    }
    let mut peer = RawPeer::connect_as(address, &hello(2, 1));
    node.await_refused(7);
    crowd.extend((0..10).map(|_| RawPeer::connect(address)));
    node.await_refused(16);
    peer.send(&frame(|buffer| numbered(3).encode(buffer)));
    assert_eq!(node.received(), (2, numbered(3)));
}

#[test]
fn later_connection_of_a_peer_replaces_the_former() {
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], &quick());
    let mut former = RawPeer::connect_as(address, &hello(2, 1));
    former.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(node.received(), (2, numbered(1)));
    // The first message is sent together with the hello.
    let mut later = RawPeer::connect(address);
    let both =
        [frame(|buffer| hello(2, 1).encode(buffer)), frame(|buffer| numbered(2).encode(buffer))];
    later.send(&both.concat());
    assert!(matches!(later.answer(), Some(HelloReply::Welcome(_))));
    assert_eq!(former.frame(), None);
    assert_eq!(node.received(), (2, numbered(2)));
    // An empty frame is answered by an empty frame.
    later.send(&frame(|buffer| buffer));
    assert_eq!(later.frame(), Some(Vec::new()));
}
