//! What a client may do, by the credential of its connection.
//!
//! A client with the members' own credential is trusted as they are: it checks its users' credentials itself.
//! One with a client's or an operator's is not. Its sessions have the ids that the member knows by the
//! connection, whatever the client says, and it asks for operators' actions only with an operator's.

use std::collections::BTreeMap;

use crate::machine::command::{Command, Request};
use crate::node::admin::message::AdminRequest;
use crate::types::acl::Id;
use crate::types::membership::NodeId;
use crate::types::right::{Connection, Right};

/// The connections of the peers, with the ids that the sessions of clients have by them.
#[derive(Debug, Default)]
pub(in crate::node) struct ClientRights(BTreeMap<NodeId, (Connection, Vec<Id>)>);

impl ClientRights {
    /// A peer's messages come over this connection from now on. `ids`: those that its sessions have by it.
    /// Only the end of that connection takes this back, and not a report that the peer cannot be reached
    /// elsewhere.
    pub(in crate::node) fn authenticated(
        &mut self,
        peer: NodeId,
        connection: Option<Connection>,
        ids: Vec<Id>,
    ) {
        match connection {
            None => _ = self.0.remove(&peer),
            Some(connection) => _ = self.0.insert(peer, (connection, ids)),
        }
    }

    pub(in crate::node) fn of(&self, peer: NodeId) -> Right {
        self.connection(peer).map_or(Right::Member, |connection| connection.right)
    }

    pub(in crate::node) fn connection(&self, peer: NodeId) -> Option<&Connection> {
        self.0.get(&peer).map(|(connection, _)| connection)
    }

    /// Why this peer may not ask for this; `None` if it may.
    pub(in crate::node) fn refusal(&self, peer: NodeId, asked: &AdminRequest) -> Option<String> {
        let (has, needs) = (self.of(peer), asked.needs());
        let may = has >= needs || planted!(ClientOperates);
        (!may).then(|| {
            format!(
                "the credential of this instance is that of {}, and this needs that of {}",
                has.one(),
                needs.one()
            )
        })
    }

    /// Gives the sessions of a client that is not trusted the ids of its connection, and no others.
    pub(super) fn vouch(&self, client: NodeId, request: &mut Request) {
        if let Some((connection, known)) = self.0.get(&client)
            && connection.right < Right::Member
            && let Command::Authenticate { ids } = &mut request.command
            // Without ids, it only acknowledges.
            && !ids.is_empty()
            && !planted!(ClientNamesItself)
        {
            ids.clone_from(known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::{Bug, claims};
    use crate::types::znode::SessionId;

    fn request(ids: Vec<Id>) -> Request {
        let command = Command::Authenticate { ids };
        Request { session: SessionId(1), holder: 2, seq: 3, acked: 0, command }
    }

    fn connection(right: Right) -> Option<Connection> {
        Some(Connection::new("10.0.0.7:4000".parse().unwrap(), None, right))
    }

    #[test]
    fn ids_and_actions_are_decided_by_the_member() {
        claims(ids_of_the_connection, Bug::ClientNamesItself);
        claims(actions, Bug::ClientOperates);
    }

    fn ids_of_the_connection() {
        let mut rights = ClientRights::default();
        let (own, forged) = (Id::new("x509", "CN=app"), Id::new("x509", "CN=root"));
        rights.authenticated(7, connection(Right::Client), vec![own.clone()]);
        rights.authenticated(9, connection(Right::Member), Vec::new());
        for claimed in [vec![forged.clone()], vec![Id::superuser()], vec![own.clone()]] {
            let mut asked = request(claimed);
            rights.vouch(7, &mut asked);
            assert_eq!(asked, request(vec![own.clone()]));
        }
        // An acknowledgement stays one, and a member's client is trusted.
        for (client, ids) in [(7, vec![]), (8, vec![forged.clone()]), (9, vec![forged])] {
            let mut asked = request(ids);
            let before = asked.clone();
            rights.vouch(client, &mut asked);
            assert_eq!(asked, before);
        }
    }

    fn actions() {
        let mut rights = ClientRights::default();
        let image = AdminRequest::Image { of: 0, transfer: 1, piece: 0 };
        let refusals = |rights: &ClientRights| {
            [&AdminRequest::Report, &image].map(|asked| rights.refusal(7, asked).is_some())
        };
        assert_eq!(refusals(&rights), [false, false]);
        rights.authenticated(7, connection(Right::Client), Vec::new());
        assert_eq!(refusals(&rights), [false, true]);
        // Its right may change while it is known.
        rights.authenticated(7, connection(Right::Operator), Vec::new());
        assert_eq!(refusals(&rights), [false, false]);
        rights.authenticated(7, connection(Right::Client), Vec::new());
        rights.authenticated(7, connection(Right::Member), Vec::new());
        assert_eq!(rights.of(7), Right::Member);
        rights.authenticated(7, None, Vec::new());
        assert_eq!(rights.of(7), Right::Member);
    }
}
