//! The batches that this node has proposed as the leader, until it applies them. So it need not
//! decode its own batches.
//!
//! Every other replica applies the decoded batch, so both must be the same. In tests and in the
//! simulator each batch is decoded and compared.

use std::collections::VecDeque;

use crate::machine::command::Batch;
use crate::node::io::Time;
use crate::node::raft::log::Position;

#[derive(Debug, Default)]
pub(in crate::node) struct Proposed {
    /// By index and term, in the order of the log.
    batches: VecDeque<(u64, u64, Batch)>,
    /// By index: when each batch that is not applied yet was proposed.
    times: VecDeque<(u64, Time)>,
}

impl Proposed {
    pub(in crate::node) fn push(&mut self, (index, term): (u64, u64), batch: Batch, now: Time) {
        self.batches.push_back((index, term, batch));
        self.times.push_back((index, now));
    }

    /// The entry at this index is applied. Returns when this node proposed it, if it did.
    ///
    /// A leader's log only grows, and this list ends with the term, so the index identifies the entry.
    pub(in crate::node) fn applied(&mut self, index: u64) -> Option<Time> {
        while self.times.front().is_some_and(|(first, _)| *first < index) {
            self.times.pop_front();
        }
        let (first, at) = *self.times.front()?;
        (first == index).then(|| self.times.pop_front()).map(|_| at)
    }

    /// The batch in the entry at this position, if this node has proposed it in the present term.
    pub(in crate::node) fn take(&mut self, at: Position, data: &[u8]) -> Option<Batch> {
        while self.batches.front().is_some_and(|(index, _, _)| *index < at.index) {
            self.batches.pop_front();
        }
        let (index, term, _) = self.batches.front()?;
        if (*index, *term) != (at.index, at.term) {
            return None;
        }
        let (_, _, batch) = self.batches.pop_front()?;
        if cfg!(any(test, feature = "simulator")) {
            assert_eq!(Batch::decode(data).as_ref(), Ok(&batch), "decoded, it is another batch");
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(time: u64) -> Batch {
        Batch { time, requests: Vec::new() }
    }

    fn take(proposed: &mut Proposed, index: u64, term: u64, batch: &Batch) -> Option<Batch> {
        proposed.take(Position { index, term }, &batch.encode())
    }

    #[test]
    fn a_batch_belongs_to_one_index_of_one_term() {
        let mut proposed = Proposed::default();
        for index in [4, 5, 7, 8] {
            proposed.push((index, 2), batch(index), Time::from_secs(index));
        }
        assert_eq!(take(&mut proposed, 3, 2, &batch(3)), None);
        assert_eq!(take(&mut proposed, 5, 2, &batch(5)), Some(batch(5)));
        assert_eq!(take(&mut proposed, 5, 2, &batch(5)), None);
        assert_eq!(take(&mut proposed, 7, 3, &batch(70)), None, "another leader's");
        assert_eq!(take(&mut proposed, 8, 2, &batch(8)), Some(batch(8)));
        let times = [3, 5, 5, 6, 8, 9].map(|index| proposed.applied(index));
        let at = |seconds| Some(Time::from_secs(seconds));
        assert_eq!(times, [None, at(5), None, None, at(8), None]);
    }
}
