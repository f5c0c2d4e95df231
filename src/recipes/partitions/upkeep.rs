//! What a member does for all: it makes the next plan, and ends the claims of whoever stands in its way.
//!
//! Any member may do both. The oldest one that is not silent does it at once, and each later one a turn limit after the
//! one before it, if nothing has changed until then. All conditions are in the write, so two at a time do no harm.
//!
//! Times are those for which this instance has seen the same znodes, by its own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::driver::{ShareDriver, StoredPlan, TurnFindings};
use super::member::PartitionMember;
use super::plan::PartitionPlan;
use super::{MEMBERS, OWNERS, PLAN};
use crate::api::snapshot::Snapshot;
use crate::recipes::errors::{if_exists, inner};
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, Zxid};

/// One write ends at most so many claims.
const ENDED_MAX: usize = 1000;
/// A member has so many turn limits of time to claim what is planned for it.
const CLAIM_TURNS: u32 = 2;
/// Without a change, there is a look after so many turn limits.
const IDLE_TURNS: u32 = 6;

/// What this member has seen, and since when.
#[derive(Default)]
pub(super) struct Upkeep {
    /// The version of a plan that is not the right one any more.
    plan_due: Option<(u64, Duration)>,
    /// The partitions that are not their planned member's, and the znode of their owner; who stands in the way.
    blocked: BTreeMap<(usize, Option<Zxid>), (String, Duration)>,
    look_at: Option<Duration>,
    /// The members that are in the plan and not there.
    absent: BTreeMap<String, Duration>,
}

impl ShareDriver {
    /// Something has changed: most of it will be done when this member looks.
    pub(super) fn look_soon(&mut self) {
        let soon = self.now().saturating_add(self.partitions.turn);
        self.upkeep.look_at = Some(self.upkeep.look_at.map_or(soon, |at| at.min(soon)));
    }

    /// Makes the next plan, if it is due and older members have had their time for that.
    pub(super) async fn make_plan(&mut self, turn: &mut TurnFindings) -> Result<()> {
        let (Some(StoredPlan { plan, version, .. }), Some(members)) = (&self.plan, &self.members)
        else {
            return Ok(());
        };
        let (version, now, turn_limit) = (*version, self.now(), self.partitions.turn);
        let is_absent = |name: &&str| !members.stored.contains_key(*name);
        let absent = plan
            .names()
            .filter(is_absent)
            .map(|name| (name.to_owned(), self.upkeep.absent.get(name).copied().unwrap_or(now)));
        self.upkeep.absent = absent.collect();
        let mut kept = BTreeSet::new();
        for (name, since) in &self.upkeep.absent {
            let until = since.saturating_add(self.partitions.grace);
            if now < until {
                turn.wake(until);
                kept.insert(name.clone());
            }
        }
        let next = plan.next_beside(&members.members, usize::MAX, &kept);
        if next == *plan {
            self.upkeep.plan_due = None;
            return Ok(());
        }
        let due = self.upkeep.plan_due.filter(|(of, _)| *of == version).map_or(now, |due| due.1);
        self.upkeep.plan_due = Some((version, due));
        let at = due.saturating_add(turn_limit.saturating_mul(members.rank));
        if now < at {
            turn.wake(at);
            return Ok(());
        }
        let (taken, max) =
            (plan.taken(&next, &members.members), self.partitions.settings.moves_max);
        let next = if taken == 0 {
            next
        } else {
            let moving = self.moving(plan, &members.members).await?;
            // Several together, so that not every move costs a plan.
            let allowed = match max.saturating_sub(moving) {
                allowed if allowed >= taken || moving <= max / 2 => allowed,
                _ => 0,
            };
            match members.rank {
                0 => turn.needs_owners |= allowed < taken,
                // Who is next after the oldest follows the moves less closely.
                _ => turn.wake(now.saturating_add(turn_limit)),
            }
            plan.next_beside(&members.members, allowed, &kept)
        };
        if next == *plan {
            return Ok(());
        }
        let path = self.partitions.part(PLAN);
        let data =
            next.encoded().map_err(|reason| Error::InvalidData { path: path.clone(), reason })?;
        let multi = self.partitions.session.multi();
        let mut multi =
            multi.require(&self.partitions.part(MEMBERS), Condition::Pzxid(members.pzxid));
        for (name, (stored, updated)) in &members.stored {
            if stored.member.is_silent() {
                // It still is: it may own nothing of what is taken from it.
                multi =
                    multi.require(&self.partitions.member_path(name), Condition::Mzxid(*updated));
            }
        }
        let written = inner(multi.set_if(&path, data, version).commit().await);
        self.plan = None;
        match written {
            // Another plan, or another member, has come first. Their events make the next turn.
            Ok(_) | Err(Error::BadVersion { .. } | Error::Unmet { .. } | Error::NoNode { .. }) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// How many partitions have an owner that is a member and not the planned one. One that has left is about to give
    /// them up.
    async fn moving(&self, plan: &PartitionPlan, members: &[PartitionMember]) -> Result<usize> {
        let snapshot = self.partitions.session.snapshot_of(&self.partitions.part(OWNERS)).await?;
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

    /// Looks who stands in the way of the plan: a member that does not claim what is planned for it, or does not give up
    /// what is planned for another one. If it does so for too long, its claims are ended.
    pub(super) async fn look(&mut self, turn: &mut TurnFindings) -> Result<()> {
        let (now, turn_limit) = (self.now(), self.partitions.turn);
        let (Some(StoredPlan { plan, .. }), Some(members), Some(at)) =
            (&self.plan, &self.members, self.upkeep.look_at)
        else {
            return Ok(());
        };
        if now < at {
            turn.wake(at);
            return Ok(());
        }
        let snapshot = self.partitions.session.snapshot_of(&self.partitions.part(OWNERS)).await?;
        let mut blocked = BTreeMap::new();
        let mut overdue = None;
        for number in 0..plan.partitions() {
            let planned = plan.member_of(number);
            let owner = if_exists(snapshot.get(&self.partitions.owner_path(number)))?;
            let owner =
                owner.map(|(name, stat)| (String::from_utf8_lossy(&name).into_owned(), stat.czxid));
            let (name, claim) = match (owner, planned) {
                (Some((name, claim)), _) if Some(&*name) != planned => (name, Some(claim)),
                (None, Some(name)) => (name.to_owned(), None),
                _ => continue,
            };
            let Some((stored, _)) = members.stored.get(&name) else { continue };
            // Of what is planned for a silent one, the next plan takes care.
            if name == self.name() || claim.is_none() && stored.member.is_silent() {
                continue;
            }
            let seen = self.upkeep.blocked.get(&(number, claim)).filter(|(of, _)| *of == name);
            let since = seen.map_or(now, |(_, since)| *since);
            let limit = match claim {
                Some(_) => stored.drain_limit.saturating_add(turn_limit),
                None => turn_limit * CLAIM_TURNS,
            };
            let limit = limit.saturating_add(turn_limit.saturating_mul(members.rank));
            if since.saturating_add(limit) <= now && overdue.is_none() {
                overdue = Some((number, claim, name.clone()));
            }
            blocked.insert((number, claim), (name, since));
        }
        let idle = turn_limit.saturating_mul(IDLE_TURNS.saturating_mul(members.rank + 1));
        let next = now.saturating_add(if blocked.is_empty() { idle } else { turn_limit });
        self.upkeep.blocked = blocked;
        self.upkeep.look_at = Some(next);
        turn.wake(next);
        match overdue {
            Some((number, claim, name)) => self.end_claims(&name, (number, claim), &snapshot).await,
            None => Ok(()),
        }
    }

    /// Ends the claims of a member, and marks it as silent, by one write. It has no effect if the member, the plan, or
    /// what was seen of the partition have changed since then.
    async fn end_claims(
        &self,
        name: &str,
        (number, claim): (usize, Option<Zxid>),
        snapshot: &Snapshot,
    ) -> Result<()> {
        let (Some(StoredPlan { plan, version, .. }), Some(members)) = (&self.plan, &self.members)
        else {
            return Ok(());
        };
        let Some((stored, updated)) = members.stored.get(name) else { return Ok(()) };
        let member = self.partitions.member_path(name);
        let mut multi = self.partitions.session.multi();
        multi = multi.require(&self.partitions.part(PLAN), Condition::Version(*version));
        multi = multi.require(&member, Condition::Mzxid(*updated));
        if claim.is_none() {
            multi = multi.require(&self.partitions.owner_path(number), Condition::Absent);
        }
        let mut ended = 0;
        for path in (0..plan.partitions()).map(|number| self.partitions.owner_path(number)) {
            let Some((owner, stat)) = if_exists(snapshot.get(&path))? else { continue };
            if *owner == *name.as_bytes() && ended < ENDED_MAX {
                let same = Condition::Czxid(stat.czxid);
                multi = multi.require(&path, same).delete(&path);
                ended += 1;
            }
        }
        if ended < ENDED_MAX {
            multi = multi.set(&member, stored.silent(true).encoded());
        }
        match inner(multi.commit().await) {
            // It has gone on, or another one has come first.
            Ok(_)
            | Err(
                Error::BadVersion { .. }
                | Error::Unmet { .. }
                | Error::NoNode { .. }
                | Error::NodeExists { .. },
            ) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
