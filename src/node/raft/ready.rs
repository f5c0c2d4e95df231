//! The handling of a `Ready` of raft-rs: messages are sent, entries are stored and then applied,
//! snapshots are sent and installed.
//!
//! The documentation of `RawNode` has the contract. This uses the asynchronous form, in which the
//! node does not wait for the disk.

use raft::eraftpb::{self, MessageType};

use crate::machine::command::Batch;
use crate::node::Node;
use crate::node::io::DiskOp;
use crate::node::membership::REMOVED;
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::raft::configuration::{Part, VotingChange};
use crate::node::raft::core::Sends;
use crate::node::raft::divergence::{self, Verdict};
use crate::node::raft::log::{Position, changes_voting, size};
use crate::node::raft::persistence::{AwaitingPersistence, BACKLOG_BYTES_MAX};
use crate::node::raft::snapshot_transfer::{Outgoing, Received};
use crate::node::replica::watches::Fired;
use crate::node::stored::{HardState, LogEntry, LogWrite, SnapshotMeta, Voting};
use crate::planted::{Bug, if_planted, planted, strikes, unless};
use crate::types::acl::AccessList;
use crate::types::membership::NodeId;
use crate::types::version;

/// About how many requests a step applies: a few milliseconds' work. So a member that has many to apply
/// still answers heartbeats.
const APPLIED_MAX: usize = 4096;
/// This many bytes count as one more request.
const REQUEST_BYTES: usize = 4096;

impl Node {
    /// Handles one `Ready` of raft-rs. The contract is in the documentation of `RawNode`.
    pub(in crate::node) fn ready(&mut self) -> Result<(), String> {
        let mut ready = self.raft.raw.ready();
        let waits = |_: &eraftpb::Message| planted(Bug::LeaderAwaitsDisk);
        let (after_disk, at_once) = ready.take_messages().into_iter().partition::<Vec<_>, _>(waits);
        self.post(at_once);
        for read in ready.take_read_states() {
            self.reads_confirmed(&read.request_ctx, read.index);
        }
        let (mut disk, mut write_at, mut snapshot) = (None, None, None);
        if *ready.snapshot() != eraftpb::Snapshot::default() {
            disk = Some(self.install(&ready)?);
            snapshot = Some(ready.snapshot().get_metadata().index);
            self.persistence.installing = snapshot;
        }
        let store = self.raft.log_mut();
        store.append(ready.entries());
        if let Some(hard_state) = ready.hs() {
            store.set_hard_state(hard_state.clone());
        }
        let only_installed = disk.is_some() && ready.entries().is_empty();
        if ready.must_sync() && !only_installed {
            let write = LogWrite {
                hard_state: Some(self.raft.hard_state()),
                entries: ready.entries().iter().map(LogEntry::from).collect(),
            };
            let number = self.persistence.next_number();
            (disk, write_at) = (Some(number), Some(self.now.mono));
            self.effects.disk.push(DiskOp::Write { number, write });
        }
        let messages = ready.take_persisted_messages();
        let (mut messages, free) = messages.into_iter().partition::<Vec<_>, _>(rests_on_disk);
        messages.extend(after_disk);
        self.post(free);
        let committed = ready.take_committed_entries();
        let bytes = ready.entries().iter().map(|entry| entry.data.len()).sum();
        let number = ready.number();
        let pending =
            AwaitingPersistence { ready: number, disk, write_at, snapshot, bytes, messages };
        self.persistence.hold_until_written(pending);
        self.raft.raw.advance_append_async(ready);
        for peer in std::mem::take(&mut self.failed_transfers) {
            self.raft.state_sent(peer, false);
        }
        self.raft.unapplied.extend(committed);
        self.go_on_applying()?;
        self.settle();
        Ok(())
    }

    /// Sends the messages that waited for writes which are now durable.
    pub(in crate::node) fn settle(&mut self) {
        let written = self.persistence.written;
        let durable = |first: &AwaitingPersistence| {
            first.disk.is_none_or(|number| number <= written) || planted(Bug::AckBeforeDurable)
        };
        while self.persistence.awaiting.front().is_some_and(durable)
            && let Some(durable) = self.persistence.awaiting.pop_front()
        {
            self.persistence.backlog_bytes -= durable.bytes;
            if let Some(at) = durable.write_at {
                self.metrics.disk_sync.record(self.now.mono.saturating_sub(at));
            }
            self.post(durable.messages);
            self.raft.raw.on_persist_ready(durable.ready);
            if let Some(index) = durable.snapshot {
                self.raft.raw.advance_apply_to(index);
                self.persistence.installing.take_if(|newest| *newest == index);
            }
        }
    }

    fn post(&mut self, messages: Vec<eraftpb::Message>) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.post_snapshot(&message);
            } else if let Some(mut body) = RaftBody::from_raft(&message)
                && self.is_to_send(message.to, &mut body)
            {
                let term = message.term;
                self.effects.messages.push((message.to, PeerMessage::Raft { term, body }));
            }
        }
    }

    /// Raft wants to send a peer a snapshot: the state is sent in chunks.
    fn post_snapshot(&mut self, message: &eraftpb::Message) {
        let mut meta = self.snapshot_meta();
        let current =
            self.raft.leads() && message.get_snapshot().get_metadata().index == meta.index;
        let (is_voter, named) = (self.is_voter(message.to), self.named(message.to));
        let outgoing = self.leading.as_mut().map(|leading| &mut leading.outgoing);
        let fits = |outgoing: &&mut Outgoing| is_voter || outgoing.takes_learner(message.to);
        let Some(outgoing) = outgoing.filter(fits).filter(|_| current) else {
            // Raft asks for it again when the peer answers another heartbeat.
            self.failed_transfers.push(message.to);
            return;
        };
        meta.index -= u64::from(planted(Bug::SnapshotMislabelled));
        meta.index += u64::from(planted(Bug::SnapshotAhead));
        let (term, state) = (message.term, self.machine.state());
        let (to, znodes) = (named, self.machine.tree().len());
        tracing::info!(to = %to, index = meta.index, znodes, "sending the state");
        self.metrics.snapshots_sent += 1;
        let messages = outgoing.begin(message.to, term, meta, state, self.now.mono);
        self.effects.messages.extend(messages.into_iter().map(|part| (message.to, part)));
    }

    /// Raft has taken the snapshot that was staged: it replaces everything.
    fn install(&mut self, ready: &raft::Ready) -> Result<u64, String> {
        let raft_meta = ready.snapshot().get_metadata();
        let staged = self.staged.take().filter(|Received { meta, .. }| {
            meta.index == raft_meta.index && meta.term == raft_meta.term
        });
        let Some(Received { meta, machine, bytes }) = staged else {
            return Err("Raft restored a snapshot that was not received".to_owned());
        };
        tracing::info!(index = meta.index, zxid = meta.zxid, "the state of a leader was received");
        self.metrics.snapshots_installed += 1;
        let position = Position { index: meta.index, term: meta.term };
        let old = self.machine.tree();
        // The host has published the former state. Dropping the last reference to it takes long.
        self.replaced = Some(self.machine.state());
        self.machine = machine;
        self.effects.zxid = self.machine.zxid();
        self.raft.unapplied.clear();
        (self.preparing, self.applies_on) = (None, false);
        // The disk gets the whole state; deltas count from here.
        let _ = self.machine.take_dirty();
        self.raft.log_mut().reset(position, Voting::from(raft_meta.get_conf_state()));
        self.persistence.replaced(position, bytes, self.now.mono);
        // The clients get these updates from another member, or from this one after they attach
        // again.
        let reason = "the member was brought up to date by a snapshot";
        self.replica.let_all_go(reason, &mut self.effects);
        let mut fired = Fired::default();
        self.local.identify(&self.machine);
        let local = &self.local;
        let may_read = |session, acl: Option<&AccessList>| local.may_read(session, acl);
        let changed = self.machine.take_changed(old.zxid());
        self.replica.watches.fire_net(&old, &self.machine.tree(), &changed, may_read, &mut fired);
        self.deliver(fired);
        self.replica.history.begin_after(self.machine.zxid());
        self.reconcile_sessions();
        self.members_changed();
        self.local.applied();
        let number = self.persistence.next_number();
        let mut hard_state = ready.hs().map_or_else(|| self.raft.hard_state(), HardState::from);
        // Entries of the same step, which may be committed, are written after the state.
        hard_state.commit = position.index;
        if_planted(Bug::VoteLostAtInstall, || hard_state.vote = 0);
        let state = self.machine.state();
        self.effects.disk.push(DiskOp::Install { number, hard_state, meta, state });
        Ok(number)
    }

    /// Applies the entries that raft-rs has handed out, which are on this member's own disk, and then
    /// other committed entries up to the next change of the voters. One step applies a bounded number
    /// of requests, and only a part of an entry that deletes very many znodes.
    pub(in crate::node) fn go_on_applying(&mut self) -> Result<(), String> {
        self.applies_on = false;
        let mut last = None;
        while let Some(entry) = self.raft.unapplied.pop_front() {
            if entry.index > self.raft.log().applied().index && !self.apply_entry(&entry)? {
                self.raft.unapplied.push_front(entry);
                self.applies_on = true;
                break;
            }
            last = Some(entry.index);
        }
        if let Some(last) = last {
            self.raft.raw.advance_apply_to(last);
        }
        if self.persistence.installing.is_none() && !self.applies_on {
            while let Some(entry) = self.raft.log().next_to_apply(self.raft.committed()) {
                if !self.apply_entry(&entry)? {
                    self.applies_on = true;
                    break;
                }
            }
        }
        self.local.applied();
        Ok(())
    }

    /// Whether so much waits to be applied that the node should take no more entries for now.
    pub(in crate::node) fn applies_too_late(&self) -> bool {
        let most = self.config.log.memory_bytes + BACKLOG_BYTES_MAX as u64;
        self.applies_on && self.raft.log().bytes() > most
    }

    /// Returns whether the entry is applied. If not, the next step goes on with it.
    fn apply_entry(&mut self, entry: &eraftpb::Entry) -> Result<bool, String> {
        if self.applied_now >= APPLIED_MAX {
            return Ok(false);
        }
        let of_voters = changes_voting(entry);
        if of_voters {
            self.apply_voting(entry)?;
        }
        // A new leader's first entry is empty.
        else if !entry.data.is_empty() {
            let preparing = self.preparing.take().filter(|(index, _)| *index == entry.index);
            let at = Position { index: entry.index, term: entry.term };
            let proposed = || self.leading.as_mut()?.proposed.take(at, &entry.data);
            let batch = match preparing.map(|(_, batch)| batch).or_else(proposed) {
                Some(batch) => batch,
                None => Batch::decode(&entry.data).map_err(|reason| {
                    format!("entry {} is not readable by this version: {reason}", entry.index)
                })?,
            };
            if batch.version() > self.config.version {
                return Err(version::too_old(batch.version(), self.config.version));
            }
            if !self.machine.prepare(&batch) {
                self.preparing = Some((entry.index, batch));
                return Ok(false);
            }
            self.applied_now += batch.requests.len() + entry.data.len() / REQUEST_BYTES;
            if !strikes(Bug::EntrySkipped, 97) {
                self.apply_batch(entry.term, batch);
            }
        }
        let position = Position { index: entry.index, term: entry.term };
        if let Some(leading) = &mut self.leading
            && let Some(at) = leading.proposed.applied(entry.index)
        {
            self.metrics.commit.record(self.now.mono.saturating_sub(at));
        }
        self.raft.log_mut().set_applied(position);
        self.persistence.applied(size(entry));
        if of_voters && !self.bootstrap.joins && !self.is_member(self.id) {
            return Err(REMOVED.to_owned());
        }
        if entry.index.is_multiple_of(divergence::EVERY) {
            self.share_hash(entry.index)?;
        }
        Ok(true)
    }

    /// Applies a change of the voters.
    fn apply_voting(&mut self, entry: &eraftpb::Entry) -> Result<(), String> {
        let change = VotingChange::decode(&entry.context).map_err(|reason| {
            format!("entry {} has no valid change of the voters: {reason}", entry.index)
        })?;
        match self.raft.apply_change(&change) {
            Ok(()) => {
                tracing::info!(index = entry.index, ?change, "the voters have changed");
                self.members_changed();
                for (node, part) in &change.steps {
                    if *part == Part::Gone
                        && let Some(leading) = &mut self.leading
                    {
                        leading.members.forget(*node);
                    }
                }
            }
            // By the applied members, so that all replicas decide the same.
            Err(error) => {
                tracing::warn!(index = entry.index, %error, "an impossible change of the voters was ignored")
            }
        }
        if self.raft.leads() && !self.raft.has_vote(self.id) {
            // Only the former leader can have proposed that. raft-rs would go on leading, and
            // panic.
            self.raft.step_down();
        }
        Ok(())
    }

    fn share_hash(&mut self, index: u64) -> Result<(), String> {
        let hash = self.machine.hash();
        for (peer, _) in &self.peer_problems {
            self.effects.messages.push((*peer, PeerMessage::StateHash { index, hash }));
        }
        self.compare_hash(index, self.id, hash)
    }

    pub(in crate::node) fn compare_hash(
        &mut self,
        index: u64,
        of: NodeId,
        hash: u64,
    ) -> Result<(), String> {
        let voters = &self.raft.log().voting().voters;
        let near = self.raft.log().applied().index + divergence::AHEAD_MAX;
        if (of != self.id && !voters.contains(&of)) || index > near {
            return Ok(());
        }
        match self.hashes.note(index, of, hash, self.id, voters) {
            Verdict::Agree => Ok(()),
            Verdict::Disagree => {
                tracing::error!(index, peer = %self.named(of), "replicas disagree on the state at this index");
                Ok(())
            }
            Verdict::Diverged => Err(format!(
                "this replica's state at entry {index} is not the majority's: it has diverged"
            )),
        }
    }

    /// Starts a checkpoint if one is due, and drops entries from memory that are not needed there. The
    /// entries that the last step applied were in memory until now.
    pub(in crate::node) fn tidy_log(&mut self) {
        if let Some(state) = self.replaced.take() {
            self.effects.disk.push(DiskOp::Drop { state });
        }
        let applied = self.raft.log().applied();
        self.maybe_checkpoint(applied);
        let handed_out = self.raft.handed_out().min(applied.index);
        // With a slow disk, raft-rs hands out some of the cut entries only later.
        let keeps_from = self.persistence.keeps_from;
        self.raft.log_mut().compact(keeps_from, handed_out);
        let memory_bytes = unless(Bug::LogUntrimmed, self.config.log.memory_bytes, u64::MAX);
        self.raft.log_mut().trim(memory_bytes, handed_out);
    }

    fn maybe_checkpoint(&mut self, applied: Position) {
        let (limits, now) = (self.config.log, self.now.mono);
        let makes_room = self.room.is_low && self.has_shrunk();
        if !self.persistence.is_checkpoint_due(self.id, &limits, applied, now, makes_room) {
            return;
        }
        // A damaged part that is not applied yet is dropped by a later checkpoint.
        let sound_from = self.persistence.rotten_below;
        let sound_from = if sound_from <= applied.index + 1 { sound_from } else { 0 };
        let keep_from = self.keep_from(applied).max(sound_from);
        // From now on no peer is sent entries that the disk is about to drop.
        let handed_out = self.raft.handed_out();
        self.raft.log_mut().compact(keep_from, handed_out);
        self.metrics.checkpoints += 1;
        self.persistence.checkpoint_begun(applied, self.machine.bytes(), now);
        self.persistence.keeps_from = keep_from;
        self.effects.disk.push(DiskOp::Checkpoint {
            meta: self.snapshot_meta(),
            state: self.machine.state(),
            dirty: self.machine.take_dirty(),
            keep_from,
        });
    }

    /// The first index of the log on disk after a checkpoint of the applied state.
    ///
    /// A state of a few gigabytes takes minutes to send. While it is under way, and while its receiver
    /// catches up with later entries, the log is kept. Otherwise the receiver would need another state at
    /// the end, and would never be level as long as others write. The same holds for a peer that is sent
    /// the log. A peer that falls behind by more than the bound starts again with a new state.
    fn keep_from(&self, applied: Position) -> u64 {
        let (log, limits) = (self.raft.log(), &self.config.log);
        let retained = self.persistence.retained_bytes(limits);
        let keep_from = log.keep_from(applied.index, retained);
        if !self.raft.leads() {
            return keep_from;
        }
        let bound = log.keep_from(applied.index, limits.catch_up_bytes.max(retained));
        let since = self.now.mono.saturating_sub(self.patience());
        let alive =
            |peer: &NodeId| self.membership.last_received(*peer).is_some_and(|at| at >= since);
        let needed = self.others().filter(alive).filter_map(|peer| {
            let progress = self.raft.progress(peer)?;
            Some(match progress.sends {
                Sends::State(index) => index + 1,
                // The peer has all of a state, and its disk may still be writing it.
                Sends::Probes => progress.next,
                Sends::Entries => progress.matched + 1,
            })
        });
        let kept = needed.filter(|index| *index >= bound).fold(keep_from, u64::min);
        unless(Bug::CutUnderTransfer, kept, log.keep_from(applied.index, 0))
    }

    /// The metadata of a snapshot or a checkpoint of the present state.
    pub(in crate::node) fn snapshot_meta(&self) -> SnapshotMeta {
        let Position { index, term } = self.raft.log().applied();
        let mut voting = self.raft.log().voting().clone();
        if_planted(Bug::LearnersForgotten, || voting.learners.clear());
        if_planted(Bug::JointForgotten, || voting.voters_outgoing.clear());
        SnapshotMeta { index, term, zxid: self.machine.zxid(), hash: self.machine.hash(), voting }
    }
}

/// Whether a message of a member that does not lead acknowledges entries or gives a vote, which must
/// be on its disk first.
///
/// An answer to a heartbeat, a refusal and an answer to a pre-vote promise nothing. They only show that
/// the sender's term is not later, which stays true after a crash. The votes for a leader and its
/// commits are on the disks of a majority each, and any two majorities overlap.
fn rests_on_disk(message: &eraftpb::Message) -> bool {
    match message.get_msg_type() {
        MessageType::MsgHeartbeatResponse | MessageType::MsgRequestPreVoteResponse => {
            planted(Bug::AnswersAwaitDisk)
        }
        MessageType::MsgAppendResponse | MessageType::MsgRequestVoteResponse => !message.reject,
        // A candidate votes for itself.
        MessageType::MsgRequestVote => !planted(Bug::VoteAskedEarly),
        _ => true,
    }
}
