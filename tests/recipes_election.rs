//! Elections, groups and persistent ephemerals, on a cluster in memory.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use quorate::recipes::{Candidate, Group, LeaderLatch, LeaderSelector, PersistentEphemeral};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, LockLost, WatcherType};

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
                    let leadership = latch.campaign().unwrap();
                    assert!(!busy.swap(true, Ordering::SeqCst), "two leaders");
                    assert!(leadership.is_leading());
                    assert!(leadership.token() > last.swap(leadership.token(), Ordering::SeqCst));
                    busy.store(false, Ordering::SeqCst);
                    if leadership.token().is_multiple_of(2) {
                        leadership.resign().unwrap();
                    }
                }
            });
        }
    });
    cluster.node(0).session().sync().unwrap();
}

#[test]
fn candidates_are_told_in_their_order_with_their_ids() {
    let cluster = Cluster::new(3);
    let first = latch(&cluster, 0, "zero");
    let leadership = first.campaign().unwrap();
    std::thread::scope(|scope| {
        for node in [2, 1] {
            let latch = latch(&cluster, node, &format!("node {node}"));
            scope.spawn(move || latch.campaign().unwrap().resign().unwrap());
            let waiting = if node == 2 { 2 } else { 3 };
            while first.candidates().unwrap().len() < waiting {
                cluster.advance(MOMENT);
            }
        }
        let candidates = first.candidates().unwrap();
        assert_eq!(names(&candidates), ["zero", "node 2", "node 1"]);
        assert_eq!(first.leader().unwrap().as_ref(), candidates.first());
        assert_eq!(candidates[0].token, leadership.token());
        assert_eq!(candidates[1].session, Some(cluster.node(2).session().id()));
        leadership.resign().unwrap();
    });
    first.campaign().unwrap().resign().unwrap();
    assert_eq!(first.leader().unwrap(), None);
}

#[test]
fn a_leader_cut_off_knows_it_before_another_leads_and_writes_nothing_more() {
    let cluster = Cluster::new(3);
    cluster.node(1).session().create("/state", b"", CreateMode::Persistent).unwrap();
    let old = latch(&cluster, 0, "old").campaign().unwrap();
    old.multi().set("/state", b"old").commit().unwrap();
    let other = latch(&cluster, 1, "new");
    std::thread::scope(|scope| {
        let new = scope.spawn(|| {
            let new = other.campaign().unwrap();
            (old.is_leading(), new)
        });
        while other.candidates().unwrap().len() < 2 {
            cluster.advance(MOMENT);
        }
        cluster.isolate(0);
        cluster.advance(LONG);
        let (old_leads, new) = new.join().unwrap();
        assert!(!old_leads, "two leaders");
        assert!(new.is_leading() && new.token() > old.token());
        assert_eq!(old.wait_lost(), LockLost::SessionOver);
        assert!(old.multi().set("/state", b"old").commit().is_err());
        new.multi().set("/state", b"new").commit().unwrap();
    });
    assert_eq!(&cluster.node(1).session().get("/state").unwrap().0[..], b"new");
    assert_eq!(old.resign(), Ok(()));
}

#[test]
fn what_a_leader_writes_that_leads_no_longer_is_refused() {
    let cluster = Cluster::new(3);
    let latch = latch(&cluster, 0, "");
    let session = cluster.node(0).session();
    session.create("/state", b"", CreateMode::Persistent).unwrap();
    let old = latch.campaign().unwrap();
    cluster.node(1).session().delete(old.path()).unwrap();
    let new = latch.campaign().unwrap();
    let refused = old.multi().set("/state", b"old").commit();
    assert!(matches!(refused, Err(Error::Multi { index: 0, .. })), "{refused:?}");
    let failed = new.multi().delete("/missing").commit();
    assert!(matches!(failed, Err(Error::Multi { index: 1, .. })), "{failed:?}");
    // What the old one lets go of is its own.
    drop(old);
    session.sync().unwrap();
    assert!(new.is_leading());
}

/// A candidacy that another session of this process left behind is another one's, whatever its id.
#[test]
fn a_candidate_of_an_earlier_session_is_another() {
    let cluster = Cluster::new(3);
    let coordinator = cluster.node(0);
    let one = coordinator.open_session().unwrap();
    let earlier = LeaderLatch::new(&one, "/leader", "me").unwrap().campaign().unwrap();
    // It goes on elsewhere, so that what it left is still there.
    let taken = cluster.node(1).resume(one.id(), one.password()).unwrap();
    let two = coordinator.open_session().unwrap();
    let latch = LeaderLatch::new(&two, "/leader", "me").unwrap();
    assert_eq!(earlier.wait_lost(), LockLost::SessionOver);
    assert!(!earlier.is_leading());
    assert!(latch.try_campaign().unwrap().is_none(), "the other's is still there");
    let leader = latch.leader().unwrap().unwrap();
    assert_eq!(leader.session, Some(taken.id()));
    taken.close().unwrap();
    let leadership = latch.campaign().unwrap();
    assert!(leadership.is_leading() && !earlier.is_leading());
    assert_eq!(latch.leader().unwrap().unwrap().session, Some(two.id()));
}

#[test]
fn giving_up_leaves_no_candidate() {
    let cluster = Cluster::new(3);
    let (one, two) = (latch(&cluster, 0, "one"), latch(&cluster, 1, "two"));
    let leadership = one.campaign().unwrap();
    assert!(two.try_campaign().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| two.campaign_timeout(LONG / 20).unwrap().is_none());
        while one.candidates().unwrap().len() < 2 {
            cluster.advance(MOMENT);
        }
        cluster.advance(LONG / 20);
        assert!(waiter.join().unwrap());
    });
    let mut context = Context::from_waker(Waker::noop());
    for polls in 1..20 {
        let mut campaign = Box::pin(two.campaign_async());
        for _ in 0..polls {
            assert!(campaign.as_mut().poll(&mut context).is_pending());
            if polls % 3 > 0 {
                cluster.advance(MOMENT);
            }
        }
        drop(campaign);
        let session = cluster.node(1).session();
        session.sync().unwrap();
        session.sync().unwrap();
        assert_eq!(names(&two.candidates().unwrap()), ["one"], "after {polls} polls");
    }
    drop(leadership);
    assert!(two.campaign().unwrap().is_leading());
}

#[test]
fn an_observer_is_told_each_leader_once_and_the_last_for_sure() {
    let cluster = Cluster::new(3);
    let mut changes = latch(&cluster, 2, "").observe();
    assert_eq!(changes.recv(), Ok(None), "nobody leads, and the path is not there");
    let latches: Vec<LeaderLatch> =
        (0..3).map(|node| latch(&cluster, node, &node.to_string())).collect();
    let mut leadership = latches[0].campaign().unwrap();
    for turn in 1..10 {
        let leader = changes.recv().unwrap().expect("somebody leads");
        assert_eq!(leader.token, leadership.token());
        let before = leadership;
        leadership = std::thread::scope(|scope| {
            let next = scope.spawn(|| latches[turn % 3].campaign().unwrap());
            while latches[2].candidates().unwrap().len() < 2 {
                cluster.advance(MOMENT);
            }
            // That one more waits does not concern it.
            assert_eq!(changes.recv_timeout(Duration::ZERO), Ok(None));
            before.resign().unwrap();
            next.join().unwrap()
        });
    }
    // Many changes while nobody looks are one.
    for turn in 0..9 {
        leadership.resign().unwrap();
        leadership = latches[turn % 3].campaign().unwrap();
    }
    cluster.node(2).session().sync().unwrap();
    let leader = changes.recv().unwrap().expect("somebody leads");
    assert_eq!(leader.token, leadership.token());
    assert_eq!(changes.recv_timeout(Duration::ZERO), Ok(None), "once");
    // The election itself may go.
    leadership.resign().unwrap();
    cluster.node(0).session().delete("/app/leader").unwrap();
    assert_eq!(changes.recv(), Ok(None));
    let leadership = latches[1].campaign().unwrap();
    assert_eq!(changes.recv().unwrap().map(|leader| leader.token), Some(leadership.token()));
    cluster.expire(&cluster.node(2).session());
    drop(leadership);
    assert!(changes.recv().unwrap_err().is_session_lost());
}

/// Its instance is sent a snapshot, in which all has changed.
#[test]
fn an_observer_that_was_cut_off_is_told_who_leads_by_then() {
    let cluster = Cluster::builder().session_timeout(LONG * 10).start(3);
    let one = latch(&cluster, 0, "one");
    let leadership = one.campaign().unwrap();
    let mut changes = latch(&cluster, 2, "").observe();
    cluster.node(2).session().sync().unwrap();
    assert_eq!(changes.recv().unwrap().map(|leader| leader.token), Some(leadership.token()));
    cluster.isolate(2);
    let mut leadership = Some(leadership);
    for _ in 0..5 {
        drop(leadership.take());
        leadership = Some(one.campaign().unwrap());
    }
    assert_eq!(changes.recv_timeout(Duration::ZERO), Ok(None));
    cluster.heal();
    cluster.node(2).session().sync().unwrap();
    let token = leadership.as_ref().map(|leadership| leadership.token());
    assert_eq!(changes.recv().unwrap().map(|leader| leader.token), token);
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
                    assert!(leadership.is_leading());
                    terms += 1;
                    running.store(false, Ordering::SeqCst);
                    if terms == 5 { ControlFlow::Break(terms) } else { ControlFlow::Continue(()) }
                });
                assert_eq!(done, Ok(5));
            });
        }
    });
}

#[test]
fn a_selector_ends_with_its_session() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let selector = LeaderSelector::new(&session, "/leader", "me").unwrap();
    let ended: Result<(), Error> = selector.run(|leadership| {
        cluster.expire(&session);
        assert!(!leadership.is_leading());
        assert_eq!(leadership.wait_lost(), LockLost::SessionOver);
        ControlFlow::Continue(())
    });
    assert!(matches!(ended, Err(Error::SessionExpired { .. })), "{ended:?}");
}

struct Ends(Arc<AtomicU64>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn what_an_async_selector_runs_is_dropped_at_the_loss_and_begun_again() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let selector = LeaderSelector::new(&session, "/leader", "me").unwrap();
    let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut running = Box::pin(selector.run_async(|leadership| {
        let (begun, ended) = (&begun, &ended);
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            let _ends = Ends(Arc::clone(ended));
            assert!(leadership.is_leading());
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
        let leader = selector.latch().leader().unwrap().unwrap();
        cluster.node(1).session().delete(&leader.path).unwrap();
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

/// It compiles: a future that borrows from its application, and from what is beside it, may be spawned
/// on a runtime of many threads.
#[test]
fn an_async_selector_may_be_spawned_whatever_it_borrows() {
    struct App {
        name: String,
        selector: LeaderSelector,
        cluster: Cluster,
    }

    impl App {
        async fn lead(&self) -> quorate::Result<String> {
            let place = "here".to_owned();
            let run = self.selector.run_async(|leadership| {
                let place = &place;
                async move {
                    let session = self.cluster.node(0).session();
                    // Held over an await.
                    session.nonblocking().sync().await.unwrap();
                    assert!(leadership.is_leading());
                    ControlFlow::Break(format!("{} leads {place}", self.name))
                }
            });
            run.await
        }
    }

    /// With the bounds of a runtime's `spawn`.
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
    assert_eq!(led.unwrap(), "zero leads here");
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
    let mut running = Box::pin(selector.run_async(keep));
    let mut context = Context::from_waker(Waker::noop());
    while kept.lock().unwrap().is_empty() {
        assert!(running.as_mut().poll(&mut context).is_pending());
        cluster.advance(MOMENT);
    }
    let leadership = kept.lock().unwrap().pop().unwrap();
    assert!(leadership.is_leading());
    drop(running);
    assert!(!leadership.is_leading(), "what it was given for is over");
    session.sync().unwrap();
    assert_eq!(selector.latch().leader().unwrap(), None);
    assert_eq!(leadership.wait_lost(), LockLost::Deleted);

    // Nor does one that outlives a term that ended by itself.
    let terms = Mutex::new(Vec::new());
    let mut turns = 0;
    let running = selector.run_async(|leadership| {
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
    assert!(terms.len() == 3 && terms.iter().all(|leadership| !leadership.is_leading()));
}

/// Below a root of their own, candidates and their observer see one another and nobody else.
#[test]
fn an_election_in_a_chroot_is_one_of_its_own() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/app", b"", CreateMode::Persistent).unwrap();
    let inside = session.chroot("/app").unwrap();
    let here = LeaderLatch::new(&inside, "/leader", "inside").unwrap();
    let there = LeaderLatch::new(&session, "/leader", "outside").unwrap();
    let (one, two) = (here.campaign().unwrap(), there.campaign().unwrap());
    assert!(one.is_leading() && two.is_leading());
    assert!(session.exists(&format!("/app{}", one.path())).unwrap().is_some());
    assert_eq!(here.leader().unwrap().unwrap().path, one.path());
    inside.create("/x", b"", CreateMode::Persistent).unwrap();
    one.multi().set("/x", b"1").commit().unwrap();
    session.delete(&format!("/app{}", one.path())).unwrap();
    assert_eq!(one.wait_lost(), LockLost::Deleted);
    let mut changes = here.observe();
    assert_eq!(changes.recv(), Ok(None));
}

fn group(cluster: &Cluster, node: usize) -> Group {
    Group::new(&cluster.node(node).session(), "/app/workers").unwrap()
}

#[test]
fn whoever_has_joined_is_in_its_own_view_and_then_in_all() {
    let cluster = Cluster::new(3);
    let mut watches: Vec<_> = (0..3).map(|node| group(&cluster, node).watch()).collect();
    for watch in &mut watches {
        assert!(watch.recv().unwrap().is_empty());
    }
    let mut memberships = Vec::new();
    for node in [2, 0, 1] {
        let here = group(&cluster, node);
        memberships.push(here.join(&format!("node {node}"), [node as u8]).unwrap());
        let members = here.members().unwrap();
        assert_eq!(&members.get(&format!("node {node}")).unwrap().data[..], [node as u8]);
        for watch in &mut watches {
            let told = watch.recv().unwrap();
            assert_eq!(told.iter().collect::<Vec<_>>(), members.iter().collect::<Vec<_>>());
            assert!(told.zxid() >= memberships.last().unwrap().joined());
        }
    }
    memberships[1].update(b"new").unwrap();
    for watch in &mut watches {
        let told = watch.recv().unwrap();
        assert_eq!(told.names(), ["node 0", "node 1", "node 2"]);
        assert_eq!(&told.get("node 0").unwrap().data[..], b"new");
    }
    memberships.swap_remove(0).leave().unwrap();
    for watch in &mut watches {
        assert_eq!(watch.recv().unwrap().names(), ["node 0", "node 1"]);
    }
    drop(memberships);
    for watch in &mut watches {
        while !watch.recv().unwrap().is_empty() {}
    }
}

#[test]
fn the_last_state_is_told_however_fast_members_come_and_go() {
    let cluster = Cluster::new(3);
    let (here, mut changes) = (group(&cluster, 0), group(&cluster, 1).watch());
    assert!(changes.recv().unwrap().is_empty());
    // More events than wait in a watch.
    for _ in 0..700 {
        drop(here.join("fast", b"").unwrap());
    }
    let _stays = here.join("stays", b"").unwrap();
    cluster.node(1).session().sync().unwrap();
    assert_eq!(changes.recv().unwrap().names(), ["stays"]);
    assert_eq!(changes.recv_timeout(Duration::ZERO), Ok(None));
    // Who leaves and joins again in between is another, of the same name and data.
    let again = here.join("again", b"").unwrap();
    let first = changes.recv().unwrap().get("again").unwrap().joined;
    again.leave().unwrap();
    let again = here.join("again", b"").unwrap();
    cluster.node(1).session().sync().unwrap();
    let second = changes.recv().unwrap().get("again").unwrap().joined;
    assert_eq!((first < second, second), (true, again.joined()));
}

#[test]
fn a_member_that_is_cut_off_leaves_and_knows_it() {
    let cluster = Cluster::new(3);
    let membership = group(&cluster, 0).join("zero", b"").unwrap();
    let mut changes = group(&cluster, 1).watch();
    cluster.node(1).session().sync().unwrap();
    assert_eq!(changes.recv().unwrap().names(), ["zero"]);
    cluster.isolate(0);
    cluster.advance(LONG);
    assert!(!membership.is_member());
    assert!(changes.recv().unwrap().is_empty());
    assert_eq!(membership.wait_lost(), LockLost::SessionOver);
    assert!(membership.update(b"").unwrap_err().is_session_lost());
    assert_eq!(membership.leave(), Ok(()));
    cluster.heal();
    // Its next session has a membership of its own.
    let again = group(&cluster, 0).join("zero", b"").unwrap();
    assert!(again.is_member());
    assert_eq!(changes.recv().unwrap().names(), ["zero"]);
}

#[test]
fn a_watch_of_an_instance_that_was_cut_off_goes_on() {
    let cluster = Cluster::builder().session_timeout(LONG * 10).start(3);
    let mut changes = group(&cluster, 2).watch();
    assert!(changes.recv().unwrap().is_empty());
    cluster.isolate(2);
    let _one = group(&cluster, 0).join("one", b"").unwrap();
    drop(group(&cluster, 0).join("two", b"").unwrap());
    assert_eq!(changes.recv_timeout(Duration::ZERO), Ok(None));
    cluster.heal();
    cluster.node(2).session().sync().unwrap();
    let mut told = changes.recv().unwrap();
    while told.names() != ["one"] {
        told = changes.recv().unwrap();
    }
}

/// A name is one member's; who waits for it gets it when it is free, and who gives up leaves nothing.
#[test]
fn a_name_is_one_members_at_a_time() {
    let cluster = Cluster::new(3);
    let (one, two) = (group(&cluster, 0), group(&cluster, 1));
    let first = one.join("name", b"1").unwrap();
    assert!(two.try_join("name", b"2").unwrap().is_none());
    std::thread::scope(|scope| {
        let timed = scope.spawn(|| two.join_timeout("name", b"2", LONG / 20).unwrap().is_none());
        while !timed.is_finished() {
            cluster.advance(LONG / 20);
        }
        assert!(timed.join().unwrap());
    });
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| two.join("name", b"2").unwrap());
        cluster.expire(&cluster.node(0).session());
        let second = waits.join().unwrap();
        assert!(second.is_member() && !first.is_member());
        // What the former one lets go of is not the present one's.
        drop(first);
        cluster.node(0).session().sync().unwrap();
        assert!(second.is_member());
    });
    let one = group(&cluster, 0);
    let mut context = Context::from_waker(Waker::noop());
    for polls in 1..12 {
        let mut joining = Box::pin(one.join_async("other", b""));
        for _ in 0..polls {
            if joining.as_mut().poll(&mut context).is_ready() {
                break;
            }
            cluster.advance(MOMENT);
        }
        drop(joining);
        let session = cluster.node(0).session();
        session.sync().unwrap();
        session.sync().unwrap();
        assert!(one.members().unwrap().get("other").is_none(), "after {polls} polls");
    }
    for name in ["", "a/b", ".."] {
        assert!(matches!(one.join(name, b""), Err(Error::InvalidPath { .. })), "{name:?}");
    }
}

/// Its znode was deleted and the name taken again, within one session: neither its update nor its
/// leaving concerns the later one.
#[test]
fn a_former_member_harms_no_later_one_of_its_name() {
    let cluster = Cluster::new(3);
    let group = group(&cluster, 0);
    let session = cluster.node(0).session();
    for leaves in [true, false] {
        let former = group.join("name", b"former").unwrap();
        session.delete(former.path()).unwrap();
        assert_eq!(former.wait_lost(), LockLost::Deleted);
        let later = group.join("name", b"later").unwrap();
        assert!(!former.is_member() && later.is_member());
        assert!(matches!(former.update(b"x"), Err(Error::NoNode { .. })));
        if leaves {
            former.leave().unwrap();
        } else {
            drop(former);
        }
        session.sync().unwrap();
        assert!(later.is_member());
        assert_eq!(&group.members().unwrap().get("name").unwrap().data[..], b"later");
        later.leave().unwrap();
        assert!(group.members().unwrap().is_empty());
    }
}

const UP: &str = "/app/up";

fn up(cluster: &Cluster, node: usize) -> PersistentEphemeral {
    PersistentEphemeral::new(&cluster.node(node), UP, b"0").unwrap()
}

#[test]
fn it_is_there_again_after_its_session_and_after_its_deletion() {
    let cluster = Cluster::new(3);
    let znode = up(&cluster, 0);
    let handle = znode.handle();
    let other = cluster.node(1).session();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| znode.run());
        let mut last = 0;
        for round in 0..6 {
            assert!(handle.wait_present(LONG), "round {round}");
            other.sync().unwrap();
            let (data, stat) = other.get(UP).unwrap();
            assert!(stat.czxid > last && stat.ephemeral_owner.is_some());
            assert_eq!(data[..], *round.to_string().as_bytes());
            last = stat.czxid;
            handle.set((round + 1).to_string()).unwrap();
            match round % 2 {
                0 => cluster.expire(&cluster.node(0).session()),
                _ => other.delete(UP).unwrap(),
            }
            // Gone; then it is there anew.
            while other.exists(UP).unwrap().is_none_or(|stat| stat.czxid == last) {
                cluster.advance(MOMENT);
            }
        }
        assert!(handle.wait_present(LONG));
        handle.close().unwrap();
        assert!(!handle.is_present() && !handle.wait_present(LONG));
        assert!(cluster.node(0).session().exists(UP).unwrap().is_none());
        assert_eq!(running.join().unwrap(), Ok(()));
    });
    assert_eq!(handle.close(), Ok(()), "twice is no error");
}

/// A request that is refused because too many are under way is made again: it ended with that.
#[test]
fn a_busy_node_does_not_end_it() {
    let cluster = Cluster::builder().pending_requests_max(3).start(1);
    let (znode, session) = (up(&cluster, 0), cluster.node(0).session());
    let handle = znode.handle();
    let mut running = Box::pin(znode.run_async());
    let mut context = Context::from_waker(Waker::noop());
    let mut deleted = 0;
    for turn in 0.. {
        let calls = session.nonblocking();
        // Two times out of three, what it asks for now may be one too many.
        let _reads: Vec<_> = (0..turn % 3 * 2).map(|_| calls.exists("/")).collect();
        assert!(running.as_mut().poll(&mut context).is_pending(), "turn {turn}");
        cluster.advance(10 * MOMENT);
        if handle.is_present() && session.delete(UP).is_ok() {
            deleted += 1;
        }
        if deleted == 20 {
            break;
        }
    }
}

/// It waited for a watch that was over: on a member without end and without a pause, on a client it was
/// never told of the deletion.
#[test]
fn it_is_watched_again_when_the_application_removes_its_watches() {
    let cluster = Cluster::new(3);
    let other = cluster.node(1).session();
    for node in [0, cluster.add_client()] {
        let znode = up(&cluster, node);
        let (handle, session) = (znode.handle(), cluster.node(node).session());
        std::thread::scope(|scope| {
            let running = scope.spawn(|| znode.run());
            for _ in 0..3 {
                assert!(handle.wait_present(LONG));
                // It is there a moment before it is watched.
                while session.remove_watches(UP, WatcherType::Any).is_err() {
                    cluster.advance(MOMENT);
                }
                other.sync().unwrap();
                let first = other.exists(UP).unwrap().unwrap();
                other.delete(UP).unwrap();
                while other.exists(UP).unwrap().is_none_or(|stat| stat.czxid == first.czxid) {
                    cluster.advance(MOMENT);
                }
            }
            handle.close().unwrap();
            assert_eq!(running.join().unwrap(), Ok(()));
        });
    }
}

#[test]
fn what_is_set_while_cut_off_is_written_afterwards() {
    let cluster = Cluster::new(3);
    let znode = up(&cluster, 0);
    let handle = znode.handle();
    let other = cluster.node(1).session();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| znode.run());
        assert!(handle.wait_present(LONG));
        cluster.isolate(0);
        handle.set(b"1").unwrap();
        cluster.advance(LONG);
        assert!(!handle.is_present());
        assert!(other.exists(UP).unwrap().is_none(), "gone with its session");
        handle.set(b"2").unwrap();
        cluster.heal();
        assert!(handle.wait_present(LONG * 10));
        other.sync().unwrap();
        assert_eq!(other.get(UP).unwrap().0[..], *b"2");
        handle.close().unwrap();
        assert_eq!(running.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_deleted_one_ends_if_it_is_not_to_be_created_again() {
    let cluster = Cluster::new(3);
    let znode = up(&cluster, 0).recreate_deleted(false);
    let handle = znode.handle();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| znode.run());
        assert!(handle.wait_present(LONG));
        cluster.expire(&cluster.node(0).session());
        while handle.is_present() {
            cluster.advance(MOMENT);
        }
        assert!(handle.wait_present(LONG), "the end of a session is no deletion");
        cluster.node(1).session().delete(UP).unwrap();
        assert_eq!(running.join().unwrap(), Err(Error::NoNode { path: UP.to_owned() }));
    });
    assert!(!handle.is_present() && !handle.wait_present(LONG));
}

#[test]
fn it_waits_for_its_path_and_takes_nothing_from_others() {
    let cluster = Cluster::new(3);
    let former = up(&cluster, 1);
    let (first, znode) = (former.handle(), up(&cluster, 0));
    let second = znode.handle();
    std::thread::scope(|scope| {
        let one = scope.spawn(|| former.run());
        assert!(first.wait_present(LONG));
        let two = scope.spawn(|| znode.run());
        assert!(!second.wait_present(Duration::from_millis(50)));
        first.close().unwrap();
        assert!(second.wait_present(LONG));
        assert_eq!(first.close(), Ok(()));
        cluster.node(1).session().sync().unwrap();
        assert!(second.is_present());
        second.close().unwrap();
        assert_eq!((one.join().unwrap(), two.join().unwrap()), (Ok(()), Ok(())));
    });
}

/// Closed or dropped after any number of polls, before its znode is known and after: none is left.
#[test]
fn closing_at_any_moment_leaves_nothing() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let mut context = Context::from_waker(Waker::noop());
    for closed in [true, false] {
        for polls in 0..25 {
            let znode = up(&cluster, 0);
            let handle = znode.handle();
            let mut running = Box::pin(znode.run_async());
            for poll in 0..polls {
                assert!(running.as_mut().poll(&mut context).is_pending());
                if poll % 3 < polls % 3 {
                    cluster.advance(MOMENT);
                }
            }
            if closed {
                // Nobody polls it any more, nor drops it: that is enough.
                handle.close().unwrap();
            } else {
                drop(running);
                session.sync().unwrap();
                session.sync().unwrap();
                assert!(session.exists(UP).unwrap().is_none(), "dropped after {polls} polls");
                continue;
            }
            assert!(session.exists(UP).unwrap().is_none(), "closed after {polls} polls");
            assert!(running.as_mut().poll(&mut context).is_ready());
        }
    }
}

#[test]
fn it_ends_with_its_node_and_lives_in_a_chroot() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let cluster = Cluster::new(1);
    let coordinator = cluster.node(0);
    coordinator.session().create("/root", b"", CreateMode::Persistent).unwrap();
    let sessions = {
        let coordinator = coordinator.clone();
        move || coordinator.session().chroot("/root")
    };
    let znode = PersistentEphemeral::with_sessions(sessions, UP, b"1").unwrap();
    let handle = znode.handle();
    std::thread::scope(|scope| {
        let mut running = is_send(Box::pin(znode.run_async()));
        let mut context = Context::from_waker(Waker::noop());
        while !handle.is_present() {
            assert!(running.as_mut().poll(&mut context).is_pending());
            cluster.advance(MOMENT);
        }
        assert!(coordinator.session().exists("/root/app/up").unwrap().is_some());
        coordinator.close();
        let ends = scope.spawn(move || {
            loop {
                let mut context = Context::from_waker(Waker::noop());
                if let std::task::Poll::Ready(ended) = running.as_mut().poll(&mut context) {
                    return ended;
                }
                std::thread::yield_now();
            }
        });
        assert!(matches!(ends.join().unwrap(), Err(Error::Stopped { .. })));
    });
}
