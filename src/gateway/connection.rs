//! One client: its pending requests, its watches, and the order of its replies and events.
//!
//! Replies are sent in the order of the requests. An event is sent before every reply that may show its
//! change, and after every reply that does not. The zxids of both decide that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::GatewayBuilder;
use super::authentication::Authenticator;
use super::convert;
use super::counts::{LastReply, PacketCounts};
use super::ending::Ending;
use super::memory::Memory;
use super::output::{Output, SHARED_BYTES};
use super::waiting::{Part, REPLY_BYTES_MAX, RequestKind, WaitingRequest};
use super::watches::Watches;
use super::wire::codes::{ErrorCode, OpCode, SYNC_CONNECTED};
use super::wire::jute::Jute;
use super::wire::response::{DataReply, ReplyHeader, WatcherEvent, append_reply};
use crate::api::support::{
    Answer, Ask, CONFIG, Delivery, Input, NodeShared, Query, Recipient, RequestBody, RequestOrigin,
    SessionShared, SharedEvent, Tree, WatchId,
};
use crate::types::acl::Id;
use crate::types::error::{Error, Result};
use crate::types::session::SessionState;
use crate::types::watch::EventKind;
use crate::types::znode::{Stat, Zxid};

/// How many requests of a client may be pending. Further requests are not read before one of these
/// is replied to.
const WAITING_MAX: usize = 128;
/// The same limit for the bytes of requests in flight, and of replies that wait for their turn.
const WAITING_BYTES: usize = 4 << 20;
/// If a client leaves so many bytes unread, nothing more is written for it.
const UNREAD_BYTES: usize = 64 << 10;
/// If so many bytes of events wait for a client, it is disconnected: events come without requests,
/// so nothing else limits them.
const EVENTS_BYTES: usize = 16 << 20;
/// A larger queue is freed when it is empty.
const EVENTS_KEPT: usize = 64;

pub(super) struct ClientConnection {
    pub(super) recipient: Recipient,
    pub(super) shared: Arc<NodeShared>,
    pub(super) from: IpAddr,
    /// The port that the client has at that address.
    pub(super) port: u16,
    /// Whether access lists do not apply to it.
    pub(super) skips_acl: bool,
    /// Its id by its certificate.
    pub(super) certified: Option<Id>,
    /// The id that makes a super user.
    pub(super) super_user: Option<Id>,
    /// Set by the handshake.
    pub(super) session: Option<Arc<SessionShared>>,
    pub(super) resumed: bool,
    /// The tree that it reads without a quorum, when its session is not one of the cluster: see
    /// `read_only`.
    pub(super) reads_alone: Option<Arc<Tree>>,
    pub(super) waiting: VecDeque<WaitingRequest>,
    waiting_bytes: usize,
    /// How many requests have been replied to.
    replied: u64,
    /// For each expected answer, the request and the part of it.
    asked: BTreeMap<u64, (u64, usize)>,
    /// The expected answers that show `/zookeeper/config`.
    of_config: BTreeSet<u64>,
    next_number: u64,
    events: VecDeque<(WatchId, Arc<SharedEvent>)>,
    /// As if no other client waited for the same events.
    events_bytes: usize,
    pub(super) watches: Watches,
    /// The zxid of the last write that this client may have seen.
    pub(super) zxid: Zxid,
    pub(super) out: Output,
    memory: Arc<Memory>,
    pub(super) packet_bytes_max: usize,
    /// When the client last sent a packet that keeps its session alive.
    pub(super) last_received: Duration,
    /// When the present request arrived.
    pub(super) arrived: Duration,
    authenticator: Authenticator,
    /// The xid of the request whose credentials are being checked. Later requests wait, since they may
    /// need the ids.
    authenticating: Option<(i32, Arc<()>)>,
    /// The op of the last request taken, and its bytes.
    pub(super) op: i32,
    pub(super) request_bytes: usize,
    /// The counts that the server has not taken yet.
    pub(super) counts: PacketCounts,
    /// Why no more requests are taken: the connection ends when everything is sent.
    closing: Option<Ending>,
    /// Why the connection ends now.
    ended: Option<Ending>,
}

impl ClientConnection {
    pub(super) fn new(
        recipient: Recipient,
        shared: Arc<NodeShared>,
        from: SocketAddr,
        settings: &GatewayBuilder,
        authenticator: Authenticator,
        memory: Arc<Memory>,
        now: Duration,
    ) -> ClientConnection {
        ClientConnection {
            recipient,
            shared,
            from: from.ip(),
            port: from.port(),
            skips_acl: settings.skips_acl,
            certified: None,
            super_user: settings.super_user(),
            session: None,
            resumed: false,
            reads_alone: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            replied: 0,
            asked: BTreeMap::new(),
            of_config: BTreeSet::new(),
            next_number: 0,
            events: VecDeque::new(),
            events_bytes: 0,
            watches: Watches::default(),
            zxid: 0,
            out: Output::default(),
            memory,
            packet_bytes_max: settings.packet_bytes_max,
            last_received: now,
            arrived: now,
            authenticator,
            authenticating: None,
            op: OpCode::CreateSession.into(),
            request_bytes: 0,
            counts: PacketCounts::default(),
            closing: None,
            ended: None,
        }
    }

    /// Ends the connection now. The first reason counts.
    pub(super) fn end(&mut self, why: Ending) {
        self.ended.get_or_insert(why);
    }

    /// Takes no more requests, and ends the connection when everything is sent. The first reason counts.
    pub(super) fn close(&mut self, why: Ending) {
        self.closing.get_or_insert(why);
    }

    /// Whether the connection ends now.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Why the connection ends. Once it was going to end, a failure of its socket is not the reason.
    pub(super) fn ending(&self) -> Option<&Ending> {
        self.closing.as_ref().or(self.ended.as_ref())
    }

    /// Whether further requests may be taken.
    pub(super) fn takes_requests(&self) -> bool {
        self.closing.is_none()
            && self.ended.is_none()
            && self.authenticating.is_none()
            && self.waiting.len() < WAITING_MAX
            && self.waiting_bytes < WAITING_BYTES
            && !self.waits_for_last()
            && self.out.len() < UNREAD_BYTES
    }

    /// Whether its last reply was sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_ended()
            || (self.closing.is_some() && self.waiting.is_empty() && self.out.is_empty())
    }

    /// How many of its `sync` requests have no reply yet.
    pub(super) fn syncs(&self) -> usize {
        self.waiting.iter().filter(|waiting| waiting.kind == RequestKind::Sync).count()
    }

    /// Queues a request whose reply has this many parts.
    pub(super) fn expect(
        &mut self,
        xid: i32,
        kind: RequestKind,
        parts: usize,
        reply: impl FnOnce(&mut ClientConnection, i32, Vec<Option<Part>>) + Send + 'static,
    ) {
        let request = (xid, self.op, self.request_bytes);
        let waiting = WaitingRequest::new(request, self.arrived, kind, parts, Box::new(reply));
        self.waiting_bytes += waiting.bytes;
        self.waiting.push_back(waiting);
    }

    /// Replies in the request's turn, without asking the node.
    pub(super) fn reply_in_turn(
        &mut self,
        xid: i32,
        reply: impl FnOnce(&mut ClientConnection, i32) + Send + 'static,
    ) {
        self.expect(xid, RequestKind::Other, 0, move |own, xid, _| reply(own, xid));
    }

    /// Asks the node for what the reply to a request has. An error is replied with its code.
    pub(super) fn ask<T: 'static>(
        &mut self,
        xid: i32,
        kind: RequestKind,
        ask: Ask<T>,
        reply: impl FnOnce(&mut ClientConnection, i32, T) + Send + 'static,
    ) {
        self.ask_or(xid, kind, ask, move |own, xid, answer| match answer {
            Ok(answer) => reply(own, xid, answer),
            Err(error) => own.refuse(xid, &error),
        });
    }

    /// As [`Self::ask`], with a reply of its own to an error.
    pub(super) fn ask_or<T: 'static>(
        &mut self,
        xid: i32,
        kind: RequestKind,
        ask: Ask<T>,
        reply: impl FnOnce(&mut ClientConnection, i32, Result<T>) + Send + 'static,
    ) {
        if self.session.is_none() {
            return;
        }
        let (body, read) = ask.split();
        let watch = query(&body).and_then(Query::watch).map(|(watch, ..)| watch);
        self.expect(xid, kind, 1, move |own, xid, parts| {
            // It has one part, and is replied to when that has arrived.
            if let Some((_, answer)) = parts.into_iter().flatten().next() {
                let answer = answer.and_then(read);
                match (&answer, watch) {
                    (Err(_), Some(watch)) => own.watches.forget(watch),
                    (Err(_), None) => {}
                    (Ok(_), watch) => own.watch_set(watch),
                }
                reply(own, xid, answer);
            }
        });
        self.ask_part(0, body);
    }

    /// A znode's data, which may be null, and its stat, for a reply.
    pub(super) fn data(&self, (data, stat): (Option<Arc<[u8]>>, Stat)) -> DataReply {
        let data = data.map(|data| match data.len() < SHARED_BYTES {
            true => Bytes::copy_from_slice(&data),
            false => Bytes::from_owner(self.memory.share(&data)),
        });
        DataReply { data, stat: convert::stat(&stat) }
    }

    /// About how many bytes wait for the client, as if it shared none of them with others.
    pub(super) fn weight(&self) -> usize {
        self.out.len() + self.waiting_bytes + self.events_bytes
    }

    /// About how many bytes wait for the client alone.
    pub(super) fn own_bytes(&self) -> usize {
        let shared: usize = self.waiting.iter().map(WaitingRequest::shared).sum();
        let events = self.events.len() * size_of::<(WatchId, Arc<SharedEvent>)>();
        self.out.own() + self.waiting_bytes.saturating_sub(shared) + events
    }

    /// Sends a part of the request queued last to the node.
    pub(super) fn ask_part(&mut self, part: usize, body: RequestBody) {
        let Some(session) = self.session.clone() else { return };
        let watch = query(&body).and_then(Query::watch).map(|(watch, path, kind)| {
            self.watches.ask(watch, Arc::clone(path), kind);
            watch
        });
        if let Some(tree) = self.reads_alone.clone() {
            return self.ask_alone(part, body, &tree);
        }
        let last = self.replied + self.waiting.len() as u64 - 1;
        self.next_number += 1;
        self.asked.insert(self.next_number, (last, part));
        if query(&body).and_then(Query::path).is_some_and(|path| **path == *CONFIG) {
            self.of_config.insert(self.next_number);
        }
        let origin = match body {
            RequestBody::Begin { .. } => RequestOrigin::Opener(session),
            _ => RequestOrigin::Holder(session),
        };
        let to = (self.recipient.clone(), self.next_number);
        self.shared.ask_at(to, origin, body, watch);
    }

    /// Checks credentials, or requests their check if it takes long.
    pub(super) fn check_credentials(&mut self, xid: i32, scheme: String, credentials: &[u8]) {
        if !self.shared.schemes.takes_long(&scheme) {
            let ids = self.shared.schemes.authenticate(&scheme, credentials);
            return self.authenticated(xid, ids);
        }
        let (asker, of) = (Arc::new(()), self.recipient.clone());
        match self.authenticator.check(of, self.from, &asker, scheme, credentials) {
            Ok(()) => self.authenticating = Some((xid, asker)),
            Err(error) => self.authenticated(xid, Err(error)),
        }
    }

    /// Answers a part of the request queued last without the node.
    pub(super) fn answer_now(&mut self, part: usize, answer: Result<Answer>) {
        if let Some(last) = self.waiting.back_mut() {
            let before = last.bytes;
            last.take(part, (self.zxid, answer), &self.memory);
            self.waiting_bytes = self.waiting_bytes - before + last.bytes;
            self.ended = self.ended.take().or(last.too_long());
        }
    }

    /// Whether requests after the last one wait for it. None of the reads of a multiRead may show their effects,
    /// and a sync, alone or for the first packet, would let later writes overtake it, and the reads behind it show
    /// them. Nothing is sent while watches are set again. Requests that walk the tree are done one at a time, so that
    /// other clients have their turn, and so are long lists, so that a client does not receive many at once.
    fn waits_for_last(&self) -> bool {
        self.waiting.back().is_some_and(|last| match last.kind {
            RequestKind::Connect => !planted!(TakenBeforeGreeting),
            RequestKind::Sync => last.missing > 0 && !planted!(SyncOvertaken),
            RequestKind::MultiRead | RequestKind::SetWatches | RequestKind::LongList => {
                last.missing > 0
            }
            RequestKind::Walk => true,
            RequestKind::Other => false,
        })
    }

    /// Sends the next parts of the request queued last, if they are not sent all at once.
    pub(super) fn ask_on(&mut self) {
        while self.ended.is_none()
            && let Some(last) = self.waiting.back_mut()
            && let Some((part, body)) = last.next_part()
        {
            match body {
                Some(body) => self.ask_part(part, body),
                None => self.answer_now(part, Err(Error::NoNode { path: String::new() })),
            }
        }
    }

    /// Takes a message from the node.
    pub(super) fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Answer { number, zxid, mut answer } => {
                if self.of_config.remove(&number) {
                    answer = answer.map(convert::without_members);
                }
                let Some((request, part)) = self.asked.remove(&number) else { return };
                let place = (request - self.replied) as usize;
                let Some(waiting) = self.waiting.get_mut(place) else { return };
                let before = waiting.bytes;
                waiting.take(part, (zxid, answer), &self.memory);
                self.waiting_bytes = self.waiting_bytes - before + waiting.bytes;
                self.ended = self.ended.take().or(waiting.too_long());
                self.ask_on();
            }
            Delivery::Authenticated(ids) => {
                if let Some((xid, _)) = self.authenticating.take() {
                    self.authenticated(xid, ids);
                }
            }
            // After the end of the session no more requests are taken; existing answers are still
            // sent.
            Delivery::State(state) => {
                let goes_on = state == SessionState::Moved && planted!(MovedGoesOn);
                if state.is_final() && state != SessionState::Closed && !goes_on {
                    let is_opened = self.replied > 0;
                    self.close(if is_opened {
                        Ending::SessionOver
                    } else {
                        Ending::SessionUnknown
                    });
                }
            }
        }
    }

    /// Takes an event, in the order of the changes: what several watches have missed comes watch by watch, and
    /// waits for the last of them.
    pub(super) fn take_event(&mut self, watch: WatchId, event: Arc<SharedEvent>) {
        self.events_bytes += event.bytes();
        let place = |of: &SharedEvent| (of.zxid, of.position);
        let later = self.events.iter().rev();
        let later = later.take_while(|(_, queued)| place(queued) > place(&event)).count();
        let later = unless!(MissedUnordered, later, 0);
        self.events.insert(self.events.len() - later, (watch, event));
    }

    /// Its session is closed. A client is not notified of changes after that.
    pub(super) fn forget_events(&mut self) {
        self.events.clear();
        self.events_bytes = 0;
    }

    /// Writes all replies and events whose turn has come. Called when all messages of a step of the node
    /// are taken; `zxid` is the last write that the node has applied by then.
    pub(super) fn flush(&mut self, zxid: Zxid, now: Duration) {
        while !self.sets_watches()
            && let Some(at) = self.next_reply_at()
        {
            self.send_events(unless!(EventBehindReply, at, 0));
            if !self.has_room() {
                break;
            }
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.zxid = self.zxid.max(at);
            self.replied += 1;
            let WaitingRequest { xid, op, arrived, bytes, reply, parts, .. } = waiting;
            self.waiting_bytes -= bytes;
            reply(self, xid, parts);
            let latency = now.saturating_sub(arrived);
            self.counts.replied(LastReply { op, xid, zxid: self.zxid, at: now, latency });
        }
        // Later answers show a state that has the changes of all these events.
        if !self.sets_watches() {
            self.send_events(Zxid::MAX);
        }
        if self.waiting.is_empty() && self.events.is_empty() && self.reads_alone.is_none() {
            self.zxid = self.zxid.max(zxid);
        }
        if self.events_bytes > EVENTS_BYTES {
            let (bytes, limit) = (self.events_bytes, EVENTS_BYTES);
            self.end(Ending::EventsUnread { bytes, limit });
        }
    }

    /// The zxid of the state that the reply to the first request shows, if all its answers have
    /// arrived.
    fn next_reply_at(&self) -> Option<Zxid> {
        let first = self.waiting.front().filter(|first| first.missing == 0)?;
        let zxids = first.parts.iter().flatten().map(|(zxid, _)| *zxid);
        Some(zxids.max().unwrap_or(self.zxid))
    }

    fn has_room(&self) -> bool {
        self.ended.is_none() && self.out.len() < unless!(UnreadUnbounded, UNREAD_BYTES, usize::MAX)
    }

    /// Whether watches are being set again. The node may answer for some of them in one step and for others in the
    /// next; only then is it known which of the missed changes is the first.
    fn sets_watches(&self) -> bool {
        let last = self.waiting.back().filter(|last| last.missing > 0);
        last.is_some_and(|last| last.kind == RequestKind::SetWatches) && !planted!(MissedInParts)
    }

    /// Whether replies or events are held back that could be sent.
    pub(super) fn holds_back(&self) -> bool {
        !self.sets_watches() && (self.next_reply_at().is_some() || !self.events.is_empty())
    }

    fn send_events(&mut self, up_to: Zxid) {
        while self.has_room()
            && let Some((_, event)) = self.events.front()
            && event.zxid <= up_to
            && let Some((watch, event)) = self.events.pop_front()
        {
            self.events_bytes -= event.bytes();
            if event.kind == EventKind::Gap {
                // The client missed more events than the history has: setWatches sets the watch from
                // now on.
                if self.watches.forget_unset(watch) {
                    continue;
                }
                // The client reconnects, sets its watches again, and receives the events that it
                // missed.
                self.end(Ending::MissedEvents);
                return;
            }
            self.zxid = self.zxid.max(event.zxid);
            if let Some(kind) = self.watches.fire(watch, &event) {
                self.send_event(kind.into(), event.path.clone(), convert::zxid(event.zxid));
            }
        }
        if self.events.is_empty() && self.events.capacity() > EVENTS_KEPT {
            self.events = VecDeque::new();
        }
    }

    pub(super) fn send_event(&mut self, kind: i32, path: String, zxid: i64) {
        let header = ReplyHeader::of_event(zxid);
        self.send(&header, &WatcherEvent { kind, state: SYNC_CONNECTED, path });
    }

    /// Writes a reply, or ends the connection if it would be too long.
    pub(super) fn send(&mut self, header: &ReplyHeader, body: &impl Jute) {
        self.counts.sent += 1;
        if let Err(error) = append_reply(&mut self.out, REPLY_BYTES_MAX, header, body) {
            self.end(error.into());
        }
    }

    pub(super) fn header(&self, xid: i32, code: ErrorCode) -> ReplyHeader {
        ReplyHeader { xid, zxid: convert::zxid(self.zxid), err: code.into() }
    }

    pub(super) fn unwatch(&mut self, watch: WatchId) {
        self.watches.forget(watch);
        if self.reads_alone.is_none() {
            self.shared.input(Input::Unwatch(watch));
        }
    }

    /// Whether nothing was received from the client for the whole timeout of its session.
    pub(super) fn is_silent(&self, now: Duration, handshake: Duration) -> bool {
        let timeout = self.session.as_ref().map_or(handshake, |session| session.timeout());
        now.saturating_sub(self.last_received) > timeout
    }

    /// Closes the session of a silent client, whose connection ends.
    pub(super) fn expire(&mut self) {
        if let Some(session) = self.session.take()
            && self.reads_alone.is_none()
        {
            self.shared.close_session(&session);
        }
    }

    /// The socket is closed: leaves the session open, so that the client can resume it, here or
    /// elsewhere.
    pub(super) fn leave(&mut self) {
        let Some(session) = self.session.take() else { return };
        // Detaching a session would take back its close.
        let closes = matches!(self.closing, Some(Ending::SessionClosed));
        if closes || self.reads_alone.is_some() || self.shared.detach(&session) {
            return;
        }
        // Without effect if the session does not belong to this connection any more.
        if self.resumed || session.state().is_final() {
            let abandon = Ask::abandon(SessionState::Detached);
            self.shared.ask_and_forget(RequestOrigin::Holder(session), abandon);
        } else {
            // The client does not know of its session.
            self.shared.close_session(&session);
        }
    }
}

fn query(body: &RequestBody) -> Option<&Query> {
    match body {
        RequestBody::Query(query) => Some(query),
        _ => None,
    }
}

#[cfg(test)]
impl ClientConnection {
    /// Checks what is true after each turn: no bound is exceeded by more than one message.
    pub(super) fn check_bounds(&self) {
        /// Longer than any message of the tests.
        const MESSAGE: usize = 16 << 10;
        assert!(self.waiting.len() <= WAITING_MAX);
        assert!(self.asked.len() <= WAITING_MAX + super::waiting::WATCHES_AT_ONCE);
        let counted: usize = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        assert_eq!(self.waiting_bytes, counted, "what waits is counted");
        let counted: usize = self.events.iter().map(|(_, event)| event.bytes()).sum();
        assert_eq!(self.events_bytes, counted, "the events are counted");
        assert!(self.events_bytes <= EVENTS_BYTES || self.is_ended());
        assert!(self.out.len() < UNREAD_BYTES + MESSAGE, "{} bytes are unread", self.out.len());
        // All parts that are expected belong to requests that wait.
        let (first, after) = (self.replied, self.replied + self.waiting.len() as u64);
        assert!(self.asked.values().all(|(request, _)| (first..after).contains(request)));
    }
}

/// Even if the thread panics, the session is not kept alive any longer.
impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.leave();
    }
}
