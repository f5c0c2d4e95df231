//! While one node leads, the log's time passes about as fast as its monotonic clock, and it never
//! goes back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Violation, require};

/// A leader's clocks at one moment: the monotonic clock, and the timestamp of its entries in
/// milliseconds.
#[derive(Clone, Copy, Debug)]
struct Moment {
    mono: Duration,
    stamps: u64,
}

/// The first and the last clocks of each place in the term that it leads.
#[derive(Debug, Default)]
pub(crate) struct LogTime(BTreeMap<usize, (u64, Moment, Moment)>);

impl LogTime {
    /// Checks the timestamp of a node after a step, if it leads.
    pub(crate) fn stepped(
        &mut self,
        (place, term): (usize, u64),
        mono: Duration,
        stamps: Option<u64>,
        log_time: u64,
    ) -> Result<(), Violation> {
        let Some(stamps) = stamps else {
            self.0.remove(&place);
            return Ok(());
        };
        let now = Moment { mono, stamps };
        let (of, first, last) = self.0.entry(place).or_insert((term, now, now));
        if *of != term {
            (*of, *first, *last) = (term, now, now);
        }
        let before = std::mem::replace(last, now);
        require(stamps >= before.stamps && stamps >= log_time, "the log's time goes on", || {
            format!(
                "the leader at {place} stamps {stamps}, after {before:?}, in a log of {log_time}"
            )
        })?;
        let real = (mono - first.mono).as_millis() as u64;
        let passed = stamps - first.stamps;
        let (least, most) = (real / 10 * 9, real.div_ceil(10) * 11 + 2);
        require(least <= passed + 2 && passed <= most, "the log's time passes", || {
            format!("at the leader at {place} {passed} ms have passed of {real}, from {first:?}")
        })
    }
}
