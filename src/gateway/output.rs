//! The bytes that wait for a client to read them.
//!
//! Small values are gathered in pieces of a fixed size, so that nothing grows by being moved, and each piece is
//! freed as soon as it is sent. The data of znodes are not copied: all clients that read a znode share them with
//! the tree.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use super::wire::jute::Sink;

/// The size of a piece.
const PIECE_BYTES: usize = 16 << 10;
/// Shorter data are copied: that is cheaper than a piece of their own.
pub(super) const SHARED_BYTES: usize = 4 << 10;
/// A larger buffer is freed when it is empty.
const KEPT_BYTES: usize = 4 << 10;
/// A larger list of frames' ends is freed when it is empty.
const ENDS_KEPT: usize = 64;
/// The most pieces that one call writes.
pub(super) const PIECES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Output {
    pieces: VecDeque<Piece>,
    /// What comes after the pieces.
    last: BytesMut,
    bytes: usize,
    /// Those that no tree and no other client has.
    own: usize,
    /// Where frames end, counted from the first byte of the connection.
    ends: VecDeque<u64>,
    /// How many bytes were sent.
    sent: u64,
}

#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    is_shared: bool,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The bytes that it does not share.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// The first bytes of the first frame; empty if there are none.
    #[cfg(any(feature = "tls", test))]
    pub(super) fn first(&self) -> &[u8] {
        let first: &[u8] = self.pieces.front().map_or(&self.last, |piece| &piece.bytes);
        let rest = self.ends.front().and_then(|end| usize::try_from(end - self.sent).ok());
        &first[..rest.map_or(first.len(), |rest| rest.min(first.len()))]
    }

    /// The first pieces, to be written at once.
    pub(super) fn slices<'a>(&'a self, to: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
        let pieces = self.pieces.iter().map(|piece| &*piece.bytes);
        let all = pieces.chain([&*self.last]).filter(|piece| !piece.is_empty());
        let places = to.iter_mut().zip(all).map(|(place, piece)| *place = IoSlice::new(piece));
        places.count()
    }

    /// Removes bytes that were sent.
    pub(super) fn advance(&mut self, mut sent: usize) {
        self.bytes -= sent;
        self.sent += sent as u64;
        while self.ends.front().is_some_and(|end| *end <= self.sent) {
            self.ends.pop_front();
        }
        if self.ends.is_empty() && self.ends.capacity() > ENDS_KEPT {
            self.ends = VecDeque::new();
        }
        while let Some(piece) = self.pieces.front_mut() {
            let of_piece = sent.min(piece.bytes.len());
            piece.bytes.advance(of_piece);
            if !piece.is_shared {
                self.own -= of_piece;
            }
            sent -= of_piece;
            if !piece.bytes.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.last.advance(sent);
        self.own -= sent;
        if self.last.is_empty() && self.last.capacity() > KEPT_BYTES {
            self.last = BytesMut::new();
        }
        if self.pieces.capacity() > PIECES_MAX {
            self.pieces = VecDeque::new();
        }
    }

    fn end_piece(&mut self) {
        if !self.last.is_empty() {
            let bytes = std::mem::take(&mut self.last).freeze();
            self.pieces.push_back(Piece { bytes, is_shared: false });
        }
    }
}

impl Sink for Output {
    fn put_slice(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        self.own += bytes.len();
        while !bytes.is_empty() {
            if self.last.len() == PIECE_BYTES {
                self.end_piece();
            }
            let part = bytes.len().min(PIECE_BYTES - self.last.len());
            self.last.extend_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
        }
    }

    fn put_bytes(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_BYTES {
            return self.put_slice(bytes);
        }
        self.end_piece();
        self.bytes += bytes.len();
        self.pieces.push_back(Piece { bytes: bytes.clone(), is_shared: true });
    }

    fn end_frame(&mut self) {
        self.ends.push_back(self.sent + self.bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        let count = output.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn bytes_come_out_as_they_were_put_in_and_shared_ones_are_not_copied() {
        let shared = Bytes::from(vec![9; SHARED_BYTES]);
        let mut output = Output::default();
        output.put_slice(&[1; 100]);
        output.put_bytes(&shared);
        output.put_slice(&[2; PIECE_BYTES + 100]);
        let expected = [&[1; 100][..], &[9; SHARED_BYTES], &[2; PIECE_BYTES + 100]].concat();
        assert_eq!(all(&output), expected);
        assert_eq!((output.len(), output.own()), (expected.len(), PIECE_BYTES + 200));
        assert!(output.pieces[1].bytes.as_ptr() == shared.as_ptr());
        for sent in [1, 99, 50, SHARED_BYTES, PIECE_BYTES + 49] {
            let before = all(&output);
            output.advance(sent);
            assert_eq!(all(&output), before[sent..], "{sent}");
        }
        assert_eq!((output.len(), output.own(), output.is_empty()), (1, 1, false));
        output.advance(1);
        assert_eq!((output.len(), output.own(), output.is_empty()), (0, 0, true));
        assert!(output.last.capacity() <= KEPT_BYTES && output.pieces.is_empty());
    }

    #[test]
    fn the_first_bytes_are_of_one_frame() {
        let mut output = Output::default();
        for length in [3, PIECE_BYTES, 2 * PIECE_BYTES, 5] {
            output.put_slice(&vec![7; length]);
            output.end_frame();
        }
        // The last one has not ended.
        output.put_slice(&[8; 4]);
        let mut firsts = Vec::new();
        // A part of what is first may be sent.
        for most in [2, usize::MAX, 100].into_iter().chain(std::iter::repeat(usize::MAX)) {
            let sent = output.first().len().min(most);
            if sent == 0 {
                break;
            }
            firsts.push(sent);
            output.advance(sent);
        }
        let whole = PIECE_BYTES;
        assert_eq!(firsts, [2, 1, 100, whole - 103, 3, whole - 3, whole, 3, 5, 4]);
        assert!(output.is_empty() && output.ends.is_empty());
    }
}
