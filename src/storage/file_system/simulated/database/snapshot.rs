//! Snapshots of a simulated database: where each value is in its file.
//!
//! XXH3 of the rest, the log sequence number up to which it goes, and for each key its length, the log sequence
//! number, place and length of its record, and the key.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use sled::IVec;
use xxhash_rust::xxh3::xxh3_64;

use super::log::RecordLocation;
use super::{OpenDatabase, Stored};
use crate::storage::error::Result;
use crate::storage::error::{corrupt, io_error};
use crate::storage::file_system::{Access, FileSystem};

const PREFIX: &str = "snap.";
const UNFINISHED: &str = ".generating";

/// The names of the snapshots, the oldest first.
pub(super) fn snapshots(files: &dyn FileSystem, path: &Path) -> Result<Vec<String>> {
    let names = files.list(path).map_err(io_error("opening the database"))?;
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    names.sort();
    if let Some(name) = names.iter().find(|name| name.ends_with(UNFINISHED)) {
        return corrupt(format!("the database: snapshot {name} is damaged"));
    }
    Ok(names)
}

type Index = BTreeMap<IVec, Stored>;

/// The log sequence number of a snapshot, and its keys.
pub(super) fn read_snapshot(files: &dyn FileSystem, path: &Path) -> Result<(u64, Index)> {
    let io = io_error("opening the database");
    let file = files.open(path, Access::Read).map_err(io)?;
    let mut bytes = vec![0; file.length().map_err(io)? as usize];
    file.read_at(&mut bytes, 0).map_err(io)?;
    let damaged = || corrupt("the database: the snapshot is damaged".to_owned());
    let field = |at: usize| {
        let field = bytes.get(at..at + 8)?;
        field.try_into().ok().map(u64::from_le_bytes)
    };
    let (Some(checksum), Some(lsn)) = (field(0), field(8)) else { return damaged() };
    if checksum != xxh3_64(&bytes[8..]) {
        return damaged();
    }
    let mut index = Index::new();
    let mut at = 16;
    while let (Some(key), Some(lsn), Some(offset), Some(size)) =
        (field(at), field(at + 8), field(at + 16), field(at + 24))
    {
        at += 32;
        let Some(name) = bytes.get(at..at + key as usize) else { return damaged() };
        at += key as usize;
        let place = Some(RecordLocation { lsn, offset, bytes: size });
        index.insert(IVec::from(name), Stored { value: None, place });
    }
    Ok((lsn, index))
}

impl OpenDatabase {
    /// Writes a snapshot, durably except for its name, and removes the former ones.
    pub(super) fn write_snapshot(&mut self, former: &[String]) -> io::Result<()> {
        let tip = self.tip();
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(&tip.to_le_bytes());
        for (key, stored) in &self.index {
            let Some(place) = stored.place else { continue };
            for field in [key.len() as u64, place.lsn, place.offset, place.bytes] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
            bytes.extend_from_slice(key);
        }
        let checksum = xxh3_64(&bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        let name = format!("{PREFIX}{tip:016X}");
        let unfinished = self.path.join(format!("{name}{UNFINISHED}"));
        let file = self.files.open(&unfinished, Access::Create)?;
        file.write_at(&bytes, 0)?;
        file.sync_all()?;
        self.files.rename(&unfinished, &self.path.join(&name))?;
        for old in former.iter().filter(|old| **old != name) {
            self.files.remove_file(&self.path.join(old))?;
        }
        Ok(())
    }
}
