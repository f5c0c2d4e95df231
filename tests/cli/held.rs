//! `quorate lock` and `quorate elect`: commands that run while something is held.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use crate::common::cluster::Cluster;

const PATIENCE: Duration = Duration::from_secs(60);

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
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
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
    assert!(lock.try_acquire().unwrap().is_none());
    let mut second = Job::start(&cluster, &["lock", "/job"], JOB);
    writeln!(first.stdin).unwrap();
    assert_eq!(first.end(), (3, String::new()), "the command's own code");
    assert!(second.token() > token);
    writeln!(second.stdin).unwrap();
    assert_eq!(second.end().0, 3);
    assert!(lock.try_acquire().unwrap().is_some(), "nothing is left");
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
        let sessions = cluster.members[0].sessions().unwrap();
        let holder = sessions.iter().find(|session| session.ephemerals == 1).unwrap().id;
        cluster.members[0].expire_session(holder, "a test").unwrap();
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
    while session.exists("/leader").unwrap().is_none_or(|stat| stat.num_children < 2) {
        std::thread::yield_now();
    }
    // One that waits leaves the line at once.
    waiting.terminate();
    assert_eq!(waiting.end().0, 1);
    assert_eq!(session.children("/leader").unwrap().len(), 1);
    holder.terminate();
    assert_eq!(holder.line(), "asked");
    assert_eq!(holder.end().0, 4);
    assert_eq!(session.children("/leader").unwrap(), Vec::<String>::new());
}
