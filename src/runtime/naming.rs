//! Looks up the names of the list until there is a cluster: their addresses may change, and whether
//! an instance may found a cluster depends on their current addresses.

use std::time::Duration;

use crate::node::io::{Hindrance, Input, Time};
use crate::runtime::repeated::Repeated;
use crate::transport::names::{LookUps, OwnName, Resolver};

/// The pause between two look-ups of all names.
const PAUSE: Duration = Duration::from_secs(2);

/// What is known of this instance's name.
#[derive(Debug)]
pub(crate) struct Naming {
    own: OwnName,
    pub(super) look_ups: Repeated,
    /// What was last reported to the node.
    hindrance: Option<Hindrance>,
}

impl Naming {
    /// Continues the look-ups that the join started.
    pub(crate) fn new(own: OwnName, resolver: Resolver, begun: &LookUps) -> Naming {
        Naming { own, look_ups: Repeated::new(resolver, PAUSE, begun), hindrance: None }
    }

    /// Takes the answers that have arrived, and starts look-ups when it is time. Returns the input
    /// for the node, if anything has changed for it.
    pub(crate) fn go_on(&mut self, now: Time) -> Option<Input> {
        while let Some(Some((name, answer))) = self.look_ups.go_on(now, self.own.names()) {
            // Otherwise the former addresses may still be right, and continue to count.
            if let Ok(found) = answer {
                self.own.found(&name, found);
            }
        }
        let hindrance = self.own.hindrance();
        if hindrance == self.hindrance {
            return None;
        }
        self.hindrance.clone_from(&hindrance);
        Some(Input::Hindered(hindrance))
    }
}
