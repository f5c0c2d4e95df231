//! Leaderships that are handed over.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use quorate::recipes::{Candidate, LeaderLatch, LeaderSelector, Leadership, Lost};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind};

use super::{MOMENT, latch, names};
use crate::common::tasks::block_on;

fn campaign<'scope>(
    scope: &'scope Scope<'scope, '_>,
    latch: LeaderLatch,
) -> ScopedJoinHandle<'scope, Leadership> {
    scope.spawn(move || latch.campaign().wait().unwrap())
}

/// Waits until the candidate is there.
fn listed(cluster: &Cluster, latch: &LeaderLatch, id: &str) -> Candidate {
    for _ in 0..5_000 {
        let candidates = latch.candidates().wait().unwrap();
        if let Some(candidate) = candidates.into_iter().find(|candidate| candidate.name() == id) {
            return candidate;
        }
        cluster.advance(MOMENT);
    }
    panic!("no candidate {id}");
}

#[test]
fn the_third_in_line_leads_next_if_it_is_named() {
    let cluster = Cluster::new(3);
    cluster.node(0).session().create("/state", b"", CreateMode::Persistent).wait().unwrap();
    let zero = latch(&cluster, 0, "zero");
    let mut leadership = zero.campaign().wait().unwrap();
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (id, node) in [("one", 1), ("two", 2), ("three", 1), ("four", 2)] {
            let latch = latch(&cluster, node, id).with_priority(i32::from(id == "one"));
            waiting.push(campaign(scope, latch));
            listed(&cluster, &zero, id);
        }
        let mut changes = zero.watch();
        assert_eq!(changes.recv().wait().unwrap().unwrap().name(), "zero");
        let named = listed(&cluster, &zero, "three");
        let leader = leadership.hand_over_to(&named).wait().unwrap();
        assert!(!leadership.is_held());
        assert_eq!(leader.name(), "three");
        assert!(leader.fencing_token().unwrap() > leadership.fencing_token());
        assert_eq!(leadership.wait_lost().wait().unwrap(), Lost::Deleted);
        assert!(leadership.fenced().set("/state", b"zero").commit().wait().is_err());
        let three = waiting.remove(2).join().unwrap();
        assert!(three.is_held());
        assert_eq!(three.fencing_token(), leader.fencing_token().unwrap());
        // Nobody led in between.
        assert_eq!(
            changes.recv().wait().unwrap().unwrap().fencing_token().unwrap(),
            leader.fencing_token().unwrap()
        );
        assert_eq!(names(&zero.candidates().wait().unwrap()), ["three", "one", "two", "four"]);
        leadership.release().wait().unwrap();
        let mut tokens = vec![three.fencing_token()];
        drop(three);
        for waiting in waiting {
            let leadership = waiting.join().unwrap();
            tokens.push(leadership.fencing_token());
            leadership.release().wait().unwrap();
        }
        assert!(tokens.is_sorted() && tokens.windows(2).all(|two| two[0] != two[1]), "{tokens:?}");
    });
}

#[test]
fn a_leadership_goes_round_without_a_gap() {
    let cluster = Cluster::new(3);
    cluster.node(0).session().create("/state", b"", CreateMode::Persistent).wait().unwrap();
    let (zero, tokens) = (latch(&cluster, 0, "0"), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for node in 0..3 {
            let (latch, tokens) = (latch(&cluster, node, &node.to_string()), &tokens);
            scope.spawn(move || {
                for _ in 0..5 {
                    let mut leadership = latch.campaign().wait().unwrap();
                    assert!(leadership.is_held());
                    tokens.lock().unwrap().push(leadership.fencing_token());
                    leadership.fenced().set("/state", b"mine").commit().wait().unwrap();
                    // The last one of all, if there is one.
                    let last = latch.candidates().wait().unwrap().pop().unwrap();
                    if last.path == leadership.path() {
                        leadership.release().wait().unwrap();
                        continue;
                    }
                    match leadership.hand_over_to(&last).wait() {
                        Ok(leader) => {
                            assert!(leader.fencing_token().unwrap() > leadership.fencing_token())
                        }
                        Err(error) => {
                            assert!(matches!(error, Error::NoNode { .. }), "{error}");
                            leadership.release().wait().unwrap();
                        }
                    }
                }
            });
        }
    });
    let tokens = tokens.into_inner().unwrap();
    assert_eq!(tokens.len(), 15);
    assert!(tokens.windows(2).all(|two| two[0] < two[1]), "{tokens:?}");
    cluster.node(0).session().sync().wait().unwrap();
    assert_eq!(zero.leader().wait().unwrap(), None);
}

#[test]
fn a_leader_leads_on_if_the_candidate_is_gone_or_does_not_come() {
    let cluster = Cluster::new(3);
    let zero = latch(&cluster, 0, "zero");
    let mut leadership = zero.campaign().wait().unwrap();
    let session = cluster.node(1).session();
    let path = "/app/leader/0123456789abcdef-latch-";
    let mode = CreateMode::EphemeralSequential;
    let next = session.create(path, b"next", mode).wait().unwrap();
    // Its session does not campaign.
    let silent = session.create(path, b"silent", mode).wait().unwrap();
    let candidate = listed(&cluster, &zero, "silent");
    std::thread::scope(|scope| {
        let handing_over = scope
            .spawn(|| leadership.hand_over_to(&candidate).timeout(Duration::from_secs(1)).wait());
        while !handing_over.is_finished() {
            cluster.advance(MOMENT);
        }
        assert!(matches!(handing_over.join().unwrap(), Err(Error::Timeout { .. })));
    });
    assert!(leadership.is_held());
    leadership.fenced().create("/state", b"", CreateMode::Persistent).commit().wait().unwrap();
    session.delete(&silent.path).wait().unwrap();
    let gone = leadership.hand_over_to(&candidate);
    assert_eq!(gone.wait(), Err(Error::NoNode { path: silent.path }));
    assert!(leadership.is_held());
    // To itself.
    let own = zero.leader().wait().unwrap().unwrap();
    assert_eq!(leadership.hand_over_to(&own).wait(), Ok(own));
    assert!(leadership.is_held());
    // Who is next needs not come forward.
    let leader = leadership.hand_over().wait().unwrap();
    assert_eq!(leader.path, next.path);
    assert!(!leadership.is_held());
    // There is nothing to hand over any more.
    assert_eq!(
        leadership.hand_over().wait(),
        Err(Error::NoNode { path: leadership.path().to_owned() })
    );
}

#[test]
fn a_drain_waits_for_a_candidate() {
    let cluster = Cluster::new(3);
    let zero = latch(&cluster, 0, "zero");
    let mut leadership = zero.campaign().wait().unwrap();
    assert!(matches!(
        leadership.hand_over().timeout(Duration::from_millis(1)).wait(),
        Err(Error::Timeout { .. })
    ));
    assert!(leadership.is_held());
    std::thread::scope(|scope| {
        let handing_over = scope.spawn(|| {
            let leader = leadership.hand_over().wait();
            (leadership.is_held(), leader)
        });
        let one = campaign(scope, latch(&cluster, 1, "one"));
        let one = one.join().unwrap();
        let (is_held, leader) = handing_over.join().unwrap();
        assert!(!is_held && one.is_held());
        assert_eq!(leader.unwrap().fencing_token().unwrap(), one.fencing_token());
    });
}

/// A candidate that was passed over, and is next, gets its token before it leads.
#[test]
fn a_drain_knows_the_token_of_one_that_was_passed_over() {
    let cluster = Cluster::new(3);
    let zero = latch(&cluster, 0, "zero");
    let mut leadership = zero.campaign().wait().unwrap();
    std::thread::scope(|scope| {
        let passed = campaign(scope, latch(&cluster, 1, "passed"));
        let before = listed(&cluster, &zero, "passed");
        let high = campaign(scope, latch(&cluster, 2, "high").with_priority(1));
        listed(&cluster, &zero, "high");
        assert_eq!(leadership.hand_over().wait().unwrap().name(), "high");
        let mut high = high.join().unwrap();
        let leader = high.hand_over().wait().unwrap();
        assert!(leader.fencing_token().unwrap() > high.fencing_token());
        assert!(before.fencing_token().unwrap() < high.fencing_token());
        assert_eq!(passed.join().unwrap().fencing_token(), leader.fencing_token().unwrap());
    });
}

/// The handle that was listed before the candidate moved still names it.
#[test]
fn a_candidate_is_found_after_it_has_moved() {
    let cluster = Cluster::new(3);
    let zero = latch(&cluster, 0, "zero");
    let mut leadership = zero.campaign().wait().unwrap();
    std::thread::scope(|scope| {
        let (mut waiting, mut before) = (Vec::new(), Vec::new());
        for id in ["one", "two", "three"] {
            waiting.push(campaign(scope, latch(&cluster, 1, id)));
            before.push(listed(&cluster, &zero, id));
        }
        // It comes forward, and the leader changes its mind.
        let three = &before[2];
        let session = cluster.node(0).session();
        // As Curator's latch behind it, which waits for the deletion alone.
        let (_, _, behind) = session.get_and_watch(&three.path).wait().unwrap();
        let first = three.fencing_token().unwrap();
        let call = format!("/app/leader/call-{first:016x}-{}", i32::MAX);
        leadership.fenced().create(&call, b"", CreateMode::Ephemeral).commit().wait().unwrap();
        while zero.candidates().wait().unwrap()[1].name() != "three" {
            cluster.advance(MOMENT);
        }
        assert!(session.exists(&three.path).wait().unwrap().is_none());
        assert_eq!(behind.recv().wait().unwrap().unwrap().kind, EventKind::Deleted);
        session.delete(&call).wait().unwrap();
        assert_eq!(leadership.hand_over_to(&before[1]).wait().unwrap().name(), "two");
        let mut two = waiting.remove(1).join().unwrap();
        assert_eq!(names(&zero.candidates().wait().unwrap()), ["two", "three", "one"]);
        assert_eq!(two.hand_over_to(three).wait().unwrap().name(), "three");
        let mut three = waiting.remove(1).join().unwrap();
        assert_eq!(three.hand_over().wait().unwrap().name(), "one");
        waiting.remove(0).join().unwrap().release().wait().unwrap();
    });
}

#[test]
fn a_candidate_of_another_library_takes_over_when_it_is_next() {
    let cluster = Cluster::new(3);
    let zero = latch(&cluster, 0, "zero");
    let mut leadership = zero.campaign().wait().unwrap();
    let session = cluster.node(1).session();
    let name = "/app/leader/_c_41bb8ee8-bb0d-4f29-9c1f-0123456789ab-latch-";
    let curators =
        session.create(name, b"curator", CreateMode::EphemeralSequential).wait().unwrap();
    let candidate = listed(&cluster, &zero, "curator");
    assert_eq!(leadership.hand_over_to(&candidate).wait().unwrap().path, curators.path);
    assert_eq!(zero.leader().wait().unwrap(), Some(candidate));
}

#[test]
fn a_selector_hands_over_when_it_ends() {
    let cluster = Cluster::new(3);
    let selector = |node: usize, timeout| {
        let session = cluster.node(node).session();
        let selector = LeaderSelector::new(&session, "/selected", node.to_string()).unwrap();
        selector.with_hand_over(timeout)
    };
    let one = selector(1, MOMENT);
    for is_async in [false, true] {
        let zero = selector(0, Duration::from_secs(60));
        std::thread::scope(|scope| {
            let (started, starts) = std::sync::mpsc::channel();
            let ended = scope.spawn(move || {
                let term = |token| {
                    started.send(()).unwrap();
                    ControlFlow::Break(token)
                };
                let run =
                    zero.run(|leadership| std::future::ready(term(leadership.fencing_token())));
                let ended = match is_async {
                    false => run.wait(),
                    true => block_on(run),
                };
                // Somebody leads at once.
                (ended, zero.latch().leader().wait().unwrap().expect("a leader"))
            });
            starts.recv().unwrap();
            let leadership = one.latch().campaign().wait().unwrap();
            let (ended, leader) = ended.join().unwrap();
            let ended = ended.unwrap().break_value().unwrap();
            assert_eq!(
                (leader.name().as_ref(), leader.fencing_token().unwrap()),
                ("1", leadership.fencing_token())
            );
            assert!(ended < leadership.fencing_token());
        });
    }
    // There is nobody else.
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| one.run(|_| async { ControlFlow::Break(()) }).wait().unwrap());
        while !ended.is_finished() {
            cluster.advance(MOMENT);
        }
    });
    assert_eq!(one.latch().leader().wait().unwrap(), None);
}

/// A call is followed once. A candidate that has come forward and is passed by another one is called again.
#[test]
fn a_candidate_that_was_passed_after_a_call_is_called_again() {
    let cluster = Cluster::new(3);
    let zero = latch(&cluster, 0, "zero");
    let mut leadership = zero.campaign().wait().unwrap();
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for id in ["one", "two", "three"] {
            waiting.push(campaign(scope, latch(&cluster, 1, id)));
            listed(&cluster, &zero, id);
        }
        for id in ["three", "two"] {
            let first = listed(&cluster, &zero, id).fencing_token().unwrap();
            let call = format!("/app/leader/call-{first:016x}-{}", i32::MAX);
            leadership.fenced().create(&call, b"", CreateMode::Ephemeral).commit().wait().unwrap();
            while zero.candidates().wait().unwrap()[1].name() != id {
                cluster.advance(MOMENT);
            }
        }
        let three = listed(&cluster, &zero, "three");
        assert_eq!(leadership.hand_over_to(&three).wait().unwrap().name(), "three");
        waiting.remove(2).join().unwrap().release().wait().unwrap();
        waiting.remove(1).join().unwrap().release().wait().unwrap();
        waiting.remove(0).join().unwrap().release().wait().unwrap();
    });
}
