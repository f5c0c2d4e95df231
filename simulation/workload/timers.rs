//! Timers whose fires are handed over in their write, and timers whose fires run under a token.

use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use crate::recipes::{Missed, Schedule, Timer};
use crate::simulation::checks::require;
use crate::simulation::checks::timers::{FIRED, HANDED, INTERVALS, RUN};
use crate::simulation::client::{Client, Handle};
use crate::simulation::clock::{Nanos, SECOND};
use crate::simulation::executor::first;
use crate::simulation::kernel::Phase;
use crate::types::error::{Error, Result};
use crate::types::znode::CreateMode;

/// How soon a run whose runner was lost is taken by one who waits while nothing is wrong, in addition to the time that
/// messages and disks take.
const PROMPT: Nanos = SECOND / 2;
/// How often one who waits checks for that.
const CHECK_INTERVAL: Nanos = SECOND / 2;

pub(crate) async fn run(client: Client) {
    let kernel = &client.kernel;
    client
        .in_sessions(async |handle| {
            let done = match client.random.below(10) {
                0..5 => fire(&client, handle).await,
                5..8 => take(&client, handle).await,
                _ => change(&client, handle).await,
            };
            let expected = done.as_ref().err().is_none_or(|error| {
                error.is_session_lost()
                    || error.is_outcome_unknown()
                    || matches!(error, Error::Busy { .. } | Error::DiskLow { .. })
            });
            kernel.check(require(expected, "recipes fail as writes do", || {
                format!("a schedule came to {done:?}")
            }));
        })
        .await;
}

fn missed(name: &str) -> Missed {
    match name {
        _ if planted!(MissedForgotten) => Missed::All,
        _ if planted!(FireLost) => Missed::Skip,
        "skip" => Missed::Skip,
        "once" => Missed::Once,
        _ => Missed::All,
    }
}

/// Every instance sets its timers when it begins.
async fn schedule(client: &Client, handle: &Handle, path: &str) -> Result<Schedule> {
    let schedule = Schedule::new(handle.session(), path)?;
    let (name, seconds) = client.random.pick(&INTERVALS);
    let timer = Timer::every(Duration::from_secs(*seconds))?.missed(missed(name));
    schedule.set(name, &timer).await?;
    Ok(schedule)
}

fn patience(client: &Client) -> Nanos {
    client.random.around(client.kernel.plan.think * 10).min(client.kernel.plan.think * 20)
}

async fn fire(client: &Client, handle: &Handle) -> Result<()> {
    let kernel = &client.kernel;
    let schedule = schedule(client, handle, FIRED).await?;
    let waits = kernel.wait("timer", client.place);
    let firing = schedule.fire(|fire, multi| {
        if planted!(WorkForgotten) {
            return multi;
        }
        let path = format!("{HANDED}{}", fire.timer());
        multi.create_or_set(&path, fire.number().to_string(), CreateMode::Persistent)
    });
    let fired = first(firing, kernel.sleep(patience(client))).await;
    drop(waits);
    if let Ok(fired) = fired {
        let fire = fired?;
        kernel.count(if fire.since() < fire.due() { "fired for several" } else { "fired" });
    }
    Ok(())
}

async fn take(client: &Client, handle: &Handle) -> Result<()> {
    let kernel = &client.kernel;
    let schedule = schedule(client, handle, RUN).await?;
    let began = kernel.now();
    let is_well = || kernel.phase.get() == Phase::Calm && handle.session().is_alive();
    let (mut calm, patience) = (is_well(), patience(client));
    let prompt = PROMPT + 100 * (kernel.plan.latency + kernel.plan.sync + kernel.plan.step_delay);
    let waits = kernel.wait("run", client.place);
    let mut taking = pin!(async {
        if planted!(RunForgotten) && kernel.checks.borrow().timers.has_orphan() {
            pending::<()>().await;
        }
        schedule.take().await
    });
    let run = loop {
        match first(taking.as_mut(), kernel.sleep(CHECK_INTERVAL.min(patience))).await {
            Ok(run) => break Rc::new(run?),
            Err(()) if kernel.now() >= began + patience => return Ok(()),
            Err(()) => {
                calm &= is_well();
                let since = kernel.now().saturating_sub(prompt);
                if calm && began < since {
                    kernel.check(kernel.checks.borrow().timers.waited_too_long(since));
                }
            }
        }
    };
    drop(waits);
    kernel.count("run");
    let session = handle.session().id();
    kernel.trace.log(format_args!(
        "node {}: session {session} runs {} of {}, token {}",
        client.place,
        run.fire().number(),
        run.fire().timer(),
        run.fencing_token()
    ));
    let times = if planted!(RunShared) { 2 } else { 1 };
    for _ in 0..times {
        let checked = kernel.checks.borrow_mut().runs(&run, session);
        kernel.check(checked);
    }
    client.think().await;
    if client.random.percent(30) {
        // It runs again.
        return Ok(());
    }
    // Nobody else holds a reference.
    let Some(run) = Rc::into_inner(run) else { return Ok(()) };
    run.done().await
}

/// A single time is set, or a fire is asked for.
async fn change(client: &Client, handle: &Handle) -> Result<()> {
    let path = *client.random.pick(&[FIRED, RUN]);
    let schedule = schedule(client, handle, path).await?;
    if client.random.percent(30) {
        let (name, _) = *client.random.pick(&INTERVALS);
        return match schedule.fire_now(name).await {
            Err(Error::NoNode { .. }) => Ok(()),
            asked => asked,
        };
    }
    let name = format!("at{}", client.random.below(3));
    let now = client.kernel.checks.borrow().oracle.log_time();
    let time = UNIX_EPOCH + Duration::from_millis(now + client.random.below(20_000));
    schedule.set(&name, &Timer::at(time)?).await.map(drop)
}
