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

use crate::node::Node;
use crate::node::io::Time;
use crate::node::leader::Leading;
use crate::node::membership::{REQUEST_PERIOD, REQUEST_TIME};
use crate::node::message::PeerMessage;
use crate::planted::{Bug, planted};
use crate::types::error::Error;
use crate::types::membership::{MEMBERS_MAX, NodeId};

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

/// The room on this member's disk, and the leader's last report of all disks.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The free bytes; `None`: not known.
    pub(super) free: Option<u64>,
    total: u64,
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

impl Node {
    /// The host has measured the room on the disk.
    pub(super) fn take_disk_space(&mut self, free: u64, total: u64) {
        (self.room.free, self.room.total) = (Some(free), total);
        self.judge_room();
    }

    /// Whether a checkpoint would make room.
    pub(super) fn has_shrunk(&self) -> bool {
        let now = self.machine.bytes().saturating_mul(2);
        now.saturating_add(SHRUNK_BY) < self.persistence.checkpoint_image
    }

    /// Decides whether the disk counts as nearly full.
    pub(super) fn judge_room(&mut self) {
        let is_used = self.persistence.has_two_checkpoints(self.now.mono);
        let state_bytes = self.machine.bytes();
        let room = &mut self.room;
        let Some(free) = room.free else { return };
        let watermark = Watermark::of(self.config.disk_low, state_bytes, room.total);
        let below = watermark.bytes(room.is_low, is_used);
        let is_low = free < below;
        if is_low == room.is_low {
            return;
        }
        (room.is_low, room.report_at) = (is_low, Time::ZERO);
        if is_low {
            tracing::warn!(
                node = %self.named(self.id),
                free,
                below,
                "the disk is nearly full; if too many are, writes are refused: make room"
            );
        } else {
            tracing::info!(node = %self.named(self.id), free, "the disk has room again");
        }
        self.report_room();
    }

    /// Reports to the leader that this member's disk has little room, or has room again.
    pub(super) fn report_room(&mut self) {
        let (leader, term, now) = (self.leadership.leader, self.leadership.term, self.now.mono);
        let room = &mut self.room;
        if leader == self.id || leader == 0 {
            room.is_reported = false;
            return;
        }
        let is_new = room.reported_in != term;
        if room.is_low && (is_new || now >= room.report_at) {
            (room.reported_in, room.report_at) = (term, now + REQUEST_PERIOD);
            room.is_reported = true;
            self.effects.messages.push((leader, PeerMessage::DiskLow { low: true }));
        } else if !room.is_low && std::mem::take(&mut room.is_reported) && !is_new {
            // If this message is lost, the last report soon ends.
            self.effects.messages.push((leader, PeerMessage::DiskLow { low: false }));
        }
    }

    /// A member reports the room on its disk to this leader.
    pub(super) fn take_disk_low(&mut self, from: NodeId, low: bool) {
        let until = self.now.mono + REQUEST_TIME;
        if self.is_member(from)
            && let Some(leading) = &mut self.leading
        {
            match low {
                true => leading.members.disk_low.insert(from, until),
                false => leading.members.disk_low.remove(&from),
            };
        }
    }

    /// The leader reports which members have little room.
    pub(super) fn take_room_report(&mut self, from: NodeId, low: Vec<NodeId>, refuses: bool) {
        if from == self.raft.leader() && low.len() <= MEMBERS_MAX {
            self.note_room_report(low.into_iter().collect(), refuses);
        }
    }

    /// Notes which members have little room, and whether writes are refused for that. This holds until
    /// the next report, also after a change of the leader.
    pub(super) fn note_room_report(&mut self, low: BTreeSet<NodeId>, refuses_writes: bool) {
        if !self.room.differs(&low, refuses_writes) {
            return;
        }
        let node = self.named(self.id);
        match (self.room.refuses_writes, refuses_writes) {
            (false, true) => tracing::warn!(%node, "writes are refused: disks are nearly full"),
            (true, false) => tracing::info!(%node, "writes are taken again: disks have room"),
            _ => {}
        }
        let (roster, _) = self.machine.roster();
        let error = refuses_writes.then(|| {
            disk_low(&low, |node| roster.get(node).map(|seat| seat.member.address.clone()))
        });
        self.local.refuse_writes(error);
        (self.room.low, self.room.refuses_writes) = (low, refuses_writes);
    }

    /// Whether this leader knows that a member has little room.
    pub(super) fn is_disk_low(&self, node: NodeId) -> bool {
        if node == self.id {
            return self.room.is_low;
        }
        let until = self.leading.as_ref().and_then(|leading| leading.members.disk_low.get(&node));
        until.is_some_and(|until| self.now.mono < *until)
    }

    /// This leader's report: the members with little room, and whether too few voters answer and have
    /// room.
    pub(super) fn room_report(
        &self,
        leading: &Leading,
        silent: &BTreeSet<NodeId>,
    ) -> (BTreeSet<NodeId>, bool) {
        let others = leading.members.disk_low.keys().copied();
        let low: BTreeSet<NodeId> =
            others.chain([self.id]).filter(|node| self.is_disk_low(*node)).collect();
        let voting = self.raft.log().voting();
        let lacks_room = |voters: &[NodeId]| {
            let have =
                voters.iter().filter(|voter| !low.contains(voter) && !silent.contains(voter));
            2 * have.count() <= voters.len() && voters.iter().any(|voter| low.contains(voter))
        };
        let refuses = lacks_room(&voting.voters) || lacks_room(&voting.voters_outgoing);
        (low, refuses && !planted(Bug::FullDisksIgnored))
    }

    /// Whether this leader has little room, and another voter that could lead has enough. Handing over
    /// gains nothing if writes are refused.
    pub(super) fn has_the_full_disk(&self) -> bool {
        let Some(leading) = &self.leading else { return false };
        // Others have had the time to report their disks, and this leader has reported its own.
        let knows = self.room.low.contains(&self.id) && !self.room.refuses_writes;
        let could = |voter| !self.is_disk_low(voter) && self.is_level(leading, voter);
        self.room.is_low && knows && self.others_decide(could)
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
