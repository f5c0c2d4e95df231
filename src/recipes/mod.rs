//! Coordination recipes, built on the handles that every user has.
//!
//! Each is written once, as a future over [`Pending`](crate::Pending) answers, watches and the
//! session's timer ([`NonBlocking::sleep`](crate::NonBlocking::sleep)), so that it needs no runtime
//! and no thread; the blocking form waits for that future. Each wakes only whom it must and polls
//! nothing, and what is dropped before it is done is given up, in the cluster too.

mod barrier;
mod blocking;
mod delay;
mod double_barrier;
mod election;
mod group;
mod line;
mod lock;
mod multi_lock;
mod own;
mod persistent_ephemeral;
mod queue;
mod read_write_lock;
mod reentrant_lock;
mod revocation;
mod selector;
mod semaphore;

pub use barrier::Barrier;
pub use double_barrier::{DoubleBarrier, Inside};
pub use election::{Candidate, LeaderChanges, LeaderLatch, Leadership};
pub use group::{Group, Member, MemberChanges, Members, Membership};
pub use lock::{Lock, LockContender, LockGuard, LockLost};
pub use multi_lock::{MultiLock, MultiLockGuard};
pub use persistent_ephemeral::{EphemeralHandle, PersistentEphemeral};
pub use queue::{Item, NewItem, Queue};
pub use read_write_lock::{ReadGuard, ReadWriteLock, WriteGuard};
pub use reentrant_lock::{ReentrantGuard, ReentrantLock};
pub use revocation::Revocations;
pub use selector::LeaderSelector;
pub use semaphore::{Permits, Semaphore};
