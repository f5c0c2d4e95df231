//! One peer that this node sends to, or one seed, whose address this node dials to find a peer.
//!
//! ```text
//! waiting -> (resolving ->) connecting -> handshaking -> up
//!    ^           |               |             |          |
//!    +-----------+---------------+-------------+----------+   with a reason, and a pause that doubles
//! ```
//!
//! Invariants: a peer has at most one socket and one timer. A connection that is not up queues no
//! messages. A peer is reported unreachable once for each reason in a row, not for each attempt. A
//! seed's connection that is up is handed to the peer found there (`outgoing`).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::Token;

use super::context::{NetworkContext, NetworkTimer, Target};
use super::failure::{Failure, FailureKind, describe};
use super::look_up::look_up;
use super::outgoing_connection::{OutgoingConnection, OutgoingState, Received};
use super::queue::Rejected;
use super::reports::FailureReports;
use super::shared::Counters;
use super::sockets::SocketEvent;
use crate::node::message::PeerMessage;
use crate::security::Security;
use crate::transport::TransportEvent;
use crate::transport::handshake::{Hello, HelloReply, Refusal, RefusalCode, Responder};
use crate::types::membership::Named;
use crate::types::version::OLDEST;

/// After a refusal, the next attempt waits this many times the longest pause.
const REFUSED_PAUSES: u32 = 5;

/// A peer's own connection triggers an attempt at most this often.
const NUDGE_PAUSE: Duration = Duration::from_millis(50);

/// The most reads from one connection at a time. A peer sends only a few bytes back.
const READS_MAX: usize = 16;

/// How often a client pings each member that it has nothing else to send to. The pings keep the
/// client known there.
const IDLE_PING_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct DialledPeer {
    target: Target,
    /// The address to dial.
    pub(super) address: String,
    /// The peer's address in the list of members, if it is a member.
    pub(super) listed: Option<String>,
    link: Link,
    /// Attempts that failed in a row; they determine the pause.
    failures: u32,
    /// Those of them, last, in which the peer has answered and then closed the connection.
    hang_ups: u32,
    pub(super) tried_at: Instant,
    /// The version of the next hello, if the peer has just refused ours as too high. Not kept for
    /// later attempts: the peer may support another version by then.
    lowered_to: Option<u16>,
    pub(super) reports: FailureReports,
    /// Whether another node has answered at its address.
    pub(super) is_elsewhere: bool,
    /// The version that the node just found at a seed's address supports, and that node.
    pub(super) found: Option<(u16, Responder)>,
    /// Whether there may be more to read at once.
    pub(super) has_unread: bool,
}

#[derive(Debug)]
enum Link {
    Waiting,
    /// The name is being looked up for the attempt with this token. The answer to an earlier
    /// look-up, perhaps for another address, is ignored.
    Resolving(Token),
    Open(Box<OutgoingConnection>),
}

impl Link {
    fn connection(&mut self) -> Option<&mut OutgoingConnection> {
        match self {
            Link::Open(connection) => Some(connection),
            Link::Waiting | Link::Resolving(_) => None,
        }
    }
}

impl DialledPeer {
    pub(super) fn new(target: Target, address: String, now: Instant) -> DialledPeer {
        DialledPeer {
            target,
            address,
            listed: None,
            link: Link::Waiting,
            failures: 0,
            hang_ups: 0,
            tried_at: now,
            lowered_to: None,
            reports: FailureReports::new(now),
            is_elsewhere: false,
            found: None,
            has_unread: false,
        }
    }

    /// Whether the connection is up, so that messages can be queued.
    pub(super) fn is_up(&self) -> bool {
        matches!(&self.link, Link::Open(connection) if connection.is_up())
    }

    /// The connection, if it is up.
    pub(super) fn up(&mut self) -> Option<&mut OutgoingConnection> {
        self.link.connection().filter(|connection| connection.is_up())
    }

    /// Whether no attempt and no connection is in progress.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.link, Link::Waiting)
    }

    /// Changes the address to dial, from the next attempt on.
    pub(super) fn move_to(&mut self, address: String) {
        self.address = address;
        self.is_elsewhere = false;
        self.failures = 0;
    }

    /// Abandons the current attempt or connection, and dials now.
    pub(super) fn redial(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        if matches!(self.link, Link::Resolving(_)) && self.address.parse::<SocketAddr>().is_err() {
            // One look-up at a time: its result is tried first, and the new address after that.
            return Ok(());
        }
        self.disconnect(context);
        self.dial(context)
    }

    /// Sends a new hello over a new connection, if the present connection has sent one. Queued bytes
    /// are written first, as far as the socket takes them. A client sends no new hello to a member of
    /// its own cluster.
    pub(super) fn send_hello_again(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        let must_redial = self.link.connection().is_some_and(|connection| {
            let is_known = context.is_client() && connection.cluster == context.local.cluster;
            connection.phase != OutgoingState::Connecting && !is_known
        });
        if !must_redial {
            return Ok(());
        }
        // An error does not matter: the connection is closed in any case.
        let _ = self.flush(context);
        self.redial(context)
    }

    /// Gives the connection away: to the peer found there, or to be closed.
    pub(super) fn release(
        &mut self,
        context: &mut NetworkContext,
    ) -> Option<Box<OutgoingConnection>> {
        self.arm(context, None);
        match std::mem::replace(&mut self.link, Link::Waiting) {
            Link::Open(connection) => Some(connection),
            Link::Waiting | Link::Resolving(_) => None,
        }
    }

    /// Sends over this connection from now on. The other end keeps only the latest connection.
    pub(super) fn adopt(
        &mut self,
        context: &mut NetworkContext,
        connection: Box<OutgoingConnection>,
        version: u16,
    ) {
        // An error does not matter: the former connection is closed in any case.
        let _ = self.flush(context);
        self.disconnect(context);
        context.dialled.insert(connection.token, self.target);
        self.link = Link::Open(connection);
        self.welcome(context, version, None);
    }

    /// Dials again after the pause that is due, at least `at_least`. `lasted` resets the pause: the
    /// peer found there had been connected for long.
    pub(super) fn resume(
        &mut self,
        context: &mut NetworkContext,
        lasted: bool,
        at_least: Duration,
    ) {
        if lasted {
            self.failures = 0;
        }
        let pause = self.pause(context).max(at_least);
        self.dial_in(context, pause);
    }

    /// Dials after this pause.
    pub(super) fn dial_in(&self, context: &mut NetworkContext, pause: Duration) {
        self.arm(context, Some(context.now + pause));
    }

    /// The pause before the next attempt.
    fn pause(&mut self, context: &NetworkContext) -> Duration {
        let doubled = 1_u32 << self.failures.min(20);
        self.failures = self.failures.saturating_add(1);
        context.options.retry_min.saturating_mul(doubled).min(context.options.retry_max)
    }

    fn arm(&self, context: &mut NetworkContext, at: Option<Instant>) {
        let timer = NetworkTimer::Peer(self.target);
        match at {
            Some(at) => context.timers.set(timer, at),
            None => context.timers.cancel(timer),
        }
    }

    /// Starts an attempt.
    pub(super) fn dial(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        self.tried_at = context.now;
        if let Ok(address) = self.address.parse::<SocketAddr>() {
            return self.connect(context, vec![address].into_iter(), "");
        }
        let attempt = context.token();
        self.link = Link::Resolving(attempt);
        self.arm(context, Some(context.now + context.options.connect_timeout));
        look_up(context, self.target, attempt, &self.address)
    }

    /// A look-up has finished.
    pub(super) fn resolved(
        &mut self,
        context: &mut NetworkContext,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    ) -> Result<(), Failure> {
        if !matches!(self.link, Link::Resolving(latest) if latest == attempt) {
            return Ok(());
        }
        let addresses = addresses.map_err(Failure::passing)?;
        self.connect(context, addresses.into_iter(), "the name has no address")
    }

    /// This peer has just connected to this node, so it is alive: dials it before the pause is
    /// over.
    pub(super) fn nudge(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        // That the peer is alive is no news if it has answered each time, and hung up.
        let pause = NUDGE_PAUSE.saturating_mul(1 << self.hang_ups.min(10));
        let at = self.tried_at + pause.min(context.options.retry_max.max(NUDGE_PAUSE));
        if !self.is_waiting() {
            return Ok(());
        }
        if at <= context.now {
            return self.dial(context);
        }
        if context.timers.at(NetworkTimer::Peer(self.target)).is_some_and(|timer| at < timer) {
            self.arm(context, Some(at));
        }
        Ok(())
    }

    /// Connects to the first of `addresses` that can be tried; `reason` is the error if there is
    /// none.
    fn connect(
        &mut self,
        context: &mut NetworkContext,
        mut addresses: std::vec::IntoIter<SocketAddr>,
        reason: &str,
    ) -> Result<(), Failure> {
        self.disconnect(context);
        let mut reason = reason.to_owned();
        while let Some(address) = addresses.next() {
            if matches!(context.options.security, Security::Loopback)
                && !address.ip().to_canonical().is_loopback()
            {
                reason = format!("{address} is not on the loopback, and this node has no keys");
                continue;
            }
            match OutgoingConnection::begin(context, address) {
                Ok(mut connection) => {
                    connection.rest = addresses;
                    context.dialled.insert(connection.token, self.target);
                    self.link = Link::Open(Box::new(connection));
                    self.arm(context, Some(context.now + context.options.connect_timeout));
                    return Ok(());
                }
                Err(error) => reason = describe(&error),
            }
        }
        Err(Failure::passing(reason))
    }

    pub(super) fn ready(
        &mut self,
        context: &mut NetworkContext,
        ready: SocketEvent,
    ) -> Result<(), Failure> {
        let Some(connection) = self.link.connection().filter(|open| open.token == ready.token)
        else {
            return Ok(());
        };
        if connection.phase == OutgoingState::Connecting {
            match connection.is_connected() {
                Ok(false) => return Ok(()),
                Ok(true) => self.send_hello(context)?,
                Err(error) => return self.connect_elsewhere(context, &describe(&error)),
            }
        } else if ready.writable {
            connection.writer.writable = true;
        }
        self.proceed(context)
    }

    /// Reads the answer to the hello, and the answers to pings. A client also receives the peer's
    /// messages here; a peer that sends messages to a member is disconnected.
    fn read(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        for _ in 0..READS_MAX {
            if !self.take_frames(context)? {
                return Ok(());
            }
            let Some(connection) = self.link.connection() else {
                return Ok(());
            };
            if !connection.read(context)? {
                if let Some((version, responder)) = connection.pending_welcome.take() {
                    self.welcome(context, version, Some(responder));
                }
                return Ok(());
            }
        }
        if context.is_client() {
            self.has_unread = true;
            return Ok(());
        }
        Err(Failure::passing("the peer sends data that this node did not request"))
    }

    /// Takes the frames that have arrived whole. Returns whether there may be more for this peer.
    fn take_frames(&mut self, context: &mut NetworkContext) -> Result<bool, Failure> {
        while let Some(connection) = self.link.connection() {
            let Some(received) = connection.receive(context, self.target.id())? else {
                return Ok(true);
            };
            match received {
                Received::Answer(version, HelloReply::Welcome(responder))
                    if context.is_client() =>
                {
                    self.welcome(context, version, Some(responder));
                    if self.found.is_some() {
                        // The following frames are for the peer that was found here.
                        return Ok(false);
                    }
                }
                Received::Answer(version, HelloReply::Welcome(responder)) => {
                    connection.pending_welcome = Some((version, responder));
                }
                Received::Answer(version, HelloReply::Refused(refusal)) => {
                    return self.refused(context, version, &refusal).map(|()| false);
                }
                Received::Message(message) => {
                    let counters = &context.shared.counters;
                    Counters::add(&counters.messages_received, 1);
                    if message.is_of_cluster() {
                        Counters::add(&counters.messages_foreign, 1);
                    } else if let Target::Node(from) = self.target {
                        context.emit(TransportEvent::Received { from, message });
                    }
                }
            }
        }
        Ok(false)
    }

    /// Reads and writes as much as is ready.
    pub(super) fn proceed(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        // Read first: a refusal is more informative than the broken pipe that follows it.
        if matches!(&self.link, Link::Open(connection) if connection.phase != OutgoingState::Connecting)
        {
            self.read(context)?;
        }
        self.flush(context)
    }

    fn connect_elsewhere(
        &mut self,
        context: &mut NetworkContext,
        reason: &str,
    ) -> Result<(), Failure> {
        let rest = self.link.connection().map(|connection| std::mem::take(&mut connection.rest));
        self.connect(context, rest.unwrap_or_default(), reason)
    }

    /// Fails if the security has changed so that the connection would not be made now.
    pub(super) fn check_right(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        let Some(connection) = self.up() else {
            return Ok(());
        };
        let right = connection.stream.right(&context.options.security);
        right.map(drop).map_err(Failure::passing)
    }

    /// The connection is made: sends the hello.
    fn send_hello(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        let version = self.lowered_to.unwrap_or(context.local.version);
        let to = self.target.id();
        if let Some(connection) = self.link.connection() {
            connection.send_hello(context.now, &Hello::new(&context.local, version, to))?;
            self.arm(context, Some(context.now + context.options.handshake_timeout));
        }
        Ok(())
    }

    fn welcome(
        &mut self,
        context: &mut NetworkContext,
        version: u16,
        responder: Option<Responder>,
    ) {
        self.arm(context, context.is_client().then(|| context.now + IDLE_PING_INTERVAL));
        self.lowered_to = None;
        self.is_elsewhere = false;
        match self.target {
            Target::Node(peer) => {
                self.reports.reached();
                tracing::info!(peer = %Named::of(peer), address = self.address, version, "connected");
                if context.is_client()
                    && let Some(connection) = self.link.connection()
                {
                    // The peer sends once it knows that its welcome has arrived.
                    connection.ping(context.now);
                }
                context.emit(TransportEvent::Connected { peer, version });
            }
            Target::Seed(_) => self.found = responder.map(|responder| (version, responder)),
        }
    }

    /// The peer, which supports this version, refuses this node. Tries again with the lower version
    /// if only ours is too high.
    fn refused(
        &mut self,
        context: &mut NetworkContext,
        version: u16,
        refusal: &Refusal,
    ) -> Result<(), Failure> {
        let asked = self.lowered_to.unwrap_or(context.local.version);
        let lower = refusal.code == RefusalCode::Protocol && version < asked;
        if lower && version >= OLDEST {
            self.lowered_to = Some(version);
            return self.dial(context);
        }
        if refusal.code == RefusalCode::OwnId && matches!(self.target, Target::Node(_)) {
            return Err(Failure::elsewhere("this instance itself is there"));
        }
        if refusal.code == RefusalCode::OwnId {
            // A name may stand for several nodes.
            return match &self.link {
                Link::Open(connection) if !connection.rest.as_slice().is_empty() => {
                    self.connect_elsewhere(context, "")
                }
                _ => Err(Failure {
                    reason: "this node itself".to_owned(),
                    kind: FailureKind::Itself,
                }),
            };
        }
        let reason = if refusal.code == RefusalCode::Formats {
            refusal.text.clone()
        } else if lower {
            format!(
                "the peer can do version {version} at most, and this node versions {OLDEST} to {}: \
                 upgrade the peer",
                context.local.version
            )
        } else {
            format!("the peer refused: {}", refusal.text)
        };
        Err(Failure { reason, ..Failure::from(refusal.clone()) })
    }

    /// Queues a message; `None` if the peer has not welcomed this node.
    pub(super) fn send(
        &mut self,
        context: &NetworkContext,
        message: &PeerMessage,
    ) -> Option<Result<(), Rejected>> {
        Some(self.up()?.send(context, message))
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> Option<&OutgoingConnection> {
        match &self.link {
            Link::Open(connection) => Some(connection),
            Link::Waiting | Link::Resolving(_) => None,
        }
    }

    pub(super) fn has_more_to_write(&self) -> bool {
        matches!(&self.link, Link::Open(connection) if connection.has_more_to_write())
    }

    pub(super) fn flush(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        let Some(connection) = self.link.connection() else {
            return Ok(());
        };
        connection.flush(context)?;
        if let Some(at) = connection.dead_at(context)
            && context.timers.at(NetworkTimer::Peer(self.target)).is_none_or(|timer| at < timer)
        {
            self.arm(context, Some(at));
        }
        Ok(())
    }

    pub(super) fn timer(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        let phase = match &mut self.link {
            Link::Waiting => return self.dial(context),
            Link::Resolving(_) => {
                // The look-up continues; a second one would not be faster.
                let reason = format!("looking up {:?} takes long", self.address);
                self.reports.add(context, self.target, &self.address, &Failure::passing(reason));
                return Ok(());
            }
            Link::Open(connection) => {
                connection.writer.writable |= connection.phase != OutgoingState::Connecting;
                connection.phase
            }
        };
        match phase {
            OutgoingState::Connecting => {
                self.connect_elsewhere(context, "connecting took too long")
            }
            OutgoingState::Handshaking => {
                Err(Failure::passing("the peer did not answer the handshake"))
            }
            OutgoingState::Up { .. } => {
                // This thread itself may have been delayed: ask the socket for its present state.
                self.proceed(context)?;
                match &self.link {
                    Link::Open(connection)
                        if connection.dead_at(context).is_some_and(|at| at <= context.now) =>
                    {
                        Err(Failure::passing("the peer neither takes bytes nor answers"))
                    }
                    _ if context.is_client() => self.probe(context),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Pings a member that was not pinged for long, and sets the timer for the next ping.
    fn probe(&mut self, context: &mut NetworkContext) -> Result<(), Failure> {
        if let Some(connection) = self.link.connection() {
            connection.ping_if_due(context.now);
        }
        self.flush(context)?;
        if context.timers.at(NetworkTimer::Peer(self.target)).is_none() {
            self.arm(context, Some(context.now + IDLE_PING_INTERVAL));
        }
        Ok(())
    }

    /// Closes the connection, reports why, and sets the time of the next attempt. Returns whether
    /// it had been up for long.
    pub(super) fn fail(&mut self, context: &mut NetworkContext, failure: &Failure) -> bool {
        // A peer that welcomes this node only to close the connection does not reset the pause.
        let phase = self.link.connection().map(|connection| connection.phase);
        let long_ago = |since: Instant| context.now >= since + context.options.retry_max;
        let lasted = matches!(phase, Some(OutgoingState::Up { since }) if long_ago(since));
        let is_cut_short = phase.is_some_and(|phase| phase != OutgoingState::Connecting) && !lasted;
        self.hang_ups = if is_cut_short { self.hang_ups.saturating_add(1) } else { 0 };
        self.disconnect(context);
        self.lowered_to = None;
        if lasted {
            self.failures = 0;
        }
        self.is_elsewhere |= failure.is_elsewhere();
        let long = context.options.retry_max.saturating_mul(REFUSED_PAUSES);
        let pause = self.pause(context);
        let pause = match failure.kind {
            FailureKind::Passing => Some(pause),
            FailureKind::Full | FailureKind::Permanent | FailureKind::Elsewhere => Some(long),
            // A name may stand for another node later.
            FailureKind::Itself => self.address.parse::<SocketAddr>().is_err().then_some(long),
        };
        self.arm(context, pause.map(|pause| context.now + pause));
        if failure.kind == FailureKind::Itself {
            tracing::debug!(address = self.address, "the address is this node's own");
        } else {
            self.reports.add(context, self.target, &self.address, failure);
        }
        lasted
    }

    /// Reports that the peer is given up, unless it is reported as unreachable already.
    pub(super) fn give_up(&mut self, context: &mut NetworkContext, reason: &str) {
        if self.reports.is_empty() {
            self.reports.add(context, self.target, &self.address, &Failure::passing(reason));
        }
    }

    pub(super) fn disconnect(&mut self, context: &mut NetworkContext) {
        if let Some(mut connection) = self.release(context) {
            context.dialled.remove(&connection.token);
            connection.stream.socket.deregister();
        }
    }
}
