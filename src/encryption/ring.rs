//! Key encryption keys, as they were read at one time.

use std::fmt;

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use zeroize::Zeroizing;

use super::{AssociatedData, KeyError, WrappedKey};

/// The longest id of a key in bytes.
pub(super) const ID_BYTES_MAX: usize = 64;

/// A key that is cleared in memory when it is dropped.
pub(super) type KeyBytes = Zeroizing<[u8; 32]>;

/// The kind of context of a wrapped data key.
const WRAPPED: u8 = b'K';

/// Key encryption keys by their ids. The first one wraps new data keys.
pub(crate) struct KeyRing {
    keys: Vec<(String, KeyBytes)>,
    /// Where they come from, for messages.
    from: String,
    draw: Draw,
}

/// Where random bytes come from.
enum Draw {
    System,
    /// Numbers in sequence, so that the same seed gives the same bytes on the disk.
    #[cfg(any(test, feature = "simulator"))]
    Counted(std::sync::atomic::AtomicU64),
}

/// Shows the ids of the keys only.
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyRing({} of {})", self.ids(), self.from)
    }
}

/// Checks the id of a key, which is shown in messages and stored in clear.
pub(super) fn check_id(id: &str) -> Result<(), String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_part) {
        true => Ok(()),
        false => Err("the id of a key has 1 to 64 letters, digits, `-`, `_` and `.`".to_owned()),
    }
}

impl KeyRing {
    /// Checks these keys, which come from a place that messages name.
    pub(super) fn new(keys: Vec<(String, KeyBytes)>, from: String) -> Result<KeyRing, String> {
        if keys.is_empty() {
            return Err("there is no key".to_owned());
        }
        for (place, (id, key)) in keys.iter().enumerate() {
            check_id(id)?;
            if keys[..place].iter().any(|(other, _)| other == id) {
                return Err(format!("there are two keys {id:?}"));
            }
            if key.iter().all(|byte| *byte == key[0]) {
                return Err(format!("key {id:?} is not random: all of its bytes are the same"));
            }
        }
        Ok(KeyRing { keys, from, draw: Draw::System })
    }

    /// Keys that follow from their ids.
    #[cfg(any(test, fuzzing, feature = "simulator"))]
    pub(crate) fn for_tests(ids: &[&str]) -> KeyRing {
        let key = |id: &&str| {
            let mut key = Zeroizing::new([7; 32]);
            key[..id.len()].copy_from_slice(id.as_bytes());
            ((*id).to_owned(), key)
        };
        KeyRing {
            keys: ids.iter().map(key).collect(),
            from: "a test".to_owned(),
            draw: Draw::System,
        }
    }

    /// One key, without anything random.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn counted(id: &str) -> KeyRing {
        KeyRing { draw: Draw::Counted(1.into()), ..KeyRing::for_tests(&[id]) }
    }

    /// Another key of this id.
    #[cfg(test)]
    pub(crate) fn with_another(id: &str) -> KeyRing {
        let keys = vec![(id.to_owned(), Zeroizing::new([8; 32]))];
        KeyRing { keys, from: "a test".to_owned(), draw: Draw::System }
    }

    fn ids(&self) -> String {
        self.keys.iter().map(|(id, _)| format!("{id:?}")).collect::<Vec<_>>().join(", ")
    }

    fn first(&self) -> (&str, &KeyBytes) {
        // There is one: see `KeyRing::new`.
        let (id, key) = &self.keys[0];
        (id, key)
    }

    /// The id of the key that wraps new data keys.
    pub(super) fn first_id(&self) -> &str {
        self.first().0
    }

    /// Fills this with random bytes.
    pub(super) fn fill(&self, bytes: &mut [u8]) -> Result<(), KeyError> {
        match &self.draw {
            Draw::System => getrandom::fill(bytes)
                .map_err(|error| KeyError(format!("the system has no random numbers: {error}"))),
            #[cfg(any(test, feature = "simulator"))]
            Draw::Counted(next) => {
                for place in bytes.chunks_mut(8) {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    place.copy_from_slice(&number.to_le_bytes()[..place.len()]);
                }
                Ok(())
            }
        }
    }

    /// Draws a data key with this id.
    pub(crate) fn new_data_key(&self, id: u32) -> Result<WrappedKey, KeyError> {
        let mut key = Zeroizing::new([0; 32]);
        self.fill(&mut *key)?;
        self.wrap(id, &key)
    }

    /// Encrypts a data key under the first key.
    pub(super) fn wrap(&self, id: u32, data_key: &KeyBytes) -> Result<WrappedKey, KeyError> {
        let (under, with) = self.first();
        let mut nonce = [0; 24];
        self.fill(&mut nonce)?;
        let mut key = **data_key;
        let context = context(id);
        let tag = cipher(with).encrypt_in_place_detached(&nonce.into(), &context.0, &mut key);
        let tag = tag.map_err(|_| KeyError("a key is too long to be encrypted".to_owned()))?;
        Ok(WrappedKey { id, under: under.to_owned(), nonce, key, tag: tag.into() })
    }

    /// Decrypts a data key.
    pub(super) fn unwrap(&self, wrapped: &WrappedKey) -> Result<KeyBytes, KeyError> {
        let WrappedKey { id, under, nonce, key, tag } = wrapped;
        let from = &self.from;
        let Some((_, with)) = self.keys.iter().find(|(id, _)| id == under) else {
            let ids = self.ids();
            return Err(KeyError(format!(
                "the data is encrypted under key {under:?}, which {from} does not have (it has {ids})"
            )));
        };
        let mut key = Zeroizing::new(*key);
        let opened = cipher(with).decrypt_in_place_detached(
            nonce.into(),
            &context(*id).0,
            &mut *key,
            tag.into(),
        );
        match opened {
            Ok(()) => Ok(key),
            Err(_) => Err(KeyError(format!(
                "key {under:?} of {from} is not the key of that id which the data is encrypted under"
            ))),
        }
    }
}

fn context(id: u32) -> AssociatedData {
    AssociatedData::new(WRAPPED, [id.into(), 0, 0, 0, 0, 0, 0])
}

pub(super) fn cipher(key: &KeyBytes) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new((&**key).into())
}
