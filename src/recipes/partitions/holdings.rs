//! What a member has: its partitions, what it is about to own, and the writes that wait.
//!
//! Its share and the guards of its partitions use it together, in any threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use super::silence::SilenceTimer;
use crate::api::part::Part;
use crate::api::session::Session;
use crate::api::write_group::WriteGroup;
use crate::recipes::errors::{gone, inner};
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::{Held, Lost, Membership};
use crate::runtime::pending::Pending;
use crate::sync::slot::Slot;
use crate::sync::wakers::{Place, Wakers};
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, CreateMode, Zxid};

#[derive(Debug)]
pub(super) struct Holdings {
    pub(super) session: Session,
    pub(super) membership: Membership,
    state: Mutex<OwnedPartitions>,
    /// Those who wait for a change of this.
    changed: Arc<Wakers>,
    /// Positions, releases, and the mark that the member is silent.
    pub(super) writes: Arc<WriteGroup>,
    /// For how long the share may be in none of its calls.
    pub(super) max_silence: Option<Duration>,
    /// The data of the member's znode that say that it is silent.
    pub(super) silent_member: Vec<u8>,
    pub(super) silence_timer: Mutex<Option<Pending<'static, ()>>>,
    pub(super) silence_waker: Waker,
}

#[derive(Debug, Default)]
pub(super) struct OwnedPartitions {
    /// By number.
    pub(super) owned: BTreeMap<usize, Arc<OwnedPartition>>,
    /// Those that nobody has taken from the share yet.
    pub(super) ready: VecDeque<Arc<OwnedPartition>>,
    /// Those whose owner's znode is being created, or was just created.
    pub(super) claiming: BTreeSet<usize>,
    pub(super) claimed: VecDeque<(usize, OwnedEphemeral)>,
    /// The one of them that the share is about to own, by its znode.
    pub(super) arriving: Option<(usize, (String, Zxid))>,
    /// Why the last claim has failed, if the share has to tell.
    pub(super) failure: Option<Error>,
    /// Whether the share leaves.
    pub(super) leaves: bool,
    /// Whether the share is gone.
    pub(super) is_over: bool,
    /// When the share last went on, by this instance's clock.
    pub(super) turned_at: Duration,
    /// Whether that was so long ago that everything was given up.
    pub(super) is_silent: bool,
    /// How many marks of that are not made yet. Nothing is claimed before.
    pub(super) marks: usize,
    /// Goes up with each change that the share has to look at.
    pub(super) changes: u64,
}

/// A partition that this member owns.
#[derive(Debug)]
pub(super) struct OwnedPartition {
    pub(super) number: usize,
    pub(super) name: String,
    /// Where its position is stored.
    pub(super) position_path: String,
    pub(super) held: Held,
    /// The position when it was taken.
    pub(super) position: Option<Arc<[u8]>>,
    asked: AtomicBool,
    /// When it is given up, by this instance's clock, while it is asked.
    deadline: Mutex<Option<Duration>>,
}

impl OwnedPartition {
    pub(super) fn new(
        (number, name): (usize, String),
        held: Held,
        position_path: String,
        position: Option<Arc<[u8]>>,
    ) -> OwnedPartition {
        let (asked, deadline) = (AtomicBool::new(false), Mutex::default());
        OwnedPartition { number, name, position_path, held, position, asked, deadline }
    }

    /// The owner's znode, and the write that created it.
    pub(super) fn znode(&self) -> (String, Zxid) {
        (self.held.path().to_owned(), self.held.fencing_token())
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// It is planned for another member, or for this one again. Returns when it is to be given up, and whether this
    /// has changed.
    pub(super) fn ask(&self, asked: bool, deadline: Duration) -> (Option<Duration>, bool) {
        let mut kept = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = asked.then(|| kept.unwrap_or(deadline));
        (*kept, self.asked.swap(asked, Ordering::AcqRel) != asked)
    }
}

impl Holdings {
    pub(super) fn new(
        session: &Session,
        membership: Membership,
        silent_member: Vec<u8>,
        max_silence: Option<Duration>,
    ) -> Arc<Holdings> {
        Arc::new_cyclic(|holdings| Holdings {
            session: session.clone(),
            membership,
            state: Mutex::default(),
            changed: Arc::default(),
            writes: WriteGroup::new(session),
            max_silence,
            silent_member,
            silence_timer: Mutex::default(),
            silence_waker: Waker::from(Arc::new(SilenceTimer(Weak::clone(holdings)))),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OwnedPartitions> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change that the share, or somebody who waits, has to look at.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut OwnedPartitions) -> T) -> T {
        let mut state = self.lock();
        let done = change(&mut state);
        state.changes += 1;
        drop(state);
        self.changed.wake();
        done
    }

    /// Waits until `look` returns a value, looking again after each change.
    pub(super) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut place = Place::new(Arc::clone(&self.changed));
        poll_fn(|task| place.poll(task.waker(), &mut look)).await
    }

    /// Gives up a partition: from here on it is not held. The znode is deleted soon, without a position.
    pub(super) fn give_up(self: &Arc<Self>, owned: &OwnedPartition) {
        drop(self.end(owned, None));
    }

    /// Gives up a partition, and writes its position with that, if there is one. `None` if it was given up or lost already;
    /// otherwise the result of the write.
    pub(super) fn end(
        self: &Arc<Self>,
        owned: &OwnedPartition,
        position: Option<Vec<u8>>,
    ) -> Option<Arc<Slot<Result<()>>>> {
        let done = self.change(|state| {
            let is_current = |there: &Arc<OwnedPartition>| std::ptr::eq(&**there, owned);
            if state.owned.get(&owned.number).is_some_and(is_current) {
                state.owned.remove(&owned.number);
            }
            let is_deleted = || owned.held.ephemeral.loss() == Some(Lost::Deleted);
            if owned.held.ephemeral.is_given_up() || is_deleted() {
                owned.held.ephemeral.forget();
                return None;
            }
            owned.held.ephemeral.forget();
            let position = position.map(|position| (owned.position_path.clone(), position));
            Some(self.write(owned.znode(), position, true))
        });
        self.writes.send();
        done
    }

    /// Adds a write to those that go together: a position, the release of an owner's znode, or both in one; or the mark
    /// of a member. Each replica checks as it applies it that the znode, of the owner or the member, is still the same.
    pub(super) fn write(
        self: &Arc<Self>,
        (path, czxid): (String, Zxid),
        position: Option<(String, Vec<u8>)>,
        releases: bool,
    ) -> Arc<Slot<Result<()>>> {
        let held = unless!(PositionUnfenced, Condition::Czxid(czxid), Condition::Exists);
        let mut multi = self.session.multi().require(&path, held);
        if let Some((path, data)) = position {
            multi = multi.create_or_set(&path, data, CreateMode::Persistent);
        }
        if releases {
            multi = multi.delete(&path);
        }
        let done = Arc::new(Slot::default());
        let (holdings, slot) = (Arc::clone(self), Arc::clone(&done));
        self.writes.add(Part::of(Ok(multi)), move |result| {
            if releases && result.as_ref().is_err_and(|error| !error.is_session_lost()) {
                // It is given up in any case, without its position.
                let full = holdings.session.root.full(&path).into_owned();
                holdings.session.discarding()(full, czxid);
            }
            slot.complete(inner(result).map_err(gone));
            // The share waits for the end of releases, and of all writes when it leaves.
            if releases || holdings.lock().leaves {
                holdings.change(|_| ());
            }
        });
        done
    }

    /// Gives up everything, since the share is gone.
    pub(super) fn give_up_all(self: &Arc<Self>) {
        let (owned, claimed) = self.change(|state| {
            state.is_over = true;
            state.ready.clear();
            (std::mem::take(&mut state.owned), std::mem::take(&mut state.claimed))
        });
        owned.values().for_each(|owned| self.give_up(owned));
        // Their drop deletes the znodes.
        drop(claimed);
        self.membership.ephemeral.discard();
    }
}
