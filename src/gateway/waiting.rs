//! A request of a client that waits for its answers, or for the turn of its reply.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::ending::Ending;
use super::memory::{Memory, SharedData};
use super::output::SHARED_BYTES;
use super::requests::RestoredWatch;
use super::wire::codes::{ErrorCode, OpCode};
use super::wire::handshake::ConnectRequest;
use crate::api::support::{Answer, Query, WatchId};
use crate::types::error::Result;
use crate::types::watch::WatcherType;
use crate::types::znode::Zxid;

/// The longest reply. ZooKeeper has no limit for replies; this one only protects the memory.
pub(super) const REPLY_BYTES_MAX: usize = 256 << 20;
/// About how many bytes a part of a request takes besides its content: here, and at the node while it is in flight.
const PART_BYTES: usize = 512;
/// How many watches that are set again are sent to the node at once: as many as requests may be pending.
pub(super) const WATCHES_AT_ONCE: usize = 128;

/// An answer to a part of a request, with the zxid of the state that it shows.
pub(super) type Part = (Zxid, Result<Answer>);

/// A request that waits for its answers, or for the turn of its reply.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) xid: i32,
    pub(super) op: i32,
    pub(super) arrived: Duration,
    pub(super) what: ReplyKind,
    /// The watch that its last part sets, if it sets one.
    pub(super) watch: Option<WatchId>,
    pub(super) parts: Vec<Option<Part>>,
    pub(super) missing: usize,
    /// About how many bytes the request and its answers take.
    pub(super) bytes: usize,
    /// Its data that are shared with the tree.
    shared: Vec<SharedData>,
}

impl WaitingRequest {
    /// A request whose reply has this many parts, as it arrived with the op and these bytes.
    pub(super) fn new(
        (xid, op, bytes): (i32, i32, usize),
        arrived: Duration,
        what: ReplyKind,
        parts: usize,
    ) -> WaitingRequest {
        WaitingRequest {
            xid,
            op,
            arrived,
            what,
            watch: None,
            parts: std::iter::repeat_with(|| None).take(parts).collect(),
            missing: parts,
            // While a request is in flight, the node holds about as many bytes.
            bytes: bytes + parts * PART_BYTES,
            shared: Vec::new(),
        }
    }

    /// The next part to be sent to the node, of a request whose parts are not sent all at once: one read of a
    /// multiRead, so that the client does not receive many at once, and watches that are set again, of which one
    /// packet may have 100,000.
    pub(super) fn next_part(&mut self) -> Option<(usize, Option<Query>)> {
        let (left, most) = match &mut self.what {
            ReplyKind::MultiRead(reads) => (reads, 1),
            ReplyKind::SetWatches { queries, .. } => (queries, WATCHES_AT_ONCE),
            _ => return None,
        };
        if self.missing - left.len() >= most {
            return None;
        }
        let part = self.parts.len() - left.len();
        left.pop_front().map(|next| (part, next))
    }

    /// Takes the answer to a part.
    pub(super) fn take(&mut self, part: usize, (zxid, mut answer): Part, memory: &Arc<Memory>) {
        // Of the children of a znode whose watch is set again, nothing is sent.
        if let (ReplyKind::SetWatches { .. }, Ok(Answer::Children(names, _))) =
            (&self.what, &mut answer)
        {
            *names = Vec::new();
        }
        self.bytes += size(&answer);
        if let Ok(Answer::Data { data, .. }) = &answer
            && data.len() >= SHARED_BYTES
        {
            self.shared.push(memory.share(data));
        }
        self.parts[part] = Some((zxid, answer));
        self.missing -= 1;
    }

    /// How many of its bytes are shared.
    pub(super) fn shared(&self) -> usize {
        self.shared.iter().map(|data| data.as_ref().len()).sum()
    }

    /// Why the connection ends, if it is a multiRead whose reply cannot be sent.
    pub(super) fn too_long(&self) -> Option<Ending> {
        let bytes = self.bytes;
        let is_too_long = matches!(self.what, ReplyKind::MultiRead(_)) && bytes > REPLY_BYTES_MAX;
        is_too_long.then_some(Ending::ReplyTooLong { bytes, limit: REPLY_BYTES_MAX })
    }
}

/// The kind of reply that a request gets.
#[derive(Debug)]
pub(super) enum ReplyKind {
    Connect(ConnectRequest),
    /// A header without a body.
    Code(ErrorCode),
    /// A header without a body, after which the connection is closed.
    Last(ErrorCode),
    /// The reply of a ZooKeeper server without SASL.
    Sasl,
    Done,
    Close,
    Auth,
    Created {
        with_stat: bool,
    },
    Stat,
    Exists,
    Data,
    Children {
        with_stat: bool,
        /// Whether there may be many.
        is_long: bool,
    },
    Acl,
    Path(Option<String>),
    Multi {
        /// The types of the results.
        kinds: Vec<OpCode>,
        /// The index of an operation that fails without the node, and its error.
        refused: Option<(usize, ErrorCode)>,
    },
    /// A multiRead with its reads that are still to be sent to the node; `None` for a read of an
    /// impossible path.
    MultiRead(VecDeque<Option<Query>>),
    SetWatches {
        from: Zxid,
        restored: Vec<RestoredWatch>,
        /// Those that are still to be sent to the node.
        queries: VecDeque<Option<Query>>,
    },
    AddWatch,
    CheckWatches {
        path: String,
        which: WatcherType,
    },
    RemoveWatches {
        path: String,
        which: WatcherType,
    },
    Ephemerals {
        prefix: String,
    },
    Count {
        path: String,
    },
    WhoAmI,
}

/// About how many bytes an answer takes while it waits for its turn.
fn size(answer: &Result<Answer>) -> usize {
    const SMALL: usize = 64;
    match answer {
        Ok(Answer::Data { data, .. }) => SMALL + data.len(),
        Ok(Answer::Children(names, _)) => names.iter().map(|name| SMALL + name.len()).sum(),
        Ok(Answer::Below(_, znodes)) => znodes.iter().map(|znode| znode.size()).sum(),
        _ => SMALL,
    }
}
