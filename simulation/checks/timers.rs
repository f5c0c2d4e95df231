//! What timers promise, checked against the committed log: each time fires at most once and not before the log's time
//! has reached it, nothing is left out that must not be, and a fire runs on one instance at a time.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::machine::command::ChangeKind;
use crate::recipes::Run;
use crate::recipes::schedule::{FireHistory, HISTORY, IN_TIME, NEXT, StoredFire};
use crate::simulation::clock::Nanos;
use crate::simulation::oracle::Oracle;
use crate::types::path;
use crate::types::znode::{SessionId, Zxid};

/// The schedule whose fires are handed over ...
pub(crate) const FIRED: &str = "/timers/fired";
/// ... by a write of their number to the znode with this and the timer's name.
pub(crate) const HANDED: &str = "/timers/handed-";
/// The schedule whose fires run.
pub(crate) const RUN: &str = "/timers/run";
/// Names and intervals in seconds. The names say what is done about missed fires.
pub(crate) const INTERVALS: [(&str, u64); 3] = [("all", 2), ("once", 3), ("skip", 4)];

#[derive(Debug)]
pub(crate) struct Timers {
    fair_clocks: bool,
    /// The number of changes that were checked.
    seen: usize,
    /// The last fire of each timer, and the last one that was not asked for.
    last: BTreeMap<String, (StoredFire, Option<StoredFire>)>,
    /// Since when a run has no runner.
    orphans: BTreeMap<String, Nanos>,
    runs: BTreeMap<String, Vec<(Weak<Run>, SessionId)>>,
}

impl Timers {
    pub(crate) fn new(fair_clocks: bool) -> Timers {
        Timers {
            fair_clocks,
            seen: 0,
            last: BTreeMap::new(),
            orphans: BTreeMap::new(),
            runs: BTreeMap::new(),
        }
    }

    /// Checks the changes that were committed since the last call.
    pub(crate) fn committed(&mut self, oracle: &Oracle, now: Nanos) -> Result<(), Violation> {
        for change in &oracle.changes()[self.seen..] {
            self.seen += 1;
            let (zxid, path) = (change.zxid, &*change.path);
            let Some(timer) = path::parent(path) else { continue };
            if !(path::is_below(timer, FIRED) || path::is_below(timer, RUN)) {
                continue;
            }
            match (change.kind, path::name(path)) {
                (ChangeKind::DataChanged, HISTORY) => self.fired(oracle, timer, zxid)?,
                (ChangeKind::DataChanged, NEXT) => skipped(oracle, timer, zxid)?,
                (ChangeKind::Created, "runner") => drop(self.orphans.remove(timer)),
                (ChangeKind::Deleted, "runner") => {
                    let runs = |path: &str| oracle.at(path, zxid).is_some();
                    if runs(&path::join(timer, "run")) && !runs(path) {
                        self.orphans.insert(timer.to_owned(), now);
                    }
                }
                (ChangeKind::Deleted, "run") => drop(self.orphans.remove(timer)),
                _ => {}
            }
        }
        Ok(())
    }

    /// This write has made a timer fire.
    fn fired(&mut self, oracle: &Oracle, timer: &str, zxid: Zxid) -> Result<(), Violation> {
        let Some(history) = oracle.at(&path::join(timer, HISTORY), zxid) else { return Ok(()) };
        let (at, name) = (history.stat.mtime as i64, path::name(timer));
        let fire =
            FireHistory::decoded(&history.data).and_then(|history| history.last.last().copied());
        let Some(fire) = fire else { return Ok(()) };
        let (last, timed) = self.last.get(timer).copied().unzip();
        let timed = timed.flatten();
        require(
            fire.number == last.map_or(1, |last| last.number + 1)
                && (fire.requested || timed.is_none_or(|timed| fire.due > timed.due)),
            "timers fire once",
            || format!("{timer} has fired by write {zxid}: {fire:?} after {last:?} and {timed:?}"),
        )?;
        let handed = oracle.at(&format!("{HANDED}{name}"), zxid);
        let is_handed = handed.is_some_and(|handed| {
            handed.stat.mzxid == zxid && *handed.data == *fire.number.to_string().as_bytes()
        });
        require(
            is_handed || !path::is_below(timer, FIRED),
            "what fires is handed over in its write",
            || format!("{fire:?} of {timer} has fired by write {zxid}, with {handed:?}"),
        )?;
        let interval = INTERVALS.iter().find(|(of, _)| *of == name);
        let interval = interval.map(|(_, seconds)| *seconds as i64 * 1000);
        let missed_first = fire.since < fire.due || at > fire.due + IN_TIME;
        let in_time = match (name, interval) {
            _ if fire.requested => true,
            ("skip", _) => fire.since == fire.due && at <= fire.due + IN_TIME,
            ("once", Some(interval)) if missed_first => {
                at > fire.since + IN_TIME && at <= fire.due + interval + IN_TIME
            }
            _ => true,
        };
        require(at >= fire.due && in_time, "timers fire in time", || {
            format!("{fire:?} of {timer} has fired at {at}, by write {zxid}")
        })?;
        if let (false, Some(interval), Some(timed)) = (fire.requested, interval, timed) {
            let expected = timed.due + interval;
            require(name == "skip" || fire.since == expected, "timers leave nothing out", || {
                format!("{fire:?} of {timer} has fired by write {zxid}, after {timed:?}")
            })?;
        }
        let timed = if fire.requested { timed } else { Some(fire) };
        self.last.insert(timer.to_owned(), (fire, timed));
        Ok(())
    }

    /// A client has taken a fire to run it.
    pub(crate) fn runs(
        &mut self,
        run: &Rc<Run>,
        session: SessionId,
        forced: impl Fn(SessionId) -> bool,
    ) -> Result<(), Violation> {
        let timer = run.fire().timer();
        let runs = self.runs.entry(timer.to_owned()).or_default();
        runs.retain(|(run, _)| run.strong_count() > 0);
        let other = runs.iter().find(|(other, session)| {
            !forced(*session) && other.upgrade().is_some_and(|other| other.is_held())
        });
        let two = self.fair_clocks && !forced(session) && run.is_held() && other.is_some();
        require(!two, "one instance runs a fire", || {
            format!("session {session} runs {:?}, and {other:?} does", run.fire())
        })?;
        runs.push((Rc::downgrade(run), session));
        Ok(())
    }

    /// Whether a run has lost its runner.
    pub(crate) fn has_orphan(&self) -> bool {
        self.orphans.keys().any(|timer| path::is_below(timer, RUN))
    }

    /// One who waits takes a run whose runner was lost, while nothing is wrong.
    pub(crate) fn waited_too_long(&self, since: Nanos) -> Result<(), Violation> {
        let mut orphans = self.orphans.iter().filter(|(timer, _)| path::is_below(timer, RUN));
        let orphan = orphans.find(|(_, orphan)| **orphan < since);
        require(orphan.is_none(), "lost runs run again", || format!("{orphan:?} does not"))
    }
}

/// This write has moved a timer on: if nothing fires by it, what it leaves out was missed.
fn skipped(oracle: &Oracle, timer: &str, zxid: Zxid) -> Result<(), Violation> {
    let [next, history] = [NEXT, HISTORY].map(|part| path::join(timer, part));
    let fires = oracle.at(&history, zxid).is_none_or(|history| history.stat.mzxid == zxid);
    let (Some(before), Some(after)) = (oracle.at(&next, zxid - 1), oracle.at(&next, zxid)) else {
        return Ok(());
    };
    // Single times are set anew.
    if fires || !INTERVALS.iter().any(|(name, _)| *name == path::name(timer)) {
        return Ok(());
    }
    let due = |data: &[u8]| data.try_into().map_or(0, i64::from_be_bytes) / 1_000_000;
    let (due, at) = (due(&before.data), after.stat.mtime as i64);
    let is_skip = path::name(timer) == "skip" && at > due + IN_TIME;
    require(is_skip, "timers leave nothing out", || {
        format!("{timer} does not fire for {due} by write {zxid}, at {at}")
    })
}
