//! How peers introduce themselves: one [`Hello`] from who dials, one [`Answer`].
//!
//! Every form of both begins with a magic number and the version of the
//! protocol, so that any two versions can refuse each other by name.

use serde::{Deserialize, Serialize};

use super::LocalPeer;
use crate::machine::command::NodeId;
use crate::node::message::PROTOCOL_VERSION;

const MAGIC: [u8; 4] = *b"quor";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) cluster: u64,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    /// The sender's data directory: another number under the same id is another disk.
    pub(crate) incarnation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Welcome,
    Refused { reason: String },
}

/// Why bytes are not a greeting that this version can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Not of this protocol at all: nothing is answered.
    Noise,
    /// A peer of another version.
    Version(u16),
}

fn encode<T: Serialize>(value: &T, buffer: Vec<u8>) -> Vec<u8> {
    let mut buffer = buffer;
    buffer.extend(MAGIC);
    buffer.extend(PROTOCOL_VERSION.to_le_bytes());
    postcard::to_extend(value, buffer)
        .expect("encoding to a Vec fails only for types that have no length, and none is used")
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Unreadable> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(Unreadable::Noise)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(Unreadable::Noise)?;
    let version = u16::from_le_bytes(*version);
    if version != PROTOCOL_VERSION {
        return Err(Unreadable::Version(version));
    }
    match postcard::take_from_bytes(rest) {
        Ok((value, [])) => Ok(value),
        Ok(_) | Err(_) => Err(Unreadable::Noise),
    }
}

impl Hello {
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        encode(self, buffer)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello, Unreadable> {
        decode(bytes)
    }
}

impl Answer {
    pub(crate) fn encode(&self, buffer: Vec<u8>) -> Vec<u8> {
        encode(self, buffer)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Answer, Unreadable> {
        decode(bytes)
    }

    /// To a peer of another version.
    pub(crate) fn other_version(theirs: u16) -> Answer {
        Answer::Refused {
            reason: format!("it speaks protocol {PROTOCOL_VERSION}, and this is {theirs}"),
        }
    }
}

/// Whether the sender of a greeting is one of our peers.
pub(crate) fn check(
    hello: &Hello,
    local: &LocalPeer,
    known: impl Fn(NodeId) -> bool,
) -> Result<NodeId, String> {
    if hello.cluster != local.cluster {
        return Err("it is a member of another cluster (founded by another list of peers)".into());
    }
    if hello.to != local.node {
        return Err("it is another member than the one that was called".into());
    }
    if hello.from == local.node {
        return Err("it has this very identity itself (a copied data directory?)".into());
    }
    if !known(hello.from) {
        return Err("it does not know of this member".into());
    }
    Ok(hello.from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { cluster: 7, from: 2, to: 1, incarnation: 9 }
    }

    #[test]
    fn only_peers_of_this_cluster_are_let_in() {
        let local = LocalPeer { cluster: 7, node: 1, incarnation: 3 };
        let check = |hello: &Hello| check(hello, &local, |node| node == 2);
        assert_eq!(check(&hello()), Ok(2));
        assert!(check(&Hello { cluster: 8, ..hello() }).unwrap_err().contains("another cluster"));
        assert!(check(&Hello { to: 3, ..hello() }).is_err());
        assert!(check(&Hello { from: 1, ..hello() }).unwrap_err().contains("copied"));
        assert!(check(&Hello { from: 4, ..hello() }).is_err());
    }

    #[test]
    fn versions_and_noise_are_told_apart() {
        let bytes = hello().encode(Vec::new());
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
        let mut other = bytes.clone();
        other[4] = 99;
        assert_eq!(Hello::decode(&other), Err(Unreadable::Version(99)));
        assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\n"), Err(Unreadable::Noise));
        assert_eq!(Hello::decode(&bytes[..bytes.len() - 1]), Err(Unreadable::Noise));
    }
}
