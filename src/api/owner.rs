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
    /// Its own thread, until it is joined.
    Thread(Mutex<Option<JoinHandle<()>>>),
    /// An in-memory cluster, which ends when its last user is dropped.
    Cluster { _running: Arc<dyn Any + Send + Sync> },
    /// A simulation, whose only thread never waits.
    #[cfg(any(test, feature = "simulator"))]
    Simulation,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("node", &self.shared.cluster.node).finish_non_exhaustive()
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
                // No message is ever sent: the channel is closed when the node ends.
                let _ = closed.recv();
            }
            #[cfg(any(test, feature = "simulator"))]
            Runs::Simulation => drop(closed),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // A node of an in-memory cluster continues: the users of other nodes may still need its
        // vote.
        let Runs::Thread(thread) = &mut self.runs else { return };
        let thread = thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.shared.clock.is_forked() {
            // There is no thread to join, and nothing to release.
            return std::mem::forget(thread);
        }
        drop(self.shared.close());
        if let Some(thread) = thread {
            self.shared.end.wait(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crossbeam_channel::bounded;

    use super::*;
    use crate::testing::Cluster;

    /// Returns an owner whose node's thread ends when the returned channel is closed, and a flag
    /// that is set once the thread has ended.
    fn owner(by_task: bool) -> (Owner, crossbeam_channel::Sender<()>, Arc<AtomicBool>) {
        let shared = Arc::clone(Cluster::new(1).node(0).shared());
        shared.end.joined_by_task.store(by_task, Ordering::Relaxed);
        let (go, goes) = bounded(0);
        let ended = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&ended);
        let run = move || {
            let _ = goes.recv();
            ends.store(true, Ordering::SeqCst);
        };
        let thread = std::thread::Builder::new().spawn(run).unwrap();
        (Owner { shared, runs: Runs::Thread(Mutex::new(Some(thread))) }, go, ended)
    }

    /// The last handle, dropped in a task, held the runtime's thread until the node's threads had
    /// ended.
    #[test]
    #[cfg(not(windows))]
    fn what_a_task_has_joined_is_waited_for_when_its_thread_ends() {
        let (owner, go, ended) = owner(true);
        let (dropped, is_dropped) = bounded(1);
        let (last, is_last) = bounded::<()>(0);
        let runtime = std::thread::Builder::new();
        let runtime = runtime.spawn(move || {
            drop(owner);
            dropped.send(()).unwrap();
            let _ = is_last.recv();
        });
        let runtime = runtime.unwrap();
        // The node's thread runs, and the drop has returned.
        is_dropped.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        assert!(!ended.load(Ordering::SeqCst));
        drop(last);
        drop(go);
        runtime.join().unwrap();
        assert!(ended.load(Ordering::SeqCst));
    }

    #[test]
    fn dropping_an_instance_joined_by_a_blocking_call_waits() {
        let (owner, go, ended) = owner(false);
        let thread = std::thread::Builder::new().spawn(move || {
            drop(owner);
            ended.load(Ordering::SeqCst)
        });
        drop(go);
        assert!(thread.unwrap().join().unwrap());
    }
}
