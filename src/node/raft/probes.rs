//! What a leader sends to a peer before it knows how far that peer has the log.
//!
//! raft-rs sends such a peer an append, and sends it again after each answer to a heartbeat until it is
//! acknowledged, with more entries each time. If the peer's disk is slow, that is a MiB many times a second:
//! it fills the link, and what the peer's sessions wait for comes late. So the first append is small here, and
//! one that cannot be small is sent again after an election timeout only.

use std::collections::BTreeMap;

use raft::ProgressState;

use crate::node::Node;
use crate::node::io::Time;
use crate::node::message::RaftBody;
use crate::node::stored::LogEntry;
use crate::types::membership::NodeId;

/// How many bytes of entries go to such a peer, if not a single entry is larger.
pub(in crate::node) const BYTES_MAX: usize = 64 << 10;

/// The last large append to each such peer: where it began, and when it was sent.
#[derive(Debug, Default)]
pub(in crate::node) struct Probes(BTreeMap<NodeId, (u64, Time)>);

impl Probes {
    /// What was sent to the peer may be lost.
    pub(in crate::node) fn lost(&mut self, peer: NodeId) {
        self.0.remove(&peer);
    }

    /// Cuts an append that begins behind `index`. Returns `false` for a large one that was sent since the
    /// moment `again`.
    fn cut(
        &mut self,
        peer: NodeId,
        index: u64,
        entries: &mut Vec<LogEntry>,
        now: Time,
        again: Time,
    ) -> bool {
        let mut bytes = 0;
        let small = entries.iter().take_while(|entry| {
            bytes += entry.data.len();
            bytes <= BYTES_MAX
        });
        let small = small.count();
        entries.truncate(small.max(1));
        if small > 0 || entries.is_empty() {
            return true;
        }
        let sent = self.0.get(&peer).is_some_and(|(from, at)| *from == index && *at > again);
        if !sent {
            self.0.insert(peer, (index, now));
        }
        !sent
    }
}

impl Node {
    /// Cuts an append to a peer of which too little is known for more. Returns whether it is to be sent.
    pub(in crate::node) fn is_to_send(&mut self, peer: NodeId, body: &mut RaftBody) -> bool {
        let RaftBody::Append { index, entries, .. } = body else { return true };
        let progress = self.raw.raft.prs().get(peer);
        let probes = progress.is_some_and(|progress| progress.state == ProgressState::Probe);
        let Some(leading) = self.leading.as_mut().filter(|_| probes) else { return true };
        let now = self.now.mono;
        let again = now.saturating_sub(self.config.timings().election());
        leading.probes.cut(peer, *index, entries, now, again)
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
            probes.cut(2, index, &mut entries, now, now - S).then_some(entries.len())
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
        assert!(probes.cut(2, 8, &mut entries, 11 * S, 10 * S), "the peer is back");
    }
}
