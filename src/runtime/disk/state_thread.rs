//! The thread that works on whole states while other threads write the log: it writes checkpoints, builds
//! states that a leader sends, and drops the states that they replace.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, TryRecvError, after, bounded, never, select, unbounded};

use crate::machine::snapshot::ChunkWriter;
use crate::machine::{Dirty, State};
use crate::runtime::watchdog::Stepper;
use crate::storage::{CheckpointKind, Checkpointer, StorageError};

/// The pause before a failed checkpoint is tried again, if it has changed nothing. The pause doubles with
/// each failure.
const AGAIN_PAUSE: Duration = Duration::from_secs(2);
const AGAIN_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A checkpoint to write.
pub(super) struct Order {
    /// Larger than all earlier numbers, and not 0.
    pub(super) number: u64,
    pub(super) state: State,
    /// The changes since the former checkpoint.
    pub(super) dirty: Dirty,
    /// Writes the checkpoint.
    pub(super) checkpointer: Box<dyn Checkpointer>,
}

/// Work on a state.
enum Job {
    Checkpoint(Box<Order>),
    Other(Work),
}

/// A function to run on the thread.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// The owner's end of the thread `quorate-state`. Dropping it ends the thread; a checkpoint in
/// progress is abandoned.
pub(super) struct StateThread {
    jobs: Option<Sender<Job>>,
    control: Arc<Control>,
    /// Never carries a message: dropped when the thread is to end.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that both ends share.
#[derive(Default)]
struct Control {
    /// The number of the checkpoint wanted; 0 for none.
    wanted: AtomicU64,
    /// Held by the thread while it uses the store.
    working: Mutex<()>,
}

impl StateThread {
    /// Starts the thread. It calls `done` with each checkpoint that is durable, or the reason why
    /// it cannot be; not for a cancelled one.
    pub(super) fn start(
        mut stepper: Stepper,
        done: impl Fn(u64, Result<(), StorageError>) + Send + 'static,
    ) -> std::io::Result<StateThread> {
        let (jobs, queue) = unbounded::<Job>();
        let (open, closing) = bounded::<()>(0);
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        let run = move || {
            // A checkpoint that has failed without changing anything, and when it is tried again.
            let mut failed: Option<Order> = None;
            let mut again = never();
            let mut pause = AGAIN_PAUSE;
            loop {
                let ordered = select! {
                    recv(queue) -> job => match job {
                        Ok(Job::Checkpoint(order)) => Some(*order),
                        Ok(Job::Other(work)) => {
                            // While closing, nobody waits for a checkpoint.
                            if closing.try_recv() == Err(TryRecvError::Empty) {
                                work();
                            }
                            continue;
                        }
                        Err(_) => return,
                    },
                    recv(again) -> _ => failed.take(),
                };
                let Some(mut order) = ordered else { continue };
                (failed, again) = (None, never());
                let written = shared.write(&mut order, &mut stepper);
                stepper.end();
                match written {
                    Ok(true) => {
                        pause = AGAIN_PAUSE;
                        done(order.number, Ok(()));
                    }
                    Ok(false) => {}
                    Err(error @ StorageError::Again { .. }) => {
                        tracing::warn!(%error, "cannot write a checkpoint; trying again");
                        (failed, again) = (Some(order), after(pause));
                        pause = (2 * pause).min(AGAIN_PAUSE_MAX);
                    }
                    Err(error) => done(order.number, Err(error)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("quorate-state".to_owned()).spawn(run)?;
        Ok(StateThread { jobs: Some(jobs), control, open: Some(open), thread: Some(thread) })
    }

    /// Orders a checkpoint. An earlier one must be done or cancelled.
    pub(super) fn order(&self, order: Order) {
        self.control.wanted.store(order.number, Ordering::Relaxed);
        self.send(Job::Checkpoint(Box::new(order)));
    }

    /// Runs work that takes time in proportion to a state, after all earlier orders. It does not wait for a
    /// checkpoint that is tried again later.
    pub(super) fn work(&self, work: Work) {
        self.send(Job::Other(work));
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread runs as long as this value exists.
            let _ = jobs.send(job);
        }
    }

    /// Cancels the order. When this returns, the thread does not use the store, and will not before
    /// the next order. Waits for at most one chunk to be written.
    pub(super) fn cancel(&self) {
        self.control.wanted.store(0, Ordering::Relaxed);
        drop(self.control.working.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for StateThread {
    fn drop(&mut self) {
        self.control.wanted.store(0, Ordering::Relaxed);
        drop((self.jobs.take(), self.open.take()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Control {
    /// Writes a checkpoint for as long as it is wanted. Returns whether it is complete.
    fn write(&self, order: &mut Order, stepper: &mut Stepper) -> Result<bool, StorageError> {
        let _working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let number = order.number;
        write_checkpoint(order, || {
            stepper.begin();
            self.wanted.load(Ordering::Relaxed) == number
        })
    }
}

/// Writes the chunks of a checkpoint. Before each call of the store, asks whether to continue.
/// Returns whether it is complete.
pub(super) fn write_checkpoint(
    order: &mut Order,
    mut goes_on: impl FnMut() -> bool,
) -> Result<bool, StorageError> {
    let Order { state, dirty, checkpointer, .. } = order;
    if !goes_on() {
        return Ok(false);
    }
    let chunks = match checkpointer.begin(false, state.bytes())? {
        CheckpointKind::Full => ChunkWriter::full(state.clone()),
        CheckpointKind::Delta => ChunkWriter::delta(state.clone(), dirty.clone()),
    };
    for chunk in chunks {
        if !goes_on() {
            return Ok(false);
        }
        checkpointer.put_chunk(&chunk)?;
    }
    if !goes_on() {
        return Ok(false);
    }
    checkpointer.finish()?;
    Ok(true)
}
