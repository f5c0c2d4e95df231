//! Sessions, through which users read and write.

mod detach;
mod discard;
mod parents;
mod reads;
mod requests;

use crate::api::ops::check_create;
use crate::api::ops::create_op;
use crate::machine::command::Op;
use std::sync::Arc;
use std::time::Duration;

use crate::api::changes::Changes;
use crate::api::multi::Multi;
use crate::api::owner::Owner;
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::inbox::RequestOrigin;
use crate::runtime::pending::Pending;
use crate::runtime::session::SessionShared;
use crate::runtime::shared::NodeShared;
use crate::runtime::{entropy, holder};
use crate::sync::wakers::Wakers;
use crate::types::acl::Id;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::session::SessionState;
use crate::types::znode::{CreateMode, Created, SessionId, Stat, Zxid};

/// A session of this instance with the cluster. Ephemeral znodes, watches and locks belong to it.
///
/// It is opened in the background; calls may be made at once. **Its first calls wait until it is open**, reads
/// too: until the cluster has opened it, and this instance's replica shows that. So no session shows less than
/// what had been acknowledged, to anybody, before it was requested, however far behind the replica was: just after a
/// restart, for example. Opening takes one write, so without a quorum no session opens. From then on, reads are
/// answered with or without a quorum. ([`Coordinator::stale_snapshot`](crate::Coordinator::stale_snapshot) shows
/// the replica as it is, whatever its age.)
///
/// A session lives while the cluster receives renewals from this instance. After the session's timeout without
/// one, the cluster deletes its ephemeral znodes; this instance counts it as lost a little earlier.
/// [`Session::close`] closes it, and so does dropping its last handle. Handles are clones; any thread may use
/// them.
///
/// **Its calls are requests, made at once**: each returns a [`Pending`] answer, for which a thread waits
/// ([`Pending::wait`]) and which a task awaits. Many may be under way, and take effect in the order in which they are made.
/// On a member, reads do not wait for anything: they show its replica as it is at the call, with all that was answered
/// before. Those of [`Session::in_turn`] take their turn instead. (A replica that was far behind catches
/// up by a snapshot, which may contain several of the session's writes, without the states in between.)
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(3).node(0).session();
/// session.create("/greeting", b"hello", CreateMode::Persistent).wait()?;
/// let (data, stat) = session.get("/greeting").wait()?;
/// assert_eq!((&data[..], stat.version), (&b"hello"[..], 0));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    inner: Arc<Inner>,
    pub(crate) root: Root,
    /// Whether a recipe uses this handle: see [`Session::for_recipe`].
    of_recipe: bool,
    /// Whether its reads are always requests: see [`Session::in_turn`].
    asks: bool,
}

#[derive(Debug)]
struct Inner {
    session: Arc<SessionShared>,
    shared: Arc<NodeShared>,
    /// Keeps the node running.
    _owner: Arc<Owner>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.shared.clock.is_forked() {
            // The parent's session is not this process's, and a thread of the parent, which does
            // not run here, may have been using its channels: do not drop them.
            std::mem::forget((Arc::clone(&self.session), Arc::clone(&self._owner)));
            return;
        }
        if !self.session.state().is_final() {
            self.session.set_state(SessionState::Closed);
            self.shared.close_session(&self.session);
        }
    }
}

impl Session {
    /// Opens a session, and returns the reply to wait for.
    pub(crate) fn open(
        owner: &Arc<Owner>,
        timeout: Duration,
    ) -> Result<(Session, Pending<'static, ()>)> {
        let holder = holder::of_instance()?;
        let (session, secret) = (SessionId(entropy::number()?), entropy::bytes()?);
        let timeout = owner.shared.limits.timeouts.negotiated(timeout);
        let known = SessionShared::new(session, holder, secret, timeout);
        let open = Ask::open(&known, timeout);
        Session::hold(owner, known, open)
    }

    /// Opens another session on the same node, with this one's timeout and root.
    pub(crate) fn open_another(&self) -> Result<Session> {
        let (session, _) = Session::open(&self.inner._owner, self.timeout())?;
        Ok(Session { root: self.root.clone(), ..session })
    }

    /// As [`Session::open`], for a session that is already open. Without a timeout it keeps its
    /// own, which is known once the reply has arrived.
    pub(crate) fn resume(
        owner: &Arc<Owner>,
        (session, secret): (SessionId, [u8; 16]),
        timeout: Option<Duration>,
    ) -> Result<(Session, Pending<'static, ()>)> {
        let timeout = timeout.map(|timeout| owner.shared.limits.timeouts.negotiated(timeout));
        let holder = holder::of_instance()?;
        let known = SessionShared::new(session, holder, secret, timeout.unwrap_or_default());
        let resume = Ask::resume(&known, timeout);
        Session::hold(owner, known, resume)
    }

    fn hold(
        owner: &Arc<Owner>,
        session: SessionShared,
        opening: Ask<Duration>,
    ) -> Result<(Session, Pending<'static, ()>)> {
        let shared = Arc::clone(&owner.shared);
        let session = Arc::new(session);
        let (opener, opened) = (RequestOrigin::Opener(Arc::clone(&session)), Arc::clone(&session));
        let pending = shared.ask(opener, opening, None, move |timeout| {
            opened.set_timeout(timeout);
            Ok(())
        });
        if pending.has_failed() {
            // The request was refused at once, so the session will never be open.
            session.set_state(SessionState::Expired);
        } else if !shared.schemes.own().is_empty() {
            // The session has these ids from the start, whatever its user does.
            let ids = shared.schemes.own().to_vec();
            session.ids.store(Arc::new(ids.clone()));
            let holder = RequestOrigin::Holder(Arc::clone(&session));
            shared.ask_and_forget(holder, Ask::authenticate(ids));
        }
        let inner = Inner { session, shared, _owner: Arc::clone(owner) };
        Ok((
            Session {
                inner: Arc::new(inner),
                root: Root::default(),
                of_recipe: false,
                asks: false,
            },
            pending,
        ))
    }

    /// Gives up a session whose resumption was not confirmed: neither this handle nor its node may
    /// close it or keep it alive.
    pub(crate) fn abandon(&self) {
        let state = SessionState::Expired;
        self.inner.session.set_state(state);
        self.inner.shared.ask_and_forget(self.asker(), Ask::abandon(state));
    }

    /// Returns a handle of the same session whose root is `path`: ZooKeeper's chroot. All paths
    /// that the handle takes and returns are relative to `path`, also those in events, in errors
    /// and in recipes made from it. Chroots may be nested. The handle keeps the session open as any
    /// other. Does not block, and sends nothing.
    ///
    /// The znode at `path` need not exist yet; until it does, creates fail with [`Error::NoNode`].
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/billing", b"", CreateMode::Persistent).wait()?;
    /// let billing = session.chroot("/billing")?;
    /// assert_eq!(billing.create("/rates", b"7 %", CreateMode::Persistent).wait()?.path, "/rates");
    /// assert!(session.exists("/billing/rates").wait()?.is_some());
    /// assert_eq!((billing.root(), billing.children("/").wait()?), ("/billing", vec!["rates".to_owned()]));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn chroot(&self, path: &str) -> Result<Session> {
        path::validate(path)?;
        path::validate(&self.root.full(path))?;
        Ok(Session { root: self.root.below(path), ..self.clone() })
    }

    /// Returns a handle of the same session whose reads take their turn: each is answered after all calls of the session
    /// that were made before it, and does not show those made after it. So reads and writes can be pipelined, as with
    /// ZooKeeper's asynchronous calls. (Other handles on a member read its replica as it is at the call, whatever is under
    /// way.)
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session().in_turn();
    /// let _created = session.create("/a", b"1", CreateMode::Persistent);
    /// let read = session.get("/a");
    /// let _set = session.set("/a", b"2");
    /// assert_eq!(&read.wait()?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn in_turn(&self) -> Session {
        Session { asks: true, ..self.clone() }
    }

    /// A handle of the whole tree, without a chroot.
    pub(crate) fn everything(&self) -> Session {
        Session { root: Root::default(), ..self.clone() }
    }

    /// The path in the whole tree that this handle's paths are relative to: see
    /// [`Session::chroot`].
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// assert_eq!(session.root(), "/");
    /// assert_eq!(session.chroot("/billing")?.root(), "/billing");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn root(&self) -> &str {
        self.root.path()
    }

    /// The session's id, needed to [resume](crate::Coordinator::resume) it.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let (id, password) = (session.id(), session.password());
    /// println!("session {id}");
    /// // For `Coordinator::resume`, in another process.
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn id(&self) -> SessionId {
        self.inner.session.id
    }

    /// The session's password, needed to resume it. Anybody who has the id and the password can
    /// take over the session.
    ///
    /// ```
    /// let cluster = quorate::testing::Cluster::new(2);
    /// let session = cluster.node(0).session();
    /// session.sync().wait()?;
    /// let resumed = cluster.node(1).resume(session.id(), session.password()).wait()?;
    /// assert_eq!(resumed.id(), session.id());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn password(&self) -> [u8; 16] {
        self.inner.session.secret
    }

    /// The session's timeout: the requested one, limited to the
    /// [bounds](crate::Builder::session_timeout_bounds).
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// println!("others get its locks {:?} after this instance has died", session.timeout());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn timeout(&self) -> Duration {
        self.inner.session.timeout()
    }

    /// The session's state as this instance knows it. Does not block.
    ///
    /// ```
    /// use quorate::SessionState;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.sync().wait()?;
    /// assert_eq!(session.state(), SessionState::Connected);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn state(&self) -> SessionState {
        if self.inner.shared.clock.is_forked() {
            return SessionState::Expired;
        }
        self.inner.session.state()
    }

    /// Whether the session is in a final state. Does not check whether this process is a fork: the
    /// caller has checked that, or notices it when it waits next.
    pub(crate) fn is_over(&self) -> bool {
        self.inner.session.state().is_final()
    }

    /// Follows the session's states, which ZooKeeper sends to all watchers as events of type `None`: first the
    /// current state, and then each change. It is over after a final state. If more than 64 states are unread, some
    /// are dropped; the latest one is delivered once there is room. Each call returns another queue, which lasts until
    /// it is dropped; if there are many, one may deliver the same state twice. Does not block.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{SessionState, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.sync().wait()?;
    /// let states = session.states();
    /// cluster.isolate(0);
    /// cluster.advance(Duration::from_secs(60));
    /// let seen: Vec<SessionState> = states.events().iter().collect();
    /// assert_eq!(
    ///     seen,
    ///     [SessionState::Connected, SessionState::Suspended, SessionState::Expired]
    /// );
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn states(&self) -> Changes<SessionState> {
        let session = &self.inner.session;
        Changes::new(session.states(), session.waiting(), self.shared())
    }

    /// The tasks that are woken when its state changes.
    pub(crate) fn state_wakers(&self) -> Arc<Wakers> {
        self.inner.session.waiting()
    }

    /// Whether the session is certainly alive now: the cluster has not expired it, and will not
    /// before this turns false. So nobody else has its locks. Does not block, and sends nothing.
    ///
    /// It is false until the session is open and, if opening took more than a third of the timeout,
    /// until the session was renewed once. After it has turned from true to false, it stays false.
    ///
    /// Clocks of different machines may run at rates that differ by up to a tenth. Time during
    /// which this machine is suspended counts on Linux, Android and Windows, but not on macOS. Time
    /// during which a hypervisor pauses a virtual machine never counts: after such a pause this may
    /// be true for a moment although the session is over.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.sync().wait()?;
    /// if session.is_alive() {
    ///     // Nobody else has what belongs to it.
    /// }
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn is_alive(&self) -> bool {
        self.inner.session.is_alive(&self.inner.shared.clock)
    }

    pub(crate) fn shared(&self) -> &Arc<NodeShared> {
        &self.inner.shared
    }

    /// Whether this instance has a replica; otherwise a member serves it.
    pub(crate) fn has_replica(&self) -> bool {
        self.shared().has_replica
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        self.inner.session.over(&self.inner.shared.end).map_or(Ok(()), Err)
    }

    /// Marks the session as being closed through this handle.
    pub(crate) fn give_up(&self) {
        self.inner.session.give_up();
    }

    /// A handle for a recipe. Some of a recipe's writes are expected to fail, so they are not counted
    /// in [`Metrics::requests_refused`](crate::operate::Metrics::requests_refused).
    pub(crate) fn for_recipe(&self) -> Session {
        Session { of_recipe: true, ..self.clone() }
    }

    /// The number of these handles as the session's holder.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn holder(&self) -> u64 {
        self.inner.session.holder
    }

    pub(crate) fn asker(&self) -> RequestOrigin {
        let session = Arc::clone(&self.inner.session);
        if self.of_recipe { RequestOrigin::Recipe(session) } else { RequestOrigin::Holder(session) }
    }

    /// Creates a znode, and returns its path and stat. For sequential modes, the parent's next
    /// number is appended to the path, with at least ten digits.
    ///
    /// It is done when a majority has the write on disk and this replica shows it.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the parent is missing; [`Error::NodeExists`];
    /// [`Error::NoChildrenForEphemerals`]; [`Error::InvalidPath`]; [`Error::TooLarge`] for more
    /// than 1 MiB of data; [`Error::Timeout`] if no reply came in time, after which the znode may
    /// exist; the errors of a session that is over ([`Error::is_session_lost`]); [`Error::Busy`];
    /// [`Error::Stopped`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/jobs", b"", CreateMode::Persistent).wait()?;
    /// let job = session.create("/jobs/job-", b"1", CreateMode::PersistentSequential).wait()?;
    /// assert_eq!(job.path, "/jobs/job-0000000000");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `create`.
    pub fn create(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
    ) -> Pending<'static, Created> {
        let data = data.as_ref();
        let op = |root: &Root| create_op(root, path, data, mode);
        self.ask_create(check_create(path, data, mode), op)
    }

    /// Replaces the data of a znode, whatever its version, and returns its new stat. Fails as [`Session::create`],
    /// and with [`Error::NoNode`] if the znode is missing.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// assert_eq!(session.set("/a", b"2").wait()?.version, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set(&self, path: &str, data: impl AsRef<[u8]>) -> Pending<'static, Stat> {
        self.set_version(path, data.as_ref(), None)
    }

    /// Replaces the data of a znode if its version is `version`, and returns its new stat;
    /// otherwise fails with [`Error::BadVersion`] and changes nothing. Apart from that, as
    /// [`Session::set`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let (_, stat) = session.get("/a").wait()?;
    /// session.set_if("/a", b"2", stat.version).wait()?;
    /// assert!(session.set_if("/a", b"3", stat.version).wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_if(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        version: u64,
    ) -> Pending<'static, Stat> {
        self.set_version(path, data.as_ref(), Some(version))
    }

    /// Deletes a znode, whatever its version. Fails as [`Session::create`], and with [`Error::NoNode`] if the znode
    /// is missing and [`Error::NotEmpty`] if it has children.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.delete("/a").wait()?;
    /// assert!(session.exists("/a").wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delete(&self, path: &str) -> Pending<'static, ()> {
        self.delete_version(path, None)
    }

    /// Deletes a znode if its version is `version`; otherwise fails with [`Error::BadVersion`] and
    /// changes nothing. Apart from that, as [`Session::delete`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.set("/a", b"2").wait()?;
    /// assert!(session.delete_if("/a", 0).wait().is_err());
    /// session.delete_if("/a", 1).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delete_if(&self, path: &str, version: u64) -> Pending<'static, ()> {
        self.delete_version(path, Some(version))
    }

    /// Deletes a znode and everything below it, regardless of versions and owners of ephemerals, in one write with
    /// one zxid. Watches report each znode, children before their parents. Fails as [`Session::create`], and with
    /// [`Error::NoNode`] if the znode is missing. Later writes of the whole cluster wait for a time that grows with
    /// the number of znodes; heartbeats do not.
    ///
    /// (ZooKeeper's `deleteall` reads and deletes the znodes one by one.)
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/jobs", b"", CreateMode::Persistent).wait()?;
    /// session.create("/jobs/1", b"", CreateMode::Persistent).wait()?;
    /// session.delete_recursive("/jobs").wait()?;
    /// assert!(session.exists("/jobs/1").wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delete_recursive(&self, path: &str) -> Pending<'static, ()> {
        let op = |root: &Root| Op::DeleteTree { path: root.full(path).into() };
        self.ask(self.validate(path), |root| Ask::delete(op(root)), Ok)
    }

    /// The session's ids.
    pub(crate) fn ids(&self) -> Arc<Vec<Id>> {
        self.inner.session.ids.load_full()
    }

    /// Authenticates these credentials, and returns their ids. If authentication fails, the session
    /// is closed.
    pub(crate) fn authenticate(&self, scheme: &str, credentials: &[u8]) -> Result<Vec<Id>> {
        self.check_alive()?;
        let Inner { session, shared, .. } = &*self.inner;
        shared.schemes.authenticate(scheme, credentials).inspect_err(|error| {
            if matches!(error, Error::AuthFailed { .. }) {
                session.fail_auth(error.clone());
                shared.close_session(session);
            }
        })
    }

    /// Starts a multi: several operations, done all or none. See [`Multi`]. Nothing is sent before
    /// [`Multi::commit`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let multi = session.multi().create("/a", b"", CreateMode::Persistent);
    /// multi.create("/a/b", b"", CreateMode::Persistent).commit().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn multi(&self) -> Multi<'_> {
        Multi::new(self)
    }

    /// Brings this replica up to date, and returns its last zxid: the replica then has every write that anybody
    /// completed before this call. It takes a round trip to a majority.
    ///
    /// **Any read after its answer is linearizable**, including a [`Session::snapshot`], and so is one of
    /// [`Session::in_turn`] that is made after it. (ZooKeeper's `sync` asks only the leader, which does not guarantee that.)
    ///
    /// ```
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
    /// here.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// // Without a sync, this instance may be a little behind.
    /// there.sync().wait()?;
    /// assert_eq!(&there.get("/a").wait()?.0[..], b"1");
    ///
    /// here.set("/a", b"2").wait()?;
    /// let there = there.in_turn();
    /// let (synced, snapshot) = (there.sync(), there.snapshot());
    /// assert_eq!(&snapshot.wait()?.get("/a")?.0[..], b"2");
    /// synced.wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: Raft thesis, section 6.4.
    pub fn sync(&self) -> Pending<'static, Zxid> {
        self.ask(Ok(()), |_| Ask::sync(), Ok)
    }

    /// Completes after this time, measured by this instance's monotonic clock, whatever happens to
    /// the session; fails with [`Error::Stopped`](crate::Error::Stopped) if the node stops earlier. It lets a future wait
    /// without a timer of an async runtime. In an in-memory cluster it uses the cluster's clock.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let cluster = quorate::testing::Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// let waiting = session.sleep(Duration::from_secs(60));
    /// cluster.advance(Duration::from_secs(60));
    /// waiting.wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn sleep(&self, time: Duration) -> Pending<'static, ()> {
        self.shared().timer(time)
    }

    /// Closes the session and deletes its ephemeral znodes. If the session is already over for this handle, does
    /// nothing and returns `Ok`.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/mine", b"", CreateMode::Ephemeral).wait()?;
    /// session.close().wait()?;
    /// assert!(session.exists("/mine").wait().is_err_and(|error| error.is_session_lost()));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn close(&self) -> Pending<'static, ()> {
        let shared = self.shared();
        self.give_up();
        shared.ask_within(usize::MAX, self.asker(), Ask::close(), None, Ok)
    }
}
