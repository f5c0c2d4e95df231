//! A channel of changes for tasks.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crossbeam_channel::{Receiver, TryRecvError};

use crate::sync::wakers::{Place, Wakers};

/// Reports changes of a value to a task: either the states of a session
/// ([`Session::states_async`](crate::Session::states_async)) or the number of failures that the cluster
/// tolerates
/// ([`Coordinator::availability_changes_async`](crate::Coordinator::availability_changes_async)).
///
/// Each `Changes` has a queue of its own for unread changes, with the limit of the channel whose async
/// form it is. With the feature `futures` it is a `Stream`. It keeps neither its session nor its
/// coordinator alive.
///
/// ```
/// use std::time::Duration;
/// use quorate::{SessionState, testing::Cluster};
///
/// async fn until_over(session: &quorate::Session) -> Option<SessionState> {
///     let mut states = session.states_async();
///     let mut last = None;
///     while let Some(state) = states.next().await {
///         last = Some(state);
///     }
///     last
/// }
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

    /// Waits for the next change without blocking the thread; the first call returns the current
    /// value. `None` after the last change. Dropping the future loses nothing.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let mut states = session.states_async();
    /// while let Some(state) = states.next().await {
    ///     println!("{state:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<T> {
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
