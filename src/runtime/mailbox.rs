//! The destinations of answers and events: the slot and the channel of a handle, or a mailbox.
//!
//! A mailbox serves many sessions of one thread, the connections of a gateway. It gets all
//! answers and events of a step at once, so that they can be sorted by their zxids.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Span;

use crate::node::io::{Answered, WatchId};
use crate::node::query::Answer;
use crate::runtime::pending::Slot;
use crate::runtime::spans;
use crate::runtime::watch_sender::WatchSender;
use crate::types::acl::Id;
use crate::types::error::{Error, Result};
use crate::types::session::SessionState;
use crate::types::watch::WatchEvent;
use crate::types::znode::Zxid;

/// The answers and events that have arrived for the connections of a gateway.
pub(crate) struct Mailbox {
    arrived: Mutex<Arrived>,
    wake: Box<dyn Fn() + Send + Sync>,
    /// The bytes of the events that were delivered and still exist.
    event_bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
pub(crate) struct Arrived {
    pub(crate) deliveries: Deliveries,
    pub(crate) events: Events,
    /// The last write that the replica has.
    pub(crate) zxid: Zxid,
}

/// Deliveries with the numbers of their connections.
pub(crate) type Deliveries = Vec<(u64, Delivery)>;
/// Events with the numbers of their connections, and with the watches. They are apart from other deliveries
/// because they are many, and smaller.
pub(crate) type Events = Vec<(u64, WatchId, Arc<SharedEvent>)>;

/// An event, which all connections share that receive it.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    event: WatchEvent,
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl SharedEvent {
    /// About how many bytes an event takes besides its path.
    const BYTES: usize = 128;

    pub(crate) fn new(event: WatchEvent, held: Arc<AtomicUsize>) -> SharedEvent {
        let bytes = SharedEvent::BYTES + event.path.len();
        held.fetch_add(bytes, Ordering::Relaxed);
        SharedEvent { event, bytes, held }
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Deref for SharedEvent {
    type Target = WatchEvent;

    fn deref(&self) -> &WatchEvent {
        &self.event
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a connection receives.
#[derive(Debug)]
pub(crate) enum Delivery {
    Answer {
        number: u64,
        zxid: Zxid,
        answer: Result<Answer>,
    },
    State(SessionState),
    /// Credentials were checked, on another thread.
    Authenticated(Result<Vec<Id>>),
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl Mailbox {
    /// `wake` is called when something arrives in an empty mailbox. It must not block.
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Mailbox {
        Mailbox { arrived: Mutex::default(), wake: Box::new(wake), event_bytes: Arc::default() }
    }

    /// Takes everything that has arrived.
    pub(crate) fn take(&self) -> Arrived {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let zxid = arrived.zxid;
        std::mem::replace(&mut *arrived, Arrived { zxid, ..Arrived::default() })
    }

    /// The bytes of all events that wait here or with the connections.
    pub(crate) fn event_bytes(&self) -> usize {
        self.event_bytes.load(Ordering::Relaxed)
    }

    fn put(&self, deliveries: &mut Deliveries, events: &mut Events, zxid: Zxid) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let first = arrived.deliveries.is_empty() && arrived.events.is_empty();
        arrived.deliveries.append(deliveries);
        arrived.events.append(events);
        arrived.zxid = arrived.zxid.max(zxid);
        drop(arrived);
        if first {
            (self.wake)();
        }
    }
}

/// A connection of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Recipient {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) connection: u64,
}

impl Recipient {
    /// Sends a delivery that does not come from a step of the node.
    pub(crate) fn send(&self, delivery: Delivery) {
        let mut delivery = vec![(self.connection, delivery)];
        self.mailbox.put(&mut delivery, &mut Vec::new(), Zxid::default());
    }
}

/// The deliveries of a step for mailboxes.
#[derive(Debug, Default)]
pub(crate) struct MailboxDeliveries(Vec<OfMailbox>);

#[derive(Debug)]
struct OfMailbox {
    mailbox: Arc<Mailbox>,
    deliveries: Deliveries,
    events: Events,
}

impl MailboxDeliveries {
    pub(crate) fn add(&mut self, to: &Recipient, delivery: Delivery) {
        self.of(&to.mailbox).deliveries.push((to.connection, delivery));
    }

    pub(crate) fn add_event(&mut self, to: &Recipient, watch: WatchId, event: WatchEvent) {
        let OfMailbox { mailbox, events, .. } = self.of(&to.mailbox);
        // The events of a change come one after the other, at most a few of them at each of its paths.
        let last = events.iter().rev().take(SAME_CHANGE);
        let same = last.map(|(.., last)| last).find(|last| last.event == event).map(Arc::clone);
        let event = same
            .unwrap_or_else(|| Arc::new(SharedEvent::new(event, Arc::clone(&mailbox.event_bytes))));
        events.push((to.connection, watch, event));
    }

    fn of(&mut self, mailbox: &Arc<Mailbox>) -> &mut OfMailbox {
        let place = self.0.iter().position(|of| Arc::ptr_eq(&of.mailbox, mailbox));
        let place = place.unwrap_or_else(|| {
            let (deliveries, events) = (Vec::new(), Vec::new());
            self.0.push(OfMailbox { mailbox: Arc::clone(mailbox), deliveries, events });
            self.0.len() - 1
        });
        &mut self.0[place]
    }

    /// Hands everything over.
    pub(crate) fn send(&mut self, zxid: Zxid) {
        for OfMailbox { mailbox, deliveries, events } in &mut self.0 {
            if !deliveries.is_empty() || !events.is_empty() {
                mailbox.put(deliveries, events, zxid);
            }
        }
        self.0.retain(|of| Arc::strong_count(&of.mailbox) > 1);
    }
}

/// How many of the last events an equal one is looked for in.
const SAME_CHANGE: usize = 4;

/// Where an answer goes.
#[derive(Debug)]
pub(crate) enum AnswerSink {
    /// A call, with the span that ends with its answer.
    Slot(Arc<Slot>, Span),
    Mailbox {
        to: Recipient,
        number: u64,
    },
}

impl AnswerSink {
    pub(crate) fn complete(self, answered: Answered, outgoing: &mut MailboxDeliveries) {
        let Answered { zxid, answer, .. } = answered;
        match self {
            AnswerSink::Slot(slot, span) => fill(&slot, span, answer),
            AnswerSink::Mailbox { to, number } => {
                outgoing.add(&to, Delivery::Answer { number, zxid, answer });
            }
        }
    }

    /// Answers with an error, since the node will not answer.
    pub(crate) fn fail(self, error: Error) {
        match self {
            AnswerSink::Slot(slot, span) => fill(&slot, span, Err(error)),
            AnswerSink::Mailbox { to, number } => {
                to.send(Delivery::Answer { number, zxid: Zxid::default(), answer: Err(error) });
            }
        }
    }
}

/// Ends the span, and then completes the slot.
fn fill(slot: &Slot, span: Span, answer: Result<Answer>) {
    if let Err(error) = &answer {
        spans::failed(&span, error);
    }
    drop(span);
    slot.complete(answer);
}

/// Where the events of a watch go.
#[derive(Debug)]
pub(crate) enum WatchSink {
    Channel(Box<WatchSender>),
    Mailbox(Recipient),
}

impl WatchSink {
    /// Returns whether `wake` is to be called.
    pub(crate) fn deliver(
        &mut self,
        watch: WatchId,
        event: WatchEvent,
        outgoing: &mut MailboxDeliveries,
    ) -> bool {
        match self {
            WatchSink::Channel(sender) => sender.deliver(event),
            WatchSink::Mailbox(recipient) => {
                outgoing.add_event(recipient, watch, event);
                false
            }
        }
    }

    /// Wakes the task that waits for events, after the tree was published.
    pub(crate) fn wake(&mut self) {
        if let WatchSink::Channel(sender) = self {
            sender.wake();
        }
    }
}
