//! Rounds: how a node learns that a leader still led after a certain moment.
//!
//! A node asks its leader for a round; the leader confirms it by Raft's
//! ReadIndex (Raft thesis 6.4), that is, after a quorum has answered it. One
//! confirmed round does three things for the node that asked:
//! - its `sync`s have an index that covers all writes completed before them;
//! - its sessions are renewed, counted from when the round was sent: a leader
//!   elected later gives each session its full timeout again, and one elected
//!   earlier could not have let the round be confirmed;
//! - its local reads are known to be no older than the round, once the index
//!   is applied.
//!
//! A round's number is never used twice, not even by the same node after a
//! restart (`boot` tells them apart), so that a late answer confirms nothing
//! else. A round that gets no answer is asked anew under another number, and
//! while a few are under way, what comes in gathers for the next: a sync is
//! never forgotten, however many there are and however slow the leader is.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::io::Time;
use crate::types::znode::SessionId;

/// How many rounds may be under way: more would only make the leader's queue longer.
const UNDER_WAY_MAX: usize = 8;
/// How many rounds are remembered, those asked anew included, whose late answers count.
const ASKED_MAX: usize = 64;

/// A `sync` that waits: the node's own ticket number.
pub(crate) type Ticket = u64;

/// This node's side: the rounds it has asked for.
#[derive(Debug)]
pub(crate) struct Rounds {
    boot: u64,
    next: u64,
    asked: BTreeMap<u64, Round>,
    /// Syncs that no round carries yet.
    waiting: Vec<Ticket>,
    /// When the last one was asked for; `None`: the next is due at once.
    last: Option<Time>,
    /// Rounds confirmed at an index that is not applied yet, and when they were sent.
    unapplied: Vec<(u64, Time)>,
    /// Local reads are no older than this.
    fresh_at: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) sent: Time,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) tickets: Vec<Ticket>,
    /// Its syncs wait for another round too.
    asked_anew: bool,
}

impl Rounds {
    pub(crate) fn new(boot: u64) -> Rounds {
        Rounds {
            boot,
            next: 0,
            asked: BTreeMap::new(),
            waiting: Vec::new(),
            last: None,
            unapplied: Vec::new(),
            fresh_at: None,
        }
    }

    pub(crate) fn boot(&self) -> u64 {
        self.boot
    }

    /// Whether a round is to be asked for: for whoever waits for one, and so long after the last. That
    /// is for the sessions as they are now: one that was just opened may be shorter than all others.
    pub(crate) fn is_due(&self, now: Time, period: Duration) -> bool {
        let under_way = self.asked.values().filter(|round| !round.asked_anew).count();
        let is_time = || self.last.is_none_or(|last| now >= last + period);
        under_way < UNDER_WAY_MAX && (!self.waiting.is_empty() || is_time())
    }

    /// The number of the next round.
    pub(crate) fn upcoming(&self) -> u64 {
        self.next + 1
    }

    pub(crate) fn wait(&mut self, ticket: Ticket) {
        self.waiting.push(ticket);
    }

    /// Opens the next round, which carries all that wait.
    pub(crate) fn ask(&mut self, now: Time, sessions: Vec<SessionId>) -> u64 {
        self.next += 1;
        self.last = Some(now);
        let tickets = std::mem::take(&mut self.waiting);
        self.asked.insert(self.next, Round { sent: now, sessions, tickets, asked_anew: false });
        // The oldest are those asked anew: no others have been under way for so long.
        while self.asked.len() > ASKED_MAX
            && let Some(oldest) = self.asked.first_entry().filter(|oldest| oldest.get().asked_anew)
        {
            oldest.remove();
        }
        self.next
    }

    /// The answer to a round, if it is one that this node still wants.
    pub(crate) fn confirmed(&mut self, boot: u64, round: u64) -> Option<Round> {
        if boot == self.boot { self.asked.remove(&round) } else { None }
    }

    /// What was sent at this moment is confirmed at an index, which may still have to be applied.
    pub(crate) fn covers(&mut self, index: u64, sent: Time) {
        self.unapplied.push((index, sent));
    }

    /// The log is applied up to this index.
    pub(crate) fn applied(&mut self, applied: u64) {
        let fresh = self.unapplied.extract_if(.., |(index, _)| *index <= applied);
        self.fresh_at = fresh.map(|(_, sent)| sent).max().max(self.fresh_at);
    }

    /// Local reads are known to be no older than this.
    pub(crate) fn fresh_at(&self) -> Option<Time> {
        self.fresh_at
    }

    /// The leader changed, or its connection: what was asked may never be answered.
    pub(crate) fn restart(&mut self) {
        self.ask_anew(|_| true);
        self.last = None;
    }

    /// Asks anew for the rounds sent before `before`. A late answer still counts.
    pub(crate) fn restart_older(&mut self, before: Time) {
        if self.ask_anew(|round| round.sent < before) {
            self.last = None;
        }
    }

    fn ask_anew(&mut self, which: impl Fn(&Round) -> bool) -> bool {
        let mut any = false;
        for round in self.asked.values_mut() {
            if !round.asked_anew && which(round) {
                round.asked_anew = true;
                self.waiting.extend(&round.tickets);
                any = true;
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const S: Time = Time::from_secs(1);

    #[test]
    fn a_round_carries_all_that_wait_and_is_confirmed_once() {
        let mut rounds = Rounds::new(7);
        assert!(rounds.is_due(Time::ZERO, 4 * S));
        rounds.wait(1);
        rounds.wait(2);
        let round = rounds.ask(S, vec![SessionId(9)]);
        assert!(!rounds.is_due(2 * S, 4 * S));
        assert!(rounds.confirmed(8, round).is_none());
        let confirmed = rounds.confirmed(7, round).unwrap();
        assert_eq!(confirmed.tickets, [1, 2]);
        assert_eq!(confirmed.sent, S);
        assert!(rounds.confirmed(7, round).is_none());
        assert!(rounds.is_due(5 * S, 4 * S));
    }

    /// The next was due a second after the last, whatever came: a session of half a second that was
    /// opened between them was not renewed in time.
    #[test]
    fn a_shorter_session_makes_the_next_one_due_sooner() {
        let mut rounds = Rounds::new(7);
        rounds.ask(S, vec![]);
        assert!(!rounds.is_due(S + S / 8, S));
        assert!(rounds.is_due(S + S / 8, S / 8));
    }

    #[test]
    fn what_a_slow_round_carried_is_asked_for_under_another_number() {
        let mut rounds = Rounds::new(7);
        rounds.wait(1);
        let slow = rounds.ask(S, vec![]);
        rounds.restart_older(S);
        assert!(!rounds.is_due(2 * S, 4 * S));
        rounds.restart();
        assert!(rounds.is_due(2 * S, 4 * S));
        let again = rounds.ask(2 * S, vec![]);
        assert_ne!(slow, again);
        assert_eq!(rounds.confirmed(7, again).unwrap().tickets, [1]);
        assert_eq!(rounds.confirmed(7, slow).unwrap().tickets, [1], "late answers count");
    }

    /// Each popped the oldest and asked for its syncs again, behind all that wait at a slow leader:
    /// no sync was ever answered, and no session renewed.
    #[test]
    fn under_load_syncs_gather_and_none_is_forgotten() {
        let mut rounds = Rounds::new(7);
        let mut answered = Vec::new();
        let mut asked = VecDeque::new();
        for ticket in 0..1000 {
            rounds.wait(ticket);
            if rounds.is_due(S, 4 * S) {
                asked.push_back(rounds.ask(S, vec![]));
            }
            // The leader answers a round for each hundred syncs.
            if ticket % 100 == 99
                && let Some(round) = asked.pop_front()
            {
                answered.extend(rounds.confirmed(7, round).unwrap().tickets);
            }
        }
        while let Some(round) = asked.pop_front() {
            answered.extend(rounds.confirmed(7, round).unwrap().tickets);
            if rounds.is_due(S, 4 * S) {
                asked.push_back(rounds.ask(S, vec![]));
            }
        }
        assert_eq!(answered, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn unanswered_rounds_are_forgotten_but_not_their_syncs() {
        let mut rounds = Rounds::new(7);
        rounds.wait(1);
        let first = rounds.ask(S, vec![]);
        for n in 0..ASKED_MAX as u32 {
            rounds.restart_older(Time::MAX);
            assert!(rounds.is_due(2 * S, 4 * S));
            rounds.ask(n * S, vec![]);
        }
        assert!(rounds.confirmed(7, first).is_none());
        rounds.restart_older(Time::MAX);
        let last = rounds.ask(2 * S, vec![]);
        assert_eq!(rounds.confirmed(7, last).unwrap().tickets, [1]);
    }
}
