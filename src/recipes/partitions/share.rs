//! A member's share: the calls in which it does its part, and gets its partitions.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Partitions;
use super::driver::ShareDriver;
use super::holdings::Holdings;
use super::member::StoredMember;
use super::partition::Partition;
use crate::api::session::Session;
use crate::recipes::Membership;
use crate::runtime::pending::Pending;
use crate::types::error::Result;

/// The share of one member in [`Partitions`]: the partitions that it owns, one after the other as it gets them.
///
/// There is no thread behind it. While a thread or a task is in one of its calls, the member makes plans if that is its
/// part, asks its own [`Partition`]s for what has to move, keeps their drain limits, and takes new ones. So stay in
/// [`Share::take`], and do the work elsewhere: in threads, in tasks, or between calls of
/// [`Share::take`] with a [limit](Pending::timeout). One that is dropped loses nothing.
///
/// A member whose share is in no call for 30 s ([`Partitions::with_max_silence`]) loses its partitions to others, and gets
/// some again once it goes on.
///
/// When its session is over, a share ends with the session's error, and so it does if somebody deletes its member's
/// znode. Join again with a new session;
/// [`Coordinator::supervise`](crate::Coordinator::supervise) automates that.
///
/// Dropping it leaves at once: all its partitions are given up, with the positions that were committed last.
///
/// ```
/// use std::time::Duration;
/// use quorate::recipes::Partitions;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let partitions = |node: usize| Partitions::new(&cluster.node(node).session(), "/mails", 2);
/// let mut here = partitions(0)?.join("host-0").wait()?;
/// let (first, second) = (here.take().wait()?, here.take().wait()?);
///
/// let mut there = partitions(1)?.join("host-1").wait()?;
/// while !second.is_asked() {
///     assert!(here.take().timeout(Duration::from_millis(10)).wait().is_err());
/// }
/// second.hand_over("up to 7").wait()?;
/// assert_eq!(there.take().wait()?.position(), Some(&b"up to 7"[..]));
/// assert!(first.is_held() && !first.is_asked());
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Share {
    partitions: Partitions,
    member: StoredMember,
    holdings: Arc<Holdings>,
    /// `None` before the first call, and after an error.
    driver: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share")
            .field("path", &self.path())
            .field("member", &self.member.member)
            .finish_non_exhaustive()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.driver = None;
        self.holdings.give_up_all();
    }
}

impl Share {
    pub(super) fn new(
        partitions: Partitions,
        membership: Membership,
        member: StoredMember,
    ) -> Share {
        let silent = member.silent(true).encoded();
        let holdings =
            Holdings::new(&partitions.session, membership, silent, partitions.max_silence);
        holdings.turned();
        Share { partitions, member, holdings, driver: None }
    }

    fn session(&self) -> &Session {
        &self.partitions.session
    }

    pub(crate) fn path(&self) -> &str {
        &self.partitions.path
    }

    /// The member's name.
    pub fn member(&self) -> &str {
        self.member.member.name()
    }

    /// Returns a partition that this member owns from now on, as soon as there is one. Waits until then, for as long
    /// as the session lives.
    ///
    /// # Errors
    /// The errors of a session that is over; [`Error::NoNode`](crate::Error::NoNode) if somebody has deleted the
    /// member's znode, and [`Error::InvalidData`](crate::Error::InvalidData) if the plan or a member's data are
    /// damaged; the errors of [`Session::create`], after which the next call tries again.
    pub fn take(&mut self) -> Pending<'_, Partition> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("take", &path, self.taking()).unlimited()
    }

    async fn taking(&mut self) -> Result<Partition> {
        poll_fn(|task| match self.poll(task) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => {
                self.ready().map_or(Poll::Pending, |partition| Poll::Ready(Ok(partition)))
            }
        })
        .await
    }

    /// Leaves: asks for all its partitions, goes on until all are handed over or given up and other members have
    /// them, and then leaves the group. Waits until then. If no other member could have any, it waits for the end of
    /// the own ones alone. What [`Share::take`] has not returned yet is given up at once.
    ///
    /// Dropping the share meanwhile, as at the end of a [limit](Pending::timeout), gives up all that is left.
    ///
    /// # Errors
    /// As [`Share::take`]; everything is given up then.
    pub fn leave(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("leave", &path, self.leaving()).unlimited()
    }

    async fn leaving(mut self) -> Result<()> {
        let ready = self.holdings.change(|state| {
            state.leaves = true;
            std::mem::take(&mut state.ready)
        });
        ready.iter().for_each(|owned| self.holdings.give_up(owned));
        poll_fn(|task| self.poll(task)).await
    }

    /// Goes on with the member's part. Ready with an error, or when it has left.
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Result<()>> {
        self.holdings.turned();
        let driver = self.driver.get_or_insert_with(|| {
            let (partitions, holdings) = (self.partitions.clone(), Arc::clone(&self.holdings));
            let member = self.member.clone();
            Box::pin(ShareDriver::new(partitions, holdings, member).drive())
        });
        let polled = driver.as_mut().poll(task);
        if polled.is_ready() {
            self.driver = None;
        }
        polled
    }

    fn ready(&self) -> Option<Partition> {
        loop {
            let owned = self.holdings.lock().ready.pop_front()?;
            // Dropped, one that is already lost is given up.
            let partition = Partition { owned, holdings: Arc::clone(&self.holdings) };
            if partition.is_held() {
                return Some(partition);
            }
        }
    }
}
