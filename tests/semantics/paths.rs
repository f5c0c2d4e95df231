//! Which paths are valid, and which the system reserves.

use quorate::acl::Acl;
use quorate::multi::{Condition, ReadOp};
use quorate::{CreateMode, Error, Result, Session, WatchMode};

use crate::{P, SECOND, make, one, received};

type Call = fn(&Session, &str) -> Result<()>;

/// Every call that takes the path of a znode.
const CALLS: &[(&str, Call)] = &[
    ("create", |session, path| session.create(path, b"", P).wait().map(drop)),
    ("set", |session, path| session.set(path, b"").wait().map(drop)),
    ("set_if", |session, path| session.set_if(path, b"", 0).wait().map(drop)),
    ("delete", |session, path| session.delete(path).wait()),
    ("delete_if", |session, path| session.delete_if(path, 0).wait()),
    ("delete_recursive", |session, path| session.delete_recursive(path).wait()),
    ("get", |session, path| session.get(path).wait().map(drop)),
    ("exists", |session, path| session.exists(path).wait().map(drop)),
    ("children", |session, path| session.children(path).wait().map(drop)),
    ("children_with_stat", |session, path| session.children_with_stat(path).wait().map(drop)),
    ("all_children_number", |session, path| session.all_children_number(path).wait().map(drop)),
    ("get_and_watch", |session, path| session.get_and_watch(path).wait().map(drop)),
    ("exists_and_watch", |session, path| session.exists_and_watch(path).wait().map(drop)),
    ("children_and_watch", |session, path| session.children_and_watch(path).wait().map(drop)),
    ("watch", |session, path| session.watch(path, WatchMode::Persistent).wait().map(drop)),
    ("chroot", |session, path| session.chroot(path).map(drop)),
    ("lock", |session, path| session.lock(path).map(drop)),
    ("get in turn", |session, path| session.in_turn().get(path).wait().map(drop)),
    ("walk", |session, path| session.snapshot().wait()?.walk(path).map(drop)),
    ("multi_read", |session, path| {
        session.multi_read([ReadOp::Get(path)]).wait()?.remove(0).map(drop)
    }),
    ("multi create", |session, path| {
        of_multi(session.multi().create(path, b"", P).commit().wait())
    }),
    ("multi set", |session, path| of_multi(session.multi().set(path, b"").commit().wait())),
    ("multi delete", |session, path| of_multi(session.multi().delete(path).commit().wait())),
    ("multi check", |session, path| of_multi(session.multi().check(path, 0).commit().wait())),
    ("multi require", |session, path| {
        of_multi(session.multi().require(path, Condition::Absent).commit().wait())
    }),
];

/// The error of the only operation of a multi.
fn of_multi<T>(result: Result<T>) -> Result<()> {
    match result {
        Err(Error::Multi { index: 0, error }) => Err(*error),
        other => other.map(drop),
    }
}

#[test]
fn a_path_that_breaks_a_rule_is_refused_by_every_call() {
    let (_cluster, session) = one();
    let bad = [
        "",
        "a",
        "a/b",
        "./a",
        "/a/",
        "//",
        "//a",
        "/a//b",
        "/a//",
        "/.",
        "/..",
        "/a/.",
        "/a/..",
        "/./a",
        "/a/./b",
        "/a/../b",
        "/a\0",
        "/\0",
        "/a/\u{1}/b",
        "/a\u{80}",
        "/\u{1f600}",
    ];
    for (name, call) in CALLS {
        for path in bad {
            match call(&session, path) {
                Err(Error::InvalidPath { path: named, .. }) => assert_eq!(named, path, "{name}"),
                other => panic!("{name} {path:?}: {other:?}"),
            }
        }
    }
    assert_eq!(session.children("/").wait().unwrap(), ["zookeeper"], "nothing was changed");
}

/// The first and the last character of each range, and their neighbours, which are allowed.
#[test]
fn each_range_of_forbidden_characters_ends_where_zookeepers_does() {
    let (_cluster, session) = one();
    // Surrogates are no characters by themselves: the next one below them is U+D7FF, and the first one above
    // them belongs to the range.
    let forbidden = [
        '\u{0}', '\u{1}', '\u{19}', '\u{1a}', '\u{1f}', '\u{7f}', '\u{9f}', '\u{e000}', '\u{f8ff}',
        '\u{fff0}', '\u{fffd}', '\u{fffe}', '\u{ffff}',
    ];
    let allowed = [
        ' ', '!', '~', '\u{a0}', '\u{e9}', '\u{200b}', '\u{20ac}', '\u{4e2d}', '\u{d7ff}',
        '\u{f900}', '\u{ffef}', '\\', '*', '%', ':',
    ];
    let paths =
        |c: char| [format!("/{c}"), format!("/a{c}b"), format!("/a/{c}"), format!("/{c}/a")];
    make(&session, &["/a"]);
    for c in forbidden {
        for path in paths(c) {
            let result = session.create(&path, b"", P).wait();
            assert!(matches!(result, Err(Error::InvalidPath { .. })), "{path:?}: {result:?}");
        }
    }
    for c in allowed {
        for path in paths(c) {
            assert_eq!(session.create(&path, b"", P).wait().map(|made| made.path), Ok(path));
        }
        assert!(session.children("/").wait().unwrap().contains(&c.to_string()));
    }
}

/// ZooKeeper checks UTF-16 units, and both halves of such a character are forbidden.
#[test]
fn characters_of_two_utf_16_units_are_refused_emoji_included() {
    let (_cluster, session) = one();
    for c in ['\u{10000}', '\u{1d11e}', '\u{1f600}', '\u{20000}', '\u{10ffff}'] {
        assert_eq!(c.len_utf16(), 2);
        for path in [format!("/{c}"), format!("/a{c}"), format!("/{c}/b")] {
            for (name, call) in CALLS {
                let result = call(&session, &path);
                assert!(matches!(result, Err(Error::InvalidPath { .. })), "{name}: {result:?}");
            }
        }
    }
}

#[test]
fn a_sequential_path_is_judged_with_its_number() {
    let (_cluster, session) = one();
    let modes = [
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
        CreateMode::PersistentSequentialWithTtl(SECOND),
    ];
    make(&session, &["/q"]);
    let mut number = 0;
    for mode in modes {
        for prefix in ["/q/", "/q/.", "/q/..", "/q/a"] {
            let path = format!("{prefix}{number:010}");
            assert_eq!(session.create(prefix, b"", mode).wait().map(|made| made.path), Ok(path));
            number += 1;
        }
        for bad in ["", "q", "//", "/q//", "/q/./", "/q/../a", "/q/\u{1}", "/q/\u{1f600}"] {
            let alone = session.create(bad, b"", mode).wait().map(drop);
            let in_multi = of_multi(session.multi().create(bad, b"", mode).commit().wait());
            for result in [alone, in_multi] {
                assert!(matches!(result, Err(Error::InvalidPath { .. })), "{bad:?}: {result:?}");
            }
        }
    }
    // Below the root the path is the name alone; a plain create of the same path is refused.
    let made = session.create("/", b"", CreateMode::PersistentSequential).wait().unwrap();
    assert_eq!(made.path, "/0000000001");
    assert!(matches!(session.create("/q/", b"", P).wait(), Err(Error::InvalidPath { .. })));
}

/// A limit of our own: ZooKeeper only limits the packet.
#[test]
fn a_path_has_at_most_4096_bytes() {
    let (_cluster, session) = one();
    let longest = format!("/{}", "x".repeat(4095));
    session.create(&longest, b"", P).wait().unwrap();
    let too_long = format!("{longest}x");
    for (name, call) in CALLS {
        let result = call(&session, &too_long);
        assert!(matches!(result, Err(Error::InvalidPath { .. })), "{name}: {result:?}");
    }
    // The sequential number counts.
    let sequential = CreateMode::PersistentSequential;
    let made = session.create(&longest[..4086], b"", sequential).wait().unwrap();
    assert_eq!(made.path.len(), 4096);
    let result = session.create(&longest[..4087], b"", sequential).wait();
    assert!(matches!(result, Err(Error::InvalidPath { .. })), "{result:?}");
}

#[test]
fn the_system_znodes_cannot_be_deleted() {
    let (_cluster, session) = one();
    assert_eq!(session.children("/").wait().unwrap(), ["zookeeper"]);
    assert_eq!(session.children("/zookeeper").wait().unwrap(), ["config", "quota"]);
    let reserved = |path: &str| Error::Reserved { path: path.to_owned() };
    for path in ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"] {
        assert_eq!(session.delete(path).wait(), Err(reserved(path)));
        assert_eq!(session.delete_recursive(path).wait(), Err(reserved(path)));
        let exists = Error::NodeExists { path: path.to_owned() };
        assert_eq!(session.create(path, b"", P).wait(), Err(exists));
    }
    // Otherwise these are ordinary znodes, except for `config`, which only the system writes.
    for path in ["/", "/zookeeper", "/zookeeper/quota"] {
        assert_eq!(session.set(path, b"x").wait().unwrap().version, 1);
    }
    make(&session, &["/zookeeper/mine", "/zookeeper/quota/mine"]);
    session.delete("/zookeeper/mine").wait().unwrap();
    let config = "/zookeeper/config";
    assert_eq!(session.set(config, b"x").wait(), Err(reserved(config)));
    assert_eq!(session.create("/zookeeper/config/x", b"", P).wait(), Err(reserved(config)));
    assert_eq!(session.get(config).wait().unwrap().1.version, 0);
    // Its access list shows that, as in ZooKeeper, to every caller and by every call.
    let acls = |session: &Session, path| {
        [session.acl(path).wait().unwrap().0, session.in_turn().acl(path).wait().unwrap().0]
    };
    assert_eq!(acls(&session, config), [Acl::read_only(), Acl::read_only()]);
    let below = session.chroot("/zookeeper").unwrap();
    assert_eq!(acls(&below, "/config"), [Acl::read_only(), Acl::read_only()]);
    assert_eq!(acls(&session, "/zookeeper"), [Acl::open(), Acl::open()]);
    assert_eq!(session.set_acl(config, &Acl::open()).wait().unwrap_err(), reserved(config));
}

#[test]
fn a_chroot_is_the_handles_alone() {
    let (_cluster, session) = one();
    // The whole tree is not a chroot.
    let all = session.chroot("/").unwrap();
    assert_eq!(all.root(), "/");
    // The chroot is not created; it may appear later.
    let app = session.chroot("/app").unwrap();
    let parent = Error::NoNode { path: "/".to_owned() };
    assert_eq!(app.create("/x", b"", P).wait(), Err(parent));
    let watch = app.watch("/", WatchMode::PersistentRecursive).wait().unwrap();
    make(&session, &["/app"]);
    assert_eq!(app.create("/x", b"", P).wait().unwrap().path, "/x");
    let paths: Vec<String> = received(&watch).into_iter().map(|(_, path)| path).collect();
    assert_eq!(paths, ["/", "/x"]);
    // The system's own znodes are outside of it, and it has no such znodes of its own.
    assert_eq!(app.exists("/zookeeper").wait().unwrap(), None);
    make(&app, &["/zookeeper"]);
    app.delete("/zookeeper").wait().unwrap();
    app.delete_recursive("/").wait().unwrap();
    assert_eq!(session.exists("/app").wait().unwrap(), None);
    // A handle below `/zookeeper` is like any other.
    let system = session.chroot("/zookeeper").unwrap();
    assert_eq!(system.children("/").wait().unwrap(), ["config", "quota"]);
    assert_eq!(system.delete("/quota").wait(), Err(Error::Reserved { path: "/quota".to_owned() }));
}
