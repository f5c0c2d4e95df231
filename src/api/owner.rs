//! The owner of a running node: the last handle stops it.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::runtime::own_thread;
use crate::runtime::shared::NodeShared;

/// Keeps a node running: dropping the last one stops the node.
pub(crate) struct Owner {
    pub(crate) shared: Arc<NodeShared>,
    pub(crate) runs: Runs,
}

/// What runs the node.
pub(crate) enum Runs {
    Thread(Mutex<Option<JoinHandle<()>>>),
    /// An in-memory cluster, which ends with the last of its users.
    Cluster {
        _running: Arc<dyn Any + Send + Sync>,
    },
    /// A simulation, whose only thread never waits.
    #[cfg(any(test, feature = "simulator"))]
    Simulation,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("node", &self.shared.node).finish_non_exhaustive()
    }
}

impl Owner {
    pub(crate) fn close(&self) {
        let closed = self.shared.close();
        // The last handle may be dropped in a waker. The node's own thread cannot wait for itself,
        // and another node's must not wait.
        if own_thread::is_this() {
            return;
        }
        match &self.runs {
            Runs::Thread(thread) => {
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(thread) = thread {
                    let _ = thread.join();
                }
            }
            Runs::Cluster { .. } => {
                // No message ever comes: the channel closes with the node.
                let _ = closed.recv();
            }
            #[cfg(any(test, feature = "simulator"))]
            Runs::Simulation => drop(closed),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.shared.clock.is_forked() {
            // There is no thread to join, and nothing to release.
            if let Runs::Thread(thread) = &mut self.runs {
                let thread = thread.get_mut().unwrap_or_else(PoisonError::into_inner);
                std::mem::forget(thread.take());
            }
            return;
        }
        // A node of an in-memory cluster continues: the users of other nodes may still need its
        // vote.
        if let Runs::Thread(_) = &self.runs {
            self.close();
        }
    }
}
