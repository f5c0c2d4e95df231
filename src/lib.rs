//! skeleton
#![allow(dead_code, missing_docs)]

mod error;
mod machine;
mod node;
mod path;
mod session;
mod storage;
mod transport;
mod watch;
mod znode;

pub use error::{Error, Result};
pub use session::SessionState;
pub use watch::{EventKind, WatchEvent, WatchMode};
pub use znode::{CreateMode, Created, OpResult, SessionId, Stat, Zxid};
