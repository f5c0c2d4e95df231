//! Replies that cost much to make, shared by all requests of about the same time.
//!
//! A search for locks reads every znode, and a list of the sessions asks every member for each. Requests for them in a
//! loop took the member a core, and other clients a share of their time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::types::error::Result;

/// For how long a reply is given again.
const KEPT: Duration = Duration::from_secs(1);
/// The same, as a multiple of the time that it took to make: so at most a fifth of the time goes into making them.
const KEPT_SHARE: u32 = 4;

/// The last reply, while it is recent.
pub(super) struct RecentReply<T> {
    /// Until when it is given again. While a reply is made, others wait for the lock, and then have it, too.
    last: Mutex<Option<(Duration, T)>>,
}

impl<T: Clone> RecentReply<T> {
    pub(super) fn new() -> RecentReply<T> {
        RecentReply { last: Mutex::new(None) }
    }

    /// The recent reply, or a new one. An error is not kept.
    pub(super) fn get(
        &self,
        now: impl Fn() -> Duration,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = now();
        if let Some((_, reply)) = last.as_ref().filter(|(until, _)| begun < *until) {
            return Ok(reply.clone());
        }
        let reply = make()?;
        let made = now();
        let kept = KEPT.max(made.saturating_sub(begun) * KEPT_SHARE);
        *last = Some((made + kept, reply.clone()));
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::types::error::Error;

    #[test]
    fn a_reply_is_made_again_once_it_is_old_or_after_an_error() {
        let recent = RecentReply::new();
        let (now, made) = (Cell::new(Duration::ZERO), Cell::new(0));
        let ask = |takes: Duration| {
            recent.get(
                || now.get(),
                || {
                    now.set(now.get() + takes);
                    made.set(made.get() + 1);
                    Ok(made.get())
                },
            )
        };
        let pass = |time: Duration| now.set(now.get() + time);
        let millis = Duration::from_millis;
        assert_eq!(ask(millis(1)).unwrap(), 1);
        pass(millis(999));
        assert_eq!(ask(millis(1)).unwrap(), 1);
        pass(millis(1));
        assert_eq!(ask(millis(500)).unwrap(), 2);
        // It took long, so it is kept for longer.
        pass(millis(1999));
        assert_eq!(ask(millis(1)).unwrap(), 2);
        pass(millis(1));
        let failed = Error::Unsupported { what: "it".to_owned(), needs: 2, cluster: 1 };
        assert!(recent.get(|| now.get(), || Err(failed)).is_err());
        assert_eq!(ask(millis(1)).unwrap(), 3);
    }

    #[test]
    fn requests_at_the_same_time_share_one_reply() {
        let recent = RecentReply::new();
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    recent.get(
                        || Duration::ZERO,
                        || Ok(made.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
                    )
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
