//! Held permits of a semaphore.

use super::HOLDS;
use crate::recipes::Revocations;
use crate::recipes::blocking::both_forms;
use crate::recipes::held::{Held, guard};
use crate::types::error::Result;

/// Held permits of a [`Semaphore`](crate::recipes::Semaphore). They dereference to [`Held`]; dropping
/// them gives them back, without waiting for the reply.
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
#[derive(Debug)]
pub struct Permits {
    pub(super) held: Held,
    pub(super) permits: u32,
}

guard!(Permits, held: Held);

impl Permits {
    /// The number of permits.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    both_forms! {
        /// Returns a receiver of requests to give the permits back, made by
        /// [`Semaphore::revoke_holder`](crate::recipes::Semaphore::revoke_holder). A request made before this
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
        pub fn revocations / revocations_async(&self) -> Result<Revocations> = request(self.receiving());
    }

    async fn receiving(&self) -> Result<Revocations> {
        // After this, only requests set the data of the znode.
        self.ephemeral.set_first(HOLDS).await?;
        Revocations::of(self.session(), self.path()).await
    }
}
