//! What a node does as the leader: it lets requests into the log, expires
//! sessions, and confirms that it still leads.

use std::time::Duration;

use raft::StateRole;

use super::rounds::Asked;
use super::{EARLY_BYTES_MAX, EARLY_MAX, Node, admission};
use crate::machine::command::{Batch, Command, NodeId, Request};
use crate::node::message::PeerMessage;
use crate::planted::{Bug, planted};
use crate::znode::SessionId;

/// How long an heir may take to lead before another one is chosen, in heartbeats.
const HEIR_TICKS: u32 = 4;

impl Node {
    pub(super) fn take_forwarded(&mut self, from: NodeId, request: Request) {
        // Only a leader decides that a session has expired, and a node opens sessions for itself.
        let forged = match request.command {
            Command::Expire { .. }
            | Command::Reap { .. }
            | Command::RaiseVersion { .. }
            | Command::Configure { .. } => true,
            Command::Open { owner, .. } | Command::Resume { owner, .. } => owner != from,
            _ => false,
        };
        if forged {
            tracing::warn!(from, "refused a request that its sender may not make");
        } else if self.serving {
            self.admission.admit(request, &self.machine);
        } else {
            let size = admission::size(&request.command);
            if self.early.len() < EARLY_MAX && self.early_bytes + size <= EARLY_BYTES_MAX {
                self.early_bytes += size;
                self.early.push_back((from, request));
            }
        }
    }

    pub(super) fn expire_sessions(&mut self) {
        for session in self.expiry.take_expired(self.now.mono) {
            self.expire(session);
        }
    }

    pub(super) fn expire(&mut self, session: SessionId) {
        let Some(record) = self.machine.session(session) else {
            return;
        };
        let holder = record.holder;
        // In case it comes to nothing (it was resumed in the same moment).
        let timeout = Duration::from_millis(u64::from(record.timeout_ms));
        self.expiry.touch(session, timeout, self.now.mono);
        self.expiring.insert(session);
        let command = Command::Expire { term: self.raw.raft.term };
        let request = Request { session, holder, seq: 0, acked: 0, command };
        self.admission.admit(request, &self.machine);
    }

    /// Asks for the end of the znodes that are due, see `reap`.
    pub(super) fn reap(&mut self) {
        let applied = self.raw.store().applied().index;
        if !self.reaper.is_time(self.now.mono, applied) {
            return;
        }
        let time = self.log_time();
        let last = self.raw.raft.raft_log.last_index();
        for path in self.reaper.take_due(self.now.mono, last, &self.machine.tree(), time) {
            let command = Command::Reap { path };
            let request = Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command };
            self.admission.admit(request, &self.machine);
        }
    }

    /// Gives every session its full timeout again.
    pub(super) fn renew_all(&mut self) {
        if self.serving && !planted(Bug::NewLeaderForgetsSessions) {
            for (session, record) in self.machine.sessions() {
                let timeout = Duration::from_millis(u64::from(record.timeout_ms));
                self.expiry.touch(session, timeout, self.now.mono);
            }
        }
    }

    /// The time that this node stamps as the leader.
    pub(super) fn log_time(&self) -> u64 {
        self.log_clock.time_ms()
    }

    /// The same, if it serves as the leader.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn stamps(&self) -> Option<u64> {
        (self.serving && self.stopped.is_none()).then(|| self.log_time())
    }

    /// Raises the cluster's version to what all members can do, by an entry of its own: who can do
    /// less can read that at least.
    pub(super) fn raise_version(&mut self) {
        let present = self.machine.version().max(self.admission.raised_to());
        if !self.serving || self.versions.own() <= present {
            return;
        }
        let Some(version) = self.versions.common(self.others()).filter(|all| *all > present) else {
            return;
        };
        let command = Command::RaiseVersion { version };
        let request = Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command };
        let batch = Batch { time: self.log_time(), requests: vec![request] };
        // Refused while leadership is handed over: then by the next step, or the next leader.
        if self.raw.propose(Vec::new(), batch.encode()).is_ok() {
            tracing::info!(from = present, to = version, "raising the cluster's version");
            self.admission.raise(version);
        }
    }

    pub(super) fn propose(&mut self) {
        while self.serving {
            let Some(batch) = self.admission.next_batch(self.log_time()) else {
                return;
            };
            // Refused while too much is uncommitted, or while leadership is handed over.
            if self.raw.propose(Vec::new(), batch.encode()).is_err() {
                self.admission.put_back(batch);
                return;
            }
            let raft = &self.raw.raft;
            self.proposed.push(raft.raft_log.last_index(), raft.term, batch);
        }
    }

    pub(super) fn take_round(
        &mut self,
        from: NodeId,
        guest: Option<NodeId>,
        boot: u64,
        round: u64,
        sessions: &[SessionId],
    ) {
        let owner = guest.unwrap_or(from);
        let mut refused = Vec::new();
        for session in sessions {
            match self.machine.session(*session) {
                Some(record) if record.owner == owner && !self.expiring.contains(session) => {
                    let mut timeout = Duration::from_millis(u64::from(record.timeout_ms));
                    if planted(Bug::ExpiryEarly) {
                        timeout /= 2;
                    }
                    self.expiry.touch(*session, timeout, self.now.mono);
                }
                _ => refused.push(*session),
            }
        }
        self.confirmations.ask(Asked { from, guest, boot, round, refused });
    }

    pub(super) fn read_index(&mut self) {
        if !self.serving {
            return;
        }
        let patience = self.config.heartbeat * 2;
        if let Some(read) = self.confirmations.next_read(self.now.mono, patience) {
            let mut context = self.rounds.boot().to_be_bytes().to_vec();
            context.extend(read.to_be_bytes());
            if planted(Bug::ReadWithoutQuorum) {
                let committed = self.raw.raft.raft_log.committed;
                return self.reads_confirmed(&context, committed);
            }
            self.raw.read_index(context);
        }
    }

    pub(super) fn reads_confirmed(&mut self, context: &[u8], index: u64) {
        let parts = context.split_first_chunk::<8>();
        let Some((boot, rest)) = parts else { return };
        let Ok(read) = <[u8; 8]>::try_from(rest).map(u64::from_be_bytes) else {
            return;
        };
        if u64::from_be_bytes(*boot) != self.rounds.boot() {
            return;
        }
        for asked in self.confirmations.confirmed(read) {
            let Asked { from, guest, boot, round, refused } = asked;
            if from == self.id {
                match guest {
                    Some(guest) => self.guest_confirmed(guest, boot, round, index, refused),
                    None => self.round_confirmed(boot, round, index, &refused),
                }
                continue;
            }
            let message = match guest {
                Some(guest) => PeerMessage::GuestConfirmed { guest, boot, round, index, refused },
                None => PeerMessage::RoundConfirmed { boot, round, index, refused },
            };
            self.effects.messages.push((from, message));
        }
    }

    /// Hands leadership over, to one heir, until somebody else leads. May be asked for again and again.
    ///
    /// raft-rs takes no proposals meanwhile, brings the heir level with the log and tells it once to
    /// stand for election. An heir that does not lead after [`HEIR_TICKS`] has died or has not received
    /// that: then another voter is chosen, if there is one.
    pub(super) fn resign(&mut self) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        let now = self.now.mono;
        let mut last = None;
        if let Some(heir) = self.raw.raft.lead_transferee {
            if now < self.heir_since + self.config.heartbeat * HEIR_TICKS {
                return;
            }
            self.raw.raft.abort_leader_transfer();
            last = Some(heir);
        }
        let Some(heir) = self.heir(last) else { return };
        self.heir_since = now;
        self.raw.transfer_leader(heir);
    }

    /// The voter that can lead soonest: one that answers, and has most of the log.
    fn heir(&self, last: Option<NodeId>) -> Option<NodeId> {
        let voters = &self.raw.store().conf_state().voters;
        let progress = self.raw.raft.prs().iter();
        let candidates = progress.filter(|(id, progress)| {
            **id != self.id && progress.recent_active && voters.contains(id)
        });
        let best = candidates.max_by_key(|(id, progress)| {
            (Some(**id) != last, self.answers(**id), progress.matched, **id)
        });
        best.map(|(id, _)| *id)
    }
}
