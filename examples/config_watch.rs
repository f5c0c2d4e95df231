//! Live configuration: an operator changes a value, and a service on another instance follows it.

use quorate::testing::Cluster;
use quorate::{CreateMode, EventKind, Result, Session, WatchMode};

/// Follows `/config` until its limit is deleted.
fn follow(service: &Session) -> Result<()> {
    // Set the watch first, then read: no change in between is missed.
    let changes = service.watch("/config", WatchMode::PersistentRecursive)?;
    let (value, stat) = service.get("/config/limit")?;
    println!("limit {} (version {})", String::from_utf8_lossy(&value), stat.version);
    service.create("/seen/", &value, CreateMode::PersistentSequential)?;
    for event in changes.events() {
        if event.kind == EventKind::Deleted {
            println!("{} was deleted by write {}", event.path, event.zxid);
            return Ok(());
        }
        // The value is never older than the event. It may be newer, or deleted by now.
        if let Ok((value, stat)) = service.get(&event.path) {
            let value = String::from_utf8_lossy(&value).into_owned();
            println!("limit {value} (version {}, write {})", stat.version, stat.mzxid);
            service.create("/seen/", &value, CreateMode::PersistentSequential)?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let operator = cluster.node(0).session();
    operator.create("/config", b"", CreateMode::Persistent)?;
    operator.create("/config/limit", b"10", CreateMode::Persistent)?;
    operator.create("/seen", b"", CreateMode::Persistent)?;
    let service = cluster.node(2).session();
    service.sync()?;
    let (_, mut seen) = operator.children_and_watch("/seen")?;
    std::thread::scope(|scope| {
        let service = scope.spawn(|| follow(&service));
        for limit in ["20", "30", "40"] {
            // The service reports that it has seen the former value.
            seen.recv();
            seen = operator.children_and_watch("/seen")?.1;
            operator.set("/config/limit", limit)?;
        }
        seen.recv();
        operator.delete("/config/limit")?;
        service.join().expect("the service panicked")
    })
}
