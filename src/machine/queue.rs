//! The operations of queues: an item is put, and the first one is taken, in one write each and without a
//! conflict between those that do so at the same time.
//!
//! ```text
//! /queue          what the caller names; it must exist
//!   items         the items that may be taken, in their order
//!     80000000-0000000000000fa0-00000-
//!   delayed       those that are not due yet, in the order in which they will be
//!     0000018bcfe56800-80000000-0000000000000fa0-00000-
//!   taken         those that a consumer has
//!     80000000-0000000000000fa0-00000-
//!   claims        for each of these an ephemeral of the consumer's session, with the same name
//!     80000000-0000000000000fa0-00000-
//! ```
//!
//! An item whose claim has gone, with its session or deleted by its consumer, is free again, and the tree lists it
//! ([`Tree::unclaimed`]). The next take moves it back.
//!
//! What a take needs depends neither on how many items there are nor on what else somebody has put beside them. No
//! quota refuses the claim of an item, since a queue that has reached its quota could not be worked off. (So a queue
//! may exceed its quota by one claim for each item that counts already, and by the parts themselves.)

use std::sync::Arc;

use super::command::{Op, OpError};
use super::data::Data;
use super::ops::{WriteInProgress, find, invalid_path, no_node};
use super::tree::{Tree, Znode, ZnodeKind};
use crate::types::acl::Permissions;
use crate::types::path;
use crate::types::queue::{
    CLAIMS, COUNTED, DELAYED, ITEMS, ItemName, QueueOrder, TAKEN, due_name, split_due,
};
use crate::types::znode::OpResult;

/// The most items that one take frees of those that are due, and of those that no consumer has any more: the first
/// ones. The others wait for the next takes.
pub(super) const FREED_MAX: usize = 64;

/// A take looks at so many znodes of each part. Nearly always, the first one is an item that may be taken or moved.
/// Others are of somebody who does not use the queue's operations.
pub(super) const SEEN_MAX: usize = if cfg!(test) { 6 } else { 1024 };

impl WriteInProgress {
    /// Puts an item: see [`Op::Put`].
    pub(super) fn put(
        &mut self,
        tree: &mut Tree,
        op: &Op,
        queue: &str,
        data: &Data,
        order: &QueueOrder,
    ) -> Result<OpResult, OpError> {
        path::validate(queue).map_err(invalid_path)?;
        self.check_size(op)?;
        find(tree, queue)?;
        if let Some(limit) = order.max {
            let needed = self.length(tree, queue) + 1;
            if needed > limit && !planted!(QueueOverfills) {
                return Err(OpError::QueueFull { path: queue.to_owned(), limit, needed });
            }
        }
        let place = self.changes.len() as u64;
        let name = ItemName::new(order.priority, self.zxid, place, &order.id).to_string();
        let (parent, name) = match order.delay_ms {
            0 => (ITEMS, name),
            delay => (DELAYED, due_name(self.time.saturating_add(delay), &name)),
        };
        let parent = path::join(queue, parent);
        let item = join(&parent, &name);
        self.container(tree, &parent)?;
        path::validate(&item).map_err(invalid_path)?;
        self.create(tree, &item, data, ZnodeKind::Persistent, None)
    }

    /// Takes the first item: see [`Op::Take`].
    pub(super) fn take(
        &mut self,
        tree: &mut Tree,
        queue: &str,
        claims: bool,
    ) -> Result<OpResult, OpError> {
        path::validate(queue).map_err(invalid_path)?;
        let [items, taken, claim] = [ITEMS, TAKEN, CLAIMS].map(|name| path::join(queue, name));
        find(tree, queue)?;
        self.permitted(tree, &items, Permissions::DELETE)?;
        self.free_due(tree, queue)?;
        self.free_unclaimed(tree, queue)?;
        let name = first_item(tree, &items).ok_or_else(|| no_node(&items))?;
        let item = join(&items, &name);
        self.permitted(tree, &item, Permissions::READ)?;
        let znode = find(tree, &item)?;
        let data = znode.data().to_vec();
        if !claims {
            self.delete(tree, &item);
            return Ok(OpResult::Taken { path: item.to_string(), data, claim: None });
        }
        self.container(tree, &taken)?;
        self.container(tree, &claim)?;
        let (mut to, mut claim) = (join(&taken, &name), join(&claim, &name));
        if planted!(QueueItemTwice) {
            (to, claim) = (item.clone(), format!("{claim}-{}", self.session).into());
        }
        let created = self.provide(tree, &claim, ZnodeKind::Ephemeral(self.session))?;
        if item != to && tree.get(&to).is_some() {
            // Somebody else has made one of the two.
            return Err(OpError::NodeExists { path: to.to_string() });
        }
        if planted!(QueueItemLost) {
            self.delete(tree, &item);
        } else if item != to {
            self.rename(tree, &item, &to)?;
        }
        let claim = match created {
            OpResult::Created(claim) => Some(claim),
            _ => None,
        };
        Ok(OpResult::Taken { path: to.to_string(), data, claim })
    }

    /// The number of items, of all kinds.
    fn length(&self, tree: &Tree, queue: &str) -> u64 {
        let of = |name| tree.get(&path::join(queue, name)).map_or(0, Znode::child_count);
        COUNTED.into_iter().map(of).sum::<usize>() as u64
    }

    /// Moves items that are due to those that may be taken.
    fn free_due(&mut self, tree: &mut Tree, queue: &str) -> Result<(), OpError> {
        let [items, delayed] = [ITEMS, DELAYED].map(|name| path::join(queue, name));
        let Some(parent) = tree.get(&delayed) else { return Ok(()) };
        let is_due = |due: u64| due <= self.time || planted!(QueueDelayIgnored);
        let due = parent.children().take(SEEN_MAX).filter_map(split_due);
        let due = due.take_while(|(due, _)| is_due(*due));
        let due = due
            .map(|(due, name)| (join(&delayed, &due_name(due, name)), join(&items, name)))
            .collect();
        self.rename_all(tree, &items, due)
    }

    /// Moves items that no consumer has any more to those that may be taken.
    fn free_unclaimed(&mut self, tree: &mut Tree, queue: &str) -> Result<(), OpError> {
        let [items, taken] = [ITEMS, TAKEN].map(|name| path::join(queue, name));
        let free = tree.unclaimed(&taken).take(SEEN_MAX);
        let free = free.map(|name| (join(&taken, name), join(&items, name))).collect();
        self.rename_all(tree, &items, free)
    }

    fn rename_all(
        &mut self,
        tree: &mut Tree,
        items: &str,
        all: Vec<(Arc<str>, Arc<str>)>,
    ) -> Result<(), OpError> {
        let mut freed = 0;
        for (from, to) in all {
            // A znode that somebody else has made at one of these paths stays.
            let is_foreign = tree.get(&from).is_some_and(|znode| znode.has_children());
            if is_foreign || tree.get(&to).is_some() {
                continue;
            }
            if freed == FREED_MAX {
                break;
            }
            self.container(tree, items)?;
            self.rename(tree, &from, &to)?;
            freed += 1;
        }
        Ok(())
    }

    /// Deletes a znode, and creates it at another path. The parent exists.
    pub(super) fn rename(
        &mut self,
        tree: &mut Tree,
        from: &Arc<str>,
        to: &Arc<str>,
    ) -> Result<(), OpError> {
        let znode = find(tree, from)?;
        let data = if znode.is_null() { Data::from(None) } else { Data::from(znode.data()) };
        let acl = znode.acl().map(|acl| (**acl).clone());
        self.delete(tree, from);
        self.insert(tree, to, &data, ZnodeKind::Persistent, acl);
        Ok(())
    }

    /// Creates a container, unless there is a znode, which may be somebody else's.
    fn container(&mut self, tree: &mut Tree, path: &str) -> Result<(), OpError> {
        if let Some(znode) = tree.get(path) {
            let is_ephemeral = znode.fields().owner().is_some();
            let refused = || OpError::NoChildrenForEphemerals { path: path.to_owned() };
            return if is_ephemeral { Err(refused()) } else { Ok(()) };
        }
        self.provide(tree, &path.into(), ZnodeKind::Container).map(drop)
    }

    /// Creates what a queue needs beside its items. No quota refuses it.
    fn provide(
        &mut self,
        tree: &mut Tree,
        path: &Arc<str>,
        kind: ZnodeKind,
    ) -> Result<OpResult, OpError> {
        self.check_create(tree, path)?;
        Ok(self.insert(tree, path, &Data::from(&b""[..]), kind, None))
    }
}

fn join(parent: &str, name: &str) -> Arc<str> {
    path::join(parent, name).into()
}

/// The name of the first item that may be taken.
fn first_item(tree: &Tree, items: &str) -> Option<String> {
    let is_leaf = |name: &&str| {
        let znode = tree.get(&path::join(items, name));
        znode.is_some_and(|znode| !znode.has_children())
    };
    let of_queue = |name: &&str| ItemName::parse(name).is_some();
    let names = tree.get(items)?.children().take(SEEN_MAX);
    let mut names = names.filter(of_queue).filter(is_leaf);
    let number = |name: &&str| ItemName::parse(name).map(|name| name.number());
    let first = match planted!(QueuePriorityIgnored) {
        true => names.min_by_key(number),
        false => names.next(),
    };
    first.map(str::to_owned)
}
