//! The reports of the instances, as lines of text.

use std::collections::BTreeMap;

use quorate_simulation::simulation::linearizability::{
    Call, History, Known, Operation, OperationId, Return,
};

use crate::Outcome;

/// A period in which a holder of the lock surely held it.
#[derive(Clone, Copy, Debug)]
struct Held {
    token: u64,
    from: u64,
    to: u64,
}

/// All reports.
#[derive(Default)]
pub(crate) struct Record {
    history: History,
    /// Calls without a reply, by the instance, its start and the number there.
    open: BTreeMap<(usize, u64, u64), OperationId>,
    held: Vec<Held>,
    /// Each replica's last reported zxid and state hash.
    states: BTreeMap<usize, (u64, u64)>,
    finished: BTreeMap<usize, u64>,
    asked: u64,
    answered: u64,
    succeeded: u64,
    events: u64,
}

impl Record {
    /// Processes a line that an instance has printed in its `life`th start.
    pub(crate) fn add_line(&mut self, place: usize, life: u64, line: &str) -> Outcome<()> {
        let strange = || format!("instance {place} printed {line:?}");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| strange());
        match words.as_slice() {
            ["call", id, now, path, call @ ..] => {
                let call = parse_call(call).ok_or_else(strange)?;
                let place_in_history = self.history.call(path, call, number(now)?);
                self.open.insert((place, life, number(id)?), place_in_history);
                self.asked += 1;
            }
            ["return", id, now, gave @ ..] => {
                let open = self.open.remove(&(place, life, number(id)?)).ok_or_else(strange)?;
                self.answered += 1;
                let known = parse_known(gave).ok_or_else(strange)?;
                let succeeded = matches!(
                    known,
                    Known::Returned(Return::Done | Return::Version(_) | Return::Value(..))
                );
                self.succeeded += u64::from(succeeded);
                self.history.answered(&open, known, number(now)?);
            }
            ["held", token, from, to] => {
                let (token, from, to) = (number(token)?, number(from)?, number(to)?);
                self.held.push(Held { token, from, to });
            }
            ["events", count] => self.events += number(count)?,
            ["state", zxid, hash] => {
                self.states.insert(place, (number(zxid)?, number(hash)?));
            }
            ["finished"] => {
                self.finished.insert(place, life);
            }
            ["violation", ..] => return Err(strange().into()),
            _ => return Err(strange().into()),
        }
        Ok(())
    }

    /// Whether any operation has returned.
    pub(crate) fn is_busy(&self) -> bool {
        self.succeeded > 100
    }

    /// The number of operations.
    pub(crate) fn operations(&self) -> u64 {
        self.asked
    }

    pub(crate) fn has_finished(&self, place: usize) -> bool {
        self.finished.contains_key(&place)
    }

    pub(crate) fn states(&self) -> &BTreeMap<usize, (u64, u64)> {
        &self.states
    }

    pub(crate) fn replicas_agree(&self) -> bool {
        let mut states = self.states.values();
        let first = states.next();
        self.states.len() == crate::NODES && states.all(|state| Some(state) == first)
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Checks that holders never overlapped in real time, and that tokens grow with time.
    pub(crate) fn check_locks(&self) -> Outcome<()> {
        let mut held = self.held.clone();
        held.sort_by_key(|held| held.from);
        match held.windows(2).find(|two| two[1].from < two[0].to || two[1].token <= two[0].token) {
            Some(two) => Err(format!("the lock had two holders: {two:?}").into()),
            None => Ok(()),
        }
    }

    pub(crate) fn summary(&self) -> String {
        format!(
            "{} operations, {} answered, {} succeeded; the lock held {} times; {} watch events",
            self.asked,
            self.answered,
            self.succeeded,
            self.held.len(),
            self.events
        )
    }
}

/// The operations of a znode, as lines.
pub(crate) fn operations_text(operations: &[Operation], path: &str) -> String {
    let mut text = String::new();
    for (id, operation) in operations.iter().enumerate() {
        let call = call_text(operation.call);
        text.push_str(&format!("call {id} {} {path} {call}\n", operation.called));
        if let Some((gave, at)) = operation.returned {
            text.push_str(&format!("return {id} {at} {}\n", known_text(Known::Returned(gave))));
        }
    }
    text
}

/// A call, as in a line.
pub(crate) fn call_text(call: Call) -> String {
    let version = |version: Option<u64>| version.map_or("-".to_owned(), |some| some.to_string());
    match call {
        Call::Create(data) => format!("create {data}"),
        Call::Set(data, at) => format!("set {data} {}", version(at)),
        Call::Delete(at) => format!("delete {}", version(at)),
        Call::Read => "read".to_owned(),
    }
}

fn parse_call(words: &[&str]) -> Option<Call> {
    let version = |text: &str| match text {
        "-" => Some(None),
        some => some.parse().ok().map(Some),
    };
    Some(match words {
        ["create", data] => Call::Create(data.parse().ok()?),
        ["set", data, at] => Call::Set(data.parse().ok()?, version(at)?),
        ["delete", at] => Call::Delete(version(at)?),
        ["read"] => Call::Read,
        _ => return None,
    })
}

/// A result, as in a line.
pub(crate) fn known_text(known: Known) -> String {
    match known {
        Known::Refused => "refused".to_owned(),
        Known::Returned(Return::Done) => "done".to_owned(),
        Known::Returned(Return::Version(version)) => format!("version {version}"),
        Known::Returned(Return::Value(data, version)) => format!("value {data} {version}"),
        Known::Returned(Return::NoNode) => "no-node".to_owned(),
        Known::Returned(Return::NodeExists) => "node-exists".to_owned(),
        Known::Returned(Return::BadVersion) => "bad-version".to_owned(),
    }
}

fn parse_known(words: &[&str]) -> Option<Known> {
    Some(Known::Returned(match words {
        ["refused"] => return Some(Known::Refused),
        ["done"] => Return::Done,
        ["version", version] => Return::Version(version.parse().ok()?),
        ["value", data, version] => Return::Value(data.parse().ok()?, version.parse().ok()?),
        ["no-node"] => Return::NoNode,
        ["node-exists"] => Return::NodeExists,
        ["bad-version"] => Return::BadVersion,
        _ => return None,
    }))
}
