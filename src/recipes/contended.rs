//! Finds holders and waiters of all recipes, and the state of those that share work, without knowing their paths.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::api::session::Session;
pub use crate::recipes::contenders::Contending;
use crate::recipes::contenders::{
    ContenderKind, Contenders, LATCH, LEASE, LOCK, ListedContender, PARTICIPANT, PUTTER, READ,
    TAKER, WRITE, is_random, parse,
};
use crate::recipes::errors::if_exists;
use crate::recipes::queue::{QueueParts, queue_of};
use crate::recipes::table::RecipeTable;
use crate::recipes::{partitions, rate_limiter, schedule, semaphore};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::metrics::recipes::RecipeFigures;
use crate::types::path;

/// The most reads in flight.
const READS_MAX: usize = 256;

/// The recipes that have contenders, and the kinds of these.
const RECIPES: &[(&str, &[&ContenderKind])] = &[
    (READ_WRITE_LOCK, &[&READ, &WRITE]),
    (ELECTION, &[&LATCH]),
    ("lock", &[&LOCK]),
    (SEMAPHORE, &[&LEASE]),
    ("double barrier", &[&PARTICIPANT]),
    ("queue of takers", &[&TAKER]),
    ("queue of putters", &[&PUTTER]),
];
const READ_WRITE_LOCK: &str = "read-write lock";
const ELECTION: &str = "election";
const SEMAPHORE: &str = "semaphore";

// Those that have tables.
const PARTITIONS: &str = "partitions";
const MEMBERS: &str = "members of partitions";
const SCHEDULE: &str = "schedule";
const QUEUE: &str = "queue";

/// A path at which instances hold something, wait for it, or share work: see [`contended`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Contended {
    /// The path of the recipe.
    pub path: String,
    /// The recipe: `lock`, `read-write lock`, `semaphore`, `election`, `double barrier`, `queue of takers` or
    /// `queue of putters`; with a table, `partitions`, `members of partitions`, `schedule`, `queue` or
    /// `rate limits` (of many keys). An election of Curator's `LeaderSelector` or of kazoo is a `lock`, as there, unless a
    /// candidate is of quorate.
    pub recipe: &'static str,
    /// The holders, in order of arrival. Participants of a double barrier hold nothing.
    pub holders: Vec<Contending>,
    /// The waiters, the next one first.
    pub waiters: Vec<Contending>,
    /// The state of a recipe that shares work, which has neither holders nor waiters in the lists above.
    pub table: Option<RecipeTable>,
}

/// Returns all locks, read-write locks, semaphores, elections, double barriers and queues at a path or below
/// it that have holders or waiters, and all partitions, schedules, queues with items and limits with keys, ordered by path.
///
/// With `/`, in a session without a chroot, it also tells this instance's [metrics](crate::operate::RecipeFigures) what
/// needs attention.
///
/// They are recognized by the names of their znodes, also those of Curator, kazoo and the Go client, whose sessions
/// come through the gateway. The result is not of one instant: the znodes are read one after the other, some hundred
/// at a time. Waits until all are read, which takes about a second for 100,000 znodes. Subtrees that the session may
/// not read are left out.
///
/// # Errors
/// [`Error::NoNode`] if there is no znode at the path; [`Error::InvalidPath`]; the errors of a session
/// that is over.
///
/// ```
/// use quorate::{operate, testing::Cluster};
///
/// let cluster = Cluster::new(1);
/// let session = cluster.node(0).session();
/// let _guard = session.lock("/jobs/nightly")?.acquire().wait()?;
/// let found = operate::contended(&session, "/").wait()?;
/// assert_eq!((found[0].path.as_str(), found[0].recipe), ("/jobs/nightly", "lock"));
/// assert_eq!(found[0].holders[0].session, Some(session.id()));
/// assert!(found[0].waiters.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
pub fn contended<'a>(session: &'a Session, path: &'a str) -> Pending<'a, Vec<Contended>> {
    session.steps("contended", path, reading(session, path)).unlimited()
}

async fn reading(session: &Session, path: &str) -> Result<Vec<Contended>> {
    path::validate(path)?;
    let calls = &session.in_turn();
    if calls.exists(path).await?.is_none() {
        return Err(Error::NoNode { path: path.to_owned() });
    }
    let (mut found, mut tables) = (Vec::new(), Tables::default());
    let mut to_read = VecDeque::from([path.to_owned()]);
    let mut under_way: VecDeque<(String, Pending<_>)> = VecDeque::new();
    loop {
        while under_way.len() < READS_MAX
            && let Some(path) = to_read.pop_front()
        {
            let children = calls.children_with_stat(&path);
            under_way.push_back((path, children));
        }
        let Some((path, children)) = under_way.pop_front() else { break };
        let Some((children, stat)) = if_readable(children.await)? else { continue };
        if rate_limiter::may_be_limit(&stat)
            && let Some((data, _)) = if_readable(calls.get(&path).await)?
            && let Some(limit) = rate_limiter::table(&data, &stat)
        {
            tables.limits.push((path, limit));
            continue;
        }
        let Some(children) = tables.take(&path, children) else { continue };
        let (mut contenders, others): (Vec<_>, Vec<_>) =
            children.into_iter().partition(|name| is_contender(name));
        to_read.extend(others.iter().map(|name| path::join(&path, name)));
        for (recipe, kinds) in RECIPES {
            if !contenders.iter().any(|name| is_of(recipe, kinds, name)) {
                continue;
            }
            let at = Contenders::new(session, &path, kinds)?;
            let (own, rest) = contenders.into_iter().partition(|name| is_one(kinds, name));
            contenders = rest;
            found.extend(read(session, &path, recipe, at.sorted(own)).await?);
        }
    }
    found.extend(tables.read(session).await?);
    found.sort_by(|one, other| (&one.path, one.recipe).cmp(&(&other.path, other.recipe)));
    if path == "/" && session.root.is_everything() {
        let (shared, clock) = (session.shared(), &session.shared().clock);
        shared.figures.has_looked(clock.now(), figures(&found, clock.wall_ms()));
    }
    Ok(found)
}

/// The figures for the metrics, at this time since the Unix epoch.
fn figures(found: &[Contended], now: u64) -> RecipeFigures {
    let mut figures = RecipeFigures::default();
    for of in found {
        let Some(table) = &of.table else { continue };
        let (into, figure) = match of.recipe {
            PARTITIONS => (&mut figures.orphans, table.wrong()),
            MEMBERS => (&mut figures.silent_members, table.wrong()),
            SCHEDULE => {
                let due = table.numbers("next").min().unwrap_or(now);
                (&mut figures.timers_late, now.saturating_sub(due) / 1000)
            }
            QUEUE => (&mut figures.queue_items, table.numbers("waiting").next().unwrap_or(0)),
            _ => continue,
        };
        into.insert(of.path.clone(), i64::try_from(figure).unwrap_or(i64::MAX));
    }
    figures
}

/// `None` if there is no such znode, or if the session may not read it.
fn if_readable<T>(read: Result<T>) -> Result<Option<T>> {
    match if_exists(read) {
        Err(Error::NoAuth { .. }) => Ok(None),
        read => read,
    }
}

/// The recipes that were found and have a table, by their paths.
#[derive(Default)]
struct Tables {
    schedules: BTreeSet<String>,
    partitions: BTreeSet<String>,
    queues: BTreeMap<String, QueueParts>,
    limits: Vec<(String, RecipeTable)>,
}

impl Tables {
    /// Takes a znode that is a part of such a recipe; nothing of interest is below it. Otherwise gives its children back.
    fn take(&mut self, znode: &str, children: Vec<String>) -> Option<Vec<String>> {
        if let Some(queue) = queue_of(znode, &children) {
            self.queues.entry(queue.to_owned()).or_default().take(path::name(znode), children);
        } else if let Some(parent) = path::parent(znode).filter(|_| schedule::is_timer(&children)) {
            self.schedules.insert(parent.to_owned());
        } else if partitions::is_root(&children) {
            self.partitions.insert(znode.to_owned());
        } else {
            return Some(children);
        }
        None
    }

    async fn read(self, session: &Session) -> Result<Vec<Contended>> {
        let mut found = Vec::new();
        let mut show = |path, recipe, table| {
            let (holders, waiters, table) = (Vec::new(), Vec::new(), Some(table));
            found.push(Contended { path, recipe, holders, waiters, table });
        };
        for path in self.schedules {
            let table = if_readable(schedule::table(session, &path).await)?.flatten();
            table.into_iter().for_each(|table| show(path.clone(), SCHEDULE, table));
        }
        for path in self.partitions {
            let tables = if_readable(partitions::tables(session, &path).await)?.flatten();
            let Some([partitions, members]) = tables else { continue };
            show(path.clone(), PARTITIONS, partitions);
            show(path, MEMBERS, members);
        }
        for (path, parts) in self.queues {
            let table = if_readable(parts.table(session, &path).await)?;
            table.into_iter().for_each(|table| show(path.clone(), QUEUE, table));
        }
        self.limits.into_iter().for_each(|(path, limit)| show(path, "rate limits", limit));
        Ok(found)
    }
}

/// Whether this is the name of a contender, whose znode has no children.
fn is_contender(name: &str) -> bool {
    is_random(name) && RECIPES.iter().any(|(_, kinds)| is_one(kinds, name))
}

fn is_one(kinds: &[&'static ContenderKind], name: &str) -> bool {
    parse(name, kinds).is_some()
}

/// Whether the name tells that this is the recipe. kazoo's writers and candidates have the names of its locks,
/// and the candidates of Curator's selector those of its mutex.
fn is_of(recipe: &str, kinds: &[&'static ContenderKind], name: &str) -> bool {
    let is_lock = || is_one(&[&LOCK], name);
    is_one(kinds, name)
        && match recipe {
            READ_WRITE_LOCK => !is_lock(),
            ELECTION => !is_lock() || name.contains("-candidate"),
            _ => true,
        }
}

/// Reads the znodes of contenders; `None` for those that are gone.
async fn read(
    session: &Session,
    path: &str,
    recipe: &'static str,
    listed: Vec<ListedContender>,
) -> Result<Option<Contended>> {
    let calls = &session.in_turn();
    let holding = match recipe {
        READ_WRITE_LOCK if listed.first().is_some_and(|first| first.kind == "read") => {
            listed.iter().take_while(|contender| contender.kind == "read").count()
        }
        // Curator has all leases below one znode, and the number nowhere.
        SEMAPHORE if path::name(path) == "leases" => listed.len(),
        SEMAPHORE => match calls.get(path).await {
            Ok((data, _)) => semaphore::holders_of(&listed, &data),
            Err(Error::NoNode { .. } | Error::NoAuth { .. }) => 0,
            Err(error) => return Err(error),
        },
        "double barrier" | "queue of takers" | "queue of putters" => 0,
        _ => 1,
    };
    let reads: Vec<_> = listed
        .iter()
        .map(|contender| (calls.get(&contender.path), calls.exists(&contender.path)))
        .collect();
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (place, (contender, (data, stat))) in listed.into_iter().zip(reads).enumerate() {
        let data = match data.await {
            Ok((data, _)) => data,
            Err(Error::NoNode { .. }) => continue,
            Err(Error::NoAuth { .. }) => [].into(),
            Err(error) => return Err(error),
        };
        let stat = match stat.await {
            Ok(None) => continue,
            Err(Error::NoAuth { .. }) => None,
            stat => stat?,
        };
        let one = Contending::new(contender.path, contender.kind, &data, stat.as_ref());
        if place < holding { &mut holders } else { &mut waiters }.push(one);
    }
    let gone = holders.is_empty() && waiters.is_empty();
    Ok((!gone).then(|| Contended { path: path.to_owned(), recipe, holders, waiters, table: None }))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::recipes::table::RecipeCell;
    use crate::recipes::{
        LeaderLatch, NewItem, PartitionMember, Partitions, Queue, RateLimiter, Schedule, Timer,
    };
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    #[test]
    fn holders_and_waiters_are_found_wherever_they_are() {
        let cluster = Cluster::new(1);
        let sessions: Vec<_> =
            (0..3).map(|_| cluster.node(0).open_session().expect("a session")).collect();
        let session = &sessions[0];
        // Znodes that only look like contenders.
        session.create("/lock-x", b"", CreateMode::Persistent).wait().unwrap();
        session.create("/lock-x/lock-0000000007", b"", CreateMode::Persistent).wait().unwrap();
        assert_eq!(contended(session, "/").wait().unwrap(), []);
        assert!(matches!(contended(session, "/none").wait(), Err(Error::NoNode { .. })));

        let _lock = session.lock("/a/deep/lock").unwrap().acquire().wait().unwrap();
        let latch = LeaderLatch::new(session, "/election", "host-1").unwrap();
        let _leadership = latch.campaign().wait().unwrap();
        let rw = crate::recipes::ReadWriteLock::new(session, "/rw").unwrap();
        let _reads = [rw.read().wait().unwrap(), rw.read().wait().unwrap()];
        let semaphore = crate::recipes::Semaphore::new(session, "/permits", 3).unwrap();
        let _permits = semaphore.acquire_many(2).wait().unwrap();
        // One waiter waits behind each holder; it exists as soon as its znode does.
        let waiting = Contenders::new(&sessions[1], "/a/deep/lock", &[&LOCK]).unwrap();
        let _second = sessions[1].steps("test", "/", waiting.join(&LOCK, b"")).wait().unwrap();
        let waiting = Contenders::new(&sessions[2], "/rw", &[&READ, &WRITE]).unwrap();
        let _writer = sessions[2].steps("test", "/", waiting.join(&WRITE, b"")).wait().unwrap();
        let waiting = Contenders::new(&sessions[2], "/permits", &[&LEASE]).unwrap();
        let _many =
            sessions[2].steps("test", "/", waiting.join_as(&LEASE, "-2", b"")).wait().unwrap();

        let found = contended(session, "/").wait().unwrap();
        let seen: Vec<_> = found.iter().map(counted).collect();
        let expected = [
            ("/a/deep/lock", "lock", 1, 1),
            ("/election", "election", 1, 0),
            ("/permits", "semaphore", 1, 1),
            ("/rw", "read-write lock", 2, 1),
        ];
        assert_eq!(seen, expected);
        assert_eq!(found[0].waiters[0].session, Some(sessions[1].id()));
        assert_eq!(found[1].holders[0].label, "host-1");
        assert_eq!(contended(session, "/rw").wait().unwrap(), found[3..]);
    }

    /// Its path and recipe, and how many hold it and wait for it.
    fn counted(of: &Contended) -> (&str, &str, usize, usize) {
        (&of.path, of.recipe, of.holders.len(), of.waiters.len())
    }

    /// The cells of one column; `-` where there is none.
    fn column(of: &Contended, name: &str) -> Vec<String> {
        let rows = of.table.iter().flat_map(|table| &table.rows);
        let text = |cell: Option<&RecipeCell>| match cell {
            None => "-".to_owned(),
            Some(RecipeCell::Text(text)) => text.clone(),
            Some(RecipeCell::Number(number)) => number.to_string(),
            Some(RecipeCell::Session(session)) => session.to_string(),
        };
        rows.map(|row| text(row.get(name))).collect()
    }

    /// With two timers and a queue at work, the list was empty.
    #[test]
    fn timers_and_queues_are_found_with_their_states() {
        let cluster = Cluster::new(1);
        let session = &cluster.node(0).session();
        let schedule = Schedule::new(session, "/app/schedule").unwrap();
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        for (name, timer) in [
            ("late", Timer::at(UNIX_EPOCH + second).unwrap()),
            ("paused", Timer::every(15 * minute).unwrap()),
            ("runs", Timer::at(UNIX_EPOCH).unwrap()),
        ] {
            schedule.set(name, &timer).wait().unwrap();
        }
        schedule.pause("late").wait().unwrap();
        schedule.pause("paused").wait().unwrap();
        let run = schedule.take().wait().unwrap();
        schedule.resume("late").wait().unwrap();
        let queue = Queue::new(session, "/jobs").unwrap();
        for delay in [Duration::ZERO, Duration::ZERO, Duration::ZERO, minute] {
            queue.put(NewItem::new("job").delay(delay)).wait().unwrap();
        }
        let item = queue.take().wait().unwrap();
        let limits = RateLimiter::keyed(session, "/limits", 2, second).unwrap();
        assert!(
            limits.try_acquire("ann", 2).wait().unwrap()
                && limits.try_acquire("bob", 1).wait().unwrap()
        );
        assert!(!limits.try_acquire("ann", 1).wait().unwrap());
        assert_eq!(cluster.node(0).metrics().wait().unwrap().permits_refused, 1);
        // Znodes that only look like parts of them.
        for path in ["/x/next", "/x/history", "/y/items/a", "/z/items"] {
            let data = "one permit in a thousand, burst 2";
            session.create_with_parents(path, data, CreateMode::Persistent).wait().unwrap();
        }
        session.set("/x", "one permit in a thousand, burst 2").wait().unwrap();

        let found = contended(session, "/").wait().unwrap();
        let of: Vec<_> = found.iter().map(|of| (&*of.path, of.recipe)).collect();
        let expected =
            [("/app/schedule", "schedule"), ("/jobs", "queue"), ("/limits", "rate limits")];
        assert_eq!(of, expected);
        let limit = ["keys", "burst", "one_permit_in"].map(|name| column(&found[2], name));
        assert_eq!(limit.concat(), ["2", "2", "500ms"]);
        let cells = |name| column(&found[0], name);
        assert_eq!(cells("timer"), ["late", "paused", "runs"]);
        assert_eq!(
            cells("fires"),
            ["at 1970-01-01 00:00:01 UTC", "every 15 min", "at 1970-01-01 00:00:00 UTC"]
        );
        assert_eq!(cells("next"), ["1000", "-", "-"]);
        assert_eq!(cells("session"), ["-", "-", &run.session().id().to_string()]);
        assert_eq!(cells("state"), ["-", "paused", "-"]);
        assert!(cells("last")[2].len() > 12 && cells("wrong").iter().all(|cell| cell == "-"));
        let first = session.children("/jobs/items").wait().unwrap().remove(0);
        let oldest = session.exists(&format!("/jobs/items/{first}")).wait().unwrap().unwrap().ctime;
        let cells = |name| column(&found[1], name);
        assert_eq!(cells("oldest"), [oldest.to_string()]);
        assert_eq!(["waiting", "taken", "delayed"].map(cells).concat(), ["2", "1", "1"]);

        // Its runner is gone, and so is the consumer.
        drop((run, item));
        session.sync().wait().unwrap();
        let found = contended(session, "/").wait().unwrap();
        let wrong = "no instance runs its last fire";
        assert_eq!(column(&found[0], "timer")[0], "runs", "what is wrong comes first");
        assert_eq!(column(&found[0], "wrong"), [wrong, "-", "-"]);
        assert_eq!(column(&found[1], "waiting"), ["3"]);
        assert_eq!(contended(session, "/app/schedule/late").wait().unwrap(), found[..1]);
    }

    #[test]
    fn partitions_are_found_with_their_owners_orphans_and_members_that_hang() {
        let cluster = Cluster::new(1);
        let session = &cluster.node(0).session();
        let bound = Duration::from_secs(20);
        let partitions = Partitions::named(session, "/feeds", ["asia", "eu"]).unwrap();
        let member = PartitionMember::new("host-1").zone("north");
        let mut share = partitions.with_max_silence(bound).join(member).wait().unwrap();
        let _owned = [share.take().wait().unwrap(), share.take().wait().unwrap()];
        let found = contended(session, "/").wait().unwrap();
        let of: Vec<_> = found.iter().map(|of| (&*of.path, of.recipe)).collect();
        assert_eq!(of, [("/feeds", "members of partitions"), ("/feeds", "partitions")]);
        let id = session.id().to_string();
        assert_eq!(column(&found[1], "partition"), ["asia", "eu"]);
        assert_eq!(column(&found[1], "owner"), ["host-1", "host-1"]);
        assert_eq!(column(&found[1], "session"), [id.clone(), id]);
        assert_eq!(column(&found[1], "wrong"), ["-", "-"]);
        let member = ["member", "partitions", "weight", "zone", "silent"]
            .map(|name| column(&found[0], name));
        assert_eq!(member.concat(), ["host-1", "2", "1", "north", "-"]);
        let figures = cluster.node(0).metrics().wait().unwrap().recipes;
        assert_eq!((figures.orphans["/feeds"], figures.silent_members["/feeds"]), (0, 0));

        // It is in no call of its share.
        cluster.advance(bound);
        let found = loop {
            session.sync().wait().unwrap();
            let found = contended(session, "/feeds").wait().unwrap();
            if column(&found[0], "silent") != ["-"] {
                break found;
            }
        };
        assert_eq!(column(&found[1], "owner"), ["-", "-"]);
        assert!(column(&found[1], "wrong")[0].starts_with("no owner"), "{found:?}");
        assert_eq!(column(&found[0], "wrong"), ["it lives, and is in no call of its share"]);
        assert_eq!(
            cluster.node(0).metrics().wait().unwrap().recipes,
            figures,
            "a look at a part tells it nothing"
        );
        contended(session, "/").wait().unwrap();
        let figures = cluster.node(0).metrics().wait().unwrap().recipes;
        assert_eq!((figures.orphans["/feeds"], figures.silent_members["/feeds"]), (2, 1));
        cluster.advance(Duration::from_secs(300));
        assert_eq!(
            cluster.node(0).metrics().wait().unwrap().recipes,
            RecipeFigures::default(),
            "it is old"
        );
    }

    /// A thousand locks of kazoo were held, and the list of locks was empty.
    #[test]
    fn contenders_of_other_libraries_are_found() {
        let cluster = Cluster::new(1);
        let session = &cluster.node(0).session();
        let (uuid, hex) =
            ("_c_41bb8ee8-bb0d-4f29-9c1f-0123456789ab", "646dbb08aa7f4a7ea0f1b2c3d4e5f607");
        let all = [
            ("/curator", format!("{uuid}-lock-")),
            ("/curator", format!("{hex}__lock__")),
            ("/go", "_c_646dbb08aa7f4a7ea0f1b2c3d4e5f607-lock-".to_owned()),
            ("/kazoo", format!("{hex}__lock__")),
            ("/latch", format!("{uuid}-latch-")),
            ("/latch", format!("{hex}__lock__")),
            ("/permits/leases", format!("{uuid}-lease-")),
            ("/permits/leases", format!("{uuid}-lease-")),
            ("/permits/locks", format!("{uuid}-lock-")),
            ("/rw", format!("{hex}__rlock__")),
            ("/rw", format!("{uuid}-__READ__")),
            ("/rw", format!("{hex}__lock__")),
        ];
        for (parent, name) in &all {
            let path = path::join(parent, name);
            let mode = CreateMode::EphemeralSequential;
            session.create_with_parents(&path, b"who", mode).wait().unwrap();
        }
        let found = contended(session, "/").wait().unwrap();
        let seen: Vec<_> = found.iter().map(counted).collect();
        let expected = [
            ("/curator", "lock", 1, 1),
            ("/go", "lock", 1, 0),
            ("/kazoo", "lock", 1, 0),
            ("/latch", "election", 1, 1),
            ("/permits/leases", "semaphore", 2, 0),
            ("/permits/locks", "lock", 1, 0),
            ("/rw", "read-write lock", 2, 1),
        ];
        assert_eq!(seen, expected);
        assert_eq!(found[0].holders[0].label, "who");
        assert_eq!(found[0].holders[0].session, Some(session.id()));
    }
}
