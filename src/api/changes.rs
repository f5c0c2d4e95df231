//! A queue of changes.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crossbeam_channel::{Receiver, TryRecvError};

use crate::runtime::pending::Pending;
use crate::runtime::shared::NodeShared;
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
/// session.sync().wait()?;
/// let mut states = session.states();
/// assert_eq!(states.recv().wait()?, Some(SessionState::Connected));
/// session.close().wait()?;
/// assert_eq!(states.recv().wait()?, Some(SessionState::Closed));
/// assert_eq!(states.recv().wait()?, None);
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Changes<T> {
    changes: Receiver<T>,
    place: Place,
    shared: Arc<NodeShared>,
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
    pub(crate) fn new(
        changes: Receiver<T>,
        wakers: Arc<Wakers>,
        shared: &Arc<NodeShared>,
    ) -> Changes<T> {
        Changes { changes, place: Place::new(wakers), shared: Arc::clone(shared) }
    }

    /// The channel of changes, for `select!`, iteration and so on. It may be cloned, but each change goes to one
    /// receiver only.
    pub fn events(&self) -> &Receiver<T> {
        &self.changes
    }

    /// Waits until the next change; `None` after the last one.
    pub fn recv(&mut self) -> Pending<'_, Option<T>>
    where
        T: Send,
    {
        let shared = Arc::clone(&self.shared);
        let next = poll_fn(|context| self.poll(context.waker()).map(Ok));
        Pending::steps(&shared, "recv", "", next).unlimited()
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
