//! Positions and releases of a member's partitions. They wait in a queue, and those that wait together become one
//! write: while one is in flight, the next ones gather.

use std::sync::Arc;

use super::holdings::{Holdings, OwnedPartitions};
use crate::node::query::Answer;
use crate::recipes::errors::{gone, inner};
use crate::sync::slot::Slot;
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, CreateMode, Zxid};

/// One write has at most so many positions and releases, three operations each, and about so many bytes.
const TOGETHER_MAX: usize = 100;
const BYTES_MAX: usize = 512 << 10;

/// A position, a release, or both in one; or the mark that the member is silent.
#[derive(Debug)]
pub(super) struct PartitionWrite {
    /// The znode of the owner, or of the member.
    owner: (String, Zxid),
    /// The znode that is set, and its data.
    position: Option<(String, Vec<u8>)>,
    releases: bool,
    done: Arc<Slot<Result<()>>>,
}

impl PartitionWrite {
    /// Puts a write into the queue, and returns its result to wait for.
    pub(super) fn queue(
        state: &mut OwnedPartitions,
        owner: (String, Zxid),
        position: Option<(String, Vec<u8>)>,
        releases: bool,
    ) -> Arc<Slot<Result<()>>> {
        let done = Arc::new(Slot::default());
        let write = PartitionWrite { owner, position, releases, done: Arc::clone(&done) };
        state.writes.push_back(write);
        done
    }

    fn operations(&self) -> usize {
        1 + usize::from(self.position.is_some()) + usize::from(self.releases)
    }

    fn bytes(&self) -> usize {
        self.position.as_ref().map_or(0, |(_, data)| data.len())
    }
}

impl OwnedPartitions {
    /// The next writes that go together, in order.
    fn next_writes(&mut self) -> Vec<PartitionWrite> {
        let mut bytes = 0;
        let fits = |write: &&PartitionWrite| {
            bytes += write.bytes();
            bytes <= BYTES_MAX
        };
        let fit = self.writes.iter().take(TOGETHER_MAX).take_while(fits).count();
        // One that is too large by itself goes alone.
        let count = fit.max(1).min(self.writes.len());
        self.writes.drain(..count).collect()
    }
}

impl Holdings {
    /// Sends what waits, unless something is in flight: then that does it when it is done. What cannot be sent any
    /// more, since the session is over, fails at once.
    pub(super) fn write(self: &Arc<Self>) {
        // Writes of a session that is over, and those beyond the limit of waiting requests, are refused at once, each in
        // its turn. So this is a loop.
        while let Some((writes, answer)) = self.write_next() {
            self.written(writes, answer);
        }
        self.end_with_session();
    }

    /// Sends the next writes. Returns them if they are answered already.
    fn write_next(self: &Arc<Self>) -> Option<(Vec<PartitionWrite>, Result<Answer>)> {
        let writes = {
            let mut state = self.lock();
            if state.is_writing || state.writes.is_empty() {
                return None;
            }
            state.is_writing = true;
            state.next_writes()
        };
        let mut multi = self.session.multi();
        for PartitionWrite { owner: (path, czxid), position, releases, .. } in &writes {
            // Each replica makes this check as it applies the write: it is still held.
            let held = unless!(PositionUnfenced, Condition::Czxid(*czxid), Condition::Exists);
            multi = multi.require(path, held);
            if let Some((path, data)) = position {
                multi = multi.create_or_set(path, data, CreateMode::Persistent);
            }
            if *releases {
                multi = multi.delete(path);
            }
        }
        let holdings = Arc::clone(self);
        multi.submit().take_or_then(writes, move |writes, answer| {
            holdings.written(writes, answer);
            holdings.write();
        })
    }

    /// The answer to these writes. If one of them has failed, nothing was written: the others have to be sent again.
    fn written(&self, mut writes: Vec<PartitionWrite>, answer: Result<Answer>) {
        let answer = answer.map(drop);
        let failed = match &answer {
            Err(Error::Multi { index, .. }) => {
                let mut end = 0;
                writes.iter().position(|write| {
                    end += write.operations();
                    *index < end
                })
            }
            _ => None,
        };
        let releases = writes.iter().any(|write| write.releases);
        let again: Vec<PartitionWrite> = match failed {
            Some(at) => {
                let again = writes.split_off(at + 1);
                let failed = writes.split_off(at);
                failed.iter().for_each(|write| self.finish(write, &answer));
                writes.into_iter().chain(again).collect()
            }
            None => {
                writes.iter().for_each(|write| self.finish(write, &answer));
                Vec::new()
            }
        };
        let mut state = self.lock();
        state.is_writing = false;
        again.into_iter().rev().for_each(|write| state.writes.push_front(write));
        // The share waits for the end of releases, and of all writes when it leaves.
        let is_waited_for = releases || state.leaves;
        drop(state);
        if is_waited_for {
            self.change(|_| ());
        }
    }

    /// Fails what waits if the session is over. If it is not, this is called again when it ends.
    pub(super) fn end_with_session(&self) {
        if self.lock().writes.is_empty() || !self.is_session_over() {
            return;
        }
        let Err(over) = self.session.check_alive() else { return };
        let waiting = std::mem::take(&mut self.lock().writes);
        let over = Err(over);
        waiting.iter().for_each(|write| self.finish(write, &over));
        if waiting.iter().any(|write| write.releases) {
            self.change(|_| ());
        }
    }

    /// Passes the answer to whoever waits for this write.
    fn finish(&self, write: &PartitionWrite, answer: &Result<()>) {
        let Err(error) = answer else { return write.done.complete(Ok(())) };
        let error = self.session.root.error(error.clone());
        if write.releases && !error.is_session_lost() {
            // It is given up in any case, without its position.
            let (path, czxid) = &write.owner;
            self.session.discarding()(self.session.root.full(path).into_owned(), *czxid);
        }
        let error = inner::<()>(Err(error)).map_err(gone);
        write.done.complete(error);
    }
}

/// Waits for the result of a write.
pub(super) async fn done(slot: &Slot<Result<()>>) -> Result<()> {
    std::future::poll_fn(|task| match slot.poll(task.waker()) {
        Some(done) => std::task::Poll::Ready(done),
        None => std::task::Poll::Pending,
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::{Partition, Partitions};
    use crate::testing::Cluster;

    /// One of several positions in a write was refused. The others go into the next one, before those that came later:
    /// a position must not go back.
    #[test]
    fn what_is_sent_again_comes_before_what_came_later() {
        let cluster = Cluster::new(1);
        let partitions = Partitions::new(&cluster.node(0).session(), "/mails", 3).unwrap();
        let mut share = partitions.join("me").unwrap();
        let owned = [(); 3].map(|()| share.take().unwrap());
        let holdings = Arc::clone(&owned[0].holdings);
        let put = |of: &Partition, position: &str| {
            let position = Some((of.owned.position_path.clone(), position.into()));
            PartitionWrite::queue(&mut holdings.lock(), of.owned.znode(), position, false)
        };
        let [_, refused, _] = [put(&owned[0], "1"), put(&owned[1], "x"), put(&owned[2], "2")];
        let writes = {
            let mut state = holdings.lock();
            state.is_writing = true;
            state.next_writes()
        };
        put(&owned[0], "3");
        let error = Box::new(Error::NoNode { path: owned[1].path().to_owned() });
        holdings.written(writes, Err(Error::Multi { index: 2, error }));
        let task = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(matches!(refused.poll(task.waker()), Some(Err(_))));
        let positions = |write: &PartitionWrite| write.position.clone().map(|(_, data)| data);
        let waiting: Vec<_> = holdings.lock().writes.iter().filter_map(positions).collect();
        assert_eq!(waiting, [b"1", b"2", b"3"]);
    }
}
