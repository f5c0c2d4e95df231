//! How two nodes make sure, before anything else is said, that they mean each other.
//!
//! The node that connects sends a [`Hello`], the other one [`Answer`]; each is
//! the payload of one frame of at most [`HANDSHAKE_BYTES_MAX`]. Only after a
//! welcome do messages flow, from the node that connected to the one that
//! answered.
//!
//! ```text
//! hello:   magic, 8 bytes | version, u16 LE | what follows depends on the version; so far: postcard of
//!          (cluster u64, from u64, to u64, incarnation u64)
//! answer:  magic, 8 bytes | version, u16 LE | code, u8 (0 = welcome) | text, UTF-8, for people
//! ```
//!
//! The front of the hello and the whole answer are the same in every version,
//! so that nodes of different versions can tell each other what is wrong.
//! Codes are only ever appended.
//!
//! The version of an answer is the highest that the node that answers can do, and that of a hello
//! the one that the connection is to have: the highest of the node that connects, at first. A node
//! that can do less refuses that ([`RefusalCode::Protocol`]), and by its answer is asked again
//! with the lower of both. One that is older than the oldest that a node can talk to is refused by
//! name, and so is a node that is too old for its peer; a newer one is as good as any.
//!
//! A hello is believed, not proven: what keeps strangers out lies below
//! (`secure`), and of a certificate's subject, where there is one, it is checked
//! that it stays with the node's id. What a hello keeps out are mistakes: another
//! cluster on a reused address, a node under another's address, two versions
//! that do not fit.
//!
//! Not here: timeouts and connections (`tcp`).

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::LocalPeer;
use crate::machine::command::NodeId;

/// The most a hello or an answer may take.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 4 << 10;

/// The most of an answer's text that is written or shown.
const TEXT_BYTES_MAX: usize = 512;

const MAGIC: [u8; 8] = *b"quorate\n";
const FRONT_BYTES: usize = MAGIC.len() + 2;

/// What a node says first on a connection that it has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) cluster: u64,
    pub(crate) from: NodeId,
    /// Whom the connection was meant for: addresses may have been given to others since.
    pub(crate) to: NodeId,
    pub(crate) incarnation: u64,
}

/// A hello's form, in all versions so far.
#[derive(Serialize, Deserialize)]
struct HelloBody {
    cluster: u64,
    from: NodeId,
    to: NodeId,
    incarnation: u64,
}

/// What the other node says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Welcome,
    Refused(Refusal),
}

/// Why a connection is refused, for the program and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    pub(crate) text: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCode {
    /// What arrived is not a hello.
    Malformed,
    /// The peer cannot talk in this version.
    Protocol,
    /// The peer is of another cluster.
    Cluster,
    /// The peer looks for another node than this one.
    NotAddressed,
    /// The peer claims to be this node.
    OwnId,
    /// The peer is not a member that this node knows, or not yet.
    UnknownPeer,
    /// The node that listens has other keys, or none, or demands some.
    Security,
    /// The peer's certificate is that of another node.
    Identity,
    /// A later version's reason.
    Other(u8),
}

impl RefusalCode {
    /// Whether trying again helps only after something was configured otherwise. A member that is
    /// not known may be a new one that this node has not yet heard of.
    pub(crate) fn is_permanent(self) -> bool {
        match self {
            RefusalCode::Protocol
            | RefusalCode::Cluster
            | RefusalCode::NotAddressed
            | RefusalCode::OwnId
            | RefusalCode::Security
            | RefusalCode::Identity
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
            other => RefusalCode::Other(other),
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: RefusalCode, text: String) -> Refusal {
        Refusal { code, text }
    }
}

impl Hello {
    /// Appends the encoded hello to `buffer`.
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        let body = HelloBody {
            cluster: self.cluster,
            from: self.from,
            to: self.to,
            incarnation: self.incarnation,
        };
        postcard::to_extend(&body, front(buffer, self.version))
            .expect("encoding four integers to a Vec cannot fail")
    }

    /// Decodes a hello; what is not one of these versions is a refusal to answer with.
    pub(crate) fn decode(bytes: &[u8], versions: RangeInclusive<u16>) -> Result<Hello, Refusal> {
        let malformed = |why: &str| Refusal::new(RefusalCode::Malformed, why.to_owned());
        let (version, body) = split_front(bytes).ok_or_else(|| malformed("this is not a hello"))?;
        if !versions.contains(&version) {
            // What follows is of a form that is not known here.
            let (oldest, newest) = versions.into_inner();
            return Err(Refusal::new(
                RefusalCode::Protocol,
                format!("this node can do versions {oldest} to {newest}, not {version}"),
            ));
        }
        match postcard::take_from_bytes::<HelloBody>(body) {
            Ok((body, [])) => Ok(Hello {
                version,
                cluster: body.cluster,
                from: body.from,
                to: body.to,
                incarnation: body.incarnation,
            }),
            Ok(_) | Err(_) => Err(malformed("the hello is damaged")),
        }
    }
}

impl Answer {
    /// Appends the encoded answer of a node that can do `version` at most to `buffer`.
    pub(crate) fn encode(&self, version: u16, buffer: Vec<u8>) -> Vec<u8> {
        let mut buffer = front(buffer, version);
        match self {
            Answer::Welcome => buffer.push(0),
            Answer::Refused(refusal) => {
                buffer.push(refusal.code.to_byte());
                buffer.extend_from_slice(shortened(&refusal.text).as_bytes());
            }
        }
        buffer
    }

    /// Decodes an answer of any version, and says which one; `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(u16, Answer)> {
        let (version, rest) = split_front(bytes)?;
        let (&code, text) = rest.split_first()?;
        if code == 0 {
            return Some((version, Answer::Welcome));
        }
        // The text goes to logs: whoever answers shall not be able to forge lines there.
        let text = String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)])
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .collect();
        Some((version, Answer::Refused(Refusal::new(RefusalCode::from_byte(code), text))))
    }
}

/// Decides whether the sender of `hello` is a peer: a member known here (`is_known`), of our
/// cluster, that means us.
pub(crate) fn check(
    local: &LocalPeer,
    hello: &Hello,
    is_known: impl FnOnce(NodeId) -> bool,
) -> Result<NodeId, Refusal> {
    let (code, text) = if hello.cluster != local.cluster {
        (
            RefusalCode::Cluster,
            format!(
                "this node belongs to another cluster ({:016x}, not {:016x}): clusters founded by \
                 different lists of peers are different clusters",
                local.cluster, hello.cluster
            ),
        )
    } else if hello.to != local.node {
        (RefusalCode::NotAddressed, format!("this is node {}, not {}", local.node, hello.to))
    } else if hello.from == local.node {
        (RefusalCode::OwnId, format!("node {} is this node", hello.from))
    } else if !is_known(hello.from) {
        (RefusalCode::UnknownPeer, format!("node {} is not a member known here", hello.from))
    } else {
        return Ok(hello.from);
    };
    Err(Refusal::new(code, text))
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

/// The version and what follows; `None` if the magic is not ours.
fn split_front(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (front, rest) = bytes.split_at_checked(FRONT_BYTES)?;
    let version = front.strip_prefix(&MAGIC)?;
    Some((u16::from_le_bytes([version[0], version[1]]), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOCAL: LocalPeer = LocalPeer { cluster: 77, node: 1, incarnation: 5, version: 2 };

    const HELLO: Hello = Hello { version: 1, cluster: 77, from: 2, to: 1, incarnation: 6 };

    #[test]
    fn golden_handshake() {
        let mut golden = crate::golden::Golden::new("handshake");
        golden.sample("hello", &HELLO.encode(Vec::new()));
        golden.sample("welcome", &Answer::Welcome.encode(1, Vec::new()));
        let refusal = Refusal::new(RefusalCode::Cluster, "another cluster".to_owned());
        golden.sample("refusal", &Answer::Refused(refusal).encode(1, Vec::new()));
        golden.sample("hello, version 2", &Hello { version: 2, ..HELLO }.encode(Vec::new()));
        golden.sample("welcome, version 2", &Answer::Welcome.encode(2, Vec::new()));
        let keys = Refusal::new(RefusalCode::Security, "other keys".to_owned());
        golden.sample("refusal, other keys", &Answer::Refused(keys).encode(2, Vec::new()));
        let identity = Refusal::new(RefusalCode::Identity, "another's".to_owned());
        golden.sample("refusal, another's id", &Answer::Refused(identity).encode(2, Vec::new()));
        golden.sample("preface of a secret", &crate::transport::secure::SECRET_PREFACE);
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
        let welcome = Answer::Welcome.encode(1, Vec::new());
        assert_eq!(Answer::decode(&welcome), Some((1, Answer::Welcome)));
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
    fn hello_is_checked_in_every_respect() {
        let known = |node| [2, 3].contains(&node);
        let code = |hello: Hello| check(&LOCAL, &hello, known).map_err(|refusal| refusal.code);
        assert_eq!(code(HELLO), Ok(2));
        let wrong = [
            (Hello { cluster: 78, ..HELLO }, RefusalCode::Cluster),
            (Hello { to: 3, ..HELLO }, RefusalCode::NotAddressed),
            (Hello { from: 1, ..HELLO }, RefusalCode::OwnId),
            (Hello { from: 4, ..HELLO }, RefusalCode::UnknownPeer),
        ];
        for (hello, refused) in wrong {
            assert_eq!(code(hello), Err(refused));
        }
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
        fn any_bytes_decode_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), ours in any::<bool>()) {
            let bytes = if ours { [&b"quorate\n\x01\x00"[..], &bytes].concat() } else { bytes };
            let _ = Answer::decode(&bytes);
            if let Ok(hello) = Hello::decode(&bytes, 1..=2) {
                prop_assert_eq!(Hello::decode(&hello.encode(Vec::new()), 1..=2), Ok(hello));
                let _ = check(&LOCAL, &hello, |_| true);
            }
        }
    }
}
