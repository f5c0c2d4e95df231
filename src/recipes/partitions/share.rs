//! What a member does in turn: it makes the plan if it is the oldest one, asks for what is planned for others, gives up
//! what was asked for too long ago, and takes what is planned for it.
//!
//! All of that is one future, kept from call to call. Whoever waits for a partition polls it, so that a call that ends
//! early loses nothing, and no thread is needed.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::holdings::{Holdings, OwnedPartition};
use super::partition::Partition;
use super::plan::{PartitionMember, PartitionPlan};
use super::{MEMBERS, OWNERS, PLAN, Partitions};
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::blocking::both_forms;
use crate::recipes::errors::{children_or_none, if_exists, inner};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::waiting::next_event;
use crate::recipes::{Held, Membership, reads};
use crate::runtime::either::{Either, either};
use crate::types::error::{Error, Result};
use crate::types::watch::WatchMode;
use crate::types::znode::{Condition, CreateMode, OpResult, Zxid};

/// One write creates at most so many owners.
const CLAIMS_MAX: usize = 200;

/// The share of one member in [`Partitions`]: the partitions that it owns, one after the other as it gets them.
///
/// There is no thread behind it. While a thread or a task is in one of its calls, the member makes plans if that is its
/// part, asks its own [`Partition`]s for what has to move, keeps their drain limits, and takes new ones. So stay in
/// [`Share::take`], and do the work elsewhere: in threads, in tasks, or between calls of
/// [`Share::take_timeout`]. An awaited call that is dropped loses nothing.
///
/// When its session is over, a share ends with the session's error, and so it does if somebody deletes its member's
/// znode. Join again with a new session;
/// [`Coordinator::supervise`](crate::Coordinator::supervise) automates that.
///
/// Dropping it leaves at once: all its partitions are given up, with the positions that were committed last.
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::Partitions;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let partitions = |node: usize| Partitions::new(&cluster.node(node).session(), "/mails", 2);
/// let mut here = partitions(0)?.join("host-0")?;
/// let (first, second) = (here.take()?, here.take()?);
///
/// let mut there = partitions(1)?.join("host-1")?;
/// while !second.is_asked() {
///     assert!(here.take_timeout(Duration::from_millis(10))?.is_none());
/// }
/// second.hand_over("up to 7")?;
/// assert_eq!(there.take()?.position(), Some(&b"up to 7"[..]));
/// assert!(first.is_held() && !first.is_asked());
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Share {
    partitions: Partitions,
    member: PartitionMember,
    holdings: Arc<Holdings>,
    /// `None` before the first call, and after an error.
    driver: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share")
            .field("path", &self.path())
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.driver = None;
        self.holdings.give_up_all();
    }
}

impl Share {
    pub(super) fn new(
        partitions: Partitions,
        membership: Membership,
        member: PartitionMember,
    ) -> Share {
        let holdings = Holdings::new(&partitions.session, membership);
        Share { partitions, member, holdings, driver: None }
    }

    fn session(&self) -> &Session {
        &self.partitions.session
    }

    /// The path of the partitions.
    pub fn path(&self) -> &str {
        &self.partitions.path
    }

    /// The member's name.
    pub fn member(&self) -> &str {
        self.member.name()
    }

    both_forms! {
        /// Returns a partition that this member owns from now on, as soon as there is one. Blocks until then, for as
        /// long as the session lives.
        ///
        /// # Errors
        /// The errors of a session that is over; [`Error::NoNode`] if somebody has deleted the member's znode, and
        /// [`Error::InvalidData`] if the plan or a member's data are damaged; the errors of [`Session::create`], after
        /// which the next call tries again.
        pub fn take / take_timeout / take_async(&mut self) -> Result<Partition> = forever(self.taking());
    }

    async fn taking(&mut self) -> Result<Partition> {
        poll_fn(|task| match self.poll(task) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => {
                self.ready().map_or(Poll::Pending, |partition| Poll::Ready(Ok(partition)))
            }
        })
        .await
    }

    both_forms! {
        /// Leaves: asks for all its partitions, goes on until all are handed over or given up and other members have
        /// them, and then leaves the group. Blocks until then. If no other member could have any, it waits for the end
        /// of the own ones alone. What [`Share::take`] has not returned yet is given up at once.
        ///
        /// Dropping the share meanwhile, as at the end of the time of [`Share::leave_timeout`], gives up all that is
        /// left.
        ///
        /// # Errors
        /// As [`Share::take`]; everything is given up then.
        pub fn leave / leave_timeout / leave_async(self) -> Result<()> = forever(self.leaving());
    }

    async fn leaving(mut self) -> Result<()> {
        let ready = self.holdings.change(|state| {
            state.leaves = true;
            std::mem::take(&mut state.ready)
        });
        ready.iter().for_each(|owned| self.holdings.give_up(owned));
        poll_fn(|task| self.poll(task)).await
    }

    /// Goes on with the member's part. Ready with an error, or when it has left.
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Result<()>> {
        let driver = self.driver.get_or_insert_with(|| {
            let (partitions, holdings) = (self.partitions.clone(), Arc::clone(&self.holdings));
            let member = self.member.clone();
            Box::pin(ShareDriver::new(partitions, holdings, member).drive())
        });
        let polled = driver.as_mut().poll(task);
        if polled.is_ready() {
            self.driver = None;
        }
        polled
    }

    fn ready(&self) -> Option<Partition> {
        loop {
            let owned = self.holdings.lock().ready.pop_front()?;
            // Dropped, one that is already lost is given up.
            let partition = Partition { owned, holdings: Arc::clone(&self.holdings) };
            if partition.is_held() {
                return Some(partition);
            }
        }
    }
}

struct ShareDriver {
    partitions: Partitions,
    holdings: Arc<Holdings>,
    member: PartitionMember,
    /// What was read since the last event.
    plan: Option<StoredPlan>,
    members: Option<PartitionMembers>,
    /// The partitions that were its own, or planned for it, when it began to leave.
    left: Option<BTreeSet<usize>>,
}

struct StoredPlan {
    plan: PartitionPlan,
    /// Of its znode.
    version: u64,
    /// Those that are planned for this member.
    own: BTreeSet<usize>,
}

struct PartitionMembers {
    members: Vec<PartitionMember>,
    /// Whether this member is the oldest one, and makes the plan.
    plans: bool,
    /// The write that last changed their list.
    pzxid: Zxid,
}

/// What has changed.
enum Changed {
    Plan,
    Members,
    Else,
}

/// What a turn has found.
#[derive(Default)]
struct TurnFindings {
    /// Whether changes of owners matter: something waits for them.
    needs_owners: bool,
    /// When there is something to do without a change.
    wake_at: Option<Duration>,
    has_left: bool,
}

impl ShareDriver {
    fn new(
        partitions: Partitions,
        holdings: Arc<Holdings>,
        member: PartitionMember,
    ) -> ShareDriver {
        ShareDriver { partitions, holdings, member, plan: None, members: None, left: None }
    }

    async fn drive(mut self) -> Result<()> {
        let session = self.partitions.session.clone();
        let [plan, members, owners] =
            [PLAN, MEMBERS, OWNERS].map(|part| self.partitions.part(part));
        let calls = session.nonblocking();
        let plan_watch = calls.watch(&plan, WatchMode::Persistent).await?;
        let members_watch = calls.watch(&members, WatchMode::PersistentRecursive).await?;
        let mut owners_watch: Option<Watch> = None;
        loop {
            // The reads that follow show all that these events report.
            let seen = self.holdings.lock().changes;
            if plan_watch.events().try_iter().count() > 0 {
                self.plan = None;
            }
            if members_watch.events().try_iter().count() > 0 {
                self.members = None;
            }
            if let Some(watch) = &owners_watch {
                watch.events().try_iter().for_each(drop);
            }
            let turn = self.turn().await?;
            if turn.has_left {
                return Ok(());
            }
            if !turn.needs_owners {
                owners_watch = None;
            } else if owners_watch.is_none() {
                owners_watch = Some(calls.watch(&owners, WatchMode::PersistentRecursive).await?);
                continue;
            }
            let holdings = Arc::clone(&self.holdings);
            let here =
                holdings.until(|| (holdings.lock().changes != seen).then_some(Changed::Else));
            let clock = &session.shared().clock;
            let time = async {
                let Some(at) = turn.wake_at else { return pending().await };
                calls.sleep(at.saturating_sub(clock.now())).await?;
                Ok(Changed::Else)
            };
            let owned = async {
                let Some(watch) = &owners_watch else { return pending().await };
                next_event(&session, watch, &owners).await.map(|_| Changed::Else)
            };
            let planned =
                async { next_event(&session, &plan_watch, &plan).await.map(|_| Changed::Plan) };
            let grouped = async {
                next_event(&session, &members_watch, &members).await.map(|_| Changed::Members)
            };
            let here = async { Ok(here.await) };
            let changed = one_of(one_of(planned, grouped), one_of(owned, one_of(here, time)));
            match changed.await? {
                Changed::Plan => self.plan = None,
                Changed::Members => self.members = None,
                Changed::Else => {}
            }
        }
    }

    async fn turn(&mut self) -> Result<TurnFindings> {
        let session = &self.partitions.session;
        if self.holdings.membership.ephemeral.loss().is_some() {
            session.check_alive()?;
            return Err(Error::NoNode { path: self.holdings.membership.path().to_owned() });
        }
        self.arrive().await?;
        self.read_plan().await?;
        self.begin_to_leave().await?;
        self.read_members().await?;
        let mut turn = TurnFindings::default();
        self.ask(&mut turn);
        self.claim(&mut turn).await?;
        self.make_plan(&mut turn).await?;
        self.leave(&mut turn).await?;
        Ok(turn)
    }

    /// Shows in the group that this member wants nothing any more.
    async fn begin_to_leave(&mut self) -> Result<()> {
        if self.left.is_some() || !self.holdings.lock().leaves {
            return Ok(());
        }
        let nothing = self.member.clone().weight(0).encoded();
        self.holdings.membership.update_async(nothing).await?;
        let mut left = self.plan.as_ref().map(|plan| plan.own.clone()).unwrap_or_default();
        let state = self.holdings.lock();
        left.extend(state.owned.keys().chain(&state.claiming));
        self.left = Some(left);
        Ok(())
    }

    /// Takes the partitions whose owner's znode this member has just created.
    async fn arrive(&self) -> Result<()> {
        loop {
            let (number, ephemeral) = {
                let mut state = self.holdings.lock();
                if let Some(failure) = state.failure.take() {
                    return Err(failure);
                }
                let Some(claimed) = state.claimed.pop_front() else { return Ok(()) };
                claimed
            };
            let held = self.hold(number, ephemeral).await;
            self.holdings.lock().claiming.remove(&number);
            // Otherwise somebody has deleted it already.
            let Some(owned) = if_exists(held)? else { continue };
            let owned = Arc::new(owned);
            let unwanted = {
                let mut state = self.holdings.lock();
                let former = state.owned.insert(number, Arc::clone(&owned));
                match state.leaves {
                    true => (Some(owned), former),
                    false => {
                        state.ready.push_back(owned);
                        (None, former)
                    }
                }
            };
            unwanted.0.iter().for_each(|owned| self.holdings.give_up(owned));
        }
    }

    async fn hold(&self, number: usize, ephemeral: OwnedEphemeral) -> Result<OwnedPartition> {
        // From here on, a loss is reported.
        let held = Held::new(ephemeral).await?;
        // Its former owner wrote the position before this one could create its znode, so this read shows it.
        let path = self.partitions.position_path(number);
        let position = if_exists(reads::get(&self.partitions.session, &path).await)?;
        let name = self.partitions.settings.name_of(number);
        let position = position.map(|(data, _)| data).filter(|_| !planted!(PositionUnread));
        Ok(OwnedPartition::new((number, name), held, path, position))
    }

    async fn read_plan(&mut self) -> Result<()> {
        if self.plan.is_some() {
            return Ok(());
        }
        let path = self.partitions.part(PLAN);
        let (data, stat) = reads::get(&self.partitions.session, &path).await?;
        let plan = self.partitions.parse_plan(&data)?;
        let own = plan.partitions_of(self.member.name()).into_iter().collect();
        self.plan = Some(StoredPlan { plan, version: stat.version, own });
        Ok(())
    }

    async fn read_members(&mut self) -> Result<()> {
        if self.members.is_some() {
            return Ok(());
        }
        let path = self.partitions.part(MEMBERS);
        let snapshot = self.partitions.session.snapshot_soon(&path).await?;
        let present = self.partitions.group.members_in(&snapshot)?;
        let members = self.partitions.parse_members(&present)?;
        let oldest = present.iter().map(|member| member.joined).min();
        let plans = oldest == Some(self.holdings.membership.fencing_token());
        let pzxid = snapshot.exists(&path)?.map_or(0, |stat| stat.pzxid);
        self.members = Some(PartitionMembers { members, plans, pzxid });
        Ok(())
    }

    /// Asks for the partitions that are planned for others, and gives up those whose time is over.
    fn ask(&self, turn: &mut TurnFindings) {
        let Some(StoredPlan { own, .. }) = &self.plan else { return };
        let now = self.partitions.session.shared().clock.now();
        let limit = now.saturating_add(self.partitions.drain_limit);
        let owned: Vec<Arc<OwnedPartition>> =
            self.holdings.lock().owned.values().cloned().collect();
        let mut any = false;
        for owned in owned {
            let (deadline, changed) = owned.ask(!own.contains(&owned.number), limit);
            any |= changed;
            match deadline {
                _ if !owned.held.is_held() => self.holdings.give_up(&owned),
                Some(deadline) if deadline <= now => self.holdings.give_up(&owned),
                Some(deadline) => {
                    turn.wake_at = Some(turn.wake_at.map_or(deadline, |at| at.min(deadline)));
                }
                None => {}
            }
        }
        if any {
            self.holdings.change(|_| ());
        }
    }

    /// Creates the owner's znodes of the partitions that are planned for this member and that nobody owns.
    async fn claim(&self, turn: &mut TurnFindings) -> Result<()> {
        let Some(StoredPlan { own, version, .. }) = &self.plan else { return Ok(()) };
        let wanted: Vec<usize> = {
            let state = self.holdings.lock();
            let has = |number: &usize| {
                state.owned.contains_key(number) || state.claiming.contains(number)
            };
            match state.leaves {
                true => return Ok(()),
                false => own.iter().filter(|number| !has(number)).copied().collect(),
            }
        };
        let unowned = self.unowned(&wanted).await?;
        turn.needs_owners |= unowned.len() < wanted.len();
        for numbers in unowned.chunks(CLAIMS_MAX) {
            self.begin_claim(numbers.to_vec(), *version);
        }
        Ok(())
    }

    /// Those of the partitions that nobody owns.
    async fn unowned(&self, numbers: &[usize]) -> Result<Vec<usize>> {
        let session = &self.partitions.session;
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        if !session.reads_at_once() {
            let owners = session.nonblocking().children(&self.partitions.part(OWNERS)).await;
            let owned: BTreeSet<String> = children_or_none(owners)?.into_iter().collect();
            let is_free =
                |number: &&usize| !owned.contains(&self.partitions.settings.name_of(**number));
            return Ok(numbers.iter().filter(is_free).copied().collect());
        }
        let mut unowned = Vec::new();
        for number in numbers {
            if session.exists(&self.partitions.owner_path(*number))?.is_none() {
                unowned.push(*number);
            }
        }
        Ok(unowned)
    }

    /// Sends one write that creates these owner's znodes. Its answer is kept, whoever waits for it.
    fn begin_claim(&self, numbers: Vec<usize>, plan_version: u64) {
        let session = &self.partitions.session;
        self.holdings.lock().claiming.extend(&numbers);
        let own = &self.holdings.membership;
        let plan = self.partitions.part(PLAN);
        let as_planned = Condition::Version(plan_version);
        let mut multi = session.multi().require(&plan, as_planned);
        multi = multi.require(own.path(), Condition::Czxid(own.fencing_token()));
        let paths: Vec<String> =
            numbers.iter().map(|number| self.partitions.owner_path(*number)).collect();
        for path in &paths {
            multi = multi.create(path, self.member.name(), CreateMode::Ephemeral);
        }
        let (holdings, session) = (Arc::clone(&self.holdings), session.clone());
        multi.submit().then(move |answer| {
            let results = inner(answer).map(|answer| answer.multi().unwrap_or_default());
            let claimed = results.map(|results| {
                let created = results.into_iter().filter_map(|result| match result {
                    OpResult::Created(created) => Some(created.stat),
                    _ => None,
                });
                let all = numbers.iter().zip(&paths).zip(created);
                let owned = |((number, path), stat): ((&usize, &String), _)| {
                    (*number, OwnedEphemeral::new(&session, path, &stat))
                };
                all.map(owned).collect::<Vec<_>>()
            });
            let unwanted = holdings.change(|state| match claimed {
                Ok(claimed) if state.is_over => claimed,
                Ok(claimed) => {
                    state.claimed.extend(claimed);
                    Vec::new()
                }
                Err(error) => {
                    numbers.iter().for_each(|number| {
                        state.claiming.remove(number);
                    });
                    // The plan has changed, or somebody has come first: look again.
                    let is_overtaken = matches!(
                        error,
                        Error::BadVersion { .. } | Error::Unmet { .. } | Error::NodeExists { .. }
                    );
                    if !is_overtaken {
                        state.failure = Some(session.root.error(error));
                    }
                    Vec::new()
                }
            });
            // Their drop deletes the znodes.
            drop(unwanted);
        });
    }

    /// Makes the next plan, if this is the oldest member.
    async fn make_plan(&mut self, turn: &mut TurnFindings) -> Result<()> {
        let (Some(StoredPlan { plan, version, .. }), Some(members)) = (&self.plan, &self.members)
        else {
            return Ok(());
        };
        let next = plan.next(&members.members, usize::MAX);
        if !members.plans || next == *plan {
            return Ok(());
        }
        let (taken, max) =
            (plan.taken(&next, &members.members), self.partitions.settings.moves_max);
        let next = if taken == 0 || planted!(MovesUnbounded) {
            next
        } else {
            let moving = self.moving(plan, &members.members).await?;
            // Several together, so that not every move costs a plan.
            let allowed = match max.saturating_sub(moving) {
                allowed if allowed >= taken || moving <= max / 2 => allowed,
                _ => 0,
            };
            turn.needs_owners |= allowed < taken;
            plan.next(&members.members, allowed)
        };
        if next == *plan {
            return Ok(());
        }
        let path = self.partitions.part(PLAN);
        let data =
            next.encoded().map_err(|reason| Error::InvalidData { path: path.clone(), reason })?;
        let multi = self.partitions.session.multi();
        let multi = multi.require(&self.partitions.part(MEMBERS), Condition::Pzxid(members.pzxid));
        let written = inner(multi.set_if(&path, data, *version).submit().await);
        self.plan = None;
        match written {
            // Another plan, or another member, has come first. Their events make the next turn.
            Ok(_) | Err(Error::BadVersion { .. } | Error::Unmet { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// How many partitions have an owner that is a member and not the planned one. One that has left is about to give
    /// them up.
    async fn moving(&self, plan: &PartitionPlan, members: &[PartitionMember]) -> Result<usize> {
        let snapshot = self.partitions.session.snapshot_soon(&self.partitions.part(OWNERS)).await?;
        let mut moving = 0;
        for number in 0..plan.partitions() {
            let owner = if_exists(snapshot.get(&self.partitions.owner_path(number)))?;
            let Some((owner, _)) = owner else { continue };
            if plan.member_of(number).map(str::as_bytes) != Some(&owner)
                && members.iter().any(|member| member.name().as_bytes() == &*owner)
            {
                moving += 1;
            }
        }
        Ok(moving)
    }

    /// Leaves the group once everything that this member had is somebody else's.
    async fn leave(&mut self, turn: &mut TurnFindings) -> Result<()> {
        let (Some(left), Some(StoredPlan { plan, .. })) = (&self.left, &self.plan) else {
            return Ok(());
        };
        {
            let state = self.holdings.lock();
            let is_idle = state.owned.is_empty() && state.claiming.is_empty();
            if !is_idle || state.is_writing || !state.writes.is_empty() {
                return Ok(());
            }
        }
        let of_somebody: Vec<usize> =
            left.iter().filter(|number| plan.member_of(**number).is_some()).copied().collect();
        if self.unowned(&of_somebody).await?.is_empty() {
            let own = &self.holdings.membership.ephemeral;
            own.delete().await?;
            own.forget();
            turn.has_left = true;
        }
        turn.needs_owners = true;
        Ok(())
    }
}

/// Waits for the future that is ready first.
async fn one_of<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    match either(one, other).await {
        Either::One(value) | Either::Other(value) => value,
    }
}
