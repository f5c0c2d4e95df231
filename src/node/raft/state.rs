//! What a node keeps for Raft beside raft-rs's own state: the leader that it has seen, its election timeout
//! and its last answer. Not here: what follows from it (`elections`, `leader_loss`, `heartbeats`).

use crate::node::io::Time;
use crate::node::message::RaftBody;
use crate::node::timings::ELECTION_TICKS;
use crate::types::membership::NodeId;

/// What a node is in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum RaftRole {
    Leader,
    Follower,
    Candidate,
    /// It asks whether it could win, and has not begun a new term (Raft thesis, section 9.6).
    PreCandidate,
}

/// How far a peer has the log, as the leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) struct Progress {
    /// The last entry that the peer is known to have on its disk.
    pub(in crate::node) matched: u64,
    /// The next entry to send.
    pub(in crate::node) next: u64,
    pub(in crate::node) sends: Sends,
    /// Whether it is sent nothing until it answers.
    pub(in crate::node) is_paused: bool,
    /// Whether something came from it in the last election timeout.
    pub(in crate::node) is_active: bool,
}

/// What a leader sends a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Sends {
    /// One append at a time, since it is not known how far the peer has the log.
    Probes,
    Entries,
    /// The state up to this index.
    State(u64),
}

/// The leader as this node has last acted on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) struct KnownLeader {
    pub(in crate::node) term: u64,
    pub(in crate::node) leader: NodeId,
}

#[derive(Debug)]
pub(in crate::node) struct Elections {
    pub(in crate::node) observed: KnownLeader,
    pub(super) random: u64,
    /// Our own election timeout, in ticks, and the term, role and leader it was drawn for.
    pub(super) timeout: usize,
    pub(super) drawn_for: (u64, RaftRole, NodeId),
    pub(super) leaderless_ticks: usize,
    /// Whether this node leaves it to others to stand first, since its wall clock is not the leader's.
    pub(in crate::node) stands_last: bool,
    /// The loss of the connection to the leader.
    pub(in crate::node) loss: Option<LeaderLoss>,
    /// The last pre-vote that was asked for while this node followed a leader, until the next tick.
    pub(super) asked: Option<(NodeId, u64, RaftBody)>,
    /// When this node last received something from a leader, or led. (On a learner, Raft never
    /// counts a leader as lost.)
    pub(in crate::node) led_at: Time,
    /// Whether this node has known a leader since it started.
    pub(in crate::node) knew_leader: bool,
}

impl Elections {
    pub(in crate::node) fn new(seed: u64, id: NodeId, now: Time, term: u64) -> Elections {
        Elections {
            observed: KnownLeader { term, leader: 0 },
            random: seed.rotate_left(32) ^ id,
            timeout: ELECTION_TICKS,
            drawn_for: (0, RaftRole::Leader, 0),
            leaderless_ticks: 0,
            stands_last: false,
            loss: None,
            asked: None,
            led_at: now,
            knew_leader: false,
        }
    }
}

/// A leader whose connection has ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::node) struct LeaderLoss {
    /// 0: no leader is known, since a start or for longer.
    pub(super) leader: NodeId,
    pub(super) ticks: usize,
    /// It is this node's turn, but its log was not on its disk when that came.
    pub(super) is_due: bool,
}

/// The last answer of a follower, and its term.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::node) struct LastAnswer {
    pub(super) at: Time,
    pub(super) term: u64,
    /// Whether a heartbeat came after it, and was not answered.
    pub(super) skipped: bool,
}
