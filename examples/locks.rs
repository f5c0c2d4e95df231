//! The lock recipes at work: a table that many read and one writes, with writes fenced against
//! writers that have lost their lock; uploads of which only two run at a time; transfers that lock
//! two accounts.

use std::time::Duration;

use quorate::recipes::{MultiLock, ReadWriteLock, Semaphore};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Result, Session};

/// Adds one to the number at a path, if the lock is still held when the write is applied.
fn increment(session: &Session) -> Result<()> {
    let lock = ReadWriteLock::new(session, "/locks/table")?;
    let writing = lock.write().wait()?;
    session.sync().wait()?;
    let number = parse(&session.get("/table").wait()?.0);
    writing.fenced().set("/table", (number + 1).to_string()).commit().wait()?;
    // It goes on as a reader, and sees its own write.
    let reading = writing.downgrade().wait()?;
    assert_eq!(parse(&session.get("/table").wait()?.0), number + 1);
    reading.release().wait()
}

fn parse(data: &[u8]) -> u64 {
    std::str::from_utf8(data).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn transfer(session: &Session, from: &str, to: &str) -> Result<()> {
    // The lock takes the accounts in a fixed order, whatever order the caller names them in.
    let guard = MultiLock::new(session, [from, to])?.acquire().wait()?;
    println!("{from} to {to}: both are locked");
    guard.release().wait()
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let sessions: Vec<Session> = (0..3).map(|place| cluster.node(place).session()).collect();
    sessions[0].create("/table", b"0", CreateMode::Persistent).wait()?;
    std::thread::scope(|scope| {
        let jobs: Vec<_> = sessions
            .iter()
            .enumerate()
            .map(|(place, session)| {
                scope.spawn(move || {
                    increment(session)?;
                    let permits = Semaphore::new(session, "/uploads", 2)?.acquire().wait()?;
                    println!("instance {place} uploads");
                    permits.release().wait()?;
                    let (one, two) = ("/accounts/1", "/accounts/2");
                    if place % 2 == 0 {
                        transfer(session, one, two)
                    } else {
                        transfer(session, two, one)
                    }
                })
            })
            .collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("an instance panicked"))
    })?;
    sessions[0].sync().wait()?;
    assert_eq!(parse(&sessions[0].get("/table").wait()?.0), 3);

    // Another session asks the holder to release the lock.
    let guard = sessions[0].lock("/locks/report")?.acquire().wait()?;
    let revocations = guard.revocations().wait()?;
    sessions[1].lock("/locks/report")?.revoke().wait()?;
    if revocations.wait_asked().wait().unwrap() {
        println!("instance 0 was asked for the lock, and lets go of it");
        guard.release().wait()?;
    }

    // A holder is lost: its late write has no effect, and the next holder waits for the lock-delay.
    let lock = sessions[0].lock("/locks/report")?.with_lock_delay(Duration::from_secs(15))?;
    let lost = lock.acquire().wait()?;
    cluster.expire(&sessions[0]);
    let late = lost.fenced().set("/table", b"from the past").commit();
    assert!(late.wait().is_err_and(|error: Error| error.is_session_lost()));
    let next = sessions[1].lock("/locks/report")?;
    assert!(next.try_acquire().wait()?.is_none());
    cluster.advance(Duration::from_secs(20));
    println!("instance 1 has it, with token {}", next.acquire().wait()?.fencing_token());
    Ok(())
}
