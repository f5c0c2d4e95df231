//! The sockets that the parts of the transport use. The system's are here; seeded tests have others, without a
//! thread or a network (`tests/seeded`).

use std::fmt::Debug;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use super::shared::LISTENER;
use crate::transport::files;
use crate::transport::send::send_vectored;

/// What a poll reports about a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketEvent {
    pub(super) token: Token,
    pub(super) writable: bool,
    /// The other end has closed the connection, or it is broken.
    pub(super) ends: bool,
}

impl From<&Event> for SocketEvent {
    fn from(event: &Event) -> SocketEvent {
        SocketEvent {
            token: event.token(),
            writable: event.is_writable(),
            ends: event.is_read_closed() || event.is_error(),
        }
    }
}

/// What a socket is polled for, beside bytes to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    ForReading,
    /// Also for room to write.
    ForBoth,
}

/// A connection. No call blocks.
pub(super) trait Socket: Read + Write + Debug + Send {
    /// Polls for this from now on, which is reported under this token.
    fn register(&mut self, token: Token, polled: Polled) -> io::Result<()>;

    /// Changes what is polled for.
    fn reregister(&mut self, token: Token, polled: Polled) -> io::Result<()>;

    /// Stops the polling. The socket is closed next, which does the same.
    fn deregister(&mut self);

    fn set_nodelay(&self) -> io::Result<()>;

    fn take_error(&self) -> io::Result<Option<io::Error>>;

    fn peer_address(&self) -> io::Result<SocketAddr>;

    fn local_address(&self) -> io::Result<SocketAddr>;

    /// How many files the process has open at least, by the number of this socket's.
    fn open_files(&self) -> usize;
}

/// Makes and accepts connections. No call blocks.
pub(super) trait Sockets: Send {
    /// Starts to connect.
    fn connect(&mut self, address: SocketAddr) -> io::Result<Box<dyn Socket>>;

    /// Accepts connections here from now on, which is reported as [`LISTENER`].
    fn listen(&mut self, listener: std::net::TcpListener) -> io::Result<()>;

    /// The next connection that waits to be accepted.
    fn accept(&mut self) -> io::Result<(Box<dyn Socket>, SocketAddr)>;
}

/// The system's sockets.
pub(super) struct SystemSockets {
    registry: Arc<Registry>,
    listener: Option<TcpListener>,
}

#[derive(Debug)]
struct SystemSocket {
    stream: TcpStream,
    registry: Arc<Registry>,
}

impl SystemSockets {
    pub(super) fn new(registry: Registry) -> SystemSockets {
        SystemSockets { registry: Arc::new(registry), listener: None }
    }

    fn socket(&self, stream: TcpStream) -> Box<dyn Socket> {
        Box::new(SystemSocket { stream, registry: Arc::clone(&self.registry) })
    }
}

impl Sockets for SystemSockets {
    fn connect(&mut self, address: SocketAddr) -> io::Result<Box<dyn Socket>> {
        Ok(self.socket(TcpStream::connect(address)?))
    }

    fn listen(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        self.registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    fn accept(&mut self) -> io::Result<(Box<dyn Socket>, SocketAddr)> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        let (stream, address) = listener.accept()?;
        Ok((self.socket(stream), address))
    }
}

fn interest(polled: Polled) -> Interest {
    match polled {
        Polled::ForReading => Interest::READABLE,
        Polled::ForBoth => Interest::READABLE | Interest::WRITABLE,
    }
}

impl Socket for SystemSocket {
    fn register(&mut self, token: Token, polled: Polled) -> io::Result<()> {
        self.registry.register(&mut self.stream, token, interest(polled))
    }

    fn reregister(&mut self, token: Token, polled: Polled) -> io::Result<()> {
        self.registry.reregister(&mut self.stream, token, interest(polled))
    }

    fn deregister(&mut self) {
        let _ = self.registry.deregister(&mut self.stream);
    }

    fn set_nodelay(&self) -> io::Result<()> {
        self.stream.set_nodelay(true)
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.stream.take_error()
    }

    fn peer_address(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    fn open_files(&self) -> usize {
        files::open_files(&self.stream)
    }
}

impl Read for SystemSocket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.read(to)
    }
}

impl Write for SystemSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        send_vectored(&mut self.stream, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
