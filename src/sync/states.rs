//! A session's state, and the channels that report its changes.
//!
//! Each reader has its own channel, in which a limited number of states and a final one may wait.
//! If a reader leaves more unread, changes are dropped; once it has made room, it gets the then
//! current state ([`States::catch_up`]), so that the last state it reads is never an old one.
//!
//! A sender learns that its receiver was dropped only when it sends. So abandoned channels are found
//! at the next change or, when there are many, by sending the current state once more to all readers
//! that have read everything.

use super::prim::{Receiver, Sender, unbounded};
use crate::types::session::SessionState;

/// How many channels there may be before abandoned ones are looked for.
const CHANNELS: usize = 16;

pub(crate) struct States {
    now: SessionState,
    readers: Vec<StateReceiver>,
    /// How many states may wait for a reader.
    unread_max: usize,
    /// With this many readers, abandoned ones are looked for.
    sweep_at: usize,
}

struct StateReceiver {
    /// The channel is unbounded; it holds at most `unread_max` states and the final one.
    sender: Sender<SessionState>,
    /// Whether the current state was not sent to it.
    is_behind: bool,
}

impl StateReceiver {
    /// Sends the state, or drops it if there is no room. Returns `false` if the receiver is gone.
    fn send(&mut self, state: SessionState, unread_max: usize) -> bool {
        // Dropping a receiver drops the channel's content, so a channel with content has a reader.
        self.is_behind = !state.is_final() && self.sender.len() >= unread_max;
        self.is_behind || self.sender.send(state).is_ok()
    }
}

impl States {
    pub(crate) fn new(state: SessionState, unread_max: usize) -> States {
        States { now: state, readers: Vec::new(), unread_max, sweep_at: CHANNELS }
    }

    pub(crate) fn now(&self) -> SessionState {
        self.now
    }

    /// Returns a channel that starts with the current state, and closes after the final one.
    pub(crate) fn subscribe(&mut self) -> Receiver<SessionState> {
        if self.readers.len() >= self.sweep_at {
            let (now, max) = (self.now, self.unread_max);
            self.readers.retain_mut(|reader| !reader.sender.is_empty() || reader.send(now, max));
            self.sweep_at = CHANNELS.max(self.readers.len() * 2);
        }
        let (sender, receiver) = unbounded();
        let _ = sender.send(self.now);
        if !self.now.is_final() {
            self.readers.push(StateReceiver { sender, is_behind: false });
        }
        receiver
    }

    /// Changes the state, unless it is final, and notifies the readers. Returns whether some are
    /// behind now.
    pub(crate) fn set(&mut self, state: SessionState) -> bool {
        if self.now == state || self.now.is_final() {
            return self.is_behind();
        }
        self.now = state;
        let max = self.unread_max;
        self.readers.retain_mut(|reader| reader.send(state, max));
        if state.is_final() {
            // This closes the channels.
            self.readers = Vec::new();
        }
        self.is_behind()
    }

    /// Sends the current state to readers that were behind and have made room. Returns whether some
    /// are still behind.
    pub(crate) fn catch_up(&mut self) -> bool {
        let (now, max) = (self.now, self.unread_max);
        self.readers.retain_mut(|reader| !reader.is_behind || reader.send(now, max));
        self.is_behind()
    }

    /// The number of channels.
    #[cfg(test)]
    pub(crate) fn readers(&self) -> usize {
        self.readers.len()
    }

    fn is_behind(&self) -> bool {
        self.readers.iter().any(|reader| reader.is_behind)
    }
}
