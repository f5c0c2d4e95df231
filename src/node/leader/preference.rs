//! How often the lead is offered to a voter with a higher priority.
//!
//! A voter that this leader finds fit may be cut off from the others, or may not be up to the work. It takes the lead
//! and loses it, or stands for election in vain, and nothing is decided meanwhile. So the leader offers it less and
//! less often. A node remembers that for longer than it leads, since each such attempt ends its term.

use std::time::Duration;

use crate::node::io::Time;
use crate::types::membership::NodeId;

/// The lead is offered again after this time at the earliest, and after twice as long each time, so often.
const AGAIN: Duration = Duration::from_secs(10);
const DOUBLED_MAX: u32 = 4;
/// After this time without an offer, the former ones are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(1800);

/// The offers of this node.
#[derive(Debug, Default)]
pub(in crate::node) struct Preference {
    successor: NodeId,
    offers: u32,
    last: Time,
}

impl Preference {
    /// Whether the lead may be offered to this voter now. If so, it counts as offered.
    pub(in crate::node) fn offers(&mut self, successor: NodeId, now: Time) -> bool {
        let since = now.saturating_sub(self.last);
        if successor != self.successor || since >= FORGOTTEN {
            *self = Preference { successor, ..Preference::default() };
        }
        let doubled = self.offers.saturating_sub(1).min(DOUBLED_MAX);
        if self.offers > 0 && since < AGAIN * 2u32.pow(doubled) {
            return false;
        }
        self.offers += 1;
        self.last = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_become_rarer_and_are_forgotten() {
        let mut preference = Preference::default();
        let mut offered = Vec::new();
        for second in 5..600 {
            if preference.offers(7, Time::from_secs(second)) {
                offered.push(second);
            }
        }
        assert_eq!(offered, [5, 15, 35, 75, 155, 315, 475]);
        assert!(preference.offers(8, Time::from_secs(600)), "another voter");
        assert!(!preference.offers(8, Time::from_secs(609)));
        assert!(preference.offers(8, Time::from_secs(610)));
        assert!(preference.offers(8, Time::from_secs(610 + 1800)));
        assert!(preference.offers(8, Time::from_secs(610 + 1810)));
    }
}
