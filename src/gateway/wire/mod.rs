//! The wire protocol of ZooKeeper 3.9, as bytes: no sockets, no clock, no sessions.
//!
//! ```text
//! connection: [four-letter word] | frame(ConnectRequest) frame(RequestHeader, body)...
//! answers:    frame(ConnectResponse) frame(ReplyHeader, body)...
//! frame:      length, i32 BE | that many bytes
//! ```
//!
//! - `jute`: the forms of numbers, strings, buffers and lists, and records made of them.
//! - `codes`: the protocol's numbers.
//! - `frame`: where frames begin and end.
//! - `handshake`, `request`, `response`: the records.
//!
//! Every record can be read and written, since both ends are ours: the server that answers ZooKeeper's
//! clients, and the client that reads a ZooKeeper cluster.
//!
//! Invariants: no input makes reading panic. Reading takes at most a small multiple of the memory of the
//! bytes. A value that is written and read again stays the same. Fields are kept as received: the server
//! checks a null path, unknown flags or a negative version, in the order in which ZooKeeper does.
//!
//! Sources: `zookeeper.jute` and the classes `MultiOperationRecord`, `MultiResponse` and
//! `NIOServerCnxn` of ZooKeeper, and its server's behaviour byte by byte.

pub(crate) mod codes;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod jute;
pub(crate) mod request;
pub(crate) mod response;
#[cfg(test)]
mod tests;

/// For the fuzz target: reads the bytes as a connection's, in one piece, and then as one request.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    use bytes::{Bytes, BytesMut};

    use self::frame::{DecodedPiece, FrameDecoder, JUTE_MAXBUFFER};
    use self::jute::Jute;

    const WORDS: &[[u8; 4]] = &[*b"ruok", *b"stmk"];
    let mut decoder = FrameDecoder::new(JUTE_MAXBUFFER, WORDS);
    decoder.buffer().extend_from_slice(bytes);
    while let Ok(Some(incoming)) = decoder.next_frame() {
        if let DecodedPiece::Frame(frame) = incoming {
            let _ = handshake::ConnectRequest::read(&mut frame.clone());
            request_is_stable(frame);
        }
    }
    request_is_stable(Bytes::copy_from_slice(bytes));

    fn request_is_stable(frame: Bytes) {
        if let Ok((header, request::Decoded::Request(request))) = request::decode(frame) {
            let mut again = BytesMut::new();
            request.encode(header.xid, &mut again);
            let same = request::decode(again.freeze());
            assert_eq!(same, Ok((header, request::Decoded::Request(request))));
        }
    }
}
