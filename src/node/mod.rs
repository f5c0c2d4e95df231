//! skeleton
pub(crate) mod message;
