//! Answers and updates to the clients, and the end of their service.

use std::sync::Arc;
use std::time::Duration;

use super::{BUDGET_BYTES, PendingQuery, SILENCE_TICKS, ServedClient};
use crate::machine::Machine;
use crate::node::client_message;
use crate::node::client_message::{ToClient, UpTo};
use crate::node::io::{Effects, SessionHolder, Time};
use crate::node::message::PeerMessage;
use crate::node::query::{Answer, Query};
use crate::node::replica::Replica;
use crate::node::replica::watches::Fired;
use crate::node::sessions::queue::{Answering, ReplicaProgress, Viewer};
use crate::types::error::Error;
use crate::types::membership::NodeId;

impl Replica {
    /// Answers the clients' requests whose turn has come.
    pub(in crate::node) fn answer_clients(
        &mut self,
        machine: &Machine,
        applied: u64,
        (now, heartbeat): (Time, Duration),
        effects: &mut Effects,
    ) {
        if self.clients.waiting.is_empty() {
            return;
        }
        let tree = machine.tree();
        let mut fired = Fired::default();
        let waiting: Vec<_> = self.clients.waiting.iter().copied().collect();
        let mut unacknowledged = self.clients.unacknowledged_bytes();
        for key in waiting {
            let SessionHolder { session, holder } = key;
            // Only then this replica shows all that was acknowledged before the session was requested.
            let is_open = self.clients.sessions.get(&key).is_some_and(|held| held.opened);
            if !is_open {
                continue;
            }
            let record = machine.session(session).filter(|record| record.holder == holder);
            let last_seq = record.map_or(0, |record| record.last_seq);
            let done = if planted!(ClientReadEarly) { u64::MAX } else { last_seq };
            let progress = ReplicaProgress { done, applied, zxid: tree.zxid() };
            while let Some(held) = self.clients.sessions.get_mut(&key) {
                let Some(client) = self.clients.clients.get_mut(&held.client) else {
                    break;
                };
                if held.waits.is_empty() {
                    self.clients.waiting.remove(&key);
                    break;
                }
                let takes = client.has_turn(unacknowledged, now >= self.clients.turn_at);
                let due = if takes { held.waits.next_due(progress) } else { None };
                let Some((PendingQuery { request, size }, Some(query), _)) = due else {
                    break;
                };
                client.queued_bytes -= size;
                let (from, ids) = (held.client, Arc::clone(&held.ids));
                let answer = self.answer_client(
                    machine,
                    from,
                    query,
                    Viewer { session, ids: &ids },
                    &mut fired,
                );
                if let Some(client) = self.clients.clients.get_mut(&from) {
                    let before = client.outgoing.bytes();
                    client_message::answer(request, answer)
                        .into_iter()
                        .for_each(|update| client.outgoing.push(update));
                    let bytes = client.outgoing.bytes() - before;
                    if unacknowledged >= BUDGET_BYTES / 2 {
                        self.clients.turn_at = now + heartbeat;
                    }
                    unacknowledged += bytes;
                }
            }
        }
        // These events come after those of everything applied so far.
        fired.add_to(effects);
    }

    /// Answers a client's query. A watch that the query sets gets a number of this member.
    fn answer_client(
        &mut self,
        machine: &Machine,
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
        let Replica { watches, history, clients, .. } = self;
        let (tree, of_client) = (&machine.tree(), true);
        let mut answering = Answering { machine, tree, watches, history, fired, of_client };
        let answer = answering.answer(query, viewer);
        if let (Err(_), Some(id)) = (&answer, id) {
            clients.end_watch(id);
        }
        answer
    }

    /// A session now belongs to this holder, or has ended and belonged to it.
    pub(in crate::node) fn client_session_changed(
        &mut self,
        session_holder: SessionHolder,
        gone: bool,
        effects: &mut Effects,
    ) {
        let all = self.clients.holders(session_holder.session);
        let over = all.filter(|(of, held)| held.opened && (gone || *of != session_holder));
        let over: Vec<_> = over.map(|(of, held)| (of, held.client)).collect();
        for (of, client) in over {
            self.end_client_session(of, effects);
            let moved = of != session_holder;
            let ended = ToClient::Ended { session_holder: of, moved, known: true };
            self.clients.send(client, ended);
        }
    }

    /// Ends a client's session and its watches. The client knows that these end.
    pub(super) fn end_client_session(
        &mut self,
        session_holder: SessionHolder,
        effects: &mut Effects,
    ) {
        let Some(held) = self.clients.sessions.get(&session_holder) else {
            return;
        };
        let client = held.client;
        for id in self.watches.clients_of(session_holder.session) {
            if self.clients.watches.get(&id).is_some_and(|(of, _)| *of == client) {
                self.watches.remove(id);
                // Its last events are on their way.
                effects.ended.push(id);
            }
        }
        self.clients.forget(session_holder);
    }

    pub(in crate::node) fn drop_client(&mut self, from: NodeId) {
        let Some(client) = self.clients.clients.remove(&from) else {
            return;
        };
        for (id, _) in client.watches.into_values() {
            self.watches.remove(id);
            self.clients.watches.remove(&id);
        }
        for key in client.sessions {
            if self.clients.sessions.get(&key).is_some_and(|held| held.client == from) {
                self.clients.sessions.remove(&key);
                self.clients.waiting.remove(&key);
            }
        }
    }

    pub(in crate::node) fn drop_silent_clients(
        &mut self,
        now: Time,
        tick: Duration,
        effects: &mut Effects,
    ) {
        let silent = |client: &ServedClient| now >= client.received_at + tick * SILENCE_TICKS;
        self.let_some_go(silent, "it was silent", effects);
    }

    /// Ends the service of a client, which attaches to another member.
    pub(in crate::node) fn let_go(
        &mut self,
        client: NodeId,
        attachment: u64,
        reason: &str,
        effects: &mut Effects,
    ) {
        self.drop_client(client);
        let reason = reason.to_owned();
        let message = PeerMessage::LetGo { attachment, reason, redirect: None };
        effects.messages.push((client, message));
    }

    pub(in crate::node) fn let_all_go(&mut self, reason: &str, effects: &mut Effects) {
        self.let_some_go(|_| true, reason, effects);
    }

    fn let_some_go(
        &mut self,
        which: impl Fn(&ServedClient) -> bool,
        reason: &str,
        effects: &mut Effects,
    ) {
        let some = self.clients.clients.iter().filter(|(_, client)| which(client));
        let some: Vec<_> = some.map(|(id, client)| (*id, client.attachment)).collect();
        for (client, attachment) in some {
            self.let_go(client, attachment, reason, effects);
        }
    }

    /// Queues the events and the ends of the clients' watches.
    pub(super) fn queue_events(&mut self, effects: &mut Effects) {
        for (id, event) in effects.events.extract_if(.., |(id, _)| id.is_client()) {
            if let Some((client, watch)) = self.clients.watches.get(&id).copied() {
                self.clients.send(client, ToClient::Event { watch, event });
            }
        }
        for id in effects.ended.extract_if(.., |id| id.is_client()) {
            if let Some((client, watch)) = self.clients.end_watch(id) {
                self.clients.send(client, ToClient::Over { watch });
            }
        }
    }

    /// Sends each client what has been queued for it. All of it has happened up to `up_to`.
    pub(super) fn send_updates(&mut self, up_to: UpTo, effects: &mut Effects) {
        let mut slow = Vec::new();
        let all = self.clients.unacknowledged_bytes();
        for (id, client) in &mut self.clients.clients {
            if !client.outgoing.is_due() {
                continue;
            }
            if client.is_slow(all) {
                slow.push((*id, client.attachment));
                continue;
            }
            let messages = client.outgoing.take(client.attachment, up_to);
            effects.messages.extend(messages.map(|message| (*id, message)));
        }
        for (client, attachment) in slow {
            self.let_go(client, attachment, "it is too slow for what it watches", effects);
        }
    }
}
