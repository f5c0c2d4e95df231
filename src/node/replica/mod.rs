//! What a replica offers beside its state: watches, the history that they can begin in, and service
//! to clients without a replica.

pub(crate) mod history;
pub(crate) mod net_changes;
pub(crate) mod path_filter;
pub(crate) mod server;
pub(crate) mod watch_kind;
pub(crate) mod watches;
