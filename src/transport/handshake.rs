//! The handshake, by which two nodes check that they are the intended ones before sending anything
//! else.
//!
//! The node that connects sends a [`Hello`], and the other one an [`Answer`]. Each is the payload
//! of one frame of at most [`HANDSHAKE_BYTES_MAX`]. After a welcome, messages flow from the node
//! that connected to the one that answered.
//!
//! ```text
//! hello:   magic, 8 bytes | version, u16 LE | postcard of what depends on the version:
//!     1, 2    (cluster u64, from u64, to u64, incarnation u64)
//!     3       (cluster u64, from u64, to u64, incarnation u64, address string, boot u64)
//! refusal: magic, 8 bytes | version, u16 LE | code, u8, not 0 | text, UTF-8, for people
//! welcome: magic, 8 bytes | version, u16 LE | 0, u8 | postcard of what depends on the hello's version:
//!     1, 2    nothing
//!     3       (node u64, cluster u64, address string, boot u64)
//! ```
//!
//! The front of the hello and the whole refusal are the same in every version, so that nodes of
//! different versions can report what is wrong. Codes are only ever appended.
//!
//! From version 3 on, both ends send their address (`address`, `host:port`) and the run of their
//! process (`boot`, random at each start). A client has no address and sends an empty one: messages
//! to it go over the connection that it has made. The cluster may be 0: a node that has none yet
//! talks to those of any cluster, and they to it. A client has none until a member serves it, and
//! then keeps that member's. A hello may also be for any node at the address (`to` is 0), whose
//! welcome names the node.
//!
//! An answer carries the highest version that the answering node supports. A hello carries the
//! version proposed for the connection, at first the highest of the node that connects. A node that
//! supports only lower ones refuses with [`RefusalCode::Protocol`], and the other end tries again
//! with the lower of both versions. A version older than the oldest that a node supports is refused
//! with a reason, on either side; a newer one is not an obstacle.
//!
//! A hello is believed without proof. Authentication is below (`secure`); if there are
//! certificates, the subject must stay the same for a node's id. A hello detects mistakes: another
//! cluster on a reused address, a node under another's address, two incompatible versions.
//!
//! Not here: timeouts and connections (`tcp`).

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::LocalPeer;
use crate::transport::peers::check_address;
use crate::types::membership::NodeId;
use crate::types::version::MEMBERS_SINCE;

/// The longest hello or answer.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 4 << 10;

/// The longest address accepted: the longest name, a port, and some room.
const ADDRESS_BYTES_MAX: usize = 300;

/// How much of an answer's text is written or shown, at most.
const TEXT_BYTES_MAX: usize = 512;

const MAGIC: [u8; 8] = *b"quorate\n";
const FRONT_BYTES: usize = MAGIC.len() + 2;

/// The first thing a node sends on a connection that it has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    /// 0 if it has none yet.
    pub(crate) cluster: u64,
    pub(crate) from: NodeId,
    /// The intended node: the address may have been given to another one since. 0 for any node.
    pub(crate) to: NodeId,
    pub(crate) incarnation: u64,
    /// `None` in versions 1 and 2.
    pub(crate) run: Option<Run>,
}

/// A run of a node's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Its address; empty for a client.
    pub(crate) address: String,
    /// Random, chosen at its start.
    pub(crate) boot: u64,
}

/// The encoding of a hello in versions 1 and 2, and its beginning in later ones.
#[derive(Serialize, Deserialize)]
struct HelloBody {
    cluster: u64,
    from: NodeId,
    to: NodeId,
    incarnation: u64,
}

/// The encoding of a run.
#[derive(Serialize, Deserialize)]
struct RunBody<'a> {
    address: &'a str,
    boot: u64,
}

/// The answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The answer to a hello of version 1 or 2 does not name the host.
    Welcome(Option<Host>),
    Refused(Refusal),
}

/// The node that has welcomed a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) node: NodeId,
    /// 0 if it has none yet.
    pub(crate) cluster: u64,
    pub(crate) run: Run,
}

/// The encoding of a host's beginning.
#[derive(Serialize, Deserialize)]
struct HostBody {
    node: NodeId,
    cluster: u64,
}

/// Why a connection is refused: a code for the program and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    pub(crate) text: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCode {
    /// The bytes that arrived are not a hello.
    Malformed,
    /// The peer does not support this version.
    Protocol,
    /// The peer is of another cluster.
    Cluster,
    /// The peer wants another node.
    NotAddressed,
    /// The peer claims to be this node, or is this node.
    OwnId,
    /// The peer is not a member that this node knows, and cannot become an unlisted peer: it gave
    /// no address, or there are too many.
    UnknownPeer,
    /// The node that listens has other keys, or none, or requires some.
    Security,
    /// The peer's certificate belongs to another node.
    Identity,
    /// Another process runs as this node, with a copy of its data directory.
    Duplicate,
    /// A reason that a later version has added.
    Other(u8),
}

impl RefusalCode {
    /// Whether trying again helps only after a reconfiguration. An unknown member may be a new one
    /// that this node has not learned of yet.
    pub(crate) fn is_permanent(self) -> bool {
        match self {
            RefusalCode::Protocol
            | RefusalCode::Cluster
            | RefusalCode::NotAddressed
            | RefusalCode::OwnId
            | RefusalCode::Security
            | RefusalCode::Identity
            | RefusalCode::Duplicate
            | RefusalCode::Other(_) => true,
            RefusalCode::Malformed | RefusalCode::UnknownPeer => false,
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            RefusalCode::Malformed => 1,
            RefusalCode::Protocol => 2,
            RefusalCode::Cluster => 3,
            RefusalCode::NotAddressed => 4,
            RefusalCode::OwnId => 5,
            RefusalCode::UnknownPeer => 6,
            RefusalCode::Security => 7,
            RefusalCode::Identity => 8,
            RefusalCode::Duplicate => 9,
            RefusalCode::Other(byte) => byte,
        }
    }

    fn from_byte(byte: u8) -> RefusalCode {
        match byte {
            1 => RefusalCode::Malformed,
            2 => RefusalCode::Protocol,
            3 => RefusalCode::Cluster,
            4 => RefusalCode::NotAddressed,
            5 => RefusalCode::OwnId,
            6 => RefusalCode::UnknownPeer,
            7 => RefusalCode::Security,
            8 => RefusalCode::Identity,
            9 => RefusalCode::Duplicate,
            other => RefusalCode::Other(other),
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: RefusalCode, text: String) -> Refusal {
        Refusal { code, text }
    }

    /// Two processes have the data directory of one node.
    pub(crate) fn duplicate(node: NodeId, other: impl std::fmt::Display) -> Refusal {
        let text = format!(
            "two processes run as node {node}, with copies of one data directory, and the other one \
             is at {other}: stop one of them and remove its directory"
        );
        Refusal::new(RefusalCode::Duplicate, text)
    }
}

impl Run {
    pub(crate) fn of(local: &LocalPeer) -> Run {
        Run { address: local.address.clone(), boot: local.boot }
    }

    /// Whether it does not listen, and receives messages over the connections that it makes.
    pub(crate) fn is_client(&self) -> bool {
        self.address.is_empty()
    }

    fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        postcard::to_extend(&RunBody { address: &self.address, boot: self.boot }, buffer)
            .expect("encoding a string and an integer to a Vec cannot fail")
    }

    fn decode(bytes: &[u8]) -> Option<Run> {
        let (run, rest) = postcard::take_from_bytes::<RunBody<'_>>(bytes).ok()?;
        let clean = rest.is_empty()
            && run.address.len() <= ADDRESS_BYTES_MAX
            && !run.address.contains(|char: char| char.is_control() || char.is_whitespace())
            && (run.address.is_empty() || check_address(run.address).is_ok());
        clean.then(|| Run { address: run.address.to_owned(), boot: run.boot })
    }
}

impl Host {
    pub(crate) fn of(local: &LocalPeer) -> Host {
        Host { node: local.node, cluster: local.cluster, run: Run::of(local) }
    }
}

impl Hello {
    /// The hello of `local` in this version to this node, or to any node if `to` is 0.
    pub(crate) fn new(local: &LocalPeer, version: u16, to: NodeId) -> Hello {
        Hello {
            version,
            cluster: local.cluster,
            from: local.node,
            to,
            incarnation: local.incarnation,
            run: has_runs(version).then(|| Run::of(local)),
        }
    }

    /// Appends the encoded hello to `buffer`.
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        let body = HelloBody {
            cluster: self.cluster,
            from: self.from,
            to: self.to,
            incarnation: self.incarnation,
        };
        let buffer = postcard::to_extend(&body, front(buffer, self.version))
            .expect("encoding four integers to a Vec cannot fail");
        match &self.run {
            Some(run) => run.encode(buffer),
            None => buffer,
        }
    }

    /// Decodes a hello. If it is not of one of these versions, the error is the refusal to send.
    pub(crate) fn decode(bytes: &[u8], versions: RangeInclusive<u16>) -> Result<Hello, Refusal> {
        let malformed = |why: &str| Refusal::new(RefusalCode::Malformed, why.to_owned());
        let (version, body) = split_front(bytes).ok_or_else(|| malformed("this is not a hello"))?;
        if !versions.contains(&version) {
            // The rest has a form that is not known here.
            let (oldest, newest) = versions.into_inner();
            return Err(Refusal::new(
                RefusalCode::Protocol,
                format!("this node can do versions {oldest} to {newest}, not {version}"),
            ));
        }
        let damaged = || malformed("the hello is damaged");
        let (body, rest) = postcard::take_from_bytes::<HelloBody>(body).map_err(|_| damaged())?;
        let run = match has_runs(version) {
            true => Some(Run::decode(rest).ok_or_else(damaged)?),
            false if rest.is_empty() => None,
            false => return Err(damaged()),
        };
        Ok(Hello {
            version,
            cluster: body.cluster,
            from: body.from,
            to: body.to,
            incarnation: body.incarnation,
            run,
        })
    }
}

impl Answer {
    /// Appends the encoded answer to `buffer`. `version` is the highest that the node supports.
    pub(crate) fn encode(&self, version: u16, buffer: Vec<u8>) -> Vec<u8> {
        let mut buffer = front(buffer, version);
        match self {
            Answer::Welcome(host) => {
                buffer.push(0);
                if let Some(Host { node, cluster, run }) = host {
                    let body = HostBody { node: *node, cluster: *cluster };
                    buffer = postcard::to_extend(&body, buffer)
                        .expect("encoding two integers to a Vec cannot fail");
                    buffer = run.encode(buffer);
                }
            }
            Answer::Refused(refusal) => {
                buffer.push(refusal.code.to_byte());
                buffer.extend_from_slice(shortened(&refusal.text).as_bytes());
            }
        }
        buffer
    }

    /// Decodes an answer of any version, and returns that version; `None` if it is not an answer.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(u16, Answer)> {
        let (version, rest) = split_front(bytes)?;
        let (&code, text) = rest.split_first()?;
        if code == 0 {
            let host = match text {
                [] => None,
                body => {
                    let (HostBody { node, cluster }, rest) =
                        postcard::take_from_bytes(body).ok()?;
                    let run = Run::decode(rest).filter(|run| !run.is_client())?;
                    Some(Host { node, cluster, run })
                }
            };
            return Some((version, Answer::Welcome(host)));
        }
        // The text goes to logs: the sender must not be able to forge lines there.
        let text = String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)])
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .collect();
        Some((version, Answer::Refused(Refusal::new(RefusalCode::from_byte(code), text))))
    }
}

/// Whether nodes of these clusters may talk: they are the same, or one of them is not set yet.
pub(crate) fn fit(one: u64, other: u64) -> bool {
    one == other || one == 0 || other == 0
}

/// The refusal for a node of another cluster.
fn other_cluster(own: u64, theirs: u64) -> Refusal {
    let text = format!(
        "this node belongs to another cluster ({own:016x}, not {theirs:016x}): one that was founded \
         apart, by another list of peers, say, or anew from a backup; if its data is not wanted any \
         more, restart it with an empty data directory"
    );
    Refusal::new(RefusalCode::Cluster, text)
}

/// Checks that `hello` is for this node, from another one, and of a compatible cluster.
pub(crate) fn check(local: &LocalPeer, hello: &Hello) -> Result<(), Refusal> {
    if !fit(hello.cluster, local.cluster) {
        return Err(other_cluster(local.cluster, hello.cluster));
    }
    let for_anyone = hello.to == 0 && hello.run.is_some();
    let (code, text) = if hello.to != local.node && !for_anyone {
        (RefusalCode::NotAddressed, format!("this is node {}, not {}", local.node, hello.to))
    } else if hello.from == local.node {
        if hello.run.as_ref().is_some_and(|run| run.boot != local.boot) {
            return Err(Refusal::duplicate(local.node, &local.address));
        }
        (RefusalCode::OwnId, format!("node {} is this node", hello.from))
    } else if hello.from == 0 {
        (RefusalCode::Malformed, "0 is no node's id".to_owned())
    } else {
        return Ok(());
    };
    Err(Refusal::new(code, text))
}

/// Checks that the node of this id has welcomed us, or any suitable one if the id is 0, and returns
/// which one it is.
pub(crate) fn check_host(
    local: &LocalPeer,
    to: NodeId,
    host: Option<&Host>,
) -> Result<NodeId, Refusal> {
    let (code, text) = match host {
        Some(host) if !fit(host.cluster, local.cluster) => {
            return Err(other_cluster(local.cluster, host.cluster));
        }
        Some(host) if to != 0 && host.node != to => {
            (RefusalCode::NotAddressed, format!("node {} has answered, not {to}", host.node))
        }
        Some(host) if host.node == 0 || host.node == local.node => {
            (RefusalCode::OwnId, format!("a node has answered as {}, which it is not", host.node))
        }
        Some(host) => return Ok(host.node),
        None if to == 0 => {
            (RefusalCode::Protocol, "the node that answers does not say who it is".to_owned())
        }
        None => return Ok(to),
    };
    Err(Refusal::new(code, text))
}

/// Whether nodes of this version send the run of their process.
fn has_runs(version: u16) -> bool {
    version >= MEMBERS_SINCE
}

/// As much of `text` as is written.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn front(mut buffer: Vec<u8>, version: u16) -> Vec<u8> {
    buffer.extend_from_slice(&MAGIC);
    buffer.extend_from_slice(&version.to_le_bytes());
    buffer
}

/// The version and the rest; `None` if the magic is wrong.
fn split_front(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (front, rest) = bytes.split_at_checked(FRONT_BYTES)?;
    let version = front.strip_prefix(&MAGIC)?;
    Some((u16::from_le_bytes([version[0], version[1]]), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn local() -> LocalPeer {
        LocalPeer {
            cluster: 77,
            node: 1,
            incarnation: 5,
            version: 3,
            address: "one:7400".to_owned(),
            boot: 8,
        }
    }

    const HELLO: Hello =
        Hello { version: 1, cluster: 77, from: 2, to: 1, incarnation: 6, run: None };

    fn hello() -> Hello {
        let run = Run { address: "two:7400".to_owned(), boot: 300 };
        Hello { version: 3, run: Some(run), ..HELLO }
    }

    #[test]
    fn golden_handshake() {
        let mut golden = crate::golden::Golden::new("handshake");
        golden.sample("hello", &HELLO.encode(Vec::new()));
        golden.sample("welcome", &Answer::Welcome(None).encode(1, Vec::new()));
        let refusal = Refusal::new(RefusalCode::Cluster, "another cluster".to_owned());
        golden.sample("refusal", &Answer::Refused(refusal).encode(1, Vec::new()));
        golden.sample("hello, version 2", &Hello { version: 2, ..HELLO }.encode(Vec::new()));
        golden.sample("welcome, version 2", &Answer::Welcome(None).encode(2, Vec::new()));
        let keys = Refusal::new(RefusalCode::Security, "other keys".to_owned());
        golden.sample("refusal, other keys", &Answer::Refused(keys).encode(2, Vec::new()));
        let identity = Refusal::new(RefusalCode::Identity, "another's".to_owned());
        golden.sample("refusal, another's id", &Answer::Refused(identity).encode(2, Vec::new()));
        golden.sample("preface of a secret", &crate::transport::secure::SECRET_PREFACE);
        golden.sample("hello, version 3", &hello().encode(Vec::new()));
        let welcome = Answer::Welcome(Some(Host::of(&local())));
        golden.sample("welcome, version 3", &welcome.encode(3, Vec::new()));
        let duplicate = Refusal::new(RefusalCode::Duplicate, "a copy".to_owned());
        golden.sample(
            "refusal, a copied directory",
            &Answer::Refused(duplicate).encode(3, Vec::new()),
        );
        golden.check();
    }

    #[test]
    fn hello_and_answers_survive_encoding() {
        let bytes = HELLO.encode(Vec::new());
        assert_eq!(&bytes[..10], b"quorate\n\x01\x00");
        assert_eq!(Hello::decode(&bytes, 1..=1), Ok(HELLO));
        assert_eq!(Hello::decode(&bytes, 1..=3), Ok(HELLO));
        for code in (1..=255).map(RefusalCode::from_byte) {
            let answer = Answer::Refused(Refusal::new(code, "nein \u{fc}".to_owned()));
            assert_eq!(Answer::decode(&answer.encode(3, Vec::new())), Some((3, answer)));
        }
        let welcome = Answer::Welcome(None).encode(1, Vec::new());
        assert_eq!(Answer::decode(&welcome), Some((1, Answer::Welcome(None))));
        assert_eq!(Hello::decode(&hello().encode(Vec::new()), 1..=3), Ok(hello()));
        let welcome = Answer::Welcome(Some(Host::of(&local())));
        assert_eq!(Answer::decode(&welcome.encode(4, Vec::new())), Some((4, welcome)));
        assert_eq!(Hello::new(&local(), 2, 9).run, None);
        assert_eq!(Hello::new(&local(), 3, 9).run, Some(Run::of(&local())));
    }

    #[test]
    fn hello_of_another_version_is_recognised_whatever_follows() {
        for body in [&b""[..], b"\xff\xff\xff", &[0; 3000]] {
            let bytes = [&b"quorate\n\x02\x01"[..], body].concat();
            let refusal = Hello::decode(&bytes, 1..=2).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Protocol);
            assert!(refusal.text.contains("versions 1 to 2"), "{}", refusal.text);
            assert!(refusal.text.contains("258"), "{}", refusal.text);
        }
    }

    #[test]
    fn an_address_that_is_none_is_damage() {
        let long = format!("{}:7400", "x".repeat(ADDRESS_BYTES_MAX));
        for address in ["two", "two:0", ":7400", "t\no:7400", "t o:7400", &long] {
            let run = Run { address: address.to_owned(), boot: 1 };
            let hello = Hello { run: Some(run.clone()), ..hello() };
            let refused = Hello::decode(&hello.encode(Vec::new()), 1..=3).unwrap_err();
            assert_eq!(refused.code, RefusalCode::Malformed, "{address:?}");
            nobody(run);
        }
        // A client has no address, and a node that listens has one.
        let nowhere = Run { address: String::new(), boot: 1 };
        let hello_of_client = Hello { run: Some(nowhere.clone()), ..hello() };
        let bytes = hello_of_client.encode(Vec::new());
        assert_eq!(Hello::decode(&bytes, 1..=3), Ok(hello_of_client));
        nobody(nowhere);
        fn nobody(run: Run) {
            let address = run.address.clone();
            let welcome = Answer::Welcome(Some(Host { node: 1, cluster: 0, run }));
            assert_eq!(Answer::decode(&welcome.encode(3, Vec::new())), None, "{address:?}");
        }
        let bytes = hello().encode(Vec::new());
        assert!(Hello::decode(&bytes[..bytes.len() - 1], 1..=3).is_err());
        assert!(Hello::decode(&[&bytes[..], b"0"].concat(), 1..=3).is_err());
    }

    #[test]
    fn hello_is_checked_in_every_respect() {
        let code = |hello: Hello| check(&local(), &hello).map_err(|refusal| refusal.code);
        let own = |boot| Some(Run { boot, ..Run::of(&local()) });
        for good in [HELLO, hello(), Hello { to: 0, ..hello() }, Hello { cluster: 0, ..hello() }] {
            assert_eq!(code(good), Ok(()));
        }
        let wrong = [
            (Hello { cluster: 78, ..HELLO }, RefusalCode::Cluster),
            (Hello { cluster: 78, to: 0, ..hello() }, RefusalCode::Cluster),
            (Hello { to: 3, ..HELLO }, RefusalCode::NotAddressed),
            (Hello { to: 3, ..hello() }, RefusalCode::NotAddressed),
            (Hello { to: 0, ..HELLO }, RefusalCode::NotAddressed),
            (Hello { from: 1, ..HELLO }, RefusalCode::OwnId),
            (Hello { from: 1, to: 0, run: own(8), ..hello() }, RefusalCode::OwnId),
            (Hello { from: 1, to: 0, run: own(9), ..hello() }, RefusalCode::Duplicate),
            (Hello { from: 0, ..HELLO }, RefusalCode::Malformed),
        ];
        for (hello, refused) in wrong {
            assert_eq!(code(hello), Err(refused));
        }
        let blank = LocalPeer { cluster: 0, ..local() };
        assert_eq!(check(&blank, &Hello { cluster: 78, ..hello() }), Ok(()));
    }

    #[test]
    fn host_is_checked_in_every_respect() {
        let code = |to, node, cluster| {
            let host = Host { node, cluster, ..Host::of(&local()) };
            check_host(&local(), to, Some(&host)).map_err(|refusal| refusal.code)
        };
        assert_eq!(check_host(&local(), 2, None), Ok(2));
        assert!(check_host(&local(), 0, None).is_err());
        for to in [0, 2] {
            assert_eq!(code(to, 2, 77), Ok(2));
            assert_eq!(code(to, 2, 0), Ok(2));
            assert_eq!(code(to, 2, 78), Err(RefusalCode::Cluster));
        }
        assert_eq!(code(3, 2, 77), Err(RefusalCode::NotAddressed));
        assert_eq!(code(0, 1, 77), Err(RefusalCode::OwnId));
        assert_eq!(code(0, 0, 77), Err(RefusalCode::OwnId));
    }

    #[test]
    fn answer_text_is_bounded_and_harmless() {
        let text = "\u{1F980}\n".repeat(1000);
        let answer = Answer::Refused(Refusal::new(RefusalCode::Cluster, text));
        let bytes = answer.encode(1, Vec::new());
        assert!(bytes.len() <= FRONT_BYTES + 1 + TEXT_BYTES_MAX);
        let Some((1, Answer::Refused(refusal))) = Answer::decode(&bytes) else {
            panic!("not a refusal");
        };
        assert!(!refusal.text.contains(['\n', '\u{fffd}']));
        assert!(refusal.text.len() > TEXT_BYTES_MAX / 2);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            ours in 0..4_u8,
        ) {
            let front = [&b"quorate\n"[..], &[ours, 0]].concat();
            let bytes = if ours > 0 { [front, bytes].concat() } else { bytes };
            let _ = Answer::decode(&bytes);
            if let Ok(hello) = Hello::decode(&bytes, 1..=3) {
                prop_assert_eq!(&Hello::decode(&hello.encode(Vec::new()), 1..=3), &Ok(hello.clone()));
                let _ = check(&local(), &hello);
            }
        }

        #[test]
        fn whoever_welcomes_is_understood_or_not_at_all(
            node in any::<u64>(),
            cluster in any::<u64>(),
            boot in any::<u64>(),
            harm in any::<u8>(),
            at in 11..30_usize,
        ) {
            let run = Run { address: "a.b:1".to_owned(), boot };
            let welcome = Answer::Welcome(Some(Host { node, cluster, run }));
            let mut bytes = welcome.encode(3, Vec::new());
            prop_assert_eq!(Answer::decode(&bytes), Some((3, welcome)));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= harm;
            }
            if let Some((_, answer)) = Answer::decode(&bytes) {
                let again = Answer::decode(&answer.encode(3, Vec::new()));
                prop_assert_eq!(again, Some((3, answer)));
            }
        }
    }
}
