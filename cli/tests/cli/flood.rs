//! A host that connects without end with a client's secret, to members that may have few files open.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use quorate::{Coordinator, CreateMode, Secret};
use serde_json::Value;

use crate::addresses;

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many files a member may have open. It needs about 25, so it leaves hardly any to clients.
const FILES: &str = "48";
/// How long a client of the flood waits to be let in.
const TRY: Duration = Duration::from_secs(5);
const OF_MEMBERS: &str = "violin-carbon-otter-meadow-quartz-members";
const OF_OPERATORS: &str = "violin-carbon-otter-meadow-quartz-operators";
const OF_CLIENTS: &str = "violin-carbon-otter-meadow-quartz-clients";

struct Cluster {
    root: PathBuf,
    peers: Vec<String>,
    zookeeper: Vec<String>,
    processes: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Cluster {
    fn start(root: &Path) -> Cluster {
        for (name, secret) in
            [("members", OF_MEMBERS), ("operators", OF_OPERATORS), ("clients", OF_CLIENTS)]
        {
            fs::write(root.join(name), secret).unwrap();
            fs::set_permissions(root.join(name), Permissions::from_mode(0o600)).unwrap();
        }
        let mut all = addresses::addresses(6);
        let zookeeper = all.split_off(3);
        let root = root.to_owned();
        let mut cluster = Cluster { root, peers: all, zookeeper, processes: Vec::new() };
        for member in 0..3 {
            let process = cluster.serve(member);
            cluster.processes.push(process);
        }
        cluster
    }

    fn serve(&self, member: usize) -> Child {
        let path = |name: &str| self.root.join(name).to_str().unwrap().to_owned();
        let log = path(&format!("log-{member}"));
        let log = File::options().append(true).create(true).open(log).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -n "$0" && exec "$@""#, FILES]);
        command.arg(env!("CARGO_BIN_EXE_quorate"));
        command.args(["serve", "--peers", &self.peers.join(",")]);
        command.args(["--advertise", &self.peers[member], "--zookeeper", &self.zookeeper[member]]);
        command.args(["--data-dir", &path(&format!("data-{member}")), "--tick-time", "500"]);
        command.args(["--max-client-cnxns", "0", "--secret-file", &path("members")]);
        command.args(["--operators-secret-file", &path("operators")]);
        command.args(["--clients-secret-file", &path("clients")]).env_remove("RUST_LOG");
        command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    fn logs(&self) -> Vec<String> {
        let log = |member| fs::read_to_string(self.root.join(format!("log-{member}"))).unwrap();
        (0..3).map(log).collect()
    }

    fn ask(&self, secret: &str, arguments: &[&str]) -> Output {
        let (name, rest) = arguments.split_first().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args([name, "--peers", &self.peers.join(","), "--timeout", "60"]).args(rest);
        command.arg("--secret-file").arg(self.root.join(secret)).output().unwrap()
    }
}

fn client(peers: &[String], secret: &str) -> Coordinator {
    let builder = Coordinator::builder().client().security(Secret::new(secret).unwrap());
    builder.join(peers).wait().unwrap()
}

/// Connects to a gateway, and asks for a session. Whether it answers.
fn is_served(address: &str, open: &mut Vec<TcpStream>) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let fields =
        [&[0; 12][..], &10_000_u32.to_be_bytes(), &[0; 8], &16_u32.to_be_bytes(), &[0; 16]];
    let request = fields.concat();
    let length = u32::try_from(request.len()).unwrap().to_be_bytes();
    let written = stream.write_all(&[&length[..], &request].concat());
    let answers = written.is_ok() && stream.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0);
    open.push(stream);
    answers
}

/// One process with a client's secret had all files of every member in three seconds. No operator was let in, no member
/// that had started again, and no checkpoint could be written.
#[test]
fn a_client_that_connects_without_end_keeps_nobody_else_out() {
    let root = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(root.path());
    let operator = client(&cluster.peers, OF_OPERATORS);
    operator.wait_ready(PATIENCE).wait().unwrap();
    let session = operator.session();
    session.create("/w", b"", CreateMode::Persistent).wait().unwrap();

    let (refused, first_refused) = mpsc::channel();
    let (stop, peers) = (Arc::new(AtomicBool::new(false)), cluster.peers.clone());
    let is_over = Arc::clone(&stop);
    let flood = move || {
        let mut connected = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let client = client(&peers, OF_CLIENTS);
            match client.wait_ready(TRY).wait() {
                Ok(()) => connected.push(client),
                Err(_) => refused.send(()).unwrap_or_default(),
            }
        }
    };
    let flood = thread::Builder::new().spawn(flood).unwrap();
    first_refused.recv().unwrap();
    // An operator comes, and a member starts again.
    let status = cluster.ask("operators", &["status"]);
    assert!(status.status.success(), "{} {}", text(&status.stdout), text(&status.stderr));
    cluster.processes[2].kill().unwrap();
    cluster.processes[2].wait().unwrap();
    cluster.processes[2] = cluster.serve(2);
    let all_report = || {
        let members = cluster.ask("members", &["members", "--json"]);
        assert_ne!(members.status.code(), Some(2), "{}", text(&members.stderr));
        let members: Value = serde_json::from_slice(&members.stdout).unwrap_or_default();
        let members = members["members"].as_array().cloned().unwrap_or_default();
        members.len() == 3 && members.iter().all(|member| member["is_silent"] == false)
    };
    assert!((0..30).any(|_| all_report()), "{:#?}", cluster.logs());
    // Checkpoints are written.
    let had: Vec<usize> =
        cluster.logs().iter().map(|log| log.matches(": a checkpoint").count()).collect();
    let has_more = |logs: &[String]| {
        logs.iter().zip(&had).all(|(log, had)| log.matches(": a checkpoint").count() > *had)
    };
    for _ in 0..200 {
        if has_more(&cluster.logs()) {
            break;
        }
        session.set("/w", vec![7; 900_000]).wait().unwrap();
    }
    let logs = cluster.logs();
    assert!(has_more(&logs) && !logs.concat().contains("cannot write a checkpoint"), "{logs:#?}");
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();

    // The gateway's clients leave the same files, and a monitor sees that.
    let mut open = Vec::new();
    while is_served(&cluster.zookeeper[0], &mut open) {
        assert!(open.len() < 64, "more than there are files");
    }
    let mut monitor = TcpStream::connect(&cluster.zookeeper[0]).unwrap();
    monitor.write_all(b"srvr").unwrap();
    let mut answer = String::new();
    monitor.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("Zookeeper version"), "{answer}");
}
