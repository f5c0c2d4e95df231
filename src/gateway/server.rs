//! The thread with the sockets of a gateway.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Token};

use super::authentication::Authenticator;
use super::connection::Connection;
use super::counts::Counts;
use super::ending::{Ending, Endings};
use super::files;
use super::memory::{self, Memory};
use super::quorum::{Quorum, Service};
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::Renewal;
use super::wire::frame::{FrameDecoder, Incoming};
use super::wire::jute::Sink;
use super::words;
use super::{GatewayBuilder, PAUSE, SWEEP};
use crate::runtime::mailbox::{Mailbox, Recipient};
use crate::runtime::port::{LISTENER, Port};
use crate::runtime::shared::NodeShared;
use crate::transport::SHORT_READ_DRAINS;
use crate::types::warnings::Warnings;
use crate::types::znode::{SessionId, Zxid};

/// The longest first packet.
const HANDSHAKE_BYTES: usize = 1 << 10;
/// How many times one client is read and written before the next client's turn.
const ROUNDS_MAX: usize = 16;
/// How long a client may take for its first packet, including a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

pub(super) struct Server {
    pub(super) port: Port,
    pub(super) shared: Arc<NodeShared>,
    pub(super) settings: GatewayBuilder,
    mailbox: Arc<Mailbox>,
    pub(super) clients: BTreeMap<u64, Client>,
    from: BTreeMap<IpAddr, usize>,
    /// How many files the process could have open when that was last looked up.
    files_max: Option<usize>,
    no_files: Warnings<Duration>,
    memory: Arc<Memory>,
    /// What waits for each client alone, in all.
    own_bytes: usize,
    zxid: Zxid,
    authenticator: Authenticator,
    pub(super) counts: Counts,
    pub(super) endings: Endings,
    /// When it began.
    pub(super) since: Duration,
    pub(super) quorum: Quorum,
    /// What clients have set by `stmk`. It has no effect.
    pub(super) trace_mask: i64,
    #[cfg(feature = "tls")]
    renewal: Renewal,
}

pub(super) struct Client {
    stream: Stream,
    pub(super) address: SocketAddr,
    /// When it connected.
    pub(super) since: Duration,
    pub(super) counts: Counts,
    decoder: FrameDecoder,
    /// What waits for it alone, as the server has counted it.
    own_bytes: usize,
    pub(super) connection: Connection,
    /// The socket may have more to read.
    readable: bool,
    /// The client sends nothing more.
    ended: bool,
    greeted: bool,
}

impl Server {
    pub(super) fn bind(
        shared: Arc<NodeShared>,
        address: SocketAddr,
        settings: GatewayBuilder,
    ) -> io::Result<Server> {
        let port = Port::bind(address)?;
        let authenticator = Authenticator::start(Arc::clone(&shared))?;
        let waker = port.waker();
        let mailbox = Arc::new(Mailbox::new(move || drop(waker.wake())));
        let since = shared.clock.now();
        let endings = Endings::default();
        // So that a monitor sees the first increase of each.
        endings.counts().for_each(|(reason, _)| shared.count_ended(reason, 0));
        Ok(Server {
            port,
            zxid: shared.tree().zxid(),
            shared,
            settings,
            mailbox,
            clients: BTreeMap::new(),
            from: BTreeMap::new(),
            files_max: files::files_max(),
            no_files: Warnings::default(),
            memory: Arc::default(),
            own_bytes: 0,
            authenticator,
            counts: Counts::default(),
            endings,
            since,
            quorum: Quorum::default(),
            trace_mask: words::TRACE_MASK,
            #[cfg(feature = "tls")]
            renewal: Renewal::new(since),
        })
    }

    /// Runs until the gateway is dropped or the node stops.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut swept = self.shared.clock.now();
        let mut looked = swept;
        let (room, most) = (self.files_max.map(files::room), self.settings.connections_max);
        if let Some(room) = room.filter(|room| *room < most) {
            tracing::warn!(
                connections_max = most,
                "the gateway takes only {room} clients, because the process may have {} files open: raise that \
                 limit (ulimit -n, LimitNOFILE of systemd)",
                self.files_max.unwrap_or(0)
            );
        }
        while !self.port.is_stopped() && self.shared.stopped().is_none() {
            if let Err(error) = self.port.wait(&mut events, PAUSE) {
                tracing::error!(%error, "the gateway stops: its sockets cannot be waited for");
                break;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    Token(number) => {
                        let number = number as u64;
                        if let Some(client) = self.clients.get_mut(&number) {
                            client.ended |= event.is_read_closed();
                            client.readable |= event.is_readable() || client.ended;
                            let both = event.is_read_closed() && event.is_write_closed();
                            if event.is_error() || both {
                                let error = client.stream.socket.take_error().ok().flatten();
                                client
                                    .connection
                                    .end(error.map_or(Ending::ClientLeft, Ending::from));
                            }
                            self.port.touched.insert(number);
                        }
                    }
                }
            }
            let arrived = self.mailbox.take();
            self.zxid = self.zxid.max(arrived.zxid);
            for (number, delivery) in arrived.deliveries {
                if let Some(client) = self.clients.get_mut(&number) {
                    client.connection.take(delivery);
                    self.port.touched.insert(number);
                }
            }
            for (number, watch, event) in arrived.events {
                if let Some(client) = self.clients.get_mut(&number) {
                    client.connection.take_event(watch, event);
                    self.port.touched.insert(number);
                }
            }
            let now = self.shared.clock.now();
            if now.saturating_sub(looked) > SWEEP {
                // This thread was delayed. Bytes that clients have sent in the meantime are still to be
                // read, so their silence proves nothing.
                self.clients.values_mut().for_each(|client| client.connection.last_received = now);
            }
            looked = now;
            for number in std::mem::take(&mut self.port.touched) {
                self.serve(number, now);
            }
            self.bound_memory();
            // Also done while some clients are busy.
            if now.saturating_sub(swept) >= SWEEP {
                swept = now;
                self.sweep(now);
            }
        }
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            self.drop_client(number, Ending::Stopped);
        }
        self.endings.note_rest(Duration::MAX);
    }

    fn accept(&mut self) {
        loop {
            let (mut stream, from) = match self.port.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                // Waiting clients are accepted at the next sweep.
                Err(error) => return self.cannot_accept(&error),
            };
            let ip = from.ip();
            let of_address = self.from.get(&ip).copied().unwrap_or(0);
            let most = match self.settings.connections_per_address_max {
                0 => usize::MAX,
                most => most,
            };
            let all = self.settings.connections_max;
            if self.clients.len() >= all {
                self.ended(from, None, &Ending::TooMany { most: all });
                continue;
            }
            if let Some(files) = self.files_max
                && self.clients.len() >= files::room(files)
            {
                let most = self.clients.len();
                self.ended(from, None, &Ending::TooManyFiles { most, files });
                continue;
            }
            if of_address >= most {
                self.ended(from, None, &Ending::TooManyOfAddress { most });
                continue;
            }
            let registered = self.port.register(&mut stream);
            let opened =
                registered.and_then(|number| Ok((number, Stream::open(stream, &self.settings)?)));
            let (number, stream) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    self.ended(from, None, &Ending::Failure(error.to_string().into()));
                    continue;
                }
            };
            *self.from.entry(ip).or_default() += 1;
            let recipient = Recipient { mailbox: Arc::clone(&self.mailbox), connection: number };
            let (shared, authenticator) = (Arc::clone(&self.shared), self.authenticator.clone());
            let (settings, now) = (&self.settings, shared.clock.now());
            let most = settings.packet_bytes_max.min(HANDSHAKE_BYTES);
            let memory = Arc::clone(&self.memory);
            let connection =
                Connection::new(recipient, shared, from, settings, authenticator, memory, now);
            let client = Client {
                stream,
                address: from,
                since: now,
                counts: Counts::default(),
                decoder: FrameDecoder::new(most, words::KNOWN),
                own_bytes: 0,
                connection,
                readable: true,
                ended: false,
                greeted: false,
            };
            self.clients.insert(number, client);
            self.port.touched.insert(number);
        }
    }

    fn cannot_accept(&mut self, error: &io::Error) {
        let Some(suppressed) = self.no_files.permit(self.shared.clock.now()) else { return };
        if files::is_exhausted(error) {
            self.files_max = files::files_max();
            tracing::warn!(
                %error, suppressed, connections = self.clients.len(), limit = self.files_max,
                "the gateway cannot accept further clients before others leave, because the process has too many \
                 files open: raise that limit (ulimit -n, LimitNOFILE of systemd), or lower connections_max \
                 (--max-cnxns)"
            );
        } else {
            tracing::warn!(%error, suppressed, "the gateway cannot accept a connection");
        }
    }

    /// Reads requests, sends them to the node, and writes replies, as far as possible without
    /// blocking.
    fn serve(&mut self, number: u64, now: Duration) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let mut word = None;
        let mut rounds = 0;
        loop {
            let was_full = !client.connection.takes_requests();
            let service = self.quorum.service();
            let taken = client.take_packets(now, &mut self.port.scratch, &mut word, service);
            let mut more = match taken {
                Ok(more) => more,
                Err(ending) => {
                    client.connection.end(ending);
                    false
                }
            };
            client.connection.flush(self.zxid);
            if let Err(error) = client.stream.write(&mut client.connection.out) {
                client.connection.end(error.into());
            }
            more |= was_full && client.connection.takes_requests();
            let held_back = client.connection.holds_back() && client.connection.out.is_empty();
            if client.connection.is_ended() || !(more || held_back) {
                break;
            }
            rounds += 1;
            if rounds == ROUNDS_MAX {
                self.port.touched.insert(number);
                break;
            }
        }
        let fresh = std::mem::take(&mut client.connection.counts);
        client.counts.add(&fresh);
        self.counts.add(&fresh);
        if let Some((word, argument)) = word {
            let answer = self.answer(word, argument);
            if let Some(client) = self.clients.get_mut(&number) {
                client.connection.out.put_slice(answer.as_bytes());
                client.connection.close(Ending::Word);
                let _ = client.stream.write(&mut client.connection.out);
            }
        }
        if let Some(client) = self.clients.get_mut(&number) {
            let own = client.count();
            self.own_bytes = self.own_bytes - std::mem::replace(&mut client.own_bytes, own) + own;
        }
        if self.clients.get(&number).is_some_and(Client::is_over) {
            // The client's connection is over for a reason.
            self.drop_client(number, Ending::ClientLeft);
        }
    }

    /// Disconnects the clients that hold most, until all of them together are within the bound.
    fn bound_memory(&mut self) {
        let limit = self.settings.buffer_bytes_max;
        if self.held_bytes() <= limit {
            return;
        }
        let weight = |(number, client): (&u64, &Client)| (client.weight(), *number);
        let mut fattest: Vec<(usize, u64)> = self.clients.iter().map(weight).collect();
        fattest.retain(|(bytes, _)| *bytes >= memory::LEAST);
        fattest.sort_unstable();
        while self.held_bytes() > limit
            && let Some((bytes, number)) = fattest.pop()
        {
            self.drop_client(number, Ending::Memory { bytes, limit });
        }
    }

    /// About how many bytes wait for all clients, each that they share counted once.
    pub(super) fn held_bytes(&self) -> usize {
        self.own_bytes + self.memory.bytes() + self.mailbox.event_bytes()
    }

    fn answer(&mut self, word: [u8; 4], argument: Option<i64>) -> String {
        if !self.settings.words.contains(&word) {
            let word = String::from_utf8_lossy(&word);
            return format!("{word} is not executed because it is not in the whitelist.\n");
        }
        if self.quorum.service() == Service::Refused && !words::ALWAYS.contains(&word) {
            return words::NOT_SERVING.to_owned();
        }
        match &word {
            b"crst" => self.clients.values_mut().for_each(|of| of.counts = Counts::default()),
            b"srst" => self.counts = Counts::default(),
            b"stmk" => self.trace_mask = argument.unwrap_or(self.trace_mask),
            _ => {}
        }
        words::answer(word, self)
    }

    /// Ends the sessions of clients that are silent.
    fn sweep(&mut self, now: Duration) {
        self.accept();
        self.endings.note_rest(now);
        if self.files_max.is_some_and(|files| self.clients.len() >= files::room(files)) {
            self.files_max = files::files_max();
        }
        if self.quorum.look(&self.shared, self.settings.read_only, now) {
            // These clients either have sessions and cannot be served, or have no sessions and could get
            // one. They connect again, here or elsewhere.
            for (number, client) in self.clients.iter_mut().filter(|(_, client)| client.greeted) {
                client.connection.end(Ending::QuorumChanged);
                self.port.touched.insert(*number);
            }
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.settings.tls {
            self.renewal.renew(tls, now);
        }
        let silent = |(number, client): (&u64, &Client)| {
            let is_busy = self.port.touched.contains(number);
            (!is_busy && client.connection.is_silent(now, HANDSHAKE)).then_some(*number)
        };
        for number in self.clients.iter().filter_map(silent).collect::<Vec<_>>() {
            let Some(client) = self.clients.get(&number) else { continue };
            // A client whose socket is not read at present may not be silent: its session stays open.
            let is_read = client.connection.takes_requests() && !client.readable;
            let ending = match &client.connection.session {
                None => Ending::NoFirstPacket(HANDSHAKE),
                Some(session) if is_read => Ending::Silent(session.timeout()),
                Some(session) => Ending::Unread(session.timeout()),
            };
            self.drop_client(number, ending);
        }
        for number in std::mem::take(&mut self.port.touched) {
            self.serve(number, now);
        }
    }

    /// Closes a connection, for this reason if it has none of its own.
    fn drop_client(&mut self, number: u64, ending: Ending) {
        let Some(mut client) = self.clients.remove(&number) else { return };
        let session = client.connection.session.as_ref().map(|session| session.id);
        let ending = client.connection.ending().cloned().unwrap_or(ending);
        self.ended(client.address, session, &ending);
        if matches!(ending, Ending::Silent(_)) {
            client.connection.expire();
        }
        self.own_bytes -= client.own_bytes;
        client.stream.close();
        self.port.deregister(&mut client.stream.socket);
        client.connection.leave();
        if let Some(count) = self.from.get_mut(&client.connection.from) {
            *count -= 1;
            if *count == 0 {
                self.from.remove(&client.connection.from);
            }
        }
    }

    /// Counts and logs the end of a connection.
    fn ended(&mut self, from: SocketAddr, session: Option<SessionId>, ending: &Ending) {
        self.shared.count_ended(ending.reason(), 1);
        self.endings.note(from, session, ending, self.shared.clock.now());
    }
}

impl Client {
    /// About how many bytes wait for it alone.
    fn count(&self) -> usize {
        self.connection.own_bytes() + self.decoder.len() + self.stream.len()
    }

    /// About how many bytes it holds, as if it shared none of them.
    fn weight(&self) -> usize {
        self.connection.weight() + self.decoder.len() + self.stream.len()
    }

    /// Takes the received packets, as far as the connection takes requests. Returns whether there may be
    /// more to do.
    fn take_packets(
        &mut self,
        now: Duration,
        scratch: &mut [u8],
        word: &mut Option<([u8; 4], Option<i64>)>,
        service: Service,
    ) -> Result<bool, Ending> {
        let mut more = false;
        while self.connection.takes_requests() {
            match self.decoder.next_frame() {
                Ok(Some(Incoming::Word(asked, argument))) => {
                    *word = Some((asked, argument));
                    return Ok(false);
                }
                Ok(Some(Incoming::Frame(frame))) => {
                    more = true;
                    self.connection.counts.received += 1;
                    self.connection.arrived = now;
                    if self.greeted {
                        if !self.connection.request(frame) {
                            return Err(Ending::Unreadable);
                        }
                    } else {
                        self.greeted = true;
                        self.connection.last_received = now;
                        self.decoder.set_limit(self.connection.packet_bytes_max);
                        self.connection.certified = self.stream.certified();
                        if service == Service::Refused {
                            return Err(Ending::NeedsQuorum);
                        }
                        self.connection.handshake(frame, service == Service::ReadOnly)?;
                    }
                }
                Ok(None) => break,
                Err(_) if !self.greeted => return Err(Ending::Foreign),
                Err(error) => return Err(error.into()),
            }
        }
        if !self.readable || !self.connection.takes_requests() {
            return Ok(more);
        }
        match self.stream.read(scratch, self.decoder.buffer()) {
            Ok(0) => Err(Ending::ClientLeft),
            Ok(read) => {
                let ended = self.ended || self.stream.is_closed();
                self.readable = ended || read == scratch.len() || !SHORT_READ_DRAINS;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(more)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it has had its last reply.
    fn is_over(&self) -> bool {
        self.connection.is_over() && (self.connection.is_ended() || !self.stream.is_behind())
    }
}
