//! The threads that read from the cluster, so that the view never waits for it.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use quorate::{Coordinator, Error, Pending, Result, Session, operate};

use super::super::{ClusterArgs, system};
use super::model::{ReadRequest, ShownZnode, Update};

/// How often the members' reports are read.
const PERIOD: Duration = Duration::from_secs(1);

/// The connection of a reading thread.
struct ReaderConnection {
    cluster: Arc<ClusterArgs>,
    coordinator: Arc<Coordinator>,
    updates: Sender<(Instant, Update)>,
}

pub(super) struct ReaderThreads {
    /// Each update with the time at which it was read.
    pub(super) updates: Receiver<(Instant, Update)>,
    locks: Sender<ReadRequest>,
    tree: Sender<ReadRequest>,
    /// When it is dropped, the threads for members and sessions end.
    _running: Sender<()>,
    threads: Vec<JoinHandle<()>>,
}

impl ReaderThreads {
    pub(super) fn start(
        cluster: &Arc<ClusterArgs>,
        coordinator: &Arc<Coordinator>,
    ) -> Result<ReaderThreads> {
        let (to_view, updates) = unbounded();
        let reader = || ReaderConnection {
            cluster: Arc::clone(cluster),
            coordinator: Arc::clone(coordinator),
            updates: to_view.clone(),
        };
        // The view requests one read of each kind at a time.
        let (locks, asked_locks) = bounded(1);
        let (tree, asked_tree) = bounded(1);
        let (running, stop) = bounded(0);
        let stop_too = Receiver::clone(&stop);
        let [of_members, of_sessions, of_locks, of_tree] = [(); 4].map(|()| reader());
        let named = |name: &str| Builder::new().name(name.to_owned());
        let threads: io::Result<Vec<JoinHandle<()>>> = [
            named("top-members").spawn(move || of_members.repeat(&stop, members)),
            named("top-sessions").spawn(move || of_sessions.repeat(&stop_too, sessions)),
            named("top-locks").spawn(move || of_locks.serve(&asked_locks)),
            named("top-tree").spawn(move || of_tree.serve(&asked_tree)),
        ]
        .into_iter()
        .collect();
        let threads = threads.map_err(system("starting a thread"))?;
        Ok(ReaderThreads { updates, locks, tree, _running: running, threads })
    }

    /// Whether all threads are still running.
    pub(super) fn are_well(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    pub(super) fn ask(&self, ask: ReadRequest) {
        let to = match ask {
            ReadRequest::Locks => &self.locks,
            ReadRequest::Tree { .. } => &self.tree,
        };
        // The channel has room, since there is one request at a time; or its thread is gone, which
        // `are_well` reports.
        let _ = to.try_send(ask);
    }
}

fn members(coordinator: &Coordinator) -> Update {
    Update::Reports(text(coordinator.reports().wait()))
}

fn sessions(coordinator: &Coordinator) -> Update {
    Update::Sessions(text(coordinator.sessions().wait()))
}

fn text<T>(read: Result<T>) -> Result<T, String> {
    read.map_err(|error| error.to_string())
}

impl ReaderConnection {
    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    /// Repeats a read until the view is gone.
    fn repeat(&self, stop: &Receiver<()>, read: fn(&Coordinator) -> Update) {
        loop {
            let begun = Instant::now();
            let sent = self.send(read(&self.coordinator));
            let left = PERIOD.saturating_sub(begun.elapsed());
            if sent.is_err() || !stop.recv_timeout(left).is_err_and(|error| error.is_timeout()) {
                return;
            }
        }
    }

    /// Does the requested reads, in a session that is opened when it is first needed.
    fn serve(&self, asks: &Receiver<ReadRequest>) {
        let mut last: Option<Session> = None;
        for ask in asks {
            let session = match last.take().filter(|session| !session.state().is_final()) {
                Some(session) => Ok(session),
                None => self.cluster.session(&self.coordinator),
            };
            let sent = match ask {
                ReadRequest::Locks => self.locks(session.as_ref()),
                ReadRequest::Tree { list, read } => self.tree(session.as_ref(), list, read),
            };
            if sent.is_err() {
                return;
            }
            last = session.ok();
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    fn locks(&self, session: Result<&Session, &Error>) -> Sent {
        let begun = Instant::now();
        let session = session.map_err(Error::to_string);
        let found = session.and_then(|session| text(operate::contended(session, "/").wait()));
        self.send(Update::Locks { found, took: begun.elapsed() })
    }

    fn tree(&self, session: Result<&Session, &Error>, list: Vec<String>, path: String) -> Sent {
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                self.send(Update::Znode { path, read: Err(error.to_string()) })?;
                return self.send(Update::TreeDone);
            }
        };
        let calls = &session.in_turn();
        let (data, acl) = (calls.get(&path), calls.acl(&path));
        let lists: Vec<_> = list.iter().map(|path| calls.children(path)).collect();
        for (path, children) in list.into_iter().zip(lists) {
            let listed = self.wait(children);
            self.send(Update::Children { path, listed })?;
        }
        let read = self
            .wait(data)
            .and_then(|(data, stat)| self.wait(acl).map(|(acl, _)| ShownZnode { data, stat, acl }));
        self.send(Update::Znode { path, read })?;
        self.send(Update::TreeDone)
    }

    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    fn send(&self, update: Update) -> Sent {
        self.updates.send((Instant::now(), update)).map_err(|_| Gone)
    }

    fn wait<T>(&self, pending: Pending<'_, T>) -> Result<T, String> {
        text(pending.timeout(self.cluster.wait()).wait())
    }
}

/// The view is gone.
struct Gone;

type Sent = Result<(), Gone>;
