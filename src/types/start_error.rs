//! Errors of starting, joining and recovering.

use std::fmt;
use std::path::PathBuf;

/// Why an instance cannot start, join or serve, or a cluster cannot be backed up or recovered: what is wrong with the
/// list of peers, the address, the data directory or the backup. No call of a session fails with it. Of an instance
/// that has joined, [`Coordinator::wait_ready`](crate::Coordinator::wait_ready) and
/// [`Coordinator::backup`](crate::Coordinator::backup) may.
///
/// All calls return it as [`Error::Start`](crate::Error::Start).
///
/// ```
/// use quorate::{Coordinator, Error, StartError};
///
/// let nobody: [&str; 0] = [];
/// match Coordinator::join(nobody).wait() {
///     Err(Error::Start(StartError::NoPeers)) => {}
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The list of peers is empty.
    #[error("the list of peers is empty; name every instance as host:port")]
    NoPeers,
    /// A peer is not of the form `host:port`, or no instance can be reached there as that peer, for
    /// example because its name stands for several hosts.
    #[error("peer {peer:?} cannot be used: {reason}")]
    InvalidPeer {
        /// The peer as given.
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
    /// A peer was reached and refuses this node. Waiting does not help.
    #[error("peer {peer}: {reason}")]
    PeerRefused {
        /// The peer.
        peer: String,
        /// Why: it belongs to another cluster, has another secret or authority, or one of the two is
        /// too old for the other.
        reason: String,
    },
    /// This process is none of the peers.
    #[error("none of the peers {peers:?} is an address of this host that can be bound{detail}")]
    NotAPeer {
        /// The peers as given.
        peers: Vec<String>,
        /// What was tried, and what to do.
        detail: String,
    },
    /// The members could be reached from outside, without any protection.
    #[error(
        "{address} is not on the loopback, and traffic there would be neither encrypted nor authenticated: \
         name a Secret or certificates with Builder::security, or Security::Insecure if the network \
         is private by other means"
    )]
    NotSecured {
        /// The peer, or the address to listen on.
        address: String,
    },
    /// The address to listen on cannot be bound, or is still in use after a second.
    #[error("cannot listen on {address}: {reason}")]
    CannotListen {
        /// The address.
        address: String,
        /// The system's error.
        reason: String,
    },
    /// The data directory is in use by another process, or by another coordinator of this one.
    #[error("data directory {} is in use by {by}", dir.display())]
    DataDirInUse {
        /// The directory.
        dir: PathBuf,
        /// Who uses it, as far as is known.
        by: String,
    },
    /// The data directory cannot be read or written.
    #[error("data directory {} cannot be used: {reason}", dir.display())]
    DataDirUnusable {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The data directory belongs to another cluster, another member or another version.
    #[error("data directory {} does not fit this instance: {reason}", dir.display())]
    DataDirMismatch {
        /// The directory.
        dir: PathBuf,
        /// What it belongs to.
        reason: String,
    },
    /// Data on disk is damaged, or acknowledged data is missing. Nothing was changed there.
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
    /// The data directory or the backup is encrypted, and its key is not among the given ones, or none is given; or the
    /// data directory is not encrypted, and a key is given. Nothing was changed, and nothing is known to be damaged.
    #[error("{} cannot be decrypted: {reason}", path.display())]
    EncryptionKey {
        /// The data directory or the file.
        path: PathBuf,
        /// Which key, and where it was looked for.
        reason: String,
    },
    /// A backup cannot be read or written.
    #[error("file {} cannot be used: {reason}", file.display())]
    FileUnusable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// A backup is damaged, or of a version that this build cannot read. Nothing was changed.
    #[error("backup {} cannot be used: {reason}; take another one", file.display())]
    BackupDamaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The remaining data directories of a cluster do not suffice to recover it. Nothing was
    /// changed.
    #[error("no cluster can be founded from these directories: {reason}")]
    Unrecoverable {
        /// Why.
        reason: String,
    },
}

/// The same as the message, so that a `main` that returns the error prints a readable text.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
