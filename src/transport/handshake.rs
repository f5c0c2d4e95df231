//! The handshake. Two nodes check that they are the intended ones before they send anything else.
//!
//! The node that connects sends a [`Hello`], and the other one an [`HelloReply`]. Each is the payload
//! of one frame of at most [`HANDSHAKE_BYTES_MAX`]. After a welcome, messages flow from the node
//! that connected to the one that answered.
//!
//! ```text
//! hello:   magic, 8 bytes | formats, u16 LE | version, u16 LE | postcard of
//!     (cluster u64, from u64, to u64, incarnation u64, address string, boot u64)
//! refusal: magic, 8 bytes | formats, u16 LE | version, u16 LE | code, u8, not 0 | text, UTF-8, for people
//! welcome: magic, 8 bytes | formats, u16 LE | version, u16 LE | 0, u8 | postcard of
//!     (node u64, cluster u64, address string, boot u64)
//! ```
//!
//! The front of the hello and the whole refusal are the same in every version, so that nodes of
//! different versions can report what is wrong. What follows in a hello and in its welcome depends
//! on the hello's version. Codes are only ever appended.
//!
//! Builds whose formats differ read nothing of each other but that number: see [`FORMATS`]. Each end reports both
//! numbers.
//!
//! Both ends send their address (`address`, `host:port`) and the run of their process (`boot`, random
//! at each start). A client has no address and sends an empty one: messages to it go over the
//! connection that it has made. The cluster is 0 if the node has none yet; such a node and the nodes
//! of any cluster accept each other. A client has none until a member serves it, and then keeps that
//! member's. A hello may also be for any node at the address (`to` is 0); the welcome names the node.
//!
//! An answer carries the highest version that the answering node supports. A hello carries the
//! version proposed for the connection, at first the highest of the node that connects. A node that
//! supports only lower ones refuses with [`RefusalCode::Protocol`], and the other end tries again
//! with the lower of both versions. A version older than the oldest that a node supports is refused
//! with a reason, on either side; a newer one is not an obstacle.
//!
//! A hello of a node with an address carries no proof. Authentication is in the layer below (`secure`);
//! if there are certificates, the subject must stay the same for a node's id. A hello detects mistakes:
//! another cluster on a reused address, a node at another's address, two incompatible versions.
//!
//! A client's id is the hash of its `boot` ([`client_id`]), which it shows to members alone. Members name
//! clients' ids to each other and to other clients, and so no other client can take one, at any member.
//!
//! Not here: timeouts and connections (`tcp`).

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use super::LocalPeer;
use crate::addressing::peers::check_address;
use crate::types::encoding;
use crate::types::membership::NodeId;
use crate::types::right::Right;
use crate::types::version::{FORMATS, other_formats};

/// The longest hello or answer.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 4 << 10;

/// The longest address accepted: the longest name, a port, and some room.
const ADDRESS_BYTES_MAX: usize = 300;

/// The most bytes of an answer's text that are written or shown.
const TEXT_BYTES_MAX: usize = 512;

const MAGIC: [u8; 8] = *b"quorate\n";

/// The first frame that a node sends on a connection that it has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Encoded in front of the other fields.
    #[serde(skip)]
    pub(crate) version: u16,
    /// 0 if it has none yet.
    pub(crate) cluster: u64,
    pub(crate) from: NodeId,
    /// The intended node: the address may have been given to another one since. 0 for any node.
    pub(crate) to: NodeId,
    pub(crate) incarnation: u64,
    pub(crate) run: ProcessRun,
}

/// A run of a node's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRun {
    /// Its address; empty for a client.
    pub(crate) address: String,
    /// Random, chosen at its start.
    pub(crate) boot: u64,
}

/// The answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelloReply {
    Welcome(Responder),
    Refused(Refusal),
}

/// The node that has welcomed a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Responder {
    pub(crate) node: NodeId,
    /// 0 if it has none yet.
    pub(crate) cluster: u64,
    pub(crate) run: ProcessRun,
}

/// Why a connection is refused: a code for the program and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    pub(crate) text: String,
}

/// The kind of a refusal: its byte in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RefusalCode {
    /// The bytes that arrived are not a hello.
    Malformed = 1,
    /// The peer does not support this version.
    Protocol = 2,
    /// The peer is of another cluster.
    Cluster = 3,
    /// The peer wants another node.
    NotAddressed = 4,
    /// The peer claims to be this node, or is this node.
    OwnId = 5,
    /// The peer is not a member that this node knows, and there are too many unlisted peers for one
    /// more.
    UnknownPeer = 6,
    /// The node that listens has other keys, or none, or requires some.
    Security = 7,
    /// The peer's certificate belongs to another node.
    Identity = 8,
    /// Another process runs as this node, with a copy of its data directory.
    Duplicate = 9,
    /// The peer's credential is not a member's.
    Right = 10,
    /// The peer's build has other formats.
    Formats = 11,
    /// There is no place for the peer, or no file for its connection, before others leave.
    Full = 12,
    /// The node that listens has stopped, and its process goes on.
    Stopped = 13,
    /// A reason that a later version has added; never sent.
    Other = u8::MAX,
}

impl RefusalCode {
    /// Whether trying again helps only after a reconfiguration. An unknown member may be a new one
    /// that this node has not learned of yet.
    pub(crate) fn is_permanent(self) -> bool {
        use RefusalCode::{Full, Malformed, Stopped, UnknownPeer};
        !matches!(self, Malformed | UnknownPeer | Full | Stopped)
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
            10 => RefusalCode::Right,
            11 => RefusalCode::Formats,
            12 => RefusalCode::Full,
            13 => RefusalCode::Stopped,
            _ => RefusalCode::Other,
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: RefusalCode, text: String) -> Refusal {
        Refusal { code, text }
    }

    /// The peer wants to be a member, and its credential does not allow that.
    pub(crate) fn not_a_member(right: Right) -> Refusal {
        let text = format!(
            "the credential of this instance is that of {}, and a member needs one of a member: join as a \
             client, or with the members' secret or a certificate of their authority",
            right.one()
        );
        Refusal::new(RefusalCode::Right, text)
    }

    /// The peer's build has these formats, and this one has others.
    fn formats(theirs: u16) -> Refusal {
        let text = format!(
            "the other instance is of another build: {}; run the same build on all members and clients",
            other_formats(theirs.into())
        );
        Refusal::new(RefusalCode::Formats, text)
    }

    /// Two processes, at these addresses, have the data directory of one node.
    pub(crate) fn duplicate(node: NodeId, one: &str, other: &str) -> Refusal {
        // All say the same.
        let (one, other) = (one.min(other), one.max(other));
        let text = format!(
            "two processes run as node {node:016x}, at {one} and at {other}, with copies of one data directory: \
             stop the wrong one, and remove its directory"
        );
        Refusal::new(RefusalCode::Duplicate, text)
    }
}

impl ProcessRun {
    pub(crate) fn of(local: &LocalPeer) -> ProcessRun {
        ProcessRun { address: local.address.clone(), boot: local.boot }
    }

    /// Whether this is a client: it does not listen, and receives messages over the connections that
    /// it makes.
    pub(crate) fn is_client(&self) -> bool {
        self.address.is_empty()
    }

    /// Whether the address is well-formed, or empty as a client's is.
    fn is_sound(&self) -> bool {
        self.address.len() <= ADDRESS_BYTES_MAX
            && !self.address.contains(|char: char| char.is_control() || char.is_whitespace())
            && (self.is_client() || check_address(&self.address).is_ok())
    }
}

impl Responder {
    pub(crate) fn of(local: &LocalPeer) -> Responder {
        Responder { node: local.node, cluster: local.cluster, run: ProcessRun::of(local) }
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
            run: ProcessRun::of(local),
        }
    }

    /// Appends the encoded hello to `buffer`.
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        encoding::append(self, front(buffer, self.version))
    }

    /// Decodes a hello. If it is not of one of these versions, the error is the refusal to send.
    pub(crate) fn decode(bytes: &[u8], versions: RangeInclusive<u16>) -> Result<Hello, Refusal> {
        let malformed = |why: &str| Refusal::new(RefusalCode::Malformed, why.to_owned());
        let (version, body) =
            split_front(bytes).ok_or_else(|| malformed("this is not a hello"))??;
        if !versions.contains(&version) {
            // This node does not know the form of the rest.
            let (oldest, newest) = versions.into_inner();
            return Err(Refusal::new(
                RefusalCode::Protocol,
                format!("this node can do versions {oldest} to {newest}, not {version}"),
            ));
        }
        let hello = postcard::take_from_bytes::<Hello>(body).ok();
        match hello.filter(|(hello, rest)| rest.is_empty() && hello.run.is_sound()) {
            Some((hello, _)) => Ok(Hello { version, ..hello }),
            None => Err(malformed("the hello is damaged")),
        }
    }
}

impl HelloReply {
    /// Appends the encoded answer to `buffer`. `version` is the highest that the node supports.
    pub(crate) fn encode(&self, version: u16, buffer: Vec<u8>) -> Vec<u8> {
        let mut buffer = front(buffer, version);
        match self {
            HelloReply::Welcome(responder) => {
                buffer.push(0);
                encoding::append_to(&mut buffer, responder);
            }
            HelloReply::Refused(refusal) => {
                buffer.push(refusal.code as u8);
                buffer.extend_from_slice(shortened(&refusal.text).as_bytes());
            }
        }
        buffer
    }

    /// Decodes an answer of any version, and returns that version; `None` if it is not an answer. One of a build with
    /// other formats is a refusal for that, whatever it says.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(u16, HelloReply)> {
        let (version, rest) = match split_front(bytes)? {
            Ok(split) => split,
            Err(refusal) => return Some((0, HelloReply::Refused(refusal))),
        };
        let (&code, text) = rest.split_first()?;
        if code == 0 {
            let (responder, rest) = postcard::take_from_bytes::<Responder>(text).ok()?;
            let is_sound =
                rest.is_empty() && responder.run.is_sound() && !responder.run.is_client();
            return is_sound.then_some((version, HelloReply::Welcome(responder)));
        }
        // The text goes to logs: the sender must not be able to forge lines there.
        let text = String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)])
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .collect();
        Some((version, HelloReply::Refused(Refusal::new(RefusalCode::from_byte(code), text))))
    }
}

/// Whether nodes of these clusters may be connected: the clusters are the same, or one is not set.
pub(crate) fn may_connect(one: u64, other: u64) -> bool {
    one == other || one == 0 || other == 0
}

/// The refusal for a node of another cluster.
fn other_cluster(own: u64, theirs: u64) -> Refusal {
    let text = format!(
        "this node belongs to another cluster ({own:016x}, not {theirs:016x}), which was founded \
         separately, for example from another list of peers or from a backup; if its data is not \
         needed any more, restart it with an empty data directory"
    );
    Refusal::new(RefusalCode::Cluster, text)
}

/// Checks that `hello` is for this node, from another one, and of a compatible cluster.
pub(crate) fn check(local: &LocalPeer, hello: &Hello) -> Result<(), Refusal> {
    if !may_connect(hello.cluster, local.cluster) {
        return Err(other_cluster(local.cluster, hello.cluster));
    }
    let (code, text) = if hello.from == local.node {
        if hello.run.boot != local.boot {
            return Err(Refusal::duplicate(local.node, &local.address, &hello.run.address));
        }
        (RefusalCode::OwnId, format!("node {:016x} is this node", hello.from))
    } else if hello.to != local.node && hello.to != 0 {
        let text =
            format!("this is node {:016x}, and {:016x} is not here any more", local.node, hello.to);
        (RefusalCode::NotAddressed, text)
    } else if hello.from == 0 {
        (RefusalCode::Malformed, "0 is not a node id".to_owned())
    } else {
        return Ok(());
    };
    Err(Refusal::new(code, text))
}

/// The id of a client whose process has this `boot`.
pub(crate) fn client_id(boot: u64) -> NodeId {
    let hash = Sha1::new().chain_update("quorate client").chain_update(boot.to_le_bytes());
    let bytes = hash.finalize();
    bytes[..8].iter().fold(0, |id, byte| id << 8 | u64::from(*byte)).max(1)
}

/// Checks that a client has not taken another's id.
pub(crate) fn check_client(hello: &Hello) -> Result<(), Refusal> {
    if !hello.run.is_client() || hello.from == client_id(hello.run.boot) {
        return Ok(());
    }
    let text = format!("the id {:016x} is not that of this client's process", hello.from);
    Err(Refusal::new(RefusalCode::Identity, text))
}

/// Checks that the node with the id `to` has welcomed this node, or any suitable node if `to` is 0.
/// Returns the id of the node that has answered.
pub(crate) fn check_responder(
    local: &LocalPeer,
    to: NodeId,
    responder: &Responder,
) -> Result<NodeId, Refusal> {
    if !may_connect(responder.cluster, local.cluster) {
        return Err(other_cluster(local.cluster, responder.cluster));
    }
    let (code, text) = if to != 0 && responder.node != to {
        (
            RefusalCode::NotAddressed,
            format!("node {:016x} has answered, not {to:016x}", responder.node),
        )
    } else if responder.node == 0 || responder.node == local.node {
        (
            RefusalCode::OwnId,
            format!("a node has answered with the wrong id {:016x}", responder.node),
        )
    } else {
        return Ok(responder.node);
    };
    Err(Refusal::new(code, text))
}

/// The start of `text`: as much as an answer carries.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn front(mut buffer: Vec<u8>, version: u16) -> Vec<u8> {
    buffer.extend_from_slice(&MAGIC);
    buffer.extend_from_slice(&FORMATS.to_le_bytes());
    buffer.extend_from_slice(&version.to_le_bytes());
    buffer
}

/// The version and the rest, or the refusal of other formats; `None` if this is neither a hello nor an answer.
fn split_front(bytes: &[u8]) -> Option<Result<(u16, &[u8]), Refusal>> {
    let (formats, rest) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
    let formats = u16::from_le_bytes(*formats);
    if formats != FORMATS {
        return Some(Err(Refusal::formats(formats)));
    }
    let (version, rest) = rest.split_first_chunk()?;
    Some(Ok((u16::from_le_bytes(*version), rest)))
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
            version: 1,
            address: "one:7400".to_owned(),
            boot: 8,
        }
    }

    fn hello() -> Hello {
        let run = ProcessRun { address: "two:7400".to_owned(), boot: 300 };
        Hello { version: 1, cluster: 77, from: 2, to: 1, incarnation: 6, run }
    }

    #[test]
    fn golden_handshake() {
        let mut golden = crate::golden::Golden::new("handshake");
        golden.sample("hello", &hello().encode(Vec::new()));
        let welcome = HelloReply::Welcome(Responder::of(&local()));
        golden.sample("welcome", &welcome.encode(1, Vec::new()));
        for (name, code, text) in [
            ("refusal", RefusalCode::Cluster, "another cluster"),
            ("refusal, other keys", RefusalCode::Security, "other keys"),
            ("refusal, another's id", RefusalCode::Identity, "another's"),
            ("refusal, a copied directory", RefusalCode::Duplicate, "a copy"),
            ("refusal, no member's credential", RefusalCode::Right, "a client"),
            ("refusal, a node that has stopped", RefusalCode::Stopped, "no disk"),
        ] {
            let refusal = Refusal::new(code, text.to_owned());
            golden.sample(name, &HelloReply::Refused(refusal).encode(1, Vec::new()));
        }
        golden.sample("preface of a secret", &crate::transport::secure::SECRET_PREFACE);
        golden.check();
    }

    #[test]
    fn hello_and_answers_survive_encoding() {
        let bytes = hello().encode(Vec::new());
        assert_eq!(&bytes[..8], b"quorate\n");
        assert_eq!(&bytes[8..12], [FORMATS.to_le_bytes(), 1_u16.to_le_bytes()].concat());
        assert_eq!(Hello::decode(&bytes, 1..=1), Ok(hello()));
        assert_eq!(Hello::decode(&bytes, 1..=3), Ok(hello()));
        let second = Hello { version: 2, ..hello() };
        assert_eq!(Hello::decode(&second.encode(Vec::new()), 1..=3), Ok(second));
        for code in (1..=255).map(RefusalCode::from_byte) {
            let answer = HelloReply::Refused(Refusal::new(code, "nein \u{fc}".to_owned()));
            assert_eq!(HelloReply::decode(&answer.encode(3, Vec::new())), Some((3, answer)));
        }
        let welcome = HelloReply::Welcome(Responder::of(&local()));
        assert_eq!(HelloReply::decode(&welcome.encode(4, Vec::new())), Some((4, welcome)));
    }

    #[test]
    fn hello_of_another_version_is_recognised_whatever_follows() {
        for body in [&b""[..], b"\xff\xff\xff", &[0; 3000]] {
            let bytes = [&front(Vec::new(), 258), body].concat();
            let refusal = Hello::decode(&bytes, 1..=2).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Protocol);
            assert!(refusal.text.contains("versions 1 to 2"), "{}", refusal.text);
            assert!(refusal.text.contains("258"), "{}", refusal.text);
        }
    }

    /// A build whose formats differ said that it was of the same version. Its hello was welcomed, its first message
    /// could not be read, and that once in a hundred connections was all that anybody was told.
    #[test]
    fn a_build_with_other_formats_is_refused_by_their_numbers_whatever_follows() {
        let named = |refusal: &Refusal, theirs: u16| {
            let theirs =
                format!("are those of number {theirs}, and this build reads number {FORMATS}");
            refusal.code == RefusalCode::Formats && refusal.text.contains(&theirs)
        };
        for theirs in [1, FORMATS + 1, 258] {
            for body in [&b""[..], b"\xff", b"\x01\x00\x01", &[0; 3000]] {
                let bytes = [&b"quorate\n"[..], &theirs.to_le_bytes(), body].concat();
                assert!(named(&Hello::decode(&bytes, 1..=2).unwrap_err(), theirs));
                let Some((_, HelloReply::Refused(refusal))) = HelloReply::decode(&bytes) else {
                    panic!("no refusal");
                };
                assert!(named(&refusal, theirs));
            }
        }
        // A build of before had its version there, which was 1. It refuses this one by its version.
        const { assert!(FORMATS > 1) };
    }

    #[test]
    fn a_malformed_address_is_refused() {
        let long = format!("{}:7400", "x".repeat(ADDRESS_BYTES_MAX));
        for address in ["two", "two:0", ":7400", "t\no:7400", "t o:7400", &long] {
            let run = ProcessRun { address: address.to_owned(), boot: 1 };
            let hello = Hello { run: run.clone(), ..hello() };
            let refused = Hello::decode(&hello.encode(Vec::new()), 1..=3).unwrap_err();
            assert_eq!(refused.code, RefusalCode::Malformed, "{address:?}");
            assert_no_welcome(run);
        }
        // A client's hello has no address. A welcome must have one.
        let no_address = ProcessRun { address: String::new(), boot: 1 };
        let hello_of_client = Hello { run: no_address.clone(), ..hello() };
        let bytes = hello_of_client.encode(Vec::new());
        assert_eq!(Hello::decode(&bytes, 1..=3), Ok(hello_of_client));
        assert_no_welcome(no_address);
        fn assert_no_welcome(run: ProcessRun) {
            let address = run.address.clone();
            let welcome = HelloReply::Welcome(Responder { node: 1, cluster: 0, run });
            assert_eq!(HelloReply::decode(&welcome.encode(3, Vec::new())), None, "{address:?}");
        }
        let bytes = hello().encode(Vec::new());
        assert!(Hello::decode(&bytes[..bytes.len() - 1], 1..=3).is_err());
        assert!(Hello::decode(&[&bytes[..], b"0"].concat(), 1..=3).is_err());
    }

    #[test]
    fn hello_is_checked_in_every_respect() {
        let code = |hello: Hello| check(&local(), &hello).map_err(|refusal| refusal.code);
        let own = |boot| ProcessRun { boot, ..ProcessRun::of(&local()) };
        for good in [hello(), Hello { to: 0, ..hello() }, Hello { cluster: 0, ..hello() }] {
            assert_eq!(code(good), Ok(()));
        }
        let wrong = [
            (Hello { cluster: 78, ..hello() }, RefusalCode::Cluster),
            (Hello { cluster: 78, to: 0, ..hello() }, RefusalCode::Cluster),
            (Hello { to: 3, ..hello() }, RefusalCode::NotAddressed),
            (Hello { from: 1, run: own(8), ..hello() }, RefusalCode::OwnId),
            (Hello { from: 1, to: 0, run: own(8), ..hello() }, RefusalCode::OwnId),
            (Hello { from: 1, to: 0, run: own(9), ..hello() }, RefusalCode::Duplicate),
            (Hello { from: 0, ..hello() }, RefusalCode::Malformed),
        ];
        for (hello, refused) in wrong {
            assert_eq!(code(hello), Err(refused));
        }
        let blank = LocalPeer { cluster: 0, ..local() };
        assert_eq!(check(&blank, &Hello { cluster: 78, ..hello() }), Ok(()));
    }

    #[test]
    fn responder_is_checked_in_every_respect() {
        let code = |to, node, cluster| {
            let responder = Responder { node, cluster, ..Responder::of(&local()) };
            check_responder(&local(), to, &responder).map_err(|refusal| refusal.code)
        };
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
        let answer = HelloReply::Refused(Refusal::new(RefusalCode::Cluster, text));
        let bytes = answer.encode(1, Vec::new());
        assert!(bytes.len() <= front(Vec::new(), 1).len() + 1 + TEXT_BYTES_MAX);
        let Some((1, HelloReply::Refused(refusal))) = HelloReply::decode(&bytes) else {
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
            let bytes =
                if ours > 0 { [front(Vec::new(), ours.into()), bytes].concat() } else { bytes };
            let _ = HelloReply::decode(&bytes);
            if let Ok(hello) = Hello::decode(&bytes, 1..=3) {
                prop_assert_eq!(&Hello::decode(&hello.encode(Vec::new()), 1..=3), &Ok(hello.clone()));
                let _ = check(&local(), &hello);
            }
        }

        #[test]
        fn welcome_is_decoded_exactly_or_not_at_all(
            node in any::<u64>(),
            cluster in any::<u64>(),
            boot in any::<u64>(),
            harm in any::<u8>(),
            at in 13..30_usize,
        ) {
            let run = ProcessRun { address: "a.b:1".to_owned(), boot };
            let welcome = HelloReply::Welcome(Responder { node, cluster, run });
            let mut bytes = welcome.encode(3, Vec::new());
            prop_assert_eq!(HelloReply::decode(&bytes), Some((3, welcome)));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= harm;
            }
            if let Some((_, answer)) = HelloReply::decode(&bytes) {
                let again = HelloReply::decode(&answer.encode(3, Vec::new()));
                prop_assert_eq!(again, Some((3, answer)));
            }
        }
    }
}
