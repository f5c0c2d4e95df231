//! Clients: instances without a replica. (In `client` and `workload`, a client is a task that uses
//! any instance.)
//!
//! Their places come after those of the members. Each has links to all members, none to another
//! client, and no disk. Their faults are drawn from a random source of their own, at the same rates
//! as those of members.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::checks::watches::Moved;
use super::checks::{Violation, require};
use super::clock::{MILLI, Nanos, NodeClock, SECOND, nanos};
use super::faults::{Fault, TABLE};
use super::kernel::Phase;
use super::random::Random;
use super::surroundings;
use super::workload;
use super::world::{Event, World};
use crate::api::coordinator::Coordinator;
use crate::node::TimeoutBounds;
use crate::node::client::{Client, ClientConfig};
use crate::node::client_message::FromClient;
use crate::node::io::{Dial, Input, Now};
use crate::node::message::PeerMessage;
use crate::runtime::clock::{Clock, TimeSource};
use crate::runtime::host::Host;
use crate::runtime::inbox::HostMessage;
use crate::security::auth::Schemes;
use crate::types::membership::NodeId;
use crate::types::version::INVENTED;
use crate::types::znode::Zxid;

/// The faults of clients that happen at random times.
const FAULTS: [Fault; 7] = [
    Fault::PartitionOneWay,
    Fault::PartitionTwoWay,
    Fault::SlowNode,
    Fault::Crash,
    Fault::Close,
    Fault::Pause,
    Fault::ClockDrift,
];

/// How long a client waits for the member at one address before it tries the next.
const DIAL_INTERVAL: Nanos = 250 * MILLI;

/// The places of all clients.
#[derive(Debug)]
pub(crate) struct ClientInstances {
    all: Vec<ClientInstance>,
    /// The place of each client that exists now.
    pub(super) places: BTreeMap<NodeId, usize>,
    random: Random,
}

impl Default for ClientInstances {
    fn default() -> ClientInstances {
        ClientInstances { all: Vec::new(), places: BTreeMap::new(), random: Random::new(0) }
    }
}

/// A place for a client.
#[derive(Debug)]
pub(crate) struct ClientInstance {
    /// The id that its last start has drawn.
    pub(super) node: NodeId,
    clock: Arc<NodeClock>,
    pub(super) life: Option<Box<ClientLife>>,
    epoch: u64,
    pub(super) paused_until: Nanos,
    slow_until: Nanos,
    starting: bool,
}

/// A running client process.
pub(crate) struct ClientLife {
    pub(super) host: Host,
    calls: Receiver<HostMessage>,
    step_at: Nanos,
    /// The members to which it is connected, by their places.
    pub(super) connected: BTreeMap<usize, NodeId>,
    /// The members to which it is to be connected.
    dial: Dial,
    /// The number of its last attachment.
    attachment: u64,
}

impl std::fmt::Debug for ClientLife {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientLife").field("client", &self.client()).finish_non_exhaustive()
    }
}

impl ClientLife {
    pub(super) fn client(&self) -> &Client {
        self.host.engine().client().expect("what runs here was started as a client")
    }
}

impl World {
    /// Each client starts within ten seconds after `from`.
    pub(super) fn add_clients(&mut self, random: Random, from: Nanos) {
        let plan = &self.kernel.plan;
        let (first, count) = (plan.places, plan.client_instances);
        self.clients.random = random;
        for place in first..first + count {
            let ahead = self.clients.random.below(1000 * SECOND);
            let drift = self.kernel.plan.drift_ppm;
            let rate = 1_000_000 - drift + self.clients.random.below(2 * drift + 1);
            self.clients.all.push(ClientInstance {
                node: 0,
                clock: Arc::new(NodeClock::new(self.kernel.time.clone(), ahead, rate)),
                life: None,
                epoch: 0,
                paused_until: 0,
                slow_until: 0,
                starting: true,
            });
            let at = from + self.clients.random.below(10 * SECOND);
            self.schedule(at, Event::Start { place });
        }
    }

    /// The places for clients.
    pub(super) fn client_places(&self) -> std::ops::Range<usize> {
        let first = self.kernel.plan.places;
        first..first + self.clients.all.len()
    }

    pub(super) fn client_at(&self, place: usize) -> Option<&ClientInstance> {
        self.clients.all.get(place.checked_sub(self.kernel.plan.places)?)
    }

    pub(super) fn client_at_mut(&mut self, place: usize) -> &mut ClientInstance {
        let first = self.kernel.plan.places;
        &mut self.clients.all[place - first]
    }

    /// The instance at a place: its id, how often it has started, and whether it runs.
    pub(super) fn node_at(&self, place: usize) -> (NodeId, u64, bool) {
        match self.client_at(place) {
            Some(client) => (client.node, client.epoch, client.life.is_some()),
            None => {
                let process = &self.processes[place];
                (process.member.node, process.epoch, process.life.is_some())
            }
        }
    }

    /// The random source for a link. Links between members have another one.
    pub(super) fn random_of_link(&self, one: usize, other: usize) -> &Random {
        let plan = &self.kernel.plan;
        let has_client = plan.is_client(one) || plan.is_client(other);
        if has_client { &self.clients.random } else { &self.random }
    }

    pub(super) fn start_client(&mut self, place: usize) {
        let node = self.clients.random.next().max(1);
        let seed = self.clients.random.next();
        let client = self.client_at_mut(place);
        client.starting = false;
        if client.life.is_some() {
            return;
        }
        client.epoch += 1;
        let former = std::mem::replace(&mut client.node, node);
        let (clock, epoch) = (Arc::clone(&client.clock) as Arc<dyn TimeSource>, client.epoch);
        self.clients.places.remove(&former);
        self.clients.places.insert(node, place);
        let plan = &self.kernel.plan;
        let clock = Clock::new(clock);
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        let config = ClientConfig {
            audit: false,
            name: String::new(),
            heartbeat: plan.heartbeat,
            tick: plan.tick,
            timeouts: TimeoutBounds::of(plan.tick),
            version: INVENTED,
            seed,
        };
        let limits = plan.limits();
        let members = self.processes.iter().map(|process| process.member.clone()).collect();
        let client = Client::new(node, config, now);
        let (host, shared) = Host::new(client, clock, limits, members, Schemes::default());
        let coordinator = Coordinator::simulated(shared);
        self.kernel.coordinators.borrow_mut()[place] = Some(coordinator.clone());
        self.kernel.seen.borrow_mut()[place] = 0;
        self.kernel.count_event("starts of clients");
        self.kernel.trace.note([13, place as u64, epoch]);
        self.kernel.trace.log_fault(format_args!("client {place}: starts"));
        let calls = host.calls();
        let connected = BTreeMap::new();
        let (step_at, dial) = (Nanos::MAX, Dial::seeking());
        let life = ClientLife { host, calls, step_at, connected, dial, attachment: 0 };
        self.client_at_mut(place).life = Some(Box::new(life));
        self.want_client_step(place, self.now());
        self.dial_addresses(place);
        if !self.kernel.is_stopping() {
            workload::start(&self.kernel, place, &coordinator);
        }
    }

    /// A client dials the addresses of its list, one after the other.
    fn dial_addresses(&mut self, place: usize) {
        let members = self.processes.len();
        let first = self.clients.random.index(members);
        for turn in 0..members {
            let member = (first + turn) % members;
            let at =
                self.now() + turn as u64 * DIAL_INTERVAL + self.clients.random.below(100 * MILLI);
            self.schedule(at, Event::Dial { place, member });
        }
    }

    /// A client dials a member, if it wants to and is not connected to it already.
    pub(super) fn dial_member(&mut self, place: usize, member: usize) {
        let node = self.processes[member].member.node;
        let life = self.client_at(place).and_then(|client| client.life.as_ref());
        if life
            .is_some_and(|life| life.dial.wants(node) && life.connected.get(&member) != Some(&node))
        {
            self.notice(place, member);
            self.schedule_notice(member, place, MILLI);
        }
    }

    /// The client at a place is to be connected to other members.
    fn dial(&mut self, place: usize, dial: Dial) {
        let Some(life) = self.client_at_mut(place).life.as_mut() else { return };
        let former = std::mem::replace(&mut life.dial, dial.clone());
        for member in 0..self.processes.len() {
            let node = self.processes[member].member.node;
            let Some(life) = &mut self.client_at_mut(place).life else { return };
            // A member that is no longer named is disconnected. The client finds it again only
            // through an address of the list, where another process may run by now.
            let connected = life.connected.get(&member).copied().unwrap_or(node);
            let is_left = former.names(connected) && !dial.names(connected);
            if is_left || former.wants(connected) && !dial.wants(connected) {
                life.connected.remove(&member);
                self.schedule_notice(member, place, 100 * MILLI);
                if dial.wants(node) {
                    let at = self.now() + DIAL_INTERVAL + self.clients.random.below(SECOND);
                    self.schedule(at, Event::Dial { place, member });
                }
            } else if dial.names(node) && !former.names(node) {
                let at = self.now() + self.clients.random.below(10 * MILLI);
                self.schedule(at, Event::Dial { place, member });
            }
        }
        if dial.seeks && !former.seeks {
            self.dial_addresses(place);
        }
    }

    /// A client is connected to its member and a spare. Only while it asks all members for their
    /// reports does it have more connections.
    fn check_connections(&self, place: usize) {
        let Some(life) = self.client_at(place).and_then(|client| client.life.as_ref()) else {
            return;
        };
        let seeks = life.dial.seeks || life.client().member().is_none();
        let asks = !life.client().asked_members().is_empty();
        let few = seeks || asks || life.connected.len() <= 2;
        self.kernel.check(require(few, "K4 a client has a member and a spare", || {
            format!("client {place} is connected with {:?}", life.connected)
        }));
    }

    /// Whether one of these is a client that does not want a connection to the other.
    pub(super) fn is_unwanted(&self, one: usize, other: usize) -> bool {
        let (client, member) =
            if self.kernel.plan.is_client(one) { (one, other) } else { (other, one) };
        let life = self.client_at(client).and_then(|client| client.life.as_ref());
        life.is_some_and(|life| !life.dial.wants(self.processes[member].member.node))
    }

    /// A member has started or is gone.
    pub(super) fn clients_notice(&mut self, member: usize, within: Nanos) {
        let runs = self.processes[member].life.is_some();
        for place in self.client_places() {
            if self.client_at(place).is_some_and(|client| client.life.is_some()) {
                self.schedule_notice(place, member, within);
                if runs {
                    self.schedule_notice(member, place, within);
                }
            }
        }
    }

    pub(super) fn schedule_client_step(&mut self, place: usize) {
        let Some(client) = self.client_at(place) else { return };
        if client.life.as_ref().is_some_and(|life| !life.host.is_idle()) {
            let slow = client.slow_until > self.now();
            let mean = if slow { 200 * MILLI } else { self.kernel.plan.step_delay };
            let delay = self.clients.random.around(mean);
            self.want_client_step(place, self.now() + delay);
        }
    }

    pub(super) fn want_client_step(&mut self, place: usize, at: Nanos) {
        let client = self.client_at_mut(place);
        let at = at.max(client.paused_until);
        if let Some(life) = &mut client.life
            && at < life.step_at
        {
            life.step_at = at;
            self.schedule(at, Event::Step { place });
        }
    }

    pub(super) fn client_due(&mut self, place: usize) {
        let now = self.now();
        let client = self.client_at_mut(place);
        let until = client.paused_until;
        let Some(life) = client.life.as_mut().filter(|life| life.step_at == now) else {
            return;
        };
        life.step_at = Nanos::MAX;
        if until <= now {
            self.step_client(place);
        } else {
            self.want_client_step(place, until);
        }
    }

    pub(super) fn deliver_to_client(
        &mut self,
        place: usize,
        from: NodeId,
        mut message: PeerMessage,
    ) {
        surroundings::leave_out(&mut message);
        if let Some(life) = &mut self.client_at_mut(place).life {
            life.host.input(Input::Peer { from, message });
            if strikes!(ClientStops, 5_000) {
                life.host.input(Input::Failed { reason: "planted".to_owned() });
            }
            self.schedule_client_step(place);
        }
    }

    fn step_client(&mut self, place: usize) {
        self.steps += 1;
        let now = self.now();
        let Some(mut life) = self.client_at_mut(place).life.take() else {
            return;
        };
        while let Ok(call) = life.calls.try_recv() {
            if !life.host.call(call) {
                self.client_at_mut(place).life = Some(life);
                return self.client_closed(place);
            }
        }
        let before = life.client().seen();
        let (work, mut effects) = life.host.step();
        surroundings::misreport(&mut effects);
        let wake_at = life.host.notify(effects);
        let (seen, served) = (life.client().seen(), life.client().served());
        self.kernel.seen.borrow_mut()[place] = seen;
        self.kernel.installs.borrow_mut()[place] = life.client().attachments();
        let reattached = served.filter(|(_, attachment)| *attachment != life.attachment);
        if let Some((_, attachment)) = reattached {
            if life.attachment > 0 {
                self.kernel.count_event("clients moved");
            }
            life.attachment = attachment;
        }
        let attached = reattached.map(|(member, _)| self.forgotten_by(member, seen));
        self.kernel.trace.note([14, place as u64, seen]);
        if seen != before || reattached.is_some() {
            let by = served.and_then(|(member, _)| self.place_of(member));
            let again = reattached.map_or("", |_| ", again");
            self.kernel.trace.log(format_args!(
                "client {place}: is served by {by:?}{again}, seen {seen}, {} messages",
                work.messages.len()
            ));
        }
        self.kernel.check(self.observe_client(Moved {
            place,
            from: before,
            to: seen,
            installed: None,
            attached,
        }));
        let rate = self.kernel.plan.rates.of(Fault::CrashInStep);
        let cut_short = self.kernel.phase.get() == Phase::Chaos
            && !work.messages.is_empty()
            && self.clients.random.chance(rate);
        let mut messages = work.messages;
        if cut_short {
            messages.truncate(self.clients.random.index(messages.len() + 1));
        }
        let asks = |(_, message): &(NodeId, PeerMessage)| match message {
            PeerMessage::FromClient { messages, .. } => {
                messages.iter().any(|ask| matches!(ask, FromClient::ReadIndex { .. }))
            }
            _ => false,
        };
        let late = messages.iter().any(asks) && self.pauses_now();
        for (to, message) in messages {
            self.send(place, 0, to, &message);
        }
        let (closed, idle) = (life.host.is_closed(), life.host.is_idle());
        let stopped = life.host.shared().end.reason().map(str::to_owned);
        let client = self.client_at_mut(place);
        let wake_at = client.clock.when(wake_at);
        client.life = Some(life);
        if let Some(dial) = work.dial {
            self.dial(place, dial);
        }
        self.check_connections(place);
        if cut_short {
            self.kernel.count_fault(Fault::CrashInStep);
            return self.crash_client_for_a_while(place);
        }
        if late {
            self.pause_after_asking(place);
        }
        if closed {
            return self.client_closed(place);
        }
        if let Some(reason) = stopped {
            return self.kernel.fail(Violation::new(
                "I31 no client stops by itself",
                format!("client {place}: {reason}"),
            ));
        }
        self.want_client_step(place, wake_at.max(now + 1));
        if !idle {
            self.schedule_client_step(place);
        }
    }

    /// Whether a client is paused right after it has sent a renewal of its sessions.
    fn pauses_now(&self) -> bool {
        const OF_A_MILLION_ROUNDS: u64 = 4_000;
        self.kernel.phase.get() == Phase::Chaos
            && self.kernel.plan.rates.of(Fault::Pause) > 0
            && self.clients.random.chance(OF_A_MILLION_ROUNDS)
    }

    /// Pauses a client and cuts it off before it goes on. It then finds the reply but reaches no
    /// member.
    fn pause_after_asking(&mut self, place: usize) {
        let timeout = nanos(self.kernel.plan.session_timeout);
        let time = self.clients.random.within(timeout / 10..timeout);
        self.pause_client(place, time);
        // The renewal is on its way and must still arrive.
        let at = self.now() + time - timeout / 20;
        self.schedule(at, Event::CutOff { place, time: 2 * timeout });
        self.kernel.count_fault(Fault::Pause);
        self.kernel
            .trace
            .log_fault(format_args!("pauses: client {place} for {time} ns, and then cut off"));
    }

    /// Members receive nothing from this client for a while.
    pub(super) fn cut_off(&mut self, place: usize, time: Nanos) {
        if self.kernel.phase.get() == Phase::Chaos {
            let members: Vec<usize> = (0..self.processes.len()).collect();
            self.cut_client_links(place, &members, (true, false), time);
        }
    }

    fn pause_client(&mut self, place: usize, time: Nanos) {
        let until = self.now() + time;
        let client = self.client_at_mut(place);
        client.paused_until = until;
        if let Some(life) = &mut client.life {
            // The step that was due comes after the pause.
            life.step_at = Nanos::MAX;
        }
        self.want_client_step(place, until);
    }

    /// Checks the effects of a client's step.
    fn observe_client(&self, moved: Moved) -> Result<(), Violation> {
        let mut checks = self.kernel.checks.borrow_mut();
        let checks = &mut *checks;
        let Moved { place, from, to, .. } = moved;
        require(from <= to, "I3 a client does not go back", || {
            format!("client {place} had received all up to {from}, and now up to {to}")
        })?;
        require(to <= checks.oracle.zxid(), "I11 no gap", || {
            format!("client {place} has received all up to {to}, which nobody has written")
        })?;
        if from != to || moved.attached.is_some() {
            checks.watches.stepped(&checks.oracle, moved)?;
            checks.locks.check(|session| checks.sessions.is_forced(session))?;
            checks.shares.check(|session| checks.sessions.is_forced(session))?;
        }
        checks.sessions.check_unaware()?;
        checks.sessions.check_opening(place)
    }

    /// The last zxid whose changes may be missing from the history of a member that shows `shown`.
    fn forgotten_by(&self, member: NodeId, shown: Zxid) -> Zxid {
        match self.place_of(member) {
            Some(place) => self.kernel.forgotten(self.kernel.known_from.borrow()[place], shown),
            // The member has started from an empty disk since.
            None => Zxid::MAX,
        }
    }

    /// Kills the client.
    pub(super) fn crash_client(&mut self, place: usize) {
        let client = self.client_at_mut(place);
        (client.paused_until, client.slow_until) = (0, 0);
        let Some(life) = client.life.take() else {
            return;
        };
        self.kernel.checks.borrow_mut().watches.crashed(place);
        self.kernel.executor.kill(place);
        self.kernel.coordinators.borrow_mut()[place] = None;
        drop(life);
        for member in 0..self.processes.len() {
            if self.processes[member].life.is_some() {
                self.schedule_notice(member, place, SECOND);
            }
        }
    }

    pub(super) fn start_client_in(&mut self, place: usize, time: Nanos) {
        if !std::mem::replace(&mut self.client_at_mut(place).starting, true) {
            self.schedule_in(time, Event::Start { place });
        }
    }

    fn crash_client_for_a_while(&mut self, place: usize) {
        self.kernel.trace.log_fault(format_args!("client {place}: crashes"));
        self.crash_client(place);
        let time = self.some_client_time();
        self.start_client_in(place, time);
    }

    fn client_closed(&mut self, place: usize) {
        self.kernel.trace.log_fault(format_args!("client {place}: has closed"));
        self.crash_client(place);
        let time = self.clients.random.around(2 * SECOND);
        self.start_client_in(place, time);
    }

    fn some_client_time(&self) -> Nanos {
        let timeout = nanos(self.kernel.plan.session_timeout);
        let means = [100 * MILLI, SECOND, timeout / 2, timeout, 2 * timeout];
        let mean = *self.clients.random.pick(&means);
        self.clients.random.around(mean)
    }

    pub(super) fn begin_client_chaos(&mut self) {
        if !self.clients.all.is_empty() {
            FAULTS.iter().for_each(|fault| self.schedule_client_fault(*fault));
        }
    }

    fn schedule_client_fault(&mut self, fault: Fault) {
        if let Some(period) = self.kernel.plan.rates.period(fault) {
            let time = self.clients.random.around(period);
            self.schedule_in(time, Event::ClientFault { fault });
        }
    }

    pub(super) fn handle_client_fault(&mut self, fault: Fault) {
        if self.kernel.phase.get() != Phase::Chaos {
            return;
        }
        self.schedule_client_fault(fault);
        let all = self.client_places();
        let count =
            if self.kernel.plan.fleet { 1 + self.clients.random.index(all.len() / 4) } else { 1 };
        let first = all.start + self.clients.random.index(all.len() + 1 - count);
        for place in first..first + count {
            if let Some(what) = self.inject_client(fault, place) {
                self.kernel.count_fault(fault);
                self.kernel.trace.note([15, fault as u64, place as u64]);
                let name = TABLE[fault as usize].name;
                self.kernel.trace.log_fault(format_args!("{name}: client {place}: {what}"));
            }
        }
    }

    fn inject_client(&mut self, fault: Fault, place: usize) -> Option<String> {
        let (now, time) = (self.now(), self.some_client_time());
        let member = self.member_of(place);
        match fault {
            Fault::PartitionOneWay | Fault::PartitionTwoWay => {
                // Cuts it off from its own member, from all members, or from any of them.
                let members: Vec<usize> = match (self.clients.random.below(3), member) {
                    (0, Some(member)) => vec![member],
                    (1, _) => (0..self.processes.len()).collect(),
                    _ => (0..self.processes.len())
                        .filter(|_| self.clients.random.percent(50))
                        .collect(),
                };
                let both = fault == Fault::PartitionTwoWay;
                let there = self.clients.random.percent(50);
                self.cut_client_links(place, &members, (both || there, both || !there), time);
                Some(format!("from {members:?} for {time} ns"))
            }
            Fault::SlowNode => {
                self.client_at_mut(place).slow_until = now + time;
                Some(format!("for {time} ns"))
            }
            // Crashes its member instead. In a fleet, members have enough faults of their own.
            Fault::Crash if !self.kernel.plan.fleet && self.clients.random.percent(40) => {
                let member = member?;
                self.crash(member);
                self.start_in(member, time);
                Some(format!("its member {member}"))
            }
            Fault::Crash => {
                self.crash_client_for_a_while(place);
                Some(String::new())
            }
            Fault::Close => {
                let coordinator = self.kernel.coordinators.borrow()[place].clone();
                coordinator?.close().wait().expect("a thread closes it itself");
                self.want_client_step(place, now);
                Some(String::new())
            }
            Fault::Pause => {
                self.pause_client(place, time);
                Some(format!("for {time} ns"))
            }
            Fault::ClockDrift => {
                let drift = self.kernel.plan.drift_ppm;
                let rate = 1_000_000 - drift + self.clients.random.below(2 * drift + 1);
                self.client_at_mut(place).clock.set_rate(rate);
                self.want_client_step(place, now);
                Some(format!("to {rate} ppm"))
            }
            _ => None,
        }
    }

    /// The number of members to which the client at this place is connected.
    pub(super) fn connections_of(&self, place: usize) -> usize {
        let life = self.client_at(place).and_then(|client| client.life.as_ref());
        life.map_or(0, |life| life.connected.len())
    }

    /// The place of the member that serves the client at this place.
    pub(super) fn member_of(&self, place: usize) -> Option<usize> {
        let life = self.client_at(place)?.life.as_ref()?;
        self.place_of(life.client().member()?)
    }

    /// Cuts a client's links to members, those from them, or both.
    pub(super) fn cut_client_links(
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
            if self.network.cut(*from, *to) && self.clients.random.percent(50) {
                self.schedule_notice(*from, *to, SECOND);
            }
        }
        self.schedule_in(time, Event::Heal { links });
    }

    pub(super) fn end_client_chaos(&mut self) {
        let now = self.now();
        for place in self.client_places() {
            let client = self.client_at_mut(place);
            (client.paused_until, client.slow_until) = (now, now);
            if client.life.is_none() {
                self.schedule_in(SECOND, Event::Start { place });
            }
            self.want_client_step(place, now);
        }
    }

    /// Whether all running clients have received everything.
    pub(crate) fn clients_know_all(&self) -> bool {
        let last = self.kernel.checks.borrow().oracle.zxid();
        let lives = self.clients.all.iter().filter_map(|client| client.life.as_ref());
        lives.into_iter().all(|life| life.client().seen() == last)
    }

    pub(crate) fn describe_clients(&self) -> Vec<String> {
        let describe = |client: &ClientInstance| match &client.life {
            None => "down".to_owned(),
            Some(life) => format!("{:?}", life.client()),
        };
        const SHOWN: usize = 20;
        self.clients.all.iter().map(describe).take(SHOWN).collect()
    }
}
