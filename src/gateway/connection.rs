//! One client: its pending requests, its watches, and the order of its replies and events.
//!
//! Replies are sent in the order of the requests. An event is sent before every reply that may show its
//! change, and after every reply that does not. The zxids of both decide that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::GatewayBuilder;
use super::authentication::Authenticator;
use super::convert;
use super::counts::{LastReply, PacketCounts};
use super::ending::Ending;
use super::events::Events;
use super::greeting::Identity;
use super::memory::Memory;
use super::output::{Output, SHARED_BYTES};
use super::session::ClientSession;
use super::waiting::{Part, REPLY_BYTES_MAX, RequestKind, Waiting, WaitingRequest};
use super::watches::Watches;
use super::wire::codes::{ErrorCode, OpCode, SYNC_CONNECTED};
use super::wire::jute::Jute;
use super::wire::response::{DataReply, ReplyHeader, WatcherEvent, append_reply};
use crate::api::support::{
    Answer, Ask, CONFIG, Delivery, Input, NodeShared, Query, Recipient, RequestBody, RequestOrigin,
    WatchId,
};
use crate::types::error::{Error, Result};
use crate::types::session::SessionState;
use crate::types::watch::EventKind;
use crate::types::znode::{Stat, Zxid};

/// If a client leaves so many bytes unread, nothing more is written for it.
const UNREAD_BYTES: usize = 64 << 10;
/// One client's requests and events: which reply or event comes next, and when the connection ends.
pub(super) struct ClientConnection {
    pub(super) recipient: Recipient,
    pub(super) shared: Arc<NodeShared>,
    pub(super) identity: Identity,
    pub(super) session: ClientSession,
    pub(super) waiting: Waiting,
    pub(super) events: Events,
    pub(super) watches: Watches,
    /// The zxid of the last write that this client may have seen.
    pub(super) zxid: Zxid,
    pub(super) out: Output,
    memory: Arc<Memory>,
    pub(super) taken: TakenRequest,
    authenticator: Authenticator,
    /// The counts that the server has not taken yet.
    pub(super) counts: PacketCounts,
    /// Why no more requests are taken: the connection ends when everything is sent.
    closing: Option<Ending>,
    /// Why the connection ends now.
    ended: Option<Ending>,
}

/// The request taken last.
pub(super) struct TakenRequest {
    pub(super) op: i32,
    pub(super) bytes: usize,
    pub(super) arrived: Duration,
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
            identity: Identity::new(from, settings),
            session: ClientSession::none(now),
            waiting: Waiting::default(),
            events: Events::default(),
            watches: Watches::default(),
            zxid: 0,
            out: Output::default(),
            memory,
            taken: TakenRequest { op: OpCode::CreateSession.into(), bytes: 0, arrived: now },
            authenticator,
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
            && !self.authenticator.is_busy()
            && self.waiting.has_room()
            && self.out.len() < UNREAD_BYTES
    }

    /// Whether its last reply was sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_ended()
            || (self.closing.is_some() && self.waiting.is_empty() && self.out.is_empty())
    }

    /// Queues a request whose reply has this many parts.
    pub(super) fn expect(
        &mut self,
        xid: i32,
        kind: RequestKind,
        parts: usize,
        reply: impl FnOnce(&mut ClientConnection, i32, Vec<Option<Part>>) + Send + 'static,
    ) {
        let TakenRequest { op, bytes, arrived } = self.taken;
        let request = (xid, op, bytes);
        self.waiting.push(WaitingRequest::new(request, arrived, kind, parts, Box::new(reply)));
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
        if self.session.get().is_none() {
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
        self.out.len() + self.waiting.bytes() + self.events.bytes()
    }

    /// About how many bytes wait for the client alone.
    pub(super) fn own_bytes(&self) -> usize {
        self.out.own() + self.waiting.own_bytes() + self.events.own_bytes()
    }

    /// Sends a part of the request queued last to the node.
    pub(super) fn ask_part(&mut self, part: usize, body: RequestBody) {
        let Some(session) = self.session.get().cloned() else { return };
        let watch = query(&body).and_then(Query::watch).map(|(watch, path, kind)| {
            self.watches.ask(watch, Arc::clone(path), kind);
            watch
        });
        if let Some(tree) = self.session.alone().cloned() {
            return self.ask_alone(part, body, &tree);
        }
        let path = query(&body).and_then(Query::path);
        let number = self.waiting.expect(part, path.is_some_and(|path| **path == *CONFIG));
        let origin = match body {
            RequestBody::Begin { .. } => RequestOrigin::Opener(session),
            _ => RequestOrigin::Holder(session),
        };
        self.shared.ask_at((self.recipient.clone(), number), origin, body, watch);
    }

    /// Checks credentials, or requests their check if it takes long.
    pub(super) fn check_credentials(&mut self, xid: i32, scheme: String, credentials: &[u8]) {
        if !self.shared.schemes.takes_long(&scheme) {
            let ids = self.shared.schemes.authenticate(&scheme, credentials);
            return self.authenticated(xid, ids);
        }
        let (of, from) = (self.recipient.clone(), self.identity.address.ip());
        if let Err(error) = self.authenticator.check(xid, of, from, scheme, credentials) {
            self.authenticated(xid, Err(error));
        }
    }

    /// Answers a part of the request queued last without the node.
    pub(super) fn answer_now(&mut self, part: usize, answer: Result<Answer>) {
        let ending = self.waiting.take_last(part, (self.zxid, answer), &self.memory);
        ending.into_iter().for_each(|why| self.end(why));
    }

    /// Sends the next parts of the request queued last, if they are not sent all at once.
    pub(super) fn ask_on(&mut self) {
        while self.ended.is_none()
            && let Some((part, body)) = self.waiting.next_part()
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
            Delivery::Answer { number, zxid, answer } => {
                let ending = self.waiting.take(number, (zxid, answer), &self.memory);
                ending.into_iter().for_each(|why| self.end(why));
                self.ask_on();
            }
            Delivery::Authenticated(ids) => {
                if let Some(xid) = self.authenticator.done() {
                    self.authenticated(xid, ids);
                }
            }
            // After the end of the session no more requests are taken; existing answers are still
            // sent.
            Delivery::State(state) => {
                let goes_on = state == SessionState::Moved && planted!(MovedGoesOn);
                if state.is_final() && state != SessionState::Closed && !goes_on {
                    self.close(match self.waiting.has_replied() {
                        true => Ending::SessionOver,
                        false => Ending::SessionUnknown,
                    });
                }
            }
        }
    }

    /// Writes all replies and events whose turn has come. Called when all messages of a step of the node
    /// are taken; `zxid` is the last write that the node has applied by then.
    pub(super) fn flush(&mut self, zxid: Zxid, now: Duration) {
        while let Some(at) = self.waiting.next_reply_at(self.zxid) {
            self.send_events(unless!(EventBehindReply, at, 0));
            if !self.has_room() {
                break;
            }
            let Some(waiting) = self.waiting.pop() else { break };
            self.zxid = self.zxid.max(at);
            let WaitingRequest { xid, op, arrived, reply, parts, .. } = waiting;
            reply(self, xid, parts);
            let latency = now.saturating_sub(arrived);
            self.counts.replied(LastReply { op, xid, zxid: self.zxid, at: now, latency });
        }
        // Later answers show a state that has the changes of all these events.
        if !self.waiting.sets_watches() {
            self.send_events(Zxid::MAX);
        }
        if self.waiting.is_empty() && self.events.is_empty() && self.session.alone().is_none() {
            self.zxid = self.zxid.max(zxid);
        }
        self.events.unread().into_iter().for_each(|why| self.end(why));
    }

    fn has_room(&self) -> bool {
        self.ended.is_none() && self.out.len() < unless!(UnreadUnbounded, UNREAD_BYTES, usize::MAX)
    }

    /// Whether replies or events are held back that could be sent.
    pub(super) fn holds_back(&self) -> bool {
        let replies = self.waiting.next_reply_at(self.zxid).is_some();
        replies || !self.waiting.sets_watches() && !self.events.is_empty()
    }

    fn send_events(&mut self, up_to: Zxid) {
        while self.has_room()
            && let Some((watch, event)) = self.events.pop(up_to)
        {
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
        if self.session.alone().is_none() {
            self.shared.input(Input::Unwatch(watch));
        }
    }

    /// The socket is closed: see [`ClientSession::leave`].
    pub(super) fn leave(&mut self) {
        let closes = matches!(self.closing, Some(Ending::SessionClosed));
        self.session.leave(closes, &self.shared);
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
        self.waiting.check_bounds();
        self.events.check_bounds();
        assert!(self.events.unread().is_none() || self.is_ended());
        assert!(self.out.len() < UNREAD_BYTES + MESSAGE, "{} bytes are unread", self.out.len());
    }
}

/// Even if the thread panics, the session is not kept alive any longer.
impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.leave();
    }
}
