//! A session's reads: from the replica at once, or by requests while the session is not open, and where there is
//! no replica.

use std::sync::Arc;

use arc_swap::Guard;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::machine::{Tree, Znode};
use crate::runtime::ask::Ask;
use crate::runtime::pending::Pending;
use crate::types::acl::Permissions;
use crate::types::error::{Error, Result};
use crate::types::znode::Stat;
use crate::types::{acl, path};

impl Session {
    /// Whether reads are answered from this instance's replica, without waiting: once the session is open.
    /// Before, and without a replica, they are requests, which the node, or the member that serves this instance,
    /// answers when it has applied the opening. So are those of [`Session::in_turn`].
    pub(crate) fn reads_at_once(&self) -> bool {
        self.has_replica()
            && !self.asks
            && (self.inner.session.was_opened() || planted!(ReadUnopened))
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

    /// A snapshot to read at and below this path only: a client receives only that part.
    pub(crate) fn snapshot_of(&self, path: &str) -> Pending<'static, Snapshot> {
        let shown =
            |tree: &Arc<Tree>| Snapshot::new(Arc::clone(tree), self.root.clone(), self.ids());
        let (root, session) = (self.root.clone(), Arc::clone(&self.inner.session));
        let convert = move |tree| Ok(Snapshot::new(tree, root, session.ids.load_full()));
        match self.tree() {
            Ok(Some(tree)) => Pending::ready(Ok(shown(&tree))),
            Ok(None) if self.has_replica() => self.ask(Ok(()), |_| Ask::tree(), convert),
            Ok(None) => self.request(path, Ask::below, convert),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Reads the replica at once, or else by a request.
    pub(crate) fn read_or_ask<A: 'static, T: 'static>(
        &self,
        path: &str,
        read: impl FnOnce(&Tree) -> Result<T>,
        ask: impl FnOnce(Arc<str>) -> Ask<A>,
        convert: impl FnOnce(A) -> T + Send + 'static,
    ) -> Pending<'static, T> {
        match self.tree() {
            Ok(Some(tree)) => Pending::ready(read(&tree)),
            Ok(None) => self.request(path, ask, |answer| Ok(convert(answer))),
            Err(error) => Pending::ready(Err(error)),
        }
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
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let (data, stat) = session.get("/a").wait()?;
    /// assert_eq!((&data[..], stat.version), (&b"1"[..], 0));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn get(&self, path: &str) -> Pending<'static, (Arc<[u8]>, Stat)> {
        let both = |znode: &Znode| (znode.shared_data(), znode.stat());
        let read = |tree: &Tree| self.read_znode(tree, path, Permissions::READ, both);
        self.read_or_ask(path, read, Ask::get, |read| read)
    }

    /// Returns the stat of a znode as this replica has it, or `None` if there is no such znode. Fails as
    /// [`Session::get`], but never with [`Error::NoNode`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// assert!(session.exists("/a").wait()?.is_none());
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// assert_eq!(session.exists("/a").wait()?.unwrap().data_length, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn exists(&self, path: &str) -> Pending<'static, Option<Stat>> {
        let read = |tree: &Tree| self.read(tree, path, Permissions::READ, Znode::stat);
        self.read_or_ask(path, read, Ask::exists, |stat| stat)
    }

    /// Returns the names of a znode's children, sorted, as this replica has them. Fails as [`Session::get`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.create("/a/b", b"", CreateMode::Persistent).wait()?;
    /// assert_eq!(session.children("/a").wait()?, ["b"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children(&self, path: &str) -> Pending<'static, Vec<String>> {
        let names = |znode: &Znode| znode.children().map(str::to_owned).collect();
        let read = |tree: &Tree| self.read_znode(tree, path, Permissions::READ, names);
        self.read_or_ask(path, read, Ask::children, |(names, _)| names)
    }

    /// Returns the names of a znode's children, sorted, and its stat, as this replica has them. Fails as
    /// [`Session::get`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let (names, stat) = session.children_with_stat("/a").wait()?;
    /// assert!(names.is_empty() && stat.version == 0);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children_with_stat(&self, path: &str) -> Pending<'static, (Vec<String>, Stat)> {
        let both = |znode: &Znode| (znode.children().map(str::to_owned).collect(), znode.stat());
        let read = |tree: &Tree| self.read_znode(tree, path, Permissions::READ, both);
        self.read_or_ask(path, read, Ask::children, |read| read)
    }

    /// Returns a page of the names of a znode's children, as this replica has them: see [`Snapshot::children_page`].
    /// Fails as [`Session::get`]. Children that are created or deleted between two calls may be missed or shown; the
    /// pages of one [`Session::snapshot`] are consistent.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// for path in ["/a", "/a/1", "/a/2", "/a/3"] {
    ///     session.create(path, b"", CreateMode::Persistent).wait()?;
    /// }
    /// assert_eq!(session.children_page("/a", Some("1"), 1).wait()?, ["2"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn children_page<'a>(
        &'a self,
        path: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Pending<'a, Vec<String>> {
        let shown = self.snapshot_of(path);
        shown.and_then(move |shown| shown.children_page(path, after, limit))
    }

    /// Returns the number of znodes below a path, without the znode itself, as this replica has them. Counts them one
    /// by one. Fails as [`Session::get`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// for path in ["/a", "/a/b", "/a/b/c", "/ab"] {
    ///     session.create(path, b"", CreateMode::Persistent).wait()?;
    /// }
    /// assert_eq!(session.all_children_number("/a").wait()?, 2);
    /// assert_eq!(session.children_with_stat("/a").wait()?.1.num_children, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `getAllChildrenNumber`.
    pub fn all_children_number<'a>(&'a self, path: &'a str) -> Pending<'a, usize> {
        if self.has_replica() {
            // Counted by the caller, since it takes long.
            return self.snapshot_of(path).and_then(|shown| shown.all_children_number(path));
        }
        self.request(path, Ask::count, Ok)
    }

    /// Returns the paths of the session's ephemeral znodes, sorted, as this replica has them, including those that an
    /// earlier holder of the session has created. Waits until the session's earlier calls have been answered.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/b", b"", CreateMode::Ephemeral).wait()?;
    /// session.create("/a-", b"", CreateMode::EphemeralSequential).wait()?;
    /// session.create("/stays", b"", CreateMode::Persistent).wait()?;
    /// assert_eq!(session.ephemerals().wait()?, ["/a-0000000001", "/b"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `getEphemerals`; here the caller filters by prefix.
    pub fn ephemerals(&self) -> Pending<'static, Vec<String>> {
        let root = self.root.clone();
        let convert = move |paths: Vec<String>| {
            Ok(paths.iter().filter_map(|path| root.strip(path)).map(str::to_owned).collect())
        };
        self.ask(Ok(()), |_| Ask::ephemerals(), convert)
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
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let snapshot = session.snapshot().wait()?;
    /// session.set("/a", b"2").wait()?;
    /// assert_eq!(&snapshot.get("/a")?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn snapshot(&self) -> Pending<'static, Snapshot> {
        self.snapshot_of("/")
    }
}
