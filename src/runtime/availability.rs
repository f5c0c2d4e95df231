//! Whether the cluster can make decisions, reported to subscribers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::node::io;
use crate::sync::wakers::Wakers;
use crate::types::availability::Availability;

/// How many changes a channel holds. A slow reader gets the latest one once there is room.
const CHANGES: usize = 16;

/// The subscribers.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    subscribed: Mutex<Subscribed>,
    /// The tasks that wait for a change.
    waiting: Arc<Wakers>,
}

#[derive(Debug, Default)]
struct Subscribed {
    readers: Vec<Reader>,
    /// Whether no change will follow: the node has stopped.
    ended: bool,
}

#[derive(Debug)]
struct Reader {
    changes: Sender<Availability>,
    reported: Option<Availability>,
}

impl Readers {
    /// Adds a subscriber, which first gets the current value.
    pub(crate) fn add(&self, now: &Availability) -> Receiver<Availability> {
        let (changes, receiver) = bounded(CHANGES);
        let mut reader = Reader { changes, reported: None };
        reader.send(now);
        let mut subscribed = self.subscribed();
        if !subscribed.ended {
            subscribed.readers.push(reader);
        }
        receiver
    }

    pub(crate) fn notify(&self, now: &Availability) {
        self.subscribed().readers.retain_mut(|reader| reader.send(now));
        // Not under the lock: a waker is user code, which may subscribe.
        self.waiting.wake();
    }

    /// The tasks to wake after a change was sent to these channels.
    pub(crate) fn waiting(&self) -> Arc<Wakers> {
        Arc::clone(&self.waiting)
    }

    /// Closes all channels, and those that are added later.
    pub(crate) fn end(&self) {
        let readers = {
            let mut subscribed = self.subscribed();
            subscribed.ended = true;
            std::mem::take(&mut subscribed.readers)
        };
        drop(readers);
        self.waiting.wake();
    }

    fn subscribed(&self) -> MutexGuard<'_, Subscribed> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Sends a change. Returns whether the reader still exists.
    fn send(&mut self, now: &Availability) -> bool {
        if self.reported.as_ref() == Some(now) {
            return true;
        }
        match self.changes.try_send(now.clone()) {
            Ok(()) => {
                self.reported = Some(now.clone());
                true
            }
            Err(TrySendError::Full(_)) => true,
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

/// How many more voters may fail; `None` if the cluster cannot decide.
pub(super) fn spare(seen: &io::Availability) -> Option<usize> {
    seen.spare(|voter| seen.silent.contains(&voter)).filter(|_| seen.has_leader)
}

impl Availability {
    pub(crate) fn of(
        seen: &io::Availability,
        address: impl Fn(u64) -> String,
        waiting_for: impl FnOnce() -> String,
    ) -> Availability {
        let Some(spare) = spare(seen) else {
            return Availability::NoQuorum { reason: waiting_for() };
        };
        if seen.silent.is_empty() {
            return Availability::Healthy { spare };
        }
        let silent: Vec<String> = seen.silent.iter().map(|node| address(*node)).collect();
        let more = match spare {
            0 => "the loss of one more stops it".to_owned(),
            spare => format!("it survives the loss of {spare} more"),
        };
        let reason = format!(
            "{} of {} voters are unreachable or store nothing ({}); {more}",
            silent.len(),
            seen.voters.len(),
            silent.join(", ")
        );
        Availability::AtRisk { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_risk(n: usize) -> Availability {
        Availability::AtRisk { reason: n.to_string() }
    }

    #[test]
    fn a_slow_reader_may_miss_changes_but_not_the_last() {
        let readers = Readers::default();
        let changes = readers.add(&at_risk(0));
        for n in 0..100 {
            readers.notify(&at_risk(n));
        }
        let seen: Vec<Availability> = changes.try_iter().collect();
        assert_eq!(seen.len(), CHANGES);
        assert_eq!(seen[..2], [at_risk(0), at_risk(1)]);
        readers.notify(&at_risk(99));
        readers.notify(&at_risk(99));
        assert_eq!(changes.try_iter().collect::<Vec<_>>(), [at_risk(99)]);
        readers.end();
        assert!(changes.recv().is_err());
    }

    fn of(voters: u64, silent: &[u64], has_leader: bool) -> Availability {
        let voters: Vec<u64> = (1..=voters).collect();
        let silent = silent.to_vec();
        let (learners, outgoing) = (vec![], vec![]);
        let seen = io::Availability {
            voters,
            learners,
            outgoing,
            silent,
            has_leader,
            is_reported: true,
            ..Default::default()
        };
        Availability::of(&seen, |node| format!("node-{node}"), || "no leader".to_owned())
    }

    #[test]
    fn the_reason_names_the_silent_voters_and_the_spare_ones() {
        assert_eq!(of(1, &[], true), Availability::Healthy { spare: 0 });
        assert_eq!(of(5, &[], true), Availability::Healthy { spare: 2 });
        let at_risk = of(5, &[2], true).to_string();
        assert_eq!(
            at_risk,
            "at risk: 1 of 5 voters are unreachable or store nothing (node-2); it survives the loss of 1 more"
        );
        let at_risk = of(3, &[2], true).to_string();
        assert!(at_risk.ends_with("the loss of one more stops it"), "{at_risk}");
        assert_eq!(of(3, &[1, 2], true).to_string(), "no quorum: no leader");
        // While a dead voter is being replaced, it still counts among the former voters.
        let (voters, outgoing, silent) = (vec![1, 2, 4], vec![1, 2, 3], vec![3]);
        let joint =
            io::Availability { voters, outgoing, silent, has_leader: true, ..Default::default() };
        assert_eq!(joint.spare(|voter| voter == 3), Some(0));
        assert_eq!(joint.spare(|voter| [2, 3].contains(&voter)), None);
        assert_eq!(of(3, &[], false).to_string(), "no quorum: no leader");
    }
}
