//! One member: a [`Coordinator`], and a control port at which it takes orders.
//!
//! An order is a line `NAME KEY=VALUE ...`, its answer a line too.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use quorate::recipes::{Lock, Queue};
use quorate::{Coordinator, CreateMode, Pending, Session, Stat, WatchMode};

use crate::figures::Latencies;
use crate::options::Options;
use crate::{KEYS, LARGE_KEYS, child_path, key_path, now};

pub(crate) fn main(args: &[String]) {
    let flag = |name: &str| {
        let at = args.iter().position(|arg| arg == name).expect(name);
        args[at + 1].clone()
    };
    let peers: Vec<String> = flag("--peers").split(',').map(str::to_owned).collect();
    let builder = Coordinator::builder().advertise(flag("--me")).data_dir(flag("--dir"));
    let coordinator = builder.join(&peers).wait().unwrap();
    let port: u16 = flag("--control").parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for stream in listener.incoming() {
        let (stream, coordinator) = (stream.unwrap(), coordinator.clone());
        std::thread::spawn(move || serve(stream, &coordinator));
    }
}

fn serve(mut stream: TcpStream, coordinator: &Coordinator) {
    stream.set_nodelay(true).unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    for line in reader.lines() {
        let Ok(line) = line else { return };
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        let answer = order(&name, &Options::parse(words), coordinator, &mut stream);
        if stream.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
        if name == "close" {
            std::process::exit(0);
        }
    }
}

fn order(name: &str, o: &Options, c: &Coordinator, stream: &mut TcpStream) -> String {
    let session = c.session();
    match name {
        "mode" if !c.is_ready() => "none".to_owned(),
        "mode" => if c.status().is_leader { "leader" } else { "follower" }.to_owned(),
        "init" => {
            for path in ["/bench", "/bench/k", "/bench/lock"] {
                let _ = session.create(path, b"", CreateMode::Persistent).wait();
            }
            for key in 0..KEYS {
                session.create(&key_path(key), [b'x'; 100], CreateMode::Persistent).wait().unwrap();
            }
            String::new()
        }
        "create" => {
            session.create(o.text("path", ""), b"", CreateMode::Persistent).wait().unwrap();
            String::new()
        }
        "peers" => {
            c.status().members.iter().map(|m| m.address.clone()).collect::<Vec<_>>().join(",")
        }
        "fill" => {
            fill(&session, o.text("path", ""), o.number("keys", 1));
            String::new()
        }
        "set" => {
            let begun = now();
            session.set(&key_path(0), [b'x'; 100]).wait().unwrap();
            begun.to_string()
        }
        "watch" => {
            let watch = session.watch(&key_path(0), WatchMode::Persistent).wait().unwrap();
            stream.write_all(b"ready\n").unwrap();
            for _ in 0..o.number("rounds", 1) {
                watch.recv().wait().unwrap().expect("the session lives");
                let at = now();
                stream.write_all(format!("{at}\n").as_bytes()).unwrap();
            }
            "end".to_owned()
        }
        "fanout" => {
            fan_out(o, c, stream);
            "end".to_owned()
        }
        "work" => work(o, c),
        "writers" => writers(o, c),
        "close" => {
            c.close().wait().unwrap();
            "closed".to_owned()
        }
        _ => panic!("no order {name}"),
    }
}

/// Creates this parent and so many children of 100 B, many at a time.
fn fill(session: &Session, parent: &str, keys: u64) {
    session.create(parent, b"", CreateMode::Persistent).wait().unwrap();
    let calls = &session;
    let create = |key| calls.create(&child_path(parent, key), [b'x'; 100], CreateMode::Persistent);
    for part in (0..keys).collect::<Vec<_>>().chunks(1000) {
        for creating in part.iter().map(|key| create(*key)).collect::<Vec<_>>() {
            creating.wait().unwrap();
        }
    }
}

/// So many sessions watch one znode. Says when the last of them has had each event.
fn fan_out(o: &Options, c: &Coordinator, stream: &mut TcpStream) {
    let sessions: Vec<_> =
        (0..o.number("sessions", 1)).map(|_| c.open_session().unwrap()).collect();
    let watch = |own: &Session| own.watch(&key_path(0), WatchMode::Persistent);
    let watches: Vec<_> = sessions.iter().map(|own| watch(own).wait().unwrap()).collect();
    stream.write_all(b"ready\n").unwrap();
    for _ in 0..o.number("rounds", 1) {
        for watch in &watches {
            watch.recv().wait().unwrap().expect("the session lives");
        }
        let at = now();
        stream.write_all(format!("{at}\n").as_bytes()).unwrap();
    }
}

/// Runs one thread for each of the callers `ids`, and returns what they return.
fn callers<T: Send>(o: &Options, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let run = &run;
    let ids: Vec<u64> = o.text("ids", "").split(',').map(|id| id.parse().unwrap()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ids.iter().map(|id| scope.spawn(move || run(*id))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What a caller has measured.
#[derive(Default)]
struct Measured {
    latencies: Latencies,
    errors: u64,
    first_error: String,
    /// When it got the lock, and when it began to release it.
    holds: Vec<(u64, u64)>,
    /// The longest time in which nothing was done, of pipelined calls.
    gap: u64,
}

impl Measured {
    fn failed(&mut self, error: &quorate::Error) {
        self.errors += 1;
        self.first_error = error.to_string().replace(['|', '\n'], " ");
    }
}

/// Calls until `t1`, and counts what is done after `t0`.
fn work(o: &Options, c: &Coordinator) -> String {
    let (mut all, mut holds) = (Measured::default(), Vec::new());
    for one in callers(o, |id| call(id, o, c)) {
        all.latencies.merge(&one.latencies.text());
        all.errors += one.errors;
        if all.first_error.is_empty() {
            all.first_error = one.first_error;
        }
        holds.extend(one.holds.iter().map(|(got, released)| format!("{got}:{released}")));
        all.gap = all.gap.max(one.gap);
    }
    let Measured { latencies, errors, gap, first_error, .. } = all;
    format!("{}|{errors}|{}|{gap}|{first_error}", latencies.text(), holds.join(" "))
}

fn call(id: u64, o: &Options, c: &Coordinator) -> Measured {
    let mut measured = Measured::default();
    let outstanding = o.number("out", 1) as usize;
    if outstanding > 1 {
        pipeline(id, o, &c.session(), outstanding, &mut measured);
        return measured;
    }
    let (t0, t1, what) = (o.number("t0", 0), o.number("t1", 0), o.text("what", ""));
    // A lock belongs to a session, so each contender has one of its own.
    let own = (what == "lock").then(|| c.open_session().unwrap());
    let lock = own.as_ref().map(|own| own.lock(o.text("path", "")).unwrap());
    let session = c.session();
    // The first caller sets a large value, which does not count.
    let large = o.number("beside", 0) as usize;
    let is_large = large > 0 && id == 0;
    let data = vec![b'x'; if is_large { large } else { o.number("size", 100) as usize }];
    let queue = Queue::new(&session, o.text("path", "/bench/queue")).unwrap();
    for sequence in 0.. {
        let begun = now();
        if begun >= t1 {
            break;
        }
        // A lock's latency ends when it is acquired, though its release belongs to the rate.
        let result = match (what, &lock) {
            ("set", _) => {
                let key = if is_large { sequence % LARGE_KEYS } else { id * 31 + sequence };
                session.set(&key_path(key), &data).wait().map(|_| now())
            }
            ("get", _) => get(o, &session, &key_path(id * 31 + sequence)),
            // Seven of ten are gets.
            ("mix", _) if sequence % 10 < 7 => get(o, &session, &key_path(id * 31 + sequence)),
            ("mix", _) => session.set(&key_path(id * 31 + sequence), &data).wait().map(|_| now()),
            ("list", _) => session.children(o.text("path", "")).wait().map(|_| now()),
            // Those with even numbers put, and the others take.
            ("queue", _) if id % 2 == 0 => queue.put(&data[..]).wait().map(|()| now()),
            ("queue", _) => {
                let item = queue.pop().timeout(Duration::from_secs(1));
                match item.wait() {
                    Err(quorate::Error::NotInTime { .. }) => Ok(0),
                    item => item.map(|_| now()),
                }
            }
            ("session", _) => open_and_close(c, &format!("/bench/lock/e{id}-{sequence}"), &data),
            ("lock", Some(lock)) => hold(lock, &mut measured.holds),
            _ => panic!("no workload {what}"),
        };
        let counts = !is_large && !(what == "queue" && id % 2 == 0);
        match result {
            Ok(at) if counts && at >= t0.max(begun) && at < t1 => {
                measured.latencies.add(at - begun)
            }
            Ok(_) => {}
            Err(error) => measured.failed(&error),
        }
    }
    measured
}

/// From the own replica; with `linear`, no older than the call.
pub(crate) fn get(o: &Options, session: &Session, path: &str) -> quorate::Result<u64> {
    if o.number("linear", 0) > 0 {
        session.sync().wait()?;
    }
    session.get(path).wait().map(|_| now())
}

fn open_and_close(c: &Coordinator, path: &str, data: &[u8]) -> quorate::Result<u64> {
    let session = c.open_session()?;
    session.create(path, data, CreateMode::Ephemeral).wait()?;
    session.close().wait()?;
    Ok(now())
}

fn hold(lock: &Lock, holds: &mut Vec<(u64, u64)>) -> quorate::Result<u64> {
    let guard = lock.acquire().wait()?;
    let got = now();
    holds.push((got, now()));
    guard.release().wait()?;
    Ok(got)
}

/// Keeps that many sets under way: waits for the oldest, takes what else is done, and fills up.
fn pipeline(id: u64, o: &Options, session: &Session, outstanding: usize, measured: &mut Measured) {
    let (t0, t1) = (o.number("t0", 0), o.number("t1", 0));
    let data = vec![b'x'; o.number("size", 100) as usize];
    let keys: Vec<String> = match o.text("path", "") {
        path if o.number("keys", 0) > 0 => {
            (0..o.number("keys", 0)).map(|key| child_path(path, key)).collect()
        }
        _ => (0..KEYS).map(key_path).collect(),
    };
    // A step through all of them that looks random: their number is not a multiple of it.
    let step = if keys.len() as u64 > KEYS { 61_803 } else { 1 };
    let mut last_done = 0;
    let calls = &session;
    let mut under_way: VecDeque<(u64, Pending<Stat>)> = VecDeque::new();
    let mut sequence = 0;
    loop {
        while under_way.len() < outstanding && now() < t1 {
            sequence += 1;
            let key = &keys[((id * 31 + sequence * step) % keys.len() as u64) as usize];
            under_way.push_back((now(), calls.set(key, &data)));
        }
        let Some((begun, oldest)) = under_way.pop_front() else { return };
        let mut ended = Some((begun, oldest.wait()));
        while let Some((begun, result)) = ended {
            let at = now();
            match result {
                Ok(_) if at >= t0 && at < t1 => {
                    measured.latencies.add(at - begun);
                    let gap = if last_done > 0 { at - last_done } else { 0 };
                    measured.gap = measured.gap.max(gap);
                    last_done = at;
                }
                Ok(_) => {}
                Err(error) => measured.failed(&error),
            }
            let next = under_way.front_mut();
            ended = next.and_then(|(begun, call)| Some((*begun, call.try_take()?)));
            if ended.is_some() {
                under_way.pop_front();
            }
        }
    }
}

/// Writes every few milliseconds until `until`. Returns when each write was done, in microseconds.
fn writers(o: &Options, c: &Coordinator) -> String {
    let until = o.number("until", 0);
    let lists = callers(o, |id| {
        let mut done = Vec::new();
        while now() < until {
            if c.session().set(&key_path(id), [b'x'; 100]).wait().is_ok() {
                done.push((now() / 1000).to_string());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        done.join(" ")
    });
    lists.join(" ")
}
