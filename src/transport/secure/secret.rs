//! A connection between two nodes that share a secret: Noise, pattern NNpsk0.
//!
//! ```text
//! connects                                 listens
//!   preface, 8 bytes | message  -------->             proves the secret
//!                    <--------  preface | message     proves it, too, and is fresh
//!   message*         <------->  message*              each proves that it is of this connection
//!
//! message: length, u16 LE | that many bytes, the last 16 of them a tag
//! ```
//!
//! The first message could be a replay. An attacker who replays it cannot read the answer, and so
//! cannot send the next message. Nothing is done for it before that, and a node's hello is never in
//! the first message. Both ends' keys are new for each connection: an attacker who learns the
//! secret later cannot read earlier recordings.

use std::fmt;

use snow::params::NoiseParams;
use snow::{HandshakeState, TransportState};

use super::{SecurityError, Side};
use crate::security::{Key, Secret};
use crate::types::right::Right;

/// The first bytes. The last one is the version of the rest.
pub(crate) const PREFACE: [u8; 8] = [b'q', b'r', b'n', b'o', b'i', b's', b'e', VERSION];
const VERSION: u8 = 1;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

const TAG_BYTES: usize = 16;

/// A key and a tag.
const HANDSHAKE_MESSAGE_BYTES: usize = 32 + TAG_BYTES;

/// The most plain text in one message.
const PLAIN_BYTES_MAX: usize = 32 << 10;

/// The longest message before authentication: a hello.
const UNTRUSTED_MESSAGE_BYTES_MAX: usize = 8 << 10;

pub(super) struct SecretChannel {
    secret: Secret,
    side: Side,
    /// The key of this connection, once it is known.
    key: Option<Key>,
    state: SecretState,
    /// Bytes that have arrived and are not a whole message yet.
    input: Vec<u8>,
    /// Plain text to be sent once there are keys.
    early: Vec<u8>,
}

enum SecretState {
    /// Nothing has arrived. The end that connects has sent its message.
    Preface(Option<Box<HandshakeState>>),
    /// The preface has arrived.
    Handshake(Option<Box<HandshakeState>>),
    Ready(Box<TransportState>),
    Failed,
}

/// Shows no keys.
impl fmt::Debug for SecretChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretChannel").field("side", &self.side).finish_non_exhaustive()
    }
}

fn internal(error: snow::Error) -> SecurityError {
    SecurityError::Internal(error.to_string())
}

fn handshake(key: &[u8; 32], side: Side) -> Result<HandshakeState, snow::Error> {
    let params: NoiseParams = PATTERN.parse()?;
    let builder = builder(params).prologue(&PREFACE)?.psk(0, key)?;
    match side {
        Side::Connects => builder.build_initiator(),
        Side::Listens => builder.build_responder(),
    }
}

/// With TLS there is the cipher of `ring`, which takes a fifth of the time.
#[cfg(feature = "tls")]
fn builder(params: NoiseParams) -> snow::Builder<'static> {
    use snow::resolvers::{DefaultResolver, FallbackResolver, RingResolver};

    let both = FallbackResolver::new(Box::new(RingResolver), Box::new(DefaultResolver));
    snow::Builder::with_resolver(params, Box::new(both))
}

#[cfg(not(feature = "tls"))]
fn builder(params: NoiseParams) -> snow::Builder<'static> {
    snow::Builder::new(params)
}

/// Appends a handshake message without payload.
fn write_handshake(state: &mut HandshakeState, out: &mut Vec<u8>) -> Result<(), SecurityError> {
    let mut message = [0; HANDSHAKE_MESSAGE_BYTES];
    let bytes = state.write_message(&[], &mut message).map_err(internal)?;
    out.extend_from_slice(&PREFACE);
    out.extend_from_slice(&length(bytes));
    out.extend_from_slice(&message[..bytes]);
    Ok(())
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).expect("no message is longer than 32 KiB and its tag").to_le_bytes()
}

impl SecretChannel {
    pub(super) fn start(
        secret: Secret,
        side: Side,
        out: &mut Vec<u8>,
    ) -> Result<SecretChannel, SecurityError> {
        let (key, state) = match side {
            Side::Listens => (None, None),
            Side::Connects => {
                let key = *secret.own();
                let mut state = handshake(&key, side).map_err(internal)?;
                write_handshake(&mut state, out)?;
                (Some(key), Some(Box::new(state)))
            }
        };
        let (input, early) = (Vec::new(), Vec::new());
        Ok(SecretChannel { secret, side, key, state: SecretState::Preface(state), input, early })
    }

    /// The right of the other end by this secret, or why it has none. A member that this node has connected
    /// to has proved that it knows the same secret as this node.
    pub(super) fn right(&self, secret: &Secret) -> Result<Right, String> {
        let Some(key) = &self.key else { return Err("it has not proved a secret".to_owned()) };
        let right = match self.side {
            Side::Connects => secret.may_use(key).then_some(Right::Member),
            Side::Listens => {
                secret.accepted().find(|(known, _)| *known == key).map(|(_, right)| right)
            }
        };
        right.ok_or_else(|| "its secret is no longer accepted".to_owned())
    }

    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        trusted: bool,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), SecurityError> {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let mut rest = &input[..];
        while let Some(after) = self.step(rest, trusted, plain, out)? {
            rest = after;
        }
        let taken = input.len() - rest.len();
        input.drain(..taken);
        self.input = if input.is_empty() { Vec::new() } else { input };
        Ok(())
    }

    /// Takes the next part of `input`, and returns the rest; `None` if it is not whole.
    fn step<'a>(
        &mut self,
        input: &'a [u8],
        trusted: bool,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, SecurityError> {
        let state = std::mem::replace(&mut self.state, SecretState::Failed);
        if let SecretState::Preface(handshake) = state {
            let Some((preface, rest)) = input.split_at_checked(PREFACE.len()) else {
                self.state = SecretState::Preface(handshake);
                return Ok(None);
            };
            if preface != PREFACE {
                let known = preface[..7] == PREFACE[..7];
                return Err(if known {
                    SecurityError::UnknownVersion(preface[7])
                } else {
                    SecurityError::Damaged
                });
            }
            self.state = SecretState::Handshake(handshake);
            return Ok(Some(rest));
        }
        let limit = match state {
            SecretState::Handshake(_) => HANDSHAKE_MESSAGE_BYTES,
            _ if trusted => PLAIN_BYTES_MAX + TAG_BYTES,
            _ => UNTRUSTED_MESSAGE_BYTES_MAX,
        };
        let Some((message, rest)) = split_message(input, limit)? else {
            self.state = state;
            return Ok(None);
        };
        self.state = match state {
            SecretState::Preface(_) | SecretState::Failed => return Err(SecurityError::Damaged),
            SecretState::Handshake(handshake) => {
                SecretState::Ready(self.agree(handshake, message, out)?)
            }
            SecretState::Ready(mut keys) => {
                let start = plain.len();
                plain.resize(start + message.len(), 0);
                let read = keys.read_message(message, &mut plain[start..]);
                plain.truncate(start + *read.as_ref().unwrap_or(&0));
                read.map_err(|_| SecurityError::Damaged)?;
                SecretState::Ready(keys)
            }
        };
        Ok(Some(rest))
    }

    /// The other end's handshake message has arrived.
    fn agree(
        &mut self,
        handshake: Option<Box<HandshakeState>>,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Box<TransportState>, SecurityError> {
        let mut nothing = [0; HANDSHAKE_MESSAGE_BYTES];
        let state = match handshake {
            Some(mut state) => {
                state
                    .read_message(message, &mut nothing)
                    .map_err(|_| SecurityError::WrongSecret)?;
                *state
            }
            None => {
                let mut known = None;
                for (key, _) in self.secret.accepted() {
                    let mut state = self::handshake(key, self.side).map_err(internal)?;
                    if state.read_message(message, &mut nothing).is_ok() {
                        (known, self.key) = (Some(state), Some(*key));
                        break;
                    }
                }
                let mut state = known.ok_or(SecurityError::WrongSecret)?;
                write_handshake(&mut state, out)?;
                state
            }
        };
        let mut keys = Box::new(state.into_transport_mode().map_err(internal)?);
        for part in std::mem::take(&mut self.early).chunks(PLAIN_BYTES_MAX) {
            seal(&mut keys, part, out)?;
        }
        Ok(keys)
    }

    pub(super) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<usize, SecurityError> {
        let part = &plain[..plain.len().min(PLAIN_BYTES_MAX)];
        match &mut self.state {
            SecretState::Ready(keys) => seal(keys, part, out)?,
            SecretState::Preface(_) | SecretState::Handshake(_) => {
                self.early.extend_from_slice(part)
            }
            SecretState::Failed => return Err(SecurityError::Damaged),
        }
        Ok(part.len())
    }
}

fn seal(keys: &mut TransportState, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SecurityError> {
    let bytes = plain.len() + TAG_BYTES;
    out.extend_from_slice(&length(bytes));
    let start = out.len();
    out.resize(start + bytes, 0);
    keys.write_message(plain, &mut out[start..]).map_err(internal)?;
    Ok(())
}

type Split<'a> = Option<(&'a [u8], &'a [u8])>;

/// The first message and the rest; `None` if it is not whole.
fn split_message(input: &[u8], limit: usize) -> Result<Split<'_>, SecurityError> {
    let Some((length, rest)) = input.split_at_checked(2) else {
        return Ok(None);
    };
    let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
    if length > limit {
        return Err(SecurityError::Damaged);
    }
    Ok(rest.split_at_checked(length))
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;

    /// One end is a build with the feature `tls`, and the other one without.
    #[test]
    fn builds_with_either_cipher_communicate() {
        let params: NoiseParams = PATTERN.parse().unwrap();
        let with = |builder: snow::Builder<'static>| {
            builder.prologue(&PREFACE).unwrap().psk(0, &[7; 32]).unwrap()
        };
        let default = Box::new(snow::resolvers::DefaultResolver);
        let plain = snow::Builder::with_resolver(params.clone(), default);
        let mut one = with(builder(params)).build_initiator().unwrap();
        let mut other = with(plain).build_responder().unwrap();
        let (mut sent, mut received) = ([0; 200], [0; 200]);
        let bytes = one.write_message(&[], &mut sent).unwrap();
        other.read_message(&sent[..bytes], &mut received).unwrap();
        let bytes = other.write_message(&[], &mut sent).unwrap();
        one.read_message(&sent[..bytes], &mut received).unwrap();
        let mut one = one.into_transport_mode().unwrap();
        let mut other = other.into_transport_mode().unwrap();
        for _ in 0..3 {
            let bytes = one.write_message(b"to", &mut sent).unwrap();
            let read = other.read_message(&sent[..bytes], &mut received).unwrap();
            assert_eq!(&received[..read], b"to");
            let bytes = other.write_message(b"and back", &mut sent).unwrap();
            let read = one.read_message(&sent[..bytes], &mut received).unwrap();
            assert_eq!(&received[..read], b"and back");
        }
    }
}
