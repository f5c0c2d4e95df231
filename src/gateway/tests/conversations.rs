//! Whole conversations of several clients with one member, each reply and event against a plain model of
//! ZooKeeper ([`model`](super::model)).

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::model::{Model, NOTHING, Said};
use super::{Client, Gateway, Packet, one, read};
use crate::gateway::wire::codes::{AddWatchMode, CreateFlags, ErrorCode};
use crate::gateway::wire::jute::{Credential, Jute};
use crate::gateway::wire::request::{
    self, AddWatch, Check, Create, Delete, Multi, MultiOp, PathOnly, Request, SetData, SetWatches2,
    WatchesOf,
};
use crate::gateway::wire::response::{
    Children2Reply, ChildrenReply, CountReply, Create2Reply, DataReply, ErrorReply, MultiReply,
    MultiResult, PathReply, Stat, StatReply,
};

const CLIENTS: usize = 3;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A client asks for all of these before it reads.
    Ask(usize, Vec<Request>),
    /// A client loses its connection, comes back when another one has asked for these, and sets its watches
    /// again.
    Lose(usize, Vec<Request>),
    /// A client closes its session, and begins another one.
    Close(usize),
}

fn path() -> impl Strategy<Value = Option<String>> {
    select(vec!["/a", "/a/b", "/a/b/c", "/b", "/b/c", "/none/d"]).prop_map(|path| Some(path.into()))
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..4).prop_map(|data| Some(Bytes::from(data))),
        1 => Just(None),
    ]
}

fn version() -> impl Strategy<Value = i32> {
    prop_oneof![4 => Just(-1), 2 => 0..3]
}

fn to_create() -> impl Strategy<Value = Create> {
    let flags = select(vec![
        CreateFlags::Persistent,
        CreateFlags::Persistent,
        CreateFlags::Ephemeral,
        CreateFlags::PersistentSequential,
        CreateFlags::EphemeralSequential,
    ]);
    (path(), data(), flags).prop_map(|(path, data, flags)| {
        let acl =
            request::Acl { perms: 31, scheme: Some("world".into()), id: Some("anyone".into()) };
        // The root has had children before, so that its numbers are not known.
        let at_root = path.as_deref().is_some_and(|path| path.rfind('/') == Some(0));
        let flags = match flags {
            CreateFlags::PersistentSequential if at_root => CreateFlags::Persistent,
            CreateFlags::EphemeralSequential if at_root => CreateFlags::Ephemeral,
            flags => flags,
        };
        Create { path, data, acl: Some(vec![acl]), flags: flags.into() }
    })
}

fn to_delete() -> impl Strategy<Value = Delete> {
    (path(), version()).prop_map(|(path, version)| Delete { path, version })
}

fn to_set() -> impl Strategy<Value = SetData> {
    (path(), data(), version()).prop_map(|(path, data, version)| SetData { path, data, version })
}

fn to_read() -> impl Strategy<Value = request::Read> {
    (path(), any::<bool>()).prop_map(|(path, watch)| request::Read { path, watch })
}

fn multi_op() -> impl Strategy<Value = MultiOp> {
    prop_oneof![
        4 => to_create().prop_map(MultiOp::Create),
        2 => to_delete().prop_map(MultiOp::Delete),
        2 => to_set().prop_map(MultiOp::SetData),
        1 => (path(), version()).prop_map(|(path, version)| MultiOp::Check(Check { path, version })),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let of_watches = || path().prop_map(|path| WatchesOf { path, kind: 3 });
    let modes = select(vec![AddWatchMode::Persistent, AddWatchMode::PersistentRecursive]);
    let only = || path().prop_map(|path| PathOnly { path });
    prop_oneof![
        10 => to_create().prop_map(Request::Create),
        3 => to_create().prop_map(Request::Create2),
        5 => to_delete().prop_map(Request::Delete),
        6 => to_set().prop_map(Request::SetData),
        4 => to_read().prop_map(Request::Exists),
        4 => to_read().prop_map(Request::GetData),
        2 => to_read().prop_map(Request::GetChildren),
        2 => to_read().prop_map(Request::GetChildren2),
        3 => vec(multi_op(), 1..4).prop_map(|ops| Request::Multi(Multi { ops })),
        2 => (path(), modes).prop_map(|(path, mode)| {
            Request::AddWatch(AddWatch { path, mode: mode.into() })
        }),
        1 => of_watches().prop_map(Request::CheckWatches),
        1 => of_watches().prop_map(Request::RemoveWatches),
        1 => only().prop_map(Request::Sync),
        1 => only().prop_map(Request::GetEphemerals),
        1 => only().prop_map(Request::GetAllChildrenNumber),
        1 => Just(Request::Ping),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let client = || 0..CLIENTS;
    prop_oneof![
        16 => (client(), vec(request(), 1..5)).prop_map(|(client, asked)| Step::Ask(client, asked)),
        2 => (client(), vec(request(), 0..5)).prop_map(|(client, asked)| Step::Lose(client, asked)),
        1 => client().prop_map(Step::Close),
    ]
}

/// The body of a reply as text, without the times.
fn text(request: &Request, mut body: Bytes) -> String {
    fn of<T: Jute + std::fmt::Debug>(body: &mut Bytes, change: impl FnOnce(&mut T)) -> String {
        let mut reply = T::read(body).expect("a body of this kind");
        assert!(body.is_empty(), "{} bytes behind {reply:?}", body.len());
        change(&mut reply);
        format!("{reply:?}")
    }
    fn timeless(stat: &mut Stat) {
        (stat.ctime, stat.mtime) = (0, 0);
    }
    let body = &mut body;
    match request {
        Request::Create(_) | Request::Sync(_) => of::<PathReply>(body, |_| {}),
        Request::Create2(_) => of::<Create2Reply>(body, |reply| timeless(&mut reply.stat)),
        Request::SetData(_) | Request::Exists(_) => {
            of::<StatReply>(body, |reply| timeless(&mut reply.stat))
        }
        Request::GetData(_) => of::<DataReply>(body, |reply| timeless(&mut reply.stat)),
        Request::GetChildren(_) | Request::GetEphemerals(_) => of::<ChildrenReply>(body, |_| {}),
        Request::GetChildren2(_) => of::<Children2Reply>(body, |reply| timeless(&mut reply.stat)),
        Request::Multi(_) => of::<MultiReply>(body, |reply| {
            for result in &mut reply.results {
                if let MultiResult::SetData(reply) = result {
                    timeless(&mut reply.stat);
                }
            }
        }),
        Request::AddWatch(_) => of::<ErrorReply>(body, |_| {}),
        Request::GetAllChildrenNumber(_) => of::<CountReply>(body, |_| {}),
        _ => {
            assert!(body.is_empty(), "{} bytes that nobody asked for", body.len());
            NOTHING.to_owned()
        }
    }
}

struct World<'a> {
    gateway: &'a Gateway,
    clients: Vec<Client>,
    passwords: Vec<Credential>,
    /// The last zxid that each has seen.
    seen: Vec<i64>,
    model: Model,
}

impl World<'_> {
    fn new(gateway: &Gateway) -> World<'_> {
        let mut world = World {
            gateway,
            clients: Vec::new(),
            passwords: Vec::new(),
            seen: vec![0; CLIENTS],
            model: Model::new(CLIENTS),
        };
        for client in 0..CLIENTS {
            world.clients.push(Client::dial(gateway));
            world.passwords.push(Credential(None));
            world.open(client);
        }
        world
    }

    fn open(&mut self, client: usize) {
        let opened = self.clients[client].greet(0, 0, Bytes::new());
        assert_ne!(opened.session_id, 0);
        self.passwords[client] = opened.password;
        self.model.clients[client].session = opened.session_id;
    }

    fn receive(&mut self, client: usize) -> Packet {
        let packet = self.clients[client].receive();
        self.seen[client] = self.seen[client].max(packet.header.zxid);
        packet
    }

    /// All requests are sent, and then the replies and the events between them compared.
    fn ask(&mut self, client: usize, requests: &[Request]) {
        let sent: Vec<i32> = requests.iter().map(|of| self.clients[client].send(of)).collect();
        for (request, xid) in requests.iter().zip(sent) {
            let mut events = Vec::new();
            let reply = loop {
                let packet = self.receive(client);
                if packet.header.xid != -1 {
                    break packet;
                }
                events.push(packet.event());
            };
            let xid = if *request == Request::Ping { -2 } else { xid };
            assert_eq!(reply.header.xid, xid, "{request:?}");
            let expected = self.model.ask(client, request, reply.header.zxid);
            let code = ErrorCode::try_from(reply.header.err).expect("a known code");
            let body = match code {
                ErrorCode::Ok => text(request, reply.body),
                _ => NOTHING.to_owned(),
            };
            let said: Said = (code, body);
            assert_eq!(said, expected, "{request:?}");
            let due = std::mem::take(&mut self.model.clients[client].events);
            assert_eq!(events, due, "the events before the reply to {request:?}");
        }
    }

    /// The other clients receive the events that are due, and no others.
    fn settle(&mut self) {
        let sync = Request::Sync(PathOnly { path: Some("/".into()) });
        for client in 0..CLIENTS {
            self.ask(client, std::slice::from_ref(&sync));
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ask(client, requests) => self.ask(client, &requests),
            Step::Lose(client, requests) => self.lose(client, &requests),
            Step::Close(client) => {
                self.ask(client, &[Request::CloseSession]);
                assert!(self.clients[client].read().is_none(), "the connection is closed");
                self.clients[client] = Client::dial(self.gateway);
                self.open(client);
            }
        }
        self.settle();
    }

    fn lose(&mut self, client: usize, requests: &[Request]) {
        self.clients[client] = Client::dial(self.gateway);
        self.model.clients[client].is_away = true;
        self.ask((client + 1) % CLIENTS, requests);
        let (seen, session) = (self.seen[client], self.model.clients[client].session);
        let Credential(password) = self.passwords[client].clone();
        let resumed = self.clients[client].greet(seen, session, password.expect("it has one"));
        assert_eq!(resumed.session_id, session);
        let watches = &self.model.clients[client].watches;
        let list = |paths: &BTreeSet<String>| paths.iter().cloned().map(Some).collect();
        let again = SetWatches2 {
            relative_zxid: seen,
            data: list(&watches.data),
            exist: list(&watches.exist),
            child: list(&watches.child),
            persistent: list(&watches.persistent),
            persistent_recursive: list(&watches.recursive),
        };
        let expected = self.model.missed(client, seen);
        let xid = self.clients[client].send(&Request::SetWatches2(again));
        let mut missed = BTreeSet::new();
        loop {
            let packet = self.receive(client);
            if packet.header.xid == xid {
                assert_eq!(packet.header.err, 0);
                break;
            }
            let (kind, path) = packet.event();
            missed.insert((kind.into(), path));
        }
        assert_eq!(missed, expected, "what was missed since {seen:#x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn conversations_go_as_with_zookeeper(steps in vec(step(), 1..40)) {
        let (_cluster, gateway) = one();
        let mut world = World::new(&gateway);
        // Events of the root's children are not looked at, but for watches of everything.
        world.ask(0, &[Request::GetData(read("/a", true))]);
        for step in steps {
            world.take(step);
        }
    }
}
