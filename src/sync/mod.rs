//! The state that the node's thread and users' threads share, beside plain channels, in small parts
//! that are independent of each other.
//!
//! | part | writer | reader |
//! | --- | --- | --- |
//! | [`slot`] | the node answers a request | the caller that waits for the answer |
//! | [`published`] | the node publishes its tree | every reader |
//! | [`gap`] | the node sends a watch's events | the tasks that wait for them |
//! | [`states`] | the node sends a session's states | all subscribers |
//! | [`wakers`] | the thread that makes a change, or sends in a plain channel | the tasks that wait for it |
//!
//! The parts use only the primitives in `prim`. The crate in `loom/` builds the same files over
//! models of these, and runs them through every interleaving of their threads and every value that
//! the memory model allows; `loom/mutants` plants faults in them and expects each to be found. So
//! nothing here may use another lock, channel or atomic than those of `prim`.
//!
//! Not here, since no order between them matters: a session's lease (one number) and the flag that a
//! lease was given up (never reset), each of which is read alone; the node's status, which is behind
//! one lock.

pub(crate) mod gap;
mod prim;
pub(crate) mod published;
pub(crate) mod slot;
pub(crate) mod states;
mod task;
pub(crate) mod wakers;

#[cfg(test)]
mod tests;
