//! Searches, history, the ephemerals of a session, and the actions on the cluster.

use std::time::{Duration, UNIX_EPOCH};

use quorate::CreateMode;
use quorate::acl::{Acl, Id, Permissions};
use quorate::admin::Admin;
use quorate::quota::Quota;
use quorate::recipes::{Queue, Schedule, Timer};
use serde_json::{Value, json};

use crate::client::{TOKEN, get, send, served};

fn paths(found: &Value) -> Vec<&str> {
    let found = found["found"].as_array().unwrap().iter();
    found.map(|one| one["path"].as_str().unwrap()).collect()
}

#[test]
fn a_search_finds_paths_and_says_where_it_was_cut() {
    let (cluster, coordinator, admin) = served(1);
    let session = coordinator.session();
    for path in ["/app", "/app/Jobs", "/app/jobs-2", "/app/jobs-2/x", "/other", "/other/jobs"] {
        session.create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    let hidden = [Acl::new(Permissions::ALL, Id::new("digest", "bob:x"))];
    session.create_with_acl("/secret", b"", CreateMode::Persistent, &Acl::open()).wait().unwrap();
    session.create("/secret/jobs", b"", CreateMode::Persistent).wait().unwrap();
    session.set_acl("/secret", &hidden).wait().unwrap();

    let all = get(&admin, "/search?text=JOBS").json();
    assert_eq!(
        paths(&all),
        ["/app/Jobs", "/app/jobs-2", "/app/jobs-2/x", "/other/jobs"],
        "in any case, and nothing that is hidden"
    );
    assert_eq!((&all["cut"], &all["found"][0]["stat"]["version"]), (&json!(null), &json!(0)));
    assert_eq!(all["examined"], 12, "with / and the four of the system");
    let below = get(&admin, "/search?text=jobs&path=/other").json();
    assert_eq!((paths(&below), &below["examined"]), (vec!["/other/jobs"], &json!(2)));
    let cut = get(&admin, "/search?text=jobs&limit=3").json();
    assert_eq!((paths(&cut).len(), &cut["cut"]), (3, &json!("paths")));
    let whole = get(&admin, "/search?text=jobs&limit=4").json();
    assert_eq!((paths(&whole).len(), &whole["cut"]), (4, &json!(null)));

    for (target, status) in [
        ("/search", 400),
        ("/search?text=", 400),
        (&*format!("/search?text={}", "x".repeat(257)), 400),
        ("/search?text=x&path=app", 400),
        ("/search?text=x&limit=many", 400),
        ("/search?text=x&path=/none", 404),
        ("/search?text=x&path=/secret", 403),
    ] {
        assert_eq!(get(&admin, target).status, status, "{target}");
    }
    assert_eq!(send(&admin, "POST", "/search?text=x", "", b"").status, 405);
    let client = cluster.node(cluster.add_client());
    client.session().sync().wait().unwrap();
    let of_client = Admin::serve(&client, "127.0.0.1:0").unwrap();
    assert_eq!(get(&of_client, "/search?text=jobs").status, 501, "it has no replica");
}

#[test]
fn a_search_in_many_znodes_is_short() {
    let (_cluster, coordinator, admin) = served(1);
    let session = coordinator.session();
    session.create("/many", b"", CreateMode::Persistent).wait().unwrap();
    let pending = session;
    let create = |n: u32| pending.create(&format!("/many/{n:05}"), b"", CreateMode::Persistent);
    let created: Vec<_> = (0..2000).map(create).collect();
    created.into_iter().for_each(|created| drop(created.wait().unwrap()));
    let found = get(&admin, "/search?text=many/0&limit=999999").json();
    assert_eq!((paths(&found).len(), &found["cut"]), (1000, &json!("paths")));
    assert_eq!(paths(&get(&admin, "/search?text=many/0").json()).len(), 200);
}

#[test]
fn a_znode_comes_with_its_access_list_and_all_its_quotas() {
    let (_cluster, coordinator, admin) = served(1);
    let session = coordinator.session();
    session.create("/a", b"12", CreateMode::Persistent).wait().unwrap();
    session.create_with_acl("/a/b", b"", CreateMode::Persistent, &Acl::read_only()).wait().unwrap();
    session.set_quota("/a", &Quota::new().znodes_hard(7).bytes(100)).wait().unwrap();
    session.set_quota("/a/b", &Quota::new().bytes_hard(5)).wait().unwrap();
    let shown = get(&admin, "/tree/a/b").json();
    assert_eq!(shown["acl"], serde_json::to_value(Acl::read_only()).unwrap());
    let (nearest, above) = (&shown["quotas"][0], &shown["quotas"][1]);
    assert_eq!((&nearest["path"], &nearest["limits"]["bytes_hard"]), (&json!("/a/b"), &json!(5)));
    assert_eq!((&above["path"], &above["limits"]["znodes_hard"]), (&json!("/a"), &json!(7)));
    assert_eq!(above["usage"], json!({ "znodes": 2, "bytes": 2 }));
    assert_eq!(get(&admin, "/tree").json()["quotas"], json!([]));
}

/// The page and `/locks` have what `quorate locks` has, and the metrics what was found.
#[test]
fn timers_and_queues_are_shown_changed_and_counted() {
    let (_cluster, coordinator, admin) = served(1);
    let session = coordinator.session();
    let schedule = Schedule::new(&session, "/schedule").unwrap();
    schedule.set("report", &Timer::at(UNIX_EPOCH).unwrap()).wait().unwrap();
    Queue::new(&session, "/jobs").unwrap().put_all(["a", "b"]).wait().unwrap();
    let read_only = "/timers/schedule/report?do=pause";
    assert_eq!(send(&admin, "POST", read_only, "", b"").status, 405);

    let writable = Admin::builder().writable(true).serve(&coordinator, "127.0.0.1:0").unwrap();
    let shown = get(&writable, "/locks").json();
    assert_eq!((&shown[0]["recipe"], &shown[1]["path"]), (&json!("queue"), &json!("/schedule")));
    assert_eq!(shown[0]["table"]["rows"][0]["waiting"], 2);
    let columns = &shown[1]["table"]["columns"];
    assert_eq!(columns[2], json!({ "name": "next", "kind": "due" }));
    assert_eq!(
        shown[1]["table"]["rows"],
        json!([{
            "timer": "report", "fires": "at 1970-01-01 00:00:00 UTC", "next": 0,
        }])
    );
    let metrics = coordinator.metrics().wait().unwrap();
    assert_eq!(metrics.recipes.queue_items["/jobs"], 2);
    assert!(metrics.recipes.timers_late["/schedule"] > 86_400, "{metrics}");
    let line = "\nquorate_queue_items{path=\"/jobs\"} 2\n";
    assert!(metrics.to_string().contains(line), "{metrics}");

    let act = |what: &str| {
        let target = format!("/timers/schedule/report?do={what}");
        assert_eq!(send(&writable, "POST", &target, "", b"").status, 200, "{what}");
    };
    act("pause");
    assert!(schedule.get("report").wait().unwrap().unwrap().is_paused);
    act("fire");
    assert!(schedule.take().wait().unwrap().fire().is_requested());
    act("resume");
    assert!(!schedule.get("report").wait().unwrap().unwrap().is_paused);
    for (method, target, status) in [
        ("POST", "/timers/schedule/report?do=else", 400),
        ("POST", "/timers/schedule/none?do=pause", 404),
        ("GET", "/timers/schedule/report?do=pause", 405),
    ] {
        assert_eq!(send(&writable, method, target, "", b"").status, status, "{method} {target}");
    }
}

#[test]
fn the_history_has_a_sample_for_each_period() {
    let (cluster, coordinator, admin) = served(1);
    let length = |history: &Value| history["time"].as_array().unwrap().len();
    let first = get(&admin, "/history").json();
    assert!(length(&first) >= 1 && first["samples_max"] == 720);
    assert_eq!(first["leader"][0], json!(coordinator.address()));
    let period = Duration::from_millis(first["period_ms"].as_u64().unwrap());
    let before = length(&first);
    // More often than once in a period, nothing is added.
    assert_eq!(length(&get(&admin, "/history").json()), before);
    coordinator.session().create("/a", b"", CreateMode::Persistent).wait().unwrap();
    cluster.advance(period);
    let second = get(&admin, "/history").json();
    assert!(length(&second) > before);
    let last = length(&second) - 1;
    assert!(
        second["disk_sync_p99_us"][last].is_u64()
            && second["zxid"][last].as_u64() > first["zxid"][0].as_u64()
    );
    for name in ["leader", "zxid", "commit_p99_us", "stale_by_ms", "sessions", "znodes"] {
        assert_eq!(second[name].as_array().unwrap().len(), length(&second), "{name}");
    }
    let after = second["time"][last - 1].as_u64().unwrap();
    assert_eq!(
        get(&admin, &format!("/history?after={after}")).json()["time"],
        json!([second["time"][last]])
    );
    assert_eq!(get(&admin, "/history?after=x").status, 400);
    coordinator.close().wait().unwrap();
    assert_eq!(get(&admin, "/history").status, 200, "it is there after the end, too");
}

#[test]
fn a_session_comes_with_its_ephemerals_and_can_be_expired() {
    let (cluster, coordinator, admin) = served(1);
    let other = coordinator.open_session().unwrap();
    coordinator.session().create("/a", b"", CreateMode::Persistent).wait().unwrap();
    for n in 0..3 {
        other.create(&format!("/a/{n}"), b"", CreateMode::Ephemeral).wait().unwrap();
    }
    let target = format!("/sessions/{}", other.id());
    let shown = get(&admin, &target).json();
    assert_eq!(shown["ephemerals"], json!(["/a/0", "/a/1", "/a/2"]));
    assert_eq!((&shown["count"], &shown["more"]), (&json!(3), &json!(false)));
    for (target, status) in [
        ("/sessions/0x00000000000000aa", 404),
        ("/sessions/0x1", 400),
        ("/sessions/1", 400),
        ("/sessions/", 400),
    ] {
        assert_eq!(get(&admin, target).status, status, "{target}");
    }
    assert_eq!(send(&admin, "DELETE", &target, "", b"").status, 405, "it is read-only");
    assert!(other.is_alive());

    let admin = Admin::builder().writable(true).serve(&coordinator, "127.0.0.1:0").unwrap();
    let foreign = "Origin: http://evil.example\r\n";
    assert_eq!(send(&admin, "DELETE", &target, foreign, b"").status, 403);
    assert_eq!(send(&admin, "DELETE", &target, "", b"body").status, 400);
    assert_eq!(send(&admin, "POST", &target, "", b"").status, 405);
    assert_eq!(send(&admin, "DELETE", "/sessions/0x00000000000000aa", "", b"").status, 404);
    let expired = send(&admin, "DELETE", &target, "", b"");
    assert_eq!((expired.status, &expired.json()["expired"]), (200, &json!(other.id())));
    assert_eq!(get(&admin, "/tree/a").json()["children"], json!([]));
    assert_eq!(get(&admin, &target).status, 404);
    drop(cluster);
}

/// The ephemerals of a session showed paths below a znode that hides its children, and a search did not.
#[test]
fn what_is_hidden_from_a_search_is_hidden_among_the_ephemerals_of_a_session() {
    let (_cluster, coordinator, admin) = served(1);
    let owner = coordinator.open_session().unwrap();
    for path in ["/open", "/hidden", "/hidden/below"] {
        owner.create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    let nobody = [Acl::new(Permissions::ALL, Id::new("digest", "bob:x"))];
    for path in ["/open/job", "/hidden/job", "/hidden/below/job"] {
        owner.create(path, b"", CreateMode::Ephemeral).wait().unwrap();
    }
    owner.create_with_acl("/open/own-job", b"", CreateMode::Ephemeral, &nobody).wait().unwrap();
    let ephemerals = || {
        let shown = get(&admin, &format!("/sessions/{}", owner.id())).json();
        let list = |name: &str| shown[name].as_array().unwrap().clone();
        assert_eq!(shown["count"], 4, "all are counted");
        list("ephemerals").iter().map(|path| path.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let found = || {
        let found = get(&admin, "/search?text=job").json();
        paths(&found).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let all = ["/hidden/below/job", "/hidden/job", "/open/job"];
    assert_eq!(
        (ephemerals(), found()),
        (all.map(str::to_owned).to_vec(), all.map(str::to_owned).to_vec())
    );
    coordinator.session().set_acl("/hidden", &nobody).wait().unwrap();
    assert_eq!(
        (ephemerals(), found()),
        (vec!["/open/job".to_owned()], vec!["/open/job".to_owned()])
    );
    // By its path it can be read, for who knows that.
    assert_eq!(get(&admin, "/tree/hidden/job").status, 200);
}

#[test]
fn the_lead_is_moved_and_a_dead_member_removed_only_where_that_is_allowed() {
    let (cluster, coordinator, read_only) = served(3);
    coordinator.session().sync().wait().unwrap();
    let here = coordinator.address();
    for (method, target) in
        [("POST", format!("/leader?to={here}")), ("DELETE", format!("/members/{here}"))]
    {
        let refused = send(&read_only, method, &target, "", b"");
        assert_eq!(refused.status, 405);
        assert!(refused.json()["error"].as_str().unwrap().contains("read-only"));
    }
    let builder = Admin::builder().writable(true).token(TOKEN);
    let admin = builder.serve(&coordinator, "127.0.0.1:0").unwrap();
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let act = |method: &str, target: &str| send(&admin, method, target, &token, b"");
    assert_eq!(send(&admin, "POST", &format!("/leader?to={here}"), "", b"").status, 401);
    for (method, target, status) in [
        ("POST", "/leader".to_owned(), 400),
        ("POST", "/leader?to=".to_owned(), 400),
        ("GET", "/leader".to_owned(), 405),
        ("POST", "/leader?to=10.9.9.9:1".to_owned(), 409),
        ("DELETE", "/members/10.9.9.9:1".to_owned(), 409),
        ("DELETE", format!("/members/{here}"), 409),
        ("GET", format!("/members/{here}"), 405),
        ("DELETE", "/members/%zz".to_owned(), 400),
    ] {
        let answer = act(method, &target);
        assert_eq!(answer.status, status, "{method} {target}: {}", answer.json());
    }
    for number in [1, 2] {
        let to = cluster.node(number).address();
        assert_eq!(act("POST", &format!("/leader?to={to}")).json(), json!({ "leader": to }));
        assert_eq!(cluster.leader(), Some(number));
    }
}

/// Each element that the page's scripts ask for by its id is in the page, and each script has its place.
#[test]
fn the_page_has_every_element_that_its_scripts_use() {
    let (_cluster, _, admin) = served(1);
    let page = String::from_utf8(get(&admin, "/").body).unwrap();
    let ids: Vec<&str> = page
        .split("$('")
        .skip(1)
        .filter_map(|rest| rest.split_once("')"))
        .map(|one| one.0)
        .collect();
    assert!(ids.len() > 20, "the scripts ask for elements by $('id')");
    for id in ids {
        assert!(page.contains(&format!("id=\"{id}\"")), "there is no element {id}");
    }
    for view in ["cluster", "tree", "locks", "sessions"] {
        assert!(page.contains(&format!("id=\"tab-{view}\"")), "{view}");
    }
}
