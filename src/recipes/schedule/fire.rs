//! A fire, its run under a fencing token, and what is kept of the last fires.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::timer::time;
use crate::api::multi::Multi;
use crate::api::part::Part;
#[cfg(any(test, feature = "simulator"))]
use crate::recipes::codec::{Codec, Postcard};
use crate::recipes::errors::inner;
use crate::recipes::held::{Held, guard};
use crate::runtime::pending::Pending;
#[cfg(doc)]
use crate::types::error::Error;
use crate::types::error::Result;

/// So many fires are kept.
const KEPT: usize = 16;

/// One fire of a timer: see [`Schedule`](super::Schedule).
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use quorate::recipes::{Schedule, Timer};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let schedule = Schedule::new(&session, "/schedule")?;
/// let time = UNIX_EPOCH + Duration::from_secs(7);
/// schedule.set("report", &Timer::at(time)?.data("weekly")).wait()?;
/// let fire = schedule.fire(|_, multi| multi).wait()?;
/// assert_eq!((fire.timer(), fire.due(), fire.data()), ("report", time, &b"weekly"[..]));
/// assert_eq!((fire.number(), fire.since(), fire.is_requested()), (1, time, false));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fire {
    pub(super) timer: String,
    pub(super) past: StoredFire,
    pub(super) data: Vec<u8>,
}

/// A fire in the history of a timer: see [`TimerState`](super::TimerState).
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use quorate::recipes::{Schedule, Timer};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let schedule = Schedule::new(&session, "/schedule")?;
/// let time = UNIX_EPOCH + Duration::from_secs(7);
/// schedule.set("report", &Timer::at(time)?).wait()?;
/// schedule.fire(|_, multi| multi).wait()?;
/// let state = schedule.get("report").wait()?.expect("it is there");
/// let fired = &state.history[0];
/// assert!(fired.due == time && fired.at > time, "it was late");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastFire {
    /// See [`Fire::number`].
    pub number: u64,
    /// See [`Fire::due`].
    pub due: SystemTime,
    /// See [`Fire::since`].
    pub since: SystemTime,
    /// When it fired, by the log's time.
    pub at: SystemTime,
    /// See [`Fire::is_requested`].
    pub is_requested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredFire {
    pub(crate) number: u64,
    pub(crate) due: i64,
    pub(crate) since: i64,
    pub(crate) requested: bool,
    /// When it fired; unknown for the last one, whose time is that of the znode.
    at: i64,
}

/// The data of a timer's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FireHistory {
    /// The last time that it fired for, other than by request.
    pub(super) due: Option<i64>,
    /// The oldest first.
    pub(crate) last: Vec<StoredFire>,
}

impl FireHistory {
    /// For checks.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn decoded(data: &[u8]) -> Option<FireHistory> {
        Postcard::decode(data).ok()
    }

    /// The history with one more fire. `at`: when the last one fired.
    pub(super) fn with(
        &self,
        (due, since, requested): (i64, i64, bool),
        at: i64,
    ) -> (FireHistory, StoredFire) {
        let mut history = self.clone();
        let mut number = 1;
        if let Some(last) = history.last.last_mut() {
            last.at = at;
            number = last.number.saturating_add(1);
        }
        let past = StoredFire { number, due, since, requested, at: 0 };
        history.last.push(past);
        let spare = history.last.len().saturating_sub(KEPT);
        history.last.drain(..spare);
        if !requested {
            history.due = Some(due);
        }
        (history, past)
    }

    /// All of them, with the time of the last one.
    pub(super) fn public(&self, at: i64) -> Vec<PastFire> {
        let public = |past: &StoredFire, at| PastFire {
            number: past.number,
            due: time(past.due),
            since: time(past.since),
            at: time(at),
            is_requested: past.requested,
        };
        let Some((last, before)) = self.last.split_last() else { return Vec::new() };
        let before = before.iter().map(|past| public(past, past.at));
        before.chain([public(last, at)]).collect()
    }
}

impl Fire {
    /// The timer's name.
    pub fn timer(&self) -> &str {
        &self.timer
    }

    /// The number of this fire among those of the timer, from 1 on. With the timer's name, it is a key of the fire.
    pub fn number(&self) -> u64 {
        self.past.number
    }

    /// The time that it fires for. Of a fire by request, when it was asked for, by the log's time.
    pub fn due(&self) -> SystemTime {
        time(self.past.due)
    }

    /// The first of the times that it fires for: earlier than [`Fire::due`] if it makes up for several that were missed
    /// ([`Missed::Once`](super::Missed::Once)).
    pub fn since(&self) -> SystemTime {
        time(self.past.since)
    }

    /// Whether it fires by [`Schedule::fire_now`](super::Schedule::fire_now), beside the timer's own times.
    pub fn is_requested(&self) -> bool {
        self.past.requested
    }

    /// The timer's data.
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}

/// A fire that this instance runs, until it calls [`Run::done`], drops it, or the session is over. In the last two cases
/// it runs again, on any instance, under a new token. It dereferences to [`Held`]: the claim of this instance.
///
/// ```
/// use std::time::UNIX_EPOCH;
/// use quorate::{CreateMode, recipes::{Schedule, Timer}};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/reports", b"0", CreateMode::Persistent).wait()?;
/// let schedule = Schedule::new(&session, "/schedule")?;
/// schedule.set("report", &Timer::at(UNIX_EPOCH)?).wait()?;
/// let run = schedule.take().wait()?;
/// assert!(run.is_held());
/// println!("{} runs with token {}", run.fire().timer(), run.fencing_token());
/// // The result and the end of the run, both or neither: the result is there exactly once.
/// session.multi().set("/reports", b"1").with(&run.done_part()).commit().wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, it runs again"]
pub struct Run {
    claim: Held,
    fire: Fire,
    /// The path of the znode that lasts until the fire is done.
    record: String,
}

guard!(Run, claim: Held);

impl Run {
    pub(super) fn new(claim: Held, fire: Fire, record: String) -> Run {
        Run { claim, fire, record }
    }

    /// What runs.
    pub fn fire(&self) -> &Fire {
        &self.fire
    }

    /// Finishes the run: it does not run again.
    ///
    /// # Errors
    /// [`Error::NoNode`] or [`Error::Unmet`] if the run was lost, or somebody has removed the timer; the errors of a
    /// session that is over, after which it runs again elsewhere; the errors of
    /// [`Session::create`](crate::Session::create), after which it runs again. After [`Error::Timeout`] the end is
    /// still in flight, and it is not known whether it runs again.
    pub fn done(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("done", &path, self.finishing())
    }

    async fn finishing(self) -> Result<()> {
        inner(self.end().commit().await)?;
        self.claim.ephemeral.forget();
        Ok(())
    }

    /// [`Run::done`] as a part of another write, which has no effect if the run was lost: see [`Part`]. So what is written
    /// with it is written once, however often the fire runs. Once that write is committed, drop the run.
    ///
    /// ```
    /// use std::time::UNIX_EPOCH;
    /// use quorate::{CreateMode, recipes::{Schedule, Timer}};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("report", &Timer::at(UNIX_EPOCH)?).wait()?;
    /// let run = schedule.take().wait()?;
    /// let result = session.multi().create("/report", b"ok", CreateMode::Persistent);
    /// result.with(&run.done_part()).commit().wait()?;
    /// drop(run);
    /// assert!(!schedule.get("report").wait()?.expect("it is there").is_running);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn done_part(&self) -> Part {
        Part::of(Ok(self.end()))
    }

    fn end(&self) -> Multi<'_> {
        self.claim.ephemeral.leave_in(self.claim.session().multi()).delete(&self.record)
    }
}
