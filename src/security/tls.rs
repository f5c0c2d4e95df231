//! Certificates and keys, from PEM to the configuration of connections.

use std::collections::BTreeSet;
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

use super::{Reading, WallClock, pem, x509};
use crate::types::certificate::Expiry;
use crate::types::error::{Error, Result};
use crate::types::right::Right;

/// Names the protocol inside TLS, so that a connection meant for another service with the same
/// authority is not accepted.
pub(crate) const PROTOCOL: &[u8] = b"quorate";

/// The certificates of this member and of the cluster's authority, for
/// [`Security::Tls`](crate::Security::Tls).
///
/// Both ends of each connection present a certificate, and accept one that the cluster's authority
/// has signed. Names in certificates are not compared with addresses: anybody with a certificate of
/// the authority may be a member, wherever it runs. So the authority should be the cluster's own, and
/// never a public one. Clients and operators can have authorities of their own
/// ([`Tls::with_clients`], [`Tls::with_operators`]). A node id stays with the subject of the certificate that it was first seen
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
///     .join(["app-0.app:7400", "app-1.app:7400", "app-2.app:7400"]).wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct Tls {
    sources: Arc<Sources>,
    keys: Keys,
}

/// Shows the subject of the certificate, and its origin.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("subject", &self.keys.subject)
            .field("files", &self.sources.files())
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads PEM files: one or more certificates of the cluster's authority; the certificate of
    /// this member, followed by any intermediate ones; and its key. Blocks while it reads them.
    ///
    /// The files are read again every five seconds. After a change, new connections use the new
    /// content, and existing ones stay if they would still be accepted. Unusable files (half-written, or
    /// with a key that does not match) are logged, and the former content stays in use.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if a file cannot be read or used, if the certificate is not signed by
    /// this authority, or if it has expired. The error names the file and the reason.
    pub fn from_pem_files(
        authority: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Tls> {
        Tls::of_files(
            [authority.as_ref(), certificate.as_ref(), key.as_ref()],
            CertificateOwner::Member,
        )
    }

    /// As [`Tls::from_pem_files`], for an operator or a client without a replica whose certificate is of
    /// another authority than the members': see [`Tls::with_clients`]. `authority` is the members'.
    ///
    /// # Errors
    /// As for [`Tls::from_pem_files`]; but which authority has signed the own certificate is for the members
    /// to check.
    ///
    /// ```no_run
    /// use quorate::{Coordinator, Tls};
    ///
    /// let tls = Tls::client_from_pem_files("members-ca.pem", "laptop.pem", "laptop.key")?;
    /// let coordinator = Coordinator::builder()
    ///     .client()
    ///     .security(tls)
    ///     .join(["app-0.app:7400", "app-1.app:7400", "app-2.app:7400"]).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn client_from_pem_files(
        authority: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Tls> {
        Tls::of_files(
            [authority.as_ref(), certificate.as_ref(), key.as_ref()],
            CertificateOwner::Client,
        )
    }

    fn of_files(files: [&Path; 3], owner: CertificateOwner) -> Result<Tls> {
        let [authority, certificate, key] = files.map(PemSource::read);
        let (authority, certificate, key) =
            (authority.map_err(invalid)?, certificate.map_err(invalid)?, key.map_err(invalid)?);
        Tls::of(Sources::new(authority, certificate, key, owner))
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
        let [authority, certificate, key] =
            [authority.as_ref(), certificate.as_ref(), key.as_ref()].map(PemSource::given);
        Tls::of(Sources::new(authority, certificate, key, CertificateOwner::Member))
    }

    /// On members: also accepts clients without a replica whose certificates this authority (a PEM file,
    /// read again as the others) has signed. They have the right [`Right::Client`], and are refused as
    /// members. It must be another authority than the members', and neither may have signed the other. An empty
    /// file stands for nobody.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the file cannot be read or used, or has a certificate of the members' or
    /// operators' authority.
    pub fn with_clients(self, authority: impl AsRef<Path>) -> Result<Tls> {
        let clients = Some(PemSource::read(authority.as_ref()).map_err(invalid)?);
        Tls::of(Sources { clients, ..(*self.sources).clone() })
    }

    /// On members: also accepts operators, as the program `quorate`, whose certificates this authority has
    /// signed. They have the right [`Right::Operator`], and are refused as members.
    ///
    /// # Errors
    /// As for [`Tls::with_clients`].
    pub fn with_operators(self, authority: impl AsRef<Path>) -> Result<Tls> {
        let operators = Some(PemSource::read(authority.as_ref()).map_err(invalid)?);
        Tls::of(Sources { operators, ..(*self.sources).clone() })
    }

    /// Refuses the certificates of these subjects, whoever has signed them: one a line, as
    /// `CN=app-0,O=Example`, with comments behind `#` at the start of a line. The file is read again as the
    /// others, and the open connections of a subject that was added are closed. Its sessions end with their
    /// timeout, or at once by [`Coordinator::expire_session`](crate::Coordinator::expire_session).
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the file cannot be read, or has a line that is no subject.
    pub fn with_refused(self, subjects: impl AsRef<Path>) -> Result<Tls> {
        let refused = Some(PemSource::read(subjects.as_ref()).map_err(invalid)?);
        Tls::of(Sources { refused, ..(*self.sources).clone() })
    }

    fn of(sources: Sources) -> Result<Tls> {
        let keys = sources.keys(Some(WallClock::now())).map_err(|reason| {
            let files = sources.files();
            match files.is_empty() {
                true => invalid(reason),
                false => {
                    let files: Vec<String> =
                        files.iter().map(|file| file.display().to_string()).collect();
                    invalid(format!("{reason} (files {})", files.join(", ")))
                }
            }
        })?;
        Ok(Tls { sources: Arc::new(sources), keys })
    }

    /// As [`Tls::from_pem`], without checking whether others would accept the certificate.
    #[cfg(test)]
    pub(crate) fn unverified(authority: &str, certificate: &str, key: &str) -> Tls {
        let [authority, certificate, key] =
            [authority, certificate, key].map(|pem| PemSource::given(pem.as_bytes()));
        let sources = Sources::new(authority, certificate, key, CertificateOwner::Member);
        let keys = sources.keys(None).unwrap();
        Tls { sources: Arc::new(sources), keys }
    }

    /// Whether there are files to read again.
    pub(crate) fn is_from_files(&self) -> bool {
        !self.sources.files().is_empty()
    }

    /// Reads the files again.
    pub(crate) fn read_again(&self) -> Reading<Tls> {
        let renewed = self.sources.read_again().and_then(|sources| {
            let is_same = sources == *self.sources;
            let keys = if is_same { None } else { Some(sources.keys(Some(WallClock::now()))?) };
            Ok(keys.map(|keys| Tls { sources: Arc::new(sources), keys }))
        });
        match renewed {
            Ok(renewed) => Reading { renewed, wrong: None },
            Err(wrong) => Reading { renewed: self.with_list_alone(), wrong: Some(wrong) },
        }
    }

    /// The same with the list of refused subjects as it is now, if that has changed and can be used.
    fn with_list_alone(&self) -> Option<Tls> {
        let refused = self.sources.refused.as_ref()?.read_again().ok();
        if refused == self.sources.refused {
            return None;
        }
        let sources = Sources { refused: Some(refused?), ..(*self.sources).clone() };
        let keys = sources.keys(None).ok()?;
        Some(Tls { sources: Arc::new(sources), keys })
    }

    /// Whether a connection that was made with the former keys may have another right with these.
    pub(crate) fn has_other_authorities(&self, former: &Tls) -> bool {
        let of = |tls: &Tls| {
            let Sources { authority, operators, clients, .. } = &*tls.sources;
            (authority.clone(), operators.clone(), clients.clone())
        };
        of(self) != of(former)
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }
}

fn invalid(reason: String) -> Error {
    Error::InvalidSetting { setting: "tls", reason }
}

/// Some content, and the file that it came from.
#[derive(Clone, PartialEq, Eq)]
struct PemSource {
    file: Option<PathBuf>,
    content: Vec<u8>,
}

impl PemSource {
    fn is_blank(&self) -> bool {
        self.content.trim_ascii().is_empty()
    }

    fn read(file: &Path) -> std::result::Result<PemSource, String> {
        Ok(PemSource { file: Some(file.to_owned()), content: pem::read(file)? })
    }

    fn given(content: &[u8]) -> PemSource {
        PemSource { file: None, content: content.to_vec() }
    }

    fn read_again(&self) -> std::result::Result<PemSource, String> {
        self.file.as_deref().map_or_else(|| Ok(self.clone()), PemSource::read)
    }
}

/// Whose certificate it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CertificateOwner {
    Member,
    /// An operator or a client, whose authority it need not know.
    Client,
}

/// All that the configuration of connections is made from.
#[derive(Clone, PartialEq, Eq)]
struct Sources {
    authority: PemSource,
    certificate: PemSource,
    key: PemSource,
    operators: Option<PemSource>,
    clients: Option<PemSource>,
    refused: Option<PemSource>,
    owner: CertificateOwner,
}

impl Sources {
    fn new(
        authority: PemSource,
        certificate: PemSource,
        key: PemSource,
        owner: CertificateOwner,
    ) -> Sources {
        let (operators, clients, refused) = (None, None, None);
        Sources { authority, certificate, key, operators, clients, refused, owner }
    }

    fn read_again(&self) -> std::result::Result<Sources, String> {
        let again =
            |source: &Option<PemSource>| source.as_ref().map(PemSource::read_again).transpose();
        Ok(Sources {
            authority: self.authority.read_again()?,
            certificate: self.certificate.read_again()?,
            key: self.key.read_again()?,
            operators: again(&self.operators)?,
            clients: again(&self.clients)?,
            refused: again(&self.refused)?,
            owner: self.owner,
        })
    }

    fn files(&self) -> Vec<&Path> {
        let own = [&self.authority, &self.certificate, &self.key];
        let others = [&self.operators, &self.clients, &self.refused];
        let all = own.into_iter().chain(others.into_iter().flatten());
        all.filter_map(|source| source.file.as_deref()).collect()
    }

    /// Given a time, also checks whether others will accept the certificate at that time.
    fn keys(&self, now: Option<UnixTime>) -> std::result::Result<Keys, String> {
        let members = pem::roots(&self.authority.content, "the authority")?;
        let chain = pem::certificates(&self.certificate.content, "this member")?;
        let key = pem::key(&self.key.content, "this member")?;
        let (own, intermediates) = chain.split_first().ok_or("no certificate of this member")?;
        let subject = x509::subject(own).ok_or("the certificate of this member has no subject")?;
        let refused = |error| format!("the certificate of this member: {}", describe(&error));
        let provider = Arc::new(ring::default_provider());
        let mut accepted = self.accepted(&members, &provider)?;
        if accepted.refused.remove(&subject) {
            tracing::warn!(
                subject,
                "the own subject is among those to be refused: others refuse this one"
            );
        }
        let algorithms = provider.signature_verification_algorithms;
        let listening = Arc::new(Verifier { roots: members, algorithms });
        if let Some(now) = now
            && self.owner == CertificateOwner::Member
        {
            // The certificate serves both on a listening member and on a connecting one.
            listening.check(own, intermediates, now).map_err(refused)?;
            accepted.members.verify_client_cert(own, intermediates, now).map_err(refused)?;
        }
        let certified = chain.clone();
        let mut keys = Keys::new(provider, accepted, listening, chain, key, subject)
            .map_err(|error| format!("the certificate and key of this member: {error}"))?;
        keys.expire = self.expire();
        if let Some(now) = now
            && self.owner == CertificateOwner::Member
        {
            // Otherwise all others would refuse this member, or disconnect it when their files change.
            let right = keys.right(&certified, now)?;
            if right < Right::Member {
                return Err(format!(
                    "the certificate of this member is one of the {right}s' authority, too, since that has \
                     signed the members': the authorities must not have signed each other"
                ));
            }
        }
        Ok(keys)
    }

    /// When the certificates expire.
    fn expire(&self) -> Arc<[Expiry]> {
        let all = [
            ("member", "its certificate", Some(&self.certificate)),
            ("authority", "the members' authority", Some(&self.authority)),
            ("operators", "the operators' authority", self.operators.as_ref()),
            ("clients", "the clients' authority", self.clients.as_ref()),
        ];
        let of = |(of, what, source): (_, _, Option<&PemSource>)| {
            let source = source?;
            Some(Expiry::new(of, what, source.file.as_deref(), pem::expires(&source.content)?))
        };
        all.into_iter().filter_map(of).collect()
    }

    /// Whom this node accepts.
    fn accepted(
        &self,
        members: &Arc<RootCertStore>,
        provider: &Arc<CryptoProvider>,
    ) -> std::result::Result<Accepted, String> {
        let verifier = |roots: &Arc<RootCertStore>| {
            let (roots, provider) = (Arc::clone(roots), Arc::clone(provider));
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            verifier.build().map_err(|error| format!("an authority: {error}"))
        };
        let algorithms = provider.signature_verification_algorithms;
        let mut all = RootCertStore::clone(members);
        let mut others = Vec::new();
        for (right, whose, source) in [
            (Right::Client, "the clients' authority", &self.clients),
            (Right::Operator, "the operators' authority", &self.operators),
        ] {
            // An empty file is that of nobody: so a right is withdrawn from all.
            let Some(source) = source.as_ref().filter(|source| !source.is_blank()) else {
                continue;
            };
            let roots = pem::roots(&source.content, whose)?;
            if roots.roots.iter().any(|root| all.roots.contains(root)) {
                return Err(format!("{whose} is another right's, too: each needs its own"));
            }
            all.roots.extend(roots.roots.iter().cloned());
            let listening = Verifier { roots: Arc::clone(&roots), algorithms };
            others.push(Other { right, verifier: verifier(&roots)?, listening });
        }
        let listed = self.refused.as_ref().map_or(&b""[..], |source| &source.content);
        let refused = refused_subjects(&String::from_utf8_lossy(listed))?;
        Ok(Accepted {
            all: verifier(&Arc::new(all))?,
            members: verifier(members)?,
            others,
            refused,
        })
    }
}

/// The subjects that a list has, one a line.
pub(crate) fn refused_subjects(listed: &str) -> std::result::Result<BTreeSet<String>, String> {
    let lines = listed.lines().map(str::trim);
    let mut refused = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    match refused.clone().find(|line| line.starts_with('/') || !line.contains('=')) {
        Some(wrong) => Err(format!(
            "the subjects to be refused have {wrong:?}, which is not of the form CN=app-0,O=Example"
        )),
        None => Ok(refused.by_ref().map(str::to_owned).collect()),
    }
}

/// Any text as a list of refused subjects. What is read can be written and read again.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(text: &str) {
    if let Ok(refused) = refused_subjects(text) {
        let again: Vec<&str> = refused.iter().map(String::as_str).collect();
        assert_eq!(refused_subjects(&again.join("\n")), Ok(refused.clone()));
    }
}

/// Whose certificates a node accepts.
struct Accepted {
    /// Those of all authorities, for the handshake.
    all: Arc<dyn ClientCertVerifier>,
    members: Arc<dyn ClientCertVerifier>,
    /// Of operators and clients, the smaller right first.
    others: Vec<Other>,
    /// Subjects.
    refused: BTreeSet<String>,
}

/// The authority of a right that is not a member's.
struct Other {
    right: Right,
    verifier: Arc<dyn ClientCertVerifier>,
    /// For one that listens, and so poses as a member.
    listening: Verifier,
}

/// The configuration of connections.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// The subject of the member's own certificate.
    pub(crate) subject: String,
    /// When the certificates expire.
    pub(crate) expire: Arc<[Expiry]>,
    accepted: Arc<Accepted>,
    listening: Arc<Verifier>,
}

/// An error's description, for the cluster's operator.
pub(crate) fn describe(error: &rustls::Error) -> String {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, InvalidPurpose, InvalidPurposeContext, NotValidYet,
        NotValidYetContext, UnknownIssuer,
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
        InvalidCertificate(InvalidPurpose | InvalidPurposeContext { .. }) => {
            "the certificate has not the extended key usages that are needed: a member's needs serverAuth and \
             clientAuth"
                .to_owned()
        }
        InvalidCertificate(reason) => format!("the certificate is not accepted: {reason}"),
        other => other.to_string(),
    }
}

impl Keys {
    /// `listening` verifies the members that this node connects to.
    fn new(
        provider: Arc<CryptoProvider>,
        accepted: Accepted,
        listening: Arc<Verifier>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        subject: String,
    ) -> std::result::Result<Keys, rustls::Error> {
        let mut server =
            ServerConfig::builder_with_details(Arc::clone(&provider), Arc::new(WallClock))
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(Arc::clone(&accepted.all))
                .with_single_cert(chain.clone(), key.clone_key())?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let members: Arc<dyn ServerCertVerifier> = Arc::<Verifier>::clone(&listening);
        let mut client = ClientConfig::builder_with_details(provider, Arc::new(WallClock))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(members)
            .with_client_auth_cert(chain, key)?;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let (client, server, accepted) = (Arc::new(client), Arc::new(server), Arc::new(accepted));
        Ok(Keys { client, server, subject, expire: Arc::default(), accepted, listening })
    }

    /// The right of a node that has connected with this chain of certificates at this time; an error with the
    /// reason if it has none.
    pub(crate) fn right(
        &self,
        chain: &[CertificateDer<'_>],
        at: UnixTime,
    ) -> std::result::Result<Right, String> {
        let (own, intermediates) = self.unless_refused(chain)?;
        let verify = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier.verify_client_cert(own, intermediates, at).map(drop)
        };
        // The smallest right counts: an authority that a larger right's has signed may not raise its own.
        let mut others = self.accepted.others.iter();
        match others.find(|other| verify(&other.verifier).is_ok()) {
            Some(other) => Ok(other.right),
            None => self.check_both(own, intermediates, at).map(|()| Right::Member),
        }
    }

    /// Whether a connection that was made to a member with this chain at this time may stay.
    pub(crate) fn check_member(
        &self,
        chain: &[CertificateDer<'_>],
        at: UnixTime,
    ) -> std::result::Result<(), String> {
        let (own, intermediates) = self.unless_refused(chain)?;
        // As in `right`: an authority that the members' has signed makes no members.
        let others = self.accepted.others.iter();
        let mut makers =
            others.filter(|other| other.listening.check(own, intermediates, at).is_ok());
        if let Some(Other { right, .. }) = makers.next() {
            let right = right.one();
            return Err(format!("its certificate is that of {right}, and it poses as a member"));
        }
        self.check_both(own, intermediates, at)
    }

    /// Members connect to each other: a certificate of their authority for one end alone is no member's.
    fn check_both(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        at: UnixTime,
    ) -> std::result::Result<(), String> {
        let connects = self.accepted.members.verify_client_cert(own, intermediates, at).map(drop);
        let both = connects.and_then(|()| self.listening.check(own, intermediates, at));
        both.map_err(|error| describe(&error))
    }

    /// Why this node refuses the subject of this chain; `None` if it does not.
    pub(crate) fn refusal(&self, chain: &[CertificateDer<'_>]) -> Option<String> {
        self.unless_refused(chain).err()
    }

    fn unless_refused<'a>(
        &self,
        chain: &'a [CertificateDer<'a>],
    ) -> std::result::Result<(&'a CertificateDer<'a>, &'a [CertificateDer<'a>]), String> {
        let (own, intermediates) = chain.split_first().ok_or("it has no certificate")?;
        let subject = x509::subject(own).unwrap_or_default();
        match self.accepted.refused.contains(&subject) {
            true => Err(format!("certificates of {subject} are refused")),
            false => Ok((own, intermediates)),
        }
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
