//! What a member does for its clients.

use std::sync::Arc;

use crate::machine::command::{Reply, Request, SessionChange};
use crate::node::client_message::{Claim, EventOf, FromClient, HeldWatch, ToClient, UpTo};
use crate::node::io::WatchId;
use crate::node::leader::admission;
use crate::node::leader::read_index::Asked;
use crate::node::message::PeerMessage;
use crate::node::query::{Answer, Query};
use crate::node::replica::Replica;
use crate::node::replica::server::{
    Asker, BUDGET_BYTES, Beginning, CLIENTS_MAX, PAST_BYTES_MAX, PAST_CHANGES_MAX, ServedClient,
    TELL_BYTES, may_write, silence,
};
use crate::node::replica::watches::{Fired, Missed};
use crate::node::sessions::queue::{Answering, Progress, Turn, Viewer};
use crate::node::{FORWARD_BYTES_MAX, Node, client_message};
use crate::planted::{Bug, planted, unless};
use crate::types::acl::{AccessList, Permissions};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::znode::SessionId;
use crate::types::{acl, path};

/// What one client was told of the past when it began.
#[derive(Default)]
struct Past {
    bytes: usize,
    changes: usize,
}

impl Past {
    /// Whether so many changes are looked at for one more watch. After too much of it the others
    /// are told as if nothing were known: of what is different by now, or of a gap.
    fn looks_at(&mut self, changes: usize) -> bool {
        self.changes += changes;
        self.bytes <= PAST_BYTES_MAX && self.changes <= PAST_CHANGES_MAX
    }
}

impl Node {
    pub(in crate::node) fn take_client_messages(
        &mut self,
        from: NodeId,
        attachment: u64,
        number: u64,
        heard: u64,
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
                // Late, or come twice: what was told since would not be told again.
                return;
            }
            self.drop_client(from);
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
                return self.let_go(from, attachment, "it serves too many already");
            }
            self.replica.clients.clients.insert(from, ServedClient::new(attachment, seen, now));
        } else {
            let client = self.replica.clients.clients.get_mut(&from);
            let Some(client) =
                client.filter(|client| client.attachment == attachment && client.next == number)
            else {
                if self
                    .replica
                    .clients
                    .clients
                    .get(&from)
                    .is_none_or(|of| of.attachment <= attachment)
                {
                    self.let_go(from, attachment, "a message was lost");
                }
                return;
            };
            client.next += 1;
            client.heard_at = now;
            // A long beginning shows that it is heard.
            client.greeted |= client.beginning.is_some();
            while let Some((said, bytes)) = client.unacknowledged.front().copied()
                && said < heard
            {
                client.unacknowledged.pop_front();
                client.unacknowledged_bytes -= bytes;
            }
        }
        let mut writes = Vec::new();
        for ask in messages {
            if let Err(reason) = self.take_client_message(from, ask, &mut writes) {
                tracing::warn!(client = from, reason, "refused what a client asks for");
                return self.let_go(from, attachment, reason);
            }
        }
        self.pass_on(from, writes);
        self.begin_client(from);
        self.answer_clients();
    }

    fn take_client_message(
        &mut self,
        from: NodeId,
        ask: FromClient,
        writes: &mut Vec<Request>,
    ) -> Result<(), &'static str> {
        let client = self.replica.clients.clients.get_mut(&from).ok_or("it is not served")?;
        if let Some(beginning) = &mut client.beginning
            && !beginning.complete
        {
            match ask {
                FromClient::Claim(_) | FromClient::Watch(_) => {
                    beginning.bytes += ask.size();
                    beginning.claims.push(ask);
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
        let size = ask.size();
        match ask {
            FromClient::Begin { .. }
            | FromClient::Claim(_)
            | FromClient::Watch(_)
            | FromClient::Begun => {
                return Err("it has begun already");
            }
            FromClient::Write(request) => {
                if !may_write(from, &request.command) {
                    return Err("a request that a client may not make");
                }
                if request.seq == 0 {
                    self.replica.clients.hold(from, request.session, request.holder);
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
                let held = self.replica.clients.hold(from, call.session, call.holder);
                let asker = Asker { request: call.request, size };
                held.waits.push(asker, call.after, Turn::Query(query), Some(read_index));
                self.replica.clients.waiting.insert((call.session, call.holder));
            }
            FromClient::Unwatch { watch } => {
                // What it has told of and is not there yet is not to come either.
                client.disclaim(
                    |claim| matches!(claim, FromClient::Watch(held) if held.watch == watch),
                );
                if let Some((id, _)) = client.watches.get(&watch).copied() {
                    self.replica.watches.remove(id);
                    self.replica.clients.end_watch(id);
                }
            }
            FromClient::Leave { session, holder } => {
                client.disclaim(|claim| match claim {
                    FromClient::Claim(of) => (of.session, of.holder) == (session, holder),
                    FromClient::Watch(of) => (of.session, of.holder) == (session, holder),
                    _ => false,
                });
                let held = self.replica.clients.sessions.get(&(session, holder));
                if held.is_some_and(|held| held.client == from) {
                    self.end_client_watches(session, holder);
                    self.replica.clients.forget(session, holder);
                }
            }
            FromClient::ReadIndex { boot, read_index, sessions } => {
                client.greeted = true;
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
            FromClient::End => self.drop_client(from),
        }
        Ok(())
    }

    /// Writes go to the leader. If there is none, they are asked for again when there is.
    fn pass_on(&mut self, client: NodeId, writes: Vec<Request>) {
        let leader = self.leadership.leader;
        if leader == 0 || writes.is_empty() {
            return;
        }
        if leader == self.id {
            for request in writes {
                if let Some(leading) = &mut self.leading {
                    leading.take_forwarded(client, request, &self.machine);
                }
            }
            return;
        }
        let (mut part, mut bytes) = (Vec::new(), 0);
        for request in writes {
            let size = admission::size(&request.command);
            if bytes + size > FORWARD_BYTES_MAX && !part.is_empty() {
                let requests = std::mem::take(&mut part);
                self.effects
                    .messages
                    .push((leader, PeerMessage::ClientForward { client, requests }));
                bytes = 0;
            }
            bytes += size;
            part.push(request);
        }
        self.effects.messages.push((leader, PeerMessage::ClientForward { client, requests: part }));
    }

    /// A client that has begun is attached as soon as this replica has what it has seen.
    fn begin_client(&mut self, from: NodeId) {
        let zxid = self.machine.zxid();
        let Some(client) = self.replica.clients.clients.get_mut(&from) else {
            return;
        };
        let ready = |beginning: &mut Beginning| {
            let caught_up = beginning.seen <= zxid || planted(Bug::ClientSeesOlder);
            beginning.complete && caught_up
        };
        let Some(beginning) = client.beginning.take_if(ready) else {
            return;
        };
        let cluster = self.cluster();
        if let Some(client) = self.replica.clients.clients.get_mut(&from) {
            client.send(ToClient::Cluster { cluster });
        }
        let mut past = Past::default();
        for claim in beginning.claims {
            match claim {
                FromClient::Claim(claim) => self.take_claim(from, claim),
                FromClient::Watch(held) => self.watch_again(from, held, &mut past),
                _ => {}
            }
        }
        if let Some(client) = self.replica.clients.clients.get_mut(&from) {
            client.send(ToClient::Attached);
        }
    }

    /// What has become of a session, as `reconcile_sessions` finds it for the node's own.
    fn take_claim(&mut self, from: NodeId, claim: Claim) {
        let Claim { session, holder, applied, opened, base } = claim;
        let ended = base.is_some_and(|base| self.machine.admits(session, base).is_err());
        let record = self.machine.session(session);
        let ends = |moved| ToClient::Ended { session, holder, moved, known: false };
        let mut updates = Vec::new();
        match record {
            Some(record) if record.holder == holder => {
                let held = self.replica.clients.hold(from, session, holder);
                held.opened = true;
                held.ids = Arc::clone(&record.ids);
                updates.push(ToClient::Held { session, holder, ids: (*record.ids).clone() });
                let outcome = |seq, result| ToClient::Outcome { session, holder, seq, result };
                updates.push(outcome(0, Ok(Reply::Session { timeout_ms: record.timeout_ms })));
                for seq in applied + 1..=record.last_seq {
                    if let Some(result) = record.result_of(seq) {
                        updates.push(outcome(seq, result.clone()));
                    }
                }
            }
            Some(record) if opened || record.was_held_by(holder) => updates.push(ends(true)),
            None if opened || ended => updates.push(ends(false)),
            Some(_) | None => {
                self.replica.clients.hold(from, session, holder);
                updates.push(ToClient::Unseen { session, holder });
            }
        }
        if let Some(client) = self.replica.clients.clients.get_mut(&from) {
            updates.into_iter().for_each(|update| client.send(update));
        }
    }

    fn watch_again(&mut self, from: NodeId, held: HeldWatch, past: &mut Past) {
        let HeldWatch { watch, session, holder, path, kind, existed, from: up_to, data } = held;
        let Some(of) = self.replica.clients.sessions.get(&(session, holder)) else {
            return;
        };
        let ids = Arc::clone(&of.ids);
        let id = self.number_watch(from, watch, path.len());
        let may_read = |acl: Option<&AccessList>| acl::permits(acl, &ids, Permissions::READ);
        let up_to = unless(Bug::ClientWatchFromNow, up_to, self.machine.zxid());
        let (tree, known) = (self.machine.tree(), self.replica.history.after(up_to).ok());
        let known = known.filter(|changes| past.looks_at(changes.len()));
        let missed = Missed { tree: &tree, from: up_to, existed };
        let mut fired = Fired::default();
        let new = (id, path.into(), kind);
        self.replica.watches.add_again(new, session, known, (missed, data), may_read, &mut fired);
        past.bytes += fired.events.iter().map(|(_, event)| event.path.len() + 64).sum::<usize>();
        self.effects.events.append(&mut fired.events);
        self.effects.ended.append(&mut fired.ended);
    }

    /// A number for a client's watch of a path of this length.
    fn number_watch(&mut self, from: NodeId, watch: u64, bytes: usize) -> WatchId {
        let (id, former) = self.replica.clients.number(from, watch, bytes);
        if let Some(former) = former {
            self.replica.watches.remove(former);
        }
        id
    }

    /// A ReadIndex request of a client was confirmed.
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
        if self.replica.clients.waiting.is_empty() {
            return;
        }
        let (applied, tree) = (self.raw.store().applied().index, self.machine.tree());
        let mut fired = Fired::default();
        let waiting: Vec<_> = self.replica.clients.waiting.iter().copied().collect();
        let (mut unacknowledged, now) =
            (self.replica.clients.unacknowledged_bytes(), self.now.mono);
        for key in waiting {
            let (session, holder) = key;
            let record = self.machine.session(session).filter(|record| record.holder == holder);
            let Some(last_seq) = record.map(|record| record.last_seq) else {
                continue;
            };
            let done = if planted(Bug::ClientReadEarly) { u64::MAX } else { last_seq };
            let progress = Progress { done, applied, zxid: tree.zxid() };
            while let Some(held) = self.replica.clients.sessions.get_mut(&key) {
                let Some(client) = self.replica.clients.clients.get_mut(&held.client) else {
                    break;
                };
                if held.waits.is_empty() {
                    self.replica.clients.waiting.remove(&key);
                    break;
                }
                let takes = held.opened
                    && client.takes_answers()
                    && client.has_turn(unacknowledged, now >= self.replica.clients.turn_at);
                let due = if takes { held.waits.next_due(progress) } else { None };
                let Some((Asker { request, size }, Turn::Query(query), _)) = due else {
                    break;
                };
                client.queued_bytes -= size;
                let (from, ids) = (held.client, Arc::clone(&held.ids));
                let answer =
                    self.answer_client(from, query, Viewer { session, ids: &ids }, &mut fired);
                if let Some(client) = self.replica.clients.clients.get_mut(&from) {
                    let before = client.outgoing_bytes;
                    client_message::answer(request, answer)
                        .into_iter()
                        .for_each(|update| client.send(update));
                    let bytes = client.outgoing_bytes - before;
                    if unacknowledged >= BUDGET_BYTES / 2 {
                        self.replica.clients.turn_at = now + self.config.heartbeat;
                    }
                    unacknowledged += bytes;
                }
            }
        }
        // Behind the events of all that was applied by now.
        self.effects.events.append(&mut fired.events);
        self.effects.ended.append(&mut fired.ended);
    }

    /// Answers a client's query. The watch that it sets has a number of this member's own.
    fn answer_client(
        &mut self,
        from: NodeId,
        query: Query,
        viewer: Viewer<'_>,
        fired: &mut Fired,
    ) -> Result<Answer, Error> {
        let watch = query.watch().map(|(watch, path, _)| (watch.0, path.len()));
        let id = watch.map(|(watch, bytes)| self.number_watch(from, watch, bytes));
        let query = match id {
            Some(id) => query.with_watch(id),
            None => query,
        };
        let Replica { watches, history, clients, .. } = &mut self.replica;
        let (machine, tree, of_client) = (&self.machine, &self.machine.tree(), true);
        let mut answering = Answering { machine, tree, watches, history, fired, of_client };
        let answer = answering.answer(query, viewer);
        if let (Err(_), Some(id)) = (&answer, id) {
            clients.end_watch(id);
        }
        answer
    }

    pub(in crate::node) fn client_session_changed(&mut self, change: SessionChange) {
        let (session, holder, gone) = match change {
            SessionChange::Held(session) => {
                let Some(record) = self.machine.session(session) else {
                    return;
                };
                (session, record.holder, false)
            }
            SessionChange::Gone(session, holder) => (session, holder, true),
        };
        let all = self.replica.clients.sessions.range((session, 0)..=(session, u64::MAX));
        let over: Vec<_> = all
            .filter(|((_, of), held)| held.opened && (gone || *of != holder))
            .map(|((_, of), held)| (*of, held.client))
            .collect();
        for (of, client) in over {
            self.end_client_watches(session, of);
            self.replica.clients.forget(session, of);
            if let Some(client) = self.replica.clients.clients.get_mut(&client) {
                let moved = of != holder;
                client.send(ToClient::Ended { session, holder: of, moved, known: true });
            }
        }
    }

    /// The watches of a client's session are over, and the client knows that.
    fn end_client_watches(&mut self, session: SessionId, holder: u64) {
        let Some(held) = self.replica.clients.sessions.get(&(session, holder)) else {
            return;
        };
        let client = held.client;
        for id in self.replica.watches.clients_of(session) {
            if self.replica.clients.watches.get(&id).is_some_and(|(of, _)| *of == client) {
                self.replica.watches.remove(id);
                // Its last events are on their way.
                self.effects.ended.push(id);
            }
        }
    }

    pub(in crate::node) fn drop_client(&mut self, from: NodeId) {
        let Some(client) = self.replica.clients.clients.remove(&from) else {
            return;
        };
        for (id, _) in client.watches.into_values() {
            self.replica.watches.remove(id);
            self.replica.clients.watches.remove(&id);
        }
        for key in client.sessions {
            if self.replica.clients.sessions.get(&key).is_some_and(|held| held.client == from) {
                self.replica.clients.sessions.remove(&key);
                self.replica.clients.waiting.remove(&key);
            }
        }
    }

    pub(in crate::node) fn drop_silent_clients(&mut self) {
        let patience = silence(self.config.tick);
        let now = self.now.mono;
        let silent = |client: &ServedClient| now >= client.heard_at + patience;
        let clients = self.replica.clients.clients.iter();
        let gone: Vec<_> = clients
            .filter(|(_, client)| silent(client))
            .map(|(id, of)| (*id, of.attachment))
            .collect();
        for (client, attachment) in gone {
            self.let_go(client, attachment, "it was silent");
        }
    }

    fn let_go(&mut self, client: NodeId, attachment: u64, reason: &str) {
        self.drop_client(client);
        let reason = reason.to_owned();
        self.effects.messages.push((client, PeerMessage::LetGo { attachment, reason }));
    }

    pub(in crate::node) fn let_all_go(&mut self, reason: &str) {
        let clients = self.replica.clients.clients.iter();
        let all: Vec<_> = clients.map(|(id, client)| (*id, client.attachment)).collect();
        for (client, attachment) in all {
            self.let_go(client, attachment, reason);
        }
    }

    /// The last thing of a step: the clients are told what it has brought.
    pub(in crate::node) fn tell_clients(&mut self) {
        if self.replica.clients.clients.is_empty() && self.replica.clients.watches.is_empty() {
            return;
        }
        let behind: Vec<_> = {
            let clients = self.replica.clients.clients.iter();
            clients.filter(|(_, client)| client.beginning.is_some()).map(|(id, _)| *id).collect()
        };
        behind.into_iter().for_each(|client| self.begin_client(client));
        self.answer_clients();
        for (id, event) in self.effects.events.extract_if(.., |(id, _)| id.is_client()) {
            let of = self.replica.clients.watches.get(&id).copied();
            if let Some((client, watch)) = of
                && let Some(client) = self.replica.clients.clients.get_mut(&client)
            {
                client.send(ToClient::Event { watch, event: EventOf::of(event) });
            }
        }
        for id in self.effects.ended.extract_if(.., |id| id.is_client()) {
            if let Some((client, watch)) = self.replica.clients.end_watch(id)
                && let Some(client) = self.replica.clients.clients.get_mut(&client)
            {
                client.send(ToClient::Over { watch });
            }
        }
        let availability = self.availability();
        self.replica.clients.inform(self.membership.members(), availability);
        let leader = self.leadership.leader;
        let up_to = UpTo { zxid: self.machine.zxid(), version: self.machine.version(), leader };
        let mut slow = Vec::new();
        let all = self.replica.clients.unacknowledged_bytes();
        for (id, client) in &mut self.replica.clients.clients {
            if client.updates.is_empty() && !client.greeted {
                continue;
            }
            if client.is_slow(all) {
                slow.push((*id, client.attachment));
                continue;
            }
            client.greeted = false;
            client.outgoing_bytes = 0;
            let attachment = client.attachment;
            let mut send = |updates: Vec<ToClient>, bytes: usize, up_to: Option<UpTo>| {
                let number = client.said;
                client.said += 1;
                let bytes = bytes + 64;
                client.unacknowledged.push_back((number, bytes));
                client.unacknowledged_bytes += bytes;
                let message = PeerMessage::ToClient { attachment, number, updates, up_to };
                self.effects.messages.push((*id, message));
            };
            let (mut part, mut bytes) = (Vec::new(), 0);
            for update in client.updates.drain(..) {
                let size = update.size();
                if bytes + size > TELL_BYTES && !part.is_empty() {
                    send(std::mem::take(&mut part), bytes, None);
                    bytes = 0;
                }
                bytes += size;
                part.push(update);
            }
            send(part, bytes, Some(up_to));
        }
        for (client, attachment) in slow {
            self.let_go(client, attachment, "it is too slow for what it watches");
        }
    }
}
