//! The threads that may wait for the cluster.
//!
//! Those that need a session wait longest when there is no quorum, and what the members report waits for silent
//! ones. So there are threads for each, and one for the metrics of this instance, which wait for nobody.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use mio::Waker;

use super::routes::{Outcome, Route, Routes};
use crate::runtime::port::Serving;

/// How many threads have the instance's metrics, report of the members, and read and write znodes.
const THREADS: [usize; 3] = [1, 2, 3];
/// How many requests wait for them. More are refused.
const QUEUE: usize = 32;

/// A request for the workers.
pub(super) struct Job {
    pub(super) connection: u64,
    pub(super) route: Route,
    pub(super) body: Vec<u8>,
    pub(super) from: SocketAddr,
}

/// Where the server leaves them. When it is dropped, the workers end.
pub(super) struct Jobs {
    metrics: Sender<Job>,
    reports: Sender<Job>,
    znodes: Sender<Job>,
}

impl Jobs {
    /// Whether there was room.
    pub(super) fn take(&self, job: Job) -> bool {
        let queue = match &job.route {
            Route::Metrics => &self.metrics,
            Route::Members | Route::Sessions => &self.reports,
            // These need the endpoint's session, and so perhaps a quorum.
            _ => &self.znodes,
        };
        queue.try_send(job).is_ok()
    }
}

/// For the server's thread.
pub(super) enum Message {
    /// For one connection.
    Done(u64, Outcome),
    /// For all that listen.
    Event(Arc<[u8]>),
}

/// Where messages for the server's thread are left.
#[derive(Clone)]
pub(super) struct Outbox {
    pub(super) sender: Sender<Message>,
    pub(super) waker: Arc<Waker>,
}

impl Outbox {
    pub(super) fn send(&self, message: Message) {
        // If the server has ended, nobody waits for it.
        let _ = self.sender.send(message);
        // Without it the server looks at its next sweep.
        let _ = self.waker.wake();
    }
}

/// Starts the threads.
pub(super) fn start(
    routes: &Arc<Routes>,
    outbox: &Outbox,
    serving: &mut Serving,
) -> io::Result<Jobs> {
    let (metrics, to_measure) = bounded(QUEUE);
    let (reports, to_report) = bounded(QUEUE);
    let (znodes, to_read) = bounded(QUEUE);
    for (jobs, count) in [to_measure, to_report, to_read].into_iter().zip(THREADS) {
        for _ in 0..count {
            let (jobs, routes, outbox) = (jobs.clone(), Arc::clone(routes), outbox.clone());
            serving.spawn("quorate-admin-work", move || work(&jobs, &routes, &outbox))?;
        }
    }
    Ok(Jobs { metrics, reports, znodes })
}

fn work(jobs: &Receiver<Job>, routes: &Routes, outbox: &Outbox) {
    for Job { connection, route, body, from } in jobs {
        let outcome = routes.work(&route, &body, from);
        outbox.send(Message::Done(connection, outcome));
    }
}
