//! A socket, with or without encryption between it and the frames.
//!
//! Without keys nothing is copied, and only the first bytes are inspected.

use std::io::{self, IoSlice, Read, Write};

use mio::net::TcpStream;

use crate::security::Security;
use crate::transport::frame::FrameReader;
use crate::transport::secure::{Fault, Protocol, SecureChannel, Side};

/// The memory that an empty buffer retains.
const KEPT_BYTES: usize = 16 << 10;

/// How much is encrypted ahead of the socket, at most, roughly.
const AHEAD_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    layer: Layer,
}

#[derive(Debug)]
enum Layer {
    /// `checked` once the first bytes were inspected.
    Plain {
        side: Side,
        checked: bool,
    },
    Secure(Box<Encryption>),
}

#[derive(Debug)]
struct Encryption {
    channel: SecureChannel,
    /// What has arrived, decrypted; retained for its memory.
    plain: Vec<u8>,
    /// What waits for the socket; the part before `sent` is already written.
    out: Vec<u8>,
    sent: usize,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, security: &Security, side: Side) -> io::Result<Stream> {
        let mut out = Vec::new();
        let layer = match SecureChannel::start(security, side, &mut out)? {
            None => Layer::Plain { side, checked: false },
            Some(channel) => {
                Layer::Secure(Box::new(Encryption { channel, plain: Vec::new(), out, sent: 0 }))
            }
        };
        Ok(Stream { socket, layer })
    }

    /// Reads once, at most as much as fits into `scratch`, and passes it to `reader`. Returns how
    /// many bytes came from the socket: 0 at its end.
    ///
    /// # Errors
    /// Those of the socket, and [`Fault`]s.
    pub(super) fn read(
        &mut self,
        scratch: &mut [u8],
        reader: &mut FrameReader,
    ) -> io::Result<usize> {
        let bytes = self.socket.read(scratch)?;
        let arrived = &scratch[..bytes];
        match &mut self.layer {
            Layer::Plain { side, checked } => {
                if !*checked && bytes > 0 {
                    *checked = true;
                    check_protocol(arrived, *side)?;
                }
                reader.push(arrived);
            }
            Layer::Secure(secure) => {
                let received = secure.channel.receive(arrived, &mut secure.plain, &mut secure.out);
                let flushed = secure.flush(&mut self.socket);
                received?;
                flushed?;
                if !secure.plain.is_empty() {
                    reader.push(&secure.plain);
                    secure.plain.clear();
                    if secure.plain.capacity() > KEPT_BYTES {
                        secure.plain = Vec::new();
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// Whether bytes wait for the socket.
    pub(super) fn has_pending(&self) -> bool {
        match &self.layer {
            Layer::Plain { .. } => false,
            Layer::Secure(secure) => secure.sent < secure.out.len(),
        }
    }

    /// Offers them to the socket; returns whether it took any.
    pub(super) fn flush_pending(&mut self) -> io::Result<bool> {
        match &mut self.layer {
            Layer::Plain { .. } => Ok(false),
            Layer::Secure(secure) => secure.flush(&mut self.socket),
        }
    }

    /// The other end's handshake has succeeded.
    pub(super) fn trust(&mut self) {
        if let Layer::Secure(secure) = &mut self.layer {
            secure.channel.trust();
        }
    }

    /// The subject of the other end's certificate, if it has one.
    pub(super) fn subject(&self) -> Option<String> {
        match &self.layer {
            Layer::Plain { .. } => None,
            Layer::Secure(secure) => secure.channel.subject(),
        }
    }
}

/// Without keys, the first bytes of a peer with keys would look like a very long frame.
fn check_protocol(head: &[u8], side: Side) -> Result<(), Fault> {
    let ours = Protocol::Plain;
    match (Protocol::of(head), side) {
        (Some(theirs @ (Protocol::Tls | Protocol::Secret)), Side::Listens) => {
            Err(Fault::Mismatch { ours, theirs })
        }
        (Some(theirs @ (Protocol::Tls | Protocol::Secret)), Side::Connects) => {
            Err(Fault::Foreign { ours, theirs })
        }
        (Some(Protocol::Plain | Protocol::Foreign) | None, _) => Ok(()),
    }
}

impl Encryption {
    /// Returns whether the socket took any of the waiting bytes. A full socket is not an error.
    fn flush(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        let before = self.sent;
        let mut took = false;
        while self.sent < self.out.len() {
            match socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            took = self.sent > before;
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            if self.out.capacity() > 2 * AHEAD_BYTES {
                self.out = Vec::new();
            }
        }
        Ok(took)
    }

    fn write(&mut self, socket: &mut TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
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
        match &mut self.layer {
            Layer::Plain { .. } => self.socket.write_vectored(slices),
            Layer::Secure(secure) => secure.write(&mut self.socket, slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_pending().map(drop)
    }
}
