//! The queries of a client's users, which the member answers.

use std::sync::Arc;

use super::Client;
use crate::node::client_message::{FromClient, HeldWatch, Pieces, RequestHeader};
use crate::node::io::{RequestId, SessionHolder, WatchId};
use crate::node::query::{Answer, EventData, Query, QueryError, Read, ZnodeRead};
use crate::node::replica::server::{CLAIMS_BYTES_MAX, QUEUE_BYTES_MAX, WATCHES_MAX};
use crate::node::sessions::holder::over;
use crate::node::sessions::queue::waits_for_others;
use crate::types::error::Error;
use crate::types::session::SessionState;
use crate::types::znode::SessionId;

/// A request that the member has to answer.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) request: RequestId,
    place: RequestHeader,
    message: FromClient,
    size: usize,
    /// The watch that the query sets.
    watch: Option<HeldWatch>,
    /// The parts of the answer received so far.
    pieces: Pieces,
}

impl Client {
    /// Queues a query that a member answers.
    pub(super) fn query(&mut self, id: RequestId, session: SessionId, query: Query) {
        let Some((holder, after)) = self.local.turn(id, session, &mut self.effects) else {
            return;
        };
        if matches!(query, Query::Read { read: Read::Tree, .. }) {
            let error = Error::NeedsReplica { operation: "a snapshot".to_owned() };
            return self.effects.reply(id, Err(error));
        }
        self.next_call += 1;
        let session_holder = SessionHolder { session, holder };
        let place = RequestHeader { request: self.next_call, session_holder, after };
        // Any ReadIndex request from the next one on will do.
        let read_index = self.local.read_index.upcoming();
        if waits_for_others(&query, self.seen) {
            self.local.read_index.wait(0);
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
        if watch.is_some() && !self.has_room_for_watch(message.size()) {
            return self.effects.reply(id, Err(Error::Busy { limit: WATCHES_MAX }));
        }
        if let Some(watch) = &watch {
            self.asked_watches += 1;
            self.asked_watch_bytes += watch.path.len();
        }
        let (size, pieces) = (message.size(), Pieces::default());
        let call = Outstanding { request: id, place, message, size, watch, pieces };
        self.calls.insert(self.next_call, call);
    }

    fn has_room_for_watch(&self, size: usize) -> bool {
        // The longest average path with which all watches fit into the messages of a move.
        let bytes = self.watch_bytes + self.asked_watch_bytes + size;
        self.watches.len() + self.asked_watches < WATCHES_MAX && bytes < CLAIMS_BYTES_MAX / 2
    }

    /// Queues all queries again, for another member.
    pub(super) fn forget_sent_calls(&mut self) {
        self.calls.values_mut().for_each(|call| call.pieces = Pieces::default());
        self.sent_bytes = 0;
        self.first_unsent = 0;
    }

    /// Sends the queries that the member has room for. Writes behind a waiting query wait too.
    pub(super) fn send_calls(&mut self) {
        let mut full = false;
        self.local.lift_send_limits();
        for (number, call) in self.calls.range(self.first_unsent..) {
            let fits = self.sent_bytes == 0 || self.sent_bytes + call.size <= QUEUE_BYTES_MAX / 2;
            full |= !fits;
            if full {
                self.local.set_send_limit(call.place.session_holder.session, call.place.after);
                continue;
            }
            self.sent_bytes += call.size;
            self.first_unsent = number + 1;
            self.claimed.insert(call.place.session_holder);
            self.messages.push(call.message.clone());
        }
    }

    fn end_call(&mut self, number: u64) -> Option<Outstanding> {
        let call = self.calls.remove(&number)?;
        if number < self.first_unsent {
            self.sent_bytes -= call.size;
        }
        if let Some(watch) = &call.watch {
            self.asked_watches -= 1;
            self.asked_watch_bytes -= watch.path.len();
        }
        Some(call)
    }

    pub(super) fn take_pieces(&mut self, number: u64, names: Vec<String>, znodes: Vec<ZnodeRead>) {
        if let Some(call) = self.calls.get_mut(&number) {
            call.pieces.names.extend(names);
            call.pieces.znodes.extend(znodes);
        }
    }

    pub(super) fn take_answer(&mut self, number: u64, answer: Result<Answer, QueryError>) {
        let Some(call) = self.end_call(number) else {
            return;
        };
        let Outstanding { request, watch, pieces, .. } = call;
        if let (Ok(answer), Some(mut watch)) = (&answer, watch)
            && !self.over.remove(&WatchId(watch.watch))
        {
            watch.existed = !matches!(answer, Answer::Exists(None));
            self.watch_bytes += watch.path.len();
            self.watches.insert(WatchId(watch.watch), watch);
        }
        let answer = answer.map(|answer| pieces.complete(answer)).map_err(QueryError::into_error);
        self.effects.reply(request, answer);
    }

    fn remove_watch(&mut self, id: WatchId) -> bool {
        let Some(watch) = self.watches.remove(&id) else {
            return false;
        };
        self.watch_bytes -= watch.path.len();
        true
    }

    pub(super) fn unwatch(&mut self, id: WatchId) {
        if self.remove_watch(id) && self.attached.is_some() {
            self.messages.push(FromClient::Unwatch { watch: id.0 });
        }
    }

    /// A watch has fired for the last time, perhaps before the answer to the call that set it.
    pub(super) fn watch_over(&mut self, watch: u64) {
        let id = WatchId(watch);
        if !self.remove_watch(id) {
            let set = |call: &Outstanding| call.watch.as_ref().is_some_and(|of| of.watch == watch);
            if self.calls.values().any(set) {
                self.over.insert(id);
            }
        }
        self.effects.ended.push(id);
    }

    /// Ends the queries and the watches of a session that has ended.
    pub(super) fn end_calls(
        &mut self,
        session: SessionId,
        holder: Option<u64>,
        state: SessionState,
    ) {
        let ours =
            |of: SessionHolder| of.session == session && holder.is_none_or(|by| by == of.holder);
        let error = over(session, state);
        let calls = self.calls.iter().filter(|(_, call)| ours(call.place.session_holder));
        let calls: Vec<u64> = calls.map(|(number, _)| *number).collect();
        for number in calls {
            if let Some(call) = self.end_call(number) {
                self.effects.reply(call.request, Err(error.clone()));
            }
        }
        let watches = self.watches.iter().filter(|(_, watch)| ours(watch.session_holder));
        let watches: Vec<WatchId> = watches.map(|(id, _)| *id).collect();
        for id in watches {
            self.unwatch(id);
            self.effects.ended.push(id);
        }
    }

    /// Ends the queries and watches of all sessions that have ended in this step.
    pub(super) fn end_sessions(&mut self) {
        let over: Vec<(SessionHolder, SessionState)> =
            self.effects.sessions.iter().filter(|(_, state)| state.is_final()).copied().collect();
        for (SessionHolder { session, holder }, state) in over {
            self.end_calls(session, Some(holder), state);
        }
    }

    /// Reports to the member which sessions this client no longer holds.
    pub(super) fn leave_sessions(&mut self) {
        self.claimed.retain(|session_holder| {
            let holds = self.local.holds(*session_holder);
            if !holds {
                self.messages.push(FromClient::Leave { session_holder: *session_holder });
            }
            holds
        });
    }
}
