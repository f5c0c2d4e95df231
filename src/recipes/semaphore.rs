//! A number of permits for the whole cluster: the first in line who together want no more than there
//! are have theirs.
//!
//! The number is the data of the semaphore's znode. How many permits a contender wants is in its name,
//! so that whoever lists the line knows who holds.
//!
//! Whom a release lets in cannot be seen in one predecessor, since any of the holders may be the
//! one that goes. So the first who waits watches the whole line, and each of the others only the
//! one before it. A waiter that is let in says so to the one behind it, by the data of its own
//! znode, and that one then watches the line in its place. Behind that, the data says whether it was
//! asked to give back what it has.
//!
//! Sources: Curator, `InterProcessSemaphoreV2`, where a lock does what the line does here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::multi::{Fence, Multi};
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::contenders::{Contender, Contenders, Hold, ListedContender};
use crate::recipes::parents::Parents;
use crate::recipes::{LockContender, LockLost, Revocations, blocking, revocation};
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::{WatchEvent, WatchMode};
use crate::types::znode::CreateMode;

const KIND: &str = "lease";

/// What a holder's znode says to the one behind it: its data begins with this.
const HOLDS: &[u8] = b"holds";
/// The data of a holder that was asked to give back what it has.
const REVOKED: &[u8] = b"holds, revoke";

/// So many permits for all, in the whole cluster.
///
/// Whoever asks for some has all of them or none. It is fair: permits go to those who asked first, and
/// one who wants many is not overtaken by those who want few. What is held belongs to the session, as
/// a [`Lock`](super::Lock) does: a session that ends gives it back.
///
/// **The number of permits** is kept in the cluster, in the semaphore's znode, from its first use on.
/// Every handle is made with the number that its program believes in, and a first call with another
/// one fails: [`Error::PermitsDiffer`]. [`Semaphore::set_permits`] changes the number for all, and
/// handles in use follow. With fewer permits than are held, nobody is let in until enough are given
/// back; nothing is taken from those who hold.
///
/// An acquisition costs two writes, and a third if others wait behind it. What is given back wakes
/// one waiter, the first; if there is enough for the next, that one is woken by it. One who joins the
/// line wakes the first, too.
///
/// ```
/// use quorate::Error;
/// use quorate::recipes::Semaphore;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let here = Semaphore::new(&cluster.node(0).session(), "/uploads", 3)?;
/// let there = Semaphore::new(&cluster.node(1).session(), "/uploads", 3)?;
/// let two = here.acquire_many(2)?;
/// let one = there.acquire()?;
/// assert!(there.try_acquire()?.is_none());
/// here.set_permits(4)?;
/// assert_eq!(there.acquire()?.permits(), 1);
/// let other = Semaphore::new(&cluster.node(2).session(), "/uploads", 3)?;
/// assert!(matches!(other.acquire(), Err(Error::PermitsDiffer { actual: 4, .. })));
/// # drop((one, two));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    contenders: Contenders,
    permits: u32,
    /// Whether the cluster was found to have that number; it may have another since.
    agreed: Arc<AtomicBool>,
}

/// What a contender has to do next.
enum Turn {
    /// It holds. Whether others wait behind it.
    Holds(bool),
    /// It is the first who waits.
    First,
    /// It waits behind this one.
    Behind(String),
}

/// How many permits a contender wants. A name that does not say is not of ours, and wants one.
fn wanted(contender: &ListedContender) -> u64 {
    let name = contender.path.rsplit('/').next().unwrap_or_default();
    let wanted = name.strip_prefix("lease-").and_then(|rest| rest.split_once('-'));
    wanted.and_then(|(number, _)| number.parse().ok()).unwrap_or(1)
}

/// How many of the line hold: the first whose wants together are within the number of permits.
fn holders(listed: &[ListedContender], permits: u32) -> usize {
    let permits = u64::from(permits) + u64::from(planted(Bug::SemaphoreOneMore));
    let mut sum = 0u64;
    let fits = |contender: &&ListedContender| {
        sum = sum.saturating_add(wanted(contender));
        sum <= permits
    };
    listed.iter().take_while(fits).count()
}

fn parsed(data: &[u8]) -> Option<u32> {
    std::str::from_utf8(data).ok()?.parse().ok().filter(|permits| *permits > 0)
}

impl Semaphore {
    /// The semaphore at this path, which has so many permits. Its parents are made when they are
    /// missing, as containers, and it stays. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] for no permits.
    pub fn new(session: &Session, path: &str, permits: u32) -> Result<Semaphore> {
        check(permits)?;
        let contenders = Contenders::new(session, path, &[KIND])?;
        Ok(Semaphore { contenders, permits, agreed: Arc::default() })
    }

    /// The semaphore's path.
    pub fn path(&self) -> &str {
        self.contenders.path()
    }

    /// Blocks until there is a permit, for as long as the session lives.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`].
    pub fn acquire(&self) -> Result<Permits> {
        self.acquire_many(1)
    }

    /// Blocks until there are so many permits, for as long as the session lives.
    ///
    /// # Errors
    /// [`Error::PermitsDiffer`]; [`Error::InvalidSetting`] for none, or for more than there are in
    /// all, also if their number becomes less while this waits; [`Error::NoNode`] if somebody deleted
    /// this contender's znode; those of a session that is over. So for all ways to acquire some.
    pub fn acquire_many(&self, permits: u32) -> Result<Permits> {
        blocking::forever(self.contenders.session(), self.acquire_many_async(permits))
    }

    /// The same, at most for `timeout`: `None` if there are not so many by then. The place in line is
    /// given up.
    pub fn acquire_many_timeout(&self, permits: u32, timeout: Duration) -> Result<Option<Permits>> {
        blocking::within(self.contenders.session(), timeout, self.acquire_many_async(permits))
    }

    /// [`Semaphore::acquire_many_timeout`] for one.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Permits>> {
        self.acquire_many_timeout(1, timeout)
    }

    /// Takes so many permits if there are so many now and nobody waits. Blocks for the request timeout
    /// at most.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permits>> {
        let taking = async {
            let contender = self.join(permits).await?;
            match self.turn(&contender, permits).await? {
                Turn::Holds(others) => self.hold(contender, permits, others).await.map(Some),
                Turn::First | Turn::Behind(_) => Ok(None),
            }
        };
        blocking::request(self.contenders.session(), "try_acquire", self.path(), taking)
    }

    /// [`Semaphore::try_acquire_many`] for one.
    pub fn try_acquire(&self) -> Result<Option<Permits>> {
        self.try_acquire_many(1)
    }

    /// [`Semaphore::acquire_many_async`] for one.
    pub async fn acquire_async(&self) -> Result<Permits> {
        self.acquire_many_async(1).await
    }

    /// Waits until there are so many permits, without blocking the thread. Dropping the future gives
    /// up the place in line. One that is neither polled nor dropped holds up those behind it.
    pub async fn acquire_many_async(&self, permits: u32) -> Result<Permits> {
        let contender = self.join(permits).await?;
        let mut changes: Option<Watch> = None;
        loop {
            let before = match self.turn(&contender, permits).await? {
                Turn::Holds(others) => return self.hold(contender, permits, others).await,
                Turn::First => None,
                Turn::Behind(before) => Some(before),
            };
            if let Some(before) = before {
                match self.contenders.session().nonblocking().get_and_watch(&before).await {
                    Ok((data, _, watch)) if !data.starts_with(HOLDS) => {
                        watch.next().await;
                        continue;
                    }
                    // It holds by a number of permits that is not that of now.
                    Ok(_) => {}
                    Err(Error::NoNode { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            match &changes {
                Some(watch) => {
                    if watch.next().await.is_none() {
                        changes = None;
                    }
                    // One look is enough for all that has happened by now.
                    drain(&changes);
                }
                None => {
                    let calls = self.contenders.session().nonblocking();
                    changes = Some(calls.watch(self.path(), WatchMode::Persistent).await?);
                }
            }
        }
    }

    async fn join(&self, permits: u32) -> Result<Contender> {
        check(permits)?;
        self.agree().await?;
        self.contenders.join(&format!("{KIND}-{permits}"), b"").await
    }

    async fn hold(&self, contender: Contender, permits: u32, others: bool) -> Result<Permits> {
        if others {
            // Unless it was asked to let go by somebody who has seen that it holds.
            contender.set_first(HOLDS).await?;
        }
        Ok(Permits { hold: contender.hold().await?, permits })
    }

    async fn turn(&self, contender: &Contender, permits: u32) -> Result<Turn> {
        let calls = self.contenders.session().nonblocking();
        let mut snapshot = calls.snapshot_of(self.path()).await?;
        if snapshot.get(self.path())?.0.is_empty() {
            // Deleted since it was looked for, and made again by those who join.
            self.agree().await?;
            snapshot = calls.snapshot_of(self.path()).await?;
        }
        let (listed, all) = self.contenders_and_permits(&snapshot)?;
        let own = contender.path();
        let at = listed.iter().position(|contender| contender.path == own);
        let Some(at) = at else { return Err(Error::NoNode { path: own.to_owned() }) };
        if permits > all {
            let reason = format!("{permits} are wanted, and there are {all} in all");
            return Err(Error::InvalidSetting { setting: "permits", reason });
        }
        Ok(match holders(&listed, all) {
            holders if at < holders => Turn::Holds(at + 1 < listed.len()),
            holders if at == holders => Turn::First,
            _ => Turn::Behind(listed[at - 1].path.clone()),
        })
    }

    fn contenders_and_permits(&self, snapshot: &Snapshot) -> Result<(Vec<ListedContender>, u32)> {
        let listed = self.contenders.sorted(snapshot.children(self.path())?);
        let number = if planted(Bug::PermitsOfOld) {
            Some(self.permits)
        } else {
            parsed(&snapshot.get(self.path())?.0)
        };
        Ok((listed, number.ok_or_else(|| self.unreadable())?))
    }

    fn unreadable(&self) -> Error {
        let reason = format!("the data of {} is not a number of permits", self.path());
        Error::InvalidSetting { setting: "permits", reason }
    }

    /// Sees to it that the cluster has a number, and once for each handle, that it is the handle's.
    async fn agree(&self) -> Result<()> {
        let (session, path) = (self.contenders.session(), self.path());
        let data = self.permits.to_string();
        let mut parents = Parents::of(session, path::parent(path).unwrap_or("/"));
        loop {
            let actual = match session.nonblocking().get(path).await {
                Ok((data, stat)) if data.is_empty() => Err(Some(stat.version)),
                Ok((data, _)) => Ok(parsed(&data).ok_or_else(|| self.unreadable())?),
                Err(Error::NoNode { .. }) => Err(None),
                Err(error) => return Err(error),
            };
            let calls = session.nonblocking();
            let written = match actual {
                Ok(actual) if actual == self.permits || self.agreed.load(Ordering::Relaxed) => {
                    self.agreed.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(actual) => {
                    let (path, expected) = (path.to_owned(), self.permits);
                    return Err(Error::PermitsDiffer { path, expected, actual });
                }
                // Made by somebody who knows nothing of permits.
                Err(Some(version)) => calls.set_if(path, &data, version).await.map(drop),
                Err(None) => {
                    parents.make().await?;
                    calls.create(path, &data, CreateMode::Persistent).await.map(drop)
                }
            };
            match written {
                // A parent is missing, or somebody else was first: look again.
                Err(Error::NoNode { .. } | Error::NodeExists { .. } | Error::BadVersion { .. })
                | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// How many permits there are in all, as this replica has it. Does not block on a member; a client
    /// waits for the answer of its member.
    ///
    /// # Errors
    /// [`Error::NoNode`] before the first use; those of a session that is over.
    pub fn permits(&self) -> Result<u32> {
        let (data, _) = self.contenders.session().get(self.path())?;
        parsed(&data).ok_or_else(|| self.unreadable())
    }

    /// As [`Semaphore::permits`], without blocking the thread.
    pub async fn permits_async(&self) -> Result<u32> {
        let (data, _) = self.contenders.session().nonblocking().get(self.path()).await?;
        parsed(&data).ok_or_else(|| self.unreadable())
    }

    /// Changes how many permits there are in all, for everybody. Programs that begin to use the
    /// semaphore later must be given the new number. Blocks as [`Session::create`].
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for none; as [`Session::transact`].
    pub fn set_permits(&self, permits: u32) -> Result<()> {
        let setting = self.set_permits_async(permits);
        blocking::request(self.contenders.session(), "set_permits", self.path(), setting)
    }

    /// The same, without blocking the thread.
    ///
    /// # Errors
    /// As [`Semaphore::set_permits`].
    pub async fn set_permits_async(&self, permits: u32) -> Result<()> {
        check(permits)?;
        self.agree().await?;
        self.contenders
            .session()
            .transact_async(|txn| {
                let listed = self.contenders.sorted(txn.children(self.path())?);
                let before = parsed(&txn.get(self.path())?.0);
                // Whoever holds by the old number shows it: by the new one it may not be seen.
                for contender in &listed[..before.map_or(0, |before| holders(&listed, before))] {
                    if before.is_some_and(|before| before > permits)
                        && !txn.get(&contender.path)?.0.starts_with(HOLDS)
                    {
                        txn.set(&contender.path, HOLDS);
                    }
                }
                txn.set(self.path(), permits.to_string());
                Ok(())
            })
            .await
            .map(drop)
    }

    /// Asks one holder to give its permits back: the one whose znode has this path, as
    /// [`LockContender::path`] and [`Permits::path`] tell it. It hears of that by
    /// [`Permits::revocations`], if it listens, and does what it sees fit. False, and nobody is asked,
    /// if it holds none: it waits for some, or is gone. Costs a round trip, and a write.
    ///
    /// Whoever holds by a number of permits that has become less since holds, too.
    ///
    /// # Errors
    /// [`Error::NoNode`] before the first use; otherwise as [`Session::set`].
    pub fn revoke_holder(&self, path: &str) -> Result<bool> {
        let asking = self.revoke_holder_async(path);
        blocking::request(self.contenders.session(), "revoke", path, asking)
    }

    /// The same, without blocking the thread.
    ///
    /// # Errors
    /// As [`Semaphore::revoke_holder`].
    pub async fn revoke_holder_async(&self, path: &str) -> Result<bool> {
        let calls = self.contenders.session().nonblocking();
        // This replica may not know yet who holds.
        calls.sync().await?;
        let snapshot = calls.snapshot_of(self.path()).await?;
        let (listed, all) = self.contenders_and_permits(&snapshot)?;
        let Some(at) = listed.iter().position(|contender| contender.path == path) else {
            return Ok(false);
        };
        let holds = at < holders(&listed, all) || snapshot.get(path)?.0.starts_with(HOLDS);
        match holds {
            true => revocation::set(self.contenders.session(), path, REVOKED).await,
            false => Ok(false),
        }
    }

    /// Who holds permits or waits for some, in their order, as this replica has it.
    ///
    /// # Errors
    /// Those of a session that is over.
    pub fn contenders(&self) -> Result<Vec<LockContender>> {
        self.contenders.list_with_sessions_now()
    }

    /// As [`Semaphore::contenders`], without blocking the thread; that blocks on a client alone.
    pub async fn contenders_async(&self) -> Result<Vec<LockContender>> {
        self.contenders.list_with_sessions().await
    }
}

fn check(permits: u32) -> Result<()> {
    if permits > 0 {
        return Ok(());
    }
    let reason = "at least one is needed".to_owned();
    Err(Error::InvalidSetting { setting: "permits", reason })
}

/// Takes what else is in the channel.
fn drain(watch: &Option<Watch>) {
    if let Some(watch) = watch {
        watch.events().try_iter().for_each(drop);
    }
}

/// Permits of a [`Semaphore`]. Dropping it gives them back, without waiting for that.
///
/// ```
/// use quorate::recipes::Semaphore;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let semaphore = Semaphore::new(&session, "/uploads", 3)?;
/// let permits = semaphore.acquire_many(2)?;
/// assert!(permits.is_held());
/// permits.release()?;
/// assert!(semaphore.try_acquire_many(3)?.is_some());
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Permits {
    hold: Hold,
    permits: u32,
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        f.debug_struct("Permits")
            .field("path", &path)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

impl Permits {
    /// How many they are.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The path of the holder's znode.
    pub fn path(&self) -> &str {
        self.hold.path()
    }

    /// Whether they are held at this moment: see [`LockGuard::is_held`](super::LockGuard::is_held).
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// A channel on which their loss shows: see [`LockGuard::lost`](super::LockGuard::lost).
    pub fn lost(&self) -> &Receiver<WatchEvent> {
        self.hold.lost()
    }

    /// Blocks until they are lost.
    pub fn wait_lost(&self) -> LockLost {
        self.hold.wait_lost()
    }

    /// Writes that happen only if the permits are still held when they do: see
    /// [`LockGuard::fenced`](super::LockGuard::fenced).
    pub fn fenced(&self) -> Multi<'_> {
        self.hold.session().multi().fence(&self.fence())
    }

    /// The check of [`Permits::fenced`], for any multi or transaction.
    pub fn fence(&self) -> Fence {
        self.hold.fence()
    }

    /// Hears of requests to give them back, by [`Semaphore::revoke_holder`]: also of one made before
    /// this was called. Costs a write, unless others have come to wait behind. Blocks for the request
    /// timeout at most.
    ///
    /// ```
    /// use quorate::{recipes::Semaphore, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let semaphore = Semaphore::new(&cluster.node(0).session(), "/uploads", 2)?;
    /// let permits = semaphore.acquire()?;
    /// let revocations = permits.revocations()?;
    /// let other = Semaphore::new(&cluster.node(1).session(), "/uploads", 2)?;
    /// assert!(other.revoke_holder(permits.path())?);
    /// assert!(revocations.wait());
    /// permits.release()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoNode`] if they are lost; those of a session that is over; [`Error::Timeout`].
    pub fn revocations(&self) -> Result<Revocations> {
        let session = self.hold.session();
        blocking::request(session, "revocations", self.path(), self.revocations_async())
    }

    /// The same, without blocking the thread.
    ///
    /// # Errors
    /// As [`Permits::revocations`].
    pub async fn revocations_async(&self) -> Result<Revocations> {
        // So that nobody else sets the data of its znode for another reason.
        self.hold.set_first(HOLDS).await?;
        Revocations::of(self.hold.session(), self.path()).await
    }

    /// Gives them back and waits until that is done.
    ///
    /// # Errors
    /// As [`LockGuard::release`](super::LockGuard::release).
    pub fn release(self) -> Result<()> {
        self.hold.release()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[test]
    fn those_hold_who_come_first_and_fit_together() {
        let session = Cluster::new(1).node(0).session();
        let contenders = Contenders::new(&session, "/lease-9-x/permits", &[KIND]).unwrap();
        // The numbers decide, and a name that says nothing wants one.
        let names = ["lease-1-aa-0000000003", "lease-2-bb-0000000001", "lease-0000000002", "x-1"];
        let listed = contenders.sorted(names.map(str::to_owned).to_vec());
        assert_eq!(listed.iter().map(wanted).collect::<Vec<_>>(), [2, 1, 1]);
        for (permits, holding) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (u32::MAX, 3)] {
            assert_eq!(holders(&listed, permits), holding, "of {permits}");
        }
        // One who does not fit is not overtaken by one who would.
        let listed = contenders.sorted(vec!["lease-3-aa-1".to_owned(), "lease-1-aa-2".to_owned()]);
        assert_eq!(holders(&listed, 2), 0);
    }

    #[test]
    fn a_number_of_permits_is_one_at_least() {
        for (data, number) in [("3", Some(3)), ("0", None), ("", None), ("-1", None), ("x", None)] {
            assert_eq!(parsed(data.as_bytes()), number);
        }
        assert_eq!(parsed(b"\xff"), None);
    }
}
