//! The requests of a client that wait for their answers, or for the turn of their replies.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::connection::ClientConnection;
use super::convert;
use super::ending::Ending;
use super::memory::{Memory, SharedData};
use super::output::SHARED_BYTES;
use crate::api::support::{Answer, RequestBody};
use crate::types::error::Result;
use crate::types::znode::Zxid;

/// How many requests of a client may be pending. Further requests are not read before one of these
/// is replied to.
const WAITING_MAX: usize = 128;
/// The same limit for the bytes of requests in flight, and of replies that wait for their turn.
const WAITING_BYTES: usize = 4 << 20;
/// The longest reply. ZooKeeper has no limit for replies; this one only protects the memory.
pub(super) const REPLY_BYTES_MAX: usize = 256 << 20;
/// About how many bytes a part of a request takes besides its content: here, and at the node while it is in flight.
const PART_BYTES: usize = 512;
/// How many watches that are set again are sent to the node at once: as many as requests may be pending.
const WATCHES_AT_ONCE: usize = 128;

/// An answer to a part of a request, with the zxid of the state that it shows.
pub(super) type Part = (Zxid, Result<Answer>);

/// Replies to a request, once all its answers have arrived.
pub(super) type Reply = Box<dyn FnOnce(&mut ClientConnection, i32, Vec<Option<Part>>) + Send>;

/// A request that waits for its answers, or for the turn of its reply.
pub(super) struct WaitingRequest {
    pub(super) xid: i32,
    pub(super) op: i32,
    pub(super) arrived: Duration,
    kind: RequestKind,
    pub(super) reply: Reply,
    /// The last parts, which are still to be sent to the node; `None` for a read of an impossible path.
    left: VecDeque<Option<RequestBody>>,
    pub(super) parts: Vec<Option<Part>>,
    missing: usize,
    /// About how many bytes the request and its answers take.
    bytes: usize,
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
    fn next_part(&mut self) -> Option<(usize, Option<RequestBody>)> {
        let most = if self.kind == RequestKind::SetWatches { WATCHES_AT_ONCE } else { 1 };
        if self.missing - self.left.len() >= most {
            return None;
        }
        let part = self.parts.len() - self.left.len();
        self.left.pop_front().map(|next| (part, next))
    }

    /// Takes the answer to a part.
    fn take(&mut self, part: usize, (zxid, mut answer): Part, memory: &Arc<Memory>) {
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
    fn shared(&self) -> usize {
        self.shared.iter().map(|data| data.as_ref().len()).sum()
    }

    /// Why the connection ends, if it is a multiRead whose reply cannot be sent.
    fn too_long(&self) -> Option<Ending> {
        let bytes = self.bytes;
        let is_too_long = self.kind == RequestKind::MultiRead && bytes > REPLY_BYTES_MAX;
        is_too_long.then_some(Ending::ReplyTooLong { bytes, limit: REPLY_BYTES_MAX })
    }
}

/// Which requests of a client have no reply yet, in their order, and which answers of the node they wait for.
#[derive(Default)]
pub(super) struct Waiting {
    queue: VecDeque<WaitingRequest>,
    bytes: usize,
    /// How many requests have been replied to.
    replied: u64,
    /// The expected answers, by their numbers.
    expected: BTreeMap<u64, ExpectedAnswer>,
    last_number: u64,
}

struct ExpectedAnswer {
    request: u64,
    part: usize,
    /// Whether it shows `/zookeeper/config`.
    of_config: bool,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// About how many bytes wait, as if none were shared with others.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// About how many bytes wait for this client alone.
    pub(super) fn own_bytes(&self) -> usize {
        let shared: usize = self.queue.iter().map(WaitingRequest::shared).sum();
        self.bytes.saturating_sub(shared)
    }

    /// Whether further requests may be taken.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < WAITING_MAX && self.bytes < WAITING_BYTES && !self.waits_for_last()
    }

    /// Whether any request was replied to.
    pub(super) fn has_replied(&self) -> bool {
        self.replied > 0
    }

    /// How many `sync` requests there are.
    pub(super) fn syncs(&self) -> usize {
        self.queue.iter().filter(|waiting| waiting.kind == RequestKind::Sync).count()
    }

    pub(super) fn push(&mut self, request: WaitingRequest) {
        self.bytes += request.bytes;
        self.queue.push_back(request);
    }

    /// The parts of the last request are these, and are not sent to the node all at once.
    pub(super) fn leave(&mut self, left: VecDeque<Option<RequestBody>>) {
        if let Some(last) = self.queue.back_mut() {
            last.left = left;
        }
    }

    /// The next part to be sent of the last request, if it is not sent all at once.
    pub(super) fn next_part(&mut self) -> Option<(usize, Option<RequestBody>)> {
        self.queue.back_mut()?.next_part()
    }

    /// A part of the last request is sent to the node. Returns the number of the answer.
    pub(super) fn expect(&mut self, part: usize, of_config: bool) -> u64 {
        let request = self.replied + self.queue.len() as u64 - 1;
        self.last_number += 1;
        self.expected.insert(self.last_number, ExpectedAnswer { request, part, of_config });
        self.last_number
    }

    /// Takes the answer of this number. Returns why the connection ends, if it does.
    pub(super) fn take(
        &mut self,
        number: u64,
        (zxid, mut answer): Part,
        memory: &Arc<Memory>,
    ) -> Option<Ending> {
        let ExpectedAnswer { request, part, of_config } = self.expected.remove(&number)?;
        if of_config {
            answer = answer.map(convert::without_members);
        }
        let place = (request - self.replied) as usize;
        self.take_part(place, part, (zxid, answer), memory)
    }

    /// Takes the answer to a part of the last request. Returns why the connection ends, if it does.
    pub(super) fn take_last(
        &mut self,
        part: usize,
        answer: Part,
        memory: &Arc<Memory>,
    ) -> Option<Ending> {
        self.take_part(self.queue.len().checked_sub(1)?, part, answer, memory)
    }

    fn take_part(
        &mut self,
        place: usize,
        part: usize,
        answer: Part,
        memory: &Arc<Memory>,
    ) -> Option<Ending> {
        let waiting = self.queue.get_mut(place)?;
        self.bytes -= waiting.bytes;
        waiting.take(part, answer, memory);
        self.bytes += waiting.bytes;
        waiting.too_long()
    }

    /// Whether requests after the last one wait for it. None of the reads of a multiRead may show their effects,
    /// and a sync, alone or for the first packet, would let later writes overtake it, and the reads behind it show
    /// them. Nothing is sent while watches are set again. Requests that walk the tree are done one at a time, so that
    /// other clients have their turn, and so are long lists, so that a client does not receive many at once.
    fn waits_for_last(&self) -> bool {
        self.queue.back().is_some_and(|last| match last.kind {
            RequestKind::Connect => !planted!(TakenBeforeGreeting),
            RequestKind::Sync => last.missing > 0 && !planted!(SyncOvertaken),
            RequestKind::MultiRead | RequestKind::SetWatches | RequestKind::LongList => {
                last.missing > 0
            }
            RequestKind::Walk => true,
            RequestKind::Other => false,
        })
    }

    /// Whether watches are being set again. The node may answer for some of them in one step and for others in the
    /// next; only then is it known which of the missed changes is the first.
    pub(super) fn sets_watches(&self) -> bool {
        let last = self.queue.back().filter(|last| last.missing > 0);
        last.is_some_and(|last| last.kind == RequestKind::SetWatches)
    }

    /// The zxid of the state that the reply to the first request shows, if all its answers have
    /// arrived and it may be sent. The client has seen `zxid`.
    pub(super) fn next_reply_at(&self, zxid: Zxid) -> Option<Zxid> {
        let first = self.queue.front().filter(|first| first.missing == 0)?;
        let zxids = first.parts.iter().flatten().map(|(zxid, _)| *zxid);
        (!self.sets_watches()).then(|| zxids.max().unwrap_or(zxid))
    }

    /// The first request, which is replied to now.
    pub(super) fn pop(&mut self) -> Option<WaitingRequest> {
        let first = self.queue.pop_front()?;
        self.replied += 1;
        self.bytes -= first.bytes;
        Some(first)
    }

    /// Checks what is true after each turn: no bound is exceeded by more than one message.
    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        assert!(self.queue.len() <= WAITING_MAX);
        assert!(self.expected.len() <= WAITING_MAX + WATCHES_AT_ONCE);
        let counted: usize = self.queue.iter().map(|waiting| waiting.bytes).sum();
        assert_eq!(self.bytes, counted, "what waits is counted");
        // All parts that are expected belong to requests that wait.
        let (first, after) = (self.replied, self.replied + self.queue.len() as u64);
        assert!(self.expected.values().all(|of| (first..after).contains(&of.request)));
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
