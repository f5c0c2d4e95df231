//! A process that forks has two copies of its handles, but one node.
//!
//! Each test is alone in its process: a fork has copies of all sockets and locks of files, also those of other tests.

use std::io::{PipeWriter, Read};
use std::sync::Barrier;

use crate::alone;
use crate::common::forks::in_a_fork;
use crate::common::{PATIENCE, addresses};
use fork::Fork;
use quorate::StartError;
use quorate::recipes::LeaderLatch;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Result, SessionState, WatchMode};

/// A fork that only has what this process has, until the pipe is closed.
fn idle_child() -> (i32, PipeWriter) {
    let (mut alive, closes) = std::io::pipe().unwrap();
    match fork::fork().unwrap() {
        Fork::Parent(child) => (child, closes),
        Fork::Child => {
            drop(closes);
            let _ = alive.read(&mut [0]);
            std::process::exit(0);
        }
    }
}

fn await_end(child: i32) {
    while fork::waitpid_nohang(child).unwrap().is_none() {
        std::thread::yield_now();
    }
}

/// Checks that an error reports that the node runs in another process, and in which.
fn check_forked<T: std::fmt::Debug>(result: Result<T>, parent: u32) {
    match result {
        Err(error @ Error::Stopped { .. }) => {
            let text = error.to_string();
            assert!(text.contains(&format!("process {parent}")) && text.contains("fork"), "{text}");
            assert!(error.is_session_lost());
        }
        other => panic!("{other:?}"),
    }
}

/// In a fork, a lock still counted as held, calls waited for a thread that did not exist, and dropping the
/// last handle panicked.
#[test]
fn a_fork_has_no_session_and_no_lock() {
    alone(concat!(module_path!(), "::a_fork_has_no_session_and_no_lock"), || {
        let (peers, dir) = (addresses(2), tempfile::tempdir().unwrap());
        let join = |place: usize| {
            let dir = dir.path().join(place.to_string());
            Coordinator::builder().data_dir(dir).join([&peers[place]])
        };
        let coordinator = join(0).wait().unwrap();
        let session = coordinator.session();
        session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
        let guard = session.lock("/lock").unwrap().acquire().wait().unwrap();
        let leadership =
            LeaderLatch::new(&session, "/leader", b"").unwrap().campaign().wait().unwrap();
        let watch = session.watch("/mine", WatchMode::Persistent).wait().unwrap();
        let states = session.states();
        assert!(guard.is_held() && leadership.is_held());

        let parent = std::process::id();
        let handles = (coordinator, session, guard, leadership, watch, states);
        in_a_fork(|| {
            let (coordinator, session, guard, leadership, ..) = &handles;
            assert!(!session.is_alive() && !guard.is_held() && !leadership.is_held());
            assert_eq!(session.state(), SessionState::Expired);
            check_forked(session.set("/mine", b"1").wait(), parent);
            check_forked(session.sync().wait(), parent);
            check_forked(session.delete("/mine").wait(), parent);
            check_forked(session.lock("/lock").unwrap().acquire().wait(), parent);
            check_forked(coordinator.wait_ready(PATIENCE).wait(), parent);
            check_forked(coordinator.leave(PATIENCE).wait(), parent);
            check_forked(coordinator.resume(session.id(), session.password()).wait(), parent);
            assert!(coordinator.status().stopped.is_some());
            assert!(!coordinator.is_ready() && !coordinator.safe_to_stop());
            check_forked(coordinator.sessions().wait(), parent);
            check_forked(coordinator.reports().wait(), parent);
            let _ = guard.wait_lost().wait();
            coordinator.close().wait().unwrap();
            // The error advises this.
            let client = Coordinator::builder().client().join(&peers[..1]).wait().unwrap();
            client.wait_ready(PATIENCE).wait().unwrap();
            client.session().create("/own", b"", CreateMode::Persistent).wait().unwrap();
            client.close().wait().unwrap();
            // The error advises against this.
            let refused = join(1).wait().unwrap_err();
            assert!(
                matches!(refused, Error::Start(StartError::DataDirUnusable { .. })),
                "{refused}"
            );
            assert!(refused.to_string().contains(&format!("process {parent}")), "{refused}");
            // The parent listens at its own address, which is not the reason.
            let refused = join(0).wait().unwrap_err().to_string();
            assert!(refused.contains(&format!("a fork of process {parent}")), "{refused}");
        });

        let (coordinator, session, guard, leadership, watch, states) = handles;
        assert!(guard.is_held() && leadership.is_held() && session.is_alive());
        session.set("/mine", b"2").wait().unwrap();
        assert_eq!(watch.recv().wait().unwrap().map(|event| event.path).as_deref(), Some("/mine"));
        assert_eq!(states.events().try_iter().last(), Some(SessionState::Connected));

        // The last handles of the child's copies, in all orders.
        let mut handles = Some((coordinator, session, guard, leadership, watch, states));
        let moved = &mut handles;
        in_a_fork(|| drop(moved.take()));
        let (coordinator, session, guard, ..) = handles.as_ref().unwrap();
        assert!(guard.is_held());
        assert!(
            session.exists("/mine").wait().unwrap().is_some()
                && session.exists("/own").wait().unwrap().is_some()
        );
        assert_eq!(coordinator.sessions().wait().unwrap().len(), 1);
    });
}

#[test]
fn a_fork_has_no_cluster_in_memory() {
    alone(concat!(module_path!(), "::a_fork_has_no_cluster_in_memory"), || {
        let cluster = Cluster::new(3);
        let session = cluster.node(0).session();
        session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
        cluster.isolate(0);
        let parent = std::process::id();
        let waiting = session.set("/mine", b"1");
        let mut handles = Some((cluster, session, waiting));
        let copies = &mut handles;
        in_a_fork(|| {
            let (cluster, session, waiting) = copies.take().unwrap();
            check_forked(waiting.wait(), parent);
            assert!(!session.is_alive());
            check_forked(session.set("/mine", b"2").wait(), parent);
            drop((cluster, session));
        });
        let (cluster, session, waiting) = handles.take().unwrap();
        cluster.heal();
        assert_eq!(waiting.wait().unwrap().version, 1);
        assert!(session.is_alive());
    });
}

/// A child that was forked while its parent was a member keeps the parent's socket and data directory. When
/// the parent joined again, the errors sent its user to look for another process, or for `Builder::advertise`.
#[test]
fn a_join_beside_a_forked_child_says_what_is_in_the_way() {
    alone(
        concat!(module_path!(), "::a_join_beside_a_forked_child_says_what_is_in_the_way"),
        || {
            let (own, dir) = (addresses(2), tempfile::tempdir().unwrap());
            let join =
                |address: &String| Coordinator::builder().data_dir(dir.path()).join([address]);
            let advertised = |address: &String| {
                Coordinator::builder().advertise(address).data_dir(dir.path()).join([address])
            };
            let coordinator = join(&own[0]).wait().unwrap();
            coordinator.wait_ready(PATIENCE).wait().unwrap();
            let (child, closes) = idle_child();
            coordinator.close().wait().unwrap();
            drop(coordinator);
            for error in [join(&own[0]), advertised(&own[0]), join(&own[1])]
                .map(|joined| joined.wait().unwrap_err())
            {
                let text = error.to_string();
                assert!(text.contains("a child that this process has forked"), "{text}");
            }
            drop(closes);
            await_end(child);
            join(&own[0]).wait().unwrap().wait_ready(PATIENCE).wait().unwrap();
        },
    );
}

/// As a child of `std::process::Command` between its fork and its exec: it has the sockets for a moment.
#[test]
fn a_join_waits_for_a_child_that_has_the_address_for_a_moment() {
    alone(
        concat!(module_path!(), "::a_join_waits_for_a_child_that_has_the_address_for_a_moment"),
        || {
            let (own, dir) = (addresses(2), tempfile::tempdir().unwrap());
            let join = || {
                Coordinator::builder().data_dir(dir.path().join("data")).join(&own).wait().unwrap()
            };
            for _ in 0..3 {
                let coordinator = join();
                assert_eq!(coordinator.address(), own[0]);
                let (child, closes) = idle_child();
                coordinator.close().wait().unwrap();
                drop(coordinator);
                // The child ends while the next member waits for its address, and does not take the other one.
                let begins = Barrier::new(2);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        begins.wait();
                        let coordinator = join();
                        assert_eq!(coordinator.address(), own[0]);
                        coordinator.close().wait().unwrap();
                    });
                    begins.wait();
                    drop(closes);
                });
                await_end(child);
            }
        },
    );
}
