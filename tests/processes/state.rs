//! Shared state in real processes, one of which is killed with SIGKILL.
//!
//! The processes are this test program itself: see `worker`.

#![cfg(unix)]

use crate::common::{PATIENCE, Process, addresses, name_of, node, place};
use quorate::recipes::{
    Counter, IdGenerator, Instance, Participant, Registry, TwoPhaseCommit, Vote,
};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

/// Not a test of its own: the code of the other processes. Lines for the test begin with '@'.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    let coordinator = node(&address).request_timeout(PATIENCE).join(peers);
    let coordinator = coordinator.wait().unwrap_or_else(|error| panic!("{error}"));
    let session = coordinator.session();
    let counter = Counter::new(&session, "/counter").unwrap();
    let ids = IdGenerator::new(&session, "/ids", 10).unwrap();
    let discovery = Registry::new(&session, "/services").unwrap();
    let transaction = TwoPhaseCommit::new(&session, "/transaction").unwrap();
    let mut registered = Vec::new();
    let mut part: Option<Participant> = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (order, name) = line.split_once(' ').unwrap_or((&line, ""));
        match order {
            "ready" => coordinator.wait_ready(PATIENCE).wait().unwrap(),
            "register" => {
                let registry = Registry::new(&session, "/services").unwrap();
                let instance = Instance::new(name, &address, 1);
                registered.push(registry.register("s", &instance).wait().unwrap());
            }
            "count" => loop {
                let (added, id) = (counter.add(1).wait().unwrap(), ids.next_id().wait().unwrap());
                println!("@added {added} {id}");
            },
            "await" => {
                let mut watch = discovery.watch("s").unwrap();
                while watch.recv().wait().unwrap().len().to_string() != name {}
            }
            "value" => {
                session.sync().wait().unwrap();
                println!(
                    "@value {} {}",
                    counter.get().wait().unwrap(),
                    ids.next_id().wait().unwrap()
                );
            }
            "begin" => {
                transaction.begin(&["a", "b"], b"").wait().unwrap();
                println!("@begun");
                transaction.decide().wait().unwrap();
            }
            "vote" => {
                session.sync().wait().unwrap();
                let joined = transaction.join(name).wait().unwrap();
                joined.vote(Vote::Yes).wait().unwrap();
                part = Some(joined);
            }
            "decide" => println!("@decided {:?}", transaction.decide().wait().unwrap()),
            "outcome" => {
                println!("@outcome {:?}", part.as_ref().unwrap().outcome().wait().unwrap())
            }
            other => panic!("unknown order {other}"),
        }
        println!("@done {order}");
    }
}

/// Sends an order, and waits until it is done.
fn ask(process: &mut Process, order: &str) {
    process.order(order);
    process.wait("done");
}

fn numbers(line: &str) -> Vec<i64> {
    line.split(' ').filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_killed_process_s_shared_state_stays_and_its_ephemerals_go() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut processes: Vec<Process> =
        peers.iter().map(|address| Process::start(WORKER, dir.path(), &peers, address)).collect();
    for process in &mut processes {
        ask(process, "ready");
    }
    for (place, process) in processes.iter_mut().enumerate() {
        ask(process, &format!("register {place}"));
    }
    ask(&mut processes[1], "await 3");

    // It begins a transaction, and dies as its coordinator after one participant has voted.
    let mut victim = processes.remove(0);
    victim.order("begin");
    victim.wait("begun");
    ask(&mut processes[0], "vote a");
    victim.kill();
    // Its registration is gone with its session; the transaction is not.
    ask(&mut processes[0], "await 2");
    ask(&mut processes[1], "vote b");
    processes[1].order("decide");
    assert_eq!(processes[1].wait("decided"), "decided Committed");
    processes[0].order("outcome");
    assert_eq!(processes[0].wait("outcome"), "outcome Committed");

    // Back again, it adds and takes ids until it is killed once more.
    let mut victim = Process::start(WORKER, dir.path(), &peers, &peers[0]);
    ask(&mut victim, "ready");
    victim.order("count");
    let mut added: Vec<Vec<i64>> = (0..20).map(|_| numbers(&victim.wait("added"))).collect();
    let rest = victim.kill();
    added.extend(rest.iter().filter(|line| line.starts_with("added")).map(|line| numbers(line)));
    processes[0].order("value");
    let value = numbers(&processes[0].wait("value"));
    // All acknowledged additions, and at most the one in flight.
    let count = added.len() as i64;
    assert!((count..=count + 1).contains(&value[0]), "{count} were added, and there are {value:?}");
    assert!(added.iter().all(|id| id[1] < value[1]), "an id was given again");
}
