//! One znode: its data, its stat, its access list and its children's names.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use triomphe::ThinArc;
use xxhash_rust::xxh3::xxh3_64;

use super::children::Children;
use super::trie::TrieEntry;
use crate::types::acl::AccessList;
use crate::types::log_form::LogForm;
use crate::types::znode::{SessionId, Stat, Zxid};

/// Longer data has an allocation of its own, so that neither reads nor changes of other fields copy it.
const INLINE_MAX: usize = 512;

/// One znode, in one allocation: the fields that most znodes have, the path, and the data unless it is
/// long. A clone is the same znode.
#[derive(Clone, Debug)]
pub(crate) struct Znode(ThinArc<ZnodeHeader, u8>);

#[derive(Clone, Debug)]
struct ZnodeHeader {
    czxid: Zxid,
    mzxid: Zxid,
    ctime: u64,
    mtime: u64,
    version: u64,
    /// See [`Znode::compute_hash`].
    hash: u64,
    path_bytes: u32,
    /// See [`Tree::mark`](super::Tree::mark).
    mark: u32,
    more: Option<Box<More>>,
}

/// The fields that few znodes have.
#[derive(Clone, Debug)]
struct More {
    pzxid: Zxid,
    cversion: u64,
    aversion: u64,
    creates: u64,
    kind: ZnodeKind,
    is_null: bool,
    /// `None`: everybody may do everything.
    acl: Option<Arc<AccessList>>,
    children: Children,
    long: Option<Long>,
}

/// The fields of a znode besides its data and its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct Fields {
    pub(in crate::machine) czxid: Zxid,
    pub(in crate::machine) mzxid: Zxid,
    pub(in crate::machine) pzxid: Zxid,
    pub(in crate::machine) ctime: u64,
    pub(in crate::machine) mtime: u64,
    pub(in crate::machine) version: u64,
    pub(in crate::machine) cversion: u64,
    pub(in crate::machine) aversion: u64,
    /// How many children were ever created: the next sequence number.
    pub(in crate::machine) creates: u64,
    pub(in crate::machine) kind: ZnodeKind,
    /// Whether the data, which is empty, is null.
    pub(in crate::machine) is_null: bool,
}

/// When a znode is deleted without a request for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) enum ZnodeKind {
    #[default]
    Persistent,
    /// When this session ends.
    Ephemeral(#[serde(with = "LogForm")] SessionId),
    /// After its last child was deleted.
    Container,
    /// After it had no children and was not set for this many milliseconds.
    Ttl(u64),
}

impl Fields {
    /// The session that owns it, if it is ephemeral.
    pub(in crate::machine) fn owner(&self) -> Option<SessionId> {
        match self.kind {
            ZnodeKind::Ephemeral(owner) => Some(owner),
            _ => None,
        }
    }
}

/// The parts of a znode, except for its path and data.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    pub(super) fields: Fields,
    pub(super) acl: Option<Arc<AccessList>>,
    pub(super) children: Children,
}

/// Data that is not in the znode's own allocation, and its hash.
type Long = (Arc<[u8]>, u64);

impl TrieEntry for Znode {
    fn key(&self) -> &[u8] {
        self.path_and_data().0
    }

    fn count(&self) -> usize {
        ThinArc::strong_count(&self.0)
    }

    fn is_large(&self) -> bool {
        let more = self.head().more.as_ref();
        more.is_some_and(|more| more.long.is_some() || more.children.len() > 0)
    }
}

impl Znode {
    pub(super) fn new(path: &str, data: &[u8], parts: Parts) -> Znode {
        Znode::of(path.as_bytes(), data, long(data), parts, 0)
    }

    /// Replaces the data.
    pub(super) fn set_data(&mut self, data: &[u8], change: impl FnOnce(&mut Fields)) {
        let mut parts = self.take_parts();
        change(&mut parts.fields);
        *self = Znode::of(self.key(), data, long(data), parts, self.head().mark);
    }

    /// Changes everything but the path and the data.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.take_parts();
        change(&mut parts);
        *self = Znode::of(self.key(), self.data(), self.long(), parts, self.head().mark);
    }

    fn long(&self) -> Option<Long> {
        self.head().more.as_ref().and_then(|more| more.long.clone())
    }

    pub(super) fn has_mark(&self, mark: u32) -> bool {
        self.head().mark == mark
    }

    /// Sets the mark, in a copy if the znode is shared. Returns `false` if the znode had it already.
    pub(super) fn mark(&mut self, mark: u32) -> bool {
        if self.has_mark(mark) {
            return false;
        }
        let own = self.0.with_arc_mut(|znode| {
            triomphe::Arc::get_mut(znode)?.header_mut().mark = mark;
            Some(())
        });
        if own.is_none() {
            let parts = self.take_parts();
            *self = Znode::of(self.key(), self.data(), self.long(), parts, mark);
        }
        true
    }

    fn of(path: &[u8], data: &[u8], long: Option<Long>, parts: Parts, mark: u32) -> Znode {
        let data_hash = long.as_ref().map_or_else(|| xxh3_64(data), |(_, hash)| *hash);
        let Parts { fields, acl, children } = parts;
        let hash = compute_hash(path, data_hash, &fields, acl.as_deref());
        let Fields { czxid, mzxid, pzxid, ctime, mtime, version, .. } = fields;
        let Fields { cversion, aversion, creates, kind, is_null, .. } = fields;
        let is_plain = pzxid == czxid
            && (cversion, aversion, creates, kind) == (0, 0, 0, ZnodeKind::Persistent)
            && !is_null
            && (acl.is_none(), children.len(), long.is_none()) == (true, 0, true);
        let inline = if long.is_none() { data } else { &[] };
        let more = More { pzxid, cversion, aversion, creates, kind, is_null, acl, children, long };
        let more = (!is_plain).then(|| Box::new(more));
        // Paths have at most `PATH_BYTES_MAX` bytes.
        let path_bytes = path.len() as u32;
        let head =
            ZnodeHeader { czxid, mzxid, ctime, mtime, version, hash, path_bytes, mark, more };
        // Most znodes are short, and need no further allocation.
        let mut buffer = [0; 256];
        Znode(match buffer.get_mut(..path.len() + inline.len()) {
            Some(both) => {
                both[..path.len()].copy_from_slice(path);
                both[path.len()..].copy_from_slice(inline);
                ThinArc::from_header_and_slice(head, both)
            }
            None => ThinArc::from_header_and_slice(head, &[path, inline].concat()),
        })
    }

    /// Takes the parts out, to build another znode from them and from the path and data, which stay here.
    fn take_parts(&mut self) -> Parts {
        let (fields, acl) = (self.fields(), self.acl().cloned());
        // If the znode is not shared, its children can then be changed in place.
        let own = self.0.with_arc_mut(|znode| {
            let more = triomphe::Arc::get_mut(znode)?.header_mut().more.as_mut()?;
            Some(std::mem::take(&mut more.children))
        });
        let children = own.or_else(|| Some(self.children_set()?.clone())).unwrap_or_default();
        Parts { fields, acl, children }
    }

    fn head(&self) -> &ZnodeHeader {
        &self.0.header.header
    }

    fn path_and_data(&self) -> (&[u8], &[u8]) {
        self.0.slice.split_at(self.head().path_bytes as usize)
    }

    pub(crate) fn path(&self) -> &str {
        // The key was a `str`.
        str::from_utf8(self.key()).unwrap_or_default()
    }

    pub(crate) fn data(&self) -> &[u8] {
        match self.head().more.as_deref() {
            Some(More { long: Some((data, _)), .. }) => data,
            _ => self.path_and_data().1,
        }
    }

    /// Whether the data is null, as ZooKeeper's own clients may write it.
    pub(crate) fn is_null(&self) -> bool {
        self.head().more.as_ref().is_some_and(|more| more.is_null)
    }

    /// The data, to keep it. Short data is copied.
    pub(crate) fn shared_data(&self) -> Arc<[u8]> {
        match self.head().more.as_deref() {
            Some(More { long: Some((data, _)), .. }) => Arc::clone(data),
            _ => Arc::from(self.path_and_data().1),
        }
    }

    pub(crate) fn stat(&self) -> Stat {
        let fields = self.fields();
        Stat {
            czxid: fields.czxid,
            mzxid: fields.mzxid,
            pzxid: fields.pzxid,
            ctime: fields.ctime,
            mtime: fields.mtime,
            version: fields.version,
            cversion: fields.cversion,
            aversion: fields.aversion,
            ephemeral_owner: fields.owner(),
            is_container: fields.kind == ZnodeKind::Container,
            ttl: match fields.kind {
                ZnodeKind::Ttl(ms) => Some(Duration::from_millis(ms)),
                _ => None,
            },
            data_length: u32::try_from(self.data().len()).unwrap_or(u32::MAX),
            num_children: u32::try_from(self.child_count()).unwrap_or(u32::MAX),
        }
    }

    /// Its access list; `None` if everybody may do everything.
    pub(crate) fn acl(&self) -> Option<&Arc<AccessList>> {
        self.head().more.as_ref()?.acl.as_ref()
    }

    /// The names of the children, sorted by their bytes.
    pub(crate) fn children(&self) -> impl Iterator<Item = &str> {
        self.children_set().into_iter().flat_map(Children::iter)
    }

    /// The names of the children that come after this one.
    pub(crate) fn children_after<'a>(
        &'a self,
        name: &str,
    ) -> impl Iterator<Item = &'a str> + use<'a> {
        self.children_set().map(|children| children.after(name)).into_iter().flatten()
    }

    pub(crate) fn has_children(&self) -> bool {
        self.child_count() > 0
    }

    pub(in crate::machine) fn child_count(&self) -> usize {
        self.children_set().map_or(0, Children::len)
    }

    pub(super) fn children_set(&self) -> Option<&Children> {
        Some(&self.head().more.as_ref()?.children)
    }

    pub(in crate::machine) fn fields(&self) -> Fields {
        let ZnodeHeader { czxid, mzxid, ctime, mtime, version, .. } = *self.head();
        let plain =
            Fields { czxid, mzxid, pzxid: czxid, ctime, mtime, version, ..Fields::default() };
        match self.head().more.as_deref() {
            None => plain,
            Some(&More { pzxid, cversion, aversion, creates, kind, is_null, .. }) => {
                Fields { pzxid, cversion, aversion, creates, kind, is_null, ..plain }
            }
        }
    }

    /// The earliest time at which the leader may delete the znode: at once for a container.
    pub(in crate::machine) fn due(&self) -> Option<u64> {
        let More { kind, creates, .. } = **self.head().more.as_ref()?;
        match kind {
            ZnodeKind::Persistent | ZnodeKind::Ephemeral(_) => None,
            _ if self.has_children() => None,
            ZnodeKind::Container => (creates > 0).then_some(0),
            ZnodeKind::Ttl(ms) => Some(self.head().mtime.saturating_add(ms)),
        }
    }

    /// The hash of path, fields, data and access list. The children are not in it: each of them has
    /// a hash, which includes its path.
    pub(super) fn hash(&self) -> u64 {
        self.head().hash
    }

    pub(super) fn compute_hash(&self) -> u64 {
        let acl = self.acl().map(|acl| &**acl);
        compute_hash(self.key(), xxh3_64(self.data()), &self.fields(), acl)
    }

    /// Whether its kind and its counters agree with its children, and null data is empty.
    pub(super) fn is_sound(&self) -> bool {
        let Some(more) = &self.head().more else { return true };
        // The reserved children, which every tree starts with, are not counted.
        let genesis = match self.path() {
            "/" => 1,
            "/zookeeper" => 2,
            _ => 0,
        };
        let children = self.child_count().saturating_sub(genesis) as u64;
        let is_counted = more.cversion.wrapping_add(children) == more.creates.wrapping_mul(2);
        let is_empty = self.data().is_empty() || !more.is_null;
        is_counted && is_empty && !(self.fields().owner().is_some() && self.has_children())
    }
}

fn long(data: &[u8]) -> Option<Long> {
    (data.len() > INLINE_MAX).then(|| (Arc::from(data), xxh3_64(data)))
}

fn compute_hash(path: &[u8], data_hash: u64, fields: &Fields, acl: Option<&AccessList>) -> u64 {
    let (kind, of_kind) = match fields.kind {
        ZnodeKind::Persistent => (0, 0),
        ZnodeKind::Ephemeral(owner) => (1, owner.number()),
        ZnodeKind::Container => (2, 0),
        ZnodeKind::Ttl(ms) => (3, ms),
    };
    let words = [
        xxh3_64(path),
        data_hash,
        fields.czxid,
        fields.mzxid,
        fields.pzxid,
        fields.ctime,
        fields.mtime,
        fields.version,
        fields.cversion,
        fields.aversion,
        fields.creates,
        kind + 4 * u64::from(fields.is_null),
        of_kind,
    ];
    let hash = hash_words(&words);
    acl.map_or(hash, |acl| hash_words(&[hash, acl.hash()]))
}

/// The hash of some numbers, the same on every machine.
pub(in crate::machine) fn hash_words<const N: usize>(words: &[u64; N]) -> u64 {
    let mut bytes = [[0; 8]; N];
    for (bytes, word) in bytes.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    xxh3_64(bytes.as_flattened())
}
