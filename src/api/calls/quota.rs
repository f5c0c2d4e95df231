//! A session's calls about quotas.

use crate::CreateMode;
use crate::api::session::Session;
use crate::api::transaction::Transaction;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::quota::{Quota, Usage, is_counted};
use crate::types::znode::Condition;

impl Session {
    /// Sets the quota of a path, replacing its former one: see [`Quota`]. A new quota counts what
    /// already exists at and below the path. If that exceeds a limit, the call succeeds, but
    /// nothing may be added until there is less.
    ///
    /// # Errors
    /// [`Error::NoNode`]; [`Error::Reserved`] for `/zookeeper` and everything below it, and for
    /// paths that end like a quota's own znodes; otherwise as [`Session::create`].
    ///
    /// ```
    /// use quorate::quota::Quota;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.set_quota("/a", &Quota::new().znodes_hard(2)).wait()?;
    /// session.create("/a/b", b"", CreateMode::Persistent).wait()?;
    /// assert!(session.create("/a/c", b"", CreateMode::Persistent).wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_quota<'a>(&'a self, path: &'a str, quota: &'a Quota) -> Pending<'a, ()> {
        let steps = async move {
            let of = self.quota_root(path)?;
            let session = self.everything();
            let base = Quota::base_path("/");
            let set = session.transact_below(&base, |transaction| {
                // The first write. What it requires is not among what was read.
                transaction.require(&of, Condition::Exists);
                let (limits, stats) = (Quota::limits_path(&of), Quota::stats_path(&of));
                if transaction.is_there(&limits)? {
                    transaction.set(&limits, quota.to_string());
                } else {
                    make_parents(transaction, &of)?;
                    transaction.create(&limits, quota.to_string(), CreateMode::Persistent);
                }
                if !transaction.is_there(&stats)? {
                    transaction.create(&stats, b"", CreateMode::Persistent);
                }
                Ok(())
            });
            let set = set.await.map_err(|error| match error {
                Error::Multi { index: 0, error } => *error,
                error => error,
            });
            set.map(drop).map_err(|error| self.root.error(error))
        };
        Pending::steps(self.shared(), "set_quota", path, steps)
    }

    /// Returns the quota and the usage of a path, as this replica has them; `None` if it has no quota of its own.
    ///
    /// ```
    /// use quorate::quota::Quota;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.set_quota("/a", &Quota::new().bytes(1000)).wait()?;
    /// let (_, usage) = session.quota("/a").wait()?.unwrap();
    /// assert_eq!(usage.znodes, 1);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn quota<'a>(&'a self, path: &'a str) -> Pending<'a, Option<(Quota, Usage)>> {
        let steps = async move {
            let of = self.quota_root(path)?;
            let limits = Quota::limits_path(&of);
            let kept_at = path::parent(&limits).unwrap_or("/");
            let snapshot = self.everything().snapshot_of(kept_at).await?;
            let data = |path: &str| match snapshot.get(path) {
                Ok((data, _)) => Ok(Some(data)),
                Err(Error::NoNode { .. }) => Ok(None),
                Err(error) => Err(self.root.error(error)),
            };
            let limits = data(&limits)?;
            let stats = data(&Quota::stats_path(&of))?;
            Ok(limits
                .zip(stats)
                .map(|(limits, stats)| (Quota::parse(&limits), Usage::parse(&stats))))
        };
        Pending::steps(self.shared(), "quota", path, steps)
    }

    /// Deletes the quota of a path. Not an error if the path has none. Fails as [`Session::create`].
    ///
    /// ```
    /// use quorate::quota::Quota;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.set_quota("/a", &Quota::new().bytes(1000)).wait()?;
    /// session.delete_quota("/a").wait()?;
    /// assert!(session.quota("/a").wait()?.is_none());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delete_quota<'a>(&'a self, path: &'a str) -> Pending<'a, ()> {
        let steps = async move {
            let of = self.quota_root(path)?;
            let session = self.everything();
            let base = Quota::base_path("/");
            let deleted = session.transact_below(&base, |transaction| {
                let mut children = 0;
                for znode in [Quota::limits_path(&of), Quota::stats_path(&of)] {
                    if transaction.is_there(&znode)? {
                        transaction.delete(&znode);
                        children += 1;
                    }
                }
                if children == 0 {
                    return Ok(());
                }
                // Also deletes parents that are then empty.
                let mut at = Quota::base_path(&of);
                while at != base && transaction.children(&at)?.len() == children {
                    transaction.delete(&at);
                    at = path::parent(&at).unwrap_or("/").to_owned();
                    children = 1;
                }
                Ok(())
            });
            deleted.await.map(drop).map_err(|error| self.root.error(error))
        };
        Pending::steps(self.shared(), "delete_quota", path, steps)
    }

    /// Returns the path in the whole tree, or an error if it must not have a quota.
    fn quota_root(&self, path: &str) -> Result<String> {
        path::validate(path)?;
        let full = self.root.full(path).into_owned();
        path::validate(&Quota::limits_path(&full)).map_err(|error| self.root.error(error))?;
        // Quotas' own znodes have these names.
        let is_own = matches!(path::name(&full), "zookeeper_limits" | "zookeeper_stats");
        if is_counted(&full) && !is_own {
            Ok(full)
        } else {
            Err(Error::Reserved { path: path.to_owned() })
        }
    }
}

/// Creates the missing znodes above a quota's own two.
fn make_parents(transaction: &mut Transaction<'_>, of: &str) -> Result<()> {
    let base = Quota::base_path(of);
    let mut missing = Vec::new();
    for at in std::iter::successors(Some(base.as_str()), |at| path::parent(at)) {
        if transaction.is_there(at)? {
            break;
        }
        missing.push(at);
    }
    for path in missing.into_iter().rev() {
        transaction.create(path, b"", CreateMode::Persistent);
    }
    Ok(())
}
