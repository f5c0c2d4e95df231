//! A consumer of watch events that stores its position and resumes from it after each session loss
//! and each crash of its process.
//!
//! Now and then it is slow, so that its channel fills up. Now and then it reads at the very moment
//! at which it is woken.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use crossbeam_channel::Receiver;

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::simulation::checks::Violation;
use crate::simulation::checks::consumers::Observation;
use crate::simulation::client::Client;
use crate::types::error::{Error, Result};
use crate::types::watch::{EventKind, WatchEvent, WatchMode};

const MODE: WatchMode = WatchMode::PersistentRecursive;

/// Reads as soon as it is woken: on the node's own thread, in the middle of a step.
struct WakeReader {
    session: Session,
    events: Receiver<WatchEvent>,
    observations: Mutex<Vec<Observation>>,
}

impl WakeReader {
    fn observations(&self) -> std::sync::MutexGuard<'_, Vec<Observation>> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakeReader {
    fn wake(self: Arc<Self>) {
        // An error means that the session is over.
        if let Ok(observation) = observe(&self.session, &self.events) {
            self.observations().push(observation);
        }
    }
}

/// Reads the zxid first and the channel second, in the order that `docs/watches.md` requires.
fn observe(session: &Session, events: &Receiver<WatchEvent>) -> Result<Observation> {
    let upto = session.snapshot().wait()?.zxid();
    let events: Vec<WatchEvent> = events.try_iter().collect();
    let has_gap = events.iter().any(|event| event.kind == EventKind::Gap);
    // The tree can be read even if the session ends meanwhile.
    let read = has_gap.then(|| session.shared().tree().zxid());
    Ok(Observation { upto, events, read })
}

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, opened)) = client.open(None) else { return };
        if opened.await.is_err() {
            continue;
        }
        // Any other error means that the session is lost or that the request must be retried.
        if let Err(Error::FutureZxid { zxid, last, .. }) = follow(&client, handle.session()).await {
            let what = format!("zxid {zxid} was stored, and the last is {last}");
            client.kernel.fail(Violation::new("W6 what was shown is not future", what));
        }
    }
}

async fn follow(client: &Client, session: &Session) -> Result<()> {
    let (kernel, place) = (&client.kernel, client.place);
    let installs = || kernel.installs.borrow()[place];
    // This watch is set first, so its task is woken first.
    let bell = session.watch("/", MODE).await?;
    let mut installed = installs();
    let from = kernel.checks.borrow_mut().consumers.resume(place);
    let watch = resume(client, session, from).await?;
    let wake_reader = Arc::new(WakeReader {
        session: session.clone(),
        events: watch.events().clone(),
        observations: Mutex::default(),
    });
    while !kernel.is_stopping() && !session.state().is_final() {
        // The waker fires for as long as this future lives.
        let listening = client.random.percent(50).then(|| listen(&bell, &wake_reader));
        let thoughts = *client.random.pick(&[1, 1, 2, 5, 20]);
        for _ in 0..thoughts {
            client.think().await;
        }
        drop(listening);
        let mut observations = std::mem::take(&mut *wake_reader.observations());
        observations.push(observe(session, watch.events())?);
        let jumped = std::mem::replace(&mut installed, installs()) != installs();
        for observation in observations {
            let mut checks = kernel.checks.borrow_mut();
            let checks = &mut *checks;
            if observation.read.is_some() {
                kernel.count_event("consumers' gaps");
            }
            let checked = checks.consumers.observed(&checks.oracle, (place, jumped), observation);
            kernel.check(checked);
        }
    }
    Ok(())
}

/// Resumes the watch after `from`. Starts a new one if nothing was read yet, or if the history no
/// longer reaches that far back.
async fn resume(client: &Client, session: &Session, from: Option<u64>) -> Result<Watch> {
    if let Some(from) = from {
        match session.watch_from("/", MODE, from).await {
            Err(Error::TooOld { .. }) => client.kernel.count_event("consumers that read again"),
            watch => {
                client.kernel.count_event("consumers that resume");
                return watch;
            }
        }
    }
    let watch = session.watch("/", MODE).await?;
    let upto = session.snapshot().wait()?.zxid();
    client.kernel.checks.borrow_mut().consumers.read(client.place, upto);
    Ok(watch)
}

/// Arranges that the bell's next event wakes `wake_reader`, until the returned future is dropped.
fn listen<'a>(bell: &'a Watch, wake_reader: &Arc<WakeReader>) -> impl Future + use<'a> {
    bell.events().try_iter().for_each(drop);
    let waker = Waker::from(Arc::clone(wake_reader));
    let mut next = Box::pin(bell.recv());
    // The event itself does not matter, only that it wakes.
    let _ = next.as_mut().poll(&mut Context::from_waker(&waker));
    next
}
