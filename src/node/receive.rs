//! How a node handles its peers' messages.

use super::Node;
use super::message::{PeerMessage, RaftBody};
use crate::machine::Machine;
use crate::node::leader::read_index::Asked;
use crate::node::raft::guard::{self, View, Violation};
use crate::node::raft::log::Position;
use crate::node::raft::snapshot_transfer::Received;
use crate::types::membership::NodeId;
use crate::types::version;

impl Node {
    pub(super) fn take_message(
        &mut self,
        from: NodeId,
        message: PeerMessage,
    ) -> Result<(), String> {
        let may_a_client =
            matches!(message, PeerMessage::FromClient { .. } | PeerMessage::AdminRequest { .. });
        if self.replica.clients.has(from) && !may_a_client {
            tracing::warn!(from = %self.named(from), "refused a message that a client may not send");
            return Ok(());
        }
        match message {
            PeerMessage::Raft { term, body: ref body @ RaftBody::Snapshot { transfer, .. } } => {
                match self.incoming.build(from, term, body, self.machine.zxid()) {
                    Some(build) => self.effects.disk.push(build),
                    None => self.abort_transfer(from, transfer),
                }
            }
            PeerMessage::Raft { term, body } => self.take_raft(from, term, &body, None)?,
            PeerMessage::Forward { requests } => self.take_forwarded(from, requests),
            PeerMessage::ReadIndex { boot, read_index, sessions } => {
                self.take_read_index(Asked::new(from, None, boot, read_index), sessions);
            }
            PeerMessage::FromClient { attachment, number, received, messages } => {
                self.take_client_messages(from, attachment, number, received, messages);
            }
            PeerMessage::ClientForward { client, requests } => {
                self.take_forwarded(client, requests)
            }
            PeerMessage::ClientReadIndex { client, boot, read_index, sessions } => {
                self.take_read_index(Asked::new(from, Some(client), boot, read_index), sessions);
            }
            PeerMessage::ClientReadIndexConfirmed { client, boot, read_index, index, refused } => {
                self.client_confirmed(client, boot, read_index, index, refused);
            }
            PeerMessage::AdminRequest { number, cluster, relay, asked } => {
                self.take_admin_request(from, number, cluster, relay, &asked);
            }
            PeerMessage::AdminReply { number, replies } => {
                self.take_admin_reply(from, number, replies);
            }
            // These messages are for clients, and this node is no client.
            PeerMessage::ToClient { .. } | PeerMessage::LetGo { .. } => {}
            PeerMessage::ReadIndexConfirmed { boot, read_index, index, refused } => {
                self.read_index_confirmed(boot, read_index, index, &refused);
            }
            PeerMessage::StateHash { index, hash } => self.compare_hash(index, from, hash)?,
            PeerMessage::SnapshotChunk { transfer, number, bytes } => {
                let newest = self.config.version;
                // Only the leader sends snapshots. A node that knows no leader yet may receive one.
                if ![0, from].contains(&self.raft.leader()) {
                    self.abort_transfer(from, transfer);
                    return Ok(());
                }
                let answer = match self.incoming.chunk(from, transfer, number, &bytes, newest) {
                    Ok(answer) => answer,
                    Err(version) if from == self.raft.leader() => {
                        return Err(version::too_old(version, newest));
                    }
                    Err(_) => PeerMessage::SnapshotAbort { transfer },
                };
                self.effects.messages.push((from, answer));
            }
            PeerMessage::SnapshotAck { transfer, next } => {
                let Some(leading) = &mut self.leading else { return Ok(()) };
                let (more, done) = leading.outgoing.acked(from, transfer, next, self.now.mono);
                self.effects.messages.extend(more.into_iter().map(|message| (from, message)));
                if done {
                    self.raft.state_sent(from, true);
                }
            }
            PeerMessage::Announce { announcement } => self.take_announcement(from, announcement),
            PeerMessage::Join { member } => self.take_join(from, member),
            PeerMessage::Present { member } => self.take_present(from, member),
            PeerMessage::Leave => self.take_leave(from),
            PeerMessage::Removed { index } => self.take_removed(from, index)?,
            PeerMessage::Health { silent, placed, disk_low, refuses_writes } => {
                self.take_health(from, silent, &placed);
                self.take_room_report(from, disk_low, refuses_writes);
            }
            PeerMessage::DiskLow { low } => self.take_disk_low(from, low),
            PeerMessage::Closing { done } => self.take_closing(from, done),
            PeerMessage::NoLeader { voters, missing } => self.take_no_leader(from, voters, missing),
            PeerMessage::SnapshotAbort { transfer } => {
                self.incoming.abort(from, transfer);
                if let Some(leading) = &mut self.leading
                    && leading.outgoing.abort(from, Some(transfer))
                {
                    self.raft.state_sent(from, false);
                }
            }
        }
        Ok(())
    }

    fn abort_transfer(&mut self, from: NodeId, transfer: u64) {
        self.effects.messages.push((from, PeerMessage::SnapshotAbort { transfer }));
    }

    /// The state of a snapshot is built: steps Raft with its message.
    pub(super) fn take_built(
        &mut self,
        transfer: u64,
        machine: Result<Box<Machine>, String>,
    ) -> Result<(), String> {
        let Some((building, received)) = self.incoming.built(transfer, machine) else {
            return Ok(());
        };
        if received.is_none() {
            self.abort_transfer(building.from, transfer);
            return Ok(());
        }
        self.take_raft(building.from, building.term, &building.body, received)
    }

    /// Steps raft-rs with a message. A snapshot message comes with the received state.
    fn take_raft(
        &mut self,
        from: NodeId,
        term: u64,
        body: &RaftBody,
        received: Option<Received>,
    ) -> Result<(), String> {
        // A message of a leader of a later term counts, also if the sender is not known as a
        // member.
        let leads = matches!(
            body,
            RaftBody::Append { .. } | RaftBody::Heartbeat { .. } | RaftBody::Snapshot { .. }
        );
        if self.serves() && !leads && !self.is_member(from) {
            // The sender may be a former member. Its votes and answers must not count any more.
            self.send_removed(from);
            return Ok(());
        }
        let brings_entries =
            matches!(body, RaftBody::Append { entries, .. } if !entries.is_empty());
        let is_early = matches!(body, RaftBody::Append { .. }) && self.incoming.is_building(from);
        let is_full = self.persistence.is_full() || self.applies_too_late();
        if (brings_entries && is_full) || is_early {
            // Dropped as if lost: the leader sends the entries again.
            return Ok(());
        }
        let raft = &self.raft;
        let view = View {
            id: self.id,
            term: raft.term(),
            leader: raft.leader(),
            is_leader: raft.leads(),
            last_index: raft.last_index(),
            committed: raft.committed(),
            durable: raft.persisted() == raft.last_index(),
            term_at: &|index| raft.term_at(index),
        };
        match guard::check(&view, from, term, body) {
            Ok(()) => {}
            // The node has won without this vote, and has appended entries since.
            Err(Violation::Refused(reason))
                if view.is_leader && matches!(body, RaftBody::VoteResponse { .. }) =>
            {
                tracing::debug!(from = %self.named(from), term, reason, "a vote that comes late");
                return Ok(());
            }
            Err(Violation::Refused(reason)) => {
                tracing::warn!(from = %self.named(from), term, reason, "refused a message");
                return Ok(());
            }
            Err(Violation::DataLost { known, have }) => {
                return Err(format!(
                    "the leader knows this node to have had entry {known}, but its log ends at \
                     {have}: acknowledged data was lost here (a wiped or rolled back disk?)"
                ));
            }
        }
        if *body == RaftBody::TimeoutNow
            && (self.persistence.installing.is_some() || self.refuses_lead(from))
        {
            return Ok(());
        }
        let stepped = match body {
            RaftBody::Heartbeat { context, .. } => self.step_heartbeat(from, term, body, context),
            RaftBody::HeartbeatResponse { .. } => self.step_heartbeat_response(from, term, body),
            _ => self.raft.step(from, term, body),
        };
        if let Err(error) = stepped {
            tracing::debug!(from = %self.named(from), %error, "raft did not take a message");
        }
        if leads && from == self.raft.leader() {
            self.elections.led_at = self.now.mono;
        }
        if let Some(received) = received {
            // Raft may have refused this snapshot, and may have taken another one before.
            let meta = &received.meta;
            if self.raft.takes_state(Position { index: meta.index, term: meta.term }) {
                self.staged = Some(received);
            }
        }
        // The following messages of the same step may be for the leader that this node has become.
        self.observe_leader();
        Ok(())
    }
}
