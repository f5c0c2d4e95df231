//! A thousand contenders: each has its turn, and each release wakes one waiter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use quorate::Coordinator;
use quorate::Result;
use quorate::recipes::{Lock, LockGuard};
use quorate::testing::Cluster;

use super::Task;

const CONTENDERS: usize = 1000;

/// The indexes of the woken tasks.
fn woken(tasks: &[Task<Result<LockGuard>>]) -> Vec<usize> {
    let is_woken = |task: &&Task<_>| task.woken.0.load(Ordering::SeqCst);
    tasks.iter().enumerate().filter(|(_, task)| is_woken(task)).map(|(at, _)| at).collect()
}

#[test]
fn a_thousand_contenders_have_their_turn_and_each_release_wakes_one() {
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().pending_requests_max(4 * CONTENDERS));
    let locks: Vec<Lock> =
        (0..3).map(|node| cluster.node(node).session().lock("/lock").unwrap()).collect();
    let mut holder = locks[0].acquire().wait().unwrap();
    let mut tasks: Vec<_> = (0..CONTENDERS)
        .map(|at| {
            let lock = locks[at % 3].clone();
            let mut task = Task::new(async move { lock.acquire().await });
            // They create their contenders in this order.
            assert!(task.poll().is_none());
            cluster.node(at % 3).session().sync().wait().unwrap();
            task
        })
        .collect();
    // All wait for the one before.
    loop {
        for task in &mut tasks {
            assert!(task.poll().is_none(), "two holders");
        }
        cluster.advance(Duration::from_millis(10));
        if woken(&tasks).is_empty() {
            break;
        }
    }
    assert_eq!(locks[1].contenders().wait().unwrap().len(), CONTENDERS + 1);
    for at in 0..CONTENDERS {
        let token = holder.fencing_token();
        holder.release().wait().unwrap();
        while woken(&tasks).is_empty() {
            cluster.advance(Duration::from_millis(1));
        }
        // By now all due watches have fired, on every node.
        for node in 0..3 {
            cluster.node(node).session().sync().wait().unwrap();
        }
        assert_eq!(woken(&tasks), [at], "one waiter, the next in the queue");
        holder = tasks[at].settle(&cluster).expect("it is its turn").unwrap();
        assert!(holder.fencing_token() > token);
        assert_eq!(woken(&tasks), [0; 0], "its calls since then have woken no waiter");
    }
}
