//! Timers that fire once in the cluster.
//!
//! ```text
//! /schedule       what the caller names
//!   report        a timer: its definition
//!     next        its next time, in nanoseconds of the log's time
//!     history     its last fires
//!     asked       a fire is asked for
//!     run         a fire that was taken and is not done
//!     runner      an ephemeral of the session that runs it: its token
//! ```
//!
//! `claim` has the write that claims a fire, `timer` computes times, `log_time` estimates when to try, and `table` is what
//! operators see.

mod claim;
mod fire;
mod log_time;
mod table;
mod timer;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::api::multi::Multi;
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::codec::{Codec, Postcard};
use crate::recipes::errors::{children_or_none, if_exists, unless_overtaken};
use crate::recipes::parents::Parents;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{Condition, CreateMode};

use claim::Seen;
pub use fire::{Fire, PastFire, Run};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use fire::{FireHistory, StoredFire};
use log_time::{LogTime, written};
pub(super) use table::{is_timer, table};
#[cfg(any(test, feature = "simulator"))]
pub(crate) use timer::IN_TIME;
pub use timer::{Missed, Timer};
use timer::{NEVER, time};

pub(crate) const NEXT: &str = "next";
pub(crate) const HISTORY: &str = "history";
const ASKED: &str = "asked";
const RUN: &str = "run";
const RUNNER: &str = "runner";

/// Timers that fire once in the cluster, however many instances run it.
///
/// [`Schedule::set`] gives a [`Timer`] a name. Any number of instances wait for the next fire, in one of two ways, and
/// one of them gets it:
///
/// - [`Schedule::fire`] hands work over **in the write that claims the fire**: it puts an item into a
///   [`Queue`](super::Queue), or does any other operations. The work is there exactly once.
/// - [`Schedule::take`] returns a [`Run`], which this instance carries out under a fencing token. If its session ends,
///   another instance runs it again under a new token: it runs at least once, and what it writes by
///   [`Held::fenced`](super::Held::fenced) and [`Run::done_part`] has effect only while it holds the token. A timer does
///   not fire while its last fire runs.
///
/// Call one of them in a loop on each instance. There is no thread of its own, and nothing fires while no instance
/// waits: [`Timer::missed`] says what is done about that afterwards.
///
/// **What is promised.** Each time of a timer fires at most once, and not before the log's time has reached it. With
/// [`Missed::All`], none is left out. Times are those of the log, which the leader's clock moves on
/// ([the cluster's time](crate::guide::limits#the-clusters-time)): a leader whose wall clock is ahead
/// fires early, one whose clock is behind fires late. The log's time never goes back, so a clock that is set back makes
/// nothing fire twice. While instances wait and the cluster answers, a fire is late by a write and a twentieth of a second,
/// and in rare cases, when a leader's clock was just set, by some seconds.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use quorate::recipes::{Missed, Queue, Schedule, Timer};
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let (schedule, mails) = (Schedule::new(&session, "/schedule")?, Queue::new(&session, "/mails")?);
/// // Every instance may do this at its start.
/// mails.prepare().wait()?;
/// schedule.set("report", &Timer::every(Duration::from_secs(3600))?.missed(Missed::Skip)).wait()?;
/// schedule.set("launch", &Timer::at(UNIX_EPOCH)?.data("now")).wait()?;
///
/// // In a loop, on each instance: who claims a fire puts its mail, in one write.
/// let fire = schedule.fire(|fire, multi| multi.with(&mails.put_part(fire.timer()))).wait()?;
/// assert_eq!((fire.timer(), fire.data()), ("launch", &b"now"[..]));
/// assert_eq!(mails.pop().wait()?, b"launch");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    session: Session,
    path: String,
    log_time: Arc<LogTime>,
}

/// A timer and its state: see [`Schedule::get`].
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::{Schedule, Timer};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let schedule = Schedule::new(&session, "/schedule")?;
/// let timer = Timer::every(Duration::from_secs(60))?;
/// schedule.set("sweep", &timer).wait()?;
/// let state = schedule.get("sweep").wait()?.expect("it is there");
/// assert_eq!((state.timer, state.is_paused, state.is_running), (timer, false, false));
/// assert!(state.next.is_some() && state.history.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimerState {
    /// What was set.
    pub timer: Timer,
    /// Whether it is paused: [`Schedule::pause`].
    pub is_paused: bool,
    /// When it fires next; `None` if it does not fire any more.
    pub next: Option<SystemTime>,
    /// Whether a fire was taken and is not done yet.
    pub is_running: bool,
    /// The last fires, at most 16, the oldest first.
    pub history: Vec<PastFire>,
}

/// The data of a timer's znode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Definition {
    timer: Timer,
    paused: bool,
}

impl Schedule {
    /// Returns the schedule at this path. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(session: &Session, path: &str) -> Result<Schedule> {
        path::validate(path)?;
        let (session, path) = (session.for_recipe(), path.to_owned());
        Ok(Schedule { session, path, log_time: Arc::default() })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Waits for the next fire, and hands its work over in the write that claims it: with the operations that
    /// `hand_over` adds to the multi. Returns what has fired. Waits until then, for as long as the session lives;
    /// with a timeout, a fire whose write is in flight by then may still happen, with its work.
    ///
    /// `hand_over` is called for each attempt, and most attempts are those of instances that come too late: it must
    /// have no other effects. Recipes give their parts for it, as [`Queue::put_part`](super::Queue::put_part).
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::Multi`] with the index of the operation
    /// among those of `hand_over` that failed; the errors of [`Session::create`], except [`Error::Timeout`]. After an
    /// error the timer has not fired, except that its outcome may be unknown ([`Error::is_outcome_unknown`]): call it
    /// again.
    ///
    /// ```
    /// use std::time::UNIX_EPOCH;
    /// use quorate::{CreateMode, recipes::{Schedule, Timer}};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("close", &Timer::at(UNIX_EPOCH)?).wait()?;
    /// schedule.fire(|_, multi| multi.create("/closed", b"", CreateMode::Persistent)).wait()?;
    /// assert!(session.exists("/closed").wait()?.is_some());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fire<'a>(
        &'a self,
        hand_over: impl for<'m> FnMut(&Fire, Multi<'m>) -> Multi<'m> + Send + 'a,
    ) -> Pending<'a, Fire> {
        self.session().steps("fire", self.path(), self.firing(hand_over)).unlimited().unknown()
    }

    /// Takes the next fire, to run it on this instance: a fire that is due, or one whose runner was lost. Waits until
    /// then, for as long as the session lives.
    ///
    /// # Errors
    /// The errors of a session that is over; the errors of [`Session::create`], except [`Error::Timeout`].
    ///
    /// ```
    /// use std::time::UNIX_EPOCH;
    /// use quorate::recipes::{Schedule, Timer};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("sweep", &Timer::at(UNIX_EPOCH)?).wait()?;
    /// let run = schedule.take().wait()?;
    /// let token = run.fencing_token();
    /// drop(run);
    /// let again = schedule.take().wait()?;
    /// assert!(again.fire().number() == 1 && again.fencing_token() > token);
    /// again.done().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn take(&self) -> Pending<'_, Run> {
        self.session().steps("take", self.path(), self.taking()).unlimited()
    }

    /// Sets a timer with this name, or changes it. Returns whether it did: the same timer again is no change, so all
    /// instances may set their timers at their start.
    ///
    /// A timer with other times forgets its next one, and fires at the first of its own that comes. It keeps its
    /// history, and stays paused if it is.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] if the name cannot be that of a znode; [`Error::InvalidData`] if there is something
    /// else; [`Error::InvalidSetting`] if this instance does not know the times of a cron expression; otherwise as
    /// [`Session::create`].
    pub fn set<'a>(&'a self, name: &'a str, timer: &'a Timer) -> Pending<'a, bool> {
        self.session().steps("set", self.path(), self.setting(name, timer))
    }

    /// Removes a timer, with its history. Returns whether it was there. A fire of it that runs loses its token.
    ///
    /// # Errors
    /// As [`Session::delete`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::recipes::{Schedule, Timer};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("sweep", &Timer::every(Duration::from_secs(60))?).wait()?;
    /// assert!(schedule.remove("sweep").wait()? && !schedule.remove("sweep").wait()?);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn remove<'a>(&'a self, name: &'a str) -> Pending<'a, bool> {
        self.session().steps("remove", self.path(), self.removing(name))
    }

    /// Pauses a timer: once this has returned, it does not fire before [`Schedule::resume`]. A fire that runs goes
    /// on.
    ///
    /// # Errors
    /// [`Error::NoNode`] if there is no such timer; [`Error::InvalidData`] if there is something else; otherwise as
    /// [`Session::set`].
    pub fn pause<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        self.session().steps("pause", self.path(), self.pausing(name, true))
    }

    /// Lets a paused timer fire again. What it has missed meanwhile is up to [`Timer::missed`].
    ///
    /// # Errors
    /// As [`Schedule::pause`].
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use quorate::recipes::{Schedule, Timer};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("launch", &Timer::at(UNIX_EPOCH)?).wait()?;
    /// schedule.pause("launch").wait()?;
    /// assert!(schedule.take().timeout(Duration::from_millis(10)).wait().is_err());
    /// schedule.resume("launch").wait()?;
    /// schedule.take().wait()?.done().wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn resume<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        self.session().steps("resume", self.path(), self.pausing(name, false))
    }

    /// Lets a timer fire once more, now, even if it is paused. Its own times stay as they are. If that is asked for
    /// again before an instance has claimed the fire, it fires once.
    ///
    /// # Errors
    /// [`Error::NoNode`] if there is no such timer; otherwise as [`Session::create`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::recipes::{Schedule, Timer};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("backup", &Timer::every(Duration::from_secs(86_400))?).wait()?;
    /// schedule.fire_now("backup").wait()?;
    /// assert!(schedule.take().wait()?.fire().is_requested());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fire_now<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        self.session().steps("fire_now", self.path(), self.asking(name))
    }

    /// Returns a timer and its state, as this replica has it; `None` if there is none.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::InvalidData`] if there is something else.
    pub fn get<'a>(&'a self, name: &'a str) -> Pending<'a, Option<TimerState>> {
        self.session().steps("get", self.path(), self.getting(name))
    }

    /// Returns the names of all timers, sorted, as this replica has them.
    ///
    /// # Errors
    /// The errors of a session that is over.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::recipes::{Schedule, Timer};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("sweep", &Timer::every(Duration::from_secs(60))?).wait()?;
    /// assert_eq!(schedule.names().wait()?, ["sweep"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn names(&self) -> Pending<'_, Vec<String>> {
        self.session().steps("names", self.path(), self.naming())
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    fn now(&self) -> Duration {
        self.session.shared().clock.now()
    }

    fn timer_path(&self, name: &str) -> String {
        path::join(&self.path, name)
    }

    /// The path of a znode that belongs to a timer.
    fn part(&self, name: &str, part: &str) -> String {
        path::join(&self.timer_path(name), part)
    }

    /// The path of a timer with this name, which anybody may have chosen.
    fn checked(&self, name: &str) -> Result<String> {
        let path = self.timer_path(name);
        if name.contains('/') {
            let reason = "a timer's name is that of one znode".into();
            return Err(Error::InvalidPath { path, reason });
        }
        path::validate(&path)?;
        Ok(path)
    }

    fn encoded<T>(&self, value: &T) -> Result<Vec<u8>>
    where
        Postcard: Codec<T>,
    {
        let invalid = |reason| Error::InvalidData { path: self.path.clone(), reason };
        Postcard::encode(value).map_err(invalid)
    }

    /// Makes this znode as a container, and those above it.
    async fn make(&self, path: &str) -> Result<()> {
        let mut parents = Parents::of(&self.session, path);
        // Where that is not free, the first call does not look.
        parents.make().await?;
        parents.make().await
    }

    /// Reads a timer, with all writes before this call. `None` if there is none.
    async fn known(&self, name: &str, path: &str) -> Result<Option<Seen>> {
        self.session.sync().await?;
        let snapshot = if_exists(self.session.in_turn().snapshot_of(path).await)?;
        snapshot.map_or(Ok(None), |snapshot| self.read(&snapshot, name, path))
    }

    fn read(&self, snapshot: &Snapshot, name: &str, path: &str) -> Result<Option<Seen>> {
        let seen = self.seen(snapshot, name)?;
        if seen.is_none() && if_exists(snapshot.get(path))?.is_some() {
            let reason = "it is no timer that this version knows".to_owned();
            return Err(Error::InvalidData { path: path.to_owned(), reason });
        }
        Ok(seen)
    }

    async fn setting(&self, name: &str, timer: &Timer) -> Result<bool> {
        let path = self.checked(name)?;
        let [next, history] = [NEXT, HISTORY].map(|part| self.part(name, part));
        let later = i64::MAX.to_be_bytes();
        loop {
            let seen = self.known(name, &path).await?;
            let multi = self.session.multi();
            // What is written, beside the next time.
            let (start, next_is) = match &seen {
                Some(seen) if seen.definition.timer == *timer => return Ok(false),
                Some(seen) => {
                    let paused = seen.definition.paused;
                    let definition = Definition { timer: timer.clone(), paused };
                    let multi = multi
                        .require(&path, Condition::Mzxid(seen.defined))
                        .require(&next, Condition::Mzxid(seen.moved))
                        .set(&path, self.encoded(&definition)?);
                    (multi, (seen.definition.timer.when == timer.when).then_some(seen.next))
                }
                None => {
                    self.make(&self.path).await?;
                    let definition = Definition { timer: timer.clone(), paused: false };
                    let definition = self.encoded(&definition)?;
                    let multi = multi
                        .create(&path, definition, CreateMode::Persistent)
                        .create(&next, later, CreateMode::Persistent)
                        .create(
                            &history,
                            self.encoded(&fire::FireHistory::default())?,
                            CreateMode::Persistent,
                        );
                    (multi, None)
                }
            };
            let first = match next_is {
                Some(next) => next,
                None => {
                    let multi = match &seen {
                        Some(_) => self.session.multi().set(&next, later),
                        None => {
                            let multi = self.session.multi();
                            let multi = multi.create(&path, b"", CreateMode::Persistent);
                            multi.create(&next, later, CreateMode::Persistent)
                        }
                    };
                    let now = self.log_time.ask(&self.session, multi, &next).await?;
                    let Some(now) = now else { continue };
                    let fired = seen.as_ref().and_then(|seen| seen.history.due);
                    timer.first(now, fired).ok_or_else(|| {
                        let reason = "this instance lacks the feature `cron`, or does not know the time zone";
                        Error::InvalidSetting { setting: "cron", reason: reason.to_owned() }
                    })?
                }
            };
            let set = start.set(&next, written(first)).commit().await;
            if unless_overtaken(set)?.is_some() {
                return Ok(true);
            }
        }
    }

    async fn removing(&self, name: &str) -> Result<bool> {
        let path = self.checked(name)?;
        Ok(if_exists(self.session.delete_recursive(&path).await)?.is_some())
    }

    async fn pausing(&self, name: &str, paused: bool) -> Result<()> {
        let path = self.checked(name)?;
        loop {
            let seen = self.known(name, &path).await?;
            let seen = seen.ok_or_else(|| Error::NoNode { path: path.clone() })?;
            if seen.definition.paused == paused {
                return Ok(());
            }
            let definition = Definition { paused, ..seen.definition };
            let multi = self.session.multi().require(&path, Condition::Mzxid(seen.defined));
            let set = multi.set(&path, self.encoded(&definition)?).commit();
            if unless_overtaken(set.await)?.is_some() {
                return Ok(());
            }
        }
    }

    async fn asking(&self, name: &str) -> Result<()> {
        self.checked(name)?;
        let asked = self.part(name, ASKED);
        match self.session.create(&asked, b"", CreateMode::Persistent).await {
            Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn getting(&self, name: &str) -> Result<Option<TimerState>> {
        let path = self.checked(name)?;
        let Some(snapshot) = if_exists(self.session.snapshot_of(&path).await)? else {
            return Ok(None);
        };
        let Some(seen) = self.read(&snapshot, name, &path)? else { return Ok(None) };
        let at = i64::try_from(seen.fired.mtime).unwrap_or(NEVER);
        Ok(Some(TimerState {
            timer: seen.definition.timer,
            is_paused: seen.definition.paused,
            next: (seen.next != NEVER).then(|| time(seen.next)),
            is_running: seen.running.is_some(),
            history: seen.history.public(at),
        }))
    }

    async fn naming(&self) -> Result<Vec<String>> {
        children_or_none(self.session.in_turn().children(&self.path).await)
    }
}

/// Reads arbitrary bytes as what a timer stores, and as a cron expression and a time zone, a line each.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Ok(history) = <Postcard as Codec<fire::FireHistory>>::decode(bytes) {
        let (history, fire) = history.with((0, 0, false), 0);
        assert_eq!(history.public(0).last().map(|last| last.number), Some(fire.number));
    }
    if let Some((next, rest)) = bytes.split_first_chunk::<8>()
        && let Ok(Definition { timer, .. }) = Postcard::decode(rest)
    {
        let next = i64::from_be_bytes(*next) / 1_000_000;
        for now in [0, next, NEVER] {
            let _ = timer.first(now, Some(next));
            let _ = timer.plan(next, now);
        }
    }
    #[cfg(feature = "cron")]
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some((expression, zone)) = text.split_once('\n')
        && let Ok(timer) = Timer::cron(expression, zone)
    {
        let times: Vec<SystemTime> = timer.upcoming(SystemTime::UNIX_EPOCH).take(4).collect();
        assert!(times.windows(2).all(|two| two[0] < two[1]), "{text:?} fires at {times:?}");
    }
}
