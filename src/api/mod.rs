//! The handles for users: the coordinator and its builder, sessions and their calls, watches,
//! snapshots, transactions. Each call sends a request to the node that `runtime` runs, and waits
//! for its reply.
//!
//! Not here: recipes, which are built on these handles alone.

pub(crate) mod attempts;
pub(crate) mod builder;
pub(crate) mod calls;
pub(crate) mod causal;
pub(crate) mod changes;
pub(crate) mod coordinator;
pub(crate) mod multi;
pub(crate) mod multi_read;
pub(crate) mod operate;
pub(crate) mod ops;
pub(crate) mod owner;
pub(crate) mod part;
#[cfg(feature = "metrics")]
mod publish;
pub(crate) mod session;
pub(crate) mod snapshot;
pub(crate) mod status;
#[cfg(feature = "futures")]
pub(crate) mod stream;
pub(crate) mod supervise;
#[cfg(any(feature = "gateway", feature = "admin"))]
pub(crate) mod support;
pub(crate) mod transaction;
pub(crate) mod watch;
pub(crate) mod write_group;
