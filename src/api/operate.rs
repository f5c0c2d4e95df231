//! The calls for operators: reports of all members and sessions, and actions on them.

use crate::runtime::pending::Pending;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::api::coordinator::Coordinator;
use crate::node::admin::message::{
    Action, AdminReply, AdminRequest, LatencySummary as Taken, Progress, Report, SessionReport,
};
use crate::node::io::{Problem, spare};
use crate::runtime::own_thread;
use crate::types::error::{Error, Result};
use crate::types::membership::{Member, NodeId};
use crate::types::reason::{Reason, ReasonKind};
use crate::types::znode::{SessionId, Zxid};

/// How often an action is requested again while it is not complete.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// A reason that may pass is reported as a refusal if the leader repeats it for this time.
const REFUSED_FOR: Duration = Duration::from_secs(3);

/// The role of a member in its cluster.
///
/// ```
/// use quorate::operate::Role;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// cluster.node(0).session().sync().wait()?;
/// let reports = cluster.node(0).reports().wait()?;
/// assert_eq!(reports.iter().filter(|member| member.role == Role::Leader).count(), 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// The member leads, by its own report.
    Leader,
    /// The member votes.
    Voter,
    /// The member has a replica and no vote.
    Learner,
    /// The instance has no cluster yet, or has not been admitted to one.
    Blank,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Leader => "leader",
            Role::Voter => "voter",
            Role::Learner => "learner",
            Role::Blank => "blank",
        })
    }
}

/// A member of the cluster, and what it reports of itself: [`Coordinator::reports`].
///
/// ```
/// let cluster = quorate::testing::Cluster::new(3);
/// cluster.node(0).session().sync().wait()?;
/// for member in cluster.node(0).reports().wait()? {
///     println!("{} {} lags by {:?} entries", member.address, member.role, member.lag);
/// }
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct MemberReport {
    /// Its address.
    pub address: String,
    /// Its id, in hexadecimal, as in log messages.
    pub id: String,
    /// The zone that it was configured with; empty if none.
    pub zone: String,
    /// How much it is wanted as the leader: [`Builder::leader_priority`](crate::Builder::leader_priority).
    pub leader_priority: i32,
    /// Its role in the cluster.
    pub role: Role,
    /// Whether it has not reported in time. If so, `state` is `None`.
    pub is_silent: bool,
    /// The number of committed entries that it has not applied yet. `None` if it or the leader is
    /// silent.
    pub lag: Option<u64>,
    /// What it reports of itself; `None` if it is silent.
    pub state: Option<MemberState>,
    /// What a silent member has last told the others of its troubles: a full disk, a disk that does not answer, a
    /// certificate that expires, the reason for which it stopped. `None` if it told of none, and if it reports.
    pub last_report: Option<LastReport>,
}

/// What a member has told the others of its troubles before it was silent: a part of [`MemberReport`] and
/// [`MemberStatus`](crate::operate::MemberStatus).
///
/// ```
/// # let cluster = quorate::testing::Cluster::new(1);
/// # cluster.node(0).session().sync().wait()?;
/// for member in cluster.node(0).reports().wait()? {
///     if let Some(last) = &member.last_report {
///         println!("{} is silent; {last}", member.address);
///     }
/// }
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LastReport {
    /// How long ago it told that.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub age: Duration,
    /// What it told, for people.
    pub text: String,
}

/// `its last report, 40 s ago: its disk is nearly full: 0 B of room`.
impl fmt::Display for LastReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.age.as_secs();
        let age = match seconds {
            ..120 => format!("{seconds} s"),
            120..7200 => format!("{} min", seconds / 60),
            7200..172_800 => format!("{} h", seconds / 3600),
            _ => format!("{} d", seconds / 86_400),
        };
        write!(f, "its last report, {age} ago: {}", self.text)
    }
}

impl MemberReport {
    /// Whether it has a vote. Does not block.
    ///
    /// ```
    /// let cluster = quorate::testing::Cluster::new(1);
    /// cluster.node(0).session().sync().wait()?;
    /// assert!(cluster.node(0).reports().wait()?[0].votes());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn votes(&self) -> bool {
        matches!(self.role, Role::Leader | Role::Voter)
    }

    /// The leader, if a majority of the voters reports: a leader that has lost its majority does not know
    /// it at once. `reports` are those of all members ([`Coordinator::reports`]). Does not block.
    ///
    /// ```
    /// use quorate::operate::MemberReport;
    ///
    /// let cluster = quorate::testing::Cluster::new(3);
    /// cluster.node(0).session().sync().wait()?;
    /// let reports = cluster.node(0).reports().wait()?;
    /// let leader = MemberReport::leader(&reports).expect("all voters report");
    /// println!("{} leads", leader.address);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn leader(reports: &[MemberReport]) -> Option<&MemberReport> {
        let voters = reports.iter().filter(|member| member.votes());
        let silent = voters.clone().filter(|member| member.is_silent).count();
        let leader = reports.iter().find(|member| member.role == Role::Leader);
        leader.filter(|_| 2 * silent < voters.count())
    }

    /// How many more voters may be lost before writes end; `None` if they have ended. A voter that is silent
    /// counts as lost, and so does one whose disk is nearly full. `reports` are those of all members. Does not
    /// block.
    ///
    /// ```
    /// use quorate::operate::MemberReport;
    ///
    /// let cluster = quorate::testing::Cluster::new(3);
    /// cluster.node(0).session().sync().wait()?;
    /// assert_eq!(MemberReport::spare(&cluster.node(0).reports().wait()?), Some(1));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn spare(reports: &[MemberReport]) -> Option<usize> {
        let voters = reports.iter().filter(|member| member.votes());
        spare(voters, |voter| voter.state.as_ref().is_none_or(|state| state.disk_low))
    }
}

/// What a member reports of itself, all as of one moment.
///
/// ```
/// let cluster = quorate::testing::Cluster::new(1);
/// cluster.node(0).session().sync().wait()?;
/// let reports = cluster.node(0).reports().wait()?;
/// let state = reports[0].state.as_ref().expect("it is this instance, which reports");
/// assert!(state.applied_index <= state.last_index);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct MemberState {
    /// The version that the cluster uses, as far as this member knows.
    pub version: u16,
    /// Raft's term.
    pub term: u64,
    /// The address of the leader, if it knows one.
    pub leader: Option<String>,
    /// The last write that it has applied.
    pub zxid: Zxid,
    /// The last entry of its log.
    pub last_index: u64,
    /// The last entry that is on its disk.
    pub durable_index: u64,
    /// The last entry that it knows to be committed.
    pub committed_index: u64,
    /// The last entry that it has applied.
    pub applied_index: u64,
    /// An upper bound for the age of its replica, which has every write completed before that.
    /// `None` before it has had contact with a leader.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub stale_by: Option<Duration>,
    /// The sessions that it holds, for its own users and for its clients.
    pub sessions: u64,
    /// Its clients: instances without a replica.
    pub clients: u64,
    /// The watches that its users and clients have set.
    pub watches: u64,
    /// The znodes of its replica.
    pub znodes: u64,
    /// About how many bytes its log has.
    pub log_bytes: u64,
    /// The bytes of its last checkpoint; 0 before it has made one.
    pub checkpoint_bytes: u64,
    /// When its last checkpoint was begun; before the first checkpoint, when the member started.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub checkpoint_age: Duration,
    /// Why the checkpoint that is due could not be written when that was last tried: there was no room, or no file
    /// descriptor. It is tried again, and the log grows until then. `None` if none is due, or none has failed.
    pub checkpoint_error: Option<String>,
    /// The bytes that are free for it in the file system of its data directory, or of its log if that has
    /// less; `None` where that is not known.
    pub disk_free_bytes: Option<u64>,
    /// Whether `disk_free_bytes` is so low that the disk counts as nearly full, see
    /// [`Builder::disk_low`](crate::Builder::disk_low).
    pub disk_low: bool,
    /// For how long its disk has not answered a write, if that is two seconds or more. After a minute the member
    /// stops.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub disk_waits: Option<Duration>,
    /// How many directories with former data it keeps that were damaged.
    /// [`Status::former_data`](crate::operate::Status::former_data) of that member names them.
    pub former_directories: u64,
    /// Of the certificates and authorities that its process uses, the one that expires first; `None` if it uses none.
    pub certificate: Option<CertificateExpiry>,
    /// By how many milliseconds its wall clock is ahead of the log's time, and negative if it is behind. `None` before it
    /// has received that from a leader.
    pub clock_ahead_ms: Option<i64>,
    /// How long commits took in the last 30 to 60 seconds, from the proposal of a batch of writes
    /// until it was applied. `None` if it proposed none: only a leader does.
    pub commit: Option<Latency>,
    /// How long it took in the last 30 to 60 seconds until a write of its log was on the disk. `None`
    /// if there was no write.
    pub disk_sync: Option<Latency>,
    /// Whether it refuses writes, because the disks of too many members are nearly full.
    pub refuses_writes: bool,
    /// The members that it cannot reach, and why.
    pub unreachable: Vec<Unreachable>,
    /// For each member as which two processes run, with copies of one data directory, a sentence that names both:
    /// this member has refused one of them within the last half minute.
    pub duplicates: Vec<String>,
    /// The host and port of its [admin endpoint](crate::guide::admin), if it has one: its page is there, unless a proxy
    /// stands before it. An endpoint on the loopback has an address like `127.0.0.1:7480`, for its own host only.
    pub admin: Option<String>,
    /// Why it is not ready; `None` if it is. See [`Status::not_ready`](crate::operate::Status::not_ready).
    pub not_ready: Option<Reason>,
}

/// When a certificate expires: a part of [`MemberState`].
///
/// ```
/// # let cluster = quorate::testing::Cluster::new(1);
/// # cluster.node(0).session().sync().wait()?;
/// for member in cluster.node(0).reports().wait()? {
///     if let Some(first) = member.state.and_then(|state| state.certificate) {
///         println!("{}: {} expires in {} s", member.address, first.name, first.expires_in);
///     }
/// }
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CertificateExpiry {
    /// What it is, and its file.
    pub name: String,
    /// In how many seconds it expires, by the wall clock of the member; negative once it has.
    pub expires_in: i64,
}

/// A member that another one cannot reach: a part of [`MemberState`].
///
/// ```
/// # let cluster = quorate::testing::Cluster::new(1);
/// # cluster.node(0).session().sync().wait()?;
/// for member in cluster.node(0).reports().wait()? {
///     for other in member.state.into_iter().flat_map(|state| state.unreachable) {
///         println!("{} cannot reach {}: {}", member.address, other.address, other.reason);
///     }
/// }
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unreachable {
    /// The address of that member.
    pub address: String,
    /// Why it cannot be reached.
    pub reason: Reason,
}

/// How long operations took recently: a part of [`MemberState`].
///
/// A quantile is an estimate, as those of [`Metrics`](crate::operate::Metrics).
///
/// ```
/// use quorate::{CreateMode, testing::Cluster};
///
/// let cluster = Cluster::new(1);
/// cluster.node(0).session().create("/app", b"", CreateMode::Persistent).wait()?;
/// let reports = cluster.node(0).reports().wait()?;
/// let state = reports[0].state.as_ref().expect("it is this instance, which reports");
/// let commit = state.commit.expect("there was one");
/// assert!(commit.count >= 1 && commit.p50 <= commit.p99);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// How many operations there were.
    pub count: u64,
    /// Half of the operations took no longer than this.
    #[serde(rename = "p50_us", serialize_with = "crate::types::serde_form::micros")]
    pub p50: Duration,
    /// 99 of 100 operations took no longer than this.
    #[serde(rename = "p99_us", serialize_with = "crate::types::serde_form::micros")]
    pub p99: Duration,
}

impl From<Taken> for Latency {
    fn from(Taken { count, p50, p99 }: Taken) -> Latency {
        Latency { count, p50, p99 }
    }
}

/// A session of the cluster: [`Coordinator::sessions`].
///
/// See [`Coordinator::sessions`] for an example.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// The address of the member that holds it; `None` if a client holds it, or a former member.
    pub owner: Option<String>,
    /// The id of the instance that holds it, in hexadecimal, as in log messages.
    pub owner_id: String,
    /// If a client holds it, the member that serves that client. `None` if a member holds it, or
    /// while the client has no member.
    pub served_by: Option<String>,
    /// What its user calls the instance that holds it ([`Builder::name`](crate::Builder::name)). `None` if it has no name,
    /// for a client of a gateway, and if the member that holds or serves it does not report.
    pub name: Option<String>,
    /// Where its holder is, as far as it is known: the host and the port of a client that is connected to a
    /// member's [gateway](crate::guide::gateway), and of other holders the host, as they have it in scheme `ip`.
    pub from: Option<String>,
    /// The session's timeout: it expires if it is not renewed for so long.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub timeout: Duration,
    /// How long ago it was opened, by the members' wall clocks.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub age: Duration,
    /// About how long ago the leader last received a renewal or a write of it. `None` if no leader
    /// reports.
    #[serde(with = "crate::types::serde_form::Millis")]
    pub renewed: Option<Duration>,
    /// How many ephemeral znodes it owns.
    pub ephemerals: u64,
    /// How many watches it has; `None` if the member that holds or serves it does not report.
    pub watches: Option<u64>,
    /// About how many requests a second it has made in the last ten seconds, as the member counts them that holds or serves
    /// it: writes, and reads and watches that are requests to that member ([`Session`](crate::Session): an instance with a
    /// replica reads at once, without one). `None` if that member does not report.
    pub requests_per_second: Option<u64>,
}

/// The reports gathered from the members.
struct GatheredReports {
    /// All members, as the member that was asked knows them, and whether they vote.
    members: Vec<(Member, bool)>,
    replies: Vec<(NodeId, AdminReply)>,
}

impl GatheredReports {
    fn address(&self, node: NodeId) -> Option<String> {
        let found = self.members.iter().find(|(member, _)| member.node == node);
        found.map(|(member, _)| member.address.clone())
    }

    fn reports(&self) -> impl Iterator<Item = (NodeId, &Report)> {
        self.replies.iter().filter_map(|(node, reply)| match reply {
            AdminReply::Report(report) => Some((*node, &**report)),
            _ => None,
        })
    }
}

impl Coordinator {
    /// Returns all members of the cluster, in the order of their addresses, each with its present
    /// report of itself. Works on a client, too, and without a quorum. While there is no cluster yet, it
    /// returns the instances that are there ([`Role::Blank`]).
    ///
    /// Waits until all members that can be reached have reported: a second at most, and on a client some seconds at
    /// most.
    ///
    /// # Errors
    /// [`Error::Timeout`] on a client that reaches no member, and [`Error::Stopped`].
    ///
    /// ```
    /// let cluster = quorate::testing::Cluster::new(3);
    /// cluster.node(0).session().sync().wait()?;
    /// let reports = cluster.node(0).reports().wait()?;
    /// assert!(reports.len() == 3 && reports.iter().all(|member| !member.is_silent));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn reports(&self) -> Pending<'static, Vec<MemberReport>> {
        self.work("reports", move |coordinator| coordinator.reading_reports())
    }

    fn reading_reports(&self) -> Result<Vec<MemberReport>> {
        let gathered = self.gather(AdminRequest::Report, "reading the members' reports")?;
        // If several report that they lead, the one with the latest term is right.
        let leader = gathered.reports().filter(|(node, report)| report.leader == *node);
        let leader = leader.max_by_key(|(_, report)| report.term);
        let address =
            |node: NodeId| gathered.address(node).unwrap_or_else(|| format!("{node:016x}"));
        let unreachable = |(peer, problem): &(NodeId, Problem)| {
            let kind = if problem.refused { ReasonKind::Refused } else { ReasonKind::Unreachable };
            let reason = Reason::new(kind, problem.reason.clone());
            Unreachable { address: address(*peer), reason }
        };
        let last_report = |node: NodeId| {
            let told = gathered.reports().flat_map(|(_, report)| &report.last_reports);
            let latest = told.filter(|(peer, ..)| *peer == node).min_by_key(|(_, age, _)| *age);
            latest.map(|(_, age, text)| LastReport { age: *age, text: text.clone() })
        };
        let has_voters = gathered.members.iter().any(|(_, votes)| *votes);
        let of = |(member, votes): &(Member, bool)| {
            let node = member.node;
            let report = gathered.reports().find(|(from, _)| *from == node);
            let report = report.map(|(_, report)| report);
            let leads = leader.is_some_and(|(leader, _)| leader == node);
            MemberReport {
                address: member.address.clone(),
                id: format!("{node:016x}"),
                zone: member.zone.clone(),
                leader_priority: member.leader_priority,
                role: match votes {
                    _ if leads => Role::Leader,
                    true => Role::Voter,
                    // Each cluster has voters.
                    false if !has_voters => Role::Blank,
                    false => Role::Learner,
                },
                is_silent: report.is_none(),
                last_report: last_report(node).filter(|_| report.is_none()),
                lag: report
                    .zip(leader)
                    .map(|(of, (_, leader))| leader.committed.saturating_sub(of.applied)),
                state: report.map(|report| MemberState {
                    version: report.version,
                    term: report.term,
                    leader: (report.leader != 0).then(|| address(report.leader)),
                    zxid: report.zxid,
                    last_index: report.last,
                    durable_index: report.durable,
                    committed_index: report.committed,
                    applied_index: report.applied,
                    stale_by: report.stale_by,
                    sessions: report.sessions,
                    clients: report.clients,
                    watches: report.watches,
                    znodes: report.znodes,
                    log_bytes: report.log_bytes,
                    checkpoint_bytes: report.checkpoint_bytes,
                    checkpoint_age: report.checkpoint_age,
                    checkpoint_error: report.checkpoint_error.clone(),
                    disk_free_bytes: report.disk_free,
                    disk_low: report.disk_low,
                    disk_waits: report.disk_waits,
                    former_directories: report.former_directories,
                    certificate: report
                        .certificate
                        .clone()
                        .map(|(name, expires_in)| CertificateExpiry { name, expires_in }),
                    clock_ahead_ms: report.clock_ahead_ms,
                    commit: report.commit.map(Latency::from),
                    disk_sync: report.disk_sync.map(Latency::from),
                    refuses_writes: report.refuses_writes,
                    unreachable: report.unreachable.iter().map(unreachable).collect(),
                    duplicates: report.duplicates.clone(),
                    admin: report.admin.map(|admin| reachable(admin, &member.address)),
                    not_ready: report.not_ready.clone(),
                }),
            }
        };
        let mut reports: Vec<MemberReport> = gathered.members.iter().map(of).collect();
        reports.sort_by(|one, other| one.address.cmp(&other.address));
        Ok(reports)
    }

    /// Returns all sessions of the cluster, ordered by id, with what the members know of each. Works
    /// on a client, too, and without a quorum.
    ///
    /// Sessions that are opened or end during the call may be in the list or not.
    ///
    /// # Errors
    /// As [`Coordinator::reports`].
    ///
    /// ```
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// session.create("/here", b"", CreateMode::Ephemeral).wait()?;
    /// let sessions = cluster.node(0).sessions().wait()?;
    /// assert_eq!((sessions[0].id, sessions[0].ephemerals), (session.id(), 1));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn sessions(&self) -> Pending<'static, Vec<SessionInfo>> {
        self.work("sessions", move |coordinator| coordinator.reading_sessions())
    }

    fn reading_sessions(&self) -> Result<Vec<SessionInfo>> {
        let mut infos = Vec::new();
        let mut after = None;
        loop {
            let asked = AdminRequest::Sessions { after };
            let sessions;
            (sessions, after) = page_of(&self.gather(asked, "reading the members' sessions")?);
            infos.extend(sessions);
            if after.is_none() {
                return Ok(infos);
            }
        }
    }

    /// Hands leadership to the voter at this address. Waits until that voter leads, for the request timeout at most.
    ///
    /// During the handover writes wait, for the time of some messages and disk writes, and do not
    /// fail. The leader writes a line to the audit log, with `by` as the name of the requester.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no voter at this address; or if it does not respond or lacks much of the
    /// log, and still does after 3 seconds. [`Error::Timeout`] if it does not lead in time.
    ///
    /// ```
    /// use quorate::operate::Role;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// cluster.node(0).session().sync().wait()?;
    /// let reports = cluster.node(0).reports().wait()?;
    /// let follower = reports.iter().find(|member| member.role == Role::Voter).unwrap();
    /// cluster.node(0).move_leader(&follower.address, "an example").wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn move_leader(&self, address: &str, by: &str) -> Pending<'static, ()> {
        let (address, by) = (address.to_owned(), by.to_owned());
        self.work("move_leader", move |coordinator| coordinator.moving_leader(&address, &by))
    }

    fn moving_leader(&self, address: &str, by: &str) -> Result<()> {
        let to = self.member_at(address)?;
        self.act(&Action::MoveLeader { to }, by, &format!("moving the lead to {address}"))
    }

    /// Removes the member at this address, which must be dead. Waits until it is removed, for the request timeout at
    /// most.
    ///
    /// Its vote goes to a learner that has caught up. Without such a learner, there are fewer voters from
    /// then on. An instance that starts with the removed member's data stops, and must join as a new member:
    /// see [`guide::membership`](crate::guide::membership).
    ///
    /// # Errors
    /// [`Error::Refused`] if the member is alive, or no majority of the remaining voters responds, and
    /// that is still so after 3 seconds. [`Error::Timeout`] if the member is not removed in time.
    ///
    /// ```
    /// use quorate::{Error, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// cluster.node(0).session().sync().wait()?;
    /// let living = cluster.node(1).address();
    /// let refused = cluster.node(0).remove_member(&living, "an example");
    /// assert!(matches!(refused.wait(), Err(Error::Refused { .. })));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn remove_member(&self, address: &str, by: &str) -> Pending<'static, ()> {
        let (address, by) = (address.to_owned(), by.to_owned());
        self.work("remove_member", move |coordinator| coordinator.removing_member(&address, &by))
    }

    fn removing_member(&self, address: &str, by: &str) -> Result<()> {
        let member = self.member_at(address)?;
        self.act(&Action::Remove { member }, by, &format!("removing the member {address}"))
    }

    /// Ends a session, whoever holds it, as if its timeout had passed: its ephemerals are deleted. Waits until the
    /// session is over, for the request timeout at most.
    ///
    /// The holder notices the end, as after any loss, when it next writes or renews the session.
    ///
    /// # Errors
    /// [`Error::SessionExpired`] if there is no such session, and [`Error::Timeout`].
    ///
    /// ```
    /// let cluster = quorate::testing::Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// session.sync().wait()?;
    /// cluster.node(0).expire_session(session.id(), "an example").wait()?;
    /// assert!(session.sync().wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn expire_session(&self, session: SessionId, by: &str) -> Pending<'static, ()> {
        let by = by.to_owned();
        self.work("expire_session", move |coordinator| coordinator.expiring_session(session, &by))
    }

    fn expiring_session(&self, session: SessionId, by: &str) -> Result<()> {
        let after = session.0.checked_sub(1).map(SessionId);
        let known = self.gather(AdminRequest::Sessions { after }, "expiring a session")?;
        if !page_of(&known).0.iter().any(|info| info.id == session) {
            return Err(Error::SessionExpired { session });
        }
        self.act(&Action::Expire { session }, by, &format!("expiring the session {session}"))
    }

    /// Sends the action to the leader until it replies that there is nothing left to do.
    fn act(&self, action: &Action, by: &str, operation: &str) -> Result<()> {
        let shared = self.shared();
        let waited = shared.limits.request_timeout;
        let until = shared.clock.now().saturating_add(waited);
        let mut last = "no member has a leader that could do it; look at `status`".to_owned();
        let (mut after, mut refused_since) = (None, None);
        loop {
            let asked = AdminRequest::Act { action: action.clone(), by: by.to_owned(), after };
            let replies = match self.ask(asked, operation) {
                Err(Error::Timeout { .. }) => Vec::new(),
                replies => replies?,
            };
            // There may be no leader for a moment, also because of the action itself; or two, of which one
            // does not know yet that it is not the leader any more.
            let rank = |reply: &AdminReply| match reply {
                AdminReply::Gone => 4,
                AdminReply::Begun => 3,
                AdminReply::NotYet { .. } => 2,
                AdminReply::Refused { .. } => 1,
                _ => 0,
            };
            let now = shared.clock.now();
            match replies.into_iter().map(|(_, reply)| reply).max_by_key(rank) {
                Some(AdminReply::Gone) => return Ok(()),
                Some(AdminReply::Begun) => {
                    (after, refused_since) = (Some(Progress::Begun), None);
                    last = "it has begun, and is not complete".to_owned();
                }
                Some(AdminReply::NotYet { reason }) => {
                    let since: Duration = *refused_since.get_or_insert(now);
                    if now >= until.min(since.saturating_add(REFUSED_FOR)) {
                        return Err(Error::Refused { operation: operation.to_owned(), reason });
                    }
                    (after, last) = (Some(Progress::NotYet), reason);
                }
                Some(AdminReply::Refused { reason }) if after == Some(Progress::Begun) => {
                    last = reason
                }
                Some(AdminReply::Refused { reason }) => {
                    return Err(Error::Refused { operation: operation.to_owned(), reason });
                }
                _ => refused_since = None,
            }
            if now >= until {
                let operation = operation.to_owned();
                return Err(Error::Timeout { operation, waited, reason: last });
            }
            let _ = shared.timer(AGAIN_AFTER).wait();
        }
    }

    fn member_at(&self, address: &str) -> Result<NodeId> {
        let gathered = self.gather(AdminRequest::Report, "looking for the member")?;
        let is_it = |member: &&Member| {
            member.address == address || format!("{:016x}", member.node) == address
        };
        let refused = |reason: String| {
            Err(Error::Refused { operation: format!("finding the member {address}"), reason })
        };
        let members = || gathered.members.iter().map(|(member, _)| member);
        let found: Vec<NodeId> = members().filter(is_it).map(|member| member.node).collect();
        match found[..] {
            [] => {
                let known: Vec<&str> = members().map(|member| member.address.as_str()).collect();
                refused(format!(
                    "no member has this address or id; the members are {}",
                    known.join(", ")
                ))
            }
            [one] => Ok(one),
            // A member that came back with an empty disk, while its former id is still in the
            // membership.
            _ => {
                let ids: Vec<String> = found.iter().map(|node| format!("{node:016x}")).collect();
                refused(format!(
                    "{} members have this address: give the id of one, {}",
                    ids.len(),
                    ids.join(" or ")
                ))
            }
        }
    }

    /// The members' replies; empty if there are none.
    fn ask(&self, asked: AdminRequest, operation: &str) -> Result<Vec<(NodeId, AdminReply)>> {
        own_thread::check(operation)?;
        let shared = self.shared();
        let waited = shared.limits.request_timeout;
        shared.ask_members(asked).timeout(waited).wait().map_err(|error| match error {
            Error::Timeout { waited, reason, .. } => {
                Error::Timeout { operation: operation.to_owned(), waited, reason }
            }
            error => error,
        })
    }

    fn gather(&self, asked: AdminRequest, operation: &str) -> Result<GatheredReports> {
        let mut replies = self.ask(asked, operation)?;
        if replies.is_empty() {
            let shared = self.shared();
            return Err(Error::Timeout {
                operation: operation.to_owned(),
                waited: shared.limits.request_timeout,
                reason: shared.readiness.waiting_for(),
            });
        }
        let members = replies.iter_mut().find_map(|(_, reply)| match reply {
            AdminReply::Members { members } => Some(std::mem::take(members)),
            _ => None,
        });
        let members = members.unwrap_or_default();
        let refused = replies.iter().find_map(|(_, reply)| match reply {
            AdminReply::Refused { reason } => Some(reason.clone()),
            _ => None,
        });
        match refused.filter(|_| members.is_empty()) {
            Some(reason) => Err(Error::Refused { operation: operation.to_owned(), reason }),
            None => Ok(GatheredReports { members, replies }),
        }
    }
}

/// Where others reach a port that listens here, of the member at `address`.
fn reachable(listens: SocketAddr, address: &str) -> String {
    if !listens.ip().is_unspecified() {
        return listens.to_string();
    }
    // In the in-memory cluster, an address has no port.
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    format!("{host}:{}", listens.port())
}

/// Returns the sessions of one page, and the id up to which they are complete; `None` if there are no more.
/// The page ends where the shortest reply ends. The sessions are those of the leader, or else of the furthest
/// replica: a replica that lags still has some that have ended.
fn page_of(gathered: &GatheredReports) -> (Vec<SessionInfo>, Option<SessionId>) {
    let pages = || {
        gathered.replies.iter().filter_map(|(node, reply)| match reply {
            AdminReply::Sessions { sessions, more, leads, zxid } => {
                Some((*node, sessions, *more, (*leads, *zxid)))
            }
            _ => None,
        })
    };
    let ends = pages().filter(|(_, _, more, _)| *more);
    let end = ends.filter_map(|(_, sessions, ..)| sessions.last().map(|last| last.session)).min();
    let is_within = |of: &&SessionReport| end.is_none_or(|end| of.session <= end);
    let Some((_, listed, ..)) = pages().max_by_key(|(.., order)| *order) else {
        return (Vec::new(), None);
    };
    let of = |of: &SessionReport| SessionInfo {
        id: of.session,
        owner: gathered.address(of.owner),
        owner_id: format!("{:016x}", of.owner),
        served_by: None,
        name: None,
        from: of.from.clone(),
        timeout: Duration::from_millis(u64::from(of.timeout_ms)),
        age: of.age,
        renewed: of.renewed,
        ephemerals: of.ephemerals,
        watches: None,
        requests_per_second: None,
    };
    let listed = listed.iter().filter(is_within).map(|session| (session.session, of(session)));
    let mut infos: BTreeMap<SessionId, SessionInfo> = listed.collect();
    for (from, sessions, ..) in pages() {
        for of in sessions.iter().filter(is_within) {
            if let Some(info) = infos.get_mut(&of.session).filter(|_| of.watches.is_some()) {
                info.watches = of.watches;
                info.requests_per_second = of.requests_per_second;
                info.name.clone_from(&of.name);
                info.served_by = gathered.address(from).filter(|_| from != of.owner);
                info.from.clone_from(&of.from);
            }
        }
    }
    (infos.into_values().collect(), end)
}
