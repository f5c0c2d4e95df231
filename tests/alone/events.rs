//! A subscriber for the events of the log alone.

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Passes on the events that are enabled.
pub(crate) struct Events<E, F> {
    pub(crate) enabled: E,
    pub(crate) event: F,
}

impl<E, F> Subscriber for Events<E, F>
where
    E: Fn(&Metadata<'_>) -> bool + Send + Sync + 'static,
    F: Fn(&Event<'_>) + Send + Sync + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        (self.enabled)(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        (self.event)(event);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
