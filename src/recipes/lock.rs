//! ZooKeeper's lock recipe: the first contender holds the lock, and each other contender waits for
//! the one before it.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Locks; Curator, `InterProcessMutex`.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::multi::{Fence, Multi};
use crate::api::session::Session;
use crate::recipes::contenders::{Contender, Contenders, Hold, LOCK, Naming, predecessor};
use crate::recipes::revocation::{self, Revocations};
use crate::recipes::{blocking, delay};
use crate::types::error::{Error, Result};
use crate::types::watch::WatchEvent;
use crate::types::znode::{SessionId, TTL_MAX};

/// A lock with one holder at a time in the whole cluster.
///
/// It is fair: contenders get it in the order of their requests. It is not reentrant: a holder that
/// acquires it again waits for itself. Two acquisitions are two contenders, even within one
/// session, so the lock also excludes the threads of one process from each other.
///
/// The lock belongs to the session, and is lost with it. [`LockGuard::is_held`] turns false before
/// the cluster can give the lock to another holder, if the rates of the clocks differ by less than
/// a tenth and no clock stops: see [`Session::is_alive`] for clocks that do. No lock can stop a
/// process that stalls after this check; use [`LockGuard::fenced`] or the
/// [`LockGuard::fencing_token`] against that.
///
/// An acquisition costs two writes (a znode created and deleted).
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
    contenders: Contenders,
    delay: Option<Duration>,
}

impl Session {
    /// Returns the lock at this path: see [`Lock`]. Sends nothing. The path and its parents are
    /// created as containers when the lock is acquired and they are missing, and deleted after they
    /// were unused for a while.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = session.lock("/lock")?.acquire()?;
    /// assert!(guard.is_held());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn lock(&self, path: &str) -> Result<Lock> {
        Lock::new(self, path)
    }
}

impl Lock {
    pub(crate) fn new(session: &Session, path: &str) -> Result<Lock> {
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
    /// log's time ([`guide::time`](crate::guide::time)), which runs within a tenth of real time; it ends
    /// early if a node whose wall clock is ahead becomes the leader. Acquisitions through this handle cost
    /// one more write.
    ///
    /// If a holder closes its session without a release, that is a loss, too.
    ///
    /// # Errors
    /// [`Error::InvalidTtl`](crate::Error::InvalidTtl) if it is not between 1 ms and [`TTL_MAX`].
    ///
    /// Source: Burrows, "The Chubby lock service for loosely-coupled distributed systems", 2.4.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// let guard = session.lock("/lock")?.with_lock_delay(Duration::from_secs(60))?.acquire()?;
    /// cluster.expire(&session);
    /// let next = cluster.node(1).session().lock("/lock")?;
    /// assert!(next.try_acquire()?.is_none(), "nobody holds it, and nobody may yet");
    /// cluster.advance(Duration::from_secs(90));
    /// assert!(next.try_acquire()?.is_some());
    /// # drop(guard);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn with_lock_delay(mut self, delay: Duration) -> Result<Lock> {
        if delay.as_millis() == 0 || delay > TTL_MAX {
            return Err(Error::InvalidTtl { path: self.path().to_owned(), ttl: delay });
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
    /// let guard = lock.acquire()?;
    /// // The names of others count, too.
    /// assert!(session.lock("/lock")?.try_acquire()?.is_none());
    /// # drop(guard);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> Lock {
        self.contenders = self.contenders.with_naming(naming);
        self
    }

    /// The lock's path.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// assert_eq!(lock.path(), "/lock");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn path(&self) -> &str {
        self.contenders.path()
    }

    /// Acquires the lock. Blocks until it is held, for as long as the session lives.
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
    /// let guard = lock.acquire()?;
    /// // Does nothing if the lock was lost in between.
    /// guard.fenced().create("/a", b"", quorate::CreateMode::Persistent).commit()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn acquire(&self) -> Result<LockGuard> {
        blocking::forever(self.session(), self.acquire_async())
    }

    /// As [`Lock::acquire`], at most for `timeout`. Returns `None` if the lock is not held by then;
    /// the place in the queue is given up.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// match lock.acquire_timeout(Duration::from_secs(5))? {
    ///     Some(guard) => println!("token {}", guard.fencing_token()),
    ///     None => println!("another one has held it all the time"),
    /// }
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        blocking::within(self.session(), timeout, self.acquire_async())
    }

    /// Acquires the lock if nobody holds it or waits for it; returns `None` otherwise. Blocks for
    /// the request timeout at most.
    ///
    /// # Errors
    /// As [`Lock::acquire`], and [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let held = lock.try_acquire()?;
    /// assert!(held.is_some() && lock.try_acquire()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let taking = self.try_acquire_async();
        blocking::request(self.session(), "try_acquire", self.path(), taking)
    }

    /// As [`Lock::try_acquire`], without blocking the thread and without a time limit.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// ```
    /// # async fn example(lock: &quorate::Lock) -> quorate::Result<()> {
    /// if let Some(guard) = lock.try_acquire_async().await? {
    ///     println!("token {}", guard.fencing_token());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire_async(&self) -> Result<Option<LockGuard>> {
        let contender = self.contenders.join(&LOCK, b"").await?;
        match self.contenders.blocker(&contender, predecessor).await? {
            None if delay::is_over(&self.contenders).await? => self.hold(contender).await.map(Some),
            _ => Ok(None),
        }
    }

    /// As [`Lock::acquire`], without blocking the thread. Dropping the future gives up the place in
    /// the queue.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// ```
    /// # async fn example(lock: &quorate::Lock) -> quorate::Result<()> {
    /// let guard = lock.acquire_async().await?;
    /// // ... the work ...
    /// guard.release_async().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_async(&self) -> Result<LockGuard> {
        let contender = self.contenders.join(&LOCK, b"").await?;
        self.contenders.wait(&contender, predecessor).await?;
        delay::wait(&self.contenders).await?;
        self.hold(contender).await
    }

    async fn hold(&self, mut contender: Contender) -> Result<LockGuard> {
        if let Some(delay) = self.delay {
            delay::mark(&self.contenders, &mut contender, delay).await?;
        }
        Ok(LockGuard { hold: contender.hold().await? })
    }

    /// Returns the paths of the holder and of the waiters in order, as this replica has them.
    /// Blocks as [`Session::get`].
    ///
    /// # Errors
    /// The errors of a session that is over.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire()?;
    /// // The first is the holder.
    /// assert_eq!(lock.contenders()?, [guard.path()]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn contenders(&self) -> Result<Vec<String>> {
        Ok(self.contenders.list_now()?.into_iter().map(|contender| contender.path).collect())
    }

    /// As [`Lock::contenders`], without blocking the thread.
    ///
    /// ```
    /// # async fn example(lock: &quorate::Lock) -> quorate::Result<()> {
    /// println!("{} hold or wait", lock.contenders_async().await?.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn contenders_async(&self) -> Result<Vec<String>> {
        let contenders = self.contenders.list_with_sessions().await?;
        Ok(contenders.into_iter().map(|contender| contender.path).collect())
    }

    /// As [`Lock::contenders`], with their sessions: see [`LockContender`].
    ///
    /// # Errors
    /// As [`Lock::contenders`].
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire()?;
    /// assert_eq!(lock.contenders_with_sessions()?[0].session, Some(session.id()));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn contenders_with_sessions(&self) -> Result<Vec<LockContender>> {
        self.contenders.list_with_sessions_now()
    }

    /// As [`Lock::contenders_with_sessions`], without blocking the thread.
    ///
    /// ```
    /// # async fn example(lock: &quorate::Lock) -> quorate::Result<()> {
    /// for contender in lock.contenders_with_sessions_async().await? {
    ///     println!("{contender:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn contenders_with_sessions_async(&self) -> Result<Vec<LockContender>> {
        self.contenders.list_with_sessions().await
    }

    /// Asks the holder to release the lock, and returns how many holders were asked: 1, or 0 if
    /// there is none. The holder receives the request if it has called [`LockGuard::revocations`],
    /// and decides for itself. Each call is delivered; it costs one write. Blocks as
    /// [`Session::set`].
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
    /// let guard = lock.acquire()?;
    /// let revocations = guard.revocations()?;
    /// assert_eq!(lock.revoke()?, 1);
    /// // The holder may now release the lock, or not.
    /// assert!(revocations.wait());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, "Recoverable Shared Locks"; Curator, `Revoker`.
    pub fn revoke(&self) -> Result<usize> {
        blocking::request(self.session(), "revoke", self.path(), self.revoke_async())
    }

    /// As [`Lock::revoke`], without blocking the thread.
    ///
    /// # Errors
    /// As [`Lock::revoke`].
    ///
    /// ```
    /// # async fn example(lock: &quorate::Lock) -> quorate::Result<()> {
    /// println!("{} were asked", lock.revoke_async().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revoke_async(&self) -> Result<usize> {
        revocation::ask(&self.contenders, |listed| listed.len().min(1)).await
    }
}

/// A holder of a lock, or a waiter.
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let lock = session.lock("/lock")?;
/// let guard = lock.acquire()?;
/// let contenders = lock.contenders_with_sessions()?;
/// assert_eq!(contenders[0].path, guard.path());
/// assert_eq!(contenders[0].session, Some(session.id()));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockContender {
    /// The path of its znode.
    pub path: String,
    /// What it holds or waits for: `lock`, `read`, `write` or `lease`.
    pub kind: &'static str,
    /// Its session; `None` if somebody has created the znode by hand.
    pub session: Option<SessionId>,
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
    /// The holder's znode was deleted, by somebody or together with its session.
    Deleted,
}

/// A held [`Lock`]. Dropping it releases the lock, without waiting for the reply.
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
    pub(super) hold: Hold,
}

impl LockGuard {
    /// A number that increases with each later holder of the lock: the zxid that created the
    /// holder's znode. A resource that refuses numbers smaller than the largest that it has seen is
    /// safe from holders that have not yet noticed the loss of the lock.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let first = lock.acquire()?.fencing_token();
    /// assert!(lock.acquire()?.fencing_token() > first);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fencing_token(&self) -> u64 {
        self.hold.token
    }

    /// The path of the holder's znode.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire()?;
    /// assert!(session.exists(guard.path())?.is_some());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn path(&self) -> &str {
        self.hold.path()
    }

    /// Starts a [`Multi`] that has effect only if the lock is still held. Its first operation is
    /// the check, which every replica makes as it applies the write. So the write has no effect
    /// once the lock is lost, however long this process stalls or the write is delayed. This
    /// protects data in the tree; for other resources use [`LockGuard::fencing_token`].
    ///
    /// The check is operation 0: [`Error::Multi`](crate::Error::Multi) with that index means that
    /// the lock was lost and nothing was written. If the session is over, the multi fails with the
    /// session's error, and nothing was written either. The list of results starts with that of the
    /// check.
    ///
    /// ```
    /// use quorate::{CreateMode, Error, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// let guard = session.lock("/lock")?.acquire()?;
    /// guard.fenced().create("/report", b"1", CreateMode::Persistent).commit()?;
    /// cluster.node(1).session().delete(guard.path())?;
    /// let late = guard.fenced().set("/report", b"2").commit();
    /// assert!(matches!(late, Err(Error::Multi { index: 0, .. })));
    /// assert_eq!(&session.get("/report")?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fenced(&self) -> Multi<'_> {
        self.hold.session().multi().fence(&self.fence())
    }

    /// The check of [`LockGuard::fenced`], for any [`Multi`] or
    /// [`Transaction`](crate::Transaction), also of another session.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire()?;
    /// let fence = guard.fence();
    /// session.multi().fence(&fence).create("/a", b"", CreateMode::Persistent).commit()?;
    /// guard.release()?;
    /// assert!(session.multi().fence(&fence).delete("/a").commit().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fence(&self) -> Fence {
        self.hold.fence()
    }

    /// Returns a receiver of requests to release the lock, made by [`Lock::revoke`]. A request made
    /// before this call is included. Blocks until the session's earlier calls have been answered.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if the lock is lost; the errors of a session that is
    /// over; [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire()?;
    /// let revocations = guard.revocations()?;
    /// lock.revoke()?;
    /// assert!(revocations.wait());
    /// guard.release()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn revocations(&self) -> Result<Revocations> {
        let session = self.hold.session();
        blocking::request(session, "revocations", self.path(), self.revocations_async())
    }

    /// As [`LockGuard::revocations`], without blocking the thread.
    ///
    /// # Errors
    /// As [`LockGuard::revocations`].
    ///
    /// ```
    /// # async fn example(guard: &quorate::LockGuard) -> quorate::Result<()> {
    /// let revocations = guard.revocations_async().await?;
    /// if revocations.next().await {
    ///     println!("somebody asks for the lock");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revocations_async(&self) -> Result<Revocations> {
        Revocations::of(self.hold.session(), self.path()).await
    }

    /// Whether the lock is held at this moment: the session is certainly alive, and this replica
    /// knows of no deletion of the holder's znode. Does not block. Once false, it stays false.
    ///
    /// Deleting the znode of a living holder releases its lock; the holder notices that when its
    /// replica applies the deletion.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire()?;
    /// assert!(guard.is_held());
    /// session.delete(guard.path())?;
    /// assert!(!guard.is_held());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// A channel that reports the loss of the lock: it gets a message, or closes. For `select!`;
    /// call [`LockGuard::is_held`] after that.
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
        self.hold.lost()
    }

    /// Blocks until the lock is lost, without a time limit, and returns the reason.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let guard = lock.acquire()?;
    /// session.delete(guard.path())?;
    /// assert_eq!(guard.wait_lost(), quorate::LockLost::Deleted);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn wait_lost(&self) -> LockLost {
        self.hold.wait_lost()
    }

    /// Waits until the lock is lost, without blocking the thread. Any number of tasks may wait, and all are
    /// woken. Dropping the future loses nothing.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let guard = session.lock("/lock")?.acquire_async().await?;
    /// println!("lost: {:?}", guard.lost_async().await);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost_async(&self) -> LockLost {
        self.hold.lost_async().await
    }

    /// Releases the lock, and blocks until that is done, for the request timeout at most.
    ///
    /// # Errors
    /// As [`Session::delete`], except [`Error::Busy`](crate::Error::Busy); not an error if the lock
    /// was already lost. After [`Error::Timeout`](crate::Error::Timeout) the release continues.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// lock.acquire()?.release()?;
    /// assert!(lock.try_acquire()?.is_some());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn release(self) -> Result<()> {
        self.hold.release()
    }

    /// As [`LockGuard::release`], without blocking the thread and without a time limit. If the future is
    /// dropped, polled or not, the release continues.
    ///
    /// # Errors
    /// As [`LockGuard::release`], except [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let guard = session.lock("/lock")?.acquire_async().await?;
    /// // ... the protected work, while `guard.is_held()` ...
    /// guard.release_async().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_async(self) -> Result<()> {
        self.hold.release_async().await
    }
}
