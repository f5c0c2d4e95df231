//! Whether a node runs, and how it has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use once_cell::sync::OnceCell;

use crate::runtime::clock::Clock;
use crate::runtime::thread_end;
use crate::types::error::Error;

/// Why a node has stopped that its user has closed.
pub(crate) const CLOSED: &str = "it was closed";

/// The end of a node.
pub(crate) struct NodeEnd {
    clock: Clock,
    reason: OnceCell<String>,
    /// The reason in a fork.
    forked: OnceCell<String>,
    /// Whether a user has asked the node to leave the cluster.
    pub(crate) leaves: AtomicBool,
    /// Whether drops must not wait for threads: see `thread_end`.
    pub(crate) joined_by_task: AtomicBool,
}

impl NodeEnd {
    pub(super) fn new(clock: Clock) -> NodeEnd {
        NodeEnd {
            clock,
            reason: OnceCell::new(),
            forked: OnceCell::new(),
            leaves: AtomicBool::new(false),
            joined_by_task: AtomicBool::new(false),
        }
    }

    /// Why the node has stopped, if it has. It does not run in a fork of its process either.
    pub(crate) fn reason(&self) -> Option<&str> {
        if self.clock.is_forked() {
            return Some(self.forked.get_or_init(|| self.clock.fork_reason()));
        }
        self.reason.get().map(String::as_str)
    }

    /// The node has stopped. If it had before, the first reason stays. Returns the error that tells it.
    pub(super) fn set(&self, reason: &str) -> Error {
        Error::Stopped { reason: self.reason.get_or_init(|| reason.to_owned()).clone() }
    }

    /// The error of a node that has stopped.
    pub(crate) fn error(&self) -> Option<Error> {
        self.reason().map(|reason| Error::Stopped { reason: reason.to_owned() })
    }

    /// Waits for the thread of a dropped handle to end: see `thread_end`.
    pub(crate) fn wait(&self, thread: JoinHandle<()>) {
        thread_end::wait(&self.clock, self.joined_by_task.load(Ordering::Relaxed), thread);
    }
}
