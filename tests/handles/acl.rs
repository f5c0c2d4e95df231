//! Access lists: permissions, and which sessions receive which events.
//!
//! The row numbers refer to `tests/semantics/table.md`.

#[cfg(feature = "tls")]
#[path = "../port/authority.rs"]
mod authority;

#[cfg(feature = "tls")]
use crate::common::addresses;
use quorate::Coordinator;
use quorate::acl::{Acl, Id, Permissions};
use quorate::multi::{Condition, OpResult, ReadOp};
use quorate::security::AuthProvider;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, EventKind, Session, SessionState, WatchMode};

const EACH: [Permissions; 5] = [
    Permissions::READ,
    Permissions::WRITE,
    Permissions::CREATE,
    Permissions::DELETE,
    Permissions::ADMIN,
];

fn only(permissions: Permissions) -> Vec<Acl> {
    vec![Acl::new(permissions, Id::anyone()), alice(Permissions::ALL)]
}

fn alice(permissions: Permissions) -> Acl {
    Acl::new(permissions, Id::digest("alice", "secret"))
}

fn no_auth<T: std::fmt::Debug>(result: Result<T, Error>, at: &str, wanted: Permissions) {
    match result {
        Err(Error::NoAuth { path, permission }) if path == at && permission == wanted => {}
        other => panic!("{wanted:?} of {at}: {other:?}"),
    }
}

/// A session of Alice, who has all permissions, and a session without credentials.
fn two(cluster: &Cluster) -> (Session, Session) {
    let alice = cluster.node(0).open_session().unwrap();
    alice.add_auth("digest", "alice:secret").wait().unwrap();
    (alice, cluster.node(0).open_session().unwrap())
}

/// S22: the permission that each call needs, and on which znode.
#[test]
fn each_call_needs_its_permission() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    type Call = fn(&Session) -> Result<(), Error>;
    let either = Permissions::READ | Permissions::ADMIN;
    let calls: [(&str, Permissions, Call); 16] = [
        ("/p", Permissions::CREATE, |session| {
            session.create("/p/new", b"", CreateMode::Persistent).wait().map(drop)
        }),
        ("/p", Permissions::CREATE, |session| {
            session.create("/p/s-", b"", CreateMode::PersistentSequential).wait().map(drop)
        }),
        ("/p", Permissions::CREATE, |session| {
            session
                .create_with_acl("/p/acl", b"", CreateMode::Ephemeral, &Acl::open())
                .wait()
                .map(drop)
        }),
        ("/p", Permissions::DELETE, |session| session.delete("/p/c").wait()),
        ("/p", Permissions::DELETE, |session| session.delete_recursive("/p/c").wait()),
        ("/p", Permissions::WRITE, |session| session.set("/p", b"1").wait().map(drop)),
        ("/p", Permissions::ADMIN, |session| session.set_acl("/p", &Acl::open()).wait().map(drop)),
        ("/p", Permissions::READ, |session| session.get("/p").wait().map(drop)),
        ("/p", Permissions::READ, |session| session.exists("/p").wait().map(drop)),
        ("/p", Permissions::READ, |session| session.children("/p").wait().map(drop)),
        ("/p", Permissions::READ, |session| session.children_with_stat("/p").wait().map(drop)),
        ("/p", Permissions::READ, |session| session.all_children_number("/p").wait().map(drop)),
        ("/p", Permissions::READ, |session| session.get_and_watch("/p").wait().map(drop)),
        ("/p", Permissions::READ, |session| session.exists_and_watch("/p").wait().map(drop)),
        ("/p", Permissions::READ, |session| session.children_and_watch("/p").wait().map(drop)),
        ("/p", either, |session| session.acl("/p").wait().map(drop)),
    ];
    for (at, wanted, call) in calls {
        for given in EACH {
            alice.create_with_acl("/p", b"", CreateMode::Persistent, &only(given)).wait().unwrap();
            alice.create("/p/c", b"", CreateMode::Persistent).wait().unwrap();
            // The child's own access list does not matter.
            let nothing = [alice_only()];
            alice.set_acl("/p/c", &nothing).wait().unwrap();
            if wanted.contains(given) {
                call(&nobody).unwrap();
            } else {
                no_auth(call(&nobody), at, wanted);
            }
            alice.delete_recursive("/p").wait().unwrap();
        }
    }
}

fn alice_only() -> Acl {
    alice(Permissions::ALL)
}

/// S22: a check in a multi needs READ on its znode. The other calls below need no permission.
#[test]
fn checks_need_read_and_other_operations_need_nothing() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    alice.create_with_acl("/p", b"", CreateMode::Persistent, &[alice_only()]).wait().unwrap();
    for condition in [Condition::Exists, Condition::Absent, Condition::Version(0)] {
        match nobody.multi().require("/p", condition).commit().wait() {
            Err(Error::Multi { index: 0, error }) => {
                no_auth::<()>(Err(*error), "/p", Permissions::READ);
            }
            other => panic!("{other:?}"),
        }
    }
    nobody.multi().require("/none", Condition::Absent).commit().wait().unwrap();
    assert_eq!(nobody.exists("/none").wait().unwrap(), None);
    nobody.sync().wait().unwrap();
    nobody.ephemerals().wait().unwrap();
    nobody.who_am_i().wait().unwrap();
    nobody.watch("/p", WatchMode::Persistent).wait().unwrap();
    nobody.watch("/p", WatchMode::PersistentRecursive).wait().unwrap();
}

/// S11, S12: the position of `NoAuth` in the order of errors.
#[test]
fn no_auth_comes_in_zookeepers_order_of_errors() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    alice
        .create_with_acl("/p", b"", CreateMode::Persistent, &only(Permissions::READ))
        .wait()
        .unwrap();
    alice.create("/p/c", b"", CreateMode::Persistent).wait().unwrap();
    alice.set_acl("/p/c", &only(Permissions::READ)).wait().unwrap();
    let (create, delete) = (Permissions::CREATE, Permissions::DELETE);
    let mode = CreateMode::Persistent;
    // Create: before NodeExists, after NoNode and InvalidAcl.
    no_auth(nobody.create("/p/c", b"", mode).wait(), "/p", create);
    let invalid = nobody.create_with_acl("/p/c", b"", mode, &[]).wait().unwrap_err();
    assert!(matches!(invalid, Error::InvalidAcl { path, .. } if path == "/p/c"));
    let missing = nobody.create("/none/c", b"", mode);
    assert_eq!(missing.wait(), Err(Error::NoNode { path: "/none".into() }));
    // Delete: before NoNode, BadVersion and NotEmpty.
    no_auth(nobody.delete("/p/none").wait(), "/p", delete);
    no_auth(nobody.delete_if("/p/c", 7).wait(), "/p", delete);
    no_auth(nobody.delete_recursive("/p/none").wait(), "/p", delete);
    // Set and set_acl: after NoNode, before BadVersion.
    no_auth(nobody.set_if("/p/c", b"", 7).wait(), "/p/c", Permissions::WRITE);
    no_auth(nobody.set_acl_if("/p/c", &Acl::open(), 7).wait(), "/p/c", Permissions::ADMIN);
    let missing = Err(Error::NoNode { path: "/p/none".into() });
    assert_eq!(nobody.set("/p/none", b"").wait(), missing);
    assert_eq!(nobody.set_acl("/p/none", &Acl::open()).wait(), missing);
    let invalid = nobody.set_acl("/p/none", &[Acl::new(create, Id::new("world", "all"))]).wait();
    assert!(matches!(invalid, Err(Error::InvalidAcl { .. })), "{invalid:?}");
    let bad = Error::BadVersion { path: "/p/c".into(), expected: 7, actual: 1 };
    assert_eq!(alice.set_acl_if("/p/c", &Acl::open(), 7).wait(), Err(bad));
    let reserved = alice.set_acl("/zookeeper/config", &Acl::open());
    assert_eq!(reserved.wait(), Err(Error::Reserved { path: "/zookeeper/config".into() }));
}

/// A tree is deleted only if the caller may delete every znode in it.
#[test]
fn a_tree_is_deleted_only_if_every_znode_may_be() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    for path in ["/p", "/p/a", "/p/a/b", "/p/a/b/c"] {
        nobody.create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    alice.set_acl("/p/a/b", &only(Permissions::READ)).wait().unwrap();
    no_auth(nobody.delete_recursive("/p").wait(), "/p/a/b", Permissions::DELETE);
    assert_eq!(nobody.all_children_number("/p").wait().unwrap(), 3);
    // Deleting a znode without children needs no permission on the znode itself.
    alice.delete("/p/a/b/c").wait().unwrap();
    nobody.delete_recursive("/p").wait().unwrap();
}

/// S8, S13: `set_acl` changes only the aversion and fires no watch.
#[test]
fn setting_an_acl_increments_the_aversion_and_fires_no_watch() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let before = session.create("/a", b"1", CreateMode::Persistent).wait().unwrap().stat;
    let watches = [
        session.get_and_watch("/a").wait().unwrap().2,
        session.watch("/", WatchMode::PersistentRecursive).wait().unwrap(),
    ];
    let set = session.set_acl("/a", &Acl::read_only()).wait().unwrap();
    let mut expected = before;
    expected.aversion = 1;
    assert_eq!(set, expected);
    assert_eq!(session.acl("/a").wait().unwrap(), (Acl::read_only(), set));
    // The other replicas have the list too, and the write took a zxid.
    let other = cluster.node(1).session();
    assert!(other.sync().wait().unwrap() > before.czxid);
    no_auth(other.set("/a", b"2").wait(), "/a", Permissions::WRITE);
    session.sync().wait().unwrap();
    assert!(watches.iter().all(|watch| watch.events().is_empty()));
}

/// S23, S25: `auth` stands for the caller's ids, as they are when the list is set.
#[test]
fn auth_stands_for_the_caller() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    let refused =
        nobody.create_with_acl("/a", b"", CreateMode::Persistent, &Acl::creator_all()).wait();
    assert!(matches!(refused, Err(Error::InvalidAcl { .. })), "{refused:?}");
    alice.add_auth("digest", "admin:1").wait().unwrap();
    alice.create_with_acl("/a", b"", CreateMode::Persistent, &Acl::creator_all()).wait().unwrap();
    alice.add_auth("digest", "late:1").wait().unwrap();
    let ids: Vec<Id> =
        alice.acl("/a").wait().unwrap().0.into_iter().map(|entry| entry.id).collect();
    assert_eq!(ids, [Id::digest("alice", "secret"), Id::digest("admin", "1")]);
    // Another session of the same user is permitted; a wrong password makes another user.
    let again = cluster.node(0).open_session().unwrap();
    again.add_auth("digest", "admin:2").wait().unwrap();
    no_auth(again.get("/a").wait(), "/a", Permissions::READ);
    again.add_auth("digest", "admin:1").wait().unwrap();
    again.get("/a").wait().unwrap();
    let known = again.who_am_i().wait().unwrap();
    assert_eq!(known[1..], [Id::digest("admin", "2"), Id::digest("admin", "1")]);
    assert_eq!(known[0].scheme, "ip");
}

/// S23: ids belong to the holder. A resumed session must authenticate again.
#[test]
fn a_resumed_session_authenticates_again() {
    let cluster = Cluster::new(2);
    let (alice, _) = two(&cluster);
    alice.create_with_acl("/a", b"", CreateMode::Persistent, &Acl::creator_all()).wait().unwrap();
    let resumed = cluster.node(1).resume(alice.id(), alice.password()).wait().unwrap();
    no_auth(resumed.in_turn().get("/a").wait(), "/a", Permissions::READ);
    no_auth(resumed.in_turn().get("/a").wait(), "/a", Permissions::READ);
    no_auth(resumed.set("/a", b"").wait(), "/a", Permissions::WRITE);
    resumed.add_auth("digest", "alice:secret").wait().unwrap();
    resumed.set("/a", b"").wait().unwrap();
    assert_eq!(alice.state(), SessionState::Moved);
}

/// S24: only sessions that may set the list see its password hashes, which could be attacked offline.
#[test]
fn hashes_are_shown_only_to_administrators() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    let acl = [
        Acl::new(Permissions::READ, Id::anyone()),
        alice_only(),
        Acl::new(Permissions::READ, Id::argon2("bob", "secret")),
        Acl::new(Permissions::READ, Id::new("ip", "10.9.0.0/16")),
    ];
    alice.create_with_acl("/a", b"", CreateMode::Persistent, &acl).wait().unwrap();
    assert_eq!(alice.acl("/a").wait().unwrap().0, acl);
    let shown: Vec<String> =
        nobody.acl("/a").wait().unwrap().0.iter().map(|entry| entry.id.to_string()).collect();
    assert_eq!(shown, ["world:anyone", "digest:alice:x", "argon2:bob:x", "ip:10.9.0.0/16"]);
    assert_eq!(nobody.in_turn().acl("/a").wait(), nobody.acl("/a").wait());
    assert_eq!(nobody.acl("/").wait().unwrap().0, Acl::open());
    // ADMIN alone is enough to see the full list.
    alice.set_acl("/a", &only(Permissions::ADMIN)).wait().unwrap();
    assert_eq!(nobody.acl("/a").wait().unwrap().0, only(Permissions::ADMIN));
}

/// S26: every session of an instance has the id of the instance's address.
#[test]
fn the_ip_scheme_needs_no_credentials() {
    let cluster = Cluster::new(2);
    let (one, two) = (cluster.node(0).session(), cluster.node(1).session());
    assert_eq!(one.who_am_i().wait().unwrap(), [Id::new("ip", "10.0.0.1")]);
    let acl = [Acl::new(Permissions::ALL, Id::new("ip", "10.0.0.2/32"))];
    one.create_with_acl("/a", b"", CreateMode::Persistent, &acl).wait().unwrap();
    no_auth(one.get("/a").wait(), "/a", Permissions::READ);
    two.sync().wait().unwrap();
    two.get("/a").wait().unwrap();
    two.set("/a", b"").wait().unwrap();
    let net = [Acl::new(Permissions::ALL, Id::new("ip", "10.0.0.0/30"))];
    two.set_acl("/a", &net).wait().unwrap();
    one.sync().wait().unwrap();
    one.get("/a").wait().unwrap();
    // An address is no authenticated id, so `auth` does not stand for it.
    assert!(one.set_acl("/a", &Acl::creator_all()).wait().is_err());
}

/// S15: a session receives no event of a znode that it may not read; a one-shot watch is used up all the
/// same.
#[test]
fn events_go_only_to_sessions_that_may_read() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    alice
        .create_with_acl("/p", b"", CreateMode::Persistent, &only(Permissions::READ))
        .wait()
        .unwrap();
    let recursive = nobody.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    let persistent = nobody.watch("/p", WatchMode::Persistent).wait().unwrap();
    let once = nobody.exists_and_watch("/p/c").wait().unwrap().1;
    let all = alice.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    let received = |watch: &quorate::Watch| -> Vec<(EventKind, String)> {
        watch.events().try_iter().map(|event| (event.kind, event.path)).collect()
    };
    // A hidden child: watchers of its parent may learn that there is one more.
    alice.create_with_acl("/p/c", b"", CreateMode::Persistent, &[alice_only()]).wait().unwrap();
    alice.set("/p/c", b"1").wait().unwrap();
    alice.set("/p", b"1").wait().unwrap();
    alice.delete("/p/c").wait().unwrap();
    let kinds = |kinds: &[(EventKind, &str)]| -> Vec<(EventKind, String)> {
        kinds.iter().map(|(kind, path)| (*kind, (*path).to_owned())).collect()
    };
    nobody.sync().wait().unwrap();
    let expected = kinds(&[
        (EventKind::ChildrenChanged, "/p"),
        (EventKind::DataChanged, "/p"),
        (EventKind::ChildrenChanged, "/p"),
    ]);
    assert_eq!(received(&persistent), expected);
    assert_eq!(received(&recursive), kinds(&[(EventKind::DataChanged, "/p")]));
    assert_eq!((received(&once), once.recv().wait().unwrap()), (Vec::new(), None));
    let expected = kinds(&[
        (EventKind::Created, "/p/c"),
        (EventKind::DataChanged, "/p/c"),
        (EventKind::DataChanged, "/p"),
        (EventKind::Deleted, "/p/c"),
    ]);
    assert_eq!(received(&all), expected);
    // A hidden parent: no event about its children list, but the events of a readable child.
    alice.set_acl("/p", &[alice_only()]).wait().unwrap();
    alice.create("/p/open", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(received(&persistent), []);
    assert_eq!(received(&recursive), kinds(&[(EventKind::Created, "/p/open")]));
}

/// The same rules for a watch that starts at a past zxid.
#[test]
fn past_events_go_only_to_sessions_that_may_read() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    let zxid = alice.sync().wait().unwrap();
    alice.create("/p", b"", CreateMode::Persistent).wait().unwrap();
    alice.create_with_acl("/p/c", b"", CreateMode::Persistent, &[alice_only()]).wait().unwrap();
    for _ in 0..2_000 {
        drop(alice.set("/p/c", b""));
    }
    alice.set("/p", b"").wait().unwrap();
    let received = |session: &Session, path: &str, mode| -> Vec<EventKind> {
        let watch = session.watch_from(path, mode, zxid).wait().unwrap();
        watch.events().try_iter().map(|event| event.kind).collect()
    };
    let recursive = WatchMode::PersistentRecursive;
    assert_eq!(received(&nobody, "/", recursive), [EventKind::Created, EventKind::DataChanged]);
    assert_eq!(received(&nobody, "/p/c", WatchMode::Persistent), []);
    assert_eq!(received(&alice, "/", recursive).last(), Some(&EventKind::Gap));
    let kinds = received(&nobody, "/p", WatchMode::Persistent);
    assert_eq!(kinds, [EventKind::Created, EventKind::ChildrenChanged, EventKind::DataChanged]);
}

/// An event's data is checked against the access list at the end of its write, not in the middle of it.
#[test]
fn event_data_obeys_the_final_access_list() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    let closed = [alice_only()];
    for path in ["/a", "/b"] {
        alice.create(path, b"public", CreateMode::Persistent).wait().unwrap();
    }
    let watch = nobody.watch_with_before("/", WatchMode::PersistentRecursive).wait().unwrap();
    alice
        .multi()
        .set("/a", b"x")
        .set_acl("/a", &closed)
        .set("/a", b"secret")
        .commit()
        .wait()
        .unwrap();
    let again = alice.multi().delete("/b");
    again
        .create_with_acl("/b", b"secret", CreateMode::Persistent, &closed)
        .commit()
        .wait()
        .unwrap();
    nobody.sync().wait().unwrap();
    let events: Vec<_> = watch.events().try_iter().collect();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events.iter().all(|event| event.data().is_none() && event.stat().is_none()));
    // The list that the znode had before the write decides who may see what it was.
    assert!(events.iter().all(|event| event.data_before() == Some(b"public")));
    alice.create_with_acl("/c", b"secret", CreateMode::Persistent, &closed).wait().unwrap();
    alice.multi().set_acl("/c", &Acl::open()).set("/c", b"public").commit().wait().unwrap();
    nobody.sync().wait().unwrap();
    let opened = watch.events().try_iter().find(|event| event.path == "/c").unwrap();
    assert_eq!((opened.data_before(), opened.data()), (None, Some(&b"public"[..])));
}

#[test]
fn a_snapshot_shows_only_what_its_session_may_read() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    for path in ["/p", "/p/a", "/p/a/x", "/p/b", "/p/c"] {
        alice.create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    alice.set_acl("/p/a", &[alice_only()]).wait().unwrap();
    alice.set_acl("/p/c", &[alice_only()]).wait().unwrap();
    let snapshot = nobody.snapshot().wait().unwrap();
    let walk: Vec<&str> = snapshot.walk("/p").unwrap().map(|(path, _, _)| path).collect();
    assert_eq!(walk, ["/p", "/p/b"]);
    no_auth(snapshot.get("/p/a"), "/p/a", Permissions::READ);
    snapshot.get("/p/a/x").unwrap();
    // The parent's list decides who may see names and counts.
    assert_eq!(snapshot.children("/p").unwrap(), ["a", "b", "c"]);
    assert_eq!(snapshot.all_children_number("/p").unwrap(), 4);
    let reads = snapshot.multi_read([ReadOp::Get("/p/c"), ReadOp::Get("/p/b")]);
    assert!(matches!(reads[..], [Err(Error::NoAuth { .. }), Ok(_)]), "{reads:?}");
    let chrooted = nobody.chroot("/p").unwrap();
    no_auth(chrooted.in_turn().get("/c").wait(), "/c", Permissions::READ);
    no_auth(chrooted.in_turn().get("/c").wait(), "/c", Permissions::READ);
    let read = nobody.transact(|transaction| transaction.get("/p/c"));
    no_auth(read.wait(), "/p/c", Permissions::READ);
    assert_eq!(alice.snapshot().wait().unwrap().walk("/p").unwrap().count(), 5);
}

/// Beyond ZooKeeper: `set_acl` in a multi.
#[test]
fn a_multi_sets_acls() {
    let cluster = Cluster::new(1);
    let (alice, nobody) = two(&cluster);
    let acl = [alice_only()];
    let results = alice
        .multi()
        .create("/a", b"", CreateMode::Persistent)
        .set_acl("/a", &acl)
        .set_acl_if("/a", &acl, 1)
        .create_with_acl("/a/b", b"", CreateMode::Persistent, &Acl::creator_all())
        .commit()
        .wait()
        .unwrap();
    assert!(matches!(results[2], OpResult::AclSet(stat) if stat.aversion == 2));
    no_auth(nobody.get("/a/b").wait(), "/a/b", Permissions::READ);
    // All or nothing.
    let failed = alice.multi().set_acl("/a", &Acl::open()).delete("/none").commit().wait();
    assert!(matches!(failed, Err(Error::Multi { index: 1, .. })), "{failed:?}");
    assert_eq!(alice.acl("/a").wait().unwrap().0, acl);
    // Each operation is checked against the lists that the earlier ones have set.
    let multi = nobody.multi().create_with_acl("/n", b"", CreateMode::Persistent, &acl);
    match multi.set("/n", b"").commit().wait() {
        Err(Error::Multi { index: 1, error }) => {
            no_auth::<()>(Err(*error), "/n", Permissions::WRITE);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(nobody.exists("/n").wait().unwrap(), None);
}

struct Groups;

impl AuthProvider for Groups {
    fn scheme(&self) -> &str {
        "groups"
    }

    fn authenticate(&self, credentials: &[u8]) -> Result<Vec<String>, String> {
        let text = std::str::from_utf8(credentials).map_err(|error| error.to_string())?;
        if text.is_empty() { Err("no group".into()) } else { Ok(vec![text.to_owned()]) }
    }

    fn is_valid(&self, id: &str) -> bool {
        id.starts_with("team-")
    }
}

/// F38 and S27: a failed authentication closes the session, so that nothing runs with fewer rights than
/// intended.
#[test]
fn custom_schemes_authenticate() {
    let cluster = Cluster::with_settings(2, Coordinator::builder().auth_provider(Groups));
    let session = cluster.node(0).open_session().unwrap();
    session.add_auth("groups", "team-a").wait().unwrap();
    let team = |name: &str| [Acl::new(Permissions::ALL, Id::new("groups", name))];
    session.create_with_acl("/a", b"", CreateMode::Persistent, &team("team-a")).wait().unwrap();
    session.create_with_acl("/b", b"", CreateMode::Persistent, &team("team-b")).wait().unwrap();
    no_auth(session.get("/b").wait(), "/b", Permissions::READ);
    for acl in [team("other"), [Acl::new(Permissions::ALL, Id::new("unknown", "a"))]] {
        let refused = session.set_acl("/a", &acl).wait();
        assert!(matches!(refused, Err(Error::InvalidAcl { .. })), "{refused:?}");
    }
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let states = session.states();
    let failed = session.add_auth("groups", "").wait().unwrap_err();
    let expected = Error::AuthFailed { scheme: "groups".into(), reason: "no group".into() };
    assert_eq!(failed, expected);
    assert!(failed.is_session_lost() && !session.is_alive());
    assert_eq!(states.events().iter().last(), Some(SessionState::AuthFailed));
    assert_eq!(session.get("/a").wait(), Err(expected.clone()));
    assert_eq!(session.set("/a", b"").wait(), Err(expected.clone()));
    assert_eq!(session.add_auth("digest", "a:b").wait(), Err(expected));
    // Its ephemerals and locks are released at once.
    let other = cluster.node(1).session();
    let watch = other.exists_and_watch("/mine").wait().unwrap();
    assert!(watch.0.is_none() || watch.1.recv().wait().unwrap().is_some());
    let unknown = other.add_auth("kerberos", "ticket");
    assert!(
        matches!(unknown.wait(), Err(Error::AuthFailed { scheme, .. }) if scheme == "kerberos")
    );
}

#[test]
fn lists_and_sessions_are_bounded() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let many = |count: usize| -> Vec<Acl> {
        let id = |number| Id::digest("alice", &format!("{number}"));
        (0..count).map(|number| Acl::new(Permissions::READ, id(number))).collect()
    };
    let mode = CreateMode::Persistent;
    session.create_with_acl("/a", b"", mode, &many(Acl::ENTRIES_MAX)).wait().unwrap();
    let refused = session.create_with_acl("/b", b"", mode, &many(Acl::ENTRIES_MAX + 1)).wait();
    assert!(matches!(refused, Err(Error::InvalidAcl { .. })), "{refused:?}");
    // Access lists count towards the bytes of a request.
    let long = vec![Acl::new(Permissions::READ, Id::new("ip", "1".repeat(1 << 20)))];
    let refused = session.create_with_acl("/b", b"", mode, &long).wait();
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    session.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    // 64 ids, one of which is the address. One more is refused and closes the session, and with it all its
    // ephemerals.
    for number in 0..63 {
        session.add_auth("digest", format!("u:{number}")).wait().unwrap();
    }
    assert_eq!(session.who_am_i().wait().unwrap().len(), 64);
    let known = session.who_am_i().wait().unwrap();
    let long = format!("{}:1", "u".repeat(1024));
    for one_more in ["u:64", &long] {
        let refused = session.add_auth("digest", one_more).wait().unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
        assert!(!refused.is_session_lost() && !refused.is_outcome_unknown());
        assert_eq!(session.who_am_i().wait().unwrap(), known);
    }
    // An id that the session already has.
    session.add_auth("digest", "u:7").wait().unwrap();
    assert!(session.is_alive() && session.exists("/mine").wait().unwrap().is_some());
}

/// F37: the certificate of an instance gives its sessions an id, and `auth` stands for that id.
#[cfg(feature = "tls")]
#[test]
fn the_x509_scheme_needs_no_credentials() {
    use std::time::Duration;

    let authority = authority::Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let peers = addresses::addresses(2);
    let of = |name: &str| Id::new("x509", format!("CN={name}"));
    let start = |place: usize, name: &str| {
        Coordinator::builder()
            .security(authority.tls(name))
            .advertise(&peers[place])
            .data_dir(dir.path().join(name))
            .super_user(of("root"))
            .join(&peers)
            .wait()
            .unwrap()
    };
    let (one, two) = (start(0, "app-0"), start(1, "root"));
    one.wait_ready(Duration::from_secs(30)).wait().unwrap();
    two.wait_ready(Duration::from_secs(30)).wait().unwrap();
    let (app, root) = (one.session(), two.session());
    app.create_with_acl("/own", b"", CreateMode::Persistent, &Acl::creator_all()).wait().unwrap();
    let host = peers[0].split(':').next().unwrap();
    assert_eq!(app.who_am_i().wait().unwrap(), [Id::new("ip", host), of("app-0")]);
    assert_eq!(app.acl("/own").wait().unwrap().0, [Acl::new(Permissions::ALL, of("app-0"))]);
    let other = [Acl::new(Permissions::ALL, of("app-1"))];
    app.create_with_acl("/other", b"", CreateMode::Persistent, &other).wait().unwrap();
    no_auth(app.get("/other").wait(), "/other", Permissions::READ);
    // A prefix of a subject is a different subject.
    let part = [Acl::new(Permissions::ALL, of("app"))];
    app.create_with_acl("/part", b"", CreateMode::Persistent, &part).wait().unwrap();
    no_auth(app.get("/part").wait(), "/part", Permissions::READ);
    // A write before the user of the session is known.
    root.set("/part", b"").wait().unwrap();
    for path in ["/own", "/other", "/part"] {
        root.get(path).wait().unwrap();
    }
    let nobody = [Acl::new(Permissions::ALL, Id::new("x509", ""))];
    let invalid = app.create_with_acl("/n", b"", CreateMode::Persistent, &nobody).wait();
    assert!(matches!(invalid, Err(Error::InvalidAcl { .. })), "{invalid:?}");
    // The certificate's id needs no credentials, and no other x509 id can be added.
    app.add_auth("x509", "CN=app-1").wait().unwrap();
    assert_eq!(app.who_am_i().wait().unwrap().len(), 2);
}
