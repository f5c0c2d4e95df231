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
//! A task is woken only after the value has been published: its waker is the user's code, which may
//! read the value on this very thread.
//!
//! The channel is made when one of its ends first sends or looks. Until then a watch costs a few
//! words, and there may be a million of them.

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
    /// The task that waits for events.
    waiting: Mutex<Option<Waker>>,
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
    let between = Between { channel: Mutex::new(Channel::Unmade), waiting: Mutex::new(None) };
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
        self.between.wake();
    }
}

impl<E> Drop for EventSender<E> {
    fn drop(&mut self) {
        // In this order: the task that is woken must see the channel closed.
        self.sender = None;
        self.between.close();
        self.between.wake();
    }
}

impl<E> EventReceiver<E> {
    /// The channel itself.
    pub(crate) fn events(&self) -> &Receiver<E> {
        self.events.get_or_init(|| self.between.receiver())
    }

    /// The next event, `None` after the last one. For one task at a time.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<E>> {
        // Registered before looking, so that what comes in between wakes the task.
        self.between.register(waker);
        match self.events().try_recv() {
            Ok(event) => Poll::Ready(Some(event)),
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
            Err(TryRecvError::Empty) => Poll::Pending,
        }
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

    fn register(&self, waker: &Waker) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        let waker = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
