//! The contenders of one path, from which locks, elections and other recipes are built.
//!
//! Each contender is an ephemeral sequential znode below the path. The sequence numbers give their
//! order of arrival, and the recipe decides what the order means: the first one holds a lock, for
//! example. A waiting contender watches only the one contender that blocks it, so that a release
//! wakes one waiter.
//!
//! A contender's name is `<kind>-<random>-<number>`. The number alone is not unique: a parent's
//! numbers start from 0 again after it is deleted and created again. The random part makes sure
//! that no later contender has the same path. (Curator has such a part to find its own znode after
//! a lost answer. That is not needed here: a create is executed once, whatever messages are lost.)
//!
//! Another session may still get a znode at that path, by [`Session::take_over`] or by a delete and
//! a create. So a contender is identified by its path and the zxid that created it, and writes to
//! its znode only if both are the same.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Locks; Curator, `InterProcessMutex`.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Receiver;
use once_cell::sync::OnceCell;

use crate::api::multi::{Fence, Multi};
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::creating::{CreatingMulti, discard_when_created};
use crate::recipes::errors::inner;
use crate::recipes::parents::Parents;
use crate::recipes::{LockContender, LockLost, blocking, owned_ephemeral};
use crate::runtime::entropy;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::WatchEvent;
use crate::types::znode::{Condition, CreateMode, Created, OpResult, Stat, Zxid};

/// The contenders of one path.
#[derive(Clone, Debug)]
pub(super) struct Contenders {
    session: Session,
    path: String,
    kinds: &'static [&'static str],
}

/// A contender as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedContender {
    pub(super) path: String,
    /// One of the kinds given to [`Contenders::new`].
    pub(super) kind: &'static str,
    /// Its length and digits: a number may outgrow ten digits, and then the longer one is the
    /// larger.
    number: (usize, String),
}

/// A contender's name, without its number.
fn name(kind: &str, random: u64) -> String {
    format!("{kind}-{random:016x}-")
}

impl Contenders {
    /// The contenders of these kinds at this path.
    pub(super) fn new(
        session: &Session,
        path: &str,
        kinds: &'static [&'static str],
    ) -> Result<Contenders> {
        path::validate(path)?;
        for kind in kinds {
            // The contenders' paths are longer, but an error should name the path that the caller
            // knows.
            let longest = path::join(path, &name(kind, 0));
            path::validate_sequential(&longest).map_err(|error| match error {
                Error::InvalidPath { reason, .. } => {
                    Error::InvalidPath { path: path.to_owned(), reason }
                }
                other => other,
            })?;
        }
        Ok(Contenders { session: session.clone(), path: path.to_owned(), kinds })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Adds a contender, at the end. `kind` may continue after the kind itself with data of the
    /// contender, which everybody sees in its name.
    pub(super) async fn join(&self, kind: &str, data: &[u8]) -> Result<Contender> {
        let mut parents = Parents::of(&self.session, &self.path);
        loop {
            parents.make().await?;
            let name = path::join(&self.path, &name(kind, entropy::number()?));
            let mode = CreateMode::EphemeralSequential;
            let mut contender = Contender {
                session: self.session.clone(),
                creating: Some(self.session.nonblocking().create(&name, data, mode)),
                created: None,
                joined_at: 0,
                mark: None,
                watch: OnceCell::new(),
            };
            match contender.created().await {
                Ok(()) => return Ok(contender),
                Err(Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// All contenders in order, as of the session's earlier calls.
    pub(super) async fn list(&self) -> Result<Vec<ListedContender>> {
        match self.session.nonblocking().children(&self.path).await {
            Ok(children) => Ok(self.sorted(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// All contenders in order, as this replica has them now.
    pub(super) fn list_now(&self) -> Result<Vec<ListedContender>> {
        match self.session.children(&self.path) {
            Ok(children) => Ok(self.sorted(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// All contenders in order with their sessions, as this replica has them now.
    pub(super) fn list_with_sessions_now(&self) -> Result<Vec<LockContender>> {
        self.list_with_sessions_in(&self.session.snapshot_of(&self.path)?)
    }

    /// As [`Contenders::list_with_sessions_now`], without blocking the thread.
    pub(super) async fn list_with_sessions(&self) -> Result<Vec<LockContender>> {
        self.list_with_sessions_in(&self.session.snapshot_soon(&self.path).await?)
    }

    fn list_with_sessions_in(&self, snapshot: &Snapshot) -> Result<Vec<LockContender>> {
        let children = match snapshot.children(&self.path) {
            Ok(children) => children,
            Err(Error::NoNode { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let contender = |listed: ListedContender| {
            let session = snapshot.exists(&listed.path)?.and_then(|stat| stat.ephemeral_owner);
            Ok(LockContender { path: listed.path, kind: listed.kind, session })
        };
        self.sorted(children).into_iter().map(contender).collect()
    }

    /// All contenders in order, as a snapshot has them.
    pub(super) fn list_in(&self, snapshot: &Snapshot) -> Result<Vec<ListedContender>> {
        match snapshot.children(&self.path) {
            Ok(children) => Ok(self.sorted(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether any of the children is a contender.
    pub(super) fn any_among(&self, children: Vec<String>) -> bool {
        children.iter().any(|name| self.parse(name).is_some())
    }

    fn parse(&self, name: &str) -> Option<ListedContender> {
        let kind = self
            .kinds
            .iter()
            .find(|kind| name.strip_prefix(**kind).is_some_and(|rest| rest.starts_with('-')))?;
        let number = name.rsplit('-').next()?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| ListedContender {
            path: path::join(&self.path, name),
            kind,
            number: (number.len(), number.to_owned()),
        })
    }

    /// The contenders among the children, in order.
    pub(super) fn sorted(&self, children: Vec<String>) -> Vec<ListedContender> {
        let mut listed: Vec<ListedContender> =
            children.iter().filter_map(|name| self.parse(name)).collect();
        listed.sort_by(|one, other| one.number.cmp(&other.number));
        listed
    }

    /// Waits until `blocked_by` returns `None`. It gets the contenders in order and this one's
    /// index, and returns the index of the one to wait for.
    ///
    /// # Errors
    /// [`Error::NoNode`] if somebody has deleted the contender's znode.
    pub(super) async fn wait(
        &self,
        contender: &Contender,
        blocked_by: impl Fn(&[ListedContender], usize) -> Option<usize>,
    ) -> Result<()> {
        while let Some(before) = self.blocker(contender, &blocked_by).await? {
            // Set now and not when its turn comes, since the former holder may be releasing then.
            contender.watch().await?;
            if until_deleted(&self.session, &before).await? && planted(Bug::PredecessorMissed) {
                return Ok(());
            }
            // The other may have given up before its turn: look again.
        }
        Ok(())
    }

    /// Adds a contender and waits until nothing blocks it.
    pub(super) async fn acquire(
        &self,
        kind: &str,
        blocked_by: impl Fn(&[ListedContender], usize) -> Option<usize>,
    ) -> Result<Hold> {
        let contender = self.join(kind, b"").await?;
        self.wait(&contender, blocked_by).await?;
        contender.hold().await
    }

    /// As [`Contenders::acquire`], if nothing blocks it now.
    pub(super) async fn try_acquire(
        &self,
        kind: &str,
        blocked_by: impl Fn(&[ListedContender], usize) -> Option<usize>,
    ) -> Result<Option<Hold>> {
        let contender = self.join(kind, b"").await?;
        match self.blocker(&contender, blocked_by).await? {
            None => contender.hold().await.map(Some),
            Some(_) => Ok(None),
        }
    }

    /// The contender that blocks this one now, if any.
    pub(super) async fn blocker(
        &self,
        contender: &Contender,
        blocked_by: impl Fn(&[ListedContender], usize) -> Option<usize>,
    ) -> Result<Option<String>> {
        // A replica shows its session's own writes before they are answered.
        let listed =
            if self.session.has_replica() { self.list_now()? } else { self.list().await? };
        let path = contender.path();
        match listed.iter().position(|contender| contender.path == path) {
            Some(1) if planted(Bug::LockEarly) => Ok(None),
            Some(at) => Ok(blocked_by(&listed, at).map(|before| listed[before].path.clone())),
            None => Err(Error::NoNode { path: path.to_owned() }),
        }
    }
}

/// Waits until a contender's znode is deleted or this session is over. Returns whether the znode
/// existed.
async fn until_deleted(session: &Session, path: &str) -> Result<bool> {
    // Ephemeral znodes have no children, so this watch reports only the deletion.
    match session.nonblocking().children_and_watch(path).await {
        Ok((_, watch)) => {
            watch.next().await;
            Ok(true)
        }
        Err(Error::NoNode { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// This session's contender. Dropping it before it holds deletes its znode.
pub(super) struct Contender {
    session: Session,
    creating: Option<Pending<Created>>,
    /// Its znode, and the write that created it.
    created: Option<(String, Zxid)>,
    joined_at: u64,
    /// A znode to delete together with its own when it gives up: see [`Contender::mark`].
    mark: Option<String>,
    /// A watch of its own znode, set if it has to wait.
    watch: OnceCell<Watch>,
}

impl Contender {
    /// Watches its own znode, if not done yet. The znode has no children, so the watch fires only
    /// when it is deleted.
    async fn watch(&self) -> Result<()> {
        if self.watch.get().is_none() {
            let (_, watch) = self.session.nonblocking().children_and_watch(self.path()).await?;
            // Nobody else sets it: a contender waits once at a time.
            let _ = self.watch.set(watch);
        }
        Ok(())
    }

    /// Waits for its znode.
    async fn created(&mut self) -> Result<()> {
        if let Some(creating) = &mut self.creating {
            // Polled in place, so that a drop in between finds it.
            let created = creating.await;
            self.creating = None;
            let created = created?;
            self.joined_at = created.stat.ctime;
            self.created = Some((created.path, created.stat.czxid));
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &str {
        self.created.as_ref().map_or("", |(path, _)| path)
    }

    /// The write that created its znode.
    pub(super) fn czxid(&self) -> Zxid {
        self.created.as_ref().map_or(0, |(_, czxid)| *czxid)
    }

    /// Adds the check that its znode exists, and its deletion.
    pub(super) fn leave_in<'a>(&self, multi: Multi<'a>) -> Multi<'a> {
        multi.require(self.path(), Condition::Czxid(self.czxid())).delete(self.path())
    }

    /// Deletes its znode, and waits for that. Not an error if it is already gone.
    pub(super) async fn delete(&self) -> Result<()> {
        match inner(self.leave_in(self.session.multi()).submit().await) {
            Ok(_) | Err(Error::NoNode { .. } | Error::Unmet { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sets the data of its znode.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is gone.
    pub(super) async fn set(&self, data: &[u8]) -> Result<Stat> {
        let path = self.path();
        let multi = self.session.multi().require(path, Condition::Czxid(self.czxid()));
        match inner(multi.set(path, data).submit().await).map_err(gone)?.pop() {
            Some(OpResult::Set(stat)) => Ok(stat),
            // A multi's results have the kinds of its operations.
            other => Err(Error::Stopped { reason: format!("a set gave {other:?}") }),
        }
    }

    /// Sets the data of its znode if it was never set. Not an error if it was.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is gone.
    pub(super) async fn set_first(&self, data: &[u8]) -> Result<()> {
        set_first(&self.session, self.path(), self.czxid(), data).await
    }

    /// Creates a znode that is deleted when this contender gives up or releases, and that stays
    /// when the contender is lost.
    pub(super) async fn mark(&mut self, path: &str, data: &[u8]) -> Result<()> {
        let Some((own_path, czxid)) = &self.created else { return Ok(()) };
        self.mark = Some(path.to_owned());
        let multi = self.session.multi().require(own_path, Condition::Czxid(*czxid));
        let marked = multi.create(path, data, CreateMode::Persistent).submit();
        inner(marked.await).map(drop).map_err(gone)
    }

    /// When it joined, by the cluster's clock.
    pub(super) fn joined_at(&self) -> u64 {
        self.joined_at
    }

    /// Its znode is already gone: there is nothing to give up.
    pub(super) fn forget(mut self) {
        self.created = None;
    }

    /// Its turn has come: takes the hold. From here on, a loss is reported.
    pub(super) async fn hold(mut self) -> Result<Hold> {
        let path = self.path().to_owned();
        let calls = self.session.nonblocking();
        let there = match self.watch.get() {
            Some(_) if self.session.has_replica() => self.session.exists(&path)?,
            Some(_) => calls.exists(&path).await?,
            None => {
                // Requested together. If the znode is already gone, the first fails.
                let (watching, there) = (calls.children_and_watch(&path), calls.exists(&path));
                let _ = self.watch.set(watching.await?.1);
                there.await?
            }
        };
        // Another znode may have taken its place.
        if there.map(|stat| stat.czxid) != Some(self.czxid()) {
            return Err(Error::NoNode { path });
        }
        // After a slow opening, a session is open before it is known to be alive. A guard that is
        // not held yet would look like one that was lost.
        while !self.session.is_alive() {
            self.session.nonblocking().sync().await?;
        }
        let Some(watch) = self.watch.take() else {
            return Err(Error::NoNode { path });
        };
        let Some((_, czxid)) = self.created.take() else {
            return Err(Error::NoNode { path });
        };
        Ok(Hold {
            session: self.session.clone(),
            token: if planted(Bug::TokenFixed) { 1 } else { czxid },
            czxid,
            path,
            mark: self.mark.take(),
            watch,
            released: AtomicBool::new(false),
        })
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Some((path, czxid)) = self.created.take() {
            give_up(&self.session, &path, czxid, self.mark.as_deref());
        }
        if let Some(creating) = self.creating.take() {
            // Its number is not known yet.
            discard_when_created(&self.session, creating);
        }
    }
}

async fn set_first(session: &Session, path: &str, czxid: Zxid, data: &[u8]) -> Result<()> {
    let multi = session.multi().require(path, Condition::Czxid(czxid)).set_if(path, data, 0);
    match inner(multi.submit().await) {
        Ok(_) | Err(Error::BadVersion { .. }) => Ok(()),
        Err(error) => Err(gone(error)),
    }
}

/// Deletes a contender's znode and its mark, without waiting for the answer.
fn give_up(session: &Session, path: &str, czxid: Zxid, mark: Option<&str>) {
    if let Some(mark) = mark {
        // Only together: the mark of a lost contender stays.
        session.discard_with(path, czxid, mark);
    }
    // Needed if somebody else has deleted the mark.
    session.discarding()(session.root.full(path).into_owned(), czxid);
}

/// Another znode at the contender's path means that the contender is gone.
fn gone(error: Error) -> Error {
    match error {
        Error::Unmet { path, .. } => Error::NoNode { path },
        error => error,
    }
}

/// What a contender holds while its znode exists and its session is alive. Dropping it releases the
/// hold, without waiting for the answer.
pub(super) struct Hold {
    session: Session,
    path: String,
    /// Reported as the fencing token.
    token: u64,
    /// The write that created its znode.
    czxid: Zxid,
    /// A znode to delete together with its own on release.
    mark: Option<String>,
    watch: Watch,
    released: AtomicBool,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("path", &self.path)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Hold {
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The zxid that created the contender's first znode.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is certainly held at this moment. Once false, it stays false.
    pub(super) fn is_held(&self) -> bool {
        let released = self.released.load(Ordering::Acquire);
        !released && self.session.is_alive() && self.loss().is_none()
    }

    /// A channel that shows the loss, by a message or its end.
    pub(super) fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until it is lost.
    pub(super) fn wait_lost(&self) -> LockLost {
        blocking::until_lost(&self.session, self.lost_async())
    }

    /// Waits until it is lost, that is, until [`Hold::is_held`] is false. Notices that at the
    /// latest when polled after it.
    pub(super) async fn lost_async(&self) -> LockLost {
        owned_ephemeral::until_lost(&self.session, &self.watch, || self.loss()).await
    }

    /// As [`Contender::set_first`].
    pub(super) async fn set_first(&self, data: &[u8]) -> Result<()> {
        set_first(&self.session, &self.path, self.czxid, data).await
    }

    pub(super) fn loss(&self) -> Option<LockLost> {
        if self.session.is_over() {
            return Some(LockLost::SessionOver);
        }
        if let Some(deletion) = self.watch.deletion() {
            return deletion.load(Ordering::Acquire).then_some(LockLost::Deleted);
        }
        let tree = self.session.shared().tree();
        let path = self.session.root.full(&self.path);
        let ours = tree.get(&path).map(|znode| znode.stat().czxid);
        (ours != Some(self.czxid)).then_some(LockLost::Deleted)
    }

    /// The condition that it is still held.
    pub(super) fn fence(&self) -> Fence {
        Fence::of(&self.session, &self.path, self.czxid)
    }

    /// Replaces its contender by one of another kind, in one write, so that nobody comes in
    /// between. The token stays the same. If this fails, or its future is dropped, the hold is
    /// released.
    pub(super) async fn change(self, kind: &str) -> Result<Hold> {
        let lost = || Error::NoNode { path: self.path.clone() };
        let (parent, _) = self.path.rsplit_once('/').ok_or_else(lost)?;
        let (_, number) = self.path.rsplit_once('-').ok_or_else(lost)?;
        let path = format!("{parent}/{}{number}", name(kind, entropy::number()?));
        let mode = if planted(Bug::DowngradeLetsGo) {
            CreateMode::EphemeralSequential
        } else {
            CreateMode::Ephemeral
        };
        let multi = self.session.multi().require(&self.path, Condition::Czxid(self.czxid));
        let changing = multi.delete(&self.path).create(&path, b"", mode).submit();
        // If this ends early, both znodes are deleted.
        let created = CreatingMulti::new(&self.session, changing).created().await.map_err(gone)?;
        self.released.store(true, Ordering::Release);
        let contender = Contender {
            session: self.session.clone(),
            creating: None,
            created: Some((created.path().to_owned(), created.czxid())),
            joined_at: 0,
            mark: None,
            watch: OnceCell::new(),
        };
        created.forget();
        let mut held = contender.hold().await?;
        held.token = self.token;
        Ok(held)
    }

    /// Releases the hold, without waiting for the answer.
    pub(super) fn discard(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            give_up(&self.session, &self.path, self.czxid, self.mark.as_deref());
        }
    }

    /// Releases the hold and waits for that. Not an error if it was already lost.
    pub(super) fn release(self) -> Result<()> {
        self.released.store(true, Ordering::Release);
        if let Some(mark) = &self.mark {
            self.session.discard_with(&self.path, self.czxid, mark);
        }
        // This comes after the former: when it is answered, both are done.
        match self.session.discard(&self.path, self.czxid) {
            Err(Error::NoNode { .. } | Error::Unmet { .. }) => Ok(()),
            Err(error) if error.is_session_lost() => Ok(()),
            other => other,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.discard();
    }
}
