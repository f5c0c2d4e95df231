//! The clients without a replica that this node serves.
//!
//! A client holds its sessions itself: it numbers their writes and keeps them until it learns their
//! outcome ([`client`](crate::node::client)). For everything that needs a replica, it asks one
//! member at a time: to forward its writes and its ReadIndex requests to the leader, to report their
//! outcomes in the log, to answer its queries, and to watch. So a client that moves to another
//! member takes everything with it, and a member that loses a client only drops its tables.
//!
//! Nothing is sent twice and nothing is left out: the messages of a member are numbered, and contain
//! the zxid up to which all events were sent. A client that attaches to a member reports how far it
//! has got. The member answers once its replica has got as far, so no read goes back in time.
//!
//! Memory is bounded. A member serves [`CLIENTS_MAX`] clients, and the queries of each take at most
//! [`QUEUE_BYTES_MAX`]. A client that does not acknowledge what it gets receives no more answers. It
//! is disconnected when its events come to [`UNACKNOWLEDGED_BYTES_MAX`], and may attach again. All
//! clients together have [`BUDGET_BYTES`] for each of queries, unacknowledged messages, and what they
//! report when they attach. Beyond that the member disconnects those that have more than
//! [`SHARE_BYTES`] of it.

mod begin;
mod deliver;
mod outgoing;
mod rights;
pub(in crate::node) mod serve;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::machine::command::{OpError, Outcome, Reply};
use crate::node::client_message::{FromClient, ToClient};
use crate::node::io::{QuorumState, SessionHolder, Time, WatchId};
use crate::node::sessions::audit::PassedWrites;
use crate::node::sessions::queue::QueryQueue;
use crate::node::sessions::rate::RequestRate;
use crate::types::acl;
use crate::types::acl::{AccessList, Id, Permissions};
use crate::types::membership::{Member, NodeId};
use crate::types::znode::{SessionId, Zxid};
use outgoing::Outgoing;
use rights::ClientRights;

/// The most clients that a member serves.
pub(crate) const CLIENTS_MAX: usize = 4096;
/// The most bytes of one client's requests that wait at its member. A client uses at most half of
/// it.
pub(crate) const QUEUE_BYTES_MAX: usize = 4 << 20;
/// The most bytes of what a client reports when it attaches: mostly watches.
pub(crate) const CLAIMS_BYTES_MAX: usize = 16 << 20;
/// The most watches of a client. It sends all of them to the next member when it moves. Their paths take
/// half of [`CLAIMS_BYTES_MAX`].
pub(crate) const WATCHES_MAX: usize = 1 << 16;
/// The most sessions of a client.
const SESSIONS_MAX: usize = 1 << 16;
/// A client with this many unacknowledged bytes gets no answers for now.
const ANSWERS_BYTES_MAX: usize = 2 << 20;
/// A client with this many unacknowledged bytes is disconnected.
const UNACKNOWLEDGED_BYTES_MAX: usize = 16 << 20;
/// About how many bytes of the history a client is sent when it attaches, besides one event for
/// each watch. It is less than the bytes for which a client is disconnected.
const PAST_BYTES_MAX: usize = 2 << 20;
/// How many changes of the history are checked for one attaching client: a tenth of a second's work.
const PAST_CHANGES_MAX: usize = 1 << 24;
/// The most bytes of all clients together, for each of waiting queries, unacknowledged messages, and
/// reports of attaching clients.
const BUDGET_BYTES: usize = 256 << 20;
/// The part of [`BUDGET_BYTES`] that each client may use in any case.
const SHARE_BYTES: usize = BUDGET_BYTES / CLIENTS_MAX;
/// About how many bytes of updates one message carries. A single update may be larger.
const MESSAGE_BYTES: usize = 256 << 10;
/// After this many ticks without a message, a client counts as gone. A live client sends several in
/// that time.
const SILENCE_TICKS: u32 = 20;

#[derive(Debug, Default)]
pub(crate) struct ClientServer {
    clients: BTreeMap<NodeId, ServedClient>,
    pub(in crate::node) rights: ClientRights,
    pub(in crate::node) passed: PassedWrites,
    sessions: BTreeMap<SessionHolder, ClientSession>,
    /// The client of each watch, and the client's number for it.
    watches: BTreeMap<WatchId, (NodeId, u64)>,
    next_watch: u64,
    /// Sessions with queries that wait.
    waiting: BTreeSet<SessionHolder>,
    /// The members as they were last sent to clients.
    members: (Vec<Member>, QuorumState),
    /// When one client is next answered although all of them together are behind: see
    /// [`ServedClient::has_turn`].
    turn_at: Time,
}

#[derive(Debug, Default)]
struct ServedClient {
    attachment: u64,
    /// What its user calls it; empty: nothing.
    name: String,
    /// The number of the next message from it.
    next_received: u64,
    outgoing: Outgoing,
    received_at: Time,
    /// Its claims and watches, until this replica has everything that the client has seen.
    beginning: Option<Beginning>,
    queued_bytes: usize,
    sessions: BTreeSet<SessionHolder>,
    /// Its watches by its own numbers, with the lengths of their paths.
    watches: BTreeMap<u64, (WatchId, usize)>,
    watch_bytes: usize,
    /// Whether it was sent the present members.
    is_informed: bool,
}

#[derive(Debug)]
struct Beginning {
    seen: Zxid,
    claims: Vec<FromClient>,
    bytes: usize,
    complete: bool,
}

#[derive(Debug)]
struct ClientSession {
    client: NodeId,
    /// Whether this replica has seen that the session belongs to this holder.
    opened: bool,
    ids: Arc<Vec<Id>>,
    waits: QueryQueue<PendingQuery>,
    rate: RequestRate,
}

/// The client's request that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct PendingQuery {
    request: u64,
    /// The bytes of its query.
    size: usize,
}

/// Whether one client has too many bytes of something, of which all clients together have `all`.
fn is_too_much(own: usize, most: usize, all: impl FnOnce() -> usize) -> bool {
    own > most || (own > SHARE_BYTES && all() > BUDGET_BYTES)
}

impl ServedClient {
    /// Drops the claims and watches that have ended since it sent them.
    pub(in crate::node) fn disclaim(&mut self, is_over: impl Fn(&FromClient) -> bool) {
        if let Some(beginning) = &mut self.beginning {
            beginning.claims.retain(|claim| !is_over(claim));
        }
    }

    fn new(attachment: u64, (seen, name): (Zxid, String), now: Time) -> ServedClient {
        ServedClient {
            attachment,
            name,
            next_received: 1,
            received_at: now,
            beginning: Some(Beginning { seen, claims: Vec::new(), bytes: 0, complete: false }),
            outgoing: Outgoing::new(),
            ..ServedClient::default()
        }
    }

    /// Whether it has left too much unacknowledged. `all`: the unacknowledged bytes of all clients
    /// together.
    fn is_slow(&self, all: usize) -> bool {
        is_too_much(self.outgoing.bytes(), UNACKNOWLEDGED_BYTES_MAX, || all)
    }

    /// Whether it has more watches or sessions than a client may.
    fn holds_too_much(&self) -> bool {
        self.watches.len() > WATCHES_MAX
            || self.watch_bytes > CLAIMS_BYTES_MAX / 2
            || self.sessions.len() > SESSIONS_MAX
    }

    /// Whether there is room for an answer. `all`: the unacknowledged bytes of all clients
    /// together.
    ///
    /// Answers may take half of the common budget and wait beyond that, so that no client is
    /// disconnected because many ask at once. Clients that acknowledge nothing do not block the others
    /// for good: each heartbeat one client has an `extra` turn.
    fn has_turn(&self, all: usize, extra: bool) -> bool {
        let pending = self.outgoing.bytes();
        pending < ANSWERS_BYTES_MAX && (all < BUDGET_BYTES / 2 || (extra && pending <= SHARE_BYTES))
    }
}

impl ClientServer {
    /// The bytes that were sent to all clients together, or are about to be, and are not
    /// acknowledged.
    fn unacknowledged_bytes(&self) -> usize {
        self.clients.values().map(|client| client.outgoing.bytes()).sum()
    }

    /// Queues an update for a client, if it is served.
    fn send(&mut self, client: NodeId, update: ToClient) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.outgoing.push(update);
        }
    }

    /// The clients that have begun and are not attached yet.
    fn beginning(&self) -> Vec<NodeId> {
        let begun = self.clients.iter().filter(|(_, client)| client.beginning.is_some());
        begun.map(|(id, _)| *id).collect()
    }

    pub(in crate::node) fn count(&self) -> usize {
        self.clients.len()
    }

    /// How many sessions its clients hold.
    pub(in crate::node) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The rate of a session's requests, if one of its clients holds the session, and does not only name it.
    pub(in crate::node) fn rate(&self, session: SessionId) -> Option<RequestRate> {
        let of = self.holders(session).find(|(_, held)| held.opened);
        of.map(|(_, held)| held.rate)
    }

    /// Whether this client holds the session, as this replica has seen.
    fn holds(&self, client: NodeId, session: SessionId) -> bool {
        let mut holders = self.holders(session);
        holders.any(|(_, held)| held.client == client && held.opened) || planted!(StrangerRenews)
    }

    /// The name of the client that holds the session; empty if it has none.
    pub(in crate::node) fn name_of(&self, session: SessionId) -> &str {
        let of = self.holders(session).find(|(_, held)| held.opened);
        let client = of.and_then(|(_, held)| self.clients.get(&held.client));
        client.map_or("", |client| &client.name)
    }

    /// The clients that hold the session, or have held it and do not know yet that they have lost
    /// it.
    fn holders(&self, session: SessionId) -> impl Iterator<Item = (SessionHolder, &ClientSession)> {
        let by = |holder| SessionHolder { session, holder };
        self.sessions
            .range(by(0)..=by(u64::MAX))
            .map(|(session_holder, held)| (*session_holder, held))
    }

    pub(in crate::node) fn has(&self, node: NodeId) -> bool {
        self.clients.contains_key(&node)
    }

    /// Whether a client whose waiting queries take so many bytes asks for too much.
    fn asks_too_much(&self, queued: usize) -> bool {
        let all = || self.clients.values().map(|client| client.queued_bytes).sum::<usize>();
        is_too_much(queued, QUEUE_BYTES_MAX, all)
    }

    pub(in crate::node) fn has_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a client that has sent this many bytes of claims and watches holds too much.
    fn claims_too_much(&self, claimed: usize) -> bool {
        let beginnings = || self.clients.values().filter_map(|client| client.beginning.as_ref());
        let all = || beginnings().map(|beginning| beginning.bytes).sum::<usize>();
        is_too_much(claimed, CLAIMS_BYTES_MAX, all)
    }

    /// Whether a client's session may read a znode of this access list.
    pub(in crate::node) fn may_read(&self, session: SessionId, acl: Option<&AccessList>) -> bool {
        self.holders(session).any(|(_, held)| acl::permits(acl, &held.ids, Permissions::READ))
    }

    /// Has the clients repeat their requests to the leader, since these may be lost.
    pub(in crate::node) fn again(&mut self) {
        for client in self.clients.values_mut() {
            client.outgoing.push(ToClient::Again);
        }
    }

    /// Sends the members and their availability to the clients that do not have the present ones.
    fn inform(&mut self, members: &[Member], availability: QuorumState) {
        if members.is_empty() {
            return;
        }
        let (up_to, could) = &self.members;
        if up_to != members || *could != availability {
            self.members = (members.to_vec(), availability);
            self.clients.values_mut().for_each(|client| client.is_informed = false);
        }
        for client in self.clients.values_mut() {
            if !client.is_informed && client.beginning.is_none() {
                client.is_informed = true;
                let (members, availability) = self.members.clone();
                client.outgoing.push(ToClient::Members { members, availability });
            }
        }
    }

    /// Passes the outcome of a request on, if it is a client's.
    pub(in crate::node) fn outcome(&mut self, outcome: Outcome) {
        let Outcome { session, holder, seq, ref result, .. } = outcome;
        let session_holder = SessionHolder { session, holder };
        let Some(held) = self.sessions.get_mut(&session_holder) else {
            return;
        };
        if seq == 0 && result.is_ok() {
            held.opened = true;
        }
        if let Ok(Reply::Ids(ids)) = result {
            held.ids = Arc::new(ids.clone());
        }
        let refused = seq == 0 && matches!(result, Err(error) if *error != OpError::StaleOpen);
        let client = held.client;
        self.send(client, ToClient::Outcome(outcome));
        if refused {
            self.forget(session_holder);
        }
    }

    /// Forgets a client's session and its queries.
    fn forget(&mut self, session_holder: SessionHolder) {
        let Some(held) = self.sessions.remove(&session_holder) else {
            return;
        };
        self.waiting.remove(&session_holder);
        if let Some(client) = self.clients.get_mut(&held.client) {
            client.sessions.remove(&session_holder);
            let freed: usize = held.waits.askers().map(|asker| asker.size).sum();
            client.queued_bytes -= freed;
        }
    }

    /// Notes that the session is this client's from now on.
    fn hold(&mut self, from: NodeId, session_holder: SessionHolder) -> &mut ClientSession {
        if let Some(client) = self.clients.get_mut(&from) {
            client.sessions.insert(session_holder);
        }
        let held = self.sessions.entry(session_holder).or_insert_with(|| ClientSession {
            client: from,
            opened: false,
            ids: Arc::default(),
            waits: QueryQueue::default(),
            rate: RequestRate::default(),
        });
        if held.client != from {
            // The queries belong to the former client, and get no answer.
            let freed: usize = held.waits.drain().map(|(asker, _, _)| asker.size).sum();
            if let Some(former) = self.clients.get_mut(&held.client) {
                former.queued_bytes -= freed;
            }
            held.client = from;
        }
        held
    }

    /// Ends a watch. Returns its client and the client's number for it.
    fn end_watch(&mut self, id: WatchId) -> Option<(NodeId, u64)> {
        let (of, watch) = self.watches.remove(&id)?;
        if let Some(client) = self.clients.get_mut(&of)
            && let Some((_, bytes)) = client.watches.get(&watch).filter(|(is, _)| *is == id)
        {
            client.watch_bytes -= *bytes;
            client.watches.remove(&watch);
        }
        Some((of, watch))
    }
}
