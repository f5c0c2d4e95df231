//! A session's calls, by topic.

mod acl;
mod quota;
mod transact;
mod watch;
mod znode;
