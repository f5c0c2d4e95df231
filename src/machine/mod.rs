//! The state machine that all replicas run: the tree, the sessions, and what
//! each command does to them.
//!
//! It is deterministic: a command carries all that it needs (the leader's clock,
//! the session's secret, an expiry's grounds), and nothing here reads a clock,
//! draws a number or depends on an order that differs between replicas. It is
//! total: any command that decodes gets an answer, if only an error.
//!
//! | command | what it does |
//! | --- | --- |
//! | `Open` | adds the session; the same request again is answered again |
//! | `Resume` | hands the session to a new holder, whose requests count from 1 again |
//! | `Close`, `Expire` | deletes the session's ephemerals, by path, and the session |
//! | `Op` | one create, set, delete or check |
//! | `Multi` | several of them, all or none |
//!
//! Rules:
//! - What changes something takes the next zxid; what fails, is only a check, or
//!   was executed before takes none.
//! - A session's requests are executed in the order of their numbers, each once.
//!   One that comes again gets its first answer; one that comes too early does
//!   nothing and gets `OutOfOrder`. Answers are kept until the session says that
//!   it has them.
//! - Conditions are checked here and nowhere before, in ZooKeeper's order.
//!
//! Caveats: a path is checked as a whole before its parent is looked for, where
//! ZooKeeper's server does it after; its client library does as we do.

pub(crate) mod command;
mod sessions;
pub(crate) mod snapshot;
pub(crate) mod tree;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::path;
use crate::znode::{Created, OpResult, SessionId, Zxid};
use command::{
    Applied, Batch, Change, ChangeKind, Command, Op, OpError, Outcome, Reply, Request,
    SessionChange,
};
pub(crate) use sessions::SessionRecord;
use sessions::{Sessions, same_secret};
use snapshot::{Dirty, State};
use tree::{Creation, Tree};

/// The most data that one request may carry, in bytes: 1 MiB. For a `multi`, all of its
/// operations together.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    tree: Tree,
    sessions: Sessions,
    /// The time of the last batch, which never goes back.
    time: u64,
    dirty: Dirty,
}

/// What the operations of one request did, to be kept only if all of them succeed.
#[derive(Default)]
struct Effects {
    changes: Vec<Change>,
    /// Ephemerals that came (`true`) and went.
    ephemerals: Vec<(SessionId, String, bool)>,
}

impl Machine {
    /// The state that every replica of a new cluster starts from.
    pub(crate) fn new() -> Machine {
        Machine {
            tree: Tree::new(),
            sessions: Sessions::new(),
            time: 0,
            dirty: Dirty::default(),
        }
    }

    pub(crate) fn tree(&self) -> Tree {
        self.tree.clone()
    }

    pub(crate) fn zxid(&self) -> Zxid {
        self.tree.zxid()
    }

    /// Equal on all replicas that applied the same entries.
    pub(crate) fn hash(&self) -> u64 {
        let parts = [
            self.tree.hash(),
            self.sessions.hash(),
            self.tree.zxid(),
            self.time,
        ];
        let mut bytes = [0; 32];
        for (place, part) in bytes.chunks_exact_mut(8).zip(parts) {
            place.copy_from_slice(&part.to_le_bytes());
        }
        xxh3_64(&bytes)
    }

    pub(crate) fn session(&self, session: SessionId) -> Option<&SessionRecord> {
        self.sessions.get(session)
    }

    /// All sessions, by id.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.sessions.iter()
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The whole state, to be written down elsewhere while this one moves on.
    pub(crate) fn state(&self) -> State {
        State {
            tree: self.tree.clone(),
            sessions: self.sessions.clone(),
            time: self.time,
        }
    }

    /// What has changed since the last call.
    pub(crate) fn take_dirty(&mut self) -> Dirty {
        std::mem::take(&mut self.dirty)
    }

    /// Applies one entry of the log, written in `term`.
    pub(crate) fn apply(&mut self, term: u64, batch: &Batch) -> Applied {
        self.time = self.time.max(batch.time);
        let mut applied = Applied::default();
        for request in &batch.requests {
            let result = self.execute(term, request, &mut applied);
            applied.outcomes.push(Outcome {
                session: request.session,
                holder: request.holder,
                seq: request.seq,
                result,
            });
        }
        applied
    }

    fn execute(
        &mut self,
        term: u64,
        request: &Request,
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        match &request.command {
            Command::Open {
                secret,
                timeout_ms,
                owner,
            } => {
                if let Some(record) = self.sessions.get(request.session) {
                    let again =
                        record.holder == request.holder && same_secret(&record.secret, secret);
                    let reply = Reply::Session {
                        timeout_ms: record.timeout_ms,
                    };
                    return if again {
                        Ok(reply)
                    } else {
                        Err(OpError::WrongSecret)
                    };
                }
                let record = SessionRecord {
                    secret: *secret,
                    timeout_ms: *timeout_ms,
                    owner: *owner,
                    holder: request.holder,
                    last_seq: 0,
                    results: VecDeque::new(),
                    ephemerals: BTreeSet::new(),
                };
                self.sessions.insert(request.session, record);
                self.held(request.session, *timeout_ms, applied)
            }
            Command::Resume {
                secret,
                timeout_ms,
                owner,
            } => {
                let Some(record) = self.sessions.get(request.session) else {
                    return Err(OpError::SessionExpired);
                };
                if !same_secret(&record.secret, secret) {
                    return Err(OpError::WrongSecret);
                }
                if record.holder == request.holder {
                    return Ok(Reply::Session {
                        timeout_ms: record.timeout_ms,
                    });
                }
                self.sessions.change(request.session, |record| {
                    record.timeout_ms = *timeout_ms;
                    record.owner = *owner;
                    record.holder = request.holder;
                    record.last_seq = 0;
                    record.results.clear();
                });
                self.held(request.session, *timeout_ms, applied)
            }
            Command::Expire { term: decided } => {
                let Some(record) = self.sessions.get(request.session) else {
                    return Err(OpError::SessionExpired);
                };
                if *decided != term || record.holder != request.holder {
                    return Err(OpError::StaleExpiry);
                }
                self.close(request.session, applied);
                Ok(Reply::Done)
            }
            Command::Close | Command::Op(_) | Command::Multi(_) => {
                self.execute_numbered(request, applied)
            }
        }
    }

    fn held(
        &mut self,
        session: SessionId,
        timeout_ms: u32,
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        self.tree.set_zxid(self.tree.zxid() + 1);
        self.dirty.sessions.insert(session);
        applied.sessions.push(SessionChange::Held(session));
        Ok(Reply::Session { timeout_ms })
    }

    fn execute_numbered(
        &mut self,
        request: &Request,
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        let session = request.session;
        let Some(record) = self.sessions.get(session) else {
            return Err(OpError::SessionExpired);
        };
        if record.holder != request.holder {
            return Err(OpError::SessionMoved);
        }
        if request.seq <= record.last_seq {
            // Forgotten only if it is known to have arrived, and then nobody waits for it.
            return record
                .result(request.seq)
                .cloned()
                .unwrap_or(Err(OpError::OutOfOrder));
        }
        if request.seq != record.last_seq + 1 {
            return Err(OpError::OutOfOrder);
        }
        let result = match &request.command {
            Command::Close => {
                self.close(session, applied);
                return Ok(Reply::Done);
            }
            Command::Multi(ops) => self.execute_ops(session, ops, applied).map(Reply::Multi),
            Command::Op(op) => {
                let results = self.execute_ops(session, std::slice::from_ref(op), applied);
                results.map(single).map_err(|error| match error {
                    OpError::Multi { error, .. } => *error,
                    error => error,
                })
            }
            Command::Open { .. } | Command::Resume { .. } | Command::Expire { .. } => {
                Err(OpError::OutOfOrder)
            }
        };
        self.sessions.change(session, |record| {
            record.acknowledge(request.acked);
            record.remember(result.clone());
        });
        self.dirty.sessions.insert(session);
        result
    }

    /// Executes all operations, or none and says which one failed.
    fn execute_ops(
        &mut self,
        session: SessionId,
        ops: &[Op],
        applied: &mut Applied,
    ) -> Result<Vec<OpResult>, OpError> {
        let zxid = self.tree.zxid() + 1;
        let before = self.tree.clone();
        let mut effects = Effects::default();
        let mut results = Vec::with_capacity(ops.len());
        let mut bytes = 0;
        for (index, op) in ops.iter().enumerate() {
            let result = self.execute_op(session, op, zxid, &mut bytes, &mut effects);
            match result {
                Ok(result) => results.push(result),
                Err(error) => {
                    self.tree = before;
                    let index = u32::try_from(index).unwrap_or(u32::MAX);
                    return Err(OpError::Multi {
                        index,
                        error: Box::new(error),
                    });
                }
            }
        }
        if !effects.changes.is_empty() {
            self.tree.set_zxid(zxid);
            self.keep(effects, applied);
        }
        Ok(results)
    }

    fn execute_op(
        &mut self,
        session: SessionId,
        op: &Op,
        zxid: Zxid,
        bytes: &mut usize,
        effects: &mut Effects,
    ) -> Result<OpResult, OpError> {
        let valid = match op {
            Op::Create { path, mode, .. } if mode.is_sequential() => {
                path::validate_sequential(path)
            }
            _ => path::validate(op.path()),
        };
        if let Err(Error::InvalidPath { path, reason }) = valid {
            return Err(OpError::InvalidPath {
                path,
                reason: reason.into_owned(),
            });
        }
        if let Op::Create { path, data, .. } | Op::Set { path, data, .. } = op {
            *bytes += data.len();
            if *bytes > DATA_BYTES_MAX {
                return Err(OpError::TooLarge {
                    path: path.clone(),
                    size: *bytes as u64,
                    limit: DATA_BYTES_MAX as u64,
                });
            }
        }
        let time = self.time;
        match op {
            Op::Create { path, data, mode } => {
                let owner = mode.is_ephemeral().then_some(session);
                let creation = Creation { owner, zxid, time };
                let (path, stat) = self
                    .tree
                    .create(path, Arc::from(&data[..]), *mode, creation)?;
                effects.change(zxid, ChangeKind::Created, &path);
                if owner.is_some() {
                    effects.ephemerals.push((session, path.clone(), true));
                }
                Ok(OpResult::Created(Created { path, stat }))
            }
            Op::Set {
                path,
                data,
                version,
            } => {
                let stat = self
                    .tree
                    .set(path, Arc::from(&data[..]), *version, zxid, time)?;
                effects.change(zxid, ChangeKind::DataChanged, path);
                Ok(OpResult::Set(stat))
            }
            Op::Delete { path, version } => {
                if let Some(owner) = self.tree.delete(path, *version, zxid)? {
                    effects.ephemerals.push((owner, path.clone(), false));
                }
                effects.change(zxid, ChangeKind::Deleted, path);
                Ok(OpResult::Deleted)
            }
            Op::Check { path, version } => {
                self.tree.check(path, *version)?;
                Ok(OpResult::Checked)
            }
        }
    }

    /// Takes over what a request did.
    fn keep(&mut self, effects: Effects, applied: &mut Applied) {
        for (owner, path, came) in effects.ephemerals {
            self.sessions.change(owner, |record| {
                if came {
                    record.ephemerals.insert(path);
                } else {
                    record.ephemerals.remove(&path);
                }
            });
        }
        for change in &effects.changes {
            self.dirty.paths.insert(change.path.clone());
            // A parent changes with each of its children that comes or goes.
            if change.kind != ChangeKind::DataChanged
                && let Some(parent) = path::parent(&change.path)
                && !self.dirty.paths.contains(parent)
            {
                self.dirty.paths.insert(parent.to_owned());
            }
        }
        applied.changes.extend(effects.changes);
    }

    fn close(&mut self, session: SessionId, applied: &mut Applied) {
        let Some(record) = self.sessions.get(session) else {
            return;
        };
        let ephemerals = record.ephemerals.clone();
        let zxid = self.tree.zxid() + 1;
        let mut effects = Effects::default();
        for path in &ephemerals {
            // An ephemeral has no children, so nothing can be in the way.
            if self.tree.delete(path, None, zxid).is_ok() {
                effects.change(zxid, ChangeKind::Deleted, path);
            }
        }
        self.tree.set_zxid(zxid);
        self.keep(effects, applied);
        self.sessions.remove(session);
        self.dirty.sessions.insert(session);
        applied.sessions.push(SessionChange::Gone(session));
    }

    /// Recomputes all that is kept up to date otherwise.
    ///
    /// # Errors
    /// Says what does not agree.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        self.tree.check_invariants()?;
        if self.sessions.computed_hash() != self.sessions.hash() {
            return Err("the sessions' hash is stale".to_owned());
        }
        let state = self.state();
        if snapshot::owned_ephemerals(&state.tree)
            != self
                .sessions
                .iter()
                .filter(|(_, record)| !record.ephemerals.is_empty())
                .map(|(id, record)| (id, record.ephemerals.clone()))
                .collect()
        {
            return Err("an ephemeral without its session, or the reverse".to_owned());
        }
        Ok(())
    }
}

impl Effects {
    fn change(&mut self, zxid: Zxid, kind: ChangeKind, path: &str) {
        self.changes.push(Change {
            zxid,
            kind,
            path: path.to_owned(),
        });
    }
}

/// The reply to a single operation.
fn single(results: Vec<OpResult>) -> Reply {
    match results.into_iter().next() {
        Some(OpResult::Created(created)) => Reply::Created(created),
        Some(OpResult::Set(stat)) => Reply::Set(stat),
        Some(OpResult::Deleted | OpResult::Checked) | None => Reply::Done,
    }
}
