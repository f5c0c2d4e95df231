//! The state as chunks: all of it, or its changes since it was last saved.
//!
//! Checkpoints on disk and snapshots for peers have the same format. A chunk is the format number
//! and a sequence of items in postcard. A full image and a delta both begin with [`SnapshotItem::Begin`]
//! and end with
//! [`SnapshotItem::End`]. A reader takes one full image and then any number of deltas, in the order in
//! which they were made.
//!
//! | image | items |
//! | --- | --- |
//! | full | all znodes, each after its parent; the tombstones of ended sessions; all sessions, each followed by its results |
//! | delta | the deleted znodes, each before its parent; the written znodes, in the order of the tree's table; the ended sessions; the changed sessions |
//!
//! Equal states give equal bytes. Data that follows from the rest (sets of children, the ephemerals
//! of a session, hashes) is left out, and computed by the reader.
//!
//! A writer holds a clone of the state and a cursor. It encodes one chunk at a time while the
//! machine continues. A reader checks everything: any bytes give an error or a machine that passes
//! all checks, with memory in proportion to the bytes and without recursion.
//!
//! Caveat: a delta writes a znode's data again when only its children changed.

mod reader;
mod writer;

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};

use super::sessions::SessionRecord;
use super::tree::Fields;
use crate::types::acl::{Acl, Id};
use crate::types::log_form::LogForm;
use crate::types::znode::{SessionId, Zxid};

pub(crate) use self::reader::ChunkReader;
pub(crate) use self::writer::ChunkWriter;

/// The format of the chunks that this version writes, the only one so far.
const FORMAT: u8 = 1;

/// No chunk is larger, unless it has a single item that is.
const CHUNK_BYTES: usize = 48 << 10;

/// Small znodes are encoded in runs of about this size. A chunk has room for a run, a path and this
/// much data.
const RUN_BYTES: usize = 4 << 10;

/// One item of a chunk. Variants are only ever appended (`version`).
#[derive(Debug, Serialize, Deserialize)]
enum SnapshotItem<'a> {
    Begin {
        full: bool,
        /// The version that the cluster uses. It comes before all items that an older build may not know.
        version: u16,
    },
    ZnodeGone {
        path: &'a str,
    },
    Znode {
        path: &'a str,
        #[serde(borrow)]
        data: RawBytes<'a>,
        fields: Fields,
        #[serde(with = "LogForm")]
        acl: Option<Vec<Acl>>,
    },
    /// A tombstone: a closed session, and the zxid of its end if that is kept.
    SessionGone {
        #[serde(with = "LogForm")]
        id: SessionId,
        zxid: Option<Zxid>,
    },
    Session {
        #[serde(with = "LogForm")]
        id: SessionId,
        record: Cow<'a, SessionRecord>,
        /// The ids that its holder has authenticated as.
        #[serde(with = "LogForm")]
        ids: Vec<Id>,
        /// How many [`SnapshotItem::Outcome`]s follow.
        results: u32,
    },
    /// An encoded `Result<Reply, OpError>`. The error of a multi is stored without the multi around it, so
    /// that decoding does not recurse.
    Outcome {
        multi: Option<u32>,
        #[serde(borrow)]
        result: RawBytes<'a>,
    },
    End {
        zxid: Zxid,
        time: u64,
        znodes: u64,
        sessions: u64,
        tombstones: u64,
        /// See `Tombstones::forgotten`.
        forgotten: Zxid,
    },
}

/// Borrowed bytes, encoded as they are.
#[derive(Clone, Copy, Debug, Deserialize)]
struct RawBytes<'a>(&'a [u8]);

impl Serialize for RawBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl SnapshotItem<'_> {
    fn name(&self) -> &'static str {
        match self {
            SnapshotItem::Begin { full: true, .. } => "the beginning of a full image",
            SnapshotItem::Begin { full: false, .. } => "the beginning of a delta",
            SnapshotItem::ZnodeGone { .. } | SnapshotItem::Znode { .. } => "a znode",
            SnapshotItem::SessionGone { .. } | SnapshotItem::Session { .. } => "a session",
            SnapshotItem::Outcome { .. } => "a result",
            SnapshotItem::End { .. } => "the end of an image",
        }
    }
}

#[cfg(test)]
mod tests;
