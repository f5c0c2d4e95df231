//! The check of a peer's Raft message before raft-rs steps it.
//!
//! raft-rs 0.7 panics on messages that a correct peer cannot send, and accepts some that it should
//! refuse. This check is pure, and is fuzzed together with raft-rs itself. The transport makes sure
//! that a message comes from the sender that it names. The sender need not be in this node's
//! configuration: a lagging follower must accept a leader that it does not know yet.

use std::collections::BTreeSet;

use crate::node::message::RaftBody;
use crate::node::raft::configuration::VotingChange;
use crate::node::stored::{EntryKind, LogEntry, SnapshotMeta, Voting};
use crate::types::membership::NodeId;

/// What the guard knows of its node.
pub(crate) struct GuardInputs<'a> {
    pub(crate) id: NodeId,
    pub(crate) term: u64,
    pub(crate) leader: NodeId,
    pub(crate) is_leader: bool,
    pub(crate) last_index: u64,
    pub(crate) committed: u64,
    /// Whether all of the log is durable.
    pub(crate) durable: bool,
    pub(crate) term_at: &'a dyn Fn(u64) -> Option<u64>,
}

/// Why a message is not stepped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The peer is broken or hostile: drop the message.
    Refused(&'static str),
    /// A leader knows that this node has stored entries that are missing now. This node has lost
    /// data that it had acknowledged, and must stop before it votes or acknowledges again.
    DataLost { known: u64, have: u64 },
}

/// Indexes and terms beyond this are never reached in practice. Sums of two such numbers do not
/// overflow.
const NUMBER_MAX: u64 = 1 << 62;
/// How far a term may jump ahead of ours: a million elections would not go unnoticed.
const TERM_JUMP_MAX: u64 = 1 << 20;
/// A read's context: ours have 16 bytes, a plain heartbeat's has none.
const CONTEXT_BYTES_MAX: usize = 64;

pub(crate) fn check(
    view: &GuardInputs<'_>,
    from: NodeId,
    term: u64,
    body: &RaftBody,
) -> Result<(), Violation> {
    ensure(from != 0 && from != view.id, "the sender is nobody else")?;
    ensure(term >= 1, "no term")?;
    ensure(term <= view.term.saturating_add(TERM_JUMP_MAX).min(NUMBER_MAX), "term out of reach")?;
    let current = term >= view.term;
    // A term has one leader, and this node follows none in a term that it leads.
    let leads = |what| {
        ensure(term != view.term || !view.is_leader, what)?;
        ensure(term != view.term || view.leader == 0 || view.leader == from, what)
    };
    match body {
        RaftBody::Append { index, log_term, commit, entries } => {
            leads("append of a second leader")?;
            ensure(*index < NUMBER_MAX && *commit < NUMBER_MAX, "index out of reach")?;
            ensure((*index == 0) == (*log_term == 0), "no term for the entry before")?;
            ensure(*log_term <= term, "the entry before is of a later term")?;
            check_entries(view, *index, *log_term, term, entries)
        }
        RaftBody::AppendResponse {
            index, log_term, commit, reject_hint, request_snapshot, ..
        } => {
            let numbers = [index, log_term, commit, reject_hint, request_snapshot];
            ensure(numbers.iter().all(|number| **number < NUMBER_MAX), "index out of reach")?;
            // It answers a message that this node sent as the leader of this term.
            if view.is_leader && term == view.term {
                ensure(*index <= view.last_index, "acknowledges what was never sent")?;
                ensure(*reject_hint <= view.last_index, "hints beyond the log")?;
                ensure(*request_snapshot <= view.last_index, "asks for a snapshot of the future")?;
            }
            Ok(())
        }
        RaftBody::Heartbeat { commit, context } => {
            leads("heartbeat of a second leader")?;
            ensure(context.len() <= CONTEXT_BYTES_MAX, "context too long")?;
            ensure(*commit < NUMBER_MAX, "index out of reach")?;
            if *commit <= view.last_index {
                Ok(())
            } else if current {
                Err(Violation::DataLost { known: *commit, have: view.last_index })
            } else {
                Err(Violation::Refused("a former leader's heartbeat beyond our log"))
            }
        }
        RaftBody::HeartbeatResponse { commit, context } => {
            ensure(context.len() <= CONTEXT_BYTES_MAX, "context too long")?;
            ensure(*commit < NUMBER_MAX, "index out of reach")
        }
        RaftBody::Vote { index, log_term, commit, commit_term, .. } => {
            let numbers = [index, log_term, commit, commit_term];
            ensure(numbers.iter().all(|number| **number < NUMBER_MAX), "index out of reach")
        }
        RaftBody::VoteResponse { pre, reject, commit, commit_term } => {
            // Votes are requested only after all earlier entries are durable. raft-rs relies on
            // that.
            ensure(view.durable || *pre || *reject, "a vote that was not requested yet")?;
            ensure(*commit < NUMBER_MAX && *commit_term < NUMBER_MAX, "index out of reach")
        }
        RaftBody::Snapshot { meta, .. } => {
            leads("snapshot of a second leader")?;
            ensure(meta.term >= 1 && meta.term <= term, "snapshot of no term, or a later one")?;
            ensure(meta.index >= 1 && meta.index < NUMBER_MAX, "index out of reach")?;
            check_voting(view, meta)
        }
        RaftBody::TimeoutNow => {
            ensure(from == view.leader && term == view.term, "not our leader's to order")?;
            ensure(view.durable, "a successor that has not acknowledged the whole log")
        }
    }
}

fn ensure(holds: bool, reason: &'static str) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::Refused(reason)) }
}

/// Entries of a former leader's term are not compared: it has entries that were never committed where this
/// node has committed others. raft-rs takes none of them, and answers with the present term.
fn check_entries(
    view: &GuardInputs<'_>,
    index: u64,
    log_term: u64,
    term: u64,
    entries: &[LogEntry],
) -> Result<(), Violation> {
    let mut before = (index, log_term.max(1));
    for entry in entries {
        ensure(entry.index == before.0 + 1, "entries with a gap")?;
        ensure((before.1..=term).contains(&entry.term), "entries of terms out of order")?;
        let agrees = term < view.term
            || entry.index > view.committed
            || (view.term_at)(entry.index).is_none_or(|ours| ours == entry.term);
        ensure(agrees, "contradicts a committed entry")?;
        let reads =
            entry.kind != EntryKind::Membership || VotingChange::decode(&entry.data).is_ok();
        ensure(reads, "a membership change that is none")?;
        before = (entry.index, entry.term);
    }
    Ok(())
}

/// A configuration that raft-rs can restore: see `confchange::restore` and `ProgressTracker`.
fn check_voting(view: &GuardInputs<'_>, meta: &SnapshotMeta) -> Result<(), Violation> {
    let Voting { voters, learners, voters_outgoing, learners_next, auto_leave } = &meta.voting;
    for list in [voters, learners, voters_outgoing, learners_next] {
        let set: BTreeSet<NodeId> = list.iter().copied().collect();
        let is_sound = set.len() == list.len() && !set.contains(&0);
        ensure(is_sound, "a member twice, or one without an id")?;
    }
    ensure(!voters.is_empty(), "nobody votes")?;
    let votes = |id: &NodeId| voters.contains(id) || voters_outgoing.contains(id);
    ensure(!learners.iter().any(votes), "a learner that votes")?;
    let all_vote = learners_next.iter().all(|id| voters_outgoing.contains(id));
    ensure(all_vote, "a learner to be that does not vote yet")?;
    let one_stays = learners_next.iter().any(|id| voters.contains(id));
    ensure(!one_stays, "a learner to be that goes on voting")?;
    let is_joint = !voters_outgoing.is_empty();
    ensure(is_joint || !auto_leave, "leaves a joint configuration that it is not in")?;
    ensure(votes(&view.id) || learners.contains(&view.id), "a configuration without us")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// A follower of 2 in term 5: entries 1..=10 of term 5, 8 of them committed.
    fn view() -> GuardInputs<'static> {
        GuardInputs {
            id: 1,
            term: 5,
            leader: 2,
            is_leader: false,
            last_index: 10,
            committed: 8,
            durable: true,
            term_at: &|index| (1..=10).contains(&index).then_some(5),
        }
    }

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry { index, term, kind: EntryKind::Normal, data: Bytes::new() }
    }

    fn append(index: u64, log_term: u64, entries: Vec<LogEntry>) -> RaftBody {
        RaftBody::Append { index, log_term, commit: 8, entries }
    }

    fn snapshot(voting: Voting) -> RaftBody {
        let meta = SnapshotMeta { index: 20, term: 5, zxid: 1, hash: 1, voting };
        RaftBody::Snapshot { transfer: 1, chunks: 1, meta }
    }

    fn refused(view: &GuardInputs<'_>, from: NodeId, term: u64, body: &RaftBody) {
        let result = check(view, from, term, body);
        assert!(matches!(result, Err(Violation::Refused(_))), "{body:?}: {result:?}");
    }

    #[test]
    fn passes_what_a_correct_leader_sends() {
        let view = view();
        for body in [
            append(10, 5, vec![entry(11, 5), entry(12, 5)]),
            append(20, 5, vec![entry(21, 5)]),
            append(0, 0, vec![entry(1, 5)]),
            append(9, 4, vec![]),
            RaftBody::Heartbeat { commit: 10, context: Bytes::from(vec![0; 16]) },
            RaftBody::TimeoutNow,
            snapshot(Voting { voters: vec![1, 2, 3], ..Voting::default() }),
        ] {
            assert_eq!(check(&view, 2, 5, &body), Ok(()), "{body:?}");
        }
    }

    #[test]
    fn refuses_impossible_terms_and_senders() {
        let heartbeat = RaftBody::Heartbeat { commit: 0, context: Bytes::new() };
        refused(&view(), 2, 0, &heartbeat);
        refused(&view(), 2, u64::MAX, &heartbeat);
        refused(&view(), 2, 5 + TERM_JUMP_MAX + 1, &heartbeat);
        refused(&view(), 1, 5, &heartbeat);
        refused(&view(), 0, 5, &heartbeat);
        refused(&view(), 3, 5, &heartbeat);
        assert_eq!(check(&view(), 3, 6, &heartbeat), Ok(()));
        let leader = GuardInputs { is_leader: true, leader: 1, ..view() };
        refused(&leader, 3, 5, &heartbeat);
    }

    #[test]
    fn refuses_impossible_appends() {
        refused(&view(), 2, 5, &append(50, 0, vec![]));
        refused(&view(), 2, 5, &append(50, 0, vec![entry(51, 5)]));
        refused(&view(), 2, 5, &append(5, 5, vec![entry(6, 5), entry(9, 5)]));
        refused(&view(), 2, 5, &append(5, 5, vec![entry(9, 5)]));
        refused(&view(), 2, 5, &append(5, 5, vec![entry(0, 9)]));
        refused(&view(), 2, 6, &append(7, 5, vec![entry(8, 6)]));
        refused(&view(), 2, 5, &append(10, 5, vec![entry(11, 4)]));
        refused(&view(), 2, 5, &append(10, 5, vec![entry(11, 6)]));
        refused(&view(), 2, 5, &append(u64::MAX, 5, vec![]));
        refused(&view(), 2, 5, &append(10, 9, vec![]));
    }

    /// A former leader that was frozen for a while sends its entries again when it goes on. Each time, its
    /// followers warned of a contradiction, and it learned of the new term only later.
    #[test]
    fn a_former_leader_may_contradict_what_was_committed_without_it() {
        assert_eq!(check(&view(), 3, 4, &append(7, 4, vec![entry(8, 4)])), Ok(()));
        refused(&view(), 2, 5, &append(7, 4, vec![entry(8, 4)]));
    }

    #[test]
    fn a_leader_that_knows_more_of_us_than_we_do_means_lost_data() {
        let body = RaftBody::Heartbeat { commit: 11, context: Bytes::new() };
        assert_eq!(check(&view(), 2, 5, &body), Err(Violation::DataLost { known: 11, have: 10 }));
        refused(&view(), 2, 4, &body);
    }

    #[test]
    fn refuses_impossible_answers_to_a_leader() {
        let leader = GuardInputs { is_leader: true, leader: 1, ..view() };
        let response = |index, reject_hint| RaftBody::AppendResponse {
            index,
            log_term: 0,
            commit: 0,
            reject: false,
            reject_hint,
            request_snapshot: 0,
        };
        assert_eq!(check(&leader, 2, 5, &response(10, 10)), Ok(()));
        refused(&leader, 2, 5, &response(11, 0));
        refused(&leader, 2, 5, &response(5, 11));
        refused(&leader, 2, 5, &response(u64::MAX, 0));
        refused(&leader, 2, 5, &response(5, u64::MAX));
    }

    #[test]
    fn refuses_configurations_that_raft_cannot_restore() {
        let voting = |voters: &[u64], learners: &[u64], outgoing: &[u64], next: &[u64]| Voting {
            voters: voters.to_vec(),
            learners: learners.to_vec(),
            voters_outgoing: outgoing.to_vec(),
            learners_next: next.to_vec(),
            auto_leave: false,
        };
        for bad in [
            voting(&[], &[], &[], &[]),
            voting(&[0, 1, 2], &[], &[], &[]),
            voting(&[1, 2, 2], &[], &[], &[]),
            voting(&[1, 2], &[1], &[], &[]),
            voting(&[2, 3], &[], &[], &[]),
            voting(&[1, 2], &[], &[], &[3]),
            voting(&[1, 2], &[], &[2, 3], &[2]),
        ] {
            refused(&view(), 2, 5, &snapshot(bad));
        }
        let joint = voting(&[1, 2], &[], &[2, 3], &[3]);
        assert_eq!(check(&view(), 2, 5, &snapshot(joint)), Ok(()));
    }

    /// raft-rs panics on becoming leader with entries that are not durable.
    #[test]
    fn no_vote_counts_that_was_not_asked_for() {
        let granted =
            RaftBody::VoteResponse { pre: false, reject: false, commit: 0, commit_term: 0 };
        assert_eq!(check(&view(), 2, 5, &granted), Ok(()));
        refused(&GuardInputs { durable: false, ..view() }, 2, 5, &granted);
    }

    #[test]
    fn only_the_leader_may_order_an_election() {
        refused(&view(), 3, 5, &RaftBody::TimeoutNow);
        refused(&view(), 2, 6, &RaftBody::TimeoutNow);
        refused(&GuardInputs { durable: false, ..view() }, 2, 5, &RaftBody::TimeoutNow);
    }
}
