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
use crate::planted::{Bug, planted};
use crate::recipes::{Lock, LockGuard, blocking};
use crate::types::error::Result;

/// A [`Lock`] that whoever has it may acquire again, for as long as it is held.
///
/// Who that is, the handle says: **all clones of one `ReentrantLock` are one owner**, and share one
/// holding. Another handle made by [`ReentrantLock::new`] is another owner, on the same session too.
/// (Curator counts for each thread. Here a future may go on in another thread than it began in, and
/// a holder may want the help of several; so give the clones to whom the holding is to be shared with,
/// and to nobody else.) The lock does not keep clones from each other.
///
/// The first acquisition costs what a lock costs, and each further one nothing: it does not ask the
/// cluster. The lock is released with the last guard. If it was lost meanwhile, the guards that are
/// there tell so, and the next acquisition is a new one.
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
    session: Session,
    owner: Arc<Mutex<Owner>>,
}

/// What the clones share.
#[derive(Debug, Default)]
struct Owner {
    held: Weak<LockGuard>,
    /// One of the clones is in line for all of them.
    acquiring: bool,
    /// The others.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

fn locked(owner: &Mutex<Owner>) -> MutexGuard<'_, Owner> {
    // Nothing in it is ever half done.
    owner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of an acquisition.
enum Turn<'a> {
    Held(Arc<LockGuard>),
    /// It is for this one to acquire the lock.
    Acquire(Acquiring<'a>),
}

/// Whoever of the clones is in line. Dropped, another may.
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

/// A clone that waits for another; forgotten when it is dropped.
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
    /// `None` as long as another is in line.
    fn turn<'a>(&mut self, all: &'a Mutex<Owner>) -> Option<Turn<'a>> {
        let is_ours = |guard: &Arc<LockGuard>| guard.is_held() || planted(Bug::LostHoldingShared);
        if let Some(guard) = self.held.upgrade().filter(is_ours) {
            return Some(Turn::Held(guard));
        }
        if self.acquiring && !planted(Bug::CloneInLine) {
            return None;
        }
        self.acquiring = true;
        Some(Turn::Acquire(Acquiring(all)))
    }
}

impl ReentrantLock {
    /// The lock at this path, and a new owner. It is the lock that [`Session::lock`] gives for that
    /// path. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<ReentrantLock> {
        let (lock, session) = (Lock::new(session, path)?, session.clone());
        Ok(ReentrantLock { lock, session, owner: Arc::default() })
    }

    /// The lock's path.
    pub fn path(&self) -> &str {
        self.lock.path()
    }

    /// Blocks until the lock is held, for as long as the session lives; not at all if this owner
    /// holds it.
    ///
    /// # Errors
    /// As [`Lock::acquire`]. So for all ways to acquire it.
    pub fn acquire(&self) -> Result<ReentrantGuard> {
        blocking::forever(&self.session, self.acquire_async())
    }

    /// The same, at most for `timeout`: `None` if it is not held by then.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<ReentrantGuard>> {
        blocking::within(&self.session, timeout, self.acquire_async())
    }

    /// Takes the lock if this owner holds it, or if nobody holds it or waits for it. Blocks for the
    /// request timeout at most.
    pub fn try_acquire(&self) -> Result<Option<ReentrantGuard>> {
        let turn = locked(&self.owner).turn(&self.owner);
        match turn {
            None => Ok(None),
            Some(Turn::Held(guard)) => Ok(Some(ReentrantGuard { guard })),
            Some(Turn::Acquire(acquiring)) => {
                let guard = self.lock.try_acquire()?;
                let guard = guard.map(|guard| self.held(guard));
                drop(acquiring);
                Ok(guard)
            }
        }
    }

    /// Waits until the lock is held, without blocking the thread. Dropping the future gives up the
    /// place in line.
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

/// A part in the holding of a [`ReentrantLock`]: a [`LockGuard`] in all else. Dropping the last one
/// releases the lock, without waiting for that.
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
    /// How many guards of this holding there are.
    pub fn holds(&self) -> usize {
        Arc::strong_count(&self.guard)
    }

    /// Gives this part up. If it is the last, it releases the lock and waits until that is done.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    pub fn release(self) -> Result<()> {
        Arc::into_inner(self.guard).map_or(Ok(()), LockGuard::release)
    }
}

impl Deref for ReentrantGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}
