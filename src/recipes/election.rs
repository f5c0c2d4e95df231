//! ZooKeeper's leader election: the first candidate leads, and each other candidate waits for the
//! one before it.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Leader Election; Curator, `LeaderLatch`.

mod campaign;
mod hand_over;

use std::borrow::Cow;
use std::sync::Arc;

use crate::api::ops::check_data;
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::contenders::{
    ContenderKind, Contenders, LATCH, ListedContender, Naming, Standing, predecessor,
};
use crate::recipes::errors::if_exists;
use crate::recipes::held::{Held, guard};
use crate::recipes::updates::{Source, Step, Updates, WatchedPath};
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;
use crate::types::watch::WatchMode;
use crate::types::znode::{SessionId, Zxid};

/// The candidate that this one waits for: the one before it.
fn blocked_by(listed: &[ListedContender], at: usize) -> Option<usize> {
    predecessor(listed, at).filter(|_| at != 1 || !planted!(TwoLeaders))
}

/// An election of one leader among the candidates at a path.
///
/// Candidates lead in the order in which they started to campaign, each until it resigns, hands over or its
/// session is over. [`LeaderLatch::with_priority`] changes the order, and [`Leadership::hand_over_to`] names the next
/// leader. Each has an id, which others see. Ids need not be unique, and do not affect the
/// election: two campaigns with the same id are two candidates. So a candidate waits for its own
/// predecessor of an earlier session or an earlier run of the process, too.
///
/// [`Held::is_held`] turns false before another candidate can lead, if the rates of the
/// clocks differ by less than a tenth: see [`Session::is_alive`]. Writes by [`Held::fenced`]
/// have effect only while this candidate leads, whatever the clocks do.
///
/// A term costs two writes (a znode created and deleted), and its end wakes one candidate. Priorities and hand-overs
/// cost more: see [`guide::recipes::election`](crate::guide::recipes::election).
///
/// ```
/// use quorate::recipes::LeaderLatch;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let (one, two) = (cluster.node(0).session(), cluster.node(1).session());
/// let one = LeaderLatch::new(&one, "/leader", "one")?;
/// let two = LeaderLatch::new(&two, "/leader", "two")?;
///
/// let leadership = one.campaign().wait()?;
/// assert!(leadership.is_held());
/// assert!(two.try_campaign().wait()?.is_none());
/// let leader = two.leader().wait()?.expect("somebody leads");
/// assert_eq!((&leader.id[..], leader.path.as_str()), (&b"one"[..], leadership.path()));
///
/// let token = leadership.fencing_token();
/// leadership.release().wait()?;
/// assert!(two.campaign().wait()?.fencing_token() > token);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LeaderLatch {
    contenders: Contenders,
    kind: &'static ContenderKind,
    id: Arc<[u8]>,
    priority: i32,
}

/// A candidate, as everybody sees it.
///
/// ```
/// use quorate::recipes::LeaderLatch;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let latch = LeaderLatch::new(&session, "/leader", "host-7:8080")?;
/// let leadership = latch.campaign().wait()?;
/// let [candidate] = &latch.candidates().wait()?[..] else { panic!("there is one") };
/// assert_eq!(candidate.name(), "host-7:8080");
/// assert_eq!(candidate.session, Some(session.id()));
/// assert_eq!(candidate.path, leadership.path());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Its id: the data of its znode.
    pub id: Arc<[u8]>,
    /// The zxid that created its znode.
    czxid: Zxid,
    /// The path of its znode, which no other candidate ever has. It is another one when the candidate changes its
    /// place.
    pub path: String,
    /// Its priority: see [`LeaderLatch::with_priority`].
    pub priority: i32,
    /// Its session. (`None` only if somebody created the znode by hand.)
    pub session: Option<SessionId>,
}

impl Candidate {
    /// The [`Held::fencing_token`] that it has if it leads. No two candidates ever have the same. It is another one,
    /// and larger, when the candidate changes its place, or leads after others have passed it.
    ///
    /// `None` for a candidate of another library. It leads with the znode that it has, also after others have passed
    /// it, and nobody can see whether they have: see [`guide::shared_recipes`](crate::guide::shared_recipes).
    ///
    /// ```
    /// # use quorate::recipes::LeaderLatch;
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let latch = LeaderLatch::new(&session, "/leader", "me")?;
    /// let leadership = latch.campaign().wait()?;
    /// let leader = latch.leader().wait()?.expect("it leads");
    /// assert_eq!(leader.fencing_token(), Some(leadership.fencing_token()));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fencing_token(&self) -> Option<Zxid> {
        self.is_ours().then_some(self.czxid)
    }

    /// Whether it is no candidate of another library.
    fn is_ours(&self) -> bool {
        Standing::of(path::name(&self.path)).is_some()
    }

    /// The id as text; invalid UTF-8 is replaced.
    pub fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.id)
    }
}

impl LeaderLatch {
    /// Returns the election at this path, for a candidate with this id. Sends nothing. The path and
    /// its parents are created as containers when somebody campaigns and they are missing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath);
    /// [`Error::TooLarge`](crate::Error::TooLarge) for an id of more than 1 MiB.
    pub fn new(session: &Session, path: &str, id: impl AsRef<[u8]>) -> Result<LeaderLatch> {
        LeaderLatch::of(session, path, id.as_ref(), &[&LATCH])
    }

    /// The election whose candidates are of this kind, the only one.
    pub(super) fn of(
        session: &Session,
        path: &str,
        id: &[u8],
        kinds: &'static [&'static ContenderKind; 1],
    ) -> Result<LeaderLatch> {
        check_data(path, id.len())?;
        let contenders = Contenders::new(session, path, kinds)?;
        Ok(LeaderLatch { contenders, kind: kinds[0], id: id.into(), priority: 0 })
    }

    /// Returns the same election, with another name for the candidates of this handle, so that clients of another
    /// library count them: see [`Naming`]. By default, Curator's `LeaderLatch` counts them, and those of a
    /// [`LeaderSelector`](crate::recipes::LeaderSelector) are counted by Curator's `LeaderSelector`.
    ///
    /// ```
    /// use quorate::recipes::{LeaderLatch, Naming};
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let latch = LeaderLatch::new(&session, "/leader", "me")?.with_naming(Naming::Kazoo);
    /// assert!(latch.campaign().wait()?.path().contains("__lock__"));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> LeaderLatch {
        self.contenders = self.contenders.with_naming(naming);
        self
    }

    /// Returns the same election, with a priority of the candidates of this handle. Of those that wait, the ones with
    /// a higher priority lead first, and equal ones in the order in which they started to campaign. A present leader
    /// leads on, whatever its priority. Candidates without a priority have 0, and so do those of other libraries.
    ///
    /// A candidate that comes in front of others costs them one more write each, when they lead. That write sets the
    /// election's own znode, so from the first priority on, all candidates need READ and WRITE there; do not keep
    /// anything in it that changes often. If some 30 candidates wait, each of which came with a higher priority than all
    /// before, the next ones may find no room in front, and stay behind.
    ///
    /// ```
    /// use quorate::recipes::LeaderLatch;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let latch = |node: usize, id| LeaderLatch::new(&cluster.node(node).session(), "/leader", id);
    /// let observer = latch(0, "old")?;
    /// let leadership = observer.campaign().wait()?;
    /// std::thread::scope(|scope| {
    ///     for (number, latch) in [latch(1, "spare")?.with_priority(-1), latch(2, "strong")?].into_iter().enumerate() {
    ///         scope.spawn(move || latch.campaign().wait()?.release().wait());
    ///         while observer.candidates().wait()?.len() < number + 2 {
    /// #           cluster.advance(std::time::Duration::from_millis(10));
    ///         }
    ///     }
    /// #   while observer.candidates().wait()?[1].name() != "strong" {
    /// #       cluster.advance(std::time::Duration::from_millis(10));
    /// #   }
    ///     let names: Vec<_> = observer.candidates().wait()?.iter().map(|it| it.name().into_owned()).collect();
    ///     assert_eq!(names, ["old", "strong", "spare"]);
    ///     leadership.release().wait()
    /// })?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> LeaderLatch {
        self.priority = priority;
        self
    }

    pub(crate) fn path(&self) -> &str {
        self.contenders.path()
    }

    pub(super) fn session(&self) -> &Session {
        self.contenders.session()
    }

    /// Waits until this candidate leads, for as long as the session lives.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::NoNode`](crate::Error::NoNode) if somebody
    /// deleted the candidate's znode; otherwise as [`Session::create`], except
    /// [`Error::Timeout`](crate::Error::Timeout).
    pub fn campaign(&self) -> Pending<'_, Leadership> {
        self.session().steps("campaign", self.path(), self.campaigning()).unlimited()
    }

    /// Leads if there is no other candidate, and returns `None` otherwise.
    ///
    /// # Errors
    /// As [`LeaderLatch::campaign`], and [`Error::Timeout`](crate::Error::Timeout).
    pub fn try_campaign(&self) -> Pending<'_, Option<Leadership>> {
        self.session().steps("try_campaign", self.path(), self.trying())
    }

    /// Returns the leader, which is the first candidate, as this replica has it; `None` if there is no candidate.
    /// After [`Session::sync`] it is current.
    ///
    /// The leader may not have noticed yet that it leads, or may have lost the lead already. If
    /// something depends on its leadership, let the leader send its fencing token, or write by
    /// [`Held::fenced`].
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::NoAuth`](crate::Error::NoAuth).
    pub fn leader(&self) -> Pending<'_, Option<Candidate>> {
        self.session().steps("leader", self.path(), self.reading_leader())
    }

    async fn reading_leader(&self) -> Result<Option<Candidate>> {
        self.leader_in(&self.session().snapshot_of(self.contenders.path()).await?)
    }

    fn leader_in(&self, snapshot: &Snapshot) -> Result<Option<Candidate>> {
        let listed = self.contenders.list_in(snapshot)?;
        let leader = unless!(LastForLeader, listed.first(), listed.last());
        leader.map(|leader| candidate(snapshot, leader)).transpose()
    }

    /// Returns all candidates in order, the leader first, as this replica has them at one moment.
    ///
    /// # Errors
    /// As [`LeaderLatch::leader`].
    pub fn candidates(&self) -> Pending<'_, Vec<Candidate>> {
        self.session().steps("candidates", self.path(), self.reading_candidates())
    }

    async fn reading_candidates(&self) -> Result<Vec<Candidate>> {
        self.candidates_in(&self.session().snapshot_of(self.contenders.path()).await?)
    }

    fn candidates_in(&self, snapshot: &Snapshot) -> Result<Vec<Candidate>> {
        let listed = self.contenders.list_in(snapshot)?;
        listed.iter().map(|contender| candidate(snapshot, contender)).collect()
    }

    /// Follows the leader: the result reports the present leader and each change; `None` means that nobody leads.
    /// The instance need not be a candidate. Sends nothing yet, and does not block.
    ///
    /// Their tokens only increase (those of other libraries have none). A leader that started and resigned between two calls of the reader is skipped.
    ///
    /// [`Updates::recv`] wakes when the leader's znode is deleted or, while nobody leads, when a candidate
    /// arrives; other candidates do not wake it. They do cause messages of [`Updates::signal`].
    ///
    /// ```
    /// use quorate::recipes::LeaderLatch;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(2).session();
    /// let mut leaders = LeaderLatch::new(&session, "/leader", "")?.watch();
    /// assert_eq!(leaders.recv().wait()?, None);
    ///
    /// let session = cluster.node(0).session();
    /// let leadership = LeaderLatch::new(&session, "/leader", "zero")?.campaign().wait()?;
    /// let leader = leaders.recv().wait()?.expect("somebody leads");
    /// assert_eq!((leader.name(), leader.path.as_str()), ("zero".into(), leadership.path()));
    /// leadership.release().wait()?;
    /// assert_eq!(leaders.recv().wait()?, None);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn watch(&self) -> Updates<Option<Candidate>> {
        let following =
            Following { latch: self.clone(), first: None, reported: None, token_max: 0 };
        Updates::new(self.session(), self.path(), WatchMode::Persistent, following)
    }
}

fn candidate(snapshot: &Snapshot, contender: &ListedContender) -> Result<Candidate> {
    let (id, stat) = snapshot.get(&contender.path)?;
    let (czxid, session, path) = (stat.czxid, stat.ephemeral_owner, contender.path.clone());
    let priority = Standing::of(path::name(&path)).unwrap_or_default().priority;
    Ok(Candidate { id, czxid, path, priority, session })
}

/// The priority of a candidate with this name. One that has come forward for a hand-over has the highest.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn candidate_priority(name: &str) -> i32 {
    let standing = Standing::of(name).unwrap_or_default();
    if standing.is_forward { i32::MAX } else { standing.priority }
}

struct Following {
    latch: LeaderLatch,
    /// The first candidate, as last read.
    first: Option<Candidate>,
    /// The zxid that created the znode of the leader last reported.
    reported: Option<Option<Zxid>>,
    /// The largest token that was reported.
    token_max: Zxid,
}

impl Source<Option<Candidate>> for Following {
    fn latest(&mut self) -> Step<'_, Option<Option<Candidate>>> {
        Box::pin(async {
            self.first = self.latch.reading_leader().await?;
            let leader = self.leading(self.first.as_ref()).cloned();
            Ok(self.has_changed(leader.as_ref()).then_some(leader))
        })
    }

    /// Not by the watch of the path, which reports all candidates.
    fn changed<'a>(&'a mut self, _: &'a mut WatchedPath) -> Step<'a, ()> {
        Box::pin(async {
            match &self.first {
                // While a candidate is the first, only the deletion of its znode changes the leader.
                Some(first) => self.until_changed(first).await,
                None => self.until_some().await,
            }
        })
    }
}

impl Following {
    /// The first candidate, unless it will get a larger token before it leads.
    fn leading<'a>(&self, first: Option<&'a Candidate>) -> Option<&'a Candidate> {
        first.filter(|leader| leader.fencing_token().is_none_or(|token| token >= self.token_max))
    }

    /// Waits until the candidate's znode is no longer there. It may be replaced under the same name.
    async fn until_changed(&self, first: &Candidate) -> Result<()> {
        let watching = self.latch.session().exists_and_watch(&first.path);
        let (there, watch) = watching.await?;
        if there.is_some_and(|stat| stat.czxid == first.czxid) {
            // `None` if this session is over.
            watch.next().await;
        }
        Ok(())
    }

    fn has_changed(&mut self, leader: Option<&Candidate>) -> bool {
        let token = leader.and_then(Candidate::fencing_token);
        self.token_max = self.token_max.max(token.unwrap_or_default());
        let now = leader.map(|leader| leader.czxid);
        let before = self.reported.replace(now);
        before.is_none_or(|reported| reported != now)
    }

    async fn until_some(&self) -> Result<()> {
        let (contenders, path) = (&self.latch.contenders, self.latch.path());
        let (has_come, watch) =
            match if_exists(contenders.session().children_and_watch(path).await)? {
                Some((children, watch)) => (contenders.any_among(children), watch),
                None => {
                    let (exists, watch) = contenders.session().exists_and_watch(path).await?;
                    (exists.is_some(), watch)
                }
            };
        if !has_come {
            watch.next().await;
        }
        Ok(())
    }
}

/// The leadership of an election: [`Held`] while this candidate leads. Releasing it resigns; so does dropping it,
/// without waiting for the reply.
///
/// ```
/// use quorate::recipes::{LeaderLatch, Lost};
/// use quorate::{CreateMode, Error, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// session.create("/state", b"", CreateMode::Persistent).wait()?;
/// let leadership = LeaderLatch::new(&session, "/leader", "me")?.campaign().wait()?;
/// leadership.fenced().set("/state", b"mine").commit().wait()?;
///
/// // Somebody ends the leadership: later writes of the leader are refused.
/// cluster.node(1).session().delete(leadership.path()).wait()?;
/// let refused = leadership.fenced().set("/state", b"still mine?").commit();
/// assert!(matches!(refused.wait(), Err(Error::Multi { index: 0, .. })));
/// assert_eq!(leadership.wait_lost().wait()?, Lost::Deleted);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Leadership {
    pub(super) held: Held,
    contenders: Contenders,
}

guard!(Leadership, held: Held);
