//! Detaching sessions, so that they outlive their holder.

use std::time::Duration;

use crate::api::coordinator::Coordinator;
use crate::api::session::Session;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::SessionId;

/// How long [`Coordinator::close_keeping_sessions`] waits for the requests of its sessions.
const KEEPING_TIME: Duration = Duration::from_secs(1);

impl Session {
    /// Detaches the session: leaves it open in the cluster, to be resumed by another process, or by
    /// this one after a restart. Returns the id and the password for
    /// [`Coordinator::resume`](crate::Coordinator::resume).
    ///
    /// The session's ephemeral znodes stay. If nobody resumes the session within its timeout, it
    /// expires. For its handles in this process the session is over: calls fail with
    /// [`Error::SessionDetached`], its watches end, and guards of its locks and leaderships hold
    /// nothing any more. The znodes of these locks stay too, so that nobody else gets the locks
    /// before the session is closed or expires.
    ///
    /// Waits until the session's earlier calls have been answered, at most for the request timeout.
    /// [`Coordinator::close_keeping_sessions`](crate::Coordinator::close_keeping_sessions) does this for all sessions
    /// of an instance.
    ///
    /// # Errors
    /// [`Error::Timeout`], after which the session is not detached; the errors of a session that is
    /// over.
    ///
    /// ```
    /// use quorate::{CreateMode, Error, SessionState, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.create("/mine", b"", CreateMode::Ephemeral).wait()?;
    /// let (id, password) = session.detach().wait()?;
    /// assert_eq!(session.state(), SessionState::Detached);
    /// assert!(matches!(session.get("/mine").wait(), Err(Error::SessionDetached { .. })));
    ///
    /// // The former instance may be gone by now.
    /// cluster.stop(0);
    /// let session = cluster.node(1).resume(id, password).wait()?;
    /// assert_eq!(session.ephemerals().wait()?, ["/mine"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn detach(&self) -> Pending<'_, (SessionId, [u8; 16])> {
        self.who_am_i().and_then(|_| self.detached())
    }

    /// Detaches the session, and returns what is needed to resume it.
    pub(crate) fn detached(&self) -> Result<(SessionId, [u8; 16])> {
        match self.let_go() {
            true => Ok((self.id(), self.password())),
            false => {
                self.check_alive()?;
                Err(Error::SessionClosed { session: self.id() })
            }
        }
    }

    /// Detaches the session without waiting; returns whether it was open and is now detached.
    pub(crate) fn let_go(&self) -> bool {
        self.inner.shared.detach(&self.inner.session)
    }
}

/// Closing without closing the sessions.
impl Coordinator {
    /// As [`Coordinator::close`], without closing the sessions: each is detached (see
    /// [`Session::detach`]) and can be resumed, by another instance or by this one after its
    /// restart. Returns their ids and passwords.
    ///
    /// In this way an instance keeps its ephemeral znodes through a restart that takes less than
    /// the sessions' timeouts. Anybody who has a password can take over the session: store them
    /// where only the next process can read them. Sessions that are not open yet, or are over, are
    /// not included.
    ///
    /// Blocks for a second at most until the sessions' requests have been answered; the others fail
    /// with [`Error::OutcomeUnknown`]. After that it takes as long as [`Coordinator::close`].
    ///
    /// ```
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.create("/mine", b"", CreateMode::Ephemeral).wait()?;
    /// let kept = cluster.node(0).close_keeping_sessions().wait()?;
    ///
    /// // The new process does this.
    /// cluster.restart(0);
    /// let (id, password) = kept[0];
    /// let session = cluster.node(0).resume(id, password).wait()?;
    /// assert_eq!(session.ephemerals().wait()?, ["/mine"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn close_keeping_sessions(&self) -> Pending<'static, Vec<(SessionId, [u8; 16])>> {
        self.work("close", |coordinator| {
            let kept = coordinator.shared().detach_all(KEEPING_TIME);
            coordinator.close_now();
            Ok(kept)
        })
    }
}
