//! The certificates of `quorate serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use quorate::acl::Id;
use quorate::gateway::{ClientCertificates, GatewayBuilder, GatewayTls};
use quorate::{Builder, Error, Tls};

use crate::access::warn_if_exposed;

#[derive(Debug, Args)]
pub(super) struct TlsArgs {
    /// PEM file: the authority of the members' certificates.
    #[arg(long)]
    members_tls_authority: Option<PathBuf>,
    /// PEM file: this member's certificate, for the other members.
    #[arg(long)]
    members_tls_certificate: Option<PathBuf>,
    /// PEM file: its key.
    #[arg(long)]
    members_tls_key: Option<PathBuf>,
    /// PEM file: the authority of the certificates of clients without a replica, which cannot be members with them.
    #[arg(long, requires = "members_tls_authority")]
    clients_tls_authority: Option<PathBuf>,
    /// PEM file: the authority of the certificates of operators.
    #[arg(long, requires = "members_tls_authority")]
    operators_tls_authority: Option<PathBuf>,
    /// A file with the subjects whose certificates are refused, of members, operators and clients at both ports, one a
    /// line: it is read again when it changes, and open connections are ended.
    #[arg(long)]
    tls_refused: Option<PathBuf>,
    /// Where ZooKeeper's clients connect with TLS: host:port.
    #[arg(long)]
    zookeeper_tls: Option<String>,
    /// PEM file: this member's certificate, for clients.
    #[arg(long)]
    zookeeper_tls_certificate: Option<PathBuf>,
    /// PEM file: its key.
    #[arg(long)]
    zookeeper_tls_key: Option<PathBuf>,
    /// PEM file: the authority of the clients' certificates.
    #[arg(long)]
    zookeeper_tls_authority: Option<PathBuf>,
    /// Whether clients need a certificate, as ZooKeeper's ssl.clientAuth.
    #[arg(long, alias = "ssl.clientAuth", value_enum, default_value_t = ClientAuth::Need)]
    zookeeper_tls_client_auth: ClientAuth,
    /// Which of ZooKeeper's clients may do everything: the subject of a certificate of zookeeper-tls-authority, such as
    /// CN=root,O=Example.
    #[arg(long, alias = "X509AuthenticationProvider.superUser")]
    zookeeper_tls_super_user: Option<String>,
    /// Who else may do everything: the subject of a certificate of the members' or the operators' authority.
    #[arg(long)]
    x509_super_user: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClientAuth {
    Need,
    Want,
    None,
}

fn invalid(setting: &'static str, reason: &str) -> Error {
    Error::InvalidSetting { setting, reason: reason.to_owned() }
}

impl TlsArgs {
    pub(super) fn member(
        &self,
        mut builder: Builder,
        has_secret: bool,
    ) -> quorate::Result<Builder> {
        if let Some(subject) = &self.x509_super_user {
            builder = builder.super_user(Id::new("x509", subject));
        }
        let files =
            [&self.members_tls_authority, &self.members_tls_certificate, &self.members_tls_key];
        match files {
            [None, None, None] if self.tls_refused.is_some() && self.zookeeper_tls.is_none() => {
                Err(invalid("tls-refused", "there are no certificates at any port"))
            }
            [None, None, None] => Ok(builder),
            _ if has_secret => {
                let reason = "the members have a secret or certificates: leave out one of them";
                Err(invalid("secret-file", reason))
            }
            [Some(authority), Some(certificate), Some(key)] => {
                warn_if_exposed(key);
                let mut tls = Tls::from_pem_files(authority, certificate, key)?;
                if let Some(authority) = &self.clients_tls_authority {
                    tls = tls.with_clients(authority)?;
                }
                if let Some(authority) = &self.operators_tls_authority {
                    tls = tls.with_operators(authority)?;
                }
                if let Some(subjects) = &self.tls_refused {
                    tls = tls.with_refused(subjects)?;
                }
                Ok(builder.security(tls))
            }
            _ => {
                let reason =
                    "members-tls-authority, -certificate and -key belong together: set all three";
                Err(invalid("members-tls", reason))
            }
        }
    }

    /// The gateway for clients with TLS, and its address, if one is configured.
    pub(super) fn gateway(
        &self,
        gateway: &GatewayBuilder,
    ) -> quorate::Result<Option<(&str, GatewayBuilder)>> {
        let files = (&self.zookeeper_tls_certificate, &self.zookeeper_tls_key);
        let Some(address) = &self.zookeeper_tls else {
            return match (files, &self.zookeeper_tls_authority) {
                ((None, None), None) => Ok(None),
                _ => Err(invalid("zookeeper-tls", "it is missing: say where clients connect")),
            };
        };
        let (Some(certificate), Some(key)) = files else {
            let reason = "it needs zookeeper-tls-certificate and zookeeper-tls-key";
            return Err(invalid("zookeeper-tls", reason));
        };
        warn_if_exposed(key);
        let tls = GatewayTls::from_pem_files(certificate, key)?;
        let which = match self.zookeeper_tls_client_auth {
            ClientAuth::Need => Some(ClientCertificates::Required),
            ClientAuth::Want => Some(ClientCertificates::Optional),
            ClientAuth::None => None,
        };
        let tls = match (which, &self.zookeeper_tls_authority) {
            (Some(which), Some(authority)) => tls.client_certificates(which, authority)?,
            (Some(_), None) => {
                let reason = "clients need a certificate, so it is needed to verify them; or set \
                              zookeeper-tls-client-auth to none";
                return Err(invalid("zookeeper-tls-authority", reason));
            }
            (None, _) => tls,
        };
        let tls = match &self.tls_refused {
            Some(subjects) => tls.with_refused(subjects)?,
            None => tls,
        };
        let tls = match &self.zookeeper_tls_super_user {
            Some(subject) => tls.super_user(subject),
            None => tls,
        };
        Ok(Some((address, gateway.clone().tls(tls))))
    }
}
