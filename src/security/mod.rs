//! Authentication and encryption between members: the user's settings, and the keys made from them.
//!
//! Not here: the bytes on a connection (`transport::secure`).

pub(crate) mod auth;
#[cfg(feature = "tls")]
pub(crate) mod pem;
mod roles;
mod secret;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
pub(crate) mod x509;

use argon2::{Algorithm, Argon2, Params, Version};

pub use self::auth::{AuthProvider, Connection};
pub use self::roles::Roles;
pub(crate) use self::secret::Key;
pub use self::secret::Secret;
#[cfg(feature = "tls")]
pub use self::tls::Tls;
#[cfg(feature = "tls")]
pub(crate) use self::tls::{Keys, describe};
pub use crate::types::right::Right;

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

impl Security {
    /// Whether there are files to read again.
    pub(crate) fn is_from_files(&self) -> bool {
        match self {
            Security::Loopback | Security::Insecure => false,
            Security::Secret(secret) => secret.is_from_files(),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => tls.is_from_files(),
        }
    }

    /// Whether a connection that was made with the former settings may have another right with these.
    pub(crate) fn has_other_rights(&self, former: &Security) -> bool {
        match (self, former) {
            #[cfg(feature = "tls")]
            (Security::Tls(tls), Security::Tls(former)) => tls.has_other_authorities(former),
            _ => true,
        }
    }

    /// The same with the current content of its files; `None` if they have not changed.
    pub(crate) fn read_again(&self) -> Result<Option<Security>, String> {
        match self {
            Security::Loopback | Security::Insecure => Ok(None),
            Security::Secret(secret) => Ok(secret.read_again()?.map(Security::Secret)),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => Ok(tls.read_again()?.map(Security::Tls)),
        }
    }
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

/// The hash of a password or phrase, each guess of which takes 19 MiB of memory and about 20 ms:
/// Argon2id with two passes, as OWASP recommends.
fn stretched(text: &[u8], salt: &[u8]) -> argon2::Result<[u8; 32]> {
    let mut hash = [0; 32];
    let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT);
    hasher.hash_password_into(text, salt, &mut hash)?;
    Ok(hash)
}
