//! The events for listeners at `/events`: the state of the cluster every second, and each change of a znode.
//!
//! Nothing is sampled and nothing is watched while nobody listens.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, after, bounded, never, select};
use serde_json::{Value, json};

use super::routes::{self, json};
use super::session::{ANSWER_WITHIN, AdminSession};
use super::workers::{Outbox, ServerMessage};
use crate::api::coordinator::Coordinator;
use crate::runtime::port::Serving;
use crate::types::error::Result;
use crate::types::watch::WatchMode;

/// How often the state is sampled.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the measured `sync` may take.
const SYNC_WITHIN: Duration = Duration::from_millis(500);
/// Changes are gathered for so long, so that a burst is one event.
const GATHERED_FOR: Duration = Duration::from_millis(100);
/// The most changes in one event. Further changes in the same period are dropped, and the event
/// reports that.
const CHANGES_MAX: usize = 256;

/// The number of listeners, and the threads to wake when one arrives. When this is dropped, the
/// threads end.
pub(super) struct Listeners {
    count: Arc<AtomicUsize>,
    wakes: Vec<Sender<()>>,
}

impl Listeners {
    pub(super) fn set(&self, count: usize) {
        let former = self.count.swap(count, Ordering::AcqRel);
        if count > former {
            // If the channel is full, the thread will notice, too.
            for wake in &self.wakes {
                let _ = wake.try_send(());
            }
        }
    }
}

/// One of the two threads.
struct Sampler {
    coordinator: Coordinator,
    session: Arc<AdminSession>,
    outbox: Outbox,
    count: Arc<AtomicUsize>,
    wake: Receiver<()>,
}

/// Why a thread stops waiting.
#[derive(PartialEq, Eq)]
enum Woken {
    /// The time has passed, or a listener has arrived.
    Go,
    /// The server has ended.
    End,
}

/// What a thread does again and again.
type Step = fn(&Sampler) -> Woken;

/// Starts the threads.
pub(super) fn start(
    coordinator: &Coordinator,
    session: &Arc<AdminSession>,
    outbox: &Outbox,
    serving: &mut Serving,
) -> io::Result<Listeners> {
    let mut listeners = Listeners { count: Arc::default(), wakes: Vec::new() };
    let steps: [(&str, Step); 2] = [
        ("quorate-admin-state", Sampler::send_state),
        ("quorate-admin-watch", Sampler::send_changes),
    ];
    for (name, step) in steps {
        let (sender, wake) = bounded(1);
        listeners.wakes.push(sender);
        let sampler = Sampler {
            coordinator: coordinator.clone(),
            session: Arc::clone(session),
            outbox: outbox.clone(),
            count: Arc::clone(&listeners.count),
            wake,
        };
        serving.spawn(name, move || sampler.run(step))?;
    }
    Ok(listeners)
}

impl Sampler {
    fn is_needed(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Repeats `step` while there are listeners.
    fn run(self, step: Step) {
        while self.wake.recv().is_ok() {
            while self.is_needed() {
                if step(&self) == Woken::End {
                    return;
                }
            }
        }
    }

    fn wait(&self, time: Duration) -> Woken {
        match self.wake.recv_timeout(time) {
            Err(RecvTimeoutError::Disconnected) => Woken::End,
            _ => Woken::Go,
        }
    }

    fn send(&self, name: &str, value: &Value) {
        // JSON in one line has no line breaks.
        let text = format!("event: {name}\ndata: {value}\n\n");
        self.outbox.send(ServerMessage::Event(text.into_bytes().into()));
    }

    /// Sends the state every second, and as soon as a listener arrives.
    fn send_state(&self) -> Woken {
        self.send("state", &self.state());
        self.wait(PERIOD)
    }

    fn state(&self) -> Value {
        let reports = self.coordinator.reports().wait();
        let error = reports.as_ref().err().map(ToString::to_string);
        json!({
            "time": self.coordinator.shared().clock.wall_ms(),
            "status": routes::status(&self.coordinator),
            "reports": reports.ok().map(|reports| routes::members(&reports)),
            "error": error,
            "metrics": self.coordinator.metrics().wait().ok().map(json),
            "sync_us": self.sync_us(),
        })
    }

    /// The duration of a `sync` in microseconds: a message to the leader, its round trip to a majority, and
    /// the reply. `None` if there is no reply in time.
    fn sync_us(&self) -> Option<u64> {
        let session = self.session.get().ok()?;
        let clock = &self.coordinator.shared().clock;
        let asked = clock.now();
        session.sync().timeout(SYNC_WITHIN).wait().ok()?;
        u64::try_from(clock.now().saturating_sub(asked).as_micros()).ok()
    }

    /// Sends changes as they happen.
    fn send_changes(&self) -> Woken {
        self.follow().unwrap_or_else(|error| {
            // There is no quorum, or the session is over: tried again.
            tracing::debug!(%error, "the admin endpoint cannot watch");
            self.wait(PERIOD)
        })
    }

    /// Watches the whole tree while there are listeners.
    fn follow(&self) -> Result<Woken> {
        let session = self.session.get()?;
        let watch =
            session.watch("/", WatchMode::PersistentRecursive).timeout(ANSWER_WITHIN).wait()?;
        self.send("watching", &json!({ "zxid": self.coordinator.status().zxid }));
        let mut changes = Vec::new();
        let mut full = never();
        while self.is_needed() {
            let closed = never();
            let events = if changes.len() < CHANGES_MAX { watch.events() } else { &closed };
            select! {
                recv(events) -> event => match event {
                    Ok(event) => {
                        if changes.is_empty() {
                            full = after(GATHERED_FOR);
                        }
                        changes.push(event);
                    }
                    // The session is over, and a new one is needed. Changes until then are missed.
                    Err(_) => {
                        self.send("changes", &json(&changes));
                        self.send("missed", &json!({}));
                        return Ok(Woken::Go);
                    }
                },
                recv(full) -> _ => {
                    self.send("changes", &json(&changes));
                    changes.clear();
                    full = never();
                },
                recv(self.wake) -> woken => if woken.is_err() {
                    return Ok(Woken::End);
                },
                default(PERIOD) => {}
            }
        }
        Ok(Woken::Go)
    }
}
