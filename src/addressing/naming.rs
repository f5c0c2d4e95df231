//! Looks up the names of the list until there is a cluster: their addresses may change, and whether
//! an instance may found a cluster depends on their current addresses.

use std::time::Duration;

use crate::addressing::names::{LookUps, OwnName, Resolver};
use crate::addressing::repeated::RepeatedLookups;
use crate::node::io::{Hindrance, Input, Time};

/// The pause between two look-ups of all names.
const PAUSE: Duration = Duration::from_secs(2);

/// The look-ups of this instance's list of peers.
#[derive(Debug)]
pub(crate) struct PeerLookups {
    own: OwnName,
    pub(crate) look_ups: RepeatedLookups,
    /// What was last reported to the node.
    hindrance: Option<Hindrance>,
}

impl PeerLookups {
    /// Continues the look-ups that the join started.
    pub(crate) fn new(own: OwnName, resolver: Resolver, begun: &LookUps) -> PeerLookups {
        PeerLookups { own, look_ups: RepeatedLookups::new(resolver, PAUSE, begun), hindrance: None }
    }

    /// Takes the answers that have arrived, and starts look-ups when it is time. Returns the input
    /// for the node if the result has changed.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Input> {
        while let Some(Some((name, answer))) = self.look_ups.poll(now, self.own.names()) {
            // After a failed look-up the former addresses continue to count, since they may still be
            // right.
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
