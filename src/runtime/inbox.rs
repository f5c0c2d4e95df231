//! What handles send to the [`Host`] of their node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use once_cell::sync::OnceCell;

use crate::node::io::{Input, WatchId};
use crate::node::request::ClientRequest;
use crate::runtime::end::CLOSED;
use crate::runtime::host::Host;
use crate::runtime::mailbox::{AnswerSink, WatchSink};
use crate::runtime::session::SessionShared;
use crate::runtime::timers::CallerTimer;
use crate::transport::tcp::Wake;
use crate::types::error::{Error, Result};
use crate::types::session::SessionState;

/// A message from a handle to the host.
pub(crate) enum HostMessage {
    Request {
        request: ClientRequest,
        asker: Asker,
    },
    /// Passes an input on to the node.
    Input(Input),
    /// Sets a timer.
    Timer(CallerTimer),
    /// Runs a function on the host's state.
    Look(Box<dyn FnOnce(&Host) + Send>),
    /// Stops the coordinator in an orderly way. The sender is dropped when it has stopped.
    Close(Sender<()>),
}

/// The origin of a request.
pub(crate) enum RequestOrigin {
    /// A handle of the session.
    Holder(Arc<SessionShared>),
    /// A recipe, which expects that some of its writes fail.
    Recipe(Arc<SessionShared>),
    /// A handle of the session, with the request that opens or resumes it.
    Opener(Arc<SessionShared>),
}

impl RequestOrigin {
    pub(crate) fn session(&self) -> &Arc<SessionShared> {
        match self {
            RequestOrigin::Holder(session)
            | RequestOrigin::Recipe(session)
            | RequestOrigin::Opener(session) => session,
        }
    }
}

/// Who has sent a request, and what they receive. If it is dropped, the node has ended and does not answer.
pub(crate) struct Asker {
    pub(super) origin: Option<RequestOrigin>,
    /// Where the answer goes, if anybody waits for it.
    pub(super) sink: Option<AnswerSink>,
    /// The watch that the request sets.
    pub(super) watch: Option<(WatchId, WatchSink)>,
}

impl Drop for Asker {
    fn drop(&mut self) {
        // The request was never handled: the inbox was dropped with the host.
        if let Some(RequestOrigin::Opener(session)) = self.origin.take() {
            session.set_state(SessionState::Expired);
        }
        if let Some(sink) = self.sink.take() {
            sink.fail(Error::Stopped { reason: CLOSED.to_owned() });
        }
    }
}

/// From handles to the host. Unbounded: the requests in it and at the node are counted.
pub(super) struct Inbox {
    messages: Sender<HostMessage>,
    waiting: AtomicUsize,
    next_id: AtomicU64,
    /// Wakes the thread that takes the messages, if it needs waking.
    wake: OnceCell<Wake>,
}

impl Inbox {
    pub(super) fn new() -> (Inbox, Receiver<HostMessage>) {
        let (messages, taken) = unbounded();
        let (waiting, next_id) = (AtomicUsize::new(0), AtomicU64::new(1));
        (Inbox { messages, waiting, next_id, wake: OnceCell::new() }, taken)
    }

    /// A number that no other request or watch of this node has.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a request, until it is answered, if fewer than `limit` wait.
    pub(super) fn admit(&self, limit: usize) -> Result<()> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= limit {
            self.answered();
            return Err(Error::Busy { limit });
        }
        Ok(())
    }

    /// A request that was counted is answered.
    pub(super) fn answered(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// If the host is gone, the message is dropped.
    pub(super) fn put(&self, message: HostMessage) {
        if self.messages.send(message).is_ok()
            && let Some(wake) = self.wake.get()
        {
            wake.wake();
        }
    }

    /// Called once, before the first message.
    pub(super) fn set_wake(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }
}
