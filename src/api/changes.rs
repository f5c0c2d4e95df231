//! A queue of changes.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crossbeam_channel::{Receiver, TryRecvError};

use crate::runtime::own_thread;
use crate::sync::wakers::{Place, Wakers};

/// Reports each change of a value: of the state of a session ([`Session::states`](crate::Session::states)), or of the
/// number of failures that the cluster tolerates
/// ([`Coordinator::availability_changes`](crate::Coordinator::availability_changes)).
///
/// The first one is the current value. Each `Changes` has a queue of its own for unread changes; the two calls say
/// what happens when it is full. With the feature `futures` it is a `Stream`. It keeps neither its session nor its
/// coordinator alive.
///
/// ```
/// use quorate::{SessionState, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// session.sync()?;
/// let mut states = session.states();
/// assert_eq!(states.recv(), Some(SessionState::Connected));
/// session.close()?;
/// assert_eq!((states.recv(), states.recv()), (Some(SessionState::Closed), None));
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Changes<T> {
    changes: Receiver<T>,
    place: Place,
}

impl<T> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

// No field is ever pinned.
impl<T> Unpin for Changes<T> {}

impl<T> Changes<T> {
    /// Whoever sends to the channel or closes it must wake `wakers` afterwards.
    pub(crate) fn new(changes: Receiver<T>, wakers: Arc<Wakers>) -> Changes<T> {
        Changes { changes, place: Place::new(wakers) }
    }

    /// The channel of changes, for `select!`, iteration and so on. It may be cloned, but each change goes to one
    /// receiver only.
    pub fn events(&self) -> &Receiver<T> {
        &self.changes
    }

    /// Blocks until the next change, without a time limit; `None` after the last one. In a waker, where nothing may
    /// block, also `None` when there is no change yet.
    pub fn recv(&mut self) -> Option<T> {
        match own_thread::is_this() {
            true => self.changes.try_recv().ok(),
            false => self.changes.recv().ok(),
        }
    }

    /// Waits for the next change without blocking the thread; `None` after the last one. Dropping the future loses
    /// nothing.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let mut states = session.states();
    /// while let Some(state) = states.recv_async().await {
    ///     println!("{state:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn recv_async(&mut self) -> Option<T> {
        std::future::poll_fn(|context| self.poll(context.waker())).await
    }

    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Option<T>> {
        let changes = &self.changes;
        self.place.poll(waker, || match changes.try_recv() {
            Ok(change) => Some(Some(change)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        })
    }
}
