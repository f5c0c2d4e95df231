//! The thread that writes checkpoints, while writes go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};

use crate::machine::snapshot::ChunkWriter;
use crate::machine::{Dirty, State};
use crate::runtime::watchdog::Stepper;
use crate::storage::{CheckpointKind, Checkpointer, StorageError};

/// A checkpoint to be written.
pub(super) struct Order {
    pub(super) state: State,
    /// What has changed since the checkpoint before.
    pub(super) dirty: Dirty,
}

/// The owner's end of the thread `quorate-state`. Dropping it ends the thread; a checkpoint that is
/// under way is given up.
pub(super) struct StateThread {
    orders: Option<Sender<Order>>,
    /// Whether what is under way is to be given up.
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StateThread {
    /// Starts the thread. It gives `done` each result: `false` for a checkpoint that was given up.
    pub(super) fn start(
        mut checkpointer: Box<dyn Checkpointer>,
        mut stepper: Stepper,
        done: impl Fn(Result<bool, StorageError>) + Send + 'static,
    ) -> std::io::Result<StateThread> {
        let (orders, queue) = unbounded::<Order>();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread =
            std::thread::Builder::new().name("quorate-state".to_owned()).spawn(move || {
                while let Ok(order) = queue.recv() {
                    let finished = write_checkpoint(&mut *checkpointer, order, || {
                        stepper.begin();
                        !stopped.load(Ordering::Relaxed)
                    });
                    stepper.rest();
                    done(finished);
                }
            })?;
        Ok(StateThread { orders: Some(orders), stop, thread: Some(thread) })
    }

    pub(super) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends with this value, and not before.
            let _ = orders.send(order);
        }
    }
}

impl Drop for StateThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the chunks of a checkpoint; asks before each call of the store whether to go on. `false`
/// if the checkpoint was given up.
pub(super) fn write_checkpoint(
    checkpointer: &mut dyn Checkpointer,
    Order { state, dirty }: Order,
    mut goes_on: impl FnMut() -> bool,
) -> Result<bool, StorageError> {
    if !goes_on() {
        return Ok(false);
    }
    let chunks = match checkpointer.begin(false)? {
        CheckpointKind::Full => ChunkWriter::full(state),
        CheckpointKind::Delta => ChunkWriter::delta(state, dirty),
    };
    for chunk in chunks {
        if !goes_on() || !checkpointer.put_chunk(&chunk)? {
            return Ok(false);
        }
    }
    Ok(goes_on() && checkpointer.finish()?)
}
