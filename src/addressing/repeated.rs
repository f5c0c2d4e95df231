//! Looks names up repeatedly.

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::addressing::names::{Answer, LookUps, Resolver};
use crate::node::io::Time;

/// How often to check for answers while names are being looked up.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Repeated look-ups of the same names. A new look-up starts only after the last one is answered, so each
/// name has at most one look-up in progress.
#[derive(Debug)]
pub(crate) struct RepeatedLookups {
    resolver: Resolver,
    /// The pause between two look-ups.
    every: Duration,
    /// The answers to the look-ups in progress.
    answers: Receiver<(String, Answer)>,
    /// The time of the next look-up, if none is in progress.
    next_at: Option<Time>,
}

impl RepeatedLookups {
    /// Continues these look-ups.
    pub(super) fn new(resolver: Resolver, every: Duration, begun: &LookUps) -> RepeatedLookups {
        RepeatedLookups { resolver, every, answers: begun.answers(), next_at: None }
    }

    /// The time until [`RepeatedLookups::poll`] should be called again. Answers do not wake the thread.
    pub(crate) fn pause(&self, now: Time) -> Duration {
        self.next_at.map_or(CHECK_EVERY, |at| at.saturating_sub(now))
    }

    /// Starts to look up the names if it is time, and takes an answer that has arrived. Returns `None` if
    /// none has arrived, and `Some(None)` after the last one, when the pause begins.
    pub(super) fn poll<'a>(
        &mut self,
        now: Time,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Option<Option<(String, Answer)>> {
        if self.next_at.is_some_and(|at| at <= now) {
            self.next_at = None;
            self.answers = LookUps::start(&self.resolver, names).answers();
        }
        if self.next_at.is_some() {
            return None;
        }
        match self.answers.try_recv() {
            Ok(answer) => Some(Some(answer)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.begin_pause(now);
                Some(None)
            }
        }
    }

    /// Begins the pause before the next look-up.
    pub(super) fn begin_pause(&mut self, now: Time) {
        self.next_at = Some(now + self.every);
    }
}
