//! The attempts of a transaction: when it is tried again, and when it gives up.
//!
//! After a conflict at a znode, the transactions of one instance take turns there, in the order in which they came
//! ([`Turns`](crate::runtime::turns::Turns)). One that has read such a znode waits for its turn too, before it sends
//! anything. So within an instance they do not conflict, and each gets its turn. If an instance elsewhere was faster,
//! the one with the turn waits for a random time, and its instance pauses after each few of its next turns, so that
//! other instances, whose replicas are a little behind, are not always too late.

use std::sync::Arc;
use std::time::Duration;

use crate::api::session::Session;
use crate::api::transaction::Transaction;
use crate::runtime::either::{Either, either};
use crate::runtime::entropy;
use crate::runtime::turns::Turn;
use crate::types::error::{Error, Result};
use crate::types::znode::Condition;

/// After a conflict with another instance, a transaction waits for a random time below this, and below this many times
/// what the attempt took. Longer waits do not help against an instance that is always a little faster: that one has to
/// pause.
const WAIT: (Duration, u32) = (Duration::from_millis(1), 2);
/// The same for the pause of a turn after others were overtaken.
const PAUSE: (Duration, u32) = (Duration::from_millis(3), 4);
/// How long it waits for its turn. The one with the turn may be in a closure that takes long, or may wait for this
/// one.
const TURN_WAIT_MAX: Duration = Duration::from_millis(500);

pub(crate) struct Attempts<'a> {
    session: &'a Session,
    /// How many attempts have failed.
    failed: u32,
    turn: Option<Turn>,
    /// The longest time to wait before the next attempt.
    wait: Duration,
    /// Whether the turn has not come yet.
    must_wait: bool,
    /// When the present attempt began.
    began: Duration,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(session: &'a Session) -> Attempts<'a> {
        let (failed, turn, wait, must_wait) = (0, None, Duration::ZERO, false);
        let began = session.shared().clock.now();
        Attempts { session, failed, turn, wait, must_wait, began }
    }

    /// Whether the next attempt can begin without a wait.
    pub(crate) fn is_ready(&self) -> bool {
        !self.must_wait && self.wait.is_zero()
    }

    /// Waits until the next attempt may begin.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        if std::mem::take(&mut self.must_wait)
            && let Some(turn) = &self.turn
        {
            let limit = self.session.sleep(TURN_WAIT_MAX.min(self.wait_max()));
            if let Either::Other(slept) = either(turn.come(), limit).await {
                slept?;
            }
            if let Some(took) = turn.yields() {
                self.wait = self.wait.max(longest(PAUSE, took));
            }
        }
        let wait = std::mem::take(&mut self.wait).min(self.wait_max());
        if !wait.is_zero() {
            let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
            let time = Duration::from_nanos(entropy::number()? % wait);
            self.session.sleep(time).await?;
        }
        self.began = self.session.shared().clock.now();
        Ok(())
    }

    /// A caller that waits for less than the request timeout gets no [`Error::Timeout`].
    fn wait_max(&self) -> Duration {
        self.session.shared().limits.request_timeout / 4
    }

    /// Whether a transaction with these reads may be sent now. If not, it waits for its turn and runs again.
    pub(crate) fn may_send(&mut self, reads: &[(String, Condition)]) -> bool {
        if self.turn.is_some() {
            return true;
        }
        let turns = &self.session.shared().turns;
        let paths = reads.iter().map(|(path, _)| self.session.root.full(path));
        let taken = paths.into_iter().find(|path| turns.is_contended(path));
        let Some(path) = taken.map(|path| path.into_owned()) else { return true };
        self.turn = Some(turns.ask(path));
        self.must_wait = true;
        false
    }

    /// Another write of the znode at this path came first.
    ///
    /// # Errors
    /// [`Error::Conflict`] after the last attempt.
    pub(crate) fn overtaken(&mut self, path: String) -> Result<()> {
        self.failed += 1;
        if self.failed >= Transaction::ATTEMPTS_MAX {
            return Err(Error::Conflict { path, attempts: self.failed });
        }
        let path = self.session.root.full(&path).into_owned();
        let took = self.session.shared().clock.now().saturating_sub(self.began);
        if self.turn.is_some() {
            self.wait = longest(WAIT, took);
        }
        match &self.turn {
            Some(turn) if turn.path() == path => turn.was_overtaken(took),
            // Another znode, or the first conflict. Nobody waits for one turn while it has another.
            _ => {
                self.turn = None;
                self.turn = Some(Arc::clone(&self.session.shared().turns).ask(path));
                self.must_wait = true;
            }
        }
        Ok(())
    }
}

/// The longest of the random times after an attempt that took this long.
fn longest((least, times): (Duration, u32), took: Duration) -> Duration {
    least.max(took.saturating_mul(times))
}
