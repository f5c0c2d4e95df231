//! The content of the log: batches of requests, and the results of applying one.
//!
//! The encoding is postcard. Enum variants are only ever appended (`version`),
//! and a batch starts with its format number, so that an unknown one is refused
//! by name and never skipped. Values that users see, such as a stat, have the form
//! of `types::log_form`.

mod size;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::data::Data;
use crate::types::acl::{AccessList, Acl, Id, Permissions};
use crate::types::counter::CounterForm;
use crate::types::encoding;
use crate::types::error::{Error, id_refused, invalid_ttl};
use crate::types::log_form::LogForm;
use crate::types::membership::{NodeId, Seat};
use crate::types::queue::QueueOrder;
#[cfg(any(test, feature = "simulator"))]
use crate::types::version::INVENTED;
use crate::types::version::{FIRST, is_above};
use crate::types::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat, Zxid};

/// The format of [`Batch`].
pub(crate) const BATCH_FORMAT: u8 = 1;

/// The payload of one Raft entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// The leader's wall clock, milliseconds since the Unix epoch.
    pub(crate) time: u64,
    pub(crate) requests: Vec<Request>,
}

impl Batch {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let requests = self.requests.iter().map(|request| request.command.size());
        let mut bytes = Vec::with_capacity(64 + requests.sum::<usize>());
        bytes.push(BATCH_FORMAT);
        encoding::append(self, bytes)
    }

    /// The version that a node must support to apply the batch.
    pub(crate) fn version(&self) -> u16 {
        self.requests.iter().map(|request| request.command.version()).max().unwrap_or(FIRST)
    }

    /// Decodes the output of [`Batch::encode`]. The error for anything else is a description.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Batch, String> {
        match bytes.split_first() {
            Some((&BATCH_FORMAT, rest)) => match postcard::take_from_bytes(rest) {
                Ok((batch, [])) => Ok(batch),
                Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
                Err(error) => Err(error.to_string()),
            },
            Some((format, _)) => Err(format!("unknown batch format {format}")),
            None => Err("empty".to_owned()),
        }
    }
}

/// One command of one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    #[serde(with = "LogForm")]
    pub(crate) session: SessionId,
    /// The holder of the session: a random number, drawn when the session was opened or resumed. A
    /// request of an earlier holder is refused as moved.
    pub(crate) holder: u64,
    /// The request's place among those of this holder: 0 for [`Command::Open`]
    /// and [`Command::Resume`], then 1, 2, 3, ... [`Command::Expire`] has none (0).
    pub(crate) seq: u64,
    /// The results of all requests below this number have arrived and may be forgotten.
    pub(crate) acked: u64,
    pub(crate) command: Command,
}

/// The timeout in a [`Command::Resume`] that keeps the session's timeout.
pub(crate) const TIMEOUT_KEPT: u32 = 0;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Opens the session with the id `Request::session`.
    /// `base` is the last zxid that its node had seen when the session was first requested. It
    /// distinguishes a late copy of this request, after the session has ended, from a new session.
    Open { secret: [u8; 16], timeout_ms: u32, owner: NodeId, base: Zxid },
    /// Hands the session to a new holder, if the secret is right. With [`TIMEOUT_KEPT`] the session
    /// has the timeout that it had.
    Resume { secret: [u8; 16], timeout_ms: u32, owner: NodeId },
    /// Closes the session at its holder's request.
    Close,
    /// Closes the session because its node did not renew it in time. Valid only in the term in which the
    /// leader decided it, and only against the holder at that time (`Request::holder`).
    Expire { term: u64 },
    /// A single operation.
    Op(Op),
    /// Several operations, all or none, with one zxid.
    Multi(Vec<Op>),
    /// Deletes a container that is not used any more, or a znode whose time to live is over, if this
    /// still holds. A request of the leader, without a session.
    Reap { path: String },
    /// Adds ids to the session, for as long as it has this holder.
    Authenticate {
        #[serde(with = "LogForm")]
        ids: Vec<Id>,
    },
    /// Raises the version that the cluster uses. A request of the leader, once all members support the
    /// version.
    RaiseVersion { version: u16 },
    /// Replaces the list of members, if it has been replaced `version` times before. A request of the
    /// leader.
    Configure { version: u64, seats: Vec<Seat> },
}

impl Command {
    /// The lowest version of a cluster that may have this in its log.
    pub(crate) fn version(&self) -> u16 {
        match self {
            Command::Op(op) => op.version(),
            Command::Multi(ops) => ops.iter().map(Op::version).max().unwrap_or(FIRST),
            // A cluster of a lower version applies this command, but a member that is too old must stop.
            Command::RaiseVersion { version } => *version,
            Command::Open { .. }
            | Command::Resume { .. }
            | Command::Close
            | Command::Expire { .. }
            | Command::Reap { .. }
            | Command::Authenticate { .. }
            | Command::Configure { .. } => FIRST,
        }
    }

    /// The error if the command needs a higher version than the cluster uses.
    pub(crate) fn unsupported(&self, cluster: u16) -> Option<OpError> {
        let mut ops = self.ops().iter();
        let index = ops.position(|op| is_above(op.version(), cluster))?;
        let op = &self.ops()[index];
        let (what, needs) = (op.name().to_owned(), op.version());
        let error = OpError::Unsupported { what, needs, cluster };
        Some(if matches!(self, Command::Multi(_)) { error.in_multi(index) } else { error })
    }

    /// The operations of the command.
    pub(super) fn ops(&self) -> &[Op] {
        match self {
            Command::Op(op) => std::slice::from_ref(op),
            Command::Multi(ops) => ops,
            _ => &[],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// Creates a znode that does not exist yet. In a sequential mode, its number is appended to the path.
    Create {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        data: Data,
        #[serde(with = "LogForm")]
        mode: CreateMode,
    },
    /// Sets the data of a znode, which must have this version if one is given.
    Set {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        data: Data,
        version: Option<u64>,
    },
    /// Deletes a znode without children, which must have this version if one is given.
    Delete {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        version: Option<u64>,
    },
    /// Checks a condition. Changes nothing.
    Check {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        #[serde(with = "LogForm")]
        condition: Condition,
    },
    /// Deletes the znode and everything below it.
    DeleteTree {
        #[serde(with = "LogForm")]
        path: Arc<str>,
    },
    /// As [`Op::Create`], with an access list.
    CreateWithAcl {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        data: Data,
        #[serde(with = "LogForm")]
        mode: CreateMode,
        #[serde(with = "LogForm")]
        acl: Vec<Acl>,
    },
    /// Sets the access list of a znode, which must have this aversion if one is given.
    SetAcl {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        #[serde(with = "LogForm")]
        acl: Vec<Acl>,
        version: Option<u64>,
    },
    /// Sets the data of the znode if it exists, and creates it otherwise. In a sequential mode, always a
    /// create.
    CreateOrSet {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        data: Data,
        #[serde(with = "LogForm")]
        mode: CreateMode,
    },
    /// Makes the znode an ephemeral of this session, if it is an ephemeral of `from` or does not exist.
    TakeOver {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        data: Data,
        #[serde(with = "LogForm")]
        from: SessionId,
    },
    /// Puts an item into the queue at this path, which exists: see `machine::queue`.
    Put {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        data: Data,
        order: Box<QueueOrder>,
    },
    /// Takes the first item of the queue at this path: with a claim, or else for good.
    Take {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        claims: bool,
    },
    /// Adds to the number that the data of this znode show in this form.
    ///
    /// With `within`, the number is a time in nanoseconds since the Unix epoch. It counts as the log's time if that
    /// is later, and the sum must be at most so much later than the log's time.
    Add {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        number: i64,
        #[serde(with = "LogForm")]
        form: CounterForm,
        within: Option<u64>,
    },
    /// Sets the data, as [`Op::Set`] does: the operation of a version that no release has.
    #[cfg(any(test, feature = "simulator"))]
    Invented {
        #[serde(with = "LogForm")]
        path: Arc<str>,
        data: Data,
    },
}

impl Op {
    /// The lowest version of a cluster that may have this in its log.
    pub(crate) fn version(&self) -> u16 {
        match self {
            Op::Create { .. }
            | Op::CreateWithAcl { .. }
            | Op::Set { .. }
            | Op::SetAcl { .. }
            | Op::CreateOrSet { .. }
            | Op::TakeOver { .. }
            | Op::Put { .. }
            | Op::Take { .. }
            | Op::Add { .. }
            | Op::Delete { .. }
            | Op::DeleteTree { .. } => FIRST,
            Op::Check { condition, .. } => condition_version(*condition),
            #[cfg(any(test, feature = "simulator"))]
            Op::Invented { .. } => INVENTED,
        }
    }

    /// The name of the operation for users.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Op::Create { .. } => "create",
            Op::CreateWithAcl { .. } => "create_with_acl",
            Op::SetAcl { .. } => "set_acl",
            Op::CreateOrSet { .. } => "create_or_set",
            Op::TakeOver { .. } => "take_over",
            Op::Put { .. } => "put",
            Op::Take { .. } => "take",
            Op::Add { .. } => "add",
            Op::Set { .. } => "set",
            Op::Delete { .. } => "delete",
            Op::Check { .. } => "require",
            Op::DeleteTree { .. } => "delete_recursive",
            #[cfg(any(test, feature = "simulator"))]
            Op::Invented { .. } => "invented",
        }
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        match self {
            Op::Create { path, .. }
            | Op::Set { path, .. }
            | Op::Delete { path, .. }
            | Op::Check { path, .. }
            | Op::DeleteTree { path }
            | Op::CreateWithAcl { path, .. }
            | Op::SetAcl { path, .. }
            | Op::CreateOrSet { path, .. }
            | Op::TakeOver { path, .. }
            | Op::Put { path, .. }
            | Op::Take { path, .. }
            | Op::Add { path, .. } => path,
            #[cfg(any(test, feature = "simulator"))]
            Op::Invented { path, .. } => path,
        }
    }

    /// The bytes of data and of access lists in the operation.
    pub(crate) fn content_bytes(&self) -> usize {
        let acl_bytes = |acl: &[Acl]| acl.iter().map(Acl::bytes).sum::<usize>();
        match self {
            Op::Create { data, .. }
            | Op::Set { data, .. }
            | Op::CreateOrSet { data, .. }
            | Op::TakeOver { data, .. }
            | Op::Put { data, .. } => data.len(),
            #[cfg(any(test, feature = "simulator"))]
            Op::Invented { data, .. } => data.len(),
            Op::CreateWithAcl { data, acl, .. } => data.len() + acl_bytes(acl),
            Op::SetAcl { acl, .. } => acl_bytes(acl),
            Op::Delete { .. }
            | Op::DeleteTree { .. }
            | Op::Check { .. }
            | Op::Take { .. }
            | Op::Add { .. } => 0,
        }
    }
}

/// The lowest version of a cluster that may have this condition in its log.
fn condition_version(condition: Condition) -> u16 {
    match condition {
        Condition::Exists
        | Condition::Absent
        | Condition::Version(_)
        | Condition::Czxid(_)
        | Condition::Mzxid(_)
        | Condition::Pzxid(_)
        | Condition::Cversion(_)
        | Condition::Aversion(_)
        | Condition::Usage { .. } => FIRST,
    }
}

/// The answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// To `Open` and `Resume`.
    Session { timeout_ms: u32 },
    /// To `Close`, `Expire`, a delete and a check.
    Done,
    /// To a create, and to operations that may create a znode.
    Created(#[serde(with = "LogForm")] Created),
    /// To a set, of data or of an ACL.
    Set(#[serde(with = "LogForm")] Stat),
    /// To a multi: the result of each operation.
    Multi(#[serde(with = "LogForm")] Vec<OpResult>),
    /// To `Authenticate`: all ids that the session has now.
    Ids(#[serde(with = "LogForm")] Vec<Id>),
}

/// Why a request was refused. Part of the replicated state, since a resent request gets the same answer
/// again. So variants are only ever appended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OpError {
    /// There is no such znode, or the parent of a new one is missing.
    NoNode { path: String },
    /// There is a znode already.
    NodeExists { path: String },
    /// The znode has children.
    NotEmpty { path: String },
    /// The znode, or its access list, has another version.
    BadVersion { path: String, expected: u64, actual: u64 },
    /// The parent is an ephemeral.
    NoChildrenForEphemerals { path: String },
    /// See `types::path`.
    InvalidPath { path: String, reason: String },
    /// The path is reserved for the system (`/`, `/zookeeper`, ...).
    Reserved { path: String },
    /// The data and access lists of the request are too long together.
    TooLarge { path: String, size: u64, limit: u64 },
    /// The session does not exist, or does not exist any more.
    SessionExpired,
    /// The session has another holder.
    SessionMoved,
    /// The secret in a `Resume` is wrong, or the id in an `Open` belongs to another session.
    WrongSecret,
    /// The operation at this place failed, and so none was done.
    Multi { index: u32, error: Box<OpError> },
    /// An earlier request of the session has not arrived yet. Never reported to a user: the node resends
    /// the requests from the missing one on.
    OutOfOrder,
    /// The expiry was decided in another term or against another holder.
    StaleExpiry,
    /// So many sessions have ended since the node's `base` that it is not known whether this one has.
    /// Never reported to a user: the node has caught up when it sees this error.
    StaleOpen,
    /// The condition of a check does not hold. (A wrong version is a `BadVersion`, a missing znode a
    /// `NoNode`, and a znode that should not exist a `NodeExists`.)
    Unmet {
        path: String,
        #[serde(with = "LogForm")]
        condition: Condition,
    },
    /// The time to live is 0, or longer than `CreateMode::TTL_MAX`.
    InvalidTtl { path: String, ttl: Duration },
    /// The znode of a [`Command::Reap`] is in use again, was set, or does not exist any more.
    StaleReap,
    /// The access list of the znode grants the session none of these permissions.
    NoAuth {
        path: String,
        #[serde(with = "LogForm")]
        permission: Permissions,
    },
    /// See [`AccessList::requested`].
    InvalidAcl { path: String, reason: String },
    /// The session cannot get another id. (If a scheme refuses the credentials, there is no request in the
    /// log.)
    AuthFailed { scheme: String, reason: String },
    /// A hard limit of the quota at this path would be exceeded.
    QuotaExceeded {
        path: String,
        /// Whether the limit is one of bytes; otherwise it is one of znodes.
        bytes: bool,
        limit: u64,
        needed: u64,
    },
    /// The cluster uses a version that does not have this operation.
    Unsupported { what: String, needs: u16, cluster: u16 },
    /// The queue would have more items than the put allows.
    QueueFull { path: String, limit: u64, needed: u64 },
    /// The sum would be this much later than the log's time.
    TooLate { path: String, limit: u64, needed: u64 },
    /// The data show no number, or this one, and the sum has no such form.
    NotAdded { path: String, before: Option<i64> },
}

impl OpError {
    /// The error of a multi in which the operation at this index has failed with this error.
    pub(super) fn in_multi(self, index: usize) -> OpError {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        OpError::Multi { index, error: Box::new(self) }
    }

    /// The lowest version of a cluster that may have this in its state. (If a command
    /// is refused for its version, the refusal has that version too: a build that cannot read the refusal
    /// cannot read the command either.)
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn version(&self) -> u16 {
        match self {
            OpError::Unsupported { needs, .. } => *needs,
            OpError::Multi { error, .. } => error.version(),
            OpError::Unmet { condition, .. } => condition_version(*condition),
            _ => FIRST,
        }
    }

    pub(crate) fn into_error(self, session: SessionId) -> Error {
        match self {
            OpError::NoNode { path } => Error::NoNode { path },
            OpError::NodeExists { path } => Error::NodeExists { path },
            OpError::NotEmpty { path } => Error::NotEmpty { path },
            OpError::BadVersion { path, expected, actual } => {
                Error::BadVersion { path, expected, actual }
            }
            OpError::NoChildrenForEphemerals { path } => Error::NoChildrenForEphemerals { path },
            OpError::InvalidPath { path, reason } => {
                Error::InvalidPath { path, reason: reason.into() }
            }
            OpError::InvalidTtl { path, ttl } => invalid_ttl("ttl", &path, ttl),
            OpError::NoAuth { path, permission } => Error::NoAuth { path, permission },
            OpError::InvalidAcl { path, reason } => Error::InvalidAcl { path, reason },
            OpError::AuthFailed { scheme, reason } => id_refused(&scheme, reason),
            OpError::QuotaExceeded { path, bytes, limit, needed } => {
                let resource = if bytes { "bytes" } else { "znodes" };
                Error::QuotaExceeded { path, resource, limit, needed }
            }
            OpError::QueueFull { path, limit, needed } => {
                Error::QuotaExceeded { path, resource: "items", limit, needed }
            }
            OpError::TooLate { path, limit, needed } => {
                Error::QuotaExceeded { path, resource: "nanoseconds", limit, needed }
            }
            OpError::NotAdded { path, before: None } => {
                let reason = "it is no number in this form".to_owned();
                Error::InvalidData { path, reason }
            }
            OpError::NotAdded { path, before: Some(before) } => {
                let mut reason = format!("{before} is there, and the form cannot show the sum");
                if before == i64::MAX {
                    // The recipes of time count in nanoseconds.
                    reason += "; of times that is April 2262, and the log's time may be later: see `quorate doctor`";
                }
                Error::InvalidData { path, reason }
            }
            OpError::Unmet { path, condition } => Error::Unmet { path, condition },
            OpError::Reserved { path } => Error::Reserved { path },
            OpError::TooLarge { path, size, limit } => Error::TooLarge { path, size, limit },
            OpError::SessionExpired
            | OpError::OutOfOrder
            | OpError::StaleExpiry
            | OpError::StaleOpen
            | OpError::StaleReap => Error::SessionExpired { session },
            OpError::SessionMoved => Error::SessionMoved { session },
            OpError::WrongSecret => Error::WrongPassword { session },
            OpError::Unsupported { what, needs, cluster } => {
                Error::Unsupported { what, needs, cluster }
            }
            OpError::Multi { index, error } => {
                Error::Multi { index: index as usize, error: Box::new(error.into_error(session)) }
            }
        }
    }
}

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    #[serde(with = "LogForm")]
    pub(crate) session: SessionId,
    pub(crate) holder: u64,
    pub(crate) seq: u64,
    /// The last write after the request: the request itself, if it changed anything.
    pub(crate) zxid: Zxid,
    pub(crate) result: Result<Reply, OpError>,
}

/// One change of the tree. A change of a parent's children has no kind of its own: it follows from
/// `Created` and `Deleted`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) zxid: Zxid,
    pub(crate) kind: ChangeKind,
    pub(crate) path: Arc<str>,
    /// Its place among the changes of its write.
    pub(crate) position: u32,
    /// The access lists that determine who sees the change: the znode's, and the parent's for the change of
    /// its children.
    pub(crate) acl: Option<Arc<AccessList>>,
    pub(crate) parent_acl: Option<Arc<AccessList>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Created,
    DataChanged,
    Deleted,
}

/// A change of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionChange {
    /// Opened, or resumed by a new holder: its timeout starts again.
    Held(SessionId),
    /// Closed or expired, while it had this holder.
    Gone(SessionId, u64),
}

/// All results of applying one batch, each in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) changes: Vec<Change>,
    pub(crate) sessions: Vec<SessionChange>,
}

#[cfg(test)]
mod tests;
