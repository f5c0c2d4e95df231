//! Two processes with copies of one data directory, at two addresses: one of them is the peer, in both directions.

use super::*;

/// A run of node 2 that listens there.
struct Run {
    local: LocalPeer,
    listener: TcpListener,
    address: SocketAddr,
}

impl Run {
    fn new(boot: u64) -> Run {
        let (listener, address) = listen();
        Run { local: LocalPeer { boot, ..at(2, address) }, listener, address }
    }

    /// Sends a hello to this node, and does not read the answer.
    fn greet(&self, to: SocketAddr) -> RawPeer {
        let mut raw = RawPeer::connect(to);
        raw.send(&frame(|buffer| Hello::new(&self.local, VERSION, 1).encode(buffer)));
        raw
    }

    fn connect(&self, to: SocketAddr) -> RawPeer {
        RawPeer::connect_as(to, &Hello::new(&self.local, VERSION, 1))
    }

    fn accept(&self) -> RawPeer {
        RawPeer::accept_as(&self.listener, &self.local).0
    }
}

/// Answers all pings from a node, until that closes the connection.
fn answer_pings(mut raw: RawPeer) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(bytes) = raw.frame() {
            if bytes.is_empty() && raw.stream.write_all(&frame(|buffer| buffer)).is_err() {
                return;
            }
        }
    })
}

fn refused(raw: &mut RawPeer) -> String {
    match raw.answer() {
        Some(HelloReply::Refused(refusal)) if refusal.code == RefusalCode::Duplicate => {
            refusal.text
        }
        other => panic!("{other:?}"),
    }
}

fn duplicate(node: &Node) -> String {
    loop {
        if let TransportEvent::Duplicate { reason } = node.event() {
            return reason;
        }
    }
}

/// The connection to the one process is up, and the other one connects. Neither got answers then.
#[test]
fn a_copy_is_refused_while_the_process_at_the_recorded_address_answers() {
    let (listener, address) = listen();
    let (member, copy) = (Run::new(1), Run::new(2));
    let one = Node::start(listener, local(1), &[remote(2, member.address)], &quick());
    let pings = answer_pings(member.accept());
    one.await_connected(2);
    // The member itself has not connected yet.
    let text = refused(&mut copy.greet(address));
    let mut both = [member.address, copy.address].map(|address| address.to_string());
    both.sort();
    let both = format!("node 0000000000000002, at {} and at {}, with copies", both[0], both[1]);
    assert!(text.contains(&both), "{text}");
    assert_eq!(duplicate(&one), text);
    let mut to_one = member.connect(address);
    to_one.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(1)));
    one.transport.close();
    pings.join().unwrap();
}

/// The copy comes first. Once the process at the recorded address answers, it is the peer in both directions.
#[test]
fn the_process_at_the_recorded_address_takes_the_place_of_another() {
    let (listener, address) = listen();
    let (member, copy) = (Run::new(1), Run::new(2));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let recorded = silent.local_addr().unwrap();
    drop(silent);
    let one = Node::start(listener, local(1), &[remote(2, recorded)], &quick());
    let mut from_copy = copy.connect(address);
    let mut to_copy = copy.accept();
    one.await_connected(2);
    one.transport.set_peers(vec![remote(2, member.address)]);
    let mut to_member = member.accept();
    assert_eq!(from_copy.frame(), None);
    assert_eq!(to_copy.frame(), None);
    let mut from_member = member.connect(address);
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(PeerMessage::decode(&to_member.frame().unwrap()), Ok(numbered(1)));
    from_member.send(&frame(|buffer| numbered(2).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(2)));
}

/// The copy claims to listen where the member does.
#[test]
fn who_answers_at_the_recorded_address_counts_and_not_who_claims_to_listen_there() {
    let (listener, address) = listen();
    let member = Run::new(1);
    let mut copy = Run::new(2);
    copy.local.address = member.local.address.clone();
    let one = Node::start(listener, local(1), &[remote(2, member.address)], &quick());
    let pings = answer_pings(member.accept());
    one.await_connected(2);
    let text = refused(&mut copy.greet(address));
    assert!(text.contains(&format!("{0} and at {0} (127.0.0.1)", member.address)), "{text}");
    one.transport.close();
    pings.join().unwrap();
}

/// A restart: the connection to the former process is not lost yet, and the next one answers at the same address.
#[test]
fn a_process_that_answers_at_the_recorded_address_is_welcomed_at_once() {
    let (listener, address) = listen();
    let (former, mut later) = (Run::new(1), Run::new(2));
    let patient = TransportOptions { stall_timeout: PATIENCE * 10, ..quick() };
    let one = Node::start(listener, local(1), &[remote(2, former.address)], &patient);
    let to_former = former.accept();
    one.await_connected(2);
    // Its own connection is half open: its machine is gone.
    let _from_former = former.connect(address);
    (later.local.address, later.address) = (former.local.address.clone(), former.address);
    let mut from_later = later.greet(address);
    drop(to_former);
    let _to_later = RawPeer::accept_as(&former.listener, &later.local).0;
    assert!(matches!(from_later.answer(), Some(HelloReply::Welcome(_))));
    from_later.send(&frame(|buffer| numbered(1).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(1)));
}

/// A member that moves is welcomed as soon as it is known that nobody is at its former address.
#[test]
fn a_process_that_has_moved_is_welcomed_though_its_former_address_does_not_answer() {
    let (listener, address) = listen();
    let (silent, moved) = (Run::new(1), Run::new(2));
    let options = TransportOptions { stall_timeout: Duration::from_secs(3), ..quick() };
    let one = Node::start(listener, local(1), &[remote(2, silent.address)], &options);
    // The system accepts connections there, and nobody reads them.
    let _from_moved = moved.connect(address);
    let _to_moved = moved.accept();
    one.await_connected(2);
}

/// A copy is found at the address of a seed, while the member has its connection.
#[test]
fn a_copy_at_a_seed_is_not_taken_for_the_connected_peer() {
    let (listener, address) = listen();
    let (member, copy) = (Run::new(1), Run::new(2));
    let recorded = [remote(2, NOWHERE)];
    let seeds = [copy.address.to_string()];
    let hold = TcpListener::bind("127.0.0.1:0").unwrap();
    drop(hold);
    let one = Node::with_seeds(listener, at(1, address), &recorded, &seeds, &quick());
    let mut from_member = member.connect(address);
    let mut to_member = member.accept();
    one.await_connected(2);
    let mut to_copy = copy.accept();
    assert_eq!(to_copy.frame(), None);
    one.transport.send(vec![(2, numbered(1))]);
    assert_eq!(PeerMessage::decode(&to_member.frame().unwrap()), Ok(numbered(1)));
    from_member.send(&frame(|buffer| numbered(2).encode(buffer)));
    assert_eq!(one.received(), (2, numbered(2)));
}

/// The node has stopped, and its process lives.
#[test]
fn a_stopped_node_hangs_up_and_says_why_it_refuses() {
    let (one, two) = pair(&quick());
    two.transport.order(Some(Box::new(|network| network.stop("the disk failed".to_owned()))));
    let reason = "the peer refused: it has stopped: the disk failed";
    let end = Instant::now() + PATIENCE;
    while one.unreachable() != (2, reason.to_owned(), false) {
        assert!(Instant::now() < end);
    }
    // It dials nobody, whatever its handler says, and wakes for nothing.
    two.transport.set_peers(vec![remote(1, NOWHERE), remote(3, NOWHERE)]);
    one.transport.close();
    while !two.events.is_empty() {
        two.event();
    }
    let turns = || two.transport.shared.turns.load(Relaxed);
    let before = turns();
    assert!(two.events.recv_timeout(Duration::from_millis(500)).is_err());
    assert!(turns() <= before + 2, "{}", turns() - before);
}
