//! A wait for one of two futures.

use std::pin::pin;
use std::task::Poll;

pub(crate) enum Either<A, B> {
    One(A),
    Other(B),
}

/// Waits for the future that is ready first; if both are, returns the result of the first.
pub(crate) async fn either<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    std::future::poll_fn(move |context| match one.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Either::One(value)),
        Poll::Pending => other.as_mut().poll(context).map(Either::Other),
    })
    .await
}
