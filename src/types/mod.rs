//! Values that all layers use: paths, znodes, access lists, members, errors. They have no behaviour
//! beyond their own consistency, and do not depend on the layers above.

pub(crate) mod acl;
pub(crate) mod availability;
pub(crate) mod certificate;
pub(crate) mod counter;
pub(crate) mod encoding;
pub(crate) mod error;
pub(crate) mod log_form;
pub(crate) mod membership;
pub(crate) mod metrics;
pub(crate) mod moment;
pub(crate) mod path;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod reason;
pub(crate) mod right;
pub(crate) mod serde_form;
pub(crate) mod session;
pub(crate) mod start_error;
pub(crate) mod version;
pub(crate) mod warnings;
pub(crate) mod watch;
pub(crate) mod znode;
