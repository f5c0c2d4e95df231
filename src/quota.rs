//! Limits of the number of znodes and of bytes below a path, and what is used of them.
//!
//! The calls are [`Session::set_quota`](crate::Session::set_quota), [`Session::quota`](crate::Session::quota) and
//! [`Session::delete_quota`](crate::Session::delete_quota). The rules are in
//! [`guide::acls`](crate::guide::acls#quotas).
//!
//! ```
//! use quorate::quota::Quota;
//! use quorate::{CreateMode, testing::Cluster};
//!
//! let session = Cluster::new(1).node(0).session();
//! session.create("/jobs", b"", CreateMode::Persistent).wait()?;
//! session.set_quota("/jobs", &Quota::new().znodes_hard(1000)).wait()?;
//! let (_, usage) = session.quota("/jobs").wait()?.expect("it was set");
//! assert_eq!(usage.znodes, 1);
//! # Ok::<(), quorate::Error>(())
//! ```

pub use crate::types::quota::{Quota, Usage};
