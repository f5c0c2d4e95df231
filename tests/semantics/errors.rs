//! The order of errors when several apply, and the context of each.

use std::time::Duration;

use quorate::multi::Condition;
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Result, Session};

use crate::{P, SECOND, make, one, open};

/// The variant of an error, without its fields.
fn name(error: &Error) -> &'static str {
    match error {
        Error::InvalidPath { .. } => "InvalidPath",
        Error::InvalidSetting { setting: "ttl", .. } => "InvalidTtl",
        Error::TooLarge { .. } => "TooLarge",
        Error::SessionClosed { .. } => "SessionClosed",
        Error::SessionExpired { .. } => "SessionExpired",
        Error::SessionMoved { .. } => "SessionMoved",
        Error::Reserved { .. } => "Reserved",
        Error::NoNode { .. } => "NoNode",
        Error::NodeExists { .. } => "NodeExists",
        Error::NoChildrenForEphemerals { .. } => "NoChildrenForEphemerals",
        Error::BadVersion { .. } => "BadVersion",
        Error::NotEmpty { .. } => "NotEmpty",
        Error::Unmet { .. } => "Unmet",
        other => panic!("{other:?}"),
    }
}

/// The error of a call. For a multi, the error of the operation that failed.
fn error<T>(result: Result<T>) -> Error {
    match result.map(drop).expect_err("it should have failed") {
        Error::Multi { error, .. } => *error,
        error => error,
    }
}

const TOO_SHORT: CreateMode = CreateMode::PersistentWithTtl(Duration::ZERO);
const CONFIG: &str = "/zookeeper/config";

struct Setting {
    _cluster: Cluster,
    open: Session,
    closed: Session,
    big: Vec<u8>,
}

/// `/full` with a child, `/empty`, the ephemeral `/mine`; data over the limit; and a session that
/// is closed.
fn setting() -> Setting {
    let (cluster, open) = one();
    make(&open, &["/full", "/full/child", "/empty"]);
    open.create("/mine", b"", CreateMode::Ephemeral).wait().unwrap();
    let closed = crate::open(&cluster, 0);
    closed.close().wait().unwrap();
    Setting { _cluster: cluster, open, closed, big: vec![0; (1 << 20) + 1] }
}

/// Each line breaks the rule that it names, and also the next rule of the order.
///
/// This is ZooKeeper's order as its users see it: the client's checks come before the server's. Not in the
/// list: `InvalidACL`, and quotas. A znode below an ephemeral one cannot exist, so `NodeExists` never meets
/// `NoChildrenForEphemerals`.
#[test]
fn a_create_is_refused_with_the_first_error_of_the_order() {
    let s = setting();
    let ttl = |ttl| CreateMode::PersistentWithTtl(ttl);
    for (line, (expected, result)) in [
        ("InvalidPath", s.open.create("bad", b"", TOO_SHORT)),
        ("InvalidPath", s.open.create("/bad/", &s.big, P)),
        ("InvalidTtl", s.open.create("/none/x", &s.big, TOO_SHORT)),
        (
            "InvalidTtl",
            s.closed.create("/x", b"", ttl(CreateMode::TTL_MAX + Duration::from_millis(1))),
        ),
        ("InvalidTtl", s.closed.create("/none/x", b"", ttl(Duration::from_micros(999)))),
        ("TooLarge", s.closed.create("/x", &s.big, P)),
        ("TooLarge", s.open.create("/none/x", &s.big, P)),
        ("TooLarge", s.open.create("/empty", &s.big, P)),
        ("SessionClosed", s.closed.create("/none/x", b"", P)),
        ("SessionClosed", s.closed.create("/empty", b"", P)),
        ("NoNode", s.open.create("/none/x", b"", P)),
        ("NoNode", s.open.create("/zookeeper/config/none/x", b"", P)),
        ("Reserved", s.open.create("/zookeeper/config/x", b"", CreateMode::Ephemeral)),
        ("NodeExists", s.open.create("/", b"", P)),
        ("NodeExists", s.open.create("/mine", b"", CreateMode::Ephemeral)),
        ("NoChildrenForEphemerals", s.open.create("/mine/x", b"", P)),
        ("NoChildrenForEphemerals", s.open.create("/mine/", b"", CreateMode::EphemeralSequential)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(name(&error(result.wait())), expected, "line {line}");
    }
}

#[test]
fn a_delete_is_refused_with_the_first_error_of_the_order() {
    let s = setting();
    for (line, (expected, result)) in [
        ("InvalidPath", s.closed.delete("/full/")),
        ("SessionClosed", s.closed.delete("/")),
        ("SessionClosed", s.closed.delete("/none")),
        // These have children, and another version.
        ("Reserved", s.open.delete_if("/", 9)),
        ("Reserved", s.open.delete_if("/zookeeper", 9)),
        ("Reserved", s.open.delete_if(CONFIG, 9)),
        ("NoNode", s.open.delete_if("/none", 9)),
        ("NoNode", s.open.delete_if("/none/below", 9)),
        ("BadVersion", s.open.delete_if("/full", 9)),
        ("NotEmpty", s.open.delete_if("/full", 0)),
        ("NotEmpty", s.open.delete("/full")),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(name(&error(result.wait())), expected, "line {line}");
    }
}

#[test]
fn a_set_is_refused_with_the_first_error_of_the_order() {
    let s = setting();
    for (line, (expected, result)) in [
        ("InvalidPath", s.open.set("empty", &s.big)),
        ("InvalidPath", s.closed.set("", b"")),
        ("TooLarge", s.closed.set("/empty", &s.big)),
        ("TooLarge", s.open.set(CONFIG, &s.big)),
        ("TooLarge", s.open.set("/none", &s.big)),
        // Like a quota in ZooKeeper: before the version.
        ("TooLarge", s.open.set_if("/empty", &s.big, 9)),
        ("SessionClosed", s.closed.set(CONFIG, b"")),
        ("SessionClosed", s.closed.set("/none", b"")),
        ("Reserved", s.open.set_if(CONFIG, b"", 9)),
        ("NoNode", s.open.set_if("/none", b"", 9)),
        ("BadVersion", s.open.set_if("/empty", b"", 9)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(name(&error(result.wait())), expected, "line {line}");
    }
}

#[test]
fn a_check_is_refused_with_the_first_error_of_the_order() {
    let s = setting();
    let on = |session: &Session, path: &str, condition| {
        error(session.multi().require(path, condition).commit().wait())
    };
    for (line, (expected, error)) in [
        ("InvalidPath", on(&s.closed, "none", Condition::Version(9))),
        ("SessionClosed", on(&s.closed, "/none", Condition::Version(9))),
        ("NoNode", on(&s.open, "/none", Condition::Version(9))),
        ("NoNode", on(&s.open, "/none", Condition::Czxid(9))),
        ("BadVersion", on(&s.open, "/empty", Condition::Version(9))),
        ("BadVersion", on(&s.open, CONFIG, Condition::Version(9))),
        ("NodeExists", on(&s.open, "/empty", Condition::Absent)),
        ("Unmet", on(&s.open, "/empty", Condition::Czxid(1))),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(name(&error), expected, "line {line}");
    }
}

/// In a multi each operation has the same order of errors as alone, and the first operation that fails
/// decides. The handle reports its own checks before it sends anything.
#[test]
fn in_a_multi_the_first_operation_that_fails_decides() {
    let s = setting();
    let failed = |result: Result<_>| match result {
        Err(Error::Multi { index, error }) => (index, name(&error)),
        other => panic!("{:?}", other.map(|_: Vec<quorate::multi::OpResult>| ())),
    };
    let multi = || s.open.multi().create("/new", b"", P);
    assert_eq!(failed(multi().delete("/full").delete("/none").commit().wait()), (1, "NotEmpty"));
    assert_eq!(failed(multi().delete("/none").delete("/full").commit().wait()), (1, "NoNode"));
    assert_eq!(failed(multi().create("/new", b"", P).commit().wait()), (1, "NodeExists"));
    assert_eq!(
        failed(multi().delete_if("/new", 1).delete("/none").commit().wait()),
        (1, "BadVersion")
    );
    assert_eq!(failed(multi().delete("/none").set("bad", b"").commit().wait()), (2, "InvalidPath"));
    assert_eq!(
        failed(multi().set("bad", b"").set("/new", &s.big).commit().wait()),
        (1, "InvalidPath")
    );
    assert_eq!(failed(multi().create("/x", b"", TOO_SHORT).commit().wait()), (1, "InvalidTtl"));
    let half = vec![0; (1 << 19) + 1];
    let over = multi().set("/new", &half).set("/none", &half).set("bad", b"").commit();
    assert_eq!(failed(over.wait()), (2, "TooLarge"), "all of it together");
    let of_closed = s.closed.multi().delete("/none").commit().wait();
    assert!(matches!(of_closed, Err(Error::SessionClosed { .. })), "{of_closed:?}");
    assert_eq!(s.open.exists("/new").wait().unwrap(), None);
}

/// Each error carries its context, where ZooKeeper's exception has a path or none at all.
#[test]
fn each_error_names_its_path_or_session() {
    let s = setting();
    let path = |path: &str| path.to_owned();
    for (result, expected) in [
        (s.open.set("/none", b"").wait().map(drop), Error::NoNode { path: path("/none") }),
        // The missing parent, not the znode to create; but the znode to delete.
        (s.open.create("/a/b/c", b"", P).wait().map(drop), Error::NoNode { path: path("/a/b") }),
        (s.open.delete("/a/b/c").wait(), Error::NoNode { path: path("/a/b/c") }),
        (
            s.open.create("/full", b"", P).wait().map(drop),
            Error::NodeExists { path: path("/full") },
        ),
        (s.open.delete("/full").wait(), Error::NotEmpty { path: path("/full") }),
        (
            s.open.set_if("/full", b"", 3).wait().map(drop),
            Error::BadVersion { path: path("/full"), expected: 3, actual: 0 },
        ),
        (
            s.open.create("/mine/x", b"", P).wait().map(drop),
            Error::NoChildrenForEphemerals { path: path("/mine") },
        ),
        (s.open.delete("/zookeeper").wait(), Error::Reserved { path: path("/zookeeper") }),
        (
            s.open.create("/t", b"", TOO_SHORT).wait().map(drop),
            Error::InvalidSetting {
                setting: "ttl",
                reason: "0ns for /t is not from 1 ms to 2^40 - 1 ms".to_owned(),
            },
        ),
        (
            s.open.set("/full", &s.big).wait().map(drop),
            Error::TooLarge { path: path("/full"), size: (1 << 20) + 1, limit: 1 << 20 },
        ),
        (s.closed.get("/full").wait().map(drop), Error::SessionClosed { session: s.closed.id() }),
    ] {
        assert_eq!(result, Err(expected.clone()));
        let text = expected.to_string();
        let names = ["/full", "/none", "/a/b", "/mine", "/zookeeper", "/t", "0x"];
        assert!(names.iter().any(|name| text.contains(name)), "{text}");
        assert!(!expected.is_outcome_unknown() && !expected.is_retryable());
        let over = matches!(expected, Error::SessionClosed { .. });
        assert_eq!(expected.is_session_lost(), over);
    }
}

#[test]
fn a_session_that_is_over_reports_the_reason() {
    let cluster = Cluster::new(1);
    let [closed, expired, moved] = [(); 3].map(|()| open(&cluster, 0));
    closed.close().wait().unwrap();
    cluster.expire(&expired);
    let resumed = cluster.node(0).resume(moved.id(), moved.password()).wait().unwrap();
    for (session, expected) in [
        (&closed, Error::SessionClosed { session: closed.id() }),
        (&expired, Error::SessionExpired { session: expired.id() }),
        (&moved, Error::SessionMoved { session: moved.id() }),
    ] {
        assert_eq!(session.get("/").wait().map(drop), Err(expected.clone()));
        assert_eq!(session.set("/", b"").wait().map(drop), Err(expected.clone()));
        assert_eq!(session.sync().wait().map(drop), Err(expected.clone()));
        assert_eq!(
            session.multi().delete("/none").commit().wait().map(drop),
            Err(expected.clone())
        );
        assert_eq!(session.get_and_watch("/").wait().map(drop), Err(expected.clone()));
        assert_eq!(session.in_turn().exists("/").wait(), Err(expected.clone()));
        assert!(expected.is_session_lost() && !expected.is_outcome_unknown());
    }
    resumed.set("/", b"").wait().unwrap();
}

/// ZooKeeper closes the connection of a client that sends too much, and the client sees a lost connection.
#[test]
fn a_request_that_is_too_large_fails_with_the_limit_and_costs_nothing() {
    let s = setting();
    let limit = 1 << 20;
    let fits = vec![1; limit as usize];
    s.open.set("/empty", &fits).wait().unwrap();
    s.open.create("/big", &fits, P).wait().unwrap();
    let too_large = |size| Error::TooLarge { path: "/empty".to_owned(), size, limit };
    assert_eq!(s.open.set("/empty", &s.big).wait(), Err(too_large(limit + 1)));
    let multi = s.open.multi().set("/empty", &fits).set("/empty", b"x").commit();
    assert_eq!(multi.wait(), Err(Error::Multi { index: 1, error: Box::new(too_large(limit + 1)) }));
    // The session goes on, and so do its watches.
    assert_eq!(s.open.state(), quorate::SessionState::Connected);
    assert_eq!(s.open.get("/empty").wait().unwrap().1.version, 1);
    // Replies have no limit: here are more children than ZooKeeper could list.
    let name = "n".repeat(1000);
    make(&s.open, &["/many"]);
    let created: Vec<_> =
        (0..1200).map(|n| s.open.create(&format!("/many/{name}{n:04}"), b"", P)).collect();
    for created in created {
        created.wait().unwrap();
    }
    let children = s.open.children("/many").wait().unwrap();
    assert!(children.iter().map(String::len).sum::<usize>() > limit as usize);
    s.open.delete_recursive("/many").wait().unwrap();
}

#[test]
fn too_many_requests_are_refused_before_anything_is_done() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().pending_requests_max(3));
    let session = open(&cluster, 0);
    cluster.isolate(0);
    let mut sets: Vec<_> = (0..5).map(|_| session.set("/", b"x")).collect();
    let refused = sets.split_off(3);
    for set in refused {
        let error = set.wait().unwrap_err();
        assert_eq!(error, Error::Busy { limit: 3 });
        assert!(error.is_retryable() && !error.is_outcome_unknown());
    }
    cluster.heal();
    cluster.advance(SECOND * 2);
    let versions: Vec<u64> = sets.into_iter().map(|set| set.wait().unwrap().version).collect();
    assert_eq!(versions, [1, 2, 3]);
}
