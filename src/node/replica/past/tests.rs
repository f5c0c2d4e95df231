//! The states of the past, and the bounds of their memory.

use super::*;
use crate::machine::command::{Batch, Command, Op, Request};
use crate::machine::{Machine, TreePart};
use crate::node::query::Read;
use crate::node::sessions::queue::{Viewer, answer_read};
use crate::planted::{Bug, claims};
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::quota::Quota;
use crate::types::znode::{CreateMode, SessionId};

const S: SessionId = SessionId(7);

/// A machine that records what undoes its writes, and the past of it.
struct World {
    machine: Machine,
    past: PastStates,
    seed: u64,
}

impl World {
    fn new(bytes_max: usize) -> World {
        let mut machine = Machine::new();
        machine.record_undos(bytes_max);
        let past = PastStates::new(machine.zxid(), bytes_max);
        let mut world = World { machine, past, seed: 1 };
        world.apply(Command::Open { secret: [9; 16], timeout_ms: 1000, owner: 1, base: 0 });
        world
    }

    fn apply(&mut self, command: Command) {
        self.apply_all(vec![command]);
    }

    fn apply_all(&mut self, commands: Vec<Command>) {
        let first = self.machine.session(S).map_or(0, |record| record.last_seq + 1);
        let requests = commands.into_iter().zip(first..).map(|(command, seq)| Request {
            session: S,
            holder: 1,
            seq,
            acked: first,
            command,
        });
        let batch = Batch { time: 1000 + self.seed % 100, requests: requests.collect() };
        while !self.machine.prepare(&batch) {}
        self.machine.apply(1, &batch);
        self.past.note(self.machine.take_undos());
    }

    fn set(&mut self, path: &str, data: &[u8]) {
        self.apply(Command::Op(Op::Set { path: path.into(), data: data.into(), version: None }));
    }

    fn create(&mut self, path: &str, data: &[u8]) {
        let mode = CreateMode::Persistent;
        self.apply(Command::Op(Op::Create { path: path.into(), data: data.into(), mode }));
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % limit
    }

    fn path(&mut self) -> String {
        let names = ["a", "b", "c"];
        let depth = self.below(3) + 1;
        (0..depth).map(|_| format!("/{}", names[self.below(3) as usize])).collect()
    }

    fn op(&mut self) -> Op {
        let path = self.path();
        let length = [0, 3, 600][self.below(3) as usize];
        let data = vec![self.below(256) as u8; length];
        let data = (&data[..]).into();
        let modes = [
            CreateMode::Persistent,
            CreateMode::Container,
            CreateMode::Ephemeral,
            CreateMode::PersistentSequential,
        ];
        let mode = modes[self.below(4) as usize];
        match self.below(12) {
            0..5 => Op::Create { path: path.into(), data, mode },
            5..8 => Op::Set { path: path.into(), data, version: None },
            8 | 9 => Op::Delete { path: path.into(), version: None },
            10 => {
                let acl = match self.below(2) {
                    0 => Acl::open(),
                    _ => vec![Acl::new(Permissions::READ | Permissions::ADMIN, Id::anyone())],
                };
                Op::SetAcl { path: path.into(), acl, version: None }
            }
            _ => Op::DeleteTree { path: path.into() },
        }
    }

    fn command(&mut self) -> Command {
        match self.below(4) {
            0 => {
                let count = self.below(4) + 1;
                Command::Multi((0..count).map(|_| self.op()).collect())
            }
            _ => Command::Op(self.op()),
        }
    }

    fn at(&self, zxid: Zxid) -> Result<Tree, Zxid> {
        Ok(self.past.at(zxid, &self.machine.tree())?.tree(TreePart::All))
    }
}

/// The tree of every write comes back: with the same hash, sound, and the same for each way of reading it.
#[test]
fn each_state_of_the_past_is_the_one_that_was() {
    let claim = || {
        let mut world = World::new(64 << 20);
        // Usage is counted, without events and with them.
        world.create("/zookeeper/quota/a", b"");
        world.create(&Quota::limits_path("/a"), b"count=5,bytes=1000");
        world.create(&Quota::stats_path("/a"), b"");
        let mut states = vec![world.machine.tree()];
        for _ in 0..700 {
            let commands = (0..world.below(4) + 1).map(|_| world.command()).collect();
            world.apply_all(commands);
            // Within one batch, only the last state is seen here.
            states.push(world.machine.tree());
        }
        let mut seen = 0;
        for state in &states {
            let past = world.at(state.zxid()).unwrap();
            assert_eq!((past.zxid(), past.hash()), (state.zxid(), state.hash()));
            past.check().unwrap();
            assert_eq!(past.bytes(), state.bytes());
            let names = |tree: &Tree| {
                tree.iter_from("/").map(|(path, _)| path.to_owned()).collect::<Vec<_>>()
            };
            assert_eq!(names(&past), names(state));
            assert!(past.overdue(u64::MAX).eq(state.overdue(u64::MAX)));
            assert!(past.unused_containers().eq(state.unused_containers()));
            seen += 1;
        }
        assert!(seen > 500);
        let ids = Arc::new(Vec::new());
        let viewer = Viewer { session: S, ids: &ids };
        for _ in 0..300 {
            let state = &states[world.below(states.len() as u64) as usize];
            let path: Arc<str> = world.path().into();
            let past = world.past.at(state.zxid(), &world.machine.tree()).unwrap();
            let read = |tree: &Tree, read: &Read| answer_read(tree, read, viewer, Vec::new);
            let znode = past.tree(TreePart::Znode(&path));
            for of in
                [Read::Get { path: Arc::clone(&path) }, Read::Children { path: Arc::clone(&path) }]
            {
                assert_eq!(read(&znode, &of), read(state, &of), "{path} at {}", state.zxid());
            }
            let below = Read::Below { path: Arc::clone(&path) };
            assert_eq!(read(&past.tree(TreePart::Below(&path)), &below), read(state, &below));
        }
    };
    claims(claim, Bug::PastOneLate);
}

/// Each write of a batch has a state of its own, also one that no reader could see.
#[test]
fn the_states_within_a_batch_are_known() {
    let mut world = World::new(1 << 20);
    world.create("/n", b"0");
    let first = world.machine.zxid();
    let set =
        |n: u8| Command::Op(Op::Set { path: "/n".into(), data: [n][..].into(), version: None });
    world.apply_all((1..50).map(set).collect());
    for n in 1..50 {
        let past = world.at(first + Zxid::from(n)).unwrap();
        assert_eq!(past.get("/n").unwrap().data(), [n]);
    }
    assert_eq!(world.at(first).unwrap().get("/n").unwrap().data(), b"0");
}

/// Data of 1 MiB counts, so that few writes are kept.
#[test]
fn large_values_do_not_exceed_the_bound() {
    let bytes_max = 16 << 20;
    let mut world = World::new(bytes_max);
    world.create("/n", b"");
    for n in 0..100 {
        world.set("/n", &vec![n; 1 << 20]);
        assert!(world.past.bytes <= bytes_max);
    }
    assert!((13..=16).contains(&world.past.changes), "{}", world.past.changes);
    let last = world.machine.zxid();
    assert!(world.past.oldest < last - 10 && world.past.oldest > last - 17);
    let oldest = world.past.oldest;
    assert_eq!(world.at(oldest - 1).unwrap_err(), oldest);
    let kept = 99 - (last - oldest) as u8;
    assert_eq!(world.at(oldest).unwrap().get("/n").unwrap().data()[..3], [kept; 3]);
}

#[test]
fn the_number_of_changes_is_bounded_too() {
    let mut world = World::new(1 << 30);
    world.create("/n", b"");
    for n in 0..CHANGES_MAX as u32 + 500 {
        world.set("/n", &n.to_le_bytes());
    }
    assert!(
        world.past.changes <= CHANGES_MAX && world.past.changes > CHANGES_MAX - 2 * CHUNK_CHANGES
    );
    let oldest = world.past.oldest;
    assert!(world.at(oldest).is_ok() && world.at(oldest - 1).is_err());
    // The estimate is not far from what a small write takes.
    let each = world.past.bytes / world.past.changes;
    assert!((100..300).contains(&each), "{each}");
}

/// A write that replaces too much is the beginning of what is known.
#[test]
fn a_write_that_is_too_large_is_not_undone() {
    let mut world = World::new(50_000);
    world.create("/t", b"");
    for n in 0..1000 {
        world.create(&format!("/t/{n}"), b"data");
    }
    let before = world.machine.zxid();
    assert!(world.at(before - 1).is_ok());
    world.apply(Command::Op(Op::DeleteTree { path: "/t".into() }));
    let after = world.machine.zxid();
    assert_eq!(world.at(before).unwrap_err(), after);
    assert_eq!((world.past.bytes, world.past.changes), (0, 0));
    world.create("/t", b"");
    assert!(world.at(after).unwrap().get("/t").is_none());
}

#[test]
fn nothing_is_kept_if_it_is_off() {
    let mut world = World::new(0);
    world.create("/n", b"");
    world.set("/n", b"1");
    let last = world.machine.zxid();
    assert!(world.at(last).is_ok());
    assert_eq!(world.at(last - 1).unwrap_err(), last);
    assert_eq!((world.past.bytes, world.past.changes), (0, 0));
}

/// What the node's thread does for a client is bounded.
#[test]
fn a_part_is_not_taken_back_any_number_of_changes() {
    let mut world = World::new(1 << 20);
    world.create("/n", b"");
    world.create("/other", b"");
    let first = world.machine.zxid();
    for n in 0..50 {
        world.set("/n", &[n]);
        world.set("/other", &[n]);
    }
    let past = world.past.at(first, &world.machine.tree()).unwrap();
    let part = TreePart::Znode("/n");
    assert_eq!(past.tree_within(part, 50).unwrap().get("/n").unwrap().data(), b"");
    // The state right after the first of the 50 writes needs one less.
    let oldest = past.tree_within(part, 49).unwrap_err();
    assert_eq!(oldest, first + 1);
    let past = world.past.at(oldest, &world.machine.tree()).unwrap();
    assert_eq!(past.tree_within(part, 49).unwrap().get("/n").unwrap().data(), [0]);
    assert!(past.tree_within(TreePart::All, 49).is_err());
}
