//! The bytes that wait to be written to one connection.
//!
//! Messages are encoded straight into large chunks, and a write takes many
//! chunks at once: a burst of small messages becomes one system call, and no
//! message is copied after it was encoded.
//!
//! Invariants: no chunk but a fresh one is empty; `bytes` is what the chunks hold minus `written`,
//! and at most `bytes_max`.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use crate::transport::frame::{HEADER_BYTES, append_frame};

/// A chunk that holds this much takes no further frame.
const CHUNK_BYTES: usize = 256 << 10;

/// The memory that an idle queue retains.
const KEPT_BYTES: usize = 8 << 10;

/// The most chunks in one write.
const SLICES_MAX: usize = 16;

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// There is no room: the peer is slower than this node.
    Full,
    /// Its payload is longer than the peer accepts.
    TooLong { bytes: usize },
}

#[derive(Debug)]
pub(super) struct WriteQueue {
    chunks: VecDeque<Vec<u8>>,
    /// How much of the first chunk has been written.
    written: usize,
    bytes: usize,
    bytes_max: usize,
    /// A written chunk, retained for its memory.
    spare: Vec<u8>,
}

impl WriteQueue {
    pub(super) fn new(bytes_max: usize) -> WriteQueue {
        WriteQueue { chunks: VecDeque::new(), written: 0, bytes: 0, bytes_max, spare: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Appends one frame. `write` appends its payload to the given buffer.
    pub(super) fn push(
        &mut self,
        payload_bytes_max: usize,
        write: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Result<(), Rejected> {
        // Checked before encoding: a message that is dropped anyway should cost nothing.
        if self.bytes + HEADER_BYTES > self.bytes_max {
            return Err(Rejected::Full);
        }
        let mut chunk = match self.chunks.pop_back() {
            Some(chunk) if chunk.len() < CHUNK_BYTES => chunk,
            full => {
                self.chunks.extend(full);
                std::mem::take(&mut self.spare)
            }
        };
        let before = chunk.len();
        let payload_bytes = append_frame(&mut chunk, write);
        let added = chunk.len() - before;
        let rejected = if payload_bytes > payload_bytes_max {
            Some(Rejected::TooLong { bytes: payload_bytes })
        } else if self.bytes + added > self.bytes_max {
            Some(Rejected::Full)
        } else {
            None
        };
        if rejected.is_some() {
            chunk.truncate(before);
        } else {
            self.bytes += added;
        }
        if chunk.is_empty() {
            self.keep(chunk);
        } else {
            self.chunks.push_back(chunk);
        }
        rejected.map_or(Ok(()), Err)
    }

    /// Writes as much as one call takes; returns how much that was.
    pub(super) fn write_to(&mut self, mut stream: impl Write) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut filled = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            let from = if filled == 0 { self.written } else { 0 };
            *slice = IoSlice::new(&chunk[from..]);
            filled += 1;
        }
        let bytes = stream.write_vectored(&slices[..filled])?;
        self.advance(bytes);
        Ok(bytes)
    }

    fn advance(&mut self, bytes: usize) {
        // Do not trust a `Write` that claims to have taken more than it was given.
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.written += bytes;
        while let Some(first) = self.chunks.front()
            && self.written >= first.len()
        {
            self.written -= first.len();
            if let Some(chunk) = self.chunks.pop_front() {
                self.keep(chunk);
            }
        }
    }

    /// Frees all memory but that of a few messages.
    pub(super) fn give_back(&mut self) {
        if self.spare.capacity() > KEPT_BYTES {
            self.spare = Vec::new();
        }
    }

    /// Retains a chunk's memory for the next one, unless a large message has made it too large.
    fn keep(&mut self, mut chunk: Vec<u8>) {
        if chunk.capacity() > self.spare.capacity() && chunk.capacity() <= 4 * CHUNK_BYTES {
            chunk.clear();
            self.spare = chunk;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::frame::FrameReader;

    fn payload(bytes: usize) -> impl FnOnce(Vec<u8>) -> Vec<u8> {
        move |mut buffer| {
            buffer.extend(std::iter::repeat_n(bytes as u8, bytes));
            buffer
        }
    }

    /// Takes at most a number of bytes in each call.
    struct Narrow(usize, Vec<u8>);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.1.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn queue_writes_frames_in_order_however_little_is_taken() {
        let mut queue = WriteQueue::new(1 << 30);
        let sizes = [0, 1, 200, CHUNK_BYTES - 1, 1, CHUNK_BYTES * 3, 7];
        for size in sizes {
            queue.push(usize::MAX, payload(size)).unwrap();
        }
        let mut narrow = Narrow(977, Vec::new());
        let mut total = 0;
        while !queue.is_empty() {
            total += queue.write_to(&mut narrow).unwrap();
        }
        assert_eq!(total, narrow.1.len());
        assert!(queue.chunks.is_empty());
        let mut reader = FrameReader::new(CHUNK_BYTES * 3);
        reader.push(&narrow.1);
        for size in sizes {
            assert_eq!(reader.next_frame().unwrap().map(<[u8]>::len), Some(size));
        }
    }

    #[test]
    fn queue_refuses_what_is_too_much_and_keeps_the_rest_whole() {
        let mut queue = WriteQueue::new(3 * (HEADER_BYTES + 10));
        assert_eq!(queue.push(20, payload(21)), Err(Rejected::TooLong { bytes: 21 }));
        assert!(queue.is_empty() && queue.chunks.is_empty());
        queue.push(20, payload(10)).unwrap();
        queue.push(20, payload(10)).unwrap();
        assert_eq!(queue.push(20, payload(11)), Err(Rejected::Full));
        queue.push(20, payload(10)).unwrap();
        assert_eq!(queue.push(20, payload(0)), Err(Rejected::Full));
        let mut narrow = Narrow(usize::MAX, Vec::new());
        while !queue.is_empty() {
            queue.write_to(&mut narrow).unwrap();
        }
        assert_eq!(narrow.1.len(), 3 * (HEADER_BYTES + 10));
        queue.push(20, payload(10)).unwrap();
    }
}
