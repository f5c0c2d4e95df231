//! Live configuration: one instance changes a value, another follows it.

use quorate::testing::Cluster;
use quorate::{CreateMode, EventKind, Result, WatchMode};

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let operator = cluster.node(0).session();
    let service = cluster.node(2).session();
    operator.create("/config", b"", CreateMode::Persistent)?;
    operator.create("/config/limit", b"10", CreateMode::Persistent)?;
    service.sync()?;

    // Set the watch first, then read: nothing can happen in between unnoticed.
    let changes = service.watch("/config", WatchMode::PersistentRecursive)?;
    let (value, stat) = service.get("/config/limit")?;
    println!(
        "limit {} (version {})",
        String::from_utf8_lossy(&value),
        stat.version
    );

    for limit in ["20", "30", "40"] {
        operator.set("/config/limit", limit)?;
    }
    operator.delete("/config/limit")?;

    for event in changes.events() {
        match event.kind {
            EventKind::Deleted => {
                println!("{} was deleted by write {}", event.path, event.zxid);
                break;
            }
            // What is read may be newer than the event, never older.
            _ => match service.get(&event.path) {
                Ok((value, stat)) => println!(
                    "{} is {} (version {}, write {})",
                    event.path,
                    String::from_utf8_lossy(&value),
                    stat.version,
                    stat.mzxid
                ),
                Err(error) => println!("write {}: by now there is {error}", event.zxid),
            },
        }
    }
    Ok(())
}
