//! An item that a consumer has, and is to be done with.

use std::sync::Arc;

use super::take::Found;
use crate::error::{Error, Result};
use crate::machine::command::Reply;
use crate::node::io::Answer;
use crate::pending::Pending;
use crate::session::Session;
use crate::znode::{Condition, Created, OpResult, Zxid};

/// A claim that is being made. Dropped before it is known, it is given up.
pub(super) struct Claiming {
    session: Session,
    claiming: Option<Pending<Vec<OpResult>>>,
}

impl Claiming {
    pub(super) fn new(session: &Session, claiming: Pending<Vec<OpResult>>) -> Claiming {
        Claiming { session: session.clone(), claiming: Some(claiming) }
    }

    pub(super) async fn claimed(&mut self) -> Result<Vec<OpResult>> {
        match &mut self.claiming {
            Some(claiming) => {
                // Polled in place, so that a drop in between finds it.
                let claimed = claiming.await;
                self.claiming = None;
                claimed
            }
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if let Some(claiming) = self.claiming.take() {
            let discard = self.session.discarding_exactly();
            claiming.then(move |answer| {
                if let Ok(Answer::Reply(Reply::Multi(results))) = answer {
                    let created = results.into_iter().find_map(|result| match result {
                        OpResult::Created(created) => Some(created),
                        _ => None,
                    });
                    if let Some(claim) = created {
                        discard(claim.path, claim.stat.czxid);
                    }
                }
            });
        }
    }
}

/// An item of a [`Queue`](super::Queue) that this consumer has, until it is [`Item::done`], dropped, or
/// the session is over. In the latter cases the item is in its old place again, for anybody.
///
/// ```
/// use quorate::recipes::Queue;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let queue = Queue::new(&session, "/jobs")?;
/// queue.put("report")?;
/// let item = queue.take()?;
/// assert_eq!(item.data(), b"report");
/// drop(item); // Given back.
/// let item = queue.take()?;
/// item.done()?;
/// assert!(queue.is_empty()?);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, the item is given back"]
pub struct Item {
    session: Session,
    item: String,
    claim: String,
    token: Zxid,
    data: Arc<[u8]>,
    priority: i32,
    id: Option<String>,
    done: bool,
}

impl Item {
    pub(super) fn new(session: &Session, item: String, claim: Created, found: Found) -> Item {
        Item {
            session: session.clone(),
            item,
            claim: claim.path,
            token: claim.stat.czxid,
            priority: found.name.priority,
            id: found.name.id(),
            data: found.data,
            done: false,
        }
    }

    /// What was put.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The priority with which it was put.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// The id with which it was put, if it has one.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The path of the item's znode. No other item of the queue has it, while the queue's znodes are
    /// left to it.
    pub fn path(&self) -> &str {
        &self.item
    }

    /// A number that is larger for each later consumer of the item: the zxid that made the claim. A
    /// resource that refuses numbers smaller than the largest it has seen for an item is safe from
    /// consumers that do not know yet that they have lost it.
    pub fn fencing_token(&self) -> u64 {
        self.token
    }

    /// Whether this consumer surely has the item at this moment: the session is alive, and this
    /// replica knows of no deletion of the claim. Does not block. Once false, it stays so.
    pub fn is_held(&self) -> bool {
        let tree = self.session.shared().tree();
        let claim = tree.get(&self.session.root.full(&self.claim));
        self.session.is_alive() && claim.is_some_and(|znode| znode.stat().czxid == self.token)
    }

    /// The item is done with, and leaves the queue; waits until that is so.
    ///
    /// # Errors
    /// [`Error::NoNode`] or [`Error::Unmet`] if the item or its claim was deleted by somebody;
    /// the errors of a session that is over, and then the item is for others again; those of
    /// [`Session::create`], and then it is given back. After [`Error::Timeout`] this goes on, and it
    /// is not known whether the item will come again.
    pub fn done(self) -> Result<()> {
        let session = self.session.clone();
        let path = self.item.clone();
        let mut item = self;
        let done = item.finish();
        let done = inner(session.settle("done", &path, done));
        item.done = done.is_ok();
        done
    }

    /// As [`Item::done`], without blocking the thread. What is asked for is done though the future
    /// is dropped after its first poll.
    ///
    /// # Errors
    /// As [`Item::done`], but for [`Error::Timeout`].
    pub async fn done_async(self) -> Result<()> {
        let mut item = self;
        let done = inner(item.finish().await);
        item.done = done.is_ok();
        done
    }

    fn finish(&self) -> Pending<Vec<OpResult>> {
        let multi = self.session.multi();
        let multi = multi.require(&self.claim, Condition::Czxid(self.token));
        multi.delete(&self.claim).delete(&self.item).submit()
    }
}

/// The error of the operation that failed.
fn inner(done: Result<Vec<OpResult>>) -> Result<()> {
    match done {
        Ok(_) => Ok(()),
        Err(Error::Multi { error, .. }) => Err(*error),
        Err(error) => Err(error),
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        // Behind a `done` that is under way this finds nothing to do.
        if !self.done {
            let claim = self.session.root.full(&self.claim).into_owned();
            self.session.discarding_exactly()(claim, self.token);
        }
    }
}
