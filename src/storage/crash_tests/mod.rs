//! Tests of the store on disk with crashes and damage.
//!
//! `kill` kills a process in the middle of its writes, `power` cuts the power
//! in a model of the disk, `restart` does so after a start that follows the end
//! of a process or a failed sync, `damage` damages files, `scrub` does so while the
//! store is open, `random` does all of it on the simulated file system. In all, what the store holds afterwards must be the contents after the last acknowledged
//! operation or, after a crash, those after the operation in progress. After
//! damage, the store may also refuse to open.
//!
//! Operations are generated from a seed, so the number of operations determines
//! what they were and what the store must hold after them. Except in `random`,
//! child processes perform them: this test binary again, with the task in its environment.

mod damage;
mod disk;
#[cfg(target_os = "linux")]
mod judge;
mod kill;
mod power;
mod random;
mod restart;
mod scrub;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::model::{Model, Op, Random, apply, draw, found};
use super::{CheckpointKind, DiskStore, FsPath, LogStore, StoreOptions};

const ROLE: &str = "QUORATE_CRASH_ROLE";
const DIR: &str = "QUORATE_CRASH_DIR";
const SEED: &str = "QUORATE_CRASH_SEED";
const START: &str = "QUORATE_CRASH_START";
const STEPS: &str = "QUORATE_CRASH_STEPS";
const ACKS: &str = "QUORATE_CRASH_ACKS";

/// See [`options`].
const SEALED: &str = "sealed";
/// See [`options`].
const APART: &str = "apart";

/// Far longer than any child takes: only a child that hangs is stopped.
const CHILD_DEADLINE: Duration = Duration::from_secs(60);

/// The store never chooses a full checkpoint by itself here: the script chooses the kind of each.
/// Segments are short, so that the log often continues in the next one. A directory whose path has [`SEALED`] in it
/// is encrypted, and one with [`APART`] in it has its log in a directory beside it.
fn options(dir: &Path) -> StoreOptions {
    let has = |name: &str| dir.components().any(|part| part.as_os_str() == name);
    let (is_sealed, is_apart) = (has(SEALED), has(APART));
    StoreOptions {
        keys: is_sealed.then(keys).flatten(),
        delta_bytes_min: u64::MAX,
        file_bytes_min: u64::MAX,
        deltas_max: usize::MAX,
        spare_bytes_min: 1,
        segment_bytes: 32 << 10,
        random: 0,
        log_dir: is_apart.then(|| dir.with_file_name("logs")),
    }
}

/// The keys of directories that are encrypted.
fn keys() -> Option<std::sync::Arc<crate::encryption::KeyRing>> {
    Some(std::sync::Arc::new(crate::encryption::KeyRing::for_tests(&["k1"])))
}

/// The operations of a seed, and what the store holds after each.
struct Script {
    seed: u64,
    step: u64,
    model: Model,
    digests: Vec<u64>,
    /// The checkpoint in progress, if the last step was the append in its middle.
    begun: Option<Op>,
}

impl Script {
    fn new(seed: u64) -> Script {
        let disk = super::MemoryDisk::new();
        let model = found(&mut disk.open()).unwrap();
        let digests = vec![model.digest()];
        Script { seed, step: 0, model, digests, begun: None }
    }

    /// The next operation. A checkpoint with an append in its middle is two steps, since a crash may come
    /// between them. Then the append is durable, and the checkpoint is begun again without it.
    fn next(&self) -> (Op, Option<Op>) {
        if let Some(op) = &self.begun {
            return (op.clone(), None);
        }
        let mut random = Random(self.seed ^ (self.step + 1).wrapping_mul(0x9e37_79b9));
        let mut op = draw(&mut random, &self.model, 15);
        if let Op::Checkpoint { between, .. } = &mut op
            && let Some(write) = between.take()
        {
            return (Op::Append(write), Some(op));
        }
        (op, None)
    }

    /// Performs the next operation on the model.
    fn advance(&mut self) {
        let (op, begun) = self.next();
        let full = matches!(op, Op::Checkpoint { full: true, .. });
        let kind = if full { CheckpointKind::Full } else { CheckpointKind::Delta };
        self.model.apply(&op, kind);
        self.begun = begun;
        self.step += 1;
        self.digests.push(self.model.digest());
    }

    /// Performs the next operation on a store and on the model; two operations if they are one call.
    fn perform(&mut self, store: &mut DiskStore, mut ack: impl FnMut(u64)) {
        let (op, begun) = self.next();
        let (Some(Op::Checkpoint { full, chunks, meta, log, .. }), Op::Append(write)) =
            (&begun, &op)
        else {
            apply(store, &op).unwrap();
            self.advance();
            return ack(self.step);
        };
        let mut writer = store.checkpointer().unwrap();
        writer.begin(*full, 0).unwrap();
        let (before, after) = chunks.split_at(chunks.len() / 2);
        for chunk in before {
            writer.put_chunk(chunk).unwrap();
        }
        store.append(write).unwrap();
        self.advance();
        ack(self.step);
        for chunk in after {
            writer.put_chunk(chunk).unwrap();
        }
        writer.finish().unwrap();
        store.commit_checkpoint(meta, *log).unwrap();
        self.advance();
        ack(self.step);
    }

    fn advance_to(&mut self, step: u64) {
        while self.step < step {
            self.advance();
        }
    }

    /// What the store must hold after that many operations.
    fn digest(&mut self, step: u64) -> u64 {
        self.advance_to(step);
        self.digests[step as usize]
    }

    /// The step that these contents belong to, given how many operations were acknowledged.
    fn step_after_crash(&mut self, acked: Option<u64>, seen: &Seen) -> Result<Option<u64>, String> {
        let allowed = match (acked, seen) {
            (None, Seen::Blank) => return Ok(None),
            (None, _) => vec![0],
            (Some(acked), _) => vec![acked, acked + 1],
        };
        if let Seen::Digest(digest) = seen {
            for step in allowed {
                if self.digest(step) == *digest {
                    return Ok(Some(step));
                }
            }
        }
        Err(format!("acknowledged {acked:?}, and found {seen:?}"))
    }
}

/// The result of opening a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Blank,
    Digest(u64),
    Error(String),
    /// The process ended or hung without an answer.
    Nothing,
}

fn open_and_load(dir: &Path) -> Seen {
    let mut store = match DiskStore::open(&FsPath::system(dir), options(dir)) {
        Ok(store) => store,
        Err(error) => return Seen::Error(error.to_string()),
    };
    if store.identity().is_none() {
        return Seen::Blank;
    }
    match Model::of(&mut store) {
        Ok(model) => Seen::Digest(model.digest()),
        Err(error) => Seen::Error(error.to_string()),
    }
}

/// This binary again, with a role.
fn child(role: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "storage::crash_tests::child_process"])
        .args(["--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> + Send + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok)
}

/// What a line of a child that opens directories says.
fn seen_in(line: &str) -> Option<Seen> {
    match line.split_once(' ')? {
        ("blank", _) => Some(Seen::Blank),
        ("digest", digest) => Some(Seen::Digest(digest.parse().unwrap())),
        ("error", error) => Some(Seen::Error(error.to_owned())),
        _ => None,
    }
}

/// Opens directories one after the other in a child process.
fn open_in_child(dirs: &[PathBuf]) -> Vec<Seen> {
    let list: Vec<&str> = dirs.iter().map(|dir| dir.to_str().unwrap()).collect();
    let mut child = child("open", Path::new(&list.join("\n"))).spawn().unwrap();
    let (seen_tx, seen_rx) = channel();
    let lines = lines(&mut child);
    let reader = thread::spawn(move || {
        for line in lines {
            if let Some(seen) = seen_in(&line)
                && seen_tx.send(seen).is_err()
            {
                break;
            }
        }
    });
    let mut all = Vec::new();
    while all.len() < dirs.len() {
        match seen_rx.recv_timeout(CHILD_DEADLINE) {
            Ok(seen) => all.push(seen),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    all.resize(dirs.len(), Seen::Nothing);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(seen_rx);
    reader.join().unwrap();
    all
}

/// Not a test by itself: the work of the other tests' child processes.
#[test]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    // sled reports damage by panicking, on threads of its own as well.
    std::panic::set_hook(Box::new(|_| {}));
    let dir = std::env::var(DIR).unwrap();
    match role.as_str() {
        "open" => {
            for dir in dir.lines() {
                let answer = match open_and_load(Path::new(dir)) {
                    Seen::Blank | Seen::Nothing => "blank -".to_owned(),
                    Seen::Digest(digest) => format!("digest {digest}"),
                    Seen::Error(error) => format!("error {}", error.replace('\n', " ")),
                };
                print_line(&answer);
            }
        }
        "work" => work(Path::new(&dir)),
        other => panic!("no such role: {other}"),
    }
}

/// Prints a line. It starts with a line break, since the test runner may have begun a line.
fn print_line(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{line}").and_then(|()| stdout.flush()).unwrap();
}

/// Performs the operations of a seed from a step on, and acknowledges each.
fn work(dir: &Path) {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let mut acks = std::env::var(ACKS)
        .ok()
        .map(|path| fs::File::options().create(true).append(true).open(path).unwrap());
    let mut ack = |step: u64| match &mut acks {
        Some(file) => file.write_all(format!("{step}\n").as_bytes()).unwrap(),
        None => print_line(&format!("ack {step}")),
    };
    let mut script = Script::new(number(SEED).unwrap());
    let mut store = DiskStore::open(&FsPath::system(dir), options(dir)).unwrap();
    if let Some(start) = number(START) {
        script.advance_to(start);
        assert_eq!(Model::of(&mut store).unwrap(), script.model);
    } else {
        found(&mut store).unwrap();
        ack(0);
    }
    for _ in 0..number(STEPS).unwrap() {
        script.perform(&mut store, &mut ack);
    }
}

pub(super) fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A number from the environment, for longer runs.
fn count(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |count| count.parse().unwrap())
}
