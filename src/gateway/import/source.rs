//! The connection with the source: pipelined requests, at one server after the other.
//!
//! All requests are reads, so requests that a lost server has not answered are sent again to the next one.
//! Each connection has a session of its own. It presents the last zxid that was seen, so that a server that
//! is behind refuses it, and the tree never goes back.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::ImportError;
use crate::gateway::wire::codes::ReservedXid;
use crate::gateway::wire::frame::{BadLength, DecodedPiece, FrameDecoder, append_frame};
use crate::gateway::wire::handshake::{ConnectRequest, ConnectResponse, PASSWORD_BYTES};
use crate::gateway::wire::jute::{Credential, Jute, Unreadable};
use crate::gateway::wire::request::{Auth, Request};
use crate::gateway::wire::response::ReplyHeader;

const DEFAULT_PORT: &str = "2181";
/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a server may take until it sends more of a reply.
const ANSWER: Duration = Duration::from_secs(20);
/// The session timeout that is requested.
const SESSION_TIMEOUT_MS: i32 = 30_000;
/// How many times all servers are tried for one set of requests, with a pause before each round but the
/// first.
const ROUNDS: usize = 10;
const PAUSE: Duration = Duration::from_secs(1);
/// Requests of at most so many bytes are written before their replies are read. They fit into any socket's
/// buffers, so that the two sides never wait for each other to read.
const WINDOW_BYTES: usize = 16 << 10;
/// A list of many children may be long.
pub(super) const REPLY_BYTES_MAX: usize = 256 << 20;

/// A reply: the code of an error or, without an error, a body.
#[derive(Debug)]
pub(super) struct ServerReply {
    pub(super) error: i32,
    pub(super) body: Bytes,
}

#[derive(Debug)]
pub(super) struct ImportSource {
    servers: Vec<String>,
    auth: Vec<(String, Credential)>,
    /// The server of the connection, or the one to try next.
    current: usize,
    connection: Option<SourceConnection>,
    /// The newest zxid that was seen.
    zxid: i64,
    /// The number of connections so far.
    connections: u64,
}

#[derive(Debug)]
struct SourceConnection {
    stream: TcpStream,
    decoder: FrameDecoder,
    last_xid: i32,
}

impl ImportSource {
    pub(super) fn new(servers: &[String], auth: &[(String, Credential)]) -> ImportSource {
        ImportSource {
            servers: servers.to_vec(),
            auth: auth.to_vec(),
            current: 0,
            connection: None,
            zxid: 0,
            connections: 0,
        }
    }

    /// The server of the connection, and the number of connections so far.
    pub(super) fn server(&self) -> (&str, u64) {
        (self.servers.get(self.current).map_or("", String::as_str), self.connections)
    }

    /// Sends requests, and returns the replies in the order of the requests.
    pub(super) fn ask(&mut self, requests: &[Request]) -> Result<Vec<ServerReply>, ImportError> {
        let mut reason = "there is no address".to_owned();
        for round in 0..ROUNDS {
            if round > 0 {
                // Servers that elect a leader answer again soon.
                let _ = crossbeam_channel::never::<()>().recv_timeout(PAUSE);
            }
            for _ in 0..self.servers.len() {
                match self.try_ask(requests) {
                    Ok(replies) => return Ok(replies),
                    Err(SourceFailure::Final(error)) => return Err(error),
                    Err(SourceFailure::Lost(error)) => {
                        reason = format!("{}: {error}", self.servers[self.current]);
                        tracing::debug!(reason, "a server of the source is lost");
                        self.connection = None;
                        self.current = (self.current + 1) % self.servers.len();
                    }
                }
            }
        }
        Err(ImportError::Unreachable { reason })
    }

    /// Sends requests to the present server alone, on one connection, and returns their replies if there are
    /// any. A server closes the connection at a request that it does not know.
    pub(super) fn ask_once<const N: usize>(
        &mut self,
        requests: [Request; N],
    ) -> Option<[ServerReply; N]> {
        match self.try_ask(&requests) {
            Ok(replies) => replies.try_into().ok(),
            Err(_) => {
                self.connection = None;
                None
            }
        }
    }

    fn try_ask(&mut self, requests: &[Request]) -> Result<Vec<ServerReply>, SourceFailure> {
        if self.connection.is_none() {
            self.connection = Some(self.connect()?);
            self.connections += 1;
        }
        let connection = self.connection.as_mut().ok_or_else(broken)?;
        let mut replies = Vec::with_capacity(requests.len());
        while replies.len() < requests.len() {
            let mut window = BytesMut::new();
            let mut xids = Vec::new();
            for request in &requests[replies.len()..] {
                connection.last_xid = connection.last_xid.wrapping_add(1) & i32::MAX;
                xids.push(connection.last_xid);
                append(&mut window, request, connection.last_xid)?;
                if window.len() >= WINDOW_BYTES {
                    break;
                }
            }
            connection.stream.write_all(&window)?;
            for xid in xids {
                let (header, body) = connection.reply()?;
                if header.xid != xid {
                    return Err(broken().into());
                }
                self.zxid = self.zxid.max(header.zxid);
                replies.push(ServerReply { error: header.err, body });
            }
        }
        Ok(replies)
    }

    fn connect(&self) -> Result<SourceConnection, SourceFailure> {
        let server = self.servers.get(self.current);
        let server = server.ok_or_else(|| io::Error::other("no server was given"))?;
        let mut connection = SourceConnection::open(server)?;
        let hello = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.zxid,
            timeout: SESSION_TIMEOUT_MS,
            session_id: 0,
            password: Credential(Some(Bytes::from_static(&[0; PASSWORD_BYTES]))),
            read_only: Some(false),
        };
        let mut packet = BytesMut::new();
        append_frame(&mut packet, usize::MAX, |to| hello.write(to)).map_err(io::Error::other)?;
        connection.stream.write_all(&packet)?;
        let answer = ConnectResponse::read(&mut connection.frame()?)?;
        if answer.timeout <= 0 {
            return Err(io::Error::other("it grants no session").into());
        }
        for (scheme, auth) in &self.auth {
            let (scheme, auth) = (scheme.clone(), auth.clone());
            let request = Request::Auth(Auth { kind: 0, scheme: Some(scheme.clone()), auth });
            packet.clear();
            append(&mut packet, &request, ReservedXid::Auth.into())?;
            connection.stream.write_all(&packet)?;
            let (header, _) = connection.reply()?;
            if header.err != 0 {
                let server = server.clone();
                return Err(SourceFailure::Final(ImportError::AuthFailed { server, scheme }));
            }
        }
        Ok(connection)
    }
}

impl Drop for ImportSource {
    fn drop(&mut self) {
        // Closes the session, so that it does not last until its timeout. A failure does not
        // matter.
        if let Some(connection) = &mut self.connection {
            let mut packet = BytesMut::new();
            if append(&mut packet, &Request::CloseSession, connection.last_xid).is_ok() {
                let _ = connection.stream.write_all(&packet);
            }
        }
    }
}

impl SourceConnection {
    fn open(server: &str) -> io::Result<SourceConnection> {
        let has_port = server.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
        let addresses = match has_port {
            true => server.to_socket_addrs()?,
            false => format!("{server}:{DEFAULT_PORT}").to_socket_addrs()?,
        };
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(ANSWER))?;
                    stream.set_write_timeout(Some(ANSWER))?;
                    let decoder = FrameDecoder::new(REPLY_BYTES_MAX, &[]);
                    return Ok(SourceConnection { stream, decoder, last_xid: 0 });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn frame(&mut self) -> Result<Bytes, SourceFailure> {
        let mut piece = [0; 64 << 10];
        loop {
            match self.decoder.next_frame()? {
                Some(DecodedPiece::Frame(frame)) => return Ok(frame),
                Some(DecodedPiece::Word(..)) => return Err(broken().into()),
                None => {}
            }
            match self.stream.read(&mut piece) {
                Ok(0) => {
                    let reason = "it has closed the connection";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into());
                }
                Ok(length) => self.decoder.buffer().extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(
                        io::Error::new(io::ErrorKind::TimedOut, "it does not answer").into()
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn reply(&mut self) -> Result<(ReplyHeader, Bytes), SourceFailure> {
        let mut frame = self.frame()?;
        let header = ReplyHeader::read(&mut frame)?;
        Ok((header, frame))
    }
}

fn append(to: &mut BytesMut, request: &Request, xid: i32) -> io::Result<()> {
    append_frame(to, usize::MAX, |to| request.encode(xid, to)).map_err(io::Error::other)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not keep to ZooKeeper's protocol")
}

enum SourceFailure {
    /// Another server may succeed.
    Lost(io::Error),
    Final(ImportError),
}

impl From<io::Error> for SourceFailure {
    fn from(error: io::Error) -> SourceFailure {
        SourceFailure::Lost(error)
    }
}

/// Another server's reply would be as long.
impl From<BadLength> for SourceFailure {
    fn from(BadLength { declared, limit }: BadLength) -> SourceFailure {
        match usize::try_from(declared) {
            Ok(bytes) => SourceFailure::Final(ImportError::ReplyTooLong { bytes, limit }),
            Err(_) => SourceFailure::Lost(broken()),
        }
    }
}

impl From<Unreadable> for SourceFailure {
    fn from(_: Unreadable) -> SourceFailure {
        SourceFailure::Lost(broken())
    }
}

/// Reads arbitrary bytes as those of a server, in each kind of reply that an import asks for, and as a snapshot.
#[cfg(any(test, fuzzing))]
pub(in crate::gateway) fn fuzz(bytes: &[u8]) {
    use crate::gateway::wire::response::{AclReply, ChildrenReply, ClientInfo, DataReply};

    let mut decoder = FrameDecoder::new(REPLY_BYTES_MAX, &[]);
    decoder.buffer().extend_from_slice(bytes);
    while let Ok(Some(DecodedPiece::Frame(mut frame))) = decoder.next_frame() {
        let _ = ConnectResponse::read(&mut frame.clone());
        if ReplyHeader::read(&mut frame).is_ok() {
            let _ = i32::read(&mut frame.clone());
            let _ = DataReply::read(&mut frame.clone());
            let _ = AclReply::read(&mut frame.clone());
            let _ = ChildrenReply::read(&mut frame.clone());
            let _ = Vec::<ClientInfo>::read(&mut frame);
        }
    }
    super::kinds::fuzz(bytes);
}
