//! What a node does for its own users: it sends their requests to the leader, and hands the outcomes
//! in the log back to them.

use std::time::Duration;

use crate::machine::command::{
    Applied, Batch, ChangeKind, Command, OpError, Outcome, Reply, Request, SessionChange,
};
use crate::node::io::{ClientRequest, Effects};
use crate::node::leader::admission;
use crate::node::leader::read_index::Asked;
use crate::node::message::PeerMessage;
use crate::node::replica::watches::Fired;
use crate::node::versions::Gate;
use crate::node::{FORWARD_BYTES_MAX, Node, READ_INDEX_PERIOD, sessions};
use crate::planted::{Bug, if_planted, planted, strikes};
use crate::types::acl::AccessList;
use crate::types::error::Error;
use crate::types::quota;
use crate::types::quota::Usage;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

impl Node {
    pub(in crate::node) fn take_request(&mut self, request: ClientRequest) {
        let effects = &mut self.effects;
        match request {
            ClientRequest::Open { request, session, holder, secret, timeout } => {
                let timeout = self.config.timeouts.negotiated(timeout);
                let timeout_ms = sessions::milliseconds(timeout);
                let (owner, base) = (self.id, self.machine.zxid());
                let command = Command::Open { secret, timeout_ms, owner, base };
                self.local.open(request, session, holder, timeout, command, effects);
            }
            ClientRequest::Resume { request, session, holder, secret, timeout } => {
                let (timeout, timeout_ms) = sessions::resumed_with(timeout, self.config.timeouts);
                let command = Command::Resume { secret, timeout_ms, owner: self.id };
                effects.ended.extend(self.replica.watches.end_session(session));
                self.local.open(request, session, holder, timeout, command, effects);
            }
            ClientRequest::Introduce { session, ids } => {
                self.local.introduce(session, ids, effects);
            }
            ClientRequest::Write { request, .. } if strikes(Bug::RefusedUnasked, 97) => {
                effects.reply(request, Err(Error::NoNode { path: String::new() }));
            }
            ClientRequest::Write { request, session, command } => {
                self.local.write(request, session, command, effects);
            }
            ClientRequest::Query { request, session, query } => {
                let zxid = self.machine.zxid();
                if let Some(sync) = self.local.query(request, session, query, zxid, effects) {
                    self.read_index.wait(sync);
                }
            }
            ClientRequest::Abandon { session, state } => {
                let reason = "its holder let go of the session while the write was under way";
                self.local.end_unknown(session, state, reason, effects);
                effects.ended.extend(self.replica.watches.end_session(session));
            }
            ClientRequest::Admin { request, asked } => self.admin_asked(request, &asked),
            ClientRequest::Unwatch { watch } => self.replica.watches.remove(watch),
        }
    }

    pub(in crate::node) fn send_again(&mut self) {
        let now = self.now.mono;
        self.local.send_again(now);
        self.local.renew_again(self.read_index.restart(), now);
    }

    pub(in crate::node) fn send_requests(&mut self) {
        let leader = self.leadership.leader;
        if leader == 0 || (leader == self.id && !self.serves()) {
            return;
        }
        if self.local.has_held_back() {
            self.local.release(self.gate());
        }
        if !self.local.has_unsent() {
            return;
        }
        let requests = self.local.take_unsent(self.gate(), self.now.mono);
        if let Some(leading) = &mut self.leading {
            for request in requests {
                leading.admission.admit(request, &self.machine);
            }
            return;
        }
        let mut bytes = 0;
        let mut part = Vec::new();
        for request in requests {
            bytes += admission::size(&request.command);
            if bytes > FORWARD_BYTES_MAX && !part.is_empty() {
                let requests = std::mem::take(&mut part);
                self.effects.messages.push((leader, PeerMessage::Forward { requests }));
                bytes = admission::size(&request.command);
            }
            part.push(request);
        }
        if !part.is_empty() {
            self.effects.messages.push((leader, PeerMessage::Forward { requests: part }));
        }
    }

    fn gate(&self) -> Gate {
        self.versions.gate(self.machine.version(), self.others(), self.now.mono)
    }

    pub(in crate::node) fn request_read_index(&mut self) {
        let leader = self.leadership.leader;
        let now = self.now.mono;
        let renews = self.local.has_renewals(now);
        if leader == 0
            || !self.read_index.is_due(now, READ_INDEX_PERIOD, renews)
            || (leader == self.id && !self.serves())
        {
            return;
        }
        let sessions = self.local.take_renewals(now, self.read_index.has_waiting());
        let read_index = self.read_index.ask(now, sessions.clone());
        let boot = self.read_index.boot();
        if leader == self.id {
            self.take_read_index(Asked::new(self.id, None, boot, read_index), sessions);
        } else {
            self.effects
                .messages
                .push((leader, PeerMessage::ReadIndex { boot, read_index, sessions }));
        }
    }

    pub(in crate::node) fn read_index_confirmed(
        &mut self,
        boot: u64,
        read_index: u64,
        index: u64,
        refused: &[SessionId],
    ) {
        let Some(read_index) = self.read_index.confirmed(boot, read_index) else {
            return;
        };
        self.metrics.sync.record(self.now.mono.saturating_sub(read_index.sent));
        for session in &read_index.sessions {
            if !refused.contains(session) {
                self.local.renew(*session, read_index.sent, self.now.mono, &mut self.effects);
            }
        }
        for sync in read_index.syncs {
            self.local.synced(sync, index);
        }
        self.read_index.covers(index, read_index.sent);
    }

    /// Brings this node's sessions up to a snapshot that was installed: it stands for entries that
    /// were not applied one by one.
    pub(in crate::node) fn reconcile_sessions(&mut self) {
        for session in self.local.ids() {
            let Some(held) = self.local.get(session) else {
                continue;
            };
            let (holder, open) = (held.holder, held.opened());
            // Whether it may have been opened, and have ended, in what the snapshot stands for.
            let ended = held.was_sent()
                && held.base().is_some_and(|base| self.machine.admits(session, base).is_err());
            match self.machine.session(session) {
                Some(record) if record.holder == holder => {
                    let (now, zxid) = (self.now.mono, self.machine.zxid());
                    let opened = Ok(Reply::Session { timeout_ms: record.timeout_ms });
                    let outcome = |seq, result| Outcome { session, holder, seq, zxid, result };
                    self.local.outcome(&outcome(0, opened), now, zxid, &mut self.effects);
                    let Some(held) = self.local.get(session) else {
                        continue;
                    };
                    for seq in held.applied() + 1..=record.last_seq {
                        if let Some(result) = record.result_of(seq) {
                            let outcome = outcome(seq, result.clone());
                            self.local.outcome(&outcome, now, zxid, &mut self.effects);
                        }
                    }
                }
                // It ended in what the snapshot stands for, and whether its last writes came before
                // that is not recorded any more.
                Some(record) if open || record.was_held_by(holder) => {
                    self.end_unknown(session, SessionState::Moved);
                }
                None if open || ended => self.end_unknown(session, SessionState::Expired),
                // Either the open is still to come in the log, which will answer it. Or it was in the
                // log and the session has ended, and nothing in the snapshot tells the two apart.
                Some(_) | None => self.local.unseen(session),
            }
        }
    }

    pub(in crate::node) fn apply_batch(&mut self, term: u64, batch: Batch) {
        // Which ids a session has when a change happens decides whether it gets the event.
        let authenticates =
            |request: &Request| matches!(request.command, Command::Authenticate { .. });
        // So that an event brings the znode as its write has left it.
        let brings = self.replica.watches.bring_any_data() && !planted(Bug::EventDataLate);
        let at_once = !self.local.has_waits() && !self.replica.clients.has_waits() && !brings;
        if at_once && !batch.requests.iter().any(authenticates) {
            let applied = self.machine.apply(term, &batch);
            self.take_applied(applied);
            return;
        }
        // A read sees what was asked for before it and nothing asked for after it. The state machine
        // treats the requests of a batch one after the other, so that each may be a batch of its own.
        for request in batch.requests {
            let one = Batch { time: batch.time, requests: vec![request] };
            let applied = self.machine.apply(term, &one);
            self.take_applied(applied);
            self.answer_waits();
        }
    }

    pub(in crate::node) fn answer_waits(&mut self) {
        let index = self.raw.store().applied().index;
        let (watches, history) = (&mut self.replica.watches, &self.replica.history);
        self.local.answer_waits(&self.machine, index, watches, history, &mut self.effects);
        self.answer_clients();
    }

    pub(in crate::node) fn take_applied(&mut self, applied: Applied) {
        self.effects.zxid = self.machine.zxid();
        let mut fired = Fired::default();
        for change in &applied.changes {
            let count = match change.kind {
                ChangeKind::Created => &mut self.metrics.znodes_created,
                ChangeKind::DataChanged => &mut self.metrics.znodes_changed,
                ChangeKind::Deleted => &mut self.metrics.znodes_deleted,
            };
            *count += 1;
            self.metrics.count_below(&change.path);
            if let Some(of) = quota::of_stats(&change.path)
                && change.kind == ChangeKind::DataChanged
            {
                let told = self.machine.tree();
                let used = told.get(&change.path).map(|znode| Usage::parse(znode.data()));
                let used = used.unwrap_or_default().to_string();
                tracing::warn!(path = of, used, "a soft quota is overstepped, or kept again");
            }
            let (local, clients) = (&self.local, &self.replica.clients);
            let may_read = |session, acl: Option<&AccessList>| {
                local.may_read(session, acl) || clients.may_read(session, acl)
            };
            self.replica.watches.fire(change, may_read, &mut fired);
        }
        self.deliver(fired);
        self.replica.history.note(applied.changes);
        for outcome in applied.outcomes.into_iter().filter(|_| !strikes(Bug::OutcomeLost, 97)) {
            let session = outcome.session;
            // Once in the cluster: others may apply it much later, or again after a restart.
            let expires = self.leading.is_some() && is_expiry(&outcome);
            self.metrics.sessions_expired += u64::from(expires);
            if outcome.result.is_err()
                && let Some(leading) = &mut self.leading
            {
                leading.admission.refused(session, outcome.holder, &self.machine);
            }
            if matches!(outcome.result, Err(OpError::StaleExpiry)) {
                if let Some(leading) = &mut self.leading {
                    leading.expiry_refused(session);
                }
            } else {
                let (now, zxid) = (self.now.mono, self.machine.zxid());
                self.local.outcome(&outcome, now, zxid, &mut self.effects);
                self.replica.clients.outcome(outcome);
            }
        }
        for change in applied.sessions {
            self.replica.client_session_changed(&self.machine, change, &mut self.effects);
            match change {
                SessionChange::Held(session) => {
                    self.metrics.sessions_opened += 1;
                    let Some(record) = self.machine.session(session) else {
                        continue;
                    };
                    let holder = record.holder;
                    let timeout = Duration::from_millis(u64::from(record.timeout_ms));
                    if let Some(leading) = &mut self.leading {
                        leading.session_held(session, timeout, self.now.mono);
                    }
                    if self
                        .local
                        .get(session)
                        .is_some_and(|held| held.opened() && held.holder != holder)
                    {
                        self.end_local(session, SessionState::Moved);
                    }
                }
                SessionChange::Gone(session, holder) => {
                    self.metrics.sessions_ended += 1;
                    if let Some(leading) = &mut self.leading {
                        leading.session_gone(session);
                    }
                    // Another holder may have resumed it and closed it in one batch.
                    let moved = self
                        .local
                        .get(session)
                        .is_some_and(|held| held.opened() && held.holder != holder);
                    let state = if moved { SessionState::Moved } else { SessionState::Expired };
                    self.end_local(session, state);
                }
            }
        }
    }

    pub(in crate::node) fn end_local(&mut self, session: SessionId, state: SessionState) {
        self.local.end(session, state, &mut self.effects);
        self.end_watches(session);
    }

    fn end_unknown(&mut self, session: SessionId, state: SessionState) {
        let reason = "the session ended while this replica was out of reach";
        self.local.end_unknown(session, state, reason, &mut self.effects);
        self.end_watches(session);
    }

    pub(in crate::node) fn end_watches(&mut self, session: SessionId) {
        self.effects.ended.extend(self.replica.watches.end_session(session));
    }

    pub(in crate::node) fn deliver(&mut self, fired: Fired) {
        let mut events = fired.events;
        let (local, clients) = (&self.local, &self.replica.clients);
        let may_read = |session, acl: Option<&AccessList>| {
            local.may_read(session, acl) || clients.may_read(session, acl)
        };
        self.replica.watches.add_data(&mut events, || self.machine.tree(), may_read);
        if_planted(Bug::EventsOutOfOrder, || events.reverse());
        self.effects.events.extend(events);
        self.effects.ended.extend(fired.ended);
    }
}

/// Whether this is the outcome of an expiry that took effect: the only request that a session's node has not
/// numbered and that has nothing to report. (The leader's own requests have no session.)
fn is_expiry(outcome: &Outcome) -> bool {
    outcome.session != SessionId(0) && outcome.seq == 0 && outcome.result == Ok(Reply::Done)
}

/// Answers a request of one that has stopped.
pub(in crate::node) fn refuse(effects: &mut Effects, request: ClientRequest, reason: &str) {
    let request = match request {
        ClientRequest::Open { request, .. }
        | ClientRequest::Resume { request, .. }
        | ClientRequest::Write { request, .. }
        | ClientRequest::Query { request, .. }
        | ClientRequest::Admin { request, .. } => request,
        ClientRequest::Introduce { .. }
        | ClientRequest::Abandon { .. }
        | ClientRequest::Unwatch { .. } => return,
    };
    let error = Error::Stopped { reason: reason.to_owned() };
    effects.reply(request, Err(error));
}
