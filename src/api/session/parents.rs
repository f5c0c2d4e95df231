//! Creating a znode together with the parents that it lacks.

use crate::api::session::Session;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{CreateMode, Created, OpResult};

impl Session {
    /// As [`Session::create`], but also creates missing parents, as persistent znodes without data
    /// that everybody may use. If no parent is missing, this is one write, as `create` is. Otherwise a
    /// second write creates the parents and the znode, all or none.
    ///
    /// # Errors
    /// As [`Session::create`]; [`Error::NoNode`] only if the root of a chroot is missing, which this
    /// does not create.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create_with_parents("/app/jobs/first", b"1", CreateMode::Persistent).wait()?;
    /// assert_eq!(session.children("/app").wait()?, ["jobs"]);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: Curator, `creatingParentsIfNeeded`; kazoo, `create(makepath=True)`.
    pub fn create_with_parents<'a>(
        &'a self,
        path: &'a str,
        data: impl AsRef<[u8]> + Send + 'a,
        mode: CreateMode,
    ) -> Pending<'a, Created> {
        let steps = async move { create_with_parents(self, path, data.as_ref(), mode).await };
        Pending::steps(self.shared(), "create", path, steps)
    }
}

async fn create_with_parents(
    session: &Session,
    path: &str,
    data: &[u8],
    mode: CreateMode,
) -> Result<Created> {
    loop {
        match session.create(path, data, mode).await {
            Err(Error::NoNode { .. }) => {}
            done => return done,
        }
        // By now this instance sees the state in which the write was refused.
        let mut missing = Vec::new();
        for parent in std::iter::successors(path::parent(path), |path| path::parent(path)) {
            match session.exists(parent).await {
                Ok(None) => missing.push(parent),
                Ok(Some(_)) | Err(Error::NoAuth { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        if let Some(root) = missing.last().filter(|path| path::parent(path).is_none()) {
            return Err(Error::NoNode { path: (*root).to_owned() });
        }
        let mut multi = session.multi();
        for parent in missing.iter().rev() {
            multi = multi.create(parent, b"", CreateMode::Persistent);
        }
        match multi.create(path, data, mode).commit().await {
            Ok(results) => {
                if let Some(OpResult::Created(created)) = results.into_iter().last() {
                    return Ok(created);
                }
                let reason = "a create was answered with something else".to_owned();
                return Err(Error::Stopped { reason });
            }
            Err(Error::Multi { index, error }) => match *error {
                // Other sessions create or delete the parents at the same time.
                Error::NodeExists { .. } if index < missing.len() => {}
                Error::NoNode { .. } => {}
                error => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}
