//! Reads of the past that return at once. On a member, the calling thread makes the past state; for a client its
//! member does, of the part that is read.

use std::sync::Arc;

use crate::api::nonblocking::NonBlocking;
use crate::api::snapshot::Snapshot;
use crate::machine::{PastTree, TreePart};
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::znode::{Stat, Zxid};

impl NonBlocking<'_> {
    /// See [`Session::snapshot_at`](crate::Session::snapshot_at). While it waits for this replica to catch up, the session's later reads
    /// wait, too. The answer is made in the thread that takes it.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session, zxid: u64) -> quorate::Result<()> {
    /// let then = session.nonblocking().snapshot_at("/config", zxid).await?;
    /// println!("{} bytes", then.get("/config")?.0.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot_at(&self, path: &str, zxid: Zxid) -> Pending<Snapshot> {
        if self.session.has_replica() {
            let (session, root) = (self.session.clone(), self.session.root.clone());
            let convert = move |past: PastTree| {
                Ok(Snapshot::new(Arc::new(past.tree(TreePart::All)), root, session.ids()))
            };
            return self.ask(self.validate(path), |_| Ask::past(zxid), convert);
        }
        let (root, session) = (self.session.root.clone(), self.session.clone());
        let convert = move |tree| Ok(Snapshot::new(tree, root, session.ids()));
        self.read(path, |path| Ask::below_at(path, zxid), convert)
    }

    /// See [`Session::get_at`](crate::Session::get_at).
    ///
    /// ```
    /// # async fn example(session: &quorate::Session, zxid: u64) -> quorate::Result<()> {
    /// let (then, _) = session.nonblocking().get_at("/config", zxid).await?;
    /// println!("{} bytes", then.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_at(&self, path: &str, zxid: Zxid) -> Pending<(Arc<[u8]>, Stat)> {
        match self.session.has_replica() {
            true => self.znode_at(path, zxid, Snapshot::get),
            false => self.read(path, |path| Ask::get_at(path, zxid), Ok),
        }
    }

    /// See [`Session::children_at`](crate::Session::children_at).
    ///
    /// ```
    /// # async fn example(session: &quorate::Session, zxid: u64) -> quorate::Result<()> {
    /// let (then, stat) = session.nonblocking().children_at("/", zxid).await?;
    /// assert_eq!(then.len(), stat.num_children as usize);
    /// # Ok(())
    /// # }
    /// ```
    pub fn children_at(&self, path: &str, zxid: Zxid) -> Pending<(Vec<String>, Stat)> {
        match self.session.has_replica() {
            true => self.znode_at(path, zxid, Snapshot::children_with_stat),
            false => self.read(path, |path| Ask::children_at(path, zxid), Ok),
        }
    }

    /// Reads one znode of the past, of the replica in this process. The reads return errors with whole paths.
    fn znode_at<T: 'static>(
        &self,
        path: &str,
        zxid: Zxid,
        read: impl FnOnce(&Snapshot, &str) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (session, full) = (self.session.clone(), self.session.root.full(path).into_owned());
        let convert = move |past: PastTree| {
            let tree = Arc::new(past.tree(TreePart::Znode(&full)));
            read(&Snapshot::new(tree, Root::default(), session.ids()), &full)
        };
        self.ask(self.validate(path), |_| Ask::past(zxid), convert)
    }
}
