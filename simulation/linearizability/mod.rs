//! Checks that the history of each znode is linearizable: its operations have one order in which
//! each takes effect at some moment between its call and its return (Herlihy and Wing 1990).
//!
//! The check searches for such an order. It knows nothing of the log, of zxids or of the engine. An
//! operation on several znodes counts as one operation on each of them. That makes the check
//! weaker, but it never reports a correct history.

mod search;
mod values;

use std::collections::BTreeMap;
use std::fmt;

use crate::types::error::{Error, Result};
use search::Search;
use values::Values;

/// A call on a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Creates it with this data.
    Create(u64),
    /// Sets its data, if it has this version.
    Set(u64, Option<u64>),
    /// Deletes it, if it has this version.
    Delete(Option<u64>),
    /// Reads it. The read is linearizable.
    Read,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// Created or deleted.
    Done,
    /// Set. This is the new version.
    Version(u64),
    /// Read: the data and the version.
    Value(u64, u64),
    /// The znode does not exist.
    NoNode,
    /// The znode exists already.
    NodeExists,
    /// The znode has another version.
    BadVersion,
}

/// What a reply tells about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It happened and returned this.
    Returned(Return),
    /// It did not happen and never will.
    Refused,
}

impl Known {
    /// What a reply tells. `None` if it leaves open whether the operation happened.
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
    /// The call.
    pub call: Call,
    /// When it was called, by any clock that all clients share.
    pub called: u64,
    /// The result and when it returned. `None` if nobody knows whether the operation happened.
    pub returned: Option<(Return, u64)>,
}

/// The operations of all clients, by znode.
#[derive(Clone, Debug, Default)]
pub struct History {
    znodes: BTreeMap<String, Vec<Operation>>,
}

/// Why a history is not linearizable.
#[derive(Clone, Debug)]
pub struct Anomaly {
    /// The path of the znode.
    pub path: String,
    /// The operation that fits nowhere, and the state in which it would have to fit.
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
    /// Every znode has such an order. The number of operations in all.
    Linearizable(usize),
    /// A znode has no such order.
    Not(Anomaly),
    /// The search reached its limit for this znode.
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

/// The position of an operation in its history.
#[derive(Clone, Debug)]
pub struct OperationId(String, usize);

impl History {
    /// Records a call.
    pub fn call(&mut self, path: &str, call: Call, now: u64) -> OperationId {
        let operations = self.znodes.entry(path.to_owned()).or_default();
        operations.push(Operation { call, called: now, returned: None });
        OperationId(path.to_owned(), operations.len() - 1)
    }

    /// Records a reply.
    pub fn answered(&mut self, id: &OperationId, known: Known, now: u64) {
        let operations = self.znodes.get_mut(&id.0);
        let Some(operation) = operations.and_then(|all| all.get_mut(id.1)) else { return };
        match known {
            Known::Returned(what) => operation.returned = Some((what, now)),
            // It must have no effect. A read without a result has none and constrains nothing.
            Known::Refused => operation.call = Call::Read,
        }
    }

    /// The operations of a znode, in the order in which they were recorded.
    pub fn operations(&self, path: &str) -> &[Operation] {
        self.znodes.get(path).map_or(&[], Vec::as_slice)
    }

    /// Checks every znode.
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
                // Another znode's anomaly is worth more than an undecided one.
                Ok(false) => undecided = undecided.or_else(|| Some(path.clone())),
                Err(what) => return Verdict::Not(Anomaly { path: path.clone(), what }),
            }
        }
        undecided.map_or(Verdict::Linearizable(count), Verdict::Undecided)
    }
}

/// The state of a znode: its data and version, if it exists.
type State = Option<(u64, u64)>;

/// The sequential specification: the next state and the result of a call.
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
