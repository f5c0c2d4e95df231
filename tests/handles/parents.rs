//! Creating a znode together with its missing parents.

use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

const MODE: CreateMode = CreateMode::Persistent;

fn zxid(session: &Session) -> u64 {
    session.sync().wait().unwrap()
}

#[test]
fn missing_parents_come_with_the_znode_in_one_write() {
    let cluster = Cluster::new(3);
    for at in [0, cluster.add_client()] {
        let session = cluster.node(at).session();
        let path = format!("/of-{at}/b/c/d");
        session.sync().wait().unwrap();
        let created = session.create_with_parents(&path, b"data", MODE).wait().unwrap();
        assert_eq!(
            (created.path.as_str(), &session.get(&path).wait().unwrap().0[..]),
            (path.as_str(), &b"data"[..])
        );
        let parent = session.exists(&format!("/of-{at}/b")).wait().unwrap().unwrap();
        assert_eq!(parent.czxid, created.stat.czxid, "one write");
        // With existing parents it is an ordinary create.
        let before = zxid(&session);
        let next = session.create_with_parents(&format!("{path}2"), b"", MODE).wait().unwrap();
        assert_eq!(next.stat.czxid, before + 1);
        let again = session.create_with_parents(&path, b"", MODE);
        assert_eq!(again.wait(), Err(Error::NodeExists { path: path.clone() }));
    }
}

#[test]
fn all_modes_and_bad_paths_are_as_those_of_create() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let first = session.create_with_parents("/q/of/item-", b"", CreateMode::EphemeralSequential);
    assert_eq!(first.wait().unwrap().path, "/q/of/item-0000000000");
    let invalid = session.create_with_parents("no/slash", b"", MODE).wait();
    assert!(matches!(invalid, Err(Error::InvalidPath { .. })), "{invalid:?}");
    session.create("/e", b"", CreateMode::Ephemeral).wait().unwrap();
    let below = session.create_with_parents("/e/a/b", b"", MODE).wait();
    assert!(matches!(below, Err(Error::NoChildrenForEphemerals { .. })), "{below:?}");
    assert!(session.exists("/e/a").wait().unwrap().is_none());
    let inside = session.chroot("/nowhere").unwrap();
    let refused = inside.create_with_parents("/a/b", b"", MODE);
    assert_eq!(refused.wait(), Err(Error::NoNode { path: "/".to_owned() }));
}

#[test]
fn many_at_the_same_time_all_succeed() {
    let cluster = Cluster::new(3);
    std::thread::scope(|scope| {
        for at in 0..12 {
            let session = cluster.node(at % 3).open_session().unwrap();
            scope.spawn(move || {
                for round in 0..10 {
                    let path = format!("/shared/{round}/deep/{at}");
                    session.create_with_parents(&path, b"", MODE).wait().unwrap();
                }
            });
        }
    });
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    for round in 0..10 {
        assert_eq!(session.children(&format!("/shared/{round}/deep")).wait().unwrap().len(), 12);
    }
}
