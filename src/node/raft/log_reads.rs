//! Entries that peers need and only the disk has.
//!
//! raft-rs is refused such entries for now (`LogTemporarilyUnavailable`), and the node has the disk read
//! them. Then raft-rs sends them. So a peer that was away for long is brought up to date by the log, one
//! message at a time, as long as the disk has the log from the peer's position on.

use crate::node::context::Context;
use crate::node::io::DiskOp;
use crate::node::raft::core::{MESSAGE_ENTRIES_BYTES, Raft};
use crate::node::raft::probes;
use crate::node::raft::replication::Replication;
use crate::node::raft::state::Sends;
use crate::node::stored::LogEntry;

/// How many reads may be under way, for all peers together.
const READS_MAX: usize = 8;

/// Nothing more is read for a peer that has this many unacknowledged bytes.
const UNACKNOWLEDGED_BYTES_MAX: u64 = 4 * MESSAGE_ENTRIES_BYTES;

impl Replication {
    /// Has the disk read the entries that peers need next, voters first.
    pub(in crate::node) fn read_log(&mut self, raft: &mut Raft, cx: &mut Context) {
        let (now, patience) = (cx.now.mono, cx.config.timings().election());
        let peers: Vec<_> = raft.others().collect();
        let mut lost = Vec::new();
        let outline = raft.log().outline();
        for peer in peers {
            let Some(progress) = raft.progress(peer) else { continue };
            let from = progress.next;
            // Where the disk is damaged, a checkpoint is due that drops the log. Then raft-rs sends the peer a
            // snapshot.
            let is_rotten = raft.checkpoints.is_rotten(from);
            if progress.is_paused || !outline.contains(from) || is_rotten {
                continue;
            }
            let unacknowledged = outline.bytes_between(progress.matched + 1, from);
            if progress.sends == Sends::Entries && unacknowledged >= UNACKNOWLEDGED_BYTES_MAX {
                // raft-rs tries again when the peer acknowledges something. If the sent entries are lost,
                // the peer never does, and all of them must be sent again.
                let since = self.unacknowledged.entry(peer).or_insert((progress.matched, now));
                if since.0 != progress.matched {
                    *since = (progress.matched, now);
                } else if now >= since.1 + patience {
                    lost.push(peer);
                }
                continue;
            }
            self.unacknowledged.remove(&peer);
            if self.reads.len() >= READS_MAX {
                raft.log().want_disk();
                break;
            }
            if self.reads.insert(from) {
                let bytes = match progress.sends {
                    Sends::Entries => MESSAGE_ENTRIES_BYTES,
                    _ => probes::BYTES_MAX as u64,
                };
                cx.effects.disk.push(DiskOp::Read { from, bytes });
            }
        }
        for peer in lost {
            self.unacknowledged.remove(&peer);
            raft.unreachable(peer);
        }
    }

    /// The disk has read entries from this index on; none if it no longer has them.
    pub(in crate::node) fn take_read(&mut self, from: u64, entries: &[LogEntry], raft: &mut Raft) {
        if !self.reads.remove(&from) {
            return;
        }
        // raft-rs takes entries from memory if they are still there.
        let outline = raft.log().outline();
        let entries = entries.iter().take_while(|entry| outline.contains(entry.index));
        let entries: Vec<LogEntry> = entries.cloned().collect();
        let Some(last) = entries.last().map(|entry| entry.index) else { return };
        if !raft.log_mut().lend(&entries) {
            tracing::warn!(from, "the disk has other entries than this log");
            return;
        }
        for peer in raft.others().collect::<Vec<_>>() {
            let progress = raft.progress(peer);
            if progress.is_some_and(|progress| (from..=last).contains(&progress.next)) {
                raft.send_entries(peer);
            }
        }
        raft.log_mut().lend(&[]);
        // These peers may need more.
        raft.log().want_disk();
    }
}
