use crate::golden::Golden;
use crate::node::bootstrap::*;

const S: Time = Time::from_secs(1);

fn addresses(all: &[&str]) -> Vec<String> {
    all.iter().map(|address| (*address).to_owned()).collect()
}

fn blank(node: NodeId, address: &str, list: &[&str]) -> Founding {
    let me = Member::new(node, address);
    Founding::new(me, &addresses(list), 0, None, Promise::default(), node, Time::ZERO)
}

fn announcement(node: NodeId, address: &str, list: &[&str]) -> Announcement {
    Announcement {
        member: Member::new(node, address),
        list: normalised(list),
        cluster: 0,
        promise: Promise::default(),
    }
}

fn receive(founding: &mut Founding, announcement: Announcement) {
    founding.connected(announcement.member.node);
    founding.take(announcement.member.node, announcement);
}

fn genesis(cluster: u64, members: &[(NodeId, &str)]) -> Genesis {
    let member = |(node, address): &(NodeId, &str)| Member::new(*node, *address);
    Genesis { cluster, members: members.iter().map(member).collect() }
}

fn problem(founding: &Founding) -> String {
    founding.problem().unwrap()
}

#[test]
fn a_list_of_one_founds_at_once() {
    let mut alone = blank(7, "a:1", &["A:1"]);
    let mut writes = 0;
    let outcome = loop {
        let todo = alone.step(Time::ZERO);
        if let Some(outcome) = todo.outcome {
            break outcome;
        }
        assert!(todo.write.is_some());
        assert!(alone.step(Time::ZERO).write.is_none(), "it waits for its disk");
        alone.written();
        writes += 1;
    };
    assert_eq!(writes, 2);
    let BootstrapOutcome::Found(genesis) = outcome else { panic!("{outcome:?}") };
    assert_eq!(genesis.members, [Member::new(7, "a:1")]);
    assert_eq!(alone.problem(), None);
    let todo = alone.step(100 * S);
    assert!(todo.messages.is_empty() && todo.outcome.is_none(), "it is over");
}

#[test]
fn a_hindered_node_takes_no_part_until_it_is_hindered_no_more() {
    let hindrance =
        |forbids_joining| Some(Hindrance { reason: "a:1 is not mine".to_owned(), forbids_joining });
    let mut alone = blank(7, "a:1", &["a:1"]);
    alone.hinder(hindrance(false));
    assert!(alone.step(Time::ZERO).write.is_none());
    assert_eq!(problem(&alone), "no cluster yet: a:1 is not mine");
    // It may join a cluster, unless that is forbidden too.
    let of_cluster = Announcement { cluster: 5, ..announcement(2, "b:1", &[]) };
    for forbids_joining in [true, false] {
        alone.hinder(hindrance(forbids_joining));
        receive(&mut alone, of_cluster.clone());
        let outcome = alone.step(S).outcome;
        assert_eq!(outcome.is_some(), !forbids_joining, "{outcome:?}");
    }

    let mut alone = blank(7, "a:1", &["a:1"]);
    alone.hinder(hindrance(true));
    assert!(alone.step(Time::ZERO).write.is_none());
    alone.hinder(None);
    for _ in 0..2 {
        assert!(alone.step(Time::ZERO).write.is_some());
        alone.written();
    }
    // Its pledge stays: with more members, another node may have started from it.
    alone.hinder(hindrance(true));
    let outcome = alone.step(Time::ZERO).outcome;
    assert!(matches!(outcome, Some(BootstrapOutcome::Found(_))), "{outcome:?}");
}

#[test]
fn nothing_is_sent_before_it_is_durable() {
    let list = ["a:1", "b:1"];
    let mut lowest = blank(1, "a:1", &list);
    receive(&mut lowest, announcement(2, "b:1", &list));
    let todo = lowest.step(Time::ZERO);
    let ballot = Ballot { round: 1, proposer: 1 };
    let promise = todo.write.unwrap();
    assert_eq!(promise, Promise { ballot, pledge: None });
    assert_eq!(todo.messages, [(2, announcement(1, "a:1", &list))]);
    let again = lowest.step(S);
    assert_eq!(
        again.messages,
        [(2, announcement(1, "a:1", &list))],
        "once a second, as it is on disk"
    );
    assert_eq!(again.wake_at, 2 * S);
    lowest.written();
    let sent = lowest.step(S).messages;
    assert_eq!(sent, [(2, Announcement { promise, ..announcement(1, "a:1", &list) })]);
    assert!(lowest.step(S).messages.is_empty(), "it has not changed");
    lowest.lost(2);
    lowest.connected(2);
    assert_eq!(lowest.step(S).messages, sent, "it may have been lost with the connection");
}

#[test]
fn lists_that_differ_by_order_and_case_are_the_same() {
    let mut one = blank(1, "a:1", &["b:1", "A:1", "b:1 "]);
    receive(&mut one, announcement(2, "B:1", &["a:1", "B:1"]));
    assert!(one.step(Time::ZERO).write.is_some());
}

#[test]
fn lists_that_differ_are_both_named() {
    let mut one = blank(1, "a:1", &["a:1", "b:1"]);
    receive(&mut one, announcement(2, "b:1", &["b:1", "c:1"]));
    assert!(one.step(Time::ZERO).write.is_none());
    assert_eq!(
        problem(&one),
        "no cluster yet: b:1 was given the peers b:1, c:1, and this instance, a:1, was given \
         a:1, b:1: give all instances the same list"
    );
    receive(&mut one, announcement(2, "b:1", &["a:1", "b:1"]));
    assert!(one.step(Time::ZERO).write.is_some(), "it was started again with the right one");
}

#[test]
fn a_node_that_only_joins_may_have_another_list() {
    let mut one = blank(1, "a:1", &["a:1"]);
    receive(&mut one, announcement(9, "z:1", &["a:1", "b:1"]));
    assert!(one.step(Time::ZERO).write.is_some());
    let mut joins = blank(1, "z:1", &["a:1"]);
    receive(&mut joins, announcement(2, "a:1", &["a:1"]));
    assert!(joins.step(Time::ZERO).write.is_none());
    assert_eq!(
        problem(&joins),
        "no cluster yet: this instance, z:1, is not one of the peers that it was given, so it \
         founds none but waits for theirs; not reached: "
    );
}

/// The addresses of the name, for a node that may found or only join.
fn discovered(addresses_found: &[&str], founds: bool) -> Discovered {
    let (name, addresses) = ("all:1".to_owned(), addresses(addresses_found));
    Discovered { name, expected: 2, founds, addresses }
}

#[test]
fn the_addresses_of_a_name_are_the_list_once_there_are_enough() {
    let mut one = blank(1, "a:1", &["all:1"]);
    receive(&mut one, announcement(2, "b:1", &["a:1", "b:1"]));
    for (shown, reason) in [
        (&[][..], "the addresses of all:1 are not known yet, or change"),
        (&["a:1"], "2 instances are expected, and all:1 has 1 addresses (a:1)"),
        (&["b:1", "c:1"], "all:1 does not have the address of this instance, a:1, but b:1, c:1"),
        (
            &["a:1", "b:1", "c:1"],
            "all:1 does not stand for the same instances everywhere: b:1 sees",
        ),
    ] {
        one.discovered(discovered(shown, true));
        assert!(one.step(Time::ZERO).write.is_none());
        assert!(problem(&one).contains(reason), "{}", problem(&one));
    }
    // Its directory is damaged: it may have promised more than it can read.
    one.discovered(discovered(&["b:1", "a:1"], false));
    assert!(one.step(Time::ZERO).write.is_none());
    assert!(problem(&one).contains("this instance only joins a cluster"), "{}", problem(&one));
    one.discovered(discovered(&["b:1", "a:1"], true));
    assert!(one.step(Time::ZERO).write.is_some());
}

/// Another instance at an address does not prove that the former one has lost its disk: it may have
/// moved.
#[test]
fn pledges_and_vetoes_stand_among_instances_that_discover_each_other() {
    let list = ["a:1", "b:1"];
    let ballot = Ballot { round: 3, proposer: 9 };
    let pledge = Pledge { ballot, genesis: genesis(5, &[(1, "a:1"), (9, "b:1")]) };
    let promise = Promise { ballot, pledge: Some(pledge) };
    let me = Member::new(1, "a:1");
    let mut one = Founding::new(me, &addresses(&["all:1"]), 0, None, promise, 1, Time::ZERO);
    one.discovered(discovered(&list, true));
    let promised = Promise { ballot: Ballot { round: 4, proposer: 1 }, pledge: None };
    receive(&mut one, Announcement { promise: promised, ..announcement(2, "b:1", &list) });
    // It may propose again, but not another cluster.
    if let Some(promise) = one.step(Time::ZERO).write {
        assert_eq!(promise.pledge.unwrap().genesis.cluster, 5);
        one.written();
    }
    let ballot = one.durable.ballot;
    let promised = Promise { ballot, pledge: None };
    receive(&mut one, Announcement { promise: promised, ..announcement(2, "b:1", &list) });
    assert!(one.step(Time::ZERO).write.is_none());
    assert!(problem(&one).contains("a cluster was agreed upon with b:1"), "{}", problem(&one));

    let mut two = blank(1, "a:1", &["all:1"]);
    two.discovered(discovered(&list, true));
    two.take(9, Announcement { cluster: 5, ..announcement(9, "b:1", &[]) });
    two.lost(9);
    receive(&mut two, announcement(2, "b:1", &list));
    assert!(two.step(Time::ZERO).write.is_none());
    assert!(problem(&two).contains("b:1 belonged to the cluster"), "{}", problem(&two));
}

#[test]
fn an_unreached_peer_is_named() {
    let mut one = blank(1, "a:1", &["a:1", "b:1", "c:1"]);
    receive(&mut one, announcement(2, "b:1", &["a:1", "b:1", "c:1"]));
    assert!(one.step(1000 * S).write.is_none());
    let waits = "no cluster yet: it takes 3 of the peers a:1, b:1, c:1; not reached: c:1";
    assert_eq!(problem(&one), waits);
    // An announcement that came before its connection does not count yet.
    one.take(3, announcement(3, "c:1", &["a:1", "b:1", "c:1"]));
    assert!(one.step(1000 * S).write.is_none());
    one.connected(3);
    assert!(one.step(1000 * S).write.is_some());
    assert_eq!(problem(&one), "no cluster yet: the peers are agreeing on one");
}

#[test]
fn two_nodes_of_one_address_are_waited_out() {
    let mut one = blank(1, "a:1", &["a:1", "b:1"]);
    receive(&mut one, announcement(2, "b:1", &["a:1", "b:1"]));
    receive(&mut one, announcement(3, "b:1", &["a:1", "b:1"]));
    assert!(one.step(Time::ZERO).write.is_none());
    assert!(problem(&one).contains("several instances say that they are b:1"), "{one:?}");
    one.lost(2);
    assert!(one.step(Time::ZERO).write.is_some());
    receive(&mut one, announcement(4, "a:1", &["a:1", "b:1"]));
    assert!(problem(&one).contains("several instances say that they are a:1"), "{one:?}");
}

#[test]
fn a_peer_with_a_cluster_is_joined() {
    let mut one = blank(1, "a:1", &["a:1"]);
    receive(&mut one, Announcement { cluster: 5, ..announcement(9, "z:1", &["z:1"]) });
    assert_eq!(one.step(Time::ZERO).outcome, Some(BootstrapOutcome::Join { cluster: 5 }));
    let mut two = blank(1, "a:1", &["a:1"]);
    receive(&mut two, Announcement { cluster: 5, ..announcement(8, "y:1", &["y:1"]) });
    receive(&mut two, Announcement { cluster: 6, ..announcement(9, "z:1", &["z:1"]) });
    let todo = two.step(Time::ZERO);
    assert!(todo.outcome.is_none() && todo.write.is_none());
    let text = problem(&two);
    assert!(text.ends_with("y:1 belongs to 0000000000000005, z:1 belongs to 0000000000000006"));
    two.lost(9);
    assert_eq!(two.step(Time::ZERO).outcome, Some(BootstrapOutcome::Join { cluster: 5 }));
}

/// Without the veto it would found a cluster: its whole list is present.
#[test]
fn an_unlisted_peer_that_had_a_cluster_is_waited_for() {
    let mut one = blank(1, "a:1", &["a:1"]);
    one.take(9, Announcement { cluster: 5, ..announcement(9, "Z:1", &["z:1"]) });
    let todo = one.step(100 * S);
    assert!(todo.outcome.is_none() && todo.write.is_none());
    one.lost(9);
    assert!(one.step(100 * S).write.is_none(), "it may come back");
    let text = problem(&one);
    assert!(text.contains("z:1 belonged to the cluster 0000000000000005"), "{text}");
    // Any other member of that cluster will do.
    let mut two = one.clone();
    receive(&mut two, Announcement { cluster: 5, ..announcement(8, "y:1", &["z:1"]) });
    assert_eq!(two.step(100 * S).outcome, Some(BootstrapOutcome::Join { cluster: 5 }));
    // The disk is gone, so the veto for that cluster ends.
    receive(&mut one, announcement(10, "z:1", &["a:1"]));
    assert!(one.step(100 * S).write.is_some());
}

#[test]
fn a_replaced_directory_joins_only_its_own_cluster() {
    let me = Member::new(1, "a:1");
    let list = addresses(&["a:1"]);
    let mut one = Founding::new(me, &list, 5, None, Promise::default(), 1, Time::ZERO);
    assert_eq!(one.step(Time::ZERO).outcome, Some(BootstrapOutcome::Join { cluster: 5 }));
}

#[test]
fn a_node_that_pledged_a_founded_cluster_founds_it_too() {
    let list = ["a:1", "b:1"];
    let ballot = Ballot { round: 1, proposer: 1 };
    let genesis = genesis(5, &[(1, "a:1"), (2, "b:1")]);
    let pledge = Some(Pledge { ballot, genesis: genesis.clone() });
    // It has promised a later ballot by then. But a genesis that a member has founded was chosen.
    let promise = Promise { ballot: Ballot { round: 2, proposer: 1 }, pledge };
    let me = Member::new(2, "b:1");
    let mut one = Founding::new(me, &addresses(&list), 0, None, promise, 1, Time::ZERO);
    receive(&mut one, Announcement { cluster: 5, ..announcement(1, "a:1", &list) });
    assert_eq!(one.step(Time::ZERO).outcome, Some(BootstrapOutcome::Found(genesis)));
}

#[test]
fn a_pledge_is_given_up_only_with_its_disk() {
    let list = ["a:1", "b:1", "c:1"];
    let ballot = Ballot { round: 3, proposer: 9 };
    let pledge = Pledge { ballot, genesis: genesis(5, &[(1, "a:1"), (9, "b:1")]) };
    let promise = Promise { ballot: Ballot { round: 4, proposer: 1 }, pledge: Some(pledge) };
    let start = |list: &[&str]| {
        let (me, after) = (Member::new(1, list[0]), Some(S));
        Founding::new(me, &addresses(list), 0, after, promise.clone(), 1, Time::ZERO)
    };
    let promised = Promise { pledge: None, ..promise.clone() };
    let c = Announcement { promise: promised.clone(), ..announcement(3, "c:1", &list) };
    let mut one = start(&list);
    receive(&mut one, c.clone());
    assert!(one.step(2 * S).write.is_none());
    let text = problem(&one);
    assert!(text.contains("a cluster was agreed upon with b:1, which may have"), "{text}");
    // Another node is at its address: its disk is gone.
    receive(&mut one, Announcement { promise: promised.clone(), ..announcement(2, "b:1", &list) });
    let promise = one.step(2 * S).write.unwrap();
    let genesis = promise.pledge.unwrap().genesis;
    let ids: Vec<NodeId> = genesis.members.iter().map(|member| member.node).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_ne!(genesis.cluster, 5);
    // A list without that address proves nothing about its disk.
    let mut other = start(&["a:1", "c:1"]);
    receive(
        &mut other,
        Announcement { promise: promised, ..announcement(3, "c:1", &["a:1", "c:1"]) },
    );
    assert!(other.step(2 * S).write.is_none());
}

#[test]
fn announcements_that_no_instance_can_have_sent_are_dropped() {
    let list = ["a:1", "b:1"];
    let right = announcement(2, "b:1", &list);
    assert!(right.is_valid(2));
    let ballot = Ballot { round: 1, proposer: 2 };
    let pledging = |genesis| Promise { ballot, pledge: Some(Pledge { ballot, genesis }) };
    let two = [(1, "a:1"), (2, "b:1")];
    let pledged = Announcement { promise: pledging(genesis(5, &two)), ..right.clone() };
    assert!(pledged.is_valid(2));
    let many: Vec<String> = (0..65).map(|number| format!("a:{number:02}")).collect();
    let crowd: Vec<(NodeId, &str)> = (1..66).map(|node| (node, "a:1")).collect();
    let late = Ballot { round: u64::MAX, proposer: 2 };
    let early = Pledge { ballot, genesis: genesis(5, &two) };
    let wrong = [
        Announcement { list: many, ..right.clone() },
        Announcement { list: vec!["b:1".to_owned(), "a:1".to_owned()], ..right.clone() },
        Announcement { list: vec!["a".repeat(261)], ..right.clone() },
        announcement(2, &"b".repeat(261), &list),
        announcement(3, "b:1", &list),
        Announcement { promise: pledging(genesis(0, &two)), ..right.clone() },
        Announcement { promise: pledging(genesis(5, &[])), ..right.clone() },
        Announcement { promise: pledging(genesis(5, &crowd)), ..right.clone() },
        Announcement { promise: pledging(genesis(5, &[two[1], two[0]])), ..right.clone() },
        Announcement { promise: pledging(genesis(5, &[two[1], two[1]])), ..right.clone() },
        Announcement { promise: Promise { ballot: late, pledge: None }, ..right.clone() },
        Announcement {
            promise: Promise { ballot: Ballot::default(), pledge: Some(early) },
            ..right.clone()
        },
    ];
    for announcement in wrong {
        assert!(!announcement.is_valid(2), "{announcement:?}");
        let mut one = blank(1, "a:1", &list);
        one.connected(2);
        one.take(2, announcement);
        assert!(one.step(Time::ZERO).write.is_none());
    }
}

#[test]
fn unlisted_peers_do_not_take_the_room_of_listed_ones() {
    let mut one = blank(1, "a:1", &["a:1", "b:1"]);
    for node in 1000..2000 {
        one.take(node, announcement(node, "z:1", &["a:1", "b:1"]));
    }
    assert_eq!(one.peers.len(), UNLISTED_MAX);
    let mut two = one.clone();
    for node in 2000..3000 {
        two.take(
            node,
            Announcement { cluster: 5, ..announcement(node, &format!("{node}:1"), &["a:1"]) },
        );
    }
    assert_eq!(two.vetoes.len(), UNLISTED_MAX);
    receive(&mut one, announcement(2, "b:1", &["a:1", "b:1"]));
    assert!(one.step(Time::ZERO).write.is_some(), "a listed one always finds room");
}

#[test]
fn golden_words() {
    let mut golden = Golden::new("words");
    let list = ["a:1", "b:1"];
    let mut sample = |name, announcement: &Announcement| {
        let bytes = postcard::to_allocvec(announcement).unwrap();
        assert_eq!(postcard::from_bytes(&bytes), Ok(announcement.clone()));
        golden.sample(name, &bytes);
    };
    let blank = announcement(300, "b:1", &list);
    sample("blank", &blank);
    let ballot = Ballot { round: 2, proposer: 300 };
    let genesis = genesis(u64::MAX, &[(300, "b:1"), (400, "a:1")]);
    let pledge = Some(Pledge { ballot: Ballot { round: 1, proposer: 300 }, genesis });
    let member = Member { uid: 17, zone: "west".to_owned(), ..blank.member.clone() };
    let promise = Promise { ballot, pledge };
    sample("with a pledge", &Announcement { member, promise, ..blank.clone() });
    sample("of a member", &Announcement { cluster: 0x0123_4567_89ab_cdef, ..blank });
    golden.check();
}
