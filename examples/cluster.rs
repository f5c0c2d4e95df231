//! Three processes that form their own cluster.
//!
//! `cargo run --release --example cluster` starts this program three more times. Each process joins with the
//! same list of peers. They take turns with one lock, see each other's changes, and lose their leader to
//! SIGKILL. The program ends by itself; the exit code is 0 only if everything worked.

#![allow(clippy::disallowed_methods, reason = "an application may look at the clock")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use quorate::{Coordinator, CreateMode, Error, WatchMode};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Set for the three processes; holds the peers, separated by commas.
const PEERS: &str = "QUORATE_EXAMPLE_PEERS";
const PATIENCE: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    let result = match std::env::var(PEERS) {
        Ok(peers) => instance(&peers),
        Err(_) => story(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- One instance of the application: this is what using quorate looks like. ----

/// Executes commands from its standard input. Replies begin with '=', events with '*'.
fn instance(peers: &str) -> Outcome<()> {
    let coordinator = Coordinator::builder()
        .session_timeout(Duration::from_secs(4))
        .join(peers.split(','))
        .wait()?;
    coordinator.wait_ready(Duration::from_secs(30)).wait()?;
    let session = coordinator.session();
    let me = coordinator.address();
    let name = me.rsplit(':').next().unwrap_or("?").to_owned();

    // The running instances: each has an ephemeral znode, which is deleted with its session.
    for parent in ["/members", "/board"] {
        match session.create(parent, b"", CreateMode::Persistent).wait() {
            Ok(_) | Err(Error::NodeExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    session.create(&format!("/members/{name}"), &me, CreateMode::Ephemeral).wait()?;

    // The writes of the others, as they happen.
    let watch = session.watch("/board", WatchMode::PersistentRecursive).wait()?;
    let events = watch.events().clone();
    let reader = session.clone();
    std::thread::Builder::new().name("events".to_owned()).spawn(move || {
        for event in events {
            if let Ok((data, _)) = reader.get(&event.path).wait() {
                let text = String::from_utf8_lossy(&data).into_owned();
                println!("* {:?} {} zxid {}: {text}", event.kind, event.path, event.zxid);
            }
        }
    })?;

    println!("= ready as {me}");
    let lock = session.lock("/locks/board")?;
    let mut held = None;
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "status" => {
                let status = coordinator.status();
                println!("= {}", if status.is_leader { "leader" } else { "follower" });
            }
            "turn" => {
                let guard = lock.acquire().wait()?;
                let token = guard.fencing_token();
                let text = format!("{name} was here with token {token}");
                match session.create("/board/last", &text, CreateMode::Persistent).wait() {
                    Err(Error::NodeExists { .. }) => {
                        session.set("/board/last", &text).wait()?;
                    }
                    other => drop(other?),
                }
                guard.release().wait()?;
                println!("= {token}");
            }
            "hold" => {
                let guard = lock.acquire().wait()?;
                println!("= {}", guard.fencing_token());
                held = Some(guard);
            }
            "members" => {
                // This instance's replica may lag behind what another one has already seen.
                session.sync().wait()?;
                println!("= {}", session.children("/members").wait()?.join(" "));
            }
            "read" => {
                session.sync().wait()?;
                let (data, _) = session.get("/board/last").wait()?;
                println!("= {}", String::from_utf8_lossy(&data));
            }
            other => println!("= unknown command {other}"),
        }
    }
    drop(held);
    coordinator.close().wait()?;
    Ok(())
}

// ---- The demonstration, run by the process that starts the others. ----

struct Instance {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// Events that it has printed and that were not read yet.
    events: Vec<String>,
}

/// Stops the children and deletes the data at the end, also after an error.
struct Stage {
    dir: PathBuf,
    peers: Vec<String>,
    instances: Vec<Instance>,
    start: Instant,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for instance in &mut self.instances {
            let _ = instance.child.kill();
            let _ = instance.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn story() -> Outcome<()> {
    let peers = free_addresses(3)?;
    let dir = std::env::temp_dir().join(format!("quorate-example-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let mut stage = Stage { dir, peers, instances: Vec::new(), start: Instant::now() };

    stage.report(&format!("three processes join by the same list: {}", stage.peers.join(", ")));
    for _ in 0..3 {
        stage.start_instance()?;
    }
    for place in 0..3 {
        let ready = stage.instances[place].answer()?;
        let address = ready.rsplit(' ').next().unwrap_or_default();
        stage.instances[place].name = address.rsplit(':').next().unwrap_or("?").to_owned();
        let pid = stage.instances[place].child.id();
        stage.report(&format!("{} is ready (process {pid})", stage.instances[place].name));
    }
    let leader = stage.find_leader()?;
    stage.report(&format!("{} leads", stage.instances[leader].name));

    stage.report("they take turns under one lock; its fencing tokens only grow");
    let mut token = 0;
    for turn in 0..6 {
        let place = turn % 3;
        let new: u64 = stage.instances[place].ask("turn")?.parse()?;
        ensure(new > token, "a fencing token did not grow")?;
        token = new;
        stage.report(&format!("{} had the lock, token {token}", stage.instances[place].name));
    }
    // The last turn was that of the third instance; the others watch it.
    let seen = stage.instances[0].wait_event(&format!("token {token}"))?;
    stage.report(&format!("{} saw it happen: {seen}", stage.instances[0].name));

    let held: u64 = stage.instances[leader].ask("hold")?.parse()?;
    ensure(held > token, "a fencing token did not grow")?;
    let dead = stage.instances.remove(leader);
    stage.report(&format!("{} leads and holds the lock, token {held}: kill -9", dead.name));
    let killed = Instant::now();
    kill(dead)?;

    let after: u64 = stage.instances[0].ask("turn")?.parse()?;
    ensure(after > held, "a fencing token did not grow")?;
    let took = killed.elapsed();
    stage.report(&format!(
        "{} got the lock {took:.1?} later, token {after}: the dead one's session had expired",
        stage.instances[0].name
    ));
    let leader = stage.find_leader()?;
    stage.report(&format!("{} leads now", stage.instances[leader].name));
    let members = stage.instances[1].ask("members")?;
    ensure(members.split(' ').count() == 2, "the dead one's ephemeral is still there")?;
    stage.report(&format!("members left: {members}"));
    let last = stage.instances[1].ask("turn")?;
    stage.report(&format!("{} goes on, token {last}", stage.instances[1].name));

    stage.start_instance()?;
    let place = stage.instances.len() - 1;
    let ready = stage.instances[place].answer()?;
    stage.instances[place].name = ready.rsplit(':').next().unwrap_or("?").to_owned();
    let read = stage.instances[place].ask("read")?;
    ensure(read.ends_with(&format!("token {last}")), "the restarted one did not catch up")?;
    stage.report(&format!("{} is back and has caught up: \"{read}\"", stage.instances[place].name));
    let members = stage.instances[0].ask("members")?;
    ensure(members.split(' ').count() == 3, "not all members are back")?;
    stage.report(&format!("members: {members}"));
    stage.report("done");
    Ok(())
}

impl Stage {
    fn report(&self, what: &str) {
        println!("{:6.2} s  {what}", self.start.elapsed().as_secs_f64());
    }

    fn start_instance(&mut self) -> Outcome<()> {
        let program = std::env::current_exe()?;
        self.instances.push(Instance::start(&program, &self.dir, &self.peers)?);
        Ok(())
    }

    fn find_leader(&mut self) -> Outcome<usize> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            for place in 0..self.instances.len() {
                if self.instances[place].ask("status")? == "leader" {
                    return Ok(place);
                }
            }
        }
        Err("there is no leader".into())
    }
}

impl Instance {
    fn start(program: &Path, dir: &Path, peers: &[String]) -> Outcome<Instance> {
        let mut child = Command::new(program)
            .env(PEERS, peers.join(","))
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no standard input")?;
        let stdout = child.stdout.take().ok_or("no standard output")?;
        let (sender, lines): (Sender<String>, _) = channel();
        std::thread::Builder::new().spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        })?;
        let name = format!("process {}", child.id());
        Ok(Instance { name, child, stdin, lines, events: Vec::new() })
    }

    fn ask(&mut self, command: &str) -> Outcome<String> {
        writeln!(self.stdin, "{command}")?;
        self.answer()
    }

    fn answer(&mut self) -> Outcome<String> {
        let name = self.name.clone();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.map_err(|_| format!("{name} does not answer"))?;
            match line.strip_prefix("= ") {
                Some(answer) => return Ok(answer.to_owned()),
                None => self.events.push(line),
            }
        }
    }

    /// Waits for an event that contains `what`.
    fn wait_event(&mut self, what: &str) -> Outcome<String> {
        loop {
            if let Some(place) = self.events.iter().position(|line| line.contains(what)) {
                return Ok(self.events.remove(place).trim_start_matches("* ").to_owned());
            }
            let line = self.lines.recv_timeout(PATIENCE);
            self.events.push(line.map_err(|_| format!("{} saw nothing of {what}", self.name))?);
        }
    }
}

fn kill(mut instance: Instance) -> Outcome<()> {
    // SIGKILL on Unix: the process cannot clean up.
    instance.child.kill()?;
    instance.child.wait()?;
    Ok(())
}

fn ensure(holds: bool, what: &str) -> Outcome<()> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// Addresses of this machine that were free a moment ago.
fn free_addresses(count: usize) -> Outcome<Vec<String>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    addresses.collect()
}
