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
//! An item whose claim has gone, with its session or deleted by its consumer, is free again. The next take
//! moves it back: it sees by the numbers of items and claims, and by the first of their names, whether there is one. A
//! take that finds nothing else compares all names. (The numbers alone do not show it beside the claim of an item that
//! somebody has deleted.)

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

/// The most delayed items that one take moves to the others. Those that are due at the same time beyond these
/// wait for the next takes.
const DUE_MAX: usize = 64;

/// Each take compares so many names of taken items with those of the claims. The names of items that are in work for
/// long are among the first, before those of newer items of their priority.
const COMPARED: usize = 64;

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
        let nothing = Data::from(&b""[..]);
        let created =
            self.create(tree, &claim, &nothing, ZnodeKind::Ephemeral(self.session), None)?;
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
        let due = parent.children().filter_map(split_due);
        let due = due.take_while(|(due, _)| is_due(*due)).take(DUE_MAX);
        let due = due
            .map(|(due, name)| (join(&delayed, &due_name(due, name)), join(&items, name)))
            .collect();
        self.rename_all(tree, &items, due)
    }

    /// Moves items that no consumer has any more to those that may be taken.
    fn free_unclaimed(&mut self, tree: &mut Tree, queue: &str) -> Result<(), OpError> {
        let [items, taken, claims] = [ITEMS, TAKEN, CLAIMS].map(|name| path::join(queue, name));
        let Some(parent) = tree.get(&taken) else { return Ok(()) };
        if let Some(claims) = tree.get(&claims)
            && parent.child_count() == claims.child_count()
        {
            let is_own = |(item, claim)| item == claim;
            let mut names = parent.children().zip(claims.children());
            let are_claimed = names.by_ref().take(COMPARED).all(is_own)
                && (first_item(tree, &items).is_some() || names.all(is_own));
            if are_claimed || planted!(QueueClaimsCounted) {
                return Ok(());
            }
        }
        let is_claimed = |name: &str| tree.get(&path::join(&claims, name)).is_some();
        let free = parent.children().filter(|name| !is_claimed(name));
        let free = free.filter(|name| ItemName::parse(name).is_some());
        let free = free.map(|name| (join(&taken, name), join(&items, name))).collect();
        self.rename_all(tree, &items, free)
    }

    fn rename_all(
        &mut self,
        tree: &mut Tree,
        items: &str,
        all: Vec<(Arc<str>, Arc<str>)>,
    ) -> Result<(), OpError> {
        if !all.is_empty() {
            self.container(tree, items)?;
        }
        for (from, to) in all {
            // A znode that somebody else has made at one of these paths stays.
            if tree.get(&to).is_none() && !tree.get(&from).is_some_and(|znode| znode.has_children())
            {
                self.rename(tree, &from, &to)?;
            }
        }
        Ok(())
    }

    /// Deletes a znode, and creates it at another path. The parent exists.
    fn rename(&mut self, tree: &mut Tree, from: &Arc<str>, to: &Arc<str>) -> Result<(), OpError> {
        let znode = find(tree, from)?;
        let data = if znode.is_null() { Data::from(None) } else { Data::from(znode.data()) };
        let acl = znode.acl().map(|acl| (**acl).clone());
        self.delete(tree, from);
        self.insert(tree, to, &data, ZnodeKind::Persistent, acl);
        Ok(())
    }

    /// Creates a container, unless there is a znode.
    fn container(&mut self, tree: &mut Tree, path: &str) -> Result<(), OpError> {
        if tree.get(path).is_some() {
            return Ok(());
        }
        self.create(tree, &path.into(), &Data::from(&b""[..]), ZnodeKind::Container, None).map(drop)
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
    let mut names = tree.get(items)?.children().filter(of_queue).filter(is_leaf);
    let number = |name: &&str| ItemName::parse(name).map(|name| name.number());
    let first = match planted!(QueuePriorityIgnored) {
        true => names.min_by_key(number),
        false => names.next(),
    };
    first.map(str::to_owned)
}
