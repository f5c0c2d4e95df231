//! An application that serves ZooKeeper's clients beside its own work, driven by lines: the tests in
//! `tests/gateway` let it contend with Curator and kazoo for the same paths.
//!
//! `shared_recipes PEERS LISTEN DATA_DIR GATEWAY` joins a cluster and serves a gateway. Each line is a name, a
//! command, a path and a value; the name stands for one session. It answers each with a line that starts with
//! `=`; lines with `*` say what a name holds, or no longer holds.

#![allow(
    clippy::disallowed_methods,
    reason = "an application has threads, and works while it holds something"
)]

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use quorate::gateway::Gateway;
use quorate::recipes::{
    Barrier, Config, Counter, CounterForm, Group, Instance, LeaderLatch, LeaderSelector, MultiLock,
    Naming, PersistentEphemeral, Raw, ReadWriteLock, ReentrantLock, Registry, Semaphore,
};
use quorate::{Coordinator, CreateMode, Result, Session};

/// The permits of semaphores.
const PERMITS: u32 = 2;

/// Something held, and how to give it back.
struct Held {
    path: String,
    is_held: Box<dyn Fn() -> bool + Send>,
    release: Box<dyn FnOnce() -> Result<()> + Send>,
}

macro_rules! held {
    ($guard:expr) => {
        held!($guard, |guard| guard.release())
    };
    ($guard:expr, |$own:ident| $release:expr) => {{
        let guard = std::sync::Arc::new($guard);
        let path = guard.path().to_owned();
        let holding = guard.clone();
        let is_held = Box::new(move || holding.is_held());
        let release = Box::new(move || match std::sync::Arc::try_unwrap(guard) {
            Ok($own) => $release.wait(),
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
        "lock" => held!(session.lock(path)?.with_naming(naming).acquire().wait()?),
        "reentrant" => {
            let lock = ReentrantLock::new(session, path)?.with_naming(naming);
            let first = lock.acquire().wait()?;
            let again = lock.acquire().wait()?;
            drop(first);
            held!(again)
        }
        "read" => held!(shared()?.read().wait()?),
        "write" => held!(shared()?.write().wait()?),
        "latch" => {
            let latch = LeaderLatch::new(session, path, "rust")?.with_naming(naming);
            held!(latch.campaign().wait()?)
        }
        "selector" => held!(selector()?.latch().campaign().wait()?),
        "elected" => elected(session, path, false)?,
        "handed" => elected(session, path, true)?,
        _ => {
            let semaphore = Semaphore::new(session, path, PERMITS)?.with_naming(naming);
            held!(semaphore.acquire().wait()?)
        }
    })
}

/// Leads, and every fourth time with a priority, so that others have their turns, too. Its token is shown in place of its
/// path. If it hands over, then every other time, to the last one in Rust.
fn elected(session: &Session, path: &str, hands_over: bool) -> Result<Held> {
    static TURNS: AtomicI32 = AtomicI32::new(0);
    let turn = TURNS.fetch_add(1, Ordering::Relaxed);
    let latch = LeaderLatch::new(session, path, "rust")?.with_priority(i32::from(turn % 4 == 0));
    let leadership = latch.campaign().wait()?;
    let patience = Duration::from_millis(300);
    let token = leadership.fencing_token().to_string();
    let held = held!(leadership, |leadership| {
        let mut leadership = leadership;
        if hands_over && turn % 2 == 1 {
            let candidates = latch.candidates().wait()?;
            let handed = match candidates.iter().rfind(|it| it.fencing_token().is_some()) {
                Some(last) if last.path != leadership.path() => {
                    leadership.hand_over_to(last).timeout(patience)
                }
                _ => leadership.hand_over().timeout(patience),
            };
            // The candidate may be gone.
            if handed.wait().is_ok() {
                return Ok(());
            }
        }
        leadership.release()
    });
    Ok(Held { path: token, ..held })
}

/// The answer to a command that holds nothing; `None` if it is another command.
fn state(session: &Session, command: &str, path: &str, value: &str) -> Result<Option<String>> {
    // Others have written through other members.
    session.sync().wait()?;
    let count = |form| {
        let number = value.parse().unwrap_or_default();
        Counter::new(session, path)?.with_form(form).add(number).wait()
    };
    Ok(Some(match command {
        "add-text" => count(CounterForm::Text)?.to_string(),
        "add-int" => count(CounterForm::Int)?.to_string(),
        "add-long" => count(CounterForm::Long)?.to_string(),
        "set-barrier" => {
            Barrier::new(session, path)?.set().wait()?;
            "done".to_owned()
        }
        "is-barrier" => Barrier::new(session, path)?.is_set().wait()?.to_string(),
        "revoke" => session.lock(path)?.revoke().wait()?.to_string(),
        "register" => {
            let instance = Instance::new(value, "10.0.0.7", 80).with("zone", "a");
            let registry = Registry::new(session, path)?.in_json();
            std::mem::forget(registry.register("billing", &instance).wait()?);
            "done".to_owned()
        }
        "services" => {
            let found = Registry::new(session, path)?.instances("billing").wait()?;
            let shown = found.iter().map(|one| {
                format!("{} {}:{} {}", one.id, one.address, one.port, one.metadata["zone"])
            });
            shown.collect::<Vec<_>>().join(",")
        }
        "join-group" => {
            // It stays for as long as the session.
            std::mem::forget(Group::new(session, path)?.join(value, value).wait()?);
            "done".to_owned()
        }
        "group" => {
            Group::new(session, path)?.members().wait()?.into_keys().collect::<Vec<_>>().join(",")
        }
        "config" => {
            let config = Config::<Vec<u8>, Raw>::with_codec(session, path)?;
            let value = config.get().wait()?.map(|versioned| versioned.value).unwrap_or_default();
            String::from_utf8_lossy(&value).into_owned()
        }
        "set-config" => {
            Config::<Vec<u8>, Raw>::with_codec(session, path)?.set(&value.into()).wait()?;
            "done".to_owned()
        }
        "push" => {
            let item = format!("{path}/item-");
            session.create_with_parents(&item, value, CreateMode::PersistentSequential).wait()?;
            "done".to_owned()
        }
        "list" => {
            let mut names = session.children(path).wait()?;
            names.sort();
            let data = names.iter().map(|name| session.get(&format!("{path}/{name}")).wait());
            let data = data.map(|read| Ok(String::from_utf8_lossy(&read?.0).into_owned()));
            data.collect::<Result<Vec<_>>>()?.join(",")
        }
        _ => return Ok(None),
    }))
}

/// Whether it was free.
fn attempt(session: &Session, kind: &str, path: &str) -> Result<bool> {
    let (kind, naming) = naming(kind);
    let shared = || Ok(ReadWriteLock::new(session, path)?.with_naming(naming));
    let selector = || Ok(LeaderSelector::new(session, path, "rust")?.with_naming(naming));
    // Others have written through other members.
    session.sync().wait()?;
    Ok(match kind {
        "lock" => session.lock(path)?.with_naming(naming).try_acquire().wait()?.is_some(),
        "reentrant" => ReentrantLock::new(session, path)?.try_acquire().wait()?.is_some(),
        // With another lock, which is free.
        "multi" => MultiLock::new(session, [path, "/free"])?.try_acquire().wait()?.is_some(),
        "read" => shared()?.try_read().wait()?.is_some(),
        "write" => shared()?.try_write().wait()?.is_some(),
        "latch" => LeaderLatch::new(session, path, "rust")?
            .with_naming(naming)
            .try_campaign()
            .wait()?
            .is_some(),
        "selector" => selector()?.latch().try_campaign().wait()?.is_some(),
        _ => Semaphore::new(session, path, PERMITS)?
            .with_naming(naming)
            .try_acquire()
            .wait()?
            .is_some(),
    })
}

/// Holds a lock until somebody asks for it.
fn until_asked(session: &Session, name: &str, path: &str) -> Result<()> {
    let guard = session.lock(path)?.acquire().wait()?;
    let revocations = guard.revocations().wait()?;
    println!("* {name} holds");
    if revocations.wait_asked().wait().unwrap() {
        println!("* {name} was asked");
    }
    guard.release().wait()
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

/// Writes what is held into a folder, which is a record that no cluster keeps: a file `holder` while somebody
/// holds alone, and a file for each reader and each permit. Each is a link to its holder's name, which is made in
/// one step, whenever a process is killed.
struct Record<'a> {
    folder: &'a str,
    file: String,
}

impl Record<'_> {
    fn begin<'a>(folder: &'a str, name: &str, kind: &str, path: &str) -> io::Result<Record<'a>> {
        // The name of the file, what it is not to be beside, and how many of these there may be.
        let (file, others, most) = match naming(kind).0 {
            "read" => (format!("reader-{name}"), "holder", 0),
            "semaphore" => (format!("permit-{name}"), "permit", PERMITS as usize),
            _ => ("holder".to_owned(), "reader", 0),
        };
        let record = Record { folder, file };
        std::os::unix::fs::symlink(name, record.at(&record.file))?;
        let mut beside = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let file = entry?.file_name().to_string_lossy().into_owned();
            beside.extend(file.starts_with(others).then_some(file));
        }
        if beside.len() > most {
            return Err(io::Error::other(format!("{name} holds beside {beside:?}")));
        }
        if record.file == "holder" {
            let mut order = OpenOptions::new().append(true).open(record.at("order"))?;
            order.write_all(format!("{name} {path}\n").as_bytes())?;
        }
        Ok(record)
    }

    fn at(&self, file: &str) -> String {
        format!("{}/{file}", self.folder)
    }

    fn end(self) -> io::Result<()> {
        std::fs::remove_file(self.at(&self.file))
    }
}

/// Acquires and releases again and again, until there is a message. Returns how often.
fn contend(
    coordinator: &Coordinator,
    name: &str,
    (kind, path): (&str, &str),
    folder: &str,
    end: &Receiver<()>,
) -> io::Result<u32> {
    let (mut turns, mut session) = (0, None);
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(Duration::from_millis(1)) {
        // A session that is over is followed by another one.
        let Ok(current) = session.take().map_or_else(|| coordinator.open_session(), Ok) else {
            continue;
        };
        let Ok(held) = acquire(&current, kind, path) else { continue };
        if (held.is_held)() {
            let record = Record::begin(folder, name, kind, &held.path)?;
            std::thread::sleep(Duration::from_millis(3));
            record.end()?;
            turns += 1;
        }
        let Held { is_held, release, .. } = held;
        drop(is_held);
        if release().is_ok() {
            session = Some(current);
        }
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
        .session_timeout(Duration::from_secs(5))
        .join(peers.split(','))
        .wait()?;
    let _gateway = Gateway::serve(&coordinator, gateway)?;
    coordinator.wait_ready(Duration::from_secs(60)).wait()?;
    println!("* ready");

    let mut sessions: BTreeMap<String, Session> = BTreeMap::new();
    let mut ends: BTreeMap<String, Sender<()>> = BTreeMap::new();
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
        let (session, contending) = (sessions[&name].clone(), coordinator.clone());
        if let Some(kind) = command.strip_prefix("try-") {
            match attempt(&session, kind, &path) {
                Ok(is_free) => println!("= {is_free}"),
                Err(error) => println!("= {error}"),
            }
            continue;
        }
        match state(&session, &command, &path, value.as_deref().unwrap_or_default()) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                println!("= {answer}");
                continue;
            }
            Err(error) => {
                println!("= {error}");
                continue;
            }
        }
        if command == "until-asked" {
            std::thread::spawn(move || match until_asked(&session, &name, &path) {
                Ok(()) => println!("* {name} has released"),
                Err(error) => println!("* {name} {error}"),
            });
            println!("= done");
            continue;
        }
        if command == "keep" {
            let data = value.unwrap_or_default();
            let kept = PersistentEphemeral::new(&coordinator.session(), &path, data)?
                .recreate_deleted(true);
            std::thread::spawn(move || kept.run().wait());
            println!("= done");
            continue;
        }
        let (end, ended) = channel();
        ends.insert(name.clone(), end);
        std::thread::spawn(move || match value {
            None => hold(&session, &name, &command, &path, &ended),
            Some(record) => match contend(&contending, &name, (&command, &path), &record, &ended) {
                Ok(turns) => println!("* {name} had {turns} turns"),
                Err(error) => println!("* {name} {error}"),
            },
        });
        println!("= done");
    }
    Ok(())
}
