//! `quorate serve` and its secrets: how the shared secret is changed while the cluster works, and what is logged of
//! files and tokens.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::addresses;
use quorate::{Coordinator, CreateMode, Secret};

const PATIENCE: Duration = Duration::from_secs(60);
const OLD: &str = "violin-carbon-otter-meadow-quartz-lantern";
const NEW: &str = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";

/// A process that serves, with its own secret file and log.
struct Member {
    address: String,
    dir: PathBuf,
    process: Option<Child>,
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Member {
    fn new(root: &Path, address: String) -> Member {
        let dir = root.join(address.replace(':', "_"));
        fs::create_dir(&dir).unwrap();
        Member { address, dir, process: None }
    }

    fn write(&self, file: &str, text: &str, mode: u32) {
        let file = self.dir.join(file);
        fs::write(&file, text).unwrap();
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }

    fn start(&mut self, peers: &str, more: &[&str]) {
        let path = |name: &str| self.dir.join(name).to_str().unwrap().to_owned();
        let log = File::options().append(true).create(true).open(path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(["serve", "--peers", peers, "--advertise", &self.address]);
        command.args(["--data-dir", &path("data"), "--secret-file", &path("secret")]);
        command.args(["--zookeeper", "127.0.0.1:0", "--tick-time", "500"]).args(more);
        command.env_remove("NO_COLOR").env_remove("RUST_LOG").stdout(log.try_clone().unwrap());
        self.process = Some(command.stderr(log).spawn().unwrap());
    }

    fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        let pid = process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(process.wait().unwrap().success(), "{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    fn wait_for_log(&self, text: &str) -> String {
        loop {
            let log = self.log();
            if log.contains(text) {
                return log;
            }
            thread::yield_now();
        }
    }
}

fn client(peers: &str, secret: &str) -> Coordinator {
    let builder = Coordinator::builder().client().security(Secret::new(secret).unwrap());
    builder.join(peers.split(',')).wait().unwrap()
}

/// Writes without a pause until it is stopped, and returns how many writes there were.
fn write(peers: &str, secret: &str, stop: &'static AtomicBool) -> JoinHandle<u64> {
    let (peers, secret) = (peers.to_owned(), secret.to_owned());
    stop.store(false, Ordering::Relaxed);
    let write = move || {
        let client = client(&peers, &secret);
        client.wait_ready(PATIENCE).wait().unwrap();
        let session = client.session();
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            session.set("/count", b"").wait().unwrap();
            count += 1;
        }
        client.close().wait().unwrap();
        count
    };
    thread::Builder::new().spawn(write).unwrap()
}

/// The secret of `serve` could not be changed: a file of two lines was taken as one other passphrase. All three rounds
/// of docs/security.md, without a restart, with writes that never stop and never fail.
#[test]
fn the_secret_is_changed_in_three_rounds_without_a_failed_write() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let root = tempfile::tempdir().unwrap();
    let mut members: Vec<Member> =
        (0..3).map(|_| Member::new(root.path(), addresses::address())).collect();
    let peers = members.iter().map(|member| member.address.clone()).collect::<Vec<_>>().join(",");
    for member in &mut members {
        member.write("secret", &format!("{OLD}\n"), 0o600);
        member.start(&peers, &[]);
    }
    let setup = client(&peers, OLD);
    setup.wait_ready(PATIENCE).wait().unwrap();
    setup.session().create("/count", b"", CreateMode::Persistent).wait().unwrap();
    setup.close().wait().unwrap();

    let mut rounds = 0;
    let mut round = |text: &str, known: &str| {
        rounds += 1;
        let operator = client(&peers, known);
        for member in &members {
            member.write("secret", text, 0o600);
        }
        for member in &members {
            let used = || member.log().matches("the renewed credentials").count();
            while used() < rounds {
                thread::yield_now();
            }
        }
        let all_report = || {
            let reports = operator.reports().wait().unwrap_or_default();
            reports.len() == 3 && reports.iter().all(|member| !member.is_silent)
        };
        while !all_report() {}
        operator.close().wait().unwrap();
    };
    let writer = write(&peers, OLD, &STOP);
    round(&format!("{OLD}\n{NEW}\n"), OLD);
    round(&format!("{NEW}\n{OLD}\n"), OLD);
    STOP.store(true, Ordering::Relaxed);
    let mut written = writer.join().unwrap();
    // Now the clients have the new one, before the members forget the old one.
    let writer = write(&peers, NEW, &STOP);
    round(&format!("{NEW}\n"), NEW);
    STOP.store(true, Ordering::Relaxed);
    written += writer.join().unwrap();

    let last = client(&peers, NEW);
    last.wait_ready(PATIENCE).wait().unwrap();
    let session = last.session();
    session.sync().wait().unwrap();
    let stat = session.exists("/count").wait().unwrap().unwrap();
    assert_eq!(stat.version, written);
    assert!(written > 10, "{written}");
    last.close().wait().unwrap();
    let stranger = client(&peers, OLD);
    assert!(
        stranger.wait_ready(Duration::from_secs(2)).wait().is_err(),
        "the old secret is forgotten"
    );
    stranger.close().wait().unwrap();
}

/// A log file had colour codes; a secret that everybody can read was taken without a word, and so were thousands of
/// wrong tokens.
#[test]
fn the_log_warns_of_exposed_files_and_wrong_tokens_without_colours() {
    let root = tempfile::tempdir().unwrap();
    let mut member = Member::new(root.path(), addresses::address());
    let admin = addresses::address();
    let dir = member.dir.clone();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (token, secret) = (path("token"), path("secret"));
    member.write("secret", OLD, 0o644);
    member.write("token", "a-token-of-more-than-16-characters", 0o660);
    let peers = member.address.clone();
    // These were there before.
    let (audit, data) = (path("audit"), path("data"));
    member.write("audit", "", 0o666);
    fs::create_dir_all(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o777)).unwrap();
    let options = ["--admin", &admin, "--admin-token-file", &token, "--audit-file", &audit];
    member.start(&peers, &options);
    member.wait_for_log("operators are served");
    let ask = |token: &str| {
        let mut stream = TcpStream::connect(&admin).unwrap();
        write!(stream, "GET /status HTTP/1.0\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for _ in 0..200 {
        assert!(ask("wrong-token-of-about-that-length").contains("401"));
    }
    assert!(ask("a-token-of-more-than-16-characters").contains("200"));
    let log = member.wait_for_log("wrong tokens");
    let lines = |what: &[&str]| {
        log.lines().filter(|line| what.iter().all(|part| line.contains(part))).count()
    };
    assert_eq!(lines(&["WARN", "everybody can read this file", &secret, "644"]), 1, "{log}");
    assert_eq!(lines(&["WARN", "its group can read this file", &token, "660"]), 1, "{log}");
    assert_eq!(lines(&["WARN", "everybody can read this file", &audit, "666"]), 1, "{log}");
    assert_eq!(lines(&["WARN", "everybody can write to this directory", &data, "777"]), 1, "{log}");
    let wrong = lines(&["WARN", "wrong tokens", "from=127.0.0.1:"]);
    assert!((1..=10).contains(&wrong), "{wrong} lines for 200 requests: {log}");
    assert!(!log.contains('\u{1b}'), "{log:?}");
    assert!(!log.contains("wrong-token") && !log.contains(OLD), "no secret is in the log: {log}");
    member.stop();

    member.write("secret", OLD, 0o600);
    member.write("token", "a-token-of-more-than-16-characters", 0o600);
    fs::set_permissions(&audit, Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(path("log")).unwrap();
    member.start(&peers, &options);
    let log = member.wait_for_log("operators are served");
    assert!(!log.contains("chmod"), "{log}");
    member.stop();
}

/// A command warns, too, and a file that is no secret is named with its line.
#[test]
fn a_command_names_the_file_and_the_line() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("secret");
    let run = |text: &str, mode: u32| {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(["status", "--timeout", "1", "--peers", &addresses::address()]);
        let output = command.env("QUORATE_SECRET_FILE", &file).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = run(&format!("{OLD}\nshort\n"), 0o600);
    assert!(code == Some(2) && error.contains("secret:2: it could be guessed"), "{code:?} {error}");
    let (_, error) = run(&format!("{OLD}\n{NEW}\n"), 0o644);
    assert!(error.starts_with("warning: ") && error.contains("everybody can read it"), "{error}");
    let (_, error) = run(&format!("{OLD}\n{NEW}\n"), 0o600);
    assert!(!error.contains("warning"), "{error}");
}
