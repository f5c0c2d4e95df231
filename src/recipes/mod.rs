//! Coordination recipes, built on the handles that every user has.
//!
//! Each is written once, as a future over [`Pending`](crate::Pending) answers, watches and the
//! session's timer ([`NonBlocking::sleep`](crate::NonBlocking::sleep)), so that it needs no runtime
//! and no thread; the blocking form waits for that future. Each wakes only whom it must and polls
//! nothing, and what is dropped before it is done is given up, in the cluster too.

mod blocking;
mod cache;
mod cell;
mod codec;
mod config;
mod counter;
mod discovery;
mod ids;
mod line;
mod list;
mod lock;
mod own;
mod participant;
mod registry;
mod two_phase;

pub use cache::{Cache, Change, Entry};
pub use codec::{Codec, Postcard, Raw};
pub use config::{Config, ConfigUpdate, ConfigWatch, Versioned};
pub use counter::{Counted, Counter};
pub use discovery::{Chooser, Discovery, InstancesWatch, Strategy};
pub use ids::IdGenerator;
pub use list::{Item, NodeList};
pub use lock::{Lock, LockGuard, LockLost};
pub use participant::Participant;
pub use registry::{Instance, Registration, Registry};
pub use two_phase::{Phase, TwoPhaseCommit, Vote};
