//! The faults of a disk world's disk, and how it damages what is on it.

use std::path::{Path, PathBuf};

use super::checks::Violation;
use super::disk_world::{DiskWorld, Life, ROOM};
use super::durable::{DATA, current, log};
use crate::storage::simulated::{Fault, FaultKind, ProcessFiles};
use crate::storage::{Access, FsPath, spare_segments};

/// How the disk is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    Rotten,
    RolledBack,
    BadSector,
}

impl DiskWorld {
    /// A fault of the device while the process runs.
    pub(super) fn fault(&mut self, life: &mut Life) -> Result<(), Violation> {
        match self.random.below(7) {
            0 => {
                self.count("full disks");
                self.may_stop = true;
                self.device.set_capacity(Some(1));
            }
            1 => {
                self.count("room again");
                self.device.set_capacity(Some(ROOM));
                self.device.set_descriptors(None);
            }
            2 => {
                self.count("limits of open files");
                self.limited_since.get_or_insert(self.now);
                self.device.set_descriptors(Some(0));
            }
            3 => {
                self.count("caches dropped");
                self.device.write_back_some();
                self.device.drop_caches();
            }
            4 => {
                self.count("spare segments damaged");
                self.spoil_spare(life);
            }
            5 => {
                self.count("logs damaged while in use");
                self.spoil_running();
            }
            _ => {}
        }
        Ok(())
    }

    /// Damages the disk of a process that has ended, in a way that the next start notices if it matters.
    /// Damage to the last records looks like a write that a crash has torn, unless the witness names them:
    /// `is_resting` says that it does.
    pub(super) fn spoil(&mut self, is_resting: bool) {
        let files = self.device.process();
        let found = self.files_of(&files, is_resting);
        let damage = match self.random.below(3) {
            0 if is_resting => Damage::RolledBack,
            1 => Damage::BadSector,
            _ => Damage::Rotten,
        };
        match damage {
            Damage::RolledBack => self.roll_back(&files),
            Damage::BadSector => {
                self.device.inject_below(Fault::next(FaultKind::BadSector), Path::new(DATA));
            }
            Damage::Rotten if !found.is_empty() => {
                let (path, length) = self.random.pick(&found).clone();
                let (offset, bit) = (self.random.below(length), 1 << self.random.below(8));
                self.flip(&path, offset, bit);
                self.tell(format!("{path} is damaged at {offset}"));
            }
            Damage::Rotten => {}
        }
        self.count("disks damaged");
        files.end_process();
        self.device.drop_caches();
        self.damage = Some(damage);
    }

    /// The files of the data directory and their lengths; those of the log only if they may be damaged.
    fn files_of(&self, files: &ProcessFiles, with_log: bool) -> Vec<(FsPath, u64)> {
        let root = self.path(files);
        let (current, log) = (current(&self.device), log(&self.device));
        let mut left = vec![root.join("CURRENT"), root.at(current.clone())];
        if !log.starts_with(&current) {
            // With the file that says whose log it is.
            left.extend(log.parent().map(|place| root.at(place.to_owned())));
        }
        let mut found = Vec::new();
        while let Some(path) = left.pop() {
            let name = path.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name == "log" && !with_log {
                continue;
            }
            match path.list() {
                Ok(mut names) => {
                    names.sort();
                    left.extend(names.into_iter().map(|name| path.join(name)));
                }
                Err(_) => {
                    let length = path.open(Access::Read).and_then(|file| file.length());
                    let length = length.ok().filter(|length| *length > 0);
                    found.extend(length.map(|length| (path, length)));
                }
            }
        }
        found
    }

    fn segments(&self, files: &ProcessFiles) -> Vec<FsPath> {
        let found = self.files_of(files, true).into_iter().map(|(path, _)| path);
        let mut segments: Vec<FsPath> = found
            .filter(|path| {
                path.path().parent().is_some_and(|parent| parent.ends_with("log"))
                    && !path.path().ends_with("witness")
            })
            .collect();
        segments.sort_by(|one, other| one.path().cmp(other.path()));
        segments
    }

    /// Takes back what was written last to the log.
    fn roll_back(&mut self, files: &ProcessFiles) {
        const HEADER: usize = 512;
        for path in self.segments(files).into_iter().rev() {
            let bytes = path.read().unwrap_or_default();
            let end = bytes.iter().rposition(|byte| *byte != 0).filter(|end| *end >= HEADER);
            let Some(end) = end else { continue };
            let from = end.saturating_sub(self.random.index(2_000)).max(HEADER);
            change(&path, from as u64, end + 1 - from, |bytes| bytes.fill(0));
            return;
        }
    }

    /// Damages a part of the log that the store does not need: that is no damage.
    pub(super) fn spoil_spare(&mut self, life: &mut Life) {
        // What is not durable yet may be lost, and then more is needed.
        if !life.threads.is_resting() || self.damage.is_some() {
            return;
        }
        // Reads that were asked for before the last checkpoint still need it.
        while life.threads.work_beside() {}
        self.device.set_descriptors(None);
        let files = self.device.process();
        let spare = spare_segments(&self.path(&files)).unwrap_or_default();
        if !spare.is_empty() {
            let path = self.random.pick(&spare).clone();
            let (offset, bit) = (self.random.below(1 << 10), 1 << self.random.below(8));
            change(&path, offset, 1, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= bit));
            self.tell(format!("{path} is damaged, and is not needed"));
        }
        files.end_process();
    }

    /// Damages the log of a running process, behind what is written now.
    pub(super) fn spoil_running(&mut self) {
        if self.damage.is_some() {
            return;
        }
        self.device.set_descriptors(None);
        let files = self.device.process();
        let mut segments = self.segments(&files);
        // The last one that is written to, and one that is made ahead.
        segments.truncate(segments.len().saturating_sub(2));
        if !segments.is_empty() {
            let path = self.random.pick(&segments).clone();
            let (offset, bit) = (self.random.below(1 << 11), 1 << self.random.below(8));
            self.flip(&path, offset, bit);
            self.damage = Some(Damage::Rotten);
        }
        files.end_process();
    }

    fn flip(&mut self, path: &FsPath, offset: u64, bit: u8) {
        change(path, offset, 1, |bytes| {
            for byte in bytes {
                *byte ^= bit;
                self.flipped.push((path.path().to_owned(), offset, *byte));
            }
        });
    }

    /// Whether a byte that was damaged is still on the disk. A start that did not need it has not noticed it, and the
    /// scrubber may.
    pub(super) fn has_flipped(&self) -> bool {
        self.device.set_descriptors(None);
        let files = self.device.process();
        let root = self.path(&files);
        let is_there = |(path, offset, flipped): &(PathBuf, u64, u8)| {
            let mut byte = [0];
            let file = root.at(path.clone()).open(Access::Read);
            let read = file.and_then(|file| file.read_at(&mut byte, *offset));
            matches!(read, Ok(1)) && byte == [*flipped]
        };
        let has = self.flipped.iter().any(is_there);
        files.end_process();
        has
    }
}

/// Changes a part of a file, durably. Without effect if the file is shorter.
fn change(path: &FsPath, offset: u64, length: usize, change: impl FnOnce(&mut [u8])) {
    let changed = || -> std::io::Result<()> {
        let file = path.open(Access::Write)?;
        let mut bytes = vec![0; length];
        let read = file.read_at(&mut bytes, offset)?;
        change(&mut bytes[..read]);
        file.write_at(&bytes[..read], offset)?;
        file.sync_data()
    };
    // A disk that is full or has no descriptors is not damaged.
    let _ = changed();
}
