//! Authentication and encryption between members: the user's settings, and the keys made from them.
//!
//! Not here: the bytes on a connection (`transport::secure`).

pub(crate) mod auth;
#[cfg(feature = "tls")]
pub(crate) mod pem;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
pub(crate) mod x509;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use argon2::{Algorithm, Argon2, Params, Version};

#[cfg(feature = "tls")]
pub use self::tls::Tls;
#[cfg(feature = "tls")]
pub(crate) use self::tls::{Keys, Loaded, describe};
use crate::types::error::{Error, Result};

/// How the connections between a cluster's members are protected.
///
/// All members need the same kind. For the threats that each protects from, see
/// [`guide::security`](crate::guide::security).
///
/// ```no_run
/// use quorate::{Coordinator, Secret};
///
/// let secret = std::env::var("CLUSTER_SECRET").expect("the deployment sets it");
/// let coordinator = Coordinator::builder()
///     .security(Secret::new(&secret)?)
///     .join(["app-0.app:7400", "app-1.app:7400", "app-2.app:7400"])?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Security {
    /// No protection, and therefore only members on this host: addresses other than those of the
    /// loopback are refused with [`StartError::NotSecured`](crate::StartError::NotSecured). The default.
    #[default]
    Loopback,
    /// No protection, on any network: anybody who reaches the port can be a member, and read and
    /// change everything. For networks that are kept private by other means.
    Insecure,
    /// A secret that all members know. They prove it without sending it, and all traffic is
    /// encrypted.
    Secret(Secret),
    /// Certificates of the cluster's own authority, one for each member or one for all.
    #[cfg(feature = "tls")]
    Tls(Tls),
}

impl From<Secret> for Security {
    fn from(secret: Secret) -> Security {
        Security::Secret(secret)
    }
}

#[cfg(feature = "tls")]
impl From<Tls> for Security {
    fn from(tls: Tls) -> Security {
        Security::Tls(tls)
    }
}

/// The minimum length of a phrase in characters, and the minimum number of different ones in any
/// secret.
const PHRASE_CHARS_MIN: usize = 20;
const DIFFERENT_CHARS_MIN: usize = 8;

/// The salt for stretching a phrase. There is no place for a cluster's own salt before its members
/// can talk to each other.
const SALT: &[u8] = b"quorate cluster secret";

/// A secret that all members of a cluster know, for [`Security::Secret`].
///
/// **Exactly 64 hexadecimal digits are a key**, as printed by `openssl rand -hex 32`, and used
/// directly. **Any other text is a phrase** of at least 20 characters, 8 of them different, from
/// which Argon2id derives a key (19 MiB, about 20 ms). Random bytes in another encoding, such as
/// base64, are a phrase like any other, and a good one. An attacker who records traffic can try
/// phrases at that cost each, so a phrase should consist of at least six random words, and not be
/// invented by a person.
///
/// ```
/// use quorate::Secret;
///
/// // While the secret is being changed, both are accepted, and the first is used to connect.
/// let secret = Secret::new("8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350")?
///     .or("violin-carbon-otter-meadow-quartz-lantern")?;
/// assert_eq!(format!("{secret:?}"), "Secret(2)");
/// assert!(Secret::new("password").is_err());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    /// The first is used to connect.
    keys: Arc<[[u8; 32]]>,
}

/// Shows only how many secrets are accepted.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.keys.len())
    }
}

impl Secret {
    /// Makes a secret of this text, ignoring surrounding white space. Takes about 20 ms for a
    /// phrase.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if it is too easy to guess, or has a line break: then it may be two.
    pub fn new(text: &str) -> Result<Secret> {
        Ok(Secret { keys: [key(text)?].into() })
    }

    /// Also accepts this secret, for the duration of a change in which members have one or the
    /// other. The first one is used to connect.
    ///
    /// # Errors
    /// As [`Secret::new`], and [`Error::InvalidSetting`] if there are already two.
    pub fn or(self, text: &str) -> Result<Secret> {
        match *self.keys {
            [first] => Ok(Secret { keys: [first, key(text)?].into() }),
            _ => Err(invalid("no more than two can be accepted at a time")),
        }
    }

    /// All accepted keys; the first is used to connect.
    pub(crate) fn keys(&self) -> &[[u8; 32]] {
        &self.keys
    }
}

fn invalid(reason: &str) -> Error {
    Error::InvalidSetting { setting: "secret", reason: reason.to_owned() }
}

fn key(text: &str) -> Result<[u8; 32]> {
    let text = text.trim();
    if text.contains(['\n', '\r']) {
        return Err(invalid(
            "it has a line break: one secret is one line, and `Secret::or` adds another",
        ));
    }
    let different: BTreeSet<char> = text.chars().collect();
    if text.chars().count() < PHRASE_CHARS_MIN || different.len() < DIFFERENT_CHARS_MIN {
        return Err(invalid(
            "it could be guessed: use 32 random bytes (openssl rand -hex 32), or a phrase of at \
             least 20 characters, 8 of them different",
        ));
    }
    if let Some(key) = from_hex(text) {
        return Ok(key);
    }
    stretched(text.as_bytes(), SALT).map_err(|error| invalid(&error.to_string()))
}

/// The hash of a password or phrase, each guess of which takes 19 MiB of memory and about 20 ms:
/// Argon2id with two passes, as OWASP recommends.
fn stretched(text: &[u8], salt: &[u8]) -> argon2::Result<[u8; 32]> {
    let mut hash = [0; 32];
    let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT);
    hasher.hash_password_into(text, salt, &mut hash)?;
    Ok(hash)
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let (pairs, []) = digits.as_ref()?.as_chunks::<2>() else {
        return None;
    };
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| (high << 4 | low) as u8).collect();
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_hexadecimal_digits_are_the_key() {
        let key: [u8; 32] = std::array::from_fn(|at| (at * 37 + 129) as u8);
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        for form in [hex.clone(), hex.to_uppercase(), format!("  {hex}\n")] {
            assert_eq!(Secret::new(&form).unwrap().keys(), [key], "{form}");
        }
        for phrase in [&hex[1..], &format!("{hex}0"), &hex.replace('8', "g")] {
            assert_ne!(Secret::new(phrase).unwrap().keys()[0][..4], key[..4], "{phrase}");
        }
    }

    /// 43 letters, digits and hyphens are also base64 for 32 bytes. Such a phrase was used directly
    /// as the key, without stretching, so that guesses cost a millionth of the intended price.
    #[test]
    fn a_phrase_is_stretched_whatever_its_length() {
        use base64::Engine;
        use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
        let phrase = "violin-carbon-otter-meadow-quartz-lantern-w";
        let read = URL_SAFE_NO_PAD.decode(phrase).unwrap();
        assert_eq!((phrase.len(), read.len()), (43, 32));
        assert_ne!(Secret::new(phrase).unwrap().keys()[0][..], read[..]);
        let text = STANDARD.encode(&read);
        assert_ne!(Secret::new(&text).unwrap().keys()[0][..], read[..]);
    }

    #[test]
    fn guessable_secrets_are_refused() {
        for text in ["", "password", "correct horse", &"ab".repeat(32), &"0".repeat(64)] {
            match Secret::new(text) {
                Err(Error::InvalidSetting { setting: "secret", reason }) => {
                    assert!(reason.contains("openssl rand"), "{reason}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        let phrase = "violin carbon otter meadow";
        let secret = Secret::new(phrase).unwrap();
        assert_eq!(secret.keys(), Secret::new(phrase).unwrap().keys());
        assert_ne!(secret.keys(), Secret::new("violin carbon otter meadox").unwrap().keys());
        assert!(secret.or(phrase).unwrap().or(phrase).is_err());
    }

    /// A file with the old and the new secret was taken as a third one.
    #[test]
    fn a_secret_is_one_line() {
        for text in [
            "violin-carbon-otter\nmeadow-quartz-lantern",
            "violin-carbon-otter\rmeadow-quartz-lantern",
        ] {
            let refused = Secret::new(text).unwrap_err().to_string();
            assert!(refused.contains("line break"), "{refused}");
            assert!(Secret::new("violin carbon otter meadow").unwrap().or(text).is_err());
        }
        assert!(Secret::new("violin carbon otter meadow\r\n").is_ok());
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
        let security = Security::from(Secret::new(text).unwrap());
        assert_eq!(format!("{security:?}"), "Secret(Secret(1))");
    }
}
