//! What recipes report as streams: the feature `futures`.

use futures_core::Stream;

use crate::api::stream::Repeated;
use crate::recipes::cache::{Cache, Change};
use crate::recipes::codec::Codec;
use crate::recipes::config::{ConfigUpdate, ConfigWatch};
use crate::recipes::discovery::InstancesWatch;
use crate::recipes::election::{Candidate, LeaderChanges};
use crate::recipes::group::{MemberChanges, Members};
use crate::recipes::registry::Instance;
use crate::recipes::revocation::Revocations;
use crate::types::error::Result;

impl Cache {
    /// The changes of [`Cache::next`] as a stream, which ends after an error. A wait for the next item that is dropped loses
    /// nothing; dropping the stream drops this.
    ///
    /// # Errors
    /// As `next`.
    pub fn into_stream(self) -> impl Stream<Item = Result<Vec<Change>>> + Send + Unpin {
        Repeated::new(self, |mut from: Self| {
            Box::pin(async move {
                let item = from.next().await;
                let rest = item.is_ok().then_some(from);
                Some((item, rest))
            })
        })
    }
}

impl MemberChanges {
    /// The members of [`MemberChanges::next`] as a stream, which ends after an error. A wait for the next item that is dropped loses
    /// nothing; dropping the stream drops this.
    ///
    /// # Errors
    /// As `next`.
    pub fn into_stream(self) -> impl Stream<Item = Result<Members>> + Send + Unpin {
        Repeated::new(self, |mut from: Self| {
            Box::pin(async move {
                let item = from.next().await;
                let rest = item.is_ok().then_some(from);
                Some((item, rest))
            })
        })
    }
}

impl LeaderChanges {
    /// The leaders of [`LeaderChanges::next`] as a stream, which ends after an error. A wait for the next item that is dropped loses
    /// nothing; dropping the stream drops this.
    ///
    /// # Errors
    /// As `next`.
    pub fn into_stream(self) -> impl Stream<Item = Result<Option<Candidate>>> + Send + Unpin {
        Repeated::new(self, |mut from: Self| {
            Box::pin(async move {
                let item = from.next().await;
                let rest = item.is_ok().then_some(from);
                Some((item, rest))
            })
        })
    }
}

impl InstancesWatch {
    /// The sets of [`InstancesWatch::next`] as a stream, which ends after an error. A wait for the next item that is dropped loses
    /// nothing; dropping the stream drops this.
    ///
    /// # Errors
    /// As `next`.
    pub fn into_stream(self) -> impl Stream<Item = Result<Vec<Instance>>> + Send + Unpin {
        Repeated::new(self, |mut from: Self| {
            Box::pin(async move {
                let item = from.next().await;
                let rest = item.is_ok().then_some(from);
                Some((item, rest))
            })
        })
    }
}

impl<T: Send + 'static, C: Codec<T> + Send + 'static> ConfigWatch<T, C> {
    /// The updates of [`ConfigWatch::next`] as a stream, which ends after an error. A wait for the next item that is dropped loses
    /// nothing; dropping the stream drops this.
    ///
    /// # Errors
    /// As `next`.
    pub fn into_stream(self) -> impl Stream<Item = Result<ConfigUpdate<T>>> + Send + Unpin {
        Repeated::new(self, |mut from: Self| {
            Box::pin(async move {
                let item = from.next().await;
                let rest = item.is_ok().then_some(from);
                Some((item, rest))
            })
        })
    }
}

impl Revocations {
    /// Requests to give up the lock, as a stream, which ends when the lock is lost. A wait for the next
    /// one that is dropped loses nothing.
    pub fn into_stream(self) -> impl Stream<Item = ()> + Send + Unpin {
        Repeated::new(self, |revocations: Self| {
            Box::pin(async move { revocations.next().await.then_some(((), Some(revocations))) })
        })
    }
}
