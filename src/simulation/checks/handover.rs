//! Planned closes: for how long nobody can write, where writers never pause and nothing else goes wrong.

use super::{Violation, require};
use crate::simulation::clock::Nanos;
use crate::simulation::plan::Plan;

#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// When a write was last acknowledged, to whomever.
    last: Nanos,
    /// When an instance was asked to close, until a write is acknowledged after that.
    closing: Option<Nanos>,
    /// The instance that was stopped last.
    stopped: Option<usize>,
}

impl Handover {
    /// An instance is asked to close.
    pub(crate) fn closes(&mut self, place: usize, now: Nanos) {
        (self.closing, self.stopped) = (Some(now), Some(place));
    }

    /// The instance that was stopped serves again.
    pub(crate) fn is_back(&mut self) {
        self.stopped = None;
    }

    pub(crate) fn is_stopped(&self, place: usize) -> bool {
        self.stopped == Some(place)
    }

    /// M3: a write is done soon after the last one before a close.
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
