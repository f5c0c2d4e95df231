//! Wakers run on the node's thread and are user code: they may panic, and make calls that block.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crossbeam_channel::unbounded;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session, WatchMode};

use crate::common::{PATIENCE, addresses};

/// Calls this when it is woken.
struct Calls<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(call: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Calls(call)))
}

/// Panics when it is dropped, also as the payload of a panic.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a waker's data is dropped");
        }
    }
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

fn set(session: &Session, path: &str) {
    match session.set(path, b"").wait() {
        Ok(_) => {}
        other => panic!("the node does not answer: {other:?}"),
    }
}

/// A reply, a watch event, a timer and the end of a session each wake a task on the node's thread.
fn wakers_panic(coordinator: &Coordinator) {
    let session = coordinator.session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let panics: [fn(); 3] =
        [|| panic!("a waker panics"), || std::panic::panic_any(Bomb), || drop(Bomb)];
    for panics in panics {
        let waker = waker(panics);
        // The blocking write below is answered after this one, so the waker has been called by then.
        let mut answer = session.set("/a", b"1");
        let polled = poll(Pin::new(&mut answer), &waker);
        set(&session, "/a");
        if polled.is_pending() {
            assert!(answer.wait().is_ok(), "the reply arrives although the waker panicked");
        }

        let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
        {
            let mut next = pin!(watch.recv());
            assert!(poll(next.as_mut(), &waker).is_pending());
            set(&session, "/a");
        }
        assert!(watch.recv().wait().unwrap().is_some());
        set(&session, "/a");

        let other = coordinator.open_session().unwrap();
        let ends = other.watch("/a", WatchMode::Persistent).wait().unwrap();
        let mut next = pin!(ends.recv());
        assert!(poll(next.as_mut(), &waker).is_pending());
        other.close().wait().unwrap();
        set(&session, "/a");
    }
    assert_eq!(coordinator.status().stopped, None);
}

/// A panic in a waker ended the node's thread and with it the node. Its users got the error that the node was
/// closed.
#[test]
fn a_waker_that_panics_does_not_stop_the_node() {
    let peers = addresses(1);
    let dir = tempfile::tempdir().unwrap();
    let builder = Coordinator::builder().data_dir(dir.path().join("data"));
    wakers_panic(&builder.join(&peers).wait().unwrap());
    let client = Coordinator::builder().client();
    let member =
        Coordinator::builder().data_dir(dir.path().join("data")).join(&peers).wait().unwrap();
    member.session().delete("/a").wait().unwrap();
    wakers_panic(&client.join(&peers).wait().unwrap());
}

#[test]
fn nor_does_it_stop_a_cluster_in_memory() {
    let cluster = Cluster::new(3);
    for node in 0..3 {
        wakers_panic(&cluster.node(node));
        cluster.node(node).session().delete("/a").wait().unwrap();
    }
}

/// Each blocking call inside a waker blocked its own node for the whole request timeout, and then failed.
fn blocking_calls_fail(coordinator: &Coordinator) {
    let session = coordinator.session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let lock = session.lock("/lock").unwrap();
    let file = std::env::temp_dir().join("quorate-never-written");
    let (results, seen) = unbounded();
    let (here, node, done) = (session.clone(), coordinator.clone(), results.clone());
    let call = move || {
        let (id, password) = (here.id(), here.password());
        let calls: [(&str, Result<(), Error>); 9] = [
            ("set /a", here.set("/a", b"2").wait().map(drop)),
            ("sync", here.sync().wait().map(drop)),
            ("acquire /lock", lock.acquire().wait().map(drop)),
            ("wait_ready", node.wait_ready(PATIENCE).wait()),
            (&format!("resume session {id}"), node.resume(id, [1; 16]).wait().map(drop)),
            ("leaving the cluster", node.leave(PATIENCE).wait()),
            ("reading the members' sessions", node.sessions().wait().map(drop)),
            ("a backup", node.backup(&file).wait().map(drop)),
            ("joining a cluster", Coordinator::join(["127.0.0.1:1"]).wait().map(drop)),
        ];
        for (operation, result) in calls {
            let _ = results.send((operation.to_owned(), result));
        }
        assert!(password != [1; 16] && node.watches().is_empty());
        // Calls that do not wait still work.
        let reads = here.get("/a").wait().map(drop);
        let _ = results.send(("get".to_owned(), reads));
    };
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let waker = waker(call);
    let mut next = pin!(watch.recv());
    assert!(poll(next.as_mut(), &waker).is_pending());
    set(&session, "/a");
    for _ in 0..8 {
        let (operation, result) = seen.recv_timeout(PATIENCE).expect("the waker does not wait");
        let expected = Error::WouldBlock { operation: operation.clone() };
        assert_eq!(result, Err(expected.clone()));
        assert!(expected.is_outcome_unknown() && !expected.is_session_lost());
    }
    let (_, reads) = seen.recv_timeout(PATIENCE).unwrap();
    if !matches!(reads, Err(Error::WouldBlock { .. })) {
        reads.unwrap();
    }
    drop(done);
    // The requests of the failed calls were executed all the same.
    session.sync().wait().unwrap();
    assert_eq!(session.get("/a").wait().unwrap().1.version, 2);
}

/// Longer than the test.
const LONG: Duration = Duration::from_secs(24 * 3600);

#[test]
fn a_blocking_call_in_a_waker_fails_at_once() {
    let cluster = Cluster::with_settings(1, Coordinator::builder().request_timeout(LONG));
    blocking_calls_fail(&cluster.node(0));
    let (peers, dir) = (addresses(1), tempfile::tempdir().unwrap());
    let builder = Coordinator::builder().data_dir(dir.path().join("data")).request_timeout(LONG);
    blocking_calls_fail(&builder.join(&peers).wait().unwrap());
}

/// The last handles may be dropped in a waker: then the drop does not wait for the end.
#[test]
fn a_node_may_be_closed_in_a_waker() {
    let (peers, dir) = (addresses(1), tempfile::tempdir().unwrap());
    let join = || Coordinator::builder().data_dir(dir.path().join("data")).join(&peers);
    let coordinator = join().wait().unwrap();
    let session = coordinator.session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let watch = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let (closes, closed) = unbounded();
    let closing = coordinator.clone();
    let waker = waker(move || {
        closing.close().wait().unwrap();
        let _ = closes.send(());
    });
    let mut next = pin!(watch.recv());
    assert!(poll(next.as_mut(), &waker).is_pending());
    drop(session.set("/a", b""));
    closed.recv_timeout(PATIENCE).expect("closing does not wait in a waker");
    // Outside of wakers it waits, as usual.
    coordinator.close().wait().unwrap();
    join().wait().unwrap().wait_ready(PATIENCE).wait().unwrap();
}
