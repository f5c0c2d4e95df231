//! Copies from one cluster in memory, through its gateway, into another one.

use super::{Counts, Difference, Event, Import, ImportError};
use crate::acl::{Acl, Id, Permissions};
use crate::api::coordinator::Coordinator;
use crate::gateway::Gateway;
use crate::testing::Cluster;
use crate::{CreateMode, Session};

const PERSISTENT: CreateMode = CreateMode::Persistent;

struct Both {
    _cluster: Cluster,
    _gateway: Gateway,
    port: String,
    source: Session,
    target: Session,
}

impl Both {
    fn new() -> Both {
        let cluster =
            Cluster::with_settings(1, Coordinator::builder().super_user(Id::digest("root", "r")));
        let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
        let port = gateway.address().to_string();
        let source = cluster.node(0).session();
        let other =
            Cluster::with_settings(1, Coordinator::builder().super_user(Id::digest("root", "r")));
        let target = other.node(0).session();
        target.add_auth("digest", "root:r").wait().unwrap();
        Both { _cluster: cluster, _gateway: gateway, port, source, target }
    }

    fn import(&self) -> Import {
        // No server listens at the first address.
        Import::from(["127.0.0.1:1", &self.port]).root("/app").auth("digest", "root:r")
    }

    fn copy(&self, import: &Import) -> Counts {
        import.copy(&self.target, |_| ()).unwrap()
    }

    fn differences(&self, import: &Import) -> Vec<(String, Difference)> {
        let mut all = Vec::new();
        let counts = import.compare(&self.target, |event| {
            if let Event::Difference { path, difference } = event {
                all.push((path.to_owned(), difference));
            }
        });
        assert_eq!(counts.unwrap().differing, all.len() as u64);
        all.sort();
        all
    }
}

fn difference(path: &str, difference: Difference) -> (String, Difference) {
    (path.to_owned(), difference)
}

#[test]
fn a_copy_is_equal_and_the_second_one_does_nothing() {
    let both = Both::new();
    both.source.create("/app", b"1", PERSISTENT).wait().unwrap();
    for number in 0..300 {
        let path = format!("/app/{number}");
        both.source.create(&path, number.to_string(), PERSISTENT).wait().unwrap();
    }
    both.source.create("/app/7/e", b"", CreateMode::Ephemeral).wait().unwrap();
    both.source.create("/apple", b"", PERSISTENT).wait().unwrap();
    let import = both.import();
    let counts = both.copy(&import);
    assert_eq!((counts.read, counts.created, counts.ephemerals), (301, 301, 1));
    assert_eq!(both.target.all_children_number("/app").wait().unwrap(), 300);
    assert_eq!(&both.target.get("/app/299").wait().unwrap().0[..], b"299");
    assert_eq!(both.target.exists("/apple").wait().unwrap(), None);
    assert_eq!(both.differences(&import), []);
    let again = both.copy(&import);
    assert_eq!((again.same, again.created, again.overwritten), (301, 0, 0));
    assert_eq!(both.target.get("/app").wait().unwrap().1.version, 0);
}

#[test]
fn access_lists_are_copied_even_if_they_exclude_others() {
    let both = Both::new();
    let alice = Acl::new(Permissions::READ | Permissions::WRITE, Id::digest("alice", "a"));
    let acl = [alice, Acl::new(Permissions::READ, Id::new("ip", "10.0.0.0/8"))];
    both.source.create_with_acl("/app", b"", PERSISTENT, &Acl::open()).wait().unwrap();
    both.source.create("/app/a", b"", PERSISTENT).wait().unwrap();
    both.source.create("/app/a/b", b"", PERSISTENT).wait().unwrap();
    both.source.set_acl("/app/a", &acl).wait().unwrap();
    both.copy(&both.import());
    assert_eq!(both.target.acl("/app/a").wait().unwrap().0, acl);
    assert_eq!(both.target.acl("/app/a/b").wait().unwrap().0, Acl::open());
    // Without ADMIN the hash is hidden, and without READ everything is.
    let as_alice = Import::from([&both.port]).root("/app").auth("digest", "alice:a");
    let failed = as_alice.copy(&both.target, |_| ()).unwrap_err();
    assert_eq!(
        failed,
        ImportError::HiddenId { path: "/app/a".to_owned(), id: "digest:alice:x".to_owned() }
    );
    let failed = Import::from([&both.port]).root("/app").copy(&both.target, |_| ()).unwrap_err();
    let refused = ImportError::Refused { path: "/app/a".to_owned(), reason: "NoAuth".to_owned() };
    assert_eq!(failed, refused);
}

/// The literal `x`, stored as a hash by mistake, was taken for a hidden hash, although the source hides nothing
/// from its super user.
#[test]
fn a_hash_that_reads_like_a_hidden_one_is_copied_by_a_super_user() {
    let both = Both::new();
    let acl = [Acl::new(Permissions::ALL, Id::new("digest", "app:x")), Acl::open()[0].clone()];
    both.source.create("/app", b"", PERSISTENT).wait().unwrap();
    both.source.create_with_acl("/app/a", b"", PERSISTENT, &acl).wait().unwrap();
    both.copy(&both.import());
    assert_eq!(both.target.acl("/app/a").wait().unwrap().0, acl);
    assert_eq!(both.differences(&both.import()), []);
    // Anybody else may see a hidden hash.
    let failed = Import::from([&both.port]).root("/app").copy(&both.target, |_| ()).unwrap_err();
    let id = "digest:app:x".to_owned();
    assert_eq!(failed, ImportError::HiddenId { path: "/app/a".to_owned(), id });
}

#[test]
fn differences_are_reported_and_changed_only_on_demand() {
    let both = Both::new();
    for path in ["/app", "/app/data", "/app/acl", "/app/new", "/app/eph", "/app/same"] {
        both.source.create(path, b"theirs", PERSISTENT).wait().unwrap();
    }
    both.source.set_acl("/app/acl", &Acl::read_only()).wait().unwrap();
    for path in ["/app", "/app/acl", "/app/same", "/app/extra", "/app/extra/below"] {
        both.target.create(path, b"theirs", PERSISTENT).wait().unwrap();
    }
    both.target.create("/app/data", b"ours", PERSISTENT).wait().unwrap();
    both.target.create("/app/eph", b"theirs", CreateMode::Ephemeral).wait().unwrap();
    both.target.create("/app/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let import = both.import();
    let left = [
        difference("/app/acl", Difference::Acl),
        difference("/app/data", Difference::Data),
        difference("/app/eph", Difference::Kind),
        difference("/app/extra", Difference::Extra),
    ];
    let mut all = left.to_vec();
    all.push(difference("/app/new", Difference::Missing));
    assert_eq!(both.differences(&import), all);
    assert_eq!(both.target.exists("/app/new").wait().unwrap(), None, "comparing writes nothing");
    let counts = both.copy(&import);
    assert_eq!((counts.created, counts.same, counts.differing, counts.deleted), (1, 2, 3, 0));
    assert_eq!(both.differences(&import), left);
    let counts = both.copy(&import.clone().overwrite(true).delete(true));
    assert_eq!((counts.overwritten, counts.deleted, counts.differing), (2, 1, 1));
    assert_eq!(both.differences(&import), [difference("/app/eph", Difference::Kind)]);
    assert_eq!(&both.target.get("/app/data").wait().unwrap().0[..], b"theirs");
    assert!(both.target.exists("/app/mine").wait().unwrap().is_some());
}

#[test]
fn later_sequential_names_go_on_behind_those_of_the_source() {
    let both = Both::new();
    both.source.create("/app", b"", PERSISTENT).wait().unwrap();
    let mut last = String::new();
    for _ in 0..1200 {
        let created = both.source.create("/app/n-", b"", CreateMode::PersistentSequential);
        let path = created.wait().unwrap().path;
        if !last.is_empty() {
            both.source.delete(&last).wait().unwrap();
        }
        last = path;
    }
    assert_eq!(last, "/app/n-0000001199");
    let import = both.import().to("/there/app");
    assert_eq!(both.copy(&import).counters, 1);
    assert_eq!(both.differences(&import), []);
    assert_eq!(both.target.children("/there/app").wait().unwrap(), ["n-0000001199"]);
    let next =
        both.target.create("/there/app/n-", b"", CreateMode::PersistentSequential).wait().unwrap();
    assert_eq!(next.path, "/there/app/n-0000001200");
    assert_eq!(both.copy(&import).counters, 0);
    both.source.create("/app/n-", b"", CreateMode::PersistentSequential).wait().unwrap();
    both.source.create("/app/n-", b"", CreateMode::PersistentSequential).wait().unwrap();
    let expected = [
        difference("/there/app", Difference::Counter),
        difference("/there/app/n-0000001200", Difference::Data),
    ];
    both.target.set("/there/app/n-0000001200", b"ours").wait().unwrap();
    let found = both.differences(&import);
    assert!(expected.iter().all(|difference| found.contains(difference)), "{found:?}");
}

#[test]
fn everything_is_everything_but_the_trees_own() {
    let both = Both::new();
    both.source.create("/a", b"1", PERSISTENT).wait().unwrap();
    both.source.create("/zookeeper/quota/a", b"", PERSISTENT).wait().unwrap();
    both.source.create("/a/zookeeper", b"2", PERSISTENT).wait().unwrap();
    let import = both.import().root("/");
    assert_eq!(both.copy(&import).created, 2);
    assert_eq!(both.differences(&import), []);
    assert_eq!(both.target.exists("/zookeeper/quota/a").wait().unwrap(), None);
    // To another path, and back from it.
    assert_eq!(both.copy(&both.import().root("/").to("/old")).created, 3);
    assert_eq!(&both.target.get("/old/a/zookeeper").wait().unwrap().0[..], b"2");
    assert_eq!(both.copy(&both.import().root("/a").to("/")).created, 0);
}

#[test]
fn impossible_lengths_are_errors() {
    let both = Both::new();
    let fails = |import: Import| import.copy(&both.target, |_| ()).unwrap_err();
    assert_eq!(fails(both.import()), ImportError::NoRoot { path: "/app".to_owned() });
    assert!(matches!(fails(both.import().root("app")), ImportError::Target(_)));
    both.source.create("/app", b"", PERSISTENT).wait().unwrap();
    assert!(matches!(fails(both.import().kinds("/none")), ImportError::Snapshot { .. }));
    let wrong = fails(both.import().auth("token", "t"));
    assert!(matches!(wrong, ImportError::AuthFailed { scheme, .. } if scheme == "token"));
    assert!(!format!("{:?}", both.import()).contains("root:r"));
    // A session that may not write gets an error.
    let stranger = Cluster::new(1).node(0).session();
    stranger.create_with_acl("/app", b"", PERSISTENT, &Acl::read_only()).wait().unwrap();
    both.source.create("/app/new", b"", PERSISTENT).wait().unwrap();
    both.source.set_acl("/app", &Acl::read_only()).wait().unwrap();
    let failed = both.import().copy(&stranger, |_| ()).unwrap_err();
    assert!(matches!(failed, ImportError::Target(crate::Error::NoAuth { .. })), "{failed}");
}

/// A cluster with a znode of many children could not be copied out of its own gateway.
#[test]
fn long_lists_of_children_are_copied() {
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().packet_bytes_max(2_000);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let source = cluster.node(0).session();
    source.create("/app", b"", PERSISTENT).wait().unwrap();
    for number in 0..100 {
        source.create(&format!("/app/{number:0100}"), b"", PERSISTENT).wait().unwrap();
    }
    let other = Cluster::new(1);
    let import = Import::from([gateway.address().to_string()]).root("/app");
    let counts = import.copy(&other.node(0).session(), |_| ()).unwrap();
    assert_eq!((counts.read, counts.created), (101, 101));
}

/// All servers were asked ten times for a reply that none of them could give.
#[test]
fn a_reply_that_is_too_long_is_said_at_once() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().to_string();
    let serve = move || {
        // It grants a session: a version, a timeout, an id, and a password.
        let response = [&[0; 4], &10_000_i32.to_be_bytes()[..], &[1; 8], &[0, 0, 0, 16], &[1; 16]];
        let response = [&36_i32.to_be_bytes()[..], &response.concat()].concat();
        // The first request is one that a server may not know.
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut packet = [0; 1 << 10];
            assert!(stream.read(&mut packet).unwrap() > 0);
            stream.write_all(&response).unwrap();
            assert!(stream.read(&mut packet).unwrap() > 0);
            stream.write_all(&(300_i32 << 20).to_be_bytes()).unwrap();
            while stream.read(&mut packet).is_ok_and(|read| read > 0) {}
        }
    };
    let cluster = Cluster::new(1);
    let failed = std::thread::scope(|scope| {
        scope.spawn(serve);
        Import::from([port]).copy(&cluster.node(0).session(), |_| ())
    });
    let limit = super::source::REPLY_BYTES_MAX;
    assert_eq!(failed.unwrap_err(), ImportError::ReplyTooLong { bytes: 300 << 20, limit });
}
