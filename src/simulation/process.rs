//! One place of the cluster: a disk and clocks, which persist, and a process, which stops and
//! starts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::Receiver;

use super::clock::{Nanos, NodeClock};
use super::costs::INPUT;
use super::disk::SimDisk;
use super::random::Random;
use super::surroundings::LateEvents;
use crate::node::io::{DiskOp, Input};
use crate::node::stored::LogWrite;
use crate::planted::{Bug, planted};
use crate::runtime::disk::{WRITE_BYTES_MAX, perform_now, take_part};
use crate::runtime::host::Host;
use crate::runtime::shared::Call;
use crate::storage::LogStore;
use crate::types::membership::{Member, NodeId};

/// A place for a node.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) disk: SimDisk,
    /// The member on its disk, with its address.
    pub(crate) member: Member,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) life: Option<Box<Life>>,
    /// The number of its starts, so that an event for an earlier start does not reach a later one.
    pub(crate) epoch: u64,
    /// While `disk` is damaged: the disk of the new member that this start has made, or the next one
    /// will make. It replaces `disk` when a leader has admitted the new member.
    pub(crate) fresh: Option<Fresh>,
    /// The disks that were put aside and still exist.
    pub(crate) former: Vec<Former>,
    /// The version that it supports since its last start.
    pub(crate) version: u16,
    /// When it last went back to an older build.
    pub(crate) lowered_at: Option<Nanos>,
    pub(crate) paused_until: Nanos,
    pub(crate) slow_until: Nanos,
    pub(crate) slow_disk_until: Nanos,
    /// The extra time of each sync until then. 0: about a second.
    pub(crate) slow_disk_by: Nanos,
    /// Until when its node's thread is busy with the last step.
    pub(crate) busy_until: Nanos,
    /// Whether a start is scheduled.
    pub(crate) starting: bool,
}

/// See [`Process::fresh`].
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) disk: SimDisk,
    /// Whether a node has started from it.
    pub(crate) used: bool,
    /// Whether the store has put the damaged disk aside.
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
    /// Whether the cluster has removed its member.
    pub(crate) removed: bool,
}

impl Process {
    /// The disk to which the running node writes.
    pub(crate) fn written_disk(&self) -> &SimDisk {
        self.fresh.as_ref().map_or(&self.disk, |fresh| &fresh.disk)
    }
}

/// A running process.
pub(crate) struct Life {
    pub(crate) host: Host,
    pub(crate) calls: Receiver<Call>,
    pub(crate) store: Box<dyn LogStore>,
    /// When its next step is due.
    pub(crate) step_at: Nanos,
    /// How long that step takes for its waiting inputs: see [`costs`](super::costs).
    pub(crate) owed: Nanos,
    /// What its disk is syncing, and what waits for the next sync.
    pub(crate) syncing: Vec<DiskOp>,
    pub(crate) waiting: VecDeque<DiskOp>,
    pub(crate) syncing_since: Nanos,
    pub(crate) checkpoint: Option<(u64, DiskOp)>,
    pub(crate) checkpoints: u64,
    /// The bytes of the entries written since the last checkpoint began: about the size of the next
    /// one.
    pub(crate) uncheckpointed: u64,
    /// The bytes of the snapshot that is being received.
    pub(crate) received: u64,
    pub(crate) resigned: bool,
    /// Whether it was asked to leave.
    pub(crate) leaving: bool,
    /// Its connections, by the places of the peers.
    pub(crate) connected: BTreeMap<usize, NodeId>,
    /// The members that its node last wanted to be connected to.
    pub(crate) members: Option<Arc<Vec<Member>>>,
    /// Whether it was asked to close.
    pub(crate) closing: bool,
    /// See [`surroundings`](super::surroundings).
    pub(super) late_events: LateEvents,
}

/// What a disk has started: a sync, which a crash may tear, and a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) sync: bool,
    /// The bytes that are written before it.
    pub(crate) bytes: u64,
    pub(crate) tearable: bool,
    /// Its number, and about how many bytes it writes.
    pub(crate) checkpoint: Option<(u64, u64)>,
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
            owed: 0,
            syncing: Vec::new(),
            waiting: VecDeque::new(),
            syncing_since: Nanos::MAX,
            checkpoint: None,
            checkpoints: 0,
            uncheckpointed: 0,
            received: 0,
            resigned: false,
            leaving: false,
            connected: BTreeMap::new(),
            members: None,
            closing: false,
            late_events: LateEvents::new(),
        }
    }

    /// Begins one sync of everything that waits for the disk, as the disk's thread does. A checkpoint
    /// before it runs at the same time.
    pub(crate) fn begin_sync(&mut self, now: Nanos) -> Begun {
        debug_assert!(self.syncing.is_empty());
        let (mut checkpoint, mut bytes) = (None, 0);
        while let Some(op) = self.waiting.pop_front() {
            if matches!(op, DiskOp::Checkpoint { .. }) {
                self.checkpoints += 1;
                self.checkpoint = Some((self.checkpoints, op));
                checkpoint = Some((self.checkpoints, std::mem::take(&mut self.uncheckpointed)));
                continue;
            }
            let is_write = matches!(op, DiskOp::Write { .. });
            bytes += self.bytes_of(&op);
            self.syncing.push(op);
            let more = matches!(self.waiting.front(), Some(DiskOp::Write { .. }));
            if !is_write || !more || bytes >= WRITE_BYTES_MAX as u64 {
                break;
            }
        }
        self.syncing_since = if self.syncing.is_empty() { Nanos::MAX } else { now };
        Begun { sync: !self.syncing.is_empty(), bytes, tearable: self.is_tearable(), checkpoint }
    }

    /// How many bytes an operation writes, about.
    fn bytes_of(&mut self, op: &DiskOp) -> u64 {
        match op {
            DiskOp::Write { write, .. } => {
                let bytes = write.entries.iter().map(|entry| entry.data.len() as u64).sum();
                self.uncheckpointed += bytes;
                bytes
            }
            DiskOp::Install { .. } => std::mem::take(&mut self.received),
            _ => 0,
        }
    }

    /// Whether a crash can tear the present sync.
    pub(crate) fn is_tearable(&self) -> bool {
        match self.syncing.as_slice() {
            [] | [DiskOp::Read { .. } | DiskOp::Build { .. } | DiskOp::Drop { .. }] => false,
            [DiskOp::Write { write, .. }] => write.entries.len() > 1 || !self.waiting.is_empty(),
            _ => true,
        }
    }

    /// Ends the present sync: its writes are durable, or have failed.
    pub(crate) fn end_sync(&mut self) {
        self.syncing_since = Nanos::MAX;
        for op in std::mem::take(&mut self.syncing) {
            if matches!(op, DiskOp::Install { .. }) {
                // It replaces everything, including a checkpoint under way.
                self.checkpoint = None;
            }
            self.perform(op);
        }
    }

    pub(crate) fn perform(&mut self, mut op: DiskOp) {
        super::surroundings::truncate_too_far(&mut op);
        self.owed += INPUT;
        let done = perform_now(&mut *self.store, op);
        self.host.input(
            done.unwrap_or_else(|error| Input::Failed {
                reason: format!("the disk failed: {error}"),
            }),
        );
    }

    /// Kills the process. Of the writes that were not synced, either all or none survive. If `torn`,
    /// those up to some point survive, and the next one perhaps in part. Returns whether only some did.
    ///
    /// What survives can be read, and is durable if the power was cut. If only the process has ended, it is
    /// durable when a start makes it so.
    pub(crate) fn kill(self, random: &Random, torn: bool, disk: &SimDisk, power: bool) -> bool {
        if power {
            disk.cut_power();
            return self.leave_some(random, torn);
        }
        disk.end_process(|| self.leave_some(random, torn))
    }

    fn leave_some(mut self, random: &Random, torn: bool) -> bool {
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

/// A write of which only the first entries were written.
fn part_of(mut write: LogWrite, random: &Random) -> Option<LogWrite> {
    if planted(Bug::TornRecordAccepted) {
        let torn = write.entries.last_mut()?;
        torn.data.truncate(torn.data.len() / 2);
        return Some(write);
    }
    let entries = write.entries.len();
    (entries >= 2).then(|| take_part(&mut write, 1 + random.index(entries - 1)))
}
