//! The replicated state machine: znodes and sessions, which only entries of the log change.
//!
//! [`Machine::apply`] applies one batch after the other. It returns the result of each request, the
//! changes of the tree, and which sessions began and ended. After each batch a [`Tree`] is
//! published to readers, so readers and the writer never wait for each other.
//!
//! Determinism: replicas that applied the same batches are equal, and so have the same
//! [`Machine::hash`]. Therefore nothing here reads a clock (time comes with the batch), draws a
//! random number, uses a float, or depends on the order of an unordered map, and a request fails
//! only for a reason that is in the state or in the request. `apply` is total: it answers any batch
//! that decodes, and never panics.
//!
//! | command | effect, when it succeeds | zxid |
//! | --- | --- | --- |
//! | `Open` | a new session; if the same holder sends it again, the same answer | one |
//! | `Resume` | the session has a new holder, whose requests start at 1; if it is sent again, the same answer | one |
//! | `Close` | the session's ephemerals are deleted, in the order of their paths, then the session | one |
//! | `Expire` | as `Close`, if decided in the entry's own term and against the present holder | one |
//! | `Reap` | one znode is deleted, if it is due by the log's time: a container or one with a time to live | one |
//! | `Op` create, set, delete, set the ACL | one znode is created, changed or deleted | one |
//! | `Op` create or set | as set, if the znode exists; otherwise as create | one |
//! | `Op` delete tree | the znode and all below it are deleted, each after its children | one for all |
//! | `Op` take over | the ephemeral of the given session is deleted and created again as the session's own; as create if there is none, as set if it is the session's own already | one for both |
//! | `RaiseVersion` | the cluster acts by this version, if it is higher | none |
//! | `Configure` | the members are replaced, if they have not changed since the request was made | one |
//! | `Op` check | nothing | none |
//! | `Authenticate` | the session has more ids, for as long as it has this holder | none |
//! | `Multi` | its operations in order, each seeing those before it, or none of them | one for all; none if nothing changed (no operations, or only checks) |
//!
//! A request that fails, and one whose result is already known, takes no zxid. A request of a
//! version that the cluster does not use fails on every replica.
//!
//! Invariants ([`Machine::check_invariants`]): those of `tree` and `sessions`. In addition, a
//! session's list of ephemerals has exactly the znodes that it owns, and the owner of each
//! ephemeral exists.
//!
//! | where | what |
//! | --- | --- |
//! | `command` | requests and replies, and how they are encoded |
//! | `ops` | what each operation does, and the order of its errors |
//! | `prepare` | requests that delete very many znodes, done in parts |
//! | `tree` | the persistent tree |
//! | `sessions` | holders, exactly-once, ephemerals |
//! | `snapshot` | the state as chunks: all of it, or its changes |
//!
//! Caveats:
//! - [`Machine::hash`] also covers the results of requests that took no zxid, and the time. So two
//!   replicas at the same zxid may have different hashes until they have applied the same entries.
//!   [`Tree::hash`] depends on the zxid alone.
//! - A sequential create whose name was taken by a plain create fails with
//!   `NodeExists`, as with ZooKeeper, until the next create moves the number on.

pub(crate) mod command;
pub(crate) mod data;
mod ops;
mod prepare;
mod queue;
mod sessions;
mod set_back;
pub(crate) mod snapshot;
mod tombstones;
mod tree;

use std::collections::BTreeSet;
use std::sync::Arc;

use self::command::{
    Applied, Batch, Change, ChangeKind, Command, Op, OpError, Outcome, Reply, Request,
    SessionChange, TIMEOUT_KEPT,
};
use self::ops::WriteInProgress;
use self::prepare::Prepared;
use self::sessions::{DuplicateCheck, Sessions};
use self::tombstones::Tombstones;
pub(crate) use self::tree::CONFIG;
use self::tree::hash_words;
use crate::types::membership::{NodeId, Roster, Seat};
use crate::types::path;
use crate::types::version::FIRST;
use crate::types::znode::{OpResult, SessionId, Zxid};

pub(crate) use self::ops::{DATA_BYTES_MAX, RESULTS_BYTES_MAX};
pub(crate) use self::sessions::SessionRecord;
pub(crate) use self::tree::{Tree, Znode};

/// How many operations of a batch have what they need read together: as much as stays in a processor's own cache.
const WARMED: usize = 32;
/// A longer empty list of changes is not kept for the next write.
const CHANGES_KEPT_MAX: usize = 4096;

/// The state, and its changes since it was last saved.
#[derive(Debug)]
pub(crate) struct Machine {
    state: State,
    dirty: Dirty,
    prepared: Option<Box<Prepared>>,
    /// See [`Machine::take_changed`].
    changed: Option<(Zxid, Vec<Znode>)>,
    /// Empty: the memory for the changes of the next write.
    changes: Vec<Change>,
}

/// The whole state at one moment. A clone is cheap, and can be encoded while the machine continues.
#[derive(Clone, Debug)]
pub(crate) struct State {
    tree: Tree,
    sessions: Sessions,
    tombstones: Tombstones,
    time: u64,
    /// The version that the cluster uses: see `types::version`.
    version: u16,
    /// The number of calls of `take_dirty`. A znode that has it as its mark is already among the changes for
    /// the next call. It differs between replicas, and is neither hashed nor saved.
    dirty_epoch: u32,
}

/// The znodes and sessions that changed between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// The hashes of the paths of the znodes that changed, unordered. Some of these znodes do not exist any
    /// more, and a few are listed twice. A listed znode has the mark, so that a write searches nothing, and others
    /// whose paths have the same hash are told from it.
    written: Vec<u64>,
    /// The mark of the listed znodes, once they have been taken.
    mark: u32,
    /// The znodes that were deleted and do not exist now. Some of them did not exist at the first moment
    /// either.
    gone: BTreeSet<String>,
    /// Including those that ended.
    sessions: BTreeSet<SessionId>,
}

impl State {
    pub(crate) fn zxid(&self) -> Zxid {
        self.tree.zxid()
    }

    /// The hash of everything: znodes, sessions and counters.
    pub(crate) fn hash(&self) -> u64 {
        hash_words(&[self.tree.zxid(), self.time, u64::from(self.version)])
            .wrapping_add(self.tree.hash())
            .wrapping_add(self.sessions.hash())
            .wrapping_add(self.tombstones.hash())
    }

    /// Replaces what it takes to act as one of the sessions, so that nobody can who has the state.
    pub(crate) fn hide_credentials(&mut self) {
        self.sessions.hide_credentials();
    }

    /// The approximate size of an image of the state, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        const ZNODE_BYTES: u64 = 32;
        self.tree.bytes() + ZNODE_BYTES * (self.tree.len() + self.sessions.len()) as u64
    }

    /// All sessions, in the order of their ids.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.sessions.iter()
    }
}

impl Machine {
    /// The state of a new cluster, the same for every replica.
    pub(crate) fn new() -> Machine {
        Machine::from_state(State {
            tree: Tree::genesis(),
            sessions: Sessions::default(),
            tombstones: Tombstones::default(),
            time: 0,
            version: FIRST,
            dirty_epoch: 0,
        })
    }

    /// The state of a new cluster that has these members and continues from this state.
    pub(crate) fn founded_from(mut state: State, roster: &Roster) -> Machine {
        state.tree.set_config(roster.text(0).as_bytes());
        Machine::from_state(state)
    }

    pub(crate) fn from_state(mut state: State) -> Machine {
        state.dirty_epoch += 1;
        let changes = Vec::new();
        Machine { state, dirty: Dirty::default(), prepared: None, changed: None, changes }
    }

    /// Applies the batch of an entry of this term.
    pub(crate) fn apply(&mut self, term: u64, batch: &Batch) -> Applied {
        self.state.time = self.state.time.max(batch.time);
        self.state.time += u64::from(strikes!(NotDeterministic, 50));
        let mut applied =
            Applied { outcomes: Vec::with_capacity(batch.requests.len()), ..Applied::default() };
        for (at, request) in batch.requests.iter().enumerate() {
            if at.is_multiple_of(WARMED) {
                let next = batch.requests[at..].iter().take(WARMED);
                let ops = next.flat_map(|request| request.command.ops()).take(WARMED);
                self.state.tree.warm(ops.map(|op| &**op.path()));
            }
            let result = self.apply_request(term, request, &mut applied);
            applied.outcomes.push(Outcome {
                session: request.session,
                holder: request.holder,
                seq: request.seq,
                zxid: self.state.zxid(),
                result,
            });
        }
        // Left over if the request was refused.
        self.prepared = None;
        applied
    }

    /// The current tree, which readers may keep.
    pub(crate) fn tree(&self) -> Tree {
        self.state.tree.clone()
    }

    /// The last zxid taken.
    pub(crate) fn zxid(&self) -> Zxid {
        self.state.zxid()
    }

    /// The log's time, as leaders have stamped it (`node::leader::log_clock`): milliseconds since
    /// the Unix epoch. It never goes back.
    pub(crate) fn time(&self) -> u64 {
        self.state.time
    }

    /// The version that the cluster uses.
    pub(crate) fn version(&self) -> u16 {
        self.state.version
    }

    /// See [`State::hash`].
    pub(crate) fn hash(&self) -> u64 {
        self.state.hash()
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&SessionRecord> {
        self.state.sessions.get(id)
    }

    /// Fails if the session may not be opened. It did not exist yet when its node had seen `base`: see
    /// [`Command::Open`].
    pub(crate) fn admits(&self, id: SessionId, base: Zxid) -> Result<(), OpError> {
        self.state.tombstones.admit(id, base)
    }

    /// All sessions, in the order of their ids.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.state.sessions()
    }

    /// The sessions after this one, in the order of their ids.
    pub(crate) fn sessions_after(
        &self,
        id: Option<SessionId>,
    ) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.state.sessions.after(id)
    }

    pub(crate) fn session_count(&self) -> usize {
        self.state.sessions.len()
    }

    pub(crate) fn state(&self) -> State {
        self.state.clone()
    }

    /// The approximate size of an image of the state, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.bytes()
    }

    /// The changes since the last call. They grow with the number of znodes written, so this must
    /// be called regularly.
    pub(crate) fn take_dirty(&mut self) -> Dirty {
        let mark = self.state.dirty_epoch;
        self.state.dirty_epoch += 1;
        Dirty { mark, ..std::mem::take(&mut self.dirty) }
    }

    /// The znodes that have changed since this zxid, and perhaps others: see [`Tree::changed_since`]. In a
    /// machine that was just read from a snapshot, they are usually known already.
    pub(crate) fn take_changed(&mut self, since: Zxid) -> Vec<Znode> {
        match self.changed.take() {
            Some((listed, changed)) if listed <= since => changed,
            _ => self.state.tree.changed_since(since),
        }
    }

    /// Checks all invariants. This takes time in proportion to the size of the state.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let State { tree, sessions, .. } = &self.state;
        let ephemerals = tree.check()?;
        sessions.check()?;
        // Each listed path belongs to its session, and there are as many as there are ephemerals,
        // so the two sets are equal.
        let mut listed = 0;
        for (id, record) in sessions.iter() {
            listed += record.ephemerals.size();
            let owns = |path: &&Arc<str>| {
                let znode = tree.get(path);
                znode.and_then(|znode| znode.fields().owner()) == Some(id)
            };
            if let Some(path) = record.ephemerals.iter().find(|path| !owns(path)) {
                return Err(format!("session {id}: {path} is not its ephemeral"));
            }
        }
        if listed != ephemerals {
            return Err(format!("{ephemerals} ephemerals, but sessions list {listed}"));
        }
        Ok(())
    }

    fn apply_request(
        &mut self,
        term: u64,
        request: &Request,
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        let id = request.session;
        let ops = match &request.command {
            Command::Open { secret, timeout_ms, owner, base } => {
                let (opened, holder) = (self.state.time, request.holder);
                let record = SessionRecord::new(*secret, *timeout_ms, opened, *owner, holder);
                return self.open(id, *base, record, applied);
            }
            Command::Resume { secret, timeout_ms, owner } => {
                return self.resume(request, secret, *timeout_ms, *owner, applied);
            }
            Command::Expire { term: decided } => {
                let record = self.session(id).ok_or(OpError::SessionExpired)?;
                if *decided != term || request.holder != record.holder {
                    return Err(OpError::StaleExpiry);
                }
                return Ok(self.close(request, applied));
            }
            Command::Reap { path } => return self.reap(path, applied),
            Command::RaiseVersion { version } => {
                self.state.version = self.state.version.max(*version);
                return Ok(Reply::Done);
            }
            Command::Configure { version, seats } => {
                return self.configure(*version, seats, applied);
            }
            Command::Close | Command::Authenticate { .. } | Command::Op(_) | Command::Multi(_) => {
                request.command.ops()
            }
        };

        let record = self.session(id).ok_or(OpError::SessionExpired)?;
        if request.holder != record.holder {
            return Err(OpError::SessionMoved);
        }
        let admission = self
            .state
            .sessions
            .update(id, |record| record.admit(request.seq, request.acked))
            .ok_or(OpError::SessionExpired)?;
        self.dirty.sessions.insert(id);
        match (admission, &request.command) {
            (DuplicateCheck::OutOfOrder, _) => Err(OpError::OutOfOrder),
            (DuplicateCheck::Known(_), Command::Op(_) | Command::Multi(_))
                if planted!(RunAgain) =>
            {
                self.execute(id, ops, false, applied)
            }
            (DuplicateCheck::Known(result), _) => result,
            (DuplicateCheck::Run, Command::Close) => Ok(self.close(request, applied)),
            (DuplicateCheck::Run, command) => {
                let refused = command.unsupported(self.state.version);
                let result = match (refused, command) {
                    (Some(refused), _) => Err(refused),
                    (_, Command::Authenticate { ids }) => self
                        .state
                        .sessions
                        .update(id, |record| record.authenticate(ids))
                        .unwrap_or(Err(OpError::SessionExpired)),
                    (_, command) => match self.take_prepared(request) {
                        Some(Ok((tree, write))) => {
                            self.state.tree = tree;
                            self.commit(write, applied);
                            Ok(Reply::Done)
                        }
                        Some(Err(refused)) => Err(refused),
                        None => {
                            self.execute(id, ops, matches!(command, Command::Multi(_)), applied)
                        }
                    },
                };
                self.state.sessions.update(id, |record| record.remember(result.clone()));
                result
            }
        }
    }

    fn open(
        &mut self,
        id: SessionId,
        base: Zxid,
        record: SessionRecord,
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        let timeout_ms = record.timeout_ms;
        if let Some(known) = self.session(id) {
            // The same request again, or another session with the same random id.
            return if known.secret_is(&record.secret) && known.holder == record.holder {
                Ok(Reply::Session { timeout_ms: known.timeout_ms })
            } else {
                Err(OpError::WrongSecret)
            };
        }
        self.state.tombstones.admit(id, base)?;
        self.state.sessions.insert(id, record);
        self.held(id, applied);
        Ok(Reply::Session { timeout_ms })
    }

    fn resume(
        &mut self,
        request: &Request,
        secret: &[u8; 16],
        timeout_ms: u32,
        owner: NodeId,
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        let (id, holder) = (request.session, request.holder);
        let record = self.session(id).ok_or(OpError::SessionExpired)?;
        if !record.secret_is(secret) && !planted!(SecretIgnored) {
            return Err(OpError::WrongSecret);
        }
        if record.holder == holder {
            return Ok(Reply::Session { timeout_ms: record.timeout_ms });
        }
        if record.was_held_by(holder) {
            return Err(OpError::SessionMoved);
        }
        let timeout_ms = match timeout_ms {
            TIMEOUT_KEPT => record.timeout_ms,
            asked => asked,
        };
        self.state.sessions.update(id, |record| record.hold(timeout_ms, owner, holder));
        self.held(id, applied);
        Ok(Reply::Session { timeout_ms })
    }

    fn held(&mut self, id: SessionId, applied: &mut Applied) {
        let zxid = self.next_zxid();
        self.state.tree.set_zxid(zxid);
        self.dirty.sessions.insert(id);
        applied.sessions.push(SessionChange::Held(id));
    }

    /// Ends a session, and deletes its ephemerals.
    fn close(&mut self, request: &Request, applied: &mut Applied) -> Reply {
        let id = request.session;
        let mut write = WriteInProgress::new(id, self.next_zxid(), self.state.time, &[]);
        self.state.tombstones.add(id, write.zxid);
        let mut holder = 0;
        let staying = usize::from(planted!(EphemeralsStay));
        let prepared = self.take_prepared(request);
        if let Some(record) = self.state.sessions.get(id) {
            holder = record.holder;
            if let Some(Ok((tree, prepared))) = prepared {
                (self.state.tree, write) = (tree, prepared);
            } else {
                for path in record.ephemerals.iter().skip(staying) {
                    write.delete(&mut self.state.tree, path);
                }
            }
        }
        self.state.sessions.remove(id);
        self.dirty.sessions.insert(id);
        self.commit(write, applied);
        applied.sessions.push(SessionChange::Gone(id, holder));
        Reply::Done
    }

    /// Deletes a znode, if it is still due.
    fn reap(&mut self, path: &str, applied: &mut Applied) -> Result<Reply, OpError> {
        let znode = self.state.tree.get(path).ok_or(OpError::StaleReap)?;
        let is_due = match znode.due() {
            Some(at) => at <= self.state.time,
            None => planted!(ContainerWithChildReaped),
        };
        if !is_due {
            return Err(OpError::StaleReap);
        }
        let mut write = WriteInProgress::new(SessionId(0), self.next_zxid(), self.state.time, &[]);
        write.delete(&mut self.state.tree, &path.into());
        self.commit(write, applied);
        Ok(Reply::Done)
    }

    /// Replaces the members, unless they have changed since the request was made.
    fn configure(
        &mut self,
        version: u64,
        seats: &[Seat],
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        let text = Roster::new(seats.to_vec()).text(self.next_zxid());
        let write = WriteInProgress::new(SessionId(0), self.next_zxid(), self.state.time, &[]);
        let write = write.configure(&mut self.state.tree, version, text.as_bytes())?;
        self.commit(write, applied);
        Ok(Reply::Done)
    }

    /// When the members last changed; `None` if there are none.
    pub(crate) fn roster_changed(&self) -> Option<Zxid> {
        self.state.tree.get(CONFIG).map(|znode| znode.fields().mzxid)
    }

    /// The members, and how many times they were replaced.
    pub(crate) fn roster(&self) -> (Roster, u64) {
        self.state.tree.get(CONFIG).map_or_else(Default::default, |znode| {
            (Roster::parse(znode.data()).unwrap_or_default(), znode.fields().version)
        })
    }

    /// Runs the operations of one request: all of them, or none if one fails.
    fn execute(
        &mut self,
        id: SessionId,
        ops: &[Op],
        is_multi: bool,
        applied: &mut Applied,
    ) -> Result<Reply, OpError> {
        let mut write = WriteInProgress::new(id, self.next_zxid(), self.state.time, ops);
        write.ids = self.session(id).map(|record| Arc::clone(&record.ids));
        write.changes = std::mem::take(&mut self.changes);
        let tree = &mut self.state.tree;
        let reply = match ops {
            // An operation that fails has changed nothing, so a single one needs no rollback.
            [op] if !is_multi => match write.execute(tree, op)? {
                OpResult::Created(created) => Reply::Created(created),
                OpResult::Set(stat) | OpResult::AclSet(stat) => Reply::Set(stat),
                OpResult::Deleted | OpResult::Checked => Reply::Done,
                other @ (OpResult::Taken { .. } | OpResult::Added { .. }) => {
                    Reply::Multi(vec![other])
                }
            },
            ops => {
                let before = tree.clone();
                let mut results = Vec::with_capacity(ops.len());
                let mut bytes = 0;
                for (index, op) in ops.iter().enumerate() {
                    let done = write.execute(tree, op).and_then(|result| {
                        bytes += result.size();
                        if bytes <= RESULTS_BYTES_MAX || planted!(ResultsUnbounded) {
                            return Ok(result);
                        }
                        let (size, limit) = (bytes as u64, RESULTS_BYTES_MAX as u64);
                        Err(OpError::TooLarge { path: op.path().to_string(), size, limit })
                    });
                    match done {
                        Ok(result) => results.push(result),
                        Err(error) => {
                            if !planted!(MultiPartial) {
                                *tree = before;
                            }
                            return Err(error.in_multi(index));
                        }
                    }
                }
                Reply::Multi(results)
            }
        };
        if !write.changes.is_empty() || !write.unwatched.is_empty() {
            self.commit(write, applied);
        }
        Ok(reply)
    }

    /// Notes that a znode was created, changed or deleted.
    fn note(&mut self, path: &str, is_new: bool) {
        let State { tree, dirty_epoch, .. } = &mut self.state;
        match tree.mark(path, *dirty_epoch) {
            Some(is_first) => {
                if is_first {
                    self.dirty.written.push(Tree::path_hash(path));
                }
                if is_new {
                    self.dirty.gone.remove(path);
                }
            }
            None => {
                self.dirty.gone.insert(path.to_owned());
            }
        }
    }

    fn next_zxid(&self) -> Zxid {
        // Wraps only after a snapshot with the highest number.
        self.state.tree.zxid().wrapping_add(1)
    }

    /// Commits a write that succeeded: takes its zxid, and applies its changes to the sessions.
    fn commit(&mut self, mut write: WriteInProgress, applied: &mut Applied) {
        self.state.tree.set_zxid(write.zxid);
        for change in &write.ephemerals {
            let sessions = &mut self.state.sessions;
            sessions.set_ephemeral(change.owner, &change.path, change.exists);
        }
        for path in &write.unwatched {
            self.note(path, false);
        }
        for change in &write.changes {
            let is_new = change.kind == ChangeKind::Created;
            self.note(&change.path, is_new);
            let is_child = is_new || change.kind == ChangeKind::Deleted;
            if let Some(parent) = path::parent(&change.path).filter(|_| is_child) {
                self.note(parent, false);
            }
        }
        if applied.changes.is_empty() {
            std::mem::swap(&mut applied.changes, &mut write.changes);
        } else {
            applied.changes.append(&mut write.changes);
        }
        if write.changes.capacity() <= CHANGES_KEPT_MAX {
            self.changes = write.changes;
        }
    }
}

#[cfg(any(test, feature = "simulator"))]
pub(crate) mod model;
#[cfg(test)]
mod tests;
