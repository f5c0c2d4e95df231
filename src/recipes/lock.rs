//! ZooKeeper's lock recipe: the first contender holds the lock, and each other contender waits for
//! the one before it.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Locks; Curator, `InterProcessMutex`.

use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::contenders::{Contender, Contenders, Contending, LOCK, Naming, predecessor};
use crate::recipes::delay;
use crate::recipes::held::{Held, guard};
use crate::recipes::revocation::{self, Revocations};
use crate::runtime::pending::Pending;
use crate::types::error::{Result, invalid_ttl};
use crate::types::znode::CreateMode;

/// A lock with one holder at a time in the whole cluster.
///
/// It is fair: contenders get it in the order of their requests. It is not reentrant: a holder that
/// acquires it again waits for itself. Two acquisitions are two contenders, even within one
/// session, so the lock also excludes the threads of one process from each other.
///
/// The lock belongs to the session, and is lost with it. [`Held::is_held`] turns false before
/// the cluster can give the lock to another holder, if the rates of the clocks differ by less than
/// a tenth and no clock stops: see [`Session::is_alive`] for clocks that do. No lock can stop a
/// process that stalls after this check; use [`Held::fenced`] or the
/// [`Held::fencing_token`] against that.
///
/// An acquisition costs two writes (a znode created and deleted).
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = cluster.node(0).session().lock("/locks/nightly")?;
/// let guard = lock.acquire().wait()?;
/// let other = cluster.node(1).session().lock("/locks/nightly")?;
/// assert!(other.try_acquire().wait()?.is_none());
/// guard.release().wait()?;
/// assert!(other.acquire().wait()?.is_held());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    contenders: Contenders,
    delay: Option<Duration>,
}

impl Session {
    /// Returns the lock at this path: see [`Lock`]. Sends nothing. The path and its parents are
    /// created as containers when the lock is acquired and they are missing, and deleted after they
    /// were unused for a while.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = session.lock("/lock")?.acquire().wait()?;
    /// assert!(guard.is_held());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn lock(&self, path: &str) -> Result<Lock> {
        Lock::new(self, path)
    }
}

impl Lock {
    /// Returns the lock at this path, as [`Session::lock`] does.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    ///
    /// ```
    /// use quorate::recipes::Lock;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = Lock::new(&session, "/lock")?.acquire().wait()?;
    /// assert!(session.lock("/lock")?.try_acquire().wait()?.is_none(), "it is the same lock");
    /// # drop(guard);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn new(session: &Session, path: &str) -> Result<Lock> {
        Ok(Lock { contenders: Contenders::new(session, path, &[&LOCK])?, delay: None })
    }

    pub(super) fn session(&self) -> &Session {
        self.contenders.session()
    }

    /// Returns the same lock, with a lock-delay for acquisitions through this handle. If a holder
    /// is *lost* (its session ends or its znode is deleted without a release), nobody holds the
    /// lock for this long. So operations of the lost holder that are in flight, at a resource that
    /// does not check fencing tokens, have this long to finish. A regular release passes the lock
    /// on at once.
    ///
    /// The delay of the holder counts, and is stored in the cluster while it holds: later contenders wait for
    /// it whatever the setting of their own handle. The delay starts when the first contender sees that the
    /// holder is lost (at once, if one is waiting), and ends up to some seconds late. It is measured in the
    /// [log's time](crate::guide::limits#the-clusters-time), which runs within a tenth of real time; it ends
    /// early if a node whose wall clock is ahead becomes the leader. Acquisitions through this handle cost
    /// one more write.
    ///
    /// If a holder closes its session without a release, that is a loss, too.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) if it is not between 1 ms and [`CreateMode::TTL_MAX`].
    ///
    /// Source: Burrows, "The Chubby lock service for loosely-coupled distributed systems", 2.4.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// let guard = session.lock("/lock")?.with_lock_delay(Duration::from_secs(60))?.acquire().wait()?;
    /// cluster.expire(&session);
    /// let next = cluster.node(1).session().lock("/lock")?;
    /// assert!(next.try_acquire().wait()?.is_none(), "nobody holds it, and nobody may yet");
    /// cluster.advance(Duration::from_secs(90));
    /// assert!(next.try_acquire().wait()?.is_some());
    /// # drop(guard);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn with_lock_delay(mut self, delay: Duration) -> Result<Lock> {
        if delay.as_millis() == 0 || delay > CreateMode::TTL_MAX {
            return Err(invalid_ttl("lock delay", self.path(), delay));
        }
        self.delay = Some(delay);
        Ok(self)
    }

    /// Returns the same lock, with other names for the contenders of this handle, so that clients of another
    /// library count them: see [`Naming`]. By default, Curator and the Go client count them.
    ///
    /// ```
    /// use quorate::recipes::Naming;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?.with_naming(Naming::Kazoo);
    /// let guard = lock.acquire().wait()?;
    /// // The names of others count, too.
    /// assert!(session.lock("/lock")?.try_acquire().wait()?.is_none());
    /// # drop(guard);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> Lock {
        self.contenders = self.contenders.with_naming(naming);
        self
    }

    pub(crate) fn path(&self) -> &str {
        self.contenders.path()
    }

    /// Acquires the lock. Waits until it is held, for as long as the session lives.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::NoNode`](crate::Error::NoNode) if somebody
    /// deleted this contender's znode, or of `/` if the root of a [chroot](Session::chroot) does
    /// not exist; [`Error::UnknownContender`](crate::Error::UnknownContender) if there is a znode of another
    /// recipe at the path, whose session may not count this one;
    /// [`Error::System`](crate::Error::System).
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire().wait()?;
    /// // Does nothing if the lock was lost in between.
    /// guard.fenced().create("/a", b"", quorate::CreateMode::Persistent).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn acquire(&self) -> Pending<'_, LockGuard> {
        self.session().steps("acquire", self.path(), self.acquiring()).unlimited()
    }

    async fn acquiring(&self) -> Result<LockGuard> {
        let contender = self.contenders.join(&LOCK, b"").await?;
        self.contenders.wait(&contender, predecessor).await?;
        delay::wait(&self.contenders).await?;
        self.held(contender).await
    }

    /// Acquires the lock if nobody holds it or waits for it; returns `None` otherwise.
    ///
    /// # Errors
    /// As [`Lock::acquire`], and [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let held = lock.try_acquire().wait()?;
    /// assert!(held.is_some() && lock.try_acquire().wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_acquire(&self) -> Pending<'_, Option<LockGuard>> {
        self.session().steps("try_acquire", self.path(), self.trying())
    }

    async fn trying(&self) -> Result<Option<LockGuard>> {
        let contender = self.contenders.join(&LOCK, b"").await?;
        match self.contenders.blocker(&contender, predecessor).await? {
            None if delay::is_over(&self.contenders).await? => self.held(contender).await.map(Some),
            _ => Ok(None),
        }
    }

    async fn held(&self, mut contender: Contender) -> Result<LockGuard> {
        if let Some(delay) = self.delay {
            delay::mark(&self.contenders, &mut contender, delay).await?;
        }
        Ok(LockGuard { held: contender.held().await? })
    }

    /// Returns the holder and the waiters in order, as this replica has them.
    ///
    /// # Errors
    /// The errors of a session that is over.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire().wait()?;
    /// // The first is the holder.
    /// assert_eq!(lock.contenders().wait()?[0].path, guard.path());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn contenders(&self) -> Pending<'_, Vec<Contending>> {
        self.session().steps("contenders", self.path(), self.contenders.contending())
    }

    /// Asks the holder to release the lock, and returns how many holders were asked: 1, or 0 if there is none. The
    /// holder receives the request if it has called [`LockGuard::revocations`], and decides for itself. Each call is
    /// delivered; it costs one write.
    ///
    /// To take the lock away without the holder's consent, delete its znode: the first of
    /// [`Lock::contenders`].
    ///
    /// # Errors
    /// As [`Session::set`].
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire().wait()?;
    /// let revocations = guard.revocations().wait()?;
    /// assert_eq!(lock.revoke().wait()?, 1);
    /// // The holder may now release the lock, or not.
    /// assert!(revocations.wait_asked().wait()?);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, "Recoverable Shared Locks"; Curator, `Revoker`.
    pub fn revoke(&self) -> Pending<'_, usize> {
        self.session().steps("revoke", self.path(), self.revoking())
    }

    async fn revoking(&self) -> Result<usize> {
        revocation::ask(&self.contenders, |listed| listed.len().min(1)).await
    }
}

/// A held [`Lock`], or a shared hold of a [`ReadWriteLock`](crate::recipes::ReadWriteLock): [`Held`], with requests to
/// release. Dropping it releases the lock, without waiting for the reply.
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = cluster.node(0).session().lock("/lock")?;
/// let first = lock.acquire().wait()?.fencing_token();
/// let second = lock.acquire().wait()?.fencing_token();
/// assert!(second > first);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct LockGuard {
    pub(super) held: Held,
}

guard!(LockGuard, held: Held);

impl LockGuard {
    /// Returns a receiver of requests to release the lock, made by [`Lock::revoke`]. A request made before this call
    /// is included. Waits until the session's earlier calls have been answered.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if the lock is lost; the errors of a session that is
    /// over; [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire().wait()?;
    /// let revocations = guard.revocations().wait()?;
    /// lock.revoke().wait()?;
    /// assert!(revocations.wait_asked().wait()?);
    /// guard.release().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn revocations(&self) -> Pending<'_, Revocations> {
        self.session().steps(
            "revocations",
            self.path(),
            Revocations::of(self.session(), self.path()),
        )
    }
}
