//! ZooKeeper's group membership: a member is an ephemeral znode.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Group Membership; Curator, `GroupMember`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::ops::{check_create, check_data};
use crate::api::part::Part;
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::errors::children_or_none;
use crate::recipes::former_run::create_or_take_over;
use crate::recipes::held::{Held, guard};
use crate::recipes::parents::create_below;
use crate::recipes::updates::{Source, Step, Updates};
use crate::recipes::waiting::until_changed;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::WatchMode;
use crate::types::znode::{CreateMode, SessionId, Zxid};

/// A group of members, each with a unique name and data, from joining to leaving.
///
/// A member belongs to its session, and is removed when the session is over or its [`Membership`]
/// is dropped. A name has one member at a time: joining under a taken name waits until the name is
/// free. An instance that was started again does not wait for the end of its former session: it takes
/// over the name that its former run has left. (A [client](crate::Builder::client), which is another
/// instance after each start, waits.)
///
/// Joining is one write, and leaving another; a watch costs the cluster nothing.
///
/// ```
/// use quorate::recipes::Group;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let here = Group::new(&cluster.node(0).session(), "/workers")?;
/// let there = Group::new(&cluster.node(1).session(), "/workers")?;
/// let mut changes = there.watch();
/// assert!(changes.recv().wait()?.is_empty());
///
/// let membership = here.join("host-0", b"10.0.0.1:80").wait()?;
/// assert!(here.members().wait()?.contains_key("host-0"), "who has joined is in its own view");
/// let members = changes.recv().wait()?;
/// assert_eq!(&members.get("host-0").expect("it has joined").data[..], b"10.0.0.1:80");
///
/// membership.update(b"10.0.0.1:81").wait()?;
/// assert_eq!(&changes.recv().wait()?.get("host-0").expect("it is there").data[..], b"10.0.0.1:81");
/// drop(membership);
/// assert!(changes.recv().wait()?.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Group {
    session: Session,
    path: String,
}

/// A member of a [`Group`], as everybody sees it, by its name.
///
/// ```
/// use quorate::recipes::Group;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let group = Group::new(&session, "/group")?;
/// let membership = group.join("me", b"1").wait()?;
/// let members = group.members().wait()?;
/// let member = members.get("me").expect("I am in it");
/// assert_eq!((member.session, member.joined), (Some(session.id()), membership.fencing_token()));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its data.
    pub data: Arc<[u8]>,
    /// The zxid of the write by which it joined: the [`Held::fencing_token`] of its membership. A member that leaves
    /// and joins again is another member of the same name.
    pub joined: Zxid,
    /// The zxid of the write that last set its data; at first, of the one by which it joined.
    pub updated: Zxid,
    /// Its session. (`None` only if somebody created the znode by hand.)
    pub session: Option<SessionId>,
}

impl Group {
    /// Returns the group at this path. Sends nothing. The path and its parents are created as
    /// containers when they are missing and somebody joins.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(session: &Session, path: &str) -> Result<Group> {
        path::validate(path)?;
        Ok(Group { session: session.for_recipe(), path: path.to_owned() })
    }

    fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Joins under this name. Waits until that is done, also while another member has the name, for as long as the
    /// session lives. After that, [`Group::members`] shows this member too.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::InvalidPath`] for a name that is not valid
    /// for a znode; otherwise as [`Session::create`], except [`Error::NodeExists`] and
    /// [`Error::Timeout`].
    pub fn join<'a>(
        &'a self,
        name: &'a str,
        data: impl AsRef<[u8]> + Send + 'a,
    ) -> Pending<'a, Membership> {
        self.session().steps("join", self.path(), self.joining(name, data)).unlimited()
    }

    async fn joining(&self, name: &str, data: impl AsRef<[u8]>) -> Result<Membership> {
        loop {
            match self.create(name, data.as_ref()).await {
                Err(Error::NodeExists { .. }) => {}
                other => return other,
            }
            let taken = path::join(&self.path, name);
            // The other member's data may have changed, or it has left: try again.
            until_changed(&self.session, &taken).await?;
        }
    }

    /// Joins if the name is free, and returns `None` otherwise.
    ///
    /// # Errors
    /// As [`Group::join`], and [`Error::Timeout`].
    pub fn try_join<'a>(
        &'a self,
        name: &'a str,
        data: impl AsRef<[u8]> + Send + 'a,
    ) -> Pending<'a, Option<Membership>> {
        self.session().steps("try_join", self.path(), self.trying_to_join(name, data))
    }

    async fn trying_to_join(
        &self,
        name: &str,
        data: impl AsRef<[u8]>,
    ) -> Result<Option<Membership>> {
        match self.create(name, data.as_ref()).await {
            Ok(membership) => Ok(Some(membership)),
            Err(Error::NodeExists { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, name: &str, data: &[u8]) -> Result<Membership> {
        let path = path::join(&self.path, name);
        if name.contains('/') {
            let reason = "a member's name is one name, without '/'".into();
            return Err(Error::InvalidPath { path, reason });
        }
        check_create(&path, data, CreateMode::Ephemeral)?;
        let create = || create_or_take_over(&self.session, &path, data, CreateMode::Ephemeral);
        let ephemeral = create_below(&self.session, &self.path, create).await?;
        Ok(Membership { held: Held::new(ephemeral).await? })
    }

    /// Returns all members by their names, as this replica has them at one moment. After [`Session::sync`] it is current.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::NoAuth`].
    pub fn members(&self) -> Pending<'_, BTreeMap<String, Member>> {
        self.session().steps("members", self.path(), self.reading())
    }

    async fn reading(&self) -> Result<BTreeMap<String, Member>> {
        self.members_in(&self.session.snapshot_of(&self.path).await?)
    }

    pub(super) fn members_in(&self, snapshot: &Snapshot) -> Result<BTreeMap<String, Member>> {
        let names = children_or_none(snapshot.children(&self.path))?;
        let member = |name: String| {
            let (data, stat) = snapshot.get(&path::join(&self.path, &name))?;
            let joined = stat.czxid;
            let updated = stat.mzxid;
            Ok((name, Member { data, joined, updated, session: stat.ephemeral_owner }))
        };
        names.into_iter().map(member).collect()
    }

    /// Follows the members: the result reports the present members, and each change of them or of
    /// their data: a member has joined, left, joined again or set its data. Each value is the whole group at
    /// one zxid. Sends nothing yet, and does not block.
    pub fn watch(&self) -> Updates<BTreeMap<String, Member>> {
        let (group, mode) = (self.clone(), WatchMode::PersistentRecursive);
        Updates::new(&self.session, &self.path, mode, Following { group, reported: None })
    }
}

struct Following {
    group: Group,
    reported: Option<BTreeMap<String, Member>>,
}

impl Source<BTreeMap<String, Member>> for Following {
    fn latest(&mut self) -> Step<'_, Option<BTreeMap<String, Member>>> {
        Box::pin(async { Ok(report(self.group.reading().await?, &mut self.reported)) })
    }
}

/// Returns the members, if they differ from those last reported.
fn report(
    now: BTreeMap<String, Member>,
    reported: &mut Option<BTreeMap<String, Member>>,
) -> Option<BTreeMap<String, Member>> {
    if reported.as_ref() == Some(&now) {
        return None;
    }
    *reported = Some(now.clone());
    Some(now)
}

/// A membership in a [`Group`], which dereferences to [`Held`]. Releasing it leaves the group; so does dropping it,
/// without waiting for the reply.
///
/// ```
/// use quorate::recipes::Group;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let group = Group::new(&cluster.node(0).session(), "/group")?;
/// let membership = group.join("me", b"busy").wait()?;
/// membership.update(b"idle").wait()?;
/// assert!(membership.is_held());
/// assert!(group.try_join("me", b"").wait()?.is_none(), "the name is taken");
/// membership.release().wait()?;
/// assert!(group.members().wait()?.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Membership {
    held: Held,
}

guard!(Membership, held: Held);

impl Membership {
    /// Replaces its data.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is no longer a member; otherwise as [`Session::set`].
    pub fn update<'a>(&'a self, data: impl AsRef<[u8]> + Send + 'a) -> Pending<'a, ()> {
        self.session().steps("update", self.path(), self.updating(data))
    }

    /// [`Membership::update`] as a part of another write, which has no effect once the membership is lost: see
    /// [`Part`].
    pub fn update_part(&self, data: impl AsRef<[u8]>) -> Part {
        Part::of(Ok(self.ephemeral.multi().set(self.path(), data)))
    }

    async fn updating(&self, data: impl AsRef<[u8]>) -> Result<()> {
        let bytes = data.as_ref().len();
        check_data(self.path(), bytes)?;
        self.ephemeral.set(data.as_ref()).await.map(drop)
    }
}
