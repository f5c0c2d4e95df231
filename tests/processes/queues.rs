//! Queues and double barriers in real processes, some of which are killed.
//!
//! The processes are this test program itself: see `worker`.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{PATIENCE, Process, addresses, name_of, node, place};
use quorate::Error;
use quorate::recipes::{Barrier, DoubleBarrier, Queue};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

const ITEMS: usize = 60;

/// Not a test of its own: the code of the other processes. Lines for the test begin with '@'.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    let coordinator = node(&address).join(&peers).wait().unwrap_or_else(|error| panic!("{error}"));
    let session = coordinator.session();
    let queue = Queue::new(&session, "/queue").unwrap().max(10);
    let barrier = DoubleBarrier::new(&session, "/double", 3).unwrap();
    let putting = Barrier::new(&session, "/putting").unwrap();
    let is_producer = peers[0] == address;
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    if is_producer {
        putting.set().wait().unwrap();
    }
    let inside = barrier.enter().wait().unwrap();
    println!("@inside");
    if is_producer {
        for item in 0..ITEMS {
            queue.put(format!("{item}")).wait().unwrap();
        }
        putting.remove().wait().unwrap();
    } else {
        loop {
            let taken = queue.take().timeout(Duration::from_secs(1)).wait();
            let Ok(item) = taken else {
                assert!(matches!(taken, Err(Error::NotInTime { .. })), "{taken:?}");
                session.sync().wait().unwrap();
                // An item that another consumer has may come again.
                if !putting.is_set().wait().unwrap() && queue.len().wait() == Ok(0) {
                    break;
                }
                continue;
            };
            let data = String::from_utf8(item.data().to_vec()).unwrap();
            println!("@taken {data}");
            std::thread::yield_now();
            item.done().wait().unwrap();
            println!("@done {data}");
        }
    }
    inside.leave().wait().unwrap();
    println!("@left");
    // The others need this process to learn of it. The test ends the process.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A consumer is killed while it has an item. The item goes to the other consumer, and none is done twice or
/// lost. The others do not wait at the barrier for the dead one.
#[test]
fn a_killed_consumers_item_is_done_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let start = |place: usize| Process::start(WORKER, dir.path(), &peers, &peers[place]);
    let (producer, mut victim, other) = (start(0), start(1), start(2));
    for process in [&producer, &victim, &other] {
        assert_eq!(process.line(), "inside");
    }
    // How often each item was taken, and done.
    let mut seen: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let mut note = |line: &str| {
        let (what, item) = line.split_once(' ').unwrap();
        let (taken, done) = seen.entry(item.to_owned()).or_default();
        *(if what == "taken" { taken } else { done }) += 1;
    };
    for _ in 0..15 {
        note(&victim.line());
    }
    victim.kill().iter().for_each(|line| note(line));
    loop {
        match other.line() {
            line if line == "left" => break,
            line => note(&line),
        }
    }
    assert_eq!(producer.line(), "left");
    assert_eq!(seen.len(), ITEMS, "none is lost");
    for (item, (taken, done)) in &seen {
        // The victim's last item may have been done without being reported.
        let by_the_dead = *taken == 1 && *done == 0;
        assert!(*done == 1 || by_the_dead, "{item} was taken {taken} times and done {done} times");
    }
    assert!(seen.values().filter(|(_, done)| *done == 0).count() <= 1);
}
