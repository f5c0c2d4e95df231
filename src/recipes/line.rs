//! Lines of contenders, which locks, elections and the like are made of.
//!
//! Each contender is an ephemeral sequential znode below one path. Their
//! numbers give the order in which they came, and what that means is the
//! recipe's: who is first holds a lock. Whoever waits watches the one contender
//! that stands in its way and nobody else, so that a release wakes one.
//!
//! A contender's name is `<kind>-<random>-<number>`. The number alone would not
//! be its own: it is the parent's next, and those begin anew when the parent is
//! deleted and made again. A former contender that lets go of its place, or
//! looks whether it still has it, would then meet the znode of a later one. By
//! its random part, a path is one contender's for ever. (To find its own znode
//! again after a lost answer, which is what Curator has such a part for, no
//! contender needs it: a create is executed once, whatever happens on its way.)
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Locks; Curator, `InterProcessMutex`.

use std::fmt;

use crossbeam_channel::Receiver;

use crate::error::{Error, Result};
use crate::machine::command::Reply;
use crate::node::io::Answer;
use crate::path;
use crate::pending::Pending;
use crate::planted::{Bug, planted};
use crate::recipes::LockLost;
use crate::runtime::entropy;
use crate::session::Session;
use crate::watch::{EventKind, Watch, WatchEvent, WatchMode};
use crate::znode::{CreateMode, Created};

/// The contenders of one path.
#[derive(Clone, Debug)]
pub(super) struct Line {
    session: Session,
    path: String,
    kinds: &'static [&'static str],
}

/// A contender as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
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

impl Line {
    /// The line at this path, of contenders of these kinds.
    pub(super) fn new(
        session: &Session,
        path: &str,
        kinds: &'static [&'static str],
    ) -> Result<Line> {
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
        Ok(Line { session: session.clone(), path: path.to_owned(), kinds })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Joins the line, at its end.
    pub(super) async fn join(&self, kind: &str, data: &[u8]) -> Result<Contender> {
        loop {
            let name = path::join(&self.path, &name(kind, entropy::number()?));
            let mode = CreateMode::EphemeralSequential;
            let mut contender = Contender {
                session: self.session.clone(),
                creating: Some(self.session.nonblocking().create(&name, data, mode)),
                created: None,
            };
            match contender.created().await {
                Ok(()) => return Ok(contender),
                Err(Error::NoNode { .. }) => create_containers(&self.session, &self.path).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// All contenders in their order, as of the session's earlier calls.
    pub(super) async fn places(&self) -> Result<Vec<Place>> {
        match self.session.nonblocking().children(&self.path).await {
            Ok(children) => Ok(self.in_order(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// All contenders in their order, as this replica has them now.
    pub(super) fn places_now(&self) -> Result<Vec<Place>> {
        match self.session.children(&self.path) {
            Ok(children) => Ok(self.in_order(children)),
            Err(Error::NoNode { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn place(&self, name: &str) -> Option<Place> {
        let kind = self
            .kinds
            .iter()
            .find(|kind| name.strip_prefix(**kind).is_some_and(|rest| rest.starts_with('-')))?;
        let number = name.rsplit('-').next()?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| Place {
            path: path::join(&self.path, name),
            kind,
            number: (number.len(), number.to_owned()),
        })
    }

    /// The contenders among the children.
    pub(super) fn in_order(&self, children: Vec<String>) -> Vec<Place> {
        let mut places: Vec<Place> = children.iter().filter_map(|name| self.place(name)).collect();
        places.sort_by(|one, other| one.number.cmp(&other.number));
        places
    }

    /// Waits until `in_the_way` finds nobody: it is given the contenders in their order and this
    /// one's place among them, and names the one to wait for.
    ///
    /// # Errors
    /// [`Error::NoNode`] if somebody has deleted the contender's znode.
    pub(super) async fn wait(
        &self,
        contender: &Contender,
        in_the_way: impl Fn(&[Place], usize) -> Option<usize>,
    ) -> Result<()> {
        while let Some(before) = self.before(contender, &in_the_way).await? {
            let (exists, watch) = self.session.nonblocking().exists_and_watch(&before).await?;
            if exists.is_some() {
                // Whatever happened to it, or to this session: look again.
                watch.next().await;
            }
        }
        Ok(())
    }

    /// Who is in the way now, if anybody.
    pub(super) async fn before(
        &self,
        contender: &Contender,
        in_the_way: impl Fn(&[Place], usize) -> Option<usize>,
    ) -> Result<Option<String>> {
        let places = self.places().await?;
        let own = contender.path();
        match places.iter().position(|place| place.path == own) {
            Some(1) if planted(Bug::LockEarly) => Ok(None),
            Some(at) => Ok(in_the_way(&places, at).map(|before| places[before].path.clone())),
            None => Err(Error::NoNode { path: own.to_owned() }),
        }
    }
}

/// Makes a path's znode and those above it that are missing, as containers.
pub(super) async fn create_containers(session: &Session, path: &str) -> Result<()> {
    let ends = path.match_indices('/').skip(1).map(|(end, _)| end);
    for end in ends.chain([path.len()]) {
        match session.nonblocking().create(&path[..end], b"", CreateMode::Container).await {
            Ok(_) | Err(Error::NodeExists { .. }) => {}
            // The one before it was not used any more, and has just gone.
            Err(Error::NoNode { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A place in the line. Dropped before it is held, it is given up.
pub(super) struct Contender {
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

    pub(super) fn path(&self) -> &str {
        self.created.as_ref().map_or("", |created| &created.path)
    }

    /// When it joined, by the cluster's clock.
    pub(super) fn joined_at(&self) -> u64 {
        self.created.as_ref().map_or(0, |created| created.stat.ctime)
    }

    /// Its znode is gone already: there is nothing to give up.
    pub(super) fn forget(mut self) {
        self.created = None;
    }

    /// What it has waited for is its own: from here on, its loss is told.
    pub(super) async fn hold(mut self) -> Result<Held> {
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
        Ok(Held {
            session: self.session.clone(),
            token: if planted(Bug::TokenFixed) { 1 } else { created.stat.czxid },
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

/// What a contender has, for as long as its znode and its session are there. Dropped, it is let go
/// of, without waiting for that.
pub(super) struct Held {
    session: Session,
    path: String,
    token: u64,
    watch: Watch,
    released: bool,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("path", &self.path)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Held {
    /// The zxid that created the contender's znode.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is held at this moment, for sure. Once false, it stays so.
    pub(super) fn is_held(&self) -> bool {
        self.session.is_alive() && self.how_lost().is_none()
    }

    /// Its loss shows here, by a message or the channel's end.
    pub(super) fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until it is lost.
    pub(super) fn wait_lost(&self) -> LockLost {
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

    pub(super) fn how_lost(&self) -> Option<LockLost> {
        if self.session.state().is_final() {
            return Some(LockLost::SessionOver);
        }
        let tree = self.session.shared().tree();
        let path = self.session.root.full(&self.path);
        let ours = tree.get(&path).map(|znode| znode.stat().czxid);
        (ours != Some(self.token)).then_some(LockLost::Deleted)
    }

    /// Lets go of it and waits until that is done. That it was lost already is no error.
    pub(super) fn release(mut self) -> Result<()> {
        self.released = true;
        match self.session.discard(&self.path) {
            Err(Error::NoNode { .. }) => Ok(()),
            Err(error) if error.is_session_lost() => Ok(()),
            other => other,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.released {
            let path = self.session.root.full(&self.path).into_owned();
            self.session.discarding()(path);
        }
    }
}
