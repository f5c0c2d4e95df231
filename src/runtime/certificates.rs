//! The certificates that an instance uses, and when they expire.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::types::certificate::Expiry;

/// A port with certificates, besides that of the members.
pub(crate) trait HasCertificates: Send + Sync {
    fn certificates(&self) -> Vec<Expiry>;
}

#[derive(Default)]
pub(crate) struct Certificates {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Those of the members' port.
    members: Arc<[Expiry]>,
    ports: Vec<Weak<dyn HasCertificates>>,
}

impl Certificates {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_members(&self, certificates: Arc<[Expiry]>) {
        self.known().members = certificates;
    }

    /// Adds those of a port, until the port is dropped.
    #[cfg(all(feature = "gateway", feature = "tls"))]
    pub(crate) fn add(&self, port: Weak<dyn HasCertificates>) {
        self.known().ports.push(port);
    }

    /// All of them, the first to expire first.
    pub(crate) fn all(&self) -> Vec<Expiry> {
        let mut known = self.known();
        known.ports.retain(|port| port.strong_count() > 0);
        let ports: Vec<_> = known.ports.iter().filter_map(Weak::upgrade).collect();
        let mut all = known.members.to_vec();
        drop(known);
        all.extend(ports.iter().flat_map(|port| port.certificates()));
        all.sort_by_key(|expiry| expiry.at);
        all
    }
}
