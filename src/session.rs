//! What goes with a [`Session`](crate::Session): its id and what it has seen, changes of its
//! state, and work that is done anew in each session.
//!
//! [`guide::sessions`](crate::guide::sessions) says how long a session lives, and how it survives a restart.
//!
//! ```
//! use quorate::session::{CausalToken, SessionId, Zxid};
//! use quorate::{CreateMode, testing::Cluster};
//!
//! let session = Cluster::new(1).node(0).session();
//! let id: SessionId = session.id();
//! let written: Zxid = session.create("/a", b"", CreateMode::Ephemeral).wait()?.stat.czxid;
//! let token: CausalToken = session.causal_token().wait()?;
//! println!("session {id} has seen write {written}, as its token says: {token}");
//! # Ok::<(), quorate::Error>(())
//! ```

pub use crate::api::causal::CausalToken;
pub use crate::api::changes::Changes;
pub use crate::api::supervise::Supervised;
pub use crate::types::znode::{SessionId, Zxid};
