//! Clients over TLS, with certificates and without.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion};
use tempfile::TempDir;

use super::*;
use crate::api::coordinator::Coordinator;
use crate::gateway::tls::{ClientCertificates, GatewayTls};
use crate::gateway::wire::request::{Auth, Delete, PathOnly};
use crate::gateway::wire::response::{ClientInfo, DataReply};
use crate::security::pem;
use crate::types::acl::{Acl as Entry, Id, Permissions};
use crate::types::znode::CreateMode;

/// A certificate authority, and a folder for its certificates.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        let authority = Authority { issuer, folder };
        authority.issue("gateway", "gateway");
        authority
    }

    /// Writes a certificate and a key for this common name.
    fn issue(&self, file: &str, name: &str) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, file: &str) -> impl AsRef<Path> + use<> {
        self.folder.path().join(file)
    }

    fn tls(&self) -> GatewayTls {
        GatewayTls::from_pem_files(self.path("gateway.pem"), self.path("gateway.key")).unwrap()
    }

    fn with_clients(&self, which: ClientCertificates) -> GatewayTls {
        self.tls().client_certificates(which, self.path("ca.pem")).unwrap()
    }

    fn connection(
        &self,
        name: Option<&str>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConnection {
        let read = |file: &str| pem::read(self.path(file).as_ref()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(pem::roots(&read("ca.pem"), "").unwrap());
        let config = match name {
            None => config.with_no_client_auth(),
            Some(name) => {
                self.issue("client", name);
                let chain = pem::certificates(&read("client.pem"), "").unwrap();
                config
                    .with_client_auth_cert(chain, pem::key(&read("client.key"), "").unwrap())
                    .unwrap()
            }
        };
        let server = ServerName::try_from("127.0.0.1").unwrap();
        ClientConnection::new(Arc::new(config), server).unwrap()
    }

    fn dial(&self, gateway: &Gateway, name: Option<&str>) -> Client {
        let connection = self.connection(name, rustls::DEFAULT_VERSIONS);
        Client::over(StreamOwned::new(connection, dial(gateway)))
    }

    fn open(&self, gateway: &Gateway, name: Option<&str>) -> Client {
        let mut client = self.dial(gateway, name);
        assert!(client.greet(0, 0, Bytes::new()).session_id != 0);
        client
    }
}

fn serve(cluster: &Cluster, tls: GatewayTls) -> Gateway {
    Gateway::builder().tls(tls).serve(&cluster.node(0), "127.0.0.1:0").unwrap()
}

fn ids(client: &mut Client) -> Vec<(String, String)> {
    let ids = client.ask(&Request::WhoAmI).body::<Vec<ClientInfo>>();
    ids.into_iter().map(|id| (id.scheme, id.user)).collect()
}

fn subject(name: &str) -> String {
    format!("CN={name},O=Example\\, Inc.")
}

fn is_refused(client: &mut Client) -> bool {
    let frame = [0, 0, 0, 1, 0];
    client.stream.write_all(&frame).is_err() || client.stream.read(&mut [0; 100]).is_err()
}

/// Whether at most an alert is received, and then the end.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    let waited = |error: std::io::Error| error.kind() != std::io::ErrorKind::WouldBlock;
    stream.read_to_end(&mut rest).map_or_else(waited, |_| true) && rest.len() <= 7
}

#[test]
fn a_client_has_the_id_of_its_certificate() {
    let cluster = Cluster::with_settings(
        1,
        Coordinator::builder().super_user(Id::new("x509", subject("root"))),
    );
    let authority = Authority::new();
    let tls = authority.with_clients(ClientCertificates::Required);
    let gateway = serve(&cluster, tls.clone().super_user(subject("root")));
    let session = cluster.node(0).session();
    let billing = Entry::new(Permissions::ALL, Id::new("x509", subject("billing")));
    session.create_with_acl("/bills", b"12", CreateMode::Persistent, &[billing]).wait().unwrap();
    let get = Request::GetData(read("/bills", false));

    let mut own = authority.open(&gateway, Some("billing"));
    let expected = [("ip", "127.0.0.1".to_owned()), ("x509", subject("billing"))];
    assert_eq!(ids(&mut own), expected.map(|(scheme, user)| (scheme.to_owned(), user)));
    assert_eq!(own.ask(&get).body::<DataReply>().data.as_deref(), Some(&b"12"[..]));
    assert_eq!(own.code(&set("/bills", b"13")), ErrorCode::Ok);

    let mut other = authority.open(&gateway, Some("shipping"));
    assert_eq!(other.code(&get), ErrorCode::NoAuth);
    assert_eq!(other.code(&set("/bills", b"0")), ErrorCode::NoAuth);

    let mut root = authority.open(&gateway, Some("root"));
    assert_eq!(root.ask(&get).body::<DataReply>().data.as_deref(), Some(&b"13"[..]));

    // The gateway's authority makes the instance's super users by no other way, nor by a request.
    let gateway = serve(&cluster, tls);
    let mut root = authority.open(&gateway, Some("root"));
    let name = Credential(Some(subject("root").into()));
    root.send(&Request::Auth(Auth { kind: 0, scheme: Some("x509".into()), auth: name }));
    assert_eq!(root.receive().header.err, 0);
    assert_eq!(root.code(&get), ErrorCode::NoAuth);
}

/// A list that the members' port followed, and the gateway did not. Its connections were never ended.
#[test]
fn a_refused_client_is_disconnected_and_stays_out() {
    let cluster = Cluster::new(1);
    let (authority, other) = (Authority::new(), Authority::new());
    let list = authority.path("refused");
    std::fs::write(&list, "# nobody yet\n").unwrap();
    let tls = authority.with_clients(ClientCertificates::Required).with_refused(&list).unwrap();
    let gateway = serve(&cluster, tls);
    let mut lost = authority.open(&gateway, Some("lost"));
    let mut kept = authority.open(&gateway, Some("kept"));
    let ends = |client: &mut Client, mut meanwhile: Option<&mut Client>| {
        (0..1000).any(|_| {
            cluster.advance(Duration::from_secs(1));
            meanwhile.as_mut().into_iter().for_each(|client| client.ping());
            client.try_ask(&Request::Ping).is_none()
        })
    };
    // The list counts although the certificate cannot be used.
    std::fs::write(authority.path("gateway.key"), "").unwrap();
    std::fs::write(&list, subject("lost")).unwrap();
    assert!(ends(&mut lost, Some(&mut kept)));
    let refused = authority.dial(&gateway, Some("lost")).stream.read(&mut [0]);
    assert!(matches!(refused, Ok(0)), "{refused:?}");
    authority.open(&gateway, Some("other")).ping();
    // The authority of all that are left goes.
    authority.issue("gateway", "gateway");
    std::fs::write(authority.path("ca.pem"), other.issuer.pem()).unwrap();
    assert!(ends(&mut kept, None));
}

#[test]
fn only_certificates_of_the_authority_are_taken() {
    let cluster = Cluster::new(1);
    let (authority, other) = (Authority::new(), Authority::new());
    let gateway = serve(&cluster, authority.with_clients(ClientCertificates::Required));
    assert!(is_refused(&mut authority.dial(&gateway, None)));
    // A client that trusts the gateway's authority, but has a certificate of another one.
    std::fs::copy(authority.path("ca.pem"), other.path("ca.pem")).unwrap();
    assert!(is_refused(&mut other.dial(&gateway, Some("billing"))));
    authority.open(&gateway, Some("billing")).ping();

    let gateway = serve(&cluster, authority.with_clients(ClientCertificates::Optional));
    assert!(is_refused(&mut other.dial(&gateway, Some("billing"))));
    assert_eq!(ids(&mut authority.open(&gateway, Some("billing"))).len(), 2);
    let mut client = authority.open(&gateway, None);
    assert_eq!(ids(&mut client), [("ip".to_owned(), "127.0.0.1".to_owned())]);
    // A request cannot replace a certificate.
    let name = Credential(Some(subject("billing").into()));
    client.send(&Request::Auth(Auth { kind: 0, scheme: Some("x509".into()), auth: name }));
    assert_eq!(client.receive().header.err, i32::from(ErrorCode::AuthFailed));
    assert!(client.read().is_none());
}

#[test]
fn older_versions_and_four_letter_words_are_served() {
    let cluster = Cluster::new(1);
    let authority = Authority::new();
    let gateway = serve(&cluster, authority.with_clients(ClientCertificates::Required));
    let connection = authority.connection(Some("old"), &[&rustls::version::TLS12]);
    let mut client = Client::over(StreamOwned::new(connection, dial(&gateway)));
    assert!(client.greet(0, 0, Bytes::new()).session_id != 0);
    assert_eq!(ids(&mut client)[1].1, subject("old"));
    let mut client = authority.dial(&gateway, Some("monitor"));
    client.stream.write_all(b"conf").unwrap();
    let mut answer = String::new();
    client.stream.read_to_string(&mut answer).expect("an end that is announced");
    let port = gateway.address().port();
    assert!(answer.contains(&format!("clientPort=-1\nsecureClientPort={port}\n")), "{answer}");
}

/// Encrypted bytes that the socket does not take wait, in addition to bytes that are not encrypted
/// yet.
#[test]
fn unread_replies_wait_and_are_delivered_later() {
    let cluster = Cluster::new(1);
    let authority = Authority::new();
    let gateway = serve(&cluster, authority.tls());
    let session = cluster.node(0).session();
    let large: Vec<u8> = (0..900_000_u32).map(|at| (at % 251) as u8).collect();
    session.create("/large", large.as_slice(), CreateMode::Persistent).wait().unwrap();
    let mut client = authority.open(&gateway, None);
    const READS: usize = 40;
    for _ in 0..READS {
        client.send(&Request::GetData(read("/large", false)));
    }
    authority.open(&gateway, None).ping();
    for _ in 0..READS {
        let data = client.receive().body::<DataReply>().data.unwrap();
        assert!(data == large, "it comes as it is");
    }
    // The last reply of a session, and then the end.
    client.send(&Request::Sync(PathOnly { path: Some("/".into()) }));
    client.send(&Request::CloseSession);
    assert_eq!((client.receive().header.err, client.receive().header.err), (0, 0));
    assert!(client.read().is_none());
}

/// A client that reads record by record, and checks where frames begin. What it sends goes into one write, once it
/// reads.
struct Records {
    connection: ClientConnection,
    socket: TcpStream,
    plain: BytesMut,
    /// What is still to come of the frame's length, and of its body.
    head: Vec<u8>,
    body: usize,
    counted: Arc<AtomicUsize>,
}

impl Records {
    fn new(connection: ClientConnection, socket: TcpStream) -> Records {
        let mut records = Records {
            connection,
            socket,
            plain: BytesMut::new(),
            head: Vec::new(),
            body: 0,
            counted: Arc::default(),
        };
        while records.connection.is_handshaking() {
            records.connection.complete_io(&mut records.socket).unwrap();
        }
        records
    }

    /// Reads a record; false at the end.
    fn next(&mut self) -> bool {
        let mut record = vec![0; 5];
        if self.socket.read_exact(&mut record).is_err() {
            return false;
        }
        let length = u16::from_be_bytes([record[3], record[4]]);
        record.resize(5 + usize::from(length), 0);
        self.socket.read_exact(&mut record[5..]).unwrap();
        let mut unread = record.as_slice();
        while !unread.is_empty() {
            assert!(self.connection.read_tls(&mut unread).unwrap() > 0);
            self.connection.process_new_packets().unwrap();
        }
        let before = self.plain.len();
        let ready = self.connection.process_new_packets().unwrap().plaintext_bytes_to_read();
        self.plain.resize(before + ready, 0);
        self.connection.reader().read_exact(&mut self.plain[before..]).unwrap();
        self.check(before);
        true
    }

    fn check(&mut self, from: usize) {
        self.counted.fetch_add(1, Ordering::Relaxed);
        for at in from..self.plain.len() {
            if self.body > 0 {
                self.body -= 1;
                continue;
            }
            assert!(
                at == from || !self.head.is_empty(),
                "a frame begins in the middle of a record"
            );
            self.head.push(self.plain[at]);
            if let Ok(length) = self.head[..].try_into() {
                self.body = u32::from_be_bytes(length) as usize;
                self.head.clear();
            }
        }
    }
}

impl Read for Records {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut waiting = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut waiting)?;
        }
        self.socket.write_all(&waiting)?;
        while self.plain.is_empty() && self.next() {}
        let read = buffer.len().min(self.plain.len());
        buffer[..read].copy_from_slice(&self.plain.split_to(read));
        Ok(read)
    }
}

impl Write for Records {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.connection.writer().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The C client and kazoo wait for the socket before each frame. What else was in the last frame's record is in the
/// memory of OpenSSL by then.
#[test]
fn each_frame_begins_a_record() {
    let cluster = Cluster::new(1);
    let authority = Authority::new();
    let gateway = serve(&cluster, authority.tls());
    let session = cluster.node(0).session();
    let large = vec![7; 100_000];
    session.create("/large", large.as_slice(), CreateMode::Persistent).wait().unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let records = Records::new(authority.connection(None, &[version]), dial(&gateway));
        let counted = Arc::clone(&records.counted);
        let mut client = Client::over(records);
        // The first reply, too, comes together with others.
        client.say_hello(0, 0, Bytes::new(), false);
        let mut frames = 1;
        for round in 0..30 {
            let path = format!("/of-{round}");
            client.send(&create(&path, b""));
            // The watch's event is written together with the reply to the deletion.
            client.send(&Request::GetData(read(&path, true)));
            client.send(&Request::GetData(read("/large", false)));
            client.send(&Request::Delete(Delete { path: Some(path), version: -1 }));
            frames += 5;
        }
        assert!(client.greeting().unwrap().session_id != 0);
        for _ in 1..frames {
            let packet = client.receive();
            assert_eq!(packet.header.err, 0, "{packet:?}");
        }
        assert!(counted.load(Ordering::Relaxed) >= frames);
    }
}

#[test]
fn a_client_that_does_not_finish_the_handshake_is_disconnected() {
    let cluster = Cluster::new(1);
    let authority = Authority::new();
    let gateway = serve(&cluster, authority.tls());
    // Refused at once, since its bytes are not TLS.
    let mut plain = dial(&gateway);
    plain.write_all(&[0, 0, 0, 45, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert!(is_closed(plain));
    let silent = dial(&gateway);
    let mut stalled = dial(&gateway);
    let mut hello = Vec::new();
    authority.connection(None, rustls::DEFAULT_VERSIONS).write_tls(&mut hello).unwrap();
    stalled.write_all(&hello[..hello.len() / 2]).unwrap();
    let mut alive = authority.open(&gateway, None);
    // In steps: after a pause of its own the gateway takes nobody for silent.
    for _ in 0..50 {
        cluster.advance(crate::gateway::turns::SWEEP * 3 / 5);
        alive.ping();
    }
    assert!(is_closed(silent) && is_closed(stalled));
}

#[test]
fn renewed_files_are_used() {
    let cluster = Cluster::new(1);
    let authority = Authority::new();
    let gateway = serve(&cluster, authority.tls());
    let shown = || {
        let mut stream =
            StreamOwned::new(authority.connection(None, rustls::DEFAULT_VERSIONS), dial(&gateway));
        stream.flush().unwrap();
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown();
    // At first, the files are only half written.
    std::fs::write(authority.path("gateway.key"), "").unwrap();
    cluster.advance(Duration::from_secs(11));
    assert_eq!(shown(), first);
    authority.issue("gateway", "gateway");
    let renewed = (0..1000).any(|_| {
        cluster.advance(Duration::from_secs(1));
        shown() != first
    });
    assert!(renewed);
}

#[test]
fn files_that_are_of_no_use_are_named() {
    let authority = Authority::new();
    let (certificate, key) = (authority.path("gateway.pem"), authority.path("gateway.key"));
    authority.issue("other", "other");
    let of = |certificate: &dyn AsRef<Path>, key: &dyn AsRef<Path>| {
        GatewayTls::from_pem_files(certificate.as_ref(), key.as_ref()).unwrap_err().to_string()
    };
    for (error, named) in [
        (of(&authority.path("none.pem"), &key), "none.pem"),
        (of(&key, &key), "gateway.key"),
        (of(&certificate, &certificate), "gateway.pem"),
        (of(&certificate, &authority.path("other.key")), "other.key"),
    ] {
        assert!(error.contains(named), "{error}");
    }
    let clients = authority.tls().client_certificates(ClientCertificates::Optional, key);
    assert!(clients.unwrap_err().to_string().contains("gateway.key"));
}

/// A client may wait for the gateway's end of the TLS connection before it closes the socket.
#[test]
fn a_client_that_ends_the_tls_connection_is_answered() {
    let cluster = Cluster::new(1);
    let authority = Authority::new();
    let gateway = serve(&cluster, authority.tls());
    let mut connection = authority.connection(None, rustls::DEFAULT_VERSIONS);
    let mut socket = dial(&gateway);
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).unwrap();
    }
    connection.send_close_notify();
    while connection.wants_write() {
        connection.write_tls(&mut socket).unwrap();
    }
    // A timeout of the socket is not the end of the connection.
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
}

/// Certificates expired without a word.
#[test]
fn the_metrics_have_when_the_certificates_of_a_gateway_expire() {
    let authority = Authority::new();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority.issuer).unwrap();
    std::fs::write(authority.path("gateway.pem"), certificate.pem()).unwrap();
    std::fs::write(authority.path("gateway.key"), key.serialize_pem()).unwrap();
    let tls = authority.with_clients(ClientCertificates::Optional);
    let cluster = Cluster::new(1);
    let expire = || cluster.node(0).metrics().wait().unwrap().certificates_expire;
    assert!(expire().is_empty());
    let gateway = Gateway::builder().tls(tls).serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let names: Vec<String> = expire().into_keys().collect();
    assert_eq!(names, ["gateway", "gateway_clients"]);
    assert!(expire()["gateway"] < 0 && expire()["gateway_clients"] > 0, "{:?}", expire());
    drop(gateway);
    assert!(expire().is_empty());
}
