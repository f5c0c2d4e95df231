//! How connections are protected: the user's choice, and what its files have.

use std::sync::Arc;

use super::Secret;
#[cfg(feature = "tls")]
use super::Tls;
use crate::types::certificate::Expiry;

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
///     .join(["app-0.app:7400", "app-1.app:7400", "app-2.app:7400"]).wait()?;
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

    /// When the certificates expire.
    pub(crate) fn certificates(&self) -> Arc<[Expiry]> {
        match self {
            #[cfg(feature = "tls")]
            Security::Tls(tls) => Arc::clone(&tls.keys().expire),
            _ => Arc::default(),
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

    /// Reads the files again.
    pub(crate) fn read_again(&self) -> Reading<Security> {
        match self {
            Security::Loopback | Security::Insecure => Reading { renewed: None, wrong: None },
            Security::Secret(secret) => secret.read_again().map(Security::Secret),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => tls.read_again().map(Security::Tls),
        }
    }
}

/// What files have now. What is withdrawn in one of them counts, whatever is wrong with another.
#[derive(Debug)]
pub(crate) struct Reading<T> {
    /// The same with the content that has changed and can be used.
    pub(crate) renewed: Option<T>,
    /// Why other content cannot be used: the former stays.
    pub(crate) wrong: Option<String>,
}

impl<T> Reading<T> {
    fn map<U>(self, map: impl FnOnce(T) -> U) -> Reading<U> {
        Reading { renewed: self.renewed.map(map), wrong: self.wrong }
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
