//! What takes how long: the steps of a node's thread, the messages on a link, the writes of a disk.
//!
//! Without it, a step takes no time at all, and a message of a megabyte no longer than an empty one. What
//! only shows under load would then never show: a thread that is busy with one thing while others wait, a
//! transfer that takes longer than the log is kept.
//!
//! The times of the processor are rough: those of a usual machine, of a release build. They only have to
//! be right in proportion.

use super::clock::{MICRO, Nanos, SECOND};
use crate::node::message::PeerMessage;

/// To take a message, a call of a user, or an answer of the disk in, and to act on it.
pub(super) const INPUT: Nanos = 2 * MICRO;
/// To apply a request to the state machine, and to tell whoever waits for it.
const REQUEST: Nanos = 3 * MICRO;
/// To copy, encode or decode a byte.
const BYTE: Nanos = 1;
/// To look up one session among the others, and to note something of it.
const SESSION: Nanos = 200;

/// The machines of a world, and the links between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// What a link carries in a second, in bytes.
    pub(crate) link: u64,
    /// What a disk writes in a second, in bytes.
    pub(crate) disk: u64,
}

/// What a step has applied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Applied {
    pub(super) requests: u64,
    pub(super) bytes: u64,
}

/// How long the node's thread is busy with a message: to send it, or to take it in.
pub(super) fn message(message: &PeerMessage, bytes: usize) -> Nanos {
    let sessions = match message {
        PeerMessage::ReadIndex { sessions, .. } | PeerMessage::ClientReadIndex { sessions, .. } => {
            sessions.len()
        }
        _ => 0,
    };
    INPUT + BYTE * bytes as u64 + SESSION * sessions as u64
}

/// How long the node's thread is busy with applying.
pub(super) fn apply(applied: Applied) -> Nanos {
    REQUEST * applied.requests + BYTE * applied.bytes
}

impl Costs {
    /// How long a message is on its link, besides the latency.
    pub(super) fn on_link(&self, bytes: usize) -> Nanos {
        at_rate(bytes as u64, self.link)
    }

    /// How long a disk writes this, besides its latency.
    pub(super) fn on_disk(&self, bytes: u64) -> Nanos {
        at_rate(bytes, self.disk)
    }

    /// How long it takes at least to bring so many bytes to another member's disk.
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
