//! The threads that may wait for the cluster.
//!
//! Requests that need a session wait longest when there is no quorum, and reports of the members wait for
//! silent ones. So each kind has its own threads; one more thread is for the metrics of this instance, which
//! wait for nobody, one for searches, which read many znodes, and one for actions, which wait for their end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use mio::Waker;

use super::routes::{Route, RouteOutcome, Routes};
use crate::runtime::port::Serving;

/// The numbers of threads for the instance's metrics, for reports of the members, for znodes, for searches, and
/// for actions.
const THREADS: [usize; 5] = [1, 2, 3, 1, 1];
/// How many requests may wait for each. Further requests are refused.
const QUEUE: usize = 32;

/// A request for the workers.
pub(super) struct WorkerRequest {
    pub(super) connection: u64,
    pub(super) route: Route,
    pub(super) body: Vec<u8>,
    pub(super) from: SocketAddr,
}

/// The server's end of the workers' queues. When it is dropped, the workers end.
pub(super) struct Jobs {
    metrics: Sender<WorkerRequest>,
    reports: Sender<WorkerRequest>,
    znodes: Sender<WorkerRequest>,
    searches: Sender<WorkerRequest>,
    actions: Sender<WorkerRequest>,
}

impl Jobs {
    /// Queues a job; returns whether there was room.
    pub(super) fn take(&self, job: WorkerRequest) -> bool {
        let queue = match &job.route {
            Route::Metrics | Route::History { .. } => &self.metrics,
            Route::Members | Route::Sessions => &self.reports,
            Route::Locks(_) | Route::Search(_) => &self.searches,
            Route::Act(_) => &self.actions,
            // These need the endpoint's session, and perhaps a quorum.
            _ => &self.znodes,
        };
        queue.try_send(job).is_ok()
    }
}

/// A message for the server's thread.
pub(super) enum ServerMessage {
    /// The result of a connection's request.
    Done(u64, RouteOutcome),
    /// An event for all listeners.
    Event(Arc<[u8]>),
}

/// The queue of messages for the server's thread.
#[derive(Clone)]
pub(super) struct Outbox {
    pub(super) sender: Sender<ServerMessage>,
    pub(super) waker: Arc<Waker>,
}

impl Outbox {
    pub(super) fn send(&self, message: ServerMessage) {
        // If the server has ended, nobody waits for the message.
        let _ = self.sender.send(message);
        // If waking fails, the server takes the message at its next sweep.
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
    let (searches, to_search) = bounded(QUEUE);
    let (actions, to_act) = bounded(QUEUE);
    let queues = [to_measure, to_report, to_read, to_search, to_act];
    for (jobs, count) in queues.into_iter().zip(THREADS) {
        for _ in 0..count {
            let (jobs, routes, outbox) = (jobs.clone(), Arc::clone(routes), outbox.clone());
            serving.spawn("quorate-admin-work", move || work(&jobs, &routes, &outbox))?;
        }
    }
    Ok(Jobs { metrics, reports, znodes, searches, actions })
}

fn work(jobs: &Receiver<WorkerRequest>, routes: &Routes, outbox: &Outbox) {
    for WorkerRequest { connection, route, body, from } in jobs {
        let outcome = routes.work(&route, &body, from);
        outbox.send(ServerMessage::Done(connection, outcome));
    }
}
