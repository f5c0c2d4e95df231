//! skeleton
#![allow(dead_code, missing_docs)]

mod error;
mod machine;
mod node;
mod path;
mod storage;
mod transport;
mod znode;

pub use error::{Error, Result};
pub use znode::{CreateMode, Created, OpResult, SessionId, Stat, Zxid};
