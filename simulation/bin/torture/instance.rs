//! One instance: clients that write, read and lock, and report what they see.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quorate_simulation::simulation::linearizability::{Call, Known, Return};
use quorate_simulation::{Coordinator, CreateMode, Result, Session, WatchMode};

use crate::record::{call_text, known_text};
use crate::{Outcome, PATIENCE, Random};

/// The peers, separated by commas.
pub(crate) const ROLE: &str = "QUORATE_TORTURE_PEERS";
pub(crate) const ADVERTISED: &str = "QUORATE_TORTURE_ADVERTISED";
pub(crate) const LISTENED: &str = "QUORATE_TORTURE_LISTENED";
pub(crate) const DIRECTORY: &str = "QUORATE_TORTURE_DIRECTORY";
/// The start of the run, by [`now`].
pub(crate) const BEGUN: &str = "QUORATE_TORTURE_BEGUN";

/// The number of clients that write and read.
const CLIENTS: u64 = 3;
/// The number of znodes that they share at a time.
const ZNODES: u64 = 4;
/// How long they share the same znodes. The history of each znode is checked separately, and a
/// short one is checked faster.
const NANOSECONDS_OF_ZNODES: u64 = 60_000_000_000;

/// The time in nanoseconds, by a clock that all processes of this machine share.
pub(crate) fn now() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Prints a line at once, so that it is complete even if the process is killed right after.
fn print(line: &str) {
    let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
}

/// The path of a znode. Each turn has its own znodes.
fn register(turn: u64, number: u64) -> String {
    format!("/register-{turn}-{number}")
}

struct Instance {
    coordinator: Coordinator,
    begun: u64,
    calls: AtomicU64,
    stopping: AtomicBool,
}

pub(crate) fn run(peers: &str) -> Outcome<()> {
    let coordinator = Coordinator::builder()
        .advertise(std::env::var(ADVERTISED)?)
        .listen(std::env::var(LISTENED)?)
        .data_dir(std::env::var(DIRECTORY)?)
        .session_timeout(Duration::from_secs(4))
        .request_timeout(Duration::from_secs(3))
        .join(peers.split(','))
        .wait()?;
    let calls = AtomicU64::new(0);
    let begun = std::env::var(BEGUN)?.parse()?;
    let instance = Instance { coordinator, begun, calls, stopping: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let instance = &instance;
            scope.spawn(move || instance.write_and_read(client));
        }
        scope.spawn(|| instance.lock());
        scope.spawn(|| instance.watch());
        for order in std::io::stdin().lines().map_while(std::result::Result::ok) {
            match order.as_str() {
                "finish" => instance.stopping.store(true, Ordering::Relaxed),
                _ => instance.report_state(),
            }
        }
        // The parent process is gone.
        instance.stopping.store(true, Ordering::Relaxed);
    });
    Ok(())
}

impl Instance {
    fn is_running(&self) -> bool {
        if let Some(reason) = self.coordinator.status().stopped {
            eprintln!("{reason}");
            // An application could restart its node in place. This one leaves that to its parent.
            std::process::exit(3);
        }
        !self.stopping.load(Ordering::Relaxed)
    }

    fn turn(&self) -> u64 {
        now().saturating_sub(self.begun) / NANOSECONDS_OF_ZNODES
    }

    fn random(&self, client: u64) -> Random {
        Random(now() ^ u64::from(std::process::id()) ^ (client << 48))
    }

    fn write_and_read(&self, client: u64) {
        let mut random = self.random(client);
        while self.is_running() {
            let Ok(session) = self.coordinator.open_session() else { continue };
            while self.is_running() && !session.state().is_final() {
                self.operate(&session, &mut random);
            }
        }
        self.finish(client);
    }

    fn operate(&self, session: &Session, random: &mut Random) {
        let path = register(self.turn(), random.below(ZNODES));
        // Unique data.
        let data = random.below(u64::MAX / 2);
        let version = random.below(4);
        let call = match random.below(12) {
            0..2 => Call::Create(data),
            2..5 => Call::Set(data, None),
            5 => Call::Set(data, Some(version)),
            6 => Call::Delete(None),
            7 => Call::Delete(Some(version)),
            _ => Call::Read,
        };
        self.call(&path, call, || perform(session, &path, call));
    }

    fn call(&self, path: &str, call: Call, perform: impl FnOnce() -> Option<Known>) {
        let id = self.calls.fetch_add(1, Ordering::Relaxed);
        print(&format!("call {id} {} {path} {}", now(), call_text(call)));
        if let Some(known) = perform() {
            print(&format!("return {id} {} {}", now(), known_text(known)));
        }
    }

    /// The final reads, when nothing is wrong any more: they must show everything acknowledged.
    fn finish(&self, client: u64) {
        if client > 0 {
            return;
        }
        let reads = || {
            self.coordinator.wait_ready(PATIENCE).wait()?;
            let session = self.coordinator.open_session()?;
            for turn in 0..=self.turn() {
                for number in 0..ZNODES {
                    let path = register(turn, number);
                    self.call(&path, Call::Read, || perform(&session, &path, Call::Read));
                }
            }
            session.close().wait()
        };
        match reads() {
            Ok(()) => print("finished"),
            Err(error) => print(&format!("violation the last reads: {error}")),
        }
    }

    fn report_state(&self) {
        let status = self.coordinator.status();
        print(&format!("state {} {}", status.zxid, status.state_hash.expect("it has a replica")));
    }

    /// Acquires the lock now and then, and reports a period in which it surely held it.
    fn lock(&self) {
        let mut random = self.random(CLIENTS);
        while self.is_running() {
            let Ok(session) = self.coordinator.open_session() else { continue };
            let Ok(lock) = session.lock("/lock") else { return };
            while self.is_running() && !session.state().is_final() {
                let Ok(guard) = lock.acquire().timeout(Duration::from_secs(1)).wait() else {
                    continue;
                };
                if !guard.is_held() {
                    continue;
                }
                let from = now();
                let mut to = None;
                for _ in 0..random.below(200) {
                    let before = now();
                    if !guard.is_held() {
                        break;
                    }
                    to = Some(before);
                    std::thread::yield_now();
                }
                if let Some(to) = to {
                    print(&format!("held {} {from} {to}", guard.fencing_token()));
                }
            }
        }
    }

    /// Checks that events come in the order of their zxids.
    fn watch(&self) {
        while self.is_running() {
            let Ok(session) = self.coordinator.open_session() else { continue };
            let Ok(watch) = session.watch("/", WatchMode::PersistentRecursive).wait() else {
                continue;
            };
            let (mut count, mut last) = (0_u64, 0);
            while self.is_running() && !session.state().is_final() {
                let event = watch.events().recv_timeout(Duration::from_millis(100));
                let Ok(event) = event else { continue };
                if event.zxid < last {
                    print(&format!("violation event of zxid {} after {last}", event.zxid));
                }
                (last, count) = (event.zxid, count + 1);
            }
            print(&format!("events {count}"));
        }
    }
}

/// Makes a call and returns its outcome, if that is known.
fn perform(session: &Session, path: &str, call: Call) -> Option<Known> {
    let done = |(): &()| Return::Done;
    match call {
        Call::Create(data) => {
            let created = session.create(path, data.to_be_bytes(), CreateMode::Persistent);
            Known::of(&created.wait().map(drop), done)
        }
        Call::Set(data, version) => {
            let stat = match version {
                Some(version) => session.set_if(path, data.to_be_bytes(), version),
                None => session.set(path, data.to_be_bytes()),
            };
            Known::of(&stat.wait(), |stat| Return::Version(stat.version))
        }
        Call::Delete(version) => {
            let deleted = match version {
                Some(version) => session.delete_if(path, version),
                None => session.delete(path),
            };
            Known::of(&deleted.wait(), done)
        }
        Call::Read => {
            let read: Result<(u64, u64)> = session.sync().wait().and_then(|_| {
                let (data, stat) = session.get(path).wait()?;
                let data = <[u8; 8]>::try_from(&data[..]).map_or(u64::MAX, u64::from_be_bytes);
                Ok((data, stat.version))
            });
            Known::of(&read, |(data, version)| Return::Value(*data, *version))
        }
    }
}
