//! A session's calls, by what they are about.

mod acl;
mod quota;

pub(crate) use self::acl::create_with_acl_op;
