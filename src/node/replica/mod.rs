//! What a replica offers beside its state: watches, the history that they can begin in, and the
//! server of clients without a replica.

pub(crate) mod history;
pub(crate) mod net_changes;
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
    /// The zxid of the tree that was published last. Whatever takes a zxid is published, though it
    /// changes no znode that a watch sees: a sync may return that zxid.
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
