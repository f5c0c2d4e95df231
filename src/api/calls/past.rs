//! A session's reads of the past.

use std::sync::Arc;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::types::error::Result;
use crate::types::znode::{Stat, Zxid};

impl Session {
    /// Returns a znode and all below it as they were right after the write `zxid`: for example, the configuration with
    /// which a request has failed. With the path `/`, these are all znodes. Only that part counts: an instance with a
    /// replica shows the other znodes as well, and a client does not. The zxid comes from a [`Stat`], an event, a snapshot or a [`CausalToken`](crate::session::CausalToken).
    ///
    /// The snapshot shares all that is equal with the present tree. Making it takes time in proportion to the writes
    /// since then, about a microsecond for each, in the calling thread.
    ///
    /// Each replica remembers in its memory what its latest writes have replaced, up to
    /// [`Builder::snapshot_history`](crate::Builder::snapshot_history): those that it has applied one by one since
    /// its process has started (from the checkpoint and the log after it), or since it has received a snapshot from a
    /// leader. So another instance may know an older state.
    ///
    /// If this replica has not applied `zxid` yet, it first catches up with the leader, and this blocks as
    /// [`Session::sync`] does. Otherwise it needs no quorum, but waits until the session's earlier calls have been
    /// answered. It shows what the session may read, by the access lists of that time and the ids that it has now.
    ///
    /// A [client](crate::guide::clients) receives that part from its member: at most 8 MiB, if it has changed at most
    /// 10,000 times since then. What its member knows may differ from what the next one does.
    ///
    /// # Errors
    /// [`Error::TooOld`] if this replica no longer knows that state, with the oldest zxid that it knows;
    /// [`Error::FutureZxid`] if there is no such write; [`Error::InvalidPath`]; [`Error::TooLarge`] on a client, if it is
    /// more than 8 MiB; otherwise as [`Session::snapshot`].
    ///
    /// ```
    /// use quorate::{Coordinator, CreateMode, testing::Cluster};
    ///
    /// let settings = Coordinator::builder().snapshot_history(1 << 20);
    /// let session = Cluster::with_settings(1, settings).node(0).session();
    /// session.create("/limit", b"10", CreateMode::Persistent)?;
    /// let failed_at = session.snapshot()?.zxid();
    /// session.set("/limit", b"20")?;
    /// session.delete("/limit")?;
    ///
    /// let then = session.snapshot_at("/limit", failed_at)?;
    /// assert_eq!((&then.get("/limit")?.0[..], then.zxid()), (&b"10"[..], failed_at));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// [`Error::TooOld`]: crate::Error::TooOld
    /// [`Error::FutureZxid`]: crate::Error::FutureZxid
    /// [`Error::InvalidPath`]: crate::Error::InvalidPath
    /// [`Error::TooLarge`]: crate::Error::TooLarge
    pub fn snapshot_at(&self, path: &str, zxid: Zxid) -> Result<Snapshot> {
        self.wait_for("snapshot", path, self.nonblocking().snapshot_at(path, zxid))
    }

    /// As [`Session::get`], right after the write `zxid`: see [`Session::snapshot_at`]. Also on a client, whose member
    /// goes back at most 10,000 changes of the znode and of the set of its children.
    ///
    /// # Errors
    /// As [`Session::snapshot_at`]; [`Error::NoNode`] if it did not exist then.
    ///
    /// ```
    /// use quorate::{Coordinator, CreateMode, testing::Cluster};
    ///
    /// let settings = Coordinator::builder().snapshot_history(1 << 20);
    /// let session = Cluster::with_settings(1, settings).node(0).session();
    /// let created = session.create("/limit", b"10", CreateMode::Persistent)?.stat;
    /// session.set("/limit", b"20")?;
    /// assert_eq!(&session.get_at("/limit", created.czxid)?.0[..], b"10");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// [`Error::NoNode`]: crate::Error::NoNode
    pub fn get_at(&self, path: &str, zxid: Zxid) -> Result<(Arc<[u8]>, Stat)> {
        self.wait_for("get", path, self.nonblocking().get_at(path, zxid))
    }

    /// As [`Session::children_with_stat`], right after the write `zxid`: see [`Session::snapshot_at`]. Also on a
    /// client.
    ///
    /// # Errors
    /// As [`Session::get_at`].
    ///
    /// ```
    /// use quorate::{Coordinator, CreateMode, testing::Cluster};
    ///
    /// let settings = Coordinator::builder().snapshot_history(1 << 20);
    /// let session = Cluster::with_settings(1, settings).node(0).session();
    /// let created = session.create("/a", b"", CreateMode::Persistent)?.stat;
    /// session.delete("/a")?;
    /// let (names, _) = session.children_at("/", created.czxid)?;
    /// assert_eq!(names, ["a", "zookeeper"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children_at(&self, path: &str, zxid: Zxid) -> Result<(Vec<String>, Stat)> {
        self.wait_for("children", path, self.nonblocking().children_at(path, zxid))
    }
}
