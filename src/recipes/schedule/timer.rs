//! When a timer fires, and what is done about fires that were missed. Nothing here reads a clock.
//!
//! Times are milliseconds since the Unix epoch, as the log's time is.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::types::error::{Error, Result};
use crate::types::moment::utc;

/// No time of the log: the last one that nanoseconds in a znode can show, in the year 2262.
pub(crate) const NEVER: i64 = i64::MAX / 1_000_000;
/// A fire that is this late is still in time.
pub(crate) const IN_TIME: i64 = 10_000;
/// Up to this many seconds, croner finds the end of what clocks leave out.
#[cfg(feature = "cron")]
const GAP_MAX: i32 = 2 * 3600;
/// How many changes of the clocks are looked through for a larger gap: those of decades.
#[cfg(feature = "cron")]
const CHANGES_MAX: usize = 256;
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// What to do about fires that were missed: see [`Timer::missed`].
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::{Missed, Timer};
///
/// let timer = Timer::every(Duration::from_secs(60))?;
/// assert_eq!(timer, timer.clone().missed(Missed::Once), "the default");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Missed {
    /// None of them fires. The timer goes on with the next time to come.
    Skip,
    /// The last of them fires, for all.
    #[default]
    Once,
    /// All of them fire, one after the other.
    All,
}

/// When something fires: at an interval, at one time, or by a cron expression.
///
/// A value that says nothing about a cluster: [`Schedule::set`](super::Schedule::set) gives it a name there.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use quorate::recipes::Timer;
///
/// let minute = Duration::from_secs(60);
/// let timer = Timer::every(15 * minute)?;
/// let times: Vec<_> = timer.upcoming(UNIX_EPOCH + 20 * minute).take(2).collect();
/// assert_eq!(times, [UNIX_EPOCH + 30 * minute, UNIX_EPOCH + 45 * minute]);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    pub(super) when: When,
    missed: Missed,
    pub(super) data: Vec<u8>,
    #[serde(default)]
    pub(super) removed_when_over: bool,
}

/// The first two are as builds without the feature `cron` have them, which never fire the third.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum When {
    Every { ms: i64 },
    At { ms: i64 },
    Cron { expression: String, zone: String },
}

/// [`When`], ready to be asked for times.
enum Times {
    Every(i64),
    At(i64),
    #[cfg(feature = "cron")]
    Cron(Box<croner::Cron>, jiff::tz::TimeZone),
    /// Of a cron expression that this build, or its time zone database, does not know.
    Unknown,
}

/// What one write does about a timer whose next time is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FirePlan {
    /// The time that it fires for; `None` if it only skips.
    pub(super) fires: Option<i64>,
    /// The first time that this fire makes up for, if that is another one.
    pub(super) since: Option<i64>,
    /// The write has to come at this time of the log at the earliest, and at this one at the latest.
    pub(super) from: i64,
    pub(super) until: i64,
    /// The next time after it.
    pub(super) following: i64,
}

impl Timer {
    /// Fires at all multiples of an interval, counted from the Unix epoch: every 15 minutes is at the quarters of an
    /// hour, and every day at midnight, UTC.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if it is shorter than a second or longer than 100 years; parts of a millisecond are cut
    /// off.
    pub fn every(interval: Duration) -> Result<Timer> {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        if interval < INTERVAL_MIN || interval > CENTURY {
            let reason = format!("{interval:?} is not between a second and a hundred years");
            return Err(Error::InvalidSetting { setting: "interval", reason });
        }
        Ok(Timer::of(When::Every { ms: millis(interval) }))
    }

    /// Fires at one time. If that is over already, [`Timer::missed`] decides.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if it is before 1970 or after 2261.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use quorate::recipes::Timer;
    ///
    /// let launch = UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    /// let timer = Timer::at(launch)?;
    /// assert_eq!(timer.upcoming(UNIX_EPOCH).collect::<Vec<_>>(), [launch]);
    /// assert!(timer.upcoming(launch).next().is_none(), "after that there is none");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn at(time: SystemTime) -> Result<Timer> {
        match time.duration_since(UNIX_EPOCH).map(millis) {
            Ok(ms) if ms < NEVER - IN_TIME => Ok(Timer::of(When::At { ms })),
            _ => {
                let reason = format!("{time:?} is not between the years 1970 and 2261");
                Err(Error::InvalidSetting { setting: "time", reason })
            }
        }
    }

    /// Fires by a cron expression in a time zone of the IANA database. With the feature `cron`.
    ///
    /// The expression has five fields: minute, hour, day of the month, month and day of the week, as `cron` has them,
    /// with names, lists, ranges and steps, and `L`, `W` and `#` as [the crate `croner`](https://docs.rs/croner)
    /// explains them. If both kinds of days are given, one of them is enough, unless one of the two begins with `*`: then
    /// both must match, as in Vixie's `cron`. `0 0 */2 * MON` fires on Mondays with an odd date. A step that is longer
    /// than its range is refused: `*/90` would fire once an hour.
    ///
    /// It fires when the clocks in that zone show a matching time. With one minute and one hour, it fires once on each of
    /// its days: if the clocks are set forward beyond that time, at the moment at which they are, and if they show it
    /// twice, at the first. On a day that a zone leaves out it does not fire. Others, such as `0 * * * *`, do not fire at times that the clocks leave out, and fire twice
    /// at those that they show twice.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] with what is wrong in the expression, if it has no time at all, or if the zone is unknown
    /// here.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use quorate::recipes::Timer;
    ///
    /// let timer = Timer::cron("0 9 * * MON-FRI", "Europe/Berlin")?;
    /// // 1970 began on a Thursday.
    /// let first = timer.upcoming(UNIX_EPOCH).next();
    /// assert_eq!(first, Some(UNIX_EPOCH + Duration::from_secs(8 * 3600)));
    /// assert!(Timer::cron("0 25 * * *", "UTC").is_err());
    /// assert!(Timer::cron("0 9 30 FEB *", "UTC").is_err(), "there is no such day");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    pub fn cron(expression: &str, zone: &str) -> Result<Timer> {
        let fields = expression.split_whitespace().collect::<Vec<_>>();
        let wrong = |reason: String| Error::InvalidSetting { setting: "cron", reason };
        if fields.len() != 5 || zone.is_empty() || zone.contains(char::is_whitespace) {
            let reason = format!("{expression:?} in {zone:?} is not five fields in one time zone");
            return Err(wrong(reason));
        }
        let expression = fields.join(" ");
        let times = crontab(&expression, zone).map_err(wrong)?;
        if times.after(-1) == NEVER {
            return Err(wrong(format!("{expression:?} has no time: no month has such a day")));
        }
        Ok(Timer::of(When::Cron { expression, zone: zone.to_owned() }))
    }

    fn of(when: When) -> Timer {
        Timer { when, missed: Missed::default(), data: Vec::new(), removed_when_over: false }
    }

    /// What to do about missed fires: those that are more than ten seconds late. Fires are late if no instance ran, if
    /// the timer was paused, if its last fire was still running, or if the cluster had no leader.
    #[must_use]
    pub fn missed(self, missed: Missed) -> Timer {
        Timer { missed, ..self }
    }

    /// Data for each fire: [`Fire::data`](super::Fire::data).
    #[must_use]
    pub fn data(self, data: impl AsRef<[u8]>) -> Timer {
        Timer { data: data.as_ref().to_vec(), ..self }
    }

    /// The timer is removed once it has no further time and its last fire is done: for single times that are set in
    /// great number. An instance removes it when it next waits for a fire, by one write for up to 50 of them.
    ///
    /// With its history goes the memory that it has fired. So set it once: set again, with a time that is over, it fires
    /// again.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use quorate::recipes::{Schedule, Timer};
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let schedule = Schedule::new(&session, "/schedule")?;
    /// schedule.set("mail-17", &Timer::at(UNIX_EPOCH)?.removed_when_over()).wait()?;
    /// schedule.fire(|_, multi| multi).wait()?;
    /// assert!(schedule.fire(|_, multi| multi).timeout(Duration::from_millis(50)).wait().is_err());
    /// assert!(schedule.names().wait()?.is_empty());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn removed_when_over(self) -> Timer {
        Timer { removed_when_over: true, ..self }
    }

    /// The times after this one. A pure function: it knows neither clock nor cluster.
    ///
    /// Of a cron expression there are none if this build lacks the feature `cron`, or does not know the time zone.
    pub fn upcoming(&self, after: SystemTime) -> impl Iterator<Item = SystemTime> + use<> {
        // Before the epoch there are none.
        let after = after.duration_since(UNIX_EPOCH).map_or(-1, millis);
        let times = self.when.times();
        let next = move |time: &i64| Some(times.after(*time)).filter(|time| *time != NEVER);
        std::iter::successors(Some(after), next).skip(1).map(time)
    }

    /// The next time of a timer that is set at this time of the log, and has fired for that one last. `None` if this
    /// instance does not know its times.
    pub(super) fn first(&self, now: i64, fired: Option<i64>) -> Option<i64> {
        match self.when {
            When::At { ms } if fired.is_none_or(|fired| fired < ms) => Some(ms),
            When::At { .. } => Some(NEVER),
            _ => self.when.times().known().map(|times| times.after(now)),
        }
    }

    /// What to do about a timer with this next time, at this time of the log. `None` if this instance does not know its
    /// times: then another one fires it, since this one could not move it on.
    pub(super) fn plan(&self, next: i64, now: i64) -> Option<FirePlan> {
        let times = self.when.times().known()?;
        Some(self.plan_of(&times, next, now))
    }

    fn plan_of(&self, times: &Times, next: i64, now: i64) -> FirePlan {
        let late = next.saturating_add(IN_TIME).min(NEVER);
        let missed = self.missed;
        if now <= late || missed == Missed::All {
            let until = if missed == Missed::All { NEVER } else { late };
            let following = times.after(next);
            return FirePlan { fires: Some(next), since: None, from: next, until, following };
        }
        let from = late + 1;
        if missed == Missed::Skip {
            let following = times.after(now);
            return FirePlan { fires: None, since: None, from, until: NEVER, following };
        }
        let last = times.last(next, now);
        let following = times.after(last);
        let until = following.saturating_add(IN_TIME).min(NEVER);
        let since = (last != next).then_some(next);
        FirePlan { fires: Some(last), since, from: from.max(last), until, following }
    }
}

/// For people: `every 15 min`, `at 2033-05-18 03:33:20 UTC`, `0 9 * * MON-FRI Europe/Berlin`.
impl fmt::Display for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, i64); 5] =
            [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];
        match &self.when {
            When::Every { ms } => {
                let unit = UNITS.iter().find(|(_, unit)| ms % unit == 0);
                let (name, unit) = unit.copied().unwrap_or(("ms", 1));
                write!(f, "every {} {name}", ms / unit)
            }
            When::At { ms } => {
                let at = Duration::from_millis(u64::try_from(*ms).unwrap_or(0));
                write!(f, "at {}", utc(at))
            }
            When::Cron { expression, zone } => write!(f, "{expression} {zone}"),
        }
    }
}

impl When {
    fn times(&self) -> Times {
        match self {
            // At least a second, unless others have written it.
            When::Every { ms } => Times::Every((*ms).max(1)),
            When::At { ms } => Times::At(*ms),
            #[cfg(feature = "cron")]
            When::Cron { expression, zone } => crontab(expression, zone).unwrap_or(Times::Unknown),
            #[cfg(not(feature = "cron"))]
            When::Cron { .. } => Times::Unknown,
        }
    }
}

impl Times {
    fn known(self) -> Option<Times> {
        match self {
            Times::Unknown => None,
            times => Some(times),
        }
    }

    /// The first time after this one.
    fn after(&self, time: i64) -> i64 {
        let next = match self {
            Times::Every(ms) => time.div_euclid(*ms).saturating_add(1).saturating_mul(*ms),
            Times::At(at) if *at > time => *at,
            #[cfg(feature = "cron")]
            Times::Cron(cron, zone) => next_of(cron, zone, time).unwrap_or(NEVER),
            Times::At(_) | Times::Unknown => NEVER,
        };
        next.min(NEVER)
    }

    /// The last time until then, of which `first` is the first.
    fn last(&self, first: i64, until: i64) -> i64 {
        // It is the first moment after which no time comes until then.
        let (mut low, mut high) = (first - 1, until);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.after(middle) <= until {
                low = middle;
            } else {
                high = middle;
            }
        }
        high.max(first)
    }
}

/// The first time of a cron expression after this one, if there is any.
#[cfg(feature = "cron")]
fn next_of(cron: &croner::Cron, zone: &jiff::tz::TimeZone, time: i64) -> Option<i64> {
    let time = jiff::Timestamp::from_millisecond(time).ok()?;
    let mut found = cron.find_next_occurrence(&time.to_zoned(zone.clone()), false);
    // A zone may leave out a day, as Samoa did when it went to the other side of the date line. If the next time would be
    // on that day, croner fails: the next one comes after it.
    let mut changes = zone.following(time).take(CHANGES_MAX);
    while found.is_err()
        && let Some(change) = changes.by_ref().find(|change| {
            let before = change.timestamp().checked_sub(jiff::SignedDuration::from_secs(1));
            let before = before.map_or(change.offset(), |before| zone.to_offset(before));
            change.offset().seconds() - before.seconds() > GAP_MAX
        })
    {
        let from = change.timestamp().to_zoned(zone.clone());
        found = cron.find_next_occurrence(&from, true);
    }
    found.ok().map(|next| next.timestamp().as_millisecond())
}

/// The times of a cron expression, or what is wrong in it.
#[cfg(feature = "cron")]
fn crontab(expression: &str, zone: &str) -> std::result::Result<Times, String> {
    use croner::parser::{CronParser, Seconds, Year};

    let parse = |expression: &str, both: bool| {
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
        let parsed = parser.dom_and_dow(both).build().parse(expression);
        parsed.map_err(|error| format!("{expression:?}: {error}"))
    };
    let fields: Vec<&str> = expression.split(' ').collect();
    // As in Vixie's cron: a field that begins with a star does not choose days, it leaves some out.
    let both = [2, 4].iter().any(|day| fields.get(*day).is_some_and(|it| it.starts_with('*')));
    let cron = parse(expression, both)?;
    for (at, field) in fields.iter().enumerate() {
        for (range, step) in field.split(',').filter_map(|part| part.split_once('/')) {
            let mut alone = ["*"; 5];
            alone[at] = range;
            let of = parse(&alone.join(" "), false)?.pattern;
            let values = [of.minutes, of.hours, of.days, of.months, of.days_of_week][at].values();
            let span = values.last().zip(values.first()).map_or(0, |(last, first)| last - first);
            if step.parse().is_ok_and(|step: u16| step > span) {
                return Err(format!("{expression:?}: {range} has no second value {step} later"));
            }
        }
    }
    let zone = jiff::tz::TimeZone::get(zone).map_err(|error| error.to_string())?;
    Ok(Times::Cron(Box::new(cron), zone))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(NEVER)
}

/// A time of the log.
pub(super) fn time(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(seconds: u64, missed: Missed) -> Timer {
        Timer::every(Duration::from_secs(seconds)).unwrap().missed(missed)
    }

    fn fires(due: i64, since: Option<i64>, bounds: (i64, i64), following: i64) -> FirePlan {
        let (from, until) = bounds;
        FirePlan { fires: Some(due), since, from, until, following }
    }

    #[test]
    fn a_fire_in_time_is_as_planned() {
        for now in [60_000, 69_999, 70_000] {
            for missed in [Missed::Skip, Missed::Once] {
                let plan = every(60, missed).plan(60_000, now).unwrap();
                assert_eq!(plan, fires(60_000, None, (60_000, 70_000), 120_000), "{missed:?}");
            }
            let plan = every(60, Missed::All).plan(60_000, now).unwrap();
            assert_eq!(plan, fires(60_000, None, (60_000, NEVER), 120_000));
        }
    }

    #[test]
    fn a_missed_fire_is_as_the_timer_says() {
        let plan = |missed, now| every(60, missed).plan(60_000, now).unwrap();
        assert_eq!(plan(Missed::All, 300_000), fires(60_000, None, (60_000, NEVER), 120_000));
        let skips =
            FirePlan { fires: None, since: None, from: 70_001, until: NEVER, following: 360_000 };
        assert_eq!(plan(Missed::Skip, 300_000), skips);
        let alone = fires(60_000, None, (70_001, 130_000), 120_000);
        assert_eq!(plan(Missed::Once, 119_999), alone);
        let for_two = fires(120_000, Some(60_000), (120_000, 190_000), 180_000);
        assert_eq!(plan(Missed::Once, 120_000), for_two);
        let last = fires(300_000, Some(60_000), (300_000, 370_000), 360_000);
        assert_eq!(plan(Missed::Once, 359_999), last);
        // With a short interval, a later one may be in time: all are made up for when the first is missed.
        let short = every(1, Missed::Once).plan(60_000, 70_001).unwrap();
        assert_eq!(short, fires(70_000, Some(60_000), (70_001, 81_000), 71_000));
        let once = Timer::of(When::At { ms: 60_000 });
        let late = once.plan(60_000, 300_000).unwrap();
        assert_eq!(late, fires(60_000, None, (70_001, NEVER), NEVER));
    }

    #[test]
    fn times_end_where_nanoseconds_do() {
        let timer = Timer::every(Duration::from_secs(1)).unwrap();
        assert_eq!(timer.when.times().after(NEVER - 1), NEVER);
        assert_eq!(timer.when.times().after(-1), 0);
        assert_eq!(timer.plan(NEVER - 5, NEVER).unwrap().following, NEVER);
        // Others may have written this.
        let strange = Timer::of(When::Every { ms: -7 });
        assert_eq!(strange.when.times().after(5), 6);
        assert_eq!(When::Every { ms: 1000 }.times().last(3000, 3000), 3000);
    }

    #[cfg(feature = "cron")]
    fn times_of(expression: &str, zone: &str, after: &str) -> Vec<String> {
        let zone_of = jiff::tz::TimeZone::get(zone).unwrap();
        let after: jiff::civil::DateTime = after.parse().unwrap();
        let after = after.to_zoned(zone_of.clone()).unwrap().timestamp();
        let times = Timer::cron(expression, zone).unwrap().upcoming(SystemTime::from(after));
        let shown = |time| {
            let time = jiff::Timestamp::try_from(time).unwrap().to_zoned(zone_of.clone());
            time.strftime("%F %H:%M").to_string()
        };
        times.take(3).map(shown).collect()
    }

    /// Samoa had no 30 December 2011. Its timers ended for good the day before.
    #[cfg(feature = "cron")]
    #[test]
    fn a_day_that_a_zone_leaves_out_is_left_out() {
        let apia = |expression, after| times_of(expression, "Pacific/Apia", after);
        let daily = ["2011-12-29 12:00", "2011-12-31 12:00", "2012-01-01 12:00"];
        assert_eq!(apia("0 12 * * *", "2011-12-28T13:00"), daily);
        let at_once = ["2011-12-31 00:00", "2012-01-01 00:00", "2012-01-02 00:00"];
        assert_eq!(apia("0 0 * * *", "2011-12-29T13:30"), at_once);
        let monthly = ["2011-11-30 12:00", "2012-01-30 12:00", "2012-03-30 12:00"];
        assert_eq!(apia("0 12 30 * *", "2011-11-28T00:00"), monthly);
        let each_minute = ["2011-12-29 23:59", "2011-12-31 00:00", "2011-12-31 00:01"];
        assert_eq!(apia("* * * * *", "2011-12-29T23:58"), each_minute);
    }

    #[cfg(feature = "cron")]
    #[test]
    fn days_are_chosen_as_in_vixie_s_cron() {
        let utc = |expression| times_of(expression, "UTC", "2026-08-01T12:00");
        // 3 August is a Monday.
        let either = ["2026-08-03 00:00", "2026-08-10 00:00", "2026-08-13 00:00"];
        assert_eq!(utc("0 0 13 * MON"), either);
        let odd_mondays = ["2026-08-03 00:00", "2026-08-17 00:00", "2026-08-31 00:00"];
        assert_eq!(utc("0 0 */2 * MON"), odd_mondays);
        // Sunday, Tuesday, Thursday and Saturday.
        let both = ["2026-08-27 10:00", "2026-09-10 10:00", "2026-09-27 10:00"];
        assert_eq!(utc("0 10 10,27 * */2"), both);
    }

    #[cfg(feature = "cron")]
    #[test]
    fn a_step_past_its_range_is_refused() {
        for expression in ["*/90 * * * *", "*/60 * * * *", "0 */24 * * *", "0 0 */31 * *"] {
            assert!(Timer::cron(expression, "UTC").is_err(), "{expression}");
        }
        assert!(Timer::cron("0 10-20/15 * * MON-FRI/5", "UTC").is_err());
        for expression in ["*/59 * * * *", "0 */23 * * *", "0 8-18/5,22 * JAN-MAR/2 MON-FRI/4"] {
            assert!(Timer::cron(expression, "UTC").is_ok(), "{expression}");
        }
    }

    #[test]
    fn the_first_time_of_a_timer_is_after_those_for_which_it_has_fired() {
        let at = Timer::of(When::At { ms: 60_000 });
        assert_eq!(at.first(90_000, None), Some(60_000), "it was missed");
        assert_eq!(at.first(30_000, Some(59_999)), Some(60_000));
        assert_eq!(at.first(90_000, Some(60_000)), Some(NEVER));
        assert_eq!(every(60, Missed::Once).first(60_000, Some(60_000)), Some(120_000));
    }
}
