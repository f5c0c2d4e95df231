//! Replies to clients, compared with the one order of all writes (I1 to I5, I8 to I10).

use super::{Violation, require};
use crate::simulation::oracle::{Oracle, Outcome, ZnodeState};
use crate::types::error::Error;
use crate::types::znode::{SessionId, Zxid};

/// What every later request may rely on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Floor {
    /// The last entry whose write has a reply, to any client.
    pub(crate) index: u64,
    pub(crate) zxid: Zxid,
}

#[derive(Debug, Default)]
pub(crate) struct Order {
    floor: Floor,
    /// Writes of which the reply said that they never happen.
    never: Vec<(SessionId, u64, u64)>,
}

impl Order {
    pub(crate) fn floor(&self) -> Floor {
        self.floor
    }

    /// I1: a write that was sent after another one's reply comes after it in the log.
    pub(crate) fn answered(
        &mut self,
        asked: Floor,
        outcome: &Outcome,
        changed: bool,
    ) -> Result<(), Violation> {
        require(outcome.index > asked.index, "I1 writes in real-time order", || {
            format!("a write at {} was asked for after {} was answered", outcome.index, asked.index)
        })?;
        self.floor.index = self.floor.index.max(outcome.index);
        if changed {
            self.floor.zxid = self.floor.zxid.max(outcome.zxid);
        }
        Ok(())
    }

    pub(crate) fn never(&mut self, session: SessionId, holder: u64, seq: u64) {
        self.never.push((session, holder, seq));
    }

    /// I10, at the end of a run.
    pub(crate) fn settled(&self, oracle: &Oracle) -> Result<(), Violation> {
        for (session, holder, seq) in &self.never {
            let outcome = oracle.outcome(*session, *holder, *seq);
            let done = outcome.is_some_and(Outcome::is_done);
            require(!done, "I10 refused is not done", || {
                format!("request {seq} of session {session} was refused for good, and was done")
            })?;
        }
        Ok(())
    }
}

/// Whether an error says for certain that the write has not happened and never will.
pub(crate) fn is_definite(error: &Error) -> bool {
    !error.is_outcome_unknown()
}

/// I3: a read shows a state that its replica had between two zxids. Returns the earliest one that
/// fits. No later read of the session may show an older one.
pub(crate) fn read(
    oracle: &Oracle,
    path: &str,
    (from, to): (Zxid, Zxid),
    fits: impl Fn(Option<&ZnodeState>) -> bool,
    what: impl FnOnce() -> String,
) -> Result<Zxid, Violation> {
    let versions = oracle.versions(path, from, to);
    match versions.into_iter().find(|zxid| fits(oracle.at(path, *zxid))) {
        Some(zxid) => Ok(zxid),
        None => Err(Violation::new(
            "I3 reads show what was",
            format!(
                "{} at no zxid from {from} to {to}; at {to} it is {:?}",
                what(),
                oracle.at(path, to)
            ),
        )),
    }
}

/// The same for the ephemerals of a session.
pub(crate) fn read_ephemerals(
    oracle: &Oracle,
    session: SessionId,
    (from, to): (Zxid, Zxid),
    paths: &[String],
) -> Result<Zxid, Violation> {
    let changes = oracle.changes()[oracle.first_after(from)..].iter();
    let later = changes.map(|change| change.zxid).take_while(|zxid| *zxid <= to);
    let mut zxids = std::iter::once(from).chain(later);
    match zxids.find(|zxid| oracle.ephemerals(session, *zxid) == paths) {
        Some(zxid) => Ok(zxid),
        None => Err(Violation::new(
            "I3 reads show what was",
            format!(
                "the ephemerals of {session} were {paths:?} at no zxid from {from} to {to}; at {to} \
                 they are {:?}",
                oracle.ephemerals(session, to)
            ),
        )),
    }
}
