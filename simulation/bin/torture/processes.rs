//! The instances, as processes.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use crossbeam_channel::{Receiver, unbounded};

use crate::Outcome;
use crate::disk::{Disk, Failed};
use crate::instance::{ADVERTISED, BEGUN, DIRECTORY, LISTENED, ROLE};

/// The addresses of an instance: the one at which the others reach it, through the proxy, and its
/// own.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) advertised: String,
    pub(crate) listened: String,
}

/// Addresses that no other run uses: every run has its own loopback address.
pub(crate) fn addresses(count: usize) -> Vec<Address> {
    let pid = std::process::id();
    let host = match cfg!(target_os = "linux") {
        true => format!("127.{}.{}.{}", 1 + (pid >> 16) % 250, (pid >> 8) & 255, pid & 255),
        false => "127.0.0.1".to_owned(),
    };
    let address = |place| Address {
        advertised: format!("{host}:{}", 22_000 + place),
        listened: format!("{host}:{}", 23_000 + place),
    };
    (0..count).map(address).collect()
}

/// An instance's part of the disk.
pub(crate) fn directory(root: &Path, place: usize) -> PathBuf {
    root.join(format!("disk-{place}"))
}

#[derive(Debug)]
struct Running {
    child: Child,
    since: Instant,
    paused: bool,
}

pub(crate) struct Process {
    command: Command,
    log: PathBuf,
    directory: PathBuf,
    running: Option<Running>,
    /// The number of its starts.
    pub(crate) life: u64,
    lines: Option<Receiver<String>>,
    /// Its disk, if that can lose what was not synced and fail.
    pub(crate) disk: Option<Disk>,
    /// What had failed at its start.
    failed: Failed,
    /// How many reads had failed when its directory was last not marked as damaged.
    sound_until: u32,
}

impl Process {
    pub(crate) fn new(
        root: &Path,
        addresses: &[Address],
        place: usize,
        begun: u64,
        faults: Option<&Path>,
    ) -> Outcome<Process> {
        let peers: Vec<&str> =
            addresses.iter().map(|address| address.advertised.as_str()).collect();
        let mut command = Command::new(std::env::current_exe()?);
        let disk = directory(root, place);
        let (directory, side) = (disk.join("data"), disk.join("not-synced"));
        let disk = match faults {
            Some(library) => {
                let disk = Disk::new(&directory, &side)?;
                disk.preload(library, &mut command);
                Some(disk)
            }
            None => None,
        };
        command
            .env(ROLE, peers.join(","))
            .env(ADVERTISED, &addresses[place].advertised)
            .env(LISTENED, &addresses[place].listened)
            .env(DIRECTORY, &directory)
            .env(BEGUN, begun.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let log = root.join(format!("log-{place}"));
        let failed = Failed::default();
        Ok(Process {
            command,
            log,
            directory,
            running: None,
            life: 0,
            lines: None,
            disk,
            failed,
            sound_until: 0,
        })
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&mut self) -> Outcome<()> {
        if self.running.is_some() {
            return Ok(());
        }
        self.failed = self.failures()?;
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut child = self.command.stderr(log).spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let (sender, lines) = unbounded();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        self.running = Some(Running { child, since: Instant::now(), paused: false });
        self.lines = Some(lines);
        self.life += 1;
        Ok(())
    }

    /// How many calls of its disk have failed, in all its lives.
    pub(crate) fn failures(&self) -> Outcome<Failed> {
        Ok(self.disk.as_ref().map(Disk::failed).transpose()?.unwrap_or_default())
    }

    /// Whether its disk has failed since its start.
    pub(crate) fn has_failed_disk(&self) -> Outcome<bool> {
        Ok(self.failures()? != self.failed)
    }

    /// Fails if it has found its directory damaged, and no read has failed since it had found it sound: the
    /// loss of what was not synced is no damage.
    pub(crate) fn check_directory(&mut self) -> Outcome<()> {
        let reads = self.failures()?.reads;
        match std::fs::read_to_string(self.directory.join("QUARANTINED")) {
            Err(_) => self.sound_until = reads,
            Ok(_) if reads > self.sound_until => {}
            Ok(reason) => {
                let directory = self.directory.display();
                return Err(format!("{directory} was found damaged: {}", reason.trim()).into());
            }
        }
        Ok(())
    }

    /// Its process id, the time of its start and its directory, while it runs.
    pub(crate) fn started(&self) -> Option<(u32, Instant, &Path)> {
        let running = self.running.as_ref()?;
        Some((running.child.id(), running.since, &self.directory))
    }

    /// The lines that it has printed since the last call; all of them, if it has ended.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        let Some(lines) = &self.lines else { return Vec::new() };
        if self.running.is_some() { lines.try_iter().collect() } else { lines.iter().collect() }
    }

    /// Kills it with SIGKILL. Returns whether it was running.
    pub(crate) fn kill(&mut self) -> Outcome<bool> {
        let Some(mut running) = self.running.take() else { return Ok(false) };
        running.child.kill()?;
        running.child.wait()?;
        Ok(true)
    }

    /// Its exit status, if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Outcome<Option<ExitStatus>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        let status = running.child.try_wait()?;
        if status.is_some() {
            self.running = None;
        }
        Ok(status)
    }

    /// Pauses it or resumes it. Returns whether that made a difference.
    pub(crate) fn signal(&mut self, signal: &str) -> Outcome<bool> {
        let Some(running) = &mut self.running else { return Ok(false) };
        let pause = signal == "STOP";
        if running.paused == pause {
            return Ok(false);
        }
        let pid = running.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{signal}"), &pid]).status()?;
        running.paused = pause;
        Ok(status.success())
    }

    pub(crate) fn order(&mut self, order: &str) -> Outcome<()> {
        if let Some(stdin) = self.running.as_mut().and_then(|running| running.child.stdin.as_mut())
        {
            match writeln!(stdin, "{order}") {
                // It has ended by itself just now, which `ended` reports.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                written => written?,
            }
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
