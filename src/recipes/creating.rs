//! Writes in flight that create a znode. If one is dropped before its reply, the znode is deleted
//! as soon as it exists.

use crate::api::session::Session;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::{CreateMode, Created, OpResult};

/// A write in flight that creates one znode: a create, or a multi with one.
struct Creating<T: 'static> {
    session: Session,
    /// `None` once the reply has arrived.
    pending: Option<Pending<'static, T>>,
    /// What it has created.
    created: fn(T) -> Result<Created>,
}

impl<T: 'static> Creating<T> {
    fn new(
        session: &Session,
        pending: Pending<'static, T>,
        created: fn(T) -> Result<Created>,
    ) -> Creating<T> {
        Creating { session: session.clone(), pending: Some(pending), created }
    }

    /// Waits for the reply. From then on, the caller is responsible for deleting the znode.
    async fn answer(mut self) -> Result<T> {
        let Some(pending) = &mut self.pending else {
            return Err(Error::Stopped { reason: "it was waited for already".to_owned() });
        };
        // Polled in place, so that a drop during the wait finds it.
        let answer = pending.await;
        self.pending = None;
        answer
    }
}

impl<T: 'static> Drop for Creating<T> {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let (discard, root, created) =
            (self.session.discarding(), self.session.root.clone(), self.created);
        pending.then(move |answer| {
            if let Ok(created) = answer.and_then(created) {
                discard(root.full(&created.path).into_owned(), created.stat.czxid);
            }
        });
    }
}

/// Creates an ephemeral znode.
pub(super) async fn create_ephemeral(
    session: &Session,
    path: &str,
    data: &[u8],
    mode: CreateMode,
) -> Result<OwnedEphemeral> {
    let pending = session.create(path, data, mode);
    let Created { path, stat } = Creating::new(session, pending, Ok).answer().await?;
    Ok(OwnedEphemeral::new(session, &path, &stat))
}

/// Waits for a multi that creates one ephemeral znode.
pub(super) async fn created_in_multi(
    session: &Session,
    pending: Pending<'static, Vec<OpResult>>,
) -> Result<OwnedEphemeral> {
    let Created { path, stat } =
        created_among(Creating::new(session, pending, created_among).answer().await?)?;
    Ok(OwnedEphemeral::new(session, &path, &stat))
}

/// Waits for a multi that takes an item of a queue with a claim. Returns the item's path, its data and the claim.
pub(super) async fn claimed_in_multi(
    session: &Session,
    pending: Pending<'static, Vec<OpResult>>,
) -> Result<(String, Vec<u8>, OwnedEphemeral)> {
    let results = Creating::new(session, pending, created_among).answer().await?;
    let taken = results.into_iter().find_map(|result| match result {
        OpResult::Taken { path, data, claim: Some(claim) } => Some((path, data, claim)),
        _ => None,
    });
    let Some((path, data, Created { path: claim, stat })) = taken else {
        return Err(Error::Stopped { reason: "nothing was taken".to_owned() });
    };
    Ok((path, data, OwnedEphemeral::new(session, &claim, &stat)))
}

/// The znode that a multi with one create has created.
pub(super) fn created_among(results: Vec<OpResult>) -> Result<Created> {
    let created = results.into_iter().find_map(|result| match result {
        OpResult::Created(created) | OpResult::Taken { claim: Some(created), .. } => Some(created),
        _ => None,
    });
    created.ok_or_else(nothing_created)
}

/// Never happens: every caller's write contains a create.
fn nothing_created() -> Error {
    Error::Stopped { reason: "nothing was created".to_owned() }
}
