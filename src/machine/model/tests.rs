//! The machine against the model.
//!
//! Random requests go to both. After each batch the replies, the changes, all
//! stats and all children must agree; replicas that saw the same batches, or
//! were restored from chunks half-way, must agree in every hash.

use std::ops::Range;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::machine::command::{Batch, Outcome};
use crate::machine::data::Data;
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::machine::{DATA_BYTES_MAX, Machine};
use crate::types::acl::Permissions;
use crate::types::counter::CounterForm;
use crate::types::queue::{CLAIMS, DELAYED, ITEMS, QueueOrder, TAKEN};
use crate::types::znode::{Condition, CreateMode};

/// A request without its number, which depends on the session's last one.
#[derive(Clone, Debug)]
struct Draft {
    session: u64,
    holder: Who,
    /// The distance from the next number: 0 is the next one itself, -1 the last one again.
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
        // The parents of other paths occur more often.
        40 => prop::sample::select(vec![
            "/a", "/a", "/a", "/b", "/b", "/a-", "/a/x", "/a/x", "/a/x", "/a/y", "/a/x/1", "/a/x/2",
            "/b/n-", "/zookeeper/quota/q",
        ]),
        3 => prop::sample::select(vec![
            "/zookeeper/quota/a", "/zookeeper/quota/a/zookeeper_limits",
            "/zookeeper/quota/a/zookeeper_stats", "/zookeeper/quota/a/x",
            "/zookeeper/quota/a/x/zookeeper_stats", "/zookeeper/quota/zookeeper_stats",
            "/zookeeper/quota/zookeeper_limits", "/zookeeper/quotas/zookeeper_stats",
        ]),
        // What a queue makes itself.
        4 => prop::sample::select(vec!["/a/items", "/a/delayed", "/a/taken", "/a/claims"]),
        4 => prop::sample::select(vec![
            "/a/items/the first", "/a/delayed/the first", "/a/taken/the first", "/a/taken/the last",
            "/a/claims/the first", "/a/claims/the last", "/b/the last", "/a/items/the first/x",
        ]),
        2 => prop::sample::select(vec![
            "/", "/zookeeper", "/zookeeper/config", "/a/", "/q/", "bad", "", "/a//b", "/a/..",
            "/none/x", "/a0000000000", "/b/0000000001", "/zookeeper/config/x",
        ]),
    ]
    .prop_map(str::to_owned)
}

fn version() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => Just(None), 1 => (0..3u64).prop_map(Some)]
}

fn condition() -> impl Strategy<Value = Condition> {
    let zxid = 0..12u64;
    let count = 0..4u64;
    prop_oneof![
        4 => Just(Condition::Exists),
        4 => Just(Condition::Absent),
        4 => count.clone().prop_map(Condition::Version),
        1 => zxid.clone().prop_map(Condition::Czxid),
        1 => zxid.clone().prop_map(Condition::Mzxid),
        1 => zxid.prop_map(Condition::Pzxid),
        1 => count.clone().prop_map(Condition::Cversion),
        1 => count.prop_map(Condition::Aversion),
        1 => (0..4u64, 0..8u64).prop_map(|(znodes, bytes)| Condition::Usage { znodes, bytes }),
    ]
}

/// The limits of a quota, not all of them well formed.
fn limits() -> impl Strategy<Value = String> {
    let number = || prop_oneof![Just("-1".to_owned()), (0..8u64).prop_map(|n| n.to_string())];
    prop_oneof![
        4 => (number(), number()).prop_map(|(count, bytes)| format!("count={count},bytes={bytes}")),
        4 => (number(), number(), number(), number()).prop_map(|(count, bytes, c, b)| {
            format!("count={count},bytes={bytes}=;byteHardLimit={b};countHardLimit={c}")
        }),
        1 => Just("count=x;bytes".to_owned()),
    ]
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![
        30 => vec(any::<u8>(), 0..4).prop_map(Data::from),
        3 => Just(None).prop_map(Data::from),
        3 => limits().prop_map(Data::from),
        1 => (DATA_BYTES_MAX - 2..DATA_BYTES_MAX + 2).prop_map(|size| vec![7; size].into()),
    ]
}

fn id() -> impl Strategy<Value = Id> {
    prop::sample::select(vec!["alice:h", "bob:h"]).prop_map(|id| Id::new("digest", id))
}

fn acl() -> impl Strategy<Value = Vec<Acl>> {
    let id = prop_oneof![
        8 => id(),
        4 => Just(Id::auth()),
        4 => Just(Id::anyone()),
        1 => Just(Id::new("world", "all")),
        1 => Just(Id::new("digest", "alice")),
    ];
    let permissions = prop_oneof![
        Just(Permissions::ALL),
        (0..32u8).prop_map(|bits| Permissions::from_bits(bits).unwrap()),
    ];
    vec((permissions, id).prop_map(|(permissions, id)| Acl::new(permissions, id)), 0..4)
}

/// Boxed, since its trees would use much of a thread's stack.
fn op() -> BoxedStrategy<Op> {
    let mode = prop::sample::select(vec![
        CreateMode::Persistent,
        CreateMode::PersistentSequential,
        CreateMode::Ephemeral,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
        CreateMode::PersistentWithTtl(Duration::from_millis(3)),
        CreateMode::PersistentSequentialWithTtl(Duration::from_millis(5)),
        CreateMode::PersistentWithTtl(Duration::from_micros(900)),
        CreateMode::PersistentWithTtl(Duration::MAX),
    ]);
    prop_oneof![
        4 => (paths(), data(), mode.clone())
            .prop_map(|(path, data, mode)| Op::Create { path: path.into(), data, mode }),
        1 => (paths(), data(), mode.clone(), acl())
            .prop_map(|(path, data, mode, acl)| Op::CreateWithAcl { path: path.into(), data, mode, acl }),
        1 => (paths(), acl(), version())
            .prop_map(|(path, acl, version)| Op::SetAcl { path: path.into(), acl, version }),
        1 => (paths(), data()).prop_map(|(path, data)| Op::Invented { path: path.into(), data }),
        2 => (paths(), data(), version())
            .prop_map(|(path, data, version)| Op::Set { path: path.into(), data, version }),
        3 => (paths(), version()).prop_map(|(path, version)| Op::Delete { path: path.into(), version }),
        1 => paths().prop_map(|path| Op::DeleteTree { path: path.into() }),
        2 => (paths(), data(), mode)
            .prop_map(|(path, data, mode)| Op::CreateOrSet { path: path.into(), data, mode }),
        2 => (paths(), data(), 1..4u64).prop_map(|(path, data, from)| {
            Op::TakeOver { path: path.into(), data, from: SessionId(from) }
        }),
        6 => (queues(), data(), order())
            .prop_map(|(path, data, order)| Op::Put { path: path.into(), data, order: order.into() }),
        6 => (queues(), any::<bool>()).prop_map(|(path, claims)| Op::Take { path: path.into(), claims }),
        3 => (paths(), number(), form())
            .prop_map(|(path, number, form)| Op::Add { path: path.into(), number, form, within: None }),
        2 => (paths(), number(), form(), prop::option::of(0..3_000_000u64))
            .prop_map(|(path, number, form, within)| Op::Add { path: path.into(), number: number.saturating_mul(300_000), form, within }),
        2 => (paths(), condition()).prop_map(|(path, condition)| Op::Check { path: path.into(), condition }),
    ]
    .boxed()
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -3..9i64,
        1 => prop::sample::select(vec![i64::MIN, i64::MAX, i64::from(i32::MAX), i64::from(i32::MIN)]),
    ]
}

fn form() -> impl Strategy<Value = CounterForm> {
    prop::sample::select(vec![CounterForm::Long, CounterForm::Int, CounterForm::Text])
}

/// Mostly few paths, so that items meet.
fn queues() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just("/a".to_owned()), 1 => Just("/".to_owned()), 1 => paths()]
}

fn order() -> impl Strategy<Value = QueueOrder> {
    let delay = prop_oneof![2 => Just(0), 1 => 1..5u64, 1 => Just(u64::MAX)];
    let id = prop::sample::select(vec!["", "ix", "i%2f", "i/", "-"]);
    let max = prop_oneof![2 => Just(None), 1 => (0..4u64).prop_map(Some)];
    (-1..2i32, delay, id, max).prop_map(|(priority, delay_ms, id, max)| QueueOrder {
        priority,
        delay_ms,
        id: id.to_owned(),
        max,
    })
}

/// A quota as it is made at once.
fn quota() -> impl Strategy<Value = Command> {
    (prop::sample::select(vec!["", "/a", "/b"]), limits()).prop_map(|(of, limits)| {
        let mode = CreateMode::Persistent;
        let create = |path: &str, data: String| Op::Create {
            path: format!("/zookeeper/quota{path}").into(),
            data: data.into(),
            mode,
        };
        let parents = (!of.is_empty()).then(|| create(of, String::new()));
        let limits = create(&format!("{of}/zookeeper_limits"), limits);
        let stats = create(&format!("{of}/zookeeper_stats"), String::new());
        Command::Multi(parents.into_iter().chain([limits, stats]).collect())
    })
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
        2 => paths().prop_map(|path| Command::Reap { path }),
        1 => (0..4u16).prop_map(|version| Command::RaiseVersion { version }),
        20 => op().prop_map(Command::Op),
        8 => vec(op(), 0..4).prop_map(Command::Multi),
        2 => quota(),
        1 => (0..4u64, 0..3u64).prop_map(|(version, count)| Command::Configure {
            version,
            seats: (1..=count)
                .map(|node| crate::types::membership::Seat { member: crate::types::membership::Member::new(node, "a:1"), votes: node == 1 })
                .collect(),
        }),
        2 => vec(id(), 0..3).prop_map(|ids| Command::Authenticate { ids }),
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
        command: match draft.command {
            Command::Op(op) => Command::Op(named(op, model)),
            Command::Multi(ops) => {
                Command::Multi(ops.into_iter().map(|op| named(op, model)).collect())
            }
            command => command,
        },
    }
}

/// Stand for the name of a child that is there: the cluster has chosen it.
const FIRST: &str = "/the first";
const LAST: &str = "/the last";

fn named(mut op: Op, model: &Model) -> Op {
    let path = path_of(&mut op);
    for name in [FIRST, LAST] {
        let Some((parent, rest)) = path.split_once(name) else { continue };
        let Some(_) = model.znodes.get(parent) else { continue };
        let mut children = model.children(parent);
        children.sort();
        let child = if name == FIRST { children.first() } else { children.last() };
        if let Some(child) = child {
            *path = format!("{parent}/{child}{rest}").into();
        }
    }
    op
}

fn path_of(op: &mut Op) -> &mut Arc<str> {
    match op {
        Op::Create { path, .. }
        | Op::CreateWithAcl { path, .. }
        | Op::CreateOrSet { path, .. }
        | Op::TakeOver { path, .. }
        | Op::Set { path, .. }
        | Op::SetAcl { path, .. }
        | Op::Delete { path, .. }
        | Op::DeleteTree { path }
        | Op::Check { path, .. }
        | Op::Put { path, .. }
        | Op::Take { path, .. }
        | Op::Add { path, .. }
        | Op::Invented { path, .. } => path,
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

/// Runs these steps in machines and in the model.
fn agree(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    let mut machine = Machine::new();
    // This machine is never cloned or saved, and prepares what it can.
    let mut replica = Machine::new();
    // This machine is sometimes replaced by one that is restored from its chunks.
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
            let result = model.apply(1, &request);
            outcomes.push(Outcome {
                session: request.session,
                holder: request.holder,
                seq: request.seq,
                zxid: model.zxid,
                result,
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
            prop_assert_eq!(znode.data(), &expected.data[..]);
            prop_assert_eq!(znode.is_null(), expected.data.is_null());
            prop_assert_eq!(znode.stat(), model.stat(path));
            let acl = znode.acl().map(|acl| acl.entries());
            prop_assert_eq!(acl, expected.acl.as_deref());
            let children = znode.children().collect::<Vec<_>>();
            prop_assert_eq!(children, model.children(path));
        }
        machine.check_invariants().unwrap();
        while !replica.prepare(&batch) {}
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
    Ok(())
}

/// Requests of one batch, how long after the last one it comes, and whether a machine is saved after it.
type Step = (Vec<Draft>, u64, bool);

/// The sessions that are open from the beginning, so that most requests are not refused for want of one.
const SESSIONS: Range<u64> = 1..6;

/// A step of consumers of one queue, and of somebody who deletes what they work on, puts something else there, or
/// permits things to some of them only.
fn queue_step() -> impl Strategy<Value = Step> {
    let queue = || Arc::<str>::from("/a");
    let child = || prop::sample::select(vec![FIRST, LAST]);
    let inside = || {
        let part = prop::sample::select(vec![ITEMS, DELAYED, TAKEN, CLAIMS]);
        (part, child()).prop_map(|(part, child)| format!("/a/{part}{child}"))
    };
    let lost = (prop::sample::select(vec![TAKEN, CLAIMS]), child());
    let delete = lost.prop_map(|(part, child)| format!("/a/{part}{child}"));
    let delete = delete.prop_map(|path| Op::Delete { path: path.into(), version: None });
    // An item keeps its data wherever it moves, null or empty.
    let data = prop::sample::select(vec![Data::from(None), Data::default()]);
    let put = (data, order()).prop_map(move |(data, order)| Op::Put {
        path: queue(),
        data,
        order: Box::new(QueueOrder { max: None, ..order }),
    });
    let take = any::<bool>().prop_map(move |claims| Op::Take { path: queue(), claims });
    let part = prop::sample::select(vec!["/a/items", "/a/taken", "/a/claims"]);
    let list = prop_oneof![4 => inside(), 1 => part.prop_map(str::to_owned)];
    let list =
        (list, acl()).prop_map(|(path, acl)| Op::SetAcl { path: path.into(), acl, version: None });
    let other =
        (inside(), prop::sample::select(vec!["", "/x"])).prop_map(|(path, below)| Op::Create {
            path: format!("{path}{below}").into(),
            data: "".into(),
            mode: CreateMode::Persistent,
        });
    let check = Just(Op::Check { path: "/a/items".into(), condition: Condition::Absent });
    let op =
        prop_oneof![6 => put, 8 => take, 6 => delete, 3 => list, 1 => other, 1 => check].boxed();
    let command = prop_oneof![
        30 => op.clone().prop_map(Command::Op),
        10 => vec(op, 2..5).prop_map(Command::Multi),
        2 => vec(id(), 1..3).prop_map(|ids| Command::Authenticate { ids }),
        1 => quota(),
        1 => Just(Command::Close),
    ];
    let draft = (SESSIONS, command).prop_map(|(session, command)| present(session, command));
    (vec(draft, 1..4), 0..4u64, any::<bool>())
}

/// A step of sessions that permit each other little in one small tree.
fn access_step() -> impl Strategy<Value = Step> {
    let path = || {
        let paths = vec!["/a", "/a/x", "/a/x", "/a/x/1", "/a/x/2", "/a/y"];
        prop::sample::select(paths).prop_map(Arc::<str>::from)
    };
    let mode = prop::sample::select(vec![CreateMode::Persistent, CreateMode::Ephemeral]);
    let create = (path(), mode.clone()).prop_map(|(path, mode)| Op::CreateOrSet {
        path,
        data: "1".into(),
        mode,
    });
    let listed = (path(), mode, acl()).prop_map(|(path, mode, acl)| Op::CreateWithAcl {
        path,
        data: "1".into(),
        mode,
        acl,
    });
    let list = (path(), acl()).prop_map(|(path, acl)| Op::SetAcl { path, acl, version: None });
    let take_over = (path(), SESSIONS).prop_map(|(path, from)| Op::TakeOver {
        path,
        data: "1".into(),
        from: SessionId(from),
    });
    let form = CounterForm::Text;
    let op = prop_oneof![
        6 => create,
        2 => listed,
        3 => list,
        2 => take_over,
        4 => path().prop_map(|path| Op::DeleteTree { path }),
        1 => path().prop_map(|path| Op::Delete { path, version: None }),
        1 => path().prop_map(|path| Op::Check { path, condition: Condition::Exists }),
        1 => path().prop_map(move |path| Op::Add { path, number: 1, form, within: None }),
    ]
    .boxed();
    let command = prop_oneof![
        30 => op.clone().prop_map(Command::Op),
        10 => vec(op, 2..5).prop_map(Command::Multi),
        4 => vec(id(), 1..3).prop_map(|ids| Command::Authenticate { ids }),
        1 => Just(Command::Close),
    ];
    let draft = (SESSIONS, command).prop_map(|(session, command)| present(session, command));
    (vec(draft, 1..3), 0..4u64, any::<bool>())
}

/// All sessions are open, and there is `/a`.
fn begun() -> Step {
    let open = |session| {
        let (secret, timeout_ms) = ([1; 16], 1000);
        present(session, Command::Open { secret, timeout_ms, owner: 1, base: 0 })
    };
    let create = Op::Create { path: "/a".into(), data: "".into(), mode: CreateMode::Persistent };
    (SESSIONS.map(open).chain([present(1, Command::Op(create))]).collect(), 1, false)
}

fn present(session: u64, command: Command) -> Draft {
    Draft { session, holder: Who::Present, seq_offset: 0, acked_offset: 0, command }
}

proptest! {
    // 256 cases, or the number in `PROPTEST_CASES`.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model_and_survives_chunks(
        steps in vec((vec(draft(), 1..4), 0..4u64, any::<bool>()), 1..40),
    ) {
        agree(steps)?;
    }

    #[test]
    fn queues_behave_as_the_model_whatever_is_deleted(steps in vec(queue_step(), 1..40)) {
        agree([vec![begun()], steps].concat())?;
    }

    #[test]
    fn access_lists_behave_as_the_model(steps in vec(access_step(), 1..60)) {
        agree([vec![begun()], steps].concat())?;
    }
}
