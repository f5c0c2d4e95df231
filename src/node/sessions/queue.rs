//! Reads, watches and syncs that wait for their turn: a session's calls take effect in the order in
//! which they were made.
//!
//! A watch from a zxid that this replica has not reached waits until it has. So that a zxid which
//! nobody has reached is told from one that is on its way, it asks for a round as a sync does: what
//! was written anywhere before it was asked for is here once the replica has reached the round's
//! index.

use std::sync::Arc;

use crate::machine::command::Reply;
use crate::machine::{CONFIG, Machine, Tree, Znode};
use crate::node::io::{Answer, Effects, Read, RequestId, WatchId};
use crate::node::replica::history::History;
use crate::node::replica::watches::{Fired, WatchKind, WatchTable};
use crate::node::sessions::LocalSessions;
use crate::node::sessions::holder::{Confirming, NewWatch, Wait, WaitFor};
use crate::node::sessions::read_index::Ticket;
use crate::planted::{Bug, planted};
use crate::types::acl;
use crate::types::acl::{AccessList, Id, Permissions};
use crate::types::error::Error;
use crate::types::watch::WatcherType;
use crate::types::znode::{SessionId, Zxid};

/// How much is read of a tree for somebody else, at most.
pub(crate) const BELOW_BYTES_MAX: usize = 8 << 20;
/// What a znode takes besides its path and its data, about.
const ZNODE_BYTES: usize = 64;

impl LocalSessions {
    pub(crate) fn read(
        &mut self,
        request: RequestId,
        session: SessionId,
        read: Read,
        watch: Option<(WatchId, Arc<str>)>,
        effects: &mut Effects,
    ) {
        self.wait(request, session, WaitFor::Read { read, watch }, effects);
    }

    /// Queues a watch. If it begins after what this replica has applied, says which ticket a round
    /// must carry for it.
    pub(crate) fn watch(
        &mut self,
        request: RequestId,
        session: SessionId,
        new: NewWatch,
        applied: Zxid,
        effects: &mut Effects,
    ) -> Option<Ticket> {
        if new.from.is_none_or(|zxid| zxid <= applied) {
            self.wait(request, session, WaitFor::Watch { new, round: None }, effects);
            return None;
        }
        let watch = |round| WaitFor::Watch { new, round: Some(round) };
        self.wait_for_round(request, session, watch, effects)
    }

    pub(crate) fn remove_watches(
        &mut self,
        request: RequestId,
        session: SessionId,
        path: String,
        which: WatcherType,
        effects: &mut Effects,
    ) {
        self.wait(request, session, WaitFor::RemoveWatches { path, which }, effects);
    }

    /// Queues a sync and says which ticket a round must carry for it.
    pub(crate) fn sync(
        &mut self,
        request: RequestId,
        session: SessionId,
        effects: &mut Effects,
    ) -> Option<Ticket> {
        self.wait_for_round(request, session, WaitFor::Sync, effects)
    }

    fn wait_for_round(
        &mut self,
        request: RequestId,
        session: SessionId,
        what: impl FnOnce(Confirming) -> WaitFor,
        effects: &mut Effects,
    ) -> Option<Ticket> {
        let ticket = self.next_ticket;
        if !self.wait(request, session, what(Confirming { ticket, index: None }), effects) {
            return None;
        }
        self.next_ticket += 1;
        self.tickets.insert(ticket, session);
        Some(ticket)
    }

    fn wait(
        &mut self,
        request: RequestId,
        session: SessionId,
        what: WaitFor,
        effects: &mut Effects,
    ) -> bool {
        let Some(held) = self.taking(request, session, effects) else {
            return false;
        };
        held.waits.push_back(Wait { after: held.issued, request, what });
        self.waits += 1;
        self.ready.insert(session);
        true
    }

    /// Whether any read, watch or sync waits for its turn.
    pub(crate) fn has_waits(&self) -> bool {
        self.waits > 0
    }

    pub(super) fn fail_waits(&mut self, session: SessionId, effects: &mut Effects) {
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        let error = held.over();
        self.waits -= held.waits.len();
        for mut wait in held.waits.drain(..) {
            if let Some(round) = wait.what.round() {
                self.tickets.remove(&round.ticket);
            }
            let answer = match wait.what {
                WaitFor::Close => Ok(Answer::Reply(Reply::Done)),
                _ => Err(error.clone()),
            };
            effects.replies.push((wait.request, answer));
        }
    }

    /// A round carried this sync and was confirmed at this index.
    pub(crate) fn synced(&mut self, ticket: Ticket, at: u64) {
        let Some(session) = self.tickets.remove(&ticket) else {
            return;
        };
        let Some(held) = self.sessions.get_mut(&session) else {
            return;
        };
        for wait in &mut held.waits {
            if let Some(round) = wait.what.round()
                && round.ticket == ticket
            {
                round.index = Some(at);
            }
        }
        self.ready.insert(session);
    }

    /// The replica has moved on: syncs, and watches from a zxid, may be answerable.
    pub(crate) fn applied(&mut self) {
        self.ready.append(&mut self.catching_up);
    }

    /// Answers the waits whose turn has come.
    pub(crate) fn answer_waits(
        &mut self,
        machine: &Machine,
        applied_index: u64,
        watches: &mut WatchTable,
        history: &History,
        effects: &mut Effects,
    ) {
        let mut fired = Fired::default();
        let tree = machine.tree();
        for session in std::mem::take(&mut self.ready) {
            let Some(held) = self.sessions.get_mut(&session) else {
                continue;
            };
            while let Some(wait) = held.waits.front() {
                let due = held.opening.is_none()
                    && (held.applied >= wait.after || planted(Bug::ReadBeforeOwnWrites))
                    && match &wait.what {
                        WaitFor::Sync(round) => {
                            let careless = planted(Bug::SyncWithoutCatchingUp);
                            round.is_reached(applied_index) || (careless && round.index.is_some())
                        }
                        WaitFor::Watch { new, round: Some(round) } => {
                            let caught_up = new.from.is_none_or(|zxid| zxid <= tree.zxid());
                            caught_up
                                || round.is_reached(applied_index)
                                || planted(Bug::WatchBeforeItsZxid)
                        }
                        _ => true,
                    };
                if !due {
                    match wait.what {
                        WaitFor::Sync(Confirming { index: Some(_), .. })
                        | WaitFor::Watch { round: Some(_), .. } => {
                            self.catching_up.insert(session);
                        }
                        _ => {}
                    }
                    break;
                }
                let Some(wait) = held.waits.pop_front() else {
                    break;
                };
                self.waits -= 1;
                let answer = match wait.what {
                    WaitFor::Sync(_) => Ok(Answer::Synced(tree.zxid())),
                    WaitFor::Close => Ok(Answer::Reply(Reply::Done)),
                    WaitFor::Watch { new, round } => {
                        if let Some(round) = round {
                            self.tickets.remove(&round.ticket);
                        }
                        set_watch(new, held.viewer(), tree.zxid(), watches, history, &mut fired)
                            .map(|()| Answer::Watching)
                    }
                    WaitFor::RemoveWatches { path, which } => {
                        let zxid = tree.zxid();
                        if watches.remove_watches(session, &path, which, false, zxid, &mut fired) {
                            Ok(Answer::Reply(Reply::Done))
                        } else {
                            Err(Error::NoWatch { path })
                        }
                    }
                    WaitFor::Read { read, watch } => {
                        answer_read(&read, watch, held.viewer(), &tree, machine, watches)
                    }
                };
                effects.replies.push((wait.request, answer));
            }
        }
        // Behind the events of all that was applied by now.
        effects.events.append(&mut fired.events);
        effects.ended.append(&mut fired.ended);
    }
}

/// As whom a session reads.
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

pub(crate) fn set_watch(
    new: NewWatch,
    held: Viewer<'_>,
    applied: Zxid,
    watches: &mut WatchTable,
    history: &History,
    fired: &mut Fired,
) -> Result<(), Error> {
    let NewWatch { id, path, kind, from, data } = new;
    let session = held.session;
    let Some(zxid) = from.filter(|zxid| *zxid <= applied || !planted(Bug::WatchBeforeItsZxid))
    else {
        watches.add(id, path, kind, session);
        if data {
            watches.bring_data(id);
        }
        return Ok(());
    };
    if zxid > applied {
        return Err(Error::FutureZxid { path: (*path).to_owned(), zxid, last: applied });
    }
    match history.after(zxid) {
        Ok(past) => {
            let may_read = |acl: Option<&AccessList>| held.may(acl, Permissions::READ);
            watches.add_with_past((id, path, kind), session, past, may_read, fired);
            Ok(())
        }
        Err(oldest) => Err(Error::TooOld { path: (*path).to_owned(), zxid, oldest }),
    }
}

pub(crate) fn answer_read(
    read: &Read,
    watch: Option<(WatchId, Arc<str>)>,
    held: Viewer<'_>,
    tree: &Tree,
    machine: &Machine,
    watches: &mut WatchTable,
) -> Result<Answer, Error> {
    let session = held.session;
    // What the session may not read is refused; what is missing is `None`.
    let permitted = |path: &str, wanted: Permissions| {
        let znode = tree.get(path);
        let acl = znode.and_then(|znode| Some(&**znode.acl()?));
        if held.may(acl, wanted) {
            Ok(znode)
        } else {
            Err(Error::NoAuth { path: path.to_owned(), permission: wanted })
        }
    };
    let readable = |path: &str| permitted(path, Permissions::READ);
    let missing = |path: &str| Error::NoNode { path: path.to_owned() };
    let (answer, kind) = match read {
        Read::Get { path } if planted(Bug::ReadUnchecked) => {
            let znode = tree.get(path).ok_or_else(|| missing(path))?;
            (Answer::Data(znode.data().clone(), znode.stat()), WatchKind::Data)
        }
        Read::Get { path } => {
            let znode = readable(path)?.ok_or_else(|| missing(path))?;
            (Answer::Data(znode.data().clone(), znode.stat()), WatchKind::Data)
        }
        Read::Exists { path } => {
            (Answer::Exists(readable(path)?.map(Znode::stat)), WatchKind::Data)
        }
        Read::Children { path } => {
            let znode = readable(path)?.ok_or_else(|| missing(path))?;
            let children = znode.children().map(str::to_owned).collect();
            (Answer::Children(children), WatchKind::Children)
        }
        Read::Acl { path } => {
            let znode = permitted(path, Permissions::READ | Permissions::ADMIN)?;
            let znode = znode.ok_or_else(|| missing(path))?;
            let acl = znode.acl().map(|acl| &**acl);
            let acl = acl::shown(acl, path == CONFIG, held.ids);
            return Ok(Answer::Acl(acl, znode.stat()));
        }
        Read::Ids => return Ok(Answer::Ids((**held.ids).clone())),
        Read::Ephemerals => {
            let paths = machine.session(session).map(|record| record.ephemerals.iter());
            let paths = paths.into_iter().flatten().map(|path| (**path).to_owned());
            let forgotten = usize::from(planted(Bug::EphemeralForgotten));
            return Ok(Answer::Children(paths.skip(forgotten).collect()));
        }
        Read::Tree => return Ok(Answer::Tree(tree.clone())),
        Read::Below { path } => return read_below(tree, path, held),
    };
    if let Some((id, path)) = watch {
        watches.add(id, path, kind, session);
    }
    Ok(answer)
}

/// A znode and all below it, with the content of what may be read.
fn read_below(tree: &Tree, path: &str, held: Viewer<'_>) -> Result<Answer, Error> {
    let (mut znodes, mut size) = (Vec::new(), 0);
    for (at, znode) in tree.below(path) {
        size += at.len() + znode.data().len() + ZNODE_BYTES;
        if size > BELOW_BYTES_MAX {
            let (size, limit) = (size as u64, BELOW_BYTES_MAX as u64);
            return Err(Error::TooLarge { path: path.to_owned(), size, limit });
        }
        let readable = held.may(znode.acl().map(|acl| &**acl), Permissions::READ);
        let content = readable.then(|| (Arc::clone(znode.data()), znode.stat()));
        znodes.push((at.to_owned(), content));
    }
    Ok(Answer::Below(tree.zxid(), znodes))
}
