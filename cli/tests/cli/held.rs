//! `quorate lock` and `quorate elect`: commands that run while something is held.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use quorate::CreateMode;

use crate::cluster::Cluster;
use crate::screen::{Screen, has_tmux, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

/// A command and its child, which would live for long.
const FAMILY: &str = "sleep 1000 & echo child $!; wait";

/// Tells its token, and ends with 3 when it has read a line, or with 4 at SIGTERM.
const JOB: &str = "trap 'echo asked; exit 4' TERM; echo held $QUORATE_TOKEN; \
                   while ! read -t 1 line; do [ $? -gt 128 ] || exit 5; done; exit 3";

struct Job {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Job {
    fn start(cluster: &Cluster, arguments: &[&str], job: &str) -> Job {
        let mut command = cluster.command(arguments);
        command.args(["--", "bash", "-c", job]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = unbounded();
        let read = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        };
        std::thread::Builder::new().spawn(read).unwrap();
        Job { child, stdin, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line in time")
    }

    /// The token that the command has found.
    fn token(&self) -> u64 {
        self.line().strip_prefix("held ").unwrap().parse().unwrap()
    }

    fn terminate(&self) {
        self.signal("TERM");
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    }

    /// The process that [`FAMILY`] has started.
    fn child(&self) -> String {
        self.line().strip_prefix("child ").unwrap().to_owned()
    }

    /// The exit code and the standard error.
    fn end(self) -> (i32, String) {
        drop(self.stdin);
        let output = self.child.wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn one_command_at_a_time_runs_under_a_lock() {
    let cluster = Cluster::new(1);
    let mut first = Job::start(&cluster, &["lock", "/job"], JOB);
    let token = first.token();
    let refused = Job::start(&cluster, &["lock", "/job", "--wait", "0"], JOB);
    let (code, error) = refused.end();
    assert_eq!((code, error.contains("/job was not to be had")), (7, true), "{error}");
    // The application's own lock is the same one.
    let lock = cluster.members[0].session().lock("/job").unwrap();
    assert!(lock.try_acquire().wait().unwrap().is_none());
    let mut second = Job::start(&cluster, &["lock", "/job"], JOB);
    writeln!(first.stdin).unwrap();
    assert_eq!(first.end(), (3, String::new()), "the command's own code");
    assert!(second.token() > token);
    writeln!(second.stdin).unwrap();
    assert_eq!(second.end().0, 3);
    assert!(lock.try_acquire().wait().unwrap().is_some(), "nothing is left");
    for what in ["lock", "elect"] {
        let mut free = Job::start(&cluster, &[what, "/job", "--wait", "0"], JOB);
        free.token();
        writeln!(free.stdin).unwrap();
        assert_eq!(free.end().0, 3);
    }
}

#[test]
fn a_command_is_stopped_when_its_lock_is_lost() {
    let cluster = Cluster::new(1);
    for what in ["lock", "elect"] {
        let job = Job::start(&cluster, &[what, "/job"], JOB);
        job.token();
        let sessions = cluster.members[0].sessions().wait().unwrap();
        let holder = sessions.iter().find(|session| session.ephemerals == 1).unwrap().id;
        cluster.members[0].expire_session(holder, "a test").wait().unwrap();
        assert_eq!(job.line(), "asked");
        let (code, error) = job.end();
        assert_eq!((code, error.contains("/job was lost")), (8, true), "{error}");
    }
}

#[test]
fn a_command_that_ignores_sigterm_is_killed() {
    let cluster = Cluster::new(1);
    let job = "trap '' TERM; echo held $QUORATE_TOKEN; while true; do read -t 1 line; done";
    let job = Job::start(&cluster, &["lock", "/job", "--grace", "0"], job);
    job.token();
    job.terminate();
    assert_eq!(job.end().0, 128 + 9);
}

#[test]
fn signals_are_passed_on_and_the_lock_is_released() {
    let cluster = Cluster::new(1);
    let holder = Job::start(&cluster, &["elect", "/leader"], JOB);
    holder.token();
    let waiting = Job::start(&cluster, &["elect", "/leader"], JOB);
    let session = cluster.members[0].session();
    while session.exists("/leader").wait().unwrap().is_none_or(|stat| stat.num_children < 2) {
        std::thread::yield_now();
    }
    // One that waits leaves the line at once.
    waiting.terminate();
    assert_eq!(waiting.end().0, 1);
    assert_eq!(session.children("/leader").wait().unwrap().len(), 1);
    holder.terminate();
    assert_eq!(holder.line(), "asked");
    assert_eq!(holder.end().0, 4);
    assert_eq!(session.children("/leader").wait().unwrap(), Vec::<String>::new());
}

/// Whether a process runs, and is not just not waited for.
fn runs(process: &str) -> bool {
    let state = Command::new("ps").args(["-o", "stat=", "-p", process]).output().unwrap().stdout;
    !state.is_empty() && state[0] != b'Z'
}

fn wait_gone(process: &str) {
    wait_for(|| !runs(process), || format!("the end of {process}"));
}

/// The wrapper ended, and others got the lock beside the command and its child.
#[test]
fn what_was_started_ends_with_the_lock() {
    let cluster = Cluster::new(1);
    for (what, signal) in
        [("lock", "TERM"), ("lock", "QUIT"), ("elect", "USR1"), ("lock", "ALRM"), ("elect", "KILL")]
    {
        let path = format!("/{what}-{signal}");
        let job = Job::start(&cluster, &[what, &path, "--grace", "1"], FAMILY);
        let child = job.child();
        assert!(runs(&child));
        job.signal(signal);
        wait_gone(&child);
    }
}

#[test]
fn signals_of_users_are_passed_on() {
    let cluster = Cluster::new(1);
    let job = "trap 'echo one' USR1; trap 'echo two' USR2; echo ready; \
               while ! read -t 1 line; do [ $? -gt 128 ] || exit 5; done; exit 3";
    let mut job = Job::start(&cluster, &["lock", "/job"], job);
    assert_eq!(job.line(), "ready");
    job.signal("USR1");
    assert_eq!(job.line(), "one");
    job.signal("USR2");
    assert_eq!(job.line(), "two");
    writeln!(job.stdin).unwrap();
    assert_eq!(job.end().0, 3);
}

#[test]
fn a_command_that_is_not_there_exits_as_in_a_shell() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    for (program, expected) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let mut command = cluster.command(&["lock", "/job", "--", program]);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{error}");
        assert!(error.contains(program), "{error}");
        assert_eq!(session.children("/job").wait().unwrap(), Vec::<String>::new());
    }
}

#[test]
fn a_watch_ends_with_its_command() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    for signal in ["TERM", "KILL"] {
        let job = Job::start(&cluster, &["watch", "/w"], FAMILY);
        let child = std::thread::scope(|scope| {
            let child = scope.spawn(|| job.child());
            while !child.is_finished() {
                session.create_or_set("/w", b"", CreateMode::Persistent).wait().unwrap();
            }
            child.join().unwrap()
        });
        job.signal(signal);
        wait_gone(&child);
    }
}

/// At a terminal, the command's children were left to run on.
#[test]
fn at_a_terminal_the_command_has_it_and_ends_as_a_whole() {
    if !has_tmux() {
        return;
    }
    let cluster = Cluster::new(1);
    let program = env!("CARGO_BIN_EXE_quorate");
    let run = |command: &str| {
        let command = format!("'{program}' lock /job --grace 1 -- sh -c '{command}'");
        Screen::start(&command, &cluster.peers, "")
    };
    let screen = run("sleep 1000 & echo child $!; read line; echo got $line; sleep 1000");
    let shown = screen.wait(&["child "]);
    let child = shown.split_whitespace().skip_while(|word| *word != "child").nth(1).unwrap();
    screen.keys(&["m", "i", "n", "e", "Enter"]);
    screen.wait(&["got mine"]);
    let sessions = cluster.members[0].sessions().wait().unwrap();
    let holder = sessions.iter().find(|session| session.ephemerals == 1).unwrap().id;
    cluster.members[0].expire_session(holder, "a test").wait().unwrap();
    screen.wait(&["/job was lost"]);
    screen.wait(&["exited with 8"]);
    wait_gone(child);
    // The shell has the terminal again.
    screen.keys(&["t", "y", "p", "e", "d"]);
    screen.wait(&["typed"]);

    let screen = run("echo ready; sleep 1000");
    screen.wait(&["ready"]);
    screen.keys(&["C-c"]);
    screen.wait(&["exited with 130"]);
}
