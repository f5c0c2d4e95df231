//! Looks the names of the list up until there is a cluster: what they stand for may change, and an
//! instance founds only what it may by what they stand for then.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvError, never};

use crate::names::{Answer, LookUps, OwnName, Resolver};
use crate::node::io::{Hindrance, Input, Time};

/// The pause between two times that all names are looked up.
const PAUSE: Duration = Duration::from_secs(2);

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

    /// For whoever waits for the next answer: see [`Naming::take`].
    pub(crate) fn answers(&self) -> &Receiver<(String, Answer)> {
        &self.answers
    }

    pub(crate) fn wake_at(&self) -> Time {
        self.next_at.unwrap_or(Time::MAX)
    }

    pub(crate) fn take(&mut self, answer: Result<(String, Answer), RecvError>, now: Time) {
        match answer {
            Ok((name, Ok(found))) => self.own.found(&name, found),
            // What it stood for before may still be so, and then is nothing to be founded by.
            Ok((_, Err(_))) => {}
            Err(RecvError) => {
                self.answers = never();
                self.next_at = Some(now + PAUSE);
            }
        }
    }

    /// Begins to look up, if it is time. What the node has to know, if that has changed.
    pub(crate) fn go_on(&mut self, now: Time) -> Option<Input> {
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
