//! Damaged disks: one at a time, all at once, and their repair.
//!
//! The store decides what becomes of a damaged directory. Its instance runs as a new member. When a leader has
//! sent the new member something, the directory is put aside. If the disk is repaired before that, the
//! instance starts from the directory again.
//!
//! Not every damage is noticed: a store does not need all that is on its disk. What it needs is damaged only
//! where that can be noticed (see [`World::spoil`]).

use std::path::PathBuf;
use std::sync::Arc;

use super::clock::{Nanos, SECOND};
use super::durable::{DATA, current};
use super::kernel::Phase;
use super::process::Former;
use super::world::{Event, World};
use crate::storage::simulated::{Device, Fault, FaultKind};
use crate::storage::{FsPath, spare_segments};

const MINUTE: Nanos = 60 * SECOND;

/// How a disk is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Some bits are wrong, or a page is.
    Rotten,
    /// What was written last is missing.
    RolledBack,
    /// A page cannot be read until it is written again.
    BadSector,
    /// The controller returns nonsense for these files, until it is repaired.
    Nonsense(Vec<PathBuf>),
}

/// The files of a data directory that damage may be in, and their lengths.
fn files_of(device: &Device, is_in: impl Fn(&str) -> bool) -> Vec<(FsPath, u64)> {
    device.set_descriptors(None);
    let root = FsPath::new(Arc::new(device.process()), DATA.as_ref());
    let mut found = Vec::new();
    let mut left = vec![
        (root.join("CURRENT"), "/CURRENT".to_owned()),
        (root.at(current(device)), String::new()),
    ];
    while let Some((path, name)) = left.pop() {
        match path.list() {
            Ok(names) => {
                let mut names: Vec<String> =
                    names.iter().filter_map(|name| name.to_str()).map(str::to_owned).collect();
                names.sort();
                left.extend(
                    names.into_iter().map(|below| (path.join(&below), format!("{name}/{below}"))),
                );
            }
            Err(_) if is_in(&name) => {
                let length = path.open(crate::storage::Access::Read).and_then(|file| file.length());
                found.extend(length.ok().filter(|length| *length > 0).map(|length| (path, length)));
            }
            Err(_) => {}
        }
    }
    found
}

/// Changes a part of a file on the device.
fn overwrite(path: &FsPath, offset: u64, change: impl FnOnce(&mut Vec<u8>), length: usize) {
    let changed = || -> std::io::Result<()> {
        let file = path.open(crate::storage::Access::Write)?;
        let mut bytes = vec![0; length];
        let read = file.read_at(&mut bytes, offset)?;
        bytes.truncate(read);
        change(&mut bytes);
        file.write_at(&bytes, offset)?;
        file.sync_data()
    };
    changed().expect("a simulated disk without faults works");
}

/// The length of a page.
const PAGE: usize = 4096;

fn is_of_log(name: &str) -> bool {
    name.starts_with("/log/") && !name.ends_with("witness")
}

impl World {
    pub(super) fn begin_damages(&mut self) {
        if self.kernel.plan.damages {
            let time = self.damages.below(self.kernel.plan.length);
            self.schedule_in(time, Event::DamageAll);
            self.schedule_in(MINUTE, Event::DamageOne);
        }
    }

    /// Kills the process at a place and damages its disk, in a way that a start notices if it matters.
    ///
    /// Damage to the last records of the log looks like a write that a crash has torn, unless the witness
    /// names them. It does after a pause in the writes; otherwise the log is left alone.
    pub(super) fn spoil(&mut self, place: usize, mut damage: Damage) -> &'static str {
        let life = self.processes[place].life.as_ref();
        let is_resting = life.is_some_and(|life| life.disk.is_resting());
        self.crash(place);
        let device = self.processes[place].device.clone();
        device.disarm();
        if damage == Damage::RolledBack && !is_resting {
            damage = Damage::Rotten;
        }
        let files = files_of(&device, |name| is_resting || !is_of_log(name));
        let what = match &mut damage {
            Damage::Nonsense(paths) => {
                let segments = files_of(&device, is_of_log);
                for (path, _) in &segments {
                    overwrite(path, 0, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0xff), 8);
                }
                *paths = segments.into_iter().map(|(path, _)| path.path().to_owned()).collect();
                "the controller returns nonsense"
            }
            Damage::BadSector => {
                device.inject_below(Fault::next(FaultKind::BadSector), DATA.as_ref());
                "a page cannot be read"
            }
            Damage::RolledBack => {
                self.roll_back(&device);
                "the end of the log is missing"
            }
            Damage::Rotten => {
                if !files.is_empty() {
                    let (path, length) = self.damages.pick(&files);
                    let offset = self.damages.below(*length);
                    if self.damages.percent(80) {
                        let bit = 1 << self.damages.below(8);
                        overwrite(
                            path,
                            offset,
                            |bytes| bytes.iter_mut().for_each(|b| *b ^= bit),
                            1,
                        );
                    } else {
                        // Another page was written there.
                        let page = offset / PAGE as u64 * PAGE as u64;
                        let filler = self.damages.next().to_le_bytes();
                        let fill = |bytes: &mut Vec<u8>| {
                            bytes.iter_mut().zip(filler.iter().cycle()).for_each(|(b, f)| *b = *f);
                        };
                        overwrite(path, page, fill, PAGE);
                    }
                }
                "a checksum does not match"
            }
        };
        device.drop_caches();
        self.processes[place].damage = Some(damage);
        self.lost_at = self.now();
        what
    }

    /// Damages the log of a running process, behind what is written now. The process finds that when a peer
    /// lags, or at its next start.
    pub(super) fn spoil_running(&mut self, place: usize) -> Option<String> {
        self.processes[place].life.as_ref()?;
        let device = self.processes[place].device.clone();
        let mut segments = files_of(&device, is_of_log);
        segments.sort_by(|(one, _), (other, _)| one.path().cmp(other.path()));
        // The last one that is written to, and one that is made ahead.
        segments.truncate(segments.len().saturating_sub(2));
        if segments.is_empty() {
            return None;
        }
        let (path, length) = self.damages.pick(&segments);
        let (offset, bit) = (self.damages.below(*length), 1 << self.damages.below(8));
        overwrite(path, offset, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= bit), 1);
        self.processes[place].damage = Some(Damage::Rotten);
        self.lost_at = self.now();
        Some(format!("node {place}: {path} while it runs"))
    }

    /// Damages a part of the log that the store at a place does not need: that is no damage.
    pub(super) fn spoil_spare(&mut self, place: usize) -> Option<String> {
        let process = &self.processes[place];
        // What is not durable yet may be lost, and then more is needed.
        if !process.life.as_ref()?.disk.is_resting() || process.damage.is_some() {
            return None;
        }
        process.device.set_descriptors(None);
        let data = FsPath::new(Arc::new(process.device.process()), DATA.as_ref());
        let spare = spare_segments(&data)?;
        if spare.is_empty() {
            return None;
        }
        let path = self.damages.pick(&spare);
        let offset = self.damages.below(1 << 10);
        let bit = 1 << self.damages.below(8);
        overwrite(path, offset, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= bit), 1);
        Some(format!("node {place}: {path}"))
    }

    /// Takes back what was written last to the log.
    fn roll_back(&self, device: &Device) {
        let segments = files_of(device, is_of_log);
        let mut segments: Vec<_> = segments.into_iter().map(|(path, _)| path).collect();
        segments.sort_by(|one, other| other.path().cmp(one.path()));
        for path in segments {
            let bytes = path.read().expect("a simulated disk without faults works");
            // The last record of the log ends with a checksum, and a segment has a header of 512 bytes.
            let Some(end) = bytes.iter().rposition(|byte| *byte != 0).filter(|end| *end >= 512)
            else {
                continue;
            };
            let from = (end.saturating_sub(self.damages.index(PAGE))).max(512);
            overwrite(&path, from as u64, |bytes| bytes.fill(0), end + 1 - from);
            return;
        }
    }

    /// Damages one disk, if the cluster can do without it.
    pub(super) fn damage_one(&mut self) {
        if self.kernel.phase.get() != Phase::Chaos {
            return;
        }
        let place = self.damages.index(self.processes.len());
        let possible = self.is_restorable() && self.may_lose(place);
        let pause = if possible { MINUTE } else { 5 * SECOND };
        let pause = pause + self.damages.below(pause);
        self.schedule_in(pause, Event::DamageOne);
        if !possible {
            return;
        }
        self.kernel.count_event("disks damaged");
        self.kernel.trace.log_fault(format_args!("node {place}: the disk is damaged"));
        self.spoil(place, Damage::Rotten);
        let time = self.damages.below(5 * SECOND);
        self.start_in(place, time);
    }

    /// Damages all disks at once, as a failing controller does, and kills all processes.
    pub(super) fn damage_all(&mut self) {
        if self.kernel.phase.get() != Phase::Chaos {
            return;
        }
        if !self.is_restorable() || self.processes.iter().any(|process| process.damage.is_some()) {
            return self.schedule_in(10 * SECOND, Event::DamageAll);
        }
        self.kernel.count_event("all disks damaged");
        self.kernel.trace.log_fault(format_args!("all disks are damaged"));
        for place in 0..self.processes.len() {
            self.spoil(place, Damage::Nonsense(Vec::new()));
            let time = self.damages.below(5 * SECOND);
            self.start_in(place, time);
        }
        let time = 10 * SECOND + self.damages.below(60 * SECOND);
        self.troubled_until = self.troubled_until.max(self.now() + time);
        self.schedule_in(time, Event::Repair);
    }

    /// Whether every instance can come back after its disk was damaged: it belongs to a cluster, which it
    /// can join as a new member.
    fn is_restorable(&self) -> bool {
        self.processes.iter().all(|process| process.durable.condition().cluster() != 0)
    }

    /// Repairs the disks that were damaged at once and not put aside, and restarts their instances.
    pub(super) fn repair(&mut self) {
        for place in 0..self.processes.len() {
            let Some(Damage::Nonsense(paths)) = self.processes[place].damage.clone() else {
                continue;
            };
            self.kernel.trace.log_fault(format_args!("node {place}: the disk is repaired"));
            self.kernel.count_event("disks repaired");
            self.crash(place);
            // The end of the process may just have put the directory aside.
            if self.processes[place].damage.take().is_some() {
                let device = self.processes[place].device.clone();
                for (path, _) in files_of(&device, is_of_log) {
                    if paths.iter().any(|damaged| damaged == path.path()) {
                        let flip = |bytes: &mut Vec<u8>| bytes.iter_mut().for_each(|b| *b ^= 0xff);
                        overwrite(&path, 0, flip, 8);
                    }
                }
            }
            let time = self.damages.below(SECOND);
            self.start_in(place, time);
            self.lost_at = self.now();
            self.troubled_until = self.troubled_until.max(self.now());
        }
    }

    /// Damages a disk that has just replaced a damaged one.
    pub(super) fn damage_fresh(&mut self, place: usize) {
        let node = self.processes[place].member.node;
        let votes = self.kernel.checks.borrow().membership.may_vote(node);
        let damaged = self.processes[place].damage.is_some();
        // With eight of them, the disk itself counts as bad.
        let former = self.processes[place].former.len();
        if self.kernel.phase.get() != Phase::Chaos || votes || damaged || former > 5 {
            return;
        }
        self.kernel.count_event("fresh disks damaged");
        self.kernel.trace.log_fault(format_args!("node {place}: the fresh disk is damaged too"));
        self.spoil(place, Damage::Rotten);
        let time = self.damages.below(5 * SECOND);
        self.start_in(place, time);
    }

    /// Notes that a damaged directory was put aside, if it was.
    pub(super) fn settle_directory(&mut self, place: usize) {
        let process = &mut self.processes[place];
        let Some(life) = &mut process.life else { return };
        if !life.is_provisional || life.directory.damage().is_some() {
            return;
        }
        life.is_provisional = false;
        let former = life.directory.former();
        self.put_aside_damaged(place, former);
    }

    /// A damaged directory was put aside for the member at this place.
    pub(super) fn put_aside_damaged(&mut self, place: usize, former: Vec<PathBuf>) {
        let node = self.processes[place].member.node;
        self.processes[place].damage = None;
        self.kernel.count_event("damaged disks put aside");
        let checked = self.kernel.checks.borrow().membership.putting_aside(node);
        self.kernel.check(checked);
        self.note_former(place, former, false);
        self.lost_at = self.now();
        if self.kernel.plan.damages && self.damages.percent(60) {
            let time = self.damages.below(SECOND);
            self.schedule_in(time, Event::DamageFresh { place });
        }
    }

    /// Notes which directories are put aside now. The newest is that of the owner until now; others may be
    /// deleted.
    pub(super) fn note_former(&mut self, place: usize, paths: Vec<PathBuf>, removed: bool) {
        let process = &mut self.processes[place];
        let owner = std::mem::replace(&mut process.owner, process.member.node);
        let (kept, deleted): (Vec<Former>, Vec<Former>) =
            process.former.drain(..).partition(|former| paths.contains(&former.path));
        process.former = kept;
        for path in paths {
            if process.former.iter().all(|former| former.path != path) {
                process.former.push(Former { path, node: owner, removed });
            }
        }
        for former in deleted.iter().filter(|former| !former.removed) {
            self.kernel.count_event("former disks deleted");
            let checked = self.kernel.checks.borrow().membership.deleting(former.node, owner);
            self.kernel.check(checked);
        }
    }
}
