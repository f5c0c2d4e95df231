//! Appends to a peer before the leader knows how far that peer has the log.
//!
//! raft-rs sends such a peer an append, and sends it again after each answer to a heartbeat until it is
//! acknowledged, with more entries each time. If the peer's disk is slow, that is a MiB many times a second.
//! It fills the link, and messages for the peer's sessions come late. So the first append is small here, and
//! an append that cannot be small is sent again only after an election timeout.
//!
//! Each sync brings heartbeats of its own. A leader that was stopped for a few seconds finds thousands of answers
//! at once, and raft-rs has an append of a MiB ready for each before the node sees the first. So only one answer
//! of several in a row makes raft-rs send anything.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::context::Context;
use crate::node::io::Time;
use crate::node::message::RaftBody;
use crate::node::raft::core::Raft;
use crate::node::raft::replication::Replication;
use crate::node::raft::state::Sends;
use crate::node::stored::LogEntry;
use crate::types::membership::NodeId;

/// How many bytes of entries go to such a peer, unless a single entry is larger.
pub(in crate::node) const BYTES_MAX: usize = 64 << 10;

/// The last append to each such peer: its first index, and when it was sent.
#[derive(Debug, Default)]
pub(in crate::node) struct Probes {
    /// Appends that raft-rs sent after answers to heartbeats.
    answering: BTreeMap<NodeId, (u64, Time)>,
    /// Appends that could not be small.
    large: BTreeMap<NodeId, (u64, Time)>,
}

impl Probes {
    /// Appends to the peer may be lost.
    pub(in crate::node) fn lost(&mut self, peer: NodeId) {
        self.answering.remove(&peer);
        self.large.remove(&peer);
    }

    /// Cuts an append that begins behind `index`. Returns `false` for a large one that was sent less than
    /// `again` ago.
    fn cut(
        &mut self,
        peer: NodeId,
        index: u64,
        entries: &mut Vec<LogEntry>,
        now: Time,
        again: Duration,
    ) -> bool {
        let mut bytes = 0;
        let small = entries.iter().take_while(|entry| {
            bytes += entry.data.len();
            bytes <= BYTES_MAX
        });
        let small = small.count();
        entries.truncate(small.max(1));
        small > 0 || entries.is_empty() || is_due(&mut self.large, peer, index, now, again)
    }
}

/// Whether the last append to the peer began elsewhere, or was sent that long ago. Notes the next one if so.
fn is_due(
    sent: &mut BTreeMap<NodeId, (u64, Time)>,
    peer: NodeId,
    index: u64,
    now: Time,
    again: Duration,
) -> bool {
    let is_recent = sent.get(&peer).is_some_and(|(from, at)| *from == index && now < *at + again);
    if !is_recent {
        sent.insert(peer, (index, now));
    }
    !is_recent
}

/// Whether raft-rs does not know how far the peer has the log.
fn probes(raft: &Raft, peer: NodeId) -> bool {
    raft.progress(peer).is_some_and(|progress| progress.sends == Sends::Probes)
}

impl Replication {
    /// Cuts an append to a peer whose log position is not known. Returns whether to send it.
    pub(super) fn is_to_send(
        &mut self,
        to: NodeId,
        message: &mut RaftBody,
        raft: &Raft,
        cx: &Context,
    ) -> bool {
        let RaftBody::Append { index, entries, .. } = message else { return true };
        if !probes(raft, to) {
            return true;
        }
        let (now, again) = (cx.now.mono, cx.config.timings().election());
        self.probes.cut(to, *index, entries, now, again)
    }

    /// Steps raft-rs with an answer to a heartbeat. The same append is sent to the peer at most once for each
    /// of them.
    pub(in crate::node) fn step_heartbeat_response(
        &mut self,
        from: NodeId,
        term: u64,
        body: &RaftBody,
        raft: &mut Raft,
        cx: &Context,
    ) -> Result<(), String> {
        let next = raft.progress(from).map_or(0, |progress| progress.next);
        if !probes(raft, from) {
            return raft.step(from, term, body);
        }
        // An answer may come a little sooner after its heartbeat than the last one did.
        let (now, again) = (cx.now.mono, cx.config.heartbeat / 2);
        let is_due =
            is_due(&mut self.probes.answering, from, next, now, again) || planted!(ProbesUnbounded);
        let append = is_due.then_some(BYTES_MAX as u64);
        raft.step_with_append_of(append, from, term, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::stored::EntryKind;

    const S: Time = Time::from_secs(1);

    fn entries(sizes: &[usize]) -> Vec<LogEntry> {
        let entry = |(index, size): (usize, &usize)| LogEntry {
            index: 8 + index as u64,
            term: 1,
            kind: EntryKind::Normal,
            data: vec![0; *size].into(),
        };
        sizes.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn a_probe_is_small_and_a_large_one_is_not_sent_again_at_once() {
        let mut probes = Probes::default();
        let mut cut = |index, sizes: &[usize], now| {
            let mut entries = entries(sizes);
            probes.cut(2, index, &mut entries, now, S).then_some(entries.len())
        };
        for _ in 0..3 {
            assert_eq!(cut(7, &[], 9 * S), Some(0));
            assert_eq!(cut(7, &[BYTES_MAX / 2; 9], 9 * S), Some(2));
        }
        let large = BYTES_MAX + 1;
        assert_eq!(cut(7, &[large, 1], 9 * S), Some(1));
        assert_eq!(cut(7, &[large, 1], 9 * S + S / 2), None);
        assert_eq!(cut(8, &[large, 1], 9 * S + S / 2), Some(1), "another one");
        assert_eq!(cut(8, &[large, 1], 11 * S), Some(1));
        assert_eq!(cut(8, &[large, 1], 11 * S), None);
        probes.lost(2);
        let mut entries = entries(&[large]);
        assert!(probes.cut(2, 8, &mut entries, 11 * S, S), "the peer is back");
    }
}
