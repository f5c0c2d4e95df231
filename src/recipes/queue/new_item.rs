//! An item that is put, with its options.

use std::time::Duration;

#[cfg(doc)]
use super::Queue;
#[cfg(doc)]
use crate::types::error::Error;

/// An item for a [`Queue`]: its data and options. Bytes and strings convert into one without
/// options.
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::{NewItem, Queue};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let queue = Queue::new(&session, "/jobs")?;
/// queue.put("as usual").wait()?;
/// queue.put(NewItem::new("first").priority(-1)).wait()?;
/// queue.put(NewItem::new("tomorrow").delay(Duration::from_secs(86_400)).id("report")).wait()?;
/// assert_eq!(queue.remove("report").wait()?, 1);
/// assert_eq!(queue.pop().wait()?, b"first");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    pub(super) data: Vec<u8>,
    pub(super) priority: i32,
    pub(super) delay: Duration,
    pub(super) id: Option<String>,
    /// For how long no other item with this id is put.
    pub(super) unique: Option<Duration>,
}

impl NewItem {
    /// An item of priority 0, without delay and id.
    pub fn new(data: impl AsRef<[u8]>) -> NewItem {
        let data = data.as_ref().to_vec();
        NewItem { data, priority: 0, delay: Duration::ZERO, id: None, unique: None }
    }

    /// Items with lower numbers are taken first; those with equal numbers in the order in which
    /// they were put.
    #[must_use]
    pub fn priority(self, priority: i32) -> NewItem {
        NewItem { priority, ..self }
    }

    /// Nobody takes the item before this time has passed since it was put. The time is measured by the
    /// cluster's clock, the [log's time](crate::guide::limits#the-clusters-time), which never goes back. Rounded
    /// up to milliseconds. Once due, the item has the place that it would have without a delay.
    ///
    /// Putting an item with a delay of more than [`CreateMode::TTL_MAX`](crate::CreateMode::TTL_MAX),
    /// about 35 years, fails with [`Error::InvalidSetting`].
    #[must_use]
    pub fn delay(self, delay: Duration) -> NewItem {
        NewItem { delay, ..self }
    }

    /// An id for [`Queue::remove`]. Any string; several items may have the same id. It is part of
    /// the znode's name, in which each byte that is neither an ASCII letter nor a digit takes three
    /// bytes. If that makes the path longer than 4,096 bytes, putting the item fails with
    /// [`Error::InvalidPath`].
    #[must_use]
    pub fn id(self, id: impl Into<String>) -> NewItem {
        NewItem { id: Some(id.into()), ..self }
    }

    /// Gives the item an id, and makes the cluster refuse another item that asks for the same id in this way, for
    /// this long: putting it fails with [`Error::NodeExists`], whose path ends in the id, whether the first item is
    /// still in the queue or not. So a producer that does not know whether its item was put may put it again.
    ///
    /// The time is [the log's](crate::guide::limits#the-clusters-time), from 1 ms to
    /// [`CreateMode::TTL_MAX`](crate::CreateMode::TTL_MAX), and may be exceeded by a few seconds, after which the id is free. Each id takes a znode for that time, below the queue's
    /// `ids`; who deletes it frees the id at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::Error;
    /// use quorate::recipes::{NewItem, Queue};
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// let invoice = NewItem::new("invoice 17").unique("invoice-17", Duration::from_secs(3600));
    /// queue.put(invoice.clone()).wait()?;
    /// assert!(matches!(queue.put(invoice).wait(), Err(Error::NodeExists { .. })));
    /// assert_eq!(queue.len().wait()?, 1);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn unique(self, id: impl Into<String>, time: Duration) -> NewItem {
        NewItem { id: Some(id.into()), unique: Some(time), ..self }
    }
}

impl<T: AsRef<[u8]>> From<T> for NewItem {
    fn from(data: T) -> NewItem {
        NewItem::new(data)
    }
}
