//! The machine against a model that is slow, plain and obviously right: one
//! map of paths, everything else counted or copied each time it is needed.
//!
//! Random requests go to both. After each batch the replies, the changes, all
//! stats and all children must agree; replicas that saw the same batches, or
//! were restored from chunks half-way, must agree in every hash.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::command::{
    Batch, Change, ChangeKind, Command, Op, OpError, Outcome, Reply, Request, SessionChange,
};
use super::snapshot::{ChunkReader, ChunkWriter};
use super::{DATA_BYTES_MAX, Machine};
use crate::path;
use crate::znode::{CreateMode, Created, OpResult, SessionId, Stat};

#[derive(Clone, Default)]
struct ModelZnode {
    data: Vec<u8>,
    /// Of the stat only what is not counted: zxids, times, version and owner.
    stat: Stat,
    creates: u64,
    deletes: u64,
}

#[derive(Clone)]
struct ModelSession {
    secret: [u8; 16],
    timeout_ms: u32,
    holders: Vec<u64>,
    results: Vec<Result<Reply, OpError>>,
    acked: u64,
}

#[derive(Clone)]
struct Model {
    znodes: BTreeMap<String, ModelZnode>,
    sessions: BTreeMap<SessionId, ModelSession>,
    ended: BTreeSet<SessionId>,
    zxid: u64,
    time: u64,
    changes: Vec<Change>,
    session_changes: Vec<SessionChange>,
}

impl Model {
    fn new() -> Model {
        let reserved = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];
        Model {
            znodes: reserved.map(|path| (path.to_owned(), ModelZnode::default())).into(),
            sessions: BTreeMap::new(),
            ended: BTreeSet::new(),
            zxid: 0,
            time: 0,
            changes: Vec::new(),
            session_changes: Vec::new(),
        }
    }

    fn children(&self, path: &str) -> Vec<String> {
        self.znodes
            .keys()
            .filter(|other| path::parent(other) == Some(path))
            .map(|child| path::name(child).to_owned())
            .collect()
    }

    fn stat(&self, path: &str) -> Stat {
        let znode = &self.znodes[path];
        Stat {
            cversion: znode.creates + znode.deletes,
            data_length: znode.data.len() as u32,
            num_children: self.children(path).len() as u32,
            ..znode.stat
        }
    }

    fn change(&mut self, zxid: u64, kind: ChangeKind, path: &str) {
        let path = path.to_owned();
        self.changes.push(Change { zxid, kind, path });
    }

    fn apply(&mut self, term: u64, request: &Request) -> Result<Reply, OpError> {
        let id = request.session;
        match &request.command {
            Command::Open { .. } if self.ended.contains(&id) => Err(OpError::SessionExpired),
            Command::Open { secret, timeout_ms, .. } => match self.sessions.get(&id) {
                Some(known)
                    if known.secret == *secret && known.holders.last() == Some(&request.holder) =>
                {
                    Ok(Reply::Session { timeout_ms: known.timeout_ms })
                }
                Some(_) => Err(OpError::WrongSecret),
                None => {
                    let session = ModelSession {
                        secret: *secret,
                        timeout_ms: *timeout_ms,
                        holders: vec![request.holder],
                        results: Vec::new(),
                        acked: 0,
                    };
                    self.sessions.insert(id, session);
                    self.zxid += 1;
                    self.session_changes.push(SessionChange::Held(id));
                    Ok(Reply::Session { timeout_ms: *timeout_ms })
                }
            },
            Command::Resume { secret, timeout_ms, .. } => {
                let session = self.sessions.get_mut(&id).ok_or(OpError::SessionExpired)?;
                if session.secret != *secret {
                    return Err(OpError::WrongSecret);
                }
                if session.holders.last() == Some(&request.holder) {
                    return Ok(Reply::Session { timeout_ms: session.timeout_ms });
                }
                if session.holders.contains(&request.holder) {
                    return Err(OpError::SessionMoved);
                }
                session.holders.push(request.holder);
                session.timeout_ms = *timeout_ms;
                session.results.clear();
                session.acked = 0;
                self.zxid += 1;
                self.session_changes.push(SessionChange::Held(id));
                Ok(Reply::Session { timeout_ms: *timeout_ms })
            }
            Command::Expire { term: decided } => {
                let session = self.sessions.get(&id).ok_or(OpError::SessionExpired)?;
                if *decided != term || session.holders.last() != Some(&request.holder) {
                    return Err(OpError::StaleExpiry);
                }
                Ok(self.close(id))
            }
            command => {
                let session = self.sessions.get_mut(&id).ok_or(OpError::SessionExpired)?;
                if session.holders.last() != Some(&request.holder) {
                    return Err(OpError::SessionMoved);
                }
                let last = session.results.len() as u64;
                if request.seq > last + 1 {
                    return Err(OpError::OutOfOrder);
                }
                session.acked = session.acked.max(request.acked.min(last + 1));
                if request.seq <= last {
                    return if request.seq == 0 || request.seq < session.acked {
                        Err(OpError::OutOfOrder)
                    } else {
                        session.results[request.seq as usize - 1].clone()
                    };
                }
                let result = match command {
                    Command::Close => return Ok(self.close(id)),
                    Command::Op(op) => {
                        let zxid = self.zxid + 1;
                        self.op(id, zxid, op, std::slice::from_ref(op)).map(|result| match result {
                            OpResult::Created(created) => Reply::Created(created),
                            OpResult::Set(stat) => Reply::Set(stat),
                            OpResult::Deleted | OpResult::Checked => Reply::Done,
                        })
                    }
                    Command::Multi(ops) => self.multi(id, ops),
                    _ => unreachable!(),
                };
                let session = self.sessions.get_mut(&id).expect("it was there just now");
                session.results.push(result.clone());
                result
            }
        }
    }

    fn close(&mut self, id: SessionId) -> Reply {
        self.zxid += 1;
        let owned = |(_, znode): &(&String, &ModelZnode)| znode.stat.ephemeral_owner == Some(id);
        let owned: Vec<String> =
            self.znodes.iter().filter(owned).map(|(path, _)| path.clone()).collect();
        for path in owned {
            self.delete(self.zxid, &path);
        }
        let holder = self.sessions.remove(&id).and_then(|session| session.holders.last().copied());
        self.ended.insert(id);
        self.session_changes.push(SessionChange::Gone(id, holder.unwrap_or(0)));
        Reply::Done
    }

    fn multi(&mut self, id: SessionId, ops: &[Op]) -> Result<Reply, OpError> {
        let before = self.clone();
        let zxid = self.zxid + 1;
        let mut results = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            match self.op(id, zxid, op, &ops[..=index]) {
                Ok(result) => results.push(result),
                Err(mut error) => {
                    *self = before;
                    if let OpError::TooLarge { size, .. } = &mut error {
                        *size = data_bytes(ops);
                    }
                    return Err(OpError::Multi { index: index as u32, error: Box::new(error) });
                }
            }
        }
        Ok(Reply::Multi(results))
    }

    fn delete(&mut self, zxid: u64, path: &str) {
        self.znodes.remove(path);
        let parent = path::parent(path).expect("the root is never deleted");
        let parent = self.znodes.get_mut(parent).expect("a parent exists");
        parent.deletes += 1;
        parent.stat.pzxid = zxid;
        self.change(zxid, ChangeKind::Deleted, path);
    }

    fn op(
        &mut self,
        id: SessionId,
        zxid: u64,
        op: &Op,
        so_far: &[Op],
    ) -> Result<OpResult, OpError> {
        let path = op.path().to_owned();
        let valid = match op {
            Op::Create { mode, .. } if mode.is_sequential() => path::validate_sequential(&path),
            _ => path::validate(&path),
        };
        if let Err(crate::error::Error::InvalidPath { path, reason }) = valid {
            let reason = reason.into_owned();
            return Err(OpError::InvalidPath { path, reason });
        }
        let size = data_bytes(so_far);
        let has_data = matches!(op, Op::Create { .. } | Op::Set { .. });
        if has_data && size > DATA_BYTES_MAX as u64 {
            let limit = DATA_BYTES_MAX as u64;
            return Err(OpError::TooLarge { path, size, limit });
        }
        match op {
            Op::Create { data, mode, .. } => {
                let parent = match path.rsplit_once('/') {
                    _ if path == "/" && !mode.is_sequential() => {
                        return Err(OpError::NodeExists { path });
                    }
                    Some(("", _)) | None => "/".to_owned(),
                    Some((parent, _)) => parent.to_owned(),
                };
                let Some(znode) = self.znodes.get(&parent) else {
                    return Err(OpError::NoNode { path: parent });
                };
                let path = if mode.is_sequential() {
                    format!("{path}{:010}", znode.creates)
                } else {
                    path
                };
                if self.znodes.contains_key(&path) {
                    return Err(OpError::NodeExists { path });
                }
                if znode.stat.ephemeral_owner.is_some() {
                    return Err(OpError::NoChildrenForEphemerals { path: parent });
                }
                let parent = self.znodes.get_mut(&parent).expect("it was there just now");
                parent.creates += 1;
                parent.stat.pzxid = zxid;
                let stat = Stat {
                    czxid: zxid,
                    mzxid: zxid,
                    pzxid: zxid,
                    ctime: self.time,
                    mtime: self.time,
                    ephemeral_owner: mode.is_ephemeral().then_some(id),
                    ..Stat::default()
                };
                let znode = ModelZnode { data: data.to_vec(), stat, ..ModelZnode::default() };
                self.znodes.insert(path.clone(), znode);
                self.zxid = zxid;
                self.change(zxid, ChangeKind::Created, &path);
                let stat = self.stat(&path);
                Ok(OpResult::Created(Created { path, stat }))
            }
            Op::Set { data, version, .. } => {
                self.check(&path, *version)?;
                let znode = self.znodes.get_mut(&path).expect("it was there just now");
                znode.data = data.to_vec();
                znode.stat.version += 1;
                znode.stat.mzxid = zxid;
                znode.stat.mtime = self.time;
                self.zxid = zxid;
                self.change(zxid, ChangeKind::DataChanged, &path);
                Ok(OpResult::Set(self.stat(&path)))
            }
            Op::Delete { version, .. } => {
                if Model::new().znodes.contains_key(&path) {
                    return Err(OpError::Reserved { path });
                }
                self.check(&path, *version)?;
                if !self.children(&path).is_empty() {
                    return Err(OpError::NotEmpty { path });
                }
                self.zxid = zxid;
                self.delete(zxid, &path);
                Ok(OpResult::Deleted)
            }
            Op::Check { version, .. } => {
                self.check(&path, *version)?;
                Ok(OpResult::Checked)
            }
        }
    }

    fn check(&self, path: &str, version: Option<u64>) -> Result<(), OpError> {
        let path = path.to_owned();
        match (self.znodes.get(&path), version) {
            (None, _) => Err(OpError::NoNode { path }),
            (Some(znode), Some(expected)) if znode.stat.version != expected => {
                Err(OpError::BadVersion { path, expected, actual: znode.stat.version })
            }
            _ => Ok(()),
        }
    }
}

fn data_bytes(ops: &[Op]) -> u64 {
    ops.iter()
        .map(|op| match op {
            Op::Create { data, .. } | Op::Set { data, .. } => data.len() as u64,
            _ => 0,
        })
        .sum()
}

/// A request before it is known what its session's next number is.
#[derive(Clone, Debug)]
struct Draft {
    session: u64,
    holder: Who,
    /// From the next number: 0 is the next one itself, -1 the last one again.
    seq_offset: i64,
    acked_offset: i64,
    command: Command,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Present,
    Number(u64),
}

fn paths() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => prop::sample::select(vec![
            "/a", "/b", "/a-", "/a/x", "/a/y", "/a/x/1", "/a/x/2", "/b/n-", "/zookeeper/quota/q",
        ]),
        2 => prop::sample::select(vec![
            "/", "/zookeeper", "/zookeeper/config", "/a/", "/q/", "bad", "", "/a//b", "/a/..",
            "/none/x", "/a0000000000", "/b/0000000001",
        ]),
    ]
    .prop_map(str::to_owned)
}

fn version() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => Just(None), 2 => (0..3u64).prop_map(Some)]
}

fn data() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        30 => vec(any::<u8>(), 0..4).prop_map(Bytes::from),
        1 => (DATA_BYTES_MAX - 2..DATA_BYTES_MAX + 2).prop_map(|size| vec![7; size].into()),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop::sample::select(vec![
        CreateMode::Persistent,
        CreateMode::PersistentSequential,
        CreateMode::Ephemeral,
        CreateMode::EphemeralSequential,
    ]);
    prop_oneof![
        4 => (paths(), data(), mode).prop_map(|(path, data, mode)| Op::Create { path, data, mode }),
        2 => (paths(), data(), version())
            .prop_map(|(path, data, version)| Op::Set { path, data, version }),
        3 => (paths(), version()).prop_map(|(path, version)| Op::Delete { path, version }),
        1 => (paths(), version()).prop_map(|(path, version)| Op::Check { path, version }),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let secret = || prop_oneof![9 => Just([1; 16]), 1 => Just([2; 16])];
    let timeout_ms = 1000..1003u32;
    prop_oneof![
        6 => (secret(), timeout_ms.clone())
            .prop_map(|(secret, timeout_ms)| Command::Open { secret, timeout_ms, owner: 1, base: 0 }),
        2 => (secret(), timeout_ms)
            .prop_map(|(secret, timeout_ms)| Command::Resume { secret, timeout_ms, owner: 2 }),
        1 => Just(Command::Close),
        1 => (1..3u64).prop_map(|term| Command::Expire { term }),
        20 => op().prop_map(Command::Op),
        8 => vec(op(), 0..4).prop_map(Command::Multi),
    ]
}

fn draft() -> impl Strategy<Value = Draft> {
    let holder = prop_oneof![6 => Just(Who::Present), 1 => (1..6u64).prop_map(Who::Number)];
    let seq_offset = prop_oneof![10 => Just(0), 1 => -3..3i64];
    (1..4u64, holder, seq_offset, -4..3i64, command()).prop_map(
        |(session, holder, seq_offset, acked_offset, command)| Draft {
            session,
            holder,
            seq_offset,
            acked_offset,
            command,
        },
    )
}

fn finished(draft: Draft, model: &Model) -> Request {
    let session = SessionId(draft.session);
    let known = model.sessions.get(&session);
    let next = known.map_or(1, |known| known.results.len() as i64 + 1);
    let present = known.and_then(|known| known.holders.last().copied());
    Request {
        session,
        holder: match draft.holder {
            Who::Present => present.unwrap_or(1),
            Who::Number(holder) => holder,
        },
        seq: (next + draft.seq_offset).max(0) as u64,
        acked: (next + draft.acked_offset).max(0) as u64,
        command: draft.command,
    }
}

fn restore(chunks: &[Vec<u8>], like: &Machine) -> Machine {
    let mut reader = ChunkReader::new();
    for chunk in chunks {
        reader.push(chunk).expect("a chunk of our own");
    }
    let machine = reader.finish(like.zxid(), like.hash());
    machine.expect("chunks of our own")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model_and_survives_chunks(
        steps in vec((vec(draft(), 1..4), 0..4u64, any::<bool>()), 1..40),
    ) {
        let mut model = Model::new();
        let mut machine = Machine::new();
        // Nothing of it is ever shared, and it is never saved.
        let mut replica = Machine::new();
        // Replaced by what its chunks say, now and then.
        let mut restored = Machine::new();
        let mut chunks: Vec<Vec<u8>> = ChunkWriter::full(machine.state()).collect();
        let mut published = machine.tree();
        for (drafts, time, save) in steps {
            let mut batch = Batch { time: model.time + time - 1.min(model.time), requests: Vec::new() };
            model.time = model.time.max(batch.time);
            model.changes.clear();
            model.session_changes.clear();
            let mut outcomes = Vec::new();
            for draft in drafts {
                let request = finished(draft, &model);
                outcomes.push(Outcome {
                    session: request.session,
                    holder: request.holder,
                    seq: request.seq,
                    result: model.apply(1, &request),
                });
                batch.requests.push(request);
            }
            let before = (published.hash(), published.len());
            let applied = machine.apply(1, &batch);
            prop_assert_eq!(before, (published.hash(), published.len()));
            published.check().unwrap();
            published = machine.tree();

            prop_assert_eq!(&applied.outcomes, &outcomes);
            prop_assert_eq!(&applied.changes, &model.changes);
            prop_assert_eq!(&applied.sessions, &model.session_changes);
            prop_assert_eq!((machine.zxid(), machine.state.time), (model.zxid, model.time));
            prop_assert_eq!(published.len(), model.znodes.len());
            for (path, expected) in &model.znodes {
                let znode = published.get(path).unwrap();
                prop_assert_eq!(&znode.data()[..], &expected.data[..]);
                prop_assert_eq!(znode.stat(), model.stat(path));
                let children = znode.children().collect::<Vec<_>>();
                prop_assert_eq!(children, model.children(path));
            }
            machine.check_invariants().unwrap();

            prop_assert_eq!(&replica.apply(1, &batch), &applied);
            prop_assert_eq!(&restored.apply(1, &batch), &applied);
            prop_assert_eq!(replica.hash(), machine.hash());
            prop_assert_eq!(restored.hash(), machine.hash());
            if save {
                let dirty = machine.take_dirty();
                chunks.extend(ChunkWriter::delta(machine.state(), dirty));
                restored = restore(&chunks, &machine);
                let full = |machine: &Machine| ChunkWriter::full(machine.state()).collect::<Vec<_>>();
                prop_assert_eq!(full(&restored), full(&machine));
                prop_assert_eq!(full(&replica), full(&machine));
            }
        }
    }
}
