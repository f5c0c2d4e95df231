//! Several reads of one state.

use std::sync::Arc;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::znode::Stat;

/// One read of a [`Session::multi_read`].
///
/// ```
/// use quorate::multi::{ReadOp, ReadResult};
/// use quorate::{CreateMode, Error};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/a", b"1", CreateMode::Persistent).wait()?;
/// session.create("/a/b", b"", CreateMode::Persistent).wait()?;
/// let reads = [ReadOp::Get("/a"), ReadOp::Children("/a"), ReadOp::Get("/none")];
/// let results = session.multi_read(reads).wait()?;
/// assert!(matches!(&results[0], Ok(ReadResult::Data(data, _)) if data[..] == *b"1"));
/// assert!(matches!(&results[1], Ok(ReadResult::Children(names, _)) if *names == ["b"]));
/// assert_eq!(results[2], Err(Error::NoNode { path: "/none".into() }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadOp<'a> {
    /// The data and the stat of the znode at this path.
    Get(&'a str),
    /// The stat of the znode at this path, if there is one.
    Exists(&'a str),
    /// The names of the children of the znode at this path, and its stat.
    Children(&'a str),
    /// The number of znodes below this path.
    AllChildrenNumber(&'a str),
}

/// The result of a [`ReadOp`] at the same index.
///
/// ```
/// use quorate::multi::{ReadOp, ReadResult};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let results = session.snapshot().wait()?.multi_read([ReadOp::Exists("/none")]);
/// assert_eq!(results, [Ok(ReadResult::Exists(None))]);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadResult {
    /// The result of [`ReadOp::Get`].
    Data(Arc<[u8]>, Stat),
    /// The result of [`ReadOp::Exists`].
    Exists(Option<Stat>),
    /// The result of [`ReadOp::Children`]: the names, sorted by their bytes, and the znode's stat.
    Children(Vec<String>, Stat),
    /// The result of [`ReadOp::AllChildrenNumber`].
    AllChildrenNumber(usize),
}

#[cfg(any(test, feature = "simulator"))]
impl<'a> ReadOp<'a> {
    pub(crate) fn path(&self) -> &'a str {
        match self {
            ReadOp::Get(path)
            | ReadOp::Exists(path)
            | ReadOp::Children(path)
            | ReadOp::AllChildrenNumber(path) => path,
        }
    }
}

impl Snapshot {
    /// Does several reads of this snapshot, each with its own result: a read that fails does not
    /// stop the others. See [`ReadOp`].
    ///
    /// Source: ZooKeeper, `multi` of reads, which may be `getData` and `getChildren`.
    pub fn multi_read<'a>(
        &self,
        reads: impl IntoIterator<Item = ReadOp<'a>>,
    ) -> Vec<Result<ReadResult>> {
        let read = |op| match op {
            ReadOp::Get(path) => self.get(path).map(|(data, stat)| ReadResult::Data(data, stat)),
            ReadOp::Exists(path) => self.exists(path).map(ReadResult::Exists),
            ReadOp::Children(path) => self
                .children_with_stat(path)
                .map(|(children, stat)| ReadResult::Children(children, stat)),
            ReadOp::AllChildrenNumber(path) => {
                self.all_children_number(path).map(ReadResult::AllChildrenNumber)
            }
        };
        reads.into_iter().map(read).collect()
    }
}

impl Session {
    /// Does several reads of one state, this replica's present one, each with its own result: see
    /// [`ReadOp`]. Does not block. For reads that depend on earlier results, use a
    /// [`Session::snapshot`].
    ///
    /// # Errors
    /// The errors of a session that is over. The error of a single read is in its result.
    ///
    /// ```
    /// use quorate::multi::ReadOp;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let results = session.multi_read([ReadOp::Get("/a"), ReadOp::Children("/")]).wait()?;
    /// assert!(results.iter().all(|result| result.is_ok()));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn multi_read<'a>(
        &self,
        reads: impl IntoIterator<Item = ReadOp<'a>> + Send + 'a,
    ) -> Pending<'a, Vec<Result<ReadResult>>> {
        self.snapshot().and_then(|shown| Ok(shown.multi_read(reads)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::{CreateMode, Error};

    #[test]
    fn each_read_has_its_own_result_in_its_place() {
        let cluster = Cluster::new(1);
        let session = cluster.node(0).session();
        let a = session.create("/a", b"1", CreateMode::Persistent).wait().unwrap().stat;
        let b = session.create("/a/b", b"", CreateMode::Persistent).wait().unwrap().stat;
        let a = Stat { pzxid: b.czxid, cversion: 1, num_children: 1, ..a };
        let missing = || Err(Error::NoNode { path: "/none".to_owned() });
        let reads = [
            (ReadOp::Get("/none"), missing()),
            (ReadOp::Children("/none"), missing()),
            (ReadOp::AllChildrenNumber("/none"), missing()),
            (ReadOp::Exists("/none"), Ok(ReadResult::Exists(None))),
            (ReadOp::Exists("/a"), Ok(ReadResult::Exists(Some(a)))),
            (ReadOp::Get("/a"), Ok(ReadResult::Data(Arc::from(*b"1"), a))),
            (ReadOp::Get("/a"), Ok(ReadResult::Data(Arc::from(*b"1"), a))),
            (ReadOp::Children("/a"), Ok(ReadResult::Children(vec!["b".to_owned()], a))),
            (ReadOp::Children("/a/b"), Ok(ReadResult::Children(Vec::new(), b))),
            (ReadOp::AllChildrenNumber("/a"), Ok(ReadResult::AllChildrenNumber(1))),
        ];
        let results = session.multi_read(reads.iter().map(|(op, _)| *op)).wait().unwrap();
        assert_eq!(results, reads.map(|(_, result)| result));
        for op in [ReadOp::Get("a"), ReadOp::Exists("/a/"), ReadOp::Children("")] {
            let results = session.multi_read([op, ReadOp::Exists("/none")]).wait().unwrap();
            assert!(matches!(results[0], Err(Error::InvalidPath { .. })), "{results:?}");
            assert_eq!(results[1], Ok(ReadResult::Exists(None)));
        }
        assert_eq!(session.multi_read([]).wait(), Ok(Vec::new()));
        session.close().wait().unwrap();
        assert!(session.multi_read([]).wait().is_err());
    }
}
