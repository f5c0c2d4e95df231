//! Instances without a replica: the library's clients, called guests here as their members call
//! them, since a world's clients are the tasks that use any instance.
//!
//! They have places behind those of the members, links with all of these and none with each other,
//! and no disk. Their faults come from a source of their own, at the rates of the members'.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::checks::watches::Moved;
use super::checks::{Violation, require};
use super::clock::{MILLI, Nanos, NodeClock, SECOND};
use super::faults::{Fault, TABLE};
use super::kernel::Phase;
use super::random::Random;
use super::workload;
use super::world::{Event, World};
use crate::api::coordinator::Coordinator;
use crate::node::client::{Client, ClientConfig};
use crate::node::client_message::FromClient;
use crate::node::io::{Input, Now};
use crate::node::message::PeerMessage;
use crate::runtime::clock::{Clock, Simulated};
use crate::runtime::host::Host;
use crate::runtime::shared::{Call, Limits};
use crate::security::auth::Schemes;
use crate::types::membership::NodeId;
use crate::types::version::INVENTED;
use crate::types::znode::Zxid;

/// The faults that befall what has no replica, as they come with time.
const FAULTS: [Fault; 7] = [
    Fault::PartitionOneWay,
    Fault::PartitionTwoWay,
    Fault::SlowNode,
    Fault::Crash,
    Fault::Close,
    Fault::Pause,
    Fault::ClockDrift,
];

/// All places without a replica.
#[derive(Debug)]
pub(crate) struct ClientPlaces {
    guests: Vec<ClientPlace>,
    /// By whom they are now.
    pub(super) places: BTreeMap<NodeId, usize>,
    random: Random,
}

impl Default for ClientPlaces {
    fn default() -> ClientPlaces {
        ClientPlaces { guests: Vec::new(), places: BTreeMap::new(), random: Random::new(0) }
    }
}

/// A place for a client.
#[derive(Debug)]
pub(crate) struct ClientPlace {
    /// Whom its last start has made it.
    pub(super) node: NodeId,
    clock: Arc<NodeClock>,
    pub(super) life: Option<Box<Visit>>,
    epoch: u64,
    pub(super) paused_until: Nanos,
    slow_until: Nanos,
    starting: bool,
}

/// A client's process that runs.
pub(crate) struct Visit {
    pub(super) host: Host,
    calls: Receiver<Call>,
    step_at: Nanos,
    /// The members that it is connected with, by their places.
    pub(super) connected: BTreeMap<usize, NodeId>,
    /// The number of the attachment in which it was served last.
    attachment: u64,
}

impl std::fmt::Debug for Visit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visit").field("client", &self.client()).finish_non_exhaustive()
    }
}

impl Visit {
    fn client(&self) -> &Client {
        self.host.engine().client().expect("what runs here was started as a client")
    }
}

impl World {
    pub(super) fn add_guests(&mut self, random: Random) {
        let plan = &self.kernel.plan;
        let (first, count) = (plan.places, plan.guests);
        self.guests.random = random;
        for place in first..first + count {
            let ahead = self.guests.random.below(1000 * SECOND);
            let drift = self.kernel.plan.drift_ppm;
            let rate = 1_000_000 - drift + self.guests.random.below(2 * drift + 1);
            self.guests.guests.push(ClientPlace {
                node: 0,
                clock: Arc::new(NodeClock::new(self.kernel.time.clone(), ahead, rate)),
                life: None,
                epoch: 0,
                paused_until: 0,
                slow_until: 0,
                starting: true,
            });
            let at = self.guests.random.below(10 * SECOND);
            self.schedule(at, Event::Start { place });
        }
    }

    /// The places without a replica.
    pub(super) fn guest_places(&self) -> std::ops::Range<usize> {
        let first = self.kernel.plan.places;
        first..first + self.guests.guests.len()
    }

    pub(super) fn guest(&self, place: usize) -> Option<&ClientPlace> {
        self.guests.guests.get(place.checked_sub(self.kernel.plan.places)?)
    }

    pub(super) fn guest_mut(&mut self, place: usize) -> &mut ClientPlace {
        let first = self.kernel.plan.places;
        &mut self.guests.guests[place - first]
    }

    /// Who is at a place, which of its lives it has, and whether it runs.
    pub(super) fn node_at(&self, place: usize) -> (NodeId, u64, bool) {
        match self.guest(place) {
            Some(guest) => (guest.node, guest.epoch, guest.life.is_some()),
            None => {
                let process = &self.processes[place];
                (process.member.node, process.epoch, process.life.is_some())
            }
        }
    }

    /// What decides about a link: what members do among themselves is left to their own.
    pub(super) fn dice_of(&self, one: usize, other: usize) -> &Random {
        let plan = &self.kernel.plan;
        let has_guest = plan.is_guest(one) || plan.is_guest(other);
        if has_guest { &self.guests.random } else { &self.random }
    }

    pub(super) fn start_guest(&mut self, place: usize) {
        let node = self.guests.random.next().max(1);
        let seed = self.guests.random.next();
        let guest = self.guest_mut(place);
        guest.starting = false;
        if guest.life.is_some() {
            return;
        }
        guest.epoch += 1;
        let former = std::mem::replace(&mut guest.node, node);
        let (clock, epoch) = (Arc::clone(&guest.clock) as Arc<dyn Simulated>, guest.epoch);
        self.guests.places.remove(&former);
        self.guests.places.insert(node, place);
        let plan = &self.kernel.plan;
        let clock = Clock::simulated(clock);
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        let config =
            ClientConfig { heartbeat: plan.heartbeat, tick: plan.tick, version: INVENTED, seed };
        let limits = Limits {
            pending_requests_max: plan.pending_requests_max,
            request_timeout: Duration::from_secs(30),
            session_timeout: plan.session_timeout,
            tick: plan.tick,
            watch_capacity: plan.watch_capacity,
        };
        let members = self.processes.iter().map(|process| process.member.clone()).collect();
        let client = Client::new(node, config, now);
        let (host, shared) = Host::new(client, clock, limits, members, Schemes::default());
        let coordinator = Coordinator::simulated(shared);
        self.kernel.coordinators.borrow_mut()[place] = Some(coordinator.clone());
        self.kernel.seen.borrow_mut()[place] = 0;
        self.kernel.count_event("starts of clients");
        self.kernel.trace.note([13, place as u64, epoch]);
        self.kernel.trace.say_fault(format_args!("client {place}: starts"));
        let calls = host.calls();
        let connected = BTreeMap::new();
        let visit = Visit { host, calls, step_at: Nanos::MAX, connected, attachment: 0 };
        self.guest_mut(place).life = Some(Box::new(visit));
        self.want_guest_step(place, self.now());
        for member in 0..self.processes.len() {
            if self.processes[member].life.is_some() {
                self.noticed_soon(place, member, 100 * MILLI);
                self.noticed_soon(member, place, 100 * MILLI);
            }
        }
        if !self.kernel.is_stopping() {
            workload::start(&self.kernel, place, &coordinator);
        }
    }

    /// A member has started, or is gone.
    pub(super) fn guests_notice(&mut self, member: usize, within: Nanos) {
        let runs = self.processes[member].life.is_some();
        for place in self.guest_places() {
            if self.guest(place).is_some_and(|guest| guest.life.is_some()) {
                self.noticed_soon(place, member, within);
                if runs {
                    self.noticed_soon(member, place, within);
                }
            }
        }
    }

    pub(super) fn look_at_guest(&mut self, place: usize) {
        let Some(guest) = self.guest(place) else { return };
        if guest.life.as_ref().is_some_and(|visit| !visit.host.is_idle()) {
            let slow = guest.slow_until > self.now();
            let mean = if slow { 200 * MILLI } else { self.kernel.plan.step_delay };
            let delay = self.guests.random.around(mean);
            self.want_guest_step(place, self.now() + delay);
        }
    }

    pub(super) fn want_guest_step(&mut self, place: usize, at: Nanos) {
        let guest = self.guest_mut(place);
        let at = at.max(guest.paused_until);
        if let Some(visit) = &mut guest.life
            && at < visit.step_at
        {
            visit.step_at = at;
            self.schedule(at, Event::Step { place });
        }
    }

    pub(super) fn guest_due(&mut self, place: usize) {
        let now = self.now();
        let guest = self.guest_mut(place);
        let until = guest.paused_until;
        let Some(visit) = guest.life.as_mut().filter(|visit| visit.step_at == now) else {
            return;
        };
        visit.step_at = Nanos::MAX;
        if until <= now {
            self.step_guest(place);
        } else {
            self.want_guest_step(place, until);
        }
    }

    pub(super) fn deliver_to_guest(&mut self, place: usize, from: NodeId, message: PeerMessage) {
        if let Some(visit) = &mut self.guest_mut(place).life {
            visit.host.input(Input::Peer { from, message });
            self.look_at_guest(place);
        }
    }

    fn step_guest(&mut self, place: usize) {
        self.steps += 1;
        let now = self.now();
        let Some(mut visit) = self.guest_mut(place).life.take() else {
            return;
        };
        while let Ok(call) = visit.calls.try_recv() {
            if !visit.host.call(call) {
                self.guest_mut(place).life = Some(visit);
                return self.guest_closed(place);
            }
        }
        let before = visit.client().seen();
        let (work, effects) = visit.host.step();
        let wake_at = visit.host.notify(effects);
        let (seen, served) = (visit.client().seen(), visit.client().served());
        self.kernel.seen.borrow_mut()[place] = seen;
        self.kernel.installs.borrow_mut()[place] = visit.client().attachments();
        let anew = served.filter(|(_, attachment)| *attachment != visit.attachment);
        if let Some((_, attachment)) = anew {
            if visit.attachment > 0 {
                self.kernel.count_event("clients moved");
            }
            visit.attachment = attachment;
        }
        let attached = anew.map(|(member, _)| self.forgotten_by(member, seen));
        self.kernel.trace.note([14, place as u64, seen]);
        if seen != before || anew.is_some() {
            let by = served.and_then(|(member, _)| self.place_of(member));
            let news = anew.map_or("", |_| ", anew");
            self.kernel.trace.say(format_args!(
                "client {place}: is served by {by:?}{news}, seen {seen}, {} messages",
                work.messages.len()
            ));
        }
        self.kernel.check(self.observe_guest(Moved {
            place,
            from: before,
            to: seen,
            installed: None,
            attached,
        }));
        let rate = self.kernel.plan.rates.of(Fault::CrashInStep);
        let cut_short = self.kernel.phase.get() == Phase::Chaos
            && !work.messages.is_empty()
            && self.guests.random.chance(rate);
        let mut messages = work.messages;
        if cut_short {
            messages.truncate(self.guests.random.index(messages.len() + 1));
        }
        let asks = |(_, message): &(NodeId, PeerMessage)| match message {
            PeerMessage::FromClient { messages, .. } => {
                messages.iter().any(|ask| matches!(ask, FromClient::ReadIndex { .. }))
            }
            _ => false,
        };
        let late = messages.iter().any(asks) && self.hears_late();
        for (to, message) in messages {
            self.send(place, 0, to, &message);
        }
        let (closed, idle) = (visit.host.is_closed(), visit.host.is_idle());
        let stopped = visit.host.shared().stopped().map(str::to_owned);
        let guest = self.guest_mut(place);
        let wake_at = guest.clock.when(wake_at);
        guest.life = Some(visit);
        if cut_short {
            self.kernel.count_fault(Fault::CrashInStep);
            return self.crash_guest_for_a_while(place);
        }
        if late {
            self.hear_late(place);
        }
        if closed {
            return self.guest_closed(place);
        }
        if let Some(reason) = stopped {
            return self.kernel.fail(Violation::new(
                "I31 no client stops by itself",
                format!("client {place}: {reason}"),
            ));
        }
        self.want_guest_step(place, wake_at.max(now + 1));
        if !idle {
            self.look_at_guest(place);
        }
    }

    /// Whether a client is stopped right when it has asked that its sessions be kept alive.
    fn hears_late(&self) -> bool {
        const OF_A_MILLION_ROUNDS: u64 = 4_000;
        self.kernel.phase.get() == Phase::Chaos
            && self.kernel.plan.rates.of(Fault::Pause) > 0
            && self.guests.random.chance(OF_A_MILLION_ROUNDS)
    }

    /// It finds the answer when it goes on, and nobody hears of it any more.
    fn hear_late(&mut self, place: usize) {
        let timeout = self.kernel.plan.session_timeout.as_nanos() as u64;
        let time = self.guests.random.within(timeout / 10..timeout);
        self.pause_guest(place, time);
        // What it has just asked is under way, and is not to be cut off.
        let at = self.now() + time - timeout / 20;
        self.schedule(at, Event::CutOff { place, time: 2 * timeout });
        self.kernel.count_fault(Fault::Pause);
        self.kernel
            .trace
            .say_fault(format_args!("pauses: client {place} for {time} ns, and then cut off"));
    }

    /// A client is not heard by any member.
    pub(super) fn cut_off(&mut self, place: usize, time: Nanos) {
        if self.kernel.phase.get() == Phase::Chaos {
            let members: Vec<usize> = (0..self.processes.len()).collect();
            self.part_guest(place, &members, (true, false), time);
        }
    }

    fn pause_guest(&mut self, place: usize, time: Nanos) {
        let until = self.now() + time;
        let guest = self.guest_mut(place);
        guest.paused_until = until;
        if let Some(visit) = &mut guest.life {
            // The step that was due comes afterwards.
            visit.step_at = Nanos::MAX;
        }
        self.want_guest_step(place, until);
    }

    /// What a step of a client has brought.
    fn observe_guest(&self, moved: Moved) -> Result<(), Violation> {
        let mut checks = self.kernel.checks.borrow_mut();
        let checks = &mut *checks;
        let Moved { place, from, to, .. } = moved;
        require(from <= to, "I3 a client does not go back", || {
            format!("client {place} was told of all up to {from}, and now up to {to}")
        })?;
        require(to <= checks.oracle.zxid(), "I11 no gap", || {
            format!("client {place} was told of all up to {to}, which nobody has written")
        })?;
        if from != to || moved.attached.is_some() {
            checks.watches.stepped(&checks.oracle, moved)?;
            checks.locks.check(|session| checks.sessions.is_forced(session))?;
            checks.shares.check(|session| checks.sessions.is_forced(session))?;
        }
        checks.sessions.stay_over()
    }

    /// The last zxid whose changes a member need not know that shows this one.
    fn forgotten_by(&self, member: NodeId, shown: Zxid) -> Zxid {
        match self.place_of(member) {
            Some(place) => self.kernel.forgotten(self.kernel.known_from.borrow()[place], shown),
            // It has begun again since.
            None => Zxid::MAX,
        }
    }

    /// The client is gone at once.
    pub(super) fn crash_guest(&mut self, place: usize) {
        let guest = self.guest_mut(place);
        (guest.paused_until, guest.slow_until) = (0, 0);
        let Some(visit) = guest.life.take() else {
            return;
        };
        self.kernel.checks.borrow_mut().watches.crashed(place);
        self.kernel.executor.kill(place);
        self.kernel.coordinators.borrow_mut()[place] = None;
        drop(visit);
        for member in 0..self.processes.len() {
            if self.processes[member].life.is_some() {
                self.noticed_soon(member, place, SECOND);
            }
        }
    }

    pub(super) fn start_guest_in(&mut self, place: usize, time: Nanos) {
        if !std::mem::replace(&mut self.guest_mut(place).starting, true) {
            self.schedule_in(time, Event::Start { place });
        }
    }

    fn crash_guest_for_a_while(&mut self, place: usize) {
        self.kernel.trace.say_fault(format_args!("client {place}: crashes"));
        self.crash_guest(place);
        let time = self.some_guest_time();
        self.start_guest_in(place, time);
    }

    fn guest_closed(&mut self, place: usize) {
        self.kernel.trace.say_fault(format_args!("client {place}: has closed"));
        self.crash_guest(place);
        let time = self.guests.random.around(2 * SECOND);
        self.start_guest_in(place, time);
    }

    fn some_guest_time(&self) -> Nanos {
        let timeout = self.kernel.plan.session_timeout.as_nanos() as u64;
        let means = [100 * MILLI, SECOND, timeout / 2, timeout, 2 * timeout];
        let mean = *self.guests.random.pick(&means);
        self.guests.random.around(mean)
    }

    pub(super) fn begin_guests_chaos(&mut self) {
        if !self.guests.guests.is_empty() {
            FAULTS.iter().for_each(|fault| self.strike_guest_later(*fault));
        }
    }

    fn strike_guest_later(&mut self, fault: Fault) {
        if let Some(period) = self.kernel.plan.rates.period(fault) {
            let time = self.guests.random.around(period);
            self.schedule_in(time, Event::StrikeGuest { fault });
        }
    }

    pub(super) fn strike_guest(&mut self, fault: Fault) {
        if self.kernel.phase.get() != Phase::Chaos {
            return;
        }
        self.strike_guest_later(fault);
        let all = self.guest_places();
        let count =
            if self.kernel.plan.fleet { 1 + self.guests.random.index(all.len() / 4) } else { 1 };
        let first = all.start + self.guests.random.index(all.len() + 1 - count);
        for place in first..first + count {
            if let Some(what) = self.inject_guest(fault, place) {
                self.kernel.count_fault(fault);
                self.kernel.trace.note([15, fault as u64, place as u64]);
                let name = TABLE[fault as usize].name;
                self.kernel.trace.say_fault(format_args!("{name}: client {place}: {what}"));
            }
        }
    }

    fn inject_guest(&mut self, fault: Fault, place: usize) -> Option<String> {
        let (now, time) = (self.now(), self.some_guest_time());
        let member = self.member_of(place);
        match fault {
            Fault::PartitionOneWay | Fault::PartitionTwoWay => {
                // From the one that serves it, from all, or from any.
                let members: Vec<usize> = match (self.guests.random.below(3), member) {
                    (0, Some(member)) => vec![member],
                    (1, _) => (0..self.processes.len()).collect(),
                    _ => (0..self.processes.len())
                        .filter(|_| self.guests.random.percent(50))
                        .collect(),
                };
                let both = fault == Fault::PartitionTwoWay;
                let there = self.guests.random.percent(50);
                self.part_guest(place, &members, (both || there, both || !there), time);
                Some(format!("from {members:?} for {time} ns"))
            }
            Fault::SlowNode => {
                self.guest_mut(place).slow_until = now + time;
                Some(format!("for {time} ns"))
            }
            // Its member dies instead. Where many are struck, that befalls members by themselves.
            Fault::Crash if !self.kernel.plan.fleet && self.guests.random.percent(40) => {
                let member = member?;
                self.crash(member);
                self.start_in(member, time);
                Some(format!("its member {member}"))
            }
            Fault::Crash => {
                self.crash_guest_for_a_while(place);
                Some(String::new())
            }
            Fault::Close => {
                let coordinator = self.kernel.coordinators.borrow()[place].clone();
                coordinator?.close();
                self.want_guest_step(place, now);
                Some(String::new())
            }
            Fault::Pause => {
                self.pause_guest(place, time);
                Some(format!("for {time} ns"))
            }
            Fault::ClockDrift => {
                let drift = self.kernel.plan.drift_ppm;
                let rate = 1_000_000 - drift + self.guests.random.below(2 * drift + 1);
                self.guest_mut(place).clock.set_rate(rate);
                self.want_guest_step(place, now);
                Some(format!("to {rate} ppm"))
            }
            _ => None,
        }
    }

    /// The place of the member that serves the client at this one.
    pub(super) fn member_of(&self, place: usize) -> Option<usize> {
        let visit = self.guest(place)?.life.as_ref()?;
        self.place_of(visit.client().member()?)
    }

    /// Cuts a client's links to members, from them, or both.
    pub(super) fn part_guest(
        &mut self,
        place: usize,
        members: &[usize],
        (there, back): (bool, bool),
        time: Nanos,
    ) {
        let links = members.iter().flat_map(|member| {
            let links = [there.then_some((place, *member)), back.then_some((*member, place))];
            links.into_iter().flatten()
        });
        let links: Vec<(usize, usize)> = links.collect();
        for (from, to) in &links {
            if self.network.cut(*from, *to) && self.guests.random.percent(50) {
                self.noticed_soon(*from, *to, SECOND);
            }
        }
        self.schedule_in(time, Event::Heal { links });
    }

    pub(super) fn end_guests_chaos(&mut self) {
        let now = self.now();
        for place in self.guest_places() {
            let guest = self.guest_mut(place);
            (guest.paused_until, guest.slow_until) = (now, now);
            if guest.life.is_none() {
                self.schedule_in(SECOND, Event::Start { place });
            }
            self.want_guest_step(place, now);
        }
    }

    /// Whether all that run have been told of everything.
    pub(crate) fn guests_know_all(&self) -> bool {
        let last = self.kernel.checks.borrow().oracle.zxid();
        let visits = self.guests.guests.iter().filter_map(|guest| guest.life.as_ref());
        visits.into_iter().all(|visit| visit.client().seen() == last)
    }

    pub(crate) fn describe_guests(&self) -> Vec<String> {
        let describe = |guest: &ClientPlace| match &guest.life {
            None => "down".to_owned(),
            Some(visit) => format!("{:?}", visit.client()),
        };
        const SHOWN: usize = 20;
        self.guests.guests.iter().map(describe).take(SHOWN).collect()
    }
}
