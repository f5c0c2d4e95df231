//! Coordination recipes, built only on the public handles.
//!
//! Each recipe is a future over [`Pending`](crate::Pending) answers, watches and the session's
//! timer ([`NonBlocking::sleep`](crate::NonBlocking::sleep)), so that it needs no runtime and no
//! thread. The blocking form waits for that future. Recipes do not poll, and wake only those that
//! can go on. A future that is dropped before it is done gives up its request, in the cluster too.

mod atomic_value;
mod barrier;
mod blocking;
mod cache;
mod codec;
mod config;
mod contenders;
mod counter;
mod creating;
mod delay;
mod discovery;
mod double_barrier;
mod election;
mod errors;
mod group;
mod ids;
mod list;
mod lock;
mod multi_lock;
mod owned_ephemeral;
mod parents;
mod participant;
mod persistent_ephemeral;
mod queue;
mod read_write_lock;
mod reentrant_lock;
mod registry;
mod revocation;
mod selector;
mod semaphore;
mod two_phase;

pub use barrier::Barrier;
pub use cache::{Cache, Change, Entry};
pub use codec::{Codec, Postcard, Raw};
pub use config::{Config, ConfigUpdate, ConfigWatch, Versioned};
pub use counter::{Counted, Counter};
pub use discovery::{Chooser, Discovery, InstancesWatch, Strategy};
pub use double_barrier::{DoubleBarrier, Inside};
pub use election::{Candidate, LeaderChanges, LeaderLatch, Leadership};
pub use group::{Group, Member, MemberChanges, Members, Membership};
pub use ids::IdGenerator;
pub use list::{ListItem, NodeList};
pub use lock::{Lock, LockContender, LockGuard, LockLost};
pub use multi_lock::{MultiLock, MultiLockGuard};
pub use participant::Participant;
pub use persistent_ephemeral::{EphemeralHandle, PersistentEphemeral};
pub use queue::{Item, NewItem, Queue};
pub use read_write_lock::{ReadGuard, ReadWriteLock, WriteGuard};
pub use reentrant_lock::{ReentrantGuard, ReentrantLock};
pub use registry::{Instance, Registration, Registry};
pub use revocation::Revocations;
pub use selector::LeaderSelector;
pub use semaphore::{Permits, Semaphore};
pub use two_phase::{Phase, TwoPhaseCommit, Vote};
