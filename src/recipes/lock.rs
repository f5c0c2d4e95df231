//! ZooKeeper's lock recipe: whoever is first in the line holds the lock, and each of the others waits
//! for the one before it.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Locks; Curator, `InterProcessMutex`.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::Result;
use crate::recipes::blocking;
use crate::recipes::line::{Held, Line};
use crate::session::Session;
use crate::watch::WatchEvent;

/// The kind of its contenders.
const KIND: &str = "lock";

/// Who stands in the way: the one before.
fn before(at: usize) -> Option<usize> {
    at.checked_sub(1)
}

/// A lock that one holder in the whole cluster has at a time.
///
/// It is fair: whoever asked first gets it first. It is not reentrant: a holder that acquires it
/// again waits for itself. Two acquisitions are two contenders, also within one session, so it
/// excludes the threads of one process from each other just as well.
///
/// The lock belongs to the session: it is lost when the session is. [`LockGuard::is_held`] turns
/// false before the cluster can give it to another, as long as clocks run at rates that differ by
/// less than a tenth and count all the time there is: see [`Session::is_alive`] for which do. No lock
/// can hold back a process that stalls after it has looked; for that there are
/// [`LockGuard::fencing_token`]s.
///
/// One acquisition costs two writes (a znode created and deleted).
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = cluster.node(0).session().lock("/locks/nightly")?;
/// let guard = lock.acquire()?;
/// let other = cluster.node(1).session().lock("/locks/nightly")?;
/// assert!(other.try_acquire()?.is_none());
/// guard.release()?;
/// assert!(other.acquire()?.is_held());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    line: Line,
}

impl Lock {
    pub(crate) fn new(session: &Session, path: &str) -> Result<Lock> {
        Ok(Lock { line: Line::new(session, path, &[KIND])? })
    }

    /// The lock's path.
    pub fn path(&self) -> &str {
        self.line.path()
    }

    /// Blocks until the lock is held, for as long as the session lives.
    ///
    /// # Errors
    /// Those of a session that is over, [`Error::NoNode`] if somebody deleted this contender's
    /// znode, and [`Error::System`].
    pub fn acquire(&self) -> Result<LockGuard> {
        blocking::forever(self.line.session(), self.acquire_async())
    }

    /// Blocks until the lock is held, at most for `timeout`: `None` if it is not held by then. The
    /// place in the queue is given up.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        blocking::within(self.line.session(), timeout, self.acquire_async())
    }

    /// Takes the lock if nobody holds it or waits for it. Blocks for the request timeout at most.
    ///
    /// # Errors
    /// As [`Lock::acquire`], and [`Error::Timeout`].
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let contend = async {
            let contender = self.line.join(KIND, b"").await?;
            match self.line.before(&contender, |_, at| before(at)).await? {
                None => Ok(Some(LockGuard { held: contender.hold().await? })),
                Some(_) => Ok(None),
            }
        };
        blocking::request(self.line.session(), "try_acquire", self.path(), contend)
    }

    /// Waits until the lock is held, without blocking the thread. Dropping the future gives up the
    /// place in the queue.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire_async(&self) -> Result<LockGuard> {
        let contender = self.line.join(KIND, b"").await?;
        self.line.wait(&contender, |_, at| before(at)).await?;
        Ok(LockGuard { held: contender.hold().await? })
    }

    /// Who waits for the lock or holds it, by path, the holder first, as this replica has it.
    ///
    /// # Errors
    /// Those of a session that is over.
    pub fn contenders(&self) -> Result<Vec<String>> {
        Ok(self.line.places_now()?.into_iter().map(|place| place.path).collect())
    }
}

/// How a lock was lost.
///
/// ```
/// use quorate::{LockLost, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let guard = session.lock("/lock")?.acquire()?;
/// cluster.node(1).session().delete(guard.path())?;
/// assert_eq!(guard.wait_lost(), LockLost::Deleted);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockLost {
    /// The session is over.
    SessionOver,
    /// The holder's znode was deleted, by somebody or with its session.
    Deleted,
}

/// The holding of a [`Lock`]. Dropping it releases the lock, without waiting for that.
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = cluster.node(0).session().lock("/lock")?;
/// let first = lock.acquire()?.fencing_token();
/// let second = lock.acquire()?.fencing_token();
/// assert!(second > first);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct LockGuard {
    held: Held,
}

impl LockGuard {
    /// A number that is larger for each later holder of the lock: the zxid that created the
    /// holder's znode. A resource that refuses numbers smaller than the largest it has seen is safe
    /// from holders that do not know yet that they have lost the lock.
    pub fn fencing_token(&self) -> u64 {
        self.held.token()
    }

    /// The path of the holder's znode.
    pub fn path(&self) -> &str {
        self.held.path()
    }

    /// Whether the lock is held at this moment: the session is surely alive, and this replica knows
    /// of no deletion of the holder's znode. Does not block. Once false, it stays so.
    ///
    /// Whoever deletes the znode of a living holder gives the lock away; the holder learns of that
    /// when its replica does.
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// A channel on which the loss of the lock shows: it gets a message, or closes. For
    /// `select!`; [`LockGuard::is_held`] then tells the truth.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let guard = cluster.node(0).session().lock("/lock")?.acquire()?;
    /// cluster.isolate(0);
    /// cluster.advance(Duration::from_secs(60));
    /// crossbeam_channel::select! {
    ///     recv(guard.lost()) -> _ => assert!(!guard.is_held()),
    /// }
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn lost(&self) -> &Receiver<WatchEvent> {
        self.held.lost()
    }

    /// Blocks until the lock is lost.
    pub fn wait_lost(&self) -> LockLost {
        self.held.wait_lost()
    }

    /// Releases the lock and waits until that is done.
    ///
    /// # Errors
    /// As [`Session::delete`], but for [`Error::Busy`]; a lock that was lost already is no error.
    /// After [`Error::Timeout`] the release goes on.
    pub fn release(self) -> Result<()> {
        self.held.release()
    }
}
