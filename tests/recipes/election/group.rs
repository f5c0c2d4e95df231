//! Groups, on an in-memory cluster.

use std::task::{Context, Waker};
use std::time::Duration;

use quorate::Coordinator;
use quorate::Error;
use quorate::recipes::{Group, Lost};
use quorate::testing::Cluster;

use super::{LONG, MOMENT};

fn group(cluster: &Cluster, node: usize) -> Group {
    Group::new(&cluster.node(node).session(), "/app/workers").unwrap()
}

#[test]
fn a_new_member_is_in_its_own_view_and_then_in_all() {
    let cluster = Cluster::new(3);
    let mut watches: Vec<_> = (0..3).map(|node| group(&cluster, node).watch()).collect();
    for watch in &mut watches {
        assert!(watch.recv().wait().unwrap().is_empty());
    }
    let mut memberships = Vec::new();
    for node in [2, 0, 1] {
        let here = group(&cluster, node);
        memberships.push(here.join(&format!("node {node}"), [node as u8]).wait().unwrap());
        let members = here.members().wait().unwrap();
        assert_eq!(&members.get(&format!("node {node}")).unwrap().data[..], [node as u8]);
        for watch in &mut watches {
            let view = watch.recv().wait().unwrap();
            assert_eq!(view.iter().collect::<Vec<_>>(), members.iter().collect::<Vec<_>>());
        }
    }
    memberships[1].update(b"new").wait().unwrap();
    for watch in &mut watches {
        let view = watch.recv().wait().unwrap();
        assert!(view.keys().eq(["node 0", "node 1", "node 2"]));
        assert_eq!(&view.get("node 0").unwrap().data[..], b"new");
    }
    memberships.swap_remove(0).release().wait().unwrap();
    for watch in &mut watches {
        assert!(watch.recv().wait().unwrap().keys().eq(["node 0", "node 1"]));
    }
    drop(memberships);
    for watch in &mut watches {
        while !watch.recv().wait().unwrap().is_empty() {}
    }
}

#[test]
fn the_last_state_is_reported_however_fast_members_come_and_go() {
    let cluster = Cluster::new(3);
    let (here, mut changes) = (group(&cluster, 0), group(&cluster, 1).watch());
    assert!(changes.recv().wait().unwrap().is_empty());
    // More events than fit into a watch's channel.
    for _ in 0..700 {
        drop(here.join("fast", b"").wait().unwrap());
    }
    let _stays = here.join("stays", b"").wait().unwrap();
    cluster.node(1).session().sync().wait().unwrap();
    assert!(changes.recv().wait().unwrap().keys().eq(["stays"]));
    assert!(matches!(changes.recv().timeout(Duration::ZERO).wait(), Err(Error::NotInTime { .. })));
    // After leaving and joining again it is another member, with the same name and data.
    let again = here.join("again", b"").wait().unwrap();
    let first = changes.recv().wait().unwrap().get("again").unwrap().joined;
    again.release().wait().unwrap();
    let again = here.join("again", b"").wait().unwrap();
    cluster.node(1).session().sync().wait().unwrap();
    let second = changes.recv().wait().unwrap().get("again").unwrap().joined;
    assert_eq!((first < second, second), (true, again.fencing_token()));
}

#[test]
fn a_member_that_is_cut_off_leaves_and_knows_it() {
    let cluster = Cluster::new(3);
    let membership = group(&cluster, 0).join("zero", b"").wait().unwrap();
    let mut changes = group(&cluster, 1).watch();
    cluster.node(1).session().sync().wait().unwrap();
    assert!(changes.recv().wait().unwrap().keys().eq(["zero"]));
    cluster.isolate(0);
    cluster.advance(LONG);
    assert!(!membership.is_held());
    assert!(changes.recv().wait().unwrap().is_empty());
    assert_eq!(membership.wait_lost().wait().unwrap(), Lost::SessionOver);
    assert!(membership.update(b"").wait().unwrap_err().is_session_lost());
    assert_eq!(membership.release().wait(), Ok(()));
    cluster.heal();
    // Its next session gets a new membership.
    let again = group(&cluster, 0).join("zero", b"").wait().unwrap();
    assert!(again.is_held());
    assert!(changes.recv().wait().unwrap().keys().eq(["zero"]));
}

#[test]
fn a_watch_of_an_instance_that_was_cut_off_goes_on() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().session_timeout(LONG * 10));
    let mut changes = group(&cluster, 2).watch();
    assert!(changes.recv().wait().unwrap().is_empty());
    cluster.isolate(2);
    let _one = group(&cluster, 0).join("one", b"").wait().unwrap();
    drop(group(&cluster, 0).join("two", b"").wait().unwrap());
    assert!(matches!(changes.recv().timeout(Duration::ZERO).wait(), Err(Error::NotInTime { .. })));
    cluster.heal();
    cluster.node(2).session().sync().wait().unwrap();
    let mut view = changes.recv().wait().unwrap();
    while !view.keys().eq(["one"]) {
        view = changes.recv().wait().unwrap();
    }
}

/// A name has one member at a time. A waiter gets the name when it is free, and one that gives up leaves
/// nothing behind.
#[test]
fn a_name_is_one_members_at_a_time() {
    let cluster = Cluster::new(3);
    let (one, two) = (group(&cluster, 0), group(&cluster, 1));
    let first = one.join("name", b"1").wait().unwrap();
    assert!(two.try_join("name", b"2").wait().unwrap().is_none());
    std::thread::scope(|scope| {
        let timed = scope.spawn(|| two.join("name", b"2").timeout(LONG / 20).wait().is_err());
        while !timed.is_finished() {
            cluster.advance(LONG / 20);
        }
        assert!(timed.join().unwrap());
    });
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| two.join("name", b"2").wait().unwrap());
        cluster.expire(&cluster.node(0).session());
        let second = waits.join().unwrap();
        assert!(second.is_held() && !first.is_held());
        // The former member deletes only its own znode.
        drop(first);
        cluster.node(0).session().sync().wait().unwrap();
        assert!(second.is_held());
    });
    let one = group(&cluster, 0);
    let mut context = Context::from_waker(Waker::noop());
    for polls in 1..12 {
        let mut joining = Box::pin(one.join("other", b""));
        for _ in 0..polls {
            if joining.as_mut().poll(&mut context).is_ready() {
                break;
            }
            cluster.advance(MOMENT);
        }
        drop(joining);
        let session = cluster.node(0).session();
        session.sync().wait().unwrap();
        session.sync().wait().unwrap();
        assert!(!one.members().wait().unwrap().contains_key("other"), "after {polls} polls");
    }
    for name in ["", "a/b", ".."] {
        assert!(matches!(one.join(name, b"").wait(), Err(Error::InvalidPath { .. })), "{name:?}");
    }
}

/// A member's znode was deleted and its name taken again, within one session: neither its update nor its
/// leaving affects the later member.
#[test]
fn a_former_member_harms_no_later_one_of_its_name() {
    let cluster = Cluster::new(3);
    let group = group(&cluster, 0);
    let session = cluster.node(0).session();
    for leaves in [true, false] {
        let former = group.join("name", b"former").wait().unwrap();
        session.delete(former.path()).wait().unwrap();
        assert_eq!(former.wait_lost().wait().unwrap(), Lost::Deleted);
        let later = group.join("name", b"later").wait().unwrap();
        assert!(!former.is_held() && later.is_held());
        assert!(matches!(former.update(b"x").wait(), Err(Error::NoNode { .. })));
        if leaves {
            former.release().wait().unwrap();
        } else {
            drop(former);
        }
        session.sync().wait().unwrap();
        assert!(later.is_held());
        assert_eq!(&group.members().wait().unwrap().get("name").unwrap().data[..], b"later");
        later.release().wait().unwrap();
        assert!(group.members().wait().unwrap().is_empty());
    }
}
