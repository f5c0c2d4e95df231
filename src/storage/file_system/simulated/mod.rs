//! A file system in memory that knows what is in the cache and what is on the device, and fails as disks do.
//!
//! A [`Device`] is the disk of one machine. It outlives processes: each has a [`ProcessFiles`], which implements
//! [`FileSystem`](super::FileSystem). The device knows
//! - of each page of a file: what the device holds, what the cache holds, and whether a sync has to write it yet.
//!   A sync that fails loses the page: it can be read, counts as clean, and no later sync writes it;
//! - of each change of names: whether a sync has made it durable.
//!
//! Separate faults:
//! - A process ends ([`ProcessFiles::end_process`], [`ProcessFiles::stop_after`]): all that it has written stays
//!   visible, and is not durable.
//! - The power is cut ([`Device::cut_power`]): any part of what was not synced is lost, by pages, sectors, lengths
//!   and names. Afterwards the cache is empty.
//! - The system drops its cache ([`Device::drop_caches`]): what is clean comes from the device again.
//! - [`FaultKind`] lists those of the device and of single calls.
//!
//! The same seed and the same calls give the same bytes. There is no clock: a disk that is slow or hangs is the
//! matter of who plans the steps of a process, by what they cost ([`Usage`]).
//!
//! Not modelled: a drive with a cache of its own that survives no power cut although a sync has returned, except as
//! [`FaultKind::LyingSync`]; damage of the file system's own structures.

mod calls;
mod content;
mod cut;
mod database;
mod faults;
#[cfg(test)]
mod judged;
mod names;
mod page;
mod process;
mod questions;
mod random;
mod state;

#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use self::cut::PowerCut;
#[cfg(test)]
pub(crate) use self::cut::Survivors;
pub(crate) use self::database::DatabaseOptions;
pub(crate) use self::faults::{Fault, FaultKind, Struck};
#[cfg(test)]
pub(crate) use self::judged::Image;
pub(crate) use self::process::ProcessFiles;
#[cfg(test)]
pub(crate) use self::questions::DeviceState;
pub(crate) use self::questions::Unsynced;
pub(crate) use self::random::Random;
use self::state::{Inode, Process, State};

type Shared = Arc<Mutex<State>>;

/// The state of a device. A panic elsewhere leaves it as sound as an ended process does.
fn locked(shared: &Shared) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What processes have asked of a device, in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
    /// Pages that syncs have written to the device.
    pub(crate) synced_pages: u64,
    pub(crate) name_changes: u64,
    pub(crate) opens: u64,
}

impl Usage {
    /// What was asked since an earlier moment.
    pub(crate) fn since(&self, mark: &Usage) -> Usage {
        Usage {
            reads: self.reads - mark.reads,
            read_bytes: self.read_bytes - mark.read_bytes,
            writes: self.writes - mark.writes,
            written_bytes: self.written_bytes - mark.written_bytes,
            syncs: self.syncs - mark.syncs,
            synced_pages: self.synced_pages - mark.synced_pages,
            name_changes: self.name_changes - mark.name_changes,
            opens: self.opens - mark.opens,
        }
    }
}

/// The disk of one machine.
#[derive(Clone)]
pub(crate) struct Device {
    shared: Shared,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

impl Device {
    /// An empty disk. All that happens to it by chance follows from the seed.
    pub(crate) fn new(seed: u64) -> Device {
        Device { shared: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// A disk with the same content, in the cache and on the device, without processes and armed faults. It shares
    /// the pages with this one until either changes them.
    pub(crate) fn copy(&self, seed: u64) -> Device {
        let of = locked(&self.shared);
        let mut copy = State::new(seed);
        copy.nodes.clone_from(&of.nodes);
        copy.names.clone_from(&of.names);
        (copy.last_id, copy.order, copy.has_unnamed) = (of.last_id, of.order, true);
        (copy.capacity, copy.descriptors_max) = (of.capacity, of.descriptors_max);
        copy.database = of.database;
        copy.remove_unnamed();
        Device { shared: Arc::new(Mutex::new(copy)) }
    }

    /// The file system for a new process.
    pub(crate) fn process(&self) -> ProcessFiles {
        let mut state = locked(&self.shared);
        let process = state.next_id();
        state.processes.insert(process, Process::default());
        ProcessFiles::new(self.shared.clone(), process)
    }

    /// Ends all processes.
    pub(crate) fn end_processes(&self) {
        let mut state = locked(&self.shared);
        let processes: Vec<_> = state.processes.keys().copied().collect();
        for process in processes {
            state.end_process(process);
        }
    }

    /// Cuts the power: all processes end, and what was not synced survives in part. Returns which part.
    pub(crate) fn cut_power(&self) -> PowerCut {
        let cut = {
            let mut state = locked(&self.shared);
            // What was written long ago is mostly synced.
            let (order, oldest) = (state.order, state.oldest_unsynced());
            PowerCut::draw(&mut state.random, oldest, order)
        };
        self.cut_power_with(cut);
        cut
    }

    /// Cuts the power with this outcome.
    pub(crate) fn cut_power_with(&self, cut: PowerCut) {
        self.end_processes();
        let mut state = locked(&self.shared);
        let State { names, nodes, random, .. } = &mut *state;
        names.cut(cut.names, random);
        let left = names.visible_nodes();
        nodes.retain(|node, _| left.contains(node));
        for node in nodes.values_mut() {
            if let Inode::File(content) = node {
                Arc::make_mut(content).cut(cut.pages, cut.has_grown, random);
            }
        }
        state.has_unnamed = false;
    }

    /// The system needs memory: it drops what it need not write yet, so that reads come from the device.
    pub(crate) fn drop_caches(&self) {
        self.each_content(|content, _| content.drop_cache(u64::MAX));
    }

    /// The system writes some of the dirty pages before any sync.
    pub(crate) fn write_back_some(&self) {
        self.each_content(|content, random| content.write_some(random));
    }

    fn each_content(&self, mut each: impl FnMut(&mut content::FileContent, &mut Random)) {
        let mut state = locked(&self.shared);
        let State { nodes, random, .. } = &mut *state;
        for node in nodes.values_mut() {
            if let Inode::File(content) = node {
                each(Arc::make_mut(content), random);
            }
        }
    }

    /// Arms a fault, or lets it strike at once if it needs no call. Returns whether it can strike: there may be no
    /// page to damage.
    pub(crate) fn inject(&self, fault: Fault) -> bool {
        self.inject_below(fault, Path::new("/"))
    }

    /// As `inject`; damages only what is below a path.
    pub(crate) fn inject_below(&self, fault: Fault, below: &Path) -> bool {
        locked(&self.shared).inject(fault, below)
    }

    /// Takes back all faults that have not struck yet.
    pub(crate) fn disarm(&self) {
        locked(&self.shared).faults.disarm();
    }

    /// Damages this page of a file, by a fault that needs no call.
    pub(crate) fn damage(&self, kind: FaultKind, path: &Path, page: u64) -> io::Result<()> {
        let mut state = locked(&self.shared);
        let node = state.resolve(path)?;
        state.damage(kind, node, page)
    }

    /// Limits the room, in bytes.
    pub(crate) fn set_capacity(&self, capacity: Option<u64>) {
        locked(&self.shared).capacity = capacity;
    }

    /// Tells processes that so much room is left, although all of it can be used.
    pub(crate) fn show_free(&self, free: Option<u64>) {
        locked(&self.shared).shown_free = free;
    }

    /// Limits how many files a process can have open.
    pub(crate) fn set_descriptors(&self, most: Option<usize>) {
        locked(&self.shared).descriptors_max = most.unwrap_or(usize::MAX);
    }

    /// How databases are stored.
    pub(crate) fn set_database(&self, options: DatabaseOptions) {
        locked(&self.shared).database = options;
    }

    pub(crate) fn struck(&self) -> Struck {
        locked(&self.shared).faults.struck
    }

    pub(crate) fn usage(&self) -> Usage {
        locked(&self.shared).usage
    }
}

impl State {
    fn inject(&mut self, fault: Fault, below: &Path) -> bool {
        use FaultKind::{BadSector, FailedWriteBack, Rot, UncachedRot};
        if !matches!(fault.kind, BadSector | FailedWriteBack | Rot | UncachedRot) {
            self.faults.arm(fault);
            return true;
        }
        let Ok(below) = self.resolve(below) else { return false };
        let nodes = self.names.nodes_below(below);
        if fault.kind == FailedWriteBack {
            let dirty: Vec<_> = nodes.into_iter().filter(|node| self.is_dirty(*node)).collect();
            let Some(node) = self.random.pick(&dirty).copied() else { return false };
            return self.damage(fault.kind, node, 0).is_ok();
        }
        let Some((node, page)) = self.draw_page(|node| nodes.contains(&node)) else {
            return false;
        };
        self.damage(fault.kind, node, page).is_ok()
    }

    fn damage(&mut self, kind: FaultKind, node: names::NodeId, page: u64) -> io::Result<()> {
        let bit = self.random.index(8 * page::PAGE_BYTES);
        match kind {
            FaultKind::FailedWriteBack => self.fail_to_write(node)?,
            // It strikes when somebody reads it.
            FaultKind::BadSector => return self.content(node).map(|content| content.spoil(page)),
            FaultKind::Rot => drop(self.content(node)?.rot(page, bit)),
            FaultKind::UncachedRot => {
                let content = self.content(node)?;
                content.rot(page, bit);
                content.drop_cache(u64::MAX);
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        self.faults.note(kind);
        Ok(())
    }
}
