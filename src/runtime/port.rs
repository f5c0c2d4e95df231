//! A port for clients that speak another protocol than nodes, as a gateway and an admin endpoint have one: its
//! sockets, which one thread waits for, and the threads that serve it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::addressing::listening::while_in_use;
use crate::runtime::shared::NodeShared;
use crate::types::error::Error;
use crate::types::start_error::StartError;

/// The token of the socket that clients connect to. Those of connections are their numbers.
pub(crate) const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// Connections are numbered from here on.
const FIRST: u64 = 2;
/// How many bytes are read at once.
const READ_BYTES: usize = 64 << 10;

/// The sockets of a port.
pub(crate) struct Port {
    poll: Poll,
    listener: TcpListener,
    address: SocketAddr,
    stop: Arc<Stop>,
    next: u64,
    /// The connections with unhandled events.
    pub(crate) touched: BTreeSet<u64>,
    /// A shared buffer for reading, so that thousands of idle clients need no buffers of their own.
    pub(crate) scratch: Vec<u8>,
}

/// Ends the threads.
#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    waker: Arc<Waker>,
}

/// The threads of a port. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Serving {
    address: SocketAddr,
    stop: Arc<Stop>,
    shared: Arc<NodeShared>,
    threads: Vec<JoinHandle<()>>,
}

/// The first address of a name.
pub(crate) fn resolve(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    let none = || io::Error::new(ErrorKind::NotFound, "the name has no address");
    address.to_socket_addrs()?.next().ok_or_else(none)
}

/// The error of an address that cannot be bound.
pub(crate) fn cannot_listen(address: impl Display) -> impl Fn(io::Error) -> Error {
    move |error| {
        let (address, reason) = (address.to_string(), error.to_string());
        Error::Start(StartError::CannotListen { address, reason })
    }
}

/// The error of a port whose threads cannot be started.
pub(crate) fn refused(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::System { what, reason: error.to_string() }
}

impl Port {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Port> {
        let poll = Poll::new()?;
        let mut listener = while_in_use(|| TcpListener::bind(address))?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok(Port {
            poll,
            address: listener.local_addr()?,
            listener,
            stop: Arc::new(Stop { asked: AtomicBool::new(false), waker }),
            next: FIRST,
            touched: BTreeSet::new(),
            scratch: vec![0; READ_BYTES],
        })
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Wakes the thread that waits.
    pub(crate) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.stop.waker)
    }

    /// Threads for this port, none at first.
    pub(crate) fn serving(&self, shared: &Arc<NodeShared>) -> Serving {
        let (stop, shared) = (Arc::clone(&self.stop), Arc::clone(shared));
        Serving { address: self.address, stop, shared, threads: Vec::new() }
    }

    /// Whether the threads are to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.asked.load(Ordering::Acquire)
    }

    /// Waits for an event, for `most` at the longest. Does not wait while there are touched connections.
    pub(crate) fn wait(&mut self, events: &mut Events, most: Duration) -> io::Result<()> {
        let pause = if self.touched.is_empty() { most } else { Duration::ZERO };
        match self.poll.poll(events, Some(pause)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Accepts the next client. After an error, waiting clients are accepted later.
    pub(crate) fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        loop {
            match self.listener.accept() {
                Ok(accepted) => return Ok(Some(accepted)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Registers a connection for events. Returns its number.
    pub(crate) fn register(&mut self, stream: &mut TcpStream) -> io::Result<u64> {
        let number = self.next;
        self.next += 1;
        // Answers are short, and clients wait for them.
        let _ = stream.set_nodelay(true);
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(stream, Token(number as usize), both)?;
        Ok(number)
    }

    /// Removes the registration of a connection.
    #[cfg(feature = "gateway")]
    pub(crate) fn deregister(&self, stream: &mut TcpStream) {
        let _ = self.poll.registry().deregister(stream);
    }
}

impl Serving {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a thread. Threads are joined in the reverse order of their start.
    pub(crate) fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The waker of a fork is its parent's.
        if !self.shared.clock.is_forked() {
            self.stop.asked.store(true, Ordering::Release);
            // If this fails, the thread notices at its next sweep.
            let _ = self.stop.waker.wake();
        }
        for thread in self.threads.drain(..).rev() {
            self.shared.end.wait(thread);
        }
    }
}
