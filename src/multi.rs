//! What goes with several operations in one: conditions, fences and parts of a write, the results, and reads of one
//! state.
//!
//! The calls are [`Session::multi`](crate::Session::multi), [`Session::transact`](crate::Session::transact) and
//! [`Session::multi_read`](crate::Session::multi_read). [`guide::transactions`](crate::guide::transactions) says
//! which one to take.
//!
//! ```
//! use quorate::multi::{Condition, OpResult};
//! use quorate::{CreateMode, testing::Cluster};
//!
//! let session = Cluster::new(1).node(0).session();
//! let leader = session.create("/leader", b"a", CreateMode::Persistent).wait()?.stat;
//! let write = session.multi().require("/leader", Condition::Czxid(leader.czxid));
//! let results = write.create("/report", b"done", CreateMode::Persistent).commit().wait()?;
//! assert!(matches!(results[..], [OpResult::Checked, OpResult::Created(_)]));
//! # Ok::<(), quorate::Error>(())
//! ```

pub use crate::api::multi::Fence;
pub use crate::api::multi_read::{ReadOp, ReadResult};
pub use crate::api::part::Part;
pub use crate::api::transaction::Committed;
pub use crate::types::znode::{Condition, OpResult};
