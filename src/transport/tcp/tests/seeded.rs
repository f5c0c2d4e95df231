//! Three nodes whose loops run in virtual time, without a thread, over sockets of the test's. Links are cut and
//! healed, dials are refused or never answered, bytes arrive late and in pieces, nodes start again. Each seed is
//! another run: all that a node receives is in order in each lane, once, and from the sender's latest connection;
//! messages are missing within a connection only where the sender has counted them as dropped; nothing arrives that
//! was sent to a peer known to be unreachable; what waits is bounded; and in the end all nodes reach each other.
//!
//! In other runs there is a process with a copy of a node's data directory, at an address of its own, which comes and
//! goes. A node never sends to one of the two and receives from the other; and in the end all have the one at the
//! recorded address, and the copy is refused.

mod net;

use std::collections::BTreeMap;
use std::sync::Mutex;

use self::net::{Net, SharedNet, TestSockets, address, lock};
use super::*;
use crate::planted::{Bug, claims};
use crate::simulation::random::Random;
use crate::transport::tcp::event_loop::EventLoop;

const NODES: usize = 3;
/// The place of a process with a copy of the data directory of the first node.
const COPY: usize = NODES;
const PLACES: usize = NODES + 1;
const QUEUE_BYTES: usize = 20_000;
const STORM: Duration = Duration::from_secs(8);
/// Enough for a dead connection to be noticed, and for the longest pause after that.
const CALM: Duration = Duration::from_secs(5);
/// More than a run has connections.
const RUN: u64 = 1_000_000;
/// The number of messages that must not arrive.
const UNREACHABLE: u64 = u64::MAX;

/// The last epoch and number in each lane.
type Lanes = [(u64, u64); 2];

/// What a node has sent and received.
#[derive(Debug, Default)]
struct Log {
    /// How many times each peer was connected, and whether it is now.
    epochs: BTreeMap<NodeId, (u64, bool)>,
    /// The last number sent to each peer in each lane.
    sent: BTreeMap<NodeId, [u64; 2]>,
    /// How many messages it has sent to peers that were not connected.
    unreachable: u64,
    /// The latest epoch of each run of a sender, and the last epoch and number in each of its lanes.
    last: BTreeMap<(NodeId, u64), (u64, Lanes)>,
    /// By the sender and its run.
    received: BTreeMap<(NodeId, u64), u64>,
    /// Whether it was refused as a copy.
    is_refused: bool,
    seen: Seen,
}

/// What a run has seen, so that the test can tell whether it has tested anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    received: u64,
    connections: u64,
    /// Messages missing between others of the same connection.
    missing: u64,
    /// Processes refused as copies.
    duplicates: u64,
    /// Depends on all that was received, in its order.
    digest: u64,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.received += other.received;
        self.connections += other.connections;
        self.missing += other.missing;
        self.duplicates += other.duplicates;
        self.digest = self.digest.rotate_left(7) ^ other.digest;
    }
}

struct Sender {
    log: Arc<Mutex<Log>>,
    random: Random,
    /// Grows with each start of a process.
    run: u64,
    has_copy: bool,
}

impl Handler for Sender {
    fn take(&mut self, event: TransportEvent) {
        let mut log = self.log.lock().unwrap();
        match event {
            TransportEvent::Connected { peer, .. } => {
                let (epoch, is_up) = log.epochs.entry(peer).or_default();
                (*epoch, *is_up) = (*epoch + 1, true);
                log.seen.connections += 1;
            }
            TransportEvent::Unreachable { peer, reason, .. } => {
                log.epochs.entry(peer).or_default().1 = false;
                log.is_refused |= reason.contains("two processes run as node");
            }
            TransportEvent::Authenticated { .. } => {}
            TransportEvent::Duplicate { .. } => log.seen.duplicates += 1,
            TransportEvent::Received { from, message } => {
                let (lane, epoch, number) = match message {
                    PeerMessage::ReadIndex { boot, read_index, .. } => (0, boot, read_index),
                    PeerMessage::SnapshotChunk { transfer, bytes, .. } => {
                        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        (1, transfer, number)
                    }
                    other => panic!("{other:?}"),
                };
                assert_ne!(number, UNREACHABLE, "{from}: sent to a peer that was not connected");
                let run = epoch / RUN;
                let later = log.last.range((from, run + 1)..(from, u64::MAX)).next();
                assert!(self.has_copy || later.is_none(), "{from}: a message of a former run");
                let (latest, last) = log.last.entry((from, run)).or_default();
                assert!(epoch >= *latest, "{from}: a message of connection {epoch} after {latest}");
                *latest = epoch;
                let (former, before) = std::mem::replace(&mut last[lane], (epoch, number));
                assert!(number > before, "{from}, lane {lane}: {number} after {before}");
                log.seen.missing += if epoch == former { number - before - 1 } else { 0 };
                log.seen.received += 1;
                let digest = log.seen.digest.rotate_left(7) ^ from ^ (number << 3);
                log.seen.digest = digest.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                *log.received.entry((from, run)).or_default() += 1;
            }
            TransportEvent::SeedUnreachable { .. } => assert!(self.has_copy, "no seeds"),
        }
    }

    fn turn(&mut self, network: &mut dyn Network) -> Option<Duration> {
        let mut log = self.log.lock().unwrap();
        let log = &mut *log;
        let mut messages = Vec::new();
        for (peer, (epoch, is_up)) in &log.epochs {
            for _ in 0..self.random.below(6) {
                let boot = self.run * RUN + epoch;
                let lane = usize::from(self.random.percent(60));
                let number = if *is_up {
                    let last = &mut log.sent.entry(*peer).or_default()[lane];
                    *last += 1;
                    *last
                } else {
                    log.unreachable += 1;
                    UNREACHABLE
                };
                let message = match lane {
                    0 => PeerMessage::ReadIndex { boot, read_index: number, sessions: vec![] },
                    _ => {
                        let mut bytes = number.to_le_bytes().to_vec();
                        let most = if self.random.percent(3) { 9_000 } else { 300 };
                        bytes.resize(8 + self.random.index(most), 0);
                        PeerMessage::SnapshotChunk {
                            transfer: boot,
                            number: 0,
                            bytes: bytes.into(),
                        }
                    }
                };
                messages.push((*peer, message));
            }
        }
        network.send(&messages);
        Some(Duration::from_millis(1 + self.random.below(80)))
    }

    fn is_busy(&self) -> bool {
        false
    }
}

fn options() -> TransportOptions {
    TransportOptions {
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_millis(200),
        connect_timeout: Duration::from_secs(1),
        handshake_timeout: Duration::from_secs(1),
        stall_timeout: Duration::from_secs(2),
        queue_bytes_max: QUEUE_BYTES,
        handshakes_max: 8,
        ..TransportOptions::default()
    }
}

struct World {
    net: SharedNet,
    random: Random,
    has_copy: bool,
    /// By their places.
    nodes: Vec<Option<EventLoop>>,
    logs: Vec<Arc<Mutex<Log>>>,
    wake_at: Vec<Duration>,
    runs: u64,
    /// The last run at each place.
    run: Vec<u64>,
    /// Of all runs of all nodes.
    shared: Vec<Arc<NetworkShared>>,
    origin: Instant,
}

impl World {
    fn new(seed: u64, has_copy: bool) -> World {
        let random = Random::new(seed);
        let mut world = World {
            net: Arc::new(Mutex::new(Net::new(random.fork(1)))),
            random,
            has_copy,
            nodes: (0..PLACES).map(|_| None).collect(),
            logs: (0..PLACES).map(|_| Arc::default()).collect(),
            wake_at: vec![Duration::ZERO; PLACES],
            runs: 0,
            run: vec![0; PLACES],
            shared: Vec::new(),
            origin: Instant::now(),
        };
        let mut order: Vec<usize> = (0..NODES).collect();
        if has_copy {
            order.insert(world.random.index(PLACES), COPY);
        }
        order.into_iter().for_each(|place| world.restart(place));
        world
    }

    /// Starts a process. Its loop has sent nothing yet.
    fn start(&mut self, node: usize) -> EventLoop {
        self.runs += 1;
        self.run[node] = self.runs;
        let log = Arc::clone(&self.logs[node]);
        log.lock().unwrap().epochs.clear();
        let sockets = TestSockets { net: Arc::clone(&self.net), node };
        let (net, origin) = (Arc::clone(&self.net), self.origin);
        let clock = Box::new(move || origin + lock(&net).now);
        let id = id(node);
        let local = LocalPeer { boot: self.runs, ..at(id, address(node)) };
        let random = self.random.fork(self.runs);
        let handler = Box::new(Sender { log, random, run: self.runs, has_copy: self.has_copy });
        let transport = TcpTransport::new().unwrap();
        self.shared.push(Arc::clone(&transport.shared));
        let sockets = Box::new(sockets);
        let mut started = EventLoop::over(sockets, clock, transport, local, options(), handler);
        started.incoming.begin();
        let others = (0..NODES).filter(|other| self::id(*other) != id);
        let others = others.map(|other| remote(self::id(other), address(other))).collect();
        let seeds = if self.has_copy { PLACES } else { 0 };
        started.begin(others, (0..seeds).map(|place| address(place).to_string()).collect());
        started
    }

    fn restart(&mut self, node: usize) {
        lock(&self.net).set_there(node, true);
        let started = self.start(node);
        drop(self.nodes[node].replace(started));
        self.wake_at[node] = Duration::ZERO;
    }

    fn end(&mut self, node: usize) {
        lock(&self.net).set_there(node, false);
        self.nodes[node] = None;
    }

    fn tick(&mut self) {
        lock(&self.net).tick();
        let now = lock(&self.net).now;
        for node in 0..PLACES {
            let Some(running) = &mut self.nodes[node] else { continue };
            let is_due = now >= self.wake_at[node] || !lock(&self.net).ready[node].is_empty();
            if !is_due || self.random.percent(30) {
                continue;
            }
            let ready = std::mem::take(&mut lock(&self.net).ready[node]);
            assert!(running.turn(ready.into_iter()), "it does not end");
            let pause = running.sleep().unwrap_or(Duration::MAX);
            self.wake_at[node] = now.saturating_add(pause);
            running.check_bounds();
        }
    }

    fn storm(&mut self) {
        match self.random.below(1_000_000) {
            0..1_500 => {
                let one = self.random.index(NODES - 1);
                let other = one + 1 + self.random.index(NODES - 1 - one);
                let mut net = lock(&self.net);
                match net.is_cut(one, other) {
                    true => net.heal(one, other),
                    false => _ = net.cut.insert((one, other)),
                }
            }
            1_500..5_500 => lock(&self.net).break_one(),
            5_500..6_000 => {
                let node = self.random.index(NODES);
                self.restart(node);
            }
            6_000..7_000 if self.has_copy => match self.nodes[COPY] {
                Some(_) => self.end(COPY),
                None => self.restart(COPY),
            },
            7_000..7_500 if self.has_copy => {
                // For longer than a restart: the copy may take its place.
                match self.nodes[0] {
                    Some(_) => self.end(0),
                    None => self.restart(0),
                }
            }
            _ => {}
        }
    }

    fn run(mut self) -> Seen {
        while lock(&self.net).now < STORM {
            self.tick();
            self.storm();
        }
        {
            let mut net = lock(&self.net);
            for (one, other) in net.cut.clone() {
                net.heal(one, other);
            }
            net.is_calm = true;
        }
        for place in [0, COPY] {
            if self.has_copy && self.nodes[place].is_none() {
                self.restart(place);
            }
        }
        while lock(&self.net).now < STORM + CALM {
            self.tick();
        }
        self.logs.iter().for_each(|log| log.lock().unwrap().received.clear());
        while lock(&self.net).now < STORM + CALM + Duration::from_secs(1) {
            self.tick();
        }
        let mut seen = Seen::default();
        let mut unreachable = 0;
        for (place, log) in self.logs.iter().enumerate() {
            let log = log.lock().unwrap();
            seen.add(log.seen);
            unreachable += log.unreachable;
            let others = (0..NODES).filter(|other| *other != place && place != COPY);
            let from: Vec<_> = others.map(|other| (id(other), self.run[other])).collect();
            let received: Vec<_> = log.received.keys().copied().collect();
            assert_eq!(received, from, "what {place} receives from: {log:?}");
        }
        assert!(!self.has_copy || self.logs[COPY].lock().unwrap().is_refused);
        let dropped =
            self.shared.iter().map(|shared| shared.counters.messages_dropped.load(Relaxed));
        let dropped = dropped.sum::<u64>() - unreachable;
        let missing = seen.missing;
        assert!(missing <= dropped, "{missing} messages are missing, and {dropped} were dropped");
        seen
    }
}

fn id(place: usize) -> NodeId {
    if place == COPY { 1 } else { place as NodeId + 1 }
}

/// `QUORATE_SEED` and `QUORATE_SEEDS` set the first seed and their number.
fn run(has_copy: bool) -> (Seen, u64) {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (from, count) = (number("QUORATE_SEED", 1), number("QUORATE_SEEDS", 4));
    let mut all = Seen::default();
    for seed in from..from + count {
        println!("seed {seed}");
        all.add(World::new(seed, has_copy).run());
    }
    println!("{all:?}");
    (all, count)
}

#[test]
fn messages_arrive_once_and_in_order_whatever_happens_to_connections() {
    let (all, count) = run(false);
    let Seen { received, connections, missing, .. } = all;
    let is_much = received > 10_000 * count && connections > 10 * count && missing > 0;
    assert!(is_much, "little was tested: {all:?}");
}

#[test]
fn a_copy_of_a_node_takes_neither_of_its_connections() {
    let (all, count) = run(true);
    assert!(
        all.received > 10_000 * count && all.duplicates > 2 * count,
        "little was tested: {all:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for has_copy in [false, true] {
        assert_eq!(World::new(7, has_copy).run(), World::new(7, has_copy).run());
    }
}

fn two_runs() {
    for seed in 1..3 {
        World::new(seed, false).run();
    }
}

fn two_runs_with_a_copy() {
    for seed in 1..3 {
        World::new(seed, true).run();
    }
}

#[test]
fn a_peer_has_one_connection() {
    claims(two_runs, Bug::FormerConnectionRead);
}

#[test]
fn a_peer_that_was_lost_is_dialled_again() {
    two_runs();
}

#[test]
fn a_process_is_not_welcomed_as_the_peer_that_another_one_is() {
    two_runs_with_a_copy();
}
