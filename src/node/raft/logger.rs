//! raft-rs's own log lines, passed on to `tracing` one level lower: what raft-rs calls information is
//! a detail to a user.

use std::fmt;

use slog::{Drain, Level, Logger, Never, OwnedKVList, Record, o};

#[derive(Debug)]
struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _values: &OwnedKVList) -> Result<(), Never> {
        match record.level() {
            Level::Critical | Level::Error => {
                tracing::error!(target: "quorate::raft", "{}", Hexadecimal(record.msg()))
            }
            Level::Warning => {
                tracing::warn!(target: "quorate::raft", "{}", Hexadecimal(record.msg()))
            }
            Level::Info => {
                tracing::debug!(target: "quorate::raft", "{}", Hexadecimal(record.msg()))
            }
            // These format whole messages, with the data of users in them.
            Level::Debug | Level::Trace => {}
        }
        Ok(())
    }
}

/// raft-rs writes ids as decimal numbers, and all other lines as hexadecimal ones. No term or index gets this long.
struct Hexadecimal<'a>(&'a fmt::Arguments<'a>);

const DIGITS_MIN: usize = 15;

impl fmt::Display for Hexadecimal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let mut rest = text.as_str();
        while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, from) = rest.split_at(begin);
            let end = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
            let (number, after) = from.split_at(end);
            match number.parse::<u64>() {
                Ok(id) if number.len() >= DIGITS_MIN => write!(f, "{before}{id:016x}")?,
                _ => write!(f, "{before}{number}")?,
            }
            rest = after;
        }
        f.write_str(rest)
    }
}

pub(crate) fn logger() -> Logger {
    Logger::root(ToTracing, o!())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_become_hexadecimal() {
        let shown = |text: &str| Hexadecimal(&format_args!("{text}")).to_string();
        let line = "[logterm: 3, vote: 0] cast vote for 15052651304416437326 at term 4";
        assert_eq!(shown(line), "[logterm: 3, vote: 0] cast vote for d0e5c29be78fe44e at term 4");
        for line in ["", "no number", "1 of 99999999999999", "99999999999999999999 is none"] {
            assert_eq!(shown(line), line);
        }
    }
}
