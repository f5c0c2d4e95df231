//! A consumer copies a part of the tree to its own storage. After a restart it continues where it was: it
//! receives the changes that it has missed, or reads everything again if they are too old.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate::session::Zxid;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, Result, Session, Watch, WatchEvent, WatchMode};

/// The consumer's storage, for example a search index. It stores both fields together.
#[derive(Default)]
struct Index {
    articles: BTreeMap<String, String>,
    /// Every change up to this write is in the index. `None`: it was never filled.
    upto: Option<Zxid>,
}

impl Index {
    /// Continues where it was, or starts from the beginning.
    fn open(&mut self, session: &Session) -> Result<Watch> {
        if let Some(upto) = self.upto {
            match session.watch_from("/articles", WatchMode::PersistentRecursive, upto).wait() {
                // This instance does not have all the changes since then.
                Err(Error::TooOld { zxid, oldest, .. }) => {
                    println!("  zxid {zxid} is too old, {oldest} would do: read everything");
                }
                watch => return watch,
            }
        }
        // Set the watch first, then read: a change in between is both reported and read.
        let watch = session.watch("/articles", WatchMode::PersistentRecursive).wait()?;
        self.read_all(session)?;
        Ok(watch)
    }

    fn read_all(&mut self, session: &Session) -> Result<()> {
        let snapshot = session.snapshot().wait()?;
        let all = snapshot.walk("/articles")?;
        let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
        self.articles = all.map(|(path, data, _)| (path.to_owned(), text(data))).collect();
        self.upto = Some(snapshot.zxid());
        println!("  has read {} znodes, up to zxid {}", self.articles.len(), snapshot.zxid());
        Ok(())
    }

    /// Applies all events that the watch has received so far.
    fn catch_up(&mut self, session: &Session, watch: &Watch) -> Result<usize> {
        // Every change that can be read now has its event in the channel. So the zxid of the tree is stored.
        // The zxid of an event would be wrong: other events of the same multi share it, and might be missed.
        let upto = session.snapshot().wait()?.zxid();
        let mut count = 0;
        for event in watch.events().try_iter() {
            count += 1;
            self.take(session, &event)?;
        }
        // Stored after the changes, or together with them: an event that is applied twice does no harm.
        self.upto = self.upto.max(Some(upto));
        Ok(count)
    }

    fn take(&mut self, session: &Session, event: &WatchEvent) -> Result<()> {
        match event.kind {
            // There were more changes than the channel holds.
            EventKind::Gap => return self.read_all(session),
            EventKind::Created | EventKind::DataChanged => match session.get(&event.path).wait() {
                Ok((data, _)) => {
                    let text = String::from_utf8_lossy(&data).into_owned();
                    self.articles.insert(event.path.clone(), text);
                }
                // The znode is deleted by now, and that event follows.
                Err(Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            },
            EventKind::Deleted => {
                self.articles.remove(&event.path);
            }
            _ => {}
        }
        println!("  {:?} {} by write {}", event.kind, event.path, event.zxid);
        Ok(())
    }
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let author = cluster.node(0).session();
    author.create("/articles", b"", CreateMode::Persistent).wait()?;
    author.create("/articles/raft", b"a log", CreateMode::Persistent).wait()?;
    let mut index = Index::default();

    println!("the first start");
    let session = cluster.node(1).session();
    session.sync().wait()?;
    let watch = index.open(&session)?;
    author.set("/articles/raft", b"a replicated log").wait()?;
    session.sync().wait()?;
    index.catch_up(&session, &watch)?;

    println!("a restart, with some changes in between");
    cluster.stop(1);
    author.create("/articles/locks", b"with tokens", CreateMode::Persistent).wait()?;
    author
        .multi()
        .set("/articles/raft", b"see thesis")
        .delete("/articles/locks")
        .commit()
        .wait()?;
    author.create("/articles/clocks", b"they drift", CreateMode::Persistent).wait()?;
    cluster.restart(1);
    let session = cluster.node(1).session();
    session.sync().wait()?;
    // On another instance, or on this one: each has the latest changes.
    let watch = index.open(&session)?;
    assert_eq!(index.catch_up(&session, &watch)?, 4);

    println!("a restart after more than {} changes", Watch::HISTORY_CHANGES);
    cluster.stop(1);
    for _ in 0..=Watch::HISTORY_CHANGES / 1000 {
        let multi = author.multi();
        (0..1000).fold(multi, |multi, _| multi.set("/articles/raft", b"edited")).commit().wait()?;
    }
    cluster.restart(1);
    cluster.advance(Duration::from_secs(2));
    let session = cluster.node(1).session();
    session.sync().wait()?;
    let watch = index.open(&session)?;
    index.catch_up(&session, &watch)?;
    assert_eq!(index.articles["/articles/raft"], "edited");
    println!("it has {:?}", index.articles.keys().collect::<Vec<_>>());
    Ok(())
}
