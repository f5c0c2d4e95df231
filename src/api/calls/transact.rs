//! A session's transactions.

use crate::api::session::Session;
use crate::api::transaction::{self, Committed, Transaction};
use crate::types::error::Result;

impl Session {
    /// Reads and writes atomically. Runs `body`, and commits its writes as one [`Multi`](crate::Multi) if nothing
    /// that it read has changed. Otherwise it runs `body` again on the new state, up to
    /// [`Transaction::ATTEMPTS_MAX`](crate::Transaction::ATTEMPTS_MAX) times. A `body` that only
    /// reads sends nothing. Returns the result of `body` and the results of its writes: see
    /// [`Committed`].
    ///
    /// The first run reads this replica, as [`Session::snapshot`] does; call [`Session::sync`] before for current data.
    /// If `body` returns an error, the transaction ends with that error and writes nothing. Blocks
    /// as [`Session::create`] for each attempt.
    ///
    /// # Errors
    /// [`Error::Conflict`](crate::Error::Conflict) after too many attempts; [`Error::Multi`](crate::Error::Multi) if a write failed, with an
    /// index that does not count reads; otherwise as [`Session::create`].
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// session.transact(|transaction| {
    ///     let (data, _) = transaction.get("/a")?;
    ///     transaction.set("/a", [data[0] + 1]);
    ///     Ok(())
    /// })?;
    /// assert_eq!(&session.get("/a")?.0[..], b"2");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn transact<T>(
        &self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<Committed<T>> {
        self.transact_below("/", body)
    }

    /// As [`Session::transact`], for a `body` that reads at and below this path only: a client receives only that part.
    pub(crate) fn transact_below<T>(
        &self,
        path: &str,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<Committed<T>> {
        let mut attempt = 1;
        loop {
            let mut transaction = Transaction::on(self, self.snapshot_of(path)?);
            let value = body(&mut transaction)?;
            let Some((multi, reads)) = transaction.commit() else {
                return Ok(Committed::unwritten(value));
            };
            if let Some(outcome) = transaction::outcome(multi.commit(), value, reads, attempt) {
                return outcome;
            }
            attempt += 1;
        }
    }

    /// As [`Session::transact`], without blocking the thread. It has no time limit.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let committed = session.transact_async(|transaction| {
    ///     let (data, _) = transaction.get("/a")?;
    ///     transaction.set("/a", [data[0] + 1]);
    ///     Ok(())
    /// });
    /// committed.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transact_async<T>(
        &self,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<Committed<T>> {
        let mut attempt = 1;
        loop {
            let mut transaction = Transaction::on(self, self.snapshot_soon("/").await?);
            let value = body(&mut transaction)?;
            let Some((multi, reads)) = transaction.commit() else {
                return Ok(Committed::unwritten(value));
            };
            let committed = multi.submit().await;
            if let Some(outcome) = transaction::outcome(committed, value, reads, attempt) {
                return outcome;
            }
            attempt += 1;
        }
    }
}
