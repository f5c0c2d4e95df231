//! Random conversations of several clients with one member. Each reply and event is compared with a
//! simple model of ZooKeeper ([`model`](super::model)).

use std::collections::BTreeSet;

use bytes::Bytes;

use super::model::{Answered, Model, NOTHING};
use super::{Client, Gateway, Packet, one};
use crate::gateway::wire::codes::{AddWatchMode, CreateFlags, ErrorCode};
use crate::gateway::wire::jute::{Credential, Jute};
use crate::gateway::wire::request::{
    self, AddWatch, Check, Create, Delete, MultiOp, MultiRequest, PathOnly, Request, SetData,
    SetWatches, SetWatches2, WatchesOf,
};
use crate::gateway::wire::response::{
    Children2Reply, ChildrenReply, Create2Reply, DataReply, MultiReply, MultiResult, PathReply,
    Stat,
};

const CLIENTS: usize = 3;

/// The next step of a conversation.
#[derive(Clone, Debug)]
enum Step {
    /// A client sends all of these requests before it reads.
    Ask(usize, Vec<Request>),
    /// A client loses its connection, reconnects after another client has sent these requests, and sets its
    /// watches again.
    Lose(usize, Vec<Request>),
    /// A client closes its session, and begins another one.
    Close(usize),
}

/// Bytes as a sequence of choices; when they are used up, each choice is the first option.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, many: u8) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first % many
    }

    fn path(&mut self) -> Option<String> {
        const PATHS: [&str; 6] = ["/a", "/a/b", "/a/b/c", "/b", "/b/c", "/none/d"];
        Some(PATHS[usize::from(self.below(6))].to_owned())
    }

    fn data(&mut self) -> Option<Bytes> {
        let length = self.below(5);
        (length < 4).then(|| (0..length).map(|_| self.below(255)).collect())
    }

    fn version(&mut self) -> i32 {
        [-1, -1, -1, -1, 0, 1, 2][usize::from(self.below(7))]
    }

    fn create(&mut self) -> Create {
        let (path, data) = (self.path(), self.data());
        // The root has had children before, so its next number is not known.
        let at_root = path.as_deref().is_some_and(|path| path.rfind('/') == Some(0));
        let flags = match self.below(5) {
            3 if !at_root => CreateFlags::PersistentSequential,
            4 if !at_root => CreateFlags::EphemeralSequential,
            2 | 4 => CreateFlags::Ephemeral,
            _ => CreateFlags::Persistent,
        };
        let (scheme, id) = (Some("world".to_owned()), Some("anyone".to_owned()));
        let acl = request::Acl { perms: 31, scheme, id };
        Create { path, data, acl: Some(vec![acl]), flags: flags.into() }
    }

    fn delete(&mut self) -> Delete {
        Delete { path: self.path(), version: self.version() }
    }

    fn set(&mut self) -> SetData {
        SetData { path: self.path(), data: self.data(), version: self.version() }
    }

    fn read(&mut self) -> request::Read {
        request::Read { path: self.path(), watch: self.below(2) == 1 }
    }

    fn multi_op(&mut self) -> MultiOp {
        match self.below(9) {
            0..4 => MultiOp::Create(self.create()),
            4..6 => MultiOp::Delete(self.delete()),
            6..8 => MultiOp::SetData(self.set()),
            _ => MultiOp::Check(Check { path: self.path(), version: self.version() }),
        }
    }

    fn request(&mut self) -> Request {
        match self.below(46) {
            0..10 => Request::Create(self.create()),
            10..13 => Request::Create2(self.create()),
            13..18 => Request::Delete(self.delete()),
            18..24 => Request::SetData(self.set()),
            24..28 => Request::Exists(self.read()),
            28..32 => Request::GetData(self.read()),
            32..34 => Request::GetChildren(self.read()),
            34..36 => Request::GetChildren2(self.read()),
            36..39 => {
                let ops = (0..=self.below(3)).map(|_| self.multi_op()).collect();
                Request::Multi(MultiRequest { ops })
            }
            39 => {
                let (path, mode) = (self.path(), AddWatchMode::Persistent.into());
                Request::AddWatch(AddWatch { path, mode })
            }
            40 => {
                let (path, mode) = (self.path(), AddWatchMode::PersistentRecursive.into());
                Request::AddWatch(AddWatch { path, mode })
            }
            41 => Request::CheckWatches(WatchesOf { path: self.path(), kind: 3 }),
            42 => Request::RemoveWatches(WatchesOf { path: self.path(), kind: 3 }),
            43 => Request::Sync(PathOnly { path: self.path() }),
            44 => match self.below(2) {
                0 => Request::GetEphemerals(PathOnly { path: self.path() }),
                _ => Request::GetAllChildrenNumber(PathOnly { path: self.path() }),
            },
            _ => Request::Ping,
        }
    }

    fn requests(&mut self) -> Vec<Request> {
        (0..=self.below(4)).map(|_| self.request()).collect()
    }

    fn step(&mut self) -> Step {
        let client = usize::from(self.below(3));
        match self.below(19) {
            0..16 => Step::Ask(client, self.requests()),
            16..18 => Step::Lose(client, self.requests()),
            _ => Step::Close(client),
        }
    }
}

/// The body of a reply as text, without the times.
pub(super) fn text(request: &Request, mut body: Bytes) -> String {
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
        Request::SetData(_) | Request::Exists(_) => of::<Stat>(body, timeless),
        Request::GetData(_) => of::<DataReply>(body, |reply| timeless(&mut reply.stat)),
        Request::GetChildren(_) | Request::GetEphemerals(_) => of::<ChildrenReply>(body, |_| {}),
        Request::GetChildren2(_) => of::<Children2Reply>(body, |reply| timeless(&mut reply.stat)),
        Request::Multi(_) => of::<MultiReply>(body, |reply| {
            for result in &mut reply.results {
                if let Ok(MultiResult::SetData(stat)) = result {
                    timeless(stat);
                }
            }
        }),
        Request::AddWatch(_) => of::<i32>(body, |_| {}),
        Request::GetAllChildrenNumber(_) => of::<i32>(body, |_| {}),
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
    /// The last zxid that each client has seen.
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

    /// Sends all requests, and then compares the replies and the events between them.
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
            let answered: Answered = (code, body);
            assert_eq!(answered, expected, "{request:?}");
            let due = std::mem::take(&mut self.model.clients[client].events);
            assert_eq!(events, due, "the events before the reply to {request:?}");
        }
    }

    /// Checks that the other clients receive the expected events, and no others.
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
            one_shot: SetWatches {
                relative_zxid: seen,
                data: list(&watches.data),
                exist: list(&watches.exist),
                child: list(&watches.child),
            },
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

/// Runs the conversation that these bytes encode.
pub(crate) fn conversation(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let (_cluster, gateway) = one();
    let mut world = World::new(&gateway);
    while !choices.0.is_empty() {
        world.take(choices.step());
    }
}

#[cfg(test)]
proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..proptest::prelude::ProptestConfig::default()
    })]

    #[test]
    fn conversations_go_as_with_zookeeper(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600),
    ) {
        conversation(&bytes);
    }
}
