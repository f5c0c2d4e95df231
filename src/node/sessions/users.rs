//! The node's work for its own users: it sends their requests to the leader, and returns the
//! outcomes from the log to them.

use crate::machine::command::{
    Applied, Batch, ChangeKind, Command, OpError, Outcome, Reply, Request, SessionChange,
};
use crate::node::io::{ClientRequest, Effects, Holding};
use crate::node::leader::read_index::Asked;
use crate::node::message::{PeerMessage, in_parts};
use crate::node::replica::watches::Fired;
use crate::node::sessions::fate::Fate;
use crate::node::versions::Gate;
use crate::node::{FORWARD_BYTES_MAX, Node, READ_INDEX_PERIOD};
use crate::planted::{Bug, if_planted, planted, strikes};
use crate::types::acl::AccessList;
use crate::types::error::Error;
use crate::types::quota;
use crate::types::quota::Usage;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

impl Node {
    pub(in crate::node) fn take_request(&mut self, request: ClientRequest) {
        match request {
            ClientRequest::Write { request, .. } if strikes(Bug::RefusedUnasked, 97) => {
                self.effects.reply(request, Err(Error::NoNode { path: String::new() }));
            }
            ClientRequest::Query { request, session, query } => {
                let zxid = self.machine.zxid();
                self.local.query(request, session, query, zxid, &mut self.effects);
            }
            ClientRequest::Admin { request, asked } => self.admin_asked(request, &asked),
            ClientRequest::Unwatch { watch } => self.replica.watches.remove(watch),
            of_session => {
                if let ClientRequest::Resume { session, .. }
                | ClientRequest::Abandon { session, .. } = of_session
                {
                    self.end_watches(session);
                }
                let (zxid, bounds) = (self.machine.zxid(), self.config.timeouts);
                self.local.take_request(of_session, self.id, zxid, bounds, &mut self.effects);
            }
        }
    }

    pub(in crate::node) fn send_requests(&mut self) {
        let leader = self.leadership.leader;
        if leader == 0 || (leader == self.id && !self.serves()) {
            return;
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
        if requests.is_empty() {
            return;
        }
        for requests in in_parts(requests, FORWARD_BYTES_MAX, |of| of.command.size()) {
            self.effects.messages.push((leader, PeerMessage::Forward { requests }));
        }
    }

    fn gate(&self) -> Gate {
        self.versions.gate(self.machine.version(), self.others(), self.now.mono)
    }

    pub(in crate::node) fn request_read_index(&mut self) {
        let leader = self.leadership.leader;
        if leader == 0 || (leader == self.id && !self.serves()) {
            return;
        }
        let next = self.local.next_read_index(self.now.mono, READ_INDEX_PERIOD);
        let Some((read_index, sessions)) = next else {
            return;
        };
        let boot = self.local.read_index.boot();
        if leader == self.id {
            self.take_read_index(Asked::new(self.id, None, boot, read_index), sessions);
        } else {
            let message = PeerMessage::ReadIndex { boot, read_index, sessions };
            self.effects.messages.push((leader, message));
        }
    }

    pub(in crate::node) fn read_index_confirmed(
        &mut self,
        boot: u64,
        read_index: u64,
        index: u64,
        refused: &[SessionId],
    ) {
        let now = self.now.mono;
        let Some(request) = self.local.read_index.confirmed(boot, read_index) else {
            return;
        };
        self.metrics.sync.record(now.saturating_sub(request.sent));
        self.local.renewed_by(&request, refused, now, &mut self.effects);
        for sync in request.syncs {
            self.local.synced(sync, index);
        }
        self.local.read_index.covers(index, request.sent);
    }

    /// Brings this node's sessions up to an installed snapshot, whose entries were not applied one
    /// by one.
    pub(in crate::node) fn reconcile_sessions(&mut self) {
        let (now, zxid) = (self.now.mono, self.machine.zxid());
        for claim in self.local.claims() {
            let session = claim.holding.session;
            match Fate::of(claim, &self.machine) {
                Fate::Held(_, outcomes) => {
                    for outcome in outcomes {
                        self.local.outcome(&outcome, now, zxid, &mut self.effects);
                    }
                }
                Fate::Over(state) => {
                    let reason = "the session ended while this replica was out of reach";
                    self.local.end_unknown(session, state, reason, &mut self.effects);
                    self.end_watches(session);
                }
                Fate::Unseen => self.local.unseen(session),
            }
        }
    }

    pub(in crate::node) fn apply_batch(&mut self, term: u64, batch: Batch) {
        // The ids of a session at the moment of a change decide whether it gets the event.
        let authenticates =
            |request: &Request| matches!(request.command, Command::Authenticate { .. });
        // Needed so that an event brings the znode as its write has left it.
        let brings = self.replica.watches.bring_any_data() && !planted(Bug::EventDataLate);
        let at_once = !self.local.has_waits() && !self.replica.clients.has_waits() && !brings;
        if at_once && !batch.requests.iter().any(authenticates) {
            let applied = self.machine.apply(term, &batch);
            self.take_applied(applied);
            return;
        }
        // A read sees the writes requested before it and none requested after it. The state machine
        // treats the requests of a batch one after the other, so that each may be a batch of its own.
        for request in batch.requests {
            let one = Batch { time: batch.time, requests: vec![request] };
            let applied = self.machine.apply(term, &one);
            self.take_applied(applied);
            self.answer_waits();
        }
    }

    pub(in crate::node) fn answer_waits(&mut self) {
        let index = self.raft.log().applied().index;
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
                let tree = self.machine.tree();
                let used = tree.get(&change.path).map(|znode| Usage::parse(znode.data()));
                let used = used.unwrap_or_default().to_string();
                tracing::warn!(path = of, used, "a soft quota is exceeded, or no longer exceeded");
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
            // Only on the leader, so once in the cluster: other members may apply it much later, or
            // again after a restart.
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
            let (session, holder, record) = match change {
                SessionChange::Held(session) => {
                    self.metrics.sessions_opened += 1;
                    let Some(record) = self.machine.session(session) else {
                        continue;
                    };
                    (session, record.holder, Some(record))
                }
                SessionChange::Gone(session, holder) => {
                    self.metrics.sessions_ended += 1;
                    (session, holder, None)
                }
            };
            let is_gone = record.is_none();
            let holding = Holding { session, holder };
            self.replica.client_session_changed(holding, is_gone, &mut self.effects);
            if let Some(leading) = &mut self.leading {
                match record {
                    Some(record) => leading.session_held(session, record, self.now.mono),
                    None => leading.session_gone(session),
                }
            }
            // Another holder may have resumed it and closed it in one batch.
            if self.local.is_of_another(session, holder) {
                self.end_local(session, SessionState::Moved);
            } else if is_gone {
                self.end_local(session, SessionState::Expired);
            }
        }
    }

    pub(in crate::node) fn end_local(&mut self, session: SessionId, state: SessionState) {
        self.local.end(session, state, &mut self.effects);
        self.end_watches(session);
    }

    pub(in crate::node) fn end_watches(&mut self, session: SessionId) {
        self.effects.ended.extend(self.replica.watches.end_session(session));
    }

    pub(in crate::node) fn deliver(&mut self, mut fired: Fired) {
        let (local, clients) = (&self.local, &self.replica.clients);
        let may_read = |session, acl: Option<&AccessList>| {
            local.may_read(session, acl) || clients.may_read(session, acl)
        };
        self.replica.watches.add_data(&mut fired.events, || self.machine.tree(), may_read);
        if_planted(Bug::EventsOutOfOrder, || fired.events.reverse());
        fired.add_to(&mut self.effects);
    }
}

/// Whether this is the outcome of an expiry that took effect: the only request of a session that its node
/// has not numbered. (The leader's own requests have no session.)
fn is_expiry(outcome: &Outcome) -> bool {
    outcome.session != SessionId(0) && outcome.seq == 0 && outcome.result == Ok(Reply::Done)
}

/// Answers a request to a node or client that has stopped.
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
