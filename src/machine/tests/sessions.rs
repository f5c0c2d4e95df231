//! Sessions: their ephemerals, their holders, and repeated requests.

use super::*;

#[test]
fn ephemerals_are_deleted_with_their_session_in_one_zxid() {
    // In the order of their paths.
    let mut s = Script::new();
    for path in ["/c", "/a-", "/b", "/gone"] {
        s.make(path, Ephemeral);
    }
    s.make("/a", Persistent);
    s.make("/a/x", Ephemeral);
    let theirs = vec![create("/b-of-b", Ephemeral), delete("/gone", None)];
    // Any session may delete an ephemeral. It is not deleted a second time then.
    s.run(B, Command::Multi(theirs)).unwrap();
    s.make("/gone", Persistent);
    let zxid = s.machine.zxid() + 1;
    assert_eq!(s.run(A, Command::Close), Ok(Reply::Done));
    let expected = ["/a-", "/a/x", "/b", "/c"].map(|path| (zxid, Deleted, path));
    assert_eq!(s.changes(), expected);
    assert_eq!(s.last.sessions, [SessionChange::Gone(A, A.0)]);
    assert_eq!(s.machine.zxid(), zxid);
    assert_eq!(s.stat("/a").pzxid, zxid);
    assert!(s.exists("/gone") && s.exists("/b-of-b"));
    assert!(s.machine.session(A).is_none());

    // After the close, a repeated close and any other request find no session.
    let again = s.send(A, A.0, s.next[0] - 1, 0, Command::Close);
    assert_eq!(again, Err(OpError::SessionExpired));
    let late = s.op(create("/late", Ephemeral));
    assert_eq!(late, Err(OpError::SessionExpired));
    assert_eq!(s.machine.zxid(), zxid);
}

#[test]
fn a_session_without_ephemerals_takes_a_zxid_to_close_too() {
    let mut s = Script::new();
    s.run(A, Command::Close).unwrap();
    assert_eq!((s.machine.zxid(), s.changes().len()), (3, 0));
    assert_eq!(s.machine.sessions().map(|(id, _)| id).collect::<Vec<_>>(), [B]);
}

#[test]
fn an_expiry_holds_only_in_its_term_and_against_its_holder() {
    let mut s = Script::new();
    s.make("/e", Ephemeral);
    let expire = |term| Command::Expire { term };
    for (holder, term) in [(A.0, TERM - 1), (A.0, TERM + 1), (99, TERM)] {
        let result = s.send(A, holder, 0, 0, expire(term));
        assert_eq!(result, Err(OpError::StaleExpiry));
    }
    assert!(s.exists("/e"));
    assert_eq!(s.send(A, A.0, 0, 0, expire(TERM)), Ok(Reply::Done));
    assert!(!s.exists("/e"));
    assert_eq!(s.last.sessions, [SessionChange::Gone(A, A.0)]);
    let again = s.send(A, A.0, 0, 0, expire(TERM));
    assert_eq!(again, Err(OpError::SessionExpired));
}

#[test]
fn a_repeated_request_is_answered_but_not_run_again() {
    let mut s = Script::new();
    let command = Command::Op(create("/n-", EphemeralSequential));
    let first = s.send(A, A.0, 1, 0, command.clone());
    let zxid = s.machine.zxid();
    assert_eq!(s.send(A, A.0, 1, 0, command.clone()), first);
    assert_eq!(s.last.changes, []);
    // An error is repeated too, though the request would succeed by now.
    let absent = Command::Op(set("/b", b"", None));
    assert_eq!(s.send(A, A.0, 2, 0, absent.clone()), Err(no_node("/b")));
    s.run(B, Command::Op(create("/b", Persistent))).unwrap();
    assert_eq!(s.send(A, A.0, 2, 0, absent), Err(no_node("/b")));
    assert_eq!(s.machine.zxid(), zxid + 1);
    // An acknowledged result is forgotten.
    s.send(A, A.0, 3, 2, Command::Op(check("/", None))).unwrap();
    assert_eq!(s.send(A, A.0, 1, 0, command), Err(OpError::OutOfOrder));
    assert_eq!(s.machine.zxid(), zxid + 1);
}

#[test]
fn a_request_out_of_order_has_no_effect() {
    let mut s = Script::new();
    s.send(A, A.0, 1, 0, Command::Op(check("/", None))).unwrap();
    let hash = s.machine.hash();
    let early = Command::Op(create("/early", Persistent));
    for (seq, acked) in [(3, 2), (3, 0), (u64::MAX, u64::MAX)] {
        let result = s.send(A, A.0, seq, acked, early.clone());
        assert_eq!(result, Err(OpError::OutOfOrder));
        assert_eq!(s.machine.hash(), hash);
    }
    let close = s.send(A, A.0, 3, 2, Command::Close);
    assert_eq!(close, Err(OpError::OutOfOrder));
    assert!(s.machine.session(A).is_some());
}

#[test]
fn opening_again_gives_the_same_answer() {
    let mut s = Script::new();
    let again = s.send(A, A.0, 0, 0, open());
    assert_eq!(again, Ok(Reply::Session { timeout_ms: 9000 }));
    assert_eq!((s.machine.zxid(), s.last.sessions.len()), (2, 0));
    let other = s.send(A, 77, 0, 0, open());
    assert_eq!(other, Err(OpError::WrongSecret));
    let thief = Command::Open { secret: [0; 16], timeout_ms: 1, owner: 1, base: 0 };
    assert_eq!(s.send(A, A.0, 0, 0, thief), Err(OpError::WrongSecret));
    assert_eq!(s.machine.session(A).unwrap().timeout_ms, 9000);
}

#[test]
fn a_resumed_session_belongs_to_its_new_holder() {
    let mut s = Script::new();
    s.make("/e", Ephemeral);
    let stranger = s.send(SessionId(9), 50, 0, 0, resume(SECRET));
    assert_eq!(stranger, Err(OpError::SessionExpired));
    let thief = s.send(A, 50, 0, 0, resume([0; 16]));
    assert_eq!(thief, Err(OpError::WrongSecret));
    // Without the secret, the holder itself is refused too.
    let thief = s.send(A, A.0, 0, 0, resume([0; 16]));
    assert_eq!(thief, Err(OpError::WrongSecret));

    let zxid = s.machine.zxid();
    for sent in 0..2 {
        let resumed = s.send(A, 50, 0, 0, resume(SECRET));
        assert_eq!(resumed, Ok(Reply::Session { timeout_ms: 7000 }));
        let expected: &[SessionChange] = [&[SessionChange::Held(A)][..], &[]][sent];
        assert_eq!(s.last.sessions, expected);
        assert_eq!(s.machine.zxid(), zxid + 1);
    }
    let record = s.machine.session(A).unwrap();
    assert_eq!((record.owner, record.holder, record.last_seq), (2, 50, 0));
    assert!(s.exists("/e"));
    // The numbers start again, and every request of the former holder is refused.
    let moved = s.op(create("/x", Persistent));
    assert_eq!(moved, Err(OpError::SessionMoved));
    let moved = s.send(A, A.0, 2, 0, Command::Close);
    assert_eq!(moved, Err(OpError::SessionMoved));
    let expiry = s.send(A, A.0, 0, 0, Command::Expire { term: TERM });
    assert_eq!(expiry, Err(OpError::StaleExpiry));
    s.send(A, 50, 1, 0, Command::Op(create("/x", Persistent))).unwrap();
}

#[test]
fn a_late_copy_of_a_resumption_does_not_take_the_session_back() {
    // A leader change can put the same resumption into the log twice, the second time after another
    // holder has resumed the session.
    let mut s = Script::new();
    s.send(A, 50, 0, 0, resume(SECRET)).unwrap();
    s.send(A, 51, 0, 0, resume(SECRET)).unwrap();
    let late = s.send(A, 50, 0, 0, resume(SECRET));
    assert_eq!(late, Err(OpError::SessionMoved));
    assert_eq!(s.machine.session(A).unwrap().holder, 51);
}
