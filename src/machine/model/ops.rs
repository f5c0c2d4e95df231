//! The operations in the model, but for those of queues.

use std::time::Duration;

use super::quotas::shows_usage;
use super::{Model, ModelZnode};
use crate::machine::command::{ChangeKind, Op, OpError};
use crate::machine::data::Data;
use crate::machine::{DATA_BYTES_MAX, RESULTS_BYTES_MAX};
use crate::types::acl::{Acl, Permissions};
use crate::types::counter::CounterForm;
use crate::types::log_form::Written;
use crate::types::path;
use crate::types::quota::Usage;
use crate::types::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat};

impl Model {
    /// Runs an operation. `so_far` are the operations of its request up to this one.
    pub(super) fn op(
        &mut self,
        id: SessionId,
        zxid: u64,
        op: &Op,
        so_far: &[Op],
    ) -> Result<OpResult, OpError> {
        let path = op.path().to_string();
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
                    Op::Set { path: path.into(), data, version: None }
                } else {
                    Op::Create { path: path.into(), data, mode }
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
                self.add((id, zxid), path, (*number, *form), *within)
            }
            Op::TakeOver { data, from, .. } => {
                self.take_over((id, zxid), path, data, *from, so_far)
            }
            Op::Create { data, mode, .. } => self.create((id, zxid), path, data, *mode, None),
            Op::CreateWithAcl { data, mode, acl, .. } => {
                self.create((id, zxid), path, data, *mode, Some(acl))
            }
            Op::Invented { data, .. } => self.op(
                id,
                zxid,
                &Op::Set { path: path.into(), data: data.clone(), version: None },
                so_far,
            ),
            Op::Set { .. } if path == "/zookeeper/config" || shows_usage(&path) => {
                Err(OpError::Reserved { path })
            }
            Op::SetAcl { .. } if path == "/zookeeper/config" => Err(OpError::Reserved { path }),
            Op::SetAcl { acl, version, .. } => self.set_acl((id, zxid), path, acl, *version),
            Op::Set { data, version, .. } => self.set((id, zxid), path, data, *version),
            Op::Delete { version, .. } => self.delete_one((id, zxid), path, *version),
            Op::DeleteTree { .. } => self.delete_all((id, zxid), path),
            Op::Check { condition, .. } => self.compare(id, path, *condition),
        }
    }

    /// Adds to the number in a znode.
    fn add(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: String,
        (number, form): (i64, CounterForm),
        within: Option<u64>,
    ) -> Result<OpResult, OpError> {
        let Some(znode) = self.znodes.get(&path) else {
            return Err(OpError::NoNode { path });
        };
        let data = znode.data.to_vec();
        self.need(id, &path, Permissions::READ)?;
        let now = within.map(|_| i128::from(self.time) * 1_000_000);
        let (before, sum) = sum_of(&data, number, form, now);
        let Some((after, sum)) = sum else {
            return Err(OpError::NotAdded { path, before });
        };
        if let (Some(limit), Some(now)) = (within, now) {
            let needed = (i128::from(after) - now).max(0);
            if needed > i128::from(limit) {
                return Err(OpError::TooLate { path, limit, needed: needed as u64 });
            }
        }
        let is_lost = planted!(AdditionLost) && after % 8 == 0;
        let data = if is_lost { data.into() } else { sum.into() };
        match self.op(id, zxid, &Op::Set { path: path.into(), data, version: None }, &[])? {
            OpResult::Set(stat) => Ok(OpResult::Added { after, stat }),
            _ => unreachable!(),
        }
    }

    /// Creates an ephemeral znode, or replaces that of another session.
    fn take_over(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: String,
        data: &Data,
        from: SessionId,
        so_far: &[Op],
    ) -> Result<OpResult, OpError> {
        let data = data.clone();
        let owner = self.znodes.get(&path).map(|znode| znode.stat.ephemeral_owner);
        let op = match owner {
            None => Op::Create { path: path.into(), data, mode: CreateMode::Ephemeral },
            Some(owner) if owner == Some(id) => Op::Set { path: path.into(), data, version: None },
            Some(owner) if owner == Some(from) => {
                let parent = path::parent(&path).unwrap_or("/").to_owned();
                self.need(id, &parent, Permissions::DELETE)?;
                self.need(id, &parent, Permissions::CREATE)?;
                let freed = self.znodes[&path].data.len() as u64;
                self.afford(&path, 0, data.len() as u64, freed)?;
                let acl = self.znodes[&path].acl.clone();
                self.zxid = zxid;
                self.delete(zxid, &path);
                let create =
                    Op::Create { path: path.clone().into(), data, mode: CreateMode::Ephemeral };
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

    /// Creates a znode with the access list that is asked for.
    fn create(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: String,
        data: &Data,
        mode: CreateMode,
        acl: Option<&[Acl]>,
    ) -> Result<OpResult, OpError> {
        let ttl = mode.ttl().map(|ttl| Duration::from_millis(ttl.as_millis() as u64));
        if let (Some(given), Some(ttl)) = (mode.ttl(), ttl)
            && (ttl.is_zero() || given > Duration::from_millis(1_099_511_627_775))
        {
            return Err(OpError::InvalidTtl { path, ttl: given });
        }
        let acl = match acl {
            Some(acl) => self.requested_acl(id, &path, acl)?,
            None => None,
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
        let path = if mode.is_sequential() { format!("{path}{:010}", znode.creates) } else { path };
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
            is_container: mode == CreateMode::Container,
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

    /// Replaces the access list of a znode.
    fn set_acl(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: String,
        acl: &[Acl],
        version: Option<u64>,
    ) -> Result<OpResult, OpError> {
        let acl = self.requested_acl(id, &path, acl)?;
        self.need(id, &path, Permissions::ADMIN)?;
        let Some(znode) = self.znodes.get_mut(&path) else {
            return Err(OpError::NoNode { path });
        };
        let actual = znode.stat.aversion;
        if let Some(expected) = version
            && expected != actual
        {
            return Err(OpError::BadVersion { path, expected, actual });
        }
        znode.stat.aversion += 1;
        znode.acl = acl;
        self.zxid = zxid;
        Ok(OpResult::AclSet(self.stat(&path)))
    }

    /// Replaces the data of a znode.
    fn set(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: String,
        data: &Data,
        version: Option<u64>,
    ) -> Result<OpResult, OpError> {
        self.need(id, &path, Permissions::WRITE)?;
        if let Some(znode) = self.znodes.get(&path) {
            self.afford(&path, 0, data.len() as u64, znode.data.len() as u64)?;
        }
        self.check(&path, version)?;
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

    /// Deletes a znode without children.
    fn delete_one(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: String,
        version: Option<u64>,
    ) -> Result<OpResult, OpError> {
        if Model::new().znodes.contains_key(&path) {
            return Err(OpError::Reserved { path });
        }
        let parent = path::parent(&path).unwrap_or("/");
        self.need(id, parent, Permissions::DELETE)?;
        self.check(&path, version)?;
        if !self.children(&path).is_empty() {
            return Err(OpError::NotEmpty { path });
        }
        self.zxid = zxid;
        self.delete(zxid, &path);
        Ok(OpResult::Deleted)
    }

    /// Deletes a znode and all below it.
    fn delete_all(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: String,
    ) -> Result<OpResult, OpError> {
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

    /// Compares a znode with a condition.
    fn compare(
        &self,
        id: SessionId,
        path: String,
        condition: Condition,
    ) -> Result<OpResult, OpError> {
        self.need(id, &path, Permissions::READ)?;
        let stat = self.znodes.contains_key(&path).then(|| self.stat(&path));
        let is = |number: Option<u64>, expected: u64| number == Some(expected);
        let holds = match condition {
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
            false => Err(OpError::Unmet { path, condition }),
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

    pub(super) fn check(&self, path: &str, version: Option<u64>) -> Result<(), OpError> {
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
    let shown = from.map(|from| i64::try_from(from).unwrap_or(i64::MAX));
    let sum = from.map(|from| from + i128::from(number));
    let range = i128::from(lowest)..=i128::from(highest);
    let sum = sum.filter(|sum| range.contains(sum)).map(|sum| match form {
        CounterForm::Text => (sum as i64, sum.to_string().into_bytes()),
        _ => (sum as i64, sum.to_be_bytes()[16 - bytes..].to_vec()),
    });
    (shown, sum)
}

/// Fails if the last of these results of a multi is one too many. It is that of an operation at this path.
pub(super) fn results_fit(results: &[OpResult], path: &str) -> Result<(), OpError> {
    let mut size = 0;
    for result in results {
        size += match result {
            OpResult::Taken { path, data, claim } => {
                let claim = postcard::to_stdvec(&Written(claim)).expect("it has a length");
                (16 + path.len() + data.len() + claim.len()) as u64
            }
            other => postcard::to_stdvec(&Written(other)).expect("it has a length").len() as u64,
        };
    }
    let limit = RESULTS_BYTES_MAX as u64;
    match size > limit && !planted!(ResultsUnbounded) {
        true => Err(OpError::TooLarge { path: path.to_owned(), size, limit }),
        false => Ok(()),
    }
}

/// The bytes that count for the limit of a request.
pub(super) fn data_bytes(ops: &[Op]) -> u64 {
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
