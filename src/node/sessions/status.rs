//! What has become of a session that its holder did not follow in the log, as read from a state. The holder
//! is a user of a node that has installed a snapshot, or a client that has come from another member.

use crate::machine::command::{Outcome, Reply};
use crate::machine::{Machine, SessionRecord};
use crate::node::client_message::SessionClaim;
use crate::node::io::SessionHolder;
use crate::types::session::SessionState;

pub(in crate::node) enum SessionStatus<'a> {
    /// It belongs to this holder. With the outcomes of its open and writes that the holder does not know.
    Held(&'a SessionRecord, Vec<Outcome>),
    /// It has ended for this holder. It is no longer recorded whether its last writes were applied
    /// before.
    Over(SessionState),
    /// Either the open is still to come in the log, and will be answered then. Or it was in the log and the
    /// session has ended. The state does not show which of the two.
    Unseen,
}

impl SessionStatus<'_> {
    pub(in crate::node) fn of(claim: SessionClaim, machine: &Machine) -> SessionStatus<'_> {
        let SessionClaim {
            session_holder: SessionHolder { session, holder },
            applied,
            opened,
            base,
        } = claim;
        // Whether it may have been opened and have ended within the entries of this state.
        let ended = base.is_some_and(|base| machine.admits(session, base).is_err());
        match machine.session(session) {
            Some(record) if record.holder == holder => {
                let zxid = machine.zxid();
                let outcome = |seq, result| Outcome { session, holder, seq, zxid, result };
                let opened = outcome(0, Ok(Reply::Session { timeout_ms: record.timeout_ms }));
                let lacked = applied + 1..=record.last_seq;
                let known = lacked.filter_map(|seq| Some((seq, record.result_of(seq)?.clone())));
                let known = known.map(|(seq, result)| outcome(seq, result));
                SessionStatus::Held(record, std::iter::once(opened).chain(known).collect())
            }
            Some(record) if opened || record.was_held_by(holder) => {
                SessionStatus::Over(SessionState::Moved)
            }
            None if opened || ended => SessionStatus::Over(SessionState::Expired),
            Some(_) | None => SessionStatus::Unseen,
        }
    }
}
