//! The cost of recipes, on a cluster of three over TCP with real disks, all on this machine.
//!
//! `cargo bench --bench recipes` prints, for each, the number per second, and the median and the 99th
//! percentile of the time that one takes. With `-- partitions`, it prints what a change of the members of 10,000
//! partitions costs, on a cluster in memory.

#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::net::TcpListener;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use quorate::recipes::{
    Counter, Partition, Partitions, Queue, RateLimiter, ReadWriteLock, Semaphore, Share,
};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session};

const TIME: Duration = Duration::from_secs(3);
const CONTENDERS: usize = 16;

fn main() {
    // `cargo test --benches` only sees whether this runs.
    let time = if std::env::args().any(|arg| arg == "--bench") { TIME } else { Duration::ZERO };
    if std::env::args().any(|arg| arg == "partitions") || time.is_zero() {
        let (partitions, members) = if time.is_zero() { (20, 4) } else { (10_000, 100) };
        shares(partitions, members);
        if !time.is_zero() {
            return;
        }
    }
    println!("{:44} {:>10} {:>10} {:>10}", "", "a second", "p50", "p99");
    let dir = tempfile::tempdir().unwrap();
    let members = start(dir.path());
    locks(&members, time);
    queues(&members, time);
    counters("an addition of 16 callers at one counter", &members, time);
    limits("a permit of 15 callers at one limit", &members, 1_000_000_000, time);
    // These wait for their permits.
    limits("the same, at most 10,000 a second", &members, 10_000, time);
}

/// What a change of the members costs: writes, and the time of all instances together, which are in this thread.
fn shares(partitions: usize, members: usize) {
    let cluster = Cluster::new(3);
    let join = |number: usize| {
        let session = cluster.node(number % 3).open_session().unwrap();
        let partitions = Partitions::new(&session, "/partitions", partitions).unwrap();
        (partitions.join(format!("10.0.0.{number}:8080")).wait().unwrap(), session, Vec::new())
    };
    let observer = cluster.node(0).open_session().unwrap();
    let measure = |what: &str, all: &mut Vec<Member>, change: &dyn Fn(&mut Vec<Member>)| {
        let (before, start) = (observer.sync().wait().unwrap(), Instant::now());
        change(all);
        settle(&cluster, all, partitions);
        let writes = observer.sync().wait().unwrap() - before;
        println!("{what:44} {writes:>6} writes {:>8.2} s", start.elapsed().as_secs_f64());
    };
    println!("{partitions} partitions, {members} members");
    let mut all = Vec::new();
    measure("all join", &mut all, &|all| all.extend((0..members).map(join)));
    measure("one more joins", &mut all, &|all| all.push(join(members)));
    measure("one is lost", &mut all, &|all| {
        let (_, session, _) = &all[members / 2];
        cluster.expire(session);
        all.remove(members / 2);
    });
    measure("one leaves", &mut all, &|all| {
        let (share, _, mut owned) = all.remove(members / 2);
        let mut leaving = pin!(share.leave());
        let mut task = Context::from_waker(Waker::noop());
        while leaving.as_mut().poll(&mut task).is_pending() {
            hand_over(&mut owned);
            all.iter_mut().for_each(turn);
            cluster.advance(Duration::from_millis(1));
        }
    });
}

type Member = (Share, Session, Vec<Partition>);

/// Takes what is there, and hands over what is asked for.
fn turn((share, _, owned): &mut Member) {
    loop {
        let taking = pin!(share.take());
        let Poll::Ready(taken) = taking.poll(&mut Context::from_waker(Waker::noop())) else {
            break;
        };
        owned.push(taken.unwrap());
    }
    hand_over(owned);
}

fn hand_over(owned: &mut Vec<Partition>) {
    for partition in owned.extract_if(.., |partition| partition.is_asked()) {
        let mut handing = Box::pin(partition.hand_over("17"));
        let _ = handing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// Until all partitions are owned, as evenly as may be.
fn settle(cluster: &Cluster, all: &mut [Member], partitions: usize) {
    let part = partitions / all.len();
    loop {
        all.iter_mut().for_each(turn);
        let counts: Vec<usize> = all.iter().map(|(_, _, owned)| owned.len()).collect();
        let even = counts.iter().all(|count| (part..=part + 1).contains(count));
        if even && counts.iter().sum::<usize>() == partitions {
            return;
        }
        cluster.advance(Duration::from_millis(1));
    }
}

/// Permits of one limit of so many a second. Their times are measured together for each
/// hundred: one is of the size of a look at the clock.
fn limits(name: &str, members: &[Coordinator], rate: u32, time: Duration) {
    const EACH: u32 = 100;
    let (path, per, start) = (format!("/limit-{rate}"), Duration::from_secs(1), Instant::now());
    let (done, hundreds) = channel();
    std::thread::scope(|scope| {
        for limiter in 0..members.len() {
            let session = members[limiter].session();
            let limiter = RateLimiter::new(&session, &path, rate, per).unwrap();
            for _ in 0..CONTENDERS / members.len() {
                let (limiter, done) = (limiter.clone(), done.clone());
                scope.spawn(move || {
                    let mut first = true;
                    while std::mem::take(&mut first) || start.elapsed() < time {
                        let begun = Instant::now();
                        for _ in 0..EACH {
                            limiter.acquire(1).wait().unwrap();
                        }
                        done.send(begun.elapsed() / EACH).unwrap();
                    }
                });
            }
        }
    });
    drop(done);
    let (took, each) = (start.elapsed(), hundreds.iter().collect::<Vec<_>>());
    let session = members[0].session();
    session.sync().wait().unwrap();
    let writes = session.exists(&path).wait().unwrap().map_or(0, |stat| stat.version);
    let permits = each.len() * EACH as usize;
    report(name, took / EACH, each);
    println!("{:44} {:>10.4}", "  writes for a thousand", writes as f64 * 1000.0 / permits as f64);
}

fn counters(name: &str, members: &[Coordinator], time: Duration) {
    let start = Instant::now();
    let (done, calls) = channel();
    std::thread::scope(|scope| {
        for at in 0..CONTENDERS {
            let session = members[at % members.len()].session();
            let (counter, done) = (Counter::new(&session, "/counter").unwrap(), done.clone());
            scope.spawn(move || {
                let mut first = true;
                while std::mem::take(&mut first) || start.elapsed() < time {
                    let begun = Instant::now();
                    counter.add(1).wait().unwrap();
                    done.send(begun.elapsed()).unwrap();
                }
            });
        }
    });
    drop(done);
    report(name, start.elapsed(), calls.iter().collect());
}

/// A put and a pop are two writes, which a set is one of, however long the queue is.
fn queues(members: &[Coordinator], time: Duration) {
    let session = members[0].session();
    session.create("/set", b"", CreateMode::Persistent).wait().unwrap();
    repeat("set", time, || {
        session.set("/set", b"some data").wait().unwrap();
    });
    for length in [100, 50_000] {
        let queue = Queue::new(&session, &format!("/queue-{length}")).unwrap();
        for _ in 0..length / 100 {
            queue.put_all(vec!["some data"; 100]).wait().unwrap();
        }
        repeat(&format!("put and pop, {length} items wait"), time, || {
            queue.put("some data").wait().unwrap();
            queue.pop().wait().unwrap();
        });
        // The two writes of which it consists, without a queue: the bound.
        let parent = format!("/plain-{length}");
        session.create(&parent, b"", CreateMode::Persistent).wait().unwrap();
        for hundred in 0..length / 100 {
            let multi = (0..100).fold(session.multi(), |multi, n| {
                multi.create(
                    &format!("{parent}/{hundred}-{n}"),
                    b"some data",
                    CreateMode::Persistent,
                )
            });
            multi.commit().wait().unwrap();
        }
        let path = format!("{parent}/one");
        repeat(&format!("create and delete, {length} siblings"), time, || {
            session.create(&path, b"some data", CreateMode::Persistent).wait().unwrap();
            session.delete(&path).wait().unwrap();
        });
    }
    for callers in [CONTENDERS, 2 * CONTENDERS] {
        let name = format!("a set of {callers} callers, each of its own znode");
        setters(&name, callers, members, time);
    }
    crowd("a pop of 16 consumers beside 16 producers", members, time);
}

/// As many callers as [`crowd`] or a counter has, for comparison.
fn setters(name: &str, callers: usize, members: &[Coordinator], time: Duration) {
    let start = Instant::now();
    let (done, sets) = channel();
    std::thread::scope(|scope| {
        for at in 0..callers {
            let (session, done) = (members[at % members.len()].session(), done.clone());
            scope.spawn(move || {
                let path = format!("/set-{callers}-{at}");
                session.create(&path, b"", CreateMode::Persistent).wait().unwrap();
                let mut first = true;
                while std::mem::take(&mut first) || start.elapsed() < time {
                    let begun = Instant::now();
                    session.set(&path, b"some data").wait().unwrap();
                    done.send(begun.elapsed()).unwrap();
                }
            });
        }
    });
    drop(done);
    report(name, start.elapsed(), sets.iter().collect());
}

/// Producers and consumers on all members. Each consumer goes on until nothing is left.
fn crowd(name: &str, members: &[Coordinator], time: Duration) {
    let start = Instant::now();
    let (done, pops) = channel();
    let (put, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let queue = |at: usize| {
            let session = members[at % members.len()].session();
            Queue::new(&session, "/crowd").unwrap()
        };
        let consumers = (0..CONTENDERS).map(|at| {
            let (queue, done, ended) = (queue(at), done.clone(), &ended);
            scope.spawn(move || {
                loop {
                    let begun = Instant::now();
                    let last = ended.load(Ordering::Acquire);
                    match queue.pop().timeout(Duration::from_secs(2)).wait() {
                        Ok(_) => done.send((begun.elapsed(), start.elapsed())).unwrap(),
                        Err(Error::NotInTime { .. }) if last => break,
                        Err(Error::NotInTime { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        let consumers: Vec<_> = consumers.collect();
        let producers = (0..CONTENDERS).map(|at| {
            let (queue, put) = (queue(at), &put);
            scope.spawn(move || {
                while put.fetch_add(1, Ordering::Relaxed) == 0 || start.elapsed() < time {
                    queue.put("some data").wait().unwrap();
                }
            })
        });
        let producers: Vec<_> = producers.collect();
        for producer in producers {
            producer.join().unwrap();
        }
        ended.store(true, Ordering::Release);
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
    drop(done);
    let (put, mut meanwhile) = (put.into_inner(), 0);
    let mut check = |(_, end): &(Duration, Duration)| meanwhile += u64::from(*end < time);
    let pops = pops.iter().inspect(|pop| check(pop)).collect::<Vec<_>>();
    println!("{:44} {:>10.2}", "  popped while they were put / put", meanwhile as f64 / put as f64);
    let (pops, ends): (Vec<Duration>, Vec<Duration>) = pops.into_iter().unzip();
    // Each of them waits in vain in the end.
    let took = ends.into_iter().max().unwrap_or_default();
    report(name, took, pops);
}

fn locks(members: &[Coordinator], time: Duration) {
    let session = members[0].session();
    let lock = session.lock("/uncontended").unwrap();
    repeat("lock, acquired and released", time, || {
        lock.acquire().wait().unwrap().release().wait().unwrap()
    });
    let delayed = lock.with_lock_delay(Duration::from_secs(15)).unwrap();
    repeat("the same with a lock-delay", time, || {
        delayed.acquire().wait().unwrap().release().wait().unwrap()
    });
    let shared = ReadWriteLock::new(&session, "/shared").unwrap();
    repeat("read lock, acquired and released", time, || {
        shared.read().wait().unwrap().release().wait().unwrap()
    });
    let permits = Semaphore::new(&session, "/permits", 3).unwrap();
    repeat("permit, acquired and released", time, || {
        permits.acquire().wait().unwrap().release().wait().unwrap()
    });
    let sessions: Vec<Session> =
        (0..CONTENDERS).map(|at| members[at % members.len()].session()).collect();
    hand_off("lock handed over among 16 contenders", &sessions, time);
}

/// Measures the time from one holder's release to the return of the next holder's `acquire`.
fn hand_off(name: &str, sessions: &[Session], time: Duration) {
    let start = Instant::now();
    let (done, turns) = channel();
    std::thread::scope(|scope| {
        for session in sessions {
            let (lock, done) = (session.lock("/handed").unwrap(), done.clone());
            scope.spawn(move || {
                let mut count = 0;
                while count < 2 || start.elapsed() < time {
                    let guard = lock.acquire().wait().unwrap();
                    let (token, acquired) = (guard.fencing_token(), Instant::now());
                    guard.release().wait().unwrap();
                    done.send((token, acquired)).unwrap();
                    count += 1;
                }
            });
        }
    });
    drop(done);
    let mut turns: Vec<_> = turns.iter().collect();
    // Each holder releases the lock as soon as it has it, so the acquisitions measure the hand-over.
    turns.sort_unstable();
    let each = turns.windows(2).map(|turn| turn[1].1.saturating_duration_since(turn[0].1));
    report(name, start.elapsed(), each.collect());
}

fn start(dir: &std::path::Path) -> Vec<Coordinator> {
    let listeners: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let peers: Vec<String> = listeners.iter().map(address).collect();
    drop(listeners);
    let join = |peer: &String| {
        let data = dir.join(peer.replace(':', "-"));
        Coordinator::builder().advertise(peer).data_dir(data).join(&peers).wait().unwrap()
    };
    let members: Vec<Coordinator> = peers.iter().map(join).collect();
    for member in &members {
        member.wait_ready(Duration::from_secs(30)).wait().unwrap();
    }
    members
}

/// Runs an operation again and again, one after the other.
fn repeat(name: &str, time: Duration, mut run: impl FnMut()) {
    let start = Instant::now();
    let mut each = Vec::new();
    while each.is_empty() || start.elapsed() < time {
        let begun = Instant::now();
        run();
        each.push(begun.elapsed());
    }
    report(name, start.elapsed(), each);
}

fn report(name: &str, took: Duration, mut each: Vec<Duration>) {
    each.sort_unstable();
    let at = |share: f64| each[((each.len() - 1) as f64 * share) as usize];
    let rate = each.len() as f64 / took.as_secs_f64();
    println!("{name:44} {rate:>10.0} {:>10.1?} {:>10.1?}", at(0.5), at(0.99));
}
