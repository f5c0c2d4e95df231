//! A shared list, in the order in which its items were pushed.
//!
//! Source: ZooKeeper, "Sequence Nodes".

use std::sync::Arc;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::errors::{children_or_none, unless_gone};
use crate::recipes::parents::create_below;
use crate::recipes::sequence;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;
use crate::types::znode::{Condition, CreateMode, Stat};

/// The beginning of an item's name.
const PREFIX: &str = "item-";

/// An item of a [`NodeList`].
///
/// ```
/// use quorate::{recipes::NodeList, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let list = NodeList::new(&session, "/steps")?;
/// let item = list.push(b"first").wait()?;
/// assert_eq!((item.path(), &item.data()[..]), ("/steps/item-0000000000", &b"first"[..]));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListItem {
    path: String,
    data: Arc<[u8]>,
    stat: Stat,
}

impl ListItem {
    /// The path of its znode. The number at its end gives the item's place in the list.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its data.
    pub fn data(&self) -> &Arc<[u8]> {
        &self.data
    }

    /// Its stat.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }
}

/// A shared list, in the order in which its items were pushed: the sequential children of one
/// znode.
///
/// A push and a removal are one write each, done exactly once. Reading is free, and shows the whole
/// list at one zxid. The list's znode and its parents are created as containers, which are deleted
/// some time after they have become empty; so an empty list leaves nothing behind. It is not a
/// queue: a push wakes nobody, and if two callers try to remove the same item, only one of them
/// succeeds.
///
/// ```
/// use quorate::{recipes::NodeList, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let list = NodeList::new(&session, "/steps")?;
/// let first = list.push(b"first").wait()?;
/// list.push(b"second").wait()?;
/// let data: Vec<_> = list.items().wait()?.iter().map(|item| item.data().to_vec()).collect();
/// assert_eq!(data, [&b"first"[..], b"second"]);
/// assert!(list.remove(&first).wait()?);
/// assert!(!list.remove(&first).wait()?, "it was gone already");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeList {
    session: Session,
    path: String,
}

impl NodeList {
    /// Returns the list at this path. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<NodeList> {
        path::validate(path)?;
        path::validate_sequential(&path::join(path, PREFIX))?;
        Ok(NodeList { session: session.for_recipe(), path: path.to_owned() })
    }

    fn session(&self) -> &Session {
        &self.session
    }

    /// The list's path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Appends an item, and returns it.
    ///
    /// # Errors
    /// As [`Session::create`], except [`Error::NoNode`](crate::Error::NoNode).
    pub fn push<'a>(&'a self, data: impl AsRef<[u8]> + Send + 'a) -> Pending<'a, ListItem> {
        self.session().steps("push", self.path(), self.pushing(data))
    }

    async fn pushing(&self, data: impl AsRef<[u8]>) -> Result<ListItem> {
        let (data, path) = (data.as_ref(), path::join(&self.path, PREFIX));
        let create = || self.session.create(&path, data, CreateMode::PersistentSequential);
        let created = create_below(&self.session, &self.path, create).await?;
        Ok(ListItem { path: created.path, data: Arc::from(data), stat: created.stat })
    }

    /// Returns all items, in order, as this replica has them at one zxid.
    ///
    /// # Errors
    /// [`Error::NoAuth`](crate::Error::NoAuth); the errors of a session that is over.
    pub fn items(&self) -> Pending<'_, Vec<ListItem>> {
        self.session().steps("items", self.path(), self.reading())
    }

    async fn reading(&self) -> Result<Vec<ListItem>> {
        self.items_in(&self.session.snapshot_of(&self.path).await?)
    }

    /// Returns all items, in order, as a snapshot has them: consistent with everything else that is
    /// read from it.
    ///
    /// # Errors
    /// [`Error::NoAuth`](crate::Error::NoAuth).
    pub fn items_in(&self, snapshot: &Snapshot) -> Result<Vec<ListItem>> {
        let names = children_or_none(snapshot.children(&self.path))?;
        let mut names: Vec<&String> = names.iter().filter(|name| number(name).is_some()).collect();
        names.sort_by_key(|name| number(name));
        if planted!(ListUnordered) {
            names.reverse();
        }
        names
            .into_iter()
            .map(|name| {
                let path = path::join(&self.path, name);
                let (data, stat) = snapshot.get(&path)?;
                Ok(ListItem { path, data, stat })
            })
            .collect()
    }

    /// Removes an item, and returns whether it existed. Never removes another item: neither one with the same number,
    /// after the list was deleted and created again, nor one whose data was set since it was read.
    ///
    /// # Errors
    /// As [`Session::delete`].
    pub fn remove<'a>(&'a self, item: &'a ListItem) -> Pending<'a, bool> {
        self.session().steps("remove", self.path(), self.removing(item))
    }

    async fn removing(&self, item: &ListItem) -> Result<bool> {
        let (path, seen) = (&item.path, Condition::Mzxid(item.stat.mzxid));
        let removing = self.session.multi().require(path, seen).delete(path).commit();
        Ok(unless_gone(removing.await)?.is_some())
    }
}

/// An item's place in the order; `None` if it is not an item.
fn number(name: &str) -> Option<(usize, &str)> {
    sequence::number(name.strip_prefix(PREFIX)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[test]
    fn the_longer_number_is_the_larger() {
        let mut names =
            ["item-10000000000", "item-0000000002", "item-9999999999", "item-0000000010"];
        names.sort_by_key(|name| number(name));
        let order = ["item-0000000002", "item-0000000010", "item-9999999999", "item-10000000000"];
        assert_eq!(names, order);
        for name in ["item-", "item-x", "item-1x", "item--1", "items-1", "1", "", "ITEM-1"] {
            assert_eq!(number(name), None, "{name:?}");
        }
    }

    #[test]
    fn znodes_of_others_are_not_items() {
        let session = Cluster::new(1).node(0).session();
        let list = NodeList::new(&session, "/list").unwrap();
        assert_eq!(list.items().wait(), Ok(Vec::new()), "before there is one");
        let item = list.push(b"").wait().unwrap();
        session.create("/list/other", b"", CreateMode::Persistent).wait().unwrap();
        session.create("/list/item-x", b"", CreateMode::Persistent).wait().unwrap();
        assert_eq!(list.items().wait().unwrap(), [item]);
    }

    #[test]
    fn an_item_that_was_set_since_is_not_the_one_that_was_read() {
        let session = Cluster::new(1).node(0).session();
        let list = NodeList::new(&session, "/list").unwrap();
        let item = list.push(b"1").wait().unwrap();
        session.set(item.path(), b"2").wait().unwrap();
        assert_eq!(list.remove(&item).wait(), Ok(false));
        let now = list.items().wait().unwrap();
        assert_eq!(&now[0].data()[..], b"2");
        assert_eq!(list.remove(&now[0]).wait(), Ok(true));
        assert_eq!(list.remove(&now[0]).wait(), Ok(false), "it is gone");
        // The number of a removed item is not used again.
        assert!(list.push(b"3").wait().unwrap().path() > item.path());
    }
}
