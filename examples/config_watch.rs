//! Live configuration: an operator changes a value, and a service on another instance follows it.

use quorate::testing::Cluster;
use quorate::{CreateMode, EventKind, Result, Session, WatchMode};

/// Follows `/config` until its limit is deleted.
fn follow(service: &Session) -> Result<()> {
    // Set the watch first, then read: no change in between is missed.
    let changes = service.watch("/config", WatchMode::PersistentRecursive).wait()?;
    let (value, stat) = service.get("/config/limit").wait()?;
    println!("limit {} (version {})", String::from_utf8_lossy(&value), stat.version);
    service.create("/seen/", &value, CreateMode::PersistentSequential).wait()?;
    for event in changes.events() {
        if event.kind == EventKind::Deleted {
            println!("{} was deleted by write {}", event.path, event.zxid);
            return Ok(());
        }
        // The value is never older than the event. It may be newer, or deleted by now.
        if let Ok((value, stat)) = service.get(&event.path).wait() {
            let value = String::from_utf8_lossy(&value).into_owned();
            println!("limit {value} (version {}, write {})", stat.version, stat.mzxid);
            service.create("/seen/", &value, CreateMode::PersistentSequential).wait()?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let operator = cluster.node(0).session();
    operator.create("/config", b"", CreateMode::Persistent).wait()?;
    operator.create("/config/limit", b"10", CreateMode::Persistent).wait()?;
    operator.create("/seen", b"", CreateMode::Persistent).wait()?;
    let service = cluster.node(2).session();
    service.sync().wait()?;
    let (_, mut seen) = operator.children_and_watch("/seen").wait()?;
    std::thread::scope(|scope| {
        let service = scope.spawn(|| follow(&service));
        for limit in ["20", "30", "40"] {
            // The service reports that it has seen the former value.
            seen.recv().wait()?;
            seen = operator.children_and_watch("/seen").wait()?.1;
            operator.set("/config/limit", limit).wait()?;
        }
        seen.recv().wait()?;
        operator.delete("/config/limit").wait()?;
        service.join().expect("the service panicked")
    })
}
