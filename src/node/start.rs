//! How a node starts from its disk.

use std::collections::BTreeSet;

use super::io::{Effects, Now, Problem};
use super::membership::Membership;
use super::versions::Versions;
use crate::machine::Machine;
use crate::node::admin::Administration;
use crate::node::bootstrap::Founding;
use crate::node::bootstrap::driver::Bootstrap;
use crate::node::raft::core::Raft;
use crate::node::raft::divergence::Hashes;
use crate::node::raft::elections::Elections;
use crate::node::raft::heartbeats::LastAnswer;
use crate::node::raft::log::Position;
use crate::node::raft::persistence::Persistence;
use crate::node::raft::quorum_loss::QuorumLoss;
use crate::node::raft::snapshot_transfer::Incoming;
use crate::node::replica::Replica;
use crate::node::replica::history::History;
use crate::node::room::Room;
use crate::node::sessions::LocalSessions;
use crate::node::stored::{Boot, Identity};
use crate::node::ticks::Ticks;
use crate::node::{Leadership, Node, NodeConfig, mixed};
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
        let raft = Raft::start(id, &boot)?;
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
            leadership: Leadership { term: raft.term(), leader: 0 },
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
            raft,
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
            node.raft.campaign()?;
        }
        Ok(node)
    }
}
