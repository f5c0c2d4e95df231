//! An operator who restarts one instance after another, guided by nothing but their readiness.
//!
//! The operator closes or kills an instance, empties its disk in some worlds, and restarts it at
//! the same address. As soon as `is_ready` returns true there, the operator stops the next
//! instance. A rolling update of an orchestrator does the same. The cluster and every acknowledged
//! write must survive.

use super::checks::Violation;
use super::clock::{MILLI, Nanos, SECOND};
use super::kernel::Phase;
use super::plan::Rolls;
use super::random::Random;
use super::world::{Event, World};
use crate::planted::{Bug, if_planted, planted};

/// How often the operator checks.
const CHECK_INTERVAL: Nanos = 50 * MILLI;

/// What the operator waits for.
#[derive(Debug)]
pub(crate) struct Operator {
    random: Random,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Waits until all instances are ready for the first time.
    Founding,
    /// All instances are ready: the next one is stopped at this time.
    Next { at: Nanos },
    /// Waits for the process of this start to end.
    Closing { place: usize, epoch: u64 },
    /// Waits for the instance to be ready, since then.
    Starting { place: usize, since: Nanos },
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
        match operator.state {
            State::Founding if (0..self.processes.len()).all(|place| self.is_ready(place)) => {
                State::Next { at: now }
            }
            State::Next { at } if at <= now => self.stop_next(&operator.random, rolls),
            State::Closing { place, epoch } => {
                let process = &self.processes[place];
                if process.life.is_some() && process.epoch == epoch {
                    return operator.state;
                }
                self.start_rolled(place, &operator.random, rolls)
            }
            State::Starting { place, .. }
                if self.is_ready(place) && !planted(Bug::NewcomersUnready) =>
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
                operator.state
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
                coordinator.close();
                if_planted(Bug::CloseLingers, || self.charge(place, SECOND));
                let now = self.now();
                self.want_step(place, now);
                State::Closing { place, epoch: self.processes[place].epoch }
            }
            None => {
                self.kernel.trace.log_fault(format_args!("node {place}: is killed"));
                self.start_rolled(place, random, rolls)
            }
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
