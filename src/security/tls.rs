//! Certificates and keys, from PEM to the configuration of connections.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

use super::{pem, x509};
use crate::types::error::{Error, Result};

/// Names the protocol inside TLS, so that a connection meant for another service with the same
/// authority is not accepted.
const PROTOCOL: &[u8] = b"quorate";

/// The certificates of this member and of the cluster's authority, for
/// [`Security::Tls`](crate::Security::Tls).
///
/// Both ends of each connection present a certificate, and accept one that the cluster's authority
/// has signed. Names in certificates are not compared with addresses: anybody with a certificate of
/// the authority is a member, wherever it runs. So the authority should be the cluster's own, and
/// never a public one. A node id stays with the subject of the certificate that it was first seen
/// with.
///
/// TLS 1.3 only, without session resumption. Certificates may have keys of the kinds ECDSA P-256
/// and P-384, Ed25519 and RSA. If they list extended key usages, both `serverAuth` and `clientAuth`
/// must be among them.
///
/// ```no_run
/// use quorate::{Coordinator, Tls};
///
/// let coordinator = Coordinator::builder()
///     .security(Tls::from_pem_files("ca.pem", "node.pem", "node.key")?)
///     .join(["app-0.app:7400", "app-1.app:7400", "app-2.app:7400"])?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct Tls {
    /// The files of authority, certificate and key, if they came from files.
    files: Option<Arc<[PathBuf; 3]>>,
    loaded: Loaded,
}

/// Shows the subject of the certificate, and its origin.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("subject", &self.loaded.keys.subject)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads PEM files: one or more certificates of the cluster's authority; the certificate of
    /// this member, followed by any intermediate ones; and its key. Blocks while it reads them.
    ///
    /// The files are read again every ten seconds. After a change, new connections use the new
    /// content, and existing ones stay. Unusable files (half-written, or with a key that does not
    /// match) are logged, and the former content stays in use.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if a file cannot be read or used, if the certificate is not signed by
    /// this authority, or if it has expired. The error names the file and the reason.
    pub fn from_pem_files(
        authority: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Tls> {
        let files = [authority.as_ref(), certificate.as_ref(), key.as_ref()].map(Path::to_owned);
        let pem = read(&files).map_err(invalid)?;
        let loaded = Loaded::new(pem, Some(UnixTime::now())).map_err(|reason| {
            let [authority, certificate, key] = files.each_ref().map(|file| file.display());
            invalid(format!("{reason} (files {authority}, {certificate} and {key})"))
        })?;
        Ok(Tls { files: Some(Arc::new(files)), loaded })
    }

    /// As [`Tls::from_pem_files`], from the content of such files, which is used until the next
    /// start.
    ///
    /// # Errors
    /// As for [`Tls::from_pem_files`].
    pub fn from_pem(
        authority: impl AsRef<[u8]>,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Tls> {
        let pem = [authority.as_ref(), certificate.as_ref(), key.as_ref()].map(<[u8]>::to_vec);
        let loaded = Loaded::new(pem, Some(UnixTime::now())).map_err(invalid)?;
        Ok(Tls { files: None, loaded })
    }

    /// As [`Tls::from_pem`], without checking whether others would accept the certificate.
    #[cfg(test)]
    pub(crate) fn unverified(authority: &str, certificate: &str, key: &str) -> Tls {
        let pem = [authority, certificate, key].map(|pem| pem.as_bytes().to_vec());
        Tls { files: None, loaded: Loaded::new(pem, None).unwrap() }
    }

    /// Whether there are files to read again.
    pub(crate) fn is_from_files(&self) -> bool {
        self.files.is_some()
    }

    /// The current content of the files; `None` if it has not changed.
    pub(crate) fn read_again(&self) -> std::result::Result<Option<Loaded>, String> {
        let Some(files) = &self.files else {
            return Ok(None);
        };
        let pem = read(files)?;
        if pem == *self.loaded.pem {
            return Ok(None);
        }
        Loaded::new(pem, Some(UnixTime::now())).map(Some)
    }

    pub(crate) fn renew(&mut self, loaded: Loaded) {
        self.loaded = loaded;
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.loaded.keys
    }
}

fn invalid(reason: String) -> Error {
    Error::InvalidSetting { setting: "tls", reason }
}

fn read(files: &[PathBuf; 3]) -> std::result::Result<[Vec<u8>; 3], String> {
    Ok([pem::read(&files[0])?, pem::read(&files[1])?, pem::read(&files[2])?])
}

/// The content of the files, and the configuration made from it.
#[derive(Clone)]
pub(crate) struct Loaded {
    pem: Arc<[Vec<u8>; 3]>,
    keys: Keys,
}

/// The configuration of connections.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// The subject of the member's own certificate.
    pub(crate) subject: String,
}

impl Loaded {
    /// Given a time, also checks whether others will accept the certificate at that time.
    fn new(pem: [Vec<u8>; 3], now: Option<UnixTime>) -> std::result::Result<Loaded, String> {
        let roots = pem::roots(&pem[0], "the authority")?;
        let chain = pem::certificates(&pem[1], "this member")?;
        let key = pem::key(&pem[2], "this member")?;
        let (own, intermediates) = chain.split_first().ok_or("no certificate of this member")?;
        let subject = x509::subject(own).ok_or("the certificate of this member has no subject")?;
        let refused = |error| format!("the certificate of this member: {}", describe(&error));
        let provider = Arc::new(ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| refused(rustls::Error::General(error.to_string())))?;
        let algorithms = provider.signature_verification_algorithms;
        let members = Arc::new(Verifier { roots, algorithms });
        if let Some(now) = now {
            // The certificate serves both on a listening member and on a connecting one.
            members.check(own, intermediates, now).map_err(refused)?;
            clients.verify_client_cert(own, intermediates, now).map_err(refused)?;
        }
        Keys::new(provider, clients, members, chain, key, subject)
            .map(|keys| Loaded { pem: Arc::new(pem), keys })
            .map_err(|error| format!("the certificate and key of this member: {error}"))
    }
}

/// An error's description, for the cluster's operator.
pub(crate) fn describe(error: &rustls::Error) -> String {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    use rustls::Error::{AlertReceived, InvalidCertificate};
    match error {
        AlertReceived(alert) => {
            format!("the other end ended the connection with {alert:?}; its log has the reason")
        }
        InvalidCertificate(UnknownIssuer | BadSignature) => {
            "the certificate is not one of this cluster's authority".to_owned()
        }
        InvalidCertificate(
            reason @ (Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }),
        ) => format!("{reason}; is the clock of this node right?"),
        InvalidCertificate(reason) => format!("the certificate is not accepted: {reason}"),
        other => other.to_string(),
    }
}

impl Keys {
    /// `clients` verifies the nodes that connect, and `members` the nodes that listen.
    fn new(
        provider: Arc<CryptoProvider>,
        clients: Arc<dyn ClientCertVerifier>,
        members: Arc<dyn ServerCertVerifier>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        subject: String,
    ) -> std::result::Result<Keys, rustls::Error> {
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(members)
            .with_client_auth_cert(chain, key)?;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Keys { client: Arc::new(client), server: Arc::new(server), subject })
    }
}

/// Accepts the certificates of the cluster's authority, whatever names are in them.
#[derive(Debug)]
struct Verifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<(), rustls::Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let (roots, algorithms) = (&self.roots, self.algorithms.all);
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            roots,
            intermediates,
            now,
            algorithms,
        )
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        self.check(certificate, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not supported".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
