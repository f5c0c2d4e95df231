//! The types of watches, for the calls that remove and list them.
//!
//! [`Watch`](crate::Watch), [`WatchMode`](crate::WatchMode) and [`WatchEvent`](crate::WatchEvent) stand at the crate's
//! root. The calls here are [`Session::remove_watches`](crate::Session::remove_watches) and
//! [`Coordinator::watches`](crate::Coordinator::watches). The rules are in [`guide::watches`](crate::guide::watches).
//!
//! ```
//! use quorate::watch::WatcherType;
//! use quorate::{WatchMode, testing::Cluster};
//!
//! let cluster = Cluster::new(1);
//! let coordinator = cluster.node(0);
//! let session = coordinator.session();
//! let _watch = session.watch("/config", WatchMode::PersistentRecursive).wait()?;
//! assert_eq!(coordinator.watches()[0].kind, WatcherType::PersistentRecursive);
//! session.remove_watches("/config", WatcherType::Any).wait()?;
//! # Ok::<(), quorate::Error>(())
//! ```

pub use crate::types::watch::{WatchInfo, WatcherType};
