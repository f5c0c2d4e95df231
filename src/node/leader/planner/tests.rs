//! What the plan does in which situation, and what it never does.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::planted::{Bug, claims, plant};

const POLICY: MembershipPolicy =
    MembershipPolicy { max_voters: 5, replace_after: Duration::from_secs(60) };
const ALIVE: PeerHealth = PeerHealth {
    silent: Duration::ZERO,
    sends: true,
    answers: true,
    level: true,
    caught_up: true,
    is_fit: true,
};

fn dead_for(seconds: u64) -> PeerHealth {
    PeerHealth { silent: Duration::from_secs(seconds), ..PeerHealth::default() }
}

/// Node 1 leads.
fn view(voters: &[NodeId], learners: &[NodeId]) -> PlanInputs {
    let all = || voters.iter().chain(learners);
    let seats = all().map(|node| Seat {
        member: Member::new(*node, format!("node-{node}:1")),
        votes: voters.contains(node),
    });
    PlanInputs {
        own: 1,
        voters: voters.iter().copied().collect(),
        learners: learners.iter().copied().collect(),
        health: all().filter(|node| **node != 1).map(|node| (*node, ALIVE)).collect(),
        roster: Roster::new(seats.collect()),
        ..PlanInputs::default()
    }
}

fn vote(steps: &[(NodeId, NodeRole)]) -> Option<PlannedAction> {
    Some(PlannedAction::Vote(VotingChange::of(steps.iter().copied())))
}

#[test]
fn voters_are_as_many_as_they_may_be_and_odd() {
    let plan = |voters: &[NodeId], learners: &[NodeId]| plan(&view(voters, learners), &POLICY);
    assert_eq!(plan(&[1], &[]), None);
    assert_eq!(plan(&[1], &[2]), None);
    assert_eq!(plan(&[1], &[2, 3]), vote(&[(2, NodeRole::Voter), (3, NodeRole::Voter)]));
    assert_eq!(plan(&[1, 2], &[3]), vote(&[(3, NodeRole::Voter)]));
    assert_eq!(plan(&[1, 2, 3], &[4]), None);
    assert_eq!(plan(&[1, 2, 3, 4], &[5]), vote(&[(5, NodeRole::Voter)]));
    assert_eq!(plan(&[1, 2, 3, 4, 5], &[6, 7, 8]), None);
    assert_eq!(plan(&[1, 2, 3, 4, 5, 6], &[]), vote(&[(6, NodeRole::Learner)]));
}

#[test]
fn the_fit_voter_of_the_highest_priority_leads() {
    let mut view = view(&[1, 2, 3, 4], &[]);
    assert_eq!(plan(&view, &POLICY), None);
    for (seat, priority) in view.roster.seats.iter_mut().zip([1, 2, 1, 3]) {
        seat.member.leader_priority = priority;
    }
    assert_eq!(plan(&view, &POLICY), Some(PlannedAction::Prefer(4)));
    view.health.insert(4, PeerHealth { is_fit: false, ..ALIVE });
    assert_eq!(plan(&view, &POLICY), Some(PlannedAction::Prefer(2)));
    view.own = 2;
    assert_eq!(plan(&view, &POLICY), None);
    plant(Some(Bug::LeadPriorityIgnored));
    view.own = 1;
    assert_eq!(plan(&view, &POLICY), None);
}

#[test]
fn voters_are_spread_over_zones() {
    let mut view = view(&[1, 2, 3], &[4, 5, 6]);
    for seat in &mut view.roster.seats {
        let node = seat.member.node;
        seat.member.zone = if [1, 2, 4, 5].contains(&node) { "east" } else { "west" }.to_owned();
    }
    // The second zone counts with the first promotion.
    assert_eq!(plan(&view, &POLICY), vote(&[(6, NodeRole::Voter), (4, NodeRole::Voter)]));
}

#[test]
fn votes_move_to_a_zone_that_has_fewer_by_two() {
    let mut view = view(&[1, 2, 3], &[4, 5]);
    let zones = ["east", "east", "east", "west", ""];
    for (seat, zone) in view.roster.seats.iter_mut().zip(zones) {
        seat.member.zone = zone.to_owned();
    }
    let policy = MembershipPolicy { max_voters: 3, ..POLICY };
    // A member without a zone is in one of its own.
    assert_eq!(plan(&view, &policy), vote(&[(3, NodeRole::Learner), (4, NodeRole::Voter)]));
    view.health.insert(4, PeerHealth { caught_up: false, ..ALIVE });
    assert_eq!(plan(&view, &policy), vote(&[(3, NodeRole::Learner), (5, NodeRole::Voter)]));
    view.health.insert(2, dead_for(2));
    assert_eq!(plan(&view, &policy), None);
    view.health.insert(2, ALIVE);
    view.voters = BTreeSet::from([1, 2, 5]);
    view.learners = BTreeSet::from([3, 4]);
    view.health.insert(4, ALIVE);
    view.roster.seats.iter_mut().for_each(|seat| {
        seat.votes = [1, 2, 5].contains(&seat.member.node);
    });
    assert_eq!(plan(&view, &policy), vote(&[(2, NodeRole::Learner), (4, NodeRole::Voter)]));
}

#[test]
fn the_dead_are_relieved_after_a_while_if_somebody_can_take_their_vote() {
    let mut view = view(&[1, 2, 3], &[4]);
    view.health.insert(2, dead_for(59));
    assert_eq!(plan(&view, &POLICY), None);
    view.health.insert(2, dead_for(60));
    assert_eq!(plan(&view, &POLICY), vote(&[(2, NodeRole::Learner), (4, NodeRole::Voter)]));
    view.health.insert(4, PeerHealth { caught_up: false, ..ALIVE });
    assert_eq!(plan(&view, &POLICY), None);
}

/// A voter without room counted as a spare one, and kept its vote beside learners with room.
#[test]
fn a_vote_moves_from_a_full_disk_to_one_with_room() {
    let low = |nodes: &[NodeId], seconds| {
        nodes.iter().map(|node| (*node, Duration::from_secs(seconds))).collect()
    };
    let policy = MembershipPolicy { max_voters: 3, ..POLICY };
    let mut view = view(&[1, 2, 3], &[4, 5]);
    view.disk_low = low(&[3, 4], 59);
    assert_eq!(plan(&view, &policy), None);
    view.disk_low = low(&[3, 4], 60);
    assert_eq!(plan(&view, &policy), vote(&[(3, NodeRole::Learner), (5, NodeRole::Voter)]));
    view.disk_low = low(&[3, 4, 5], 60);
    assert_eq!(plan(&view, &policy), None);
    // The leader hands over by itself, if another has room.
    view.disk_low = low(&[1], 60);
    assert_eq!(plan(&view, &policy), None);
}

/// Writes were refused by the leader's own plan, when it took the votes of members with room, or gave votes to others.
#[test]
fn no_plan_makes_full_disks_the_majority() {
    let low = |nodes: &[NodeId]| nodes.iter().map(|node| (*node, Duration::ZERO)).collect();
    let mut more = view(&[1], &[2, 3]);
    more.disk_low = low(&[2, 3]);
    assert_eq!(plan(&more, &POLICY), None);
    more.disk_low = low(&[2]);
    assert_eq!(plan(&more, &POLICY), vote(&[(3, NodeRole::Voter), (2, NodeRole::Voter)]));
    more.disk_low = low(&[1, 2, 3]);
    assert_eq!(plan(&more, &POLICY), vote(&[(2, NodeRole::Voter), (3, NodeRole::Voter)]));
    // One of three may be lost, and of five with two full disks none.
    let mut more = view(&[1, 2, 3], &[4, 5]);
    more.disk_low = low(&[4, 5]);
    assert_eq!(plan(&more, &POLICY), None);
    let mut fewer = view(&[1, 2, 3, 4], &[]);
    fewer.disk_low = low(&[2]);
    let policy = MembershipPolicy { max_voters: 3, ..POLICY };
    assert_eq!(plan(&fewer, &policy), vote(&[(2, NodeRole::Learner)]));
    let mut leaving = view(&[1, 2, 3], &[]);
    (leaving.disk_low, leaving.leaving) = (low(&[2]), BTreeSet::from([3]));
    assert_eq!(plan(&leaving, &POLICY), None);
    leaving.leaving = BTreeSet::from([2]);
    assert_eq!(plan(&leaving, &POLICY), vote(&[(2, NodeRole::Learner)]));
}

#[test]
fn a_dead_learner_is_forgotten_and_sooner_if_nothing_is_put_down_of_it() {
    let mut view = view(&[1, 2, 3], &[4]);
    view.health.insert(4, dead_for(599));
    assert_eq!(plan(&view, &POLICY), None);
    view.health.insert(4, dead_for(600));
    assert_eq!(plan(&view, &POLICY), vote(&[(4, NodeRole::Gone)]));
    view.roster.seats.retain(|seat| seat.member.node != 4);
    view.health.insert(4, dead_for(59));
    assert_eq!(plan(&view, &POLICY), None);
    view.health.insert(4, dead_for(60));
    assert_eq!(plan(&view, &POLICY), vote(&[(4, NodeRole::Gone)]));
}

/// If all learners were promoted, a dead voter would stay. So a learner takes its vote first.
#[test]
fn learners_take_the_votes_of_the_dead_before_they_are_more() {
    let mut view = view(&[1, 2, 3], &[4, 5]);
    view.health.insert(2, dead_for(2));
    assert_eq!(plan(&view, &POLICY), None);
    view.health.insert(2, dead_for(60));
    assert_eq!(plan(&view, &POLICY), vote(&[(2, NodeRole::Learner), (4, NodeRole::Voter)]));
}

/// Two instances have one address: one of them is a copy, or the older one has just been replaced.
#[test]
fn a_member_that_is_alive_keeps_its_place() {
    let claim = || {
        let mut view = view(&[1, 2, 3], &[4]);
        view.roster.seats[3].member.address = "node-3:1".to_owned();
        assert_eq!(plan(&view, &POLICY), None);
        view.health.insert(3, dead_for(1));
        assert_eq!(plan(&view, &POLICY), vote(&[(3, NodeRole::Learner), (4, NodeRole::Voter)]));
    };
    claims(claim, Bug::LivingReplaced);
}

#[test]
fn a_change_that_could_stop_everything_is_not_made() {
    let mut view = view(&[1, 2, 3], &[]);
    view.health.insert(2, dead_for(1));
    view.leaving.insert(3);
    // Two voters would be left, one of which is dead.
    assert_eq!(plan(&view, &POLICY), None);
    plant(Some(Bug::VoterRemovedBelowQuorum));
    assert_eq!(plan(&view, &POLICY), vote(&[(3, NodeRole::Learner)]));
    plant(None);
}

#[test]
fn a_learner_that_is_to_leave_gets_no_vote() {
    // A third voter is wanted.
    let mut view = view(&[1, 2], &[3]);
    assert_eq!(plan(&view, &POLICY), vote(&[(3, NodeRole::Voter)]));
    view.leaving.insert(3);
    assert_ne!(plan(&view, &POLICY), vote(&[(3, NodeRole::Voter)]));
}

/// A new leader counts no member as dead that it has not listened for, and none as alive.
#[test]
fn a_member_that_has_sent_nothing_yet_is_not_counted_on() {
    let mut view = view(&[1, 2, 3], &[]);
    view.health.insert(2, PeerHealth { sends: false, ..ALIVE });
    view.leaving.insert(3);
    assert_eq!(plan(&view, &POLICY), None);
    view.health.insert(2, ALIVE);
    assert_eq!(plan(&view, &POLICY), vote(&[(3, NodeRole::Learner)]));
}

#[test]
fn a_leader_that_leaves_hands_over_or_makes_a_successor_first() {
    let mut view = view(&[1, 2, 3], &[]);
    view.leaving.insert(1);
    assert_eq!(plan(&view, &POLICY), Some(PlannedAction::HandOver));
    let mut view = super::tests::view(&[1], &[2]);
    view.leaving.insert(1);
    assert_eq!(plan(&view, &POLICY), vote(&[(2, NodeRole::Voter)]));
}

/// Two instances exchange their addresses, one after the other. The first to come back takes
/// the other's address, and not its place in the cluster.
#[test]
fn a_member_that_moves_to_a_silent_one_s_address_does_not_take_its_place() {
    let mut view = view(&[1, 2, 3], &[]);
    view.health.insert(2, dead_for(2));
    view.reports.insert(3, Member::new(3, "node-2:1"));
    let Some(PlannedAction::Configure(seats)) = plan(&view, &POLICY) else {
        panic!("its new address is put down");
    };
    view.roster = Roster { seats };
    let address = |view: &PlanInputs, node| view.roster.get(node).unwrap().member.address.clone();
    assert_eq!((address(&view, 2), address(&view, 3)), (String::new(), "node-2:1".to_owned()));
    view.reports.clear();
    assert_eq!(plan(&view, &POLICY), None);
    view.health.insert(2, ALIVE);
    view.reports.insert(2, Member::new(2, "node-3:1"));
    let Some(PlannedAction::Configure(seats)) = plan(&view, &POLICY) else {
        panic!("its new address is put down");
    };
    view.roster = Roster { seats };
    assert_eq!((address(&view, 2), address(&view, 3)), ("node-3:1".into(), "node-2:1".into()));
}

fn views() -> impl Strategy<Value = PlanInputs> {
    let seconds = prop_oneof![3 => Just(0u64), 1 => 1..1000u64];
    let observed = vec((seconds, any::<bool>(), any::<bool>(), any::<bool>()), 10);
    let reports = vec((1..14u64, 1..14u64), 0..4);
    let parts = (btree_set(1..10u64, 0..7), btree_set(1..10u64, 0..5));
    let zones = vec(prop_oneof![Just(""), Just("east"), Just("west")], 14);
    let low = btree_map(1..12u64, (0..120u64).prop_map(Duration::from_secs), 0..4);
    (parts, observed, (reports, zones), (btree_set(1..12u64, 0..3), low)).prop_map(
        |((mut voters, learners), observed, (reports, zones), (leaving, low))| {
            voters.insert(1);
            let voters: Vec<NodeId> = voters.into_iter().collect();
            let learners: Vec<NodeId> =
                learners.into_iter().filter(|node| !voters.contains(node)).collect();
            let mut view = view(&voters, &learners);
            for (node, health) in &mut view.health {
                let (seconds, answers, level, caught_up) = observed[*node as usize];
                let silent = Duration::from_secs(seconds);
                let sends = seconds == 0;
                let answers = answers && sends;
                let level = level && answers;
                let caught_up = caught_up && level;
                *health =
                    PeerHealth { silent, sends, answers, level, caught_up, is_fit: caught_up };
            }
            for seat in &mut view.roster.seats {
                seat.member.zone = zones[seat.member.node as usize].to_owned();
                seat.member.leader_priority = i32::from(seat.member.zone == "east");
            }
            let report = |(node, at)| {
                let zone = zones[node as usize].to_owned();
                (node, Member { zone, ..Member::new(node, format!("node-{at}:1")) })
            };
            view.reports = reports.into_iter().map(report).collect();
            (view.leaving, view.disk_low) = (leaving, low);
            view
        },
    )
}

/// Unless another action comes first, because not all members are alive.
fn is_spread(view: &PlanInputs) -> bool {
    let mut voters: BTreeMap<&str, usize> = BTreeMap::new();
    for seat in view.roster.seats.iter().filter(|seat| view.voters.contains(&seat.member.node)) {
        *voters.entry(&seat.member.zone).or_default() += 1;
    }
    let most = voters.iter().filter(|(zone, _)| !zone.is_empty()).map(|(_, count)| *count);
    let most = most.max().unwrap_or(0);
    let could = |seat: &&Seat| {
        let node = seat.member.node;
        view.learners.contains(&node)
            && view.health.get(&node).is_some_and(|health| health.caught_up)
            && !view.leaving.contains(&node)
            && !view.disk_low.contains_key(&node)
    };
    let fewest = view.roster.seats.iter().filter(could).map(|seat| match &*seat.member.zone {
        "" => 0,
        zone => voters.get(zone).copied().unwrap_or(0),
    });
    let all = view.voters.iter().all(|voter| view.is_alive(*voter));
    !all || fewest.min().is_none_or(|fewest| most < fewest + 2)
}

fn decides(view: &PlanInputs, voters: &BTreeSet<NodeId>) -> bool {
    let alive = voters.iter().filter(|node| view.is_alive(**node)).count();
    alive > voters.len() / 2
}

proptest! {
    #[test]
    fn no_plan_does_what_may_never_be_done(view in views()) {
        let action = plan(&view, &POLICY);
        if let Some(PlannedAction::Vote(change)) = &action {
            let mut after = view.voters.clone();
            for (node, part) in &change.steps {
                let was = view.voters.contains(node);
                match part {
                    NodeRole::Voter => {
                        let level = view.health.get(node).is_some_and(|health| health.caught_up);
                        prop_assert!(was || level, "{node} votes before it has the log");
                        after.insert(*node);
                    }
                    NodeRole::Learner | NodeRole::Gone => {
                        prop_assert!(*node != view.own, "the leader itself");
                        after.remove(node);
                    }
                }
                prop_assert!(view.is_member(*node) || view.roster.get(*node).is_some());
                if *part == NodeRole::Gone && !view.leaving.contains(node) {
                    prop_assert!(!view.is_alive(*node), "{node} is alive and stays");
                }
            }
            prop_assert!(decides(&view, &view.voters), "nobody could decide on it");
            prop_assert!(decides(&view, &after), "nobody could decide after it");
            let writes = |voters: &BTreeSet<NodeId>| {
                let room = voters.iter().filter(|node| !view.disk_low.contains_key(node));
                room.filter(|node| view.is_alive(**node)).count() > voters.len() / 2
            };
            prop_assert!(writes(&after) || !writes(&view.voters), "nothing could be written after it");
            prop_assert!(change.steps.len() <= POLICY.max_voters);
        }
    }

    /// From any start, the plans end with nothing left to do.
    #[test]
    fn plans_come_to_an_end(mut view in views()) {
        for _ in 0..100 {
            match plan(&view, &POLICY) {
                None => {
                    prop_assert!(is_spread(&view), "{view:?}");
                    return Ok(());
                }
                Some(PlannedAction::HandOver) => {
                    let voters = view.voters.clone();
                    let next = voters.into_iter().find(|node| {
                        *node != view.own && view.is_alive(*node)
                    });
                    let next = next.expect("it is handed over to somebody");
                    view.health.remove(&next);
                    view.health.insert(view.own, ALIVE);
                    view.own = next;
                }
                Some(PlannedAction::Prefer(successor)) => {
                    let priority = |node| view.roster.get(node).unwrap().member.leader_priority;
                    prop_assert!(priority(successor) > priority(view.own), "{view:?}");
                    prop_assert!(view.voters.contains(&successor) && view.health[&successor].is_fit);
                    view.health.remove(&successor);
                    view.health.insert(view.own, ALIVE);
                    view.own = successor;
                }
                Some(PlannedAction::Configure(seats)) => view.roster = Roster { seats },
                Some(PlannedAction::Vote(change)) => {
                    for (node, part) in change.steps {
                        view.voters.remove(&node);
                        view.learners.remove(&node);
                        match part {
                            NodeRole::Voter => drop(view.voters.insert(node)),
                            NodeRole::Learner => drop(view.learners.insert(node)),
                            NodeRole::Gone => {
                                view.reports.remove(&node);
                            }
                        }
                        if part != NodeRole::Gone && node != view.own {
                            view.health.entry(node).or_insert(ALIVE);
                        }
                    }
                }
            }
        }
        prop_assert!(false, "there is always something left to do");
    }
}
