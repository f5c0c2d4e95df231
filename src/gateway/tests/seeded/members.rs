//! Members with gateways, in virtual time: their messages and writes take a while, and their links break.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use crossbeam_channel::Receiver;

use super::history::History;
use crate::Builder;
use crate::gateway::GatewayBuilder;
use crate::gateway::authentication::{Authenticator, Checks};
use crate::gateway::clients::{ByteStream, Clients, Readiness};
use crate::gateway::output::{Output, PIECES_MAX};
use crate::machine::snapshot::ChunkWriter;
use crate::node::NodeConfig;
use crate::node::io::{Input, Now, Problem, WatchId};
use crate::node::message::PeerMessage;
use crate::node::stored::Identity;
use crate::runtime::boot;
use crate::runtime::clock::{Clock, TimeSource};
use crate::runtime::disk::InlineDisk;
use crate::runtime::host::Host;
use crate::runtime::inbox::HostMessage;
use crate::runtime::mailbox::Mailbox;
use crate::runtime::shared::{Limits, NodeShared};
use crate::simulation::random::Random;
use crate::storage::{LogStore, MemoryDisk};
use crate::types::acl::Id;
use crate::types::membership::{Genesis, Member as Listed};
use crate::types::znode::SessionId;

pub(super) const MEMBERS: usize = 3;

/// Time that passes only when the test says so.
#[derive(Debug, Default)]
pub(super) struct VirtualTime(AtomicU64);

/// What the clock shows at the start.
const START: Duration = Duration::from_secs(3600);

impl VirtualTime {
    pub(super) fn pass(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

impl TimeSource for VirtualTime {
    fn now(&self) -> Duration {
        START + Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        1_767_225_600_000 + self.0.load(Ordering::Relaxed) / 1_000_000
    }

    fn park_until(&self, _: Option<Duration>) {
        panic!("nothing may block: one thread runs everything");
    }
}

/// The two directions of a connection. What is sent is on the way first, and arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// From the client: on its way, and arrived.
    pub(super) sent: VecDeque<u8>,
    arrived: VecDeque<u8>,
    /// From the gateway: in the socket's buffer, of which this much is the limit.
    pub(super) unread: VecDeque<u8>,
    window: usize,
    was_full: bool,
    /// The client has closed its side, after the bytes that are on the way.
    pub(super) client_closed: bool,
    /// The connection was reset: what is on the way is lost.
    pub(super) is_reset: bool,
    /// The gateway has closed it.
    pub(super) is_over: bool,
    end_reported: bool,
}

impl ByteStream for Pipe {
    fn read(&mut self, scratch: &mut [u8], to: &mut BytesMut) -> io::Result<usize> {
        assert!(!self.is_over, "a connection is read after its end");
        let read = self.arrived.len().min(scratch.len());
        if read == 0 && self.is_reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if read == 0 {
            let at_end = self.client_closed && self.sent.is_empty();
            return if at_end { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        to.extend(self.arrived.drain(..read));
        Ok(read)
    }

    fn write(&mut self, out: &mut Output) -> io::Result<()> {
        assert!(!self.is_over || out.is_empty(), "bytes are sent after the connection's end");
        if self.is_reset && !out.is_empty() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        while !out.is_empty() && self.unread.len() < self.window {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = out.slices(&mut slices);
            let room = self.window - self.unread.len();
            let bytes = slices[..count].iter().flat_map(|slice| slice.iter());
            let before = self.unread.len();
            self.unread.extend(bytes.take(room));
            out.advance(self.unread.len() - before);
        }
        self.was_full = !out.is_empty();
        Ok(())
    }

    fn len(&self) -> usize {
        0
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn certified(&self) -> Option<Id> {
        None
    }
}

/// A member, its gateway, and the connections of its clients.
pub(super) struct Member {
    host: Host,
    disk: InlineDisk,
    pub(super) shared: Arc<NodeShared>,
    calls: Receiver<HostMessage>,
    wake_at: Duration,
    /// When it takes its calls and inputs.
    step_at: Option<Duration>,
    pub(super) clients: Clients,
    checks: Checks,
    check_at: Option<Duration>,
    pub(super) pipes: BTreeMap<u64, Pipe>,
    woken: Arc<AtomicBool>,
    turn_at: Option<Duration>,
    is_cut: bool,
}

/// What the world is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// The longest times that a message, a write and a step take, in milliseconds.
    pub(super) message_ms: u64,
    pub(super) disk_ms: u64,
    pub(super) step_ms: u64,
    /// The longest pause of a gateway's thread.
    pub(super) turn_ms: u64,
    /// How many bytes a client's socket buffers.
    pub(super) window: usize,
}

pub(super) struct Members {
    pub(super) time: Arc<VirtualTime>,
    pub(super) all: Vec<Member>,
    listed: Vec<Listed>,
    /// By the time of arrival.
    inputs: BTreeMap<(Duration, u64), (usize, Option<usize>, Input)>,
    /// The last arrival on each link, and of each disk: they keep the order.
    last: BTreeMap<(usize, usize), Duration>,
    sequence: u64,
    weather: Weather,
    random: Random,
    next_pipe: u64,
    /// The watch whose events are the history.
    pub(super) observer: WatchId,
    pub(super) history: History,
    scratch: Vec<u8>,
}

/// Larger than any read, so that a short read means that all was read.
const SCRATCH_BYTES: usize = 1 << 20;

impl Members {
    pub(super) fn new(
        weather: Weather,
        settings: &GatewayBuilder,
        schemes: &Builder,
        random: Random,
    ) -> Members {
        let listed: Vec<Listed> =
            (1..=MEMBERS as u64).map(|id| Listed::new(id, format!("node-{id}"))).collect();
        let founding = Genesis { cluster: 1, members: listed.clone() };
        let time = Arc::new(VirtualTime::default());
        let clock = Clock::new(Arc::clone(&time) as Arc<dyn TimeSource>);
        let member = |place: usize| member(place, &founding, &clock, settings, schemes);
        let mut members = Members {
            time,
            all: (0..MEMBERS).map(member).collect(),
            listed,
            inputs: BTreeMap::new(),
            last: BTreeMap::new(),
            sequence: 0,
            weather,
            random,
            next_pipe: 2,
            observer: WatchId(u64::MAX >> 1),
            history: History::default(),
            scratch: vec![0; SCRATCH_BYTES],
        };
        members.meet();
        members
    }

    pub(super) fn now(&self) -> Duration {
        self.time.now()
    }

    /// Cuts a member off from the others, or connects it again.
    pub(super) fn cut(&mut self, member: usize, is_cut: bool) {
        self.all[member].is_cut = is_cut;
        self.meet();
    }

    pub(super) fn is_cut(&self, member: usize) -> bool {
        self.all[member].is_cut
    }

    fn reaches(&self, one: usize, other: usize) -> bool {
        !self.all[one].is_cut && !self.all[other].is_cut
    }

    fn meet(&mut self) {
        for one in 0..MEMBERS {
            for other in (0..MEMBERS).filter(|other| *other != one) {
                let peer = self.listed[other].node;
                let input = if self.reaches(one, other) {
                    Input::Connected { peer, version: crate::types::version::VERSION }
                } else {
                    let problem = Problem { reason: "cut off".to_owned(), refused: false };
                    Input::Unreachable { peer, problem }
                };
                self.arrive(one, None, 0, input);
            }
        }
    }

    /// An input for a member, after at most this many milliseconds.
    fn arrive(&mut self, to: usize, from: Option<usize>, most_ms: u64, input: Input) {
        let delay = Duration::from_micros(self.random.below(1000 * most_ms + 1));
        let last = self.last.entry((from.unwrap_or(to), to)).or_default();
        let at = (self.time.now() + delay).max(*last);
        *last = at;
        self.sequence += 1;
        self.inputs.insert((at, self.sequence), (to, from, input));
    }

    /// A client connects. Returns the connection's number.
    pub(super) fn connect(&mut self, member: usize) -> Option<u64> {
        let (now, number) = (self.now(), self.next_pipe);
        self.next_pipe += 1;
        let address = format!("192.0.2.{}:{}", 1 + number % 3, 1024 + number).parse().unwrap();
        let member = &mut self.all[member];
        if !member.clients.admits(address, 0, now) {
            return None;
        }
        let pipe = Pipe { window: self.weather.window, ..Pipe::default() };
        member.pipes.insert(number, pipe);
        member.clients.connect(number, address, 0, now);
        Some(number)
    }

    /// The connection of a client, until the gateway has closed it and everything is read.
    pub(super) fn pipe(&mut self, member: usize, number: u64) -> &mut Pipe {
        self.all[member].pipes.get_mut(&number).expect("the client still has it")
    }

    /// The client has noticed the end.
    pub(super) fn remove(&mut self, member: usize, number: u64) {
        let pipe = self.all[member].pipes.remove(&number).expect("it is there");
        assert!(pipe.is_over, "the gateway still has it");
    }

    /// The last write that a member has.
    pub(super) fn zxid(&self, member: usize) -> i64 {
        self.all[member].shared.tree().zxid().cast_signed()
    }

    /// Whether a session is open.
    pub(super) fn has_session(&self, session: i64) -> bool {
        let session = SessionId(session.cast_unsigned());
        self.all[0].host.node().machine().session(session).is_some()
    }

    /// Checks that each ephemeral znode belongs to an open session.
    pub(super) fn check_ephemerals(&self) {
        for (path, znode) in self.all[0].shared.tree().below("/t") {
            let owner = znode.stat().ephemeral_owner;
            let is_open = owner.is_none_or(|owner| self.has_session(owner.0.cast_signed()));
            assert!(is_open, "{path} has outlived its session {owner:?}");
        }
    }

    /// Everything that happens by now.
    pub(super) fn run(&mut self) {
        let now = self.now();
        while let Some(entry) = self.inputs.first_entry()
            && entry.key().0 <= now
        {
            let (to, from, input) = entry.remove();
            if from.is_none_or(|from| self.reaches(from, to)) {
                self.all[to].host.input(input);
            }
        }
        for place in 0..MEMBERS {
            self.step(place, now);
            self.check_credentials(place, now);
            self.carry(place);
            self.turn(place, now);
        }
    }

    fn step(&mut self, place: usize, now: Duration) {
        let delay = Duration::from_millis(self.random.below(self.weather.step_ms + 1));
        let member = &mut self.all[place];
        if now >= member.wake_at {
            member.step_at = Some(now);
        } else if !member.host.is_idle() {
            member.step_at.get_or_insert(now + delay);
        }
        if member.step_at.is_none_or(|at| at > now) {
            return;
        }
        member.step_at = None;
        // A step may come between two calls that were made together.
        while !self.random.percent(3)
            && let Ok(call) = member.calls.try_recv()
        {
            assert!(member.host.call(call), "nobody closes it");
        }
        let (work, mut effects) = member.host.step();
        if place == 0 {
            for (watch, event) in effects.events_mut() {
                if *watch == self.observer {
                    self.history.note(event);
                }
            }
        }
        member.wake_at = member.host.notify(effects);
        let done: Vec<Input> = work
            .disk
            .into_iter()
            .flat_map(|op| member.disk.perform(op, now).collect::<Vec<Input>>())
            .collect();
        for input in done {
            self.arrive(place, None, self.weather.disk_ms, input);
        }
        for (to, message) in work.messages {
            self.send(place, to, message);
        }
    }

    fn send(&mut self, from: usize, to: u64, message: PeerMessage) {
        let Some(to) = self.listed.iter().position(|member| member.node == to) else { return };
        if self.reaches(from, to) {
            let input = Input::Peer { from: self.listed[from].node, message };
            self.arrive(to, Some(from), self.weather.message_ms, input);
        }
    }

    fn check_credentials(&mut self, place: usize, now: Duration) {
        let delay = Duration::from_millis(self.random.below(30));
        let member = &mut self.all[place];
        if member.checks.is_empty() {
            return;
        }
        if *member.check_at.get_or_insert(now + delay) <= now {
            member.check_at = None;
            member.checks.run_next();
        }
    }

    /// Lets some bytes of the clients arrive.
    fn carry(&mut self, place: usize) {
        let Members { all, random, weather, .. } = self;
        let member = &mut all[place];
        for (number, pipe) in member.pipes.iter_mut().filter(|(_, pipe)| !pipe.is_over) {
            let before = pipe.arrived.len();
            if pipe.is_reset {
                pipe.sent.clear();
            }
            if !pipe.sent.is_empty() && random.percent(60) {
                let most = if random.percent(50) { 40 } else { 40_000 };
                let some = random.below(most + 1) as usize;
                let some = some.min(pipe.sent.len());
                pipe.arrived.extend(pipe.sent.drain(..some));
            }
            let ends = pipe.is_reset || (pipe.client_closed && pipe.sent.is_empty());
            let ends = ends && !std::mem::replace(&mut pipe.end_reported, ends);
            let has_room = pipe.was_full && pipe.unread.len() < weather.window;
            if pipe.arrived.len() > before || ends || has_room {
                pipe.was_full &= !has_room;
                let failure = (ends && pipe.is_reset && random.percent(50))
                    .then(|| io::Error::from(ErrorKind::ConnectionReset).into());
                let readable = pipe.arrived.len() > before || ends;
                let read_closed = ends && !pipe.is_reset;
                member.clients.ready(*number, Readiness { readable, read_closed, failure });
            }
        }
    }

    fn turn(&mut self, place: usize, now: Duration) {
        let delay = Duration::from_millis(self.random.below(self.weather.turn_ms + 1));
        let Members { all, scratch, .. } = self;
        let member = &mut all[place];
        let is_due = member.woken.swap(false, Ordering::Relaxed) || member.clients.turns.is_busy();
        if is_due {
            member.turn_at.get_or_insert(now + delay);
        }
        let at = member.turn_at.unwrap_or(now + member.clients.turns.next_sweep(now));
        if at > now {
            return;
        }
        member.turn_at = None;
        member.clients.turn(now, &mut member.pipes, scratch);
        member.clients.check_bounds();
        if member.clients.turns.next_sweep(now).is_zero() {
            member.clients.sweep(now, &mut member.pipes, scratch);
        }
        for number in member.clients.take_over() {
            let pipe = member.pipes.get_mut(&number).expect("a client has it");
            assert!(!pipe.is_over, "a connection ends twice");
            pipe.is_over = true;
        }
    }
}

fn member(
    place: usize,
    founding: &Genesis,
    clock: &Clock,
    settings: &GatewayBuilder,
    builder: &Builder,
) -> Member {
    let Listed { node, address, uid, .. } = founding.members[place].clone();
    let disk = MemoryDisk::new();
    let (hard_state, meta, state) = founding.start();
    let identity = Identity { cluster: founding.cluster, node, incarnation: node, address, uid };
    let mut store = disk.open();
    store
        .found(&identity, hard_state, &meta, &mut ChunkWriter::full(state))
        .expect("memory does not fail");
    let seed = crate::runtime::entropy::number().unwrap();
    let config = NodeConfig {
        timeouts: builder.timeouts(),
        container_period: builder.container_period,
        policy: builder.policy,
        ..NodeConfig::new(builder.heartbeat, builder.tick, seed)
    };
    let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
    let booted = boot(&mut store, config, now).expect("memory does not fail");
    let limits = Limits {
        pending_requests_max: builder.pending_requests_max,
        request_timeout: builder.request_timeout,
        session_timeout: builder.session_timeout,
        tick: builder.tick,
        timeouts: builder.timeouts(),
        watch_capacity: crate::types::watch::WATCH_CAPACITY,
    };
    let schemes = builder.schemes.clone();
    let (host, shared) =
        Host::new(booted, clock.clone(), limits, founding.members.clone(), schemes);
    let woken = Arc::new(AtomicBool::new(false));
    let wake = Arc::clone(&woken);
    let mailbox = Arc::new(Mailbox::new(move || wake.store(true, Ordering::Relaxed)));
    let (authenticator, checks) = Authenticator::new(Arc::clone(&shared));
    let address = "192.0.2.9:2181".parse().unwrap();
    let clients = Clients::new(
        Arc::clone(&shared),
        address,
        settings.clone(),
        mailbox,
        authenticator,
        None,
        clock.now(),
    );
    Member {
        calls: host.calls(),
        host,
        disk: InlineDisk::new(Box::new(store), now.mono),
        shared,
        wake_at: Duration::ZERO,
        step_at: None,
        clients,
        checks,
        check_at: None,
        pipes: BTreeMap::new(),
        woken,
        turn_at: None,
        is_cut: false,
    }
}
