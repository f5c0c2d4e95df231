//! The queries of a client's users, which the member answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::attach::Attachment;
use super::watches::Watches;
use crate::node::client_message::{FromClient, HeldWatch, Pieces, RequestHeader};
use crate::node::io::{Effects, RequestId, SessionHolder, WatchId};
use crate::node::query::{Answer, EventData, Query, QueryError, Read, ZnodeRead};
use crate::node::replica::server::{QUEUE_BYTES_MAX, WATCHES_MAX};
use crate::node::sessions::LocalSessions;
use crate::node::sessions::holder::over;
use crate::node::sessions::queue::waits_for_others;
use crate::types::error::Error;
use crate::types::session::SessionState;
use crate::types::znode::{SessionId, Zxid};

/// The requests that the member has to answer, in order, and which of them it has room for. The watches that they
/// set.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: BTreeMap<u64, Outstanding>,
    last: u64,
    /// Requests before this one were sent to the member, the others were not.
    first_unsent: u64,
    /// The bytes of the sent ones.
    sent_bytes: usize,
    pub(super) watches: Watches,
}

/// A request that the member has to answer.
#[derive(Debug)]
struct Outstanding {
    request: RequestId,
    place: RequestHeader,
    message: FromClient,
    size: usize,
    /// The watch that the query sets.
    watch: Option<WatchId>,
    /// The parts of the answer received so far.
    pieces: Pieces,
}

impl Calls {
    /// Queues a query that a member answers. The client has seen everything up to `seen`.
    pub(super) fn query(
        &mut self,
        (id, session): (RequestId, SessionId),
        query: Query,
        seen: Zxid,
        local: &mut LocalSessions,
        effects: &mut Effects,
    ) {
        let Some((holder, after)) = local.turn(id, session, effects) else {
            return;
        };
        if matches!(query, Query::Read { read: Read::Tree, .. }) {
            let error = Error::NeedsReplica { operation: "a snapshot".to_owned() };
            return effects.reply(id, Err(error));
        }
        self.last += 1;
        let session_holder = SessionHolder { session, holder };
        let place = RequestHeader { request: self.last, session_holder, after };
        // Any ReadIndex request from the next one on will do.
        let read_index = local.read_index.upcoming();
        if waits_for_others(&query, seen) {
            local.read_index.wait(0);
        }
        let data = match query {
            Query::Watch { data, .. } => data,
            _ => EventData::None,
        };
        let watch = query.watch().map(|(WatchId(watch), path, kind)| {
            let path = Arc::clone(path);
            HeldWatch { watch, session_holder, path, kind, existed: true, from: 0, data }
        });
        let message = FromClient::Query { call: place, query, read_index };
        let size = message.size();
        if watch.is_some() && !self.watches.has_room(size) {
            return effects.reply(id, Err(Error::Busy { limit: WATCHES_MAX }));
        }
        let (of, pieces) = (watch.as_ref().map(|of| WatchId(of.watch)), Pieces::default());
        let call = Outstanding { request: id, place, message, size, watch: of, pieces };
        self.open.insert(self.last, call);
        watch.into_iter().for_each(|watch| self.watches.ask(watch));
    }

    /// Queues all queries again, for another member.
    pub(super) fn forget_sent(&mut self) {
        self.open.values_mut().for_each(|call| call.pieces = Pieces::default());
        (self.sent_bytes, self.first_unsent) = (0, 0);
    }

    /// Sends the queries that the member has room for. Writes behind a waiting query wait too.
    pub(super) fn send(&mut self, attached: &mut Attachment, local: &mut LocalSessions) {
        let mut full = false;
        local.lift_send_limits();
        for (number, call) in self.open.range(self.first_unsent..) {
            let fits = self.sent_bytes == 0 || self.sent_bytes + call.size <= QUEUE_BYTES_MAX / 2;
            full |= !fits;
            if full {
                local.set_send_limit(call.place.session_holder.session, call.place.after);
                continue;
            }
            self.sent_bytes += call.size;
            self.first_unsent = number + 1;
            attached.push_of(call.place.session_holder, call.message.clone());
        }
    }

    /// Takes the call out. `existed`: it was answered, and its watch is set.
    fn end_call(&mut self, number: u64, existed: Option<bool>) -> Option<Outstanding> {
        let call = self.open.remove(&number)?;
        if number < self.first_unsent {
            self.sent_bytes -= call.size;
        }
        call.watch.into_iter().for_each(|watch| self.watches.answered(watch, existed));
        Some(call)
    }

    pub(super) fn take_pieces(&mut self, number: u64, names: Vec<String>, znodes: Vec<ZnodeRead>) {
        if let Some(call) = self.open.get_mut(&number) {
            call.pieces.names.extend(names);
            call.pieces.znodes.extend(znodes);
        }
    }

    pub(super) fn take_answer(
        &mut self,
        number: u64,
        answer: Result<Answer, QueryError>,
        effects: &mut Effects,
    ) {
        let existed = answer.as_ref().ok().map(|of| !matches!(of, Answer::Exists(None)));
        let Some(Outstanding { request, pieces, .. }) = self.end_call(number, existed) else {
            return;
        };
        let answer = answer.map(|answer| pieces.complete(answer)).map_err(QueryError::into_error);
        effects.reply(request, answer);
    }

    pub(super) fn unwatch(&mut self, id: WatchId, attached: Option<&mut Attachment>) {
        if self.watches.remove(id)
            && let Some(attached) = attached
        {
            attached.messages.push(FromClient::Unwatch { watch: id.0 });
        }
    }

    /// Ends the queries and the watches of a session that has ended, for this holder or for any.
    pub(super) fn end(
        &mut self,
        (session, holder): (SessionId, Option<u64>),
        state: SessionState,
        mut attached: Option<&mut Attachment>,
        effects: &mut Effects,
    ) {
        let ours =
            |of: SessionHolder| of.session == session && holder.is_none_or(|by| by == of.holder);
        let error = over(session, state);
        let calls = self.open.iter().filter(|(_, call)| ours(call.place.session_holder));
        let calls: Vec<u64> = calls.map(|(number, _)| *number).collect();
        for number in calls {
            if let Some(call) = self.end_call(number, None) {
                effects.reply(call.request, Err(error.clone()));
            }
        }
        for id in self.watches.of(ours) {
            self.unwatch(id, attached.as_deref_mut());
            effects.ended.push(id);
        }
    }

    /// Ends everything, since the client stops.
    pub(super) fn stop(&mut self, error: &Error, effects: &mut Effects) {
        let Calls { open, watches, .. } = std::mem::take(self);
        for call in open.into_values() {
            effects.reply(call.request, Err(error.clone()));
        }
        effects.ended.extend(watches.of(|_| true));
    }
}
