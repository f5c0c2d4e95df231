//! How a member handles its clients' messages.

use crate::machine::command::Request;
use crate::node::client_message::{Elsewhere, FromClient, ToClient, UpTo};
use crate::node::io::Holding;
use crate::node::leader::may_ask;
use crate::node::leader::read_index::Asked;
use crate::node::message::{PeerMessage, in_parts};
use crate::node::replica::server::{Asker, CLIENTS_MAX, ServedClient};
use crate::node::sessions::queue::Turn;
use crate::node::{FORWARD_BYTES_MAX, Node};
use crate::types::membership::{Named, NodeId};
use crate::types::path;
use crate::types::znode::SessionId;

impl Node {
    pub(in crate::node) fn take_client_messages(
        &mut self,
        from: NodeId,
        attachment: u64,
        number: u64,
        received: u64,
        messages: Vec<FromClient>,
    ) {
        let now = self.now.mono;
        let mut messages = messages.into_iter();
        if number == 0 {
            let Some(FromClient::Begin { seen, cluster }) = messages.next() else {
                return self.let_go(from, attachment, "it did not begin");
            };
            let served = self.replica.clients.clients.get(&from);
            if served.is_some_and(|client| client.attachment >= attachment) {
                // A late or duplicated message. Beginning again would lose the updates sent since.
                return;
            }
            self.replica.drop_client(from);
            if self.cluster() == 0 {
                return self.let_go(from, attachment, "this member has no cluster yet");
            }
            if cluster != 0 && cluster != self.cluster() {
                return self.let_go(from, attachment, "it is a client of another cluster");
            }
            if self.is_member(from) {
                return self.let_go(from, attachment, "it is a member");
            }
            if self.replica.clients.clients.len() >= CLIENTS_MAX {
                return self.send_elsewhere(from, attachment);
            }
            self.replica.clients.clients.insert(from, ServedClient::new(attachment, seen, now));
        } else {
            let served = self.replica.clients.clients.get_mut(&from);
            let is_next =
                |of: &&mut ServedClient| (of.attachment, of.next_received) == (attachment, number);
            let is_late = served.as_ref().is_some_and(|of| of.attachment > attachment);
            let Some(client) = served.filter(is_next) else {
                if !is_late {
                    self.let_go(from, attachment, "a message was lost");
                }
                return;
            };
            client.next_received += 1;
            client.received_at = now;
            // If the client begins with many messages, each is acknowledged.
            client.awaits_message |= client.beginning.is_some();
            while let Some((sent, bytes)) = client.unacknowledged.front().copied()
                && sent < received
            {
                client.unacknowledged.pop_front();
                client.unacknowledged_bytes -= bytes;
            }
        }
        let mut writes = Vec::new();
        for message in messages {
            if let Err(reason) = self.take_client_message(from, message, &mut writes) {
                tracing::warn!(client = %Named::of(from), reason, "refused a client's request");
                return self.let_go(from, attachment, reason);
            }
        }
        self.pass_on(from, writes);
        let cluster = self.cluster();
        self.replica.begin_client(&self.machine, cluster, from, &mut self.effects);
        self.answer_clients();
    }

    fn take_client_message(
        &mut self,
        from: NodeId,
        message: FromClient,
        writes: &mut Vec<Request>,
    ) -> Result<(), &'static str> {
        let client = self.replica.clients.clients.get_mut(&from).ok_or("it is not served")?;
        if let Some(beginning) = &mut client.beginning
            && !beginning.complete
        {
            match message {
                FromClient::Claim(_) | FromClient::Watch(_) => {
                    beginning.bytes += message.size();
                    beginning.claims.push(message);
                    let claimed = beginning.bytes;
                    if self.replica.clients.claims_too_much(claimed) {
                        return Err("it holds too much");
                    }
                }
                FromClient::Begun => beginning.complete = true,
                _ => return Err("it has not begun yet"),
            }
            return Ok(());
        }
        if client.holds_too_much() {
            return Err("it holds too much");
        }
        let size = message.size();
        match message {
            FromClient::Begin { .. }
            | FromClient::Claim(_)
            | FromClient::Watch(_)
            | FromClient::Begun => {
                return Err("it has begun already");
            }
            FromClient::Write(request) => {
                if !may_ask(from, &request.command) {
                    return Err("a request that a client may not make");
                }
                if request.seq == 0 {
                    let (session, holder) = (request.session, request.holder);
                    self.replica.clients.hold(from, Holding { session, holder });
                }
                writes.push(request);
            }
            FromClient::Query { call, query, read_index } => {
                if query.path().is_some_and(|path| path::validate(path).is_err()) {
                    return Err("an invalid path");
                }
                client.queued_bytes += size;
                let queued = client.queued_bytes;
                if self.replica.clients.asks_too_much(queued) {
                    return Err("it asks for too much at a time");
                }
                let held = self.replica.clients.hold(from, call.holding);
                let asker = Asker { request: call.request, size };
                held.waits.push(asker, call.after, Turn::Query(query), Some(read_index));
                self.replica.clients.waiting.insert(call.holding);
            }
            FromClient::Unwatch { watch } => {
                // The watch may still be among those that the client reported when it began.
                client.disclaim(
                    |claim| matches!(claim, FromClient::Watch(held) if held.watch == watch),
                );
                if let Some((id, _)) = client.watches.get(&watch).copied() {
                    self.replica.watches.remove(id);
                    self.replica.clients.end_watch(id);
                }
            }
            FromClient::Leave { holding } => {
                client.disclaim(|claim| match claim {
                    FromClient::Claim(of) => of.holding == holding,
                    FromClient::Watch(of) => of.holding == holding,
                    _ => false,
                });
                let held = self.replica.clients.sessions.get(&holding);
                if held.is_some_and(|held| held.client == from) {
                    self.replica.end_client_session(holding, &mut self.effects);
                }
            }
            FromClient::ReadIndex { boot, read_index, sessions } => {
                client.awaits_message = true;
                let leader = self.leadership.leader;
                if leader == self.id {
                    let asked = Asked::new(self.id, Some(from), boot, read_index);
                    self.take_read_index(asked, sessions);
                } else if leader != 0 {
                    let message =
                        PeerMessage::ClientReadIndex { client: from, boot, read_index, sessions };
                    self.effects.messages.push((leader, message));
                }
            }
            FromClient::End => self.replica.drop_client(from),
        }
        Ok(())
    }

    /// Forwards writes to the leader. If there is none, the client sends them again when there is.
    fn pass_on(&mut self, client: NodeId, writes: Vec<Request>) {
        let leader = self.leadership.leader;
        if leader == 0 || writes.is_empty() {
            return;
        }
        if leader == self.id {
            return self.take_forwarded(client, writes);
        }
        for requests in in_parts(writes, FORWARD_BYTES_MAX, |of| of.command.size()) {
            self.effects.messages.push((leader, PeerMessage::ClientForward { client, requests }));
        }
    }

    /// The leader has confirmed a client's ReadIndex request.
    pub(in crate::node) fn client_confirmed(
        &mut self,
        from: NodeId,
        boot: u64,
        read_index: u64,
        index: u64,
        refused: Vec<SessionId>,
    ) {
        let clients = &mut self.replica.clients;
        let Some(client) = clients.clients.get_mut(&from) else {
            return;
        };
        for key in &client.sessions {
            if let Some(held) = clients.sessions.get_mut(key) {
                held.waits.confirmed(|of| of <= read_index, index);
            }
        }
        client.send(ToClient::Confirmed { boot, read_index, refused });
        self.answer_clients();
    }

    /// Answers the clients' requests whose turn has come.
    pub(in crate::node) fn answer_clients(&mut self) {
        let applied = self.raft.log().applied().index;
        let time = (self.now.mono, self.config.heartbeat);
        self.replica.answer_clients(&self.machine, applied, time, &mut self.effects);
    }

    /// At the end of a step, sends the clients their updates.
    pub(in crate::node) fn update_clients(&mut self) {
        if self.replica.clients.clients.is_empty() && self.replica.clients.watches.is_empty() {
            return;
        }
        let cluster = self.cluster();
        for client in self.replica.clients.beginning() {
            self.replica.begin_client(&self.machine, cluster, client, &mut self.effects);
        }
        self.answer_clients();
        self.replica.queue_events(&mut self.effects);
        let availability = self.availability();
        self.replica.clients.inform(self.membership.members(), availability);
        let leader = self.leadership.leader;
        let up_to = UpTo { zxid: self.machine.zxid(), version: self.machine.version(), leader };
        self.replica.send_updates(up_to, &mut self.effects);
    }

    /// Refuses a client for which there is no room, and names the other members.
    fn send_elsewhere(&mut self, client: NodeId, attachment: u64) {
        let elsewhere = Elsewhere {
            cluster: self.cluster(),
            members: self.membership.members().to_vec(),
            availability: self.availability(),
            leader: self.leadership.leader,
        };
        let reason = "it serves too many already".to_owned();
        let elsewhere = Some(Box::new(elsewhere));
        let message = PeerMessage::LetGo { attachment, reason, elsewhere };
        self.effects.messages.push((client, message));
    }

    fn let_go(&mut self, client: NodeId, attachment: u64, reason: &str) {
        self.replica.let_go(client, attachment, reason, &mut self.effects);
    }
}
