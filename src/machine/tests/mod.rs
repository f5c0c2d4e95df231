//! ZooKeeper's rules for znodes, one by one.

pub(super) mod colliding;
mod ends;
mod queues;
mod sequences;
mod sessions;
mod set_back;
mod versions;

use std::time::Duration;

use super::command::{
    Applied, Batch, ChangeKind, Command, Op, OpError, Reply, Request, SessionChange,
};
use super::{DATA_BYTES_MAX, Machine, RESULTS_BYTES_MAX};
use crate::types::path::PATH_BYTES_MAX;
use crate::types::queue::QueueOrder;
use crate::types::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat};

const TERM: u64 = 5;
const SECRET: [u8; 16] = *b"sixteen letters!";
const A: SessionId = SessionId(0xA);
const B: SessionId = SessionId(0xB);

/// A machine with the sessions A and B, and the number of each session's next request.
struct Script {
    machine: Machine,
    time: u64,
    next: [u64; 2],
    last: Applied,
}

impl Script {
    fn new() -> Script {
        let mut script =
            Script { machine: Machine::new(), time: 1000, next: [1, 1], last: Applied::default() };
        for id in [A, B] {
            let opened = script.send(id, id.0, 0, 0, open());
            assert_eq!(opened, Ok(Reply::Session { timeout_ms: 9000 }));
        }
        script
    }

    fn send(
        &mut self,
        session: SessionId,
        holder: u64,
        seq: u64,
        acked: u64,
        command: Command,
    ) -> Result<Reply, OpError> {
        let request = Request { session, holder, seq, acked, command };
        self.last = self.machine.apply(TERM, &Batch { time: self.time, requests: vec![request] });
        self.machine.check_invariants().unwrap();
        self.last.outcomes[0].result.clone()
    }

    /// The session's next request.
    fn run(&mut self, session: SessionId, command: Command) -> Result<Reply, OpError> {
        let next = &mut self.next[usize::from(session == B)];
        let seq = *next;
        *next += 1;
        self.send(session, session.0, seq, seq, command)
    }

    fn op(&mut self, op: Op) -> Result<Reply, OpError> {
        self.run(A, Command::Op(op))
    }

    /// Runs a multi; the error is that of the operation that failed.
    fn multi(&mut self, ops: Vec<Op>) -> Result<(), OpError> {
        match self.run(A, Command::Multi(ops)) {
            Ok(_) => Ok(()),
            Err(OpError::Multi { error, .. }) => Err(*error),
            Err(error) => Err(error),
        }
    }

    fn raise(&mut self, version: u16) {
        let raised = self.send(SessionId(0), 0, 0, 0, Command::RaiseVersion { version });
        assert_eq!(raised, Ok(Reply::Done));
    }

    /// Creates a znode and returns its path.
    fn make(&mut self, path: &str, mode: CreateMode) -> String {
        match self.op(create(path, mode)) {
            Ok(Reply::Created(created)) => created.path,
            other => panic!("{path}: {other:?}"),
        }
    }

    fn stat(&self, path: &str) -> Stat {
        let tree = self.machine.tree();
        tree.get(path).unwrap_or_else(|| panic!("{path}")).stat()
    }

    fn exists(&self, path: &str) -> bool {
        self.machine.tree().get(path).is_some()
    }

    fn changes(&self) -> Vec<(u64, ChangeKind, &str)> {
        let changes = self.last.changes.iter();
        changes.map(|change| (change.zxid, change.kind, &*change.path)).collect()
    }
}

fn open() -> Command {
    Command::Open { secret: SECRET, timeout_ms: 9000, owner: 1, base: 0 }
}

fn resume(secret: [u8; 16]) -> Command {
    Command::Resume { secret, timeout_ms: 7000, owner: 2 }
}

fn create(path: &str, mode: CreateMode) -> Op {
    Op::Create { path: path.into(), data: "".into(), mode }
}

fn set(path: &str, data: &'static [u8], version: Option<u64>) -> Op {
    Op::Set { path: path.into(), data: data.into(), version }
}

fn delete(path: &str, version: Option<u64>) -> Op {
    Op::Delete { path: path.into(), version }
}

fn check(path: &str, version: Option<u64>) -> Op {
    require(path, version.map_or(Condition::Exists, Condition::Version))
}

fn require(path: &str, condition: Condition) -> Op {
    Op::Check { path: path.into(), condition }
}

fn no_node(path: &str) -> OpError {
    let path = path.to_owned();
    OpError::NoNode { path }
}

fn exists(path: &str) -> OpError {
    let path = path.to_owned();
    OpError::NodeExists { path }
}

use ChangeKind::{Created as Made, DataChanged, Deleted};
use CreateMode::{Ephemeral, EphemeralSequential, Persistent, PersistentSequential};

#[test]
fn the_stat_follows_each_operation() {
    // Line by line of ZooKeeper's table of the fields that each operation changes. The zxids 1 and 2
    // opened the sessions.
    let mut s = Script::new();
    s.time = 2000;
    s.make("/p", Persistent);
    let made = Stat { czxid: 3, mzxid: 3, pzxid: 3, ctime: 2000, mtime: 2000, ..Stat::default() };
    assert_eq!(s.stat("/p"), made);

    s.time = 3000;
    s.make("/p/e", Ephemeral);
    let with_child = Stat { pzxid: 4, cversion: 1, num_children: 1, ..made };
    assert_eq!(s.stat("/p"), with_child);
    assert_eq!(s.stat("/p/e").ephemeral_owner, Some(A));

    s.time = 4000;
    for data in [b"same", b"same"] {
        s.op(set("/p/e", data, None)).unwrap();
    }
    let child = s.stat("/p/e");
    assert_eq!((child.czxid, child.mzxid, child.pzxid), (4, 6, 4));
    assert_eq!((child.ctime, child.mtime), (3000, 4000));
    assert_eq!((child.version, child.data_length), (2, 4));
    assert_eq!(s.stat("/p"), with_child);

    s.op(delete("/p/e", None)).unwrap();
    let without_child = Stat { pzxid: 7, cversion: 2, num_children: 0, ..made };
    assert_eq!(s.stat("/p"), without_child);
}

#[test]
fn time_never_goes_back() {
    let mut s = Script::new();
    s.time = 5000;
    s.make("/a", Persistent);
    s.time = 4000;
    s.make("/b", Persistent);
    assert_eq!(s.stat("/b").ctime, 5000);
    assert_eq!(s.machine.state.time, 5000);
}

#[test]
fn only_writes_that_change_something_take_a_zxid() {
    let mut s = Script::new();
    assert_eq!(s.machine.zxid(), 2);
    s.op(delete("/none", None)).unwrap_err();
    s.make("/a", Persistent);
    s.op(check("/a", Some(0))).unwrap();
    s.run(A, Command::Multi(vec![])).unwrap();
    s.run(A, Command::Multi(vec![check("/a", None)])).unwrap();
    assert_eq!(s.machine.zxid(), 3);
    let both = vec![create("/a/b", Persistent), delete("/a/b", None)];
    s.run(A, Command::Multi(both)).unwrap();
    assert_eq!(s.machine.zxid(), 4);
    assert_eq!(s.machine.tree().zxid(), 4);
}

#[test]
fn versions_are_compared_unless_none_is_given() {
    let mut s = Script::new();
    s.make("/a", Persistent);
    s.op(set("/a", b"1", Some(0))).unwrap();
    let bad = |expected| OpError::BadVersion { path: "/a".to_owned(), expected, actual: 1 };
    assert_eq!(s.op(set("/a", b"2", Some(0))), Err(bad(0)));
    assert_eq!(s.op(check("/a", Some(2))), Err(bad(2)));
    assert_eq!(s.op(delete("/a", Some(u64::MAX))), Err(bad(u64::MAX)));
    assert_eq!(s.op(check("/a", None)), Ok(Reply::Done));
    assert_eq!(s.op(check("/a", Some(1))), Ok(Reply::Done));
    assert_eq!(s.op(delete("/a", Some(1))), Ok(Reply::Done));
}

#[test]
fn create_is_refused_in_zookeepers_order() {
    let mut s = Script::new();
    s.make("/e", Ephemeral);
    s.make("/a", Persistent);
    assert_eq!(s.op(create("/", Persistent)), Err(exists("/")));
    assert_eq!(s.op(create("/a", Ephemeral)), Err(exists("/a")));
    assert_eq!(s.op(create("/x/y", Persistent)), Err(no_node("/x")));
    assert_eq!(s.op(create("/x/", PersistentSequential)), Err(no_node("/x")));
    for mode in [Persistent, EphemeralSequential] {
        let refused = OpError::NoChildrenForEphemerals { path: "/e".to_owned() };
        assert_eq!(s.op(create("/e/x", mode)), Err(refused));
    }
    for path in ["", "x", "/x/", "/x//y", "/x/./y", "/x/\u{1f600}"] {
        let result = s.op(create(path, Persistent));
        assert!(matches!(result, Err(OpError::InvalidPath { .. })), "{path}");
    }
    // The path is checked before the size, and the size before the tree.
    let large = |path: &str| Op::Create {
        path: path.into(),
        data: vec![0; DATA_BYTES_MAX + 1].into(),
        mode: Persistent,
    };
    let result = s.op(large("x"));
    assert!(matches!(result, Err(OpError::InvalidPath { .. })));
    let result = s.op(large("/x/y"));
    assert_eq!(
        result,
        Err(OpError::TooLarge {
            path: "/x/y".to_owned(),
            size: DATA_BYTES_MAX as u64 + 1,
            limit: DATA_BYTES_MAX as u64,
        })
    );
}

#[test]
fn delete_set_and_check_are_refused_in_zookeepers_order() {
    let mut s = Script::new();
    s.make("/a", Persistent);
    s.make("/a/b", Persistent);
    for path in ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"] {
        let path = path.to_owned();
        // Even with a version that is wrong.
        let result = s.op(delete(&path, Some(9)));
        assert_eq!(result, Err(OpError::Reserved { path }));
    }
    let bad = OpError::BadVersion { path: "/a".to_owned(), expected: 9, actual: 0 };
    assert_eq!(s.op(delete("/a", Some(9))), Err(bad.clone()));
    let not_empty = OpError::NotEmpty { path: "/a".to_owned() };
    assert_eq!(s.op(delete("/a", Some(0))), Err(not_empty));
    assert_eq!(s.op(set("/a", b"", Some(9))), Err(bad));
    for path in ["/none", "/none/below"] {
        assert_eq!(s.op(delete(path, Some(9))), Err(no_node(path)));
        assert_eq!(s.op(set(path, b"", Some(9))), Err(no_node(path)));
        assert_eq!(s.op(check(path, Some(9))), Err(no_node(path)));
    }
    for op in [delete("/a/", None), set("a", b"", None), check("", None)] {
        let result = s.op(op);
        assert!(matches!(result, Err(OpError::InvalidPath { .. })));
    }
}

#[test]
fn users_may_write_reserved_znodes_as_far_as_in_zookeeper() {
    let mut s = Script::new();
    for path in ["/", "/zookeeper", "/zookeeper/quota"] {
        s.op(set(path, b"x", Some(0))).unwrap();
    }
    s.make("/zookeeper/quota/a", Persistent);
    s.make("/zookeeper/n-", PersistentSequential);
    s.op(delete("/zookeeper/quota/a", None)).unwrap();
    // Whatever the version, and whether or not there is such a child.
    let path = "/zookeeper/config";
    let reserved = OpError::Reserved { path: path.to_owned() };
    assert_eq!(s.op(set(path, b"x", None)), Err(reserved.clone()));
    assert_eq!(s.op(set(path, b"x", Some(9))), Err(reserved.clone()));
    for mode in [Persistent, Ephemeral, PersistentSequential] {
        assert_eq!(s.op(create("/zookeeper/config/x", mode)), Err(reserved.clone()));
    }
    assert_eq!(s.op(create(path, Persistent)), Err(exists(path)));
    assert_eq!(
        s.op(create("/zookeeper/config/x/y", Persistent)),
        Err(no_node("/zookeeper/config/x"))
    );
    s.multi(vec![check(path, Some(0))]).unwrap();
    assert_eq!(s.stat(path), Stat::default());
}

#[test]
fn the_longest_path_and_the_largest_data_fit() {
    let mut s = Script::new();
    let longest = format!("/{}", "x".repeat(PATH_BYTES_MAX - 1));
    s.make(&longest, Persistent);
    let result = s.op(create(&longest[..PATH_BYTES_MAX - 9], PersistentSequential));
    assert!(matches!(result, Err(OpError::InvalidPath { .. })));
    let sequential = &longest[..PATH_BYTES_MAX - 10];
    assert_eq!(s.make(sequential, PersistentSequential).len(), PATH_BYTES_MAX);
    let largest = vec![1; DATA_BYTES_MAX];
    s.op(Op::Set { path: longest.clone().into(), data: largest.into(), version: None }).unwrap();
    assert_eq!(s.stat(&longest).data_length as usize, DATA_BYTES_MAX);
}

#[test]
fn a_check_looks_at_any_number_of_a_znode() {
    let mut s = Script::new();
    s.make("/a", Persistent);
    s.make("/a/b", Persistent);
    s.op(set("/a", b"1", None)).unwrap();
    let stat = s.stat("/a");
    let (path, none) = ("/a".to_owned(), "/none".to_owned());
    for (condition, other) in [
        (Condition::Czxid(stat.czxid), Condition::Czxid(stat.mzxid)),
        (Condition::Mzxid(stat.mzxid), Condition::Mzxid(stat.czxid)),
        (Condition::Pzxid(stat.pzxid), Condition::Pzxid(stat.mzxid)),
        (Condition::Cversion(1), Condition::Cversion(0)),
        (Condition::Aversion(0), Condition::Aversion(1)),
    ] {
        assert_eq!(s.multi(vec![require("/a", condition)]), Ok(()));
        let unmet = OpError::Unmet { path: path.clone(), condition: other };
        assert_eq!(s.multi(vec![require("/a", other)]), Err(unmet));
        assert_eq!(s.multi(vec![require("/none", condition)]), Err(no_node("/none")));
    }
    let bad = OpError::BadVersion { path: path.clone(), expected: 7, actual: 1 };
    assert_eq!(s.multi(vec![require("/a", Condition::Version(7))]), Err(bad));
    assert_eq!(s.multi(vec![require("/a", Condition::Exists)]), Ok(()));
    assert_eq!(s.multi(vec![require("/none", Condition::Exists)]), Err(no_node("/none")));
    assert_eq!(s.multi(vec![require("/none", Condition::Absent)]), Ok(()));
    let exists = OpError::NodeExists { path };
    assert_eq!(s.multi(vec![require("/a", Condition::Absent)]), Err(exists));
    // A check sees the effects of the operations before it.
    let ops = vec![create(&none, Persistent), require(&none, Condition::Exists)];
    assert_eq!(s.multi(ops), Ok(()));
}

#[test]
fn changes_are_reported_in_the_order_in_which_they_happened() {
    // All changes of a multi have one zxid, and a failed multi reports no changes.
    let mut s = Script::new();
    let ops = vec![
        create("/a", Persistent),
        set("/a", b"1", Some(0)),
        check("/a", Some(1)),
        create("/a/s-", PersistentSequential),
        create("/a/s-", EphemeralSequential),
        delete("/a/s-0000000000", None),
    ];
    s.run(A, Command::Multi(ops)).unwrap();
    let expected = [
        (3, Made, "/a"),
        (3, DataChanged, "/a"),
        (3, Made, "/a/s-0000000000"),
        (3, Made, "/a/s-0000000001"),
        (3, Deleted, "/a/s-0000000000"),
    ];
    assert_eq!(s.changes(), expected);
    let ops = vec![create("/b", Persistent), delete("/none", None)];
    s.run(A, Command::Multi(ops)).unwrap_err();
    assert_eq!(s.changes(), []);
    s.op(set("/a", b"", None)).unwrap();
    assert_eq!(s.changes(), [(4, DataChanged, "/a")]);
}

#[test]
fn each_operation_of_a_multi_sees_those_before_it() {
    // Each stat is as of its operation.
    let mut s = Script::new();
    let ops = vec![
        create("/a", Persistent),
        create("/a/b", Ephemeral),
        set("/a", b"x", Some(0)),
        set("/a", b"xy", Some(1)),
        delete("/a/b", Some(0)),
        delete("/a", Some(2)),
        create("/a", Ephemeral),
    ];
    let Ok(Reply::Multi(results)) = s.run(A, Command::Multi(ops)) else {
        panic!("it failed");
    };
    let OpResult::Created(Created { path, stat }) = &results[0] else {
        panic!("{:?}", results[0]);
    };
    assert_eq!((path.as_str(), stat.czxid, stat.cversion), ("/a", 3, 0));
    let stats = results.iter().filter_map(|result| match result {
        OpResult::Set(stat) => Some((stat.version, stat.data_length, stat.num_children)),
        _ => None,
    });
    assert_eq!(stats.collect::<Vec<_>>(), [(1, 1, 1), (2, 2, 1)]);
    assert_eq!((&results[4], results.len()), (&OpResult::Deleted, 7));
    assert_eq!(s.stat("/a").ephemeral_owner, Some(A));
    assert_eq!(s.stat("/a").version, 0);
}

#[test]
fn a_multi_that_fails_changes_nothing() {
    let mut s = Script::new();
    s.make("/keep", Persistent);
    s.make("/mine", Ephemeral);
    let theirs = create("/theirs", Ephemeral);
    s.run(B, Command::Op(theirs)).unwrap();
    let hash = s.machine.tree().hash();
    s.machine.take_dirty();
    let ops = vec![
        create("/new", Ephemeral),
        delete("/mine", None),
        delete("/theirs", None),
        set("/keep", b"x", None),
        create("/keep/c", Persistent),
        check("/keep", Some(7)),
        create("not looked at", Persistent),
    ];
    let failed = OpError::Multi {
        index: 5,
        error: Box::new(OpError::BadVersion { path: "/keep".to_owned(), expected: 7, actual: 1 }),
    };
    assert_eq!(s.run(A, Command::Multi(ops)), Err(failed));
    assert_eq!(s.machine.tree().hash(), hash);
    assert_eq!(s.machine.zxid(), 5);
    // Only the session has to be saved, since it keeps the result.
    let dirty = s.machine.take_dirty();
    assert_eq!(dirty.written.len() + dirty.gone.len() + dirty.sessions.len(), 1);
}

#[test]
fn a_znode_is_listed_once_between_two_checkpoints() {
    let mut s = Script::new();
    s.make("/a", Persistent);
    s.make("/a/b", Persistent);
    for checkpoint in 0..4 {
        if checkpoint % 2 == 0 {
            s.machine.take_dirty();
        } else {
            // The restored znodes have marks, but no changes are listed.
            s.machine = Machine::from_state(s.machine.state());
        }
        for _ in 0..5 {
            s.op(set("/a/b", b"x", None)).unwrap();
            s.make("/a/c", Persistent);
            s.op(delete("/a/c", None)).unwrap();
        }
        // Each time /a/c is created, it is a new znode.
        assert_eq!(s.machine.dirty.written.len(), 2 + 5, "after {checkpoint} times");
        assert_eq!(s.machine.dirty.gone.len(), 1);
    }
}

#[test]
fn the_data_of_a_multi_is_limited_as_a_whole() {
    let mut s = Script::new();
    s.make("/a", Persistent);
    let half = |bytes| Op::Set { path: "/a".into(), data: vec![0; bytes].into(), version: None };
    let fits = vec![half(DATA_BYTES_MAX / 2), half(DATA_BYTES_MAX / 2)];
    s.run(A, Command::Multi(fits)).unwrap();
    let over = vec![half(DATA_BYTES_MAX / 2), half(DATA_BYTES_MAX / 2 + 1), half(7)];
    let result = s.run(A, Command::Multi(over));
    let limit = DATA_BYTES_MAX as u64;
    let error = Box::new(OpError::TooLarge { path: "/a".to_owned(), size: limit + 8, limit });
    assert_eq!(result, Err(OpError::Multi { index: 1, error }));
}

/// A multi that took 4.5 MB from a queue was done and never answered, and no member that lagged got the state.
#[test]
fn the_results_of_a_multi_are_limited_as_a_whole() {
    let mut s = Script::new();
    s.make("/q", Persistent);
    let put = |data: Vec<u8>| Op::Put {
        path: "/q".into(),
        data: data.into(),
        order: Box::new(QueueOrder { priority: 0, delay_ms: 0, id: String::new(), max: None }),
    };
    for _ in 0..4 {
        s.op(put(vec![7; DATA_BYTES_MAX])).unwrap();
    }
    let take = |claims| Op::Take { path: "/q".into(), claims };
    let (zxid, hash) = (s.machine.zxid(), s.machine.tree().hash());
    for claims in [false, true] {
        let result =
            s.run(A, Command::Multi(vec![put(vec![1]), take(claims), take(claims), take(claims)]));
        let Err(OpError::Multi { index: 3, error }) = result else { panic!("{result:?}") };
        let OpError::TooLarge { path, size, limit } = *error else { panic!("{error:?}") };
        assert_eq!((&*path, limit), ("/q", RESULTS_BYTES_MAX as u64));
        assert!(size > limit && size < limit + 1000, "{size}");
        assert_eq!((s.machine.zxid(), s.machine.tree().hash()), (zxid, hash), "nothing is done");
    }
    s.multi(vec![take(false), take(true)]).unwrap();

    // The paths of items are longer than what puts them.
    let puts = Command::Multi(vec![put(Vec::new()); 55_000]);
    assert_eq!(puts.too_large(RESULTS_BYTES_MAX), None);
    let Err(OpError::Multi { error, .. }) = s.run(A, puts) else { panic!() };
    assert!(matches!(*error, OpError::TooLarge { .. }), "{error:?}");
}

#[test]
fn a_batch_is_applied_in_order() {
    let mut machine = Machine::new();
    let request = |session, seq, command| Request { session, holder: 1, seq, acked: 0, command };
    let batch = Batch {
        time: 1,
        requests: vec![
            request(A, 0, open()),
            request(A, 1, Command::Op(create("/e", Ephemeral))),
            request(B, 1, Command::Op(create("/b", Persistent))),
            request(B, 0, open()),
            request(B, 1, Command::Op(set("/e", b"b", Some(0)))),
            request(A, 2, Command::Close),
        ],
    };
    let applied = machine.apply(TERM, &batch);
    let results = applied.outcomes.iter().map(|outcome| outcome.result.is_ok());
    let expected = [true, true, false, true, true, true];
    assert_eq!(results.collect::<Vec<_>>(), expected);
    let changes = applied.changes.iter().map(|change| (change.zxid, change.kind));
    let expected = [(2, Made), (4, DataChanged), (5, Deleted)];
    assert_eq!(changes.collect::<Vec<_>>(), expected);
    let held = [A, B].map(SessionChange::Held);
    assert_eq!(applied.sessions, [&held[..], &[SessionChange::Gone(A, 1)]].concat());
}

#[test]
fn results_of_the_machine_may_go_to_any_thread() {
    fn check<T: Send + Sync + 'static>() {}
    check::<super::Tree>();
    check::<super::State>();
    check::<super::Dirty>();
    check::<super::snapshot::ChunkWriter>();
    check::<super::Machine>();
}

#[test]
fn a_tree_is_deleted_at_once_children_before_their_parents() {
    let mut s = Script::new();
    for path in ["/a", "/a/b", "/a/b/c", "/a/b-", "/a-", "/ab"] {
        s.make(path, Persistent);
    }
    s.make("/a/e", Ephemeral);
    let zxid = s.machine.zxid() + 1;
    let tree = |path: &str| Op::DeleteTree { path: path.into() };
    assert_eq!(s.op(tree("/a")), Ok(Reply::Done));
    let expected = ["/a/e", "/a/b-", "/a/b/c", "/a/b", "/a"].map(|path| (zxid, Deleted, path));
    assert_eq!(s.changes(), expected);
    assert_eq!(s.machine.zxid(), zxid);
    assert!(s.exists("/a-") && s.exists("/ab"));
    assert_eq!(s.op(tree("/a")), Err(no_node("/a")));
    for path in ["/", "/zookeeper", "/zookeeper/quota"] {
        let path = path.to_owned();
        assert_eq!(s.op(tree(&path)), Err(OpError::Reserved { path }));
    }
    // In a multi that fails, the deletion is undone with the rest.
    s.make("/a", Persistent);
    s.make("/a/b", Persistent);
    assert_eq!(s.multi(vec![tree("/a"), check("/a/b", None)]), Err(no_node("/a/b")));
    assert!(s.exists("/a/b"));
}
