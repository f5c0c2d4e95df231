//! Invariants, one file for each concern. The documents name most of them (I1, W1, U1 and so on).
//!
//! The world calls the checks after each step of a node. Clients call those that concern their
//! replies. To add one, write a file here with its state, add a field to [`Checks`], and call it
//! where its input is available.

pub(crate) mod agreement;
pub(crate) mod consumers;
pub(crate) mod durability;
pub(crate) mod elections;
pub(crate) mod handover;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod locks;
pub(crate) mod log_time;
pub(crate) mod membership;
pub(crate) mod order;
pub(crate) mod partitions;
pub(crate) mod promises;
pub(crate) mod queues;
pub(crate) mod sessions;
pub(crate) mod shares;
pub(crate) mod state;
pub(crate) mod stopping;
pub(crate) mod timers;
pub(crate) mod versions;
pub(crate) mod watches;

use std::fmt;
use std::rc::Rc;

use super::linearizability::{History, Verdict};
use super::oracle::Oracle;
use super::plan::Plan;
use crate::recipes::{Item, LockGuard, Run};
use crate::types::znode::SessionId;

/// A broken invariant.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) check: &'static str,
    pub(crate) what: String,
}

impl Violation {
    pub(crate) fn new(check: &'static str, what: impl Into<String>) -> Violation {
        Violation { check, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

/// Fails unless `holds`.
pub(crate) fn require(
    holds: bool,
    check: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(check, what())) }
}

/// The state of all checks.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) oracle: Oracle,
    pub(crate) agreement: agreement::Agreement,
    /// The history of the registers.
    pub(crate) history: History,
    moments: u64,
    pub(crate) consumers: consumers::Consumers,
    pub(crate) elections: elections::Elections,
    pub(crate) handover: handover::Handover,
    pub(crate) load: load::Load,
    pub(crate) locks: locks::Locks,
    pub(crate) log_time: log_time::LogTime,
    pub(crate) membership: membership::Membership,
    pub(crate) order: order::Order,
    pub(crate) promises: promises::Promises,
    pub(crate) queues: queues::Queues,
    pub(crate) sessions: sessions::Sessions,
    pub(crate) shares: shares::Shares,
    pub(crate) limits: limits::Limits,
    pub(crate) partitions: partitions::Partitions,
    pub(crate) state: state::State,
    pub(crate) stopping: stopping::Stopping,
    pub(crate) timers: timers::Timers,
    pub(crate) watches: watches::Watches,
}

impl Checks {
    pub(crate) fn new(plan: &Plan) -> Checks {
        Checks {
            oracle: Oracle::new(plan.load.is_none()),
            agreement: agreement::Agreement::default(),
            history: History::default(),
            moments: 0,
            consumers: consumers::Consumers::default(),
            elections: elections::Elections::new(plan),
            handover: handover::Handover::default(),
            load: load::Load::new(plan.places),
            locks: locks::Locks::new(plan.clocks_are_fair()),
            log_time: log_time::LogTime::default(),
            membership: membership::Membership::default(),
            order: order::Order::default(),
            promises: promises::Promises::default(),
            queues: queues::Queues::new(plan.clocks_are_fair()),
            sessions: sessions::Sessions::new(plan.clocks_are_fair()),
            shares: shares::Shares::new(plan.clocks_are_fair()),
            limits: limits::Limits::default(),
            partitions: partitions::Partitions::new(plan.clocks_are_fair()),
            state: state::State::default(),
            stopping: stopping::Stopping::default(),
            timers: timers::Timers::new(plan.clocks_are_fair()),
            watches: watches::Watches::new(plan.watch_capacity),
        }
    }

    /// The next timestamp for the history. All are different, in the order in which things happen.
    pub(crate) fn next_timestamp(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// I1 and I2, from the view of clients.
    pub(crate) fn linearizable(&self) -> Result<(), Violation> {
        match self.history.check() {
            Verdict::Linearizable(_) => Ok(()),
            Verdict::Not(anomaly) => Err(Violation::new("I1 I2 linearizable", anomaly.to_string())),
            Verdict::Undecided(path) => {
                Err(Violation::new("I1 I2 linearizable", format!("{path} was not decided")))
            }
        }
    }

    /// A client has taken an item from a queue.
    pub(crate) fn taken(&mut self, item: &Rc<Item>, session: SessionId) -> Result<(), Violation> {
        let Checks { queues, oracle, sessions, .. } = self;
        queues.taken(oracle, item, session, |session| sessions.is_forced(session))
    }

    /// A client has taken a fire of a timer, to run it.
    pub(crate) fn runs(&mut self, run: &Rc<Run>, session: SessionId) -> Result<(), Violation> {
        let Checks { timers, sessions, .. } = self;
        timers.runs(run, session, |session| sessions.is_forced(session))
    }

    /// A client has acquired a lock.
    pub(crate) fn acquired(
        &mut self,
        lock: &str,
        guard: &Rc<LockGuard>,
        session: SessionId,
        place: usize,
    ) -> Result<(), Violation> {
        let forced = self.sessions.is_forced(session);
        self.locks.acquired(lock, guard, session, place, forced)?;
        self.locks.check(|session| self.sessions.is_forced(session))
    }
}
