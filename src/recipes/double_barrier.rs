//! ZooKeeper's double barrier: a number of participants enter together, and leave together.
//!
//! Each participant is an ephemeral sequential znode. Its data is empty while it waits to enter. A
//! participant that sees enough others sets the data of all, in one multi that requires that each
//! still exists and still waits. This starts a round for exactly those participants, and wakes each
//! by its own znode alone. The data is the round's name, taken from the participant that started
//! it. A participant that arrives during a round sets its own data to that name, in a multi that
//! requires that some participant is still inside.
//!
//! ZooKeeper's recipe and Curator's have a "ready" znode, which outlives the participants for which
//! it was created. Here a round lasts exactly as long as one of its participants exists. No other
//! round starts during that time: the participant that starts a round has seen nobody inside, and
//! everybody that it has seen still exists when the round starts.
//!
//! Leaving works as in ZooKeeper: the first participant waits for the others, starting with the
//! last one, and they wait for the first. So each departure wakes one participant, and the
//! departure of the first wakes all others.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Double Barriers; Curator,
//! `DistributedDoubleBarrier`.

use std::fmt;
use std::sync::Arc;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::contenders::{Contender, Contenders, PARTICIPANT};
use crate::recipes::errors::unless_overtaken;
use crate::recipes::waiting::until_changed;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{Condition, Zxid};

/// A barrier that participants enter together once there are enough of them, and leave together
/// once all are done.
///
/// [`DoubleBarrier::enter`] waits until enough participants exist at one moment, and returns an
/// [`Inside`]. [`Inside::leave`] waits until no participant of the round is inside. A participant
/// whose session ends is gone: before the round it does not count, and during the round nobody
/// waits for it. If all participants die, the round is over, and the next one needs enough
/// participants again.
///
/// The number is a threshold, as in ZooKeeper: a participant that arrives during a round enters it
/// at once, and the others wait for it. One session may participate several times; each `enter`
/// counts. All must use the same number.
///
/// A round costs each participant two writes (its znode created and deleted), and one for all: a
/// multi with as many operations as there are participants, some thousands at most. Each
/// participant is woken once to enter.
///
/// ```
/// use quorate::{recipes::DoubleBarrier, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// std::thread::scope(|scope| {
///     for node in 0..3 {
///         let barrier = DoubleBarrier::new(&cluster.node(node).session(), "/round", 3).unwrap();
///         scope.spawn(move || {
///             let inside = barrier.enter().wait()?;
///             // All three are here: they compute together.
///             inside.leave().wait()
///             // All three are done.
///         });
///     }
/// });
/// ```
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    contenders: Contenders,
    participants: usize,
}

/// A participant as a snapshot shows it.
struct BarrierParticipant {
    path: String,
    czxid: Zxid,
    /// The name of its round; empty while the participant waits.
    round: Arc<[u8]>,
}

impl DoubleBarrier {
    /// Returns the double barrier at this path, for this number of participants. Sends nothing; the
    /// barrier and its parents are later created as containers when they are missing. With a number
    /// of 1 it is always open.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::InvalidSetting`] if the number is 0.
    pub fn new(session: &Session, path: &str, participants: usize) -> Result<DoubleBarrier> {
        if participants == 0 {
            let reason = "at least one is needed: nobody would open it".to_owned();
            return Err(Error::InvalidSetting { setting: "participants", reason });
        }
        Ok(DoubleBarrier {
            contenders: Contenders::new(session, path, &[&PARTICIPANT])?,
            participants,
        })
    }

    fn session(&self) -> &Session {
        self.contenders.session()
    }

    /// The path of the participant's znode.
    pub fn path(&self) -> &str {
        self.contenders.path()
    }

    /// Waits until there are enough participants, for as long as the session lives.
    ///
    /// # Errors
    /// The errors of a session that is over, [`Error::NoNode`] if somebody deleted this
    /// participant's znode, [`Error::Multi`] if there are more participants than one write can
    /// take, [`Error::UnknownContender`] if there is a participant of Curator's or kazoo's double barrier, which
    /// would not count this one, [`Error::Busy`] and [`Error::System`].
    pub fn enter(&self) -> Pending<'_, Inside> {
        self.session().steps("enter", self.path(), self.entering()).unlimited()
    }

    async fn entering(&self) -> Result<Inside> {
        let session = self.contenders.session();
        let contender = self.contenders.join(&PARTICIPANT, b"").await?;
        loop {
            let snapshot = session.in_turn().snapshot_of(self.path()).await?;
            self.contenders.refuse_others(&snapshot)?;
            let all = participants_in(&self.contenders, &snapshot)?;
            let Some(at) = all.iter().position(|one| one.is(&contender)) else {
                return Err(Error::NoNode { path: contender.path().to_owned() });
            };
            let round = Arc::clone(&all[at].round);
            if !round.is_empty() {
                return Ok(Inside { contenders: self.contenders.clone(), contender, round });
            }
            // Nothing is set if another znode is at this participant's path.
            let mut multi = contender.multi();
            let begun = if let Some(inside) = all.iter().find(|one| !one.round.is_empty()) {
                // A round is in progress. One of its participants must still exist when this one
                // joins.
                let multi = multi.require(&inside.path, Condition::Exists);
                multi.set_if(contender.path(), &inside.round, 0).commit()
            } else if all.len() >= self.participants {
                let name = path::name(contender.path());
                for one in &all {
                    // Requires that the participant exists and still waits.
                    multi = multi.set_if(&one.path, name, 0);
                }
                multi.commit()
            } else {
                let (data, _, watch) = session.get_and_watch(contender.path()).await?;
                if data.is_empty() {
                    // This participant has entered or was deleted, or this session is over: look
                    // again.
                    watch.next().await;
                }
                continue;
            };
            match unless_overtaken(begun.await) {
                // If the multi failed, a participant has gone, or another one was faster: look
                // again.
                Ok(_) | Err(Error::BadVersion { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl BarrierParticipant {
    /// Whether this is the contender's znode, and not another one at its path.
    fn is(&self, contender: &Contender) -> bool {
        self.path == contender.path() && self.czxid == contender.czxid()
    }
}

/// All participants in order, as of the session's earlier calls.
async fn participants(contenders: &Contenders) -> Result<Vec<BarrierParticipant>> {
    let snapshot = contenders.session().in_turn().snapshot_of(contenders.path()).await?;
    participants_in(contenders, &snapshot)
}

fn participants_in(
    contenders: &Contenders,
    snapshot: &Snapshot,
) -> Result<Vec<BarrierParticipant>> {
    let participant = |path: String| {
        let (round, stat) = snapshot.get(&path)?;
        Ok(BarrierParticipant { path, czxid: stat.czxid, round })
    };
    let listed = contenders.list_in(snapshot)?;
    listed.into_iter().map(|contender| participant(contender.path)).collect()
}

/// A participant inside a round of a [`DoubleBarrier`]. Dropping it leaves without waiting for the
/// others.
///
/// ```
/// use quorate::recipes::DoubleBarrier;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let inside = DoubleBarrier::new(&session, "/round", 1)?.enter().wait()?;
/// println!("inside as {}", inside.path());
/// inside.leave().wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[must_use = "dropped, the participation is over"]
pub struct Inside {
    contenders: Contenders,
    contender: Contender,
    round: Arc<[u8]>,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inside").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Inside {
    fn session(&self) -> &Session {
        self.contenders.session()
    }

    /// The path of the participant's znode.
    pub fn path(&self) -> &str {
        self.contender.path()
    }

    /// The name of its round.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn round(&self) -> &[u8] {
        &self.round
    }

    /// Leaves, and waits until no participant of the round is inside any more, for as long as the
    /// session lives.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::Busy`]. After an error, too, this participant
    /// has left, or leaves with its session.
    pub fn leave(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("leave", &path, self.leaving()).unlimited()
    }

    async fn leaving(self) -> Result<()> {
        let Inside { contenders, contender, round } = self;
        loop {
            let all = participants(&contenders).await?;
            let inside: Vec<&BarrierParticipant> =
                all.iter().filter(|one| one.round == round).collect();
            let wait_for = match inside.as_slice() {
                // Joining a round requires a participant inside it, so nobody can join any more.
                [] => {
                    contender.forget();
                    return Ok(());
                }
                [first, .., last] if first.is(&contender) => &last.path,
                inside if inside.iter().any(|one| one.is(&contender)) => {
                    contender.delete().await?;
                    continue;
                }
                [first, ..] => &first.path,
            };
            until_changed(contenders.session(), wait_for).await?;
        }
    }
}
