//! The calls of a session that return at once.

use std::sync::Arc;
use std::time::Duration;

use crate::api::ops::{check_create, check_data, create_op};
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::api::watch::{Watch, watch};
use crate::machine::command::Op;
use crate::node::io::WatchId;
use crate::node::query::EventData;
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;
use crate::types::watch::{WatchMode, WatcherType};
use crate::types::znode::{CreateMode, Created, OpResult, Stat, Zxid};

/// The calls of a [`Session`], returning at once with a [`Pending`] answer.
///
/// The calls take effect in the order in which they are made. A read sees the session's writes made
/// before it, and not those made after it, with one exception: a replica that was far behind
/// catches up by a snapshot, which may contain several of the session's writes, without the states
/// in between.
///
/// The first calls of a session are answered when it is open, as those of [`Session`].
///
/// The errors are those of the blocking calls, without [`Error::Timeout`](crate::Error::Timeout): these calls have no time
/// limit.
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let calls = session.nonblocking();
/// let _created = calls.create("/a", b"1", CreateMode::Persistent);
/// let read = calls.get("/a");
/// assert_eq!(&read.wait()?.0[..], b"1");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NonBlocking<'a> {
    pub(crate) session: &'a Session,
}

impl NonBlocking<'_> {
    pub(crate) fn ask<A: 'static, T: 'static>(
        &self,
        checked: Result<()>,
        ask: impl FnOnce(&Root) -> Ask<A>,
        convert: impl FnOnce(A) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let shared = self.session.shared();
        match checked.and_then(|()| self.session.check_alive()) {
            Ok(()) => {
                let ask = ask(&self.session.root);
                self.relative(shared.ask(self.session.asker(), ask, None, convert))
            }
            Err(error) => Pending::failed(error, shared.clock.clone()),
        }
    }

    /// Makes the paths in errors relative to the chroot.
    fn relative<T: 'static>(&self, pending: Pending<T>) -> Pending<T> {
        if self.session.root.is_everything() {
            return pending;
        }
        let root = self.session.root.clone();
        pending.map(move |result| result.map_err(|error| root.error(error)))
    }

    /// Checks a path, and its length in the whole tree.
    pub(crate) fn validate(&self, path: &str) -> Result<()> {
        path::validate(path)?;
        let root = &self.session.root;
        path::validate(&root.full(path)).map_err(|error| root.error(error))
    }

    /// Asks for an operation that creates.
    pub(crate) fn ask_create(
        &self,
        checked: Result<()>,
        op: impl FnOnce(&Root) -> Op,
    ) -> Pending<Created> {
        let root = self.session.root.clone();
        let created = move |created| Ok(root.created(created));
        self.ask(checked, |root| Ask::create(op(root)), created)
    }

    /// See [`Session::create`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let created = session.nonblocking().create("/a", b"1", CreateMode::Persistent).await?;
    /// assert_eq!(created.path, "/a");
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(&self, path: &str, data: impl AsRef<[u8]>, mode: CreateMode) -> Pending<Created> {
        let data = data.as_ref();
        let op = |root: &Root| create_op(root, path, data, mode);
        self.ask_create(check_create(path, data, mode), op)
    }

    /// See [`Session::set`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let stat = session.nonblocking().set("/a", b"2").await?;
    /// println!("version {}", stat.version);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(&self, path: &str, data: impl AsRef<[u8]>) -> Pending<Stat> {
        self.set_version(path, data.as_ref(), None)
    }

    /// See [`Session::set_if`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let calls = session.nonblocking();
    /// let (_, stat) = calls.get("/a").await?;
    /// calls.set_if("/a", b"2", stat.version).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_if(&self, path: &str, data: impl AsRef<[u8]>, version: u64) -> Pending<Stat> {
        self.set_version(path, data.as_ref(), Some(version))
    }

    fn set_version(&self, path: &str, data: &[u8], version: Option<u64>) -> Pending<Stat> {
        let checked = self.validate(path).and_then(|()| check_data(path, data.len()));
        let op = |root: &Root| Op::Set { path: root.full(path).into(), data: data.into(), version };
        self.ask(checked, |root| Ask::set(op(root)), Ok)
    }

    /// [`Op::Invented`].
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn invented(&self, path: &str, data: &[u8]) -> Pending<Stat> {
        let checked = self.validate(path).and_then(|()| check_data(path, data.len()));
        let op = |root: &Root| Op::Invented { path: root.full(path).into(), data: data.into() };
        self.ask(checked, |root| Ask::set(op(root)), Ok)
    }

    /// See [`Session::delete`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// session.nonblocking().delete("/a").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn delete(&self, path: &str) -> Pending<()> {
        self.delete_version(path, None)
    }

    /// See [`Session::delete_if`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let calls = session.nonblocking();
    /// let (_, stat) = calls.get("/a").await?;
    /// calls.delete_if("/a", stat.version).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn delete_if(&self, path: &str, version: u64) -> Pending<()> {
        self.delete_version(path, Some(version))
    }

    fn delete_version(&self, path: &str, version: Option<u64>) -> Pending<()> {
        let op = |root: &Root| Op::Delete { path: root.full(path).into(), version };
        self.ask(self.validate(path), |root| Ask::delete(op(root)), Ok)
    }

    /// See [`Session::delete_recursive`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// session.nonblocking().delete_recursive("/a").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn delete_recursive(&self, path: &str) -> Pending<()> {
        let op = |root: &Root| Op::DeleteTree { path: root.full(path).into() };
        self.ask(self.validate(path), |root| Ask::delete(op(root)), Ok)
    }

    pub(crate) fn commit(&self, checked: Result<()>, ops: Vec<Op>) -> Pending<Vec<OpResult>> {
        let root = self.session.root.clone();
        self.ask(checked, |_| Ask::multi(ops), move |results| Ok(root.results(results)))
    }

    pub(crate) fn read<A: 'static, T: 'static>(
        &self,
        path: &str,
        read: impl FnOnce(Arc<str>) -> Ask<A>,
        convert: impl FnOnce(A) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.ask(self.validate(path), |root| read(root.full(path).into()), convert)
    }

    /// See [`Session::get`]; this form sees the session's earlier writes.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let (data, stat) = session.nonblocking().get("/a").await?;
    /// println!("{} bytes in version {}", data.len(), stat.version);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, path: &str) -> Pending<(Arc<[u8]>, Stat)> {
        self.read(path, Ask::get, Ok)
    }

    /// As [`NonBlocking::get`]; `None` is null data, which ZooKeeper's own clients may write.
    #[cfg(feature = "gateway")]
    pub(crate) fn get_or_null(&self, path: &str) -> Pending<(Option<Arc<[u8]>>, Stat)> {
        self.read(path, Ask::get_or_null, Ok)
    }

    /// See [`Session::exists`]; this form sees the session's earlier writes.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let exists = session.nonblocking().exists("/a").await?.is_some();
    /// # Ok(())
    /// # }
    /// ```
    pub fn exists(&self, path: &str) -> Pending<Option<Stat>> {
        self.read(path, Ask::exists, Ok)
    }

    /// See [`Session::children`]; this form sees the session's earlier writes.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// for name in session.nonblocking().children("/").await? {
    ///     println!("/{name}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn children(&self, path: &str) -> Pending<Vec<String>> {
        self.read(path, Ask::children, |(names, _)| Ok(names))
    }

    /// See [`Session::children_with_stat`]; this form sees the session's earlier writes.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let (names, stat) = session.nonblocking().children_with_stat("/").await?;
    /// assert_eq!(names.len(), stat.num_children as usize);
    /// # Ok(())
    /// # }
    /// ```
    pub fn children_with_stat(&self, path: &str) -> Pending<(Vec<String>, Stat)> {
        self.read(path, Ask::children, Ok)
    }

    /// See [`Session::snapshot`]; this form shows the session's earlier writes. Later writes show
    /// only in the case described at [`NonBlocking`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let snapshot = session.nonblocking().snapshot().await?;
    /// // Both are as of one moment.
    /// let (left, right) = (snapshot.get("/left")?, snapshot.get("/right")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(&self) -> Pending<Snapshot> {
        self.snapshot_of("/")
    }

    /// A snapshot for reads at and below this path only: a client receives only that part.
    pub(crate) fn snapshot_of(&self, path: &str) -> Pending<Snapshot> {
        let (root, session) = (self.session.root.clone(), self.session.clone());
        let convert = move |tree| Ok(Snapshot::new(tree, root, session.ids()));
        match self.session.has_replica() {
            true => self.ask(Ok(()), |_| Ask::tree(), convert),
            false => self.read(path, Ask::below, convert),
        }
    }

    /// See [`Session::ephemerals`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let paths = session.nonblocking().ephemerals().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ephemerals(&self) -> Pending<Vec<String>> {
        let root = self.session.root.clone();
        let convert = move |paths: Vec<String>| {
            Ok(paths.iter().filter_map(|path| root.strip(path)).map(str::to_owned).collect())
        };
        self.ask(Ok(()), |_| Ask::ephemerals(), convert)
    }

    /// Makes a request that sets a watch.
    fn watching<A: 'static, T: 'static>(
        &self,
        path: &str,
        ask: impl FnOnce(WatchId, Arc<str>) -> Ask<A>,
        convert: impl FnOnce(A, Watch) -> T + Send + 'static,
    ) -> Pending<T> {
        let shared = self.session.shared();
        if let Err(error) = self.validate(path).and_then(|()| self.session.check_alive()) {
            return Pending::failed(error, shared.clock.clone());
        }
        let id = shared.next_watch();
        // All users of the path share one copy.
        let full: Arc<str> = self.session.root.full(path).into();
        let (sender, watch) = watch(id, Arc::clone(&full), &self.session.root, shared);
        let convert = |answer| Ok(convert(answer, watch));
        let ask = ask(id, full);
        self.relative(shared.ask(self.session.asker(), ask, Some((id, sender)), convert))
    }

    /// Makes a read that sets a watch at the same moment.
    fn read_and_watch<A: 'static, T: 'static>(
        &self,
        path: &str,
        read: impl FnOnce(Arc<str>) -> Ask<A>,
        convert: impl FnOnce(A, Watch) -> T + Send + 'static,
    ) -> Pending<T> {
        self.watching(path, |watch, path| read(path).watching(watch), convert)
    }

    /// See [`Session::get_and_watch`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let (data, _, watch) = session.nonblocking().get_and_watch("/a").await?;
    /// println!("{} bytes, until {:?}", data.len(), watch.recv_async().await);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_and_watch(&self, path: &str) -> Pending<(Arc<[u8]>, Stat, Watch)> {
        self.read_and_watch(path, Ask::get, |(data, stat), watch| (data, stat, watch))
    }

    /// See [`Session::exists_and_watch`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let (exists, watch) = session.nonblocking().exists_and_watch("/a").await?;
    /// if exists.is_none() {
    ///     // Waits until it is created.
    ///     watch.recv_async().await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn exists_and_watch(&self, path: &str) -> Pending<(Option<Stat>, Watch)> {
        self.read_and_watch(path, Ask::exists, |stat, watch| (stat, watch))
    }

    /// See [`Session::children_and_watch`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let (names, watch) = session.nonblocking().children_and_watch("/").await?;
    /// println!("{names:?}, until {:?}", watch.recv_async().await);
    /// # Ok(())
    /// # }
    /// ```
    pub fn children_and_watch(&self, path: &str) -> Pending<(Vec<String>, Watch)> {
        self.read_and_watch(path, Ask::children, |(names, _), watch| (names, watch))
    }

    /// See [`Session::watch`].
    ///
    /// ```
    /// use quorate::WatchMode;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let watch = session.nonblocking().watch("/a", WatchMode::PersistentRecursive).await?;
    /// while let Some(event) = watch.recv_async().await {
    ///     println!("{:?} {}", event.kind, event.path);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self, path: &str, mode: WatchMode) -> Pending<Watch> {
        self.watch_after(path, mode, None, EventData::None)
    }

    /// See [`Session::watch_from`]. While it waits for this replica to catch up, the session's
    /// later reads wait, too.
    ///
    /// ```
    /// use quorate::WatchMode;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let calls = session.nonblocking();
    /// let (_, stat) = calls.get("/a").await?;
    /// // Also reports everything that has changed since.
    /// let watch = calls.watch_from("/a", WatchMode::Persistent, stat.mzxid).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_from(&self, path: &str, mode: WatchMode, zxid: Zxid) -> Pending<Watch> {
        self.watch_after(path, mode, Some(zxid), EventData::None)
    }

    /// See [`Session::watch_with_data`].
    ///
    /// ```
    /// use quorate::WatchMode;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let watch = session.nonblocking().watch_with_data("/a", WatchMode::Persistent).await?;
    /// while let Some(event) = watch.recv_async().await {
    ///     println!("{:?}", event.data());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_with_data(&self, path: &str, mode: WatchMode) -> Pending<Watch> {
        self.watch_after(path, mode, None, EventData::After)
    }

    /// See [`Session::watch_with_before`].
    ///
    /// ```
    /// use quorate::WatchMode;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let watch = session.nonblocking().watch_with_before("/a", WatchMode::Persistent).await?;
    /// while let Some(event) = watch.recv_async().await {
    ///     println!("from {:?} to {:?}", event.data_before(), event.data());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_with_before(&self, path: &str, mode: WatchMode) -> Pending<Watch> {
        self.watch_after(path, mode, None, EventData::Both)
    }

    fn watch_after(
        &self,
        path: &str,
        mode: WatchMode,
        from: Option<Zxid>,
        data: EventData,
    ) -> Pending<Watch> {
        let recursive = mode == WatchMode::PersistentRecursive;
        let ask = |watch, path| Ask::watch(watch, path, recursive, from, data);
        self.watching(path, ask, |(), watch| watch)
    }

    /// See [`Session::remove_watches`]. This also removes watches that were requested earlier and
    /// have not been returned yet.
    ///
    /// ```
    /// use quorate::watch::WatcherType;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// session.nonblocking().remove_watches("/a", WatcherType::Any).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_watches(&self, path: &str, which: WatcherType) -> Pending<()> {
        let ask = |root: &Root| Ask::remove_watches(root.full(path).into_owned(), which);
        self.ask(self.validate(path), ask, Ok)
    }

    /// See [`Session::sync`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let calls = session.nonblocking();
    /// // Both are sent at once: the read is answered after the sync.
    /// let (synced, read) = (calls.sync(), calls.get("/a"));
    /// synced.await?;
    /// println!("{} bytes, as of now at the earliest", read.await?.0.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync(&self) -> Pending<Zxid> {
        self.ask(Ok(()), |_| Ask::sync(), Ok)
    }

    /// As [`NonBlocking::sync`], but not subject to the limit of waiting requests.
    pub(crate) fn sync_in_any_case(&self) -> Pending<Zxid> {
        let shared = self.session.shared();
        shared.ask_within(usize::MAX, self.session.asker(), Ask::sync(), None, Ok)
    }

    /// Completes after this time, measured by this instance's monotonic clock, whatever happens to
    /// the session; fails with [`Error::Stopped`](crate::Error::Stopped) if the node stops earlier. It lets a future wait
    /// without a timer of an async runtime. In an in-memory cluster it uses the cluster's clock.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let cluster = quorate::testing::Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// let waiting = session.nonblocking().sleep(Duration::from_secs(60));
    /// cluster.advance(Duration::from_secs(60));
    /// waiting.wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn sleep(&self, time: Duration) -> Pending<()> {
        self.session.shared().timer(time)
    }

    /// See [`Session::close`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// session.nonblocking().close().await?;
    /// assert!(session.state().is_final());
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) -> Pending<()> {
        let shared = self.session.shared();
        self.session.give_up();
        shared.ask_within(usize::MAX, self.session.asker(), Ask::close(), None, Ok)
    }
}
