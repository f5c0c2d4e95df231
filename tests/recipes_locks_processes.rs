//! Locks of real processes that are killed with SIGKILL.
//!
//! The processes are this test program itself, started with a role in the environment: see `worker`.

#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use quorate::recipes::{MultiLock, ReadWriteLock, Semaphore};
use quorate::{Coordinator, CreateMode};

const PEERS: &str = "QUORATE_TEST_PEERS";
const ADDRESS: &str = "QUORATE_TEST_ADDRESS";
const PATIENCE: Duration = Duration::from_secs(60);
const DELAY: Duration = Duration::from_secs(3);

/// Not a test of its own: what the process that is to be killed does. It holds one of each.
#[test]
fn worker() {
    let (Ok(peers), Ok(address)) = (std::env::var(PEERS), std::env::var(ADDRESS)) else { return };
    let coordinator = join(&peers, &address);
    let session = coordinator.session();
    let delayed = session.lock("/delayed").unwrap().with_lock_delay(DELAY).unwrap();
    let delayed = delayed.acquire().unwrap();
    delayed.fenced().create("/held", b"", CreateMode::Persistent).commit().unwrap();
    let writing = ReadWriteLock::new(&session, "/rw").unwrap().write().unwrap();
    let permits = Semaphore::new(&session, "/permits", 2).unwrap().acquire_many(2).unwrap();
    let several = MultiLock::new(&session, ["/b", "/a"]).unwrap().acquire().unwrap();
    println!("@held {} {}", delayed.fencing_token(), writing.fencing_token());
    permits.wait_lost();
    drop((delayed, writing, permits, several));
    unreachable!("it is killed");
}

fn join(peers: &str, address: &str) -> Coordinator {
    Coordinator::builder()
        .advertise(address)
        .session_timeout(Duration::from_secs(4))
        .join(peers.split(','))
        .unwrap_or_else(|error| panic!("{error}"))
}

struct Process(Child);

impl Drop for Process {
    /// With SIGKILL.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &std::path::Path, peers: &str, address: &str) -> (Process, Receiver<String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--nocapture"])
        .env(PEERS, peers)
        .env(ADDRESS, address)
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
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
    (Process(child), lines)
}

/// Addresses that were free a moment ago.
fn addresses(count: usize) -> Vec<String> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

#[test]
fn what_a_killed_process_held_goes_to_the_next_and_not_before_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = addresses(3);
    let peers = addresses.join(",");
    let (killed, lines) = start(dir.path(), &peers, &addresses[0]);
    let nodes: Vec<Coordinator> = addresses[1..]
        .iter()
        .map(|address| {
            Coordinator::builder()
                .advertise(address)
                .session_timeout(Duration::from_secs(4))
                .data_dir(dir.path().join(address.rsplit(':').next().unwrap()))
                .join(peers.split(','))
                .unwrap()
        })
        .collect();
    let held = lines.recv_timeout(PATIENCE).expect("it holds all of them");
    let tokens: Vec<u64> = held.split(' ').skip(1).map(|token| token.parse().unwrap()).collect();
    let session = nodes[0].session();
    let lock = session.lock("/delayed").unwrap();
    let shared = ReadWriteLock::new(&session, "/rw").unwrap();
    let semaphore = Semaphore::new(&session, "/permits", 2).unwrap();
    let several = MultiLock::new(&session, ["/a", "/c"]).unwrap();
    assert!(lock.try_acquire().unwrap().is_none());
    assert!(shared.try_read().unwrap().is_none());
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert!(several.try_acquire().unwrap().is_none());
    drop(killed);
    let reading = shared.read_timeout(PATIENCE).unwrap().expect("its session has ended");
    assert!(reading.fencing_token() > tokens[1]);
    // It went with the same session, and is kept for longer.
    assert!(lock.try_acquire().unwrap().is_none(), "there is a lock-delay");
    assert!(semaphore.acquire_timeout(PATIENCE).unwrap().expect("both are free").is_held());
    assert!(several.acquire_timeout(PATIENCE).unwrap().expect("all are free").is_held());
    let next = lock.acquire_timeout(PATIENCE).unwrap().expect("the delay is over");
    assert!(next.fencing_token() > tokens[0]);
}
