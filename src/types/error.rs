//! What can go wrong, said so that a user can act on it.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use crate::types::acl::Permissions;
use crate::types::znode::{Condition, SessionId, Zxid};

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed: what happened, to which path, session or peer, and what helps.
///
/// Three questions are answered for every variant: may the operation have
/// happened all the same ([`Error::is_outcome_unknown`]), is trying again of
/// use ([`Error::is_retryable`]), and is the session gone
/// ([`Error::is_session_lost`])?
///
/// ```
/// use quorate::{CreateMode, Error};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// match session.create("/no/parent", b"", CreateMode::Persistent) {
///     Err(Error::NoNode { path }) => assert_eq!(path, "/no"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The znode, or for a create its parent, does not exist.
    #[error("no znode {path}")]
    NoNode {
        /// The znode that is missing.
        path: String,
    },
    /// A create found the znode there already.
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
    #[error("znode {path} has version {actual}, not {expected}; read it again and decide anew")]
    BadVersion {
        /// The znode.
        path: String,
        /// The version that the call asked for.
        expected: u64,
        /// The version that the znode has.
        actual: u64,
    },
    /// A [`Condition`](crate::Condition) of a multi does not hold; nothing was changed.
    #[error("znode {path} is not as was asked: {condition}; read it again and decide anew")]
    Unmet {
        /// The znode.
        path: String,
        /// What was asked.
        condition: Condition,
    },
    /// The session may not do this; nothing was changed.
    ///
    /// See [`Acl`](crate::Acl).
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
        /// The znode whose ACL forbids it: for a create or a delete, the parent.
        path: String,
        /// What its ACL would have to give to the session; any one of them.
        permission: Permissions,
    },
    /// A write would go beyond a hard limit of a [`Quota`](crate::Quota), or a
    /// [`Queue`](crate::recipes::Queue) is full; nothing was changed.
    #[error("{needed} {resource} at and below {path} would be more than its quota of {limit}")]
    QuotaExceeded {
        /// The path that has the quota.
        path: String,
        /// What there would be too much of: `znodes`, or `bytes` of data, or `items` of a queue.
        resource: &'static str,
        /// The limit.
        limit: u64,
        /// How much there would be.
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
    /// [`Session::add_auth`](crate::Session::add_auth) failed, and the session is closed: nothing is
    /// done by mistake as somebody else.
    #[error("authentication by scheme {scheme:?} failed: {reason}; open a new session")]
    AuthFailed {
        /// The scheme.
        scheme: String,
        /// Why.
        reason: String,
    },
    /// The session cannot be known as one more id. It is known as before, and goes on.
    #[error("the session has no further id of scheme {scheme:?}: {reason}")]
    IdRefused {
        /// The scheme.
        scheme: String,
        /// Why: a session has 64 ids at most, of 1024 bytes at most.
        reason: String,
    },
    /// Other writers changed what a transaction had read, each time that it was tried; nothing was
    /// changed by it.
    #[error("the transaction was overtaken {attempts} times, last by a change of {path}")]
    Conflict {
        /// What was changed last.
        path: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// A [`Semaphore`](crate::recipes::Semaphore) has another number of permits than this program
    /// believes.
    #[error(
        "semaphore {path} has {actual} permits and not {expected}; give all programs the same \
         number, or change it with Semaphore::set_permits"
    )]
    PermitsDiffer {
        /// The semaphore.
        path: String,
        /// The number that the handle was made with.
        expected: u32,
        /// The number in the cluster.
        actual: u32,
    },
    /// This instance is a client, without a replica, and so cannot do it: see
    /// [`Builder::client`](crate::Builder::client).
    #[error("{operation} needs a replica, and this instance is a client; ask a member")]
    NeedsReplica {
        /// What was to be done.
        operation: String,
    },
    /// A time to live that is too short or too long.
    #[error("{path}: a time to live of {ttl:?} is not from 1 ms to 2^40 - 1 ms")]
    InvalidTtl {
        /// The znode that was to be created.
        path: String,
        /// The time to live.
        ttl: Duration,
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
    /// The znode is one that the system keeps: `/`, `/zookeeper`, `/zookeeper/quota` and
    /// `/zookeeper/config`, which are never deleted; the last has no data or children of users'
    /// either.
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
    /// A watch cannot begin so far in the past: this replica does not know all changes since then
    /// any more, see [`Session::watch_from`](crate::Session::watch_from).
    #[error(
        "the changes of {path} since zxid {zxid} are not all known here any more, only those since \
         {oldest}; set a watch from now, and then read again what it watches"
    )]
    TooOld {
        /// The path that was to be watched.
        path: String,
        /// The zxid after which the watch was to begin.
        zxid: Zxid,
        /// The oldest one after which it could, on this instance at this moment.
        oldest: Zxid,
    },
    /// A watch was to begin after a write that does not exist. This replica has everything that was
    /// written before the call: the zxid is another cluster's, or no zxid at all.
    #[error(
        "no write has zxid {zxid} yet, the last is {last}, so {path} cannot be watched from there; \
         is the zxid of this cluster?"
    )]
    FutureZxid {
        /// The path that was to be watched.
        path: String,
        /// The zxid after which the watch was to begin.
        zxid: Zxid,
        /// The last one there is.
        last: Zxid,
    },
    /// The data of one request is over the limit.
    #[error("{size} bytes for {path} are more than the limit of {limit} bytes for one request")]
    TooLarge {
        /// The znode whose data went over the limit.
        path: String,
        /// The bytes of the request.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// An operation of a `multi` failed, so none of them was done.
    #[error("operation {index} of the multi failed, so none was done: {error}")]
    Multi {
        /// Which operation, counted from 0.
        index: usize,
        /// Why it failed.
        error: Box<Error>,
    },
    /// The cluster acts by a version that has no such operation, since not all of its members are
    /// known to be able to do it. Nothing was changed.
    ///
    /// See [`Status::version`](crate::Status::version), and for what each member can do
    /// [`MemberStatus::version`](crate::MemberStatus::version).
    #[error(
        "{what} needs version {needs} and the cluster acts by version {cluster}; upgrade the members \
         that status() lists with a lower version, or with none"
    )]
    Unsupported {
        /// The operation.
        what: String,
        /// The lowest version that has it.
        needs: u16,
        /// The version that the cluster acts by.
        cluster: u16,
    },
    /// The session is over: its ephemeral znodes and locks are gone, or about to be.
    #[error("session {session} has expired; open a new one")]
    SessionExpired {
        /// The session.
        session: SessionId,
    },
    /// The session was resumed elsewhere; this handle holds it no longer.
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
    /// The session was detached by this holder: it is open in the cluster until its timeout, and
    /// whoever resumes it holds it. See [`Session::detach`](crate::Session::detach).
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
    /// No answer came in time. A write may have happened or may happen yet.
    #[error("{operation} got no answer in {waited:?}: {reason}")]
    Timeout {
        /// The call and its path.
        operation: String,
        /// How long it was waited for.
        waited: Duration,
        /// What the node was waiting for.
        reason: String,
    },
    /// The session is over, and whether this write of it came before its end cannot be told any
    /// more.
    #[error("session {session} is over and the outcome of the write is unknown: {reason}")]
    OutcomeUnknown {
        /// The session.
        session: SessionId,
        /// Why nothing is known.
        reason: String,
    },
    /// Too many requests are waiting at this node already. Nothing was done.
    #[error("{limit} requests are waiting at this node already; wait for some of them first")]
    Busy {
        /// The limit, see [`Builder::pending_requests_max`](crate::Builder::pending_requests_max).
        limit: usize,
    },
    /// The node has stopped: it was closed, or a fault stopped it, or it runs in the process of which
    /// this one is a fork. A write that was under way may have happened.
    #[error("the node has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
    /// A blocking call was made in a waker, and so on the thread of a node, which must not wait: for
    /// itself it would wait in vain. A request that the call had made goes on.
    #[error(
        "{operation} would have to wait, and was called in a waker, on a node's own thread; let the \
         waker wake a thread or a task, and make the call there"
    )]
    WouldBlock {
        /// The call.
        operation: String,
    },
    /// The list of peers is empty.
    #[error("the list of peers is empty; name every instance as host:port")]
    NoPeers,
    /// A peer is not of the form `host:port`, or no instance can be reached there as that peer, for
    /// one because its name stands for several hosts.
    #[error("peer {peer:?} cannot be used: {reason}")]
    InvalidPeer {
        /// The peer as it was given.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A peer is listed twice.
    #[error("peers {first} and {second} are the same address")]
    DuplicatePeer {
        /// One of the two.
        first: String,
        /// The other.
        second: String,
    },
    /// A peer was reached and refuses this node: waiting does not help.
    #[error("peer {peer}: {reason}")]
    PeerRefused {
        /// The peer.
        peer: String,
        /// Why: it belongs to another cluster, has another secret or authority, or one of the two is
        /// too old for the other.
        reason: String,
    },
    /// None of the peers is this process.
    #[error(
        "none of the peers {peers:?} is an address of this host that can be bound{detail}; list this \
         instance too, or say where the others reach it with Builder::advertise"
    )]
    NotAPeer {
        /// The peers as they were given.
        peers: Vec<String>,
        /// What was tried, when something was.
        detail: String,
    },
    /// Others could reach the members, and nothing would keep them out.
    #[error(
        "{address} is not on the loopback, and what is said there would be neither secret nor proven: \
         name a Secret or certificates with Builder::security, or Security::Insecure if the network \
         is private by other means"
    )]
    NotSecured {
        /// The peer, or the address that is listened on.
        address: String,
    },
    /// The address to listen on cannot be bound.
    #[error("cannot listen on {address}: {reason}")]
    CannotListen {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The data directory is in use by another process, or another coordinator of this one.
    #[error("data directory {} is in use by another process", dir.display())]
    DataDirInUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The data directory cannot be read or written.
    #[error("data directory {} cannot be used: {reason}", dir.display())]
    DataDirUnusable {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The data directory belongs to another cluster, another member or another version.
    #[error("data directory {} does not belong to this instance: {reason}", dir.display())]
    DataDirMismatch {
        /// The directory.
        dir: PathBuf,
        /// What it belongs to.
        reason: String,
    },
    /// What is on disk is damaged, or acknowledged data is missing from it. Nothing was changed there.
    #[error(
        "data directory {} is damaged ({reason}); the node does not start from it, since it would \
         forget what it has promised: repair it, or see docs/recovery.md for what can be taken from it",
        dir.display()
    )]
    Corrupt {
        /// The directory.
        dir: PathBuf,
        /// What is damaged.
        reason: String,
    },
    /// A backup is not what was written, or of a version that this build cannot read. Nothing was
    /// changed.
    #[error("backup {} cannot be used: {reason}; take another one", file.display())]
    BackupDamaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that is not part of a data directory cannot be read or written.
    #[error("file {} cannot be used: {reason}", file.display())]
    FileUnusable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The data directories that are left of a cluster cannot be recovered from. Nothing was changed.
    #[error("no cluster can be founded from these directories: {reason}")]
    Unrecoverable {
        /// Why.
        reason: String,
    },
    /// A setting is out of its range.
    #[error("setting {setting}: {reason}")]
    InvalidSetting {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A znode's data is not what a recipe keeps there, or cannot become what it was to be: nothing
    /// was changed.
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
    /// The system has no random numbers, threads or the like to give.
    #[error("the system refused {what}: {reason}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
}

impl Error {
    /// Whether a write that failed with this may have happened all the same, or may happen yet.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(
            self,
            Error::Timeout { .. }
                | Error::WouldBlock { .. }
                | Error::Stopped { .. }
                | Error::OutcomeUnknown { .. }
        )
    }

    /// Whether the same call may succeed later, with nothing else changed.
    ///
    /// A write whose outcome is unknown is not called retryable.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Busy { .. })
    }

    /// Whether the session is gone for this handle, and with it its ephemerals and locks.
    pub fn is_session_lost(&self) -> bool {
        match self {
            Error::SessionExpired { .. }
            | Error::SessionMoved { .. }
            | Error::SessionClosed { .. }
            | Error::SessionDetached { .. }
            | Error::AuthFailed { .. }
            | Error::OutcomeUnknown { .. }
            | Error::Stopped { .. } => true,
            Error::Multi { error, .. } => error.is_session_lost(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_no_holes() {
        let path = || "/a".to_owned();
        for error in [
            Error::FutureZxid { path: path(), zxid: 9, last: 3 },
            Error::TooOld { path: path(), zxid: 3, oldest: 9 },
            Error::NoAuth { path: path(), permission: Permissions::READ },
            Error::PermitsDiffer { path: path(), expected: 1, actual: 2 },
            Error::InvalidData { path: path(), reason: "why".to_owned() },
            Error::Unsupported { what: "it".to_owned(), needs: 3, cluster: 2 },
            Error::NotAPeer { peers: vec![path()], detail: String::new() },
            Error::NotSecured { address: path() },
            Error::Corrupt { dir: PathBuf::from("/a"), reason: "why".to_owned() },
        ] {
            let text = error.to_string();
            assert!(!text.contains("  "), "{text}");
        }
    }
}
