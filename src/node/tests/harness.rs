//! A cluster of nodes in one thread, for the tests of this module: a clock that tests move,
//! messages in queues, and disks whose durability tests control.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::machine::command::{Batch, Command, Op, Reply};
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::node::bootstrap::genesis::nothing;
use crate::node::io::{DiskOp, Effects, Input, Now, RequestId, Time, WatchId};
use crate::node::log_outline::LogOutline;
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::query::{Answer, EventData, Query, Read};
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::stored::{Boot, EntryKind, Identity};
use crate::node::tests::disk::Disk;
use crate::node::{LogLimits, Node, NodeConfig, Origin};
use crate::types::error::Error;
use crate::types::membership::{Genesis, Member, NodeId};
use crate::types::session::SessionState;
use crate::types::version::{FIRST, VERSION};
use crate::types::watch::{WatchEvent, WatchMode};
use crate::types::znode::{CreateMode, SessionId, Zxid};

pub(crate) const HEARTBEAT: Duration = Duration::from_millis(100);
pub(crate) const TICK: Duration = Duration::from_secs(2);

/// The version that a node must support to read a message and its content.
fn needs(message: &PeerMessage) -> u16 {
    match message {
        PeerMessage::Forward { requests } => {
            requests.iter().map(|request| request.command.version()).max().unwrap_or(0)
        }
        PeerMessage::Raft { body: RaftBody::Append { entries, .. }, .. } => {
            let entries = entries.iter().filter(|entry| !entry.data.is_empty());
            entries
                .map(|entry| match entry.kind {
                    EntryKind::Normal => Batch::decode(&entry.data).unwrap().version(),
                    EntryKind::Membership => FIRST,
                })
                .max()
                .unwrap_or(0)
        }
        PeerMessage::SnapshotChunk { number: 0, bytes, .. } => {
            let mut reader = ChunkReader::new();
            reader.push(bytes).unwrap();
            reader.version()
        }
        _ => 0,
    }
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) node: Option<Node>,
    pub(crate) disk: Disk,
    inputs: VecDeque<Input>,
    /// Writes that the disk has not done yet, while it is held up.
    pub(crate) held: VecDeque<DiskOp>,
    pub(crate) disk_stalled: bool,
    /// Its disk stalls at the next entries that it is to write.
    pub(crate) stalls_at_entries: bool,
    /// Whether its node must be called again at once, and how often it had to be.
    goes_on: bool,
    pub(crate) went_on: u64,
    /// States to be built, and whether that takes long.
    builds: VecDeque<DiskOp>,
    pub(crate) builds_stalled: bool,
    /// The version that its node supports, from its next start on.
    pub(crate) version: u16,
}

impl Host {
    fn new(disk: Disk, version: u16) -> Host {
        Host {
            node: None,
            disk,
            inputs: VecDeque::new(),
            held: VecDeque::new(),
            disk_stalled: false,
            stalls_at_entries: false,
            goes_on: false,
            went_on: 0,
            builds: VecDeque::new(),
            builds_stalled: false,
            version,
        }
    }
}

/// A node that is killed in the middle of the effects of one of its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crash {
    pub(crate) victim: NodeId,
    /// The step, counted from 0 from the moment when this is set.
    pub(crate) step: u64,
    /// How many of the step's disk operations are done; its messages have all been sent before.
    pub(crate) disk_ops: usize,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) crash: Option<Crash>,
    /// The limits of members that start from now on.
    pub(crate) log: LogLimits,
    pub(crate) hosts: BTreeMap<NodeId, Host>,
    pub(crate) now: Time,
    wall_ms: u64,
    /// How far the wall clocks of nodes are ahead of that.
    pub(crate) wall_ahead_ms: BTreeMap<NodeId, u64>,
    next_request: u64,
    starts: u64,
    /// Directed links that lose everything.
    pub(crate) cut: BTreeSet<(NodeId, NodeId)>,
    pub(crate) replies: BTreeMap<RequestId, Result<Answer, Error>>,
    pub(crate) events: Vec<(WatchId, WatchEvent)>,
    pub(crate) ended: Vec<WatchId>,
    pub(crate) states: Vec<(NodeId, SessionId, SessionState)>,
    pub(crate) leases: BTreeMap<SessionId, Time>,
    /// The lease that each session was first given.
    pub(crate) first_leases: BTreeMap<SessionId, Time>,
    pub(crate) stopped: BTreeMap<NodeId, String>,
    /// The addresses of members that have moved.
    addresses: BTreeMap<NodeId, String>,
    /// The list of peers of all nodes that start.
    pub(crate) peers: Vec<String>,
    /// The highest version that any sent or written message or entry needs of its reader.
    pub(crate) newest: u16,
    /// Requests on their way to a leader.
    pub(crate) forwarded: Vec<PeerMessage>,
    /// How many renewals of sessions were sent to leaders.
    pub(crate) renewed: u64,
    /// The messages to nodes that are no members: sender, receiver, message.
    pub(crate) elsewhere: Vec<(NodeId, NodeId, PeerMessage)>,
    /// A trace of all effects, to compare two runs.
    pub(crate) trace: Vec<String>,
    /// How much each member is wanted as the leader; 0 if it is not there.
    pub(crate) priorities: BTreeMap<NodeId, i32>,
}

fn member(id: NodeId) -> Member {
    Member::new(id, format!("node-{id}:1"))
}

impl Cluster {
    pub(crate) fn new(nodes: u64) -> Cluster {
        Cluster::of_version(nodes, VERSION)
    }

    /// A cluster whose members support this version.
    pub(crate) fn of_version(nodes: u64, version: u16) -> Cluster {
        // So little of the log is kept that a member which has missed 4 MiB needs a snapshot.
        let kept = 4 << 20;
        let log = LogLimits {
            retained_bytes_min: kept,
            retained_bytes_max: kept,
            catch_up_bytes: kept,
            ..LogLimits::default()
        };
        Cluster::founded(nodes, version, log)
    }

    /// A cluster whose members keep this much of the log.
    pub(crate) fn with_log(nodes: u64, log: LogLimits) -> Cluster {
        Cluster::founded(nodes, VERSION, log)
    }

    fn founded(nodes: u64, version: u16, log: LogLimits) -> Cluster {
        let members = (1..=nodes).map(member).collect();
        let (hard_state, meta, state) = Genesis { cluster: 1, members }.start();
        let chunks = ChunkWriter::full(state).collect();
        let disk = Disk::new(hard_state, meta, chunks);
        let mut cluster = Cluster {
            crash: None,
            log,
            hosts: (1..=nodes).map(|id| (id, Host::new(disk.clone(), version))).collect(),
            now: Duration::from_secs(100),
            wall_ms: 1_000_000,
            wall_ahead_ms: BTreeMap::new(),
            next_request: 0,
            starts: 0,
            cut: BTreeSet::new(),
            replies: BTreeMap::new(),
            events: Vec::new(),
            ended: Vec::new(),
            states: Vec::new(),
            leases: BTreeMap::new(),
            first_leases: BTreeMap::new(),
            stopped: BTreeMap::new(),
            addresses: BTreeMap::new(),
            peers: Vec::new(),
            newest: 0,
            forwarded: Vec::new(),
            renewed: 0,
            elsewhere: Vec::new(),
            trace: Vec::new(),
            priorities: BTreeMap::new(),
        };
        for id in 1..=nodes {
            cluster.start(id);
        }
        cluster
    }

    /// Processes with empty disks that have not started. Each is given all of them as peers.
    pub(crate) fn blank(nodes: u64) -> Cluster {
        let mut cluster = Cluster::new(0);
        cluster.peers = (1..=nodes).map(|id| member(id).address).collect();
        cluster
    }

    /// One more process, with an empty disk, that knows of the cluster and starts.
    pub(crate) fn add(&mut self, id: NodeId) {
        let (hard_state, meta, state) = nothing();
        let disk = Disk::new(hard_state, meta, ChunkWriter::full(state).collect());
        self.hosts.insert(id, Host::new(disk, VERSION));
        self.start(id);
    }

    /// The same at the address of another member, its former self before its disk was wiped.
    pub(crate) fn add_at(&mut self, id: NodeId, place: NodeId) {
        self.addresses.insert(id, member(place).address);
        self.add(id);
    }

    /// The member starts again under another address.
    pub(crate) fn move_to(&mut self, id: NodeId, address: &str) {
        self.addresses.insert(id, address.to_owned());
        self.kill(id);
        self.start(id);
    }

    /// All wall clocks show this from now on.
    pub(crate) fn set_wall_clock(&mut self, ms: u64) {
        self.wall_ms = ms;
    }

    pub(crate) fn leave(&mut self, id: NodeId) {
        self.hosts.get_mut(&id).unwrap().inputs.push_back(Input::Leave);
    }

    pub(crate) fn clock(&self) -> Now {
        Now { mono: self.now, wall_ms: self.wall_ms }
    }

    fn clock_of(&self, id: NodeId) -> Now {
        let ahead = self.wall_ahead_ms.get(&id).copied().unwrap_or(0);
        Now { mono: self.now, wall_ms: self.wall_ms + ahead }
    }

    pub(crate) fn start(&mut self, id: NodeId) {
        self.starts += 1;
        let (now, seed) = (self.clock_of(id), self.starts);
        let host = self.hosts.get_mut(&id).unwrap();
        let mut reader = ChunkReader::new();
        for chunk in &host.disk.chunks {
            reader.push(chunk).unwrap();
        }
        let disk = &host.disk;
        let machine = reader.finish(disk.meta.zxid, disk.meta.hash).unwrap();
        let mut boot = Boot {
            hard_state: disk.hard_state,
            checkpoint: disk.meta.clone(),
            checkpoint_bytes: disk.bytes(),
            outline: LogOutline::default(),
            entries: disk.entries.clone(),
        };
        let index = disk.meta.index;
        for entry in boot.entries.extract_if(.., |entry| entry.index <= index) {
            boot.outline.push(entry.index, entry.term, entry.data.len() as u64);
        }
        let config = NodeConfig {
            version: host.version,
            log: self.log,
            peers: self.peers.clone(),
            leader_priority: self.priorities.get(&id).copied().unwrap_or(0),
            ..NodeConfig::new(HEARTBEAT, TICK, seed)
        };
        let mut me = member(id);
        let cluster = u64::from(self.peers.is_empty());
        me.address = self.addresses.get(&id).cloned().unwrap_or(me.address);
        let identity =
            Identity { cluster, node: id, incarnation: id, address: me.address, uid: me.uid };
        let origin = Origin {
            identity: host.disk.identity.clone().unwrap_or(identity),
            promise: host.disk.promise.clone(),
        };
        host.node = Some(Node::new(config, origin, boot, machine, now).unwrap());
        host.inputs.clear();
        host.held.clear();
        host.builds.clear();
        for peer in self.hosts.keys().copied().filter(|peer| *peer != id).collect::<Vec<_>>() {
            let version = self.hosts[&id].version;
            let other = self.hosts.get_mut(&peer).unwrap();
            other.inputs.push_back(Input::Connected { peer: id, version });
            let version = other.version;
            let own = self.hosts.get_mut(&id).unwrap();
            own.inputs.push_back(Input::Connected { peer, version });
        }
    }

    /// Removes a member whose process has never started and which no other has met.
    pub(crate) fn take_away(&mut self, id: NodeId) {
        self.kill(id);
        for host in self.hosts.values_mut() {
            host.inputs
                .retain(|input| !matches!(input, Input::Connected { peer, .. } if *peer == id));
        }
    }

    /// The member's next start is that of another build.
    pub(crate) fn restart_as(&mut self, id: NodeId, version: u16) {
        self.kill(id);
        self.hosts.get_mut(&id).unwrap().version = version;
        self.start(id);
    }

    /// The node is gone at once. Writes that its disk has not completed are lost.
    pub(crate) fn kill(&mut self, id: NodeId) {
        let host = self.hosts.get_mut(&id).unwrap();
        host.node = None;
        host.inputs.clear();
        host.held.clear();
        host.builds.clear();
    }

    pub(crate) fn fail_disk(&mut self, id: NodeId) {
        let input = Input::Failed { reason: "the disk failed: no space".to_owned() };
        self.hosts.get_mut(&id).unwrap().inputs.push_back(input);
    }

    pub(crate) fn resign(&mut self, id: NodeId) {
        self.hosts.get_mut(&id).unwrap().inputs.push_back(Input::Resign);
    }

    /// As if the session's time were up.
    pub(crate) fn expire(&mut self, id: NodeId, session: SessionId) {
        self.hosts.get_mut(&id).unwrap().inputs.push_back(Input::Expire { session });
    }

    pub(crate) fn unwatch(&mut self, id: NodeId, watch: WatchId) {
        self.hosts.get_mut(&id).unwrap().inputs.push_back(Input::Unwatch(watch));
    }

    pub(crate) fn deliver(&mut self, from: NodeId, to: NodeId, message: PeerMessage) {
        let input = Input::Peer { from, message };
        self.hosts.get_mut(&to).unwrap().inputs.push_back(input);
    }

    /// Hands the node an input, such as its host's report of a connection.
    pub(crate) fn input(&mut self, to: NodeId, input: Input) {
        self.hosts.get_mut(&to).unwrap().inputs.push_back(input);
    }

    pub(crate) fn isolate(&mut self, id: NodeId) {
        for peer in self.hosts.keys().copied().filter(|peer| *peer != id) {
            self.cut.insert((id, peer));
            self.cut.insert((peer, id));
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Steps all nodes until none has anything left to read.
    pub(crate) fn settle(&mut self) {
        loop {
            let ids: Vec<NodeId> = self.hosts.keys().copied().collect();
            let mut quiet = true;
            for id in ids {
                quiet &= !self.step(id);
            }
            if quiet {
                return;
            }
        }
    }

    /// Builds the waiting states. The node's next step takes them first.
    pub(crate) fn build(&mut self, id: NodeId) {
        let host = self.hosts.get_mut(&id).unwrap();
        while let Some(op) = host.builds.pop_back() {
            let done = host.disk.write(op);
            host.inputs.push_front(done);
        }
    }

    /// Steps the node with all its waiting inputs. Returns whether there were any.
    pub(crate) fn step(&mut self, id: NodeId) -> bool {
        let now = self.clock_of(id);
        let host = self.hosts.get_mut(&id).unwrap();
        if !host.disk_stalled {
            while let Some(op) = host.held.pop_front() {
                let done = host.disk.write(op);
                host.inputs.push_back(done);
            }
        }
        if !host.builds_stalled {
            self.build(id);
        }
        let host = self.hosts.get_mut(&id).unwrap();
        let Some(node) = &mut host.node else {
            host.inputs.clear();
            return false;
        };
        if host.inputs.is_empty() && !host.goes_on {
            return false;
        }
        let inputs: Vec<Input> = host.inputs.drain(..).collect();
        let effects = node.step(now, inputs);
        self.perform(id, effects);
        true
    }

    fn perform(&mut self, id: NodeId, effects: Effects) {
        let (now, host) = (self.now, self.hosts.get_mut(&id).unwrap());
        host.goes_on = effects.wake_at <= now;
        host.went_on += u64::from(host.goes_on);
        if let Some(reason) = effects.stopped {
            self.stopped.insert(id, reason);
        }
        for (to, message) in effects.messages {
            // Everything crosses the wire format.
            self.hosts[&id].disk.sent(to, &message);
            let bytes = message.encode(Vec::new());
            let (short, hash) = (bytes.len() < 4096, xxhash_rust::xxh3::xxh3_64(&bytes));
            let shown = if short { format!("{message:?}") } else { format!("{hash:x}") };
            self.trace.push(format!("{:?} {id}>{to} {shown}", self.now));
            if matches!(message, PeerMessage::Forward { .. }) {
                self.forwarded.push(message.clone());
            }
            if let PeerMessage::ReadIndex { sessions, .. } = &message {
                self.renewed += sessions.len() as u64;
            }
            let message = PeerMessage::decode(&bytes).unwrap();
            self.newest = self.newest.max(needs(&message));
            if !self.hosts.contains_key(&to) {
                self.elsewhere.push((id, to, message));
                continue;
            }
            let Some(other) = self.hosts.get(&to).and_then(|host| host.node.as_ref()) else {
                continue;
            };
            let clusters =
                [self.hosts[&id].node.as_ref().map_or(0, Node::cluster), other.cluster()];
            let strangers = clusters[0] != clusters[1] || clusters[0] == 0;
            if self.cut.contains(&(id, to)) || (message.is_of_cluster() && strangers) {
                continue;
            }
            let input = Input::Peer { from: id, message };
            self.hosts.get_mut(&to).unwrap().inputs.push_back(input);
        }
        let host = self.hosts.get_mut(&id).unwrap();
        if let Some(crash) = &mut self.crash
            && crash.victim == id
        {
            if crash.step == 0 {
                for op in effects.disk.into_iter().take(crash.disk_ops) {
                    host.disk.write(op);
                }
                self.crash = None;
                self.kill(id);
                return;
            }
            crash.step -= 1;
        }
        for op in effects.disk {
            // This does not involve the disk.
            if matches!(op, DiskOp::Build { .. }) {
                host.builds.push_back(op);
            } else {
                let entries =
                    matches!(&op, DiskOp::Write { write, .. } if !write.entries.is_empty());
                host.disk_stalled |= host.stalls_at_entries && entries;
                host.held.push_back(op);
            }
        }
        if !host.disk_stalled && !host.held.is_empty() {
            while let Some(op) = host.held.pop_front() {
                let done = host.disk.write(op);
                host.inputs.push_back(done);
            }
        }
        self.events.extend(effects.events);
        self.ended.extend(effects.ended);
        for (of, until) in &effects.leases {
            self.first_leases.entry(of.session).or_insert(*until);
            self.leases.insert(of.session, *until);
        }
        let states = effects.sessions.into_iter();
        self.states.extend(states.map(|(of, state)| (id, of.session, state)));
        let replies = effects.replies.into_iter();
        self.replies.extend(replies.map(|answered| (answered.request, answered.answer)));
    }

    /// Moves the clock on, heartbeat by heartbeat.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + HEARTBEAT).min(end);
            self.wall_ms += HEARTBEAT.as_millis() as u64;
            for id in self.hosts.keys().copied().collect::<Vec<_>>() {
                self.tick(id);
            }
            self.settle();
        }
    }

    /// Whether entries of a leader wait for the node's next step.
    pub(crate) fn has_entries(&self, id: NodeId) -> bool {
        let brings = |input: &Input| {
            let Input::Peer { message: PeerMessage::Raft { body, .. }, .. } = input else {
                return false;
            };
            matches!(body, RaftBody::Append { entries, .. } if !entries.is_empty())
        };
        self.hosts[&id].inputs.iter().any(brings)
    }

    /// Steps the node for the time alone.
    pub(crate) fn tick(&mut self, id: NodeId) {
        let now = self.clock_of(id);
        if let Some(node) = &mut self.hosts.get_mut(&id).unwrap().node {
            let effects = node.step(now, []);
            self.perform(id, effects);
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.hosts[&id].node.as_ref().unwrap()
    }

    pub(crate) fn leader(&self) -> Option<NodeId> {
        let leads = |host: &&Host| host.node.as_ref().is_some_and(|node| node.status().is_leader);
        // If several believe that they lead, the one with the highest term.
        self.hosts
            .values()
            .filter(leads)
            .filter_map(|host| host.node.as_ref())
            .max_by_key(|node| node.status().term)
            .map(Node::id)
    }

    /// A cluster of three, its leader and its followers.
    pub(crate) fn of_three() -> (Cluster, NodeId, [NodeId; 2]) {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        let others: Vec<NodeId> = (1..=3).filter(|id| *id != leader).collect();
        (cluster, leader, others.try_into().expect("three without one"))
    }

    /// Advances until there is a leader among the nodes that `of` names.
    pub(crate) fn elect(&mut self) -> NodeId {
        for _ in 0..200 {
            self.advance(HEARTBEAT);
            if let Some(leader) = self.leader()
                && self.node(leader).serves()
            {
                return leader;
            }
        }
        panic!("no leader after 200 heartbeats");
    }

    pub(crate) fn follower(&self) -> NodeId {
        let leader = self.leader();
        *self.hosts.keys().find(|id| Some(**id) != leader).unwrap()
    }

    pub(crate) fn ask(&mut self, node: NodeId, session: SessionId, body: RequestBody) -> RequestId {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let request = Input::Client(ClientRequest { id, session, body });
        self.hosts.get_mut(&node).unwrap().inputs.push_back(request);
        id
    }

    pub(crate) fn answer(&mut self, request: RequestId) -> Result<Answer, Error> {
        self.settle();
        for _ in 0..400 {
            if let Some(answer) = self.replies.remove(&request) {
                return answer;
            }
            self.advance(HEARTBEAT);
        }
        panic!("{request:?} got no answer");
    }

    pub(crate) fn open(&mut self, id: NodeId, session: u64, timeout: Duration) -> SessionId {
        let session = SessionId(session);
        let request = self.ask(id, session, RequestBody::open(session.0 * 1000, [7; 16], timeout));
        self.answer(request).unwrap();
        session
    }

    pub(crate) fn resume(
        &mut self,
        id: NodeId,
        session: SessionId,
        holder: u64,
        secret: [u8; 16],
    ) -> Result<Answer, Error> {
        let request = self.ask(id, session, RequestBody::resume(holder, secret, Some(TICK * 3)));
        self.answer(request)
    }

    pub(crate) fn write(&mut self, id: NodeId, session: SessionId, command: Command) -> RequestId {
        self.ask(id, session, RequestBody::Command(command))
    }

    pub(crate) fn create(
        &mut self,
        id: NodeId,
        session: SessionId,
        path: &str,
        mode: CreateMode,
    ) -> Result<String, Error> {
        let op = Op::Create { path: path.into(), data: "d".into(), mode };
        let request = self.write(id, session, Command::Op(op));
        match self.answer(request)? {
            Answer::Reply(Reply::Created(created)) => Ok(created.path),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn set(
        &mut self,
        id: NodeId,
        session: SessionId,
        path: &str,
        data: &str,
    ) -> RequestId {
        let data = data.into();
        let op = Op::Set { path: path.into(), data, version: None };
        self.write(id, session, Command::Op(op))
    }

    pub(crate) fn watch(
        &mut self,
        id: NodeId,
        session: SessionId,
        watch: u64,
        path: &str,
        mode: WatchMode,
    ) {
        self.watch_from(id, session, watch, path, mode, None).unwrap();
    }

    pub(crate) fn watch_from(
        &mut self,
        id: NodeId,
        session: SessionId,
        watch: u64,
        path: &str,
        mode: WatchMode,
        from: Option<Zxid>,
    ) -> Result<Answer, Error> {
        let (watch, path) = (WatchId(watch), path.into());
        let recursive = mode == WatchMode::PersistentRecursive;
        let query = Query::Watch { watch, path, recursive, from, data: EventData::None };
        let request = self.ask(id, session, RequestBody::Query(query));
        self.answer(request)
    }

    pub(crate) fn read(&mut self, id: NodeId, session: SessionId, path: &str) -> RequestId {
        let query = Query::Read { read: Read::Get { path: path.into() }, watch: None };
        self.ask(id, session, RequestBody::Query(query))
    }

    /// The data at `path` on the replica at `id`.
    pub(crate) fn data(&self, id: NodeId, path: &str) -> Option<String> {
        let tree = self.node(id).machine().tree();
        tree.get(path).map(|znode| String::from_utf8_lossy(znode.data()).into_owned())
    }

    /// Checks that all running replicas have the same, sound state.
    pub(crate) fn check_equal(&self) {
        let mut hashes = BTreeSet::new();
        for host in self.hosts.values() {
            let Some(node) = &host.node else { continue };
            node.machine().check_invariants().unwrap();
            let status = node.status();
            hashes.insert((status.zxid, status.hash));
        }
        assert_eq!(hashes.len(), 1, "replicas differ: {hashes:?}");
    }
}
