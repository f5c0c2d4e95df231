//! A socket, with or without encryption between it and the frames.
//!
//! Without keys, no bytes are copied, and only the first ones are inspected.

use std::io::{self, IoSlice, Read, Write};

use super::sockets::Socket;
use crate::security::Security;
use crate::transport::frame::FrameReader;
use crate::transport::secure::{Protocol, SecureChannel, SecurityError, Side};
use crate::types::right::Right;

/// The memory that an empty buffer retains.
const KEPT_BYTES: usize = 16 << 10;

/// About the most bytes that are encrypted before the socket takes them.
const AHEAD_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: Box<dyn Socket>,
    side: Side,
    /// `None` without keys.
    encryption: Option<Box<Encryption>>,
    /// Whether the first bytes were inspected, without keys.
    checked: bool,
}

#[derive(Debug)]
struct Encryption {
    channel: SecureChannel,
    /// The decrypted bytes that have arrived. The buffer is retained for its memory.
    plain: Vec<u8>,
    /// The bytes that wait for the socket; the part before `sent` is already written.
    out: Vec<u8>,
    sent: usize,
}

impl Stream {
    pub(super) fn new(
        socket: Box<dyn Socket>,
        security: &Security,
        side: Side,
    ) -> io::Result<Stream> {
        let mut out = Vec::new();
        let channel = SecureChannel::start(security, side, &mut out)?;
        let encryption = channel
            .map(|channel| Box::new(Encryption { channel, plain: Vec::new(), out, sent: 0 }));
        Ok(Stream { socket, side, encryption, checked: false })
    }

    /// Reads once, at most as much as fits into `scratch`, and passes it to `reader`. Returns how
    /// many bytes came from the socket: 0 at its end.
    ///
    /// # Errors
    /// Errors of the socket, and [`SecurityError`]s.
    pub(super) fn read(
        &mut self,
        scratch: &mut [u8],
        reader: &mut FrameReader,
    ) -> io::Result<usize> {
        let bytes = self.socket.read(scratch)?;
        let arrived = &scratch[..bytes];
        let Some(secure) = &mut self.encryption else {
            if !self.checked && bytes > 0 {
                self.checked = true;
                check_protocol(arrived, self.side)?;
            }
            reader.push(arrived);
            return Ok(bytes);
        };
        let received = secure.channel.receive(arrived, &mut secure.plain, &mut secure.out);
        let flushed = secure.flush(&mut *self.socket);
        received?;
        flushed?;
        if !secure.plain.is_empty() {
            reader.push(&secure.plain);
            secure.plain.clear();
            if secure.plain.capacity() > KEPT_BYTES {
                secure.plain = Vec::new();
            }
        }
        Ok(bytes)
    }

    /// Whether bytes wait for the socket.
    pub(super) fn has_pending(&self) -> bool {
        self.encryption.as_ref().is_some_and(|secure| secure.sent < secure.out.len())
    }

    /// Writes the waiting bytes to the socket. Returns whether it took any.
    pub(super) fn flush_pending(&mut self) -> io::Result<bool> {
        self.encryption.as_mut().map_or(Ok(false), |secure| secure.flush(&mut *self.socket))
    }

    /// The other end's handshake has succeeded.
    pub(super) fn trust(&mut self) {
        if let Some(secure) = &mut self.encryption {
            secure.channel.trust();
        }
    }

    /// The right of the other end; an error with the reason if it has none. Without keys, everybody has all.
    pub(super) fn right(&self, security: &Security) -> Result<Right, String> {
        let encryption = self.encryption.as_ref();
        encryption.map_or(Ok(Right::Member), |encryption| encryption.channel.right(security))
    }

    /// Why the other end's subject is refused by these settings; `None` if it is not.
    pub(super) fn refusal(&self, security: &Security) -> Option<String> {
        self.encryption.as_ref()?.channel.refusal(security)
    }

    /// The subject of the other end's certificate, if it has one.
    pub(super) fn subject(&self) -> Option<String> {
        self.encryption.as_ref()?.channel.subject()
    }
}

/// Without keys, the first bytes of a peer with keys would look like a very long frame.
fn check_protocol(head: &[u8], side: Side) -> Result<(), SecurityError> {
    match Protocol::of(head) {
        Some(theirs @ (Protocol::Tls | Protocol::Secret)) => {
            Err(SecurityError::other_protocol(side, Protocol::Plain, theirs))
        }
        Some(Protocol::Plain | Protocol::Foreign) | None => Ok(()),
    }
}

impl Encryption {
    /// Returns whether the socket took any of the waiting bytes. A full socket is not an error.
    fn flush(&mut self, socket: &mut dyn Socket) -> io::Result<bool> {
        let before = self.sent;
        while self.sent < self.out.len() {
            match socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let took = self.sent > before;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            if self.out.capacity() > 2 * AHEAD_BYTES {
                self.out = Vec::new();
            }
        }
        Ok(took)
    }

    fn write(&mut self, socket: &mut dyn Socket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush(socket)?;
        if self.sent < self.out.len() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut taken = 0;
        for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() && self.out.len() < AHEAD_BYTES {
                let part = self.channel.send(rest, &mut self.out)?;
                taken += part;
                rest = &rest[part..];
            }
        }
        self.flush(socket)?;
        Ok(taken)
    }
}

/// Bytes that were taken may still wait for the socket: see [`Stream::has_pending`].
impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.encryption {
            None => self.socket.write_vectored(slices),
            Some(secure) => secure.write(&mut *self.socket, slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_pending().map(drop)
    }
}
