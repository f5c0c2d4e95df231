//! What the reads of a history show of the data that one operation alone can have written.
//!
//! Such data has one time at which it is the znode's, and what returned or was called within that
//! time bounds it from the inside (Gibbons and Korach 1997, "zones").

use std::collections::BTreeMap;

use super::{Call, Operation, Return, step};

/// Data that operations write, and reads show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    /// How many operations may have written it.
    writers: usize,
    /// The version at which a read showed it.
    version: u64,
    /// How many reads that showed it have no place yet.
    pub(super) reads: usize,
    /// The first return of an operation that wrote or showed it, and the last call of one: it is
    /// the znode's data from the one to the other.
    from: u64,
    to: u64,
}

impl Value {
    /// Whether it comes once, and each read of it belongs to that one time.
    pub(super) fn is_read_of_one_writer(&self) -> bool {
        self.writers == 1 && self.reads > 0
    }
}

/// All data of a history.
#[derive(Debug, Default)]
pub(super) struct Values(BTreeMap<u64, Value>);

impl Values {
    pub(super) fn of(operations: &[Operation]) -> Values {
        let mut values = Values::default();
        for operation in operations {
            match (operation.call, operation.returned) {
                (_, Some((Return::Value(data, version), at))) => {
                    let value = values.note(data, operation.called, at);
                    value.version = version;
                    value.reads += 1;
                }
                (Call::Create(data) | Call::Set(data, _), None) => {
                    values.note(data, operation.called, u64::MAX).writers += 1;
                }
                (
                    Call::Create(data) | Call::Set(data, _),
                    Some((Return::Done | Return::Version(_), at)),
                ) => values.note(data, operation.called, at).writers += 1,
                _ => {}
            }
        }
        values
    }

    fn note(&mut self, data: u64, called: u64, returned: u64) -> &mut Value {
        let none = Value { writers: 0, version: 0, reads: 0, from: u64::MAX, to: 0 };
        let value = self.0.entry(data).or_insert(none);
        value.from = value.from.min(returned);
        value.to = value.to.max(called);
        value
    }

    pub(super) fn get(&self, data: u64) -> Option<&Value> {
        self.0.get(&data)
    }

    pub(super) fn get_mut(&mut self, data: u64) -> Option<&mut Value> {
        self.0.get_mut(&data)
    }

    /// Whether a read shows this data, or one of those that have no place yet.
    pub(super) fn is_read(&self, data: u64) -> bool {
        self.get(data).is_some_and(|value| value.reads > 0)
    }

    /// Whether there can be this data at this version.
    pub(super) fn may_be(&self, data: u64, version: u64) -> bool {
        self.get(data)
            .is_none_or(|value| !value.is_read_of_one_writer() || value.version == version)
    }

    /// An operation that does not fit into a time at which the znode surely had some data, if there
    /// is one. It finds a stale read in a long history, where a search would try all orders of what
    /// was before it.
    pub(super) fn contradiction(&self, operations: &[Operation]) -> Option<String> {
        let mut times: Vec<(&u64, &Value)> = self
            .0
            .iter()
            .filter(|(_, value)| value.is_read_of_one_writer() && value.from < value.to)
            .collect();
        times.sort_by_key(|(_, value)| value.from);
        for pair in times.windows(2) {
            let [(data, value), (next, after)] = pair else { continue };
            if after.from < value.to {
                return Some(format!("{} and {}", value.shown(**data), after.shown(**next)));
            }
        }
        operations.iter().find_map(|operation| {
            let (gave, at) = operation.returned?;
            let before = times.partition_point(|(_, value)| value.from < operation.called);
            let (data, value) = times[..before].last().filter(|(_, value)| at < value.to)?;
            let state = Some((**data, value.version));
            (step(state, operation.call) != (state, gave))
                .then(|| format!("{}, and {operation:?} does not fit", value.shown(**data)))
        })
    }
}

impl Value {
    fn shown(&self, data: u64) -> String {
        format!("{data} at version {} from {} to {}", self.version, self.from, self.to)
    }
}
