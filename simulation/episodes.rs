//! Faults under load, one after another: slow disks and members that are away. During a fault the
//! others must go on. After it, the members that fell behind must catch up although the writers do
//! not pause.

use super::checks::load::Observation;
use super::checks::require;
use super::clock::{MILLI, Nanos, SECOND, nanos};
use super::kernel::Phase;
use super::load::{Load, Trouble, slow_sync_time};
use super::members::CAPACITY;
use super::random::Random;
use super::world::{Event, World};
use crate::node::io::Input;
use crate::node::timings::Timings;

/// How often the state of the world is checked.
const CHECK_INTERVAL: Nanos = 20 * MILLI;

/// The faults under load.
#[derive(Debug)]
pub(crate) struct Episodes {
    random: Random,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The members create their initial znodes.
    Filling,
    /// There is no fault until then.
    Quiet { until: Nanos },
    /// There is a fault until then.
    Wrong { trouble: Trouble, since: Nanos, until: Nanos, affected: Affected },
    /// The members that were affected catch up. They must have done so by then.
    CatchingUp { places: Vec<usize>, since: Nanos, until: Nanos },
}

/// The members that a fault affects.
#[derive(Debug, Default)]
struct Affected {
    /// Members that are down or cut off.
    away: Vec<usize>,
    /// Members with a slow disk.
    slow: Vec<usize>,
    /// Members with a nearly full disk.
    low: Vec<usize>,
    links: Vec<(usize, usize)>,
}

impl Episodes {
    pub(crate) fn new(random: Random) -> Episodes {
        Episodes { random, state: State::Filling }
    }
}

impl World {
    pub(super) fn episode(&mut self) {
        let (Some(load), Phase::Chaos) = (self.kernel.plan.load.clone(), self.kernel.phase.get())
        else {
            return;
        };
        let Some(mut episodes) = self.episodes.take() else { return };
        // A member that is away for long does not excuse anything here.
        self.troubled_until = self.now();
        if !matches!(episodes.state, State::Filling) {
            self.check_load(&load);
        }
        episodes.state = self.next_episode(&load, &episodes.random, episodes.state);
        self.episodes = Some(episodes);
        self.schedule_in(CHECK_INTERVAL, Event::Episode);
    }

    fn next_episode(&mut self, load: &Load, random: &Random, state: State) -> State {
        let now = self.now();
        match state {
            State::Filling => {
                let filled = self.kernel.checks.borrow().load.are_filled(self.processes.len());
                if !filled || !self.has_leader() {
                    return State::Filling;
                }
                let observation = self.load_now(load);
                self.kernel.checks.borrow_mut().load.begin(observation);
                self.kernel.trace.log_fault(format_args!("the load begins"));
                State::Quiet { until: now + load.bounds.election }
            }
            State::Quiet { until } if until <= now => self.begin_episode(load, random),
            State::Wrong { trouble, since, until, affected } if until <= now => {
                self.end_episode(load, trouble, since, affected)
            }
            State::CatchingUp { places, since, until } => {
                let level = self.kernel.checks.borrow().load.caught_up_index(now, load.bounds);
                let behind: Vec<usize> =
                    places.into_iter().filter(|place| !self.is_caught_up(*place, level)).collect();
                if behind.is_empty() && self.is_whole() {
                    self.kernel.count_event("members level again under load");
                    let mut checks = self.kernel.checks.borrow_mut();
                    checks.load.slow_by(0, now);
                    checks.load.leader_is_slow(Vec::new());
                    for place in 0..self.processes.len() {
                        checks.load.is_back(place, now);
                    }
                    drop(checks);
                    let quiet = random.below(3 * SECOND);
                    return State::Quiet { until: now + quiet };
                }
                let checked = require(now <= until, "U5 who lags catches up", || {
                    let (took, allowed) = (now - since, until - since);
                    format!(
                        "nodes {behind:?} are not level with {level} after {took} ns, of {allowed} ns at most; {}",
                        self.describe_members()
                    )
                });
                self.kernel.check(checked);
                State::CatchingUp { places: behind, since, until }
            }
            state => state,
        }
    }

    /// Whether a member has applied the log up to this index and has it on its disk.
    fn is_caught_up(&self, place: usize, index: u64) -> bool {
        let process = &self.processes[place];
        let applied = process.life.as_ref().map_or(0, |life| life.host.node().applied().index);
        applied >= index && process.durable.condition().last() >= index
    }

    fn load_now(&self, load: &Load) -> Observation {
        let term = |process: &super::process::Process| {
            process.life.as_ref().map_or(0, |life| life.host.node().leadership().0)
        };
        let term = self.processes.iter().map(term).max().unwrap_or(0);
        let checks = self.kernel.checks.borrow();
        let now = self.now();
        let waits = self
            .kernel
            .waits_since("set", |place| checks.load.is_caught_up(place, now, load.bounds));
        Observation { now, committed: checks.oracle.last(), term, waits }
    }

    fn check_load(&mut self, load: &Load) {
        let observation = self.load_now(load);
        let mut checks = self.kernel.checks.borrow_mut();
        let mut checked = checks.load.observe(load, observation);
        checked =
            checked.and_then(|()| checks.load.check_room(observation.now, observation.committed));
        for (place, process) in self.processes.iter_mut().enumerate() {
            let Some(life) = &mut process.life else { continue };
            let due = life.host.node().checkpoint_due_bytes();
            let memory = (life.host.node().log_bytes(), &mut life.read_log_bytes);
            // The time of a checkpoint that began on a slow disk.
            let slow = process.slow_disk_until + 12 * process.slow_disk_by > observation.now;
            let slow = if slow { process.slow_disk_by } else { 0 };
            checked = checked.and_then(|()| checks.load.log(load, place, memory, due, slow));
        }
        drop(checks);
        self.kernel.check(checked);
    }

    /// Some places, often with the leader's among them.
    fn some_of(&self, random: &Random, count: usize, with_leader: bool) -> Vec<usize> {
        let leader = self.leader();
        let mut places: Vec<usize> = (0..self.processes.len()).collect();
        if !with_leader {
            places.retain(|place| Some(*place) != leader);
        }
        let mut some = Vec::new();
        if let Some(leader) = leader.filter(|_| with_leader && random.percent(40)) {
            places.retain(|place| *place != leader);
            some.push(leader);
        }
        while some.len() < count && !places.is_empty() {
            some.push(places.swap_remove(random.index(places.len())));
        }
        some
    }

    fn begin_episode(&mut self, load: &Load, random: &Random) -> State {
        let (now, minority) = (self.now(), (self.processes.len() - 1) / 2);
        let trouble = *random.pick(&load.troubles);
        let slow_by = slow_sync_time(random, trouble, self.kernel.plan.heartbeat);
        let election = nanos(Timings::new(self.kernel.plan.heartbeat).election());
        let time = *random.pick(&[election / 2, 3 * election, 10 * election, 10 * SECOND]);
        let mut affected = Affected::default();
        match trouble {
            Trouble::SlowDisks => affected.slow = self.some_of(random, minority, true),
            Trouble::AllSlow => affected.slow = (0..self.processes.len()).collect(),
            Trouble::SlowMajority => {
                affected.away = self.some_of(random, minority, false);
                let others =
                    (0..self.processes.len()).filter(|place| !affected.away.contains(place));
                affected.slow = vec![*random.pick(&others.collect::<Vec<usize>>())];
            }
            Trouble::Crash | Trouble::CutOff | Trouble::Wipe => {
                affected.away = self.some_of(random, 1, true);
            }
            Trouble::LowDisks => affected.low = self.some_of(random, minority + 1, true),
        }
        if trouble == Trouble::Wipe && !self.may_lose(affected.away[0]) {
            return State::Quiet { until: now + SECOND };
        }
        let time = match trouble {
            Trouble::AllSlow => slow_by,
            Trouble::SlowDisks | Trouble::SlowMajority => time.max(3 * slow_by),
            Trouble::LowDisks => 10 * SECOND + random.below(20 * SECOND),
            _ => time,
        };
        let leader = self.leader();
        for place in &affected.away {
            let mut checks = self.kernel.checks.borrow_mut();
            checks.load.is_away(*place);
            // A member that replaces a lost one changes who votes, and perhaps who leads.
            if Some(*place) == leader || trouble == Trouble::Wipe {
                checks.load.election_until(now + load.bounds.election);
            }
        }
        if matches!(trouble, Trouble::AllSlow | Trouble::SlowMajority) {
            self.kernel.checks.borrow_mut().load.slow_by(slow_by, now);
        }
        let leads = leader.is_some_and(|leader| affected.slow.contains(&leader));
        // A leader whose disk is faster than that may go on leading.
        if trouble == Trouble::SlowDisks && leads && slow_by > load.bounds.patience / 2 {
            self.kernel.checks.borrow_mut().load.leader_is_slow(affected.slow.clone());
        }
        if trouble == Trouble::LowDisks {
            let reported = now + load.bounds.election;
            self.kernel.checks.borrow_mut().load.nearly_full_from(reported);
            self.show_free(&affected.low, Some(0));
        }
        for place in &affected.slow {
            let process = &mut self.processes[*place];
            (process.slow_disk_until, process.slow_disk_by) = (now + time, slow_by);
        }
        for place in &affected.away {
            if trouble == Trouble::CutOff {
                affected.links.extend(self.cut_from_all(*place));
            } else {
                self.crash(*place);
            }
        }
        if trouble == Trouble::Wipe {
            self.empty_disk(affected.away[0]);
        }
        self.kernel.trace.log_fault(format_args!(
            "{trouble:?} for {time} ns: nodes {:?} are away, the disks of {:?} slow by {slow_by} ns, \
             and those of {:?} nearly full",
            affected.away, affected.slow, affected.low
        ));
        self.kernel.count_event(match trouble {
            Trouble::SlowDisks => "disks slow under load",
            Trouble::AllSlow => "all disks slow under load",
            Trouble::SlowMajority => "a majority slow under load",
            Trouble::Crash => "members down under load",
            Trouble::CutOff => "members cut off under load",
            Trouble::Wipe => "members wiped under load",
            Trouble::LowDisks => "disks nearly full under load",
        });
        State::Wrong { trouble, since: now, until: now + time, affected }
    }

    /// The disks at these places have so much free space, or as much as ever, and their members know it at once.
    fn show_free(&mut self, places: &[usize], free: Option<u64>) {
        for place in places {
            self.processes[*place].device.show_free(free);
            self.input(
                *place,
                Input::DiskSpace { free: free.unwrap_or(CAPACITY), total: CAPACITY },
            );
        }
    }

    fn cut_from_all(&mut self, place: usize) -> Vec<(usize, usize)> {
        let others = (0..self.processes.len()).filter(|other| *other != place);
        let links: Vec<_> = others.flat_map(|other| [(place, other), (other, place)]).collect();
        for (from, to) in &links {
            if self.network.cut(*from, *to) {
                self.schedule_notice(*from, *to, SECOND);
            }
        }
        links
    }

    fn end_episode(
        &mut self,
        load: &Load,
        trouble: Trouble,
        since: Nanos,
        affected: Affected,
    ) -> State {
        let now = self.now();
        let Affected { away, slow, low, links } = affected;
        if trouble == Trouble::LowDisks {
            self.show_free(&low, None);
            let by = now + load.bounds.election + SECOND + 20 * load.pause;
            self.kernel.checks.borrow_mut().load.has_room(by);
        }
        self.heal(&links);
        for place in &away {
            if trouble != Trouble::CutOff {
                self.start_in(*place, 1);
            }
            if trouble == Trouble::Wipe {
                let mut checks = self.kernel.checks.borrow_mut();
                checks
                    .load
                    .election_until(now + load.catch_up_time(&self.kernel.plan, now - since));
            }
        }
        let slow_by = slow.iter().map(|place| self.processes[*place].slow_disk_by).max();
        let slow_by = slow_by.unwrap_or(0);
        if trouble == Trouble::SlowDisks && slow_by >= 2 * load.bounds.patience {
            let still_leads = self.leader().is_some_and(|leader| slow.contains(&leader));
            let checked = self.kernel.checks.borrow().load.handed_over(still_leads);
            self.kernel.check(checked);
        }
        let mut places = away;
        places.extend(slow);
        places.extend(low);
        self.kernel.trace.log_fault(format_args!("{trouble:?} is over; {places:?} catch up"));
        // The last slow sync is still in progress.
        let allowed = load.catch_up_time(&self.kernel.plan, now - since) + 2 * slow_by;
        State::CatchingUp { places, since: now, until: now + allowed }
    }
}
