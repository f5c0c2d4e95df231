//! A model of a disk that keeps no more than it must, and recordings of what a process does to it.
//!
//! A recorder records the system calls of a child. From the record, the model knows for each moment:
//! - what a process sees: everything that was written, synced or not ([`Disk::visible_image`]). So it
//!   finds it after another process has ended, and after a failed sync.
//! - what is certainly on the device: what was synced.
//! - what may be on it: the rest, except what a failed sync has lost. A power cut leaves any of that
//!   ([`Disk::cut`]).
//!
//! Not modelled: sectors torn within, disks that lie about a sync, pages of which a later write makes
//! lost bytes durable again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::super::model::Random;
use super::{ACKS, SEED, START, STEPS, Seen, child, seen_in};

const SECTOR: usize = 512;

/// A change of the files of a process, or a sync, as `recorder.c` describes it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) kind: u8,
    pub(super) path: PathBuf,
    pub(super) offset: usize,
    pub(super) data: Vec<u8>,
}

/// A data directory, and the means to record what a child does to it.
pub(super) struct Recording {
    _temporary: TempDir,
    /// For files that are not recorded.
    pub(super) work: PathBuf,
    pub(super) data: PathBuf,
    root: PathBuf,
    acks: PathBuf,
    recorder: PathBuf,
}

impl Recording {
    /// `None` if this machine cannot build the recorder.
    pub(super) fn new() -> Option<Recording> {
        Recording::of("clear")
    }

    /// As [`Recording::new`], below a directory of this name: see `options`.
    pub(super) fn of(kind: &str) -> Option<Recording> {
        let temporary = tempfile::tempdir().unwrap();
        let work = temporary.path().canonicalize().unwrap().join(kind);
        fs::create_dir(&work).unwrap();
        let recorder = build_recorder(&work)?;
        let root = work.join("root");
        fs::create_dir(&root).unwrap();
        let (data, acks) = (root.join("data"), root.join("acks"));
        Some(Recording { _temporary: temporary, work, data, root, acks, recorder })
    }

    /// Records what happens below a directory elsewhere, which exists.
    pub(super) fn move_to(&mut self, root: PathBuf) {
        self.data = root.join("data");
        self.acks = root.join("acks");
        self.root = root;
    }

    /// Lets a child perform operations of a seed. After a number of calls the power of its file system is
    /// cut, if there is one, and if it makes so many: that depends on its threads, too. Some of what is not synced
    /// is written nevertheless, as this number says.
    pub(super) fn work_until_cut(
        &self,
        seed: u64,
        steps: u64,
        cut: Option<usize>,
        stray: u64,
    ) -> Vec<Call> {
        let mut command = child("work", &self.data);
        command.env(SEED, seed.to_string()).env(STEPS, steps.to_string());
        command.env("RECORD_STRAY", stray.to_string());
        if let Some(cut) = cut {
            command.env("RECORD_CUT", cut.to_string());
        }
        let (output, calls) = self.record(command);
        let is_cut = cut.is_some_and(|cut| calls.len() >= cut);
        assert_eq!(output.status.success(), !is_cut, "seed {seed} cut {cut:?}");
        calls
    }

    /// Removes the data directory.
    pub(super) fn clear(&self) {
        fs::remove_dir_all(&self.root).unwrap();
        fs::create_dir(&self.root).unwrap();
    }

    /// Lets a child perform operations of a seed, from a step on.
    pub(super) fn work(&self, seed: u64, start: Option<u64>, steps: u64) -> Vec<Call> {
        let mut command = child("work", &self.data);
        command.env(ACKS, &self.acks).env(SEED, seed.to_string()).env(STEPS, steps.to_string());
        if let Some(step) = start {
            command.env(START, step.to_string());
        }
        let (output, calls) = self.record(command);
        assert!(output.status.success(), "seed {seed} from step {start:?}");
        assert!(calls.iter().any(|call| call.kind == b'S'), "nothing was recorded");
        calls
    }

    /// Lets a child open and load the store, as a start does.
    pub(super) fn start(&self) -> (Seen, Vec<Call>) {
        let (output, calls) = self.record(child("open", &self.data));
        let output = String::from_utf8(output.stdout).unwrap();
        (output.lines().find_map(seen_in).unwrap_or(Seen::Nothing), calls)
    }

    fn record(&self, mut command: Command) -> (Output, Vec<Call>) {
        let log = self.work.join("log");
        command.env("LD_PRELOAD", &self.recorder).env("RECORD_ROOT", &self.root);
        let output = command.env("RECORD_LOG", &log).output().unwrap();
        // There is none if nothing was changed.
        let calls = if log.exists() { read_calls(&log) } else { Vec::new() };
        let _ = fs::remove_file(&log);
        (output, calls)
    }

    /// The step that this call acknowledges; `None` if it changes the data directory.
    pub(super) fn acknowledged(&self, call: &Call) -> Option<Option<u64>> {
        (call.path == self.acks).then(|| {
            let step = str::from_utf8(&call.data).unwrap().trim();
            (call.kind == b'W').then(|| step.parse().unwrap())
        })
    }
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
    /// What a process reads.
    visible: Vec<u8>,
    /// What is certainly on the device.
    synced: Vec<u8>,
    /// What the next sync writes.
    pending: Vec<Change>,
}

impl File {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.visible);
        self.pending.push(change);
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            change.apply(&mut self.synced);
        }
    }
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

/// The disk: the data that is certainly on it, the data that may be, and what a process sees.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    files: Vec<File>,
    live: Names,
    synced: Names,
    pending: Vec<NameChange>,
}

impl Disk {
    /// A disk with everything below a directory synced.
    pub(super) fn of(dir: &Path) -> Disk {
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
            self.files.push(File { visible: synced.clone(), synced, pending: Vec::new() });
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

    /// If this change removes a directory, its names go with it: they are not those of a directory that is made at the
    /// same path later.
    fn remove_inside(&mut self, change: &NameChange) {
        if let NameChange { removed: Some(removed), added: None } = change
            && self.synced.get(removed) == Some(&Node::Directory)
        {
            self.synced.retain(|path, _| !path.starts_with(removed));
            self.pending.retain(|earlier| !earlier.is_in(removed));
        }
    }

    fn file(&mut self, path: &Path) -> &mut File {
        match self.live.get(path) {
            Some(Node::File(number)) => &mut self.files[*number],
            other => panic!("{} is {other:?}", path.display()),
        }
    }

    pub(super) fn is_file(&self, path: &Path) -> bool {
        matches!(self.live.get(path), Some(Node::File(_)))
    }

    pub(super) fn run(&mut self, call: &Call) {
        let path = &call.path;
        match call.kind {
            b'W' => self.file(path).change(Change::Write(call.offset, call.data.clone())),
            b'T' => self.file(path).change(Change::Truncate(call.offset)),
            b'S' if self.is_file(path) => self.file(path).sync(),
            // A directory. The topmost one has no name here.
            b'S' => {
                for change in std::mem::take(&mut self.pending) {
                    if change.is_in(path) {
                        self.remove_inside(&change);
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

    /// A sync of this file fails. Linux counts its pages as written: they can still be read, and no later
    /// sync writes them.
    pub(super) fn fail_sync(&mut self, path: &Path) {
        self.file(path).pending.clear();
    }

    /// The system drops its pages of this file. Those that it counts as written come from the device from
    /// now on.
    pub(super) fn forget(&mut self, path: &Path) {
        let file = self.file(path);
        file.visible.clone_from(&file.synced);
        for change in &file.pending {
            change.apply(&mut file.visible);
        }
    }

    /// Writes what the next process sees after this one has ended.
    pub(super) fn visible_image(&self, from: &Path, to: &Path) {
        for (path, node) in &self.live {
            let Ok(inner) = path.strip_prefix(from) else { continue };
            let target = if inner == Path::new("") { to.to_owned() } else { to.join(inner) };
            match node {
                Node::Directory => fs::create_dir(&target).unwrap(),
                Node::File(number) => fs::write(target, &self.files[*number].visible).unwrap(),
            }
        }
    }

    /// Writes an image that a power cut at this moment could leave.
    pub(super) fn cut(&self, random: &mut Random, from: &Path, to: &Path) {
        let modes = (Mode::draw(random), Mode::draw(random));
        self.cut_with(modes, random, from, to);
    }

    /// Writes the image of a power cut at this moment that leaves only what was synced.
    pub(super) fn cut_hard(&self, from: &Path, to: &Path) {
        self.cut_with((Mode::None, Mode::None), &mut Random(0), from, to);
    }

    fn cut_with(
        &self,
        (names_mode, files_mode): (Mode, Mode),
        random: &mut Random,
        from: &Path,
        to: &Path,
    ) {
        let mut names = self.synced.clone();
        for change in names_mode.choose(random, &self.pending) {
            change.apply(&mut names);
        }
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

/// What was removed from the former directory of this path counted as removed from the new one.
#[test]
fn a_directory_that_is_made_again_has_its_own_names() {
    let work = tempfile::tempdir().unwrap();
    let mut disk = Disk::default();
    let mut run = |calls: &[(u8, &str, &str)]| {
        for (kind, path, to) in calls {
            let (path, data) = (PathBuf::from(path), to.as_bytes().to_vec());
            disk.run(&Call { kind: *kind, path, offset: 0, data });
        }
    };
    let sync = [(b'S', "/", ""), (b'S', "/data", ""), (b'S', "/data/gen", "")];
    run(&[(b'D', "/data", ""), (b'C', "/data/spare", "")]);
    run(&[(b'D', "/data/gen", ""), (b'C', "/data/gen/chunks", "")]);
    run(&sync);
    run(&[(b'U', "/data/gen/chunks", ""), (b'X', "/data/gen", ""), (b'D', "/data/gen", "")]);
    run(&[(b'R', "/data/spare", "/data/gen/chunks")]);
    run(&sync);
    let image = work.path().join("image");
    disk.cut_hard(Path::new("/data"), &image);
    assert!(image.join("gen/chunks").exists() && !image.join("spare").exists());
}
