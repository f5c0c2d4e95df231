//! A model of the machine that is slow, plain and obviously right: one map of
//! paths, everything else counted or copied each time it is needed. What the
//! machine does is compared with it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::DATA_BYTES_MAX;
use super::command::{Change, ChangeKind, Command, Op, OpError, Reply, Request, SessionChange};
use crate::path;
use crate::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat};

#[derive(Clone, Debug, Default)]
pub(crate) struct ModelZnode {
    pub(crate) data: Vec<u8>,
    /// Of the stat only what is not counted: zxids, times, version and owner.
    pub(crate) stat: Stat,
    creates: u64,
    deletes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelSession {
    secret: [u8; 16],
    timeout_ms: u32,
    pub(crate) holders: Vec<u64>,
    results: Vec<Result<Reply, OpError>>,
    acked: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) znodes: BTreeMap<String, ModelZnode>,
    pub(crate) sessions: BTreeMap<SessionId, ModelSession>,
    ended: BTreeSet<SessionId>,
    pub(crate) zxid: u64,
    pub(crate) time: u64,
    /// What the cluster acts by.
    pub(crate) version: u16,
    /// What has changed since whoever looks last cleared it.
    pub(crate) changes: Vec<Change>,
    pub(crate) session_changes: Vec<SessionChange>,
}

impl Model {
    pub(crate) fn new() -> Model {
        let reserved = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];
        Model {
            znodes: reserved.map(|path| (path.to_owned(), ModelZnode::default())).into(),
            sessions: BTreeMap::new(),
            ended: BTreeSet::new(),
            zxid: 0,
            time: 0,
            version: 1,
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

    /// When its time to live is over, if it has one and no children.
    pub(crate) fn end(&self, path: &str) -> Option<u64> {
        let stat = &self.znodes[path].stat;
        let end = stat.mtime + stat.ttl?.as_millis() as u64;
        self.children(path).is_empty().then_some(end)
    }

    fn change(&mut self, zxid: u64, kind: ChangeKind, path: &str) {
        let path = path.to_owned();
        self.changes.push(Change { zxid, kind, path });
    }

    pub(crate) fn apply(&mut self, term: u64, request: &Request) -> Result<Reply, OpError> {
        let id = request.session;
        match &request.command {
            Command::Open { .. } if self.ended.contains(&id) => Err(OpError::SessionExpired),
            Command::Open { secret, timeout_ms, .. } => match self.sessions.get(&id) {
                Some(known)
                    if known.secret == *secret && known.holders.last() == Some(&request.holder) =>
                {
                    Ok(Reply::Session { timeout_ms: known.timeout_ms })
                }
                Some(_) => Err(OpError::WrongSecret),
                None => {
                    let session = ModelSession {
                        secret: *secret,
                        timeout_ms: *timeout_ms,
                        holders: vec![request.holder],
                        results: Vec::new(),
                        acked: 0,
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
                session.timeout_ms = *timeout_ms;
                session.results.clear();
                session.acked = 0;
                self.zxid += 1;
                self.session_changes.push(SessionChange::Held(id));
                Ok(Reply::Session { timeout_ms: *timeout_ms })
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
                if *version > self.version {
                    self.version = *version;
                }
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
                let version = self.version;
                let too_new = |op: &Op| matches!(op, Op::DeleteTree { .. }) && version < 2;
                let unsupported = OpError::Unsupported {
                    what: "delete_recursive".to_owned(),
                    needs: 2,
                    cluster: version,
                };
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
                            OpResult::Set(stat) => Reply::Set(stat),
                            OpResult::Deleted | OpResult::Checked => Reply::Done,
                        })
                    }
                    Command::Multi(ops) => self.multi(id, ops),
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
        self.ended.insert(id);
        self.session_changes.push(SessionChange::Gone(id, holder.unwrap_or(0)));
        Reply::Done
    }

    fn multi(&mut self, id: SessionId, ops: &[Op]) -> Result<Reply, OpError> {
        // Operations touch nothing else.
        let before = (self.znodes.clone(), self.zxid, self.changes.len());
        let zxid = self.zxid + 1;
        let mut results = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            match self.op(id, zxid, op, &ops[..=index]) {
                Ok(result) => results.push(result),
                Err(mut error) => {
                    (self.znodes, self.zxid) = (before.0, before.1);
                    self.changes.truncate(before.2);
                    if let OpError::TooLarge { size, .. } = &mut error {
                        *size = data_bytes(ops);
                    }
                    return Err(OpError::Multi { index: index as u32, error: Box::new(error) });
                }
            }
        }
        Ok(Reply::Multi(results))
    }

    fn delete(&mut self, zxid: u64, path: &str) {
        self.znodes.remove(path);
        let parent = path::parent(path).expect("the root is never deleted");
        let parent = self.znodes.get_mut(parent).expect("a parent exists");
        parent.deletes += 1;
        parent.stat.pzxid = zxid;
        self.change(zxid, ChangeKind::Deleted, path);
    }

    fn op(
        &mut self,
        id: SessionId,
        zxid: u64,
        op: &Op,
        so_far: &[Op],
    ) -> Result<OpResult, OpError> {
        let path = op.path().to_owned();
        let valid = match op {
            Op::Create { mode, .. } if mode.is_sequential() => path::validate_sequential(&path),
            _ => path::validate(&path),
        };
        if let Err(crate::error::Error::InvalidPath { path, reason }) = valid {
            let reason = reason.into_owned();
            return Err(OpError::InvalidPath { path, reason });
        }
        let size = data_bytes(so_far);
        let has_data = matches!(op, Op::Create { .. } | Op::Set { .. });
        if has_data && size > DATA_BYTES_MAX as u64 {
            let limit = DATA_BYTES_MAX as u64;
            return Err(OpError::TooLarge { path, size, limit });
        }
        match op {
            Op::Create { data, mode, .. } => {
                let ttl = mode.ttl().map(|ttl| Duration::from_millis(ttl.as_millis() as u64));
                if let (Some(given), Some(ttl)) = (mode.ttl(), ttl)
                    && (ttl.is_zero() || given > Duration::from_millis(1_099_511_627_775))
                {
                    return Err(OpError::InvalidTtl { path, ttl: given });
                }
                let parent = match path.rsplit_once('/') {
                    _ if path == "/" && !mode.is_sequential() => {
                        return Err(OpError::NodeExists { path });
                    }
                    Some(("", _)) | None => "/".to_owned(),
                    Some((parent, _)) => parent.to_owned(),
                };
                let Some(znode) = self.znodes.get(&parent) else {
                    return Err(OpError::NoNode { path: parent });
                };
                if parent == "/zookeeper/config" {
                    return Err(OpError::Reserved { path: parent });
                }
                let path = if mode.is_sequential() {
                    format!("{path}{:010}", znode.creates)
                } else {
                    path
                };
                if self.znodes.contains_key(&path) {
                    return Err(OpError::NodeExists { path });
                }
                if znode.stat.ephemeral_owner.is_some() {
                    return Err(OpError::NoChildrenForEphemerals { path: parent });
                }
                let parent = self.znodes.get_mut(&parent).expect("it was there just now");
                parent.creates += 1;
                parent.stat.pzxid = zxid;
                let stat = Stat {
                    czxid: zxid,
                    mzxid: zxid,
                    pzxid: zxid,
                    ctime: self.time,
                    mtime: self.time,
                    ephemeral_owner: mode.is_ephemeral().then_some(id),
                    is_container: *mode == CreateMode::Container,
                    ttl,
                    ..Stat::default()
                };
                let znode = ModelZnode { data: data.to_vec(), stat, ..ModelZnode::default() };
                self.znodes.insert(path.clone(), znode);
                self.zxid = zxid;
                self.change(zxid, ChangeKind::Created, &path);
                let stat = self.stat(&path);
                Ok(OpResult::Created(Created { path, stat }))
            }
            Op::Set { .. } if path == "/zookeeper/config" => Err(OpError::Reserved { path }),
            Op::Set { data, version, .. } => {
                self.check(&path, *version)?;
                let znode = self.znodes.get_mut(&path).expect("it was there just now");
                znode.data = data.to_vec();
                znode.stat.version += 1;
                znode.stat.mzxid = zxid;
                znode.stat.mtime = self.time;
                self.zxid = zxid;
                self.change(zxid, ChangeKind::DataChanged, &path);
                Ok(OpResult::Set(self.stat(&path)))
            }
            Op::Delete { version, .. } => {
                if Model::new().znodes.contains_key(&path) {
                    return Err(OpError::Reserved { path });
                }
                self.check(&path, *version)?;
                if !self.children(&path).is_empty() {
                    return Err(OpError::NotEmpty { path });
                }
                self.zxid = zxid;
                self.delete(zxid, &path);
                Ok(OpResult::Deleted)
            }
            Op::DeleteTree { .. } => {
                if Model::new().znodes.contains_key(&path) {
                    return Err(OpError::Reserved { path });
                }
                if !self.znodes.contains_key(&path) {
                    return Err(OpError::NoNode { path });
                }
                self.zxid = zxid;
                self.delete_tree(zxid, &path);
                Ok(OpResult::Deleted)
            }
            Op::Check { condition, .. } => {
                let stat = self.znodes.contains_key(&path).then(|| self.stat(&path));
                let is = |number: Option<u64>, expected: u64| number == Some(expected);
                let holds = match *condition {
                    Condition::Version(version) => {
                        self.check(&path, Some(version))?;
                        true
                    }
                    Condition::Absent if stat.is_some() => {
                        return Err(OpError::NodeExists { path });
                    }
                    Condition::Absent => true,
                    _ if stat.is_none() => return Err(OpError::NoNode { path }),
                    Condition::Exists => true,
                    Condition::Czxid(n) => is(stat.map(|stat| stat.czxid), n),
                    Condition::Mzxid(n) => is(stat.map(|stat| stat.mzxid), n),
                    Condition::Pzxid(n) => is(stat.map(|stat| stat.pzxid), n),
                    Condition::Cversion(n) => is(stat.map(|stat| stat.cversion), n),
                    Condition::Aversion(n) => is(stat.map(|stat| stat.aversion), n),
                };
                match holds {
                    true => Ok(OpResult::Checked),
                    false => Err(OpError::Unmet { path, condition: *condition }),
                }
            }
        }
    }

    fn delete_tree(&mut self, zxid: u64, path: &str) {
        let mut children = self.children(path);
        children.sort();
        for child in children.iter().rev() {
            self.delete_tree(zxid, &format!("{path}/{child}"));
        }
        self.delete(zxid, path);
    }

    fn check(&self, path: &str, version: Option<u64>) -> Result<(), OpError> {
        let path = path.to_owned();
        match (self.znodes.get(&path), version) {
            (None, _) => Err(OpError::NoNode { path }),
            (Some(znode), Some(expected)) if znode.stat.version != expected => {
                Err(OpError::BadVersion { path, expected, actual: znode.stat.version })
            }
            _ => Ok(()),
        }
    }
}

fn data_bytes(ops: &[Op]) -> u64 {
    ops.iter()
        .map(|op| match op {
            Op::Create { data, .. } | Op::Set { data, .. } => data.len() as u64,
            _ => 0,
        })
        .sum()
}
