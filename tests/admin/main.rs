//! The admin endpoint, as raw bytes over sockets.

#[path = "../common/mod.rs"]
mod common;

mod client;
#[cfg(unix)]
mod fork;
mod hostile;
mod operations;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use quorate::CreateMode;
use quorate::acl::{Acl, Id, Permissions};
use quorate::admin::Admin;
use quorate::testing::Cluster;
use serde_json::{Value, json};

use client::{TOKEN, answer, connect, get, raw, send, served};

#[test]
fn it_shows_what_the_library_shows() {
    let (_cluster, coordinator, admin) = served(3);
    let session = coordinator.session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    session.create("/a/b", [0xff, 0], CreateMode::Ephemeral).wait().unwrap();
    let _guard = session.lock("/jobs").unwrap().acquire().wait().unwrap();

    let shown = get(&admin, "/status").json();
    let mut expected = serde_json::to_value(coordinator.status()).unwrap();
    for name in ["address", "leader", "term", "members", "znodes", "state_hash", "zxid"] {
        assert_eq!(shown[name], expected[name].take(), "{name}");
    }
    assert_eq!(shown["availability"], json!({ "healthy": { "spare": 1 } }));
    assert_eq!(shown["ready"], true);

    let shown = get(&admin, "/members").json();
    let reports = coordinator.reports().wait().unwrap();
    assert_eq!(shown["leader"], json!(coordinator.status().leader));
    assert_eq!(shown["members"].as_array().unwrap().len(), reports.len());
    for (shown, report) in shown["members"].as_array().unwrap().iter().zip(&reports) {
        assert_eq!(shown["address"], report.address);
        assert_eq!(shown["role"], serde_json::to_value(report.role).unwrap());
        assert_eq!(shown["lag"], json!(report.lag));
    }

    let locks = get(&admin, "/locks").json();
    assert_eq!((&locks[0]["path"], &locks[0]["recipe"]), (&json!("/jobs"), &json!("lock")));
    assert_eq!(locks[0]["holders"][0]["session"], json!(session.id()));
    assert_eq!(get(&admin, "/locks?path=/a").json(), json!([]));
    assert_eq!(get(&admin, "/locks?path=/none").status, 404);

    let sessions = get(&admin, "/sessions").json();
    let own = sessions["sessions"].as_array().unwrap().iter();
    let own = own.filter(|info| info["id"] == json!(session.id())).collect::<Vec<_>>();
    assert_eq!((own.len(), &own[0]["ephemerals"]), (1, &json!(2)));

    let znode = get(&admin, "/tree/a").json();
    assert_eq!(znode["data"], json!({ "text": "1" }));
    assert_eq!(znode["stat"], serde_json::to_value(session.exists("/a").wait().unwrap()).unwrap());
    assert_eq!(znode["children"], json!(["b"]));
    assert_eq!(get(&admin, "/tree/a/b").json()["data"], json!({ "base64": "/wA=" }));
    let data = get(&admin, "/tree/a/b?raw");
    assert_eq!(
        (data.body.as_slice(), data.header("content-disposition")),
        (&[0xff, 0][..], Some("attachment"))
    );
    assert_eq!(get(&admin, "/tree/none").status, 404);
    for root in ["/tree", "/tree/"] {
        assert_eq!(get(&admin, root).json()["children"], json!(["a", "jobs", "zookeeper"]));
    }

    let metrics = get(&admin, "/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(metrics.body).unwrap();
    assert!(
        text.contains(&format!(
            "\nquorate_znodes {}\n",
            coordinator.metrics().wait().unwrap().znodes.unwrap()
        )),
        "{text}"
    );

    let head =
        raw(&admin, format!("HEAD /live HTTP/1.0\r\nHost: {}\r\n\r\n", admin.address()).as_bytes());
    assert_eq!((head.status, head.header("connection")), (200, Some("close")));
}

/// The page could not open a znode with `:`, `@`, `,`, `=`, `&`, `+`, `;`, `$`, `#` or `?` in its path: it had two encodings.
#[test]
fn a_znode_is_found_whatever_its_name() {
    let (_cluster, coordinator, admin) = served(1);
    let session = coordinator.session();
    let characters: String = (' '..='~').filter(|letter| *letter != '/').collect();
    let each = characters.chars().map(|letter| format!("a{letter}b"));
    // As the page's `encodeURIComponent`.
    let encoded = |name: &str| -> String {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(byte);
        let shown = |byte: u8| match plain(&byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        name.bytes().map(shown).collect()
    };
    for name in each.chain([characters.clone(), "10.0.0.1:7400".to_owned(), "\u{e4}%25".to_owned()])
    {
        session
            .create(&format!("/{name}"), name.as_bytes(), CreateMode::Persistent)
            .wait()
            .unwrap();
        let shown = get(&admin, &format!("/tree/{}", encoded(&name)));
        assert_eq!(shown.json()["data"], json!({ "text": name }), "{name}");
        let found = get(&admin, &format!("/search?text={}", encoded(&name))).json();
        let found = found["found"].as_array().unwrap().iter();
        assert!(found.clone().any(|it| it["path"] == format!("/{name}")), "{name}");
    }
    // The page has one pair of functions for that, which are inverse to each other.
    let page = String::from_utf8(get(&admin, "/").body).unwrap();
    assert!(page.contains("encodeURIComponent") && page.contains("decodeURIComponent"));
    assert!(!page.contains("encodeURI(") && !page.contains("decodeURI("));
}

#[test]
fn members_report_where_their_endpoints_are() {
    let (cluster, coordinator, admin) = served(3);
    let other = cluster.node(1);
    let session = other.session();
    let reported = || {
        // Its node takes its calls in their order.
        session.sync().wait().unwrap();
        let reports = coordinator.reports().wait().unwrap();
        [coordinator.address(), other.address()].map(|address| {
            let member = reports.iter().find(|member| member.address == address);
            let member = member.unwrap_or_else(|| panic!("no {address} among {reports:?}"));
            member.state.as_ref().expect("it reports").admin.clone()
        })
    };
    let own = Some(admin.address().to_string());
    assert_eq!(reported(), [own.clone(), None]);

    // One that listens on all addresses is at the host by which the others know its member.
    let open = Admin::builder().token("not-much-of-a-secret").serve(&other, "0.0.0.0:0").unwrap();
    let address = other.address(); // Without a port, in memory.
    let at_its_host = Some(format!("{address}:{}", open.address().port()));
    assert_eq!(reported(), [own.clone(), at_its_host.clone()]);
    let newer = Admin::serve(&other, "127.0.0.1:0").unwrap();
    assert_eq!(reported(), [own.clone(), Some(newer.address().to_string())]);
    let shown = get(&admin, "/members").json();
    let shown = shown["members"].as_array().unwrap().iter().map(|member| &member["state"]["admin"]);
    assert!(shown.filter(|admin| **admin == json!(newer.address())).count() == 1);

    drop(newer);
    assert_eq!(reported(), [own.clone(), at_its_host]);
    drop(open);
    assert_eq!(reported(), [own, None]);
}

#[test]
fn children_come_in_pages_and_hidden_ones_without_a_stat() {
    for is_client in [false, true] {
        let cluster = Cluster::new(1);
        let coordinator = cluster.node(if is_client { cluster.add_client() } else { 0 });
        let session = coordinator.session();
        let admin = Admin::builder().auth("digest", "ann:secret");
        let admin = admin.serve(&coordinator, "127.0.0.1:0").unwrap();
        session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
        for name in ["1", "2 2", "ä", "ü%"] {
            session.create(&format!("/a/{name}"), name, CreateMode::Persistent).wait().unwrap();
        }
        let of = |user: &str| [Acl::new(Permissions::ALL, Id::new("digest", user))];
        session.add_auth("digest", "ann:secret").wait().unwrap();
        session
            .create_with_acl("/ann", b"hers", CreateMode::Persistent, &own(&session))
            .wait()
            .unwrap();
        session
            .create_with_acl("/bob", b"his", CreateMode::Persistent, &of("bob:x"))
            .wait()
            .unwrap();

        let first = get(&admin, "/tree/a?children&limit=2");
        assert_eq!(
            (first.names(), &first.json()["next"]),
            (vec!["1".to_owned(), "2 2".to_owned()], &json!("2 2"))
        );
        let rest = get(&admin, "/tree/a?children&limit=2&after=2%202");
        assert_eq!(
            (rest.names(), &rest.json()["next"]),
            (vec!["ä".to_owned(), "ü%".to_owned()], &json!(null))
        );
        assert_eq!(get(&admin, "/tree/a/%C3%BC%25").json()["data"], json!({ "text": "ü%" }));
        assert_eq!(get(&admin, "/tree/ann").json()["data"], json!({ "text": "hers" }));
        let hidden = get(&admin, "/tree/bob");
        assert!(hidden.status == 403 && hidden.json()["error"].as_str().unwrap().contains("READ"));
        let all = get(&admin, "/tree?children").json();
        let bob = all["children"].as_array().unwrap().iter().find(|child| child["name"] == "bob");
        assert_eq!(bob.unwrap()["stat"], json!(null));
    }
}

/// The access list with a session's own id.
fn own(session: &quorate::Session) -> Vec<Acl> {
    let ids = session.who_am_i().wait().unwrap().into_iter();
    ids.filter(|id| id.to_string().starts_with("digest:"))
        .map(|id| Acl::new(Permissions::ALL, id))
        .collect()
}

#[test]
fn changes_are_made_only_where_they_are_allowed() {
    let (_cluster, coordinator, admin) = served(1);
    for method in ["PUT", "POST", "DELETE"] {
        let refused = send(&admin, method, "/tree/a", "", b"");
        assert!(
            refused.status == 405
                && refused.json()["error"].as_str().unwrap().contains("read-only")
        );
    }
    assert_eq!(send(&admin, "POST", "/status", "", b"").status, 405);
    drop(admin);

    let session = coordinator.session();
    let admin = Admin::builder().writable(true).serve(&coordinator, "127.0.0.1:0").unwrap();
    let created = send(&admin, "POST", "/tree/a", "", b"1");
    assert_eq!((created.status, &created.json()["path"]), (201, &json!("/a")));
    let numbered = send(&admin, "POST", "/tree/a/n-?mode=persistent_sequential", "", b"");
    assert_eq!(numbered.json()["path"], "/a/n-0000000000");
    assert_eq!(send(&admin, "PUT", "/tree/a?version=0", "", b"2").json()["version"], 1);
    assert_eq!(&session.get("/a").wait().unwrap().0[..], b"2");
    for (method, target, body, status) in [
        ("POST", "/tree/a", "", 409),
        ("POST", "/tree/none/a", "", 404),
        ("POST", "/tree/b?mode=ephemeral", "", 400),
        ("PUT", "/tree/a?version=0", "", 409),
        ("PUT", "/tree/a?version=x", "", 400),
        ("PUT", "/tree/a?version=1&version=2", "", 400),
        ("DELETE", "/tree/a", "", 409),
        ("DELETE", "/tree/zookeeper", "", 403),
        ("DELETE", "/tree/a/n-0000000000", "body", 400),
        ("GET", "/tree/a", "body", 400),
    ] {
        let refused = send(&admin, method, target, "", body.as_bytes());
        assert_eq!(refused.status, status, "{method} {target}: {}", refused.json());
    }
    assert_eq!(send(&admin, "PUT", "/tree/a", "", &vec![b'x'; (1 << 20) + 1]).status, 413);
    assert_eq!(send(&admin, "DELETE", "/tree/a/n-0000000000?version=0", "", b"").status, 200);
    assert_eq!(session.children("/a").wait().unwrap(), [""; 0]);
}

#[test]
fn a_backup_is_whole_and_needs_a_token() {
    let (cluster, coordinator, admin) = served(1);
    assert_eq!(get(&admin, "/backup").status, 403);
    coordinator.session().create("/a", vec![7; 500_000], CreateMode::Persistent).wait().unwrap();
    let admin = Admin::builder().token(TOKEN).serve(&coordinator, "127.0.0.1:0").unwrap();
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let asked = format!("HEAD /backup HTTP/1.0\r\nHost: localhost\r\n{token}\r\n");
    assert_eq!(raw(&admin, asked.as_bytes()).status, 405);
    let client = cluster.node(cluster.add_client());
    client.session().sync().wait().unwrap();
    let of_client = Admin::builder().token(TOKEN).serve(&client, "127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    for admin in [&admin, &admin, &of_client] {
        let answer = send(admin, "GET", "/backup", &token, b"");
        assert_eq!(answer.status, 200);
        std::fs::write(&file, &answer.body).unwrap();
        let backup = quorate::recovery::Recovery::new().verify(&file).unwrap();
        assert_eq!(answer.header("quorate-zxid"), Some(backup.zxid.to_string().as_str()));
        assert!(backup.zxid >= coordinator.session().exists("/a").wait().unwrap().unwrap().czxid);
    }
}

/// The next event of a stream, with its name.
fn next(stream: &mut BufReader<TcpStream>) -> (String, Value) {
    let (mut line, mut name) = (String::new(), String::new());
    loop {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream has ended");
        if let Some(of) = line.strip_prefix("event: ") {
            name = of.trim_end().to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            return (name, serde_json::from_str(data).unwrap());
        }
    }
}

/// The next event with this name.
fn event(stream: &mut BufReader<TcpStream>, name: &str) -> Value {
    std::iter::repeat_with(|| next(stream)).find(|(of, _)| of == name).unwrap().1
}

fn listen(admin: &Admin) -> BufReader<TcpStream> {
    let mut stream = connect(admin.address());
    write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut stream = BufReader::new(stream);
    let answer = answer(&mut stream);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    stream
}

#[test]
fn event_streams_show_changes_and_a_new_leader() {
    let (cluster, coordinator, _) = served(3);
    let leader = cluster.leader().unwrap();
    let here = cluster.node((leader + 1) % 3);
    let admin = Admin::serve(&here, "127.0.0.1:0").unwrap();
    let mut stream = listen(&admin);
    // They come from two threads, in any order.
    let mut first = Value::Null;
    let mut is_watching = false;
    while first.is_null() || !is_watching {
        match next(&mut stream) {
            (name, value) if name == "state" => first = value,
            (name, _) => is_watching |= name == "watching",
        }
    }
    let old = first["status"]["leader"].clone();
    assert_eq!(first["reports"]["members"].as_array().unwrap().len(), 3);
    assert!(old.is_string() && first["metrics"]["znodes"].is_u64());
    drop(coordinator);
    let created = here.session().create("/seen", b"", CreateMode::Persistent).wait().unwrap();
    let mut seen = event(&mut stream, "changes").as_array().unwrap().clone();
    while !seen.iter().any(|change| change["path"] == "/seen") {
        seen.extend(event(&mut stream, "changes").as_array().unwrap().iter().cloned());
    }
    let change = seen.iter().find(|change| change["path"] == "/seen").unwrap();
    assert_eq!((&change["kind"], &change["zxid"]), (&json!("created"), &json!(created.stat.czxid)));

    cluster.stop(leader);
    cluster.advance(Duration::from_secs(5));
    loop {
        let state = event(&mut stream, "state");
        let new = &state["reports"]["leader"];
        if new.is_string() && *new != old {
            let silent = state["reports"]["members"].as_array().unwrap().iter();
            assert_eq!(silent.filter(|member| member["is_silent"] == true).count(), 1);
            break;
        }
    }
}

#[test]
fn the_number_of_event_streams_is_bounded() {
    let (_cluster, _, admin) = served(1);
    let _streams: Vec<_> = (0..32).map(|_| listen(&admin)).collect();
    assert_eq!(get(&admin, "/events").status, 503);
    assert_eq!(get(&admin, "/status").status, 200);
}

#[test]
fn it_answers_without_a_quorum_and_after_the_end() {
    let (cluster, coordinator, admin) = served(3);
    assert_eq!([get(&admin, "/health").status, get(&admin, "/ready").status], [200, 200]);
    coordinator.session().create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    assert_eq!(get(&admin, "/tree/a").status, 200);
    for other in [1, 2] {
        cluster.stop(other);
    }
    cluster.advance(Duration::from_secs(30));
    assert_eq!([get(&admin, "/health").status, get(&admin, "/ready").status], [503, 503]);
    assert_eq!(get(&admin, "/live").status, 200);
    assert!(
        get(&admin, "/status").json()["availability"]["no_quorum"]["reason"]["text"].is_string()
    );
    let members = get(&admin, "/members").json();
    assert!(members["leader"].is_null() && members["members"].as_array().unwrap().len() == 3);
    assert_eq!(get(&admin, "/metrics").status, 200);

    // The endpoint's session is lost, and it opens another one.
    for other in [1, 2] {
        cluster.restart(other);
    }
    cluster.advance(Duration::from_secs(60));
    while get(&admin, "/tree/a").status != 200 {
        cluster.advance(Duration::from_secs(1));
    }

    coordinator.close().wait().unwrap();
    assert_eq!([get(&admin, "/live").status, get(&admin, "/health").status], [503, 503]);
    assert!(get(&admin, "/status").json()["stopped"].is_string());
    assert_eq!(get(&admin, "/tree/a").status, 503);
    let address = admin.address();
    drop(admin);
    assert!(TcpStream::connect(address).is_err());
}
