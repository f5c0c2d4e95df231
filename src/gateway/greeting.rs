//! A client's first packet, which opens a session or resumes one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::GatewayBuilder;
use super::connection::ClientConnection;
use super::ending::Ending;
use super::waiting::RequestKind;
use super::wire::handshake::{ConnectRequest, PASSWORD_BYTES};
use super::wire::jute::Jute;
use crate::api::support::{Ask, Query, RequestBody, RequestOrigin, SessionShared, entropy, holder};
use crate::security::{self, auth::Schemes};
use crate::types::acl::Id;
use crate::types::error::Error;
use crate::types::right::Right;
use crate::types::znode::SessionId;

/// By what a client is known before it asks for more: the ids that its session has from the start.
pub(super) struct Identity {
    pub(super) address: SocketAddr,
    /// Its id by its certificate.
    pub(super) certified: Option<Id>,
    /// The id that makes a super user.
    super_user: Option<Id>,
    /// Whether access lists do not apply to it.
    skips_acl: bool,
}

impl Identity {
    pub(super) fn new(address: SocketAddr, settings: &GatewayBuilder) -> Identity {
        let (super_user, skips_acl) = (settings.super_user(), settings.skips_acl);
        Identity { address, certified: None, super_user, skips_acl }
    }

    /// The id by its address.
    pub(super) fn ip(&self) -> Id {
        Id::new("ip", self.address.ip().to_string())
    }

    pub(super) fn ids(&self, schemes: &Schemes) -> Vec<Id> {
        let mut ids = vec![self.ip()];
        ids.extend(self.certified.clone());
        let subject = self.certified.as_ref().map(|id| &*id.id);
        let connection = security::Connection::new(self.address, subject, Right::Client);
        ids.extend(schemes.given(&connection));
        if self.skips_acl || self.is_super() {
            ids.push(Id::superuser());
        }
        ids
    }

    /// Whether it is the super user by its certificate.
    pub(super) fn is_super(&self) -> bool {
        self.super_user.is_some() && self.super_user == self.certified
    }
}

impl ClientConnection {
    /// Takes the first packet. With `read_only`, there is no quorum, and the client is served from the replica
    /// alone.
    pub(super) fn handshake(&mut self, mut frame: Bytes, read_only: bool) -> Result<(), Ending> {
        let request = ConnectRequest::read(&mut frame).map_err(|_| Ending::Foreign)?;
        let timeout = u64::try_from(request.timeout).unwrap_or(0);
        let timeout = self.shared.limits.timeouts.negotiated(Duration::from_millis(timeout));
        if read_only {
            return self.greet_read_only(request, timeout);
        }
        let holder = holder::of_connection().map_err(no_entropy)?;
        let resumed = request.session_id != 0;
        let (id, secret) = if resumed {
            // No session has a password of another length.
            let Some(secret) = request.password() else { return self.unknown_session(request) };
            (SessionId(request.session_id.cast_unsigned()), secret)
        } else {
            (new_session()?, entropy::bytes().map_err(no_entropy)?)
        };
        let session = Arc::new(SessionShared::new(id, holder, secret, timeout));
        let _ = session.recipient.set(self.recipient.clone());
        self.session.begin(Arc::clone(&session), resumed);
        let newer = request.seen() > self.shared.tree().zxid();
        let ask = match resumed {
            true => Ask::resume(&session, Some(timeout)),
            false => Ask::open(&session, timeout),
        };
        let (open, read) = ask.for_user(self.identity.address).split();
        let parts = 1 + usize::from(newer);
        self.expect(0, RequestKind::Connect, parts, move |own, _, parts| {
            let mut parts = parts.into_iter().flatten();
            if let Some((_, opened)) = parts.next() {
                own.connected(&request, opened.and_then(read), parts.next());
            }
        });
        self.ask_part(0, open);
        if newer {
            self.ask_part(1, RequestBody::Query(Query::Sync));
        }
        let ids = self.identity.ids(&self.shared.schemes);
        session.ids.store(Arc::new(ids.clone()));
        self.shared.ask_and_forget(RequestOrigin::Holder(session), Ask::authenticate(ids));
        Ok(())
    }

    fn unknown_session(&mut self, request: ConnectRequest) -> Result<(), Ending> {
        let (id, timeout) = (new_session()?, Duration::from_secs(1));
        // This session is never opened.
        let session = SessionShared::new(id, 0, [0; PASSWORD_BYTES], timeout);
        self.session.begin(Arc::new(session), true);
        self.expect(0, RequestKind::Connect, 0, move |own, _, _| {
            own.connected(&request, Err(Error::WrongPassword { session: id }), None);
        });
        Ok(())
    }
}

fn no_entropy(error: Error) -> Ending {
    Ending::Failure(error.to_string().into())
}

fn new_session() -> Result<SessionId, Ending> {
    loop {
        let id = entropy::number().map_err(no_entropy)?;
        // 0 stands for a new session, and tools print negative ids badly.
        if id << 1 != 0 {
            return Ok(SessionId(id & (u64::MAX >> 1)));
        }
    }
}
