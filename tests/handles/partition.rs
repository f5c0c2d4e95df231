//! The user's view of partitions and stopped nodes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quorate::recipes::LockGuard;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, SessionState};

const SECOND: Duration = Duration::from_secs(1);

/// Checks that all replicas have the same state once everything has been applied everywhere.
fn assert_agreement(cluster: &Cluster) {
    for node in cluster.nodes() {
        node.wait_ready(30 * SECOND).wait().unwrap();
    }
    cluster.advance(SECOND);
    let mut states: Vec<(u64, u64)> = cluster
        .nodes()
        .iter()
        .map(|node| node.status())
        .map(|status| (status.zxid, status.state_hash.unwrap()))
        .collect();
    states.dedup();
    assert_eq!(states.len(), 1, "zxids and hashes {states:?}");
}

#[test]
fn an_isolated_leader_commits_nothing_and_its_pending_writes_happen_once_afterwards() {
    let cluster = Cluster::new(3);
    let old = cluster.leader().unwrap();
    let (cut, other) = (cluster.node(old).session(), cluster.node((old + 1) % 3).session());
    cut.create("/n", b"", CreateMode::Persistent).wait().unwrap();
    cluster.isolate(old);
    let mut late: Vec<_> = (0..20).map(|_| cut.set("/n", b"late")).collect();
    cluster.advance(5 * SECOND);
    let new = cluster.leader().unwrap();
    assert_ne!(new, old, "the others lead themselves");
    assert_eq!(other.set("/n", b"new").wait().unwrap().version, 1);
    assert!(late.iter_mut().all(|write| write.try_take().is_none()));
    assert_eq!(cut.get("/n").wait().unwrap().1.version, 0, "it still reads from its own replica");
    assert!(!cluster.node(old).status().is_leader, "it has noticed");
    cluster.heal();
    cluster.advance(3 * SECOND);
    let versions: Vec<u64> = late.into_iter().map(|write| write.wait().unwrap().version).collect();
    assert_eq!(versions, (2..22).collect::<Vec<_>>(), "each once, in order");
    assert_agreement(&cluster);
}

#[test]
fn a_session_survives_a_short_partition_and_reports_it() {
    let cluster = Cluster::new(3);
    let node = (cluster.leader().unwrap() + 1) % 3;
    let session = cluster.node(node).session();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let states = session.states();
    cluster.isolate(node);
    cluster.advance(6 * SECOND);
    assert_eq!(session.state(), SessionState::Suspended);
    assert!(session.is_alive(), "its deadline has not come");
    cluster.heal();
    cluster.advance(3 * SECOND);
    assert_eq!(session.state(), SessionState::Connected);
    let seen: Vec<SessionState> = states.events().try_iter().collect();
    assert_eq!(seen, [SessionState::Connected, SessionState::Suspended, SessionState::Connected]);
    session.set("/mine", b"still").wait().unwrap();
}

#[test]
fn a_session_is_over_for_its_node_before_the_cluster_gives_its_znodes_away() {
    let cluster = Cluster::new(3);
    let node = (cluster.leader().unwrap() + 1) % 3;
    let session = cluster.node(node).session();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let observer = cluster.node((node + 1) % 3).open_session().unwrap();
    observer.sync().wait().unwrap();
    cluster.isolate(node);
    let mut gap = 0;
    loop {
        cluster.advance(SECOND / 20);
        let (alive, gone) =
            (session.is_alive(), observer.exists("/mine").wait().unwrap().is_none());
        assert!(!(alive && gone), "both have it");
        gap += usize::from(!alive && !gone);
        if gone {
            break;
        }
    }
    assert!(gap > 0);
    assert!(matches!(session.get("/mine").wait(), Err(Error::SessionExpired { .. })));
    assert!(matches!(session.set("/mine", b"").wait(), Err(Error::SessionExpired { .. })));
}

#[test]
fn the_majority_of_five_goes_on_and_the_minority_reports_why_it_does_not() {
    let cluster = Cluster::with_settings(5, Coordinator::builder().request_timeout(2 * SECOND));
    let session = cluster.node(4).session();
    session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
    let cut = cluster.node(0).session();
    cut.sync().wait().unwrap();
    cluster.partition(&[&[0, 1], &[2, 3, 4]]);
    cluster.advance(4 * SECOND);
    assert!(cluster.leader().unwrap() >= 2);
    session.set("/n", b"1").wait().unwrap();
    // The cluster's clock runs with real time here.
    let error = cut.set("/n", b"2").wait().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Timeout { .. }), "{text}");
    assert!(text.contains("set /n") && text.contains("3 of 4 peers unreachable"), "{text}");
    let not_ready = cluster.node(1).wait_ready(SECOND / 10).wait().unwrap_err();
    assert!(not_ready.to_string().contains("unreachable"), "{not_ready}");
    cluster.heal();
    cluster.advance(3 * SECOND);
    assert_agreement(&cluster);
    assert_eq!(cut.get("/n").wait().unwrap().1.version, 2, "the write was in flight all the time");
}

#[test]
fn nodes_restart_with_their_data_in_any_order() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
    for round in 1..=10 {
        let down = round % 3;
        let up = (down + 1) % 3;
        cluster.stop(down);
        cluster.advance(4 * SECOND);
        let session = cluster.node(up).session();
        let stat = session.set("/n", round.to_string()).wait().unwrap();
        assert_eq!(stat.version, round as u64);
        cluster.restart(down);
        cluster.advance(2 * SECOND);
    }
    // All at once, too.
    for node in 0..3 {
        cluster.stop(node);
    }
    assert_eq!(cluster.leader(), None);
    for node in 0..3 {
        cluster.restart(node);
    }
    cluster.advance(5 * SECOND);
    assert_agreement(&cluster);
    let (data, stat) = cluster.node(2).session().get("/n").wait().unwrap();
    assert_eq!((&data[..], stat.version), (&b"10"[..], 10));
}

/// Contenders on all nodes, while nodes are isolated and come back: when one gets the lock, the former holder
/// does not claim it any more, and tokens only grow.
#[test]
fn no_two_hold_the_lock_at_a_time_whatever_is_cut_off() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().session_timeout(4 * SECOND));
    let holder: Mutex<Option<LockGuard>> = Mutex::new(None);
    let (last, turns, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut contenders = Vec::new();
        for contender in 0..6 {
            let (cluster, holder, last) = (&cluster, &holder, &last);
            let (turns, done) = (&turns, &done);
            contenders.push(scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    // A new session when the former one is over.
                    let session = cluster.node(contender % 3).session();
                    let lock = session.lock("/lock").unwrap();
                    let Ok(guard) = lock.acquire().timeout(10 * SECOND).wait() else {
                        continue;
                    };
                    let token = guard.fencing_token();
                    let mut held = holder.lock().unwrap();
                    // Checked under the mutex, so no thread releases in between.
                    if guard.is_held() {
                        let before = last.swap(token, Ordering::SeqCst);
                        assert!(token > before, "{token} after {before}");
                        if let Some(former) = held.as_ref() {
                            assert!(!former.is_held(), "two holders");
                        }
                        turns.fetch_add(1, Ordering::SeqCst);
                        *held = Some(guard);
                    }
                    drop(held);
                    std::thread::yield_now();
                    let own = holder.lock().unwrap().take_if(|held| held.fencing_token() == token);
                    // Some release the lock, and some hold it until another one takes over.
                    if let Some(own) = own
                        && token.is_multiple_of(5)
                    {
                        *holder.lock().unwrap() = Some(own);
                    }
                }
            }));
        }
        let mut random = 7_u64;
        // A contender that ends early has failed; joining it shows its panic.
        let all_run = || !contenders.iter().any(|contender| contender.is_finished());
        while turns.load(Ordering::SeqCst) < 300 && all_run() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match (random >> 40) % 4 {
                0..3 => cluster.isolate(((random >> 33) % 3) as usize),
                _ => cluster.heal(),
            }
            for _ in 0..(random >> 50) % 60 {
                cluster.advance(SECOND / 10);
            }
            cluster.heal();
            cluster.advance(SECOND);
        }
        cluster.heal();
        done.store(true, Ordering::SeqCst);
        for _ in 0..200 {
            cluster.advance(SECOND / 10);
        }
    });
    drop(holder);
    assert_agreement(&cluster);
}
