//! How a command reaches a running cluster.

use std::path::{Path, PathBuf};

use clap::Args;
use quorate::{Builder, Coordinator, Error, Result, Secret};

/// The members, and what they demand of those who connect.
#[derive(Debug, Args)]
#[command(next_help_heading = "The cluster")]
pub(crate) struct Access {
    /// Some of its members: host:port, separated by commas.
    #[arg(long, env = "QUORATE_PEERS", value_delimiter = ',', required = true)]
    peers: Vec<String>,
    /// A file with the secret that the members share. The variable QUORATE_SECRET may have the secret itself.
    #[arg(long, env = "QUORATE_SECRET_FILE", conflicts_with = "tls_cert")]
    secret_file: Option<PathBuf>,
    /// The certificates of the cluster's authority (PEM), if its members use TLS.
    #[arg(long, env = "QUORATE_TLS_CA", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// A certificate that it has signed (PEM).
    #[arg(long, env = "QUORATE_TLS_CERT", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM).
    #[arg(long, env = "QUORATE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl Access {
    /// Joins as a client, which may not be connected yet.
    pub(crate) fn join(&self, builder: Builder) -> Result<Coordinator> {
        self.secured(builder.client())?.join(&self.peers)
    }

    fn secured(&self, builder: Builder) -> Result<Builder> {
        if let (Some(ca), Some(cert), Some(key)) = (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            return tls(builder, ca, cert, key);
        }
        if let Some(file) = &self.secret_file {
            return Ok(builder.security(secret(file)?));
        }
        match std::env::var("QUORATE_SECRET") {
            Ok(secret) => Ok(builder.security(Secret::new(secret.trim())?)),
            Err(_) => Ok(builder),
        }
    }
}

/// Reads the shared secret from its file.
pub(crate) fn secret(file: &Path) -> Result<Secret> {
    Secret::new(content(file, "the file of the secret")?.trim())
}

/// The content of a file that a setting names.
pub(crate) fn content(file: &Path, setting: &'static str) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| Error::InvalidSetting {
        setting,
        reason: format!("{} cannot be read: {error}", file.display()),
    })
}

/// Splits a text into a scheme and credentials. It is not parsed by clap, which would repeat wrong
/// input in its message; that may be a password.
pub(crate) fn credentials<'a>(text: &'a str, setting: &'static str) -> Result<(&'a str, &'a str)> {
    text.split_once(':').ok_or_else(|| Error::InvalidSetting {
        setting,
        reason: "it takes a scheme, a colon, and credentials".to_owned(),
    })
}

#[cfg(feature = "tls")]
fn tls(builder: Builder, ca: &PathBuf, cert: &PathBuf, key: &PathBuf) -> Result<Builder> {
    Ok(builder.security(quorate::Tls::from_pem_files(ca, cert, key)?))
}

#[cfg(not(feature = "tls"))]
fn tls(_: Builder, _: &PathBuf, _: &PathBuf, _: &PathBuf) -> Result<Builder> {
    let reason = "this program was built without the feature tls".to_owned();
    Err(Error::InvalidSetting { setting: "--tls-cert", reason })
}
