//! Frames: a length of four bytes, then as many bytes.
//!
//! The first four bytes of a connection may be a four-letter word instead: as a length it would be far above any
//! limit. Later on a connection there are no words.

use bytes::{Buf, Bytes, BytesMut};

use super::jute::{Jute, Sink};

/// The longest accepted frame unless configured otherwise (`jute.maxbuffer`).
pub(crate) const JUTE_MAXBUFFER: usize = 0xf_ffff;

/// A length that is negative or above the limit. The start of the next frame is not known, so the
/// connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {declared} bytes, where at most {limit} are accepted")]
pub(crate) struct BadLength {
    pub(crate) declared: i32,
    pub(crate) limit: usize,
}

/// A body that its receiver would refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {bytes} bytes, where at most {limit} are accepted")]
pub(crate) struct TooLong {
    pub(crate) bytes: usize,
    pub(crate) limit: usize,
}

/// A decoded piece of a connection's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecodedPiece {
    /// One of the decoder's words, and its argument if it has one. It is answered, and the connection is
    /// closed.
    Word([u8; 4], Option<i64>),
    /// The body of a frame: a part of the buffer, not a copy.
    Frame(Bytes),
}

/// The only word with an argument, a number of eight bytes: it sets the trace mask.
const WITH_ARGUMENT: [u8; 4] = *b"stmk";

/// Splits received bytes into frames.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    buffer: BytesMut,
    limit: usize,
    words: &'static [[u8; 4]],
    /// Whether no length has been seen yet.
    at_start: bool,
}

impl FrameDecoder {
    /// For a new connection; `words` are the four-letter words that are answered.
    pub(crate) fn new(limit: usize, words: &'static [[u8; 4]]) -> Self {
        FrameDecoder { buffer: BytesMut::new(), limit, words, at_start: true }
    }

    /// Accepts longer or only shorter frames from the next one on.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The bytes of a frame that has not arrived completely.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The buffer to which received bytes are appended. If all frames are taken after each piece, it
    /// holds less than one frame besides the last piece.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next frame or word, if all of it has arrived. After an error, the same error again.
    pub(crate) fn next_frame(&mut self) -> Result<Option<DecodedPiece>, BadLength> {
        let Some(&first) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        if self.at_start && self.words.contains(&first) {
            let argument = match first == WITH_ARGUMENT {
                true => match self.buffer[first.len()..].first_chunk::<8>() {
                    Some(&argument) => Some(i64::from_be_bytes(argument)),
                    None => return Ok(None),
                },
                false => None,
            };
            self.at_start = false;
            // A line break may follow, which is ignored.
            self.buffer.clear();
            return Ok(Some(DecodedPiece::Word(first, argument)));
        }
        self.at_start = false;
        let declared = i32::from_be_bytes(first);
        let length = usize::try_from(declared).ok().filter(|length| *length <= self.limit);
        let length = length.ok_or(BadLength { declared, limit: self.limit })?;
        if self.buffer.len() - first.len() < length {
            return Ok(None);
        }
        self.buffer.advance(first.len());
        let frame = self.buffer.split_to(length).freeze();
        if self.buffer.is_empty() {
            // Even without bytes, the buffer would keep the frame in memory until the next one arrives.
            self.buffer = BytesMut::new();
        }
        Ok(Some(DecodedPiece::Frame(frame)))
    }
}

/// Appends one frame, whose body `write` appends; if the body is above the limit, nothing. `write` is called
/// twice: the length comes first.
pub(crate) fn append_frame(
    to: &mut dyn Sink,
    limit: usize,
    write: impl Fn(&mut dyn Sink),
) -> Result<(), TooLong> {
    let mut length = Length(0);
    write(&mut length);
    let Length(bytes) = length;
    let length = i32::try_from(bytes).ok().filter(|_| bytes <= limit);
    length.ok_or(TooLong { bytes, limit })?.write(to);
    write(to);
    to.end_frame();
    Ok(())
}

/// Counts what is written.
struct Length(usize);

impl Sink for Length {
    fn put_slice(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}
