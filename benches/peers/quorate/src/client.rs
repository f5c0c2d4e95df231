//! Tells the members what to do and when, and prints a line of figures for each workload.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::figures::{Latencies, Line};
use crate::now;
use crate::options::Options;

/// The control connection to a member.
struct Member {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Member {
    fn connect(address: &str) -> Member {
        let writer = TcpStream::connect(address).unwrap();
        writer.set_nodelay(true).unwrap();
        Member { reader: BufReader::new(writer.try_clone().unwrap()), writer }
    }

    fn send(&mut self, order: &str) {
        self.writer.write_all(format!("{order}\n").as_bytes()).unwrap();
    }

    fn receive(&mut self) -> String {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).unwrap();
        assert!(read > 0, "the member ended");
        line.trim_end_matches('\n').to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.send(order);
        self.receive()
    }
}

pub(crate) fn main(args: &[String]) {
    let [flag, servers, work @ ..] = args else { panic!("--servers A,B,C WORKLOAD...") };
    assert_eq!(flag, "--servers");
    let servers: Vec<&str> = servers.split(',').collect();
    for workload in work {
        let mut words = workload.split(':');
        let name = words.next().unwrap();
        let options = Options::parse(words);
        let row = options.text("row", name);
        if std::panic::catch_unwind(|| run(name, row, &options, &servers)).is_err() {
            let mut line = Line::new(row);
            line.text("failed", "panic");
            line.print();
        }
    }
}

fn run(name: &str, row: &str, o: &Options, servers: &[&str]) {
    let mut members: Vec<Member> = servers.iter().map(|address| Member::connect(address)).collect();
    match name {
        "init" => drop(members[0].ask("init")),
        "fill" => drop(members[0].ask(&format!("fill {}", o.line()))),
        "client" => without_replica(row, o, &mut members[0]),
        "fanout" => fan_out(row, o, &mut members),
        "watch" => watch(row, o, &mut members),
        "failover" => failover(row, o, &mut members),
        _ => measure(name, row, o, &mut members),
    }
}

fn sleep_until(at: u64) {
    std::thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}

/// The callers of each member, of `clients` in all: `on` the leader, a follower, or spread.
fn placed(o: &Options, default: u64, members: usize) -> Vec<Vec<String>> {
    let mut ids = vec![Vec::new(); members];
    for id in 0..o.number("clients", default) {
        let at = match o.text("on", "spread") {
            "leader" => 0,
            "follower" => 1,
            _ => id as usize % members,
        };
        ids[at].push(id.to_string());
    }
    ids
}

/// Set at the leader, event at the last member.
fn watch(row: &str, o: &Options, members: &mut [Member]) {
    let rounds = o.number("rounds", 1000);
    let [leader, .., watcher] = members else { panic!("two members at least") };
    watcher.ask(&format!("watch rounds={rounds}"));
    let mut latencies = Latencies::default();
    for round in 0..rounds {
        let begun: u64 = leader.ask("set").parse().unwrap();
        let seen: u64 = watcher.receive().parse().unwrap();
        // The first third warms up.
        if round >= rounds / 3 {
            latencies.add(seen - begun);
        }
    }
    let mut line = Line::new(row);
    line.latencies("", &latencies);
    line.print();
}

/// A set at the leader, and the last of the events at all sessions of all members.
fn fan_out(row: &str, o: &Options, members: &mut [Member]) {
    let (rounds, sessions) = (o.number("rounds", 100), o.number("sessions", 1000));
    // The order to set has a connection of its own.
    let leader = members[0].writer.peer_addr().unwrap().to_string();
    let mut setter = Member::connect(&leader);
    let count = members.len() as u64;
    for (at, member) in (0..).zip(members.iter_mut()) {
        let sessions = sessions / count + u64::from(at < sessions % count);
        member.ask(&format!("fanout rounds={rounds} sessions={sessions}"));
    }
    let mut latencies = Latencies::default();
    for round in 0..rounds {
        let begun: u64 = setter.ask("set").parse().unwrap();
        let ends = members.iter_mut().map(|member| member.receive().parse::<u64>().unwrap());
        let last = ends.max().expect("there are members");
        if round >= rounds / 3 {
            latencies.add(last - begun);
        }
    }
    let mut line = Line::new(row);
    line.latencies("", &latencies);
    line.print();
}

/// Gets of an instance without a replica, which is this process.
fn without_replica(row: &str, o: &Options, member: &mut Member) {
    let peers = member.ask("peers");
    let peers: Vec<&str> = peers.split(',').collect();
    let coordinator = quorate::Coordinator::builder().client().join(&peers).wait().unwrap();
    let session = coordinator.session();
    let t0 = now() + o.seconds("warm", 2.0);
    let t1 = t0 + o.seconds("secs", 6.0);
    let mut latencies = Latencies::default();
    for sequence in 0.. {
        let begun = now();
        if begun >= t1 {
            break;
        }
        let done = crate::member::get(o, &session, &crate::key_path(sequence)).unwrap();
        if begun >= t0 {
            latencies.add(done - begun);
        }
    }
    let mut line = Line::new(row);
    line.rate(latencies.count(), (t1 - t0) as f64 / 1e9);
    line.latencies("", &latencies);
    line.print();
}

fn measure(name: &str, row: &str, o: &Options, members: &mut [Member]) {
    let path = o.text("path", &format!("/bench/lock/{row}")).to_owned();
    if name == "lock" {
        members[0].ask(&format!("create path={path}"));
    }
    let t0 = now() + o.seconds("warm", 2.0);
    let t1 = t0 + o.seconds("secs", 6.0);
    let ids = placed(o, 1, members.len());
    let mut busy = Vec::new();
    for (member, ids) in members.iter_mut().zip(ids).filter(|(_, ids)| !ids.is_empty()) {
        let (ids, options) = (ids.join(","), o.line());
        member.send(&format!("work what={name} t0={t0} t1={t1} ids={ids} path={path} {options}"));
        busy.push(member);
    }
    let (mut latencies, mut errors, mut first_error) = (Latencies::default(), 0, String::new());
    let (mut holds, mut gap): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    for member in busy {
        let answer = member.receive();
        let [measured, failed, held, paused, error] = answer.split('|').collect::<Vec<_>>()[..]
        else {
            panic!("not an answer: {answer}")
        };
        latencies.merge(measured);
        gap = gap.max(paused.parse::<u64>().unwrap());
        errors += failed.parse::<u64>().unwrap();
        holds.extend(held.split_whitespace().map(|pair| {
            let (got, released) = pair.split_once(':').unwrap();
            (got.parse::<u64>().unwrap(), released.parse::<u64>().unwrap())
        }));
        if first_error.is_empty() {
            first_error = error.to_owned();
        }
    }
    let mut line = Line::new(row);
    line.rate(latencies.count(), (t1 - t0) as f64 / 1e9);
    line.latencies("", &latencies);
    if name == "lock" {
        line.latencies("handoff_", &handoffs(holds, t0));
    }
    if gap > 0 {
        line.number("gap_ms", gap as f64 / 1e6);
    }
    line.number("errors", errors as f64);
    if errors > 0 {
        line.text("first_error", &first_error);
    }
    line.print();
}

/// From just before a release to the next holder's acquisition, whichever processes they are in.
fn handoffs(mut holds: Vec<(u64, u64)>, from: u64) -> Latencies {
    holds.sort_unstable();
    let mut latencies = Latencies::default();
    for pair in holds.windows(2) {
        let ((_, released), (got, _)) = (pair[0], pair[1]);
        assert!(got >= released, "two holders at once");
        if got >= from {
            latencies.add(got - released);
        }
    }
    latencies
}

/// Writers at all members. While they write, the leader is signalled (it is the process `pid`) or
/// told to close.
fn failover(row: &str, o: &Options, members: &mut [Member]) {
    let signal_at = now() + o.seconds("before", 3.0);
    let until = signal_at + o.seconds("after", 8.0);
    let ids = placed(o, 8, members.len());
    for (member, ids) in members.iter_mut().zip(ids) {
        member.send(&format!("writers ids={} until={until}", ids.join(",")));
    }
    sleep_until(signal_at);
    let pid = Pid::from_raw(o.number("pid", 0) as i32).expect("the leader's process id");
    match o.text("signal", "KILL") {
        "KILL" => kill_process(pid, Signal::KILL).unwrap(),
        "STOP" => kill_process(pid, Signal::STOP).unwrap(),
        // A planned end: the member hands the lead over. A new connection has a thread of its own.
        "CLOSE" => {
            let leader = members[0].writer.peer_addr().unwrap().to_string();
            Member::connect(&leader).send("close");
        }
        signal => panic!("no signal {signal}"),
    }
    // The writers inside the victim end with it.
    let mut written: Vec<u64> = Vec::new();
    for member in &mut members[1..] {
        written.extend(member.receive().split_whitespace().map(|at| at.parse::<u64>().unwrap()));
    }
    // Should nobody write again, the gap lasts to the end.
    written.push(until / 1000);
    written.sort_unstable();
    let signalled = signal_at / 1000;
    let after = written.windows(2).filter(|pair| pair[1] + 100_000 >= signalled);
    let gap = after.map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let mut line = Line::new(row);
    line.number("gap_ms", gap as f64 / 1e3);
    line.print();
}
