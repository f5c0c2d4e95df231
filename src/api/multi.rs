//! Several operations, done all or none.

use crate::api::ops::{check_create, check_data, create_op};
use crate::api::ops::{create_or_set_op, create_with_acl_op, take_over_op};
use crate::api::part::Part;
use crate::api::session::Session;
use crate::machine::command::Op;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::types::acl::Acl;
use crate::types::counter::CounterForm;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::queue::QueueOrder;
use crate::types::znode::{Condition, CreateMode, OpResult, SessionId, Zxid};

/// Operations that are all done together, as one write with one zxid, or not at all.
///
/// Each operation sees the effects of those before it. Nobody ever sees some of them done and
/// others not. Their data together may be up to 1 MiB, and so may their paths. Their results may be up to 3 MiB, with
/// the data of the items that they take from queues; beyond that they fail with [`Error::TooLarge`].
///
/// **If one fails**, none is done. [`Error::Multi`] has the index of the first operation that
/// failed, and the error that the single call would return. (ZooKeeper's list of results adds
/// nothing to that: the operations that it marks `Ok` were not done, and those marked
/// `RuntimeInconsistency` were not tried.)
///
/// **Any version** is accepted by [`Multi::set`] and [`Multi::delete`], for which ZooKeeper's
/// callers pass -1. To check that a znode exists in any version, use [`Condition::Exists`].
/// Versions here have 64 bits, and no number has a special meaning.
///
/// Source: ZooKeeper, `multi`.
///
/// ```
/// use quorate::{CreateMode, Error};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/a", b"", CreateMode::Persistent).wait()?;
/// let failed = session.multi().set("/a", b"1").delete("/missing").commit();
/// match failed.wait() {
///     Err(Error::Multi { index: 1, error }) => {
///         assert_eq!(*error, Error::NoNode { path: "/missing".into() });
///     }
///     other => panic!("{other:?}"),
/// }
/// assert!(session.get("/a").wait()?.0.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is done before `commit`"]
pub struct Multi<'a> {
    session: &'a Session,
    ops: Vec<Op>,
    content_bytes: usize,
    path_bytes: usize,
    checked: Result<()>,
}

impl<'a> Multi<'a> {
    pub(crate) fn new(session: &'a Session) -> Multi<'a> {
        Multi { session, ops: Vec::new(), content_bytes: 0, path_bytes: 0, checked: Ok(()) }
    }

    fn push(self, checked: Result<()>, op: impl FnOnce(&Root) -> Op) -> Multi<'a> {
        let op = op(&self.session.root);
        self.push_in_all(checked, op)
    }

    /// Adds an operation whose path is relative to the root of the whole tree.
    fn push_in_all(mut self, checked: Result<()>, op: Op) -> Multi<'a> {
        let index = self.ops.len();
        self.content_bytes += op.content_bytes();
        // The 32 bytes are roughly what an operation takes besides its path.
        self.path_bytes += op.path().len() + 32;
        if self.checked.is_ok() {
            let (root, bytes) = (&self.session.root, self.content_bytes.max(self.path_bytes));
            self.checked = checked
                .and_then(|()| check_data(op.path(), bytes).map_err(|error| root.error(error)))
                .map_err(|error| Error::Multi { index, error: Box::new(error) });
        }
        self.ops.push(op);
        self
    }

    /// Sets the data of the last operation to null, which only ZooKeeper's own clients distinguish
    /// from empty data.
    #[cfg(feature = "gateway")]
    pub(crate) fn null(mut self) -> Multi<'a> {
        let last = self.ops.last_mut();
        if let Some(Op::CreateWithAcl { data, .. } | Op::Set { data, .. }) = last {
            *data = None.into();
        }
        self
    }

    /// Requires the znode to have this version.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.multi().check("/a", 0).set("/a", b"2").commit().wait()?;
    /// assert!(session.multi().check("/a", 0).set("/a", b"3").commit().wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn check(self, path: &str, version: u64) -> Multi<'a> {
        self.require(path, Condition::Version(version))
    }

    /// Requires a condition of a znode, for example that it is unchanged since it was read, or does
    /// not exist.
    ///
    /// If the condition is not met, the error of this operation is
    /// [`Error::BadVersion`](crate::Error::BadVersion) for [`Condition::Version`],
    /// [`Error::NodeExists`](crate::Error::NodeExists) for [`Condition::Absent`], and
    /// [`Error::Unmet`](crate::Error::Unmet) for the others; if there is no such znode, it is
    /// [`Error::NoNode`](crate::Error::NoNode) for all but [`Condition::Absent`].
    ///
    /// ```
    /// use quorate::multi::Condition;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let absent = session.multi().require("/a", Condition::Absent);
    /// absent.create("/b", b"", CreateMode::Persistent).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn require(self, path: &str, condition: Condition) -> Multi<'a> {
        let op = |root: &Root| Op::Check { path: root.full(path).into(), condition };
        self.push(path::validate(path), op)
    }

    /// Requires that a lock or the like is still held: see [`Fence`]. It counts as one operation
    /// for each lock.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = session.lock("/lock")?.acquire().wait()?;
    /// let fence = guard.fence();
    /// session.multi().fence(&fence).create("/a", b"", CreateMode::Persistent).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fence(self, fence: &Fence) -> Multi<'a> {
        fence.checks.iter().fold(self, |multi, (path, condition)| {
            multi.push_in_all(
                Ok(()),
                Op::Check { path: path.as_str().into(), condition: *condition },
            )
        })
    }

    /// Adds a step of a recipe: see [`Part`]. It counts as one operation or several.
    ///
    /// ```
    /// use quorate::{CreateMode, recipes::Queue};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.prepare().wait()?;
    /// // The order is there with its job, or neither.
    /// let order = session.multi().create("/order-7", b"", CreateMode::Persistent);
    /// order.with(&queue.put_part("order-7")).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn with(mut self, part: &Part) -> Multi<'a> {
        if self.checked.is_ok() {
            let before = self.ops.len();
            self.checked = part.checked().map_err(|error| match error {
                Error::Multi { index, error } => Error::Multi { index: index + before, error },
                error => Error::Multi { index: before, error: Box::new(error) },
            });
        }
        part.ops().fold(self, |multi, op| multi.push_in_all(Ok(()), op))
    }

    /// Creates a znode: see [`Session::create`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let both = session.multi().create("/a", b"", CreateMode::Persistent);
    /// both.create("/a/b", b"", CreateMode::Persistent).commit().wait()?;
    /// assert!(session.exists("/a/b").wait()?.is_some());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn create(self, path: &str, data: impl AsRef<[u8]>, mode: CreateMode) -> Multi<'a> {
        let data = data.as_ref();
        self.push(check_create(path, data, mode), |root| create_op(root, path, data, mode))
    }

    /// Creates a znode with an access list: see [`Session::create_with_acl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let acl = Acl::read_only();
    /// session.multi().create_with_acl("/a", b"", CreateMode::Persistent, &acl).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn create_with_acl(
        self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
        acl: &[Acl],
    ) -> Multi<'a> {
        let data = data.as_ref();
        let checked = check_create(path, data, mode).and_then(|()| self.check_acl(path, acl));
        self.push(checked, |root| create_with_acl_op(root, path, data, mode, acl))
    }

    /// Replaces the access list of a znode: see [`Session::set_acl`]. (ZooKeeper's multi cannot do
    /// this.)
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.multi().set("/a", b"2").set_acl("/a", &Acl::read_only()).commit().wait()?;
    /// assert!(session.set("/a", b"3").wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_acl(self, path: &str, acl: &[Acl]) -> Multi<'a> {
        self.set_acl_version(path, acl, None)
    }

    /// Replaces the access list of a znode if it has this aversion: see [`Session::set_acl_if`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let (_, stat) = session.acl("/a").wait()?;
    /// session.multi().set_acl_if("/a", &Acl::read_only(), stat.aversion).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_acl_if(self, path: &str, acl: &[Acl], aversion: u64) -> Multi<'a> {
        self.set_acl_version(path, acl, Some(aversion))
    }

    fn set_acl_version(self, path: &str, acl: &[Acl], version: Option<u64>) -> Multi<'a> {
        let checked = path::validate(path).and_then(|()| self.check_acl(path, acl));
        let op =
            |root: &Root| Op::SetAcl { path: root.full(path).into(), acl: acl.to_vec(), version };
        self.push(checked, op)
    }

    fn check_acl(&self, path: &str, acl: &[Acl]) -> Result<()> {
        self.session.check_acl(path, 0, acl)
    }

    /// Sets the data of a znode, or creates it: see [`Session::create_or_set`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.multi().create_or_set("/a", b"1", CreateMode::Persistent).commit().wait()?;
    /// session.multi().create_or_set("/a", b"2", CreateMode::Persistent).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn create_or_set(self, path: &str, data: impl AsRef<[u8]>, mode: CreateMode) -> Multi<'a> {
        let data = data.as_ref();
        self.push(check_create(path, data, mode), |root| create_or_set_op(root, path, data, mode))
    }

    /// Makes a znode an ephemeral of this session: see [`Session::take_over`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let former = session.create("/mine", b"", CreateMode::Ephemeral).wait()?.stat.ephemeral_owner;
    /// session.multi().take_over("/mine", b"2", former.unwrap()).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn take_over(self, path: &str, data: impl AsRef<[u8]>, from: SessionId) -> Multi<'a> {
        let data = data.as_ref();
        self.push(path::validate(path), |root| take_over_op(root, path, data, from))
    }

    /// Replaces the data of a znode: see [`Session::set`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.create("/b", b"", CreateMode::Persistent).wait()?;
    /// session.multi().set("/a", b"").set("/b", b"1").commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set(self, path: &str, data: impl AsRef<[u8]>) -> Multi<'a> {
        self.set_version(path, data.as_ref(), None)
    }

    fn set_version(self, path: &str, data: &[u8], version: Option<u64>) -> Multi<'a> {
        let op = |root: &Root| Op::Set { path: root.full(path).into(), data: data.into(), version };
        self.push(path::validate(path), op)
    }

    /// Adds to the number that a znode's data show.
    pub(crate) fn add(self, path: &str, number: i64, form: CounterForm) -> Multi<'a> {
        let op = |root: &Root| Op::Add { path: root.full(path).into(), number, form, within: None };
        self.push(path::validate(path), op)
    }

    /// Moves the time that a znode's data show, in nanoseconds: from the log's time on if that is later, and at most to
    /// this much after it.
    pub(crate) fn move_time(self, path: &str, by: i64, within: u64) -> Multi<'a> {
        let (form, within) = (CounterForm::Long, Some(within));
        let op = |root: &Root| Op::Add { path: root.full(path).into(), number: by, form, within };
        self.push(path::validate(path), op)
    }

    /// Requires that the log's time has come to the time that a znode's data show, and is at most `until`, both in
    /// nanoseconds. Replaces the time in the znode by a meaningless one: set it again in the same write.
    ///
    /// Too early, it fails with [`Error::QuotaExceeded`]: `needed - limit` are missing. Too late, with
    /// [`Error::InvalidData`], since the sum is no number any more.
    pub(crate) fn require_time(self, path: &str, until: i64) -> Multi<'a> {
        let rest = i64::MAX - until.max(0);
        self.move_time(path, rest, rest.cast_unsigned())
    }

    /// Puts an item into a queue.
    pub(crate) fn put_item(self, queue: &str, data: &[u8], order: QueueOrder) -> Multi<'a> {
        let op = |root: &Root| Op::Put {
            path: root.full(queue).into(),
            data: data.into(),
            order: order.into(),
        };
        self.push(path::validate(queue), op)
    }

    /// Takes the first item of a queue: with a claim, or else for good.
    pub(crate) fn take_item(self, queue: &str, claims: bool) -> Multi<'a> {
        self.push(path::validate(queue), |root| Op::Take { path: root.full(queue).into(), claims })
    }

    /// [`Op::Invented`].
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn invented(self, path: &str, data: &[u8]) -> Multi<'a> {
        let op = |root: &Root| Op::Invented { path: root.full(path).into(), data: data.into() };
        self.push(path::validate(path), op)
    }

    /// Replaces the data of a znode if it has this version: see [`Session::set_if`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.multi().set_if("/a", b"2", 0).commit().wait()?;
    /// assert!(session.multi().set_if("/a", b"3", 0).commit().wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_if(self, path: &str, data: impl AsRef<[u8]>, version: u64) -> Multi<'a> {
        self.set_version(path, data.as_ref(), Some(version))
    }

    /// Deletes a znode: see [`Session::delete`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// // A move.
    /// session.multi().delete("/a").create("/b", b"1", CreateMode::Persistent).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delete(self, path: &str) -> Multi<'a> {
        self.delete_version(path, None)
    }

    fn delete_version(self, path: &str, version: Option<u64>) -> Multi<'a> {
        self.push(path::validate(path), |root| Op::Delete { path: root.full(path).into(), version })
    }

    /// Deletes a znode if it has this version: see [`Session::delete_if`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.multi().delete_if("/a", 0).commit().wait()?;
    /// assert!(session.exists("/a").wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delete_if(self, path: &str, version: u64) -> Multi<'a> {
        self.delete_version(path, Some(version))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.checked.is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// The operations, and what is wrong with their arguments.
    pub(crate) fn into_ops(self) -> (Vec<Op>, Result<()>) {
        (self.ops, self.checked)
    }

    /// Puts these checks before the operations.
    pub(crate) fn after(self, checks: Vec<(String, Condition)>) -> Multi<'a> {
        let mut all = Multi::new(self.session);
        for (path, condition) in checks {
            all = all.require(&path, condition);
        }
        let before = all.ops.len();
        let wrong = self.checked.map_err(|error| match error {
            Error::Multi { index, error } => Error::Multi { index: index + before, error },
            error => error,
        });
        all.checked = all.checked.and(wrong);
        all.content_bytes += self.content_bytes;
        all.path_bytes += self.path_bytes;
        if all.checked.is_ok() {
            all.checked = check_data("/", all.content_bytes.max(all.path_bytes));
        }
        all.ops.extend(self.ops);
        all
    }

    /// Deletes a znode and everything below it: see [`Session::delete_recursive`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.create("/a/b", b"", CreateMode::Persistent).wait()?;
    /// session.multi().delete_recursive("/a").commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delete_recursive(self, path: &str) -> Multi<'a> {
        self.push(path::validate(path), |root| Op::DeleteTree { path: root.full(path).into() })
    }

    /// Does all operations, or none, and returns their results in order.
    ///
    /// # Errors
    /// [`Error::Multi`](crate::Error::Multi) with the operation that failed and its error;
    /// otherwise as [`Session::create`].
    ///
    /// ```
    /// use quorate::multi::OpResult;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let multi = session.multi().create("/a", b"1", CreateMode::Persistent);
    /// let results = multi.set("/a", b"2").commit().wait()?;
    /// assert!(matches!(&results[..], [OpResult::Created(_), OpResult::Set(stat)] if stat.version == 1));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn commit(self) -> Pending<'static, Vec<OpResult>> {
        self.session.commit(self.checked, self.ops)
    }
}

/// The condition that a lock or the like is still held, for use in a write by [`Multi::fence`] or
/// [`Transaction::fence`](crate::Transaction::fence). Guards return it, for example
/// [`Held::fence`](crate::recipes::Held::fence).
///
/// Every replica checks it as it applies the write, and the write does nothing if the lock was lost
/// by then. So it does not matter how long the writer stalls before, or what its clock shows. A
/// fence is a value that may be cloned and sent to another thread or instance, which may then write
/// in the holder's name. It does not keep the lock held.
///
/// ```
/// use quorate::{CreateMode, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let (session, other) = (cluster.node(0).session(), cluster.node(1).session());
/// let guard = session.lock("/lock")?.acquire().wait()?;
/// let fence = guard.fence();
/// other.multi().fence(&fence).create("/report", b"", CreateMode::Persistent).commit().wait()?;
/// guard.release().wait()?;
/// assert!(other.multi().fence(&fence).delete("/report").commit().wait().is_err());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The paths are relative to the root of the whole tree.
    checks: Vec<(String, Condition)>,
}

impl Fence {
    /// Requires that the session's znode at this path is the one created by the write `czxid`.
    pub(crate) fn of(session: &Session, path: &str, czxid: Zxid) -> Fence {
        let check = (session.root.full(path).into_owned(), Condition::Czxid(czxid));
        Fence { checks: vec![check] }
    }

    /// Requires all of these fences.
    pub(crate) fn all(fences: impl IntoIterator<Item = Fence>) -> Fence {
        Fence { checks: fences.into_iter().flat_map(|fence| fence.checks).collect() }
    }
}
