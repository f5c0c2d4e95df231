//! What a seed makes of a world: its size, its settings, its faults and its
//! clients, drawn again for each.

use std::time::Duration;

use super::clock::{MICRO, MILLI, Nanos, SECOND};
use super::faults::{Fault, Rates};
use super::random::Random;
use super::workload::steady;
use crate::node::{LogLimits, MembershipPolicy};
use crate::types::watch::WATCH_CAPACITY;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The members that it is founded with.
    pub(crate) nodes: usize,
    /// The most places that there are in the end.
    pub(crate) places: usize,
    /// Whether there is a cluster from the start.
    pub(crate) founded: bool,
    /// After what time most of the list found a cluster.
    pub(crate) majority_after: Option<Duration>,
    pub(crate) policy: MembershipPolicy,
    pub(crate) heartbeat: Duration,
    pub(crate) tick: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) container_period: Duration,
    pub(crate) log: LogLimits,
    pub(crate) rates: Rates,
    /// How long the faults go on.
    pub(crate) length: Nanos,
    /// A message takes `latency`, and now and then several times as much.
    pub(crate) latency: Nanos,
    /// How long a node takes from an input to its step.
    pub(crate) step_delay: Nanos,
    pub(crate) sync: Nanos,
    /// A clock's rate lies within so many millionths of true time's, either way.
    pub(crate) drift_ppm: u64,
    /// Clients of each process.
    pub(crate) clients: usize,
    /// What a client waits between two things that it does.
    pub(crate) think: Nanos,
    /// How many paths the clients share: the fewer, the more they meet.
    pub(crate) paths: usize,
    /// The most bytes that are written to a znode.
    pub(crate) data_bytes: usize,
    /// How many requests may wait at a node.
    pub(crate) pending_requests_max: usize,
    /// Whether members may be of an older version, to be upgraded when they start again.
    pub(crate) mixed: bool,
    /// Whether there are queues and barriers.
    pub(crate) queues: bool,
    /// Whether there are transactions that look at the use of a quota.
    pub(crate) usage: bool,
    /// Whether there are sessions that take the znodes of lock holders over.
    pub(crate) takers: bool,
    /// The zone of each place; empty: it names none.
    pub(crate) zones: Vec<&'static str>,
    /// Places for instances without a replica, behind those of the members.
    pub(crate) guests: usize,
    /// What uses such an instance: so many tasks.
    pub(crate) guest_tasks: usize,
    /// Whether all disks may be damaged at once, and a disk again before its node votes.
    pub(crate) damages: bool,
    /// Whether sessions are detached, and keep their timeouts when they are resumed.
    pub(crate) detaches: bool,
    /// Whether it is a fleet: what befalls instances without a replica befalls many at a time.
    pub(crate) fleet: bool,
    /// Whether an operator stops and starts the instances, and how.
    pub(crate) rolls: Option<Rolls>,
    /// How many events wait in a watch's channel.
    pub(crate) watch_capacity: usize,
    /// Whether each member has a consumer of watches that resumes, and is slow now and then: then the
    /// seed of their choices.
    pub(crate) consumers: Option<u64>,
}

impl Rolls {
    /// Whether all that happens is that instances are closed in good order and started again.
    pub(crate) fn is_planned(self) -> bool {
        self.quiet && !self.wipes && self.kills == 0
    }
}

/// What an operator does with one instance after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rolls {
    /// It starts again from an empty disk.
    pub(crate) wipes: bool,
    /// Of a hundred stops, so many are kills. The others are closes.
    pub(crate) kills: u64,
    /// Nothing else goes wrong.
    pub(crate) quiet: bool,
}

/// Two clocks may differ by a tenth in rate, and locks are still safe.
pub(crate) const DRIFT_SAFE_PPM: u64 = 45_000;

impl Plan {
    pub(crate) fn draw(random: &Random, length: Nanos) -> Plan {
        let nodes = *random.pick(&[1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 5, 5, 7]);
        let heartbeat = Duration::from_millis(*random.pick(&[100, 200, 300, 500, 500, 1000]));
        let tick = heartbeat * *random.pick(&[2, 4, 8]);
        let session_timeout = heartbeat * random.within(15..60) as u32;
        let few = random.percent(60);
        let log = LogLimits {
            checkpoint_entries: if few { random.within(5..300) } else { 20_000 },
            checkpoint_age: Duration::from_secs(random.within(5..600)),
            // So few that a session often outlives a snapshot's installation.
            retained_entries: if few {
                random.within(1..1 << random.within(1..6)) as usize
            } else {
                5_000
            },
            ..LogLimits::default()
        };
        let drift_ppm = *random.pick(&[0, 0, 1_000, DRIFT_SAFE_PPM, DRIFT_SAFE_PPM, 150_000]);
        let clients = random.within(1..4) as usize;
        let mut plan = Plan {
            nodes,
            places: nodes,
            founded: false,
            majority_after: None,
            policy: MembershipPolicy::default(),
            heartbeat,
            tick,
            session_timeout,
            // Often so short that containers go while clients use them.
            container_period: Duration::from_secs(*random.pick(&[1, 2, 5, 20, 60])),
            log,
            rates: Rates::draw(random),
            length,
            latency: random.within(50 * MICRO..1 << random.within(20..25)),
            step_delay: *random.pick(&[0, MICRO, 20 * MICRO, 200 * MICRO, 2 * MILLI]),
            sync: random.within(50 * MICRO..1 << random.within(18..28)),
            drift_ppm,
            clients,
            think: random.within(SECOND / 5..2 * SECOND) * (nodes * clients) as u64 / 6,
            paths: random.within(2..24) as usize,
            data_bytes: *random.pick(&[0, 40, 40, 40, 40, 40, 40, 1_000, 100_000]),
            pending_requests_max: if random.percent(10) {
                random.within(2..20) as usize
            } else {
                10_000
            },
            mixed: random.fork(5).percent(50),
            queues: false,
            usage: false,
            takers: false,
            zones: Vec::new(),
            guests: 0,
            guest_tasks: 1,
            damages: false,
            detaches: false,
            fleet: false,
            rolls: None,
            watch_capacity: WATCH_CAPACITY,
            consumers: None,
        };
        if random.percent(50) {
            // So few that clients often ask for what is forgotten.
            plan.log.history_changes = random.within(1..200) as usize;
        }
        plan.queues = random.fork(7).percent(30);
        plan.draw_members(&random.fork(8));
        plan.draw_guests(&random.fork(9));
        plan.draw_zones(&random.fork(10));
        plan.draw_consumers(&random.fork(260));
        plan.usage = random.fork(280).percent(20);
        plan.takers = random.fork(281).percent(20);
        // Who wants most of the list to found accepts what that makes of a lost disk.
        plan.damages = random.fork(241).percent(20) && plan.majority_after.is_none();
        plan.detaches = random.fork(300).percent(40);
        plan
    }

    fn draw_consumers(&mut self, random: &Random) {
        if random.percent(30) {
            self.consumers = Some(random.next());
            // So few that channels are often full.
            self.watch_capacity = *random.pick(&[1, 2, 3, 5, 20, WATCH_CAPACITY]);
        }
    }

    fn draw_guests(&mut self, random: &Random) {
        // Each of them is one more to carry messages for.
        if random.percent(60) {
            self.guests = random.within(1..4) as usize;
            self.guest_tasks = if self.guests == 1 { 2 } else { 1 };
        }
    }

    /// Whether a place is that of an instance without a replica.
    pub(crate) fn is_guest(&self, place: usize) -> bool {
        place >= self.places
    }

    /// A fleet of a thousand: five of its members vote, fifteen do not, and the others are clients.
    pub(crate) fn fleet(random: &Random, length: Nanos) -> Plan {
        let heartbeat = Duration::from_millis(500);
        Plan {
            nodes: 20,
            places: 20,
            founded: false,
            majority_after: None,
            policy: MembershipPolicy { max_voters: 5, replace_after: Duration::from_secs(30) },
            heartbeat,
            tick: heartbeat * 4,
            session_timeout: Duration::from_secs(12),
            container_period: Duration::from_secs(10),
            log: LogLimits {
                // So few that some learners are brought up to date by a snapshot.
                checkpoint_entries: 2_000,
                retained_entries: random.within(100..1_000) as usize,
                history_changes: random.within(500..5_000) as usize,
                ..LogLimits::default()
            },
            rates: Rates::fleet(),
            length,
            latency: random.within(200 * MICRO..3 * MILLI),
            step_delay: 50 * MICRO,
            sync: random.within(200 * MICRO..5 * MILLI),
            drift_ppm: DRIFT_SAFE_PPM,
            clients: 1,
            think: 10 * SECOND,
            paths: 8,
            data_bytes: 40,
            pending_requests_max: 10_000,
            mixed: false,
            queues: false,
            usage: false,
            takers: false,
            guests: 980,
            guest_tasks: 1,
            damages: false,
            detaches: false,
            fleet: true,
            rolls: None,
            watch_capacity: WATCH_CAPACITY,
            consumers: None,
            zones: (0..20).map(|place| ["east", "west", "north"][place % 3]).collect(),
        }
    }

    /// A world in which an operator stops and starts all instances. No other fault takes a disk, or a
    /// member for good: those are what a cluster that is rolled with empty disks cannot bear besides.
    pub(crate) fn rolled(random: &Random, length: Nanos) -> Plan {
        let mut plan = Plan::draw(&random.fork(200), length);
        let random = random.fork(201);
        plan.nodes = *random.pick(&[3, 3, 3, 4, 5, 5, 7]);
        plan.places = plan.nodes + random.index(2);
        (plan.founded, plan.mixed, plan.majority_after) = (false, false, None);
        plan.damages = false;
        plan.zones = (0..plan.places).map(|_| *random.pick(&["", "", "east", "west"])).collect();
        let rolls = match random.percent(40) {
            true => Rolls { wipes: false, kills: 0, quiet: true },
            false => Rolls {
                wipes: random.percent(80),
                kills: *random.pick(&[0, 50, 100]),
                quiet: random.percent(40),
            },
        };
        if rolls.quiet {
            plan.rates = Rates::none();
        } else {
            let taken = [Fault::Wipe, Fault::BitRot, Fault::LostWrites, Fault::Leave, Fault::Close];
            plan.rates = plan.rates.without(&taken);
        }
        if rolls.is_planned() {
            // So that what is waited for is the handover, and not the disk or the network.
            plan.latency = random.within(50 * MICRO..2 * MILLI);
            plan.sync = random.within(50 * MICRO..5 * MILLI);
            plan.step_delay = plan.step_delay.min(200 * MICRO);
            plan.drift_ppm = plan.drift_ppm.min(DRIFT_SAFE_PPM);
        }
        plan.rolls = Some(rolls);
        plan
    }

    fn draw_members(&mut self, random: &Random) {
        self.founded = self.mixed || random.percent(15);
        self.places += random.index(4);
        let time = self.heartbeat * random.within(30..120) as u32;
        self.policy = MembershipPolicy {
            max_voters: *random.pick(&[3, 5, 5, 7]),
            replace_after: *random.pick(&[time, MembershipPolicy::default().replace_after]),
        };
        // Whoever wants that accepts that a disk that is lost meanwhile may make two clusters.
        let losses = [Fault::Wipe, Fault::BitRot, Fault::LostWrites];
        if losses.iter().all(|fault| self.rates.of(*fault) == 0) && random.percent(50) {
            self.majority_after = Some(Duration::from_secs(random.within(0..60)));
        }
    }

    fn draw_zones(&mut self, random: &Random) {
        let count = *random.pick(&[1, 3, 4]);
        let names = &["", "east", "west", "north"][..count];
        self.zones = (0..self.places).map(|_| *random.pick(names)).collect();
    }

    /// Whether clocks differ by so little that `is_held` and `is_alive` are never wrong.
    pub(crate) fn clocks_are_fair(&self) -> bool {
        self.drift_ppm <= DRIFT_SAFE_PPM
    }

    /// How long nobody may write while a leader hands over: the heir is brought level, told, elected by
    /// the others, and has an entry of its own on most disks; each a few messages and syncs, and each
    /// of those at times many times as long as usual. An election that nobody has begun takes longer.
    pub(crate) fn handover(&self) -> Nanos {
        2 * steady::PAUSE + 30 * (self.latency + self.sync + self.step_delay)
    }

    /// How long a healed cluster may take to answer everything.
    pub(crate) fn recovery(&self) -> Nanos {
        let heartbeat = self.heartbeat.as_nanos() as u64;
        // Some elections of 20 heartbeats each, besides what does not depend on that.
        60 * SECOND + 100 * heartbeat
    }
}
