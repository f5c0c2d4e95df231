//! An instance is killed and started again while its own ephemeral znode still exists. The new run takes the
//! znode over in one write, so no reader sees it missing.

use quorate::session::SessionId;
use quorate::testing::Cluster;
use quorate::{CreateMode, EventKind, Result, WatchMode};

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/workers", b"", CreateMode::Persistent).wait()?;
    let first = session.create("/workers/a", b"boot 1", CreateMode::Ephemeral).wait()?.stat;
    println!("boot 1: /workers/a belongs to session {}", session.id());
    // An application keeps this in a file next to its data directory.
    let kept = session.id().number();

    let observer = cluster.node(1).session();
    let watch = observer.watch("/workers/a", WatchMode::Persistent).wait()?;

    cluster.stop(0);
    cluster.restart(0);
    let session = cluster.node(0).session();
    let refused = session.create("/workers/a", b"boot 2", CreateMode::Ephemeral);
    println!("boot 2: a create alone: {}", refused.wait().unwrap_err());

    let taken =
        session.take_over("/workers/a", b"boot 2", SessionId::from_number(kept)).wait()?.stat;
    println!("boot 2: /workers/a belongs to session {}", session.id());
    assert_eq!(taken.ephemeral_owner, Some(session.id()));
    assert!(taken.czxid > first.czxid, "whatever was fenced by the first one stays out");

    observer.sync().wait()?;
    let events: Vec<_> = watch.events().try_iter().collect();
    let expected = [EventKind::Deleted, EventKind::Created];
    assert!(events.iter().map(|event| event.kind).eq(expected));
    assert!(events.iter().all(|event| event.zxid == taken.czxid), "one write");
    println!("an observer received both events at zxid {}", taken.czxid);
    Ok(())
}
