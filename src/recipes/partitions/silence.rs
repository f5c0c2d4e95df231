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
            let sleep = timer.get_or_insert_with(|| self.session.sleep(left));
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
        let mut state = self.lock();
        if state.is_silent && state.claiming.is_empty() {
            let mark = (self.membership.path().to_owned(), self.silent_member.clone());
            let member = (mark.0.clone(), self.membership.fencing_token());
            state.marks += 1;
            let (holdings, marked) = (Arc::clone(self), self.write(member, Some(mark), false));
            marked.then(move |_| holdings.change(|state| state.marks -= 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::super::partitions_status;
    use crate::Coordinator;
    use crate::recipes::{Partition, Partitions, Share};
    use crate::testing::Cluster;

    use super::*;

    fn turn(share: &mut Share, owned: &mut Vec<Partition>) {
        while let Poll::Ready(taken) =
            pin!(share.take()).poll(&mut Context::from_waker(Waker::noop()))
        {
            owned.push(taken.unwrap());
        }
    }

    /// Its mark waited behind other writes, and was made when the member had gone on and had new partitions.
    #[test]
    fn a_member_that_goes_on_claims_nothing_before_its_mark_is_made() {
        const SECOND: Duration = Duration::from_secs(1);
        let settings = Coordinator::builder().session_timeout(60 * SECOND);
        let cluster = Cluster::with_settings(1, settings);
        let session = cluster.node(0).session();
        let partitions = Partitions::new(&session, "/feeds", 2).unwrap();
        let partitions = partitions.with_max_silence(20 * SECOND);
        let mut share = partitions.join("me").wait().unwrap();
        let mut owned = vec![share.take().wait().unwrap(), share.take().wait().unwrap()];
        let holdings = Arc::clone(&owned[0].holdings);
        holdings.writes.hold();
        while !holdings.lock().is_silent {
            cluster.advance(SECOND);
        }
        // Others end its claims meanwhile.
        owned.iter().for_each(|owned| session.delete(owned.path()).wait().unwrap());
        owned.clear();
        for _ in 0..10 {
            turn(&mut share, &mut owned);
            cluster.advance(SECOND / 10);
        }
        assert!(owned.is_empty(), "{owned:?}");
        holdings.writes.go_on();
        while owned.len() < 2 {
            turn(&mut share, &mut owned);
            cluster.advance(SECOND / 10);
        }
        session.sync().wait().unwrap();
        let status = partitions_status(&session, "/feeds").wait().unwrap();
        assert_eq!(status.members[0].silent_since, None);
        assert!(owned.iter().all(|owned| owned.is_held()));
    }
}
