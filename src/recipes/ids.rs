//! Unique numbers.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::api::session::Session;
use crate::recipes::atomic_value::AtomicValue;
use crate::runtime::pending::Pending;
use crate::types::counter::CounterForm;
use crate::types::error::{Error, Result};

/// Generates unique numbers: each goes to one caller in the whole cluster, and never again.
///
/// The numbers are taken from a shared znode in blocks: one write for every `block` numbers, and no
/// write and no waiting in between, not even for a quorum. Within a block they increase by one. The
/// rest of a block is never used if its generator is dropped, its process ends, or a write's
/// outcome is unknown: **there are gaps**, of up to a block each. The numbers do not show the order
/// of the calls: several generators use their blocks at the same time.
///
/// They start at 1, and end at [`i64::MAX`]. The znode holds the last number of the last block as eight bytes in
/// big-endian order. It must not be deleted: the numbers would start at 1 again. Generators do not conflict: taking a
/// block is one operation of the cluster.
///
/// Handles are clones and share a block. The numbers stay unique whatever happens to the session; a
/// session that is over gets no new block.
///
/// ```
/// use quorate::{recipes::IdGenerator, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let here = IdGenerator::new(&cluster.node(0).session(), "/orders/ids", 100)?;
/// let there = IdGenerator::new(&cluster.node(1).session(), "/orders/ids", 100)?;
/// assert_eq!((here.next_id().wait()?, here.next_id().wait()?), (1, 2));
/// assert_eq!(there.next_id().wait()?, 101);
/// assert_eq!(here.next_id().wait()?, 3);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IdGenerator {
    value: AtomicValue,
    block: i64,
    /// Several ranges, if several concurrent callers have found nothing left and each has added
    /// one.
    left: Arc<Mutex<Vec<Range<u64>>>>,
}

impl IdGenerator {
    /// Returns a generator of the numbers at this path, which takes `block` numbers at a time, at
    /// least one. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if `block` is 0.
    pub fn new(session: &Session, path: &str, block: u32) -> Result<IdGenerator> {
        if block == 0 {
            let reason = "it must be 1 or more".to_owned();
            return Err(Error::InvalidSetting { setting: "block", reason });
        }
        let value = AtomicValue::new(session, path)?;
        Ok(IdGenerator { value, block: i64::from(block), left: Arc::default() })
    }

    fn session(&self) -> &Session {
        self.value.session()
    }

    pub(crate) fn path(&self) -> &str {
        self.value.path()
    }

    /// Returns a number that nobody else has or will have. Does not block while the block has
    /// numbers left; otherwise it takes a write.
    ///
    /// # Errors
    /// [`Error::InvalidData`] if all numbers are used, or the znode does not hold a number; otherwise as
    /// [`Session::set`]. After an error, no number was given to this caller.
    pub fn next_id(&self) -> Pending<'_, u64> {
        self.session().steps("next_id", self.path(), self.taking())
    }

    async fn taking(&self) -> Result<u64> {
        match self.take() {
            Some(id) => Ok(id),
            None => self.next_of_new_block().await,
        }
    }

    fn take(&self) -> Option<u64> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(range) = left.last_mut() {
            if let Some(id) = range.next() {
                return Some(id);
            }
            left.pop();
        }
        None
    }

    async fn next_of_new_block(&self) -> Result<u64> {
        let last = self.value.add(self.block, CounterForm::Long).await?;
        let negative = |_| self.value.invalid("its number is negative");
        // What somebody else has written may be negative.
        let before = u64::try_from(last.wrapping_sub(self.block)).map_err(negative)?;
        let last = u64::try_from(last).map_err(negative)?;
        let first = before + 1;
        let mut range = first..last + 1;
        // The range has at least one number: an empty block is refused.
        let id = range.next().ok_or_else(|| self.value.invalid("an empty block"))?;
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(range);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    #[test]
    fn an_empty_block_is_refused() {
        let session = Cluster::new(1).node(0).session();
        let none = IdGenerator::new(&session, "/ids", 0);
        assert!(matches!(none, Err(Error::InvalidSetting { setting: "block", .. })));
        let ids = IdGenerator::new(&session, "/ids", 1).unwrap();
        assert_eq!([ids.next_id().wait(), ids.next_id().wait()], [Ok(1), Ok(2)]);
        assert_eq!(session.get("/ids").wait().unwrap().1.version, 1, "a write for each");
    }

    #[test]
    fn a_caller_gets_an_error_when_all_numbers_are_used() {
        let session = Cluster::new(1).node(0).session();
        let ids = IdGenerator::new(&session, "/ids", 10).unwrap();
        const LAST: u64 = i64::MAX as u64;
        session.create("/ids", (LAST - 15).to_be_bytes(), CreateMode::Persistent).wait().unwrap();
        for n in 1..=10 {
            assert_eq!(ids.next_id().wait(), Ok(LAST - 15 + n));
        }
        // The five numbers that are left are less than a block.
        for _ in 0..2 {
            assert!(matches!(ids.next_id().wait(), Err(Error::InvalidData { .. })));
        }
        let single = IdGenerator::new(&session, "/ids", 5).unwrap();
        for n in (0..5).rev() {
            assert_eq!(single.next_id().wait(), Ok(LAST - n), "for smaller blocks there are");
        }
        assert!(matches!(single.next_id().wait(), Err(Error::InvalidData { .. })));
    }

    #[test]
    fn invalid_data_does_not_restart_the_numbers() {
        let session = Cluster::new(1).node(0).session();
        let ids = IdGenerator::new(&session, "/ids", 10).unwrap();
        session.create("/ids", b"7", CreateMode::Persistent).wait().unwrap();
        assert!(matches!(ids.next_id().wait(), Err(Error::InvalidData { .. })));
        assert_eq!(&session.get("/ids").wait().unwrap().0[..], b"7");
    }

    #[test]
    fn clones_use_the_blocks_of_each_other() {
        let session = Cluster::new(1).node(0).session();
        let ids = IdGenerator::new(&session, "/ids", 3).unwrap();
        // As if two callers had found nothing left at the same time.
        *ids.left.lock().unwrap() = vec![4..6, 1..1, 8..9];
        let other = ids.clone();
        let taken = [ids.take(), other.take(), ids.take(), other.take()];
        assert_eq!(taken, [Some(8), Some(4), Some(5), None]);
        assert!(ids.left.lock().unwrap().is_empty(), "nothing of them stays");
    }
}
