//! Migration from ZooKeeper: [`Import`] copies a tree from a running ZooKeeper into a cluster, through
//! ZooKeeper's protocol.
//!
//! It also copies from other servers with that protocol, for example from a [`Gateway`](crate::gateway::Gateway). The
//! program `quorate import` does this from a shell. See "Moving from ZooKeeper" in
//! [`guide::gateway`](crate::guide::gateway).
//!
//! ```text
//! source:  three reads for each znode, many at once  --> walk --> target: what is there, then multis
//! ```
//!
//! - `source` is the connection with ZooKeeper, which moves to the next server when one is lost.
//! - `walk` goes through the tree, parents before children, and decides what to write.
//! - `target` reads and writes the session's cluster.
//! - `kinds` reads from a snapshot of ZooKeeper what its protocol does not show.

mod kinds;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod walk;

#[cfg(any(test, fuzzing))]
pub(super) use self::source::fuzz;
use std::path::PathBuf;

use bytes::Bytes;

use self::walk::ImportWalk;
use crate::api::session::Session;
use crate::gateway::wire::jute::Credential;
use crate::types::path;

/// Copies a tree from the servers of a ZooKeeper into the cluster of a session.
///
/// **What is copied**: the data and the access list of each znode that is not ephemeral, and the count behind
/// the numbers of sequential children, so that later names do not collide. Versions, zxids and times begin
/// again. Ephemeral znodes belong to sessions of ZooKeeper and are left out.
///
/// **Running it again** continues after the end or the failure of an earlier run: it reads both sides, and
/// writes only what is missing. Znodes that exist with other data or another access list are left as they
/// are, unless [`Import::overwrite`] is set. Znodes that the source does not have are left unless
/// [`Import::delete`] is set.
///
/// **The copy is not of one point in time** if the source changes during the run: each znode is as it was at
/// some moment of the run. For an exact copy, stop the writers, run it once more with both settings, and
/// check with [`Import::compare`].
///
/// **Rights**: the source must show every access list in full, so [`Import::auth`] needs a user with READ and
/// ADMIN everywhere, or ZooKeeper's super user. The target's session must be allowed to write. If copied
/// access lists exclude it from znodes that it has created, it must be a [super
/// user](crate::Builder::super_user).
///
/// ```
/// use quorate::gateway::import::Import;
/// use quorate::gateway::Gateway;
/// use quorate::{CreateMode, testing::Cluster};
///
/// // In place of a ZooKeeper: another cluster, with a port for its protocol.
/// let old = Cluster::new(1);
/// old.node(0).session().create("/app", b"1", CreateMode::Persistent).wait()?;
/// let port = Gateway::serve(&old.node(0), "127.0.0.1:0")?;
///
/// let session = Cluster::new(1).node(0).session();
/// let import = Import::from([port.address().to_string()]).root("/app");
/// let counts = import.copy(&session, |event| println!("{event:?}")).unwrap();
/// assert_eq!((counts.created, counts.differing), (1, 0));
/// assert_eq!(&session.get("/app").wait()?.0[..], b"1");
/// assert!(import.compare(&session, |_| ()).unwrap().is_equal());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is copied before `copy`"]
pub struct Import {
    servers: Vec<String>,
    root: String,
    to: Option<String>,
    /// Schemes, each with credentials.
    auth: Vec<(String, Credential)>,
    overwrite: bool,
    delete: bool,
    kinds: Option<PathBuf>,
}

/// The progress of an [`Import`]: numbers of znodes.
///
/// ```
/// let nothing = quorate::gateway::import::Counts::default();
/// assert!(nothing.is_equal());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The number of znodes that the source had at the beginning, including ephemerals, to show progress.
    /// `None` if the source does not report it, as before ZooKeeper 3.6.
    pub total: Option<u64>,
    /// Znodes read from the source, without ephemerals.
    pub read: u64,
    /// Znodes created in the target.
    pub created: u64,
    /// Znodes of the target that were given the source's data or access list: see
    /// [`Import::overwrite`].
    pub overwritten: u64,
    /// Znodes that were equal already.
    pub same: u64,
    /// Znodes deleted in the target, each with everything below it: see [`Import::delete`].
    pub deleted: u64,
    /// Parents whose child counter was raised, so that the names of later sequential children do
    /// not collide.
    pub counters: u64,
    /// Ephemeral znodes of the source, which are left out.
    pub ephemerals: u64,
    /// Znodes that were deleted in the source while it was read.
    pub gone: u64,
    /// Differences that remain: see [`Event::Difference`].
    pub differing: u64,
    /// How many times the connection to the source was made again.
    pub reconnects: u64,
}

impl Counts {
    /// Whether no difference remains.
    pub fn is_equal(&self) -> bool {
        self.differing == 0
    }
}

/// An event during an [`Import`].
///
/// ```
/// use quorate::gateway::import::Event;
///
/// let show = |event: Event<'_>| match event {
///     Event::Difference { path, difference } => eprintln!("{path}: {difference}"),
///     Event::Progress(counts) => eprintln!("{} znodes", counts.read),
///     _ => (),
/// };
/// # show(Event::Progress(&quorate::gateway::import::Counts::default()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The import is connected to this server of the source from now on.
    Connected {
        /// Its address, as it was given.
        server: &'a str,
    },
    /// Some more znodes were processed. Their writes may still be in flight.
    Progress(&'a Counts),
    /// The two sides differ, and this run does not change that.
    Difference {
        /// The path in the target.
        path: &'a str,
        /// How they differ.
        difference: Difference,
    },
}

/// How a znode differs between the two sides.
///
/// ```
/// println!("/app/config: {}", quorate::gateway::import::Difference::Data);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Difference {
    /// The znode is missing in the target. Only [`Import::compare`] reports this.
    Missing,
    /// The znode has other data.
    Data,
    /// The znode has another access list.
    Acl,
    /// The kinds differ: the znode is ephemeral in the target, or only one of the two is a container or
    /// has this time to live. Never changed: delete the znode in the target, and copy again.
    Kind,
    /// The source does not have the znode.
    Extra,
    /// The next sequential child could get a name that was used in the source.
    Counter,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Difference::Missing => "is missing",
            Difference::Data => "has other data",
            Difference::Acl => "has another access list",
            Difference::Kind => "is of another kind",
            Difference::Extra => "is not in the source",
            Difference::Counter => "has a lower count of children",
        })
    }
}

/// The reason why an [`Import`] ended early. Completed writes stay; running it again continues from there.
///
/// ```
/// use quorate::gateway::import::{Import, ImportError};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let servers: [&str; 0] = [];
/// let failed = Import::from(servers).copy(&session, |_| ());
/// assert!(matches!(failed, Err(ImportError::Unreachable { .. })));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// No server answered, although all were tried ten times.
    #[error("no server of the source answers: {reason}; check the addresses, and run it again")]
    Unreachable {
        /// The last error, and its server.
        reason: String,
    },
    /// A server rejected the credentials.
    #[error("{server} rejects the credentials of scheme {scheme:?}")]
    AuthFailed {
        /// The server.
        server: String,
        /// The scheme.
        scheme: String,
    },
    /// A server sends a reply that is longer than an import accepts, 256 MiB: for example, the names of very
    /// many children.
    #[error(
        "the source sends a reply of {bytes} bytes, where at most {limit} are accepted: is it a ZooKeeper, \
         and has one of its znodes millions of children?"
    )]
    ReplyTooLong {
        /// The bytes of the reply.
        bytes: usize,
        /// How many are accepted.
        limit: usize,
    },
    /// The source does not have the root.
    #[error("the source has no znode {path}")]
    NoRoot {
        /// The root.
        path: String,
    },
    /// The source does not show a znode.
    #[error(
        "the source does not show {path} ({reason}); authenticate as somebody who has READ and ADMIN, or as \
         its super user"
    )]
    Refused {
        /// The path in the source.
        path: String,
        /// The error's name in ZooKeeper.
        reason: String,
    },
    /// The source hides the hash of a password in an access list.
    #[error(
        "the source hides a part of the access list of {path} ({id}); authenticate as somebody who has ADMIN, \
         or as its super user"
    )]
    HiddenId {
        /// The path in the source.
        path: String,
        /// The id, as it is shown.
        id: String,
    },
    /// The snapshot file of ZooKeeper cannot be read: see [`Import::kinds`].
    #[error("{file} is not a snapshot of ZooKeeper that can be read: {reason}")]
    Snapshot {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The target refused a read or a write. The path in the error is the target's.
    #[error(transparent)]
    Target(#[from] crate::Error),
}

impl Import {
    /// Sets the servers to read from, each as `host:port`; without a port, 2181. They are tried in
    /// this order.
    pub fn from<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> Import {
        Import {
            servers: servers.into_iter().map(Into::into).collect(),
            root: "/".to_owned(),
            to: None,
            auth: Vec::new(),
            overwrite: false,
            delete: false,
            kinds: None,
        }
    }

    /// Copies this znode of the source and all below it; by default everything but `/zookeeper`.
    pub fn root(mut self, path: impl Into<String>) -> Import {
        self.root = path.into();
        self
    }

    /// The path that the root gets in the target; by default the same. Missing parents are created, without
    /// data and open to everybody. Nothing is written at or below `/zookeeper`.
    pub fn to(mut self, path: impl Into<String>) -> Import {
        self.to = Some(path.into());
        self
    }

    /// Authenticates with the source, as ZooKeeper's `addAuthInfo`. May be called more than once.
    pub fn auth(mut self, scheme: impl Into<String>, credentials: impl AsRef<[u8]>) -> Import {
        let bytes = Bytes::copy_from_slice(credentials.as_ref());
        self.auth.push((scheme.into(), Credential(Some(bytes))));
        self
    }

    /// Sets whether znodes that exist in the target with other data or another access list are given those
    /// of the source. By default they are left as they are, and counted in [`Counts::differing`].
    pub fn overwrite(mut self, overwrite: bool) -> Import {
        self.overwrite = overwrite;
        self
    }

    /// Sets whether znodes below the root that only the target has are deleted, with everything below them.
    /// Ephemeral children of a znode that both have are never deleted. By default nothing is deleted.
    pub fn delete(mut self, delete: bool) -> Import {
        self.delete = delete;
        self
    }

    /// Reads from this file which znodes are containers or have a time to live, and how long that
    /// is.
    ///
    /// ZooKeeper does not show this to its clients, so without the file all znodes become persistent. The
    /// file is a snapshot from the data directory of a server (`version-2/snapshot.*`, not compressed), of
    /// any age: a znode is recognised by its path and its czxid, and those that were created later become
    /// persistent.
    pub fn kinds(mut self, snapshot: impl Into<PathBuf>) -> Import {
        self.kinds = Some(snapshot.into());
        self
    }

    /// Copies, calls `watch` with each event, and returns the counts. Blocks until everything is copied.
    /// Each server of the source and the target has a limited time to answer; the whole copy has no time
    /// limit.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn copy(
        &self,
        session: &Session,
        watch: impl FnMut(Event<'_>),
    ) -> Result<Counts, ImportError> {
        self.run(session, true, watch)
    }

    /// Compares both sides, and writes nothing. `watch` is called with every difference, including znodes that the
    /// source does not have. [`Counts::created`] and the like stay 0.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn compare(
        &self,
        session: &Session,
        watch: impl FnMut(Event<'_>),
    ) -> Result<Counts, ImportError> {
        self.run(session, false, watch)
    }

    fn run(
        &self,
        session: &Session,
        writes: bool,
        mut watch: impl FnMut(Event<'_>),
    ) -> Result<Counts, ImportError> {
        path::validate(&self.root)?;
        path::validate(self.target_root())?;
        ImportWalk::new(self, session, writes, &mut watch)?.run()
    }

    fn target_root(&self) -> &str {
        self.to.as_deref().unwrap_or(&self.root)
    }

    /// The path in the target of a znode of the source.
    fn target_of(&self, path: &str) -> String {
        let below = path.strip_prefix(self.root.trim_end_matches('/')).unwrap_or(path);
        let to = self.target_root().trim_end_matches('/');
        match below.trim_end_matches('/') {
            "" if to.is_empty() => "/".to_owned(),
            below => format!("{to}{below}"),
        }
    }
}
