//! A node that gets plausible inputs.
//!
//! Random bytes rarely pass a decoder, and decoded messages rarely fit a node's
//! log. Here the bytes only select the next step: a message made from the
//! node's own log and term, exact or slightly wrong, a request of its users, an
//! answer of its disk, or a kill and a restart from the durable state. In all
//! cases, raft-rs must not panic, the node must be able to restart, and no
//! message that depends on a write may be sent before the write is durable.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::machine::State;
use crate::machine::command::{Batch, Command, Op, Request};
use crate::machine::data::Data;
use crate::machine::snapshot::ChunkWriter;
use crate::node::admin::message::{Action, AdminReply, AdminRequest};
use crate::node::io::{DiskOp, Effects, Input, Now, Problem, RequestId, Time, WatchId};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::query::{EventData, Query, Read};
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::stored::{EntryKind, HardState, Identity, LogEntry, SnapshotMeta, Voting};
use crate::node::{LogLimits, Node, NodeConfig};
use crate::runtime::boot;
use crate::runtime::disk::InlineDisk;
use crate::storage::{LogStore, MemoryDisk};
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::counter::CounterForm;
use crate::types::membership::{Genesis, Member, NodeId};
use crate::types::queue::QueueOrder;
use crate::types::session::SessionState;
use crate::types::watch::WatcherType;
use crate::types::znode::{CreateMode, SessionId};

const ID: NodeId = 1;
const HEARTBEAT: Time = Time::from_millis(100);

/// Runs a node as the bytes select, until they end or the node stops.
pub fn engine(bytes: &[u8]) {
    let mut world = World::new(Choices { bytes });
    while !world.choices.bytes.is_empty() && world.advance() {}
}

/// The versions of peers are below this. The node supports all of them, as it would stop otherwise.
const VERSIONS: u8 = 4;

/// The choices of the bytes. After their end, always the first option.
struct Choices<'a> {
    bytes: &'a [u8],
}

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        *first
    }

    fn below(&mut self, many: u8) -> u8 {
        self.byte() % many
    }

    /// Mostly this number, sometimes one near it, seldom an extreme one.
    fn near(&mut self, number: u64) -> u64 {
        match self.below(16) {
            0..=8 => number,
            9..=10 => number.saturating_add(1),
            11..=12 => number.saturating_sub(1),
            13 => number.saturating_add(u64::from(self.byte())),
            14 => number.saturating_sub(u64::from(self.byte())),
            _ => [0, 1, u64::MAX, u64::MAX - 1, 1 << 62, (1 << 62) - 1][usize::from(self.below(6))],
        }
    }
}

struct World<'a> {
    choices: Choices<'a>,
    disk: MemoryDisk,
    /// The disk of the running node.
    running: InlineDisk,
    node: Node,
    now: Now,
    starts: u64,
    /// The operations that the disk has not done yet.
    queue: VecDeque<DiskOp>,
    /// The durable hard state, and the last index of the durable log.
    durable: (HardState, u64),
    /// The largest durable index since the last step, since durable entries may be replaced at once.
    peak: u64,
    /// Heartbeat contexts and ReadIndex requests that the node has sent, to be answered.
    contexts: Vec<Bytes>,
    read_indexes: Vec<(u64, u64)>,
    requests: u64,
    transfers: u64,
    /// A state that can be sent as a snapshot, with the zxid and the hash that it has.
    other: Option<State>,
}

impl<'a> World<'a> {
    fn new(mut choices: Choices<'a>) -> World<'a> {
        let nodes = [1, 2, 3, 5][usize::from(choices.below(4))];
        let member = |node| Member::new(node, format!("node-{node}"));
        let founding = Genesis { cluster: 1, members: (1..=nodes).map(member).collect() };
        let address = "node-1".to_owned();
        let identity = Identity { cluster: 1, node: ID, incarnation: 1, address, uid: ID };
        let (hard_state, meta, state) = founding.start();
        let disk = MemoryDisk::new();
        let durable = (hard_state, meta.index);
        disk.open()
            .found(&identity, hard_state, &meta, &mut ChunkWriter::full(state))
            .expect("a blank store can be founded");
        let now = Now { mono: Time::from_secs(100), wall_ms: 1_000_000 };
        let (running, node) = start(&disk, now, 1);
        World {
            choices,
            disk,
            running,
            node,
            now,
            starts: 1,
            queue: VecDeque::new(),
            durable,
            peak: 0,
            contexts: Vec::new(),
            read_indexes: Vec::new(),
            requests: 0,
            transfers: 0,
            other: None,
        }
    }

    /// Performs one choice. Returns `false` once the node has stopped for a good reason.
    fn advance(&mut self) -> bool {
        let inputs = match self.choices.below(16) {
            0..=2 => {
                let heartbeats = [1, 1, 1, 2, 25, 400][usize::from(self.choices.below(6))];
                self.now.mono += HEARTBEAT * heartbeats;
                Vec::new()
            }
            3..=5 => self.disk_answers(),
            6 => vec![self.request()],
            7 if self.choices.below(4) == 0 => {
                self.restart();
                Vec::new()
            }
            7 => vec![self.event()],
            8 => self.snapshot(),
            _ => {
                let from = [2, 2, 2, 3, 3, ID, 9, 0][usize::from(self.choices.below(8))];
                vec![Input::Peer { from, message: self.message(from) }]
            }
        };
        let effects = self.node.step(self.now, inputs);
        self.take(effects)
    }

    fn take(&mut self, effects: Effects) -> bool {
        for (to, message) in effects.messages {
            // The message is encoded and decoded, as on the wire.
            let bytes = message.encode(Vec::new());
            assert_eq!(PeerMessage::decode(&bytes).as_ref(), Ok(&message));
            self.check_durable(to, &message);
            match message {
                PeerMessage::Raft { body: RaftBody::Heartbeat { context, .. }, .. } => {
                    self.contexts.push(context);
                }
                PeerMessage::ReadIndex { boot, read_index, .. } => {
                    self.read_indexes.push((boot, read_index))
                }
                _ => {}
            }
        }
        self.peak = 0;
        self.queue.extend(effects.disk);
        if let Some(reason) = effects.stopped {
            assert!(!reason.contains("broken invariant"), "{reason}");
            return false;
        }
        true
    }

    /// Checks that votes and acknowledgements depend only on durable state.
    fn check_durable(&self, to: NodeId, message: &PeerMessage) {
        let (hard_state, last) = (&self.durable.0, &self.peak.max(self.durable.1));
        let PeerMessage::Raft { term, body } = message else {
            return;
        };
        match body {
            // Index 0 acknowledges nothing; it informs a former leader of the term.
            RaftBody::AppendResponse { index: index @ 1.., reject: false, .. } => {
                assert!(index <= last, "acknowledges {index} before it is durable: {last}");
                assert!(*term <= hard_state.term);
            }
            RaftBody::VoteResponse { pre: false, reject: false, .. } => {
                assert!(hard_state.term > *term || hard_state.vote == to, "a vote not durable");
                assert!(hard_state.term >= *term);
            }
            RaftBody::Vote { pre: false, .. } => {
                assert!(
                    hard_state.term > *term || hard_state.vote == ID,
                    "a candidacy not durable"
                );
                assert!(hard_state.term >= *term);
            }
            _ => {}
        }
    }

    /// Performs the next few operations of the disk.
    fn disk_answers(&mut self) -> Vec<Input> {
        let many = usize::from(self.choices.below(4)) + 1;
        let many = many.min(self.queue.len());
        let mut answers = Vec::new();
        for op in self.queue.drain(..many) {
            match &op {
                DiskOp::Write { write, .. } => {
                    self.durable.0 = write.hard_state.unwrap_or(self.durable.0);
                    if let Some(last) = write.entries.last() {
                        self.durable.1 = last.index;
                    }
                }
                DiskOp::Install { hard_state, meta, .. } => {
                    self.durable = (*hard_state, meta.index);
                }
                DiskOp::Checkpoint { .. }
                | DiskOp::Read { .. }
                | DiskOp::Build { .. }
                | DiskOp::Drop { .. }
                | DiskOp::Identify { .. }
                | DiskOp::Promise { .. }
                | DiskOp::Removed { .. } => {}
            }
            self.peak = self.peak.max(self.durable.1);
            answers.extend(self.running.perform(op, self.now.mono));
        }
        let failed = answers.iter().find(|input| matches!(input, Input::Failed { .. }));
        assert!(failed.is_none(), "a store in memory works: {failed:?}");
        answers
    }

    /// Kills the node, and restarts it from the durable state.
    fn restart(&mut self) {
        self.queue.clear();
        self.starts += 1;
        (self.running, self.node) = start(&self.disk, self.now, self.starts);
        let status = self.node.status();
        assert!(status.term >= self.durable.0.term);
        // The only member leads at once, and has appended the first entry of its term.
        let first = u64::from(status.is_leader);
        assert_eq!(self.node.last_index(), self.durable.1 + first);
    }

    fn event(&mut self) -> Input {
        let peer = u64::from(self.choices.below(4));
        match self.choices.below(5) {
            0 | 1 => Input::Connected { peer, version: self.version() },
            2 => {
                let problem = Problem { reason: "gone".to_owned(), refused: false };
                Input::Unreachable { peer, problem }
            }
            3 => Input::Resign,
            _ => Input::Expire { session: self.session() },
        }
    }

    fn session(&mut self) -> SessionId {
        SessionId(u64::from(self.choices.below(3)) + 1)
    }

    fn path(&mut self) -> String {
        let paths = [
            "/a",
            "/b",
            "/a/x",
            "/",
            "/c-",
            "/zookeeper/quota/zookeeper_stats",
            "/zookeeper/quota/zookeeper_limits",
        ];
        paths[usize::from(self.choices.below(7))].to_owned()
    }

    fn ids(&mut self) -> Vec<Id> {
        let all = [Id::new("digest", "alice:h"), Id::new("ip", "10.0.0.1"), Id::superuser()];
        all.into_iter().take(usize::from(self.choices.below(4))).collect()
    }

    fn version(&mut self) -> u16 {
        u16::from(self.choices.below(VERSIONS))
    }

    fn acl(&mut self) -> Vec<Acl> {
        let ids = [Id::anyone(), Id::auth(), Id::new("digest", "alice:h"), Id::new("ip", "::/0")];
        let permissions =
            Permissions::from_bits(self.choices.below(32)).unwrap_or(Permissions::ALL);
        let count = usize::from(self.choices.below(5));
        ids.into_iter().take(count).map(|id| Acl::new(permissions, id)).collect()
    }

    fn op(&mut self) -> Op {
        let path = self.path();
        let modes = [
            CreateMode::Persistent,
            CreateMode::Ephemeral,
            CreateMode::EphemeralSequential,
            CreateMode::Container,
            CreateMode::PersistentWithTtl(Time::from_secs(2)),
        ];
        let data = Bytes::from(vec![1; usize::from(self.choices.byte())]);
        match self.choices.below(8) {
            0 | 1 => Op::Create {
                path: path.into(),
                data: data.into(),
                mode: modes[usize::from(self.choices.below(5))],
            },
            2 => Op::Set { path: path.into(), data: data.into(), version: None },
            3 if self.choices.below(4) == 0 => Op::DeleteTree { path: path.into() },
            3 => Op::Delete { path: path.into(), version: None },
            4 => Op::SetAcl { path: path.into(), acl: self.acl(), version: None },
            5 if self.choices.below(2) == 0 => {
                Op::TakeOver { path: path.into(), data: data.into(), from: self.session() }
            }
            6 => self.queue_op(data.into()),
            7 if self.choices.below(2) == 0 => {
                let forms = [CounterForm::Long, CounterForm::Int, CounterForm::Text];
                let form = forms[usize::from(self.choices.below(3))];
                let within =
                    (self.choices.byte() < 64).then(|| u64::from(self.choices.byte()) << 20);
                Op::Add {
                    path: path.into(),
                    number: i64::from(self.choices.byte()) - 128,
                    form,
                    within,
                }
            }
            5 => Op::CreateOrSet {
                path: path.into(),
                data: data.into(),
                mode: modes[usize::from(self.choices.below(5))],
            },
            _ => Op::Check { path: path.into(), condition: crate::types::znode::Condition::Exists },
        }
    }

    fn queue_op(&mut self, data: Data) -> Op {
        let path = self.path();
        if self.choices.below(2) == 0 {
            return Op::Take { path: path.into(), claims: self.choices.below(2) == 0 };
        }
        let priority = i32::from(self.choices.below(3)) - 1;
        let delay_ms = u64::from(self.choices.below(3)) * 1_000;
        let id = if self.choices.below(2) == 0 { "ix" } else { "" }.to_owned();
        let max = (self.choices.below(4) == 0).then_some(2);
        Op::Put {
            path: path.into(),
            data,
            order: QueueOrder { priority, delay_ms, id, max }.into(),
        }
    }

    /// A report or an operator's action.
    fn admin_request(&mut self) -> AdminRequest {
        let member = u64::from(self.choices.below(4));
        let action = match self.choices.below(7) {
            6 => {
                let piece = u32::from(self.choices.below(4));
                return AdminRequest::Image { of: 0, transfer: member, piece };
            }
            0 => return AdminRequest::Report,
            1 => return AdminRequest::Sessions { after: None },
            2 => return AdminRequest::Sessions { after: Some(self.session()) },
            3 => Action::MoveLeader { to: member },
            4 => Action::Remove { member },
            _ => Action::Expire { session: self.session() },
        };
        AdminRequest::Act { action, by: "somebody\n".to_owned(), after: None }
    }

    fn request(&mut self) -> Input {
        self.requests += 1;
        let (id, session) = (RequestId(self.requests), self.session());
        let (secret, timeout) = ([self.choices.below(2); 16], Time::from_secs(6));
        let holder = u64::from(self.choices.below(4));
        let watch = WatchId(self.requests);
        let body = match self.choices.below(12) {
            0..=2 => RequestBody::open(holder, secret, timeout),
            3 => {
                let timeout = (holder > 0).then_some(timeout);
                RequestBody::resume(holder, secret, timeout)
            }
            4 => RequestBody::Command(Command::Close),
            5 => RequestBody::Abandon(SessionState::Detached),
            6 if self.choices.below(2) == 0 => {
                let read = Read::Below { path: self.path().into() };
                RequestBody::Query(Query::Read { read, watch: None })
            }
            6 => RequestBody::Query(Query::Sync),
            7 => {
                let from = (self.choices.below(2) == 0).then(|| u64::from(self.choices.below(64)));
                let (path, recursive) = (self.path().into(), false);
                let data = match self.choices.below(2) {
                    0 => EventData::Both,
                    _ => EventData::None,
                };
                let query = Query::Watch { watch, path, recursive, from, data };
                RequestBody::Query(query)
            }
            8 => {
                let read = Read::Get { path: self.path().into() };
                let query = Query::Read { read, watch: Some(watch) };
                RequestBody::Query(query)
            }
            9 => {
                let command = match self.choices.below(3) {
                    0 => Command::Authenticate { ids: self.ids() },
                    _ => Command::Multi(vec![self.op(), self.op()]),
                };
                RequestBody::Command(command)
            }
            11 if self.choices.below(4) == 0 => RequestBody::Admin(self.admin_request()),
            10 if self.choices.below(2) == 0 => {
                let (path, which) = (self.path().into(), WatcherType::Any);
                let query = Query::RemoveWatches { path, which };
                RequestBody::Query(query)
            }
            _ => RequestBody::Command(Command::Op(self.op())),
        };
        Input::Client(ClientRequest { id, session, body })
    }

    /// A request that another node forwards for its user.
    fn forwarded(&mut self, owner: NodeId) -> Request {
        let (session, holder) = (self.session(), u64::from(self.choices.below(4)));
        let secret = [self.choices.below(2); 16];
        let timeout_ms = 6000;
        let base = self.node.status().zxid;
        let owner = self.choices.near(owner);
        let command = match self.choices.below(7) {
            0 => Command::Open { secret, timeout_ms, owner, base: self.choices.near(base) },
            1 => Command::Resume { secret, timeout_ms, owner },
            2 => Command::Close,
            3 => Command::Expire { term: self.choices.near(self.node.status().term) },
            4 if owner == 3 => Command::RaiseVersion { version: self.version() },
            4 => Command::Reap { path: self.path() },
            5 if owner == 3 => Command::Authenticate { ids: self.ids() },
            5 => Command::Multi(vec![self.op(), self.op()]),
            _ => Command::Op(self.op()),
        };
        let seq = u64::from(self.choices.below(4));
        Request { session, holder, seq, acked: self.choices.near(seq), command }
    }

    /// A message that this peer might send to a node in this node's state.
    fn message(&mut self, from: NodeId) -> PeerMessage {
        let (term, last) = (self.node.status().term, self.node.last_index());
        let committed = self.node.committed();
        let later = u64::from(self.choices.below(6) == 0);
        let term = self.choices.near(term + later);
        let index = if self.choices.below(2) == 0 { last } else { committed };
        let index = self.choices.near(index);
        let log_term = self.choices.near(self.node.term_at(index).unwrap_or(term));
        let commit = self.choices.near(committed);
        let context = match self.contexts.last() {
            Some(context) if self.choices.below(4) != 0 => context.clone(),
            _ => Bytes::from(vec![3; usize::from(self.choices.below(80))]),
        };
        let reject = self.choices.below(3) == 0;
        let pre = self.choices.below(2) == 0;
        let body = match self.choices.below(18) {
            0..=5 => {
                let (index, log_term) = if reject { (index, log_term) } else { self.joint(last) };
                let entries = self.entries(index, log_term, term);
                let commit = if pre { commit } else { self.choices.near(index) };
                RaftBody::Append { index, log_term, commit, entries }
            }
            6 | 7 => RaftBody::AppendResponse {
                index: if reject { index } else { last },
                log_term,
                commit,
                reject,
                reject_hint: self.choices.near(index),
                request_snapshot: if self.choices.below(8) == 0 { index } else { 0 },
            },
            8 => RaftBody::Heartbeat { commit, context },
            9 | 10 => RaftBody::HeartbeatResponse { commit, context },
            11 => {
                let transfer = self.choices.below(4) == 0;
                RaftBody::Vote { pre, index, log_term, commit, commit_term: log_term, transfer }
            }
            12 | 13 => RaftBody::VoteResponse { pre, reject, commit, commit_term: log_term },
            14 => RaftBody::TimeoutNow,
            15 => {
                let many = self.choices.below(4);
                let requests = (0..many).map(|_| self.forwarded(from)).collect();
                return PeerMessage::Forward { requests };
            }
            16 => {
                let sessions = vec![self.session(), self.session()];
                let read_index = u64::from(self.choices.byte());
                return PeerMessage::ReadIndex { boot: from, read_index, sessions };
            }
            _ => return self.rare(index),
        };
        PeerMessage::Raft { term, body }
    }

    /// The end of the node's log or a place near it, with its correct term.
    fn joint(&mut self, last: u64) -> (u64, u64) {
        let index = last.saturating_sub(u64::from(self.choices.below(4)));
        (index, self.node.term_at(index).unwrap_or(0))
    }

    fn entries(&mut self, index: u64, log_term: u64, term: u64) -> Vec<LogEntry> {
        let mut at = log_term.max(1);
        let many = u64::from(self.choices.below(4));
        let mut entries = Vec::new();
        for place in 1..=many {
            if self.choices.below(3) == 0 {
                at = self.choices.near(term);
            }
            let kind = match self.choices.below(24) {
                0 => EntryKind::Membership,
                _ => EntryKind::Normal,
            };
            let data = match self.choices.below(8) {
                0 | 1 => Vec::new(),
                2 if self.choices.below(8) == 0 => vec![self.choices.byte(); 3],
                _ => {
                    let requests = vec![self.forwarded(2)];
                    Batch { time: self.now.wall_ms, requests }.encode()
                }
            };
            let index = self.choices.near(index.saturating_add(place));
            entries.push(LogEntry { index, term: at, kind, data: data.into() });
        }
        entries
    }

    fn rare(&mut self, index: u64) -> PeerMessage {
        let (boot, read_index) = self.read_indexes.pop().unwrap_or((1, 1));
        let transfer = self.choices.near(self.transfers);
        match self.choices.below(7) {
            0 => PeerMessage::ReadIndexConfirmed {
                boot,
                read_index,
                index,
                refused: vec![self.session()],
            },
            1 => {
                // A far index, since a wrong hash at a known one is a good reason to stop.
                PeerMessage::StateHash { index: index.saturating_add(1 << 20), hash: read_index }
            }
            2 => PeerMessage::SnapshotAck { transfer, next: u32::from(self.choices.byte()) },
            3 => PeerMessage::SnapshotAbort { transfer },
            4 => {
                let relay = self.choices.below(2) == 0;
                let asked = self.admin_request();
                PeerMessage::AdminRequest {
                    number: transfer,
                    cluster: 0,
                    relay,
                    asked,
                    asker: None,
                }
            }
            5 => {
                let reply = AdminReply::Refused { reason: String::new() };
                let replies = vec![(u64::from(self.choices.below(4)), reply)];
                let number = u64::from(self.choices.below(8));
                PeerMessage::AdminReply { number, replies }
            }
            _ => PeerMessage::SnapshotChunk {
                transfer,
                number: u32::from(self.choices.below(3)),
                bytes: Bytes::from(vec![self.choices.byte(); 9]),
            },
        }
    }

    /// All messages of a snapshot, exact or slightly wrong.
    fn snapshot(&mut self) -> Vec<Input> {
        if self.choices.below(2) == 0 {
            self.other = Some(self.node.machine().state());
        }
        let state = self.other.clone().unwrap_or_else(|| self.node.machine().state());
        let (term, last) = (self.node.status().term, self.node.last_index());
        let ahead = u64::from(self.choices.below(4));
        let index = self.choices.near(last + 1 + ahead);
        let mut voting = Voting { voters: vec![1, 2, 3], ..Voting::default() };
        if self.choices.below(4) == 0 {
            let id = u64::from(self.choices.below(5));
            let (list, add) = (self.choices.below(5), self.choices.below(2) == 0);
            let lists = [
                &mut voting.voters,
                &mut voting.learners,
                &mut voting.voters_outgoing,
                &mut voting.learners_next,
            ];
            match lists.into_iter().nth(usize::from(list)) {
                Some(list) if add => list.push(id),
                Some(list) => list.retain(|known| *known != id),
                None => voting.auto_leave = true,
            }
        }
        let log_term = self.node.term_at(last).unwrap_or(term);
        let meta = SnapshotMeta {
            index,
            term: self.choices.near(log_term),
            zxid: state.zxid(),
            hash: state.hash(),
            voting,
        };
        self.transfers += 1;
        let transfer = self.transfers;
        let mut inputs = Vec::new();
        let mut chunks = 0;
        for chunk in ChunkWriter::full(state) {
            let (number, bytes) = (chunks, Bytes::from(chunk));
            let message = PeerMessage::SnapshotChunk { transfer, number, bytes };
            inputs.push(Input::Peer { from: 2, message });
            chunks += 1;
        }
        let body = RaftBody::Snapshot { transfer, chunks, meta };
        let term = self.choices.near(term);
        inputs.push(Input::Peer { from: 2, message: PeerMessage::Raft { term, body } });
        inputs
    }
}

fn start(disk: &MemoryDisk, now: Now, seed: u64) -> (InlineDisk, Node) {
    let mut store = disk.open();
    // Few entries cause a checkpoint, and few are kept before it.
    let log = LogLimits {
        checkpoint_entries: 8,
        memory_bytes: 200,
        retained_bytes_min: 400,
        retained_bytes_max: 400,
        catch_up_bytes: 800,
        ..LogLimits::default()
    };
    let (version, container_period) = (u16::from(VERSIONS) - 1, Time::from_secs(5));
    let config = NodeConfig {
        container_period,
        version,
        log,
        ..NodeConfig::new(HEARTBEAT, Time::from_secs(2), seed)
    };
    let node = boot(&mut store, config, now).expect("the durable state is sound");
    (InlineDisk::new(Box::new(store), now.mono), node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_plausible_input_breaks_a_node(
            bytes in proptest::collection::vec(any::<u8>(), 0..600)
        ) {
            super::engine(&bytes);
        }
    }
}
