//! What a coordinator reports about its instance and its cluster.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::changes::Changes;
use crate::api::coordinator::Coordinator;
use crate::runtime::directory::DataDirectory;
use crate::runtime::engine::WATCHES_LISTED;
use crate::types::availability::Availability;
use crate::types::metrics::Metrics;
use crate::types::watch::WatchInfo;
use crate::types::znode::Zxid;

/// A replica that is known to be older than this is not ready.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The state of an instance and of its cluster, as the instance sees it: [`Coordinator::status`].
///
/// ```
/// let cluster = quorate::testing::Cluster::new(3);
/// let coordinator = cluster.node(0);
/// coordinator.session().sync()?;
/// let status = coordinator.status();
/// assert_eq!(status.members.len(), 3);
/// println!("{status}");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// The address of this instance.
    pub address: String,
    /// Its id, in hexadecimal, as in the log.
    pub id: String,
    /// The id of its cluster, in hexadecimal; `None` before it has one.
    pub cluster: Option<String>,
    /// The address of the leader, if one is known.
    pub leader: Option<String>,
    /// Whether it is this instance.
    pub is_leader: bool,
    /// Raft's term. This and the other values of the replica are `None` on a client, which has none.
    pub term: Option<u64>,
    /// The last write that this replica has applied. On a client, the last that it has seen.
    pub zxid: Zxid,
    /// A hash of this replica's state: equal on all replicas with the same zxid.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "crate::types::serde_form::hex_if_known")
    )]
    pub state_hash: Option<u64>,
    /// An upper bound for the age of this replica's state: it has every write completed before
    /// that. About a second in normal operation. `None` before it has had contact with a leader.
    #[cfg_attr(feature = "serde", serde(with = "crate::types::serde_form::Millis"))]
    pub stale_by: Option<Duration>,
    /// How many sessions the cluster has.
    pub sessions: Option<usize>,
    /// How many znodes there are.
    pub znodes: Option<usize>,
    /// The version that the cluster uses, as far as this replica knows: the lowest that its members
    /// supported when all of them were last known. It never decreases.
    pub version: u16,
    /// All members. On a client, as its member reports them: empty before it has had one.
    pub members: Vec<MemberStatus>,
    /// Whether writes are refused with [`Error::DiskLow`](crate::Error::DiskLow), since the disks of too
    /// many members are nearly full.
    pub refuses_writes: bool,
    /// Why this node has stopped, if it has.
    pub stopped: Option<String>,
    /// The damage in this instance's data directory, from the start until a leader of its cluster
    /// has admitted it as a new member. Until then nothing in the directory is changed, and the
    /// instance has no replica and no vote.
    pub damaged: Option<String>,
    /// The directories with former data of this instance, which was set aside. See
    /// [`guide::recovery`](crate::guide::recovery) for when they may be deleted.
    pub former_data: Vec<PathBuf>,
}

/// A member, as another one sees it: see [`Status`].
///
/// ```
/// let cluster = quorate::testing::Cluster::new(3);
/// let members = cluster.node(0).status().members;
/// assert_eq!(members.iter().filter(|member| member.is_self).count(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its address.
    pub address: String,
    /// Its id, in hexadecimal, as in the log.
    pub id: String,
    /// The zone that it was configured with; empty if none.
    pub zone: String,
    /// Whether it votes. Other members have a replica and no vote.
    pub votes: bool,
    /// Whether it is this instance.
    pub is_self: bool,
    /// The highest version that it supports, as it reported when last connected to this instance;
    /// `None` if it never was. A client knows that of the members that it is connected with.
    pub version: Option<u16>,
    /// Why it cannot be reached, if it cannot. This instance itself cannot while it waits for the
    /// name that it is to listen at. A client is connected with two members; of the others
    /// it knows which voters the leader misses.
    pub unreachable: Option<String>,
    /// Whether its disk is nearly full, as the leader last reported: see
    /// [`Builder::disk_low`](crate::Builder::disk_low).
    pub disk_low: bool,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.stopped {
            return write!(f, "{} has stopped: {reason}", self.address);
        }
        if let Some(damage) = &self.damaged {
            write!(f, "the data directory is damaged ({damage}); ")?;
        }
        match &self.leader {
            _ if self.is_leader => write!(f, "{} leads", self.address)?,
            Some(leader) => write!(f, "{} follows {leader}", self.address)?,
            None => write!(f, "{} knows of no leader", self.address)?,
        }
        if let Some(term) = self.term {
            write!(f, " in term {term}")?;
        }
        write!(f, " at version {}; zxid {}", self.version, self.zxid)?;
        if let (Some(znodes), Some(sessions)) = (self.znodes, self.sessions) {
            write!(f, ", {znodes} znodes, {sessions} sessions")?;
        }
        match self.stale_by {
            Some(stale) => write!(f, "; reads are at most {stale:.1?} old")?,
            None => write!(f, "; it is not known how old reads are")?,
        }
        for member in &self.members {
            if let Some(reason) = &member.unreachable {
                write!(f, "; {} is unreachable: {reason}", member.address)?;
            }
            if member.disk_low {
                write!(f, "; the disk of {} is nearly full", member.address)?;
            }
        }
        if self.refuses_writes {
            write!(f, "; writes are refused until there is room")?;
        }
        Ok(())
    }
}

impl Coordinator {
    /// The watches that this instance's sessions have set, by path. Blocks until the node's thread
    /// answers; empty once the node has stopped. It asks for a few thousand at a time: watches that are
    /// set or end meanwhile may be in the list or not.
    ///
    /// ```
    /// use quorate::{WatchMode, WatcherType, testing::Cluster};
    ///
    /// let cluster = Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// let _watch = session.watch("/a", WatchMode::Persistent)?;
    /// let watches = cluster.node(0).watches();
    /// assert_eq!((watches[0].path.as_str(), watches[0].kind), ("/a", WatcherType::Persistent));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn watches(&self) -> Vec<WatchInfo> {
        let mut watches = Vec::new();
        let mut after = None;
        loop {
            let part = self.shared().look(move |engine| engine.watches_after(after));
            let part = part.unwrap_or_default();
            after = part.last().map(|(last, _)| *last);
            // Others may be set all the while, so an empty part might never come.
            let is_last = part.len() < WATCHES_LISTED;
            watches.extend(part.into_iter().map(|(_, watch)| watch));
            if is_last {
                break;
            }
        }
        watches.sort_by(|one, other| one.path.cmp(&other.path));
        watches
    }

    /// The state of this instance and of its cluster.
    pub fn status(&self) -> Status {
        let shared = self.shared();
        let status = shared.status();
        let now = shared.clock.now();
        let members = shared.members.load_full();
        let members = members.iter().map(|member| {
            let problem = status.peers.iter().find(|(peer, _)| *peer == member.node);
            let reported = status.versions.iter().find(|(peer, _)| *peer == member.node);
            let is_self = member.node == shared.node;
            MemberStatus {
                address: member.address.clone(),
                id: format!("{:016x}", member.node),
                zone: member.zone.clone(),
                votes: status.availability.voters.contains(&member.node),
                is_self,
                version: reported
                    .map(|(_, version)| *version)
                    .or(is_self.then_some(status.own_version)),
                unreachable: problem
                    .and_then(|(_, problem)| Some(problem.as_ref()?.reason.clone()))
                    .or_else(|| shared.obstacles.not_listening().filter(|_| is_self)),
                disk_low: status.availability.disk_low.contains(&member.node),
            }
        });
        let replica = shared.has_replica;
        let cluster = shared.cluster.load(Ordering::Relaxed);
        Status {
            address: self.address(),
            id: format!("{:016x}", shared.node),
            cluster: (cluster != 0).then(|| format!("{cluster:016x}")),
            leader: status.leader.and_then(|leader| shared.address(leader)),
            is_leader: status.is_leader,
            term: replica.then_some(status.term),
            zxid: status.zxid,
            state_hash: replica.then_some(status.hash),
            stale_by: status.fresh_at.map(|fresh| now.saturating_sub(fresh)),
            sessions: replica.then_some(status.sessions),
            znodes: replica.then_some(status.znodes),
            version: status.version,
            members: members.collect(),
            refuses_writes: status.availability.refuses_writes,
            stopped: shared.stopped().map(str::to_owned),
            damaged: shared.directory().and_then(DataDirectory::damage),
            former_data: shared.directory().map(DataDirectory::former).unwrap_or_default(),
        }
    }

    /// This instance's metrics. Blocks until the node's thread answers. Once the node has stopped, all
    /// that it counted is zero.
    pub fn metrics(&self) -> Metrics {
        self.shared().metrics()
    }

    /// How many more failures the cluster tolerates, as this instance sees it. A client reports
    /// what its member sees, and no quorum while no member serves it. Does not block.
    pub fn availability(&self) -> Availability {
        self.shared().availability()
    }

    /// As [`Coordinator::availability`], as a channel: the current value, and then each change. If
    /// changes are not read in time, the oldest and the latest are retained. It closes when the
    /// coordinator does.
    ///
    /// ```
    /// use quorate::{Availability, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let coordinator = cluster.node(0);
    /// coordinator.session().sync()?;
    /// let changes = coordinator.availability_changes();
    /// assert_eq!(changes.recv().unwrap(), Availability::Healthy { spare: 1 });
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn availability_changes(&self) -> Receiver<Availability> {
        let shared = self.shared();
        shared.availability.add(&shared.availability())
    }

    /// As [`Coordinator::availability_changes`], for a task. Does not block.
    ///
    /// ```
    /// use quorate::Availability;
    ///
    /// # async fn example(coordinator: &quorate::Coordinator) {
    /// let mut changes = coordinator.availability_changes_async();
    /// while let Some(now) = changes.next().await {
    ///     if let Availability::NoQuorum { reason } = now {
    ///         eprintln!("no quorum: {reason}");
    ///     }
    /// }
    /// # }
    /// ```
    pub fn availability_changes_async(&self) -> Changes<Availability> {
        Changes::new(self.availability_changes(), self.shared().availability.waiting())
    }

    /// Whether this instance can serve now and the next one may be replaced. Does not block.
    ///
    /// Its replica was level with the cluster within the last few seconds, there is a leader, and
    /// the instance has had its place since it started: it votes, or the leader has decided that it
    /// need not. An instance that is to replace a voter is not ready before it has the vote. That
    /// takes some seconds at the address of a lost voter, and [`Builder::replace_after`](crate::Builder::replace_after) at any
    /// other.
    ///
    /// A client is ready while it is served by a member that knows a leader, and that has confirmed
    /// the leader within the last few seconds.
    ///
    /// Use it as a readiness probe. A rolling update that waits for it, instance by instance,
    /// preserves the cluster and its data even if no disk persists. There is no need to restart an
    /// instance that is not ready, and a starting cluster must not wait for its instances to be
    /// ready one after the other: see [`Availability`].
    pub fn is_ready(&self) -> bool {
        let shared = self.shared();
        let status = shared.status();
        let now = shared.clock.now();
        let fresh = status.fresh_at.is_some_and(|at| now.saturating_sub(at) < READY_WITHIN);
        shared.stopped().is_none() && status.leader.is_some() && fresh && status.is_placed
    }

    /// Whether the cluster could continue without this instance, as far as is known now: there is a
    /// leader, it has reported which voters it hears from, and these without this instance are a
    /// majority. A new leader knows that after about a second. Does not block.
    ///
    /// Check it before stopping instances one after the other. It is never true in a cluster of one
    /// or two.
    ///
    /// ```
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// cluster.advance(std::time::Duration::from_secs(2));
    /// assert!(cluster.node(0).safe_to_stop());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn safe_to_stop(&self) -> bool {
        let shared = self.shared();
        let seen = shared.status().availability;
        let lost = |voter| voter == shared.node || seen.silent.contains(&voter);
        let known = seen.has_leader && seen.is_reported;
        shared.stopped().is_none() && known && seen.spare(lost).is_some()
    }
}
