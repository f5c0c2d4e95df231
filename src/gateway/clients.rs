//! The clients of a gateway, as a state machine: it has no thread, socket or clock.
//!
//! [`server`](super::server) passes it what has arrived and the time, and the sockets as [`ByteStream`]s. It
//! decides who may connect, whose turn it is, what is read and written, and which connections end and why.
//! Seeded tests drive it in virtual time (`tests/seeded`).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;

use super::GatewayBuilder;
use super::admission::Admission;
use super::authentication::Authenticator;
use super::connection::ClientConnection;
use super::counts::{PacketCounts, Totals};
use super::ending::{Ending, Endings};
use super::memory::{self, Memory};
use super::output::Output;
use super::quorum::{Quorum, Service};
use super::turns::Turns;
use super::wire::frame::{DecodedPiece, FrameDecoder};
use super::wire::jute::Sink;
use super::words;
use crate::api::support::{Arrived, Mailbox, NodeShared, Recipient, SHORT_READ_DRAINS};
use crate::types::acl::Id;
use crate::types::znode::{SessionId, Zxid};

/// The longest first packet.
const HANDSHAKE_BYTES: usize = 1 << 10;
/// How many times one client is read and written before the next client's turn.
const ROUNDS_MAX: usize = 16;
/// How long a client may take for its first packet, including a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The bytes from and to a client. No call blocks.
pub(super) trait ByteStream {
    /// Reads once, through `scratch`, and appends received bytes to `to`; there may be none yet. Returns 0 at
    /// the end.
    fn read(&mut self, scratch: &mut [u8], to: &mut BytesMut) -> io::Result<usize>;

    /// Writes as much as is taken. The rest stays in `out`, or in the stream.
    fn write(&mut self, out: &mut Output) -> io::Result<()>;

    /// How many bytes wait in the stream to be written.
    fn len(&self) -> usize;

    /// Whether the client has announced that it sends nothing more, in what was read so far.
    fn is_closed(&self) -> bool;

    /// The client's id by its certificate, once it has sent anything.
    fn certified(&self) -> Option<Id>;
}

/// What a poll reports about a socket.
#[derive(Debug)]
pub(super) struct Readiness {
    pub(super) readable: bool,
    /// The client sends nothing more.
    pub(super) read_closed: bool,
    /// Why the connection ends, if it is broken.
    pub(super) failure: Option<Ending>,
}

/// The clients of one port: who is served next, and which connections end to bound the memory.
pub(super) struct Clients {
    pub(super) shared: Arc<NodeShared>,
    pub(super) settings: GatewayBuilder,
    /// The port's own address.
    pub(super) address: SocketAddr,
    mailbox: Arc<Mailbox>,
    pub(super) connected: BTreeMap<u64, GatewayClient>,
    pub(super) admission: Admission,
    memory: Arc<Memory>,
    /// What waits for each client alone, in all.
    own_bytes: usize,
    zxid: Zxid,
    authenticator: Authenticator,
    pub(super) totals: Totals,
    pub(super) endings: Endings,
    pub(super) quorum: Quorum,
    pub(super) turns: Turns,
    /// The connections that have ended, whose streams are to be closed.
    over: Vec<u64>,
}

pub(super) struct GatewayClient {
    pub(super) address: SocketAddr,
    /// When it connected.
    pub(super) since: Duration,
    pub(super) counts: PacketCounts,
    decoder: FrameDecoder,
    packet_bytes_max: usize,
    /// The bytes that wait in its stream.
    stream_bytes: usize,
    /// What waits for it alone, as the server has counted it.
    own_bytes: usize,
    pub(super) connection: ClientConnection,
    /// The socket may have more to read.
    readable: bool,
    /// The client sends nothing more.
    ended: bool,
    /// Why the connection ends when all is read that the client has sent: it is broken.
    failure: Option<Ending>,
    /// Why it may only send a four-letter word.
    refusal: Option<Ending>,
    greeted: bool,
}

impl Clients {
    pub(super) fn new(
        shared: Arc<NodeShared>,
        address: SocketAddr,
        settings: GatewayBuilder,
        mailbox: Arc<Mailbox>,
        authenticator: Authenticator,
        files_max: Option<usize>,
        now: Duration,
    ) -> Clients {
        let endings = Endings::default();
        // So that a monitor sees the first increase of each.
        endings.counts().for_each(|(reason, _)| shared.figures.count_ended(reason, 0));
        Clients {
            zxid: shared.tree().zxid(),
            shared,
            settings,
            address,
            mailbox,
            connected: BTreeMap::new(),
            admission: Admission::new(files_max),
            memory: Arc::default(),
            own_bytes: 0,
            authenticator,
            totals: Totals::new(now),
            endings,
            quorum: Quorum::default(),
            turns: Turns::new(now),
            over: Vec::new(),
        }
    }

    /// Whether a client may connect from this address, if the process has so many files `open`. If not, that is
    /// counted and logged.
    pub(super) fn admits(&mut self, from: SocketAddr, open: usize, now: Duration) -> bool {
        let connected = self.connected.len();
        let settings = &self.settings;
        let most = (settings.connections_max, settings.connections_per_address_max);
        let refusal = self.admission.refusal(from.ip(), connected, open, most);
        let Some(refusal) = refusal else { return true };
        self.ended(from, None, &refusal, now);
        false
    }

    /// A client has connected, with so many files open.
    pub(super) fn connect(&mut self, number: u64, from: SocketAddr, open: usize, now: Duration) {
        let refusal = self.admission.lacks_files(open);
        self.admission.connected(from.ip());
        let recipient = Recipient { mailbox: Arc::clone(&self.mailbox), connection: number };
        let (shared, authenticator) = (Arc::clone(&self.shared), self.authenticator.clone());
        let (settings, memory) = (&self.settings, Arc::clone(&self.memory));
        let most = settings.packet_bytes_max.min(HANDSHAKE_BYTES);
        let connection =
            ClientConnection::new(recipient, shared, from, settings, authenticator, memory, now);
        let client = GatewayClient {
            address: from,
            since: now,
            counts: PacketCounts::default(),
            decoder: FrameDecoder::new(most, words::KNOWN),
            packet_bytes_max: settings.packet_bytes_max,
            stream_bytes: 0,
            own_bytes: 0,
            connection,
            readable: true,
            ended: false,
            failure: None,
            refusal,
            greeted: false,
        };
        self.connected.insert(number, client);
        self.turns.touch(number);
    }

    /// A client's socket may be read or written, or is broken.
    pub(super) fn ready(&mut self, number: u64, readiness: Readiness) {
        if let Some(client) = self.connected.get_mut(&number) {
            client.ended |= readiness.read_closed;
            client.readable |= readiness.readable || client.ended;
            if let Some(failure) = readiness.failure {
                client.fail(failure);
            }
        }
        self.turns.touch(number);
    }

    /// A client's certificate is not accepted any more.
    #[cfg(feature = "tls")]
    pub(super) fn refuse(&mut self, number: u64, reason: String) {
        if let Some(client) = self.connected.get_mut(&number) {
            client.connection.end(Ending::Tls(reason));
            self.turns.touch(number);
        }
    }

    /// Takes what the node has sent, and lets all clients read and write to which something has happened.
    pub(super) fn turn<S: ByteStream>(
        &mut self,
        now: Duration,
        streams: &mut BTreeMap<u64, S>,
        scratch: &mut [u8],
    ) {
        let Arrived { deliveries, events, zxid } = self.mailbox.take();
        self.zxid = self.zxid.max(zxid);
        for (number, delivery) in deliveries {
            if let Some(client) = self.connected.get_mut(&number) {
                client.connection.take(delivery);
                self.turns.touch(number);
            }
        }
        for (number, watch, event) in events {
            if let Some(client) = self.connected.get_mut(&number) {
                client.connection.events.push(watch, event);
                self.turns.touch(number);
            }
        }
        if self.turns.begin(now) {
            // This thread was delayed. Bytes that clients have sent in the meantime are still to be
            // read, so their silence proves nothing.
            for client in self.connected.values_mut() {
                client.connection.session.last_received = now;
            }
        }
        self.serve_touched(now, streams, scratch);
        self.bound_memory(now);
    }

    /// Looks whether there is a quorum, and ends the sessions of clients that are silent.
    pub(super) fn sweep<S: ByteStream>(
        &mut self,
        now: Duration,
        streams: &mut BTreeMap<u64, S>,
        scratch: &mut [u8],
    ) {
        self.turns.swept(now);
        self.endings.note_rest(now);
        if self.quorum.look(&self.shared, self.settings.read_only, now) {
            // These clients either have sessions and cannot be served, or have no sessions and could get
            // one. They connect again, here or elsewhere.
            for (number, client) in self.connected.iter_mut().filter(|(_, client)| client.greeted) {
                client.connection.end(Ending::QuorumChanged);
                self.turns.touch(*number);
            }
        }
        let silent = |(number, client): (&u64, &GatewayClient)| {
            let is_busy = self.turns.is_touched(*number);
            (!is_busy && client.connection.session.is_silent(now, HANDSHAKE)).then_some(*number)
        };
        for number in self.connected.iter().filter_map(silent).collect::<Vec<_>>() {
            let Some(client) = self.connected.get(&number) else { continue };
            // A client whose socket is not read at present may not be silent: its session stays open.
            let is_read = client.connection.takes_requests() && !client.readable;
            let ending = match client.connection.session.get() {
                None => Ending::NoFirstPacket(HANDSHAKE),
                Some(session) if is_read => Ending::Silent(session.timeout()),
                Some(session) => Ending::Unread(session.timeout()),
            };
            self.drop_client(number, ending, now);
        }
        self.serve_touched(now, streams, scratch);
    }

    /// Ends all connections.
    pub(super) fn stop(&mut self, now: Duration) {
        for number in self.connected.keys().copied().collect::<Vec<_>>() {
            self.drop_client(number, Ending::Stopped, now);
        }
        self.endings.note_rest(Duration::MAX);
    }

    /// The connections that have ended since the last call. Their streams are to be closed.
    pub(super) fn take_over(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.over)
    }

    fn serve_touched<S: ByteStream>(
        &mut self,
        now: Duration,
        streams: &mut BTreeMap<u64, S>,
        scratch: &mut [u8],
    ) {
        for number in self.turns.take() {
            if let Some(stream) = streams.get_mut(&number) {
                self.serve(number, stream, scratch, now);
            }
        }
    }

    /// Reads requests, sends them to the node, and writes replies, as far as possible without
    /// blocking.
    fn serve<S: ByteStream>(
        &mut self,
        number: u64,
        stream: &mut S,
        scratch: &mut [u8],
        now: Duration,
    ) {
        let Some(client) = self.connected.get_mut(&number) else { return };
        let mut word = None;
        let mut rounds = 0;
        loop {
            let was_full = !client.connection.takes_requests();
            let service = self.quorum.service();
            let taken = client.take_packets(now, stream, scratch, &mut word, service);
            let mut more = match taken {
                Ok(more) => more,
                Err(ending) => {
                    client.connection.end(ending);
                    false
                }
            };
            client.connection.flush(self.zxid, now);
            if client.failure.is_none()
                && let Err(error) = stream.write(&mut client.connection.out)
            {
                client.fail(error.into());
                more = true;
            }
            if let Some(failure) = client.failure.clone()
                && !(more && client.connection.takes_requests())
            {
                client.connection.end(failure);
            }
            more |= was_full && client.connection.takes_requests();
            let held_back = client.connection.holds_back() && client.connection.out.is_empty();
            if client.connection.is_ended() || !(more || held_back) {
                break;
            }
            rounds += 1;
            if rounds == ROUNDS_MAX {
                self.turns.touch(number);
                break;
            }
        }
        let fresh = std::mem::take(&mut client.connection.counts);
        client.counts.add(&fresh);
        self.totals.counts.add(&fresh);
        if let Some((word, argument)) = word {
            let answer = self.answer(word, argument);
            if let Some(client) = self.connected.get_mut(&number) {
                client.connection.out.put_slice(answer.as_bytes());
                client.connection.out.end_frame();
                client.connection.close(Ending::Word);
                let _ = stream.write(&mut client.connection.out);
            }
        }
        if let Some(client) = self.connected.get_mut(&number) {
            client.stream_bytes = stream.len();
            let own = client.count();
            self.own_bytes = self.own_bytes - std::mem::replace(&mut client.own_bytes, own) + own;
        }
        if self.connected.get(&number).is_some_and(GatewayClient::is_over) {
            // The client's connection is over for a reason.
            self.drop_client(number, Ending::ClientLeft, now);
        }
    }

    /// Disconnects the clients that hold most, until all of them together are within the bound.
    fn bound_memory(&mut self, now: Duration) {
        let limit = self.settings.buffer_bytes_max;
        if self.held_bytes() <= limit {
            return;
        }
        let weight = |(number, client): (&u64, &GatewayClient)| (client.weight(), *number);
        let mut fattest: Vec<(usize, u64)> = self.connected.iter().map(weight).collect();
        fattest.retain(|(bytes, _)| *bytes >= memory::LEAST);
        fattest.sort_unstable();
        while self.held_bytes() > limit
            && let Some((bytes, number)) = fattest.pop()
        {
            self.drop_client(number, Ending::Memory { bytes, limit }, now);
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
            b"crst" => {
                self.connected.values_mut().for_each(|of| of.counts = PacketCounts::default())
            }
            b"srst" => self.totals.counts = PacketCounts::default(),
            b"stmk" => self.totals.trace_mask = argument.unwrap_or(self.totals.trace_mask),
            _ => {}
        }
        words::answer(word, self)
    }

    /// Closes a connection, for this reason if it has none of its own.
    fn drop_client(&mut self, number: u64, ending: Ending, now: Duration) {
        let Some(mut client) = self.connected.remove(&number) else { return };
        let session = client.connection.session.get().map(|session| session.id);
        let ending = client.connection.ending().cloned().unwrap_or(ending);
        self.ended(client.address, session, &ending, now);
        if matches!(ending, Ending::Silent(_)) {
            client.connection.session.expire(&self.shared);
        }
        self.own_bytes -= client.own_bytes;
        self.over.push(number);
        client.connection.leave();
        self.admission.left(client.address.ip());
    }

    /// Counts and logs the end of a connection.
    pub(super) fn ended(
        &mut self,
        from: SocketAddr,
        session: Option<SessionId>,
        ending: &Ending,
        now: Duration,
    ) {
        self.shared.figures.count_ended(ending.reason(), 1);
        self.endings.note(from, session, ending, now);
    }
}

impl GatewayClient {
    /// About how many bytes wait for it alone.
    fn count(&self) -> usize {
        self.connection.own_bytes() + self.decoder.len() + self.stream_bytes
    }

    /// About how many bytes it holds, as if it shared none of them.
    fn weight(&self) -> usize {
        self.connection.weight() + self.decoder.len() + self.stream_bytes
    }

    /// Takes the received packets, as far as the connection takes requests. Returns whether there may be
    /// more to do.
    fn take_packets(
        &mut self,
        now: Duration,
        stream: &mut impl ByteStream,
        scratch: &mut [u8],
        word: &mut Option<([u8; 4], Option<i64>)>,
        service: Service,
    ) -> Result<bool, Ending> {
        let mut more = false;
        while self.connection.takes_requests() {
            match self.decoder.next_frame() {
                Ok(Some(DecodedPiece::Word(asked, argument))) => {
                    *word = Some((asked, argument));
                    return Ok(false);
                }
                Ok(Some(DecodedPiece::Frame(frame))) => {
                    more = true;
                    self.connection.counts.received += 1;
                    self.connection.taken.arrived = now;
                    if self.greeted {
                        if !self.connection.request(frame) {
                            return Err(Ending::Unreadable);
                        }
                    } else {
                        if let Some(refusal) = self.refusal.take() {
                            return Err(refusal);
                        }
                        self.greeted = true;
                        self.connection.session.last_received = now;
                        self.decoder.set_limit(self.packet_bytes_max);
                        self.connection.identity.certified = stream.certified();
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
        match stream.read(scratch, self.decoder.buffer()) {
            Ok(0) => Err(self.failure.clone().unwrap_or(Ending::ClientLeft)),
            Ok(read) => {
                let ended = self.ended || stream.is_closed();
                self.readable = ended || read == scratch.len() || !SHORT_READ_DRAINS;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(more)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(self.failure.clone().unwrap_or_else(|| error.into())),
        }
    }

    /// The connection is broken. It ends when all is read that had arrived before: the client may have closed its
    /// session in its last packet.
    fn fail(&mut self, failure: Ending) {
        self.failure.get_or_insert(failure);
        self.readable = true;
    }

    /// Whether it has had its last reply.
    fn is_over(&self) -> bool {
        self.connection.is_over() && (self.connection.is_ended() || self.stream_bytes == 0)
    }
}

#[cfg(test)]
impl Clients {
    /// Checks what is true after each turn.
    pub(super) fn check_bounds(&self) {
        let of_clients =
            |of: fn(&GatewayClient) -> usize| self.connected.values().map(of).sum::<usize>();
        assert_eq!(self.own_bytes, of_clients(|client| client.own_bytes), "the sum is kept");
        let (held, limit) = (self.held_bytes(), self.settings.buffer_bytes_max);
        let heaviest = self.connected.values().map(GatewayClient::weight).max().unwrap_or(0);
        assert!(held <= limit || heaviest < memory::LEAST, "{held} bytes wait for clients");
        assert_eq!(self.admission.count(), self.connected.len(), "each connection is counted");
        for client in self.connected.values() {
            client.connection.check_bounds();
        }
    }
}
