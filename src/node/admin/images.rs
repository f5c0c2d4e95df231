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
    /// `None`: the end was sent. The last piece is kept, in case it was lost, until another transfer needs the place.
    chunks: Option<ChunkWriter>,
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
            if self.open.len() >= IMAGES_MAX && !self.displace_finished() {
                return refused(
                    "the member sends as many backups as it may; try again in a minute",
                );
            }
            let mut state = state();
            if right < Right::Member {
                state.hide_credentials();
            }
            let end = ImageEnd { zxid: state.zxid(), hash: state.hash() };
            let (chunks, last) = (Some(ChunkWriter::full(state)), (Bytes::new(), None));
            self.open.insert(of, ImageTransfer { chunks, end, next: 0, last, until: now });
        }
        let Some(image) = self.open.get_mut(&of) else {
            return refused("the member has given this backup up; begin again");
        };
        image.until = now + SILENCE;
        if number == image.next {
            image.next += 1;
            image.last = match image.chunks.as_mut().and_then(ChunkWriter::next) {
                Some(chunk) => (chunk.into(), None),
                None => {
                    image.chunks = None;
                    (Bytes::new(), Some(image.end))
                }
            };
        } else if number + 1 != image.next {
            return refused("the pieces of a backup are read in their order");
        }
        let (bytes, end) = image.last.clone();
        AdminReply::Image { bytes, end }
    }

    /// Frees a place whose transfer has ended. False if there is none.
    fn displace_finished(&mut self) -> bool {
        let finished = self.open.iter().filter(|(_, image)| image.chunks.is_none());
        let oldest = finished.min_by_key(|(_, image)| image.until).map(|(of, _)| *of);
        oldest.is_some_and(|of| self.open.remove(&of).is_some())
    }

    /// Gives up the transfers to a lost peer, which begins again, with any member.
    pub(super) fn peer_lost(&mut self, peer: NodeId) {
        self.open.retain(|(to, _), _| *to != peer);
    }

    /// Gives up the transfers that are not asked for any more.
    pub(super) fn tidy(&mut self, now: Time) {
        self.open.retain(|_, image| image.until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    const REFUSED: &str = "the member sends as many backups as it may; try again in a minute";

    fn ask(images: &mut Images, of: (NodeId, u64), number: u32) -> AdminReply {
        images.piece(of, number, || Machine::new().state(), Right::Member, Time::ZERO)
    }

    fn is_refused(reply: &AdminReply) -> bool {
        matches!(reply, AdminReply::Refused { reason } if reason == REFUSED)
    }

    /// Reads a whole state, and returns the number of its last piece.
    fn finish(images: &mut Images, of: (NodeId, u64)) -> u32 {
        let is_last = |reply| match reply {
            AdminReply::Image { end, .. } => end.is_some(),
            other => panic!("{other:?}"),
        };
        (0..).find(|number| is_last(ask(images, of, *number))).unwrap()
    }

    #[test]
    fn a_transfer_that_has_ended_gives_up_its_place() {
        let mut images = Images::default();
        for transfer in 0..5 {
            let last = finish(&mut images, (7, transfer));
            // The answer was lost.
            assert!(matches!(
                ask(&mut images, (7, transfer), last),
                AdminReply::Image { end: Some(_), .. }
            ));
            assert!(images.open.len() <= IMAGES_MAX);
            assert!(images.open.values().all(|image| image.chunks.is_none()), "no state is kept");
        }
        // Those that have not ended keep theirs.
        for transfer in 5..7 {
            ask(&mut images, (7, transfer), 0);
        }
        assert!(is_refused(&ask(&mut images, (8, 1), 0)));
        finish(&mut images, (7, 5));
        assert!(!is_refused(&ask(&mut images, (8, 1), 0)));
        assert!(is_refused(&ask(&mut images, (8, 2), 0)));
    }

    #[test]
    fn the_transfers_to_a_lost_peer_give_up_their_places() {
        let mut images = Images::default();
        for transfer in 0..2 {
            ask(&mut images, (7, transfer), 0);
        }
        images.peer_lost(8);
        assert!(is_refused(&ask(&mut images, (9, 1), 0)));
        images.peer_lost(7);
        assert!(!is_refused(&ask(&mut images, (9, 1), 0)));
    }
}
