//! Two-phase commit: several participants commit a transaction, or none does.
//!
//! | znode | what it holds |
//! | --- | --- |
//! | `<path>` | the proposal, the participants, and the decision |
//! | `<path>/<participant>` | the participant's state, and its vote |
//! | `<path>/<participant>/alive` | ephemeral: the participant has joined, and has not voted yet |
//!
//! A decision is one write. Its conditions are that there is no decision yet and, to commit, that
//! the votes are those that were counted. So safety does not depend on who decides: any number of
//! coordinators may try, and the successor of a dead one continues from the state in the tree.
//!
//! Each participant watches only the first znode, and the coordinator watches everything: a vote
//! wakes the coordinator, and the decision wakes each participant once.
//!
//! Source: ZooKeeper, "Recipes and Solutions", Two-phased Commit, where every site watches every
//! other one, or waits for a coordinator that may be gone.

use serde::{Deserialize, Serialize};

use crate::api::multi::Multi;
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::codec::{Codec, Postcard};
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{if_exists, inner, unless_gone, unless_overtaken};
use crate::recipes::parents::create_at;
use crate::recipes::participant::Participant;
use crate::recipes::registry::name_in;
use crate::recipes::waiting::next_event;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::watch::WatchMode;
use crate::types::znode::{Condition, CreateMode, Zxid};

/// The phase of a transaction.
///
/// ```
/// use quorate::{recipes::{Phase, TwoPhaseCommit}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let transaction = TwoPhaseCommit::new(&session, "/transactions/7")?;
/// transaction.begin(&["shop", "bank"], b"one apple").wait()?;
/// assert_eq!(transaction.phase().wait()?, Phase::Voting);
/// assert_eq!(transaction.abort().wait()?, Phase::Aborted);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not decided yet.
    Voting,
    /// All have voted `Yes`: each participant has to commit. Final.
    Committed,
    /// No participant may commit. Final.
    Aborted,
}

/// A participant's vote.
///
/// ```
/// use quorate::{recipes::{Phase, TwoPhaseCommit, Vote}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let transaction = TwoPhaseCommit::new(&session, "/transactions/7")?;
/// transaction.begin(&["shop", "bank"], b"one apple").wait()?;
/// let phase = transaction.join("shop").wait()?.vote(Vote::No).wait()?;
/// assert_eq!(phase, Phase::Aborted, "nobody waits for the others");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vote {
    /// The participant can commit, and will if that is the decision, even if it is restarted in
    /// between.
    Yes,
    /// The participant cannot commit.
    No,
}

/// The data of the transaction's znode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TransactionHeader {
    #[serde(with = "PhaseForm")]
    pub(super) phase: Phase,
    pub(super) participants: Vec<String>,
    pub(super) proposal: Vec<u8>,
}

/// The data of a participant's znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Site {
    Invited,
    Joined,
    Voted(#[serde(with = "VoteForm")] Vote),
    /// The participant had voted `Yes`, and knows the decision.
    Acknowledged,
}

/// The form in the data.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Phase")]
enum PhaseForm {
    Voting,
    Committed,
    Aborted,
}

/// The form in the data.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Vote")]
enum VoteForm {
    Yes,
    No,
}

/// A decoded value, and the zxid of the write that made it.
pub(super) struct DecodedValue<T> {
    pub(super) value: T,
    pub(super) mzxid: Zxid,
}

/// The znodes of votes, each with the zxid of its last write.
type Votes = Vec<(String, Zxid)>;

/// A transaction that several participants agree on: all commit it, or none does.
///
/// It is [begun](TwoPhaseCommit::begin) with a proposal and a list of participants. Each
/// participant [joins](TwoPhaseCommit::join) and [votes](Participant::vote), and a coordinator
/// [decides](TwoPhaseCommit::decide): the process that began it, or any other.
///
/// - **It is committed only if all have voted `Yes`**, and there is one decision, which is final.
///   Both are conditions of the write that decides, so they hold for any number of concurrent
///   coordinators.
/// - **A coordinator may die at any time.** Another one that calls `decide` continues from the
///   votes that exist, or finds the decision.
/// - A vote of `No` aborts it at once. The coordinator also aborts it if a participant that has
///   joined and not voted is lost: its session is over, or its [`Participant`] was dropped. The
///   coordinator waits for a participant that has not joined, without a limit of its own
///   ([`Pending::timeout`]).
/// - A participant that has voted `Yes` is bound. After a restart it joins again by the same name,
///   and gets [the outcome](Participant::outcome). The outcome is stored until all bound
///   participants have [acknowledged](Participant::acknowledge) it and somebody calls
///   [`TwoPhaseCommit::forget`].
///
/// As in every two-phase commit, a participant that has voted `Yes` must wait for the decision,
/// which needs a coordinator. With `n` participants it costs `2n + 2` writes, and `n` more with
/// acknowledgements; a vote wakes only the coordinator, and the decision wakes each participant
/// once.
///
/// ```
/// use quorate::{recipes::{Phase, TwoPhaseCommit, Vote}, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let coordinator = TwoPhaseCommit::new(&cluster.node(0).session(), "/transactions/7")?;
/// coordinator.begin(&["shop", "bank"], b"one apple").wait()?;
///
/// std::thread::scope(|scope| {
///     for (node, name) in [(1, "shop"), (2, "bank")] {
///         let session = cluster.node(node).session();
///         scope.spawn(move || {
///             session.sync().wait()?;
///             let participant = TwoPhaseCommit::new(&session, "/transactions/7")?.join(name).wait()?;
///             assert_eq!(participant.proposal(), b"one apple");
///             participant.vote(Vote::Yes).wait()?;
///             assert_eq!(participant.outcome().wait()?, Phase::Committed);
///             participant.acknowledge().wait()
///         });
///     }
///     assert_eq!(coordinator.decide().wait()?, Phase::Committed);
///     Ok::<(), quorate::Error>(())
/// })?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TwoPhaseCommit {
    pub(super) session: Session,
    pub(super) path: String,
}

impl TwoPhaseCommit {
    /// Returns the transaction at this path, whether or not it has begun. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(session: &Session, path: &str) -> Result<TwoPhaseCommit> {
        path::validate(path)?;
        Ok(TwoPhaseCommit { session: session.for_recipe(), path: path.to_owned() })
    }

    fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Begins the transaction with a proposal, for participants of these names. Missing parents are created as
    /// containers.
    ///
    /// # Errors
    /// [`Error::NodeExists`] if the transaction has already begun, or a name is given twice;
    /// [`Error::InvalidSetting`] without participants; [`Error::InvalidPath`] for an invalid name;
    /// [`Error::TooLarge`] if the proposal and the names are more than 1 MiB; otherwise as
    /// [`Session::create`](crate::Session::create).
    pub fn begin<'a>(&'a self, participants: &'a [&'a str], proposal: &'a [u8]) -> Pending<'a, ()> {
        self.session().steps("begin", self.path(), self.beginning(participants, proposal))
    }

    async fn beginning(&self, participants: &[&str], proposal: &[u8]) -> Result<()> {
        if participants.is_empty() {
            let reason = "nobody would vote".to_owned();
            return Err(Error::InvalidSetting { setting: "participants", reason });
        }
        let header = TransactionHeader {
            phase: Phase::Voting,
            participants: participants.iter().map(|name| (*name).to_owned()).collect(),
            proposal: proposal.to_vec(),
        };
        let (header, site) = (self.encode(&header)?, self.encode(&Site::Invited)?);
        create_at(&self.session, &self.path, || async {
            let mut multi =
                self.session.multi().create(&self.path, &header, CreateMode::Persistent);
            for name in participants {
                multi = multi.create(&name_in(&self.path, name)?, &site, CreateMode::Persistent);
            }
            inner(multi.commit().await).map(drop)
        })
        .await
    }

    pub(super) fn encode<T>(&self, value: &T) -> Result<Vec<u8>>
    where
        Postcard: Codec<T>,
    {
        let path = || self.path.clone();
        Postcard::encode(value).map_err(|reason| Error::InvalidData { path: path(), reason })
    }

    pub(super) fn header(&self, snapshot: &Snapshot) -> Result<DecodedValue<TransactionHeader>> {
        read(snapshot, &self.path)
    }

    /// Returns the transaction's phase, as this replica has it.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it has not begun or is forgotten; [`Error::InvalidData`]; the errors of
    /// a session that is over.
    pub fn phase(&self) -> Pending<'_, Phase> {
        self.session().steps("phase", self.path(), self.reading())
    }

    async fn reading(&self) -> Result<Phase> {
        Ok(self.header(&self.session.snapshot_of(&self.path).await?)?.value.phase)
    }

    /// Decides the transaction as soon as the votes allow that, and returns the decision. Waits until there is a
    /// decision, for as long as the session lives. Any number of callers may do so, at any time.
    ///
    /// A participant that never joins is waited for: [`TwoPhaseCommit::abort`] ends that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{recipes::{Phase, TwoPhaseCommit}, testing::Cluster};
    ///
    /// let commit = TwoPhaseCommit::new(&Cluster::new(1).node(0).session(), "/transfer")?;
    /// commit.begin(&["a"], b"").wait()?;
    /// let phase = match commit.decide().timeout(Duration::from_millis(50)).wait() {
    ///     Ok(phase) => phase,
    ///     Err(_) => commit.abort().wait()?,
    /// };
    /// assert_eq!(phase, Phase::Aborted);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoNode`] if it has not begun or is forgotten; [`Error::InvalidData`] if the path
    /// does not hold a transaction; otherwise as [`Session::set`](crate::Session::set). After an
    /// error the transaction may or may not be decided: call this again.
    pub fn decide(&self) -> Pending<'_, Phase> {
        self.session().steps("decide", self.path(), self.deciding_when_voted()).unlimited()
    }

    async fn deciding_when_voted(&self) -> Result<Phase> {
        let calls = &self.session.in_turn();
        let watch = calls.watch(&self.path, WatchMode::PersistentRecursive).await?;
        loop {
            let snapshot = calls.snapshot_of(&self.path).await?;
            let header = self.header(&snapshot)?;
            if header.value.phase != Phase::Voting {
                return Ok(header.value.phase);
            }
            let Some((phase, votes)) = self.tally(&snapshot, &header.value)? else {
                next_event(&self.session, &watch, &self.path).await?;
                continue;
            };
            let mut multi = self.session.multi();
            for (path, mzxid) in votes {
                multi = multi.require(&path, Condition::Mzxid(mzxid));
            }
            // Fails if somebody has voted or decided in between.
            let decided = self.deciding(multi, &header, phase)?.commit().await;
            if unless_overtaken(decided)?.is_some() {
                return Ok(phase);
            }
        }
    }

    /// Adds the decision to a multi, conditional on there being none yet.
    pub(super) fn deciding<'a>(
        &self,
        multi: Multi<'a>,
        header: &DecodedValue<TransactionHeader>,
        phase: Phase,
    ) -> Result<Multi<'a>> {
        let decided = self.encode(&TransactionHeader { phase, ..header.value.clone() })?;
        Ok(multi.require(&self.path, Condition::Mzxid(header.mzxid)).set(&self.path, decided))
    }

    /// Returns the decision that follows from the votes, and the votes on which it depends; `None`
    /// if some are missing.
    fn tally(
        &self,
        snapshot: &Snapshot,
        header: &TransactionHeader,
    ) -> Result<Option<(Phase, Votes)>> {
        let mut votes = Vec::new();
        let mut waits = false;
        for name in &header.participants {
            let path = path::join(&self.path, name);
            let site: DecodedValue<Site> = read(snapshot, &path)?;
            match site.value {
                Site::Voted(Vote::Yes) => votes.push((path, site.mzxid)),
                Site::Voted(Vote::No) => return Ok(Some((Phase::Aborted, Vec::new()))),
                // The participant has joined and is gone.
                Site::Joined if snapshot.exists(&alive(&path))?.is_none() => {
                    return Ok(Some((Phase::Aborted, Vec::new())));
                }
                Site::Joined | Site::Invited => waits = true,
                Site::Acknowledged => {
                    let reason = "it knows an outcome that there is not".to_owned();
                    return Err(Error::InvalidData { path, reason });
                }
            }
        }
        Ok((!waits).then_some((Phase::Committed, votes)))
    }

    /// Aborts the transaction, unless it is already decided, and returns the decision. Anybody may call this.
    ///
    /// # Errors
    /// As [`TwoPhaseCommit::decide`], and [`Error::Timeout`].
    pub fn abort(&self) -> Pending<'_, Phase> {
        self.session().steps("abort", self.path(), self.aborting())
    }

    async fn aborting(&self) -> Result<Phase> {
        loop {
            let header = self.header(&self.session.in_turn().snapshot_of(&self.path).await?)?;
            if header.value.phase != Phase::Voting {
                return Ok(header.value.phase);
            }
            let multi = self.deciding(self.session.multi(), &header, Phase::Aborted)?;
            if unless_overtaken(multi.commit().await)?.is_some() {
                return Ok(Phase::Aborted);
            }
        }
    }

    /// Joins as a participant, for the first time or again after a loss. After that, an earlier participant of this
    /// name that has not voted can no longer vote.
    ///
    /// # Errors
    /// [`Error::NoNode`] if it has not begun, is forgotten, or has no participant with this name;
    /// otherwise as [`TwoPhaseCommit::decide`], and [`Error::Timeout`].
    pub fn join<'a>(&'a self, name: &'a str) -> Pending<'a, Participant> {
        self.session().steps("join", self.path(), self.joining(name))
    }

    async fn joining(&self, name: &str) -> Result<Participant> {
        let site_path = name_in(&self.path, name)?;
        let alive_path = alive(&site_path);
        loop {
            let snapshot = self.session.in_turn().snapshot_of(&self.path).await?;
            let header = self.header(&snapshot)?;
            let site: DecodedValue<Site> = read(&snapshot, &site_path)?;
            let mut alive = None;
            let votes = matches!(site.value, Site::Invited | Site::Joined);
            if votes && header.value.phase == Phase::Voting {
                let mut multi = self
                    .session
                    .multi()
                    .require(&self.path, Condition::Mzxid(header.mzxid))
                    .require(&site_path, Condition::Mzxid(site.mzxid));
                if let Some(former) = snapshot.exists(&alive_path)? {
                    multi = multi.require(&alive_path, Condition::Czxid(former.czxid));
                    multi = multi.delete(&alive_path);
                }
                let multi = multi.set(&site_path, self.encode(&Site::Joined)?).create(
                    &alive_path,
                    b"",
                    CreateMode::Ephemeral,
                );
                let created = created_in_multi(&self.session, multi.commit()).await;
                let Some(ephemeral) = unless_overtaken(created)? else { continue };
                alive = Some(ephemeral);
            }
            return Ok(Participant::new(self, site_path, header.value.proposal, alive));
        }
    }

    /// Deletes the transaction's znodes, if it is decided and all who voted `Yes` have acknowledged the decision.
    /// Returns whether the transaction is gone.
    ///
    /// If a participant that has not voted `Yes` finds the transaction forgotten, it has nothing to
    /// do.
    ///
    /// # Errors
    /// As [`Session::delete_recursive`](crate::Session::delete_recursive), except
    /// [`Error::NoNode`]; [`Error::InvalidData`].
    pub fn forget(&self) -> Pending<'_, bool> {
        self.session().steps("forget", self.path(), self.forgetting())
    }

    async fn forgetting(&self) -> Result<bool> {
        let snapshot = self.session.in_turn().snapshot_of(&self.path).await?;
        let Some(header) = if_exists(self.header(&snapshot))? else { return Ok(true) };
        if header.value.phase == Phase::Voting {
            return Ok(false);
        }
        for name in &header.value.participants {
            let site: DecodedValue<Site> = read(&snapshot, &path::join(&self.path, name))?;
            if site.value == Site::Voted(Vote::Yes) {
                return Ok(false);
            }
        }
        let condition = Condition::Mzxid(header.mzxid);
        let multi = self.session.multi().require(&self.path, condition);
        // Otherwise somebody else has deleted the transaction, and there may be another one by now.
        unless_gone(multi.delete_recursive(&self.path).commit().await)?;
        Ok(true)
    }
}

/// The path of a participant's ephemeral znode.
pub(super) fn alive(site: &str) -> String {
    path::join(site, "alive")
}

pub(super) fn read<T>(snapshot: &Snapshot, path: &str) -> Result<DecodedValue<T>>
where
    Postcard: Codec<T>,
{
    let (data, stat) = snapshot.get(path)?;
    let value = Postcard::decode(&data)
        .map_err(|reason| Error::InvalidData { path: path.to_owned(), reason })?;
    Ok(DecodedValue { value, mzxid: stat.mzxid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[test]
    fn the_decision_follows_from_all_votes() {
        let session = Cluster::new(1).node(0).session();
        let transaction = TwoPhaseCommit::new(&session, "/tx").unwrap();
        transaction.begin(&["a", "b"], b"").wait().unwrap();
        session.create("/tx/a/alive", b"", CreateMode::Ephemeral).wait().unwrap();
        let (yes, no) = (Site::Voted(Vote::Yes), Site::Voted(Vote::No));
        // Of these participants, `a` is alive, and `b` is not.
        let cases = [
            (Site::Invited, Site::Invited, "wait"),
            (Site::Joined, Site::Invited, "wait"),
            (Site::Joined, yes, "wait"),
            (Site::Joined, Site::Joined, "abort"),
            (yes, Site::Joined, "abort"),
            (yes, Site::Invited, "wait"),
            (yes, no, "abort"),
            (no, yes, "abort"),
            (Site::Invited, no, "abort"),
            (yes, yes, "commit"),
        ];
        for (a, b, expected) in cases {
            session.set("/tx/a", transaction.encode(&a).unwrap()).wait().unwrap();
            session.set("/tx/b", transaction.encode(&b).unwrap()).wait().unwrap();
            let snapshot = session.snapshot().wait().unwrap();
            let header = transaction.header(&snapshot).unwrap().value;
            let tally = match transaction.tally(&snapshot, &header).unwrap() {
                Some((Phase::Committed, votes)) => {
                    let paths: Vec<&str> = votes.iter().map(|(path, _)| &path[..]).collect();
                    assert_eq!(paths, ["/tx/a", "/tx/b"], "it rests on all of them");
                    "commit"
                }
                Some((phase, _)) => {
                    assert_eq!(phase, Phase::Aborted);
                    "abort"
                }
                None => "wait",
            };
            assert_eq!(tally, expected, "{a:?} and {b:?}");
        }
        session.set("/tx/b", transaction.encode(&Site::Acknowledged).unwrap()).wait().unwrap();
        let snapshot = session.snapshot().wait().unwrap();
        let header = transaction.header(&snapshot).unwrap().value;
        let nothing = transaction.tally(&snapshot, &header);
        assert!(matches!(nothing, Err(Error::InvalidData { .. })), "nothing to acknowledge");
    }

    #[test]
    fn a_transaction_that_cannot_begin_leaves_nothing() {
        let session = Cluster::new(1).node(0).session();
        let transaction = TwoPhaseCommit::new(&session, "/tx").unwrap();
        let begin = |names: &[&str]| transaction.begin(names, b"").wait();
        assert!(matches!(begin(&[]), Err(Error::InvalidSetting { .. })));
        assert!(matches!(begin(&["a", "b/c"]), Err(Error::InvalidPath { .. })));
        assert!(matches!(begin(&["a", ".."]), Err(Error::InvalidPath { .. })));
        assert!(matches!(begin(&["a", "a"]), Err(Error::NodeExists { .. })));
        assert!(session.exists("/tx").wait().unwrap().is_none());
        begin(&["a"]).unwrap();
        assert!(matches!(begin(&["a"]), Err(Error::NodeExists { .. })), "once only");
        assert!(
            matches!(transaction.join("b").wait(), Err(Error::NoNode { .. })),
            "nobody asked it"
        );
        assert_eq!(transaction.forget().wait(), Ok(false), "it is not decided");
        assert_eq!(
            [transaction.abort().wait(), transaction.abort().wait()],
            [const { Ok(Phase::Aborted) }; 2]
        );
        assert_eq!(
            [transaction.forget().wait(), transaction.forget().wait()],
            [const { Ok(true) }; 2]
        );
        assert!(matches!(transaction.phase().wait(), Err(Error::NoNode { .. })));
    }
}
