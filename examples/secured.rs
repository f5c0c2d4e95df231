//! Three members that only talk to holders of a certificate of their authority. The authority and the
//! certificates are created here. In a deployment, `openssl` or a certificate manager creates them
//! (docs/security.md has the commands), and the files are renewed while the members run.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use quorate::StartError;
use quorate::acl::{Acl, Id, Permissions};
use quorate::{Coordinator, CreateMode, Error, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
type Authority = CertifiedIssuer<'static, KeyPair>;

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let listeners: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let peers: Vec<String> = listeners
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.to_string()))
        .collect::<Result<_, _>>()?;
    drop(listeners);

    let cluster = authority("the cluster's authority")?;
    let join = |place: usize, name: &str, authority: &Authority| -> Outcome<Coordinator> {
        let [ca, node, key] = issue(authority, name, dir.path())?;
        Ok(Coordinator::builder()
            .security(Tls::from_pem_files(ca, node, key)?)
            .advertise(&peers[place])
            .data_dir(dir.path().join(name).join("data"))
            .join(&peers)
            .wait()?)
    };
    let first = join(0, "app-0", &cluster)?;
    let second = join(1, "app-1", &cluster)?;
    let third = join(2, "app-2", &cluster)?;
    for member in [&first, &second, &third] {
        member.wait_ready(PATIENCE).wait()?;
    }
    println!("three found a cluster and talk over TLS");
    third.close().wait()?;

    // A certificate of another authority.
    let stranger = join(2, "stranger", &authority("somebody else's authority")?)?;
    match stranger.wait_ready(Duration::from_secs(2)).wait() {
        Err(Error::Start(StartError::PeerRefused { reason, .. })) => {
            println!("a stranger: {reason}")
        }
        other => panic!("{other:?}"),
    }
    drop(stranger);
    let third = join(2, "app-2", &cluster)?;
    third.wait_ready(PATIENCE).wait()?;
    println!("with a certificate of the cluster's authority: {}", third.status());

    // A session has an id from the certificate of its instance.
    let (zero, one) = (first.session(), second.session());
    let own = Id::new("x509", "CN=app-0");
    zero.create_with_acl(
        "/own",
        b"",
        CreateMode::Persistent,
        &[Acl::new(Permissions::ALL, own.clone())],
    )
    .wait()?;
    assert!(zero.who_am_i().wait()?.contains(&own));
    one.sync().wait()?;
    println!("app-1 at a znode of app-0: {}", one.get("/own").wait().unwrap_err());
    Ok(())
}

fn authority(name: &str) -> Outcome<Authority> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// The files for a member of this name: authority, certificate, key.
fn issue(authority: &Authority, name: &str, dir: &Path) -> Outcome<[std::path::PathBuf; 3]> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    let dir = dir.join(name);
    std::fs::create_dir_all(&dir)?;
    let files = ["ca.pem", "node.pem", "node.key"].map(|file| dir.join(file));
    let contents = [authority.pem(), certificate.pem(), key.serialize_pem()];
    for (file, content) in files.iter().zip(contents) {
        std::fs::write(file, content)?;
    }
    Ok(files)
}
