//! Clients of an instance that has no quorum: they read what its replica has.
//!
//! Their session is nobody's: the node is not asked, and nothing of it outlives the connection. A client that has a
//! session of the cluster gets its own id and password back, unchecked, to take it up when there is a quorum: they
//! give it no right here. Its ids are those of this connection alone.
//!
//! What a client reads stays as it was when it connected. So no event is due here, and when it sets its watches
//! again under its session, those of all later changes are.
//!
//! Source: ZooKeeper, `ReadOnlyZooKeeperServer` and `ReadOnlyRequestProcessor`.

use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, ReplyKind};
use super::wire::codes::OpCode;
use super::wire::handshake::{ConnectRequest, PASSWORD_BYTES};
use crate::machine::command::Reply;
use crate::machine::{Tree, Znode};
use crate::node::io::Write;
use crate::node::query::{Answer, Query};
use crate::node::sessions::queue::{Viewer, answer_read};
use crate::runtime::session::SessionShared;
use crate::runtime::shared::NodeShared;
use crate::types::acl::{Permissions, SESSION_IDS_MAX};
use crate::types::availability::Availability;
use crate::types::error::Error;
use crate::types::znode::SessionId;

/// Whether there is a quorum.
#[derive(Debug, Default)]
pub(super) struct Quorum {
    missing_since: Option<Duration>,
    /// Whether it has been missing for long enough to do without.
    pub(super) is_missed: bool,
}

impl Quorum {
    /// Called now and then. Returns whether this has changed.
    pub(super) fn look(&mut self, shared: &NodeShared, now: Duration) -> bool {
        let missing = matches!(shared.availability(), Availability::NoQuorum { .. });
        self.missing_since = missing.then(|| self.missing_since.unwrap_or(now));
        let since = |since: Duration| now.saturating_sub(since) >= shared.limits.tick;
        // A replica that has nothing yet has nothing to show either.
        let has_state = shared.has_replica && shared.tree().zxid() > 0;
        let is_missed = has_state && self.missing_since.is_some_and(since);
        let changed = is_missed != self.is_missed;
        self.is_missed = is_missed;
        if changed {
            let now = if is_missed { "reads alone, without a quorum" } else { "reads and writes" };
            tracing::info!("the gateway serves {now}");
        }
        changed
    }
}

impl Connection {
    /// Takes the first packet. Returns `false` if the client is to find another server: it wants to write, or has
    /// seen more than there is here.
    pub(super) fn greet_read_only(&mut self, request: ConnectRequest, timeout: Duration) -> bool {
        let tree = Arc::clone(&self.shared.tree());
        let zxid = tree.zxid();
        if request.read_only != Some(true) || request.seen() > zxid {
            return false;
        }
        let id = SessionId(request.session_id.cast_unsigned());
        let secret = request.password().filter(|_| id.0 != 0).unwrap_or([0; PASSWORD_BYTES]);
        let session = SessionShared::new(id, 0, secret, timeout);
        session.ids.store(Arc::new(self.first_ids()));
        self.reads_alone = Some(tree);
        self.session = Some(Arc::new(session));
        self.zxid = zxid;
        self.expect(0, ReplyKind::Connect(request), 1);
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self.answer_now(0, Ok(Answer::Reply(Reply::Session { timeout_ms })));
        true
    }

    /// Whether a read-only session is refused this, whatever its arguments are.
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
            // A session of the cluster goes on until it times out.
            OpCode::CloseSession => self.session.as_ref().is_some_and(|session| session.id.0 != 0),
            _ => false,
        }
    }

    /// Answers the request queued last, of those that the cluster takes as writes and that change none of its
    /// znodes.
    pub(super) fn write_nothing(&mut self, command: Write) {
        let Some(session) = &self.session else { return };
        let answer = match command {
            Write::Authenticate(ids) => {
                let mut all = (**session.ids.load()).clone();
                let new = ids.into_iter().filter(|id| !all.contains(id)).collect::<Vec<_>>();
                all.extend(new);
                if all.len() > SESSION_IDS_MAX {
                    let reason = format!("more than {SESSION_IDS_MAX} ids in one session");
                    Err(Error::IdRefused { scheme: String::new(), reason })
                } else {
                    session.ids.store(Arc::new(all));
                    Ok(Answer::Reply(Reply::Done))
                }
            }
            Write::Close => Ok(Answer::Reply(Reply::Done)),
            // Refused before (`may_not`).
            _ => return self.broken = true,
        };
        self.answer_now(0, answer);
    }

    /// Answers a part of the request queued last.
    pub(super) fn read_here(&mut self, part: usize, query: &Query, tree: &Tree) {
        let Some(session) = &self.session else { return };
        let ids = session.ids.load_full();
        let viewer = Viewer { session: session.id, ids: &ids };
        let ephemerals = || {
            // Its id is not proven, so it sees what everybody with its ids sees.
            let own = |znode: &Znode| {
                znode.stat().ephemeral_owner == Some(viewer.session)
                    && viewer.may(znode.acl().map(|acl| &**acl), Permissions::READ)
            };
            let znodes = tree.iter_from("/").filter(|(_, znode)| own(znode));
            znodes.map(|(path, _)| path.to_owned()).collect()
        };
        let answer = match query {
            Query::Read { read, .. } => answer_read(tree, read, viewer, ephemerals),
            Query::Watch { .. } => Ok(Answer::Watching),
            Query::RemoveWatches { path, which } if self.watches.remove(path, *which) => {
                Ok(Answer::Reply(Reply::Done))
            }
            Query::RemoveWatches { path, .. } => Err(Error::NoWatch { path: path.clone() }),
            // Refused before (`may_not`).
            Query::Sync => return self.broken = true,
        };
        self.answer_now(part, answer);
    }
}
