//! Service discovery and two-phase commits.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate::recipes::{Instance, Phase, Registry, Strategy, TwoPhaseCommit, Vote};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

fn instance(id: &str) -> Instance {
    Instance::new(id, "10.0.0.1", 80).with("zone", "north")
}

fn ids(instances: &[Instance]) -> Vec<&str> {
    instances.iter().map(|instance| &instance.id[..]).collect()
}

#[test]
fn instances_come_and_go_with_their_sessions() {
    let cluster = Cluster::new(3);
    let found = cluster.node(2).session();
    let discovery = Registry::new(&found, "/services").unwrap();
    assert_eq!(
        (discovery.names().wait(), discovery.instances("web").wait()),
        (Ok(vec![]), Ok(vec![]))
    );
    let mut watch = discovery.watch("web").unwrap();
    assert!(watch.recv().wait().unwrap().is_empty());
    let session = cluster.node(0).open_session().unwrap();
    let registry = Registry::new(&session, "/services").unwrap();
    let a = registry.register("web", &instance("a")).wait().unwrap();
    assert_eq!(watch.recv().wait().unwrap(), [instance("a")]);
    let other = Registry::new(&cluster.node(1).session(), "/services").unwrap();
    let twice = other.register("web", &instance("a")).wait();
    assert!(matches!(twice, Err(Error::NodeExists { .. })), "{twice:?}");
    let b = other.register("web", &instance("b")).wait().unwrap();
    while ids(&watch.recv().wait().unwrap()) != ["a", "b"] {}
    // Its address has changed.
    let moved = Instance::new("b", "10.0.0.9", 81);
    b.update(&moved).wait().unwrap();
    while watch.recv().wait().unwrap() != [instance("a"), moved.clone()] {}
    assert!(b.update(&instance("c")).wait().is_err());
    // A znode that is no valid instance is not shown.
    let admin = cluster.node(1).session();
    admin.create("/services/web/x", b"\xff\xff", CreateMode::Persistent).wait().unwrap();
    admin.create("/services/web/y", [0], CreateMode::Persistent).wait().unwrap();
    cluster.isolate(0);
    cluster.advance(Duration::from_secs(60));
    assert!(!a.is_held(), "the registration has noticed its loss");
    while watch.recv().wait().unwrap() != [moved.clone()] {}
    assert_eq!(discovery.names().wait(), Ok(vec!["web".to_owned()]));
    b.release().wait().unwrap();
    assert!(watch.recv().wait().unwrap().is_empty());
    for name in ["", "a/b", ".", "x\u{0}"] {
        assert!(
            matches!(discovery.instances(name).wait(), Err(Error::InvalidPath { .. })),
            "{name:?}"
        );
        let named = other.register("web", &instance(name)).wait();
        assert!(matches!(named, Err(Error::InvalidPath { .. })), "{name:?}");
    }
}

/// A registration was deleted, and another one now has its id: dropping the first must not delete the second.
#[test]
fn dropping_a_registration_never_deregisters_another() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.node(0).session(), cluster.node(1).session());
    for dropped in [true, false] {
        let former =
            Registry::new(&one, "/s").unwrap().register("web", &instance("a")).wait().unwrap();
        two.delete(former.path()).wait().unwrap();
        let own =
            Registry::new(&two, "/s").unwrap().register("web", &instance("a")).wait().unwrap();
        one.sync().wait().unwrap();
        assert!(own.is_held() && !former.is_held());
        assert!(former.update(&instance("a")).wait().is_err());
        if dropped {
            drop(former);
        } else {
            former.release().wait().unwrap();
        }
        one.sync().wait().unwrap();
        two.sync().wait().unwrap();
        assert!(own.is_held());
        // The id is free once the session's later calls are answered.
        drop(own);
        two.sync().wait().unwrap();
    }
    assert!(Registry::new(&two, "/s").unwrap().instances("web").wait().unwrap().is_empty());
}

#[test]
fn a_registration_dropped_at_any_point_leaves_nothing() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    let below = session.chroot("/below").unwrap();
    session.create("/below", b"", CreateMode::Persistent).wait().unwrap();
    let registry = Registry::new(&below, "/s/deep").unwrap();
    let instance = instance("a");
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for polls in 1..25 {
        let mut registering = Box::pin(registry.register("web", &instance));
        for _ in 0..polls {
            if registering.as_mut().poll(&mut context).is_ready() {
                break;
            }
            if polls % 3 > 0 {
                cluster.advance(Duration::from_millis(10));
            }
        }
        drop(registering);
        session.sync().wait().unwrap();
        session.sync().wait().unwrap();
        let left = session.ephemerals().wait().unwrap();
        assert!(left.is_empty(), "{left:?} after {polls} polls");
    }
}

#[test]
fn choosers_spread_stick_and_skip_failing_instances() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let registry = Registry::new(&session, "/s").unwrap();
    let mut kept: Vec<_> =
        ["a", "b", "c"].map(|id| registry.register("web", &instance(id)).wait().unwrap()).into();
    let discovery = Registry::new(&session, "/s").unwrap();
    let chooser =
        |strategy| discovery.chooser("web", strategy).unwrap().time_out(Duration::from_secs(10));
    let choose = |chooser: &quorate::recipes::Chooser| chooser.choose().wait().unwrap().unwrap().id;

    let robin = chooser(Strategy::RoundRobin);
    let chosen: Vec<String> = (0..4).map(|_| choose(&robin)).collect();
    assert_eq!(chosen, ["a", "b", "c", "a"]);
    robin.noted_failure("b").wait().unwrap();
    let chosen: Vec<String> = (0..3).map(|_| choose(&robin)).collect();
    assert_eq!(chosen, ["c", "a", "c"]);
    cluster.advance(Duration::from_secs(10));
    let chosen: Vec<String> = (0..2).map(|_| choose(&robin)).collect();
    assert_eq!(chosen, ["a", "b"], "the time to avoid it is over");

    let sticky = chooser(Strategy::Sticky);
    let first = choose(&sticky);
    assert!((0..20).all(|_| choose(&sticky) == first));
    sticky.noted_failure(&first).wait().unwrap();
    let second = choose(&sticky);
    assert_ne!(second, first);
    cluster.advance(Duration::from_secs(20));
    assert_eq!(choose(&sticky), second);

    let random = chooser(Strategy::Random);
    let chosen: BTreeSet<String> = (0..200).map(|_| choose(&random)).collect();
    assert_eq!(chosen.len(), 3);

    let least = chooser(Strategy::LeastRecentlyFailed).time_out(Duration::ZERO);
    for failed in ["c", "a", "b"] {
        least.noted_failure(failed).wait().unwrap();
        cluster.advance(Duration::from_secs(1));
    }
    assert_eq!(choose(&least), "c");
    // All have failed lately: the one that failed first is chosen.
    let all = chooser(Strategy::Random);
    for failed in ["b", "c", "a", "none"] {
        all.noted_failure(failed).wait().unwrap();
        cluster.advance(Duration::from_secs(1));
    }
    assert_eq!(choose(&all), "b");
    // An instance that comes back counts as a new one.
    kept.remove(1).release().wait().unwrap();
    assert_eq!(choose(&all), "c");
    kept.push(registry.register("web", &instance("b")).wait().unwrap());
    assert_eq!(choose(&all), "b");
    drop(kept);
    session.sync().wait().unwrap();
    assert_eq!(all.choose().wait(), Ok(None));
}

fn transaction(session: &Session) -> TwoPhaseCommit {
    TwoPhaseCommit::new(session, "/tx/1").unwrap()
}

#[test]
fn it_commits_only_if_all_vote_yes() {
    for no in [false, true] {
        let cluster = Cluster::new(3);
        let names = ["a", "b", "c", "d"];
        let begun = transaction(&cluster.node(0).session());
        begun.begin(&names, b"payload").wait().unwrap();
        assert!(matches!(begun.begin(&names, b"").wait(), Err(Error::NodeExists { .. })));
        let expected = if no { Phase::Aborted } else { Phase::Committed };
        std::thread::scope(|scope| {
            for (number, name) in names.iter().enumerate() {
                let session = cluster.node(number % 3).session();
                scope.spawn(move || {
                    session.sync().wait().unwrap();
                    let part = transaction(&session).join(name).wait().unwrap();
                    assert_eq!(part.proposal(), b"payload");
                    let vote = if no && number == 2 { Vote::No } else { Vote::Yes };
                    part.vote(vote).wait().unwrap();
                    assert_eq!(part.outcome().wait(), Ok(expected));
                });
            }
            for place in 1..3 {
                // Several may decide at once.
                let session = cluster.node(place).session();
                scope.spawn(move || {
                    session.sync().wait().unwrap();
                    assert_eq!(transaction(&session).decide().wait(), Ok(expected));
                });
            }
            assert_eq!(begun.decide().wait(), Ok(expected));
        });
        assert_eq!(begun.abort().wait(), Ok(expected), "for good");
    }
}

/// The coordinator dies between the votes and the decision. Another one goes on, and all learn the same
/// outcome.
#[test]
fn a_coordinator_that_dies_is_replaced() {
    let cluster = Cluster::new(3);
    let dying = cluster.node(0).open_session().unwrap();
    transaction(&dying).begin(&["a", "b"], b"").wait().unwrap();
    let session = cluster.node(1).session();
    session.sync().wait().unwrap();
    let parts = ["a", "b"].map(|name| transaction(&session).join(name).wait().unwrap());
    assert_eq!(parts[0].vote(Vote::Yes).wait(), Ok(Phase::Voting));
    cluster.stop(0);
    assert_eq!(parts[1].vote(Vote::Yes).wait(), Ok(Phase::Voting), "no participant has decided");
    assert!(matches!(
        parts[0].outcome().timeout(Duration::ZERO).wait(),
        Err(Error::NotInTime { .. })
    ));
    assert_eq!(transaction(&cluster.node(2).session()).decide().wait(), Ok(Phase::Committed));
    assert_eq!(
        parts.each_ref().map(|part| part.outcome().wait()),
        [const { Ok(Phase::Committed) }; 2]
    );
    // A participant that was away learns the outcome. Only when all know it may the transaction be forgotten.
    cluster.restart(0);
    let back = cluster.node(0).session();
    back.sync().wait().unwrap();
    assert_eq!(transaction(&back).forget().wait(), Ok(false));
    let again = transaction(&back).join("a").wait().unwrap();
    assert_eq!(again.outcome().wait(), Ok(Phase::Committed));
    assert!(matches!(again.vote(Vote::No).wait(), Err(Error::InvalidData { .. })));
    assert_eq!(again.vote(Vote::Yes).wait(), Ok(Phase::Committed), "it has voted the same before");
    again.acknowledge().wait().unwrap();
    assert!(matches!(again.vote(Vote::No).wait(), Err(Error::InvalidData { .. })));
    assert_eq!(transaction(&back).forget().wait(), Ok(false));
    parts[1].acknowledge().wait().unwrap();
    back.sync().wait().unwrap();
    assert_eq!(transaction(&back).forget().wait(), Ok(true));
    assert_eq!(transaction(&back).forget().wait(), Ok(true));
    parts[0].acknowledge().wait().unwrap();
    assert!(matches!(transaction(&back).join("a").wait(), Err(Error::NoNode { .. })));
}

#[test]
fn a_participant_lost_before_it_has_voted_aborts_it_and_after_that_does_not() {
    let cluster = Cluster::new(3);
    let coordinator = transaction(&cluster.node(0).session());
    for voted in [false, true] {
        coordinator.begin(&["a", "b"], b"").wait().unwrap();
        let lost = cluster.node(1).open_session().unwrap();
        lost.sync().wait().unwrap();
        let part = transaction(&lost).join("a").wait().unwrap();
        if voted {
            part.vote(Vote::Yes).wait().unwrap();
        }
        std::thread::scope(|scope| {
            let decided = scope.spawn(|| coordinator.decide().wait());
            cluster.expire(&lost);
            assert!(part.outcome().wait().unwrap_err().is_session_lost());
            if voted {
                let session = cluster.node(2).session();
                session.sync().wait().unwrap();
                transaction(&session).join("b").wait().unwrap().vote(Vote::Yes).wait().unwrap();
            }
            let expected = if voted { Phase::Committed } else { Phase::Aborted };
            assert_eq!(decided.join().unwrap(), Ok(expected));
        });
        cluster.node(0).session().sync().wait().unwrap();
        cluster.node(0).session().delete_recursive("/tx/1").wait().unwrap();
    }
    // A dropped participant counts as lost.
    coordinator.begin(&["a", "b"], b"").wait().unwrap();
    let session = cluster.node(0).session();
    drop(transaction(&session).join("a").wait().unwrap());
    assert_eq!(coordinator.decide().wait(), Ok(Phase::Aborted));
}

#[test]
fn a_participant_that_never_joins_is_waited_for_until_the_timeout() {
    let cluster = Cluster::new(3);
    let coordinator = transaction(&cluster.node(0).session());
    coordinator.begin(&["a", "b"], b"").wait().unwrap();
    let part = coordinator.join("a").wait().unwrap();
    part.vote(Vote::Yes).wait().unwrap();
    assert!(matches!(
        coordinator.decide().timeout(Duration::from_millis(50)).wait(),
        Err(Error::NotInTime { .. })
    ));
    assert_eq!(coordinator.abort().wait(), Ok(Phase::Aborted));
    assert_eq!(part.outcome().wait(), Ok(Phase::Aborted));
    let late = coordinator.join("b").wait().unwrap();
    assert_eq!(late.vote(Vote::Yes).wait(), Ok(Phase::Aborted), "it comes too late");
    assert!(matches!(coordinator.join("c").wait(), Err(Error::NoNode { .. })));
    assert!(matches!(
        TwoPhaseCommit::new(&cluster.node(0).session(), "/none").unwrap().begin(&[], b"").wait(),
        Err(Error::InvalidSetting { .. })
    ));
}

/// A second process joined by the name of a running participant: only one of the two votes.
#[test]
fn one_name_has_one_vote() {
    let cluster = Cluster::new(3);
    let coordinator = transaction(&cluster.node(0).session());
    coordinator.begin(&["a"], b"").wait().unwrap();
    let former = coordinator.join("a").wait().unwrap();
    let session = cluster.node(1).session();
    session.sync().wait().unwrap();
    let present = transaction(&session).join("a").wait().unwrap();
    cluster.node(0).session().sync().wait().unwrap();
    assert!(matches!(former.vote(Vote::No).wait(), Err(Error::NoNode { .. })));
    drop(former);
    cluster.node(0).session().sync().wait().unwrap();
    assert_eq!(present.vote(Vote::Yes).wait(), Ok(Phase::Voting), "it still exists");
    assert_eq!(coordinator.decide().wait(), Ok(Phase::Committed));
}

#[test]
fn joining_and_dropping_at_any_point_leaves_no_participant_that_looks_alive() {
    let cluster = Cluster::new(3);
    let session = cluster.node(1).session();
    let coordinator = transaction(&session);
    coordinator.begin(&["a"], b"").wait().unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for polls in 1..15 {
        let mut joining = Box::pin(coordinator.join("a"));
        for _ in 0..polls {
            if joining.as_mut().poll(&mut context).is_ready() {
                break;
            }
            if polls % 3 > 0 {
                cluster.advance(Duration::from_millis(10));
            }
        }
        drop(joining);
        session.sync().wait().unwrap();
        session.sync().wait().unwrap();
        let left = session.ephemerals().wait().unwrap();
        assert!(left.is_empty(), "{left:?} after {polls} polls");
    }
}
