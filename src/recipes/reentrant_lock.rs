//! A lock that its holder may acquire again.
//!
//! Source: Curator, `InterProcessMutex`, which counts for each thread.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::api::session::Session;
use crate::recipes::{Lock, LockGuard, Naming};
use crate::runtime::pending::Pending;
use crate::sync::wakers::{Place, Wakers};
use crate::types::error::Result;

/// A [`Lock`] that its owner may acquire again while holding it.
///
/// The handle identifies the owner: **all clones of one `ReentrantLock` are one owner**, and share
/// one hold. Another handle made by [`ReentrantLock::new`] is another owner, even on the same
/// session. The lock does not exclude clones from each other, so give clones only to code that
/// should share the lock. (Curator counts per thread. Here a future may move between threads, and
/// several threads may work for one owner.)
///
/// The first acquisition costs what a lock costs. Each further one is free: it does not contact the
/// cluster. The lock is released with the last guard. If the lock is lost, the existing guards
/// report that, and the next acquisition is a new one.
///
/// ```
/// use quorate::recipes::ReentrantLock;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = ReentrantLock::new(&cluster.node(0).session(), "/lock")?;
/// let outer = lock.acquire().wait()?;
/// let inner = lock.acquire().wait()?;
/// assert_eq!(outer.fencing_token(), inner.fencing_token());
/// outer.release().wait()?;
/// assert!(inner.is_held(), "it goes with the last");
/// let other = ReentrantLock::new(&cluster.node(0).session(), "/lock")?;
/// assert!(other.try_acquire().wait()?.is_none(), "another owner");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantLock {
    lock: Lock,
    owner: Arc<SharedLock>,
}

/// The state that the clones share.
#[derive(Debug, Default)]
struct SharedLock {
    holding: Mutex<LockUse>,
    /// The clones that wait for the one that acquires the lock.
    waiting: Arc<Wakers>,
}

#[derive(Debug, Default)]
struct LockUse {
    held: Weak<LockGuard>,
    /// Whether one of the clones is acquiring the lock, on behalf of all.
    acquiring: bool,
}

/// How an acquisition continues.
enum Acquisition<'a> {
    Held(Arc<LockGuard>),
    /// This clone has to acquire the lock.
    Acquire(Acquiring<'a>),
}

/// The right to acquire the lock for all clones. When it is dropped, another clone may acquire.
struct Acquiring<'a>(&'a SharedLock);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.0.holding().acquiring = false;
        self.0.waiting.wake();
    }
}

impl SharedLock {
    fn holding(&self) -> MutexGuard<'_, LockUse> {
        // No change of the state is ever left half done.
        self.holding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while another clone acquires the lock.
    fn turn(&self) -> Option<Acquisition<'_>> {
        let mut holding = self.holding();
        let is_ours = |guard: &Arc<LockGuard>| guard.is_held() || planted!(LostHoldingShared);
        if let Some(guard) = holding.held.upgrade().filter(is_ours) {
            return Some(Acquisition::Held(guard));
        }
        if holding.acquiring && !planted!(CloneQueues) {
            return None;
        }
        holding.acquiring = true;
        Some(Acquisition::Acquire(Acquiring(self)))
    }
}

impl ReentrantLock {
    /// Returns the lock at this path, for a new owner. It is the same lock as the one of
    /// [`Session::lock`] for that path. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<ReentrantLock> {
        Ok(ReentrantLock { lock: Lock::new(session, path)?, owner: Arc::default() })
    }

    /// Returns the lock with other names for its contenders: see [`Lock::with_naming`].
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> ReentrantLock {
        self.lock = self.lock.with_naming(naming);
        self
    }

    fn session(&self) -> &Session {
        self.lock.session()
    }

    pub(crate) fn path(&self) -> &str {
        self.lock.path()
    }

    /// Acquires the lock. Waits until it is held, for as long as the session lives. Returns at once if this owner
    /// holds it already.
    ///
    /// # Errors
    /// As [`Lock::acquire`]. These are the errors of all ways to acquire it.
    pub fn acquire(&self) -> Pending<'_, ReentrantGuard> {
        self.session().steps("acquire", self.path(), self.acquiring()).unlimited()
    }

    async fn acquiring(&self) -> Result<ReentrantGuard> {
        let mut place = Place::new(Arc::clone(&self.owner.waiting));
        let turn = poll_fn(|context| place.poll(context.waker(), || self.owner.turn()));
        match turn.await {
            Acquisition::Held(guard) => Ok(ReentrantGuard { guard }),
            Acquisition::Acquire(acquiring) => {
                let guard = self.held(self.lock.acquire().await?);
                drop(acquiring);
                Ok(guard)
            }
        }
    }

    /// Acquires the lock if this owner holds it, or if it is free and nobody waits for it; returns `None` otherwise.
    pub fn try_acquire(&self) -> Pending<'_, Option<ReentrantGuard>> {
        self.session().steps("try_acquire", self.path(), self.trying())
    }

    async fn trying(&self) -> Result<Option<ReentrantGuard>> {
        match self.owner.turn() {
            None => Ok(None),
            Some(Acquisition::Held(guard)) => Ok(Some(ReentrantGuard { guard })),
            Some(Acquisition::Acquire(acquiring)) => {
                let guard = self.lock.try_acquire().await?;
                let guard = guard.map(|guard| self.held(guard));
                drop(acquiring);
                Ok(guard)
            }
        }
    }

    fn held(&self, guard: LockGuard) -> ReentrantGuard {
        let guard = Arc::new(guard);
        self.owner.holding().held = Arc::downgrade(&guard);
        ReentrantGuard { guard }
    }
}

/// A guard of a [`ReentrantLock`], which dereferences to a [`LockGuard`]. Dropping the last one
/// releases the lock, without waiting for the reply.
///
/// ```
/// use quorate::recipes::ReentrantLock;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let lock = ReentrantLock::new(&session, "/lock")?;
/// let (one, two) = (lock.acquire().wait()?, lock.acquire().wait()?);
/// assert_eq!(one.holds(), 2);
/// two.release().wait()?;
/// assert_eq!(one.holds(), 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct ReentrantGuard {
    guard: Arc<LockGuard>,
}

impl ReentrantGuard {
    /// The number of guards that the owner has.
    pub fn holds(&self) -> usize {
        Arc::strong_count(&self.guard)
    }

    /// Drops this guard. If it is the last one, releases the lock as
    /// [`Held::release`](crate::recipes::Held::release).
    ///
    /// # Errors
    /// As [`Held::release`](crate::recipes::Held::release).
    pub fn release(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("release", &path, self.releasing())
    }

    async fn releasing(self) -> Result<()> {
        match Arc::into_inner(self.guard) {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}
