//! The values of znodes: modes, stats, conditions and results.

use std::fmt;
use std::time::Duration;

/// The number of a successful write, one sequence for the whole cluster.
///
/// The numbers are dense: each write that changes something takes the next one, a `multi` takes one
/// for all its operations, and a write that fails takes none. (ZooKeeper's zxid contains an epoch
/// and can overflow; this is a plain 64-bit counter.)
pub type Zxid = u64;

/// The identity of a session: a random 64-bit number, shown in hexadecimal.
///
/// ```
/// let cluster = quorate::testing::Cluster::new(1);
/// let session = cluster.node(0).session();
/// println!("session {}", session.id());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) u64);

impl SessionId {
    /// The session with this number, from [`SessionId::number`].
    pub fn from_number(number: u64) -> SessionId {
        SessionId(number)
    }

    /// The session's number, to be stored for resuming it in another process.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

/// The lifetime of a new znode, and whether its name gets a number.
///
/// **Sequential** modes append a number to the name: the count of children, of any mode, that were
/// ever created under the parent. So it is never used twice, whatever was deleted. A parent that is
/// deleted and created again starts at 0. The number is decimal, padded with zeros to ten digits,
/// as in ZooKeeper. Here it has 64 bits and does not end at 2147483647: after `9999999999` comes
/// `10000000000`, so code that may see so many names must sort by the number. If a znode with that
/// name was already created by its plain name, the create fails with
/// [`Error::NodeExists`](crate::Error::NodeExists), until another child has advanced the number.
///
/// Source: ZooKeeper Programmer's Guide, "Ephemeral Nodes" and "Sequence Nodes".
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let created = session.create("/job-", b"", CreateMode::PersistentSequential).wait()?;
/// assert_eq!(created.path, "/job-0000000000");
/// session.create("/config", b"", CreateMode::Persistent).wait()?;
/// session.delete(&created.path).wait()?;
/// let created = session.create("/job-", b"", CreateMode::EphemeralSequential).wait()?;
/// assert_eq!(created.path, "/job-0000000002");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CreateMode {
    /// Exists until it is deleted.
    Persistent,
    /// Exists until it is deleted; its name ends in the parent's next number.
    PersistentSequential,
    /// Deleted with the session that created it; it cannot have children.
    Ephemeral,
    /// Deleted with its session; its name ends in the parent's next number.
    EphemeralSequential,
    /// Exists until it has had children and has none any more: then the leader deletes it, within
    /// about a minute. One that never had a child stays. A create of a child in a container may
    /// fail with [`Error::NoNode`](crate::Error); then create the container again. A container that
    /// gets a child in time is not deleted.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.create("/queue", b"", CreateMode::Container).wait()?;
    /// session.create("/queue/1", b"", CreateMode::Persistent).wait()?;
    /// session.delete("/queue/1").wait()?;
    /// cluster.advance(Duration::from_secs(120));
    /// assert_eq!(session.exists("/queue").wait()?, None);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    Container,
    /// Exists until it has no children and its data was not set for this long: then the leader
    /// deletes it, within seconds. The time runs within a tenth of real time, whatever wall clocks
    /// do while one node leads ([the cluster's time](crate::guide::limits#the-clusters-time)). From 1 ms to
    /// [`CreateMode::TTL_MAX`], in whole milliseconds. A set counts even if it changes nothing; reads do not
    /// count, nor do children that come and go.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// let mode = CreateMode::PersistentWithTtl(Duration::from_secs(60));
    /// let stat = session.create("/token", b"7f3a", mode).wait()?.stat;
    /// assert_eq!(stat.expires_at(), Some(stat.mtime + 60_000));
    /// cluster.advance(Duration::from_secs(90));
    /// assert_eq!(session.exists("/token").wait()?, None);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    PersistentWithTtl(#[serde(with = "crate::types::serde_form::Millis")] Duration),
    /// As [`CreateMode::PersistentWithTtl`]; its name ends in the parent's next number.
    PersistentSequentialWithTtl(#[serde(with = "crate::types::serde_form::Millis")] Duration),
}

impl CreateMode {
    /// The longest time to live: 2<sup>40</sup> - 1 ms, about 35 years, as in ZooKeeper.
    pub const TTL_MAX: Duration = Duration::from_millis((1 << 40) - 1);

    /// Whether the znode is deleted with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }

    /// The time to live, if it has one.
    pub fn ttl(self) -> Option<Duration> {
        match self {
            CreateMode::PersistentWithTtl(ttl) | CreateMode::PersistentSequentialWithTtl(ttl) => {
                Some(ttl)
            }
            _ => None,
        }
    }

    /// Whether the parent's next number is appended to the name.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            CreateMode::PersistentSequential
                | CreateMode::EphemeralSequential
                | CreateMode::PersistentSequentialWithTtl(_)
        )
    }
}

/// The metadata of a znode.
///
/// Source: ZooKeeper Programmer's Guide, "ZooKeeper Stat Structure". The
/// counters are 64 bits wide here.
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let stat = session.create("/a", b"12345", CreateMode::Persistent).wait()?.stat;
/// assert_eq!((stat.version, stat.data_length), (0, 5));
/// assert_eq!(session.set("/a", b"6").wait()?.version, 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[non_exhaustive]
pub struct Stat {
    /// The zxid of the write that created the znode.
    pub czxid: Zxid,
    /// The zxid of the write that last changed its data.
    pub mzxid: Zxid,
    /// The zxid of the write that last created or deleted one of its children; at first, of its
    /// creation.
    pub pzxid: Zxid,
    /// When it was created: milliseconds since the Unix epoch, in the log's time, which follows the
    /// leader's clock and never goes back.
    pub ctime: u64,
    /// When its data last changed, as `ctime`.
    pub mtime: u64,
    /// How many times its data was set, even to the same bytes. (ZooKeeper's has 32 bits and wraps
    /// around; once it is -1, a comparison with it matches any version.)
    pub version: u64,
    /// How many children were created plus how many were deleted.
    pub cversion: u64,
    /// How many times its ACL was changed.
    pub aversion: u64,
    /// The session that it belongs to, if it is ephemeral.
    pub ephemeral_owner: Option<SessionId>,
    /// Whether it is a container. (ZooKeeper does not show this, nor the time to live.)
    pub is_container: bool,
    /// Its time to live, if it has one.
    #[serde(default, with = "crate::types::serde_form::Millis")]
    pub ttl: Option<Duration>,
    /// The length of its data in bytes.
    pub data_length: u32,
    /// How many children it has now.
    pub num_children: u32,
}

impl Stat {
    /// When a znode with a time to live may be deleted if nothing is done with it: milliseconds
    /// since the Unix epoch, in the log's time. `None` if it has no time to live, or has children
    /// now. Subtract the current time for the time that is left; it may still exist shortly after.
    pub fn expires_at(&self) -> Option<u64> {
        let ttl = u64::try_from(self.ttl?.as_millis()).unwrap_or(u64::MAX);
        (self.num_children == 0).then(|| self.mtime.saturating_add(ttl))
    }
}

/// A created znode: its path, which for sequential modes was not known before, and its stat.
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let created = session.create("/n", b"", CreateMode::Ephemeral).wait()?;
/// assert_eq!(created.path, "/n");
/// assert_eq!(created.stat.ephemeral_owner, Some(session.id()));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Created {
    /// The full path, with the number that a sequential mode appended.
    pub path: String,
    /// The stat of the new znode.
    pub stat: Stat,
}

/// The result of one operation of a [`Multi`](crate::Multi), at the same index.
///
/// ```
/// use quorate::multi::OpResult;
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let results = session.multi().create("/a", b"", CreateMode::Persistent).delete("/a").commit().wait()?;
/// assert!(matches!(results[0], OpResult::Created(_)));
/// assert_eq!(results[1], OpResult::Deleted);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OpResult {
    /// A create.
    Created(Created),
    /// A set, with the stat as of that operation.
    Set(Stat),
    /// A delete.
    Deleted,
    /// A check that held.
    Checked,
    /// A set of an ACL, with the stat as of that operation.
    AclSet(Stat),
    /// The first item of a [`Queue`](crate::recipes::Queue) was taken.
    Taken {
        /// The path of the item.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// The ephemeral by which its consumer has it; `None` if it was popped.
        claim: Option<Created>,
    },
    /// An addition of a [`Counter`](crate::recipes::Counter).
    Added {
        /// The sum.
        after: i64,
        /// The stat as of that operation.
        stat: Stat,
    },
}

/// A condition of a znode, for a [`Multi`](crate::Multi).
///
/// This goes beyond ZooKeeper, which checks only data versions. A zxid is never used twice, so that
/// [`Condition::Mzxid`] and [`Condition::Pzxid`] distinguish a znode from one that was deleted and
/// created again, which a version does not.
///
/// ```
/// use quorate::multi::Condition;
/// use quorate::{CreateMode, Error};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let leader = session.create("/leader", b"a", CreateMode::Persistent).wait()?.stat;
/// session.delete("/leader").wait()?;
/// session.create("/leader", b"b", CreateMode::Persistent).wait()?;
/// let condition = Condition::Czxid(leader.czxid);
/// let failed = session.multi().require("/leader", condition).set("/leader", b"a").commit().wait();
/// let Err(Error::Multi { index: 0, error }) = failed else { panic!("{failed:?}") };
/// assert_eq!(*error, Error::Unmet { path: "/leader".into(), condition });
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Condition {
    /// It exists.
    Exists,
    /// It does not exist.
    Absent,
    /// Its data has this version.
    Version(u64),
    /// It was created by this write.
    Czxid(Zxid),
    /// Its data was last changed by this write.
    Mzxid(Zxid),
    /// The last creation or deletion of a child was by this write.
    Pzxid(Zxid),
    /// This many children were created and deleted.
    Cversion(u64),
    /// Its ACL has this version.
    Aversion(u64),
    /// It is the znode of [`Quota::stats_path`](crate::quota::Quota::stats_path), and shows this
    /// [`Usage`](crate::quota::Usage). (That znode's mzxid and version stay the same while its data
    /// follows each write.)
    Usage {
        /// The number of znodes.
        znodes: u64,
        /// The bytes of data.
        bytes: u64,
    },
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Exists => f.write_str("it should exist"),
            Condition::Absent => f.write_str("it should not exist"),
            Condition::Version(version) => write!(f, "version {version}"),
            Condition::Czxid(zxid) => write!(f, "created by write {zxid}"),
            Condition::Mzxid(zxid) => write!(f, "last set by write {zxid}"),
            Condition::Pzxid(zxid) => write!(f, "children last changed by write {zxid}"),
            Condition::Cversion(cversion) => write!(f, "cversion {cversion}"),
            Condition::Aversion(aversion) => write!(f, "aversion {aversion}"),
            Condition::Usage { znodes, bytes } => {
                write!(f, "a use of {znodes} znodes and {bytes} bytes")
            }
        }
    }
}
