//! Frames: how messages are told apart on a connection.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of the payload, little-endian |
//! | 8 | XXH3-64 of the payload, little-endian |
//! | length | payload |
//!
//! Nothing here reads or writes. Memory grows with what has arrived, never with
//! what a length says will come.

use xxhash_rust::xxh3::xxh3_64;

use crate::node::message::MESSAGE_BYTES_MAX;

const HEADER_BYTES: usize = 12;

/// The most a peer may send before it has introduced itself.
pub(crate) const GREETING_BYTES_MAX: usize = 4 << 10;

/// What has been read is dropped from the buffer when it has grown to this.
const SLACK_BYTES: usize = 64 << 10;

/// Why what arrived is not a frame. The connection is of no use after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {length} bytes, over the limit of {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("a frame whose checksum is wrong")]
    Damaged,
}

/// Appends a frame to `buffer`; `payload` appends what is in it.
pub(crate) fn write_frame(
    mut buffer: Vec<u8>,
    payload: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Vec<u8> {
    let start = buffer.len();
    buffer.extend([0; HEADER_BYTES]);
    let mut buffer = payload(buffer);
    let body = start + HEADER_BYTES;
    // Messages are far below 4 GiB: see `MESSAGE_BYTES_MAX`.
    let length = (buffer.len() - body) as u32;
    let checksum = xxh3_64(&buffer[body..]);
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    buffer[start + 4..body].copy_from_slice(&checksum.to_le_bytes());
    buffer
}

/// Cuts what arrives into frames.
#[derive(Debug)]
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    read: usize,
    limit: usize,
}

impl FrameReader {
    /// A reader for a peer that has not introduced itself: it takes short frames only.
    pub(crate) fn new() -> FrameReader {
        FrameReader { buffer: Vec::new(), read: 0, limit: GREETING_BYTES_MAX }
    }

    /// From now on, frames may be as long as messages are.
    pub(crate) fn trust(&mut self) {
        self.limit = MESSAGE_BYTES_MAX;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.read == self.buffer.len() {
            self.buffer.clear();
            self.read = 0;
        } else if self.read >= SLACK_BYTES {
            self.buffer.drain(..self.read);
            self.read = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next payload, if all of it is here.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let arrived = &self.buffer[self.read..];
        let Some((length, rest)) = arrived.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.limit {
            return Err(FrameError::TooLong { length, limit: self.limit });
        }
        let Some((checksum, rest)) = rest.split_first_chunk::<8>() else {
            return Ok(None);
        };
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.read + HEADER_BYTES;
        self.read = start + length;
        let payload = &self.buffer[start..self.read];
        if xxh3_64(payload) != u64::from_le_bytes(*checksum) {
            return Err(FrameError::Damaged);
        }
        Ok(Some(payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        write_frame(Vec::new(), |mut buffer| {
            buffer.extend_from_slice(payload);
            buffer
        })
    }

    #[test]
    fn frames_arrive_whole_however_they_are_cut() {
        let mut bytes = frame(b"one");
        bytes.extend(frame(b""));
        bytes.extend(frame(&[7; 3000]));
        for cut in 1..40 {
            let mut reader = FrameReader::new();
            let mut seen = Vec::new();
            for part in bytes.chunks(cut) {
                reader.push(part);
                while let Some(payload) = reader.next().unwrap() {
                    seen.push(payload.to_vec());
                }
            }
            assert_eq!(seen, [b"one".to_vec(), Vec::new(), vec![7; 3000]], "cut at {cut}");
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let good = frame(b"payload");
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut reader = FrameReader::new();
            reader.push(&bytes);
            assert!(!matches!(reader.next(), Ok(Some(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_long_frame_is_refused_by_its_length_alone() {
        let mut reader = FrameReader::new();
        reader.push(&u32::MAX.to_le_bytes());
        assert!(matches!(reader.next(), Err(FrameError::TooLong { .. })));
        assert!(reader.buffer.capacity() < 1024);
        let mut reader = FrameReader::new();
        let long = frame(&[1; GREETING_BYTES_MAX + 1]);
        reader.push(&long);
        assert!(reader.next().is_err());
        let mut reader = FrameReader::new();
        reader.trust();
        reader.push(&long);
        assert!(reader.next().unwrap().is_some());
    }
}
