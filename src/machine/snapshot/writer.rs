//! Encodes a state as chunks.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::vec;

use super::{CHUNK_BYTES, FORMAT, RUN_BYTES, RawBytes, SnapshotItem};
use crate::machine::command::{OpError, Reply};
use crate::machine::sessions::encode_result;
use crate::machine::{Dirty, State, Tree, Znode};
use crate::types::encoding::append_to;
use crate::types::znode::{SessionId, Zxid};

/// About as many bytes as a znode takes beside its path, its data and its access list.
const FIELDS_BYTES: usize = 64;

/// Encodes the chunks of a state, one at a time.
#[derive(Debug)]
pub(crate) struct ChunkWriter {
    state: State,
    /// `None` for a full image.
    dirty: Option<Dirty>,
    /// The hashes of the paths of a delta's znodes that are still to be written.
    written: vec::IntoIter<u64>,
    /// The znodes of the last one of these hashes that are still to be written: almost always one.
    of_hash: vec::IntoIter<Znode>,
    /// The ended sessions that are still to be written in a delta.
    sessions_gone: BTreeSet<SessionId>,
    step: WriterStep,
    /// The beginning of a chunk: items that did not fit into the last one.
    pending: Vec<u8>,
}

/// The next step of a writer.
#[derive(Debug)]
enum WriterStep {
    Begin,
    /// The deleted znodes that are still in the dirty set.
    ZnodesGone,
    /// The znodes after this path; in a delta, those still in `of_hash` and `written`.
    Znodes(Option<String>),
    /// The ended sessions that are still to be written.
    SessionsGone,
    /// In a full image, the sessions that ended after this zxid.
    Tombstones(Option<Zxid>),
    /// The sessions after this one; in a delta, those still in the dirty set.
    Sessions(Option<SessionId>),
    /// A session's results from this place on.
    Outcomes(SessionId, usize),
    End,
    Done,
}

impl ChunkWriter {
    /// The whole state.
    pub(crate) fn full(state: State) -> ChunkWriter {
        ChunkWriter {
            state,
            dirty: None,
            written: Vec::new().into_iter(),
            of_hash: Vec::new().into_iter(),
            sessions_gone: BTreeSet::new(),
            step: WriterStep::Begin,
            pending: vec![FORMAT],
        }
    }

    /// The changes of this state since the last image. `dirty` has the changes since that image was
    /// made, and was taken together with the state.
    pub(crate) fn delta(state: State, mut dirty: Dirty) -> ChunkWriter {
        let mut hashes = std::mem::take(&mut dirty.written);
        Tree::sort_path_hashes(&mut hashes);
        hashes.dedup();
        let written = hashes.into_iter();
        let sessions = std::mem::take(&mut dirty.sessions).into_iter();
        let sessions_gone;
        (dirty.sessions, sessions_gone) =
            sessions.partition(|id| state.sessions.get(*id).is_some());
        ChunkWriter { dirty: Some(dirty), written, sessions_gone, ..ChunkWriter::full(state) }
    }

    /// Adds the next items to `pending`, if the step has any, and moves to the next step.
    fn advance(&mut self) {
        let tree = &self.state.tree;
        let pending = &mut self.pending;
        let step = std::mem::replace(&mut self.step, WriterStep::Done);
        self.step = match step {
            WriterStep::Begin => {
                let full = self.dirty.is_none();
                let version = self.state.version;
                append_to(pending, &SnapshotItem::Begin { full, version });
                if full { WriterStep::Znodes(None) } else { WriterStep::ZnodesGone }
            }
            // A path sorts after its prefixes, so in reverse order children come first.
            WriterStep::ZnodesGone => {
                match self.dirty.as_mut().and_then(|dirty| dirty.gone.pop_last()) {
                    Some(path) => {
                        append_to(pending, &SnapshotItem::ZnodeGone { path: &path });
                        WriterStep::ZnodesGone
                    }
                    None => WriterStep::Znodes(None),
                }
            }
            WriterStep::Znodes(cursor) => match &self.dirty {
                Some(dirty) => {
                    if let Some(znode) = self.of_hash.next() {
                        add_znode(pending, znode.path(), &znode);
                        WriterStep::Znodes(None)
                    } else if let Some(hash) = self.written.next() {
                        self.of_hash = with_hash(tree, hash, dirty.mark);
                        WriterStep::Znodes(None)
                    } else {
                        WriterStep::SessionsGone
                    }
                }
                None => match add_run(pending, tree, cursor.as_deref()) {
                    Some(last) => WriterStep::Znodes(Some(last)),
                    None => WriterStep::SessionsGone,
                },
            },
            WriterStep::SessionsGone => match self.sessions_gone.pop_first() {
                Some(id) => {
                    let zxid = self.state.tombstones.get(id);
                    append_to(pending, &SnapshotItem::SessionGone { id, zxid });
                    WriterStep::SessionsGone
                }
                None if self.dirty.is_none() => WriterStep::Tombstones(None),
                None => WriterStep::Sessions(None),
            },
            WriterStep::Tombstones(cursor) => match self.state.tombstones.after(cursor) {
                Some((zxid, id)) => {
                    append_to(pending, &SnapshotItem::SessionGone { id, zxid: Some(zxid) });
                    WriterStep::Tombstones(Some(zxid))
                }
                None => WriterStep::Sessions(None),
            },
            WriterStep::Sessions(cursor) => {
                let sessions = &self.state.sessions;
                let next = match &mut self.dirty {
                    Some(dirty) => {
                        dirty.sessions.pop_first().and_then(|id| Some((id, sessions.get(id)?)))
                    }
                    None => sessions.after(cursor).next(),
                };
                match next {
                    Some((id, record)) => {
                        let count = record.result_count();
                        let first = if planted!(ResultsLostAtSnapshot) { count } else { 0 };
                        let item = SnapshotItem::Session {
                            id,
                            record: Cow::Borrowed(record),
                            ids: (*record.ids).clone(),
                            results: u32::try_from(count - first).unwrap_or(u32::MAX),
                        };
                        append_to(pending, &item);
                        WriterStep::Outcomes(id, first)
                    }
                    None => WriterStep::End,
                }
            }
            WriterStep::Outcomes(id, place) => {
                let record = self.state.sessions.get(id);
                match record.and_then(|record| record.result(place)) {
                    Some(result) => {
                        add_outcome(pending, result);
                        WriterStep::Outcomes(id, place + 1)
                    }
                    None => WriterStep::Sessions(Some(id)),
                }
            }
            WriterStep::End => {
                let item = SnapshotItem::End {
                    zxid: tree.zxid(),
                    time: self.state.time,
                    znodes: tree.len() as u64,
                    sessions: self.state.sessions.len() as u64,
                    tombstones: self.state.tombstones.len() as u64,
                    forgotten: self.state.tombstones.forgotten(),
                };
                append_to(pending, &item);
                WriterStep::Done
            }
            WriterStep::Done => WriterStep::Done,
        };
    }
}

impl Iterator for ChunkWriter {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        // Only its format.
        let is_empty = |chunk: &[u8]| chunk.len() <= 1;
        let mut chunk = Vec::new();
        loop {
            let items = self.pending.len().saturating_sub(1);
            if items > 0 {
                if is_empty(&chunk) {
                    // Not copied: it may be one large item.
                    chunk = std::mem::replace(&mut self.pending, vec![FORMAT]);
                } else if chunk.len() + items > CHUNK_BYTES {
                    return Some(chunk);
                } else {
                    chunk.extend_from_slice(&self.pending[1..]);
                    self.pending.truncate(1);
                }
            }
            if matches!(self.step, WriterStep::Done) {
                return (!is_empty(&chunk)).then_some(chunk);
            }
            self.advance();
        }
    }
}

/// The znodes with this mark whose paths have this hash, if they exist.
fn with_hash(tree: &Tree, hash: u64, mark: u32) -> vec::IntoIter<Znode> {
    let mut znodes: Vec<Znode> = tree.with_path_hash(hash, mark).cloned().collect();
    // Their order in the tree depends on its history.
    znodes.sort_unstable_by(|one, other| one.path().cmp(other.path()));
    znodes.into_iter()
}

fn add_znode(buffer: &mut Vec<u8>, path: &str, znode: &Znode) {
    let acl = znode.acl();
    let acl = acl.map(|acl| acl.entries().to_vec());
    buffer.reserve(path.len() + znode.data().len() + FIELDS_BYTES);
    append_to(
        buffer,
        &SnapshotItem::Znode { path, data: RawBytes(znode.data()), fields: znode.fields(), acl },
    );
}

/// Adds several znodes after the cursor, since finding the place in the tree for each one would cost more
/// than encoding it. Returns the last one's path; `None` if there are no more.
fn add_run(buffer: &mut Vec<u8>, tree: &Tree, cursor: Option<&str>) -> Option<String> {
    let mut last = None;
    let from = tree.iter_from(cursor.unwrap_or("/"));
    for (path, znode) in from.skip(usize::from(cursor.is_some())) {
        let is_large = znode.data().len() > RUN_BYTES;
        if last.is_some() && (is_large || buffer.len() > RUN_BYTES) {
            break;
        }
        add_znode(buffer, path, znode);
        last = Some(path);
    }
    last.map(str::to_owned)
}

fn add_outcome(buffer: &mut Vec<u8>, result: &Result<Reply, OpError>) {
    let (multi, bytes) = match result {
        Err(OpError::Multi { index, error }) => {
            (Some(*index), encode_result(&Err((**error).clone())))
        }
        result => (None, encode_result(result)),
    };
    let result = RawBytes(&bytes);
    append_to(buffer, &SnapshotItem::Outcome { multi, result });
}
