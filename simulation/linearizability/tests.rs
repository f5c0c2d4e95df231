use proptest::prelude::*;

use super::*;

const NONE: u64 = u64::MAX;

/// Operations as call, time of the call, time of the return, and result. A return at [`NONE`] never
/// came.
fn verdict(operations: &[(Call, u64, u64, Return)]) -> Verdict {
    let mut history = History::default();
    for (call, called, at, result) in operations {
        let place = history.call("/a", *call, *called);
        if *at != NONE {
            history.answered(&place, Known::Returned(*result), *at);
        }
    }
    history.check()
}

fn is_linearizable(operations: &[(Call, u64, u64, Return)]) -> bool {
    match verdict(operations) {
        Verdict::Linearizable(count) => {
            assert_eq!(count, operations.len());
            true
        }
        Verdict::Not(_) => false,
        Verdict::Undecided(path) => panic!("{path} was not decided"),
    }
}

use Call::{Create, Delete, Read, Set};
use Return::{BadVersion, Done, NoNode, NodeExists, Value, Version};

#[test]
fn sequential_operations_are_linearizable() {
    assert!(is_linearizable(&[
        (Read, 1, 2, NoNode),
        (Create(7), 3, 4, Done),
        (Create(8), 5, 6, NodeExists),
        (Read, 7, 8, Value(7, 0)),
        (Set(9, None), 9, 10, Version(1)),
        (Set(10, Some(0)), 11, 12, BadVersion),
        (Read, 13, 14, Value(9, 1)),
        (Delete(Some(1)), 15, 16, Done),
        (Read, 17, 18, NoNode),
    ]));
}

#[test]
fn a_stale_read_is_not_linearizable() {
    let history =
        [(Create(1), 1, 2, Done), (Set(2, None), 3, 4, Version(1)), (Read, 5, 6, Value(1, 0))];
    assert!(!is_linearizable(&history));
    let Verdict::Not(anomaly) = verdict(&history) else { panic!("not found") };
    assert_eq!(anomaly.path, "/a");
    assert_eq!(
        anomaly.what,
        "1 at version 0 from 2 to 5, and Operation { call: Set(2, None), called: 3, returned: Some((Version(1), 4)) } does not fit"
    );
}

#[test]
fn a_read_that_undoes_an_earlier_read_is_not_linearizable() {
    // The write is outstanding all the time.
    let history = |second| {
        [
            (Create(1), 1, 2, Done),
            (Set(2, None), 3, 20, Version(1)),
            (Read, 4, 5, Value(2, 1)),
            (Read, 6, 7, second),
        ]
    };
    assert!(is_linearizable(&history(Value(2, 1))));
    assert!(!is_linearizable(&history(Value(1, 0))));
}

#[test]
fn a_lost_write_is_not_linearizable() {
    assert!(!is_linearizable(&[
        (Create(1), 1, 2, Done),
        (Set(2, None), 3, 4, Version(1)),
        (Set(3, None), 5, 6, Version(1)),
    ]));
}

#[test]
fn a_duplicated_write_is_not_linearizable() {
    assert!(!is_linearizable(&[
        (Create(1), 1, 2, Done),
        (Set(2, None), 3, 4, Version(1)),
        (Read, 5, 6, Value(2, 2)),
    ]));
}

#[test]
fn two_writes_of_one_version_are_not_linearizable() {
    let winner = |data| (Set(data, Some(0)), 3, 9, Version(1));
    assert!(!is_linearizable(&[(Create(1), 1, 2, Done), winner(2), winner(3)]));
    let loser = (Set(3, Some(0)), 3, 9, BadVersion);
    assert!(is_linearizable(&[(Create(1), 1, 2, Done), winner(2), loser]));
}

#[test]
fn an_unknown_write_may_happen_later_or_never() {
    let unknown = (Set(2, None), 3, NONE, Done);
    let create = (Create(1), 1, 2, Done);
    assert!(is_linearizable(&[create, unknown, (Read, 5, 6, Value(1, 0))]));
    assert!(is_linearizable(&[
        create,
        unknown,
        (Read, 5, 6, Value(1, 0)),
        (Read, 7, 8, Value(2, 1)),
    ]));
    // But not before its call, and only once.
    assert!(!is_linearizable(&[create, (Set(2, None), 7, NONE, Done), (Read, 5, 6, Value(2, 1)),]));
    assert!(!is_linearizable(&[
        create,
        unknown,
        (Read, 5, 6, Value(2, 1)),
        (Set(3, None), 7, 8, Version(2)),
        (Read, 9, 10, Value(2, 3)),
    ]));
}

#[test]
fn a_refused_write_has_no_effect() {
    let mut history = History::default();
    let place = history.call("/a", Create(1), 1);
    history.answered(&place, Known::Refused, 2);
    assert!(matches!(history.check(), Verdict::Linearizable(1)));
    let place = history.call("/a", Read, 3);
    history.answered(&place, Known::Returned(Value(1, 0)), 4);
    assert!(matches!(history.check(), Verdict::Not(_)));
}

#[test]
fn many_unknown_writes_do_not_stop_the_search() {
    let mut operations = vec![(Create(0), 1, 2, Done)];
    operations.extend((1..60).map(|data| (Set(data, None), 3, NONE, Done)));
    let mut now = 10;
    for (version, data) in [(1, 40), (2, 3), (3, 17)] {
        operations.push((Read, now, now + 1, Value(data, version)));
        now += 2;
    }
    assert!(is_linearizable(&operations));
}

/// A history of clients whose members are killed. Each moment begins an outage with the probability
/// of one in `outage`. During an outage no replies come, and nobody knows whether the calls take
/// effect.
fn with_outages(seed: u64, clients: usize, length: usize, outage: u64) -> Vec<Operation> {
    let mut random = seed;
    let mut below = |end: u64| {
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    };
    let mut state = None;
    let mut operations: Vec<Operation> = Vec::new();
    // Each client's outstanding operation, with its result once it has taken effect.
    let mut open: Vec<Option<(usize, Option<Return>)>> = vec![None; clients];
    let mut now = 0;
    let mut ends = 0;
    while operations.len() < length {
        now += 1;
        let client = below(clients as u64) as usize;
        if now > ends && below(outage) == 0 {
            ends = now + 100 * clients as u64;
        }
        match open[client] {
            None => {
                let (data, version) = (now << 16, below(4));
                let call = match below(12) {
                    0..2 => Create(data),
                    2..5 => Set(data, None),
                    5 => Set(data, Some(version)),
                    6 => Delete(None),
                    7 => Delete(Some(version)),
                    _ => Read,
                };
                open[client] = Some((operations.len(), None));
                operations.push(Operation { call, called: now, returned: None });
            }
            Some((number, None)) if now > ends || below(1_000) == 0 => {
                let (after, gives) = step(state, operations[number].call);
                state = after;
                open[client] = Some((number, Some(gives)));
            }
            Some((number, Some(gives))) if now > ends => {
                operations[number].returned = Some((gives, now));
                open[client] = None;
            }
            // The request times out or its member is killed. It may still take effect later.
            Some(_) if below(40) == 0 => {
                if let Some((number, None)) = open[client].take()
                    && below(4) == 0
                {
                    let (after, _) = step(state, operations[number].call);
                    state = after;
                }
            }
            Some(_) => {}
        }
    }
    operations
}

#[test]
fn histories_with_outages_are_decided() {
    for seed in 0..8 {
        let mut operations = with_outages(seed, 5 + seed as usize, 2_000, 300);
        let unknown = operations.iter().filter(|operation| operation.returned.is_none());
        assert!(unknown.count() > 100);
        let check = |operations: &[Operation]| {
            History { znodes: BTreeMap::from([("/a".to_owned(), operations.to_vec())]) }.check()
        };
        assert!(matches!(check(&operations), Verdict::Linearizable(2_000)), "{seed}");
        // One read shows what another read showed long before.
        let reads: Vec<usize> = (0..operations.len())
            .filter(|number| matches!(operations[*number].returned, Some((Value(..), _))))
            .collect();
        let (early, late) = (reads[reads.len() / 2], reads[reads.len() * 3 / 4]);
        let at = operations[late].returned.map_or(0, |(_, at)| at);
        operations[late].returned = operations[early].returned.map(|(shown, _)| (shown, at));
        assert!(matches!(check(&operations), Verdict::Not(_)), "{seed}");
    }
}

/// Tries all orders that real time allows, without any optimization.
fn is_linearizable_by_brute_force(left: &[Operation], state: State) -> bool {
    let deadline = left.iter().filter_map(|op| op.returned).map(|(_, at)| at).min();
    let Some(deadline) = deadline else { return true };
    (0..left.len()).filter(|number| left[*number].called <= deadline).any(|number| {
        let operation = left[number];
        let (after, gives) = step(state, operation.call);
        let fits = operation.returned.is_none_or(|(gave, _)| gave == gives);
        let mut rest = left.to_vec();
        rest.remove(number);
        fits && is_linearizable_by_brute_force(&rest, after)
    })
}

fn some_call() -> impl Strategy<Value = Call> {
    let version = || prop_oneof![Just(None), (0_u64..3).prop_map(Some)];
    prop_oneof![
        (0_u64..4).prop_map(Create),
        (0_u64..4, version()).prop_map(|(data, version)| Set(data, version)),
        version().prop_map(Delete),
        Just(Read),
        Just(Read),
    ]
}

fn some_return() -> impl Strategy<Value = Return> {
    prop_oneof![
        Just(Done),
        (1_u64..3).prop_map(Version),
        (0_u64..4, 0_u64..3).prop_map(|(data, version)| Value(data, version)),
        Just(NoNode),
        Just(NodeExists),
        Just(BadVersion),
    ]
}

proptest! {
    #[test]
    fn the_search_finds_what_brute_force_finds(
        drawn in prop::collection::vec(
            (some_call(), 0_u64..12, 1_u64..6, some_return(), 0..4_u8, any::<bool>()),
            1..7,
        ),
    ) {
        // Half of the results come from a real order, so that both verdicts are common.
        let mut state = None;
        let mut operations = Vec::new();
        for (call, called, takes, wild, known, truly) in drawn {
            let (after, gives) = step(state, call);
            state = after;
            let gave = if truly { gives } else { wild };
            let returned = (known > 0).then_some((gave, called + takes));
            operations.push(Operation { call, called, returned });
        }
        let history = History { znodes: BTreeMap::from([("/a".to_owned(), operations.clone())]) };
        let found = match history.check() {
            Verdict::Linearizable(_) => true,
            Verdict::Not(_) => false,
            Verdict::Undecided(_) => panic!("so few are always decided"),
        };
        prop_assert_eq!(found, is_linearizable_by_brute_force(&operations, None));
    }
}
