//! The workload of a fleet. Each instance has a session, registers itself with a service and
//! watches who leads. Some contend for the leadership or for locks, and some read and write shared
//! znodes.

use std::rc::Rc;

use crate::simulation::checks::require;
use crate::simulation::client::{CheckedWatch, Client, Handle};
use crate::simulation::clock::Nanos;
use crate::simulation::executor::first;
use crate::simulation::kernel::Phase;
use crate::types::error::{Error, Result};
use crate::types::watch::WatchMode;
use crate::types::znode::CreateMode;

/// The znode that names the leader. Every instance watches it.
const LEADER: &str = "/fleet/leader";
/// The number of services. All have the same number of instances.
const SERVICES: usize = 25;
/// The number of locks, each contended for by a few instances.
const LOCKS: u64 = 20;

pub(crate) async fn run(client: Client) {
    let kernel = &client.kernel;
    while !kernel.is_stopping() {
        // Spreads the starts over time.
        kernel.sleep(client.random.below(kernel.plan.think)).await;
        let Ok((handle, opened)) = client.open(None) else { return };
        if opened.await.is_err() {
            continue;
        }
        let _ = live(&client, &handle).await;
    }
}

async fn live(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let kernel = &client.kernel;
    let service = format!("/fleet/services/{}", client.place % SERVICES);
    for path in ["/fleet", "/fleet/services", &service, LEADER] {
        allow_existing(handle.create(path, b"", CreateMode::Persistent).await)?;
    }
    let mut watches: Vec<CheckedWatch> = vec![handle.watch(LEADER, WatchMode::Persistent).await?];
    if client.random.percent(30) {
        // Instances that join and leave its service.
        watches.push(handle.watch(&service, WatchMode::PersistentRecursive).await?);
    }
    // A handle numbers the writes of its session to check their replies, and recipes write without
    // a handle. So they get a session of their own.
    let contender = match client.random.percent(40) {
        true => Some(client.open(None)?.0),
        false => None,
    };
    let own = format!("{service}/{:016x}", handle.session().id().number());
    handle.create(&own, b"up", CreateMode::Ephemeral).await?;
    while !kernel.is_stopping() && !handle.is_over() {
        client.think().await;
        if contender.as_ref().is_some_and(|contender| contender.is_over()) {
            return Ok(());
        }
        match (client.random.below(20), &contender) {
            (0..6, Some(contender)) => {
                let path = format!("/fleet/locks/{}", client.random.below(LOCKS));
                hold(client, contender, &path, kernel.plan.think, None).await;
            }
            (6, Some(contender)) => {
                let patience = kernel.plan.think * 4;
                hold(client, contender, "/fleet/election", patience, Some(handle)).await;
            }
            (0..6, None) => drop(handle.set(&own, b"still up", None).await?),
            (6..8, _) => {
                // A one-shot watch as well.
                watches.truncate(2);
                watches.push(handle.get_and_watch(LEADER).await?);
            }
            (8..10, _) => {
                let (sync, get) = (handle.sync(), handle.get(LEADER));
                sync.await?;
                get.await?;
            }
            (10..13, _) => drop(handle.children(&service).await?),
            _ => drop(handle.get(LEADER).await?),
        }
    }
    // The events of these writes come before the reads that show them. The checks compare both.
    let (sync, get) = (handle.sync(), handle.get(LEADER));
    sync.await?;
    get.await?;
    kernel.count("notified in the end");
    drop(watches);
    Ok(())
}

/// Treats an existing znode as success.
fn allow_existing<T>(created: Result<T>) -> Result<()> {
    match created {
        Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits for a lock for at most `patience` and holds it for a while. A new leader writes its name
/// with the session `reader`.
async fn hold(
    client: &Client,
    handle: &Rc<Handle>,
    path: &str,
    patience: Nanos,
    reader: Option<&Rc<Handle>>,
) {
    let kernel = &client.kernel;
    let Ok(lock) = handle.session().lock(path) else { return };
    let waits = kernel.wait("lock", client.place);
    let acquired = first(lock.acquire(), kernel.sleep(patience)).await;
    drop(waits);
    kernel.count("lock");
    let Ok(Ok(guard)) = acquired else { return };
    let (guard, session) = (Rc::new(guard), handle.session().id());
    let held = guard.is_held();
    kernel.trace.note([10, session.number(), guard.fencing_token()]);
    kernel.trace.log(format_args!("instance {}: session {session} has {path}", client.place));
    kernel.check(kernel.checks.borrow_mut().acquired(path, &guard, session, client.place));
    kernel.check(require(held || kernel.phase.get() != Phase::Calm, "I22 held", || {
        format!("nothing is wrong, and a guard of {path} is not held from the start")
    }));
    kernel.count("lock held");
    if let Some(handle) = reader {
        let data = client.place.to_string();
        let _ = handle.set(LEADER, data.as_bytes(), None).await;
        kernel.count("lead");
    }
    kernel.sleep(client.random.below(kernel.plan.think / 4)).await;
    kernel.check(require(!guard.is_held() || held, "I22 lost stays lost", || {
        format!("a guard of {path} is held again")
    }));
}
