//! A simple and slow model of the machine, to compare the machine with: one map of
//! paths. Everything else is counted or copied each time it is needed.

mod access;
mod ops;
mod queue;
mod quotas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::ops::{data_bytes, results_fit};
use super::command::{Change, ChangeKind, Command, Op, OpError, Reply, Request, SessionChange};
use crate::machine::data::Data;
use crate::machine::tombstones::TOMBSTONES_MAX;
use crate::types::acl::{AccessList, Acl, Id};
use crate::types::membership::Roster;
use crate::types::path;
use crate::types::version::INVENTED;
use crate::types::znode::{OpResult, SessionId, Stat};

#[derive(Clone, Debug, Default)]
pub(crate) struct ModelZnode {
    pub(crate) data: Data,
    /// Only the fields of the stat that are not counted: zxids, times, version and owner.
    pub(crate) stat: Stat,
    creates: u64,
    deletes: u64,
    /// The access list; `None` if everybody may do everything.
    pub(crate) acl: Option<Vec<Acl>>,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelSession {
    secret: [u8; 16],
    timeout_ms: u32,
    pub(crate) holders: Vec<u64>,
    results: Vec<Result<Reply, OpError>>,
    acked: u64,
    pub(crate) ids: Vec<Id>,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) znodes: BTreeMap<String, ModelZnode>,
    pub(crate) sessions: BTreeMap<SessionId, ModelSession>,
    /// The ended sessions with the zxids of their ends, in this order.
    ended: Vec<(u64, SessionId)>,
    pub(crate) zxid: u64,
    pub(crate) time: u64,
    /// The version that the cluster uses.
    pub(crate) version: u16,
    /// Whether quotas are ignored.
    exempt: bool,
    /// The changes since the list was last cleared.
    pub(crate) changes: Vec<Change>,
    pub(crate) session_changes: Vec<SessionChange>,
}

impl Model {
    /// Sets the initial members of a new cluster.
    pub(crate) fn founded(&mut self, config: &[u8]) {
        let znode = self.znodes.get_mut("/zookeeper/config").expect("it is always there");
        znode.data = config.into();
    }

    pub(crate) fn new() -> Model {
        let reserved = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];
        Model {
            znodes: reserved.map(|path| (path.to_owned(), ModelZnode::default())).into(),
            sessions: BTreeMap::new(),
            ended: Vec::new(),
            zxid: 0,
            time: 0,
            version: 1,
            exempt: false,
            changes: Vec::new(),
            session_changes: Vec::new(),
        }
    }

    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        let below = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        self.znodes
            .range(below.clone()..)
            .map_while(|(other, _)| other.strip_prefix(&below))
            .filter(|rest| !rest.is_empty() && !rest.contains('/'))
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn stat(&self, path: &str) -> Stat {
        let znode = &self.znodes[path];
        Stat {
            cversion: znode.creates + znode.deletes,
            data_length: znode.data.len() as u32,
            num_children: self.children(path).len() as u32,
            ..znode.stat
        }
    }

    /// Whether it is a container that has had children and has none.
    pub(crate) fn is_unused_container(&self, path: &str) -> bool {
        let znode = &self.znodes[path];
        znode.stat.is_container && znode.creates > 0 && self.children(path).is_empty()
    }

    /// The end of its time to live, if it has one and no children.
    pub(crate) fn end(&self, path: &str) -> Option<u64> {
        let stat = &self.znodes[path].stat;
        let end = stat.mtime + stat.ttl?.as_millis() as u64;
        self.children(path).is_empty().then_some(end)
    }

    fn change(&mut self, zxid: u64, kind: ChangeKind, path: &str) {
        let acl = |path: &str| {
            let acl = self.znodes.get(path).and_then(|znode| znode.acl.clone());
            acl.map(|acl| Arc::new(AccessList::stored(acl)))
        };
        let parent_acl = path::parent(path).and_then(acl);
        let (acl, path) = (acl(path), path.into());
        let of_write = self.changes.iter().rev().take_while(|change| change.zxid == zxid);
        let position = of_write.count() as u32;
        self.changes.push(Change { zxid, kind, path, position, acl, parent_acl });
    }

    /// Sets the access list of the change that created a znode to the list that the znode has now.
    fn relist(&mut self, zxid: u64, path: &str) {
        let acl = self.znodes[path].acl.clone().map(|acl| Arc::new(AccessList::stored(acl)));
        let created = |change: &&mut Change| {
            change.zxid == zxid && *change.path == *path && change.kind == ChangeKind::Created
        };
        if let Some(change) = self.changes.iter_mut().rev().find(created) {
            change.acl = acl;
        }
    }

    pub(crate) fn apply(&mut self, term: u64, request: &Request) -> Result<Reply, OpError> {
        let id = request.session;
        match &request.command {
            Command::Open { secret, timeout_ms, base, .. } => match self.sessions.get(&id) {
                Some(known)
                    if known.secret == *secret && known.holders.last() == Some(&request.holder) =>
                {
                    Ok(Reply::Session { timeout_ms: known.timeout_ms })
                }
                Some(_) => Err(OpError::WrongSecret),
                None => {
                    let kept = self.ended.len().saturating_sub(TOMBSTONES_MAX);
                    let (forgotten, kept) = self.ended.split_at(kept);
                    if kept.iter().any(|(_, ended)| *ended == id) {
                        return Err(OpError::SessionExpired);
                    }
                    if forgotten.last().is_some_and(|(zxid, _)| base < zxid) {
                        return Err(OpError::StaleOpen);
                    }
                    let session = ModelSession {
                        secret: *secret,
                        timeout_ms: *timeout_ms,
                        holders: vec![request.holder],
                        results: Vec::new(),
                        acked: 0,
                        ids: Vec::new(),
                    };
                    self.sessions.insert(id, session);
                    self.zxid += 1;
                    self.session_changes.push(SessionChange::Held(id));
                    Ok(Reply::Session { timeout_ms: *timeout_ms })
                }
            },
            Command::Resume { secret, timeout_ms, .. } => {
                let session = self.sessions.get_mut(&id).ok_or(OpError::SessionExpired)?;
                if session.secret != *secret {
                    return Err(OpError::WrongSecret);
                }
                if session.holders.last() == Some(&request.holder) {
                    return Ok(Reply::Session { timeout_ms: session.timeout_ms });
                }
                if session.holders.contains(&request.holder) {
                    return Err(OpError::SessionMoved);
                }
                session.holders.push(request.holder);
                if *timeout_ms > 0 {
                    session.timeout_ms = *timeout_ms;
                }
                session.results.clear();
                session.ids.clear();
                session.acked = 0;
                self.zxid += 1;
                self.session_changes.push(SessionChange::Held(id));
                Ok(Reply::Session { timeout_ms: session.timeout_ms })
            }
            Command::Reap { path } => {
                let over = |at: u64| at <= self.time;
                let reaped = self.znodes.contains_key(path)
                    && (self.is_unused_container(path) || self.end(path).is_some_and(over));
                if !reaped {
                    return Err(OpError::StaleReap);
                }
                self.zxid += 1;
                self.delete(self.zxid, path);
                Ok(Reply::Done)
            }
            Command::RaiseVersion { version } => {
                self.version = self.version.max(*version);
                Ok(Reply::Done)
            }
            Command::Configure { version, seats } => {
                let path = "/zookeeper/config";
                self.check(path, Some(*version))?;
                self.zxid += 1;
                let znode = self.znodes.get_mut(path).expect("it is always there");
                znode.data = Roster::new(seats.clone()).text(self.zxid).into();
                znode.stat.version += 1;
                znode.stat.mzxid = self.zxid;
                znode.stat.mtime = self.time;
                self.change(self.zxid, ChangeKind::DataChanged, path);
                self.recount(self.zxid, path);
                Ok(Reply::Done)
            }
            Command::Expire { term: decided } => {
                let session = self.sessions.get(&id).ok_or(OpError::SessionExpired)?;
                if *decided != term || session.holders.last() != Some(&request.holder) {
                    return Err(OpError::StaleExpiry);
                }
                Ok(self.close(id))
            }
            command => {
                let session = self.sessions.get_mut(&id).ok_or(OpError::SessionExpired)?;
                if session.holders.last() != Some(&request.holder) {
                    return Err(OpError::SessionMoved);
                }
                let last = session.results.len() as u64;
                if request.seq > last + 1 {
                    return Err(OpError::OutOfOrder);
                }
                session.acked = session.acked.max(request.acked.min(last + 1));
                if request.seq <= last {
                    return if request.seq == 0 || request.seq < session.acked {
                        Err(OpError::OutOfOrder)
                    } else {
                        session.results[request.seq as usize - 1].clone()
                    };
                }
                let cluster = self.version;
                let too_new = |op: &Op| matches!(op, Op::Invented { .. }) && cluster < INVENTED;
                let what = "invented".to_owned();
                let unsupported = OpError::Unsupported { what, needs: INVENTED, cluster };
                let result = match command {
                    Command::Op(op) if too_new(op) => Err(unsupported),
                    Command::Multi(ops) if ops.iter().any(too_new) => {
                        let before = ops.iter().take_while(|op| !too_new(op)).count();
                        let error = Box::new(unsupported);
                        Err(OpError::Multi { index: before as u32, error })
                    }
                    Command::Close => return Ok(self.close(id)),
                    Command::Op(op) => {
                        let zxid = self.zxid + 1;
                        self.op(id, zxid, op, std::slice::from_ref(op)).map(|result| match result {
                            OpResult::Created(created) => Reply::Created(created),
                            OpResult::Set(stat) | OpResult::AclSet(stat) => Reply::Set(stat),
                            OpResult::Deleted | OpResult::Checked => Reply::Done,
                            other @ (OpResult::Taken { .. } | OpResult::Added { .. }) => {
                                Reply::Multi(vec![other])
                            }
                        })
                    }
                    Command::Multi(ops) => self.multi(id, ops),
                    Command::Authenticate { ids } => {
                        for id in ids {
                            if !session.ids.contains(id) {
                                session.ids.push(id.clone());
                            }
                        }
                        Ok(Reply::Ids(session.ids.clone()))
                    }
                    _ => unreachable!(),
                };
                let session = self.sessions.get_mut(&id).expect("it was there just now");
                session.results.push(result.clone());
                result
            }
        }
    }

    fn close(&mut self, id: SessionId) -> Reply {
        self.zxid += 1;
        let owned = |(_, znode): &(&String, &ModelZnode)| znode.stat.ephemeral_owner == Some(id);
        let owned: Vec<String> =
            self.znodes.iter().filter(owned).map(|(path, _)| path.clone()).collect();
        for path in owned {
            self.delete(self.zxid, &path);
        }
        let holder = self.sessions.remove(&id).and_then(|session| session.holders.last().copied());
        self.ended.push((self.zxid, id));
        self.session_changes.push(SessionChange::Gone(id, holder.unwrap_or(0)));
        Reply::Done
    }

    fn multi(&mut self, id: SessionId, ops: &[Op]) -> Result<Reply, OpError> {
        // Operations change nothing else.
        let before = (self.znodes.clone(), self.zxid, self.changes.len());
        let zxid = self.zxid + 1;
        let mut results = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let done = self.op(id, zxid, op, &ops[..=index]).map_err(|mut error| {
                if let OpError::TooLarge { size, .. } = &mut error {
                    *size = data_bytes(ops);
                }
                error
            });
            results.extend(done.as_ref().ok().cloned());
            match done.and_then(|_| results_fit(&results, op.path())) {
                Ok(()) => {}
                Err(error) => {
                    (self.znodes, self.zxid) = (before.0, before.1);
                    self.changes.truncate(before.2);
                    return Err(OpError::Multi { index: index as u32, error: Box::new(error) });
                }
            }
        }
        Ok(Reply::Multi(results))
    }

    fn delete(&mut self, zxid: u64, path: &str) {
        self.change(zxid, ChangeKind::Deleted, path);
        self.znodes.remove(path);
        let parent = path::parent(path).expect("the root is never deleted");
        let parent = self.znodes.get_mut(parent).expect("a parent exists");
        parent.deletes += 1;
        parent.stat.pzxid = zxid;
        self.recount(zxid, path);
    }
}
