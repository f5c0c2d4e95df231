//! How a client attaches: its claims of sessions, and its watches.

use std::sync::Arc;

use super::{Beginning, ClientSession, PAST_BYTES_MAX, PAST_CHANGES_MAX};
use crate::machine::Machine;
use crate::node::client_message::{FromClient, HeldWatch, SessionClaim, ToClient};
use crate::node::io::{Effects, WatchId};
use crate::node::replica::Replica;
use crate::node::replica::notification::MissedEvent;
use crate::node::replica::watches::Fired;
use crate::node::sessions::status::SessionStatus;
use crate::types::acl;
use crate::types::acl::{AccessList, Permissions};
use crate::types::membership::NodeId;
use crate::types::session::SessionState;

/// How much of the history one attaching client has been sent.
#[derive(Default)]
struct SentHistory {
    bytes: usize,
    changes: usize,
}

impl SentHistory {
    /// Whether this many changes may be checked for one more watch. Beyond the limits a watch is treated
    /// as if the history were gone: it gets the net change or a gap.
    fn looks_at(&mut self, changes: usize) -> bool {
        self.changes += changes;
        self.bytes <= PAST_BYTES_MAX && self.changes <= PAST_CHANGES_MAX
    }
}

/// Whether this replica has all answered writes of a claimed session. The zxid alone does not show that, since
/// a session gets ids without a zxid.
fn has_answered(machine: &Machine, claim: &FromClient) -> bool {
    let FromClient::Claim(claim) = claim else { return true };
    let record = machine.session(claim.session_holder.session);
    let record = record.filter(|record| record.holder == claim.session_holder.holder);
    record.is_none_or(|record| record.last_seq >= claim.applied)
}

impl Replica {
    /// Attaches a client that has sent its claims, as soon as this replica has everything that the
    /// client has seen.
    pub(in crate::node) fn begin_client(
        &mut self,
        machine: &Machine,
        cluster: u64,
        from: NodeId,
        effects: &mut Effects,
    ) {
        let zxid = machine.zxid();
        let Some(client) = self.clients.clients.get_mut(&from) else {
            return;
        };
        let ready = |beginning: &mut Beginning| {
            let caught_up = beginning.seen <= zxid || planted!(ClientSeesOlder);
            let mut claims = beginning.claims.iter();
            beginning.complete && caught_up && claims.all(|claim| has_answered(machine, claim))
        };
        let Some(beginning) = client.beginning.take_if(ready) else {
            return;
        };
        client.outgoing.push(ToClient::Cluster { cluster });
        let mut past = SentHistory::default();
        for claim in beginning.claims {
            match claim {
                FromClient::Claim(claim) => self.take_claim(machine, from, claim),
                FromClient::Watch(held) => {
                    self.watch_again(machine, from, held, &mut past, effects)
                }
                _ => {}
            }
        }
        self.clients.send(from, ToClient::Attached);
    }

    /// Sends a client what has become of its session.
    fn take_claim(&mut self, machine: &Machine, from: NodeId, claim: SessionClaim) {
        let session_holder = claim.session_holder;
        match SessionStatus::of(claim, machine) {
            SessionStatus::Held(record, outcomes) => {
                let held = self.clients.hold(from, session_holder);
                held.opened = true;
                held.ids = Arc::clone(&record.ids);
                let ids = (*record.ids).clone();
                self.clients.send(from, ToClient::Held { session_holder, ids });
                for outcome in outcomes {
                    self.clients.send(from, ToClient::Outcome(outcome));
                }
            }
            SessionStatus::Over(state) => {
                let moved = state == SessionState::Moved;
                let ended = ToClient::Ended { session_holder, moved, known: false };
                self.clients.send(from, ended);
            }
            SessionStatus::Unseen => {
                self.clients.hold(from, session_holder);
                self.clients.send(from, ToClient::Unseen { session_holder });
            }
        }
    }

    fn watch_again(
        &mut self,
        machine: &Machine,
        from: NodeId,
        held: HeldWatch,
        past: &mut SentHistory,
        effects: &mut Effects,
    ) {
        let HeldWatch { watch, session_holder, path, kind, existed, from: up_to, data } = held;
        // Until the replica has seen that the session is this holder's, its watches were never answered, and its
        // ids are not this client's.
        let opened = |of: &&ClientSession| of.opened || planted!(ClaimLendsIds);
        let Some(of) = self.clients.sessions.get(&session_holder).filter(opened) else {
            return;
        };
        let ids = Arc::clone(&of.ids);
        let id = self.number_watch(from, watch, path.len());
        let may_read = |acl: Option<&AccessList>| acl::permits(acl, &ids, Permissions::READ);
        let up_to = unless!(ClientWatchFromNow, up_to, machine.zxid());
        let (tree, known) = (machine.tree(), self.history.after(up_to).ok());
        let known = known.filter(|changes| past.looks_at(changes.len()));
        let existed = unless!(MoveFires, existed, !existed);
        let missed = MissedEvent { tree: &tree, from: up_to, existed };
        let mut fired = Fired::default();
        let new = (id, path, kind);
        self.watches.add_again(
            new,
            session_holder.session,
            known,
            (missed, data),
            may_read,
            &mut fired,
        );
        past.bytes += fired.events.iter().map(|(_, event)| event.path.len() + 64).sum::<usize>();
        fired.add_to(effects);
    }

    /// Numbers a client's watch on a path of this length. An earlier watch with the same number of the client
    /// has ended.
    pub(super) fn number_watch(&mut self, from: NodeId, watch: u64, bytes: usize) -> WatchId {
        let Replica { watches, clients, .. } = self;
        clients.next_watch += 1;
        let id = WatchId::of_client(clients.next_watch);
        clients.watches.insert(id, (from, watch));
        if let Some(client) = clients.clients.get_mut(&from) {
            client.watch_bytes += bytes;
            if let Some((former, bytes)) = client.watches.insert(watch, (id, bytes)) {
                client.watch_bytes -= bytes;
                clients.watches.remove(&former);
                watches.remove(former);
            }
        }
        id
    }
}
