//! Replies and events: a header, then the body that belongs to the op; no body after an error.
//!
//! A body of one value needs no record: the reply to exists, setData and setACL is a stat, that to
//! getAllChildrenNumber a number, to addWatch a code, to sasl a token, and to whoAmI a list.

use bytes::Bytes;

use super::codes::{ErrorCode, OpCode, ReservedXid};
use super::frame::{TooLong, append_frame};
use super::jute::{Jute, Sink, Unreadable, records};
use super::request::{Acl, MultiHeader, by_op};

records! {
    /// Before each reply.
    ReplyHeader {
        /// The request's, or a [`ReservedXid`].
        xid: i32,
        /// The last zxid that the server has applied; in an event, the zxid of the change.
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

    /// The reply to create and, with the request's path, to sync.
    PathReply {
        path: Option<String>,
    }

    /// The reply to create2, createContainer and createTTL.
    Create2Reply {
        path: String,
        stat: Stat,
    }

    DataReply {
        /// Null if the znode's data is null.
        data: Option<Bytes>,
        stat: Stat,
    }

    /// The reply to getChildren, with names, and to getEphemerals, with paths.
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

    /// An id of the client.
    ClientInfo {
        scheme: String,
        user: String,
    }

    WatcherEvent {
        /// An `EventType`.
        kind: i32,
        /// The state of the client's session: `SYNC_CONNECTED`.
        state: i32,
        path: String,
    }
}

by_op! {
    /// The result of one operation of a multi or a multiRead.
    MultiResult {
        Create(PathReply),
        Create2(Create2Reply),
        SetData(Stat),
        GetChildren(ChildrenReply),
        GetData(DataReply),
    } bare {
        Delete,
        Check,
    }
}

/// The reply to multi and multiRead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MultiReply {
    /// An error is an [`ErrorCode`]: 0 for an operation before the one that failed.
    pub(crate) results: Vec<Result<MultiResult, i32>>,
}

/// The type in the header of an error and, if `done` is set, in the header of the end.
const ERROR: i32 = MultiHeader::END.kind;

impl Jute for MultiReply {
    const LEAST: usize = MultiHeader::LEAST;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        let mut results = Vec::new();
        loop {
            let header = MultiHeader::read(from)?;
            if header.done {
                return Ok(MultiReply { results });
            }
            results.push(match header.kind {
                ERROR => Err(i32::read(from)?),
                kind => {
                    let op = OpCode::try_from(kind).map_err(|_| Unreadable)?;
                    Ok(MultiResult::read(op, from)?)
                }
            });
        }
    }

    fn write(&self, to: &mut dyn Sink) {
        for result in &self.results {
            match result {
                Ok(result) => {
                    MultiHeader { kind: result.op().into(), done: false, err: 0 }.write(to);
                    result.write(to);
                }
                Err(err) => {
                    MultiHeader { kind: ERROR, done: false, err: *err }.write(to);
                    err.write(to);
                }
            }
        }
        MultiHeader::END.write(to);
    }
}

/// Appends the frame of a reply; `()` is an empty body. Appends nothing if the frame is above the
/// limit.
pub(crate) fn append_reply(
    to: &mut dyn Sink,
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
    /// The header of a reply that shows no state of the tree.
    pub(crate) fn without_zxid(xid: i32, code: ErrorCode) -> Self {
        ReplyHeader { xid, zxid: 0, err: code.into() }
    }

    /// The header of an event.
    pub(crate) fn of_event(zxid: i64) -> Self {
        ReplyHeader { xid: ReservedXid::Event.into(), zxid, err: ErrorCode::Ok.into() }
    }
}
