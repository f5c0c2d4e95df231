//! The whole tree at one zxid.

use std::sync::Arc;

use crate::api::coordinator::Coordinator;
use crate::machine::{Tree, Znode};
use crate::runtime::chroot::Root;
use crate::types::acl::{Id, Permissions};
use crate::types::error::{Error, Result};
use crate::types::znode::{Stat, Zxid};
use crate::types::{acl, path};

/// All znodes as of one write: an immutable view, for any number of consistent reads.
///
/// On a member it costs nothing to take. Reading it neither blocks anybody nor is blocked, even in
/// a cluster without a quorum or after the session's end. It shares unchanged znodes with the
/// current tree; znodes that have changed since stay in memory for as long as the snapshot or a
/// clone of it.
///
/// ZooKeeper has no equivalent: its `multiRead` reads a fixed list of paths.
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/shop", b"", CreateMode::Persistent).wait()?;
/// session.create("/shop/apples", b"3", CreateMode::Persistent).wait()?;
/// session.create("/shop/pears", b"5", CreateMode::Persistent).wait()?;
///
/// let snapshot = session.snapshot().wait()?;
/// session.delete("/shop/apples").wait()?;
/// assert_eq!(snapshot.children("/shop")?, ["apples", "pears"]);
/// assert_eq!(&snapshot.get("/shop/apples")?.0[..], b"3");
/// // Everything below, and the number of these znodes.
/// let paths: Vec<&str> = snapshot.walk("/shop")?.map(|(path, _, _)| path).collect();
/// assert_eq!(paths, ["/shop", "/shop/apples", "/shop/pears"]);
/// assert_eq!(snapshot.all_children_number("/shop")?, 2);
/// assert_eq!(session.all_children_number("/shop").wait()?, 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    tree: Arc<Tree>,
    root: Root,
    /// The ids whose permissions apply to its reads.
    ids: Arc<Vec<Id>>,
}

impl Snapshot {
    pub(crate) fn new(tree: Arc<Tree>, root: Root, ids: Arc<Vec<Id>>) -> Snapshot {
        Snapshot { tree, root, ids }
    }

    /// The zxid of the last write that it shows: no znode's stat has a greater one.
    pub fn zxid(&self) -> Zxid {
        self.tree.zxid()
    }

    /// Returns the znode at this path, if there is one.
    fn find(&self, path: &str) -> Result<Option<&Znode>> {
        path::validate(path)?;
        let znode = self.tree.get(&self.root.full(path));
        if znode.is_some_and(|znode| !self.may_read(znode)) {
            let permission = Permissions::READ;
            return Err(Error::NoAuth { path: path.to_owned(), permission });
        }
        Ok(znode)
    }

    fn znode(&self, path: &str) -> Result<&Znode> {
        self.find(path)?.ok_or_else(|| Error::NoNode { path: path.to_owned() })
    }

    fn may_read(&self, znode: &Znode) -> bool {
        acl::permits(znode.acl().map(|acl| &**acl), &self.ids, Permissions::READ)
    }

    /// Returns the data and the stat of a znode.
    ///
    /// # Errors
    /// [`Error::NoNode`]; [`Error::InvalidPath`]; [`Error::NoAuth`], by the ACL in the snapshot and
    /// the ids that the session had when the snapshot was taken. These are the errors of all reads
    /// of a snapshot.
    pub fn get(&self, path: &str) -> Result<(Arc<[u8]>, Stat)> {
        let znode = self.znode(path)?;
        Ok((znode.shared_data(), znode.stat()))
    }

    /// Returns the stat of a znode, or `None` if there is no such znode.
    pub fn exists(&self, path: &str) -> Result<Option<Stat>> {
        Ok(self.find(path)?.map(Znode::stat))
    }

    /// Returns the names of a znode's children, sorted by their bytes.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        Ok(self.znode(path)?.children().map(str::to_owned).collect())
    }

    pub(crate) fn children_with_stat(&self, path: &str) -> Result<(Vec<String>, Stat)> {
        let znode = self.znode(path)?;
        Ok((znode.children().map(str::to_owned).collect(), znode.stat()))
    }

    /// Returns up to `limit` names of a znode's children, sorted by their bytes: the first ones, or
    /// those after the name `after`, which need not exist any more. The result is shorter than
    /// `limit` only at the end. The cost depends on the length of the page, and not on the number
    /// of children.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// for name in ["a", "b", "c"] {
    ///     session.create(&format!("/{name}"), b"", CreateMode::Persistent).wait()?;
    /// }
    /// let snapshot = session.snapshot().wait()?;
    /// assert_eq!(snapshot.children_page("/", None, 2)?, ["a", "b"]);
    /// assert_eq!(snapshot.children_page("/", Some("b"), 2)?, ["c", "zookeeper"]);
    /// assert!(snapshot.children_page("/", Some("zookeeper"), 2)?.is_empty());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children_page(
        &self,
        path: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>> {
        let names = self.znode(path)?.children_after(after.unwrap_or_default());
        Ok(names.take(limit).map(str::to_owned).collect())
    }

    /// Returns the number of znodes below a path, without the znode itself. Counts them one by one.
    ///
    /// Source: ZooKeeper, `getAllChildrenNumber`. Below `/` this includes the system's own three.
    pub fn all_children_number(&self, path: &str) -> Result<usize> {
        self.znode(path)?;
        Ok(self.tree.below(&self.root.full(path)).count() - 1)
    }

    /// Iterates over a znode and everything below it, with data and stat: each znode before its
    /// children, and siblings sorted by the bytes of their names. Lazy: only consumed znodes are
    /// read. Znodes that the session may not read are skipped, with everything below them.
    pub fn walk<'a>(
        &'a self,
        path: &str,
    ) -> Result<impl Iterator<Item = (&'a str, &'a [u8], Stat)> + use<'a>> {
        let below = self.examine(path)?;
        Ok(below.filter_map(|(at, znode)| znode.map(|znode| (at, znode.data(), znode.stat()))))
    }

    /// As [`Snapshot::walk`], with `None` for each znode that is skipped: so the work for an item is bounded.
    pub(crate) fn examine<'a>(
        &'a self,
        path: &str,
    ) -> Result<impl Iterator<Item = (&'a str, Option<&'a Znode>)> + use<'a>> {
        self.znode(path)?;
        let mut hidden: Option<&str> = None;
        Ok(self.tree.below(&self.root.full(path)).map(move |(at, znode)| {
            // All paths below the root start with it.
            let shown = self.root.strip(at).unwrap_or(at);
            if hidden.is_some_and(|hidden| path::is_below(at, hidden)) {
                return (shown, None);
            }
            let readable = self.may_read(znode);
            if !readable {
                hidden = Some(at);
            }
            (shown, readable.then_some(znode))
        }))
    }
}

impl Coordinator {
    /// Returns all znodes as this instance's replica has them, **whatever its age**: without a session, with or
    /// without a quorum, at any time. Just after a start, the replica is at most as new as its own log, or empty;
    /// [`Status::stale_by`](crate::operate::Status::stale_by) tells what is known of its age. It is for diagnostics, and
    /// for programs that have a use for old data. All calls of a session instead wait until the session is open,
    /// and show everything that was acknowledged before, to anybody.
    ///
    /// It shows what a new session of this instance may read. Does not block.
    ///
    /// # Errors
    /// [`Error::NeedsReplica`] on a client.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// // Nobody is left but this instance, and its session is lost after a while.
    /// cluster.isolate(0);
    /// cluster.advance(Duration::from_secs(60));
    /// assert!(session.get("/a").wait().is_err());
    /// assert_eq!(&cluster.node(0).stale_snapshot()?.get("/a")?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn stale_snapshot(&self) -> Result<Snapshot> {
        let shared = self.shared();
        if !shared.has_replica {
            return Err(Error::NeedsReplica { operation: "a stale snapshot".to_owned() });
        }
        let ids = Arc::new(shared.schemes.own().to_vec());
        Ok(Snapshot::new(Arc::clone(&shared.tree()), Root::default(), ids))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Cluster;
    use crate::{CreateMode, Error};

    #[test]
    fn a_walk_stays_below_its_root() {
        let cluster = Cluster::new(1);
        let session = cluster.node(0).session();
        for path in ["/a", "/a/b", "/a/b/c", "/a-", "/a-/x", "/a/b-", "/b", "/aa"] {
            session.create(path, path, CreateMode::Persistent).wait().unwrap();
        }
        let snapshot = session.snapshot().wait().unwrap();
        let walk = |path: &str| -> Vec<String> {
            snapshot.walk(path).unwrap().map(|(path, _, _)| path.to_owned()).collect()
        };
        assert_eq!(walk("/a"), ["/a", "/a/b", "/a/b/c", "/a/b-"]);
        assert_eq!(walk("/a/b"), ["/a/b", "/a/b/c"]);
        assert_eq!(walk("/b"), ["/b"]);
        let reserved = ["/zookeeper", "/zookeeper/config", "/zookeeper/quota"];
        assert_eq!(walk("/").len(), 9 + reserved.len());
        assert!(snapshot.walk("/a").unwrap().all(|(path, data, _)| path.as_bytes() == data));
        for (path, error) in [
            ("/none", Error::NoNode { path: "/none".to_owned() }),
            ("none", snapshot.get("none").unwrap_err()),
        ] {
            assert_eq!(snapshot.walk(path).err(), Some(error));
        }
    }

    #[test]
    fn a_snapshot_outlives_its_session_and_cluster() {
        let cluster = Cluster::new(1);
        let session = cluster.node(0).session();
        session.create("/a", b"1", CreateMode::Ephemeral).wait().unwrap();
        let snapshot = session.snapshot().wait().unwrap();
        session.close().wait().unwrap();
        assert!(session.snapshot().wait().is_err());
        drop((session, cluster));
        assert_eq!(&snapshot.get("/a").unwrap().0[..], b"1");
        assert_eq!(snapshot.exists("/b").unwrap(), None);
        assert_eq!(snapshot.zxid(), snapshot.get("/a").unwrap().1.czxid);
    }
}
