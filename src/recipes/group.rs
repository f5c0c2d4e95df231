//! ZooKeeper's group membership: a member is an ephemeral znode.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Group Membership; Curator, `GroupMember`.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::nonblocking::{check_create, check_data};
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::creating::CreatingEphemeral;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::parents::Parents;
use crate::recipes::{LockLost, blocking};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::{WatchEvent, WatchMode};
use crate::types::znode::{CreateMode, SessionId, Zxid};

/// The members of a group: whoever has joined and not left, each under a name of its own, with data.
///
/// A member belongs to its session, and is gone when that is over or its [`Membership`] is dropped.
/// A name is one member's at a time: whoever joins under a name that is taken waits until it is
/// free, as after a restart until the former session has expired.
///
/// To join is one write, to leave another; a watch costs the cluster nothing.
///
/// ```
/// use quorate::recipes::Group;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let here = Group::new(&cluster.node(0).session(), "/workers")?;
/// let there = Group::new(&cluster.node(1).session(), "/workers")?;
/// let mut changes = there.watch();
/// assert!(changes.recv()?.is_empty());
///
/// let membership = here.join("host-0", b"10.0.0.1:80")?;
/// assert_eq!(here.members()?.names(), ["host-0"], "who has joined is in its own view");
/// let members = changes.recv()?;
/// assert_eq!(&members.get("host-0").expect("it has joined").data[..], b"10.0.0.1:80");
///
/// membership.update(b"10.0.0.1:81")?;
/// assert_eq!(&changes.recv()?.get("host-0").expect("it is there").data[..], b"10.0.0.1:81");
/// drop(membership);
/// assert!(changes.recv()?.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Group {
    session: Session,
    path: String,
}

/// A member of a [`Group`], as all see it.
///
/// ```
/// use quorate::recipes::Group;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let group = Group::new(&session, "/group")?;
/// let membership = group.join("me", b"1")?;
/// let members = group.members()?;
/// let member = members.get("me").expect("I am in it");
/// assert_eq!((member.session, member.joined), (Some(session.id()), membership.joined()));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Under which name it has joined.
    pub name: String,
    /// Its data.
    pub data: Arc<[u8]>,
    /// The write by which it joined: who leaves and joins again is another member of that name.
    pub joined: Zxid,
    /// The write that last set its data; the one by which it joined at first.
    pub updated: Zxid,
    /// The session that it goes with. (None only if somebody made the znode by hand.)
    pub session: Option<SessionId>,
}

/// All members of a [`Group`] at one moment.
///
/// ```
/// use quorate::recipes::Group;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let group = Group::new(&session, "/group")?;
/// let (_b, _a) = (group.join("b", b"")?, group.join("a", b"")?);
/// let members = group.members()?;
/// assert_eq!((members.len(), members.names()), (2, vec!["a", "b"]));
/// let names: Vec<&str> = members.iter().map(|member| &*member.name).collect();
/// assert_eq!(names, ["a", "b"]);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    members: Vec<Member>,
    zxid: Zxid,
}

impl Members {
    /// The members, sorted by the bytes of their names.
    pub fn iter(&self) -> std::slice::Iter<'_, Member> {
        self.members.iter()
    }

    /// Their names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().map(|member| &*member.name).collect()
    }

    /// The member of this name.
    pub fn get(&self, name: &str) -> Option<&Member> {
        let at = self.members.binary_search_by(|member| (*member.name).cmp(name)).ok()?;
        self.members.get(at)
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The last write that this shows: it is all of the group as that left it.
    pub fn zxid(&self) -> Zxid {
        self.zxid
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = std::slice::Iter<'a, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Group {
    /// The group at this path. Neither asks nor writes anything. The path and its parents are made
    /// when somebody joins and they are missing, as containers.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(session: &Session, path: &str) -> Result<Group> {
        path::validate(path)?;
        Ok(Group { session: session.clone(), path: path.to_owned() })
    }

    /// The group's path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Joins, and blocks until that is done: as long as the name is another's, and the session lives.
    /// Then [`Group::members`] has this member too.
    ///
    /// # Errors
    /// Those of a session that is over; [`Error::InvalidPath`] for a name that is none of a znode's;
    /// otherwise as [`Session::create`], but for [`Error::NodeExists`] and [`Error::Timeout`].
    pub fn join(&self, name: &str, data: impl AsRef<[u8]>) -> Result<Membership> {
        blocking::forever(&self.session, self.join_async(name, data))
    }

    /// The same, at most for `timeout`: `None` if it has not joined by then, and it does not join
    /// any more.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn join_timeout(
        &self,
        name: &str,
        data: impl AsRef<[u8]>,
        timeout: Duration,
    ) -> Result<Option<Membership>> {
        blocking::within(&self.session, timeout, self.join_async(name, data))
    }

    /// Joins if the name is free. Blocks for the request timeout at most.
    ///
    /// # Errors
    /// As [`Group::join`], and [`Error::Timeout`].
    pub fn try_join(&self, name: &str, data: impl AsRef<[u8]>) -> Result<Option<Membership>> {
        let join = async {
            match self.create(name, data.as_ref()).await {
                Ok(membership) => Ok(Some(membership)),
                Err(Error::NodeExists { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        blocking::request(&self.session, "try_join", &self.path, join)
    }

    /// Joins, without blocking the thread. A future that is dropped does not join, and leaves nothing
    /// behind.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub async fn join_async(&self, name: &str, data: impl AsRef<[u8]>) -> Result<Membership> {
        loop {
            match self.create(name, data.as_ref()).await {
                Err(Error::NodeExists { .. }) => {}
                other => return other,
            }
            let taken = path::join(&self.path, name);
            let (exists, watch) = self.session.nonblocking().exists_and_watch(&taken).await?;
            if exists.is_some() {
                // Its data may have changed, or it is gone: try again.
                watch.next().await;
            }
        }
    }

    async fn create(&self, name: &str, data: &[u8]) -> Result<Membership> {
        let path = path::join(&self.path, name);
        if name.contains('/') {
            let reason = "a member's name is one name, without '/'".into();
            return Err(Error::InvalidPath { path, reason });
        }
        check_create(&path, data, CreateMode::Ephemeral)?;
        let mut parents = Parents::of(&self.session, &self.path);
        loop {
            parents.make().await?;
            match CreatingEphemeral::new(&self.session, &path, data).created().await {
                Ok(ephemeral) => {
                    let calls = self.session.nonblocking();
                    // It has no children: the watch fires when it is deleted, and for nothing else.
                    let (_, watch) = calls.children_and_watch(ephemeral.path()).await?;
                    ephemeral.watch_by(&watch).await?;
                    return Ok(Membership { ephemeral, watch });
                }
                Err(Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// All members, as this replica has them at one moment. Does not block on a member; a client waits
    /// for the answer of its member. After [`Session::sync`] it is up to date.
    ///
    /// # Errors
    /// Those of a session that is over; [`Error::NoAuth`].
    pub fn members(&self) -> Result<Members> {
        self.members_in(&self.session.snapshot_of(&self.path)?)
    }

    /// As [`Group::members`], without blocking the thread.
    pub async fn members_async(&self) -> Result<Members> {
        self.members_in(&self.session.snapshot_soon(&self.path).await?)
    }

    fn members_in(&self, snapshot: &Snapshot) -> Result<Members> {
        let zxid = snapshot.zxid();
        let names = match snapshot.children(&self.path) {
            Ok(names) => names,
            Err(Error::NoNode { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let member = |name: String| {
            let (data, stat) = snapshot.get(&path::join(&self.path, &name))?;
            let (joined, updated) = (stat.czxid, stat.mzxid);
            Ok(Member { name, data, joined, updated, session: stat.ephemeral_owner })
        };
        let members = names.into_iter().map(member).collect::<Result<Vec<Member>>>()?;
        Ok(Members { members, zxid })
    }

    /// All members, told now and whenever they or their data have changed. Neither asks nor blocks
    /// yet.
    pub fn watch(&self) -> MemberChanges {
        MemberChanges { group: self.clone(), watch: None, reported: None }
    }
}

/// The members of a group, change by change: see [`Group::watch`].
///
/// Each value is the whole group at one zxid, the latest at the moment in which it is told, and
/// differs from the one before it: a member has come, gone, come anew or set its data. The latest
/// state is always told, to a slow reader too; what came and went between two looks is left out, so
/// that nothing is kept for it. It needs no quorum, writes nothing, and keeps its session.
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::Group;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let group = Group::new(&session, "/group")?;
/// let mut changes = group.watch();
/// assert!(changes.recv()?.is_empty());
/// let _one = group.join("one", b"")?;
/// drop(group.join("two", b"")?);
/// let _three = group.join("three", b"")?;
/// assert_eq!(changes.recv()?.names(), ["one", "three"]);
/// assert!(changes.recv_timeout(Duration::from_millis(1))?.is_none(), "nothing has changed");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct MemberChanges {
    group: Group,
    watch: Option<Watch>,
    reported: Option<Vec<Member>>,
}

impl MemberChanges {
    /// Blocks until the members are others than were told last.
    ///
    /// # Errors
    /// Those of a session that is over; [`Error::NoAuth`].
    pub fn recv(&mut self) -> Result<Members> {
        let session = self.group.session.clone();
        blocking::forever(&session, self.next())
    }

    /// The same, at most for `timeout`; `None` if nothing has changed by then.
    ///
    /// # Errors
    /// As [`MemberChanges::recv`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Members>> {
        let session = self.group.session.clone();
        blocking::within(&session, timeout, self.next())
    }

    /// The members, if they are others than were told last. Does not block.
    ///
    /// # Errors
    /// As [`MemberChanges::recv`].
    pub fn try_recv(&mut self) -> Result<Option<Members>> {
        Ok(report(self.group.members()?, &mut self.reported))
    }

    /// A watch whose channel says when to look: for `select!` beside other channels. After a
    /// message from it, and once at first, take what [`MemberChanges::try_recv`] gives until that
    /// is nothing; nothing is lost with what is taken from the channel. It closes when the session
    /// is over, which `try_recv` then tells. Blocks as [`Session::watch`].
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn signal(&self) -> Result<Watch> {
        self.group.session.watch(&self.group.path, WatchMode::PersistentRecursive)
    }

    /// Waits for the same without blocking the thread. A future that is dropped has told nothing: the
    /// next one tells it.
    ///
    /// # Errors
    /// As [`MemberChanges::recv`].
    pub async fn next(&mut self) -> Result<Members> {
        let Group { session, path, .. } = &self.group;
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none => {
                let mode = WatchMode::PersistentRecursive;
                none.insert(session.nonblocking().watch(path, mode).await?)
            }
        };
        loop {
            // Whatever they tell, a gap or a snapshot's changes too, shows in what is read next.
            while watch.events().try_recv().is_ok() {}
            let now = self.group.members_async().await?;
            if let Some(now) = report(now, &mut self.reported) {
                return Ok(now);
            }
            if watch.next().await.is_none() {
                // Of a session that is over this is an error; of one that is not, a new watch.
                self.group.session.check_alive()?;
                let mode = WatchMode::PersistentRecursive;
                *watch = session.nonblocking().watch(path, mode).await?;
            }
        }
    }
}

/// The members, if they are others than were told last.
fn report(mut now: Members, reported: &mut Option<Vec<Member>>) -> Option<Members> {
    if let (true, Some(reported)) = (planted(Bug::GoneMemberShown), &reported) {
        let gone = reported.iter().find(|member| now.get(&member.name).is_none());
        now.members.extend(gone.cloned());
    }
    if reported.as_ref() == Some(&now.members) {
        return None;
    }
    *reported = Some(now.members.clone());
    Some(now)
}

/// A place in a [`Group`]. Dropping it leaves, without waiting for that.
///
/// ```
/// use quorate::recipes::Group;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let group = Group::new(&cluster.node(0).session(), "/group")?;
/// let membership = group.join("me", b"busy")?;
/// membership.update(b"idle")?;
/// assert!(membership.is_member());
/// assert!(group.try_join("me", b"")?.is_none(), "the name is taken");
/// membership.leave()?;
/// assert!(group.members()?.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Membership {
    ephemeral: OwnedEphemeral,
    watch: Watch,
}

impl Membership {
    /// The path of its znode.
    pub fn path(&self) -> &str {
        self.ephemeral.path()
    }

    /// Under which name it has joined.
    pub fn name(&self) -> &str {
        path::name(self.ephemeral.path())
    }

    /// The write by which it joined.
    pub fn joined(&self) -> Zxid {
        self.ephemeral.czxid()
    }

    /// Whether it is a member at this moment: its session is surely alive, and this replica knows of
    /// no deletion of its znode. Does not block. Once false, it stays so: join again, with a new
    /// session if that one is over.
    pub fn is_member(&self) -> bool {
        self.ephemeral.exists()
    }

    /// A channel on which the loss shows: it gets a message, or closes. For `select!`;
    /// [`Membership::is_member`] then tells the truth.
    pub fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Blocks until it is lost.
    pub fn wait_lost(&self) -> LockLost {
        blocking::until_lost(self.ephemeral.session(), self.lost_async())
    }

    /// Waits until it is lost, without blocking the thread. Any number of tasks may wait.
    pub async fn lost_async(&self) -> LockLost {
        self.ephemeral.lost_async(&self.watch).await
    }

    /// Replaces its data. Blocks as [`Session::create`].
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is a member no longer; otherwise as [`Session::set`].
    pub fn update(&self, data: impl AsRef<[u8]>) -> Result<()> {
        let update = self.update_async(data);
        blocking::request(self.ephemeral.session(), "update", self.ephemeral.path(), update)
    }

    /// Replaces its data, without blocking the thread.
    ///
    /// # Errors
    /// As [`Membership::update`], but for [`Error::Timeout`].
    pub async fn update_async(&self, data: impl AsRef<[u8]>) -> Result<()> {
        check_data(self.ephemeral.path(), data.as_ref().len())?;
        self.ephemeral.set(data.as_ref()).await.map(drop)
    }

    /// Leaves, and waits until that is done.
    ///
    /// # Errors
    /// [`Error::Timeout`], after which it goes on; [`Error::System`]. That it is no member any more
    /// is no error.
    pub fn leave(self) -> Result<()> {
        let (session, path) = (self.ephemeral.session().clone(), self.ephemeral.path().to_owned());
        blocking::request(&session, "leave", &path, self.ephemeral.give_up())
    }
}
