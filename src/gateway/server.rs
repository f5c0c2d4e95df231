//! The thread with the sockets of a gateway.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Token};

use super::authentication::Authenticator;
use super::connection::Connection;
use super::counts::Counts;
use super::read_only::Quorum;
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::Renewal;
use super::wire::frame::{FrameDecoder, Incoming};
use super::words;
use super::{GatewayBuilder, PAUSE, SWEEP};
use crate::runtime::mailbox::{Mailbox, Recipient};
use crate::runtime::port::{LISTENER, Port};
use crate::runtime::shared::NodeShared;
use crate::transport::SHORT_READ_DRAINS;
use crate::types::znode::Zxid;

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
    zxid: Zxid,
    authenticator: Authenticator,
    pub(super) counts: Counts,
    /// When it began.
    pub(super) since: Duration,
    pub(super) quorum: Quorum,
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
        Ok(Server {
            port,
            zxid: shared.tree().zxid(),
            shared,
            settings,
            mailbox,
            clients: BTreeMap::new(),
            from: BTreeMap::new(),
            authenticator,
            counts: Counts::default(),
            since,
            quorum: Quorum::default(),
            #[cfg(feature = "tls")]
            renewal: Renewal::new(since),
        })
    }

    /// Runs until the gateway is dropped or the node stops.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut swept = self.shared.clock.now();
        let mut looked = swept;
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
                            client.connection.broken |= event.is_error() || both;
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
            // Also done while some clients are busy.
            if now.saturating_sub(swept) >= SWEEP {
                swept = now;
                self.sweep(now);
            }
        }
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            self.drop_client(number);
        }
    }

    fn accept(&mut self) {
        loop {
            let (mut stream, from) = match self.port.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the gateway cannot accept a connection");
                    return;
                }
            };
            let ip = from.ip();
            let of_address = self.from.get(&ip).copied().unwrap_or(0);
            let most = match self.settings.connections_per_address_max {
                0 => usize::MAX,
                most => most,
            };
            if self.clients.len() >= self.settings.connections_max || of_address >= most {
                tracing::debug!(%from, "the gateway has no room for another client");
                continue;
            }
            let Ok(number) = self.port.register(&mut stream) else { continue };
            let stream = match Stream::open(stream, &self.settings) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::error!(%error, "the gateway cannot begin a connection");
                    continue;
                }
            };
            *self.from.entry(ip).or_default() += 1;
            let recipient = Recipient { mailbox: Arc::clone(&self.mailbox), connection: number };
            let (shared, authenticator) = (Arc::clone(&self.shared), self.authenticator.clone());
            let (settings, now) = (&self.settings, shared.clock.now());
            let most = settings.packet_bytes_max.min(HANDSHAKE_BYTES);
            let connection = Connection::new(recipient, shared, ip, settings, authenticator, now);
            let client = Client {
                stream,
                address: from,
                since: now,
                counts: Counts::default(),
                decoder: FrameDecoder::new(most, words::KNOWN),
                connection,
                readable: true,
                ended: false,
                greeted: false,
            };
            self.clients.insert(number, client);
            self.port.touched.insert(number);
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
            let read_only = self.quorum.is_missed;
            let taken = client.take_packets(now, &mut self.port.scratch, &mut word, read_only);
            let mut more = match taken {
                Ok(more) => more,
                Err(reason) => {
                    tracing::debug!(from = %client.connection.from, %reason, "a client is disconnected");
                    client.connection.broken = true;
                    false
                }
            };
            client.connection.flush(self.zxid);
            if client.stream.write(&mut client.connection.out).is_err() {
                client.connection.broken = true;
            }
            more |= was_full && client.connection.takes_requests();
            let held_back = client.connection.holds_back() && client.connection.out.is_empty();
            if client.connection.broken || !(more || held_back) {
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
        if let Some(word) = word {
            let answer = self.answer(word);
            if let Some(client) = self.clients.get_mut(&number) {
                client.connection.out.extend_from_slice(answer.as_bytes());
                client.connection.closes = true;
                let _ = client.stream.write(&mut client.connection.out);
            }
        }
        if self.clients.get(&number).is_some_and(Client::is_over) {
            self.drop_client(number);
        }
    }

    fn answer(&mut self, word: [u8; 4]) -> String {
        if !self.settings.words.contains(&word) {
            let word = String::from_utf8_lossy(&word);
            return format!("{word} is not executed because it is not in the whitelist.\n");
        }
        match &word {
            b"crst" => self.clients.values_mut().for_each(|of| of.counts = Counts::default()),
            b"srst" => self.counts = Counts::default(),
            _ => {}
        }
        words::answer(word, self)
    }

    /// Ends the sessions of clients that are silent.
    fn sweep(&mut self, now: Duration) {
        self.accept();
        if self.settings.read_only && self.quorum.look(&self.shared, now) {
            // These clients either have sessions and cannot be served, or have no sessions and could get
            // one. They connect again, here or elsewhere.
            for (number, client) in self.clients.iter_mut().filter(|(_, client)| client.greeted) {
                client.connection.broken = true;
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
            if let Some(client) = self.clients.get_mut(&number) {
                // A client whose socket is not read at present may not be silent: its session stays open.
                if client.connection.takes_requests() && !client.readable {
                    tracing::info!(from = %client.connection.from, "a client of the gateway is silent");
                    client.connection.expire();
                }
            }
            self.drop_client(number);
        }
        for number in std::mem::take(&mut self.port.touched) {
            self.serve(number, now);
        }
    }

    fn drop_client(&mut self, number: u64) {
        let Some(mut client) = self.clients.remove(&number) else { return };
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
}

impl Client {
    /// Takes the received packets, as far as the connection takes requests. Returns whether there may be
    /// more to do.
    fn take_packets(
        &mut self,
        now: Duration,
        scratch: &mut [u8],
        word: &mut Option<[u8; 4]>,
        read_only: bool,
    ) -> Result<bool, Cow<'static, str>> {
        let mut more = false;
        while self.connection.takes_requests() {
            match self.decoder.next_frame() {
                Ok(Some(Incoming::Word(asked))) => {
                    *word = Some(asked);
                    return Ok(false);
                }
                Ok(Some(Incoming::Frame(frame))) => {
                    more = true;
                    self.connection.counts.received += 1;
                    self.connection.last_received = now;
                    let taken = if self.greeted {
                        self.connection.request(frame)
                    } else {
                        self.greeted = true;
                        self.decoder.set_limit(self.connection.packet_bytes_max);
                        self.connection.certified = self.stream.certified();
                        let greeted = self.connection.handshake(frame, read_only);
                        greeted.map_err(|_| "no random numbers")?
                    };
                    if !taken {
                        return Err("a packet that cannot be answered".into());
                    }
                }
                Ok(None) => break,
                Err(_) => return Err("a length that is out of range".into()),
            }
        }
        if !self.readable || !self.connection.takes_requests() {
            return Ok(more);
        }
        match self.stream.read(scratch, self.decoder.buffer()) {
            Ok(0) => Err("its end of the connection is closed".into()),
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
            Err(error) => Err(format!("the connection is broken: {error}").into()),
        }
    }

    /// Whether it has had its last reply.
    fn is_over(&self) -> bool {
        self.connection.is_over() && (self.connection.broken || !self.stream.is_behind())
    }
}
