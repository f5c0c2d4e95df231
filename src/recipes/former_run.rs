//! Taking over an ephemeral znode that this instance's former run has left.
//!
//! After a crash, the sessions of an instance stay until their timeouts have passed, and so do their
//! znodes. A recipe whose znode has a name of its own finds that name taken by itself. The session table
//! tells whose session a znode belongs to: a member has the same id after a restart, and nobody else
//! starts with its data directory. So if the session was held by handles of this member, and none of its
//! handles holds it now, then the znode is taken over, by one write. Everything else is left alone: the
//! znodes of other instances, of living sessions of this one, and of a gateway's clients, which may
//! resume their sessions at another member.
//!
//! A client of the cluster, which has another id at each start, never takes anything over.
//!
//! Locks and elections do not do this. What the former run had begun under a lock may still go on, a
//! request in flight or a child process; for that, others wait until the session has expired, and so
//! does the next run.

use crate::api::session::Session;
use crate::recipes::creating::{create_ephemeral, created_in_multi};
use crate::recipes::errors::unless_overtaken;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, CreateMode, OpResult, SessionId, Zxid};

/// An ephemeral znode that a former run has left.
pub(super) struct FormerEphemeral {
    czxid: Zxid,
    owner: SessionId,
}

impl FormerEphemeral {
    /// Returns the znode at this path, if a former run of this instance has left it.
    pub(super) async fn at(session: &Session, path: &str) -> Result<Option<FormerEphemeral>> {
        if !session.has_replica() {
            return Ok(None);
        }
        let Some(stat) = session.in_turn().exists(path).await? else { return Ok(None) };
        let Some(owner) = stat.ephemeral_owner else { return Ok(None) };
        let left = session.shared().has_left(owner).await?;
        Ok(left.then_some(FormerEphemeral { czxid: stat.czxid, owner }))
    }

    /// Replaces the znode by one of this session, unless it has changed hands.
    pub(super) fn take_over(
        &self,
        session: &Session,
        path: &str,
        data: &[u8],
    ) -> Pending<'static, Vec<OpResult>> {
        // Without the condition, it would set the data of a znode that this session has meanwhile
        // created.
        let multi = session.multi().require(path, Condition::Czxid(self.czxid));
        multi.take_over(path, data, self.owner).commit()
    }
}

/// Creates an ephemeral znode, or takes over the one that a former run of this instance has left.
///
/// # Errors
/// [`Error::NodeExists`] if there is any other znode; otherwise as [`Session::create`].
pub(super) async fn create_or_take_over(
    session: &Session,
    path: &str,
    data: &[u8],
    mode: CreateMode,
) -> Result<OwnedEphemeral> {
    loop {
        let error = match create_ephemeral(session, path, data, mode).await {
            Err(error @ Error::NodeExists { .. }) => error,
            created => return created,
        };
        let Some(left) = FormerEphemeral::at(session, path).await? else { return Err(error) };
        let taken = created_in_multi(session, left.take_over(session, path, data)).await;
        // Otherwise the former session has expired just now.
        if let Some(taken) = unless_overtaken(taken)? {
            return Ok(taken);
        }
    }
}
