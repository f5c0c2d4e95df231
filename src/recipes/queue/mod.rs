//! Queues: items that producers put, each taken by one consumer.
//!
//! The cluster itself knows what a queue is: putting an item and taking the first one are operations, which cannot
//! conflict. `machine::queue` has the layout.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Queues and Priority Queues; Curator's queues; kazoo's
//! `LockingQueue`.

mod item;
mod new_item;
mod parts;
mod put;
mod table;
mod take;

use crate::api::snapshot::Snapshot;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::api::session::Session;
use crate::recipes::contenders::{Contenders, PUTTER, TAKER};
use crate::recipes::errors::{children_or_none, unless_overtaken};
use crate::runtime::pending::Pending;
#[cfg(doc)]
use crate::types::error::Error;
use crate::types::error::Result;
use crate::types::path;
use crate::types::queue::{CLAIMS, COUNTED, DELAYED, ITEMS, ItemName, TAKEN, split_due};
use crate::types::znode::Condition;

pub use item::Item;
pub use new_item::NewItem;
pub(super) use table::{QueueParts, queue_of};
use take::{Lease, Removal};

/// A queue that all instances put items into and take items from.
///
/// **Order.** Items are taken by priority, and within one priority in the order in which they were
/// put: whoever takes an item takes the first one that is there at that moment. (A consumer whose replica shows
/// none waits, or returns without one.) An item that is given back has its old place.
///
/// **Two ways of taking.** [`Queue::take`] returns an [`Item`] under a lease of the consumer's
/// session: the item leaves the queue when the consumer calls [`Item::done`], and can be taken
/// again if the consumer drops it or dies: *at least once*. [`Queue::pop`] deletes an item and
/// returns its data: *at most once*, since the item is lost if its consumer dies after that. Both
/// may be used on one queue. [`Held::is_held`](crate::recipes::Held::is_held) is never true for two consumers of an item at the
/// same time.
///
/// **Waiting.** Consumers that find no item wait in order, and only the first of them watches the
/// items: an item that is put wakes one consumer. If the first one dies, the others continue when
/// its session has ended. A consumer that finds an item at once takes it, even if others wait.
///
/// **A maximum** ([`Queue::max`]) is enforced exactly among all handles that have one.
///
/// The queue's znodes are created as needed, as containers, and deleted when they were unused for a
/// while.
///
/// An item costs one write to put, one to take and one to finish, or one to pop, however long the queue is and
/// however many consumers it has: to put an item and to take the first one are operations of the cluster, and two
/// consumers never go for the same item. Waiting, for an
/// item or for room below a maximum, costs one more write.
///
/// ```
/// use quorate::recipes::Queue;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let producer = Queue::new(&cluster.node(0).session(), "/jobs")?.max(100);
/// producer.put("resize 17").wait()?;
/// let consumer = Queue::new(&cluster.node(1).session(), "/jobs")?;
/// let item = consumer.take().wait()?;
/// assert_eq!(item.data(), b"resize 17");
/// item.done().wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Queue {
    session: Session,
    path: String,
    takers: Contenders,
    putters: Contenders,
    max: Option<usize>,
}

impl Queue {
    fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the queue at this path. Sends nothing; znodes are created when they are needed.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"one").wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn new(session: &Session, path: &str) -> Result<Queue> {
        path::validate(path)?;
        let below = |name| path::join(path, name);
        Ok(Queue {
            session: session.for_recipe(),
            path: path.to_owned(),
            takers: Contenders::new(session, &below("takers"), &[&TAKER])?,
            putters: Contenders::new(session, &below("putters"), &[&PUTTER])?,
            max: None,
        })
    }

    /// Returns the same queue with a maximum: this handle puts nothing if the queue would then have
    /// more than `items` items. Items that a consumer has and items that are not due count, too.
    ///
    /// The maximum is exact among all handles that have one. A handle without a maximum does not
    /// check, and may exceed it.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?.max(1);
    /// queue.try_put(b"one").wait()?;
    /// assert!(queue.try_put(b"two").wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn max(self, items: usize) -> Queue {
        Queue { max: Some(items), ..self }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the number of items, as this replica has them, including those that a consumer has and those that are
    /// not due. (An instance without a replica counts the parts of the queue one after the other: an item that is
    /// taken meanwhile may count twice, or not at all.)
    ///
    /// # Errors
    /// The errors of a session that is over.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"one").wait()?;
    /// assert_eq!(queue.len().wait()?, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn len(&self) -> Pending<'_, usize> {
        self.session().steps("len", self.path(), self.counting())
    }

    async fn counting(&self) -> Result<usize> {
        // A member reads one state.
        let snapshot = match self.session.has_replica() {
            true => Some(self.session.snapshot_of(&self.path).await?),
            false => None,
        };
        let mut count = 0;
        for part in COUNTED.map(|part| self.part(part)) {
            let stat = match &snapshot {
                Some(snapshot) => snapshot.exists(&part)?,
                None => self.session.exists(&part).await?,
            };
            count += stat.map_or(0, |stat| stat.num_children as usize);
        }
        Ok(count)
    }

    /// Returns the data of the item that would be taken now, as this replica has it. (A delayed item is ignored until
    /// another one was taken while it was due: only writes carry the cluster's time.)
    ///
    /// # Errors
    /// The errors of a session that is over.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"one").wait()?;
    /// assert_eq!(queue.peek().wait()?.as_deref(), Some(&b"one"[..]));
    /// assert_eq!(queue.len().wait()?, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn peek(&self) -> Pending<'_, Option<Vec<u8>>> {
        self.session.snapshot_of(&self.path).and_then(|shown| self.first_in(&shown))
    }

    fn first_in(&self, snapshot: &Snapshot) -> Result<Option<Vec<u8>>> {
        let names = |part| children_or_none(snapshot.children(&self.part(part)));
        let claimed = names(CLAIMS)?;
        let left = names(TAKEN)?.into_iter().filter(|name| !claimed.contains(name));
        let left = left.map(|name| (TAKEN, name));
        let items = names(ITEMS)?.into_iter().map(|name| (ITEMS, name));
        let first = items.chain(left).filter(|(_, name)| ItemName::parse(name).is_some());
        let first = first.min_by(|(_, one), (_, other)| one.cmp(other));
        let Some((part, name)) = first else { return Ok(None) };
        Ok(Some(snapshot.get(&path::join(&self.part(part), &name))?.0.to_vec()))
    }

    /// Puts an item. Waits until that is done, with a maximum also until there is room, for as long as the session
    /// lives.
    ///
    /// # Errors
    /// The errors of [`Session::create`], except [`Error::Timeout`]; [`Error::QuotaExceeded`] if
    /// the items can never fit.
    ///
    /// ```
    /// use quorate::recipes::{NewItem, Queue};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"later").wait()?;
    /// queue.put(NewItem::new(b"first").priority(-1)).wait()?;
    /// assert_eq!(queue.pop().wait()?, b"first");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn put(&self, item: impl Into<NewItem>) -> Pending<'_, ()> {
        self.put_all([item])
    }

    /// Puts an item if there is room.
    ///
    /// # Errors
    /// As [`Queue::put`]; [`Error::QuotaExceeded`] if the queue is full; [`Error::Timeout`], after
    /// which the item may have been put, or may still be.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.try_put(b"one").wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_put(&self, item: impl Into<NewItem>) -> Pending<'_, ()> {
        self.try_put_all([item])
    }

    /// Puts several items in one write, all or none, in this order: see [`Queue::put`]. Together
    /// they may have up to 1 MiB.
    ///
    /// # Errors
    /// As [`Queue::put`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// // Puts both in one write, or none.
    /// queue.put_all([b"one", b"two"]).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn put_all(&self, items: impl IntoIterator<Item = impl Into<NewItem>>) -> Pending<'_, ()> {
        let items: Vec<NewItem> = items.into_iter().map(Into::into).collect();
        let busy = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&busy);
        let putting = async move { self.put_when_room(&items, &busy).await };
        self.session().steps("put", self.path(), putting).unlimited().in_flight(flag)
    }

    /// As [`Queue::put_all`], if there is room for all: see [`Queue::try_put`].
    ///
    /// # Errors
    /// As [`Queue::try_put`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// let queue = queue.max(1);
    /// assert!(queue.try_put_all([b"one", b"two"]).wait().is_err());
    /// assert_eq!(queue.len().wait()?, 0);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_put_all(
        &self,
        items: impl IntoIterator<Item = impl Into<NewItem>>,
    ) -> Pending<'_, ()> {
        let items: Vec<NewItem> = items.into_iter().map(Into::into).collect();
        let putting = async move { self.put_now(&items, &AtomicBool::new(false)).await };
        self.session().steps("put", self.path(), putting)
    }

    /// Takes the first item, under a lease of this session. Waits until there is one, for as long as the session
    /// lives.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::NoNode`] if somebody has deleted this
    /// consumer's place in the order of waiters; [`Error::Busy`]; [`Error::System`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"one").wait()?;
    /// let item = queue.take().wait()?;
    /// assert_eq!(item.data(), b"one");
    /// // If this consumer dies before that, another one gets the item.
    /// item.done().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn take(&self) -> Pending<'_, Item> {
        self.session().steps("take", self.path(), self.take_when_there(&Lease)).unlimited()
    }

    /// Takes the first item if there is one; returns `None` otherwise.
    ///
    /// # Errors
    /// As [`Queue::take`]; [`Error::Timeout`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// assert!(queue.try_take().wait()?.is_none());
    /// queue.put(b"one").wait()?;
    /// queue.try_take().wait()?.unwrap().done().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_take(&self) -> Pending<'_, Option<Item>> {
        self.session().steps("try_take", self.path(), self.take_now(&Lease))
    }

    /// Deletes the first item and returns its data. Waits until there is one, for as long as the session lives.
    ///
    /// **If it is dropped while its deletion is in flight**, as in a `select!`, or given up then
    /// ([`Error::Timeout`]), its item is lost. [`Queue::take`] and [`Item::done`] lose none.
    ///
    /// # Errors
    /// As [`Queue::take`]. If the session ends and it is not known whether an item was deleted,
    /// [`Error::is_outcome_unknown`] is true.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"one").wait()?;
    /// assert_eq!(queue.pop().wait()?, b"one");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn pop(&self) -> Pending<'_, Vec<u8>> {
        let busy = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&busy);
        let popping = async move { self.take_when_there(&Removal(&busy)).await };
        self.session().steps("pop", self.path(), popping).unlimited().in_flight(flag)
    }

    /// Deletes the first item, if there is one, and returns its data; returns `None` otherwise.
    ///
    /// # Errors
    /// As [`Queue::pop`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// assert!(queue.try_pop().wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_pop(&self) -> Pending<'_, Option<Vec<u8>>> {
        let popping = async { self.take_now(&Removal(&AtomicBool::new(false))).await };
        self.session().steps("pop", self.path(), popping)
    }

    /// Removes all items with exactly this id that no consumer has, and returns their number. An item that is put
    /// during the call may stay.
    ///
    /// # Errors
    /// The errors of [`Session::create`]; after an error, some of the items may have been removed.
    ///
    /// ```
    /// use quorate::recipes::{NewItem, Queue};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(NewItem::new(b"one").id("order-7")).wait()?;
    /// assert_eq!(queue.remove("order-7").wait()?, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn remove<'a>(&'a self, id: &'a str) -> Pending<'a, usize> {
        self.session().steps("remove", self.path(), self.removing(id))
    }

    async fn removing(&self, id: &str) -> Result<usize> {
        let calls = &self.session.in_turn();
        let mut removed = 0;
        // Items move to `items` only, so those that do meanwhile are found there.
        for part in [DELAYED, TAKEN, ITEMS] {
            for name in children_or_none(calls.children(&self.part(part)).await)? {
                let item = split_due(&name).map_or(&*name, |(_, item)| item);
                if ItemName::parse(item).is_none_or(|item| !item.has_id(id)) {
                    continue;
                }
                let mut multi = self.session.multi();
                if part == TAKEN {
                    // A claim that has gone leaves its item there.
                    let claim = path::join(&self.part(CLAIMS), &name);
                    multi = multi.require(&claim, Condition::Absent);
                }
                let removing = multi.delete(&path::join(&self.part(part), &name)).commit();
                // `None`: a consumer has it, or it is due now.
                removed += usize::from(unless_overtaken(removing.await)?.is_some());
            }
        }
        Ok(removed)
    }
}
