//! Candidates with a priority, and candidates of other libraries between them.

use std::time::Duration;

use quorate::recipes::{LeaderLatch, Naming};
use quorate::testing::Cluster;
use quorate::{CreateMode, Session};

use super::{MOMENT, latch, names};

/// Waits until the candidates are these.
fn until_listed(cluster: &Cluster, latch: &LeaderLatch, expected: &[&str]) {
    let mut listed = Vec::new();
    for _ in 0..5_000 {
        listed = names(&latch.candidates().wait().unwrap());
        if listed == expected {
            return;
        }
        cluster.advance(MOMENT);
    }
    panic!("{listed:?} and not {expected:?}");
}

/// Creates a candidate of another library.
fn foreign(session: &Session, name: &str) -> String {
    let path = format!("/app/leader/{name}");
    session.create(&path, b"foreign", CreateMode::EphemeralSequential).wait().unwrap().path
}

#[test]
fn a_higher_priority_comes_first_and_displaces_no_leader() {
    let cluster = Cluster::new(3);
    let observer = latch(&cluster, 0, "first").with_priority(-7);
    let first = observer.campaign().wait().unwrap();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let arrivals =
            [("a", 0), ("b", 5), ("c", -3), ("d", 5), ("e", 0), ("f", i32::MIN), ("g", i32::MAX)];
        let expected: [&[&str]; 7] = [
            &["first", "a"],
            &["first", "b", "a"],
            &["first", "b", "a", "c"],
            &["first", "b", "d", "a", "c"],
            &["first", "b", "d", "a", "e", "c"],
            &["first", "b", "d", "a", "e", "c", "f"],
            &["first", "g", "b", "d", "a", "e", "c", "f"],
        ];
        for (number, (id, priority)) in arrivals.into_iter().enumerate() {
            let latch = latch(&cluster, number % 3, id).with_priority(priority);
            threads.push(scope.spawn(move || {
                let leadership = latch.campaign().wait().unwrap();
                assert!(leadership.is_held());
                let token = leadership.fencing_token();
                let leader = latch.leader().wait().unwrap().unwrap();
                assert_eq!((leader.name().as_ref(), leader.fencing_token().unwrap()), (id, token));
                assert_eq!(leader.priority, priority);
                leadership.release().wait().unwrap();
                (token, id)
            }));
            until_listed(&cluster, &observer, expected[number]);
            assert!(first.is_held());
        }
        let token = first.fencing_token();
        first.release().wait().unwrap();
        let mut terms: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        terms.sort_unstable();
        assert!(terms[0].0 > token);
        assert!(terms.windows(2).all(|two| two[0].0 < two[1].0), "{terms:?}");
        let order: Vec<_> = terms.iter().map(|(_, id)| *id).collect();
        assert_eq!(order, ["g", "b", "d", "a", "e", "c", "f"]);
    });
    // Nothing of it is left.
    assert_eq!(observer.leader().wait().unwrap(), None);
}

/// A candidate that was passed over gets a new token, and so do those that joined before it led.
#[test]
fn tokens_grow_although_candidates_are_passed_over() {
    let cluster = Cluster::new(3);
    let observer = latch(&cluster, 0, "zero");
    let mut changes = observer.watch();
    let zero = observer.campaign().wait().unwrap();
    std::thread::scope(|scope| {
        let mut led = vec![(zero.fencing_token(), "zero")];
        let mut threads = Vec::new();
        for (id, priority, expected) in [
            ("passed", 0, &["zero", "passed"][..]),
            ("high", 1, &["zero", "high", "passed"]),
            ("later", 0, &["zero", "high", "passed", "later"]),
        ] {
            let latch = latch(&cluster, 1, id).with_priority(priority);
            threads.push(scope.spawn(move || {
                let leadership = latch.campaign().wait().unwrap();
                let token = leadership.fencing_token();
                leadership.release().wait().unwrap();
                (token, id)
            }));
            until_listed(&cluster, &observer, expected);
        }
        assert_eq!(
            changes.recv().wait().unwrap().unwrap().fencing_token().unwrap(),
            zero.fencing_token()
        );
        zero.release().wait().unwrap();
        led.extend(threads.into_iter().map(|it| it.join().unwrap()));
        led.sort_unstable();
        let order: Vec<_> = led.iter().map(|(_, id)| *id).collect();
        assert_eq!(order, ["zero", "high", "passed", "later"]);
        let mut last = led[0].0;
        while let Ok(leader) = changes.recv().timeout(Duration::from_millis(1)).wait() {
            let Some(leader) = leader else { continue };
            assert!(leader.fencing_token().unwrap() > last, "{led:?} {leader:?}");
            last = leader.fencing_token().unwrap();
        }
    });
}

/// It was there before the former leader, and its znode is older than that one's.
#[test]
fn a_candidate_of_another_library_has_no_token() {
    let cluster = Cluster::new(3);
    let observer = latch(&cluster, 0, "zero");
    let zero = observer.campaign().wait().unwrap();
    let mut changes = observer.watch();
    let mut next = || changes.recv().wait().unwrap().unwrap();
    assert_eq!(next().fencing_token(), Some(zero.fencing_token()));
    let session = cluster.node(1).session();
    // What it can see itself when it leads: whether it was passed over.
    let was_passed = |path: &str| {
        session.sync().wait().unwrap();
        let czxid = |path| session.exists(path).wait().unwrap().unwrap();
        czxid(path).czxid < czxid("/app/leader").mzxid
    };
    std::thread::scope(|scope| {
        let passed = foreign(&session, "646dbb08aa7f4a7ea0f1b2c3d4e5f607__lock__");
        let high = latch(&cluster, 2, "high").with_priority(9);
        let high = scope.spawn(move || high.campaign().wait().unwrap());
        until_listed(&cluster, &observer, &["zero", "high", "foreign"]);
        zero.release().wait().unwrap();
        let mut high = high.join().unwrap();
        assert_eq!(next().fencing_token(), Some(high.fencing_token()));
        assert!(session.exists(&passed).wait().unwrap().unwrap().czxid < high.fencing_token());
        let successor = high.hand_over().wait().unwrap();
        assert_eq!((&successor.path, successor.fencing_token()), (&passed, None));
        assert_eq!(next(), successor);
        assert!(was_passed(&passed));
        // It campaigns again, and nobody passes it.
        let again = foreign(&session, "646dbb08aa7f4a7ea0f1b2c3d4e5f608__lock__");
        session.delete(&passed).wait().unwrap();
        let leader = next();
        assert_eq!((&leader.path, leader.fencing_token()), (&again, None));
        assert!(!was_passed(&again));
        let token = session.exists(&again).wait().unwrap().unwrap().czxid;
        assert!(token > high.fencing_token());
        let last = latch(&cluster, 0, "last").with_priority(9);
        let last = scope.spawn(move || last.campaign().wait().unwrap());
        until_listed(&cluster, &observer, &["foreign", "last"]);
        session.delete(&again).wait().unwrap();
        let last = last.join().unwrap().fencing_token();
        assert!(last > token);
        assert_eq!(next().fencing_token(), Some(last));
    });
}

#[test]
fn candidates_of_other_libraries_are_counted_and_count_ours() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    for uuid in ["41bb8ee8-bb0d-4f29-9c1f-0123456789ab", "f1bb8ee8-bb0d-4f29-9c1f-0123456789ab"] {
        let observer = latch(&cluster, 0, "zero");
        let zero = observer.campaign().wait().unwrap();
        let curators = foreign(&session, &format!("_c_{uuid}-latch-"));
        let kazoos = foreign(&session, "646dbb08aa7f4a7ea0f1b2c3d4e5f607__lock__");
        std::thread::scope(|scope| {
            let low = latch(&cluster, 1, "low").with_priority(-1);
            let low = scope.spawn(move || low.campaign().wait().unwrap());
            until_listed(&cluster, &observer, &["zero", "foreign", "foreign", "low"]);
            let high = latch(&cluster, 2, "high").with_priority(1);
            let high = scope.spawn(move || high.campaign().wait().unwrap());
            until_listed(&cluster, &observer, &["zero", "high", "foreign", "foreign", "low"]);
            zero.release().wait().unwrap();
            let high = high.join().unwrap();
            high.release().wait().unwrap();
            assert_eq!(observer.leader().wait().unwrap().unwrap().path, curators);
            // Behind one of Curator's that leads.
            let high = latch(&cluster, 2, "high").with_priority(1);
            let high = scope.spawn(move || high.campaign().wait().unwrap());
            until_listed(&cluster, &observer, &["foreign", "high", "foreign", "low"]);
            // As Curator sorts: by the number alone, in the order of the names.
            let mut sorted = session.children("/app/leader").wait().unwrap();
            sorted.sort_by_key(|name| name[name.len() - 10..].to_owned());
            assert!(curators.ends_with(&sorted[0]), "{sorted:?}");
            session.delete(&curators).wait().unwrap();
            high.join().unwrap().release().wait().unwrap();
            session.delete(&kazoos).wait().unwrap();
            low.join().unwrap().release().wait().unwrap();
        });
    }
}

#[test]
fn elections_without_priorities_cost_two_writes_a_term() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let latch = latch(&cluster, 0, "zero").with_naming(Naming::Kazoo);
    latch.campaign().wait().unwrap().release().wait().unwrap();
    let (before, _) = session.snapshot().wait().map(|it| (it.zxid(), ())).unwrap();
    latch.campaign().wait().unwrap().release().wait().unwrap();
    assert_eq!(session.snapshot().wait().unwrap().zxid(), before + 2);
    latch.with_priority(3).campaign().wait().unwrap().release().wait().unwrap();
    assert_eq!(session.snapshot().wait().unwrap().zxid(), before + 4);
}
