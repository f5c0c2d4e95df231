//! `lock` and `elect`: a command that runs while a lock is held, or while it leads.

use std::ffi::OsString;
use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use clap::Args;
use quorate::recipes::{LeaderLatch, Leadership, LockGuard, Lost};
use quorate::{Result, Session};

use super::running::{Running, code};
use super::{ClusterArgs, interrupted};
use crate::{Exit, complain};

/// How often signals are looked at.
const PERIOD: Duration = Duration::from_millis(50);

/// What to hold, and what to run meanwhile.
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    /// The path of the lock or of the election.
    path: String,
    /// Gives up after so many seconds, or with 0 if it is not free, and exits with 7. Without it, waits for as
    /// long as it takes.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// How many seconds the command, with all that it has started, has to end after SIGTERM, before it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u64,
    /// The command and its arguments, behind `--`. It finds the fencing token in `QUORATE_TOKEN`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

enum HeldGuard {
    Lock(LockGuard),
    Leadership(Leadership),
}

impl HeldGuard {
    fn token(&self) -> u64 {
        match self {
            HeldGuard::Lock(guard) => guard.fencing_token(),
            HeldGuard::Leadership(guard) => guard.fencing_token(),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            HeldGuard::Lock(guard) => guard.is_held(),
            HeldGuard::Leadership(guard) => guard.is_held(),
        }
    }

    fn why_lost(&self) -> &'static str {
        let lost = match self {
            HeldGuard::Lock(guard) => guard.wait_lost(),
            HeldGuard::Leadership(guard) => guard.wait_lost(),
        };
        match lost.wait() {
            Ok(Lost::SessionOver) | Err(_) => "the session of this instance is over",
            _ => "somebody has deleted its znode or ended its session",
        }
    }

    fn release(self) -> Result<()> {
        match self {
            HeldGuard::Lock(guard) => guard.release().wait(),
            HeldGuard::Leadership(guard) => guard.release().wait(),
        }
    }
}

impl HoldArgs {
    pub(super) fn lock(&self, cluster: &ClusterArgs) -> Result<Exit> {
        self.run(cluster, async |session, tries| {
            let lock = session.lock(&self.path)?;
            let guard = match tries {
                true => lock.try_acquire().await?,
                false => Some(lock.acquire().await?),
            };
            Ok(guard.map(HeldGuard::Lock))
        })
    }

    pub(super) fn elect(&self, cluster: &ClusterArgs) -> Result<Exit> {
        self.run(cluster, async |session, tries| {
            let id = format!("quorate, process {}", std::process::id());
            let latch = LeaderLatch::new(session, &self.path, id)?;
            let guard = match tries {
                true => latch.try_campaign().await?,
                false => Some(latch.campaign().await?),
            };
            Ok(guard.map(HeldGuard::Leadership))
        })
    }

    fn run(
        &self,
        cluster: &ClusterArgs,
        hold: impl AsyncFnOnce(&Session, bool) -> Result<Option<HeldGuard>>,
    ) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        let session = cluster.session(&coordinator)?;
        let is_over = interrupted()?;
        // An attempt that does not wait for others still waits for its replies.
        let tries = self.wait == Some(0);
        let wait =
            if tries { cluster.wait() } else { Duration::from_secs(self.wait.unwrap_or(u64::MAX)) };
        let held = within(now().checked_add(wait), &is_over, hold(&session, tries));
        let Some(guard) = held.transpose()?.flatten() else {
            if is_over.load(Ordering::Relaxed) {
                return Ok(Exit::Failed);
            }
            let waited = self.wait.unwrap_or_default();
            complain(format_args!("{} was not to be had within {waited} s", self.path));
            return Ok(Exit::NotHeld);
        };
        let exit = self.run_while_held(&guard, &is_over)?;
        if guard.is_held()
            && let Err(error) = guard.release()
        {
            // The command has run all the same. What it held is free when the session is over.
            complain(&error);
        }
        coordinator.close().wait()?;
        Ok(exit)
    }

    fn run_while_held(&self, guard: &HeldGuard, is_over: &AtomicBool) -> Result<Exit> {
        let [program, arguments @ ..] = &self.command[..] else { return Ok(Exit::Misused) };
        let mut command = Command::new(program);
        command.args(arguments).env("QUORATE_TOKEN", guard.token().to_string());
        let mut running = match Running::start(command, Duration::from_secs(self.grace), true)? {
            Ok(running) => running,
            Err(exit) => return Ok(exit),
        };
        let is_over = || is_over.load(Ordering::Relaxed);
        if let Some(status) = running.wait(|| is_over() || !guard.is_held())? {
            return Ok(Exit::OfCommand(code(status)));
        }
        let status = running.stop()?;
        if guard.is_held() {
            return Ok(Exit::OfCommand(code(status)));
        }
        complain(format_args!(
            "{} was lost ({}): the command was stopped",
            self.path,
            guard.why_lost()
        ));
        Ok(Exit::Lost)
    }
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Wakes a thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The output of a future; `None` if the time has passed before, or the program is to end. It is dropped then,
/// which leaves the line of those that wait.
fn within<T>(
    until: Option<Instant>,
    is_over: &AtomicBool,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        if is_over.load(Ordering::Relaxed) || until.is_some_and(|until| now() >= until) {
            return None;
        }
        std::thread::park_timeout(PERIOD);
    }
}
