//! What the error of a recipe's write means to the recipe.

use crate::planted::{Bug, planted};
use crate::recipes::parents::ROOT;
use crate::types::error::{Error, Result};
use crate::types::znode::OpResult;

/// The error of the operation that failed, without its index: callers do not see that the recipe
/// used a multi.
pub(super) fn inner(committed: Result<Vec<OpResult>>) -> Result<Vec<OpResult>> {
    committed.map_err(|error| match error {
        Error::Multi { error, .. } => *error,
        error => error,
    })
}

/// The children that were read; none if there is no such znode.
pub(super) fn children_or_none(read: Result<Vec<String>>) -> Result<Vec<String>> {
    match read {
        Err(Error::NoNode { .. }) => Ok(Vec::new()),
        other => other,
    }
}

/// Whether a write failed because another one came first, so that a new attempt may succeed.
pub(super) fn is_overtaken(error: &Error) -> bool {
    let others =
        matches!(error, Error::Unmet { .. } | Error::NoNode { .. } | Error::NodeExists { .. });
    others && !is_root_missing(error) && !planted(Bug::OvertakenShown)
}

/// Whether the root of the session's chroot is missing, so that no new attempt can help.
pub(super) fn is_root_missing(error: &Error) -> bool {
    matches!(error, Error::NoNode { path } if path == ROOT)
}
