//! A raw client, packet by packet, against a gateway of a cluster in memory.

pub(super) mod conversations;
#[cfg(test)]
mod limits;
mod model;
#[cfg(test)]
mod quorum;
#[cfg(test)]
mod read_only;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod seeded;
#[cfg(test)]
mod sessions;
#[cfg(all(test, feature = "tls"))]
mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::Gateway;
use super::wire::codes::{CreateFlags, ErrorCode, EventType};
use super::wire::handshake::{ConnectRequest, ConnectResponse};
use super::wire::jute::{Credential, Jute};
use super::wire::request::{self, Acl, Create, Request, SetData};
use super::wire::response::{ReplyHeader, WatcherEvent};
use crate::testing::Cluster;

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection, plain or not.
trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

struct Client {
    stream: Box<dyn Duplex>,
    last_xid: i32,
}

/// A packet that a client receives after the handshake.
#[derive(Debug)]
struct Packet {
    header: ReplyHeader,
    body: Bytes,
}

impl Packet {
    fn body<T: Jute>(mut self) -> T {
        assert_eq!(self.header.err, 0, "{self:?}");
        T::read(&mut self.body).expect("a body of this kind")
    }

    fn event(mut self) -> (EventType, String) {
        assert_eq!(self.header.xid, -1, "{self:?}");
        let event = WatcherEvent::read(&mut self.body).expect("an event");
        (EventType::try_from(event.kind).expect("a kind of event"), event.path)
    }
}

impl Client {
    fn dial(gateway: &Gateway) -> Client {
        Client::over(dial(gateway))
    }

    fn over(stream: impl Duplex + 'static) -> Client {
        Client { stream: Box::new(stream), last_xid: 0 }
    }

    /// A client with a new session.
    fn open(gateway: &Gateway) -> Client {
        let mut client = Client::dial(gateway);
        let response = client.greet(0, 0, Bytes::new());
        assert!(response.timeout > 0 && response.session_id != 0, "{response:?}");
        client
    }

    fn write(&mut self, body: &[u8]) {
        let mut frame = u32::try_from(body.len()).expect("it is short").to_be_bytes().to_vec();
        frame.extend_from_slice(body);
        self.stream.write_all(&frame).expect("the gateway reads");
    }

    /// The next frame; `None`: the connection is closed.
    fn read(&mut self) -> Option<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).ok()?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut body).expect("a whole frame");
        Some(body.into())
    }

    fn greet(&mut self, seen: i64, session_id: i64, password: Bytes) -> ConnectResponse {
        self.hello(seen, session_id, password, false).expect("an answer to the handshake")
    }

    /// The reply to the first packet; `None`: the connection is closed.
    fn hello(
        &mut self,
        seen: i64,
        session_id: i64,
        password: Bytes,
        read_only: bool,
    ) -> Option<ConnectResponse> {
        self.say_hello(seen, session_id, password, read_only);
        self.greeting()
    }

    /// Sends the first packet.
    fn say_hello(&mut self, seen: i64, session_id: i64, password: Bytes, read_only: bool) {
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: seen,
            timeout: 10_000,
            session_id,
            password: Credential(Some(password)),
            read_only: Some(read_only),
        };
        let mut body = BytesMut::new();
        request.write(&mut body);
        self.write(&body);
    }

    /// The reply to the first packet; `None`: the connection is closed.
    fn greeting(&mut self) -> Option<ConnectResponse> {
        let mut response = self.read()?;
        Some(ConnectResponse::read(&mut response).expect("a response"))
    }

    fn send(&mut self, request: &Request) -> i32 {
        self.last_xid += 1;
        let mut body = BytesMut::new();
        request.encode(self.last_xid, &mut body);
        self.write(&body);
        self.last_xid
    }

    fn receive(&mut self) -> Packet {
        let mut body = self.read().expect("a packet");
        let header = ReplyHeader::read(&mut body).expect("a header");
        Packet { header, body }
    }

    /// Sends a request, and returns its reply, before which no event may come.
    fn ask(&mut self, request: &Request) -> Packet {
        let xid = self.send(request);
        let reply = self.receive();
        assert_eq!(reply.header.xid, xid, "{reply:?}");
        reply
    }

    /// The same; `None`: the connection is closed.
    fn try_ask(&mut self, request: &Request) -> Option<Packet> {
        self.last_xid += 1;
        let mut body = BytesMut::new();
        request.encode(self.last_xid, &mut body);
        let mut frame = u32::try_from(body.len()).expect("it is short").to_be_bytes().to_vec();
        frame.extend_from_slice(&body);
        self.stream.write_all(&frame).ok()?;
        let mut body = self.read()?;
        let header = ReplyHeader::read(&mut body).expect("a header");
        Some(Packet { header, body })
    }

    /// Makes sure that nothing is received before the reply to a ping.
    fn ping(&mut self) {
        self.send(&Request::Ping);
        let reply = self.receive().header;
        assert_eq!((reply.xid, reply.err), (-2, 0), "{reply:?}");
    }

    fn code(&mut self, request: &Request) -> ErrorCode {
        ErrorCode::try_from(self.ask(request).header.err).expect("a known code")
    }
}

fn dial(gateway: &Gateway) -> TcpStream {
    let stream = TcpStream::connect(gateway.address()).expect("the gateway listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout is set");
    stream
}

fn create(path: &str, data: &'static [u8]) -> Request {
    let acl = vec![Acl { perms: 31, scheme: Some("world".into()), id: Some("anyone".into()) }];
    Request::Create(Create {
        path: Some(path.into()),
        data: Some(Bytes::from_static(data)),
        acl: Some(acl),
        flags: CreateFlags::Persistent.into(),
    })
}

fn ephemeral(path: &str) -> Request {
    let Request::Create(body) = create(path, b"") else { unreachable!("it is a create") };
    Request::Create(Create { flags: CreateFlags::Ephemeral.into(), ..body })
}

fn set(path: &str, data: &'static [u8]) -> Request {
    let (path, data) = (Some(path.into()), Some(Bytes::from_static(data)));
    Request::SetData(SetData { path, data, version: -1 })
}

fn read(path: &str, watch: bool) -> request::Read {
    request::Read { path: Some(path.into()), watch }
}

fn one() -> (Cluster, Gateway) {
    let cluster = Cluster::new(1);
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").expect("a free port");
    (cluster, gateway)
}
