//! Finds holders and waiters of all recipes without knowing their paths.

use std::collections::VecDeque;

use crate::api::session::Session;
use crate::recipes::blocking::forever;
use crate::recipes::contenders::{Contenders, ListedContender};
use crate::recipes::errors::children_or_none;
use crate::recipes::semaphore;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::SessionId;

/// The most reads in flight.
const READS_MAX: usize = 256;

/// The recipes that have contenders, and the kinds of these.
const RECIPES: &[(&str, &[&str])] = &[
    ("lock", &["lock"]),
    ("read-write lock", &["read", "write"]),
    ("semaphore", &["lease"]),
    ("election", &["candidate"]),
    ("double barrier", &["participant"]),
    ("queue of takers", &["take"]),
    ("queue of putters", &["put"]),
];

/// A path at which instances hold something or wait for it: see [`contended`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Contended {
    /// The path of the recipe.
    pub path: String,
    /// The recipe: `lock`, `read-write lock`, `semaphore`, `election`, `double barrier`, `queue of takers` or
    /// `queue of putters`.
    pub recipe: &'static str,
    /// The holders, in order of arrival. Participants of a double barrier hold nothing.
    pub holders: Vec<Contending>,
    /// The waiters, the next one first.
    pub waiters: Vec<Contending>,
}

/// A holder or a waiter: see [`contended`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Contending {
    /// The path of its znode.
    pub path: String,
    /// What it holds or waits for: `lock`, `read`, `write`, `lease`, `candidate`, `participant`, `take` or
    /// `put`.
    pub kind: &'static str,
    /// Its session; `None` if somebody has created the znode by hand.
    pub session: Option<SessionId>,
    /// When it arrived: milliseconds since the Unix epoch, by the leader's clock.
    pub since: u64,
    /// The data of its znode as text: the id of a candidate, for example. Empty if there is none, or
    /// if the session may not read it.
    pub label: String,
}

/// Returns all locks, read-write locks, semaphores, elections, double barriers and queues at a path or below
/// it that have holders or waiters, ordered by path.
///
/// They are recognized by the names of their znodes. The result is not of one instant: the znodes are read
/// one after the other, some hundred at a time. Blocks until all are read, which takes about a second for
/// 100,000 znodes. Subtrees that the session may not read are left out.
///
/// # Errors
/// [`Error::NoNode`] if there is no znode at the path; [`Error::InvalidPath`]; the errors of a session
/// that is over.
///
/// ```
/// use quorate::{recipes, testing::Cluster};
///
/// let cluster = Cluster::new(1);
/// let session = cluster.node(0).session();
/// let _guard = session.lock("/jobs/nightly")?.acquire()?;
/// let found = recipes::contended(&session, "/")?;
/// assert_eq!((found[0].path.as_str(), found[0].recipe), ("/jobs/nightly", "lock"));
/// assert_eq!(found[0].holders[0].session, Some(session.id()));
/// assert!(found[0].waiters.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
pub fn contended(session: &Session, path: &str) -> Result<Vec<Contended>> {
    path::validate(path)?;
    forever(session, contended_async(session, path))
}

/// As [`contended`], without blocking the thread.
pub async fn contended_async(session: &Session, path: &str) -> Result<Vec<Contended>> {
    path::validate(path)?;
    let calls = session.nonblocking();
    if calls.exists(path).await?.is_none() {
        return Err(Error::NoNode { path: path.to_owned() });
    }
    let mut found = Vec::new();
    let mut to_read = VecDeque::from([path.to_owned()]);
    let mut under_way: VecDeque<(String, Pending<Vec<String>>)> = VecDeque::new();
    loop {
        while under_way.len() < READS_MAX
            && let Some(path) = to_read.pop_front()
        {
            let children = calls.children(&path);
            under_way.push_back((path, children));
        }
        let Some((path, children)) = under_way.pop_front() else { break };
        let children = match children_or_none(children.await) {
            Err(Error::NoAuth { .. }) => continue,
            children => children?,
        };
        let (contenders, others): (Vec<_>, Vec<_>) =
            children.into_iter().partition(|name| is_contender(name));
        to_read.extend(others.iter().map(|name| path::join(&path, name)));
        for (recipe, kinds) in RECIPES.iter().filter(|_| !contenders.is_empty()) {
            let listed = Contenders::new(session, &path, kinds)?.sorted(contenders.clone());
            if !listed.is_empty() {
                found.extend(read(session, &path, recipe, listed).await?);
            }
        }
    }
    found.sort_by(|one, other| (&one.path, one.recipe).cmp(&(&other.path, other.recipe)));
    Ok(found)
}

/// Whether this is the name of a contender, whose znode has no children.
fn is_contender(name: &str) -> bool {
    let mut parts = name.rsplit('-');
    let number = parts.next().is_some_and(|number| {
        number.len() >= 10 && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let random = parts.next().is_some_and(|random| {
        random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    let kinds = RECIPES.iter().flat_map(|(_, kinds)| kinds.iter());
    let of = |kind: &str| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-'));
    number && random && kinds.into_iter().any(|kind| of(kind))
}

/// Reads the znodes of contenders; `None` for those that are gone.
async fn read(
    session: &Session,
    path: &str,
    recipe: &'static str,
    listed: Vec<ListedContender>,
) -> Result<Option<Contended>> {
    let calls = session.nonblocking();
    let holding = match recipe {
        "read-write lock" if listed.first().is_some_and(|first| first.kind == "read") => {
            listed.iter().take_while(|contender| contender.kind == "read").count()
        }
        "semaphore" => match calls.get(path).await {
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
        let one = Contending {
            path: contender.path,
            kind: contender.kind,
            session: stat.as_ref().and_then(|stat| stat.ephemeral_owner),
            since: stat.map_or(0, |stat| stat.ctime),
            label: String::from_utf8_lossy(&data).into_owned(),
        };
        if place < holding { &mut holders } else { &mut waiters }.push(one);
    }
    let gone = holders.is_empty() && waiters.is_empty();
    Ok((!gone).then(|| Contended { path: path.to_owned(), recipe, holders, waiters }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::LeaderLatch;
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    #[test]
    fn holders_and_waiters_are_found_wherever_they_are() {
        let cluster = Cluster::new(1);
        let sessions: Vec<_> =
            (0..3).map(|_| cluster.node(0).open_session().expect("a session")).collect();
        let session = &sessions[0];
        // Znodes that only look like contenders.
        session.create("/lock-x", b"", CreateMode::Persistent).unwrap();
        session.create("/lock-x/lock-7", b"", CreateMode::Persistent).unwrap();
        assert_eq!(contended(session, "/").unwrap(), []);
        assert!(matches!(contended(session, "/none"), Err(Error::NoNode { .. })));

        let _lock = session.lock("/a/deep/lock").unwrap().acquire().unwrap();
        let latch = LeaderLatch::new(session, "/election", "host-1").unwrap();
        let _leadership = latch.campaign().unwrap();
        let rw = crate::recipes::ReadWriteLock::new(session, "/rw").unwrap();
        let _reads = [rw.read().unwrap(), rw.read().unwrap()];
        let semaphore = crate::recipes::Semaphore::new(session, "/permits", 3).unwrap();
        let _permits = semaphore.acquire_many(2).unwrap();
        // One waiter waits behind each holder; it exists as soon as its znode does.
        let waiting = Contenders::new(&sessions[1], "/a/deep/lock", &["lock"]).unwrap();
        let _second = forever(&sessions[1], waiting.join("lock", b"")).unwrap();
        let waiting = Contenders::new(&sessions[2], "/rw", &["read", "write"]).unwrap();
        let _writer = forever(&sessions[2], waiting.join("write", b"")).unwrap();
        let waiting = Contenders::new(&sessions[2], "/permits", &["lease"]).unwrap();
        let _many = forever(&sessions[2], waiting.join("lease-2", b"")).unwrap();

        let found = contended(session, "/").unwrap();
        let seen: Vec<_> = found
            .iter()
            .map(|of| (of.path.as_str(), of.recipe, of.holders.len(), of.waiters.len()))
            .collect();
        let expected = [
            ("/a/deep/lock", "lock", 1, 1),
            ("/election", "election", 1, 0),
            ("/permits", "semaphore", 1, 1),
            ("/rw", "read-write lock", 2, 1),
        ];
        assert_eq!(seen, expected);
        assert_eq!(found[0].waiters[0].session, Some(sessions[1].id()));
        assert_eq!(found[1].holders[0].label, "host-1");
        assert_eq!(contended(session, "/rw").unwrap(), found[3..]);
    }
}
