//! The bytes of a connection: plain, or in TLS.

#[cfg(feature = "tls")]
use std::io::Write;
use std::io::{self, IoSlice, Read};

use bytes::BytesMut;
use mio::net::TcpStream;

use super::GatewayBuilder;
use super::clients::ByteStream;
use super::output::{Output, PIECES_MAX};
#[cfg(feature = "tls")]
use super::tls::GatewayTls;
use crate::api::support::send_vectored;
#[cfg(feature = "tls")]
use crate::api::support::{SecurityError, TlsChannel};
use crate::types::acl::Id;

/// A larger buffer is freed when it is empty.
#[cfg(feature = "tls")]
const KEPT_BYTES: usize = 4 << 10;
/// About so much is encrypted before it is written: many records go into one write.
#[cfg(feature = "tls")]
const SEALED_BYTES: usize = 64 << 10;

pub(super) struct ClientStream {
    pub(super) socket: TcpStream,
    #[cfg(feature = "tls")]
    tls: Option<Box<TlsChannel>>,
    #[cfg(feature = "tls")]
    certificates: Option<GatewayTls>,
    /// Whether the client's certificate was checked after the handshake.
    #[cfg(feature = "tls")]
    checked: bool,
    /// Encrypted bytes that are not written yet.
    sealed: Vec<u8>,
}

impl ClientStream {
    #[cfg_attr(
        not(feature = "tls"),
        allow(unused_variables, reason = "it decides whether the stream uses TLS")
    )]
    pub(super) fn open(socket: TcpStream, settings: &GatewayBuilder) -> io::Result<ClientStream> {
        #[cfg(feature = "tls")]
        let channel = settings.tls.as_ref().map(|tls| TlsChannel::listen(tls.config()));
        Ok(ClientStream {
            socket,
            #[cfg(feature = "tls")]
            tls: channel.transpose()?.map(Box::new),
            #[cfg(feature = "tls")]
            certificates: settings.tls.clone(),
            #[cfg(feature = "tls")]
            checked: false,
            sealed: Vec::new(),
        })
    }

    /// Why the client's certificate is refused by now: see [`GatewayTls::refusal`].
    #[cfg(feature = "tls")]
    pub(super) fn refusal(&self, verifies: bool) -> Option<String> {
        let (chain, since) = self.tls.as_ref()?.presented();
        self.certificates.as_ref()?.refusal(chain, since, verifies)
    }

    /// Sends TLS's notice of the end, as far as the socket has room for it.
    pub(super) fn close(&mut self) {
        #[cfg(feature = "tls")]
        if let Some(channel) = &mut self.tls {
            channel.close(&mut self.sealed);
            let _ = self.flush();
        }
    }

    #[cfg(feature = "tls")]
    fn flush(&mut self) -> io::Result<()> {
        let mut from = 0;
        while from < self.sealed.len() {
            let (socket, rest) = (&mut self.socket, &self.sealed[from..]);
            match write_some(|| socket.write(rest))? {
                Some(written) => from += written,
                None => break,
            }
        }
        self.sealed.drain(..from);
        if self.sealed.is_empty() && self.sealed.capacity() > KEPT_BYTES {
            self.sealed = Vec::new();
        }
        Ok(())
    }
}

impl ByteStream for ClientStream {
    fn certified(&self) -> Option<Id> {
        #[cfg(feature = "tls")]
        if let Some(subject) = self.tls.as_ref().and_then(|channel| channel.subject()) {
            let id = Id::new("x509", subject);
            match id.check() {
                Ok(()) => return Some(id),
                Err(reason) => tracing::warn!(reason, "a client's certificate gives it no id"),
            }
        }
        None
    }

    fn is_closed(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.as_ref().is_some_and(|channel| channel.is_closed()) {
            return true;
        }
        false
    }

    fn read(&mut self, scratch: &mut [u8], to: &mut BytesMut) -> io::Result<usize> {
        if self.is_closed() {
            return Ok(0);
        }
        let read = self.socket.read(scratch)?;
        #[cfg(feature = "tls")]
        if let Some(channel) = &mut self.tls {
            let mut plain = Vec::new();
            let received = channel.receive(&scratch[..read], &mut plain, &mut self.sealed);
            if let Err(fault) = received {
                // The client gets the reason as an alert, if there is room for it.
                let _ = self.flush();
                return Err(fault.into());
            }
            if !self.checked && channel.is_made() {
                self.checked = true;
                // The files may have changed since the handshake began.
                if let Some(reason) = self.refusal(true) {
                    return Err(SecurityError::Tls(reason).into());
                }
            }
            to.extend_from_slice(&plain);
            return Ok(read);
        }
        to.extend_from_slice(&scratch[..read]);
        Ok(read)
    }

    fn write(&mut self, out: &mut Output) -> io::Result<()> {
        #[cfg(feature = "tls")]
        while self.tls.is_some() {
            self.flush()?;
            if out.is_empty() || !self.sealed.is_empty() {
                return Ok(());
            }
            // Each frame begins a record. Clients that use OpenSSL wait for the socket before they read a frame, and
            // what follows in the record of the last one was read from the socket already.
            while let Some(channel) = &mut self.tls
                && !out.is_empty()
                && self.sealed.len() < SEALED_BYTES
            {
                let taken = channel.send(out.first(), &mut self.sealed)?;
                out.advance(taken);
            }
        }
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = out.slices(&mut slices);
            let socket = &mut self.socket;
            match write_some(|| send_vectored(socket, &slices[..count]))? {
                Some(written) => out.advance(written),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.sealed.len()
    }
}

/// Writes once. `None`: the socket takes nothing now.
fn write_some(mut write: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match write() {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => return Ok(Some(written)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
