//! Members as processes of their own, each with its log in a directory of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::addresses;
use crate::data_dir::{current, former};
use quorate::{Coordinator, CreateMode};

const PATIENCE: Duration = Duration::from_secs(60);

struct Member {
    root: PathBuf,
    name: String,
    address: String,
    process: Option<Child>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Member {
    fn data(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The directory for the logs of all members.
    fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The directory of this member's log.
    fn log(&self) -> PathBuf {
        log_of(&self.logs(), &current(&self.data()))
    }

    fn output(&self) -> PathBuf {
        self.root.join(format!("{}.log", self.name))
    }

    fn command(&self, peers: &str, data: &Path) -> Command {
        let output = File::options().append(true).create(true).open(self.output()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(["serve", "--peers", peers, "--advertise", &self.address, "--data-dir"]);
        command.arg(data).args(["--zookeeper", "127.0.0.1:0", "--tick-time", "500"]);
        command.env_remove("RUST_LOG").stdout(output.try_clone().unwrap()).stderr(output);
        command
    }

    fn start(&mut self, peers: &str) {
        let mut command = self.command(peers, &self.data());
        command.arg("--log-dir").arg(self.logs());
        self.process = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// What a start that fails says.
    fn refused(&self, command: &mut Command) -> String {
        let _ = fs::remove_file(self.output());
        let output = File::create(self.output()).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let code = command.spawn().unwrap().wait().unwrap().code();
        let text = fs::read_to_string(self.output()).unwrap();
        assert_eq!(code, Some(1), "{text}");
        assert!(!self.data().join("QUARANTINED").exists(), "{text}");
        text
    }
}

fn log_of(logs: &Path, incarnation: &Path) -> PathBuf {
    let name = incarnation.file_name().unwrap().to_str().unwrap();
    logs.join(name.replace("incarnation-", "log-"))
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// The names of all files below a directory.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

fn quorate(arguments: &[&str], paths: &[&Path]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    let output = command.args(arguments).args(paths).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Creates znodes in a running cluster.
fn write(peers: &str, names: &[&str]) {
    let client = Coordinator::builder().client().join(peers.split(',')).wait().unwrap();
    client.wait_ready(PATIENCE).wait().unwrap();
    for name in names {
        client.session().create(name, b"x", CreateMode::Persistent).wait().unwrap();
    }
    client.close().wait().unwrap();
}

fn has(peers: &str, names: &[&str]) {
    let client = Coordinator::builder().client().join(peers.split(',')).wait().unwrap();
    client.wait_ready(PATIENCE).wait().unwrap();
    for name in names {
        assert!(client.session().exists(name).wait().unwrap().is_some(), "{name}");
    }
    client.close().wait().unwrap();
}

/// What a data directory knows of its log.
fn recorded(data: &Path) -> Option<Vec<u8>> {
    let entries = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    entries.filter_map(|entry| fs::read(entry.join("LOG_DIR")).ok()).next()
}

/// What the files of this log have.
fn contents(log: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let entries = fs::read_dir(log.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.map(|path| (path.clone(), fs::read(path).ok())).collect();
    files.sort();
    files
}

#[test]
fn members_with_logs_elsewhere_lose_nothing_and_take_no_other_log() {
    let work = tempfile::tempdir().unwrap();
    let addresses = addresses::addresses(3);
    let peers = addresses.join(",");
    let mut members: Vec<Member> = (0..3)
        .map(|place| Member {
            root: work.path().to_owned(),
            name: format!("member-{place}"),
            address: addresses[place].clone(),
            process: None,
        })
        .collect();
    members.iter_mut().for_each(|member| member.start(&peers));
    write(&peers, &["/a", "/b"]);
    for member in &members {
        let found = files(&member.data());
        assert!(!found.contains(&"witness".to_owned()), "{found:?}");
        let found = files(&member.logs());
        assert!(!found.contains(&"db".to_owned()), "{found:?}");
        assert!(member.log().join("log/witness").exists());
    }

    // All are killed, and nothing is lost.
    members.iter_mut().for_each(Member::kill);
    members.iter_mut().for_each(|member| member.start(&peers));
    has(&peers, &["/a", "/b"]);

    // A copy of a data directory, while the original runs, and after it.
    let copied = work.path().join("copy");
    copy(&members[0].data(), &copied);
    let other = addresses::address();
    let second = Member {
        root: work.path().to_owned(),
        name: "copy".to_owned(),
        address: other.clone(),
        process: None,
    };
    let text = second.refused(&mut second.command(&other, &copied));
    assert!(text.contains("locked its log") && text.contains("copy"), "{text}");
    let (ok, text) = quorate(&["inspect"], &[&copied]);
    assert!(!ok && text.contains("locked its log") && text.contains("copy"), "{text}");
    write(&peers, &["/c"]);
    members[0].kill();
    members[0].start(&peers);
    has(&members[0].address, &["/c"]);
    // The others may have answered. From the end of its start on, before it writes to its log, the copy does not fit.
    while recorded(&members[0].data()) == recorded(&copied) {
        std::thread::yield_now();
    }
    let logged = contents(&members[0].log());
    write(&peers, &["/e"]);
    while contents(&members[0].log()) == logged {
        std::thread::yield_now();
    }
    members[0].kill();
    let one = &members[0];
    let text = one.refused(&mut one.command(&peers, &copied));
    assert!(text.contains("old copy"), "{text}");

    // Another log_dir, an absent one, and the log of another member.
    let fast = work.path().join("fast");
    let text = one.refused(one.command(&peers, &one.data()).arg("--log-dir").arg(&fast));
    assert!(text.contains(fast.to_str().unwrap()) && text.contains("joins its cluster"), "{text}");
    let (log, away) = (one.log(), work.path().join("away"));
    fs::rename(&log, &away).unwrap();
    let text = one.refused(&mut one.command(&peers, &one.data()));
    assert!(text.contains(log.to_str().unwrap()) && text.contains("mount"), "{text}");
    copy(&members[1].log(), &log);
    let text = one.refused(&mut one.command(&peers, &one.data()));
    assert!(text.contains("another member"), "{text}");
    fs::remove_dir_all(&log).unwrap();
    fs::rename(&away, &log).unwrap();

    // A damaged log: the member joins again, with a new log beside the former one.
    fs::write(log.join("log/witness"), "nonsense").unwrap();
    members[0].start(&peers);
    while former(&members[0].data()).is_empty() {
        std::thread::yield_now();
    }
    write(&peers, &["/d"]);
    assert!(log.exists() && members[0].log().exists() && members[0].log() != log);
    assert_eq!(names(&members[0].logs()).len(), 4);
    has(&peers, &["/a", "/b", "/c", "/d"]);

    // Two are carried elsewhere, and a new cluster is made of what is left.
    members.iter_mut().for_each(Member::kill);
    let carried = work.path().join("carried");
    fs::create_dir(&carried).unwrap();
    let logs = carried.join("logs");
    fs::rename(work.path().join("logs"), &logs).unwrap();
    let data: Vec<PathBuf> = members.iter().map(|member| carried.join(&member.name)).collect();
    for (member, to) in members.iter().zip(&data) {
        fs::rename(member.data(), to).unwrap();
    }
    let (ok, text) = quorate(&["inspect"], &[&data[1]]);
    assert!(!ok && text.contains("--log-dir"), "{text}");
    let log_dir = ["--log-dir", logs.to_str().unwrap()];
    let (ok, text) = quorate(&[&["inspect"], &log_dir[..]].concat(), &[&data[1], &data[2]]);
    assert!(ok && !text.contains("damaged"), "{text}");
    // One without its log is a line of the plan.
    let (log, away) = (log_of(&logs, &current(&data[2])), carried.join("away"));
    fs::rename(&log, &away).unwrap();
    let (ok, text) = quorate(&[&["recover"], &log_dir[..]].concat(), &[&data[1], &data[2]]);
    assert!(ok && text.contains("not used") && text.contains("is not at"), "{text}");
    fs::rename(&away, &log).unwrap();
    let yes = [&["recover", "--yes"], &log_dir[..]].concat();
    let (ok, text) = quorate(&yes, &[&data[1], &data[2]]);
    assert!(ok && text.contains("founded cluster"), "{text}");
    let founded = if text.contains(&format!("in {}", data[1].display())) { 1 } else { 2 };
    let member = &mut members[founded];
    let mut command = member.command(&member.address, &data[founded]);
    member.process = Some(command.spawn().unwrap());
    has(&members[founded].address, &["/a", "/b", "/c", "/d"]);
    assert!(log_of(&logs, &current(&data[founded])).join("log/witness").exists());
    assert!(!current(&data[founded]).join("log").exists());
}
