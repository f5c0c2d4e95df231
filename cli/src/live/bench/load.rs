//! The load of one measurement: threads that call the cluster until the time has passed.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use hdrhistogram::Histogram;
use quorate::{Error, Pending, Result, Session};

use super::super::system;

/// How often a measurement checks whether it was interrupted.
const CHECK: Duration = Duration::from_millis(100);
/// The columns of a full progress bar.
const BAR: usize = 40;

/// A session with a znode of its own.
#[derive(Debug)]
pub(super) struct BenchClient {
    pub(super) session: Session,
    pub(super) path: String,
}

/// The operation to measure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Set,
    Get,
    Sync,
    /// Gets and sets mixed; the number is the percentage of gets.
    Mixed(u8),
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load<'a> {
    pub(super) name: &'static str,
    pub(super) operation: Operation,
    /// How many calls of a client are in flight.
    pub(super) depth: usize,
    pub(super) data: &'a [u8],
    pub(super) time: Duration,
    /// How long to wait for a reply.
    pub(super) wait: Duration,
    /// Set when the program is to end.
    pub(super) is_over: &'a AtomicBool,
    /// Whether progress is shown.
    pub(super) is_shown: bool,
}

/// The longest time that is told from longer ones.
const LONGEST: Duration = Duration::from_secs(3600);

/// An empty histogram, with two significant figures.
fn nanoseconds() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST.as_nanos() as u64, 2)
        .expect("a range and figures that are allowed")
}

/// The result of a measurement.
#[derive(Debug)]
pub(super) struct Measurement {
    pub(super) name: &'static str,
    pub(super) depth: usize,
    /// In nanoseconds.
    pub(super) times: Histogram<u64>,
    /// The duration of the measurement.
    pub(super) elapsed: Duration,
}

impl Measurement {
    pub(super) fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Waits for a call in flight; only success or failure matters.
type Call = Box<dyn FnMut(Duration) -> Option<Result<()>>>;

fn waiting<T: 'static>(mut call: Pending<'static, T>) -> Call {
    Box::new(move |timeout| {
        // It may be waited for again, so the limit is not the call's.
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut poll = || match Pin::new(&mut call).poll(&mut context) {
            Poll::Ready(outcome) => Some(outcome.map(drop)),
            Poll::Pending => None,
        };
        poll().or_else(|| {
            std::thread::park_timeout(timeout);
            poll()
        })
    })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Load<'_> {
    /// Runs the load with all clients at once; `None` if it was interrupted.
    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    pub(super) fn run(&self, clients: &[BenchClient]) -> Result<Option<Measurement>> {
        let is_up = AtomicBool::new(false);
        let begun = Instant::now();
        let times = thread::scope(|scope| {
            let (running, ended) = bounded::<()>(0);
            let mut threads = Vec::new();
            for client in clients {
                let running = running.clone();
                let work = || {
                    let times = self.call(client, &is_up);
                    // A failed call ends the measurement.
                    is_up.fetch_or(times.is_err(), Ordering::Relaxed);
                    drop(running);
                    times
                };
                let spawned = thread::Builder::new().name("bench".into()).spawn_scoped(scope, work);
                match spawned.map_err(system("starting a thread")) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        is_up.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
            drop(running);
            loop {
                let left = self.time.saturating_sub(begun.elapsed());
                let is_ended = left.is_zero() || is_up.load(Ordering::Relaxed);
                if is_ended || self.is_over.load(Ordering::Relaxed) {
                    break;
                }
                self.show(begun.elapsed());
                if ended.recv_timeout(left.min(CHECK)).is_err_and(|error| error.is_disconnected()) {
                    break;
                }
            }
            is_up.store(true, Ordering::Relaxed);
            let mut all = nanoseconds();
            for thread in threads {
                let panicked = |_| Error::System {
                    what: "measuring",
                    reason: "a thread has panicked".to_owned(),
                };
                all.add(&thread.join().map_err(panicked)??).expect("all have the same bounds");
            }
            Ok(all)
        });
        let elapsed = begun.elapsed();
        self.hide();
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(Some(Measurement { name: self.name, depth: self.depth, times: times?, elapsed }))
    }

    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    fn call(&self, client: &BenchClient, is_up: &AtomicBool) -> Result<Histogram<u64>> {
        let calls = &client.session.in_turn();
        let mut times = nanoseconds();
        let mut under_way: VecDeque<(Instant, Call)> = VecDeque::new();
        let mut number = 0_u64;
        loop {
            while under_way.len() < self.depth && !is_up.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let set = || waiting(calls.set(&client.path, self.data));
                let get = || waiting(calls.get(&client.path));
                let call = match self.operation {
                    Operation::Set => set(),
                    Operation::Get => get(),
                    Operation::Sync => waiting(calls.sync()),
                    // 61 has no divisor in common with 100, so gets and sets are mixed well.
                    Operation::Mixed(reads) if number * 61 % 100 < u64::from(reads) => get(),
                    Operation::Mixed(_) => set(),
                };
                number = (number + 1) % 100;
                under_way.push_back((begun, call));
            }
            let Some((begun, mut call)) = under_way.pop_front() else { return Ok(times) };
            let since = Instant::now();
            let answer = loop {
                if let Some(answer) = call(CHECK) {
                    break answer;
                }
                if self.is_over.load(Ordering::Relaxed) {
                    return Ok(times);
                }
                if since.elapsed() >= self.wait {
                    break Err(Error::Timeout {
                        operation: self.name.to_owned(),
                        waited: self.wait,
                        reason: "no answer came; `quorate doctor` may find out why".to_owned(),
                    });
                }
            };
            answer?;
            times.saturating_record(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Draws the progress.
    fn show(&self, elapsed: Duration) {
        if self.is_shown {
            let share = elapsed.as_secs_f64() / self.time.as_secs_f64().max(f64::MIN_POSITIVE);
            let full = ((share * BAR as f64) as usize).min(BAR);
            let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR - full));
            let _ = write!(io::stderr(), "\r\x1b[K{:<18} [{bar}]", self.name);
        }
    }

    fn hide(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
