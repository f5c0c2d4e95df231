//! Converts a client's requests to those of its session.
//!
//! Requests that ZooKeeper refuses before it looks at its tree are refused here; the node decides about all
//! others.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::connection::ClientConnection;
use super::convert::{self, acl_asked, container_mode, expected, is_open, mode, ttl_mode};
use super::ending::Ending;
use super::waiting::RequestKind::{self, Other, Walk};
use super::wire::codes::{
    AddWatchMode, ErrorCode, OpCode, ReservedXid, WatcherType as WireWatcherType,
};
use super::wire::jute::Credential;
use super::wire::request::{self, Decoded, Request, decode};
use super::wire::response::{
    AclReply, Children2Reply, ChildrenReply, Create2Reply, PathReply, ReplyHeader,
};
use crate::api::support::{Ask, EventData, Op, Query, Read, RequestBody, Root, Snapshot, WatchId};
use crate::types::acl::{Acl, Id};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::WatcherType;
use crate::types::znode::{CreateMode, Created, Zxid};

/// A watch that a client had before it reconnected, and how to find the events that it missed.
#[derive(Debug)]
pub(super) enum RestoredWatch {
    /// No znode can have this path.
    Invalid { path: String },
    OneShot {
        list: OneShot,
        path: String,
        /// `None` for the empty path, which is the root's, but has no events of its own.
        watch: Option<WatchId>,
    },
    /// A persistent watch: set from the zxid that the client had seen or, if that is too long ago,
    /// from now on.
    Persistent { watch: WatchId, again: WatchId },
}

/// The lists of one-shot watches that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OneShot {
    /// Watches of znodes that existed.
    Data,
    /// Watches of znodes that were missing.
    Exist,
    Child,
}

/// How many children make no long list.
const CHILDREN_FEW: u32 = 256;

/// As much as is looked at of a scheme's name.
const SCHEME_CHARS_MAX: usize = 64;

impl ClientConnection {
    /// Takes a packet after the first. Returns `false` if it cannot be answered.
    pub(super) fn request(&mut self, frame: Bytes) -> bool {
        let bytes = frame.len();
        let Ok((header, decoded)) = decode(frame) else { return false };
        let xid = header.xid;
        (self.taken.op, self.taken.bytes) = (header.op, bytes);
        // As in ZooKeeper. A client that repeats its first token for as long as it is not authenticated (kazoo)
        // learns by the end of its session that there is no SASL.
        if header.op != i32::from(OpCode::Sasl) {
            self.session.last_received = self.taken.arrived;
        }
        if self.session.alone().is_some()
            && OpCode::try_from(header.op).is_ok_and(|op| self.may_not(op))
        {
            self.fail_in_turn(xid, ErrorCode::NotReadOnly);
            return true;
        }
        let request = match decoded {
            Decoded::Unreadable(OpCode::Auth | OpCode::Sasl) => return false,
            Decoded::Request(Request::Sasl(request::Sasl { token: Credential(None) })) => {
                return false;
            }
            Decoded::Request(request) => request,
            Decoded::Unreadable(OpCode::CloseSession) => Request::CloseSession,
            Decoded::Unreadable(_) => {
                self.fail_in_turn(xid, ErrorCode::MarshallingError);
                return true;
            }
            Decoded::UnknownOp => {
                self.refuse_op(xid);
                return true;
            }
        };
        if let Err(code) = self.dispatch(xid, request) {
            self.fail_in_turn(xid, code);
        }
        true
    }

    fn dispatch(&mut self, xid: i32, request: Request) -> Result<(), ErrorCode> {
        match request {
            Request::Ping => {
                self.reply_in_turn(ReservedXid::Ping.into(), |own, xid| own.succeed(xid, &()));
            }
            Request::Create(body) => self.create(xid, false, body, mode)?,
            Request::Create2(body) => self.create(xid, true, body, mode)?,
            Request::CreateContainer(body) => self.create(xid, true, body, container_mode)?,
            Request::CreateTtl(request::CreateTtl { create, ttl }) => {
                self.create(xid, true, create, |flags| ttl_mode(flags, ttl))?;
            }
            Request::Delete(body) => {
                let ask = Ask::delete(Self::delete_op(body)?);
                self.ask(xid, Other, ask, |own, xid, ()| own.succeed(xid, &()));
            }
            Request::SetData(body) => {
                let ask = Ask::set(Self::set_op(body)?);
                self.ask(xid, Other, ask, |own, xid, stat| own.stat(xid, &stat));
            }
            Request::SetAcl(body) => {
                let path = body.path.ok_or(ErrorCode::BadArguments)?;
                let path = written(path)?;
                let acl = acl_asked(body.acl)?;
                self.check_acl(&path, &acl)?;
                let op = Op::SetAcl { path: path.into(), acl, version: expected(body.version) };
                self.ask(xid, Other, Ask::set(op), |own, xid, stat| own.stat(xid, &stat));
            }
            Request::Exists(body) => self.exists(xid, body)?,
            Request::GetData(body) => {
                let ask = self.watching(Ask::get_or_null(read_path(body.path)?), body.watch);
                self.ask(xid, Other, ask, |own, xid, read| {
                    let reply = own.data(read);
                    own.succeed(xid, &reply);
                });
            }
            Request::GetChildren(body) => self.children(xid, body, false)?,
            Request::GetChildren2(body) => self.children(xid, body, true)?,
            Request::GetAcl(body) => {
                let ask = Ask::acl(read_path(body.path)?);
                self.ask(xid, Other, ask, |own, xid, (acl, stat)| {
                    let acl = acl.into_iter().map(convert::acl).collect();
                    own.succeed(xid, &AclReply { acl, stat: convert::stat(&stat) });
                });
            }
            Request::Reconfig(_) => return Err(ErrorCode::Unimplemented),
            Request::Sync(body) => {
                self.ask(xid, RequestKind::Sync, Ask::sync(), |own, xid, _| {
                    own.succeed(xid, &PathReply { path: body.path });
                });
            }
            Request::Multi(multi) => self.multi(xid, multi.ops)?,
            Request::MultiRead(multi) => self.read_several(xid, multi.ops)?,
            Request::Auth(body) => self.authenticate(xid, body),
            // The reply of a ZooKeeper server without SASL.
            Request::Sasl(_) => self.reply_in_turn(xid, |own, xid| {
                let header = ReplyHeader::without_zxid(xid, ErrorCode::Ok);
                own.send(&header, &Credential(None));
            }),
            Request::SetWatches(body) => self.set_watches(xid, body, Vec::new(), Vec::new()),
            Request::SetWatches2(body) => {
                self.set_watches(xid, body.one_shot, body.persistent, body.persistent_recursive);
            }
            Request::AddWatch(body) => self.add_watch(xid, body)?,
            Request::CheckWatches(body) => self.check_watches(xid, body)?,
            Request::RemoveWatches(body) => self.remove_watches(xid, body)?,
            Request::GetEphemerals(body) => {
                let prefix = body.path.filter(|path| path != "/").unwrap_or_default();
                self.ask(xid, Walk, Ask::ephemerals(), move |own, xid, mut paths| {
                    paths.retain(|path| path.starts_with(&prefix));
                    own.succeed(xid, &ChildrenReply { children: paths });
                });
            }
            Request::GetAllChildrenNumber(body) => self.count(xid, read_path(body.path)?),
            Request::WhoAmI => self.ask(xid, Other, Ask::ids(), |own, xid, ids| {
                own.succeed(xid, &ids.into_iter().map(convert::client_info).collect::<Vec<_>>());
            }),
            Request::CloseSession => self.close_session(xid),
            // Requests of servers, which clients must not send, and one that has no meaning outside of a
            // multi.
            Request::CreateSession | Request::DeleteContainer(_) | Request::Check(_) => {
                self.refuse_op(xid);
            }
        }
        Ok(())
    }

    fn create(
        &mut self,
        xid: i32,
        with_stat: bool,
        body: request::Create,
        mode: impl FnOnce(i32) -> Result<CreateMode, ErrorCode>,
    ) -> Result<(), ErrorCode> {
        let ask = Ask::create(self.create_op(body, mode)?);
        self.ask(xid, Other, ask, move |own, xid, Created { path, stat }| match with_stat {
            true => own.succeed(xid, &Create2Reply { path, stat: convert::stat(&stat) }),
            false => own.succeed(xid, &PathReply { path: Some(path) }),
        });
        Ok(())
    }

    pub(super) fn create_op(
        &self,
        body: request::Create,
        mode: impl FnOnce(i32) -> Result<CreateMode, ErrorCode>,
    ) -> Result<Op, ErrorCode> {
        let path = body.path.ok_or(ErrorCode::MarshallingError)?;
        let mode = mode(body.flags)?;
        if has_no_parent(&path) {
            return Err(ErrorCode::BadArguments);
        }
        let acl = acl_asked(body.acl)?;
        self.check_acl(&path, &acl)?;
        let valid = match mode.is_sequential() {
            true => path::validate_sequential(&path),
            false => path::validate(&path),
        };
        if valid.is_err() {
            return Err(self.invalid(&path));
        }
        let (path, data) = (path.into(), body.data.into());
        Ok(match is_open(&acl) {
            true => Op::Create { path, data, mode },
            false => Op::CreateWithAcl { path, data, mode, acl },
        })
    }

    pub(super) fn delete_op(body: request::Delete) -> Result<Op, ErrorCode> {
        let path = body.path.ok_or(ErrorCode::MarshallingError)?;
        match path::validate(&path) {
            Ok(()) => Ok(Op::Delete { path: path.into(), version: expected(body.version) }),
            Err(_) if has_no_parent(&path) => Err(ErrorCode::BadArguments),
            Err(_) => Err(ErrorCode::NoNode),
        }
    }

    pub(super) fn set_op(body: request::SetData) -> Result<Op, ErrorCode> {
        let path = body.path.ok_or(ErrorCode::BadArguments)?;
        let path = written(path)?.into();
        Ok(Op::Set { path, data: body.data.into(), version: expected(body.version) })
    }

    /// The error of a create at an invalid path: ZooKeeper looks for the parent first.
    fn invalid(&self, path: &str) -> ErrorCode {
        let parent = path.rfind('/').map(|slash| &path[..slash.max(1)]);
        match parent {
            Some(parent) if self.shared.has_replica && self.shared.tree().get(parent).is_none() => {
                ErrorCode::NoNode
            }
            _ => ErrorCode::BadArguments,
        }
    }

    fn check_acl(&self, path: &str, acl: &[Acl]) -> Result<(), ErrorCode> {
        let too_many = acl.len() > Acl::ENTRIES_MAX;
        let unknown = self.shared.schemes.check(path, acl).is_err();
        let invalid = acl.iter().any(|entry| entry.id.check().is_err());
        if too_many || unknown || invalid { Err(ErrorCode::InvalidAcl) } else { Ok(()) }
    }

    fn children(
        &mut self,
        xid: i32,
        body: request::Read,
        with_stat: bool,
    ) -> Result<(), ErrorCode> {
        let path = read_path(body.path)?;
        let tree = self.shared.tree();
        let is_long = match self.shared.has_replica {
            true => tree.get(&path).is_some_and(|of| of.stat().num_children > CHILDREN_FEW),
            false => true,
        };
        drop(tree);
        let kind = if is_long { RequestKind::LongList } else { Other };
        let ask = self.watching(Ask::children(path), body.watch);
        self.ask(xid, kind, ask, move |own, xid, (children, stat)| match with_stat {
            true => own.succeed(xid, &Children2Reply { children, stat: convert::stat(&stat) }),
            false => own.succeed(xid, &ChildrenReply { children }),
        });
        Ok(())
    }

    fn exists(&mut self, xid: i32, body: request::Read) -> Result<(), ErrorCode> {
        if body.path.as_ref().is_some_and(|path| path.contains('\0')) {
            return Err(ErrorCode::BadArguments);
        }
        let ask = self.watching(Ask::exists(read_path(body.path)?), body.watch);
        self.ask(xid, Other, ask, |own, xid, stat| match stat {
            Some(stat) => own.stat(xid, &stat),
            None => own.fail(xid, ErrorCode::NoNode),
        });
        Ok(())
    }

    /// A replica's tree is counted here, and not on the node's thread.
    fn count(&mut self, xid: i32, path: Arc<str>) {
        let reply = |own: &mut ClientConnection, xid, count: Result<usize>| match count {
            Ok(count) => own.succeed(xid, &i32::try_from(count).unwrap_or(i32::MAX)),
            Err(error) => own.refuse(xid, &error),
        };
        if !self.shared.has_replica {
            return self.ask_or(xid, Walk, Ask::count(path), reply);
        }
        self.ask(xid, Walk, Ask::tree(), move |own, xid, tree| {
            let ids = own.session.get().map(|session| session.ids.load_full());
            let snapshot = Snapshot::new(tree, Root::default(), ids.unwrap_or_default());
            reply(own, xid, snapshot.all_children_number(&path));
        });
    }

    fn close_session(&mut self, xid: i32) {
        self.ask(xid, Other, Ask::close(), |own, xid, ()| {
            own.session.end();
            own.close(Ending::SessionClosed);
            own.succeed(xid, &());
            // A client is not notified of changes after that.
            own.events.clear();
        });
        self.close(Ending::SessionClosed);
    }

    fn check_watches(&mut self, xid: i32, body: request::WatchesOf) -> Result<(), ErrorCode> {
        let which = watcher_type(body.kind)?;
        let path = body.path.ok_or(ErrorCode::MarshallingError)?;
        self.reply_in_turn(xid, move |own, xid| match own.watches.has(&path, which) {
            true => own.succeed(xid, &()),
            false => own.fail(xid, ErrorCode::NoWatcher),
        });
        Ok(())
    }

    fn remove_watches(&mut self, xid: i32, body: request::WatchesOf) -> Result<(), ErrorCode> {
        let which = watcher_type(body.kind)?;
        let path = body.path.filter(|path| path::validate(path).is_ok());
        let path = path.ok_or(ErrorCode::NoWatcher)?;
        let ask = Ask::remove_watches(path.as_str().into(), which);
        // The node may still have a watch whose event stands before this reply.
        self.ask_or(xid, Other, ask, move |own, xid, removed| {
            let failed = removed.err().filter(|error| !matches!(error, Error::NoWatch { .. }));
            match (failed, own.watches.remove(&path, which)) {
                (Some(error), _) => own.refuse(xid, &error),
                (None, true) => own.succeed(xid, &()),
                (None, false) => own.fail(xid, ErrorCode::NoWatcher),
            }
        });
        Ok(())
    }

    fn authenticate(&mut self, xid: i32, body: request::Auth) {
        let Credential(credentials) = body.auth;
        // A longer one than any scheme's would fill the log.
        let scheme = body.scheme.unwrap_or_default();
        let scheme: String = scheme.chars().take(SCHEME_CHARS_MAX).collect();
        match (scheme.as_str(), self.identity.certified.clone()) {
            // The session has this id already.
            ("x509", Some(id)) => {
                let more = self.identity.is_super().then(Id::superuser);
                self.authenticated(xid, Ok([id].into_iter().chain(more).collect()));
            }
            ("ip", _) => self.authenticated(xid, Ok(vec![self.identity.ip()])),
            // An x509 id comes from a certificate, not from a request.
            ("x509" | "world" | "auth" | "super" | "", _) => {
                let reason = "clients of a gateway cannot ask for it".to_owned();
                self.authenticated(xid, Err(Error::AuthFailed { scheme, reason }));
            }
            _ => self.check_credentials(xid, scheme, &credentials.unwrap_or_default()),
        }
    }

    /// Takes the result of a check of credentials.
    pub(super) fn authenticated(&mut self, xid: i32, ids: Result<Vec<Id>>) {
        match ids {
            Ok(ids) => self.ask_or(xid, Other, Ask::authenticate(ids), Self::has_authenticated),
            Err(error) => {
                self.reply_in_turn(xid, |own, xid| {
                    let header = ReplyHeader { xid, zxid: 0, err: ErrorCode::AuthFailed.into() };
                    own.send(&header, &());
                });
                self.close(Ending::AuthFailed(error.to_string()));
            }
        }
    }

    fn add_watch(&mut self, xid: i32, body: request::AddWatch) -> Result<(), ErrorCode> {
        let recursive = match AddWatchMode::try_from(body.mode) {
            Ok(AddWatchMode::Persistent) => false,
            Ok(AddWatchMode::PersistentRecursive) => true,
            Err(_) => return Err(ErrorCode::MarshallingError),
        };
        let reply = |own: &mut ClientConnection, xid| own.succeed(xid, &i32::from(ErrorCode::Ok));
        // A watch of a path that no znode can have has no effect, and is no error.
        let Some(path) = body.path.filter(|path| path::validate(path).is_ok()) else {
            self.reply_in_turn(xid, reply);
            return Ok(());
        };
        let watch = self.shared.next_watch();
        let ask = Ask::watch(watch, path.into(), recursive, None, EventData::None);
        self.ask(xid, Other, ask, move |own, xid, ()| reply(own, xid));
        Ok(())
    }

    fn set_watches(
        &mut self,
        xid: i32,
        one_shot: request::SetWatches,
        persistent: Vec<Option<String>>,
        recursive: Vec<Option<String>>,
    ) {
        let request::SetWatches { relative_zxid, data, exist, child } = one_shot;
        let from: Zxid = u64::try_from(relative_zxid).unwrap_or(0);
        let (mut restored, mut left) = (Vec::new(), VecDeque::new());
        let valid = |path: &String| path::validate(path).is_ok();
        let named = |list: Vec<Option<String>>| list.into_iter().map(Option::unwrap_or_default);
        let lists = [(data, OneShot::Data), (exist, OneShot::Exist), (child, OneShot::Child)];
        for (paths, list) in lists {
            for path in named(paths) {
                if path.is_empty() || valid(&path) {
                    let watch = (!path.is_empty()).then(|| self.shared.next_watch());
                    let of = if path.is_empty() { "/" } else { &path }.into();
                    let read = match list {
                        OneShot::Data | OneShot::Exist => Read::Exists { path: of },
                        OneShot::Child => Read::Children { path: of },
                    };
                    left.push_back(Some(RequestBody::Query(Query::Read { read, watch })));
                    restored.push(RestoredWatch::OneShot { list, path, watch });
                } else if list != OneShot::Exist {
                    restored.push(RestoredWatch::Invalid { path });
                }
            }
        }
        for (list, recursive) in [(persistent, false), (recursive, true)] {
            for path in named(list).filter(valid) {
                let path: Arc<str> = path.into();
                let (watch, again) = (self.shared.next_watch(), self.shared.next_watch());
                for (watch, from) in [(watch, Some(from)), (again, None)] {
                    let (path, data) = (Arc::clone(&path), EventData::None);
                    let query = Query::Watch { watch, path, recursive, from, data };
                    left.push_back(Some(RequestBody::Query(query)));
                }
                restored.push(RestoredWatch::Persistent { watch, again });
            }
        }
        self.expect_all(xid, RequestKind::SetWatches, left, move |own, xid, parts| {
            own.watches_set(xid, from, restored, parts);
        });
    }

    /// Sets a watch with the read, if the client wants that.
    fn watching<T>(&self, ask: Ask<T>, watches: bool) -> Ask<T> {
        match watches {
            true => ask.watching(self.shared.next_watch()),
            false => ask,
        }
    }
}

/// The path of a write that is not a create.
pub(super) fn written(path: String) -> Result<String, ErrorCode> {
    match path::validate(&path) {
        Ok(()) => Ok(path),
        Err(_) => Err(ErrorCode::BadArguments),
    }
}

/// ZooKeeper's first check of a path.
fn has_no_parent(path: &str) -> bool {
    !path.contains('/') || path.contains('\0')
}

/// The path of a read. No path means the root; for a path that no znode can have, the error is that
/// of a missing znode.
pub(super) fn read_path(path: Option<String>) -> Result<Arc<str>, ErrorCode> {
    let path = path.ok_or(ErrorCode::MarshallingError)?;
    if path.is_empty() {
        return Ok("/".into());
    }
    match path::validate(&path) {
        Ok(()) => Ok(path.into()),
        Err(_) => Err(ErrorCode::NoNode),
    }
}

fn watcher_type(kind: i32) -> Result<WatcherType, ErrorCode> {
    Ok(match WireWatcherType::try_from(kind) {
        Ok(WireWatcherType::Children) => WatcherType::Children,
        Ok(WireWatcherType::Data) => WatcherType::Data,
        Ok(WireWatcherType::Any) => WatcherType::Any,
        Ok(WireWatcherType::Persistent) => WatcherType::Persistent,
        Ok(WireWatcherType::PersistentRecursive) => WatcherType::PersistentRecursive,
        Err(_) => return Err(ErrorCode::MarshallingError),
    })
}
