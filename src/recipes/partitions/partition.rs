//! A partition that a member owns, and its end.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;

use super::holdings::{Holdings, OwnedPartition};
use crate::api::multi::Multi;
use crate::api::part::Part;
use crate::api::session::Session;
use crate::recipes::Held;
use crate::recipes::errors::lost_anyway;
use crate::runtime::either::either;
use crate::runtime::pending::Pending;
use crate::sync::slot::Slot;
use crate::types::error::{Error, Result};
use crate::types::znode::CreateMode;

/// A partition of [`Partitions`](super::Partitions) that this member owns, from its [`Share`](super::Share). It
/// dereferences to [`Held`], whose znode is that of the owner.
///
/// It ends by [`Partition::hand_over`], by a release or a drop, at its drain limit, with its share, or with the session.
/// As for all guards, [`Held::is_held`] is false before anybody else can own the partition. A partition that ends while
/// it is planned for this member comes again from its share.
///
/// It may be sent to another thread or task, where its work is done.
///
/// ```
/// use quorate::recipes::{Partition, Partitions};
///
/// /// Works until the partition is to go elsewhere, or is lost.
/// fn work(partition: Partition) -> quorate::Result<()> {
///     let stored = partition.position().map(|position| String::from_utf8_lossy(position).parse());
///     let mut done: u64 = stored.and_then(Result::ok).unwrap_or(0);
///     while partition.is_held() && !partition.is_asked() {
///         done += 1;
///         if done % 100 == 0 {
///             partition.commit(done.to_string()).wait()?;
/// #           break;
///         }
///     }
///     partition.hand_over(done.to_string()).wait()
/// }
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let partitions = Partitions::new(&session, "/mails", 1)?;
/// let mut share = partitions.join("me").wait()?;
/// work(share.take().wait()?)?;
/// assert_eq!(share.take().wait()?.position(), Some(&b"100"[..]));
/// # Ok::<(), quorate::Error>(())
/// ```
#[must_use = "dropped, the partition is given up"]
pub struct Partition {
    pub(super) owned: Arc<OwnedPartition>,
    pub(super) holdings: Arc<Holdings>,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("name", &self.name())
            .field("fencing_token", &self.fencing_token())
            .field("is_asked", &self.is_asked())
            .finish_non_exhaustive()
    }
}

impl Deref for Partition {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.owned.held
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        // Nothing happens if it was given up already.
        self.holdings.give_up(&self.owned);
    }
}

impl Partition {
    fn session(&self) -> &Session {
        &self.holdings.session
    }

    /// Its name, or its number as text.
    pub fn name(&self) -> &str {
        &self.owned.name
    }

    /// Its number, from 0 on.
    pub fn number(&self) -> usize {
        self.owned.number
    }

    /// The position that was stored when this member got the partition; `None` if none ever was.
    pub fn position(&self) -> Option<&[u8]> {
        self.owned.position.as_deref()
    }

    /// Whether the partition is planned for another member: finish what has begun, and call [`Partition::hand_over`]. At
    /// the drain limit, the partition is given up. Does not block. It may turn false again, if the plan changes back.
    ///
    /// It follows the plan while a thread or a task is in a call of the [`Share`](super::Share).
    pub fn is_asked(&self) -> bool {
        self.owned.is_asked()
    }

    /// Waits until the partition is asked for, or is no longer held.
    ///
    /// # Errors
    /// None but [`Error::WouldBlock`], in a waker.
    pub fn wait_asked(&self) -> Pending<'_, ()> {
        self.session().steps("wait_asked", self.path(), self.waiting_for_request()).unlimited()
    }

    async fn waiting_for_request(&self) -> Result<()> {
        let asked = self.holdings.until(|| (self.is_asked() || !self.is_held()).then_some(()));
        either(asked, self.wait_lost()).await;
        Ok(())
    }

    /// Stores the position of the work, on the condition that the partition is still held: the position of one that
    /// has lost it is never stored. Positions of several partitions that are stored at about the same time are one
    /// write.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the partition is lost; the errors of a session that is over; otherwise as
    /// [`Session::set`].
    pub fn commit(&self, position: impl AsRef<[u8]>) -> Pending<'_, ()> {
        self.session().steps("commit", self.path(), self.committing(position.as_ref().to_vec()))
    }

    async fn committing(&self, position: Vec<u8>) -> Result<()> {
        let position = Some((self.owned.position_path.clone(), position));
        let stored = self.holdings.write(self.owned.znode(), position, false);
        self.holdings.writes.send();
        done(&stored).await
    }

    /// [`Partition::commit`] as a part of another write, which has no effect if the partition was lost: see [`Part`]. So a
    /// result is stored with its position or not at all, and no later owner makes it again: the work is done exactly once.
    ///
    /// ```
    /// use quorate::{CreateMode, recipes::Partitions};
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let mut share = Partitions::new(&session, "/mails", 1)?.join("me").wait()?;
    /// let partition = share.take().wait()?;
    /// let sent = session.multi().create("/sent-17", b"", CreateMode::Persistent);
    /// sent.with(&partition.commit_part("17")).commit().wait()?;
    /// drop(partition);
    /// assert_eq!(share.take().wait()?.position(), Some(&b"17"[..]));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn commit_part(&self, position: impl AsRef<[u8]>) -> Part {
        Part::of(Ok(self.with_position(self.ephemeral.multi(), position)))
    }

    /// [`Partition::hand_over`] as a part of another write, which has no effect if the partition was lost: see [`Part`].
    /// Once that write is committed, drop the partition. Unlike after `hand_over`, it is held until this replica has
    /// applied the write.
    pub fn hand_over_part(&self, position: impl AsRef<[u8]>) -> Part {
        let given_up = self.ephemeral.leave_in(self.session().multi());
        Part::of(Ok(self.with_position(given_up, position)))
    }

    fn with_position<'a>(&self, multi: Multi<'a>, position: impl AsRef<[u8]>) -> Multi<'a> {
        multi.create_or_set(&self.owned.position_path, position, CreateMode::Persistent)
    }

    /// Stores the position and gives the partition up, both in one write, so that its next owner begins where this
    /// one has ended. Partitions that are handed over at about the same time are one write.  From the call on, the
    /// partition is not held.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the partition was lost before; the errors of a session that is over; otherwise as
    /// [`Session::set`]. The partition is given up in any case, but the position is not stored then, except after
    /// [`Error::Timeout`].
    pub fn hand_over(self, position: impl AsRef<[u8]>) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("hand_over", &path, self.handing_over(position.as_ref().to_vec()))
    }

    async fn handing_over(self, position: Vec<u8>) -> Result<()> {
        match self.holdings.end(&self.owned, Some(position)) {
            Some(written) => done(&written).await,
            None => Err(Error::NoNode { path: self.path().to_owned() }),
        }
    }

    /// Gives the partition up, with the position that was committed last.
    ///
    /// # Errors
    /// As [`Held::release`].
    pub fn release(self) -> Pending<'static, ()> {
        let (session, path) = (self.session().clone(), self.path().to_owned());
        session.steps("release", &path, self.releasing())
    }

    async fn releasing(self) -> Result<()> {
        match self.holdings.end(&self.owned, None) {
            Some(released) => lost_anyway(done(&released).await),
            None => Ok(()),
        }
    }
}

/// Waits for the result of a write.
async fn done(slot: &Slot<Result<()>>) -> Result<()> {
    std::future::poll_fn(|task| slot.poll(task.waker()).map_or(Poll::Pending, Poll::Ready)).await
}
