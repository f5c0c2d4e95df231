//! Data keys, ready for use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::AeadInPlace;

use super::ring::cipher;
use super::{AssociatedData, HEAD_BYTES, KeyError, KeyRing, TAG_BYTES, WrappedKey};

/// Data keys that were unwrapped. The one with the highest id encrypts.
pub(crate) struct DataKeys {
    keys: BTreeMap<u32, XChaCha20Poly1305>,
    last: u32,
    /// The first bytes of all nonces, and the number of the next one.
    prefix: [u8; 16],
    counter: AtomicU64,
    /// Which keys have decrypted something, or have encrypted.
    used: Mutex<BTreeSet<u32>>,
}

/// Shows the ids of the keys only.
impl fmt::Debug for DataKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataKeys").field(&self.keys.keys()).finish()
    }
}

impl DataKeys {
    /// Unwraps data keys, of which there is at least one.
    pub(crate) fn open(ring: &KeyRing, wrapped: &[WrappedKey]) -> Result<DataKeys, KeyError> {
        let keys = wrapped.iter().map(|wrapped| Ok((wrapped.id, cipher(&ring.unwrap(wrapped)?))));
        let keys: BTreeMap<_, _> = keys.collect::<Result<_, KeyError>>()?;
        let Some(last) = keys.last_key_value().map(|(id, _)| *id) else {
            return Err(KeyError("there is no data key".to_owned()));
        };
        let mut prefix = [0; 16];
        ring.fill(&mut prefix)?;
        let used = Mutex::new(BTreeSet::from([last]));
        Ok(DataKeys { keys, last, prefix, counter: AtomicU64::new(0), used })
    }

    /// The data keys under the ring's first key, and a new one, if they are under another key; `None` if they are not.
    pub(crate) fn rewrapped(
        ring: &KeyRing,
        wrapped: &[WrappedKey],
    ) -> Result<Option<Vec<WrappedKey>>, KeyError> {
        if wrapped.iter().all(|wrapped| wrapped.under == ring.first_id()) {
            return Ok(None);
        }
        let again = |wrapped: &WrappedKey| ring.wrap(wrapped.id, &ring.unwrap(wrapped)?);
        let mut all: Vec<WrappedKey> = wrapped.iter().map(again).collect::<Result<_, _>>()?;
        let last = all.iter().map(|wrapped| wrapped.id).max().unwrap_or(0);
        let Some(next) = last.checked_add(1) else {
            return Err(KeyError("there were more data keys than can be counted".to_owned()));
        };
        all.push(ring.new_data_key(next)?);
        Ok(Some(all))
    }

    /// One key, without anything random.
    #[cfg(test)]
    pub(crate) fn for_tests(id: u32) -> DataKeys {
        let keys = BTreeMap::from([(id, cipher(&zeroize::Zeroizing::new([9; 32])))]);
        let used = Mutex::new(BTreeSet::from([id]));
        DataKeys { keys, last: id, prefix: [5; 16], counter: AtomicU64::new(1), used }
    }

    /// Whether something was decrypted with this key since they were opened, or is encrypted with it from now on.
    pub(crate) fn is_used(&self, id: u32) -> bool {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Encrypts the end of a buffer in place: [`HEAD_BYTES`] from `start` on, which are overwritten, and the plaintext
    /// behind them.
    pub(crate) fn seal(&self, context: &AssociatedData, buffer: &mut Vec<u8>, start: usize) {
        let (head, text) = buffer[start..].split_at_mut(HEAD_BYTES);
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(&self.prefix);
        nonce[16..].copy_from_slice(&number.to_le_bytes());
        head[..4].copy_from_slice(&self.last.to_le_bytes());
        head[4..].copy_from_slice(&nonce);
        // The last one is among them: see `open`.
        let tag = self.keys[&self.last]
            .encrypt_in_place_detached(&nonce.into(), &context.0, text)
            .expect("only a plaintext of 256 GiB is too long, and it is in memory in one piece");
        buffer.extend_from_slice(&tag);
    }

    /// Decrypts a piece of bytes.
    pub(crate) fn unseal(
        &self,
        context: &AssociatedData,
        bytes: &[u8],
    ) -> Result<Vec<u8>, KeyError> {
        let short = || KeyError("it is too short to be encrypted".to_owned());
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(short)?;
        let (text, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or_else(short)?;
        let (id, nonce) = head.split_first_chunk::<4>().ok_or_else(short)?;
        let nonce: &[u8; 24] = nonce.try_into().map_err(|_| short())?;
        let id = u32::from_le_bytes(*id);
        let Some(key) = self.keys.get(&id) else {
            return Err(KeyError(format!("its data key {id} is not there")));
        };
        let mut text = text.to_vec();
        match key.decrypt_in_place_detached(nonce.into(), &context.0, &mut text, tag.into()) {
            Ok(()) => {
                self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
                Ok(text)
            }
            Err(_) => Err(KeyError(format!(
                "data key {id} does not decrypt it, and its checksum is correct: it was not written with \
                 that key at this place"
            ))),
        }
    }
}
