//! Whether the cluster can make decisions, reported to subscribers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::node::io;
use crate::sync::wakers::Wakers;
use crate::types::availability::Availability;
use crate::types::error::disks_full;
use crate::types::reason::{Reason, ReasonKind};

/// How many changes a channel holds. A slow reader gets the latest one once there is room.
const CHANGES: usize = 16;

/// The subscribers.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    subscribed: Mutex<Subscribed>,
    /// The tasks that wait for a change.
    waiting: Arc<Wakers>,
}

#[derive(Debug, Default)]
struct Subscribed {
    readers: Vec<Subscriber>,
    /// Whether no change will follow: the node has stopped.
    ended: bool,
}

#[derive(Debug)]
struct Subscriber {
    changes: Sender<Availability>,
    reported: Option<Availability>,
}

impl Subscribers {
    /// Adds a subscriber, which first gets the current value.
    pub(crate) fn add(&self, now: &Availability) -> Receiver<Availability> {
        let (changes, receiver) = bounded(CHANGES);
        let mut reader = Subscriber { changes, reported: None };
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

impl Subscriber {
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
pub(super) fn spare(seen: &io::QuorumState) -> Option<usize> {
    seen.spare(|voter| seen.silent.contains(&voter)).filter(|_| seen.has_leader)
}

impl Availability {
    pub(crate) fn of(
        seen: &io::QuorumState,
        address: impl Fn(u64) -> String,
        no_leader: impl FnOnce() -> Reason,
    ) -> Availability {
        if !seen.has_leader {
            return Availability::NoQuorum { reason: no_leader() };
        }
        let named = |nodes: &[u64]| nodes.iter().map(|node| address(*node)).collect();
        // Only if there are some: this is asked for all the time.
        let silent_ones = || {
            let silent: Vec<String> = named(&seen.silent);
            let ones = match (silent.len(), seen.voters.len()) {
                (1, voters) => format!("1 of {voters} voters is unreachable or stores nothing"),
                (count, voters) => {
                    format!("{count} of {voters} voters are unreachable or store nothing")
                }
            };
            format!("{ones} ({})", silent.join(", "))
        };
        let Some(spare) = spare(seen) else {
            let reason = Reason::new(ReasonKind::VotersMissing, silent_ones());
            return Availability::NoQuorum { reason };
        };
        if seen.refuses_writes {
            let low: Vec<String> = named(&seen.disk_low);
            let mut text = disks_full(&low);
            if !seen.silent.is_empty() {
                text = format!("{text}; {}", silent_ones());
            }
            return Availability::WritesRefused {
                reason: Reason::new(ReasonKind::DisksFull, text),
            };
        }
        if seen.silent.is_empty() {
            return Availability::Healthy { spare };
        }
        let more = match spare {
            0 => "the loss of one more stops it".to_owned(),
            spare => format!("it survives the loss of {spare} more"),
        };
        let text = format!("{}; {more}", silent_ones());
        Availability::AtRisk { reason: Reason::new(ReasonKind::VotersSilent, text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_risk(n: usize) -> Availability {
        Availability::AtRisk { reason: Reason::new(ReasonKind::VotersSilent, n.to_string()) }
    }

    #[test]
    fn a_slow_reader_may_miss_changes_but_not_the_last() {
        let readers = Subscribers::default();
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
        with_room(voters, silent, has_leader, &[])
    }

    fn with_room(voters: u64, silent: &[u64], has_leader: bool, low: &[u64]) -> Availability {
        let seen = io::QuorumState {
            voters: (1..=voters).collect(),
            silent: silent.to_vec(),
            has_leader,
            is_reported: true,
            disk_low: low.to_vec(),
            refuses_writes: !low.is_empty(),
            ..Default::default()
        };
        let no_leader = || Reason::new(ReasonKind::Election, "no leader");
        Availability::of(&seen, |node| format!("node-{node}"), no_leader)
    }

    /// While every write was refused, since the disks of most voters were full, a cluster was called healthy.
    #[test]
    fn a_cluster_that_refuses_writes_is_not_healthy() {
        let refuses = with_room(3, &[], true, &[1, 2]);
        assert!(matches!(refuses, Availability::WritesRefused { .. }), "{refuses}");
        assert_eq!(
            refuses.to_string(),
            "writes are refused: the disks of members are nearly full (node-1, node-2); make room there, or \
             delete znodes"
        );
        let silent = with_room(3, &[3], true, &[1]).to_string();
        assert!(silent.contains("(node-1)") && silent.ends_with("(node-3)"), "{silent}");
        let none = with_room(3, &[1, 3], true, &[2]).to_string();
        assert!(none.starts_with("no quorum: 2 of 3 voters are unreachable"), "{none}");
        assert_eq!(with_room(3, &[], false, &[2, 3]).to_string(), "no quorum: no leader");
    }

    /// "It survives the loss of 0 more" was called healthy.
    #[test]
    fn a_cluster_without_a_spare_voter_is_working() {
        assert_eq!(of(1, &[], true).to_string(), "working; no voter may be lost");
        assert_eq!(of(2, &[], true).to_string(), "working; no voter may be lost");
    }

    #[test]
    fn the_reason_names_the_silent_voters_and_the_spare_ones() {
        assert_eq!(of(1, &[], true), Availability::Healthy { spare: 0 });
        assert_eq!(of(5, &[], true), Availability::Healthy { spare: 2 });
        let at_risk = of(5, &[2], true).to_string();
        assert_eq!(
            at_risk,
            "at risk: 1 of 5 voters is unreachable or stores nothing (node-2); it survives the loss of 1 more"
        );
        let at_risk = of(3, &[2], true).to_string();
        assert!(at_risk.ends_with("the loss of one more stops it"), "{at_risk}");
        assert_eq!(
            of(3, &[1, 2], true).to_string(),
            "no quorum: 2 of 3 voters are unreachable or store nothing (node-1, node-2)"
        );
        // While a dead voter is being replaced, it still counts among the former voters.
        let (voters, outgoing, silent) = (vec![1, 2, 4], vec![1, 2, 3], vec![3]);
        let joint =
            io::QuorumState { voters, outgoing, silent, has_leader: true, ..Default::default() };
        assert_eq!(joint.spare(|voter| voter == 3), Some(0));
        assert_eq!(joint.spare(|voter| [2, 3].contains(&voter)), None);
        assert_eq!(of(3, &[], false).to_string(), "no quorum: no leader");
    }
}
