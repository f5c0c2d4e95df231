//! A session's state, and the channels on which its changes are told.
//!
//! Each reader has a channel of its own, in which at most [`UNREAD_MAX`] states and a final one wait.
//! For a reader that leaves more unread, changes are left out; when it has made room it is told the
//! state as it is then ([`States::catch_up`]), so that it never ends with an old one.
//!
//! That somebody has dropped his receiver shows only when something is sent to it. So the channels
//! that nobody reads any more are found at the next change, or when there are many, by telling all
//! who have read everything the present state once more.

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::session::SessionState;

/// How many changes of a session's state wait for a reader.
const UNREAD_MAX: usize = 64;
/// How many channels there may be before those without a reader are looked for.
const CHANNELS: usize = 16;

pub(super) struct States {
    now: SessionState,
    readers: Vec<Reader>,
    /// With so many readers, those that are gone are looked for.
    sweep_at: usize,
}

struct Reader {
    /// Not bounded by itself, but by [`UNREAD_MAX`]: a final state always finds a place.
    sender: Sender<SessionState>,
    /// It has not been told the present state.
    is_behind: bool,
}

impl Reader {
    /// Tells the state, or leaves it out; `false` if nobody reads any more.
    fn tell(&mut self, state: SessionState) -> bool {
        // What waits in a channel is dropped with its receiver: so this one has a reader.
        self.is_behind = !state.is_final() && self.sender.len() >= UNREAD_MAX;
        self.is_behind || self.sender.send(state).is_ok()
    }
}

impl States {
    pub(super) fn new(state: SessionState) -> States {
        States { now: state, readers: Vec::new(), sweep_at: CHANNELS }
    }

    pub(super) fn now(&self) -> SessionState {
        self.now
    }

    /// A channel that begins with the present state, and closes after the final one.
    pub(super) fn subscribe(&mut self) -> Receiver<SessionState> {
        if self.readers.len() >= self.sweep_at {
            let now = self.now;
            self.readers.retain_mut(|reader| !reader.sender.is_empty() || reader.tell(now));
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
    pub(super) fn set(&mut self, state: SessionState) -> bool {
        if self.now == state || self.now.is_final() {
            return self.is_behind();
        }
        self.now = state;
        self.readers.retain_mut(|reader| reader.tell(state));
        if state.is_final() {
            // The channels close.
            self.readers = Vec::new();
        }
        self.is_behind()
    }

    /// Tells those that were behind and have made room since. Whether some are behind still.
    pub(super) fn catch_up(&mut self) -> bool {
        let now = self.now;
        self.readers.retain_mut(|reader| !reader.is_behind || reader.tell(now));
        self.is_behind()
    }

    fn is_behind(&self) -> bool {
        self.readers.iter().any(|reader| reader.is_behind)
    }
}

#[cfg(test)]
mod tests {
    use SessionState::{Connected, Connecting, Expired, Suspended};

    use super::*;

    /// Each call of `Session::states` left a channel behind until the session ended.
    #[test]
    fn channels_whose_readers_are_gone_are_not_kept() {
        let mut states = States::new(Connected);
        let kept: Vec<_> = (0..10).map(|_| states.subscribe()).collect();
        for n in 0..10_000 {
            let read = states.subscribe();
            if n % 2 == 0 {
                assert_eq!(read.recv(), Ok(Connected));
            }
        }
        assert!(states.readers.len() < 50, "{}", states.readers.len());
        states.set(Suspended);
        assert_eq!(states.readers.len(), kept.len());
        for reader in kept {
            let mut seen: Vec<_> = reader.try_iter().collect();
            seen.dedup();
            assert_eq!(seen, [Connected, Suspended]);
        }
    }

    #[test]
    fn a_reader_that_is_behind_is_told_the_latest_when_it_has_made_room() {
        let mut states = States::new(Connecting);
        let (slow, gone) = (states.subscribe(), states.subscribe());
        let flap = |states: &mut States| {
            let mut behind = false;
            for _ in 0..100 {
                states.set(Connected);
                behind = states.set(Suspended);
            }
            behind
        };
        assert!(flap(&mut states));
        drop(gone);
        assert!(states.catch_up(), "nobody has read anything");
        assert_eq!((states.readers.len(), slow.len()), (1, UNREAD_MAX));
        states.set(Connected);
        assert_eq!(slow.try_iter().count(), UNREAD_MAX);
        assert!(!states.catch_up());
        assert_eq!(slow.try_iter().collect::<Vec<_>>(), [Connected]);
        assert!(!states.catch_up(), "once is enough");
        assert!(slow.is_empty());

        flap(&mut states);
        assert!(!states.set(Expired));
        let seen: Vec<_> = slow.iter().collect();
        assert_eq!((seen.len(), seen.last()), (UNREAD_MAX + 1, Some(&Expired)));
        assert_eq!(states.subscribe().iter().collect::<Vec<_>>(), [Expired]);
    }
}
