//! TLS on a connection: between two nodes with certificates of the same authority, or from a client of a
//! gateway.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use super::{SecurityError, Side};
use crate::security::{Keys, PROTOCOL, WallClock, describe, x509};
use crate::types::right::Right;

/// The most plain text encrypted at once. At most this much, and a little more, waits for the socket.
const PLAIN_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct TlsChannel {
    connection: Connection,
    /// When it began. A certificate that expires later does not end the connection.
    since: UnixTime,
    closed: bool,
}

fn fault(error: impl std::fmt::Display) -> SecurityError {
    SecurityError::Tls(format!("TLS: {error}"))
}

impl TlsChannel {
    pub(super) fn start(
        keys: &Keys,
        side: Side,
        out: &mut Vec<u8>,
    ) -> Result<TlsChannel, SecurityError> {
        let connection = match side {
            Side::Connects => {
                // The name is neither sent nor compared.
                let name = ServerName::try_from("quorate").map_err(fault)?;
                let client = ClientConnection::new(Arc::clone(&keys.client), name);
                Connection::Client(client.map_err(fault)?)
            }
            Side::Listens => return TlsChannel::listen(Arc::clone(&keys.server)),
        };
        let mut channel = TlsChannel { connection, since: WallClock::now(), closed: false };
        channel.flush(out)?;
        Ok(channel)
    }

    /// The server's end, which sends nothing before the client does.
    pub(crate) fn listen(config: Arc<ServerConfig>) -> Result<TlsChannel, SecurityError> {
        let server = ServerConnection::new(config).map_err(fault)?;
        let connection = Connection::Server(server);
        Ok(TlsChannel { connection, since: WallClock::now(), closed: false })
    }

    pub(crate) fn receive(
        &mut self,
        mut bytes: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), SecurityError> {
        while !bytes.is_empty() {
            // Bytes after the other end's close are ignored.
            if self.connection.read_tls(&mut bytes).map_err(fault)? == 0 {
                break;
            }
            let processed = self.connection.process_new_packets();
            // If processing failed, this sends the other end an alert.
            self.flush(out)?;
            let processed = processed.map_err(|error| fault(describe(&error)))?;
            self.closed |= processed.peer_has_closed();
            let ready = processed.plaintext_bytes_to_read();
            let start = plain.len();
            plain.resize(start + ready, 0);
            self.connection.reader().read_exact(&mut plain[start..]).map_err(fault)?;
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<usize, SecurityError> {
        let part = &plain[..plain.len().min(PLAIN_BYTES_MAX)];
        let taken = self.connection.writer().write(part).map_err(fault)?;
        self.flush(out)?;
        if taken == 0 && !part.is_empty() {
            return Err(fault("no room for data sent before the handshake is over"));
        }
        Ok(taken)
    }

    pub(crate) fn subject(&self) -> Option<String> {
        x509::subject(self.connection.peer_certificates()?.first()?)
    }

    /// Whether the handshake is over.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "used by the gateway"))]
    pub(crate) fn is_made(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// The certificates of the other end, and when the connection began.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "used by the gateway"))]
    pub(crate) fn presented(&self) -> (&[CertificateDer<'static>], UnixTime) {
        (self.connection.peer_certificates().unwrap_or_default(), self.since)
    }

    /// The right of the other end by these keys, or why it has none.
    pub(crate) fn right(&self, keys: &Keys) -> Result<Right, String> {
        if self.connection.alpn_protocol() != Some(PROTOCOL) {
            // TLS itself refuses another name, and not that there is none.
            return Err("it does not name the protocol inside TLS (ALPN)".to_owned());
        }
        let chain = self.connection.peer_certificates().unwrap_or_default();
        match self.connection {
            Connection::Client(_) => keys.check_member(chain, self.since).map(|()| Right::Member),
            Connection::Server(_) => keys.right(chain, self.since),
        }
    }

    /// Why the other end's subject is refused by these keys; `None` if it is not.
    pub(crate) fn refusal(&self, keys: &Keys) -> Option<String> {
        keys.refusal(self.connection.peer_certificates().unwrap_or_default())
    }

    /// Whether the other end has announced that it sends nothing more.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "used by the gateway"))]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Announces that this end sends nothing more.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "used by the gateway"))]
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        self.connection.send_close_notify();
        // An error does not matter: the connection ends in any case.
        let _ = self.flush(out);
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), SecurityError> {
        while self.connection.wants_write() {
            self.connection.write_tls(out).map_err(fault)?;
        }
        Ok(())
    }
}
