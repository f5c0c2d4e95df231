//! How a node starts from its disk.

use std::collections::{BTreeSet, VecDeque};

use raft::{RawNode, ReadOnlyOption, eraftpb};

use super::io::{Effects, Now, Problem};
use super::membership::{Membership, VOTER_WINDOW};
use super::versions::Versions;
use crate::machine::Machine;
use crate::node::admin::Administration;
use crate::node::bootstrap::Founding;
use crate::node::bootstrap::driver::Bootstrap;
use crate::node::raft::divergence::Hashes;
use crate::node::raft::elections::{ELECTION_TICKS, Elections};
use crate::node::raft::heartbeats::LastAnswer;
use crate::node::raft::log::{MemLog, Position};
use crate::node::raft::logger;
use crate::node::raft::persistence::Persistence;
use crate::node::raft::quorum_loss::QuorumLoss;
use crate::node::raft::snapshot_transfer::Incoming;
use crate::node::replica::Replica;
use crate::node::replica::history::History;
use crate::node::room::Room;
use crate::node::sessions::LocalSessions;
use crate::node::stored::{Boot, HardState, Identity};
use crate::node::ticks::Ticks;
use crate::node::{Leadership, Node, NodeConfig, mixed};
use crate::planted::{Bug, planted, unless};
use crate::types::membership::{Member, NodeId, Promise};
use crate::types::metrics::Metrics;

/// The identity of a node on its disk.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    pub(crate) promise: Promise,
}

impl Node {
    /// The node of this origin, started from its disk. `machine` is the state of the checkpoint.
    ///
    /// # Errors
    /// The contradiction on disk. raft-rs must not be started from it.
    pub(crate) fn new(
        config: NodeConfig,
        origin: Origin,
        boot: Boot,
        machine: Machine,
        now: Now,
    ) -> Result<Node, String> {
        let Origin { identity, promise } = origin;
        let id = identity.node;
        let me = Member {
            node: id,
            uid: identity.uid,
            address: identity.address.clone(),
            zone: config.zone.clone(),
        };
        let checkpoint = Position { index: boot.checkpoint.index, term: boot.checkpoint.term };
        let raw = raft(id, &boot)?;
        let voting = &boot.checkpoint.voting;
        let members = voting.voters.iter().chain(&voting.learners).chain(&voting.voters_outgoing);
        let members: BTreeSet<NodeId> = members.copied().collect();
        let others = members.iter().filter(|member| **member != id);
        let peer_problems = others.map(|member| (*member, Some(Problem::not_yet()))).collect();
        let founded = promise.pledge.as_ref().map(|pledge| pledge.genesis.cluster);
        let founding = members.is_empty().then(|| {
            let (list, majority_after) = (&config.peers, config.majority_after);
            let cluster = identity.cluster;
            let me = me.clone();
            Founding::new(me, list, cluster, majority_after, promise, config.seed, now.mono)
        });
        let mut node = Node {
            id,
            me,
            elections: Elections::new(config.seed, id, now.mono),
            last_answer: LastAnswer::default(),
            leadership: Leadership { term: raw.raft.term, leader: 0 },
            ticks: Ticks::new(config.heartbeat, mixed(config.seed), now.mono),
            persistence: Persistence::new(checkpoint, boot.checkpoint_bytes, now.mono),
            local: LocalSessions::new(config.timings().election(), config.audit, config.seed),
            versions: Versions::new(config.version),
            membership: Membership::default(),
            closing: super::closing::Closing::default(),
            room: Room::default(),
            quorum_loss: QuorumLoss::default(),
            bootstrap: Bootstrap::new(identity, founding),
            administration: Administration::default(),
            leading: None,
            unapplied: VecDeque::new(),
            preparing: None,
            applied_now: 0,
            applies_on: false,
            incoming: Incoming::default(),
            staged: None,
            replaced: None,
            failed_transfers: Vec::new(),
            hashes: Hashes::default(),
            peer_problems,
            replica: Replica::new(History::new(
                machine.zxid(),
                config.log.history_changes,
                config.log.history_bytes,
            )),
            effects: Effects::default(),
            metrics: Metrics::default(),
            stopped: None,
            config,
            raw,
            machine,
            now,
        };
        if node.bootstrap.founding.is_none() && node.bootstrap.identity.cluster == 0 {
            // The node stopped between writing the founding state and the cluster's id.
            let founded = founded.ok_or("a state of no cluster")?;
            node.belong_to(founded);
        }
        node.pace();
        if voting.voters == [id] {
            // No other node could lead or vote.
            node.raw.campaign().map_err(|error| format!("Raft does not start: {error}"))?;
        }
        Ok(node)
    }
}

/// The most bytes of entries in a message, unless a single entry is larger.
pub(super) const MESSAGE_ENTRIES_BYTES: u64 = 1 << 20;

/// Raft, started from this.
pub(super) fn raft(id: NodeId, boot: &Boot) -> Result<RawNode<MemLog>, String> {
    let log = boot_log(boot)?;
    let raft_config = raft::Config {
        id,
        election_tick: ELECTION_TICKS,
        min_election_tick: ELECTION_TICKS,
        max_election_tick: 2 * ELECTION_TICKS,
        heartbeat_tick: 1,
        applied: boot.checkpoint.index,
        max_size_per_msg: MESSAGE_ENTRIES_BYTES,
        max_inflight_msgs: VOTER_WINDOW,
        check_quorum: !planted(Bug::LeaderStaysAlone),
        pre_vote: true,
        read_only_option: unless(
            Bug::ReadWithoutQuorum,
            ReadOnlyOption::Safe,
            ReadOnlyOption::LeaseBased,
        ),
        max_uncommitted_size: 64 << 20,
        max_committed_size_per_ready: 4 << 20,
        ..raft::Config::default()
    };
    RawNode::new(&raft_config, log, &logger::logger())
        .map_err(|error| format!("Raft does not start: {error}"))
}

/// The log that the disk held, checked so that raft-rs can start from it.
fn boot_log(boot: &Boot) -> Result<MemLog, String> {
    let checkpoint = Position { index: boot.checkpoint.index, term: boot.checkpoint.term };
    let mut outline = boot.outline.clone();
    let mut base = checkpoint;
    // Only the term of the first entry that was kept for lagging peers is used, since that of the entry
    // before it is not known.
    if let (Some(first), Some(last)) = (outline.first(), outline.last()) {
        if last != (checkpoint.index, checkpoint.term) || !outline.is_in_order() {
            return Err(format!(
                "the log {outline:?} does not lead to the checkpoint {checkpoint:?}"
            ));
        }
        let term = outline.term_at(first).unwrap_or(checkpoint.term);
        base = Position { index: first, term };
        outline.drop_before(first + 1);
    }
    let mut before = checkpoint;
    for entry in &boot.entries {
        if entry.index != before.index + 1 || entry.term < before.term {
            return Err(format!("entry {} does not follow {before:?}", entry.index));
        }
        before = Position { index: entry.index, term: entry.term };
    }
    if boot.hard_state.term < before.term {
        return Err(format!("term {} is before that of {before:?}", boot.hard_state.term));
    }
    let HardState { term, vote, commit } = boot.hard_state;
    let commit = commit.max(checkpoint.index);
    if commit > before.index {
        return Err(format!("entry {commit} is committed but the log ends at {}", before.index));
    }
    let hard_state = eraftpb::HardState { term, vote, commit, ..Default::default() };
    let entries = boot.entries.iter().map(eraftpb::Entry::from);
    let conf_state = eraftpb::ConfState::from(&boot.checkpoint.voting);
    Ok(MemLog::new(base, outline, entries, hard_state, conf_state, checkpoint))
}
