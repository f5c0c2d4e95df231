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

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::blocking;
use crate::recipes::blocking::both_forms;
use crate::recipes::contenders::{Contenders, PUTTER, TAKER};
use crate::recipes::errors::{children_or_none, unless_overtaken};
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
/// producer.put("resize 17")?;
/// let consumer = Queue::new(&cluster.node(1).session(), "/jobs")?;
/// let item = consumer.take()?;
/// assert_eq!(item.data(), b"resize 17");
/// item.done()?;
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
    /// queue.put(b"one")?;
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
    /// queue.try_put(b"one")?;
    /// assert!(queue.try_put(b"two").is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn max(self, items: usize) -> Queue {
        Queue { max: Some(items), ..self }
    }

    /// The queue's path.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// assert_eq!(queue.path(), "/jobs");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the number of items, as this replica has them, including those that a consumer has
    /// and those that are not due. Blocks as [`Session::get`]. (An instance without a replica counts the parts of
    /// the queue one after the other: an item that is taken meanwhile may count twice, or not at all.)
    ///
    /// # Errors
    /// The errors of a session that is over.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"one")?;
    /// assert_eq!(queue.len()?, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn len(&self) -> Result<usize> {
        // A member reads one state.
        let is_member = self.session.has_replica();
        let snapshot = is_member.then(|| self.session.snapshot_of(&self.path)).transpose()?;
        let mut count = 0;
        for part in COUNTED.map(|part| self.part(part)) {
            let stat = match &snapshot {
                Some(snapshot) => snapshot.exists(&part)?,
                None => self.session.exists(&part)?,
            };
            count += stat.map_or(0, |stat| stat.num_children as usize);
        }
        Ok(count)
    }

    /// Whether there are no items. As [`Queue::len`].
    ///
    /// # Errors
    /// As [`Queue::len`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// assert!(queue.is_empty()?);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns the data of the item that would be taken now, as this replica has it. Blocks as
    /// [`Session::get`]. (A delayed item is ignored until another one was taken while it was due: only
    /// writes carry the cluster's time.)
    ///
    /// # Errors
    /// The errors of a session that is over.
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// queue.put(b"one")?;
    /// assert_eq!(queue.peek()?.as_deref(), Some(&b"one"[..]));
    /// assert_eq!(queue.len()?, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn peek(&self) -> Result<Option<Vec<u8>>> {
        let snapshot = self.session.snapshot_of(&self.path)?;
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

    both_forms! {
        /// Puts an item. Blocks until that is done, with a maximum also until there is room, for as
        /// long as the session lives.
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
        /// queue.put(b"later")?;
        /// queue.put(NewItem::new(b"first").priority(-1))?;
        /// assert_eq!(queue.pop()?, b"first");
        /// # Ok::<(), quorate::Error>(())
        /// ```
        pub fn put / put_async(&self, item: impl Into<NewItem>) -> Result<()> = forever(self.putting(item));
    }

    async fn putting(&self, item: impl Into<NewItem>) -> Result<()> {
        self.put_when_room(&[item.into()], &AtomicBool::new(false)).await
    }

    /// As [`Queue::put`], at most for `timeout`. Returns `false` if there was no room by then.
    ///
    /// # Errors
    /// As [`Queue::put`]; [`Error::Timeout`] if the write was in flight by then: the item may have
    /// been put, or may still be.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// let queue = queue.max(1);
    /// queue.put(b"one")?;
    /// assert!(!queue.put_timeout(b"two", Duration::from_millis(10))?, "it is full");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn put_timeout(&self, item: impl Into<NewItem>, timeout: Duration) -> Result<bool> {
        let (items, busy) = ([item.into()], AtomicBool::new(false));
        let put = self.put_when_room(&items, &busy);
        let put = blocking::within(&self.session, timeout, put)?;
        Ok(self.in_time("put", timeout, put, &busy)?.is_some())
    }

    /// Puts an item if there is room. Blocks for the request timeout at most.
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
    /// queue.try_put(b"one")?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_put(&self, item: impl Into<NewItem>) -> Result<()> {
        self.try_put_all([item])
    }

    both_forms! {
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
        /// queue.put_all([b"one", b"two"])?;
        /// # Ok::<(), quorate::Error>(())
        /// ```
        pub fn put_all / put_all_async(&self, items: impl IntoIterator<Item = impl Into<NewItem>>) -> Result<()>
            = forever(self.putting_all(items));
    }

    async fn putting_all(&self, items: impl IntoIterator<Item = impl Into<NewItem>>) -> Result<()> {
        let items: Vec<NewItem> = items.into_iter().map(Into::into).collect();
        self.put_when_room(&items, &AtomicBool::new(false)).await
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
    /// assert!(queue.try_put_all([b"one", b"two"]).is_err());
    /// assert!(queue.is_empty()?);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_put_all(&self, items: impl IntoIterator<Item = impl Into<NewItem>>) -> Result<()> {
        let items: Vec<NewItem> = items.into_iter().map(Into::into).collect();
        let busy = AtomicBool::new(false);
        blocking::request(&self.session, "put", &self.path, self.put_now(&items, &busy))
    }

    both_forms! {
        /// Takes the first item, under a lease of this session. Blocks until there is one, for as long
        /// as the session lives.
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
        /// queue.put(b"one")?;
        /// let item = queue.take()?;
        /// assert_eq!(item.data(), b"one");
        /// // If this consumer dies before that, another one gets the item.
        /// item.done()?;
        /// # Ok::<(), quorate::Error>(())
        /// ```
        pub fn take / take_timeout / take_async(&self) -> Result<Item>
            = forever(self.take_when_there(&Lease));

        /// Takes the first item if there is one; returns `None` otherwise. Blocks for the request
        /// timeout at most.
        ///
        /// # Errors
        /// As [`Queue::take`]; [`Error::Timeout`].
        ///
        /// ```
        /// use quorate::recipes::Queue;
        ///
        /// # let session = quorate::testing::Cluster::new(1).node(0).session();
        /// let queue = Queue::new(&session, "/jobs")?;
        /// assert!(queue.try_take()?.is_none());
        /// queue.put(b"one")?;
        /// queue.try_take()?.unwrap().done()?;
        /// # Ok::<(), quorate::Error>(())
        /// ```
        pub fn try_take / try_take_async(&self) -> Result<Option<Item>> = request(self.take_now(&Lease));
    }

    /// Deletes the first item and returns its data. Blocks until there is one, for as long as the
    /// session lives.
    ///
    /// There is no async form, since a future that is dropped at the wrong moment, as in a
    /// `select!`, would lose an item. In a task, use [`Queue::take_async`] and then
    /// [`Item::done_async`].
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
    /// queue.put(b"one")?;
    /// assert_eq!(queue.pop()?, b"one");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn pop(&self) -> Result<Vec<u8>> {
        blocking::forever(&self.session, self.popped())
    }

    /// As [`Queue::pop`], at most for `timeout`. Returns `None` if there was no item by then.
    ///
    /// # Errors
    /// As [`Queue::pop`]; [`Error::Timeout`] if a deletion was in flight by then: it continues, and
    /// its item is lost.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// assert!(queue.pop_timeout(Duration::from_millis(10))?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn pop_timeout(&self, timeout: Duration) -> Result<Option<Vec<u8>>> {
        let busy = AtomicBool::new(false);
        let removal = Removal(&busy);
        let popped = blocking::within(&self.session, timeout, self.take_when_there(&removal))?;
        self.in_time("pop", timeout, popped, &busy)
    }

    /// Deletes the first item, if there is one, and returns its data; returns `None` otherwise.
    /// Blocks for the request timeout at most.
    ///
    /// # Errors
    /// As [`Queue::pop`]; [`Error::Timeout`] as [`Queue::pop_timeout`].
    ///
    /// ```
    /// use quorate::recipes::Queue;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let queue = Queue::new(&session, "/jobs")?;
    /// assert!(queue.try_pop()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn try_pop(&self) -> Result<Option<Vec<u8>>> {
        let busy = AtomicBool::new(false);
        let removal = Removal(&busy);
        blocking::request(&self.session, "pop", &self.path, self.take_now(&removal))
    }

    /// As [`Queue::pop`], for tasks. Not public: if the future is dropped while its deletion is in
    /// flight, the deletion continues, and its item is lost.
    pub(crate) async fn popped(&self) -> Result<Vec<u8>> {
        self.take_when_there(&Removal(&AtomicBool::new(false))).await
    }

    both_forms! {
        /// Removes all items with exactly this id that no consumer has, and returns their number. An
        /// item that is put during the call may stay. Blocks for the request timeout at most.
        ///
        /// # Errors
        /// The errors of [`Session::create`]; after an error, some of the items may have been removed.
        ///
        /// ```
        /// use quorate::recipes::{NewItem, Queue};
        ///
        /// # let session = quorate::testing::Cluster::new(1).node(0).session();
        /// let queue = Queue::new(&session, "/jobs")?;
        /// queue.put(NewItem::new(b"one").id("order-7"))?;
        /// assert_eq!(queue.remove("order-7")?, 1);
        /// # Ok::<(), quorate::Error>(())
        /// ```
        pub fn remove / remove_async(&self, id: &str) -> Result<usize> = request(self.removing(id));
    }

    async fn removing(&self, id: &str) -> Result<usize> {
        let calls = self.session.nonblocking();
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
                let removing = multi.delete(&path::join(&self.part(part), &name)).submit();
                // `None`: a consumer has it, or it is due now.
                removed += usize::from(unless_overtaken(removing.await)?.is_some());
            }
        }
        Ok(removed)
    }
}
