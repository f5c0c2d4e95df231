//! A member of the cluster, as its process holds it.

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

/// A replica is not ready that is known to be older than this.
const READY_WITHIN: Duration = Duration::from_secs(5);
/// How often an instance that waits to be ready looks whether it has its place.
const PLACE_PERIOD: Duration = Duration::from_millis(20);

/// This process's membership in the cluster: its replica, its vote and its sessions.
///
/// It runs until [`Coordinator::close`], or until the last handle is dropped, those of its sessions
/// included. Handles are clones. Several coordinators may run in one process, each with a data
/// directory and an address of its own.
///
/// **Wakers of tasks run on its thread.** They must not block: blocking calls fail there with
/// [`Error::WouldBlock`]. A panic in one is caught and logged.
///
/// **It does not run in a fork of its process.** There its sessions are over, its locks are not held,
/// calls fail with [`Error::Stopped`], and dropping handles does nothing; reads show the replica as
/// it was. A fork may join as a client, but not as a member. As long as it lives it keeps open what
/// it has inherited: the process that was forked can be started again once the fork has ended, or
/// has run another program.
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
    /// The instance's own session, once somebody has asked for it.
    session: Mutex<Option<Session>>,
}

/// A session of the cluster, as [`Coordinator::sessions`] tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// The address of the member that holds it.
    pub owner: Option<String>,
    /// How long it outlives that one's silence.
    pub timeout: Duration,
    /// How many ephemeral znodes go with it.
    pub ephemerals: usize,
}

/// Keeps a node running; what is dropped last stops it.
pub(crate) struct Owner {
    pub(crate) shared: Arc<Shared>,
    runs: Runs,
}

/// Who runs the node.
enum Runs {
    Thread(Mutex<Option<JoinHandle<()>>>),
    /// An in-memory cluster, which ends with the last of its users.
    Cluster {
        _running: Arc<dyn Any + Send + Sync>,
    },
    /// A simulation, whose one thread waits for nobody.
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
        // and another node's must not.
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
                // Never a message: the channel closes with the node.
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
            // There is no thread to be joined, and nothing of it to be let go of.
            if let Runs::Thread(thread) = &mut self.runs {
                let thread = thread.get_mut().unwrap_or_else(PoisonError::into_inner);
                std::mem::forget(thread.take());
            }
            return;
        }
        // A node of a cluster in memory runs on: its vote may still be needed by the others' users.
        if let Runs::Thread(_) = &self.runs {
            self.close();
        }
    }
}

impl Coordinator {
    /// Joins the cluster of these peers, `host:port` each, or founds it with them if there is none:
    /// all the instances of the application, this one included.
    ///
    /// Every instance gives the same list, in any order and on every start; each takes the first
    /// address of it that is its host's own and free, and keeps its data below
    /// `quorate-data/<address>` in the working directory. [`Coordinator::builder`] sets either, which
    /// an instance that is not on the list must do. `docs/membership.md` says how a cluster is
    /// founded, and how instances come and go afterwards.
    ///
    /// A name of the list must stand for one host: `docs/membership.md` says what happens otherwise.
    ///
    /// Returns at once, before the others are there; [`Coordinator::wait_ready`] waits for them. Names
    /// are looked up in the background. Two things may keep it waiting:
    /// - **A name that it has to know**: if neither the list nor [`Builder::listen`] has an IP address
    ///   to listen on, it waits for that name, 10 seconds at most. For the other names it waits a
    ///   quarter of a second, so that what is wrong with them can be said at once.
    /// - **A disk** that has not opened the data directory within a minute, and a second more for each
    ///   MiB of it, makes this fail with [`Error::DataDirUnusable`]. If the disk hangs on, the directory
    ///   stays in use by this process: a new try fails with [`Error::DataDirInUse`] until the disk has
    ///   let go of it or the process has ended.
    ///
    /// # Errors
    /// For the list: [`Error::NoPeers`], [`Error::InvalidPeer`], [`Error::DuplicatePeer`],
    /// [`Error::NotSecured`] when one is not on this host's loopback,
    /// [`Error::NotAPeer`] when none of it is this process. For the data
    /// directory: [`Error::DataDirInUse`], [`Error::DataDirUnusable`], [`Error::DataDirMismatch`],
    /// [`Error::Corrupt`]. [`Error::System`].
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

    /// A node that runs as long as `cluster` does, and keeps that running.
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

    /// Opens a session, or resumes one, which without a timeout keeps its own, and gives the answer to wait for without blocking.
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
    /// If the operating system has no random numbers to give.
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

    /// Opens another session with a timeout of its own, which is brought between 2 and 20 ticks.
    /// Does not block.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn open_session_with(&self, timeout: Duration) -> Result<Session> {
        // Whether it could be opened shows in its state and in its calls.
        Session::open(&self.inner.owner, timeout).map(|(session, _)| session)
    }

    /// Takes over a session that was opened here or elsewhere: its ephemeral znodes and locks stay
    /// its own, its watches do not come along, and its former holder gets
    /// [`Error::SessionMoved`]. It keeps its timeout. Blocks as [`Session::create`].
    ///
    /// # Errors
    /// [`Error::SessionExpired`] if the cluster does not know the session (any more);
    /// [`Error::WrongPassword`]; otherwise as [`Session::create`]. After [`Error::Timeout`] the
    /// session may have been taken over all the same; it is not closed, and can be resumed again
    /// until it expires.
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

    /// As [`Coordinator::resume`], with another timeout, which is brought between 2 and 20 ticks: the
    /// session has it from then on, also when it is resumed again. It does not end sooner for a
    /// shorter one than its former holder was promised.
    ///
    /// Source: ZooKeeper, where whoever connects again asks for a timeout again. (There a new leader
    /// goes back to the first one.)
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
        // What the old holder may still see is what this one has seen: nothing older.
        Ok(resumed)
    }

    /// Blocks until this instance has a session, its replica has caught up with the cluster and it has
    /// its place, as for [`Coordinator::is_ready`], at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::PeerRefused`] if a peer belongs to another cluster, has another secret or authority,
    /// or one of the two is too old for the other; otherwise [`Error::Timeout`] says what it was
    /// waiting for: which peers do not answer, and why.
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

    /// The address that the peers know this instance by. For a client, to which nobody connects,
    /// that of its host towards the members, without a port; empty if no way to them was known when
    /// it joined.
    pub fn address(&self) -> String {
        self.shared().own_address()
    }

    /// All sessions of the cluster as this replica has them, by their ids. Blocks until the node's
    /// thread has a moment; empty once it has stopped.
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
            let told = sessions.map(|(id, record)| {
                (id, record.owner, record.timeout_ms, record.ephemerals.size())
            });
            told.collect()
        };
        let sessions = shared.look(look).unwrap_or_default().into_iter();
        let told = sessions.map(|(id, owner, timeout_ms, ephemerals)| SessionInfo {
            id,
            owner: shared.address(owner),
            timeout: Duration::from_millis(u64::from(timeout_ms)),
            ephemerals,
        });
        told.collect()
    }

    /// The watches that sessions of this instance have set, by their paths. Blocks until the node's
    /// thread has a moment; empty once it has stopped.
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

    /// How this instance and its cluster are.
    pub fn status(&self) -> Status {
        let shared = self.shared();
        let status = shared.status();
        let now = shared.clock.now();
        let members = shared.members.load_full();
        let members = members.iter().map(|member| {
            let problem = status.peers.iter().find(|(peer, _)| *peer == member.node);
            let told = status.versions.iter().find(|(peer, _)| *peer == member.node);
            let is_self = member.node == shared.node;
            MemberStatus {
                address: member.address.clone(),
                zone: member.zone.clone(),
                votes: status.availability.voters.contains(&member.node),
                is_self,
                version: told
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

    /// What this instance has counted. Blocks until the node's thread has a moment; all zero once it
    /// has stopped.
    pub fn metrics(&self) -> Metrics {
        self.shared().metrics()
    }

    /// How much the cluster can still lose, as this instance sees it; a client as its member has told
    /// it, and nothing can be decided for it while none serves it. Does not block.
    pub fn availability(&self) -> Availability {
        self.shared().availability()
    }

    /// The same as a channel: how it is now, and then each change. Of changes that are not read
    /// in time the oldest and the latest are kept. It closes when the coordinator does.
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
    /// Its replica has been level with the cluster within the last few seconds, there is a leader, and
    /// the instance has its place since it started: it votes, or the leader has found that it need not.
    /// An instance that is to take a voter's place is not ready before the vote is its own. That takes
    /// some seconds at a lost voter's address, and [`Builder::replace_after`] at any other.
    ///
    /// A client is ready while a member serves it that knows of a leader, and that has proved within
    /// the last few seconds that there is one.
    ///
    /// For a readiness probe. A rolling update that waits for it, instance by instance, keeps the
    /// cluster and its data even if no disk persists. An instance that is not ready need not be
    /// restarted, and a cluster that starts must not wait for its instances to be ready one after the
    /// other: see [`Availability`].
    pub fn is_ready(&self) -> bool {
        let shared = self.shared();
        let status = shared.status();
        let now = shared.clock.now();
        let fresh = status.fresh_at.is_some_and(|at| now.saturating_sub(at) < READY_WITHIN);
        shared.stopped().is_none() && status.leader.is_some() && fresh && status.is_placed
    }

    /// Whether the cluster could go on without this instance, as far as it knows now: there is a
    /// leader, which has told whom it hears of, and the other voters among them are a majority. A new
    /// leader knows that after about a second. Does not block.
    ///
    /// For whoever stops instances one after the other. A cluster of one or two is never safe to
    /// stop.
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
    /// removed, and stops. For a restart, [`Coordinator::close`] is right: it stays a member.
    ///
    /// Blocks for `timeout` at most. The data directory is marked; joining with it again makes a new
    /// member of this instance.
    ///
    /// # Errors
    /// [`Error::Timeout`]: most voters must be there, also without this one, so the last instance of
    /// a cluster cannot leave it. It goes on trying as long as it runs.
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
            // The node's end is the end of the channel, or a change that it tells.
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
    /// Leadership goes first, whatever the instance's own threads are about, so that the others can
    /// write again after a few messages and disk writes: their calls wait that long and do not fail.
    /// New sessions are refused from then on, with [`Error::Stopped`].
    ///
    /// Takes a second at most, unless its disk hangs. If the cluster would lose its majority now, but
    /// another instance is about to take the place of a lost voter, it first waits for that, ten
    /// seconds at most. It stays a member and may join again. Calls on handles that are left fail with
    /// [`Error::SessionClosed`] or [`Error::Stopped`].
    pub fn close(&self) {
        if self.shared().clock.is_forked() {
            return;
        }
        drop(self.inner.session.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.inner.owner.close();
    }
}

/// Whether an instance stopped for this reason that was told to leave.
fn has_left(reason: &str) -> bool {
    [REMOVED, LEFT].contains(&reason)
}

/// How an instance and its cluster are, as the instance sees it: [`Coordinator::status`].
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
    /// The last write that this replica has.
    pub zxid: Zxid,
    /// The hash of this replica's state: equal on all replicas of the same zxid.
    pub state_hash: u64,
    /// How old this replica's state may be, at most: it has every write completed before that.
    /// About a second where all is well. `None` before it has once heard of a leader.
    pub stale_by: Option<Duration>,
    /// How many sessions the cluster has.
    pub sessions: usize,
    /// How many znodes there are.
    pub znodes: usize,
    /// The version that the cluster acts by, as far as this replica knows: the lowest of what its
    /// members could do when all of them were last heard of together. It is never lowered.
    pub version: u16,
    /// All members. As a client's member has told it: none before it has once had one.
    pub members: Vec<MemberStatus>,
    /// Why this node has stopped, if it has.
    pub stopped: Option<String>,
    /// What is damaged in this instance's data directory, from its start until a leader of its
    /// cluster has taken it in as a new member. Until then nothing in the directory is changed, and
    /// the instance has no replica and no vote.
    pub damaged: Option<String>,
    /// The directories that hold former data of this instance, which was put aside. See
    /// `docs/recovery.md` for when they may be removed.
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
    /// The zone that it is in, as it was told; empty: none.
    pub zone: String,
    /// Whether it votes. The others have a replica and no vote.
    pub votes: bool,
    /// Whether it is the one that says so.
    pub is_self: bool,
    /// The highest version that it can do, as it has told this instance when they were last
    /// connected; `None` if it never has.
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
