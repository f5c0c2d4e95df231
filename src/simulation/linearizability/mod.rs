//! Whether what clients saw of single znodes has one order in which each
//! operation happened at some moment between its call and its return
//! (Herlihy and Wing 1990).
//!
//! The check looks for that order. It knows nothing of the log, of zxids or of
//! the engine. An operation on several znodes counts for each of them on its
//! own: that is weaker than the whole, and never wrong.

mod search;
mod values;

use std::collections::BTreeMap;
use std::fmt;

use crate::types::error::{Error, Result};
use search::Search;
use values::Values;

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
    /// The operation that does not fit in anywhere, and the state that it would have to fit in.
    pub what: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Linearizable(count) => write!(f, "{count} operations are linearizable"),
            Verdict::Not(anomaly) => write!(f, "not linearizable: {anomaly}"),
            Verdict::Undecided(path) => write!(f, "{path} was not decided"),
        }
    }
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

    /// The operations of a znode, in the order in which they were noted.
    pub fn operations(&self, path: &str) -> &[Operation] {
        self.znodes.get(path).map_or(&[], Vec::as_slice)
    }

    /// Looks for the order.
    pub fn check(&self) -> Verdict {
        let mut count = 0;
        let mut undecided = None;
        for (path, operations) in &self.znodes {
            count += operations.len();
            let found = match Values::of(operations).contradiction(operations) {
                Some(what) => Err(what),
                None => Search::new(operations).run(),
            };
            match found {
                Ok(true) => {}
                // What is wrong with another one is worth more.
                Ok(false) => undecided = undecided.or_else(|| Some(path.clone())),
                Err(what) => return Verdict::Not(Anomaly { path: path.clone(), what }),
            }
        }
        undecided.map_or(Verdict::Linearizable(count), Verdict::Undecided)
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

#[cfg(test)]
mod tests;
