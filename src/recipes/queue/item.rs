//! An item taken by a consumer, and its end.

use crate::api::multi::Multi;
use crate::api::part::Part;
use crate::recipes::errors::inner;
use crate::recipes::held::{Held, guard};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;
use crate::types::queue::ItemName;
use crate::types::znode::OpResult;

/// An item of a [`Queue`](super::Queue) that this consumer has, until it calls [`Item::done`],
/// drops the item, or the session is over. In the last two cases the item is in its old place
/// again, for any consumer. It dereferences to [`Held`]: the claim of this consumer.
///
/// ```
/// use quorate::recipes::Queue;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let queue = Queue::new(&session, "/jobs")?;
/// queue.put("report").wait()?;
/// let item = queue.take().wait()?;
/// assert_eq!(item.data(), b"report");
/// assert!(item.lost().is_empty(), "it is surely held");
/// drop(item); // Given back.
/// let item = queue.take().wait()?;
/// item.done().wait()?;
/// assert_eq!(queue.len().wait()?, 0);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, the item is given back"]
pub struct Item {
    item: String,
    claim: Held,
    data: Vec<u8>,
    priority: i32,
    id: Option<String>,
}

guard!(Item, claim: Held);

impl Item {
    /// Makes an item from a claim. From here on, a loss is reported.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if it is already lost.
    pub(super) async fn new(item: String, data: Vec<u8>, claim: OwnedEphemeral) -> Result<Item> {
        let claim = Held::new(claim).await?;
        let name = ItemName::parse(path::name(&item));
        let (priority, id) = name.map_or((0, None), |name| (name.priority, name.id()));
        Ok(Item { item, claim, data, priority, id })
    }

    /// The item's data.
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

    /// The path of the item's znode, not that of the claim, which [`Held::path`] is. No other item of the queue ever
    /// has the same path, unless other programs write below the queue's znodes.
    pub fn path(&self) -> &str {
        &self.item
    }

    /// Finishes the item: removes it from the queue.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) or [`Error::Unmet`](crate::Error::Unmet) if somebody
    /// deleted the item or its claim; the errors of a session that is over, after which others can
    /// take the item again; the errors of [`Session::create`](crate::Session::create), after which
    /// the item is given back. After [`Error::Timeout`](crate::Error::Timeout) the removal
    /// continues, and it is not known whether the item will be taken again.
    pub fn done(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("done", &path, self.finishing())
    }

    async fn finishing(self) -> Result<()> {
        let done = self.finish().commit().await;
        self.finished(done)
    }

    /// [`Item::done`] as a part of another write, which has no effect if the item was lost: see [`Part`]. Once that
    /// write is committed, drop the item: nothing is given back.
    ///
    /// ```
    /// use quorate::{CreateMode, recipes::Queue};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put("report").wait()?;
    /// let item = queue.take().wait()?;
    /// // The result is stored and the item is finished, or neither.
    /// let result = session.multi().create("/result", b"ok", CreateMode::Persistent);
    /// result.with(&item.done_part()).commit().wait()?;
    /// drop(item);
    /// assert_eq!(queue.len().wait()?, 0);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn done_part(&self) -> Part {
        Part::of(Ok(self.finish()))
    }

    fn finish(&self) -> Multi<'_> {
        self.claim.ephemeral.leave_in(self.session().multi()).delete(&self.item)
    }

    /// Gives the item back if it could not be finished. If a `done` in flight succeeds first, there
    /// is nothing left to give back.
    fn finished(self, done: Result<Vec<OpResult>>) -> Result<()> {
        inner(done)?;
        self.claim.ephemeral.forget();
        Ok(())
    }
}
