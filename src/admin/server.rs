//! The thread with the sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::{Connection, Turn};
use super::events::Listeners;
use super::guard::Guard;
use super::http::{Head, Response};
use super::routes::{Outcome, Route, Routes};
use super::workers::{Job, Jobs, Message, Outbox};
use crate::api::coordinator::Coordinator;
use crate::runtime::clock::Clock;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// Connections are numbered from here on.
const FIRST: u64 = 2;
/// How many there are at most. Another one takes the place of the one that has been silent longest.
const CONNECTIONS_MAX: usize = 256;
/// How many of them may listen to events.
const LISTENERS_MAX: usize = 32;
/// How often connections are looked at for those that take too long.
const SWEEP: Duration = Duration::from_millis(500);
/// How many bytes are read at once.
const READ_BYTES: usize = 64 << 10;

/// Ends the thread.
#[derive(Debug)]
pub(super) struct Stop {
    asked: AtomicBool,
    waker: Arc<Waker>,
}

impl Stop {
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        // Without it the thread looks at its next sweep.
        let _ = self.waker.wake();
    }
}

pub(super) struct Server {
    poll: Poll,
    listener: TcpListener,
    address: SocketAddr,
    stop: Arc<Stop>,
    clock: Clock,
    guard: Guard,
    routes: Arc<Routes>,
    outbox: Outbox,
    messages: Receiver<Message>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// The connections that something has happened to.
    touched: BTreeSet<u64>,
    /// What is read goes through here: idle clients need no buffers of their own.
    scratch: Vec<u8>,
}

impl Server {
    pub(super) fn bind(
        address: SocketAddr,
        guard: Guard,
        routes: Arc<Routes>,
        coordinator: &Coordinator,
    ) -> io::Result<Server> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, messages) = unbounded();
        Ok(Server {
            poll,
            address: listener.local_addr()?,
            listener,
            stop: Arc::new(Stop { asked: AtomicBool::new(false), waker: Arc::clone(&waker) }),
            clock: coordinator.shared().clock.clone(),
            guard,
            routes,
            outbox: Outbox { sender, waker },
            messages,
            connections: BTreeMap::new(),
            next: FIRST,
            touched: BTreeSet::new(),
            scratch: vec![0; READ_BYTES],
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn stop(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }

    pub(super) fn outbox(&self) -> Outbox {
        self.outbox.clone()
    }

    /// Runs until the endpoint is dropped.
    pub(super) fn run(mut self, jobs: Jobs, listeners: Listeners) {
        let mut events = Events::with_capacity(256);
        let mut swept = self.clock.now();
        while !self.stop.asked.load(Ordering::Acquire) {
            let pause = if self.touched.is_empty() { SWEEP } else { Duration::ZERO };
            if let Err(error) = self.poll.poll(&mut events, Some(pause))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the admin endpoint stops: its sockets cannot be waited for");
                break;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    Token(number) => {
                        let number = number as u64;
                        if let Some(connection) = self.connections.get_mut(&number) {
                            if event.is_readable() || event.is_read_closed() || event.is_error() {
                                connection.is_readable();
                            }
                            self.touched.insert(number);
                        }
                    }
                }
            }
            let now = self.clock.now();
            while let Ok(message) = self.messages.try_recv() {
                self.take(message, now);
            }
            for number in std::mem::take(&mut self.touched) {
                self.turn(number, now, &jobs);
            }
            if now.saturating_sub(swept) >= SWEEP {
                swept = now;
                self.connections.retain(|_, connection| !connection.is_late(now));
                // Of those that came while there were no descriptors, nothing more is reported.
                self.accept();
            }
            listeners.set(self.listening());
        }
    }

    fn listening(&self) -> usize {
        self.connections.values().filter(|connection| connection.listens()).count()
    }

    fn accept(&mut self) {
        loop {
            let (mut stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::warn!(%error, "the admin endpoint cannot accept a connection");
                    }
                    return;
                }
            };
            if self.connections.len() >= CONNECTIONS_MAX && !self.make_room() {
                continue;
            }
            let number = self.next;
            self.next += 1;
            let both = Interest::READABLE | Interest::WRITABLE;
            // Answers are short and are waited for.
            let _ = stream.set_nodelay(true);
            let Ok(token) = usize::try_from(number) else { return };
            if self.poll.registry().register(&mut stream, Token(token), both).is_ok() {
                let connection = Connection::new(stream, from, self.clock.now());
                self.connections.insert(number, connection);
                self.touched.insert(number);
            }
        }
    }

    /// Closes the connection that has waited longest without a request.
    fn make_room(&mut self) -> bool {
        let idle = self.connections.iter().filter_map(|(number, connection)| {
            connection.idle_since().map(|since| (since, *number))
        });
        let longest = idle.min().map(|(_, number)| number);
        longest.is_some_and(|number| self.connections.remove(&number).is_some())
    }

    fn take(&mut self, message: Message, now: Duration) {
        match message {
            Message::Done(number, outcome) => {
                // It may be gone.
                let Some(connection) = self.connections.get_mut(&number) else { return };
                match outcome {
                    Outcome::Response(response) => connection.answer(&response, now),
                    Outcome::Backup(backup) => connection.answer_with(backup, now),
                }
                self.touched.insert(number);
            }
            Message::Event(event) => {
                let touched = &mut self.touched;
                self.connections.retain(|number, connection| {
                    if !connection.listens() {
                        return true;
                    }
                    touched.insert(*number);
                    connection.send(&event, now)
                });
            }
        }
    }

    fn turn(&mut self, number: u64, now: Duration, jobs: &Jobs) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let guard = &self.guard;
        let admit = |head: &Head| guard.check(head, &Route::of(head)?);
        match connection.turn(now, &mut self.scratch, admit) {
            Turn::Waits => {}
            Turn::Goes => drop(self.touched.insert(number)),
            Turn::Over => drop(self.connections.remove(&number)),
            Turn::Request(head, body) => {
                self.request(number, &head, body, now, jobs);
                // Its answer is written, if there is one already.
                self.touched.insert(number);
            }
        }
    }

    fn request(&mut self, number: u64, head: &Head, body: Vec<u8>, now: Duration, jobs: &Jobs) {
        let listening = self.listening();
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let route = match Route::of(head) {
            Ok(route) => route,
            // It was admitted, so it has one.
            Err(response) => return connection.answer(&response, now),
        };
        if let Some(response) = self.routes.at_once(&route, &self.guard) {
            return connection.answer(&response, now);
        }
        if route == Route::Events {
            return match listening < LISTENERS_MAX {
                true => connection.listen(now),
                false => {
                    let reason = format!("{LISTENERS_MAX} listen already");
                    connection.answer(&Response::error(503, reason), now);
                }
            };
        }
        let from = connection.from;
        if !jobs.take(Job { connection: number, route, body, from }) {
            let reason = "too many requests are waiting: ask again";
            connection.answer(&Response::error(503, reason), now);
        }
    }
}
