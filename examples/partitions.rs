//! Twelve partitions of work, shared out over five processes.
//!
//! `cargo run --release --example partitions` starts this program five more times. They found a cluster, and each works
//! on its share: a step of the work adds one to a sum, in one write with the position, so it is done exactly once. Then one
//! is killed with SIGKILL in the middle of that, and one leaves properly. The others go on where those have stopped. The
//! program ends by itself; the exit code is 0 only if every partition had one owner in the end, no position went back, and
//! the sum is that of all positions: no step was done twice, and none was left out.

#![allow(clippy::disallowed_methods, reason = "an application may look at the clock")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use quorate::recipes::{Counter, CounterForm, Partition, Partitions};
use quorate::{Coordinator, Error};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Set for the five processes; holds the peers, separated by commas.
const PEERS: &str = "QUORATE_EXAMPLE_PEERS";
const PATIENCE: Duration = Duration::from_secs(60);
const PARTITIONS: usize = 12;

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

// ---- One instance of the application: this is what using partitions looks like. ----

/// Works on its share. Answers commands from its standard input.
fn instance(peers: &str) -> Outcome<()> {
    let coordinator = Coordinator::builder()
        .session_timeout(Duration::from_secs(4))
        .join(peers.split(','))
        .wait()?;
    coordinator.wait_ready(Duration::from_secs(30)).wait()?;
    let session = coordinator.session();
    let partitions = Partitions::new(&session, "/counts", PARTITIONS)?;
    let sum = Counter::new(&session, "/sum")?.with_form(CounterForm::Text);
    sum.add(0).wait()?;
    let mut share = partitions.join(coordinator.address()).wait()?;

    let (sender, commands) = channel();
    std::thread::Builder::new().name("commands".to_owned()).spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;

    let mut work: BTreeMap<usize, (Partition, u64)> = BTreeMap::new();
    loop {
        // In this call, the share follows the plan.
        let next = match share.take().timeout(Duration::from_millis(20)).wait() {
            Err(Error::NotInTime { .. }) => None,
            next => Some(next?),
        };
        if let Some(partition) = next {
            let stored = partition.position().map(|it| String::from_utf8_lossy(it).parse());
            work.insert(partition.number(), (partition, stored.transpose()?.unwrap_or(0)));
        }
        let asked: Vec<usize> = work
            .iter()
            .filter(|(_, (partition, _))| partition.is_asked() || !partition.is_held())
            .map(|(number, _)| *number)
            .collect();
        for number in asked {
            if let Some((partition, count)) = work.remove(&number)
                && partition.is_held()
            {
                partition.hand_over(count.to_string()).wait()?;
            }
        }
        for (partition, count) in work.values_mut() {
            let position = (*count + 1).to_string();
            let step = session.multi().with(&sum.add_part(1));
            match step.with(&partition.commit_part(position)).commit().wait() {
                Ok(_) => *count += 1,
                // It was lost just now: nothing of this step is done.
                Err(Error::Multi { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match commands.try_recv().as_deref() {
            Ok("status") => {
                let all = work.iter().map(|(number, (_, count))| format!("{number}:{count}"));
                println!("= {}", all.collect::<Vec<_>>().join(" "));
            }
            Ok("check") => {
                // The work goes on: both are of the same moment.
                let then = session.snapshot().wait()?;
                let mut positions = 0;
                for number in 0..PARTITIONS {
                    let path = format!("/counts/positions/{number}");
                    if then.exists(&path)?.is_some() {
                        let position = then.get(&path)?.0;
                        positions += String::from_utf8_lossy(&position).parse::<u64>()?;
                    }
                }
                let (sum, _) = then.get(sum.path())?;
                println!("= {positions} steps, sum {}", String::from_utf8_lossy(&sum));
            }
            Ok("leave") => break,
            _ => {}
        }
    }
    // Each is asked for once it is planned for another member. What is handed over at about the same time is one write.
    std::thread::scope(|scope| {
        for (partition, count) in work.into_values() {
            scope.spawn(move || {
                partition.wait_asked().wait()?;
                partition.hand_over(count.to_string()).wait()
            });
        }
        share.leave().wait()
    })?;
    coordinator.close().wait()?;
    println!("= left");
    Ok(())
}

// ---- The demonstration, run by the process that starts the others. ----

struct Instance {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// Stops the children and deletes the data at the end, also after an error.
struct Stage {
    dir: PathBuf,
    instances: Vec<Instance>,
    /// The highest position of each partition that was seen.
    positions: BTreeMap<usize, u64>,
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
    let peers = free_addresses(5)?;
    let dir = std::env::temp_dir().join(format!("quorate-partitions-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let positions = BTreeMap::new();
    let mut stage = Stage { dir, instances: Vec::new(), positions, start: Instant::now() };
    let program = std::env::current_exe()?;
    for _ in 0..5 {
        let instance = Instance::start(&program, &stage.dir, &peers)?;
        stage.instances.push(instance);
    }
    stage.report(&format!("five processes join by the same list: {}", peers.join(", ")));
    stage.until_shared_out("all have joined")?;

    let mut dead = stage.instances.remove(0);
    stage.report(&format!("process {}: kill -9", dead.child.id()));
    // SIGKILL on Unix: the process cannot clean up.
    dead.child.kill()?;
    dead.child.wait()?;
    stage.until_shared_out("its session has expired, and the others have its partitions")?;

    let mut leaving = stage.instances.remove(0);
    stage.report(&format!("process {}: leave", leaving.child.id()));
    ensure(leaving.ask("leave")? == "left", "it did not leave")?;
    ensure(leaving.child.wait()?.success(), "it did not end well")?;
    stage.until_shared_out("it has handed over")?;
    let check = stage.instances[0].ask("check")?;
    let (steps, sum) = check.split_once(" steps, sum ").ok_or("no sum")?;
    ensure(steps == sum, "a step was done twice, or not at all")?;
    stage.report(&format!("{steps} steps were done, each exactly once"));
    stage.report("done");
    Ok(())
}

impl Stage {
    fn report(&self, what: &str) {
        println!("{:6.2} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Waits until each partition has one owner, and all have an equal share. No position may go back meanwhile.
    fn until_shared_out(&mut self, why: &str) -> Outcome<()> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let mut owners = BTreeMap::new();
            let (mut report, mut counts) = (Vec::new(), Vec::new());
            for at in 0..self.instances.len() {
                let status = self.instances[at].ask("status")?;
                let mut count = 0;
                for entry in status.split_whitespace() {
                    let (number, position) = entry.split_once(':').ok_or("no position")?;
                    let (number, position) = (number.parse()?, position.parse()?);
                    let before = self.positions.insert(number, position).unwrap_or(0);
                    ensure(position >= before, "a position went back")?;
                    *owners.entry(number).or_insert(0) += 1;
                    count += 1;
                }
                counts.push(count);
                report.push(format!("  process {} owns {status}", self.instances[at].child.id()));
            }
            let part = PARTITIONS / self.instances.len();
            let even = counts.iter().all(|count| (part..=part + 1).contains(count));
            if owners.len() == PARTITIONS && owners.values().all(|owners| *owners == 1) && even {
                self.report(why);
                report.iter().for_each(|line| self.report(line));
                return Ok(());
            }
        }
        Err(format!("not in time: {why}").into())
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
        let (sender, lines) = channel();
        std::thread::Builder::new().spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        })?;
        Ok(Instance { child, stdin, lines })
    }

    fn ask(&mut self, command: &str) -> Outcome<String> {
        writeln!(self.stdin, "{command}")?;
        let line = self.lines.recv_timeout(PATIENCE);
        let line = line.map_err(|_| format!("process {} does not answer", self.child.id()))?;
        Ok(line.trim_start_matches("= ").to_owned())
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
