//! A session's reads: from the replica at once, or by requests while the session is not open, and where there is
//! no replica.

use std::sync::Arc;

use arc_swap::Guard;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::machine::{Tree, Znode};
use crate::runtime::ask::Ask;
use crate::types::acl::Permissions;
use crate::types::error::{Error, Result};
use crate::types::znode::Stat;
use crate::types::{acl, path};

impl Session {
    /// Whether reads are answered from this instance's replica, without waiting: once the session is open.
    /// Before, and without a replica, they are requests ([`Session::nonblocking`]), which the node, or the
    /// member that serves this instance, answers when it has applied the opening.
    pub(crate) fn reads_at_once(&self) -> bool {
        self.has_replica() && (self.inner.session.was_opened() || planted!(ReadUnopened))
    }

    /// The tree to read from; `None` if a read has to be a request: see [`Session::reads_at_once`]. Handles
    /// take the tree only from here, so that no session shows a state from before it was opened.
    pub(crate) fn tree(&self) -> Result<Option<Guard<Arc<Tree>>>> {
        if !self.reads_at_once() {
            return Ok(None);
        }
        self.check_alive()?;
        Ok(Some(self.shared().tree()))
    }

    /// As [`NonBlocking::snapshot_of`].
    pub(crate) fn snapshot_of(&self, path: &str) -> Result<Snapshot> {
        match self.tree()? {
            Some(tree) => Ok(self.shown(&tree)),
            None => self.wait_for("snapshot", path, self.nonblocking().snapshot_of(path)),
        }
    }

    /// As [`Session::snapshot_of`], without blocking: immediate where reads are answered at once.
    pub(crate) async fn snapshot_soon(&self, path: &str) -> Result<Snapshot> {
        // The guard must not be held across the wait.
        if let Some(shown) = self.tree()?.map(|tree| self.shown(&tree)) {
            return Ok(shown);
        }
        self.nonblocking().snapshot_of(path).await
    }

    fn shown(&self, tree: &Arc<Tree>) -> Snapshot {
        Snapshot::new(Arc::clone(tree), self.root.clone(), self.ids())
    }

    fn read<T>(
        &self,
        tree: &Tree,
        path: &str,
        wanted: Permissions,
        read: impl FnOnce(&Znode) -> T,
    ) -> Result<Option<T>> {
        path::validate(path)?;
        let znode = tree.get(&self.root.full(path));
        let acl = znode.and_then(|znode| Some(&**znode.acl()?));
        if acl.is_some() && !acl::permits(acl, &self.inner.session.ids.load(), wanted) {
            return Err(Error::NoAuth { path: path.to_owned(), permission: wanted });
        }
        Ok(znode.map(read))
    }

    /// As [`Session::read`], for a znode that must exist.
    pub(crate) fn read_znode<T>(
        &self,
        tree: &Tree,
        path: &str,
        wanted: Permissions,
        read: impl FnOnce(&Znode) -> T,
    ) -> Result<T> {
        self.read(tree, path, wanted, read)?.ok_or_else(|| Error::NoNode { path: path.to_owned() })
    }

    /// Returns the data and the stat of a znode, as this replica has them. To see the latest writes of
    /// others, call [`Session::sync`] first.
    ///
    /// Does not block on a member, with one exception: **a session's first calls wait until it is open**,
    /// at most for the request timeout: see [`Session`]. A client waits for the reply of its member, always.
    ///
    /// # Errors
    /// [`Error::NoNode`]; [`Error::InvalidPath`]; the errors of a session that is over. Where it waits, also
    /// [`Error::Timeout`], [`Error::Busy`] and [`Error::Stopped`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// let (data, stat) = session.get("/a")?;
    /// assert_eq!((&data[..], stat.version), (&b"1"[..], 0));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn get(&self, path: &str) -> Result<(Arc<[u8]>, Stat)> {
        let Some(tree) = self.tree()? else {
            return self.wait_for("get", path, self.nonblocking().get(path));
        };
        self.read_znode(&tree, path, Permissions::READ, |znode| (znode.shared_data(), znode.stat()))
    }

    /// Returns the stat of a znode as this replica has it, or `None` if there is no such znode.
    /// Blocks and fails as [`Session::get`], but never with [`Error::NoNode`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// assert!(session.exists("/a")?.is_none());
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// assert_eq!(session.exists("/a")?.unwrap().data_length, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn exists(&self, path: &str) -> Result<Option<Stat>> {
        let Some(tree) = self.tree()? else {
            return self.wait_for("exists", path, self.nonblocking().exists(path));
        };
        self.read(&tree, path, Permissions::READ, Znode::stat)
    }

    /// Returns the names of a znode's children, sorted, as this replica has them. Blocks and fails
    /// as [`Session::get`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// session.create("/a/b", b"", CreateMode::Persistent)?;
    /// assert_eq!(session.children("/a")?, ["b"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        let Some(tree) = self.tree()? else {
            return self.wait_for("children", path, self.nonblocking().children(path));
        };
        let names = |znode: &Znode| znode.children().map(str::to_owned).collect();
        self.read_znode(&tree, path, Permissions::READ, names)
    }

    /// Returns the names of a znode's children, sorted, and its stat, as this replica has them.
    /// Blocks and fails as [`Session::get`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// let (names, stat) = session.children_with_stat("/a")?;
    /// assert!(names.is_empty() && stat.version == 0);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children_with_stat(&self, path: &str) -> Result<(Vec<String>, Stat)> {
        let Some(tree) = self.tree()? else {
            let asked = self.nonblocking().children_with_stat(path);
            return self.wait_for("children", path, asked);
        };
        let both = |znode: &Znode| (znode.children().map(str::to_owned).collect(), znode.stat());
        self.read_znode(&tree, path, Permissions::READ, both)
    }

    /// Returns a page of the names of a znode's children, as this replica has them: see
    /// [`Snapshot::children_page`]. Blocks and fails as [`Session::get`]. Children that are created
    /// or deleted between two calls may be missed or shown; the pages of one [`Session::snapshot`]
    /// are consistent.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// for path in ["/a", "/a/1", "/a/2", "/a/3"] {
    ///     session.create(path, b"", CreateMode::Persistent)?;
    /// }
    /// assert_eq!(session.children_page("/a", Some("1"), 1)?, ["2"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children_page(
        &self,
        path: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>> {
        self.snapshot_of(path)?.children_page(path, after, limit)
    }

    /// Returns the number of znodes below a path, without the znode itself, as this replica has
    /// them. Counts them one by one. Blocks and fails as [`Session::get`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// for path in ["/a", "/a/b", "/a/b/c", "/ab"] {
    ///     session.create(path, b"", CreateMode::Persistent)?;
    /// }
    /// assert_eq!(session.all_children_number("/a")?, 2);
    /// assert_eq!(session.children_with_stat("/a")?.1.num_children, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `getAllChildrenNumber`.
    pub fn all_children_number(&self, path: &str) -> Result<usize> {
        if self.has_replica() {
            return self.snapshot_of(path)?.all_children_number(path);
        }
        let counted = self.nonblocking().read(path, Ask::count, Ok);
        self.wait_for("all_children_number", path, counted)
    }

    /// Returns the paths of the session's ephemeral znodes, sorted, as this replica has them,
    /// including those that an earlier holder of the session has created. Blocks until the
    /// session's earlier calls have been answered.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/b", b"", CreateMode::Ephemeral)?;
    /// session.create("/a-", b"", CreateMode::EphemeralSequential)?;
    /// session.create("/stays", b"", CreateMode::Persistent)?;
    /// assert_eq!(session.ephemerals()?, ["/a-0000000001", "/b"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `getEphemerals`; here the caller filters by prefix.
    pub fn ephemerals(&self) -> Result<Vec<String>> {
        self.wait_for("ephemerals", "/", self.nonblocking().ephemerals())
    }

    /// Returns all znodes as this replica has them now: see [`Snapshot`]. Blocks as [`Session::get`]; a
    /// client receives them from its member. Without a session, and whatever the age of the replica:
    /// [`Coordinator::stale_snapshot`](crate::Coordinator::stale_snapshot).
    ///
    /// # Errors
    /// As [`Session::get`], but never [`Error::NoNode`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// let snapshot = session.snapshot()?;
    /// session.set("/a", b"2")?;
    /// assert_eq!(&snapshot.get("/a")?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_of("/")
    }
}
