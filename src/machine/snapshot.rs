//! The state as chunks of bytes: for checkpoints on disk and for peers that lag.
//!
//! A chunk is a format byte and a run of items. An image begins with `Begin`:
//! a full one starts from nothing, a delta changes what was read before it. The
//! chunks are made one at a time, from an immutable state, so that neither side
//! holds the encoded whole. Equal states make equal bytes.
//!
//! What is read is checked by the state's own hash at the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::machine::command::NodeId;
use crate::machine::sessions::{Answer, SessionRecord, Sessions};
use crate::machine::tree::{Tree, ZnodeFields};
use crate::path;
use crate::znode::{SessionId, Zxid};

/// The format of chunks that this version writes, the only one so far.
const CHUNK_FORMAT: u8 = 1;

/// A chunk is closed when it has reached this size.
const CHUNK_BYTES: usize = 48 << 10;

/// A state to be written down.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(super) tree: Tree,
    pub(super) sessions: Sessions,
    pub(super) time: u64,
}

/// The paths and sessions that changed since some earlier state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    pub(super) paths: BTreeSet<String>,
    pub(super) sessions: BTreeSet<SessionId>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Item {
    Begin {
        full: bool,
        zxid: Zxid,
        time: u64,
    },
    Znode {
        path: String,
        znode: SavedZnode,
    },
    NoZnode {
        path: String,
    },
    Session {
        id: SessionId,
        session: SavedSession,
    },
    NoSession {
        id: SessionId,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedZnode {
    data: Bytes,
    czxid: Zxid,
    mzxid: Zxid,
    pzxid: Zxid,
    ctime: u64,
    mtime: u64,
    version: u64,
    aversion: u64,
    creates: u64,
    owner: Option<SessionId>,
}

/// A session without its ephemerals, which the tree tells.
#[derive(Debug, Serialize, Deserialize)]
struct SavedSession {
    secret: [u8; 16],
    timeout_ms: u32,
    owner: NodeId,
    holder: u64,
    last_seq: u64,
    results: VecDeque<Answer>,
}

impl SavedZnode {
    fn of(fields: ZnodeFields) -> SavedZnode {
        SavedZnode {
            data: Bytes::copy_from_slice(&fields.data),
            czxid: fields.czxid,
            mzxid: fields.mzxid,
            pzxid: fields.pzxid,
            ctime: fields.ctime,
            mtime: fields.mtime,
            version: fields.version,
            aversion: fields.aversion,
            creates: fields.creates,
            owner: fields.owner,
        }
    }

    fn fields(self) -> ZnodeFields {
        ZnodeFields {
            data: Arc::from(&self.data[..]),
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            aversion: self.aversion,
            creates: self.creates,
            owner: self.owner,
        }
    }
}

/// Makes the chunks of an image, one at a time.
#[derive(Debug)]
pub(crate) struct ChunkWriter {
    state: State,
    at: At,
}

#[derive(Debug)]
enum At {
    Begin {
        dirty: Option<Dirty>,
    },
    /// The znode last written; before the root, none.
    Tree(Option<String>),
    /// The session last written.
    Sessions(Option<SessionId>),
    Dirty(Dirty),
    End,
}

impl ChunkWriter {
    /// The whole state.
    pub(crate) fn full(state: State) -> ChunkWriter {
        ChunkWriter {
            state,
            at: At::Begin { dirty: None },
        }
    }

    /// What changed, as it is in `state`.
    pub(crate) fn delta(state: State, dirty: Dirty) -> ChunkWriter {
        ChunkWriter {
            state,
            at: At::Begin { dirty: Some(dirty) },
        }
    }

    fn next_item(&mut self) -> Option<Item> {
        loop {
            match &mut self.at {
                At::Begin { dirty } => {
                    let dirty = dirty.take();
                    let full = dirty.is_none();
                    self.at = dirty.map_or(At::Tree(None), At::Dirty);
                    let (zxid, time) = (self.state.tree.zxid(), self.state.time);
                    return Some(Item::Begin { full, zxid, time });
                }
                At::Tree(last) => {
                    let tree = &self.state.tree;
                    let next = match last {
                        None => tree.get("/").map(|root| ("/".to_owned(), root)),
                        Some(path) => tree.next_after(path),
                    };
                    let Some((path, znode)) = next else {
                        self.at = At::Sessions(None);
                        continue;
                    };
                    let item = Item::Znode {
                        path: path.clone(),
                        znode: SavedZnode::of(znode.fields()),
                    };
                    *last = Some(path);
                    return Some(item);
                }
                At::Sessions(last) => {
                    let Some((id, record)) = self.state.sessions.next_after(*last) else {
                        self.at = At::End;
                        return None;
                    };
                    *last = Some(id);
                    return Some(session_item(id, record));
                }
                At::Dirty(dirty) => {
                    if let Some(path) = dirty.paths.pop_first() {
                        let znode = self.state.tree.get(&path).map(|znode| znode.fields());
                        return Some(match znode {
                            Some(fields) => Item::Znode {
                                path,
                                znode: SavedZnode::of(fields),
                            },
                            None => Item::NoZnode { path },
                        });
                    }
                    let Some(id) = dirty.sessions.pop_first() else {
                        self.at = At::End;
                        return None;
                    };
                    return Some(match self.state.sessions.get(id) {
                        Some(record) => session_item(id, record),
                        None => Item::NoSession { id },
                    });
                }
                At::End => return None,
            }
        }
    }
}

fn session_item(id: SessionId, record: &SessionRecord) -> Item {
    let session = SavedSession {
        secret: record.secret,
        timeout_ms: record.timeout_ms,
        owner: record.owner,
        holder: record.holder,
        last_seq: record.last_seq,
        results: record.results.clone(),
    };
    Item::Session { id, session }
}

impl Iterator for ChunkWriter {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut chunk = vec![CHUNK_FORMAT];
        while chunk.len() < CHUNK_BYTES {
            let Some(item) = self.next_item() else { break };
            chunk = postcard::to_extend(&item, chunk).expect(
                "encoding to a Vec fails only for types that have no length, and none is used",
            );
        }
        (chunk.len() > 1).then_some(chunk)
    }
}

/// Puts a state together from chunks.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    tree: Tree,
    sessions: Sessions,
    time: u64,
    begun: bool,
}

impl ChunkReader {
    pub(crate) fn new() -> ChunkReader {
        ChunkReader {
            tree: Tree::bare(),
            sessions: Sessions::new(),
            time: 0,
            begun: false,
        }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// Says what is wrong with the chunk; the reader is of no use after that.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<(), String> {
        let mut rest = match chunk.split_first() {
            Some((&CHUNK_FORMAT, rest)) => rest,
            Some((format, _)) => return Err(format!("unknown chunk format {format}")),
            None => return Err("an empty chunk".to_owned()),
        };
        while !rest.is_empty() {
            let (item, after) =
                postcard::take_from_bytes(rest).map_err(|error| error.to_string())?;
            rest = after;
            self.take(item)?;
        }
        Ok(())
    }

    fn take(&mut self, item: Item) -> Result<(), String> {
        if !self.begun && !matches!(item, Item::Begin { full: true, .. }) {
            return Err("an image without its beginning".to_owned());
        }
        match item {
            Item::Begin { full, zxid, time } => {
                if full {
                    *self = ChunkReader::new();
                    self.begun = true;
                }
                self.tree.set_zxid(zxid);
                self.time = time;
            }
            Item::Znode { path, znode } => {
                path::validate(&path).map_err(|error| error.to_string())?;
                if !self.tree.restore(&path, znode.fields()) {
                    return Err(format!("{path} without its parent"));
                }
            }
            Item::NoZnode { path } => {
                path::validate(&path).map_err(|error| error.to_string())?;
                self.tree.restore_gone(&path);
            }
            Item::Session { id, session } => {
                if session.results.len() as u64 > session.last_seq {
                    return Err(format!("session {id} with more answers than requests"));
                }
                let record = SessionRecord {
                    secret: session.secret,
                    timeout_ms: session.timeout_ms,
                    owner: session.owner,
                    holder: session.holder,
                    last_seq: session.last_seq,
                    results: session.results,
                    ephemerals: BTreeSet::new(),
                };
                self.sessions.insert(id, record);
            }
            Item::NoSession { id } => self.sessions.remove(id),
        }
        Ok(())
    }

    /// The state that the chunks made.
    ///
    /// # Errors
    /// Says so if it is not the state of this zxid and hash.
    pub(crate) fn finish(mut self, zxid: Zxid, hash: u64) -> Result<Machine, String> {
        if !self.begun {
            return Err("no image at all".to_owned());
        }
        for (owner, ephemerals) in owned_ephemerals(&self.tree) {
            if self.sessions.get(owner).is_none() {
                return Err(format!("ephemerals of session {owner}, which is not there"));
            }
            self.sessions
                .change(owner, |record| record.ephemerals = ephemerals);
        }
        let machine = Machine {
            tree: self.tree,
            sessions: self.sessions,
            time: self.time,
            dirty: Dirty::default(),
        };
        if machine.zxid() != zxid || machine.hash() != hash {
            return Err(format!(
                "the image is of zxid {} and hash {:x}, not of zxid {zxid} and hash {hash:x}",
                machine.zxid(),
                machine.hash()
            ));
        }
        Ok(machine)
    }
}

/// The ephemerals in a tree, by owner.
pub(super) fn owned_ephemerals(tree: &Tree) -> BTreeMap<SessionId, BTreeSet<String>> {
    let mut owned: BTreeMap<SessionId, BTreeSet<String>> = BTreeMap::new();
    let mut at = tree.get("/").map(|root| ("/".to_owned(), root));
    while let Some((path, znode)) = at {
        at = tree.next_after(&path);
        if let Some(owner) = znode.owner() {
            owned.entry(owner).or_default().insert(path);
        }
    }
    owned
}
