//! What a replica offers besides its state: watches, the history in which they can begin, and the
//! server of clients without a replica.

pub(crate) mod history;
pub(crate) mod net_changes;
pub(crate) mod notification;
pub(crate) mod path_filter;
pub(crate) mod server;
pub(crate) mod watch_kind;
pub(crate) mod watches;

use crate::node::replica::history::History;
use crate::node::replica::server::ClientServer;
use crate::node::replica::watches::WatchTable;
use crate::types::znode::Zxid;

#[derive(Debug)]
pub(in crate::node) struct Replica {
    pub(in crate::node) watches: WatchTable,
    pub(in crate::node) history: History,
    /// The clients that it serves.
    pub(in crate::node) clients: ClientServer,
    /// The zxid of the tree that was published last. Every write with a zxid is published, even if
    /// no watch sees a change: a sync may return that zxid.
    pub(in crate::node) published: Option<Zxid>,
}

impl Replica {
    pub(in crate::node) fn new(history: History) -> Replica {
        Replica {
            watches: WatchTable::default(),
            history,
            clients: ClientServer::default(),
            published: None,
        }
    }
}
