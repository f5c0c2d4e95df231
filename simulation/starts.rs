//! Starts of members from their disks.

use std::sync::Arc;

use super::checks::{Violation, durability};
use super::clock::SECOND;
use super::damages::Damage;
use super::durable::{DATA, Durable, RecordedStore, started};
use super::faults::Fault;
use super::world::World;
use crate::node::io::Now;
use crate::node::{Node, NodeConfig};
use crate::runtime::directory::{DataDirectory, Opened, start_as};
use crate::storage::simulated::{Fault as DeviceFault, FaultKind, ProcessFiles};
use crate::storage::{FsPath, LogStore, StorageError};
use crate::types::membership::Member;
use crate::types::version::INVENTED;

/// A member that is ready to run.
pub(super) struct Started {
    pub(super) store: Box<dyn LogStore>,
    pub(super) files: ProcessFiles,
    pub(super) node: Node,
    pub(super) directory: Arc<DataDirectory>,
}

/// How many of the starts a crash cuts short, in a thousand.
const CUT_SHORT: u64 = 20;

impl World {
    /// Starts the node of a place from its disk, as an instance does. `None` if it does not start now.
    pub(super) fn start_from_disk(
        &mut self,
        place: usize,
        config: &NodeConfig,
        now: Now,
        chaos: bool,
    ) -> Option<Started> {
        let device = self.processes[place].device.clone();
        let files = device.process();
        if chaos && self.random.chance(self.kernel.plan.rates.of(Fault::ReadError)) {
            let after = self.random.below(30);
            device.inject(DeviceFault { kind: FaultKind::FailedRead, after });
        }
        if chaos && self.random.below(1000) < CUT_SHORT {
            files.stop_after(self.random.below(60));
        }
        let before = device.struck().count(FaultKind::FailedRead);
        let path = FsPath::new(Arc::new(files.clone()), DATA.as_ref());
        let (unused, options) = (self.unused_identity(place), self.kernel.plan.store.clone());
        let opened = start_as(unused, path, options, config, now);
        device.disarm();
        let has_failed_to_read = device.struck().count(FaultKind::FailedRead) > before;
        if has_failed_to_read {
            self.kernel.count_fault(Fault::ReadError);
        }
        if files.has_ended() {
            self.kernel.count_event("starts cut short");
            self.kernel.trace.log_fault(format_args!("node {place}: is killed while it starts"));
            drop(opened);
            if self.power.percent(50) {
                device.cut_power();
            }
            let time = self.random.below(SECOND);
            self.start_in(place, time);
            return None;
        }
        files.stop_after(u64::MAX);
        match opened {
            Ok(opened) => self.started(place, opened, files),
            Err(error) => {
                files.end_process();
                self.refused(place, &error);
                None
            }
        }
    }

    /// Notes which member has started, and checks that this is right.
    fn started(&mut self, place: usize, opened: Opened, files: ProcessFiles) -> Option<Started> {
        let Opened { store, node, directory } = opened;
        let is_damaged = directory.damage();
        let process = &mut self.processes[place];
        process.unused = None;
        if !process.is_full && process.slow_disk_until <= self.kernel.now() {
            process.excused_until = 0;
        }
        let (id, owner, former) = (node.id(), process.owner, directory.former());
        let may_be_damaged = process.damage.is_some();
        let is_member = id == process.member.node;
        if !is_member {
            let uid = store.identity().map_or(0, |identity| identity.uid);
            process.member = Member { node: id, uid, ..process.member.clone() };
            if let Some(known) = self.disks.get(&id) {
                self.processes[place].durable = known.clone();
                self.kernel.count_event("repaired disks started from");
            } else {
                let cluster = store.identity().map_or(0, |identity| identity.cluster);
                let durable = Durable::founded(cluster, 0, Default::default());
                self.put_disk(id, &durable);
                self.processes[place].durable = durable;
                self.lost_at = self.kernel.now();
            }
        }
        let device = self.processes[place].device.clone();
        if let Some(what) = &is_damaged {
            self.found_damaged(place, may_be_damaged, what);
            if owner == id {
                let checked = self.kernel.checks.borrow_mut().membership.new_disk(id);
                self.kernel.check(checked);
            }
        } else {
            let was_removed =
                former.iter().any(|path| device.exists(&path.join("REMOVED")) && owner != id);
            if owner == id {
                self.note_former(place, former, false);
            } else if was_removed {
                self.kernel.count_event("directories replaced");
                self.note_former(place, former, true);
            } else if is_member {
                // The end of a former process came while it put the directory aside.
                self.found_damaged(place, may_be_damaged, "it was put aside");
                self.put_aside_damaged(place, former);
            } else {
                let of_cluster = self.disks.get(&owner);
                if of_cluster.is_some_and(|durable| durable.condition().cluster() != 0) {
                    let checked = self.kernel.checks.borrow().membership.putting_aside(id);
                    self.kernel.check(checked);
                }
                self.found_damaged(place, may_be_damaged, "it was put aside, without a cluster");
                self.note_former(place, former, false);
            }
            // What it needs was verified.
            self.processes[place].damage = None;
            self.kernel.check(started(&device));
        }
        let durable = self.processes[place].durable.clone();
        let checked = durability::recovered(&node, &mut durable.condition());
        self.kernel.check(checked);
        // Whoever joins as a new member has the newest build.
        if !is_member && std::mem::replace(&mut self.processes[place].version, INVENTED) < INVENTED
        {
            files.end_process();
            self.start_in(place, SECOND);
            return None;
        }
        let store = Box::new(RecordedStore::new(store, durable, device));
        Some(Started { store, files, node, directory })
    }

    /// A start has found its disk damaged.
    fn found_damaged(&self, place: usize, may_be_damaged: bool, what: &str) {
        self.kernel.trace.log_fault(format_args!("node {place}: its disk is damaged: {what}"));
        if !may_be_damaged {
            let what = format!("node {place}: {what}");
            self.kernel.fail(Violation::new("I14 what was written opens", what));
        }
    }

    /// A store did not open.
    fn refused(&mut self, place: usize, error: &StorageError) {
        self.kernel.trace.log_fault(format_args!("node {place}: does not start: {error}"));
        match error {
            StorageError::Version { .. } => {
                self.too_old(place);
                self.start_in(place, SECOND);
            }
            // Nobody repairs it: it is replaced.
            StorageError::Io { .. } if self.processes[place].damage == Some(Damage::BadSector) => {
                self.kernel.count_event("bad disks replaced");
                self.empty_disk(place);
                self.start_in(place, SECOND);
            }
            // A member that never votes keeps each damaged directory. The error asks for another disk.
            StorageError::Io { what, .. } if what.starts_with("this directory was replaced") => {
                self.kernel.count_event("worn disks replaced");
                self.empty_disk(place);
                self.start_in(place, SECOND);
            }
            StorageError::Io { .. } | StorageError::NoSpace { .. } | StorageError::Again { .. } => {
                self.start_in(place, SECOND);
            }
            // Alone on its list, it has nobody to join.
            StorageError::Corrupt { .. } => match self.processes[place].damage {
                // It waits for the repair.
                Some(Damage::Nonsense(_)) => self.start_in(place, SECOND),
                Some(_) => {
                    self.empty_disk(place);
                    self.start_in(place, SECOND);
                }
                None => self.found_damaged(place, false, &error.to_string()),
            },
            _ => self.kernel.fail(Violation::new(
                "I14 what was written opens",
                format!("node {place}: {error}"),
            )),
        }
    }
}
