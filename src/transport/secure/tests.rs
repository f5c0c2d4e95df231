//! Tests of two channels; the test carries the bytes between them.

use super::*;
use crate::security::Secret;

const ONE: &str = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
const OTHER: &str = "1c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9351";

fn secret(text: &str) -> Security {
    Secret::new(text).unwrap().into()
}

struct End {
    channel: SecureChannel,
    /// The bytes to be sent.
    out: Vec<u8>,
    /// The plain text received.
    plain: Vec<u8>,
}

impl End {
    fn new(security: &Security, side: Side) -> End {
        let mut out = Vec::new();
        let channel = SecureChannel::start(security, side, &mut out).unwrap().unwrap();
        End { channel, out, plain: Vec::new() }
    }

    fn send(&mut self, mut plain: &[u8]) {
        while !plain.is_empty() {
            let taken = self.channel.send(plain, &mut self.out).unwrap();
            assert!(taken > 0);
            plain = &plain[taken..];
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), SecurityError> {
        self.channel.receive(bytes, &mut self.plain, &mut self.out)
    }
}

fn pair(client: &Security, server: &Security) -> (End, End) {
    (End::new(client, Side::Connects), End::new(server, Side::Listens))
}

/// Carries each end's bytes to the other, in parts of this size, until both have none left.
fn carry(client: &mut End, server: &mut End, part: usize) -> Result<(), SecurityError> {
    while !client.out.is_empty() || !server.out.is_empty() {
        for bytes in std::mem::take(&mut client.out).chunks(part) {
            server.receive(bytes)?;
        }
        for bytes in std::mem::take(&mut server.out).chunks(part) {
            client.receive(bytes)?;
        }
    }
    Ok(())
}

#[test]
fn ends_with_the_same_secret_communicate_however_bytes_arrive() {
    for part in [1, 7, 1000, 1 << 20] {
        let (mut client, mut server) = pair(&secret(ONE), &secret(ONE));
        client.send(b"hello");
        carry(&mut client, &mut server, part).unwrap();
        assert_eq!(server.plain, b"hello");
        server.send(b"welcome");
        server.channel.trust();
        client.channel.trust();
        let long: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        client.send(&long);
        carry(&mut client, &mut server, part).unwrap();
        assert_eq!(client.plain, b"welcome");
        assert_eq!(&server.plain[5..], long);
    }
}

#[test]
fn bytes_on_the_wire_are_unreadable_and_never_repeat() {
    let recorded = || {
        let (mut client, mut server) = pair(&secret(ONE), &secret(ONE));
        client.send(b"hello");
        let mut wire = client.out.clone();
        server.receive(&std::mem::take(&mut client.out)).unwrap();
        client.receive(&std::mem::take(&mut server.out)).unwrap();
        wire.extend_from_slice(&client.out);
        wire
    };
    let (one, two) = (recorded(), recorded());
    for wire in [&one, &two] {
        assert!(!wire.windows(5).any(|part| part == b"hello"));
        let key = secret_key(ONE);
        assert!(!wire.windows(8).any(|part| part == &key[..8]));
    }
    // The secret is the same, but only the preface and a length are equal.
    assert_ne!(one[10..], two[10..]);
}

fn secret_key(text: &str) -> [u8; 32] {
    *Secret::new(text).unwrap().own()
}

#[test]
fn a_replay_is_refused() {
    let (mut client, mut server) = pair(&secret(ONE), &secret(ONE));
    client.send(b"hello");
    let first = std::mem::take(&mut client.out);
    server.receive(&first).unwrap();
    client.receive(&std::mem::take(&mut server.out)).unwrap();
    let second = std::mem::take(&mut client.out);
    server.receive(&second).unwrap();
    assert_eq!(server.plain, b"hello");
    // A replay of all bytes that the client has sent.
    let mut later = End::new(&secret(ONE), Side::Listens);
    later.receive(&first).unwrap();
    assert_eq!(later.receive(&second), Err(SecurityError::Damaged));
    assert_eq!(later.plain, b"");
    // A replay of a message of this connection.
    assert_eq!(server.receive(&second), Err(SecurityError::Damaged));
    assert_eq!(server.plain, b"hello");
}

#[test]
fn another_secret_is_refused_before_any_plain_text_is_sent() {
    let (mut client, mut server) = pair(&secret(OTHER), &secret(ONE));
    client.send(b"hello");
    assert_eq!(carry(&mut client, &mut server, 100), Err(SecurityError::WrongSecret));
    assert!(server.plain.is_empty() && server.out.is_empty());
    assert!(
        SecurityError::WrongSecret.needs_plain_answer()
            && SecurityError::WrongSecret.is_permanent()
    );
    // A listener that does not know the secret cannot pretend to.
    let (mut client, _) = pair(&secret(OTHER), &secret(ONE));
    let (mut other, mut server) = pair(&secret(ONE), &secret(ONE));
    server.receive(&std::mem::take(&mut other.out)).unwrap();
    assert_eq!(client.receive(&std::mem::take(&mut server.out)), Err(SecurityError::WrongSecret));
}

#[test]
fn two_secrets_are_accepted_during_a_change() {
    let both = |first, second| Security::from(Secret::new(first).unwrap().or(second).unwrap());
    // In the order of a change: all accept both, all use the new one, the old one is dropped.
    let stages = [secret(ONE), both(ONE, OTHER), both(OTHER, ONE), secret(OTHER)];
    for (client, server) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)] {
        let (mut client, mut server) = pair(&stages[client], &stages[server]);
        client.send(b"hello");
        carry(&mut client, &mut server, 100).unwrap();
        assert_eq!(server.plain, b"hello");
    }
    let (mut client, mut server) = pair(&stages[0], &stages[3]);
    assert_eq!(carry(&mut client, &mut server, 100), Err(SecurityError::WrongSecret));
}

#[test]
fn a_changed_byte_ends_the_connection() {
    let (mut client, mut server) = pair(&secret(ONE), &secret(ONE));
    carry(&mut client, &mut server, 100).unwrap();
    client.send(b"some message");
    let whole = std::mem::take(&mut client.out);
    // The length is left out: most changes of it only make the receiver wait for more bytes.
    for at in 2..whole.len() {
        let (mut client, mut server) = pair(&secret(ONE), &secret(ONE));
        carry(&mut client, &mut server, 100).unwrap();
        client.send(b"some message");
        client.out[at] ^= 1;
        assert_eq!(server.receive(&client.out), Err(SecurityError::Damaged), "byte {at}");
        assert!(server.plain.is_empty());
        assert_eq!(server.receive(b"more"), Err(SecurityError::Damaged));
    }
}

#[test]
fn a_later_version_is_distinguished_from_junk() {
    let mut server = End::new(&secret(ONE), Side::Listens);
    assert_eq!(server.receive(b"qrnoise\x02and what not"), Err(SecurityError::UnknownVersion(2)));
    let mut server = End::new(&secret(ONE), Side::Listens);
    assert_eq!(server.receive(b"qrnopqrs"), Err(SecurityError::Damaged));
    let mut server = End::new(&secret(ONE), Side::Listens);
    let theirs = Protocol::Foreign;
    assert_eq!(
        server.receive(b"GET /"),
        Err(SecurityError::Mismatch { ours: Protocol::Secret, theirs })
    );
}

#[test]
fn a_stranger_costs_little_memory() {
    let mut server = End::new(&secret(ONE), Side::Listens);
    let mut sent = 0;
    // The longest message accepted, a byte at a time, and never whole.
    let (mut client, _) = pair(&secret(ONE), &secret(ONE));
    client.send(b"hello");
    server.receive(&std::mem::take(&mut client.out)).unwrap();
    let refused = loop {
        let part = if sent == 0 { vec![0xff, 0x1f] } else { vec![7; 100] };
        sent += part.len();
        if let Err(fault) = server.receive(&part) {
            break fault;
        }
        assert!(sent <= 8 << 10, "{sent}");
    };
    assert_eq!(refused, SecurityError::Damaged);
    // Many small correct messages are too much as well.
    let (mut client, mut server) = pair(&secret(ONE), &secret(ONE));
    let refused = loop {
        client.send(&[0; 1000]);
        if let Err(fault) = carry(&mut client, &mut server, 1000) {
            break fault;
        }
        assert!(server.plain.len() <= UNTRUSTED_BYTES_MAX);
    };
    assert_eq!(refused, SecurityError::TooMuch);
}

#[test]
fn plain_refusals_are_reported() {
    use crate::transport::frame::append_frame;
    use crate::transport::handshake::{Refusal, RefusalCode};
    let mut frame = Vec::new();
    let refusal = Refusal::new(RefusalCode::Security, "no keys here".to_owned());
    append_frame(&mut frame, |buffer| HelloReply::Refused(refusal).encode(1, buffer));
    for part in [1, 1000] {
        let mut client = End::new(&secret(ONE), Side::Connects);
        let result = frame.chunks(part).find_map(|bytes| client.receive(bytes).err());
        assert_eq!(result, Some(SecurityError::Refused("no keys here".to_owned())));
    }
    let mut client = End::new(&secret(ONE), Side::Connects);
    let result = client.receive(&[0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(matches!(result, Err(SecurityError::Refused(_))), "{result:?}");
}

/// Whoever has made the connection.
#[test]
fn a_connection_whose_secret_was_replaced_has_no_right_at_either_end() {
    let (mut client, mut server) = pair(&secret(ONE), &secret(ONE));
    client.send(b"hello");
    carry(&mut client, &mut server, 1000).unwrap();
    for end in [&client, &server] {
        assert_eq!(end.channel.right(&secret(ONE)), Ok(Right::Member));
        end.channel.right(&secret(OTHER)).unwrap_err();
    }
}
