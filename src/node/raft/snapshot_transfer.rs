//! Bringing a lagging peer up to date: the state itself, in chunks.
//!
//! Raft decides that a peer needs a snapshot. It travels as [`PeerMessage::SnapshotChunk`]s, a few at a
//! time, and ends with Raft's own snapshot message. The receiver steps that message only after the state is
//! built and its hash checked. The host does that outside of the node ([`DiskOp::Build`]), since it takes
//! time in proportion to the state's size. Neither side holds more than a few encoded chunks, and writes go
//! on in the meantime because the state is immutable.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::machine::{Machine, State};
use crate::node::io::{DiskOp, Time};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::raft::numbers_of;
use crate::node::stored::SnapshotMeta;
use crate::types::membership::{Named, NodeId};
use crate::types::znode::Zxid;

/// How many chunks are under way to one peer at first, and while it takes them slowly: on a slow link,
/// urgent messages wait behind the chunks already sent.
const WINDOW_MIN: u32 = 8;

/// How many chunks are under way to all fast peers together. It bounds how many chunks one step of
/// the leader makes: each takes about 0.3 ms if the tree is in no cache.
const WINDOW_MAX: u32 = 32;

/// A learner is sent a state only while fewer transfers than this are under way. Each transfer
/// keeps the state as it was when the transfer began. So this bounds how much replaced data stays
/// in memory, and the share of the network that all learners together take. Other learners wait
/// until a transfer is done. Voters do not wait.
pub(crate) const LEARNER_TRANSFERS_MAX: usize = 8;

/// The leader's side.
#[derive(Debug)]
pub(crate) struct OutgoingSnapshots {
    heartbeat: Duration,
    last_transfer: u64,
    to: BTreeMap<NodeId, Sending>,
}

#[derive(Debug)]
struct Sending {
    transfer: u64,
    term: u64,
    meta: SnapshotMeta,
    chunks: ChunkWriter,
    sent: u32,
    acked: u32,
    /// How many chunks may be sent and not acknowledged.
    window: u32,
    /// The current measurement of the peer's speed: the number of acknowledged chunks at which it ends,
    /// and when it began.
    measured: (u32, Time),
    finished: bool,
    acked_at: Time,
}

impl OutgoingSnapshots {
    /// The transfers of a term. Their numbers begin with the term, so none is used twice.
    pub(crate) fn new(term: u64, heartbeat: Duration) -> OutgoingSnapshots {
        OutgoingSnapshots { heartbeat, last_transfer: numbers_of(term), to: BTreeMap::new() }
    }

    /// Begins a transfer, and gives up any other one to this peer.
    pub(crate) fn begin(
        &mut self,
        to: NodeId,
        term: u64,
        meta: SnapshotMeta,
        state: State,
        now: Time,
    ) -> Vec<PeerMessage> {
        self.last_transfer += 1;
        let mut sending = Sending {
            transfer: self.last_transfer,
            term,
            meta,
            chunks: ChunkWriter::full(state),
            sent: 0,
            acked: 0,
            window: WINDOW_MIN,
            measured: (WINDOW_MIN, now),
            finished: false,
            acked_at: now,
        };
        let messages = sending.fill();
        self.to.insert(to, sending);
        messages
    }

    /// Whether a learner may be sent a state now.
    pub(crate) fn takes_learner(&self, to: NodeId) -> bool {
        self.to.contains_key(&to) || self.to.len() < LEARNER_TRANSFERS_MAX
    }

    /// To how many peers a state is being sent.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.to.len()
    }

    /// The peer has taken the chunks below `next`. The second result is whether it has all of them.
    pub(crate) fn acked(
        &mut self,
        from: NodeId,
        transfer: u64,
        next: u32,
        now: Time,
    ) -> (Vec<PeerMessage>, bool) {
        let share = WINDOW_MAX / self.to.len().max(1) as u32;
        let ours = |sending: &&mut Sending| sending.transfer == transfer && next <= sending.sent;
        let Some(sending) = self.to.get_mut(&from).filter(ours) else {
            return (Vec::new(), false);
        };
        sending.acked = sending.acked.max(next);
        sending.acked_at = now;
        if sending.finished && sending.acked == sending.sent {
            self.to.remove(&from);
            return (Vec::new(), true);
        }
        let is_measured = sending.acked >= sending.measured.0;
        if is_measured {
            let took = now.saturating_sub(sending.measured.1);
            sending.window =
                next_window(sending.window, took, self.heartbeat).min(share.max(WINDOW_MIN));
        }
        let messages = sending.fill();
        if is_measured {
            sending.measured = (sending.sent, now);
        }
        (messages, false)
    }

    /// Gives up a transfer that the peer no longer wants. Returns whether there was one.
    pub(crate) fn abort(&mut self, to: NodeId, transfer: Option<u64>) -> bool {
        let ours = |sending: &Sending| transfer.is_none_or(|transfer| transfer == sending.transfer);
        self.to.get(&to).is_some_and(ours) && self.to.remove(&to).is_some()
    }

    /// Gives up the transfers to peers that have acknowledged nothing since `since`.
    pub(crate) fn take_stalled(&mut self, since: Time) -> Vec<NodeId> {
        let stalled = self.to.iter().filter(|(_, sending)| sending.acked_at < since);
        let stalled: Vec<NodeId> = stalled.map(|(to, _)| *to).collect();
        self.to.retain(|to, _| !stalled.contains(to));
        stalled
    }
}

/// The next window, if a whole window of chunks took this time. If they arrive within a heartbeat, the
/// nodes' other work limits the speed, and more chunks in each step make the transfer faster. If they take
/// two heartbeats, the link limits it, and heartbeats must not wait behind more chunks.
fn next_window(window: u32, took: Duration, heartbeat: Duration) -> u32 {
    if took <= heartbeat {
        window * 2
    } else if took > heartbeat * 2 {
        (window / 2).max(WINDOW_MIN)
    } else {
        window
    }
}

impl Sending {
    fn fill(&mut self) -> Vec<PeerMessage> {
        let mut messages = Vec::new();
        while !self.finished && self.sent < self.acked + self.window {
            let (transfer, number) = (self.transfer, self.sent);
            messages.push(match self.chunks.next() {
                Some(bytes) => {
                    self.sent += 1;
                    PeerMessage::SnapshotChunk { transfer, number, bytes: Bytes::from(bytes) }
                }
                None => {
                    self.finished = true;
                    let meta = self.meta.clone();
                    let body = RaftBody::Snapshot { transfer, chunks: number, meta };
                    PeerMessage::Raft { term: self.term, body }
                }
            });
        }
        messages
    }
}

/// The follower's side: at most one snapshot at a time.
#[derive(Debug, Default)]
pub(crate) struct IncomingSnapshots {
    receiving: Option<Receiving>,
    building: Option<Building>,
    /// A state built from a leader's chunks, until Raft takes or refuses its snapshot.
    pub(in crate::node) staged: Option<ReceivedSnapshot>,
}

/// A state with all its chunks, while the host completes and checks it.
#[derive(Debug)]
pub(crate) struct Building {
    pub(crate) from: NodeId,
    /// Raft's own message, which is stepped with the state.
    pub(crate) term: u64,
    pub(crate) body: RaftBody,
    transfer: u64,
    meta: SnapshotMeta,
    bytes: u64,
}

#[derive(Debug)]
struct Receiving {
    from: NodeId,
    transfer: u64,
    next: u32,
    reader: ChunkReader,
    /// The bytes of the chunks.
    bytes: u64,
}

/// A state built from a leader's chunks.
#[derive(Debug)]
pub(crate) struct ReceivedSnapshot {
    pub(crate) meta: SnapshotMeta,
    pub(crate) machine: Machine,
    /// The bytes of its chunks.
    pub(crate) bytes: u64,
}

/// A line is logged each time that this many bytes of a state were received.
const LOGGED_BYTES: u64 = 256 << 20;

impl IncomingSnapshots {
    /// Takes a chunk and returns the answer. Or returns the version that the cluster acts by, if
    /// that is later than `newest`, the latest that this node supports.
    pub(crate) fn chunk(
        &mut self,
        from: NodeId,
        transfer: u64,
        number: u32,
        bytes: &[u8],
        newest: u16,
    ) -> Result<PeerMessage, u16> {
        if number == 0 {
            let reader = ChunkReader::new();
            self.building = None;
            self.receiving = Some(Receiving { from, transfer, next: 0, reader, bytes: 0 });
        }
        let expected = self.receiving.as_mut().filter(|receiving| {
            receiving.from == from && receiving.transfer == transfer && receiving.next == number
        });
        let Some(receiving) = expected else {
            return Ok(PeerMessage::SnapshotAbort { transfer });
        };
        let taken = receiving.reader.push(bytes);
        let version = receiving.reader.version();
        match taken {
            _ if version > newest => {
                self.receiving = None;
                Err(version)
            }
            Ok(()) => {
                let before = receiving.bytes;
                receiving.next += 1;
                receiving.bytes += bytes.len() as u64;
                if number == 0 || before / LOGGED_BYTES != receiving.bytes / LOGGED_BYTES {
                    let (from, bytes) = (Named::of(from), receiving.bytes);
                    tracing::info!(%from, bytes, "receiving the leader's state");
                }
                Ok(PeerMessage::SnapshotAck { transfer, next: receiving.next })
            }
            Err(reason) => {
                tracing::warn!(from = %Named::of(from), number, reason, "a snapshot chunk does not decode");
                self.receiving = None;
                Ok(PeerMessage::SnapshotAbort { transfer })
            }
        }
    }

    /// The sender has sent all chunks: builds the state from them, and lists what has changed since the zxid of
    /// this node.
    pub(crate) fn build(
        &mut self,
        from: NodeId,
        term: u64,
        body: &RaftBody,
        own: Zxid,
    ) -> Option<DiskOp> {
        let RaftBody::Snapshot { transfer, chunks, meta } = body else { return None };
        let mut ours = self.receiving.take_if(|receiving| {
            let is_whole = receiving.transfer == *transfer && receiving.next == *chunks;
            receiving.from == from && is_whole
        })?;
        let (body, transfer, meta) = (body.clone(), *transfer, meta.clone());
        let (zxid, hash) = (meta.zxid, meta.hash);
        self.building = Some(Building { from, term, body, transfer, meta, bytes: ours.bytes });
        ours.reader.list_changed(own);
        Some(DiskOp::Build { transfer, reader: Box::new(ours.reader), zxid, hash })
    }

    /// Whether a state from this peer is being built. Raft does not know of the snapshot yet, and would
    /// refuse the log behind it.
    pub(crate) fn is_building(&self, from: NodeId) -> bool {
        self.building.as_ref().is_some_and(|building| building.from == from)
    }

    /// The state was built or cannot be. Returns Raft's message for it, unless the transfer was given up.
    pub(crate) fn built(
        &mut self,
        transfer: u64,
        machine: Result<Box<Machine>, String>,
    ) -> Option<(Building, Option<ReceivedSnapshot>)> {
        let ours = self.building.take_if(|building| building.transfer == transfer)?;
        let received = match machine {
            Ok(machine) => {
                let (meta, machine) = (ours.meta.clone(), *machine);
                Some(ReceivedSnapshot { meta, machine, bytes: ours.bytes })
            }
            Err(reason) => {
                let (from, index) = (ours.from, ours.meta.index);
                tracing::warn!(from = %Named::of(from), index, reason, "a received snapshot is damaged or incomplete");
                None
            }
        };
        Some((ours, received))
    }

    pub(crate) fn abort(&mut self, from: NodeId, transfer: u64) {
        self.receiving
            .take_if(|receiving| receiving.from == from && receiving.transfer == transfer);
        self.building.take_if(|building| building.from == from && building.transfer == transfer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::{Batch, Command, Op, Request};
    use crate::node::stored::Voting;
    use crate::types::znode::{CreateMode, SessionId};

    const HEARTBEAT: Duration = Duration::from_millis(100);

    /// A state of a few hundred chunks.
    fn large() -> State {
        let mut machine = Machine::new();
        let id = SessionId(7);
        let open = Command::Open { secret: [9; 16], timeout_ms: 1000, owner: 1, base: 0 };
        let creates = (0..300).map(|n| {
            let data = vec![7; 40 << 10].into();
            Command::Op(Op::Create {
                path: format!("/{n}").into(),
                data,
                mode: CreateMode::Persistent,
            })
        });
        for (seq, command) in (0..).zip(std::iter::once(open).chain(creates)) {
            let request = Request { session: id, holder: 1, seq, acked: seq, command };
            machine.apply(1, &Batch { time: 1000, requests: vec![request] });
        }
        machine.state()
    }

    fn meta() -> SnapshotMeta {
        SnapshotMeta { index: 1, term: 1, zxid: 1, hash: 0, voting: Voting::default() }
    }

    /// Acknowledges all chunks to these peers after so many heartbeats, twice. Returns how many
    /// chunks are then under way to each.
    fn under_way(
        outgoing: &mut OutgoingSnapshots,
        peers: &[NodeId],
        beats: u32,
        now: &mut Time,
    ) -> Vec<u32> {
        for _ in 0..2 {
            *now += HEARTBEAT * beats;
            for peer in peers {
                let (transfer, sent) = (outgoing.to[peer].transfer, outgoing.to[peer].sent);
                outgoing.acked(*peer, transfer, sent, *now);
            }
        }
        peers.iter().map(|peer| outgoing.to[peer].sent - outgoing.to[peer].acked).collect()
    }

    #[test]
    fn more_is_under_way_to_a_peer_that_takes_it_within_a_heartbeat() {
        let (mut outgoing, state, mut now) =
            (OutgoingSnapshots::new(1, HEARTBEAT), large(), Time::ZERO);
        let first = outgoing.begin(2, 1, meta(), state.clone(), now);
        assert_eq!(first.len(), WINDOW_MIN as usize);
        assert_eq!(under_way(&mut outgoing, &[2], 3, &mut now), [WINDOW_MIN], "it is slow");
        assert_eq!(under_way(&mut outgoing, &[2], 1, &mut now), [WINDOW_MAX]);
        assert_eq!(under_way(&mut outgoing, &[2], 2, &mut now), [WINDOW_MAX], "neither");
        assert_eq!(under_way(&mut outgoing, &[2], 3, &mut now), [WINDOW_MIN]);
        outgoing.begin(3, 1, meta(), state, now);
        assert_eq!(
            under_way(&mut outgoing, &[2, 3], 1, &mut now),
            [WINDOW_MAX / 2; 2],
            "they share it"
        );
    }
}
