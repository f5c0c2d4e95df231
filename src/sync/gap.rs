//! A bounded channel of events that never blocks its sender and never loses one in silence.
//!
//! The channel has one place more than events may take, for a *gap*: an event that says that
//! others were left out. An event that finds no place is left out. After the value that shows it
//! has been published, [`EventSender::settle`] puts a gap behind what waits. If even the last place
//! is taken, then by a gap that has not been read yet: whoever reads it later, and then reads the
//! value, sees what was left out until now.
//!
//! A task is woken only then, too: its waker is the user's code, which may read the value at once,
//! on this very thread.

use std::sync::Arc;
use std::task::{Poll, Waker};

use super::prim::{Mutex, PoisonError, Receiver, Sender, TryRecvError, bounded};

/// The sending end. `M` is what a gap tells of the last event that was left out.
#[derive(Debug)]
pub(crate) struct EventSender<E, M> {
    capacity: usize,
    left_out: Option<M>,
    unsettled: bool,
    // In this order: the task that is woken at the end must see the channel closed.
    sender: Sender<E>,
    waiting: WokenAtEnd,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct EventReceiver<E> {
    events: Receiver<E>,
    waiting: Arc<Waiting>,
}

/// A channel in which so many events may wait.
pub(crate) fn channel<E, M>(capacity: usize) -> (EventSender<E, M>, EventReceiver<E>) {
    let (sender, events) = bounded(capacity + 1);
    let waiting = Arc::<Waiting>::default();
    let woken = WokenAtEnd(Arc::clone(&waiting));
    let (left_out, unsettled) = (None, false);
    let sender = EventSender { capacity, left_out, unsettled, sender, waiting: woken };
    (sender, EventReceiver { events, waiting })
}

impl<E, M> EventSender<E, M> {
    /// Before the value that shows the change is published. Whether this is the first since
    /// `settle`, which is to be called again.
    pub(crate) fn deliver(&mut self, event: E, mark: M) -> bool {
        if self.left_out.is_some() || self.sender.len() >= self.capacity {
            self.left_out = Some(mark);
        } else {
            // There is a place; that nobody reads is not our business.
            let _ = self.sender.try_send(event);
        }
        !std::mem::replace(&mut self.unsettled, true)
    }

    /// After the value has been published.
    pub(crate) fn settle(&mut self, gap: impl FnOnce(M) -> E) {
        self.unsettled = false;
        if let Some(mark) = self.left_out.take() {
            // If there is no place, the gap in the last one has not been read yet.
            let _ = self.sender.try_send(gap(mark));
        }
        self.waiting.0.wake();
    }
}

impl<E> EventReceiver<E> {
    /// The channel itself.
    pub(crate) fn events(&self) -> &Receiver<E> {
        &self.events
    }

    /// The next event, `None` after the last one. For one task at a time.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<E>> {
        // Registered before looking, so that what comes in between wakes the task.
        self.waiting.register(waker);
        match self.events.try_recv() {
            Ok(event) => Poll::Ready(Some(event)),
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
            Err(TryRecvError::Empty) => Poll::Pending,
        }
    }
}

/// The task that waits for events.
#[derive(Debug, Default)]
struct Waiting {
    waker: Mutex<Option<Waker>>,
}

impl Waiting {
    fn register(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[derive(Debug)]
struct WokenAtEnd(Arc<Waiting>);

impl Drop for WokenAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}
