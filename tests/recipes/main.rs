//! The recipes, on clusters in memory.

#[path = "../common/mod.rs"]
mod common;

mod agreement;
mod barriers;
mod election;
mod hung_members;
mod isolation;
mod locks;
mod partitions;
mod parts;
mod queues;
mod rate_limiter;
mod root;
mod schedule;
mod signals;
mod state;
