//! One peer, as this node sends to it.
//!
//! ```text
//! waiting -> (resolving ->) connecting -> greeting -> up
//!    ^           |               |            |        |
//!    +-----------+---------------+------------+--------+   with a reason, and a pause that doubles
//! ```
//!
//! Invariants: a peer has at most one socket and one timer; a connection that
//! is not up queues no messages; a peer is reported unreachable once for each
//! reason in a row, not for each try.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use mio::event::Event;

use super::driver::{Context, Timer};
use super::link::{Connection, Phase};
use super::queue::Rejected;
use super::{Command, Counters, WAKER};
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::security::Security;
use crate::transport::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, Refusal, RefusalCode};
use crate::transport::secure::Fault;
use crate::transport::{RemotePeer, TransportEvent};
use crate::version::OLDEST;

/// The most addresses tried for one name.
const ADDRESSES_MAX: usize = 8;

/// How many times the longest pause it takes before a peer that has refused us is tried again.
const REFUSED_PAUSES: u32 = 5;

/// A peer that connects to us is not tried more often than this because of it.
const NUDGE_PAUSE: Duration = Duration::from_millis(50);

/// The most reads from one connection at a time. What comes back is a few bytes.
const READS_MAX: usize = 16;

/// A connection in use is asked for a sign of life this often.
const PING_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) remote: RemotePeer,
    link: Link,
    timer: Option<Instant>,
    /// Tries that failed in a row, for the pause.
    failures: u32,
    tried_at: Instant,
    /// The latest look-up: the answer to an earlier one, maybe for another address, is not for us.
    attempt: Token,
    /// The version of the next hello, if the peer has just said that ours is too high for it. What
    /// it can do the next time that it is tried anew is not known.
    lowered_to: Option<u16>,
    /// The reason last reported, if the peer has not been reached since.
    reported: Option<String>,
    /// Whether it is in the list of those to be flushed.
    pub(super) is_unflushed: bool,
}

#[derive(Debug)]
enum Link {
    Waiting,
    Resolving,
    Open(Box<Connection>),
}

/// Why a peer is not connected.
pub(super) struct Failure {
    reason: String,
    permanent: bool,
}

impl Failure {
    fn passing(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), permanent: false }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let permanent = Fault::of(&error).is_some_and(Fault::is_permanent);
        Failure { reason: describe(&error), permanent }
    }
}

impl Peer {
    pub(super) fn new(remote: RemotePeer, now: Instant) -> Peer {
        Peer {
            remote,
            link: Link::Waiting,
            timer: None,
            failures: 0,
            tried_at: now,
            attempt: WAKER,
            lowered_to: None,
            reported: None,
            is_unflushed: false,
        }
    }

    fn arm(&mut self, context: &mut Context, at: Option<Instant>) {
        let timer = Timer::Peer(self.remote.node);
        if let Some(before) = std::mem::replace(&mut self.timer, at) {
            context.timers.remove(before, timer);
        }
        if let Some(at) = at {
            context.timers.insert(at, timer);
        }
    }

    /// Starts a try.
    pub(super) fn dial(&mut self, context: &mut Context) -> Result<(), Failure> {
        self.tried_at = context.now;
        if let Ok(address) = self.remote.address.parse::<SocketAddr>() {
            return self.connect(context, vec![address].into_iter(), "");
        }
        self.attempt = context.token();
        self.link = Link::Resolving;
        self.arm(context, Some(context.now + context.options.connect_timeout));
        let (node, attempt) = (self.remote.node, self.attempt);
        let address = self.remote.address.clone();
        let answer_tx = context.commands_tx.clone();
        let shared = Arc::clone(&context.shared);
        std::thread::Builder::new()
            .name("quorate-dns".to_owned())
            .spawn(move || {
                let addresses = address
                    .to_socket_addrs()
                    .map(|addresses| addresses.take(ADDRESSES_MAX).collect())
                    .map_err(|error| format!("cannot look up {address:?}: {}", describe(&error)));
                let resolved = Command::Resolved { node, attempt, addresses };
                if answer_tx.send(resolved).is_ok() {
                    shared.wake();
                }
            })
            .map_err(|error| {
                Failure::passing(format!("cannot start a thread to look up names: {error}"))
            })?;
        Ok(())
    }

    /// A name was looked up.
    pub(super) fn resolved(
        &mut self,
        context: &mut Context,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    ) -> Result<(), Failure> {
        if self.attempt != attempt || !matches!(self.link, Link::Resolving) {
            return Ok(());
        }
        let addresses = addresses.map_err(Failure::passing)?;
        self.connect(context, addresses.into_iter(), "the name has no address")
    }

    /// This peer has just reached us, so it is alive, and worth a try before the pause is over.
    pub(super) fn nudge(&mut self, context: &mut Context) -> Result<(), Failure> {
        let at = self.tried_at + NUDGE_PAUSE;
        match self.link {
            Link::Waiting if at <= context.now => self.dial(context),
            Link::Waiting if self.timer.is_some_and(|timer| at < timer) => {
                self.arm(context, Some(at));
                Ok(())
            }
            Link::Waiting | Link::Resolving | Link::Open(_) => Ok(()),
        }
    }

    /// Connects to the first of `addresses` that can be tried; `reason` is why if there is none.
    fn connect(
        &mut self,
        context: &mut Context,
        mut addresses: std::vec::IntoIter<SocketAddr>,
        reason: &str,
    ) -> Result<(), Failure> {
        self.disconnect(context);
        let mut reason = reason.to_owned();
        while let Some(address) = addresses.next() {
            let rest = addresses.clone();
            if matches!(context.options.security, Security::Loopback)
                && !address.ip().to_canonical().is_loopback()
            {
                reason = format!("{address} is not on the loopback, and this node has no keys");
                continue;
            }
            match Connection::begin(context, address, rest) {
                Ok(connection) => {
                    context.dialled.insert(connection.token, self.remote.node);
                    self.link = Link::Open(Box::new(connection));
                    self.arm(context, Some(context.now + context.options.connect_timeout));
                    return Ok(());
                }
                Err(error) => reason = describe(&error),
            }
        }
        Err(Failure::passing(reason))
    }

    pub(super) fn ready(&mut self, context: &mut Context, event: &Event) -> Result<(), Failure> {
        let Link::Open(connection) = &mut self.link else {
            return Ok(());
        };
        if connection.token != event.token() {
            return Ok(());
        }
        if connection.phase == Phase::Connecting {
            match connection.is_connected() {
                Ok(false) => return Ok(()),
                Ok(true) => self.greet(context)?,
                Err(error) => return self.connect_elsewhere(context, &describe(&error)),
            }
        } else if event.is_writable() {
            connection.writable = true;
        }
        // Reading first: a refusal tells more than the broken pipe that follows it.
        self.read(context)?;
        self.flush(context)
    }

    fn connect_elsewhere(&mut self, context: &mut Context, reason: &str) -> Result<(), Failure> {
        let rest = match &mut self.link {
            Link::Open(connection) => std::mem::take(&mut connection.rest),
            Link::Waiting | Link::Resolving => Vec::new().into_iter(),
        };
        self.connect(context, rest, reason)
    }

    /// The connection is made: says who we are.
    fn greet(&mut self, context: &mut Context) -> Result<(), Failure> {
        let Link::Open(connection) = &mut self.link else {
            return Ok(());
        };
        connection.stream.socket.set_nodelay(true)?;
        connection.phase = Phase::Greeting;
        connection.writable = true;
        let hello = Hello {
            version: self.lowered_to.unwrap_or(context.local.version),
            cluster: context.local.cluster,
            from: context.local.node,
            to: self.remote.node,
            incarnation: context.local.incarnation,
        };
        connection
            .queue
            .push(HANDSHAKE_BYTES_MAX, |buffer| hello.encode(buffer))
            .map_err(|rejected| Failure::passing(format!("cannot greet: {rejected:?}")))?;
        self.arm(context, Some(context.now + context.options.handshake_timeout));
        Ok(())
    }

    /// Reads the answer to our greeting, and signs of life; nothing else may come.
    fn read(&mut self, context: &mut Context) -> Result<(), Failure> {
        let Link::Open(connection) = &mut self.link else {
            return Ok(());
        };
        let mut welcomed = None;
        for _ in 0..READS_MAX {
            match connection.stream.read(&mut context.scratch, &mut connection.reader) {
                Ok(0) => {
                    return Err(Failure::passing(match connection.phase {
                        Phase::Up { .. } => "the peer closed the connection",
                        _ => "the peer closed the connection instead of answering",
                    }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(version) = welcomed {
                        self.welcome(context, version);
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            while let Some(frame) = connection
                .reader
                .next_frame()
                .map_err(|error| Failure::passing(format!("the peer sent {error}")))?
            {
                if connection.phase == Phase::Greeting {
                    match Answer::decode(frame) {
                        Some((version, Answer::Welcome)) => welcomed = Some(version),
                        Some((version, Answer::Refused(refusal))) => {
                            return self.refused(context, version, &refusal);
                        }
                        None => return Err(Failure::passing("the peer is not a quorate node")),
                    }
                    let subject = connection.stream.subject();
                    context
                        .subjects
                        .check(self.remote.node, subject)
                        .map_err(|reason| Failure { reason, permanent: true })?;
                    connection.stream.trust();
                    connection.phase = Phase::Up { since: context.now };
                    connection.reader.set_limit(0);
                } else {
                    // The limit of 0 admits signs of life only.
                    connection.pinged_at = None;
                }
            }
        }
        Err(Failure::passing("the peer sends what it was not asked for"))
    }

    fn welcome(&mut self, context: &mut Context, version: u16) {
        self.arm(context, None);
        self.reported = None;
        self.lowered_to = None;
        let peer = self.remote.node;
        tracing::info!(peer, address = self.remote.address, version, "connected");
        context.emit(TransportEvent::Connected { peer, version });
    }

    /// The peer, which can do this version, refuses us. If only ours is too high, it is asked again.
    fn refused(
        &mut self,
        context: &mut Context,
        version: u16,
        refusal: &Refusal,
    ) -> Result<(), Failure> {
        let asked = self.lowered_to.unwrap_or(context.local.version);
        let lower = refusal.code == RefusalCode::Protocol && version < asked;
        if lower && version >= OLDEST {
            self.lowered_to = Some(version);
            return self.dial(context);
        }
        let reason = if lower {
            format!(
                "the peer can do version {version} at most, and this node versions {OLDEST} to {}: \
                 upgrade the peer",
                context.local.version
            )
        } else {
            format!("the peer refused: {}", refusal.text)
        };
        Err(Failure { reason, permanent: refusal.code.is_permanent() })
    }

    /// Queues a message; `Err(None)` if the peer is not connected.
    pub(super) fn send(
        &mut self,
        context: &mut Context,
        message: &PeerMessage,
    ) -> Result<(), Option<Rejected>> {
        let Link::Open(connection) = &mut self.link else {
            return Err(None);
        };
        let Phase::Up { .. } = connection.phase else {
            return Err(None);
        };
        if connection.queue.is_empty() {
            connection.progress_at = context.now;
        }
        connection.queue.push(MESSAGE_BYTES_MAX, |buffer| message.encode(buffer)).map_err(Some)?;
        Counters::add(&context.shared.counters.messages_sent, 1);
        Ok(())
    }

    pub(super) fn has_more_to_write(&self) -> bool {
        match &self.link {
            Link::Open(connection) => {
                let waits = !connection.queue.is_empty() || connection.stream.has_pending();
                connection.writable && waits
            }
            Link::Waiting | Link::Resolving => false,
        }
    }

    pub(super) fn flush(&mut self, context: &mut Context) -> Result<(), Failure> {
        let Link::Open(connection) = &mut self.link else {
            return Ok(());
        };
        let written = connection.write(context)?;
        if written
            && connection.queue.is_empty()
            && connection.pinged_at.is_none()
            && context.now >= connection.ping_due
            && matches!(connection.phase, Phase::Up { .. })
            && connection.queue.push(0, |buffer| buffer).is_ok()
        {
            connection.pinged_at = Some(context.now);
            connection.ping_due = context.now + PING_INTERVAL;
            connection.write(context)?;
        }
        if self.timer.is_none()
            && let Some(at) = connection.dead_at(context)
        {
            self.arm(context, Some(at));
        }
        Ok(())
    }

    pub(super) fn timer(&mut self, context: &mut Context) -> Result<(), Failure> {
        self.timer = None;
        let phase = match &mut self.link {
            Link::Waiting => return self.dial(context),
            Link::Resolving => {
                // The look-up goes on; a second one would not be any faster.
                let reason = format!("looking up {:?} takes long", self.remote.address);
                self.report(context, &Failure::passing(reason));
                return Ok(());
            }
            Link::Open(connection) => {
                connection.writable |= connection.phase != Phase::Connecting;
                connection.phase
            }
        };
        match phase {
            Phase::Connecting => self.connect_elsewhere(context, "connecting took too long"),
            Phase::Greeting => Err(Failure::passing("the peer did not answer the handshake")),
            Phase::Up { .. } => {
                // The thread may have been held up itself: the socket tells what is the case now.
                self.read(context)?;
                self.flush(context)?;
                match &self.link {
                    Link::Open(connection)
                        if connection.dead_at(context).is_some_and(|at| at <= context.now) =>
                    {
                        Err(Failure::passing("the peer takes or answers nothing"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Gives the connection up, reports why, and sets the time of the next try.
    pub(super) fn fail(&mut self, context: &mut Context, failure: Failure) {
        let up_since = match &self.link {
            Link::Open(connection) => match connection.phase {
                Phase::Up { since } => Some(since),
                Phase::Connecting | Phase::Greeting => None,
            },
            Link::Waiting | Link::Resolving => None,
        };
        self.disconnect(context);
        self.lowered_to = None;
        let options = &context.options;
        // A peer that welcomes us only to hang up has not deserved a quick try.
        if up_since.is_some_and(|since| context.now >= since + options.retry_max) {
            self.failures = 0;
        }
        let pause = if failure.permanent {
            options.retry_max.saturating_mul(REFUSED_PAUSES)
        } else {
            let doubled = 1_u32 << self.failures.min(20);
            options.retry_min.saturating_mul(doubled).min(options.retry_max)
        };
        self.failures = self.failures.saturating_add(1);
        self.arm(context, Some(context.now + pause));
        self.report(context, &failure);
    }

    fn report(&mut self, context: &mut Context, failure: &Failure) {
        if self.reported.as_ref() == Some(&failure.reason) {
            return;
        }
        let peer = self.remote.node;
        let reason = failure.reason.clone();
        tracing::warn!(peer, address = self.remote.address, reason, "unreachable");
        self.reported = Some(reason.clone());
        context.emit(TransportEvent::Unreachable { peer, reason, permanent: failure.permanent });
    }

    pub(super) fn disconnect(&mut self, context: &mut Context) {
        self.arm(context, None);
        if let Link::Open(mut connection) = std::mem::replace(&mut self.link, Link::Waiting) {
            context.dialled.remove(&connection.token);
            // It is closed next, which deregisters it in any case.
            let _ = context.registry.deregister(&mut connection.stream.socket);
        }
    }
}

/// An error in a few words that stay the same from try to try.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::ConnectionAborted => "connection aborted".to_owned(),
        io::ErrorKind::BrokenPipe => "the peer closed the connection".to_owned(),
        io::ErrorKind::TimedOut => "connecting took too long".to_owned(),
        io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        _ => error.to_string(),
    }
}
