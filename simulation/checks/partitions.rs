//! What partitions promise, checked against the committed log: one owner each, as the plan says; bounded moves; positions
//! that are their owner's and never go back; that a silent member owns nothing; and that no partition stays without an
//! owner, also while members hang.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::machine::command::ChangeKind;
use crate::recipes::{Partition, PartitionPlan, is_silent};
use crate::simulation::clock::Nanos;
use crate::simulation::oracle::{Oracle, ZnodeState};
use crate::types::znode::{SessionId, Zxid};

/// The partitions of the workload, their number, and how many may move at a time.
pub(crate) const PATH: &str = "/partitions/shared";
pub(crate) const COUNT: usize = 5;
pub(crate) const MOVES: usize = 2;

#[derive(Debug)]
pub(crate) struct Partitions {
    fair_clocks: bool,
    /// The number of changes that were checked.
    seen: usize,
    /// How far the work on each partition is.
    positions: BTreeMap<usize, u64>,
    /// Since when each partition is without an owner.
    unowned: BTreeMap<usize, Nanos>,
    held: BTreeMap<usize, Vec<(Weak<Partition>, SessionId)>>,
    /// The tokens of owners whose znodes somebody else has deleted.
    robbed: BTreeSet<Zxid>,
    /// How many members hang now; how many did when the last one began to, and when that was.
    hung: Rc<Cell<u64>>,
    hung_at_last: u64,
    last_hung: Nanos,
}

/// A member that hangs, until it is dropped.
pub(crate) struct Hung(Rc<Cell<u64>>);

impl Drop for Hung {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A position in the workload: the owner's token, and how far it is.
pub(crate) fn parse_position(data: &[u8]) -> Option<(Zxid, u64)> {
    let (token, count) = std::str::from_utf8(data).ok()?.split_once(' ')?;
    Some((token.parse().ok()?, count.parse().ok()?))
}

impl Partitions {
    pub(crate) fn new(fair_clocks: bool) -> Partitions {
        Partitions {
            fair_clocks,
            seen: 0,
            positions: BTreeMap::new(),
            unowned: BTreeMap::new(),
            held: BTreeMap::new(),
            robbed: BTreeSet::new(),
            hung: Rc::default(),
            hung_at_last: 0,
            last_hung: 0,
        }
    }

    /// Whether one more may hang. The more do, the longer the others take.
    pub(crate) fn may_hang(&self) -> bool {
        self.hung.get() < 2
    }

    /// A member hangs from now on.
    pub(crate) fn hangs(&mut self, now: Nanos) -> Hung {
        self.hung.set(self.hung.get() + 1);
        (self.hung_at_last, self.last_hung) = (self.hung.get(), now);
        Hung(Rc::clone(&self.hung))
    }

    /// Checks the changes since the last call.
    pub(crate) fn committed(&mut self, oracle: &Oracle, now: Nanos) -> Result<(), Violation> {
        for change in &oracle.changes()[self.seen..] {
            self.seen += 1;
            let Some(below) = change.path.strip_prefix(PATH) else { continue };
            let zxid = change.zxid;
            let mut parts = below.split('/').skip(1);
            let part = parts.next();
            let number = parts.next().and_then(|number| number.parse().ok());
            match (part, number, change.kind) {
                (None, None, ChangeKind::Created) => {
                    self.unowned = (0..COUNT).map(|number| (number, now)).collect();
                }
                (Some("plan"), None, _) => moves_are_bounded(oracle, zxid)?,
                (Some("members"), _, ChangeKind::DataChanged) => silent_own_nothing(oracle, zxid)?,
                (Some("owners"), Some(number), ChangeKind::Created) => {
                    self.unowned.remove(&number);
                    claim_is_planned(oracle, number, zxid)?;
                    moves_are_bounded(oracle, zxid)?;
                    silent_own_nothing(oracle, zxid)?;
                }
                (Some("owners"), Some(number), ChangeKind::Deleted) => {
                    self.unowned.insert(number, now);
                    if let Some(owner) = owner(oracle, number, zxid - 1)
                        && let Some(member) = member(oracle, &owner.data, zxid)
                        && member.stat.mzxid == zxid
                    {
                        // By another member, or by itself as it fell silent.
                        self.robbed.insert(owner.stat.czxid);
                    }
                }
                (Some("positions"), Some(number), _) => self.moved_on(oracle, number, zxid)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A position was stored.
    fn moved_on(&mut self, oracle: &Oracle, number: usize, zxid: Zxid) -> Result<(), Violation> {
        let stored = oracle.at(&format!("{PATH}/positions/{number}"), zxid);
        let Some((token, count)) = stored.and_then(|stored| parse_position(&stored.data)) else {
            return Ok(());
        };
        let owner = owner(oracle, number, zxid - 1).map(|owner| owner.stat.czxid);
        require(owner == Some(token), "positions are their owner's", || {
            format!("{token} has stored that of {number} by write {zxid}, and {owner:?} owned it")
        })?;
        let before = self.positions.insert(number, count).unwrap_or(0);
        require(count > before, "positions never go back", || {
            format!("that of {number} was {before} and is {count} by write {zxid}")
        })
    }

    /// A client has got a partition.
    pub(crate) fn taken(
        &mut self,
        partition: &Rc<Partition>,
        session: SessionId,
        forced: impl Fn(SessionId) -> bool,
    ) -> Result<(), Violation> {
        let number = partition.number();
        let held = self.held.entry(number).or_default();
        held.retain(|(other, _)| other.strong_count() > 0);
        held.push((Rc::downgrade(partition), session));
        let robbed = &self.robbed;
        let holds = |(other, session): &&(Weak<Partition>, SessionId)| {
            other.upgrade().is_some_and(|other| {
                other.is_held() && !forced(*session) && !robbed.contains(&other.fencing_token())
            })
        };
        let owners: Vec<SessionId> =
            held.iter().filter(holds).map(|(_, session)| *session).collect();
        require(!self.fair_clocks || owners.len() < 2, "I23 one holder at a time", || {
            format!("these sessions say that they own {number}: {owners:?}")
        })
    }

    /// Somebody is about to delete the owner's znode.
    pub(crate) fn robs(&mut self, partition: &Partition) {
        self.robbed.insert(partition.fencing_token());
    }

    /// A member has been there and not hung since `calm`, while nothing was wrong. `prompt` is what messages and disks
    /// take; the others, what the members' own limits are.
    pub(crate) fn all_are_owned(
        &self,
        (now, calm): (Nanos, Nanos),
        prompt: Nanos,
        (silence, turn): (Option<Nanos>, Nanos),
    ) -> Result<bool, Violation> {
        let hung = self.hung_at_last;
        let by_others = match hung {
            0 => 0,
            // A look; and for each that hangs the plan, the time to claim, and one more plan.
            hung => 6 * turn * (hung + 1) + (3 * hung + hung * (hung + 1)) * turn,
        };
        let by_silence = silence.filter(|_| hung > 0).map_or(Nanos::MAX, |silence| silence + turn);
        // Clocks are off by a sixth at most.
        let allowed = prompt + by_others.min(by_silence) / 5 * 6;
        let since = now.saturating_sub(allowed);
        if calm >= since || self.last_hung >= since {
            return Ok(false);
        }
        let unowned = self.unowned.iter().find(|(_, from)| **from < since);
        require(unowned.is_none(), "every partition has an owner", || {
            format!("nobody has taken {unowned:?}, and {hung} members hang")
        })?;
        Ok(true)
    }
}

fn member<'a>(oracle: &'a Oracle, name: &[u8], zxid: Zxid) -> Option<&'a ZnodeState> {
    oracle.at(&format!("{PATH}/members/{}", String::from_utf8_lossy(name)), zxid)
}

/// A member that is marked as silent has given everything up before, or loses it with that.
fn silent_own_nothing(oracle: &Oracle, zxid: Zxid) -> Result<(), Violation> {
    let owns = |number: &usize| {
        let owner = owner(oracle, *number, zxid)?;
        let member = member(oracle, &owner.data, zxid)?;
        let is_same = member.stat.ephemeral_owner == owner.stat.ephemeral_owner;
        (is_same && is_silent(&member.data)).then_some(*number)
    };
    let owned = (0..COUNT).find(|number| owns(number).is_some());
    require(owned.is_none(), "a silent member owns nothing", || {
        format!("it has {owned:?} after write {zxid}")
    })
}

fn owner(oracle: &Oracle, number: usize, zxid: Zxid) -> Option<&ZnodeState> {
    oracle.at(&format!("{PATH}/owners/{number}"), zxid)
}

fn plan(oracle: &Oracle, zxid: Zxid) -> PartitionPlan {
    let data = oracle.at(&format!("{PATH}/plan"), zxid).map(|plan| plan.data.to_vec());
    PartitionPlan::decoded(&data.unwrap_or_default(), COUNT).unwrap_or(PartitionPlan::new(COUNT))
}

fn claim_is_planned(oracle: &Oracle, number: usize, zxid: Zxid) -> Result<(), Violation> {
    let Some(owner) = owner(oracle, number, zxid) else { return Ok(()) };
    let (plan, name) = (plan(oracle, zxid), String::from_utf8_lossy(&owner.data));
    require(plan.member_of(number) == Some(&*name), "moves are bounded", || {
        format!(
            "{name} has taken {number} by write {zxid}, which is {:?}'s",
            plan.member_of(number)
        )
    })
}

/// Partitions move while their owner is a member, and not the one of the plan.
fn moves_are_bounded(oracle: &Oracle, zxid: Zxid) -> Result<(), Violation> {
    let plan = plan(oracle, zxid);
    let moves = |number: &usize| {
        let Some(owner) = owner(oracle, *number, zxid) else { return false };
        let name = String::from_utf8_lossy(&owner.data);
        let session =
            member(oracle, &owner.data, zxid).and_then(|member| member.stat.ephemeral_owner);
        session == owner.stat.ephemeral_owner && plan.member_of(*number) != Some(&*name)
    };
    let moving: Vec<usize> = (0..COUNT).filter(moves).collect();
    require(moving.len() <= MOVES, "moves are bounded", || {
        format!("{moving:?} are moving after write {zxid}")
    })
}
