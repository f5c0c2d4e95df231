//! Clients of an instance that has no quorum: they read its replica.
//!
//! Their session is not known to the node or the cluster, and ends with the connection. A client that has a
//! session of the cluster gets its own id and password back, unchecked, so that it can resume that session
//! when there is a quorum: they give it no right here. Its ids for access lists are those of this connection
//! alone.
//!
//! A client reads the tree as of the moment when it connected. So no events are due here. When it sets its
//! watches again under its session, it gets the events of all later changes.
//!
//! Source: ZooKeeper, `ReadOnlyZooKeeperServer` and `ReadOnlyRequestProcessor`.

use std::sync::Arc;
use std::time::Duration;

use super::connection::ClientConnection;
use super::convert;
use super::ending::Ending;
use super::waiting::RequestKind;
use super::wire::codes::OpCode;
use super::wire::handshake::{ConnectRequest, PASSWORD_BYTES};
use crate::api::support::{
    Answer, CONFIG, Command, Query, Reply, RequestBody, SessionShared, Tree, read_alone,
};
use crate::types::acl::SESSION_IDS_MAX;
use crate::types::error::id_refused;
use crate::types::znode::SessionId;

impl ClientConnection {
    /// Takes the first packet. Fails if the client has to find another server, because it wants to write or
    /// has seen a later state than this replica's.
    pub(super) fn greet_read_only(
        &mut self,
        request: ConnectRequest,
        timeout: Duration,
    ) -> Result<(), Ending> {
        let tree = Arc::clone(&self.shared.tree());
        let zxid = tree.zxid();
        if request.read_only != Some(true) {
            return Err(Ending::NeedsQuorum);
        }
        if request.seen() > zxid {
            return Err(Ending::Ahead);
        }
        let id = SessionId(request.session_id.cast_unsigned());
        let secret = request.password().filter(|_| id.0 != 0).unwrap_or([0; PASSWORD_BYTES]);
        let session = SessionShared::new(id, 0, secret, timeout);
        session.ids.store(Arc::new(self.identity.ids(&self.shared.schemes)));
        self.session.begin_alone(session, tree);
        self.zxid = zxid;
        self.expect(0, RequestKind::Connect, 0, move |own, _, _| {
            own.connected(&request, Ok(timeout), None);
        });
        Ok(())
    }

    /// Whether this op is refused to read-only sessions, whatever its arguments.
    pub(super) fn may_not(&self, op: OpCode) -> bool {
        match op {
            OpCode::Create
            | OpCode::Create2
            | OpCode::CreateContainer
            | OpCode::CreateTtl
            | OpCode::Delete
            | OpCode::DeleteContainer
            | OpCode::SetData
            | OpCode::SetAcl
            | OpCode::Check
            | OpCode::Multi
            | OpCode::Reconfig
            | OpCode::Sync => true,
            // A session of the cluster cannot be closed here; it lasts until it times out.
            OpCode::CloseSession => self.session.get().is_some_and(|session| session.id.0 != 0),
            _ => false,
        }
    }

    /// Answers a part of the request queued last. Of what the cluster treats as writes, only requests that change no
    /// znode get here.
    pub(super) fn ask_alone(&mut self, part: usize, body: RequestBody, tree: &Tree) {
        let Some(session) = self.session.get() else { return };
        let ids = session.ids.load_full();
        let answer = match &body {
            RequestBody::Command(Command::Authenticate { ids: more }) => {
                let mut all = (*ids).clone();
                let new = more.iter().filter(|id| !all.contains(id)).cloned().collect::<Vec<_>>();
                all.extend(new);
                if all.len() > SESSION_IDS_MAX {
                    let reason = format!("more than {SESSION_IDS_MAX} ids in one session");
                    Err(id_refused("", reason))
                } else {
                    session.ids.store(Arc::new(all.clone()));
                    Ok(Answer::Reply(Reply::Ids(all)))
                }
            }
            RequestBody::Query(query @ Query::Read { read, .. }) => {
                let answer = read_alone(tree, read, session.id, &ids);
                match query.path().is_some_and(|path| **path == *CONFIG) {
                    true => answer.map(convert::without_members),
                    false => answer,
                }
            }
            RequestBody::Query(Query::Watch { .. }) => Ok(Answer::Watching),
            // Watches are removed when this is replied to.
            RequestBody::Command(Command::Close)
            | RequestBody::Query(Query::RemoveWatches { .. }) => Ok(Answer::Reply(Reply::Done)),
            // Refused before (`may_not`), or never asked by this protocol.
            _ => return self.end(Ending::Failure("a write in a read-only session".into())),
        };
        self.answer_now(part, answer);
    }
}
