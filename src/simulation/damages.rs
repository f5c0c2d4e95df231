//! Damaged disks: one at a time, all at once, and their repair.
//!
//! An instance whose disk is damaged runs as a new member with a fresh disk. When a leader has sent the
//! new member something, the fresh disk replaces the damaged one, which is put aside by the store's own
//! rules. If the damaged disk is repaired before that, the instance starts from it again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::clock::{Nanos, SECOND};
use super::disk::SimDisk;
use super::kernel::Phase;
use super::process::{Former, Fresh};
use super::world::{Event, World};
use crate::node::stored::Identity;
use crate::storage::{Begin, LogStore, Provisional, StorageError};
use crate::types::membership::Member;
use crate::types::version::INVENTED;

const MINUTE: Nanos = 60 * SECOND;

impl World {
    /// The store from which the instance at this place starts.
    pub(super) fn open_store(&mut self, place: usize) -> Result<Box<dyn LogStore>, StorageError> {
        let process = &mut self.processes[place];
        let address = process.member.address.clone();
        if process.fresh.is_some() && process.disk.condition().damaged.is_none() {
            // It was repaired.
            process.fresh = None;
            let Identity { node, uid, .. } = process.disk.identity();
            process.member = Member { node, uid, ..process.member.clone() };
            self.kernel.count_event("repaired disks started from");
        }
        if self.processes[place].fresh.as_ref().is_some_and(|fresh| fresh.used) {
            let old = self.processes[place].disk.identity();
            let Identity { cluster, node, incarnation, uid, .. } =
                old.with_incarnation(self.damages.next());
            let member = Member { node, uid, ..self.processes[place].member.clone() };
            let disk = SimDisk::blank(cluster, &member, incarnation);
            self.join_provisionally(place, member, disk);
        }
        let process = &mut self.processes[place];
        let Some(fresh) = &mut process.fresh else {
            let mut store: Box<dyn LogStore> = Box::new(process.disk.open());
            match store.identity().cloned() {
                Some(identity) if identity.address != address => {
                    store.set_identity(&Identity { address, ..identity })?;
                }
                _ => {}
            }
            return Ok(store);
        };
        fresh.used = true;
        let (disk, begun) = (fresh.disk.clone(), Arc::clone(&fresh.begun));
        let identity = Identity { address, ..disk.identity() };
        let damaged = process.disk.clone();
        let begin: Begin = Box::new(move |identity| {
            if damaged.condition().full {
                return Err(StorageError::NoSpace { what: "a fresh directory".to_owned() });
            }
            let mut store = disk.open();
            store.set_identity(identity)?;
            begun.store(true, Ordering::Relaxed);
            Ok(Box::new(store))
        });
        Ok(Box::new(Provisional::new(identity, begin)?))
    }

    /// From its next start on, the instance is a new member. It keeps this disk once it is admitted.
    pub(super) fn join_provisionally(&mut self, place: usize, member: Member, disk: SimDisk) {
        self.put_disk(&member, &disk);
        let process = &mut self.processes[place];
        process.member = member;
        process.version = INVENTED;
        process.fresh = Some(Fresh::new(disk));
        self.lost_at = self.now();
    }

    /// Replaces the damaged disk if the store has put it aside.
    pub(super) fn settle_fresh(&mut self, place: usize) {
        let process = &mut self.processes[place];
        let Some(fresh) = process.fresh.take_if(|fresh| fresh.begun.load(Ordering::Relaxed)) else {
            return;
        };
        self.kernel.count_event("damaged disks put aside");
        let node = self.processes[place].member.node;
        let checked = self.kernel.checks.borrow().membership.putting_aside(node);
        self.kernel.check(checked);
        self.put_aside(place, false);
        self.processes[place].disk = fresh.disk;
        self.lost_at = self.now();
        if self.kernel.plan.damages && self.damages.percent(60) {
            let time = self.damages.below(SECOND);
            self.schedule_in(time, Event::DamageFresh { place });
        }
    }

    /// Puts the disk at this place aside. This may delete disks that were put aside earlier.
    pub(super) fn put_aside(&mut self, place: usize, removed: bool) {
        let process = &mut self.processes[place];
        let node = process.disk.identity().node;
        let all = process.disk.drops_former();
        let (deleted, kept): (Vec<Former>, Vec<Former>) =
            process.former.iter().partition(|former| all || former.removed);
        process.former = kept;
        process.former.push(Former { node, removed });
        for former in deleted.iter().filter(|former| !former.removed) {
            self.kernel.count_event("former disks deleted");
            let checked = self.kernel.checks.borrow().membership.deleting(former.node, node);
            self.kernel.check(checked);
        }
    }

    pub(super) fn begin_damages(&mut self) {
        if self.kernel.plan.damages {
            let time = self.damages.below(self.kernel.plan.length);
            self.schedule_in(time, Event::DamageAll);
            self.schedule_in(MINUTE, Event::DamageOne);
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
        self.processes[place].disk.condition().damaged = Some("a checksum does not match");
        self.lost_at = self.now();
        self.crash(place);
        let time = self.damages.below(5 * SECOND);
        self.start_in(place, time);
    }

    /// Damages all disks at once, as a failing controller does, and kills all processes.
    pub(super) fn damage_all(&mut self) {
        if self.kernel.phase.get() != Phase::Chaos {
            return;
        }
        if !self.is_restorable() {
            return self.schedule_in(10 * SECOND, Event::DamageAll);
        }
        self.kernel.count_event("all disks damaged");
        self.kernel.trace.log_fault(format_args!("all disks are damaged"));
        for place in 0..self.processes.len() {
            self.crash(place);
            let condition = self.processes[place].disk.condition().damaged;
            self.processes[place].disk.condition().damaged =
                Some(condition.unwrap_or("the controller returns nonsense"));
            let time = self.damages.below(5 * SECOND);
            self.start_in(place, time);
        }
        self.lost_at = self.now();
        let time = 10 * SECOND + self.damages.below(60 * SECOND);
        self.troubled_until = self.troubled_until.max(self.now() + time);
        self.schedule_in(time, Event::Repair);
    }

    /// Whether every instance can come back after its disk was damaged: it belongs to a cluster, which it
    /// can join as a new member.
    fn is_restorable(&self) -> bool {
        self.processes.iter().all(|process| process.disk.identity().cluster != 0)
    }

    /// Repairs the disks that were damaged at once and not put aside, and restarts their instances.
    pub(super) fn repair(&mut self) {
        for place in 0..self.processes.len() {
            let repairable = self.processes[place].disk.condition().damaged
                == Some("the controller returns nonsense");
            if !repairable {
                continue;
            }
            self.kernel.trace.log_fault(format_args!("node {place}: the disk is repaired"));
            self.kernel.count_event("disks repaired");
            self.crash(place);
            self.processes[place].disk.condition().damaged = None;
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
        let damaged = self.processes[place].disk.condition().damaged.is_some();
        if self.kernel.phase.get() != Phase::Chaos || votes || damaged {
            return;
        }
        self.kernel.count_event("fresh disks damaged");
        self.kernel.trace.log_fault(format_args!("node {place}: the fresh disk is damaged too"));
        self.processes[place].disk.condition().damaged = Some("a checksum does not match, again");
        self.crash(place);
        let time = self.damages.below(5 * SECOND);
        self.start_in(place, time);
    }
}
