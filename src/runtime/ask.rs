//! What handles ask of their node, each request with the type of its answer.

use std::sync::Arc;
use std::time::Duration;

use crate::machine::command::{Command, Op};
use crate::machine::{PastTree, Tree};
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::node::io::{RequestId, WatchId};
use crate::node::query::{Answer, EventData, Query, Read};
use crate::node::request::{ClientRequest, RequestBody};
use crate::runtime::session::SessionShared;
use crate::types::acl::{Acl, Id};
use crate::types::error::{Error, Result};
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::watch::WatcherType;
use crate::types::znode::{Created, OpResult, SessionId, Stat, Zxid};

/// A request, and how its answer is read. The functions that make one pair the two.
pub(crate) struct Ask<T> {
    pub(crate) body: RequestBody,
    read: fn(Answer) -> Option<T>,
}

impl<T> Ask<T> {
    fn write(command: Command, read: fn(Answer) -> Option<T>) -> Ask<T> {
        Ask { body: RequestBody::Command(command), read }
    }

    fn query(query: Query, read: fn(Answer) -> Option<T>) -> Ask<T> {
        Ask { body: RequestBody::Query(query), read }
    }

    fn read(read: Read, answer: fn(Answer) -> Option<T>) -> Ask<T> {
        Ask::query(Query::Read { read, watch: None }, answer)
    }

    /// Sets this watch with the read.
    pub(crate) fn watching(mut self, number: WatchId) -> Ask<T> {
        if let RequestBody::Query(Query::Read { watch, .. }) = &mut self.body {
            *watch = Some(number);
        }
        self
    }

    /// The request of a session, and how its answer is read. A request to the members belongs to no session.
    pub(super) fn numbered(
        self,
        id: RequestId,
        session: SessionId,
    ) -> (ClientRequest, impl FnOnce(Answer) -> Result<T> + use<T>) {
        let Ask { body, read } = self;
        // The node's answer always fits the request.
        let unfit = || Error::Stopped { reason: "an answer does not fit its request".to_owned() };
        let request = ClientRequest { id, session, body };
        (request, move |answer| read(answer).ok_or_else(unfit))
    }
}

/// The timeout that the session got.
impl Ask<Duration> {
    pub(crate) fn open(session: &SessionShared, timeout: Duration) -> Ask<Duration> {
        let SessionShared { holder, secret, .. } = *session;
        Ask { body: RequestBody::open(holder, secret, timeout), read: Answer::timeout }
    }

    /// Without a timeout the session keeps its own.
    pub(crate) fn resume(session: &SessionShared, timeout: Option<Duration>) -> Ask<Duration> {
        let SessionShared { holder, secret, .. } = *session;
        Ask { body: RequestBody::resume(holder, secret, timeout), read: Answer::timeout }
    }
}

/// Of a client of a gateway.
#[cfg(feature = "gateway")]
impl Ask<Duration> {
    /// Reports show that the user of the session is at this address.
    pub(crate) fn for_user(mut self, at: std::net::SocketAddr) -> Ask<Duration> {
        if let RequestBody::Begin { from, .. } = &mut self.body {
            *from = Some(at.to_string());
        }
        self
    }
}

impl Ask<Created> {
    /// An operation that creates.
    pub(crate) fn create(op: Op) -> Ask<Created> {
        Ask::write(Command::Op(op), Answer::created)
    }
}

/// The path, if the znode was created.
impl Ask<(Option<String>, Stat)> {
    /// An operation that creates, or changes what is there.
    pub(crate) fn create_or_set(op: Op) -> Ask<(Option<String>, Stat)> {
        Ask::write(Command::Op(op), Answer::created_or_set)
    }
}

impl Ask<Stat> {
    /// An operation that changes a znode.
    pub(crate) fn set(op: Op) -> Ask<Stat> {
        Ask::write(Command::Op(op), Answer::stat)
    }
}

impl Ask<()> {
    /// An operation that deletes.
    pub(crate) fn delete(op: Op) -> Ask<()> {
        Ask::write(Command::Op(op), Answer::done)
    }

    /// Gives up the session, which ends in this state for its holder.
    pub(crate) fn abandon(state: SessionState) -> Ask<()> {
        Ask { body: RequestBody::Abandon(state), read: Answer::done }
    }

    pub(crate) fn close() -> Ask<()> {
        Ask::write(Command::Close, Answer::done)
    }

    /// A watch that stays: see [`Query::Watch`].
    pub(crate) fn watch(
        watch: WatchId,
        path: Arc<str>,
        recursive: bool,
        from: Option<Zxid>,
        data: EventData,
    ) -> Ask<()> {
        Ask::query(Query::Watch { watch, path, recursive, from, data }, Answer::watching)
    }

    pub(crate) fn remove_watches(path: String, which: WatcherType) -> Ask<()> {
        Ask::query(Query::RemoveWatches { path, which }, Answer::done)
    }
}

impl Ask<Vec<OpResult>> {
    pub(crate) fn multi(ops: Vec<Op>) -> Ask<Vec<OpResult>> {
        Ask::write(Command::Multi(ops), Answer::multi)
    }
}

impl Ask<(Arc<[u8]>, Stat)> {
    pub(crate) fn get(path: Arc<str>) -> Ask<(Arc<[u8]>, Stat)> {
        Ask::read(Read::Get { path }, Answer::data)
    }
}

impl Ask<(Option<Arc<[u8]>>, Stat)> {
    /// `None` is null data.
    #[cfg(feature = "gateway")]
    pub(crate) fn get_or_null(path: Arc<str>) -> Ask<(Option<Arc<[u8]>>, Stat)> {
        Ask::read(Read::Get { path }, Answer::data_or_null)
    }
}

impl Ask<Option<Stat>> {
    pub(crate) fn exists(path: Arc<str>) -> Ask<Option<Stat>> {
        Ask::read(Read::Exists { path }, Answer::exists)
    }
}

impl Ask<(Vec<String>, Stat)> {
    /// The children, with the stat of the parent.
    pub(crate) fn children(path: Arc<str>) -> Ask<(Vec<String>, Stat)> {
        Ask::read(Read::Children { path }, Answer::children)
    }
}

impl Ask<Vec<String>> {
    pub(crate) fn ephemerals() -> Ask<Vec<String>> {
        Ask::read(Read::Ephemerals, Answer::ephemerals)
    }
}

impl Ask<(Vec<Acl>, Stat)> {
    pub(crate) fn acl(path: Arc<str>) -> Ask<(Vec<Acl>, Stat)> {
        Ask::read(Read::Acl { path }, Answer::acl)
    }
}

impl Ask<Vec<Id>> {
    pub(crate) fn authenticate(ids: Vec<Id>) -> Ask<Vec<Id>> {
        Ask::write(Command::Authenticate { ids }, Answer::ids)
    }

    pub(crate) fn ids() -> Ask<Vec<Id>> {
        Ask::read(Read::Ids, Answer::ids)
    }
}

impl Ask<Arc<Tree>> {
    /// The whole tree, of the replica in this process.
    pub(crate) fn tree() -> Ask<Arc<Tree>> {
        Ask::read(Read::Tree, Answer::tree)
    }

    /// What the session may read at this path and below.
    pub(crate) fn below(path: Arc<str>) -> Ask<Arc<Tree>> {
        Ask::read(Read::Below { path }, Answer::tree)
    }
}

/// What the replica in this process knows of the state after the write `zxid`.
impl Ask<PastTree> {
    pub(crate) fn past(zxid: Zxid) -> Ask<PastTree> {
        Ask::query(Query::At { zxid, read: Read::Tree }, Answer::past)
    }
}

/// Parts of that state, for clients.
impl Ask<Arc<Tree>> {
    pub(crate) fn below_at(path: Arc<str>, zxid: Zxid) -> Ask<Arc<Tree>> {
        Ask::query(Query::At { zxid, read: Read::Below { path } }, Answer::tree)
    }
}

impl Ask<(Arc<[u8]>, Stat)> {
    pub(crate) fn get_at(path: Arc<str>, zxid: Zxid) -> Ask<(Arc<[u8]>, Stat)> {
        Ask::query(Query::At { zxid, read: Read::Get { path } }, Answer::data)
    }
}

impl Ask<(Vec<String>, Stat)> {
    pub(crate) fn children_at(path: Arc<str>, zxid: Zxid) -> Ask<(Vec<String>, Stat)> {
        Ask::query(Query::At { zxid, read: Read::Children { path } }, Answer::children)
    }
}

impl Ask<u64> {
    /// How many znodes there are below this one.
    pub(crate) fn count(path: Arc<str>) -> Ask<u64> {
        Ask::read(Read::Count { path }, Answer::count)
    }
}

impl Ask<Zxid> {
    pub(crate) fn sync() -> Ask<Zxid> {
        Ask::query(Query::Sync, Answer::synced)
    }
}

/// Each reply with its member.
impl Ask<Vec<(NodeId, AdminReply)>> {
    pub(crate) fn members(asked: AdminRequest) -> Ask<Vec<(NodeId, AdminReply)>> {
        Ask { body: RequestBody::Admin(asked), read: Answer::members }
    }
}
