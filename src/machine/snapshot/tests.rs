//! Valid chunks, which restore the state, and invalid chunks, which are refused.

use std::sync::Arc;

use proptest::prelude::*;

use super::reader::decode_result;
use super::*;
use crate::machine::command::{Batch, Command, Op, OpError, Reply, Request};
use crate::machine::sessions::encode_result;
use crate::machine::tests::colliding::colliding;
use crate::machine::tree::{CONFIG, ZnodeKind};
use crate::machine::{Dirty, Machine, SessionRecord};
use crate::types::acl::Permissions;
use crate::types::encoding::append_to;
use crate::types::version::FIRST;
use crate::types::znode::CreateMode;

const ID: SessionId = SessionId(7);

fn apply(machine: &mut Machine, seq: u64, acked: u64, command: Command) {
    let request = Request { session: ID, holder: 1, seq, acked, command };
    let batch = Batch { time: 1000 + seq, requests: vec![request] };
    machine.apply(1, &batch);
}

fn open() -> Command {
    Command::Open { secret: [9; 16], timeout_ms: 1000, owner: 1, base: 0 }
}

fn create(path: &str, data: Vec<u8>, mode: CreateMode) -> Command {
    Command::Op(create_op(path, data, mode))
}

fn create_op(path: &str, data: Vec<u8>, mode: CreateMode) -> Op {
    Op::Create { path: path.into(), data: data.into(), mode }
}

fn delete(path: &str) -> Command {
    Command::Op(Op::Delete { path: path.into(), version: None })
}

/// A machine with an ephemeral, results of all kinds and a former holder.
fn sample() -> Machine {
    let mut machine = Machine::new();
    apply(&mut machine, 0, 0, open());
    let e = create("/e", b"data".to_vec(), CreateMode::Ephemeral);
    apply(&mut machine, 1, 0, e.clone());
    let former = Request {
        session: ID,
        holder: 0,
        seq: 0,
        acked: 0,
        command: Command::Resume { secret: [9; 16], timeout_ms: 1, owner: 3 },
    };
    let back = Request { holder: 2, ..former.clone() };
    let ops = [
        e,
        Command::Multi(vec![
            create_op("/m", vec![], CreateMode::PersistentSequential),
            create_op("/n", vec![], CreateMode::Persistent),
        ]),
        Command::Multi(vec![create_op("/n", vec![], CreateMode::Persistent)]),
    ];
    let ops = (1..).zip(ops).map(|(seq, command)| Request {
        session: ID,
        holder: 2,
        seq,
        acked: 0,
        command,
    });
    let requests = [former, back].into_iter().chain(ops).collect();
    machine.apply(1, &Batch { time: 1, requests });
    assert_eq!(machine.session(ID).map(SessionRecord::result_count), Some(3));
    machine
}

fn read(chunks: &[Vec<u8>], zxid: Zxid, hash: u64) -> Result<Machine, String> {
    let mut reader = ChunkReader::new();
    for chunk in chunks {
        reader.push(chunk)?;
    }
    reader.finish(zxid, hash)
}

fn chunks(machine: &Machine) -> Vec<Vec<u8>> {
    ChunkWriter::full(machine.state()).collect()
}

#[test]
fn a_full_image_restores_everything() {
    let machine = sample();
    let restored = read(&chunks(&machine), machine.zxid(), machine.hash()).unwrap();
    assert_eq!(chunks(&restored), chunks(&machine));
    assert_eq!(restored.state.time, machine.state.time);
    let (ours, theirs) = (machine.session(ID).unwrap(), restored.session(ID).unwrap());
    assert_eq!((&ours.former, ours.first_kept()), (&theirs.former, theirs.first_kept()));
    for place in 0..3 {
        assert_eq!(ours.result(place), theirs.result(place));
    }
}

#[test]
fn chunks_have_a_moderate_size_and_a_large_znode_its_own() {
    let mut machine = Machine::new();
    apply(&mut machine, 0, 0, open());
    for seq in 1..=500 {
        let size = if seq == 250 { 300 << 10 } else { 1000 };
        let path = format!("/n{seq}");
        apply(&mut machine, seq, seq, create(&path, vec![1; size], CreateMode::Persistent));
    }
    let chunks = chunks(&machine);
    let large = chunks.iter().filter(|chunk| chunk.len() > CHUNK_BYTES);
    assert_eq!(large.count(), 1);
    assert!((11..16).contains(&chunks.len()), "{}", chunks.len());
    read(&chunks, machine.zxid(), machine.hash()).unwrap();
}

#[test]
fn many_results_of_a_session_are_spread_over_chunks() {
    let mut machine = Machine::new();
    apply(&mut machine, 0, 0, open());
    for seq in 1..=2000 {
        apply(&mut machine, seq, 0, create("/n-", vec![], CreateMode::PersistentSequential));
    }
    let chunks = chunks(&machine);
    assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
    let restored = read(&chunks, machine.zxid(), machine.hash()).unwrap();
    assert_eq!(restored.session(ID).map(SessionRecord::result_count), Some(2000));
}

#[test]
fn a_delta_has_deleted_and_recreated_znodes() {
    let mut machine = Machine::new();
    apply(&mut machine, 0, 0, open());
    let mut seq = 0;
    let mut run = |machine: &mut Machine, command| {
        seq += 1;
        apply(machine, seq, seq, command);
    };
    let persistent = |path: &str| create(path, vec![], CreateMode::Persistent);
    for path in ["/a", "/a/b", "/a/b/c", "/d", "/d/e"] {
        run(&mut machine, persistent(path));
    }
    machine.take_dirty();
    let mut all = chunks(&machine);
    // Deleted with its children; deleted and created again without them; created and deleted; deleted,
    // with its parent created again.
    for path in ["/a/b/c", "/a/b", "/d/e", "/d"] {
        run(&mut machine, delete(path));
    }
    run(&mut machine, persistent("/d"));
    run(&mut machine, persistent("/f"));
    run(&mut machine, delete("/f"));
    let dirty = machine.take_dirty();
    assert_eq!(Dirty { mark: 0, ..machine.take_dirty() }, Dirty::default());
    let delta: Vec<_> = ChunkWriter::delta(machine.state(), dirty).collect();
    all.extend(delta.clone());
    let restored = read(&all, machine.zxid(), machine.hash()).unwrap();
    assert!(restored.tree().get("/a/b").is_none());

    run(&mut machine, persistent("/d/e"));
    run(&mut machine, Command::Close);
    let dirty = machine.take_dirty();
    all.extend(ChunkWriter::delta(machine.state(), dirty));
    let restored = read(&all, machine.zxid(), machine.hash()).unwrap();
    assert_eq!(chunks(&restored), chunks(&machine));
    // A missing or repeated image is refused.
    all.truncate(1);
    assert!(read(&all, machine.zxid(), machine.hash()).is_err());
    assert!(read(&delta, machine.zxid(), machine.hash()).is_err());
}

/// Whoever chooses the paths can choose them so that all have the same hash, by which a delta finds its znodes.
#[test]
fn a_delta_has_only_the_changed_ones_of_any_number_of_paths_with_one_hash() {
    let (mut machine, mut seq) = (Machine::new(), 0);
    apply(&mut machine, 0, 0, open());
    let mut run = |machine: &mut Machine, command| {
        seq += 1;
        apply(machine, seq, seq, command);
    };
    let mut all = chunks(&machine);
    let paths: Vec<String> = colliding("/flood").take(2000).collect();
    run(&mut machine, create("/flood", vec![], CreateMode::Persistent));
    for path in &paths {
        run(&mut machine, create(path, vec![], CreateMode::Persistent));
    }
    assert_eq!(machine.tree().len(), 5 + paths.len());
    let mut delta = |machine: &mut Machine| {
        // The state is taken first, or the changes are.
        let (mut state, dirty) = (machine.state(), machine.take_dirty());
        if dirty.mark % 2 == 0 {
            state = machine.state();
        }
        let delta: Vec<Vec<u8>> = ChunkWriter::delta(state, dirty).collect();
        all.extend(delta.clone());
        let restored = read(&all, machine.zxid(), machine.hash()).unwrap();
        assert!(chunks(&restored) == chunks(machine));
        delta
    };
    assert!(delta(&mut machine).iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
    for place in 0..3 {
        let path: Arc<str> = paths[700 * place].as_str().into();
        let acl = vec![Acl::new(Permissions::ALL, Id::new("digest", "a:h"))];
        run(
            &mut machine,
            Command::Op(Op::Set { path: path.clone(), data: "x".into(), version: None }),
        );
        run(&mut machine, Command::Op(Op::SetAcl { path, acl, version: None }));
        let delta = delta(&mut machine);
        assert!(delta.len() == 1 && delta[0].len() < 2000, "one znode of 960 bytes");
    }
}

#[test]
fn a_full_image_after_others_replaces_them() {
    let (machine, empty) = (sample(), Machine::new());
    let both = [chunks(&machine), chunks(&empty)].concat();
    read(&both, empty.zxid(), empty.hash()).unwrap();
}

#[test]
fn only_the_whole_image_is_accepted() {
    let machine = sample();
    let (zxid, hash) = (machine.zxid(), machine.hash());
    let whole = chunks(&machine).concat();
    assert!(read(&[], zxid, hash).is_err());
    assert!(read(std::slice::from_ref(&whole), zxid + 1, hash).is_err());
    assert!(read(std::slice::from_ref(&whole), zxid, hash + 1).is_err());
    for end in 0..whole.len() {
        assert!(read(&[whole[..end].to_vec()], zxid, hash).is_err(), "{end}");
    }
    for place in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[place] ^= 1 << bit;
            assert!(read(&[flipped], zxid, hash).is_err(), "{place} {bit}");
        }
    }
}

/// A reader checks each znode when it is added, and does not walk over all of them again.
#[test]
fn inconsistent_znodes_are_refused() {
    let refusal = |znodes: &[(&str, Fields)]| {
        let mut chunk = vec![FORMAT];
        append_to(&mut chunk, &SnapshotItem::Begin { full: true, version: FIRST });
        for (path, fields) in znodes {
            append_to(
                &mut chunk,
                &SnapshotItem::Znode { path, data: RawBytes(b""), fields: *fields, acl: None },
            );
        }
        let record = Cow::Owned(SessionRecord::new([9; 16], 1000, 0, 1, 1));
        append_to(
            &mut chunk,
            &SnapshotItem::Session { id: ID, record, ids: Vec::new(), results: 0 },
        );
        let znodes = znodes.len() as u64;
        let (zxid, time, sessions, tombstones, forgotten) = (1, 1, 1, 0, 0);
        append_to(
            &mut chunk,
            &SnapshotItem::End { zxid, time, znodes, sessions, tombstones, forgotten },
        );
        read(&[chunk], 1, 0).unwrap_err()
    };
    let plain = Fields::default();
    let counted = |creates, cversion| Fields { creates, cversion, ..plain };
    let owned = |id| Fields { kind: ZnodeKind::Ephemeral(id), ..plain };
    let parent = Fields { creates: 1, cversion: 1, ..owned(ID) };
    let reserved = [("/zookeeper", plain), (CONFIG, plain), ("/zookeeper/quota", plain)];
    let tree = |root: Fields, more: &[(&'static str, Fields)]| {
        [&[("/", root)], &reserved[..], more].concat()
    };
    for (znodes, reason) in [
        // Valid, except for the hash.
        (tree(counted(1, 1), &[("/a", plain)]), "the state has zxid 1"),
        (tree(counted(1, 1), &[]), "counters"),
        (tree(counted(1, 2), &[("/a", plain)]), "counters"),
        (tree(counted(1, 1), &[("/a", owned(ID))]), "the state has zxid 1"),
        (tree(counted(1, 1), &[("/a", owned(SessionId(8)))]), "does not exist"),
        (tree(counted(1, 1), &[("/a", parent), ("/a/b", plain)]), "the kind"),
        (tree(counted(1, 1), &[("/a", counted(1, 1)), ("/a/b", plain)]), "the state has zxid 1"),
        (tree(counted(1, 1), &[("/a/b", plain)]), "its parent does not exist"),
        (vec![("/", plain)], "no znode /zookeeper"),
    ] {
        let found = refusal(&znodes);
        assert!(found.contains(reason), "{found}, not {reason}");
    }
}

#[test]
fn no_chunk_is_accepted_after_an_error() {
    let machine = sample();
    let mut reader = ChunkReader::new();
    assert!(reader.push(&[FORMAT, 0xFF]).is_err());
    assert!(reader.push(&chunks(&machine)[0]).is_err());
    assert!(reader.finish(machine.zxid(), machine.hash()).is_err());
}

#[test]
fn nested_errors_do_not_recurse() {
    let nested = OpError::Multi { index: 0, error: Box::new(OpError::SessionExpired) };
    let prefix = encode_result(&Err(nested.clone()));
    let deep = [&prefix[..1], &prefix[1..3].repeat(1 << 20)].concat();
    assert!(decode_result(None, &deep).is_err());
    assert!(decode_result(Some(1), &deep).is_err());
    // The same variant, with its number in a longer encoding than needed.
    let spelled = [&[1, prefix[1] | 0x80, 0, 0][..], &prefix[3..]].concat();
    assert!(decode_result(None, &spelled).is_err());
    assert!(decode_result(None, &[0x81, 0]).is_err());
    assert!(decode_result(None, &[]).is_err());
    assert_eq!(
        decode_result(Some(0), &encode_result(&Err(OpError::SessionExpired))),
        Ok(Err(nested))
    );
}

#[test]
fn a_sound_image_of_an_unsound_state_is_refused() {
    let image = |items: &[SnapshotItem<'_>]| {
        let mut chunk = vec![FORMAT];
        for item in items {
            append_to(&mut chunk, item);
        }
        let mut reader = ChunkReader::new();
        reader.push(&chunk).and_then(|()| reader.finish(0, 0).map(|_| ()))
    };
    let znode = |path| SnapshotItem::Znode {
        path,
        data: RawBytes(b""),
        fields: Fields::default(),
        acl: None,
    };
    let end = |znodes, sessions| SnapshotItem::End {
        zxid: 0,
        time: 0,
        znodes,
        sessions,
        tombstones: 0,
        forgotten: 0,
    };
    let mut one_request = SessionRecord::default();
    one_request.last_seq = 1;
    let session = |results| SnapshotItem::Session {
        id: ID,
        record: Cow::Owned(one_request.clone()),
        ids: vec![],
        results,
    };
    let begin = || SnapshotItem::Begin { full: true, version: 1 };
    let cases = [
        (vec![begin(), end(0, 0)], "no znode /"),
        (vec![begin(), znode("/a"), end(1, 0)], "/a: its parent does not exist"),
        (vec![begin(), znode("x")], "invalid path"),
        (vec![begin(), znode("/"), end(2, 0)], "[1, 0, 0] znodes"),
        (vec![begin(), SnapshotItem::ZnodeGone { path: "/" }], "cannot be deleted"),
        (vec![begin(), session(2)], "more history"),
        (vec![begin(), session(1), end(0, 1)], "out of place"),
        (vec![begin(), session(1)], "in the middle"),
        (vec![begin()], "in the middle"),
        (vec![znode("/")], "out of place"),
        (vec![SnapshotItem::Begin { full: false, version: 1 }], "out of place"),
    ];
    for (items, reason) in cases {
        let error = image(&items).unwrap_err();
        assert!(error.contains(reason), "{error:?} is not {reason:?}");
    }
    let owned = SnapshotItem::Znode {
        path: "/e",
        data: RawBytes(b""),
        fields: Fields {
            kind: crate::machine::tree::ZnodeKind::Ephemeral(ID),
            ..Fields::default()
        },
        acl: None,
    };
    let error = image(&[begin(), znode("/"), owned, end(2, 0)]).unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
    // A removal would not see the znodes of its own image.
    let error = image(&[begin(), znode("/"), SnapshotItem::ZnodeGone { path: "/a" }]).unwrap_err();
    assert!(error.contains("out of place"), "{error}");
}

/// A state with each kind of znode, a session with results, and an ended session.
fn rich() -> Machine {
    let mut machine = Machine::new();
    let mut seqs = [0, 0];
    let mut run = |who: u64, command: Command| {
        let seq = &mut seqs[who as usize - 1];
        let request =
            Request { session: SessionId(who), holder: who * 10, seq: *seq, acked: 1, command };
        *seq += 1;
        let applied = machine.apply(1, &Batch { time: 1000 + *seq, requests: vec![request] });
        assert!(!matches!(applied.outcomes[0].result, Err(OpError::OutOfOrder)));
    };
    let open = || Command::Open { secret: [9; 16], timeout_ms: 4000, owner: 1, base: 0 };
    let create =
        |path: &str, mode| Command::Op(Op::Create { path: path.into(), data: path.into(), mode });
    run(1, open());
    run(2, open());
    run(1, create("/p", CreateMode::Persistent));
    run(1, create("/p/s-", CreateMode::PersistentSequential));
    run(1, create("/p/e", CreateMode::Ephemeral));
    run(1, create("/c", CreateMode::Container));
    run(1, create("/t", CreateMode::PersistentWithTtl(std::time::Duration::from_secs(60))));
    run(1, create("/t", CreateMode::Persistent));
    let missing = Op::Delete { path: "/missing".into(), version: Some(3) };
    run(1, Command::Multi(vec![missing]));
    run(2, Command::Close);
    machine
}

#[test]
fn golden_snapshot() {
    golden("snapshot", rich());
}

#[test]
fn golden_snapshot_with_acls() {
    let mut machine = Machine::new();
    let acl = vec![
        Acl::new(Permissions::ALL, Id::auth()),
        Acl::new(Permissions::READ, Id::new("ip", "10.0.0.0/8")),
    ];
    let (path, data, mode) = ("/a".into(), "data".into(), CreateMode::Persistent);
    let ids = vec![Id::digest("alice", "secret"), Id::superuser()];
    apply(&mut machine, 0, 0, open());
    apply(&mut machine, 1, 1, Command::Authenticate { ids });
    apply(&mut machine, 2, 2, Command::Op(Op::CreateWithAcl { path, data, mode, acl }));
    assert_eq!(machine.zxid(), 2);
    golden("snapshot_with_acls", machine);
}

fn raise(machine: &mut Machine, version: u16) {
    let command = Command::RaiseVersion { version };
    let raise = Request { session: SessionId(0), holder: 0, seq: 0, acked: 0, command };
    machine.apply(1, &Batch { time: 1, requests: vec![raise] });
}

fn golden(name: &str, mut machine: Machine) {
    let chunks: Vec<Vec<u8>> = ChunkWriter::full(machine.state()).collect();
    let mut golden = crate::golden::Golden::new(name);
    let mut reader = ChunkReader::new();
    for chunk in &chunks {
        golden.sample("chunk", chunk);
        reader.push(chunk).unwrap();
    }
    let read = reader.finish(machine.zxid(), machine.hash()).unwrap();
    assert_eq!(read.hash(), machine.hash());
    // Members of different builds compare the hash.
    golden.sample("hash", &machine.hash().to_be_bytes());

    raise(&mut machine, 300);
    let mut reader = ChunkReader::new();
    for chunk in ChunkWriter::full(machine.state()) {
        golden.sample("chunk, version 300", &chunk);
        reader.push(&chunk).unwrap();
    }
    assert_eq!(reader.finish(machine.zxid(), machine.hash()).unwrap().version(), 300);
    golden.sample("hash, version 300", &machine.hash().to_be_bytes());
    golden.check();
}

#[test]
fn golden_results() {
    let path = || "/a".to_owned();
    let errors = [
        OpError::NoNode { path: path() },
        OpError::NodeExists { path: path() },
        OpError::NotEmpty { path: path() },
        OpError::BadVersion { path: path(), expected: 1, actual: 300 },
        OpError::NoChildrenForEphemerals { path: path() },
        OpError::InvalidPath { path: path(), reason: "why".to_owned() },
        OpError::Reserved { path: path() },
        OpError::TooLarge { path: path(), size: 2, limit: 1 },
        OpError::SessionExpired,
        OpError::SessionMoved,
        OpError::WrongSecret,
        OpError::Multi { index: 1, error: Box::new(OpError::NoNode { path: path() }) },
        OpError::OutOfOrder,
        OpError::StaleExpiry,
        OpError::StaleOpen,
        OpError::Unmet { path: path(), condition: crate::types::znode::Condition::Absent },
        OpError::InvalidTtl { path: path(), ttl: std::time::Duration::ZERO },
        OpError::StaleReap,
        OpError::NoAuth { path: path(), permission: Permissions::READ | Permissions::ADMIN },
        OpError::InvalidAcl { path: path(), reason: "why".to_owned() },
        OpError::QuotaExceeded { path: path(), bytes: true, limit: 1, needed: 300 },
        OpError::AuthFailed { scheme: "token".to_owned(), reason: "why".to_owned() },
        OpError::Unsupported { what: "what".to_owned(), needs: 300, cluster: 2 },
    ];
    let mut golden = crate::golden::Golden::new("results");
    for error in errors {
        let version = if let OpError::Unsupported { needs, .. } = error { needs } else { 1 };
        assert_eq!(error.version(), version, "{error:?}");
        golden.sample(&format!("{error:?}"), &encode_result(&Err(error)));
    }
    let stat = crate::types::znode::Stat::default();
    let created = crate::types::znode::Created { path: path(), stat };
    let results = vec![
        crate::types::znode::OpResult::Created(created.clone()),
        crate::types::znode::OpResult::Set(stat),
        crate::types::znode::OpResult::Deleted,
        crate::types::znode::OpResult::Checked,
    ];
    for (name, reply) in [
        ("session", Reply::Session { timeout_ms: 300 }),
        ("done", Reply::Done),
        ("created", Reply::Created(created)),
        ("set", Reply::Set(stat)),
        ("multi", Reply::Multi(results)),
    ] {
        golden.sample(name, &encode_result(&Ok(reply)));
    }
    golden.check();
}

/// The estimate decides when a new image is written, and how much room it needs.
#[test]
fn the_size_of_an_image_is_estimated_within_a_factor_of_two() {
    for (znodes, data) in [(5000, 0), (5000, 20), (2000, 1000), (20, 500_000)] {
        let mut machine = Machine::new();
        apply(&mut machine, 0, 0, open());
        for number in 0..znodes {
            let create = create(&format!("/n{number:06}"), vec![1; data], CreateMode::Persistent);
            apply(&mut machine, number + 1, number, create);
        }
        let real: usize = chunks(&machine).iter().map(Vec::len).sum();
        let (real, about) = (real as u64, machine.bytes());
        assert!(real <= 2 * about && about <= 2 * real, "{znodes} of {data}: {real}, {about}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(String, usize, CreateMode),
    Set(String, usize),
    Delete(String),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let modes = [
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::Container,
        CreateMode::PersistentSequential,
    ];
    let path = || "(/[012]){1,4}";
    prop_oneof![
        9 => (path(), 0..40_usize, prop::sample::select(modes.to_vec()))
            .prop_map(|(path, bytes, mode)| Step::Create(path, bytes, mode)),
        3 => (path(), 0..9000_usize).prop_map(|(path, bytes)| Step::Set(path, bytes)),
        6 => path().prop_map(Step::Delete),
        1 => Just(Step::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A delta has its znodes in no order: children before their parents, too.
    #[test]
    fn deltas_of_any_changes_lead_to_the_same_state(
        deltas in prop::collection::vec(prop::collection::vec(step(), 0..60), 1..6),
    ) {
        let mut machine = Machine::new();
        apply(&mut machine, 0, 0, open());
        machine.take_dirty();
        let mut all = chunks(&machine);
        let mut seq = 0;
        for steps in deltas {
            for step in steps {
                seq += 1;
                let command = match step {
                    Step::Create(path, bytes, mode) => create(&path, vec![1; bytes], mode),
                    Step::Set(path, bytes) => {
                        Command::Op(Op::Set { path: path.into(), data: vec![2; bytes].into(), version: None })
                    }
                    Step::Delete(path) => delete(&path),
                    Step::Close => {
                        apply(&mut machine, seq, seq, Command::Close);
                        apply(&mut machine, 0, 0, open());
                        seq = 0;
                        continue;
                    }
                };
                apply(&mut machine, seq, seq, command);
            }
            let dirty = machine.take_dirty();
            let delta: Vec<_> = ChunkWriter::delta(machine.state(), dirty.clone()).collect();
            let again: Vec<_> = ChunkWriter::delta(machine.state(), dirty).collect();
            prop_assert_eq!(&delta, &again);
            all.extend(delta);
            let restored = read(&all, machine.zxid(), machine.hash()).unwrap();
            prop_assert_eq!(chunks(&restored), chunks(&machine));
        }
    }
}
