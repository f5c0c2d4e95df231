//! What goes into a node and what comes out: the whole boundary between the
//! deterministic core and the threads, clocks, disks and sockets around it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::command::Op;
use crate::machine::snapshot::ChunkReader;
use crate::machine::{Dirty, Machine, State, Tree};
use crate::node::admin::message::AdminRequest;
use crate::node::message::PeerMessage;
use crate::node::query::{Answer, Query};
use crate::node::stored::{HardState, Identity, LogEntry, LogWrite, SnapshotMeta};
use crate::types::acl::Id;
use crate::types::error::Error;
use crate::types::log_form::LogForm;
use crate::types::membership::{Member, NodeId, Promise};
use crate::types::session::SessionState;
use crate::types::watch::WatchEvent;
use crate::types::znode::{SessionId, Zxid};

/// Monotonic time since the node's epoch, which is the host's to choose.
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
    /// Those of clients without a replica are numbered by their member, apart from its host's.
    const CLIENT: u64 = 1 << 63;

    pub(crate) fn of_client(number: u64) -> WatchId {
        WatchId(number | WatchId::CLIENT)
    }

    pub(crate) fn is_client(self) -> bool {
        self.0 & WatchId::CLIENT != 0
    }
}

/// A session as one of its holders has it. Two handles on one node may have held the same session,
/// one after the other, and what concerns the first must not reach the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Holding {
    #[serde(with = "LogForm")]
    pub(crate) session: SessionId,
    pub(crate) holder: u64,
}

/// Why a peer cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// For people.
    pub(crate) reason: String,
    /// It was reached, and refuses this node: it belongs to another cluster, or one of the two is
    /// too old for the other. Waiting does not help.
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
    /// A connection to the peer was made, which can do this version: what was sent before may be
    /// lost.
    Connected { peer: NodeId, version: u16 },
    /// The peer cannot be reached.
    Unreachable { peer: NodeId, problem: Problem },
    /// A user's request.
    Client(ClientRequest),
    /// Every [`DiskOp`] up to this number that has one is durable.
    Written { number: u64 },
    /// The checkpoint at this index is durable, and takes so many bytes.
    CheckpointDone { index: u64, bytes: u64 },
    /// Entries from this index on, for [`DiskOp::Read`]. None if the disk does not have the first, or
    /// cannot read it now.
    Read { from: u64, entries: Vec<LogEntry> },
    /// The state that the chunks of this transfer make, for [`DiskOp::Build`], or why they make none.
    Built { transfer: u64, machine: Result<Box<Machine>, String> },
    /// A cold piece of the log was found damaged, as described. A log that begins with this entry does not
    /// need it.
    Rotten { what: String, below: u64 },
    /// The file system of the data directory has so many bytes of room, of so many.
    DiskSpace { free: u64, total: u64 },
    /// The disk or something else that the node cannot do without has failed.
    Failed { reason: String },
    /// The session is to be expired now, as if its time were up. Only a leader acts on it.
    Expire { session: SessionId },
    /// The node is about to be stopped: if it leads, it hands over first.
    Resign,
    /// The node is to be a member no more.
    Leave,
    /// What forbids this node to found a cluster, from now on; `None`: nothing does.
    Hindered(Option<Hindrance>),
    /// The addresses of the name that the node discovers its peers by.
    Discovered(Discovered),
}

/// Why a node must not found a cluster, though it is on the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hindrance {
    /// For people: what is wrong, and what to do.
    pub(crate) reason: String,
    /// It must not join one either.
    pub(crate) forbids_joining: bool,
}

/// What a name stands for by which nodes discover each other.
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

/// What a user's handle asks of its node. Requests of one session are executed
/// in the order in which they come in, reads included.
#[derive(Debug)]
pub(crate) enum ClientRequest {
    /// Answered with `Reply::Session`. The id, `holder` and secret are random.
    /// Requests of the session may follow at once, without waiting for the answer.
    Open {
        request: RequestId,
        session: SessionId,
        holder: u64,
        secret: [u8; 16],
        timeout: Duration,
    },
    /// The same for a session that exists already. Without a timeout it keeps its own.
    Resume {
        request: RequestId,
        session: SessionId,
        holder: u64,
        secret: [u8; 16],
        timeout: Option<Duration>,
    },
    /// As whom the session is known, whatever its user says. Not answered.
    Introduce { session: SessionId, ids: Vec<Id> },
    /// Answered with the `Reply` that fits the command.
    Write { request: RequestId, session: SessionId, command: Write },
    /// Answered from this replica, once all earlier requests of the session are.
    Query { request: RequestId, session: SessionId, query: Query },
    /// Answered with [`Answer::Admin`], whether there is a leader or not.
    Admin { request: RequestId, asked: AdminRequest },
    /// The holder lets go of the session without closing it: it is kept alive no longer, and can be
    /// resumed until it expires. Not answered. With the final state that it is in for its holder.
    Abandon { session: SessionId, state: SessionState },
    /// Ends a watch of any kind. Not answered.
    Unwatch { watch: WatchId },
}

#[derive(Debug)]
pub(crate) enum Write {
    Op(Op),
    Multi(Vec<Op>),
    Authenticate(Vec<Id>),
    /// Closes the session. Answered with `Reply::Done`, also when it was gone already.
    Close,
}

impl Write {
    /// Whether it may make the state larger, or is a user's write that other members must keep.
    pub(crate) fn takes_room(&self) -> bool {
        let frees =
            |op: &Op| matches!(op, Op::Delete { .. } | Op::DeleteTree { .. } | Op::Check { .. });
        match self {
            Write::Op(op) => !frees(op),
            Write::Multi(ops) => !ops.iter().all(frees),
            Write::Authenticate(_) | Write::Close => false,
        }
    }
}

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
    /// Until when (exclusive) this node may take a session of its own for alive, as that holder.
    pub(crate) leases: Vec<(Holding, Time)>,
    /// Changes of state of this node's sessions, before the replies that rest on them.
    pub(crate) sessions: Vec<(Holding, SessionState)>,
    /// The ids that this node's sessions have from now on, before the replies that show them.
    pub(crate) ids: Vec<(Holding, Vec<Id>)>,
    /// Answers to requests.
    pub(crate) replies: Vec<Answered>,
    /// The last write in the state by which what follows is answered.
    pub(crate) zxid: Zxid,
    /// The node has stopped for good. Every request has been answered, every session ended.
    pub(crate) stopped: Option<String>,
    /// The members of the cluster, when they have changed. A member is to be connected with all of
    /// them.
    pub(crate) members: Option<Vec<Member>>,
    /// Whom a client is to be connected with, when that has changed.
    pub(crate) dial: Option<Dial>,
    /// The cluster that the node belongs to, once it is on its disk.
    pub(crate) cluster: Option<u64>,
    /// When the node wants its next step, at the latest, if nothing comes in before.
    pub(crate) wake_at: Time,
}

/// An answer to a request.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) request: RequestId,
    /// Events of writes up to this one come before the answer, later ones behind it.
    pub(crate) zxid: Zxid,
    pub(crate) answer: Result<Answer, Error>,
}

impl Effects {
    /// Answers a request by the state as it is now.
    pub(crate) fn reply(&mut self, request: RequestId, answer: Result<Answer, Error>) {
        self.reply_at(self.zxid, request, answer);
    }

    /// Answers a request by an earlier state.
    pub(crate) fn reply_at(
        &mut self,
        zxid: Zxid,
        request: RequestId,
        answer: Result<Answer, Error>,
    ) {
        self.replies.push(Answered { request, zxid, answer });
    }
}

/// Whom a client is to be connected with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dial {
    pub(crate) members: Vec<Member>,
    /// Whether it looks for members at the addresses of its list, too.
    pub(crate) seeks: bool,
}

impl Dial {
    /// As a client starts: it has its list alone.
    pub(crate) fn seeking() -> Dial {
        Dial { members: Vec::new(), seeks: true }
    }

    pub(crate) fn names(&self, node: NodeId) -> bool {
        self.members.iter().any(|member| member.node == node)
    }

    /// Whether a connection with this node, if one is found, is wanted.
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
    /// Writes a checkpoint, as a delta of `dirty` or in full as the store wants, and then drops
    /// the log below `keep_from`. Writes that come after it need not wait for it. Answered by
    /// [`Input::CheckpointDone`].
    Checkpoint { meta: SnapshotMeta, state: State, dirty: Dirty, keep_from: u64 },
    /// Reads entries from this index on that were written before, as many as take so many bytes, or one.
    /// What comes after it need not wait. Answered by [`Input::Read`].
    Read { from: u64, bytes: u64 },
    /// Completes and checks the state that a leader's chunks make, which takes as long as it is large.
    /// What comes after it need not wait. Answered by [`Input::Built`].
    Build { transfer: u64, reader: Box<ChunkReader>, zxid: Zxid, hash: u64 },
    /// Drops a state that a leader's has replaced, which takes as long. Not answered.
    Drop { state: State },
    /// Replaces the node's identity, in which only the cluster (from none) and the address may
    /// change. Answered by [`Input::Written`].
    Identify { number: u64, identity: Identity },
    /// Replaces what the node has promised while it had no cluster. Answered by
    /// [`Input::Written`].
    Promise { number: u64, promise: Promise },
    /// Marks the disk as that of a member that was removed, which never starts from it again.
    /// Answered by [`Input::Written`].
    Removed { number: u64 },
}

/// What can be said of the node at any time, for `Coordinator::status`.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeStatus {
    pub(crate) leader: Option<NodeId>,
    pub(crate) is_leader: bool,
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
    /// The version that the cluster acts by, and the highest that this node can do.
    pub(crate) version: u16,
    pub(crate) own_version: u16,
    /// The highest versions that other members support, as far as this node knows them.
    pub(crate) versions: Vec<(NodeId, u16)>,
    pub(crate) availability: Availability,
    /// It has been a voter or a settled learner since it started: it is not about to take a voter's
    /// place.
    pub(crate) is_placed: bool,
    /// Why there is no cluster yet.
    pub(crate) bootstrap_problem: Option<String>,
    /// Why nobody can lead the cluster.
    pub(crate) quorum_loss: Option<String>,
    /// The addresses of instances that have no data and wait for a leader to take them in.
    pub(crate) blank: Vec<String>,
}

/// What the cluster has to decide with. Clients are sent it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Availability {
    pub(crate) voters: Vec<NodeId>,
    pub(crate) learners: Vec<NodeId>,
    /// Those who voted before, while a change of several votes is made: they decide, too.
    pub(crate) outgoing: Vec<NodeId>,
    /// The voters that are silent to the leader, or store nothing, by its last report.
    pub(crate) silent: Vec<NodeId>,
    pub(crate) has_leader: bool,
    /// That report is the present leader's.
    pub(crate) is_reported: bool,
    /// The members whose disks are nearly full, by the same report.
    pub(crate) disk_low: Vec<NodeId>,
    /// These are so many voters that the leader has writes refused.
    pub(crate) refuses_writes: bool,
}

impl Availability {
    /// How many more voters could be lost before nothing can be decided, if those of `is_lost` are
    /// lost already; `None` if nothing can be decided now.
    pub(crate) fn spare(&self, is_lost: impl Fn(NodeId) -> bool) -> Option<usize> {
        let spare = |voters: &Vec<NodeId>| {
            let alive = voters.iter().filter(|voter| !is_lost(**voter)).count();
            alive.checked_sub(voters.len() / 2 + 1)
        };
        let incoming = spare(&self.voters)?;
        let outgoing = if self.outgoing.is_empty() { incoming } else { spare(&self.outgoing)? };
        Some(incoming.min(outgoing))
    }
}
