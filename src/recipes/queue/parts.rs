//! Items that are put and taken in one write with other operations.

use super::{NewItem, Queue};
use crate::api::part::Part;
use crate::recipes::parents::create_unless_there;
use crate::runtime::pending::Pending;
#[cfg(doc)]
use crate::types::error::Error;
use crate::types::error::Result;

impl Queue {
    /// Creates the queue's znodes, which then stay when the queue is unused: writes with [`Queue::put_part`] need
    /// them. Does nothing if they are there.
    ///
    /// # Errors
    /// As [`Session::create`](crate::Session::create).
    pub fn prepare(&self) -> Pending<'_, ()> {
        self.session().steps("prepare", self.path(), self.preparing())
    }

    pub(super) async fn preparing(&self) -> Result<()> {
        // A container with a child stays.
        create_unless_there(&self.session, &self.ids()).await
    }

    /// An item that is put as a part of another write: see [`Part`]. [`Queue::prepare`] must have been called once,
    /// by anybody. The write does not wait for room: if the queue is full, it fails with [`Error::QuotaExceeded`] within
    /// [`Error::Multi`].
    ///
    /// ```
    /// use quorate::{CreateMode, recipes::Queue};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.prepare().wait()?;
    /// session.create("/stock", b"3", CreateMode::Persistent).wait()?;
    /// let sold = session.transact(|txn| {
    ///     let left = txn.get("/stock")?.0[0] - b'0';
    ///     if left > 0 {
    ///         txn.set("/stock", [b'0' + left - 1]);
    ///         txn.with(&queue.put_part("ship one"));
    ///     }
    ///     Ok(left > 0)
    /// }).wait()?;
    /// assert!(sold.value);
    /// assert_eq!(queue.len().wait()?, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn put_part(&self, item: impl Into<NewItem>) -> Part {
        Part::of(self.put_multi(&[item.into()]))
    }

    /// The first item, popped as a part of another write: see [`Part`]. Its data is in
    /// [`OpResult::Taken`](crate::multi::OpResult::Taken). Within [`Error::Multi`], the write fails with [`Error::NoNode`] if
    /// there is no item, and with [`Error::TooLarge`] if the items that it pops have more than 3 MiB together.
    ///
    /// ```
    /// use quorate::multi::OpResult;
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let (inbox, archive) = (Queue::new(&session, "/inbox")?, Queue::new(&session, "/archive")?);
    /// inbox.put("letter").wait()?;
    /// archive.prepare().wait()?;
    /// let moved = session.multi().with(&inbox.pop_part()).with(&archive.put_part("a letter"));
    /// assert!(matches!(&moved.commit().wait()?[0], OpResult::Taken { data, .. } if data == b"letter"));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn pop_part(&self) -> Part {
        Part::of(Ok(self.session.multi().take_item(&self.path, false)))
    }
}
