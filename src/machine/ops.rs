//! The operations on znodes, with ZooKeeper's semantics.
//!
//! The errors of each operation, in the order in which they are checked:
//!
//! | operation | errors |
//! | --- | --- |
//! | create | `InvalidPath`, `TooLarge`, `InvalidTtl`, `InvalidAcl`, `NoNode` (the parent), `Reserved` (the parent), `NoAuth` (CREATE on the parent), `NodeExists`, `NoChildrenForEphemerals`, `QuotaExceeded` |
//! | set | `InvalidPath`, `TooLarge`, `Reserved`, `NoNode`, `NoAuth` (WRITE), `QuotaExceeded`, `BadVersion` |
//! | set the ACL | `InvalidPath`, `Reserved`, `TooLarge`, `InvalidAcl`, `NoNode`, `NoAuth` (ADMIN), `BadVersion` |
//! | delete | `InvalidPath`, `Reserved`, `NoAuth` (DELETE on the parent), `NoNode`, `BadVersion`, `NotEmpty` |
//! | delete the tree | `InvalidPath`, `Reserved`, `NoAuth` (DELETE on the parent), `NoNode`, `NoAuth` (DELETE on all that have children) |
//! | create or set | as set if the znode is there, else as create |
//! | take over | `InvalidPath`, `TooLarge`; as set if it is the session's own, as create if it is missing; else `NodeExists` unless it is the other's ephemeral, `NoAuth` (DELETE, then CREATE, on the parent), `QuotaExceeded` |
//! | put | `InvalidPath`, `TooLarge`, `NoNode`, `QueueFull`; as create |
//! | take | `InvalidPath`, `NoNode`, `NoAuth` (DELETE on the items), `NoNode` (nothing is there), `NoAuth` (READ); as create for the claim, but for the quota |
//! | add | `InvalidPath`, `NoNode`, `NoAuth` (READ), `NotAdded`, `TooLate`; as set |
//! | check | `InvalidPath`, `NoNode`, `NoAuth` (READ), `NodeExists`, `BadVersion`, `Unmet` |
//!
//! `Reserved` replaces two errors of ZooKeeper: `NoAuth` for a write to `/zookeeper/config` or to
//! the znodes with the usage of a quota's path, and `BadArguments` for the deletion of a znode that
//! always exists.
//!
//! The path is checked first, as in ZooKeeper's client, which checks it before it sends anything.
//!
//! An operation that fails changes nothing. Changes to the ephemerals of sessions are only noted
//! here; the machine applies them once the whole request has succeeded.

use std::sync::Arc;

use super::command::{Change, ChangeKind, Op, OpError};
use super::data::Data;
use super::tree::{CONFIG, Fields, RESERVED, Tree, Znode, ZnodeKind};
use crate::types::acl::{AccessList, Acl, Id, Permissions};
use crate::types::counter::CounterForm;
use crate::types::error::Error;
use crate::types::quota::{Quota, Usage};
use crate::types::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat, Zxid};
use crate::types::{acl, path, quota};

/// The most bytes of data and of access lists that one request may carry, all operations of a
/// `multi` together.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;

/// The most bytes of the results of one request. They are kept with its session until they are acknowledged, and go to
/// its client in one message and to a member that lags in one piece of the state.
pub(crate) const RESULTS_BYTES_MAX: usize = 3 << 20;
const NANOS_PER_MS: u64 = 1_000_000;

/// A write in progress: its session, its time, and its changes so far.
#[derive(Debug)]
pub(super) struct WriteInProgress {
    pub(super) session: SessionId,
    pub(super) zxid: Zxid,
    pub(super) time: u64,
    /// The ids of its session; `None` without one.
    pub(super) ids: Option<Arc<Vec<Id>>>,
    pub(super) changes: Vec<Change>,
    /// The znodes that changed in a way that no watch reports: their access lists, or their usage.
    pub(super) unwatched: Vec<String>,
    pub(super) ephemerals: Vec<EphemeralChange>,
    /// See [`Op::content_bytes`]: of the whole request, and of its operations so far.
    content_bytes: u64,
    content_bytes_so_far: u64,
}

/// An ephemeral that its owner has gained or lost.
#[derive(Debug)]
pub(super) struct EphemeralChange {
    pub(super) owner: SessionId,
    pub(super) path: Arc<str>,
    pub(super) exists: bool,
}

impl WriteInProgress {
    pub(super) fn new(session: SessionId, zxid: Zxid, time: u64, ops: &[Op]) -> WriteInProgress {
        WriteInProgress {
            session,
            zxid,
            time,
            ids: None,
            changes: Vec::new(),
            unwatched: Vec::new(),
            ephemerals: Vec::new(),
            content_bytes: ops.iter().map(|op| op.content_bytes() as u64).sum(),
            content_bytes_so_far: 0,
        }
    }

    /// Runs one operation. If it fails, nothing has changed.
    pub(super) fn execute(&mut self, tree: &mut Tree, op: &Op) -> Result<OpResult, OpError> {
        match op {
            Op::Create { path, data, mode } | Op::CreateWithAcl { path, data, mode, .. } => {
                path::validate_new(path, *mode).map_err(invalid_path)?;
                self.check_size(op)?;
                let kind = self.kind(path, *mode)?;
                let acl = match op {
                    Op::CreateWithAcl { acl, .. } => self.requested_acl(path, acl)?,
                    _ => None,
                };
                if !mode.is_sequential() {
                    return self.create(tree, path, data, kind, acl);
                }
                // The parent is looked up before the number is known, since the name may consist of
                // the number alone.
                let znode = find(tree, path::parent(path).unwrap_or("/"))?;
                let path = Arc::from(format!("{path}{:010}", znode.fields().creates));
                // With a number of more than ten digits, the path may be too long.
                path::validate(&path).map_err(invalid_path)?;
                self.create(tree, &path, data, kind, acl)
            }
            Op::Set { path, data, version } => {
                path::validate(path).map_err(invalid_path)?;
                self.check_size(op)?;
                self.set(tree, path, data, *version).map(OpResult::Set)
            }
            Op::Delete { path, version } => {
                path::validate(path).map_err(invalid_path)?;
                if RESERVED.contains(&&**path) {
                    return Err(reserved(path));
                }
                self.permitted_in_parent(tree, path, Permissions::DELETE)?;
                check_version(tree, path, *version)?;
                if tree.get(path).is_some_and(|znode| znode.has_children()) {
                    return Err(OpError::NotEmpty { path: path.to_string() });
                }
                self.delete(tree, path);
                Ok(OpResult::Deleted)
            }
            Op::DeleteTree { path } => {
                self.check_tree(tree, path)?;
                let mut below: Vec<Arc<str>> = Vec::new();
                for (path, znode) in tree.below(path) {
                    self.check_below(tree, path, znode)?;
                    below.push(path.into());
                }
                // Each after its children.
                for path in below.iter().rev() {
                    self.delete(tree, path);
                }
                Ok(OpResult::Deleted)
            }
            Op::CreateOrSet { path, data, mode } => {
                let (path, data, mode) = (path.clone(), data.clone(), *mode);
                if !mode.is_sequential() && tree.get(&path).is_some() {
                    return self.execute(tree, &Op::Set { path, data, version: None });
                }
                self.execute(tree, &Op::Create { path, data, mode })
            }
            #[cfg(any(test, feature = "simulator"))]
            Op::Invented { path, data } => {
                let (path, data) = (path.clone(), data.clone());
                self.execute(tree, &Op::Set { path, data, version: None })
            }
            Op::Put { path, data, order } => {
                self.or_nothing(tree, |write, tree| write.put(tree, op, path, data, order))
            }
            Op::Take { path, claims } => {
                self.or_nothing(tree, |write, tree| write.take(tree, path, *claims))
            }
            Op::Add { path, number, form, within } => {
                self.add(tree, path, (*number, *form), *within)
            }
            Op::TakeOver { path, data, from } => self.take_over(tree, op, (path, data, *from)),
            Op::Check { path, condition } => {
                path::validate(path).map_err(invalid_path)?;
                self.permitted(tree, path, Permissions::READ)?;
                check(tree, path, *condition)?;
                Ok(OpResult::Checked)
            }
            Op::SetAcl { path, acl, version } => {
                path::validate(path).map_err(invalid_path)?;
                if **path == *CONFIG {
                    return Err(reserved(path));
                }
                self.check_size(op)?;
                let acl = self.requested_acl(path, acl)?;
                self.permitted(tree, path, Permissions::ADMIN)?;
                check_number(tree, path, *version, |fields| fields.aversion)?;
                let stat = tree.set_acl(path, acl).ok_or_else(|| no_node(path))?;
                self.unwatched.push(path.to_string());
                Ok(OpResult::AclSet(stat))
            }
        }
    }

    /// Sets the data: see [`Op::Set`].
    fn set(
        &mut self,
        tree: &mut Tree,
        path: &Arc<str>,
        data: &Data,
        version: Option<u64>,
    ) -> Result<Stat, OpError> {
        if **path == *CONFIG || quota::of_stats(path).is_some() {
            return Err(reserved(path));
        }
        let more = (0, data.len() as i64 - find(tree, path)?.data().len() as i64);
        self.permitted(tree, path, Permissions::WRITE)?;
        self.check_quota(tree, path, more)?;
        check_version(tree, path, version)?;
        let set = tree.set(path, data, self.zxid, self.time);
        let stat = set.ok_or_else(|| no_node(path))?;
        self.note(tree, ChangeKind::DataChanged, path);
        self.count(tree, path, more);
        Ok(stat)
    }

    /// Adds to the number that the data show: see [`Op::Add`].
    fn add(
        &mut self,
        tree: &mut Tree,
        path: &Arc<str>,
        (number, form): (i64, CounterForm),
        within: Option<u64>,
    ) -> Result<OpResult, OpError> {
        path::validate(path).map_err(invalid_path)?;
        let znode = find(tree, path)?;
        self.permitted(tree, path, Permissions::READ)?;
        let before = form.decode(znode.data()).ok();
        let now = i64::try_from(self.time.saturating_mul(NANOS_PER_MS)).unwrap_or(i64::MAX);
        let from = match within {
            Some(_) => before.map(|before| before.max(now)),
            None => before,
        };
        let after = from.and_then(|from| from.checked_add(number));
        let Some((after, data)) = after.and_then(|after| Some((after, form.encode(after)?))) else {
            return Err(OpError::NotAdded { path: path.to_string(), before: from });
        };
        let needed = u64::try_from(after.saturating_sub(now)).unwrap_or(0);
        if let Some(limit) = within.filter(|limit| needed > *limit) {
            return Err(OpError::TooLate { path: path.to_string(), limit, needed });
        }
        let is_lost = planted!(AdditionLost) && after % 8 == 0;
        let kept = if is_lost { znode.data().into() } else { Data::from(&data[..]) };
        let stat = self.set(tree, path, &kept, None)?;
        Ok(OpResult::Added { after, stat })
    }

    /// Runs a part of the write that changes several znodes. If it fails, none has changed.
    fn or_nothing<T>(
        &mut self,
        tree: &mut Tree,
        part: impl FnOnce(&mut WriteInProgress, &mut Tree) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let before = tree.clone();
        let (changes, unwatched) = (self.changes.len(), self.unwatched.len());
        let ephemerals = self.ephemerals.len();
        let done = part(self, tree);
        if done.is_err() {
            *tree = before;
            self.changes.truncate(changes);
            self.unwatched.truncate(unwatched);
            self.ephemerals.truncate(ephemerals);
        }
        done
    }

    /// Replaces the members, which no request of a session may do.
    pub(super) fn configure(
        mut self,
        tree: &mut Tree,
        version: u64,
        text: &[u8],
    ) -> Result<WriteInProgress, OpError> {
        check_version(tree, CONFIG, Some(version))?;
        let more = (0, text.len() as i64 - find(tree, CONFIG)?.data().len() as i64);
        tree.set(CONFIG, &Data::from(text), self.zxid, self.time);
        self.note(tree, ChangeKind::DataChanged, &Arc::from(CONFIG));
        self.count(tree, CONFIG, more);
        Ok(self)
    }

    fn ids(&self) -> &[Id] {
        self.ids.as_deref().map_or(&[], Vec::as_slice)
    }

    /// The access list that a request asks for.
    fn requested_acl(&self, path: &str, acl: &[Acl]) -> Result<Option<AccessList>, OpError> {
        AccessList::requested(acl, self.ids())
            .map_err(|reason| OpError::InvalidAcl { path: path.to_owned(), reason })
    }

    /// Fails if the session may not do this with the znode. A znode that does not exist permits
    /// all.
    pub(super) fn permitted(
        &self,
        tree: &Tree,
        path: &str,
        wanted: Permissions,
    ) -> Result<(), OpError> {
        if tree.is_open() {
            return Ok(());
        }
        let acl = tree.get(path).and_then(|znode| Some(&**znode.acl()?));
        if acl::permits(acl, self.ids(), wanted) {
            return Ok(());
        }
        Err(OpError::NoAuth { path: path.to_owned(), permission: wanted })
    }

    /// Fails if the tree at this path may not be deleted. Does not check the znodes below.
    pub(super) fn check_tree(&self, tree: &Tree, path: &str) -> Result<(), OpError> {
        path::validate(path).map_err(invalid_path)?;
        if RESERVED.contains(&path) {
            return Err(reserved(path));
        }
        self.permitted_in_parent(tree, path, Permissions::DELETE)?;
        find(tree, path).map(drop)
    }

    /// Fails if this znode's children may not be deleted with it.
    pub(super) fn check_below(
        &self,
        tree: &Tree,
        path: &str,
        znode: &Znode,
    ) -> Result<(), OpError> {
        match znode.has_children() {
            true => self.permitted(tree, path, Permissions::DELETE),
            false => Ok(()),
        }
    }

    /// As [`WriteInProgress::permitted`], for the parent.
    fn permitted_in_parent(
        &self,
        tree: &Tree,
        path: &str,
        wanted: Permissions,
    ) -> Result<(), OpError> {
        let parent = unless!(AclOfWrongNode, path::parent(path), Some(path));
        parent.map_or(Ok(()), |parent| self.permitted(tree, parent, wanted))
    }

    /// Replaces the ephemeral of another session by one of this session.
    fn take_over(
        &mut self,
        tree: &mut Tree,
        op: &Op,
        (path, data, from): (&Arc<str>, &Data, SessionId),
    ) -> Result<OpResult, OpError> {
        path::validate(path).map_err(invalid_path)?;
        let Some(znode) = tree.get(path) else {
            let (path, data, mode) = (path.clone(), data.clone(), CreateMode::Ephemeral);
            return self.execute(tree, &Op::Create { path, data, mode });
        };
        let owner = znode.fields().owner();
        if owner == Some(self.session) {
            let (path, data, version) = (path.clone(), data.clone(), None);
            return self.execute(tree, &Op::Set { path, data, version });
        }
        self.check_size(op)?;
        if owner != Some(from) {
            return Err(OpError::NodeExists { path: path.to_string() });
        }
        // Everything that could make the create fail is checked before the delete.
        let more = (0, data.len() as i64 - znode.data().len() as i64);
        self.permitted_in_parent(tree, path, Permissions::DELETE)?;
        self.permitted_in_parent(tree, path, Permissions::CREATE)?;
        self.check_quota(tree, path, more)?;
        let acl = znode.acl().map(|acl| (**acl).clone());
        self.delete(tree, path);
        Ok(self.insert(tree, path, data, ZnodeKind::Ephemeral(self.session), acl))
    }

    fn kind(&self, path: &str, mode: CreateMode) -> Result<ZnodeKind, OpError> {
        Ok(match mode {
            CreateMode::Persistent | CreateMode::PersistentSequential => ZnodeKind::Persistent,
            CreateMode::Ephemeral | CreateMode::EphemeralSequential => {
                ZnodeKind::Ephemeral(self.session)
            }
            CreateMode::Container => ZnodeKind::Container,
            CreateMode::PersistentWithTtl(ttl) | CreateMode::PersistentSequentialWithTtl(ttl) => {
                let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                if ms == 0 || ttl > CreateMode::TTL_MAX {
                    return Err(OpError::InvalidTtl { path: path.to_owned(), ttl });
                }
                ZnodeKind::Ttl(ms)
            }
        })
    }

    pub(super) fn create(
        &mut self,
        tree: &mut Tree,
        path: &Arc<str>,
        data: &Data,
        kind: ZnodeKind,
        acl: Option<AccessList>,
    ) -> Result<OpResult, OpError> {
        self.check_create(tree, path)?;
        self.check_quota(tree, path, (1, data.len() as i64))?;
        Ok(self.insert(tree, path, data, kind, acl))
    }

    /// Fails if nothing may be created at this path. Does not check quotas.
    pub(super) fn check_create(&self, tree: &Tree, path: &Arc<str>) -> Result<(), OpError> {
        let exists = || OpError::NodeExists { path: path.to_string() };
        let parent = path::parent(path).ok_or_else(exists)?;
        let parent_owner = find(tree, parent)?.fields().owner();
        if parent == CONFIG {
            return Err(reserved(parent));
        }
        self.permitted(tree, parent, Permissions::CREATE)?;
        if tree.get(path).is_some() {
            return Err(exists());
        }
        if parent_owner.is_some() {
            return Err(OpError::NoChildrenForEphemerals { path: parent.to_owned() });
        }
        Ok(())
    }

    /// The create itself, which cannot fail.
    pub(super) fn insert(
        &mut self,
        tree: &mut Tree,
        path: &Arc<str>,
        data: &Data,
        kind: ZnodeKind,
        acl: Option<AccessList>,
    ) -> OpResult {
        let more = (1, data.len() as i64);
        let usage =
            quota::of_stats(path).map(|of| Data::from(tree.usage(of).to_string().as_bytes()));
        let data = usage.as_ref().unwrap_or(data);
        let stat = tree.create(path, data, kind, acl, self.zxid, self.time);
        if let ZnodeKind::Ephemeral(owner) = kind {
            self.ephemerals.push(EphemeralChange { owner, path: Arc::clone(path), exists: true });
        }
        self.note(tree, ChangeKind::Created, path);
        self.count(tree, path, more);
        OpResult::Created(Created { path: path.to_string(), stat })
    }

    /// Deletes a znode that has no children. Does nothing if there is no such znode.
    pub(super) fn delete(&mut self, tree: &mut Tree, path: &Arc<str>) {
        let Some(znode) = tree.get(path) else {
            return;
        };
        if let Some(owner) = znode.fields().owner() {
            self.ephemerals.push(EphemeralChange { owner, path: Arc::clone(path), exists: false });
        }
        // Before the delete, which removes its access list.
        self.note(tree, ChangeKind::Deleted, path);
        let less = (-1, -(znode.data().len() as i64));
        tree.delete(path, self.zxid);
        self.count(tree, path, less);
    }

    /// Fails if a write that needs this much more would exceed a hard limit.
    fn check_quota(&self, tree: &Tree, path: &str, more: (i64, i64)) -> Result<(), OpError> {
        for of in tree.counted_for(path) {
            let exceeded = limits(tree, of).exceeded(usage(tree, of), more);
            if let Some((bytes, limit, needed)) = exceeded {
                return Err(OpError::QuotaExceeded { path: of.to_owned(), bytes, limit, needed });
            }
        }
        Ok(())
    }

    /// Adds the change of a write to the usage. Watches fire when the usage exceeds a soft limit,
    /// or no longer does.
    fn count(&mut self, tree: &mut Tree, path: &str, more: (i64, i64)) {
        let counted = tree.counted_for(path).filter(|_| more.0 >= 0 || !planted!(QuotaForgets));
        let all: Vec<String> = counted.map(str::to_owned).collect();
        for of in all {
            let (stats, before) = (Quota::stats_path(&of), usage(tree, &of));
            let after = before.and(more);
            let quota = limits(tree, &of);
            let data = after.to_string();
            if quota.overstepped(before) == quota.overstepped(after) {
                tree.set_quietly(&stats, data.as_bytes());
                self.unwatched.push(stats);
            } else {
                tree.set(&stats, &data.as_bytes().into(), self.zxid, self.time);
                self.note(tree, ChangeKind::DataChanged, &stats.into());
            }
        }
    }

    fn note(&mut self, tree: &Tree, kind: ChangeKind, path: &Arc<str>) {
        let acl = |path: &str| tree.get(path).and_then(|znode| znode.acl().cloned());
        let (acl, parent_acl) = match path::parent(path) {
            _ if tree.is_open() => (None, None),
            parent => (acl(path), parent.and_then(acl)),
        };
        let (zxid, path) = (self.zxid, Arc::clone(path));
        let position = u32::try_from(self.changes.len()).unwrap_or(u32::MAX);
        self.changes.push(Change { zxid, kind, path, position, acl, parent_acl });
    }

    /// The operation that exceeds the limit fails; the error has the size of the whole request.
    pub(super) fn check_size(&mut self, op: &Op) -> Result<(), OpError> {
        self.content_bytes_so_far += op.content_bytes() as u64;
        if self.content_bytes_so_far <= DATA_BYTES_MAX as u64 {
            return Ok(());
        }
        Err(OpError::TooLarge {
            path: op.path().to_string(),
            size: self.content_bytes,
            limit: DATA_BYTES_MAX as u64,
        })
    }
}

fn limits(tree: &Tree, of: &str) -> Quota {
    let znode = tree.get(&Quota::limits_path(of));
    znode.map_or(Quota::default(), |znode| Quota::parse(znode.data()))
}

fn usage(tree: &Tree, of: &str) -> Usage {
    let znode = tree.get(&Quota::stats_path(of));
    znode.map_or(Usage::default(), |znode| Usage::parse(znode.data()))
}

/// Fails unless the znode exists, with this version if one is given.
fn check_version(tree: &Tree, path: &str, version: Option<u64>) -> Result<(), OpError> {
    check_number(tree, path, version, |fields| fields.version)
}

/// As [`check_version`], for any number that counts changes.
fn check_number(
    tree: &Tree,
    path: &str,
    version: Option<u64>,
    number: impl FnOnce(&Fields) -> u64,
) -> Result<(), OpError> {
    let actual = number(&find(tree, path)?.fields());
    match version {
        Some(expected) if expected != actual => {
            Err(OpError::BadVersion { path: path.to_owned(), expected, actual })
        }
        _ => Ok(()),
    }
}

/// Fails unless the znode meets this condition of a multi.
fn check(tree: &Tree, path: &str, condition: Condition) -> Result<(), OpError> {
    let znode = match find(tree, path) {
        Err(_) if condition == Condition::Absent => return Ok(()),
        found => found?,
    };
    let fields = znode.fields();
    let holds = match condition {
        Condition::Absent => return Err(OpError::NodeExists { path: path.to_owned() }),
        Condition::Exists => true,
        Condition::Version(version) => return check_version(tree, path, Some(version)),
        Condition::Czxid(czxid) => fields.czxid == czxid,
        Condition::Mzxid(mzxid) => fields.mzxid == mzxid,
        Condition::Pzxid(pzxid) => fields.pzxid == pzxid,
        Condition::Cversion(cversion) => fields.cversion == cversion,
        Condition::Aversion(aversion) => fields.aversion == aversion,
        Condition::Usage { znodes, bytes } => Usage::parse(znode.data()) == Usage { znodes, bytes },
    };
    if holds { Ok(()) } else { Err(OpError::Unmet { path: path.to_owned(), condition }) }
}

pub(super) fn find<'a>(tree: &'a Tree, path: &str) -> Result<&'a Znode, OpError> {
    tree.get(path).ok_or_else(|| no_node(path))
}

pub(super) fn no_node(path: &str) -> OpError {
    OpError::NoNode { path: path.to_owned() }
}

fn reserved(path: &str) -> OpError {
    OpError::Reserved { path: path.to_owned() }
}

pub(super) fn invalid_path(error: Error) -> OpError {
    match error {
        Error::InvalidPath { path, reason } => {
            OpError::InvalidPath { path, reason: reason.into_owned() }
        }
        // `path::validate` gives no other error.
        other => OpError::InvalidPath { path: String::new(), reason: other.to_string() },
    }
}
