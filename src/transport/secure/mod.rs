//! Encryption between the frames of a connection and its socket, when members have keys: bytes in,
//! bytes out, and no socket.
//!
//! ```text
//! frames  <->  Session  <->  TLS 1.3 records (`tls`), or Noise messages (`secret`)  <->  socket
//! ```
//!
//! The first three bytes tell the protocols apart, so that two nodes with different ones can report
//! it. A node that listens answers bytes that it does not understand with a refusal in plain text,
//! as the handshake above (`handshake`) defines it. The node that connects reports such a refusal
//! as unauthenticated.
//!
//! Invariants: a channel takes at most [`UNTRUSTED_BYTES_MAX`] bytes before it is trusted, and
//! holds at most that many, and a few KiB of its own. After an error it is of no further use,
//! except that its remaining output is still worth sending.

mod secret;
mod subjects;
#[cfg(feature = "tls")]
pub(crate) mod tls;

use std::io;

#[cfg(test)]
pub(crate) use self::secret::PREFACE as SECRET_PREFACE;
pub(crate) use self::subjects::Subjects;
use super::frame::FrameReader;
use super::handshake::{HANDSHAKE_BYTES_MAX, HelloReply};
use crate::security::Security;
use crate::types::right::Right;

/// The most bytes taken from a peer that has not authenticated itself: enough for any certificate
/// chain in use between machines.
pub(crate) const UNTRUSTED_BYTES_MAX: usize = 32 << 10;

/// How many of the first bytes identify the protocol.
const HEAD_BYTES: usize = 3;

/// The protocol that an end of a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Plain,
    Secret,
    Tls,
    /// None of these.
    Foreign,
}

impl Protocol {
    /// Recognises a protocol by its first bytes; `None` if they are too few.
    pub(crate) fn of(head: &[u8]) -> Option<Protocol> {
        let head = head.get(..HEAD_BYTES)?;
        Some(match head {
            // A handshake or an alert, and the version, which is frozen.
            [0x15 | 0x16, 3, _] => Protocol::Tls,
            _ if secret::PREFACE.starts_with(head) => Protocol::Secret,
            // The length of a first frame is well below 64 KiB.
            [_, _, 0] => Protocol::Plain,
            _ => Protocol::Foreign,
        })
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Protocol::Plain => "without TLS or secret",
            Protocol::Secret => "with a shared secret",
            Protocol::Tls => "with TLS",
            Protocol::Foreign => "no protocol of quorate",
        })
    }
}

/// Why a connection is not, or no longer, secure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecurityError {
    /// The two have different settings.
    #[error(
        "the node that listens speaks {ours}, and the one that connects {theirs}: give all members \
         the same security"
    )]
    Mismatch { ours: Protocol, theirs: Protocol },
    /// The other end has another secret, or none.
    #[error("the shared secret of the two nodes is not the same")]
    WrongSecret,
    /// This node does not know the version of the handshake.
    #[error("version {0} of the shared-secret handshake is not known here: upgrade this node")]
    UnknownVersion(u8),
    #[cfg(feature = "tls")]
    #[error("{0}")]
    Tls(String),
    /// A plain-text answer from a node that could not talk to us, or from anybody in between.
    #[error("the peer refused, in an unauthenticated answer: {0}")]
    Refused(String),
    /// The answer is in another protocol.
    #[error("this node speaks {ours}, and the one that answers {theirs}")]
    Foreign { ours: Protocol, theirs: Protocol },
    #[error("more than {UNTRUSTED_BYTES_MAX} bytes before it was authenticated")]
    TooMuch,
    #[error("the bytes were changed in transit, or are not of this protocol")]
    Damaged,
    #[error("the handshake failed: {0}")]
    Internal(String),
}

impl SecurityError {
    /// The other end has other settings, as its first bytes show.
    pub(crate) fn other_protocol(side: Side, ours: Protocol, theirs: Protocol) -> SecurityError {
        match side {
            Side::Listens => SecurityError::Mismatch { ours, theirs },
            Side::Connects => SecurityError::Foreign { ours, theirs },
        }
    }

    /// Whether trying again helps only after a reconfiguration.
    pub(crate) fn is_permanent(&self) -> bool {
        !matches!(
            self,
            SecurityError::TooMuch | SecurityError::Damaged | SecurityError::Internal(_)
        )
    }

    /// Whether the end that connected needs the reason in plain text: it has no keys for this
    /// connection and cannot read an encrypted one.
    pub(crate) fn needs_plain_answer(&self) -> bool {
        matches!(
            self,
            SecurityError::Mismatch { .. }
                | SecurityError::WrongSecret
                | SecurityError::UnknownVersion(_)
        )
    }

    /// The fault inside an error of a stream, if any.
    pub(crate) fn of(error: &io::Error) -> Option<&SecurityError> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<SecurityError> for io::Error {
    fn from(fault: SecurityError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

/// The encryption of one connection, from its first byte on.
#[derive(Debug)]
pub(crate) struct SecureChannel {
    kind: ChannelKind,
    side: Side,
    head: FirstBytes,
    /// How many bytes have been received; not counted once the peer is trusted.
    taken: usize,
    trusted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Connects,
    Listens,
}

#[derive(Debug)]
enum ChannelKind {
    Secret(Box<secret::SecretChannel>),
    #[cfg(feature = "tls")]
    Tls(Box<tls::TlsChannel>),
}

/// The first bytes of the other end.
#[derive(Debug)]
enum FirstBytes {
    Unknown(Vec<u8>),
    Ours,
    /// A plain frame, which is a refusal.
    Refusal(FrameReader),
}

impl SecureChannel {
    /// Creates a channel by these settings; `None` if they ask for none. Appends its first bytes to
    /// `out`.
    pub(crate) fn start(
        security: &Security,
        side: Side,
        out: &mut Vec<u8>,
    ) -> Result<Option<SecureChannel>, SecurityError> {
        let kind = match security {
            Security::Loopback | Security::Insecure => return Ok(None),
            Security::Secret(secret) => ChannelKind::Secret(Box::new(
                secret::SecretChannel::start(secret.clone(), side, out)?,
            )),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => {
                ChannelKind::Tls(Box::new(tls::TlsChannel::start(tls.keys(), side, out)?))
            }
        };
        let head = FirstBytes::Unknown(Vec::new());
        Ok(Some(SecureChannel { kind, side, head, taken: 0, trusted: false }))
    }

    fn protocol(&self) -> Protocol {
        match self.kind {
            ChannelKind::Secret(_) => Protocol::Secret,
            #[cfg(feature = "tls")]
            ChannelKind::Tls(_) => Protocol::Tls,
        }
    }

    /// Takes bytes that have arrived. Appends the decrypted bytes to `plain`, and bytes to be sent
    /// in response to `out`, also after an error.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), SecurityError> {
        if !self.trusted {
            self.taken += bytes.len();
            if self.taken > UNTRUSTED_BYTES_MAX {
                return Err(SecurityError::TooMuch);
            }
        }
        match &mut self.head {
            FirstBytes::Ours => self.decrypt(bytes, plain, out),
            FirstBytes::Refusal(reader) => read_refusal(reader, bytes),
            FirstBytes::Unknown(head) => {
                head.extend_from_slice(bytes);
                let Some(theirs) = Protocol::of(head) else {
                    return Ok(());
                };
                let head = std::mem::take(head);
                let ours = self.protocol();
                if theirs == ours {
                    self.head = FirstBytes::Ours;
                    return self.decrypt(&head, plain, out);
                }
                if theirs != Protocol::Plain || self.side == Side::Listens {
                    return Err(SecurityError::other_protocol(self.side, ours, theirs));
                }
                let mut reader = FrameReader::new(HANDSHAKE_BYTES_MAX);
                let result = read_refusal(&mut reader, &head);
                self.head = FirstBytes::Refusal(reader);
                result
            }
        }
    }

    fn decrypt(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), SecurityError> {
        match &mut self.kind {
            ChannelKind::Secret(channel) => channel.receive(bytes, self.trusted, plain, out),
            #[cfg(feature = "tls")]
            ChannelKind::Tls(channel) => channel.receive(bytes, plain, out),
        }
    }

    /// Encrypts some of `plain`, at least one byte unless it is empty, and appends the result to
    /// `out`. Returns how much it took. Before the handshake is over it buffers `plain`: only a
    /// hello is sent then.
    pub(crate) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<usize, SecurityError> {
        match &mut self.kind {
            ChannelKind::Secret(channel) => channel.send(plain, out),
            #[cfg(feature = "tls")]
            ChannelKind::Tls(channel) => channel.send(plain, out),
        }
    }

    /// The other end is authenticated: it may send any amount from now on.
    pub(crate) fn trust(&mut self) {
        self.trusted = true;
    }

    /// The right of the other end by these settings, which may have been renewed since the connection began;
    /// an error with the reason if it has none.
    pub(crate) fn right(&self, security: &Security) -> Result<Right, String> {
        match (&self.kind, security) {
            (ChannelKind::Secret(channel), Security::Secret(secret)) => channel.right(secret),
            #[cfg(feature = "tls")]
            (ChannelKind::Tls(channel), Security::Tls(tls)) => channel.right(tls.keys()),
            _ => Err("this node has another kind of security".to_owned()),
        }
    }

    /// Why the other end's subject is refused by these settings; `None` if it is not.
    pub(crate) fn refusal(&self, security: &Security) -> Option<String> {
        match (&self.kind, security) {
            #[cfg(feature = "tls")]
            (ChannelKind::Tls(channel), Security::Tls(tls)) => channel.refusal(tls.keys()),
            _ => None,
        }
    }

    /// The subject of the other end's certificate, if it has one.
    pub(crate) fn subject(&self) -> Option<String> {
        match &self.kind {
            ChannelKind::Secret(_) => None,
            #[cfg(feature = "tls")]
            ChannelKind::Tls(channel) => channel.subject(),
        }
    }
}

/// Reads the plain frame in which a node refuses if it has no keys for this connection.
fn read_refusal(reader: &mut FrameReader, bytes: &[u8]) -> Result<(), SecurityError> {
    reader.push(bytes);
    match reader.next_frame() {
        Ok(None) => Ok(()),
        Ok(Some(frame)) => Err(match HelloReply::decode(frame) {
            Some((_, HelloReply::Refused(refusal))) => SecurityError::Refused(refusal.text),
            Some((_, HelloReply::Welcome(_))) | None => {
                SecurityError::Refused("its answer cannot be read".to_owned())
            }
        }),
        Err(error) => Err(SecurityError::Refused(format!("it sent {error}"))),
    }
}

#[cfg(test)]
mod tests;
