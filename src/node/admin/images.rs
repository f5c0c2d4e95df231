//! The state of a replica, sent in pieces to a client that makes a backup of it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::message::{AdminReply, ImageEnd};
use crate::machine::State;
use crate::machine::snapshot::ChunkWriter;
use crate::node::io::Time;
use crate::types::membership::NodeId;
use crate::types::right::Right;

/// How many states are sent at once. Each stays in memory as it was when its transfer began.
const IMAGES_MAX: usize = 2;
/// After this time without a request, a transfer is given up.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(in crate::node) struct Images {
    open: BTreeMap<(NodeId, u64), ImageTransfer>,
}

#[derive(Debug)]
struct ImageTransfer {
    chunks: ChunkWriter,
    end: ImageEnd,
    /// The number of the next piece, and the last one, which may have been lost.
    next: u32,
    last: (Bytes, Option<ImageEnd>),
    until: Time,
}

impl Images {
    /// Returns the piece of this number. The first piece takes the state as it is now; for whoever is no member
    /// without what it takes to act as its sessions.
    pub(in crate::node) fn piece(
        &mut self,
        of: (NodeId, u64),
        number: u32,
        state: impl FnOnce() -> State,
        right: Right,
        now: Time,
    ) -> AdminReply {
        let refused = |reason: &str| AdminReply::Refused { reason: reason.to_owned() };
        if number == 0 && !self.open.contains_key(&of) {
            if self.open.len() >= IMAGES_MAX {
                return refused(
                    "the member sends as many backups as it may; try again in a minute",
                );
            }
            let mut state = state();
            if right < Right::Member {
                state.hide_credentials();
            }
            let end = ImageEnd { zxid: state.zxid(), hash: state.hash() };
            let (chunks, last) = (ChunkWriter::full(state), (Bytes::new(), None));
            self.open.insert(of, ImageTransfer { chunks, end, next: 0, last, until: now });
        }
        let Some(image) = self.open.get_mut(&of) else {
            return refused("the member has given this backup up; begin again");
        };
        image.until = now + SILENCE;
        if number == image.next {
            image.next += 1;
            image.last = match image.chunks.next() {
                Some(chunk) => (chunk.into(), None),
                None => (Bytes::new(), Some(image.end)),
            };
        } else if number + 1 != image.next {
            return refused("the pieces of a backup are read in their order");
        }
        let (bytes, end) = image.last.clone();
        AdminReply::Image { bytes, end }
    }

    /// Gives up the transfers that are not asked for any more.
    pub(super) fn tidy(&mut self, now: Time) {
        self.open.retain(|_, image| image.until > now);
    }
}
