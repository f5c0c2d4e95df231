//! What things cost in time: steps of a node's thread, messages on a link, writes to a disk.
//!
//! Without costs, a step takes no time, and a message of a megabyte takes no longer than an empty
//! one. Then problems that occur only under load would never show: a thread that is busy while
//! others wait, or a transfer that takes longer than the log is kept.
//!
//! The processor times are rough values for an ordinary machine and a release build. Only their
//! proportions matter.

use super::clock::{MICRO, Nanos, SECOND};
use crate::node::message::PeerMessage;

/// To receive a message, a user's call or a completion of the disk, and to act on it.
pub(super) const INPUT: Nanos = 2 * MICRO;
/// To apply a request to the state machine and to send its reply.
const REQUEST: Nanos = 3 * MICRO;
/// To copy, encode or decode a byte.
const BYTE: Nanos = 1;
/// To look up one session and update it.
const SESSION: Nanos = 200;

/// The speed of the machines of a world and of the links between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// The bandwidth of a link, in bytes per second.
    pub(crate) link: u64,
    /// The bandwidth of a disk, in bytes per second.
    pub(crate) disk: u64,
}

/// The work that a step has applied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Applied {
    pub(super) requests: u64,
    pub(super) bytes: u64,
}

/// The time that the node's thread takes to send or to receive a message.
pub(super) fn message(message: &PeerMessage, bytes: usize) -> Nanos {
    let sessions = match message {
        PeerMessage::ReadIndex { sessions, .. } | PeerMessage::ClientReadIndex { sessions, .. } => {
            sessions.len()
        }
        _ => 0,
    };
    INPUT + BYTE * bytes as u64 + SESSION * sessions as u64
}

/// The time that the node's thread takes to apply this.
pub(super) fn apply(applied: Applied) -> Nanos {
    REQUEST * applied.requests + BYTE * applied.bytes
}

impl Costs {
    /// The time that a message is on its link, without the latency.
    pub(super) fn on_link(&self, bytes: usize) -> Nanos {
        at_rate(bytes as u64, self.link)
    }

    /// The time that a disk takes to write this, without its latency.
    pub(super) fn on_disk(&self, bytes: u64) -> Nanos {
        at_rate(bytes, self.disk)
    }

    /// The least time that it takes to bring so many bytes to another member's disk.
    pub(super) fn transfer(&self, bytes: u64) -> Nanos {
        at_rate(bytes, self.link) + at_rate(bytes, self.disk)
    }
}

fn at_rate(bytes: u64, a_second: u64) -> Nanos {
    (u128::from(bytes) * u128::from(SECOND) / u128::from(a_second.max(1))) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_with_bytes() {
        let costs = Costs { link: 1 << 20, disk: 2 << 20 };
        assert_eq!(costs.on_link(1 << 19), SECOND / 2);
        assert_eq!(costs.on_disk(1 << 20), SECOND / 2);
        assert_eq!(costs.transfer(2 << 20), 3 * SECOND);
        let many = PeerMessage::ReadIndex {
            boot: 1,
            read_index: 1,
            sessions: vec![crate::types::znode::SessionId::from_number(1); 5_000],
        };
        assert_eq!(message(&many, 45_000), INPUT + 45_000 + 5_000 * SESSION);
        assert_eq!(message(&PeerMessage::Leave, 1), INPUT + 1);
    }
}
