//! ZooKeeper's protocol at a client's full speed: against a gateway, or against ZooKeeper itself.
//!
//! `cargo bench --features gateway --bench gateway` measures three members with a gateway each, in this process.
//! `benches/peers/gateway.py` starts three processes of `quorate serve` and three of ZooKeeper, and has this
//! program measure both in turn: with `--connect host:port,host:port,...` it starts nothing itself.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock, and has threads")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use quorate::Coordinator;
use quorate::gateway::Gateway;

const CONNECTIONS: usize = 64;
const THREADS: usize = 4;
/// Requests outstanding on each connection.
const OUTSTANDING: usize = 16;
const DATA: [u8; 100] = [7; 100];

const CREATE: i32 = 1;
const GET: i32 = 4;
const SET: i32 = 5;
const PING: i32 = 11;

/// One session. It writes requests as given, and reads only the error of each reply.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

fn put_text(to: &mut Vec<u8>, text: &[u8]) {
    to.extend((text.len() as i32).to_be_bytes());
    to.extend(text);
}

fn request(op: i32, path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes());
    body.extend(op.to_be_bytes());
    if op != PING {
        put_text(&mut body, path.as_bytes());
    }
    match op {
        CREATE => {
            put_text(&mut body, &DATA);
            body.extend(1_i32.to_be_bytes());
            body.extend(31_i32.to_be_bytes());
            put_text(&mut body, b"world");
            put_text(&mut body, b"anyone");
            body.extend(0_i32.to_be_bytes());
        }
        GET => body.push(0),
        SET => {
            put_text(&mut body, &DATA);
            body.extend((-1_i32).to_be_bytes());
        }
        _ => {}
    }
    let mut frame = (body.len() as i32).to_be_bytes().to_vec();
    frame.append(&mut body);
    frame
}

impl Connection {
    /// Returns `None` if there is no leader yet.
    fn open(address: &str) -> Option<Connection> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        let mut hello = vec![0; 12];
        hello.extend(30_000_i32.to_be_bytes());
        hello.extend([0; 8]);
        put_text(&mut hello, &[0; 16]);
        hello.push(0);
        let mut frame = (hello.len() as i32).to_be_bytes().to_vec();
        frame.append(&mut hello);
        stream.write_all(&frame).ok()?;
        let mut connection = Connection { stream, buffer: Vec::new() };
        connection.frame().map(|_| connection)
    }

    fn frame(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = self.buffer.first_chunk::<4>() {
                let end = 4 + u32::from_be_bytes(*length) as usize;
                if self.buffer.len() >= end {
                    return Some(self.buffer.drain(..end).skip(4).collect());
                }
            }
            let mut part = [0; 16 << 10];
            match self.stream.read(&mut part) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.buffer.extend(&part[..read]),
            }
        }
    }

    fn replies(&mut self, count: usize) {
        for _ in 0..count {
            let frame = self.frame().expect("the server answers");
            let error = frame[12..16].first_chunk().map(|error| i32::from_be_bytes(*error));
            assert!(matches!(error, Some(0 | -110)), "a request failed: {error:?}");
        }
    }
}

/// Opens a connection as soon as there is a leader.
fn connect(address: &str) -> Connection {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(connection) = Connection::open(address) {
            return connection;
        }
        assert!(Instant::now() < until, "no session at {address}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn throughput(name: &str, addresses: &[String], op: i32, time: Duration) {
    let start = Instant::now();
    let workers: Vec<_> = (0..THREADS)
        .map(|worker| {
            let addresses = addresses.to_vec();
            thread::spawn(move || {
                let of = |place: usize| worker * CONNECTIONS / THREADS + place;
                let mut all: Vec<_> = (0..CONNECTIONS / THREADS)
                    .map(|place| (connect(&addresses[of(place) % addresses.len()]), of(place)))
                    .collect();
                let mut done = 0;
                let began = Instant::now();
                while began.elapsed() < time {
                    for (connection, place) in &mut all {
                        let batch = request(op, &format!("/bench{place}")).repeat(OUTSTANDING);
                        connection.stream.write_all(&batch).expect("the server reads");
                    }
                    for (connection, _) in &mut all {
                        connection.replies(OUTSTANDING);
                        done += OUTSTANDING;
                    }
                }
                done as f64 / began.elapsed().as_secs_f64()
            })
        })
        .collect();
    let rates = workers.into_iter().map(|worker| worker.join().expect("no worker panics"));
    let rate: f64 = rates.sum();
    println!("{name:52} {rate:>12.0} a second, {:.1?}", start.elapsed());
}

fn latency(name: &str, address: &str, op: i32, count: usize) {
    let mut connection = connect(address);
    let frame = request(op, "/bench0");
    let mut each: Vec<Duration> = (0..count)
        .map(|_| {
            let start = Instant::now();
            connection.stream.write_all(&frame).expect("the server reads");
            connection.replies(1);
            start.elapsed()
        })
        .collect();
    each.sort_unstable();
    let at = |share: f64| each[((each.len() - 1) as f64 * share) as usize];
    println!("{name:52} p50 {:>9.1?}, p99 {:>9.1?}", at(0.5), at(0.99));
}

/// Keeps sessions open that send only pings.
fn idle(addresses: &[String], count: usize, time: Duration) {
    let mut all: Vec<_> =
        (0..count).map(|place| connect(&addresses[place % addresses.len()])).collect();
    println!("{count} idle sessions");
    let ping = request(PING, "");
    let start = Instant::now();
    while start.elapsed() < time {
        // Each sends a ping every ten seconds, a third of its timeout.
        let begun = Instant::now();
        for (place, connection) in all.iter_mut().enumerate() {
            connection.stream.write_all(&ping).expect("the server reads");
            connection.replies(1);
            let due = Duration::from_secs(10).mul_f64(place as f64 / count as f64);
            thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).cloned()
    };
    // Without `--bench`, as `cargo test` runs it, this only checks that it works.
    let short = !arguments.iter().any(|argument| argument == "--bench");
    let time = Duration::from_millis(if short { 50 } else { 4000 });
    let mut own = Vec::new();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let addresses: Vec<String> = match value("--connect") {
        Some(addresses) => addresses.split(',').map(str::to_owned).collect(),
        None => {
            let listeners: Vec<_> = (0..3)
                .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"))
                .collect();
            let peers: Vec<String> = listeners
                .iter()
                .map(|listener| listener.local_addr().expect("it is bound").to_string())
                .collect();
            drop(listeners);
            for peer in &peers {
                let builder = Coordinator::builder().advertise(peer);
                let member = builder.data_dir(folder.path().join(peer.replace(':', "-")));
                let member = member.join(&peers).wait().expect("the members start");
                let gateway = Gateway::serve(&member, "127.0.0.1:0").expect("a port");
                own.push((gateway, member));
            }
            own.iter().map(|(gateway, _)| gateway.address().to_string()).collect()
        }
    };
    if let Some(count) = value("--idle") {
        return idle(&addresses, count.parse().expect("a number"), time * 10);
    }
    let mut first = connect(&addresses[0]);
    for place in 0..CONNECTIONS {
        first.stream.write_all(&request(CREATE, &format!("/bench{place}"))).expect("it reads");
        first.replies(1);
    }
    // After a write at a member, that member has applied the creates above.
    for address in &addresses {
        latency(&format!("a warm-up set at {address}"), address, SET, 10);
    }
    let count = if short { 10 } else { 3000 };
    latency("set of 100 B, one at a time", &addresses[0], SET, count);
    latency("get of 100 B, one at a time", &addresses[0], GET, count);
    throughput("pipelined sets of 100 B, 64 connections", &addresses, SET, time);
    throughput("pipelined gets of 100 B, 64 connections", &addresses, GET, time);
}
