//! The search for an order: Wing and Gong's, with Lowe's memory of what has been tried (2017).

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_128;

use super::values::Values;
use super::{Call, Operation, Return, State, step};

/// The most steps of one search: some seconds.
const STEPS_MAX: u64 = 5_000_000;

/// Stands for all data that no read shows, or none from here on.
const NEVER_READ: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Search<'a> {
    /// Operations that returned, by their calls; and those of which nobody knows.
    known: Vec<&'a Operation>,
    unknown: Vec<&'a Operation>,
    /// For each unknown one, what it is to the others: of those that do the same, the earliest can
    /// take the place of any other.
    alike: Vec<Call>,
    values: Values,
    done: Vec<bool>,
    /// All known ones before this are done.
    first: usize,
    /// The sum of the known ones that are done, as a hash.
    digest: u128,
    state: State,
    /// What was tried and led nowhere: with which unknown ones done, a bit for each. With those
    /// and more it leads nowhere either, since nothing has to be done that is unknown.
    tried: BTreeMap<(u128, State), Vec<Vec<u64>>>,
    unknown_done: Vec<u64>,
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
    pub(super) fn new(operations: &'a [Operation]) -> Search<'a> {
        let mut known: Vec<&Operation> =
            operations.iter().filter(|operation| operation.returned.is_some()).collect();
        known.sort_by_key(|operation| operation.called);
        let changes =
            |operation: &&Operation| operation.returned.is_none() && operation.call != Call::Read;
        let mut unknown: Vec<&Operation> = operations.iter().filter(changes).collect();
        unknown.sort_by_key(|operation| operation.called);
        let values = Values::of(operations);
        let alike = unknown.iter().map(|operation| match operation.call {
            Call::Create(data) if !values.is_read(data) => Call::Create(NEVER_READ),
            Call::Set(data, version) if !values.is_read(data) => Call::Set(NEVER_READ, version),
            call => call,
        });
        let alike = alike.collect();
        let done = vec![false; known.len() + unknown.len()];
        let unknown_done = vec![0; unknown.len().div_ceil(64)];
        Search {
            known,
            unknown,
            alike,
            values,
            done,
            first: 0,
            digest: 0,
            state: None,
            tried: BTreeMap::new(),
            unknown_done,
            taken: Vec::new(),
        }
    }

    fn operation(&self, number: usize) -> &'a Operation {
        self.known.get(number).copied().unwrap_or_else(|| self.unknown[number - self.known.len()])
    }

    /// Whether an order was found; `false` if the search was too long. The error says how far it
    /// came, and what did not fit in.
    pub(super) fn run(&mut self) -> Result<bool, String> {
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
                let (ordered, what) = furthest;
                return Err(format!("{ordered} operations in order, then {what}"));
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
        // First what has to be over first; last what may not have happened at all. Of that, first
        // what fits in at the fewest places.
        let mut next = Vec::new();
        let mut seen = BTreeSet::new();
        for number in unknown {
            if seen.insert(self.alike[number - self.known.len()]) && self.fits(number) {
                next.push(number);
            }
        }
        next.sort_by_key(|number| match self.alike[number - self.known.len()] {
            Call::Set(NEVER_READ, None) | Call::Create(NEVER_READ) | Call::Delete(None) => 0,
            Call::Set(NEVER_READ, Some(_)) | Call::Delete(Some(_)) => 1,
            _ => 2,
        });
        let fitting = known.iter().rev().map(|(_, number)| *number);
        next.extend(fitting.filter(|number| self.fits(*number)));
        next
    }

    /// Whether an operation can come now, as far as its result goes, and what reads have shown.
    fn fits(&self, number: usize) -> bool {
        let (state, _) = step(self.state, self.operation(number).call);
        let may = state == self.state || (self.may_go(self.state) && self.may_come(state));
        may && self.gives(number)
    }

    /// Whether an operation gives now what it gave; one of which nobody knows, whether it changes
    /// anything.
    fn gives(&self, number: usize) -> bool {
        let operation = self.operation(number);
        let (state, gives) = step(self.state, operation.call);
        operation.returned.map_or(state != self.state, |(gave, _)| gives == gave)
    }

    /// Whether a state may be over: data that one operation writes does not come again, and then
    /// all reads of it must have their places.
    fn may_go(&self, state: State) -> bool {
        let value = state.and_then(|(data, _)| self.values.get(data));
        value.is_none_or(|value| !value.is_read_of_one_writer())
    }

    /// Whether there can be a state: data that one operation writes has one version.
    fn may_come(&self, state: State) -> bool {
        state.is_none_or(|(data, version)| self.values.may_be(data, version))
    }

    /// Whether it is too late for an operation, if the version can only grow.
    fn is_beyond(&self, number: usize) -> bool {
        let needed = match self.operation(number).returned {
            Some((Return::Value(_, version), _)) => version,
            Some((Return::Version(version), _)) => version.saturating_sub(1),
            _ => return false,
        };
        let gives = self.gives(number);
        self.state.is_some_and(|(_, has)| has > needed || (has == needed && !gives))
    }

    /// Goes the last of these ways that has not been tried. `false` if there is none.
    fn choose(&mut self, mut ways: Vec<usize>) -> bool {
        while let Some(number) = ways.pop() {
            self.take(number);
            if !self.was_tried() {
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
            self.note_tried();
            let Some(others) = self.untake() else { return false };
            if self.choose(others) {
                return true;
            }
        }
    }

    /// The place of the search: data that no read has to show from here on is as good as any other.
    fn place(&self) -> (u128, State) {
        let state = self.state.map(|(data, version)| {
            (if self.values.is_read(data) { data } else { NEVER_READ }, version)
        });
        (self.digest, state)
    }

    fn was_tried(&self) -> bool {
        let within = |tried: &Vec<u64>| {
            tried.iter().zip(&self.unknown_done).all(|(tried, done)| tried & !done == 0)
        };
        self.tried.get(&self.place()).is_some_and(|all| all.iter().any(within))
    }

    fn note_tried(&mut self) {
        let place = self.place();
        let done = &self.unknown_done;
        let all = self.tried.entry(place).or_default();
        all.retain(|tried| tried.iter().zip(done).any(|(tried, done)| done & !tried != 0));
        all.push(done.clone());
    }

    fn take(&mut self, number: usize) {
        let (state, first) = (self.state, self.first);
        self.taken.push(Taken { number, state, first, others: Vec::new() });
        self.state = step(self.state, self.operation(number).call).0;
        self.mark(number, true);
        while self.first < self.known.len() && self.done[self.first] {
            self.first += 1;
        }
    }

    /// Takes the last one back, and gives the other ways that there were.
    fn untake(&mut self) -> Option<Vec<usize>> {
        let taken = self.taken.pop()?;
        self.mark(taken.number, false);
        (self.state, self.first) = (taken.state, taken.first);
        Some(taken.others)
    }

    fn mark(&mut self, number: usize, done: bool) {
        self.done[number] = done;
        if let Some(place) = number.checked_sub(self.known.len()) {
            self.unknown_done[place / 64] ^= 1 << (place % 64);
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
            // It would, if it were not for a read that shows what is over then, or another version.
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
