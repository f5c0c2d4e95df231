//! Several locks as one.
//!
//! Source: Curator, `InterProcessMultiLock`, which takes them in the order of the caller and gives
//! each the whole timeout.

use std::time::Duration;

use crate::api::multi::{Fence, Multi};
use crate::api::session::Session;
use crate::planted::{Bug, planted};
use crate::recipes::{Lock, LockGuard, blocking};
use crate::types::error::{Error, Result};

/// Several [`Lock`]s, held all or none.
///
/// They are taken one after the other in the order of their paths, however they were named, and
/// released in the reverse of that: two callers whose paths overlap never wait for each other both.
/// (That holds among callers of this type. Whoever holds a lock of the set by a guard of its own and
/// then waits for another is on its own.) While it waits for one, it has those before.
///
/// Each costs what a lock costs.
///
/// ```
/// use quorate::recipes::MultiLock;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let both = MultiLock::new(&session, ["/accounts/7", "/accounts/3"])?;
/// assert_eq!(both.paths().collect::<Vec<_>>(), ["/accounts/3", "/accounts/7"]);
/// let guard = both.acquire()?;
/// assert!(session.lock("/accounts/7")?.try_acquire()?.is_none());
/// guard.release()?;
/// assert!(session.lock("/accounts/7")?.try_acquire()?.is_some());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    session: Session,
    locks: Vec<Lock>,
}

impl MultiLock {
    /// The locks at these paths, each once. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if there is none.
    pub fn new(
        session: &Session,
        paths: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<MultiLock> {
        let locks = paths.into_iter().map(|path| Lock::new(session, path.as_ref()));
        let mut locks = locks.collect::<Result<Vec<Lock>>>()?;
        if !planted(Bug::MultiLockUnordered) {
            // All below one root, so that this is the order in the whole tree as well.
            locks.sort_by(|one, other| one.path().cmp(other.path()));
            locks.dedup_by(|one, other| one.path() == other.path());
        }
        if locks.is_empty() {
            let reason = "at least one is needed".to_owned();
            return Err(Error::InvalidSetting { setting: "paths", reason });
        }
        Ok(MultiLock { session: session.clone(), locks })
    }

    /// The paths, in the order in which they are taken.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(Lock::path)
    }

    /// Blocks until all are held, for as long as the session lives.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; [`Error::NoNode`] also if one was lost while the others were waited for.
    /// Whatever was taken is let go of. So for all ways to acquire them.
    pub fn acquire(&self) -> Result<MultiLockGuard> {
        blocking::forever(&self.session, self.acquire_async())
    }

    /// Blocks until all are held, at most for `timeout` in all: `None`, and none is held, if they are
    /// not by then.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<MultiLockGuard>> {
        blocking::within(&self.session, timeout, self.acquire_async())
    }

    /// Takes all of them if nobody holds one or waits for it. Blocks for the request timeout at most.
    pub fn try_acquire(&self) -> Result<Option<MultiLockGuard>> {
        let taking = async {
            let mut guard = MultiLockGuard { guards: Vec::with_capacity(self.locks.len()) };
            for lock in &self.locks {
                match lock.try_acquire_async().await? {
                    Some(held) => guard.guards.push(held),
                    None => return Ok(None),
                }
            }
            guard.checked().map(Some)
        };
        blocking::request(&self.session, "try_acquire", self.locks[0].path(), taking)
    }

    /// Waits until all are held, without blocking the thread. Dropping the future gives up all of
    /// them.
    pub async fn acquire_async(&self) -> Result<MultiLockGuard> {
        let mut guard = MultiLockGuard { guards: Vec::with_capacity(self.locks.len()) };
        for lock in &self.locks {
            guard.guards.push(lock.acquire_async().await?);
        }
        guard.checked()
    }
}

/// The holding of a [`MultiLock`]. Dropping it releases all of them, without waiting for that.
///
/// ```
/// use quorate::CreateMode;
/// use quorate::recipes::MultiLock;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let guard = MultiLock::new(&session, ["/a", "/b"])?.acquire()?;
/// assert!(guard.is_held());
/// guard.fenced().create("/a-and-b", b"", CreateMode::Persistent).commit()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct MultiLockGuard {
    /// In the order in which they were taken. There is always one.
    guards: Vec<LockGuard>,
}

impl MultiLockGuard {
    /// One may have been lost while others were waited for.
    fn checked(self) -> Result<MultiLockGuard> {
        match self.guards.iter().find(|guard| guard.is_lost()) {
            Some(lost) => Err(Error::NoNode { path: lost.path().to_owned() }),
            None => Ok(self),
        }
    }

    /// The guards of the locks, in the order of their paths.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Whether all are held at this moment: see [`LockGuard::is_held`].
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(LockGuard::is_held)
    }

    /// Writes that happen only if all are still held when they do: see [`LockGuard::fenced`]. The
    /// checks are the first operations, one for each lock.
    pub fn fenced(&self) -> Multi<'_> {
        // There is always one.
        self.guards[0].session().multi().fence(&self.fence())
    }

    /// The checks of [`MultiLockGuard::fenced`], for any multi or transaction.
    pub fn fence(&self) -> Fence {
        Fence::all(self.guards.iter().map(LockGuard::fence))
    }

    /// Releases all, the last that was taken first, and waits until that is done.
    ///
    /// # Errors
    /// As [`LockGuard::release`]; all are released all the same.
    pub fn release(mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(guard) = self.guards.pop() {
            result = result.and(guard.release());
        }
        result
    }
}

impl Drop for MultiLockGuard {
    fn drop(&mut self) {
        while self.guards.pop().is_some() {}
    }
}
