//! A cluster of three members in one process, each with an admin endpoint, and something to look at: a lock
//! with a holder and waiters, an election, timers, a service's settings, and traffic.
//!
//! `cargo run --example admin --features admin` prints the addresses of the pages and runs until its standard
//! input ends (Ctrl-D). A line with the address of a member closes that member; the line `again` starts
//! closed members again. With the variable `QUORATE_ADMIN_TOKEN` the pages ask for that token.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use quorate::admin::Admin;
use quorate::recipes::{LeaderLatch, Schedule, Timer};
use quorate::{Coordinator, CreateMode, Error, Result};

/// The number of members.
const MEMBERS: usize = 3;
/// How often the traffic writes.
const PERIOD: Duration = Duration::from_millis(150);

struct Member {
    coordinator: Coordinator,
    admin: Admin,
}

fn start(peers: &[String], address: &str, data: &Path, page: &str) -> Result<Member> {
    let coordinator = Coordinator::builder()
        .advertise(address)
        .zone(format!("zone-{}", peers.iter().take_while(|peer| *peer != address).count() + 1))
        .data_dir(data.join(address.replace(':', "_")))
        .join(peers)
        .wait()?;
    let mut admin = Admin::builder().writable(true);
    if let Ok(token) = std::env::var("QUORATE_ADMIN_TOKEN") {
        admin = admin.token(token);
    }
    let admin = admin.serve(&coordinator, page)?;
    Ok(Member { coordinator, admin })
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let free = |_| std::net::TcpListener::bind("127.0.0.1:0");
    let listeners = (0..MEMBERS).map(free).collect::<std::io::Result<Vec<_>>>()?;
    let address = |listener: &std::net::TcpListener| Ok(listener.local_addr()?.to_string());
    let peers = listeners.iter().map(address).collect::<std::io::Result<Vec<String>>>()?;
    drop(listeners);

    let data = std::env::temp_dir().join(format!("quorate-admin-{}", std::process::id()));
    let mut members = Vec::new();
    for address in &peers {
        members.push((address.clone(), Some(start(&peers, address, &data, "127.0.0.1:0")?)));
    }
    for member in members.iter().filter_map(|(_, member)| member.as_ref()) {
        member.coordinator.wait_ready(Duration::from_secs(30)).wait()?;
        println!("{} http://{}/", member.coordinator.address(), member.admin.address());
    }

    // A separate client, so that its lock outlives any member.
    let client = Coordinator::builder().client().join(&peers).wait()?;
    client.wait_ready(Duration::from_secs(30)).wait()?;
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = {
        let (client, stop) = (client.clone(), Arc::clone(&stop));
        std::thread::Builder::new()
            .name("traffic".to_owned())
            .spawn(move || traffic(&client, &stop))?
    };

    println!("ready");
    let mut pages = BTreeMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        for (address, member) in &mut members {
            if line.trim() == "again" && member.is_none() {
                // At the same address, so that the page finds it.
                let page = pages.get(address).map_or("127.0.0.1:0", String::as_str);
                *member = Some(start(&peers, address, &data, page)?);
                if let Some(member) = member {
                    println!("{address} http://{}/", member.admin.address());
                }
            } else if line.trim() == address
                && let Some(Member { coordinator, admin }) = member.take()
            {
                pages.insert(address.clone(), admin.address().to_string());
                drop(admin);
                coordinator.close().wait()?;
                println!("closed {address}");
            }
        }
    }

    stop.store(true, Ordering::Relaxed);
    if traffic.join().is_err() {
        return Err("the traffic has panicked".into());
    }
    client.close().wait()?;
    for member in members.into_iter().filter_map(|(_, member)| member) {
        drop(member.admin);
        member.coordinator.close().wait()?;
    }
    std::fs::remove_dir_all(&data)?;
    Ok(())
}

/// Keeps a lock with waiters and an election, and writes.
fn traffic(client: &Coordinator, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // The session may be lost while the cluster has no quorum: then everything starts again.
        if let Err(error) = work(client, stop) {
            eprintln!("again, after: {error}");
            let _ = client.wait_ready(Duration::from_secs(10)).wait();
        }
    }
}

fn work(client: &Coordinator, stop: &AtomicBool) -> Result<()> {
    let session = client.open_session()?;
    let others = [client.open_session()?, client.open_session()?];
    let create =
        |path: &str, data: &str| match session.create(path, data, CreateMode::Persistent).wait() {
            Err(Error::NodeExists { .. }) => Ok(()),
            created => created.map(|_| ()),
        };
    let settings = r#"{"limit": 20, "regions": ["eu", "us"], "owner": {"team": "billing", "id": 90071992547409931}}"#;
    for (path, data) in [
        ("/app", ""),
        ("/app/settings", settings),
        ("/app/banner", "Maintenance on Sunday, 02:00 to 03:00 UTC."),
        ("/app/jobs", ""),
        ("/app/workers", ""),
    ] {
        create(path, data)?;
    }
    match session
        .create("/app/key", [0xff, 0, 0x17, 0x2a, 0x80, 0x10], CreateMode::Persistent)
        .wait()
    {
        Err(Error::NodeExists { .. }) => {}
        created => drop(created?),
    }
    let schedule = Schedule::new(&session, "/app/timers")?;
    schedule.set("cleanup", &Timer::every(Duration::from_secs(3600))?).wait()?;
    // Nobody waits for its fires.
    schedule.set("report", &Timer::at(SystemTime::UNIX_EPOCH)?).wait()?;
    session.create("/app/workers/w-", "host-1", CreateMode::EphemeralSequential).wait()?;
    let guard = session.lock("/locks/nightly")?.acquire().wait()?;
    let leadership = LeaderLatch::new(&session, "/app/scheduler", "host-1")?.campaign().wait()?;
    let waiting = others.iter().map(|other| other.lock("/locks/nightly"));
    let waiting = waiting.collect::<Result<Vec<_>>>()?;
    let outcome = std::thread::scope(|scope| {
        for lock in &waiting {
            // Each waiter holds the lock for a moment once the first holder has released it.
            scope.spawn(|| drop(lock.acquire()));
        }
        let written = write(&session, stop);
        drop((guard, leadership));
        written
    });
    session.close().wait()?;
    outcome
}

fn write(session: &quorate::Session, stop: &AtomicBool) -> Result<()> {
    let mut jobs: Vec<String> = Vec::new();
    let mut step = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        step += 1;
        match step % 6 {
            0 if jobs.len() > 5 => session.delete(&jobs.remove(0)).wait()?,
            0 | 3 => {
                let job = session
                    .create("/app/jobs/job-", "queued", CreateMode::PersistentSequential)
                    .wait()?;
                jobs.push(job.path);
            }
            _ => {
                let text = format!("Step {step} of the nightly run.");
                session.set("/app/banner", text).wait()?;
            }
        }
        let _ = session.sleep(PERIOD).wait();
    }
    for job in jobs {
        session.delete(&job).wait()?;
    }
    Ok(())
}
