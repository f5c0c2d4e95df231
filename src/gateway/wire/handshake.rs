//! The first frame in each direction.
//!
//! Neither has a header. Clients before ZooKeeper 3.4 omit the last byte, and get a reply without it. Bytes
//! after it are ignored.

use bytes::{Buf, Bytes};

use super::jute::{Credential, Jute, Sink, Unreadable, records};

/// How long the password of a session is.
pub(crate) const PASSWORD_BYTES: usize = 16;

/// The byte that may be missing.
impl Jute for Option<bool> {
    const LEAST: usize = 0;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        if from.has_remaining() { bool::read(from).map(Some) } else { Ok(None) }
    }

    fn write(&self, to: &mut dyn Sink) {
        if let Some(present) = self {
            present.write(to);
        }
    }
}

records! {
    /// The first frame of a client. If it cannot be read, the connection is closed without a reply.
    ConnectRequest {
        /// Ignored: there is only one version.
        protocol_version: i32,
        last_zxid_seen: i64,
        /// In milliseconds, for the server to clamp.
        timeout: i32,
        /// 0 for a new session: the password means nothing then.
        session_id: i64,
        password: Credential,
        /// Whether the client accepts a server that takes no writes; `None` if it does not know of
        /// such servers.
        read_only: Option<bool>,
    }

    /// The server's answer.
    ConnectResponse {
        protocol_version: i32,
        /// As negotiated; 0 if the session is gone.
        timeout: i32,
        session_id: i64,
        password: Credential,
        /// Whether the server takes no writes; present only if the request had the byte.
        read_only: Option<bool>,
    }
}

impl ConnectRequest {
    /// The password, if it has the length of a session's password.
    pub(crate) fn password(&self) -> Option<[u8; PASSWORD_BYTES]> {
        let Credential(password) = &self.password;
        password.as_deref()?.try_into().ok()
    }

    /// The last zxid that the client has seen.
    pub(crate) fn seen(&self) -> u64 {
        u64::try_from(self.last_zxid_seen).unwrap_or(0)
    }
}

impl ConnectResponse {
    /// The reply that accepts a session.
    pub(crate) fn accepted(
        request: &ConnectRequest,
        timeout: i32,
        session_id: i64,
        password: Bytes,
        read_only: bool,
    ) -> Self {
        ConnectResponse {
            protocol_version: 0,
            timeout,
            session_id,
            password: Credential(Some(password)),
            read_only: request.read_only.map(|_| read_only),
        }
    }

    /// The reply to a request whose session is gone, or was never the client's. The connection is
    /// closed after it.
    pub(crate) fn refused(request: &ConnectRequest) -> Self {
        let no_password = Bytes::from_static(&[0; PASSWORD_BYTES]);
        ConnectResponse::accepted(request, 0, 0, no_password, false)
    }
}
