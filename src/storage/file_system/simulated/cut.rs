//! Power cuts: which of the changes that no sync has made durable are on the device afterwards.

use super::random::Random;

/// Which of the unsynced changes a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survivors {
    None,
    All,
    /// Those up to a place in the order of writing. The next one may be torn.
    Until(u64),
    /// Each page has one of its states since the last sync, and each change of names is there or not.
    Some,
    /// As `Some`, and each sector of a page for itself.
    Torn,
}

/// One power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PowerCut {
    pub(crate) pages: Survivors,
    pub(crate) names: Survivors,
    /// Whether a file has its new length if none of its pages was written.
    pub(crate) has_grown: bool,
}

impl PowerCut {
    /// Leaves only what was synced.
    pub(crate) const HARD: PowerCut =
        PowerCut { pages: Survivors::None, names: Survivors::None, has_grown: false };

    /// Draws one. `order` is the place of the last change in the order of writing, `since` that of the last
    /// change that may be durable.
    pub(super) fn draw(random: &mut Random, since: u64, order: u64) -> PowerCut {
        let end = since + random.below(order.saturating_sub(since) + 1);
        let mut survivors = || match random.below(6) {
            0 => Survivors::None,
            1 => Survivors::All,
            // The same for pages and names, if both are drawn.
            2 | 3 => Survivors::Until(end),
            4 => Survivors::Some,
            _ => Survivors::Torn,
        };
        let (pages, names) = (survivors(), survivors());
        PowerCut { pages, names, has_grown: random.percent(50) }
    }
}
