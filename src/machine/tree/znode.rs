//! One znode: its data, its stat, its access list and its children's names.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use rpds::RedBlackTreeSetSync;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::planted::{Bug, planted};
use crate::types::acl::AccessList;
use crate::types::log_form::LogForm;
use crate::types::path;
use crate::types::znode::{SessionId, Stat, Zxid};

/// One znode.
#[derive(Clone, Debug)]
pub(crate) struct Znode {
    pub(super) data: Arc<[u8]>,
    pub(super) data_hash: u64,
    pub(super) children: RedBlackTreeSetSync<Child>,
    pub(super) fields: Fields,
    /// `None`: everybody may do everything.
    pub(super) acl: Option<Arc<AccessList>>,
    /// Of path, fields, data and access list.
    pub(super) hash: u64,
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
    pub(in crate::machine) kind: Kind,
}

/// When a znode is deleted without a request for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) enum Kind {
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
            Kind::Ephemeral(owner) => Some(owner),
            _ => None,
        }
    }
}

impl Znode {
    pub(super) fn new(
        path: &str,
        data: &[u8],
        fields: Fields,
        acl: Option<Arc<AccessList>>,
    ) -> Znode {
        let mut znode = Znode {
            data: Arc::from(data),
            data_hash: xxh3_64(data),
            children: RedBlackTreeSetSync::new_sync(),
            fields,
            acl,
            hash: 0,
        };
        znode.hash = znode.compute_hash(path);
        znode
    }

    pub(crate) fn data(&self) -> &Arc<[u8]> {
        &self.data
    }

    pub(crate) fn stat(&self) -> Stat {
        let fields = &self.fields;
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
            is_container: fields.kind == Kind::Container,
            ttl: match fields.kind {
                Kind::Ttl(ms) => Some(Duration::from_millis(ms)),
                _ => None,
            },
            data_length: u32::try_from(self.data.len()).unwrap_or(u32::MAX),
            num_children: u32::try_from(self.children.size()).unwrap_or(u32::MAX),
        }
    }

    /// Its access list; `None` if everybody may do everything.
    pub(crate) fn acl(&self) -> Option<&Arc<AccessList>> {
        self.acl.as_ref()
    }

    /// The names of the children, sorted by their bytes.
    pub(crate) fn children(&self) -> impl Iterator<Item = &str> {
        self.children.iter().map(Child::name)
    }

    /// The names of the children that come after this one.
    pub(crate) fn children_after(&self, name: &str) -> impl Iterator<Item = &str> {
        let after = (Bound::Excluded(name), Bound::Unbounded);
        self.children.range::<str, _>(after).map(Child::name)
    }

    pub(crate) fn has_children(&self) -> bool {
        !self.children.is_empty()
    }

    pub(in crate::machine) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// From when on the leader may delete it: at once, for a container.
    pub(in crate::machine) fn due(&self) -> Option<u64> {
        let fields = &self.fields;
        let touched = if planted(Bug::TtlIgnoresTouch) { fields.ctime } else { fields.mtime };
        match fields.kind {
            Kind::Persistent | Kind::Ephemeral(_) => None,
            _ if self.has_children() => None,
            Kind::Container => (fields.creates > 0).then_some(0),
            Kind::Ttl(ms) => Some(touched.saturating_add(ms)),
        }
    }

    /// Without the children: each of them has a hash, which includes its path.
    pub(super) fn compute_hash(&self, path: &str) -> u64 {
        let fields = &self.fields;
        let (kind, of_kind) = match fields.kind {
            Kind::Persistent => (0, 0),
            Kind::Ephemeral(owner) => (1, owner.number()),
            Kind::Container => (2, 0),
            Kind::Ttl(ms) => (3, ms),
        };
        let words = [
            xxh3_64(path.as_bytes()),
            self.data_hash,
            fields.czxid,
            fields.mzxid,
            fields.pzxid,
            fields.ctime,
            fields.mtime,
            fields.version,
            fields.cversion,
            fields.aversion,
            fields.creates,
            kind,
            of_kind,
        ];
        let hash = hash_words(&words);
        self.acl.as_ref().map_or(hash, |acl| hash_words(&[hash, acl.hash()]))
    }
}

/// The hash of some numbers, the same on every machine.
pub(in crate::machine) fn hash_words<const N: usize>(words: &[u64; N]) -> u64 {
    let mut bytes = [[0; 8]; N];
    for (bytes, word) in bytes.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    xxh3_64(bytes.as_flattened())
}

/// A child in its parent's set: ordered by its name, but kept as its full path, which is shared
/// with the map.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) path: Arc<str>,
    name_start: u32,
}

impl Child {
    pub(super) fn new(path: Arc<str>) -> Child {
        let name_bytes = path::name(&path).len();
        Child {
            // Paths have at most `PATH_BYTES_MAX` bytes.
            name_start: (path.len() - name_bytes) as u32,
            path,
        }
    }

    fn name(&self) -> &str {
        &self.path[self.name_start as usize..]
    }
}

impl Borrow<str> for Child {
    fn borrow(&self) -> &str {
        self.name()
    }
}

impl PartialEq for Child {
    fn eq(&self, other: &Child) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Child {}

impl PartialOrd for Child {
    fn partial_cmp(&self, other: &Child) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Child {
    fn cmp(&self, other: &Child) -> Ordering {
        self.name().cmp(other.name())
    }
}
