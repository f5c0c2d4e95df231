//! A random client: it sends requests, reads as it likes, loses its connections, and continues its session elsewhere.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::members::{MEMBERS, Members};
use crate::gateway::tests::model::Watches;
use crate::gateway::wire::codes::{AddWatchMode, CreateFlags, ErrorCode};
use crate::gateway::wire::handshake::{ConnectRequest, ConnectResponse};
use crate::gateway::wire::jute::{Credential, Jute};
use crate::gateway::wire::request::{
    self, AddWatch, Check, Create, Delete, MultiOp, MultiRequest, PathOnly, Request, SetData,
    SetWatches, SetWatches2, WatchesOf,
};
use crate::gateway::wire::response::{ReplyHeader, WatcherEvent};
use crate::simulation::random::Random;

/// What a client was sent after the first reply.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) header: ReplyHeader,
    pub(super) body: Bytes,
}

/// All that was said on a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Talk {
    name: String,
    pub(super) session: i64,
    /// The last zxid that the client had seen before.
    pub(super) seen: i64,
    /// The last write that the member had when the client connected.
    pub(super) opened_at: i64,
    /// The watches that it set again with its first request.
    pub(super) watches: Option<Watches>,
    pub(super) sent: Vec<(i32, Request)>,
    pub(super) told: Vec<Told>,
    /// The session was continued at another connection, with a state as of this zxid.
    pub(super) moved_at: Option<i64>,
}

impl fmt::Display for Talk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (session {:#x}, moved at {:?})", self.name, self.session, self.moved_at)
    }
}

/// How clients behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manners {
    /// In how many of a million milliseconds a client that may do so sends requests.
    pub(super) requests_ppm: u64,
    /// The same for the loss of its connection.
    pub(super) losses_ppm: u64,
    /// The same for the beginning of a time in which it does not read.
    pub(super) pauses_ppm: u64,
    /// How many of a hundred znodes have long data, and how long that is at most.
    pub(super) long_percent: u64,
    pub(super) data_bytes: u64,
    /// In how many of a million milliseconds it closes its session. It does so at times in any case.
    pub(super) closes_ppm: u64,
    /// The most requests that it sends at once.
    pub(super) burst: u64,
}

#[derive(Debug)]
struct Connection {
    member: usize,
    number: u64,
    inbox: BytesMut,
    /// The first reply has arrived.
    is_open: bool,
    /// The password is a wrong one.
    is_wrong: bool,
    /// The requests without a reply.
    waiting: VecDeque<Request>,
    last_xid: i32,
    last_sent: Duration,
    /// It reads nothing until then.
    pauses_until: Duration,
    closes: bool,
    /// The session is continued at another one.
    is_former: bool,
    talk: Talk,
}

#[derive(Debug)]
pub(super) struct Client {
    name: usize,
    random: Random,
    manners: Manners,
    connection: Option<Connection>,
    /// Connections that it left open when it moved its session.
    former: Vec<Connection>,
    /// Connections that it has closed.
    closed: Vec<(usize, u64)>,
    next_at: Duration,
    session: i64,
    password: Bytes,
    seen: i64,
    watches: Watches,
    writes: u64,
    pub(super) talks: Vec<Talk>,
    /// Sessions that it could not continue.
    pub(super) refused: Vec<(i64, String)>,
    /// A hash of all bytes received.
    pub(super) bytes: u64,
    pub(super) is_calm: bool,
}

const TIMEOUT_MS: i32 = 6_000;
const WAITING_MAX: usize = 40;
const PATHS: [&str; 6] = ["/t/a", "/t/a/b", "/t/a/b/c", "/t/d", "/t/d/e", "/t/none/f"];

impl Client {
    pub(super) fn new(name: usize, manners: Manners, random: Random) -> Client {
        Client {
            name,
            random,
            manners,
            connection: None,
            former: Vec::new(),
            closed: Vec::new(),
            next_at: Duration::ZERO,
            session: 0,
            password: Bytes::new(),
            seen: 0,
            watches: Watches::default(),
            writes: 0,
            talks: Vec::new(),
            refused: Vec::new(),
            bytes: 0,
            is_calm: false,
        }
    }

    /// Whether it has a connection, a reply to each request, and no other connection.
    pub(super) fn is_settled(&self) -> bool {
        let is_settled = |of: &Connection| of.is_open && of.waiting.is_empty();
        self.connection.as_ref().is_some_and(is_settled) && self.former.is_empty()
    }

    /// What it waits for.
    pub(super) fn describe(&self) -> String {
        let of = |of: &Connection| format!("{}: {:?}", of.talk, of.waiting.front());
        let all = self.connection.iter().chain(&self.former).map(of);
        format!("client {}: {}", self.name, all.collect::<Vec<_>>().join("; "))
    }

    /// Whether it is setting its watches again.
    pub(super) fn sets_watches(&self) -> bool {
        let first = self.connection.as_ref().and_then(|of| of.waiting.front());
        matches!(first, Some(Request::SetWatches2(_)))
            || self.connection.as_ref().is_some_and(|of| !of.is_open && !self.watches.is_empty())
    }

    /// Does what it does in a millisecond. Writes nothing while another client sets its watches again.
    pub(super) fn act(&mut self, members: &mut Members, is_quiet: bool) {
        let now = members.now();
        self.closed.retain(|(member, number)| {
            let is_over = members.pipe(*member, *number).is_over;
            if is_over {
                members.remove(*member, *number);
            }
            !is_over
        });
        for mut connection in std::mem::take(&mut self.former) {
            if self.read(&mut connection, members) {
                self.former.push(connection);
            } else {
                self.talks.push(connection.talk);
            }
        }
        let Some(mut connection) = self.connection.take() else {
            if now >= self.next_at {
                self.connect(members);
            }
            return;
        };
        if !self.read(&mut connection, members) {
            self.next_at = now + Duration::from_millis(self.random.below(300));
            self.talks.push(connection.talk);
            return;
        }
        if !self.is_calm && self.random.chance(self.manners.losses_ppm) {
            return self.lose(connection, members);
        }
        self.send(&mut connection, members, is_quiet);
        self.connection = Some(connection);
    }

    /// Sends requests at once.
    pub(super) fn send_all(&mut self, members: &mut Members, requests: &[Request]) {
        let mut connection = self.connection.take().expect("it is settled");
        for request in requests {
            self.request(&mut connection, members, request.clone());
        }
        self.connection = Some(connection);
    }

    /// Leaves its connection open, and continues its session at another one.
    pub(super) fn move_on(&mut self) {
        let connection = self.connection.take().expect("it is settled");
        self.former.push(Connection { is_former: true, ..connection });
    }

    /// The codes of the last replies.
    pub(super) fn last_codes(&self, count: usize) -> Vec<ErrorCode> {
        let told = &self.connection.as_ref().expect("it is settled").talk.told;
        let replies: Vec<&Told> = told.iter().filter(|told| told.header.xid >= 0).collect();
        let last = replies[replies.len() - count..].iter();
        last.map(|told| ErrorCode::try_from(told.header.err).expect("a known code")).collect()
    }

    pub(super) fn finish(&mut self) {
        let connections = self.connection.take().into_iter().chain(self.former.drain(..));
        self.talks.extend(connections.map(|of| of.talk));
    }

    fn connect(&mut self, members: &mut Members) {
        let now = members.now();
        let member = self.random.index(MEMBERS);
        self.next_at = now + Duration::from_millis(self.random.below(300));
        let Some(number) = members.connect(member) else { return };
        let name = format!("client {}, connection {number}", self.name);
        let opened_at = members.zxid(member);
        let (session, seen) = (self.session, self.seen);
        let talk = Talk { name, session, seen, opened_at, ..Talk::default() };
        let is_wrong = self.session != 0 && !self.is_calm && self.random.percent(3);
        let mut password = self.password.to_vec();
        if is_wrong {
            password[3] ^= 1;
        }
        let mut connection = Connection {
            member,
            number,
            inbox: BytesMut::new(),
            is_open: false,
            is_wrong,
            waiting: VecDeque::new(),
            last_xid: 0,
            last_sent: now,
            pauses_until: Duration::ZERO,
            closes: false,
            is_former: false,
            talk,
        };
        let greeting = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.seen,
            timeout: TIMEOUT_MS,
            session_id: self.session,
            password: Credential(Some(password.into())),
            read_only: Some(false),
        };
        let mut body = BytesMut::new();
        greeting.write(&mut body);
        write(&connection, members, &body);
        if self.session != 0 && !self.watches.is_empty() {
            let list = |paths: &BTreeSet<String>| paths.iter().cloned().map(Some).collect();
            let Watches { data, exist, child, persistent, recursive } = &self.watches;
            let one_shot = SetWatches {
                relative_zxid: self.seen,
                data: list(data),
                exist: list(exist),
                child: list(child),
            };
            let (persistent, recursive) = (list(persistent), list(recursive));
            let again = SetWatches2 { one_shot, persistent, persistent_recursive: recursive };
            connection.talk.watches = Some(self.watches.clone());
            self.request(&mut connection, members, Request::SetWatches2(again));
        }
        self.connection = Some(connection);
    }

    /// Leaves a connection: closes it in the middle of anything, or leaves it open and continues at another one.
    fn lose(&mut self, connection: Connection, members: &mut Members) {
        let pipe = members.pipe(connection.member, connection.number);
        match self.random.below(4) {
            0 if connection.is_open && !connection.is_wrong => {
                self.former.push(Connection { is_former: true, ..connection });
            }
            how => {
                match how {
                    1 => pipe.is_reset = true,
                    2 => pipe.client_closed = true,
                    _ => {
                        pipe.sent.truncate(self.random.index(pipe.sent.len() + 1));
                        pipe.client_closed = true;
                    }
                }
                self.closed.push((connection.member, connection.number));
                self.talks.push(connection.talk);
            }
        }
        let away = if self.random.percent(10) { 4_000 } else { 500 };
        self.next_at = members.now() + Duration::from_millis(self.random.below(away));
    }

    /// Reads what has arrived. Returns whether the connection still exists.
    fn read(&mut self, connection: &mut Connection, members: &mut Members) -> bool {
        let (now, random, manners) = (members.now(), &self.random, self.manners);
        if self.is_calm {
            connection.pauses_until = Duration::ZERO;
        } else if random.chance(manners.pauses_ppm) {
            connection.pauses_until = now + Duration::from_millis(random.below(3_000));
        }
        let pipe = members.pipe(connection.member, connection.number);
        if now >= connection.pauses_until {
            let some = if random.percent(20) { random.below(30) as usize } else { 50_000 };
            let some = some.min(pipe.unread.len());
            connection.inbox.extend(pipe.unread.drain(..some));
        }
        let is_over = pipe.is_over && pipe.unread.is_empty();
        while let Some(length) = connection.inbox.first_chunk::<4>() {
            let end = 4 + u32::from_be_bytes(*length) as usize;
            if connection.inbox.len() < end {
                break;
            }
            let frame = connection.inbox.split_to(end).freeze();
            self.bytes = xxh3_64_with_seed(&frame, self.bytes);
            self.take(connection, frame.slice(4..), members);
        }
        if is_over {
            members.remove(connection.member, connection.number);
        }
        !is_over
    }

    fn take(&mut self, connection: &mut Connection, mut frame: Bytes, members: &Members) {
        if !connection.is_open {
            let response = ConnectResponse::read(&mut frame).expect("a response");
            return self.opened(connection, response, members);
        }
        let header = ReplyHeader::read(&mut frame).expect("a header");
        let is_current = !connection.is_former && connection.talk.session == self.session;
        connection.talk.told.push(Told { header: header.clone(), body: frame.clone() });
        if header.xid == -1 {
            let event = WatcherEvent::read(&mut frame).expect("an event");
            if is_current {
                let kind = event.kind.try_into().expect("a kind of event");
                self.watches.fire(kind, &event.path);
            }
            return;
        }
        let request = connection.waiting.pop_front().expect("a request for each reply");
        if !is_current {
            return;
        }
        self.seen = self.seen.max(header.zxid);
        self.replied(&request, ErrorCode::try_from(header.err).expect("a known code"));
    }

    /// Notes the watches that are set or gone by this reply.
    fn replied(&mut self, request: &Request, code: ErrorCode) {
        let is_ok = code == ErrorCode::Ok;
        let Watches { data, exist, child, persistent, recursive } = &mut self.watches;
        let path = |path: &Option<String>| path.clone().unwrap_or_default();
        match request {
            Request::Exists(body) if body.watch && is_ok => drop(data.insert(path(&body.path))),
            Request::Exists(body) if body.watch && code == ErrorCode::NoNode => {
                exist.insert(path(&body.path));
            }
            Request::GetData(body) if body.watch && is_ok => drop(data.insert(path(&body.path))),
            Request::GetChildren(body) | Request::GetChildren2(body) if body.watch && is_ok => {
                child.insert(path(&body.path));
            }
            Request::AddWatch(body) if is_ok => {
                let is_recursive = body.mode == i32::from(AddWatchMode::PersistentRecursive);
                let to = if is_recursive { recursive } else { persistent };
                to.insert(path(&body.path));
            }
            Request::RemoveWatches(body) if is_ok => {
                for of in [data, exist, child, persistent, recursive] {
                    of.remove(&path(&body.path));
                }
            }
            Request::CloseSession if is_ok => self.forget_session(),
            _ => {}
        }
    }

    fn forget_session(&mut self) {
        (self.session, self.password, self.seen) = (0, Bytes::new(), 0);
        self.watches = Watches::default();
    }

    fn opened(
        &mut self,
        connection: &mut Connection,
        response: ConnectResponse,
        members: &Members,
    ) {
        connection.is_open = true;
        let Credential(password) = response.password;
        let password = password.expect("a password");
        if response.session_id == 0 {
            assert_eq!((response.timeout, &password[..]), (0, &[0; 16][..]));
            assert_ne!(connection.talk.session, 0, "a new session is not refused");
            if !connection.is_wrong && connection.talk.session == self.session {
                let (talk, now) = (&connection.talk, members.now());
                self.refused.push((self.session, format!("{talk} at {now:?}")));
                self.forget_session();
            }
            return;
        }
        assert!(!connection.is_wrong, "{}: a wrong password is accepted", connection.talk);
        let zxid = members.zxid(connection.member);
        if connection.talk.session == 0 {
            (self.session, self.password) = (response.session_id, password);
            connection.talk.session = self.session;
        } else {
            assert_eq!((response.session_id, &password), (connection.talk.session, &self.password));
        }
        for former in &mut self.former {
            former.talk.moved_at.get_or_insert(zxid);
        }
    }

    fn send(&mut self, connection: &mut Connection, members: &mut Members, is_quiet: bool) {
        let now = members.now();
        self.ping_on_former(members);
        if connection.closes {
            return;
        }
        let is_silent = self.random.chance(20) && !self.is_calm;
        if is_silent {
            // Longer than the session lasts.
            connection.last_sent = now + Duration::from_secs(9);
        }
        if now >= connection.last_sent + Duration::from_secs(2) {
            self.request(connection, members, Request::Ping);
        }
        if !self.is_calm && self.random.chance(self.manners.closes_ppm) {
            return self.request(connection, members, Request::CloseSession);
        }
        let is_due = self.random.chance(self.manners.requests_ppm) && now >= connection.last_sent;
        if self.is_calm || !is_due || connection.waiting.len() > WAITING_MAX {
            return;
        }
        for _ in 0..=self.random.below(self.manners.burst) {
            let request = self.draw(is_quiet);
            if connection.closes {
                break;
            }
            self.request(connection, members, request);
        }
        // On the connections that it left open, its session may not write any more.
        if self.random.percent(30) && connection.is_open {
            for mut former in std::mem::take(&mut self.former) {
                let request = self.draw(is_quiet);
                if !members.pipe(former.member, former.number).is_over && !former.closes {
                    self.request(&mut former, members, request);
                }
                self.former.push(former);
            }
        }
    }

    /// Keeps the connections that it left open alive, until the gateway ends them.
    fn ping_on_former(&mut self, members: &mut Members) {
        for mut former in std::mem::take(&mut self.former) {
            let is_due = members.now() >= former.last_sent + Duration::from_secs(2);
            let is_over = members.pipe(former.member, former.number).is_over;
            if is_due && !is_over && !former.closes {
                self.request(&mut former, members, Request::Ping);
            }
            self.former.push(former);
        }
    }

    fn request(&mut self, connection: &mut Connection, members: &mut Members, request: Request) {
        connection.last_xid += 1;
        connection.last_sent = members.now();
        connection.closes = request == Request::CloseSession;
        let mut body = BytesMut::new();
        request.encode(connection.last_xid, &mut body);
        write(connection, members, &body);
        connection.talk.sent.push((connection.last_xid, request.clone()));
        connection.waiting.push_back(request);
    }

    /// A znode that everybody may change.
    pub(super) fn create_of(path: &str, data: Option<Bytes>, flags: CreateFlags) -> Create {
        let (scheme, id) = (Some("world".to_owned()), Some("anyone".to_owned()));
        let acl = request::Acl { perms: 31, scheme, id };
        Create { path: Some(path.to_owned()), data, acl: Some(vec![acl]), flags: flags.into() }
    }

    fn path(&self) -> Option<String> {
        Some((*self.random.pick(&PATHS)).to_owned())
    }

    /// Data that nobody else writes.
    fn data(&mut self) -> Option<Bytes> {
        self.writes += 1;
        let mut data = format!("{}.{}.", self.name, self.writes).into_bytes();
        if self.random.percent(self.manners.long_percent) {
            data.resize(data.len() + self.random.below(self.manners.data_bytes + 1) as usize, b'-');
        }
        Some(data.into())
    }

    fn version(&self) -> i32 {
        *self.random.pick(&[-1, -1, -1, 0, 1, 2])
    }

    fn create(&mut self) -> Create {
        let path = *self.random.pick(&PATHS);
        let data = self.data();
        let flags = match self.random.below(6) {
            3 => CreateFlags::PersistentSequential,
            4 => CreateFlags::EphemeralSequential,
            5 => CreateFlags::Ephemeral,
            _ => CreateFlags::Persistent,
        };
        Self::create_of(path, data, flags)
    }

    fn read_of(&self) -> request::Read {
        request::Read { path: self.path(), watch: self.random.percent(50) }
    }

    fn draw(&mut self, is_quiet: bool) -> Request {
        let from = if is_quiet { 50 } else { 0 };
        match self.random.within(from..100) {
            0..16 => Request::Create(self.create()),
            16..20 => Request::Create2(self.create()),
            20..30 => Request::Delete(Delete { path: self.path(), version: self.version() }),
            30..44 => {
                let (path, version) = (self.path(), self.version());
                Request::SetData(SetData { path, data: self.data(), version })
            }
            44..49 => Request::Multi(MultiRequest { ops: self.ops() }),
            49 => {
                if self.random.percent(20) {
                    Request::CloseSession
                } else {
                    Request::Ping
                }
            }
            50..60 => Request::Exists(self.read_of()),
            60..72 => Request::GetData(self.read_of()),
            72..78 => Request::GetChildren(self.read_of()),
            78..82 => Request::GetChildren2(self.read_of()),
            82..85 => {
                let (path, mode) = (self.path(), AddWatchMode::Persistent.into());
                Request::AddWatch(AddWatch { path, mode })
            }
            85..87 => {
                let (path, mode) = (self.path(), AddWatchMode::PersistentRecursive.into());
                Request::AddWatch(AddWatch { path, mode })
            }
            87..89 => Request::CheckWatches(WatchesOf { path: self.path(), kind: 3 }),
            89..91 => Request::RemoveWatches(WatchesOf { path: self.path(), kind: 3 }),
            91..94 => Request::Sync(PathOnly { path: self.path() }),
            94 => Request::GetEphemerals(PathOnly { path: self.path() }),
            95 => Request::GetAllChildrenNumber(PathOnly { path: self.path() }),
            96 => {
                let (scheme, auth) = (Some("slow".to_owned()), Credential(Some("me".into())));
                Request::Auth(request::Auth { kind: 0, scheme, auth })
            }
            _ => Request::Ping,
        }
    }

    /// The first of them changes something, if none of them fails.
    fn ops(&mut self) -> Vec<MultiOp> {
        let first = MultiOp::Create(self.create());
        let rest = (0..self.random.below(3)).map(|_| match self.random.below(4) {
            0 => MultiOp::Create(self.create()),
            1 => MultiOp::Delete(Delete { path: self.path(), version: self.version() }),
            2 => {
                let (path, version) = (self.path(), self.version());
                MultiOp::SetData(SetData { path, data: self.data(), version })
            }
            _ => MultiOp::Check(Check { path: self.path(), version: self.version() }),
        });
        let rest: Vec<MultiOp> = rest.collect();
        std::iter::once(first).chain(rest).collect()
    }
}

fn write(connection: &Connection, members: &mut Members, body: &[u8]) {
    let pipe = members.pipe(connection.member, connection.number);
    pipe.sent.extend(u32::try_from(body.len()).expect("it is short").to_be_bytes());
    pipe.sent.extend(body);
}
