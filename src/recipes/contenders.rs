//! Lines of contenders, which locks, elections and the like are made of.
//!
//! Each contender is an ephemeral sequential znode below one path. Their
//! numbers give the order in which they came, and what that means is the
//! recipe's: who is first holds a lock. Whoever waits watches the one contender
//! that stands in its way and nobody else, so that a release wakes one.
//!
//! A contender's name is `<kind>-<random>-<number>`. The number alone would not
//! be its own: it is the parent's next, and those start from 0 again when the parent
//! is deleted and made again. By its random part, no later contender gets the
//! same path. (To find its own znode again after a lost answer, which is what
//! Curator has such a part for, no contender needs it: a create is executed once,
//! whatever happens on its way.)
//!
//! Another session may still put a znode of its own at that path, by
//! [`Session::take_over`] or by a delete and a create. So a contender is known by
//! its path and the zxid that created it, and whatever it does with its znode it
//! does only while that is the same.
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
    /// Which of the line's kinds it is of.
    pub(super) kind: &'static str,
    /// It outgrows its ten digits, so that the longer one is the larger.
    number: (usize, String),
}

/// A contender's name before it has its number.
fn name(kind: &str, random: u64) -> String {
    format!("{kind}-{random:016x}-")
}

impl Contenders {
    /// The line at this path, of contenders of these kinds.
    pub(super) fn new(
        session: &Session,
        path: &str,
        kinds: &'static [&'static str],
    ) -> Result<Contenders> {
        path::validate(path)?;
        for kind in kinds {
            // Their znodes have longer paths; an error names the one that the caller knows.
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

    /// Joins the line, at its end. The kind may have something of the contender's own behind it,
    /// which its name then tells to all.
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

    /// All contenders in their order, as of the session's earlier calls.
    pub(super) async fn list(&self) -> Result<Vec<ListedContender>> {
        match self.session.nonblocking().children(&self.path).await {
            Ok(children) => Ok(self.sorted(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// All contenders in their order, as this replica has them now.
    pub(super) fn list_now(&self) -> Result<Vec<ListedContender>> {
        match self.session.children(&self.path) {
            Ok(children) => Ok(self.sorted(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// All contenders in their order and whose they are, as this replica has them now.
    pub(super) fn list_with_sessions_now(&self) -> Result<Vec<LockContender>> {
        self.list_with_sessions_in(&self.session.snapshot_of(&self.path)?)
    }

    /// The same without blocking the thread.
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

    /// All contenders in their order, as a snapshot has them.
    pub(super) fn list_in(&self, snapshot: &Snapshot) -> Result<Vec<ListedContender>> {
        match snapshot.children(&self.path) {
            Ok(children) => Ok(self.sorted(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a contender among the children.
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

    /// The contenders among the children.
    pub(super) fn sorted(&self, children: Vec<String>) -> Vec<ListedContender> {
        let mut listed: Vec<ListedContender> =
            children.iter().filter_map(|name| self.parse(name)).collect();
        listed.sort_by(|one, other| one.number.cmp(&other.number));
        listed
    }

    /// Waits until `in_the_way` finds nobody: it is given the contenders in their order and this
    /// one's place among them, and names the one to wait for.
    ///
    /// # Errors
    /// [`Error::NoNode`] if somebody has deleted the contender's znode.
    pub(super) async fn wait(
        &self,
        contender: &Contender,
        blocked_by: impl Fn(&[ListedContender], usize) -> Option<usize>,
    ) -> Result<()> {
        while let Some(before) = self.blocker(contender, &blocked_by).await? {
            // Now, and not when it is its turn: whoever has released waits for nobody then.
            contender.watch().await?;
            if until_deleted(&self.session, &before).await? && planted(Bug::PredecessorMissed) {
                return Ok(());
            }
            // It may have gone before its turn: look again.
        }
        Ok(())
    }

    /// Joins the line and waits until nobody is in the way.
    pub(super) async fn acquire(
        &self,
        kind: &str,
        blocked_by: impl Fn(&[ListedContender], usize) -> Option<usize>,
    ) -> Result<Hold> {
        let contender = self.join(kind, b"").await?;
        self.wait(&contender, blocked_by).await?;
        contender.hold().await
    }

    /// The same, if nobody is in the way.
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

    /// Who is in the way now, if anybody.
    pub(super) async fn blocker(
        &self,
        contender: &Contender,
        blocked_by: impl Fn(&[ListedContender], usize) -> Option<usize>,
    ) -> Result<Option<String>> {
        // A replica has shown what its session did before it answered.
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

/// Waits until a contender is gone, or this session is over. Whether it was there.
async fn until_deleted(session: &Session, path: &str) -> Result<bool> {
    // No ephemeral znode has children: this watch tells of its deletion, and of nothing else.
    match session.nonblocking().children_and_watch(path).await {
        Ok((_, watch)) => {
            watch.next().await;
            Ok(true)
        }
        Err(Error::NoNode { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A place in the line. Dropped before it is held, it is given up.
pub(super) struct Contender {
    session: Session,
    creating: Option<Pending<Created>>,
    /// Its znode, and the write that created it.
    created: Option<(String, Zxid)>,
    joined_at: u64,
    /// A znode that goes with it when it is given up.
    mark: Option<String>,
    /// Of its own znode, if it has had to wait.
    watch: OnceCell<Watch>,
}

impl Contender {
    /// Watches its own znode, unless it does. That has no children: the watch fires when it is deleted,
    /// and for nothing else.
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

    /// Adds the check that its znode is there, and its deletion.
    pub(super) fn leave_in<'a>(&self, multi: Multi<'a>) -> Multi<'a> {
        multi.require(self.path(), Condition::Czxid(self.czxid())).delete(self.path())
    }

    /// Deletes its znode, and waits until that is done. That it is gone already is no error.
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
            // A multi has a result of each operation's kind.
            other => Err(Error::Stopped { reason: format!("a set gave {other:?}") }),
        }
    }

    /// Sets the data of its znode if it was never set. That it is set already is no error.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is gone.
    pub(super) async fn set_first(&self, data: &[u8]) -> Result<()> {
        set_first(&self.session, self.path(), self.czxid(), data).await
    }

    /// Creates a znode that is there for as long as this contender has not let go of its place; it
    /// stays when the contender is lost.
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

    /// Its znode is gone already: there is nothing to give up.
    pub(super) fn forget(mut self) {
        self.created = None;
    }

    /// What it has waited for is its own: from here on, its loss is told.
    pub(super) async fn hold(mut self) -> Result<Hold> {
        let path = self.path().to_owned();
        let calls = self.session.nonblocking();
        let there = match self.watch.get() {
            Some(_) if self.session.has_replica() => self.session.exists(&path)?,
            Some(_) => calls.exists(&path).await?,
            None => {
                // Asked for together. If it is gone already, the first fails.
                let (watching, there) = (calls.children_and_watch(&path), calls.exists(&path));
                let _ = self.watch.set(watching.await?.1);
                there.await?
            }
        };
        // If another has taken its place, it is not this one's.
        if there.map(|stat| stat.czxid) != Some(self.czxid()) {
            return Err(Error::NoNode { path });
        }
        // A session whose opening took long is open before it is known to be alive. A guard that is
        // not held yet looks like one that is not held any more.
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

/// Deletes a contender's znode and its mark, without waiting for that.
fn give_up(session: &Session, path: &str, czxid: Zxid, mark: Option<&str>) {
    if let Some(mark) = mark {
        // Only together: the mark of a contender that is lost stays.
        session.discard_with(path, czxid, mark);
    }
    // Also if its mark was deleted by somebody else.
    session.discarding()(session.root.full(path).into_owned(), czxid);
}

/// A contender whose znode is another one is gone.
fn gone(error: Error) -> Error {
    match error {
        Error::Unmet { path, .. } => Error::NoNode { path },
        error => error,
    }
}

/// What a contender has, for as long as its znode and its session are there. Dropped, it is let go
/// of, without waiting for that.
pub(super) struct Hold {
    session: Session,
    path: String,
    /// What is told as the fencing token.
    token: u64,
    /// The write that created its znode.
    czxid: Zxid,
    /// A znode that goes with it when it is let go of.
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

    /// The zxid that created the znode of the contender as it joined the line.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is held at this moment, for sure. Once false, it stays so.
    pub(super) fn is_held(&self) -> bool {
        let released = self.released.load(Ordering::Acquire);
        !released && self.session.is_alive() && self.loss().is_none()
    }

    /// Its loss shows here, by a message or the channel's end.
    pub(super) fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until it is lost.
    pub(super) fn wait_lost(&self) -> LockLost {
        blocking::until_lost(&self.session, self.lost_async())
    }

    /// Waits until it is lost: until [`Hold::is_held`] is false, at the latest when this is polled
    /// again after that.
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

    /// That it is still held.
    pub(super) fn fence(&self) -> Fence {
        Fence::of(&self.session, &self.path, self.czxid)
    }

    /// Gives its place to a contender of another kind, in one write, so that nobody comes between.
    /// The token stays. If this fails, or its future is dropped, the place is given up.
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
        // Should this end before it is done, both are deleted.
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

    /// Lets go of it, without waiting for that.
    pub(super) fn discard(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            give_up(&self.session, &self.path, self.czxid, self.mark.as_deref());
        }
    }

    /// Lets go of it and waits until that is done. That it was lost already is no error.
    pub(super) fn release(self) -> Result<()> {
        self.released.store(true, Ordering::Release);
        if let Some(mark) = &self.mark {
            self.session.discard_with(&self.path, self.czxid, mark);
        }
        // Behind the former: when this is answered, both are done.
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
