//! The content of a data directory, read from a copy: opening a database writes to it.

use std::path::{Path, PathBuf};

use super::calls::Recovery;
use crate::machine::Machine;
use crate::machine::command::Batch;
use crate::node::stored::{Boot, EntryKind, Identity};
use crate::runtime::{entropy, read_state};
use crate::storage::{
    ChunkSink, DiskStore, FsPath, LogStore, Marks, StorageError, StoreOptions, copy_store,
    identity_of,
};
use crate::types::error::Result;
use crate::types::version::{VERSION, too_old};
use crate::types::znode::Zxid;

/// A directory that is deleted when this is dropped.
#[derive(Debug)]
pub(super) struct Temporary(PathBuf);

impl Temporary {
    /// A new, unique path among the system's temporary files.
    pub(super) fn new() -> Result<Temporary> {
        let name = format!("quorate-{:016x}", entropy::number()?);
        Ok(Temporary(std::env::temp_dir().join(name)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A directory that cannot be removed is left to the system's cleaning of temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A store, and the state of its checkpoint and its whole log.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) boot: Boot,
    pub(super) machine: Machine,
    /// The zxid and the log's time of the last write that this member knows to be committed.
    pub(super) committed: (Zxid, u64),
    /// The term and the index of the last entry.
    pub(super) last: (u64, u64),
    /// Whether the log changes the membership after the checkpoint.
    pub(super) membership_changes: bool,
}

/// The owner of a data directory, and its content.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) identity: Identity,
    /// The damage, if there is any.
    pub(super) damage: Option<String>,
    /// The complete content, if it can be proven that nothing acknowledged is missing.
    pub(super) whole: Option<Held>,
    /// Otherwise the longest undamaged prefix.
    pub(super) part: Option<Held>,
}

/// Reads a data directory, from a copy of it.
pub(super) fn read(dir: &Path, options: &Recovery) -> Result<(Found, Marks)> {
    let copy = Temporary::new()?;
    let in_dir = |error: StorageError| error.into_error(dir.to_owned());
    let options = options.store().map_err(in_dir)?;
    let copied = FsPath::system(copy.path());
    let marks =
        copy_store(&FsPath::system(dir), &copied, options.log_dir.as_deref()).map_err(in_dir)?;
    let found = read_copy(&copied, &options, &marks).map_err(in_dir)?;
    Ok((found, marks))
}

/// As [`read`], for a copy of a directory with these marks. A log that no member continues with is read all the
/// same, but proves nothing.
pub(super) fn read_copy(
    copy: &FsPath,
    options: &StoreOptions,
    marks: &Marks,
) -> std::result::Result<Found, StorageError> {
    let found = read_all(copy, options)?;
    let Some(fault) = &marks.log else { return Ok(found) };
    let what = match fault {
        StorageError::Corrupt { what } => what.clone(),
        other => other.to_string(),
    };
    Ok(Found { damage: Some(what), whole: None, part: found.whole.or(found.part), ..found })
}

fn read_all(copy: &FsPath, options: &StoreOptions) -> std::result::Result<Found, StorageError> {
    // The log is in the copy.
    let options = &StoreOptions { log_dir: None, ..options.clone() };
    let Some(identity) = identity_of(copy)? else {
        return Err(StorageError::Corrupt { what: "IDENTITY is missing".to_owned() });
    };
    let damage = match DiskStore::open(copy, options.clone()).and_then(load) {
        Ok(held) => return Ok(Found { identity, damage: None, whole: Some(held), part: None }),
        Err(StorageError::Corrupt { what }) => what,
        Err(other) => return Err(other),
    };
    // Votes from founding the old cluster do not matter for a new one.
    let whole = match DiskStore::open_without_promise(copy, options.clone()).and_then(load) {
        // The damage was found before a key was needed.
        Err(error @ StorageError::Key { .. }) => return Err(error),
        whole => whole.ok(),
    };
    let part = if whole.is_some() {
        None
    } else {
        DiskStore::salvage(copy, options.clone())
            .and_then(|salvage| {
                let load = |sink: &mut ChunkSink<'_>| {
                    let corrupt = |what| StorageError::Corrupt { what };
                    salvage.chunks.iter().try_for_each(|chunk| sink(chunk)).map_err(corrupt)?;
                    Ok(salvage.boot.clone())
                };
                read_back(load)
            })
            .ok()
    };
    Ok(Found { identity, damage: Some(damage), whole, part })
}

fn load(mut store: DiskStore) -> std::result::Result<Held, StorageError> {
    read_back(|sink| store.load(sink))
}

/// The state of a checkpoint and the log after it.
fn read_back(
    load: impl FnOnce(&mut ChunkSink<'_>) -> std::result::Result<Boot, StorageError>,
) -> std::result::Result<Held, StorageError> {
    let corrupt = |what: String| StorageError::Corrupt { what };
    let (boot, mut machine) = read_state(VERSION, load)?;
    let mut committed = (machine.zxid(), machine.time());
    let mut last = (boot.checkpoint.term, boot.checkpoint.index);
    let mut membership_changes = false;
    for entry in boot.entries.iter().filter(|entry| entry.index > boot.checkpoint.index) {
        if entry.index != last.1 + 1 || entry.term < last.0 {
            return Err(corrupt(format!("entry {} does not follow {last:?}", entry.index)));
        }
        last = (entry.term, entry.index);
        match entry.kind {
            EntryKind::Membership => membership_changes = true,
            EntryKind::Normal if entry.data.is_empty() => {}
            EntryKind::Normal => {
                let batch = Batch::decode(&entry.data)
                    .map_err(|reason| corrupt(format!("entry {}: {reason}", entry.index)))?;
                if batch.version() > VERSION {
                    return Err(StorageError::Version { what: too_old(batch.version(), VERSION) });
                }
                machine.apply(entry.term, &batch);
            }
        }
        if entry.index <= boot.hard_state.commit {
            committed = (machine.zxid(), machine.time());
        }
    }
    machine.check_invariants().map_err(corrupt)?;
    Ok(Held { boot, machine, committed, last, membership_changes })
}
