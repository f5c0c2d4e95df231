//! A raw client, packet by packet, against a gateway of a cluster in memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use super::wire::codes::{AddWatchMode, CreateFlags, ErrorCode, EventType, OpCode, Perm};
use super::wire::handshake::{ConnectRequest, ConnectResponse};
use super::wire::jute::{Credential, Jute};
use super::wire::request::{
    self, Acl, AddWatch, Create, MultiOp, PathOnly, Request, SetData, SetWatches2, WatchesOf,
};
use super::wire::response::{
    ChildrenReply, CountReply, DataReply, MultiReply, MultiResult, PathReply, ReplyHeader,
    StatReply, WatcherEvent,
};
use super::{Gateway, SWEEP};
use crate::testing::Cluster;
use crate::types::znode::CreateMode;

mod conversations;
mod model;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Client {
    stream: TcpStream,
    last_xid: i32,
}

/// What a client receives behind a handshake.
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
        let stream = TcpStream::connect(gateway.address()).expect("the gateway listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout is set");
        Client { stream, last_xid: 0 }
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
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: seen,
            timeout: 10_000,
            session_id,
            password: Credential(Some(password)),
            read_only: Some(false),
        };
        let mut body = BytesMut::new();
        request.write(&mut body);
        self.write(&body);
        let mut response = self.read().expect("an answer to the handshake");
        ConnectResponse::read(&mut response).expect("a response")
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

    /// The reply to a request, when no event comes before it.
    fn ask(&mut self, request: &Request) -> Packet {
        let xid = self.send(request);
        let reply = self.receive();
        assert_eq!(reply.header.xid, xid, "{reply:?}");
        reply
    }

    /// Makes sure that nothing is under way but the answer to a ping.
    fn ping(&mut self) {
        self.send(&Request::Ping);
        let reply = self.receive().header;
        assert_eq!((reply.xid, reply.err), (-2, 0), "{reply:?}");
    }

    fn code(&mut self, request: &Request) -> ErrorCode {
        ErrorCode::try_from(self.ask(request).header.err).expect("a known code")
    }
}

fn create(path: &str, data: &'static [u8]) -> Request {
    let all = [Perm::Read, Perm::Write, Perm::Create, Perm::Delete, Perm::Admin];
    let perms = all.map(i32::from).iter().sum();
    let acl = vec![Acl { perms, scheme: Some("world".into()), id: Some("anyone".into()) }];
    Request::Create(Create {
        path: Some(path.into()),
        data: Some(Bytes::from_static(data)),
        acl: Some(acl),
        flags: CreateFlags::Persistent.into(),
    })
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

#[test]
fn replies_come_in_order_and_show_what_was_asked_before() {
    let (_cluster, gateway) = one();
    let mut client = Client::open(&gateway);
    client.send(&create("/a", b"0"));
    const SETS: usize = 200;
    for _ in 0..SETS {
        client.send(&set("/a", b"x"));
        client.send(&Request::GetData(read("/a", false)));
    }
    assert_eq!(client.receive().body::<PathReply>().path.as_deref(), Some("/a"));
    let mut zxid = 0;
    for version in 1..=i32::try_from(SETS).unwrap() {
        let written = client.receive();
        assert!(written.header.zxid >= zxid);
        zxid = written.header.zxid;
        assert_eq!(written.body::<StatReply>().stat.version, version);
        let read = client.receive();
        assert!(read.header.zxid >= zxid);
        assert_eq!(read.body::<DataReply>().stat.version, version);
    }
}

/// A client takes an event for the end of its watch. If it came before the reply to the read that sets the
/// watch, the client would know of no watch; if it came behind a reply that shows the change, it would see
/// the change before its event.
#[test]
fn an_event_comes_between_the_replies_that_it_belongs_between() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    let mut client = Client::open(&gateway);
    // What the client saw when it set the watch that it still has.
    let mut watched: Option<Bytes> = None;
    for round in 0..100_u8 {
        let sets = client.send(&Request::GetData(read("/a", true)));
        let written = session.nonblocking().set("/a", [round]);
        client.send(&Request::GetData(read("/a", false)));
        loop {
            let packet = client.receive();
            if packet.header.xid == -1 {
                assert_eq!(packet.event(), (EventType::NodeDataChanged, "/a".to_owned()));
                assert!(watched.take().is_some(), "round {round}: of a watch that is not known");
                continue;
            }
            let xid = packet.header.xid;
            let data = packet.body::<DataReply>().data.unwrap_or_default();
            if let Some(before) = &watched {
                assert_eq!(*before, data, "round {round}: a change is seen before its event");
            }
            if xid == sets {
                watched = Some(data);
            } else if *data == [round] {
                break;
            } else {
                client.send(&Request::GetData(read("/a", false)));
            }
        }
        written.wait().unwrap();
    }
}

#[test]
fn a_session_goes_on_at_another_member_and_is_told_what_it_missed() {
    let cluster = Cluster::new(3);
    let serve = |node: usize| Gateway::serve(&cluster.node(node), "127.0.0.1:0").unwrap();
    let (first, second) = (serve(0), serve(1));
    let session = cluster.node(2).session();
    for path in ["/data", "/gone", "/parent", "/still", "/lasting"] {
        session.create(path, b"", CreateMode::Persistent).unwrap();
    }
    let mut client = Client::dial(&first);
    let opened = client.greet(0, 0, Bytes::new());
    assert_eq!(client.code(&create("/own", b"")), ErrorCode::Ok);
    client.ask(&Request::Sync(PathOnly { path: Some("/".into()) }));
    let seen = client.ask(&Request::Exists(read("/still", false))).header.zxid;
    drop(client);

    session.set("/data", b"1").unwrap();
    session.delete("/gone").unwrap();
    session.create("/new", b"", CreateMode::Persistent).unwrap();
    session.create("/parent/child", b"", CreateMode::Persistent).unwrap();
    session.set("/lasting", b"1").unwrap();

    // A client that has seen more than this member waits for it; a wrong password is refused.
    let Credential(Some(password)) = opened.password else { panic!("there is a password") };
    let wrong = Client::dial(&second).greet(0, opened.session_id, Bytes::from_static(&[1; 16]));
    assert_eq!((wrong.timeout, wrong.session_id), (0, 0));
    let mut client = Client::dial(&second);
    let resumed = client.greet(seen, opened.session_id, password);
    assert_eq!(resumed.session_id, opened.session_id);
    client.ask(&Request::Sync(PathOnly { path: Some("/".into()) }));

    let list = |paths: &[&str]| paths.iter().map(|path| Some((*path).to_owned())).collect();
    let xid = client.send(&Request::SetWatches2(SetWatches2 {
        relative_zxid: seen,
        data: list(&["/data", "/gone", "/still"]),
        exist: list(&["/new", "/later"]),
        child: list(&["/parent"]),
        persistent: list(&["/lasting"]),
        persistent_recursive: Vec::new(),
    }));
    let mut events = Vec::new();
    loop {
        let packet = client.receive();
        if packet.header.xid == xid {
            assert_eq!(packet.header.err, 0);
            break;
        }
        events.push(packet.event());
    }
    events.sort_by_key(|(kind, path)| (path.clone(), i32::from(*kind)));
    let expected = [
        (EventType::NodeDataChanged, "/data"),
        (EventType::NodeDeleted, "/gone"),
        (EventType::NodeDataChanged, "/lasting"),
        (EventType::NodeCreated, "/new"),
        (EventType::NodeChildrenChanged, "/parent"),
    ];
    assert_eq!(events, expected.map(|(kind, path)| (kind, path.to_owned())));
    // The others are armed.
    session.set("/still", b"1").unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeDataChanged, "/still".to_owned()));
    session.create("/later", b"", CreateMode::Persistent).unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeCreated, "/later".to_owned()));
}

#[test]
fn a_change_that_several_watches_see_is_told_once() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    let mut client = Client::open(&gateway);
    for _ in 0..3 {
        client.ask(&Request::GetData(read("/a", true)));
        client.ask(&Request::Exists(read("/a", true)));
        client.ask(&Request::GetChildren(read("/a", true)));
    }
    for mode in [AddWatchMode::Persistent, AddWatchMode::PersistentRecursive] {
        client.ask(&Request::AddWatch(AddWatch { path: Some("/a".into()), mode: mode.into() }));
    }
    session.delete("/a").unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeDeleted, "/a".to_owned()));
    client.ping();
    // What lasts, lasts.
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeCreated, "/a".to_owned()));
    let any = WatchesOf { path: Some("/a".into()), kind: 3 };
    assert_eq!(client.code(&Request::CheckWatches(any.clone())), ErrorCode::Ok);
    assert_eq!(client.code(&Request::RemoveWatches(any.clone())), ErrorCode::Ok);
    assert_eq!(client.code(&Request::RemoveWatches(any.clone())), ErrorCode::NoWatcher);
    assert_eq!(client.code(&Request::CheckWatches(any)), ErrorCode::NoWatcher);
    session.delete("/a").unwrap();
    client.ping();
}

#[test]
fn what_is_wrong_is_answered_as_zookeeper_does() {
    let (_cluster, gateway) = one();
    let mut client = Client::open(&gateway);
    assert_eq!(client.code(&create("/x/y", b"")), ErrorCode::NoNode);
    assert_eq!(client.code(&create("/zookeeper/", b"")), ErrorCode::BadArguments);
    assert_eq!(client.code(&Request::GetData(read("x", false))), ErrorCode::NoNode);
    assert_eq!(client.code(&Request::Exists(read("", false))), ErrorCode::Ok);
    let null = Request::GetData(request::Read { path: None, watch: false });
    assert_eq!(client.code(&null), ErrorCode::MarshallingError);
    // A body that cannot be read costs nothing but its request.
    let mut body = BytesMut::new();
    77_i32.write(&mut body);
    i32::from(OpCode::GetData).write(&mut body);
    client.write(&body);
    let reply = client.receive().header;
    assert_eq!((reply.xid, reply.err), (77, ErrorCode::MarshallingError.into()));
    let Request::Create(made) = create("/m", b"") else { unreachable!("it is a create") };
    let delete = request::Delete { path: Some("/none".into()), version: -1 };
    let ops = vec![MultiOp::Create(made.clone()), MultiOp::Delete(delete), MultiOp::Create(made)];
    let reply = client.ask(&Request::Multi(request::Multi { ops })).body::<MultiReply>();
    let codes = [ErrorCode::Ok, ErrorCode::NoNode, ErrorCode::RuntimeInconsistency];
    assert_eq!(reply.results, codes.map(|code| MultiResult::Error(code.into())));
    let root = Request::GetAllChildrenNumber(PathOnly { path: Some("/".into()) });
    assert!(client.ask(&root).body::<CountReply>().count > 0);
    // An op that nobody knows ends the connection, and so do lengths that are out of range.
    client.send(&Request::DeleteContainer(PathOnly { path: Some("/m".into()) }));
    assert_eq!(client.receive().header.err, i32::from(ErrorCode::Unimplemented));
    assert!(client.read().is_none());
    for length in [-1, 1_048_576_i32] {
        let mut client = Client::open(&gateway);
        client.stream.write_all(&length.to_be_bytes()).unwrap();
        assert!(client.read().is_none());
    }
}

#[test]
fn a_silent_client_loses_its_session_and_one_that_pings_does_not() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    let ephemeral = |path: &str| {
        let Request::Create(body) = create(path, b"") else { unreachable!("it is a create") };
        Request::Create(Create { flags: CreateFlags::Ephemeral.into(), ..body })
    };
    let (mut silent, mut alive) = (Client::open(&gateway), Client::open(&gateway));
    assert_eq!(silent.code(&ephemeral("/silent")), ErrorCode::Ok);
    assert_eq!(alive.code(&ephemeral("/alive")), ErrorCode::Ok);
    let gone = session.exists_and_watch("/silent").unwrap().1;
    let own = alive.ask(&Request::GetEphemerals(PathOnly { path: None })).body::<ChildrenReply>();
    assert_eq!(own.children, ["/alive"]);
    // In steps: after a pause of its own the gateway takes nobody for silent.
    for _ in 0..50 {
        cluster.advance(SWEEP * 3 / 5);
        alive.ping();
    }
    assert!(gone.recv().is_some());
    assert!(silent.read().is_none());
    alive.ping();
    assert!(session.exists("/alive").unwrap().is_some());
    assert!(SWEEP < Duration::from_secs(1));
    // An orderly end takes the ephemeral znodes along at once.
    let gone = session.exists_and_watch("/alive").unwrap().1;
    assert_eq!(alive.code(&Request::CloseSession), ErrorCode::Ok);
    assert!(alive.read().is_none());
    assert!(gone.recv().is_some());
}

/// What a client does not read is not kept without a bound, and it does not hold up others.
#[test]
fn a_client_that_reads_nothing_is_not_served_on() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/large", vec![7; 900_000], CreateMode::Persistent).unwrap();
    let mut lazy = Client::open(&gateway);
    const READS: usize = 300;
    for _ in 0..READS {
        lazy.send(&Request::GetData(read("/large", false)));
    }
    let mut other = Client::open(&gateway);
    assert_eq!(other.code(&create("/other", b"")), ErrorCode::Ok);
    // When it reads again, it gets everything.
    for _ in 0..READS {
        assert_eq!(
            lazy.receive().body::<DataReply>().data.map_or(0, |data| data.remaining()),
            900_000
        );
    }
}

#[test]
fn there_is_room_for_so_many_clients() {
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().connections_max(3).connections_per_address_max(2);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let clients = [Client::open(&gateway), Client::open(&gateway)];
    assert!(Client::dial(&gateway).read().is_none());
    drop(clients);
    let again = || {
        let mut client = Client::dial(&gateway);
        client.stream.write_all(b"ruok").unwrap();
        let mut answer = String::new();
        let _ = client.stream.read_to_string(&mut answer);
        answer == "imok"
    };
    let until = std::iter::repeat_with(again).take(1000);
    assert!(until.into_iter().any(|served| served), "room is made when clients go");
}

/// It opened the session and lost it to itself: the session was kept alive for ever, with nobody connected.
#[test]
fn a_client_that_has_seen_more_than_there_is_leaves_no_session_behind() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.sync().unwrap();
    let mut client = Client::dial(&gateway);
    let hello = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: i64::MAX,
        timeout: 4000,
        session_id: 0,
        password: Credential(None),
        read_only: None,
    };
    let mut body = BytesMut::new();
    hello.write(&mut body);
    client.write(&body);
    assert!(client.read().is_none(), "it is told nothing");
    for _ in 0..30 {
        cluster.advance(Duration::from_secs(1));
        session.sync().unwrap();
    }
    assert_eq!(cluster.node(0).status().sessions, 1, "the test's own");
}

/// An instance that was closed closed its clients' sessions, too, and with them their locks.
#[test]
fn an_instance_that_is_closed_leaves_its_clients_their_sessions() {
    let cluster = Cluster::new(3);
    let serve = |node: usize| Gateway::serve(&cluster.node(node), "127.0.0.1:0").unwrap();
    let (first, second) = (serve(0), serve(1));
    let mut client = Client::dial(&first);
    let opened = client.greet(0, 0, Bytes::new());
    assert_eq!(client.code(&create("/own", b"")), ErrorCode::Ok);
    cluster.node(0).close();
    assert!(client.read().is_none());
    let Credential(Some(password)) = opened.password else { panic!("there is a password") };
    let resumed = Client::dial(&second).greet(0, opened.session_id, password);
    assert_eq!(resumed.session_id, opened.session_id);
}

/// More changes than a watch can be told of at once made the gateway close the connection, again and again.
#[test]
fn a_client_that_missed_very_much_gets_its_watch_all_the_same() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).unwrap();
    for _ in 0..crate::WATCH_CAPACITY + 10 {
        session.set("/a", b"").unwrap();
    }
    let mut client = Client::open(&gateway);
    let xid = client.send(&Request::SetWatches2(SetWatches2 {
        relative_zxid: 1,
        data: Vec::new(),
        exist: Vec::new(),
        child: Vec::new(),
        persistent: Vec::new(),
        persistent_recursive: vec![Some("/a".into())],
    }));
    while client.receive().header.xid != xid {}
    session.set("/a", b"").unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeDataChanged, "/a".to_owned()));
}

/// A client instance has no tree of its own: its member answers.
#[test]
fn an_instance_without_a_replica_serves_too() {
    let cluster = Cluster::new(3);
    let place = cluster.add_client();
    let gateway = Gateway::serve(&cluster.node(place), "127.0.0.1:0").unwrap();
    let mut client = Client::dial(&gateway);
    let opened = client.greet(0, 0, Bytes::new());
    assert_eq!(client.code(&create("/a", b"1")), ErrorCode::Ok);
    assert_eq!(client.code(&create("/a/b", b"")), ErrorCode::Ok);
    let read_back = client.ask(&Request::GetData(read("/a", true)));
    let seen = read_back.header.zxid;
    assert!(seen > 0);
    assert_eq!(read_back.body::<DataReply>().data.as_deref(), Some(&b"1"[..]));
    let count = Request::GetAllChildrenNumber(PathOnly { path: Some("/a".into()) });
    assert_eq!(client.ask(&count).body::<CountReply>().count, 1);
    client.send(&set("/a", b"2"));
    assert_eq!(client.receive().event(), (EventType::NodeDataChanged, "/a".to_owned()));
    assert_eq!(client.receive().body::<StatReply>().stat.version, 1);
    // It reconnects with a zxid that it has seen here.
    drop(client);
    let Credential(Some(password)) = opened.password else { panic!("there is a password") };
    let resumed = Client::dial(&gateway).greet(seen, opened.session_id, password);
    assert_eq!(resumed.session_id, opened.session_id);
}
