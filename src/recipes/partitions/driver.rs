//! What a member does in turn: it shows that it is there, asks for what is planned for others, gives up what was asked for
//! too long ago, takes what is planned for it, and does its part for others (`upkeep`).
//!
//! All of that is one future, kept from call to call. Whoever waits for a partition polls it, so that a call that ends
//! early loses nothing, and no thread is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use super::holdings::{Holdings, OwnedPartition};
use super::member::{PartitionMember, StoredMember};
use super::plan::PartitionPlan;
use super::upkeep::Upkeep;
use super::{MEMBERS, OWNERS, PLAN, Partitions};
use crate::api::watch::Watch;
use crate::recipes::Held;
use crate::recipes::errors::{children_or_none, if_exists, inner};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::waiting::next_event;
use crate::runtime::either::{Either, either};
use crate::types::error::{Error, Result};
use crate::types::watch::WatchMode;
use crate::types::znode::{Condition, CreateMode, OpResult, Zxid};

/// One write creates at most so many owners.
const CLAIMS_MAX: usize = 200;

pub(super) struct ShareDriver {
    pub(super) partitions: Partitions,
    holdings: Arc<Holdings>,
    member: StoredMember,
    /// What was read since the last event.
    pub(super) plan: Option<StoredPlan>,
    pub(super) members: Option<PresentMembers>,
    /// The partitions that were its own, or planned for it, when it began to leave.
    left: Option<BTreeSet<usize>>,
    pub(super) upkeep: Upkeep,
}

pub(super) struct StoredPlan {
    pub(super) plan: PartitionPlan,
    /// Of its znode.
    pub(super) version: u64,
    /// Those that are planned for this member.
    own: BTreeSet<usize>,
}

pub(super) struct PresentMembers {
    pub(super) members: Vec<PartitionMember>,
    /// By name, with the write that last set its data.
    pub(super) stored: BTreeMap<String, (StoredMember, Zxid)>,
    /// How many of them are older than this one and not silent.
    pub(super) rank: u32,
    /// The write that last changed their list.
    pub(super) pzxid: Zxid,
}

/// What has changed.
enum Changed {
    Plan,
    Members,
    Else,
}

/// What a turn has found.
#[derive(Default)]
pub(super) struct TurnFindings {
    /// Whether changes of owners matter: something waits for them.
    pub(super) needs_owners: bool,
    /// When there is something to do without a change.
    wake_at: Option<Duration>,
    has_left: bool,
}

impl TurnFindings {
    pub(super) fn wake(&mut self, at: Duration) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

impl ShareDriver {
    pub(super) fn new(
        partitions: Partitions,
        holdings: Arc<Holdings>,
        member: StoredMember,
    ) -> ShareDriver {
        let (plan, members, left, upkeep) = (None, None, None, Upkeep::default());
        ShareDriver { partitions, holdings, member, plan, members, left, upkeep }
    }

    pub(super) fn now(&self) -> Duration {
        self.partitions.session.shared().clock.now()
    }

    pub(super) fn name(&self) -> &str {
        self.member.member.name()
    }

    pub(super) async fn drive(mut self) -> Result<()> {
        let session = self.partitions.session.clone();
        let [plan, members, owners] =
            [PLAN, MEMBERS, OWNERS].map(|part| self.partitions.part(part));
        let plan_watch = session.watch(&plan, WatchMode::Persistent).await?;
        let members_watch = session.watch(&members, WatchMode::PersistentRecursive).await?;
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
                owners_watch = Some(session.watch(&owners, WatchMode::PersistentRecursive).await?);
                continue;
            }
            let holdings = Arc::clone(&self.holdings);
            let here =
                holdings.until(|| (holdings.lock().changes != seen).then_some(Changed::Else));
            let clock = &session.shared().clock;
            let time = async {
                let Some(at) = turn.wake_at else { return pending().await };
                session.sleep(at.saturating_sub(clock.now())).await?;
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
        self.go_on().await?;
        let mut turn = TurnFindings::default();
        if let Some(max_silence) = self.partitions.max_silence {
            // Polled for that, a call in which nothing happens is none of silence.
            turn.wake(self.now().saturating_add(max_silence / 3));
        }
        self.ask(&mut turn);
        self.claim(&mut turn).await?;
        self.make_plan(&mut turn).await?;
        self.look(&mut turn).await?;
        self.leave(&mut turn).await?;
        Ok(turn)
    }

    /// Shows in the group that this member wants nothing any more.
    async fn begin_to_leave(&mut self) -> Result<()> {
        if self.left.is_some() || !self.holdings.lock().leaves {
            return Ok(());
        }
        let member = self.member.member.clone().weight(0);
        self.member = StoredMember { member, ..self.member };
        self.holdings.membership.update(self.member.encoded()).await?;
        let mut left = self.plan.as_ref().map(|plan| plan.own.clone()).unwrap_or_default();
        let state = self.holdings.lock();
        left.extend(state.owned.keys().chain(&state.claiming));
        self.left = Some(left);
        Ok(())
    }

    /// Shows that this member is not silent any more.
    async fn go_on(&mut self) -> Result<()> {
        let own = self.members.as_ref().and_then(|members| members.stored.get(self.name()));
        if own.is_some_and(|(stored, _)| stored.member.is_silent()) {
            self.holdings.membership.update(self.member.encoded()).await?;
            self.members = None;
            self.read_members().await?;
        }
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
                let Some((number, ephemeral)) = state.claimed.pop_front() else { return Ok(()) };
                let znode = (ephemeral.path().to_owned(), ephemeral.czxid());
                state.arriving = Some((number, znode));
                (number, ephemeral)
            };
            let held = self.hold(number, ephemeral).await;
            if self.holdings.lock().arriving.take().is_none() {
                // The member was silent meanwhile, and has given it up.
                if let Ok(owned) = &held {
                    owned.held.ephemeral.forget();
                }
                if_exists(held)?;
                continue;
            }
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
        let position = if_exists(self.partitions.session.get(&path).await)?;
        let name = self.partitions.settings.name_of(number);
        let position = position.map(|(data, _)| data);
        Ok(OwnedPartition::new((number, name), held, path, position))
    }

    async fn read_plan(&mut self) -> Result<()> {
        if self.plan.is_some() {
            return Ok(());
        }
        let path = self.partitions.part(PLAN);
        let (data, stat) = self.partitions.session.get(&path).await?;
        let plan = self.partitions.parse_plan(&data)?;
        let own = plan.partitions_of(self.name()).into_iter().collect();
        self.plan = Some(StoredPlan { plan, version: stat.version, own });
        self.look_soon();
        Ok(())
    }

    async fn read_members(&mut self) -> Result<()> {
        if self.members.is_some() {
            return Ok(());
        }
        let path = self.partitions.part(MEMBERS);
        let snapshot = self.partitions.session.snapshot_of(&path).await?;
        let present = self.partitions.group.members_in(&snapshot)?;
        let stored = self.partitions.parse_members(&present)?;
        let pzxid = snapshot.exists(&path)?.map_or(0, |stat| stat.pzxid);
        let own = self.holdings.membership.fencing_token();
        let all = present.iter().zip(&stored);
        let older = all.filter(|((_, of), it)| of.joined < own && !it.member.is_silent()).count();
        self.members = Some(PresentMembers {
            members: stored.iter().map(|stored| stored.member.clone()).collect(),
            rank: u32::try_from(older).unwrap_or(u32::MAX),
            stored: (present.iter().zip(stored))
                .map(|((name, of), stored)| (name.clone(), (stored, of.updated)))
                .collect(),
            pzxid,
        });
        self.look_soon();
        Ok(())
    }

    /// Asks for the partitions that are planned for others, and gives up those whose time is over.
    fn ask(&self, turn: &mut TurnFindings) {
        let Some(StoredPlan { own, .. }) = &self.plan else { return };
        let now = self.now();
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
                Some(deadline) => turn.wake(deadline),
                None => {}
            }
        }
        if any {
            self.holdings.change(|_| ());
        }
    }

    /// Creates the owner's znodes of the partitions that are planned for this member and that nobody owns.
    async fn claim(&self, turn: &mut TurnFindings) -> Result<()> {
        let (Some(StoredPlan { own, version, .. }), Some(members)) = (&self.plan, &self.members)
        else {
            return Ok(());
        };
        let Some((_, unchanged)) = members.stored.get(self.name()) else { return Ok(()) };
        let wanted: Vec<usize> = {
            let state = self.holdings.lock();
            let has = |number: &usize| {
                state.owned.contains_key(number) || state.claiming.contains(number)
            };
            match state.leaves || state.marks > 0 {
                true => return Ok(()),
                false => own.iter().filter(|number| !has(number)).copied().collect(),
            }
        };
        let unowned = self.unowned(&wanted).await?;
        turn.needs_owners |= unowned.len() < wanted.len();
        for numbers in unowned.chunks(CLAIMS_MAX) {
            self.begin_claim(numbers.to_vec(), *version, *unchanged);
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
            let owners = session.in_turn().children(&self.partitions.part(OWNERS)).await;
            let owned: BTreeSet<String> = children_or_none(owners)?.into_iter().collect();
            let is_free =
                |number: &&usize| !owned.contains(&self.partitions.settings.name_of(**number));
            return Ok(numbers.iter().filter(is_free).copied().collect());
        }
        let mut unowned = Vec::new();
        for number in numbers {
            if session.exists(&self.partitions.owner_path(*number)).await?.is_none() {
                unowned.push(*number);
            }
        }
        Ok(unowned)
    }

    /// Sends one write that creates these owner's znodes. Its answer is kept, whoever waits for it.
    fn begin_claim(&self, numbers: Vec<usize>, plan_version: u64, unchanged: Zxid) {
        let session = &self.partitions.session;
        self.holdings.lock().claiming.extend(&numbers);
        let own = &self.holdings.membership;
        let plan = self.partitions.part(PLAN);
        let as_planned = Condition::Version(plan_version);
        let mut multi = session.multi().require(&plan, as_planned);
        multi = multi.require(own.path(), Condition::Czxid(own.fencing_token()));
        // Nobody has ended its claims meanwhile.
        multi = multi.require(own.path(), Condition::Mzxid(unchanged));
        let paths: Vec<String> =
            numbers.iter().map(|number| self.partitions.owner_path(*number)).collect();
        for path in &paths {
            multi = multi.create(path, self.name(), CreateMode::Ephemeral);
        }
        let (holdings, session) = (Arc::clone(&self.holdings), session.clone());
        multi.commit().then(move |answer| {
            let claimed = inner(answer).map(|results| {
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
                Ok(claimed) if state.is_over || state.is_silent => {
                    numbers.iter().for_each(|number| {
                        state.claiming.remove(number);
                    });
                    claimed
                }
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
                        state.failure = Some(error);
                    }
                    Vec::new()
                }
            });
            // Their drop deletes the znodes.
            drop(unwanted);
            holdings.mark_silent();
            holdings.writes.send();
        });
    }

    /// Leaves the group once everything that this member had is somebody else's.
    async fn leave(&mut self, turn: &mut TurnFindings) -> Result<()> {
        let (Some(left), Some(StoredPlan { plan, .. })) = (&self.left, &self.plan) else {
            return Ok(());
        };
        {
            let state = self.holdings.lock();
            let is_idle = state.owned.is_empty() && state.claiming.is_empty();
            if !is_idle || !self.holdings.writes.is_idle() {
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
