//! What recipes add to the writes of others.

use crate::api::multi::Multi;
use crate::machine::command::Op;
use crate::types::error::Result;

/// A step of a recipe, to be done in one write with other operations: [`Multi::with`] and
/// [`Transaction::with`](crate::Transaction::with) add it. Recipes return it from the calls that end in `_part`:
/// [`Queue::put_part`], [`Queue::pop_part`], [`Item::done_part`], [`Run::done_part`], [`Partition::commit_part`],
/// [`Partition::hand_over_part`], [`Counter::add_part`], [`Membership::update_part`], [`Registration::update_part`].
///
/// So a result is stored and its job is finished together, or neither; and with
/// [`Multi::fence`](crate::Multi::fence) only while a lock is held. Nothing is sent before the write is committed.
/// An error of the arguments is reported then, too.
///
/// A part is a value: it can be cloned, and added to writes of other sessions. The operations that it stands for are
/// in the results of the write, in order.
///
/// ```
/// use quorate::recipes::{Counter, Queue};
/// use quorate::{CreateMode, testing::Cluster};
///
/// let session = Cluster::new(3).node(0).session();
/// let (jobs, done) = (Queue::new(&session, "/jobs")?, Counter::new(&session, "/done")?);
/// jobs.put("invoice 17").wait()?;
/// done.add(0).wait()?;
///
/// let job = jobs.take().wait()?;
/// let write = session.multi().create("/invoice-17", b"paid", CreateMode::Persistent);
/// write.with(&job.done_part()).with(&done.add_part(1)).commit().wait()?;
/// assert_eq!(jobs.len().wait()?, 0);
/// assert_eq!(done.get().wait()?, 1);
/// # Ok::<(), quorate::Error>(())
/// ```
///
/// [`Queue::put_part`]: crate::recipes::Queue::put_part
/// [`Queue::pop_part`]: crate::recipes::Queue::pop_part
/// [`Item::done_part`]: crate::recipes::Item::done_part
/// [`Run::done_part`]: crate::recipes::Run::done_part
/// [`Partition::commit_part`]: crate::recipes::Partition::commit_part
/// [`Partition::hand_over_part`]: crate::recipes::Partition::hand_over_part
/// [`Counter::add_part`]: crate::recipes::Counter::add_part
/// [`Membership::update_part`]: crate::recipes::Membership::update_part
/// [`Registration::update_part`]: crate::recipes::Registration::update_part
#[derive(Clone, Debug)]
#[must_use = "nothing is done before a write with it is committed"]
pub struct Part {
    /// Their paths are relative to the root of the whole tree.
    ops: Vec<Op>,
    checked: Result<()>,
}

impl Part {
    /// The operations of this multi; or an error of what they were made from.
    pub(crate) fn of(multi: Result<Multi<'_>>) -> Part {
        match multi.map(Multi::into_ops) {
            Ok((ops, checked)) => Part { ops, checked },
            Err(error) => Part { ops: Vec::new(), checked: Err(error) },
        }
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = Op> {
        self.ops.iter().cloned()
    }

    /// What is wrong with the arguments that it was made from.
    pub(crate) fn checked(&self) -> Result<()> {
        self.checked.clone()
    }
}
