//! A lock whose holder may acquire it again.
//!
//! Source: Curator, `InterProcessMutex`, which counts for each thread.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::api::session::Session;
use crate::planted::{Bug, if_planted, planted};
use crate::recipes::{Lock, LockGuard, blocking};
use crate::types::error::Result;

/// A [`Lock`] that its owner may acquire again while holding it.
///
/// The owner is given by the handle: **all clones of one `ReentrantLock` are one owner**, and share
/// one hold. Another handle made by [`ReentrantLock::new`] is another owner, even on the same
/// session. (Curator counts per thread. Here a future may move between threads, and an owner may
/// want several threads to help. So give the clones to those that should share the lock, and to
/// nobody else.) The lock does not exclude clones from each other.
///
/// The first acquisition costs what a lock costs. Each further one is free: it does not contact the
/// cluster. The lock is released with the last guard. If it was lost meanwhile, the existing guards
/// report that, and the next acquisition is a new one.
///
/// ```
/// use quorate::recipes::ReentrantLock;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = ReentrantLock::new(&cluster.node(0).session(), "/lock")?;
/// let outer = lock.acquire()?;
/// let inner = lock.acquire()?;
/// assert_eq!(outer.fencing_token(), inner.fencing_token());
/// outer.release()?;
/// assert!(inner.is_held(), "it goes with the last");
/// let other = ReentrantLock::new(&cluster.node(0).session(), "/lock")?;
/// assert!(other.try_acquire()?.is_none(), "another owner");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantLock {
    lock: Lock,
    owner: Arc<Mutex<Owner>>,
}

/// What the clones share.
#[derive(Debug, Default)]
struct Owner {
    held: Weak<LockGuard>,
    /// One of the clones is waiting for the lock, for all of them.
    acquiring: bool,
    /// The others.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

fn locked(owner: &Mutex<Owner>) -> MutexGuard<'_, Owner> {
    // No change to it is ever left half done.
    owner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How an acquisition continues.
enum Turn<'a> {
    Held(Arc<LockGuard>),
    /// This clone has to acquire the lock.
    Acquire(Acquiring<'a>),
}

/// The clone that acquires the lock. When dropped, another may.
struct Acquiring<'a>(&'a Mutex<Owner>);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut owner = locked(self.0);
            owner.acquiring = false;
            std::mem::take(&mut owner.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }
}

/// A clone that waits for another; dropping it ends the wait.
struct Waiting<'a> {
    owner: &'a Mutex<Owner>,
    id: Option<u64>,
}

impl<'a> Waiting<'a> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<Turn<'a>> {
        let mut owner = locked(self.owner);
        if let Some(turn) = owner.turn(self.owner) {
            return Poll::Ready(turn);
        }
        let id = *self.id.get_or_insert_with(|| {
            owner.next += 1;
            owner.next
        });
        owner.waiting.insert(id, context.waker().clone());
        if_planted(Bug::WaitSpins, || context.waker().wake_by_ref());
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            locked(self.owner).waiting.remove(&id);
        }
    }
}

impl Owner {
    /// `None` while another clone acquires the lock.
    fn turn<'a>(&mut self, all: &'a Mutex<Owner>) -> Option<Turn<'a>> {
        let is_ours = |guard: &Arc<LockGuard>| guard.is_held() || planted(Bug::LostHoldingShared);
        if let Some(guard) = self.held.upgrade().filter(is_ours) {
            return Some(Turn::Held(guard));
        }
        if self.acquiring && !planted(Bug::CloneQueues) && !planted(Bug::CloneHoldsApart) {
            return None;
        }
        self.acquiring = true;
        Some(Turn::Acquire(Acquiring(all)))
    }
}

impl ReentrantLock {
    /// The lock at this path, for a new owner. It is the same lock as [`Session::lock`] returns for
    /// that path. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<ReentrantLock> {
        Ok(ReentrantLock { lock: Lock::new(session, path)?, owner: Arc::default() })
    }

    /// The lock's path.
    pub fn path(&self) -> &str {
        self.lock.path()
    }

    /// Blocks until the lock is held, for as long as the session lives. Returns at once if this
    /// owner holds it.
    ///
    /// # Errors
    /// As [`Lock::acquire`]. This holds for all ways to acquire it.
    pub fn acquire(&self) -> Result<ReentrantGuard> {
        blocking::forever(self.lock.session(), self.acquire_async())
    }

    /// As [`ReentrantLock::acquire`], at most for `timeout`: `None` if it is not held by then.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<ReentrantGuard>> {
        blocking::within(self.lock.session(), timeout, self.acquire_async())
    }

    /// Acquires the lock if this owner holds it, or if it is free and nobody waits. Blocks for the
    /// request timeout at most.
    pub fn try_acquire(&self) -> Result<Option<ReentrantGuard>> {
        let taking = self.try_acquire_async();
        blocking::request(self.lock.session(), "try_acquire", self.path(), taking)
    }

    /// As [`ReentrantLock::try_acquire`], without blocking the thread and without a time limit.
    /// Dropping the future gives it up.
    ///
    /// ```
    /// # async fn example(lock: &quorate::recipes::ReentrantLock) -> quorate::Result<()> {
    /// let is_free = lock.try_acquire_async().await?.is_some();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire_async(&self) -> Result<Option<ReentrantGuard>> {
        let turn = locked(&self.owner).turn(&self.owner);
        match turn {
            None => Ok(None),
            Some(Turn::Held(guard)) => Ok(Some(ReentrantGuard { guard })),
            Some(Turn::Acquire(acquiring)) => {
                let guard = self.lock.try_acquire_async().await?;
                let guard = guard.map(|guard| self.held(guard));
                drop(acquiring);
                Ok(guard)
            }
        }
    }

    /// As [`ReentrantLock::acquire`], without blocking the thread. Dropping the future gives up its
    /// place in the queue.
    ///
    /// ```
    /// # async fn example(lock: &quorate::recipes::ReentrantLock) -> quorate::Result<()> {
    /// let outer = lock.acquire_async().await?;
    /// // Again, by the same owner.
    /// let inner = lock.acquire_async().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_async(&self) -> Result<ReentrantGuard> {
        let mut waiting = Waiting { owner: &self.owner, id: None };
        match poll_fn(|context| waiting.poll(context)).await {
            Turn::Held(guard) => Ok(ReentrantGuard { guard }),
            Turn::Acquire(acquiring) => {
                let guard = self.held(self.lock.acquire_async().await?);
                drop(acquiring);
                Ok(guard)
            }
        }
    }

    fn held(&self, guard: LockGuard) -> ReentrantGuard {
        let guard = Arc::new(guard);
        locked(&self.owner).held = Arc::downgrade(&guard);
        ReentrantGuard { guard }
    }
}

/// A guard of a [`ReentrantLock`], which dereferences to a [`LockGuard`]. Dropping the last one
/// releases the lock, without waiting for the answer.
///
/// ```
/// use quorate::recipes::ReentrantLock;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let lock = ReentrantLock::new(&session, "/lock")?;
/// let (one, two) = (lock.acquire()?, lock.acquire()?);
/// assert_eq!(one.holds(), 2);
/// two.release()?;
/// assert_eq!(one.holds(), 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct ReentrantGuard {
    guard: Arc<LockGuard>,
}

impl ReentrantGuard {
    /// How many guards the owner has.
    pub fn holds(&self) -> usize {
        Arc::strong_count(&self.guard)
    }

    /// Drops this guard. If it is the last, releases the lock and waits for that.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    pub fn release(self) -> Result<()> {
        Arc::into_inner(self.guard).map_or(Ok(()), LockGuard::release)
    }

    /// As [`ReentrantGuard::release`], without blocking the thread and without a time limit. If the
    /// future is dropped, polled or not, this continues.
    ///
    /// # Errors
    /// As [`LockGuard::release_async`].
    ///
    /// ```
    /// # async fn example(guard: quorate::recipes::ReentrantGuard) -> quorate::Result<()> {
    /// guard.release_async().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_async(self) -> Result<()> {
        match Arc::into_inner(self.guard) {
            Some(guard) => guard.release_async().await,
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
