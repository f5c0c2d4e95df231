//! Partitions that all instances share, with positions that count up.

use std::rc::Rc;
use std::time::Duration;

use crate::recipes::{Partition, PartitionMember, Partitions, Share};
use crate::simulation::checks::partitions::{COUNT, MOVES, PATH, parse_position};
use crate::simulation::checks::require;
use crate::simulation::client::{Client, Handle};
use crate::simulation::clock::{MILLI, Nanos, SECOND};
use crate::simulation::executor::first;
use crate::simulation::kernel::{Kernel, Phase};
use crate::types::error::{Error, Result};

/// How long a partition may be without an owner while a member waits and nothing is wrong, in addition to the time that
/// messages and disks take.
const PROMPT: Nanos = 5 * SECOND;

/// What messages and disks take, roughly.
fn costs(kernel: &Kernel) -> Nanos {
    kernel.plan.latency + kernel.plan.sync + kernel.plan.step_delay
}

/// The limits of members: of their silence, and of a turn.
fn limits(kernel: &Kernel) -> (Option<Nanos>, Nanos) {
    let turn = SECOND / 2 + 10 * costs(kernel);
    (kernel.plan.bounded_silence.then_some(8 * turn), turn)
}

pub(crate) async fn run(client: Client) {
    let kernel = &client.kernel;
    client
        .in_sessions(async |handle| {
            let done = take_part(&client, handle).await;
            let expected = match &done {
                Ok(()) => true,
                Err(error) => {
                    error.is_session_lost()
                        || error.is_outcome_unknown()
                        || matches!(error, Error::Busy { .. } | Error::DiskLow { .. })
                        // Somebody has deleted the owner's znode.
                        || matches!(error, Error::NoNode { .. })
                }
            };
            kernel.check(require(expected, "recipes fail as writes do", || {
                format!("partitions came to {done:?}")
            }));
        })
        .await;
}

/// Joins, works for a while, and leaves.
async fn take_part(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let (kernel, random) = (&client.kernel, &client.random);
    let limit = Duration::from_nanos(random.within(SECOND..10 * SECOND));
    let silence = limits(kernel).0.filter(|_| !planted!(SilentKeeps));
    let partitions = Partitions::new(handle.session(), PATH, COUNT)?
        .with_moves_max(unless!(MovesUnbounded, MOVES, COUNT))?
        .with_drain_limit(limit)
        .with_max_silence(silence.map(Duration::from_nanos))
        .with_turn(Duration::from_nanos(limits(kernel).1));
    let member = PartitionMember::new(format!("{}-{}", client.place, random.below(100_000)))
        .weight(random.within(1..4) as u32)
        .zone(*random.pick(&["a", "b"]));
    let waits = kernel.wait("join", client.place);
    let patience = random.around(kernel.plan.think * 10);
    let joined = first(partitions.join(member), kernel.sleep(patience)).await;
    drop(waits);
    let Ok(share) = joined else { return Ok(()) };
    let (mut share, mut owned) = (share?, Vec::new());
    kernel.count("share");
    let worked = work(client, handle, &mut share, &mut owned).await;
    let leaves = worked.is_ok() && random.percent(50);
    if leaves {
        let waits = kernel.wait("leave share", client.place);
        // What is still owned is given up.
        owned.clear();
        let left = first(share.leave(), kernel.sleep(patience)).await;
        drop(waits);
        kernel.count("leave share");
        return left.unwrap_or(Ok(()));
    }
    drop(share);
    // The guards stay for a while: they are not held any more.
    client.think().await;
    worked
}

async fn work(
    client: &Client,
    handle: &Rc<Handle>,
    share: &mut Share,
    owned: &mut Vec<(Rc<Partition>, u64)>,
) -> Result<()> {
    let (kernel, random) = (&client.kernel, &client.random);
    let session = handle.session();
    let is_well = || kernel.phase.get() == Phase::Calm && session.is_alive();
    let (mut calm, mut began) = (false, 0);
    let prompt = PROMPT + 300 * costs(kernel);
    let pause = (kernel.plan.think / 4).clamp(1, SECOND / 2);
    for _ in 0..random.within(20..400) {
        if kernel.is_stopping() || handle.is_over() {
            return Ok(());
        }
        if let Ok(taken) = first(share.take(), kernel.sleep(random.around(pause))).await {
            let partition = Rc::new(taken?);
            let position = partition.position().filter(|_| !planted!(PositionUnread));
            let count = position.and_then(parse_position).map_or(0, |it| it.1);
            kernel.count("partition taken");
            kernel.trace.note([13, partition.number() as u64, partition.fencing_token()]);
            kernel.trace.log(format_args!(
                "node {}: {} has partition {} by session {}, token {}, at {count}",
                client.place,
                share.member(),
                partition.number(),
                session.id(),
                partition.fencing_token()
            ));
            let checks = &mut *kernel.checks.borrow_mut();
            let forced = |session| checks.sessions.is_forced(session);
            let checked = checks.partitions.taken(&partition, session.id(), forced);
            kernel.check(checked);
            owned.push((partition, count));
        }
        if !(calm && is_well()) {
            (calm, began) = (is_well(), kernel.now());
        }
        if calm {
            let times = (kernel.now(), began);
            let checked =
                kernel.checks.borrow().partitions.all_are_owned(times, prompt, limits(kernel));
            if matches!(checked, Ok(true)) {
                kernel.count_event("long shares");
            }
            kernel.check(checked.map(drop));
        }
        // Seldom in calm times, which are measured from the last one on.
        let seldom = if calm { 1000 } else { 150 };
        if random.below(seldom) == 0 && kernel.checks.borrow().partitions.may_hang() {
            hang(client, owned).await;
            (calm, began) = (false, 0);
        }
        if owned.is_empty() {
            continue;
        }
        let asked = owned.iter().position(|(partition, _)| partition.is_asked());
        let at = asked.filter(|_| random.percent(50)).unwrap_or(random.index(owned.len()));
        let (partition, count) = &mut owned[at];
        *count += 1;
        let position = format!("{} {count}", partition.fencing_token());
        match random.below(100) {
            // Whoever is asked mostly hands over, and sometimes waits for the limit.
            0..40 if asked == Some(at) => {
                let (partition, _) = owned.swap_remove(at);
                let Some(partition) = Rc::into_inner(partition) else { return Ok(()) };
                let handed = partition.hand_over(position).await;
                kernel.count("hand over");
                unless_lost(handed)?;
            }
            40..70 => {
                // Also when it was lost: then nothing is stored.
                let part = partition.commit_part(&position);
                unless_lost(match random.percent(50) {
                    true => partition.commit(position).await,
                    false => match session.multi().with(&part).commit().await {
                        Err(Error::Multi { .. }) => Ok(()),
                        done => done.map(drop),
                    },
                })?;
                kernel.count("position stored");
            }
            70..73 => drop(owned.swap_remove(at)),
            73..75 => {
                let checked = &mut kernel.checks.borrow_mut().partitions;
                checked.robs(partition);
                drop(session.delete(partition.path()));
            }
            _ => {}
        }
        owned.retain(|(partition, _)| partition.is_held() || random.percent(50));
    }
    Ok(())
}

/// Is in no call of the share for a while.
async fn hang(client: &Client, owned: &[(Rc<Partition>, u64)]) {
    let (kernel, random) = (&client.kernel, &client.random);
    let (silence, turn) = limits(kernel);
    let began = kernel.now();
    let until = began + turn * random.within(1..100);
    let is_calm = kernel.phase.get() == Phase::Calm;
    let hung = kernel.checks.borrow_mut().partitions.hangs(began);
    while kernel.now() < until && !kernel.is_stopping() {
        kernel.sleep(turn).await;
    }
    drop(hung);
    kernel.count("hung share");
    // Clocks are off by a sixth at most.
    let is_silent = silence.is_some_and(|it| began + (it + turn) / 5 * 6 < kernel.now());
    if is_calm && is_silent {
        let held = owned.iter().find(|(partition, _)| partition.is_held());
        kernel.check(require(held.is_none(), "a silent member owns nothing", || {
            format!("{held:?} is held after {} ms", (kernel.now() - began) / MILLI)
        }));
    }
}

fn unless_lost(done: Result<()>) -> Result<()> {
    match done {
        Err(Error::NoNode { .. }) => Ok(()),
        done => done,
    }
}
