//! The lock-delay: after a holder was lost, nobody holds the lock for a while.
//!
//! A holder with a delay has a second znode beside its contender's, the mark: `held`, whose data is
//! the delay in milliseconds. It is created before the guard is returned, in one write with a check
//! that the contender exists, and a release deletes both in one write. A loss deletes only the
//! contender's znode, since the mark is not ephemeral. So if the first contender finds a mark, the
//! last holder was lost. (A lost contender that only waited leaves no mark.)
//!
//! The first contender replaces the mark by `delay`, a znode with the delay as its time to live.
//! While `delay` exists, nobody holds the lock. So the cluster measures the time, even if the
//! waiters die. Times to live are in the log's time, which may run up to a tenth slower than real
//! time. The delay ends at the latest when the first contender has seen the znode for that long by
//! its own monotonic clock.
//!
//! Sources: Burrows, "The Chubby lock service for loosely-coupled distributed systems", 2.4; Consul,
//! sessions, `LockDelay`.

use std::time::Duration;

use crate::api::watch::Watch;
use crate::recipes::contenders::{Contender, Contenders};
use crate::recipes::errors::{if_exists, unless_gone, unless_overtaken};
use crate::runtime::either::{Either, either};
use crate::types::error::Result;
use crate::types::path;
use crate::types::znode::{Condition, CreateMode, Stat};

const HELD: &str = "held";
const DELAY: &str = "delay";
/// The names of its znodes.
pub(super) const MARKS: [&str; 2] = [HELD, DELAY];

/// Creates the mark of a contender that is about to hold.
pub(super) async fn mark(
    contenders: &Contenders,
    contender: &mut Contender,
    delay: Duration,
) -> Result<()> {
    let path = path::join(contenders.path(), HELD);
    contender.ephemeral.mark(&path, delay.as_millis().to_string().as_bytes()).await
}

/// Whether the first contender may hold. If not, the delay runs from now on at the latest.
pub(super) async fn is_over(contenders: &Contenders) -> Result<bool> {
    look(contenders).await.map(|delayed| delayed.is_none())
}

/// Waits until the first contender may hold.
pub(super) async fn wait(contenders: &Contenders) -> Result<()> {
    while let Some((stat, watch)) = look(contenders).await? {
        let session = contenders.session();
        let time = session.sleep(stat.ttl.unwrap_or_default());
        match either(watch.next(), time).await {
            // The znode has changed: look again.
            Either::One(_) => continue,
            Either::Other(slept) => slept?,
        }
        let path = path::join(contenders.path(), DELAY);
        let multi = session.multi().require(&path, Condition::Czxid(stat.czxid)).delete(&path);
        // Not an error if `delay` has expired.
        unless_gone(multi.commit().await)?;
    }
    Ok(())
}

/// Returns the delay, if there is one, and a watch of it. Starts the delay if there is a mark.
async fn look(contenders: &Contenders) -> Result<Option<(Stat, Watch)>> {
    let (held, delay) = (path::join(contenders.path(), HELD), path::join(contenders.path(), DELAY));
    let session = contenders.session();
    loop {
        let calls = &session.in_turn();
        // Requested together, at the cost of one round trip. Only an existing znode is watched.
        let (mark, delayed) = (calls.get(&held), calls.get_and_watch(&delay));
        let (mark, delayed) = (if_exists(mark.await)?, if_exists(delayed.await)?);
        let delayed = delayed.map(|(_, stat, watch)| (stat, watch));
        let Some((data, stat)) = mark else { return Ok(delayed) };
        // The condition excludes the mark of a later holder.
        let mut multi = session.multi().require(&held, Condition::Czxid(stat.czxid)).delete(&held);
        if delayed.is_none() && !planted!(LockDelaySkipped) {
            multi = multi.create(&delay, b"", CreateMode::PersistentWithTtl(millis(&data)));
        }
        // The delay has started, or another contender was faster, or the delay has ended: look
        // again.
        unless_overtaken(multi.commit().await)?;
    }
}

/// The delay stored in a mark. Invalid data, which no version writes, counts as a short delay.
fn millis(data: &[u8]) -> Duration {
    let millis = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok());
    Duration::from_millis(millis.unwrap_or(1)).clamp(Duration::from_millis(1), CreateMode::TTL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_data_of_a_mark_is_a_valid_time_to_live() {
        let cases: [(&[u8], u64); 5] = [
            (b"15000", 15_000),
            (b"0", 1),
            (b"", 1),
            (b"\xff", 1),
            (b"18446744073709551615", (1 << 40) - 1),
        ];
        for (data, expected) in cases {
            assert_eq!(millis(data), Duration::from_millis(expected));
        }
    }
}
