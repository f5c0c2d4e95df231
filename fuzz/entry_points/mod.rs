//! Entry points for the fuzz targets: each takes arbitrary bytes and must not panic.

mod engine;

use bytes::Bytes;

pub use engine::engine;

use crate::machine::Machine;
use crate::machine::command::Batch;
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::node::io::{Input, Now, Time};
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::node::stored::{Boot, HardState, SnapshotMeta, Voting};
use crate::node::{Node, NodeConfig};
use crate::transport::frame::FrameReader;
use crate::transport::handshake::{HANDSHAKE_BYTES_MAX, Hello, HelloReply};
use crate::types::path;
use crate::types::version::{OLDEST, VERSION};

/// A peer's message. A message that decodes must encode to an equal one.
pub fn peer_message(bytes: &[u8]) {
    let decoded = PeerMessage::decode(bytes);
    if let Ok(message) = PeerMessage::decode_of_client(bytes) {
        assert_eq!(decoded.as_ref(), Ok(&message));
    }
    if let Ok(message) = decoded {
        // The number of a variant may be written with more bytes than it takes.
        let is_known = PeerMessage::may_a_client_send_encoded(bytes);
        assert!(message.may_a_client_send() || !is_known);
        let again = PeerMessage::decode(&message.encode(Vec::new()));
        assert_eq!(again, Ok(message));
    }
}

/// An entry of the log, applied: total, deterministic, and its invariants hold.
pub fn batches(bytes: &[u8]) {
    let (mut one, mut two) = (Machine::new(), Machine::new());
    for (term, part) in parts(bytes).enumerate() {
        if let Ok(batch) = Batch::decode(part) {
            let term = term as u64 / 8;
            assert_eq!(one.apply(term, &batch), two.apply(term, &batch));
        }
    }
    assert_eq!(one.hash(), two.hash());
    one.check_invariants().unwrap();
    let mut reader = ChunkReader::new();
    for chunk in ChunkWriter::full(one.state()) {
        reader.push(&chunk).unwrap();
    }
    assert_eq!(reader.finish(one.zxid(), one.hash()).unwrap().hash(), two.hash());
}

/// The chunks of a snapshot or a checkpoint.
pub fn chunks(bytes: &[u8]) {
    let mut reader = ChunkReader::new();
    for part in parts(bytes) {
        if reader.push(part).is_err() {
            return;
        }
    }
    let _ = reader.finish(0, 0);
}

/// A backup.
pub fn backups(bytes: &[u8]) {
    crate::recovery::fuzz(bytes);
}

/// Paths. A valid path can be split and joined again.
pub fn paths(bytes: &[u8]) {
    let Ok(path) = std::str::from_utf8(bytes) else {
        return;
    };
    if path::validate(path).is_ok()
        && let Some(parent) = path::parent(path)
    {
        path::validate(parent).unwrap();
        assert_eq!(path::join(parent, path::name(path)), path);
    }
}

/// A node that gets every message that decodes. Behind the guard, raft-rs must not panic.
pub fn node(bytes: &[u8]) {
    let mut node = fresh_node();
    let mut now = Now { mono: Time::from_secs(1), wall_ms: 1 };
    let mut numbers = Vec::new();
    for part in parts(bytes) {
        let Some((from, rest)) = part.split_first() else {
            continue;
        };
        let input = match (from % 8, PeerMessage::decode(rest)) {
            (0, _) => None,
            (1, _) => numbers.pop().map(|number| Input::Written { number }),
            (from, Ok(message)) => Some(Input::Peer { from: u64::from(from), message }),
            (_, Err(_)) => continue,
        };
        if input.is_none() {
            now.mono += Time::from_millis(100);
        }
        let effects = node.step(now, input);
        numbers.extend(effects.disk.iter().filter_map(|op| match op {
            crate::node::io::DiskOp::Write { number, .. }
            | crate::node::io::DiskOp::Install { number, .. }
            | crate::node::io::DiskOp::Identify { number, .. }
            | crate::node::io::DiskOp::Promise { number, .. }
            | crate::node::io::DiskOp::Removed { number } => Some(*number),
            crate::node::io::DiskOp::Checkpoint { .. }
            | crate::node::io::DiskOp::Read { .. }
            | crate::node::io::DiskOp::Build { .. }
            | crate::node::io::DiskOp::Drop { .. } => None,
        }));
        if let Some(reason) = effects.stopped {
            assert!(!reason.contains("broken invariant"), "{reason}");
            return;
        }
    }
}

fn fresh_node() -> Node {
    let machine = Machine::new();
    let checkpoint = SnapshotMeta {
        index: 1,
        term: 1,
        zxid: machine.zxid(),
        hash: machine.hash(),
        voting: Voting { voters: vec![1, 2, 3], ..Voting::default() },
    };
    let hard_state = HardState { term: 1, vote: 0, commit: 1 };
    let boot = Boot::without_log(hard_state, checkpoint);
    let config = NodeConfig::new(Time::from_millis(100), Time::from_secs(2), 1);
    let now = Now { mono: Time::from_secs(1), wall_ms: 1 };
    let address = "a:1".to_owned();
    let identity =
        crate::node::stored::Identity { cluster: 1, node: 1, incarnation: 1, address, uid: 1 };
    let origin = crate::node::Origin { identity, promise: Default::default() };
    Node::new(config, origin, boot, machine, now).expect("this boot is sound")
}

/// The bytes from a connection, in pieces of any size.
pub fn frames(bytes: &[u8]) {
    for limit in [HANDSHAKE_BYTES_MAX, MESSAGE_BYTES_MAX] {
        let mut reader = FrameReader::new(limit);
        'pieces: for piece in parts(bytes) {
            reader.push(piece);
            loop {
                match reader.next_frame() {
                    Ok(Some(payload)) => take_payload(payload),
                    Ok(None) => break,
                    Err(_) => break 'pieces,
                }
            }
        }
    }
    // The payload of a frame with a correct checksum.
    parts(bytes).for_each(take_payload);
}

fn take_payload(payload: &[u8]) {
    let _ = Hello::decode(payload, OLDEST..=VERSION);
    let _ = HelloReply::decode(payload);
    let _ = PeerMessage::decode(payload);
}

/// The bytes from a secure connection, in pieces of any size, at the listening and at the connecting end,
/// before and after the handshake, with one secret and with one for each right.
pub fn secure(bytes: &[u8]) {
    #[cfg(feature = "tls")]
    let _ = crate::security::x509::subject(bytes);
    let digits = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
    let secret = |from: usize| {
        let text = [&digits[from..], &digits[..from]].concat();
        crate::security::Secret::new(&text).expect("32 random bytes")
    };
    let one = secret(0);
    let of_rights =
        secret(0).with_clients(secret(8)).and_then(|all| all.with_operators(secret(16)));
    for secrets in [one, of_rights.expect("three secrets")] {
        secure_with(bytes, &secrets.into());
    }
}

fn secure_with(bytes: &[u8], security: &crate::security::Security) {
    use crate::transport::secure::{SecureChannel, Side};
    for has_keys in [false, true] {
        for side in [Side::Listens, Side::Connects] {
            let (mut plain, mut out) = (Vec::new(), Vec::new());
            let session =
                SecureChannel::start(security, side, &mut out).expect("the system's entropy");
            let mut session = session.expect("a secret asks for keys");
            if has_keys && !complete_handshake(&mut session, side, security, &mut plain, &mut out) {
                continue;
            }
            for piece in parts(bytes) {
                if session.receive(piece, &mut plain, &mut out).is_err() {
                    break;
                }
                let _ = session.send(b"answer", &mut out);
            }
            assert!(plain.is_empty(), "bytes without the keys never decrypt");
        }
    }
}

/// Completes the handshake, so that both ends have keys.
fn complete_handshake(
    session: &mut crate::transport::secure::SecureChannel,
    side: crate::transport::secure::Side,
    security: &crate::security::Security,
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> bool {
    use crate::transport::secure::{SecureChannel, Side};
    let (other_side, mut answer) = match side {
        Side::Listens => (Side::Connects, Vec::new()),
        Side::Connects => (Side::Listens, Vec::new()),
    };
    let Ok(Some(mut other)) = SecureChannel::start(security, other_side, &mut answer) else {
        return false;
    };
    for _ in 0..2 {
        let sent = std::mem::take(out);
        let result = other.receive(&sent, plain, &mut answer);
        let answered = session.receive(&std::mem::take(&mut answer), plain, out);
        if result.is_err() || answered.is_err() {
            return false;
        }
    }
    true
}

/// The requests of an operator's browser or tool.
#[cfg(feature = "admin")]
pub fn admin_requests(bytes: &[u8]) {
    crate::admin::fuzz(bytes);
}

/// What recipes store, the names of contenders, and cron expressions.
pub fn recipe_values(bytes: &[u8]) {
    crate::recipes::fuzz(bytes);
}

/// The bytes from a ZooKeeper client, in one piece and byte by byte; and those of a ZooKeeper server and its snapshot, as
/// an import reads them.
#[cfg(feature = "gateway")]
pub fn zookeeper_requests(bytes: &[u8]) {
    crate::gateway::fuzz(bytes);
}

/// Requests of three clients of a gateway. It must answer like a simple model of ZooKeeper.
#[cfg(feature = "gateway")]
pub fn zookeeper_conversations(bytes: &[u8]) {
    crate::gateway::conversation(bytes);
}

/// The files that say who may do what: roles, secrets and refused subjects.
pub fn access_files(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        crate::security::fuzz(text);
    }
}

/// A file with keys for encryption at rest, the frame `KEYS`, and bytes that are encrypted.
pub fn keys(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        crate::encryption::fuzz(text);
    }
    crate::storage::fuzz_keys(bytes);
}

/// The data read back from disk.
pub fn records(bytes: &[u8]) {
    let parts: Vec<&[u8]> = parts(bytes).collect();
    crate::storage::fuzz(&parts);
    for part in parts {
        crate::storage::fuzz_identity(part);
        crate::storage::fuzz_log_place(part);
    }
}

/// Cuts the bytes into parts: a length of two bytes before each.
fn parts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (part, after) = after.split_at(length);
        rest = after;
        Some(part)
    })
}

/// Writes initial inputs into the directory that `QUORATE_FUZZ_SEEDS` names.
pub fn write_seeds() {
    let Ok(dir) = std::env::var("QUORATE_FUZZ_SEEDS") else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        std::fs::write(format!("{dir}/seed-{number}"), seed).expect("the directory takes a file");
    }
}

/// Messages as a leader sends them, one by one and all together, in the form of [`node`]; and texts.
fn seeds() -> Vec<Bytes> {
    use crate::node::message::RaftBody;
    use crate::node::stored::{EntryKind, LogEntry};
    let raft = |term, body| PeerMessage::Raft { term, body };
    let entry = |index, data: &'static [u8]| LogEntry {
        index,
        term: 2,
        kind: EntryKind::Normal,
        data: Bytes::from_static(data),
    };
    let messages = [
        raft(2, RaftBody::Heartbeat { commit: 1, context: Bytes::new() }),
        raft(
            2,
            RaftBody::Append {
                index: 1,
                log_term: 1,
                commit: 1,
                entries: vec![entry(2, b""), entry(3, b"\x01\x00\x00")],
            },
        ),
        raft(2, RaftBody::Heartbeat { commit: 3, context: Bytes::from_static(&[7; 16]) }),
        raft(
            3,
            RaftBody::Vote {
                pre: false,
                index: 3,
                log_term: 2,
                commit: 3,
                commit_term: 2,
                transfer: true,
            },
        ),
        raft(3, RaftBody::TimeoutNow),
        raft(
            3,
            RaftBody::AppendResponse {
                index: 3,
                log_term: 0,
                commit: 3,
                reject: false,
                reject_hint: 0,
                request_snapshot: 0,
            },
        ),
    ];
    let framed = |from: u8, message: &PeerMessage| {
        let part = message.encode(vec![from]);
        let mut framed = (part.len() as u16).to_le_bytes().to_vec();
        framed.extend(part);
        framed
    };
    let mut seeds: Vec<Bytes> =
        messages.iter().map(|message| Bytes::from(framed(2, message))).collect();
    let all: Vec<u8> = messages.iter().flat_map(|message| framed(2, message)).collect();
    seeds.push(Bytes::from(all));
    seeds.extend(TEXTS.map(|text| Bytes::from_static(text.as_bytes())));
    seeds
}

const TEXTS: [&str; 4] = [
    "PUT /tree/a%20b?version=7 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 2\r\n\r\n{}GET /live HTTP/1.0\r\nHost: a\r\n\r\n",
    "0 9 1,L */2 MON-FRI\nEurope/Berlin",
    "{\"id\":\"a\",\"address\":\"b\",\"port\":7,\"payload\":{\"c\":\"d\"}}",
    "0123456789abcdef-p7-m0000000000000007-latch-0000000001\n646dbb08aa7f4a7ea0f1b2c3d4e5f607__lock__0000000001",
];
