//! The thread with the sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::{Events, Token};

use super::connection::{AdminConnection, TurnOutcome};
use super::events::Listeners;
use super::guard::Guard;
use super::http::{RequestHead, Response};
use super::routes::{Route, RouteOutcome, Routes};
use super::workers::{Jobs, Outbox, ServerMessage, WorkerRequest};
use crate::api::coordinator::Coordinator;
use crate::api::support::files;
use crate::runtime::clock::Clock;
use crate::runtime::port::{LISTENER, Port};
use crate::types::right::Right;

/// The most connections. A further one replaces the connection that has been idle for longest or, if none is idle, the
/// one whose client has read nothing for longest.
const CONNECTIONS_MAX: usize = 256;
/// The same while the process has few files left.
const CONNECTIONS_FEW: usize = 8;
/// How long a client must have read nothing before its connection is replaced.
const UNREAD_MIN: Duration = Duration::from_secs(1);
/// The most connections that may listen to events.
const LISTENERS_MAX: usize = 32;
/// How often connections are checked for exceeded time limits.
const SWEEP: Duration = Duration::from_millis(500);
pub(super) struct AdminServer {
    pub(super) port: Port,
    clock: Clock,
    guard: Guard,
    routes: Arc<Routes>,
    outbox: Outbox,
    messages: Receiver<ServerMessage>,
    connections: BTreeMap<u64, AdminConnection>,
}

impl AdminServer {
    pub(super) fn bind(
        address: SocketAddr,
        guard: Guard,
        routes: Arc<Routes>,
        coordinator: &Coordinator,
    ) -> io::Result<AdminServer> {
        let port = Port::bind(address)?;
        let (sender, messages) = unbounded();
        Ok(AdminServer {
            clock: coordinator.shared().clock.clone(),
            guard,
            routes,
            outbox: Outbox { sender, waker: port.waker() },
            port,
            messages,
            connections: BTreeMap::new(),
        })
    }

    pub(super) fn outbox(&self) -> Outbox {
        self.outbox.clone()
    }

    /// Runs until the endpoint is dropped. The other threads end when `jobs`, `listeners` and `sampling` are dropped.
    pub(super) fn run(mut self, jobs: Jobs, listeners: Listeners, sampling: Sender<()>) {
        let mut events = Events::with_capacity(256);
        let mut swept = self.clock.now();
        while !self.port.is_stopped() {
            if let Err(error) = self.port.wait(&mut events, SWEEP) {
                tracing::error!(%error, "the admin endpoint stops: its sockets cannot be waited for");
                break;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    Token(number) => {
                        let number = number as u64;
                        if let Some(connection) = self.connections.get_mut(&number) {
                            connection.readable |=
                                event.is_readable() || event.is_read_closed() || event.is_error();
                            self.port.touched.insert(number);
                        }
                    }
                }
            }
            let now = self.clock.now();
            while let Ok(message) = self.messages.try_recv() {
                self.take(message, now);
            }
            for number in std::mem::take(&mut self.port.touched) {
                self.turn(number, now, &jobs);
            }
            if now.saturating_sub(swept) >= SWEEP {
                swept = now;
                self.guard.wrong_tokens.log(now);
                self.connections.retain(|_, connection| !connection.is_late(now));
                // The poll does not report again the connections that arrived while there were no
                // descriptors.
                self.accept();
            }
            listeners.set(self.listening());
        }
        drop(sampling);
    }

    fn listening(&self) -> usize {
        self.connections.values().filter(|connection| connection.listens()).count()
    }

    fn accept(&mut self) {
        loop {
            let (mut stream, from) = match self.port.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the admin endpoint cannot accept a connection");
                    return;
                }
            };
            let room = files::files_max().map(|most| files::room(most, Right::Operator));
            let is_short = room.is_some_and(|room| files::open_files(&stream) >= room);
            let most = if is_short { CONNECTIONS_FEW } else { CONNECTIONS_MAX };
            if self.connections.len() >= most && !self.make_room() {
                continue;
            }
            if let Ok(number) = self.port.register(&mut stream) {
                let connection = AdminConnection::new(stream, from, self.clock.now());
                self.connections.insert(number, connection);
                self.port.touched.insert(number);
            }
        }
    }

    /// Closes the connection that has been without a request for longest or, if there is none, the one whose client
    /// has read nothing for longest.
    fn make_room(&mut self) -> bool {
        let now = self.clock.now();
        let longest = |since: fn(&AdminConnection) -> Option<Duration>| {
            let all = self.connections.iter();
            all.filter_map(|(number, connection)| Some((since(connection)?, *number))).min()
        };
        let unread = || {
            let unread = longest(AdminConnection::unread_since);
            unread.filter(|(since, _)| now.saturating_sub(*since) >= UNREAD_MIN)
        };
        let replaced = longest(AdminConnection::idle_since).or_else(unread);
        replaced.is_some_and(|(_, number)| self.connections.remove(&number).is_some())
    }

    fn take(&mut self, message: ServerMessage, now: Duration) {
        match message {
            ServerMessage::Done(number, outcome) => {
                // The connection may be closed by now.
                let Some(connection) = self.connections.get_mut(&number) else { return };
                match outcome {
                    RouteOutcome::Response(response) => connection.answer(&response, now),
                    RouteOutcome::Backup(backup) => connection.answer_with(backup, now),
                }
                self.port.touched.insert(number);
            }
            ServerMessage::Event(event) => {
                let touched = &mut self.port.touched;
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
        let (guard, from) = (&mut self.guard, connection.from);
        let admit = |head: &RequestHead| guard.check(head, &Route::of(head)?, from, now);
        match connection.turn(now, &mut self.port.scratch, admit) {
            TurnOutcome::Waits => {}
            TurnOutcome::Goes => drop(self.port.touched.insert(number)),
            TurnOutcome::Over => drop(self.connections.remove(&number)),
            TurnOutcome::Request(head, body) => {
                self.request(number, &head, body, now, jobs);
                // Writes its response, if there is one already.
                self.port.touched.insert(number);
            }
        }
    }

    fn request(
        &mut self,
        number: u64,
        head: &RequestHead,
        body: Vec<u8>,
        now: Duration,
        jobs: &Jobs,
    ) {
        let listening = self.listening();
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let route = match Route::of(head) {
            Ok(route) => route,
            // An admitted request has a route.
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
        if !jobs.take(WorkerRequest { connection: number, route, body, from }) {
            let reason = "too many requests are waiting: ask again";
            connection.answer(&Response::error(503, reason), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::guard::WrongTokens;
    use super::super::session::AdminSession;
    use super::*;
    use crate::testing::Cluster;

    /// 256 clients that asked for the page and did not read it left no room for anybody else.
    #[test]
    fn a_client_that_reads_nothing_is_replaced() {
        let cluster = Cluster::new(1);
        let coordinator = cluster.node(0);
        let session = Arc::new(AdminSession::new(coordinator.clone(), Vec::new()));
        let routes = Arc::new(Routes::new(coordinator.clone(), session));
        let guard = Guard { token: None, writable: false, wrong_tokens: WrongTokens::default() };
        let address = "127.0.0.1:0".parse().unwrap();
        let mut server = AdminServer::bind(address, guard, routes, &coordinator).unwrap();
        let address = server.port.serving(coordinator.shared()).address();
        let connect = || std::net::TcpStream::connect(address).unwrap();
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            clients.push(connect());
            server.accept();
        }
        let numbers = |server: &AdminServer| server.connections.keys().copied().collect::<Vec<_>>();
        let all = numbers(&server);
        assert_eq!(all.len(), CONNECTIONS_MAX);
        let begun = server.clock.now() + UNREAD_MIN;
        for connection in server.connections.values_mut() {
            connection.answer(&Response::new("text/plain", *b"unread"), begun);
        }
        // They may be about to read.
        clients.push(connect());
        server.accept();
        assert_eq!(numbers(&server), all);

        cluster.advance(2 * UNREAD_MIN);
        clients.push(connect());
        server.accept();
        let after = numbers(&server);
        assert_eq!((after.len(), &after[..after.len() - 1]), (all.len(), &all[1..]));
    }
}
