//! `txn`: several writes and conditions, all or none.

use clap::Args;
use quorate::multi::{Condition, OpResult};
use quorate::{CreateMode, Error, Multi, Result, Session};
use serde_json::json;

use super::{Shown, data};
use crate::text::line;

/// What to write.
#[derive(Debug, Args)]
pub(crate) struct TxnArgs {
    /// The operations, each one argument, done in this order; - reads them from the standard input, a line each.
    /// Conditions: `exists PATH`, `absent PATH`, `version PATH N`. Writes: `create PATH [DATA]`, `set PATH [DATA]`,
    /// `delete PATH`. The data is the rest of the line.
    #[arg(required = true, value_name = "OPERATION")]
    operations: Vec<String>,
}

/// The longest word or path of an operation in a message, in characters.
const SHOWN_MAX: usize = 200;

fn invalid(operation: &str, reason: &str) -> Error {
    let reason = format!("{}: {reason}", named(operation));
    Error::InvalidSetting { setting: "an operation", reason }
}

/// An operation without its data, which may be long, or a secret.
fn named(operation: &str) -> String {
    let (word, _) = operation.split_once(' ').unwrap_or((operation, ""));
    let has_no_data = ["exists", "absent", "version", "delete"].contains(&word);
    let named = if has_no_data { operation } else { written(operation) };
    let mut shown: String = named.chars().take(SHOWN_MAX).collect();
    if shown.len() < named.len() {
        shown.push('…');
    }
    match operation.len() - named.len() {
        0 => format!("{shown:?}"),
        more => format!("{shown:?} with {} bytes of data", more - 1),
    }
}

/// Adds an operation.
fn add<'a>(multi: Multi<'a>, operation: &str) -> Result<Multi<'a>> {
    let (word, rest) = operation.split_once(' ').unwrap_or((operation, ""));
    let (path, data) = rest.split_once(' ').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(invalid(operation, "it is a word, a path, and for some words more"));
    }
    if !data.is_empty() && !["create", "set", "version"].contains(&word) {
        return Err(invalid(operation, "nothing comes behind the path here"));
    }
    Ok(match word {
        "exists" => multi.require(path, Condition::Exists),
        "absent" => multi.require(path, Condition::Absent),
        "version" => {
            let number = data.parse().map_err(|_| invalid(operation, "the version is a number"))?;
            multi.check(path, number)
        }
        "create" => multi.create(path, data, CreateMode::Persistent),
        "set" => multi.set(path, data),
        "delete" => multi.delete(path),
        _ => {
            let words = "the words are exists, absent, version, create, set and delete";
            return Err(invalid(operation, words));
        }
    })
}

impl TxnArgs {
    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        let from_input = self.operations == ["-"];
        let input = if from_input { data("-")? } else { Vec::new() };
        let input = String::from_utf8(input).map_err(|_| invalid("-", "it is not UTF-8"))?;
        let operations: Vec<&str> = match from_input {
            true => input.lines().filter(|line| !line.trim().is_empty()).collect(),
            false => self.operations.iter().map(String::as_str).collect(),
        };
        let multi = operations.iter().try_fold(session.multi(), |multi, one| add(multi, one))?;
        let results = multi.commit().wait().map_err(|error| match error {
            Error::Multi { index, error } if index < operations.len() => Error::Refused {
                operation: format!("{}, and so all of it", named(operations[index])),
                reason: error.to_string(),
            },
            other => other,
        })?;
        let text = results.iter().zip(&operations).map(|(result, operation)| match result {
            OpResult::Created(created) => format!("created {}\n", line(&created.path)),
            OpResult::Set(stat) => {
                format!("{}: version {}\n", line(written(operation)), stat.version)
            }
            _ => format!("{}\n", line(operation)),
        });
        Ok(Shown::new(
            text.collect::<String>(),
            json!(results.iter().map(super::json).collect::<Vec<_>>()),
        ))
    }
}

/// A word and a path, without what is behind them.
fn written(operation: &str) -> &str {
    operation.match_indices(' ').nth(1).map_or(operation, |(at, _)| &operation[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refused operation printed 900 kB of data, perhaps a secret, to a terminal or the log of a build.
    #[test]
    fn no_message_has_the_data_of_an_operation() {
        let data = "x".repeat(900_000);
        let operation = format!("create /a {data} {data}");
        assert_eq!(named(&operation), "\"create /a\" with 1800001 bytes of data");
        assert_eq!(named("version /a one"), "\"version /a one\"");
        let path = format!("create /{data}");
        assert!(named(&path).chars().count() < 220, "{}", named(&path));
        let error = invalid(&operation, "why").to_string();
        assert!(error.len() < 300 && !error.contains("xx"), "{error}");
        assert_eq!(written("set /a some data"), "set /a");
        assert_eq!(written("set /a"), "set /a");
    }
}
