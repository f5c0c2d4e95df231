//! A timer that fires every second in three processes, of which one is killed in the middle of a run.
//!
//! `cargo run --release --example schedule` starts this program three more times. The processes form a cluster and run
//! what fires, each fire on one of them. The one that runs the fifth fire is killed with SIGKILL before it is done;
//! another one runs it again, under a new token. The program ends by itself; the exit code is 0 only if every fire was
//! done once.

#![allow(clippy::disallowed_methods, reason = "an application may look at the clock")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use quorate::recipes::{Missed, Run, Schedule, Timer};
use quorate::{Coordinator, CreateMode, Error, Session};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Set for the three processes; holds the peers, separated by commas.
const PEERS: &str = "QUORATE_EXAMPLE_PEERS";
const PATIENCE: Duration = Duration::from_secs(60);
/// The fire whose first runner is killed, and the last one that counts.
const KILLED: u64 = 5;
const LAST: u64 = 12;

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

/// Runs what fires until its standard input is closed.
fn instance(peers: &str) -> Outcome<()> {
    let coordinator = Coordinator::builder()
        .session_timeout(Duration::from_secs(4))
        .join(peers.split(','))
        .wait()?;
    coordinator.wait_ready(Duration::from_secs(30)).wait()?;
    let session = coordinator.session();
    match session.create("/done", b"", CreateMode::Persistent).wait() {
        Ok(_) | Err(Error::NodeExists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let schedule = Schedule::new(&session, "/schedule")?;
    // Each process says what it wants, and only the first changes something. No second is left out, not even those in
    // which the run of a dead process keeps the next from firing.
    schedule.set("tick", &Timer::every(Duration::from_secs(1))?.missed(Missed::All)).wait()?;
    println!("ready");
    std::thread::Builder::new().name("runs".to_owned()).spawn(move || {
        while let Ok(run) = schedule.take().wait() {
            if let Err(error) = carry_out(&session, run) {
                println!("failed {error}");
            }
        }
    })?;
    std::io::stdin().lines().for_each(drop);
    coordinator.close().wait()?;
    Ok(())
}

/// One run. What it writes is written once, however often the fire runs.
fn carry_out(session: &Session, run: Run) -> quorate::Result<()> {
    let (number, token) = (run.fire().number(), run.fencing_token());
    println!("runs {number} {token}");
    let first = format!("/runs-{number}");
    let again = session.exists(&first).wait()?.is_some();
    run.fenced()
        .create_or_set(&first, token.to_string(), CreateMode::Persistent)
        .commit()
        .wait()?;
    if number == KILLED && !again {
        // In the middle of its work, it is killed here.
        println!("stalls {number} {token}");
        run.wait_lost().wait().unwrap();
        return Ok(());
    }
    let done = format!("/done/{number:04}");
    let result = session.multi().create(&done, token.to_string(), CreateMode::Persistent);
    result.with(&run.done_part()).commit().wait()?;
    println!("done {number} {token}");
    Ok(())
}

// ---- The demonstration, run by the process that starts the others. ----

struct Instance {
    child: Child,
    /// Closed when this is dropped.
    stdin: Option<ChildStdin>,
}

/// Stops the children and deletes the data at the end, also after an error.
struct Stage {
    dir: PathBuf,
    instances: Vec<Instance>,
    start: Instant,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for instance in &mut self.instances {
            instance.stdin = None;
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
    let mut stage = Stage { dir, instances: Vec::new(), start: Instant::now() };
    let (sender, lines) = channel();
    for place in 0..3 {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .env(PEERS, peers.join(","))
            .current_dir(&stage.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("no output")?);
        stage.instances.push(Instance { child, stdin });
        let sender = sender.clone();
        std::thread::Builder::new().spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send((place, line)).is_err() {
                    return;
                }
            }
        })?;
    }
    let mut done = Vec::new();
    let mut killed = None;
    while done.len() < LAST as usize {
        let (place, words) = next(&lines)?;
        let words: Vec<&str> = words.split(' ').collect();
        stage.report(place, &words.join(" "));
        match words[..] {
            ["stalls", _, token] => {
                // SIGKILL on Unix: the process cannot clean up.
                stage.instances[place].child.kill()?;
                stage.instances[place].child.wait()?;
                killed = Some((place, token.parse::<u64>()?));
                stage.report(place, "was killed in the middle of it");
            }
            ["done", number, token] => {
                let (number, token) = (number.parse::<u64>()?, token.parse::<u64>()?);
                ensure(number == done.len() as u64 + 1, "a fire was left out or done twice")?;
                if number == KILLED {
                    let (dead, lost) = killed.ok_or("nobody was killed")?;
                    ensure(place != dead && token > lost, "it did not run under a new token")?;
                }
                done.push(token);
            }
            ["failed", ..] => return Err(words.join(" ").into()),
            _ => {}
        }
    }
    ensure(done.is_sorted_by(|one, next| one < next), "a token did not grow")?;
    println!("all {LAST} fires were done once, although a process was killed");
    std::io::stdout().flush()?;
    Ok(())
}

fn next(lines: &Receiver<(usize, String)>) -> Outcome<(usize, String)> {
    lines.recv_timeout(PATIENCE).map_err(|_| "nothing fires".into())
}

impl Stage {
    fn report(&self, place: usize, what: &str) {
        let time = self.start.elapsed().as_secs_f64();
        println!("{time:6.2} s  process {} {what}", self.instances[place].child.id());
    }
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
