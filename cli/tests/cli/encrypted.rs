//! `quorate serve` and the offline commands with keys for encryption at rest.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::addresses;
use crate::data_dir::current;
use quorate::acl::Acl;
use quorate::{Coordinator, CreateMode};

const PATIENCE: Duration = Duration::from_secs(60);
const FIRST: &str = "k1: Uq4jM1HdEFfJzH1QYh4pZ2f0d4bI0mZVv5x3n0a7c8k=\n";
const SECOND: &str = "k2: 3jR0n5Yp0m1yC1sT6w0v9Z8b7x6a5s4d3f2g1h0jK9k=\n";
const WRONG: &str = "k2: AAR0n5Yp0m1yC1sT6w0v9Z8b7x6a5s4d3f2g1h0jK9k=\n";

const DATA: &str = "recognisable-data-7c2e";
const PATH: &str = "/recognisable-path-7c2e";
const USER: &str = "recognisable-user-7c2e";

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
    fn new(root: &Path) -> Member {
        let address = addresses::address();
        let dir = root.join(address.replace(':', "_"));
        fs::create_dir(&dir).unwrap();
        Member { address, dir, process: None }
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn start(&mut self, peers: &str, keys: &str) {
        let path = |name: &str| self.dir.join(name);
        fs::write(path("keys"), keys).unwrap();
        let log = File::options().append(true).create(true).open(path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(["serve", "--peers", peers, "--advertise", &self.address]);
        command.arg("--data-dir").arg(self.data()).arg("--data-key-file").arg(path("keys"));
        command.args(["--zookeeper", "127.0.0.1:0"]).env_remove("RUST_LOG");
        self.process = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        let pid = process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(process.wait().unwrap().success());
    }

    /// The exit code of a start that fails, and its log.
    fn fail(&mut self, peers: &str, keys: &str) -> (Option<i32>, String) {
        let _ = fs::remove_file(self.dir.join("log"));
        self.start(peers, keys);
        let code = self.process.take().unwrap().wait().unwrap().code();
        (code, fs::read_to_string(self.dir.join("log")).unwrap())
    }

    /// How long the files of chunks are.
    fn database_bytes(&self) -> u64 {
        let entries = fs::read_dir(current(&self.data())).unwrap().flatten();
        entries
            .filter_map(|entry| fs::metadata(entry.path().join("chunks")).ok())
            .map(|file| file.len())
            .sum()
    }
}

/// Checks that a file, or each file below a directory, has none of these in clear.
fn hides(path: &Path, all: &[&[u8]]) {
    for secret in all {
        // grep looks line by line.
        let is_end = |byte: &u8| matches!(byte, 0 | b'\n');
        let piece = secret.split(is_end).max_by_key(|piece| piece.len()).unwrap();
        let pattern: String = piece.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let mut grep = Command::new("grep");
        grep.args(["-raPl", "--", &pattern]).arg(path).env("LC_ALL", "C");
        let output = grep.output().unwrap();
        let found = String::from_utf8_lossy(&output.stdout);
        // 1: nothing was found. 2, but with no output: a file was removed meanwhile.
        assert!(output.status.code() != Some(0) && found.is_empty(), "in clear: {found}");
    }
}

fn quorate(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_quorate")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn client(peers: &str) -> Coordinator {
    let client = Coordinator::builder().client().join(peers.split(',')).wait().unwrap();
    client.wait_ready(PATIENCE).wait().unwrap();
    client
}

/// Everything that an operator does with a key: three members have it, it is changed under writes, one that is wrong
/// does no harm, and backups need it.
#[test]
fn three_members_change_their_key_and_nothing_is_in_clear() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let root = tempfile::tempdir().unwrap();
    let mut members: Vec<Member> = (0..3).map(|_| Member::new(root.path())).collect();
    let peers = members.iter().map(|member| member.address.clone()).collect::<Vec<_>>().join(",");
    for member in &mut members {
        member.start(&peers, FIRST);
    }
    let operator = client(&peers);
    let session = operator.session();
    session.add_auth("digest", format!("{USER}:password")).wait().unwrap();
    session
        .create_with_acl(PATH, DATA, CreateMode::Persistent, &Acl::creator_all())
        .wait()
        .unwrap();
    session.create("/count", b"", CreateMode::Persistent).wait().unwrap();
    // Enough for a checkpoint of each member, and for several segments of the log.
    let large = DATA.repeat(40_000);
    let before: Vec<u64> = members.iter().map(Member::database_bytes).collect();
    for _ in 0..26 {
        session.set(PATH, large.as_bytes()).wait().unwrap();
    }
    for (member, before) in members.iter().zip(before) {
        while member.database_bytes() < before + (large.len() / 2) as u64 {
            thread::yield_now();
        }
    }
    let password = session.password();
    let secrets = [DATA.as_bytes(), &PATH.as_bytes()[1..], USER.as_bytes(), &password];

    let of = peers.clone();
    let writer = thread::Builder::new().spawn(move || {
        let client = client(&of);
        let session = client.session();
        while !STOP.load(Ordering::Relaxed) {
            session.set("/count", DATA).wait().unwrap();
            WRITTEN.fetch_add(1, Ordering::Relaxed);
        }
        client.close().wait().unwrap();
    });
    // Both keys, the new one first; then the new one alone.
    for keys in [format!("{SECOND}{FIRST}"), SECOND.to_owned()] {
        for member in &mut members {
            member.stop();
            member.start(&peers, &keys);
            let all_report = || {
                let reports = operator.reports().wait().unwrap_or_default();
                reports.len() == 3 && reports.iter().all(|member| !member.is_silent)
            };
            while !all_report() {
                thread::yield_now();
            }
            let before = WRITTEN.load(Ordering::Relaxed);
            while WRITTEN.load(Ordering::Relaxed) < before + 20 {
                thread::yield_now();
            }
        }
    }
    STOP.store(true, Ordering::Relaxed);
    writer.unwrap().join().unwrap();
    session.sync().wait().unwrap();
    let stat = session.exists("/count").wait().unwrap().unwrap();
    assert_eq!(stat.version, WRITTEN.load(Ordering::Relaxed));
    for member in &members {
        hides(&member.data(), &secrets);
    }
    // What is looked for would be found.
    fs::write(root.path().join("clear"), [&password, &b" "[..], DATA.as_bytes()].concat()).unwrap();
    for secret in [DATA.as_bytes(), &password] {
        let search = || hides(&root.path().join("clear"), &[secret]);
        assert!(std::panic::catch_unwind(search).is_err());
    }

    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (keys, backup, restored) = (path("keys"), path("backup"), path("restored"));
    fs::write(&keys, SECOND).unwrap();
    let (code, output, error) =
        quorate(&["backup", "--peers", &peers, "--data-key-file", &keys, &backup]);
    assert_eq!(code, Some(0), "{error}");
    assert!(output.contains("encrypted under key k2"), "{output}");
    hides(Path::new(&backup), &secrets);
    let (code, _, error) = quorate(&["verify", &backup]);
    assert!(
        code == Some(1) && error.contains("under key \"k2\", and no keys are given"),
        "{error}"
    );
    fs::write(path("other"), FIRST).unwrap();
    let (code, _, error) = quorate(&["verify", "--data-key-file", &path("other"), &backup]);
    assert!(code == Some(1) && error.contains("(it has \"k1\")"), "{error}");
    let (code, output, error) = quorate(&["verify", "--data-key-file", &keys, &backup]);
    assert!(code == Some(0) && output.contains("encrypted under key k2"), "{output}{error}");
    let (code, _, error) = quorate(&["diff", "--data-key-file", &keys, "--peers", &peers, &backup]);
    assert_eq!(code, Some(0), "{error}");
    let restore =
        ["restore", "--data-key-file", &keys, &backup, &restored, "--address", "127.0.0.1:1"];
    let (code, _, error) = quorate(&restore);
    assert_eq!(code, Some(0), "{error}");
    hides(Path::new(&restored), &secrets);
    let (code, _, error) = quorate(&["inspect", &restored]);
    assert!(code == Some(1) && error.contains("no keys are given"), "{error}");
    let (code, output, error) = quorate(&["inspect", "--data-key-file", &keys, &restored]);
    assert!(code == Some(0) && output.contains("znodes"), "{output}{error}");
    let (code, _, error) = quorate(&["recover", "--yes", "--data-key-file", &keys, &restored]);
    assert_eq!(code, Some(0), "{error}");
    hides(Path::new(&restored), &secrets);

    let [member, ..] = &mut members[..] else { unreachable!("there are three") };
    member.stop();
    for (wrong, expected) in [
        (WRONG, "key \"k2\" of"),
        (FIRST, "under key \"k2\", which"),
        ("k2: short", "line 1: the key is 32 random bytes in base64"),
    ] {
        let (code, log) = member.fail(&peers, wrong);
        assert_eq!(code, Some(1), "{log}");
        assert!(log.contains(expected) && log.contains("keys"), "{log}");
        assert!(!member.data().join("QUARANTINED").exists(), "{log}");
    }
    member.start(&peers, SECOND);
    while fs::read_to_string(member.dir.join("log"))
        .unwrap()
        .matches("the data directory is open")
        .count()
        < 1
    {
        thread::yield_now();
    }
    let own = client(&member.address);
    assert!(own.reports().wait().unwrap().len() == 3);
    own.close().wait().unwrap();
    operator.close().wait().unwrap();
}
