//! Decodes chunks to a machine, with all checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{FORMAT, SnapshotItem};
use crate::machine::command::{OpError, Reply};
use crate::machine::sessions::{FORMER_MAX, SessionRecord, Sessions, encode_result};
use crate::machine::tombstones::Tombstones;
use crate::machine::tree::{Fields, Image, RESERVED, Tree};
use crate::machine::{Machine, State};
use crate::types::acl::{AccessList, Acl};
use crate::types::path;
use crate::types::version::FIRST;
use crate::types::znode::{SessionId, Zxid};

/// Builds a machine from chunks.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    tree: Tree,
    /// The znodes of the present image.
    image: Image,
    /// The owners of the ephemerals. Sessions are read after the znodes.
    ephemerals: BTreeMap<Arc<str>, SessionId>,
    sessions: Sessions,
    tombstones: Tombstones,
    time: u64,
    version: u16,
    phase: ReaderPhase,
    /// Znodes that have changed since this zxid are listed in the machine, if at all.
    since: Option<Zxid>,
}

#[derive(Debug)]
enum ReaderPhase {
    /// Nothing was read yet.
    Blank,
    /// In the middle of an image.
    Open,
    /// A session was read, and this many of its results are missing.
    Outcomes(SessionId, Box<SessionRecord>, u32),
    /// A whole number of images was read.
    Complete,
    /// There was an error.
    Failed,
}

impl ChunkReader {
    pub(crate) fn new() -> ChunkReader {
        ChunkReader {
            tree: Tree::empty(),
            image: Image::default(),
            ephemerals: BTreeMap::new(),
            sessions: Sessions::default(),
            tombstones: Tombstones::default(),
            time: 0,
            version: FIRST,
            phase: ReaderPhase::Blank,
            since: None,
        }
    }

    /// Lists the znodes that have changed since this zxid: see [`Machine::take_changed`].
    pub(crate) fn list_changed(&mut self, since: Zxid) {
        self.since = Some(since);
    }

    /// The cluster's version in the chunks that were read. It comes first, so it is known even if
    /// this build cannot decode the rest.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// Decodes the next chunk. After an error, no further chunk is accepted.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<(), String> {
        let mut rest = match chunk.split_first() {
            Some((&FORMAT, rest)) => rest,
            Some((format, _)) => return Err(self.fail(format!("unknown chunk format {format}"))),
            None => return Err(self.fail("an empty chunk".to_owned())),
        };
        while !rest.is_empty() {
            let taken = postcard::take_from_bytes(rest).map_err(|error| error.to_string());
            match taken.and_then(|(item, rest)| self.item(item).map(|()| rest)) {
                Ok(after) => rest = after,
                Err(reason) => return Err(self.fail(reason)),
            }
        }
        Ok(())
    }

    /// The machine, if it is complete, passes all checks, and has this zxid and hash.
    pub(crate) fn finish(mut self, zxid: Zxid, hash: u64) -> Result<Machine, String> {
        match self.phase {
            ReaderPhase::Complete => {}
            ReaderPhase::Blank => return Err("no chunks".to_owned()),
            _ => return Err("the chunks end in the middle of an image".to_owned()),
        }
        for (path, owner) in &self.ephemerals {
            if !self.sessions.set_ephemeral(*owner, path, true) {
                return Err(format!("{path}: its session {owner} does not exist"));
            }
        }
        self.tree.check_contents()?;
        self.sessions.check()?;
        let machine = Machine::from_state(State {
            tree: self.tree,
            sessions: self.sessions,
            tombstones: self.tombstones,
            time: self.time,
            version: self.version,
            dirty_epoch: 0,
        });
        if (machine.zxid(), machine.hash()) != (zxid, hash) {
            return Err(format!(
                "the state has zxid {} and hash {:016x}, but zxid {zxid} and hash {hash:016x} are \
                 expected",
                machine.zxid(),
                machine.hash(),
            ));
        }
        let changed = self.since.map(|since| (since, machine.tree().changed_since(since)));
        Ok(Machine { changed, ..machine })
    }

    fn fail(&mut self, reason: String) -> String {
        let (version, since) = (self.version, self.since);
        *self = ChunkReader { version, since, phase: ReaderPhase::Failed, ..ChunkReader::new() };
        reason
    }

    fn item(&mut self, item: SnapshotItem<'_>) -> Result<(), String> {
        match (&mut self.phase, item) {
            (ReaderPhase::Failed, _) => {
                return Err("a chunk before this one was in error".to_owned());
            }
            (_, SnapshotItem::Begin { full: true, version }) => {
                *self = ChunkReader { version, phase: ReaderPhase::Open, ..ChunkReader::new() };
            }
            (ReaderPhase::Complete, SnapshotItem::Begin { full: false, version }) => {
                self.version = version;
                self.phase = ReaderPhase::Open;
            }
            // Removals come first.
            (ReaderPhase::Open, SnapshotItem::ZnodeGone { path }) if self.image.is_empty() => {
                self.remove(path)?
            }
            (ReaderPhase::Open, SnapshotItem::Znode { path, data, fields, acl }) => {
                self.put(path, data.0, fields, acl)?;
            }
            (ReaderPhase::Open, SnapshotItem::SessionGone { id, zxid }) => {
                self.sessions.remove(id);
                if let Some(zxid) = zxid {
                    self.tombstones.put(id, zxid);
                }
            }
            (ReaderPhase::Open, SnapshotItem::Session { id, record, ids, results }) => {
                let mut record = record.into_owned();
                record.ids = Arc::new(ids);
                if record.former.len() > FORMER_MAX || u64::from(results) > record.last_seq {
                    return Err(format!("session {id}: more history than it can have"));
                }
                if results == 0 {
                    self.sessions.insert(id, record);
                } else {
                    self.phase = ReaderPhase::Outcomes(id, Box::new(record), results);
                }
            }
            (
                ReaderPhase::Outcomes(_, record, missing),
                SnapshotItem::Outcome { multi, result },
            ) => {
                let result = decode_result(multi, result.0)?;
                *missing -= 1;
                record.push(record.last_seq - u64::from(*missing), result);
                if *missing == 0
                    && let ReaderPhase::Outcomes(id, record, _) =
                        std::mem::replace(&mut self.phase, ReaderPhase::Open)
                {
                    self.sessions.insert(id, *record);
                }
            }
            (
                ReaderPhase::Open,
                SnapshotItem::End { zxid, time, znodes, sessions, tombstones, forgotten },
            ) => {
                self.tombstones.forget(forgotten);
                let ephemerals = &mut self.ephemerals;
                std::mem::take(&mut self.image).finish(
                    &mut self.tree,
                    // Also if a path comes twice: the last owner counts.
                    |former, znode| match znode.fields().owner() {
                        Some(owner) => drop(ephemerals.insert(Arc::from(znode.path()), owner)),
                        None if former.fields().owner().is_some() => {
                            ephemerals.remove(znode.path());
                        }
                        None => {}
                    },
                )?;
                let found = [self.tree.len(), self.sessions.len(), self.tombstones.len()];
                let expected = [znodes, sessions, tombstones];
                if found.map(|count| count as u64) != expected {
                    return Err(format!(
                        "{found:?} znodes, sessions and ended sessions, but {expected:?} are expected"
                    ));
                }
                self.tree.set_zxid(zxid);
                self.time = time;
                self.phase = ReaderPhase::Complete;
            }
            (_, item) => return Err(format!("out of place: {}", item.name())),
        }
        Ok(())
    }

    fn put(
        &mut self,
        path: &str,
        data: &[u8],
        fields: Fields,
        acl: Option<Vec<Acl>>,
    ) -> Result<(), String> {
        path::validate(path).map_err(|error| error.to_string())?;
        if let Some(owner) = fields.owner() {
            self.ephemerals.insert(Arc::from(path), owner);
        }
        self.image.add(&mut self.tree, path, data, fields, acl.map(AccessList::stored));
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<(), String> {
        if RESERVED.contains(&path) {
            return Err(format!("{path}: it cannot be deleted"));
        }
        if self.tree.get(path).is_some_and(|znode| znode.has_children()) {
            return Err(format!("{path}: it is deleted, but its children are not"));
        }
        // A znode that was created and deleted since the last image was in no image.
        if self.tree.remove(path).is_some() {
            self.ephemerals.remove(path);
        }
        Ok(())
    }
}

/// Decodes a result, and refuses a multi's error inside another one: each would be one level of
/// recursion, and the bytes could hold a million.
pub(super) fn decode_result(
    multi: Option<u32>,
    bytes: &[u8],
) -> Result<Result<Reply, OpError>, String> {
    let nested = OpError::Multi { index: 0, error: Box::new(OpError::SessionExpired) };
    let nested = encode_result(&Err(nested));
    if let (&[1, variant, ..], &[_, multi_variant, ..]) = (bytes, &nested[..]) {
        // The numbers of all variants take one byte. The writer never uses a longer form.
        if variant == multi_variant || variant >= 0x80 {
            return Err("a result that holds another".to_owned());
        }
    } else if bytes.first().is_none_or(|first| *first > 1) {
        return Err("not a result".to_owned());
    }
    let result = match postcard::take_from_bytes(bytes) {
        Ok((result, [])) => result,
        Ok((_, rest)) => return Err(format!("{} bytes too many after a result", rest.len())),
        Err(error) => return Err(error.to_string()),
    };
    match (multi, result) {
        (None, result) => Ok(result),
        (Some(index), Err(error)) => {
            let error = Box::new(error);
            Ok(Err(OpError::Multi { index, error }))
        }
        (Some(_), Ok(_)) => Err("a failed multi that did not fail".to_owned()),
    }
}
