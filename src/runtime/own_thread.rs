//! Which threads are a node's own.
//!
//! Wakers run there, and they are users' code: whoever waits there for a node may wait for itself,
//! and holds the node up in any case. So blocking calls ask here first, and fail.

use std::cell::Cell;

use crate::types::error::{Error, Result};

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// This thread runs a node from now on.
pub(crate) fn claim() {
    OWN.set(true);
}

/// Whether this thread runs a node.
pub(crate) fn is_this() -> bool {
    OWN.get()
}

/// Fails where nobody may wait.
pub(crate) fn check(operation: &str) -> Result<()> {
    match is_this() {
        true => Err(Error::WouldBlock { operation: operation.to_owned() }),
        false => Ok(()),
    }
}
