//! The plan of a world under load: how much clients write, how large the state is, and which faults
//! there are. And the bounds that follow: how soon something must happen *while* the load goes on,
//! and how large the log may become.

use std::time::Duration;

use super::clock::{MICRO, MILLI, Nanos, SECOND, nanos};
use super::costs::Costs;
use super::faults::Rates;
use super::plan::{Plan, short_segments};
use super::random::Random;
use crate::node::timings::Timings;
use crate::node::{LogLimits, MembershipPolicy};
use crate::runtime::disk::group_commit::WRITE_BYTES_MAX;
use crate::storage::simulated::DatabaseOptions;
use crate::types::watch::WATCH_CAPACITY;

/// A fault that lasts for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The disks of a minority take up to ten election timeouts for each sync.
    SlowDisks,
    /// All disks take up to a second for each sync, for about as long.
    AllSlow,
    /// As many members are down as the cluster tolerates. The disk of another member takes up to
    /// two election timeouts for each sync, and every commit waits for it.
    SlowMajority,
    /// A member is down.
    Crash,
    /// A member is cut off from all others.
    CutOff,
    /// A member is down and comes back with an empty disk.
    Wipe,
    /// The disks of a majority are nearly full. Later they have room again.
    LowDisks,
}

use Trouble::{AllSlow, Crash, CutOff, LowDisks, SlowDisks, SlowMajority, Wipe};

const ALL: [Trouble; 6] = [SlowDisks, AllSlow, SlowMajority, Crash, CutOff, Wipe];

/// The load of the clients, and the faults.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The number of sessions of each member that write, and of outstanding requests of each
    /// session.
    pub(crate) writers: usize,
    pub(crate) window: usize,
    /// The pause of a writer between a reply and the next request.
    pub(crate) pause: Nanos,
    /// The most requests per second.
    pub(crate) rate: u64,
    /// The most bytes that a request writes.
    pub(crate) value_bytes: usize,
    /// The number and size of the znodes that each member creates first.
    pub(crate) znodes: usize,
    pub(crate) znode_bytes: usize,
    /// The number of idle sessions of each member.
    pub(crate) idle_sessions: usize,
    /// The number of watches of each member.
    pub(crate) watches: usize,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) bounds: Bounds,
}

/// The bounds under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The longest time without a commit while a majority has fast disks and connections.
    pub(crate) commit: Nanos,
    /// The number of slow syncs for which a request may wait, where every commit needs that disk.
    pub(crate) syncs: u64,
    /// How long a leader goes on leading with a disk that is slower than the others'.
    pub(crate) patience: Nanos,
    /// How long after the loss of a leader these bounds do not hold.
    pub(crate) election: Nanos,
    /// The longest time that a step may keep a node's thread busy.
    pub(crate) step: Nanos,
    /// The most bytes of the log in a member's memory.
    pub(crate) log_bytes: u64,
    /// The session timeout.
    pub(crate) session: Nanos,
}

impl Plan {
    /// The plan of a world under load.
    pub(crate) fn loaded(random: &Random, length: Nanos) -> Plan {
        let nodes = *random.pick(&[3, 3, 3, 5]);
        let heartbeat = Duration::from_millis(*random.pick(&[100, 200, 200, 400]));
        let session_timeout = heartbeat * random.within(10..30) as u32;
        let costs = Costs {
            link: *random.pick(&[4, 10, 50, 120]) << 20,
            disk: *random.pick(&[10, 50, 200]) << 20,
        };
        let log = LogLimits {
            checkpoint_entries: random.within(200..4_000),
            checkpoint_bytes: *random.pick(&[1, 4, 16]) << 20,
            checkpoint_age: Duration::from_secs(random.within(5..600)),
            memory_bytes: *random.pick(&[1, 4, 16]) << 20,
            // Small enough that some members need a snapshot.
            retained_bytes_min: random.within(100..10_000) << 10,
            ..LogLimits::default()
        };
        let latency = random.within(50 * MICRO..MILLI);
        let sync = random.within(100 * MICRO..4 * MILLI);
        let load = Load::draw(&random.fork(1), nodes, heartbeat, session_timeout, costs, &log);
        Plan {
            nodes,
            places: nodes,
            founded: true,
            majority_after: None,
            policy: MembershipPolicy::default(),
            heartbeat,
            tick: heartbeat * 2,
            session_timeout,
            container_period: Duration::from_secs(10),
            log,
            rates: Rates::none(),
            length,
            latency,
            step_delay: 20 * MICRO,
            sync,
            drift_ppm: 1_000,
            clients: 0,
            think: SECOND,
            paths: 0,
            data_bytes: 0,
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
            zones: vec![""; nodes],
            leader_priorities: vec![0; nodes],
            client_instances: 0,
            client_instance_tasks: 0,
            damages: false,
            detaches: false,
            fleet: false,
            rolls: None,
            watch_capacity: WATCH_CAPACITY,
            consumers: None,
            costs: Some(costs),
            store: short_segments(),
            split_above: WRITE_BYTES_MAX,
            database: DatabaseOptions::default(),
            load: Some(load),
        }
    }
}

impl Load {
    fn draw(
        random: &Random,
        nodes: usize,
        heartbeat: Duration,
        session_timeout: Duration,
        costs: Costs,
        log: &LogLimits,
    ) -> Load {
        let (writers, mut window) = (random.within(1..4) as usize, *random.pick(&[1, 4, 16, 64]));
        let value_bytes = *random.pick(&[100, 100, 100, 1_000, 10_000, 1_000_000]);
        let (znodes, znode_bytes) =
            *random.pick(&[(10, 100), (10, 100), (500, 100), (10_000, 300), (500, 10_000)]);
        // A higher rate would leave too little for members that catch up.
        let spare = costs.link.min(costs.disk) / 4;
        let rate = random.within(100..600).min(spare / (value_bytes as u64 / 2 + 200)).max(1);
        while window > 1 && (nodes * writers * window) as u64 > 2 * rate {
            window /= 4;
        }
        let slots = (nodes * writers * window) as u64;
        let mut troubles: Vec<Trouble> = ALL.to_vec();
        troubles.retain(|_| random.percent(40));
        if troubles.is_empty() {
            troubles.push(*random.pick(&ALL));
        }
        if random.fork(330).percent(30) {
            troubles.push(LowDisks);
        }
        let (timings, value) = (Timings::new(heartbeat), value_bytes as u64);
        let election = nanos(timings.election());
        Load {
            writers,
            window,
            pause: slots * SECOND / rate,
            rate,
            value_bytes,
            znodes,
            znode_bytes,
            idle_sessions: *random.pick(&[0, 0, 0, 10, 500]),
            watches: *random.pick(&[0, 0, 10, 500]),
            troubles,
            bounds: Bounds {
                // A value is sent to the leader and on to the others. On each link, another one may
                // be ahead of it.
                commit: election + 4 * costs.on_link(value_bytes),
                // The outstanding entries, those that have waited behind them, the same again at
                // the leader, and a sync for each MiB of them.
                syncs: 4 + slots * value / WRITE_BYTES_MAX as u64,
                patience: nanos(timings.patience()),
                election: nanos(timings.patience()) * 3,
                step: nanos(heartbeat / 2),
                // Entries in flight count, too. A follower that catches up receives up to 64 MiB
                // that its disk does not have yet.
                log_bytes: log.memory_bytes + (24 << 20) + 2 * slots * value + rate * value,
                session: nanos(session_timeout),
            },
        }
    }

    /// About how many bytes are written within a time.
    pub(crate) fn bytes_in(&self, time: Nanos) -> u64 {
        time / MILLI * self.rate * (self.value_bytes as u64 / 2 + 200) / 1_000
    }

    /// How long a member that was away for a time may take to catch up.
    pub(crate) fn catch_up_time(&self, plan: &Plan, away: Nanos) -> Nanos {
        let costs = plan.costs.expect("a world under load has costs");
        let state = plan.nodes as u64 * (self.znodes * (self.znode_bytes + 150)) as u64;
        let log = self.bytes_in(away);
        // Its return is noticed. It receives the state and then the log that was written meanwhile,
        // while more is written. A new member votes once it has been caught up for a while.
        2 * SECOND + 2 * self.bounds.election + 6 * costs.transfer(state + log)
    }
}

/// The time of a sync on a slow disk.
pub(crate) fn slow_sync_time(random: &Random, trouble: Trouble, heartbeat: Duration) -> Nanos {
    let election = nanos(Timings::new(heartbeat).election());
    // A leader whose disk takes 10 seconds for a write is asked to hand over.
    let most = 8 * SECOND;
    match trouble {
        SlowDisks => random.within(election..10 * election).min(most),
        AllSlow => random.within(election / 10..election.min(SECOND)),
        SlowMajority => random.within(election / 2..2 * election),
        Crash | CutOff | Wipe | LowDisks => 0,
    }
}
