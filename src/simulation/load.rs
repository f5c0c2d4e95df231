//! What a seed draws for a world under load: who writes how much, how large the state is, and what goes
//! wrong meanwhile. And the bounds that follow: within what time something must happen *while* the load
//! goes on, and how large the log may become.

use std::time::Duration;

use super::clock::{MICRO, MILLI, Nanos, SECOND, nanos};
use super::costs::Costs;
use super::faults::Rates;
use super::plan::Plan;
use super::random::Random;
use crate::node::timings::Timings;
use crate::node::{LogLimits, MembershipPolicy};
use crate::runtime::disk::WRITE_BYTES_MAX;
use crate::types::watch::WATCH_CAPACITY;

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The disks of a minority take up to ten elections for each sync.
    SlowDisks,
    /// All disks take up to a second for each sync, for about as long.
    AllSlow,
    /// As many members as the cluster can do without are down, and the disk of one of the others takes
    /// up to two elections for each sync: every commit waits for it.
    SlowMajority,
    /// A member is down.
    Crash,
    /// A member reaches nobody.
    CutOff,
    /// A member is down, and comes back with an empty disk.
    Wipe,
    /// The disks of a majority are nearly full: there is room again later.
    LowDisks,
}

use Trouble::{AllSlow, Crash, CutOff, LowDisks, SlowDisks, SlowMajority, Wipe};

const ALL: [Trouble; 6] = [SlowDisks, AllSlow, SlowMajority, Crash, CutOff, Wipe];

/// What the clients of a world under load do, and what goes wrong meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// How many sessions of each member write, and how many requests of each are under way.
    pub(crate) writers: usize,
    pub(crate) window: usize,
    /// What a writer waits before it sends another request in the place of one that was answered.
    pub(crate) pause: Nanos,
    /// How many requests come in a second, at the most.
    pub(crate) rate: u64,
    /// The most bytes that a request writes.
    pub(crate) value_bytes: usize,
    /// The znodes that each member creates first, and their size.
    pub(crate) znodes: usize,
    pub(crate) znode_bytes: usize,
    /// How many more sessions each member has, which do nothing.
    pub(crate) idle_sessions: usize,
    /// How many watches each member has.
    pub(crate) watches: usize,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) bounds: Bounds,
}

/// What is demanded under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How long nothing is committed, at the most, while a majority has good disks and connections.
    pub(crate) commit: Nanos,
    /// For how many syncs of a slow disk a request may wait, where every commit needs that disk.
    pub(crate) syncs: u64,
    /// How long a leader leads on with a disk that is slower than those of the others.
    pub(crate) patience: Nanos,
    /// How long until that holds again after a leader was lost.
    pub(crate) election: Nanos,
    /// How long a step may keep a node's thread busy.
    pub(crate) step: Nanos,
    /// How many bytes of the log a member has in memory, at the most.
    pub(crate) log_bytes: u64,
    /// How long sessions live.
    pub(crate) session: Nanos,
}

impl Plan {
    /// A world under load.
    pub(crate) fn loaded(random: &Random, length: Nanos) -> Plan {
        let nodes = *random.pick(&[3, 3, 3, 5]);
        let heartbeat = Duration::from_millis(*random.pick(&[50, 100, 100, 200]));
        let session_timeout = heartbeat * random.within(20..60) as u32;
        let costs = Costs {
            link: *random.pick(&[4, 10, 50, 120]) << 20,
            disk: *random.pick(&[10, 50, 200]) << 20,
        };
        let log = LogLimits {
            checkpoint_entries: random.within(200..4_000),
            checkpoint_bytes: *random.pick(&[1, 4, 16]) << 20,
            checkpoint_age: Duration::from_secs(random.within(5..600)),
            memory_bytes: *random.pick(&[1, 4, 16]) << 20,
            // Little enough that some members need the state.
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
            tick: heartbeat * 4,
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
            usage: false,
            takers: false,
            zones: vec![""; nodes],
            client_instances: 0,
            client_instance_tasks: 0,
            damages: false,
            detaches: false,
            fleet: false,
            rolls: None,
            watch_capacity: WATCH_CAPACITY,
            consumers: None,
            costs: Some(costs),
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
        // More than this would be too much for those who must catch up besides.
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
                // A value goes to the leader and on to the others, and on each link another one may be ahead.
                commit: election + 4 * costs.on_link(value_bytes),
                // The entries under way, those that have waited behind them, and the same at the leader;
                // and a sync for each MiB of all.
                syncs: 4 + slots * value / WRITE_BYTES_MAX as u64,
                patience: nanos(timings.patience()),
                election: nanos(timings.patience()) * 3,
                step: nanos(heartbeat),
                // And what is under way, also to one that catches up: a follower takes up to 64 MiB that its
                // disk does not have yet.
                log_bytes: log.memory_bytes + (24 << 20) + 2 * slots * value + rate * value,
                session: nanos(session_timeout),
            },
        }
    }

    /// How many bytes are written within a time, about.
    pub(crate) fn bytes_in(&self, time: Nanos) -> u64 {
        time / MILLI * self.rate * (self.value_bytes as u64 / 2 + 200) / 1_000
    }

    /// How long a member that was away for a time may take to be level again.
    pub(crate) fn level(&self, plan: &Plan, away: Nanos) -> Nanos {
        let costs = plan.costs.expect("a world under load has costs");
        let state = plan.nodes as u64 * (self.znodes * (self.znode_bytes + 150)) as u64;
        let log = self.bytes_in(away);
        // It is noticed, gets the state, then the log that was written meanwhile, and takes all of
        // it in while more is written. A new member votes once it has been level for a while.
        2 * SECOND + 2 * self.bounds.election + 6 * costs.transfer(state + log)
    }
}

/// How long a sync takes on a slow disk.
pub(crate) fn slowness(random: &Random, trouble: Trouble, heartbeat: Duration) -> Nanos {
    let election = nanos(Timings::new(heartbeat).election());
    // A leader whose disk takes 10 seconds for a write is asked to make way.
    let most = 8 * SECOND;
    match trouble {
        SlowDisks => random.within(election..10 * election).min(most),
        AllSlow => random.within(election / 10..election.min(SECOND)),
        SlowMajority => random.within(election / 2..2 * election),
        Crash | CutOff | Wipe | LowDisks => 0,
    }
}
