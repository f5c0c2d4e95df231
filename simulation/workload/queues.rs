//! Queues with producers and consumers, and barriers.

use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use crate::recipes::{Barrier, DoubleBarrier, NewItem, Queue};
use crate::simulation::checks::queues::{
    BARRIER, DOUBLE, LEASED, MAX, PARTICIPANTS, POPPED, Queues,
};
use crate::simulation::checks::{Violation, require};
use crate::simulation::client::{Client, Handle};
use crate::simulation::clock::{Nanos, SECOND};
use crate::simulation::executor::first;
use crate::simulation::kernel::Phase;
use crate::types::error::{Error, Result};

/// How long an item may stay in the queue while a consumer waits and nothing is wrong, in addition
/// to the time that messages and disks take.
const PROMPT: Nanos = SECOND / 2;
/// How often a waiting consumer checks for that.
const CHECK_INTERVAL: Nanos = SECOND / 4;

pub(crate) async fn run(client: Client) {
    let kernel = &client.kernel;
    client
        .in_sessions(async |handle| {
            let done = match client.random.below(10) {
                0..3 => put(&client, handle).await,
                3..6 => take(&client, handle).await,
                6 => pop(&client, handle).await,
                7..9 => use_double_barrier(&client, handle).await,
                _ => use_barrier(&client, handle).await,
            };
            let done = match strikes!(OvertakenShown, 50) {
                true => Err(Error::NoNode { path: LEASED.to_owned() }),
                false => done,
            };
            kernel.check(is_expected(&done));
        })
        .await;
}

/// Fails on any error that a write cannot always get.
fn is_expected(done: &Result<()>) -> Result<(), Violation> {
    let expected = match done {
        Ok(()) => true,
        Err(error) => {
            error.is_session_lost()
                || error.is_outcome_unknown()
                || matches!(
                    error,
                    Error::Busy { .. } | Error::DiskLow { .. } | Error::QuotaExceeded { .. }
                )
        }
    };
    require(expected, "recipes fail as writes do", || format!("one came to {done:?}"))
}

/// How long a client waits. It gives up in the end, because nobody else may ever come, and before
/// the drain phase runs out of time.
fn patience(client: &Client) -> Nanos {
    let think = client.kernel.plan.think;
    client.random.around(think * 10).min(think * 20)
}

async fn put(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let path = *client.random.pick(&[LEASED, LEASED, POPPED]);
    let queue = Queue::new(handle.session(), path)?.max(MAX);
    let new = || {
        let delay = match client.random.below(4) {
            0 if path == LEASED => Duration::from_millis(client.random.below(20_000)),
            _ => Duration::ZERO,
        };
        let data = format!("{:016x}", client.random.next());
        NewItem::new(data).priority(client.random.below(5) as i32 - 2).delay(delay)
    };
    let items: Vec<NewItem> = (0..client.random.within(1..3)).map(|_| new()).collect();
    let waits = client.kernel.wait("put", client.place);
    let put = first(queue.put_all(items), client.kernel.sleep(patience(client))).await;
    drop(waits);
    client.kernel.count("put");
    put.unwrap_or(Ok(()))
}

async fn take(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let kernel = &client.kernel;
    let queue = Queue::new(handle.session(), LEASED)?;
    let began = kernel.now();
    // A session that is still being opened, as on a node that has just started, waits for that
    // first.
    let is_well = || kernel.phase.get() == Phase::Calm && handle.session().is_alive();
    let mut calm = is_well();
    let patience = patience(client);
    let prompt = PROMPT + 100 * (kernel.plan.latency + kernel.plan.sync + kernel.plan.step_delay);
    let waits = kernel.wait("take", client.place);
    let mut taking = pin!(async {
        if planted!(QueueDueUnnoticed) {
            pending::<()>().await;
        }
        queue.take().await
    });
    let item = loop {
        match first(taking.as_mut(), kernel.sleep(CHECK_INTERVAL.min(patience))).await {
            Ok(item) => break Rc::new(item?),
            Err(()) if kernel.now() >= began + patience => return Ok(()),
            Err(()) => {
                calm &= is_well();
                let since = kernel.now().saturating_sub(prompt);
                if calm && began < since {
                    kernel.count_event("long waits for an item");
                    let checked = kernel.checks.borrow().queues.waited_too_long(since);
                    kernel.check(checked);
                }
            }
        }
    };
    drop(waits);
    kernel.count("take");
    let session = handle.session().id();
    kernel.trace.log(format_args!(
        "node {}: session {session} has {}, token {}",
        client.place,
        item.path(),
        item.fencing_token()
    ));
    kernel.check(kernel.checks.borrow_mut().taken(&item, session));
    let draw = client.random.below(100);
    if draw < 10 {
        // Somebody deletes it. Its consumer works on, with a claim of nothing.
        kernel.checks.borrow_mut().queues.finishing(&item);
        handle.session().delete(item.path()).await?;
        kernel.count_event("items deleted in work");
    }
    client.think().await;
    if draw < 35 {
        // The item goes back to the queue, unless it was deleted.
        return Ok(());
    }
    kernel.checks.borrow_mut().queues.finishing(&item);
    let data = item.data().to_vec();
    // Nobody else holds a reference.
    let Some(item) = Rc::into_inner(item) else { return Ok(()) };
    item.done().await?;
    kernel.count("item done");
    let checked = kernel.checks.borrow_mut().queues.finished(&data);
    kernel.check(checked);
    Ok(())
}

async fn pop(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let kernel = &client.kernel;
    let queue = Queue::new(handle.session(), POPPED)?;
    let waits = kernel.wait("pop", client.place);
    let popped = first(queue.pop(), kernel.sleep(patience(client))).await;
    drop(waits);
    kernel.count("pop");
    if let Ok(popped) = popped {
        let checked = kernel.checks.borrow_mut().queues.finished(&popped?);
        kernel.check(checked);
    }
    Ok(())
}

/// Enters a double barrier and leaves it.
async fn use_double_barrier(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let kernel = &client.kernel;
    let few = usize::from(planted!(DoubleBarrierOpensEarly));
    let barrier = DoubleBarrier::new(handle.session(), DOUBLE, PARTICIPANTS - few)?;
    let waits = kernel.wait("enter", client.place);
    let entered = first(barrier.enter(), kernel.sleep(patience(client))).await;
    drop(waits);
    kernel.count("enter");
    let Ok(inside) = entered else { return Ok(()) };
    let inside = inside?;
    let round = inside.round().to_vec();
    kernel.check(require(!round.is_empty(), "a double barrier opens for enough", || {
        format!("{} is inside, and it is closed", inside.path())
    }));
    client.think().await;
    let waits = kernel.wait("leave", client.place);
    let left = match planted!(DoubleBarrierLeavesEarly) {
        true => Ok(Ok(())),
        false => first(inside.leave(), kernel.sleep(patience(client))).await,
    };
    drop(waits);
    kernel.count("leave");
    if let Ok(left) = left {
        left?;
        let checked = Queues::left(&kernel.checks.borrow().oracle, &round);
        kernel.check(checked);
    }
    Ok(())
}

/// Sets a barrier, removes it, or waits for it.
async fn use_barrier(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let kernel = &client.kernel;
    let barrier = Barrier::new(handle.session(), BARRIER)?;
    match client.random.below(6) {
        0..2 => barrier.set().await,
        2 => barrier.remove().await,
        3 => match handle.session().set(BARRIER, b"").await {
            Ok(_) | Err(Error::NoNode { .. }) => Ok(()),
            Err(error) => Err(error),
        },
        _ => {
            let from = kernel.checks.borrow().order.floor().zxid;
            let waits = kernel.wait("barrier", client.place);
            let waited = first(barrier.wait_removed(), kernel.sleep(patience(client))).await;
            drop(waits);
            kernel.count("barrier");
            match waited {
                Ok(passed) => passed?,
                Err(()) if planted!(BarrierOpensEarly) => {}
                Err(()) => return Ok(()),
            }
            let to = handle.shown();
            kernel.check(Queues::passed(&kernel.checks.borrow().oracle, (from, to)));
            Ok(())
        }
    }
}
