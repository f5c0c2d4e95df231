//! Whether what clients saw of single znodes has one order in which each
//! operation happened at some moment between its call and its return
//! (Herlihy and Wing 1990).
//!
//! The check is Wing and Gong's search with Lowe's memory of what has been
//! tried (2017): it knows nothing of the log, of zxids or of the engine. An
//! operation on several znodes counts for each of them on its own: that is
//! weaker than the whole, and never wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

use crate::types::error::{Error, Result};

/// What was asked of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// To create it with this data.
    Create(u64),
    /// To set its data, if it has this version.
    Set(u64, Option<u64>),
    /// To delete it, if it has this version.
    Delete(Option<u64>),
    /// A linearizable read.
    Read,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// Created, or deleted.
    Done,
    /// Set, and has this version now.
    Version(u64),
    /// What a read showed: the data and the version.
    Value(u64, u64),
    /// There is no such znode.
    NoNode,
    /// There is one already.
    NodeExists,
    /// Its version is another.
    BadVersion,
}

/// What is known of an operation when its answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It happened, and gave this.
    Returned(Return),
    /// It did not happen, and never will.
    Refused,
}

impl Known {
    /// What an answer says; `None` if it leaves open whether it has happened.
    pub fn of<T>(answer: &Result<T>, done: impl FnOnce(&T) -> Return) -> Option<Known> {
        Some(Known::Returned(match answer {
            Ok(value) => done(value),
            Err(Error::NoNode { .. }) => Return::NoNode,
            Err(Error::NodeExists { .. }) => Return::NodeExists,
            Err(Error::BadVersion { .. }) => Return::BadVersion,
            Err(error) if error.is_outcome_unknown() => return None,
            Err(_) => return Some(Known::Refused),
        }))
    }
}

/// One operation of a history.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What was asked.
    pub call: Call,
    /// When, by any clock that all clients share.
    pub called: u64,
    /// What came of it, and when; `None` when nobody knows.
    pub returned: Option<(Return, u64)>,
}

/// What clients saw, by znode.
#[derive(Clone, Debug, Default)]
pub struct History {
    znodes: BTreeMap<String, Vec<Operation>>,
}

/// Why a history is not linearizable.
#[derive(Clone, Debug)]
pub struct Anomaly {
    /// The znode.
    pub path: String,
    /// How many of its operations have an order.
    pub ordered: usize,
    /// The state after those, and the operation that does not fit in anywhere.
    pub what: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} operations in order, then {}", self.path, self.ordered, self.what)
    }
}

/// The outcome of a check.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// There is such an order for every znode; how many operations it has in all.
    Linearizable(usize),
    /// There is none.
    Not(Anomaly),
    /// It was not found out within the search's bounds.
    Undecided(String),
}

/// Where an operation is in its history.
#[derive(Clone, Debug)]
pub struct Place(String, usize);

impl History {
    /// Notes that something was asked for.
    pub fn call(&mut self, path: &str, call: Call, now: u64) -> Place {
        let operations = self.znodes.entry(path.to_owned()).or_default();
        operations.push(Operation { call, called: now, returned: None });
        Place(path.to_owned(), operations.len() - 1)
    }

    /// Notes what came of it.
    pub fn answered(&mut self, place: &Place, known: Known, now: u64) {
        let operations = self.znodes.get_mut(&place.0);
        let Some(operation) = operations.and_then(|all| all.get_mut(place.1)) else { return };
        match known {
            Known::Returned(what) => operation.returned = Some((what, now)),
            // It must not show anywhere: a read without a result says nothing, and changes nothing.
            Known::Refused => operation.call = Call::Read,
        }
    }

    /// Looks for the order.
    pub fn check(&self) -> Verdict {
        let mut count = 0;
        for (path, operations) in &self.znodes {
            count += operations.len();
            match Search::new(operations).run() {
                Ok(true) => {}
                Ok(false) => return Verdict::Undecided(path.clone()),
                Err((ordered, what)) => {
                    return Verdict::Not(Anomaly { path: path.clone(), ordered, what });
                }
            }
        }
        Verdict::Linearizable(count)
    }
}

/// A znode: its data and version, if it is there.
type State = Option<(u64, u64)>;

/// What an operation does to a znode, and what it answers.
fn step(state: State, call: Call) -> (State, Return) {
    let wrong = |version: Option<u64>, has: u64| version.is_some_and(|version| version != has);
    match (call, state) {
        (Call::Create(data), None) => (Some((data, 0)), Return::Done),
        (Call::Create(_), Some(_)) => (state, Return::NodeExists),
        (_, None) => (state, Return::NoNode),
        (Call::Set(_, version) | Call::Delete(version), Some((_, has))) if wrong(version, has) => {
            (state, Return::BadVersion)
        }
        (Call::Set(data, _), Some((_, has))) => (Some((data, has + 1)), Return::Version(has + 1)),
        (Call::Delete(_), Some(_)) => (None, Return::Done),
        (Call::Read, Some((data, version))) => (state, Return::Value(data, version)),
    }
}

/// The most steps of one search: some seconds.
const STEPS_MAX: u64 = 5_000_000;

/// Stands for all data that no read has shown.
const NEVER_READ: u64 = u64::MAX;

#[derive(Debug)]
struct Search<'a> {
    /// Operations that returned, by their calls; and those of which nobody knows.
    known: Vec<&'a Operation>,
    unknown: Vec<&'a Operation>,
    /// For each unknown one, what it is to the others: of those that do the same, the earliest can
    /// take the place of any other.
    alike: Vec<Call>,
    done: Vec<bool>,
    /// All known ones before this are done.
    first: usize,
    /// The sum of what is done, as a hash.
    digest: u128,
    state: State,
    /// What was tried, and led nowhere.
    tried: BTreeSet<(u128, State)>,
    taken: Vec<Taken>,
}

/// One operation that has its place in the order.
#[derive(Debug)]
struct Taken {
    number: usize,
    /// The state before it.
    state: State,
    first: usize,
    /// What else could have come here, the last to be tried first. Nothing, if it changed nothing:
    /// then it need not come later.
    others: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(operations: &'a [Operation]) -> Search<'a> {
        let mut known: Vec<&Operation> =
            operations.iter().filter(|operation| operation.returned.is_some()).collect();
        known.sort_by_key(|operation| operation.called);
        let changes =
            |operation: &&Operation| operation.returned.is_none() && operation.call != Call::Read;
        let mut unknown: Vec<&Operation> = operations.iter().filter(changes).collect();
        unknown.sort_by_key(|operation| operation.called);
        let read: BTreeSet<u64> = known
            .iter()
            .filter_map(|operation| match operation.returned {
                Some((Return::Value(data, _), _)) => Some(data),
                _ => None,
            })
            .collect();
        let alike = unknown.iter().map(|operation| match operation.call {
            Call::Create(data) if !read.contains(&data) => Call::Create(NEVER_READ),
            Call::Set(data, version) if !read.contains(&data) => Call::Set(NEVER_READ, version),
            call => call,
        });
        let alike = alike.collect();
        let done = vec![false; known.len() + unknown.len()];
        let tried = BTreeSet::new();
        Search {
            known,
            unknown,
            alike,
            done,
            first: 0,
            digest: 0,
            state: None,
            tried,
            taken: Vec::new(),
        }
    }

    fn operation(&self, number: usize) -> &'a Operation {
        self.known.get(number).copied().unwrap_or_else(|| self.unknown[number - self.known.len()])
    }

    /// Whether an order was found; `false` if the search was too long. The error says how far it
    /// came, and what did not fit in.
    fn run(&mut self) -> Result<bool, (usize, String)> {
        let mut furthest = (0, String::new());
        for _ in 0..STEPS_MAX {
            if self.first == self.known.len() {
                return Ok(true);
            }
            let next = self.candidates();
            if next.is_empty() && self.taken.len() >= furthest.0 {
                furthest = (self.taken.len(), self.describe());
            }
            // What changes nothing can as well come now.
            let still = next
                .iter()
                .find(|number| step(self.state, self.operation(**number).call).0 == self.state);
            let still = still.map(|number| vec![*number]);
            let choice = still.unwrap_or(next);
            if !self.choose(choice) && !self.try_another() {
                return Err(furthest);
            }
        }
        Ok(false)
    }

    /// What can come next: was called before anything else returned that has no place yet, and
    /// gives what it gave. The last is to be tried first.
    fn candidates(&self) -> Vec<usize> {
        let mut deadline = u64::MAX;
        let mut known = Vec::new();
        for number in self.first..self.known.len() {
            let operation = self.known[number];
            if operation.called > deadline {
                break;
            }
            let returned = operation.returned.map_or(u64::MAX, |(_, at)| at);
            if !self.done[number] {
                deadline = deadline.min(returned);
                known.push((returned, number));
            }
        }
        let unknown: Vec<usize> = (self.known.len()..self.done.len())
            .filter(|number| !self.done[*number] && self.operation(*number).called <= deadline)
            .collect();
        known.sort_unstable();
        let first = known.first().map(|(_, number)| *number);
        let deletes = |number: usize| matches!(self.operation(number).call, Call::Delete(_));
        let may_go = known.iter().any(|(_, number)| deletes(*number))
            || unknown.iter().any(|number| deletes(*number));
        if first.is_some_and(|first| !may_go && self.is_beyond(first)) {
            return Vec::new();
        }
        // First what has to be over first; last what may not have happened at all.
        let mut next = Vec::new();
        let mut seen = BTreeSet::new();
        for number in unknown {
            if seen.insert(self.alike[number - self.known.len()]) && self.fits(number) {
                next.push(number);
            }
        }
        let fitting = known.iter().rev().map(|(_, number)| *number);
        next.extend(fitting.filter(|number| self.fits(*number)));
        next
    }

    /// Whether an operation can come now, as far as its result goes.
    fn fits(&self, number: usize) -> bool {
        let operation = self.operation(number);
        let (state, gives) = step(self.state, operation.call);
        match operation.returned {
            Some((gave, _)) => gives == gave,
            None => state != self.state,
        }
    }

    /// Whether it is too late for an operation, if the version can only grow.
    fn is_beyond(&self, number: usize) -> bool {
        let needed = match self.operation(number).returned {
            Some((Return::Value(_, version), _)) => version,
            Some((Return::Version(version), _)) => version.saturating_sub(1),
            _ => return false,
        };
        let fits = self.fits(number);
        self.state.is_some_and(|(_, has)| has > needed || (has == needed && !fits))
    }

    /// Goes the last of these ways that has not been tried. `false` if there is none.
    fn choose(&mut self, mut ways: Vec<usize>) -> bool {
        while let Some(number) = ways.pop() {
            self.take(number);
            if !self.tried.contains(&(self.digest, self.state)) {
                if let Some(last) = self.taken.last_mut() {
                    last.others = ways;
                }
                return true;
            }
            self.untake();
        }
        false
    }

    /// Goes back to the last choice that had another way, and goes that. `false` if there is none.
    fn try_another(&mut self) -> bool {
        loop {
            self.tried.insert((self.digest, self.state));
            let Some(others) = self.untake() else { return false };
            if self.choose(others) {
                return true;
            }
        }
    }

    fn take(&mut self, number: usize) {
        let (state, first) = (self.state, self.first);
        self.taken.push(Taken { number, state, first, others: Vec::new() });
        self.state = step(self.state, self.operation(number).call).0;
        self.done[number] = true;
        self.digest = self.digest.wrapping_add(digest(number));
        while self.first < self.known.len() && self.done[self.first] {
            self.first += 1;
        }
    }

    /// Takes the last one back, and gives the other ways that there were.
    fn untake(&mut self) -> Option<Vec<usize>> {
        let taken = self.taken.pop()?;
        self.done[taken.number] = false;
        self.digest = self.digest.wrapping_sub(digest(taken.number));
        (self.state, self.first) = (taken.state, taken.first);
        Some(taken.others)
    }

    fn describe(&self) -> String {
        let open = (self.first..self.known.len())
            .filter(|number| !self.done[*number])
            .min_by_key(|number| self.known[*number].returned.map(|(_, at)| at));
        match open {
            Some(number) => format!("{:?}, {:?} does not fit", self.state, self.known[number]),
            None => format!("{:?}", self.state),
        }
    }
}

fn digest(number: usize) -> u128 {
    xxh3_128(&(number as u64).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: u64 = u64::MAX;

    /// Operations as call, called, returned, result; those that return at [`NONE`] did not.
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
    fn what_happens_one_after_the_other_is_linearizable() {
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
    fn a_stale_read_is_not() {
        let history =
            [(Create(1), 1, 2, Done), (Set(2, None), 3, 4, Version(1)), (Read, 5, 6, Value(1, 0))];
        assert!(!is_linearizable(&history));
        let Verdict::Not(anomaly) = verdict(&history) else { panic!("not found") };
        assert_eq!((anomaly.path.as_str(), anomaly.ordered), ("/a", 2));
        assert!(anomaly.to_string().contains("Value(1, 0)"), "{anomaly}");
    }

    #[test]
    fn reads_that_see_a_write_come_and_go_are_not() {
        // The write is under way all the while.
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
    fn a_lost_write_is_not() {
        assert!(!is_linearizable(&[
            (Create(1), 1, 2, Done),
            (Set(2, None), 3, 4, Version(1)),
            (Set(3, None), 5, 6, Version(1)),
        ]));
    }

    #[test]
    fn a_write_done_twice_is_not() {
        assert!(!is_linearizable(&[
            (Create(1), 1, 2, Done),
            (Set(2, None), 3, 4, Version(1)),
            (Read, 5, 6, Value(2, 2)),
        ]));
    }

    #[test]
    fn two_winners_of_one_version_are_not() {
        let winner = |data| (Set(data, Some(0)), 3, 9, Version(1));
        assert!(!is_linearizable(&[(Create(1), 1, 2, Done), winner(2), winner(3)]));
        let loser = (Set(3, Some(0)), 3, 9, BadVersion);
        assert!(is_linearizable(&[(Create(1), 1, 2, Done), winner(2), loser]));
    }

    #[test]
    fn a_write_of_which_nobody_knows_may_have_happened_later_or_never() {
        let unknown = (Set(2, None), 3, NONE, Done);
        let create = (Create(1), 1, 2, Done);
        assert!(is_linearizable(&[create, unknown, (Read, 5, 6, Value(1, 0))]));
        assert!(is_linearizable(&[
            create,
            unknown,
            (Read, 5, 6, Value(1, 0)),
            (Read, 7, 8, Value(2, 1)),
        ]));
        // But not before it was asked for, and only once.
        assert!(!is_linearizable(&[
            create,
            (Set(2, None), 7, NONE, Done),
            (Read, 5, 6, Value(2, 1)),
        ]));
        assert!(!is_linearizable(&[
            create,
            unknown,
            (Read, 5, 6, Value(2, 1)),
            (Set(3, None), 7, 8, Version(2)),
            (Read, 9, 10, Value(2, 3)),
        ]));
    }

    #[test]
    fn what_was_refused_must_not_show() {
        let mut history = History::default();
        let place = history.call("/a", Create(1), 1);
        history.answered(&place, Known::Refused, 2);
        assert!(matches!(history.check(), Verdict::Linearizable(1)));
        let place = history.call("/a", Read, 3);
        history.answered(&place, Known::Returned(Value(1, 0)), 4);
        assert!(matches!(history.check(), Verdict::Not(_)));
    }

    #[test]
    fn many_writes_of_which_nobody_knows_do_not_stop_the_search() {
        let mut operations = vec![(Create(0), 1, 2, Done)];
        operations.extend((1..60).map(|data| (Set(data, None), 3, NONE, Done)));
        let mut now = 10;
        for (version, data) in [(1, 40), (2, 3), (3, 17)] {
            operations.push((Read, now, now + 1, Value(data, version)));
            now += 2;
        }
        assert!(is_linearizable(&operations));
    }

    /// All orders that real time allows, without any cleverness.
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
            // Half of the answers are those of some order, so that both verdicts are common.
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
}
