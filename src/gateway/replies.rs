//! Converts the node's answers to replies.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::connection::ClientConnection;
use super::convert::{self, code};
use super::ending::Ending;
use super::requests::{OneShot, RestoredWatch};
use super::waiting::{Part, ReplyKind, WaitingRequest};
use super::wire::codes::{ErrorCode, EventType, OpCode};
use super::wire::frame::append_frame;
use super::wire::handshake::{ConnectRequest, ConnectResponse};
use super::wire::jute::{Credential, Jute};
use super::wire::response::{
    AclReply, Children2Reply, ChildrenReply, ClientInfo, Create2Reply, DataReply, MultiReply,
    MultiResult, PathReply, ReplyHeader,
};
use crate::api::support::{Answer, Reply, Root, Snapshot, Tree, WatchId};
use crate::types::error::Error;
use crate::types::znode::{OpResult, Stat, Zxid};

/// ZooKeeper's code for the operations after the failed one.
const BEHIND_THE_FAILED: ErrorCode = ErrorCode::RuntimeInconsistency;
/// The node's answers match their requests.
const UNFIT: Ending = Ending::Failure(Cow::Borrowed("an answer does not match its request"));

impl ClientConnection {
    /// Replies to a request whose answers have all arrived.
    pub(super) fn reply(&mut self, waiting: WaitingRequest) {
        let WaitingRequest { xid, what, watch, parts, .. } = waiting;
        let mut parts = parts.into_iter().flatten();
        let what = match what {
            ReplyKind::Connect(request) => {
                return self.connected(&request, parts.next(), parts.next());
            }
            ReplyKind::Code(code) => return self.fail(xid, code),
            ReplyKind::Last(code) => {
                let zxid = if code == ErrorCode::Unimplemented { -1 } else { 0 };
                return self.send(&ReplyHeader { xid, zxid, err: code.into() }, &());
            }
            ReplyKind::Sasl => {
                let header = ReplyHeader::without_zxid(xid, ErrorCode::Ok);
                return self.send(&header, &Credential(None));
            }
            ReplyKind::Done => {
                // A request for several watches has several parts, each of which may fail.
                let failed = parts.find_map(|(_, answer)| answer.err());
                return match failed {
                    Some(error) => self.refuse(xid, &error),
                    None => self.succeed(xid, &()),
                };
            }
            ReplyKind::CheckWatches { path, which } => {
                return match self.watches.has(&path, which) {
                    true => self.succeed(xid, &()),
                    false => self.fail(xid, ErrorCode::NoWatcher),
                };
            }
            // The node may still have a watch whose event stands before this reply.
            ReplyKind::RemoveWatches { path, which } => {
                let failed = parts.find_map(|(_, answer)| answer.err());
                let failed = failed.filter(|error| !matches!(error, Error::NoWatch { .. }));
                return match (failed, self.watches.remove(&path, which)) {
                    (Some(error), _) => self.refuse(xid, &error),
                    (None, true) => self.succeed(xid, &()),
                    (None, false) => self.fail(xid, ErrorCode::NoWatcher),
                };
            }
            ReplyKind::MultiRead(_) => return self.multi_read(xid, parts),
            ReplyKind::SetWatches { from, restored, .. } => {
                return self.watches_set(xid, from, restored, parts.collect());
            }
            what => what,
        };
        // All of the following have one part.
        let Some((_, answer)) = parts.next() else {
            return self.fail(xid, ErrorCode::SystemError);
        };
        match answer {
            Ok(answer) => {
                self.watch_set(watch);
                self.answered(xid, what, answer);
            }
            Err(error) => {
                if let Some(watch) = watch {
                    self.watches.forget(watch);
                }
                self.failed(xid, what, &error);
            }
        }
    }

    fn answered(&mut self, xid: i32, what: ReplyKind, answer: Answer) {
        match (what, answer) {
            (ReplyKind::Created { with_stat: false }, Answer::Reply(Reply::Created(created))) => {
                self.succeed(xid, &PathReply { path: Some(created.path) });
            }
            (ReplyKind::Created { with_stat: true }, Answer::Reply(Reply::Created(created))) => {
                let stat = convert::stat(&created.stat);
                self.succeed(xid, &Create2Reply { path: created.path, stat });
            }
            (ReplyKind::Stat, Answer::Reply(Reply::Set(stat))) => self.stat(xid, &stat),
            (ReplyKind::Exists, Answer::Exists(Some(stat))) => self.stat(xid, &stat),
            (ReplyKind::Exists, Answer::Exists(None)) => self.fail(xid, ErrorCode::NoNode),
            (ReplyKind::Data, Answer::Data { data, stat, is_null }) => {
                let data = (!is_null).then(|| self.data(&data));
                self.succeed(xid, &DataReply { data, stat: convert::stat(&stat) });
            }
            (ReplyKind::Acl, Answer::Acl(acl, stat)) => {
                let acl = acl.into_iter().map(convert::acl).collect();
                self.succeed(xid, &AclReply { acl, stat: convert::stat(&stat) });
            }
            (ReplyKind::Path(path), Answer::Synced(_)) => self.succeed(xid, &PathReply { path }),
            (ReplyKind::Children { with_stat: false, .. }, Answer::Children(children, _)) => {
                self.succeed(xid, &ChildrenReply { children });
            }
            (
                ReplyKind::Children { with_stat: true, .. },
                Answer::Children(children, Some(stat)),
            ) => {
                let stat = convert::stat(&stat);
                self.succeed(xid, &Children2Reply { children, stat });
            }
            (ReplyKind::Multi { kinds, .. }, Answer::Reply(Reply::Multi(results))) => {
                let results = kinds.into_iter().zip(results);
                let results = results.map(|(kind, result)| Ok(multi_result(kind, result)));
                self.succeed(xid, &MultiReply { results: results.collect() });
            }
            (ReplyKind::Count { path }, Answer::Tree(tree)) => self.count(xid, &path, tree),
            (ReplyKind::Count { .. }, Answer::Count(count)) => {
                self.succeed(xid, &i32::try_from(count).unwrap_or(i32::MAX));
            }
            (ReplyKind::AddWatch, Answer::Watching) => {
                self.succeed(xid, &i32::from(ErrorCode::Ok));
            }
            (ReplyKind::Ephemerals { prefix }, Answer::Children(mut paths, _)) => {
                paths.retain(|path| path.starts_with(&prefix));
                self.succeed(xid, &ChildrenReply { children: paths });
            }
            (ReplyKind::WhoAmI, Answer::Ids(ids)) => {
                let info = |id: crate::types::acl::Id| {
                    let user = match id.scheme.as_str() {
                        "digest" => id.id.split(':').next().unwrap_or_default().to_owned(),
                        _ => id.id,
                    };
                    ClientInfo { scheme: id.scheme, user }
                };
                self.succeed(xid, &ids.into_iter().map(info).collect::<Vec<_>>());
            }
            (ReplyKind::Auth, _) => {
                self.send(&ReplyHeader::without_zxid(xid, ErrorCode::Ok), &());
            }
            (ReplyKind::Close, _) => {
                self.session = None;
                self.close(Ending::SessionClosed);
                self.succeed(xid, &());
                if !planted!(EventAfterClose) {
                    self.forget_events();
                }
            }
            _ => self.end(UNFIT),
        }
    }

    fn failed(&mut self, xid: i32, what: ReplyKind, error: &Error) {
        match (what, error) {
            (ReplyKind::Multi { kinds, refused }, Error::Multi { index, error }) => {
                let code = match refused {
                    Some((place, code)) if place == *index => Some(code),
                    _ => code(error),
                };
                let Some(code) = code else {
                    return self.end(Ending::Unanswered((**error).clone()));
                };
                let of = |place: usize| match place.cmp(index) {
                    std::cmp::Ordering::Less => ErrorCode::Ok,
                    std::cmp::Ordering::Equal => code,
                    std::cmp::Ordering::Greater => BEHIND_THE_FAILED,
                };
                let results = (0..kinds.len()).map(|place| Err(of(place).into()));
                self.succeed(xid, &MultiReply { results: results.collect() });
            }
            // A client gives up for good after an AuthFailed.
            (ReplyKind::Auth, error) if code(error) != Some(ErrorCode::AuthFailed) => {
                self.end(Ending::Unanswered(error.clone()));
            }
            (ReplyKind::Auth, _) => {
                self.close(Ending::AuthFailed(error.to_string()));
                self.send(&ReplyHeader::without_zxid(xid, ErrorCode::AuthFailed), &());
            }
            _ => self.refuse(xid, error),
        }
    }

    fn connected(&mut self, request: &ConnectRequest, opened: Option<Part>, synced: Option<Part>) {
        let Some(session) = &self.session else { return self.end(UNFIT) };
        match opened {
            Some((_, Ok(Answer::Reply(Reply::Session { timeout_ms })))) => {
                session.set_timeout(std::time::Duration::from_millis(u64::from(timeout_ms)));
                // The client has seen a write that this instance has not: it has to find another
                // one.
                let seen = request.seen();
                if synced.is_some_and(|(zxid, synced)| synced.is_err() || zxid < seen) {
                    return self.end(Ending::Ahead);
                }
                let (id, secret) = (session.id.0.cast_signed(), session.secret);
                let timeout = i32::try_from(timeout_ms).unwrap_or(i32::MAX);
                let secret = Bytes::copy_from_slice(&secret);
                let read_only = self.reads_alone.is_some();
                self.respond(&ConnectResponse::accepted(request, timeout, id, secret, read_only));
            }
            Some((_, Err(Error::SessionExpired { .. } | Error::WrongPassword { .. }))) => {
                self.session = None;
                self.close(Ending::SessionUnknown);
                self.respond(&ConnectResponse::refused(request));
            }
            Some((_, Err(error))) => self.end(Ending::Unanswered(error)),
            _ => self.end(UNFIT),
        }
    }

    fn respond(&mut self, response: &ConnectResponse) {
        self.counts.sent += 1;
        if let Err(error) = append_frame(&mut self.out, 1 << 10, |to| response.write(to)) {
            self.end(error.into());
        }
    }

    fn multi_read(&mut self, xid: i32, parts: impl Iterator<Item = Part>) {
        let mut results = Vec::new();
        for (_, answer) in parts {
            results.push(match answer {
                Ok(Answer::Children(children, _)) => {
                    Ok(MultiResult::GetChildren(ChildrenReply { children }))
                }
                Ok(Answer::Data { data, stat, is_null }) => {
                    let data = (!is_null).then(|| self.data(&data));
                    Ok(MultiResult::GetData(DataReply { data, stat: convert::stat(&stat) }))
                }
                Ok(_) => return self.end(UNFIT),
                Err(error) => match code(&error) {
                    Some(code) => Err(code.into()),
                    None => return self.end(Ending::Unanswered(error)),
                },
            });
        }
        self.succeed(xid, &MultiReply { results });
    }

    /// Counts in the replica's tree, if the member of a client has not.
    fn count(&mut self, xid: i32, path: &str, tree: Tree) {
        let ids = self.session.as_ref().map(|session| session.ids.load_full()).unwrap_or_default();
        let snapshot = Snapshot::new(Arc::new(tree), Root::default(), ids);
        match snapshot.all_children_number(path) {
            Ok(count) => self.succeed(xid, &i32::try_from(count).unwrap_or(i32::MAX)),
            Err(error) => self.refuse(xid, &error),
        }
    }

    /// Sends the events that restored watches missed since the zxid that the client had seen.
    fn watches_set(
        &mut self,
        xid: i32,
        from: Zxid,
        restored: Vec<RestoredWatch>,
        parts: Vec<Part>,
    ) {
        let mut parts = parts.into_iter().map(|(_, answer)| answer);
        for restore in restored {
            match restore {
                RestoredWatch::Invalid { path } => self.send_missed(EventType::NodeDeleted, path),
                RestoredWatch::OneShot { list, path, watch } => {
                    let missed = match (list, parts.next()) {
                        (OneShot::Data, Some(Ok(Answer::Exists(None))))
                        | (OneShot::Child, Some(Err(Error::NoNode { .. }))) => {
                            Some(EventType::NodeDeleted)
                        }
                        (OneShot::Data, Some(Ok(Answer::Exists(Some(stat)))))
                            if stat.mzxid > from && !planted!(MissedUnsent) =>
                        {
                            Some(EventType::NodeDataChanged)
                        }
                        (OneShot::Exist, Some(Ok(Answer::Exists(Some(_))))) => {
                            Some(EventType::NodeCreated)
                        }
                        (OneShot::Child, Some(Ok(Answer::Children(_, Some(stat)))))
                            if stat.pzxid > from =>
                        {
                            Some(EventType::NodeChildrenChanged)
                        }
                        (_, Some(Ok(_))) => None,
                        // The client may not read the znode any more: no event reveals anything
                        // about it.
                        (_, Some(Err(Error::NoAuth { .. }))) => {
                            if let Some(watch) = watch {
                                self.watches.forget(watch);
                            }
                            continue;
                        }
                        (_, Some(Err(error))) => return self.end(Ending::Unanswered(error)),
                        _ => return self.end(UNFIT),
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
                    let (set, other) =
                        if matches!(first, Some(Ok(_))) && self.watches.is_known(watch) {
                            (watch, again)
                        } else if matches!(second, Some(Ok(_))) {
                            (again, watch)
                        } else {
                            let error = first.into_iter().chain(second).find_map(Result::err);
                            return self.end(error.map_or(UNFIT, Ending::Unanswered));
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

    fn watch_set(&mut self, watch: Option<WatchId>) {
        if let Some(former) = watch.and_then(|watch| self.watches.note_set(watch)) {
            self.unwatch(former);
        }
    }

    fn stat(&mut self, xid: i32, stat: &Stat) {
        self.succeed(xid, &convert::stat(stat));
    }

    fn succeed(&mut self, xid: i32, body: &impl Jute) {
        let header = self.header(xid, ErrorCode::Ok);
        self.send(&header, body);
    }

    fn refuse(&mut self, xid: i32, error: &Error) {
        match code(error) {
            Some(code) => self.fail(xid, code),
            None => self.end(Ending::Unanswered(error.clone())),
        }
    }

    fn fail(&mut self, xid: i32, code: ErrorCode) {
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
