//! Held permits of a semaphore.

use super::HOLDS;
use crate::recipes::Revocations;
use crate::recipes::held::{Held, guard};
use crate::runtime::pending::Pending;
use crate::types::error::Result;

/// Held permits of a [`Semaphore`](crate::recipes::Semaphore). They dereference to [`Held`]; dropping
/// them gives them back, without waiting for the reply.
///
/// ```
/// use quorate::recipes::Semaphore;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let semaphore = Semaphore::new(&session, "/uploads", 3)?;
/// let permits = semaphore.acquire_many(2).wait()?;
/// assert!(permits.is_held());
/// permits.release().wait()?;
/// assert!(semaphore.try_acquire_many(3).wait()?.is_some());
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

    /// Returns a receiver of requests to give the permits back, made by
    /// [`Semaphore::revoke_holder`](crate::recipes::Semaphore::revoke_holder). A request made before this call is
    /// included. Costs a write, unless others already wait behind this holder.
    ///
    /// ```
    /// use quorate::{recipes::Semaphore, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let semaphore = Semaphore::new(&cluster.node(0).session(), "/uploads", 2)?;
    /// let permits = semaphore.acquire().wait()?;
    /// let revocations = permits.revocations().wait()?;
    /// let other = Semaphore::new(&cluster.node(1).session(), "/uploads", 2)?;
    /// assert!(other.revoke_holder(permits.path()).wait()?);
    /// assert!(revocations.wait_asked().wait()?);
    /// permits.release().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if the permits are lost; the errors of a session that
    /// is over; [`Error::Timeout`](crate::Error::Timeout).
    pub fn revocations(&self) -> Pending<'_, Revocations> {
        self.session().steps("revocations", self.path(), self.receiving())
    }

    async fn receiving(&self) -> Result<Revocations> {
        // After this, only requests set the data of the znode.
        self.ephemeral.set_first(HOLDS).await?;
        Revocations::of(self.session(), self.path()).await
    }
}
