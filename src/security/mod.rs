//! Who may connect, and as whom: the rights of credentials, roles, and ids by connections.
//!
//! [`Security`], [`Secret`] and `Tls` stand at the crate's root. What each protects from, and what each right
//! allows, is in [`guide::security`](crate::guide::security). Access lists are in [`acl`](crate::acl).
//!
//! ```
//! use quorate::security::Right;
//! use quorate::{Coordinator, Secret, Security};
//!
//! // Whoever has the clients' secret can connect, and can never be a member.
//! let clients = Secret::new("correct horse battery staple, of clients")?;
//! let secret = Secret::new("correct horse battery staple, of members")?.with_clients(clients)?;
//! let builder = Coordinator::builder().security(Security::Secret(secret));
//! assert!(Right::Client < Right::Member);
//! # Ok::<(), quorate::Error>(())
//! ```

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
pub(crate) mod wall_clock;
#[cfg(feature = "tls")]
pub(crate) mod x509;

use argon2::{Algorithm, Argon2, Params, Version};

pub use self::auth::AuthProvider;
pub use self::roles::Roles;
pub(crate) use self::secret::{Key, Secret};
pub(crate) use self::settings::{Reading, Security};
#[cfg(feature = "tls")]
pub(crate) use self::tls::{Keys, PROTOCOL, Tls, describe};
#[cfg(feature = "tls")]
pub(crate) use self::wall_clock::WallClock;
pub use crate::types::right::{Connection, Right};

/// The hash of a password or phrase, each guess of which takes 19 MiB of memory and about 20 ms:
/// Argon2id with two passes, as OWASP recommends.
fn stretched(text: &[u8], salt: &[u8]) -> argon2::Result<[u8; 32]> {
    let mut hash = [0; 32];
    let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT);
    hasher.hash_password_into(text, salt, &mut hash)?;
    Ok(hash)
}

/// Any text as each of the files that say who may do what.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(text: &str) {
    roles::fuzz(text);
    secret::fuzz(text);
    #[cfg(feature = "tls")]
    tls::fuzz(text);
}
