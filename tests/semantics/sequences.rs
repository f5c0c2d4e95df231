//! The numbers of sequential znodes, and the count of a parent's children.

use quorate::multi::OpResult;
use quorate::{CreateMode, Error, Session};

use crate::{P, SECOND, make, one, open, stat};

const SEQUENTIAL: CreateMode = CreateMode::PersistentSequential;

fn next(session: &Session, prefix: &str) -> String {
    session.create(prefix, b"", SEQUENTIAL).wait().unwrap().path
}

#[test]
fn the_number_is_how_many_children_were_ever_created() {
    let (cluster, session) = one();
    make(&session, &["/q"]);
    assert_eq!(next(&session, "/q/a-"), "/q/a-0000000000");
    make(&session, &["/q/plain"]);
    assert_eq!(next(&session, "/q/b-"), "/q/b-0000000002", "creates without a number count");
    session.delete("/q/b-0000000002").wait().unwrap();
    session.delete("/q/plain").wait().unwrap();
    session.set("/q", b"").wait().unwrap();
    assert_eq!(next(&session, "/q/b-"), "/q/b-0000000003", "deleted znodes still count");
    // Grandchildren and failed creates do not count.
    make(&session, &["/q/b-0000000003/x"]);
    assert!(session.create("/q/a-0000000000", b"", P).wait().is_err());
    for mode in [
        CreateMode::EphemeralSequential,
        CreateMode::PersistentSequentialWithTtl(SECOND * 60),
        SEQUENTIAL,
    ] {
        let before = stat(&session, "/q");
        let made = session.create("/q/n", b"", mode).wait().unwrap();
        let number = (before.cversion + u64::from(before.num_children)) / 2;
        assert_eq!(made.path, format!("/q/n{number:010}"));
    }
    // Another session has no separate numbers.
    assert_eq!(next(&open(&cluster, 0), "/q/n"), "/q/n0000000007");
}

#[test]
fn the_number_is_not_the_cversion_and_restarts_with_the_parent() {
    let (_cluster, session) = one();
    for _ in 0..2 {
        make(&session, &["/q"]);
        for number in 0..3 {
            let path = next(&session, "/q/n");
            assert_eq!(path, format!("/q/n{number:010}"));
            session.delete(&path).wait().unwrap();
            assert_eq!(stat(&session, "/q").cversion, 2 * (number + 1));
        }
        session.delete("/q").wait().unwrap();
    }
}

#[test]
fn the_cversion_is_creates_and_deletes_together() {
    let (_cluster, session) = one();
    make(&session, &["/q"]);
    let (mut creates, mut deletes) = (0, 0);
    for round in 0..4 {
        for child in 0..=round {
            session.create(&format!("/q/{child}"), b"", P).wait().unwrap();
            creates += 1;
        }
        session.set("/q/0", b"").wait().unwrap();
        let there = stat(&session, "/q");
        assert_eq!(there.cversion, creates + deletes);
        assert_eq!(there.cversion, 2 * creates - u64::from(there.num_children));
        for child in 0..=round {
            session.delete(&format!("/q/{child}")).wait().unwrap();
            deletes += 1;
        }
        let empty = stat(&session, "/q");
        assert_eq!((empty.cversion, empty.num_children), (creates + deletes, 0));
        assert_eq!(empty.version, 0);
    }
}

#[test]
fn a_name_that_was_taken_stays_taken_until_the_number_moves_on() {
    let (_cluster, session) = one();
    make(&session, &["/q", "/q/n0000000001"]);
    let exists = Error::NodeExists { path: "/q/n0000000001".to_owned() };
    for _ in 0..2 {
        assert_eq!(session.create("/q/n", b"", SEQUENTIAL).wait(), Err(exists.clone()));
    }
    // With another prefix the name is free, and the number moves on.
    assert_eq!(next(&session, "/q/m"), "/q/m0000000001");
    assert_eq!(next(&session, "/q/n"), "/q/n0000000002");
}

#[test]
fn the_creates_of_one_multi_have_numbers_of_their_own() {
    let (_cluster, session) = one();
    make(&session, &["/q"]);
    let results = session
        .multi()
        .create("/q/n", b"", SEQUENTIAL)
        .create("/q/n", b"", CreateMode::EphemeralSequential)
        .delete("/q/n0000000001")
        .create("/q/n", b"", SEQUENTIAL)
        .commit()
        .wait()
        .unwrap();
    let paths: Vec<&str> = results
        .iter()
        .filter_map(|result| match result {
            OpResult::Created(created) => Some(created.path.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(paths, ["/q/n0000000000", "/q/n0000000001", "/q/n0000000002"]);
    // A failed multi has used no number.
    let failed = session.multi().create("/q/n", b"", SEQUENTIAL).delete("/none").commit();
    assert!(failed.wait().is_err());
    assert_eq!(next(&session, "/q/n"), "/q/n0000000003");
}
