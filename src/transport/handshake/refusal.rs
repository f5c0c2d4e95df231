//! Why a connection is refused.

use crate::types::membership::NodeId;

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

    pub(super) fn to_byte(self) -> u8 {
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

    pub(super) fn from_byte(byte: u8) -> RefusalCode {
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
