//! Testing a service that coordinates: the in-memory cluster, with faults, in milliseconds and without a
//! port. In your project, `main` is a `#[test]`.

#![allow(clippy::disallowed_methods, reason = "an application may look at the clock")]

use std::time::{Duration, Instant};

use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Result, Session, SessionState};

/// The code under test: registers a worker. Returns the number of workers.
fn register(session: &Session, name: &str) -> Result<usize> {
    if session.exists("/workers").wait()?.is_none() {
        session.create("/workers", b"", CreateMode::Persistent).wait()?;
    }
    session.create(&format!("/workers/{name}"), b"", CreateMode::Ephemeral).wait()?;
    Ok(session.children("/workers").wait()?.len())
}

fn main() -> Result<()> {
    let start = Instant::now();
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().session_timeout(Duration::from_secs(30)));
    let (first, second) = (cluster.node(0).session(), cluster.node(1).session());
    assert_eq!(register(&first, "one")?, 1);
    second.sync().wait()?;
    assert_eq!(register(&second, "two")?, 2);

    // The first worker's machine is cut off from the network. Half a minute later (no real time passes) its
    // session is over, and the worker knows that.
    cluster.isolate(0);
    cluster.advance(Duration::from_secs(40));
    assert_eq!(first.state(), SessionState::Expired);
    assert_eq!(second.children("/workers").wait()?, ["two"]);

    // The worker comes back with a new session.
    cluster.heal();
    cluster.advance(Duration::from_secs(2));
    let again = cluster.node(0).session();
    again.sync().wait()?;
    assert_eq!(register(&again, "one")?, 2);
    println!("40 seconds of partition, tested in {:.0?}", start.elapsed());
    Ok(())
}
