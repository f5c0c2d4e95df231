//! ZooKeeper's barrier recipe: waiters are blocked until a znode is deleted.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Barriers; Curator, `DistributedBarrier`.

use crate::api::session::Session;
use crate::recipes::errors::if_exists;
use crate::recipes::parents::create_unless_there;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;

/// A barrier for the whole cluster: while it is set, everybody who waits at it is blocked.
///
/// It belongs to no session: if the process that set it dies, it stays until somebody removes it.
///
/// Setting and removing it cost one write each, waiting none. Removing it wakes all waiters.
///
/// ```
/// use std::time::Duration;
/// use quorate::{recipes::Barrier, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let barrier = Barrier::new(&cluster.node(0).session(), "/maintenance")?;
/// barrier.set().wait()?;
/// let worker = Barrier::new(&cluster.node(1).session(), "/maintenance")?;
/// assert!(worker.wait_removed().timeout(Duration::from_millis(10)).wait().is_err());
/// barrier.remove().wait()?;
/// worker.wait_removed().wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    session: Session,
    path: String,
}

impl Barrier {
    /// Returns the barrier at this path, which is set if the znode exists. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<Barrier> {
        path::validate(path)?;
        Ok(Barrier { session: session.for_recipe(), path: path.to_owned() })
    }

    fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether the barrier is set, as this replica has it.
    ///
    /// # Errors
    /// The errors of a session that is over.
    pub fn is_set(&self) -> Pending<'_, bool> {
        self.session().steps("is_set", self.path(), self.reading())
    }

    async fn reading(&self) -> Result<bool> {
        Ok(self.session.exists(&self.path).await?.is_some())
    }

    /// Sets the barrier. Every wait that starts after this has returned blocks. Not an error if the barrier is
    /// already set.
    ///
    /// # Errors
    /// The errors of [`Session::create`].
    pub fn set(&self) -> Pending<'_, ()> {
        self.session().steps("set", self.path(), create_unless_there(&self.session, &self.path))
    }

    /// Removes the barrier, and wakes all waiters. Not an error if the barrier is not set.
    ///
    /// # Errors
    /// The errors of [`Session::delete`].
    pub fn remove(&self) -> Pending<'_, ()> {
        self.session().steps("remove", self.path(), self.removing())
    }

    async fn removing(&self) -> Result<()> {
        if_exists(self.session.delete(&self.path).await).map(drop)
    }

    /// Waits until the barrier is not set, for as long as the session lives. At some moment since the call the
    /// barrier was not set; it may be set again when this returns.
    ///
    /// A barrier that anybody set before the call is always noticed: this first brings the replica
    /// up to date, which needs a quorum.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::Busy`](crate::Error::Busy).
    pub fn wait_removed(&self) -> Pending<'_, ()> {
        self.session().steps("wait_removed", self.path(), self.waiting()).unlimited()
    }

    async fn waiting(&self) -> Result<()> {
        self.session.sync().await?;
        loop {
            let (set, watch) = self.session.exists_and_watch(&self.path).await?;
            if set.is_none() {
                return Ok(());
            }
            // The barrier was removed or changed, or this session is over: look again.
            watch.next().await;
        }
    }
}
