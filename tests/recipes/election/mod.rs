//! Elections, groups and persistent ephemerals, on an in-memory cluster.

mod former_run;
mod group;
mod hand_over;
mod persistent_ephemeral;
mod priority;

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use quorate::recipes::{Candidate, LeaderLatch, LeaderSelector, Lost};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error};

const MOMENT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(60);

fn latch(cluster: &Cluster, node: usize, id: &str) -> LeaderLatch {
    LeaderLatch::new(&cluster.node(node).session(), "/app/leader", id).unwrap()
}

fn names(candidates: &[Candidate]) -> Vec<String> {
    candidates.iter().map(|candidate| candidate.name().into_owned()).collect()
}

#[test]
fn one_leads_at_a_time_in_order_and_tokens_only_grow() {
    let cluster = Cluster::new(3);
    let (busy, last) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let latch = latch(&cluster, thread % 3, "same for all");
            let (busy, last) = (&busy, &last);
            scope.spawn(move || {
                for _ in 0..8 {
                    let leadership = latch.campaign().wait().unwrap();
                    assert!(!busy.swap(true, Ordering::SeqCst), "two leaders");
                    assert!(leadership.is_held());
                    assert!(
                        leadership.fencing_token()
                            > last.swap(leadership.fencing_token(), Ordering::SeqCst)
                    );
                    busy.store(false, Ordering::SeqCst);
                    if leadership.fencing_token().is_multiple_of(2) {
                        leadership.release().wait().unwrap();
                    }
                }
            });
        }
    });
    cluster.node(0).session().sync().wait().unwrap();
}

#[test]
fn candidates_are_listed_in_order_with_their_ids() {
    let cluster = Cluster::new(3);
    let first = latch(&cluster, 0, "zero");
    let leadership = first.campaign().wait().unwrap();
    std::thread::scope(|scope| {
        for node in [2, 1] {
            let latch = latch(&cluster, node, &format!("node {node}"));
            scope.spawn(move || latch.campaign().wait().unwrap().release().wait().unwrap());
            let waiting = if node == 2 { 2 } else { 3 };
            while first.candidates().wait().unwrap().len() < waiting {
                cluster.advance(MOMENT);
            }
        }
        let candidates = first.candidates().wait().unwrap();
        assert_eq!(names(&candidates), ["zero", "node 2", "node 1"]);
        assert_eq!(first.leader().wait().unwrap().as_ref(), candidates.first());
        assert_eq!(candidates[0].fencing_token().unwrap(), leadership.fencing_token());
        assert_eq!(candidates[1].session, Some(cluster.node(2).session().id()));
        leadership.release().wait().unwrap();
    });
    first.campaign().wait().unwrap().release().wait().unwrap();
    assert_eq!(first.leader().wait().unwrap(), None);
}

#[test]
fn a_leader_cut_off_knows_it_before_another_leads_and_writes_nothing_more() {
    let cluster = Cluster::new(3);
    cluster.node(1).session().create("/state", b"", CreateMode::Persistent).wait().unwrap();
    let old = latch(&cluster, 0, "old").campaign().wait().unwrap();
    old.fenced().set("/state", b"old").commit().wait().unwrap();
    let other = latch(&cluster, 1, "new");
    std::thread::scope(|scope| {
        let new = scope.spawn(|| {
            let new = other.campaign().wait().unwrap();
            (old.is_held(), new)
        });
        while other.candidates().wait().unwrap().len() < 2 {
            cluster.advance(MOMENT);
        }
        cluster.isolate(0);
        cluster.advance(LONG);
        let (old_leads, new) = new.join().unwrap();
        assert!(!old_leads, "two leaders");
        assert!(new.is_held() && new.fencing_token() > old.fencing_token());
        assert_eq!(old.wait_lost().wait().unwrap(), Lost::SessionOver);
        assert!(old.fenced().set("/state", b"old").commit().wait().is_err());
        new.fenced().set("/state", b"new").commit().wait().unwrap();
    });
    assert_eq!(&cluster.node(1).session().get("/state").wait().unwrap().0[..], b"new");
    assert_eq!(old.release().wait(), Ok(()));
}

#[test]
fn a_deposed_leaders_writes_are_refused() {
    let cluster = Cluster::new(3);
    let latch = latch(&cluster, 0, "");
    let session = cluster.node(0).session();
    session.create("/state", b"", CreateMode::Persistent).wait().unwrap();
    let old = latch.campaign().wait().unwrap();
    cluster.node(1).session().delete(old.path()).wait().unwrap();
    let new = latch.campaign().wait().unwrap();
    let refused = old.fenced().set("/state", b"old").commit().wait();
    assert!(matches!(refused, Err(Error::Multi { index: 0, .. })), "{refused:?}");
    let failed = new.fenced().delete("/missing").commit().wait();
    assert!(matches!(failed, Err(Error::Multi { index: 1, .. })), "{failed:?}");
    // The former leadership deletes only its own znode.
    drop(old);
    session.sync().wait().unwrap();
    assert!(new.is_held());
}

/// A candidate left behind by an earlier session of this process is another candidate, even with the same id.
#[test]
fn a_candidate_of_an_earlier_session_is_another() {
    let cluster = Cluster::new(3);
    let coordinator = cluster.node(0);
    let one = coordinator.open_session().unwrap();
    let earlier = LeaderLatch::new(&one, "/leader", "me").unwrap().campaign().wait().unwrap();
    // Another handle resumes the session, so its candidate stays.
    let taken = cluster.node(1).resume(one.id(), one.password()).wait().unwrap();
    let two = coordinator.open_session().unwrap();
    let latch = LeaderLatch::new(&two, "/leader", "me").unwrap();
    assert_eq!(earlier.wait_lost().wait().unwrap(), Lost::SessionOver);
    assert!(!earlier.is_held());
    assert!(latch.try_campaign().wait().unwrap().is_none(), "the other's is still there");
    let leader = latch.leader().wait().unwrap().unwrap();
    assert_eq!(leader.session, Some(taken.id()));
    taken.close().wait().unwrap();
    let leadership = latch.campaign().wait().unwrap();
    assert!(leadership.is_held() && !earlier.is_held());
    assert_eq!(latch.leader().wait().unwrap().unwrap().session, Some(two.id()));
}

#[test]
fn giving_up_leaves_no_candidate() {
    let cluster = Cluster::new(3);
    let (one, two) = (latch(&cluster, 0, "one"), latch(&cluster, 1, "two"));
    let leadership = one.campaign().wait().unwrap();
    assert!(two.try_campaign().wait().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| two.campaign().timeout(LONG / 20).wait().is_err());
        while one.candidates().wait().unwrap().len() < 2 {
            cluster.advance(MOMENT);
        }
        cluster.advance(LONG / 20);
        assert!(waiter.join().unwrap());
    });
    let mut context = Context::from_waker(Waker::noop());
    for polls in 1..20 {
        let mut campaign = Box::pin(two.campaign());
        for _ in 0..polls {
            assert!(campaign.as_mut().poll(&mut context).is_pending());
            if polls % 3 > 0 {
                cluster.advance(MOMENT);
            }
        }
        drop(campaign);
        let session = cluster.node(1).session();
        session.sync().wait().unwrap();
        session.sync().wait().unwrap();
        assert_eq!(names(&two.candidates().wait().unwrap()), ["one"], "after {polls} polls");
    }
    drop(leadership);
    assert!(two.campaign().wait().unwrap().is_held());
}

#[test]
fn an_observer_sees_each_leader_once_and_always_the_last() {
    let cluster = Cluster::new(3);
    let mut changes = latch(&cluster, 2, "").watch();
    assert_eq!(changes.recv().wait(), Ok(None), "there is no leader and no path");
    let latches: Vec<LeaderLatch> =
        (0..3).map(|node| latch(&cluster, node, &node.to_string())).collect();
    let mut leadership = latches[0].campaign().wait().unwrap();
    for turn in 1..10 {
        let leader = changes.recv().wait().unwrap().expect("there is a leader");
        assert_eq!(leader.fencing_token().unwrap(), leadership.fencing_token());
        let before = leadership;
        leadership = std::thread::scope(|scope| {
            let next = scope.spawn(|| latches[turn % 3].campaign().wait().unwrap());
            while latches[2].candidates().wait().unwrap().len() < 2 {
                cluster.advance(MOMENT);
            }
            // An additional waiting candidate does not change the leader.
            assert!(matches!(
                changes.recv().timeout(Duration::ZERO).wait(),
                Err(Error::NotInTime { .. })
            ));
            before.release().wait().unwrap();
            next.join().unwrap()
        });
    }
    // Several changes between two reads are merged into one.
    for turn in 0..9 {
        leadership.release().wait().unwrap();
        leadership = latches[turn % 3].campaign().wait().unwrap();
    }
    cluster.node(2).session().sync().wait().unwrap();
    let leader = changes.recv().wait().unwrap().expect("there is a leader");
    assert_eq!(leader.fencing_token().unwrap(), leadership.fencing_token());
    assert!(
        matches!(changes.recv().timeout(Duration::ZERO).wait(), Err(Error::NotInTime { .. })),
        "once"
    );
    // The election's znode may be deleted, too.
    leadership.release().wait().unwrap();
    cluster.node(0).session().delete("/app/leader").wait().unwrap();
    assert_eq!(changes.recv().wait(), Ok(None));
    let leadership = latches[1].campaign().wait().unwrap();
    assert_eq!(
        changes.recv().wait().unwrap().and_then(|leader| leader.fencing_token()),
        Some(leadership.fencing_token())
    );
    cluster.expire(&cluster.node(2).session());
    drop(leadership);
    assert!(changes.recv().wait().unwrap_err().is_session_lost());
}

/// The observer's instance receives a snapshot in which everything has changed.
#[test]
fn an_observer_that_was_isolated_learns_the_current_leader() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().session_timeout(LONG * 10));
    let one = latch(&cluster, 0, "one");
    let leadership = one.campaign().wait().unwrap();
    let mut changes = latch(&cluster, 2, "").watch();
    cluster.node(2).session().sync().wait().unwrap();
    assert_eq!(
        changes.recv().wait().unwrap().and_then(|leader| leader.fencing_token()),
        Some(leadership.fencing_token())
    );
    cluster.isolate(2);
    let mut leadership = Some(leadership);
    for _ in 0..5 {
        drop(leadership.take());
        leadership = Some(one.campaign().wait().unwrap());
    }
    assert!(matches!(changes.recv().timeout(Duration::ZERO).wait(), Err(Error::NotInTime { .. })));
    cluster.heal();
    cluster.node(2).session().sync().wait().unwrap();
    let token = leadership.as_ref().map(|leadership| leadership.fencing_token());
    assert_eq!(changes.recv().wait().unwrap().and_then(|leader| leader.fencing_token()), token);
}

#[test]
fn a_selector_runs_while_it_leads_and_again_if_it_wants() {
    let cluster = Cluster::new(3);
    let running = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in 0..3 {
            let session = cluster.node(node).session();
            let selector = LeaderSelector::new(&session, "/leader", node.to_string()).unwrap();
            let running = &running;
            scope.spawn(move || {
                let mut terms = 0;
                let done = selector.run(|leadership| {
                    assert!(!running.swap(true, Ordering::SeqCst), "two leaders");
                    assert!(leadership.is_held());
                    terms += 1;
                    running.store(false, Ordering::SeqCst);
                    let ends = terms == 5;
                    std::future::ready(match ends {
                        true => ControlFlow::Break(terms),
                        false => ControlFlow::Continue(()),
                    })
                });
                assert_eq!(done.wait(), Ok(ControlFlow::Break(5)));
            });
        }
    });
}

#[test]
fn a_selector_ends_with_its_session() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let selector = LeaderSelector::new(&session, "/leader", "me").unwrap();
    let run = selector.run(|leadership| {
        cluster.expire(&session);
        assert!(!leadership.is_held());
        assert_eq!(leadership.wait_lost().wait().unwrap(), Lost::SessionOver);
        std::future::ready(ControlFlow::<()>::Continue(()))
    });
    let ended = run.wait();
    assert!(matches!(ended, Err(Error::SessionExpired { .. })), "{ended:?}");
}

struct Ends(Arc<AtomicU64>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_async_selectors_future_is_dropped_at_the_loss_and_started_again() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let selector = LeaderSelector::new(&session, "/leader", "me").unwrap();
    let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut running = Box::pin(selector.run(|leadership| {
        let (begun, ended) = (&begun, &ended);
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            let _ends = Ends(Arc::clone(ended));
            assert!(leadership.is_held());
            std::future::pending::<ControlFlow<()>>().await
        }
    }));
    let mut context = Context::from_waker(Waker::noop());
    for term in 1..4 {
        while begun.load(Ordering::SeqCst) < term {
            assert!(running.as_mut().poll(&mut context).is_pending());
            cluster.advance(MOMENT);
        }
        assert_eq!(ended.load(Ordering::SeqCst), term - 1);
        let leader = selector.latch().leader().wait().unwrap().unwrap();
        cluster.node(1).session().delete(&leader.path).wait().unwrap();
        while ended.load(Ordering::SeqCst) < term {
            assert!(running.as_mut().poll(&mut context).is_pending());
            cluster.advance(MOMENT);
        }
    }
    cluster.expire(&session);
    let over = loop {
        match running.as_mut().poll(&mut context) {
            std::task::Poll::Ready(over) => break over,
            std::task::Poll::Pending => cluster.advance(MOMENT),
        }
    };
    assert!(over.unwrap_err().is_session_lost());
}

/// Compiles only if a future that borrows from its application and its environment may be spawned on a
/// multi-threaded runtime.
#[test]
fn an_async_selector_may_be_spawned_whatever_it_borrows() {
    struct App {
        name: String,
        selector: LeaderSelector,
        cluster: Cluster,
    }

    impl App {
        async fn lead(&self) -> quorate::Result<ControlFlow<String>> {
            let place = "here".to_owned();
            let run = self.selector.run(|leadership| {
                let place = &place;
                async move {
                    let session = self.cluster.node(0).session();
                    // Held across an await.
                    session.sync().await.unwrap();
                    assert!(leadership.is_held());
                    ControlFlow::Break(format!("{} leads {place}", self.name))
                }
            });
            run.await
        }
    }

    /// Has the bounds of a runtime's `spawn`.
    fn spawned<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
        let mut future = Box::pin(future);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                std::task::Poll::Ready(value) => return value,
                std::task::Poll::Pending => std::thread::park(),
            }
        }
    }

    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let cluster = Cluster::new(1);
    let selector = LeaderSelector::new(&cluster.node(0).session(), "/leader", "me").unwrap();
    let app = Arc::new(App { name: "zero".to_owned(), selector, cluster });
    let led = spawned(async move { app.lead().await });
    assert_eq!(led.unwrap().break_value().as_deref(), Some("zero leads here"));
}

#[test]
fn a_clone_of_a_selectors_leadership_does_not_keep_the_lead() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let selector = LeaderSelector::new(&session, "/leader", "me").unwrap();
    let kept = Mutex::new(Vec::new());
    let keep = |leadership: Arc<_>| {
        kept.lock().unwrap().push(leadership);
        std::future::pending::<ControlFlow<()>>()
    };
    let mut running = Box::pin(selector.run(keep));
    let mut context = Context::from_waker(Waker::noop());
    while kept.lock().unwrap().is_empty() {
        assert!(running.as_mut().poll(&mut context).is_pending());
        cluster.advance(MOMENT);
    }
    let leadership = kept.lock().unwrap().pop().unwrap();
    assert!(leadership.is_held());
    drop(running);
    assert!(!leadership.is_held(), "its term is over");
    session.sync().wait().unwrap();
    assert_eq!(selector.latch().leader().wait().unwrap(), None);
    assert_eq!(leadership.wait_lost().wait().unwrap(), Lost::Deleted);

    // Neither does a clone that outlives a term that has ended by itself.
    let terms = Mutex::new(Vec::new());
    let mut turns = 0;
    let running = selector.run(|leadership| {
        terms.lock().unwrap().push(leadership);
        turns += 1;
        std::future::ready(if turns < 3 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        })
    });
    let mut running = Box::pin(running);
    while running.as_mut().poll(&mut context).is_pending() {
        cluster.advance(MOMENT);
    }
    drop(running);
    let terms = terms.into_inner().unwrap();
    assert!(terms.len() == 3 && terms.iter().all(|leadership| !leadership.is_held()));
}

/// Inside a chroot, candidates and their observer see each other and no others.
#[test]
fn an_election_in_a_chroot_is_one_of_its_own() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/app", b"", CreateMode::Persistent).wait().unwrap();
    let inside = session.chroot("/app").unwrap();
    let here = LeaderLatch::new(&inside, "/leader", "inside").unwrap();
    let there = LeaderLatch::new(&session, "/leader", "outside").unwrap();
    let (one, two) = (here.campaign().wait().unwrap(), there.campaign().wait().unwrap());
    assert!(one.is_held() && two.is_held());
    assert!(session.exists(&format!("/app{}", one.path())).wait().unwrap().is_some());
    assert_eq!(here.leader().wait().unwrap().unwrap().path, one.path());
    inside.create("/x", b"", CreateMode::Persistent).wait().unwrap();
    one.fenced().set("/x", b"1").commit().wait().unwrap();
    session.delete(&format!("/app{}", one.path())).wait().unwrap();
    assert_eq!(one.wait_lost().wait().unwrap(), Lost::Deleted);
    let mut changes = here.watch();
    assert_eq!(changes.recv().wait(), Ok(None));
}
