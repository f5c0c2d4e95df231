//! Commands that this program runs, each with all that it starts.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate::Result;
#[cfg(unix)]
use rustix::process::Signal;
#[cfg(unix)]
use signal_hook::{SigId, consts, flag, low_level};

#[cfg(unix)]
use super::group::Group;
use super::system;
use crate::{Exit, complain};

/// How often the command and what else may end it are looked at.
const PERIOD: Duration = Duration::from_millis(50);

/// A command that runs, or has ended. Dropped while it runs, it is asked to end, and killed if it does not.
pub(super) struct Running {
    child: Child,
    grace: Duration,
    #[cfg(unix)]
    group: Group,
    #[cfg(unix)]
    passed_on: [PassedOn; 2],
}

/// A signal that does nothing here, and is passed on to the command.
#[cfg(unix)]
struct PassedOn {
    signal: Signal,
    has_come: Arc<AtomicBool>,
    registered: SigId,
}

impl Running {
    /// Starts a command. If it has the standard input and that is the terminal, its group is the one in front. Returns
    /// the exit of a shell if there is no such command.
    pub(super) fn start(
        mut command: Command,
        grace: Duration,
        has_input: bool,
    ) -> Result<std::result::Result<Running, Exit>> {
        #[cfg(unix)]
        let (mut group, passed_on) = {
            let group = Group::begin(grace, has_input).map_err(system("starting the command"))?;
            std::os::unix::process::CommandExt::process_group(&mut command, group.id());
            let usr1 = pass_on(Signal::USR1, consts::SIGUSR1)?;
            (group, [usr1, pass_on(Signal::USR2, consts::SIGUSR2)?])
        };
        #[cfg(not(unix))]
        let _ = has_input;
        match command.spawn() {
            Ok(child) => Ok(Ok(Running {
                child,
                grace,
                #[cfg(unix)]
                group,
                #[cfg(unix)]
                passed_on,
            })),
            Err(error) => {
                #[cfg(unix)]
                group.finish();
                complain(format_args!("starting {}: {error}", command.get_program().display()));
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                Ok(Err(Exit::OfCommand(if is_missing { 127 } else { 126 })))
            }
        }
    }

    /// Waits for the command to end, or until it should. Returns `None` then. What it has left behind runs on, unless a
    /// signal has ended the command.
    pub(super) fn wait(&mut self, should_end: impl Fn() -> bool) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.ended()? {
                #[cfg(unix)]
                if std::os::unix::process::ExitStatusExt::signal(&status).is_some() {
                    self.group.ask_to_end();
                    self.end_rest(now().checked_add(self.grace));
                }
                #[cfg(unix)]
                self.group.finish();
                return Ok(Some(status));
            }
            if should_end() {
                return Ok(None);
            }
            std::thread::park_timeout(PERIOD);
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        #[cfg(unix)]
        {
            for passed_on in &self.passed_on {
                if passed_on.has_come.swap(false, Ordering::Relaxed) {
                    super::group::signal_process(&self.child, passed_on.signal);
                }
            }
            self.group.stop_together(&self.child);
        }
        self.child.try_wait().map_err(system("waiting for the command"))
    }

    /// Asks the command and all that it has started to end, and kills what does not.
    pub(super) fn stop(mut self) -> Result<ExitStatus> {
        #[cfg(unix)]
        {
            let until = now().checked_add(self.grace);
            self.group.ask_to_end();
            while is_before(until) {
                let ended = self.child.try_wait().map_err(system("waiting for the command"))?;
                if let Some(status) = ended {
                    self.end_rest(until);
                    return Ok(status);
                }
                std::thread::park_timeout(PERIOD);
            }
            self.group.kill();
        }
        let _ = self.child.kill();
        self.child.wait().map_err(system("waiting for the command"))
    }

    /// Waits for what the command has left behind, which was asked to end, and then kills it.
    #[cfg(unix)]
    fn end_rest(&mut self, until: Option<Instant>) {
        self.group.finish();
        while self.group.is_left() && is_before(until) {
            std::thread::park_timeout(PERIOD);
        }
        self.group.kill();
    }
}

#[cfg(unix)]
fn pass_on(signal: Signal, number: i32) -> Result<PassedOn> {
    let has_come = Arc::new(AtomicBool::new(false));
    let registered = flag::register(number, Arc::clone(&has_come));
    let registered = registered.map_err(system("waiting for signals"))?;
    Ok(PassedOn { signal, has_come, registered })
}

#[cfg(unix)]
impl Drop for PassedOn {
    fn drop(&mut self) {
        low_level::unregister(self.registered);
    }
}

#[cfg(unix)]
fn is_before(until: Option<Instant>) -> bool {
    until.is_none_or(|until| now() < until)
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
fn now() -> Instant {
    Instant::now()
}

/// The exit code of a command, or that of a shell for one that a signal has ended.
pub(super) fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
