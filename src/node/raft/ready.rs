//! The handling of a `Ready` of raft-rs: messages are sent, entries are stored and handed out to be applied.
//!
//! The documentation of `RawNode` has the contract. This uses the asynchronous form, in which the
//! node does not wait for the disk.

use bytes::Bytes;
use raft::eraftpb::{self, MessageType};

use crate::machine::Machine;
use crate::node::context::Context;
use crate::node::io::DiskOp;
use crate::node::membership::Membership;
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::raft::configuration::VotingChange;
use crate::node::raft::core::Raft;
use crate::node::raft::log::{Position, changes_voting, size};
use crate::node::raft::persistence::AwaitingPersistence;
use crate::node::raft::replication::Replication;
use crate::node::raft::snapshot_transfer::OutgoingSnapshots;
use crate::node::stored::{HardState, LogEntry, LogWrite, Voting};

/// What raft-rs wants done.
pub(in crate::node) struct Ready(raft::Ready);

/// A leader's state that raft-rs has taken.
pub(in crate::node) struct TakenState {
    pub(in crate::node) position: Position,
    pub(in crate::node) voting: Voting,
    /// The hard state, if it has changed.
    pub(in crate::node) hard_state: Option<HardState>,
}

/// A committed entry, which is to be applied.
pub(in crate::node) struct CommittedEntry(eraftpb::Entry);

/// What sending raft-rs's messages needs.
pub(in crate::node) struct Sender<'a> {
    /// What the node has under way as a leader.
    pub(in crate::node) replication: Option<&'a mut Replication>,
    pub(in crate::node) machine: &'a Machine,
    pub(in crate::node) membership: &'a Membership,
    pub(in crate::node) cx: &'a mut Context,
}

impl Ready {
    /// The answers to [`Raft::read_index`]: the context of each, and the index.
    pub(in crate::node) fn take_reads(&mut self) -> impl Iterator<Item = (Vec<u8>, u64)> + use<> {
        let reads = self.0.take_read_states();
        reads.into_iter().map(|read| (read.request_ctx, read.index))
    }

    /// The state to install, before the rest is stored.
    pub(in crate::node) fn state(&self) -> Option<TakenState> {
        let snapshot = self.0.snapshot();
        if *snapshot == eraftpb::Snapshot::default() {
            return None;
        }
        let meta = snapshot.get_metadata();
        Some(TakenState {
            position: Position { index: meta.index, term: meta.term },
            voting: Voting::from(meta.get_conf_state()),
            hard_state: self.0.hs().map(HardState::from),
        })
    }
}

impl CommittedEntry {
    pub(in crate::node) fn position(&self) -> Position {
        Position { index: self.0.index, term: self.0.term }
    }

    pub(in crate::node) fn data(&self) -> &Bytes {
        &self.0.data
    }

    /// How many bytes it takes in the log.
    fn bytes(&self) -> u64 {
        size(&self.0)
    }

    /// The change of the voters, encoded, if it is one.
    pub(in crate::node) fn voting_change(&self) -> Option<Result<VotingChange, String>> {
        changes_voting(&self.0).then(|| {
            VotingChange::decode(&self.0.context).map_err(|reason| {
                format!("entry {} has no valid change of the voters: {reason}", self.0.index)
            })
        })
    }
}

impl Raft {
    /// What raft-rs wants done now. Sends the messages that need not wait.
    pub(in crate::node) fn ready(&mut self, sender: &mut Sender<'_>) -> Ready {
        let mut ready = self.raw.ready();
        self.post(ready.take_messages(), sender);
        Ready(ready)
    }

    /// Stores what is in a `Ready`, and takes the entries that it commits. `installs`: the disk operation by
    /// which its state was installed.
    pub(in crate::node) fn store(
        &mut self,
        Ready(mut ready): Ready,
        installs: Option<u64>,
        sender: &mut Sender<'_>,
    ) {
        let (mut disk, mut write_at) = (installs, None);
        let snapshot = disk.map(|_| ready.snapshot().get_metadata().index);
        let store = self.log_mut();
        store.append(ready.entries());
        if let Some(hard_state) = ready.hs() {
            store.set_hard_state(hard_state.clone());
        }
        let only_installed = disk.is_some() && ready.entries().is_empty();
        if ready.must_sync() && !only_installed {
            let write = LogWrite {
                hard_state: Some(self.hard_state()),
                entries: ready.entries().iter().map(LogEntry::from).collect(),
            };
            let number = self.persistence.next_number();
            (disk, write_at) = (Some(number), Some(sender.cx.now.mono));
            sender.cx.effects.disk.push(DiskOp::Write { number, write });
        }
        let mut messages = ready.take_persisted_messages();
        let free = messages.extract_if(.., |message| !rests_on_disk(message)).collect();
        self.post(free, sender);
        let committed = ready.take_committed_entries();
        let bytes = ready.entries().iter().map(|entry| entry.data.len()).sum();
        let number = ready.number();
        let pending =
            AwaitingPersistence { ready: number, disk, write_at, snapshot, bytes, messages };
        self.persistence.hold_until_written(pending);
        self.raw.advance_append_async(ready);
        for peer in std::mem::take(&mut self.failed_transfers) {
            self.state_sent(peer, false);
        }
        self.unapplied.extend(committed);
    }

    /// Sends the messages that waited for writes which are now durable.
    pub(in crate::node) fn settle(&mut self, sender: &mut Sender<'_>) {
        while let Some(durable) = self.persistence.next_durable() {
            if let Some(at) = durable.write_at {
                let cx = &mut *sender.cx;
                cx.metrics.disk_sync.record(cx.now.mono.saturating_sub(at));
            }
            self.post(durable.messages, sender);
            self.raw.on_persist_ready(durable.ready);
            if let Some(index) = durable.snapshot {
                self.raw.advance_apply_to(index);
            }
        }
    }

    fn post(&mut self, messages: Vec<eraftpb::Message>, sender: &mut Sender<'_>) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.post_snapshot(&message, sender);
            } else if let Some(mut body) = RaftBody::from_raft(&message) {
                let Sender { replication, cx, .. } = sender;
                let to = message.to;
                let sends = match replication {
                    Some(replication) => replication.is_to_send(to, &mut body, self, cx),
                    None => true,
                };
                if sends {
                    cx.send(to, PeerMessage::Raft { term: message.term, body });
                }
            }
        }
    }

    /// Raft wants to send a peer a snapshot: the state is sent in chunks.
    fn post_snapshot(&mut self, message: &eraftpb::Message, sender: &mut Sender<'_>) {
        let Sender { replication, machine, membership, cx } = sender;
        let meta = self.snapshot_meta(machine);
        let current = self.leads() && message.get_snapshot().get_metadata().index == meta.index;
        let (is_voter, to) = (self.is_voter(message.to), membership.named(message.to));
        let outgoing = replication.as_mut().map(|replication| &mut replication.outgoing);
        let fits =
            |outgoing: &&mut OutgoingSnapshots| is_voter || outgoing.takes_learner(message.to);
        let Some(outgoing) = outgoing.filter(fits).filter(|_| current) else {
            // Raft asks for it again when the peer answers another heartbeat.
            self.failed_transfers.push(message.to);
            return;
        };
        let (term, state) = (message.term, machine.state());
        let znodes = machine.tree().len();
        tracing::info!(to = %to, index = meta.index, znodes, "sending the state");
        cx.metrics.snapshots_sent += 1;
        let messages = outgoing.begin(message.to, term, meta, state, cx.now.mono);
        cx.effects.messages.extend(messages.into_iter().map(|part| (message.to, part)));
    }

    /// A leader's state has taken the place of the log, and of everything that was to be applied.
    pub(in crate::node) fn replaced(&mut self, position: Position, voting: Voting) {
        self.unapplied.clear();
        self.log_mut().reset(position, voting);
    }

    /// The next entry to apply: one that raft-rs has handed out, or else one that is committed although this disk does
    /// not have it yet, up to the next change of the voters.
    pub(in crate::node) fn next_to_apply(&mut self) -> Option<CommittedEntry> {
        let applied = self.log().applied().index;
        let done = self.unapplied.iter().take_while(|entry| entry.index <= applied).count();
        if let Some(last) = self.unapplied.drain(..done).next_back() {
            self.raw.advance_apply_to(last.index);
        }
        let next = match self.unapplied.front() {
            None if self.persistence.installs() => None,
            None => self.log().next_to_apply(self.committed()),
            handed_out => handed_out.cloned(),
        };
        next.map(CommittedEntry)
    }

    /// The entry is applied.
    pub(in crate::node) fn applied(&mut self, entry: &CommittedEntry) {
        self.log_mut().set_applied(entry.position());
        self.checkpoints.applied(entry.bytes());
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
            planted!(AnswersAwaitDisk)
        }
        MessageType::MsgAppendResponse | MessageType::MsgRequestVoteResponse => !message.reject,
        // A candidate votes for itself.
        MessageType::MsgRequestVote => !planted!(VoteAskedEarly),
        _ => true,
    }
}
