//! A node against the model: what its sessions are answered, and which events its watches get.
//!
//! A node that is alone takes random calls of a few sessions, several at a time without waiting:
//! operations, multis, reads with and without a watch, watches of both modes, and ends of sessions
//! and of watches. After each burst the answers, the events and their order, the watches that are
//! over, and all znodes must match the model and the rules below.
//!
//! The calls are drawn so that about half of them succeed: there are few paths, and mostly some
//! znodes as parents of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{
    Config, RngAlgorithm, TestCaseError, TestCaseResult, TestRng, TestRunner,
};

use crate::machine::DATA_BYTES_MAX;
use crate::machine::command::{Change, ChangeKind, Command, Op, Reply, Request};
use crate::machine::data::Data;
use crate::machine::model::Model;
use crate::node::io::{RequestId, WatchId};
use crate::node::message::COMMAND_BYTES_MAX;
use crate::node::query::{Answer, EventData, Query, Read};
use crate::node::request::RequestBody;
use crate::node::tests::harness::{Cluster, TICK};
use crate::planted::{Bug, plant};
use crate::types::error::Error;
use crate::types::version::VERSION;
use crate::types::watch::{EventKind, WatchEvent, WatchMode};
use crate::types::znode::{Condition, CreateMode, SessionId, Stat, Zxid};

/// How many sessions there are at a time.
const SESSIONS: usize = 3;
const NODE: u64 = 1;
const TERM: u64 = 1;

/// ZooKeeper's rules for watches, written for clarity and not for speed.
#[derive(Debug, Default)]
struct Rules {
    watches: BTreeMap<WatchId, (SessionId, String, Kind)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Get,
    Exists,
    Children,
    Persistent,
    Recursive,
}

/// One event, and all watches that get it, one after the other in any order.
type Notified = ((EventKind, String, Zxid), BTreeSet<WatchId>);

impl Rules {
    /// The events of a change, in the order of the table's columns.
    fn notify(
        &mut self,
        change: &Change,
        notified: &mut Vec<Notified>,
        ended: &mut BTreeSet<WatchId>,
    ) {
        use Kind::{Children, Exists, Get, Persistent, Recursive};
        let own = &*change.path;
        let parent = match own.rsplit_once('/') {
            Some(("", _)) => "/",
            Some((parent, _)) => parent,
            None => unreachable!("{own} has changed"),
        };
        let below = |top: &str| top == "/" || own == top || own.starts_with(&format!("{top}/"));
        let of_data = |at: &str, kind: Kind| match kind {
            Get | Exists | Persistent => at == own,
            Recursive => below(at),
            Children => false,
        };
        let kind = match change.kind {
            ChangeKind::Created => EventKind::Created,
            ChangeKind::DataChanged => EventKind::DataChanged,
            ChangeKind::Deleted => EventKind::Deleted,
        };
        self.notify_all(change, kind, own, of_data, notified, ended);
        if kind == EventKind::Deleted {
            // The persistent watches have got their event already.
            let of_children = |at: &str, kind| kind == Children && at == own;
            self.notify_all(change, kind, own, of_children, notified, ended);
        }
        if kind != EventKind::DataChanged {
            let of_parent = |at: &str, kind| matches!(kind, Children | Persistent) && at == parent;
            let kind = EventKind::ChildrenChanged;
            self.notify_all(change, kind, parent, of_parent, notified, ended);
        }
    }

    fn notify_all(
        &mut self,
        change: &Change,
        kind: EventKind,
        path: &str,
        listens: impl Fn(&str, Kind) -> bool,
        notified: &mut Vec<Notified>,
        ended: &mut BTreeSet<WatchId>,
    ) {
        let event = (kind, path.to_owned(), change.zxid);
        let mut watches = BTreeSet::new();
        self.watches.retain(|id, (_, at, kind)| {
            if !listens(at, *kind) {
                return true;
            }
            watches.insert(*id);
            let stays = matches!(kind, Kind::Persistent | Kind::Recursive);
            stays || !ended.insert(*id)
        });
        notified.push((event, watches));
    }

    fn end(&mut self, session: SessionId, ended: &mut BTreeSet<WatchId>) {
        self.watches.retain(|id, (of, ..)| *of != session || !ended.insert(*id));
    }
}

#[derive(Clone, Debug)]
enum Call {
    Op(Op),
    Multi(Vec<Op>),
    Get(String, bool),
    Exists(String, bool),
    Children(String, bool),
    Watch(String, WatchMode),
    Ephemerals,
}

#[derive(Clone, Debug)]
enum Step {
    /// Calls of one session, which do not wait for each other; then perhaps its close.
    Calls(usize, Vec<Call>, bool),
    Expire(usize),
    Resume(usize),
    /// One of the existing watches is dropped.
    Unwatch(prop::sample::Index),
}

fn path() -> impl Strategy<Value = String> {
    let paths = [
        "/a",
        "/a",
        "/a",
        "/b",
        "/b",
        "/a-",
        "/a/x",
        "/a/x",
        "/a/x",
        "/a/y",
        "/a/x/1",
        "/a/x/2",
        "/b/n-",
        "/zookeeper/quota/q",
        "/",
        "/a-0000000000",
        "/b/n-0000000000",
    ];
    prop::sample::select(paths.map(str::to_owned).to_vec())
}

/// Also paths that all replicas refuse alike.
fn written_path() -> impl Strategy<Value = String> {
    let bad = ["/zookeeper", "/zookeeper/config/x", "/a/", "/q/", "bad", "", "/a//b", "/none/x"];
    prop_oneof![40 => path(), 2 => prop::sample::select(bad.map(str::to_owned).to_vec())]
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![
        100 => vec(any::<u8>(), 0..4).prop_map(Data::from),
        1 => Just(vec![7; DATA_BYTES_MAX + 1].into()),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let ttl = CreateMode::PersistentWithTtl(Duration::from_secs(3600));
    let mode = prop_oneof![
        6 => Just(CreateMode::Persistent),
        3 => Just(CreateMode::PersistentSequential),
        4 => Just(CreateMode::Ephemeral),
        3 => Just(CreateMode::EphemeralSequential),
        2 => Just(CreateMode::Container),
        2 => Just(ttl),
        1 => Just(CreateMode::PersistentWithTtl(Duration::MAX)),
    ];
    let version = || prop_oneof![3 => Just(None), 1 => (0..3u64).prop_map(Some)];
    let condition = prop_oneof![
        4 => Just(Condition::Exists),
        4 => Just(Condition::Absent),
        4 => (0..3u64).prop_map(Condition::Version),
        2 => (0..12u64).prop_map(Condition::Czxid),
        2 => (0..4u64).prop_map(Condition::Cversion),
    ];
    let path = written_path;
    prop_oneof![
        16 => (path(), data(), mode).prop_map(|(path, data, mode)| Op::Create { path: path.into(), data, mode }),
        8 => (path(), data(), version())
            .prop_map(|(path, data, version)| Op::Set { path: path.into(), data, version }),
        5 => (path(), version()).prop_map(|(path, version)| Op::Delete { path: path.into(), version }),
        1 => path().prop_map(|path| Op::DeleteTree { path: path.into() }),
        4 => (path(), condition).prop_map(|(path, condition)| Op::Check { path: path.into(), condition }),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let watches = prop::bool::weighted(0.8);
    prop_oneof![
        10 => op().prop_map(Call::Op),
        6 => vec(op(), 0..5).prop_map(Call::Multi),
        2 => (path(), watches).prop_map(|(path, watch)| Call::Get(path, watch)),
        2 => (path(), watches).prop_map(|(path, watch)| Call::Exists(path, watch)),
        2 => (path(), watches).prop_map(|(path, watch)| Call::Children(path, watch)),
        3 => (path(), prop::bool::ANY).prop_map(|(path, recursive)| {
            let mode = match recursive {
                true => WatchMode::PersistentRecursive,
                false => WatchMode::Persistent,
            };
            Call::Watch(path, mode)
        }),
        1 => Just(Call::Ephemerals),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..SESSIONS, vec(call(), 1..6), prop::bool::weighted(0.05))
            .prop_map(|(session, calls, closes)| Step::Calls(session, calls, closes)),
        1 => (0..SESSIONS).prop_map(Step::Expire),
        1 => (0..SESSIONS).prop_map(Step::Resume),
        2 => any::<prop::sample::Index>().prop_map(Step::Unwatch),
    ]
}

/// Mostly with a few znodes from the beginning, as parents of others.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let create = |path: &str| {
        let (data, mode) = (Bytes::new(), CreateMode::Persistent);
        Call::Op(Op::Create { path: path.into(), data: data.into(), mode })
    };
    let first = Step::Calls(0, ["/a", "/b", "/a/x"].map(create).to_vec(), false);
    (prop::bool::weighted(0.9), vec(step(), 1..40)).prop_map(move |(with, steps)| {
        let first = with.then(|| first.clone());
        first.into_iter().chain(steps).collect()
    })
}

/// An answer that can be compared.
#[derive(Debug, PartialEq)]
enum Seen {
    Reply(Reply),
    Data(Vec<u8>, Stat),
    Exists(Option<Stat>),
    Children(Vec<String>),
    Watching,
}

impl From<Answer> for Seen {
    fn from(answer: Answer) -> Seen {
        match answer {
            Answer::Reply(reply) => Seen::Reply(reply),
            Answer::Data { data, stat, .. } => Seen::Data(data.to_vec(), stat),
            Answer::Exists(stat) => Seen::Exists(stat),
            Answer::Children(children, _) => Seen::Children(children),
            Answer::Watching => Seen::Watching,
            other => unreachable!("nobody asks for {other:?}"),
        }
    }
}

struct World {
    cluster: Cluster,
    model: Model,
    rules: Rules,
    sessions: [Option<Held>; SESSIONS],
    /// The last number given to a session, a holder or a watch.
    last: u64,
    notified: Vec<Notified>,
    ended: BTreeSet<WatchId>,
    expected: Vec<(RequestId, Result<Seen, Error>)>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: SessionId,
    holder: u64,
    seq: u64,
}

impl World {
    fn new() -> World {
        let mut cluster = Cluster::new(1);
        cluster.elect();
        let mut model = Model::new();
        model.version = VERSION;
        let config = cluster.node(1).machine().tree();
        let config = config.get("/zookeeper/config").expect("it is always there");
        model.founded(config.data());
        World {
            cluster,
            model,
            rules: Rules::default(),
            sessions: [None; SESSIONS],
            last: 0,
            notified: Vec::new(),
            ended: BTreeSet::new(),
            expected: Vec::new(),
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Applies a request to the model, and collects the events for the watches.
    fn apply(&mut self, held: Held, command: Command) -> Result<Seen, Error> {
        let Held { id: session, holder, seq } = held;
        let request = Request { session, holder, seq, acked: seq, command };
        self.model.time = self.cluster.clock().wall_ms;
        let result = self.model.apply(TERM, &request);
        for change in std::mem::take(&mut self.model.changes) {
            self.rules.notify(&change, &mut self.notified, &mut self.ended);
        }
        result.map(Seen::Reply).map_err(|error| error.into_error(session))
    }

    /// The session of this number, opened if there is none.
    fn session(&mut self, slot: usize) -> Held {
        if let Some(held) = self.sessions[slot] {
            return held;
        }
        let id = self.cluster.open(NODE, self.last + 1, TICK * 3);
        self.last += 1;
        let held = Held { id, holder: id.0 * 1000, seq: 0 };
        let command = Command::Open { secret: [7; 16], timeout_ms: 6000, owner: NODE, base: 0 };
        assert!(self.apply(held, command).is_ok());
        self.sessions[slot] = Some(held);
        held
    }

    /// The answer to a read, which sets its watch if it succeeds.
    fn read(&mut self, of: SessionId, call: &Call, watch: WatchId) -> Result<Seen, Error> {
        let model = &self.model;
        let (path, seen, kind) = match call {
            Call::Get(path, true) | Call::Exists(path, true) | Call::Children(path, true) => {
                let kind = match call {
                    Call::Get(..) => Kind::Get,
                    Call::Exists(..) => Kind::Exists,
                    _ => Kind::Children,
                };
                (path, None, Some(kind))
            }
            Call::Watch(path, WatchMode::Persistent) => {
                (path, Some(Seen::Watching), Some(Kind::Persistent))
            }
            Call::Watch(path, WatchMode::PersistentRecursive) => {
                (path, Some(Seen::Watching), Some(Kind::Recursive))
            }
            Call::Get(path, _) | Call::Exists(path, _) | Call::Children(path, _) => {
                (path, None, None)
            }
            Call::Ephemerals => {
                let owned = model.znodes.iter();
                let owned = owned.filter(|(_, znode)| znode.stat.ephemeral_owner == Some(of));
                return Ok(Seen::Children(owned.map(|(path, _)| path.clone()).collect()));
            }
            Call::Op(_) | Call::Multi(_) => unreachable!("a write"),
        };
        let missing = || Error::NoNode { path: path.clone() };
        let znode = model.znodes.get(path);
        let seen = match (seen, call) {
            (Some(seen), _) => seen,
            (None, Call::Get(..)) => {
                Seen::Data(znode.ok_or_else(missing)?.data.to_vec(), model.stat(path))
            }
            (None, Call::Exists(..)) => Seen::Exists(znode.map(|_| model.stat(path))),
            _ => Seen::Children(znode.map(|_| model.children(path)).ok_or_else(missing)?),
        };
        if let Some(kind) = kind {
            self.rules.watches.insert(watch, (of, path.clone(), kind));
        }
        Ok(seen)
    }

    fn call(&mut self, slot: usize, call: Call) {
        let held = self.session(slot);
        let session = held.id;
        let watch = WatchId(self.next());
        let command = match &call {
            Call::Op(op) => Some(Command::Op(op.clone())),
            Call::Multi(ops) => Some(Command::Multi(ops.clone())),
            _ => None,
        };
        if let Some(command) = command {
            return self.write(slot, command);
        }
        let expected = self.read(session, &call, watch);
        let read = |read, watches: bool| Query::Read { read, watch: watches.then_some(watch) };
        let query = match call {
            Call::Get(path, watches) => read(Read::Get { path: path.into() }, watches),
            Call::Exists(path, watches) => read(Read::Exists { path: path.into() }, watches),
            Call::Children(path, watches) => read(Read::Children { path: path.into() }, watches),
            Call::Watch(path, mode) => {
                let recursive = mode == WatchMode::PersistentRecursive;
                Query::Watch {
                    watch,
                    path: path.into(),
                    recursive,
                    from: None,
                    data: EventData::None,
                }
            }
            _ => read(Read::Ephemerals, false),
        };
        let request = self.cluster.ask(NODE, session, RequestBody::Query(query));
        self.expected.push((request, expected));
    }

    fn write(&mut self, slot: usize, command: Command) {
        let mut held = self.session(slot);
        let expected = match command.too_large(COMMAND_BYTES_MAX) {
            // It gets no number, and does not reach the log.
            Some(error) => Err(error.into_error(held.id)),
            None => {
                held.seq += 1;
                self.sessions[slot] = Some(held);
                self.apply(held, command.clone())
            }
        };
        let request = self.cluster.write(NODE, held.id, command);
        self.expected.push((request, expected));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Calls(slot, calls, closes) => {
                self.session(slot);
                for call in calls {
                    self.call(slot, call);
                }
                if closes {
                    self.write(slot, Command::Close);
                    self.over(slot);
                }
            }
            Step::Expire(slot) => {
                let held = self.session(slot);
                self.cluster.expire(NODE, held.id);
                let expired = self.apply(held, Command::Expire { term: TERM });
                assert!(expired.is_ok());
                self.over(slot);
            }
            Step::Resume(slot) => {
                let Held { id, .. } = self.session(slot);
                self.rules.end(id, &mut self.ended);
                let held = Held { id, holder: 1_000_000 + self.next(), seq: 0 };
                let resumed = self.cluster.resume(NODE, id, held.holder, [7; 16]);
                let command = Command::Resume { secret: [7; 16], timeout_ms: 6000, owner: NODE };
                assert_eq!(resumed.map(Seen::from), self.apply(held, command));
                self.sessions[slot] = Some(held);
            }
            Step::Unwatch(index) => {
                let watches: Vec<WatchId> = self.rules.watches.keys().copied().collect();
                if !watches.is_empty() {
                    let watch = *index.get(&watches);
                    self.cluster.unwatch(NODE, watch);
                    self.rules.watches.remove(&watch);
                }
            }
        }
    }

    /// The watches of a session get the events of its end, and are over then.
    fn over(&mut self, slot: usize) {
        if let Some(held) = self.sessions[slot].take() {
            self.rules.end(held.id, &mut self.ended);
        }
    }

    fn compare(&mut self) -> TestCaseResult {
        self.cluster.settle();
        for (request, expected) in std::mem::take(&mut self.expected) {
            let answer = self.cluster.replies.remove(&request);
            prop_assert_eq!(answer.map(|answer| answer.map(Seen::from)), Some(expected));
        }
        let mut events = std::mem::take(&mut self.cluster.events).into_iter();
        for (event, watches) in self.notified.drain(..) {
            let seen: Vec<_> = events.by_ref().take(watches.len()).collect();
            let is_it = |seen: &WatchEvent| {
                (seen.kind, seen.path.as_str(), seen.zxid) == (event.0, &event.1, event.2)
                    && !seen.net
            };
            prop_assert!(seen.iter().all(|(_, seen)| is_it(seen)), "{event:?}: {seen:?}");
            prop_assert_eq!(seen.len(), watches.len(), "{:?}", event);
            prop_assert_eq!(seen.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>(), watches);
        }
        prop_assert_eq!(events.next(), None);
        let ended = std::mem::take(&mut self.cluster.ended);
        prop_assert_eq!(ended.len(), self.ended.len());
        prop_assert_eq!(BTreeSet::from_iter(ended), std::mem::take(&mut self.ended));
        let node = self.cluster.node(NODE);
        prop_assert_eq!(node.watch_count(), self.rules.watches.len());
        let tree = node.machine().tree();
        prop_assert_eq!((tree.zxid(), tree.len()), (self.model.zxid, self.model.znodes.len()));
        for (path, expected) in &self.model.znodes {
            let Some(znode) = tree.get(path) else {
                return Err(TestCaseError::fail(format!("there is no {path}")));
            };
            prop_assert_eq!(znode.data(), &expected.data[..]);
            prop_assert_eq!(znode.stat(), self.model.stat(path));
            let children: Vec<&str> = znode.children().collect();
            prop_assert_eq!(children, self.model.children(path));
        }
        node.machine().check_invariants().map_err(TestCaseError::fail)
    }
}

fn run(steps: Vec<Step>) -> TestCaseResult {
    let mut world = World::new();
    for step in steps {
        world.take(step);
        world.compare()?;
    }
    Ok(())
}

proptest! {
    // 256 cases, or the number in `PROPTEST_CASES`.
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_node_behaves_as_the_model_and_tells_its_watches_by_the_rules(steps in steps()) {
        run(steps)?;
    }
}

/// The comparison must find planted differences.
#[test]
fn differences_from_the_model_are_found() {
    for bug in [Bug::OneShotStays, Bug::MultiPartial, Bug::EphemeralsStay, Bug::ReadBeforeOwnWrites]
    {
        let config = Config {
            cases: 500,
            max_shrink_iters: 0,
            failure_persistence: None,
            ..Config::default()
        };
        // The same cases each time.
        let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, random);
        plant(Some(bug));
        let found = runner.run(&steps(), run);
        plant(None);
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
