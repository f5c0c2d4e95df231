//! What handles ask of their node, each request with the type of its answer.

use std::sync::Arc;
use std::time::Duration;

use crate::machine::Tree;
use crate::machine::command::{Command, Op, Reply};
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::node::io::WatchId;
use crate::node::query::{Answer, EventData, Query, Read, ZnodeRead};
use crate::node::request::RequestBody;
use crate::runtime::session::SessionShared;
use crate::types::acl::{Acl, Id};
use crate::types::error::{Error, Result};
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::watch::WatcherType;
use crate::types::znode::{Created, OpResult, Stat, Zxid};

/// A request, and how its answer is read. The functions that make one pair the two.
pub(crate) struct Ask<T> {
    pub(crate) body: RequestBody,
    read: fn(Answer) -> Option<T>,
}

/// Reads an answer of this form.
macro_rules! when {
    ($form:pat => $value:expr) => {
        |answer: Answer| match answer {
            $form => Some($value),
            _ => None,
        }
    };
}
#[cfg(any(test, feature = "simulator"))]
pub(crate) use when;

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

    /// The request, and how its answer is read.
    pub(crate) fn split(self) -> (RequestBody, impl FnOnce(Answer) -> Result<T> + use<T>) {
        let Ask { body, read } = self;
        // Only a member that does not keep to the protocol answers its client in another form.
        let unfit = || Error::Stopped { reason: "an answer does not fit its request".to_owned() };
        (body, move |answer| read(answer).ok_or_else(unfit))
    }
}

/// The timeout that the session got.
impl Ask<Duration> {
    pub(crate) fn open(session: &SessionShared, timeout: Duration) -> Ask<Duration> {
        let SessionShared { holder, secret, .. } = *session;
        Ask::begin(RequestBody::open(holder, secret, timeout))
    }

    /// Without a timeout the session keeps its own.
    pub(crate) fn resume(session: &SessionShared, timeout: Option<Duration>) -> Ask<Duration> {
        let SessionShared { holder, secret, .. } = *session;
        Ask::begin(RequestBody::resume(holder, secret, timeout))
    }

    fn begin(body: RequestBody) -> Ask<Duration> {
        let read = when!(Answer::Reply(Reply::Session { timeout_ms }) => Duration::from_millis(u64::from(timeout_ms)));
        Ask { body, read }
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
        Ask::write(Command::Op(op), when!(Answer::Reply(Reply::Created(created)) => created))
    }
}

/// The path, if the znode was created.
impl Ask<(Option<String>, Stat)> {
    /// An operation that creates, or changes what is there.
    pub(crate) fn create_or_set(op: Op) -> Ask<(Option<String>, Stat)> {
        Ask::write(Command::Op(op), |answer| match answer {
            Answer::Reply(Reply::Created(Created { path, stat })) => Some((Some(path), stat)),
            Answer::Reply(Reply::Set(stat)) => Some((None, stat)),
            _ => None,
        })
    }
}

impl Ask<Stat> {
    /// An operation that changes a znode.
    pub(crate) fn set(op: Op) -> Ask<Stat> {
        Ask::write(Command::Op(op), when!(Answer::Reply(Reply::Set(stat)) => stat))
    }
}

impl Ask<()> {
    /// An operation that deletes.
    pub(crate) fn delete(op: Op) -> Ask<()> {
        Ask::write(Command::Op(op), when!(Answer::Reply(Reply::Done) => ()))
    }

    /// Gives up the session, which ends in this state for its holder.
    pub(crate) fn abandon(state: SessionState) -> Ask<()> {
        Ask { body: RequestBody::Abandon(state), read: when!(Answer::Reply(Reply::Done) => ()) }
    }

    pub(crate) fn close() -> Ask<()> {
        Ask::write(Command::Close, when!(Answer::Reply(Reply::Done) => ()))
    }

    /// A watch that stays: see [`Query::Watch`].
    pub(crate) fn watch(
        watch: WatchId,
        path: Arc<str>,
        recursive: bool,
        from: Option<Zxid>,
        data: EventData,
    ) -> Ask<()> {
        Ask::query(
            Query::Watch { watch, path, recursive, from, data },
            when!(Answer::Watching => ()),
        )
    }

    pub(crate) fn remove_watches(path: Arc<str>, which: WatcherType) -> Ask<()> {
        Ask::query(Query::RemoveWatches { path, which }, when!(Answer::Reply(Reply::Done) => ()))
    }
}

impl Ask<Vec<OpResult>> {
    pub(crate) fn multi(ops: Vec<Op>) -> Ask<Vec<OpResult>> {
        Ask::write(Command::Multi(ops), when!(Answer::Reply(Reply::Multi(results)) => results))
    }
}

impl Ask<(Arc<[u8]>, Stat)> {
    pub(crate) fn get(path: Arc<str>) -> Ask<(Arc<[u8]>, Stat)> {
        Ask::read(Read::Get { path }, when!(Answer::Data { data, stat, .. } => (data, stat)))
    }
}

impl Ask<(Option<Arc<[u8]>>, Stat)> {
    /// `None` is null data.
    #[cfg(feature = "gateway")]
    pub(crate) fn get_or_null(path: Arc<str>) -> Ask<(Option<Arc<[u8]>>, Stat)> {
        Ask::read(
            Read::Get { path },
            when!(Answer::Data { data, stat, is_null } => ((!is_null).then_some(data), stat)),
        )
    }
}

impl Ask<Option<Stat>> {
    pub(crate) fn exists(path: Arc<str>) -> Ask<Option<Stat>> {
        Ask::read(Read::Exists { path }, when!(Answer::Exists(stat) => stat))
    }
}

impl Ask<(Vec<String>, Stat)> {
    /// The children, with the stat of the parent.
    pub(crate) fn children(path: Arc<str>) -> Ask<(Vec<String>, Stat)> {
        Ask::read(
            Read::Children { path },
            when!(Answer::Children(names, Some(stat)) => (names, stat)),
        )
    }
}

impl Ask<Vec<String>> {
    pub(crate) fn ephemerals() -> Ask<Vec<String>> {
        Ask::read(Read::Ephemerals, when!(Answer::Children(paths, None) => paths))
    }
}

impl Ask<(Vec<Acl>, Stat)> {
    pub(crate) fn acl(path: Arc<str>) -> Ask<(Vec<Acl>, Stat)> {
        Ask::read(Read::Acl { path }, when!(Answer::Acl(acl, stat) => (acl, stat)))
    }
}

impl Ask<Vec<Id>> {
    pub(crate) fn authenticate(ids: Vec<Id>) -> Ask<Vec<Id>> {
        Ask::write(Command::Authenticate { ids }, when!(Answer::Reply(Reply::Ids(ids)) => ids))
    }

    pub(crate) fn ids() -> Ask<Vec<Id>> {
        Ask::read(Read::Ids, when!(Answer::Ids(ids) => ids))
    }
}

impl Ask<Arc<Tree>> {
    /// The whole tree, of the replica in this process.
    pub(crate) fn tree() -> Ask<Arc<Tree>> {
        Ask::read(Read::Tree, when!(Answer::Tree(tree) => Arc::new(tree)))
    }

    /// What the session may read at this path and below.
    pub(crate) fn below(path: Arc<str>) -> Ask<Arc<Tree>> {
        Ask::read(Read::Below { path }, when!(Answer::Below(zxid, znodes) => excerpt(zxid, znodes)))
    }
}

impl Ask<usize> {
    /// How many znodes there are below this one.
    pub(crate) fn count(path: Arc<str>) -> Ask<usize> {
        Ask::read(
            Read::Count { path },
            when!(Answer::Count(count) => usize::try_from(count).unwrap_or(usize::MAX)),
        )
    }
}

impl Ask<Zxid> {
    pub(crate) fn sync() -> Ask<Zxid> {
        Ask::query(Query::Sync, when!(Answer::Synced(zxid) => zxid))
    }
}

/// Each reply with its member.
impl Ask<Vec<(NodeId, AdminReply)>> {
    pub(crate) fn members(asked: AdminRequest) -> Ask<Vec<(NodeId, AdminReply)>> {
        Ask { body: RequestBody::Admin(asked), read: when!(Answer::Admin(replies) => replies) }
    }
}

/// The part of a tree that a member has sent.
fn excerpt(zxid: Zxid, znodes: Vec<ZnodeRead>) -> Arc<Tree> {
    let znodes = znodes.into_iter().map(|ZnodeRead { path, content }| {
        (path, content.map(|content| (content.data, content.stat)))
    });
    Arc::new(Tree::excerpt(zxid, znodes))
}
