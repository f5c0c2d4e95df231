//! raft-rs's own log lines, passed on to `tracing` one level lower: what raft-rs calls information is
//! a detail to a user.

use slog::{Drain, Level, Logger, Never, OwnedKVList, Record, o};

#[derive(Debug)]
struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _values: &OwnedKVList) -> Result<(), Never> {
        match record.level() {
            Level::Critical | Level::Error => {
                tracing::error!(target: "quorate::raft", "{}", record.msg())
            }
            Level::Warning => tracing::warn!(target: "quorate::raft", "{}", record.msg()),
            Level::Info => tracing::debug!(target: "quorate::raft", "{}", record.msg()),
            // These format whole messages, with the data of users in them.
            Level::Debug | Level::Trace => {}
        }
        Ok(())
    }
}

pub(crate) fn logger() -> Logger {
    Logger::root(ToTracing, o!())
}
