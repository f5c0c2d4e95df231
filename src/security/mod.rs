//! Who may connect, and as whom: the rights of credentials, and ids by connections.
//!
//! [`Security`], [`Secret`], `Tls` and
//! [`AuthProvider`](crate::AuthProvider) stand at the crate's root. What each protects from, and what each right
//! allows, is in [`guide::security`](crate::guide::security).

// Not here: the bytes on a connection (`transport::secure`).

pub(crate) mod auth;
#[cfg(feature = "tls")]
pub(crate) mod pem;
mod roles;
pub(crate) mod secret;
pub(crate) mod settings;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
pub(crate) mod x509;

use argon2::{Algorithm, Argon2, Params, Version};

pub use self::auth::Connection;
pub use self::roles::Roles;
pub(crate) use self::secret::{Key, Secret};
pub(crate) use self::settings::{Reading, Security};
#[cfg(feature = "tls")]
pub(crate) use self::tls::{Keys, Tls, describe};
pub use crate::types::right::Right;

/// The hash of a password or phrase, each guess of which takes 19 MiB of memory and about 20 ms:
/// Argon2id with two passes, as OWASP recommends.
fn stretched(text: &[u8], salt: &[u8]) -> argon2::Result<[u8; 32]> {
    let mut hash = [0; 32];
    let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT);
    hasher.hash_password_into(text, salt, &mut hash)?;
    Ok(hash)
}
