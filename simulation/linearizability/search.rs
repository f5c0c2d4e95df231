//! The search for a linearization: the algorithm of Wing and Gong (1993), with Lowe's cache of
//! visited configurations (2017).
//!
//! The search linearizes one operation after another. When no operation can come next, it
//! backtracks.

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_128;

use super::values::Values;
use super::{Call, Operation, Return, State, step};

/// The most steps of one search. They take some seconds.
const STEPS_MAX: u64 = 5_000_000;

/// Stands for all data that no remaining read shows.
const NEVER_READ: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Search<'a> {
    /// Operations with a known result, by their calls, and those whose outcome is unknown.
    known: Vec<&'a Operation>,
    unknown: Vec<&'a Operation>,
    /// For each unknown operation, its equivalence class. Of the operations of a class, the
    /// earliest call can take the place of any other.
    class: Vec<Call>,
    values: Values,
    done: Vec<bool>,
    /// All known operations before this one are linearized.
    first: usize,
    /// The sum of the hashes of the known operations that are linearized.
    digest: u128,
    state: State,
    /// The configurations that lead nowhere, each with its set of linearized unknown operations as
    /// bits. A superset leads nowhere either, because no unknown operation has to happen.
    visited: BTreeMap<(u128, State), Vec<Vec<u64>>>,
    unknown_done: Vec<u64>,
    linearized: Vec<Linearized>,
}

/// A linearized operation.
#[derive(Debug)]
struct Linearized {
    number: usize,
    /// The state before it.
    state: State,
    first: usize,
    /// The other operations that could have come here. The last one is tried first. Empty if the
    /// operation changed nothing: to linearize it later would gain nothing.
    alternatives: Vec<usize>,
}

impl<'a> Search<'a> {
    pub(super) fn new(operations: &'a [Operation]) -> Search<'a> {
        let mut known: Vec<&Operation> =
            operations.iter().filter(|operation| operation.returned.is_some()).collect();
        known.sort_by_key(|operation| operation.called);
        let changes =
            |operation: &&Operation| operation.returned.is_none() && operation.call != Call::Read;
        let mut unknown: Vec<&Operation> = operations.iter().filter(changes).collect();
        unknown.sort_by_key(|operation| operation.called);
        let values = Values::of(operations);
        let class = unknown.iter().map(|operation| match operation.call {
            Call::Create(data) if !values.is_read(data) => Call::Create(NEVER_READ),
            Call::Set(data, version) if !values.is_read(data) => Call::Set(NEVER_READ, version),
            call => call,
        });
        let class = class.collect();
        let done = vec![false; known.len() + unknown.len()];
        let unknown_done = vec![0; unknown.len().div_ceil(64)];
        Search {
            known,
            unknown,
            class,
            values,
            done,
            first: 0,
            digest: 0,
            state: None,
            visited: BTreeMap::new(),
            unknown_done,
            linearized: Vec::new(),
        }
    }

    fn operation(&self, number: usize) -> &'a Operation {
        self.known.get(number).copied().unwrap_or_else(|| self.unknown[number - self.known.len()])
    }

    /// Returns true if a linearization was found, and false if the search reached its limit. The
    /// error says how far the search came and which operation did not fit.
    pub(super) fn run(&mut self) -> Result<bool, String> {
        let mut furthest = (0, String::new());
        for _ in 0..STEPS_MAX {
            if self.first == self.known.len() {
                return Ok(true);
            }
            let next = self.candidates();
            if next.is_empty() && self.linearized.len() >= furthest.0 {
                furthest = (self.linearized.len(), self.describe());
            }
            // An operation that changes nothing can be linearized at once.
            let unchanged = next
                .iter()
                .find(|number| step(self.state, self.operation(**number).call).0 == self.state);
            let unchanged = unchanged.map(|number| vec![*number]);
            let choice = unchanged.unwrap_or(next);
            if !self.choose(choice) && !self.backtrack() {
                let (ordered, what) = furthest;
                return Err(format!("{ordered} operations in order, then {what}"));
            }
        }
        Ok(false)
    }

    /// The operations that can come next: each was called before any remaining operation returned,
    /// and its result fits. The last one is tried first.
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
        let may_be_deleted = known.iter().any(|(_, number)| deletes(*number))
            || unknown.iter().any(|number| deletes(*number));
        if first.is_some_and(|first| !may_be_deleted && self.is_too_late(first)) {
            return Vec::new();
        }
        // Known operations are tried before unknown ones, the earliest return first. Of the unknown
        // ones, those that fit in the fewest places are tried first.
        let mut next = Vec::new();
        let mut seen = BTreeSet::new();
        for number in unknown {
            if seen.insert(self.class[number - self.known.len()]) && self.fits(number) {
                next.push(number);
            }
        }
        next.sort_by_key(|number| match self.class[number - self.known.len()] {
            Call::Set(NEVER_READ, None) | Call::Create(NEVER_READ) | Call::Delete(None) => 0,
            Call::Set(NEVER_READ, Some(_)) | Call::Delete(Some(_)) => 1,
            _ => 2,
        });
        let fitting = known.iter().rev().map(|(_, number)| *number);
        next.extend(fitting.filter(|number| self.fits(*number)));
        next
    }

    /// Whether an operation can come next, by its own result and by the results of the reads.
    fn fits(&self, number: usize) -> bool {
        let (state, _) = step(self.state, self.operation(number).call);
        let may = state == self.state || (self.may_end(self.state) && self.is_possible(state));
        may && self.gives(number)
    }

    /// Whether an operation returns what it returned in the history. For an unknown operation,
    /// whether it changes anything.
    fn gives(&self, number: usize) -> bool {
        let operation = self.operation(number);
        let (state, gives) = step(self.state, operation.call);
        operation.returned.map_or(state != self.state, |(gave, _)| gives == gave)
    }

    /// Whether a state may end. Data of a single writer does not come back, so all its reads must
    /// have been linearized by then.
    fn may_end(&self, state: State) -> bool {
        let value = state.and_then(|(data, _)| self.values.get(data));
        value.is_none_or(|value| !value.is_read_of_one_writer())
    }

    /// Whether a state is possible: data of a single writer has one version.
    fn is_possible(&self, state: State) -> bool {
        state.is_none_or(|(data, version)| self.values.may_have_version(data, version))
    }

    /// Whether it is too late for an operation, if the version can only grow.
    fn is_too_late(&self, number: usize) -> bool {
        let needed = match self.operation(number).returned {
            Some((Return::Value(_, version), _)) => version,
            Some((Return::Version(version), _)) => version.saturating_sub(1),
            _ => return false,
        };
        let gives = self.gives(number);
        self.state.is_some_and(|(_, has)| has > needed || (has == needed && !gives))
    }

    /// Linearizes the last candidate that leads to a new configuration. Returns false if there is
    /// none.
    fn choose(&mut self, mut candidates: Vec<usize>) -> bool {
        while let Some(number) = candidates.pop() {
            self.linearize(number);
            if !self.was_visited() {
                if let Some(last) = self.linearized.last_mut() {
                    last.alternatives = candidates;
                }
                return true;
            }
            self.undo();
        }
        false
    }

    /// Goes back to the last choice with an alternative left and takes it. Returns false if there
    /// is none.
    fn backtrack(&mut self) -> bool {
        loop {
            self.mark_visited();
            let Some(alternatives) = self.undo() else { return false };
            if self.choose(alternatives) {
                return true;
            }
        }
    }

    /// The configuration, without unknown operations. All data that no remaining read shows is
    /// equivalent.
    fn configuration(&self) -> (u128, State) {
        let state = self.state.map(|(data, version)| {
            (if self.values.is_read(data) { data } else { NEVER_READ }, version)
        });
        (self.digest, state)
    }

    fn was_visited(&self) -> bool {
        let within = |visited: &Vec<u64>| {
            visited.iter().zip(&self.unknown_done).all(|(visited, done)| visited & !done == 0)
        };
        self.visited.get(&self.configuration()).is_some_and(|all| all.iter().any(within))
    }

    fn mark_visited(&mut self) {
        let configuration = self.configuration();
        let done = &self.unknown_done;
        let all = self.visited.entry(configuration).or_default();
        all.retain(|visited| visited.iter().zip(done).any(|(visited, done)| done & !visited != 0));
        all.push(done.clone());
    }

    fn linearize(&mut self, number: usize) {
        let (state, first) = (self.state, self.first);
        self.linearized.push(Linearized { number, state, first, alternatives: Vec::new() });
        self.state = step(self.state, self.operation(number).call).0;
        self.mark(number, true);
        while self.first < self.known.len() && self.done[self.first] {
            self.first += 1;
        }
    }

    /// Undoes the last operation and returns its alternatives.
    fn undo(&mut self) -> Option<Vec<usize>> {
        let linearized = self.linearized.pop()?;
        self.mark(linearized.number, false);
        (self.state, self.first) = (linearized.state, linearized.first);
        Some(linearized.alternatives)
    }

    fn mark(&mut self, number: usize, done: bool) {
        self.done[number] = done;
        if let Some(bit) = number.checked_sub(self.known.len()) {
            self.unknown_done[bit / 64] ^= 1 << (bit % 64);
            return;
        }
        let digest = digest(number);
        self.digest =
            if done { self.digest.wrapping_add(digest) } else { self.digest.wrapping_sub(digest) };
        if let Some((Return::Value(data, _), _)) = self.known[number].returned
            && let Some(value) = self.values.get_mut(data)
        {
            value.reads = if done { value.reads - 1 } else { value.reads + 1 };
        }
    }

    fn describe(&self) -> String {
        let open = (self.first..self.known.len())
            .filter(|number| !self.done[*number])
            .min_by_key(|number| self.known[*number].returned.map(|(_, at)| at));
        let Some(number) = open else { return format!("{:?}", self.state) };
        let mut text = format!("{:?}, {:?} does not fit", self.state, self.known[number]);
        if self.gives(number) {
            // It would fit, but a remaining read needs the state that it ends, or another version
            // of its data.
            let after = step(self.state, self.known[number].call).0;
            let shows = |data: u64, version: Option<u64>| {
                (self.first..self.known.len()).find(|read| {
                    let returned = self.known[*read].returned.map(|(gave, _)| gave);
                    !self.done[*read]
                        && matches!(returned, Some(Return::Value(shown, at))
                            if shown == data && version != Some(at))
                })
            };
            let before = self.state.and_then(|(data, _)| shows(data, None));
            let read = before.or_else(|| after.and_then(|(data, at)| shows(data, Some(at))));
            text.extend(read.map(|read| format!(" before {:?}", self.known[read])));
        }
        text
    }
}

fn digest(number: usize) -> u128 {
    xxh3_128(&(number as u64).to_le_bytes())
}
