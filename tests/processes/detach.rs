//! Detached sessions, which outlive their instances.

use std::io::BufRead;
use std::time::Duration;

use crate::common::{PATIENCE, Process, addresses, name_of, node, place};
use quorate::session::SessionId;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, SessionState, WatchMode};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

const TIMEOUT: Duration = Duration::from_secs(30);

fn cluster() -> Cluster {
    Cluster::with_settings(3, Coordinator::builder().session_timeout(TIMEOUT))
}

#[test]
fn a_detached_session_stays_open_and_is_over_for_its_holder() {
    let cluster = cluster();
    for place in [0, cluster.add_client()] {
        let coordinator = cluster.node(place);
        let session = coordinator.session();
        let chroot = session.chroot("/zookeeper").unwrap();
        session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
        let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
        let watch = session.watch("/mine", WatchMode::Persistent).wait().unwrap();
        let states = session.states();
        // Requested before the detach, and answered before the session ends here.
        let set = session.set("/mine", b"1");
        let (id, password) = session.detach().wait().unwrap();
        assert_eq!(set.wait().unwrap().version, 1);
        assert_eq!((id, password), (session.id(), session.password()));

        let over = Error::SessionDetached { session: id };
        assert!(over.is_session_lost() && !over.is_outcome_unknown());
        assert_eq!(session.set("/mine", b"2").wait().unwrap_err(), over);
        assert_eq!(chroot.get("/").wait().unwrap_err(), over);
        assert_eq!(session.detach().wait().unwrap_err(), over);
        assert_eq!(session.sync().wait().unwrap_err(), over);
        assert!(!session.is_alive() && !guard.is_held());
        assert_eq!(states.events().iter().last(), Some(SessionState::Detached));
        while watch.recv().wait().unwrap().is_some() {}
        // Closing this handle closes nothing, and the instance's next session is another one.
        session.close().wait().unwrap();
        drop((session, chroot, guard));
        let next = coordinator.session();
        assert_ne!(next.id(), id);
        next.sync().wait().unwrap();
        assert!(next.exists("/mine").wait().unwrap().is_some());

        let again = cluster.node(1).resume(id, password).wait().unwrap();
        assert_eq!(again.timeout(), TIMEOUT);
        cluster.advance(TIMEOUT * 2);
        assert_eq!(again.set("/mine", b"3").wait().unwrap().version, 2);
        assert_eq!(again.ephemerals().wait().unwrap().len(), 2, "the lock is still taken");
        again.close().wait().unwrap();
    }
}

#[test]
fn a_detached_session_that_nobody_resumes_expires_after_its_timeout() {
    let cluster = cluster();
    for place in [0, cluster.add_client()] {
        let session = cluster.node(place).open_session_with(Duration::from_secs(10)).unwrap();
        session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
        let (id, password) = session.detach().wait().unwrap();
        cluster.advance(Duration::from_secs(5));
        let other = cluster.node(1).session();
        assert!(other.exists("/mine").wait().unwrap().is_some());
        cluster.advance(Duration::from_secs(8));
        assert!(other.exists("/mine").wait().unwrap().is_none());
        let late = cluster.node(1).resume(id, password).wait().unwrap_err();
        assert_eq!(late, Error::SessionExpired { session: id });
    }
}

#[test]
fn a_session_that_is_not_open_cannot_be_detached() {
    let cluster = Cluster::with_settings(
        3,
        Coordinator::builder().request_timeout(Duration::from_millis(50)),
    );
    let session = cluster.node(0).session();
    session.close().wait().unwrap();
    assert_eq!(
        session.detach().wait().unwrap_err(),
        Error::SessionClosed { session: session.id() }
    );
    cluster.isolate(0);
    let session = cluster.node(0).session();
    assert!(matches!(session.detach().wait(), Err(Error::Timeout { .. })));
    assert_eq!(session.state(), SessionState::Connecting);
    cluster.heal();
    session.create("/later", b"", CreateMode::Ephemeral).wait().unwrap();
}

#[test]
fn an_instance_closes_and_keeps_its_sessions() {
    let cluster = cluster();
    for place in [0, cluster.add_client()] {
        let coordinator = cluster.node(place);
        let (own, other) = (coordinator.session(), coordinator.open_session().unwrap());
        let closed = coordinator.open_session().unwrap();
        own.create("/own", b"", CreateMode::Ephemeral).wait().unwrap();
        other.create("/other", b"", CreateMode::Ephemeral).wait().unwrap();
        closed.create("/closed", b"", CreateMode::Ephemeral).wait().unwrap();
        closed.close().wait().unwrap();
        let set = other.set("/other", b"1");
        let mut kept = coordinator.close_keeping_sessions().wait().unwrap();
        assert_eq!(set.wait().unwrap().version, 1, "the write is done before the detach");
        kept.sort_by_key(|(id, _)| *id != own.id());
        let expected = [(own.id(), own.password()), (other.id(), other.password())];
        assert_eq!(kept, expected);
        assert_eq!(own.state(), SessionState::Detached);
        assert!(own.sync().wait().is_err() && coordinator.session().sync().wait().is_err());

        cluster.advance(TIMEOUT / 2);
        cluster.restart(place);
        let resumed =
            kept.iter().map(|(id, password)| cluster.node(place).resume(*id, *password).wait());
        let resumed: Vec<_> = resumed.map(Result::unwrap).collect();
        cluster.advance(TIMEOUT * 2);
        assert_eq!(resumed[0].ephemerals().wait().unwrap(), ["/own"]);
        assert_eq!(resumed[1].ephemerals().wait().unwrap(), ["/other"]);
        drop((own, other));
        cluster.node(place).close().wait().unwrap();
        let seen = cluster.node(1).session();
        seen.sync().wait().unwrap();
        assert!(seen.exists("/own").wait().unwrap().is_none(), "a clean close closes the sessions");
        cluster.restart(place);
    }
}

/// A resumed session once took over the default timeout of its new instance.
#[test]
fn a_resumed_session_keeps_its_timeout_unless_another_is_asked_for() {
    let cluster = cluster();
    let seconds = Duration::from_secs;
    for place in [0, cluster.add_client()] {
        let here = cluster.node(place);
        let first = here.open_session_with(seconds(10)).unwrap();
        first.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
        let (id, password) = (first.id(), first.password());
        let timeout_in_the_cluster = || {
            cluster.node(1).session().sync().wait().unwrap();
            let sessions = cluster.node(1).sessions().wait().unwrap();
            sessions.into_iter().find(|session| session.id == id).map(|session| session.timeout)
        };
        let resumed = here.resume(id, password).wait().unwrap();
        assert_eq!(resumed.timeout(), seconds(10));
        assert_eq!(timeout_in_the_cluster(), Some(seconds(10)));
        // ZooKeeper's rule: from 2 ticks to 20, and the latest request wins.
        let tick = seconds(2);
        let mut holders = vec![first, resumed];
        for (asked, given) in [(15, seconds(15)), (1, tick * 2), (100, tick * 20)] {
            let resumed = here.resume_with(id, password, seconds(asked)).wait().unwrap();
            assert_eq!(resumed.timeout(), given);
            assert_eq!(timeout_in_the_cluster(), Some(given));
            holders.push(resumed);
        }
        // The session has the new timeout from then on, and its holder uses it.
        let other = cluster.node(2).resume(id, password).wait().unwrap();
        assert_eq!(other.timeout(), tick * 20);
        other.detach().wait().unwrap();
        let last = here.resume_with(id, password, seconds(6)).wait().unwrap();
        // The timeout of the former holder has passed.
        cluster.advance(tick * 22);
        cluster.isolate(place);
        cluster.advance(seconds(6));
        assert!(!last.is_alive());
        // The leader may have been isolated; the next one grants a full timeout.
        cluster.advance(seconds(14));
        assert_eq!(timeout_in_the_cluster(), None);
        cluster.heal();
        cluster.advance(seconds(2));
    }
}

/// Runs in a process of its own: a member that ends and keeps its session, or resumes its predecessor's.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    let builder = match std::env::var_os(CLIENT) {
        Some(_) => Coordinator::builder().client(),
        None => node(&address),
    };
    // Longer than a process takes to start on any machine.
    let coordinator = builder.session_timeout(Duration::from_secs(40)).join(&peers).wait().unwrap();
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    println!("@ready");
    let mut session = coordinator.session();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["create", path] => {
                session.create(path, b"", CreateMode::Ephemeral).wait().unwrap();
                println!("@created");
            }
            ["keep"] => {
                for (id, password) in coordinator.close_keeping_sessions().wait().unwrap() {
                    if id == session.id() {
                        println!("@kept {} {}", id.number(), u128::from_be_bytes(password));
                    }
                }
                return;
            }
            ["resume", id, password] => {
                let password = password.parse::<u128>().unwrap().to_be_bytes();
                let id = SessionId::from_number(id.parse().unwrap());
                session = coordinator.resume(id, password).wait().unwrap();
                println!("@resumed {}", session.ephemerals().wait().unwrap().join(" "));
            }
            _ => panic!("{line:?}"),
        }
    }
}

/// With this variable, the worker is a client.
const CLIENT: &str = "QUORATE_TEST_CLIENT";

/// A rolling restart as a deployment does it: each process ends and a successor takes its place. Its
/// ephemeral znode exists all the time.
#[test]
fn an_ephemeral_survives_the_restart_of_its_process() {
    let dirs = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let start = |address: &str| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        if !peers.iter().any(|peer| peer == address) {
            command.env(CLIENT, "");
        }
        Process::run(WORKER, &mut command, dirs.path(), &peers, address)
    };
    let client = addresses(1).remove(0);
    let mut members: Vec<Process> = peers.iter().map(|peer| start(peer)).collect();
    members.iter().for_each(|member| drop(member.wait("ready")));
    let mut fourth = start(&client);
    fourth.wait("ready");

    let watching = Coordinator::builder().client().join(&peers).wait().unwrap();
    watching.wait_ready(PATIENCE).wait().unwrap();
    let session = watching.session();
    for (place, address) in peers.iter().chain([&client]).enumerate() {
        let process = members.get_mut(place).unwrap_or(&mut fourth);
        let path = format!("/of-{place}");
        process.order(&format!("create {path}"));
        process.wait("created");
        session.sync().wait().unwrap();
        let (stat, watch) = session.exists_and_watch(&path).wait().unwrap();
        process.order("keep");
        let kept = process.wait("kept");
        *process = start(address);
        process.wait("ready");
        process.order(&format!("resume {}", &kept["kept ".len()..]));
        assert_eq!(process.wait("resumed"), format!("resumed {path}"));
        session.sync().wait().unwrap();
        let now = session.exists(&path).wait().unwrap();
        assert_eq!(now, stat, "it is the same znode");
        assert!(watch.events().is_empty(), "it was never deleted");
    }
}
