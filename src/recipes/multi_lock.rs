//! Several locks acquired together.
//!
//! Source: Curator, `InterProcessMultiLock`, which acquires them in the caller's order, each with
//! the whole timeout.

use std::pin::Pin;
use std::task::Poll;

use crate::api::multi::{Fence, Multi};
use crate::api::session::Session;
use crate::recipes::{Lock, LockGuard, Lost, Naming};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};

/// Several [`Lock`]s, held all or none.
///
/// The locks are acquired one after the other in the order of their paths, and released in reverse.
/// So two callers whose paths overlap cannot deadlock. (This holds among users of this type. A
/// caller that holds one of the locks by a separate guard and waits for another may deadlock.)
/// While a caller waits for one lock, it holds those before it.
///
/// Each lock costs as much as a single [`Lock`].
///
/// ```
/// use quorate::recipes::MultiLock;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let both = MultiLock::new(&session, ["/accounts/7", "/accounts/3"])?;
/// let guard = both.acquire().wait()?;
/// assert!(session.lock("/accounts/7")?.try_acquire().wait()?.is_none());
/// guard.release().wait()?;
/// assert!(session.lock("/accounts/7")?.try_acquire().wait()?.is_some());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// In the order of acquisition. Never empty.
    locks: Vec<Lock>,
}

impl MultiLock {
    /// Returns the locks at these paths, without duplicates. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if there is none.
    pub fn new(
        session: &Session,
        paths: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<MultiLock> {
        let locks = paths.into_iter().map(|path| Lock::new(session, path.as_ref()));
        let mut locks = locks.collect::<Result<Vec<Lock>>>()?;
        // All locks are below the same root, so this is also their order in the whole tree.
        let order = |one: &Lock, other: &Lock| one.path().cmp(other.path());
        locks.sort_by(order);
        locks.dedup_by(|one, other| one.path() == other.path());
        if locks.is_empty() {
            let reason = "at least one is needed".to_owned();
            return Err(Error::InvalidSetting { setting: "paths", reason });
        }
        Ok(MultiLock { locks })
    }

    /// Returns the locks with other names for their contenders: see [`Lock::with_naming`].
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> MultiLock {
        self.locks = self.locks.into_iter().map(|lock| lock.with_naming(naming)).collect();
        self
    }

    /// Of an error of all locks.
    fn path(&self) -> &str {
        self.locks[0].path()
    }

    fn session(&self) -> &Session {
        // The list is never empty.
        self.locks[0].session()
    }

    /// Acquires all locks. Waits until all are held, for as long as the session lives.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; [`Error::NoNode`] also if a lock was lost during the wait for the
    /// others. After an error no lock is held. These are the errors of all ways to acquire them.
    pub fn acquire(&self) -> Pending<'_, MultiLockGuard> {
        self.session().steps("acquire", self.path(), self.acquiring()).unlimited()
    }

    async fn acquiring(&self) -> Result<MultiLockGuard> {
        let mut guard = MultiLockGuard { guards: Vec::with_capacity(self.locks.len()) };
        for lock in &self.locks {
            guard.guards.push(lock.acquire().await?);
        }
        guard.checked()
    }

    /// Acquires all locks if each is free; returns `None` otherwise.
    pub fn try_acquire(&self) -> Pending<'_, Option<MultiLockGuard>> {
        self.session().steps("try_acquire", self.path(), self.trying())
    }

    async fn trying(&self) -> Result<Option<MultiLockGuard>> {
        let mut guard = MultiLockGuard { guards: Vec::with_capacity(self.locks.len()) };
        for lock in &self.locks {
            match lock.try_acquire().await? {
                Some(held) => guard.guards.push(held),
                None => return Ok(None),
            }
        }
        guard.checked().map(Some)
    }
}

/// A held [`MultiLock`]. Dropping it releases all locks, without waiting for the replies.
///
/// ```
/// use quorate::CreateMode;
/// use quorate::recipes::MultiLock;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let guard = MultiLock::new(&session, ["/a", "/b"])?.acquire().wait()?;
/// assert!(guard.is_held());
/// guard.fenced().create("/a-and-b", b"", CreateMode::Persistent).commit().wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct MultiLockGuard {
    /// In the order of acquisition. Never empty.
    guards: Vec<LockGuard>,
}

impl MultiLockGuard {
    /// Fails if a lock was lost during the wait for the others.
    fn checked(self) -> Result<MultiLockGuard> {
        match self.guards.iter().find(|guard| guard.ephemeral.loss().is_some()) {
            Some(lost) => Err(Error::NoNode { path: lost.path().to_owned() }),
            None => Ok(self),
        }
    }

    fn session(&self) -> &Session {
        // The list is never empty.
        self.guards[0].session()
    }

    /// The guards of the locks, in the order of their paths.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Whether all locks are held at this moment: see [`Held::is_held`](crate::recipes::Held::is_held).
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_held())
    }

    /// Starts a multi that has effect only if all locks are still held: see [`Held::fenced`](crate::recipes::Held::fenced).
    /// The checks are its first operations, one for each lock.
    pub fn fenced(&self) -> Multi<'_> {
        self.session().multi().fence(&self.fence())
    }

    /// The checks of [`MultiLockGuard::fenced`], for any multi or transaction.
    pub fn fence(&self) -> Fence {
        Fence::all(self.guards.iter().map(|guard| guard.fence()))
    }

    /// Releases all locks, in reverse order.
    ///
    /// # Errors
    /// As [`Held::release`](crate::recipes::Held::release); all locks are released even after an error.
    pub fn release(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.guards[0].path().to_owned());
        session.steps("release", &path, self.releasing())
    }

    async fn releasing(mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(guard) = self.guards.pop() {
            result = result.and(guard.release().await);
        }
        result
    }

    /// Waits until one of the locks is lost, and returns the reason.
    pub fn wait_lost(&self) -> Pending<'_, Lost> {
        self.session().steps("wait_lost", self.guards[0].path(), self.losing()).unlimited()
    }

    async fn losing(&self) -> Result<Lost> {
        let mut waiting: Vec<_> = self.guards.iter().map(|guard| guard.wait_lost()).collect();
        std::future::poll_fn(|context| {
            let mut polled = waiting.iter_mut().map(|lost| Pin::new(lost).poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

impl Drop for MultiLockGuard {
    fn drop(&mut self) {
        while self.guards.pop().is_some() {}
    }
}
