//! A supervised closure runs whenever there is a session: it starts again after each loss, and leaves nothing
//! behind when it ends.

use std::future::{Future, pending, poll_fn};
use std::ops::ControlFlow::{Break, Continue};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::unbounded;
use quorate::recipes::{Instance, LeaderLatch, LeaderSelector, Registry};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session, SessionState, WatchMode};

use crate::common::tasks::{Count, block_on, poll};

/// Advances the clock until the condition holds.
fn advance_until(cluster: &Cluster, what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        cluster.advance(Duration::from_millis(20));
        std::thread::yield_now();
    }
    panic!("{what}: not within two minutes");
}

/// The session that owns the first child of this znode.
fn owner(observer: &Session, parent: &str) -> Option<quorate::session::SessionId> {
    let child = observer.children(parent).wait().ok()?.pop()?;
    observer.exists(&format!("{parent}/{child}")).wait().ok()??.ephemeral_owner
}

/// Ends the session of the registered closure, waits for its next session, and returns that.
fn comes_back(cluster: &Cluster, observer: &Session, parent: &str) -> quorate::session::SessionId {
    advance_until(cluster, parent, || owner(observer, parent).is_some());
    let former = owner(observer, parent).unwrap();
    cluster.node(1).expire_session(former, "a test").wait().unwrap();
    advance_until(cluster, parent, || owner(observer, parent).is_some_and(|now| now != former));
    former
}

#[test]
fn a_registration_comes_back_after_each_loss() {
    let cluster = Cluster::new(3);
    let observer = cluster.node(1).session();
    let supervised = cluster.node(0).supervise(|session| {
        let here = Instance::new("zero", "10.0.0.7", 80);
        let here = Registry::new(&session, "/services")?.register("web", &here).wait()?;
        here.wait_lost().wait().unwrap();
        Ok(Continue(()))
    });
    let supervised = supervised.unwrap();
    let mut sessions: Vec<_> =
        (0..3).map(|_| comes_back(&cluster, &observer, "/services/web")).collect();
    sessions.dedup();
    assert_eq!(sessions.len(), 3, "each run has a session of its own");
    // Another session deletes the znode, and the supervised session goes on.
    let name = observer.children("/services/web").wait().unwrap().pop().unwrap();
    let path = format!("/services/web/{name}");
    let stat = observer.exists(&path).wait().unwrap().unwrap();
    observer.delete(&path).wait().unwrap();
    advance_until(&cluster, "deleted", || {
        observer.exists(&path).wait().unwrap().is_some_and(|now| now.czxid != stat.czxid)
    });
    supervised.stop();
    supervised.wait_ended().wait().unwrap();
    advance_until(&cluster, "stopped", || owner(&observer, "/services/web").is_none());
}

/// It did not compile: the selector returned the value of the closure's `Break`, and not a `ControlFlow`.
#[test]
fn the_break_of_a_selector_ends_the_supervision() {
    let cluster = Cluster::new(1);
    let supervised = cluster.node(0).supervise(|session| {
        LeaderSelector::new(&session, "/leader", "zero")?.run(|_| async { Break(()) }).wait()
    });
    supervised.unwrap().wait_ended().wait().unwrap();
    let run = cluster.node(0).supervise_task(|session| async move {
        let selector = LeaderSelector::new(&session, "/leader", "zero")?;
        let lead = selector.run(|_| async { Break(()) });
        lead.await
    });
    block_on(run).unwrap();
}

#[test]
fn an_election_and_a_watch_in_tasks_come_back_after_each_loss() {
    let cluster = Cluster::new(3);
    let observer = cluster.node(1).session();
    observer.create("/settings", b"", CreateMode::Persistent).wait().unwrap();
    let coordinator = cluster.node(0);
    let (events, seen) = unbounded();
    let (terms, tokens) = unbounded();
    // One future for each, as in two tasks.
    let election = coordinator.supervise_task(move |session| {
        let terms = terms.clone();
        async move {
            let selector = LeaderSelector::new(&session, "/leader", "zero")?;
            let terms = &terms;
            let lead = selector.run(|leadership| async move {
                terms.send(leadership.fencing_token()).unwrap();
                pending().await
            });
            lead.await
        }
    });
    let watch = coordinator.supervise_task(move |session| {
        let events = events.clone();
        async move {
            let watch = session.watch("/settings", WatchMode::Persistent).await?;
            events.send(None).unwrap();
            while let Some(event) = watch.recv().await.unwrap() {
                events.send(Some(event.zxid)).unwrap();
            }
            Ok(Continue(()))
        }
    });
    drop(coordinator);
    let (stop, stopped) = unbounded::<()>();
    std::thread::scope(|scope| {
        for task in [
            Box::pin(election) as std::pin::Pin<Box<dyn Future<Output = _> + Send>>,
            Box::pin(watch),
        ] {
            let stopped = stopped.clone();
            scope.spawn(move || block_on(until_stopped(task, stopped)));
        }
        for round in 0..3_u8 {
            // The watch exists again.
            advance_until(&cluster, "watch", || seen.try_iter().any(|event| event.is_none()));
            let zxid = observer.set("/settings", [round]).wait().unwrap().mzxid;
            advance_until(&cluster, "event", || seen.try_iter().any(|event| event == Some(zxid)));
            advance_until(&cluster, "leads", || tokens.try_iter().next().is_some());
            comes_back(&cluster, &observer, "/leader");
            for info in cluster.node(1).sessions().wait().unwrap() {
                let led = owner(&observer, "/leader");
                if info.id != observer.id() && Some(info.id) != led {
                    // The session of the watch, which may have ended since.
                    let _ = cluster.node(1).expire_session(info.id, "a test").wait();
                }
            }
        }
        drop(stop);
    });
    // Dropping the futures has closed their sessions.
    advance_until(&cluster, "dropped", || owner(&observer, "/leader").is_none());
}

/// Polls the future until the channel is closed.
async fn until_stopped<F: Future>(future: F, stopped: crossbeam_channel::Receiver<()>) {
    let mut future = pin!(future);
    poll_fn(|context| {
        // A thread that waits for the channel wakes the task.
        let (stopped, waker) = (stopped.clone(), context.waker().clone());
        if stopped.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected) {
            return Poll::Ready(());
        }
        std::thread::Builder::new()
            .spawn(move || {
                let _ = stopped.recv();
                waker.wake();
            })
            .unwrap();
        future.as_mut().poll(context).map(drop)
    })
    .await;
}

#[test]
fn it_ends_when_the_closure_breaks_and_not_after_an_error() {
    let cluster = Cluster::new(3);
    let observer = cluster.node(1).session();
    let (runs, report) = unbounded();
    let supervised = cluster.node(0).supervise(move |session| {
        // The path would exist already if the last run had left anything.
        session.create("/run", b"", CreateMode::Ephemeral).wait()?;
        runs.send(session.clone()).unwrap();
        match runs.len() {
            1 => Ok(Continue(())),
            2 => Err(Error::NoNode { path: "/none".to_owned() }),
            _ => Ok(Break(())),
        }
    });
    let supervised = supervised.unwrap();
    supervised.wait_ended().wait().unwrap();
    supervised.wait_ended().wait().unwrap();
    let sessions: Vec<Session> = report.try_iter().collect();
    assert_eq!(sessions.len(), 3);
    for session in &sessions {
        // Although a handle exists.
        assert!(!session.is_alive());
        advance_until(&cluster, "closed", || session.state() == SessionState::Closed);
    }
    assert!(observer.exists("/run").wait().unwrap().is_none());

    let mut runs = 0;
    let mut kept = None;
    let task = cluster.node(0).supervise_task(|session| {
        runs += 1;
        kept = Some(session.clone());
        let run = runs;
        async move {
            session.create("/run", b"", CreateMode::Ephemeral).await?;
            match run {
                1 => Ok(Continue(())),
                2 => Err(Error::NoNode { path: "/none".to_owned() }),
                _ => Ok(Break(())),
            }
        }
    });
    block_on(task).unwrap();
    assert_eq!(runs, 3);
    assert!(kept.is_some_and(|session| !session.is_alive()));
}

#[test]
fn a_panic_ends_it_and_its_session() {
    let cluster = Cluster::new(1);
    let observer = cluster.node(0).session();
    let (report, reports) = unbounded();
    let supervised = cluster.node(0).supervise(move |session| {
        session.create("/run", b"", CreateMode::Ephemeral).wait()?;
        report.send(session).unwrap();
        panic!("the closure panics on purpose");
    });
    let supervised = supervised.unwrap();
    let ended = block_on(supervised.wait_ended());
    assert!(matches!(&ended, Err(Error::Stopped { reason }) if reason.contains("panicked")));
    assert_eq!(reports.len(), 1, "it does not run again");
    advance_until(&cluster, "closed", || observer.exists("/run").wait().unwrap().is_none());
}

#[test]
fn a_partition_is_no_loss_until_the_session_is_over() {
    let cluster = Cluster::new(3);
    let (blocking, blocking_runs) = unbounded();
    let supervised = cluster.node(0).supervise(move |session| {
        blocking.send(session.clone()).unwrap();
        session.states().events().iter().for_each(drop);
        Ok(Continue(()))
    });
    let (asynchronous, runs) = unbounded();
    let mut task = Box::pin(cluster.node(0).supervise_task(move |session| {
        asynchronous.send(session).unwrap();
        pending()
    }));
    let woken = Arc::new(Count::default());
    advance_until(&cluster, "first", || blocking_runs.len() == 1);
    while runs.is_empty() {
        assert!(poll(task.as_mut(), &woken).is_pending());
        cluster.advance(Duration::from_millis(20));
    }
    let sessions = [blocking_runs.recv().unwrap(), runs.recv().unwrap()];
    cluster.isolate(0);
    advance_until(&cluster, "suspended", || {
        sessions.iter().all(|session| session.state() == SessionState::Suspended)
    });
    assert!(poll(task.as_mut(), &woken).is_pending());
    assert!(sessions.iter().all(Session::is_alive));
    let before = woken.woken();
    cluster.advance(Duration::from_secs(60));
    assert!(woken.woken() > before);
    assert!(sessions.iter().all(|session| session.state() == SessionState::Expired));
    // The next session is not open, so nothing runs.
    for _ in 0..100 {
        assert!(poll(task.as_mut(), &woken).is_pending());
        cluster.advance(Duration::from_millis(500));
    }
    assert!(blocking_runs.is_empty() && runs.is_empty());
    cluster.heal();
    advance_until(&cluster, "again", || blocking_runs.len() == 1);
    while runs.is_empty() {
        assert!(poll(task.as_mut(), &woken).is_pending());
        cluster.advance(Duration::from_millis(20));
    }
    for session in [blocking_runs.recv().unwrap(), runs.recv().unwrap()] {
        assert!(session.is_alive());
    }
    // It is stopped while the next session is being opened.
    cluster.isolate(0);
    cluster.advance(Duration::from_secs(60));
    let supervised = supervised.unwrap();
    supervised.stop();
    supervised.wait_ended().wait().unwrap();
    assert!(blocking_runs.is_empty());
}

#[test]
fn closing_the_coordinator_ends_it() {
    let cluster = Cluster::new(3);
    let (report, reports) = unbounded();
    let supervised = cluster.node(0).supervise(move |session| {
        report.send(()).unwrap();
        session.states().events().iter().for_each(drop);
        Ok(Continue(()))
    });
    let supervised = supervised.unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&polls);
    let mut task = Box::pin(cluster.node(0).supervise_task(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        pending()
    }));
    while polls.load(Ordering::SeqCst) == 0 {
        assert!(poll(task.as_mut(), &Arc::default()).is_pending());
        std::thread::yield_now();
    }
    reports.recv().unwrap();
    cluster.node(0).close().wait().unwrap();
    assert!(matches!(supervised.wait_ended().wait(), Err(Error::Stopped { .. })));
    assert!(matches!(block_on(task), Err(Error::Stopped { .. })));
    let late = cluster.node(0).supervise(|_| Ok(Continue(()))).unwrap();
    assert!(matches!(late.wait_ended().wait(), Err(Error::Stopped { .. })));
}

#[test]
fn its_future_can_be_dropped_at_any_point() {
    let cluster = Cluster::new(1);
    let observer = cluster.node(0).session();
    let coordinator = cluster.node(0);
    for polls in 0..30 {
        let mut task = Box::pin(coordinator.supervise_task(|session| async move {
            let latch = LeaderLatch::new(&session, "/leader", "me")?;
            let _leadership = latch.campaign().await?;
            session.create("/mine", b"", CreateMode::Ephemeral).await?;
            pending().await
        }));
        for _ in 0..polls {
            assert!(poll(task.as_mut(), &Arc::default()).is_pending());
            observer.sync().wait().unwrap();
        }
        drop(task);
        advance_until(&cluster, "nothing is left", || {
            let leads = observer.children("/leader").wait().is_ok_and(|all| !all.is_empty());
            !leads && observer.exists("/mine").wait().unwrap().is_none()
        });
    }
    let known = coordinator.sessions().wait().unwrap();
    assert!(known.iter().all(|info| info.id == observer.id()), "{known:?}");
}

/// Its future, and those of what it runs, may move to other threads and outlive the handle of their
/// coordinator.
#[test]
fn its_future_can_be_spawned() {
    fn spawn<F: Future + Send + 'static>(_: F) {}

    struct App {
        name: String,
    }

    impl App {
        async fn work(&self) {}
    }

    let app = Arc::new(App { name: "zero".to_owned() });
    let cluster = Cluster::new(1);
    let coordinator = cluster.node(0);
    spawn(coordinator.supervise_task(move |session| {
        let app = Arc::clone(&app);
        async move {
            let selector = LeaderSelector::new(&session, "/leader", &app.name)?;
            let app = &app;
            let lead = selector.run(|_| async move {
                app.work().await;
                Continue(())
            });
            lead.await
        }
    }));
    drop(coordinator);
}
