//! The inputs and effects of a node: the whole boundary between the deterministic core and the
//! threads, clocks, disks and sockets around it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::snapshot::ChunkReader;
use crate::machine::{Dirty, Machine, State, Tree};
use crate::node::message::PeerMessage;
use crate::node::query::Answer;
use crate::node::request::ClientRequest;
use crate::node::stored::{HardState, Identity, LogEntry, LogWrite, SnapshotMeta};
use crate::types::acl::Id;
use crate::types::certificate::Expiry;
use crate::types::error::Error;
use crate::types::log_form::LogForm;
use crate::types::membership::{Member, NodeId, Promise};
use crate::types::right::Connection;
use crate::types::session::SessionState;
use crate::types::watch::WatchEvent;
use crate::types::znode::{SessionId, Zxid};

/// Monotonic time since the node's epoch, which the host chooses.
pub(crate) type Time = Duration;

/// The two clocks of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Decides timeouts. Never goes back.
    pub(crate) mono: Time,
    /// Milliseconds since the Unix epoch. Only stamped on writes, never compared with a deadline.
    pub(crate) wall_ms: u64,
}

/// A request of this node's user, by a number that the host never uses twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// A watch, by a number that the host never uses twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct WatchId(pub(crate) u64);

impl WatchId {
    /// Marks the watches of clients without a replica, which their member numbers itself.
    const CLIENT: u64 = 1 << 63;

    pub(crate) fn of_client(number: u64) -> WatchId {
        WatchId(number | WatchId::CLIENT)
    }

    pub(crate) fn is_client(self) -> bool {
        self.0 & WatchId::CLIENT != 0
    }
}

/// A session and one of its holders. Two handles on one node may hold the same session, one after
/// the other, and messages for the first must not reach the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct SessionHolder {
    #[serde(with = "LogForm")]
    pub(crate) session: SessionId,
    pub(crate) holder: u64,
}

/// Why a peer cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    /// For people.
    pub(crate) reason: String,
    /// Whether the peer was reached and refuses this node: it belongs to another cluster, or one of
    /// the two is too old for the other. Waiting does not help.
    pub(crate) refused: bool,
}

impl Problem {
    pub(crate) fn not_yet() -> Problem {
        Problem { reason: "not connected yet".to_owned(), refused: false }
    }
}

/// Something that happened outside of the node.
#[derive(Debug)]
pub(crate) enum Input {
    /// A peer's message, from an authenticated connection.
    Peer { from: NodeId, message: PeerMessage },
    /// A connection was made to the peer, which supports this version. Earlier messages may be
    /// lost.
    Connected { peer: NodeId, version: u16 },
    /// The peer's messages come over this connection from now on; `None`: it has ended. If its credential is not a
    /// member's, the peer is a client, and its sessions have these ids, whatever it says.
    Authenticated { peer: NodeId, connection: Option<Connection>, ids: Vec<Id> },
    /// The peer cannot be reached.
    Unreachable { peer: NodeId, problem: Problem },
    /// Two processes run as one node, and one of them was refused.
    Duplicate { reason: String },
    /// No peer was found at this address of the list.
    SeedUnreachable { address: String, problem: Problem },
    /// A user's request.
    Client(ClientRequest),
    /// Ends a watch of any kind.
    Unwatch(WatchId),
    /// An admin endpoint of this instance listens at this address, or no longer: for its reports.
    #[cfg_attr(not(feature = "admin"), allow(dead_code, reason = "admin endpoints only"))]
    AdminEndpoint { address: SocketAddr, listens: bool },
    /// All numbered [`DiskOp`]s up to this number are durable.
    Written { number: u64 },
    /// The checkpoint at this index is durable, and takes so many bytes.
    CheckpointDone { index: u64, bytes: u64 },
    /// A checkpoint could not be written, for this reason, and is tried again later.
    CheckpointDelayed { reason: String },
    /// Entries from this index on, for [`DiskOp::Read`]. Empty if the disk does not have the first
    /// one or cannot read it now.
    Read { from: u64, entries: Vec<LogEntry> },
    /// The state built from the chunks of this transfer, for [`DiskOp::Build`], or why it could not
    /// be built.
    Built { transfer: u64, machine: Result<Box<Machine>, String> },
    /// A cold piece of the log was found damaged, as described. A log that begins with this entry does not
    /// need it.
    Rotten { what: String, below: u64 },
    /// The free bytes and the size of the data directory's file system.
    DiskSpace { free: u64, total: u64 },
    /// Those of the log's file system, if the log is not in the data directory.
    LogSpace { free: u64, total: u64 },
    /// What only the host knows of this instance, for reports.
    Host(HostFacts),
    /// The disk, or something else that the node needs, has failed.
    Failed { reason: String },
    /// Expire the session now, as if its time were up. Only a leader acts on it.
    Expire { session: SessionId },
    /// Nothing but heartbeats happens until then, which is still to come: all members are there, and so is whoever
    /// holds a session. Only an in-memory cluster knows that. It skips the time.
    Idle { until: Time },
    /// If the node leads, it hands over.
    Resign,
    /// The node is being closed: see [`closing`](super::closing). `done`: its sessions are closed.
    /// `resigns`: if it leads, it hands over. Repeated with each step.
    Closing { done: bool, resigns: bool },
    /// The node is to leave the cluster for good.
    Leave,
    /// The reason why this node must not found a cluster, from now on; `None`: it may.
    Hindered(Option<Hindrance>),
    /// The addresses of the name by which the node discovers its peers.
    Discovered(Discovered),
}

/// What only the host knows of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostFacts {
    /// Since when the disk has not answered a write, if that is long.
    pub(crate) disk_hangs_since: Option<Time>,
    /// How many directories with former data there are that were damaged.
    pub(crate) former_directories: u64,
    /// Of the certificates that are used, the one that expires first.
    pub(crate) certificate: Option<Expiry>,
}

/// Why a node must not found a cluster, though it is on the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hindrance {
    /// For people: what is wrong, and what to do.
    pub(crate) reason: String,
    /// It must not join one either.
    pub(crate) forbids_joining: bool,
}

/// The addresses of a name by which nodes discover each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discovered {
    /// The name, with its port.
    pub(crate) name: String,
    /// How many instances it takes to found a cluster.
    pub(crate) expected: usize,
    /// Whether the node may found one; otherwise it only joins.
    pub(crate) founds: bool,
    /// The addresses of the name; none if they change, or are not known yet.
    pub(crate) addresses: Vec<String>,
}

/// Longer lists of effects are not kept for later ones. A busy session has about so many answers in a step.
const REUSED_MAX: usize = 1024;

/// What the host must do after a step, in the order of the fields.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Sent to peers; may be lost.
    pub(crate) messages: Vec<(NodeId, PeerMessage)>,
    /// Handed to the disk, in this order.
    pub(crate) disk: Vec<DiskOp>,
    /// Put into the watches' channels before `tree` is published.
    pub(crate) events: Vec<(WatchId, WatchEvent)>,
    /// Watches that are over, because they fired (one-shot) or their session is: their channels
    /// close after the events above.
    pub(crate) ended: Vec<WatchId>,
    /// Published for local reads.
    pub(crate) tree: Option<Tree>,
    /// Until when (exclusive) this node may count a session as alive for this holder.
    pub(crate) leases: Vec<(SessionHolder, Time)>,
    /// Changes of state of this node's sessions, before the replies that depend on them.
    pub(crate) sessions: Vec<(SessionHolder, SessionState)>,
    /// The new ids of this node's sessions, before the replies that show them.
    pub(crate) ids: Vec<(SessionHolder, Vec<Id>)>,
    /// Answers to requests.
    pub(crate) replies: Vec<Answered>,
    /// The last write in the state from which the next requests are answered.
    pub(crate) zxid: Zxid,
    /// The node has stopped for good. Every request has been answered, every session ended.
    pub(crate) stopped: Option<String>,
    /// The members of the cluster, when they have changed. A member is to be connected with all of
    /// them.
    pub(crate) members: Option<Vec<Member>>,
    /// The members that a client is to be connected with, when they have changed.
    pub(crate) dial: Option<Dial>,
    /// The cluster that the node belongs to, once it is on its disk.
    pub(crate) cluster: Option<u64>,
    /// When the node needs its next step at the latest, unless an input comes first.
    pub(crate) wake_at: Time,
}

/// An answer to a request.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) request: RequestId,
    /// Events of writes up to this one come before the answer, later ones after it.
    pub(crate) zxid: Zxid,
    pub(crate) answer: Result<Answer, Error>,
}

impl Effects {
    /// No effects, in the memory of former ones: almost every step has some of these three.
    pub(crate) fn reusing(
        mut messages: Vec<(NodeId, PeerMessage)>,
        mut disk: Vec<DiskOp>,
        mut replies: Vec<Answered>,
    ) -> Effects {
        fn empty<T>(list: &mut Vec<T>) {
            list.clear();
            list.shrink_to(REUSED_MAX);
        }
        empty(&mut messages);
        empty(&mut disk);
        empty(&mut replies);
        Effects { messages, disk, replies, ..Effects::default() }
    }

    /// Answers a request from the present state.
    pub(crate) fn reply(&mut self, request: RequestId, answer: Result<Answer, Error>) {
        self.reply_at(self.zxid, request, answer);
    }

    /// Answers a request from an earlier state.
    pub(crate) fn reply_at(
        &mut self,
        zxid: Zxid,
        request: RequestId,
        answer: Result<Answer, Error>,
    ) {
        self.replies.push(Answered { request, zxid, answer });
    }
}

/// The members that a client is to be connected with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dial {
    pub(crate) members: Vec<Member>,
    /// Whether it also looks for members at the addresses of its list.
    pub(crate) seeks: bool,
}

impl Dial {
    /// The start of a client, which has only its list.
    pub(crate) fn seeking() -> Dial {
        Dial { members: Vec::new(), seeks: true }
    }

    pub(crate) fn names(&self, node: NodeId) -> bool {
        self.members.iter().any(|member| member.node == node)
    }

    /// Whether a connection with this node is wanted.
    pub(crate) fn wants(&self, node: NodeId) -> bool {
        self.seeks || self.names(node)
    }
}

/// Work for the disk.
#[derive(Debug)]
pub(crate) enum DiskOp {
    /// Answered by [`Input::Written`]; several may be written as one.
    Write { number: u64, write: LogWrite },
    /// Replaces everything by this state, which a leader sent. Answered by [`Input::Written`].
    Install { number: u64, hard_state: HardState, meta: SnapshotMeta, state: State },
    /// Writes a checkpoint, as a delta of `dirty` or in full as the store wants, and then drops the
    /// log below `keep_from`. Later writes need not wait for it. Answered by
    /// [`Input::CheckpointDone`].
    Checkpoint { meta: SnapshotMeta, state: State, dirty: Dirty, keep_from: u64 },
    /// Reads earlier written entries from this index on: up to this many bytes, but at least one entry.
    /// Later operations need not wait. Answered by [`Input::Read`].
    Read { from: u64, bytes: u64 },
    /// Completes and checks the state from a leader's chunks, which takes time in proportion to its
    /// size. Later operations need not wait. Answered by [`Input::Built`].
    Build { transfer: u64, reader: Box<ChunkReader>, zxid: Zxid, hash: u64 },
    /// Drops a state that a leader's state has replaced, which takes as long. Not answered.
    Drop { state: State },
    /// Replaces the node's identity, in which only the cluster (from none) and the address may
    /// change. Answered by [`Input::Written`].
    Identify { number: u64, identity: Identity },
    /// Replaces the promise of a node without a cluster. Answered by [`Input::Written`].
    Promise { number: u64, promise: Promise },
    /// Marks the disk as that of a removed member, which never starts from it again. Answered by
    /// [`Input::Written`].
    Removed { number: u64 },
}

/// The status of the node, for `Coordinator::status`.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeStatus {
    pub(crate) leader: Option<NodeId>,
    pub(crate) is_leader: bool,
    /// Since when it serves as the leader.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "only gateways show it"))]
    pub(crate) leads_since: Option<Time>,
    pub(crate) term: u64,
    pub(crate) zxid: Zxid,
    pub(crate) hash: u64,
    /// When this replica was last known to hold every completed write; `None`: never yet.
    pub(crate) fresh_at: Option<Time>,
    /// Open sessions in the whole cluster.
    pub(crate) sessions: usize,
    /// Znodes in the tree.
    pub(crate) znodes: usize,
    /// For each other member: why it cannot be reached, or `None` when it can.
    pub(crate) peers: Vec<(NodeId, Option<Problem>)>,
    /// When a member that cannot be reached last told what was wrong with it, and what.
    pub(crate) last_reports: Vec<(NodeId, (Time, String))>,
    /// The version that the cluster acts by, and the highest that this node supports.
    pub(crate) version: u16,
    pub(crate) own_version: u16,
    /// The highest versions that other members support, as far as this node knows them.
    pub(crate) versions: Vec<(NodeId, u16)>,
    pub(crate) availability: QuorumState,
    /// Whether it has been a voter or a settled learner since it started, so that it will not take
    /// a voter's place.
    pub(crate) is_placed: bool,
    /// Why there is no cluster yet; on a client, that it has found no member yet.
    pub(crate) bootstrap_problem: Option<String>,
    /// The addresses of the list where no peer is found, and why, while that is so.
    pub(crate) seeds: Vec<(String, Problem)>,
    /// Whether it is a client, without a replica.
    pub(crate) is_client: bool,
    /// Whether it is not a member of its cluster yet.
    pub(crate) joins: bool,
    /// Why nobody can lead the cluster.
    pub(crate) quorum_loss: Option<String>,
    /// The members as which two processes run, as sentences.
    pub(crate) duplicates: Vec<String>,
}

/// Which members the cluster has to decide with. It is sent to clients unchanged. What it means for users is
/// their [`Availability`](crate::types::availability::Availability).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuorumState {
    pub(crate) voters: Vec<NodeId>,
    pub(crate) learners: Vec<NodeId>,
    /// The former voters during a joint change: they decide too.
    pub(crate) outgoing: Vec<NodeId>,
    /// The voters that are silent to the leader or store nothing, by the leader's last report.
    pub(crate) silent: Vec<NodeId>,
    pub(crate) has_leader: bool,
    /// Whether the present leader has sent that report.
    pub(crate) is_reported: bool,
    /// The members whose disks are nearly full, by the same report.
    pub(crate) disk_low: Vec<NodeId>,
    /// Whether so many voters' disks are nearly full that writes are refused.
    pub(crate) refuses_writes: bool,
}

/// How many more of these voters may be lost before they are no majority, if those of `is_lost` are lost
/// already; `None` if they are none now.
pub(crate) fn spare<T: Copy>(
    voters: impl IntoIterator<Item = T>,
    is_lost: impl Fn(T) -> bool,
) -> Option<usize> {
    let (mut voting, mut lost) = (0_usize, 0);
    for voter in voters {
        voting += 1;
        lost += usize::from(is_lost(voter));
    }
    (voting - lost).checked_sub(voting / 2 + 1)
}

impl QuorumState {
    /// How many more voters may be lost before writes end, if `gone` is lost too; `None` if they end with that, or
    /// have ended. A voter whose disk is nearly full counts as lost, as one that is silent: see
    /// [`room`](super::room).
    pub(crate) fn spare(&self, gone: Option<NodeId>) -> Option<usize> {
        self.spare_without(|voter| {
            let is_lost = self.silent.contains(&voter) || self.disk_low.contains(&voter);
            is_lost || gone == Some(voter)
        })
    }

    /// Whether those that are not silent can decide: elect a leader, and store what it proposes.
    pub(crate) fn decides(&self) -> bool {
        self.spare_without(|voter| self.silent.contains(&voter)).is_some()
    }

    /// Whether the others could ever decide without this voter.
    pub(crate) fn could_decide_without(&self, gone: NodeId) -> bool {
        self.spare_without(|voter| voter == gone).is_some()
    }

    fn spare_without(&self, is_lost: impl Fn(NodeId) -> bool) -> Option<usize> {
        let spare = |voters: &[NodeId]| spare(voters.iter().copied(), &is_lost);
        let incoming = spare(&self.voters)?;
        let outgoing = if self.outgoing.is_empty() { incoming } else { spare(&self.outgoing)? };
        Some(incoming.min(outgoing))
    }
}
