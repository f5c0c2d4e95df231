//! A simple and slow model of the machine, to compare the machine with: one map of
//! paths. Everything else is counted or copied each time it is needed.

mod queue;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::DATA_BYTES_MAX;
use super::command::{Change, ChangeKind, Command, Op, OpError, Reply, Request, SessionChange};
use crate::machine::data::Data;
use crate::machine::tombstones::TOMBSTONES_MAX;
use crate::planted::{Bug, planted};
use crate::types::acl::{AccessList, Acl, Id, Permissions};
use crate::types::counter::CounterForm;
use crate::types::membership::Roster;
use crate::types::path;
use crate::types::quota::Usage;
use crate::types::version::INVENTED;
use crate::types::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat};

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
        let (acl, path) = (acl(path), path.to_owned());
        let of_write = self.changes.iter().rev().take_while(|change| change.zxid == zxid);
        let position = of_write.count() as u32;
        self.changes.push(Change { zxid, kind, path, position, acl, parent_acl });
    }

    /// Sets the access list of the change that created a znode to the list that the znode has now.
    fn relist(&mut self, zxid: u64, path: &str) {
        let acl = self.znodes[path].acl.clone().map(|acl| Arc::new(AccessList::stored(acl)));
        let created = |change: &&mut Change| {
            change.zxid == zxid && change.path == path && change.kind == ChangeKind::Created
        };
        if let Some(change) = self.changes.iter_mut().rev().find(created) {
            change.acl = acl;
        }
    }

    /// Whether a session has any of these permissions for a znode, or the znode does not exist.
    pub(crate) fn may(&self, id: SessionId, path: &str, wanted: Permissions) -> bool {
        let Some(acl) = self.znodes.get(path).and_then(|znode| znode.acl.as_ref()) else {
            return true;
        };
        let ids = self.sessions.get(&id).map_or(&[][..], |session| &session.ids);
        acl.iter().any(|entry| {
            let gives = entry.permissions.bits() & wanted.bits() != 0;
            gives && (entry.id == Id::anyone() || ids.contains(&entry.id))
        })
    }

    fn need(&self, id: SessionId, path: &str, permission: Permissions) -> Result<(), OpError> {
        if self.may(id, path, permission) {
            return Ok(());
        }
        Err(OpError::NoAuth { path: path.to_owned(), permission })
    }

    /// The path itself and the paths above it whose usage is counted.
    fn counted_for(&self, path: &str) -> Vec<String> {
        let mut above = Vec::new();
        let mut at = Some(path);
        while let Some(path) = at {
            let own = if path == "/" { "" } else { path };
            if self.znodes.contains_key(&format!("/zookeeper/quota{own}/zookeeper_stats")) {
                above.push(own.to_owned());
            }
            at = path::parent(path);
        }
        above.retain(|_| path != "/zookeeper" && !path.starts_with("/zookeeper/"));
        above
    }

    /// The znodes that show the usage of a path.
    pub(crate) fn usage_znodes(&self) -> Vec<String> {
        let below = self.znodes.range("/zookeeper/quota".to_owned()..);
        let paths = below.map(|(path, _)| path).take_while(|path| path.starts_with("/zookeeper/"));
        paths.filter(|path| shows_usage(path)).cloned().collect()
    }

    /// How many znodes and bytes are at a path (the root's is empty) and below it.
    fn usage(&self, of: &str) -> (u64, u64) {
        let inside_of = format!("{of}/");
        let below = self.znodes.iter().filter(|(path, _)| {
            let path = path.as_str();
            let inside = path == of || path.starts_with(&inside_of);
            inside && path != "/zookeeper" && !path.starts_with("/zookeeper/")
        });
        below
            .fold((0, 0), |(count, bytes), (_, znode)| (count + 1, bytes + znode.data.len() as u64))
    }

    /// The limits of a quota: soft for count and bytes, then hard for count and bytes.
    fn limits(&self, of: &str) -> [Option<u64>; 4] {
        let znode = self.znodes.get(&format!("/zookeeper/quota{of}/zookeeper_limits"));
        let text = znode.map(|znode| String::from_utf8_lossy(&znode.data)).unwrap_or_default();
        ["count=", "bytes=", "countHardLimit=", "byteHardLimit="].map(|key| {
            let parts = text.split([',', ';']);
            let number = parts.filter_map(|part| part.strip_prefix(key)).next_back()?;
            number.trim_end_matches('=').parse().ok()
        })
    }

    /// Fails if a write that adds so much would exceed a hard limit.
    fn afford(&self, path: &str, count: u64, bytes: u64, freed: u64) -> Result<(), OpError> {
        for of in self.counted_for(path).into_iter().filter(|_| !self.exempt) {
            let [.., count_limit, bytes_limit] = self.limits(&of);
            let usage = self.usage(&of);
            let (count_needed, bytes_needed) = (usage.0 + count, usage.1 + bytes - freed);
            let path = if of.is_empty() { "/".to_owned() } else { of };
            if let Some(limit) = count_limit.filter(|limit| count > 0 && count_needed > *limit) {
                let needed = count_needed;
                return Err(OpError::QuotaExceeded { path, bytes: false, limit, needed });
            }
            if let Some(limit) = bytes_limit.filter(|limit| bytes > freed && bytes_needed > *limit)
            {
                let needed = bytes_needed;
                return Err(OpError::QuotaExceeded { path, bytes: true, limit, needed });
            }
        }
        Ok(())
    }

    /// Updates the usage znodes after a change of this path.
    fn recount(&mut self, zxid: u64, path: &str) {
        for of in self.counted_for(path) {
            let stats = format!("/zookeeper/quota{of}/zookeeper_stats");
            let [count, bytes, count_hard, bytes_hard] = self.limits(&of);
            let over = |(used, used_bytes): (u64, u64)| {
                let count_over = count_hard.is_none() && count.is_some_and(|limit| used > limit);
                let bytes_over =
                    bytes_hard.is_none() && bytes.is_some_and(|limit| used_bytes > limit);
                (count_over, bytes_over)
            };
            let (count, bytes) = self.usage(&of);
            let time = self.time;
            let znode = self.znodes.get_mut(&stats).expect("it is counted by this znode");
            let before = String::from_utf8_lossy(&znode.data).into_owned();
            let (count_before, bytes_before) =
                before.strip_prefix("count=").and_then(|rest| rest.split_once(",bytes=")).unwrap();
            let before = (count_before.parse().unwrap(), bytes_before.parse().unwrap());
            znode.data = format!("count={count},bytes={bytes}").into();
            if over(before) != over((count, bytes)) {
                znode.stat.version += 1;
                znode.stat.mzxid = zxid;
                znode.stat.mtime = time;
                self.change(zxid, ChangeKind::DataChanged, &stats);
            }
        }
    }

    /// The access list that a request asks for; `None` if everybody may do everything.
    fn requested_acl(
        &self,
        id: SessionId,
        path: &str,
        acl: &[Acl],
    ) -> Result<Option<Vec<Acl>>, OpError> {
        let ids = &self.sessions[&id].ids;
        let mut list: Vec<Acl> = Vec::new();
        let mut add = |permissions, id: &Id| {
            let entry = Acl::new(permissions, id.clone());
            if !list.contains(&entry) {
                list.push(entry);
            }
        };
        let mut valid = !acl.is_empty();
        for entry in acl {
            match entry.id.scheme.as_str() {
                "auth" => {
                    ids.iter().for_each(|id| add(entry.permissions, id));
                    valid &= !ids.is_empty();
                }
                "world" => {
                    add(entry.permissions, &entry.id);
                    valid &= entry.id.id == "anyone";
                }
                "digest" => {
                    add(entry.permissions, &entry.id);
                    valid &= entry.id.id.split(':').count() == 2;
                    valid &= !entry.id.id.contains(char::is_control);
                }
                scheme => unreachable!("the model does not support the scheme {scheme}"),
            }
        }
        if !valid {
            // The text of the reason is for people; the model uses the machine's.
            let reason = AccessList::requested(acl, ids).err().unwrap_or_default();
            return Err(OpError::InvalidAcl { path: path.to_owned(), reason });
        }
        Ok(Some(list).filter(|list| *list != Acl::open()))
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
        self.change(zxid, ChangeKind::Deleted, path);
        self.znodes.remove(path);
        let parent = path::parent(path).expect("the root is never deleted");
        let parent = self.znodes.get_mut(parent).expect("a parent exists");
        parent.deletes += 1;
        parent.stat.pzxid = zxid;
        self.recount(zxid, path);
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
            Op::Create { mode, .. }
            | Op::CreateWithAcl { mode, .. }
            | Op::CreateOrSet { mode, .. }
                if mode.is_sequential() =>
            {
                path::validate_sequential(&path)
            }
            _ => path::validate(&path),
        };
        if let Err(crate::types::error::Error::InvalidPath { path, reason }) = valid {
            let reason = reason.into_owned();
            return Err(OpError::InvalidPath { path, reason });
        }
        let size = data_bytes(so_far);
        let has_data = matches!(
            op,
            Op::Create { .. }
                | Op::Set { .. }
                | Op::CreateWithAcl { .. }
                | Op::SetAcl { .. }
                | Op::CreateOrSet { .. }
                | Op::TakeOver { .. }
                | Op::Put { .. }
                | Op::Invented { .. }
        );
        if has_data && size > DATA_BYTES_MAX as u64 {
            let limit = DATA_BYTES_MAX as u64;
            return Err(OpError::TooLarge { path, size, limit });
        }
        match op {
            Op::CreateOrSet { data, mode, .. } => {
                let (data, mode) = (data.clone(), *mode);
                let op = if self.znodes.contains_key(&path) && !mode.is_sequential() {
                    Op::Set { path, data, version: None }
                } else {
                    Op::Create { path, data, mode }
                };
                self.op(id, zxid, &op, so_far)
            }
            Op::Put { data, order, .. } => {
                self.or_nothing(|model| model.put((id, zxid), &path, data, order))
            }
            Op::Take { claims, .. } => {
                self.or_nothing(|model| model.take((id, zxid), &path, *claims))
            }
            Op::Add { number, form, within, .. } => {
                let Some(znode) = self.znodes.get(&path) else {
                    return Err(OpError::NoNode { path });
                };
                let data = znode.data.to_vec();
                self.need(id, &path, Permissions::READ)?;
                let now = within.map(|_| i128::from(self.time) * 1_000_000);
                let (before, sum) = sum_of(&data, *number, *form, now);
                let Some((after, sum)) = sum else {
                    return Err(OpError::NotAdded { path, before });
                };
                if let (Some(limit), Some(now)) = (*within, now) {
                    let needed = (i128::from(after) - now).max(0);
                    if needed > i128::from(limit) {
                        return Err(OpError::TooLate { path, limit, needed: needed as u64 });
                    }
                }
                let is_lost = planted(Bug::AdditionLost) && after % 8 == 0;
                let data = if is_lost { data.into() } else { sum.into() };
                match self.op(id, zxid, &Op::Set { path, data, version: None }, &[])? {
                    OpResult::Set(stat) => Ok(OpResult::Added { after, stat }),
                    _ => unreachable!(),
                }
            }
            Op::TakeOver { data, from, .. } => {
                let data = data.clone();
                let owner = self.znodes.get(&path).map(|znode| znode.stat.ephemeral_owner);
                let op = match owner {
                    None => Op::Create { path, data, mode: CreateMode::Ephemeral },
                    Some(owner) if owner == Some(id) => Op::Set { path, data, version: None },
                    Some(owner) if owner == Some(*from) => {
                        let parent = path::parent(&path).unwrap_or("/").to_owned();
                        self.need(id, &parent, Permissions::DELETE)?;
                        self.need(id, &parent, Permissions::CREATE)?;
                        let freed = self.znodes[&path].data.len() as u64;
                        self.afford(&path, 0, data.len() as u64, freed)?;
                        let acl = self.znodes[&path].acl.clone();
                        self.zxid = zxid;
                        self.delete(zxid, &path);
                        let create =
                            Op::Create { path: path.clone(), data, mode: CreateMode::Ephemeral };
                        // The delete has just freed what the create needs.
                        self.exempt = true;
                        let created = self.op(id, zxid, &create, so_far);
                        self.exempt = false;
                        if let Some(znode) = self.znodes.get_mut(&path) {
                            znode.acl = acl;
                            // The change was recorded before the access list was set.
                            self.relist(zxid, &path);
                        }
                        return created;
                    }
                    Some(_) => return Err(OpError::NodeExists { path }),
                };
                self.op(id, zxid, &op, so_far)
            }
            Op::Create { data, mode, .. } | Op::CreateWithAcl { data, mode, .. } => {
                let ttl = mode.ttl().map(|ttl| Duration::from_millis(ttl.as_millis() as u64));
                if let (Some(given), Some(ttl)) = (mode.ttl(), ttl)
                    && (ttl.is_zero() || given > Duration::from_millis(1_099_511_627_775))
                {
                    return Err(OpError::InvalidTtl { path, ttl: given });
                }
                let acl = match op {
                    Op::CreateWithAcl { acl, .. } => self.requested_acl(id, &path, acl)?,
                    _ => None,
                };
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
                self.need(id, &parent, Permissions::CREATE)?;
                if self.znodes.contains_key(&path) {
                    return Err(OpError::NodeExists { path });
                }
                if znode.stat.ephemeral_owner.is_some() {
                    return Err(OpError::NoChildrenForEphemerals { path: parent });
                }
                self.afford(&path, 1, data.len() as u64, 0)?;
                let data = if shows_usage(&path) {
                    let of = path.len() - "/zookeeper_stats".len();
                    let (count, bytes) = self.usage(&path["/zookeeper/quota".len()..of]);
                    format!("count={count},bytes={bytes}").into()
                } else {
                    data.clone()
                };
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
                let znode = ModelZnode { data, stat, acl, ..ModelZnode::default() };
                self.znodes.insert(path.clone(), znode);
                self.zxid = zxid;
                self.change(zxid, ChangeKind::Created, &path);
                self.recount(zxid, &path);
                let stat = self.stat(&path);
                Ok(OpResult::Created(Created { path, stat }))
            }
            Op::Invented { data, .. } => {
                self.op(id, zxid, &Op::Set { path, data: data.clone(), version: None }, so_far)
            }
            Op::Set { .. } if path == "/zookeeper/config" || shows_usage(&path) => {
                Err(OpError::Reserved { path })
            }
            Op::SetAcl { .. } if path == "/zookeeper/config" => Err(OpError::Reserved { path }),
            Op::SetAcl { acl, version, .. } => {
                let acl = self.requested_acl(id, &path, acl)?;
                self.need(id, &path, Permissions::ADMIN)?;
                let Some(znode) = self.znodes.get_mut(&path) else {
                    return Err(OpError::NoNode { path });
                };
                let actual = znode.stat.aversion;
                if let Some(expected) = *version
                    && expected != actual
                {
                    return Err(OpError::BadVersion { path, expected, actual });
                }
                znode.stat.aversion += 1;
                znode.acl = acl;
                self.zxid = zxid;
                Ok(OpResult::AclSet(self.stat(&path)))
            }
            Op::Set { data, version, .. } => {
                self.need(id, &path, Permissions::WRITE)?;
                if let Some(znode) = self.znodes.get(&path) {
                    self.afford(&path, 0, data.len() as u64, znode.data.len() as u64)?;
                }
                self.check(&path, *version)?;
                let znode = self.znodes.get_mut(&path).expect("it was there just now");
                znode.data = data.clone();
                znode.stat.version += 1;
                znode.stat.mzxid = zxid;
                znode.stat.mtime = self.time;
                self.zxid = zxid;
                self.change(zxid, ChangeKind::DataChanged, &path);
                self.recount(zxid, &path);
                Ok(OpResult::Set(self.stat(&path)))
            }
            Op::Delete { version, .. } => {
                if Model::new().znodes.contains_key(&path) {
                    return Err(OpError::Reserved { path });
                }
                let parent = path::parent(&path).unwrap_or("/");
                self.need(id, parent, Permissions::DELETE)?;
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
                let parent = path::parent(&path).unwrap_or("/");
                self.need(id, parent, Permissions::DELETE)?;
                for below in self.znodes.keys().filter(|below| path::is_below(below, &path)) {
                    if !self.children(below).is_empty() {
                        self.need(id, below, Permissions::DELETE)?;
                    }
                }
                if !self.znodes.contains_key(&path) {
                    return Err(OpError::NoNode { path });
                }
                self.zxid = zxid;
                self.delete_tree(zxid, &path);
                Ok(OpResult::Deleted)
            }
            Op::Check { condition, .. } => {
                self.need(id, &path, Permissions::READ)?;
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
                    Condition::Usage { znodes, bytes } => {
                        let data = &self.znodes.get(&path).expect("it has a stat").data;
                        Usage::parse(data) == Usage { znodes, bytes }
                    }
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

/// Whether a znode shows the usage of the path of a quota.
fn shows_usage(path: &str) -> bool {
    let of = path.strip_prefix("/zookeeper/quota");
    let of = of.and_then(|path| path.strip_suffix("/zookeeper_stats"));
    let is_path = |of: &str| of.is_empty() || of.starts_with('/');
    of.is_some_and(|of| is_path(of) && of != "/zookeeper" && !of.starts_with("/zookeeper/"))
}

/// The number that data show, and its sum with another one, with the data that show that. A time counts as `now` if
/// that is later.
fn sum_of(
    data: &[u8],
    number: i64,
    form: CounterForm,
    now: Option<i128>,
) -> (Option<i64>, Option<(i64, Vec<u8>)>) {
    let (bytes, lowest, highest) = match form {
        CounterForm::Int => (4, i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (8, i64::MIN, i64::MAX),
    };
    let before = match (data, form) {
        ([], _) => Some(0),
        (_, CounterForm::Text) => {
            String::from_utf8(data.to_vec()).ok().and_then(|text| text.parse().ok())
        }
        _ if data.len() != bytes => None,
        ([first, ..], _) => {
            let sign = if first & 0x80 == 0 { 0 } else { -1 };
            Some(data.iter().fold(sign, |number, byte| number << 8 | i64::from(*byte)))
        }
    };
    let from = before.map(|before| i128::from(before).max(now.unwrap_or(i128::MIN)));
    let sum = from.map(|from| from + i128::from(number));
    let range = i128::from(lowest)..=i128::from(highest);
    let sum = sum.filter(|sum| range.contains(sum)).map(|sum| match form {
        CounterForm::Text => (sum as i64, sum.to_string().into_bytes()),
        _ => (sum as i64, sum.to_be_bytes()[16 - bytes..].to_vec()),
    });
    (before, sum)
}

fn data_bytes(ops: &[Op]) -> u64 {
    let acl_bytes =
        |acl: &[Acl]| acl.iter().map(|entry| entry.id.to_string().len() as u64).sum::<u64>();
    ops.iter()
        .map(|op| match op {
            Op::Create { data, .. }
            | Op::Set { data, .. }
            | Op::CreateOrSet { data, .. }
            | Op::TakeOver { data, .. }
            | Op::Put { data, .. }
            | Op::Invented { data, .. } => data.len() as u64,
            Op::CreateWithAcl { data, acl, .. } => data.len() as u64 + acl_bytes(acl),
            Op::SetAcl { acl, .. } => acl_bytes(acl),
            _ => 0,
        })
        .sum()
}
