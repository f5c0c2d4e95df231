//! Handing a leadership over to another candidate.
//!
//! The write that ends the leadership requires that the successor is there, and that nobody was given a place since
//! the leader has seen it as the next one. So the successor is the first candidate from that write on. Its znode is
//! younger than every place that was given before, so its token is larger than all before.
//!
//! A candidate that is not the next one, or is older, is called forward: the leader creates an ephemeral znode for
//! which that candidate waits ([`call_path`]). A change of the candidate's own znode would not do: Curator's `LeaderLatch`
//! behind it waits for one event, and misses its turn if that is not the deletion.

use super::campaign::{Election, call_path, origin};
use super::{Candidate, Leadership, candidate};
use crate::api::snapshot::Snapshot;
use crate::recipes::contenders::ListedContender;
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{if_exists, unless_overtaken};
use crate::recipes::owned_ephemeral::{GivingUp, OwnedEphemeral};
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, CreateMode, Zxid};

/// What one look at the candidates leads to.
enum HandOverStep {
    Done(Candidate),
    LookAgain,
    Wait,
}

impl Leadership {
    /// Hands the leadership over to this candidate, wherever it waits in the order, and returns it as it leads, with
    /// its token. Waits until then, for as long as the session lives.
    ///
    /// At no moment do two candidates lead, and none does without one: a single write ends this leadership and
    /// begins the other. [`Held::is_held`](crate::recipes::Held::is_held) turns false before it.
    /// The candidate may not have noticed yet that it leads.
    ///
    /// The token is the least that it has: if others are placed behind it before it looks, it takes a larger one.
    ///
    /// A candidate that is not the next one comes forward when the leader calls it, and stays there, also if the
    /// hand-over is given up; the others keep their order.
    /// Those of other libraries do not, so such a candidate is waited for until it is the next one.
    ///
    /// After an error this one still leads, unless it has lost the lead, or the outcome of the write that decides
    /// is unknown ([`Error::is_outcome_unknown`](crate::Error::is_outcome_unknown)): then it resigns. If it is given up ([`Error::Timeout`](crate::Error::Timeout)) or dropped, it still leads too, unless that was during the write that decides: then it
    /// resigns, and the next one leads. `is_held` tells.
    /// Returns at once if the candidate is this one, which still leads.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) with the path of the candidate if it no longer is one, or with the
    /// path of this one if it has lost the lead; the errors of a session that is over;
    /// [`Error::NoAuth`](crate::Error::NoAuth) if the session may not create or delete below the election's znode.
    ///
    /// ```
    /// use quorate::recipes::LeaderLatch;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let latch = |node: usize| {
    ///     LeaderLatch::new(&cluster.node(node).session(), "/leader", format!("host-{node}"))
    /// };
    /// let (zero, two) = (latch(0)?, latch(2)?);
    /// let mut leadership = zero.campaign().wait()?;
    /// let other = std::thread::spawn(move || two.campaign().wait());
    /// let candidate = loop {
    ///     if let Some(candidate) = zero.candidates().wait()?.into_iter().find(|it| it.name() == "host-2") {
    ///         break candidate;
    ///     }
    /// #   cluster.advance(std::time::Duration::from_millis(10));
    /// };
    /// let leader = leadership.hand_over_to(&candidate).wait()?;
    /// assert!(!leadership.is_held());
    /// let other = other.join().expect("no panic")?;
    /// assert_eq!((leader.name(), leader.fencing_token()), ("host-2".into(), Some(other.fencing_token())));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn hand_over_to<'a>(&'a mut self, candidate: &'a Candidate) -> Pending<'a, Candidate> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session
            .steps("hand_over_to", &path, self.handing_over(Some(candidate), false))
            .unlimited()
            .unknown()
    }

    /// Hands the leadership over to the next candidate, and returns it as it leads, with its token: for a
    /// shutdown. If there is no other candidate, waits until there is one, for as long as the session lives.
    ///
    /// As [`Leadership::hand_over_to`] otherwise. A candidate of another library takes over when it is the next
    /// one, too.
    ///
    /// # Errors
    /// [`Error::NoNode`](crate::Error::NoNode) if this one has lost the lead; the errors of a session that is
    /// over; [`Error::NoAuth`](crate::Error::NoAuth).
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::recipes::LeaderLatch;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let mut leadership = LeaderLatch::new(&session, "/leader", "me")?.campaign().wait()?;
    /// match leadership.hand_over().timeout(Duration::from_millis(1)).wait() {
    ///     Ok(leader) => println!("{} leads now", leader.name()),
    ///     // There is nobody else: the cluster has no leader until somebody comes.
    ///     Err(_) => leadership.release().wait()?,
    /// }
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn hand_over(&mut self) -> Pending<'_, Candidate> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("hand_over", &path, self.handing_over(None, false)).unlimited().unknown()
    }

    /// Hands over to a candidate, or to the next one. If this `ends` the leadership in any case, nothing is taken
    /// back from the first attempt on.
    pub(crate) async fn handing_over(
        &self,
        to: Option<&Candidate>,
        ends: bool,
    ) -> Result<Candidate> {
        let (session, election) = (self.contenders.session(), self.contenders.path());
        let (mut giving_up, mut call) = (None, None);
        loop {
            let watching = session.children_and_watch(election).await;
            let Some((_, watch)) = if_exists(watching)? else { return Err(self.is_lost()) };
            let snapshot = session.snapshot_of(election).await?;
            let stepped = self.step(&snapshot, to, &mut giving_up, &mut call).await;
            let is_unknown = stepped.as_ref().is_err_and(Error::is_outcome_unknown);
            if !ends
                && !is_unknown
                && let Some(giving_up) = giving_up.take()
            {
                giving_up.undo();
            }
            match stepped? {
                HandOverStep::Done(leader) => return Ok(leader),
                HandOverStep::LookAgain => {}
                HandOverStep::Wait => {
                    if watch.next().await.is_none() {
                        session.check_alive()?;
                    }
                }
            }
        }
    }

    fn is_lost(&self) -> Error {
        Error::NoNode { path: self.path().to_owned() }
    }

    async fn step<'a>(
        &'a self,
        snapshot: &Snapshot,
        to: Option<&Candidate>,
        giving_up: &mut Option<GivingUp<'a>>,
        call: &mut Option<OwnedEphemeral>,
    ) -> Result<HandOverStep> {
        let czxid = snapshot.exists(self.path())?.map(|stat| stat.czxid);
        if czxid != Some(self.held.ephemeral.czxid()) {
            return Err(self.is_lost());
        }
        let listed = self.contenders.list_in(snapshot)?;
        let own = listed.iter().position(|contender| contender.path == self.path());
        let next = own.map_or(0, |own| own + 1);
        let at = match to {
            Some(to) => Some(find(snapshot, &listed, to)?),
            None => (next < listed.len()).then_some(next),
        };
        let Some(at) = at else { return Ok(HandOverStep::Wait) };
        let successor = candidate(snapshot, &listed[at])?;
        if own == Some(at) {
            return Ok(HandOverStep::Done(successor));
        }
        let election = Election::new(snapshot.get(self.contenders.path())?);
        let is_ready = at == next && (!successor.is_ours() || successor.czxid >= election.placed);
        if is_ready {
            return self.commit(successor, election.placed, giving_up).await;
        }
        if successor.is_ours() && !self.calls(snapshot, &successor, call).await? {
            return Ok(HandOverStep::LookAgain);
        }
        Ok(HandOverStep::Wait)
    }

    /// Calls a candidate forward, unless the last call is one that it has not followed yet. False if its znode is
    /// another one by now.
    async fn calls(
        &self,
        snapshot: &Snapshot,
        to: &Candidate,
        call: &mut Option<OwnedEphemeral>,
    ) -> Result<bool> {
        let path = call_path(self.contenders.path(), origin(&to.path, to.czxid));
        let mut calling = self.held.ephemeral.multi().require(&to.path, Condition::Czxid(to.czxid));
        match snapshot.exists(&path)? {
            Some(last) if last.czxid > to.czxid => return Ok(true),
            Some(_) => calling = calling.delete(&path),
            None => {}
        }
        let calling = calling.create(&path, &to.id, CreateMode::Ephemeral).commit();
        let called = created_in_multi(self.contenders.session(), calling).await;
        *call = unless_overtaken(called)?;
        Ok(call.is_some())
    }

    /// Ends the leadership, if this successor leads from then on.
    async fn commit<'a>(
        &'a self,
        successor: Candidate,
        placed: Zxid,
        giving_up: &mut Option<GivingUp<'a>>,
    ) -> Result<HandOverStep> {
        // No longer held from here on, so that two do not lead when the write takes effect.
        if giving_up.is_none() {
            *giving_up = Some(self.held.ephemeral.give_up());
        }
        let multi = self.held.ephemeral.multi();
        let multi = multi
            .require(&successor.path, Condition::Czxid(successor.czxid))
            .require(self.contenders.path(), Condition::Mzxid(placed));
        let committed = multi.delete(self.path()).commit().await;
        if unless_overtaken(committed)?.is_none() {
            return Ok(HandOverStep::LookAgain);
        }
        if let Some(giving_up) = giving_up.take() {
            giving_up.done();
        }
        Ok(HandOverStep::Done(successor))
    }
}

/// Where a candidate is now. Its znode may be another one since it was listed.
fn find(snapshot: &Snapshot, listed: &[ListedContender], to: &Candidate) -> Result<usize> {
    let sought = origin(&to.path, to.czxid);
    for (at, contender) in listed.iter().enumerate() {
        if let Some(stat) = snapshot.exists(&contender.path)?
            && origin(&contender.path, stat.czxid) == sought
        {
            return Ok(at);
        }
    }
    Err(Error::NoNode { path: to.path.clone() })
}
