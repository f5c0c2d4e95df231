//! A simple model of ZooKeeper: a map of znodes, sets of watches, and one request after the other.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::gateway::wire::codes::{AddWatchMode, CreateFlags, ErrorCode, EventType};
use crate::gateway::wire::request::{Create, Delete, MultiOp, Request, SetData, WatchesOf};
use crate::gateway::wire::response::{
    Children2Reply, ChildrenReply, Create2Reply, DataReply, MultiReply, MultiResult, PathReply,
    Stat,
};

pub(super) type Event = (EventType, String);

/// The reply to a request: a code, and the body as text.
pub(super) type Answered = (ErrorCode, String);

/// The text of every reply without a body.
pub(super) const NOTHING: &str = "nothing";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Znode {
    data: Option<Bytes>,
    czxid: i64,
    mzxid: i64,
    pzxid: i64,
    version: i32,
    cversion: i32,
    creates: u32,
    owner: i64,
}

/// The watches of a client, as the client knows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Watches {
    pub(super) data: BTreeSet<String>,
    pub(super) exist: BTreeSet<String>,
    pub(super) child: BTreeSet<String>,
    pub(super) persistent: BTreeSet<String>,
    pub(super) recursive: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    pub(super) session: i64,
    pub(super) watches: Watches,
    /// The events that the client has to receive.
    pub(super) events: Vec<Event>,
    pub(super) is_away: bool,
}

/// A change of a znode that is known to have happened.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Created { path: String, data: Option<Bytes>, owner: i64 },
    Set { path: String, data: Option<Bytes> },
    Deleted { path: String },
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    znodes: BTreeMap<String, Znode>,
    pub(super) clients: Vec<Client>,
    history: Vec<(i64, Event)>,
}

/// The znodes during a request, which may still fail, and the events of its changes.
struct Attempt {
    znodes: BTreeMap<String, Znode>,
    events: Vec<Event>,
    session: i64,
    zxid: i64,
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(slash) => &path[..slash],
    }
}

/// Whether a path is this one or below it.
fn covers(above: &str, path: &str) -> bool {
    above == "/"
        || path == above
        || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

fn path_of(path: Option<&String>) -> String {
    path.cloned().unwrap_or_default()
}

impl Attempt {
    fn children(&self, path: &str) -> Vec<String> {
        let is_child = |at: &&String| *at != "/" && parent(at) == path;
        let name = |at: &String| at[at.rfind('/').map_or(0, |slash| slash + 1)..].to_owned();
        self.znodes.keys().filter(is_child).map(name).collect()
    }

    fn stat(&self, path: &str) -> Option<Stat> {
        let znode = self.znodes.get(path)?;
        let length = |len: usize| i32::try_from(len).unwrap_or(i32::MAX);
        Some(Stat {
            czxid: znode.czxid,
            mzxid: znode.mzxid,
            ctime: 0,
            mtime: 0,
            version: znode.version,
            cversion: znode.cversion,
            aversion: 0,
            ephemeral_owner: znode.owner,
            data_length: length(znode.data.as_ref().map_or(0, Bytes::len)),
            num_children: length(self.children(path).len()),
            pzxid: znode.pzxid,
        })
    }

    fn child_changed(&mut self, path: &str, creates: u32) {
        let parent = parent(path).to_owned();
        if let Some(znode) = self.znodes.get_mut(&parent) {
            znode.cversion += 1;
            znode.creates += creates;
            znode.pzxid = self.zxid;
        }
        self.events.push((EventType::NodeChildrenChanged, parent));
    }

    fn create(&mut self, body: &Create) -> Result<String, ErrorCode> {
        let flags = CreateFlags::try_from(body.flags).expect("known flags are drawn");
        let sequential =
            matches!(flags, CreateFlags::PersistentSequential | CreateFlags::EphemeralSequential);
        let ephemeral = matches!(flags, CreateFlags::Ephemeral | CreateFlags::EphemeralSequential);
        let asked = path_of(body.path.as_ref());
        let above = self.znodes.get(parent(&asked)).ok_or(ErrorCode::NoNode)?;
        let path = match sequential {
            true => format!("{asked}{:010}", above.creates),
            false => asked,
        };
        if self.znodes.contains_key(&path) {
            return Err(ErrorCode::NodeExists);
        }
        if above.owner != 0 {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        let owner = if ephemeral { self.session } else { 0 };
        self.add(&path, body.data.clone(), owner);
        Ok(path)
    }

    fn add(&mut self, path: &str, data: Option<Bytes>, owner: i64) {
        let (czxid, mzxid, pzxid) = (self.zxid, self.zxid, self.zxid);
        let znode = Znode { data, czxid, mzxid, pzxid, owner, ..Znode::default() };
        self.znodes.insert(path.to_owned(), znode);
        self.events.push((EventType::NodeCreated, path.to_owned()));
        self.child_changed(path, 1);
    }

    fn is_version(&self, path: &str, version: i32) -> Result<(), ErrorCode> {
        let znode = self.znodes.get(path).ok_or(ErrorCode::NoNode)?;
        match version == -1 || version == znode.version {
            true => Ok(()),
            false => Err(ErrorCode::BadVersion),
        }
    }

    fn delete(&mut self, body: &Delete) -> Result<(), ErrorCode> {
        let path = path_of(body.path.as_ref());
        self.is_version(&path, body.version)?;
        if !self.children(&path).is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        self.remove(&path);
        Ok(())
    }

    fn remove(&mut self, path: &str) {
        self.znodes.remove(path);
        self.events.push((EventType::NodeDeleted, path.to_owned()));
        self.child_changed(path, 0);
    }

    fn set(&mut self, body: &SetData) -> Result<Stat, ErrorCode> {
        let path = path_of(body.path.as_ref());
        self.is_version(&path, body.version)?;
        self.change(&path, body.data.clone());
        self.stat(&path).ok_or(ErrorCode::NoNode)
    }

    fn change(&mut self, path: &str, data: Option<Bytes>) {
        if let Some(znode) = self.znodes.get_mut(path) {
            (znode.data, znode.mzxid) = (data, self.zxid);
            znode.version += 1;
        }
        self.events.push((EventType::NodeDataChanged, path.to_owned()));
    }

    fn multi_op(&mut self, op: &MultiOp) -> Result<MultiResult, ErrorCode> {
        Ok(match op {
            MultiOp::Create(body) => {
                MultiResult::Create(PathReply { path: Some(self.create(body)?) })
            }
            MultiOp::Delete(body) => {
                self.delete(body)?;
                MultiResult::Delete
            }
            MultiOp::SetData(body) => MultiResult::SetData(self.set(body)?),
            MultiOp::Check(body) => {
                self.is_version(&path_of(body.path.as_ref()), body.version)?;
                MultiResult::Check
            }
            other => unreachable!("{other:?} is not drawn"),
        })
    }
}

impl Model {
    pub(super) fn new(clients: usize) -> Model {
        let clients = std::iter::repeat_with(Client::default).take(clients).collect();
        Model {
            znodes: BTreeMap::from([("/".to_owned(), Znode::default())]),
            clients,
            history: Vec::new(),
        }
    }

    fn attempt(&self, client: usize, zxid: i64) -> Attempt {
        let session = self.clients[client].session;
        Attempt { znodes: self.znodes.clone(), events: Vec::new(), session, zxid }
    }

    fn commit(&mut self, attempt: Attempt) {
        self.znodes = attempt.znodes;
        for (kind, path) in attempt.events {
            self.history.push((attempt.zxid, (kind, path.clone())));
            for client in self.clients.iter_mut().filter(|client| !client.is_away) {
                if client.watches.fire(kind, &path) {
                    client.events.push((kind, path.clone()));
                }
            }
        }
    }

    /// Takes the changes of a write that has happened.
    pub(super) fn happen(&mut self, zxid: i64, changes: &[Change]) {
        let mut attempt = self.attempt(0, zxid);
        for change in changes {
            match change {
                Change::Created { path, data, owner } => attempt.add(path, data.clone(), *owner),
                Change::Set { path, data } => attempt.change(path, data.clone()),
                Change::Deleted { path } => attempt.remove(path),
            }
        }
        self.commit(attempt);
    }

    /// The same, without what has happened before.
    pub(super) fn as_it_is(&self) -> Model {
        let Model { znodes, clients, .. } = self;
        Model { znodes: znodes.clone(), clients: clients.clone(), history: Vec::new() }
    }

    /// The first znode that differs between the two.
    pub(super) fn differs(&self, other: &Model) -> Option<String> {
        let paths = self.znodes.keys().chain(other.znodes.keys());
        let of = |path: &&String| self.znodes.get(*path) != other.znodes.get(*path);
        let path = paths.filter(of).min()?;
        Some(format!("{path}: {:?}, not {:?}", self.znodes.get(path), other.znodes.get(path)))
    }

    /// Executes a request, and returns its reply; `zxid` is that of the gateway's reply.
    pub(super) fn ask(&mut self, client: usize, request: &Request, zxid: i64) -> Answered {
        match self.answer(client, request, zxid) {
            Ok(body) => (ErrorCode::Ok, body),
            Err(code) => (code, NOTHING.to_owned()),
        }
    }

    fn answer(&mut self, client: usize, request: &Request, zxid: i64) -> Result<String, ErrorCode> {
        let mut attempt = self.attempt(client, zxid);
        let watches = &mut self.clients[client].watches;
        let text = match request {
            Request::Create(body) => {
                let path = Some(attempt.create(body)?);
                format!("{:?}", PathReply { path })
            }
            Request::Create2(body) => {
                let path = attempt.create(body)?;
                let stat = attempt.stat(&path).ok_or(ErrorCode::NoNode)?;
                format!("{:?}", Create2Reply { path, stat })
            }
            Request::Delete(body) => {
                attempt.delete(body)?;
                NOTHING.to_owned()
            }
            Request::SetData(body) => format!("{:?}", attempt.set(body)?),
            Request::Exists(body) => {
                let path = path_of(body.path.as_ref());
                let stat = attempt.stat(&path);
                if body.watch {
                    let of = if stat.is_some() { &mut watches.data } else { &mut watches.exist };
                    of.insert(path);
                }
                format!("{:?}", stat.ok_or(ErrorCode::NoNode)?)
            }
            Request::GetData(body) => {
                let path = path_of(body.path.as_ref());
                let stat = attempt.stat(&path).ok_or(ErrorCode::NoNode)?;
                let data = attempt.znodes[&path].data.clone();
                if body.watch {
                    watches.data.insert(path);
                }
                format!("{:?}", DataReply { data, stat })
            }
            Request::GetChildren(body) | Request::GetChildren2(body) => {
                let path = path_of(body.path.as_ref());
                let stat = attempt.stat(&path).ok_or(ErrorCode::NoNode)?;
                let children = attempt.children(&path);
                if body.watch {
                    watches.child.insert(path);
                }
                match request {
                    Request::GetChildren(_) => format!("{:?}", ChildrenReply { children }),
                    _ => format!("{:?}", Children2Reply { children, stat }),
                }
            }
            Request::Sync(body) => format!("{:?}", PathReply { path: body.path.clone() }),
            Request::Multi(multi) => {
                let mut results = Vec::new();
                let mut failed = None;
                for (place, op) in multi.ops.iter().enumerate() {
                    match attempt.multi_op(op) {
                        Ok(result) => results.push(Ok(result)),
                        Err(code) => {
                            failed = Some((place, code));
                            break;
                        }
                    }
                }
                if let Some((failed, code)) = failed {
                    let of = |place: usize| match place.cmp(&failed) {
                        std::cmp::Ordering::Less => ErrorCode::Ok,
                        std::cmp::Ordering::Equal => code,
                        std::cmp::Ordering::Greater => ErrorCode::RuntimeInconsistency,
                    };
                    let error = |place| Err(of(place).into());
                    let results = (0..multi.ops.len()).map(error).collect();
                    return Ok(format!("{:?}", MultiReply { results }));
                }
                format!("{:?}", MultiReply { results })
            }
            Request::AddWatch(body) => {
                let path = path_of(body.path.as_ref());
                match AddWatchMode::try_from(body.mode) {
                    Ok(AddWatchMode::Persistent) => watches.persistent.insert(path),
                    _ => watches.recursive.insert(path),
                };
                format!("{:?}", 0)
            }
            Request::CheckWatches(body) => {
                let has = watches.all().iter().any(|of| of.contains(&path_of(body.path.as_ref())));
                return if has { Ok(NOTHING.to_owned()) } else { Err(ErrorCode::NoWatcher) };
            }
            Request::RemoveWatches(WatchesOf { path, .. }) => {
                let path = path_of(path.as_ref());
                let removed = watches.all().map(|of| of.remove(&path));
                return match removed.contains(&true) {
                    true => Ok(NOTHING.to_owned()),
                    false => Err(ErrorCode::NoWatcher),
                };
            }
            Request::GetEphemerals(body) => {
                let prefix = path_of(body.path.as_ref());
                let is_own = |(path, znode): &(&String, &Znode)| {
                    znode.owner == attempt.session && path.starts_with(&prefix)
                };
                let own = attempt.znodes.iter().filter(is_own).map(|(path, _)| path.clone());
                format!("{:?}", ChildrenReply { children: own.collect() })
            }
            Request::GetAllChildrenNumber(body) => {
                let above = path_of(body.path.as_ref());
                attempt.znodes.get(&above).ok_or(ErrorCode::NoNode)?;
                let below = attempt.znodes.keys().filter(|path| covers(&above, path)).count() - 1;
                format!("{:?}", i32::try_from(below).unwrap_or(i32::MAX))
            }
            Request::Ping => NOTHING.to_owned(),
            Request::CloseSession => {
                let session = attempt.session;
                let is_own = |(_, znode): &(&String, &Znode)| znode.owner == session;
                let own = attempt.znodes.iter().filter(is_own).map(|(path, _)| path.clone());
                for path in own.collect::<Vec<_>>() {
                    attempt.remove(&path);
                }
                // The session receives the reply to its own close.
                NOTHING.to_owned()
            }
            other => unreachable!("{other:?} is not drawn"),
        };
        self.commit(attempt);
        if *request == Request::CloseSession {
            self.clients[client].watches = Watches::default();
        }
        Ok(text)
    }

    /// The changes after `zxid`.
    pub(super) fn since(&self, zxid: i64) -> Vec<(i64, Event)> {
        self.history.iter().filter(|(at, _)| *at > zxid).cloned().collect()
    }

    /// The events that a client's persistent watches get for the changes after `zxid`.
    pub(super) fn lasting_since(&self, client: usize, zxid: i64) -> Vec<(i64, Event)> {
        let watches = &self.clients[client].watches;
        let after = self.history.iter().filter(|(at, _)| *at > zxid);
        after.filter(|(_, (kind, path))| watches.lasting(*kind, path)).cloned().collect()
    }

    /// The events that a client has missed since it saw `zxid`, when it sets its watches again.
    pub(super) fn missed(&mut self, client: usize, zxid: i64) -> BTreeSet<(i32, String)> {
        let mut missed = BTreeSet::new();
        let mut miss = |kind: EventType, path: &String| missed.insert((kind.into(), path.clone()));
        let Client { watches, is_away, events, .. } = &mut self.clients[client];
        (*is_away, *events) = (false, Vec::new());
        let znodes = &self.znodes;
        watches.data.retain(|path| match znodes.get(path) {
            None => !miss(EventType::NodeDeleted, path),
            Some(znode) if znode.mzxid > zxid => !miss(EventType::NodeDataChanged, path),
            Some(_) => true,
        });
        watches
            .exist
            .retain(|path| !(znodes.contains_key(path) && miss(EventType::NodeCreated, path)));
        watches.child.retain(|path| match znodes.get(path) {
            None => {
                miss(EventType::NodeDeleted, path);
                false
            }
            Some(znode) if znode.pzxid > zxid => !miss(EventType::NodeChildrenChanged, path),
            Some(_) => true,
        });
        for (_, (kind, path)) in self.history.iter().filter(|(at, _)| *at > zxid) {
            if watches.lasting(*kind, path) {
                miss(*kind, path);
            }
        }
        missed
    }
}

impl Watches {
    pub(super) fn is_empty(&self) -> bool {
        let Watches { data, exist, child, persistent, recursive } = self;
        [data, exist, child, persistent, recursive].into_iter().all(BTreeSet::is_empty)
    }

    fn all(&mut self) -> [&mut BTreeSet<String>; 5] {
        let Watches { data, exist, child, persistent, recursive } = self;
        [data, exist, child, persistent, recursive]
    }

    fn lasting(&self, kind: EventType, path: &str) -> bool {
        let below = || self.recursive.iter().any(|above| covers(above, path));
        self.persistent.contains(path) || (kind != EventType::NodeChildrenChanged && below())
    }

    /// Whether a change fires a watch of this client.
    pub(super) fn fire(&mut self, kind: EventType, path: &str) -> bool {
        let once = match kind {
            EventType::NodeChildrenChanged => self.child.remove(path),
            EventType::NodeDeleted => {
                let of = [&mut self.data, &mut self.exist, &mut self.child];
                of.map(|watches| watches.remove(path)).contains(&true)
            }
            _ => [&mut self.data, &mut self.exist].map(|of| of.remove(path)).contains(&true),
        };
        once || self.lasting(kind, path)
    }
}
