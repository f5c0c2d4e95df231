//! The workload of a world under load. Clients fill the tree and then write without a pause, each
//! with many outstanding requests. Others only have a session, or watches.

use std::rc::Rc;

use crate::simulation::client::{Client, Handle};
use crate::simulation::clock::{MILLI, Nanos, SECOND};
use crate::simulation::kernel::Phase;
use crate::simulation::load::Load;
use crate::types::error::Error;
use crate::types::watch::WatchMode;
use crate::types::znode::CreateMode;

/// Znodes of one directory. They are created together.
const DIRECTORY: usize = 50;

/// Starts the clients of a member.
pub(crate) fn start(client: &Client, load: &Load) {
    let kernel = &client.kernel;
    let (each, filled) = (client.clone(), load.clone());
    kernel.executor.spawn(client.place, async move {
        fill(&each, &filled).await;
        for _ in 0..filled.writers {
            each.kernel.executor.spawn(each.place, write(each.clone(), filled.clone()));
        }
        for _ in 0..filled.idle_sessions {
            each.kernel.executor.spawn(each.place, idle(each.clone()));
        }
        if filled.watches > 0 {
            each.kernel.executor.spawn(each.place, watch(each.clone(), filled));
        }
    });
}

fn directory(place: usize, number: usize) -> String {
    format!("/load-{place}-{}", number / DIRECTORY)
}

fn path(client: &Client, load: &Load) -> String {
    let (place, number) =
        (client.random.index(client.kernel.plan.nodes), client.random.index(load.znodes));
    format!("{}/{number}", directory(place, number))
}

/// Creates the initial znodes, unless an earlier start of this member has.
async fn fill(client: &Client, load: &Load) {
    let kernel = &client.kernel;
    let Ok((handle, opened)) = client.open(None) else { return };
    drop(opened.await);
    let data = vec![7; load.znode_bytes];
    let mut number = 0;
    while number < load.znodes && kernel.phase.get() == Phase::Chaos && !handle.is_over() {
        let directory = directory(client.place, number);
        let numbers = number..(number + DIRECTORY).min(load.znodes);
        // A multi would make the model copy its state.
        let mut creates = vec![handle.create(&directory, b"", CreateMode::Persistent)];
        creates.extend(numbers.clone().map(|number| {
            handle.create(&format!("{directory}/{number}"), &data, CreateMode::Persistent)
        }));
        let mut are_there = true;
        for created in creates {
            are_there &= matches!(created.await, Ok(_) | Err(Error::NodeExists { .. }));
        }
        if are_there {
            number = numbers.end;
        } else {
            kernel.sleep(100 * MILLI).await;
        }
    }
    if number >= load.znodes {
        kernel.checks.borrow_mut().load.filled(client.place);
    }
    handle.close().await;
}

/// A writer. It opens a new session whenever the last one is over.
async fn write(client: Client, load: Load) {
    let kernel = &client.kernel;
    while kernel.phase.get() == Phase::Chaos {
        let Ok((handle, opened)) = client.open(None) else { return };
        if opened.await.is_err() {
            kernel.sleep(100 * MILLI).await;
            continue;
        }
        for _ in 0..load.window {
            let request = requests(client.clone(), Rc::clone(&handle), load.clone());
            kernel.executor.spawn(client.place, request);
        }
        while kernel.phase.get() == Phase::Chaos && !handle.is_over() {
            kernel.sleep(SECOND).await;
        }
    }
}

/// Sends one request of a session after another.
async fn requests(client: Client, handle: Rc<Handle>, load: Load) {
    let kernel = &client.kernel;
    // Spreads the starts over time.
    kernel.sleep(client.random.below(load.pause.max(1))).await;
    while kernel.phase.get() == Phase::Chaos && !handle.is_over() {
        let path = path(&client, &load);
        let asked = kernel.now();
        let failed = if client.random.percent(5) {
            handle.sync().await.is_err()
        } else {
            let data = vec![7; client.random.index(load.value_bytes + 1)];
            let written = handle.set(&path, &data, None).await;
            if written.is_ok() {
                kernel.checks.borrow_mut().load.wrote();
            }
            written.is_err()
        };
        let now = kernel.now();
        if !failed {
            let checked = kernel.checks.borrow().load.answered(&load, client.place, asked, now);
            kernel.check(checked);
        }
        let pause: Nanos = client.random.around(load.pause);
        kernel.sleep(if failed { pause.max(10 * MILLI) } else { pause }).await;
    }
}

/// A client that only has a session.
async fn idle(client: Client) {
    let kernel = &client.kernel;
    while kernel.phase.get() == Phase::Chaos {
        let Ok((handle, opened)) = client.open(None) else { return };
        if opened.await.is_err() {
            kernel.sleep(SECOND).await;
        }
        while kernel.phase.get() == Phase::Chaos && !handle.is_over() {
            kernel.sleep(SECOND).await;
        }
    }
}

/// A client with watches, which drains their channels from time to time.
async fn watch(client: Client, load: Load) {
    let kernel = &client.kernel;
    let Ok((handle, opened)) = client.open(None) else { return };
    drop(opened.await);
    let mut watches = Vec::new();
    for _ in 0..load.watches {
        let path = path(&client, &load);
        let watch = handle.session().watch(&path, WatchMode::Persistent).await;
        watches.extend(watch);
    }
    while kernel.phase.get() == Phase::Chaos && !handle.is_over() {
        kernel.sleep(SECOND).await;
        for watch in &watches {
            while watch.events().try_recv().is_ok() {
                kernel.count("watch events under load");
            }
        }
    }
}
