//! Partitions: work that is shared out over the live instances, each part of it owned by one.
//!
//! | znode | holds |
//! | --- | --- |
//! | `<path>` | the settings that all agree on, persistent |
//! | `<path>/members` | a [`Group`]: an ephemeral for each member, with its weight and zone |
//! | `<path>/plan` | which member each partition is planned for, in one value |
//! | `<path>/owners/<partition>` | the ephemeral of its owner, whose data is the owner's name |
//! | `<path>/positions/<partition>` | where its work stands, persistent, once somebody has written that |
//!
//! Who owns a partition is decided by its owner's znode alone, which only one session can create. The plan says who is
//! to create it. The oldest member that goes on makes the plan: it replaces the value on the condition that neither the
//! value nor the list of members has changed since it read them, so a second planner is harmless. So are others in its
//! place, when it does not go on.
//!
//! A member creates the znodes of the partitions that are planned for it and that nobody owns, in writes of many
//! operations. Their condition is that the plan is still the one that it has read. So a partition gets an owner that is
//! not the planned one only when the plan changes, and the planner, which counts those, keeps to the bound of moves. The
//! other condition is that nobody has marked the member as silent: that mark and the end of its claims are one write.
//!
//! `plan` has the function that makes plans, `settings` the partitions' names, `share` a member's calls, `driver` what it
//! does in turn, `upkeep` what it does for others, `silence` what happens when it does nothing, `holdings` what it has,
//! `partition` the guard, and `status` what operators see.
//!
//! Sources: Apache Helix (Gopalakrishna et al., "Untangling Cluster Management with Helix", SoCC 2012); Kafka's consumer
//! groups, cooperative rebalancing (KIP-429); Adya et al., "Slicer: Auto-Sharding for Datacenter Applications", OSDI 2016.

mod driver;
mod holdings;
mod member;
mod partition;
mod plan;
mod settings;
mod share;
mod silence;
mod status;
mod table;
mod upkeep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use self::member::PartitionMember;
use self::member::StoredMember;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use self::member::is_silent;
pub use self::partition::Partition;
pub use self::plan::PartitionPlan;
#[cfg(any(test, fuzzing))]
pub(super) use self::plan::fuzz;
use self::settings::Settings;
pub use self::share::Share;
pub use self::status::{
    PartitionMemberStatus, PartitionStatus, PartitionsStatus, partitions_status,
};
pub(super) use self::table::{is_root, tables};
use crate::api::session::Session;
use crate::recipes::errors::{if_exists, inner, is_root_missing};
use crate::recipes::parents::Parents;
use crate::recipes::{Group, Member};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::CreateMode;

const MEMBERS: &str = "members";
const PLAN: &str = "plan";
const OWNERS: &str = "owners";
const POSITIONS: &str = "positions";
/// How many partitions may move at a time, by default.
const MOVES_MAX: usize = 100;
/// How long an owner may take to hand over, by default.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// How long a share may be in none of its calls, by default.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// By when a member that goes on has done what it has to do.
const TURN: Duration = Duration::from_secs(5);

/// Work in partitions, shared out over the live members of a group: each partition has one owner, and members have
/// as many as their weight says.
///
/// The partitions are numbered ([`Partitions::new`]) or have names ([`Partitions::named`]). Who wants some of them joins,
/// and takes one after the other from its [`Share`]. Each is a [`Partition`]: a guard with a fencing token, that tells
/// when the partition is planned for another member, and stores the position of the work.
///
/// **When members come and go**, as few partitions move as balance allows, at most [`Partitions::with_moves_max`] of
/// them at a time. The owner of a partition that is to move is asked, finishes what it does, and
/// [hands over](Partition::hand_over) its position and the partition in one write. If it takes longer than its
/// [drain limit](Partitions::with_drain_limit), it loses the partition, as it does at once with its session.
///
/// **A member that hangs** stops nobody: if it is in no call of its share for 30 s
/// ([`Partitions::with_max_silence`]), it owns nothing. What it has to do for others, others do a few seconds later. So
/// every partition has an owner again 30 s and three writes after the last member has died or begun to hang, at the
/// latest, while one goes on.
///
/// **The settings** are stored in the cluster at the first use. Whoever comes with other ones is refused.
///
/// ```
/// use quorate::recipes::Partitions;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let partitions = Partitions::new(&cluster.node(0).session(), "/mails", 1)?;
/// let mut share = partitions.join("host-0").wait()?;
/// let partition = share.take().wait()?;
/// assert_eq!((partition.name(), partition.position()), ("0", None));
/// partition.commit("up to 17").wait()?;
/// assert_eq!(partitions.owner_of("customer-1").wait()?.as_deref(), Some("host-0"));
/// partition.hand_over("up to 18").wait()?;
///
/// // It is still planned for this member, the only one.
/// assert_eq!(share.take().wait()?.position(), Some(&b"up to 18"[..]));
/// share.leave().wait()?;
/// assert_eq!(partitions.owner_of("customer-1").wait()?, None);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Partitions {
    session: Session,
    path: String,
    settings: Arc<Settings>,
    drain_limit: Duration,
    max_silence: Option<Duration>,
    grace: Duration,
    /// [`TURN`], or less in simulated worlds, which are short.
    turn: Duration,
    group: Group,
}

impl Partitions {
    /// Returns `partitions` partitions with the numbers from 0 on. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if there are none, or more than 100,000.
    pub fn new(session: &Session, path: &str, partitions: usize) -> Result<Partitions> {
        Partitions::of(session, path, Settings::numbered(partitions, MOVES_MAX)?)
    }

    /// Returns partitions with these names, in any order, each once. They are numbered in the order of their bytes. Sends
    /// nothing.
    ///
    /// ```
    /// use quorate::recipes::Partitions;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let tenants = Partitions::named(&session, "/tenants", ["blue", "acme"])?;
    /// let mut share = tenants.join("me").wait()?;
    /// let (one, other) = (share.take().wait()?, share.take().wait()?);
    /// assert_eq!((one.name(), other.name()), ("acme", "blue"));
    /// assert_eq!(tenants.owner_of("blue").wait()?.as_deref(), Some("me"));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidPath`], also for a name that is not valid for a znode; [`Error::InvalidSetting`] as for
    /// [`Partitions::new`].
    pub fn named<N: Into<String>>(
        session: &Session,
        path: &str,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Partitions> {
        path::validate(path)?;
        let names = names.into_iter().map(Into::into).collect();
        Partitions::of(session, path, Settings::named(path, names, MOVES_MAX)?)
    }

    fn of(session: &Session, path: &str, settings: Settings) -> Result<Partitions> {
        path::validate(path)?;
        let group = Group::new(session, &path::join(path, MEMBERS))?;
        let (session, path, settings) = (session.for_recipe(), path.to_owned(), Arc::new(settings));
        let (drain_limit, max_silence, turn) = (DRAIN_LIMIT, Some(MAX_SILENCE), TURN);
        let grace = Duration::ZERO;
        Ok(Partitions { session, path, settings, drain_limit, max_silence, grace, turn, group })
    }

    /// The same partitions, of which so many may be moving at a time: owned by a living member while planned for another
    /// one. 100 by default. All must name the same number. The partitions of members that are gone do not count.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for 0.
    pub fn with_moves_max(mut self, moves: usize) -> Result<Partitions> {
        if moves == 0 {
            let reason = "without moves, no partition ever leaves a member".to_owned();
            return Err(Error::InvalidSetting { setting: "moves", reason });
        }
        Arc::make_mut(&mut self.settings).moves_max = moves;
        Ok(self)
    }

    /// The same partitions, with another time for the members that join by this handle: so long may the work on a
    /// partition go on after it was asked to hand over. 30 s by default. After that the guard is given up. If its share is
    /// in no call then, another member ends its claims, at most 10 s later, and 5 s more for each older member that does
    /// not go on either.
    #[must_use]
    pub fn with_drain_limit(self, limit: Duration) -> Partitions {
        Partitions { drain_limit: limit, ..self }
    }

    /// The same partitions, with another time for the members that join by this handle: so long may a member's
    /// [`Share`] be in none of its calls while its session lives, because its thread does something long, hangs, or waits
    /// for a lock. 30 s by default; `None` for ever.
    ///
    /// After that the member is silent: its guards are no longer held, one write ends its claims and says so
    /// ([`PartitionMember::is_silent`]), and others plan and take its partitions, with the positions that were committed
    /// last. What it commits later is refused, and its fencing tokens are smaller than those of the next owners. Once its
    /// share is in a call again, it gets partitions as one that has just joined.
    ///
    /// The time is measured by the member's own instance, and costs no write. Should be several times as long as what is
    /// done between two calls.
    #[must_use]
    pub fn with_max_silence(self, limit: impl Into<Option<Duration>>) -> Partitions {
        Partitions { max_silence: limit.into(), ..self }
    }

    /// The same partitions, with a grace for members that are started again: so long do a member's partitions wait for it
    /// after its session has ended, without an owner. If it joins again by its name within that time, it gets them at
    /// once, with their positions. Zero by default: others have them at once. [`Share::leave`] hands over without a grace,
    /// and a member whose share is dropped is waited for.
    ///
    /// A restart within the session's timeout needs no grace: see
    /// [the page](crate::guide::recipes::partitions#a-restart). The time is that for which the member who makes the plan has
    /// seen it missing, so give all the same grace.
    ///
    /// Source: Kafka's static membership, KIP-345.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{recipes::Partitions, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let of = |node: usize| -> quorate::Result<Partitions> {
    ///     let partitions = Partitions::new(&cluster.node(node).session(), "/mails", 1)?;
    ///     Ok(partitions.with_grace(Duration::from_secs(120)))
    /// };
    /// let mut here = of(0)?.join("host-0").wait()?;
    /// here.take().wait()?.hand_over("up to 17").wait()?;
    /// let mut there = of(1)?.join("host-1").wait()?;
    /// drop(here);
    /// assert!(there.take().timeout(Duration::from_millis(100)).wait().is_err(), "host-0 may come back");
    /// let mut again = of(2)?.join("host-0").wait()?;
    /// assert_eq!(again.take().wait()?.position(), Some(&b"up to 17"[..]));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Partitions {
        Partitions { grace, ..self }
    }

    #[cfg(any(test, feature = "simulator"))]
    #[must_use]
    pub(crate) fn with_turn(self, turn: Duration) -> Partitions {
        Partitions { turn, ..self }
    }

    fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The number of the partition that a key belongs to: of named partitions, the one of that name, if there is one; of
    /// numbered ones, `xxh3_64(key) % partitions`, by the 64 bits of XXH3 with the seed 0. It never changes.
    ///
    /// ```
    /// use quorate::recipes::Partitions;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// assert_eq!(Partitions::new(&session, "/a", 64)?.number_of("customer-1"), Some(12));
    /// assert_eq!(Partitions::named(&session, "/a", ["eu", "us"])?.number_of("us"), Some(1));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn number_of(&self, key: impl AsRef<[u8]>) -> Option<usize> {
        self.settings.number_of(key.as_ref())
    }

    /// Returns the name of the member that owns a key's partition, as this replica has it; `None` if nobody does.
    /// Sends nothing on an instance with a replica. The owner may have changed already: what must not go wrong
    /// then has to be [fenced](crate::recipes::Held::fenced) by the owner.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::NoAuth`].
    pub fn owner_of<'a>(
        &'a self,
        key: impl AsRef<[u8]> + Send + 'a,
    ) -> Pending<'a, Option<String>> {
        self.session().steps("owner_of", self.path(), self.reading_owner(self.number_of(key)))
    }

    /// Returns the plan, as this replica has it. For most of the time it says who owns what; while partitions move,
    /// it is ahead of that. [`PartitionPlan::next`] tells what it costs that a member comes or goes.
    ///
    /// ```
    /// use quorate::recipes::Partitions;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let partitions = Partitions::new(&session, "/mails", 8)?;
    /// let mut share = partitions.join("a").wait()?;
    /// let _partition = share.take().wait()?;
    /// let (plan, mut members) = (partitions.plan().wait()?, partitions.members().wait()?);
    /// members.push("b".into());
    /// assert_eq!(plan.moves_to(&plan.next(&members, usize::MAX)), 4);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidData`] if the znode has no plan of these partitions; the errors of a session that is over;
    /// [`Error::NoAuth`].
    pub fn plan(&self) -> Pending<'_, PartitionPlan> {
        self.session().steps("plan", self.path(), self.reading_plan())
    }

    /// Returns the members, as this replica has them, sorted by name.
    ///
    /// # Errors
    /// [`Error::InvalidData`] if somebody else has written among them; as [`Group::members`].
    pub fn members(&self) -> Pending<'_, Vec<PartitionMember>> {
        self.session().steps("members", self.path(), self.reading_members())
    }

    /// Joins as a member, and returns its share. Waits until that is done, also while another member has the name,
    /// for as long as the session lives. The first use creates the znodes, and the parents that are missing as
    /// containers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the partitions were created with other settings; otherwise as [`Group::join`].
    pub fn join(&self, member: impl Into<PartitionMember>) -> Pending<'_, Share> {
        self.session().steps("join", self.path(), self.joining(member.into())).unlimited()
    }

    async fn joining(&self, member: PartitionMember) -> Result<Share> {
        self.agree().await?;
        let member = StoredMember { member, drain_limit: self.drain_limit };
        let membership = self.group.join(member.member.name(), member.encoded()).await?;
        Ok(Share::new(self.clone(), membership, member))
    }

    async fn reading_owner(&self, number: Option<usize>) -> Result<Option<String>> {
        let Some(number) = number else { return Ok(None) };
        let owner = if_exists(self.session.get(&self.owner_path(number)).await)?;
        Ok(owner.map(|(name, _)| String::from_utf8_lossy(&name).into_owned()))
    }

    async fn reading_plan(&self) -> Result<PartitionPlan> {
        match if_exists(self.session.get(&self.part(PLAN)).await)? {
            Some((data, _)) => self.parse_plan(&data),
            None => Ok(PartitionPlan::new(self.settings.partitions())),
        }
    }

    fn parse_plan(&self, data: &[u8]) -> Result<PartitionPlan> {
        let plan = PartitionPlan::decoded(data, self.settings.partitions());
        plan.map_err(|reason| Error::InvalidData { path: self.part(PLAN), reason })
    }

    async fn reading_members(&self) -> Result<Vec<PartitionMember>> {
        let stored = self.parse_members(&self.group.members().await?)?;
        Ok(stored.into_iter().map(|stored| stored.member).collect())
    }

    fn parse_members(&self, members: &BTreeMap<String, Member>) -> Result<Vec<StoredMember>> {
        let member = |(name, member): (&String, &Member)| {
            StoredMember::decoded(name, &member.data)
                .map_err(|reason| Error::InvalidData { path: self.member_path(name), reason })
        };
        members.iter().map(member).collect()
    }

    fn part(&self, name: &str) -> String {
        path::join(&self.path, name)
    }

    fn member_path(&self, name: &str) -> String {
        path::join(&self.part(MEMBERS), name)
    }

    fn owner_path(&self, number: usize) -> String {
        path::join(&self.part(OWNERS), &self.settings.name_of(number))
    }

    fn position_path(&self, number: usize) -> String {
        path::join(&self.part(POSITIONS), &self.settings.name_of(number))
    }

    /// Makes sure that the cluster has the znodes, and that its settings are those of this handle.
    async fn agree(&self) -> Result<()> {
        let settings = self.settings.encoded();
        let mut parents = Parents::of(&self.session, path::parent(&self.path).unwrap_or("/"));
        loop {
            let found = if_exists(self.session.in_turn().get(&self.path).await)?;
            let multi = match found {
                Some((data, _)) if *data == *settings.as_bytes() => return Ok(()),
                Some((data, _)) if !data.is_empty() => return Err(self.differs(&data)),
                // Somebody has created it beforehand, for example with an ACL.
                Some((_, stat)) => self.session.multi().set_if(&self.path, &settings, stat.version),
                None => {
                    parents.make().await?;
                    self.session.multi().create(&self.path, &settings, CreateMode::Persistent)
                }
            };
            let parts = [PLAN, OWNERS, POSITIONS].map(|part| self.part(part));
            let multi = (parts.iter())
                .fold(multi, |multi, part| multi.create(part, b"", CreateMode::Persistent));
            match inner(multi.commit().await) {
                Err(Error::NodeExists { path }) if parts.contains(&path) => {
                    let reason = "it is there, and the settings above it are not".to_owned();
                    return Err(Error::InvalidData { path, reason });
                }
                Err(error) if is_root_missing(&error) => return Err(error),
                // A parent is missing, or another write came first: look again.
                Err(Error::NoNode { .. } | Error::NodeExists { .. } | Error::BadVersion { .. })
                | Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn differs(&self, data: &[u8]) -> Error {
        let (expected, path) = (self.settings.summary(), &self.path);
        let actual = settings::summary(&String::from_utf8_lossy(data));
        let reason = format!("{path} was created with {actual}, and not with {expected}");
        Error::InvalidSetting { setting: "partitions", reason }
    }
}
