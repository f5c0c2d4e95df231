//! Errors, described so that a user can act on them.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::types::acl::Permissions;
use crate::types::start_error::StartError;
use crate::types::znode::{Condition, SessionId, Zxid};

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed: what happened, to which path, session or peer, and what to do about it.
///
/// Every variant answers three questions: may the operation have happened all the same
/// ([`Error::is_outcome_unknown`]), may trying again help ([`Error::is_retryable`]), and is the
/// session lost ([`Error::is_session_lost`])?
///
/// ```
/// use quorate::{CreateMode, Error};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// match session.create("/no/parent", b"", CreateMode::Persistent).wait() {
///     Err(Error::NoNode { path }) => assert_eq!(path, "/no"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The znode, or for a create its parent, does not exist.
    #[error("no znode {path}")]
    NoNode {
        /// The missing znode.
        path: String,
    },
    /// A create found an existing znode.
    #[error("znode {path} exists already")]
    NodeExists {
        /// The znode that exists.
        path: String,
    },
    /// A delete found children below the znode.
    #[error("znode {path} has children; delete them first")]
    NotEmpty {
        /// The znode with children.
        path: String,
    },
    /// The expected version did not match; nothing was changed.
    #[error("znode {path} has version {actual}, not {expected}; read it again and decide again")]
    BadVersion {
        /// The znode.
        path: String,
        /// The version that the call asked for.
        expected: u64,
        /// The version that the znode has.
        actual: u64,
    },
    /// A [`Condition`](crate::multi::Condition) of a multi does not hold; nothing was changed.
    #[error("znode {path} is not as was asked: {condition}; read it again and decide again")]
    Unmet {
        /// The znode.
        path: String,
        /// The condition.
        condition: Condition,
    },
    /// A request of an operator, or for one more id of a session, would do harm or is not possible; nothing was
    /// changed.
    #[error("{operation} was refused: {reason}")]
    Refused {
        /// The request.
        operation: String,
        /// Why it was refused, and what to do.
        reason: String,
    },
    /// The session lacks the permission; nothing was changed.
    ///
    /// See [`Acl`](crate::acl::Acl).
    #[error(
        "no permission to do this: {} is needed on {path}, by its ACL; authenticate with \
         Session::add_auth as somebody who has it",
        match *permission {
            Permissions::READ => "READ",
            Permissions::WRITE => "WRITE",
            Permissions::CREATE => "CREATE",
            Permissions::DELETE => "DELETE",
            Permissions::ADMIN => "ADMIN",
            _ => "READ or ADMIN",
        }
    )]
    NoAuth {
        /// The znode whose ACL applies: for a create or a delete, the parent.
        path: String,
        /// The permission that its ACL would have to grant; any one of them.
        permission: Permissions,
    },
    /// A write would exceed a hard limit of a [`Quota`](crate::quota::Quota), or a
    /// [`Queue`](crate::recipes::Queue) is full; nothing was changed.
    #[error("{needed} {resource} at and below {path} would be more than its quota of {limit}")]
    QuotaExceeded {
        /// The path that has the quota.
        path: String,
        /// The resource: `znodes`, or `bytes` of data, or `items` of a queue.
        resource: &'static str,
        /// The limit.
        limit: u64,
        /// The amount that would be needed.
        needed: u64,
    },
    /// An ACL that cannot be set; nothing was changed.
    #[error("the ACL for {path} is invalid: {reason}")]
    InvalidAcl {
        /// The znode.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// [`Session::add_auth`](crate::Session::add_auth) failed, and the session is closed, so that
    /// nothing is done with the wrong identity.
    #[error("authentication by scheme {scheme:?} failed: {reason}; open a new session")]
    AuthFailed {
        /// The scheme.
        scheme: String,
        /// Why.
        reason: String,
    },
    /// In every attempt, other writers changed what the transaction had read; it changed nothing.
    #[error("the transaction was overtaken {attempts} times, last by a change of {path}")]
    Conflict {
        /// The path whose change was found last.
        path: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// At the path of a lock or an election there is a contender of another recipe or library, which may not count
    /// the contenders of this one: both could hold at the same time. See
    /// [`guide::shared_recipes`](crate::guide::shared_recipes).
    #[error(
        "{path} is a contender of another recipe, which may not count the contenders of this one; use one \
         recipe at a path, with names that all its users count (guide::shared_recipes)"
    )]
    UnknownContender {
        /// The contender's znode.
        path: String,
    },
    /// This instance is a client, without a replica, and cannot do this: see
    /// [`Builder::client`](crate::Builder::client).
    #[error("{operation} needs a replica, and this instance is a client; ask a member")]
    NeedsReplica {
        /// The operation.
        operation: String,
    },
    /// A create below an ephemeral znode.
    #[error("znode {path} is ephemeral and so can have no children")]
    NoChildrenForEphemerals {
        /// The ephemeral parent.
        path: String,
    },
    /// The path breaks a rule of ZooKeeper's paths.
    #[error("invalid path {path:?}: {reason}")]
    InvalidPath {
        /// The path, cut short when it is very long.
        path: String,
        /// The rule.
        reason: Cow<'static, str>,
    },
    /// The znode is one of the system's: `/`, `/zookeeper`, `/zookeeper/quota` and
    /// `/zookeeper/config`, which are never deleted. Users cannot set the data or create children
    /// of the last one either.
    #[error("znode {path} is kept by the system; it can be read, and not be deleted or written")]
    Reserved {
        /// The znode.
        path: String,
    },
    /// [`Session::remove_watches`](crate::Session::remove_watches) found none to remove.
    #[error("the session has no watch of that type at {path}")]
    NoWatch {
        /// The path.
        path: String,
    },
    /// A watch cannot start so far in the past: this replica no longer has all changes since then, see
    /// [`Session::watch_from`](crate::Session::watch_from).
    #[error(
        "the changes of {path} since zxid {zxid} are not all known here any more, only those since \
         {oldest}; set a watch from now, and then read again what it watches"
    )]
    TooOld {
        /// The path to be watched.
        path: String,
        /// The zxid after which the watch was to start.
        zxid: Zxid,
        /// The oldest zxid for which that is possible, on this instance at this moment.
        oldest: Zxid,
    },
    /// A watch was to start after a write that does not exist, or a session waited for one or read its state. This replica has
    /// everything that was written before the call: the zxid is from another cluster, or invalid.
    #[error(
        "no write has zxid {zxid} yet, the last is {last}, so {path} cannot be read or watched from there; \
         is the zxid of this cluster?"
    )]
    FutureZxid {
        /// The path to be watched or read; `/` of [`Session::wait_for_zxid`](crate::Session::wait_for_zxid).
        path: String,
        /// The zxid of that write.
        zxid: Zxid,
        /// The last zxid.
        last: Zxid,
    },
    /// One request or its data is over the limit; or, on a [client](crate::guide::clients), what one call reads.
    #[error(
        "{size} bytes for {path} are more than the limit of {limit} bytes for one request or reply"
    )]
    TooLarge {
        /// The znode whose data exceeded the limit, or at and below which a client reads.
        path: String,
        /// The size of the request in bytes. Of a reply, what was counted until it exceeded the limit.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// An operation of a `multi` failed, so none of them was done.
    #[error("operation {index} of the multi failed, so none was done: {error}")]
    Multi {
        /// The index of the operation, from 0.
        index: usize,
        /// Why it failed.
        error: Box<Error>,
    },
    /// The cluster uses a version without this operation, since not all its members are known to
    /// support it. Nothing was changed.
    ///
    /// See [`Status::version`](crate::operate::Status::version), and
    /// [`MemberStatus::version`](crate::operate::MemberStatus::version) for what each member supports.
    #[error(
        "{what} needs version {needs} and the cluster acts by version {cluster}; upgrade the members \
         that status() lists with a lower version, or with none"
    )]
    Unsupported {
        /// The operation.
        what: String,
        /// The lowest version that has it.
        needs: u16,
        /// The version that the cluster uses.
        cluster: u16,
    },
    /// The session is over: its ephemeral znodes and locks are gone, or about to be.
    #[error("session {session} has expired; open a new one")]
    SessionExpired {
        /// The session.
        session: SessionId,
    },
    /// The session was resumed elsewhere, and no longer belongs to this handle.
    #[error("session {session} was resumed by another holder")]
    SessionMoved {
        /// The session.
        session: SessionId,
    },
    /// The session was closed through one of its handles.
    #[error("session {session} is closed")]
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// The session was detached by this handle. It is open in the cluster until its timeout, and
    /// can be resumed. See [`Session::detach`](crate::Session::detach).
    #[error("session {session} was detached and is not held here any more; resume it")]
    SessionDetached {
        /// The session.
        session: SessionId,
    },
    /// The password given to resume a session is not the session's.
    #[error("wrong password for session {session}")]
    WrongPassword {
        /// The session.
        session: SessionId,
    },
    /// No answer came in time. A write may have happened, or may still happen.
    #[error("{operation} got no answer in {waited:?}: {reason}")]
    Timeout {
        /// The call and its path.
        operation: String,
        /// How long the call waited.
        waited: Duration,
        /// What the node was waiting for.
        reason: String,
    },
    /// What a call waited for did not come within the limit that [`Pending::timeout`](crate::Pending::timeout) has set. The
    /// call was given up, and nothing was done.
    #[error("{operation} was given up after {waited:?}")]
    NotInTime {
        /// The call and its path.
        operation: String,
        /// How long the call waited.
        waited: Duration,
    },
    /// The session is over, and it is no longer known whether this write came before its end.
    #[error("session {session} is over and the outcome of the write is unknown: {reason}")]
    OutcomeUnknown {
        /// The session.
        session: SessionId,
        /// Why it is not known.
        reason: String,
    },
    /// Too many requests are already waiting at this node. Nothing was done.
    #[error("{limit} requests are waiting at this node already; wait for some of them first")]
    Busy {
        /// The limit, see [`Builder::pending_requests_max`](crate::Builder::pending_requests_max).
        limit: usize,
    },
    /// The disks of so many voters are nearly full that those with room are no majority. Nothing was
    /// done. Reads, deletes and sessions still work, and writes are accepted again when there is room. The answer
    /// comes at once, and may come before those to earlier requests of the session.
    ///
    /// See [`Builder::disk_low`](crate::Builder::disk_low).
    #[error("writes are refused, since {}", disks_full(members))]
    DiskLow {
        /// The addresses of these members.
        members: Vec<String>,
    },
    /// The node has stopped: it was closed, a fault stopped it, or this process is a fork of its
    /// process. A write in flight may have happened.
    #[error("the node has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
    /// A blocking call was made in a waker, on the thread of a node, which must not block: it would
    /// wait for itself. A request that the call had sent continues.
    #[error(
        "{operation} would have to wait, and was called in a waker, on a node's own thread; let the \
         waker wake a thread or a task, and make the call there"
    )]
    WouldBlock {
        /// The call.
        operation: String,
    },
    /// A setting or an argument is out of its range, or differs from what the cluster has.
    #[error("setting {setting}: {reason}")]
    InvalidSetting {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A znode's data is not valid for a recipe, or cannot be changed as requested: nothing was
    /// changed.
    #[error(
        "the data of znode {path} cannot be used: {reason}; is the path somebody else's, or its \
         format that of another version?"
    )]
    InvalidData {
        /// The znode.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The system cannot provide random numbers, threads or the like.
    #[error("the system refused {what}: {reason}")]
    System {
        /// What was requested.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
    /// This instance cannot start, join or be recovered: see [`StartError`].
    #[error(transparent)]
    // Without `#[from]`: a second conversion to this type would make users annotate their closures.
    Start(StartError),
}

/// A time to live that is too short, or longer than [`CreateMode::TTL_MAX`](crate::CreateMode::TTL_MAX).
pub(crate) fn invalid_ttl(setting: &'static str, path: &str, ttl: Duration) -> Error {
    let reason = format!("{ttl:?} for {path} is not from 1 ms to 2^40 - 1 ms");
    Error::InvalidSetting { setting, reason }
}

/// A session cannot get one more id.
pub(crate) fn id_refused(scheme: &str, reason: impl Into<String>) -> Error {
    Error::Refused {
        operation: format!("a further id of scheme {scheme:?}"),
        reason: reason.into(),
    }
}

/// Why writes are refused.
pub(crate) fn disks_full(members: &[String]) -> String {
    format!(
        "the disks of members are nearly full ({}); make room there, or delete znodes",
        members.join(", ")
    )
}

/// The same of fewer members, while writes go on.
pub(crate) fn nearly_full(members: &[String]) -> String {
    match members {
        [one] => format!("the disk of {one} is nearly full"),
        _ => format!("the disks of {} are nearly full", members.join(", ")),
    }
}

/// The same as the message, so that a `main` that returns the error prints a readable text.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an error means for the caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// Nothing was done, and the same call would fail again.
    Refused,
    /// Nothing was done, and the same call may succeed later.
    Later,
    /// It may have been done, or may still be.
    Unknown,
    /// Nothing was done, and the session is lost.
    SessionLost,
    /// It may have been done, and the session is lost.
    SessionLostUnknown,
}

impl Error {
    fn meaning(&self) -> Meaning {
        match self {
            Error::NoNode { .. }
            | Error::NodeExists { .. }
            | Error::NotEmpty { .. }
            | Error::BadVersion { .. }
            | Error::Unmet { .. }
            | Error::Refused { .. }
            | Error::NoAuth { .. }
            | Error::QuotaExceeded { .. }
            | Error::InvalidAcl { .. }
            | Error::Conflict { .. }
            | Error::UnknownContender { .. }
            | Error::NeedsReplica { .. }
            | Error::NoChildrenForEphemerals { .. }
            | Error::InvalidPath { .. }
            | Error::Reserved { .. }
            | Error::NoWatch { .. }
            | Error::TooOld { .. }
            | Error::FutureZxid { .. }
            | Error::TooLarge { .. }
            | Error::Unsupported { .. }
            | Error::WrongPassword { .. }
            | Error::InvalidSetting { .. }
            | Error::InvalidData { .. }
            | Error::System { .. }
            | Error::Start(_) => Meaning::Refused,
            Error::Busy { .. } | Error::DiskLow { .. } | Error::NotInTime { .. } => Meaning::Later,
            Error::Timeout { .. } | Error::WouldBlock { .. } => Meaning::Unknown,
            Error::SessionExpired { .. }
            | Error::SessionMoved { .. }
            | Error::SessionClosed { .. }
            | Error::SessionDetached { .. }
            | Error::AuthFailed { .. } => Meaning::SessionLost,
            Error::OutcomeUnknown { .. } | Error::Stopped { .. } => Meaning::SessionLostUnknown,
            // The multi itself was answered: nothing of it was done.
            Error::Multi { error, .. } => match error.is_session_lost() {
                true => Meaning::SessionLost,
                false => Meaning::Refused,
            },
        }
    }

    /// Whether a write that failed with this error may have happened, or may still happen.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self.meaning(), Meaning::Unknown | Meaning::SessionLostUnknown)
    }

    /// Whether the same call may succeed later, with nothing else changed.
    ///
    /// A write whose outcome is unknown does not count as retryable.
    pub fn is_retryable(&self) -> bool {
        self.meaning() == Meaning::Later
    }

    /// Whether the session is lost for this handle, and with it its ephemerals and locks.
    pub fn is_session_lost(&self) -> bool {
        matches!(self.meaning(), Meaning::SessionLost | Meaning::SessionLostUnknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_returned_from_main_prints_its_message() {
        let error = Error::NoNode { path: "/a".to_owned() };
        assert_eq!(format!("Error: {error:?}"), "Error: no znode /a");
    }

    #[test]
    fn texts_have_no_double_spaces() {
        let path = || "/a".to_owned();
        for error in [
            Error::FutureZxid { path: path(), zxid: 9, last: 3 },
            Error::TooOld { path: path(), zxid: 3, oldest: 9 },
            Error::NoAuth { path: path(), permission: Permissions::READ },
            Error::UnknownContender { path: path() },
            Error::InvalidData { path: path(), reason: "why".to_owned() },
            Error::Unsupported { what: "it".to_owned(), needs: 3, cluster: 2 },
            Error::DiskLow { members: vec![path(), path()] },
            Error::Start(StartError::NotAPeer { peers: vec![path()], detail: String::new() }),
            Error::Start(StartError::NotSecured { address: path() }),
            Error::Start(StartError::Corrupt { dir: "/a".into(), reason: "why".to_owned() }),
        ] {
            let text = error.to_string();
            assert!(!text.contains("  "), "{text}");
        }
    }
}
