//! An ephemeral znode that outlives its session: it is created again in the next one.
//!
//! All that is known of the znode is in a state that the handles and the one future that drives it
//! share, so that closing is exact at any moment: what is there is deleted, and what is being created
//! is as soon as its answer comes, whether or not anybody polls the future by then.
//!
//! Source: Curator, `PersistentNode` (once `PersistentEphemeralNode`).

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::api::coordinator::Coordinator;
use crate::api::nonblocking::{check_create, check_data};
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::owned_ephemeral::Own;
use crate::recipes::parents::Parents;
use crate::recipes::{LockLost, blocking};
use crate::runtime::clock::Clock;
use crate::runtime::expect;
use crate::runtime::pending::block_on;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{CreateMode, Zxid};

/// Never locked: what borrows it may so go from thread to thread.
type Sessions = Mutex<Box<dyn FnMut() -> Result<Session> + Send>>;

/// An ephemeral znode that is created again when its session is over, in a new one, and when
/// somebody has deleted it: what says that an instance is there, for as long as it is.
///
/// Something must drive it, for it has no thread of its own: [`PersistentEphemeral::run`] on a thread,
/// or [`PersistentEphemeral::run_async`] as a task. Both go on until it is closed through an
/// [`EphemeralHandle`], or dropped; then the znode is gone, at any moment and whatever was under way.
///
/// While its instance is cut off the znode goes with the session; it is there again once the cluster
/// has been reached. If the path is taken, as by a former run of this process whose session
/// has not expired yet, it waits until that is gone. Missing parents are made, as containers.
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::PersistentEphemeral;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let here = PersistentEphemeral::new(&cluster.node(0), "/up/host-0", b"starting")?;
/// let handle = here.handle();
/// let running = std::thread::spawn(move || here.run());
/// assert!(handle.wait_present(Duration::from_secs(10)));
///
/// // Its session is lost; it is there again in the next.
/// cluster.expire(&cluster.node(0).session());
/// handle.set(b"ready")?;
/// assert!(handle.wait_present(Duration::from_secs(10)));
/// let session = cluster.node(0).session();
/// assert_eq!(&session.get("/up/host-0")?.0[..], b"ready");
///
/// handle.close()?;
/// assert!(session.exists("/up/host-0")?.is_none());
/// running.join().expect("it does not panic")?;
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct PersistentEphemeral {
    handle: EphemeralHandle,
    sessions: Sessions,
    /// The one to begin with.
    first: Option<Session>,
    again: bool,
}

/// A handle of a [`PersistentEphemeral`] that is run elsewhere. Cheap to clone; dropping it does
/// nothing. It keeps the session of a znode that has not been seen to go.
///
/// ```
/// use quorate::recipes::PersistentEphemeral;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(1);
/// let here = PersistentEphemeral::new(&cluster.node(0), "/up", b"1")?;
/// let handle = here.handle();
/// // At any time, connected or not, running or not.
/// handle.set(b"2")?;
/// assert!(!handle.is_present());
/// assert_eq!(handle.path(), "/up");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct EphemeralHandle {
    path: Arc<str>,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

struct State {
    data: Arc<[u8]>,
    /// Which data that is, counted.
    wanted: u64,
    /// Which one is in the znode.
    written: u64,
    closed: bool,
    znode: Znode,
    /// Who waits for a change of any of it.
    waiting: Vec<Waker>,
}

/// What is known of it.
#[derive(Clone)]
enum Znode {
    Missing,
    /// Its create is under way in this session.
    Coming(Session, Arc<Mutex<Arrival>>),
    There(Arc<Own>),
}

/// Where the answer to a create is put, on the node's thread. It has no session in it, which could
/// then end there.
#[derive(Default)]
struct Arrival {
    /// By which write it was created.
    answer: Option<Result<Zxid>>,
    /// It is not wanted any more: whoever is the second to come deletes it.
    given_up: bool,
    waiting: Vec<Waker>,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(waiting: &mut Vec<Waker>, context: &Context<'_>) {
    if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
        waiting.push(context.waker().clone());
    }
}

impl Arrival {
    /// Makes the znode.
    fn begin(session: &Session, path: &str, data: &[u8]) -> Arc<Mutex<Arrival>> {
        let arrival = Arc::new(Mutex::new(Arrival::default()));
        let (put, discard) = (Arc::clone(&arrival), session.discarding());
        let creating = session.nonblocking().create(path, data, CreateMode::Ephemeral);
        creating.then(move |answer| {
            let mut arrival = lock(&put);
            let answer = answer.and_then(expect::created);
            if let (true, Ok(created)) = (arrival.given_up, &answer) {
                discard(created.path.clone(), created.stat.czxid);
            }
            arrival.answer = Some(answer.map(|created| created.stat.czxid));
            let woken = std::mem::take(&mut arrival.waiting);
            drop(arrival);
            woken.into_iter().for_each(Waker::wake);
        });
        arrival
    }

    /// Once its answer is there, it is deleted.
    fn give_up(arrival: &Mutex<Arrival>, session: &Session, path: &str) {
        let mut arrival = lock(arrival);
        arrival.given_up = true;
        if let Some(Ok(czxid)) = arrival.answer {
            session.discarding()(session.root.full(path).into_owned(), czxid);
        }
    }

    async fn answer(arrival: &Mutex<Arrival>) -> Result<Zxid> {
        poll_fn(|context| {
            let mut arrival = lock(arrival);
            match &arrival.answer {
                Some(answer) => Poll::Ready(answer.clone()),
                None => {
                    wait(&mut arrival.waiting, context);
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl fmt::Debug for PersistentEphemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentEphemeral")
            .field("handle", &self.handle)
            .field("again", &self.again)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EphemeralHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EphemeralHandle").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PersistentEphemeral {
    /// The znode at this path, in this instance's own session, and after that in its next one. Writes
    /// nothing before it is run.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::TooLarge`] for more than 1 MiB of data.
    pub fn new(
        coordinator: &Coordinator,
        path: &str,
        data: impl AsRef<[u8]>,
    ) -> Result<PersistentEphemeral> {
        let coordinator = coordinator.clone();
        PersistentEphemeral::with_sessions(move || Ok(coordinator.session()), path, data)
    }

    /// The same in sessions that `sessions` gives: called now, and again each time that the one
    /// before is over. For sessions with a root ([`Session::chroot`]), or with a timeout or
    /// credentials of their own; it keeps the one that it is in.
    ///
    /// ```
    /// use quorate::recipes::PersistentEphemeral;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(1);
    /// let coordinator = cluster.node(0);
    /// let sessions = move || coordinator.session().chroot("/app");
    /// let here = PersistentEphemeral::with_sessions(sessions, "/up", b"")?;
    /// assert_eq!(here.handle().path(), "/up");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`PersistentEphemeral::new`], and those of `sessions`.
    pub fn with_sessions(
        mut sessions: impl FnMut() -> Result<Session> + Send + 'static,
        path: &str,
        data: impl AsRef<[u8]>,
    ) -> Result<PersistentEphemeral> {
        let data = data.as_ref();
        check_create(path, data, CreateMode::Ephemeral)?;
        let first = sessions()?;
        let state = State {
            data: data.into(),
            wanted: 1,
            written: 0,
            closed: false,
            znode: Znode::Missing,
            waiting: Vec::new(),
        };
        let handle = EphemeralHandle {
            path: path.into(),
            clock: first.shared().clock.clone(),
            state: Arc::new(Mutex::new(state)),
        };
        let sessions: Sessions = Mutex::new(Box::new(sessions));
        Ok(PersistentEphemeral { handle, sessions, first: Some(first), again: true })
    }

    /// Whether it is created again when somebody has deleted it: by default it is. Otherwise running
    /// it ends then, with [`Error::NoNode`].
    pub fn recreate_deleted(mut self, again: bool) -> PersistentEphemeral {
        self.again = again;
        self
    }

    /// A handle to set its data by, to see whether it is there, and to close it.
    pub fn handle(&self) -> EphemeralHandle {
        self.handle.clone()
    }

    /// Keeps the znode there, and blocks until it is closed.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the node has; what `sessions` fails with; [`Error::NoNode`] if it is not
    /// to be created again, or of `/` if the root of its sessions is not there; and what no waiting
    /// helps against, as [`Error::NoAuth`] and [`Error::QuotaExceeded`]. The znode is not left behind.
    pub fn run(self) -> Result<()> {
        let clock = self.handle.clock.clone();
        // Without a deadline there is always a result.
        block_on(self.run_async(), &clock, None)?.unwrap_or(Ok(()))
    }

    /// The same without blocking the thread. Dropping the future closes it, and the znode is deleted
    /// without waiting for that.
    ///
    /// # Errors
    /// As [`PersistentEphemeral::run`].
    pub async fn run_async(mut self) -> Result<()> {
        let handle = self.handle.clone();
        let mut lives = pin!(self.live());
        poll_fn(|context| {
            if handle.poll_closed(context) {
                return Poll::Ready(Ok(()));
            }
            lives.as_mut().poll(context)
        })
        .await
    }

    /// One session after the other.
    async fn live(&mut self) -> Result<()> {
        loop {
            let session = match self.first.take() {
                Some(session) => session,
                None => self.sessions.get_mut().unwrap_or_else(PoisonError::into_inner)()?,
            };
            let Err(error) = self.live_in(&session).await;
            self.handle.put(Znode::Missing);
            match error {
                Error::Stopped { .. } => return Err(error),
                error if error.is_session_lost() => {}
                error => return Err(error),
            }
            // Sessions may be refused as fast as they are asked for.
            session.nonblocking().sleep(session.shared().limits.tick).await?;
        }
    }

    async fn live_in(&self, session: &Session) -> Result<std::convert::Infallible> {
        let mut parents = Parents::of(session, path::parent(&self.handle.path).unwrap_or("/"));
        loop {
            let created = match parents.make().await {
                Ok(()) => self.create(session).await,
                Err(error) => {
                    recover(session, error).await?;
                    continue;
                }
            };
            let lived = match created {
                Ok(own) => self.keep(&own).await,
                Err(Error::NodeExists { .. }) => self.until_free(session).await,
                Err(Error::NoNode { .. }) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = lived {
                recover(session, error).await?;
            }
        }
    }

    async fn create(&self, session: &Session) -> Result<Arc<Own>> {
        let handle = &self.handle;
        let arrival = {
            let mut state = handle.state();
            // It has been closed just now, and whoever polls this is told.
            (!state.closed).then(|| {
                state.written = state.wanted;
                let arrival = Arrival::begin(session, &handle.path, &state.data);
                state.znode = Znode::Coming(session.clone(), Arc::clone(&arrival));
                arrival
            })
        };
        let Some(arrival) = arrival else { return std::future::pending().await };
        let czxid = Arrival::answer(&arrival).await.map_err(|error| session.root.error(error))?;
        let own = Arc::new(Own::new(session, &handle.path, czxid));
        // Unless it was closed in the meantime: then this deletes it once more.
        handle.put(Znode::There(Arc::clone(&own)));
        Ok(own)
    }

    /// As long as it is there: with the latest data in it. It comes back when somebody has deleted
    /// it.
    async fn keep(&self, own: &Arc<Own>) -> Result<()> {
        let handle = &self.handle;
        let mut watch = follow(own).await?;
        // Its session is known to be alive now.
        handle.change(|_| {});
        while let (Some(following), None) = (&watch, own.how_lost()) {
            let (data, wanted, written) = {
                let state = handle.state();
                (Arc::clone(&state.data), state.wanted, state.written)
            };
            if wanted == written {
                if !self.changed(own, following, written).await {
                    // The application has removed the session's watches of the path.
                    watch = follow(own).await?;
                }
                continue;
            }
            match own.set(&data).await {
                Ok(_) => handle.change(|state| state.written = wanted),
                Err(Error::NoNode { .. }) => break,
                Err(error) => recover(own.session(), error).await?,
            }
        }
        if own.how_lost() == Some(LockLost::SessionOver) {
            own.session().check_alive()?;
        }
        // The tree shows what the end of a session has deleted before its handles are told of that
        // end. Whatever they ask for is answered after it.
        while let Err(error) = own.session().nonblocking().exists(&handle.path).await {
            recover(own.session(), error).await?;
        }
        handle.put(Znode::Missing);
        if !self.again {
            return Err(Error::NoNode { path: handle.path.to_string() });
        }
        if planted(Bug::EphemeralStaysGone) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    /// Until something has happened to the znode, or other data is wanted than was written. False if
    /// the watch is over.
    async fn changed(&self, own: &Own, watch: &Watch, written: u64) -> bool {
        let mut event = pin!(own.next(watch));
        poll_fn(|context| {
            let mut state = self.handle.state();
            if state.wanted != written {
                return Poll::Ready(true);
            }
            wait(&mut state.waiting, context);
            drop(state);
            event.as_mut().poll(context).map(|event| event.is_some())
        })
        .await
    }

    /// Until what is in its place has gone, or has changed at least.
    async fn until_free(&self, session: &Session) -> Result<()> {
        let (exists, watch) = session.nonblocking().exists_and_watch(&self.handle.path).await?;
        if exists.is_some() {
            watch.next().await;
        }
        Ok(())
    }
}

impl Drop for PersistentEphemeral {
    fn drop(&mut self) {
        self.handle.end();
    }
}

/// Watches it; `None` if it is gone already.
async fn follow(own: &Own) -> Result<Option<Watch>> {
    loop {
        match own.watch().await {
            Ok(watch) => return Ok(Some(watch)),
            Err(Error::NoNode { .. }) => return Ok(None),
            Err(error) => recover(own.session(), error).await?,
        }
    }
}

/// Waits a while if that may help.
async fn recover(session: &Session, error: Error) -> Result<()> {
    match error {
        Error::Busy { .. } => session.nonblocking().sleep(session.shared().limits.tick).await,
        error => Err(error),
    }
}

impl EphemeralHandle {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let woken = std::mem::take(&mut state.waiting);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn put(&self, znode: Znode) {
        let mut former = None;
        self.change(|state| {
            if !state.closed {
                former = Some(std::mem::replace(&mut state.znode, znode));
            }
        });
        // Not under the lock: it may be the last of its session.
        drop(former);
    }

    /// The znode's path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is to be in the znode from now on: written as soon as that can be, and each time that it
    /// is created. Does not block; the last data counts, and what is set before that could be
    /// written may never have been there.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more than 1 MiB.
    pub fn set(&self, data: impl AsRef<[u8]>) -> Result<()> {
        let data = data.as_ref();
        check_data(&self.path, data.len())?;
        self.change(|state| {
            state.data = data.into();
            state.wanted += 1;
        });
        Ok(())
    }

    /// Whether the znode is there at this moment, in a session that is surely alive, as this replica
    /// has it.
    pub fn is_present(&self) -> bool {
        matches!(&self.state().znode, Znode::There(own) if own.is_there())
    }

    /// Blocks until the znode is there with the data that was set last, at most for `timeout`. False
    /// if it is not by then, or is closed.
    pub fn wait_present(&self, timeout: Duration) -> bool {
        let deadline = self.clock.now().saturating_add(timeout);
        let present = block_on(self.present_async(), &self.clock, Some(deadline));
        present.ok().flatten().unwrap_or(false)
    }

    /// Waits for the same without blocking the thread. False if it is closed.
    pub async fn present_async(&self) -> bool {
        poll_fn(|context| {
            let mut state = self.state();
            if state.closed {
                return Poll::Ready(false);
            }
            let present = matches!(&state.znode, Znode::There(own) if own.is_there());
            if present && state.wanted == state.written {
                return Poll::Ready(true);
            }
            wait(&mut state.waiting, context);
            Poll::Pending
        })
        .await
    }

    fn poll_closed(&self, context: &Context<'_>) -> bool {
        let mut state = self.state();
        if !state.closed {
            wait(&mut state.waiting, context);
        }
        state.closed
    }

    /// Closes it, and lets go of what is there. Gives what may be left to wait for, which stays
    /// there for whoever closes it next.
    fn end(&self) -> Znode {
        let mut state = self.state();
        state.closed = true;
        let znode = state.znode.clone();
        let woken = std::mem::take(&mut state.waiting);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        match &znode {
            Znode::Missing => {}
            Znode::Coming(session, arrival) => Arrival::give_up(arrival, session, &self.path),
            Znode::There(own) => own.discard(),
        }
        znode
    }

    /// Closes it for good and waits until the znode is gone. Running it ends. The session goes on.
    /// One that was closed or dropped before is no error, and is waited for too.
    ///
    /// Blocks for the request timeout at most.
    ///
    /// # Errors
    /// [`Error::Timeout`], after which the znode goes as soon as that can be. That the session is
    /// over, and the znode with it, is no error.
    pub fn close(&self) -> Result<()> {
        let znode = self.end();
        let session = match &znode {
            Znode::Missing => return Ok(()),
            Znode::Coming(session, _) => session,
            Znode::There(own) => own.session(),
        };
        blocking::request(session, "close", &self.path, self.gone(&znode))
    }

    /// The same without blocking the thread. It is closed from the first poll on, also if the future
    /// is dropped then.
    ///
    /// # Errors
    /// [`Error::System`].
    pub async fn close_async(&self) -> Result<()> {
        let znode = self.end();
        self.gone(&znode).await
    }

    async fn gone(&self, znode: &Znode) -> Result<()> {
        let session = match znode {
            Znode::Missing => return Ok(()),
            Znode::Coming(session, arrival) => {
                // A create that failed has made nothing.
                let _ = Arrival::answer(arrival).await;
                session
            }
            Znode::There(own) => own.session(),
        };
        // The deletion has been asked for, and this sees what it did.
        while let Err(error) = session.nonblocking().exists(&self.path).await {
            if error.is_session_lost() {
                break;
            }
            recover(session, error).await?;
        }
        let former = std::mem::replace(&mut self.state().znode, Znode::Missing);
        // Not under the lock: it may be the last of its session.
        drop(former);
        Ok(())
    }
}
