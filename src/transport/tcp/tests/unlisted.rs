//! Unlisted peers: nodes that connect and are not in the list of members.

use super::*;

pub(super) fn hello_of(local: &LocalPeer, to: NodeId) -> Hello {
    Hello::new(local, VERSION, to)
}

/// The most unlisted peers at a time.
const FEW: usize = 64;

fn brief() -> TransportOptions {
    TransportOptions { unlisted_timeout: Duration::from_millis(300), ..quick() }
}

#[test]
fn an_unlisted_peer_sends_and_receives() {
    let (listener_1, address_1) = listen();
    let (listener_9, address_9) = listen();
    let one = Node::start(listener_1, local(1), &[], &quick());
    let nine = Node::start(listener_9, at(9, address_9), &[remote(1, address_1)], &quick());
    nine.await_connected(1);
    assert_eq!(one.await_connected(9), VERSION);
    nine.transport.send(vec![(1, numbered(4))]);
    assert_eq!(one.received(), (9, numbered(4)));
    one.transport.send(vec![(9, numbered(5))]);
    assert_eq!(nine.received(), (1, numbered(5)));
    nine.transport.close();
    assert_eq!(one.unreachable(), (9, "the peer closed the connection".into(), false));
}

#[test]
fn an_unlisted_peer_that_has_left_is_forgotten() {
    let (listener_1, address_1) = listen();
    let (listener_9, address_9) = listen();
    let one = Node::start(listener_1, local(1), &[], &brief());
    let nine = at(9, address_9);
    let to_one = RawPeer::connect_as(address_1, &hello_of(&nine, 1));
    let (from_one, hello) = RawPeer::accept_as(&listener_9, &nine);
    assert_eq!((hello.from, hello.to), (1, 9));
    one.await_connected(9);
    drop((to_one, from_one));
    assert_eq!(one.unreachable(), (9, "the peer closed the connection".into(), false));
    // It is dialled until it is forgotten; nothing wakes the node after that.
    drop(listener_9);
    let end = Instant::now() + PATIENCE;
    loop {
        let before = one.transport.shared.turns.load(Relaxed);
        let quiet = one.events.recv_timeout(brief().unlisted_timeout * 2);
        if quiet.is_err() && one.transport.shared.turns.load(Relaxed) == before {
            break;
        }
        assert!(Instant::now() < end, "still busy");
    }
    // It may connect again.
    let listener_9 = listen_again(address_9);
    let _to_one = RawPeer::connect_as(address_1, &hello_of(&nine, 1));
    let _from_one = RawPeer::accept_as(&listener_9, &nine);
    one.await_connected(9);
}

#[test]
fn an_unlisted_peer_that_is_never_reached_is_forgotten_once_it_is_silent() {
    let (listener_1, address_1) = listen();
    let one = Node::start(listener_1, local(1), &[], &brief());
    let mut to_one = RawPeer::connect_as(address_1, &hello(9, 1));
    assert_eq!(one.unreachable(), (9, "connection refused".into(), false));
    assert_eq!(to_one.frame(), None);
    // It is reported once only. That its connection has ended is another event.
    let is_report = |event| matches!(event, TransportEvent::Unreachable { .. });
    assert!(!one.events.try_iter().any(is_report));
}

#[test]
fn unlisted_peers_are_limited() {
    let (listener, address) = listen();
    let options = TransportOptions { unlisted_max: FEW, ..quick() };
    let one = Node::start(listener, local(1), &[remote(2, "127.0.0.1:1")], &options);
    let max = FEW as u64;
    let mut unlisted: Vec<RawPeer> =
        (0..max).map(|node| RawPeer::connect_as(address, &hello(100 + node, 1))).collect();
    let mut late = RawPeer::connect(address);
    late.send(&frame(|buffer| hello(99, 1).encode(buffer)));
    assert_eq!(late.refusal(), RefusalCode::UnknownPeer);
    // Members, and unlisted peers that are connected already, are let in.
    let _member = RawPeer::connect_as(address, &hello(2, 1));
    unlisted[0] = RawPeer::connect_as(address, &hello(100, 1));
    unlisted[0].send(&frame(|buffer| numbered(6).encode(buffer)));
    assert_eq!(one.received(), (100, numbered(6)));
}

#[test]
fn silent_unlisted_peers_make_room() {
    let (listener, address) = listen();
    let options = TransportOptions { unlisted_max: FEW, ..brief() };
    let _one = Node::start(listener, local(1), &[], &options);
    let (listener_9, address_9) = listen();
    let max = FEW as u64;
    // All are reached, and none sends anything.
    let nodes: Vec<LocalPeer> = (100..100 + max).map(|node| at(node, address_9)).collect();
    let mut connections = Vec::new();
    for node in &nodes {
        connections.push(RawPeer::connect_as(address, &hello_of(node, 1)));
        connections.push(RawPeer::accept_as(&listener_9, node).0);
    }
    assert_eq!(connections[0].frame(), None);
    let _late = RawPeer::connect_as(address, &hello_of(&at(99, address_9), 1));
}

#[test]
fn nodes_without_a_cluster_connect_to_any_but_send_no_members_messages() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let blank = LocalPeer { cluster: 0, ..at(1, address_1) };
    let one = Node::start(listener_1, blank, &[], &quick());
    let two = Node::start(listener_2, at(2, address_2), &[remote(1, address_1)], &quick());
    two.await_connected(1);
    one.await_connected(2);
    let foreign = |node: &Node, count: u64| {
        let counter = &node.transport.counters().messages_foreign;
        let end = Instant::now() + PATIENCE;
        while counter.load(Relaxed) < count {
            assert!(Instant::now() < end, "{:?}", node.transport.counters());
            std::thread::yield_now();
        }
        assert_eq!(counter.load(Relaxed), count);
    };
    // Messages that are for members only are dropped in both directions.
    two.transport.send(vec![(1, numbered(1))]);
    one.transport.send(vec![(2, numbered(2))]);
    foreign(&one, 1);
    foreign(&two, 1);
    one.transport.set_cluster(CLUSTER);
    // The connection that it has made is replaced; the one made by the other node stays.
    one.await_connected(2);
    one.transport.send(vec![(2, numbered(3))]);
    two.transport.send(vec![(1, numbered(4))]);
    assert_eq!(two.received(), (1, numbered(3)));
    assert_eq!(one.received(), (2, numbered(4)));
    let reports = two.events.try_iter().chain(one.events.try_iter());
    let lost = reports.filter(|event| matches!(event, TransportEvent::Unreachable { .. }));
    assert_eq!(lost.count(), 0);
}

#[test]
fn two_nodes_that_found_a_cluster_send_each_other_members_messages() {
    let (listener_1, address_1) = listen();
    let (listener_2, address_2) = listen();
    let blank = |node, address| LocalPeer { cluster: 0, ..at(node, address) };
    let seeds = [address_1.to_string(), address_2.to_string()];
    let one = Node::with_seeds(listener_1, blank(1, address_1), &[], &seeds, &quick());
    let two = Node::with_seeds(listener_2, blank(2, address_2), &[], &seeds, &quick());
    one.await_connected(2);
    two.await_connected(1);
    for node in [&one, &two] {
        node.transport.set_cluster(CLUSTER);
    }
    for (from, to, name, at) in [(&one, &two, 2, 1), (&two, &one, 1, 2)] {
        let end = Instant::now() + PATIENCE;
        loop {
            from.transport.send(vec![(name, numbered(9))]);
            let event = to.events.recv_timeout(Duration::from_millis(20));
            if matches!(event, Ok(TransportEvent::Received { from, .. }) if from == at) {
                break;
            }
            assert!(
                Instant::now() < end,
                "{:?} {:?}",
                from.transport.counters(),
                to.transport.counters()
            );
        }
    }
}

#[test]
fn a_node_that_gets_a_cluster_disconnects_nodes_of_others() {
    let (listener_1, address_1) = listen();
    let (listener_9, address_9) = listen();
    let blank = LocalPeer { cluster: 0, ..at(1, address_1) };
    let one = Node::start(listener_1, blank, &[], &quick());
    let other = LocalPeer { cluster: 0xBAD, ..at(9, address_9) };
    let mut to_one = RawPeer::connect_as(address_1, &hello_of(&other, 1));
    let (mut from_one, hello) = RawPeer::accept_as(&listener_9, &other);
    assert_eq!(hello.cluster, 0);
    one.transport.set_cluster(CLUSTER);
    assert_eq!(to_one.frame(), None);
    assert_eq!(from_one.frame(), None);
    // Its next hello names its cluster, and it accepts no answer of another cluster.
    let (_from_one, hello) = RawPeer::accept_as(&listener_9, &other);
    assert_eq!(hello.cluster, CLUSTER);
    let (peer, reason, permanent) = one.unreachable();
    assert_eq!((peer, permanent), (9, true));
    assert!(reason.contains("another cluster (00000000000000c1"), "{reason}");
    let mut to_one = RawPeer::connect(address_1);
    to_one.send(&frame(|buffer| hello_of(&other, 1).encode(buffer)));
    assert_eq!(to_one.refusal(), RefusalCode::Cluster);
}

#[test]
fn a_member_that_has_moved_is_dialled_at_the_address_of_its_hello() {
    let (listener_1, address_1) = listen();
    let (gone, address_gone) = listen();
    let (listener_2, address_2) = listen();
    let (listener_3, address_3) = listen();
    drop(gone);
    let patient =
        TransportOptions { retry_min: PATIENCE * 10, retry_max: PATIENCE * 10, ..quick() };
    let list = [remote(2, address_gone)];
    let one = Node::start(listener_1, local(1), &list, &patient);
    assert_eq!(one.unreachable(), (2, "connection refused".into(), false));
    let moved = at(2, address_2);
    let _to_one = RawPeer::connect_as(address_1, &hello_of(&moved, 1));
    let (mut from_one, hello) = RawPeer::accept_as(&listener_2, &moved);
    assert_eq!(hello.to, 2);
    one.await_connected(2);
    // The same list changes nothing; another address in it does.
    one.transport.set_peers(list.to_vec());
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(PeerMessage::decode(&from_one.frame().unwrap()), Ok(numbered(1)));
    one.transport.set_peers(vec![remote(2, address_3)]);
    let _from_one = RawPeer::accept_as(&listener_3, &at(2, address_3));
    one.await_connected(2);
}

#[test]
fn an_unlisted_peer_stays_connected_when_it_becomes_a_member() {
    let (listener_1, address_1) = listen();
    let (listener_9, address_9) = listen();
    let one = Node::start(listener_1, local(1), &[], &brief());
    let nine = at(9, address_9);
    let mut to_one = RawPeer::connect_as(address_1, &hello_of(&nine, 1));
    let (mut from_one, _) = RawPeer::accept_as(&listener_9, &nine);
    one.await_connected(9);
    one.transport.set_peers(vec![remote(9, address_9)]);
    // It is not forgotten, although it is silent.
    let quiet = one.events.recv_timeout(brief().unlisted_timeout * 3);
    assert!(quiet.is_err(), "{quiet:?}");
    to_one.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(one.received(), (9, numbered(1)));
    one.transport.send(vec![(9, numbered(2))]);
    assert_eq!(PeerMessage::decode(&from_one.frame().unwrap()), Ok(numbered(2)));
}

/// A client, which has no address and does not listen.
fn client_peer(number: u64) -> LocalPeer {
    LocalPeer { address: String::new(), cluster: 0, node: client_id(number), ..local(number) }
}

pub(super) fn client(number: u64, seeds: &[String], options: &TransportOptions) -> Node {
    let (events_tx, events) = unbounded();
    let (local, seeds) = (client_peer(number), seeds.to_vec());
    let transport =
        Transport::start(None, local, Vec::new(), seeds, options.clone(), move |event| {
            events_tx.send(event).is_ok()
        })
        .unwrap();
    Node { transport, events }
}

/// A message that a client may send and receive, of about this length.
pub(super) fn let_go(number: u64, bytes: usize) -> PeerMessage {
    PeerMessage::LetGo { attachment: number, reason: "x".repeat(bytes), redirect: None }
}

/// Checks the messages between a node and a client, with the keys of these options.
pub(super) fn check_messages_of_a_client(options: &TransportOptions) {
    // The cryptography of a debug build is so slow on a busy machine that the peer could count as dead.
    let options = &TransportOptions { stall_timeout: PATIENCE * 10, ..options.clone() };
    let (listener, address) = listen();
    let one = Node::start(listener, local(1), &[], options);
    let nine = client(9, &[address.to_string()], options);
    assert_eq!(nine.await_connected(1), VERSION);
    assert_eq!(one.await_connected(client_id(9)), VERSION);
    // Large and small messages, more than a socket takes, in both directions at the same time.
    let sizes = |number: u64| if number.is_multiple_of(10) { 300_000 } else { 10 };
    for number in 0..150 {
        one.transport.send(vec![(client_id(9), let_go(number, sizes(number)))]);
        nine.transport.send(vec![(1, let_go(number, sizes(number + 1)))]);
    }
    for number in 0..150 {
        assert_eq!(nine.received(), (1, let_go(number, sizes(number))));
        assert_eq!(one.received(), (client_id(9), let_go(number, sizes(number + 1))));
    }
    // Messages for members only are dropped.
    one.transport.send(vec![(client_id(9), numbered(1)), (client_id(9), let_go(1000, 1))]);
    nine.transport.send(vec![(1, numbered(1)), (1, let_go(1000, 1))]);
    assert_eq!(
        (nine.received(), one.received()),
        ((1, let_go(1000, 1)), (client_id(9), let_go(1000, 1)))
    );
    // The client learns that the node is a member, and its address, and stays connected.
    nine.transport.set_peers(vec![remote(1, address)]);
    one.transport.send(vec![(client_id(9), let_go(1001, 1))]);
    assert_eq!(nine.received(), (1, let_go(1001, 1)));
    nine.transport.close();
    assert_eq!(one.unreachable(), (client_id(9), "its connection has ended".into(), false));
    one.transport.close();
}

#[test]
fn a_client_receives_over_the_connection_that_it_has_made() {
    check_messages_of_a_client(&quick());
}

#[test]
fn a_client_is_connected_again_when_its_member_is_back() {
    let (listener, address) = listen();
    let one = Node::start(listener, local(1), &[], &quick());
    let nine = client(9, &[address.to_string()], &quick());
    nine.await_connected(1);
    nine.transport.set_peers(vec![remote(1, address)]);
    one.transport.close();
    assert_eq!(nine.unreachable().0, 1);
    let one = Node::start(listen_again(address), local(1), &[], &quick());
    nine.await_connected(1);
    one.await_connected(client_id(9));
    one.transport.send(vec![(client_id(9), let_go(1, 1))]);
    assert_eq!(nine.received(), (1, let_go(1, 1)));
}

#[test]
fn a_client_of_a_cluster_stays_with_its_members_and_is_refused_by_others() {
    let ((listener_1, address_1), (listener_2, address_2)) = (listen(), listen());
    let one = Node::start(listener_1, local(1), &[], &quick());
    let other = LocalPeer { cluster: 0xBAD, ..local(2) };
    let _two = Node::start(listener_2, other, &[], &quick());
    let nine = client(9, &[address_1.to_string(), address_2.to_string()], &quick());
    let mut found = [nine.event(), nine.event()].map(|event| match event {
        TransportEvent::Connected { peer, .. } => peer,
        event => panic!("{event:?}"),
    });
    found.sort_unstable();
    assert_eq!(found, [1, 2]);
    one.await_connected(client_id(9));
    nine.transport.set_cluster(CLUSTER);
    let (peer, reason, permanent) = nine.unreachable();
    assert_eq!((peer, permanent), (2, true));
    assert!(reason.starts_with("the peer refused: this node belongs to another"), "{reason}");
    // The connection to the first stays: there is no other event about that node.
    one.transport.send(vec![(client_id(9), let_go(1, 1))]);
    loop {
        match nine.event() {
            // The address is tried again.
            TransportEvent::SeedUnreachable { address, reason, permanent: true } => {
                assert_eq!(address, address_2.to_string());
                assert!(reason.contains("another cluster"), "{reason}");
            }
            TransportEvent::Received { from, message } => {
                assert_eq!((from, message), (1, let_go(1, 1)));
                break;
            }
            event => panic!("{event:?}"),
        }
    }
    assert!(one.events.try_recv().is_err());
    // A client may not send messages for members only, even if it is of their cluster.
    let mut eight = RawPeer::connect(address_1);
    let hello = hello_of(&LocalPeer { cluster: CLUSTER, ..client_peer(8) }, 1);
    eight.send(&frame(|buffer| hello.encode(buffer)));
    assert!(matches!(eight.answer(), Some(HelloReply::Welcome(_))));
    one.await_connected(client_id(8));
    for message in [numbered(1), let_go(2, 1)] {
        eight.send(&frame(|buffer| message.encode(buffer)));
    }
    assert_eq!(one.received(), (client_id(8), let_go(2, 1)));
}

#[test]
fn a_client_that_reads_nothing_is_given_up() {
    let (listener, address) = listen();
    let options = TransportOptions { stall_timeout: Duration::from_millis(200), ..quick() };
    let one = Node::start(listener, local(1), &[], &options);
    let mut nine = RawPeer::connect_as(address, &hello_of(&client_peer(9), 1));
    one.await_connected(client_id(9));
    nine.send(&frame(|buffer| let_go(1, 1).encode(buffer)));
    assert_eq!(one.received(), (client_id(9), let_go(1, 1)));
    for number in 0..100 {
        one.transport.send(vec![(client_id(9), let_go(number, 500_000))]);
    }
    assert_eq!(one.unreachable(), (client_id(9), "its connection has ended".into(), false));
}

/// The client connects before the node learns that a member has the same id. Messages for the member
/// must then go to the member's address, and not to the client.
#[test]
fn a_client_with_a_members_id_receives_nothing_for_the_member() {
    let (listener_1, address_1) = listen();
    let (listener_9, address_9) = listen();
    let one = Node::start(listener_1, local(1), &[], &quick());
    let mut other = RawPeer::connect_as(address_1, &hello_of(&client_peer(9), 1));
    other.send(&frame(|buffer| let_go(1, 1).encode(buffer)));
    one.await_connected(client_id(9));
    assert_eq!(one.received(), (client_id(9), let_go(1, 1)));
    one.transport.set_peers(vec![remote(client_id(9), address_9)]);
    assert_eq!(other.frame(), None);
    let (mut member, _) = RawPeer::accept_as(&listener_9, &at(client_id(9), address_9));
    one.await_connected(client_id(9));
    one.transport.send(vec![(client_id(9), numbered(2))]);
    assert_eq!(PeerMessage::decode(&member.frame().unwrap()), Ok(numbered(2)));
}

#[test]
fn a_client_that_sends_nothing_is_forgotten() {
    let (listener, address) = listen();
    let one = Node::start(listener, local(1), &[], &brief());
    let mut nine = RawPeer::connect_as(address, &hello_of(&client_peer(9), 1));
    one.await_connected(client_id(9));
    assert_eq!(one.unreachable(), (client_id(9), "its connection has ended".into(), false));
    assert_eq!(nine.frame(), None);
}

#[test]
fn a_member_without_an_address_is_refused() {
    let (listener, address) = listen();
    let _one = Node::start(listener, local(1), &[remote(2, NOWHERE)], &quick());
    let mut two = RawPeer::connect(address);
    let hello = hello_of(&LocalPeer { address: String::new(), ..local(2) }, 1);
    two.send(&frame(|buffer| hello.encode(buffer)));
    assert_eq!(two.refusal(), RefusalCode::UnknownPeer);
}

/// Members name clients to all who ask. Whoever had a client's credential took another's id, at a member that had not
/// seen it.
#[test]
fn a_client_takes_no_other_clients_id() {
    let (listener, address) = listen();
    let _one = Node::start(listener, local(1), &[], &quick());
    let mut other = RawPeer::connect(address);
    let hello = hello_of(&LocalPeer { boot: 4711, ..client_peer(9) }, 1);
    other.send(&frame(|buffer| hello.encode(buffer)));
    assert_eq!(other.refusal(), RefusalCode::Identity);
}
