//! Turns at a path: of the tasks and threads of one instance that compete for a znode, one tries at a time, in the
//! order in which they came.
//!
//! A turn is advice. Whoever has waited too long goes on without one, and a write is right or refused by what the
//! cluster finds, whoever has a turn.
//!
//! Invariants: a path is in the table for as long as somebody has the turn there, and longer if turns there are to
//! begin with a pause. Whoever is taken out of a queue has the turn, and passes it on when it is dropped, even if it
//! never noticed. Waiters are notified without the lock, and one after the other: the waker of an executor that has
//! ended may drop its task, and so pass the turn on within the call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::sync::slot;

type Slot = slot::Slot<()>;

/// After somebody elsewhere was faster, so many turns at the path ...
const YIELDS: u32 = 64;
/// ... have a pause before each of these. A pause before each turn would leave the znode unused for most of the time.
const BURST: u32 = 8;
/// With more paths in the table, those where nobody has the turn are forgotten.
const PATHS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    paths: Mutex<BTreeMap<String, Path>>,
    /// The number of paths in the table, to be read without the lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Path {
    is_taken: bool,
    /// Whether a thread is notifying the one that has the turn.
    is_notifying: bool,
    /// Whether the turn was passed on meanwhile: that thread notifies the next one.
    is_passed_on: bool,
    waiting: VecDeque<Arc<Slot>>,
    /// For how many turns from now on some begin with a pause.
    yields: u32,
    /// How long the attempt took that was last overtaken.
    took: Duration,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Path>> {
        // Each change of the table is complete in itself.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody has the turn at this path, or has lost there to an instance elsewhere not long ago.
    pub(crate) fn is_contended(&self, path: &str) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.lock().contains_key(path)
    }

    /// Asks for the turn at this path.
    pub(crate) fn ask(self: &Arc<Self>, path: String) -> Turn {
        let slot = Arc::new(Slot::default());
        let mut paths = self.lock();
        let at = paths.entry(path.clone()).or_default();
        match std::mem::replace(&mut at.is_taken, true) {
            true => at.waiting.push_back(Arc::clone(&slot)),
            false => slot.complete(()),
        }
        if paths.len() > PATHS_MAX {
            paths.retain(|_, path| path.is_taken);
        }
        self.count.store(paths.len(), Ordering::Relaxed);
        drop(paths);
        Turn { turns: Arc::clone(self), path, slot }
    }

    /// Gives the turn at this path to the next one, and again if that one passes it on before its notification returns.
    fn pass_on(&self, at: &str) {
        let mut paths = self.lock();
        // It is in the table while it is taken.
        while let Some(path) = paths.get_mut(at) {
            let Some(next) = path.waiting.pop_front() else {
                path.is_taken = false;
                if path.yields == 0 {
                    paths.remove(at);
                    self.count.store(paths.len(), Ordering::Relaxed);
                }
                return;
            };
            path.is_notifying = true;
            drop(paths);
            next.complete(());
            paths = self.lock();
            let Some(path) = paths.get_mut(at) else { return };
            path.is_notifying = false;
            if !std::mem::take(&mut path.is_passed_on) {
                return;
            }
        }
    }
}

/// A turn at a path, or a place in the queue for it. The next one has it when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    path: String,
    slot: Arc<Slot>,
}

impl Turn {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Waits until it is this one's turn.
    pub(crate) async fn come(&self) {
        std::future::poll_fn(|context| match self.slot.poll(context.waker()) {
            Some(()) => std::task::Poll::Ready(()),
            None => std::task::Poll::Pending,
        })
        .await;
    }

    /// Somebody elsewhere was faster: the turns after this one leave it some time.
    pub(crate) fn was_overtaken(&self, took: Duration) {
        if let Some(path) = self.turns.lock().get_mut(&self.path) {
            (path.yields, path.took) = (YIELDS, took);
        }
    }

    /// Whether this turn should begin with a pause; if so, how long the attempt took that was last overtaken.
    pub(crate) fn yields(&self) -> Option<Duration> {
        let mut paths = self.turns.lock();
        let path = paths.get_mut(&self.path)?;
        let was_overtaken = path.yields > 0;
        path.yields = path.yields.saturating_sub(1);
        (was_overtaken && path.yields.is_multiple_of(BURST)).then_some(path.took)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut paths = self.turns.lock();
        let Some(path) = paths.get_mut(&self.path) else { return };
        if let Some(place) = path.waiting.iter().position(|slot| Arc::ptr_eq(slot, &self.slot)) {
            path.waiting.remove(place);
            return;
        }
        if path.is_notifying {
            path.is_passed_on = true;
            return;
        }
        drop(paths);
        self.turns.pass_on(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn has_come(turn: &Turn) -> bool {
        pin!(turn.come()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn turns_come_in_the_order_in_which_they_were_asked_for() {
        let turns = Arc::new(Turns::default());
        let [first, second, third] = [(); 3].map(|()| turns.ask("/a".to_owned()));
        let elsewhere = turns.ask("/b".to_owned());
        assert!(has_come(&first) && has_come(&elsewhere));
        assert!(!has_come(&second) && !has_come(&third));
        drop(first);
        assert!(!has_come(&third));
        assert!(has_come(&second));
        drop(second);
        assert!(has_come(&third));
        drop((third, elsewhere));
        assert!(!turns.is_contended("/a") && !turns.is_contended("/b"));
    }

    /// Futures are dropped at any time: in the queue, and after their turn has come.
    #[test]
    fn a_waiter_that_gives_up_holds_nobody_up() {
        let turns = Arc::new(Turns::default());
        let [first, second, third, fourth] = [(); 4].map(|()| turns.ask("/a".to_owned()));
        drop(second);
        drop(first);
        drop(third);
        assert!(has_come(&fourth));
        drop(fourth);
        assert!(!turns.is_contended("/a"));
    }

    /// A task whose waker drops it, as some executors do once they have ended.
    struct DroppedTask(Mutex<Option<Turn>>);

    impl std::task::Wake for DroppedTask {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }

    /// Each waker that drops the next turn in the call filled the stack.
    #[test]
    fn a_turn_passes_through_many_tasks_that_are_gone() {
        let turns = Arc::new(Turns::default());
        let first = turns.ask("/a".to_owned());
        for _ in 0..20_000 {
            let turn = turns.ask("/a".to_owned());
            let slot = Arc::clone(&turn.slot);
            let task = Arc::new(DroppedTask(Mutex::new(Some(turn))));
            assert_eq!(slot.poll(&Waker::from(task)), None);
        }
        let last = turns.ask("/a".to_owned());
        drop(first);
        assert!(has_come(&last));
        drop(last);
        assert!(!turns.is_contended("/a"));
    }

    #[test]
    fn some_turns_yield_after_one_was_overtaken() {
        let turns = Arc::new(Turns::default());
        let (first, second) = (turns.ask("/a".to_owned()), turns.ask("/a".to_owned()));
        assert_eq!(first.yields(), None);
        first.was_overtaken(Duration::ZERO);
        drop(first);
        assert_eq!(second.yields(), None);
        drop(second);
        // Also those who come when nobody waits.
        assert!(turns.is_contended("/a"));
        let yields =
            (0..2 * YIELDS).filter(|_| turns.ask("/a".to_owned()).yields().is_some()).count();
        assert_eq!(yields as u32, YIELDS / BURST);
        assert!(!turns.is_contended("/a"));
    }

    #[test]
    fn paths_where_nobody_waits_are_forgotten() {
        let turns = Arc::new(Turns::default());
        for number in 0..3 * PATHS_MAX {
            turns.ask(format!("/{number}")).was_overtaken(Duration::ZERO);
        }
        assert!(turns.lock().len() <= PATHS_MAX + 1);
    }
}
