//! How a node takes in what has happened: inputs of its host, and messages of its peers, clients and users.

use super::Node;
use super::io::{Input, Problem};
use super::message::{PeerMessage, RaftBody, in_parts};
use crate::machine::Machine;
use crate::machine::command::Request;
use crate::node::admin::ReplyReceiver;
use crate::node::client_message::{FromClient, Redirect};
use crate::node::leader::read_index::ReceivedReadIndex;
use crate::node::leader::{self, Leading};
use crate::node::raft::guard::{self, GuardInputs, Violation};
use crate::node::raft::log::Position;
use crate::node::raft::snapshot_transfer::ReceivedSnapshot;
use crate::node::replica::server::serve::{AskedOfLeader, Attaching, ClientRead};
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::{FORWARD_BYTES_MAX, versions};
use crate::types::membership::{MEMBERS_MAX, Named, NodeId, is_name};
use crate::types::version;
use crate::types::znode::SessionId;

impl Node {
    pub(super) fn take(&mut self, input: Input) -> Result<(), String> {
        match input {
            Input::Peer { from, message } => {
                self.membership.contacts.received_from(from, &self.raft, self.cx.now.mono);
                self.take_message(from, message)?;
            }
            Input::SeedUnreachable { address, problem } => {
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.unreachable(address, problem);
                }
            }
            Input::Duplicate { reason } => {
                self.membership.contacts.note_duplicate(reason, self.cx.now.mono)
            }
            Input::Authenticated { peer, connection, ids } => {
                self.replica.clients.rights.authenticated(peer, connection, ids);
            }
            Input::Connected { peer, version } => self.connected(peer, version)?,
            Input::Unreachable { peer, problem } => self.unreachable(peer, problem)?,
            Input::Client(request) => self.take_request(request),
            Input::Unwatch(watch) => self.replica.watches.remove(watch),
            Input::AdminEndpoint { address, listens } => {
                self.administration.set_endpoint(address, listens);
            }
            Input::Written { number } => {
                let written = self.raft.persistence.written(number);
                self.settle();
                self.raft.campaign_if_due(&self.membership, &self.cx)?;
                self.bootstrap.written(written, &self.membership.me, &mut self.cx);
            }
            Input::CheckpointDone { index, bytes } => {
                let took = self.raft.checkpoints.age(self.cx.now.mono);
                tracing::info!(node = %self.membership.own_name(), index, bytes, ?took, "a checkpoint");
                self.raft.checkpoints.done(index, bytes, self.cx.now.mono);
            }
            Input::CheckpointDelayed { reason } => {
                self.raft.checkpoints.error = Some(reason);
            }
            Input::Read { from, entries } => {
                if let Some(leading) = &mut self.leading {
                    leading.replication.take_read(from, &entries, &mut self.raft);
                }
            }
            Input::Built { transfer, machine } => self.take_built(transfer, machine)?,
            Input::Rotten { what, below } => {
                tracing::warn!(
                    node = %self.membership.own_name(),
                    what,
                    "what was written to the disk is damaged; a new checkpoint replaces it"
                );
                self.cx.metrics.scrub_errors += 1;
                self.raft.checkpoints.abandon_below(below);
                if let Some(leading) = &mut self.leading {
                    leading.replication.forget_reads();
                }
            }
            Input::DiskSpace { free, total } => {
                self.room.measured(free, total);
                self.room.judge(&self.raft, &self.machine, &self.membership, &mut self.cx);
            }
            Input::LogSpace { free, total } => {
                self.room.measured_log(free, total);
                self.room.judge(&self.raft, &self.machine, &self.membership, &mut self.cx);
            }
            Input::Idle { until } => {
                self.membership.contacts.received_from_all(until);
                self.raft.elections.led_at = until;
                self.local.read_index.covers(self.raft.log().applied().index, until);
                self.local.renew_all(until, self.cx.now.mono, &mut self.cx.effects);
                if let Some(leading) = &mut self.leading {
                    leading.renew_all(&self.machine, until);
                }
            }
            Input::Host(facts) => self.troubles.facts = facts,
            Input::Failed { reason } => return Err(reason),
            Input::Expire { session } => {
                if let Some(leading) = leader::serving(&mut self.leading) {
                    leading.expire(session, &self.machine, self.cx.now.mono);
                }
            }
            Input::Resign => self.resign(),
            Input::Closing { done, resigns } => {
                self.membership.closing.close(done, &self.raft, &mut self.cx);
                if resigns {
                    self.resign();
                }
            }
            Input::Leave => self.membership.leave(&self.raft, self.cx.now.mono)?,
            Input::Hindered(hindrance) => {
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.hinder(hindrance);
                }
            }
            Input::Discovered(discovered) => {
                if let Some(founding) = &mut self.bootstrap.founding {
                    founding.discovered(discovered);
                }
            }
        }
        Ok(())
    }

    fn connected(&mut self, peer: NodeId, version: u16) -> Result<(), String> {
        let cx = &mut self.cx;
        self.membership.contacts.note_peer(peer, None);
        if let Some(founding) = &mut self.bootstrap.founding {
            founding.connected(peer);
        }
        self.membership.versions.connected(peer, version, versions::settled_at(cx));
        self.membership.closing.back(peer);
        self.troubles.connected(peer);
        self.bootstrap.announce_to_connected(peer, &self.membership.me, cx);
        self.membership.ask_to_join(peer, self.bootstrap.joins, &self.raft, cx);
        if peer == self.raft.leader() {
            self.local.send_again(cx.now.mono);
            self.replica.clients.again();
        }
        self.raft.connection_made(peer, &self.membership, cx)
    }

    fn unreachable(&mut self, peer: NodeId, problem: Problem) -> Result<(), String> {
        let cx = &mut self.cx;
        self.membership.contacts.note_peer(peer, Some(problem));
        if let Some(founding) = &mut self.bootstrap.founding {
            founding.lost(peer);
        }
        self.membership.versions.lost(peer);
        if !self.raft.is_member(peer) {
            self.membership.versions.forget(peer);
        }
        self.replica.drop_client(peer);
        self.administration.peer_lost(peer, cx);
        self.membership.closing.gone(peer, cx);
        if let Some(leading) = &mut self.leading {
            leading.replication.lost(peer, &mut self.raft);
        }
        self.raft.connection_lost(peer, &self.membership, cx)
    }

    fn take_request(&mut self, request: ClientRequest) {
        let ClientRequest { id, session, body } = request;
        if matches!(body, RequestBody::Command(_) | RequestBody::Query(_)) {
            self.local.note_request(session, self.cx.now.mono);
        }
        match body {
            RequestBody::Command(_) if strikes!(RefusedUnasked, 97) => {
                let error = crate::types::error::Error::NoNode { path: String::new() };
                self.cx.effects.reply(id, Err(error));
            }
            RequestBody::Query(query) => {
                let zxid = self.machine.zxid();
                self.local.query(id, session, query, zxid, &mut self.cx.effects);
            }
            RequestBody::Admin(asked) => self.gather(ReplyReceiver::User(id), &asked),
            of_log => {
                if matches!(of_log, RequestBody::Begin { .. } | RequestBody::Abandon(_)) {
                    self.end_watches(session);
                }
                let (zxid, bounds) = (self.machine.zxid(), self.cx.config.timeouts);
                let request = ClientRequest { id, session, body: of_log };
                self.local.take_request(request, self.cx.id, zxid, bounds, &mut self.cx.effects);
            }
        }
    }

    fn take_message(&mut self, from: NodeId, message: PeerMessage) -> Result<(), String> {
        if self.replica.clients.has(from) && !message.may_a_client_send() {
            tracing::warn!(from = %self.membership.named(from), "refused a message that a client may not send");
            return Ok(());
        }
        match message {
            PeerMessage::Raft { term, body: ref body @ RaftBody::Snapshot { transfer, .. } } => {
                match self.raft.incoming.build(from, term, body, self.machine.zxid()) {
                    Some(build) => self.cx.effects.disk.push(build),
                    None => self.abort_transfer(from, transfer),
                }
            }
            PeerMessage::Raft { term, body } => self.take_raft(from, term, &body, None)?,
            PeerMessage::Forward { requests } => self.take_forwarded(from, requests),
            PeerMessage::ReadIndex { boot, read_index, sessions } => {
                self.take_read_index(
                    ReceivedReadIndex::new(from, None, boot, read_index),
                    sessions,
                );
            }
            PeerMessage::FromClient { attachment, number, received, messages } => {
                self.take_client_messages(from, attachment, number, received, messages);
            }
            PeerMessage::ClientForward { client, requests } => {
                self.take_forwarded(client, requests)
            }
            PeerMessage::ClientReadIndex { client, boot, read_index, sessions, refused } => {
                let asked = ReceivedReadIndex::new(from, Some(client), boot, read_index);
                self.take_read_index(ReceivedReadIndex { refused, ..asked }, sessions);
            }
            PeerMessage::ClientReadIndexConfirmed { client, boot, read_index, index, refused } => {
                self.client_confirmed(client, boot, read_index, index, refused);
            }
            PeerMessage::AdminRequest { number, cluster, relay, asked, asker } => {
                self.take_admin_request((from, asker), number, cluster, relay, &asked);
            }
            PeerMessage::AdminReply { number, replies } => {
                self.administration.take_reply(from, number, replies, &mut self.cx);
            }
            // These messages are for clients, and this node is no client.
            PeerMessage::ToClient { .. } | PeerMessage::LetGo { .. } => {}
            PeerMessage::ReadIndexConfirmed { boot, read_index, index, refused } => {
                let cx = &mut self.cx;
                self.local.read_index_confirmed(boot, read_index, index, &refused, cx);
            }
            PeerMessage::StateHash { index, hash } => self.compare_hash(index, from, hash)?,
            PeerMessage::SnapshotChunk { transfer, number, bytes } => {
                self.take_chunk(from, (transfer, number), &bytes)?;
            }
            PeerMessage::SnapshotAck { transfer, next } => {
                if let Some(Leading { replication, .. }) = &mut self.leading {
                    replication.acked(from, transfer, next, &mut self.raft, &mut self.cx);
                }
            }
            PeerMessage::Announce { announcement } => {
                let (membership, raft, cx) = (&mut self.membership, &self.raft, &mut self.cx);
                self.bootstrap.take_announcement(from, announcement, membership, raft, cx);
            }
            PeerMessage::Join { member } => {
                let (leading, raft, cx) = (&mut self.leading, &self.raft, &mut self.cx);
                self.membership.take_join(from, member, leading, raft, &self.machine, cx);
            }
            PeerMessage::Present { member } => {
                let (leading, raft, cx) = (&mut self.leading, &self.raft, &mut self.cx);
                self.membership.take_present(from, member, leading, raft, cx);
            }
            PeerMessage::Leave => {
                let (leading, raft, cx) = (&mut self.leading, &self.raft, &mut self.cx);
                self.membership.take_leave(from, leading, raft, cx);
            }
            PeerMessage::Removed { index } => {
                self.membership.take_removed(from, index, &self.raft, &self.cx)?;
            }
            PeerMessage::Health { silent, placed, disk_low, refuses_writes, log_ms, wall_ms } => {
                if from == self.raft.leader() {
                    let (own, now) = (self.membership.own_name(), self.cx.now);
                    self.membership.clocks.received(log_ms, Some(wall_ms), now, own);
                    self.membership.take_health(silent, &placed, self.raft.term());
                    if disk_low.len() <= MEMBERS_MAX {
                        self.note_room(disk_low.into_iter().collect(), refuses_writes);
                    }
                }
            }
            PeerMessage::DiskLow { low } => {
                if self.raft.is_member(from)
                    && let Some(leading) = &mut self.leading
                {
                    leading.members.reports_disk(from, low, self.cx.now.mono);
                }
            }
            PeerMessage::Trouble { text } => {
                if self.raft.is_member(from) {
                    self.troubles.note(from, &text, self.cx.now.mono);
                }
            }
            PeerMessage::Closing { done } => {
                if self.raft.is_member(from) {
                    self.membership.closing.note(from, done, &self.cx);
                    if self.raft.successor() == Some(from) {
                        // It refuses the lead.
                        self.resign();
                    }
                }
            }
            PeerMessage::NoLeader { voters, missing } => {
                self.membership.take_no_leader(from, voters, missing, self.cx.now.mono);
            }
            PeerMessage::SnapshotAbort { transfer } => {
                self.raft.incoming.abort(from, transfer);
                if let Some(leading) = &mut self.leading {
                    leading.replication.aborted(from, Some(transfer), &mut self.raft);
                }
            }
        }
        Ok(())
    }

    fn take_chunk(
        &mut self,
        from: NodeId,
        (transfer, number): (u64, u32),
        bytes: &[u8],
    ) -> Result<(), String> {
        let newest = self.cx.config.version;
        // Only the leader sends snapshots. A node that knows no leader yet may receive one.
        if ![0, from].contains(&self.raft.leader()) {
            self.abort_transfer(from, transfer);
            return Ok(());
        }
        let answer = match self.raft.incoming.chunk(from, transfer, number, bytes, newest) {
            Ok(answer) => answer,
            Err(version) if from == self.raft.leader() => {
                return Err(version::too_old(version, newest));
            }
            Err(_) => PeerMessage::SnapshotAbort { transfer },
        };
        self.cx.send(from, answer);
        Ok(())
    }

    fn abort_transfer(&mut self, from: NodeId, transfer: u64) {
        self.cx.send(from, PeerMessage::SnapshotAbort { transfer });
    }

    /// The state of a snapshot is built: steps Raft with its message.
    fn take_built(
        &mut self,
        transfer: u64,
        machine: Result<Box<Machine>, String>,
    ) -> Result<(), String> {
        let Some((building, received)) = self.raft.incoming.built(transfer, machine) else {
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
        received: Option<ReceivedSnapshot>,
    ) -> Result<(), String> {
        // A message of a leader of a later term counts, also if the sender is not known as a
        // member.
        let leads = matches!(
            body,
            RaftBody::Append { .. } | RaftBody::Heartbeat { .. } | RaftBody::Snapshot { .. }
        );
        if self.serves() && !leads && !self.raft.is_member(from) {
            // The sender may be a former member. Its votes and answers must not count any more.
            self.membership.send_removed(from, &self.raft, &mut self.cx);
            return Ok(());
        }
        let brings_entries =
            matches!(body, RaftBody::Append { entries, .. } if !entries.is_empty());
        let is_early =
            matches!(body, RaftBody::Append { .. }) && self.raft.incoming.is_building(from);
        let is_full = self.raft.persistence.is_full() || self.applies_too_late();
        if (brings_entries && is_full) || is_early {
            // Dropped as if lost: the leader sends the entries again.
            return Ok(());
        }
        let raft = &self.raft;
        let view = GuardInputs {
            id: self.cx.id,
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
                tracing::debug!(from = %self.membership.named(from), term, reason, "a vote that comes late");
                return Ok(());
            }
            Err(Violation::Refused(reason)) => {
                tracing::warn!(from = %self.membership.named(from), term, reason, "refused a message");
                return Ok(());
            }
            Err(Violation::DataLost { known, have }) => {
                return Err(format!(
                    "the leader knows this node to have had entry {known}, but its log ends at \
                     {have}: acknowledged data was lost here (a wiped or rolled back disk?)"
                ));
            }
        }
        if *body == RaftBody::TimeoutNow && self.membership.closing.refuses_lead(from, &mut self.cx)
        {
            return Ok(());
        }
        let stepped = match body {
            RaftBody::Heartbeat { context, .. } => {
                self.raft.take_heartbeat(from, term, body, context, &self.cx)
            }
            RaftBody::Vote { .. } => {
                self.raft.take_vote(from, term, body, &self.membership, &self.cx)
            }
            _ => match &mut self.leading {
                Some(leading) if matches!(body, RaftBody::HeartbeatResponse { .. }) => {
                    let (raft, cx) = (&mut self.raft, &self.cx);
                    leading.replication.step_heartbeat_response(from, term, body, raft, cx)
                }
                _ => self.raft.step(from, term, body),
            },
        };
        if let Err(error) = stepped {
            tracing::debug!(from = %self.membership.named(from), %error, "raft did not take a message");
        }
        if leads && from == self.raft.leader() {
            self.raft.elections.led_at = self.cx.now.mono;
        }
        if let Some(received) = received {
            // Raft may have refused this snapshot, and may have taken another one before.
            let meta = &received.meta;
            if self.raft.takes_state(Position { index: meta.index, term: meta.term }) {
                self.raft.incoming.staged = Some(received);
            }
        }
        // The following messages of the same step may be for the leader that this node has become.
        self.observe_leader();
        Ok(())
    }

    /// Requests of the sessions of a node, or of a client.
    fn take_forwarded(&mut self, from: NodeId, requests: Vec<Request>) {
        if let Some(leading) = &mut self.leading {
            for request in requests {
                leading.take_forwarded(from, request, &self.machine);
            }
        }
    }

    pub(super) fn take_read_index(&mut self, asked: ReceivedReadIndex, sessions: Vec<SessionId>) {
        if let Some(leading) = &mut self.leading {
            leading.take_read_index(asked, sessions, self.cx.now.mono);
        }
    }

    /// raft-rs has confirmed ReadIndex requests: tells those who asked.
    pub(super) fn reads_confirmed(&mut self, context: &[u8], index: u64) {
        let boot = self.local.read_index.boot();
        let Some(leading) = &mut self.leading else { return };
        for asked in leading.reads_confirmed(context, boot) {
            let ReceivedReadIndex { from, client, boot, read_index, refused } = asked;
            if from == self.cx.id {
                match client {
                    Some(client) => self.client_confirmed(client, boot, read_index, index, refused),
                    None => {
                        let cx = &mut self.cx;
                        self.local.read_index_confirmed(boot, read_index, index, &refused, cx);
                    }
                }
                continue;
            }
            let message = match client {
                Some(client) => PeerMessage::ClientReadIndexConfirmed {
                    client,
                    boot,
                    read_index,
                    index,
                    refused,
                },
                None => PeerMessage::ReadIndexConfirmed { boot, read_index, index, refused },
            };
            self.cx.send(from, message);
        }
    }

    fn take_client_messages(
        &mut self,
        from: NodeId,
        attachment: u64,
        number: u64,
        received: u64,
        messages: Vec<FromClient>,
    ) {
        let mut messages = messages.into_iter();
        if number == 0 {
            let Some(FromClient::Begin { seen, cluster, name }) = messages.next() else {
                return self.let_go(from, attachment, "it did not begin");
            };
            let own = self.bootstrap.cluster();
            let refused = if own == 0 {
                Some("this member has no cluster yet")
            } else if cluster != 0 && cluster != own {
                Some("it is a client of another cluster")
            } else if self.raft.is_member(from) {
                Some("it is a member")
            } else if !is_name(&name) {
                Some("its name is too long, or has control characters")
            } else {
                None
            };
            match self.replica.attach(from, attachment, (seen, name), refused, &mut self.cx) {
                Attaching::Begins => {}
                Attaching::Refused => return,
                Attaching::Full => return self.send_redirect(from, attachment),
            }
        } else if !self.replica.comes_next(from, (attachment, number), received, &mut self.cx) {
            return;
        }
        let (mut asked, effects) = (AskedOfLeader::default(), &mut self.cx.effects);
        let taken = self.replica.take_client_messages(from, messages, &mut asked, effects);
        for read in asked.reads {
            self.ask_for_client(from, read);
        }
        if let Err(reason) = taken {
            tracing::warn!(client = %Named::of(from), reason, "refused a client's request");
            return self.let_go(from, attachment, reason);
        }
        self.pass_on(from, asked.writes);
        let (cluster, effects) = (self.bootstrap.cluster(), &mut self.cx.effects);
        self.replica.begin_client(&self.machine, cluster, from, effects);
        self.answer_clients();
    }

    /// Passes a client's ReadIndex request on to the leader.
    fn ask_for_client(&mut self, client: NodeId, read: ClientRead) {
        let ClientRead { boot, read_index, sessions, refused } = read;
        let leader = self.raft.elections.observed.leader;
        if leader == self.cx.id {
            let asked = ReceivedReadIndex::new(self.cx.id, Some(client), boot, read_index);
            self.take_read_index(ReceivedReadIndex { refused, ..asked }, sessions);
        } else if leader != 0 {
            let message =
                PeerMessage::ClientReadIndex { client, boot, read_index, sessions, refused };
            self.cx.send(leader, message);
        }
    }

    /// Forwards writes to the leader. If there is none, the client sends them again when there is.
    fn pass_on(&mut self, client: NodeId, writes: Vec<Request>) {
        let leader = self.raft.elections.observed.leader;
        if leader == 0 || writes.is_empty() {
            return;
        }
        if self.cx.config.audit {
            let clients = &mut self.replica.clients;
            let connection = clients.rights.connection(client);
            for request in &writes {
                clients.passed.pass(client, connection, request, &self.machine);
            }
        }
        if leader == self.cx.id {
            return self.take_forwarded(client, writes);
        }
        for requests in in_parts(writes, FORWARD_BYTES_MAX, |of| of.command.size()) {
            self.cx.send(leader, PeerMessage::ClientForward { client, requests });
        }
    }

    fn client_confirmed(
        &mut self,
        from: NodeId,
        boot: u64,
        read_index: u64,
        index: u64,
        refused: Vec<SessionId>,
    ) {
        self.replica.client_confirmed(from, boot, read_index, index, refused);
        self.answer_clients();
    }

    /// Answers the clients' requests whose turn has come.
    pub(super) fn answer_clients(&mut self) {
        let applied = self.raft.log().applied().index;
        let time = (self.cx.now.mono, self.cx.config.heartbeat);
        self.replica.answer_clients(&self.machine, applied, time, &mut self.cx.effects);
    }

    /// Refuses a client for which there is no room, and names the other members.
    fn send_redirect(&mut self, client: NodeId, attachment: u64) {
        let redirect = Redirect {
            cluster: self.bootstrap.cluster(),
            members: self.membership.members().to_vec(),
            availability: self.availability(),
            leader: self.raft.elections.observed.leader,
        };
        let reason = "it serves too many already".to_owned();
        let redirect = Some(Box::new(redirect));
        self.cx.send(client, PeerMessage::LetGo { attachment, reason, redirect });
    }

    fn let_go(&mut self, client: NodeId, attachment: u64, reason: &str) {
        self.replica.let_go(client, attachment, reason, &mut self.cx.effects);
    }
}
