//! What the parts of this folder are made of. See `loom/src/sync/prim.rs` for the models.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
pub(super) use std::thread::yield_now;

pub(super) use arc_swap::{ArcSwap, Guard};
pub(super) use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
