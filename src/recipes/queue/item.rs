//! An item that a consumer has, and is to be done with.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::take::Found;
use crate::api::multi::Fence;
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::creating::discard_when_created;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::{LockLost, blocking};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::watch::WatchEvent;
use crate::types::znode::{Condition, OpResult};

/// A claim that is being made. Dropped before it is known, it is given up.
pub(super) struct Claiming {
    session: Session,
    claiming: Option<Pending<Vec<OpResult>>>,
}

impl Claiming {
    pub(super) fn new(session: &Session, claiming: Pending<Vec<OpResult>>) -> Claiming {
        Claiming { session: session.clone(), claiming: Some(claiming) }
    }

    pub(super) async fn claimed(&mut self) -> Result<Vec<OpResult>> {
        match &mut self.claiming {
            Some(claiming) => {
                // Polled in place, so that a drop in between finds it.
                let claimed = claiming.await;
                self.claiming = None;
                claimed
            }
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if let Some(claiming) = self.claiming.take() {
            discard_when_created(&self.session, claiming);
        }
    }
}

/// An item of a [`Queue`](super::Queue) that this consumer has, until it is [`Item::done`],
/// dropped, or the session is over. In the latter cases the item is in its old place again, for
/// anybody.
///
/// ```
/// use quorate::recipes::Queue;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let queue = Queue::new(&session, "/jobs")?;
/// queue.put("report")?;
/// let item = queue.take()?;
/// assert_eq!(item.data(), b"report");
/// assert!(item.lost().is_empty(), "it is surely held");
/// drop(item); // Given back.
/// let item = queue.take()?;
/// item.done()?;
/// assert!(queue.is_empty()?);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, the item is given back"]
pub struct Item {
    item: String,
    claim: OwnedEphemeral,
    /// Of the claim.
    watch: Watch,
    data: Arc<[u8]>,
    priority: i32,
    id: Option<String>,
}

impl Item {
    /// What is claimed is this consumer's: from here on, its loss is told.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is lost already.
    pub(super) async fn new(item: String, claim: OwnedEphemeral, found: Found) -> Result<Item> {
        let calls = claim.session().nonblocking();
        // It has no children: this tells of its deletion alone.
        let (_, watch) = calls.children_and_watch(claim.path()).await?;
        claim.watch_by(&watch).await?;
        let (priority, id) = (found.name.priority, found.name.id());
        Ok(Item { item, claim, watch, data: found.data, priority, id })
    }

    /// What was put.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The priority with which it was put.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// The id with which it was put, if it has one.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The path of the item's znode. No other item of the queue has it, while the queue's znodes are
    /// left to it.
    pub fn path(&self) -> &str {
        &self.item
    }

    /// A number that is larger for each later consumer of the item: the zxid that made the claim. A
    /// resource that refuses numbers smaller than the largest it has seen for an item is safe from
    /// consumers that do not know yet that they have lost it.
    pub fn fencing_token(&self) -> u64 {
        self.claim.czxid()
    }

    /// That this consumer has the item, as a condition of what it writes.
    pub fn fence(&self) -> Fence {
        Fence::of(self.claim.session(), self.claim.path(), self.claim.czxid())
    }

    /// Whether this consumer surely has the item at this moment: the session is alive, and this
    /// replica knows of no deletion of the claim. Does not block. Once false, it stays so.
    pub fn is_held(&self) -> bool {
        self.claim.exists()
    }

    /// A channel on which the loss shows: it gets a message, or closes. For `select!`;
    /// [`Item::is_held`] then tells the truth.
    pub fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until it is lost: until [`Item::is_held`] is false.
    pub fn wait_lost(&self) -> LockLost {
        blocking::until_lost(self.claim.session(), self.lost_async())
    }

    /// Waits until it is lost, without blocking the thread. Any number of tasks may wait.
    pub async fn lost_async(&self) -> LockLost {
        self.claim.lost_async(&self.watch).await
    }

    /// The item is done with, and leaves the queue; waits until that is so.
    ///
    /// # Errors
    /// [`Error::NoNode`] or [`Error::Unmet`] if the item or its claim was deleted by somebody;
    /// the errors of a session that is over, and then the item is for others again; those of
    /// [`Session::create`], and then it is given back. After [`Error::Timeout`] this goes on, and it
    /// is not known whether the item will come again.
    pub fn done(self) -> Result<()> {
        let done = self.claim.session().settle("done", &self.item, self.finish());
        self.finished(done)
    }

    /// As [`Item::done`], without blocking the thread. What is asked for is done though the future
    /// is dropped after its first poll.
    ///
    /// # Errors
    /// As [`Item::done`], but for [`Error::Timeout`].
    pub async fn done_async(self) -> Result<()> {
        let done = self.finish().await;
        self.finished(done)
    }

    fn finish(&self) -> Pending<Vec<OpResult>> {
        let multi = self.claim.session().multi();
        let multi = multi.require(self.claim.path(), Condition::Czxid(self.claim.czxid()));
        multi.delete(self.claim.path()).delete(&self.item).submit()
    }

    /// Gives it back if it could not be finished. Behind a `done` that is under way, that finds
    /// nothing to do.
    fn finished(self, done: Result<Vec<OpResult>>) -> Result<()> {
        match done {
            Ok(_) => {
                self.claim.forget();
                Ok(())
            }
            // The error of the operation that failed.
            Err(Error::Multi { error, .. }) => Err(*error),
            Err(error) => Err(error),
        }
    }
}
