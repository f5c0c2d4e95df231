//! A loss wakes all tasks and threads that wait for it.

#![expect(clippy::disallowed_methods, reason = "one that is never woken must not hang the test")]

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use quorate::recipes::{Group, Held, Item, LeaderLatch, Leadership, Lost, Membership, Queue};
use quorate::testing::Cluster;
use quorate::{Pending, Session, WatchMode};

use super::Task;

const TASKS: usize = 5;
/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that can be lost.
trait Lose: Send + Sync + 'static {
    fn acquire(session: &Session) -> Self;
    /// The znode whose deletion is the loss.
    fn znode(&self) -> String;
    fn wait_lost(&self) -> Pending<'_, Lost>;
    fn signal(&self) -> crossbeam_channel::Receiver<quorate::WatchEvent>;
}

/// The methods that have the same names on all of these types.
macro_rules! loss_methods {
    () => {
        fn wait_lost(&self) -> Pending<'_, Lost> {
            Held::wait_lost(self)
        }

        fn signal(&self) -> crossbeam_channel::Receiver<quorate::WatchEvent> {
            self.lost().clone()
        }
    };
}

impl Lose for Leadership {
    fn acquire(session: &Session) -> Leadership {
        LeaderLatch::new(session, "/leader", "").unwrap().campaign().wait().unwrap()
    }

    fn znode(&self) -> String {
        self.path().to_owned()
    }

    loss_methods!();
}

impl Lose for Membership {
    fn acquire(session: &Session) -> Membership {
        Group::new(session, "/group").unwrap().join("me", b"").wait().unwrap()
    }

    fn znode(&self) -> String {
        self.path().to_owned()
    }

    loss_methods!();
}

impl Lose for Item {
    fn acquire(session: &Session) -> Item {
        let queue = Queue::new(session, "/queue").unwrap();
        queue.put("item").wait().unwrap();
        queue.take().wait().unwrap()
    }

    fn znode(&self) -> String {
        format!("/queue/claims/{}", self.path().rsplit('/').next().unwrap())
    }

    loss_methods!();
}

/// Tasks that wait, as `task` makes them.
fn waiting<T>(cluster: &Cluster, task: impl Fn() -> Task<T>) -> Vec<Task<T>> {
    let mut waiting: Vec<Task<T>> = (0..TASKS).map(|_| task()).collect();
    for task in &mut waiting {
        assert!(task.settle(cluster).is_none());
    }
    waiting
}

/// Tasks that wait for a loss.
fn tasks<T: Lose>(cluster: &Cluster, held: &Arc<T>) -> Vec<Task<Lost>> {
    waiting(cluster, || {
        let held = Arc::clone(held);
        Task::new(async move { held.wait_lost().await.unwrap() })
    })
}

/// Asserts that each task has this result.
fn assert_all<T: PartialEq + std::fmt::Debug>(
    cluster: &Cluster,
    waiting: &mut [Task<T>],
    result: T,
) {
    for (number, task) in waiting.iter_mut().enumerate() {
        assert_eq!(task.settle(cluster).as_ref(), Some(&result), "task {number}");
    }
}

/// Checks tasks on a member and on a client.
fn all_tasks_are_woken<T: Lose>() {
    let cluster = Cluster::new(3);
    let admin = cluster.node(1).session();
    for place in [0, cluster.add_client()] {
        let session = cluster.node(place).open_session().unwrap();
        let held = Arc::new(T::acquire(&session));
        let mut waiting = tasks(&cluster, &held);
        // A dropped task leaves nothing behind.
        let dropped = waiting.pop().unwrap();
        let woken = Arc::clone(&dropped.woken);
        assert!(Arc::strong_count(&woken) > 2, "it would be woken");
        drop(dropped);
        assert_eq!(Arc::strong_count(&woken), 1, "it would be woken for nothing");
        admin.delete(&held.znode()).wait().unwrap();
        assert_all(&cluster, &mut waiting, Lost::Deleted);

        let held = Arc::new(T::acquire(&session));
        let mut waiting = tasks(&cluster, &held);
        cluster.expire(&session);
        assert_all(&cluster, &mut waiting, Lost::SessionOver);
        drop((waiting, held));
    }
}

/// Checks threads that wait in different ways.
fn all_threads_are_woken<T: Lose>() {
    let cluster = Cluster::new(3);
    let (session, admin) = (cluster.node(0).session(), cluster.node(1).session());
    for _ in 0..10 {
        let held = Arc::new(T::acquire(&session));
        let (done, all_done) = unbounded();
        let threads = 6;
        let (ready, all_ready) = unbounded();
        for number in 0..threads {
            let (held, done, ready) = (Arc::clone(&held), done.clone(), ready.clone());
            std::thread::spawn(move || {
                ready.send(()).unwrap();
                match number % 3 {
                    // A channel: it gets a message, or closes.
                    0 => drop(held.signal().recv()),
                    _ => assert_eq!(held.wait_lost().wait(), Ok(Lost::Deleted)),
                }
                done.send(()).unwrap();
            });
        }
        all_ready.iter().take(threads).for_each(drop);
        admin.delete(&held.znode()).wait().unwrap();
        for woken in 0..threads {
            assert!(all_done.recv_timeout(PATIENCE).is_ok(), "{woken} of {threads} were woken");
        }
    }
}

#[test]
fn all_who_wait_for_the_loss_of_a_leadership_are_woken() {
    all_tasks_are_woken::<Leadership>();
    all_threads_are_woken::<Leadership>();
}

#[test]
fn all_who_wait_for_the_loss_of_a_membership_are_woken() {
    all_tasks_are_woken::<Membership>();
    all_threads_are_woken::<Membership>();
}

#[test]
fn all_who_wait_for_the_loss_of_an_item_are_woken() {
    all_tasks_are_woken::<Item>();
    all_threads_are_woken::<Item>();
}

#[test]
fn each_event_goes_to_one_task_and_the_end_to_all() {
    let cluster = Cluster::new(3);
    let (session, other) = (cluster.node(0).session(), cluster.node(1).session());
    let watch = Arc::new(session.watch("/a", WatchMode::Persistent).wait().unwrap());
    let mut waiting = waiting(&cluster, || {
        let watch = Arc::clone(&watch);
        Task::new(async move { watch.recv().await.unwrap() })
    });
    other.create("/a", b"", quorate::CreateMode::Persistent).wait().unwrap();
    other.set("/a", b"").wait().unwrap();
    let mut kinds = Vec::new();
    waiting.retain_mut(|task| match task.settle(&cluster) {
        Some(event) => {
            kinds.push(event.unwrap().kind);
            false
        }
        None => true,
    });
    assert_eq!(kinds, [quorate::EventKind::Created, quorate::EventKind::DataChanged]);
    cluster.expire(&session);
    assert_all(&cluster, &mut waiting, None);
}

#[test]
fn all_tasks_that_wait_for_a_revocation_are_woken_by_the_loss() {
    let cluster = Cluster::new(3);
    let admin = cluster.node(1).session();
    let lock = cluster.node(0).session().lock("/lock").unwrap();
    let guard = lock.acquire().wait().unwrap();
    let revocations = Arc::new(guard.revocations().wait().unwrap());
    let mut waiting = waiting(&cluster, || {
        let revocations = Arc::clone(&revocations);
        Task::new(async move { revocations.wait_asked().await.unwrap() })
    });
    let (done, all_done) = unbounded();
    for _ in 0..2 {
        let (revocations, done) = (Arc::clone(&revocations), done.clone());
        std::thread::spawn(move || done.send(revocations.wait_asked().wait().unwrap()).unwrap());
    }
    admin.delete(guard.path()).wait().unwrap();
    // There was no request.
    assert_all(&cluster, &mut waiting, false);
    for _ in 0..2 {
        assert_eq!(all_done.recv_timeout(PATIENCE), Ok(false));
    }
}
