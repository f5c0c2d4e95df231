//! Coordination recipes, built on the handles that every user has.
//!
//! Each is written once, as a future over [`Pending`](crate::Pending) answers, watches and the
//! session's timer ([`NonBlocking::sleep`](crate::NonBlocking::sleep)), so that it needs no runtime
//! and no thread; the blocking form waits for that future. Each wakes only whom it must and polls
//! nothing, and what is dropped before it is done is given up, in the cluster too.

mod barrier;
mod blocking;
mod double_barrier;
mod line;
mod lock;
mod queue;

pub use barrier::Barrier;
pub use double_barrier::{DoubleBarrier, Inside};
pub use lock::{Lock, LockGuard, LockLost};
pub use queue::{Item, NewItem, Queue};
