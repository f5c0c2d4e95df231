//! The network thread's loop, and what its parts share.
//!
//! Readiness is edge-triggered: a socket is asked again until it has nothing
//! left, in turns, so that a busy peer does not keep the others waiting.
//! Whoever has work left says so, and the loop then polls without sleeping.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use mio::{Events, Poll, Registry, Token};

use super::incoming::Incoming;
use super::known_peers::Circle;
use super::outgoing::Outgoing;
use super::peer::Target;
#[cfg(feature = "tls")]
use super::renewal::Renewal;
use super::{Command, Handler, LISTENER, Network, Shared, WAKER};
use crate::node::message::PeerMessage;
use crate::transport::secure::Subjects;
use crate::transport::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};
use crate::types::membership::NodeId;

/// The most taken from a socket at once.
const READ_BYTES: usize = 64 << 10;

/// Longer than anything waits.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// At most one warning of a kind in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(5);

/// What all parts of the network thread use.
pub(super) struct Context {
    pub(super) registry: Registry,
    pub(super) local: LocalPeer,
    pub(super) options: TransportOptions,
    pub(super) shared: Arc<Shared>,
    /// For the helpers that look names up, to answer on.
    pub(super) commands_tx: Sender<Command>,
    pub(super) timers: Timers,
    /// When this turn of the loop began, or later.
    pub(super) now: Instant,
    /// Where socket reads go first; one for all connections.
    pub(super) scratch: Box<[u8]>,
    /// Whose the connections are that were made from here.
    pub(super) dialled: BTreeMap<Token, Target>,
    /// Who may introduce itself.
    pub(super) circle: Circle,
    /// Which certificate each peer has.
    pub(super) subjects: Subjects,
    /// What the handler has still to take: no more than is read in one round.
    events: Vec<TransportEvent>,
    next_token: usize,
}

impl Context {
    /// Whether this is a client: what is for it comes over the connections that it makes.
    pub(super) fn is_client(&self) -> bool {
        self.local.address.is_empty()
    }

    /// A token that was never used: a late event of a closed connection meets no other one.
    pub(super) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// A node is welcomed: it is a guest from now on, if it is no member.
    pub(super) fn admit(&mut self, node: NodeId) {
        if !self.circle.is_known(node) {
            self.keep(node);
        }
    }

    /// Keeps a guest, and looks after it later.
    fn keep(&mut self, node: NodeId) {
        let at = self.now + self.options.guest_timeout;
        if let Some(before) = self.circle.invite(node, at) {
            self.timers.remove(before, Timer::Guest(node));
        }
        self.timers.insert(at, Timer::Guest(node));
    }

    /// It is no guest any longer.
    fn dismiss(&mut self, node: NodeId) {
        if let Some(at) = self.circle.dismiss(node) {
            self.timers.remove(at, Timer::Guest(node));
        }
    }

    /// Tells the handler, before its next turn.
    pub(super) fn emit(&mut self, event: TransportEvent) {
        self.events.push(event);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("local", &self.local).finish_non_exhaustive()
    }
}

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The next step of the connection to this peer or seed.
    Peer(Target),
    /// This guest may have left.
    Guest(NodeId),
    /// A connection waits to be this peer's.
    Rival(NodeId),
    /// An incoming connection must have introduced itself.
    Introduction(Token),
    /// This connection has sent so much that it has to wait.
    Resume(Token),
    /// The client that made this connection may take nothing any more.
    Stall(Token),
    /// The listener is asked again, after an error.
    Accept,
    /// The certificates are read again.
    #[cfg(feature = "tls")]
    Certificates,
}

#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Instant, Timer)>);

impl Timers {
    pub(super) fn insert(&mut self, at: Instant, timer: Timer) {
        self.0.insert((at, timer));
    }

    pub(super) fn remove(&mut self, at: Instant, timer: Timer) {
        self.0.remove(&(at, timer));
    }

    fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let first = self.0.first().filter(|(at, _)| *at <= now).copied()?;
        self.0.remove(&first);
        Some(first.1)
    }
}

/// Lets one warning through in a while, and counts the others.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    silent_until: Option<Instant>,
    suppressed: u64,
}

impl Warnings {
    /// The number of warnings kept back since the last one, if this one may be given.
    pub(super) fn permit(&mut self, now: Instant) -> Option<u64> {
        if self.silent_until.is_some_and(|until| now < until) {
            self.suppressed += 1;
            return None;
        }
        self.silent_until = Some(now + WARNING_INTERVAL);
        Some(std::mem::take(&mut self.suppressed))
    }
}

pub(super) struct Driver {
    poll: Poll,
    /// Taken out only while it takes its turn, and when it has ended.
    handler: Option<Box<dyn Handler>>,
    /// When it wants its next turn.
    turn_at: Instant,
    commands_rx: Receiver<Command>,
    context: Context,
    outgoing: Outgoing,
    incoming: Incoming,
    #[cfg(feature = "tls")]
    renewal: Renewal,
}

/// The clock that the deadlines of connections go by.
fn clock() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the network's own deadlines")]
    Instant::now()
}

impl Driver {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once; a struct would only repeat the fields"
    )]
    pub(super) fn new(
        poll: Poll,
        socket: Option<mio::net::TcpListener>,
        local: LocalPeer,
        (peers, seeds): (Vec<RemotePeer>, Vec<String>),
        options: TransportOptions,
        shared: Arc<Shared>,
        (commands_tx, commands_rx): (Sender<Command>, Receiver<Command>),
        handler: Box<dyn Handler>,
    ) -> io::Result<Driver> {
        let mut context = Context {
            registry: poll.registry().try_clone()?,
            local,
            circle: Circle::new(options.guests_max),
            options,
            shared,
            commands_tx,
            timers: Timers::default(),
            now: clock(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            dialled: BTreeMap::new(),
            subjects: Subjects::default(),
            events: Vec::new(),
            next_token: WAKER.0,
        };
        let mut driver = Driver {
            poll,
            handler: Some(handler),
            turn_at: context.now,
            commands_rx,
            outgoing: Outgoing::default(),
            #[cfg(feature = "tls")]
            renewal: Renewal::start(&mut context),
            incoming: Incoming::new(&mut context, socket)?,
            context,
        };
        driver.set_peers(peers);
        driver.outgoing.set_seeds(&mut driver.context, seeds);
        Ok(driver)
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let failure = loop {
            let timeout = self.sleep();
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                break Some(format!("the network thread cannot wait for its sockets: {error}"));
            }
            #[cfg(test)]
            self.context.shared.turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // From here on nobody need wake us: the channels are looked at before we sleep.
            self.context.shared.awake.store(true, Release);
            self.context.now = clock();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    LISTENER => self.incoming.listener_ready(),
                    token => match self.context.dialled.get(&token) {
                        Some(&target) => self.outgoing.ready(&mut self.context, target, event),
                        None => {
                            self.incoming.ready(token);
                            if event.is_writable() {
                                self.incoming.writable(token);
                            }
                        }
                    },
                }
            }
            self.obey();
            self.incoming.accept(&mut self.context);
            self.incoming.read(&mut self.context);
            self.outgoing.read(&mut self.context);
            self.meet();
            self.fire_timers();
            self.meet();
            let goes_on = self.attend();
            // What was sent just before the end (a leader's farewell) is worth one try, too.
            self.flush();
            if !goes_on {
                break None;
            }
        };
        let handler = self.handler.take();
        drop(self);
        if let Some(handler) = handler {
            handler.end(failure);
        }
    }

    /// Gives the handler its turn, if there is a reason; `false` at its end.
    fn attend(&mut self) -> bool {
        let Some(mut handler) = self.handler.take() else { return false };
        let has_news = !self.context.events.is_empty();
        for event in self.context.events.drain(..) {
            handler.take(event);
        }
        let is_due = has_news || self.turn_at <= self.context.now || handler.is_busy();
        let pause = if is_due { handler.turn(self) } else { Some(Duration::ZERO) };
        self.handler = Some(handler);
        if let Some(pause) = pause.filter(|_| is_due) {
            let now = clock();
            self.turn_at = now.checked_add(pause).unwrap_or(now + PAUSE_MAX);
        }
        pause.is_some()
    }

    /// Writes what was queued.
    fn flush(&mut self) {
        self.outgoing.flush(&mut self.context);
        self.incoming.flush(&mut self.context);
    }

    /// Those who have introduced themselves are answered.
    fn meet(&mut self) {
        for met in self.incoming.take_welcomed() {
            self.outgoing.met(&mut self.context, met);
        }
    }

    /// How long to sleep, having announced that we do.
    fn sleep(&self) -> Option<Duration> {
        if self.incoming.is_busy() || self.outgoing.is_busy() {
            return Some(Duration::ZERO);
        }
        // Whoever has something for us first pushes, then swaps in `true`. If its swap came before
        // this one, we see what it pushed; if after, it sees `false` and wakes us.
        self.context.shared.awake.swap(false, AcqRel);
        let is_busy = self.handler.as_ref().is_none_or(|handler| handler.is_busy());
        if is_busy || !self.commands_rx.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.context.timers.next().unwrap_or(self.turn_at);
        Some(timer.min(self.turn_at).saturating_duration_since(clock()))
    }

    /// Does what was asked for until now, and not what is added meanwhile: others wait, too.
    fn obey(&mut self) {
        for _ in 0..self.commands_rx.len() {
            let Ok(command) = self.commands_rx.try_recv() else {
                return;
            };
            match command {
                #[cfg(feature = "tls")]
                Command::Certificates(read) => self.renewal.renew(&mut self.context, read),
                Command::Resolved { target, attempt, addresses } => {
                    self.outgoing.resolved(&mut self.context, target, attempt, addresses);
                }
            }
        }
    }

    /// Forgets a guest that has left. One that is silent makes room if there are too many.
    fn look_after(&mut self, guest: NodeId) {
        if !self.context.circle.is_guest(guest) {
            return;
        }
        let silent_since = self.context.now.checked_sub(self.context.options.guest_timeout);
        let is_heard = self.incoming.heard_at(guest) > silent_since;
        let is_reached = self.outgoing.is_up(guest) && !self.context.circle.is_full();
        if is_heard || is_reached {
            return self.context.keep(guest);
        }
        self.context.dismiss(guest);
        self.incoming.disconnect(&mut self.context, guest);
        self.outgoing.forget(&mut self.context, guest);
        self.context.subjects.forget(guest);
    }

    fn fire_timers(&mut self) {
        // Reading may have blocked for long.
        self.context.now = clock();
        while let Some(timer) = self.context.timers.pop_due(self.context.now) {
            match timer {
                Timer::Peer(target) => self.outgoing.timer(&mut self.context, target),
                Timer::Guest(node) => self.look_after(node),
                Timer::Rival(node) => self.incoming.contest(&mut self.context, node),
                Timer::Introduction(token) => self.incoming.overdue(&mut self.context, token),
                Timer::Resume(token) => self.incoming.resume(token),
                Timer::Stall(token) => self.incoming.stalled(&mut self.context, token),
                Timer::Accept => self.incoming.listener_ready(),
                #[cfg(feature = "tls")]
                Timer::Certificates => self.renewal.look(&mut self.context),
            }
        }
    }
}

impl Network for Driver {
    fn send(&mut self, messages: Vec<(NodeId, PeerMessage)>) {
        for (node, message) in &messages {
            if !self.incoming.send_back(&mut self.context, *node, message) {
                self.outgoing.send(&mut self.context, *node, message);
            }
        }
        self.flush();
    }

    fn set_peers(&mut self, peers: Vec<RemotePeer>) {
        let own = self.context.local.node;
        let peers: Vec<RemotePeer> = peers.into_iter().filter(|peer| peer.node != own).collect();
        for peer in &peers {
            self.context.dismiss(peer.node);
            // What is for a member goes where it is listed, and not back to who said it was it.
            self.incoming.disconnect_nowhere(&mut self.context, peer.node);
        }
        let members = peers.iter().map(|peer| peer.node).collect();
        for node in self.context.circle.set_members(members) {
            // A member that was removed has still to hear of it.
            if self.incoming.could_be_guest(node) && !self.context.circle.is_full() {
                self.context.admit(node);
            } else {
                self.incoming.disconnect(&mut self.context, node);
            }
        }
        self.outgoing.set_peers(&mut self.context, peers);
    }

    fn set_cluster(&mut self, cluster: u64) {
        if self.context.local.cluster == cluster {
            return;
        }
        self.context.local.cluster = cluster;
        self.incoming.disconnect_strange(&mut self.context);
        self.outgoing.greet_anew(&mut self.context);
    }
}
