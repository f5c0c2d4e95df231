//! Operator calls: reports of all members, and actions on them.

use std::time::Duration;

use crate::common::addresses;
use quorate::operate::{MemberReport, Role};
use quorate::recovery::Recovery;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session, WatchMode};

fn role(reports: &[MemberReport], address: &str) -> Role {
    reports.iter().find(|member| member.address == address).expect("a member").role
}

#[test]
fn every_member_reports_to_members_and_clients_alike() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let session = client.session();
    session.create("/a", b"", CreateMode::Ephemeral).wait().unwrap();
    let _watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    session.sync().wait().unwrap();
    for asked in [&client, &cluster.node(0), &cluster.node(2)] {
        let reports = asked.reports().wait().unwrap();
        assert_eq!(reports.len(), 3);
        let leads = reports.iter().filter(|member| member.role == Role::Leader);
        assert_eq!(leads.count(), 1);
        for member in &reports {
            let state = member.state.as_ref().expect("all report");
            assert!(!member.is_silent && state.unreachable.is_empty());
            assert!(state.applied_index <= state.committed_index);
            assert!(state.committed_index <= state.last_index && state.leader.is_some());
            assert!(state.log_bytes > 0);
        }
        let sum = |of: fn(&quorate::operate::MemberState) -> u64| -> u64 {
            reports.iter().filter_map(|member| member.state.as_ref()).map(of).sum()
        };
        assert_eq!((sum(|of| of.clients), sum(|of| of.watches)), (1, 1));
    }
    let sessions = client.sessions().wait().unwrap();
    let own = sessions.iter().find(|info| info.id == session.id()).expect("it is open");
    assert_eq!((own.ephemerals, own.watches), (1, Some(1)));
    assert!(own.owner.is_none() && own.served_by.is_some() && own.renewed.is_some());
}

/// Whoever floods the cluster was found by nobody: no list of sessions said who asks how much.
#[test]
fn the_session_that_asks_most_is_seen() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let (held, served) = (cluster.node(0).session(), client.session());
    let idle = client.open_session().unwrap();
    held.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    idle.sync().wait().unwrap();
    let sets: Vec<_> = (0..200).map(|_| held.set("/a", b"")).collect();
    for set in sets {
        set.wait().unwrap();
    }
    let gets: Vec<_> = (0..2000).map(|_| served.get("/a")).collect();
    for get in gets {
        get.wait().unwrap();
    }
    let listed = cluster.node(1).sessions().wait().unwrap();
    let rate = |session: &Session| {
        let info = listed.iter().find(|info| info.id == session.id());
        info.expect("it is open").requests_per_second.expect("its member reports")
    };
    let rates = [&idle, &held, &served].map(rate);
    assert!(rates.is_sorted() && rates[1] > 0 && rates[2] > rates[1], "{rates:?}");
}

#[test]
fn sessions_are_listed_with_the_names_of_their_instances() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses::addresses(1);
    let member =
        Coordinator::builder().name("store-0").data_dir(dir.path()).join(&peers).wait().unwrap();
    let client = Coordinator::builder().client().name("job-7").join(&peers).wait().unwrap();
    let unnamed = Coordinator::builder().client().join(&peers).wait().unwrap();
    let instances = [&member, &client, &unnamed];
    for instance in instances {
        instance.wait_ready(Duration::from_secs(30)).wait().unwrap();
    }
    let sessions = instances.map(|instance| instance.session());
    for session in &sessions {
        session.sync().wait().unwrap();
    }
    for asked in instances {
        let listed = asked.sessions().wait().unwrap();
        let name = |session: &Session| {
            let info = listed.iter().find(|info| info.id == session.id());
            info.expect("it is open").name.clone()
        };
        let names = sessions.each_ref().map(name);
        assert_eq!(names, [Some("store-0".to_owned()), Some("job-7".to_owned()), None]);
    }
    for name in ["a\nb".to_owned(), "a".repeat(65)] {
        let refused = Coordinator::builder().client().name(name).join(&peers).wait().unwrap_err();
        assert!(matches!(refused, Error::InvalidSetting { setting: "name", .. }), "{refused}");
    }
}

#[test]
fn reports_come_without_a_quorum() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    client.session().sync().wait().unwrap();
    cluster.node(0).session().sync().wait().unwrap();
    for stopped in [1, 2] {
        cluster.stop(stopped);
    }
    cluster.advance(Duration::from_secs(20));
    for asked in [&cluster.node(0), &client] {
        let reports = asked.reports().wait().unwrap();
        let silent = reports.iter().filter(|member| member.is_silent);
        assert_eq!((reports.len(), silent.count()), (3, 2));
        assert!(reports.iter().all(|member| member.role != Role::Leader && member.lag.is_none()));
        assert!(!asked.sessions().wait().unwrap().is_empty());
    }
}

#[test]
fn more_sessions_than_one_page_has_are_all_listed_once() {
    let cluster = Cluster::new(3);
    let opened = |at: usize| -> Vec<_> {
        (0..1100).map(|_| cluster.node(at).open_session().unwrap()).collect()
    };
    let (first, second) = (opened(0), opened(1));
    for at in 0..3 {
        cluster.node(at).session().sync().wait().unwrap();
    }
    let listed: Vec<_> =
        cluster.node(2).sessions().wait().unwrap().iter().map(|info| info.id).collect();
    assert!(listed.is_sorted_by(|one, other| one < other));
    assert!(first.iter().chain(&second).all(|session| listed.contains(&session.id())));
}

#[test]
fn leadership_moves_to_the_requested_member() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    client.session().sync().wait().unwrap();
    for to in [0, 1, 2] {
        let address = cluster.node(to).address();
        client.move_leader(&address, "a test").wait().unwrap();
        assert_eq!(role(&client.reports().wait().unwrap(), &address), Role::Leader);
        client.session().sync().wait().unwrap();
    }
    let refused = client.move_leader("nowhere:1", "a test").wait();
    assert!(
        matches!(&refused, Err(Error::Refused { reason, .. }) if reason.contains("members are"))
    );
    let stopped = (0..3).find(|at| cluster.leader() != Some(*at)).unwrap();
    let address = cluster.node(stopped).address();
    cluster.stop(stopped);
    cluster.advance(Duration::from_secs(5));
    let refused = client.move_leader(&address, "a test").wait();
    assert!(matches!(&refused, Err(Error::Refused { .. })), "{refused:?}");
}

fn voters(of: &Coordinator) -> usize {
    of.status().members.iter().filter(|member| member.votes).count()
}

#[test]
fn a_dead_member_is_removed_and_a_living_one_is_not() {
    let cluster = Cluster::new(3);
    let (dead, here) = (cluster.node(2).address(), cluster.node(0));
    here.session().sync().wait().unwrap();
    let refused = here.remove_member(&dead, "a test").wait().unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { reason, .. } if reason.contains("alive")),
        "{refused}"
    );
    cluster.stop(2);
    cluster.advance(Duration::from_secs(5));
    here.remove_member(&dead, "a test").wait().unwrap();
    here.session().sync().wait().unwrap();
    assert_eq!((here.reports().wait().unwrap().len(), voters(&here)), (2, 2));
}

#[test]
fn what_was_true_a_moment_ago_refuses_no_action() {
    let cluster = Cluster::new(3);
    let here = cluster.node(0);
    here.session().sync().wait().unwrap();
    // Its leader still takes it for alive.
    let dead = (1..3).find(|at| cluster.leader() != Some(*at)).unwrap();
    let address = cluster.node(dead).address();
    cluster.stop(dead);
    here.remove_member(&address, "a test").wait().unwrap();
    assert_eq!((here.reports().wait().unwrap().len(), voters(&here)), (2, 2));
}

#[test]
fn no_removal_costs_the_quorum() {
    let cluster =
        Cluster::with_settings(5, Coordinator::builder().request_timeout(Duration::from_secs(3)));
    let here = cluster.node(0);
    here.session().sync().wait().unwrap();
    let dead: Vec<String> = [3, 4].map(|at| cluster.node(at).address()).to_vec();
    cluster.stop(3);
    cluster.stop(4);
    cluster.advance(Duration::from_secs(5));
    here.remove_member(&dead[0], "a test").wait().unwrap();
    here.remove_member(&dead[1], "a test").wait().unwrap();
    here.session().sync().wait().unwrap();
    assert_eq!(voters(&here), 3);
    let leader = cluster.leader().expect("two more live");
    let stopped = (0..3).find(|at| *at != leader).unwrap();
    let last = cluster.node(stopped).address();
    cluster.stop(stopped);
    cluster.advance(Duration::from_secs(5));
    // Two of three are alive. Without the dead one, both of two are needed.
    cluster.node(leader).remove_member(&last, "a test").wait().unwrap();
    let other = (0..3).find(|at| *at != leader && *at != stopped).unwrap();
    let last = cluster.node(other).address();
    cluster.stop(other);
    cluster.advance(Duration::from_secs(20));
    // Without a quorum no leader can decide it.
    let refused = cluster.node(leader).remove_member(&last, "a test").wait();
    assert!(matches!(refused, Err(Error::Refused { .. } | Error::Timeout { .. })), "{refused:?}");
}

#[test]
fn a_client_makes_a_backup_as_a_member_does() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let session = client.session();
    // The backup comes in several pieces.
    for number in 0..20 {
        session
            .create(&format!("/n{number}"), vec![number; 100_000], CreateMode::Persistent)
            .wait()
            .unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    cluster.node(0).session().sync().wait().unwrap();
    let (one, other) = (
        client.backup(&one).wait().map(|_| one).unwrap(),
        cluster.node(0).backup(&other).wait().map(|_| other),
    );
    let (one, other) =
        (Recovery::new().verify(one).unwrap(), Recovery::new().verify(other.unwrap()).unwrap());
    assert_eq!(
        (one.cluster, one.znodes, one.sessions),
        (other.cluster, other.znodes, other.sessions)
    );
    assert!(one.znodes > 20 && one.bytes > 2_000_000);
}

#[test]
fn a_session_is_ended_by_an_operator() {
    let cluster = Cluster::new(3);
    let client = cluster.node(cluster.add_client());
    let session = cluster.node(1).session();
    session.create("/held", b"", CreateMode::Ephemeral).wait().unwrap();
    client.expire_session(session.id(), "a test").wait().unwrap();
    assert!(client.session().exists("/held").wait().unwrap().is_none());
    assert!(session.sync().wait().is_err());
    let gone = client.expire_session(session.id(), "a test");
    assert_eq!(gone.wait(), Err(Error::SessionExpired { session: session.id() }));
}

/// A lagging member still has sessions that have ended.
#[test]
fn a_session_that_has_ended_is_not_listed_whatever_a_lagging_member_has() {
    let cluster = Cluster::new(3);
    let lagging = (0..3).find(|at| Some(*at) != cluster.leader()).unwrap();
    let here = cluster.node((0..3).find(|at| *at != lagging).unwrap());
    let ended = here.open_session().unwrap();
    cluster.node(lagging).session().sync().wait().unwrap();
    cluster.stop(lagging);
    let id = ended.id();
    ended.close().wait().unwrap();
    cluster.restart(lagging);
    for _ in 0..50 {
        let listed = here.sessions().wait().unwrap();
        assert!(listed.iter().all(|info| info.id != id));
        cluster.advance(Duration::from_millis(10));
    }
}

#[test]
fn an_action_without_a_leader_waits_for_one_until_its_time_is_up() {
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().request_timeout(Duration::from_secs(2)));
    let client = cluster.node(cluster.add_client());
    client.session().sync().wait().unwrap();
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let id = session.id();
    cluster.isolate(0);
    cluster.stop(1);
    cluster.advance(Duration::from_secs(20));
    for asked in [&cluster.node(0), &client] {
        let late = asked.expire_session(id, "a test").wait();
        assert!(
            matches!(&late, Err(Error::Timeout { reason, .. }) if reason.contains("leader")),
            "{late:?}"
        );
    }
    cluster.heal();
    cluster.advance(Duration::from_secs(20));
    let held = cluster.node(2).open_session().unwrap();
    held.sync().wait().unwrap();
    client.expire_session(held.id(), "a test").wait().unwrap();
}
