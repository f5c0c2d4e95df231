//! A session's reads: from the replica at once, or from a member if there is none.

use std::sync::Arc;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::machine::Znode;
use crate::types::acl::Permissions;
use crate::types::error::{Error, Result};
use crate::types::znode::Stat;
use crate::types::{acl, path};

impl Session {
    /// Returns children and a stat of the same state; if the children change all the time, from a
    /// snapshot.
    fn ask_children_with_stat(&self, path: &str) -> Result<(Vec<String>, Stat)> {
        const ATTEMPTS_MAX: usize = 8;
        for _ in 0..ATTEMPTS_MAX {
            let calls = self.nonblocking();
            let (names, stat) = (calls.children(path), calls.exists(path));
            let names = self.wait_for("children", path, names)?;
            let stat = self.wait_for("exists", path, stat)?;
            if let Some(stat) = stat
                && stat.num_children as usize == names.len()
                && self.exists(path)?.is_some_and(|now| now.pzxid == stat.pzxid)
                && self.children(path)? == names
            {
                return Ok((names, stat));
            }
        }
        self.snapshot_of(path)?.children_with_stat(path)
    }

    /// As [`NonBlocking::snapshot_of`].
    pub(crate) fn snapshot_of(&self, path: &str) -> Result<Snapshot> {
        if !self.has_replica() {
            return self.wait_for("snapshot", path, self.nonblocking().snapshot_of(path));
        }
        self.check_alive()?;
        let tree = Arc::clone(&self.inner.shared.tree());
        Ok(Snapshot::new(tree, self.root.clone(), self.ids()))
    }

    /// As [`Session::snapshot_of`], without blocking: immediate on an instance with a replica.
    pub(crate) async fn snapshot_soon(&self, path: &str) -> Result<Snapshot> {
        match self.has_replica() {
            true => self.snapshot(),
            false => self.nonblocking().snapshot_of(path).await,
        }
    }

    fn read<T>(
        &self,
        path: &str,
        wanted: Permissions,
        read: impl FnOnce(&Znode) -> T,
    ) -> Result<Option<T>> {
        self.check_alive()?;
        path::validate(path)?;
        let tree = self.inner.shared.tree();
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
        path: &str,
        wanted: Permissions,
        read: impl FnOnce(&Znode) -> T,
    ) -> Result<T> {
        self.read(path, wanted, read)?.ok_or_else(|| Error::NoNode { path: path.to_owned() })
    }

    /// Returns the data and the stat of a znode, as this replica has them. Does not block on a
    /// member; a client waits for the reply of its member. To see the latest writes of others, call
    /// [`Session::sync`] first.
    ///
    /// # Errors
    /// [`Error::NoNode`]; [`Error::InvalidPath`]; the errors of a session that is over.
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
        if !self.has_replica() {
            return self.wait_for("get", path, self.nonblocking().get(path));
        }
        self.read_znode(path, Permissions::READ, |znode| (znode.shared_data(), znode.stat()))
    }

    /// Returns the stat of a znode as this replica has it, or `None` if there is no such znode.
    /// Does not block. Fails as [`Session::get`], but never with [`Error::NoNode`].
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
        if !self.has_replica() {
            return self.wait_for("exists", path, self.nonblocking().exists(path));
        }
        self.read(path, Permissions::READ, Znode::stat)
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
        if !self.has_replica() {
            return self.wait_for("children", path, self.nonblocking().children(path));
        }
        let names = |znode: &Znode| znode.children().map(str::to_owned).collect();
        self.read_znode(path, Permissions::READ, names)
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
        if !self.has_replica() {
            return self.ask_children_with_stat(path);
        }
        let both = |znode: &Znode| (znode.children().map(str::to_owned).collect(), znode.stat());
        self.read_znode(path, Permissions::READ, both)
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
        self.snapshot_of(path)?.all_children_number(path)
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

    /// Returns all znodes as this replica has them now: see [`Snapshot`]. Does not block on a
    /// member; a client receives them from its member.
    ///
    /// # Errors
    /// The errors of a session that is over.
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
