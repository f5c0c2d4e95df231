//! Replies and events: a header, then the body that belongs to the op, or none after an error.
//!
//! A body of one value needs no record: exists, setData and setACL are answered by a stat, getAllChildrenNumber by
//! a number, addWatch by a code, sasl by a token, and whoAmI by a list.

use bytes::{Bytes, BytesMut};

use super::codes::{ErrorCode, OpCode, ReservedXid};
use super::frame::{TooLong, append_frame};
use super::jute::{Jute, Unreadable, records};
use super::request::{Acl, MultiHeader, by_op};

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

    /// An id of the client.
    ClientInfo {
        scheme: String,
        user: String,
    }

    WatcherEvent {
        /// An `EventType`.
        kind: i32,
        /// Of the client's session: `SYNC_CONNECTED`.
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

/// To multi and multiRead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MultiReply {
    /// An error is an [`ErrorCode`]: 0 for an operation before the one that failed.
    pub(crate) results: Vec<Result<MultiResult, i32>>,
}

/// The type of an error's header; where `done` is set, that of the end.
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

    fn write(&self, to: &mut BytesMut) {
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
    /// Of a reply that shows no state of the tree.
    pub(crate) fn without_zxid(xid: i32, code: ErrorCode) -> Self {
        ReplyHeader { xid, zxid: 0, err: code.into() }
    }

    /// Before an event.
    pub(crate) fn of_event(zxid: i64) -> Self {
        ReplyHeader { xid: ReservedXid::Event.into(), zxid, err: ErrorCode::Ok.into() }
    }
}
