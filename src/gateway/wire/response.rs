//! Replies and events: a header, then the body that belongs to the op, or none after an error.

use bytes::{Bytes, BytesMut};

use super::codes::{ErrorCode, OpCode, ReservedXid};
use super::frame::{TooLong, append_frame};
use super::jute::{Credential, Jute, Unreadable, records};
use super::request::{Acl, MultiHeader};

records! {
    /// Before each reply.
    ReplyHeader {
        /// The request's, or a [`ReservedXid`].
        xid: i32,
        /// The last zxid that the server has applied; of an event, that of the change.
        zxid: i64,
        /// An [`ErrorCode`]. If it is not 0, clients ignore the body.
        err: i32,
    }

    Stat {
        czxid: i64,
        mzxid: i64,
        ctime: i64,
        mtime: i64,
        version: i32,
        cversion: i32,
        aversion: i32,
        ephemeral_owner: i64,
        data_length: i32,
        num_children: i32,
        pzxid: i64,
    }

    /// To create and, with what the request had, to sync.
    PathReply {
        path: Option<String>,
    }

    /// To create2, createContainer and createTTL.
    Create2Reply {
        path: String,
        stat: Stat,
    }

    /// To exists, setData and setACL.
    StatReply {
        stat: Stat,
    }

    DataReply {
        /// Null if the znode was created with null.
        data: Option<Bytes>,
        stat: Stat,
    }

    /// To getChildren: names. To getEphemerals: paths.
    ChildrenReply {
        children: Vec<String>,
    }

    Children2Reply {
        children: Vec<String>,
        stat: Stat,
    }

    AclReply {
        acl: Vec<Acl>,
        stat: Stat,
    }

    /// To getAllChildrenNumber.
    CountReply {
        count: i32,
    }

    /// To addWatch, and of an operation in a multi.
    ErrorReply {
        err: i32,
    }

    SaslReply {
        token: Credential,
    }

    /// An id of the client.
    ClientInfo {
        scheme: String,
        user: String,
    }

    WhoAmIReply {
        clients: Vec<ClientInfo>,
    }

    WatcherEvent {
        /// An `EventType`.
        kind: i32,
        /// A `KeeperState`.
        state: i32,
        path: String,
    }
}

/// The result of one operation of a multi or a multiRead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MultiResult {
    Create(PathReply),
    Create2(Create2Reply),
    SetData(StatReply),
    Delete,
    Check,
    GetChildren(ChildrenReply),
    GetData(DataReply),
    /// An [`ErrorCode`]: 0 for an operation before the one that failed.
    Error(i32),
}

/// To multi and multiRead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MultiReply {
    pub(crate) results: Vec<MultiResult>,
}

/// The type of an error's header; where `done` is set, that of the end.
const ERROR: i32 = MultiHeader::END.kind;

impl MultiResult {
    fn header(&self) -> MultiHeader {
        let (kind, err) = match self {
            MultiResult::Create(_) => (OpCode::Create.into(), 0),
            MultiResult::Create2(_) => (OpCode::Create2.into(), 0),
            MultiResult::SetData(_) => (OpCode::SetData.into(), 0),
            MultiResult::Delete => (OpCode::Delete.into(), 0),
            MultiResult::Check => (OpCode::Check.into(), 0),
            MultiResult::GetChildren(_) => (OpCode::GetChildren.into(), 0),
            MultiResult::GetData(_) => (OpCode::GetData.into(), 0),
            MultiResult::Error(err) => (ERROR, *err),
        };
        MultiHeader { kind, done: false, err }
    }

    fn read_body(kind: i32, from: &mut Bytes) -> Result<Self, Unreadable> {
        if kind == ERROR {
            return ErrorReply::read(from).map(|reply| MultiResult::Error(reply.err));
        }
        match OpCode::try_from(kind) {
            Ok(OpCode::Create) => Jute::read(from).map(MultiResult::Create),
            Ok(OpCode::Create2) => Jute::read(from).map(MultiResult::Create2),
            Ok(OpCode::SetData) => Jute::read(from).map(MultiResult::SetData),
            Ok(OpCode::Delete) => Ok(MultiResult::Delete),
            Ok(OpCode::Check) => Ok(MultiResult::Check),
            Ok(OpCode::GetChildren) => Jute::read(from).map(MultiResult::GetChildren),
            Ok(OpCode::GetData) => Jute::read(from).map(MultiResult::GetData),
            _ => Err(Unreadable),
        }
    }

    fn write_body(&self, to: &mut BytesMut) {
        match self {
            MultiResult::Create(reply) => reply.write(to),
            MultiResult::Create2(reply) => reply.write(to),
            MultiResult::SetData(reply) => reply.write(to),
            MultiResult::Delete | MultiResult::Check => {}
            MultiResult::GetChildren(reply) => reply.write(to),
            MultiResult::GetData(reply) => reply.write(to),
            MultiResult::Error(err) => err.write(to),
        }
    }
}

impl Jute for MultiReply {
    const LEAST: usize = MultiHeader::LEAST;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        let mut results = Vec::new();
        loop {
            let header = MultiHeader::read(from)?;
            if header.done {
                return Ok(MultiReply { results });
            }
            results.push(MultiResult::read_body(header.kind, from)?);
        }
    }

    fn write(&self, to: &mut BytesMut) {
        for result in &self.results {
            result.header().write(to);
            result.write_body(to);
        }
        MultiHeader::END.write(to);
    }
}

/// Appends the frame of a reply; `()` is no body. If it is above the limit, nothing.
pub(crate) fn append_reply(
    to: &mut BytesMut,
    limit: usize,
    header: &ReplyHeader,
    body: &impl Jute,
) -> Result<(), TooLong> {
    append_frame(to, limit, |to| {
        header.write(to);
        body.write(to);
    })
}

impl ReplyHeader {
    /// Before an event.
    pub(crate) fn of_event(zxid: i64) -> Self {
        ReplyHeader { xid: ReservedXid::Event.into(), zxid, err: ErrorCode::Ok.into() }
    }
}
