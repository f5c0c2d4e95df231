//! Reads, watches and syncs that wait for their turn: a session's calls take effect in the order in
//! which they were made.

use super::LocalSessions;
use super::session::{LocalSession, Wait, WaitFor};
use crate::acl::{self, Permissions};
use crate::error::Error;
use crate::machine::command::Reply;
use crate::machine::{Machine, Tree, Znode};
use crate::node::io::{Answer, Effects, Read, RequestId, WatchId};
use crate::node::rounds::Ticket;
use crate::node::watches::{WatchKind, WatchTable};
use crate::planted::{Bug, planted};
use crate::znode::SessionId;

impl LocalSessions {
    pub(crate) fn read(
        &mut self,
        request: RequestId,
        session: SessionId,
        read: Read,
        watch: Option<WatchId>,
        effects: &mut Effects,
    ) {
        self.wait(request, session, WaitFor::Read { read, watch }, effects);
    }

    pub(crate) fn watch(
        &mut self,
        request: RequestId,
        session: SessionId,
        watch: WatchId,
        path: String,
        kind: WatchKind,
        effects: &mut Effects,
    ) {
        self.wait(request, session, WaitFor::Watch { watch, path, kind }, effects);
    }

    /// Queues a sync and says which ticket a round must carry for it.
    pub(crate) fn sync(
        &mut self,
        request: RequestId,
        session: SessionId,
        effects: &mut Effects,
    ) -> Option<Ticket> {
        let ticket = self.next_ticket;
        if !self.wait(request, session, WaitFor::Sync { ticket, index: None }, effects) {
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
        for wait in held.waits.drain(..) {
            let answer = match wait.what {
                WaitFor::Close => Ok(Answer::Reply(Reply::Done)),
                WaitFor::Sync { ticket, .. } => {
                    self.tickets.remove(&ticket);
                    Err(error.clone())
                }
                WaitFor::Read { .. } | WaitFor::Watch { .. } => Err(error.clone()),
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
            if let WaitFor::Sync { ticket: of, index } = &mut wait.what
                && *of == ticket
            {
                *index = Some(at);
            }
        }
        self.ready.insert(session);
    }

    /// The replica has moved on: syncs may be answerable.
    pub(crate) fn applied(&mut self) {
        self.ready.append(&mut self.catching_up);
    }

    /// Answers the waits whose turn has come.
    pub(crate) fn answer_waits(
        &mut self,
        machine: &Machine,
        applied_index: u64,
        watches: &mut WatchTable,
        effects: &mut Effects,
    ) {
        let tree = machine.tree();
        for session in std::mem::take(&mut self.ready) {
            let Some(held) = self.sessions.get_mut(&session) else {
                continue;
            };
            while let Some(wait) = held.waits.front() {
                let due = held.opening.is_none()
                    && (held.applied >= wait.after || planted(Bug::ReadBeforeOwnWrites))
                    && match wait.what {
                        WaitFor::Sync { index, .. } => {
                            let caught_up = |index| applied_index >= index;
                            let careless = planted(Bug::SyncWithoutCatchingUp);
                            index.is_some_and(|index| caught_up(index) || careless)
                        }
                        _ => true,
                    };
                if !due {
                    if let WaitFor::Sync { index: Some(_), .. } = wait.what {
                        self.catching_up.insert(session);
                    }
                    break;
                }
                let Some(wait) = held.waits.pop_front() else {
                    break;
                };
                self.waits -= 1;
                let answer = answer(wait.what, held, &tree, machine, watches);
                effects.replies.push((wait.request, answer));
            }
        }
    }
}

fn answer(
    what: WaitFor,
    held: &LocalSession,
    tree: &Tree,
    machine: &Machine,
    watches: &mut WatchTable,
) -> Result<Answer, Error> {
    let session = held.id;
    let (read, watch) = match what {
        WaitFor::Sync { .. } => return Ok(Answer::Synced(tree.zxid())),
        WaitFor::Close => return Ok(Answer::Reply(Reply::Done)),
        WaitFor::Watch { watch, path, kind } => {
            watches.add(watch, &path, kind, session);
            return Ok(Answer::Watching);
        }
        WaitFor::Read { read, watch } => (read, watch),
    };
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
    let (answer, path, kind) = match &read {
        Read::Get { path } if planted(Bug::ReadUnchecked) => {
            let znode = tree.get(path).ok_or_else(|| missing(path))?;
            (Answer::Data(znode.data().clone(), znode.stat()), path, WatchKind::Data)
        }
        Read::Get { path } => {
            let znode = readable(path)?.ok_or_else(|| missing(path))?;
            (Answer::Data(znode.data().clone(), znode.stat()), path, WatchKind::Data)
        }
        Read::Exists { path } => {
            (Answer::Exists(readable(path)?.map(Znode::stat)), path, WatchKind::Data)
        }
        Read::Children { path } => {
            let znode = readable(path)?.ok_or_else(|| missing(path))?;
            let children = znode.children().map(str::to_owned).collect();
            (Answer::Children(children), path, WatchKind::Children)
        }
        Read::Acl { path } => {
            let znode = permitted(path, Permissions::READ | Permissions::ADMIN)?;
            let znode = znode.ok_or_else(|| missing(path))?;
            let acl = znode.acl().map(|acl| &**acl);
            return Ok(Answer::Acl(acl::shown(acl, &held.ids), znode.stat()));
        }
        Read::Ids => return Ok(Answer::Ids((*held.ids).clone())),
        Read::Ephemerals => {
            let paths = machine.session(session).map(|record| record.ephemerals.iter());
            let paths = paths.into_iter().flatten().map(|path| (**path).to_owned());
            let forgotten = usize::from(planted(Bug::EphemeralForgotten));
            return Ok(Answer::Children(paths.skip(forgotten).collect()));
        }
        Read::Tree => return Ok(Answer::Tree(tree.clone())),
    };
    if let Some(watch) = watch {
        watches.add(watch, path, kind, session);
    }
    Ok(answer)
}
