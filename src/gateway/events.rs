//! The events that wait for a client.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ending::Ending;
use crate::api::support::{SharedEvent, WatchId};
use crate::types::znode::Zxid;

/// If so many bytes of events wait for a client, it is disconnected: events come without requests,
/// so nothing else limits them.
const EVENTS_BYTES: usize = 16 << 20;
/// A larger queue is freed when it is empty.
const EVENTS_KEPT: usize = 64;

/// In which order a client gets its events, and how many may wait for it.
#[derive(Default)]
pub(super) struct Events {
    queue: VecDeque<(WatchId, Arc<SharedEvent>)>,
    /// As if no other client waited for the same events.
    bytes: usize,
}

impl Events {
    /// Takes an event, in the order of the changes: what several watches have missed comes watch by watch, and
    /// waits for the last of them.
    pub(super) fn push(&mut self, watch: WatchId, event: Arc<SharedEvent>) {
        self.bytes += event.bytes();
        let place = |of: &SharedEvent| (of.zxid, of.position);
        let later = self.queue.iter().rev();
        let later = later.take_while(|(_, queued)| place(queued) > place(&event)).count();
        self.queue.insert(self.queue.len() - later, (watch, event));
    }

    /// The next event of a change up to this one.
    pub(super) fn pop(&mut self, up_to: Zxid) -> Option<(WatchId, Arc<SharedEvent>)> {
        self.queue.front().filter(|(_, event)| event.zxid <= up_to)?;
        let next = self.queue.pop_front()?;
        self.bytes -= next.1.bytes();
        if self.queue.is_empty() && self.queue.capacity() > EVENTS_KEPT {
            self.queue = VecDeque::new();
        }
        Some(next)
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// About how many bytes wait for this client alone.
    pub(super) fn own_bytes(&self) -> usize {
        self.queue.len() * size_of::<(WatchId, Arc<SharedEvent>)>()
    }

    /// Why the connection ends, if too much waits.
    pub(super) fn unread(&self) -> Option<Ending> {
        let (bytes, limit) = (self.bytes, EVENTS_BYTES);
        (bytes > limit).then_some(Ending::EventsUnread { bytes, limit })
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        let counted: usize = self.queue.iter().map(|(_, event)| event.bytes()).sum();
        assert_eq!(self.bytes, counted, "the events are counted");
    }
}
