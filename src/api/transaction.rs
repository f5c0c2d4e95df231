//! Transactions: reads and writes that take effect atomically.

use std::sync::Arc;

use crate::api::attempts::Attempts;
use crate::api::multi::{Fence, Multi};
use crate::api::part::Part;
use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::types::acl::Acl;
use crate::types::error::{Error, Result};
use crate::types::quota;
use crate::types::quota::Usage;
use crate::types::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat};

/// The reads and writes of one attempt of [`Session::transact`].
///
/// Reads show the tree as of the attempt's start, without the transaction's own writes. Writes are
/// collected, and done together, in the order of the calls, if nothing that was read has changed.
/// All operations of a [`Multi`] are available.
///
/// ```
/// use quorate::{CreateMode, Error};
///
/// let session = quorate::testing::Cluster::new(3).node(0).session();
/// session.create("/from", b"3", CreateMode::Persistent).wait()?;
/// session.create("/to", b"0", CreateMode::Persistent).wait()?;
/// // Moves one apple, if there is one.
/// let moved = session.transact(|txn| {
///     let number = |data: &[u8]| data[0] - b'0';
///     let (from, to) = (number(&txn.get("/from")?.0), number(&txn.get("/to")?.0));
///     if from == 0 {
///         return Ok(false);
///     }
///     txn.set("/from", [b'0' + from - 1]);
///     txn.set("/to", [b'0' + to + 1]);
///     Ok(true)
/// }).wait()?;
/// assert!(moved.value);
/// assert_eq!(&session.get("/to").wait()?.0[..], b"1");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Transaction<'a> {
    session: &'a Session,
    snapshot: Snapshot,
    reads: Vec<(String, Condition)>,
    writes: Multi<'a>,
}

impl<'a> Transaction<'a> {
    /// How many times a transaction is tried before it fails with [`Error::Conflict`].
    pub const ATTEMPTS_MAX: u32 = 64;

    pub(crate) fn on(session: &'a Session, snapshot: Snapshot) -> Transaction<'a> {
        Transaction { session, snapshot, reads: Vec::new(), writes: session.multi() }
    }

    /// Returns the tree as of this attempt's start. Reads from it are not checked for changes.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn note(&mut self, path: &str, condition: Condition) {
        let read = (path.to_owned(), condition);
        if !self.reads.contains(&read) {
            self.reads.push(read);
        }
    }

    /// Returns the data and the stat of a znode. The attempt succeeds only if, when it is
    /// committed, the data is still the same or the znode is still missing.
    ///
    /// # Errors
    /// [`Error::NoNode`]; [`Error::InvalidPath`]. These are the errors of all reads of a
    /// transaction.
    pub fn get(&mut self, path: &str) -> Result<(Arc<[u8]>, Stat)> {
        self.exists(path)?;
        self.snapshot.get(path)
    }

    /// Returns the stat of a znode, or `None` if it does not exist. The attempt succeeds only if,
    /// when it is committed, the znode including its data is still the same or still missing; its
    /// children may change.
    pub fn exists(&mut self, path: &str) -> Result<Option<Stat>> {
        let stat = self.snapshot.exists(path)?;
        self.note(path, stat.map_or(Condition::Absent, |stat| Condition::Mzxid(stat.mzxid)));
        // The data of a quota's usage changes with each write below the quota's path, without a
        // change of the mzxid.
        let is_usage = stat.is_some() && quota::of_stats(&self.session.root.full(path)).is_some();
        if is_usage
            && !planted!(UsageUnchecked)
            && let Ok((data, _)) = self.snapshot.get(path)
        {
            let Usage { znodes, bytes } = Usage::parse(&data);
            self.note(path, Condition::Usage { znodes, bytes });
        }
        Ok(stat)
    }

    /// Whether the znode exists. The attempt succeeds only if this is still so when it is
    /// committed.
    pub(crate) fn is_there(&mut self, path: &str) -> Result<bool> {
        let is_there = self.snapshot.exists(path)?.is_some();
        self.note(path, if is_there { Condition::Exists } else { Condition::Absent });
        Ok(is_there)
    }

    /// Returns the names of a znode's children. The attempt succeeds only if no child was created
    /// or deleted until it is committed; the data of the children may change.
    pub fn children(&mut self, path: &str) -> Result<Vec<String>> {
        match self.snapshot.exists(path)? {
            Some(stat) => self.note(path, Condition::Pzxid(stat.pzxid)),
            None => self.note(path, Condition::Absent),
        }
        self.snapshot.children(path)
    }

    fn write(&mut self, add: impl FnOnce(Multi<'a>) -> Multi<'a>) {
        let writes = std::mem::replace(&mut self.writes, self.session.multi());
        self.writes = add(writes);
    }

    /// Requires the znode to have this version: see [`Transaction::require`].
    pub fn check(&mut self, path: &str, version: u64) {
        self.write(|writes| writes.check(path, version));
    }

    /// Requires a condition of the znode, as it is after the transaction's earlier writes. If the
    /// condition does not hold, the transaction fails as [`Multi::require`] does, and does not run
    /// again. Znodes that were read need no condition: they are checked anyway.
    pub fn require(&mut self, path: &str, condition: Condition) {
        self.write(|writes| writes.require(path, condition));
    }

    /// Requires that a lock or the like is still held: see [`Fence`]. If it was lost, the transaction
    /// fails with [`Error::Multi`] and does not run again.
    pub fn fence(&mut self, fence: &Fence) {
        self.write(|writes| writes.fence(fence));
    }

    /// Adds a step of a recipe: see [`Part`]. If it fails, the transaction does, and does not run again.
    pub fn with(&mut self, part: &Part) {
        self.write(|writes| writes.with(part));
    }

    /// Creates a znode on commit: see [`Session::create`].
    pub fn create(&mut self, path: &str, data: impl AsRef<[u8]>, mode: CreateMode) {
        self.write(|writes| writes.create(path, data, mode));
    }

    /// Creates a znode with an access list: see [`Session::create_with_acl`].
    pub fn create_with_acl(
        &mut self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
        acl: &[Acl],
    ) {
        self.write(|writes| writes.create_with_acl(path, data, mode, acl));
    }

    /// Sets the data of a znode, or creates it: see [`Session::create_or_set`].
    pub fn create_or_set(&mut self, path: &str, data: impl AsRef<[u8]>, mode: CreateMode) {
        self.write(|writes| writes.create_or_set(path, data, mode));
    }

    /// Makes a znode an ephemeral of this session: see [`Session::take_over`].
    pub fn take_over(&mut self, path: &str, data: impl AsRef<[u8]>, from: SessionId) {
        self.write(|writes| writes.take_over(path, data, from));
    }

    /// Replaces the data of a znode on commit: see [`Session::set`].
    pub fn set(&mut self, path: &str, data: impl AsRef<[u8]>) {
        self.write(|writes| writes.set(path, data));
    }

    /// Replaces the data of a znode if it has this version: see [`Session::set_if`].
    pub fn set_if(&mut self, path: &str, data: impl AsRef<[u8]>, version: u64) {
        self.write(|writes| writes.set_if(path, data, version));
    }

    /// Replaces the access list of a znode: see [`Session::set_acl`].
    pub fn set_acl(&mut self, path: &str, acl: &[Acl]) {
        self.write(|writes| writes.set_acl(path, acl));
    }

    /// Replaces the access list of a znode if it has this aversion: see [`Session::set_acl_if`].
    pub fn set_acl_if(&mut self, path: &str, acl: &[Acl], aversion: u64) {
        self.write(|writes| writes.set_acl_if(path, acl, aversion));
    }

    /// Deletes a znode on commit: see [`Session::delete`].
    pub fn delete(&mut self, path: &str) {
        self.write(|writes| writes.delete(path));
    }

    /// Deletes a znode if it has this version: see [`Session::delete_if`].
    pub fn delete_if(&mut self, path: &str, version: u64) {
        self.write(|writes| writes.delete_if(path, version));
    }

    /// Deletes a znode and everything below it: see [`Session::delete_recursive`].
    pub fn delete_recursive(&mut self, path: &str) {
        self.write(|writes| writes.delete_recursive(path));
    }

    /// Whether it may be sent now: see [`Attempts::may_send`].
    pub(crate) fn may_send(&self, attempts: &mut Attempts<'_>) -> bool {
        self.writes.is_empty() || attempts.may_send(&self.reads)
    }

    /// The multi to commit, and the number of its leading checks; `None` if nothing is written.
    pub(crate) fn commit(self) -> Option<(Multi<'a>, usize)> {
        let reads = self.reads.len();
        (!self.writes.is_empty()).then(|| (self.writes.after(self.reads), reads))
    }
}

/// The result of [`Session::transact`].
///
/// ```
/// use quorate::CreateMode;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// session.create("/jobs", b"", CreateMode::Persistent).wait()?;
/// let mode = CreateMode::PersistentSequential;
/// let done = session.transact(|txn| Ok(txn.create("/jobs/job-", b"", mode))).wait()?;
/// assert_eq!(done.created().next().expect("one").path, "/jobs/job-0000000000");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed<T> {
    /// The result of the closure's last run.
    pub value: T,
    /// The results of its writes and required conditions, in order. Empty if there were none.
    pub results: Vec<OpResult>,
}

impl<T> Committed<T> {
    /// Returns the znodes that it created, in the order of its writes.
    pub fn created(&self) -> impl Iterator<Item = &Created> {
        self.results.iter().filter_map(|result| match result {
            OpResult::Created(created) => Some(created),
            _ => None,
        })
    }

    /// The result of a transaction that had nothing to write.
    pub(crate) fn unwritten(value: T) -> Committed<T> {
        Committed { value, results: Vec::new() }
    }
}

/// The result of an attempt to commit.
pub(crate) enum Attempt<T> {
    Committed(Committed<T>),
    /// Another write of this znode came first, and the transaction has to run again.
    Overtaken {
        path: String,
    },
}

/// What became of an attempt, by the result of its multi, whose first operations check what was read.
pub(crate) fn outcome<T>(
    committed: Result<Vec<OpResult>>,
    value: T,
    reads: usize,
) -> Result<Attempt<T>> {
    match committed {
        // The checks of reads are not operations of the caller.
        Ok(mut results) => {
            results.drain(..reads.min(results.len()));
            Ok(Attempt::Committed(Committed { value, results }))
        }
        Err(Error::Multi { index, error }) if index < reads => match *error {
            Error::NoNode { path }
            | Error::NodeExists { path }
            | Error::Unmet { path, .. }
            | Error::BadVersion { path, .. } => Ok(Attempt::Overtaken { path }),
            error => Err(error),
        },
        Err(Error::Multi { index, error }) => Err(Error::Multi { index: index - reads, error }),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[test]
    fn a_change_of_anything_read_makes_it_run_again() {
        let cluster = Cluster::new(1);
        let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
        one.create("/dir", b"", CreateMode::Persistent).wait().unwrap();
        one.create("/out", b"", CreateMode::Persistent).wait().unwrap();
        type Read = fn(&mut Transaction<'_>) -> Result<()>;
        type Change = fn(&Session) -> Result<()>;
        let cases: [(Read, Change); 5] = [
            (|txn| txn.get("/dir").map(drop), |other| other.set("/dir", b"1").wait().map(drop)),
            // Another znode with the same version.
            (
                |txn| txn.exists("/dir").map(drop),
                |other| {
                    let (data, stat) = other.get("/dir").wait()?;
                    other.delete("/dir").wait()?;
                    other.create("/dir", data, CreateMode::Persistent).wait()?;
                    (0..stat.version).try_for_each(|_| other.set("/dir", b"").wait().map(drop))
                },
            ),
            (
                |txn| txn.children("/dir").map(drop),
                |other| other.create("/dir/x", b"", CreateMode::Persistent).wait().map(drop),
            ),
            (
                |txn| txn.exists("/new").map(drop),
                |other| other.create("/new", b"", CreateMode::Persistent).wait().map(drop),
            ),
            (|txn| txn.get("/new").map(drop), |other| other.delete("/new").wait()),
        ];
        for (number, (read, change)) in cases.into_iter().enumerate() {
            let mut runs = 0;
            let result = one.transact(|txn| {
                let read = read(txn);
                if runs == 0 {
                    change(&two)?;
                }
                runs += 1;
                txn.set("/out", [runs]);
                Ok(read.is_ok())
            });
            let result = result.wait();
            assert_eq!((result.is_ok(), runs), (true, 2), "case {number}: {result:?}");
            assert_eq!(&one.get("/out").wait().unwrap().0[..], [2]);
        }
    }

    #[test]
    fn unrelated_changes_do_not_disturb_it() {
        let cluster = Cluster::new(1);
        let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
        for path in ["/a", "/a/b", "/c"] {
            one.create(path, b"", CreateMode::Persistent).wait().unwrap();
        }
        let mut runs = 0;
        one.transact(|txn| {
            runs += 1;
            txn.get("/a")?;
            txn.children("/c")?;
            assert!(txn.snapshot().get("/a/b").is_ok());
            two.create("/a/x", b"", CreateMode::Persistent)
                .wait()
                .map(drop)
                .or(Ok::<(), Error>(()))?;
            two.set("/c", b"1").wait()?;
            two.set("/a/b", b"1").wait()?;
            txn.create("/done", b"", CreateMode::Persistent);
            Ok(())
        })
        .wait()
        .unwrap();
        assert_eq!(runs, 1);
        assert!(one.exists("/done").wait().unwrap().is_some());
    }

    #[test]
    fn a_transaction_has_all_operations_of_a_multi_and_their_results() {
        let cluster = Cluster::new(1);
        let session = cluster.node(0).session();
        for path in ["/a", "/b", "/tree", "/tree/x"] {
            session.create(path, b"", CreateMode::Persistent).wait().unwrap();
        }
        let (mode, open) = (CreateMode::PersistentSequential, Acl::open());
        let done = session
            .transact(|txn| {
                txn.children("/")?;
                txn.exists("/missing")?;
                txn.check("/a", 0);
                txn.require("/missing", Condition::Absent);
                txn.create("/s-", b"", mode);
                txn.create_with_acl("/acl", b"", CreateMode::Persistent, &open);
                txn.create_or_set("/a", b"1", CreateMode::Persistent);
                txn.take_over("/own", b"", SessionId::from_number(7));
                txn.set("/a", b"2");
                txn.set_if("/a", b"3", 2);
                txn.set_acl("/a", &open);
                txn.set_acl_if("/a", &open, 1);
                txn.delete("/b");
                txn.delete_if("/a", 3);
                txn.delete_recursive("/tree");
                Ok("done")
            })
            .wait()
            .unwrap();
        assert_eq!((done.value, done.results.len()), ("done", 13));
        assert_eq!(done.results[..2], [OpResult::Checked, OpResult::Checked]);
        let created: Vec<&str> = done.created().map(|created| &*created.path).collect();
        assert_eq!(created, ["/s-0000000003", "/acl", "/own"]);
        assert!(session.exists(created[0]).wait().unwrap().is_some());
        assert_eq!(
            session.children("/").wait().unwrap(),
            ["acl", "own", "s-0000000003", "zookeeper"]
        );
    }

    #[test]
    fn required_conditions_are_not_checks_of_reads() {
        let session = Cluster::new(1).node(0).session();
        session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
        let mut runs = 0;
        let failed = session.transact(|txn| {
            runs += 1;
            txn.get("/a")?;
            txn.set("/a", b"1");
            txn.check("/a", 7);
            Ok(())
        });
        let failed = failed.wait();
        let error = Box::new(Error::BadVersion { path: "/a".to_owned(), expected: 7, actual: 1 });
        assert_eq!((failed, runs), (Err(Error::Multi { index: 1, error }), 1));
    }

    #[test]
    fn a_transaction_gives_up_after_the_last_attempt() {
        let cluster = Cluster::new(1);
        let (one, two) = (cluster.node(0).session(), cluster.node(0).open_session().unwrap());
        one.create("/a", b"", CreateMode::Persistent).wait().unwrap();
        let overtaken = one.transact(|txn| {
            txn.get("/a")?;
            two.set("/a", b"").wait()?;
            txn.set("/a", b"mine");
            Ok(())
        });
        let attempts = Transaction::ATTEMPTS_MAX;
        assert_eq!(overtaken.wait(), Err(Error::Conflict { path: "/a".to_owned(), attempts }));
        // Indexes do not count the checks.
        let failed = one.transact(|txn| {
            txn.get("/a")?;
            txn.set("/a", b"mine");
            txn.delete("/missing");
            Ok(())
        });
        let error = Box::new(Error::NoNode { path: "/missing".to_owned() });
        assert_eq!(failed.wait(), Err(Error::Multi { index: 1, error }));
        assert!(one.get("/a").wait().unwrap().0.is_empty());
        // Without writes, nothing is sent; an error of the closure ends the transaction.
        let zxid = one.snapshot().wait().unwrap().zxid();
        let read = one.transact(|txn| Ok(txn.children("/")?.len()));
        assert_eq!(read.wait(), Ok(Committed { value: 2, results: Vec::new() }));
        let missing = Error::NoNode { path: "/missing".to_owned() };
        assert_eq!(one.transact(|txn| txn.get("/missing").map(drop)).wait(), Err(missing));
        assert_eq!(one.snapshot().wait().unwrap().zxid(), zxid);
    }

    /// Of 16,000 transactions of eight threads on one znode, 400 gave up: they were tried again at once, all
    /// together, and those of the slowest lost each time.
    #[test]
    fn transactions_on_one_znode_all_get_their_turn() {
        let cluster = Cluster::new(3);
        let sessions: Vec<_> = (0..3).map(|node| cluster.node(node).session()).collect();
        sessions[0].create("/n", b"0", CreateMode::Persistent).wait().unwrap();
        for session in &sessions {
            session.sync().wait().unwrap();
        }
        let (threads, each) = (8, 40);
        std::thread::scope(|scope| {
            for number in 0..threads {
                let session = &sessions[number % sessions.len()];
                scope.spawn(move || {
                    for _ in 0..each {
                        let added = session.transact(|txn| {
                            let (data, _) = txn.get("/n")?;
                            let text = String::from_utf8_lossy(&data).into_owned();
                            let number: u32 = text.parse().unwrap();
                            txn.set("/n", (number + 1).to_string());
                            Ok(())
                        });
                        added.wait().unwrap();
                    }
                });
            }
        });
        sessions[0].sync().wait().unwrap();
        let counted = (threads * each).to_string();
        assert_eq!(&sessions[0].get("/n").wait().unwrap().0[..], counted.as_bytes());
    }

    /// A turn is advice: whoever needs another's znode inside of a transaction does not wait for itself for ever.
    #[test]
    fn a_transaction_within_another_on_the_same_znode_is_done() {
        let session = Cluster::new(1).node(0).session();
        session.create("/a", b"0", CreateMode::Persistent).wait().unwrap();
        let mut runs = 0;
        let add = |txn: &mut Transaction<'_>| {
            let (data, _) = txn.get("/a")?;
            txn.set("/a", [data[0] + 1]);
            Ok(())
        };
        let outer = session.transact(|txn| {
            runs += 1;
            txn.get("/a")?;
            // Only at the second run, the outer one has a turn.
            if runs <= 2 {
                session.transact(add).wait()?;
            }
            add(txn)
        });
        let outer = outer.wait();
        assert!(outer.is_ok(), "{outer:?}");
        assert_eq!((runs, &session.get("/a").wait().unwrap().0[..]), (3, &[b'0' + 3][..]));
    }
}
