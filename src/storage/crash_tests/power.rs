//! Cuts the power at any moment.
//!
//! From a recording, the test rebuilds the directory as a power cut after any of the calls could leave
//! it. All synced data is there. Of the other data there is nothing, a first part, any part or any
//! sectors, and the file has grown or not. Names that were made, changed or removed since their
//! directory was synced exist or not. The test continues from one of the images, so power cuts hit
//! recovery as well.

use std::fs;
use std::path::PathBuf;

use super::super::model::Random;
use super::disk::{Disk, Recording};
use super::{Script, Seen, count, open_in_child};

const POWER_SEED: u64 = 2026;
const ROUNDS: u64 = 10;

#[test]
fn power_cut_loses_nothing_acknowledged() {
    cuts("clear");
}

#[test]
fn power_cut_loses_nothing_acknowledged_when_sealed() {
    cuts(super::SEALED);
}

fn cuts(kind: &str) {
    let Some(recording) = Recording::of(kind) else { return };
    let (work, data) = (&recording.work, &recording.data);
    let seed = count("QUORATE_CRASH_POWER_SEED", POWER_SEED);
    let cuts_per_round = count("QUORATE_CRASH_CUTS", 200).div_ceil(ROUNDS);
    let mut random = Random(seed);
    let mut script = Script::new(seed);
    let mut start = None;
    for round in 0..ROUNDS {
        let mut disk = Disk::of(data);
        let calls = recording.work(seed, start, 40);
        let mut cuts: Vec<usize> =
            (0..cuts_per_round).map(|_| random.below(calls.len() as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        let mut acked = start;
        let mut done = 0;
        let mut images = Vec::new();
        for (number, cut) in cuts.into_iter().enumerate() {
            for call in &calls[done..cut] {
                match recording.acknowledged(call) {
                    Some(step) => acked = step.or(acked),
                    None => disk.run(call),
                }
            }
            done = cut;
            let image = work.join(format!("image-{number}"));
            disk.cut(&mut random, data, &image);
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
        recording.clear();
        if copy.exists() {
            fs::rename(&copy, data).unwrap();
        }
    }
}
