//! What the gateway and the admin endpoint use of a node, besides the public handles: the only way from them to
//! the inside of the crate.
//!
//! A gateway's connections are many, and have no thread each. So they send requests to the node as a
//! [`Session`](crate::Session) does, and have the answers delivered to a mailbox that one thread reads.

#[cfg(feature = "gateway")]
mod gateway {
    pub(crate) use crate::api::snapshot::Snapshot;
    /// The requests of a session, and their answers.
    pub(crate) use crate::machine::command::{Command, Op, Reply};
    pub(crate) use crate::machine::{CONFIG, Tree};
    pub(crate) use crate::node::io::{Input, WatchId};
    pub(crate) use crate::node::query::{Answer, EventData, Query, Read};
    pub(crate) use crate::node::replica::watch_kind::WatchKind;
    pub(crate) use crate::node::request::RequestBody;
    pub(crate) use crate::runtime::ask::Ask;
    #[cfg(feature = "tls")]
    pub(crate) use crate::runtime::certificates::HasCertificates;
    pub(crate) use crate::runtime::chroot::Root;
    pub(crate) use crate::runtime::inbox::RequestOrigin;
    /// How they are sent, and where the answers arrive.
    pub(crate) use crate::runtime::mailbox::{Arrived, Delivery, Mailbox, Recipient, SharedEvent};
    pub(crate) use crate::runtime::session::SessionShared;
    pub(crate) use crate::runtime::shared::NodeShared;
    pub(crate) use crate::runtime::{entropy, holder};
    pub(crate) use crate::transport::SHORT_READ_DRAINS;
    #[cfg(feature = "tls")]
    pub(crate) use crate::transport::secure::{SecurityError, tls::TlsChannel};
    pub(crate) use crate::transport::send::send_vectored;

    use std::sync::Arc;

    use crate::machine::{SessionRecord, State, Znode};
    use crate::node::sessions::queue::{Viewer, answer_read};
    use crate::runtime::engine::Engine;
    use crate::types::acl::{Id, Permissions};
    use crate::types::error::Error;
    use crate::types::znode::SessionId;

    /// Answers a read from this tree, for a session of these ids that the cluster does not know. The session's id
    /// is not verified, so it gives no right to see more.
    pub(crate) fn read_alone(
        tree: &Tree,
        read: &Read,
        session: SessionId,
        ids: &Arc<Vec<Id>>,
    ) -> Result<Answer, Error> {
        let viewer = Viewer { session, ids };
        let ephemerals = || {
            let own = |znode: &Znode| {
                znode.stat().ephemeral_owner == Some(viewer.session)
                    && viewer.may(znode.acl().map(|acl| &**acl), Permissions::READ)
            };
            let znodes = tree.iter_from("/").filter(|(_, znode)| own(znode));
            znodes.map(|(path, _)| path.to_owned()).collect()
        };
        answer_read(tree, read, viewer, ephemerals)
    }

    /// The sessions of the cluster by this replica.
    pub(crate) struct ReplicaSessions(State);

    impl ReplicaSessions {
        /// `None` for a client, which has no replica. The state is shared: nothing is copied.
        pub(crate) fn of(shared: &NodeShared) -> Option<ReplicaSessions> {
            let look = |engine: &Engine| engine.node().map(|node| node.machine().state());
            shared.look(look).flatten().map(ReplicaSessions)
        }

        /// How many ephemeral znodes they have.
        pub(crate) fn ephemeral_count(&self) -> usize {
            self.0.sessions().map(|(_, record)| record.ephemerals.size()).sum()
        }

        /// The ephemeral znodes of each session that has some.
        pub(crate) fn ephemerals(&self) -> impl Iterator<Item = (SessionId, Vec<String>)> {
            let paths = |record: &SessionRecord| {
                record.ephemerals.iter().map(|path| (**path).to_owned()).collect::<Vec<_>>()
            };
            let all = self.0.sessions().map(move |(id, record)| (id, paths(record)));
            all.filter(|(_, paths)| !paths.is_empty())
        }
    }
}

#[cfg(feature = "gateway")]
pub(crate) use self::gateway::*;
#[cfg(feature = "admin")]
mod admin {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use crate::node::io::Input;
    use crate::runtime::shared::NodeShared;

    /// Has the member report that an admin endpoint listens here, until this is dropped.
    #[derive(Debug)]
    pub(crate) struct Reported {
        shared: Arc<NodeShared>,
        address: SocketAddr,
    }

    impl Reported {
        pub(crate) fn new(shared: &Arc<NodeShared>, address: SocketAddr) -> Reported {
            shared.input(Input::AdminEndpoint { address, listens: true });
            Reported { shared: Arc::clone(shared), address }
        }
    }

    impl Drop for Reported {
        fn drop(&mut self) {
            let address = self.address;
            self.shared.input(Input::AdminEndpoint { address, listens: false });
        }
    }
}

#[cfg(feature = "admin")]
pub(crate) use self::admin::Reported;
/// The room on the file system of a directory.
#[cfg(feature = "admin")]
pub(crate) use crate::storage::space;
/// How many files connections may use.
#[cfg(any(feature = "gateway", feature = "admin"))]
pub(crate) use crate::transport::files;
