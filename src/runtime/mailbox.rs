//! The destinations of answers and events: the slot and the channel of a handle, or a mailbox.
//!
//! A mailbox serves many sessions of one thread, the connections of a gateway. It gets all
//! answers and events of a step at once, so that they can be sorted by their zxids.

use std::fmt;
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
}

#[derive(Default)]
pub(crate) struct Arrived {
    pub(crate) deliveries: Deliveries,
    /// The last write that the replica has.
    pub(crate) zxid: Zxid,
}

/// Deliveries with the numbers of their connections.
pub(crate) type Deliveries = Vec<(u64, Delivery)>;

/// What a connection receives.
#[derive(Debug)]
pub(crate) enum Delivery {
    Answer {
        number: u64,
        zxid: Zxid,
        answer: Result<Answer>,
    },
    Event {
        watch: WatchId,
        event: WatchEvent,
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
        Mailbox { arrived: Mutex::default(), wake: Box::new(wake) }
    }

    /// Takes everything that has arrived.
    pub(crate) fn take(&self) -> Arrived {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let zxid = arrived.zxid;
        std::mem::replace(&mut *arrived, Arrived { deliveries: Vec::new(), zxid })
    }

    fn put(&self, deliveries: &mut Deliveries, zxid: Zxid) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let first = arrived.deliveries.is_empty();
        arrived.deliveries.append(deliveries);
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
        self.mailbox.put(&mut vec![(self.connection, delivery)], Zxid::default());
    }
}

/// The deliveries of a step for mailboxes.
#[derive(Debug, Default)]
pub(crate) struct Outgoing(Vec<(Arc<Mailbox>, Deliveries)>);

impl Outgoing {
    pub(crate) fn add(&mut self, to: &Recipient, delivery: Delivery) {
        let place = self.0.iter().position(|(mailbox, _)| Arc::ptr_eq(mailbox, &to.mailbox));
        let place = place.unwrap_or_else(|| {
            self.0.push((Arc::clone(&to.mailbox), Vec::new()));
            self.0.len() - 1
        });
        self.0[place].1.push((to.connection, delivery));
    }

    /// Hands everything over.
    pub(crate) fn send(&mut self, zxid: Zxid) {
        for (mailbox, deliveries) in &mut self.0 {
            if !deliveries.is_empty() {
                mailbox.put(deliveries, zxid);
            }
        }
        self.0.retain(|(mailbox, _)| Arc::strong_count(mailbox) > 1);
    }
}

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
    pub(crate) fn complete(self, answered: Answered, outgoing: &mut Outgoing) {
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
        outgoing: &mut Outgoing,
    ) -> bool {
        match self {
            WatchSink::Channel(sender) => sender.deliver(event),
            WatchSink::Mailbox(recipient) => {
                outgoing.add(recipient, Delivery::Event { watch, event });
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
