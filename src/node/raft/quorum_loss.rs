//! Which voters are missing while there is no leader, as text for people.
//!
//! A member knows which voters it cannot reach. An instance that wants to join does not know the
//! voters. So while there is no leader to take it in, each member that it asks replies with the
//! missing voters ([`PeerMessage::NoLeader`]). An instance that asks to join has no data: if it is at
//! the address of a voter, the data of that voter is lost, damaged or put aside.

use std::collections::BTreeSet;

use crate::machine::Machine;
use crate::node::context::Context;
use crate::node::io::Time;
use crate::node::membership::Membership;
use crate::node::message::PeerMessage;
use crate::node::raft::core::Raft;
use crate::node::timings::REQUEST_TIME;
use crate::types::membership::{MEMBERS_MAX, Member, NodeId};

impl Membership {
    /// Notes an instance that asks to join, while this node knows no leader.
    pub(in crate::node) fn note_blank(
        &mut self,
        from: NodeId,
        member: &Member,
        raft: &Raft,
        machine: &Machine,
        cx: &mut Context,
    ) {
        if raft.leader() != 0 {
            return;
        }
        let until = cx.now.mono + REQUEST_TIME;
        let blank = &mut self.quorum_loss.blank;
        blank.retain(|_, (_, until)| cx.now.mono < *until);
        if from == member.node && blank.len() < MEMBERS_MAX {
            blank.insert(member.node, (member.address.clone(), until));
        }
        if raft.is_own_member() {
            let (voters, missing) = self.voters_missing(raft, machine);
            let voters = u32::try_from(voters).unwrap_or(u32::MAX);
            cx.send(from, PeerMessage::NoLeader { voters, missing });
        }
    }

    pub(in crate::node) fn take_no_leader(
        &mut self,
        from: NodeId,
        voters: u32,
        missing: Vec<String>,
        now: Time,
    ) {
        let until = now + REQUEST_TIME;
        let reports = &mut self.quorum_loss.reports;
        reports.retain(|_, (_, _, until)| now < *until);
        if reports.len() < MEMBERS_MAX && missing.len() <= MEMBERS_MAX {
            let voters = usize::try_from(voters).unwrap_or(usize::MAX);
            reports.insert(from, (voters, missing, until));
        }
    }

    /// How many voters there are, and the addresses of those that this member does not reach.
    fn voters_missing(&self, raft: &Raft, machine: &Machine) -> (usize, Vec<String>) {
        let conf = raft.log().voting();
        let voters: BTreeSet<NodeId> =
            conf.voters.iter().chain(&conf.voters_outgoing).copied().collect();
        let (roster, _) = machine.roster();
        let missing = self.contacts.problems().iter().filter(|(_, problem)| problem.is_some());
        let missing = missing.filter(|(node, _)| voters.contains(node)).map(|(node, _)| {
            let address = roster.get(*node).map(|seat| seat.member.address.clone());
            address.filter(|known| !known.is_empty()).unwrap_or_else(|| format!("{node:016x}"))
        });
        (voters.len(), missing.collect())
    }

    /// The addresses of the instances that asked to join while there was no leader.
    fn blank(&self, now: Time) -> Vec<String> {
        let blank = self.quorum_loss.blank.values().filter(|(_, until)| now < *until);
        let blank: BTreeSet<&String> = blank.map(|(address, _)| address).collect();
        blank.into_iter().cloned().collect()
    }

    /// What keeps the cluster from having a leader, as far as this node knows; `None` if there is
    /// one, or if enough voters are there to elect one.
    pub(in crate::node) fn why_no_quorum(
        &self,
        raft: &Raft,
        machine: &Machine,
        now: Time,
    ) -> Option<String> {
        if raft.leader() != 0 {
            return None;
        }
        let blank = self.blank(now);
        let reports = self.quorum_loss.reports.values().filter(|(_, _, until)| now < *until);
        let joins = !raft.is_own_member();
        let (voters, missing) = if joins {
            // The report of the member that reaches the most voters.
            let most = reports.min_by_key(|(_, missing, _)| missing.len());
            most.map(|(voters, missing, _)| (*voters, missing.clone())).unwrap_or_default()
        } else {
            self.voters_missing(raft, machine)
        };
        let lost = 2 * (voters - missing.len().min(voters)) <= voters;
        if !joins && !lost {
            return None;
        }
        let mut parts = Vec::new();
        if joins {
            parts.push("this instance has no data and waits for a leader to take it in".to_owned());
        }
        if voters > 0 && !missing.is_empty() {
            let (count, missing) = (missing.len(), missing.join(", "));
            parts
                .push(format!("{count} of {voters} voters of the cluster are missing ({missing})"));
        } else if joins {
            parts.push("no member of the cluster is reached that still has its data".to_owned());
        }
        if !blank.is_empty() {
            let other = if joins { "other " } else { "" };
            parts.push(format!(
                "{other}instances without data are at {}: the data of voters that were there is lost, \
                 damaged or put aside",
                blank.join(", ")
            ));
        }
        let mut text = parts.join("; ");
        if lost && (joins || !blank.is_empty()) {
            text.push_str("; see docs/recovery.md");
        }
        Some(text)
    }
}
