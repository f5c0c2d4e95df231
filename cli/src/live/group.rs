//! The process group of a command, which ends as a whole: when this program stops it, and when this program is gone,
//! even by SIGKILL.
//!
//! Its first process is a guard: this program once more (`quorate guard`), at the end of a pipe. If the pipe closes
//! without a farewell, the guard ends the group. As long as it lives, no other group has the id. And it gives the
//! terminal back, which a process that is not in front cannot take.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_process, kill_process_group,
    test_kill_process_group, waitid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use signal_hook::{consts, flag};

/// What the guard is told.
const TERMINAL_BACK: u8 = b't';
const FAREWELL: u8 = b'f';
/// Its answer.
const DONE: &[u8] = b"d";
/// Sent to all of the group, and not meant for the guard.
const OF_OTHERS: [i32; 8] = [
    consts::SIGHUP,
    consts::SIGINT,
    consts::SIGQUIT,
    consts::SIGTERM,
    consts::SIGUSR1,
    consts::SIGUSR2,
    consts::SIGALRM,
    consts::SIGTSTP,
];

pub(super) struct Group {
    id: Pid,
    /// `None` once the guard has gone.
    guard: Option<(Child, ChildStdin, ChildStdout)>,
    /// The terminal, if the group has it whenever this program would.
    terminal: Option<File>,
}

impl Group {
    /// Begins a group with nothing but its guard.
    pub(super) fn begin(grace: Duration, has_input: bool) -> io::Result<Group> {
        let mut command = Command::new(program()?);
        command.arg0("quorate").arg("guard").arg(grace.as_secs().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guard = command.process_group(0).spawn()?;
        let id = i32::try_from(guard.id()).ok().and_then(Pid::from_raw);
        let (Some(id), Some(orders), Some(answers)) = (id, guard.stdin.take(), guard.stdout.take())
        else {
            return Err(io::ErrorKind::Other.into());
        };
        let terminal = (has_input && io::stdin().is_terminal()).then(terminal).flatten();
        let mut group = Group { id, guard: Some((guard, orders, answers)), terminal };
        // From now on it is deaf to the signals of others.
        group.answered()?;
        group.give_terminal();
        Ok(group)
    }

    pub(super) fn id(&self) -> i32 {
        self.id.as_raw_nonzero().get()
    }

    pub(super) fn ask_to_end(&self) {
        // They may have ended just now. One that is stopped ends when it continues.
        let _ = kill_process_group(self.id, Signal::TERM);
        let _ = kill_process_group(self.id, Signal::CONT);
    }

    /// Whether a process of the group is left, after the farewell to its guard.
    pub(super) fn is_left(&self) -> bool {
        test_kill_process_group(self.id).is_ok()
    }

    pub(super) fn kill(&mut self) {
        self.take_terminal();
        let _ = kill_process_group(self.id, Signal::KILL);
        if let Some((mut guard, ..)) = self.guard.take() {
            let _ = guard.wait();
        }
    }

    /// The group may do as it likes from now on.
    pub(super) fn finish(&mut self) {
        self.take_terminal();
        if let Some((mut guard, mut orders, _)) = self.guard.take() {
            let _ = orders.write_all(&[FAREWELL]);
            drop(orders);
            let _ = guard.wait();
        }
    }

    /// If the command was stopped at the terminal, stops this program, too, as its shell expects. Both continue
    /// together.
    pub(super) fn stop_together(&mut self, command: &Child) {
        let Some(id) = id(command).filter(|_| self.terminal.is_some()) else { return };
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(WaitId::Pid(id), options) else { return };
        let by = status.stopping_signal();
        if ![consts::SIGTSTP, consts::SIGTTIN, consts::SIGTTOU].map(Some).contains(&by) {
            return;
        }
        self.take_terminal();
        let _ = kill_process(getpid(), Signal::TSTP);
        self.give_terminal();
        let _ = kill_process_group(self.id, Signal::CONT);
    }

    fn give_terminal(&self) {
        if let Some(terminal) = &self.terminal
            && tcgetpgrp(terminal).is_ok_and(|front| front == getpgrp())
        {
            let _ = tcsetpgrp(terminal, self.id);
        }
    }

    fn take_terminal(&mut self) {
        if let Some(terminal) = &self.terminal
            && tcgetpgrp(terminal).is_ok_and(|front| front == self.id)
            && let Some((_, orders, _)) = &mut self.guard
            && orders.write_all(&[TERMINAL_BACK]).is_ok()
        {
            let _ = self.answered();
        }
    }

    fn answered(&mut self) -> io::Result<()> {
        match &mut self.guard {
            Some((.., answers)) => answers.read_exact(&mut [0]),
            None => Ok(()),
        }
    }
}

/// Sends a signal to a command that was not waited for, so that no other process has its id.
pub(super) fn signal_process(command: &Child, signal: Signal) {
    if let Some(id) = id(command) {
        // It may have ended just now.
        let _ = kill_process(id, signal);
    }
}

fn id(command: &Child) -> Option<Pid> {
    i32::try_from(command.id()).ok().and_then(Pid::from_raw)
}

fn terminal() -> Option<File> {
    File::options().read(true).write(true).open("/dev/tty").ok()
}

/// This program, also if its file was replaced.
fn program() -> io::Result<PathBuf> {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { Ok(own) } else { std::env::current_exe() }
}

/// The guard, which is the first process of its group.
pub(crate) fn guard(grace: u64) -> io::Result<()> {
    for signal in OF_OTHERS {
        flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    // Whose the terminal was before.
    let before =
        rustix::process::getppid().and_then(|parent| rustix::process::getpgid(Some(parent)).ok());
    let give_back = || {
        if let (Some(terminal), Some(before)) = (terminal(), before)
            && tcgetpgrp(&terminal).is_ok_and(|front| front == getpgrp())
        {
            let _ = tcsetpgrp(&terminal, before);
        }
    };
    let answer = || io::stdout().write_all(DONE).and_then(|()| io::stdout().flush());
    answer()?;
    let mut order = [0];
    while io::stdin().read_exact(&mut order).is_ok() {
        if order == [FAREWELL] {
            return Ok(());
        }
        give_back();
        answer()?;
    }
    give_back();
    let group = getpgrp();
    kill_process_group(group, Signal::TERM)?;
    kill_process_group(group, Signal::CONT)?;
    std::thread::park_timeout(Duration::from_secs(grace));
    Ok(kill_process_group(group, Signal::KILL)?)
}
