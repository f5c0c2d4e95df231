//! A bounded channel of events that never blocks its sender and never loses one in silence.
//!
//! At most `capacity` events wait, and behind them one *gap*: an event that says that others were
//! left out. An event that finds no place is left out, and a gap takes its place at once. If the gap
//! finds no place either, then the reader has not taken an earlier one yet, which stands for this
//! event too. A last event, behind which nothing comes, always has a place.
//!
//! Everything is sent before the value that shows the change is published (`published`): a reader
//! that reads the value and then empties the channel finds each event up to that value, or a gap.
//! A reader that has taken a gap reads a value that shows all that this gap stands for, because
//! reads wait while a change is being announced.
//!
//! Tasks are woken only after the value has been published: a waker is the user's code, which may
//! read the value on this very thread. Any number of tasks may wait. All are woken, since some wait
//! for an event, which one of them takes, and some for what it stands for, and leave it to others.
//!
//! The channel is made when one of its ends first sends or looks. Until then a watch costs a few
//! words, and there may be a million of them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::prim::{
    Mutex, MutexGuard, OnceLock, PoisonError, Receiver, Sender, TryRecvError, unbounded,
};

/// The sending end.
#[derive(Debug)]
pub(crate) struct EventSender<E> {
    capacity: usize,
    /// Something was sent or left out since the last `wake`.
    touched: bool,
    /// Not bounded by itself: by `capacity`, the gap and the last event.
    sender: Option<Sender<E>>,
    between: Arc<Between<E>>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct EventReceiver<E> {
    events: OnceLock<Receiver<E>>,
    between: Arc<Between<E>>,
}

/// What the two ends share.
#[derive(Debug)]
struct Between<E> {
    channel: Mutex<Channel<E>>,
    waiting: Mutex<Waiting>,
}

/// The tasks that wait.
#[derive(Debug)]
enum Waiting {
    /// There has been none yet.
    Nobody,
    Tasks(Box<Tasks>),
    /// The sender is gone, and nobody need wait.
    Over,
}

#[derive(Debug, Default)]
struct Tasks {
    /// Each with the number of its [`Waiter`], in their order.
    wakers: Vec<(u64, Waker)>,
    last_number: u64,
}

/// One that waits. Dropped, it is not woken any more.
struct Waiter<'a, E> {
    receiver: &'a EventReceiver<E>,
    number: Option<u64>,
}

/// Whoever wants the channel first makes it, and leaves the other end here.
#[derive(Debug)]
enum Channel<E> {
    Unmade,
    /// For the sender.
    Sending(Sender<E>),
    /// For the receiver.
    Receiving(Receiver<E>),
    /// Both have their ends.
    Taken,
    /// The sender is gone and had made none.
    Closed,
}

/// A channel in which so many events may wait.
pub(crate) fn channel<E>(capacity: usize) -> (EventSender<E>, EventReceiver<E>) {
    let waiting = Mutex::new(Waiting::Nobody);
    let between = Between { channel: Mutex::new(Channel::Unmade), waiting };
    let between = Arc::new(between);
    let receiver = EventReceiver { events: OnceLock::new(), between: Arc::clone(&between) };
    (EventSender { capacity, touched: false, sender: None, between }, receiver)
}

/// All that sends is called between `announce` and `publish` of the value that shows the change, and
/// says whether this is the first since `wake`, which is then to be called.
impl<E> EventSender<E> {
    fn sender(&mut self) -> &Sender<E> {
        self.sender.get_or_insert_with(|| self.between.sender())
    }

    /// Sends an event, or if there is no place for it, the gap that stands for it.
    pub(crate) fn deliver(&mut self, event: E, gap: impl FnOnce(E) -> E) -> bool {
        if self.is_full() {
            return self.leave_out(gap(event));
        }
        // Nobody may read any more, which is not the sender's concern.
        let _ = self.sender().send(event);
        self.touch()
    }

    /// Sends a gap for an event that is left out.
    pub(crate) fn leave_out(&mut self, gap: E) -> bool {
        let capacity = self.capacity;
        // If there is no place, the gap in the last place has not been taken yet. Whoever takes it
        // later finds the change announced.
        if self.sender().len() <= capacity {
            let _ = self.sender().send(gap);
        }
        self.touch()
    }

    /// Sends an event behind which nothing comes.
    pub(crate) fn deliver_last(&mut self, event: E) -> bool {
        let _ = self.sender().send(event);
        self.touch()
    }

    /// Whether an event finds no place.
    pub(crate) fn is_full(&mut self) -> bool {
        let capacity = self.capacity;
        self.sender().len() >= capacity
    }

    pub(crate) fn touch(&mut self) -> bool {
        !std::mem::replace(&mut self.touched, true)
    }

    /// Wakes the task that waits, after the value has been published.
    pub(crate) fn wake(&mut self) {
        self.touched = false;
        self.between.wake(false);
    }
}

impl<E> Drop for EventSender<E> {
    fn drop(&mut self) {
        // In this order: a task that is woken must see the channel closed.
        self.sender = None;
        self.between.close();
        self.between.wake(true);
    }
}

impl<E> EventReceiver<E> {
    /// The channel itself.
    pub(crate) fn events(&self) -> &Receiver<E> {
        self.events.get_or_init(|| self.between.receiver())
    }

    /// Waits for the next event, `None` after the last one. Of several that wait, one gets it.
    pub(crate) async fn next(&self) -> Option<E> {
        let mut waiter = self.waiter();
        poll_fn(|context| waiter.poll(context.waker())).await
    }

    /// Waits until `done` gives something, and leaves the events to others. It is asked now, and again
    /// each time that there were events, or there will be no more: which it is told.
    pub(crate) async fn until<T>(&self, mut done: impl FnMut(bool) -> Option<T>) -> T {
        let mut waiter = self.waiter();
        poll_fn(|context| {
            // Registered before looking, so that what comes in between wakes the task.
            let is_over = waiter.register(context.waker());
            done(is_over).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn waiter(&self) -> Waiter<'_, E> {
        Waiter { receiver: self, number: None }
    }
}

impl<E> Waiter<'_, E> {
    fn poll(&mut self, waker: &Waker) -> Poll<Option<E>> {
        // Registered before looking, so that what comes in between wakes the task.
        self.register(waker);
        match self.receiver.events().try_recv() {
            Ok(event) => Poll::Ready(Some(event)),
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
            Err(TryRecvError::Empty) => Poll::Pending,
        }
    }

    /// Asks to be woken, by this waker and no former one. Whether the sender is gone, and nobody will
    /// be woken.
    fn register(&mut self, waker: &Waker) -> bool {
        let mut waiting = self.receiver.between.waiting();
        if matches!(*waiting, Waiting::Nobody) {
            *waiting = Waiting::Tasks(Box::default());
        }
        let Waiting::Tasks(tasks) = &mut *waiting else { return true };
        let number = *self.number.get_or_insert_with(|| {
            tasks.last_number += 1;
            tasks.last_number
        });
        let former = match tasks.at(number) {
            Ok(at) => Some(std::mem::replace(&mut tasks.wakers[at].1, waker.clone())),
            Err(at) => {
                tasks.wakers.insert(at, (number, waker.clone()));
                None
            }
        };
        drop(waiting);
        // Not under the lock: it is the user's code.
        drop(former);
        false
    }
}

impl Tasks {
    /// Where a waiter's waker is, or would be.
    fn at(&self, number: u64) -> Result<usize, usize> {
        self.wakers.binary_search_by_key(&number, |(number, _)| *number)
    }
}

impl<E> Drop for Waiter<'_, E> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut waiting = self.receiver.between.waiting();
        let removed = match &mut *waiting {
            Waiting::Tasks(tasks) => tasks.at(number).ok().map(|at| tasks.wakers.remove(at)),
            Waiting::Nobody | Waiting::Over => None,
        };
        drop(waiting);
        // Not under the lock: it is the user's code.
        drop(removed);
    }
}

impl<E> Between<E> {
    fn channel(&self) -> MutexGuard<'_, Channel<E>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sender's end. Asked for once.
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

    /// The receiver's end. Asked for once.
    fn receiver(&self) -> Receiver<E> {
        let mut channel = self.channel();
        match std::mem::replace(&mut *channel, Channel::Taken) {
            Channel::Receiving(receiver) => receiver,
            before => {
                let (sender, receiver) = unbounded();
                if matches!(before, Channel::Unmade) {
                    *channel = Channel::Sending(sender);
                }
                receiver
            }
        }
    }

    /// The sender is gone.
    fn close(&self) {
        let mut channel = self.channel();
        if matches!(*channel, Channel::Unmade | Channel::Sending(_)) {
            *channel = Channel::Closed;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all who wait. After the last time, they need not ask again.
    fn wake(&self, is_over: bool) {
        let mut waiting = self.waiting();
        let woken = match &mut *waiting {
            Waiting::Tasks(tasks) => std::mem::take(&mut tasks.wakers),
            Waiting::Nobody | Waiting::Over => Vec::new(),
        };
        if is_over {
            *waiting = Waiting::Over;
        }
        drop(waiting);
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }
}
