//! An inbox for each user: limited by a quota, read page by page, seen by its owner through a chroot, and
//! deleted as a whole.

use std::time::Duration;

use quorate::quota::Quota;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Result, Session, WatchMode};

const PAGE: usize = 4;

/// Puts messages into an inbox until it is full. Returns how many fitted.
fn fill(session: &Session, inbox: &str) -> Result<usize> {
    for number in 0.. {
        let mode = CreateMode::PersistentSequentialWithTtl(Duration::from_secs(3600));
        match session.create(&format!("{inbox}/message-"), b"hello", mode).wait() {
            Ok(_) => (),
            Err(Error::QuotaExceeded { path, limit, .. }) => {
                println!("{path} takes {limit} znodes and no more");
                return Ok(number);
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("an inbox has a limit")
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/inboxes", b"", CreateMode::Persistent).wait()?;

    // One write for both cases, whether the inbox exists or not.
    for greeting in ["welcome", "welcome back"] {
        let inbox =
            session.create_or_set("/inboxes/ada", greeting, CreateMode::Persistent).wait()?;
        println!("{greeting}: version {} of the inbox", inbox.stat.version);
    }

    // The inbox itself counts. A watch on the statistics reports an exceeded soft limit.
    session.set_quota("/inboxes/ada", &Quota::new().znodes_hard(11).bytes(50)).wait()?;
    let warnings =
        session.watch(&Quota::stats_path("/inboxes/ada"), WatchMode::Persistent).wait()?;
    let sent = fill(&session, "/inboxes/ada")?;
    assert_eq!(sent, 10);
    let warned = warnings.recv().wait()?.expect("the session lives");
    println!("more than 50 bytes at zxid {}", warned.zxid);

    // On every instance, the owner sees this inbox and nothing else.
    let reader = cluster.node(1).session();
    reader.sync().wait()?;
    let inbox = reader.chroot("/inboxes/ada")?;
    let mut read = 0;
    // The pages of one snapshot agree, though others write at the same time.
    let snapshot = inbox.snapshot().wait()?;
    let mut last: Option<String> = None;
    loop {
        let page = snapshot.children_page("/", last.as_deref(), PAGE)?;
        let Some(end) = page.last() else { break };
        println!("a page of {}, up to {end}", page.len());
        read += page.len();
        last = Some(end.clone());
    }
    assert_eq!(read, sent);

    // The whole inbox in one write: no reader sees half an inbox.
    session.delete_quota("/inboxes/ada").wait()?;
    session.delete_recursive("/inboxes/ada").wait()?;
    assert!(session.exists("/inboxes/ada").wait()?.is_none());
    assert_eq!(snapshot.children("/")?.len(), sent, "a snapshot stays as it was");
    Ok(())
}
