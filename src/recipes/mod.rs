//! Coordination recipes, built on the handles that every user has.
//!
//! Each is written once, as a future over [`Pending`](crate::Pending) answers, watches and the
//! session's timer ([`NonBlocking::sleep`](crate::NonBlocking::sleep)), so that it needs no runtime
//! and no thread; the blocking form waits for that future. Each wakes only whom it must and polls
//! nothing, and what is dropped before it is done is given up, in the cluster too.

mod blocking;
mod delay;
mod line;
mod lock;
mod multi_lock;
mod read_write_lock;
mod reentrant_lock;
mod revocation;
mod semaphore;

pub use lock::{Lock, LockContender, LockGuard, LockLost};
pub use multi_lock::{MultiLock, MultiLockGuard};
pub use read_write_lock::{ReadGuard, ReadWriteLock, WriteGuard};
pub use reentrant_lock::{ReentrantGuard, ReentrantLock};
pub use revocation::Revocations;
pub use semaphore::{Permits, Semaphore};
