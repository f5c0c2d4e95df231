//! What all guards have in common: something that is held while an ephemeral znode of its own exists.

use std::fmt;

use crossbeam_channel::Receiver;

use crate::api::multi::{Fence, Multi};
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::errors::lost_anyway;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::watch::WatchEvent;
use crate::types::znode::Zxid;

/// Something that this session holds: a lock, permits, a leadership, a membership, a registration or a queue's
/// item. All their guards dereference to this type.
///
/// It is held from its acquisition until it is released or lost, and while it is held, its ephemeral znode
/// exists. It is lost when its session is over, or when somebody deletes the znode. Dropping the guard releases
/// it, without waiting for the reply.
///
/// ```
/// use quorate::recipes::{Group, Held, LeaderLatch};
/// use quorate::testing::Cluster;
///
/// fn work(held: &Held) -> quorate::Result<()> {
///     while held.is_held() {
///         // Each step is a write that has no effect after a loss.
///         held.fenced().set("/progress", b"done").commit().wait()?;
/// #       break;
///     }
///     Ok(())
/// }
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// # session.create("/progress", b"", quorate::CreateMode::Persistent).wait()?;
/// let guard = session.lock("/lock")?.acquire().wait()?;
/// let leadership = LeaderLatch::new(&session, "/leader", "me")?.campaign().wait()?;
/// let membership = Group::new(&session, "/group")?.join("me", b"").wait()?;
/// for held in [&*guard, &leadership, &membership] {
///     work(held)?;
/// }
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Held {
    pub(super) ephemeral: OwnedEphemeral,
    /// A watch of the znode, which fires when it is deleted.
    watch: Watch,
    /// Reported as the fencing token: the zxid that created the holder's first znode.
    pub(super) token: Zxid,
}

/// Why something is no longer held: see [`Held::wait_lost`].
///
/// ```
/// use quorate::{recipes::Lost, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let guard = session.lock("/lock")?.acquire().wait()?;
/// cluster.node(1).session().delete(guard.path()).wait()?;
/// assert_eq!(guard.wait_lost().wait()?, Lost::Deleted);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// The session is over.
    SessionOver,
    /// The znode was deleted, by somebody or together with its session.
    Deleted,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("path", &self.path())
            .field("fencing_token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Held {
    /// Something is held from here on, and a loss is reported.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if it is already lost.
    pub(super) async fn new(ephemeral: OwnedEphemeral) -> Result<Held> {
        let watch = ephemeral.watch_end().await?;
        Ok(Held::watched(ephemeral, watch))
    }

    /// As [`Held::new`], with a watch that fires when the znode is deleted.
    pub(super) fn watched(ephemeral: OwnedEphemeral, watch: Watch) -> Held {
        let token = ephemeral.czxid();
        Held { ephemeral, watch, token }
    }

    pub(super) fn session(&self) -> &Session {
        self.ephemeral.session()
    }

    /// The path of the holder's znode.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = session.lock("/lock")?.acquire().wait()?;
    /// assert!(session.exists(guard.path()).wait()?.is_some());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn path(&self) -> &str {
        self.ephemeral.path()
    }

    /// Whether it is held at this moment: the session is certainly alive, and this replica knows of no deletion
    /// of the holder's znode. Does not block. Once false, it stays false: acquire it again, with a new session
    /// if the former one is over.
    ///
    /// It turns false before the cluster can give it to another holder, if the rates of the clocks differ by
    /// less than a tenth and no clock stops: see [`Session::is_alive`]. Deleting the znode of a living holder
    /// takes it away, too; the holder notices that when its replica applies the deletion.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = session.lock("/lock")?.acquire().wait()?;
    /// assert!(guard.is_held());
    /// session.delete(guard.path()).wait()?;
    /// assert!(!guard.is_held());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn is_held(&self) -> bool {
        let wrong = planted!(LostAtOnce) || strikes!(HeldAgain, 5);
        !self.ephemeral.is_given_up() && self.ephemeral.exists() && !wrong
    }

    /// A number that increases with each later holder: the zxid that created the holder's znode. A resource that
    /// refuses numbers smaller than the largest that it has seen is safe from holders that have not yet noticed
    /// their loss.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// let first = lock.acquire().wait()?.fencing_token();
    /// assert!(lock.acquire().wait()?.fencing_token() > first);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fencing_token(&self) -> Zxid {
        self.token
    }

    /// Starts a [`Multi`] that has effect only if it is still held. Its first operation is the check, which every
    /// replica makes as it applies the write. So the write has no effect after a loss, however long this process
    /// stalls or the write is delayed. This protects data in the tree; for other resources use
    /// [`Held::fencing_token`].
    ///
    /// The check is operation 0: [`Error::Multi`](crate::Error::Multi) with that index means that it was lost
    /// and nothing was written. If the session is over, the multi fails with the session's error, and nothing
    /// was written either. The list of results starts with that of the check.
    ///
    /// ```
    /// use quorate::{CreateMode, Error, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// let guard = session.lock("/lock")?.acquire().wait()?;
    /// guard.fenced().create("/report", b"1", CreateMode::Persistent).commit().wait()?;
    /// cluster.node(1).session().delete(guard.path()).wait()?;
    /// let late = guard.fenced().set("/report", b"2").commit();
    /// assert!(matches!(late.wait(), Err(Error::Multi { index: 0, .. })));
    /// assert_eq!(&session.get("/report").wait()?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fenced(&self) -> Multi<'_> {
        self.session().multi().fence(&self.fence())
    }

    /// The check of [`Held::fenced`], for any [`Multi`] or [`Transaction`](crate::Transaction), also of another
    /// session.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = session.lock("/lock")?.acquire().wait()?;
    /// let fence = guard.fence();
    /// session.multi().fence(&fence).create("/a", b"", CreateMode::Persistent).commit().wait()?;
    /// guard.release().wait()?;
    /// assert!(session.multi().fence(&fence).delete("/a").commit().wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fence(&self) -> Fence {
        self.ephemeral.fence()
    }

    /// A channel that reports the loss: it gets a message, or closes. For `select!`; call [`Held::is_held`] after
    /// that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let guard = cluster.node(0).session().lock("/lock")?.acquire().wait()?;
    /// cluster.isolate(0);
    /// cluster.advance(Duration::from_secs(60));
    /// crossbeam_channel::select! {
    ///     recv(guard.lost()) -> _ => assert!(!guard.is_held()),
    /// }
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn lost(&self) -> &Receiver<WatchEvent> {
        self.watch.events()
    }

    /// Waits until it is lost, that is, until [`Held::is_held`] is false, and returns the reason. Any number of
    /// threads and tasks may wait, and all are woken.
    ///
    /// ```
    /// use quorate::recipes::Lost;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let guard = session.lock("/lock")?.acquire().wait()?;
    /// session.delete(guard.path()).wait()?;
    /// assert_eq!(guard.wait_lost().wait()?, Lost::Deleted);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn wait_lost(&self) -> Pending<'_, Lost> {
        let lost = async { Ok(self.ephemeral.lost(&self.watch).await) };
        self.session().steps("wait_lost", self.path(), lost).unlimited()
    }

    /// Releases it. Every guard has this call.
    ///
    /// # Errors
    /// As [`Session::delete`], except [`Error::Busy`](crate::Error::Busy); not an error if it was already lost.
    /// After [`Error::Timeout`](crate::Error::Timeout) the release continues.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let lock = session.lock("/lock")?;
    /// lock.acquire().wait()?.release().wait()?;
    /// assert!(lock.try_acquire().wait()?.is_some());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn release(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("release", &path, self.releasing())
    }

    async fn releasing(self) -> Result<()> {
        lost_anyway(match self.ephemeral.begin_deletion() {
            Ok(deletion) => deletion.await,
            Err(error) => Err(error),
        })
    }
}

/// Makes a type a guard: it dereferences to what it holds, which is [`Held`] or another guard, and its release
/// consumes it.
macro_rules! guard {
    ($Guard:ident, $held:ident: $Target:ty) => {
        impl ::std::ops::Deref for $Guard {
            type Target = $Target;

            fn deref(&self) -> &$Target {
                &self.$held
            }
        }

        impl $Guard {
            /// Releases it: see [`Held::release`](crate::recipes::Held::release).
            ///
            /// # Errors
            /// As [`Held::release`](crate::recipes::Held::release).
            pub fn release(self) -> $crate::Pending<'static, ()> {
                self.$held.release()
            }
        }
    };
}

pub(super) use guard;
