//! What the network thread shares with other threads, and what it counts.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use mio::{Token, Waker};

/// Connections have the tokens above these.
pub(super) const LISTENER: Token = Token(0);
pub(super) const WAKER: Token = Token(1);

/// What the network thread shares with other threads, beside the channel.
#[derive(Debug)]
pub(crate) struct NetworkShared {
    pub(super) waker: Waker,
    /// The thread will check the channel before it sleeps, so it need not be woken.
    pub(super) awake: AtomicBool,
    /// How many names are being looked up.
    pub(super) look_ups: AtomicUsize,
    pub(super) counters: Counters,
    /// How many times the network thread's loop has run.
    #[cfg(test)]
    pub(super) turns: AtomicU64,
}

impl NetworkShared {
    /// Makes the network thread check its channels and its handler. Call it after storing the data
    /// that the thread is woken for.
    pub(crate) fn wake(&self) {
        if !self.awake.swap(true, AcqRel)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake the network thread");
        }
    }
}

/// What a transport has sent and received since its start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) messages_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) messages_received: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    /// Messages not sent: no connection, no room, or too long.
    pub(crate) messages_dropped: AtomicU64,
    /// Messages that only members of this cluster may send, received from others.
    pub(crate) messages_foreign: AtomicU64,
    /// Incoming connections closed because of what they sent or did not send.
    pub(crate) connections_refused: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }
}
