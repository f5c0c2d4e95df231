//! Log lines about sessions that their holders have lost, and who these were.

use std::fmt;

use crate::machine::{Machine, SessionRecord};
use crate::node::io::Time;
use crate::node::leader::Leading;
use crate::node::membership::Membership;
use crate::types::membership::Named;
use crate::types::warnings::Warnings;
use crate::types::znode::SessionId;

/// The lines in five seconds. A member that is gone may have held thousands of sessions.
const LINES: u32 = 10;

/// Where a session is held, as log lines name it: the node, and the client's address if it is another.
pub(in crate::node) struct Holder {
    node: Named,
    from: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.node.address.as_deref().and_then(|own| own.rsplit_once(':'));
        let own = own.map(|(host, _)| host.trim_matches(['[', ']']));
        match self.from.as_deref().filter(|from| own != Some(*from)) {
            Some(from) => write!(f, "{}, from {from}", self.node),
            None => self.node.fmt(f),
        }
    }
}

/// How many of the lines are written.
#[derive(Debug)]
pub(super) struct Lines(Warnings<Time>);

impl Default for Lines {
    fn default() -> Lines {
        Lines(Warnings::new(LINES))
    }
}

impl Holder {
    /// The holder of a session. `from`: see [`host_of`].
    pub(in crate::node) fn of(
        record: &SessionRecord,
        from: Option<&str>,
        membership: &Membership,
    ) -> Holder {
        let from = host_of(record, from).map(str::to_owned);
        Holder { node: membership.named(record.owner), from }
    }
}

/// The host of a session's holder; with the port (`from`) for a client of this node's gateway.
pub(in crate::node) fn host_of<'a>(
    record: &'a SessionRecord,
    from: Option<&'a str>,
) -> Option<&'a str> {
    let host = record.ids.iter().find(|id| id.scheme == "ip").map(|id| id.id.as_str());
    from.or(host)
}

impl Leading {
    /// Logs that this leader expires these sessions. `from`: see [`host_of`].
    pub(in crate::node) fn note_expired<'a>(
        &mut self,
        sessions: &[SessionId],
        machine: &Machine,
        from: impl Fn(SessionId) -> Option<&'a str>,
        membership: &Membership,
        now: Time,
    ) {
        for &session in sessions {
            let Some(suppressed) = self.expired.0.permit(now) else { continue };
            let suppressed = (suppressed > 0).then_some(suppressed);
            let Some(record) = machine.session(session) else { continue };
            let (timeout_ms, ephemerals) = (record.timeout_ms, record.ephemerals.size());
            let held_by = Holder::of(record, from(session), membership);
            tracing::info!(
                %session, %held_by, timeout_ms, ephemerals, suppressed,
                "a session expires, since its holder has not renewed it"
            );
        }
        if let Some(more) = self.expired.0.rest(now) {
            tracing::info!("{more} more sessions expire");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_by_its_member_and_its_own_address() {
        let named = |address: Option<&str>, from: Option<&str>| {
            let node = Named { node: 7, address: address.map(str::to_owned) };
            Holder { node, from: from.map(str::to_owned) }.to_string()
        };
        let member = "10.0.0.1:7400 (0000000000000007)";
        for (from, expected) in [
            (None, member.to_owned()),
            (Some("10.0.0.1"), member.to_owned()),
            (Some("10.0.0.9"), format!("{member}, from 10.0.0.9")),
            (Some("10.0.0.1:5000"), format!("{member}, from 10.0.0.1:5000")),
        ] {
            assert_eq!(named(Some("10.0.0.1:7400"), from), expected);
        }
        assert_eq!(named(Some("[::1]:7400"), Some("::1")), "[::1]:7400 (0000000000000007)");
        assert_eq!(named(None, Some("10.0.0.9")), "0000000000000007, from 10.0.0.9");
    }
}
