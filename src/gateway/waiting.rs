//! A request of a client that waits for its answers, or for the turn of its reply.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::connection::ClientConnection;
use super::ending::Ending;
use super::memory::{Memory, SharedData};
use super::output::SHARED_BYTES;
use crate::api::support::{Answer, RequestBody};
use crate::types::error::Result;
use crate::types::znode::Zxid;

/// The longest reply. ZooKeeper has no limit for replies; this one only protects the memory.
pub(super) const REPLY_BYTES_MAX: usize = 256 << 20;
/// About how many bytes a part of a request takes besides its content: here, and at the node while it is in flight.
const PART_BYTES: usize = 512;
/// How many watches that are set again are sent to the node at once: as many as requests may be pending.
pub(super) const WATCHES_AT_ONCE: usize = 128;

/// An answer to a part of a request, with the zxid of the state that it shows.
pub(super) type Part = (Zxid, Result<Answer>);

/// Replies to a request, once all its answers have arrived.
pub(super) type Reply = Box<dyn FnOnce(&mut ClientConnection, i32, Vec<Option<Part>>) + Send>;

/// A request that waits for its answers, or for the turn of its reply.
pub(super) struct WaitingRequest {
    pub(super) xid: i32,
    pub(super) op: i32,
    pub(super) arrived: Duration,
    pub(super) kind: RequestKind,
    pub(super) reply: Reply,
    /// The last parts, which are still to be sent to the node; `None` for a read of an impossible path.
    pub(super) left: VecDeque<Option<RequestBody>>,
    pub(super) parts: Vec<Option<Part>>,
    pub(super) missing: usize,
    /// About how many bytes the request and its answers take.
    pub(super) bytes: usize,
    /// Its data that are shared with the tree.
    shared: Vec<SharedData>,
}

/// The requests that are not like others while they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// The first packet.
    Connect,
    Sync,
    MultiRead,
    SetWatches,
    /// It walks the tree.
    Walk,
    /// It lists children, perhaps many.
    LongList,
    Other,
}

impl WaitingRequest {
    /// A request whose reply has this many parts, as it arrived with the op and these bytes.
    pub(super) fn new(
        (xid, op, bytes): (i32, i32, usize),
        arrived: Duration,
        kind: RequestKind,
        parts: usize,
        reply: Reply,
    ) -> WaitingRequest {
        WaitingRequest {
            xid,
            op,
            arrived,
            kind,
            reply,
            left: VecDeque::new(),
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
    pub(super) fn next_part(&mut self) -> Option<(usize, Option<RequestBody>)> {
        let most = if self.kind == RequestKind::SetWatches { WATCHES_AT_ONCE } else { 1 };
        if self.missing - self.left.len() >= most {
            return None;
        }
        let part = self.parts.len() - self.left.len();
        self.left.pop_front().map(|next| (part, next))
    }

    /// Takes the answer to a part.
    pub(super) fn take(&mut self, part: usize, (zxid, mut answer): Part, memory: &Arc<Memory>) {
        // Of the children of a znode whose watch is set again, nothing is sent.
        if let (RequestKind::SetWatches, Ok(Answer::Children(names, _))) = (self.kind, &mut answer)
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
        let is_too_long = self.kind == RequestKind::MultiRead && bytes > REPLY_BYTES_MAX;
        is_too_long.then_some(Ending::ReplyTooLong { bytes, limit: REPLY_BYTES_MAX })
    }
}

/// About how many bytes an answer takes while it waits for its turn.
fn size(answer: &Result<Answer>) -> usize {
    const SMALL: usize = 64;
    match answer {
        Ok(Answer::Data { data, .. }) => SMALL + data.len(),
        Ok(Answer::Children(names, _)) => names.iter().map(|name| SMALL + name.len()).sum(),
        _ => SMALL,
    }
}
