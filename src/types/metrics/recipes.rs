//! What a look at all recipes has found, for the metrics.

use std::collections::BTreeMap;

/// So many paths of each recipe have a figure.
const PATHS_MAX: usize = 256;

/// Figures of the recipes that share work, by path: those of the last call of
/// [`contended`](crate::operate::contended) for `/` at this instance. Empty if the last one is five minutes old or more.
///
/// An [admin endpoint](crate::guide::admin) calls it each minute while its instance leads. At most 256 paths of each kind,
/// those with the largest figures.
///
/// ```
/// use quorate::operate::contended;
/// use quorate::recipes::Queue;
///
/// let coordinator = quorate::testing::Cluster::new(1).node(0);
/// let session = coordinator.session();
/// Queue::new(&session, "/jobs")?.put("resize 17").wait()?;
/// contended(&session, "/").wait()?;
/// assert_eq!(coordinator.metrics().wait().unwrap().recipes.queue_items["/jobs"], 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RecipeFigures {
    /// Partitions without an owner.
    pub orphans: BTreeMap<String, i64>,
    /// Members of partitions that are silent: they live, and are in no call of their shares.
    pub silent_members: BTreeMap<String, i64>,
    /// By how many seconds the timer of a schedule is late that is latest.
    pub timers_late: BTreeMap<String, i64>,
    /// Items of a queue that wait for a consumer.
    pub queue_items: BTreeMap<String, i64>,
}

impl RecipeFigures {
    pub(crate) fn shorten(&mut self) {
        let RecipeFigures { orphans, silent_members, timers_late, queue_items } = self;
        for figures in [orphans, silent_members, timers_late, queue_items] {
            if figures.len() > PATHS_MAX {
                let mut all: Vec<_> = std::mem::take(figures).into_iter().collect();
                all.sort_by_key(|(_, figure)| std::cmp::Reverse(*figure));
                figures.extend(all.into_iter().take(PATHS_MAX));
            }
        }
    }
}
