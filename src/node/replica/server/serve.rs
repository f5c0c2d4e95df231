//! How a member handles its clients' messages.

use crate::machine::Machine;
use crate::machine::command::Request;
use crate::node::client_message::{FromClient, ToClient, UpTo};
use crate::node::context::Context;
use crate::node::io::{Effects, QuorumState, SessionHolder};
use crate::node::leader::may_ask;
use crate::node::replica::Replica;
use crate::node::replica::server::{CLIENTS_MAX, PendingQuery, ServedClient};
use crate::types::membership::{Member, NodeId};
use crate::types::path;
use crate::types::right::Right;
use crate::types::znode::{SessionId, Zxid};

/// What a client's messages ask of the leader.
#[derive(Default)]
pub(in crate::node) struct AskedOfLeader {
    pub(in crate::node) reads: Vec<ClientRead>,
    pub(in crate::node) writes: Vec<Request>,
}

/// A client's ReadIndex request.
pub(in crate::node) struct ClientRead {
    /// The client's start.
    pub(in crate::node) boot: u64,
    pub(in crate::node) read_index: u64,
    /// The sessions to renew.
    pub(in crate::node) sessions: Vec<SessionId>,
    /// Those that it does not hold here.
    pub(in crate::node) refused: Vec<SessionId>,
}

/// What has become of a client that wants to attach.
pub(in crate::node) enum Attaching {
    Begins,
    Refused,
    /// There is no room for it.
    Full,
}

impl Replica {
    /// A client that has seen everything up to `seen` begins to attach, unless it is refused.
    pub(in crate::node) fn attach(
        &mut self,
        from: NodeId,
        attachment: u64,
        (seen, name): (Zxid, String),
        refused: Option<&str>,
        cx: &mut Context,
    ) -> Attaching {
        let served = self.clients.clients.get(&from);
        if served.is_some_and(|client| client.attachment >= attachment) {
            // A late or duplicated message. Beginning again would lose the updates sent since.
            return Attaching::Refused;
        }
        self.drop_client(from);
        if let Some(reason) = refused {
            self.let_go(from, attachment, reason, &mut cx.effects);
            return Attaching::Refused;
        }
        if self.clients.clients.len() >= CLIENTS_MAX && !self.make_room(from, cx) {
            return Attaching::Full;
        }
        self.clients.clients.insert(from, ServedClient::new(attachment, (seen, name), cx.now.mono));
        Attaching::Begins
    }

    /// Lets a client with a client's credential go, if this one has another. Returns whether there is one.
    fn make_room(&mut self, from: NodeId, cx: &mut Context) -> bool {
        let rights = &self.clients.rights;
        let is_client = |(node, _): &(&NodeId, &ServedClient)| rights.of(**node) == Right::Client;
        let mut served = self.clients.clients.iter();
        let Some((node, client)) =
            served.rfind(is_client).filter(|_| rights.of(from) > Right::Client)
        else {
            return false;
        };
        let (node, attachment) = (*node, client.attachment);
        self.let_go(node, attachment, "an operator or a member needs its place", &mut cx.effects);
        true
    }

    /// A client has sent another message, and has `received` those before that number. Returns whether it is
    /// the one that comes next.
    pub(in crate::node) fn comes_next(
        &mut self,
        from: NodeId,
        (attachment, number): (u64, u64),
        received: u64,
        cx: &mut Context,
    ) -> bool {
        let served = self.clients.clients.get_mut(&from);
        let is_next =
            |of: &&mut ServedClient| (of.attachment, of.next_received) == (attachment, number);
        let is_late = served.as_ref().is_some_and(|of| of.attachment > attachment);
        let Some(client) = served.filter(is_next) else {
            if !is_late {
                self.let_go(from, attachment, "a message was lost", &mut cx.effects);
            }
            return false;
        };
        client.next_received += 1;
        client.received_at = cx.now.mono;
        // If the client begins with many messages, each is acknowledged.
        client.outgoing.is_awaited |= client.beginning.is_some();
        client.outgoing.acknowledged(received);
        true
    }

    /// Takes in a client's requests.
    ///
    /// # Errors
    /// Why the client is not served any longer. What it has asked of the leader before that still counts,
    /// except writes.
    pub(in crate::node) fn take_client_messages(
        &mut self,
        from: NodeId,
        messages: impl Iterator<Item = FromClient>,
        asked: &mut AskedOfLeader,
        effects: &mut Effects,
    ) -> Result<(), &'static str> {
        for message in messages {
            self.take_client_message(from, message, asked, effects)?;
        }
        Ok(())
    }

    fn take_client_message(
        &mut self,
        from: NodeId,
        message: FromClient,
        asked: &mut AskedOfLeader,
        effects: &mut Effects,
    ) -> Result<(), &'static str> {
        let client = self.clients.clients.get_mut(&from).ok_or("it is not served")?;
        if let Some(beginning) = &mut client.beginning
            && !beginning.complete
        {
            match message {
                FromClient::Claim(_) | FromClient::Watch(_) => {
                    beginning.bytes += message.size();
                    beginning.claims.push(message);
                    let claimed = beginning.bytes;
                    if self.clients.claims_too_much(claimed) {
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
        let (size, now) = (message.size(), client.received_at);
        match message {
            FromClient::Begin { .. }
            | FromClient::Claim(_)
            | FromClient::Watch(_)
            | FromClient::Begun => {
                return Err("it has begun already");
            }
            FromClient::Write(mut request) => {
                self.clients.rights.vouch(from, &mut request);
                if !may_ask(from, &request) {
                    return Err("a request that a client may not make");
                }
                let (session, holder) = (request.session, request.holder);
                let session_holder = SessionHolder { session, holder };
                if request.seq == 0 {
                    self.clients.hold(from, session_holder);
                }
                let held = self.clients.sessions.get_mut(&session_holder);
                if let Some(held) = held.filter(|held| held.client == from) {
                    held.rate.note(now);
                }
                asked.writes.push(request);
            }
            FromClient::Query { call, query, read_index } => {
                if query.path().is_some_and(|path| path::validate(path).is_err()) {
                    return Err("an invalid path");
                }
                client.queued_bytes += size;
                let queued = client.queued_bytes;
                if self.clients.asks_too_much(queued) {
                    return Err("it asks for too much at a time");
                }
                let held = self.clients.hold(from, call.session_holder);
                let asker = PendingQuery { request: call.request, size };
                held.rate.note(now);
                held.waits.push(asker, call.after, Some(query), Some(read_index));
                self.clients.waiting.insert(call.session_holder);
            }
            FromClient::Unwatch { watch } => {
                // The watch may still be among those that the client reported when it began.
                client.disclaim(
                    |claim| matches!(claim, FromClient::Watch(held) if held.watch == watch),
                );
                if let Some((id, _)) = client.watches.get(&watch).copied() {
                    self.watches.remove(id);
                    self.clients.end_watch(id);
                }
            }
            FromClient::Leave { session_holder } => {
                client.disclaim(|claim| match claim {
                    FromClient::Claim(of) => of.session_holder == session_holder,
                    FromClient::Watch(of) => of.session_holder == session_holder,
                    _ => false,
                });
                let held = self.clients.sessions.get(&session_holder);
                if held.is_some_and(|held| held.client == from) {
                    self.end_client_session(session_holder, effects);
                }
            }
            FromClient::ReadIndex { boot, read_index, sessions } => {
                client.outgoing.is_awaited = true;
                // Its id alone proves nothing: whoever held a session before knew the holder's number.
                let (sessions, refused) =
                    sessions.into_iter().partition(|session| self.clients.holds(from, *session));
                asked.reads.push(ClientRead { boot, read_index, sessions, refused });
            }
            FromClient::End => self.drop_client(from),
        }
        Ok(())
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
        let clients = &mut self.clients;
        let Some(client) = clients.clients.get_mut(&from) else {
            return;
        };
        for key in &client.sessions {
            if let Some(held) = clients.sessions.get_mut(key) {
                held.waits.confirmed(|of| of <= read_index, index);
            }
        }
        client.outgoing.push(ToClient::Confirmed { boot, read_index, refused });
    }

    /// Whether it has clients, or watches of theirs.
    pub(in crate::node) fn has_clients(&self) -> bool {
        !self.clients.clients.is_empty() || !self.clients.watches.is_empty()
    }

    /// Attaches the clients for which this replica has enough by now.
    pub(in crate::node) fn begin_clients(
        &mut self,
        machine: &Machine,
        cluster: u64,
        effects: &mut Effects,
    ) {
        for client in self.clients.beginning() {
            self.begin_client(machine, cluster, client, effects);
        }
    }

    /// At the end of a step, sends the clients their updates.
    pub(in crate::node) fn update_clients(
        &mut self,
        members: &[Member],
        availability: QuorumState,
        up_to: UpTo,
        effects: &mut Effects,
    ) {
        self.queue_events(effects);
        self.clients.inform(members, availability);
        self.send_updates(up_to, effects);
    }
}
