//! Looks the names of the list up until there is a cluster: what they stand for may change, and an
//! instance founds only what it may by what they stand for then.

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::node::io::{Hindrance, Input, Time};
use crate::transport::names::{Answer, LookUps, OwnName, Resolver};

/// The pause between two times that all names are looked up.
const PAUSE: Duration = Duration::from_secs(2);

/// How often to look for answers while names are looked up.
const LOOK: Duration = Duration::from_millis(20);

/// Nothing more is looked up before the last look-up is answered, so that at most one for each name
/// is under way.
#[derive(Debug)]
pub(crate) struct Naming {
    own: OwnName,
    resolver: Resolver,
    /// Of what is being looked up.
    answers: Receiver<(String, Answer)>,
    /// When all is looked up next, if nothing is being looked up.
    next_at: Option<Time>,
    /// What the node was last told.
    hindrance: Option<Hindrance>,
}

impl Naming {
    /// The look-ups that the join began go on.
    pub(crate) fn new(own: OwnName, resolver: Resolver, begun: &LookUps) -> Naming {
        Naming { own, resolver, answers: begun.answers(), next_at: None, hindrance: None }
    }

    /// After what time to go on, at the latest. Nothing else wakes the thread for an answer.
    pub(crate) fn pause(&self, now: Time) -> Duration {
        self.next_at.map_or(LOOK, |at| at.saturating_sub(now))
    }

    /// Takes the answers that are there, and begins to look up, if it is time. What the node has to know,
    /// if that has changed.
    pub(crate) fn go_on(&mut self, now: Time) -> Option<Input> {
        while self.next_at.is_none() {
            match self.answers.try_recv() {
                Ok((name, Ok(found))) => self.own.found(&name, found),
                // What it stood for before may still be so, and then is nothing to be founded by.
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
