//! Waiting for the next fire of a schedule, and claiming it: one write that checks the time, moves the timer on, and
//! hands the work over.
//!
//! The write requires that the timer, its next time and its history are as they were read, and that the log's time has
//! come. So a fire is claimed once, whoever tries, and never early.

use std::time::Duration;

use super::fire::{Fire, FireHistory, Run};
use super::log_time::{USED, written};
use super::timer::{FirePlan, NEVER};
use super::{ASKED, Definition, HISTORY, NEXT, RUN, RUNNER, Schedule};
use crate::api::multi::Multi;
use crate::api::part::Part;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::recipes::codec::{Codec, Postcard};
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{
    children_or_none, if_exists, inner, is_overtaken, missing_nanos, stat_of_set, unless_overtaken,
};
use crate::recipes::held::Held;
use crate::runtime::either::{Either, either};
use crate::runtime::entropy;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::{EventKind, WatchEvent, WatchMode};
use crate::types::znode::{Condition, CreateMode, Stat, Zxid};

/// Instances try to claim a fire within so many nanoseconds, so that most of them see that another one has it.
const SPREAD_NANOS: u64 = 50_000_000;

/// So many timers are removed by one write.
const REMOVED_AT_ONCE: usize = 50;

/// A timer as it was read.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) definition: Definition,
    pub(super) defined: Zxid,
    pub(super) next: i64,
    pub(super) moved: Zxid,
    pub(super) history: FireHistory,
    /// The stat of the history.
    pub(super) fired: Stat,
    /// A fire that is not done yet, and the znode that has it.
    pub(super) running: Option<(Fire, Zxid)>,
    /// The znode of the instance that runs it.
    pub(super) runner: Option<Stat>,
    /// The request of a fire.
    pub(super) asked: Option<Stat>,
}

/// A write that claims a fire, if it comes at the right time and before all others.
struct Claim<'a> {
    fire: Fire,
    multi: Multi<'a>,
    /// It has to come at this time of the log at the earliest.
    from: i64,
    /// Whether the fire was claimed before, and lost its runner.
    again: bool,
}

impl Schedule {
    /// Reads a timer; `None` if there is none, or data that this version does not understand.
    pub(super) fn seen(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Seen>> {
        let of = |part: &str| path::join(&self.timer_path(name), part);
        let get = |path: &str| if_exists(snapshot.get(path));
        let (Some((definition, stat)), Some((next, next_stat)), Some((history, fired))) =
            (get(&self.timer_path(name))?, get(&of(NEXT))?, get(&of(HISTORY))?)
        else {
            return Ok(None);
        };
        let definition = Postcard::decode(&definition);
        let next = <[u8; 8]>::try_from(&*next).map(|next| i64::from_be_bytes(next) / 1_000_000);
        let (Ok(definition), Ok(next), Ok(history)) =
            (definition, next, Postcard::decode(&history))
        else {
            return Ok(None);
        };
        let running = match get(&of(RUN))? {
            Some((data, stat)) => match Postcard::decode(&data) {
                Ok(fire) => Some((fire, stat.czxid)),
                Err(_) => return Ok(None),
            },
            None => None,
        };
        Ok(Some(Seen {
            name: name.to_owned(),
            definition,
            defined: stat.mzxid,
            next,
            moved: next_stat.mzxid,
            history,
            fired,
            running,
            runner: snapshot.exists(&of(RUNNER))?,
            asked: snapshot.exists(&of(ASKED))?,
        }))
    }

    /// All timers that this version understands.
    pub(super) async fn all_seen(&self) -> Result<Vec<Seen>> {
        let Some(snapshot) = if_exists(self.session.snapshot_of(self.path()).await)? else {
            return Ok(Vec::new());
        };
        let names = children_or_none(snapshot.children(self.path()))?;
        let seen = names.iter().filter_map(|name| self.seen(&snapshot, name).transpose());
        seen.collect()
    }

    /// See [`Schedule::fire`].
    pub(super) async fn firing(
        &self,
        mut hand_over: impl for<'m> FnMut(&Fire, Multi<'m>) -> Multi<'m>,
    ) -> Result<Fire> {
        let mut watch = None;
        loop {
            let Claim { fire, multi, from, .. } = self.next_claim(&mut watch, false).await?;
            let multi = multi.require(&self.part(&fire.timer, RUN), Condition::Absent);
            let own = multi.len();
            let work = Part::of(Ok(hand_over(&fire, self.session.multi())));
            let multi = multi.with(&work);
            let done = match multi.commit().await {
                Err(Error::Multi { index, error }) if index >= own => {
                    return Err(Error::Multi { index: index - own, error });
                }
                done => done,
            };
            if let Some(results) = self.unless_refused(done, from)? {
                let time = stat_of_set(results)?.mtime;
                self.log_time.was(i64::try_from(time).unwrap_or(NEVER), self.now());
                return Ok(fire);
            }
        }
    }

    /// See [`Schedule::take`].
    pub(super) async fn taking(&self) -> Result<Run> {
        let mut watch = None;
        loop {
            let Claim { fire, multi, from, again } = self.next_claim(&mut watch, true).await?;
            let record = self.part(&fire.timer, RUN);
            let multi = multi.create(&self.runner(&fire.timer), b"", CreateMode::Ephemeral);
            let multi = match again {
                true => multi,
                false => multi.create(&record, self.encoded(&fire)?, CreateMode::Persistent),
            };
            let created = created_in_multi(&self.session, multi.commit()).await;
            let Some(runner) = self.unless_refused(created, from)? else { continue };
            // `None` if somebody has deleted it meanwhile.
            if let Some(claim) = if_exists(Held::new(runner).await)? {
                return Ok(Run::new(claim, fire, record));
            }
        }
    }

    /// The znode that says who runs a fire of this timer.
    fn runner(&self, timer: &str) -> String {
        self.part(timer, RUNNER)
    }

    /// Waits until there is something to claim.
    async fn next_claim(&self, watch: &mut Option<Watch>, takes: bool) -> Result<Claim<'_>> {
        loop {
            let watching = match watch {
                Some(watch) => &*watch,
                None => {
                    let mode = WatchMode::PersistentRecursive;
                    watch.insert(self.session.watch(self.path(), mode).await?)
                }
            };
            let mut wake = None;
            if let Some(claim) = self.look(&mut wake, takes).await? {
                return Ok(claim);
            }
            let changed = async {
                while let Some(event) = watching.next().await {
                    if self.gives(&event) {
                        return true;
                    }
                }
                false
            };
            let goes_on = match wake {
                None => changed.await,
                Some(wait) => match either(changed, self.session.sleep(wait)).await {
                    Either::One(goes_on) => goes_on,
                    Either::Other(slept) => slept.map(|()| true)?,
                },
            };
            if !goes_on {
                // The watch was removed, or the session is over.
                self.session.check_alive()?;
                *watch = None;
            }
        }
    }

    /// Returns what is to be claimed now, or `None` and when to look again.
    async fn look(&self, wake: &mut Option<Duration>, takes: bool) -> Result<Option<Claim<'_>>> {
        let (mut due, mut over, mut first) = (Vec::new(), Vec::new(), NEVER);
        let mut now = None;
        for seen in self.all_seen().await? {
            if let Some((fire, czxid)) = &seen.running {
                let is_orphan = seen.runner.is_none();
                if takes && is_orphan {
                    let record = self.part(&seen.name, RUN);
                    let multi = self.session.multi().require(&record, Condition::Czxid(*czxid));
                    return Ok(Some(Claim { fire: fire.clone(), multi, from: 0, again: true }));
                }
                continue;
            }
            if let Some(asked) = seen.asked {
                return self.asked(&seen, &asked).map(Some);
            }
            if seen.next == NEVER && seen.definition.timer.removed_when_over {
                over.push(seen);
                continue;
            }
            if seen.definition.paused || seen.next == NEVER {
                continue;
            }
            let now = match now {
                Some(now) => now,
                None => match self.time_of_log(&seen.name).await? {
                    Some(time) => *now.insert(time),
                    None => {
                        *wake = Some(Duration::ZERO);
                        return Ok(None);
                    }
                },
            };
            if seen.next > now {
                first = first.min(seen.next);
                continue;
            }
            match seen.definition.timer.plan(seen.next, now) {
                Some(plan) if plan.from <= now => due.push((seen, plan)),
                Some(plan) => first = first.min(plan.from),
                // Only others can fire it.
                None => {}
            }
        }
        if due.is_empty() {
            if self.remove_over(&over).await? {
                *wake = Some(Duration::ZERO);
            } else if let Some(now) = now {
                let wait = u64::try_from(first.saturating_sub(now)).unwrap_or(0);
                let spread = Duration::from_nanos(entropy::number()? % SPREAD_NANOS);
                *wake = Some(Duration::from_millis(wait).saturating_add(spread).min(USED));
            }
            return Ok(None);
        }
        // Of several, instances try different ones.
        let place = entropy::number()? % due.len() as u64;
        let (seen, plan) = due.swap_remove(place as usize);
        let multi = self.moved(&seen, &plan);
        match plan.fires {
            Some(time) => {
                let fire = (time, plan.since.unwrap_or(time), false);
                self.claim(&seen, fire, multi, plan.from).map(Some)
            }
            None => {
                self.unless_refused(multi.commit().await, plan.from)?;
                *wake = Some(Duration::ZERO);
                Ok(None)
            }
        }
    }

    /// Removes timers that are to go, unless they have changed. Returns whether it has.
    async fn remove_over(&self, over: &[Seen]) -> Result<bool> {
        if over.is_empty() {
            return Ok(false);
        }
        let mut multi = self.session.multi();
        for seen in over.iter().take(REMOVED_AT_ONCE) {
            let (path, part) = (self.timer_path(&seen.name), |part| self.part(&seen.name, part));
            multi = multi
                .require(&path, Condition::Mzxid(seen.defined))
                .require(&part(NEXT), Condition::Mzxid(seen.moved))
                .require(&part(HISTORY), Condition::Mzxid(seen.fired.mzxid))
                .require(&part(ASKED), Condition::Absent)
                .require(&part(RUN), Condition::Absent)
                .delete_recursive(&path);
        }
        Ok(unless_overtaken(multi.commit().await)?.is_some())
    }

    /// The log's time: by the estimate, or else the cluster is asked. `None` if the timer has changed meanwhile.
    async fn time_of_log(&self, timer: &str) -> Result<Option<i64>> {
        if let Some(time) = self.log_time.estimate(self.now()) {
            return Ok(Some(time));
        }
        let next = self.part(timer, NEXT);
        let multi = self.session.multi().set(&next, i64::MAX.to_be_bytes());
        self.log_time.ask(&self.session, multi, &next).await
    }

    /// Moves a timer on, at the right time.
    fn moved(&self, seen: &Seen, plan: &FirePlan) -> Multi<'_> {
        let next = self.part(&seen.name, NEXT);
        let until = match plan.until {
            NEVER => i64::MAX,
            until => until.saturating_mul(1_000_000),
        };
        let unchanged = unless!(FireTwice, Condition::Mzxid(seen.moved), Condition::Exists);
        let multi = self.session.multi().require(&next, unchanged);
        let multi = multi.set(&next, written(plan.from));
        multi.require_time(&next, until).set(&next, written(plan.following))
    }

    /// Claims a fire that somebody has asked for.
    fn asked(&self, seen: &Seen, asked: &Stat) -> Result<Claim<'_>> {
        let path = self.part(&seen.name, ASKED);
        let multi = self.session.multi().require(&path, Condition::Czxid(asked.czxid));
        let time = i64::try_from(asked.ctime).unwrap_or(NEVER);
        self.claim(seen, (time, time, true), multi.delete(&path), 0)
    }

    /// Adds to a write that a timer fires.
    fn claim<'a>(
        &self,
        seen: &Seen,
        fire: (i64, i64, bool),
        multi: Multi<'a>,
        from: i64,
    ) -> Result<Claim<'a>> {
        let history = self.part(&seen.name, HISTORY);
        let at = i64::try_from(seen.fired.mtime).unwrap_or(NEVER);
        let (after, past) = seen.history.with(fire, at);
        let (timer, data) = (seen.name.clone(), seen.definition.timer.data.clone());
        let unchanged = unless!(FireTwice, Condition::Mzxid(seen.fired.mzxid), Condition::Exists);
        let multi = multi
            .require(&self.timer_path(&seen.name), Condition::Mzxid(seen.defined))
            .require(&history, unchanged)
            .set(&history, self.encoded(&after)?);
        Ok(Claim { fire: Fire { timer, past, data }, multi, from, again: false })
    }

    /// `None` if another write came first, or if it was not the time for a write that has to come at `from` at the
    /// earliest.
    fn unless_refused<T>(&self, done: Result<T>, from: i64) -> Result<Option<T>> {
        let error = match inner(done) {
            Ok(done) => return Ok(Some(done)),
            Err(error) => error,
        };
        if let Some(missing) = missing_nanos(&error) {
            let now = from.saturating_mul(1_000_000).saturating_sub(missing) / 1_000_000;
            self.log_time.was(now, self.now());
        } else if matches!(error, Error::InvalidData { .. }) {
            // It came too late.
            self.log_time.forget();
        } else if !is_overtaken(&error) {
            return Err(error);
        }
        Ok(None)
    }

    /// Whether there may be more to do after this event. After those of a claim by another instance there is not: the
    /// next look will show it.
    fn gives(&self, event: &WatchEvent) -> bool {
        // A timer may have the name of one of these znodes.
        let is_part = path::parent(&event.path).is_some_and(|timer| timer != self.path());
        let is_one_of = |parts: &[&str]| is_part && parts.contains(&path::name(&event.path));
        match event.kind {
            EventKind::Created | EventKind::DataChanged => {
                !is_one_of(&[NEXT, HISTORY, RUN, RUNNER])
            }
            EventKind::Deleted => is_one_of(&[RUNNER, RUN]),
            EventKind::ChildrenChanged => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::recipes::schedule::timer::Timer;
    use crate::testing::Cluster;

    /// A timer whose times are known to others alone.
    fn foreign() -> Timer {
        let when = r#"{"Cron": {"expression": "0 9 * * *", "zone": "Nowhere/Land"}}"#;
        let timer = format!(r#"{{"when": {when}, "missed": "Once", "data": []}}"#);
        serde_json::from_str(&timer).unwrap()
    }

    #[test]
    fn a_timer_whose_times_are_unknown_here_is_left_to_others() {
        let cluster = Cluster::new(1);
        let session = cluster.node(0).session();
        let schedule = Schedule::new(&session, "/schedule").unwrap();
        let due = Timer::at(UNIX_EPOCH).unwrap();
        schedule.set("report", &due).wait().unwrap();
        let definition = Definition { timer: foreign(), paused: false };
        let path = schedule.timer_path("report");
        session.set(&path, schedule.encoded(&definition).unwrap()).wait().unwrap();

        let wait = Duration::from_millis(200);
        let fired = schedule.fire(|_, multi| multi).timeout(wait).wait();
        assert!(matches!(fired, Err(Error::Timeout { .. })), "{fired:?}");
        let taken = schedule.take().timeout(wait).wait();
        assert!(matches!(taken, Err(Error::NotInTime { .. })), "{taken:?}");
        let state = schedule.get("report").wait().unwrap().unwrap();
        assert_eq!((state.next, state.history.len()), (Some(UNIX_EPOCH), 0), "it has not moved");
        // One that was asked for needs no times.
        schedule.fire_now("report").wait().unwrap();
        assert!(schedule.fire(|_, multi| multi).wait().unwrap().is_requested());
        // Another timer is not held up.
        schedule.set("launch", &due).wait().unwrap();
        assert_eq!(schedule.fire(|_, multi| multi).wait().unwrap().timer(), "launch");
    }

    #[test]
    fn a_timer_whose_times_are_unknown_here_is_not_set() {
        let cluster = Cluster::new(1);
        let schedule = Schedule::new(&cluster.node(0).session(), "/schedule").unwrap();
        let refused = schedule.set("report", &foreign()).wait();
        assert!(
            matches!(refused, Err(Error::InvalidSetting { setting: "cron", .. })),
            "{refused:?}"
        );
        assert_eq!(schedule.get("report").wait().unwrap(), None);
    }
}
