//! Coordination recipes, built on the handles that every user has.
//!
//! Each is written once, as a future over [`Pending`](crate::Pending) answers, watches and the
//! session's timer ([`NonBlocking::sleep`](crate::NonBlocking::sleep)), so that it needs no runtime
//! and no thread; the blocking form waits for that future. Each wakes only whom it must and polls
//! nothing, and what is dropped before it is done is given up, in the cluster too.

mod blocking;
mod election;
mod group;
mod line;
mod lock;
mod own;
mod persistent_ephemeral;
mod selector;

pub use election::{Candidate, LeaderChanges, LeaderLatch, Leadership};
pub use group::{Group, Member, MemberChanges, Members, Membership};
pub use lock::{Lock, LockGuard, LockLost};
pub use persistent_ephemeral::{EphemeralHandle, PersistentEphemeral};
pub use selector::LeaderSelector;
