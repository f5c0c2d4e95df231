//! Encryption at rest: the keys for data directories and backups.
//!
//! [`Builder::encryption`](crate::Builder::encryption) takes them, and [`recovery::Recovery`](crate::recovery::Recovery)
//! for what was left. What is encrypted, how keys are changed, and how it works, is in
//! [`guide::encryption`](crate::guide::encryption).

// What is written to disk is encrypted with a *data key*, by XChaCha20-Poly1305. Data keys are drawn here and never
// leave the process in clear: a file beside the data has each one *wrapped*, which is encrypted under a *key encryption
// key* that the user keeps elsewhere (`AtRest`). So changing that key rewrites one small file, and no data.
//
// An encrypted piece of bytes, little endian:
//
// | offset | bytes | meaning                                                    |
// |--------|-------|------------------------------------------------------------|
// | 0      | 4     | the data key's id                                          |
// | 4      | 24    | the nonce                                                  |
// | 28     | n     | the ciphertext, as long as the plaintext                   |
// | 28 + n | 16    | the tag, which also covers the place: see `AssociatedData`        |
//
// No nonce is used twice with one key: it begins with 16 random bytes that are drawn when the keys are opened, and ends
// with a counter. So bytes that are written again at the same place, after a crash has cut them off, have another one.
//
// Not here: which bytes are encrypted, and where data keys are stored (`storage::sealing`, `recovery::backup`).

mod at_rest;
mod data_keys;
mod key_file;
mod ring;

use serde::{Deserialize, Serialize};

pub use self::at_rest::AtRest;
pub(crate) use self::data_keys::DataKeys;
#[cfg(any(test, fuzzing))]
pub(crate) use self::key_file::fuzz;
pub(crate) use self::ring::KeyRing;

/// The bytes before the ciphertext, and how many there are around it.
pub(crate) const HEAD_BYTES: usize = 28;
pub(crate) const TAG_BYTES: usize = 16;
/// How keys are given, for messages.
pub(crate) const GIVE_KEYS: &str = "Builder::encryption, or --data-key-file of the program";

/// A data key as it is stored: encrypted under a key encryption key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrappedKey {
    /// The data key's id.
    pub(crate) id: u32,
    /// The id of the key encryption key.
    pub(crate) under: String,
    pub(crate) nonce: [u8; 24],
    pub(crate) key: [u8; 32],
    pub(crate) tag: [u8; 16],
}

/// Why something cannot be decrypted: a key is missing, or is not the right one. Never that bytes have rotted, which
/// their checksums show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyError(pub(crate) String);

/// The place of an encrypted piece of bytes. The tag covers it, so that the piece cannot be decrypted at another place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssociatedData([u8; 57]);

impl AssociatedData {
    /// `kind` says what the piece is a part of; no two kinds have the same one.
    pub(crate) fn new(kind: u8, fields: [u64; 7]) -> AssociatedData {
        let mut bytes = [kind; 57];
        for (place, field) in bytes[1..].chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        AssociatedData(bytes)
    }
}

/// Why data cannot be read, if no keys are given.
pub(crate) fn no_keys(under: &str) -> KeyError {
    KeyError(format!(
        "the data is encrypted under key {under:?}, and no keys are given: {GIVE_KEYS}"
    ))
}
