//! Writes in flight that create a znode. Whoever drops one before its answer gives the znode up: it
//! is deleted as soon as it exists.

use crate::api::session::Session;
use crate::machine::command::Reply;
use crate::node::query::Answer;
use crate::recipes::errors::inner;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::{CreateMode, Created, OpResult};

/// The creation of an ephemeral znode.
pub(super) struct CreatingEphemeral {
    session: Session,
    pending: Option<Pending<Created>>,
}

impl CreatingEphemeral {
    pub(super) fn new(session: &Session, path: &str, data: &[u8]) -> CreatingEphemeral {
        let pending = session.nonblocking().create(path, data, CreateMode::Ephemeral);
        CreatingEphemeral { session: session.clone(), pending: Some(pending) }
    }

    /// Waits for the znode.
    pub(super) async fn created(mut self) -> Result<OwnedEphemeral> {
        let Some(pending) = &mut self.pending else {
            return Err(Error::Stopped { reason: "it was waited for already".to_owned() });
        };
        // Polled in place, so that a drop in between finds it.
        let created = pending.await;
        self.pending = None;
        let Created { path, stat } = created?;
        Ok(OwnedEphemeral::new(&self.session, &path, stat.czxid))
    }
}

impl Drop for CreatingEphemeral {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            discard_when_created(&self.session, pending);
        }
    }
}

/// A multi that creates one znode.
pub(super) struct CreatingMulti {
    session: Session,
    pending: Option<Pending<Vec<OpResult>>>,
}

impl CreatingMulti {
    pub(super) fn new(session: &Session, pending: Pending<Vec<OpResult>>) -> CreatingMulti {
        CreatingMulti { session: session.clone(), pending: Some(pending) }
    }

    /// Waits for the znode.
    pub(super) async fn created(mut self) -> Result<OwnedEphemeral> {
        let results = match &mut self.pending {
            // Polled in place, so that a drop in between finds it.
            Some(pending) => inner(pending.await),
            None => Ok(Vec::new()),
        };
        self.pending = None;
        match results?.into_iter().find_map(created) {
            Some(Created { path, stat }) => {
                Ok(OwnedEphemeral::new(&self.session, &path, stat.czxid))
            }
            // Every caller's multi contains a create.
            None => Err(Error::Stopped { reason: "nothing was created".to_owned() }),
        }
    }
}

impl Drop for CreatingMulti {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            discard_when_created(&self.session, pending);
        }
    }
}

/// Deletes the znode that a write in flight creates, as soon as it exists.
pub(super) fn discard_when_created<T>(session: &Session, pending: Pending<T>) {
    let discard = session.discarding();
    pending.then(move |answer| {
        let created = match answer {
            Ok(Answer::Reply(Reply::Created(created))) => Some(created),
            Ok(Answer::Reply(Reply::Multi(results))) => results.into_iter().find_map(created),
            _ => None,
        };
        if let Some(created) = created {
            discard(created.path, created.stat.czxid);
        }
    });
}

fn created(result: OpResult) -> Option<Created> {
    match result {
        OpResult::Created(created) => Some(created),
        _ => None,
    }
}
