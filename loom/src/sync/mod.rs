//! The library's files, built over the models.

#![allow(dead_code, reason = "the library uses all of it")]

#[path = "../../../src/sync/gap.rs"]
pub(crate) mod gap;
pub(crate) mod prim;
#[path = "../../../src/sync/published.rs"]
pub(crate) mod published;
#[path = "../../../src/sync/slot.rs"]
pub(crate) mod slot;
#[path = "../../../src/sync/states.rs"]
pub(crate) mod states;
#[path = "../../../src/sync/task.rs"]
mod task;
#[path = "../../../src/sync/wakers.rs"]
pub(crate) mod wakers;
