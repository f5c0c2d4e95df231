//! What a coordinator reports about its instance and its cluster.

use crate::runtime::pending::Pending;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::changes::Changes;
use crate::api::coordinator::Coordinator;
use crate::api::operate::LastReport;
use crate::runtime::directory::DataDirectory;
use crate::runtime::engine::WATCHES_LISTED;
use crate::types::availability::Availability;
use crate::types::metrics::Metrics;
use crate::types::reason::Reason;
use crate::types::watch::WatchInfo;
use crate::types::znode::Zxid;

/// The state of an instance and of its cluster, as the instance sees it: [`Coordinator::status`].
///
/// ```
/// let cluster = quorate::testing::Cluster::new(3);
/// let coordinator = cluster.node(0);
/// coordinator.session().sync().wait()?;
/// let status = coordinator.status();
/// assert_eq!(status.members.len(), 3);
/// println!("{status}");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The address of this instance.
    pub address: String,
    /// Its id, in hexadecimal, as in log messages.
    pub id: String,
    /// The id of its cluster, in hexadecimal; `None` before it has one.
    pub cluster: Option<String>,
    /// The address of the leader, if one is known.
    pub leader: Option<String>,
    /// Whether this instance is the leader.
    pub is_leader: bool,
    /// Raft's term. On a client, which has no replica, this and the other optional values of the
    /// replica are `None`.
    pub term: Option<u64>,
    /// The last write that this replica has applied. On a client, the last write that it has seen.
    pub zxid: Zxid,
    /// A hash of this replica's state: equal on all replicas with the same zxid.
    #[serde(serialize_with = "crate::types::serde_form::hex_if_known")]
    pub state_hash: Option<u64>,
    /// An upper bound for the age of this replica's state, which has every write completed longer
    /// ago than that. At most about two seconds in normal operation. `None` before the instance has had
    /// contact with a leader.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub stale_by: Option<Duration>,
    /// How many sessions the cluster has.
    pub sessions: Option<usize>,
    /// How many znodes there are.
    pub znodes: Option<usize>,
    /// The version that the cluster uses, as far as this replica knows: the lowest version that its
    /// members supported when the versions of all were last known. It never decreases.
    pub version: u16,
    /// All members. On a client, as its member reports them; empty until a member has served it.
    pub members: Vec<MemberStatus>,
    /// Whether writes are refused with [`Error::DiskLow`](crate::Error::DiskLow) because the disks of
    /// too many members are nearly full.
    pub refuses_writes: bool,
    /// Why the instance is not ready; `None` if it is: see [`Coordinator::is_ready`].
    pub not_ready: Option<Reason>,
    /// The reason why this node has stopped; `None` while it runs.
    pub stopped: Option<String>,
    /// The damage in this instance's data directory, reported from the start of the instance until
    /// a leader of its cluster has admitted it as a new member. Until then nothing in the directory
    /// is changed, and the instance has no replica and no vote.
    pub damaged: Option<String>,
    /// The directories to which former data of this instance was moved. See
    /// [`guide::recovery`](crate::guide::recovery) for when they may be deleted.
    pub former_data: Vec<PathBuf>,
}

/// A member, as this instance sees it: see [`Status`].
///
/// ```
/// let cluster = quorate::testing::Cluster::new(3);
/// let members = cluster.node(0).status().members;
/// assert_eq!(members.iter().filter(|member| member.is_self).count(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its address.
    pub address: String,
    /// Its id, in hexadecimal, as in log messages.
    pub id: String,
    /// The zone that it was configured with; empty if none.
    pub zone: String,
    /// Whether it votes. Other members have a replica and no vote.
    pub votes: bool,
    /// Whether it is this instance.
    pub is_self: bool,
    /// The highest version that it supports, as it reported when it was last connected to this
    /// instance; `None` if it never was. A client knows the versions of the members with which it
    /// is connected.
    pub version: Option<u16>,
    /// The reason why it cannot be reached; `None` if it can. This instance itself cannot be
    /// reached while it waits for the name at which it is to listen. A client is connected with two
    /// members; of the others it knows only which voters the leader cannot reach.
    pub unreachable: Option<String>,
    /// What it last told this instance of its troubles, if it cannot be reached.
    pub last_report: Option<LastReport>,
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
            if let Some(last) = &member.last_report {
                write!(f, "; {last}")?;
            }
            if member.disk_low {
                write!(f, "; the disk of {} is nearly full", member.address)?;
            }
        }
        if self.refuses_writes {
            write!(f, "; writes are refused until there is room")?;
        }
        if let Some(reason) = &self.not_ready {
            write!(f, "; not ready: {reason}")?;
        }
        match self.former_data.len() {
            0 => {}
            1 => write!(f, "; 1 directory with former data is kept")?,
            count => write!(f, "; {count} directories with former data are kept")?,
        }
        Ok(())
    }
}

impl Coordinator {
    /// Returns the watches that this instance's sessions have set, ordered by path; empty once the node
    /// has stopped. Blocks until the node's thread has replied. It reads a few thousand watches at a
    /// time: watches that are set or end during the call may be in the list or not.
    ///
    /// ```
    /// use quorate::WatcherType;
    /// use quorate::{WatchMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// let _watch = session.watch("/a", WatchMode::Persistent).wait()?;
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
            // Other watches may be set all the time, so an empty part might never come.
            let is_last = part.len() < WATCHES_LISTED;
            watches.extend(part.into_iter().map(|(_, watch)| watch));
            if is_last {
                break;
            }
        }
        watches.sort_by(|one, other| one.path.cmp(&other.path));
        watches
    }

    /// Returns the state of this instance and of its cluster. Does not block.
    pub fn status(&self) -> Status {
        let shared = self.shared();
        let status = shared.readiness.status();
        let now = shared.clock.now();
        let members = shared.cluster.members.load_full();
        let members = members.iter().map(|member| {
            let problem = status.peers.iter().find(|(peer, _)| *peer == member.node);
            let reported = status.versions.iter().find(|(peer, _)| *peer == member.node);
            let is_self = member.node == shared.cluster.node;
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
                    .or_else(|| shared.readiness.not_listening.reason().filter(|_| is_self)),
                last_report: {
                    let told = status.last_reports.iter().find(|(peer, _)| *peer == member.node);
                    told.map(|(_, (at, text))| LastReport {
                        age: now.saturating_sub(*at),
                        text: text.clone(),
                    })
                },
                disk_low: status.availability.disk_low.contains(&member.node),
            }
        });
        let replica = shared.has_replica;
        let cluster = shared.cluster.id();
        Status {
            address: self.address(),
            id: format!("{:016x}", shared.cluster.node),
            cluster: (cluster != 0).then(|| format!("{cluster:016x}")),
            leader: status.leader.and_then(|leader| shared.cluster.address(leader)),
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
            not_ready: shared.readiness.not_ready(),
            stopped: shared.end.reason().map(str::to_owned),
            damaged: shared.readiness.directory().and_then(DataDirectory::damage),
            former_data: shared
                .readiness
                .directory()
                .map(DataDirectory::former)
                .unwrap_or_default(),
        }
    }

    /// Returns this instance's metrics, when the node's thread has replied. Once the node has
    /// stopped, its counters are zero.
    pub fn metrics(&self) -> Pending<'static, Metrics> {
        self.work("metrics", |coordinator| Ok(coordinator.shared().metrics()))
    }

    /// Returns how many more failures the cluster tolerates, as this instance sees it. A client
    /// reports what its member sees, and no quorum while no member serves it. Does not block.
    pub fn availability(&self) -> Availability {
        self.shared().readiness.availability()
    }

    /// Follows [`Coordinator::availability`]: first the current value, and then each change. If changes are not read in
    /// time, the oldest and the latest are retained. It is over when the coordinator is closed or stops
    /// ([`Coordinator::wait_stopped`]). Does not block.
    ///
    /// ```
    /// use quorate::{Availability, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let coordinator = cluster.node(0);
    /// coordinator.session().sync().wait()?;
    /// let mut changes = coordinator.availability_changes();
    /// assert_eq!(changes.recv().wait()?, Some(Availability::Healthy { spare: 1 }));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn availability_changes(&self) -> Changes<Availability> {
        let (changes, wakers) = self.shared().readiness.subscribe();
        Changes::new(changes, wakers, self.shared())
    }

    /// Whether this instance can serve now and the next one may be replaced. Does not block.
    ///
    /// On a member that means: its replica was up to date within the last few seconds, there is a leader, and
    /// since its start the instance has got the vote, or the leader has decided that it need not vote. An
    /// instance that is to replace a voter is not ready before it has the vote. That takes some seconds if it
    /// has the address of the lost voter, and [`Builder::replace_after`](crate::Builder::replace_after) at
    /// any other.
    ///
    /// A client is ready while it is served by a member that knows a leader and has been in contact
    /// with it within the last few seconds.
    ///
    /// Use it as a readiness probe. A rolling update that waits for it, instance by instance,
    /// preserves the cluster and its data even if no disk persists. Do not restart an instance
    /// because it is not ready, and do not let the instances of a new cluster wait for each other
    /// one by one: see [`Availability`].
    pub fn is_ready(&self) -> bool {
        self.shared().readiness.not_ready().is_none()
    }

    /// Whether the cluster could go on writing without this instance, as far as is known now: there is a
    /// leader, it has reported which voters respond to it and have room on their disks, and these
    /// without this instance are a majority. A new leader knows that after about a second. Does not block.
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
        let seen = shared.readiness.status().availability;
        let known = seen.has_leader && seen.is_reported;
        shared.end.reason().is_none() && known && seen.spare(Some(shared.cluster.node)).is_some()
    }
}
