//! Encryption at rest: which bytes of a store are encrypted, and where their keys are.
//!
//! Encrypted are the bodies of the log's records and the chunks of checkpoints, each as
//! [`encryption`](crate::encryption) describes. In clear are `IDENTITY`, `PROMISE` (ids, addresses and zones of members),
//! the marks, the witness, and what surrounds a body: sequence numbers, lengths, checksums. Checksums and chains cover
//! the encrypted bytes, so all checks but the last one work without a key.
//!
//! `KEYS` beside `IDENTITY` is a frame with the data keys, each wrapped under a key encryption key. Founding writes it
//! before anything that is encrypted with them. When the store opens and the first key encryption key has changed, all
//! data keys are wrapped again under that one, and a new data key is added, which encrypts from then on. Once everything
//! was read and verified, data keys that have decrypted nothing are removed.
//!
//! | `KEYS` | a key is given | the store                                                    |
//! |--------|----------------|--------------------------------------------------------------|
//! | yes    | yes            | is encrypted; a clear body is refused                        |
//! | yes    | no             | does not open: [`StorageError::Key`]                         |
//! | no     | yes            | is damaged if bodies are encrypted; otherwise [`StorageError::Key`] |
//! | no     | no             | is in clear; [`StorageError::Key`] if bodies are encrypted   |
//!
//! So a directory is encrypted from its founding on, or never. And a key that is missing or wrong is never taken for
//! damage, which would let the instance replace its data.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::corrupt;
use super::file_system::FsPath;
use super::frame::Format;
use crate::encryption::{
    AssociatedData, DataKeys, GIVE_KEYS, HEAD_BYTES, KeyError, KeyRing, TAG_BYTES, WrappedKey,
    no_keys,
};
use crate::storage::error::{Result, StorageError};

pub(super) const KEYS: Format = Format { name: "KEYS", magic: b"qrdkeys\n", number: 1 };

/// The content of `KEYS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredKeys {
    pub(super) keys: Vec<WrappedKey>,
}

/// Encrypts and decrypts the bodies of one store, or passes them on in clear.
#[derive(Clone, Debug, Default)]
pub(super) struct Sealing {
    keys: Option<Arc<DataKeys>>,
    /// Whether a key was given.
    given: bool,
}

/// The error of a key.
fn key_error(error: KeyError) -> StorageError {
    let KeyError(what) = error;
    StorageError::Key { what }
}

impl Sealing {
    /// Whether bodies are encrypted.
    pub(super) fn is_on(&self) -> bool {
        self.keys.is_some()
    }

    /// How many bytes are left free before a body that is to be encrypted, and how many come after it.
    pub(super) fn around(&self) -> (usize, usize) {
        if self.is_on() { (HEAD_BYTES, TAG_BYTES) } else { (0, 0) }
    }

    /// Encrypts the end of a buffer in place: the free bytes from `start` on, and the body behind them. Returns whether it
    /// is encrypted.
    pub(super) fn seal(
        &self,
        context: &AssociatedData,
        buffer: &mut Vec<u8>,
        start: usize,
    ) -> bool {
        if let Some(keys) = &self.keys {
            keys.seal(context, buffer, start);
        }
        self.is_on()
    }

    /// An encrypted copy of a body; `None` if it stays in clear.
    pub(super) fn sealed(&self, context: &AssociatedData, body: &[u8]) -> Option<Vec<u8>> {
        let keys = self.keys.as_ref()?;
        let mut buffer = Vec::with_capacity(HEAD_BYTES + body.len() + TAG_BYTES);
        buffer.resize(HEAD_BYTES, 0);
        buffer.extend_from_slice(body);
        keys.seal(context, &mut buffer, 0);
        Some(buffer)
    }

    /// The body in clear. Its checksum is correct.
    pub(super) fn opened<'a>(
        &self,
        context: &AssociatedData,
        is_sealed: bool,
        body: &'a [u8],
        name: impl Display,
    ) -> Result<Cow<'a, [u8]>> {
        let key = |what: String| Err(StorageError::Key { what });
        match (is_sealed, &self.keys) {
            (false, None) if !self.given => Ok(Cow::Borrowed(body)),
            (true, Some(keys)) => match keys.unseal(context, body) {
                Ok(body) => Ok(Cow::Owned(body)),
                Err(KeyError(reason)) => Err(key_error(KeyError(format!("{name}: {reason}")))),
            },
            (false, Some(_)) => key(format!(
                "{name} is not encrypted, and the directory is: it was not written by this member"
            )),
            (false, None) => key(
                "it is not encrypted, and a key is given: to encrypt a member's data, let it join again with an \
                 empty directory"
                    .to_owned(),
            ),
            (true, None) if self.given => {
                corrupt(format!("KEYS is missing, and {name} is encrypted"))
            }
            (true, None) => key(format!(
                "{name} is encrypted, KEYS is missing, and no keys are given: {GIVE_KEYS}"
            )),
        }
    }
}

/// Reads an arbitrary frame, an arbitrary body of a frame, and arbitrary encrypted bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let ring = KeyRing::for_tests(&["k1"]);
    let _ = KEYS.unseal::<StoredKeys>(bytes);
    if let Ok((StoredKeys { keys }, _)) = postcard::take_from_bytes::<StoredKeys>(bytes) {
        let _ = DataKeys::rewrapped(&ring, &keys);
        let _ = DataKeys::open(&ring, &keys);
    }
    let key = ring.new_data_key(1).expect("the system has random numbers");
    let keys = DataKeys::open(&ring, &[key]).expect("this key is of this ring");
    let sealing = Sealing { keys: Some(Arc::new(keys)), given: true };
    let context = AssociatedData::new(b'L', [1; 7]);
    let opened = sealing.opened(&context, true, bytes, "it");
    assert!(matches!(opened, Err(StorageError::Key { .. })), "{opened:?}");
    // A body that was encrypted is decrypted, and no change of it is.
    let mut sealed = sealing.sealed(&context, bytes).expect("there are keys");
    let opened = sealing.opened(&context, true, &sealed, "it");
    assert!(opened.is_ok_and(|body| *body == *bytes));
    let place = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % sealed.len();
    sealed[place] ^= 1;
    assert!(sealing.opened(&context, true, &sealed, "it").is_err());
}

impl Sealing {
    /// The keys of an incarnation's directory, which has an owner.
    pub(super) fn open_keys(dir: &FsPath, ring: Option<&Arc<KeyRing>>) -> Result<Sealing> {
        let Some(ring) = ring else {
            return match KEYS.read::<StoredKeys>(dir) {
                Ok(None) => Ok(Sealing::default()),
                Ok(Some(StoredKeys { keys })) => {
                    let under = keys.last().map_or("", |key| &key.under);
                    Err(key_error(no_keys(under)))
                }
                // Whatever is wrong with it, no data may be replaced in clear.
                Err(StorageError::Corrupt { what }) => Err(StorageError::Key {
                    what: format!("{what}, and no keys are given: {GIVE_KEYS}"),
                }),
                Err(error) => Err(error),
            };
        };
        let Some(StoredKeys { keys }) = KEYS.read(dir)? else {
            return Ok(Sealing { keys: None, given: true });
        };
        if keys.is_empty() {
            return corrupt("KEYS is empty".to_owned());
        }
        let keys = match DataKeys::rewrapped(ring, &keys).map_err(key_error)? {
            Some(keys) => {
                let stored = StoredKeys { keys };
                KEYS.write(dir, &stored)?;
                let under = stored.keys.last().map_or("", |key| &key.under);
                tracing::info!(
                    under,
                    "the data keys are encrypted under another key, and there is a new one"
                );
                stored.keys
            }
            None => keys,
        };
        let keys = Arc::new(DataKeys::open(ring, &keys).map_err(key_error)?);
        Ok(Sealing { keys: Some(keys), given: true })
    }

    /// Makes the keys of a directory that is being founded, durably.
    pub(super) fn create_keys(dir: &FsPath, ring: Option<&Arc<KeyRing>>) -> Result<Sealing> {
        let Some(ring) = ring else { return Ok(Sealing::default()) };
        let stored = StoredKeys { keys: vec![ring.new_data_key(1).map_err(key_error)?] };
        KEYS.write(dir, &stored)?;
        let keys = Arc::new(DataKeys::open(ring, &stored.keys).map_err(key_error)?);
        Ok(Sealing { keys: Some(keys), given: true })
    }

    /// Removes the data keys that nothing is encrypted with any more, after everything was read.
    pub(super) fn drop_unused_keys(&self, dir: &FsPath) -> Result<()> {
        let Some(keys) = &self.keys else { return Ok(()) };
        let Some(StoredKeys { keys: mut stored }) = KEYS.read(dir)? else { return Ok(()) };
        let before = stored.len();
        stored.retain(|key| keys.is_used(key.id));
        match stored.len() == before {
            true => Ok(()),
            false => KEYS.write(dir, &StoredKeys { keys: stored }),
        }
    }
}
