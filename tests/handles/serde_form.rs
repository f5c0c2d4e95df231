//! The serialized form of public values, as `docs/serde.md` documents it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use quorate::WatcherType;
use quorate::acl::{Acl, Id, Permissions};
use quorate::multi::{Condition, OpResult};
use quorate::operate::{Reason, ReasonKind};
use quorate::quota::{Quota, Usage};
use quorate::recipes::{Codec, Instance, Phase, Postcard, Vote};
use quorate::recovery::{Loss, Recovery};
use quorate::session::SessionId;
use quorate::testing::Cluster;
use quorate::{Availability, CreateMode, EventKind, SessionState, Stat, WatchMode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json, to_value};

/// Serializes and deserializes in JSON and in a format that is not self-describing.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, form: Value) {
    assert_eq!(to_value(&value).unwrap(), form);
    assert_eq!(from_value::<T>(form).unwrap(), value);
    let bytes = Postcard::encode(&value).unwrap();
    let decoded: Result<T, String> = Postcard::decode(&bytes);
    assert_eq!(decoded.unwrap(), value);
}

fn refused<T: DeserializeOwned + Debug>(form: Value) -> String {
    from_value::<T>(form).unwrap_err().to_string()
}

#[test]
fn znodes() {
    let second = Duration::from_secs(1);
    check(CreateMode::Persistent, json!("persistent"));
    check(CreateMode::PersistentSequential, json!("persistent_sequential"));
    check(CreateMode::Ephemeral, json!("ephemeral"));
    check(CreateMode::EphemeralSequential, json!("ephemeral_sequential"));
    check(CreateMode::Container, json!("container"));
    check(CreateMode::PersistentWithTtl(second), json!({"persistent_with_ttl": 1000}));
    let mode = CreateMode::PersistentSequentialWithTtl(second);
    check(mode, json!({"persistent_sequential_with_ttl": 1000}));

    let mut stat = Stat::default();
    (stat.czxid, stat.mzxid, stat.pzxid, stat.ctime, stat.mtime) = (1, 2, 3, 4, 5);
    (stat.version, stat.cversion, stat.aversion) = (6, 7, 8);
    (stat.ephemeral_owner, stat.ttl) = (Some(SessionId::from_number(9)), Some(second));
    (stat.is_container, stat.data_length, stat.num_children) = (true, 10, 11);
    let form = json!({
        "czxid": 1, "mzxid": 2, "pzxid": 3, "ctime": 4, "mtime": 5,
        "version": 6, "cversion": 7, "aversion": 8, "ephemeral_owner": "0x0000000000000009",
        "is_container": true, "ttl": 1000, "data_length": 10, "num_children": 11,
    });
    check(stat, form.clone());
    let mut without = form;
    without.as_object_mut().unwrap().remove("ttl");
    without.as_object_mut().unwrap().remove("ephemeral_owner");
    let read: Stat = from_value(without).unwrap();
    assert_eq!((read.ttl, read.ephemeral_owner, read.czxid), (None, None, 1));

    let session = Cluster::new(1).node(0).session();
    let multi = session.multi().create("/a", b"", CreateMode::Persistent).set("/a", b"1");
    let results = multi.set_acl("/a", &Acl::read_only()).commit().wait().unwrap();
    let [OpResult::Created(created), OpResult::Set(set), OpResult::AclSet(acl_set)] = &results[..]
    else {
        panic!("{results:?}");
    };
    let created_form = json!({"path": "/a", "stat": to_value(created.stat).unwrap()});
    check(created.clone(), created_form.clone());
    check(results[0].clone(), json!({"created": created_form}));
    check(results[1].clone(), json!({"set": to_value(set).unwrap()}));
    check(results[2].clone(), json!({"acl_set": to_value(acl_set).unwrap()}));
    check(OpResult::Deleted, json!("deleted"));
    check(OpResult::Checked, json!("checked"));

    check(Condition::Exists, json!("exists"));
    check(Condition::Absent, json!("absent"));
    check(Condition::Version(1), json!({"version": 1}));
    check(Condition::Czxid(1), json!({"czxid": 1}));
    check(Condition::Mzxid(1), json!({"mzxid": 1}));
    check(Condition::Pzxid(1), json!({"pzxid": 1}));
    check(Condition::Cversion(1), json!({"cversion": 1}));
    check(Condition::Aversion(1), json!({"aversion": 1}));
    let usage = json!({"znodes": 1, "bytes": 2});
    check(Condition::Usage { znodes: 1, bytes: 2 }, json!({"usage": usage}));

    let mut used = Usage::default();
    (used.znodes, used.bytes) = (1, 2);
    check(used, usage);
    let quota = Quota::new().znodes(1).bytes_hard(2);
    let form = json!({"znodes": 1, "bytes": null, "znodes_hard": null, "bytes_hard": 2});
    check(quota, form);
    assert_eq!(from_value::<Quota>(json!({"znodes": 1, "bytes_hard": 2})).unwrap(), quota);
}

#[test]
fn sessions_and_watches() {
    check(SessionId::from_number(0x2a), json!("0x000000000000002a"));
    check(SessionId::from_number(u64::MAX), json!("0xffffffffffffffff"));
    for other in ["0x2a", "000000000000002a", "0x000000000000002A", "0x+00000000000002a", ""] {
        let error = refused::<SessionId>(json!(other));
        assert!(error.contains("16 lower-case hexadecimal digits"), "{error}");
    }
    refused::<SessionId>(json!(42));

    check(SessionState::Connecting, json!("connecting"));
    check(SessionState::Connected, json!("connected"));
    check(SessionState::Suspended, json!("suspended"));
    check(SessionState::Expired, json!("expired"));
    check(SessionState::Moved, json!("moved"));
    check(SessionState::Closed, json!("closed"));
    check(SessionState::Detached, json!("detached"));
    check(SessionState::AuthFailed, json!("auth_failed"));

    check(WatchMode::Persistent, json!("persistent"));
    check(WatchMode::PersistentRecursive, json!("persistent_recursive"));
    check(WatcherType::Children, json!("children"));
    check(WatcherType::Data, json!("data"));
    check(WatcherType::Any, json!("any"));
    check(WatcherType::Persistent, json!("persistent"));
    check(WatcherType::PersistentRecursive, json!("persistent_recursive"));
    check(EventKind::Created, json!("created"));
    check(EventKind::Deleted, json!("deleted"));
    check(EventKind::DataChanged, json!("data_changed"));
    check(EventKind::ChildrenChanged, json!("children_changed"));
    check(EventKind::Gap, json!("gap"));
    check(EventKind::DataWatchRemoved, json!("data_watch_removed"));
    check(EventKind::ChildWatchRemoved, json!("child_watch_removed"));
    check(EventKind::PersistentWatchRemoved, json!("persistent_watch_removed"));

    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let with_data = session.watch_with_data("/a", WatchMode::PersistentRecursive).wait().unwrap();
    let without = session.watch("/a", WatchMode::Persistent).wait().unwrap();
    let stat = session.create("/a", b"\xff\x00", CreateMode::Persistent).wait().unwrap().stat;
    let event = with_data.recv().wait().unwrap().unwrap();
    let form = json!({
        "kind": "created", "path": "/a", "zxid": stat.czxid, "position": event.position,
        "net": false, "znode": {"data": "/wA=", "stat": to_value(stat).unwrap()},
        "before": null,
    });
    assert_eq!(to_value(&event).unwrap(), form);
    assert_eq!(to_value(without.recv().wait().unwrap()).unwrap()["znode"], serde_json::Value::Null);
    let watches = cluster.node(0).watches();
    let form = |kind| json!({"path": "/a", "kind": kind, "session": session.id().to_string()});
    let mut shown: Vec<Value> = watches.iter().map(|watch| to_value(watch).unwrap()).collect();
    shown.sort_by_key(Value::to_string);
    assert_eq!(shown, [form("persistent"), form("persistent_recursive")]);
}

#[test]
fn access_lists() {
    check(Permissions::ALL, json!("cdrwa"));
    check(Permissions::NONE, json!(""));
    check(Permissions::READ | Permissions::CREATE, json!("cr"));
    assert_eq!(
        from_value::<Permissions>(json!("rc")).unwrap(),
        Permissions::READ | Permissions::CREATE
    );
    assert!(refused::<Permissions>(json!("rx")).contains("the letters cdrwa"));
    refused::<Permissions>(json!(32));

    check(Id::anyone(), json!("world:anyone"));
    check(Id::new("digest", "alice:hash"), json!("digest:alice:hash"));
    check(Id::new("super", ""), json!("super:"));
    assert!(refused::<Id>(json!("anyone")).contains("scheme:id"));
    assert!(to_value(Id::new("a:b", "c")).is_err());

    let acl = Acl::new(Permissions::READ, Id::new("ip", "10.0.0.0/8"));
    check(acl, json!({"permissions": "r", "id": "ip:10.0.0.0/8"}));
    check(Acl::creator_all(), json!([{"permissions": "cdrwa", "id": "auth:"}]));
    // Content that no access list may have.
    for id in ["world:somebody", "ip:10.0.0.0/33", "super:", "digest:alice", ":", "x509:"] {
        let error = refused::<Acl>(json!({"permissions": "r", "id": id}));
        assert!(error.contains("is no id"), "{error}");
    }
    let long = format!("custom:{}", "x".repeat(2000));
    refused::<Acl>(json!({"permissions": "r", "id": long}));
    refused::<Acl>(json!({"permissions": "z", "id": "world:anyone"}));
    refused::<Acl>(json!({"id": "world:anyone"}));
}

#[test]
fn an_instance_and_its_cluster() {
    check(Availability::Healthy { spare: 1 }, json!({"healthy": {"spare": 1}}));
    let reason = Reason { kind: ReasonKind::VotersMissing, text: "why".to_owned() };
    let form = json!({"reason": {"kind": "voters_missing", "text": "why"}});
    check(Availability::AtRisk { reason: reason.clone() }, json!({"at_risk": form}));
    check(Availability::WritesRefused { reason: reason.clone() }, json!({"writes_refused": form}));
    check(Availability::NoQuorum { reason }, json!({"no_quorum": form}));

    let cluster = Cluster::new(1);
    let coordinator = cluster.node(0);
    let session = coordinator.session();
    session.create("/a", b"1", CreateMode::Ephemeral).wait().unwrap();
    coordinator.wait_ready(Duration::from_secs(60)).wait().unwrap();
    let mut status = coordinator.status();
    status.stale_by = Some(Duration::from_micros(1500));
    status.state_hash = Some(0x2a);
    status.former_data = vec![PathBuf::from("before-1")];
    let member = &status.members[0];
    assert!(status.cluster.is_some() && member.id.len() == 16);
    let form = json!({
        "address": status.address,
        "id": status.id,
        "cluster": status.cluster,
        "leader": status.leader,
        "is_leader": status.is_leader,
        "term": status.term,
        "zxid": status.zxid,
        "state_hash": "000000000000002a",
        "stale_by": 1,
        "sessions": status.sessions,
        "znodes": status.znodes,
        "version": status.version,
        "members": [{
            "address": status.address,
            "id": status.id,
            "zone": "",
            "votes": member.votes,
            "is_self": true,
            "version": member.version,
            "unreachable": null,
            "last_report": null,
            "disk_low": false,
        }],
        "refuses_writes": false,
        "not_ready": null,
        "stopped": null,
        "damaged": null,
        "former_data": ["before-1"],
    });
    assert_eq!(to_value(&status).unwrap(), form);

    let sessions = coordinator.sessions().wait().unwrap();
    let form = json!([{
        "id": session.id().to_string(),
        "name": null,
        "from": "10.0.0.1",
        "owner": status.address,
        "owner_id": sessions[0].owner_id,
        "served_by": null,
        "timeout": u64::try_from(sessions[0].timeout.as_millis()).unwrap(),
        "age": u64::try_from(sessions[0].age.as_millis()).unwrap(),
        "renewed": u64::try_from(sessions[0].renewed.unwrap().as_millis()).unwrap(),
        "ephemerals": 1,
        "watches": 0,
        "requests_per_second": sessions[0].requests_per_second.unwrap(),
    }]);
    assert_eq!(to_value(&sessions).unwrap(), form);

    let metrics = coordinator.metrics().wait().unwrap();
    let form = to_value(&metrics).unwrap();
    assert_eq!(form["changes_below"], json!({"/a": 1}));
    // The names are those of Prometheus's text, which has every number.
    let text = metrics.to_string();
    // No disk is measured here.
    assert_eq!(form["disk_free_bytes"], serde_json::Value::Null);
    let known = || form.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    for (name, value) in known() {
        let line = match name.as_str() {
            "changes_below" => "quorate_znode_changes_total{below=\"/a\"} 1".to_owned(),
            "stale_by" => "quorate_stale_seconds ".to_owned(),
            "clock_ahead_ms" => "quorate_clock_ahead_seconds ".to_owned(),
            // One line for each reason, and no gateway is here.
            "gateway_connections_ended" => format!("# TYPE quorate_{name}_total counter"),
            // Four kinds of figures, by path.
            "recipes" => "# TYPE quorate_partitions_without_owner gauge".to_owned(),
            "certificates_expire" => "# TYPE quorate_certificate_expires_seconds gauge".to_owned(),
            _ if value.is_object() => {
                let keys: Vec<&str> =
                    value.as_object().unwrap().keys().map(String::as_str).collect();
                let expected = ["count", "max_us", "p50_us", "p99_us", "sum_us"];
                assert_eq!(BTreeSet::from_iter(keys), BTreeSet::from(expected), "{name}");
                format!("quorate_{name}_seconds_count {}", value["count"])
            }
            _ => match value.as_bool() {
                Some(is) => format!("quorate_{name} {}", u8::from(is)),
                None => value.to_string(),
            },
        };
        let of = |kind: &str| text.lines().any(|of| of == format!("quorate_{name}{kind} {line}"));
        let is_there = text.lines().any(|of| of.starts_with(&line)) || of("") || of("_total");
        assert!(is_there, "{name} {line}: {text}");
    }
    let kinds = text.lines().filter(|line| line.starts_with("# TYPE"));
    let of_recipes = form["recipes"].as_object().unwrap().len();
    assert_eq!(known().count() - 1 + of_recipes, kinds.count());
}

#[test]
fn recipes_and_recovery() {
    check(Phase::Voting, json!("voting"));
    check(Phase::Committed, json!("committed"));
    check(Phase::Aborted, json!("aborted"));
    check(Vote::Yes, json!("yes"));
    check(Vote::No, json!("no"));
    let metadata = json!({"zone": "north"});
    check(
        Instance::new("a", "10.0.0.7", 80).with("zone", "north"),
        json!({"id": "a", "address": "10.0.0.7", "port": 80, "metadata": metadata}),
    );

    let directory = tempfile::tempdir().unwrap();
    let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
    let mut backup = Cluster::new(1).node(0).backup(&file).wait().unwrap();
    backup.cluster = 0x2a;
    backup.time = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
    let form = json!({
        "cluster": "000000000000002a", "zxid": backup.zxid, "time": 1500,
        "znodes": backup.znodes, "sessions": backup.sessions, "version": backup.version,
        "bytes": backup.bytes, "key": null,
    });
    assert_eq!(to_value(&backup).unwrap(), form);

    let founded = Recovery::new().restore(&file, &dir, "10.0.0.1:7400").unwrap();
    let hex = |number: u64| format!("{number:016x}");
    let form = json!({
        "dir": dir, "cluster": hex(founded.cluster), "node": hex(founded.node),
        "address": "10.0.0.1:7400", "zxid": founded.zxid, "before": null,
    });
    assert_eq!(to_value(&founded).unwrap(), form);

    let plan = Recovery::new().recover([&dir]).unwrap();
    let inspection = &plan.best;
    let mut contents = inspection.contents.clone().unwrap();
    contents.committed_time = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1500));
    contents.learners = vec![7];
    let mut form = json!({
        "term": contents.term, "vote": hex(contents.vote), "commit": contents.commit,
        "last_index": contents.last_index, "last_term": contents.last_term,
        "committed_zxid": contents.committed_zxid, "committed_time": 1500,
        "zxid": contents.zxid, "znodes": contents.znodes, "sessions": contents.sessions,
        "voters": [hex(founded.node)], "learners": [hex(7)],
        "membership_changes": contents.membership_changes,
    });
    assert_eq!(to_value(&contents).unwrap(), form);
    contents.committed_time = None;
    form["committed_time"] = serde_json::Value::Null;
    assert_eq!(to_value(&contents).unwrap(), form);

    let form = json!({
        "dir": dir, "cluster": hex(founded.cluster), "node": hex(founded.node),
        "incarnation": hex(inspection.incarnation), "address": "10.0.0.1:7400",
        "removed": null, "damaged": null, "found_damaged": null,
        "contents": to_value(&inspection.contents).unwrap(), "part": null,
    });
    assert_eq!(to_value(inspection).unwrap(), form);
    let form = json!({"best": form, "others": [], "loss": "nothing"});
    assert_eq!(to_value(&plan).unwrap(), form);
    let loss = Loss::After { zxid: 7, time: Some(backup.time) };
    assert_eq!(to_value(loss).unwrap(), json!({"after": {"zxid": 7, "time": 1500}}));
}
