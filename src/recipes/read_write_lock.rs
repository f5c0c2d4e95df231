//! Shared and exclusive locks with one queue: a reader waits for the nearest writer before it, and
//! a writer for the contender before it.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Shared Locks; Curator, `InterProcessReadWriteLock`.

use crate::api::session::Session;
use crate::recipes::contenders::{
    Contenders, Contending, ListedContender, Naming, READ, WRITE, change, predecessor,
};
use crate::recipes::held::{Held, guard};
use crate::recipes::{LockGuard, revocation};
use crate::runtime::pending::Pending;
use crate::types::error::Result;

/// The contender that a reader waits for: the nearest writer before it. That writer may itself be
/// waiting for contenders before it.
fn blocker_of_reader(listed: &[ListedContender], at: usize) -> Option<usize> {
    let nearest = (0..at).rev().find(|before| listed[*before].kind == WRITE.name);
    nearest.filter(|writer| *writer == 0 || !planted!(ReaderOvertakes))
}

/// A lock for the whole cluster that any number of readers hold together, or one writer alone.
///
/// Readers and writers share one queue, so that it is fair: a reader that arrives after a waiting
/// writer waits for it, and nobody starves. Each hold has the properties of a
/// [`Lock`](super::Lock): it belongs to its session, its loss is reported, its writes can be
/// fenced; it is not reentrant.
///
/// A writer may become a reader without releasing the lock ([`WriteGuard::downgrade`]). A reader
/// cannot become a writer: two readers that tried would deadlock. It has to release and acquire
/// again.
///
/// An acquisition costs two writes, a downgrade one. A writer's release wakes all readers up to the
/// next writer, or that writer; a reader's release wakes the writer behind it, if there is one.
///
/// ```
/// use quorate::recipes::ReadWriteLock;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let here = ReadWriteLock::new(&cluster.node(0).session(), "/locks/table")?;
/// let there = ReadWriteLock::new(&cluster.node(1).session(), "/locks/table")?;
/// let (one, two) = (here.read().wait()?, there.read().wait()?);
/// assert!(there.try_write().wait()?.is_none());
/// one.release().wait()?;
/// two.release().wait()?;
/// let writing = there.write().wait()?;
/// assert!(here.try_read().wait()?.is_none());
/// let reading = writing.downgrade().wait()?;
/// assert!(here.try_read().wait()?.is_some());
/// # drop(reading);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    contenders: Contenders,
}

impl ReadWriteLock {
    /// Returns the lock at this path, which other recipes must not use. The path and its parents
    /// are created as containers when the lock is acquired and they are missing. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<ReadWriteLock> {
        Ok(ReadWriteLock { contenders: Contenders::new(session, path, &[&READ, &WRITE])? })
    }

    /// Returns the same lock, with other names for the contenders of this handle: see [`Lock::with_naming`]. By
    /// default, Curator's `InterProcessReadWriteLock` counts them.
    ///
    /// [`Lock::with_naming`]: crate::recipes::Lock::with_naming
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> ReadWriteLock {
        self.contenders = self.contenders.with_naming(naming);
        self
    }

    fn session(&self) -> &Session {
        self.contenders.session()
    }

    pub(crate) fn path(&self) -> &str {
        self.contenders.path()
    }

    /// Acquires the lock for reading. Waits until it is held, for as long as the session lives.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire). These are the errors of all ways to acquire it.
    pub fn read(&self) -> Pending<'_, LockGuard> {
        self.session().steps("read", self.path(), self.reading()).unlimited()
    }

    async fn reading(&self) -> Result<LockGuard> {
        let held = self.contenders.acquire(&READ, b"", blocker_of_reader).await?;
        Ok(LockGuard { held })
    }

    /// Acquires the lock for reading if no writer holds it or waits for it; returns `None` otherwise.
    pub fn try_read(&self) -> Pending<'_, Option<LockGuard>> {
        self.session().steps("try_read", self.path(), self.trying_to_read())
    }

    async fn trying_to_read(&self) -> Result<Option<LockGuard>> {
        let held = self.contenders.try_acquire(&READ, b"", blocker_of_reader).await?;
        Ok(held.map(|held| LockGuard { held }))
    }

    /// Acquires the lock for writing. Waits until it is held, for as long as the session lives.
    pub fn write(&self) -> Pending<'_, WriteGuard> {
        self.session().steps("write", self.path(), self.writing()).unlimited()
    }

    async fn writing(&self) -> Result<WriteGuard> {
        let held = self.contenders.acquire(&WRITE, b"", predecessor).await?;
        Ok(self.writer(held))
    }

    /// Acquires the lock for writing if nobody holds it or waits for it; returns `None` otherwise.
    pub fn try_write(&self) -> Pending<'_, Option<WriteGuard>> {
        self.session().steps("try_write", self.path(), self.trying_to_write())
    }

    async fn trying_to_write(&self) -> Result<Option<WriteGuard>> {
        let held = self.contenders.try_acquire(&WRITE, b"", predecessor).await?;
        Ok(held.map(|held| self.writer(held)))
    }

    fn writer(&self, held: Held) -> WriteGuard {
        WriteGuard { guard: LockGuard { held }, naming: self.contenders.naming() }
    }

    /// Returns holders and waiters in order, as this replica has them. If a writer is first, it holds the lock;
    /// otherwise the readers before the first writer hold it.
    ///
    /// # Errors
    /// The errors of a session that is over.
    pub fn contenders(&self) -> Pending<'_, Vec<Contending>> {
        self.session().steps("contenders", self.path(), self.contenders.contending())
    }

    /// Asks all holders to release, and returns how many were asked: see
    /// [`Lock::revoke`](super::Lock::revoke), and [`ReadWriteLock::revoke_holder`] for one of them.
    ///
    /// # Errors
    /// As [`Session::set`].
    pub fn revoke(&self) -> Pending<'_, usize> {
        self.session().steps("revoke", self.path(), revocation::ask(&self.contenders, holders))
    }

    /// Asks one holder to release: the holder whose znode has this path, as in [`Contending::path`] and
    /// [`Held::path`]. Returns `false`, without a request, if the contender does not hold the lock, because it waits
    /// or is gone. Costs a round trip and a write.
    ///
    /// ```
    /// use quorate::{recipes::ReadWriteLock, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let lock = ReadWriteLock::new(&cluster.node(0).session(), "/table")?;
    /// let (one, two) = (lock.read().wait()?, lock.read().wait()?);
    /// let (asked, not_asked) = (one.revocations().wait()?, two.revocations().wait()?);
    /// let other = ReadWriteLock::new(&cluster.node(1).session(), "/table")?;
    /// assert!(other.revoke_holder(one.path()).wait()?);
    /// assert!(asked.wait_asked().wait()?);
    /// assert!(not_asked.events().is_empty());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::set`].
    pub fn revoke_holder<'a>(&'a self, path: &'a str) -> Pending<'a, bool> {
        self.session().steps(
            "revoke_holder",
            self.path(),
            revocation::ask_one(&self.contenders, path, holders),
        )
    }
}

/// How many of the first contenders hold the lock.
fn holders(listed: &[ListedContender]) -> usize {
    match listed.iter().position(|contender| contender.kind == WRITE.name) {
        Some(0) => 1,
        Some(readers) => readers,
        None => listed.len(),
    }
}

/// An exclusive hold of a [`ReadWriteLock`], which dereferences to a [`LockGuard`]. Dropping it
/// releases the lock, without waiting for the reply.
///
/// ```
/// use quorate::recipes::ReadWriteLock;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let guard = ReadWriteLock::new(&session, "/lock")?.write().wait()?;
/// let token = guard.fencing_token();
/// assert_eq!(guard.downgrade().wait()?.fencing_token(), token);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct WriteGuard {
    guard: LockGuard,
    naming: Naming,
}

guard!(WriteGuard, guard: LockGuard);

impl WriteGuard {
    /// Turns the writer into a reader at the same place in the queue, in one write: no writer can come in between,
    /// and the readers next in the queue get the lock, too. The fencing token stays the same, and the path changes.
    /// If it fails, the lock is released.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if the lock was lost; as [`Session::create`].
    pub fn downgrade(self) -> Pending<'static, LockGuard> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("downgrade", &path, self.downgrading())
    }

    async fn downgrading(self) -> Result<LockGuard> {
        let held = change(self.guard.held, &READ, self.naming).await?;
        Ok(LockGuard { held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[test]
    fn readers_wait_for_the_nearest_writer_and_writers_for_the_one_before() {
        let session = Cluster::new(1).node(0).session();
        let contenders = Contenders::new(&session, "/rw", &[&READ, &WRITE]).unwrap();
        let kinds = ["read", "read", "write", "read", "read", "write", "read"];
        let names = kinds.iter().enumerate().map(|(at, kind)| format!("aa-{kind}-{at:010}"));
        let listed = contenders.sorted(names.collect());
        let before = |at: usize| match listed[at].kind {
            "read" => blocker_of_reader(&listed, at),
            _ => predecessor(&listed, at),
        };
        let all: Vec<_> = (0..listed.len()).map(before).collect();
        assert_eq!(all, [None, None, Some(1), Some(2), Some(2), Some(4), Some(5)]);
    }
}
