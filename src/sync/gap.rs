//! A bounded channel of events that never blocks its sender and never loses an event silently.
//!
//! At most `capacity` events wait, followed by one *gap*: an event that stands for others that were
//! dropped. If there is no room for an event, it is dropped, and a gap is sent at once. If there is
//! no room for the gap either, the reader has not taken an earlier one yet, which then stands for
//! this event too. A last event, after which nothing comes, always has room.
//!
//! Everything is sent before the value that shows the change is published (`published`). A reader
//! that reads the value and then empties the channel finds each event up to that value, or a gap. A
//! reader that has taken a gap reads a value that shows everything that the gap stands for, because
//! reads wait while a change is being announced.
//!
//! Tasks are woken only after the value was published: a waker is user code, which may read the
//! value on this very thread. Any number of tasks may wait, and all are woken. Some wait for an
//! event, which one of them takes. Others wait for the change that the event reports, and leave the
//! event in the channel.
//!
//! The channel is created when one of its ends first sends or looks. Until then a watch costs a few
//! words, so that there may be a million of them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::prim::{
    Mutex, MutexGuard, OnceCell, PoisonError, Receiver, Sender, TryRecvError, unbounded,
};
use super::task::Tasks;

/// The sending end.
#[derive(Debug)]
pub(crate) struct EventSender<E> {
    capacity: usize,
    /// Whether an event was sent or dropped since the last `wake`.
    touched: bool,
    /// The channel is unbounded; it holds at most `capacity` events, a gap and the last event.
    sender: Option<Sender<E>>,
    shared: Arc<Shared<E>>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct EventReceiver<E> {
    events: OnceCell<Receiver<E>>,
    shared: Arc<Shared<E>>,
}

/// The state that the two ends share.
#[derive(Debug)]
struct Shared<E> {
    channel: Mutex<Channel<E>>,
    waiting: Mutex<WaitingTasks>,
}

/// The tasks that wait.
#[derive(Debug)]
enum WaitingTasks {
    /// No task has waited yet.
    Nobody,
    Tasks(Box<Tasks>),
    /// The sender is gone, and no further event will come.
    Over,
}

/// A waiting task. Dropping it removes its waker.
struct Waiter<'a, E> {
    shared: &'a Shared<E>,
    number: Option<u64>,
}

/// The end that is used first creates the channel, and leaves the other end here.
#[derive(Debug)]
enum Channel<E> {
    NotCreated,
    /// For the sender.
    Sending(Sender<E>),
    /// For the receiver.
    Receiving(Receiver<E>),
    /// Both ends have been taken.
    Taken,
    /// The sender is gone without having created the channel.
    Closed,
}

/// A channel in which this many events may wait.
pub(crate) fn channel<E>(capacity: usize) -> (EventSender<E>, EventReceiver<E>) {
    let waiting = Mutex::new(WaitingTasks::Nobody);
    let shared = Shared { channel: Mutex::new(Channel::NotCreated), waiting };
    let shared = Arc::new(shared);
    let receiver = EventReceiver { events: OnceCell::new(), shared: Arc::clone(&shared) };
    (EventSender { capacity, touched: false, sender: None, shared }, receiver)
}

/// Every function that sends is called between `announce` and `publish` of the value that shows the
/// change. It returns whether the call is the first since `wake`; then `wake` must be called.
impl<E> EventSender<E> {
    fn sender(&mut self) -> &Sender<E> {
        self.sender.get_or_insert_with(|| self.shared.sender())
    }

    /// Sends an event or, if there is no room, the gap that stands for the event.
    pub(crate) fn deliver(&mut self, event: E, gap: impl FnOnce(E) -> E) -> bool {
        if self.is_full() {
            return self.leave_out(gap(event));
        }
        // An error does not matter: the reader is gone.
        let _ = self.sender().send(event);
        self.touch()
    }

    /// Sends a gap for an event that is dropped.
    pub(crate) fn leave_out(&mut self, gap: E) -> bool {
        let capacity = self.capacity;
        // Without room, the reader has not taken the gap in the last place yet. When it takes that
        // gap, it finds the change announced.
        if self.sender().len() <= capacity {
            let _ = self.sender().send(gap);
        }
        self.touch()
    }

    /// Sends an event after which nothing comes.
    pub(crate) fn deliver_last(&mut self, event: E) -> bool {
        let _ = self.sender().send(event);
        self.touch()
    }

    /// Whether there is no room for an event.
    pub(crate) fn is_full(&mut self) -> bool {
        let capacity = self.capacity;
        self.sender().len() >= capacity
    }

    pub(crate) fn touch(&mut self) -> bool {
        !std::mem::replace(&mut self.touched, true)
    }

    /// Wakes the waiting tasks, after the value was published.
    pub(crate) fn wake(&mut self) {
        self.touched = false;
        self.shared.wake(false);
    }
}

impl<E> Drop for EventSender<E> {
    fn drop(&mut self) {
        // In this order: a task that is woken must see the channel closed.
        self.sender = None;
        self.shared.close();
        self.shared.wake(true);
    }
}

impl<E> EventReceiver<E> {
    /// The channel itself.
    pub(crate) fn events(&self) -> &Receiver<E> {
        self.events.get_or_init(|| self.shared.receiver())
    }

    /// Never drops the channel.
    pub(crate) fn leak(&self) {
        if let Some(events) = self.events.get() {
            std::mem::forget(events.clone());
        }
    }

    /// Waits for the next event; `None` after the last one. If several tasks wait, one gets the event.
    pub(crate) async fn next(&self) -> Option<E> {
        self.until(|_| match self.events().try_recv() {
            Ok(event) => Some(Some(event)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        })
        .await
    }

    /// Waits until `done` returns a value, and leaves the events to others. It is called now, and
    /// again after each delivery; its argument is true if no more events will come.
    pub(crate) async fn until<T>(&self, mut done: impl FnMut(bool) -> Option<T>) -> T {
        let mut waiter = Waiter { shared: &self.shared, number: None };
        poll_fn(|context| {
            // Registered before looking, so that an event in between wakes the task.
            let is_over = waiter.register(context.waker());
            done(is_over).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl<E> Waiter<'_, E> {
    /// Registers this waker, in place of the waiter's former one. Returns whether the sender is
    /// gone, and no waker will be called.
    fn register(&mut self, waker: &Waker) -> bool {
        let mut waiting = self.shared.waiting();
        if matches!(*waiting, WaitingTasks::Nobody) {
            *waiting = WaitingTasks::Tasks(Box::default());
        }
        let WaitingTasks::Tasks(tasks) = &mut *waiting else { return true };
        let former = tasks.register(&mut self.number, waker);
        drop(waiting);
        // Not under the lock: dropping a waker runs user code.
        drop(former);
        false
    }
}

impl<E> Drop for Waiter<'_, E> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut waiting = self.shared.waiting();
        let removed = match &mut *waiting {
            WaitingTasks::Tasks(tasks) => tasks.remove(number),
            WaitingTasks::Nobody | WaitingTasks::Over => None,
        };
        drop(waiting);
        // Not under the lock: dropping a waker runs user code.
        drop(removed);
    }
}

impl<E> Shared<E> {
    fn channel(&self) -> MutexGuard<'_, Channel<E>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sender's end. Called once.
    fn sender(&self) -> Sender<E> {
        let mut channel = self.channel();
        match std::mem::replace(&mut *channel, Channel::Taken) {
            Channel::Sending(sender) => sender,
            _ => {
                let (sender, receiver) = unbounded();
                *channel = Channel::Receiving(receiver);
                sender
            }
        }
    }

    /// The receiver's end. Called once.
    fn receiver(&self) -> Receiver<E> {
        let mut channel = self.channel();
        match std::mem::replace(&mut *channel, Channel::Taken) {
            Channel::Receiving(receiver) => receiver,
            before => {
                let (sender, receiver) = unbounded();
                if matches!(before, Channel::NotCreated) {
                    *channel = Channel::Sending(sender);
                }
                receiver
            }
        }
    }

    /// The sender is gone.
    fn close(&self) {
        let mut channel = self.channel();
        if matches!(*channel, Channel::NotCreated | Channel::Sending(_)) {
            *channel = Channel::Closed;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingTasks> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiters. If `is_over`, no waiter needs to register again.
    fn wake(&self, is_over: bool) {
        let mut waiting = self.waiting();
        let woken = match &mut *waiting {
            WaitingTasks::Tasks(tasks) => tasks.take(),
            WaitingTasks::Nobody | WaitingTasks::Over => Vec::new(),
        };
        if is_over {
            *waiting = WaitingTasks::Over;
        }
        drop(waiting);
        woken.into_iter().for_each(|(_, task)| task.wake());
    }
}
