//! What queues and barriers promise, checked against the committed log. One consumer has an item at
//! a time, items come in order and leave only when they are done, a queue never exceeds its limit,
//! and barriers open only when they may.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::machine::command::ChangeKind;
use crate::recipes::Item;
use crate::simulation::clock::{Nanos, SECOND};
use crate::simulation::oracle::{Oracle, ZnodeState};
use crate::types::path;
use crate::types::queue::{CLAIMS, DELAYED, ITEMS, TAKEN, split_due};
use crate::types::znode::{SessionId, Zxid};

/// The queue whose items are taken under a lease.
pub(crate) const LEASED: &str = "/queues/leased";
/// The queue whose items are popped.
pub(crate) const POPPED: &str = "/queues/popped";
/// The most items of either queue.
pub(crate) const MAX: usize = 3;
/// The double barrier.
pub(crate) const DOUBLE: &str = "/queues/double";
/// The number of participants that opens it.
pub(crate) const PARTICIPANTS: usize = 2;
/// The barrier.
pub(crate) const BARRIER: &str = "/queues/barrier";

/// How long after an item is due a consumer may look: it may have slept before the log's time jumped.
const SLEEPER_LATE: Nanos = 25 * SECOND;

#[derive(Debug)]
pub(crate) struct Queues {
    fair_clocks: bool,
    /// The number of changes that were checked.
    seen: usize,
    /// The paths of items that a consumer has finished or is about to finish.
    finishing: BTreeSet<String>,
    /// The data of items that must not come again.
    finished: BTreeSet<Vec<u8>>,
    held: BTreeMap<String, Vec<(Weak<Item>, SessionId)>>,
    /// Since when each item is free to be taken.
    free: BTreeMap<String, Nanos>,
    /// When each delayed item of the leased queue is due, and the time of the log.
    due: BTreeMap<String, u64>,
    time: u64,
    rounds: BTreeSet<Vec<u8>>,
}

impl Queues {
    pub(crate) fn new(fair_clocks: bool) -> Queues {
        Queues {
            fair_clocks,
            seen: 0,
            finishing: BTreeSet::new(),
            finished: BTreeSet::new(),
            held: BTreeMap::new(),
            free: BTreeMap::new(),
            due: BTreeMap::new(),
            time: 0,
            rounds: BTreeSet::new(),
        }
    }

    /// Checks the changes that were committed since the last call.
    pub(crate) fn committed(&mut self, oracle: &Oracle, now: Nanos) -> Result<(), Violation> {
        for change in &oracle.changes()[self.seen..] {
            self.seen += 1;
            let time = oracle.at(&change.path, change.zxid).map_or(0, |known| known.stat.mtime);
            self.passed_to(time, now);
            let Some(below) = change.path.strip_prefix("/queues/") else { continue };
            let (zxid, path) = (change.zxid, &*change.path);
            let mut parts = below.split('/');
            let name = (parts.next(), parts.next(), parts.next());
            match (change.kind, name) {
                (
                    ChangeKind::Created,
                    (Some(queue), Some(part @ (ITEMS | DELAYED)), Some(item)),
                ) => {
                    let of =
                        |part| children(oracle, &format!("/queues/{queue}/{part}"), zxid).len();
                    let count: usize = [ITEMS, DELAYED, TAKEN].into_iter().map(of).sum();
                    require(count <= MAX, "queues are never too full", || {
                        format!("{queue} has {count} items by write {zxid}")
                    })?;
                    if part == ITEMS {
                        self.free.insert(path.to_owned(), now);
                    } else if let Some((due, _)) = split_due(item) {
                        self.due.insert(path.to_owned(), due);
                    }
                }
                (ChangeKind::Deleted, (Some("leased"), Some(DELAYED), Some(item))) => {
                    self.due.remove(path);
                    self.free.remove(path);
                    let (due, name) = split_due(item).unwrap_or_default();
                    let moved = [ITEMS, TAKEN].map(|part| format!("{LEASED}/{part}/{name}"));
                    let time = moved.iter().find_map(|path| oracle.at(path, zxid));
                    let early = time.is_none_or(|known| known.stat.ctime < due);
                    require(!early, "items are not taken before they are due", || {
                        format!("{path} was, by write {zxid}")
                    })?;
                }
                (ChangeKind::Deleted, (Some("leased"), Some(ITEMS | TAKEN), Some(item))) => {
                    self.free.remove(path);
                    let places = [ITEMS, TAKEN].map(|part| format!("{LEASED}/{part}/{item}"));
                    let stays = places.iter().any(|path| oracle.at(path, zxid).is_some());
                    let is_done = self.finishing.remove(path);
                    require(stays || is_done, "items leave when they are done", || {
                        format!("{path} has gone by write {zxid}")
                    })?;
                }
                (ChangeKind::Deleted, (Some("leased"), Some(CLAIMS), Some(item))) => {
                    let of = format!("{LEASED}/{TAKEN}/{item}");
                    if oracle.at(&of, zxid).is_some() && oracle.at(path, zxid).is_none() {
                        self.free.insert(of, now);
                    }
                }
                (ChangeKind::DataChanged, (Some("double"), Some(_), None)) => {
                    self.entered(oracle, path, zxid)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The log's time has come so far. Delayed items that are due are free; a consumer sleeps by its own clock until
    /// then.
    fn passed_to(&mut self, time: u64, now: Nanos) {
        if time > self.time {
            self.time = time;
            let due = self.due.iter().filter(|(_, due)| **due <= time);
            self.free.extend(due.map(|(path, _)| (path.clone(), now + SLEEPER_LATE)));
            self.due.retain(|_, due| *due > time);
        }
    }

    /// A participant of the double barrier is in a round.
    fn entered(&mut self, oracle: &Oracle, path: &str, zxid: Zxid) -> Result<(), Violation> {
        let data = |known: Option<&ZnodeState>| known.map(|known| known.data.to_vec());
        let round = data(oracle.at(path, zxid)).unwrap_or_default();
        if round.is_empty() || !self.rounds.insert(round.clone()) {
            return Ok(());
        }
        let count = inside(oracle, &round, zxid);
        require(count >= PARTICIPANTS, "a double barrier opens for enough", || {
            format!("it has opened for {count} by write {zxid}")
        })
    }

    /// A consumer has taken an item of the leased queue.
    pub(crate) fn taken(
        &mut self,
        oracle: &Oracle,
        item: &Rc<Item>,
        session: SessionId,
        forced: impl Fn(SessionId) -> bool,
    ) -> Result<(), Violation> {
        let path = item.path().to_owned();
        require(!self.finished.contains(item.data()), "what is done does not come again", || {
            format!("{path} was taken by session {session}, and was done")
        })?;
        let held = self.held.entry(path.clone()).or_default();
        held.retain(|(item, _)| item.strong_count() > 0);
        let other = held.iter().find(|(other, session)| {
            !forced(*session) && other.upgrade().is_some_and(|other| other.is_held())
        });
        let two = self.fair_clocks && !forced(session) && item.is_held() && other.is_some();
        require(!two, "one consumer has an item", || format!("session {session} has {path} too"))?;
        held.push((Rc::downgrade(item), session));
        let token = item.fencing_token();
        let first = first_free(oracle, token);
        let name = path::name(&path);
        require(first.as_deref() == Some(name), "items come in their order", || {
            format!("{path} was taken by write {token}, and {first:?} was the first")
        })
    }

    /// A consumer is about to finish an item.
    pub(crate) fn finishing(&mut self, item: &Item) {
        self.finishing.insert(item.path().to_owned());
    }

    /// An item must not come again.
    pub(crate) fn finished(&mut self, data: &[u8]) -> Result<(), Violation> {
        require(self.finished.insert(data.to_vec()), "what is done does not come again", || {
            format!("{} was taken twice", String::from_utf8_lossy(data))
        })
    }

    /// A consumer that waits gets an item that is free, while nothing is wrong.
    pub(crate) fn waited_too_long(&self, since: Nanos) -> Result<(), Violation> {
        let free = self.free.iter().find(|(path, free)| path.starts_with(LEASED) && **free < since);
        require(free.is_none(), "a waiting consumer is notified of an item", || {
            format!("{free:?} is there")
        })
    }

    /// A participant leaves the double barrier only after its whole round is over.
    pub(crate) fn left(oracle: &Oracle, round: &[u8]) -> Result<(), Violation> {
        let count = inside(oracle, round, oracle.zxid());
        require(count == 0, "a double barrier is left by all", || format!("{count} are inside"))
    }

    /// A client has waited since `from` for a barrier. It was not set at some moment since then.
    pub(crate) fn passed(oracle: &Oracle, (from, to): (Zxid, Zxid)) -> Result<(), Violation> {
        let zxids = oracle.versions(BARRIER, from, to.max(from));
        let open = zxids.into_iter().any(|zxid| oracle.at(BARRIER, zxid).is_none());
        require(open, "a barrier holds while it is set", || {
            format!("it was set all the time from write {from} to {to}")
        })
    }
}

/// The number of participants in a round.
fn inside(oracle: &Oracle, round: &[u8], zxid: Zxid) -> usize {
    let Some(double) = oracle.at(DOUBLE, zxid) else { return 0 };
    let all = double.children.iter().map(|child| format!("{DOUBLE}/{child}"));
    all.filter(|path| oracle.at(path, zxid).is_some_and(|known| *known.data == *round)).count()
}

fn children(oracle: &Oracle, path: &str, zxid: Zxid) -> Vec<String> {
    let known = oracle.at(path, zxid);
    known.map_or_else(Vec::new, |known| known.children.iter().map(ToString::to_string).collect())
}

/// The name of the first item that this write could take from the leased queue.
fn first_free(oracle: &Oracle, zxid: Zxid) -> Option<String> {
    let of = |part: &str| children(oracle, &format!("{LEASED}/{part}"), zxid - 1);
    let claimed = of(CLAIMS);
    let given_back = of(TAKEN).into_iter().filter(|name| !claimed.contains(name));
    let claims = children(oracle, &format!("{LEASED}/{CLAIMS}"), zxid);
    let new =
        claims.into_iter().filter_map(|name| oracle.at(&format!("{LEASED}/{CLAIMS}/{name}"), zxid));
    let time = new.filter(|claim| claim.stat.czxid == zxid).map(|claim| claim.stat.ctime).max()?;
    let delayed = of(DELAYED);
    let due = delayed.iter().filter_map(|name| split_due(name)).filter(|(due, _)| *due <= time);
    let due = due.map(|(_, name)| name.to_owned());
    of(ITEMS).into_iter().chain(given_back).chain(due).min()
}
