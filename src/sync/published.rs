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
        while self.announced.load(Ordering::SeqCst) {
            yield_now();
        }
        self.value.load()
    }

    /// Before the first event of a change is sent. By one thread only, which then publishes.
    pub(crate) fn announce(&self) {
        // Whoever takes an event sees this through the channel. But an event may also be left out
        // because an earlier gap still waits: then nothing is sent, and the sender has only looked
        // at the channel's length. Sequentially consistent, this store comes before that look, and
        // so before the reader takes that gap and then reads.
        self.announced.store(true, Ordering::SeqCst);
    }

    /// After the events: the new value, if there is one. Readers go on.
    pub(crate) fn publish(&self, value: Option<T>) {
        if let Some(value) = value {
            self.value.store(Arc::new(value));
        }
        self.announced.store(false, Ordering::Release);
    }
}
