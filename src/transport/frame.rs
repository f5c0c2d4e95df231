//! Frames, which split the bytes of a connection into payloads. A payload arrives whole and undamaged,
//! or not at all.
//!
//! ```text
//! length of the payload, u32 LE | xxh3_64 of the payload, u64 LE | payload
//! ```
//!
//! The frame format never changes, whatever the protocol's version: a node must be able to read the
//! hello of any other in order to refuse it with a reason.
//!
//! Invariants of [`FrameReader`]: it accepts no length above its limit. It reserves at most
//! [`AHEAD_BYTES`] more than has arrived, whatever length a frame declares. After an error it
//! returns the same error for ever, since the start of the next frame is not known.
//!
//! Not here: what payloads mean (`handshake`, `PeerMessage`), and sockets (`tcp`).

use xxhash_rust::xxh3::xxh3_64;

/// The bytes before each payload.
pub(crate) const HEADER_BYTES: usize = 4 + 8;

/// The most a reader reserves beyond what has arrived.
const AHEAD_BYTES: usize = 256 << 10;

/// An empty reader that has grown beyond this frees its memory.
const KEPT_BYTES: usize = 128 << 10;

/// Why bytes cannot be frames of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The declared length is above what is accepted at this point.
    #[error("a frame of {bytes} bytes, where at most {limit} are accepted")]
    TooLong { bytes: usize, limit: usize },
    /// The payload differs from what was sent.
    #[error("a frame with a wrong checksum")]
    Checksum,
}

/// Appends one frame to `buffer`; `write` appends its payload.
///
/// Returns the payload's length. The payload is written in place, so that a message is encoded
/// once and never copied.
pub(crate) fn append_frame(buffer: &mut Vec<u8>, write: impl FnOnce(Vec<u8>) -> Vec<u8>) -> usize {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; HEADER_BYTES]);
    *buffer = write(std::mem::take(buffer));
    let payload = start + HEADER_BYTES;
    let bytes = buffer.len() - payload;
    let checksum = xxh3_64(&buffer[payload..]);
    // A length that does not fit is above every limit: the caller checks it before sending, and a
    // reader refuses it.
    let length = u32::try_from(bytes).unwrap_or(u32::MAX);
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    buffer[start + 4..payload].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Splits bytes, added as they arrive, into payloads.
#[derive(Debug)]
pub(crate) struct FrameReader {
    /// The bytes that have arrived; the part before `start` has been taken.
    buffer: Vec<u8>,
    start: usize,
    /// The longest payload accepted.
    limit: usize,
}

impl FrameReader {
    /// A reader that accepts payloads up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> FrameReader {
        FrameReader { buffer: Vec::new(), start: 0, limit }
    }

    /// Accepts payloads up to `limit` bytes from now on.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds bytes that have arrived. Take all frames before adding more: the reader holds whole
    /// frames until they are taken.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let len = self.buffer.len();
        if self.buffer.capacity() - len < bytes.len() {
            // The incomplete frame needs this many more bytes, if its header is correct.
            let declared = self.declared().filter(|declared| *declared <= self.limit);
            let missing =
                declared.map_or(0, |declared| (HEADER_BYTES + declared).saturating_sub(len));
            self.buffer.reserve_exact(missing.min(AHEAD_BYTES).max(bytes.len()));
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next whole payload; `None` if more bytes are needed.
    pub(crate) fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let Some(bytes) = self.declared() else {
            self.forget_taken();
            return Ok(None);
        };
        if bytes > self.limit {
            return Err(FrameError::TooLong { bytes, limit: self.limit });
        }
        let payload = self.start + HEADER_BYTES;
        if self.buffer.len() - payload < bytes {
            return Ok(None);
        }
        let end = payload + bytes;
        let checksum = xxh3_64(&self.buffer[payload..end]).to_le_bytes();
        if self.buffer[self.start + 4..payload] != checksum {
            return Err(FrameError::Checksum);
        }
        self.start = end;
        Ok(Some(&self.buffer[payload..end]))
    }

    /// Whether a frame has partly arrived.
    pub(crate) fn is_midway(&self) -> bool {
        self.buffer.len() > self.start
    }

    /// The declared length of the incomplete frame; `None` before its header is whole.
    fn declared(&self) -> Option<usize> {
        let header = self.buffer.get(self.start..self.start + HEADER_BYTES)?;
        usize::try_from(u32::from_le_bytes(*header.first_chunk()?)).ok()
    }

    fn forget_taken(&mut self) {
        if self.start == self.buffer.len() {
            self.start = 0;
            self.buffer.clear();
            if self.buffer.capacity() > KEPT_BYTES {
                self.buffer = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut buffer = Vec::new();
        append_frame(&mut buffer, |mut buffer| {
            buffer.extend_from_slice(payload);
            buffer
        });
        buffer
    }

    #[test]
    fn golden_frame() {
        let mut golden = crate::golden::Golden::new("frame");
        golden.sample("abc", &frame(b"abc"));
        golden.check();
    }

    #[test]
    fn frame_layout_is_fixed() {
        let bytes = frame(b"abc");
        assert_eq!(bytes[..4], [3, 0, 0, 0]);
        assert_eq!(bytes[4..12], xxh3_64(b"abc").to_le_bytes());
        assert_eq!(&bytes[12..], b"abc");
        assert_eq!(frame(b"").len(), HEADER_BYTES);
    }

    #[test]
    fn frame_longer_than_the_limit_is_refused_by_its_header_alone() {
        let mut reader = FrameReader::new(10);
        reader.push(&frame(&[7; 11])[..HEADER_BYTES]);
        let refused = FrameError::TooLong { bytes: 11, limit: 10 };
        assert_eq!(reader.next_frame(), Err(refused));
        assert_eq!(reader.next_frame(), Err(refused), "the error stays");
        let mut reader = FrameReader::new(10);
        reader.set_limit(11);
        reader.push(&frame(&[7; 11]));
        assert_eq!(reader.next_frame(), Ok(Some(&[7; 11][..])));
    }

    #[test]
    fn frame_with_any_byte_of_its_content_changed_is_refused() {
        let whole = frame(b"some payload");
        for at in 4..whole.len() {
            let mut harmed = whole.clone();
            harmed[at] ^= 0x10;
            let mut reader = FrameReader::new(100);
            reader.push(&harmed);
            assert_eq!(reader.next_frame(), Err(FrameError::Checksum), "byte {at}");
        }
    }

    #[test]
    fn reader_reserves_little_for_a_large_claim() {
        let mut reader = FrameReader::new(1 << 30);
        let mut arrived = 0;
        let header = (1_u32 << 30).to_le_bytes();
        reader.push(&[&header[..], &[0; 8]].concat());
        for _ in 0..100 {
            reader.push(&[0; 10_000]);
            arrived += 10_000;
            assert_eq!(reader.next_frame(), Ok(None));
            assert!(reader.buffer.capacity() <= HEADER_BYTES + arrived + AHEAD_BYTES);
        }
        assert!(reader.is_midway());
    }

    #[test]
    fn reader_gives_memory_back() {
        let mut reader = FrameReader::new(4 << 20);
        for part in frame(&vec![1; 3 << 20]).chunks(64 << 10) {
            assert!(reader.next_frame().unwrap().is_none());
            reader.push(part);
        }
        assert_eq!(reader.next_frame().unwrap().map(<[u8]>::len), Some(3 << 20));
        assert_eq!(reader.next_frame(), Ok(None));
        assert!(!reader.is_midway());
        assert_eq!(reader.buffer.capacity(), 0);
    }

    proptest! {
        #[test]
        fn frames_survive_any_splitting(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in prop::collection::vec(1_usize..200, 1..50),
        ) {
            let stream: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
            let mut reader = FrameReader::new(300);
            let mut read = Vec::new();
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                let (part, after) = rest.split_at((*cut).min(rest.len()));
                reader.push(part);
                while let Some(payload) = reader.next_frame().unwrap() {
                    read.push(payload.to_vec());
                }
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(read, payloads);
            prop_assert!(!reader.is_midway());
        }

        #[test]
        fn reader_takes_any_bytes_without_a_panic(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..20)) {
            let mut reader = FrameReader::new(1000);
            for part in &parts {
                reader.push(part);
                while let Ok(Some(_)) = reader.next_frame() {}
            }
        }
    }
}
