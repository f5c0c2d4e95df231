//! Streams of watches and changes: the feature `futures`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::api::changes::Changes;
use crate::api::watch::Watch;
use crate::types::watch::WatchEvent;

impl<T> Stream for Changes<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll(context.waker())
    }
}

/// A stream whose items come from one future after the other.
///
/// The present future belongs to the stream. So if a wait for an item is dropped, as in a
/// `select!`, the next wait continues it.
pub(crate) struct Repeated<S, T, F> {
    step: F,
    state: Option<S>,
    running: Option<Running<S, T>>,
}

/// Returns an item and the state for the next one; the stream ends if either is missing.
pub(crate) type Running<S, T> = Pin<Box<dyn Future<Output = Option<(T, Option<S>)>> + Send>>;

impl<S, T, F> fmt::Debug for Repeated<S, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeated").finish_non_exhaustive()
    }
}

impl<S, T, F: FnMut(S) -> Running<S, T>> Repeated<S, T, F> {
    pub(crate) fn new(state: S, step: F) -> Repeated<S, T, F> {
        Repeated { step, state: Some(state), running: None }
    }
}

// Only the boxed future is pinned.
impl<S, T, F> Unpin for Repeated<S, T, F> {}

impl<S, T, F: FnMut(S) -> Running<S, T>> Stream for Repeated<S, T, F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        let mut running = match (this.running.take(), this.state.take()) {
            (Some(running), _) => running,
            (None, Some(state)) => (this.step)(state),
            (None, None) => return Poll::Ready(None),
        };
        match running.as_mut().poll(context) {
            Poll::Pending => {
                this.running = Some(running);
                Poll::Pending
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some((item, state))) => {
                this.state = state;
                Poll::Ready(Some(item))
            }
        }
    }
}

impl Watch {
    /// Returns the watch's events as a stream, which ends when the watch is over. It takes events
    /// from the same queue as [`Watch::recv`]. Dropping the stream drops the watch; dropping a wait
    /// for the next event loses nothing.
    ///
    /// ```
    /// use std::pin::Pin;
    /// use quorate::{EventKind, WatchMode};
    ///
    /// # async fn next<S: futures_core::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    /// #     std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
    /// # }
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let watch = session.watch("/a", WatchMode::Persistent).await?;
    /// let mut events = watch.into_stream();
    /// // `next` is that of `futures::StreamExt` or `tokio_stream::StreamExt`.
    /// while let Some(event) = next(&mut events).await {
    ///     println!("{event:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = WatchEvent> + Send + Unpin + 'static {
        Repeated::new(self, |watch: Watch| {
            Box::pin(async move {
                let event = watch.next().await?;
                Some((event, Some(watch)))
            })
        })
    }
}
