//! A participant in a two-phase commit: it votes, and learns the decision.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::session::Session;
use crate::recipes::codec::{Codec, Postcard};
use crate::recipes::errors::{if_exists, unless_gone, unless_overtaken};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::two_phase::{
    DecodedValue, Phase, Site, TransactionHeader, TwoPhaseCommit, Vote, alive, read,
};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::Condition;

/// A participant in a [`TwoPhaseCommit`]. If it is dropped before it has voted, it counts as lost,
/// and the coordinator aborts the transaction.
///
/// See [`TwoPhaseCommit`] for an example.
/// ```
/// use quorate::{recipes::{Phase, TwoPhaseCommit, Vote}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let transaction = TwoPhaseCommit::new(&session, "/transactions/7")?;
/// transaction.begin(&["shop"], b"one apple").wait()?;
/// let shop = transaction.join("shop").wait()?;
/// assert_eq!(shop.proposal(), b"one apple");
/// assert_eq!(shop.vote(Vote::Yes).wait()?, Phase::Voting);
/// transaction.decide().wait()?;
/// assert_eq!(shop.outcome().wait()?, Phase::Committed);
/// shop.acknowledge().wait()?;
/// assert!(transaction.forget().wait()?);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Participant {
    transaction: TwoPhaseCommit,
    path: String,
    proposal: Vec<u8>,
    /// Present until it has voted.
    alive: Mutex<Option<OwnedEphemeral>>,
}

impl Participant {
    fn session(&self) -> &Session {
        &self.transaction.session
    }

    fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn new(
        transaction: &TwoPhaseCommit,
        path: String,
        proposal: Vec<u8>,
        alive: Option<OwnedEphemeral>,
    ) -> Participant {
        let (transaction, alive) = (transaction.clone(), Mutex::new(alive));
        Participant { transaction, path, proposal, alive }
    }

    /// The proposal.
    pub fn proposal(&self) -> &[u8] {
        &self.proposal
    }

    /// Votes, and returns the resulting phase. A vote of `No` aborts the transaction. The same vote may be given
    /// again by the same name, even after the participant was lost and has joined again. From a vote of `Yes` on, the
    /// participant must be able to commit, also after [`Error::Timeout`].
    ///
    /// If the transaction is already decided and this participant has not voted, the transaction
    /// was aborted; then nothing is written.
    ///
    /// # Errors
    /// [`Error::NoNode`] if another participant has joined by this name since, or the transaction
    /// is forgotten; [`Error::InvalidData`] if the other vote was already given; otherwise as
    /// [`TwoPhaseCommit::decide`].
    pub fn vote(&self, vote: Vote) -> Pending<'_, Phase> {
        self.session().steps("vote", self.path(), self.voting(vote))
    }

    async fn voting(&self, vote: Vote) -> Result<Phase> {
        let transaction = &self.transaction;
        let alive_path = alive(&self.path);
        loop {
            let snapshot = transaction.session.in_turn().snapshot_of(&transaction.path).await?;
            let header = transaction.header(&snapshot)?;
            let phase = header.value.phase;
            let site: DecodedValue<Site> = read(&snapshot, &self.path)?;
            match site.value {
                Site::Voted(given) if given != vote => return Err(self.has_voted(given)),
                // A committed transaction has the votes of all.
                Site::Acknowledged if phase == Phase::Committed && vote == Vote::No => {
                    return Err(self.has_voted(Vote::Yes));
                }
                Site::Voted(_) | Site::Acknowledged => return Ok(phase),
                Site::Invited | Site::Joined if phase != Phase::Voting => return Ok(phase),
                Site::Invited | Site::Joined => {}
            }
            let Some(czxid) = self.alive().as_ref().map(|ephemeral| ephemeral.czxid()) else {
                return Err(Error::NoNode { path: alive_path });
            };
            if snapshot.exists(&alive_path)?.is_none_or(|stat| stat.czxid != czxid) {
                transaction.session.check_alive()?;
                return Err(Error::NoNode { path: alive_path });
            }
            let written = unless!(VoteLost, vote, Vote::Yes);
            let mut multi = transaction
                .session
                .multi()
                .require(&self.path, Condition::Mzxid(site.mzxid))
                .require(&alive_path, Condition::Czxid(czxid))
                .delete(&alive_path)
                .set(&self.path, transaction.encode(&Site::Voted(written))?);
            let after = if written == Vote::No {
                multi = transaction.deciding(multi, &header, Phase::Aborted)?;
                Phase::Aborted
            } else {
                let condition = Condition::Mzxid(header.mzxid);
                multi = multi.require(&transaction.path, condition);
                Phase::Voting
            };
            if unless_overtaken(multi.commit().await)?.is_some() {
                if let Some(ephemeral) = self.alive().take() {
                    ephemeral.forget();
                }
                return Ok(after);
            }
        }
    }

    fn has_voted(&self, given: Vote) -> Error {
        let (path, reason) = (self.path.clone(), format!("it has voted {given:?}"));
        Error::InvalidData { path, reason }
    }

    fn alive(&self) -> MutexGuard<'_, Option<OwnedEphemeral>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the transaction is decided, for as long as the session lives, and returns the decision.
    ///
    /// # Errors
    /// As [`TwoPhaseCommit::phase`].
    pub fn outcome(&self) -> Pending<'_, Phase> {
        self.session().steps("outcome", self.path(), self.waiting()).unlimited()
    }

    async fn waiting(&self) -> Result<Phase> {
        let TwoPhaseCommit { session, path } = &self.transaction;
        loop {
            let (data, _, watch) = session.get_and_watch(path).await?;
            let header: TransactionHeader = Postcard::decode(&data)
                .map_err(|reason| Error::InvalidData { path: path.clone(), reason })?;
            if header.phase != Phase::Voting {
                return Ok(unless!(OutcomeMistold, header.phase, Phase::Aborted));
            }
            // The znode has changed, or this session is over: look again.
            watch.next().await;
        }
    }

    /// Records that this participant knows the outcome and has acted on it, so that the transaction can be forgotten.
    ///
    /// # Errors
    /// [`Error::InvalidData`] if nothing is decided yet; otherwise as
    /// [`Session::set`](crate::Session::set). Not an error if the transaction is already forgotten.
    pub fn acknowledge(&self) -> Pending<'_, ()> {
        self.session().steps("acknowledge", self.path(), self.acknowledging())
    }

    async fn acknowledging(&self) -> Result<()> {
        let transaction = &self.transaction;
        let snapshot = transaction.session.in_turn().snapshot_of(&transaction.path).await?;
        let Some(header) = if_exists(transaction.header(&snapshot))? else { return Ok(()) };
        if header.value.phase == Phase::Voting {
            let (path, reason) = (transaction.path.clone(), "nothing is decided yet".to_owned());
            return Err(Error::InvalidData { path, reason });
        }
        let known = transaction.encode(&Site::Acknowledged)?;
        let condition = Condition::Mzxid(header.mzxid);
        let multi = transaction.session.multi().require(&transaction.path, condition);
        // Not an error if the transaction was forgotten, or if another one has begun at this path.
        unless_gone(multi.set(&self.path, known).commit().await).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    fn transaction(session: &Session) -> TwoPhaseCommit {
        let transaction = TwoPhaseCommit::new(session, "/tx").unwrap();
        transaction.begin(&["a", "b"], b"proposal").wait().unwrap();
        transaction
    }

    #[test]
    fn a_vote_is_given_once() {
        let session = Cluster::new(1).node(0).session();
        let transaction = transaction(&session);
        let a = transaction.join("a").wait().unwrap();
        assert_eq!(a.proposal(), b"proposal");
        assert_eq!(
            [a.vote(Vote::Yes).wait(), a.vote(Vote::Yes).wait()],
            [const { Ok(Phase::Voting) }; 2]
        );
        let other = a.vote(Vote::No);
        assert!(matches!(other.wait(), Err(Error::InvalidData { path, .. }) if path == "/tx/a"));
        // The vote still binds the participant after it was lost and has joined again.
        drop(a);
        let a = transaction.join("a").wait().unwrap();
        assert!(a.vote(Vote::No).wait().is_err());
        assert!(a.acknowledge().wait().is_err(), "nothing is decided");
        transaction.join("b").wait().unwrap().vote(Vote::Yes).wait().unwrap();
        assert_eq!(transaction.decide().wait(), Ok(Phase::Committed));
        assert_eq!(a.vote(Vote::Yes).wait(), Ok(Phase::Committed));
        a.acknowledge().wait().unwrap();
        assert!(a.vote(Vote::No).wait().is_err(), "also after it has acknowledged");
        assert_eq!(a.vote(Vote::Yes).wait(), Ok(Phase::Committed));
    }

    #[test]
    fn a_vote_against_aborts_before_the_others_vote() {
        let session = Cluster::new(1).node(0).session();
        let transaction = transaction(&session);
        let (a, b) = (transaction.join("a").wait().unwrap(), transaction.join("b").wait().unwrap());
        assert_eq!(a.vote(Vote::No).wait(), Ok(Phase::Aborted));
        assert_eq!(
            b.vote(Vote::Yes).wait(),
            Ok(Phase::Aborted),
            "it learns of the abort, and is not bound"
        );
        assert_eq!(
            [b.outcome().wait(), transaction.decide().wait()],
            [Ok(Phase::Aborted), Ok(Phase::Aborted)]
        );
        assert_eq!(transaction.forget().wait(), Ok(true), "nobody is bound");
        assert_eq!(b.acknowledge().wait(), Ok(()), "it has been forgotten");
        assert!(matches!(b.outcome().wait(), Err(Error::NoNode { .. })));
    }

    #[test]
    fn a_replaced_participant_has_no_vote() {
        let session = Cluster::new(1).node(0).session();
        let transaction = transaction(&session);
        let former = transaction.join("a").wait().unwrap();
        let present = transaction.join("a").wait().unwrap();
        assert!(matches!(former.vote(Vote::No).wait(), Err(Error::NoNode { .. })));
        drop(former);
        assert_eq!(present.vote(Vote::Yes).wait(), Ok(Phase::Voting), "it is alive");
        // A participant that somebody has declared dead notices that.
        let b = transaction.join("b").wait().unwrap();
        session.delete("/tx/b/alive").wait().unwrap();
        assert!(matches!(b.vote(Vote::Yes).wait(), Err(Error::NoNode { .. })));
        assert_eq!(transaction.decide().wait(), Ok(Phase::Aborted));
    }
}
