//! Cuts the power at any moment, on a disk that keeps no more than it must.
//!
//! A recorder records the system calls of a child. From the record, the test
//! rebuilds the directory as a power cut after any of the calls could leave it.
//! All synced data is there. Of the other data there is nothing, a first part,
//! any part or any sectors, and the file has grown or not. Names that were
//! made, changed or removed since their directory was synced exist or not. The
//! test continues from one of the images, so power cuts hit recovery as well.
//!
//! Not modelled: sectors torn within, disks that lie about a sync.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::model::Random;
use super::{ACKS, SEED, START, STEPS, Script, Seen, child, count, open_in_child};

const POWER_SEED: u64 = 2026;
const ROUNDS: u64 = 10;
const SECTOR: usize = 512;

#[derive(Debug)]
struct Call {
    kind: u8,
    path: PathBuf,
    offset: usize,
    data: Vec<u8>,
}

fn read_calls(log: &Path) -> Vec<Call> {
    let log = fs::read(log).unwrap();
    let mut rest = log.as_slice();
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        let (kind, path, data) = (rest[0], number(1), number(5));
        let offset = u64::from_le_bytes(rest[9..17].try_into().unwrap()) as usize;
        let text = |bytes: &[u8]| PathBuf::from(str::from_utf8(bytes).unwrap());
        calls.push(Call {
            kind,
            path: text(&rest[17..17 + path]),
            offset,
            data: rest[17 + path..17 + path + data].to_vec(),
        });
        rest = &rest[17 + path + data..];
    }
    calls
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(offset, data) => {
                let end = offset + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset..end].copy_from_slice(data);
            }
            Change::Truncate(length) => bytes.resize(*length, 0),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct File {
    synced: Vec<u8>,
    pending: Vec<Change>,
}

/// The target of a name: a directory, or a file by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    File(usize),
}

/// A change of names: at most one is removed, and at most one added.
#[derive(Clone, Debug)]
struct NameChange {
    removed: Option<PathBuf>,
    added: Option<(PathBuf, Node)>,
}

type Names = BTreeMap<PathBuf, Node>;

impl NameChange {
    fn apply(&self, names: &mut Names) {
        if let Some(path) = &self.removed {
            names.remove(path);
        }
        if let Some((path, node)) = &self.added {
            names.insert(path.clone(), *node);
        }
    }

    fn is_in(&self, directory: &Path) -> bool {
        let in_it = |path: &PathBuf| path.parent() == Some(directory);
        self.removed.as_ref().is_some_and(in_it)
            || self.added.as_ref().is_some_and(|(path, _)| in_it(path))
    }
}

/// The disk: the data that is certainly on it, and the data that may be.
#[derive(Debug, Default)]
struct Disk {
    files: Vec<File>,
    live: Names,
    synced: Names,
    pending: Vec<NameChange>,
}

impl Disk {
    /// A disk with everything below a directory synced.
    fn of(dir: &Path) -> Disk {
        let mut disk = Disk::default();
        disk.take(dir);
        disk.synced = disk.live.clone();
        disk
    }

    fn take(&mut self, path: &Path) {
        if path.is_dir() {
            self.live.insert(path.to_owned(), Node::Directory);
            for entry in fs::read_dir(path).unwrap() {
                self.take(&entry.unwrap().path());
            }
        } else if path.exists() {
            let synced = fs::read(path).unwrap();
            self.live.insert(path.to_owned(), Node::File(self.files.len()));
            self.files.push(File { synced, pending: Vec::new() });
        }
    }

    fn rename(&mut self, removed: Option<&PathBuf>, added: Option<(&PathBuf, Node)>) {
        let change = NameChange {
            removed: removed.cloned(),
            added: added.map(|(path, node)| (path.clone(), node)),
        };
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    fn file(&mut self, path: &Path) -> &mut File {
        match self.live.get(path) {
            Some(Node::File(number)) => &mut self.files[*number],
            other => panic!("{} is {other:?}", path.display()),
        }
    }

    fn run(&mut self, call: &Call) {
        let path = &call.path;
        match call.kind {
            b'W' => {
                let change = Change::Write(call.offset, call.data.clone());
                self.file(path).pending.push(change);
            }
            b'T' => self.file(path).pending.push(Change::Truncate(call.offset)),
            b'S' if matches!(self.live.get(path), Some(Node::File(_))) => {
                let file = self.file(path);
                for change in std::mem::take(&mut file.pending) {
                    change.apply(&mut file.synced);
                }
            }
            // A directory. The topmost one has no name here.
            b'S' => {
                for change in std::mem::take(&mut self.pending) {
                    if change.is_in(path) {
                        change.apply(&mut self.synced);
                    } else {
                        self.pending.push(change);
                    }
                }
            }
            b'C' => {
                self.files.push(File::default());
                self.rename(None, Some((path, Node::File(self.files.len() - 1))));
            }
            b'D' => self.rename(None, Some((path, Node::Directory))),
            b'R' => {
                let node = self.live[path];
                let to = PathBuf::from(str::from_utf8(&call.data).unwrap());
                self.rename(Some(path), Some((&to, node)));
            }
            b'U' | b'X' => self.rename(Some(path), None),
            other => panic!("call {other}"),
        }
    }

    /// Writes an image that a power cut at this moment could leave.
    fn cut(&self, random: &mut Random, from: &Path, to: &Path) {
        let mut names = self.synced.clone();
        let names_mode = Mode::draw(random);
        for change in names_mode.choose(random, &self.pending) {
            change.apply(&mut names);
        }
        let files_mode = Mode::draw(random);
        let grown = random.chance(50);
        for (path, node) in &names {
            let Ok(inner) = path.strip_prefix(from) else {
                continue;
            };
            let reachable = path
                .ancestors()
                .skip(1)
                .take_while(|above| above.starts_with(from))
                .all(|above| names.get(above) == Some(&Node::Directory));
            if !reachable {
                continue;
            }
            // Joining an empty path would append a slash to the name.
            let target = if inner == Path::new("") { to.to_owned() } else { to.join(inner) };
            match node {
                Node::Directory => fs::create_dir(&target).unwrap(),
                Node::File(number) => {
                    let file = &self.files[*number];
                    let mut bytes = file.synced.clone();
                    for change in files_mode.choose(random, &file.pending) {
                        files_mode.tear(random, &change, &mut bytes);
                    }
                    if !grown {
                        bytes.truncate(file.synced.len());
                    }
                    fs::write(target, bytes).unwrap();
                }
            }
        }
    }
}

/// Which of the changes that were not synced survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    None,
    Prefix,
    Subset,
    Torn,
    All,
}

impl Mode {
    fn draw(random: &mut Random) -> Mode {
        let modes = [Mode::None, Mode::Prefix, Mode::Subset, Mode::Torn, Mode::All];
        modes[random.below(5) as usize]
    }

    fn choose<T: Clone>(self, random: &mut Random, changes: &[T]) -> Vec<T> {
        let some = random.below(changes.len() as u64 + 1) as usize;
        match self {
            Mode::None => Vec::new(),
            Mode::Prefix => changes[..some].to_vec(),
            Mode::Subset => {
                let mut chosen = changes.to_vec();
                chosen.retain(|_| random.chance(50));
                chosen
            }
            Mode::Torn | Mode::All => changes.to_vec(),
        }
    }

    fn tear(self, random: &mut Random, change: &Change, bytes: &mut Vec<u8>) {
        let (Mode::Torn, Change::Write(offset, data)) = (self, change) else {
            return change.apply(bytes);
        };
        let mut start = 0;
        while start < data.len() {
            let sector_end = (offset + start) / SECTOR * SECTOR + SECTOR;
            let end = data.len().min(sector_end - offset);
            if random.chance(60) {
                Change::Write(offset + start, data[start..end].to_vec()).apply(bytes);
            }
            start = end;
        }
    }
}

/// Builds the recorder, if this machine can.
fn build_recorder(dir: &Path) -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        println!("skipped: the recorder is for Linux");
        return None;
    }
    let (source, library) = (dir.join("recorder.c"), dir.join("recorder.so"));
    fs::write(&source, include_str!("recorder.c")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-w", "-o"]).arg(&library).arg(&source).arg("-ldl");
    match cc.status() {
        Ok(status) => {
            assert!(status.success(), "the recorder does not compile");
            Some(library)
        }
        Err(error) => {
            println!("skipped: there is no C compiler: {error}");
            None
        }
    }
}

#[test]
fn power_cut_loses_nothing_acknowledged() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path().canonicalize().unwrap();
    let Some(recorder) = build_recorder(&work) else {
        return;
    };
    let seed = count("QUORATE_CRASH_POWER_SEED", POWER_SEED);
    let cuts_per_round = count("QUORATE_CRASH_CUTS", 200).div_ceil(ROUNDS);
    let mut random = Random(seed);
    let mut script = Script::new(seed);
    let mut start = None;
    let root = work.join("root");
    let data = root.join("data");
    fs::create_dir(&root).unwrap();
    for round in 0..ROUNDS {
        let mut disk = Disk::of(&data);
        let (log, acks) = (work.join("log"), root.join("acks"));
        let mut command = child("work", &data);
        command.env("LD_PRELOAD", &recorder).env("RECORD_ROOT", &root);
        command.env("RECORD_LOG", &log).env(ACKS, &acks);
        command.env(SEED, seed.to_string()).env(STEPS, "40");
        if let Some(step) = start {
            command.env(START, u64::to_string(&step));
        }
        assert!(command.status().unwrap().success(), "round {round}");
        let calls = read_calls(&log);
        assert!(calls.iter().any(|call| call.kind == b'S'), "nothing was recorded");
        let mut cuts: Vec<usize> =
            (0..cuts_per_round).map(|_| random.below(calls.len() as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        let mut acked = start;
        let mut done = 0;
        let mut images = Vec::new();
        for (number, cut) in cuts.into_iter().enumerate() {
            for call in &calls[done..cut] {
                if call.path == acks {
                    if call.kind == b'W' {
                        let step = str::from_utf8(&call.data).unwrap().trim();
                        acked = Some(step.parse().unwrap());
                    }
                } else {
                    disk.run(call);
                }
            }
            done = cut;
            let image = work.join(format!("image-{number}"));
            disk.cut(&mut random, &data, &image);
            images.push((image, acked, cut));
        }
        // Opening changes an image, so the image to continue from is copied first.
        let next = random.below(images.len() as u64) as usize;
        let copy = work.join("next");
        if images[next].0.exists() {
            super::copy_directory(&images[next].0, &copy);
        }
        let dirs: Vec<PathBuf> = images.iter().map(|(image, ..)| image.clone()).collect();
        let seen = open_in_child(&dirs);
        for (number, ((image, acked, cut), seen)) in images.iter().zip(&seen).enumerate() {
            let step = script.step_after_crash(*acked, seen).unwrap_or_else(|error| {
                panic!("seed {seed} round {round} cut {number} after call {cut}: {error}")
            });
            if number == next {
                start = step;
            }
            fs::remove_dir_all(image).unwrap();
        }
        assert!(seen.iter().any(|seen| matches!(seen, Seen::Digest(_))), "round {round}");
        fs::remove_dir_all(&root).unwrap();
        fs::create_dir(&root).unwrap();
        if copy.exists() {
            fs::rename(&copy, &data).unwrap();
        }
        fs::remove_file(&log).unwrap();
    }
}
