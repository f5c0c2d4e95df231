//! What the disk does of itself: the store's deferred work, the room on the disk, and what was written long ago.

use std::time::Duration;

use super::reports::Reports;
use super::writer::StoreCall;
use crate::node::io::{Input, Time};
use crate::storage::{LogStore, Rot, Space, StorageError};

/// How long there must be nothing to write before the store does its deferred work.
pub(super) const REST_AFTER: Duration = Duration::from_millis(5);

/// How often the room on the disk is measured.
pub(super) const SPACE_PERIOD: Duration = Duration::from_secs(1);

/// The duration of a round through all pieces of the log and of the checkpoint, in seconds.
const SCRUB_ROUND: u64 = 24 * 60 * 60;
/// The shortest pause between two pieces, of a few MiB each, in seconds.
const SCRUB_PAUSE: u64 = 4;
/// The pause before the first piece, and if there is nothing to verify.
pub(super) const SCRUB_AGAIN: Duration = Duration::from_secs(60);

/// When the store does its deferred work, when the room is measured, and when the next piece is verified.
pub(super) struct Upkeep {
    /// Whether something was written since the store last did its deferred work, and when it does.
    pub(super) busy: bool,
    rest_at: Option<Time>,
    /// When the room on the disk is measured, and the last result.
    space_at: Time,
    space: Option<Space>,
    log_space: Option<Space>,
    /// When the next piece is verified. `None`: a pause of this length begins.
    scrub_at: Option<Time>,
    scrub_pause: Duration,
}

impl Upkeep {
    pub(super) fn new(now: Time) -> Upkeep {
        let (space, log_space, rest_at, scrub_at) = (None, None, None, None);
        let (busy, space_at, scrub_pause) = (false, now, SCRUB_AGAIN);
        Upkeep { busy, rest_at, space_at, space, log_space, scrub_at, scrub_pause }
    }

    /// Measures the room if that is due, whatever else there is to do. Otherwise, until when to wait at most.
    pub(super) fn first(&mut self, now: Time) -> Result<StoreCall, Time> {
        if now < self.space_at {
            return Err(self.space_at);
        }
        self.space_at = now + SPACE_PERIOD;
        Ok(StoreCall::Space)
    }

    /// There is something else to do.
    pub(super) fn interrupt(&mut self) {
        self.rest_at = None;
    }

    /// What is due while there is nothing else to do. Otherwise, until when to wait.
    pub(super) fn next(&mut self, now: Time) -> Result<StoreCall, Time> {
        let scrub_at = *self.scrub_at.get_or_insert(now + self.scrub_pause);
        if now >= scrub_at {
            return Ok(StoreCall::Scrub);
        }
        let until = self.space_at.min(scrub_at);
        if !self.busy {
            return Err(until);
        }
        let rest_at = *self.rest_at.get_or_insert(now + REST_AFTER);
        if now >= rest_at { Ok(StoreCall::Idle) } else { Err(until.min(rest_at)) }
    }

    /// Measures the room on the disk, and reports it if it has changed.
    pub(super) fn measure(&mut self, store: &dyn LogStore, reports: &Reports) {
        let space = store.space();
        if let Some(Space { free, total }) = space
            && space != self.space
        {
            reports.send(Input::DiskSpace { free, total });
        }
        self.space = space.or(self.space);
        let log_space = store.log_space();
        if let Some(Space { free, total }) = log_space
            && log_space != self.log_space
        {
            reports.send(Input::LogSpace { free, total });
        }
        self.log_space = log_space.or(self.log_space);
    }

    /// Verifies the next piece of the log or of the checkpoint, perhaps on another thread.
    pub(super) fn scrub(
        &mut self,
        store: &mut dyn LogStore,
        reports: Reports,
    ) -> Result<(), StorageError> {
        let found = move |rot: Option<Rot>| {
            if let Some(rot) = rot {
                reports.rotten(rot);
            }
        };
        let pieces = store.scrub(Box::new(found))?;
        self.scrub_at = None;
        self.scrub_pause = match SCRUB_ROUND.checked_div(pieces) {
            Some(pause) => Duration::from_secs(pause.max(SCRUB_PAUSE)),
            None => SCRUB_AGAIN,
        };
        Ok(())
    }
}
