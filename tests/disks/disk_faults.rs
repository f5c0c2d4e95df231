//! Proves the disk that torture (`simulation/bin/torture`) preloads into its members: it loses what was not synced, keeps what
//! was, and fails as it is told.
//!
//! A child process makes the calls: this test binary again, with a script in its environment. Without Linux or
//! a C compiler there is no such disk, and the tests say so.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "these tests change files behind the library's back")]

#[path = "../../simulation/bin/torture/disk.rs"]
#[allow(unreachable_pub, reason = "it is a module of another program")]
mod disk;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::name_of;
use disk::{Disk, Failed, NoSpace, Undone};
use tempfile::TempDir;

const CHILD: &str = name_of(concat!(module_path!(), "::child"));
const SCRIPT: &str = "QUORATE_TEST_SCRIPT";
const HERE: &str = "QUORATE_TEST_HERE";
const PAGE: usize = 4096;

/// Not a test of its own: the process that makes the calls of a script, and ends without closing anything.
#[test]
fn child() {
    let (Ok(script), Ok(here)) = (std::env::var(SCRIPT), std::env::var(HERE)) else { return };
    for line in script.lines() {
        let done = perform(Path::new(&here), line).map_err(|error| error.raw_os_error());
        println!("@{}", done.unwrap_or_else(|error| format!("error {}", error.unwrap_or(0))));
    }
    std::process::exit(0);
}

fn perform(here: &Path, line: &str) -> io::Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let path = here.join(words[1]);
    let number = |place: usize| words[place].parse::<usize>().unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&path);
    match words[0] {
        "create" => File::create(&path).map(drop)?,
        "write" => {
            let bytes = vec![words[4].as_bytes()[0]; number(3)];
            open()?.write_all_at(&bytes, number(2) as u64)?;
        }
        "append" => {
            use std::io::Write;
            let mut file = OpenOptions::new().append(true).open(&path)?;
            file.write_all(words[2].as_bytes())?;
        }
        "cut" => open()?.set_len(number(2) as u64)?,
        "sync" => open()?.sync_data()?,
        "sync-dir" => File::open(&path)?.sync_all()?,
        "rename" => fs::rename(path, here.join(words[2]))?,
        "remove" => fs::remove_file(path)?,
        "mkdir" => fs::create_dir(path)?,
        "remove-all" => fs::remove_dir_all(path)?,
        #[cfg(target_os = "linux")]
        "forget" => rustix::fs::fadvise(open()?, 0, None, rustix::fs::Advice::DontNeed)?,
        "read" => return fs::read(path).map(|bytes| summary(&bytes)),
        other => panic!("no such call: {other}"),
    }
    Ok("ok".to_owned())
}

/// Bytes as text: each run of a byte, with its length.
fn summary(bytes: &[u8]) -> String {
    let run =
        |run: &[u8]| format!("{}{}", if run[0] == 0 { '0' } else { run[0].into() }, run.len());
    bytes.chunk_by(|one, two| one == two).map(run).collect()
}

struct Bench {
    _temporary: TempDir,
    library: PathBuf,
    data: PathBuf,
    disk: Disk,
}

impl Bench {
    /// `None` if this machine cannot build the library.
    fn new() -> Option<Bench> {
        let temporary = tempfile::tempdir().unwrap();
        let library = match disk::build_library(temporary.path()) {
            Ok(library) => library,
            Err(reason) => {
                assert!(std::env::var_os("CI").is_none() || !cfg!(target_os = "linux"), "{reason}");
                println!("skipped: {reason}");
                return None;
            }
        };
        let data = temporary.path().join("data");
        let disk = Disk::new(&data, &temporary.path().join("side")).unwrap();
        Some(Bench { _temporary: temporary, library, data, disk })
    }

    /// Lets a process make these calls, and returns what each gave.
    fn run(&self, calls: &[&str]) -> Vec<String> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", CHILD, "--nocapture", "--test-threads", "1"]);
        command.env(SCRIPT, calls.join("\n")).env(HERE, &self.data);
        self.disk.preload(&self.library, &mut command);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let results: Vec<String> = text
            .lines()
            .filter_map(|line| line.split_once('@'))
            .map(|(_, gave)| gave.into())
            .collect();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(results.len(), calls.len(), "{calls:?} gave {text}{errors}");
        results
    }

    fn run_well(&self, calls: &[&str]) {
        for (call, gave) in calls.iter().zip(self.run(calls)) {
            assert_eq!(gave, "ok", "{call}");
        }
    }

    /// A power cut that undoes everything that was not synced.
    fn lose_all(&self) -> Undone {
        self.disk.cut_power(&mut |_| 0).unwrap()
    }

    /// A power cut that leaves everything but what failed syncs have lost.
    fn lose_nothing(&self) -> Undone {
        self.disk.cut_power(&mut |end| end - 1).unwrap()
    }

    fn content(&self, name: &str) -> String {
        summary(&fs::read(self.data.join(name)).unwrap())
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.data)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn what_was_not_synced_is_lost_and_what_was_stays() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create f", "write f 0 8192 a", "sync f", "sync-dir ."]);
    bench.run_well(&["write f 4000 200 b", "write f 8192 10 c", "append f d"]);
    assert_eq!(bench.content("f"), "a4000b200a3992c10d1");
    assert_eq!(bench.lose_all(), Undone { pages: 2, names: 0 });
    assert_eq!(bench.content("f"), "a8192");
    // It can be written again, and is durable then.
    bench.run_well(&["write f 4000 200 b", "sync f", "write f 0 1 e"]);
    bench.lose_all();
    assert_eq!(bench.content("f"), "a4000b200a3992");
}

#[test]
fn a_power_cut_may_also_leave_what_was_not_synced() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create f", "write f 0 5000 a", "create g", "mkdir d", "create d/h"]);
    assert_eq!(bench.lose_nothing(), Undone::default());
    assert_eq!((bench.content("f"), bench.names()), ("a5000".to_owned(), names(["d", "f", "g"])));
    // After that it is on the device.
    bench.lose_all();
    assert_eq!((bench.content("f"), bench.names()), ("a5000".to_owned(), names(["d", "f", "g"])));
}

/// The end of a process leaves its last write where the next one finds it, although no disk has it.
#[test]
fn what_a_process_has_left_is_lost_at_a_later_power_cut() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create f", "write f 0 4096 a", "sync f", "sync-dir ."]);
    bench.run_well(&["write f 4096 4096 b", "create g"]);
    // The next process reads it, and syncs another file.
    let gave = bench.run(&["read f", "create h", "write h 0 1 h", "sync h", "write f 100 1 c"]);
    assert_eq!(gave[0], "a4096b4096");
    bench.lose_all();
    assert_eq!((bench.content("f"), bench.names()), ("a4096".to_owned(), names(["f"])));
    // If the next process syncs it, it stays.
    bench.run_well(&["write f 4096 4096 b", "create g"]);
    bench.run_well(&["sync f", "sync-dir ."]);
    bench.lose_all();
    assert_eq!((bench.content("f"), bench.names()), ("a4096b4096".to_owned(), names(["f", "g"])));
}

#[test]
fn a_failed_sync_loses_pages_that_no_later_sync_writes() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create f", "write f 0 12288 a", "sync f", "sync-dir ."]);
    bench.disk.fail_syncs(1).unwrap();
    let gave = bench.run(&["write f 0 8192 b", "sync f", "sync f", "read f"]);
    assert_eq!(gave, ["ok", "error 5", "ok", "b8192a4096"]);
    assert_eq!(bench.disk.failed().unwrap(), Failed { syncs: 1, ..Failed::default() });
    // The next process writes a part of one page again, and another page, and syncs both.
    let gave = bench.run(&["write f 0 1 c", "write f 8192 1 c", "sync f", "read f"]);
    assert_eq!(gave[3], "c1b8191c1a4095");
    // Even if all else is kept.
    assert_eq!(bench.lose_nothing(), Undone { pages: 1, names: 0 });
    assert_eq!(bench.content("f"), "c1b4095a4096c1a4095");
}

#[test]
#[cfg(target_os = "linux")]
fn the_system_may_forget_pages_that_a_failed_sync_has_lost() {
    let Some(bench) = Bench::new() else { return };
    let prepare = |name: &str| {
        bench.run_well(&[&format!("create {name}"), &format!("write {name} 0 8192 a")]);
        bench.run_well(&[&format!("sync {name}"), &format!("write {name} 0 4096 b")]);
        bench.disk.fail_syncs(1).unwrap();
        assert_eq!(bench.run(&[&format!("sync {name}")]), ["error 5"]);
    };
    bench.run_well(&["mkdir log"]);
    prepare("f");
    let gave = bench.run(&["write f 4096 1 c", "forget f", "read f"]);
    // What was written after the sync stays.
    assert_eq!(gave[2], "a4096c1a4095");
    bench.disk.keep_cached(true).unwrap();
    prepare("log/f");
    assert_eq!(bench.run(&["forget log/f", "read log/f"])[1], "b4096a4096");
}

#[test]
fn names_are_lost_until_their_directory_is_synced() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create a", "create b", "mkdir d", "create d/e", "sync-dir .", "sync-dir d"]);
    bench.run_well(&["append a x", "sync a", "append b y", "sync b", "append d/e z", "sync d/e"]);
    let changes = ["rename a b", "create c", "sync c", "remove-all d", "mkdir g", "create g/h"];
    bench.run_well(&changes);
    assert_eq!(bench.names(), ["b", "c", "g"]);
    assert_eq!(bench.lose_all().names, 6);
    assert_eq!(bench.names(), ["a", "b", "d"]);
    let content = ["a", "b", "d/e"].map(|name| bench.content(name));
    assert_eq!(content, ["x1", "y1", "z1"]);
    bench.run_well(&changes);
    // Those of one directory are durable when it is synced, and not those in another.
    bench.run_well(&["sync-dir ."]);
    bench.lose_all();
    assert_eq!((bench.names(), bench.content("b")), (names(["b", "c", "g"]), "x1".to_owned()));
    assert!(!bench.data.join("g/h").exists());
}

/// A change of names is noted before it is made. The process may end in between.
#[test]
fn a_rename_that_was_not_made_is_not_undone() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create a", "append a x", "sync a", "create b", "append b y", "sync b"]);
    bench.run_well(&["sync-dir ."]);
    let side = bench.data.with_file_name("side");
    let inode = fs::metadata(&bench.data).unwrap().ino();
    fs::hard_link(bench.data.join("b"), side.join("t9")).unwrap();
    fs::write(side.join("names"), format!("R/{inode}/a/{inode}/b/9\nC/{inode}/c")).unwrap();
    bench.lose_all();
    assert_eq!(["a", "b"].map(|name| bench.content(name)), ["x1", "y1"]);
}

/// A power cut keeps the order of names: none is there without those before it.
#[test]
fn some_of_the_last_names_are_lost() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create a", "rename a b", "create c"]);
    let mut answers = [1, 2].into_iter();
    let undone = bench.disk.cut_power(&mut |_| answers.next().unwrap_or(1)).unwrap();
    assert_eq!((undone.names, bench.names()), (1, names(["b"])));
}

#[test]
fn disks_fail_as_they_are_told() {
    let Some(bench) = Bench::new() else { return };
    bench.run_well(&["create f", "write f 0 10 a", "sync f", "sync-dir ."]);
    bench.disk.fail_reads(1).unwrap();
    assert_eq!(bench.run(&["read f", "read f"]), ["error 5", "a10"]);
    bench.disk.no_space(NoSpace::Growth).unwrap();
    let growing = ["create g", "mkdir d", "append f b", "cut f 11", "write f 9 2 b"];
    assert_eq!(bench.run(&growing), ["error 28"; 5]);
    bench.run_well(&["write f 0 1 b", "rename f g", "cut g 9"]);
    bench.disk.no_space(NoSpace::Writes).unwrap();
    assert_eq!(bench.run(&["write g 0 1 c", "read g"]), ["error 28", "b1a8"]);
    assert_eq!(bench.disk.failed().unwrap(), Failed { syncs: 0, reads: 1, refused: 6 });
    bench.disk.repair().unwrap();
    bench.run_well(&["append g c"]);
    bench.disk.fail_syncs(1).unwrap();
    // A later sync of a directory makes its names durable all the same.
    assert_eq!(bench.run(&["sync-dir .", "sync-dir ."]), ["error 5", "ok"]);
    bench.lose_all();
    assert_eq!((bench.names(), bench.content("g")), (names(["g"]), "a10".to_owned()));
}

fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

/// A file as the disk has it, and as a process sees it.
#[derive(Clone, Debug, Default)]
struct Model {
    device: Vec<u8>,
    seen: Vec<u8>,
    /// The pages that were changed since the last sync, even if it failed.
    unsynced: BTreeMap<usize, bool>,
}

impl Model {
    fn change(&mut self, from: usize, to: usize) {
        self.unsynced.extend((from / PAGE..to.div_ceil(PAGE)).map(|page| (page, true)));
    }

    fn write(&mut self, from: usize, length: usize, byte: u8) {
        self.change(from, from + length);
        self.seen.resize(self.seen.len().max(from + length), 0);
        self.seen[from..from + length].fill(byte);
    }

    fn cut(&mut self, length: usize) {
        self.change(length.min(self.seen.len()), self.seen.len());
        self.seen.resize(length, 0);
    }

    fn sync(&mut self, fails: bool) {
        if fails {
            self.unsynced.values_mut().for_each(|will_be_written| *will_be_written = false);
            return;
        }
        self.device.resize(self.seen.len(), 0);
        let lost: Vec<usize> =
            self.unsynced.iter().filter(|(_, written)| !**written).map(|(page, _)| *page).collect();
        for page in (0..self.seen.len().div_ceil(PAGE)).filter(|page| !lost.contains(page)) {
            let range = page * PAGE..self.seen.len().min((page + 1) * PAGE);
            self.device[range.clone()].copy_from_slice(&self.seen[range]);
        }
        self.unsynced.retain(|_, will_be_written| !*will_be_written);
    }
}

/// Random calls of several processes, compared with a plain model of a disk after each power cut.
#[test]
fn random_calls_leave_what_a_model_says() {
    let Some(bench) = Bench::new() else { return };
    let mut state = 7_u64;
    let mut below = |end: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % end as u64) as usize
    };
    bench.run_well(&["create 0", "create 1", "sync-dir ."]);
    let mut models = [Model::default(), Model::default()];
    for round in 0..30 {
        let mut calls = Vec::new();
        let fails = below(3) == 0;
        bench.disk.fail_syncs(fails.into()).unwrap();
        let mut fails = fails;
        for _ in 0..below(24) {
            let file = below(2);
            let (model, length) = (&mut models[file], below(5 * PAGE));
            match below(8) {
                0..4 => {
                    let (from, letter) = (below(5 * PAGE), b'a' + below(26) as u8);
                    let length = 1 + length / (1 + below(8));
                    calls.push(format!("write {file} {from} {length} {}", char::from(letter)));
                    model.write(from, length, letter);
                }
                4 => {
                    calls.push(format!("cut {file} {length}"));
                    model.cut(length);
                }
                _ => {
                    calls.push(format!("sync {file}"));
                    model.sync(std::mem::take(&mut fails));
                }
            }
        }
        let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
        if !calls.is_empty() {
            bench.run(&calls);
        }
        let cut = below(3) == 0;
        if cut {
            bench.lose_all();
        }
        for (file, model) in models.iter_mut().enumerate() {
            if cut {
                *model = Model {
                    seen: model.device.clone(),
                    device: model.device.clone(),
                    ..Model::default()
                };
            }
            let content = bench.content(&file.to_string());
            assert_eq!(content, summary(&model.seen), "round {round}, file {file}, {calls:?}");
        }
    }
}
