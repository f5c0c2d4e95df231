//! How recipes report a state that changes: the latest value, and not each change.

use std::fmt;
use std::pin::Pin;

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::watch::WatchMode;

/// Follows a state that a recipe shares: each call returns the latest value, once it has changed.
///
/// | returned by | what it follows |
/// | --- | --- |
/// | [`Group::watch`](crate::recipes::Group::watch) | the members, and their data |
/// | [`LeaderLatch::watch`](crate::recipes::LeaderLatch::watch) | the leader, or that nobody leads |
/// | [`Config::watch`](crate::recipes::Config::watch) | the value and its version |
/// | [`Registry::watch`](crate::recipes::Registry::watch) | the instances of a service |
///
/// The first value is the present one. Each later one differs from the one before, and is the latest when it is
/// returned. The latest value is always reported, also if events were dropped or this replica has caught up by a
/// snapshot. A reader that is slow, or whose instance was disconnected for a while, misses values in between, so that
/// nothing is stored for it.
///
/// It sets its watch when it first waits. It writes nothing, needs no quorum, and holds a handle of its session. It
/// ends with the session: then all calls return the session's error.
///
/// [`Cache`](crate::recipes::Cache) reports each change of a subtree by calls of the same names.
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::Group;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let group = Group::new(&session, "/group")?;
/// let mut updates = group.watch();
/// assert!(updates.recv().wait()?.is_empty());
/// let _one = group.join("one", b"").wait()?;
/// drop(group.join("two", b"").wait()?);
/// let _three = group.join("three", b"").wait()?;
/// assert_eq!(updates.recv().wait()?.into_keys().collect::<Vec<_>>(), ["one", "three"]);
/// assert!(updates.recv().timeout(Duration::from_millis(1)).wait().is_err(), "nothing has changed");
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Updates<T> {
    watched: WatchedPath,
    source: Box<dyn Source<T>>,
}

/// What a recipe does for [`Updates`].
pub(super) trait Source<T>: Send + Sync {
    /// Reads the value now, and returns it unless it is the one that was returned last.
    fn latest(&mut self) -> Step<'_, Option<T>>;

    /// Waits until `latest` may return a value; may also return too early.
    fn changed<'a>(&'a mut self, watched: &'a mut WatchedPath) -> Step<'a, ()> {
        Box::pin(watched.changed())
    }
}

/// A future that a [`Source`] returns.
pub(super) type Step<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The path below which everything is that a source reads, and the watch of it.
#[derive(Debug)]
pub(super) struct WatchedPath {
    session: Session,
    path: String,
    mode: WatchMode,
    /// Set by the first wait.
    watch: Option<Watch>,
}

impl WatchedPath {
    async fn changed(&mut self) -> Result<()> {
        let Some(watch) = &self.watch else {
            let watching = self.session.watch(&self.path, self.mode);
            // The last read came before the watch: the caller reads again.
            self.watch = Some(watching.await?);
            return Ok(());
        };
        if watch.next().await.is_none() {
            // An error if the session is over; otherwise somebody has removed the watch.
            self.session.check_alive()?;
            self.watch = None;
            return Ok(());
        }
        // The next read shows every change that these events report, also after a gap or a snapshot.
        watch.events().try_iter().for_each(drop);
        Ok(())
    }
}

impl<T> fmt::Debug for Updates<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates").field("path", &self.watched.path).finish_non_exhaustive()
    }
}

impl<T> Updates<T> {
    pub(super) fn new(
        session: &Session,
        path: &str,
        mode: WatchMode,
        source: impl Source<T> + 'static,
    ) -> Updates<T> {
        let (session, path) = (session.clone(), path.to_owned());
        let watched = WatchedPath { session, path, mode, watch: None };
        Updates { watched, source: Box::new(source) }
    }

    /// Waits until there is a new value, and returns it. The first call returns the present one.
    ///
    /// # Errors
    /// [`Error::NoAuth`](crate::Error::NoAuth); [`Error::TooLarge`](crate::Error::TooLarge) on a client, which
    /// receives everything that is read, if that is more than 8 MiB; the errors of a session that is over.
    pub fn recv(&mut self) -> Pending<'_, T> {
        let WatchedPath { session, path, .. } = &self.watched;
        let (session, path) = (session.clone(), path.clone());
        session.steps("recv", &path, self.receiving()).unlimited()
    }

    async fn receiving(&mut self) -> Result<T> {
        loop {
            if let Some(value) = self.source.latest().await? {
                return Ok(value);
            }
            self.source.changed(&mut self.watched).await?;
        }
    }

    /// Returns the value, if there is a new one.
    ///
    /// # Errors
    /// As [`Updates::recv`], and [`Error::Timeout`](crate::Error::Timeout).
    pub fn try_recv(&mut self) -> Pending<'_, Option<T>> {
        let WatchedPath { session, path, .. } = &self.watched;
        session.steps("try_recv", path, self.source.latest())
    }

    #[cfg(any(test, feature = "simulator"))]
    pub(crate) async fn latest(&mut self) -> Result<Option<T>> {
        self.source.latest().await
    }

    /// Returns a watch whose channel gets a message when there may be a new value, for a `select!` with other
    /// channels. Call [`Updates::try_recv`] until it returns nothing, once at the start and after each message.
    /// Taking messages from the channel loses no values. The channel closes when the session is over, which
    /// `try_recv` then reports. Not every message means a new value.
    ///
    /// ```
    /// use crossbeam_channel::{never, select};
    /// use quorate::recipes::LeaderLatch;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(2).session();
    /// let mut leaders = LeaderLatch::new(&session, "/leader", "")?.watch();
    /// let signal = leaders.signal().wait()?;
    /// assert_eq!(leaders.try_recv().wait()?, Some(None), "nobody leads");
    /// let session = cluster.node(0).session();
    /// let leadership = LeaderLatch::new(&session, "/leader", "zero")?.campaign().wait()?;
    /// let other = never::<()>();
    /// let leader = loop {
    ///     select! {
    ///         recv(signal.events()) -> _ => {
    ///             if let Some(leader) = leaders.try_recv().wait()? {
    ///                 break leader;
    ///             }
    ///         }
    ///         recv(other) -> _ => {}
    ///     }
    /// };
    /// assert_eq!(leader.expect("somebody leads").path, leadership.path());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn signal(&self) -> Pending<'static, Watch> {
        let WatchedPath { session, path, mode, .. } = &self.watched;
        session.watch(path, *mode)
    }
}
