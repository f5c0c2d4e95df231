//! What lies between the frames of a connection and its socket, when the members have keys: bytes
//! in, bytes out, and no socket.
//!
//! ```text
//! frames  <->  Session  <->  TLS 1.3 records (`tls`), or Noise messages (`secret`)  <->  socket
//! ```
//!
//! What each kind says first is told apart by its first three bytes, so that two nodes with
//! different kinds can say so. Before it has keys, a node that listens says no to what it does not
//! understand by a plain refusal, as the handshake above (`handshake`) has it; whoever connects
//! shows that as what it is, the word of anybody.
//!
//! Invariants: a session takes no more than [`STRANGER_BYTES_MAX`] bytes before it is trusted, and
//! keeps no more than that many, and a few KiB of its own; after an error it is of no further use,
//! but what it has then to send is still worth sending.

mod secret;
mod subjects;
#[cfg(feature = "tls")]
mod tls;

use std::io;

#[cfg(test)]
pub(crate) use self::secret::PREFACE as SECRET_PREFACE;
pub(crate) use self::subjects::Subjects;
use super::frame::FrameReader;
use super::handshake::{Answer, HANDSHAKE_BYTES_MAX};
use crate::security::Security;

/// The most bytes that are taken of a peer that has not shown who it is: enough for any chain of
/// certificates that is used between machines.
pub(crate) const STRANGER_BYTES_MAX: usize = 32 << 10;

/// How many of the first bytes tell what is spoken.
const HEAD_BYTES: usize = 3;

/// What an end of a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    Plain,
    Secret,
    Tls,
    /// None of these.
    Foreign,
}

impl Speech {
    /// By the first bytes; `None` if they are too few.
    pub(crate) fn of(head: &[u8]) -> Option<Speech> {
        let head = head.get(..HEAD_BYTES)?;
        Some(match head {
            // A handshake or an alert, and the version, which is frozen.
            [0x15 | 0x16, 3, _] => Speech::Tls,
            _ if secret::PREFACE.starts_with(head) => Speech::Secret,
            // The length of a first frame is well below 64 KiB.
            [_, _, 0] => Speech::Plain,
            _ => Speech::Foreign,
        })
    }
}

impl std::fmt::Display for Speech {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Speech::Plain => "without TLS or secret",
            Speech::Secret => "with a shared secret",
            Speech::Tls => "with TLS",
            Speech::Foreign => "no protocol of quorate",
        })
    }
}

/// Why a connection is not, or no longer, a secure one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The two have different settings.
    #[error(
        "the node that listens speaks {ours}, and the one that connects {theirs}: give all members \
         the same security"
    )]
    Mismatch { ours: Speech, theirs: Speech },
    /// Another secret, or somebody who only says that he has one.
    #[error("the shared secret of the two nodes is not the same")]
    WrongSecret,
    /// The form of the handshake is not known.
    #[error("form {0} of the handshake with a shared secret is not known here: upgrade this node")]
    UnknownForm(u8),
    #[cfg(feature = "tls")]
    #[error("{0}")]
    Tls(String),
    /// The plain answer of a node that could not speak with us, or of anybody between.
    #[error("the peer refused, as it says without proof: {0}")]
    Refused(String),
    /// What answers speaks another language.
    #[error("this node speaks {ours}, and what answers there {theirs}")]
    Foreign { ours: Speech, theirs: Speech },
    #[error("more than {STRANGER_BYTES_MAX} bytes before it has shown who it is")]
    TooMuch,
    #[error("bytes that were changed on the way")]
    Damaged,
    #[error("the handshake failed: {0}")]
    Internal(String),
}

impl Fault {
    /// Whether trying again helps only after something was configured otherwise.
    pub(crate) fn is_permanent(&self) -> bool {
        !matches!(self, Fault::TooMuch | Fault::Damaged | Fault::Internal(_))
    }

    /// Whether the other end, which connected, has to be told in the plain: it knows nothing yet,
    /// or could not read it otherwise.
    pub(crate) fn needs_plain_answer(&self) -> bool {
        matches!(self, Fault::Mismatch { .. } | Fault::WrongSecret | Fault::UnknownForm(_))
    }

    /// The fault that an error of a stream stands for.
    pub(crate) fn of(error: &io::Error) -> Option<&Fault> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

/// The keys of one connection, from its first byte on.
#[derive(Debug)]
pub(crate) struct Session {
    kind: Kind,
    side: Side,
    head: Head,
    /// What was taken so far; not counted once the peer is trusted.
    taken: usize,
    trusted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Connects,
    Listens,
}

#[derive(Debug)]
enum Kind {
    Secret(Box<secret::SecretSession>),
    #[cfg(feature = "tls")]
    Tls(Box<tls::TlsSession>),
}

/// What the first bytes of the other end were.
#[derive(Debug)]
enum Head {
    Unknown(Vec<u8>),
    Ours,
    /// A plain frame, which is a refusal.
    Refusal(FrameReader),
}

impl Session {
    /// A session by these settings; `None` if they ask for none. What it has to say first goes to
    /// `out`.
    pub(crate) fn start(
        security: &Security,
        side: Side,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Fault> {
        let kind = match security {
            Security::Loopback | Security::Insecure => return Ok(None),
            Security::Secret(secret) => {
                Kind::Secret(Box::new(secret::SecretSession::start(secret.clone(), side, out)?))
            }
            #[cfg(feature = "tls")]
            Security::Tls(tls) => {
                Kind::Tls(Box::new(tls::TlsSession::start(tls.keys(), side, out)?))
            }
        };
        let head = Head::Unknown(Vec::new());
        Ok(Some(Session { kind, side, head, taken: 0, trusted: false }))
    }

    fn speech(&self) -> Speech {
        match self.kind {
            Kind::Secret(_) => Speech::Secret,
            #[cfg(feature = "tls")]
            Kind::Tls(_) => Speech::Tls,
        }
    }

    /// Takes what has arrived. Appends what it says to `plain`, and what is to be sent because of it
    /// to `out`, also after an error.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        if !self.trusted {
            self.taken += bytes.len();
            if self.taken > STRANGER_BYTES_MAX {
                return Err(Fault::TooMuch);
            }
        }
        match &mut self.head {
            Head::Ours => self.decrypt(bytes, plain, out),
            Head::Refusal(reader) => heed(reader, bytes),
            Head::Unknown(head) => {
                head.extend_from_slice(bytes);
                let Some(theirs) = Speech::of(head) else {
                    return Ok(());
                };
                let head = std::mem::take(head);
                let ours = self.speech();
                match self.side {
                    _ if theirs == ours => {
                        self.head = Head::Ours;
                        self.decrypt(&head, plain, out)
                    }
                    Side::Listens => Err(Fault::Mismatch { ours, theirs }),
                    Side::Connects if theirs == Speech::Plain => {
                        let mut reader = FrameReader::new(HANDSHAKE_BYTES_MAX);
                        let told = heed(&mut reader, &head);
                        self.head = Head::Refusal(reader);
                        told
                    }
                    Side::Connects => Err(Fault::Foreign { ours, theirs }),
                }
            }
        }
    }

    fn decrypt(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        match &mut self.kind {
            Kind::Secret(session) => session.receive(bytes, self.trusted, plain, out),
            #[cfg(feature = "tls")]
            Kind::Tls(session) => session.receive(bytes, plain, out),
        }
    }

    /// Takes some of `plain`, at least one byte unless it is empty, and appends what is to be sent
    /// for it to `out`; returns how much it has taken. Before the handshake is over, it is kept:
    /// nothing but a greeting is said then.
    pub(crate) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        match &mut self.kind {
            Kind::Secret(session) => session.send(plain, out),
            #[cfg(feature = "tls")]
            Kind::Tls(session) => session.send(plain, out),
        }
    }

    /// The other end has introduced itself: it may send as much as it likes from now on.
    pub(crate) fn trust(&mut self) {
        self.trusted = true;
    }

    /// The subject of the other end's certificate, if it has one.
    pub(crate) fn subject(&self) -> Option<String> {
        match &self.kind {
            Kind::Secret(_) => None,
            #[cfg(feature = "tls")]
            Kind::Tls(session) => session.subject(),
        }
    }
}

/// A node that has no keys for us says so in a plain frame.
fn heed(reader: &mut FrameReader, bytes: &[u8]) -> Result<(), Fault> {
    reader.push(bytes);
    match reader.next_frame() {
        Ok(None) => Ok(()),
        Ok(Some(frame)) => Err(match Answer::decode(frame) {
            Some((_, Answer::Refused(refusal))) => Fault::Refused(refusal.text),
            Some((_, Answer::Welcome(_))) | None => {
                Fault::Refused("it is not for this node".to_owned())
            }
        }),
        Err(error) => Err(Fault::Refused(format!("it sent {error}"))),
    }
}

#[cfg(test)]
mod tests;
