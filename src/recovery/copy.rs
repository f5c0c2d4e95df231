//! What a data directory holds, read from a copy of it: opening a database writes to it.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::machine::Machine;
use crate::machine::command::Batch;
use crate::machine::snapshot::ChunkReader;
use crate::node::message::EntryKind;
use crate::runtime::entropy;
use crate::storage::{
    Boot, Identity, LogStore, Marks, SledOptions, SledStore, StorageError, copy_store, identity_of,
};
use crate::version::{VERSION, too_old};
use crate::znode::Zxid;

/// A directory that goes with this.
#[derive(Debug)]
pub(super) struct Temporary(PathBuf);

impl Temporary {
    /// A name among the system's temporary files that nobody else has, where nothing is yet.
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
        // What cannot be removed is left to whoever looks after temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A store, and the state that its checkpoint and its whole log make.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) boot: Boot,
    pub(super) machine: Machine,
    /// The last write that this member knows to be committed, and the log's time then.
    pub(super) committed: (Zxid, u64),
    /// The place of the last entry: its term and its index.
    pub(super) last: (u64, u64),
    /// The log has changes of the membership after the checkpoint.
    pub(super) membership_changes: bool,
}

/// Whose a data directory is, and what it holds or why that cannot be read.
pub(super) fn read(dir: &Path) -> Result<(Identity, Marks, std::result::Result<Held, String>)> {
    let copy = Temporary::new()?;
    let in_dir = |error: StorageError| error.into_error(dir.to_owned());
    let marks = copy_store(dir, copy.path()).map_err(in_dir)?;
    let (identity, held) = read_copy(copy.path()).map_err(in_dir)?;
    Ok((identity, marks, held))
}

/// The same of a copy.
pub(super) fn read_copy(
    copy: &Path,
) -> std::result::Result<(Identity, std::result::Result<Held, String>), StorageError> {
    let Some(identity) = identity_of(copy)? else {
        return Err(StorageError::Corrupt { what: "IDENTITY is missing".to_owned() });
    };
    let held = match load(copy) {
        Ok(held) => Ok(held),
        Err(StorageError::Corrupt { what }) => Err(what),
        Err(other) => return Err(other),
    };
    Ok((identity, held))
}

fn load(copy: &Path) -> std::result::Result<Held, StorageError> {
    let corrupt = |what: String| StorageError::Corrupt { what };
    let mut store = SledStore::open(copy, SledOptions::default())?;
    let mut reader = ChunkReader::new();
    let loaded = store.load(&mut |chunk| match reader.push(chunk) {
        Err(_) if reader.version() > VERSION => Ok(()),
        pushed => pushed,
    });
    let too_new = |version| StorageError::Version { what: too_old(version, VERSION) };
    if reader.version() > VERSION {
        return Err(too_new(reader.version()));
    }
    let boot = loaded?;
    let mut machine = reader.finish(boot.checkpoint.zxid, boot.checkpoint.hash).map_err(corrupt)?;
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
                    return Err(too_new(batch.version()));
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
