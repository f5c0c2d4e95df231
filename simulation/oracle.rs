//! A plain model of the state machine. Every entry goes through it as soon as the first replica has
//! applied the entry. The model shares no code with the engine's state machine. Replies to clients
//! and their reads are compared with it.
//!
//! A second, real state machine applies one entry at a time. It gives the hash that each replica
//! must have at each index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::checks::{Violation, require};
use crate::machine::command::{Batch, Change, Command, Op, OpError, Reply, Request};
use crate::machine::model::Model;
use crate::machine::{Machine, State};
use crate::node::stored::{EntryKind, LogEntry};
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::membership::Roster;
use crate::types::path;
use crate::types::znode::{SessionId, Stat, Zxid};

/// A znode as it was between two writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZnodeState {
    pub(crate) data: Arc<[u8]>,
    pub(crate) stat: Stat,
    pub(crate) children: Vec<String>,
    /// `None`: everybody has all permissions.
    pub(crate) acl: Option<Vec<Acl>>,
}

impl ZnodeState {
    /// Whether a session with these ids has any of these permissions.
    pub(crate) fn permits(&self, ids: &[Id], wanted: Permissions) -> bool {
        self.acl.as_deref().is_none_or(|acl| gives(acl, ids, wanted))
    }
}

/// Whether an ACL gives any of the wanted permissions to one of these ids.
pub(crate) fn gives(acl: &[Acl], ids: &[Id], wanted: Permissions) -> bool {
    acl.iter().any(|entry| {
        let given = entry.permissions.bits() & wanted.bits() != 0;
        given && (entry.id.scheme == "world" || ids.contains(&entry.id))
    })
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) index: u64,
    pub(crate) zxid: Zxid,
    pub(crate) result: Result<Reply, OpError>,
    /// Whether it ends the session because its process closes.
    pub(crate) closes: bool,
    /// Whether it has changed the tree.
    pub(crate) changes: bool,
    /// The cluster's version at that time.
    pub(crate) version: u16,
}

impl Outcome {
    /// Whether it is a client's write that has changed something.
    pub(crate) fn is_done(&self) -> bool {
        self.result.is_ok() && !self.closes
    }
}

#[derive(Debug)]
struct Entry {
    term: u64,
    digest: u64,
    /// The state's hash and zxid after the entry.
    hash: u64,
    zxid: Zxid,
    /// The requests and the bytes of all entries up to it.
    work: (u64, u64),
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) session: SessionId,
    /// The holder at that time.
    pub(crate) holder: u64,
    pub(crate) by_expiry: bool,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    model: Model,
    machine: Machine,
    /// The entries after the first, which stands for the founding state.
    entries: Vec<Entry>,
    /// By the numbers of the users' own requests.
    outcomes: BTreeMap<(SessionId, u64, u64), Outcome>,
    /// The numbers of requests that no user has made. They acknowledge results.
    own: BTreeSet<(SessionId, u64, u64)>,
    /// All changes of the tree, in order.
    changes: Vec<Change>,
    /// The history of each path, oldest first.
    history: BTreeMap<String, Vec<(Zxid, Option<ZnodeState>)>>,
    ended: Vec<End>,
    /// Whether the history of znodes is kept, for the checks of reads.
    keeps_past: bool,
}

/// The znode with the members.
const CONFIG: &str = "/zookeeper/config";

/// The index of the founding state.
const FOUNDING: u64 = 1;

impl Oracle {
    pub(crate) fn new(keeps_past: bool) -> Oracle {
        let mut oracle = Oracle {
            model: Model::new(),
            machine: Machine::new(),
            entries: Vec::new(),
            outcomes: BTreeMap::new(),
            own: BTreeSet::new(),
            changes: Vec::new(),
            history: BTreeMap::new(),
            ended: Vec::new(),
            keeps_past,
        };
        let paths: Vec<String> = oracle.model.znodes.keys().cloned().collect();
        for path in paths {
            oracle.record(&path);
        }
        oracle
    }

    /// The cluster is founded with this state.
    pub(crate) fn found(&mut self, state: State) {
        self.machine = Machine::from_state(state);
        self.model.version = self.machine.version();
        let tree = self.machine.tree();
        self.model.founded(tree.get(CONFIG).map_or(&[], |znode| znode.data()));
        self.record(CONFIG);
    }

    /// The members in the state.
    pub(crate) fn roster(&self) -> Roster {
        Roster::parse(&self.model.znodes[CONFIG].data).unwrap_or_default()
    }

    /// The last index committed.
    pub(crate) fn last(&self) -> u64 {
        FOUNDING + self.entries.len() as u64
    }

    /// The version of the cluster.
    pub(crate) fn version(&self) -> u16 {
        self.model.version
    }

    /// The term and digest of a committed entry.
    pub(crate) fn entry(&self, index: u64) -> Option<(u64, u64)> {
        let place = index.checked_sub(FOUNDING + 1)?;
        let entry = self.entries.get(usize::try_from(place).ok()?)?;
        Some((entry.term, entry.digest))
    }

    /// The state's hash and zxid after a committed entry.
    pub(crate) fn state_at(&self, index: u64) -> Option<(u64, Zxid)> {
        let place = index.checked_sub(FOUNDING + 1)?;
        let entry = self.entries.get(usize::try_from(place).ok()?)?;
        Some((entry.hash, entry.zxid))
    }

    /// The requests and the bytes of the committed entries after `after`, up to `upto`.
    pub(crate) fn work(&self, after: u64, upto: u64) -> (u64, u64) {
        let upto_there = |index: u64| {
            let place =
                index.checked_sub(FOUNDING + 1).and_then(|place| usize::try_from(place).ok());
            place.and_then(|place| self.entries.get(place)).map_or((0, 0), |entry| entry.work)
        };
        let (from, to) = (upto_there(after), upto_there(upto));
        (to.0.saturating_sub(from.0), to.1.saturating_sub(from.1))
    }

    pub(crate) fn outcome(&self, session: SessionId, holder: u64, seq: u64) -> Option<&Outcome> {
        self.outcomes.get(&(session, holder, seq))
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The last zxid committed.
    pub(crate) fn zxid(&self) -> Zxid {
        self.model.zxid
    }

    /// The position of the first change after this zxid.
    pub(crate) fn first_after(&self, zxid: Zxid) -> usize {
        self.changes.partition_point(|change| change.zxid <= zxid)
    }

    /// The sessions that have ended since this was last asked.
    pub(crate) fn take_ended(&mut self) -> Vec<End> {
        std::mem::take(&mut self.ended)
    }

    pub(crate) fn is_open(&self, session: SessionId) -> bool {
        self.model.sessions.contains_key(&session)
    }

    /// A path's znode as of a zxid.
    pub(crate) fn at(&self, path: &str, zxid: Zxid) -> Option<&ZnodeState> {
        let past = self.history.get(path)?;
        let later = past.partition_point(|(from, _)| *from <= zxid);
        past[..later].last()?.1.as_ref()
    }

    /// The paths of a session's ephemerals as of a zxid.
    pub(crate) fn ephemerals(&self, session: SessionId, zxid: Zxid) -> Vec<&str> {
        let owner = |path| self.at(path, zxid).and_then(|known| known.stat.ephemeral_owner);
        self.paths_below("/").filter(|path| owner(path) == Some(session)).collect()
    }

    /// The zxids within a range at which a path's znode changed, and the first zxid of the range.
    pub(crate) fn versions(&self, path: &str, from: Zxid, to: Zxid) -> Vec<Zxid> {
        let mut zxids = vec![from];
        if let Some(past) = self.history.get(path) {
            let start = past.partition_point(|(at, _)| *at <= from);
            zxids.extend(past[start..].iter().map(|(at, _)| *at).take_while(|at| *at <= to));
        }
        zxids
    }

    /// All paths at or below this one that ever existed.
    pub(crate) fn paths_below<'a>(&'a self, root: &'a str) -> impl Iterator<Item = &'a str> {
        self.history.keys().map(String::as_str).filter(move |path| path::is_below(path, root))
    }

    fn record(&mut self, path: &str) {
        if !self.keeps_past && path != CONFIG {
            return;
        }
        let known = self.model.znodes.contains_key(path).then(|| ZnodeState {
            data: self.model.znodes[path].data[..].into(),
            stat: self.model.stat(path),
            children: self.model.children(path),
            acl: self.model.znodes[path].acl.clone(),
        });
        let past = self.history.entry(path.to_owned()).or_default();
        let zxid = self.model.zxid;
        match past.last_mut() {
            Some((at, last)) if *at == zxid => *last = known,
            _ => past.push((zxid, known)),
        }
    }

    /// Applies the next committed entry.
    pub(crate) fn take(&mut self, entry: &LogEntry) -> Result<(), Violation> {
        let mut requests = 0;
        if entry.kind == EntryKind::Normal && !entry.data.is_empty() {
            let batch = Batch::decode(&entry.data).expect("a node has decoded and applied it");
            requests = batch.requests.len() as u64;
            self.take_batch(entry, &batch)?;
        }
        let digest = digest(entry);
        let (hash, zxid) = (self.machine.hash(), self.machine.zxid());
        let before = self.entries.last().map_or((0, 0), |last| last.work);
        let work = (before.0 + requests, before.1 + entry.data.len() as u64);
        self.entries.push(Entry { term: entry.term, digest, hash, zxid, work });
        Ok(())
    }

    fn take_batch(&mut self, entry: &LogEntry, batch: &Batch) -> Result<(), Violation> {
        self.model.time = self.model.time.max(batch.time);
        let applied = self.machine.apply(entry.term, batch);
        let mut seen = 0;
        self.model.changes.clear();
        self.model.session_changes.clear();
        for (request, ours) in batch.requests.iter().zip(&applied.outcomes) {
            let result = self.model.apply(entry.term, request);
            self.check_versions(request, &ours.result)?;
            if result != ours.result {
                return Err(Violation::new(
                    "I7 machine as model",
                    format!(
                        "entry {}: {request:?} gave {:?}, not {result:?}",
                        entry.index, ours.result
                    ),
                ));
            }
            let touched: Vec<String> =
                self.model.changes[seen..].iter().map(|change| change.path.to_string()).collect();
            let acls = acls_set(request, &result);
            let changes = self.model.changes.len() > seen || !acls.is_empty();
            acls.into_iter().for_each(|path| self.record(path));
            seen = self.model.changes.len();
            for path in touched {
                self.record(&path);
                if let Some(parent) = path::parent(&path) {
                    self.record(parent);
                }
            }
            // The usage that quotas show changes without events.
            for path in self.model.usage_znodes() {
                let last = self.history.get(&path).and_then(|past| past.last()?.1.as_ref());
                if last.is_none_or(|last| *last.data != self.model.znodes[&path].data[..]) {
                    self.record(&path);
                }
            }
            let by_expiry = matches!(request.command, Command::Expire { .. });
            if matches!(request.command, Command::Close | Command::Expire { .. }) && result.is_ok()
            {
                let (session, holder) = (request.session, request.holder);
                self.ended.push(End { session, holder, by_expiry });
            }
            let key = (request.session, request.holder, request.seq);
            let acknowledges =
                matches!(&request.command, Command::Authenticate { ids } if ids.is_empty());
            if acknowledges {
                self.own.insert(key);
            } else if !matches!(result, Err(OpError::OutOfOrder)) && !by_expiry {
                let (session, holder, seq) = key;
                let own = self.own.range((session, holder, 0)..key).count() as u64;
                let key = (session, holder, seq - own);
                let (index, zxid) = (entry.index, self.model.zxid);
                let closes = matches!(request.command, Command::Close);
                let version = self.model.version;
                let outcome = Outcome { index, zxid, result, closes, changes, version };
                let is_open = |outcome: &Outcome| outcome.result != Err(OpError::SessionExpired);
                match self.outcomes.get(&key) {
                    // A request sent behind a stale open is sent again behind the next open.
                    Some(known) if is_open(known) => {}
                    _ => {
                        self.outcomes.insert(key, outcome);
                    }
                }
            }
        }
        let same = applied.changes == self.model.changes
            && applied.sessions == self.model.session_changes
            && self.machine.zxid() == self.model.zxid;
        if !same {
            let (machine, model) = (self.machine.zxid(), self.model.zxid);
            return Err(Violation::new(
                "I7 machine as model",
                format!(
                    "entry {}: the changes differ (zxid {machine}, model {model})",
                    entry.index
                ),
            ));
        }
        self.changes.extend(applied.changes);
        Ok(())
    }

    /// I32: all members support the log entries and can decode the replies.
    fn check_versions(
        &self,
        request: &Request,
        result: &Result<Reply, OpError>,
    ) -> Result<(), Violation> {
        let answer = result.as_ref().err().map_or(0, OpError::version);
        let needs = request.command.version().max(answer);
        require(needs <= self.model.version, "I32 all can do what is in the log", || {
            format!("{request:?} gave {result:?}, by version {}", self.model.version)
        })
    }

    /// The state machine's own invariants, for example that each ephemeral's session is open.
    pub(crate) fn check_state(&self) -> Result<(), Violation> {
        self.machine
            .check_invariants()
            .map_err(|reason| Violation::new("I7 machine invariants", reason))
    }

    /// The log's time after the last entry, in milliseconds.
    pub(crate) fn log_time(&self) -> u64 {
        self.model.time
    }

    /// A znode whose TTL ended more than `allowed` before `time`, or before the log's own time, if
    /// there is any.
    pub(crate) fn overdue(&self, time: u64, allowed: u64) -> Option<String> {
        let time = self.model.time.max(time).saturating_sub(allowed);
        let overdue = |path: &&String| self.model.end(path).is_some_and(|at| at < time);
        self.model.znodes.keys().find(overdue).cloned()
    }

    /// A container that has had children and has none now, if there is any.
    pub(crate) fn unused_container(&self) -> Option<String> {
        let unused = |path: &&String| self.model.is_unused_container(path);
        self.model.znodes.keys().find(unused).cloned()
    }

    /// The sessions that are open.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.model.sessions.keys().copied().collect()
    }
}

/// The paths whose ACLs a request has set, if it succeeded.
fn acls_set<'a>(request: &'a Request, result: &Result<Reply, OpError>) -> Vec<&'a str> {
    let ops = match &request.command {
        _ if result.is_err() => &[],
        Command::Op(op) => std::slice::from_ref(op),
        Command::Multi(ops) => ops.as_slice(),
        _ => &[],
    };
    let set = ops.iter().filter(|op| matches!(op, Op::SetAcl { .. }));
    set.map(|op| &**op.path()).collect()
}

/// A hash of everything in an entry that must be equal on all nodes.
pub(crate) fn digest(entry: &LogEntry) -> u64 {
    xxh3_64(&entry.data).wrapping_add(entry.index).wrapping_add(entry.term << 32)
}
