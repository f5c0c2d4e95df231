//! A follower's answers to heartbeats.
//!
//! Each answer wakes the leader. It needs one in each election timeout, to know that a quorum follows it.
//! So a follower answers every second heartbeat only, and all that confirm a read. For Raft, the others are
//! lost.

use crate::node::context::Context;
use crate::node::message::RaftBody;
use crate::node::raft::core::Raft;
use crate::node::raft::state::LastAnswer;
use crate::types::membership::NodeId;

impl Raft {
    /// Takes in a heartbeat.
    pub(in crate::node) fn take_heartbeat(
        &mut self,
        from: NodeId,
        term: u64,
        body: &RaftBody,
        context: &[u8],
        cx: &Context,
    ) -> Result<(), String> {
        let (confirms, now, mut last) = (!context.is_empty(), cx.now.mono, self.last_answer);
        // After a lost heartbeat, the next one is answered.
        let is_late = now >= last.at + cx.config.heartbeat * 3 / 2;
        let answers = || {
            let answers = confirms || last.term != term || last.skipped || is_late;
            match answers {
                true => last = LastAnswer { at: now, term, skipped: false },
                false => last.skipped = true,
            }
            answers
        };
        let result = self.step_heartbeat(from, term, body, answers);
        self.last_answer = last;
        result
    }
}

#[cfg(test)]
mod tests {
    use crate::node::tests::harness::{Cluster, HEARTBEAT};

    /// Each answer wakes the leader, and idle leaders are to sleep.
    #[test]
    fn a_follower_answers_every_second_heartbeat() {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        cluster.advance(HEARTBEAT * 20);
        cluster.trace.clear();
        cluster.advance(HEARTBEAT * 100);
        let count = |message: &str| {
            let plain = cluster.trace.iter().filter(|line| line.contains("context: b\"\""));
            plain.filter(|line| line.contains(message)).count()
        };
        assert_eq!(count(" Heartbeat "), 200);
        // An answer that confirms a read counts, too.
        let answers = count(" HeartbeatResponse ");
        assert!((70..=100).contains(&answers), "{answers}");
        assert_eq!(cluster.leader(), Some(leader));
    }

    /// Every second answer of the only other member is lost.
    #[test]
    fn a_leader_needs_one_answer_within_four_heartbeats() {
        let mut cluster = Cluster::new(3);
        let leader = cluster.elect();
        let follower = cluster.follower();
        let third = (1..=3).find(|id| ![leader, follower].contains(id)).unwrap();
        cluster.kill(third);
        let term = cluster.node(leader).status().term;
        for beat in 0..200 {
            if beat % 4 < 2 {
                cluster.cut.remove(&(follower, leader));
            } else {
                cluster.cut.insert((follower, leader));
            }
            cluster.advance(HEARTBEAT);
        }
        let status = cluster.node(leader).status();
        assert_eq!((status.term, status.is_leader), (term, true));
    }
}
