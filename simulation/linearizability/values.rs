//! The times at which a znode had data that only one operation can have written.
//!
//! Such data is the znode's for one interval. The returns and calls of the operations that wrote or
//! read it bound that interval from the inside (the "zones" of Gibbons and Korach 1997).

use std::collections::BTreeMap;

use super::{Call, Operation, Return, step};

/// Data that operations write and reads show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    /// The number of operations that may have written it.
    writers: usize,
    /// The version at which a read showed it.
    version: u64,
    /// The number of its reads that are not linearized yet.
    pub(super) reads: usize,
    /// The first return and the last call of the operations that wrote or showed it. The znode has
    /// this data from the former to the latter.
    from: u64,
    to: u64,
}

impl Value {
    /// Whether the data comes only once, so that each read of it belongs to that one time.
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

    /// Whether a read shows this data. During a search, only reads that are not linearized yet
    /// count.
    pub(super) fn is_read(&self, data: u64) -> bool {
        self.get(data).is_some_and(|value| value.reads > 0)
    }

    /// Whether the data can have this version.
    pub(super) fn may_have_version(&self, data: u64, version: u64) -> bool {
        self.get(data)
            .is_none_or(|value| !value.is_read_of_one_writer() || value.version == version)
    }

    /// An operation that contradicts the data that the znode had at the time, if there is one. This
    /// finds a stale read in a long history, where a search would try all orders of what came
    /// before.
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
