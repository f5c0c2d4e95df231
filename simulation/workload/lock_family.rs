//! Read-write locks, semaphores, multi-locks, reentrant locks, fencing tokens, revocation and
//! lock-delay.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::recipes::revocation::REVOKE;
use crate::recipes::{MultiLock, ReadWriteLock, ReentrantLock, Semaphore};
use crate::simulation::checks::require;
use crate::simulation::checks::shares::{Holding, Shares};
use crate::simulation::client::{Client, Handle};
use crate::simulation::clock::Nanos;
use crate::simulation::executor::{both, first};
use crate::simulation::faults::Fault;
use crate::types::error::{Error, Result};
use crate::types::znode::{Condition, CreateMode, OpResult};

/// The share of a writer. A reader's share is 1.
const READERS_MAX: u64 = 1_000;
/// The number of permits at the start.
const PERMITS: u32 = 3;
const LOCK_DELAY: Duration = Duration::from_secs(3);

pub(crate) async fn run(client: Client) {
    client
        .in_sessions(async |handle| {
            let done = match client.random.below(8) {
                0 | 1 => readers_and_writers(&client, handle).await,
                2 => permits(&client, handle).await,
                3 => several(&client, handle).await,
                4 | 5 => fenced(&client, handle).await,
                6 => reentrant(&client, handle).await,
                _ => delayed(&client, handle).await,
            };
            // Any call may fail. The checks look at what succeeded.
            drop(done);
        })
        .await;
}

const TAKEN: &[u8] = b"taken";

/// Some clients take over the znode of a lock holder, who must then leave it alone.
pub(crate) async fn run_taken(client: Client) {
    client
        .in_sessions(async |handle| {
            // Any call may fail. The checks look at what succeeded.
            drop(match client.random.percent(50) {
                true => hold_until_taken(&client, handle).await,
                false => take_over(&client, handle).await,
            });
        })
        .await;
}

async fn hold_until_taken(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let lock = ReadWriteLock::new(handle.session(), "/taken")?;
    if client.random.percent(50) {
        let Some(guard) = with_patience(client, "taken lock", lock.read()).await else {
            return Ok(());
        };
        client.think().await;
        let path = guard.path().to_owned();
        drop(guard);
        if planted!(ReleasedByPath) {
            handle.session().delete(&path).await?;
        }
        return Ok(());
    }
    let Some(guard) = with_patience(client, "taken lock", lock.write()).await else {
        return Ok(());
    };
    client.think().await;
    // If this fails, the guard deletes its znode at once.
    drop(guard.downgrade().await?);
    Ok(())
}

async fn take_over(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let (session, kernel) = (handle.session(), &client.kernel);
    let lock = ReadWriteLock::new(session, "/taken")?;
    for contender in lock.contenders().await? {
        let (path, Some(holder)) = (contender.path, contender.session) else { continue };
        // Other clients may take over this session's own znode. Skips znodes that were taken over
        // already.
        if holder == session.id() {
            continue;
        }
        if handle.data_seen(&path).await.is_ok_and(|data| &data[..] == TAKEN) {
            continue;
        }
        let calls = &session.in_turn();
        let taken = calls.take_over(&path, TAKEN, holder).await?.stat;
        let own = Condition::Czxid(taken.czxid);
        kernel.count("taken over");
        for _ in 0..client.random.within(1..4) {
            client.think().await;
            // If this session has ended, its znode may be gone. Then this read fails, too.
            let Ok(there) = calls.exists(&path).await else { continue };
            let there = there.map(|stat| stat.czxid);
            kernel.check(require(there == Some(taken.czxid), "I22 what is taken stays", || {
                format!("{path} was taken over by {}, and is gone", taken.czxid)
            }));
        }
        // The znode blocks all who wait for the lock, so a full queue must not leave it there. Another one may
        // have taken it over by now, from a replica that had not seen this.
        let delete = || session.multi().require(&path, own).delete(&path).commit();
        while let Err(Error::Busy { .. } | Error::DiskLow { .. }) = delete().await {
            client.think().await;
        }
        return Ok(());
    }
    Ok(())
}

/// Waits until it is acquired, in a third of the cases only for a while.
pub(super) async fn with_patience<T>(
    client: &Client,
    what: &'static str,
    acquiring: impl Future<Output = Result<T>>,
) -> Option<T> {
    let kernel = &client.kernel;
    let patience = match client.random.below(3) {
        0 => client.random.around(kernel.plan.think * 20),
        _ => Nanos::MAX / 2,
    };
    let waits = kernel.wait(what, client.place);
    let acquired = first(acquiring, kernel.sleep(patience)).await;
    drop(waits);
    kernel.count(what);
    acquired.ok()?.ok()
}

/// Records what is held and holds it for a while.
pub(super) async fn hold<G: Holding + 'static>(
    client: &Client,
    handle: &Handle,
    name: &str,
    share: (u64, u64),
    guard: G,
) -> Option<G> {
    let (kernel, guard, session) = (&client.kernel, Rc::new(guard), handle.session().id());
    kernel.trace.log(format_args!("node {}: session {session} has {name}", client.place));
    {
        let mut checks = kernel.checks.borrow_mut();
        checks.shares.acquired(name, &guard, share, session);
        kernel.check(checks.shares.check(|session| checks.sessions.is_forced(session)));
    }
    for _ in 0..client.random.within(1..3) {
        client.think().await;
    }
    kernel.trace.log(format_args!("node {}: {session} is done with {name}", client.place));
    // The checks hold another reference only while they run.
    Rc::into_inner(guard)
}

async fn readers_and_writers(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let name = "/shared";
    let lock = ReadWriteLock::new(handle.session(), name)?;
    if client.random.percent(60) {
        let Some(guard) = with_patience(client, "read lock", lock.read()).await else {
            return Ok(());
        };
        let kernel = &client.kernel;
        let in_turn = Shares::read_in_turn(&kernel.checks.borrow().oracle, name, guard.path());
        kernel.check(in_turn);
        if guard.fencing_token().is_multiple_of(4) {
            // A writer queues up while this client reads, and behind it a reader, which must wait
            // as well.
            let (writes, reads) = (pin!(lock.write()), pin!(lock.read()));
            let come = first(first(writes, reads), client.think()).await;
            if let Ok(Err(Ok(early))) = come {
                let checks = kernel.checks.borrow();
                let in_turn = Shares::read_in_turn(&checks.oracle, name, early.path());
                drop(checks);
                kernel.check(in_turn);
            }
        }
        hold(client, handle, name, (1, READERS_MAX), guard).await;
        return Ok(());
    }
    let Some(guard) = with_patience(client, "write lock", lock.write()).await else {
        return Ok(());
    };
    let guard = hold(client, handle, name, (READERS_MAX, READERS_MAX), guard).await;
    if let Some(guard) = guard.filter(|_| client.random.percent(50)) {
        let reading = guard.downgrade().await?;
        client.kernel.count("downgrade");
        hold(client, handle, name, (1, READERS_MAX), reading).await;
    }
    Ok(())
}

async fn permits(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let (name, kernel) = ("/permits", &client.kernel);
    let number = handle.data_seen(name).await.ok();
    let number = number.and_then(|data| std::str::from_utf8(&data).ok()?.parse().ok());
    let semaphore = Semaphore::new(handle.session(), name, number.unwrap_or(PERMITS))?;
    if client.random.percent(30) {
        semaphore.set_permits(client.random.within(1..5) as u32).await?;
        kernel.count("permits changed");
    }
    let wanted = client.random.within(1..3) as u32;
    let acquiring = semaphore.acquire_many(wanted);
    let Some(permits) = with_patience(client, "permits", acquiring).await else { return Ok(()) };
    let all = Shares::permits_in_turn(&kernel.checks.borrow().oracle, name, &permits);
    let all = all.map_err(|violation| kernel.fail(violation)).unwrap_or(u64::MAX);
    hold(client, handle, name, (u64::from(wanted), all), permits).await;
    Ok(())
}

async fn several(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let first = client.random.below(3);
    let paths = [first, (first + 1 + client.random.below(2)) % 3].map(|n| format!("/set/{n}"));
    let lock = MultiLock::new(handle.session(), &paths)?;
    let Some(guard) = with_patience(client, "several locks", lock.acquire()).await else {
        return Ok(());
    };
    let mut taken: Vec<&str> = guard.guards().iter().map(|guard| guard.path()).collect();
    if planted!(MultiLockUnordered) {
        taken.reverse();
    }
    let in_order = taken.is_sorted();
    client.kernel.check(require(in_order, "I31 several locks in one order", || {
        format!("{paths:?} were not taken in the order of their paths")
    }));
    // Any two sets of two out of three locks overlap.
    hold(client, handle, "/set", (1, 1), guard).await;
    Ok(())
}

/// Two clones acquire the lock at the same time and share one hold until the last of them releases
/// it. Some lose it meanwhile because they delete its znode.
async fn reentrant(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let (name, kernel, session) = ("/reentrant", &client.kernel, handle.session());
    let lock = ReentrantLock::new(session, name)?;
    let twin = lock.clone();
    let acquiring = async {
        let (one, other) = both(lock.acquire(), twin.acquire()).await;
        if planted!(WaitSpins) {
            poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            })
            .await;
        }
        Ok(vec![one?, other?])
    };
    let Some(guards) = with_patience(client, "reentrant lock", acquiring).await else {
        return Ok(());
    };
    let apart = u64::from(planted!(CloneHoldsApart));
    let tokens = [guards[0].fencing_token(), guards[1].fencing_token() + apart];
    kernel.check(require(tokens[0] == tokens[1], "I22 clones share a holding", || {
        format!("clones hold {name} with the tokens {tokens:?}")
    }));
    let Some(mut guards) = hold(client, handle, name, (1, 1), guards).await else { return Ok(()) };
    guards.pop();
    client.think().await;
    let is_forced = kernel.checks.borrow().sessions.is_forced(session.id());
    let is_kept = guards[0].is_held() || !session.is_alive() || is_forced;
    kernel.check(require(
        is_kept || !kernel.plan.clocks_are_fair(),
        "I22 the last one releases",
        || format!("{name} is not held any more, and one of its guards is there"),
    ));
    if client.random.percent(50) {
        session.delete(guards[0].path()).await?;
        let acquiring = lock.acquire();
        let Some(again) = with_patience(client, "reentrant lock", acquiring).await else {
            return Ok(());
        };
        kernel.check(require(
            again.fencing_token() > tokens[0],
            "I22 what is lost is lost",
            || format!("a holding of {name} was deleted, and had again"),
        ));
        // The new guard counts for the new hold, and the old guard for none.
        hold(client, handle, name, (1, 1), vec![again]).await;
    }
    Ok(())
}

/// Some clients delete the znode of a live holder, whose fenced writes must then fail.
async fn fenced(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let (session, kernel) = (handle.session(), &client.kernel);
    let lock = session.lock("/fenced")?;
    match client.random.below(4) {
        0 => {
            if let Some(holder) = lock.contenders().await?.into_iter().next() {
                session.delete(&holder.path).await?;
            }
            return Ok(());
        }
        1 => {
            lock.revoke().await?;
            return Ok(());
        }
        _ => {}
    }
    match session.create("/fenced-data", b"", CreateMode::Persistent).await {
        Ok(_) | Err(Error::NodeExists { .. }) => {}
        Err(error) => return Err(error),
    }
    let Some(guard) = with_patience(client, "fenced lock", lock.acquire()).await else {
        return Ok(());
    };
    client.think().await;
    let asked = handle.data_seen(guard.path()).await.is_ok_and(|data| data.ends_with(REVOKE));
    let revocations = guard.revocations().await?;
    let told = !revocations.events().is_empty() && !planted!(RevocationLost);
    kernel.check(require(!asked || told, "I24 revocation", || {
        "somebody asked for a lock, and its holder is not notified".to_owned()
    }));
    // The holder does not check whether it still has the lock: fencing must.
    for _ in 0..4 {
        let token = guard.fencing_token();
        let multi = unless!(FenceUnchecked, guard.fenced(), session.multi());
        let results = multi.set("/fenced-data", token.to_be_bytes()).commit().await?;
        kernel.count("fenced write");
        if let Some(OpResult::Set(stat)) = results.last() {
            let shares = &mut kernel.checks.borrow_mut().shares;
            kernel.check(shares.fenced("/fenced-data", stat.mzxid, token));
        }
        client.think().await;
    }
    Ok(())
}

async fn delayed(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let (name, kernel) = ("/delayed", &client.kernel);
    let lock = handle.session().lock(name)?.with_lock_delay(LOCK_DELAY)?;
    let Some(guard) = with_patience(client, "delayed lock", lock.acquire()).await else {
        return Ok(());
    };
    let token = guard.fencing_token();
    let times = (kernel.now(), LOCK_DELAY.as_nanos() as Nanos);
    // A new leader moves the log's time forward if its wall clock has jumped ahead.
    let jumped = kernel.fault_counts()[Fault::WallJump as usize] > 0;
    let kept = kernel.checks.borrow_mut().shares.delayed(name, token, times);
    kernel.check(if jumped { Ok(()) } else { kept });
    for _ in 0..client.random.within(1..4) {
        if guard.is_held() && !kernel.checks.borrow().sessions.is_forced(handle.session().id()) {
            kernel.checks.borrow_mut().shares.still_held(name, token, kernel.now());
        }
        client.think().await;
    }
    // Some lose the lock at once, by a delete. A session expires only long after its last renewal.
    if client.random.percent(50) && handle.session().delete(guard.path()).await.is_ok() {
        return Ok(());
    }
    kernel.checks.borrow_mut().shares.released(name, token);
    Ok(())
}
