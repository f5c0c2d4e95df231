//! A value that is replaced now and then, with events that tell of each replacement.
//!
//! The events are in their channels before the value that shows the change can be read; and whoever
//! has taken an event from its channel reads no value from before it. The first is a matter of
//! order alone. For the second, readers wait while events are on their way, for the few
//! microseconds that the writer takes from the first event to the new value.

use std::fmt;
use std::sync::Arc;

use super::prim::{ArcSwap, AtomicBool, Guard, Ordering, yield_now};

pub(crate) struct Published<T> {
    value: ArcSwap<T>,
    /// Events are in channels already whose value is not there yet.
    announced: AtomicBool,
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}

impl<T> Published<T> {
    pub(crate) fn new(value: T) -> Published<T> {
        Published { value: ArcSwap::from_pointee(value), announced: AtomicBool::new(false) }
    }

    /// The value as of now.
    pub(crate) fn read(&self) -> Guard<Arc<T>> {
        while self.announced.load(Ordering::Acquire) {
            yield_now();
        }
        self.value.load()
    }

    /// Before the first event of a change is sent. By one thread only, which then publishes.
    pub(crate) fn announce(&self) {
        // It is the channel that makes this visible to whoever takes the event.
        self.announced.store(true, Ordering::Relaxed);
    }

    /// After the events: the new value, if there is one. Readers go on.
    pub(crate) fn publish(&self, value: Option<T>) {
        if let Some(value) = value {
            self.value.store(Arc::new(value));
        }
        self.announced.store(false, Ordering::Release);
    }
}
