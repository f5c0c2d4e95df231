//! The admin endpoint, as raw bytes over sockets.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quorate::admin::Admin;
use quorate::testing::Cluster;
use quorate::{Acl, Coordinator, CreateMode, Error, Id, Permissions};
use serde_json::{Value, json};

const TOKEN: &str = "a-token-of-some-length";
/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("it is JSON")
    }

    fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        self.head.lines().find(|line| of(line)).map(|line| line[name.len() + 1..].trim())
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The next answer of a connection.
fn answer(stream: &mut BufReader<TcpStream>) -> Answer {
    let mut answer = head(stream);
    if let Some(length) = answer.header("content-length") {
        answer.body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut answer.body).unwrap();
    }
    answer
}

/// The same without its body.
fn head(stream: &mut BufReader<TcpStream>) -> Answer {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "it ends after {head:?}");
    }
    Answer { status: head[9..12].parse().unwrap(), head, body: Vec::new() }
}

/// What bytes are answered with.
fn raw(admin: &Admin, bytes: &[u8]) -> Answer {
    let mut stream = connect(admin.address());
    // It may close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut stream = BufReader::new(stream);
    if bytes.starts_with(b"HEAD ") {
        let answer = head(&mut stream);
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "a HEAD has an answer without a body");
        return answer;
    }
    answer(&mut stream)
}

fn send(admin: &Admin, method: &str, target: &str, headers: &str, body: &[u8]) -> Answer {
    let address = admin.address();
    let mut bytes = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    raw(admin, &bytes)
}

fn get(admin: &Admin, target: &str) -> Answer {
    send(admin, "GET", target, "", b"")
}

/// A cluster in memory that has settled, and an endpoint of one of its members.
fn served(nodes: usize) -> (Cluster, Coordinator, Admin) {
    let cluster = Cluster::new(nodes);
    let coordinator = cluster.node(0);
    coordinator.wait_ready(PATIENCE).unwrap();
    let admin = Admin::serve(&coordinator, "127.0.0.1:0").unwrap();
    (cluster, coordinator, admin)
}

#[test]
fn it_shows_what_the_library_shows() {
    let (_cluster, coordinator, admin) = served(3);
    let session = coordinator.session();
    session.create("/a", b"1", CreateMode::Persistent).unwrap();
    session.create("/a/b", [0xff, 0], CreateMode::Ephemeral).unwrap();
    let _guard = session.lock("/jobs").unwrap().acquire().unwrap();

    let shown = get(&admin, "/status").json();
    let mut expected = serde_json::to_value(coordinator.status()).unwrap();
    for name in ["address", "leader", "term", "members", "znodes", "state_hash", "zxid"] {
        assert_eq!(shown[name], expected[name].take(), "{name}");
    }
    assert_eq!(shown["availability"], json!({ "healthy": { "spare": 1 } }));
    assert_eq!(shown["ready"], true);

    let shown = get(&admin, "/members").json();
    let reports = coordinator.reports().unwrap();
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
    assert_eq!(znode["stat"], serde_json::to_value(session.exists("/a").unwrap()).unwrap());
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
        text.contains(&format!("\nquorate_znodes {}\n", coordinator.metrics().znodes)),
        "{text}"
    );

    let head =
        raw(&admin, format!("HEAD /live HTTP/1.0\r\nHost: {}\r\n\r\n", admin.address()).as_bytes());
    assert_eq!((head.status, head.header("connection")), (200, Some("close")));
}

impl Answer {
    /// The names of the children in it.
    fn names(&self) -> Vec<String> {
        let of = |child: &Value| child["name"].as_str().unwrap().to_owned();
        self.json()["children"].as_array().unwrap().iter().map(of).collect()
    }
}

#[test]
fn children_come_in_pages_and_hidden_ones_without_a_stat() {
    for is_client in [false, true] {
        let cluster = Cluster::new(1);
        let coordinator = cluster.node(if is_client { cluster.add_client() } else { 0 });
        let session = coordinator.session();
        let admin = Admin::builder().auth("digest", "ann:secret");
        let admin = admin.serve(&coordinator, "127.0.0.1:0").unwrap();
        session.create("/a", b"", CreateMode::Persistent).unwrap();
        for name in ["1", "2 2", "ä", "ü%"] {
            session.create(&format!("/a/{name}"), name, CreateMode::Persistent).unwrap();
        }
        let of = |user: &str| [Acl::new(Permissions::ALL, Id::new("digest", user))];
        session.add_auth("digest", "ann:secret").unwrap();
        session.create_with_acl("/ann", b"hers", CreateMode::Persistent, &own(&session)).unwrap();
        session.create_with_acl("/bob", b"his", CreateMode::Persistent, &of("bob:x")).unwrap();

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

/// The list of a session's own id.
fn own(session: &quorate::Session) -> Vec<Acl> {
    let ids = session.who_am_i().unwrap().into_iter();
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
    assert_eq!(&session.get("/a").unwrap().0[..], b"2");
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
    assert_eq!(session.children("/a").unwrap(), [""; 0]);
}

#[test]
fn requests_of_other_sites_are_refused() {
    let (_cluster, _, admin) = served(1);
    let own = format!("http://{}", admin.address());
    for (headers, status) in [
        (format!("Origin: {own}\r\nSec-Fetch-Site: same-origin\r\n"), 200),
        ("Sec-Fetch-Site: none\r\n".to_owned(), 200),
        ("Sec-Fetch-Site: cross-site\r\n".to_owned(), 403),
        // Another port of the same host.
        ("Sec-Fetch-Site: same-site\r\n".to_owned(), 403),
        ("Origin: http://evil.example\r\n".to_owned(), 403),
        ("Origin: null\r\n".to_owned(), 403),
        (format!("Origin: {own}.evil.example\r\n"), 403),
    ] {
        assert_eq!(send(&admin, "GET", "/status", &headers, b"").status, status, "{headers}");
    }
    assert_eq!(
        send(&admin, "GET", "/", "Sec-Fetch-Site: cross-site\r\n", b"").status,
        200,
        "a link"
    );
    for (host, status) in [
        ("localhost:7480", 200),
        ("[::1]:7480", 200),
        ("127.0.0.1", 200),
        ("evil.example", 403),
        ("evil.example:7480", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.1:7480", 403),
        ("", 403),
    ] {
        let asked = format!("GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(raw(&admin, asked.as_bytes()).status, status, "{host}");
    }
    // The answer gives no other site a way in, either.
    let page = get(&admin, "/");
    assert!(page.header("access-control-allow-origin").is_none());
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    let text = String::from_utf8(page.body).unwrap();
    assert!(!text.contains("{{") && !text.contains("https://"), "it loads nothing from elsewhere");
}

#[test]
fn a_token_is_needed_where_others_can_reach_it() {
    let cluster = Cluster::new(1);
    let coordinator = cluster.node(0);
    let refused = Admin::serve(&coordinator, "0.0.0.0:0").unwrap_err();
    assert!(
        matches!(&refused, Error::InvalidSetting { .. }) && refused.to_string().contains("token")
    );
    for weak in ["", "short", "with spaces in it, and long"] {
        let refused = Admin::builder().token(weak).serve(&coordinator, "127.0.0.1:0");
        assert!(matches!(refused, Err(Error::InvalidSetting { .. })), "{weak}");
    }
    let admin = Admin::builder().token(TOKEN).serve(&coordinator, "127.0.0.1:0").unwrap();
    for open in ["/", "/health", "/ready", "/live"] {
        assert_ne!(get(&admin, open).status, 401, "{open}");
    }
    let of = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for (headers, status) in [
        (String::new(), 401),
        (of("another-token-of-its-length"), 401),
        (of(&TOKEN[1..]), 401),
        (of(&format!("{TOKEN}x")), 401),
        (format!("Authorization: Basic {TOKEN}\r\n"), 401),
        (of(TOKEN), 200),
        (format!("authorization: bearer {TOKEN}\r\n"), 200),
        (of(TOKEN) + &of(TOKEN), 400),
    ] {
        for target in ["/status", "/tree", "/metrics"] {
            assert_eq!(send(&admin, "GET", target, &headers, b"").status, status, "{headers}");
        }
    }
    let asked = format!("GET /status HTTP/1.1\r\nHost: quorate.example\r\n{}\r\n", of(TOKEN));
    assert_eq!(raw(&admin, asked.as_bytes()).status, 200, "behind a proxy");
}

#[test]
fn a_backup_is_whole_and_needs_a_token() {
    let (cluster, coordinator, admin) = served(1);
    assert_eq!(get(&admin, "/backup").status, 403);
    coordinator.session().create("/a", vec![7; 500_000], CreateMode::Persistent).unwrap();
    let admin = Admin::builder().token(TOKEN).serve(&coordinator, "127.0.0.1:0").unwrap();
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let asked = format!("HEAD /backup HTTP/1.0\r\nHost: localhost\r\n{token}\r\n");
    assert_eq!(raw(&admin, asked.as_bytes()).status, 405);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    for _ in 0..2 {
        let answer = send(&admin, "GET", "/backup", &token, b"");
        assert_eq!(answer.status, 200);
        std::fs::write(&file, &answer.body).unwrap();
        let backup = quorate::recovery::verify(&file).unwrap();
        assert_eq!(answer.header("quorate-zxid"), Some(backup.zxid.to_string().as_str()));
        assert!(backup.zxid >= coordinator.session().exists("/a").unwrap().unwrap().czxid);
    }
    let client = cluster.node(cluster.add_client());
    client.session().sync().unwrap();
    let admin = Admin::builder().token(TOKEN).serve(&client, "127.0.0.1:0").unwrap();
    assert_eq!(send(&admin, "GET", "/backup", &token, b"").status, 501);
}

#[test]
fn what_is_no_request_is_refused() {
    let (_cluster, _, admin) = served(1);
    let host = format!("Host: {}\r\n", admin.address());
    let long = |length: usize| "x".repeat(length);
    for (request, status) in [
        (format!("GET /status HTTP/1.1\r\n{host}X: {}\r\n\r\n", long(20_000)), 431),
        (format!("GET /{} HTTP/1.1\r\n{host}\r\n", long(40_000)), 431),
        (format!("GET / HTTP/1.1\r\n{host}{}\r\n", "X: 1\r\n".repeat(100)), 431),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400),
        (format!("OPTIONS / HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("GET http://evil.example/ HTTP/1.1\r\n{host}\r\n"), 400),
        (
            format!(
                "PUT /tree/a HTTP/1.1\r\n{host}Content-Length: 99999999999999999999999\r\n\r\n"
            ),
            413,
        ),
        (format!("PUT /tree/a HTTP/1.1\r\n{host}Content-Length: 3000000\r\n\r\n"), 413),
        (format!("PUT /tree/a HTTP/1.1\r\n{host}Content-Length: -1\r\n\r\n"), 400),
        (
            format!("PUT /tree/a HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            400,
        ),
        (format!("PUT /tree/a HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n"), 501),
        (format!("GET /tree/%ff HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /tree/%zz HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /tree/% HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /tree/a%2Fb HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /tree/a%00b HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /tree/../etc/passwd HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /tree/%2e%2e HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /../../etc/passwd HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /tree//a HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /treetop HTTP/1.1\r\n{host}\r\n"), 404),
    ] {
        let shown = request.chars().take(80).collect::<String>();
        assert_eq!(raw(&admin, request.as_bytes()).status, status, "{shown}");
    }
    let mut bytes = b"GET /tree/\xff\xfe HTTP/1.1\r\n".to_vec();
    bytes.extend_from_slice(format!("{host}\r\n").as_bytes());
    assert_eq!(raw(&admin, &bytes).status, 400);
}

/// Headers without an end: they are answered before they are all there.
#[test]
fn endless_headers_and_bodies_end() {
    let (_cluster, _, admin) = served(1);
    for first in [
        "GET / HTTP/1.1\r\n",
        "PUT /tree/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n",
    ] {
        let mut stream = connect(admin.address());
        stream.write_all(first.as_bytes()).unwrap();
        let mut sent = 0;
        // It stops to read, and closes.
        while sent < 1 << 30 && stream.write_all(b"X-More: and more and more\r\n").is_ok() {
            sent += 27;
        }
        assert!(sent < 1 << 30);
    }
    assert_eq!(get(&admin, "/live").status, 200);
}

#[test]
fn requests_that_come_at_once_are_answered_in_order() {
    let (_cluster, coordinator, admin) = served(1);
    let session = coordinator.session();
    for n in 0..50 {
        session.create(&format!("/n{n}"), n.to_string(), CreateMode::Persistent).unwrap();
    }
    let mut stream = connect(admin.address());
    for n in 0..50 {
        let live = "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n";
        write!(stream, "GET /tree/n{n} HTTP/1.1\r\nHost: localhost\r\n\r\n{live}").unwrap();
    }
    let mut stream = BufReader::new(stream);
    for n in 0..50 {
        assert_eq!(answer(&mut stream).json()["data"]["text"], json!(n.to_string()));
        assert_eq!(answer(&mut stream).json(), json!({ "live": true }));
    }
}

#[test]
fn idle_and_slow_clients_keep_nobody_out() {
    let (cluster, _, admin) = served(1);
    let mut idle: Vec<TcpStream> = Vec::new();
    for n in 0..1000 {
        // Some have begun a request.
        let mut stream = connect(admin.address());
        if n % 2 == 0 {
            let _ = stream.write_all(b"GET /status HTTP/1.1\r\nHost: local");
        }
        idle.push(stream);
    }
    for _ in 0..20 {
        assert_eq!(get(&admin, "/status").status, 200);
    }
    // The time is up for those that are left.
    cluster.advance(Duration::from_secs(61));
    let mut last = idle.pop().unwrap();
    match last.read(&mut [0; 16]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    assert_eq!(get(&admin, "/live").status, 200);
}

#[test]
fn a_client_that_takes_nothing_is_disconnected() {
    let (cluster, coordinator, admin) = served(1);
    let data = vec![b'x'; 1 << 20];
    coordinator.session().create("/large", &data, CreateMode::Persistent).unwrap();
    let mut stream = connect(admin.address());
    // More than sockets hold.
    let count = 64;
    for _ in 0..count {
        stream.write_all(b"GET /tree/large?raw HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    // It is looked at with each step: the last answer may be begun meanwhile.
    for _ in 0..100 {
        cluster.advance(Duration::from_secs(21));
        assert_eq!(get(&admin, "/tree/large?raw").body.len(), data.len());
    }
    let mut rest = 0;
    let mut part = vec![0; 1 << 16];
    while let Ok(taken) = stream.read(&mut part) {
        if taken == 0 {
            break;
        }
        rest += taken;
    }
    assert!(rest < count * data.len(), "it has got everything");
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

/// The next one with this name.
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
fn those_who_listen_see_changes_and_a_new_leader() {
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
    let created = here.session().create("/seen", b"", CreateMode::Persistent).unwrap();
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
fn more_than_some_may_not_listen() {
    let (_cluster, _, admin) = served(1);
    let _streams: Vec<_> = (0..32).map(|_| listen(&admin)).collect();
    assert_eq!(get(&admin, "/events").status, 503);
    assert_eq!(get(&admin, "/status").status, 200);
}

#[test]
fn it_answers_without_a_quorum_and_after_the_end() {
    let (cluster, coordinator, admin) = served(3);
    assert_eq!([get(&admin, "/health").status, get(&admin, "/ready").status], [200, 200]);
    coordinator.session().create("/a", b"1", CreateMode::Persistent).unwrap();
    assert_eq!(get(&admin, "/tree/a").status, 200);
    for other in [1, 2] {
        cluster.stop(other);
    }
    cluster.advance(Duration::from_secs(30));
    assert_eq!([get(&admin, "/health").status, get(&admin, "/ready").status], [503, 503]);
    assert_eq!(get(&admin, "/live").status, 200);
    assert!(get(&admin, "/status").json()["availability"]["no_quorum"]["reason"].is_string());
    let members = get(&admin, "/members").json();
    assert!(members["leader"].is_null() && members["members"].as_array().unwrap().len() == 3);
    assert_eq!(get(&admin, "/metrics").status, 200);

    // The endpoint's session is lost; it opens another one.
    for other in [1, 2] {
        cluster.restart(other);
    }
    cluster.advance(Duration::from_secs(60));
    while get(&admin, "/tree/a").status != 200 {
        cluster.advance(Duration::from_secs(1));
    }

    coordinator.close();
    assert_eq!([get(&admin, "/live").status, get(&admin, "/health").status], [503, 503]);
    assert!(get(&admin, "/status").json()["stopped"].is_string());
    assert_eq!(get(&admin, "/tree/a").status, 503);
    let address = admin.address();
    drop(admin);
    assert!(TcpStream::connect(address).is_err());
}
