//! Three nodes whose loops run in virtual time, without a thread, over sockets of the test's. Links are cut and
//! healed, dials are refused or never answered, bytes arrive late and in pieces, nodes start again. Each seed is
//! another run: all that a node receives is in order in each lane, once, and from the sender's latest connection;
//! messages are missing within a connection only where the sender has counted them as dropped; nothing arrives that
//! was sent to a peer known to be unreachable; what waits is bounded; and in the end all nodes reach each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard};

use mio::Token;

use super::*;
use crate::planted::{Bug, claims};
use crate::simulation::random::Random;
use crate::transport::tcp::event_loop::EventLoop;
use crate::transport::tcp::shared::LISTENER;
use crate::transport::tcp::sockets::{Polled, Socket, SocketEvent, Sockets};

const NODES: usize = 3;
/// How many bytes are on their way in one direction of a connection.
const WINDOW: usize = 4_000;
const QUEUE_BYTES: usize = 20_000;
const TICK: Duration = Duration::from_millis(2);
const STORM: Duration = Duration::from_secs(8);
/// Enough for a dead connection to be noticed, and for the longest pause after that.
const CALM: Duration = Duration::from_secs(5);
/// How long it may take after a cut until a connection's lost packets are sent again.
const STALL: Duration = Duration::from_secs(2);
/// The number of messages that must not arrive.
const UNREACHABLE: u64 = u64::MAX;

/// One end of a connection.
#[derive(Debug, Default)]
struct End {
    node: usize,
    token: Option<Token>,
    /// To this end: bytes on their way with their times, and bytes to read.
    on_the_way: VecDeque<(Duration, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// This end has no socket any more.
    is_closed: bool,
    /// The other end's close has arrived.
    at_end: bool,
    is_broken: bool,
    /// The other end is broken. This one learns of it then.
    breaks_at: Option<Duration>,
    /// It could not write all.
    was_full: bool,
}

impl End {
    fn on_the_way(&self) -> usize {
        self.on_the_way.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() + self.arrived.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dial {
    /// It is answered then, or refused.
    Answered(Duration),
    Refused(Duration),
    Unanswered,
    Made,
    Failed,
}

#[derive(Debug)]
struct Wire {
    dial: Dial,
    /// Nothing arrives until then.
    stalls_until: Duration,
    /// The one that has dialled, and the other.
    ends: [End; 2],
}

#[derive(Debug)]
struct Net {
    now: Duration,
    random: Random,
    wires: BTreeMap<u64, Wire>,
    next: u64,
    backlog: Vec<VecDeque<u64>>,
    ready: Vec<Vec<SocketEvent>>,
    cut: BTreeSet<(usize, usize)>,
    is_calm: bool,
}

type SharedNet = Arc<Mutex<Net>>;

fn lock(net: &SharedNet) -> MutexGuard<'_, Net> {
    net.lock().unwrap()
}

impl Net {
    fn delay(&self) -> Duration {
        Duration::from_micros(self.random.below(if self.is_calm { 5_000 } else { 60_000 }))
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    fn report(&mut self, node: usize, token: Option<Token>, writable: bool, ends: bool) {
        if let Some(token) = token {
            self.ready[node].push(SocketEvent { token, writable, ends });
        }
    }

    /// Lets everything arrive that is due.
    fn tick(&mut self) {
        self.now += TICK;
        let now = self.now;
        for number in self.wires.keys().copied().collect::<Vec<_>>() {
            let mut wire = self.wires.remove(&number).unwrap();
            let [dialling, listening] = [wire.ends[0].node, wire.ends[1].node];
            let is_cut = self.is_cut(dialling, listening) || now < wire.stalls_until;
            match wire.dial {
                Dial::Answered(at) if at <= now && !is_cut => {
                    wire.dial = Dial::Made;
                    self.backlog[listening].push_back(number);
                    self.report(listening, Some(LISTENER), false, false);
                    self.report(dialling, wire.ends[0].token, true, false);
                }
                Dial::Refused(at) if at <= now => {
                    wire.dial = Dial::Failed;
                    self.report(dialling, wire.ends[0].token, true, true);
                }
                _ => {}
            }
            for to in 0..2 {
                let other = &wire.ends[1 - to];
                let other_closed = other.is_closed && !other.is_broken;
                let other_is_full = wire.ends[1 - to].was_full;
                if wire.ends[to].breaks_at.is_some_and(|at| at <= now) {
                    self.break_end(&mut wire.ends[to]);
                }
                let end = &mut wire.ends[to];
                let before = end.arrived.len();
                while !is_cut
                    && let Some((at, _)) = end.on_the_way.front()
                    && *at <= now
                {
                    end.arrived.extend(end.on_the_way.pop_front().unwrap().1);
                }
                let ends = other_closed && end.on_the_way.is_empty() && !end.at_end && !is_cut;
                end.at_end |= ends;
                if end.arrived.len() > before || ends {
                    let (node, token) = (end.node, end.token);
                    self.report(node, token, false, ends);
                }
                if other_is_full && wire.ends[to].on_the_way() < WINDOW {
                    wire.ends[1 - to].was_full = false;
                    let (node, token) = (wire.ends[1 - to].node, wire.ends[1 - to].token);
                    self.report(node, token, true, false);
                }
            }
            if !wire.ends.iter().all(|end| end.is_closed) {
                self.wires.insert(number, wire);
            }
        }
    }

    /// Resets a connection. One end learns of it later, so that a new connection may come first.
    fn break_one(&mut self) {
        let made = self.wires.iter().filter(|(_, wire)| wire.dial == Dial::Made);
        let numbers: Vec<u64> = made.map(|(number, _)| *number).collect();
        if numbers.is_empty() {
            return;
        }
        let number = *self.random.pick(&numbers);
        let first = self.random.index(2);
        let later = self.now + Duration::from_millis(self.random.below(500));
        let mut wire = self.wires.remove(&number).unwrap();
        self.break_end(&mut wire.ends[first]);
        wire.ends[1 - first].breaks_at = Some(later);
        self.wires.insert(number, wire);
    }

    fn break_end(&mut self, end: &mut End) {
        (end.is_broken, end.breaks_at) = (true, None);
        end.on_the_way.clear();
        self.report(end.node, end.token, true, true);
    }

    fn heal(&mut self, one: usize, other: usize) {
        self.cut.remove(&(one, other));
        for wire in self.wires.values_mut() {
            let mut ends = wire.ends.each_ref().map(|end| end.node);
            ends.sort_unstable();
            if ends == [one, other] {
                let pause = self.random.below(STALL.as_millis() as u64);
                wire.stalls_until = self.now + Duration::from_millis(pause);
            }
        }
    }
}

#[derive(Debug)]
struct TestSocket {
    net: SharedNet,
    number: u64,
    place: usize,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7000 + node as u16))
}

impl Read for TestSocket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut net = lock(&self.net);
        let wire = net.wires.get_mut(&self.number).expect("this end is open");
        let end = &mut wire.ends[self.place];
        assert!(!end.is_closed);
        if end.is_broken {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let read = end.arrived.len().min(to.len());
        let (head, tail) = end.arrived.as_slices();
        let head = &head[..read.min(head.len())];
        to[..head.len()].copy_from_slice(head);
        to[head.len()..read].copy_from_slice(&tail[..read - head.len()]);
        end.arrived.drain(..read);
        match read {
            0 if end.at_end => Ok(0),
            0 => Err(ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for TestSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut net = lock(&self.net);
        let at = net.now + net.delay();
        let some = if net.random.percent(30) { 1 + net.random.index(1_000) } else { WINDOW };
        let wire = net.wires.get_mut(&self.number).expect("this end is open");
        let [mine, other] = [self.place, 1 - self.place];
        assert!(!wire.ends[mine].is_closed);
        if wire.ends[mine].is_broken || wire.ends[mine].at_end {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if wire.ends[other].is_broken || wire.ends[other].is_closed {
            // This end does not know it yet.
            return Ok(bytes.len());
        }
        let room = WINDOW.saturating_sub(wire.ends[other].on_the_way());
        let taken = bytes.len().min(room).min(some);
        if taken == 0 {
            wire.ends[mine].was_full = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        let last = wire.ends[other].on_the_way.back().map_or(at, |(last, _)| *last);
        wire.ends[other].on_the_way.push_back((at.max(last), bytes[..taken].to_vec()));
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket for TestSocket {
    fn register(&mut self, token: Token, _: Polled) -> io::Result<()> {
        let mut net = lock(&self.net);
        let end = &mut net.wires.get_mut(&self.number).expect("this end is open").ends[self.place];
        end.token = Some(token);
        let (node, has_bytes) = (end.node, !end.arrived.is_empty() || end.at_end);
        if has_bytes {
            net.report(node, Some(token), false, false);
        }
        Ok(())
    }

    fn reregister(&mut self, token: Token, polled: Polled) -> io::Result<()> {
        self.register(token, polled)
    }

    fn deregister(&mut self) {
        let mut net = lock(&self.net);
        let end = &mut net.wires.get_mut(&self.number).expect("this end is open").ends[self.place];
        end.token = None;
    }

    fn set_nodelay(&self) -> io::Result<()> {
        Ok(())
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        let is_failed = lock(&self.net).wires[&self.number].dial == Dial::Failed;
        Ok(is_failed.then(|| ErrorKind::ConnectionRefused.into()))
    }

    fn peer_address(&self) -> io::Result<SocketAddr> {
        let net = lock(&self.net);
        let wire = &net.wires[&self.number];
        match wire.dial {
            Dial::Made => Ok(address(wire.ends[1 - self.place].node)),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 40_000)))
    }

    fn open_files(&self) -> usize {
        0
    }
}

impl Drop for TestSocket {
    fn drop(&mut self) {
        let mut net = lock(&self.net);
        if let Some(wire) = net.wires.get_mut(&self.number) {
            let end = &mut wire.ends[self.place];
            (end.is_closed, end.token) = (true, None);
            end.on_the_way.clear();
        }
    }
}

struct TestSockets {
    net: SharedNet,
    node: usize,
}

impl Sockets for TestSockets {
    fn connect(&mut self, to: SocketAddr) -> io::Result<Box<dyn Socket>> {
        let other = (0..NODES).find(|node| address(*node) == to).expect("a node's address");
        let mut net = lock(&self.net);
        let (number, at) = (net.next, net.now + net.delay());
        net.next += 1;
        let dial = match net.random.below(100) {
            0..10 if !net.is_calm => Dial::Refused(at),
            10..15 if !net.is_calm => Dial::Unanswered,
            _ => Dial::Answered(at),
        };
        let ends = [self.node, other].map(|node| End { node, ..End::default() });
        net.wires.insert(number, Wire { dial, stalls_until: Duration::ZERO, ends });
        Ok(Box::new(TestSocket { net: Arc::clone(&self.net), number, place: 0 }))
    }

    fn listen(&mut self, _: TcpListener) -> io::Result<()> {
        unreachable!("it listens from the start")
    }

    fn accept(&mut self) -> io::Result<(Box<dyn Socket>, SocketAddr)> {
        let number = lock(&self.net).backlog[self.node].pop_front();
        let number = number.ok_or(ErrorKind::WouldBlock)?;
        let socket = TestSocket { net: Arc::clone(&self.net), number, place: 1 };
        Ok((Box::new(socket), SocketAddr::from(([127, 0, 0, 1], 40_000))))
    }
}

/// What a node has sent and received.
#[derive(Debug, Default)]
struct Log {
    /// How many times each peer was connected, and whether it is now.
    epochs: BTreeMap<NodeId, (u64, bool)>,
    /// The last number sent to each peer in each lane.
    sent: BTreeMap<NodeId, [u64; 2]>,
    /// How many messages it has sent to peers that were not connected.
    unreachable: u64,
    /// The latest epoch of each sender, and the last epoch and number in each of its lanes.
    last: BTreeMap<NodeId, (u64, [(u64, u64); 2])>,
    received: BTreeMap<NodeId, u64>,
    seen: Seen,
}

/// What a run has seen, so that the test can tell whether it has tested anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    received: u64,
    connections: u64,
    /// Messages missing between others of the same connection.
    missing: u64,
    /// Depends on all that was received, in its order.
    digest: u64,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.received += other.received;
        self.connections += other.connections;
        self.missing += other.missing;
        self.digest = self.digest.rotate_left(7) ^ other.digest;
    }
}

struct Sender {
    log: Arc<Mutex<Log>>,
    random: Random,
    /// Grows with each start of the node.
    run: u64,
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
            TransportEvent::Unreachable { peer, .. } => {
                log.epochs.entry(peer).or_default().1 = false
            }
            TransportEvent::Authenticated { .. } => {}
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
                let (latest, last) = log.last.entry(from).or_default();
                assert!(epoch >= *latest, "{from}: a message of connection {epoch} after {latest}");
                *latest = epoch;
                let (former, before) = std::mem::replace(&mut last[lane], (epoch, number));
                assert!(number > before, "{from}, lane {lane}: {number} after {before}");
                log.seen.missing += if epoch == former { number - before - 1 } else { 0 };
                log.seen.received += 1;
                let digest = log.seen.digest.rotate_left(7) ^ from ^ (number << 3);
                log.seen.digest = digest.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                *log.received.entry(from).or_default() += 1;
            }
            TransportEvent::SeedUnreachable { .. } => panic!("no seeds"),
        }
    }

    fn turn(&mut self, network: &mut dyn Network) -> Option<Duration> {
        let mut log = self.log.lock().unwrap();
        let log = &mut *log;
        let mut messages = Vec::new();
        for (peer, (epoch, is_up)) in &log.epochs {
            for _ in 0..self.random.below(6) {
                let boot = self.run * 1_000_000 + epoch;
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
    nodes: Vec<EventLoop>,
    logs: Vec<Arc<Mutex<Log>>>,
    wake_at: Vec<Duration>,
    runs: u64,
    /// Of all runs of all nodes.
    shared: Vec<Arc<NetworkShared>>,
    origin: Instant,
}

impl World {
    fn new(seed: u64) -> World {
        let random = Random::new(seed);
        let net = Net {
            now: Duration::ZERO,
            random: random.fork(1),
            wires: BTreeMap::new(),
            next: 0,
            backlog: vec![VecDeque::new(); NODES],
            ready: vec![Vec::new(); NODES],
            cut: BTreeSet::new(),
            is_calm: false,
        };
        let mut world = World {
            net: Arc::new(Mutex::new(net)),
            random,
            nodes: Vec::new(),
            logs: (0..NODES).map(|_| Arc::default()).collect(),
            wake_at: vec![Duration::ZERO; NODES],
            runs: 0,
            shared: Vec::new(),
            origin: Instant::now(),
        };
        for node in 0..NODES {
            let started = world.start(node);
            world.nodes.push(started);
        }
        world
    }

    /// Starts a node. Its loop has sent nothing yet.
    fn start(&mut self, node: usize) -> EventLoop {
        self.runs += 1;
        let log = Arc::clone(&self.logs[node]);
        log.lock().unwrap().epochs.clear();
        let sockets = TestSockets { net: Arc::clone(&self.net), node };
        let (net, origin) = (Arc::clone(&self.net), self.origin);
        let clock = Box::new(move || origin + lock(&net).now);
        let id = node as NodeId + 1;
        let local = LocalPeer { boot: self.runs, ..at(id, address(node)) };
        let handler = Box::new(Sender { log, random: self.random.fork(self.runs), run: self.runs });
        let transport = TcpTransport::new().unwrap();
        self.shared.push(Arc::clone(&transport.shared));
        let sockets = Box::new(sockets);
        let mut started = EventLoop::over(sockets, clock, transport, local, options(), handler);
        started.incoming.begin();
        let others = (0..NODES).filter(|other| *other != node);
        let others = others.map(|other| remote(other as NodeId + 1, address(other))).collect();
        started.begin(others, Vec::new());
        started
    }

    fn restart(&mut self, node: usize) {
        {
            let mut net = lock(&self.net);
            net.ready[node].clear();
            for number in std::mem::take(&mut net.backlog[node]) {
                // Nobody has accepted it.
                let end = &mut net.wires.get_mut(&number).unwrap().ends[1];
                end.is_closed = true;
            }
        }
        let started = self.start(node);
        drop(std::mem::replace(&mut self.nodes[node], started));
        self.wake_at[node] = Duration::ZERO;
    }

    fn tick(&mut self) {
        lock(&self.net).tick();
        let now = lock(&self.net).now;
        for node in 0..NODES {
            let is_due = now >= self.wake_at[node] || !lock(&self.net).ready[node].is_empty();
            if !is_due || self.random.percent(30) {
                continue;
            }
            let ready = std::mem::take(&mut lock(&self.net).ready[node]);
            assert!(self.nodes[node].turn(ready.into_iter()), "it does not end");
            let pause = self.nodes[node].sleep().unwrap_or(Duration::MAX);
            self.wake_at[node] = now.saturating_add(pause);
            self.nodes[node].check_bounds();
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
        while lock(&self.net).now < STORM + CALM {
            self.tick();
        }
        self.logs.iter().for_each(|log| log.lock().unwrap().received.clear());
        while lock(&self.net).now < STORM + CALM + Duration::from_secs(1) {
            self.tick();
        }
        let mut seen = Seen::default();
        let mut unreachable = 0;
        for (node, log) in self.logs.iter().enumerate() {
            let log = log.lock().unwrap();
            seen.add(log.seen);
            unreachable += log.unreachable;
            for other in (0..NODES).filter(|other| *other != node) {
                let from = other as NodeId + 1;
                let received = log.received.get(&from).copied().unwrap_or(0);
                assert!(received > 0, "node {} receives nothing from {from}: {log:?}", node + 1);
            }
        }
        let dropped =
            self.shared.iter().map(|shared| shared.counters.messages_dropped.load(Relaxed));
        let dropped = dropped.sum::<u64>() - unreachable;
        let missing = seen.missing;
        assert!(missing <= dropped, "{missing} messages are missing, and {dropped} were dropped");
        seen
    }
}

/// `QUORATE_SEED` and `QUORATE_SEEDS` set the first seed and their number.
#[test]
fn messages_arrive_once_and_in_order_whatever_happens_to_connections() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (from, count) = (number("QUORATE_SEED", 1), number("QUORATE_SEEDS", 4));
    let mut all = Seen::default();
    for seed in from..from + count {
        println!("seed {seed}");
        all.add(World::new(seed).run());
    }
    println!("{all:?}");
    let Seen { received, connections, missing, .. } = all;
    let is_much = received > 10_000 * count && connections > 10 * count && missing > 0;
    assert!(is_much, "little was tested: {all:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(World::new(7).run(), World::new(7).run());
}

fn two_runs() {
    for seed in 1..3 {
        World::new(seed).run();
    }
}

#[test]
fn a_peer_has_one_connection() {
    claims(two_runs, Bug::FormerConnectionRead);
}

#[test]
fn a_peer_that_was_lost_is_dialled_again() {
    claims(two_runs, Bug::DialsNoMore);
}
