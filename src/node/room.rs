//! How a member handles nearly full disks, its own or others'.
//!
//! The host reports how much room the disk has. A member with little room reports that to the leader
//! repeatedly. It still goes on storing the log: without it, the quorum may be lost. The leader counts
//! the voters that answer and have room. While these are a majority, they keep the quorum even without
//! the others, and a leader with little room hands over to one of them. Otherwise writes are refused:
//! the leader reports that to all members with [`PeerMessage::Health`], and each member refuses the
//! writes of its own users, and has its clients do the same. A refused write gets no number in its
//! session and does not enter the log, so refusing takes no room.
//!
//! Operations that need no room, or make some, go on: reads, watches, sessions and their ends,
//! deletes, and changes of the members. Writes that are already under way are still done.

use std::collections::BTreeSet;

use crate::machine::Machine;
use crate::node::context::Context;
use crate::node::io::Time;
use crate::node::membership::Membership;
use crate::node::message::PeerMessage;
use crate::node::raft::core::Raft;
use crate::node::raft::state::KnownLeader;
use crate::node::sessions::LocalSessions;
use crate::node::timings::REQUEST_PERIOD;
use crate::types::error::Error;
use crate::types::membership::NodeId;

/// The room for the coming log that a disk needs besides the room for checkpoints, unless it is set:
/// this much, or this share of a small file system.
const ROOM: u64 = 64 << 20;
const ROOM_SHARE: u64 = 8;
/// How many times the state must fit into the room: a new checkpoint is written beside the old one, and
/// sled takes more room than its content.
const CHECKPOINTS: u64 = 2;
/// If the state is half as large as in the last checkpoint, and this many bytes smaller, a disk with little
/// room gets a new checkpoint.
const SHRUNK_BY: u64 = 8 << 20;

/// The room on a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    free: u64,
    total: u64,
}

/// The room on this member's disk, and the leader's last report of all disks.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The file system of the data directory; `None`: not known.
    data: Option<Measured>,
    /// That of the log, if the log is not in the data directory.
    log: Option<Measured>,
    pub(super) is_low: bool,
    /// The term in which the leader was last sent a report, when the next one is due, and whether
    /// that one must be sent.
    reported_in: u64,
    report_at: Time,
    /// Whether the leader has a report of this low disk.
    is_reported: bool,
    /// Members with little room, by the leader's last report.
    low: BTreeSet<NodeId>,
    pub(super) refuses_writes: bool,
}

impl Room {
    /// All members that are known to have little room, including this one.
    pub(super) fn all_low(&self, own: NodeId) -> BTreeSet<NodeId> {
        let mut low = self.low.clone();
        match self.is_low {
            true => low.insert(own),
            false => low.remove(&own),
        };
        low
    }

    /// Whether the leader has reported that this member has little room.
    pub(super) fn has_reported(&self, own: NodeId) -> bool {
        self.low.contains(&own)
    }

    /// Whether this differs from the leader's last report.
    pub(super) fn differs(&self, low: &BTreeSet<NodeId>, refuses_writes: bool) -> bool {
        (&self.low, self.refuses_writes) != (low, refuses_writes)
    }
}

/// The bytes that a disk needs to have free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watermark {
    /// The bytes for the log, and for the next checkpoint.
    log: u64,
    checkpoint: u64,
}

impl Watermark {
    fn of(set: Option<u64>, state_bytes: u64, total: u64) -> Watermark {
        match set {
            Some(log) => Watermark { log, checkpoint: 0 },
            None => Watermark {
                log: ROOM.min(total / ROOM_SHARE),
                checkpoint: state_bytes.saturating_mul(CHECKPOINTS),
            },
        }
    }

    /// Below this many bytes the disk counts as nearly full. `was_low` gives some slack, so that the
    /// state does not change with every file. `is_used`: the next checkpoint is being written now, and
    /// takes the room that was reserved for it.
    fn bytes(self, was_low: bool, is_used: bool) -> u64 {
        let slack = if was_low { self.log / 2 } else { 0 };
        let checkpoint = if is_used && !was_low { 0 } else { self.checkpoint };
        self.log.saturating_add(slack).saturating_add(checkpoint)
    }
}

impl Room {
    /// The host has measured the room on the disk.
    pub(super) fn measured(&mut self, free: u64, total: u64) {
        self.data = Some(Measured { free, total });
    }

    /// The host has measured the room on the log's file system.
    pub(super) fn measured_log(&mut self, free: u64, total: u64) {
        self.log = Some(Measured { free, total });
    }

    /// The free bytes, on the file system that has fewer; `None`: not known.
    pub(super) fn free(&self) -> Option<u64> {
        [self.data, self.log].into_iter().flatten().map(|measured| measured.free).min()
    }

    /// How much is free where there is less than needed, and how much is needed there. No checkpoint is written
    /// beside a log on a file system of its own. That of the data needs as much as if it had the log: it may be the
    /// same one, and sled takes space ahead.
    fn lacking(&self, set: Option<u64>, state_bytes: u64, is_used: bool) -> Option<(u64, u64)> {
        let needed = [(self.data, state_bytes), (self.log, 0)];
        needed.into_iter().find_map(|(measured, state_bytes)| {
            let Measured { free, total } = measured?;
            let below = Watermark::of(set, state_bytes, total).bytes(self.is_low, is_used);
            (free < below).then_some((free, below))
        })
    }

    /// Whether there is little room and a checkpoint would make some. The last one took `image` bytes.
    pub(super) fn wants_checkpoint(&self, machine: &Machine, image: u64) -> bool {
        let now = machine.bytes().saturating_mul(2);
        self.is_low && now.saturating_add(SHRUNK_BY) < image
    }

    /// Decides whether the disk counts as nearly full.
    pub(super) fn judge(
        &mut self,
        raft: &Raft,
        machine: &Machine,
        membership: &Membership,
        cx: &mut Context,
    ) {
        let is_used = raft.checkpoints.are_two(cx.now.mono);
        let state_bytes = machine.bytes();
        if self.free().is_none() {
            return;
        }
        let lacking = self.lacking(cx.config.disk_low, state_bytes, is_used);
        if lacking.is_some() == self.is_low {
            return;
        }
        (self.is_low, self.report_at) = (lacking.is_some(), Time::ZERO);
        if let Some((free, below)) = lacking {
            tracing::warn!(
                node = %membership.own_name(),
                free,
                below,
                "the disk is nearly full; if too many are, writes are refused: make room"
            );
        } else {
            let free = self.free();
            tracing::info!(node = %membership.own_name(), free, "the disk has room again");
        }
        self.report(&raft.elections.observed, cx);
    }

    /// Reports to the leader that this member's disk has little room, or has room again.
    pub(super) fn report(&mut self, leadership: &KnownLeader, cx: &mut Context) {
        let (KnownLeader { leader, term }, now) = (*leadership, cx.now.mono);
        if leader == cx.id || leader == 0 {
            self.is_reported = false;
            return;
        }
        let is_new = self.reported_in != term;
        if self.is_low && (is_new || now >= self.report_at) {
            (self.reported_in, self.report_at) = (term, now + REQUEST_PERIOD);
            self.is_reported = true;
            cx.send(leader, PeerMessage::DiskLow { low: true });
        } else if !self.is_low && std::mem::take(&mut self.is_reported) && !is_new {
            // If this message is lost, the last report soon ends.
            cx.send(leader, PeerMessage::DiskLow { low: false });
        }
    }

    /// Notes which members have little room, and whether writes are refused for that. This holds until
    /// the next report, also after a change of the leader.
    pub(super) fn note_report(
        &mut self,
        low: BTreeSet<NodeId>,
        refuses_writes: bool,
        machine: &Machine,
        membership: &Membership,
        local: &mut LocalSessions,
    ) {
        if !self.differs(&low, refuses_writes) {
            return;
        }
        let node = membership.own_name();
        match (self.refuses_writes, refuses_writes) {
            (false, true) => tracing::warn!(%node, "writes are refused: disks are nearly full"),
            (true, false) => tracing::info!(%node, "writes are taken again: disks have room"),
            _ => {}
        }
        let (roster, _) = machine.roster();
        let error = refuses_writes.then(|| {
            disk_low(&low, |node| roster.get(node).map(|seat| seat.member.address.clone()))
        });
        local.refuse_writes(error);
        (self.low, self.refuses_writes) = (low, refuses_writes);
    }
}

/// The error of refused writes.
pub(super) fn disk_low(
    low: &BTreeSet<NodeId>,
    address: impl Fn(NodeId) -> Option<String>,
) -> Error {
    let name = |node: &NodeId| {
        let known = address(*node).filter(|known| !known.is_empty());
        known.unwrap_or_else(|| format!("{node:016x}"))
    };
    Error::DiskLow { members: low.iter().map(name).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_needs_less_room_and_a_large_state_more() {
        const GIB: u64 = 1 << 30;
        let below = |set, state, total| Watermark::of(set, state, total).bytes(false, false);
        assert_eq!(below(None, 0, 100 * GIB), ROOM);
        assert_eq!(below(None, 0, 16 << 20), 2 << 20);
        assert_eq!(below(None, GIB, 100 * GIB), ROOM + 2 * GIB);
        assert_eq!(below(Some(0), GIB, 100 * GIB), 0, "switched off");
        assert_eq!(below(Some(7), GIB, 100 * GIB), 7);
    }

    /// A log device of 160 MiB counted as full at 36 %, for want of room for a checkpoint that it never holds.
    #[test]
    fn each_of_two_file_systems_needs_room_for_what_it_holds() {
        const MIB: u64 = 1 << 20;
        let lacking = |data: u64, log: u64| {
            let mut room = Room::default();
            room.measured(data * MIB, 100_000 * MIB);
            room.measured_log(log * MIB, 160 * MIB);
            room.lacking(None, 50 * MIB, false)
        };
        assert_eq!(lacking(1000, 100), None);
        assert_eq!(lacking(1000, 20), None);
        assert_eq!(lacking(1000, 19), Some((19 * MIB, 20 * MIB)), "the log's");
        assert_eq!(lacking(163, 100), Some((163 * MIB, 164 * MIB)), "the checkpoint's");
    }

    /// Once a checkpoint used the room that was reserved for it, the disk counted as full for ever.
    #[test]
    fn a_checkpoint_may_take_the_room_that_is_kept_for_it() {
        const GIB: u64 = 1 << 30;
        let of = Watermark::of(None, GIB, 100 * GIB);
        let free = 2 * GIB + ROOM + 1;
        assert!(free >= of.bytes(false, false));
        assert!(free - GIB >= of.bytes(false, true), "while it is written");
        assert!(free - GIB < of.bytes(false, false));
        let again = free + ROOM / 2;
        assert!(again >= of.bytes(true, false), "the slack is the log's alone");
    }
}
