//! Queues in the model: each part of a put or a take is an operation of its own, and what failed is undone.
//!
//! Some planted bugs are here as well: mistakes that the machine and its model share are found by the checks of
//! queues alone.

use super::quotas::shows_usage;
use super::{Model, ModelZnode};
use crate::machine::command::{ChangeKind, Op, OpError};
use crate::machine::data::Data;
use crate::machine::queue::{FREED_MAX, SEEN_MAX};
use crate::types::acl::Permissions;
use crate::types::queue::{ItemName, QueueOrder};
use crate::types::znode::{CreateMode, Created, OpResult, SessionId, Stat};

impl Model {
    /// Runs a part that changes several znodes.
    pub(super) fn or_nothing(
        &mut self,
        part: impl FnOnce(&mut Model) -> Result<OpResult, OpError>,
    ) -> Result<OpResult, OpError> {
        let before = (self.znodes.clone(), self.zxid, self.changes.len());
        let done = part(self);
        if done.is_err() {
            (self.znodes, self.zxid) = (before.0, before.1);
            self.changes.truncate(before.2);
        }
        done
    }

    fn exists(&self, path: &str) -> Result<(), OpError> {
        match self.znodes.contains_key(path) {
            true => Ok(()),
            false => Err(OpError::NoNode { path: path.to_owned() }),
        }
    }

    fn names(&self, queue: &str, part: &str) -> Vec<String> {
        let path = below(queue, part);
        if self.znodes.contains_key(&path) { self.children(&path) } else { Vec::new() }
    }

    /// Creates a znode with data that was counted already.
    fn make(
        &mut self,
        (id, zxid): (SessionId, u64),
        path: &str,
        data: &Data,
        mode: CreateMode,
    ) -> Result<Stat, OpError> {
        let create = Op::Create { path: path.into(), data: data.clone(), mode };
        match self.op(id, zxid, &create, &[])? {
            OpResult::Created(created) => Ok(created.stat),
            other => unreachable!("a create came to {other:?}"),
        }
    }

    fn part(&mut self, by: (SessionId, u64), queue: &str, part: &str) -> Result<(), OpError> {
        let path = below(queue, part);
        if let Some(znode) = self.znodes.get(&path) {
            return match znode.stat.ephemeral_owner {
                None => Ok(()),
                Some(_) => Err(OpError::NoChildrenForEphemerals { path }),
            };
        }
        self.provide(by, &path, CreateMode::Container).map(drop)
    }

    /// Creates a znode, whatever the quota is.
    fn provide(
        &mut self,
        by: (SessionId, u64),
        path: &str,
        mode: CreateMode,
    ) -> Result<Stat, OpError> {
        self.exempt = true;
        let made = self.make(by, path, &"".into(), mode);
        self.exempt = false;
        made
    }

    pub(super) fn put(
        &mut self,
        by: (SessionId, u64),
        queue: &str,
        data: &Data,
        order: &QueueOrder,
    ) -> Result<OpResult, OpError> {
        self.exists(queue)?;
        let parts = ["items", "delayed", "taken"];
        let needed = 1 + parts.map(|part| self.names(queue, part).len() as u64).iter().sum::<u64>();
        if let Some(limit) = order.max
            && needed > limit
            && !planted!(QueueOverfills)
        {
            return Err(OpError::QueueFull { path: queue.to_owned(), limit, needed });
        }
        let place = self.changes.iter().rev().take_while(|change| change.zxid == by.1).count();
        let priority = (i64::from(order.priority) - i64::from(i32::MIN)) as u64;
        let mut name = format!("{priority:08x}-{:016x}-{place:05x}-{}", by.1, order.id);
        let mut part = "items";
        if order.delay_ms > 0 {
            name = format!("{:016x}-{name}", self.time.saturating_add(order.delay_ms));
            part = "delayed";
        }
        self.part(by, queue, part)?;
        let path = format!("{}/{name}", below(queue, part));
        self.make(by, &path, data, CreateMode::Persistent)?;
        Ok(OpResult::Created(Created { stat: self.stat(&path), path }))
    }

    /// Moves items to those that may be taken: each from its path, to this name.
    fn free(
        &mut self,
        by: (SessionId, u64),
        queue: &str,
        all: Vec<(String, String)>,
    ) -> Result<(), OpError> {
        let mut freed = 0;
        for (from, name) in all {
            let to = format!("{}/{name}", below(queue, "items"));
            if freed < FREED_MAX
                && !self.znodes.contains_key(&to)
                && self.children(&from).is_empty()
            {
                self.part(by, queue, "items")?;
                self.rename(by.1, &from, &to);
                freed += 1;
            }
        }
        Ok(())
    }

    fn free_unclaimed(&mut self, by: (SessionId, u64), queue: &str) -> Result<(), OpError> {
        let (mut of_items, of_claims) = (self.names(queue, "taken"), self.names(queue, "claims"));
        of_items.sort();
        of_items.retain(|name| !of_claims.contains(name) && ItemName::parse(name).is_some());
        of_items.truncate(SEEN_MAX);
        let path = |name: &String| format!("{}/{name}", below(queue, "taken"));
        self.free(by, queue, of_items.into_iter().map(|name| (path(&name), name)).collect())
    }

    fn first_item(&self, queue: &str) -> Option<String> {
        let mut names = self.names(queue, "items");
        names.sort();
        names.truncate(SEEN_MAX);
        let items = below(queue, "items");
        let is_item = |name: &String| {
            ItemName::parse(name).is_some() && self.children(&format!("{items}/{name}")).is_empty()
        };
        names.into_iter().find(is_item)
    }

    fn rename(&mut self, zxid: u64, from: &str, to: &str) {
        let ModelZnode { data, acl, .. } = self.znodes[from].clone();
        self.zxid = zxid;
        self.delete(zxid, from);
        let (parent, _) = to.rsplit_once('/').expect("it has a parent");
        let parent = self.znodes.get_mut(parent).expect("it was there just now");
        parent.creates += 1;
        parent.stat.pzxid = zxid;
        let (czxid, time) = (zxid, self.time);
        let stat =
            Stat { czxid, mzxid: zxid, pzxid: zxid, ctime: time, mtime: time, ..Stat::default() };
        debug_assert!(!shows_usage(to));
        self.znodes.insert(to.to_owned(), ModelZnode { data, stat, acl, ..ModelZnode::default() });
        self.change(zxid, ChangeKind::Created, to);
        self.recount(zxid, to);
    }

    pub(super) fn take(
        &mut self,
        by: (SessionId, u64),
        queue: &str,
        claims: bool,
    ) -> Result<OpResult, OpError> {
        self.exists(queue)?;
        let (items, taken) = (below(queue, "items"), below(queue, "taken"));
        self.need(by.0, &items, Permissions::DELETE)?;
        let mut all_due = Vec::new();
        for delayed in self.names(queue, "delayed").into_iter().take(SEEN_MAX) {
            let Some((due, name)) = delayed.split_once('-') else { continue };
            let (16, Ok(due), true) =
                (due.len(), u64::from_str_radix(due, 16), ItemName::parse(name).is_some())
            else {
                continue;
            };
            if due > self.time && !planted!(QueueDelayIgnored) {
                break;
            }
            let name = name.to_owned();
            all_due.push((format!("{}/{delayed}", below(queue, "delayed")), name));
        }
        self.free(by, queue, all_due)?;
        self.free_unclaimed(by, queue)?;
        let Some(name) = self.first_item(queue) else {
            return Err(OpError::NoNode { path: items });
        };
        let item = format!("{items}/{name}");
        self.need(by.0, &item, Permissions::READ)?;
        let data = self.znodes[&item].data.to_vec();
        if !claims {
            self.zxid = by.1;
            self.delete(by.1, &item);
            return Ok(OpResult::Taken { path: item, data, claim: None });
        }
        self.part(by, queue, "taken")?;
        self.part(by, queue, "claims")?;
        let claim = format!("{}/{name}", below(queue, "claims"));
        let stat = self.provide(by, &claim, CreateMode::Ephemeral)?;
        let path = format!("{taken}/{name}");
        if self.znodes.contains_key(&path) {
            return Err(OpError::NodeExists { path });
        }
        if planted!(QueueItemLost) {
            self.delete(by.1, &item);
        } else {
            self.rename(by.1, &item, &path);
        }
        Ok(OpResult::Taken { path, data, claim: Some(Created { path: claim, stat }) })
    }
}

fn below(queue: &str, part: &str) -> String {
    if queue == "/" { format!("/{part}") } else { format!("{queue}/{part}") }
}
