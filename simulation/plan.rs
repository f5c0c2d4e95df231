//! What a seed draws for its world: size, settings, faults and clients.

use std::time::Duration;

use super::clock::{MICRO, MILLI, Nanos, SECOND, nanos};
use super::costs::Costs;
use super::faults::{Fault, Rates};
use super::load::Load;
use super::random::Random;
use super::workload::steady;
use crate::node::TimeoutBounds;
use crate::node::timings::Timings;
use crate::node::{LogLimits, MembershipPolicy};
use crate::runtime::disk::group_commit::WRITE_BYTES_MAX;
use crate::runtime::disk_watch::DISK_DEAD;
use crate::runtime::shared::Limits;
use crate::storage::StoreOptions;
use crate::storage::simulated::DatabaseOptions;
use crate::types::watch::WATCH_CAPACITY;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The number of founding members.
    pub(crate) nodes: usize,
    /// The number of places for members.
    pub(crate) places: usize,
    /// Whether the cluster exists from the start.
    pub(crate) founded: bool,
    /// After this time, a majority of the list may found a cluster.
    pub(crate) majority_after: Option<Duration>,
    pub(crate) policy: MembershipPolicy,
    pub(crate) heartbeat: Duration,
    pub(crate) tick: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) container_period: Duration,
    pub(crate) log: LogLimits,
    pub(crate) rates: Rates,
    /// How long the faults last.
    pub(crate) length: Nanos,
    /// The latency of a message. Now and then it is several times as long.
    pub(crate) latency: Nanos,
    /// The time from an input of a node to its step.
    pub(crate) step_delay: Nanos,
    pub(crate) sync: Nanos,
    /// How far a clock's rate may differ from true time's, in millionths.
    pub(crate) drift_ppm: u64,
    /// Clients of each process.
    pub(crate) clients: usize,
    /// The time between two operations of a client.
    pub(crate) think: Nanos,
    /// The number of paths that clients share. The fewer there are, the more the clients conflict.
    pub(crate) paths: usize,
    /// The most bytes of a znode's data.
    pub(crate) data_bytes: usize,
    /// The limit of pending requests at a node.
    pub(crate) pending_requests_max: usize,
    /// Whether members may have an older version and are upgraded at a restart.
    pub(crate) mixed: bool,
    /// Whether there are queues and barriers.
    pub(crate) queues: bool,
    /// Whether there are multis with results that are as long as they may be.
    pub(crate) large: bool,
    /// Whether there are transactions that read the usage of a quota.
    pub(crate) usage: bool,
    /// Whether there are sessions that take over the znodes of lock holders.
    pub(crate) takers: bool,
    /// Whether locks are shared with clients in other languages.
    pub(crate) foreign: bool,
    /// Whether there is a limit that all share.
    pub(crate) limits: bool,
    /// Whether there are timers.
    pub(crate) timers: bool,
    /// Whether there are partitions that all share, and whether their members bound their silence.
    pub(crate) partitions: bool,
    pub(crate) bounded_silence: bool,
    /// Whether there is an election with many candidates.
    pub(crate) candidates: bool,
    /// The zone of each place. Empty: none.
    pub(crate) zones: Vec<&'static str>,
    /// How much the member at each place is wanted as the leader.
    pub(crate) leader_priorities: Vec<i32>,
    /// The number of clients without a replica, whose places come after those of the members.
    pub(crate) client_instances: usize,
    /// The number of tasks at each of those.
    pub(crate) client_instance_tasks: usize,
    /// Whether all disks may be damaged at once, and a new disk before its node votes.
    pub(crate) damages: bool,
    /// Whether sessions are detached, and keep their timeouts when they are resumed.
    pub(crate) detaches: bool,
    /// Whether it is a fleet, where a fault affects many clients at a time.
    pub(crate) fleet: bool,
    /// Whether and how an operator restarts the instances.
    pub(crate) rolls: Option<Rolls>,
    /// The capacity of a watch's channel.
    pub(crate) watch_capacity: usize,
    /// The seed of the consumers' choices, if each member has a consumer of watches that resumes
    /// and is slow now and then.
    pub(crate) consumers: Option<u64>,
    /// The costs of steps, messages and writes, if they take time.
    pub(crate) costs: Option<Costs>,
    /// The load, in a world under load.
    pub(crate) load: Option<Load>,
    /// The settings of stores.
    pub(crate) store: StoreOptions,
    /// Writes to the log are split above this size.
    pub(crate) split_above: usize,
    /// How databases are stored.
    pub(crate) database: DatabaseOptions,
}

impl Rolls {
    /// Whether nothing happens but closes and restarts.
    pub(crate) fn is_planned(self) -> bool {
        self.quiet && !self.wipes && self.kills == 0
    }
}

/// What an operator does with each instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rolls {
    /// Restarts it from an empty disk.
    pub(crate) wipes: bool,
    /// The percentage of stops that are kills. The others are closes.
    pub(crate) kills: u64,
    /// There are no other faults.
    pub(crate) quiet: bool,
}

/// Locks are safe as long as the rates of two clocks differ by less than a tenth.
pub(crate) const DRIFT_SAFE_PPM: u64 = 45_000;

/// The settings of stores whose segments are not long, since each is written whole.
pub(super) fn short_segments() -> StoreOptions {
    StoreOptions { segment_bytes: 1 << 18, ..StoreOptions::default() }
}

impl Plan {
    pub(crate) fn draw(random: &Random, length: Nanos) -> Plan {
        let nodes = *random.pick(&[1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 5, 5, 7]);
        let heartbeat = Duration::from_millis(*random.pick(&[200, 400, 600, 1000, 1000, 2000]));
        let tick = heartbeat * *random.pick(&[1, 2, 4]);
        let session_timeout = heartbeat * random.within(8..30) as u32;
        let few = random.percent(60);
        let retained = if few { 150 * random.within(1..1 << random.within(1..6)) } else { 1 << 20 };
        let log = LogLimits {
            checkpoint_entries: if few { random.within(5..300) } else { 20_000 },
            checkpoint_age: Duration::from_secs(random.within(5..600)),
            // Small enough that members often need a snapshot.
            retained_bytes_min: retained,
            retained_bytes_max: retained,
            catch_up_bytes: retained * random.within(1..100),
            memory_bytes: if few { random.below(4_000) } else { 16 << 20 },
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
            // Often short enough that containers are deleted while clients use them.
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
            large: false,
            usage: false,
            takers: false,
            foreign: false,
            limits: false,
            timers: false,
            partitions: false,
            bounded_silence: false,
            candidates: false,
            zones: Vec::new(),
            leader_priorities: Vec::new(),
            client_instances: 0,
            client_instance_tasks: 1,
            damages: false,
            detaches: false,
            fleet: false,
            rolls: None,
            watch_capacity: WATCH_CAPACITY,
            consumers: None,
            costs: None,
            load: None,
            store: StoreOptions::default(),
            split_above: WRITE_BYTES_MAX,
            database: DatabaseOptions::default(),
        };
        if random.percent(50) {
            // Small enough that clients often ask for changes that are no longer kept.
            plan.log.history_changes = random.within(1..200) as usize;
        }
        plan.queues = random.fork(7).percent(30);
        plan.draw_members(&random.fork(8));
        plan.draw_client_instances(&random.fork(9));
        plan.draw_zones(&random.fork(10));
        plan.draw_leader_priorities(&random.fork(410));
        plan.draw_consumers(&random.fork(260));
        plan.usage = random.fork(280).percent(20);
        plan.takers = random.fork(281).percent(20);
        // If a majority may found a cluster, a lost disk may lead to two clusters.
        plan.damages = random.fork(241).percent(20) && plan.majority_after.is_none();
        plan.detaches = random.fork(300).percent(40);
        plan.draw_store(&random.fork(310));
        plan.foreign = random.fork(320).percent(30);
        plan.limits = random.fork(390).percent(15);
        plan.timers = random.fork(391).percent(15);
        plan.partitions = random.fork(430).percent(15);
        plan.bounded_silence = random.fork(431).percent(50);
        plan.candidates = random.fork(433).percent(15);
        let checkpoints = random.fork(440);
        if checkpoints.percent(50) {
            // So few bytes that the size of the state decides when a checkpoint is due.
            plan.log.checkpoint_bytes = 1 << checkpoints.within(8..16);
            plan.log.checkpoint_bytes_max = plan.log.checkpoint_bytes << checkpoints.within(0..6);
            plan.log.checkpoint_changes_max = checkpoints.within(50..5_000);
        }
        // Few, because each of these writes takes long.
        plan.large = random.fork(450).percent(5);
        plan
    }

    /// Small enough that segments, deltas and generations change often.
    fn draw_store(&mut self, random: &Random) {
        self.split_above = 1 << *random.pick(&[8, 8, 10, 14, 20]);
        self.store = StoreOptions {
            delta_bytes_min: 1 << random.within(8..20),
            file_bytes_min: 1 << random.within(12..22),
            deltas_max: *random.pick(&[1, 3, 10, 256]),
            spare_bytes_min: 1,
            segment_bytes: 1 << random.within(12..18),
            keys: None,
            log_dir: None,
            random: 0,
        };
    }

    fn draw_consumers(&mut self, random: &Random) {
        if random.percent(30) {
            self.consumers = Some(random.next());
            // Small enough that channels are often full.
            self.watch_capacity = *random.pick(&[1, 2, 3, 5, 20, WATCH_CAPACITY]);
        }
    }

    fn draw_client_instances(&mut self, random: &Random) {
        // Few, because each of them slows the run down.
        if random.percent(60) {
            self.client_instances = random.within(1..4) as usize;
            self.client_instance_tasks = if self.client_instances == 1 { 2 } else { 1 };
        }
    }

    /// The limits of each instance.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            pending_requests_max: self.pending_requests_max,
            request_timeout: Duration::from_secs(30),
            session_timeout: self.session_timeout,
            tick: self.tick,
            timeouts: TimeoutBounds::of(self.tick),
            watch_capacity: self.watch_capacity,
        }
    }

    /// The time that a disk takes to write this, without its latency.
    pub(crate) fn on_disk(&self, bytes: u64) -> Nanos {
        self.costs.map_or(0, |costs| costs.on_disk(bytes))
    }

    /// Whether a place is that of a client without a replica.
    pub(crate) fn is_client(&self, place: usize) -> bool {
        place >= self.places
    }

    /// A fleet of a thousand instances: 5 voters, 15 learners, and clients.
    pub(crate) fn fleet(random: &Random, length: Nanos) -> Plan {
        let heartbeat = Duration::from_millis(1000);
        let retained = 150 * random.within(100..1_000);
        Plan {
            nodes: 20,
            places: 20,
            founded: false,
            majority_after: None,
            policy: MembershipPolicy { max_voters: 5, replace_after: Duration::from_secs(30) },
            heartbeat,
            tick: heartbeat * 2,
            session_timeout: Duration::from_secs(12),
            container_period: Duration::from_secs(10),
            log: LogLimits {
                // Few enough that some learners need a snapshot.
                checkpoint_entries: 2_000,
                retained_bytes_min: retained,
                retained_bytes_max: retained,
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
            large: false,
            usage: false,
            takers: false,
            foreign: false,
            limits: false,
            timers: false,
            partitions: false,
            bounded_silence: false,
            candidates: false,
            client_instances: 980,
            client_instance_tasks: 1,
            damages: false,
            detaches: false,
            fleet: true,
            rolls: None,
            watch_capacity: WATCH_CAPACITY,
            consumers: None,
            costs: None,
            store: short_segments(),
            split_above: WRITE_BYTES_MAX,
            database: DatabaseOptions::default(),
            load: None,
            zones: (0..20).map(|place| ["east", "west", "north"][place % 3]).collect(),
            leader_priorities: vec![0; 20],
        }
    }

    /// A world in which an operator restarts all instances. No other fault takes a disk or removes a
    /// member: a cluster that is restarted with empty disks cannot survive that as well.
    pub(crate) fn rolled(random: &Random, length: Nanos) -> Plan {
        let mut plan = Plan::draw(&random.fork(200), length);
        let random = random.fork(201);
        plan.nodes = *random.pick(&[3, 3, 3, 4, 5, 5, 7]);
        plan.places = plan.nodes + random.index(2);
        (plan.founded, plan.mixed, plan.majority_after) = (false, false, None);
        (plan.damages, plan.large) = (false, false);
        plan.zones = (0..plan.places).map(|_| *random.pick(&["", "", "east", "west"])).collect();
        plan.draw_leader_priorities(&random.fork(1));
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
            // The handover then decides how long writes wait, and not the disk or the network.
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
        let time = self.heartbeat * random.within(15..60) as u32;
        self.policy = MembershipPolicy {
            max_voters: *random.pick(&[3, 5, 5, 7]),
            replace_after: *random.pick(&[time, MembershipPolicy::default().replace_after]),
        };
        // Not where disks are lost: a lost disk may lead to two clusters then.
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

    /// Most worlds have none: the lead is where the elections leave it.
    fn draw_leader_priorities(&mut self, random: &Random) {
        let highest = *random.pick(&[1, 1, 1, 2, 4]);
        let priority = |_| i32::try_from(random.within(0..highest)).unwrap_or_default();
        self.leader_priorities = (0..self.places).map(priority).collect();
    }

    /// Whether the clocks' rates are similar enough that `is_held` and `is_alive` are never wrong.
    pub(crate) fn clocks_are_fair(&self) -> bool {
        self.drift_ppm <= DRIFT_SAFE_PPM
    }

    /// How long writes may wait while a leader hands over. The next leader receives the rest of the
    /// log and a TimeoutNow message, is elected, and commits an entry of its own. Each of these
    /// takes a few messages and syncs, which now and then take many times as long as usual. An
    /// election after a timeout would take longer.
    pub(crate) fn handover(&self) -> Nanos {
        2 * steady::PAUSE + 30 * (self.latency + self.sync + self.step_delay)
    }

    /// How long a silent member still counts as alive: see [`Timings::patience`].
    pub(crate) fn patience(&self) -> Nanos {
        nanos(Timings::new(self.heartbeat).patience())
    }

    /// How long the cluster may take to answer everything after the last fault: some elections,
    /// once no node waits for a slow disk any more.
    pub(crate) fn recovery(&self) -> Nanos {
        nanos(DISK_DEAD) + 5 * self.patience()
    }
}
