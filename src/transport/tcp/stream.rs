//! A socket, with or without keys between it and the frames.
//!
//! Without keys nothing is copied, and nothing but a look at the first bytes is added to what the
//! socket costs.

use std::io::{self, IoSlice, Read, Write};

use mio::net::TcpStream;

use crate::security::Security;
use crate::transport::frame::FrameReader;
use crate::transport::secure::{Fault, Session, Side, Speech};

/// What is kept of a buffer's memory when it is empty.
const KEPT_BYTES: usize = 16 << 10;

/// The most that is encrypted ahead of the socket, about.
const AHEAD_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    layer: Layer,
}

#[derive(Debug)]
enum Layer {
    /// `heard` once the first bytes were looked at.
    Plain {
        side: Side,
        heard: bool,
    },
    Secure(Box<Secure>),
}

#[derive(Debug)]
struct Secure {
    session: Session,
    /// What has arrived, decrypted; kept for its memory.
    plain: Vec<u8>,
    /// What the socket has still to take; the part before `sent` it has.
    out: Vec<u8>,
    sent: usize,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, security: &Security, side: Side) -> io::Result<Stream> {
        let mut out = Vec::new();
        let layer = match Session::start(security, side, &mut out)? {
            None => Layer::Plain { side, heard: false },
            Some(session) => {
                Layer::Secure(Box::new(Secure { session, plain: Vec::new(), out, sent: 0 }))
            }
        };
        Ok(Stream { socket, layer })
    }

    /// Reads once, at most as much as fits into `scratch`, and gives it to `reader`. Returns how
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
            Layer::Plain { side, heard } => {
                if !*heard && bytes > 0 {
                    *heard = true;
                    listen_for_keys(arrived, *side)?;
                }
                reader.push(arrived);
            }
            Layer::Secure(secure) => {
                let received = secure.session.receive(arrived, &mut secure.plain, &mut secure.out);
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

    /// Whether there is something that the socket has still to take.
    pub(super) fn has_pending(&self) -> bool {
        match &self.layer {
            Layer::Plain { .. } => false,
            Layer::Secure(secure) => secure.sent < secure.out.len(),
        }
    }

    /// Offers it to the socket; whether that took any.
    pub(super) fn flush_pending(&mut self) -> io::Result<bool> {
        match &mut self.layer {
            Layer::Plain { .. } => Ok(false),
            Layer::Secure(secure) => secure.flush(&mut self.socket),
        }
    }

    /// The other end has introduced itself.
    pub(super) fn trust(&mut self) {
        if let Layer::Secure(secure) = &mut self.layer {
            secure.session.trust();
        }
    }

    /// The subject of the other end's certificate, if it has one.
    pub(super) fn subject(&self) -> Option<String> {
        match &self.layer {
            Layer::Plain { .. } => None,
            Layer::Secure(secure) => secure.session.subject(),
        }
    }
}

/// What a peer with keys says to one without would look like a very long frame.
fn listen_for_keys(head: &[u8], side: Side) -> Result<(), Fault> {
    let ours = Speech::Plain;
    match (Speech::of(head), side) {
        (Some(theirs @ (Speech::Tls | Speech::Secret)), Side::Listens) => {
            Err(Fault::Mismatch { ours, theirs })
        }
        (Some(theirs @ (Speech::Tls | Speech::Secret)), Side::Connects) => {
            Err(Fault::Foreign { ours, theirs })
        }
        (Some(Speech::Plain | Speech::Foreign) | None, _) => Ok(()),
    }
}

impl Secure {
    /// Whether the socket took any of what waits for it. That it is full is no error.
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
                let part = self.session.send(rest, &mut self.out)?;
                taken += part;
                rest = &rest[part..];
            }
        }
        self.flush(socket)?;
        Ok(taken)
    }
}

/// What was taken may still wait for the socket: see [`Stream::has_pending`].
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
