//! A session's calls that need one write where ZooKeeper needs several.

use crate::api::ops::{check_create, check_data, create_or_set_op, take_over_op};
use crate::api::session::Session;
use crate::machine::command::Op;
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::znode::{CreateMode, Created, SessionId};

impl Session {
    /// Sets the data of a znode, or creates it if it is missing, in one write. Returns the
    /// resulting path and stat. The mode is used only if the znode is created; with a sequential
    /// mode, it always is.
    ///
    /// Fails as [`Session::create`], but never with [`Error::NodeExists`](crate::Error::NodeExists).
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let session = quorate::testing::Cluster::new(1).node(0).session();
    /// for version in 0..2 {
    ///     let stat = session.create_or_set("/beat", b"now", CreateMode::Persistent).wait()?.stat;
    ///     assert_eq!(stat.version, version);
    /// }
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn create_or_set(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
    ) -> Pending<'static, Created> {
        let data = data.as_ref();
        let op = |root: &Root| create_or_set_op(root, path, data, mode);
        self.ask_create_or_set(path, check_create(path, data, mode), op)
    }

    /// Makes a znode an ephemeral of this session, in one write, and returns its path and stat.
    /// Creates the znode if it is missing, and sets its data if it already belongs to this session.
    /// If it belongs to session `from`, deletes it and creates it again with its access list:
    /// nobody ever sees it missing, its watches report both changes, and its `czxid` is new. This
    /// is for an instance that restarts before its former session has expired, and knows that
    /// session's id.
    ///
    /// Fails as [`Session::create`], with [`Error::NodeExists`](crate::Error::NodeExists) if the znode belongs to any
    /// other session, or is not ephemeral.
    ///
    /// ```
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let former = cluster.node(0).session();
    /// former.create("/workers", b"", CreateMode::Persistent).wait()?;
    /// former.create("/workers/a", b"boot 1", CreateMode::Ephemeral).wait()?;
    /// // Kept by the instance, for its next start.
    /// let number = former.id().number();
    /// cluster.stop(0);
    /// cluster.restart(0);
    ///
    /// let session = cluster.node(0).session();
    /// let from = quorate::session::SessionId::from_number(number);
    /// let taken = session.take_over("/workers/a", b"boot 2", from).wait()?;
    /// assert_eq!(taken.stat.ephemeral_owner, Some(session.id()));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn take_over(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        from: SessionId,
    ) -> Pending<'static, Created> {
        let data = data.as_ref();
        let checked = self.validate(path).and_then(|()| check_data(path, data.len()));
        let op = |root: &Root| take_over_op(root, path, data, from);
        self.ask_create_or_set(path, checked, op)
    }

    fn ask_create_or_set(
        &self,
        path: &str,
        checked: Result<()>,
        op: impl FnOnce(&Root) -> Op,
    ) -> Pending<'static, Created> {
        let (path, root) = (path.to_owned(), self.root.clone());
        let convert = move |(created, stat)| match created {
            Some(path) => Ok(root.created(Created { path, stat })),
            None => Ok(Created { path, stat }),
        };
        self.ask(checked, |root| Ask::create_or_set(op(root)), convert)
    }
}
