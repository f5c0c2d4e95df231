//! Locks of real processes that are killed with SIGKILL.
//!
//! The processes are this test program itself: see `worker`.

#![cfg(unix)]

use std::time::Duration;

use crate::common::{PATIENCE, Process, addresses, name_of, node, place};
use quorate::recipes::{MultiLock, ReadWriteLock, ReentrantLock, Semaphore};
use quorate::{Coordinator, CreateMode};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

const DELAY: Duration = Duration::from_secs(3);

/// Not a test of its own: the code of the process that is killed. It holds one of each.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    let coordinator = node(&address).join(peers).wait().unwrap_or_else(|error| panic!("{error}"));
    let session = coordinator.session();
    let delayed = session.lock("/delayed").unwrap().with_lock_delay(DELAY).unwrap();
    let delayed = delayed.acquire().wait().unwrap();
    delayed.fenced().create("/held", b"", CreateMode::Persistent).commit().wait().unwrap();
    let writing = ReadWriteLock::new(&session, "/rw").unwrap().write().wait().unwrap();
    let permits = Semaphore::new(&session, "/permits", 2).unwrap().acquire_many(2).wait().unwrap();
    let several = MultiLock::new(&session, ["/b", "/a"]).unwrap().acquire().wait().unwrap();
    let reentrant = ReentrantLock::new(&session, "/reentrant").unwrap();
    let again = [reentrant.acquire().wait().unwrap(), reentrant.acquire().wait().unwrap()];
    let tokens = [&delayed, &*writing, &*again[1]].map(|guard| guard.fencing_token());
    println!("@held {} {} {}", tokens[0], tokens[1], tokens[2]);
    permits.wait_lost().wait().unwrap();
    drop((delayed, writing, permits, several, again));
    unreachable!("it is killed");
}

#[test]
fn a_killed_process_s_locks_go_to_the_next_after_the_session_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = addresses(3);
    let killed = Process::start(WORKER, dir.path(), &addresses, &addresses[0]);
    let nodes: Vec<Coordinator> = addresses[1..]
        .iter()
        .map(|address| {
            let data = dir.path().join(address.rsplit(':').next().unwrap());
            node(address).data_dir(data).join(&addresses).wait().unwrap()
        })
        .collect();
    let held = killed.wait("held");
    let tokens: Vec<u64> = held.split(' ').skip(1).map(|token| token.parse().unwrap()).collect();
    let session = nodes[0].session();
    let lock = session.lock("/delayed").unwrap();
    let shared = ReadWriteLock::new(&session, "/rw").unwrap();
    let semaphore = Semaphore::new(&session, "/permits", 2).unwrap();
    let several = MultiLock::new(&session, ["/a", "/c"]).unwrap();
    assert!(lock.try_acquire().wait().unwrap().is_none());
    assert!(shared.try_read().wait().unwrap().is_none());
    assert!(semaphore.try_acquire().wait().unwrap().is_none());
    assert!(several.try_acquire().wait().unwrap().is_none());
    let reentrant = ReentrantLock::new(&session, "/reentrant").unwrap();
    assert!(reentrant.try_acquire().wait().unwrap().is_none());
    drop(killed);
    let reading = shared.read().timeout(PATIENCE).wait().expect("its session has ended");
    assert!(reading.fencing_token() > tokens[1]);
    let again = reentrant.acquire().timeout(PATIENCE).wait().expect("however often it was held");
    assert!(again.fencing_token() > tokens[2]);
    // Its znode went with the same session; the lock-delay keeps the lock for longer.
    assert!(lock.try_acquire().wait().unwrap().is_none(), "there is a lock-delay");
    assert!(semaphore.acquire().timeout(PATIENCE).wait().expect("both are free").is_held());
    assert!(several.acquire().timeout(PATIENCE).wait().expect("all are free").is_held());
    let next = lock.acquire().timeout(PATIENCE).wait().expect("the delay is over");
    assert!(next.fencing_token() > tokens[0]);
}
