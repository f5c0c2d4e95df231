//! An application that serves ZooKeeper's clients beside its own work, driven by lines: the tests in
//! `tests/gateway` let it contend with Curator and kazoo for the same paths.
//!
//! `shared_recipes PEERS LISTEN DATA_DIR GATEWAY` joins a cluster and serves a gateway. Each line is a name, a
//! command, a path and a value; the name stands for one session. It answers each with a line that starts with
//! `=`; lines with `*` say what a name holds, or no longer holds.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use quorate::recipes::{LeaderLatch, LeaderSelector, Naming, ReadWriteLock};
use quorate::{Coordinator, Gateway, Result, Session};

/// Something held, and how to give it back.
struct Held {
    path: String,
    is_held: Box<dyn Fn() -> bool + Send>,
    release: Box<dyn FnOnce() -> Result<()> + Send>,
}

macro_rules! held {
    ($guard:expr, $is_held:ident, $release:ident) => {{
        let guard = std::sync::Arc::new($guard);
        let path = guard.path().to_owned();
        let holding = guard.clone();
        let is_held = Box::new(move || holding.$is_held());
        let release = Box::new(move || match std::sync::Arc::try_unwrap(guard) {
            Ok(guard) => guard.$release(),
            Err(_) => unreachable!("the other one was dropped"),
        });
        Held { path, is_held, release }
    }};
}

/// A recipe, and whose names its contenders have: `lock`, or `lock-kazoo`.
fn naming(kind: &str) -> (&str, Naming) {
    match kind.strip_suffix("-kazoo") {
        Some(kind) => (kind, Naming::Kazoo),
        None => (kind, Naming::Curator),
    }
}

fn acquire(session: &Session, kind: &str, path: &str) -> Result<Held> {
    let (kind, naming) = naming(kind);
    let shared = || Ok(ReadWriteLock::new(session, path)?.with_naming(naming));
    let selector = || Ok(LeaderSelector::new(session, path, "rust")?.with_naming(naming));
    Ok(match kind {
        "lock" => held!(session.lock(path)?.with_naming(naming).acquire()?, is_held, release),
        "read" => held!(shared()?.read()?, is_held, release),
        "write" => held!(shared()?.write()?, is_held, release),
        "latch" => {
            let latch = LeaderLatch::new(session, path, "rust")?.with_naming(naming);
            held!(latch.campaign()?, is_leading, resign)
        }
        _ => held!(selector()?.latch().campaign()?, is_leading, resign),
    })
}

/// Whether it was free.
fn attempt(session: &Session, kind: &str, path: &str) -> Result<bool> {
    let (kind, naming) = naming(kind);
    let shared = || Ok(ReadWriteLock::new(session, path)?.with_naming(naming));
    let selector = || Ok(LeaderSelector::new(session, path, "rust")?.with_naming(naming));
    // Others have written through other members.
    session.sync()?;
    Ok(match kind {
        "lock" => session.lock(path)?.with_naming(naming).try_acquire()?.is_some(),
        "read" => shared()?.try_read()?.is_some(),
        "write" => shared()?.try_write()?.is_some(),
        "latch" => {
            LeaderLatch::new(session, path, "rust")?.with_naming(naming).try_campaign()?.is_some()
        }
        _ => selector()?.latch().try_campaign()?.is_some(),
    })
}

/// Acquires, and releases when there is a message.
fn hold(session: &Session, name: &str, command: &str, path: &str, end: &Receiver<()>) {
    let held = match acquire(session, command, path) {
        Ok(held) => held,
        Err(error) => return println!("* {name} {error}"),
    };
    println!("* {name} holds");
    let lost = loop {
        match end.recv_timeout(Duration::from_millis(5)) {
            Err(RecvTimeoutError::Timeout) if !(held.is_held)() => break true,
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break false,
        }
    };
    let Held { is_held, release, .. } = held;
    drop(is_held);
    match release() {
        _ if lost => println!("* {name} has lost"),
        Ok(()) => println!("* {name} has released"),
        Err(error) => println!("* {name} {error}"),
    }
}

/// Acquires and releases again and again, until there is a message. `record` is a folder: a file in it exists
/// while somebody holds.
fn contend(
    session: &Session,
    name: &str,
    (command, path): (&str, &str),
    record: &str,
    end: &Receiver<()>,
) -> std::result::Result<u32, Box<dyn std::error::Error>> {
    let mut turns = 0;
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(Duration::from_millis(1)) {
        let Held { path, is_held, release } = acquire(session, command, path)?;
        if is_held() {
            let holder = format!("{record}/holder");
            let mut file = OpenOptions::new().write(true).create_new(true).open(&holder)?;
            file.write_all(name.as_bytes())?;
            let mut order = OpenOptions::new().append(true).open(format!("{record}/order"))?;
            order.write_all(format!("{name} {path}\n").as_bytes())?;
            std::thread::sleep(Duration::from_millis(3));
            std::fs::remove_file(&holder)?;
            turns += 1;
        }
        drop(is_held);
        release()?;
    }
    Ok(turns)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [peers, listen, data, gateway] = &arguments[..] else {
        return Err("usage: shared_recipes PEERS LISTEN DATA_DIR GATEWAY".into());
    };
    let coordinator = Coordinator::builder()
        .advertise(listen)
        .data_dir(data)
        .session_timeout(Duration::from_secs(10))
        .join(peers.split(','))?;
    let _gateway = Gateway::serve(&coordinator, gateway)?;
    coordinator.wait_ready(Duration::from_secs(60))?;
    println!("* ready");

    let mut sessions: HashMap<String, Session> = HashMap::new();
    let mut ends: HashMap<String, Sender<()>> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let (name, command, path) = match words[..] {
            [name, command] => (name.to_owned(), command.to_owned(), String::new()),
            [name, command, path, ..] => (name.to_owned(), command.to_owned(), path.to_owned()),
            _ => return Err(line.into()),
        };
        let value = words.get(3).map(|value| (*value).to_owned());
        if command == "release" {
            // Not an error if it was lost.
            let _ = ends.remove(&name).map(|end| end.send(()));
            println!("= done");
            continue;
        }
        if !sessions.contains_key(&name) {
            sessions.insert(name.clone(), coordinator.open_session()?);
        }
        let session = sessions[&name].clone();
        if let Some(kind) = command.strip_prefix("try-") {
            match attempt(&session, kind, &path) {
                Ok(is_free) => println!("= {is_free}"),
                Err(error) => println!("= {error}"),
            }
            continue;
        }
        let (end, ended) = channel();
        ends.insert(name.clone(), end);
        std::thread::spawn(move || match value {
            None => hold(&session, &name, &command, &path, &ended),
            Some(record) => match contend(&session, &name, (&command, &path), &record, &ended) {
                Ok(turns) => println!("* {name} had {turns} turns"),
                Err(error) => println!("* {name} {error}"),
            },
        });
        println!("= done");
    }
    Ok(())
}
