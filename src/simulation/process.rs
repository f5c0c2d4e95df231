//! One place of the cluster: a disk and clocks that stay, and a process that
//! comes and goes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::Receiver;

use super::clock::{Nanos, NodeClock};
use super::disk::SimDisk;
use super::random::Random;
use crate::node::io::{DiskOp, Input};
use crate::node::stored::{HardState, LogWrite};
use crate::planted::{Bug, planted};
use crate::runtime::disk::perform_now;
use crate::runtime::host::Host;
use crate::runtime::shared::Call;
use crate::storage::LogStore;
use crate::types::membership::{Member, NodeId};

/// A place for a node.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) disk: SimDisk,
    /// Whom its disk makes it, and where it is reached.
    pub(crate) member: Member,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) life: Option<Box<Life>>,
    /// Counts its starts: what was meant for an earlier life does not reach a later one.
    pub(crate) epoch: u64,
    /// The disk of the new member that the next start makes, or the present one made, while `disk` is
    /// damaged. It takes the place of `disk` when a leader has taken the new member in.
    pub(crate) fresh: Option<Fresh>,
    /// What was put aside and is still there, by the nodes that it was of.
    pub(crate) former: Vec<Former>,
    /// What it can do, since its last start.
    pub(crate) version: u16,
    /// When it was last taken back to an older build.
    pub(crate) lowered_at: Option<Nanos>,
    pub(crate) paused_until: Nanos,
    pub(crate) slow_until: Nanos,
    pub(crate) slow_disk_until: Nanos,
    /// Until when a start that is due is put off.
    pub(crate) starting: bool,
}

/// See [`Process::fresh`].
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) disk: SimDisk,
    /// A start has used it.
    pub(crate) used: bool,
    /// The store has put the damaged disk aside.
    pub(crate) begun: Arc<AtomicBool>,
}

impl Fresh {
    pub(crate) fn new(disk: SimDisk) -> Fresh {
        Fresh { disk, used: false, begun: Arc::default() }
    }
}

/// A disk that was put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Former {
    pub(crate) node: NodeId,
    /// Its member was removed by the cluster.
    pub(crate) removed: bool,
}

impl Process {
    /// The disk that the running node writes to.
    pub(crate) fn written_disk(&self) -> &SimDisk {
        self.fresh.as_ref().map_or(&self.disk, |fresh| &fresh.disk)
    }
}

/// A process that runs.
pub(crate) struct Life {
    pub(crate) host: Host,
    pub(crate) calls: Receiver<Call>,
    pub(crate) store: Box<dyn LogStore>,
    /// When its next step is due.
    pub(crate) step_at: Nanos,
    /// What its disk is syncing, and what waits behind that.
    pub(crate) syncing: Vec<DiskOp>,
    pub(crate) waiting: VecDeque<DiskOp>,
    pub(crate) syncing_since: Nanos,
    pub(crate) checkpoint: Option<(u64, DiskOp)>,
    pub(crate) checkpoints: u64,
    pub(crate) resigned: bool,
    /// It was told to leave.
    pub(crate) leaving: bool,
    /// Whom it is connected with, by their places.
    pub(crate) connected: BTreeMap<usize, NodeId>,
    /// The members, as it was last told whom to be connected with.
    pub(crate) members: Option<Arc<Vec<Member>>>,
    /// It has been told to close.
    pub(crate) closing: bool,
}

/// What a disk has begun: a sync, which may come to the disk in part, and a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) sync: bool,
    pub(crate) tearable: bool,
    pub(crate) checkpoint: Option<u64>,
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Life").field("node", self.host.node()).finish_non_exhaustive()
    }
}

impl Life {
    pub(crate) fn new(host: Host, store: Box<dyn LogStore>) -> Life {
        let calls = host.calls();
        Life {
            host,
            calls,
            store,
            step_at: Nanos::MAX,
            syncing: Vec::new(),
            waiting: VecDeque::new(),
            syncing_since: Nanos::MAX,
            checkpoint: None,
            checkpoints: 0,
            resigned: false,
            leaving: false,
            connected: BTreeMap::new(),
            members: None,
            closing: false,
        }
    }

    /// Takes what waits for the disk as one sync, as the disk's thread does; a checkpoint before it
    /// begins beside it.
    pub(crate) fn begin_sync(&mut self, now: Nanos) -> Begun {
        debug_assert!(self.syncing.is_empty());
        let mut checkpoint = None;
        while let Some(op) = self.waiting.pop_front() {
            if matches!(op, DiskOp::Checkpoint { .. }) {
                self.checkpoints += 1;
                self.checkpoint = Some((self.checkpoints, op));
                checkpoint = Some(self.checkpoints);
                continue;
            }
            let is_write = matches!(op, DiskOp::Write { .. });
            self.syncing.push(op);
            if !is_write || !matches!(self.waiting.front(), Some(DiskOp::Write { .. })) {
                break;
            }
        }
        self.syncing_since = if self.syncing.is_empty() { Nanos::MAX } else { now };
        Begun { sync: !self.syncing.is_empty(), tearable: self.is_tearable(), checkpoint }
    }

    /// Whether what is being synced can come to the disk in part.
    pub(crate) fn is_tearable(&self) -> bool {
        match self.syncing.as_slice() {
            [] => false,
            [DiskOp::Write { write, .. }] => write.entries.len() > 1 || !self.waiting.is_empty(),
            _ => true,
        }
    }

    /// What was being synced is durable, or has failed.
    pub(crate) fn end_sync(&mut self) {
        self.syncing_since = Nanos::MAX;
        for op in std::mem::take(&mut self.syncing) {
            if matches!(op, DiskOp::Install { .. }) {
                // It replaces everything, a checkpoint under way included.
                self.checkpoint = None;
            }
            self.perform(op);
        }
    }

    pub(crate) fn perform(&mut self, op: DiskOp) {
        let done = perform_now(&mut *self.store, op);
        self.host.input(
            done.unwrap_or_else(|error| Input::Failed {
                reason: format!("the disk failed: {error}"),
            }),
        );
    }

    /// The process is killed. Of what its disk had not synced, all or nothing is there all the
    /// same, or, if it is `torn`, whatever was written up to some point, the last write perhaps in
    /// part. Whether that was so.
    pub(crate) fn kill(mut self, random: &Random, torn: bool) -> bool {
        let mut ops: Vec<DiskOp> = std::mem::take(&mut self.syncing);
        ops.extend(std::mem::take(&mut self.waiting));
        let count = ops.len();
        let survive = match random.below(2) {
            _ if torn => random.index(count + 1),
            0 => 0,
            _ => count,
        };
        if let Some((_, checkpoint)) = self.checkpoint.take()
            && random.percent(50)
        {
            let _ = perform_now(&mut *self.store, checkpoint);
        }
        let mut ops = ops.into_iter();
        for op in ops.by_ref().take(survive) {
            if perform_now(&mut *self.store, op).is_err() {
                return false;
            }
        }
        if let Some(DiskOp::Write { number, write }) = ops.next()
            && torn
            && let Some(part) = part_of(write, random)
        {
            return perform_now(&mut *self.store, DiskOp::Write { number, write: part }).is_ok();
        }
        survive > 0 && survive < count
    }
}

/// A write as it is when only its first entries came to the disk.
fn part_of(mut write: LogWrite, random: &Random) -> Option<LogWrite> {
    if planted(Bug::TornRecordAccepted) {
        let torn = write.entries.last_mut()?;
        torn.data.truncate(torn.data.len() / 2);
        return Some(write);
    }
    if write.entries.len() < 2 {
        return None;
    }
    write.entries.truncate(1 + random.index(write.entries.len() - 1));
    let last = write.entries.last()?.index;
    write.hard_state = write
        .hard_state
        .map(|hard_state| HardState { commit: hard_state.commit.min(last), ..hard_state });
    Some(write)
}
