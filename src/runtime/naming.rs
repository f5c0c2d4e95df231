//! Looks up the names of the list until there is a cluster: their addresses may change, and whether
//! an instance may found a cluster depends on their current addresses.

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::node::io::{Hindrance, Input, Time};
use crate::transport::names::{Answer, LookUps, OwnName, Resolver};

/// The pause between two look-ups of all names.
const PAUSE: Duration = Duration::from_secs(2);

/// How often to check for answers while names are being looked up.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// A new look-up starts only after the last one is answered, so that each name has at most one in
/// progress.
#[derive(Debug)]
pub(crate) struct Naming {
    own: OwnName,
    resolver: Resolver,
    /// The answers to the look-ups in progress.
    answers: Receiver<(String, Answer)>,
    /// The time of the next look-up, if none is in progress.
    next_at: Option<Time>,
    /// What was last reported to the node.
    hindrance: Option<Hindrance>,
}

impl Naming {
    /// Continues the look-ups that the join started.
    pub(crate) fn new(own: OwnName, resolver: Resolver, begun: &LookUps) -> Naming {
        Naming { own, resolver, answers: begun.answers(), next_at: None, hindrance: None }
    }

    /// When to continue at the latest. Answers do not wake the thread.
    pub(crate) fn pause(&self, now: Time) -> Duration {
        self.next_at.map_or(LOOK, |at| at.saturating_sub(now))
    }

    /// Takes the answers that have arrived, and starts look-ups when it is time. Returns the input
    /// for the node, if anything has changed for it.
    pub(crate) fn go_on(&mut self, now: Time) -> Option<Input> {
        while self.next_at.is_none() {
            match self.answers.try_recv() {
                Ok((name, Ok(found))) => self.own.found(&name, found),
                // The former addresses may still be right, and continue to count.
                Ok((_, Err(_))) => {}
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.next_at = Some(now + PAUSE),
            }
        }
        if self.next_at.is_some_and(|at| at <= now) {
            self.next_at = None;
            self.answers = LookUps::start(&self.resolver, self.own.names()).answers();
        }
        let hindrance = self.own.hindrance();
        if hindrance == self.hindrance {
            return None;
        }
        self.hindrance.clone_from(&hindrance);
        Some(Input::Hindered(hindrance))
    }
}
