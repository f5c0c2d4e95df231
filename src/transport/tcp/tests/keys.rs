//! Connections with keys, and connections that must be refused.

use super::*;
use crate::security::{Secret, Security};

const ONE: &str = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
const OTHER: &str = "1c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9351";

fn secret(text: &str) -> Security {
    Secret::new(text).unwrap().into()
}

fn with(security: Security) -> TransportOptions {
    TransportOptions { security, ..quick() }
}

/// Node 1 listens, node 2 connects, and the handshake fails. Returns node 2, and why it is refused.
fn handshaking(listens: Security, connects: Security) -> (Node, String, bool) {
    let (listener_1, address_1) = listen();
    let one = Node::start(listener_1, local(1), &[remote(2, "127.0.0.1:1")], &with(listens));
    let two = Node::start(listen().0, local(2), &[remote(1, address_1)], &with(connects));
    let (peer, reason, permanent) = two.unreachable();
    assert_eq!(peer, 1);
    one.await_refused(1);
    assert!(!one.events.try_iter().any(|event| matches!(event, TransportEvent::Received { .. })));
    (two, reason, permanent)
}

/// All kinds of messages, both ways.
fn talk(one: &Node, two: &Node) {
    for (from, to, at, name) in [(one, two, 1, 2), (two, one, 2, 1)] {
        for number in 0..100 {
            from.transport.send(vec![(name, numbered(number))]);
            assert_eq!(to.received(), (at, numbered(number)));
        }
        let long = large(3, MESSAGE_BYTES_MAX - 100);
        from.transport.send(vec![(name, long.clone()), (name, numbered(1))]);
        assert_eq!(to.received(), (at, long));
        assert_eq!(to.received(), (at, numbered(1)));
    }
}

#[test]
fn nodes_with_the_same_secret_talk() {
    let (one, two) = pair(&with(secret(ONE)));
    talk(&one, &two);
}

#[test]
fn a_client_with_the_secret_receives_over_its_connection() {
    super::unlisted::check_messages_of_a_client(&with(secret(ONE)));
}

#[test]
fn a_secret_keeps_strangers_out() {
    let (_, reason, permanent) = handshaking(secret(ONE), secret(OTHER));
    assert!(reason.contains("the shared secret of the two nodes is not the same"), "{reason}");
    assert!(permanent);
    let (_, reason, permanent) = handshaking(secret(ONE), Security::Insecure);
    assert!(reason.contains("with a shared secret, and the one that"), "{reason}");
    assert!(permanent);
    let (_, reason, permanent) = handshaking(Security::Loopback, secret(ONE));
    assert!(reason.contains("without TLS or secret, and the one that"), "{reason}");
    assert!(permanent);
}

#[test]
fn a_stranger_replaces_only_a_connection_from_its_own_address() {
    let options = TransportOptions {
        handshakes_per_address_max: 3,
        handshake_timeout: PATIENCE * 10,
        ..with(secret(ONE))
    };
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[], &options);
    let mut crowd: Vec<RawPeer> = (0..8).map(|_| RawPeer::connect(address)).collect();
    node.await_refused(5);
    for raw in &mut crowd[..5] {
        assert_eq!(raw.frame(), None);
    }
    // The other three stay connected.
    for raw in &mut crowd[5..] {
        raw.stream.set_nonblocking(true).unwrap();
        let still = raw.stream.read(&mut [0]).unwrap_err();
        assert_eq!(still.kind(), io::ErrorKind::WouldBlock);
    }
    assert_eq!(node.transport.counters().connections_refused.load(Relaxed), 5);
}

#[test]
fn a_handshake_with_keys_times_out() {
    let options =
        TransportOptions { handshake_timeout: Duration::from_millis(200), ..with(secret(ONE)) };
    let (listener, address) = listen();
    let node = Node::start(listener, local(1), &[], &options);
    let mut half = RawPeer::connect(address);
    half.send(b"qrnoise\x01\x30");
    assert_eq!(half.frame(), None);
    node.await_refused(1);
}

#[test]
fn a_peer_with_keys_that_never_answers_is_given_up() {
    let options =
        TransportOptions { handshake_timeout: Duration::from_millis(50), ..with(secret(ONE)) };
    let (listener, address) = listen();
    let node = Node::start(listen().0, local(1), &[remote(2, address)], &options);
    let silent = listener.accept().unwrap();
    assert_eq!(node.unreachable().1, "the peer did not answer the handshake");
    drop((silent, listener));
    let two = listen_again(address);
    let _two = Node::start(two, local(2), &[remote(1, "127.0.0.1:1")], &with(secret(ONE)));
    node.await_connected(2);
}

#[test]
fn a_node_that_cannot_be_dialled_can_still_send() {
    let (listener, address) = listen();
    // Nobody listens at the address of node 2.
    let elsewhere = "127.0.0.1:2";
    let one = Node::start(listener, local(1), &[remote(2, elsewhere)], &with(secret(ONE)));
    let two = at(2, elsewhere);
    let two = Node::start(listen().0, two, &[remote(1, address)], &with(secret(ONE)));
    assert_eq!(one.unreachable().1, "connection refused");
    two.await_connected(1);
    talk_once(&one, &two);
    one.transport.send(vec![(2, numbered(1))]);
    talk_once(&one, &two);
    assert!(!two.events.try_iter().any(|event| matches!(event, TransportEvent::Received { .. })));
}

#[test]
fn a_peer_that_sends_too_fast_waits_and_loses_nothing() {
    let options = TransportOptions { received_per_second_max: 1 << 20, ..quick() };
    let (one, two) = pair(&options);
    let start = Instant::now();
    // A second's worth was saved up; one more second is needed for the rest.
    let count = 2 * (1 << 20) / 1024;
    two.transport.send((0..count).map(|number| (1, large(number, 512))).collect());
    for number in 0..count {
        assert_eq!(one.received(), (2, large(number, 512)));
    }
    let took = start.elapsed();
    assert!(took > Duration::from_millis(700), "{took:?}");
    // The connection works again afterwards.
    talk_once(&one, &two);
}

fn talk_once(one: &Node, two: &Node) {
    two.transport.send(vec![(1, numbered(7))]);
    assert_eq!(one.received(), (2, numbered(7)));
}

#[test]
fn a_peer_with_keys_that_reads_slowly_is_given_up() {
    use crate::transport::secure::{SecureChannel, Side};
    let options = TransportOptions {
        stall_timeout: Duration::from_millis(300),
        queue_bytes_max: 16 << 20,
        ..with(secret(ONE))
    };
    let (listener, address) = listen();
    let node = Node::start(listen().0, local(1), &[remote(2, address)], &options);
    // The peer welcomes the node, and reads nothing more.
    let mut stream = listener.accept().unwrap().0;
    let (mut plain, mut out, mut part) = (Vec::new(), Vec::new(), [0; 4096]);
    let mut session =
        SecureChannel::start(&options.security, Side::Listens, &mut out).unwrap().unwrap();
    let mut reader = FrameReader::new(HANDSHAKE_BYTES_MAX);
    while reader.next_frame().unwrap().is_none() {
        let bytes = stream.read(&mut part).unwrap();
        session.receive(&part[..bytes], &mut plain, &mut out).unwrap();
        stream.write_all(&std::mem::take(&mut out)).unwrap();
        reader.push(&std::mem::take(&mut plain));
    }
    session.send(&frame(|buffer| welcome(2).encode(VERSION, buffer)), &mut out).unwrap();
    stream.write_all(&out).unwrap();
    node.await_connected(2);
    for number in 0..12 {
        node.transport.send(vec![(2, large(number, 1 << 20))]);
    }
    let (_, reason, permanent) = node.unreachable();
    assert_eq!((&*reason, permanent), ("the peer neither takes bytes nor answers", false));
}

#[cfg(feature = "tls")]
mod tls {
    use super::super::authority::Authority;
    use super::*;
    use crate::security::Tls;

    /// Nodes 1 and 2, connected with these.
    fn pair_of(one: Security, two: Security) -> (Node, Node) {
        let (listener_1, address_1) = listen();
        let (listener_2, address_2) = listen();
        let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &with(one));
        let two = Node::start(listener_2, local(2), &[remote(1, address_1)], &with(two));
        one.await_connected(2);
        two.await_connected(1);
        (one, two)
    }

    #[test]
    fn a_client_with_a_certificate_receives_over_its_connection() {
        let all = Authority::new().tls("all");
        super::super::unlisted::check_messages_of_a_client(&with(all));
    }

    #[test]
    fn members_of_one_authority_talk() {
        let authority = Authority::new();
        let (one, two) = pair_of(authority.tls("one"), authority.tls("two"));
        talk(&one, &two);
        let all = authority.tls("all");
        let (one, two) = pair_of(all.clone(), all);
        talk(&one, &two);
    }

    #[test]
    fn each_certificate_and_authority_has_its_end() {
        let authority = Authority::new();
        let [ca, certificate, key] = authority.pem("one", 2999);
        let dir = tempfile::tempdir().unwrap();
        let clients = dir.path().join("clients.pem");
        std::fs::write(&clients, Authority::new().pem("any", 2999)[0].as_bytes()).unwrap();
        let tls = Tls::from_pem(ca, certificate, key).unwrap().with_clients(&clients).unwrap();
        let security = Security::from(tls);
        let ends = security.certificates();
        let of: Vec<&str> = ends.iter().map(|expiry| expiry.of).collect();
        assert_eq!(of, ["member", "authority", "clients"]);
        assert_eq!((ends[0].at, ends[0].name.as_str()), (32_472_144_000, "its certificate"));
        assert_eq!(ends[2].name, format!("the clients' authority ({})", clients.display()));
        assert!(secret(ONE).certificates().is_empty());
    }

    #[test]
    fn certificates_keep_strangers_out() {
        let (authority, other) = (Authority::new(), Authority::new());
        let (_, reason, permanent) = handshaking(authority.tls("one"), other.tls("two"));
        assert!(
            reason.contains("TLS: the certificate is not one of this cluster's authority"),
            "{reason}"
        );
        assert!(permanent);
        // Only the node that listens refuses: the other one trusts both authorities.
        let [own, certificate, key] = other.pem("two", 2999);
        let both = format!("{own}{}", authority.0.pem());
        let of_other = Tls::from_pem(both, certificate, key).unwrap().into();
        let (_, reason, permanent) = handshaking(authority.tls("one"), of_other);
        assert!(reason.contains("TLS: the other end ended the connection with"), "{reason}");
        assert!(permanent);
        let (_, reason, _) = handshaking(authority.tls("one"), Security::Insecure);
        assert!(reason.contains("speaks with TLS, and the one that connects without"), "{reason}");
        let (_, reason, _) = handshaking(authority.tls("one"), secret(ONE));
        assert!(reason.contains("in an unauthenticated answer"), "{reason}");
        assert!(reason.contains("with TLS, and the one that connects with a shared"), "{reason}");
        let (_, reason, _) = handshaking(secret(ONE), authority.tls("one"));
        assert!(reason.contains("a shared secret, and the one that connects with TLS"), "{reason}");
        let (_, reason, _) = handshaking(Security::Loopback, authority.tls("one"));
        assert!(reason.contains("without TLS or secret, and the one"), "{reason}");
    }

    #[test]
    fn an_expired_certificate_is_refused_by_either_end_and_at_the_start() {
        let authority = Authority::new();
        let [own, certificate, key] = authority.pem("old", 2001);
        let expired = || Security::from(Tls::unverified(&own, &certificate, &key));
        let (_, reason, permanent) = handshaking(authority.tls("one"), expired());
        assert!(
            reason.contains("the other end ended the connection with CertificateExpired"),
            "{reason}"
        );
        assert!(permanent);
        let (listener, address) = listen();
        let _old = Node::start(listener, local(1), &[], &with(expired()));
        let two = [remote(1, address)];
        let two = Node::start(listen().0, local(2), &two, &with(authority.tls("two")));
        let (_, reason, permanent) = two.unreachable();
        assert!(reason.contains("certificate expired"), "{reason}");
        assert!(permanent);
        let refused = Tls::from_pem(&own, &certificate, &key).unwrap_err().to_string();
        assert!(refused.contains("the certificate of this member"), "{refused}");
        assert!(refused.contains("expired"), "{refused}");
    }

    #[test]
    fn invalid_certificates_and_keys_are_refused_by_name() {
        let authority = Authority::new();
        let [own, certificate, key] = authority.pem("one", 2999);
        let [_, _, other_key] = authority.pem("two", 2999);
        let other = Authority::new().0.pem();
        for (pem, reason) in [
            (["", &certificate, &key], "the PEM of the authority has no certificate"),
            ([&own, "", &key], "the PEM of this member has no certificate"),
            ([&own, &certificate, "x"], "the key of this member"),
            ([&own, &certificate, &other_key], "keys may not be consistent"),
            ([&other, &certificate, &key], "not one of this cluster's authority"),
        ] {
            let error = Tls::from_pem(pem[0], pem[1], pem[2]).unwrap_err().to_string();
            assert!(error.contains("setting tls") && error.contains(reason), "{error}");
        }
        let missing = Tls::from_pem_files("/nowhere/ca.pem", "b", "c").unwrap_err().to_string();
        assert!(missing.contains("/nowhere/ca.pem"), "{missing}");
    }

    #[test]
    fn a_node_id_stays_with_its_certificate() {
        let authority = Authority::new();
        let (listener, address) = listen();
        let peers = [remote(2, "127.0.0.1:1"), remote(3, "127.0.0.1:1")];
        let one = Node::start(listener, local(1), &peers, &with(authority.tls("one")));
        let reach = |id: NodeId, name| {
            let peers = [remote(1, address)];
            Node::start(listen().0, local(id), &peers, &with(authority.tls(name)))
        };
        let two = reach(2, "two");
        two.await_connected(1);
        // The member with another id claims to be node 2.
        let liar = reach(2, "three");
        let (_, reason, permanent) = liar.unreachable();
        assert!(reason.contains("CN=three") && reason.contains("CN=two"), "{reason}");
        assert!(permanent);
        two.transport.send(vec![(1, numbered(4))]);
        assert_eq!(one.received(), (2, numbered(4)));
        drop(two);
        // Accepted: a renewed certificate of the same name, and the other member under its own id.
        reach(2, "two").await_connected(1);
        reach(3, "three").await_connected(1);
    }

    #[test]
    fn the_node_that_answers_must_have_the_certificate_of_its_id() {
        let authority = Authority::new();
        let (one, address_1) = listen();
        let one =
            Node::start(one, local(1), &[remote(2, "127.0.0.1:1")], &with(authority.tls("one")));
        let (listener_2, address_2) = listen();
        let two =
            Node::start(listener_2, local(2), &[remote(1, address_1)], &with(authority.tls("two")));
        two.await_connected(1);
        drop(two);
        let impostor = with(authority.tls("three"));
        let _impostor =
            Node::start(listen_again(address_2), local(2), &[remote(1, "127.0.0.1:1")], &impostor);
        one.transport.set_peers(vec![remote(2, address_2)]);
        loop {
            let (peer, reason, permanent) = one.unreachable();
            if permanent {
                assert!(peer == 2 && reason.contains("CN=three"), "{reason}");
                break;
            }
        }
    }

    #[test]
    fn renewed_files_are_used_and_bad_ones_are_not() {
        let authority = Authority::new();
        let dir = tempfile::tempdir().unwrap();
        let files = ["ca.pem", "node.pem", "node.key"].map(|name| dir.path().join(name));
        let write = |pem: [String; 3]| {
            for (file, pem) in files.iter().zip(pem) {
                std::fs::write(file, pem).unwrap();
            }
        };
        write(authority.pem("one", 2999));
        let security: Security =
            Tls::from_pem_files(&files[0], &files[1], &files[2]).unwrap().into();
        let options = TransportOptions {
            reload_interval: Duration::from_millis(5),
            retry_max: Duration::from_millis(5),
            ..with(security)
        };
        let (listener, address) = listen();
        let peers = [remote(2, "127.0.0.1:1"), remote(3, "127.0.0.1:1"), remote(4, "127.0.0.1:1")];
        let one = Node::start(listener, local(1), &peers, &options);
        let reach = |id, security| {
            let options =
                TransportOptions { retry_max: Duration::from_millis(5), ..with(security) };
            Node::start(listen().0, local(id), &[remote(1, address)], &options)
        };
        let two = reach(2, authority.tls("two"));
        two.await_connected(1);
        // Unusable files change nothing: a certificate that does not match the key, and junk.
        let [_, certificate, _] = authority.pem("one", 2999);
        for bad in [&certificate, "junk"] {
            std::fs::write(&files[1], bad).unwrap();
            one.await_turns(20);
            let three = reach(3, authority.tls("three"));
            three.await_connected(1);
        }
        // Both authorities: connections stay.
        let later = Authority::new();
        let [new, certificate, key] = later.pem("one", 2999);
        let both = format!("{}{new}", authority.0.pem());
        write([both, certificate.clone(), key.clone()]);
        let four = reach(4, later.both(&authority, "four"));
        four.await_connected(1);
        two.transport.send(vec![(1, numbered(9))]);
        assert_eq!(one.received(), (2, numbered(9)));
        // The new one alone: the others' connections are closed, and refused from now on.
        write([new, certificate, key]);
        let (peer, reason, _) = two.unreachable();
        assert_eq!((peer, &*reason), (1, "the peer closed the connection"));
        four.transport.send(vec![(1, numbered(10))]);
        assert_eq!(one.received(), (4, numbered(10)));
        let (_, reason, _) = reach(3, authority.tls("three")).unreachable();
        assert!(reason.contains("TLS"), "{reason}");
    }

    #[test]
    fn a_stranger_with_tls_costs_little_memory() {
        let authority = Authority::new();
        let (listener, address) = listen();
        let node = Node::start(listener, local(1), &[], &with(authority.tls("one")));
        // Records of one handshake message that declares the greatest possible length.
        let mut raw = RawPeer::connect(address);
        let mut sent = 0;
        let record = [&[0x16, 3, 1, 0x10, 0, 1, 0, 0xff, 0xff][..], &[0; 0x1000 - 4]].concat();
        while raw.stream.write_all(&record).is_ok() {
            sent += record.len();
            assert!(sent < 64 << 20);
        }
        node.await_refused(1);
        let taken = node.transport.counters().bytes_received.load(Relaxed);
        assert!(taken <= 2 * (32 << 10), "{taken}");
    }
}
