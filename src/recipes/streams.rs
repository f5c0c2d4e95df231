//! The changes that recipes report, as streams: the feature `futures`.

use futures_core::Stream;

use crate::api::stream::Repeated;
use crate::recipes::cache::{Cache, Change};
use crate::recipes::revocation::Revocations;
use crate::recipes::updates::{Step, Updates};
use crate::types::error::Result;

/// The results of `next`, one after the other, up to the first error.
fn until_error<S: Send + 'static, T: 'static>(
    from: S,
    next: fn(&mut S) -> Step<'_, T>,
) -> impl Stream<Item = Result<T>> + Send + Unpin {
    Repeated::new(from, move |mut from: S| {
        Box::pin(async move {
            let item = next(&mut from).await;
            let rest = item.is_ok().then_some(from);
            Some((item, rest))
        })
    })
}

impl Cache {
    /// The changes of [`Cache::recv`] as a stream, which ends after an error. Dropping a wait for the next
    /// item loses nothing; dropping the stream drops `self`.
    ///
    /// # Errors
    /// As [`Cache::recv`].
    pub fn into_stream(self) -> impl Stream<Item = Result<Vec<Change>>> + Send + Unpin {
        until_error(self, |from| Box::pin(from.recv()))
    }
}

impl<T: Send + 'static> Updates<T> {
    /// The values of [`Updates::recv`] as a stream, which ends after an error. Dropping a wait for the next item
    /// loses nothing; dropping the stream drops `self`.
    ///
    /// # Errors
    /// As [`Updates::recv`].
    pub fn into_stream(self) -> impl Stream<Item = Result<T>> + Send + Unpin {
        until_error(self, |from| Box::pin(from.recv()))
    }
}

impl Revocations {
    /// The requests to give up the lock, as a stream, which ends when the lock is lost. Dropping a wait
    /// for the next request loses nothing.
    pub fn into_stream(self) -> impl Stream<Item = ()> + Send + Unpin {
        Repeated::new(self, |revocations: Self| {
            Box::pin(async move { revocations.asked().await.then_some(((), Some(revocations))) })
        })
    }
}
