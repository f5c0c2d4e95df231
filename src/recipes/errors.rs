//! What the error of a write means for the recipe that made it.

use crate::recipes::parents::ROOT;
use crate::types::error::{Error, Result};
use crate::types::znode::{OpResult, Stat};

/// The error of the operation that failed, without its index: callers do not see that the recipe
/// used a multi.
pub(super) fn inner<T>(committed: Result<T>) -> Result<T> {
    committed.map_err(|error| match error {
        Error::Multi { error, .. } => *error,
        error => error,
    })
}

/// Converts the error for another znode at an ephemeral's path: the ephemeral is gone.
pub(super) fn gone(error: Error) -> Error {
    match error {
        Error::Unmet { path, .. } => Error::NoNode { path },
        error => error,
    }
}

/// `None` if there is no such znode.
pub(super) fn if_exists<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(Error::NoNode { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The children that were read; none if there is no such znode.
pub(super) fn children_or_none(read: Result<Vec<String>>) -> Result<Vec<String>> {
    Ok(if_exists(read)?.unwrap_or_default())
}

/// `None` if the znode is gone, or is not the one that the multi requires.
pub(super) fn unless_gone<T>(committed: Result<T>) -> Result<Option<T>> {
    if_exists(inner(committed).map_err(gone))
}

/// Not an error if the released hold had been lost already.
pub(super) fn lost_anyway(released: Result<()>) -> Result<()> {
    match unless_gone(released) {
        Err(error) if !error.is_session_lost() => Err(error),
        _ => Ok(()),
    }
}

/// `None` if another write came first, so that a new attempt may succeed.
pub(super) fn unless_overtaken<T>(committed: Result<T>) -> Result<Option<T>> {
    match inner(committed) {
        Ok(done) => Ok(Some(done)),
        Err(error) if is_overtaken(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The stat after the only set of a multi.
pub(super) fn stat_of_set(results: Vec<OpResult>) -> Result<Stat> {
    let stat = results.into_iter().find_map(|result| match result {
        OpResult::Set(stat) => Some(stat),
        _ => None,
    });
    // A multi's results have the kinds of its operations.
    stat.ok_or_else(|| Error::Stopped { reason: "nothing was set".to_owned() })
}

/// How many nanoseconds were missing, if a write came too early for [`Multi::require_time`], or would have moved a
/// time too far.
///
/// [`Multi::require_time`]: crate::api::multi::Multi::require_time
pub(super) fn missing_nanos(error: &Error) -> Option<i64> {
    match error {
        Error::QuotaExceeded { resource: "nanoseconds", limit, needed, .. } => {
            i64::try_from(needed.saturating_sub(*limit)).ok()
        }
        _ => None,
    }
}

/// Whether a write failed because another one came first, so that a new attempt may succeed.
pub(super) fn is_overtaken(error: &Error) -> bool {
    let others =
        matches!(error, Error::Unmet { .. } | Error::NoNode { .. } | Error::NodeExists { .. });
    others && !is_root_missing(error)
}

/// Whether the root of the session's chroot is missing, so that no new attempt can help.
pub(super) fn is_root_missing(error: &Error) -> bool {
    matches!(error, Error::NoNode { path } if path == ROOT)
}
