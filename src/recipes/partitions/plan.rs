//! Which member each partition is planned for: a pure function of the former plan and the members.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::member::PartitionMember;
#[cfg(any(test, fuzzing))]
use super::member::StoredMember;
use crate::recipes::codec::{Codec, Postcard};

/// Which member each partition is planned for: see [`Partitions::plan`](super::Partitions::plan).
///
/// [`PartitionPlan::next`] is the function by which plans are made, to see beforehand what a change of the members
/// would move.
///
/// ```
/// use quorate::recipes::{PartitionMember, PartitionPlan};
///
/// let of = |names: &[&str]| names.iter().map(|name| (*name).into()).collect::<Vec<PartitionMember>>();
/// let plan = PartitionPlan::new(6).next(&of(&["a", "b"]), usize::MAX);
/// assert_eq!(plan.partitions_of("a"), [0, 1, 2]);
///
/// // A third member gets two partitions, and the others keep the rest.
/// let next = plan.next(&of(&["a", "b", "c"]), usize::MAX);
/// assert_eq!((next.partitions_of("a"), next.partitions_of("c")), (vec![0, 1], vec![2, 5]));
/// assert_eq!(plan.moves_to(&next), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionPlan {
    /// The names and zones of the members that have partitions, sorted by name.
    members: Vec<(String, String)>,
    /// For each partition, one more than its member's place in the list; 0 if it has none.
    owners: Vec<u32>,
}

impl PartitionPlan {
    /// A plan with this number of partitions, none of which has a member.
    pub fn new(partitions: usize) -> PartitionPlan {
        PartitionPlan { members: Vec::new(), owners: vec![0; partitions] }
    }

    pub(crate) fn partitions(&self) -> usize {
        self.owners.len()
    }

    /// The name of the member for which the partition with this number is planned.
    pub fn member_of(&self, partition: usize) -> Option<&str> {
        self.planned(partition).map(|(name, _)| &**name)
    }

    /// The numbers of the partitions that are planned for a member, in order.
    pub fn partitions_of(&self, member: &str) -> Vec<usize> {
        let at = self.members.iter().position(|(name, _)| name == member);
        let Some(number) = at.and_then(|at| u32::try_from(at + 1).ok()) else { return Vec::new() };
        let all = self.owners.iter().enumerate();
        all.filter(|(_, owner)| **owner == number).map(|(partition, _)| partition).collect()
    }

    /// How many partitions have a member here and another one, or none, in the next plan.
    pub fn moves_to(&self, next: &PartitionPlan) -> usize {
        let moves = |partition: &usize| {
            let now = self.member_of(*partition);
            now.is_some() && now != next.member_of(*partition)
        };
        (0..self.partitions()).filter(moves).count()
    }

    /// The plan that follows this one with these members.
    ///
    /// - **Balanced:** each member has its part by weight, rounded up or down. So members of equal weights differ by one
    ///   partition at most.
    /// - **Sticky:** no other plan with this balance takes fewer partitions from members that are still there.
    /// - **Zones:** a partition that leaves its member goes to one in the same zone if one there has room.
    /// - **Bounded:** at most `moves` partitions are taken from members that are still there, first from those of
    ///   weight 0, so that balance takes several plans. The partitions of members that are gone do not count.
    /// - **Deterministic:** the order of the members does not matter. Of several with one name, one counts.
    ///
    /// A member that [is silent](PartitionMember::is_silent) counts as one that is gone.
    pub fn next(&self, members: &[PartitionMember], moves: usize) -> PartitionPlan {
        self.next_beside(members, moves, &BTreeSet::new())
    }

    /// The plan that follows, in which what is planned for these other members stays so, and is not counted.
    pub(super) fn next_beside(
        &self,
        members: &[PartitionMember],
        moves: usize,
        kept: &BTreeSet<String>,
    ) -> PartitionPlan {
        if kept.is_empty() {
            return self.next_of_all(members, moves);
        }
        let planned: Vec<_> = (0..self.partitions()).map(|number| self.planned(number)).collect();
        let is_kept =
            |number: &usize| planned[*number].is_some_and(|(name, _)| kept.contains(name));
        let others: Vec<usize> = (0..self.partitions()).filter(|it| !is_kept(it)).collect();
        let of_others = others.iter().map(|number| self.owners[*number]).collect();
        let next = PartitionPlan { members: self.members.clone(), owners: of_others };
        let next = next.next_of_all(members, moves);
        let mut planned = planned;
        for (at, number) in others.into_iter().enumerate() {
            planned[number] = next.planned(at);
        }
        PartitionPlan::planned_for(&planned)
    }

    fn next_of_all(&self, members: &[PartitionMember], moves: usize) -> PartitionPlan {
        let mut members: Vec<&PartitionMember> =
            members.iter().filter(|member| !member.is_silent).collect();
        members.sort_by_key(|member| (&member.name, member.weight, &member.zone));
        members.dedup_by_key(|member| &member.name);
        let now = self.present(&members);
        let quotas = self.quotas(&members, &now);
        let mut to = self.assigned(&members, &now, &quotas);

        // Those that leave a member which is still there, members of weight 0 first.
        let mut moving: Vec<(bool, usize)> = Vec::new();
        for (partition, (now, to)) in now.iter().zip(&to).enumerate() {
            if let Some(at) = now
                && now != to
            {
                moving.push((members[*at].weight > 0, partition));
            }
        }
        moving.sort_unstable();
        for (_, partition) in moving.into_iter().skip(moves) {
            to[partition] = now[partition];
        }
        if planted!(PartitionForgotten)
            && let Some(orphan) = now.iter().rposition(Option::is_none)
        {
            to[orphan] = None;
        }
        PartitionPlan::of(&members, &to)
    }

    /// How many partitions the next plan takes from these members.
    pub(super) fn taken(&self, next: &PartitionPlan, members: &[PartitionMember]) -> usize {
        let is_taken = |partition: &usize| {
            let now = self.member_of(*partition);
            let stays = now == next.member_of(*partition);
            let is_there =
                |member: &PartitionMember| !member.is_silent && Some(&*member.name) == now;
            !stays && members.iter().any(is_there)
        };
        (0..self.partitions()).filter(is_taken).count()
    }

    fn of(members: &[&PartitionMember], to: &[Option<usize>]) -> PartitionPlan {
        let mut numbers = vec![0; members.len()];
        for at in to.iter().flatten() {
            numbers[*at] = 1;
        }
        let mut named = Vec::new();
        for (member, number) in members.iter().zip(&mut numbers) {
            if *number > 0 {
                named.push((member.name.clone(), member.zone.clone()));
                *number = named.len() as u32;
            }
        }
        let owners = to.iter().map(|at| at.map_or(0, |at| numbers[at])).collect();
        PartitionPlan { members: named, owners }
    }

    /// The plan with these names and zones of members.
    fn planned_for(planned: &[Option<&(String, String)>]) -> PartitionPlan {
        let members: BTreeMap<&String, &String> =
            planned.iter().flatten().map(|(name, zone)| (name, zone)).collect();
        let numbers: BTreeMap<&String, u32> = members.keys().copied().zip(1..).collect();
        let number = |planned: &Option<&(String, String)>| planned.map_or(0, |it| numbers[&it.0]);
        PartitionPlan {
            owners: planned.iter().map(number).collect(),
            members: (members.into_iter())
                .map(|(name, zone)| (name.clone(), zone.clone()))
                .collect(),
        }
    }

    /// The names of the members that have partitions, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|(name, _)| &**name)
    }

    fn planned(&self, partition: usize) -> Option<&(String, String)> {
        let number = *self.owners.get(partition)? as usize;
        self.members.get(number.checked_sub(1)?)
    }

    /// The present member of each partition, by its place in the list.
    fn present(&self, members: &[&PartitionMember]) -> Vec<Option<usize>> {
        let place = |(name, _): &(String, String)| {
            members.binary_search_by(|member| member.name.cmp(name)).ok()
        };
        let places: Vec<Option<usize>> = self.members.iter().map(place).collect();
        let of = |number: &u32| *places.get((*number as usize).checked_sub(1)?)?;
        self.owners.iter().map(of).collect()
    }

    /// How many partitions each member is to have: its part by weight, rounded down, or up for as many members as make
    /// the sum right. Those are the members that have more already, since each of them keeps one more in this way; then
    /// members of zones that lack room for their own partitions; then those with the largest remainders.
    fn quotas(&self, members: &[&PartitionMember], now: &[Option<usize>]) -> Vec<usize> {
        let partitions = self.partitions() as u64;
        let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
        if total == 0 {
            return vec![0; members.len()];
        }
        let mut counts = vec![0usize; members.len()];
        now.iter().flatten().for_each(|at| counts[*at] += 1);
        let parts: Vec<(usize, u64)> = (members.iter())
            .map(|member| partitions * u64::from(member.weight))
            .map(|part| ((part / total) as usize, part % total))
            .collect();
        let mut quotas: Vec<usize> = parts.iter().map(|(quota, _)| *quota).collect();
        let mut left = self.partitions() - quotas.iter().sum::<usize>();

        let mut rounded: Vec<usize> = (0..members.len()).filter(|at| parts[*at].1 > 0).collect();
        rounded.sort_by_key(|at| (counts[*at] <= quotas[*at], std::cmp::Reverse(parts[*at].1)));
        let keep = rounded.iter().take_while(|at| counts[**at] > quotas[**at]).count().min(left);
        let rest = rounded.split_off(keep);
        rounded.into_iter().for_each(|at| quotas[at] += 1);
        left -= keep;

        let mut crowded: BTreeMap<&str, i64> = BTreeMap::new();
        for (at, member) in members.iter().enumerate() {
            *crowded.entry(&member.zone).or_default() += counts[at] as i64 - quotas[at] as i64;
        }
        for (partition, now) in now.iter().enumerate() {
            if now.is_none()
                && let Some((_, zone)) = self.planned(partition)
            {
                *crowded.entry(zone).or_default() += 1;
            }
        }
        let mut rest = VecDeque::from(rest);
        while left > 0 {
            let is_crowded =
                |at: &usize| crowded.get(&*members[*at].zone).is_some_and(|by| *by > 0);
            let next = rest.iter().position(is_crowded).unwrap_or(0);
            // As many members have a remainder as are rounded up, at least.
            let Some(at) = rest.remove(next) else { break };
            quotas[at] += 1;
            left -= 1;
            crowded.entry(&members[at].zone).and_modify(|by| *by -= 1);
        }
        quotas
    }

    /// Keeps as many partitions at each member as its quota says, and gives the others to those that have room: in the
    /// same zone, or anywhere.
    fn assigned(
        &self,
        members: &[&PartitionMember],
        now: &[Option<usize>],
        quotas: &[usize],
    ) -> Vec<Option<usize>> {
        let mut left = quotas.to_vec();
        let mut to: Vec<Option<usize>> = vec![None; self.partitions()];
        let mut homeless = Vec::new();
        for (partition, now) in now.iter().enumerate() {
            match now {
                Some(at) if left[*at] > 0 => {
                    left[*at] -= 1;
                    to[partition] = Some(*at);
                }
                Some(at) => homeless.push((partition, Some(&*members[*at].zone))),
                None => {
                    homeless.push((partition, self.planned(partition).map(|(_, zone)| &**zone)))
                }
            }
        }
        // Each place that is free, once.
        let mut zones: BTreeMap<&str, VecDeque<usize>> = BTreeMap::new();
        for (at, member) in members.iter().enumerate() {
            zones.entry(&member.zone).or_default().extend(std::iter::repeat_n(at, left[at]));
        }
        homeless.retain(|(partition, zone)| {
            let free = zone.and_then(|zone| zones.get_mut(zone)?.pop_front());
            to[*partition] = free;
            free.is_none()
        });
        let mut free: Vec<usize> = zones.into_values().flatten().collect();
        free.sort_unstable();
        for ((partition, _), at) in homeless.into_iter().zip(free) {
            to[partition] = Some(at);
        }
        to
    }

    pub(super) fn encoded(&self) -> Result<Vec<u8>, String> {
        Postcard::encode(self)
    }

    /// The plan in a znode; without data, that of nobody.
    pub(crate) fn decoded(data: &[u8], partitions: usize) -> Result<PartitionPlan, String> {
        if data.is_empty() {
            return Ok(PartitionPlan::new(partitions));
        }
        let plan: PartitionPlan = Postcard::decode(data)?;
        let is_sorted = plan.members.is_sorted_by(|one, other| one.0 < other.0);
        let known = plan.owners.iter().all(|number| *number as usize <= plan.members.len());
        match plan.partitions() == partitions && is_sorted && known {
            true => Ok(plan),
            false => Err(format!("it is no plan of {partitions} partitions")),
        }
    }
}

/// Reads arbitrary bytes as a plan of so many partitions as the first of them says, and as the data of members, and makes
/// the next plans.
#[cfg(any(test, fuzzing))]
pub(in crate::recipes) fn fuzz(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let partitions = usize::from(*count);
    let mut members = Vec::new();
    for (number, data) in rest.chunks(8).take(5).enumerate() {
        members.extend(StoredMember::decoded(&format!("m{number}"), data).map(|it| it.member));
    }
    for data in [rest, &[]] {
        let Ok(plan) = PartitionPlan::decoded(data, partitions) else { continue };
        let next = plan.next(&members, partitions);
        assert_eq!(next.partitions(), partitions);
        let again = next.encoded().and_then(|data| PartitionPlan::decoded(&data, partitions));
        assert_eq!(again, Ok(next));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(plan: &PartitionPlan, members: &[PartitionMember]) -> Vec<usize> {
        members.iter().map(|member| plan.partitions_of(&member.name).len()).collect()
    }

    /// A few members with names, weights and zones.
    fn members() -> impl Strategy<Value = Vec<PartitionMember>> {
        let member = (0u32..12, 0u32..4, 0u32..3);
        proptest::collection::vec(member, 0..7).prop_map(|all| {
            let named: BTreeMap<u32, (u32, u32)> =
                all.into_iter().map(|(name, weight, zone)| (name, (weight, zone))).collect();
            let member = |(name, (weight, zone)): (u32, (u32, u32))| {
                PartitionMember::new(format!("m{name}")).weight(weight).zone(format!("z{zone}"))
            };
            named.into_iter().map(member).collect()
        })
    }

    /// The fewest partitions that any balanced plan takes from present members: of all choices who is rounded up.
    fn fewest_moves(plan: &PartitionPlan, members: &[PartitionMember]) -> usize {
        let total: usize = members.iter().map(|member| member.weight as usize).sum();
        let now = counts(plan, members);
        if total == 0 {
            return now.iter().sum();
        }
        let parts: Vec<usize> =
            members.iter().map(|member| plan.partitions() * member.weight as usize).collect();
        let left = plan.partitions() - parts.iter().map(|part| part / total).sum::<usize>();
        let choices = (0u32..1 << members.len()).filter(|choice| {
            let fits = (0..members.len())
                .all(|at| choice & (1 << at) == 0 || !parts[at].is_multiple_of(total));
            fits && choice.count_ones() as usize == left
        });
        let moves = choices.map(|choice| {
            let quota = |at: usize| parts[at] / total + (choice >> at & 1) as usize;
            (0..members.len()).map(|at| now[at].saturating_sub(quota(at))).sum()
        });
        moves.min().unwrap()
    }

    proptest! {
        #[test]
        fn plans_are_balanced_sticky_and_deterministic(
            partitions in 1usize..40, rounds in proptest::collection::vec(members(), 1..6),
        ) {
            let mut plan = PartitionPlan::new(partitions);
            for members in rounds {
                let next = plan.next(&members, usize::MAX);
                let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
                let counts = counts(&next, &members);
                for (member, count) in members.iter().zip(&counts) {
                    let part = partitions as u64 * u64::from(member.weight);
                    let off = (*count as u64 * total).abs_diff(part);
                    prop_assert!(total == 0 || off < total, "{counts:?} of {members:?}");
                }
                let owned: usize = counts.iter().sum();
                prop_assert_eq!(owned, if total > 0 { partitions } else { 0 });
                prop_assert_eq!(plan.taken(&next, &members), fewest_moves(&plan, &members));
                let mut reversed = members.clone();
                reversed.reverse();
                prop_assert_eq!(&plan.next(&reversed, usize::MAX), &next);
                prop_assert_eq!(&next.next(&members, usize::MAX), &next, "it stays");
                let data = next.encoded().unwrap();
                prop_assert_eq!(PartitionPlan::decoded(&data, partitions), Ok(next.clone()));
                plan = next;
            }
        }

        #[test]
        fn moves_are_bounded_and_come_to_the_same_balance(
            partitions in 1usize..40, before in members(), after in members(), moves in 1usize..5,
        ) {
            let mut plan = PartitionPlan::new(partitions).next(&before, usize::MAX);
            let fewest = fewest_moves(&plan, &after);
            let mut moved = 0;
            for round in 0..=partitions {
                let next = plan.next(&after, moves);
                let taken = plan.taken(&next, &after);
                prop_assert!(taken <= moves);
                moved += taken;
                if next == plan {
                    break;
                }
                prop_assert!(round < partitions, "it comes to an end");
                plan = next;
            }
            prop_assert_eq!(plan.next(&after, usize::MAX), plan, "it is balanced");
            prop_assert_eq!(moved, fewest, "no partition was moved twice");
        }
    }

    #[test]
    fn what_is_kept_for_a_member_that_is_gone_stays_and_the_rest_is_balanced() {
        let of = |names: &[&str]| -> Vec<PartitionMember> {
            names.iter().map(|name| PartitionMember::new(*name).zone("z")).collect()
        };
        let plan = PartitionPlan::new(9).next(&of(&["a", "b", "c"]), usize::MAX);
        let kept = BTreeSet::from(["b".to_owned()]);
        let same = plan.next_beside(&of(&["a", "c"]), usize::MAX, &kept);
        assert_eq!(same, plan, "nothing moves");
        let next = plan.next_beside(&of(&["a", "c", "d"]), usize::MAX, &kept);
        assert_eq!(next.partitions_of("b"), plan.partitions_of("b"));
        assert_eq!(counts(&next, &of(&["a", "b", "c", "d"])), [2, 3, 2, 2]);
        let data = next.encoded().unwrap();
        assert_eq!(PartitionPlan::decoded(&data, 9), Ok(next));
    }

    #[test]
    fn a_partition_stays_in_its_zone_when_balance_allows() {
        let of = |names: &[&str]| -> Vec<PartitionMember> {
            names.iter().map(|name| PartitionMember::new(*name).zone(&name[..1])).collect()
        };
        let plan = PartitionPlan::new(12).next(&of(&["a1", "a2", "b1", "b2"]), usize::MAX);
        let zone =
            |plan: &PartitionPlan, partition| plan.member_of(partition).unwrap()[..1].to_owned();
        let stay = |next: &PartitionPlan| {
            (0..12).filter(|partition| zone(&plan, *partition) == zone(next, *partition)).count()
        };
        // Another in each zone: two partitions of each zone move, and stay in it.
        assert_eq!(stay(&plan.next(&of(&["a1", "a2", "a3", "b1", "b2", "b3"]), usize::MAX)), 12);
        // One of zone a is gone: the other one takes one, and two go to zone b.
        let next = plan.next(&of(&["a1", "b1", "b2"]), usize::MAX);
        assert_eq!((stay(&next), plan.moves_to(&next)), (10, 3));
        // With a remainder: the members of the zone that lacks room are rounded up.
        let odd = PartitionPlan::new(5).next(&of(&["a1", "b1"]), usize::MAX);
        let next = odd.next(&of(&["a2", "b1", "c1"]), usize::MAX);
        let in_a = (0..5).filter(|it| odd.member_of(*it) == Some("a1")).collect::<Vec<_>>();
        let kept = in_a.iter().filter(|it| next.member_of(**it) == Some("a2")).count();
        assert_eq!(kept, 2, "{odd:?} {next:?}");
    }

    #[test]
    fn a_large_plan_is_small() {
        let members: Vec<PartitionMember> =
            (0..100).map(|at| PartitionMember::new(format!("10.0.0.{at}:8080"))).collect();
        let plan = PartitionPlan::new(10_000).next(&members, usize::MAX);
        let bytes = plan.encoded().unwrap().len();
        assert!((10_000..20_000).contains(&bytes), "{bytes}");
        for data in [&b"\0"[..], b"\x01", &[0xff; 100], &plan.encoded().unwrap()[1..]] {
            assert!(PartitionPlan::decoded(data, 10_000).is_err());
        }
        assert_eq!(PartitionPlan::decoded(b"", 3), Ok(PartitionPlan::new(3)));
    }
}
