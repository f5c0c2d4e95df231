//! The network of the seeded runs: sockets whose bytes arrive late and in pieces, and connections that break.

use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard};

use mio::Token;

use super::*;
use crate::simulation::random::Random;
use crate::transport::tcp::shared::LISTENER;
use crate::transport::tcp::sockets::{Polled, Socket, SocketEvent, Sockets};

/// How many bytes are on their way in one direction of a connection.
const WINDOW: usize = 4_000;
const TICK: Duration = Duration::from_millis(2);
/// How long it may take after a cut until a connection's lost packets are sent again.
const STALL: Duration = Duration::from_secs(2);

/// One end of a connection.
#[derive(Debug, Default)]
pub(super) struct End {
    node: usize,
    token: Option<Token>,
    /// To this end: bytes on their way with their times, and bytes to read.
    on_the_way: VecDeque<(Duration, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// This end has no socket any more.
    pub(super) is_closed: bool,
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
pub(super) struct Wire {
    dial: Dial,
    /// Nothing arrives until then.
    stalls_until: Duration,
    /// The one that has dialled, and the other.
    pub(super) ends: [End; 2],
}

#[derive(Debug)]
pub(super) struct Net {
    pub(super) now: Duration,
    pub(super) random: Random,
    pub(super) wires: BTreeMap<u64, Wire>,
    pub(super) next: u64,
    pub(super) backlog: Vec<VecDeque<u64>>,
    pub(super) ready: Vec<Vec<SocketEvent>>,
    pub(super) cut: BTreeSet<(usize, usize)>,
    pub(super) is_calm: bool,
    /// Whether a process is at each place.
    pub(super) is_there: Vec<bool>,
}

pub(super) type SharedNet = Arc<Mutex<Net>>;

pub(super) fn lock(net: &SharedNet) -> MutexGuard<'_, Net> {
    net.lock().unwrap()
}

impl Net {
    pub(super) fn new(random: Random) -> Net {
        Net {
            now: Duration::ZERO,
            random,
            wires: BTreeMap::new(),
            next: 0,
            backlog: vec![VecDeque::new(); PLACES],
            ready: vec![Vec::new(); PLACES],
            cut: BTreeSet::new(),
            is_calm: false,
            is_there: vec![false; PLACES],
        }
    }

    /// The process at this place starts or ends.
    pub(super) fn set_there(&mut self, place: usize, is_there: bool) {
        self.is_there[place] = is_there;
        self.ready[place].clear();
        for number in std::mem::take(&mut self.backlog[place]) {
            // Nobody has accepted it.
            let end = &mut self.wires.get_mut(&number).unwrap().ends[1];
            end.is_closed = true;
        }
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.random.below(if self.is_calm { 5_000 } else { 60_000 }))
    }

    pub(super) fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    fn report(&mut self, node: usize, token: Option<Token>, writable: bool, ends: bool) {
        if let Some(token) = token {
            self.ready[node].push(SocketEvent { token, writable, ends });
        }
    }

    /// Lets everything arrive that is due.
    pub(super) fn tick(&mut self) {
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
    pub(super) fn break_one(&mut self) {
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

    pub(super) fn heal(&mut self, one: usize, other: usize) {
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

pub(super) fn address(node: usize) -> SocketAddr {
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

pub(super) struct TestSockets {
    pub(super) net: SharedNet,
    pub(super) node: usize,
}

impl Sockets for TestSockets {
    fn connect(&mut self, to: SocketAddr) -> io::Result<Box<dyn Socket>> {
        let other = (0..PLACES).find(|node| address(*node) == to).expect("a node's address");
        let mut net = lock(&self.net);
        let (number, at) = (net.next, net.now + net.delay());
        net.next += 1;
        let dial = match net.random.below(100) {
            _ if !net.is_there[other] => Dial::Refused(at),
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
