//! A client that sends bytes and reads answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quorate::Coordinator;
use quorate::admin::Admin;
use quorate::testing::Cluster;
use serde_json::Value;

pub(crate) const TOKEN: &str = "a-token-of-some-length";
/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("it is JSON")
    }

    /// The names of the children in the answer.
    pub(crate) fn names(&self) -> Vec<String> {
        let of = |child: &Value| child["name"].as_str().unwrap().to_owned();
        self.json()["children"].as_array().unwrap().iter().map(of).collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        self.head.lines().find(|line| of(line)).map(|line| line[name.len() + 1..].trim())
    }
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The next answer of a connection.
pub(crate) fn answer(stream: &mut BufReader<TcpStream>) -> Answer {
    let mut answer = head(stream);
    if let Some(length) = answer.header("content-length") {
        answer.body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut answer.body).unwrap();
    }
    answer
}

/// The same without its body.
pub(crate) fn head(stream: &mut BufReader<TcpStream>) -> Answer {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "it ends after {head:?}");
    }
    Answer { status: head[9..12].parse().unwrap(), head, body: Vec::new() }
}

/// The answer to these bytes.
pub(crate) fn raw(admin: &Admin, bytes: &[u8]) -> Answer {
    let mut stream = connect(admin.address());
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut stream = BufReader::new(stream);
    if bytes.starts_with(b"HEAD ") {
        let answer = head(&mut stream);
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "a HEAD has an answer without a body");
        return answer;
    }
    answer(&mut stream)
}

pub(crate) fn send(
    admin: &Admin,
    method: &str,
    target: &str,
    headers: &str,
    body: &[u8],
) -> Answer {
    let address = admin.address();
    let mut bytes = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    raw(admin, &bytes)
}

pub(crate) fn get(admin: &Admin, target: &str) -> Answer {
    send(admin, "GET", target, "", b"")
}

/// A cluster in memory that is ready, and an endpoint of one of its members.
pub(crate) fn served(nodes: usize) -> (Cluster, Coordinator, Admin) {
    let cluster = Cluster::new(nodes);
    let coordinator = cluster.node(0);
    coordinator.wait_ready(PATIENCE).wait().unwrap();
    let admin = Admin::serve(&coordinator, "127.0.0.1:0").unwrap();
    (cluster, coordinator, admin)
}
