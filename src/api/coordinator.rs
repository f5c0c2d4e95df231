//! The coordinator: this process's membership in the cluster.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::api::builder::Builder;
use crate::api::session::Session;
use crate::node::REMOVED;
use crate::node::client::LEFT;
use crate::runtime::directory::DataDirectory;
use crate::runtime::engine::Engine;
use crate::runtime::own_thread;
use crate::runtime::shared::Shared;
use crate::types::availability::Availability;
use crate::types::error::{Error, Result};
use crate::types::metrics::Metrics;
use crate::types::watch::WatchInfo;
use crate::types::znode::{SessionId, Zxid};

/// A replica that is known to be older than this is not ready.
const READY_WITHIN: Duration = Duration::from_secs(5);
/// How often an instance that waits to be ready checks whether it has its place.
const PLACE_PERIOD: Duration = Duration::from_millis(20);

/// This process's membership in the cluster: its replica, its vote and its sessions.
///
/// It runs until [`Coordinator::close`], or until the last handle is dropped, including the handles
/// of its sessions. Handles are clones. Several coordinators may run in one process, each with its
/// own data directory and address.
///
/// **Wakers of tasks run on its thread.** They must not block: blocking calls fail there with
/// [`Error::WouldBlock`]. A panic in a waker is caught and logged.
///
/// **It does not run in a fork of its process.** There, its sessions are over, its locks are not
/// held, calls fail with [`Error::Stopped`], and dropping handles does nothing; reads show the
/// replica as of the fork. A fork may join as a client, but not as a member. While it lives, it
/// keeps inherited files and sockets open: the forked process can be started again once the fork
/// has ended, or has executed another program.
///
/// ```no_run
/// use quorate::Coordinator;
///
/// // On one host. On several, `builder` names the cluster's `Secret` or certificates, too.
/// let coordinator = Coordinator::join(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"])?;
/// let session = coordinator.session();
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Coordinator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    owner: Arc<Owner>,
    /// The instance's own session, once it was requested.
    session: Mutex<Option<Session>>,
}

/// A session of the cluster, from [`Coordinator::sessions`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// The address of the member that holds it.
    pub owner: Option<String>,
    /// How long the session survives without a sign of life.
    pub timeout: Duration,
    /// How many ephemeral znodes it owns.
    pub ephemerals: usize,
}

/// Keeps a node running: dropping the last one stops the node.
pub(crate) struct Owner {
    pub(crate) shared: Arc<Shared>,
    runs: Runs,
}

/// What runs the node.
enum Runs {
    Thread(Mutex<Option<JoinHandle<()>>>),
    /// An in-memory cluster, which ends with the last of its users.
    Cluster {
        _running: Arc<dyn Any + Send + Sync>,
    },
    /// A simulation, whose only thread never waits.
    #[cfg(any(test, feature = "simulator"))]
    Simulation,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("node", &self.shared.node).finish_non_exhaustive()
    }
}

impl Owner {
    fn close(&self) {
        let closed = self.shared.close();
        // The last handle may be dropped in a waker. The node's own thread cannot wait for itself,
        // and another node's must not wait.
        if own_thread::is_this() {
            return;
        }
        match &self.runs {
            Runs::Thread(thread) => {
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(thread) = thread {
                    let _ = thread.join();
                }
            }
            Runs::Cluster { .. } => {
                // No message ever comes: the channel closes with the node.
                let _ = closed.recv();
            }
            #[cfg(any(test, feature = "simulator"))]
            Runs::Simulation => drop(closed),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.shared.clock.is_forked() {
            // There is no thread to join, and nothing to release.
            if let Runs::Thread(thread) = &mut self.runs {
                let thread = thread.get_mut().unwrap_or_else(PoisonError::into_inner);
                std::mem::forget(thread.take());
            }
            return;
        }
        // A node of an in-memory cluster continues: the users of other nodes may still need its
        // vote.
        if let Runs::Thread(_) = &self.runs {
            self.close();
        }
    }
}

impl Coordinator {
    /// Joins the cluster of these peers, or founds it with them if there is none. The peers are all
    /// instances of the application, including this one, each as `host:port`.
    ///
    /// Every instance passes the same list, in any order and at every start. Each takes the first
    /// address in it that belongs to its host and is free, and stores its data below
    /// `quorate-data/<address>` in the working directory. [`Coordinator::builder`] can set either;
    /// an instance that is not on the list must do that. `docs/membership.md` describes how a
    /// cluster is founded, and how instances come and go afterwards.
    ///
    /// A name in the list must stand for one host: `docs/membership.md` says what happens
    /// otherwise.
    ///
    /// Returns without waiting for the others; [`Coordinator::wait_ready`] waits for them. Names
    /// are looked up in the background. Two things may delay it:
    /// - **A name that it needs**: if neither the list nor [`Builder::listen`] has an IP address to
    ///   listen on, it waits for that name, at most 10 seconds. For the other names it waits a
    ///   quarter of a second, so that errors in them can be reported at once.
    /// - **A slow disk**: if the data directory is not open within a minute, and a second more for
    ///   each MiB of it, this fails with [`Error::DataDirUnusable`]. If the disk still hangs, this
    ///   process continues to use the directory: a new attempt fails with [`Error::DataDirInUse`]
    ///   until the disk has released it or the process has ended.
    ///
    /// # Errors
    /// For the list: [`Error::NoPeers`], [`Error::InvalidPeer`], [`Error::DuplicatePeer`],
    /// [`Error::NotSecured`] if one is not on this host's loopback, [`Error::NotAPeer`] if none is
    /// this process. For the data directory: [`Error::DataDirInUse`], [`Error::DataDirUnusable`],
    /// [`Error::DataDirMismatch`], [`Error::Corrupt`]. [`Error::System`].
    pub fn join<P: AsRef<str>>(peers: impl IntoIterator<Item = P>) -> Result<Coordinator> {
        Builder::default().join(peers)
    }

    /// The settings for joining.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn owning(shared: Arc<Shared>, thread: JoinHandle<()>) -> Coordinator {
        Coordinator::run_by(shared, Runs::Thread(Mutex::new(Some(thread))))
    }

    /// A node that runs as long as `cluster` does, and keeps `cluster` running.
    pub(crate) fn of_cluster(
        shared: Arc<Shared>,
        cluster: Arc<dyn Any + Send + Sync>,
    ) -> Coordinator {
        Coordinator::run_by(shared, Runs::Cluster { _running: cluster })
    }

    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn simulated(shared: Arc<Shared>) -> Coordinator {
        Coordinator::run_by(shared, Runs::Simulation)
    }

    /// Opens or resumes a session, and returns the answer to wait for, without blocking. A session
    /// resumed without a timeout keeps its own.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn begin_session(
        &self,
        timeout: Option<Duration>,
        resume: Option<(SessionId, [u8; 16])>,
    ) -> Result<(Session, crate::Pending<()>)> {
        let usual = self.shared().limits.session_timeout;
        match resume {
            Some(known) => Session::resume(&self.inner.owner, known, timeout),
            None => Session::open(&self.inner.owner, timeout.unwrap_or(usual)),
        }
    }

    fn run_by(shared: Arc<Shared>, runs: Runs) -> Coordinator {
        let owner = Arc::new(Owner { shared, runs });
        Coordinator { inner: Arc::new(Inner { owner, session: Mutex::new(None) }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.owner.shared
    }

    /// This instance's own session: the same one at every call, and a new one when that is over.
    ///
    /// Does not block: the session is opened in the background.
    ///
    /// # Panics
    /// If the operating system provides no random numbers.
    pub fn session(&self) -> Session {
        let mut own = self.inner.session.lock().unwrap_or_else(PoisonError::into_inner);
        match &*own {
            Some(session) if !session.state().is_final() => session.clone(),
            _ => {
                let session = match self.open_session() {
                    Ok(session) => session,
                    Err(error) => panic!("{error}"),
                };
                *own = Some(session.clone());
                session
            }
        }
    }

    /// Opens another session, with the coordinator's session timeout. Does not block.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn open_session(&self) -> Result<Session> {
        self.open_session_with(self.shared().limits.session_timeout)
    }

    /// Opens another session with its own timeout, which is limited to between 2 and 20 ticks. Does
    /// not block.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn open_session_with(&self, timeout: Duration) -> Result<Session> {
        // The session's state and its calls show whether it could be opened.
        Session::open(&self.inner.owner, timeout).map(|(session, _)| session)
    }

    /// Takes over a session that was opened here or elsewhere. It keeps its ephemeral znodes, its
    /// locks and its timeout, but not its watches. The former holder gets [`Error::SessionMoved`].
    /// Blocks as [`Session::create`].
    ///
    /// # Errors
    /// [`Error::SessionExpired`] if the cluster does not, or no longer, know the session;
    /// [`Error::WrongPassword`]; otherwise as [`Session::create`]. After [`Error::Timeout`] the
    /// session may have been taken over; it is not closed, and can be resumed again until it
    /// expires.
    ///
    /// ```
    /// use quorate::{CreateMode, Error, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let old = cluster.node(0).session();
    /// old.create("/mine", b"", CreateMode::Ephemeral)?;
    /// let new = cluster.node(1).resume(old.id(), old.password())?;
    /// assert!(matches!(old.set("/mine", b"1"), Err(Error::SessionMoved { .. })));
    /// new.set("/mine", b"2")?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn resume(&self, session: SessionId, password: [u8; 16]) -> Result<Session> {
        self.resume_as(session, password, None)
    }

    /// As [`Coordinator::resume`], with a new timeout, which is limited to between 2 and 20 ticks.
    /// The session keeps it from then on, also when it is resumed again. A shorter one does not end
    /// the session sooner than its former holder was promised.
    ///
    /// Source: ZooKeeper, where a client that reconnects requests a timeout again. (There, a new
    /// leader returns to the first one.)
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let old = cluster.node(0).open_session_with(Duration::from_secs(30))?;
    /// old.sync()?;
    /// let new = cluster.node(1).resume(old.id(), old.password())?;
    /// assert_eq!(new.timeout(), Duration::from_secs(30));
    /// let short = Duration::from_secs(10);
    /// assert_eq!(cluster.node(2).resume_with(old.id(), old.password(), short)?.timeout(), short);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn resume_with(
        &self,
        session: SessionId,
        password: [u8; 16],
        timeout: Duration,
    ) -> Result<Session> {
        self.resume_as(session, password, Some(timeout))
    }

    fn resume_as(
        &self,
        session: SessionId,
        password: [u8; 16],
        timeout: Option<Duration>,
    ) -> Result<Session> {
        let known = (session, password);
        let (resumed, opened) = Session::resume(&self.inner.owner, known, timeout)?;
        let settled = self.shared().settle("resume session", &session.to_string(), opened);
        settled.inspect_err(|_| resumed.abandon())?;
        // The former holder has seen nothing newer than this one now has.
        Ok(resumed)
    }

    /// Blocks until this instance has a session, its replica has caught up with the cluster and it
    /// has its place, as for [`Coordinator::is_ready`], at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::PeerRefused`] if a peer belongs to another cluster, has another secret or
    /// authority, or one of the two is too old for the other. Otherwise [`Error::Timeout`] says
    /// what it was waiting for: which peers do not answer, and why.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        let shared = self.shared();
        let until = shared.clock.now().saturating_add(timeout);
        let timed_out = |reason| Error::Timeout {
            operation: "joining the cluster".to_owned(),
            waited: timeout,
            reason,
        };
        let mut synced = self.session().nonblocking().sync_in_any_case();
        match synced.wait_timeout(timeout) {
            Some(synced) => drop(synced?),
            None => {
                return Err(shared.refusal().unwrap_or_else(|| timed_out(shared.waiting_for())));
            }
        }
        while !shared.status().is_placed {
            let left = until.saturating_sub(shared.clock.now());
            if left.is_zero() {
                let place = "its replica is up to date, but it is not settled yet whether it votes";
                return Err(timed_out(format!("{place}; {}", shared.waiting_for())));
            }
            shared.timer(left.min(PLACE_PERIOD)).wait()?;
        }
        Ok(())
    }

    /// The address by which the peers know this instance. For a client, to which nobody connects,
    /// that of its host towards the members, without a port; empty if no route to them was known
    /// when it joined.
    pub fn address(&self) -> String {
        self.shared().own_address()
    }

    /// All sessions of the cluster as this replica has them, by id. Blocks until the node's thread
    /// answers; empty once the node has stopped.
    ///
    /// ```
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// session.create("/here", b"", CreateMode::Ephemeral)?;
    /// let sessions = cluster.node(0).sessions();
    /// assert_eq!((sessions[0].id, sessions[0].ephemerals), (session.id(), 1));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let shared = self.shared();
        let look = |engine: &Engine| -> Vec<(SessionId, u64, u32, usize)> {
            let Some(node) = engine.node() else { return Vec::new() };
            let sessions = node.machine().sessions();
            let infos = sessions.map(|(id, record)| {
                (id, record.owner, record.timeout_ms, record.ephemerals.size())
            });
            infos.collect()
        };
        let sessions = shared.look(look).unwrap_or_default().into_iter();
        let infos = sessions.map(|(id, owner, timeout_ms, ephemerals)| SessionInfo {
            id,
            owner: shared.address(owner),
            timeout: Duration::from_millis(u64::from(timeout_ms)),
            ephemerals,
        });
        infos.collect()
    }

    /// The watches that this instance's sessions have set, by path. Blocks until the node's thread
    /// answers; empty once the node has stopped.
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
        self.shared().look(Engine::watches).unwrap_or_default()
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
                zone: member.zone.clone(),
                votes: status.availability.voters.contains(&member.node),
                is_self,
                version: reported
                    .map(|(_, version)| *version)
                    .or(is_self.then_some(status.own_version)),
                unreachable: problem
                    .and_then(|(_, problem)| Some(problem.as_ref()?.reason.clone())),
            }
        });
        Status {
            address: self.address(),
            leader: status.leader.and_then(|leader| shared.address(leader)),
            is_leader: status.is_leader,
            term: status.term,
            zxid: status.zxid,
            state_hash: status.hash,
            stale_by: status.fresh_at.map(|fresh| now.saturating_sub(fresh)),
            sessions: status.sessions,
            znodes: status.znodes,
            version: status.version,
            members: members.collect(),
            stopped: shared.stopped().map(str::to_owned),
            damaged: shared.directory().and_then(DataDirectory::damage),
            former_data: shared.directory().map(DataDirectory::former).unwrap_or_default(),
        }
    }

    /// This instance's metrics. Blocks until the node's thread answers; all zero once the node has
    /// stopped.
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

    /// Whether this instance can serve now and the next one may be replaced. Does not block.
    ///
    /// Its replica was level with the cluster within the last few seconds, there is a leader, and
    /// the instance has had its place since it started: it votes, or the leader has decided that it
    /// need not. An instance that is to replace a voter is not ready before it has the vote. That
    /// takes some seconds at the address of a lost voter, and [`Builder::replace_after`] at any
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
        let known = seen.has_leader && seen.is_told;
        shared.stopped().is_none() && known && seen.spare(lost).is_some()
    }

    /// Leaves the cluster for good: hands the vote to another instance if one can take it, is
    /// removed, and stops. For a restart, use [`Coordinator::close`]: then it stays a member.
    ///
    /// Blocks for `timeout` at most. The data directory is marked; joining with it again makes this
    /// instance a new member.
    ///
    /// # Errors
    /// [`Error::Timeout`]: most voters must be reachable, also without this one, so the last
    /// instance of a cluster cannot leave it. It continues to try as long as it runs.
    pub fn leave(&self, timeout: Duration) -> Result<()> {
        own_thread::check("leaving the cluster")?;
        let shared = self.shared();
        let changes = self.availability_changes();
        let until = shared.clock.now().saturating_add(timeout);
        shared.leave();
        loop {
            match shared.stopped() {
                Some(reason) if has_left(reason) => {
                    self.close();
                    return Ok(());
                }
                Some(reason) => return Err(Error::Stopped { reason: reason.to_owned() }),
                None => {}
            }
            let left = until.saturating_sub(shared.clock.now());
            if left.is_zero() {
                return Err(Error::Timeout {
                    operation: "leaving the cluster".to_owned(),
                    waited: timeout,
                    reason: shared.waiting_for(),
                });
            }
            // The node's end closes the channel, or is a change in it.
            match changes.recv_timeout(left) {
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let reason = shared.stopped().unwrap_or("it was closed").to_owned();
                    if !has_left(&reason) {
                        return Err(Error::Stopped { reason });
                    }
                }
            }
        }
    }

    /// Stops this instance: hands over leadership, closes its sessions, and ends its threads.
    ///
    /// Leadership goes first, whatever the instance's own threads are doing, so that the others can
    /// write again after a few messages and disk writes: their calls wait that long and do not
    /// fail. From then on, new sessions are refused with [`Error::Stopped`].
    ///
    /// Takes a second at most, unless the disk hangs. If the cluster would now lose its majority,
    /// but another instance is about to take the place of a lost voter, it first waits for that,
    /// ten seconds at most. It stays a member and may join again. Calls on remaining handles fail
    /// with [`Error::SessionClosed`] or [`Error::Stopped`].
    pub fn close(&self) {
        if self.shared().clock.is_forked() {
            return;
        }
        drop(self.inner.session.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.inner.owner.close();
    }
}

/// Whether this is how an instance stops that was told to leave.
fn has_left(reason: &str) -> bool {
    [REMOVED, LEFT].contains(&reason)
}

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
#[non_exhaustive]
pub struct Status {
    /// The address of this instance.
    pub address: String,
    /// The address of the leader, if one is known.
    pub leader: Option<String>,
    /// Whether it is this instance.
    pub is_leader: bool,
    /// Raft's term.
    pub term: u64,
    /// The last write that this replica has applied.
    pub zxid: Zxid,
    /// A hash of this replica's state: equal on all replicas with the same zxid.
    pub state_hash: u64,
    /// An upper bound for the age of this replica's state: it has every write completed before
    /// that. About a second in normal operation. `None` before it has had contact with a leader.
    pub stale_by: Option<Duration>,
    /// How many sessions the cluster has.
    pub sessions: usize,
    /// How many znodes there are.
    pub znodes: usize,
    /// The version that the cluster uses, as far as this replica knows: the lowest that its members
    /// supported when all of them were last known. It never decreases.
    pub version: u16,
    /// All members. On a client, as its member reports them: empty before it has had one.
    pub members: Vec<MemberStatus>,
    /// Why this node has stopped, if it has.
    pub stopped: Option<String>,
    /// The damage in this instance's data directory, from the start until a leader of its cluster
    /// has admitted it as a new member. Until then nothing in the directory is changed, and the
    /// instance has no replica and no vote.
    pub damaged: Option<String>,
    /// The directories with former data of this instance, which was set aside. See
    /// `docs/recovery.md` for when they may be deleted.
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
#[non_exhaustive]
pub struct MemberStatus {
    /// Its address.
    pub address: String,
    /// The zone that it was configured with; empty if none.
    pub zone: String,
    /// Whether it votes. Other members have a replica and no vote.
    pub votes: bool,
    /// Whether it is this instance.
    pub is_self: bool,
    /// The highest version that it supports, as it reported when last connected to this instance;
    /// `None` if it never was.
    pub version: Option<u16>,
    /// Why it cannot be reached, if it cannot.
    pub unreachable: Option<String>,
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
        write!(
            f,
            " in term {} at version {}; zxid {}, {} znodes, {} sessions",
            self.term, self.version, self.zxid, self.znodes, self.sessions
        )?;
        match self.stale_by {
            Some(stale) => write!(f, "; reads are at most {stale:.1?} old")?,
            None => write!(f, "; it is not known how old reads are")?,
        }
        for member in &self.members {
            if let Some(reason) = &member.unreachable {
                write!(f, "; {} is unreachable: {reason}", member.address)?;
            }
        }
        Ok(())
    }
}
