//! Clients that must be refused, slow clients, and clients that send nonsense.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use quorate::admin::Admin;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error};
use serde_json::json;

use crate::client::{TOKEN, answer, connect, get, raw, send, served};

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
    // The answer lets no other site in, either.
    let page = get(&admin, "/");
    assert!(page.header("access-control-allow-origin").is_none());
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    let text = String::from_utf8(page.body).unwrap();
    assert!(
        !text.contains("{{") && !text.contains("https://"),
        "the page must load nothing from other sites"
    );
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
fn malformed_requests_are_refused() {
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

/// Endless headers are answered before they are complete.
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
        // The server stops reading, and closes.
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
        session.create(&format!("/n{n}"), n.to_string(), CreateMode::Persistent).wait().unwrap();
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
fn idle_and_slow_clients_block_no_other_client() {
    let (cluster, _, admin) = served(1);
    let mut idle: Vec<TcpStream> = Vec::new();
    for n in 0..1000 {
        // Some have sent a part of a request.
        let mut stream = connect(admin.address());
        if n % 2 == 0 {
            let _ = stream.write_all(b"GET /status HTTP/1.1\r\nHost: local");
        }
        idle.push(stream);
    }
    for _ in 0..20 {
        assert_eq!(get(&admin, "/status").status, 200);
    }
    // The remaining ones run into the timeout.
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
    coordinator.session().create("/large", &data, CreateMode::Persistent).wait().unwrap();
    let mut stream = connect(admin.address());
    // More than the sockets' buffers hold.
    let count = 64;
    for _ in 0..count {
        stream.write_all(b"GET /tree/large?raw HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    // Checked with each step: the last answer may have begun by then.
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
    assert!(rest < count * data.len(), "it has received everything");
}
