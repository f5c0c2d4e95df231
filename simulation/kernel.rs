//! What the world and the clients' tasks share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use super::checks::{Checks, Violation};
use super::clock::{Nanos, TrueTime};
use super::executor::Executor;
use super::faults::{Fault, TABLE};
use super::plan::Plan;
use super::random::Random;
use super::trace::{Trace, Verbosity};
use crate::api::coordinator::Coordinator;
use crate::types::znode::Zxid;

/// The phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Faults happen.
    Chaos,
    /// The faults have ended, and the cluster recovers.
    Recovery,
    /// The cluster has recovered: no operation may fail.
    Calm,
    /// The clients finish their operations.
    Drain,
    /// The clients have finished, and the replicas become equal.
    Settle,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) plan: Plan,
    pub(crate) time: TrueTime,
    pub(crate) executor: Executor,
    pub(crate) trace: Trace,
    pub(crate) phase: Cell<Phase>,
    /// The random sources of members' tasks, and of the tasks of clients without a replica.
    pub(crate) random: Random,
    pub(crate) client_instance_random: Random,
    pub(crate) checks: RefCell<Checks>,
    /// The handles of the running instances.
    pub(crate) coordinators: RefCell<Vec<Option<Coordinator>>>,
    /// The only checks that count. `None`: all of them count.
    pub(crate) only: Cell<Option<&'static [&'static str]>>,
    violation: RefCell<Option<Violation>>,
    faults: RefCell<[u64; TABLE.len()]>,
    operations: RefCell<BTreeMap<&'static str, u64>>,
    /// Events of the engine that were observed, by name.
    events: RefCell<BTreeMap<&'static str, u64>>,
    /// The number of snapshots that each member has installed, and the number of attachments of
    /// each client.
    pub(crate) installs: RefCell<Vec<u64>>,
    /// The zxid up to which each client without a replica has received everything.
    pub(crate) seen: RefCell<Vec<Zxid>>,
    /// The zxid since which each replica has applied every change itself.
    pub(crate) known_from: RefCell<Vec<Zxid>>,
    /// What each task waits for, at which place and since when.
    waiting: RefCell<BTreeMap<u64, (&'static str, usize, Nanos)>>,
    next_wait: Cell<u64>,
}

impl Kernel {
    pub(crate) fn new(plan: Plan, randoms: [Random; 2], verbosity: Verbosity) -> Kernel {
        let time = TrueTime::default();
        let places = plan.places + plan.client_instances;
        let coordinators = RefCell::new(vec![None; places]);
        let [random, client_instance_random] = randoms;
        let checks = RefCell::new(Checks::new(&plan));
        Kernel {
            trace: Trace::new(time.clone(), verbosity),
            executor: Executor::default(),
            phase: Cell::new(Phase::Chaos),
            installs: RefCell::new(vec![0; places]),
            seen: RefCell::new(vec![0; places]),
            known_from: RefCell::new(vec![0; plan.places]),
            coordinators,
            checks,
            only: Cell::new(None),
            violation: RefCell::new(None),
            faults: RefCell::new([0; TABLE.len()]),
            operations: RefCell::default(),
            events: RefCell::default(),
            waiting: RefCell::default(),
            next_wait: Cell::new(0),
            plan,
            time,
            random,
            client_instance_random,
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        self.time.now()
    }

    /// The last zxid whose changes may be missing from the history of a replica that shows `shown`
    /// and has applied all changes itself since `known_from`.
    pub(crate) fn forgotten(&self, known_from: Zxid, shown: Zxid) -> Zxid {
        let checks = self.checks.borrow();
        let count = checks.oracle.first_after(shown);
        let kept = self.plan.log.history_changes;
        let dropped = count.checked_sub(kept + 1).map(|last| checks.oracle.changes()[last].zxid);
        known_from.max(dropped.unwrap_or(0))
    }

    /// Whether clients must finish.
    pub(crate) fn is_stopping(&self) -> bool {
        self.phase.get() >= Phase::Drain
    }

    /// Records a violation. Only the first one counts, because later ones may follow from it.
    pub(crate) fn fail(&self, violation: Violation) {
        if self.only.get().is_none_or(|only| only.contains(&violation.check)) {
            self.end(violation);
        }
    }

    /// As [`Kernel::fail`], for a violation after which the world cannot go on, whichever checks count.
    pub(crate) fn end(&self, violation: Violation) {
        self.trace.log_fault(format_args!("VIOLATION of {violation}"));
        self.violation.borrow_mut().get_or_insert(violation);
    }

    pub(crate) fn check(&self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.fail(violation);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.violation.borrow().is_some()
    }

    pub(crate) fn take_violation(&self) -> Option<Violation> {
        self.violation.borrow_mut().take()
    }

    pub(crate) fn count_fault(&self, fault: Fault) {
        self.faults.borrow_mut()[fault as usize] += 1;
    }

    pub(crate) fn count(&self, operation: &'static str) {
        *self.operations.borrow_mut().entry(operation).or_default() += 1;
    }

    pub(crate) fn count_event(&self, event: &'static str) {
        self.count_events(event, 1);
    }

    pub(crate) fn count_events(&self, event: &'static str, count: u64) {
        *self.events.borrow_mut().entry(event).or_default() += count;
    }

    pub(crate) fn event_counts(&self) -> BTreeMap<&'static str, u64> {
        self.events.borrow().clone()
    }

    pub(crate) fn fault_counts(&self) -> [u64; TABLE.len()] {
        *self.faults.borrow()
    }

    pub(crate) fn operation_counts(&self) -> BTreeMap<&'static str, u64> {
        self.operations.borrow().clone()
    }

    /// What tasks wait for, the longest wait first.
    pub(crate) fn waits(&self) -> Vec<(&'static str, usize, Nanos)> {
        self.waiting.borrow().values().copied().collect()
    }

    /// Since when a task waits for this at one of these places, if any does.
    pub(crate) fn waits_since(&self, what: &str, is_at: impl Fn(usize) -> bool) -> Option<Nanos> {
        let waiting = self.waiting.borrow();
        let mut these = waiting.values().filter(|(name, place, _)| *name == what && is_at(*place));
        these.next().map(|(_, _, since)| *since)
    }

    /// Records that a task waits, until the returned value is dropped.
    pub(crate) fn wait(self: &Rc<Kernel>, what: &'static str, process: usize) -> Waiting {
        let id = self.next_wait.get();
        self.next_wait.set(id + 1);
        self.waiting.borrow_mut().insert(id, (what, process, self.now()));
        Waiting { kernel: Rc::clone(self), id }
    }

    /// Waits for a duration of true time.
    pub(crate) fn sleep(self: &Rc<Kernel>, time: Nanos) -> impl Future<Output = ()> + use<> {
        let kernel = Rc::clone(self);
        let until = self.now() + time;
        let mut set = false;
        std::future::poll_fn(move |context| {
            if kernel.now() >= until {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut set, true) {
                kernel.executor.wake_at(until, context.waker().clone());
            }
            Poll::Pending
        })
    }
}

/// See [`Kernel::wait`].
#[derive(Debug)]
pub(crate) struct Waiting {
    kernel: Rc<Kernel>,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.kernel.waiting.borrow_mut().remove(&self.id);
    }
}
