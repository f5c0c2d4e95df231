//! The bytes that wait to be written to one connection.
//!
//! Messages are encoded directly into large chunks, and one write takes many chunks: a burst of small
//! messages becomes one system call, and no message is copied after it was encoded.
//!
//! Urgent frames are written before all others that wait, but not into the middle of a chunk that is
//! partly written.
//!
//! Invariants: no queued chunk is empty; a chunk holds whole frames; at most one lane's first chunk is
//! partly written; `bytes` is the number of bytes in the chunks that are not written yet, and at most
//! `bytes_max`.

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

#[derive(Debug, Default)]
struct Lane {
    chunks: VecDeque<Vec<u8>>,
    /// How much of the first chunk has been written.
    written: usize,
}

#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    urgent: Lane,
    usual: Lane,
    bytes: usize,
    bytes_max: usize,
    /// A written chunk, retained for its memory.
    spare: Vec<u8>,
}

impl Lane {
    /// The unwritten bytes of the chunks from index `from` on.
    fn slices(&self, from: usize) -> impl Iterator<Item = &[u8]> {
        let chunks = self.chunks.iter().enumerate().skip(from);
        chunks.map(|(at, chunk)| &chunk[if at == 0 { self.written } else { 0 }..])
    }

    /// Removes written bytes: at most `bytes`, from at most `chunks` chunks. Returns how many it
    /// removed.
    fn advance(&mut self, bytes: usize, chunks: usize, spare: &mut Vec<u8>) -> usize {
        let mut taken = 0;
        for _ in 0..chunks {
            let Some(first) = self.chunks.front() else { break };
            let part = (first.len() - self.written).min(bytes - taken);
            taken += part;
            self.written += part;
            if self.written < first.len() {
                break;
            }
            self.written = 0;
            if let Some(chunk) = self.chunks.pop_front() {
                keep(spare, chunk);
            }
        }
        taken
    }
}

/// Retains a chunk's memory for the next one, unless a large message has made it too large.
fn keep(spare: &mut Vec<u8>, mut chunk: Vec<u8>) {
    if chunk.capacity() > spare.capacity() && chunk.capacity() <= 4 * CHUNK_BYTES {
        chunk.clear();
        *spare = chunk;
    }
}

impl WriteQueue {
    pub(super) fn new(bytes_max: usize) -> WriteQueue {
        WriteQueue { bytes_max, ..WriteQueue::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// How many bytes wait, counted from the chunks.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let waiting = self.urgent.slices(0).chain(self.usual.slices(0)).map(<[u8]>::len).sum();
        assert_eq!(waiting, self.bytes, "all bytes are counted");
        waiting
    }

    /// Appends one frame to the urgent or the usual lane. `write` appends the frame's payload to the
    /// given buffer.
    pub(super) fn push(
        &mut self,
        urgent: bool,
        payload_bytes_max: usize,
        write: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Result<(), Rejected> {
        // Checked before encoding: a message that is dropped anyway should cost nothing.
        if self.bytes + HEADER_BYTES > self.bytes_max {
            return Err(Rejected::Full);
        }
        let lane = if urgent { &mut self.urgent } else { &mut self.usual };
        let mut chunk = match lane.chunks.pop_back() {
            Some(chunk) if chunk.len() < CHUNK_BYTES => chunk,
            full => {
                lane.chunks.extend(full);
                std::mem::take(&mut self.spare)
            }
        };
        let before = chunk.len();
        let payload_bytes = append_frame(&mut chunk, write);
        let added = chunk.len() - before;
        let pushed = if payload_bytes > payload_bytes_max {
            Err(Rejected::TooLong { bytes: payload_bytes })
        } else if self.bytes + added > self.bytes_max {
            Err(Rejected::Full)
        } else {
            self.bytes += added;
            Ok(())
        };
        if pushed.is_err() {
            chunk.truncate(before);
        }
        match chunk.is_empty() {
            true => keep(&mut self.spare, chunk),
            false => lane.chunks.push_back(chunk),
        }
        pushed
    }

    /// Writes as much as one call takes; returns how much that was.
    pub(super) fn write_to(&mut self, mut stream: impl Write) -> io::Result<usize> {
        // A partly written chunk is finished first.
        let begun = usize::from(self.usual.written > 0);
        let waiting = self.usual.slices(0).take(begun);
        let waiting = waiting.chain(self.urgent.slices(0)).chain(self.usual.slices(begun));
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut filled = 0;
        for (slice, bytes) in slices.iter_mut().zip(waiting) {
            *slice = IoSlice::new(bytes);
            filled += 1;
        }
        // Do not trust a `Write` that claims to have taken more than it was given.
        let bytes = stream.write_vectored(&slices[..filled])?.min(self.bytes);
        self.bytes -= bytes;
        let begun = self.usual.advance(bytes, begun, &mut self.spare);
        let urgent = self.urgent.advance(bytes - begun, usize::MAX, &mut self.spare);
        self.usual.advance(bytes - begun - urgent, usize::MAX, &mut self.spare);
        Ok(bytes)
    }

    /// Frees the memory of the spare chunk, except for a small one.
    pub(super) fn give_back(&mut self) {
        if self.spare.capacity() > KEPT_BYTES {
            self.spare = Vec::new();
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
            queue.push(false, usize::MAX, payload(size)).unwrap();
        }
        let mut narrow = Narrow(977, Vec::new());
        let mut total = 0;
        while !queue.is_empty() {
            total += queue.write_to(&mut narrow).unwrap();
        }
        assert_eq!(total, narrow.1.len());
        assert!(queue.usual.chunks.is_empty());
        let mut reader = FrameReader::new(CHUNK_BYTES * 3);
        reader.push(&narrow.1);
        for size in sizes {
            assert_eq!(reader.next_frame().unwrap().map(<[u8]>::len), Some(size));
        }
    }

    #[test]
    fn urgent_frames_wait_only_for_a_partly_written_chunk() {
        let mut queue = WriteQueue::new(1 << 30);
        let mut narrow = Narrow(100, Vec::new());
        queue.push(true, usize::MAX, payload(3)).unwrap();
        queue.write_to(&mut narrow).unwrap();
        for size in [CHUNK_BYTES, CHUNK_BYTES + 1, CHUNK_BYTES + 2] {
            queue.push(false, usize::MAX, payload(size)).unwrap();
        }
        queue.write_to(&mut narrow).unwrap();
        queue.push(true, usize::MAX, payload(5)).unwrap();
        queue.push(true, usize::MAX, payload(7)).unwrap();
        while !queue.is_empty() {
            queue.write_to(&mut narrow).unwrap();
        }
        let mut reader = FrameReader::new(CHUNK_BYTES * 3);
        reader.push(&narrow.1);
        for size in [3, CHUNK_BYTES, 5, 7, CHUNK_BYTES + 1, CHUNK_BYTES + 2] {
            assert_eq!(reader.next_frame().unwrap().map(<[u8]>::len), Some(size));
        }
    }

    #[test]
    fn each_lane_keeps_its_order_however_little_is_taken() {
        let mut random = 1_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((random >> 33) % end) as usize
        };
        for _ in 0..50 {
            let mut queue = WriteQueue::new(1 << 30);
            let (mut written, mut pushed) = (Vec::new(), [0_u8; 2]);
            let mut left = 60;
            while left > 0 || !queue.is_empty() {
                if left > 0 && below(3) > 0 {
                    left -= 1;
                    let (lane, more) = (below(2), below(2) * below(2 * CHUNK_BYTES as u64));
                    let head = [lane as u8, pushed[lane]];
                    pushed[lane] += 1;
                    let frame = |mut buffer: Vec<u8>| {
                        buffer.extend(head);
                        buffer.resize(buffer.len() + more, 0);
                        buffer
                    };
                    queue.push(lane == 1, usize::MAX, frame).unwrap();
                } else {
                    let mut narrow = Narrow(1 + below(200_000), Vec::new());
                    queue.write_to(&mut narrow).unwrap();
                    written.extend(narrow.1);
                }
            }
            let mut reader = FrameReader::new(CHUNK_BYTES * 3);
            reader.push(&written);
            let mut read = [0_u8; 2];
            while let Some(frame) = reader.next_frame().unwrap() {
                let lane = usize::from(frame[0]);
                assert_eq!(frame[1], read[lane]);
                read[lane] += 1;
            }
            assert_eq!(read, pushed);
        }
    }

    #[test]
    fn queue_refuses_frames_beyond_its_limit_and_keeps_the_others_whole() {
        let mut queue = WriteQueue::new(3 * (HEADER_BYTES + 10));
        assert_eq!(queue.push(false, 20, payload(21)), Err(Rejected::TooLong { bytes: 21 }));
        assert!(queue.is_empty() && queue.usual.chunks.is_empty());
        queue.push(false, 20, payload(10)).unwrap();
        queue.push(false, 20, payload(10)).unwrap();
        assert_eq!(queue.push(false, 20, payload(11)), Err(Rejected::Full));
        queue.push(false, 20, payload(10)).unwrap();
        assert_eq!(queue.push(false, 20, payload(0)), Err(Rejected::Full));
        let mut narrow = Narrow(usize::MAX, Vec::new());
        while !queue.is_empty() {
            queue.write_to(&mut narrow).unwrap();
        }
        assert_eq!(narrow.1.len(), 3 * (HEADER_BYTES + 10));
        queue.push(false, 20, payload(10)).unwrap();
    }
}
