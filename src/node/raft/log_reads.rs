//! Entries that peers need and only the disk has.
//!
//! raft-rs is refused such entries for now (`LogTemporarilyUnavailable`), and the node has the disk read
//! them. Then raft-rs sends them. So a peer that was away for long is brought up to date by the log, one
//! message at a time, as long as the disk has the log from the peer's position on.

use crate::node::Node;
use crate::node::io::DiskOp;
use crate::node::raft::core::{MESSAGE_ENTRIES_BYTES, Sends};
use crate::node::raft::probes;
use crate::node::stored::LogEntry;

/// How many reads may be under way, for all peers together.
const READS_MAX: usize = 8;

/// Nothing more is read for a peer that has this many unacknowledged bytes.
const UNACKNOWLEDGED_BYTES_MAX: u64 = 4 * MESSAGE_ENTRIES_BYTES;

impl Node {
    /// Has the disk read the entries that peers need next, voters first.
    pub(in crate::node) fn read_log(&mut self) {
        if !self.raft.log().take_wants_disk() {
            return;
        }
        let (now, patience) = (self.now.mono, self.config.timings().election());
        let peers: Vec<_> = self.others().collect();
        let Some(leading) = &mut self.leading else { return };
        let mut lost = Vec::new();
        let outline = self.raft.log().outline();
        for peer in peers {
            let Some(progress) = self.raft.progress(peer) else { continue };
            let from = progress.next;
            // Where the disk is damaged, a checkpoint is due that drops the log. Then raft-rs sends the peer a
            // snapshot.
            let is_rotten = from < self.persistence.rotten_below;
            if progress.is_paused || !outline.contains(from) || is_rotten {
                continue;
            }
            let unacknowledged = outline.bytes_between(progress.matched + 1, from);
            if progress.sends == Sends::Entries && unacknowledged >= UNACKNOWLEDGED_BYTES_MAX {
                // raft-rs tries again when the peer acknowledges something. If the sent entries are lost,
                // the peer never does, and all of them must be sent again.
                let since = leading.unacknowledged.entry(peer).or_insert((progress.matched, now));
                if since.0 != progress.matched {
                    *since = (progress.matched, now);
                } else if now >= since.1 + patience {
                    lost.push(peer);
                }
                continue;
            }
            leading.unacknowledged.remove(&peer);
            if leading.reads.len() >= READS_MAX {
                self.raft.log().want_disk();
                break;
            }
            if leading.reads.insert(from) {
                let bytes = match progress.sends {
                    Sends::Entries => MESSAGE_ENTRIES_BYTES,
                    _ => probes::BYTES_MAX as u64,
                };
                self.effects.disk.push(DiskOp::Read { from, bytes });
            }
        }
        for peer in lost {
            leading.unacknowledged.remove(&peer);
            self.raft.unreachable(peer);
        }
    }

    /// The disk has read entries from this index on; none if it no longer has them.
    pub(in crate::node) fn take_read(&mut self, from: u64, entries: &[LogEntry]) {
        if !self.leading.as_mut().is_some_and(|leading| leading.reads.remove(&from)) {
            return;
        }
        // raft-rs takes entries from memory if they are still there.
        let outline = self.raft.log().outline();
        let entries = entries.iter().take_while(|entry| outline.contains(entry.index));
        let entries: Vec<LogEntry> = entries.cloned().collect();
        let Some(last) = entries.last().map(|entry| entry.index) else { return };
        if !self.raft.log_mut().lend(&entries) {
            tracing::warn!(from, "the disk has other entries than this log");
            return;
        }
        for peer in self.others().collect::<Vec<_>>() {
            let progress = self.raft.progress(peer);
            if progress.is_some_and(|progress| (from..=last).contains(&progress.next)) {
                self.raft.send_entries(peer);
            }
        }
        self.raft.log_mut().lend(&[]);
        // These peers may need more.
        self.raft.log().want_disk();
    }
}
