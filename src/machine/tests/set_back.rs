//! The log's time, set back in a state that is to be founded again.

use super::*;
use crate::types::queue::QueueOrder;

const NOW: u64 = 1_800_000_000_000;
/// The year 2100.
const LATE: u64 = 4_102_444_800_000;

/// A clock that was once in 2100 left everything without an end.
#[test]
fn what_is_left_of_each_time_is_kept() {
    let mut script = Script::new();
    script.time = NOW - 5000;
    script.op(create("/early", CreateMode::Persistent)).unwrap();
    script.op(create("/queue", CreateMode::Persistent)).unwrap();
    script.time = LATE;
    let ttl = CreateMode::PersistentWithTtl(Duration::from_secs(60));
    script.op(create("/ttl", ttl)).unwrap();
    let order = QueueOrder { priority: 0, delay_ms: 30_000, id: String::new(), max: None };
    let data = b"later".as_slice().into();
    let put = Op::Put { path: "/queue".into(), data, order: Box::new(order) };
    script.multi(vec![put]).unwrap();
    script.time = LATE + 10_000;
    script.op(create("/last", CreateMode::Persistent)).unwrap();

    let zxid = script.machine.zxid();
    script.machine.set_time_back(NOW);
    script.machine.check_invariants().unwrap();
    assert_eq!((script.machine.time(), script.machine.zxid() > zxid), (NOW, true));
    let tree = script.machine.tree();
    let mtime = |path: &str| tree.get(path).unwrap().stat().mtime;
    assert_eq!([mtime("/early"), mtime("/ttl"), mtime("/last")], [NOW - 5000, NOW, NOW]);
    assert_eq!(tree.overdue(NOW + 59_999).count(), 0);
    assert_eq!(tree.overdue(NOW + 60_000).collect::<Vec<_>>(), ["/ttl"]);
    let take = || vec![Op::Take { path: "/queue".into(), claims: false }];
    script.time = NOW + 19_999;
    assert!(matches!(script.multi(take()), Err(OpError::NoNode { .. })));
    script.time = NOW + 20_000;
    assert_eq!(script.multi(take()), Ok(()));

    let hash = script.machine.hash();
    script.machine.set_time_back(LATE);
    assert_eq!(script.machine.hash(), hash, "it is not later");
}
