//! skeleton
pub(crate) mod command;
