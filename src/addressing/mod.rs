//! Who this instance is and where the others are: the list of peers, the names in it, and what this host is called.
//!
//! | file | what it does |
//! | --- | --- |
//! | `peers` | the list as the user wrote it, checked, and which of its addresses is this process |
//! | `names` | looks names up, and decides whether a name stands for a single host |
//! | `repeated` | looks the same names up again and again |
//! | `naming` | the names of the list, until there is a cluster |
//! | `discovery` | the addresses of one name that stands for all instances |
//! | `listening` | the own name, until it leads to this host |
//!
//! Nothing here connects to a peer; `transport` does. Why an instance has no cluster yet is put together by the
//! node: see [`Reason`](crate::types::reason::Reason).

pub(crate) mod discovery;
pub(crate) mod listening;
pub(crate) mod names;
pub(crate) mod naming;
pub(crate) mod peers;
pub(crate) mod repeated;
