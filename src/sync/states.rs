//! A session's state, and the channels on which its changes are told.
//!
//! Each reader has a channel of its own, in which a number of states and a final one may wait. For a
//! reader that leaves more unread, changes are left out; when it has made room it is told the
//! state as it is then ([`States::catch_up`]), so that it never ends with an old one.
//!
//! That somebody has dropped his receiver shows only when something is sent to it. So the channels
//! that nobody reads any more are found at the next change, or when there are many, by telling all
//! who have read everything the present state once more.

use super::prim::{Receiver, Sender, unbounded};
use crate::types::session::SessionState;

/// How many channels there may be before those without a reader are looked for.
const CHANNELS: usize = 16;

pub(crate) struct States {
    now: SessionState,
    readers: Vec<Reader>,
    /// How many states may wait for a reader.
    unread_max: usize,
    /// With so many readers, those that are gone are looked for.
    sweep_at: usize,
}

struct Reader {
    /// Not bounded by itself, but by `unread_max`: a final state always finds a place.
    sender: Sender<SessionState>,
    /// It has not been told the present state.
    is_behind: bool,
}

impl Reader {
    /// Tells the state, or leaves it out; `false` if nobody reads any more.
    fn tell(&mut self, state: SessionState, unread_max: usize) -> bool {
        // What waits in a channel is dropped with its receiver: so this one has a reader.
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

    /// A channel that begins with the present state, and closes after the final one.
    pub(crate) fn subscribe(&mut self) -> Receiver<SessionState> {
        if self.readers.len() >= self.sweep_at {
            let (now, max) = (self.now, self.unread_max);
            self.readers.retain_mut(|reader| !reader.sender.is_empty() || reader.tell(now, max));
            self.sweep_at = CHANNELS.max(self.readers.len() * 2);
        }
        let (sender, receiver) = unbounded();
        let _ = sender.send(self.now);
        if !self.now.is_final() {
            self.readers.push(Reader { sender, is_behind: false });
        }
        receiver
    }

    /// Changes the state, unless it is final, and tells the readers. Whether some are behind now.
    pub(crate) fn set(&mut self, state: SessionState) -> bool {
        if self.now == state || self.now.is_final() {
            return self.is_behind();
        }
        self.now = state;
        let max = self.unread_max;
        self.readers.retain_mut(|reader| reader.tell(state, max));
        if state.is_final() {
            // The channels close.
            self.readers = Vec::new();
        }
        self.is_behind()
    }

    /// Tells those that were behind and have made room since. Whether some are behind still.
    pub(crate) fn catch_up(&mut self) -> bool {
        let (now, max) = (self.now, self.unread_max);
        self.readers.retain_mut(|reader| !reader.is_behind || reader.tell(now, max));
        self.is_behind()
    }

    /// How many channels are kept.
    #[cfg(test)]
    pub(crate) fn readers(&self) -> usize {
        self.readers.len()
    }

    fn is_behind(&self) -> bool {
        self.readers.iter().any(|reader| reader.is_behind)
    }
}
