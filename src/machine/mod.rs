//! skeleton
pub(crate) mod command;
pub(crate) mod snapshot;
pub(crate) mod tree;
