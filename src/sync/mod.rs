//! What the node's thread and its users' threads share beside plain channels, in small parts that
//! decide nothing else.
//!
//! | part | who writes | who reads |
//! | --- | --- | --- |
//! | [`slot`] | the node answers a request | whoever waits for the answer |
//! | [`published`] | the node publishes its tree | every reader |
//! | [`gap`] | the node tells a watch its events | whoever waits for them |
//! | [`states`] | the node tells a session's states | all who asked for them |
//!
//! Each is made of nothing but what `prim` names. The crate in `loom/` builds the same files over
//! models of these, and runs them through every order in which their threads can take their turns
//! and every value that the memory model lets them see; `loom/mutants` plants faults in them and
//! expects each to be found. So nothing here may use another lock, channel or atomic than those of
//! `prim`.
//!
//! Not here, since there is no order to get wrong: a session's lease (one number) and that it was
//! given up (a flag that is never taken back), each of which a reader looks at alone; the node's
//! status, which is behind one lock.

pub(crate) mod gap;
mod prim;
pub(crate) mod published;
pub(crate) mod slot;
pub(crate) mod states;

#[cfg(test)]
mod tests;
