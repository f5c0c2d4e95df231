//! Calls in tasks: all waiters are woken, and a dropped future has its documented effect.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::common::addresses;
use quorate::StartError;
use quorate::recipes::{
    Group, Instance, LeaderLatch, LeaderSelector, Lost, MultiLock, PersistentEphemeral, Queue,
    ReadWriteLock, ReentrantLock, Registry, Semaphore,
};
use quorate::testing::Cluster;
use quorate::{Availability, CreateMode, Error, Session, SessionState};

use crate::common::tasks::{Count, block_on, poll};

const PATIENCE: Duration = Duration::from_secs(60);

type Waiting<'a> = Pin<Box<dyn Future<Output = Lost> + 'a>>;

/// Three tasks wait for one loss, each with its own waker; a fourth one gives up.
fn all_are_woken<'a>(of: &str, own: &Session, lost: impl Fn() -> Waiting<'a>, lose: impl FnOnce()) {
    let mut tasks: Vec<_> = (0..3).map(|_| (lost(), Arc::new(Count::default()))).collect();
    let (mut dropped, unwoken) = (lost(), Arc::new(Count::default()));
    for (task, count) in &mut tasks {
        assert!(poll(task.as_mut(), count).is_pending(), "{of}");
    }
    assert!(poll(dropped.as_mut(), &unwoken).is_pending(), "{of}");
    drop(dropped);
    lose();
    // Replies that follow the loss arrive after the wake-ups.
    own.sync().wait().unwrap();
    for (task, count) in &mut tasks {
        assert!(count.woken() > 0, "{of}");
        assert_eq!(poll(task.as_mut(), count), Poll::Ready(Lost::Deleted), "{of}");
    }
    assert_eq!(unwoken.woken(), 0, "{of}: its future was dropped");
}

#[test]
fn all_tasks_that_wait_for_a_loss_are_woken() {
    let cluster = Cluster::new(3);
    let (own, other) = (cluster.node(0).session(), cluster.node(1).session());
    let delete = |path: &str| other.delete(path).wait().unwrap();

    let guard = own.lock("/lock").unwrap().acquire().wait().unwrap();
    all_are_woken(
        "lock",
        &own,
        || Box::pin(async { guard.wait_lost().await.unwrap() }),
        || delete(guard.path()),
    );

    let lock = ReadWriteLock::new(&own, "/rw").unwrap();
    let write = block_on(lock.try_write()).unwrap().unwrap();
    assert!(block_on(lock.try_read()).unwrap().is_none());
    all_are_woken(
        "write",
        &own,
        || Box::pin(async { write.wait_lost().await.unwrap() }),
        || delete(write.path()),
    );

    let lock = ReentrantLock::new(&own, "/again").unwrap();
    let held = block_on(lock.try_acquire()).unwrap().unwrap();
    all_are_woken(
        "reentrant",
        &own,
        || Box::pin(async { held.wait_lost().await.unwrap() }),
        || delete(held.path()),
    );

    let semaphore = Semaphore::new(&own, "/permits", 2).unwrap();
    let permits = block_on(semaphore.try_acquire_many(2)).unwrap().unwrap();
    assert!(block_on(semaphore.try_acquire()).unwrap().is_none());
    all_are_woken(
        "permits",
        &own,
        || Box::pin(async { permits.wait_lost().await.unwrap() }),
        || delete(permits.path()),
    );

    let multi = MultiLock::new(&own, ["/one", "/two"]).unwrap();
    let all = block_on(multi.try_acquire()).unwrap().unwrap();
    let second = all.guards()[1].path();
    all_are_woken(
        "multi",
        &own,
        || Box::pin(async { all.wait_lost().await.unwrap() }),
        || delete(second),
    );
    assert_eq!(all.wait_lost().wait().unwrap(), Lost::Deleted);

    let latch = LeaderLatch::new(&own, "/leader", "me").unwrap();
    let leader = block_on(latch.try_campaign()).unwrap().unwrap();
    all_are_woken(
        "leader",
        &own,
        || Box::pin(async { leader.wait_lost().await.unwrap() }),
        || delete(leader.path()),
    );

    let group = Group::new(&own, "/group").unwrap();
    let member = block_on(group.try_join("me", b"")).unwrap().unwrap();
    assert!(block_on(group.try_join("me", b"")).unwrap().is_none());
    all_are_woken(
        "member",
        &own,
        || Box::pin(async { member.wait_lost().await.unwrap() }),
        || delete(member.path()),
    );

    let registry = Registry::new(&own, "/services").unwrap();
    let here = registry.register("web", &Instance::new("one", "host", 1)).wait().unwrap();
    all_are_woken(
        "instance",
        &own,
        || Box::pin(async { here.wait_lost().await.unwrap() }),
        || delete(here.path()),
    );
    assert_eq!(here.wait_lost().wait().unwrap(), Lost::Deleted);
}

/// Runs a release in three ways: awaited, dropped after a poll, and never polled. Each time it must release
/// what was held.
fn released_in_any_way<'a, G: 'a, F: Future<Output = quorate::Result<()>> + 'a>(
    session: &Session,
    hold: impl Fn() -> G,
    path: impl Fn(&G) -> String,
    release: impl Fn(G) -> F,
) {
    for way in ["awaited", "polled", "unpolled"] {
        let held = hold();
        let at = path(&held);
        assert!(session.exists(&at).wait().unwrap().is_some());
        let mut releasing = Box::pin(release(held));
        match way {
            "awaited" => block_on(releasing.as_mut()).unwrap(),
            "polled" => drop(poll(releasing.as_mut(), &Arc::default())),
            _ => {}
        }
        drop(releasing);
        // Its reply comes after the deletion.
        session.sync().wait().unwrap();
        assert!(session.exists(&at).wait().unwrap().is_none(), "{way}: {at}");
    }
}

#[test]
fn a_dropped_release_future_still_releases() {
    let cluster = Cluster::new(3);
    let own = cluster.node(0).session();
    let lock = own.lock("/lock").unwrap();
    released_in_any_way(
        &own,
        || lock.acquire().wait().unwrap(),
        |guard| guard.path().to_owned(),
        |guard| guard.release(),
    );
    let lock = ReadWriteLock::new(&own, "/rw").unwrap();
    released_in_any_way(
        &own,
        || lock.read().wait().unwrap(),
        |guard| guard.path().to_owned(),
        |guard| guard.release(),
    );
    released_in_any_way(
        &own,
        || lock.write().wait().unwrap(),
        |guard| guard.path().to_owned(),
        |guard| guard.release(),
    );
    let lock = ReentrantLock::new(&own, "/again").unwrap();
    released_in_any_way(
        &own,
        || lock.acquire().wait().unwrap(),
        |guard| guard.path().to_owned(),
        |guard| guard.release(),
    );
    let multi = MultiLock::new(&own, ["/one", "/two"]).unwrap();
    for place in 0..2 {
        released_in_any_way(
            &own,
            || multi.acquire().wait().unwrap(),
            |all| all.guards()[place].path().to_owned(),
            |all| all.release(),
        );
    }
    let semaphore = Semaphore::new(&own, "/permits", 1).unwrap();
    released_in_any_way(
        &own,
        || semaphore.acquire().wait().unwrap(),
        |permits| permits.path().to_owned(),
        |permits| permits.release(),
    );
    let latch = LeaderLatch::new(&own, "/leader", "me").unwrap();
    released_in_any_way(
        &own,
        || latch.campaign().wait().unwrap(),
        |leader| leader.path().to_owned(),
        |leader| leader.release(),
    );
    let group = Group::new(&own, "/group").unwrap();
    released_in_any_way(
        &own,
        || group.join("me", b"").wait().unwrap(),
        |member| member.path().to_owned(),
        |member| member.release(),
    );
    let registry = Registry::new(&own, "/services").unwrap();
    released_in_any_way(
        &own,
        || registry.register("web", &Instance::new("one", "host", 1)).wait().unwrap(),
        |here| here.path().to_owned(),
        |here| here.release(),
    );
}

#[test]
fn every_task_gets_every_state_of_a_session_and_the_end() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    session.sync().wait().unwrap();
    let mut readers: Vec<_> = (0..3).map(|_| session.states()).collect();
    for states in &mut readers {
        assert_eq!(block_on(states.recv()).unwrap(), Some(SessionState::Connected));
    }
    let counts: Vec<Arc<Count>> = (0..3).map(|_| Arc::default()).collect();
    for (states, count) in readers.iter_mut().zip(&counts) {
        // Dropped after a poll: the next future receives the remaining states.
        assert!(poll(Box::pin(states.recv()).as_mut(), count).is_pending());
    }
    // A dropped future is not woken.
    drop(readers.pop());
    drop(session);
    for (states, count) in readers.iter_mut().zip(&counts) {
        assert_eq!(count.woken(), 1);
        assert_eq!(block_on(states.recv()).unwrap(), Some(SessionState::Closed));
        assert_eq!(block_on(states.recv()).unwrap(), None);
    }
    assert_eq!(counts[2].woken(), 0);
}

#[test]
fn an_instance_gets_ready_reports_and_closes_without_blocking_a_task() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(3);
    let coordinator = cluster.node(0);
    block_on(coordinator.wait_ready(PATIENCE)).unwrap();
    let mut changes = coordinator.availability_changes();
    let mut others = coordinator.availability_changes();
    while !matches!(block_on(changes.recv()).unwrap(), Some(Availability::Healthy { spare: 1 })) {}
    while !matches!(block_on(others.recv()).unwrap(), Some(Availability::Healthy { spare: 1 })) {}
    assert_eq!(block_on(coordinator.reports()).unwrap().len(), 3);
    let session = coordinator.session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    let known = block_on(coordinator.sessions()).unwrap();
    assert!(known.iter().any(|info| info.id == session.id()));
    let file = directory.path().join("backup");
    block_on(coordinator.backup(&file)).unwrap();
    assert!(quorate::recovery::Recovery::new().verify(&file).is_ok());

    // Two tasks wait for the end, which both see.
    let counts: [Arc<Count>; 2] = Default::default();
    for (changes, count) in [&mut changes, &mut others].into_iter().zip(&counts) {
        while poll(Box::pin(changes.recv()).as_mut(), count).is_ready() {}
    }
    block_on(coordinator.close()).unwrap();
    for (changes, count) in [&mut changes, &mut others].into_iter().zip(&counts) {
        assert!(count.woken() > 0);
        while block_on(changes.recv()).unwrap().is_some() {}
    }
    // Once more: there is nothing to do.
    block_on(coordinator.close()).unwrap();
    assert!(session.state().is_final());
}

#[test]
fn waiting_to_be_ready_ends_in_time() {
    let cluster = Cluster::new(3);
    cluster.node(0).session().sync().wait().unwrap();
    cluster.isolate(0);
    cluster.advance(Duration::from_secs(60));
    let coordinator = cluster.node(0);
    let waiting = block_on(coordinator.wait_ready(Duration::from_millis(50)));
    assert!(matches!(waiting, Err(Error::Timeout { .. })), "{waiting:?}");
}

#[test]
fn a_session_is_resumed_or_left_alone() {
    let cluster = Cluster::new(3);
    let old = cluster.node(0).open_session().unwrap();
    old.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let other = cluster.node(1);
    // Dropped half-way: nothing that this leaves behind closes the session.
    let mut resuming = Box::pin(other.resume(old.id(), old.password()));
    let _ = poll(resuming.as_mut(), &Arc::default());
    drop(resuming);
    let new = block_on(other.resume(old.id(), old.password())).unwrap();
    new.set("/mine", b"2").wait().unwrap();
    assert_eq!(new.ephemerals().wait().unwrap(), ["/mine"]);
    let short = Duration::from_secs(10);
    let last = block_on(cluster.node(2).resume_with(old.id(), old.password(), short));
    assert_eq!(last.unwrap().timeout(), short);
}

#[test]
fn takes_that_are_dropped_at_any_point_lose_no_item() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let queue = Queue::new(&session, "/queue").unwrap();
    for item in 0..20_u8 {
        queue.put([item]).wait().unwrap();
    }
    // As `select!` does: each future is dropped after some polls, one of which may have claimed an item.
    for polls in 0..60 {
        let mut taking = Box::pin(queue.take());
        for _ in 0..polls % 12 {
            if poll(taking.as_mut(), &Arc::default()).is_ready() {
                break;
            }
            session.sync().wait().unwrap();
        }
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 20 {
        let item = block_on(queue.take()).unwrap();
        assert!(seen.insert(item.data().to_vec()));
        block_on(item.done()).unwrap();
    }
    assert!(block_on(queue.try_take()).unwrap().is_none());
}

/// Joins as the only member, at its own address.
fn alone(data: &std::path::Path) -> (quorate::Builder, String) {
    let address = addresses::address();
    (quorate::Coordinator::builder().data_dir(data), address)
}

#[test]
fn an_instance_joins_in_a_task_and_leaves_or_keeps_its_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let (builder, address) = alone(directory.path());
    // The future was dropped, so the instance that had joined is closed, and can join again.
    drop(poll(Box::pin(builder.clone().join([&address])).as_mut(), &Arc::default()));
    let coordinator = loop {
        match block_on(builder.clone().join([&address])) {
            // Its directory or its port is in use.
            Err(
                Error::Start(StartError::DataDirInUse { .. })
                | Error::Start(StartError::NotAPeer { .. }),
            ) => {}
            joined => break joined.unwrap(),
        }
    };
    block_on(coordinator.wait_ready(PATIENCE)).unwrap();
    let session = coordinator.session();
    block_on(session.create("/mine", b"", CreateMode::Ephemeral)).unwrap();
    let known = (session.id(), session.password());
    assert_eq!(block_on(coordinator.close_keeping_sessions()).unwrap(), [known]);
    assert_eq!(session.state(), SessionState::Detached);

    let coordinator = block_on(builder.clone().join([&address])).unwrap();
    let session = block_on(coordinator.resume(known.0, known.1)).unwrap();
    assert_eq!(session.ephemerals().wait().unwrap(), ["/mine"]);
    // The last instance of a cluster cannot leave it.
    let left = block_on(coordinator.leave(Duration::from_millis(100)));
    assert!(matches!(left, Err(Error::Timeout { .. })), "{left:?}");
    block_on(coordinator.close()).unwrap();
}

#[test]
fn an_instance_leaves_in_a_task() {
    let cluster = Cluster::new(3);
    cluster.node(0).session().sync().wait().unwrap();
    let coordinator = cluster.node(2);
    block_on(coordinator.wait_ready(PATIENCE)).unwrap();
    // Dropped after a poll: it continues to leave.
    let mut leaving = Box::pin(coordinator.leave(PATIENCE));
    assert!(poll(leaving.as_mut(), &Arc::default()).is_pending());
    drop(leaving);
    block_on(coordinator.leave(PATIENCE)).unwrap();
    let members = || cluster.node(0).status().members.len();
    for _ in 0..1000 {
        if members() == 2 {
            break;
        }
        cluster.advance(Duration::from_millis(20));
    }
    assert_eq!(members(), 2);
}

#[test]
fn an_operator_acts_in_a_task() {
    let cluster = Cluster::new(3);
    let coordinator = cluster.node(0);
    block_on(coordinator.wait_ready(PATIENCE)).unwrap();
    let follower = (0..3).find(|&node| Some(node) != cluster.leader()).unwrap();
    let address = cluster.node(follower).address();
    block_on(coordinator.move_leader(&address, "a test")).unwrap();
    assert_eq!(cluster.leader(), Some(follower));
    let refused = block_on(coordinator.remove_member(&address, "a test"));
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let session = cluster.node(1).open_session().unwrap();
    session.sync().wait().unwrap();
    block_on(coordinator.expire_session(session.id(), "a test")).unwrap();
    assert!(session.sync().wait().is_err_and(|error| error.is_session_lost()));
    assert!(block_on(coordinator.metrics()).unwrap().has_leader);
}

#[test]
fn a_session_is_detached_in_a_task() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    // Never polled, so it has done nothing.
    drop(session.detach());
    assert_eq!(session.state(), SessionState::Connected);
    let (id, password) = block_on(session.detach()).unwrap();
    assert_eq!(session.state(), SessionState::Detached);
    assert!(matches!(block_on(session.detach()), Err(Error::SessionDetached { .. })));
    let session = block_on(cluster.node(1).resume(id, password)).unwrap();
    assert_eq!(session.ephemerals().wait().unwrap(), ["/mine"]);
}

/// Futures of calls that take a closure or run on can be spawned, whatever they borrow.
#[test]
fn futures_of_recipes_can_be_spawned() {
    fn spawn<F: Future + Send + 'static>(_: F) {}

    struct App {
        name: String,
        selector: LeaderSelector,
        session: Session,
    }

    impl App {
        async fn lead(&self) -> quorate::Result<ControlFlow<()>> {
            let greeting = format!("{} leads", self.name);
            let lead = self.selector.run(|leadership| {
                let greeting = &greeting;
                async move {
                    leadership.wait_lost().await.unwrap();
                    self.count(greeting).await.map_or(ControlFlow::Continue(()), ControlFlow::Break)
                }
            });
            lead.await
        }

        async fn count(&self, name: &str) -> quorate::Result<()> {
            let path = format!("/{name}");
            let counted = self.session.transact(|transaction| {
                transaction.set(&path, self.name.as_bytes());
                Ok(())
            });
            counted.await.map(drop)
        }
    }

    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let selector = LeaderSelector::new(&session, "/leader", "me").unwrap();
    let here = PersistentEphemeral::new(&cluster.node(0).session(), "/up", b"").unwrap();
    let app = Arc::new(App { name: "me".to_owned(), selector, session });
    spawn(async move { app.lead().await });
    spawn(here.run());
}
