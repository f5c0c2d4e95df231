//! An operator who restarts one instance after another, guided by nothing but their readiness.
//!
//! The operator closes or kills an instance, empties its disk in some worlds, and restarts it at
//! the same address. As soon as `is_ready` returns true there, the operator stops the next
//! instance. A rolling update of an orchestrator does the same. The cluster and every acknowledged
//! write must survive. Where nothing else goes wrong, the operator also closes all instances within a moment
//! now and then, as when a deployment is stopped.

use super::checks::{Checks, Violation};
use super::clock::{MILLI, Nanos, SECOND};
use super::kernel::Phase;
use super::plan::Rolls;
use super::random::Random;
use super::world::{Event, World};

/// How often the operator checks.
const CHECK_INTERVAL: Nanos = 50 * MILLI;

/// What the operator waits for.
#[derive(Debug)]
pub(crate) struct Operator {
    random: Random,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Waits until all instances are ready for the first time.
    Founding,
    /// All instances are ready: the next one is stopped at this time.
    Next { at: Nanos },
    /// Waits for the process of this start to end.
    Closing { place: usize, epoch: u64 },
    /// Waits for the instance to be ready, since then.
    Starting { place: usize, since: Nanos },
    /// Waits for all processes to end, each with the number of its start.
    ClosingAll { epochs: Vec<u64> },
    /// Waits until all instances are ready again.
    StartingAll,
}

impl Operator {
    pub(crate) fn new(random: Random) -> Operator {
        Operator { random, state: State::Founding }
    }
}

impl World {
    /// The operator checks the instances and does the next action.
    pub(super) fn roll(&mut self) {
        let (Some(rolls), Phase::Chaos) = (self.kernel.plan.rolls, self.kernel.phase.get()) else {
            return;
        };
        let Some(mut operator) = self.operator.take() else { return };
        operator.state = self.rolled(&operator, rolls);
        self.operator = Some(operator);
        self.schedule_in(CHECK_INTERVAL, Event::Roll);
    }

    fn rolled(&mut self, operator: &Operator, rolls: Rolls) -> State {
        let now = self.now();
        match operator.state.clone() {
            State::Founding if (0..self.processes.len()).all(|place| self.is_ready(place)) => {
                State::Next { at: now }
            }
            State::Next { at } if at <= now => {
                if rolls.is_planned() && operator.random.percent(20) {
                    return self.stop_all(&operator.random);
                }
                self.stop_next(&operator.random, rolls)
            }
            State::ClosingAll { epochs } => {
                let ends = |(place, epoch): (usize, &u64)| {
                    let process = &self.processes[place];
                    process.life.is_none() || process.epoch != *epoch
                };
                if !epochs.iter().enumerate().all(ends) {
                    return State::ClosingAll { epochs };
                }
                self.kernel.count_event("times all were closed");
                let mut checks = self.kernel.checks.borrow_mut();
                let Checks { stopping, sessions, .. } = &mut *checks;
                let checked = stopping.all_ended(|session| sessions.is_detached(session));
                drop(checks);
                self.kernel.check(checked);
                State::StartingAll
            }
            State::StartingAll if (0..self.processes.len()).all(|place| self.is_ready(place)) => {
                self.kernel.checks.borrow_mut().handover.is_back();
                State::Next { at: now }
            }
            State::Closing { place, epoch } => {
                let process = &self.processes[place];
                if process.life.is_some() && process.epoch == epoch {
                    return State::Closing { place, epoch };
                }
                self.start_rolled(place, &operator.random, rolls)
            }
            State::Starting { place, .. }
                if self.is_ready(place) && !planted!(NewcomersUnready) =>
            {
                self.kernel.count_event("instances rolled");
                self.kernel.checks.borrow_mut().handover.is_back();
                self.kernel.trace.log_fault(format_args!("node {place}: is ready"));
                State::Next { at: now + *operator.random.pick(&[0, 0, SECOND, 10 * SECOND]) }
            }
            State::Starting { place, since } if rolls.quiet => {
                if now > since + self.kernel.plan.recovery() {
                    let what = format!("node {place} is not ready; {}", self.describe_members());
                    self.kernel.fail(Violation::new("M2 whoever is replaced becomes ready", what));
                }
                State::Starting { place, since }
            }
            state => state,
        }
    }

    fn is_ready(&self, place: usize) -> bool {
        let coordinators = self.kernel.coordinators.borrow();
        coordinators[place].as_ref().is_some_and(|coordinator| coordinator.is_ready())
    }

    fn stop_next(&mut self, random: &Random, rolls: Rolls) -> State {
        let leader = self.leader().filter(|_| random.percent(60));
        let place = leader.unwrap_or_else(|| random.index(self.processes.len()));
        let coordinator = self.kernel.coordinators.borrow()[place].clone();
        match coordinator.filter(|_| !random.percent(rolls.kills)) {
            Some(coordinator) => {
                self.kernel.trace.log_fault(format_args!("node {place}: is to close"));
                self.kernel.checks.borrow_mut().handover.closes(place, self.now());
                drop(coordinator);
                self.close(place);
                if planted!(CloseLingers) {
                    self.charge(place, SECOND);
                }
                State::Closing { place, epoch: self.processes[place].epoch }
            }
            None => {
                self.kernel.trace.log_fault(format_args!("node {place}: is killed"));
                self.start_rolled(place, random, rolls)
            }
        }
    }

    /// Closes all instances at one moment, or within a tenth of a second.
    fn stop_all(&mut self, random: &Random) -> State {
        let (now, count) = (self.now(), self.processes.len());
        let lives = || self.processes.iter().filter_map(|process| process.life.as_ref());
        let term = lives().map(|life| life.host.node().leadership().0).max().unwrap_or(0);
        let within = *random.pick(&[1, 1, 10 * MILLI, 100 * MILLI]);
        let until = (within == 1).then(|| now + 3 * self.kernel.plan.handover());
        let held = lives().flat_map(|life| life.host.held()).collect();
        let mut checks = self.kernel.checks.borrow_mut();
        checks.handover.all_close();
        checks.stopping.begins(term, count as u64, held, until);
        drop(checks);
        self.kernel.trace.log_fault(format_args!("all nodes are to close within {within} ns"));
        for place in 0..count {
            self.schedule_in(random.below(within), Event::Close { place });
        }
        State::ClosingAll { epochs: self.processes.iter().map(|process| process.epoch).collect() }
    }

    /// Closes an instance, if it runs.
    pub(super) fn close(&mut self, place: usize) {
        let coordinator = self.kernel.coordinators.borrow()[place].clone();
        if let Some(coordinator) = coordinator {
            coordinator.close().wait().expect("a thread closes it itself");
            let now = self.now();
            self.want_step(place, now);
        }
    }

    /// Kills the process at this place if it still runs, and starts it again soon. Where disks do not
    /// persist, it starts from an empty one.
    fn start_rolled(&mut self, place: usize, random: &Random, rolls: Rolls) -> State {
        if rolls.wipes {
            self.crash(place);
            let node = self.empty_disk(place);
            self.kernel.trace.log_fault(format_args!("node {place}: is {node:x} now"));
        } else if self.processes[place].life.is_some() {
            self.crash(place);
        }
        let time = random.below(*random.pick(&[1, 100 * MILLI, SECOND, 20 * SECOND]));
        self.start_in(place, time);
        State::Starting { place, since: self.now() }
    }
}
