//! Which threads run nodes.
//!
//! Users' wakers run on these threads. A waker that waited for a node could wait for itself, and would
//! delay the node in any case. So blocking calls check the thread first, and fail.

use std::cell::Cell;

use crate::types::error::{Error, Result};

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as running a node.
pub(crate) fn claim() {
    OWN.set(true);
}

/// Whether this thread runs a node.
pub(crate) fn is_this() -> bool {
    OWN.get()
}

/// Fails where blocking is not allowed.
pub(crate) fn check(operation: &str) -> Result<()> {
    match is_this() {
        true => Err(Error::WouldBlock { operation: operation.to_owned() }),
        false => Ok(()),
    }
}
