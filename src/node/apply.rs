//! How a node applies the log: committed entries to its state, and the outcomes to its users, its watches and
//! its clients.
//!
//! A part of a batch that has to be prepared, and entries beyond a bounded number, wait for the next step.

use super::Node;
use super::io::{DiskOp, SessionHolder};
use super::membership::REMOVED;
use super::message::PeerMessage;
use super::raft::configuration::{NodeRole, VotingChange};
use super::raft::core::Raft;
use super::raft::divergence::{self, Hashes, Verdict};
use super::raft::persistence::BACKLOG_BYTES_MAX;
use super::raft::ready::{CommittedEntry, Sender, TakenState};
use super::raft::snapshot_transfer::ReceivedSnapshot;
use super::replica::watches::Fired;
use crate::machine::Tree;
use crate::machine::command::{
    Applied, Batch, ChangeKind, Command, OpError, Request, SessionChange,
};
use crate::node::sessions::status::SessionStatus;
use crate::node::sessions::users::is_expiry;
use crate::types::acl::AccessList;
use crate::types::membership::NodeId;
use crate::types::quota::{self, Usage};
use crate::types::session::SessionState;
use crate::types::version;
use crate::types::znode::SessionId;

/// About how many requests a step applies: a few milliseconds' work. So a member that has many to apply
/// still answers heartbeats.
const APPLIED_MAX: usize = 4096;
/// This many bytes count as one more request.
const REQUEST_BYTES: usize = 4096;

/// How far the node is with what it applies.
#[derive(Debug, Default)]
pub(super) struct Applying {
    /// The entry that is being prepared: see [`Machine::prepare`](crate::machine::Machine::prepare).
    preparing: Option<(u64, Batch)>,
    /// How many requests this step has applied, and whether it leaves some to the next.
    pub(super) applied_now: usize,
    pub(super) goes_on: bool,
    /// The hashes of all replicas' states, at some entries.
    hashes: Hashes,
}

impl Node {
    /// Handles one `Ready` of raft-rs.
    pub(super) fn ready(&mut self) -> Result<(), String> {
        let (raft, mut sender) = self.raft_and_sender();
        let mut ready = raft.ready(&mut sender);
        for (context, index) in ready.take_reads() {
            self.reads_confirmed(&context, index);
        }
        let installs = ready.state().map(|state| self.install(state)).transpose()?;
        let (raft, mut sender) = self.raft_and_sender();
        raft.store(ready, installs, &mut sender);
        self.go_on_applying()?;
        self.settle();
        Ok(())
    }

    /// Sends what waited for writes which are now durable.
    pub(super) fn settle(&mut self) {
        let (raft, mut sender) = self.raft_and_sender();
        raft.settle(&mut sender);
    }

    fn raft_and_sender(&mut self) -> (&mut Raft, Sender<'_>) {
        let sender = Sender {
            replication: self.leading.as_mut().map(|leading| &mut leading.replication),
            machine: &self.machine,
            membership: &self.membership,
            cx: &mut self.cx,
        };
        (&mut self.raft, sender)
    }

    /// Raft has taken the snapshot that was staged: it replaces everything. Returns the operation that makes
    /// it durable.
    fn install(&mut self, state: TakenState) -> Result<u64, String> {
        let TakenState { position, voting, hard_state } = state;
        let staged =
            self.raft.incoming.staged.take().filter(|ReceivedSnapshot { meta, .. }| {
                meta.index == position.index && meta.term == position.term
            });
        let Some(ReceivedSnapshot { meta, machine, bytes }) = staged else {
            return Err("Raft restored a snapshot that was not received".to_owned());
        };
        tracing::info!(index = meta.index, zxid = meta.zxid, "the state of a leader was received");
        self.cx.metrics.snapshots_installed += 1;
        let old = self.machine.tree();
        // The host has published the former state. Dropping the last reference to it takes long.
        self.raft.persistence.former = Some(self.machine.state());
        self.machine = machine;
        self.cx.effects.zxid = self.machine.zxid();
        (self.applying.preparing, self.applying.goes_on) = (None, false);
        // The disk gets the whole state; deltas count from here.
        let _ = self.machine.take_dirty();
        self.raft.replaced(position, voting);
        self.raft.checkpoints.replaced(position, bytes, self.cx.now.mono);
        // The clients get these updates from another member, or from this one after they attach
        // again.
        let reason = "the member was brought up to date by a snapshot";
        self.replica.let_all_go(reason, &mut self.cx.effects);
        let mut fired = Fired::default();
        self.local.identify(&self.machine);
        let local = &self.local;
        let may_read = |session, acl: Option<&AccessList>| local.may_read(session, acl);
        let changed = self.machine.take_changed(old.zxid());
        self.replica.watches.fire_net(&old, &self.machine.tree(), &changed, may_read, &mut fired);
        self.deliver(fired, Some(&old));
        self.replica.history.begin_after(self.machine.zxid());
        self.reconcile_sessions();
        self.members_changed();
        self.local.applied();
        let number = self.raft.persistence.next_number();
        let mut hard_state = hard_state.unwrap_or_else(|| self.raft.hard_state());
        // Entries of the same step, which may be committed, are written after the state.
        hard_state.commit = position.index;
        let state = self.machine.state();
        self.cx.effects.disk.push(DiskOp::Install { number, hard_state, meta, state });
        Ok(number)
    }

    /// At the start of the node: applies the entries of its log that are known to be committed, up to the next
    /// change of the voters. Nobody reads the tree yet, so nothing of it is copied. If there are more than usual,
    /// steps apply the others, between which the node hears its peers.
    pub(super) fn apply_known(&mut self) -> Result<(), String> {
        let most = self.cx.config.log.checkpoint_changes_max * 2;
        loop {
            self.applying.applied_now = 0;
            self.go_on_applying()?;
            if !self.applying.goes_on || self.raft.checkpoints.applied_changes() >= most {
                return Ok(());
            }
        }
    }

    /// Applies the entries that raft-rs has handed out, which are on this member's own disk, and then
    /// other committed entries up to the next change of the voters. One step applies a bounded number
    /// of requests, and only a part of an entry that deletes very many znodes.
    pub(super) fn go_on_applying(&mut self) -> Result<(), String> {
        self.applying.goes_on = false;
        while !self.applying.goes_on
            && let Some(entry) = self.raft.next_to_apply()
        {
            self.applying.goes_on = !self.apply_entry(&entry)?;
        }
        self.local.applied();
        Ok(())
    }

    /// Whether so much waits to be applied that the node should take no more entries for now.
    pub(super) fn applies_too_late(&self) -> bool {
        let most = self.cx.config.log.memory_bytes + BACKLOG_BYTES_MAX as u64;
        self.applying.goes_on && self.raft.log().bytes() > most
    }

    /// Returns whether the entry is applied. If not, the next step goes on with it.
    fn apply_entry(&mut self, entry: &CommittedEntry) -> Result<bool, String> {
        if self.applying.applied_now >= APPLIED_MAX {
            return Ok(false);
        }
        let (at, data) = (entry.position(), entry.data());
        let index = at.index;
        let change = entry.voting_change();
        let of_voters = change.is_some();
        if let Some(change) = change {
            self.apply_voting(index, &change?);
        }
        // A new leader's first entry is empty.
        else if !data.is_empty() {
            let preparing = self.applying.preparing.take().filter(|(of, _)| *of == index);
            let proposed = || self.leading.as_mut()?.proposed.take(at, data);
            let batch = match preparing.map(|(_, batch)| batch).or_else(proposed) {
                Some(batch) => batch,
                None => Batch::decode(data).map_err(|reason| {
                    format!("entry {index} is not readable by this version: {reason}")
                })?,
            };
            if batch.version() > self.cx.config.version {
                return Err(version::too_old(batch.version(), self.cx.config.version));
            }
            if !self.machine.prepare(&batch) {
                self.applying.preparing = Some((index, batch));
                return Ok(false);
            }
            self.applying.applied_now += batch.requests.len() + data.len() / REQUEST_BYTES;
            if !strikes!(EntrySkipped, 97) {
                self.apply_batch(at.term, batch);
            }
        }
        if let Some(leading) = &mut self.leading
            && let Some(proposed_at) = leading.proposed.applied(index)
        {
            self.cx.metrics.commit.record(self.cx.now.mono.saturating_sub(proposed_at));
        }
        self.raft.applied(entry);
        if of_voters && !self.bootstrap.joins && !self.raft.is_own_member() {
            return Err(REMOVED.to_owned());
        }
        if index.is_multiple_of(divergence::EVERY) {
            self.share_hash(index)?;
        }
        Ok(true)
    }

    /// Applies a change of the voters.
    fn apply_voting(&mut self, index: u64, change: &VotingChange) {
        match self.raft.apply_change(change) {
            Ok(()) => {
                tracing::info!(index, ?change, "the voters have changed");
                self.members_changed();
                for (node, part) in &change.steps {
                    if *part == NodeRole::Gone
                        && let Some(leading) = &mut self.leading
                    {
                        leading.members.forget(*node);
                    }
                }
            }
            // By the applied members, so that all replicas decide the same.
            Err(error) => {
                tracing::warn!(index, %error, "an impossible change of the voters was ignored")
            }
        }
    }

    /// The members have changed: forgets the peers that are no longer members.
    pub(super) fn members_changed(&mut self) {
        self.bootstrap.joins &= !self.raft.is_own_member();
        self.raft.pace();
        self.membership.contacts.members_changed(&self.raft, &self.membership.versions);
        self.troubles.members_changed(&self.raft);
    }

    fn share_hash(&mut self, index: u64) -> Result<(), String> {
        let hash = self.machine.hash();
        for (peer, _) in self.membership.contacts.problems() {
            self.cx.effects.messages.push((*peer, PeerMessage::StateHash { index, hash }));
        }
        self.compare_hash(index, self.cx.id, hash)
    }

    pub(super) fn compare_hash(&mut self, index: u64, of: NodeId, hash: u64) -> Result<(), String> {
        let voters = &self.raft.log().voting().voters;
        let near = self.raft.log().applied().index + divergence::AHEAD_MAX;
        if (of != self.cx.id && !voters.contains(&of)) || index > near {
            return Ok(());
        }
        match self.applying.hashes.note(index, of, hash, self.cx.id, voters) {
            Verdict::Agree => Ok(()),
            Verdict::Disagree => {
                tracing::error!(index, peer = %self.membership.named(of), "replicas disagree on the state at this index");
                Ok(())
            }
            Verdict::Diverged => Err(format!(
                "this replica's state at entry {index} is not the majority's: it has diverged"
            )),
        }
    }

    /// Brings this node's sessions up to an installed snapshot, whose entries were not applied one
    /// by one.
    fn reconcile_sessions(&mut self) {
        let (now, zxid) = (self.cx.now.mono, self.machine.zxid());
        for claim in self.local.claims() {
            let session = claim.session_holder.session;
            match SessionStatus::of(claim, &self.machine) {
                SessionStatus::Held(_, outcomes) => {
                    for outcome in outcomes {
                        self.local.outcome(&outcome, now, zxid, &mut self.cx.effects);
                    }
                }
                SessionStatus::Over(state) => {
                    let reason = "the session ended while this replica was out of reach";
                    self.local.end_unknown(session, state, reason, &mut self.cx.effects);
                    self.end_watches(session);
                }
                SessionStatus::Unseen => self.local.unseen(session),
            }
        }
    }

    fn apply_batch(&mut self, term: u64, batch: Batch) {
        // The ids of a session at the moment of a change decide whether it gets the event.
        let authenticates =
            |request: &Request| matches!(request.command, Command::Authenticate { .. });
        // Needed so that an event brings the znode as its write has left it.
        let brings = self.replica.watches.bring_any_data();
        let at_once = !self.local.has_waits() && !self.replica.clients.has_waits() && !brings;
        if at_once && !batch.requests.iter().any(authenticates) {
            let applied = self.machine.apply(term, &batch);
            self.replica.clients.passed.note(&batch, &applied, &self.machine);
            self.take_applied(applied, None);
            return;
        }
        // A read sees the writes requested before it and none requested after it. The state machine
        // treats the requests of a batch one after the other, so that each may be a batch of its own.
        for request in batch.requests {
            let one = Batch { time: batch.time, requests: vec![request] };
            let before = self.replica.watches.bring_any_before().then(|| self.machine.tree());
            let applied = self.machine.apply(term, &one);
            self.replica.clients.passed.note(&one, &applied, &self.machine);
            self.take_applied(applied, before.as_ref());
            self.answer_waits();
        }
    }

    pub(super) fn answer_waits(&mut self) {
        let index = self.raft.log().applied().index;
        let (watches, history) = (&mut self.replica.watches, &self.replica.history);
        self.local.answer_waits(&self.machine, index, watches, history, &mut self.cx.effects);
        self.answer_clients();
    }

    /// `before`: the tree before the one write that was applied, if a watch needs it.
    fn take_applied(&mut self, applied: Applied, before: Option<&Tree>) {
        self.cx.effects.zxid = self.machine.zxid();
        self.raft.checkpoints.worked(&applied);
        let mut fired = Fired::default();
        for change in &applied.changes {
            let count = match change.kind {
                ChangeKind::Created => &mut self.cx.metrics.znodes_created,
                ChangeKind::DataChanged => &mut self.cx.metrics.znodes_changed,
                ChangeKind::Deleted => &mut self.cx.metrics.znodes_deleted,
            };
            *count += 1;
            self.cx.metrics.count_below(&change.path);
            if let Some(of) = quota::of_stats(&change.path)
                && change.kind == ChangeKind::DataChanged
            {
                let tree = self.machine.tree();
                let used = tree.get(&change.path).map(|znode| Usage::parse(znode.data()));
                let used = used.unwrap_or_default().to_string();
                tracing::warn!(path = of, used, "a soft quota is exceeded, or no longer exceeded");
            }
            let (local, clients) = (&self.local, &self.replica.clients);
            let may_read = |session, acl: Option<&AccessList>| {
                local.may_read(session, acl) || clients.may_read(session, acl)
            };
            self.replica.watches.fire(change, may_read, &mut fired);
        }
        self.deliver(fired, before);
        self.replica.history.note(applied.changes);
        for outcome in applied.outcomes.into_iter() {
            let session = outcome.session;
            // Only on the leader, so once in the cluster: other members may apply it much later, or
            // again after a restart.
            let expires = self.leading.is_some() && is_expiry(&outcome);
            self.cx.metrics.sessions_expired += u64::from(expires);
            if outcome.result.is_err()
                && let Some(leading) = &mut self.leading
            {
                leading.admission.refused(session, outcome.holder, &self.machine);
            }
            if matches!(outcome.result, Err(OpError::StaleExpiry)) {
                if let Some(leading) = &mut self.leading {
                    leading.expiry_refused(session);
                }
            } else {
                let (now, zxid) = (self.cx.now.mono, self.machine.zxid());
                self.local.outcome(&outcome, now, zxid, &mut self.cx.effects);
                self.replica.clients.outcome(outcome);
            }
        }
        for change in applied.sessions {
            let (session, holder, record) = match change {
                SessionChange::Held(session) => {
                    self.cx.metrics.sessions_opened += 1;
                    let Some(record) = self.machine.session(session) else {
                        continue;
                    };
                    (session, record.holder, Some(record))
                }
                SessionChange::Gone(session, holder) => {
                    self.cx.metrics.sessions_ended += 1;
                    (session, holder, None)
                }
            };
            let is_gone = record.is_none();
            let session_holder = SessionHolder { session, holder };
            if is_gone {
                self.replica.clients.passed.gone(session_holder);
            }
            self.replica.client_session_changed(session_holder, is_gone, &mut self.cx.effects);
            if let Some(leading) = &mut self.leading {
                match record {
                    Some(record) => leading.session_held(session, record, self.cx.now.mono),
                    None => leading.session_gone(session),
                }
            }
            // Another holder may have resumed it and closed it in one batch.
            if self.local.is_of_another(session, holder) {
                self.end_local(session, SessionState::Moved);
            } else if is_gone {
                self.end_local(session, SessionState::Expired);
            }
        }
    }

    fn end_local(&mut self, session: SessionId, state: SessionState) {
        self.local.end(session, state, &mut self.cx.effects);
        self.end_watches(session);
    }

    pub(super) fn end_watches(&mut self, session: SessionId) {
        self.cx.effects.ended.extend(self.replica.watches.end_session(session));
    }

    fn deliver(&mut self, mut fired: Fired, before: Option<&Tree>) {
        let (local, clients) = (&self.local, &self.replica.clients);
        let may_read = |session, acl: Option<&AccessList>| {
            local.may_read(session, acl) || clients.may_read(session, acl)
        };
        let tree = || self.machine.tree();
        self.replica.watches.add_data(&mut fired.events, before, tree, may_read);
        fired.add_to(&mut self.cx.effects);
    }
}
