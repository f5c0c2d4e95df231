//! A value that is replaced now and then, with events that report each replacement.
//!
//! The events are in their channels before the value that shows the change can be read. And a
//! reader that has taken an event from its channel never reads a value older than the event. For the
//! first, it is enough to send the events before the value is stored. For the second, readers wait
//! while events are being sent: a few microseconds, from the first event to the new value.

use std::sync::Arc;

use super::prim::{ArcSwap, AtomicBool, Guard, Ordering, yield_now};

pub(crate) struct Published<T> {
    value: ArcSwap<T>,
    /// Whether events have been sent whose value is not published yet.
    announced: AtomicBool,
}

impl<T> Published<T> {
    pub(crate) fn new(value: T) -> Published<T> {
        Published { value: ArcSwap::from_pointee(value), announced: AtomicBool::new(false) }
    }

    /// The current value.
    pub(crate) fn read(&self) -> Guard<Arc<T>> {
        while self.announced.load(Ordering::SeqCst) {
            yield_now();
        }
        self.value.load()
    }

    /// Called before the first event of a change is sent, by the one thread that then publishes.
    pub(crate) fn announce(&self) {
        // A reader that takes an event sees this store through the channel. But an event may also
        // be dropped because an earlier gap still waits: then nothing is sent, and the sender has
        // only read the channel's length. With sequential consistency, this store comes before that
        // read, and so before the reader takes that gap and then reads the value.
        self.announced.store(true, Ordering::SeqCst);
    }

    /// Called after the events: stores the new value, if there is one. Readers continue.
    pub(crate) fn publish(&self, value: Option<T>) {
        if let Some(value) = value {
            self.value.store(Arc::new(value));
        }
        self.announced.store(false, Ordering::Release);
    }
}
