//! A shared number.
//!
//! Source: Curator, `DistributedAtomicLong`; Kazoo, `Counter`.

use crate::api::part::Part;
use crate::api::session::Session;
use crate::recipes::atomic_value::{AtomicValue, Content};
use crate::runtime::pending::Pending;
use crate::types::counter::CounterForm;
use crate::types::error::Result;

/// A number that all instances share, 0 until its first change.
///
/// Each change is done **exactly once**, whatever happens to messages and leaders, and all changes
/// are in one order: each starts from the result of the one before. A caller is uncertain about its
/// change only if it stops waiting ([`Error::Timeout`](crate::Error::Timeout)) or loses the session during the call
/// ([`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown)); the library does not repeat the change in these cases.
///
/// There is no lock, so a participant that stalls delays nobody. An addition is one operation of the cluster: it costs
/// one write, and additions do not conflict. The other changes read the number first. After a conflict they wait for
/// a random time and try again, [`Transaction::ATTEMPTS_MAX`](crate::Transaction::ATTEMPTS_MAX) times at most. If the
/// numbers only have to be unique, [`IdGenerator`](crate::recipes::IdGenerator) is far cheaper.
///
/// The znode's data is the number as eight bytes in big-endian order, as that of Curator's `DistributedAtomicLong`;
/// [`Counter::with_form`] has the forms of other counters. Empty data is 0. Missing parents are created as
/// containers.
///
/// ```
/// use quorate::{recipes::Counter, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let here = Counter::new(&cluster.node(0).session(), "/visits")?;
/// let there = Counter::new(&cluster.node(1).session(), "/visits")?;
/// here.add(2).wait()?;
/// assert_eq!(there.add(-5).wait()?, -3);
/// assert!(there.compare_and_set(-3, 100).wait()?);
/// assert!(!here.compare_and_set(-3, 200).wait()?);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    value: AtomicValue,
    form: CounterForm,
}

impl Counter {
    /// Returns the counter at this path. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<Counter> {
        Ok(Counter { value: AtomicValue::new(session, path)?, form: CounterForm::default() })
    }

    /// Returns the same counter, whose data has another form: see [`CounterForm`]. All that use one counter need the
    /// same form.
    #[must_use]
    pub fn with_form(mut self, form: CounterForm) -> Counter {
        self.form = form;
        self
    }

    fn session(&self) -> &Session {
        self.value.session()
    }

    /// The path of its znode, to read it in a [`Transaction`](crate::Transaction) or a snapshot.
    pub fn path(&self) -> &str {
        self.value.path()
    }

    fn decode(&self, content: Option<&Content>) -> Result<i64> {
        let Some(content) = content else { return Ok(0) };
        self.form.decode(&content.data).map_err(|reason| self.value.invalid(reason))
    }

    /// Returns the value as this replica has it; after [`Session::sync`], it is current.
    ///
    /// # Errors
    /// [`Error::InvalidData`](crate::Error::InvalidData) if the znode does not hold a number;
    /// [`Error::NoAuth`](crate::Error::NoAuth); the errors of a session that is over.
    pub fn get(&self) -> Pending<'_, i64> {
        self.session().steps("get", self.path(), self.reading())
    }

    async fn reading(&self) -> Result<i64> {
        self.decode(self.value.read_soon().await?.as_ref())
    }

    /// Returns the value before.
    async fn change(&self, change: impl Fn(i64) -> Result<Option<i64>>) -> Result<i64> {
        let changed = self.value.update(|content| {
            let before = self.decode(content)?;
            let after = change(before)?;
            let encode = |after| {
                let too_large = || self.value.invalid(format!("{after} has no such form"));
                self.form.encode(after).ok_or_else(too_large)
            };
            let data = after.map(encode).transpose()?;
            Ok((data, before))
        });
        Ok(changed.await?.0)
    }

    /// Adds a number, which may be negative, and returns the sum.
    ///
    /// # Errors
    /// [`Error::InvalidData`](crate::Error::InvalidData) if the counter's form cannot show the sum, or the znode does not
    /// hold a number: nothing was added. Otherwise as [`Session::set`].
    pub fn add(&self, number: i64) -> Pending<'_, i64> {
        self.session().steps("add", self.path(), self.adding(number))
    }

    async fn adding(&self, number: i64) -> Result<i64> {
        self.value.add(number, self.form).await
    }

    /// An addition as a part of another write: see [`Part`]. The counter's znode must exist by then, as it does after
    /// any change, for example of 0. The sum is in [`OpResult::Added`](crate::multi::OpResult::Added). Two such additions
    /// do not conflict.
    ///
    /// If the counter's form cannot show the sum, or the znode does not hold a number, the write fails with
    /// [`Error::InvalidData`](crate::Error::InvalidData) within [`Error::Multi`](crate::Error::Multi).
    ///
    /// ```
    /// use quorate::multi::OpResult;
    /// use quorate::recipes::Counter;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let counter = Counter::new(&session, "/orders")?;
    /// counter.add(7).wait()?;
    /// let results = session.multi().with(&counter.add_part(1)).commit().wait()?;
    /// assert!(matches!(results[0], OpResult::Added { after: 8, .. }));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn add_part(&self, number: i64) -> Part {
        Part::of(Ok(self.session().multi().add(self.path(), number, self.form)))
    }

    /// Sets the counter unconditionally, and returns the value before. Fails as [`Counter::add`].
    pub fn set(&self, value: i64) -> Pending<'_, i64> {
        self.session().steps("set", self.path(), self.setting(value))
    }

    async fn setting(&self, value: i64) -> Result<i64> {
        self.change(|_| Ok(Some(value))).await
    }

    /// Sets the counter if its value is `expected`, and returns whether it was set. Fails as [`Counter::add`].
    pub fn compare_and_set(&self, expected: i64, value: i64) -> Pending<'_, bool> {
        self.session().steps("compare_and_set", self.path(), self.replacing(expected, value))
    }

    async fn replacing(&self, expected: i64, value: i64) -> Result<bool> {
        // This replica may be behind. If this returns `false`, the value must have differed at some
        // moment during the call.
        self.value.session().sync().await?;
        let set = |before| Ok((before == expected).then_some(value));
        Ok(self.change(set).await? == expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::error::Error;
    use crate::types::znode::CreateMode;

    #[test]
    fn only_8_bytes_are_a_number() {
        let session = Cluster::new(1).node(0).session();
        let counter = Counter::new(&session, "/n").unwrap();
        assert_eq!(counter.get().wait(), Ok(0), "before there is one");
        session.create("/n", b"", CreateMode::Persistent).wait().unwrap();
        for data in [&b"1"[..], b"1234567", b"123456789"] {
            session.set("/n", data).wait().unwrap();
            let before = session.get("/n").wait().unwrap().1;
            assert!(matches!(counter.get().wait(), Err(Error::InvalidData { .. })), "{data:?}");
            // Data that cannot be decoded is not replaced.
            for changed in
                [counter.add(1).wait().map(drop), counter.compare_and_set(0, 1).wait().map(drop)]
            {
                assert!(matches!(changed, Err(Error::InvalidData { .. })), "{data:?}");
            }
            assert_eq!(session.get("/n").wait().unwrap().1, before);
        }
        for value in [0, 1, -1, i64::MAX, i64::MIN] {
            session.set("/n", value.to_be_bytes()).wait().unwrap();
            assert_eq!(counter.get().wait(), Ok(value));
        }
    }

    #[test]
    fn a_counter_ends_where_its_numbers_do() {
        let session = Cluster::new(1).node(0).session();
        let counter = Counter::new(&session, "/n").unwrap();
        for (start, step) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
            counter.set(start).wait().unwrap();
            let Err(Error::InvalidData { path, reason }) = counter.add(step).wait() else {
                panic!()
            };
            assert!(path == "/n" && reason.contains(&start.to_string()), "{reason}");
            assert_eq!(counter.get().wait(), Ok(start), "it stays as it was");
        }
        assert_eq!(counter.set(i64::MIN).wait(), Ok(-2));
        assert_eq!(counter.add(i64::MAX).wait(), Ok(-1));
    }

    #[test]
    fn each_form_is_that_of_its_client() {
        let session = Cluster::new(1).node(0).session();
        // As Java's `ByteBuffer` and Python's `repr` have them.
        for (form, data) in [
            (CounterForm::Long, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe][..]),
            (CounterForm::Int, &[0xff, 0xff, 0xff, 0xfe]),
            (CounterForm::Text, b"-2"),
        ] {
            let counter = Counter::new(&session, &format!("/{form:?}")).unwrap().with_form(form);
            // kazoo creates the znode before the first number.
            session.create(counter.path(), b"", crate::CreateMode::Persistent).wait().unwrap();
            assert_eq!(counter.get().wait(), Ok(0));
            counter.add(-2).wait().unwrap();
            assert_eq!(&*session.get(counter.path()).wait().unwrap().0, data);
            assert_eq!(counter.add(5).wait(), Ok(3));
            session.set(counter.path(), b"a third").wait().unwrap();
            assert!(matches!(counter.get().wait(), Err(Error::InvalidData { .. })), "{form:?}");
        }
        let counter = Counter::new(&session, "/small").unwrap().with_form(CounterForm::Int);
        counter.set(i64::from(i32::MAX)).wait().unwrap();
        assert!(matches!(counter.add(1).wait(), Err(Error::InvalidData { .. })));
        assert_eq!(counter.get().wait(), Ok(i64::from(i32::MAX)), "it stays as it was");
    }

    #[test]
    fn a_failed_compare_and_set_writes_nothing() {
        let session = Cluster::new(1).node(0).session();
        let counter = Counter::new(&session, "/n").unwrap();
        assert_eq!(counter.compare_and_set(7, 8).wait(), Ok(false));
        assert!(session.exists("/n").wait().unwrap().is_none(), "nothing was compared with 0");
        assert_eq!(counter.compare_and_set(0, 8).wait(), Ok(true), "one that is missing is 0");
        let before = session.get("/n").wait().unwrap().1;
        assert_eq!(counter.compare_and_set(0, 8).wait(), Ok(false), "it is 8 by now");
        assert_eq!(session.get("/n").wait().unwrap().1, before);
    }
}
