//! Coordination recipes, built on the handles that every user has.

mod lock;

pub use lock::{Lock, LockGuard, LockLost};
