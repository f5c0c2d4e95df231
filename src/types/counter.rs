//! The forms of a shared number.

/// How the data of a [`Counter`](crate::recipes::Counter) shows its number, so that clients in other languages count
/// with it: see [`Counter::with_form`](crate::recipes::Counter::with_form).
///
/// ```
/// use quorate::recipes::{Counter, CounterForm};
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let counter = Counter::new(&session, "/visits")?.with_form(CounterForm::Text);
/// counter.add(7).wait()?;
/// assert_eq!(&*session.get("/visits").wait()?.0, b"7");
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

/// The most bytes of the data of a counter that a message shows.
const SHOWN_MAX: usize = 100;

impl CounterForm {
    /// The number that these data show, or why they show none.
    pub(crate) fn decode(self, data: &[u8]) -> Result<i64, String> {
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
                let start = String::from_utf8_lossy(&data[..data.len().min(SHOWN_MAX)]);
                text.ok_or_else(|| format!("{start:?} is no number"))
            }
        }
    }

    /// `None` if the form cannot show the number.
    pub(crate) fn encode(self, number: i64) -> Option<Vec<u8>> {
        match self {
            CounterForm::Long => Some(number.to_be_bytes().to_vec()),
            CounterForm::Int => Some(i32::try_from(number).ok()?.to_be_bytes().to_vec()),
            CounterForm::Text => Some(number.to_string().into_bytes()),
        }
    }
}
