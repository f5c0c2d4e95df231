//! Membership changes with real processes: started one after the other, killed, upgraded, replaced, moved,
//! with lost and copied disks.

#![cfg(unix)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common;
use crate::common::{PATIENCE, Process, addresses, name_of, node, place};
use crossbeam_channel::Sender;
use quorate::{Coordinator, CreateMode};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

/// Not a test of its own: the code of the other processes. Lines for the test begin with '@'.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    common::log();
    let dir = format!("data-{address}");
    let coordinator = node(&address)
        .data_dir(dir)
        .replace_after(Duration::from_secs(2))
        .join(peers)
        .wait()
        .unwrap_or_else(|error| panic!("{error}"));
    println!("@started");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "ready" => {
                coordinator.wait_ready(PATIENCE).wait().unwrap();
                println!("@ready");
            }
            "write" => {
                let name = address.rsplit(':').next().unwrap().to_owned();
                let coordinator = coordinator.clone();
                std::thread::Builder::new().spawn(move || write(&coordinator, &name)).unwrap();
            }
            "members" => {
                let members = coordinator.status().members.into_iter();
                let mut voters: Vec<String> =
                    members.filter(|member| member.votes).map(|member| member.address).collect();
                voters.sort();
                println!("@members {}", voters.join(","));
            }
            "probe" => println!("@probe {}", coordinator.is_ready()),
            "safe" => println!("@safe {}", coordinator.is_ready() && coordinator.safe_to_stop()),
            "waits" => println!("@waits {}", waits(&coordinator)),
            "state" => println!("@state {}", state(&coordinator)),
            "list" => {
                // On a very busy machine the session may expire, because its heartbeats come too late.
                let session = loop {
                    let session = coordinator.session();
                    match session.sync().wait() {
                        Ok(_) => break session,
                        Err(error) => assert!(error.is_session_lost(), "{error}"),
                    }
                };
                for child in session.children("/").wait().unwrap() {
                    println!("@has /{child}");
                }
                println!("@listed");
            }
            "close" => {
                coordinator.close().wait().unwrap();
                println!("@closed");
                return;
            }
            "leave" => {
                coordinator.leave(PATIENCE).wait().unwrap();
                println!("@left");
                return;
            }
            other => panic!("unknown order {other}"),
        }
    }
}

/// The reason why an instance is not ready.
fn waits(coordinator: &Coordinator) -> String {
    match coordinator.wait_ready(Duration::from_millis(100)).wait() {
        Ok(()) => "for nothing".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The whole state of an instance, for the message of a failed test.
fn state(coordinator: &Coordinator) -> String {
    let (waits, safe) = (waits(coordinator), coordinator.safe_to_stop());
    let (status, seen) = (coordinator.status(), coordinator.availability());
    format!("waits {waits}; safe to stop: {safe}; {status:?}; {seen:?}")
}

/// Writes until the process is killed or a write fails.
fn write(coordinator: &Coordinator, name: &str) {
    let mut session = coordinator.session();
    for n in 0.. {
        let path = format!("/{name}-{:x}-{n}", session.id().number());
        match session.create(&path, vec![7; 100], CreateMode::Persistent).wait() {
            Ok(_) => println!("@ack {path}"),
            Err(error) if error.is_session_lost() && coordinator.status().stopped.is_none() => {
                session = coordinator.session();
            }
            Err(_) => return,
        }
    }
}

fn start(dir: &Path, peers: &[String], address: &str) -> Process {
    let process = Process::start(WORKER, dir, peers, address);
    process.wait("started");
    process
}

fn start_all(dir: &Path, peers: &[String]) -> Vec<Process> {
    peers.iter().map(|address| start(dir, peers, address)).collect()
}

fn ready(process: &mut Process) {
    process.order("ready");
    process.wait("ready");
}

/// Repeats a question until this is the answer.
fn until(process: &mut Process, question: &str, answer: &str) {
    let begin = question.split(' ').next().unwrap();
    for _ in 0..6000 {
        process.order(question);
        if process.wait(begin) == format!("{begin} {answer}") {
            return;
        }
        // The process's answer may take a while; the total is limited to this.
        std::thread::park_timeout(Duration::from_millis(10));
    }
    process.order("state");
    let state = process.wait("state");
    panic!("{question} was never answered by {answer}: {state}");
}

/// At least `count` paths whose writes were acknowledged.
fn acks(process: &Process, count: usize) -> BTreeSet<String> {
    (0..count).map(|_| process.wait("ack ")["ack ".len()..].to_owned()).collect()
}

fn rest(process: &mut Process) -> BTreeSet<String> {
    let lines = process.kill();
    lines.iter().filter_map(|line| line.strip_prefix("ack ")).map(str::to_owned).collect()
}

fn has_all(process: &mut Process, acked: &BTreeSet<String>) {
    process.order("list");
    let mut there = BTreeSet::new();
    loop {
        let line = process.line();
        match line.strip_prefix("has ") {
            Some(path) => drop(there.insert(path.to_owned())),
            None if line == "listed" => break,
            None => {}
        }
    }
    let lost: Vec<&String> = acked.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

#[test]
fn one_then_two_then_three_of_three_found_one_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut first = start(dir.path(), &peers, &peers[0]);
    first.order("waits");
    let waits = first.wait("waits");
    assert!(waits.contains(&peers[1]) && waits.contains(&peers[2]), "{waits}");
    let mut second = start(dir.path(), &peers, &peers[1]);
    second.order("waits");
    assert!(second.wait("waits").contains(&peers[2]));
    let mut third = start(dir.path(), &peers, &peers[2]);
    for process in [&mut first, &mut second, &mut third] {
        ready(process);
    }
    // All at once, and in another order.
    for process in [&mut first, &mut second, &mut third] {
        process.kill();
    }
    let mut again = start_all(dir.path(), &[peers[2].clone(), peers[0].clone(), peers[1].clone()]);
    again.iter_mut().for_each(ready);
}

#[test]
fn a_list_of_one_grows_by_instances_that_know_one_address() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut first = start(dir.path(), &peers[..1], &peers[0]);
    ready(&mut first);
    first.order("write");
    let acked = acks(&first, 10);
    let mut second = start(dir.path(), &peers[..1], &peers[1]);
    ready(&mut second);
    let mut third = start(dir.path(), &peers[1..2], &peers[2]);
    ready(&mut third);
    let mut all = peers.clone();
    all.sort();
    until(&mut third, "members", &all.join(","));
    // Until the change is committed, the former only voter is needed for the quorum.
    until(&mut first, "safe", "true");
    let mut acked = acked;
    acked.extend(rest(&mut first));
    has_all(&mut third, &acked);
}

/// Two of three are killed and their disks wiped, and all three come back in every order.
#[test]
fn wiped_instances_come_back_as_new_ones_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut processes = start_all(dir.path(), &peers);
    processes.iter_mut().for_each(ready);
    processes[0].order("write");
    let mut acked = acks(&processes[0], 50);
    for victim in [1, 2] {
        processes[victim].kill();
        std::fs::remove_dir_all(dir.path().join(format!("data-{}", peers[victim]))).unwrap();
        processes[victim] = start(dir.path(), &peers, &peers[victim]);
        ready(&mut processes[victim]);
        let mut all = peers.clone();
        all.sort();
        // It votes again, so the next one may be wiped.
        until(&mut processes[0], "members", &all.join(","));
        until(&mut processes[0], "safe", "true");
    }
    acked.extend(acks(&processes[0], 10));
    acked.extend(rest(&mut processes[0]));
    has_all(&mut processes[2], &acked);
}

/// Each instance in turn is stopped, loses its disk, and is started at its address. The next one follows as
/// soon as this one is ready; a rolling update waits for no more than that.
fn roll_with_empty_disks(count: usize, kill: bool) {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(count);
    let mut processes = start_all(dir.path(), &peers);
    processes.iter_mut().for_each(ready);
    let mut acked = BTreeSet::new();
    for place in 0..count {
        let writer = (place + 1) % count;
        processes[writer].order("write");
        acked.extend(acks(&processes[writer], 10));
        if !kill {
            processes[place].order("close");
            processes[place].wait("closed");
        }
        acked.extend(rest(&mut processes[place]));
        std::fs::remove_dir_all(dir.path().join(format!("data-{}", peers[place]))).unwrap();
        processes[place] = start(dir.path(), &peers, &peers[place]);
        until(&mut processes[place], "probe", "true");
    }
    processes[0].order("write");
    acked.extend(acks(&processes[0], 10));
    acked.extend(rest(&mut processes[0]));
    has_all(&mut processes[1], &acked);
}

#[test]
fn three_rolled_by_readiness_with_empty_disks_lose_nothing() {
    roll_with_empty_disks(3, false);
}

#[test]
fn five_killed_in_turn_by_readiness_with_empty_disks_lose_nothing() {
    roll_with_empty_disks(5, true);
}

/// With one instance wiped and another one down, the third must not be taken for a first start.
#[test]
fn a_wiped_instance_and_a_blank_one_found_nothing_against_an_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let mut processes = start_all(dir.path(), &peers);
    processes.iter_mut().for_each(ready);
    processes[0].order("write");
    let mut acked = acks(&processes[0], 10);
    acked.extend(rest(&mut processes[0]));
    processes.iter_mut().for_each(|process| drop(process.kill()));
    for address in &peers[1..] {
        std::fs::remove_dir_all(dir.path().join(format!("data-{address}"))).unwrap();
    }
    // The blank instances alone found nothing, since the third might belong to a cluster.
    let mut second = start(dir.path(), &peers, &peers[1]);
    let third = start(dir.path(), &peers, &peers[2]);
    for _ in 0..20 {
        second.order("waits");
        let waits = second.wait("waits");
        assert!(waits.contains(&peers[0]), "{waits}");
    }
    // The third does. It lacks a majority, and no second cluster was founded.
    let mut first = start(dir.path(), &peers, &peers[0]);
    for _ in 0..20 {
        first.order("waits");
        assert!(!first.wait("waits").contains("for nothing"));
    }
    drop(third);
}

/// Each instance is closed cleanly and started again, while another one writes.
#[test]
fn a_rolling_restart_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(5);
    let mut processes = start_all(dir.path(), &peers);
    processes.iter_mut().for_each(ready);
    let mut acked = BTreeSet::new();
    for place in 0..5 {
        let writer = (place + 1) % 5;
        processes[writer].order("write");
        acked.extend(acks(&processes[writer], 5));
        until(&mut processes[place], "safe", "true");
        processes[place].order("close");
        processes[place].wait("closed");
        acked.extend(rest(&mut processes[place]));
        acked.extend(acks(&processes[writer], 20));
        processes[place] = start(dir.path(), &peers, &peers[place]);
        ready(&mut processes[place]);
        acked.extend(acks(&processes[writer], 5));
    }
    for process in &mut processes[1..] {
        acked.extend(rest(process));
    }
    processes.truncate(1);
    let mut others: Vec<Process> =
        peers[1..].iter().map(|address| start(dir.path(), &peers, address)).collect();
    ready(&mut others[0]);
    has_all(&mut others[0], &acked);
}

/// While an instance is closed, threads of the application go on and open a new session whenever the last one
/// is over. A leader used to wait for its sessions to end before it handed over leadership: it left without
/// handing over, and no write succeeded until the election was over.
#[test]
fn a_leader_that_is_closed_while_threads_go_on_hands_over() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let join = |address: &String| node(address).data_dir(dir.path().join(address)).join(&peers);
    let members: Vec<Coordinator> =
        peers.iter().map(|address| join(address).wait().unwrap()).collect();
    members.iter().for_each(|member| member.wait_ready(PATIENCE).wait().unwrap());
    let leads = |member: &Coordinator| member.status().is_leader;
    let leader = loop {
        match members.iter().position(leads) {
            Some(leader) => break leader,
            None => std::thread::yield_now(),
        }
    };
    let (acked, acks) = crossbeam_channel::unbounded();
    let done = AtomicBool::new(false);
    let write = |place: usize, acked: Sender<usize>| {
        while !done.load(Ordering::SeqCst) && members[place].status().stopped.is_none() {
            let path = format!("/{place}");
            match members[place].session().create_or_set(&path, b"", CreateMode::Persistent).wait()
            {
                Ok(_) => acked.send(place).unwrap(),
                Err(error) => assert!(place == leader, "a write of another one failed: {error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for place in 0..3 {
            let (write, acked) = (&write, acked.clone());
            scope.spawn(move || write(place, acked));
        }
        let mut writing = BTreeSet::new();
        while writing.len() < 3 {
            writing.insert(acks.recv_timeout(PATIENCE).unwrap());
        }
        members[leader].close().wait().unwrap();
        let led = members.iter().any(leads);
        done.store(true, Ordering::SeqCst);
        assert!(led, "no leader: the former one has not handed over");
    });
}

/// All instances are closed at once, as when a whole deployment is stopped. Each closing leader handed over to
/// an instance that was closing too, every few milliseconds and a hundred times in a row, so no leader stayed
/// for long enough to close the sessions.
#[test]
fn instances_that_are_closed_at_once_keep_a_leader_until_their_sessions_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let join = || -> Vec<Coordinator> {
        let join = |address: &String| node(address).data_dir(dir.path().join(address)).join(&peers);
        let members: Vec<Coordinator> = peers.iter().map(|of| join(of).wait().unwrap()).collect();
        members.iter().for_each(|member| member.wait_ready(PATIENCE).wait().unwrap());
        members
    };
    let term =
        |members: &[Coordinator]| members.iter().filter_map(|of| of.status().term).max().unwrap();
    let members = join();
    // Each has many sessions to close: one that has few is gone before another one begins.
    let mut sessions = Vec::new();
    for (place, member) in members.iter().enumerate() {
        for number in 0..100 {
            let session = member.open_session_with(Duration::from_secs(30)).unwrap();
            let path = format!("/{place}-{number}");
            session.create(&path, b"", CreateMode::Ephemeral).wait().unwrap();
            sessions.push(session);
        }
    }
    let before = term(&members);
    let at_once = Barrier::new(members.len());
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(|| {
                at_once.wait();
                member.close().wait().unwrap();
            });
        }
    });
    drop(sessions);
    let elections = term(&members) - before;
    assert!(elections <= 3, "{elections} elections for three instances");
    drop(members);
    let members = join();
    // The open sessions are the new instances' own.
    let left = members[0].session();
    left.sync().wait().unwrap();
    let left = left.children("/").wait().unwrap();
    assert_eq!(left, ["zookeeper"], "sessions were left open");
}

/// Each instance leaves, and one with a new address and a new disk takes its place, while others write.
#[test]
fn a_rolling_replacement_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let all = addresses(10);
    let mut processes = start_all(dir.path(), &all[..5]);
    processes.iter_mut().for_each(ready);
    let mut acked = BTreeSet::new();
    for place in 0..5 {
        // A list of current peers contains some that are still running.
        let mut new = start(dir.path(), &all[place..place + 5], &all[place + 5]);
        ready(&mut new);
        new.order("write");
        acked.extend(acks(&new, 10));
        processes.push(new);
        until(&mut processes[place], "safe", "true");
        processes[place].order("leave");
        processes[place].wait("left");
        acked.extend(rest(&mut processes[place]));
        acked.extend(acks(&processes[place + 5], 10));
    }
    let mut voters = all[5..].to_vec();
    voters.sort();
    until(&mut processes[9], "members", &voters.join(","));
    for process in &mut processes[5..9] {
        // Its writes have gone on until now.
        process.signal("STOP");
        process.signal("CONT");
    }
    acked.extend(acks(&processes[5], 1));
    has_all(&mut processes[9], &acked);
}

/// All instances come back at other addresses, as after a restart of a whole fleet.
#[test]
fn instances_that_all_moved_find_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (addresses(3), addresses(3));
    let mut processes = start_all(dir.path(), &old);
    processes.iter_mut().for_each(ready);
    processes[0].order("write");
    let mut acked = acks(&processes[0], 10);
    acked.extend(rest(&mut processes[0]));
    processes.iter_mut().for_each(|process| drop(process.kill()));
    for (old, new) in old.iter().zip(&new) {
        let data = |address: &String| dir.path().join(format!("data-{address}"));
        std::fs::rename(data(old), data(new)).unwrap();
    }
    let mut moved = start_all(dir.path(), &new);
    moved.iter_mut().for_each(ready);
    let mut voters = new.clone();
    voters.sort();
    until(&mut moved[1], "members", &voters.join(","));
    has_all(&mut moved[2], &acked);
}

/// Two processes run with copies of one directory: the second one is refused, and the first one goes on.
#[test]
fn a_copied_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(4);
    let mut processes = start_all(dir.path(), &peers[..3]);
    processes.iter_mut().for_each(ready);
    processes[2].order("close");
    processes[2].wait("closed");
    let data = |address: &String| dir.path().join(format!("data-{address}"));
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([data(&peers[2]), data(&peers[3])])
        .status();
    assert!(copied.unwrap().success());
    processes[2] = start(dir.path(), &peers[..3], &peers[2]);
    ready(&mut processes[2]);
    let mut copy = start(dir.path(), &peers[..3], &peers[3]);
    let refused = loop {
        copy.order("waits");
        let waits = copy.wait("waits");
        assert!(!waits.contains("for nothing"), "it is a member");
        if waits.contains("copies of one data directory") {
            break waits;
        }
    };
    assert!(refused.contains("refuse"), "{refused}");
    // The first process still works.
    processes[2].order("write");
    let acked = acks(&processes[2], 20);
    copy.kill();
    has_all(&mut processes[0], &acked);
    let mut voters = peers[..3].to_vec();
    voters.sort();
    until(&mut processes[1], "members", &voters.join(","));
}

/// One member's directory is a copy of another one's, as after a volume was mounted at the wrong host. The two others
/// lost their leader for as long as its process lived: one of them sent to the copy and received from the member.
#[test]
fn a_copy_at_the_address_of_another_member_takes_no_leader() {
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses(3);
    let data = |address: &String| dir.path().join(format!("data-{address}"));
    let mut processes = start_all(dir.path(), &peers);
    processes.iter_mut().for_each(ready);
    for order in [[1, 2, 0], [0, 1, 2]] {
        processes.iter_mut().for_each(|process| drop(process.kill()));
        std::fs::remove_dir_all(data(&peers[0])).unwrap();
        let copied = std::process::Command::new("cp")
            .arg("-r")
            .args([data(&peers[1]), data(&peers[0])])
            .status();
        assert!(copied.unwrap().success());
        for place in order {
            processes[place] = start(dir.path(), &peers, &peers[place]);
            // It runs before the next one starts.
            processes[place].order("waits");
            processes[place].wait("waits");
        }
        ready(&mut processes[1]);
        ready(&mut processes[2]);
        loop {
            processes[0].order("waits");
            let waits = processes[0].wait("waits");
            if waits.contains("two processes run as node") {
                assert!(waits.contains(&peers[0]) && waits.contains(&peers[1]), "{waits}");
                break;
            }
        }
        processes[1].order("write");
        let acked = acks(&processes[1], 20);
        has_all(&mut processes[2], &acked);
    }
}
