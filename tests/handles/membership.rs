//! Changes of membership through the public interface, in memory.

use std::time::Duration;

use quorate::operate::ReasonKind;
use quorate::testing::Cluster;
use quorate::{Availability, Coordinator, CreateMode, Error, EventKind, WatchMode};

const SECOND: Duration = Duration::from_secs(1);

/// The addresses of the voters and of the learners, as a node has them.
fn members(cluster: &Cluster, node: usize) -> (Vec<String>, Vec<String>) {
    let members = cluster.node(node).status().members.into_iter();
    let (voters, learners): (Vec<_>, Vec<_>) = members.partition(|member| member.votes);
    let sorted = |members: Vec<quorate::operate::MemberStatus>| {
        let mut addresses: Vec<String> = members.into_iter().map(|member| member.address).collect();
        addresses.sort();
        addresses
    };
    (sorted(voters), sorted(learners))
}

/// Makes a node leave for good while time passes.
fn leave(cluster: &Cluster, node: usize) {
    let leaver = cluster.node(node);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| leaver.leave(60 * SECOND).wait().unwrap());
        while !leaving.is_finished() {
            cluster.advance(SECOND / 10);
        }
    });
}

#[test]
fn a_new_instance_has_everything_and_takes_part() {
    let cluster = Cluster::new(3);
    cluster.node(0).session().create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    let new = cluster.add_node();
    cluster.advance(5 * SECOND);
    let coordinator = cluster.node(new);
    assert!(coordinator.is_ready());
    assert_eq!(coordinator.address(), "node-3");
    let session = coordinator.session();
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"1");
    session.set("/a", b"2").wait().unwrap();
    cluster.node(0).session().sync().wait().unwrap();
    assert_eq!(&cluster.node(0).session().get("/a").wait().unwrap().0[..], b"2");
    let config = session.get("/zookeeper/config").wait().unwrap().0;
    let config = String::from_utf8(config.to_vec()).unwrap();
    assert_eq!(config.matches(":participant").count(), 3, "{config}");
    assert_eq!(config.matches(":observer").count(), 1, "{config}");
}

#[test]
fn an_instance_that_leaves_hands_its_vote_over_and_comes_back_as_another_member() {
    let cluster = Cluster::new(3);
    cluster.add_node();
    cluster.advance(5 * SECOND);
    let leader = cluster.leader().unwrap();
    let leaver = cluster.node(leader);
    let stay = (leader + 1) % 3;
    leave(&cluster, leader);
    assert!(matches!(leaver.session().get("/").wait(), Err(Error::Stopped { .. })));
    cluster.advance(SECOND);
    let (voters, learners) = members(&cluster, stay);
    assert!(!voters.contains(&format!("node-{leader}")));
    assert_eq!((voters.len(), learners.len()), (3, 0));
    cluster.restart(leader);
    cluster.advance(5 * SECOND);
    assert_eq!(members(&cluster, stay).1, [format!("node-{leader}")]);
    cluster.node(leader).session().sync().wait().unwrap();
}

#[test]
fn the_last_instance_cannot_leave() {
    let cluster = Cluster::new(1);
    let error = cluster.node(0).leave(Duration::from_millis(50)).wait().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    cluster.node(0).session().create("/still", b"", CreateMode::Persistent).wait().unwrap();
}

#[test]
fn an_instance_with_an_empty_disk_takes_the_place_of_the_one_that_it_was() {
    let cluster = Cluster::new(3);
    cluster.node(0).session().create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    cluster.wipe(1);
    cluster.restart(1);
    cluster.advance(10 * SECOND);
    let (voters, learners) = members(&cluster, 0);
    assert_eq!((voters.len(), learners.len()), (3, 0));
    assert!(voters.contains(&"node-1".to_owned()));
    assert_eq!(&cluster.node(1).session().get("/a").wait().unwrap().0[..], b"1");
    // The new member really votes.
    cluster.stop(2);
    cluster.advance(5 * SECOND);
    cluster.node(1).session().set("/a", b"2").wait().unwrap();
}

/// Each instance is replaced by one with a new address and a new disk, while writes go on and a lock is held.
/// No acknowledged write is lost.
#[test]
fn a_whole_cluster_is_replaced_under_load() {
    let cluster = Cluster::with_settings(5, Coordinator::builder().replace_after(10 * SECOND));
    cluster.advance(SECOND);
    let mut written = 0;
    let mut tokens = Vec::new();
    for old in 0..5 {
        let new = cluster.add_node();
        for _ in 0..50 {
            cluster.advance(SECOND / 10);
            let session = cluster.node(new.min(5 + old)).session();
            let created = session.create(&format!("/n{written}"), b"", CreateMode::Persistent);
            if created.wait().is_ok() {
                written += 1;
            }
        }
        let held = cluster.node(new).session().lock("/lock").unwrap().acquire().wait().unwrap();
        tokens.push(held.fencing_token());
        leave(&cluster, old);
        assert!(held.is_held());
    }
    let last = cluster.node(9);
    last.session().sync().wait().unwrap();
    for n in 0..written {
        assert!(
            last.session().exists(&format!("/n{n}")).wait().unwrap().is_some(),
            "/n{n} of {written}"
        );
    }
    assert!(written >= 200, "{written} of 250 writes while members came and went");
    assert!(tokens.is_sorted(), "{tokens:?}");
    cluster.advance(SECOND);
    let (voters, _) = members(&cluster, 9);
    assert_eq!(voters, (5..10).map(|node| format!("node-{node}")).collect::<Vec<_>>());
}

#[test]
fn availability_is_reported_as_it_changes() {
    let cluster = Cluster::new(3);
    cluster.advance(2 * SECOND);
    let observer = cluster.leader().unwrap();
    let others: Vec<usize> = (0..3).filter(|node| *node != observer).collect();
    let coordinator = cluster.node(observer);
    assert!(coordinator.safe_to_stop());
    let changes = coordinator.availability_changes();
    cluster.stop(others[0]);
    cluster.advance(10 * SECOND);
    assert!(!coordinator.safe_to_stop());
    cluster.stop(others[1]);
    cluster.advance(10 * SECOND);
    assert!(!coordinator.is_ready());
    cluster.restart(others[0]);
    cluster.restart(others[1]);
    cluster.advance(10 * SECOND);
    let kinds: Vec<&str> = changes
        .events()
        .try_iter()
        .map(|change| match change {
            Availability::Healthy { spare } => {
                assert_eq!(spare, 1);
                "healthy"
            }
            Availability::AtRisk { reason } => {
                assert!(reason.text.contains(&format!("node-{}", others[0])), "{reason}");
                "at risk"
            }
            _ => "no quorum",
        })
        .collect();
    assert_eq!(kinds[..3], ["healthy", "at risk", "no quorum"]);
    assert_eq!(kinds.last(), Some(&"healthy"));
}

/// What had no reason of its own got that of something else.
#[test]
fn each_state_has_its_own_reason() {
    let cluster = Cluster::new(3);
    cluster.advance(2 * SECOND);
    let reason = |node: usize| cluster.node(node).status().not_ready;
    let kind = |node: usize| reason(node).map(|reason| reason.kind);
    assert_eq!([0, 1, 2].map(kind), [None; 3]);
    let leader = cluster.leader().unwrap();
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();

    cluster.isolate(leader);
    cluster.advance(10 * SECOND);
    assert_eq!(kind(others[0]), None, "another one leads");
    let alone = reason(leader).unwrap();
    assert_eq!(alone.kind, ReasonKind::VotersMissing, "{alone}");
    assert!(alone.text.contains("2 of 3 voters of the cluster are missing"), "{alone}");
    let availability = cluster.node(leader).availability();
    assert_eq!(availability, Availability::NoQuorum { reason: alone });

    cluster.heal();
    cluster.advance(10 * SECOND);
    assert_eq!([0, 1, 2].map(kind), [None; 3]);
    let stopped = cluster.node(leader);
    cluster.stop(leader);
    assert_eq!(stopped.status().not_ready.unwrap().kind, ReasonKind::Stopped);
    assert!(!stopped.is_ready());
}

/// Like ZooKeeper's watch on the configuration, with the stat of a write (ZooKeeper's version is -1 there).
#[test]
fn a_membership_change_writes_config_and_fires_its_watch() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let path = "/zookeeper/config";
    let (_, before) = session.get(path).wait().unwrap();
    let watch = session.watch(path, WatchMode::Persistent).wait().unwrap();
    cluster.add_node();
    cluster.advance(5 * SECOND);
    let (config, after) = session.get(path).wait().unwrap();
    let events: Vec<_> = watch.events().try_iter().collect();
    assert!(!events.is_empty());
    assert!(events.iter().all(|event| event.kind == EventKind::DataChanged && event.path == path));
    assert_eq!(events.last().unwrap().zxid, after.mzxid);
    assert_eq!(after.version, before.version + events.len() as u64);
    assert_eq!((after.czxid, after.cversion, after.aversion), (0, 0, 0));
    assert_eq!(after.pzxid, before.pzxid);
    let config = String::from_utf8(config.to_vec()).unwrap();
    assert!(config.ends_with(&format!("version={:x}", after.mzxid)), "{config}");
}
