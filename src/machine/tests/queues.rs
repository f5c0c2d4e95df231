//! What a take from a queue needs: no room in a quota, and no time for what it does not take.

use super::*;
use crate::machine::tree::LOOKUPS;
use crate::types::queue::QueueOrder;

fn put(priority: i32) -> Op {
    let order = QueueOrder { priority, delay_ms: 0, id: String::new(), max: None };
    Op::Put { path: "/jobs".into(), data: "job".into(), order: Box::new(order) }
}

fn take(claims: bool) -> Op {
    Op::Take { path: "/jobs".into(), claims }
}

/// The path of an item, and that of its claim.
fn taken(reply: Result<Reply, OpError>) -> (String, Option<String>) {
    match reply {
        Ok(Reply::Multi(results)) => match results.into_iter().next() {
            Some(OpResult::Taken { path, claim, .. }) => (path, claim.map(|claim| claim.path)),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// How many znodes are looked up while this is applied.
fn lookups(s: &mut Script, op: Op) -> (usize, Result<Reply, OpError>) {
    let (session, seq) = (A, s.next[0]);
    s.next[0] += 1;
    let request = Request { session, holder: A.0, seq, acked: seq, command: Command::Op(op) };
    LOOKUPS.set(0);
    let applied = s.machine.apply(TERM, &Batch { time: s.time, requests: vec![request] });
    (LOOKUPS.get(), applied.outcomes[0].result.clone())
}

fn limit(s: &mut Script, text: &'static [u8]) {
    s.make("/zookeeper/quota/jobs", Persistent);
    s.make("/zookeeper/quota/jobs/zookeeper_limits", Persistent);
    s.op(set("/zookeeper/quota/jobs/zookeeper_limits", text, None)).unwrap();
    s.make("/zookeeper/quota/jobs/zookeeper_stats", Persistent);
}

/// An item became the child of an ephemeral that somebody had made in a part's place, and no snapshot of that state could
/// be restored.
#[test]
fn no_item_is_moved_below_an_ephemeral() {
    for part in ["items", "taken", "claims"] {
        let mut s = Script::new();
        s.make("/jobs", Persistent);
        s.op(put(0)).unwrap();
        let (item, claim) = taken(s.op(take(true)));
        if part == "items" {
            // Free again, and to be moved back.
            s.op(delete(&claim.unwrap(), None)).unwrap();
        } else {
            s.op(delete(&item, None)).unwrap();
            s.op(delete(&claim.unwrap(), None)).unwrap();
            s.op(put(0)).unwrap();
        }
        let path = format!("/jobs/{part}");
        s.op(delete(&path, None)).unwrap();
        s.make(&path, Ephemeral);
        let refused = OpError::NoChildrenForEphemerals { path };
        assert_eq!(s.op(take(true)), Err(refused), "{part}");
        s.machine.check_invariants().unwrap();
    }
}

#[test]
fn a_queue_at_its_hard_quota_is_worked_off() {
    let mut s = Script::new();
    s.make("/jobs", Persistent);
    limit(&mut s, b"countHardLimit=6;byteHardLimit=12");
    let put_all = |s: &mut Script| -> usize {
        let mut count = 0;
        loop {
            match s.op(put(0)) {
                Ok(_) => count += 1,
                Err(OpError::QuotaExceeded { .. }) => return count,
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(put_all(&mut s), 4);
    let all: Vec<_> = (0..4).map(|_| taken(s.op(take(true)))).collect();
    // The queue, its parts, the items and their claims.
    assert_eq!(s.machine.tree().len(), 4 + 3 + 4 + 8);
    assert!(matches!(s.op(put(0)), Err(OpError::QuotaExceeded { bytes: false, .. })));
    for (item, claim) in &all[..3] {
        s.multi(vec![delete(claim.as_ref().unwrap(), None), delete(item, None)]).unwrap();
    }
    // The fourth one returns into a part that is not there any more.
    s.op(delete("/jobs/items", None)).unwrap();
    s.op(set("/zookeeper/quota/jobs/zookeeper_limits", b"countHardLimit=1", None)).unwrap();
    s.op(delete(all[3].1.as_ref().unwrap(), None)).unwrap();
    assert_eq!(taken(s.op(take(false))), (all[3].0.replace("taken", "items"), None));
    assert_eq!(s.op(take(false)), Err(no_node("/jobs/items")));
}

#[test]
fn a_take_does_not_look_at_the_items_in_work() {
    let mut s = Script::new();
    s.make("/jobs", Persistent);
    let mut items = Vec::new();
    for _ in 0..300 {
        lookups(&mut s, put(0)).1.unwrap();
        items.push(taken(lookups(&mut s, take(true)).1));
    }
    let mut worst = 0;
    let mut next = |s: &mut Script| {
        lookups(s, put(0)).1.unwrap();
        let (looked_up, reply) = lookups(s, take(true));
        worst = worst.max(looked_up);
        taken(reply).0
    };
    next(&mut s);
    // An item is deleted beside its consumer, whose claim stays, and then a claim.
    s.op(delete(&items[7].0, None)).unwrap();
    next(&mut s);
    s.op(delete(items[9].1.as_ref().unwrap(), None)).unwrap();
    assert_eq!(next(&mut s), items[9].0);
    // Somebody puts many znodes there that no take can move, or take.
    s.make("/jobs/taken/zoo", Persistent);
    for (item, claim) in &items[20..220] {
        lookups(&mut s, create(&format!("{item}/child"), Persistent)).1.unwrap();
        lookups(&mut s, delete(claim.as_ref().unwrap(), None)).1.unwrap();
    }
    next(&mut s);
    assert!(worst < 60, "{worst} look-ups");
    s.machine.check_invariants().unwrap();
}

/// Many consumers may die at one moment.
#[test]
fn items_that_come_back_in_parts_are_taken_in_their_order() {
    let mut s = Script::new();
    s.make("/jobs", Persistent);
    for n in 0..150 {
        lookups(&mut s, put(-n)).1.unwrap();
    }
    let items: Vec<String> = (0..150).map(|_| taken(lookups(&mut s, take(true)).1).0).collect();
    s.op(Op::DeleteTree { path: "/jobs/claims".into() }).unwrap();
    let again = (0..150).map(|_| taken(lookups(&mut s, take(true)).1).0);
    assert!(again.eq(items.iter().cloned()));
    assert_eq!(s.op(take(true)), Err(no_node("/jobs/items")));
}

/// A znode that somebody had made at an item's former path was moved over that item, which stayed in its parent's counters.
#[test]
fn a_take_replaces_no_item_that_is_in_work() {
    let mut s = Script::new();
    s.make("/jobs", Persistent);
    lookups(&mut s, put(0)).1.unwrap();
    let (item, claim) = taken(lookups(&mut s, take(true)).1);
    let former = item.replace("/taken/", "/items/");
    s.make(&former, Persistent);
    s.op(delete(&claim.unwrap(), None)).unwrap();
    let exists = Err(OpError::NodeExists { path: item.clone() });
    assert_eq!(s.op(take(true)), exists);
    s.machine.check_invariants().unwrap();
    s.op(delete(&former, None)).unwrap();
    assert_eq!(taken(lookups(&mut s, take(true)).1).0, item);
}
