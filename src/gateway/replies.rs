//! Converts the node's answers to replies.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::connection::ClientConnection;
use super::convert::{self, code};
use super::ending::Ending;
use super::requests::{OneShot, RestoredWatch};
use super::waiting::{Part, RequestKind};
use super::wire::codes::{ErrorCode, EventType, OpCode};
use super::wire::frame::append_frame;
use super::wire::handshake::{ConnectRequest, ConnectResponse};
use super::wire::jute::Jute;
use super::wire::response::{Create2Reply, MultiReply, MultiResult, PathReply, ReplyHeader};
use crate::api::support::{Answer, RequestBody, WatchId};
use crate::types::acl::Id;
use crate::types::error::Error;
use crate::types::znode::{OpResult, Stat, Zxid};

/// ZooKeeper's code for the operations after the failed one.
const BEHIND_THE_FAILED: ErrorCode = ErrorCode::RuntimeInconsistency;

/// Makes the result of a read in a multiRead from its answer.
pub(super) type PartReader =
    Box<dyn FnOnce(&ClientConnection, Answer) -> Result<MultiResult, Error> + Send>;

impl ClientConnection {
    /// Queues a request whose parts are sent to the node one after the other.
    pub(super) fn expect_all(
        &mut self,
        xid: i32,
        kind: RequestKind,
        left: VecDeque<Option<RequestBody>>,
        reply: impl FnOnce(&mut ClientConnection, i32, Vec<Option<Part>>) + Send + 'static,
    ) {
        self.expect(xid, kind, left.len(), reply);
        self.waiting.leave(left);
        self.ask_on();
    }

    /// Replies with an error in the request's turn.
    pub(super) fn fail_in_turn(&mut self, xid: i32, code: ErrorCode) {
        self.reply_in_turn(xid, move |own, xid| own.fail(xid, code));
    }

    /// Refuses an operation that is not served. It is the last one.
    pub(super) fn refuse_op(&mut self, xid: i32) {
        self.reply_in_turn(xid, |own, xid| {
            let err = ErrorCode::Unimplemented.into();
            own.send(&ReplyHeader { xid, zxid: -1, err }, &());
        });
        self.close(Ending::Unimplemented { op: self.taken.op });
    }

    pub(super) fn has_authenticated(&mut self, xid: i32, answer: Result<Vec<Id>, Error>) {
        match answer {
            Ok(_) => self.send(&ReplyHeader::without_zxid(xid, ErrorCode::Ok), &()),
            Err(error) if code(&error) == Some(ErrorCode::AuthFailed) => {
                self.close(Ending::AuthFailed(error.to_string()));
                self.send(&ReplyHeader::without_zxid(xid, ErrorCode::AuthFailed), &());
            }
            // A client gives up for good after an AuthFailed.
            Err(error) => self.end(Ending::Unanswered(error)),
        }
    }

    /// Replies to a multi whose results have these types. `refused`: the index of an operation that fails without
    /// the node, and its error.
    pub(super) fn multi_done(
        &mut self,
        xid: i32,
        kinds: Vec<OpCode>,
        refused: Option<(usize, ErrorCode)>,
        answer: Result<Vec<OpResult>, Error>,
    ) {
        let results = match answer {
            Ok(results) => {
                let results = kinds.into_iter().zip(results);
                results.map(|(kind, result)| Ok(multi_result(kind, result))).collect()
            }
            Err(Error::Multi { index, error }) => {
                let code = match refused {
                    Some((place, code)) if place == index => Some(code),
                    _ => code(&error),
                };
                let Some(code) = code else {
                    return self.end(Ending::Unanswered(*error));
                };
                let of = |place: usize| match place.cmp(&index) {
                    std::cmp::Ordering::Less => ErrorCode::Ok,
                    std::cmp::Ordering::Equal => code,
                    std::cmp::Ordering::Greater => BEHIND_THE_FAILED,
                };
                (0..kinds.len()).map(|place| Err(of(place).into())).collect()
            }
            Err(error) => return self.refuse(xid, &error),
        };
        self.succeed(xid, &MultiReply { results });
    }

    /// Replies to the first packet. `synced`: the answer to a sync, if the client has seen a later state than this
    /// instance had.
    pub(super) fn connected(
        &mut self,
        request: &ConnectRequest,
        opened: Result<Duration, Error>,
        synced: Option<Part>,
    ) {
        let Some(session) = self.session.get() else { return self.end(Ending::SessionOver) };
        match opened {
            Ok(timeout) => {
                session.set_timeout(timeout);
                // The client has seen a write that this instance has not: it has to find another
                // one.
                let seen = request.seen();
                if synced.is_some_and(|(zxid, synced)| synced.is_err() || zxid < seen) {
                    return self.end(Ending::Ahead);
                }
                let (id, secret) = (session.id.0.cast_signed(), session.secret);
                let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
                let secret = Bytes::copy_from_slice(&secret);
                let read_only = self.session.alone().is_some();
                self.respond(&ConnectResponse::accepted(request, timeout, id, secret, read_only));
            }
            Err(Error::SessionExpired { .. } | Error::WrongPassword { .. }) => {
                self.session.end();
                self.close(Ending::SessionUnknown);
                self.respond(&ConnectResponse::refused(request));
            }
            Err(error) => self.end(Ending::Unanswered(error)),
        }
    }

    fn respond(&mut self, response: &ConnectResponse) {
        self.counts.sent += 1;
        if let Err(error) = append_frame(&mut self.out, 1 << 10, |to| response.write(to)) {
            self.end(error.into());
        }
    }

    pub(super) fn multi_read(
        &mut self,
        xid: i32,
        readers: Vec<PartReader>,
        parts: Vec<Option<Part>>,
    ) {
        let mut results = Vec::new();
        for (reader, (_, answer)) in readers.into_iter().zip(parts.into_iter().flatten()) {
            results.push(match answer.and_then(|answer| reader(self, answer)) {
                Ok(result) => Ok(result),
                Err(error) => match code(&error) {
                    Some(code) => Err(code.into()),
                    None => return self.end(Ending::Unanswered(error)),
                },
            });
        }
        self.succeed(xid, &MultiReply { results });
    }

    /// Sends the events that restored watches missed since the zxid that the client had seen.
    pub(super) fn watches_set(
        &mut self,
        xid: i32,
        from: Zxid,
        restored: Vec<RestoredWatch>,
        parts: Vec<Option<Part>>,
    ) {
        let mut parts = parts.into_iter().flatten().map(|(_, answer)| answer);
        for restore in restored {
            match restore {
                RestoredWatch::Invalid { path } => self.send_missed(EventType::NodeDeleted, path),
                RestoredWatch::OneShot { list, path, watch } => {
                    let Some(answer) = parts.next() else { break };
                    let missed = match (list, answer) {
                        (OneShot::Data, Ok(Answer::Exists(None)))
                        | (OneShot::Child, Err(Error::NoNode { .. })) => {
                            Some(EventType::NodeDeleted)
                        }
                        (OneShot::Data, Ok(Answer::Exists(Some(stat)))) if stat.mzxid > from => {
                            Some(EventType::NodeDataChanged)
                        }
                        (OneShot::Exist, Ok(Answer::Exists(Some(_)))) => {
                            Some(EventType::NodeCreated)
                        }
                        (OneShot::Child, Ok(Answer::Children(_, Some(stat))))
                            if stat.pzxid > from =>
                        {
                            Some(EventType::NodeChildrenChanged)
                        }
                        (_, Ok(_)) => None,
                        // The client may not read the znode any more: no event reveals anything
                        // about it.
                        (_, Err(Error::NoAuth { .. })) => {
                            if let Some(watch) = watch {
                                self.watches.forget(watch);
                            }
                            continue;
                        }
                        (_, Err(error)) => return self.end(Ending::Unanswered(error)),
                    };
                    match (missed, watch) {
                        (None, watch) => self.watch_set(watch),
                        (Some(kind), None) => self.send_missed(kind, path),
                        (Some(kind), Some(watch)) if self.watches.is_known(watch) => {
                            self.unwatch(watch);
                            self.send_missed(kind, path);
                        }
                        // The event was sent already.
                        (Some(_), Some(_)) => {}
                    }
                }
                RestoredWatch::Persistent { watch, again } => {
                    let (first, second) = (parts.next(), parts.next());
                    let (set, other) = if matches!(first, Some(Ok(_)))
                        && self.watches.is_known(watch)
                    {
                        (watch, again)
                    } else if matches!(second, Some(Ok(_))) {
                        (again, watch)
                    } else {
                        let error = first.into_iter().chain(second).find_map(Result::err);
                        return self.end(error.map_or(Ending::MissedEvents, Ending::Unanswered));
                    };
                    self.unwatch(other);
                    self.watch_set(Some(set));
                }
            }
        }
        self.succeed(xid, &());
    }

    /// Sends an event that may stand for several changes. As in ZooKeeper, it has no zxid.
    fn send_missed(&mut self, kind: EventType, path: String) {
        self.send_event(kind.into(), path, -1);
    }

    pub(super) fn watch_set(&mut self, watch: Option<WatchId>) {
        if let Some(former) = watch.and_then(|watch| self.watches.note_set(watch)) {
            self.unwatch(former);
        }
    }

    pub(super) fn stat(&mut self, xid: i32, stat: &Stat) {
        self.succeed(xid, &convert::stat(stat));
    }

    pub(super) fn succeed(&mut self, xid: i32, body: &impl Jute) {
        let header = self.header(xid, ErrorCode::Ok);
        self.send(&header, body);
    }

    pub(super) fn refuse(&mut self, xid: i32, error: &Error) {
        match code(error) {
            Some(code) => self.fail(xid, code),
            None => self.end(Ending::Unanswered(error.clone())),
        }
    }

    pub(super) fn fail(&mut self, xid: i32, code: ErrorCode) {
        let header = self.header(xid, code);
        self.send(&header, &());
    }
}

fn multi_result(kind: OpCode, result: OpResult) -> MultiResult {
    match result {
        OpResult::Created(created) if kind == OpCode::Create2 => {
            let stat = convert::stat(&created.stat);
            MultiResult::Create2(Create2Reply { path: created.path, stat })
        }
        OpResult::Created(created) => MultiResult::Create(PathReply { path: Some(created.path) }),
        // No client of ZooKeeper can ask for an addition, nor for a take.
        OpResult::Set(stat) | OpResult::AclSet(stat) | OpResult::Added { stat, .. } => {
            MultiResult::SetData(convert::stat(&stat))
        }
        OpResult::Deleted | OpResult::Taken { .. } => MultiResult::Delete,
        OpResult::Checked => MultiResult::Check,
    }
}
