//! What queues and barriers promise, checked against the committed log. One consumer has an item at
//! a time, items come in order and leave only when they are done, a queue never exceeds its limit,
//! and barriers open only when they may.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::machine::command::ChangeKind;
use crate::recipes::Item;
use crate::simulation::clock::Nanos;
use crate::simulation::oracle::{Oracle, ZnodeState};
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
    /// Since when each item without a delay is free to be taken.
    free: BTreeMap<String, Nanos>,
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
            rounds: BTreeSet::new(),
        }
    }

    /// Checks the changes that were committed since the last call.
    pub(crate) fn committed(&mut self, oracle: &Oracle, now: Nanos) -> Result<(), Violation> {
        for change in &oracle.changes()[self.seen..] {
            self.seen += 1;
            let Some(below) = change.path.strip_prefix("/queues/") else { continue };
            let (zxid, path) = (change.zxid, change.path.as_str());
            let mut parts = below.split('/');
            let name = (parts.next(), parts.next(), parts.next());
            match (change.kind, name) {
                (ChangeKind::Created, (Some(queue), Some("items"), Some(item))) => {
                    let items = format!("/queues/{queue}/items");
                    let count = oracle.at(&items, zxid).map_or(0, |known| known.children.len());
                    require(count <= MAX, "queues are never too full", || {
                        format!("{items} has {count} items by write {zxid}")
                    })?;
                    if delay(item) == 0 {
                        self.free.insert(path.to_owned(), now);
                    }
                }
                (ChangeKind::Deleted, (Some("leased"), Some("items"), Some(_))) => {
                    self.free.remove(path);
                    require(self.finishing.remove(path), "items leave when they are done", || {
                        format!("{path} has gone by write {zxid}")
                    })?;
                }
                (ChangeKind::Created, (Some("leased"), Some("claims"), Some(item))) => {
                    let of = format!("{LEASED}/items/{item}");
                    self.free.remove(&of);
                    let times = oracle.at(&of, zxid).zip(oracle.at(path, zxid));
                    let early = times.is_some_and(|(item_, claim)| {
                        claim.stat.ctime < item_.stat.ctime + delay(item)
                    });
                    require(!early, "items are not taken before they are due", || {
                        format!("{of} was, by write {zxid}")
                    })?;
                }
                (ChangeKind::Deleted, (Some("leased"), Some("claims"), Some(item))) => {
                    let of = format!("{LEASED}/items/{item}");
                    if delay(item) == 0 && oracle.at(&of, zxid).is_some() {
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

    /// A consumer has taken an item of the leased queue. It has waited since `from`.
    pub(crate) fn taken(
        &mut self,
        oracle: &Oracle,
        item: &Rc<Item>,
        session: SessionId,
        from: Zxid,
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
        let first =
            takeable_changes(oracle, from, token - 1).any(|zxid| is_first(oracle, &path, zxid));
        require(first, "items come in their order", || {
            let items = oracle.at(&format!("{LEASED}/items"), token - 1);
            format!(
                "{path} was taken by write {token}, of {:?}",
                items.map(|known| &known.children)
            )
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

/// The zxids at which the first free item may be another one.
fn takeable_changes(oracle: &Oracle, from: Zxid, to: Zxid) -> impl Iterator<Item = Zxid> + use<> {
    let of = |path: &str| oracle.versions(&format!("{LEASED}/{path}"), from, to);
    let (items, claims) = (of("items"), of("claims"));
    items.into_iter().chain(claims)
}

/// The delay in an item's name, in milliseconds.
fn delay(item: &str) -> u64 {
    item.split('-').nth(1).and_then(|delay| u64::from_str_radix(delay, 16).ok()).unwrap_or(0)
}

/// Whether an item was the first free one at a zxid. Delayed items do not count, because they
/// depend on the time.
fn is_first(oracle: &Oracle, path: &str, zxid: Zxid) -> bool {
    let place = |item: &str| {
        let number = item.rsplit('-').next().and_then(|number| number.parse::<u64>().ok());
        (item.split('-').next().map(str::to_owned), number)
    };
    let Some(items) = oracle.at(&format!("{LEASED}/items"), zxid) else { return false };
    let own = path.rsplit('/').next().unwrap_or_default();
    let free = |item: &String| oracle.at(&format!("{LEASED}/claims/{item}"), zxid).is_none();
    let mut before = items.children.iter().filter(|item| place(item) < place(own));
    items.children.iter().any(|item| item == own)
        && !before.any(|item| delay(item) == 0 && free(item))
}
