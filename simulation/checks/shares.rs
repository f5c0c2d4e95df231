//! The shares of a resource never exceed the whole: readers and writers, permits whose number
//! changes, and sets of locks (I23). Fenced writes keep the order of the holders. Nobody acquires a
//! lock before its lock-delay is over.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::recipes::{Held, LockGuard, MultiLockGuard, Permits, ReentrantGuard, WriteGuard};
use crate::simulation::clock::Nanos;
use crate::simulation::oracle::{Oracle, ZnodeState};
use crate::types::znode::{SessionId, Zxid};

/// A guard of any kind.
pub(crate) trait Holding {
    fn is_held(&self) -> bool;
}

macro_rules! holding {
    ($($guard:ty)*) => { $(
        impl Holding for $guard {
            fn is_held(&self) -> bool {
                Held::is_held(self)
            }
        }
    )* };
}

holding! { LockGuard Permits WriteGuard }

impl Holding for MultiLockGuard {
    fn is_held(&self) -> bool {
        MultiLockGuard::is_held(self)
    }
}

/// Several guards of one hold.
impl Holding for Vec<ReentrantGuard> {
    fn is_held(&self) -> bool {
        self.iter().any(|guard| guard.is_held())
    }
}

#[derive(Debug)]
pub(crate) struct Shares {
    fair_clocks: bool,
    held: BTreeMap<String, Vec<Share>>,
    /// The tokens of fenced writes, by zxid.
    fenced: BTreeMap<String, BTreeMap<Zxid, u64>>,
    /// The last holder of each lock with a lock-delay, and until when it surely held it, unless it
    /// released it.
    lost: BTreeMap<String, (u64, Nanos)>,
}

/// The share of one holder.
struct Share {
    guard: Weak<dyn Holding>,
    part: u64,
    /// The whole of which it is a part.
    all: u64,
    session: SessionId,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of session {}", self.part, self.session)
    }
}

/// The permits that this contender and all before it want, if it is in the queue.
fn wanted_up_to(queue: &[String], own: &str) -> Option<u64> {
    let number = |name: &str| name.rsplit('-').next().and_then(|number| number.parse::<u64>().ok());
    let wanted = |name: &str| name.split('-').nth(1).and_then(|wanted| wanted.parse::<u64>().ok());
    let name = own.rsplit('/').next()?;
    let until = number(queue.iter().find(|other| *other == name)?)?;
    let before = queue.iter().filter(|other| number(other).is_some_and(|number| number <= until));
    Some(before.filter_map(|name| wanted(name)).sum())
}

/// Whether a writer is queued before this contender, if it is in the queue.
fn writer_before(queue: &[String], own: &str) -> Option<bool> {
    let number = |name: &str| name.rsplit('_').next().and_then(|number| number.parse::<u64>().ok());
    let name = own.rsplit('/').next()?;
    let until = number(queue.iter().find(|other| *other == name)?)?;
    let mut writers = queue.iter().filter(|other| other.contains("__WRIT__"));
    Some(writers.any(|other| number(other).is_some_and(|number| number < until)))
}

impl Shares {
    pub(crate) fn new(fair_clocks: bool) -> Shares {
        let (held, fenced, lost) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Shares { fair_clocks, held, fenced, lost }
    }

    /// A contender has acquired its permits: it had its turn. Returns the largest number of permits
    /// that there were since it joined the queue.
    pub(crate) fn permits_in_turn(
        oracle: &Oracle,
        name: &str,
        permits: &Permits,
    ) -> Result<u64, Violation> {
        let (own, now) = (permits.path(), oracle.zxid());
        let mut past = oracle.versions(own, 0, now).into_iter();
        let since = past.find(|zxid| oracle.at(own, *zxid).is_some()).unwrap_or(now);
        let states = oracle.versions(name, since, now);
        let states = states.into_iter().filter_map(|zxid| oracle.at(name, zxid));
        let number =
            |known: &ZnodeState| std::str::from_utf8(&known.data).ok()?.parse::<u64>().ok();
        let numbers: Vec<(u64, Option<u64>)> = states
            .filter_map(|known| Some((number(known)?, wanted_up_to(&known.children, own))))
            .collect();
        let had_turn = numbers.iter().any(|(all, wanted)| wanted.is_some_and(|sum| sum <= *all));
        require(had_turn, "I23 permits are given in order", || {
            format!("{own} has its permits, and it never had its turn: {numbers:?}")
        })?;
        Ok(numbers.iter().map(|(all, _)| *all).max().unwrap_or(0))
    }

    /// A reader has acquired the lock: at some moment since it joined the queue, no writer was
    /// before it.
    pub(crate) fn read_in_turn(oracle: &Oracle, name: &str, own: &str) -> Result<(), Violation> {
        let now = oracle.zxid();
        let mut past = oracle.versions(own, 0, now).into_iter();
        let since = past.find(|zxid| oracle.at(own, *zxid).is_some()).unwrap_or(now);
        let states = oracle.versions(name, since, now);
        let mut states = states.into_iter().filter_map(|zxid| oracle.at(name, zxid));
        let had_turn = states.any(|known| writer_before(&known.children, own) == Some(false));
        require(had_turn, "I23 readers wait for the writers before them", || {
            format!("{own} is held, and there always was a writer before it")
        })
    }

    /// A client has acquired a part of `all`.
    pub(crate) fn acquired<G: Holding + 'static>(
        &mut self,
        name: &str,
        guard: &Rc<G>,
        (part, all): (u64, u64),
        session: SessionId,
    ) {
        let shares = self.held.entry(name.to_owned()).or_default();
        shares.retain(|share| share.guard.strong_count() > 0);
        let guard: Rc<dyn Holding> = guard.clone();
        shares.push(Share { guard: Rc::downgrade(&guard), part, all, session });
    }

    /// At any moment of true time, the guards that report that they are held do not exceed the
    /// whole.
    pub(crate) fn check(&self, excused: impl Fn(SessionId) -> bool) -> Result<(), Violation> {
        if !self.fair_clocks {
            return Ok(());
        }
        for (name, shares) in &self.held {
            let sum = |shares: &[&Share]| shares.iter().map(|share| share.part).sum::<u64>();
            // The number of permits may have shrunk since the first of them were acquired, but not
            // since the last.
            let all = |shares: &[&Share]| shares.iter().map(|share| share.all).max().unwrap_or(0);
            let alive = |share: &&Share| share.guard.strong_count() > 0;
            let held: Vec<&Share> = shares.iter().filter(alive).collect();
            if sum(&held) <= all(&held) {
                continue;
            }
            let is_held = |share: &&Share| {
                !excused(share.session)
                    && share.guard.upgrade().is_some_and(|guard| guard.is_held())
            };
            let held: Vec<&Share> = held.into_iter().filter(is_held).collect();
            require(sum(&held) <= all(&held), "I23 no more is held than there is", || {
                format!("of the {} of {name}, there are held {held:?}", all(&held))
            })?;
        }
        Ok(())
    }

    /// The fenced writes of an earlier holder come before those of a later one, whatever clocks do.
    pub(crate) fn fenced(&mut self, name: &str, zxid: Zxid, token: u64) -> Result<(), Violation> {
        let writes = self.fenced.entry(name.to_owned()).or_default();
        let before = writes.range(..zxid).next_back().map_or(0, |(_, token)| *token);
        let after = writes.range(zxid..).next().map_or(u64::MAX, |(_, token)| *token);
        writes.insert(zxid, token);
        require(before <= token && token <= after, "I23 fenced writes in order", || {
            format!("{name} was written with token {token} between {before} and {after}")
        })
    }

    /// A client has acquired a lock with a lock-delay.
    pub(crate) fn delayed(
        &mut self,
        name: &str,
        token: u64,
        (now, delay): (Nanos, Nanos),
    ) -> Result<(), Violation> {
        let Some((lost, until)) = self.lost.remove(name) else { return Ok(()) };
        // The leader's clock may run a tenth fast.
        let too_early = self.fair_clocks && lost != token && now < until + delay / 10 * 9;
        require(!too_early, "I23 a lock-delay is kept", || {
            format!("{name} was held by {lost} until {until}, and lost, and by {token} at {now}")
        })
    }

    /// The lock was surely held at this time and is not released yet.
    pub(crate) fn still_held(&mut self, name: &str, token: u64, now: Nanos) {
        self.lost.insert(name.to_owned(), (token, now));
    }

    /// The lock is released.
    pub(crate) fn released(&mut self, name: &str, token: u64) {
        if self.lost.get(name).is_some_and(|(last, _)| *last == token) {
            self.lost.remove(name);
        }
    }
}
