//! Ephemeral znodes that are somebody's, and go with whoever drops them: by their path and czxid, so
//! that never another's goes that has come in their place.

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::machine::command::Reply;
use crate::node::io::Answer;
use crate::recipes::owned_ephemeral::Fate;
use crate::recipes::parents::is_no_root;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::{Created, OpResult, Zxid};

/// A znode that was created. Dropped, it is deleted, without waiting for that.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) session: Session,
    pub(super) path: String,
    pub(super) czxid: Zxid,
    fate: Fate,
    /// It is nobody's any more.
    given_up: bool,
}

impl Own {
    fn new(session: &Session, created: Created) -> Own {
        let (path, czxid) = (created.path, created.stat.czxid);
        Own { session: session.clone(), path, czxid, fate: Fate::default(), given_up: false }
    }

    /// What its deletion is told by, for sure from here on. On a client [`Own::is_there`] knows of it
    /// then.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it is gone already.
    pub(super) async fn watch(&self) -> Result<Watch> {
        self.fate.follow(&self.session, &self.path, self.czxid).await
    }

    /// Whether it is there at this moment: the session is surely alive, and this replica knows of no
    /// deletion.
    pub(super) fn is_there(&self) -> bool {
        if !self.session.has_replica() {
            return self.session.is_alive() && !self.fate.is_deleted();
        }
        let stat = self.session.exists(&self.path).ok().flatten();
        self.session.is_alive() && stat.is_some_and(|stat| stat.czxid == self.czxid)
    }

    /// It is left to whoever deletes it otherwise.
    pub(super) fn forget(mut self) {
        self.given_up = true;
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if !self.given_up {
            let path = self.session.root.full(&self.path).into_owned();
            self.session.discarding()(path, self.czxid);
        }
    }
}

/// A multi under way that creates one znode. Dropped before that is there, it is deleted as soon as
/// it is.
pub(super) struct Making {
    session: Session,
    creating: Option<Pending<Vec<OpResult>>>,
}

impl Making {
    pub(super) fn new(session: &Session, creating: Pending<Vec<OpResult>>) -> Making {
        Making { session: session.clone(), creating: Some(creating) }
    }

    /// The znode, once it is there.
    pub(super) async fn made(mut self) -> Result<Own> {
        let results = match &mut self.creating {
            // Polled in place, so that a drop in between finds it.
            Some(creating) => inner(creating.await),
            None => Ok(Vec::new()),
        };
        self.creating = None;
        match results?.into_iter().find_map(created) {
            Some(created) => Ok(Own::new(&self.session, created)),
            // Whoever makes one asks for a create.
            None => Err(Error::Stopped { reason: "nothing was created".to_owned() }),
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(creating) = self.creating.take() {
            discard_when_made(&self.session, creating);
        }
    }
}

/// Deletes the znode that a write under way creates, as soon as it is there.
pub(super) fn discard_when_made<T>(session: &Session, creating: Pending<T>) {
    let discard = session.discarding();
    creating.then(move |answer| {
        let made = match answer {
            Ok(Answer::Reply(Reply::Created(created))) => Some(created),
            Ok(Answer::Reply(Reply::Multi(results))) => results.into_iter().find_map(created),
            _ => None,
        };
        if let Some(made) = made {
            discard(made.path, made.stat.czxid);
        }
    });
}

fn created(result: OpResult) -> Option<Created> {
    match result {
        OpResult::Created(created) => Some(created),
        _ => None,
    }
}

/// Who calls it a multi is not the caller.
pub(super) fn inner(committed: Result<Vec<OpResult>>) -> Result<Vec<OpResult>> {
    committed.map_err(|error| match error {
        Error::Multi { error, .. } => *error,
        error => error,
    })
}

/// Whether a multi failed because somebody else was first.
pub(super) fn is_overtaken(error: &Error) -> bool {
    let others =
        matches!(error, Error::Unmet { .. } | Error::NoNode { .. } | Error::NodeExists { .. });
    others && !is_no_root(error)
}
