//! A session's transactions.

use crate::api::attempts::Attempts;
use crate::api::session::Session;
use crate::api::transaction::{self, Attempt, Committed, Transaction};
use crate::runtime::pending::Pending;
use crate::types::error::Result;

impl Session {
    /// Reads and writes atomically. Runs `body`, and commits its writes as one [`Multi`](crate::Multi) if nothing
    /// that it read has changed. Otherwise it runs `body` again on the new state, up to
    /// [`Transaction::ATTEMPTS_MAX`](crate::Transaction::ATTEMPTS_MAX) times. After a conflict at a znode, the
    /// transactions of this instance that read it take turns, in the order in which they came. One that waits for its
    /// turn runs `body` again too, which is no attempt. A `body` that only
    /// reads sends nothing. Returns the result of `body` and the results of its writes: see
    /// [`Committed`].
    ///
    /// The first run reads this replica, as [`Session::snapshot`] does; call [`Session::sync`] before for current data.
    /// If `body` returns an error, the transaction ends with that error and writes nothing. Blocks
    /// as [`Session::create`] for each attempt, and for half a second at most for a turn.
    ///
    /// # Errors
    /// [`Error::Conflict`](crate::Error::Conflict) after too many attempts; [`Error::Multi`](crate::Error::Multi) if a write failed, with an
    /// index that does not count reads; otherwise as [`Session::create`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.transact(|transaction| {
    ///     let (data, _) = transaction.get("/a")?;
    ///     transaction.set("/a", [data[0] + 1]);
    ///     Ok(())
    /// }).wait()?;
    /// assert_eq!(&session.get("/a").wait()?.0[..], b"2");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn transact<'a, T: Send + 'a>(
        &'a self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T> + Send + 'a,
    ) -> Pending<'a, Committed<T>> {
        Pending::steps(self.shared(), "transact", "/", self.transact_below("/", body))
    }

    /// As [`Session::transact`], for a `body` that reads at and below this path only: a client receives only that part.
    pub(crate) async fn transact_below<T>(
        &self,
        path: &str,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<Committed<T>> {
        let mut attempts = Attempts::new(self);
        loop {
            if !attempts.is_ready() {
                attempts.ready().await?;
            }
            let mut transaction = Transaction::on(self, self.snapshot_of(path).await?);
            let value = body(&mut transaction)?;
            if !transaction.may_send(&mut attempts) {
                continue;
            }
            let Some((multi, reads)) = transaction.commit() else {
                return Ok(Committed::unwritten(value));
            };
            match transaction::outcome(multi.commit().await, value, reads)? {
                Attempt::Committed(committed) => return Ok(committed),
                Attempt::Overtaken { path } => attempts.overtaken(path)?,
            }
        }
    }
}
