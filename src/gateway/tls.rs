//! The certificates of a gateway's port.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{DEFAULT_VERSIONS, ServerConfig};

use crate::api::support::HasCertificates;
use crate::security::tls::refused_subjects;
use crate::security::{WallClock, describe, pem, x509};
use crate::types::acl::Id;
use crate::types::certificate::Expiry;
use crate::types::error::{Error, Result};

/// How often the files are read again.
const RENEWAL: Duration = Duration::from_secs(5);

/// Whether the clients of a gateway must have certificates: see
/// [`GatewayTls::client_certificates`].
///
/// ```
/// use quorate::gateway::ClientCertificates;
///
/// assert_ne!(ClientCertificates::Required, ClientCertificates::Optional);
/// ```
///
/// Source: ZooKeeper, `ssl.clientAuth`: `need` and `want`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientCertificates {
    /// A client without a valid certificate is refused.
    Required,
    /// A client need not have a certificate. A client with an invalid one is refused.
    Optional,
}

/// The certificate of a gateway, so that its clients connect over TLS: see
/// [`GatewayBuilder::tls`](crate::gateway::GatewayBuilder::tls).
///
/// TLS 1.3 and 1.2, without session resumption. Certificates may have keys of the kinds ECDSA P-256 and P-384,
/// Ed25519 and RSA.
///
/// The files are read again every five seconds. After a change, new connections use the new content, and
/// existing ones stay if they would still be accepted. If a file cannot be used, that is logged, and the former content
/// stays in use.
///
/// ```no_run
/// use quorate::gateway::{ClientCertificates, Gateway, GatewayTls};
/// use quorate::testing::Cluster;
///
/// let tls = GatewayTls::from_pem_files("gateway.pem", "gateway.key")?
///     .client_certificates(ClientCertificates::Required, "clients-ca.pem")?;
/// let cluster = Cluster::new(1);
/// let gateway = Gateway::builder().tls(tls).serve(&cluster.node(0), "127.0.0.1:2281")?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct GatewayTls {
    files: Files,
    super_user: Option<Id>,
    loaded: Arc<SharedCertificates>,
}

#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    clients: Option<(ClientCertificates, PathBuf)>,
    refused: Option<PathBuf>,
}

struct SharedCertificates {
    loaded: ArcSwap<Loaded>,
    /// The reason why the files could not be used at the last reading; logged once.
    reported: Mutex<Option<String>>,
}

/// What the files say.
struct Loaded {
    certificates: Arc<Certificates>,
    /// Subjects.
    refused: BTreeSet<String>,
}

/// The content of the files with certificates, and the configuration made from it.
struct Certificates {
    pem: Vec<Vec<u8>>,
    config: Arc<ServerConfig>,
    /// When the certificates expire.
    expire: Vec<Expiry>,
    /// Of clients' certificates.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// Shows the files.
impl fmt::Debug for GatewayTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GatewayTls").field(&self.files).finish()
    }
}

impl GatewayTls {
    /// Reads PEM files: the certificate of this gateway, followed by any intermediate ones, and its key.
    /// Clients verify the certificate as they are configured; they need none themselves. Blocks while it
    /// reads the files.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if a file cannot be read or used; its reason names the file and
    /// the cause.
    pub fn from_pem_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<GatewayTls> {
        let (certificate, key) = (certificate.as_ref().to_owned(), key.as_ref().to_owned());
        GatewayTls::load(Files { certificate, key, clients: None, refused: None }, None)
    }

    /// Verifies clients' certificates by this authority, a PEM file with one or more of its certificates. The
    /// session of a client with a certificate has the id `x509:<subject>` from the start, for example
    /// `x509:CN=billing,O=Example`. Access lists may name such an id. Blocks while it reads the file.
    ///
    /// Names in clients' certificates are not compared with addresses. If a certificate lists extended key usages,
    /// `clientAuth` must be among them. When the authority's certificate is taken out of the file, the open
    /// connections of its clients are closed.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the file cannot be read or used; its reason has the cause.
    pub fn client_certificates(
        self,
        which: ClientCertificates,
        authority: impl AsRef<Path>,
    ) -> Result<GatewayTls> {
        let clients = Some((which, authority.as_ref().to_owned()));
        GatewayTls::load(Files { clients, ..self.files }, self.super_user)
    }

    /// Refuses clients with certificates of these subjects, one a line, as
    /// [`Tls::with_refused`](crate::Tls::with_refused) does: both may have the same file. It is read again as the
    /// others, and the open connections of a subject that was added are closed. Blocks while it reads the file.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the file cannot be read, or has a line that is no subject.
    pub fn with_refused(self, subjects: impl AsRef<Path>) -> Result<GatewayTls> {
        let refused = Some(subjects.as_ref().to_owned());
        GatewayTls::load(Files { refused, ..self.files }, self.super_user)
    }

    /// Grants every permission, regardless of ACLs, to clients with this subject in a certificate of the authority of
    /// [`GatewayTls::client_certificates`]: whoever runs that authority can make a super user.
    ///
    /// Source: ZooKeeper, `X509AuthenticationProvider.superUser`.
    #[must_use]
    pub fn super_user(self, subject: impl Into<String>) -> GatewayTls {
        GatewayTls { super_user: Some(Id::new("x509", subject)), ..self }
    }

    pub(super) fn super_user_id(&self) -> Option<Id> {
        self.super_user.clone()
    }

    fn load(files: Files, super_user: Option<Id>) -> Result<GatewayTls> {
        let invalid = |reason| Error::InvalidSetting { setting: "tls", reason };
        let certificates = files.read().and_then(|pem| files.configure(pem)).map_err(invalid)?;
        let refused = files.refused().map_err(invalid)?;
        let loaded = Loaded { certificates: Arc::new(certificates), refused };
        let (loaded, reported) = (ArcSwap::from_pointee(loaded), Mutex::default());
        let loaded = Arc::new(SharedCertificates { loaded, reported });
        Ok(GatewayTls { files, super_user, loaded })
    }

    /// The configuration for a new connection.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.loaded.loaded.load().certificates.config)
    }

    /// Why a client that has connected with this chain of certificates at this time is refused by now; `None` if it is
    /// not. `verifies`: whether its authority is checked, too.
    pub(super) fn refusal(
        &self,
        chain: &[CertificateDer<'_>],
        at: UnixTime,
        verifies: bool,
    ) -> Option<String> {
        let (own, intermediates) = chain.split_first()?;
        let loaded = self.loaded.loaded.load();
        let subject = x509::subject(own).unwrap_or_default();
        if loaded.refused.contains(&subject) {
            return Some(format!("certificates of {subject} are refused"));
        }
        let verifier = loaded.certificates.verifier.as_ref().filter(|_| verifies)?;
        let verified = verifier.verify_client_cert(own, intermediates, at);
        verified.err().map(|error| describe(&error))
    }

    /// Reads the files again: blocks.
    pub(super) fn renew(&self) {
        let former = self.loaded.loaded.load_full();
        let certificates = self.files.read().and_then(|pem| match pem == former.certificates.pem {
            true => Ok(Arc::clone(&former.certificates)),
            false => self.files.configure(pem).map(Arc::new),
        });
        let refused = self.files.refused();
        // One wrong file does not keep another from being used.
        let renewed = Loaded {
            certificates: certificates.clone().unwrap_or(Arc::clone(&former.certificates)),
            refused: refused.clone().unwrap_or_else(|_| former.refused.clone()),
        };
        if !renewed.is_as(&former) {
            self.loaded.loaded.store(Arc::new(renewed));
            tracing::info!(tls = ?self, "the gateway uses the renewed files");
        }
        let mut reported = self.loaded.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = certificates.err().or(refused.err());
        if let Some(reason) = &reason
            && reported.as_ref() != Some(reason)
        {
            tracing::warn!(reason, "the former files of the gateway stay in use");
        }
        *reported = reason;
    }
}

impl Loaded {
    fn is_as(&self, other: &Loaded) -> bool {
        Arc::ptr_eq(&self.certificates, &other.certificates) && self.refused == other.refused
    }

    /// Whether it accepts the clients of another authority.
    fn has_other_authority(&self, other: &Loaded) -> bool {
        let authority = |loaded: &Loaded| loaded.certificates.pem.get(2).cloned();
        authority(self) != authority(other)
    }
}

/// Reads the files again when that is due. A disk may be slow, so a thread of its own, `quorate-pem`, reads
/// them; there is one at a time.
pub(super) struct CertificateRenewal {
    next: Duration,
    reads: Option<JoinHandle<()>>,
    /// What the open connections were checked by; `None`: by nothing yet.
    checked: Option<Arc<Loaded>>,
}

impl CertificateRenewal {
    pub(super) fn new(now: Duration) -> CertificateRenewal {
        CertificateRenewal { next: now + RENEWAL, reads: None, checked: None }
    }

    /// Whether the open connections must be checked, since the files have changed; then, whether their authority must
    /// be, too. Thousands of chains are not verified for another change.
    pub(super) fn check(&mut self, tls: &GatewayTls) -> Option<bool> {
        let loaded = tls.loaded.loaded.load_full();
        let checked = self.checked.replace(Arc::clone(&loaded))?;
        (!Arc::ptr_eq(&checked, &loaded)).then(|| loaded.has_other_authority(&checked))
    }

    /// Called regularly.
    pub(super) fn renew(&mut self, tls: &GatewayTls, now: Duration) {
        if now < self.next || self.reads.as_ref().is_some_and(|reads| !reads.is_finished()) {
            return;
        }
        self.next = now + RENEWAL;
        let tls = tls.clone();
        let thread = thread::Builder::new().name("quorate-pem".to_owned());
        match thread.spawn(move || tls.renew()) {
            Ok(reads) => self.reads = Some(reads),
            Err(error) => tracing::warn!(%error, "no thread to read certificates again"),
        }
    }
}

impl HasCertificates for GatewayTls {
    fn certificates(&self) -> Vec<Expiry> {
        self.loaded.loaded.load().certificates.expire.clone()
    }
}

impl Files {
    /// When the certificates in the files' content expire.
    fn expire(&self, pem: &[Vec<u8>]) -> Vec<Expiry> {
        let authority = self.clients.as_ref().map(|(_, file)| file);
        let all = [
            ("gateway", "the gateway's certificate", Some(&self.certificate), pem.first()),
            ("gateway_clients", "the authority of the gateway's clients", authority, pem.get(2)),
        ];
        let of = |(of, what, file, pem): (_, _, Option<&PathBuf>, Option<&Vec<u8>>)| {
            Some(Expiry::new(of, what, Some(file?), pem::expires(pem?)?))
        };
        all.into_iter().filter_map(of).collect()
    }

    fn read(&self) -> std::result::Result<Vec<Vec<u8>>, String> {
        let authority = self.clients.as_ref().map(|(_, authority)| authority);
        let files = [&self.certificate, &self.key].into_iter().chain(authority);
        files.map(|file| pem::read(file)).collect()
    }

    /// Makes the configuration from the files' content, as `read` returns it.
    fn configure(&self, pem: Vec<Vec<u8>>) -> std::result::Result<Certificates, String> {
        let [certificate, key, authority @ ..] = &pem[..] else {
            return Err("there is no key".to_owned());
        };
        let of = |what: &str, file: &Path| format!("{what}, {}", file.display());
        let chain = pem::certificates(certificate, &of("this gateway", &self.certificate))?;
        let key = pem::key(key, &of("this gateway", &self.key))?;
        let provider = Arc::new(ring::default_provider());
        let builder =
            ServerConfig::builder_with_details(Arc::clone(&provider), Arc::new(WallClock))
                .with_protocol_versions(DEFAULT_VERSIONS)
                .map_err(|error| error.to_string())?;
        let mut clients: Option<Arc<dyn ClientCertVerifier>> = None;
        let builder = match (&self.clients, authority.first()) {
            (Some((which, file)), Some(authority)) => {
                let roots = pem::roots(authority, &of("the clients' authority", file))?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match which {
                    ClientCertificates::Required => verifier,
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                };
                let verifier = verifier.build().map_err(|error| error.to_string())?;
                clients = Some(Arc::clone(&verifier));
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            let [certificate, key] = [&self.certificate, &self.key].map(|file| file.display());
            format!("certificate and key of this gateway: {error} (files {certificate} and {key})")
        })?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        let expire = self.expire(&pem);
        Ok(Certificates { pem, config: Arc::new(config), expire, verifier: clients })
    }

    /// The subjects that are refused.
    fn refused(&self) -> std::result::Result<BTreeSet<String>, String> {
        let Some(file) = &self.refused else { return Ok(BTreeSet::new()) };
        refused_subjects(&String::from_utf8_lossy(&pem::read(file)?))
    }
}
