//! What a node's own users are told: confirmations of the leader, and refusals.

use crate::machine::command::{Outcome, Reply};
use crate::node::context::Context;
use crate::node::io::Effects;
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::sessions::LocalSessions;
use crate::types::error::Error;
use crate::types::znode::SessionId;

impl LocalSessions {
    /// The leader has confirmed that it led after this ReadIndex request was sent: the log up to `index`
    /// covers it.
    pub(in crate::node) fn read_index_confirmed(
        &mut self,
        boot: u64,
        read_index: u64,
        index: u64,
        refused: &[SessionId],
        cx: &mut Context,
    ) {
        let now = cx.now.mono;
        let Some(request) = self.read_index.confirmed(boot, read_index) else {
            return;
        };
        cx.metrics.sync.record(now.saturating_sub(request.sent));
        self.renewed_by(&request, refused, now, &mut cx.effects);
        for sync in request.syncs {
            self.synced(sync, index);
        }
        self.read_index.covers(index, request.sent);
    }
}

/// Whether this is the outcome of an expiry that took effect: the only request of a session that its node
/// has not numbered. (The leader's own requests have no session.)
pub(in crate::node) fn is_expiry(outcome: &Outcome) -> bool {
    outcome.session != SessionId(0) && outcome.seq == 0 && outcome.result == Ok(Reply::Done)
}

/// Answers a request to a node or client that has stopped.
pub(in crate::node) fn refuse(effects: &mut Effects, request: ClientRequest, reason: &str) {
    if !matches!(request.body, RequestBody::Abandon(_)) {
        effects.reply(request.id, Err(Error::Stopped { reason: reason.to_owned() }));
    }
}
