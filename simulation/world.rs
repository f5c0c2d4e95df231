//! The world: a cluster, its network and its clients, driven from event to event.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::Kind;
use super::checks::Violation;
use super::checks::agreement::{Before, same_state};
use super::checks::membership::WorldView;
use super::checks::watches::Moved;
use super::checks::{self, versions};
use super::client_instances::ClientInstances;
use super::clock::{MILLI, Nanos, NodeClock, SECOND, nanos};
use super::costs::{self, Applied};
use super::disk_threads::DiskThreads;
use super::durable::Durable;
use super::episodes::Episodes;
use super::fan_out;
use super::fan_out::Sent;
use super::faults::Fault;
use super::kernel::{Kernel, Phase};
use super::members::{self, NewDisk};
use super::network::Network;
use super::plan::Plan;
use super::process::{Life, Process};
use super::random::Random;
use super::rolls::Operator;
use super::starts::Started;
use super::surroundings;
use super::sync::DiskStep;
use super::timeline::Timeline;
use super::trace::Verbosity;
use super::workload;
use crate::api::coordinator::Coordinator;
use crate::node::io::{DiskOp, Input, Now, Problem};
use crate::node::message::{PeerMessage, RaftBody};
use crate::node::{Node, NodeConfig};
use crate::runtime::clock::{Clock, TimeSource};
use crate::runtime::entropy;
use crate::runtime::host::Host;
use crate::runtime::watchdog::GAP_MAX;
use crate::security::auth::Schemes;
use crate::types::membership::NodeId;
use crate::types::version::{INVENTED, VERSION};

/// More steps than any world takes, except a fleet's, in which nobody repeats a step again and again.
const STEPS_MAX: u64 = 4_000_000;

/// An event.
#[derive(Debug)]
pub(crate) enum Event {
    /// A process takes a step.
    Step { place: usize },
    /// A message arrives.
    Deliver(Delivery),
    /// A step of a disk's writer comes to its end.
    Written { place: usize, epoch: u64, is_append: bool },
    /// A step on a whole state comes to its end.
    Worked { place: usize, epoch: u64 },
    /// A disk has work at this time, perhaps.
    DiskDue { place: usize, epoch: u64 },
    /// A process is killed during a step of its disk, if that is still in progress.
    Tear { place: usize, epoch: u64 },
    /// A process notices whether it can reach a peer.
    Notice { place: usize, peer: usize },
    /// A client dials a member.
    Dial { place: usize, member: usize },
    /// A process starts.
    Start { place: usize },
    /// Links are healed.
    Heal { links: Vec<(usize, usize)> },
    /// A disk has room again.
    MakeRoom { place: usize },
    /// An instance leaves.
    Leave { place: usize },
    /// A fault is injected.
    Fault { fault: Fault },
    /// A fault is injected into a client.
    ClientFault { fault: Fault },
    /// The operator checks the instances.
    Roll,
    /// The operator closes an instance.
    Close { place: usize },
    /// An episode under load goes on or ends.
    Episode,
    /// All disks are damaged at once, until they are repaired.
    DamageAll,
    /// The disks that were damaged at once are repaired.
    Repair,
    /// One disk is damaged.
    DamageOne,
    /// A disk is damaged before its node has voted.
    DamageFresh { place: usize },
    /// Members receive nothing from a client for a while.
    CutOff { place: usize, time: Nanos },
}

/// A message in flight. Its sender belonged to this cluster when it was sent.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) places: (usize, usize),
    pub(crate) nodes: (NodeId, NodeId),
    pub(crate) cluster: u64,
    /// How often the receiver had started when it was sent.
    pub(crate) epoch: u64,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kernel: Rc<Kernel>,
    /// The random source of the world's own choices.
    pub(crate) random: Random,
    /// The random source of upgrades.
    pub(super) versions: Random,
    pub(crate) network: Network,
    pub(crate) processes: Vec<Process>,
    pub(super) clients: ClientInstances,
    /// The random source of the ids on new disks.
    pub(super) identities: Random,
    /// The random source of damage to all disks, or to one for the second time.
    pub(super) damages: Random,
    /// Which kills are power cuts.
    pub(super) power: Random,
    /// The list of addresses that every instance is given.
    pub(super) list: Vec<String>,
    /// All disks that ever existed, for the checks.
    pub(super) disks: BTreeMap<NodeId, Durable>,
    /// Since when each node that has run is down.
    pub(super) down_since: BTreeMap<NodeId, Nanos>,
    /// Nodes that were asked to leave.
    pub(super) leavers: BTreeSet<NodeId>,
    /// Until when a running node may seem to be down.
    pub(super) troubled_until: Nanos,
    /// Until when messages of a node arrive late.
    pub(super) late_until: BTreeMap<NodeId, Nanos>,
    /// When a disk was last lost for good; 0: never.
    pub(super) lost_at: Nanos,
    /// The faults under load, in worlds that have it.
    pub(super) episodes: Option<Episodes>,
    /// The operator, in worlds that have one.
    pub(super) operator: Option<Operator>,
    /// The messages that each member has sent.
    pub(super) sent: Vec<Sent>,
    due: Timeline<Event>,
    pub(crate) steps: u64,
}

impl World {
    pub(crate) fn new(seed: u64, length: Nanos, verbosity: Verbosity, kind: Kind) -> World {
        let random = Random::new(seed);
        let plans = random.fork(1);
        let plan = match kind {
            // Worlds of one disk have no plan.
            Kind::Usual | Kind::Disk => Plan::draw(&plans, length),
            Kind::Fleet => Plan::fleet(&plans, length),
            Kind::FanOut(clients) => fan_out::plan(&plans, clients),
            Kind::Rolled => Plan::rolled(&plans, length),
            Kind::Loaded => Plan::loaded(&plans, length),
        };
        entropy::simulated::seed(Some(random.fork(2).next()));
        let mut world = World {
            network: Network::new(plan.places, plan.client_instances),
            list: (0..plan.nodes).map(members::address).collect(),
            identities: random.fork(9),
            processes: Vec::new(),
            disks: BTreeMap::new(),
            down_since: BTreeMap::new(),
            leavers: BTreeSet::new(),
            troubled_until: 0,
            late_until: BTreeMap::new(),
            lost_at: 0,
            episodes: plan.load.as_ref().map(|_| Episodes::new(plans.fork(203))),
            operator: plan.rolls.map(|_| Operator::new(plans.fork(202))),
            sent: vec![Sent::default(); plan.places],
            due: Timeline::default(),
            steps: 0,
            random: random.fork(4),
            versions: random.fork(6),
            clients: ClientInstances::default(),
            damages: Random::new(0),
            power: Random::new(0),
            kernel: Rc::new(Kernel::new(plan, [random.fork(3), random.fork(10)], verbosity)),
        };
        for (place, disk) in world.first_disks().into_iter().enumerate() {
            let old = world.kernel.plan.mixed && world.versions.percent(60);
            world.add_process(disk, if old { VERSION } else { INVENTED });
            world.start_later(place);
        }
        let from = if matches!(kind, Kind::FanOut(_)) { fan_out::CLIENTS_FROM } else { 0 };
        world.add_clients(random.fork(11), from);
        world.damages = random.fork(240);
        world.power = random.fork(242);
        world
    }

    pub(super) fn add_process(&mut self, disk: NewDisk, version: u16) {
        let NewDisk { member, device, unused, durable } = disk;
        self.put_disk(member.node, &durable);
        let ahead = self.random.below(1000 * SECOND);
        let rate = self.draw_rate();
        self.processes.push(Process {
            device,
            unused,
            owner: member.node,
            member,
            durable,
            is_full: false,
            excused_until: 0,
            damage: None,
            clock: Arc::new(NodeClock::new(self.kernel.time.clone(), ahead, rate)),
            life: None,
            epoch: 0,
            version,
            lowered_at: None,
            paused_until: 0,
            slow_until: 0,
            slow_disk_until: 0,
            slow_disk_by: 0,
            busy_until: 0,
            starting: false,
            former: Vec::new(),
        });
    }

    pub(crate) fn draw_rate(&self) -> u64 {
        let drift = self.kernel.plan.drift_ppm;
        1_000_000 - drift + self.random.below(2 * drift + 1)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.kernel.now()
    }

    pub(crate) fn schedule(&mut self, at: Nanos, event: Event) {
        self.due.add(at, event);
    }

    pub(crate) fn schedule_in(&mut self, time: Nanos, event: Event) {
        self.schedule(self.now() + time, event);
    }

    /// Runs the world until some time or until a check fails.
    pub(crate) fn run_until(&mut self, end: Nanos) {
        while !self.kernel.has_failed() && self.advance(end) {}
    }

    /// Runs the next event. Returns `false`, and goes on to `end`, if there is none before that.
    pub(crate) fn advance(&mut self, end: Nanos) -> bool {
        self.run_tasks();
        let event = self.due.next_at();
        let timer = self.kernel.executor.next_timer();
        let next = event.into_iter().chain(timer).min().filter(|next| *next <= end);
        let Some(next) = next else {
            self.kernel.time.set(end);
            return false;
        };
        self.kernel.time.set(next.max(self.now()));
        if timer == Some(next) {
            self.kernel.executor.fire(next);
        } else if let Some(event) = self.due.pop() {
            self.happen(event);
        }
        true
    }

    fn run_tasks(&mut self) {
        let now = self.now();
        let kernel = Rc::clone(&self.kernel);
        if !kernel.executor.has_work() {
            return;
        }
        let polled = kernel.executor.run(|place| self.paused_until(place) > now);
        if polled.is_none() {
            kernel.end(Violation::new("I31 nobody spins", format!("{:?}", kernel.waits())));
        }
        for place in 0..self.processes.len() {
            self.schedule_step(place);
        }
        // In a fleet, no task has handles of another instance.
        if kernel.plan.fleet {
            polled.into_iter().flatten().for_each(|place| self.schedule_step(place));
        } else {
            self.client_places().for_each(|place| self.schedule_step(place));
        }
    }

    fn paused_until(&self, place: usize) -> Nanos {
        match self.client_at(place) {
            Some(client) => client.paused_until,
            None => self.processes[place].paused_until,
        }
    }

    /// Schedules a step if the process has something to do.
    pub(super) fn schedule_step(&mut self, place: usize) {
        if self.kernel.plan.is_client(place) {
            return self.schedule_client_step(place);
        }
        if self.processes[place].life.as_ref().is_some_and(|life| !life.host.is_idle()) {
            let delay = self.step_delay(place);
            self.want_step(place, self.now() + delay);
        }
    }

    fn step_delay(&self, place: usize) -> Nanos {
        let slow = self.processes[place].slow_until > self.now();
        let mean = if slow { 200 * MILLI } else { self.kernel.plan.step_delay };
        self.random.around(mean)
    }

    pub(crate) fn want_step(&mut self, place: usize, at: Nanos) {
        let process = &self.processes[place];
        let at = at.max(process.paused_until).max(process.busy_until);
        if let Some(life) = &mut self.processes[place].life
            && at < life.step_at
        {
            life.step_at = at;
            self.schedule(at, Event::Step { place });
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step { place } if self.kernel.plan.is_client(place) => self.client_due(place),
            Event::Step { place } => {
                let now = self.now();
                let process = &self.processes[place];
                let due = process.life.as_ref().is_some_and(|life| life.step_at == now);
                if due && process.paused_until <= now {
                    self.step(place);
                } else if due {
                    let until = process.paused_until;
                    if let Some(life) = &mut self.processes[place].life {
                        life.step_at = Nanos::MAX;
                    }
                    self.want_step(place, until);
                }
            }
            Event::Deliver(delivery) => self.deliver(&delivery),
            Event::Written { place, epoch, is_append } => {
                let step = if is_append { DiskStep::Append } else { DiskStep::Write };
                self.disk_steps(place, epoch, Some(step));
            }
            Event::Worked { place, epoch } => self.disk_steps(place, epoch, Some(DiskStep::Work)),
            Event::DiskDue { place, epoch } => self.disk_steps(place, epoch, None),
            Event::Tear { place, epoch } => {
                let life = self.processes[place].life.as_ref();
                if self.processes[place].epoch == epoch
                    && life.is_some_and(|life| life.disk.writing_since.is_some())
                {
                    self.crash_for_a_while(place);
                }
            }
            Event::Notice { place, peer } => self.notice(place, peer),
            Event::Dial { place, member } => self.dial_member(place, member),
            Event::Start { place } if self.kernel.plan.is_client(place) => self.start_client(place),
            Event::Start { place } => self.start(place),
            Event::Heal { links } => self.heal(&links),
            Event::MakeRoom { place } => self.processes[place].has_room(),
            Event::Leave { place } if self.kernel.phase.get() == Phase::Chaos => {
                drop(self.leave(place));
            }
            // After the faults, the members must stay as they are.
            Event::Leave { .. } => {}
            Event::Fault { fault } => self.handle_fault(fault),
            Event::Roll => self.roll(),
            Event::Close { place } => self.close(place),
            Event::Episode => self.episode(),
            Event::DamageAll => self.damage_all(),
            Event::Repair => self.repair(),
            Event::DamageOne => self.damage_one(),
            Event::DamageFresh { place } => self.damage_fresh(place),
            Event::CutOff { place, time } => self.cut_off(place, time),
            Event::ClientFault { fault } => self.handle_client_fault(fault),
        }
    }

    pub(super) fn unreachable(peer: NodeId) -> Input {
        let problem = Problem { reason: "cut off".to_owned(), refused: false };
        Input::Unreachable { peer, problem }
    }

    /// One end of a link notices a change of it within this time.
    pub(crate) fn schedule_notice(&mut self, place: usize, peer: usize, within: Nanos) {
        let delay = self.random_of_link(place, peer).below(within);
        self.schedule_in(delay, Event::Notice { place, peer });
    }

    pub(crate) fn heal(&mut self, links: &[(usize, usize)]) {
        for (from, to) in links {
            if self.network.heal_link(*from, *to) {
                self.schedule_notice(*from, *to, SECOND);
            }
        }
    }

    fn start(&mut self, place: usize) {
        let process = &mut self.processes[place];
        process.starting = false;
        if process.life.is_some() {
            return;
        }
        process.epoch += 1;
        let chaos = self.kernel.phase.get() == Phase::Chaos;
        let version = Self::draw_version(&self.kernel, &self.versions, process);
        let process = &self.processes[place];
        let plan = &self.kernel.plan;
        let seed = self.random.next();
        let config = NodeConfig {
            container_period: plan.container_period,
            version,
            log: plan.log,
            policy: plan.policy,
            peers: self.list_for(place),
            majority_after: plan.majority_after,
            zone: process.member.zone.clone(),
            leader_priority: process.member.leader_priority,
            ..NodeConfig::new(plan.heartbeat, plan.tick, seed)
        };
        let clock = Clock::new(Arc::clone(&process.clock) as Arc<dyn TimeSource>);
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        let Some(Started { store, files, node, directory }) =
            self.start_from_disk(place, &config, now, chaos)
        else {
            return;
        };
        let plan = &self.kernel.plan;
        let limits = plan.limits();
        self.kernel.count_event("starts");
        self.kernel.known_from.borrow_mut()[place] = node.machine().zxid();
        let members = self.processes.iter().map(|process| process.member.clone()).collect();
        let (host, shared) = Host::new(node, clock, limits, members, Schemes::default());
        let coordinator = Coordinator::simulated(shared);
        self.kernel.coordinators.borrow_mut()[place] = Some(coordinator.clone());
        self.kernel.trace.note([5, place as u64, self.processes[place].epoch]);
        self.kernel.trace.log_fault(format_args!("node {place}: starts"));
        let disk = DiskThreads::new(store, files, self.kernel.plan.split_above, self.now());
        let life = Box::new(Life::new(host, disk, directory));
        let checked = same_state(&self.kernel.checks.borrow().oracle, life.host.node());
        self.kernel.check(checked);
        self.kernel.checks.borrow_mut().promises.started(life.host.node().id());
        self.down_since.remove(&self.processes[place].member.node);
        self.processes[place].life = Some(life);
        self.want_step(place, self.now());
        for peer in 0..self.processes.len() {
            if peer != place && self.processes[peer].life.is_some() {
                self.schedule_notice(place, peer, 100 * MILLI);
                self.schedule_notice(peer, place, 100 * MILLI);
            }
        }
        self.clients_notice(place, 100 * MILLI);
        if !self.kernel.is_stopping() {
            workload::start(&self.kernel, place, &coordinator);
        }
    }

    pub(crate) fn start_in(&mut self, place: usize, time: Nanos) {
        if !std::mem::replace(&mut self.processes[place].starting, true) {
            self.schedule_in(time, Event::Start { place });
        }
    }

    /// Checks what a step of a node has changed.
    fn observe(
        &self,
        place: usize,
        life: &Life,
        before: Before,
        installed: Option<u64>,
        disk: &[DiskOp],
    ) -> Result<(), Violation> {
        let mut checks = self.kernel.checks.borrow_mut();
        let checks = &mut *checks;
        let node = life.host.node();
        let oracle = &mut checks.oracle;
        let membership = &mut checks.membership;
        disk.iter().try_for_each(|op| membership.writing(op, oracle))?;
        checks.agreement.stepped(oracle, membership, node, before, self.now(), &self.disks)?;
        for end in oracle.take_ended() {
            let how = if end.by_expiry { "sessions expired" } else { "sessions closed" };
            self.kernel.count_event(how);
            if let Some(load) = &self.kernel.plan.load {
                let held_at = checks.sessions.place_of(end.session, end.holder);
                checks.load.ended(load, &end, held_at, self.now())?;
            }
            checks.sessions.ended(end, self.kernel.phase.get())?;
        }
        let (mono, leads) = (self.processes[place].clock.now(), node.leadership().0);
        let log_time = node.machine().time();
        checks.log_time.stepped((place, leads), mono, node.stamps(), log_time)?;
        checks.sessions.check_unaware()?;
        checks.sessions.check_opening(place)?;
        checks.queues.committed(oracle, self.now())?;
        checks.timers.committed(oracle, self.now())?;
        checks.partitions.committed(oracle, self.now())?;
        let is_calm = self.kernel.phase.get() == Phase::Calm;
        checks.elections.committed(oracle, self.now(), is_calm)?;
        let (from, to) = (before.zxid, node.machine().zxid());
        let moved = Moved { place, from, to, installed, attached: None };
        if moved.from != moved.to {
            checks.watches.stepped(oracle, moved)?;
            checks.locks.check(|session| checks.sessions.is_forced(session))?;
            checks.shares.check(|session| checks.sessions.is_forced(session))?;
        }
        Ok(())
    }

    fn step(&mut self, place: usize) {
        self.steps += 1;
        if self.steps == STEPS_MAX && !self.kernel.plan.fleet {
            let steps = format!("{STEPS_MAX} steps, and it is not over");
            self.kernel.end(Violation::new("I31 nobody spins", steps));
        }
        let Some(mut life) = self.processes[place].life.take() else {
            return;
        };
        life.step_at = Nanos::MAX;
        while let Ok(call) = life.calls.try_recv() {
            life.owed += costs::INPUT;
            if !life.host.call(call) {
                life.closing = true;
                self.processes[place].life = Some(life);
                return self.closed(place);
            }
        }
        self.watch_disk(&mut life);
        let before = Before {
            applied: life.host.node().applied().index,
            zxid: life.host.node().machine().zxid(),
        };
        let (mut work, mut effects) = life.host.step();
        work.disk.iter_mut().for_each(surroundings::spoil);
        surroundings::misreport(&mut effects);
        surroundings::delay_events(&mut life.host, &mut effects, &mut life.late_events);
        let wake_at = life.host.notify(effects);
        let installed = work.disk.iter().find_map(|op| match op {
            DiskOp::Install { meta, .. } => Some(meta.zxid),
            _ => None,
        });
        if let Some(zxid) = installed {
            self.kernel.known_from.borrow_mut()[place] = zxid;
            self.kernel.count_event("snapshots installed");
            self.kernel.installs.borrow_mut()[place] += 1;
        }
        let node = life.host.node();
        let applied = node.applied().index;
        self.kernel.trace.note([1, place as u64 ^ node.machine().hash(), applied]);
        if applied != before.applied || !work.disk.is_empty() {
            let (term, _, leads) = node.leadership();
            self.kernel.trace.log(format_args!(
                "node {place}: {} in term {term}, applied {applied}, {} disk operations, {} messages",
                if leads { "leads" } else { "follows" },
                work.disk.len(),
                work.messages.len()
            ));
        }
        if work.members.is_some() {
            life.members.clone_from(&work.members);
        }
        let (term, _, leads) = life.host.node().leadership();
        let (now, leads_in) = (self.now(), leads.then_some(term));
        let checked = self.observe(place, &life, before, installed, &work.disk).and_then(|()| {
            let mut checks = self.kernel.checks.borrow_mut();
            checks::load::sent(place, &work.messages)?;
            checks.membership.reported(work.cluster)?;
            work.disk.iter().try_for_each(|op| {
                let membership = &mut checks.membership;
                versions::proposing(op, leads_in, &self.processes, membership, now)?;
                // A node that was paused may read messages of nodes that are gone by now.
                let stopped = self.processes[place].paused_until + self.detection_time() > now;
                let known = WorldView {
                    now,
                    // Its leader's clock may be fast.
                    caught_up_for: self.patience() / 2,
                    is_alive: &|node| stopped || self.may_seem_alive(node),
                    may_go: &|node| self.may_go(node),
                };
                membership.proposing(op, life.host.node(), leads_in, &known)?;
                checks.promises.writing(life.host.node().id(), op)?;
                checks.agreement.writing(op)
            })
        });
        self.kernel.check(checked);
        let owed = std::mem::take(&mut life.owed);
        if self.kernel.plan.costs.is_some() {
            let applied = self.applied(before.applied, installed.is_some(), life.host.node());
            self.charge(place, owed + costs::apply(applied));
        }

        let cut_short = (!work.disk.is_empty() || !work.messages.is_empty())
            && self.crashes_now(&work.messages);
        let mut messages = work.messages;
        let mut disk = work.disk;
        if cut_short {
            // Sends and writes may happen in any order.
            messages.truncate(self.random.index(messages.len() + 1));
            disk.truncate(self.random.index(disk.len() + 1));
        }
        let cluster = life.host.node().cluster();
        for (to, message) in messages {
            self.send(place, cluster, to, &message);
        }
        for op in disk {
            self.submit(place, &mut life, op);
        }
        if let Some(load) = &self.kernel.plan.load {
            let busy = self.processes[place].busy_until.saturating_sub(now);
            let checked = self.kernel.checks.borrow_mut().load.stepped(load, place, busy);
            self.kernel.check(checked);
        }
        let mut wake_at = self.processes[place].clock.when(wake_at);
        if life.disk_watch.is_on() {
            wake_at = wake_at.min(now + nanos(GAP_MAX));
        }
        let (closed, idle) = (life.host.is_closed(), life.host.is_idle());
        let stopped = self.stopped(place);
        self.processes[place].life = Some(life);
        if cut_short {
            self.kernel.count_fault(Fault::CrashInStep);
            self.kernel.trace.log_fault(format_args!("node {place}: crashes in a step"));
            return self.crash_for_a_while(place);
        }
        if closed {
            return self.closed(place);
        }
        if let Some(reason) = stopped {
            return self.node_stopped(place, &reason);
        }
        self.want_step(place, wake_at.max(now + 1));
        if !idle {
            self.schedule_step(place);
        }
    }

    /// What a step has applied, on a node that had applied entries up to `before`.
    fn applied(&self, before: u64, installed: bool, node: &Node) -> Applied {
        // The entries behind a snapshot were not applied here, and another thread has built the
        // state.
        if installed {
            return Applied::default();
        }
        let (requests, bytes) =
            self.kernel.checks.borrow().oracle.work(before, node.applied().index);
        Applied { requests, bytes }
    }

    /// Keeps the node's thread at a place busy for this time, after its present work.
    pub(super) fn charge(&mut self, place: usize, time: Nanos) {
        let now = self.now();
        if let Some(process) = self.processes.get_mut(place) {
            process.busy_until = process.busy_until.max(now) + time;
        }
    }

    /// Whether a node crashes in a step that sends these messages. A vote makes that more likely.
    fn crashes_now(&self, messages: &[(NodeId, PeerMessage)]) -> bool {
        let promises = messages.iter().any(|(_, message)| {
            let PeerMessage::Raft { body, .. } = message else { return false };
            matches!(body, RaftBody::VoteResponse { pre: false, reject: false, .. })
        });
        let rate = self.kernel.plan.rates.of(Fault::CrashInStep);
        let rate = if promises { rate * 500 } else { rate };
        self.kernel.phase.get() == Phase::Chaos && self.random.chance(rate)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for place in 0..self.kernel.plan.places + self.kernel.plan.client_instances {
            self.kernel.executor.kill(place);
        }
        self.kernel.coordinators.borrow_mut().clear();
        entropy::simulated::seed(None);
    }
}
