//! Starts a store again after its process has ended, or after a sync has failed; then the power is cut.
//!
//! A process that ends leaves writes in the page cache that no disk has. A start used to take them for
//! durable, since it could read them: a member that was killed between a write and its sync, and was
//! started again, acknowledged the write while no disk of it had the write, and a power cut then took
//! it. After a failed sync it was worse: all that was appended behind the lost record was lost too.

use std::fs;
use std::path::Path;

use super::super::model::Random;
use super::disk::{Call, Disk, Recording};
use super::{Script, Seen, count, open_in_child};

const RESTART_SEED: u64 = 31;
/// How many operations a recorded process performs.
const OPS: u64 = 25;
/// How many images are made of the moment of a power cut.
const CUTS: usize = 3;

/// Whether this is the path of a segment of the log.
fn is_segment(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    path.parent().is_some_and(|dir| dir.ends_with("log"))
        && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Some of these calls: the last one of the log, the last rename, and four others.
fn moments(random: &mut Random, calls: &[Call], chosen: impl Fn(&Call) -> bool) -> Vec<usize> {
    let all: Vec<usize> = (0..calls.len()).filter(|at| chosen(&calls[*at])).collect();
    let last = all.iter().copied().rfind(|at| is_segment(&calls[*at].path));
    let renamed = all.iter().copied().rfind(|at| calls[*at].kind == b'R');
    let mut some: Vec<usize> = (0..4)
        .map(|_| all[random.below(all.len() as u64) as usize])
        .chain(last)
        .chain(renamed)
        .collect();
    some.sort_unstable();
    some.dedup();
    some
}

/// Cuts the power, and opens what is left.
fn cut(random: &mut Random, disk: &Disk, recording: &Recording) -> Vec<Seen> {
    let images: Vec<_> =
        (0..CUTS).map(|number| recording.work.join(format!("image-{number}"))).collect();
    disk.cut_hard(&recording.data, &images[0]);
    for image in &images[1..] {
        disk.cut(random, &recording.data, image);
    }
    let seen = open_in_child(&images);
    images
        .iter()
        .filter(|image| image.exists())
        .for_each(|image| fs::remove_dir_all(image).unwrap());
    seen
}

#[test]
fn what_a_start_has_read_survives_a_power_cut() {
    let Some(recording) = Recording::new() else { return };
    let mut random = Random(RESTART_SEED);
    let (mut starts, mut lost) = (0, Vec::new());
    for seed in 0..count("QUORATE_CRASH_RESTARTS", 4) {
        let mut disk = Disk::of(&recording.data);
        let calls = recording.work(seed, None, OPS);
        let is_change = |call: &Call| call.kind != b'S' && recording.acknowledged(call).is_none();
        let mut done = 0;
        for at in moments(&mut random, &calls, is_change) {
            let changes = calls[done..=at].iter();
            changes
                .filter(|call| recording.acknowledged(call).is_none())
                .for_each(|call| disk.run(call));
            done = at + 1;
            recording.clear();
            disk.visible_image(&recording.data, &recording.data);
            let (seen, recovery) = recording.start();
            let mut disk = disk.clone();
            recovery.iter().for_each(|call| disk.run(call));
            starts += 1;
            for found in cut(&mut random, &disk, &recording) {
                if found != seen {
                    lost.push(format!(
                        "seed {seed}, ended after the {} of {}: the start saw {seen:?}, and the \
                         power cut left {found:?}",
                        char::from(calls[at].kind),
                        calls[at].path.display(),
                    ));
                }
            }
        }
        recording.clear();
    }
    assert!(lost.is_empty(), "{} of {starts} starts: {lost:#?}", lost.len());
}

#[test]
fn what_is_acknowledged_after_a_failed_sync_survives_a_power_cut() {
    let Some(recording) = Recording::new() else { return };
    let mut random = Random(RESTART_SEED);
    let (mut starts, mut lost) = (0, Vec::new());
    for seed in 0..count("QUORATE_CRASH_RESTARTS", 4) {
        let mut disk = Disk::of(&recording.data);
        let calls = recording.work(seed, None, OPS);
        let mut script = Script::new(seed);
        let is_file = |call: &Call| {
            call.kind == b'S' && calls.iter().any(|w| w.kind == b'W' && w.path == call.path)
        };
        let (mut done, mut acked) = (0, None);
        for at in moments(&mut random, &calls, is_file) {
            for call in &calls[done..at] {
                match recording.acknowledged(call) {
                    Some(step) => acked = step.or(acked),
                    None => disk.run(call),
                }
            }
            done = at;
            let mut disk = disk.clone();
            let path = &calls[at].path;
            disk.fail_sync(path);
            // A start asks the system to drop its pages of the files that it reads. Those of the log may
            // stay: the start writes back what it has read. The database is not written back.
            if !is_segment(path) || random.chance(50) {
                disk.forget(path);
            }
            recording.clear();
            disk.visible_image(&recording.data, &recording.data);
            let copy = recording.work.join("copy");
            super::copy_directory(&recording.data, &copy);
            let seen = open_in_child(std::slice::from_ref(&copy)).remove(0);
            fs::remove_dir_all(&copy).unwrap();
            let start = script.step_after_crash(acked, &seen).unwrap();
            let mut last = start;
            for call in recording.work(seed, start, 10) {
                match recording.acknowledged(&call) {
                    Some(step) => last = step.or(last),
                    None => disk.run(&call),
                }
            }
            starts += 1;
            for found in cut(&mut random, &disk, &recording) {
                if let Err(error) = script.step_after_crash(last, &found) {
                    lost.push(format!("seed {seed}, no sync of {}: {error}", path.display()));
                }
            }
        }
        recording.clear();
    }
    assert!(lost.is_empty(), "{} of {starts} starts: {lost:#?}", lost.len());
}
