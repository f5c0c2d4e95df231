//! A shared number.
//!
//! Source: Curator, `DistributedAtomicLong`; Kazoo, `Counter`.

use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::atomic_value::{AtomicValue, Content};
use crate::recipes::blocking;
use crate::types::error::{Error, Result};

/// The result of a change of a [`Counter`].
///
/// ```
/// use quorate::{recipes::Counter, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let added = Counter::new(&session, "/visits")?.add(3)?;
/// assert_eq!((added.before, added.after), (0, 3));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Counted {
    /// The value before.
    pub before: i64,
    /// The value after.
    pub after: i64,
}

/// A number that all instances share, 0 until its first change.
///
/// Each change is done **exactly once**, whatever happens to messages and leaders, and all changes
/// are in one order: each starts from the result of the one before. A caller is uncertain about its
/// change only if it stops waiting ([`Error::Timeout`]) or loses the session during the call
/// ([`Error::OutcomeUnknown`]); the library does not repeat the change in these cases.
///
/// There is no lock, so a participant that stalls delays nobody. A change costs one write if nobody
/// else changes the counter at the same time. After a conflict it waits for a random time and tries
/// again, [`TRANSACTION_ATTEMPTS_MAX`](crate::TRANSACTION_ATTEMPTS_MAX) times at most. If the
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
/// here.add(2)?;
/// assert_eq!(there.add(-5)?.after, -3);
/// assert!(there.compare_and_set(-3, 100)?);
/// assert!(!here.compare_and_set(-3, 200)?);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    value: AtomicValue,
    form: CounterForm,
}

/// How the data of a [`Counter`] shows its number, so that clients in other languages count with it: see
/// [`Counter::with_form`].
///
/// ```
/// use quorate::recipes::{Counter, CounterForm};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let counter = Counter::new(&session, "/visits")?.with_form(CounterForm::Text);
/// counter.add(7)?;
/// assert_eq!(&*session.get("/visits")?.0, b"7");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CounterForm {
    /// Eight bytes in big-endian order: Curator's `DistributedAtomicLong`.
    #[default]
    Long,
    /// Four bytes in big-endian order: Curator's `SharedCount` and `DistributedAtomicInteger`, and kazoo's `Counter`
    /// with `support_curator`.
    Int,
    /// Decimal digits: kazoo's `Counter`.
    Text,
}

impl CounterForm {
    fn decode(self, data: &[u8]) -> Result<i64, String> {
        if data.is_empty() {
            return Ok(0);
        }
        let wrong = |bytes| format!("{} bytes, and a number has {bytes}", data.len());
        match self {
            CounterForm::Long => data.try_into().map(i64::from_be_bytes).map_err(|_| wrong(8)),
            CounterForm::Int => {
                data.try_into().map(|data| i32::from_be_bytes(data).into()).map_err(|_| wrong(4))
            }
            CounterForm::Text => {
                let text = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok());
                text.ok_or_else(|| format!("{:?} is no number", String::from_utf8_lossy(data)))
            }
        }
    }

    /// `None` if the form cannot show the number.
    fn encode(self, number: i64) -> Option<Vec<u8>> {
        match self {
            CounterForm::Long => Some(number.to_be_bytes().to_vec()),
            CounterForm::Int => Some(i32::try_from(number).ok()?.to_be_bytes().to_vec()),
            CounterForm::Text => Some(number.to_string().into_bytes()),
        }
    }
}

impl Counter {
    /// Returns the counter at this path. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
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

    /// The counter's path.
    pub fn path(&self) -> &str {
        self.value.path()
    }

    fn decode(&self, content: Option<&Content>) -> Result<i64> {
        let Some(content) = content else { return Ok(0) };
        self.form.decode(&content.data).map_err(|reason| self.value.invalid(reason))
    }

    /// Returns the value as this replica has it; after [`Session::sync`], it is current. Blocks as
    /// [`Session::get`].
    ///
    /// # Errors
    /// [`Error::InvalidData`] if the znode does not hold a number; [`Error::NoAuth`]; the errors of
    /// a session that is over.
    pub fn get(&self) -> Result<i64> {
        self.decode(self.value.read_now()?.as_ref())
    }

    /// As [`Counter::get`], without blocking the thread.
    ///
    /// ```
    /// # async fn example(counter: &quorate::recipes::Counter) -> quorate::Result<()> {
    /// println!("{}", counter.get_async().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_async(&self) -> Result<i64> {
        self.decode(self.value.read_soon().await?.as_ref())
    }

    fn out_of_range(&self, before: i64, number: i64) -> Error {
        self.value.invalid(format!("{before} and {number} are more than a counter can hold"))
    }

    async fn change(&self, change: impl Fn(i64) -> Result<Option<i64>>) -> Result<Counted> {
        let changed = self.value.update(|content| {
            let before = self.decode(content)?;
            let after = change(before)?;
            let encode = |after| {
                let too_large = || self.value.invalid(format!("{after} has no such form"));
                self.form.encode(after).ok_or_else(too_large)
            };
            let data = after.map(encode).transpose()?;
            Ok((data, Counted { before, after: after.unwrap_or(before) }))
        });
        Ok(changed.await?.0)
    }

    fn wait<T>(&self, operation: &str, future: impl Future<Output = Result<T>>) -> Result<T> {
        blocking::request(self.value.session(), operation, self.path(), future)
    }

    /// Adds a number, which may be negative, and returns the values before and after. Blocks for
    /// the request timeout at most.
    ///
    /// # Errors
    /// [`Error::InvalidData`] if the sum does not fit an `i64`, or the znode does not hold a
    /// number; [`Error::Conflict`] after too many attempts. Nothing was added in these cases.
    /// Otherwise as [`Session::set`].
    pub fn add(&self, number: i64) -> Result<Counted> {
        self.wait("add", self.add_async(number))
    }

    /// As [`Counter::add`], without blocking the thread. If the future is dropped, the number may
    /// or may not be added.
    ///
    /// ```
    /// # async fn example(counter: &quorate::recipes::Counter) -> quorate::Result<()> {
    /// counter.add_async(1).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add_async(&self, number: i64) -> Result<Counted> {
        self.change(|before| match before.checked_add(number) {
            Some(after) => Ok(Some(after)),
            None => Err(self.out_of_range(before, number)),
        })
        .await
    }

    /// Sets the counter unconditionally, and returns the values before and after. Blocks and fails
    /// as [`Counter::add`].
    pub fn set(&self, value: i64) -> Result<Counted> {
        self.wait("set", self.set_async(value))
    }

    /// As [`Counter::set`], without blocking the thread.
    ///
    /// ```
    /// # async fn example(counter: &quorate::recipes::Counter) -> quorate::Result<()> {
    /// counter.set_async(0).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_async(&self, value: i64) -> Result<Counted> {
        self.change(|_| Ok(Some(value))).await
    }

    /// Sets the counter if its value is `expected`, and returns whether it was set. Blocks and
    /// fails as [`Counter::add`].
    pub fn compare_and_set(&self, expected: i64, value: i64) -> Result<bool> {
        self.wait("compare and set", self.compare_and_set_async(expected, value))
    }

    /// As [`Counter::compare_and_set`], without blocking the thread.
    ///
    /// ```
    /// # async fn example(counter: &quorate::recipes::Counter) -> quorate::Result<()> {
    /// let is_reset = counter.compare_and_set_async(100, 0).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn compare_and_set_async(&self, expected: i64, value: i64) -> Result<bool> {
        // This replica may be behind. If this returns `false`, the value must have differed at some
        // moment during the call.
        self.value.session().nonblocking().sync().await?;
        let set = |before| Ok((before == expected).then_some(value));
        Ok(self.change(set).await?.before == expected)
    }

    /// As [`Counter::add`], at most for `timeout`. `None` if the change was not confirmed by then;
    /// it may still be done later.
    ///
    /// # Errors
    /// As [`Counter::add`], except [`Error::Timeout`].
    pub fn add_timeout(&self, number: i64, timeout: Duration) -> Result<Option<Counted>> {
        blocking::within(self.value.session(), timeout, self.add_async(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    #[test]
    fn only_8_bytes_are_a_number() {
        let session = Cluster::new(1).node(0).session();
        let counter = Counter::new(&session, "/n").unwrap();
        assert_eq!(counter.get(), Ok(0), "before there is one");
        session.create("/n", b"", CreateMode::Persistent).unwrap();
        for data in [&b"1"[..], b"1234567", b"123456789"] {
            session.set("/n", data).unwrap();
            let before = session.get("/n").unwrap().1;
            assert!(matches!(counter.get(), Err(Error::InvalidData { .. })), "{data:?}");
            // Data that cannot be decoded is not replaced.
            for changed in [counter.add(1).map(drop), counter.compare_and_set(0, 1).map(drop)] {
                assert!(matches!(changed, Err(Error::InvalidData { .. })), "{data:?}");
            }
            assert_eq!(session.get("/n").unwrap().1, before);
        }
        for value in [0, 1, -1, i64::MAX, i64::MIN] {
            session.set("/n", value.to_be_bytes()).unwrap();
            assert_eq!(counter.get(), Ok(value));
        }
    }

    #[test]
    fn a_counter_ends_where_its_numbers_do() {
        let session = Cluster::new(1).node(0).session();
        let counter = Counter::new(&session, "/n").unwrap();
        for (start, step) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
            counter.set(start).unwrap();
            let Err(Error::InvalidData { path, reason }) = counter.add(step) else { panic!() };
            assert!(path == "/n" && reason.contains(&start.to_string()), "{reason}");
            assert_eq!(counter.get(), Ok(start), "it stays as it was");
        }
        assert_eq!(counter.set(i64::MIN).unwrap().before, -2);
        let changed = counter.add(i64::MAX).unwrap();
        assert_eq!((changed.before, changed.after), (i64::MIN, -1));
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
            session.create(counter.path(), b"", crate::CreateMode::Persistent).unwrap();
            assert_eq!(counter.get(), Ok(0));
            counter.add(-2).unwrap();
            assert_eq!(&*session.get(counter.path()).unwrap().0, data);
            assert_eq!(counter.add(5).unwrap().after, 3);
            session.set(counter.path(), b"a third").unwrap();
            assert!(matches!(counter.get(), Err(Error::InvalidData { .. })), "{form:?}");
        }
        let counter = Counter::new(&session, "/small").unwrap().with_form(CounterForm::Int);
        counter.set(i64::from(i32::MAX)).unwrap();
        assert!(matches!(counter.add(1), Err(Error::InvalidData { .. })));
        assert_eq!(counter.get(), Ok(i64::from(i32::MAX)), "it stays as it was");
    }

    #[test]
    fn a_failed_compare_and_set_writes_nothing() {
        let session = Cluster::new(1).node(0).session();
        let counter = Counter::new(&session, "/n").unwrap();
        assert_eq!(counter.compare_and_set(7, 8), Ok(false));
        assert!(session.exists("/n").unwrap().is_none(), "nothing was compared with 0");
        assert_eq!(counter.compare_and_set(0, 8), Ok(true), "one that is missing is 0");
        let before = session.get("/n").unwrap().1;
        assert_eq!(counter.compare_and_set(0, 8), Ok(false), "it is 8 by now");
        assert_eq!(session.get("/n").unwrap().1, before);
    }
}
