//! A session's calls, by topic.

mod acl;
mod past;
mod quota;
mod transact;
mod watch;
mod znode;

pub(crate) use self::acl::create_with_acl_op;
pub(crate) use self::znode::{create_or_set_op, take_over_op};
