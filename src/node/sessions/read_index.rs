//! ReadIndex requests, by which a node learns that a leader still led after a certain moment.
//!
//! A node sends its leader a ReadIndex request. The leader confirms it by Raft's ReadIndex (Raft
//! thesis 6.4), that is, after a quorum has answered. One confirmed request does three things for the
//! node that sent it:
//! - its syncs get an index that covers all writes completed before them;
//! - it renews the node's sessions, counted from the moment at which it was sent: a leader elected
//!   later gives each session its full timeout again, and the confirmation excludes one elected
//!   earlier;
//! - the node's local reads are known to be no older than the request, once the index is applied.
//!
//! The number of a request is never used twice, not even by the same node after a restart (`boot`
//! distinguishes the starts). So a late confirmation confirms no other request. If a request gets
//! no answer, the node sends another one under another number. While a few are under way, syncs
//! gather for the next one. No sync is ever forgotten, however many there are and however slow the
//! leader is.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::io::{Effects, Time};
use crate::node::sessions::LocalSessions;
use crate::types::znode::SessionId;

/// How many ReadIndex requests may be under way: more would only make the leader's queue longer.
const UNDER_WAY_MAX: usize = 8;
/// How many ReadIndex requests are remembered, including those asked again, whose late answers
/// count.
const ASKED_MAX: usize = 64;

/// The number of a sync, or of a watch from a zxid, that waits for a ReadIndex request.
pub(crate) type SyncId = u64;

/// This node's side: the ReadIndex requests that it has sent.
#[derive(Debug, Default)]
pub(crate) struct ReadIndexRequests {
    boot: u64,
    next: u64,
    asked: BTreeMap<u64, ReadIndexRequest>,
    /// Syncs that no ReadIndex request carries yet.
    waiting: Vec<SyncId>,
    /// When the last one was sent; `None`: the next is due at once.
    last: Option<Time>,
    /// ReadIndex requests confirmed at an index that is not applied yet, and when they were sent.
    unapplied: Vec<(u64, Time)>,
    /// Local reads are no older than this.
    fresh_at: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct ReadIndexRequest {
    pub(crate) sent: Time,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) syncs: Vec<SyncId>,
    /// Whether its syncs also wait for another ReadIndex request.
    asked_again: bool,
}

impl ReadIndexRequests {
    pub(crate) fn new(boot: u64) -> ReadIndexRequests {
        ReadIndexRequests { boot, ..ReadIndexRequests::default() }
    }

    pub(crate) fn boot(&self) -> u64 {
        self.boot
    }

    /// Whether a ReadIndex request is due: for waiting syncs, for sessions that must be renewed
    /// (`renews`), and a `period` after the last one.
    pub(crate) fn is_due(&self, now: Time, period: Duration, renews: bool) -> bool {
        let under_way = self.asked.values().filter(|request| !request.asked_again).count();
        let is_time = || self.last.is_none_or(|last| now >= last + period);
        under_way < UNDER_WAY_MAX && (renews || self.has_waiting() || is_time())
    }

    /// Whether a sync waits for the next ReadIndex request.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The number of the next ReadIndex request.
    pub(crate) fn upcoming(&self) -> u64 {
        self.next + 1
    }

    pub(crate) fn wait(&mut self, sync: SyncId) {
        self.waiting.push(sync);
    }

    /// Makes the next ReadIndex request, which carries all waiting syncs.
    pub(crate) fn ask(&mut self, now: Time, sessions: Vec<SessionId>) -> u64 {
        self.next += 1;
        self.last = Some(now);
        let syncs = std::mem::take(&mut self.waiting);
        self.asked
            .insert(self.next, ReadIndexRequest { sent: now, sessions, syncs, asked_again: false });
        // The oldest are those asked again: no others have been under way for so long.
        while self.asked.len() > ASKED_MAX
            && let Some(oldest) = self.asked.first_entry().filter(|oldest| oldest.get().asked_again)
        {
            oldest.remove();
        }
        self.next
    }

    /// Takes the confirmation of a ReadIndex request. Returns the request, if it is still
    /// remembered.
    pub(crate) fn confirmed(&mut self, boot: u64, request: u64) -> Option<ReadIndexRequest> {
        if boot == self.boot { self.asked.remove(&request) } else { None }
    }

    /// The request sent at this moment is confirmed at an index, which may not be applied yet.
    pub(crate) fn covers(&mut self, index: u64, sent: Time) {
        self.unapplied.push((index, sent));
    }

    /// The log is applied, and on this disk, up to this index.
    pub(crate) fn applied(&mut self, applied: u64) {
        let fresh = self.unapplied.extract_if(.., |(index, _)| *index <= applied);
        self.fresh_at = fresh.map(|(_, sent)| sent).max().max(self.fresh_at);
    }

    /// Local reads are known to be no older than this.
    pub(crate) fn fresh_at(&self) -> Option<Time> {
        self.fresh_at
    }

    /// The leader or its connection has changed, so requests may never be answered. Returns the
    /// sessions that may not have been renewed.
    #[must_use]
    pub(crate) fn restart(&mut self) -> Vec<SessionId> {
        self.last = None;
        self.ask_again(|_| true)
    }

    /// Asks again for the ReadIndex requests sent before `before`. A late answer still counts.
    /// Returns the sessions that may not have been renewed.
    #[must_use]
    pub(crate) fn restart_older(&mut self, before: Time) -> Vec<SessionId> {
        self.ask_again(|request| request.sent < before)
    }

    fn ask_again(&mut self, which: impl Fn(&ReadIndexRequest) -> bool) -> Vec<SessionId> {
        let mut sessions = Vec::new();
        for request in self.asked.values_mut() {
            if !request.asked_again && which(request) {
                request.asked_again = true;
                self.last = None;
                self.waiting.extend(&request.syncs);
                sessions.extend(&request.sessions);
            }
        }
        sessions
    }
}

impl LocalSessions {
    /// The next ReadIndex request, if one is due: its number, and the sessions that it renews.
    pub(crate) fn next_read_index(
        &mut self,
        now: Time,
        period: Duration,
    ) -> Option<(u64, Vec<SessionId>)> {
        let renews = self.has_renewals(now);
        if !self.read_index.is_due(now, period, renews) {
            return None;
        }
        let sessions = self.take_renewals(now, self.read_index.has_waiting());
        Some((self.read_index.ask(now, sessions.clone()), sessions))
    }

    /// A ReadIndex request was confirmed, which renews its sessions, except those in `refused`.
    pub(crate) fn renewed_by(
        &mut self,
        request: &ReadIndexRequest,
        refused: &[SessionId],
        now: Time,
        effects: &mut Effects,
    ) {
        for session in request.sessions.iter().filter(|session| !refused.contains(session)) {
            self.renew(*session, request.sent, now, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const S: Time = Time::from_secs(1);

    #[test]
    fn a_request_carries_all_waiting_syncs_and_is_confirmed_once() {
        let mut requests = ReadIndexRequests::new(7);
        assert!(requests.is_due(Time::ZERO, 4 * S, false));
        requests.wait(1);
        requests.wait(2);
        let request = requests.ask(S, vec![SessionId(9)]);
        assert!(!requests.is_due(2 * S, 4 * S, false));
        assert!(requests.confirmed(8, request).is_none());
        let confirmed = requests.confirmed(7, request).unwrap();
        assert_eq!(confirmed.syncs, [1, 2]);
        assert_eq!(confirmed.sent, S);
        assert!(requests.confirmed(7, request).is_none());
        assert!(requests.is_due(5 * S, 4 * S, false));
    }

    /// The next request was always due a second after the last one. A session with a timeout of
    /// half a second that was opened in between was not renewed in time.
    #[test]
    fn a_session_to_be_renewed_makes_the_next_one_due_sooner() {
        let mut requests = ReadIndexRequests::new(7);
        requests.ask(S, vec![]);
        assert!(!requests.is_due(S + S / 8, S, false));
        assert!(requests.is_due(S + S / 8, S, true));
    }

    #[test]
    fn sessions_of_a_request_that_may_be_lost_are_named_once() {
        let mut requests = ReadIndexRequests::new(7);
        requests.ask(S, vec![SessionId(9)]);
        assert_eq!(requests.restart_older(S), []);
        assert_eq!(requests.restart_older(2 * S), [SessionId(9)]);
        assert_eq!(requests.restart(), []);
    }

    #[test]
    fn syncs_of_a_slow_request_are_asked_for_under_another_number() {
        let mut requests = ReadIndexRequests::new(7);
        requests.wait(1);
        let slow = requests.ask(S, vec![]);
        assert_eq!(requests.restart_older(S), []);
        assert!(!requests.is_due(2 * S, 4 * S, false));
        assert_eq!(requests.restart(), []);
        assert!(requests.is_due(2 * S, 4 * S, false));
        let again = requests.ask(2 * S, vec![]);
        assert_ne!(slow, again);
        assert_eq!(requests.confirmed(7, again).unwrap().syncs, [1]);
        assert_eq!(requests.confirmed(7, slow).unwrap().syncs, [1], "late answers count");
    }

    /// The numbers of requests begin again with each start. A confirmation of the former run shows an older state.
    #[test]
    fn a_confirmation_of_a_former_run_confirms_nothing() {
        let mut requests = ReadIndexRequests::new(7);
        requests.wait(1);
        let request = requests.ask(S, vec![]);
        assert!(requests.confirmed(6, request).is_none());
        assert_eq!(requests.confirmed(7, request).unwrap().syncs, [1]);
    }

    /// Each new request dropped the oldest one and asked for its syncs again, behind all that
    /// waited at a slow leader. No sync was ever answered, and no session renewed.
    #[test]
    fn under_load_syncs_gather_and_none_is_forgotten() {
        let mut requests = ReadIndexRequests::new(7);
        let mut answered = Vec::new();
        let mut asked = VecDeque::new();
        for sync in 0..1000 {
            requests.wait(sync);
            if requests.is_due(S, 4 * S, false) {
                asked.push_back(requests.ask(S, vec![]));
            }
            // The leader answers a ReadIndex request for each hundred syncs.
            if sync % 100 == 99
                && let Some(request) = asked.pop_front()
            {
                answered.extend(requests.confirmed(7, request).unwrap().syncs);
            }
        }
        while let Some(request) = asked.pop_front() {
            answered.extend(requests.confirmed(7, request).unwrap().syncs);
            if requests.is_due(S, 4 * S, false) {
                asked.push_back(requests.ask(S, vec![]));
            }
        }
        assert_eq!(answered, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn unanswered_requests_are_forgotten_but_not_their_syncs() {
        let mut requests = ReadIndexRequests::new(7);
        requests.wait(1);
        let first = requests.ask(S, vec![]);
        for n in 0..ASKED_MAX as u32 {
            assert_eq!(requests.restart_older(Time::MAX), []);
            assert!(requests.is_due(2 * S, 4 * S, false));
            requests.ask(n * S, vec![]);
        }
        assert!(requests.confirmed(7, first).is_none());
        assert_eq!(requests.restart_older(Time::MAX), []);
        let last = requests.ask(2 * S, vec![]);
        assert_eq!(requests.confirmed(7, last).unwrap().syncs, [1]);
    }
}
