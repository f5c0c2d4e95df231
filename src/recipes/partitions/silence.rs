//! A share that is in none of its calls for too long: its member is silent.
//!
//! The instance notices that by itself, with a timer and without a thread, since its session goes on being renewed. It
//! gives up all that the member has, first here and then in the cluster, by one write that also says so in the member's
//! znode. So the guards are no longer held before anybody else can own the partitions, and a member that is not silent
//! costs no write.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use super::holdings::Holdings;

/// Looks whether the share is silent, when that may be so.
pub(super) struct SilenceTimer(pub(super) Weak<Holdings>);

impl Wake for SilenceTimer {
    fn wake(self: Arc<Self>) {
        if let Some(holdings) = self.0.upgrade() {
            holdings.watch_silence();
        }
    }
}

impl Holdings {
    /// The share goes on.
    pub(super) fn turned(self: &Arc<Self>) {
        let now = self.session.shared().clock.now();
        {
            let mut state = self.lock();
            state.turned_at = now;
            state.is_silent = false;
        }
        self.watch_silence();
    }

    /// Falls silent if it is time for that; otherwise, the timer calls this again then.
    fn watch_silence(self: &Arc<Self>) {
        let Some(max_silence) = self.max_silence else { return };
        loop {
            let due = {
                let state = self.lock();
                if state.is_over || state.is_silent || self.session.is_over() {
                    return;
                }
                state.turned_at.saturating_add(max_silence)
            };
            let left = due.saturating_sub(self.session.shared().clock.now());
            if left == Duration::ZERO {
                return self.fall_silent(due);
            }
            let mut timer = self.silence_timer.lock().unwrap_or_else(PoisonError::into_inner);
            let sleep = timer.get_or_insert_with(|| self.session.nonblocking().sleep(left));
            let Poll::Ready(over) =
                Pin::new(sleep).poll(&mut Context::from_waker(&self.silence_waker))
            else {
                return;
            };
            *timer = None;
            // The node has stopped.
            if over.is_err() {
                return;
            }
        }
    }

    fn fall_silent(self: &Arc<Self>, due: Duration) {
        if planted!(SilentKeeps) {
            return;
        }
        let given_up = self.change(|state| {
            // It has gone on just now.
            if self.max_silence.is_none_or(|max| state.turned_at.saturating_add(max) > due) {
                return None;
            }
            state.is_silent = true;
            state.ready.clear();
            let claimed = std::mem::take(&mut state.claimed);
            let numbers = claimed.iter().map(|(number, _)| *number);
            let arriving = state.arriving.take();
            for number in numbers.chain(arriving.iter().map(|(number, _)| *number)) {
                state.claiming.remove(&number);
            }
            if let Some((_, owner)) = arriving {
                drop(self.write(owner, None, true));
            }
            let owned = std::mem::take(&mut state.owned);
            for owned in owned.values().filter(|owned| !owned.held.ephemeral.is_given_up()) {
                owned.held.ephemeral.forget();
                drop(self.write(owned.znode(), None, true));
            }
            Some((owned, claimed))
        });
        // Their drops may delete znodes, before the mark is made.
        if given_up.map(drop).is_some() {
            self.mark_silent();
            self.writes.send();
        }
    }

    /// Shows others that this member is silent, once it certainly has nothing: so they plan its partitions at once.
    pub(super) fn mark_silent(self: &Arc<Self>) {
        let state = self.lock();
        if state.is_silent && state.claiming.is_empty() {
            let mark = (self.membership.path().to_owned(), self.silent_member.clone());
            let member = (mark.0.clone(), self.membership.fencing_token());
            drop(self.write(member, Some(mark), false));
        }
    }
}
