//! The queue of a session's queries, and how a replica answers them. The queries of its own users and
//! those of clients differ only in who gets the answer.
//!
//! A query is answered after the writes of its session that were made before it. A sync waits for a
//! ReadIndex request that was made after it, and then for this replica to reach the confirmed index. So
//! does a watch from a zxid that this replica has not reached. At that index the replica has everything written before
//! the query, so if it still does not know the zxid, no replica has reached it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::machine::command::Reply;
use crate::machine::{CONFIG, Machine, Tree, Znode};
use crate::node::io::{Effects, RequestId, WatchId};
use crate::node::query::{Answer, EventData, Query, Read, ZnodeContent, ZnodeRead};
use crate::node::replica::history::History;
use crate::node::replica::watch_kind::WatchKind;
use crate::node::replica::watches::{Fired, WatchTable};
use crate::node::sessions::LocalSessions;
use crate::node::sessions::agenda::SessionTask;
use crate::node::sessions::read_index::SyncId;
use crate::types::acl;
use crate::types::acl::{AccessList, Id, Permissions};
use crate::types::error::Error;
use crate::types::znode::{SessionId, Zxid};

/// The most bytes that are read of a tree for a client.
pub(crate) const BELOW_BYTES_MAX: usize = 8 << 20;
/// The most znodes that are counted for a client: about as many as could be read.
const COUNTED_MAX: usize = BELOW_BYTES_MAX / ZNODE_BYTES;
/// About how many bytes a znode takes besides its path and its data.
const ZNODE_BYTES: usize = 64;

/// The queries of one session that wait for their turn. `T` identifies the receiver of the answer.
#[derive(Debug)]
pub(crate) struct QueryQueue<T> {
    waits: VecDeque<Wait<T>>,
}

#[derive(Debug)]
struct Wait<T> {
    asker: T,
    /// The last write of the session before this query.
    after: u64,
    /// `None`: another close of a session that is already being closed. It succeeds in its turn.
    query: Option<Query>,
    confirming: Option<Confirming>,
}

/// The ReadIndex request that a query waits for.
#[derive(Clone, Copy, Debug)]
struct Confirming {
    number: u64,
    /// The index at which it was confirmed.
    index: Option<u64>,
}

/// The progress of the replica, for one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaProgress {
    /// The last write of the session that is done.
    pub(crate) done: u64,
    /// The last entry of the log that is applied, and the zxid that goes with it.
    pub(crate) applied: u64,
    pub(crate) zxid: Zxid,
}

impl<T> Default for QueryQueue<T> {
    fn default() -> QueryQueue<T> {
        QueryQueue { waits: VecDeque::new() }
    }
}

impl<T> QueryQueue<T> {
    pub(crate) fn push(
        &mut self,
        asker: T,
        after: u64,
        query: Option<Query>,
        confirming: Option<u64>,
    ) {
        let confirming = confirming.map(|number| Confirming { number, index: None });
        self.waits.push_back(Wait { asker, after, query, confirming });
    }

    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// ReadIndex requests of these numbers are confirmed at this index.
    pub(crate) fn confirmed(&mut self, is_one: impl Fn(u64) -> bool, index: u64) {
        let confirming = self.waits.iter_mut().filter_map(|wait| wait.confirming.as_mut());
        for confirming in confirming.filter(|confirming| is_one(confirming.number)) {
            confirming.index.get_or_insert(index);
        }
    }

    /// The first query, if its turn has come, with the number of the ReadIndex request that it has
    /// waited for.
    pub(crate) fn next_due(
        &mut self,
        progress: ReplicaProgress,
    ) -> Option<(T, Option<Query>, Option<u64>)> {
        if !self.waits.front()?.is_due(progress) {
            return None;
        }
        let first = self.waits.pop_front()?;
        Some((first.asker, first.query, first.confirming.map(|it| it.number)))
    }

    /// Whether the first query waits for this replica to catch up with the log.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.waits.front().is_some_and(|first| match first.query {
            Some(Query::Sync) => first.confirming.is_some_and(|it| it.index.is_some()),
            Some(Query::Watch { .. }) => first.confirming.is_some(),
            _ => false,
        })
    }

    /// All waiting queries, with the numbers of the ReadIndex requests that they wait for.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (T, Option<Query>, Option<u64>)> + '_ {
        self.waits
            .drain(..)
            .map(|wait| (wait.asker, wait.query, wait.confirming.map(|it| it.number)))
    }

    pub(crate) fn askers(&self) -> impl Iterator<Item = &T> {
        self.waits.iter().map(|wait| &wait.asker)
    }
}

impl<T> Wait<T> {
    fn is_due(&self, progress: ReplicaProgress) -> bool {
        let index = self.confirming.and_then(|confirming| confirming.index);
        let reached = index.is_some_and(|index| progress.applied >= index);
        progress.done >= self.after
            && match &self.query {
                Some(Query::Sync) => {
                    reached || (planted!(SyncWithoutCatchingUp) && index.is_some())
                }
                Some(Query::Watch { from: Some(from), .. }) => {
                    *from <= progress.zxid || reached || planted!(WatchBeforeItsZxid)
                }
                _ => true,
            }
    }
}

/// The sources of the answers.
pub(crate) struct Answering<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) tree: &'a Tree,
    pub(crate) watches: &'a mut WatchTable,
    pub(crate) history: &'a History,
    pub(crate) fired: &'a mut Fired,
    /// Whether the session is a client's.
    pub(crate) of_client: bool,
}

impl Answering<'_> {
    pub(crate) fn answer(&mut self, query: Query, viewer: Viewer<'_>) -> Result<Answer, Error> {
        let session = viewer.session;
        match &query {
            Query::Read { read, .. } => {
                let record = || self.machine.session(session);
                let ephemerals = || record().map(|record| record.ephemerals.iter());
                let paths = || ephemerals().into_iter().flatten().map(|path| (**path).to_owned());
                let answer = answer_read(self.tree, read, viewer, || paths().collect())?;
                if let Some((id, path, kind)) = query.watch() {
                    self.watches.add(id, Arc::clone(path), kind, session);
                }
                Ok(answer)
            }
            Query::Watch { from, data, .. } => {
                if let Some((id, path, kind)) = query.watch() {
                    self.watch((id, Arc::clone(path), kind), *from, *data, viewer)?;
                }
                Ok(Answer::Watching)
            }
            Query::RemoveWatches { path, which } => {
                let (zxid, of_client) = (self.tree.zxid(), self.of_client);
                let watches = &mut *self.watches;
                let some =
                    watches.remove_watches(session, path, *which, of_client, zxid, self.fired);
                if some && !planted!(RemovalDenied) {
                    Ok(Answer::Reply(Reply::Done))
                } else {
                    Err(Error::NoWatch { path: path.to_string() })
                }
            }
            Query::Sync => Ok(Answer::Synced(self.tree.zxid())),
        }
    }

    fn watch(
        &mut self,
        new: (WatchId, Arc<str>, WatchKind),
        from: Option<Zxid>,
        data: EventData,
        viewer: Viewer<'_>,
    ) -> Result<(), Error> {
        let (applied, session) = (self.tree.zxid(), viewer.session);
        let Some(zxid) = from else {
            let (id, path, kind) = new;
            self.watches.add(id, path, kind, session);
            self.watches.bring_data(id, data);
            return Ok(());
        };
        let path = || (*new.1).to_owned();
        let above = unless!(RecentIsFuture, zxid, zxid + 20) > applied;
        if above && !planted!(FutureAccepted) {
            return Err(Error::FutureZxid { path: path(), zxid, last: applied });
        }
        match self.history.after(zxid) {
            Ok(past) => {
                let may_read = |acl: Option<&AccessList>| viewer.may(acl, Permissions::READ);
                self.watches.add_with_past(new, session, past, may_read, self.fired);
                Ok(())
            }
            Err(oldest) => Err(Error::TooOld { path: path(), zxid, oldest }),
        }
    }
}

/// Whether a query needs a ReadIndex request on a replica that has everything up to `applied`.
pub(in crate::node) fn waits_for_others(query: &Query, applied: Zxid) -> bool {
    match query {
        Query::Sync => true,
        Query::Watch { from, .. } => from.is_some_and(|from| from > applied),
        _ => false,
    }
}

impl LocalSessions {
    /// Queues a query. `applied` is the last zxid that this replica has.
    pub(crate) fn query(
        &mut self,
        request: RequestId,
        session: SessionId,
        query: Query,
        applied: Zxid,
        effects: &mut Effects,
    ) {
        let sync = waits_for_others(&query, applied).then_some(self.next_sync);
        let Some(held) = self.taking(request, session, effects) else {
            return;
        };
        held.waits.push(request, held.requests.issued(), Some(query), sync);
        self.waits += 1;
        self.agenda.add(SessionTask::Answer, session);
        if let Some(sync) = sync {
            self.next_sync += 1;
            self.syncs.insert(sync, session);
            self.read_index.wait(sync);
        }
    }

    /// Whether any query waits for its turn.
    pub(crate) fn has_waits(&self) -> bool {
        self.waits > 0
    }

    pub(super) fn fail_waits(&mut self, session: SessionId, effects: &mut Effects) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        let error = held.over();
        self.waits -= held.waits.len();
        for (request, query, sync) in held.waits.drain() {
            if let Some(sync) = sync {
                self.syncs.remove(&sync);
            }
            let answer = match query {
                None => Ok(Answer::Reply(Reply::Done)),
                Some(_) => Err(error.clone()),
            };
            effects.reply(request, answer);
        }
    }

    /// The ReadIndex request that carried this number was confirmed at this index.
    pub(crate) fn synced(&mut self, sync: SyncId, at: u64) {
        let Some(session) = self.syncs.remove(&sync) else {
            return;
        };
        if let Some(held) = self.sessions.get_mut(&session) {
            held.waits.confirmed(|number| number == sync, at);
            self.agenda.add(SessionTask::Answer, session);
        }
    }

    /// The replica has applied entries: syncs, and watches from a zxid, may be answerable.
    pub(crate) fn applied(&mut self) {
        self.agenda.turn(SessionTask::CatchUp, SessionTask::Answer);
    }

    /// Answers the queries whose turn has come.
    pub(crate) fn answer_waits(
        &mut self,
        machine: &Machine,
        applied: u64,
        watches: &mut WatchTable,
        history: &History,
        effects: &mut Effects,
    ) {
        let mut fired = Fired::default();
        let tree = machine.tree();
        let mut answering = Answering {
            machine,
            tree: &tree,
            watches,
            history,
            fired: &mut fired,
            of_client: false,
        };
        for session in self.agenda.take(SessionTask::Answer) {
            let Some(held) = self.sessions.get_mut(&session) else {
                continue;
            };
            if held.requests.opening().is_some() {
                continue;
            }
            let done =
                if planted!(ReadBeforeOwnWrites) { u64::MAX } else { held.requests.applied() };
            let progress = ReplicaProgress { done, applied, zxid: tree.zxid() };
            while let Some((request, query, sync)) = held.waits.next_due(progress) {
                self.waits -= 1;
                if let Some(sync) = sync {
                    self.syncs.remove(&sync);
                }
                let answer = match query {
                    None => Ok(Answer::Reply(Reply::Done)),
                    Some(query) => answering.answer(query, held.viewer()),
                };
                effects.reply(request, answer);
            }
            if held.waits.is_catching_up() {
                self.agenda.add(SessionTask::CatchUp, session);
            }
        }
        // After the events of everything applied so far.
        fired.add_to(effects);
    }
}

/// A session and its ids, which decide what it may read.
#[derive(Clone, Copy)]
pub(crate) struct Viewer<'a> {
    pub(crate) session: SessionId,
    pub(crate) ids: &'a Arc<Vec<Id>>,
}

impl Viewer<'_> {
    pub(crate) fn may(self, acl: Option<&AccessList>, wanted: Permissions) -> bool {
        acl::permits(acl, self.ids, wanted)
    }
}

/// Answers a read of this viewer from a tree. `ephemerals` are those of its session.
pub(crate) fn answer_read(
    tree: &Tree,
    read: &Read,
    viewer: Viewer<'_>,
    ephemerals: impl FnOnce() -> Vec<String>,
) -> Result<Answer, Error> {
    // An error if the session may not read the znode; `None` if it is missing.
    let permitted = |path: &str, wanted: Permissions| {
        let znode = tree.get(path);
        let acl = znode.and_then(|znode| Some(&**znode.acl()?));
        if viewer.may(acl, wanted) {
            Ok(znode)
        } else {
            Err(Error::NoAuth { path: path.to_owned(), permission: wanted })
        }
    };
    let readable = |path: &str| permitted(path, Permissions::READ);
    let missing = |path: &str| Error::NoNode { path: path.to_owned() };
    Ok(match read {
        Read::Get { path } => {
            let znode = if planted!(ReadUnchecked) { tree.get(path) } else { readable(path)? };
            let znode = znode.ok_or_else(|| missing(path))?;
            Answer::Data { data: znode.shared_data(), stat: znode.stat(), is_null: znode.is_null() }
        }
        Read::Exists { path } => Answer::Exists(readable(path)?.map(Znode::stat)),
        Read::Children { path } => {
            let znode = readable(path)?.ok_or_else(|| missing(path))?;
            let names = znode.children().map(str::to_owned).collect();
            Answer::Children(names, Some(znode.stat()))
        }
        Read::Acl { path } => {
            let znode = permitted(path, Permissions::READ | Permissions::ADMIN)?;
            let znode = znode.ok_or_else(|| missing(path))?;
            let acl = znode.acl().map(|acl| &**acl);
            Answer::Acl(acl::shown(acl, &**path == CONFIG, viewer.ids), znode.stat())
        }
        Read::Ids => Answer::Ids((**viewer.ids).clone()),
        Read::Ephemerals => Answer::Children(ephemerals(), None),
        Read::Tree => Answer::Tree(tree.clone()),
        Read::Below { path } => read_below(tree, path, viewer)?,
        Read::Count { path } => {
            readable(path)?.ok_or_else(|| missing(path))?;
            let count = tree.below(path).take(COUNTED_MAX + 1).count();
            if count > COUNTED_MAX {
                let (size, limit) = (count as u64, COUNTED_MAX as u64);
                return Err(Error::TooLarge { path: path.to_string(), size, limit });
            }
            // Without the znode itself.
            Answer::Count(count as u64 - 1)
        }
    })
}

/// A znode and all below it, with the content of those that may be read.
fn read_below(tree: &Tree, path: &str, held: Viewer<'_>) -> Result<Answer, Error> {
    let (mut znodes, mut size) = (Vec::new(), 0);
    for (at, znode) in tree.below(path) {
        size += at.len() + znode.data().len() + ZNODE_BYTES;
        if size > BELOW_BYTES_MAX {
            let (size, limit) = (size as u64, BELOW_BYTES_MAX as u64);
            return Err(Error::TooLarge { path: path.to_owned(), size, limit });
        }
        let readable = held.may(znode.acl().map(|acl| &**acl), Permissions::READ);
        let content = || ZnodeContent { data: znode.shared_data(), stat: znode.stat() };
        znodes.push(ZnodeRead { path: at.to_owned(), content: readable.then(content) });
    }
    Ok(Answer::Below(tree.zxid(), znodes))
}
