//! The thread that runs a node: it carries what handles, peers and the disk
//! have to say to the [`Host`], and what the host wants done to the network and
//! the disk.
//!
//! Threads of a coordinator: `quorate-node` (this one), `quorate-disk` and
//! `quorate-net`. All three end, and are joined, when the coordinator is closed
//! or its last handle is dropped.

use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, never, select, unbounded};

use crate::builder::Builder;
use crate::coordinator::Coordinator;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::node::io::{Input, Problem, Time};
use crate::peers::Member;
use crate::runtime::clock::Clock;
use crate::runtime::disk::Disk;
use crate::runtime::host::{Call, Host, Limits};
use crate::runtime::watchdog::{GAP_MAX, Watchdog};
use crate::storage::LogStore;
use crate::transport::tcp::TcpTransport;
use crate::transport::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};

/// Network -> node. Full means the node is behind: the network stops reading, and TCP makes the
/// peers wait.
const NETWORK_CAPACITY: usize = 1024;
/// How much is taken in before a step, of each kind.
const TAKEN_MAX: usize = 4096;
/// A step of the disk that takes this long makes a leader hand over; one that takes longer stops the
/// node. Only the time counts in which this thread was running too.
const DISK_SLOW: Duration = Duration::from_secs(10);
const DISK_DEAD: Duration = Duration::from_secs(60);

pub(crate) struct Start {
    pub(crate) node: Node,
    pub(crate) store: Box<dyn LogStore>,
    pub(crate) listener: TcpListener,
    pub(crate) local: LocalPeer,
    pub(crate) remote: Vec<RemotePeer>,
    pub(crate) clock: Clock,
    pub(crate) members: Vec<Member>,
    pub(crate) settings: Builder,
}

/// Starts the threads and gives the handle that stops them.
pub(crate) fn start(start: Start) -> Result<Coordinator> {
    let Start { node, store, listener, local, remote, clock, members, settings } = start;
    let system =
        |what| move |error: std::io::Error| Error::System { what, reason: error.to_string() };
    let (events, network) = bounded(NETWORK_CAPACITY);
    let transport =
        TcpTransport::start(listener, local, remote, TransportOptions::default(), move |event| {
            events.send(event).is_ok()
        })
        .map_err(system("the network thread"))?;
    let (done, written) = unbounded();
    let disk = Disk::start(store, done).map_err(system("the disk thread"))?;
    let limits = Limits {
        pending_requests_max: settings.pending_requests_max,
        request_timeout: settings.request_timeout,
        session_timeout: settings.session_timeout,
        tick: settings.tick,
    };
    let (host, shared) = Host::new(node, clock.clone(), limits, members);
    let calls = host.calls();
    let driver = Driver {
        host,
        calls,
        network,
        written,
        transport,
        disk,
        clock,
        watchdog: Watchdog::default(),
        resigned: false,
    };
    let thread: JoinHandle<()> = std::thread::Builder::new()
        .name("quorate-node".to_owned())
        .spawn(move || driver.run())
        .map_err(system("the node thread"))?;
    Ok(Coordinator::owning(shared, thread))
}

struct Driver {
    host: Host,
    calls: Receiver<Call>,
    network: Receiver<TransportEvent>,
    written: Receiver<Input>,
    transport: TcpTransport,
    disk: Disk,
    clock: Clock,
    watchdog: Watchdog,
    resigned: bool,
}

impl Driver {
    /// Until the coordinator is closed. A node that stopped by itself goes on answering that.
    fn run(mut self) {
        let mut wake_at = Time::ZERO;
        loop {
            let mut wait = wake_at.saturating_sub(self.clock.now());
            if self.watchdog.is_on() {
                wait = wait.min(GAP_MAX);
            }
            let open = if wait.is_zero() {
                true
            } else {
                select! {
                    recv(self.calls) -> call => call.is_ok_and(|call| self.host.call(call)),
                    recv(self.network) -> event => {
                        match event {
                            Ok(event) => self.take_event(event),
                            Err(_) => self.network_ended(),
                        }
                        true
                    }
                    recv(self.written) -> input => {
                        match input {
                            Ok(input) => self.host.input(input),
                            // It has said why, and there will be nothing more.
                            Err(_) => self.written = never(),
                        }
                        true
                    }
                    default(wait) => true,
                }
            };
            if !open || !self.take_all() {
                break;
            }
            self.watch_disk();
            let work = self.host.step();
            if self.host.is_closed() {
                break;
            }
            wake_at = work.wake_at;
            if !work.messages.is_empty() {
                self.transport.send(work.messages);
            }
            for op in work.disk {
                self.disk.submit(op);
            }
        }
        // Its handles get their answers before the threads below are joined.
        self.host.close();
        let Driver { host, network, transport, disk, .. } = self;
        // First, since the network's thread may be waiting for room in it.
        drop(network);
        tracing::debug!(counters = ?transport.counters(), "closing");
        drop(transport);
        drop(disk);
        drop(host);
    }

    fn network_ended(&mut self) {
        self.network = never();
        self.host.input(Input::Failed { reason: "the network thread has ended".to_owned() });
    }

    /// Takes in what has gathered; `false` once the coordinator is closed.
    fn take_all(&mut self) -> bool {
        for _ in 0..TAKEN_MAX {
            let Ok(input) = self.written.try_recv() else {
                break;
            };
            self.host.input(input);
        }
        for _ in 0..TAKEN_MAX {
            let Ok(event) = self.network.try_recv() else {
                break;
            };
            self.take_event(event);
        }
        for _ in 0..TAKEN_MAX {
            let Ok(call) = self.calls.try_recv() else {
                break;
            };
            if !self.host.call(call) {
                return false;
            }
        }
        true
    }

    fn take_event(&mut self, event: TransportEvent) {
        self.host.input(match event {
            TransportEvent::Received { from, message } => Input::Peer { from, message },
            TransportEvent::Connected { peer } => Input::Connected { peer },
            TransportEvent::Unreachable { peer, reason, permanent } => {
                Input::Unreachable { peer, problem: Problem { reason, refused: permanent } }
            }
        });
    }

    /// A disk that hangs reports nothing, so somebody else has to look.
    fn watch_disk(&mut self) {
        let busy = self.watchdog.look(self.clock.now(), self.disk.under_way());
        if busy > DISK_DEAD {
            let reason = format!("the disk failed: a step of it has been under way for {busy:?}");
            self.host.input(Input::Failed { reason });
        } else if busy > DISK_SLOW {
            if !self.resigned {
                tracing::warn!(?busy, "the disk is slow; handing over leadership, if it is ours");
                self.host.input(Input::Resign);
            }
            self.resigned = true;
        } else {
            self.resigned = false;
        }
    }
}
