//! Containers and times to live.

use super::*;

fn reap(s: &mut Script, path: &str) -> Result<Reply, OpError> {
    s.send(SessionId(0), 0, 0, 0, Command::Reap { path: path.to_owned() })
}

#[test]
fn a_container_is_deleted_once_it_has_had_children_and_has_none() {
    let mut s = Script::new();
    s.make("/c", CreateMode::Container);
    let stat = s.stat("/c");
    assert_eq!((stat.is_container, stat.ephemeral_owner), (true, None));
    assert_eq!(reap(&mut s, "/c"), Err(OpError::StaleReap), "it was never used");
    s.make("/c/x", Persistent);
    assert_eq!(reap(&mut s, "/c"), Err(OpError::StaleReap), "it has a child");
    assert_eq!(s.machine.tree().unused_containers().count(), 0);
    s.op(delete("/c/x", None)).unwrap();
    assert_eq!(s.machine.tree().unused_containers().collect::<Vec<_>>(), ["/c"]);
    assert_eq!(s.machine.tree().overdue(u64::MAX).count(), 0);
    // The container is used again before its deletion is applied.
    s.make("/c/y", Ephemeral);
    assert_eq!(reap(&mut s, "/c"), Err(OpError::StaleReap));
    s.op(delete("/c/y", None)).unwrap();
    let zxid = s.machine.zxid();
    assert_eq!(reap(&mut s, "/c"), Ok(Reply::Done));
    assert_eq!(s.changes(), [(zxid + 1, Deleted, "/c")]);
    assert_eq!(reap(&mut s, "/c"), Err(OpError::StaleReap));
    // No other znode can be deleted like this.
    s.make("/p", Persistent);
    s.make("/p/x", Ephemeral);
    for path in ["/p/x", "/p", "/zookeeper/quota", "/none", "bad"] {
        assert_eq!(reap(&mut s, path), Err(OpError::StaleReap));
    }
    assert_eq!(s.machine.zxid(), zxid + 3);
}

#[test]
fn a_time_to_live_counts_from_the_last_set_and_not_while_there_are_children() {
    let mut s = Script::new();
    let ttl = Duration::from_millis(500);
    assert_eq!(s.time, 1000);
    s.make("/t", CreateMode::PersistentWithTtl(ttl));
    let name = s.make("/s-", CreateMode::PersistentSequentialWithTtl(ttl + ttl));
    assert_eq!(name, "/s-0000000001");
    assert_eq!((s.stat("/t").ttl, s.stat("/t").expires_at()), (Some(ttl), Some(1500)));
    let due = |s: &Script, time| -> Vec<String> {
        s.machine.tree().overdue(time).map(str::to_owned).collect()
    };
    assert_eq!(
        (due(&s, 1499).len(), due(&s, 1500), due(&s, 2000).len()),
        (0, vec!["/t".to_owned()], 2)
    );
    s.time = 1499;
    assert_eq!(reap(&mut s, "/t"), Err(OpError::StaleReap));
    s.op(set("/t", b"", None)).unwrap();
    s.time = 1998;
    // Creating and deleting children does not change the time.
    s.make("/t/x", Persistent);
    assert_eq!(s.stat("/t").expires_at(), None);
    s.time = 1999;
    assert_eq!(reap(&mut s, "/t"), Err(OpError::StaleReap));
    s.op(delete("/t/x", None)).unwrap();
    assert_eq!(due(&s, 1999), ["/t"]);
    assert_eq!(reap(&mut s, "/t"), Ok(Reply::Done));
    s.time = 2000;
    assert_eq!(reap(&mut s, &name), Ok(Reply::Done));
    for ttl in [Duration::from_micros(999), CreateMode::TTL_MAX + Duration::from_nanos(1)] {
        let invalid = OpError::InvalidTtl { path: "/bad".to_owned(), ttl };
        assert_eq!(s.op(create("/bad", CreateMode::PersistentWithTtl(ttl))), Err(invalid));
    }
    s.make("/long", CreateMode::PersistentWithTtl(CreateMode::TTL_MAX));
    assert_eq!(s.stat("/long").ttl, Some(CreateMode::TTL_MAX));
}
