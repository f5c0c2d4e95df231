//! The clients' tasks: `async fn`s over the library's own handles. The world's thread polls them in
//! the order in which they were woken.

use std::cell::RefCell;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::clock::Nanos;
use super::timeline::Timeline;

/// The tasks that are ready to be polled. The wakers share this queue, and the engine may hold them
/// anywhere.
#[derive(Debug, Default)]
struct Woken(Mutex<VecDeque<u64>>);

#[derive(Debug)]
struct TaskWaker {
    task: u64,
    woken: Arc<Woken>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.task);
    }
}

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    process: usize,
    waker: Waker,
    /// Absent while it is polled.
    future: Option<TaskFuture>,
    /// Whether it is in the queue already.
    queued: bool,
}

/// The most polls at one instant: far more than there are tasks.
const POLLS_MAX: u32 = 100_000;

/// All tasks of a world.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: RefCell<BTreeMap<u64, Task>>,
    next: RefCell<u64>,
    woken: Arc<Woken>,
    timers: RefCell<Timeline<Waker>>,
}

impl Executor {
    fn number(&self) -> u64 {
        let mut next = self.next.borrow_mut();
        *next += 1;
        *next
    }

    /// Spawns a task of a process. It ends with the process.
    pub(crate) fn spawn(&self, process: usize, future: impl Future<Output = ()> + 'static) {
        let task = self.number();
        let waker = Waker::from(Arc::new(TaskWaker { task, woken: Arc::clone(&self.woken) }));
        waker.wake_by_ref();
        let future: TaskFuture = Box::pin(future);
        let new = Task { process, waker, future: Some(future), queued: false };
        self.tasks.borrow_mut().insert(task, new);
    }

    /// Drops the tasks of a process.
    pub(crate) fn kill(&self, process: usize) {
        let mut tasks = self.tasks.borrow_mut();
        let ours = tasks.iter().filter(|(_, task)| task.process == process);
        let ours: Vec<u64> = ours.map(|(id, _)| *id).collect();
        let killed: Vec<Task> = ours.iter().filter_map(|id| tasks.remove(id)).collect();
        // Values that are dropped with a task may access other tasks.
        drop(tasks);
        drop(killed);
    }

    /// Whether all tasks have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.borrow().is_empty()
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        self.timers.borrow().next_at()
    }

    /// Wakes the tasks whose timers are due.
    pub(crate) fn fire(&self, now: Nanos) {
        loop {
            let mut timers = self.timers.borrow_mut();
            if timers.next_at().is_none_or(|at| at > now) {
                return;
            }
            let due = timers.pop();
            // The waker may add a timer.
            drop(timers);
            if let Some(waker) = due {
                waker.wake();
            }
        }
    }

    pub(crate) fn wake_at(&self, at: Nanos, waker: Waker) {
        self.timers.borrow_mut().add(at, waker);
    }

    /// Polls the tasks that were woken, except those of paused processes, which stay woken. Returns
    /// the processes whose tasks were polled, or `None` if tasks went on waking each other while no
    /// time passed.
    pub(crate) fn run(&self, is_paused: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let (mut later, mut polled) = (Vec::new(), Vec::new());
        for polls in 0.. {
            if polls == POLLS_MAX {
                return None;
            }
            let next = self.woken.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(id) = next else { break };
            let mut tasks = self.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(&id) else { continue };
            if is_paused(task.process) {
                if !std::mem::replace(&mut task.queued, true) {
                    later.push(id);
                }
                continue;
            }
            task.queued = false;
            polled.push(task.process);
            let waker = task.waker.clone();
            let Some(mut future) = task.future.take() else { continue };
            drop(tasks);
            let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            if done {
                self.tasks.borrow_mut().remove(&id);
                drop(future);
            } else if let Some(task) = self.tasks.borrow_mut().get_mut(&id) {
                task.future = Some(future);
            }
        }
        let mut woken = self.woken.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in later {
            if let Some(task) = self.tasks.borrow_mut().get_mut(&id) {
                task.queued = false;
            }
            woken.push_back(id);
        }
        Some(polled)
    }

    /// Whether a woken task of a process that is not paused waits to be polled.
    pub(crate) fn has_work(&self) -> bool {
        !self.woken.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor")
            .field("tasks", &self.tasks.borrow().len())
            .finish_non_exhaustive()
    }
}

/// Waits for two futures at the same time, and for both.
pub(crate) async fn both<A, B>(
    one: impl Future<Output = A>,
    two: impl Future<Output = B>,
) -> (A, B) {
    let (mut one, mut two) = (std::pin::pin!(one), std::pin::pin!(two));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(move |context| {
        if first.is_none()
            && let Poll::Ready(value) = one.as_mut().poll(context)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = two.as_mut().poll(context)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            unfinished => {
                (first, second) = unfinished;
                Poll::Pending
            }
        }
    })
    .await
}

/// Waits for two futures and returns the first result.
pub(crate) async fn first<A, B>(
    one: impl Future<Output = A>,
    two: impl Future<Output = B>,
) -> Result<A, B> {
    let mut one = std::pin::pin!(one);
    let mut two = std::pin::pin!(two);
    std::future::poll_fn(move |context| {
        if let Poll::Ready(value) = one.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        two.as_mut().poll(context).map(Err)
    })
    .await
}
