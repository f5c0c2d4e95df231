//! What several tests use: addresses, tasks, and processes.
//!
//! A process is the test program itself, started again with its role in the environment. See `worker` in each
//! test that has them.

#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

pub(crate) mod addresses;
pub(crate) mod data_dir;
#[cfg(unix)]
pub(crate) mod forks;
pub(crate) mod tasks;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use quorate::{Builder, Coordinator};

pub(crate) use self::addresses::addresses;

/// Longer than any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Short, so that the cluster soon notices a killed process.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

const PEERS: &str = "QUORATE_TEST_PEERS";
const ADDRESS: &str = "QUORATE_TEST_ADDRESS";
const ALONE: &str = "QUORATE_TEST_ALONE";

/// In a process that [`Process::start`] has started: all addresses, and its own.
pub(crate) fn place() -> Option<(Vec<String>, String)> {
    let (peers, address) = (std::env::var(PEERS).ok()?, std::env::var(ADDRESS).ok()?);
    Some((peers.split(',').map(str::to_owned).collect(), address))
}

/// The builder of a node of such a cluster.
pub(crate) fn node(address: &str) -> Builder {
    Coordinator::builder().advertise(address).session_timeout(SESSION_TIMEOUT)
}

/// The name of a test of a module, as the test program knows it: without the program's own name.
pub(crate) const fn name_of(test: &'static str) -> &'static str {
    let mut at = 0;
    while test.as_bytes()[at] != b':' {
        at += 1;
    }
    test.split_at(at + 2).1
}

/// Runs the body of this test (`concat!(module_path!(), "::name")`) in a process of its own.
pub(crate) fn alone(test: &'static str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", name_of(test), "--nocapture"];
    let ran = Command::new(program).args(arguments).env(ALONE, "1").output().unwrap();
    let printed = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    print!("{}", printed[0]);
    let has_run = printed[0].contains("1 passed");
    assert!(ran.status.success() && has_run, "{}", printed[1]);
}

/// A process, killed when it is dropped. Of its output, only lines with an '@' are read, from behind the '@':
/// the test harness may have started the line.
pub(crate) struct Process {
    pub(crate) child: Child,
    stdin: ChildStdin,
    pub(crate) lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    /// Runs this worker of the test program: see [`name_of`].
    pub(crate) fn start(worker: &str, dir: &Path, peers: &[String], address: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Process::run(worker, &mut command, dir, peers, address)
    }

    /// The same, with the command that is given the arguments.
    pub(crate) fn run(
        worker: &str,
        command: &mut Command,
        dir: &Path,
        peers: &[String],
        address: &str,
    ) -> Process {
        let mut child = command
            .args(["--exact", worker, "--nocapture"])
            .env(PEERS, peers.join(","))
            .env(ADDRESS, address)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = unbounded();
        let read = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(start) = line.find('@') {
                    let _ = sender.send(line[start + 1..].to_owned());
                }
            }
        };
        std::thread::Builder::new().spawn(read).unwrap();
        Process { child, stdin, lines }
    }

    /// Sends the process a line.
    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    /// The next line.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line in time")
    }

    /// The next line that begins with this.
    pub(crate) fn wait(&self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {start:?}"));
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Kills the process with SIGKILL. Returns the lines that it had printed before.
    pub(crate) fn kill(&mut self) -> Vec<String> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.lines.iter().collect()
    }

    /// Resets the peak of the memory, so that the start of the process does not count.
    pub(crate) fn reset_memory_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    /// The memory of the process now, and its peak, in KiB, as Linux reports them.
    pub(crate) fn memory_kib(&self) -> (u64, u64) {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    /// Sends another signal, by its name.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap();
        assert!(status.success());
    }
}

/// Writes the log of this process to its standard error if `QUORATE_TEST_LOG` is set, to analyse a failed
/// test.
#[allow(clippy::disallowed_methods, reason = "the times of a log")]
pub(crate) fn log() {
    if std::env::var_os("QUORATE_TEST_LOG").is_some() {
        let _ = tracing::subscriber::set_global_default(Log(std::time::Instant::now()));
    }
}

struct Log(std::time::Instant);

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::DEBUG && metadata.target().starts_with("quorate")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let (pid, time) = (std::process::id(), self.0.elapsed());
        eprintln!(
            "{pid} {time:?} {} {}{}",
            event.metadata().level(),
            event.metadata().target(),
            line.0
        );
    }
}
