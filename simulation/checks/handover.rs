//! Planned closes: how long writes wait where writers never pause and nothing else goes wrong.

use super::{Violation, require};
use crate::simulation::clock::Nanos;
use crate::simulation::plan::Plan;

#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// When any write was last acknowledged.
    last: Nanos,
    /// When an instance was asked to close, until the next write is acknowledged.
    closing: Option<Nanos>,
    /// The instance that was stopped last.
    stopped: Option<usize>,
    /// Whether all were stopped.
    all_stopped: bool,
}

impl Handover {
    /// An instance is asked to close.
    pub(crate) fn closes(&mut self, place: usize, now: Nanos) {
        (self.closing, self.stopped) = (Some(now), Some(place));
    }

    /// All instances are asked to close.
    pub(crate) fn all_close(&mut self) {
        (self.closing, self.all_stopped) = (None, true);
    }

    /// What was stopped serves again.
    pub(crate) fn is_back(&mut self) {
        (self.stopped, self.all_stopped) = (None, false);
    }

    pub(crate) fn is_stopped(&self, place: usize) -> bool {
        self.all_stopped || self.stopped == Some(place)
    }

    /// M3: the first write after a close comes soon after the last one before it.
    pub(crate) fn acknowledged(&mut self, now: Nanos, plan: &Plan) -> Result<(), Violation> {
        let last = std::mem::replace(&mut self.last, now);
        let Some(closing) = self.closing.filter(|closing| *closing < now) else {
            return Ok(());
        };
        self.closing = None;
        let gap = now - last.max(closing);
        require(gap <= plan.handover(), "M3 a planned close is short", || {
            format!("no write was done for {gap} ns, of {} ns at most", plan.handover())
        })
    }
}
