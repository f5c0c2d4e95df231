//! Coordination recipes: locks, elections, queues and others, built on the calls of
//! [`Session`](crate::Session).
//!
//! Each recipe is a future over [`Pending`](crate::Pending) replies, watches and the session's timer
//! ([`Session::sleep`](crate::Session::sleep)), so that it needs no runtime and no thread. Recipes
//! do not poll, and wake only participants that can continue. If a future that waits in a queue or at a
//! barrier is dropped, it leaves nothing behind in the cluster. If the future of a single change is
//! dropped, the change may or may not happen.
//!
//! # Waiting
//!
//! Calls that wait return a [`Pending`](crate::Pending), as those of a session do. Those that wait for others (for a lock, or
//! for a change) have no time limit but yours ([`Pending::timeout`](crate::Pending::timeout)).
//! [`guide::async`](crate::guide::from_async) tells what is left behind by one that is dropped.
//!
//! ```
//! use std::time::Duration;
//! use quorate::Error;
//!
//! # fn example(session: quorate::Session) -> quorate::Result<()> {
//! match session.lock("/lock")?.acquire().timeout(Duration::from_secs(5)).wait() {
//!     Ok(guard) => guard.release().wait(),
//!     Err(Error::NotInTime { .. }) => Ok(println!("another one has held it all the time")),
//!     Err(error) => Err(error),
//! }
//! # }
//! # example(quorate::testing::Cluster::new(1).node(0).session())?;
//! # Ok::<(), quorate::Error>(())
//! ```
//!
//! # How to wait
//!
//! All recipes wait in the following way. Use it in your own recipes, too:
//! - Read and set the watch in one call
//!   ([`exists_and_watch`](crate::Session::exists_and_watch) and the like), so that no change in
//!   between is missed.
//! - After each event, read again. An event reports a change and not the present state, and another
//!   instance may have been faster.
//! - Call [`sync`](crate::Session::sync) before the first read if a stale replica would let
//!   somebody pass: it may not show yet that a barrier was set. No `sync` is needed if stale data
//!   only makes somebody wait longer, as for a lock: the event comes when the replica catches up.

// For authors of further recipes in this folder:
//
// | to | use |
// | --- | --- |
// | create something whose parents may be missing | `parents`: `create_at`, `create_below` |
// | create a znode, and delete it if the caller stops waiting | `creating` |
// | create an ephemeral whose name this instance's former run may still have | `former_run` |
// | own an ephemeral: watch it, write to exactly that znode, delete it | `owned_ephemeral` |
// | replace a znode's data only if it has not changed since it was read | `atomic_value` |
// | hold something, and notice its loss | `held` |
// | queue instances in order of arrival, for a lock or an election | `contenders` |
// | ask a holder to release | `revocation` |
// | let writes that are made at about the same time become one | `api::write_group` |
// | keep a lock free for a while after its holder was lost | `delay` |
// | find out what a failed write means, and whether it is worth another attempt | `errors` |
// | wait until a znode that is there changes, or for its next event | `waiting` |
// | wait for one of two futures | `runtime::either` |
// | encode values as data | `codec` |
// | order sequential znodes | `sequence` |
// | report a state that changes: the latest value | `updates` |
// | follow all changes below a path | `cache` |
//
// A recipe writes and watches only by public calls, so the cluster offers it nothing that users do
// not have. Inside the process it also uses:
// - this replica's tree without waiting for a reply, to see which znodes are missing or lost
//   (`parents`, `owned_ephemeral`);
// - the table of sessions, to see which znodes a former run of this instance has left (`former_run`);
// - a delete that follows a create whose caller is gone (`Session::discarding`, in `creating`);
// - the clock and the random numbers of `runtime`, which let the simulator replay a recipe.

mod atomic_value;
mod barrier;
mod cache;
mod codec;
mod config;
pub(crate) mod contended;
mod contenders;
mod counter;
mod creating;
mod delay;
mod discovery;
mod double_barrier;
mod election;
mod errors;
mod former_run;
mod group;
mod held;
mod ids;
mod lock;
mod multi_lock;
mod owned_ephemeral;
mod parents;
mod participant;
pub(crate) mod partitions;
mod persistent_ephemeral;
mod queue;
mod rate_limiter;
mod read_write_lock;
mod reentrant_lock;
mod registry;
pub(crate) mod revocation;
pub(crate) mod schedule;
mod selector;
mod semaphore;
mod sequence;
#[cfg(feature = "futures")]
mod streams;
pub(crate) mod table;
mod two_phase;
mod updates;
mod waiting;

pub use barrier::Barrier;
pub use cache::{Cache, Change, Entry};
#[cfg(feature = "json")]
pub use codec::Json;
pub use codec::{Codec, Postcard, Raw};
pub use config::{Config, ConfigUpdate, Versioned};
pub use contenders::Naming;
pub use counter::Counter;
pub use discovery::{Chooser, Strategy};
pub use double_barrier::{DoubleBarrier, Inside};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use election::candidate_priority;
pub use election::{Candidate, LeaderLatch, Leadership};
pub use group::{Group, Member, Membership};
pub use held::{Held, Lost};
pub use ids::IdGenerator;
pub use lock::{Lock, LockGuard};
pub use multi_lock::{MultiLock, MultiLockGuard};
pub use participant::Participant;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use partitions::is_silent;
pub use partitions::{Partition, PartitionMember, PartitionPlan, Partitions, Share};
pub use persistent_ephemeral::PersistentEphemeral;
pub use queue::{Item, NewItem, Queue};
pub use rate_limiter::{KeyedRateLimiter, RateLimiter};
pub use read_write_lock::{ReadWriteLock, WriteGuard};
pub use reentrant_lock::{ReentrantGuard, ReentrantLock};
pub use registry::{Instance, Registration, Registry};
pub use revocation::Revocations;
pub use schedule::{Fire, Missed, PastFire, Run, Schedule, Timer, TimerState};
pub use selector::LeaderSelector;
pub use semaphore::{Permits, Semaphore};
pub use two_phase::{Phase, TwoPhaseCommit, Vote};
pub use updates::Updates;

pub use crate::types::counter::CounterForm;

/// Reads arbitrary bytes as what recipes store, and as names of contenders.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let _ = registry::decode(bytes);
    let _: Result<two_phase::TransactionHeader, String> = Postcard::decode(bytes);
    let _: Result<two_phase::Site, String> = Postcard::decode(bytes);
    partitions::fuzz(bytes);
    schedule::fuzz(bytes);
    for form in [CounterForm::Long, CounterForm::Int, CounterForm::Text] {
        if let Ok(number) = form.decode(bytes) {
            let again = form.encode(number).map(|data| form.decode(&data));
            assert_eq!(again, Some(Ok(number)));
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        contenders::fuzz(text);
    }
}
