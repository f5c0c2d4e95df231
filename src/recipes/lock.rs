//! ZooKeeper's lock recipe.
//!
//! Each contender is an ephemeral sequential znode below the lock's path; the
//! lowest number holds the lock, and each of the others watches only the one
//! before it, so that a release wakes one.
//!
//! A contender's name is `lock-<random>-<number>`. The number alone would not be
//! its own: it is the parent's next, and those begin anew when the parent is
//! deleted and made again. A former contender that lets go of its place, or
//! looks whether it still has it, would then meet the znode of a later one. By
//! its random part, a path is one contender's for ever. (To find its own znode
//! again after a lost answer, which is what Curator has such a part for, no
//! contender needs it: a create is executed once, whatever happens on its way.)
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Locks; Curator, `InterProcessMutex`.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Error, Result};
use crate::machine::command::Reply;
use crate::node::io::Answer;
use crate::path;
use crate::pending::{Pending, block_on};
use crate::planted::{Bug, planted};
use crate::runtime::entropy;
use crate::session::Session;
use crate::watch::{EventKind, Watch, WatchEvent, WatchMode};
use crate::znode::{CreateMode, Created};

/// How contenders' names begin.
const PREFIX: &str = "lock-";

/// A contender's name before it has its number.
fn name(random: u64) -> String {
    format!("{PREFIX}{random:016x}-")
}

/// The number that a contender's name ends in.
fn number(name: &str) -> Option<&str> {
    let number = name.strip_prefix(PREFIX)?.rsplit('-').next()?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

/// A lock that one holder in the whole cluster has at a time.
///
/// It is fair: whoever asked first gets it first. It is not reentrant: a holder that acquires it
/// again waits for itself. Two acquisitions are two contenders, also within one session, so it
/// excludes the threads of one process from each other just as well.
///
/// The lock belongs to the session: it is lost when the session is. [`LockGuard::is_held`] turns
/// false before the cluster can give it to another, as long as clocks run at rates that differ by
/// less than a tenth and count all the time there is: see [`Session::is_alive`] for which do. No lock
/// can hold back a process that stalls after it has looked; for that there are
/// [`LockGuard::fencing_token`]s.
///
/// One acquisition costs two writes (a znode created and deleted).
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = cluster.node(0).session().lock("/locks/nightly")?;
/// let guard = lock.acquire()?;
/// let other = cluster.node(1).session().lock("/locks/nightly")?;
/// assert!(other.try_acquire()?.is_none());
/// guard.release()?;
/// assert!(other.acquire()?.is_held());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    session: Session,
    path: String,
}

impl Lock {
    pub(crate) fn new(session: Session, path: &str) -> Result<Lock> {
        path::validate(path)?;
        // Its contenders' znodes have longer paths.
        path::validate_sequential(&path::join(path, &name(0)))?;
        Ok(Lock { session, path: path.to_owned() })
    }

    /// The lock's path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Blocks until the lock is held, for as long as the session lives.
    ///
    /// # Errors
    /// Those of a session that is over, [`Error::NoNode`] if somebody deleted this contender's
    /// znode, and [`Error::System`].
    pub fn acquire(&self) -> Result<LockGuard> {
        match block_on(self.acquire_async(), &self.session.shared().clock, None) {
            Some(result) => result,
            // Without a deadline there is always a result.
            None => Err(Error::Stopped { reason: "no answer".to_owned() }),
        }
    }

    /// Blocks until the lock is held, at most for `timeout`: `None` if it is not held by then. The
    /// place in the queue is given up.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        let clock = &self.session.shared().clock;
        let deadline = clock.now().saturating_add(timeout);
        block_on(self.acquire_async(), clock, Some(deadline)).transpose()
    }

    /// Takes the lock if nobody holds it or waits for it. Blocks for the request timeout at most.
    ///
    /// # Errors
    /// As [`Lock::acquire`], and [`Error::Timeout`].
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let clock = &self.session.shared().clock;
        let waited = self.session.shared().limits.request_timeout;
        let contend = async {
            let contender = self.contend().await?;
            match self.place(&contender).await? {
                None => contender.hold().await.map(Some),
                Some(_) => Ok(None),
            }
        };
        block_on(contend, clock, Some(clock.now().saturating_add(waited))).unwrap_or_else(|| {
            Err(Error::Timeout {
                operation: format!("try_acquire {}", self.path),
                waited,
                reason: self.session.shared().waiting_for(),
            })
        })
    }

    /// Waits until the lock is held, without blocking the thread. Dropping the future gives up the
    /// place in the queue.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire_async(&self) -> Result<LockGuard> {
        let contender = self.contend().await?;
        while let Some(before) = self.place(&contender).await? {
            let (exists, watch) = self.session.nonblocking().exists_and_watch(&before).await?;
            if exists.is_some() {
                // Whatever happened to it, or to this session: look again.
                watch.next().await;
            }
        }
        contender.hold().await
    }

    /// Who waits for the lock or holds it, by path, the holder first, as this replica has it.
    ///
    /// # Errors
    /// Those of a session that is over.
    pub fn contenders(&self) -> Result<Vec<String>> {
        match self.session.children(&self.path) {
            Ok(children) => Ok(self.in_order(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Joins the queue.
    async fn contend(&self) -> Result<Contender> {
        loop {
            let name = path::join(&self.path, &name(entropy::number()?));
            let mode = CreateMode::EphemeralSequential;
            let mut contender = Contender {
                session: self.session.clone(),
                creating: Some(self.session.nonblocking().create(&name, b"", mode)),
                created: None,
            };
            match contender.created().await {
                Ok(()) => return Ok(contender),
                Err(Error::NoNode { .. }) => self.create_parents().await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn create_parents(&self) -> Result<()> {
        let ends = self.path.match_indices('/').skip(1).map(|(end, _)| end);
        for end in ends.chain([self.path.len()]) {
            let created =
                self.session.nonblocking().create(&self.path[..end], b"", CreateMode::Container);
            match created.await {
                Ok(_) | Err(Error::NodeExists { .. }) => {}
                // The one before it was not used any more, and has just gone.
                Err(Error::NoNode { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The contender before this one; `None` if it is the first, and so holds the lock.
    async fn place(&self, contender: &Contender) -> Result<Option<String>> {
        let children = self.session.nonblocking().children(&self.path).await?;
        let queue = self.in_order(children);
        let own = contender.path();
        match queue.iter().position(|path| path == own) {
            Some(0) => Ok(None),
            Some(1) if planted(Bug::LockEarly) => Ok(None),
            Some(place) => Ok(Some(queue[place - 1].clone())),
            None => Err(Error::NoNode { path: own.to_owned() }),
        }
    }

    /// The contenders among the children, by number. Numbers outgrow their ten digits, so names are
    /// compared by length first.
    fn in_order(&self, children: Vec<String>) -> Vec<String> {
        let mut names = children;
        names.retain(|name| number(name).is_some());
        names.sort_by_cached_key(|name| {
            let number = number(name).unwrap_or_default();
            (number.len(), number.to_owned())
        });
        names.into_iter().map(|name| path::join(&self.path, &name)).collect()
    }
}

/// A place in the queue. Dropped before the lock is held, it is given up.
struct Contender {
    session: Session,
    creating: Option<Pending<Created>>,
    created: Option<Created>,
}

impl Contender {
    /// Waits for its znode.
    async fn created(&mut self) -> Result<()> {
        if let Some(creating) = &mut self.creating {
            // Polled in place, so that a drop in between finds it.
            let created = creating.await;
            self.creating = None;
            self.created = Some(created?);
        }
        Ok(())
    }

    fn path(&self) -> &str {
        self.created.as_ref().map_or("", |created| &created.path)
    }

    /// Makes the guard of the first in the queue.
    async fn hold(mut self) -> Result<LockGuard> {
        let path = self.path().to_owned();
        let watch = self.session.nonblocking().watch(&path, WatchMode::Persistent).await?;
        // Gone before the watch was set?
        self.session.nonblocking().get(&path).await?;
        // A session whose opening took long is open before it is known to be alive. A guard that is
        // not held yet looks like one that is not held any more.
        while !self.session.is_alive() {
            self.session.nonblocking().sync().await?;
        }
        let Some(created) = self.created.take() else {
            return Err(Error::NoNode { path });
        };
        Ok(LockGuard {
            session: self.session.clone(),
            fencing_token: if planted(Bug::TokenFixed) { 1 } else { created.stat.czxid },
            path,
            watch,
            released: false,
        })
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Some(created) = self.created.take() {
            let path = self.session.root.full(&created.path).into_owned();
            self.session.discarding()(path);
        }
        if let Some(creating) = self.creating.take() {
            // Its number is not known yet. It is deleted as soon as it is.
            let discard = self.session.discarding();
            creating.then(move |answer| {
                if let Ok(Answer::Reply(Reply::Created(created))) = answer {
                    discard(created.path);
                }
            });
        }
    }
}

/// How a lock was lost.
///
/// ```
/// use quorate::{LockLost, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let guard = session.lock("/lock")?.acquire()?;
/// cluster.node(1).session().delete(guard.path())?;
/// assert_eq!(guard.wait_lost(), LockLost::Deleted);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockLost {
    /// The session is over.
    SessionOver,
    /// The holder's znode was deleted, by somebody or with its session.
    Deleted,
}

/// The holding of a [`Lock`]. Dropping it releases the lock, without waiting for that.
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let lock = cluster.node(0).session().lock("/lock")?;
/// let first = lock.acquire()?.fencing_token();
/// let second = lock.acquire()?.fencing_token();
/// assert!(second > first);
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct LockGuard {
    session: Session,
    path: String,
    fencing_token: u64,
    watch: Watch,
    released: bool,
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("path", &self.path)
            .field("fencing_token", &self.fencing_token)
            .finish_non_exhaustive()
    }
}

impl LockGuard {
    /// A number that is larger for each later holder of the lock: the zxid that created the
    /// holder's znode. A resource that refuses numbers smaller than the largest it has seen is safe
    /// from holders that do not know yet that they have lost the lock.
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    /// The path of the holder's znode.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the lock is held at this moment: the session is surely alive, and this replica knows
    /// of no deletion of the holder's znode. Does not block. Once false, it stays so.
    ///
    /// Whoever deletes the znode of a living holder gives the lock away; the holder learns of that
    /// when its replica does.
    pub fn is_held(&self) -> bool {
        self.session.is_alive() && self.how_lost().is_none()
    }

    /// A channel on which the loss of the lock shows: it gets a message, or closes. For
    /// `select!`; [`LockGuard::is_held`] then tells the truth.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let guard = cluster.node(0).session().lock("/lock")?.acquire()?;
    /// cluster.isolate(0);
    /// cluster.advance(Duration::from_secs(60));
    /// crossbeam_channel::select! {
    ///     recv(guard.lost()) -> _ => assert!(!guard.is_held()),
    /// }
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until the lock is lost.
    pub fn wait_lost(&self) -> LockLost {
        loop {
            if let Some(lost) = self.how_lost() {
                return lost;
            }
            // The event is here before the tree shows it.
            match self.watch.recv().map(|event| event.kind) {
                Some(EventKind::Deleted) => return LockLost::Deleted,
                Some(_) => {}
                None => return self.how_lost().unwrap_or(LockLost::SessionOver),
            }
        }
    }

    fn how_lost(&self) -> Option<LockLost> {
        if self.session.state().is_final() {
            return Some(LockLost::SessionOver);
        }
        let tree = self.session.shared().tree();
        let path = self.session.root.full(&self.path);
        let ours = tree.get(&path).map(|znode| znode.stat().czxid);
        (ours != Some(self.fencing_token)).then_some(LockLost::Deleted)
    }

    /// Releases the lock and waits until that is done.
    ///
    /// # Errors
    /// As [`Session::delete`], but for [`Error::Busy`]; a lock that was lost already is no error.
    /// After [`Error::Timeout`] the release goes on.
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        match self.session.discard(&self.path) {
            Err(Error::NoNode { .. }) => Ok(()),
            Err(error) if error.is_session_lost() => Ok(()),
            other => other,
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            let path = self.session.root.full(&self.path).into_owned();
            self.session.discarding()(path);
        }
    }
}
