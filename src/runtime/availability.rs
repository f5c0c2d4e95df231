//! Whether the cluster can make decisions, reported to subscribers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::node::io;
use crate::sync::wakers::Wakers;
use crate::types::availability::Availability;
use crate::types::error::{disks_full, nearly_full};
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

/// How many more voters may fail before writes end; `None` if they have ended.
pub(super) fn spare(seen: &io::QuorumState) -> Option<usize> {
    seen.spare(None).filter(|_| seen.has_leader)
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
        if !seen.decides() {
            let reason = Reason::new(ReasonKind::VotersMissing, silent_ones());
            return Availability::NoQuorum { reason };
        }
        let Some(spare) = spare(seen).filter(|_| !seen.refuses_writes) else {
            let low: Vec<String> = named(&seen.disk_low);
            let mut text = disks_full(&low);
            if !seen.silent.is_empty() {
                text = format!("{text}; {}", silent_ones());
            }
            return Availability::WritesRefused {
                reason: Reason::new(ReasonKind::DisksFull, text),
            };
        };
        let votes = |node: &&u64| seen.voters.contains(node) || seen.outgoing.contains(node);
        let low: Vec<u64> = seen.disk_low.iter().filter(votes).copied().collect();
        if seen.silent.is_empty() && low.is_empty() {
            return Availability::Healthy { spare };
        }
        let mut parts: Vec<String> = Vec::new();
        if !seen.silent.is_empty() {
            parts.push(silent_ones());
        }
        if !low.is_empty() {
            parts.push(nearly_full(&named(&low)));
        }
        let ends = if low.is_empty() { "stops it" } else { "stops writes" };
        parts.push(match spare {
            0 => format!("the loss of one more {ends}"),
            spare => format!("it survives the loss of {spare} more"),
        });
        let kind = if low.is_empty() { ReasonKind::VotersSilent } else { ReasonKind::DisksFull };
        Availability::AtRisk { reason: Reason::new(kind, parts.join("; ")) }
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

    /// A voter whose disk was nearly full counted as spare. It or another one was stopped, and every write was refused.
    #[test]
    fn a_voter_without_room_is_not_spare() {
        let seen = |voters: u64, silent: &[u64], low: &[u64]| io::QuorumState {
            voters: (1..=voters).collect(),
            silent: silent.to_vec(),
            disk_low: low.to_vec(),
            has_leader: true,
            is_reported: true,
            ..Default::default()
        };
        let told = |seen: io::QuorumState| {
            let name = |node| format!("node-{node}");
            Availability::of(&seen, name, || Reason::new(ReasonKind::Election, "no leader"))
        };
        let one = seen(3, &[], &[2]);
        assert_eq!((spare(&one), one.spare(Some(1)), one.spare(Some(2))), (Some(0), None, Some(0)));
        let Availability::AtRisk { reason } = told(one) else { panic!("it is at risk") };
        assert_eq!(reason.kind, ReasonKind::DisksFull);
        let text = "the disk of node-2 is nearly full; the loss of one more stops writes";
        assert_eq!(reason.text, text);
        let five = seen(5, &[], &[2]);
        assert_eq!(spare(&five), Some(1));
        assert!(told(five).to_string().ends_with("nearly full; it survives the loss of 1 more"));
        let both = told(seen(5, &[1], &[2])).to_string();
        assert!(both.starts_with("at risk: 1 of 5 voters is unreachable"), "{both}");
        assert!(
            both.ends_with("the disk of node-2 is nearly full; the loss of one more stops writes")
        );
        // Silent and full is lost once; a learner's disk does not count.
        assert_eq!(spare(&seen(5, &[1], &[1])), Some(1));
        assert_eq!(told(seen(3, &[], &[9])), Availability::Healthy { spare: 1 });
        // Before the leader's report.
        let most = seen(3, &[], &[1, 2]);
        assert_eq!(spare(&most), None);
        assert!(matches!(told(most), Availability::WritesRefused { .. }));
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
        assert_eq!((joint.spare(None), joint.spare(Some(2))), (Some(0), None));
        assert_eq!(of(3, &[], false).to_string(), "no quorum: no leader");
    }
}
