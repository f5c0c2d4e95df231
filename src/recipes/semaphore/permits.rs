//! Held permits of a semaphore.

use std::fmt;

use crossbeam_channel::Receiver;

use super::HOLDS;
use crate::api::multi::{Fence, Multi};
use crate::recipes::contenders::Hold;
use crate::recipes::{LockLost, Revocations, blocking};
use crate::types::error::Result;
use crate::types::watch::WatchEvent;

/// Held permits of a [`Semaphore`](crate::recipes::Semaphore). Dropping them gives them back, without waiting
/// for the reply.
///
/// ```
/// use quorate::recipes::Semaphore;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let semaphore = Semaphore::new(&session, "/uploads", 3)?;
/// let permits = semaphore.acquire_many(2)?;
/// assert!(permits.is_held());
/// permits.release()?;
/// assert!(semaphore.try_acquire_many(3)?.is_some());
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Permits {
    pub(super) hold: Hold,
    pub(super) permits: u32,
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        f.debug_struct("Permits")
            .field("path", &path)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

impl Permits {
    /// The number of permits.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The path of the holder's znode.
    pub fn path(&self) -> &str {
        self.hold.path()
    }

    /// Whether the permits are held at this moment: see
    /// [`LockGuard::is_held`](crate::recipes::LockGuard::is_held).
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// A channel that reports the loss of the permits: see
    /// [`LockGuard::lost`](crate::recipes::LockGuard::lost).
    pub fn lost(&self) -> &Receiver<WatchEvent> {
        self.hold.lost()
    }

    /// Blocks until the permits are lost, without a time limit, and returns the reason.
    pub fn wait_lost(&self) -> LockLost {
        self.hold.wait_lost()
    }

    /// As [`Permits::wait_lost`], without blocking the thread. Any number of tasks may wait, and all are
    /// woken. Dropping the future loses nothing.
    ///
    /// ```
    /// # async fn example(permits: quorate::recipes::Permits) -> quorate::Result<()> {
    /// println!("lost: {:?}", permits.lost_async().await);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost_async(&self) -> LockLost {
        self.hold.lost_async().await
    }

    /// Starts a multi that has effect only if the permits are still held: see
    /// [`LockGuard::fenced`](crate::recipes::LockGuard::fenced).
    pub fn fenced(&self) -> Multi<'_> {
        self.hold.session().multi().fence(&self.fence())
    }

    /// The check of [`Permits::fenced`], for any multi or transaction.
    pub fn fence(&self) -> Fence {
        self.hold.fence()
    }

    /// Returns a receiver of requests to give the permits back, made by
    /// [`Semaphore::revoke_holder`](crate::recipes::Semaphore::revoke_holder), A request made before this
    /// call is included. Costs a write, unless others already wait behind this holder. Blocks for the request
    /// timeout at most.
    ///
    /// ```
    /// use quorate::{recipes::Semaphore, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let semaphore = Semaphore::new(&cluster.node(0).session(), "/uploads", 2)?;
    /// let permits = semaphore.acquire()?;
    /// let revocations = permits.revocations()?;
    /// let other = Semaphore::new(&cluster.node(1).session(), "/uploads", 2)?;
    /// assert!(other.revoke_holder(permits.path())?);
    /// assert!(revocations.wait());
    /// permits.release()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if the permits are lost; the errors of a session that
    /// is over; [`Error::Timeout`](crate::Error::Timeout).
    pub fn revocations(&self) -> Result<Revocations> {
        let session = self.hold.session();
        blocking::request(session, "revocations", self.path(), self.revocations_async())
    }

    /// As [`Permits::revocations`], without blocking the thread.
    ///
    /// # Errors
    /// As [`Permits::revocations`].
    ///
    /// ```
    /// # async fn example(permits: quorate::recipes::Permits) -> quorate::Result<()> {
    /// let revocations = permits.revocations_async().await?;
    /// if revocations.next().await {
    ///     println!("somebody asks for them");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revocations_async(&self) -> Result<Revocations> {
        // After this, only requests set the data of the znode.
        self.hold.set_first(HOLDS).await?;
        Revocations::of(self.hold.session(), self.path()).await
    }

    /// Gives the permits back, and blocks until that is done, for the request timeout at most.
    ///
    /// # Errors
    /// As [`LockGuard::release`](crate::recipes::LockGuard::release).
    pub fn release(self) -> Result<()> {
        self.hold.release()
    }

    /// As [`Permits::release`], without blocking the thread and without a time limit. If the future is
    /// dropped, polled or not, the release continues.
    ///
    /// # Errors
    /// As [`Permits::release`], except [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// ```
    /// # async fn example(permits: quorate::recipes::Permits) -> quorate::Result<()> {
    /// permits.release_async().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_async(self) -> Result<()> {
        self.hold.release_async().await
    }
}
