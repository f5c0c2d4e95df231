//! The contenders of one path, from which locks, elections and other recipes are built.
//!
//! Each contender is an ephemeral sequential znode below the path. The sequence numbers give their
//! order of arrival, and the recipe decides what the order means: the first one holds a lock, for
//! example. A waiting contender watches only the one contender that blocks it, so that a release
//! wakes one waiter.
//!
//! A contender's name is `<random>-<word>-<number>`, where the word tells what it wants ([`name`]). The number
//! alone is not unique: a parent's numbers start from 0 again after it is deleted and created again. The random
//! part makes sure that no later contender has the same path. (Curator has such a part to find its own znode
//! after a lost answer. That is not needed here: a create is executed once, whatever messages are lost.)
//!
//! The contenders of other libraries, whose sessions come through the gateway, are counted like our own. A
//! sequential child that is none of them is reported: its session may count in another way, and hold at the same
//! time.
//!
//! Another session may still get a znode at that path, by [`Session::take_over`] or by a delete and
//! a create. So a contender is identified by its path and the zxid that created it, and writes to
//! its znode only if both are the same.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Locks; Curator, `InterProcessMutex`.

mod contender;
mod name;
mod place;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use self::contender::{Contender, change};
pub use self::name::Naming;
pub(super) use self::name::{
    ContenderKind, LATCH, LEASE, LOCK, PARTICIPANT, PUTTER, READ, SELECTOR, TAKER, WRITE, call,
    digits, is_random, parse,
};
#[cfg(any(test, fuzzing))]
pub(super) use self::place::fuzz;
pub(super) use self::place::{Standing, behind, between, random};
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::creating::create_ephemeral;
use crate::recipes::errors::{children_or_none, if_exists};
use crate::recipes::parents::create_below;
use crate::recipes::{Held, delay};
use crate::runtime::entropy;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{CreateMode, SessionId, Stat};

/// The most children that are examined because their names are unknown. So many are no contenders.
const UNKNOWN_MAX: usize = 64;

/// The contenders of one path.
#[derive(Clone, Debug)]
pub(super) struct Contenders {
    session: Session,
    path: String,
    kinds: &'static [&'static ContenderKind],
    naming: Naming,
    /// Whether a line in the log says that other znodes are among them.
    is_logged: Arc<AtomicBool>,
}

/// A contender as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedContender {
    pub(super) path: String,
    /// The name of one of the kinds given to [`Contenders::new`].
    pub(super) kind: &'static str,
}

/// A holder of a lock or of another recipe, or a waiter: see [`contended`](crate::operate::contended) and
/// [`Lock::contenders`](crate::recipes::Lock::contenders).
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let lock = session.lock("/lock")?;
/// let guard = lock.acquire().wait()?;
/// let contenders = lock.contenders().wait()?;
/// assert_eq!((&*contenders[0].path, contenders[0].kind), (guard.path(), "lock"));
/// assert_eq!(contenders[0].session, Some(session.id()));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Contending {
    /// The path of its znode.
    pub path: String,
    /// What it holds or waits for: `lock`, `read`, `write`, `lease`, `candidate`, `participant`, `take` or
    /// `put`.
    pub kind: &'static str,
    /// Its session; `None` if somebody has created the znode by hand.
    pub session: Option<SessionId>,
    /// When it arrived: milliseconds since the Unix epoch, by the leader's clock.
    pub since: u64,
    /// The data of its znode as text: the id of a candidate, for example. Empty if there is none, or
    /// if the session may not read it.
    pub label: String,
}

impl Contending {
    pub(super) fn new(
        path: String,
        kind: &'static str,
        data: &[u8],
        stat: Option<&Stat>,
    ) -> Contending {
        Contending {
            path,
            kind,
            session: stat.and_then(|stat| stat.ephemeral_owner),
            since: stat.map_or(0, |stat| stat.ctime),
            label: String::from_utf8_lossy(data).into_owned(),
        }
    }
}

/// Receives the contenders in order and the index of one of them, and returns the index of the
/// contender that this one has to wait for.
pub(super) type BlockedBy = fn(&[ListedContender], usize) -> Option<usize>;

/// Blocks each contender by the one before it.
pub(super) fn predecessor(_: &[ListedContender], at: usize) -> Option<usize> {
    at.checked_sub(1)
}

impl Contenders {
    /// Returns the contenders of these kinds at this path.
    pub(super) fn new(
        session: &Session,
        path: &str,
        kinds: &'static [&'static ContenderKind],
    ) -> Result<Contenders> {
        path::validate(path)?;
        for kind in kinds {
            // The contenders' paths are longer, but an error should name the path that the caller
            // knows.
            let longest = path::join(path, &name::new(kind, Naming::Kazoo, 0, ""));
            path::validate_sequential(&longest).map_err(|error| match error {
                Error::InvalidPath { reason, .. } => {
                    Error::InvalidPath { path: path.to_owned(), reason }
                }
                other => other,
            })?;
        }
        let (session, path) = (session.for_recipe(), path.to_owned());
        Ok(Contenders {
            session,
            path,
            kinds,
            naming: Naming::default(),
            is_logged: Arc::default(),
        })
    }

    /// Those of these kinds at another path.
    pub(super) fn at(&self, path: String, kinds: &'static [&'static ContenderKind]) -> Contenders {
        Contenders { path, kinds, is_logged: Arc::default(), ..self.clone() }
    }

    /// The same, whose new contenders have other names.
    pub(super) fn with_naming(mut self, naming: Naming) -> Contenders {
        self.naming = naming;
        self
    }

    /// How new contenders are named.
    pub(super) fn naming(&self) -> Naming {
        self.naming
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Adds a contender, at the end.
    pub(super) async fn join(&self, kind: &ContenderKind, data: &[u8]) -> Result<Contender> {
        self.join_as(kind, "", data).await
    }

    /// As [`Contenders::join`], with something in its name that everybody sees.
    pub(super) async fn join_as(
        &self,
        kind: &ContenderKind,
        shown: &str,
        data: &[u8],
    ) -> Result<Contender> {
        let create = || async {
            let name = name::new(kind, self.naming, entropy::number()?, shown);
            let path = path::join(&self.path, &name);
            create_ephemeral(&self.session, &path, data, CreateMode::EphemeralSequential).await
        };
        let ephemeral = create_below(&self.session, &self.path, create).await?;
        Ok(Contender::new(ephemeral))
    }

    /// The path of a contender with this random part, and the number of another one.
    pub(super) fn path_of(
        &self,
        kind: &ContenderKind,
        random: u64,
        shown: &str,
        number: &str,
    ) -> String {
        let name = name::new(kind, self.naming, random, shown);
        path::join(&self.path, &format!("{name}{number}"))
    }

    /// Returns all contenders in order, including the effects of the session's earlier calls.
    pub(super) async fn list(&self) -> Result<Vec<ListedContender>> {
        let children = self.session.in_turn().children(&self.path).await;
        children_or_none(children).map(|children| self.sorted(children))
    }

    /// All contenders in order, with their sessions, as this replica has them. Does not wait for the session.
    pub(super) async fn contending(&self) -> Result<Vec<Contending>> {
        let snapshot = self.session.snapshot_of(&self.path).await?;
        let contending = |listed: ListedContender| {
            let (data, stat) = snapshot.get(&listed.path)?;
            Ok(Contending::new(listed.path, listed.kind, &data, Some(&stat)))
        };
        self.list_in(&snapshot)?.into_iter().map(contending).collect()
    }

    /// All contenders in order, as a snapshot has them.
    pub(super) fn list_in(&self, snapshot: &Snapshot) -> Result<Vec<ListedContender>> {
        children_or_none(snapshot.children(&self.path)).map(|children| self.sorted(children))
    }

    /// Whether any of the children is a contender.
    pub(super) fn any_among(&self, children: Vec<String>) -> bool {
        children.iter().any(|name| name::parse(name, self.kinds).is_some())
    }

    /// The contenders among the children, in order.
    pub(super) fn sorted(&self, children: Vec<String>) -> Vec<ListedContender> {
        let parsed =
            |name| name::parse(name, self.kinds).map(|(order, kind)| (order, name, kind.name));
        let mut listed: Vec<_> = children.iter().map(String::as_str).filter_map(parsed).collect();
        // Two have the same number if one session of Curator's has both halves of a read-write lock.
        listed.sort_by_key(|(order, name, _)| (*order, *name));
        let contender =
            |(_, name, kind)| ListedContender { path: path::join(&self.path, name), kind };
        listed.into_iter().map(contender).collect()
    }

    /// Looks for children that are no contenders that count ours.
    ///
    /// # Errors
    /// [`Error::UnknownContender`] if one is an ephemeral sequential znode, which some recipe has created. The
    /// log names others.
    pub(super) async fn check(&self, children: &[String]) -> Result<()> {
        let is_unknown = |name: &&String| name::is_unknown(name, self.kinds, self.naming);
        for name in children.iter().filter(is_unknown).take(UNKNOWN_MAX) {
            let path = path::join(&self.path, name);
            let there = self.session.in_turn().exists(&path).await?;
            if there.is_some_and(|stat| stat.ephemeral_owner.is_some()) {
                return Err(Error::UnknownContender { path });
            }
        }
        let is_other = |name: &&String| {
            name::parse(name, self.kinds).is_none()
                && !name::is_call(name)
                && !delay::MARKS.contains(&name.as_str())
        };
        if let Some(other) = children.iter().find(is_other)
            && !self.is_logged.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(path = self.path, child = other, "not a contender, and not waited for");
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::UnknownContender`] if another library has znodes of its semaphore or double barrier here: ephemeral
    /// ones, whatever their names, or those that these libraries create beside them.
    pub(super) fn refuse_others(&self, snapshot: &Snapshot) -> Result<()> {
        let children = snapshot.children(&self.path)?;
        for name in children.iter().filter(|name| name::parse(name, self.kinds).is_none()) {
            let path = path::join(&self.path, name);
            let is_ephemeral = || {
                let stat = snapshot.exists(&path)?;
                Ok(stat.is_some_and(|stat| stat.ephemeral_owner.is_some()))
            };
            if ["leases", "locks", "ready"].contains(&name.as_str()) || is_ephemeral()? {
                return Err(Error::UnknownContender { path });
            }
        }
        Ok(())
    }

    /// Waits until nobody blocks the contender.
    ///
    /// # Errors
    /// [`Error::NoNode`] if somebody has deleted the contender's znode; [`Error::UnknownContender`].
    pub(super) async fn wait(&self, contender: &Contender, blocked_by: BlockedBy) -> Result<()> {
        while let Some(before) = self.blocker(contender, blocked_by).await? {
            // The watch is set now and not when the turn comes, when the former holder may be
            // releasing.
            contender.watch_own().await?;
            until_deleted(&self.session, &before).await?;
            if planted!(PredecessorMissed) {
                return Ok(());
            }
            // The other contender may have given up before its turn: look again.
        }
        Ok(())
    }

    /// Adds a contender and waits until nothing blocks it.
    pub(super) async fn acquire(
        &self,
        kind: &ContenderKind,
        data: &[u8],
        blocked_by: BlockedBy,
    ) -> Result<Held> {
        let contender = self.join(kind, data).await?;
        self.wait(&contender, blocked_by).await?;
        contender.held().await
    }

    /// As [`Contenders::acquire`], if nothing blocks it now.
    pub(super) async fn try_acquire(
        &self,
        kind: &ContenderKind,
        data: &[u8],
        blocked_by: BlockedBy,
    ) -> Result<Option<Held>> {
        let contender = self.join(kind, data).await?;
        match self.blocker(&contender, blocked_by).await? {
            None => contender.held().await.map(Some),
            Some(_) => Ok(None),
        }
    }

    /// Returns the contender that blocks this one now, if any.
    pub(super) async fn blocker(
        &self,
        contender: &Contender,
        blocked_by: BlockedBy,
    ) -> Result<Option<String>> {
        // A replica shows its session's own writes before they are answered.
        let children = children_or_none(self.session.children(&self.path).await)?;
        self.check(&children).await?;
        let listed = self.sorted(children);
        let path = contender.path();
        match listed.iter().position(|contender| contender.path == path) {
            Some(1) if planted!(LockEarly) => Ok(None),
            Some(at) => Ok(blocked_by(&listed, at).map(|before| listed[before].path.clone())),
            None => Err(Error::NoNode { path: path.to_owned() }),
        }
    }
}

/// Waits until a contender's znode is deleted or this session is over.
pub(super) async fn until_deleted(session: &Session, path: &str) -> Result<()> {
    // Ephemeral znodes have no children, so this watch reports only the deletion. (kazoo's user may have made
    // one that is not ephemeral.)
    let watching = session.children_and_watch(path).await;
    if let Some((_, watch)) = if_exists(watching)? {
        watch.next().await;
    }
    Ok(())
}
