//! The requests of a session to a replica other than writes, and their answers. The same types
//! serve a handle in the replica's own process and a client on the wire.
//!
//! [`sessions::queue`](super::sessions::queue) answers them. CONTRIBUTING.md describes how to add a
//! read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::machine::Tree;
use crate::machine::command::Reply;
use crate::node::admin::message::AdminReply;
use crate::node::io::WatchId;
pub(crate) use crate::node::replica::watch_kind::EventData;
use crate::node::replica::watch_kind::WatchKind;
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::Error;
use crate::types::log_form::LogForm;
use crate::types::membership::NodeId;
use crate::types::watch::WatcherType;
use crate::types::znode::{Stat, Zxid};

/// Queries of one session are answered in the order in which they were made, each after the writes
/// that were made before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Query {
    /// With `watch`, the one-shot watch that goes with the read is set in the same instant: not
    /// when the read fails, but for `Exists` also when the znode is missing. It has the read's
    /// path.
    Read { read: Read, watch: Option<WatchId> },
    /// Sets a persistent or a recursive watch. Answered with [`Answer::Watching`].
    Watch {
        watch: WatchId,
        path: Arc<str>,
        recursive: bool,
        /// The first events are those of all changes after this zxid, or the query fails; `None`:
        /// only of later changes.
        from: Option<Zxid>,
        /// Whether its events bring the znode's data and stat.
        data: EventData,
    },
    /// Removes the session's watches of a type at a path. Answered with `Reply::Done`.
    RemoveWatches {
        path: Arc<str>,
        #[serde(with = "LogForm")]
        which: WatcherType,
    },
    /// Answered with [`Answer::Synced`] when the replica has every write completed anywhere before
    /// the query was made.
    Sync,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Read {
    Get {
        path: Arc<str>,
    },
    Exists {
        path: Arc<str>,
    },
    Children {
        path: Arc<str>,
    },
    Acl {
        path: Arc<str>,
    },
    /// Answered with [`Answer::Children`], with whole paths.
    Ephemerals,
    /// The ids that the session has.
    Ids,
    /// This znode and all below it, as far as the session may read them. Answered with
    /// [`Answer::Below`].
    Below {
        path: Arc<str>,
    },
    /// The whole tree, for handles in the replica's process.
    Tree,
    /// How many znodes there are below this one, whoever may read them. For clients: counting takes long, so handles
    /// in the replica's process count in its tree themselves.
    Count {
        path: Arc<str>,
    },
}

/// The answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Reply(Reply),
    Data {
        #[serde(with = "LogForm")]
        data: Arc<[u8]>,
        #[serde(with = "LogForm")]
        stat: Stat,
        is_null: bool,
    },
    Exists(#[serde(with = "LogForm")] Option<Stat>),
    /// With the stat of the parent, unless they are the session's ephemerals.
    Children(Vec<String>, #[serde(with = "LogForm")] Option<Stat>),
    /// An access list, as far as the session may see it.
    Acl(#[serde(with = "LogForm")] Vec<Acl>, #[serde(with = "LogForm")] Stat),
    Ids(#[serde(with = "LogForm")] Vec<Id>),
    Watching,
    Synced(Zxid),
    /// The znodes as of this zxid, each after its parent.
    Below(Zxid, Vec<ZnodeRead>),
    /// Only for handles in the replica's process.
    Tree(#[serde(with = "in_process")] Tree),
    /// Each reply with its member. It answers no session's query.
    Admin(#[serde(with = "in_process")] Vec<(NodeId, AdminReply)>),
    Count(u64),
}

/// A znode of [`Answer::Below`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZnodeRead {
    pub(crate) path: String,
    /// `None` if the session may not read it.
    pub(crate) content: Option<ZnodeContent>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZnodeContent {
    #[serde(with = "LogForm")]
    pub(crate) data: Arc<[u8]>,
    #[serde(with = "LogForm")]
    pub(crate) stat: Stat,
}

/// Declares [`QueryError`] with the variants of [`Error`] that it has.
macro_rules! refusals {
    ($($name:ident { $($(#[$form:meta])* $field:ident: $type:ty,)* },)*) => {
        /// The error of a failed query, on the wire. Errors without a variant here are sent as texts.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) enum QueryError {
            $($name { $($(#[$form])* $field: $type,)* },)*
            Other { reason: String },
        }

        impl QueryError {
            pub(crate) fn of(error: Error) -> QueryError {
                match error {
                    $(Error::$name { $($field,)* } => QueryError::$name { $($field,)* },)*
                    other => QueryError::Other { reason: other.to_string() },
                }
            }

            pub(crate) fn into_error(self) -> Error {
                match self {
                    $(QueryError::$name { $($field,)* } => Error::$name { $($field,)* },)*
                    QueryError::Other { reason } => Error::Stopped { reason },
                }
            }
        }
    };
}

refusals! {
    NoNode { path: String, },
    NoAuth { path: String, #[serde(with = "LogForm")] permission: Permissions, },
    NoWatch { path: String, },
    TooOld { path: String, zxid: Zxid, oldest: Zxid, },
    FutureZxid { path: String, zxid: Zxid, last: Zxid, },
    TooLarge { path: String, size: u64, limit: u64, },
}

impl Query {
    /// Its name for users.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Query::Read { read, .. } => match read {
                Read::Get { .. } => "get",
                Read::Exists { .. } => "exists",
                Read::Children { .. } => "children",
                Read::Acl { .. } => "acl",
                Read::Ephemerals => "ephemerals",
                Read::Ids => "ids",
                Read::Below { .. } => "below",
                Read::Tree => "snapshot",
                Read::Count { .. } => "all_children_number",
            },
            Query::Watch { .. } => "watch",
            Query::RemoveWatches { .. } => "remove_watches",
            Query::Sync => "sync",
        }
    }

    pub(crate) fn path(&self) -> Option<&Arc<str>> {
        match self {
            Query::Read { read, .. } => read.path(),
            Query::Watch { path, .. } => Some(path),
            Query::RemoveWatches { path, .. } => Some(path),
            Query::Sync => None,
        }
    }

    /// The watch that it sets, with its path and kind.
    pub(crate) fn watch(&self) -> Option<(WatchId, &Arc<str>, WatchKind)> {
        match self {
            Query::Read { read, watch } => Some(((*watch)?, read.path()?, read.watch_kind())),
            Query::Watch { watch, path, recursive, .. } => {
                let kind = if *recursive { WatchKind::Recursive } else { WatchKind::Persistent };
                Some((*watch, path, kind))
            }
            Query::RemoveWatches { .. } | Query::Sync => None,
        }
    }

    /// The same query with another number for its watch.
    pub(crate) fn with_watch(mut self, number: WatchId) -> Query {
        match &mut self {
            Query::Read { watch: Some(watch), .. } | Query::Watch { watch, .. } => *watch = number,
            _ => {}
        }
        self
    }
}

impl Read {
    pub(crate) fn path(&self) -> Option<&Arc<str>> {
        match self {
            Read::Get { path }
            | Read::Exists { path }
            | Read::Children { path }
            | Read::Below { path }
            | Read::Count { path }
            | Read::Acl { path } => Some(path),
            Read::Ephemerals | Read::Ids | Read::Tree => None,
        }
    }

    /// The kind of the watch that goes with the read.
    fn watch_kind(&self) -> WatchKind {
        match self {
            Read::Children { .. } => WatchKind::Children,
            _ => WatchKind::Data,
        }
    }
}

impl ZnodeRead {
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        const STAT: usize = 64;
        self.path.len() + self.content.as_ref().map_or(0, |content| content.data.len()) + STAT
    }
}

/// Values without a form on the wire. A variant that serde skips would shift the numbers of later ones.
mod in_process {
    use serde::{Deserializer, Serializer, de, ser};

    pub(super) fn serialize<T, S: Serializer>(_: &T, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom("this is not sent"))
    }

    pub(super) fn deserialize<'de, T, D: Deserializer<'de>>(_: D) -> Result<T, D::Error> {
        Err(de::Error::custom("this is not sent"))
    }
}
