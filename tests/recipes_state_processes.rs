//! Shared state in real processes, of which one is killed with SIGKILL.
//!
//! The processes are this test program itself, started with a role in the environment: see `worker`.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use quorate::Coordinator;
use quorate::recipes::{
    Counter, Discovery, IdGenerator, Instance, Participant, Registry, TwoPhaseCommit, Vote,
};

const PEERS: &str = "QUORATE_TEST_PEERS";
const ADDRESS: &str = "QUORATE_TEST_ADDRESS";
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test of its own: what the other processes do. Lines that are meant for the test begin with
/// '@'.
#[test]
fn worker() {
    let (Ok(peers), Ok(address)) = (std::env::var(PEERS), std::env::var(ADDRESS)) else { return };
    let coordinator = Coordinator::builder()
        .advertise(&address)
        .session_timeout(Duration::from_secs(4))
        .request_timeout(PATIENCE)
        .join(peers.split(','))
        .unwrap_or_else(|error| panic!("{error}"));
    let session = coordinator.session();
    let counter = Counter::new(&session, "/counter").unwrap();
    let ids = IdGenerator::new(&session, "/ids", 10).unwrap();
    let discovery = Discovery::new(&session, "/services").unwrap();
    let transaction = TwoPhaseCommit::new(&session, "/transaction").unwrap();
    let mut registered = Vec::new();
    let mut part: Option<Participant> = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (order, name) = line.split_once(' ').unwrap_or((&line, ""));
        match order {
            "ready" => coordinator.wait_ready(PATIENCE).unwrap(),
            "register" => {
                let registry = Registry::new(&session, "/services").unwrap();
                let instance = Instance::new(name, &address, 1);
                registered.push(registry.register("s", &instance).unwrap());
            }
            "count" => loop {
                let (added, id) = (counter.add(1).unwrap(), ids.next_id().unwrap());
                println!("@added {} {id}", added.after);
            },
            "await" => {
                let mut watch = discovery.watch("s").unwrap();
                while watch.recv().unwrap().len().to_string() != name {}
            }
            "value" => {
                session.sync().unwrap();
                println!("@value {} {}", counter.get().unwrap(), ids.next_id().unwrap());
            }
            "begin" => {
                transaction.begin(&["a", "b"], b"").unwrap();
                println!("@begun");
                transaction.decide().unwrap();
            }
            "vote" => {
                session.sync().unwrap();
                let joined = transaction.join(name).unwrap();
                joined.vote(Vote::Yes).unwrap();
                part = Some(joined);
            }
            "decide" => println!("@decided {:?}", transaction.decide().unwrap()),
            "outcome" => println!("@outcome {:?}", part.as_ref().unwrap().outcome().unwrap()),
            other => panic!("unknown order {other}"),
        }
        println!("@done {order}");
    }
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    fn start(dir: &Path, peers: &[String], address: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker", "--nocapture"])
            .env(PEERS, peers.join(","))
            .env(ADDRESS, address)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = unbounded();
        std::thread::Builder::new()
            .spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    // The test harness may have begun the line.
                    if let Some(start) = line.find('@') {
                        let _ = sender.send(line[start + 1..].to_owned());
                    }
                }
            })
            .unwrap();
        Process { child, stdin, lines }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    /// The next line that begins with this.
    fn wait(&mut self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {start:?}"));
            if line.starts_with(start) {
                return line;
            }
        }
    }

    fn ask(&mut self, order: &str) {
        self.order(order);
        self.wait("done");
    }

    /// SIGKILL; then what it had said before.
    fn kill(&mut self) -> Vec<String> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.lines.iter().collect()
    }
}

fn numbers(line: &str) -> Vec<i64> {
    line.split(' ').filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn what_a_killed_process_shared_is_kept_and_what_was_its_own_goes() {
    let dir = tempfile::tempdir().unwrap();
    // Free a moment ago; all at once, so that they differ.
    let free: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let peers: Vec<String> =
        free.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    drop(free);
    let mut processes: Vec<Process> =
        peers.iter().map(|address| Process::start(dir.path(), &peers, address)).collect();
    for process in &mut processes {
        process.ask("ready");
    }
    for (place, process) in processes.iter_mut().enumerate() {
        process.ask(&format!("register {place}"));
    }
    processes[1].ask("await 3");

    // It begins a transaction, and dies as its coordinator after one has voted.
    let mut victim = processes.remove(0);
    victim.order("begin");
    victim.wait("begun");
    processes[0].ask("vote a");
    victim.kill();
    // Its instance is gone with its session; the transaction is not.
    processes[0].ask("await 2");
    processes[1].ask("vote b");
    processes[1].order("decide");
    assert_eq!(processes[1].wait("decided"), "decided Committed");
    processes[0].order("outcome");
    assert_eq!(processes[0].wait("outcome"), "outcome Committed");

    // Back again, it adds and takes ids until it is killed once more.
    let mut victim = Process::start(dir.path(), &peers, &peers[0]);
    victim.ask("ready");
    victim.order("count");
    let mut added: Vec<Vec<i64>> = (0..20).map(|_| numbers(&victim.wait("added"))).collect();
    let rest = victim.kill();
    added.extend(rest.iter().filter(|line| line.starts_with("added")).map(|line| numbers(line)));
    processes[0].order("value");
    let value = numbers(&processes[0].wait("value"));
    // What was acknowledged, and at most the one that was under way.
    let count = added.len() as i64;
    assert!((count..=count + 1).contains(&value[0]), "{count} were added, and there are {value:?}");
    assert!(added.iter().all(|id| id[1] < value[1]), "an id was given again");
}
