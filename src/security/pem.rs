//! PEM files: certificates and keys as text.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::x509;

/// The maximum size of a file with certificates or a key.
const PEM_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn read(file: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |reason: &dyn Display| format!("cannot read {}: {reason}", file.display());
    let bytes = std::fs::metadata(file).map_err(|error| unreadable(&error))?.len();
    if bytes > PEM_BYTES_MAX {
        return Err(unreadable(&"it is longer than any certificate"));
    }
    std::fs::read(file).map_err(|error| unreadable(&error))
}

/// One certificate or more. Errors name the owner, `of`.
pub(crate) fn certificates(pem: &[u8], of: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let list: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(pem).collect();
    match list {
        Ok(list) if list.is_empty() => Err(format!("the PEM of {of} has no certificate")),
        Ok(list) => Ok(list),
        Err(error) => Err(format!("the certificate of {of}: {error}")),
    }
}

pub(crate) fn key(pem: &[u8], of: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("the key of {of}: {error}"))
}

/// When the first of these certificates expires, in seconds since the Unix epoch.
pub(crate) fn expires(pem: &[u8]) -> Option<i64> {
    let list = CertificateDer::pem_slice_iter(pem).flatten();
    list.filter_map(|certificate| x509::not_after(&certificate)).min()
}

/// The certificates of an authority, with which other certificates are verified.
pub(crate) fn roots(pem: &[u8], of: &str) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(pem, of)? {
        roots.add(authority).map_err(|error| format!("the certificate of {of}: {error}"))?;
    }
    Ok(Arc::new(roots))
}
