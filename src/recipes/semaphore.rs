//! A semaphore for the whole cluster: the first contenders hold their permits, as many as fit into
//! the total.
//!
//! The total is the data of the semaphore's znode. The number of permits that a contender wants is
//! in its name, so that the list of names shows who holds.
//!
//! A release by any holder may admit the next waiter, which therefore cannot watch a single
//! predecessor. So the first waiter watches all contenders, and each other waiter only the
//! contender before it. A waiter that is admitted notifies the one behind it by the data of its own
//! znode, and that one then watches all contenders. Later this data also shows whether the holder
//! was asked to give its permits back.
//!
//! Sources: Curator, `InterProcessSemaphoreV2`, which uses a lock instead of the first waiter.

mod leases;
mod permits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::leases::Leases;
pub use self::permits::Permits;
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::api::watch::Watch;
use crate::recipes::contenders::{Contender, Contenders, Contending, LEASE, ListedContender};
use crate::recipes::errors::if_exists;
use crate::recipes::parents::Parents;
use crate::recipes::{Naming, revocation};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::WatchMode;
use crate::types::znode::CreateMode;

/// The beginning of a holder's data, which notifies the waiter behind it.
const HOLDS: &[u8] = b"holds";
/// The data of a holder that was asked to give its permits back.
const REVOKED: &[u8] = b"holds, __REVOKE__";

/// A limited number of permits in the whole cluster.
///
/// A request gets all its permits or none. The semaphore is fair: permits go to the oldest requests
/// first, and requests for few permits do not overtake one for many. Permits belong to the session,
/// as a [`Lock`](super::Lock) does: the end of a session gives them back.
///
/// **The total** is stored in the cluster, in the semaphore's znode, from the first use on. Every
/// handle is created with the total that its program expects, and its first call fails if they
/// differ: [`Error::InvalidSetting`]. [`Semaphore::set_permits`] changes the total for all, and
/// handles in use follow. If the new total is smaller than the number of permits held, holders keep
/// theirs, and no further permits are given out until enough are given back.
///
/// An acquisition costs two writes, and a third if others wait behind it. A release wakes the first
/// waiter; if enough permits remain for the next one, the first wakes it. A new contender wakes the
/// first waiter, too. Curator and kazoo do not count these contenders: [`Semaphore::with_naming`].
///
/// ```
/// use quorate::Error;
/// use quorate::recipes::Semaphore;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let here = Semaphore::new(&cluster.node(0).session(), "/uploads", 3)?;
/// let there = Semaphore::new(&cluster.node(1).session(), "/uploads", 3)?;
/// let two = here.acquire_many(2).wait()?;
/// let one = there.acquire().wait()?;
/// assert!(there.try_acquire().wait()?.is_none());
/// here.set_permits(4).wait()?;
/// assert_eq!(there.acquire().wait()?.permits(), 1);
/// let other = Semaphore::new(&cluster.node(2).session(), "/uploads", 3)?;
/// assert!(matches!(other.acquire().wait(), Err(Error::InvalidSetting { .. })));
/// # drop((one, two));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    contenders: Contenders,
    permits: u32,
    /// Whether the total of the cluster matched when it was first read; it may have changed since.
    agreed: Arc<AtomicBool>,
    /// In the form of another library.
    leases: Option<Leases>,
}

/// How a contender continues.
enum QueuePosition {
    /// It holds. `true` if others wait behind it.
    Holds(bool),
    /// It is the first waiter.
    First,
    /// It waits behind the contender at this path.
    Behind(String),
}

/// How many permits a contender wants. A name without a number, which no version writes, counts
/// one.
fn wanted(contender: &ListedContender) -> u64 {
    let name = path::name(&contender.path);
    let wanted = name.rsplit_once("-lease-").and_then(|(before, _)| before.split_once('-'));
    wanted.and_then(|(_, number)| number.parse().ok()).unwrap_or(1)
}

/// How many contenders hold: the first ones whose permits together fit into the total.
fn holders(listed: &[ListedContender], permits: u32) -> usize {
    let permits = u64::from(permits);
    let mut sum = 0u64;
    let fits = |contender: &&ListedContender| {
        sum = sum.saturating_add(wanted(contender));
        sum <= permits
    };
    listed.iter().take_while(fits).count()
}

/// How many contenders hold, by the total in the semaphore's data.
pub(super) fn holders_of(listed: &[ListedContender], data: &[u8]) -> usize {
    parsed(data).map_or(0, |permits| holders(listed, permits))
}

fn parsed(data: &[u8]) -> Option<u32> {
    std::str::from_utf8(data).ok()?.parse().ok().filter(|permits| *permits > 0)
}

impl Semaphore {
    /// Returns the semaphore at this path, with this total. At the first use, its parents are
    /// created as containers when they are missing; the semaphore's own znode is persistent. Does
    /// not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if the total is 0.
    pub fn new(session: &Session, path: &str, permits: u32) -> Result<Semaphore> {
        check(permits)?;
        let contenders = Contenders::new(session, path, &[&LEASE])?;
        Ok(Semaphore { contenders, permits, agreed: Arc::default(), leases: None })
    }

    /// Returns the same semaphore in the form of Curator's `InterProcessSemaphoreV2` or kazoo's `Semaphore`, so that
    /// their clients use it, too: see [`guide::shared_recipes`](crate::guide::shared_recipes). All that use one path
    /// need the same form.
    ///
    /// In these forms a permit costs four writes, and is acquired alone; the total does not change; holders cannot be
    /// asked to give their permits back. Calls for more than that get [`Error::InvalidSetting`]. Of those who wait, the
    /// first holds a lock and is woken by each release; each other waits for the one before it. With
    /// [`Naming::Curator`] the total is stored nowhere, and all programs must name the same.
    ///
    /// ```
    /// use quorate::recipes::{Naming, Semaphore};
    /// use quorate::testing::Cluster;
    ///
    /// let session = Cluster::new(1).node(0).session();
    /// let uploads = Semaphore::new(&session, "/uploads", 1)?.with_naming(Naming::Curator);
    /// let permit = uploads.acquire().wait()?;
    /// assert!(permit.path().starts_with("/uploads/leases/"));
    /// assert!(uploads.try_acquire().wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> Semaphore {
        self.leases = Some(Leases::new(&self.contenders, naming));
        self
    }

    fn session(&self) -> &Session {
        self.contenders.session()
    }

    pub(crate) fn path(&self) -> &str {
        self.contenders.path()
    }

    /// Acquires one permit. Waits until there is one, for as long as the session lives.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`].
    pub fn acquire(&self) -> Pending<'_, Permits> {
        self.session().steps("acquire", self.path(), self.acquiring(1)).unlimited()
    }

    /// Acquires this many permits, all or none. Waits until they are available, for as long as the session lives.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the total differs, for 0, or for more than the total, also
    /// if the total is reduced during the wait; [`Error::InvalidData`] if the znode's data is no number;
    /// [`Error::NoNode`] if somebody deleted this
    /// contender's znode; [`Error::UnknownContender`] if there are contenders of another form; the errors of a
    /// session that is over. These are the errors of all ways to acquire permits.
    pub fn acquire_many(&self, permits: u32) -> Pending<'_, Permits> {
        self.session().steps("acquire_many", self.path(), self.acquiring(permits)).unlimited()
    }

    async fn acquiring(&self, permits: u32) -> Result<Permits> {
        self.agree_on(permits).await?;
        if let Some(leases) = &self.leases {
            return Ok(Permits { held: leases.acquire(self.permits).await?, permits });
        }
        let contender = self.join(permits).await?;
        let mut changes: Option<Watch> = None;
        loop {
            let before = match self.turn(&contender, permits).await? {
                QueuePosition::Holds(others) => return self.held(contender, permits, others).await,
                QueuePosition::First => None,
                QueuePosition::Behind(before) => Some(before),
            };
            let calls = &self.session().in_turn();
            if let Some(before) = before {
                let read = if_exists(calls.get_and_watch(&before).await)?;
                let Some((data, _, watch)) = read else { continue };
                // With this mark, it holds by a former, larger total.
                if !data.starts_with(HOLDS) {
                    watch.next().await;
                    continue;
                }
            }
            match &changes {
                Some(watch) => match watch.next().await {
                    // The next read covers all events until now.
                    Some(_) => watch.events().try_iter().for_each(drop),
                    None => changes = None,
                },
                None => changes = Some(calls.watch(self.path(), WatchMode::Persistent).await?),
            }
        }
    }

    /// Acquires this many permits if they are available now and nobody waits; returns `None` otherwise.
    pub fn try_acquire_many(&self, permits: u32) -> Pending<'_, Option<Permits>> {
        self.session().steps("try_acquire_many", self.path(), self.trying(permits))
    }

    async fn trying(&self, permits: u32) -> Result<Option<Permits>> {
        self.agree_on(permits).await?;
        if let Some(leases) = &self.leases {
            let held = leases.try_acquire(self.permits).await?;
            return Ok(held.map(|held| Permits { held, permits }));
        }
        let contender = self.join(permits).await?;
        match self.turn(&contender, permits).await? {
            QueuePosition::Holds(others) => self.held(contender, permits, others).await.map(Some),
            QueuePosition::First | QueuePosition::Behind(_) => Ok(None),
        }
    }

    /// [`Semaphore::try_acquire_many`] for one permit.
    pub fn try_acquire(&self) -> Pending<'_, Option<Permits>> {
        self.session().steps("try_acquire", self.path(), self.trying(1))
    }

    async fn agree_on(&self, permits: u32) -> Result<()> {
        check(permits)?;
        if permits > 1 {
            self.check_form("several permits at once")?;
        }
        self.agree().await
    }

    /// What the forms of other libraries do not have.
    fn check_form(&self, what: &str) -> Result<()> {
        let Some(_) = self.leases else { return Ok(()) };
        let reason = format!("a semaphore in the form of another library does not have {what}");
        Err(Error::InvalidSetting { setting: "naming", reason })
    }

    async fn join(&self, permits: u32) -> Result<Contender> {
        self.contenders.join_as(&LEASE, &format!("-{permits}"), b"").await
    }

    async fn held(&self, contender: Contender, permits: u32, others: bool) -> Result<Permits> {
        if others {
            // Keeps the data if somebody has noticed that it holds and has asked it to release.
            contender.set_first(HOLDS).await?;
        }
        Ok(Permits { held: contender.held().await?, permits })
    }

    async fn turn(&self, contender: &Contender, permits: u32) -> Result<QueuePosition> {
        let calls = &self.session().in_turn();
        let mut snapshot = calls.snapshot_of(self.path()).await?;
        if snapshot.get(self.path())?.0.is_empty() {
            // The znode was deleted in the meantime, and created again by a new contender.
            self.agree().await?;
            snapshot = calls.snapshot_of(self.path()).await?;
        }
        self.contenders.refuse_others(&snapshot)?;
        let (listed, all) = self.contenders_and_permits(&snapshot)?;
        let own = contender.path();
        let at = listed.iter().position(|contender| contender.path == own);
        let Some(at) = at else { return Err(Error::NoNode { path: own.to_owned() }) };
        if permits > all {
            let reason = format!("{permits} are wanted, and there are {all} in all");
            return Err(Error::InvalidSetting { setting: "permits", reason });
        }
        Ok(match holders(&listed, all) {
            holders if at < holders => QueuePosition::Holds(at + 1 < listed.len()),
            holders if at == holders => QueuePosition::First,
            _ => QueuePosition::Behind(listed[at - 1].path.clone()),
        })
    }

    fn contenders_and_permits(&self, snapshot: &Snapshot) -> Result<(Vec<ListedContender>, u32)> {
        let listed = self.contenders.sorted(snapshot.children(self.path())?);
        let number = self.parse(&snapshot.get(self.path())?.0);
        Ok((listed, unless!(PermitsOfOld, number, Ok(self.permits))?))
    }

    fn parse(&self, data: &[u8]) -> Result<u32> {
        parsed(data).ok_or_else(|| {
            let (path, reason) =
                (self.path().to_owned(), "it is not a number of permits".to_owned());
            Error::InvalidData { path, reason }
        })
    }

    /// Compares the cluster's total with the handle's, once for each handle.
    fn compare(&self, actual: u32) -> Result<()> {
        if actual != self.permits && !self.agreed.load(Ordering::Relaxed) {
            let change = match self.leases {
                Some(_) => "",
                None => ", or change it with Semaphore::set_permits",
            };
            let (path, expected) = (self.path(), self.permits);
            let reason = format!(
                "{path} has {actual} and not {expected}; give all programs the same number{change}"
            );
            return Err(Error::InvalidSetting { setting: "permits", reason });
        }
        self.agreed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes sure that the cluster has a total and, once for each handle, that it equals the
    /// handle's.
    async fn agree(&self) -> Result<()> {
        if self.leases.as_ref().is_some_and(|leases| !leases.have_a_total()) {
            return Ok(());
        }
        let (session, path) = (self.session(), self.path());
        let total = self.permits.to_string();
        let mut parents = Parents::of(session, path::parent(path).unwrap_or("/"));
        loop {
            let calls = &session.in_turn();
            let written = match if_exists(calls.get(path).await)? {
                // kazoo creates the znode before it sets the number, and ignores other data.
                Some((data, _)) if self.leases.is_some() => {
                    return parsed(&data).map_or(Ok(()), |actual| self.compare(actual));
                }
                // The znode was not created by a semaphore.
                Some((data, stat)) if data.is_empty() => {
                    calls.set_if(path, &total, stat.version).await.map(drop)
                }
                Some((data, _)) => return self.compare(self.parse(&data)?),
                None => {
                    parents.make().await?;
                    calls.create(path, &total, CreateMode::Persistent).await.map(drop)
                }
            };
            match written {
                // A parent is missing, or another write came first: look again.
                Err(Error::NoNode { .. } | Error::NodeExists { .. } | Error::BadVersion { .. })
                | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the total, as this replica has it.
    ///
    /// # Errors
    /// [`Error::NoNode`] before the first use; [`Error::InvalidData`]; the errors of a session that is over.
    pub fn permits(&self) -> Pending<'_, u32> {
        self.session().steps("permits", self.path(), self.reading_permits())
    }

    async fn reading_permits(&self) -> Result<u32> {
        if self.leases.as_ref().is_some_and(|leases| !leases.have_a_total()) {
            return Ok(self.permits);
        }
        self.parse(&self.session().get(self.path()).await?.0)
    }

    /// Changes the total for everybody. Handles created later must be given the new total.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for 0, and in the form of another library; as [`Session::transact`].
    pub fn set_permits(&self, permits: u32) -> Pending<'_, ()> {
        self.session().steps("set_permits", self.path(), self.setting_permits(permits))
    }

    async fn setting_permits(&self, permits: u32) -> Result<()> {
        check(permits)?;
        self.check_form("another number of permits")?;
        self.agree().await?;
        self.contenders
            .session()
            .transact(|txn| {
                let listed = self.contenders.sorted(txn.children(self.path())?);
                let before = parsed(&txn.get(self.path())?.0);
                // Marks the contenders that hold by the old total, since the new one may not show
                // that they hold.
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

    /// Asks one holder to give its permits back: the holder whose znode has this path, as in [`Contending::path`]
    /// and [`Held::path`](crate::recipes::Held::path). The holder receives the request if it has called
    /// [`Permits::revocations`], and decides for itself. Returns `false`, without a request, if the contender holds
    /// no permits, because it waits or is gone. Costs a round trip and a write.
    ///
    /// A contender that got its permits before the total was reduced is a holder, too.
    ///
    /// # Errors
    /// [`Error::NoNode`] before the first use; [`Error::InvalidSetting`] in the form of another library; otherwise as
    /// [`Session::set`].
    pub fn revoke_holder<'a>(&'a self, path: &'a str) -> Pending<'a, bool> {
        self.session().steps("revoke_holder", self.path(), self.revoking(path))
    }

    async fn revoking(&self, path: &str) -> Result<bool> {
        self.check_form("requests to give permits back")?;
        // This replica may not know yet which contenders hold.
        self.session().sync().await?;
        let snapshot = self.session().snapshot_of(self.path()).await?;
        let (listed, all) = self.contenders_and_permits(&snapshot)?;
        let Some(at) = listed.iter().position(|contender| contender.path == path) else {
            return Ok(false);
        };
        let holds = at < holders(&listed, all) || snapshot.get(path)?.0.starts_with(HOLDS);
        match holds {
            true => revocation::set(self.session(), path, REVOKED).await,
            false => Ok(false),
        }
    }

    /// Returns holders and waiters in order, as this replica has them.
    ///
    /// # Errors
    /// The errors of a session that is over.
    pub fn contenders(&self) -> Pending<'_, Vec<Contending>> {
        self.session().steps("contenders", self.path(), self.listing())
    }

    async fn listing(&self) -> Result<Vec<Contending>> {
        match &self.leases {
            Some(leases) => leases.contending().await,
            None => self.contenders.contending().await,
        }
    }
}

fn check(permits: u32) -> Result<()> {
    if permits > 0 {
        return Ok(());
    }
    let reason = "at least one is needed".to_owned();
    Err(Error::InvalidSetting { setting: "permits", reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[test]
    fn the_first_contenders_that_fit_together_hold() {
        let session = Cluster::new(1).node(0).session();
        let contenders = Contenders::new(&session, "/9-lease-x/permits", &[&LEASE]).unwrap();
        // The sequence numbers give the order, and a name without a number of permits counts one.
        let names =
            ["aa-1-lease-0000000003", "bb-2-lease-0000000001", "lease-0000000002", "x-0000000001"];
        let listed = contenders.sorted(names.map(str::to_owned).to_vec());
        assert_eq!(listed.iter().map(wanted).collect::<Vec<_>>(), [2, 1, 1]);
        for (permits, holding) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (u32::MAX, 3)] {
            assert_eq!(holders(&listed, permits), holding, "of {permits}");
        }
        // A contender that would fit does not overtake one that does not.
        let listed = contenders
            .sorted(["aa-3-lease-0000000001", "aa-1-lease-0000000002"].map(str::to_owned).to_vec());
        assert_eq!(holders(&listed, 2), 0);
    }

    #[test]
    fn zero_permits_are_refused() {
        for (data, number) in [("3", Some(3)), ("0", None), ("", None), ("-1", None), ("x", None)] {
            assert_eq!(parsed(data.as_bytes()), number);
        }
        assert_eq!(parsed(b"\xff"), None);
    }
}
