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

mod refusal;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

pub(crate) use self::refusal::{Refusal, RefusalCode};
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
mod tests;
