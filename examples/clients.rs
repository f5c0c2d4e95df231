//! A fleet in which three instances hold the state and the others are clients. The clients count under one
//! lock while the members are stopped one after the other.

use std::thread;
use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{CreateMode, Result, Session};

const CLIENTS: u32 = 20;
const EACH: u32 = 3;

fn count(session: &Session) -> Result<()> {
    session.sync().wait()?;
    let lock = session.lock("/lock")?;
    for _ in 0..EACH {
        let guard = lock.acquire().wait()?;
        let n = String::from_utf8_lossy(&session.get("/n").wait()?.0).parse().unwrap_or(0);
        // The write has an effect only while the lock is held.
        guard.fenced().set("/n", (n + 1_u32).to_string()).commit().wait()?;
        guard.release().wait()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let clients: Vec<_> = (0..CLIENTS).map(|_| cluster.node(cluster.add_client())).collect();
    clients[0].session().create("/n", b"0", CreateMode::Persistent).wait()?;

    thread::scope(|scope| {
        let sessions: Vec<_> = clients.iter().map(quorate::Coordinator::session).collect();
        let workers: Vec<_> =
            sessions.into_iter().map(|session| scope.spawn(move || count(&session))).collect();
        let mut member = 0;
        while workers.iter().any(|worker| !worker.is_finished()) {
            cluster.stop(member);
            println!("member {member} is stopped");
            cluster.advance(Duration::from_secs(3));
            cluster.restart(member);
            cluster.advance(Duration::from_secs(1));
            member = (member + 1) % 3;
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
    })?;

    let last = clients[1].session();
    last.sync().wait()?;
    let n = String::from_utf8_lossy(&last.get("/n").wait()?.0).into_owned();
    println!("{CLIENTS} clients have counted to {n}");
    assert_eq!(n, (CLIENTS * EACH).to_string());
    Ok(())
}
