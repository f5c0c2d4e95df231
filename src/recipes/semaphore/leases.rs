//! A semaphore in the form of Curator's or kazoo's.
//!
//! Both have the same algorithm: who wants a lease takes a lock, waits until there are fewer leases than there may
//! be, creates its own, and releases the lock. A lease is an ephemeral znode, and all children of the leases'
//! parent count. They differ in their paths:
//!
//! | | Curator | kazoo |
//! | --- | --- | --- |
//! | the lock | `<path>/locks` | `<path>-__lock__` |
//! | the leases | `<path>/leases/_c_<uuid>-lease-N` | `<path>/<hex>` |
//! | the number | given to each program | the data of `<path>` |
//!
//! Sources: Curator 5.9, `InterProcessSemaphoreV2`; kazoo 2.11, `Semaphore`.

use super::{Permits, check, parsed, permits_differ};
use crate::api::session::Session;
use crate::recipes::Held;
use crate::recipes::contenders::{Contenders, LOCK, Naming, predecessor};
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{children_or_none, if_exists, inner};
use crate::recipes::parents::Parents;
use crate::runtime::either::{Either, either};
use crate::runtime::entropy;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::CreateMode;

/// A semaphore that clients of Curator or kazoo use, too: see [`guide::shared_recipes`](crate::guide::shared_recipes).
///
/// It gives out one permit at a time. Of those who wait, the first holds a lock and is woken by each release; each
/// other waits for the one before it. An acquisition costs four writes. A [`Semaphore`](super::Semaphore) is
/// cheaper, gives out several permits at once, and can change their number, but only instances of quorate use it.
///
/// With [`Naming::Kazoo`], the number of permits is stored in the cluster, and whoever expects another one gets
/// [`Error::InvalidSetting`]. With [`Naming::Curator`] it is not, and all programs must name the same.
///
/// ```
/// use quorate::recipes::{Naming, SharedSemaphore};
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let semaphore = |node| {
///     let session = cluster.node(node).session();
///     SharedSemaphore::new(&session, "/uploads", 1, Naming::Curator)
/// };
/// let permit = semaphore(0)?.acquire().wait()?;
/// assert!(semaphore(1)?.try_acquire().wait()?.is_none());
/// permit.release().wait()?;
/// assert!(semaphore(1)?.acquire().wait()?.is_held());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedSemaphore {
    lock: Contenders,
    path: String,
    leases: String,
    permits: u32,
    naming: Naming,
}

impl SharedSemaphore {
    /// Returns the semaphore at this path, with this number of permits, in the form of Curator or kazoo. Sends
    /// nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if the number is 0.
    pub fn new(
        session: &Session,
        path: &str,
        permits: u32,
        naming: Naming,
    ) -> Result<SharedSemaphore> {
        check(permits)?;
        path::validate(path)?;
        let (lock, leases) = match naming {
            Naming::Curator => (path::join(path, "locks"), path::join(path, "leases")),
            Naming::Kazoo => (format!("{path}-__lock__"), path.to_owned()),
        };
        let lock = Contenders::new(session, &lock, &[&LOCK])?.with_naming(naming);
        Ok(SharedSemaphore { lock, path: path.to_owned(), leases, permits, naming })
    }

    fn session(&self) -> &Session {
        self.lock.session()
    }

    /// The semaphore's path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Acquires a permit. Waits until there is one, for as long as the session lives.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`]; [`Error::UnknownContender`] at the path of the lock; [`Error::NoNode`] if somebody
    /// deleted a znode of this contender; the errors of a session that is over. These are the errors of all ways to
    /// acquire a permit.
    pub fn acquire(&self) -> Pending<'_, Permits> {
        self.session().steps("acquire", self.path(), self.acquiring()).unlimited()
    }

    async fn acquiring(&self) -> Result<Permits> {
        self.agree().await?;
        let turn = self.lock.acquire(&LOCK, b"", predecessor).await?;
        let calls = &self.lock.session().in_turn();
        // A replica that is behind may still show leases that were given back, and its watch then reports that. It
        // shows all leases that exist: they were created under the lock, before this session got it.
        while let Some((held, watch)) = if_exists(calls.children_and_watch(&self.leases).await)?
            && !self.has_room(held.len())
        {
            if let Either::Other(_) = either(watch.next(), turn.wait_lost()).await {
                return Err(Error::NoNode { path: turn.path().to_owned() });
            }
        }
        self.lease(turn).await
    }

    /// Acquires a permit if there is one now and nobody waits; returns `None` otherwise.
    pub fn try_acquire(&self) -> Pending<'_, Option<Permits>> {
        self.session().steps("try_acquire", self.path(), self.trying())
    }

    async fn trying(&self) -> Result<Option<Permits>> {
        self.agree().await?;
        let Some(turn) = self.lock.try_acquire(&LOCK, b"", predecessor).await? else {
            return Ok(None);
        };
        let held = children_or_none(self.lock.session().children(&self.leases).await)?.len();
        if !self.has_room(held) {
            turn.release().await?;
            return Ok(None);
        }
        self.lease(turn).await.map(Some)
    }

    fn has_room(&self, held: usize) -> bool {
        u32::try_from(held).is_ok_and(|held| held < self.permits)
    }

    /// Creates a lease, if the lock is still held.
    async fn lease(&self, turn: Held) -> Result<Permits> {
        let session = self.lock.session();
        let random = entropy::number()?;
        let (name, mode) = match self.naming {
            Naming::Curator => (format!("{random:016x}-lease-"), CreateMode::EphemeralSequential),
            Naming::Kazoo => (format!("{random:016x}"), CreateMode::Ephemeral),
        };
        let path = path::join(&self.leases, &name);
        let mut parents = Parents::of(session, &self.leases);
        let lease = loop {
            parents.make().await?;
            let creating = turn.ephemeral.multi().create(&path, b"", mode).commit();
            match created_in_multi(session, creating).await {
                Err(Error::Multi { index: 0, .. }) => {
                    return Err(Error::NoNode { path: turn.path().to_owned() });
                }
                Err(Error::Multi { error, .. }) if matches!(*error, Error::NoNode { .. }) => {}
                created => break inner(created)?,
            }
        };
        turn.release().await?;
        Ok(Permits { held: Held::new(lease).await?, permits: 1 })
    }

    /// With kazoo, the number is stored, by whoever comes first.
    async fn agree(&self) -> Result<()> {
        if self.naming != Naming::Kazoo {
            return Ok(());
        }
        let (session, total) = (self.lock.session(), self.permits.to_string());
        let calls = &session.in_turn();
        let mut parents = Parents::of(session, path::parent(&self.path).unwrap_or("/"));
        loop {
            let written = match if_exists(calls.get(&self.path).await)? {
                Some((data, _)) => match parsed(&data) {
                    Some(actual) if actual != self.permits => {
                        return Err(permits_differ(&self.path, self.permits, actual, ""));
                    }
                    // kazoo creates the znode before it sets the number, and ignores other data.
                    _ => return Ok(()),
                },
                None => {
                    parents.make().await?;
                    calls.create(&self.path, &total, CreateMode::Persistent).await.map(drop)
                }
            };
            match written {
                // A parent is missing, or another one came first: look again.
                Err(Error::NoNode { .. } | Error::NodeExists { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns how many permits are held, as this replica has it.
    ///
    /// # Errors
    /// The errors of a session that is over.
    pub fn held(&self) -> Pending<'_, usize> {
        self.session().steps("held", self.path(), self.counting())
    }

    async fn counting(&self) -> Result<usize> {
        Ok(children_or_none(self.session().children(&self.leases).await)?.len())
    }
}
