//! The lock recipes: fences, revocation and lock-delay, read-write locks, semaphores, several locks
//! as one.

mod lock;
mod lost;
mod many;
mod multi_lock;
mod read_write_lock;
mod reentrant_lock;
mod semaphore;
mod shared;
mod taken;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use quorate::recipes::Lock;
use quorate::testing::Cluster;

fn lock(cluster: &Cluster, node: usize) -> Lock {
    cluster.node(node).session().lock("/lock").unwrap()
}

/// A future, and whether it was woken.
struct Task<T> {
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<T> Task<T> {
    fn new(future: impl Future<Output = T> + 'static) -> Task<T> {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        Task { future: Some(Box::pin(future)), woken }
    }

    /// Wakes the task, without a reason.
    fn wake(&self) {
        self.woken.0.store(true, Ordering::SeqCst);
    }

    /// Polls the task if it was woken; returns its result, once.
    fn poll(&mut self) -> Option<T> {
        if !self.woken.0.swap(false, Ordering::SeqCst) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        let polled = self.future.as_mut()?.as_mut().poll(&mut Context::from_waker(&waker));
        match polled {
            Poll::Ready(value) => {
                self.future = None;
                Some(value)
            }
            Poll::Pending => None,
        }
    }

    /// Polls the task whenever it is woken, until nothing more happens.
    fn settle(&mut self, cluster: &Cluster) -> Option<T> {
        for _ in 0..100 {
            if let Some(value) = self.poll() {
                return Some(value);
            }
            cluster.advance(Duration::from_millis(10));
        }
        None
    }
}
