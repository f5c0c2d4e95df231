//! Frames: their limit, in pieces of any size, and the words in their place.

use bytes::{Bytes, BytesMut};

use super::packet;
use crate::gateway::wire::frame::{DecodedPiece, FrameDecoder, JUTE_MAXBUFFER, append_frame};
use crate::gateway::wire::jute::Sink;

#[test]
fn a_frame_above_the_limit_leaves_nothing_behind() {
    let mut out = BytesMut::from(&b"before"[..]);
    let body = |length: usize| move |to: &mut dyn Sink| to.put_slice(&vec![1; length]);
    let error = append_frame(&mut out, 10, body(11)).unwrap_err();
    assert_eq!((error.bytes, error.limit), (11, 10));
    assert_eq!(out, &b"before"[..]);
    append_frame(&mut out, 10, body(10)).unwrap();
    assert_eq!(out[6..10], [0, 0, 0, 10]);
    assert_eq!(out.len(), 20);
}

/// Decodes all bytes of a new connection, up to their end or the first error.
fn incoming(bytes: &[u8], piece: usize) -> (Vec<DecodedPiece>, bool) {
    const WORDS: &[[u8; 4]] = &[*b"ruok", *b"stmk"];
    let mut decoder = FrameDecoder::new(JUTE_MAXBUFFER, WORDS);
    let mut all = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.buffer().extend_from_slice(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(one)) => all.push(one),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next_frame(), Err(error), "it stays so");
                    return (all, false);
                }
            }
        }
    }
    (all, true)
}

#[test]
fn frames_come_in_pieces_of_any_size() {
    let bytes = packet("00000003 'abc' 00000000 00000001 'd' 00000002 'e'");
    let frames: Vec<DecodedPiece> =
        [&b"abc"[..], b"", b"d"].map(|frame| DecodedPiece::Frame(Bytes::from_static(frame))).into();
    for piece in 1..=bytes.len() {
        assert_eq!(incoming(&bytes, piece), (frames.clone(), true));
    }
}

#[test]
fn the_limit_is_itself_accepted() {
    let of_length = |length: i32, body: usize| {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.resize(4 + body, 7);
        let (frames, sound) = incoming(&bytes, usize::MAX);
        (frames.len(), sound)
    };
    assert_eq!(of_length(1_048_575, 1_048_575), (1, true));
    assert_eq!(of_length(1_048_575, 1_048_574), (0, true));
    for length in [1_048_576, i32::MAX, -1, i32::MIN] {
        assert_eq!(of_length(length, 10), (0, false), "{length}");
    }
}

#[test]
fn four_letter_words_open_a_connection_or_are_none() {
    let word = vec![DecodedPiece::Word(*b"ruok", None)];
    for bytes in [&b"ruok"[..], b"ruok\n", b"ruok\r\n"] {
        assert_eq!(incoming(bytes, usize::MAX), (word.clone(), true));
    }
    // Byte by byte, a line's end may come later.
    assert_eq!(incoming(b"ruok", 1), (word, true));
    let with_argument = vec![DecodedPiece::Word(*b"stmk", Some(306))];
    for piece in [1, 3, 12] {
        assert_eq!(incoming(b"stmk\0\0\0\0\0\0\x01\x32", piece), (with_argument.clone(), true));
    }
    assert_eq!(incoming(b"stmk\n", 12), (vec![], true));
    // Unknown, upper case, too short.
    assert_eq!(incoming(b"what", 4), (vec![], false));
    assert_eq!(incoming(b"RUOK", 4), (vec![], false));
    assert_eq!(incoming(b"ruo", 3), (vec![], true));
    // After a frame, the same four bytes are a length.
    let frame = DecodedPiece::Frame(Bytes::from_static(b"x"));
    assert_eq!(incoming(b"\0\0\0\x01xruok", usize::MAX), (vec![frame], false));
}
