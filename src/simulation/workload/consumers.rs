//! A consumer of a part of the tree that stores how far it has come and resumes from there: after each
//! loss of its session and each crash of its process. Now and then it is slow, so that its channel is
//! full, and now and then it looks in the very moment in which it is woken.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use crossbeam_channel::Receiver;

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::simulation::checks::Violation;
use crate::simulation::checks::consumers::Look;
use crate::simulation::client::Client;
use crate::types::error::{Error, Result};
use crate::types::watch::{EventKind, WatchEvent, WatchMode};

const MODE: WatchMode = WatchMode::PersistentRecursive;

/// Looks as soon as it is woken: on the node's own thread, in the middle of its step.
struct Looking {
    session: Session,
    events: Receiver<WatchEvent>,
    looks: Mutex<Vec<Look>>,
}

impl Looking {
    fn looks(&self) -> std::sync::MutexGuard<'_, Vec<Look>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Looking {
    fn wake(self: Arc<Self>) {
        // An error means that the session is over.
        if let Ok(look) = look(&self.session, &self.events) {
            self.looks().push(look);
        }
    }
}

/// As `docs/watches.md` has it: the zxid first, and then what is in the channel.
fn look(session: &Session, events: &Receiver<WatchEvent>) -> Result<Look> {
    let upto = session.snapshot()?.zxid();
    let events: Vec<WatchEvent> = events.try_iter().collect();
    let has_gap = events.iter().any(|event| event.kind == EventKind::Gap);
    // Whatever ends the session meanwhile, a snapshot is at hand.
    let read = has_gap.then(|| session.shared().tree().zxid());
    Ok(Look { upto, events, read })
}

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, opened)) = client.open(None) else { return };
        if opened.await.is_err() {
            continue;
        }
        // Any other error means that its session is lost, or that it has to wait.
        if let Err(Error::FutureZxid { zxid, last, .. }) = follow(&client, handle.session()).await {
            let what = format!("zxid {zxid} was stored, and the last is {last}");
            client.kernel.fail(Violation::new("W6 what was shown is not future", what));
        }
    }
}

async fn follow(client: &Client, session: &Session) -> Result<()> {
    let (kernel, place) = (&client.kernel, client.place);
    let installs = || kernel.installs.borrow()[place];
    // Set first, and so woken first.
    let bell = session.nonblocking().watch("/", MODE).await?;
    let mut installed = installs();
    let from = kernel.checks.borrow_mut().consumers.resume(place);
    let watch = resume(client, session, from).await?;
    let looking = Arc::new(Looking {
        session: session.clone(),
        events: watch.events().clone(),
        looks: Mutex::default(),
    });
    while !kernel.is_stopping() && !session.state().is_final() {
        // It wakes for as long as it is kept.
        let listening = client.random.percent(50).then(|| listen(&bell, &looking));
        let thoughts = *client.random.pick(&[1, 1, 2, 5, 20]);
        for _ in 0..thoughts {
            client.think().await;
        }
        drop(listening);
        let mut looks = std::mem::take(&mut *looking.looks());
        looks.push(look(session, watch.events())?);
        let jumped = std::mem::replace(&mut installed, installs()) != installs();
        for look in looks {
            let mut checks = kernel.checks.borrow_mut();
            let checks = &mut *checks;
            if look.read.is_some() {
                kernel.count_event("consumers' gaps");
            }
            let checked = checks.consumers.looked(&checks.oracle, (place, jumped), look);
            kernel.check(checked);
        }
    }
    Ok(())
}

/// The watch from there on; from now on if that is too long ago, or nothing was read yet.
async fn resume(client: &Client, session: &Session, from: Option<u64>) -> Result<Watch> {
    if let Some(from) = from {
        match session.nonblocking().watch_from("/", MODE, from).await {
            Err(Error::TooOld { .. }) => client.kernel.count_event("consumers that read again"),
            watch => {
                client.kernel.count_event("consumers that resume");
                return watch;
            }
        }
    }
    let watch = session.nonblocking().watch("/", MODE).await?;
    let upto = session.snapshot()?.zxid();
    client.kernel.checks.borrow_mut().consumers.read(client.place, upto);
    Ok(watch)
}

/// Has the bell's next event wake it, until what this gives is dropped.
fn listen<'a>(bell: &'a Watch, looking: &Arc<Looking>) -> impl Future + use<'a> {
    bell.events().try_iter().for_each(drop);
    let waker = Waker::from(Arc::clone(looking));
    let mut next = Box::pin(bell.next());
    // Its messages do not matter, only that it wakes.
    let _ = next.as_mut().poll(&mut Context::from_waker(&waker));
    next
}
