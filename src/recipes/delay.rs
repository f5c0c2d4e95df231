//! The lock-delay: after a holder was lost, nobody holds the lock for a while.
//!
//! A holder with a delay has a second znode beside its contender's: `held`, whose data is the delay
//! in milliseconds. It is created in one write with a check that the contender is there, before the
//! guard is given out, and a release deletes both in one write. A loss deletes the contender's alone,
//! since the mark is no ephemeral. So whoever is first in line and finds a mark knows that the last
//! holder was lost, and that a contender which only waited was none.
//!
//! The first to find it turns it into `delay`, a znode with the delay as its time to live, and all
//! wait for that one to go. The cluster counts the time, then, whoever waits and dies meanwhile.
//!
//! Sources: Burrows, "The Chubby lock service for loosely-coupled distributed systems", 2.4; Consul,
//! sessions, `LockDelay`.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::path;
use crate::planted::{Bug, planted};
use crate::recipes::line::{Contender, Line};
use crate::watch::Watch;
use crate::znode::{CreateMode, TTL_MAX};

const HELD: &str = "held";
const DELAY: &str = "delay";

/// Lets the contender, which is about to hold, leave a mark in case that it is lost.
pub(super) async fn mark(line: &Line, contender: &mut Contender, delay: Duration) -> Result<()> {
    let path = path::join(line.path(), HELD);
    contender.mark(&path, delay.as_millis().to_string().as_bytes()).await
}

/// Whether whoever is first in line may hold. If not, the time counts from now on at the latest.
pub(super) async fn is_over(line: &Line) -> Result<bool> {
    look(line).await.map(|delayed| delayed.is_none())
}

/// Waits until whoever is first in line may hold.
pub(super) async fn wait(line: &Line) -> Result<()> {
    while let Some(watch) = look(line).await? {
        watch.next().await;
    }
    Ok(())
}

/// A watch of the delay, if there is one; begins it if it is due.
async fn look(line: &Line) -> Result<Option<Watch>> {
    let (held, delay) = (path::join(line.path(), HELD), path::join(line.path(), DELAY));
    let session = line.session();
    loop {
        let calls = session.nonblocking();
        // Asked for together: this takes the time of one. Only what is there is watched.
        let (mark, delayed) = (calls.get(&held), calls.children_and_watch(&delay));
        let mark = match mark.await {
            Ok((data, _)) => Some(data),
            Err(Error::NoNode { .. }) => None,
            Err(error) => return Err(error),
        };
        let delayed = match delayed.await {
            Ok((_, watch)) => Some(watch),
            Err(Error::NoNode { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some(data) = mark else { return Ok(delayed) };
        if planted(Bug::LockDelaySkipped) {
            session.nonblocking().delete(&held).await?;
            continue;
        }
        let mut multi = session.multi().delete(&held);
        if delayed.is_none() {
            multi = multi.create(&delay, b"", CreateMode::PersistentWithTtl(millis(&data)));
        }
        match multi.submit().await {
            // Done, or somebody else has done it, or it has ended meanwhile: look again.
            Ok(_) => {}
            Err(Error::Multi { error, .. })
                if matches!(*error, Error::NoNode { .. } | Error::NodeExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The delay that a mark tells of. One that cannot be read, which nobody here has written, is short.
fn millis(data: &[u8]) -> Duration {
    let millis = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok());
    Duration::from_millis(millis.unwrap_or(1)).clamp(Duration::from_millis(1), TTL_MAX)
}
