//! How a command reaches a running cluster.

#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use quorate::{Builder, Coordinator, Error, Result, Secret, Tls};

/// The members, and what they demand of those who connect.
#[derive(Debug, Args)]
#[command(next_help_heading = "The cluster")]
pub(crate) struct AccessArgs {
    /// Some of its members: host:port, separated by commas.
    #[arg(long, env = "QUORATE_PEERS", value_delimiter = ',', required = true)]
    peers: Vec<String>,
    /// A file with a secret that the members accept, or two, a line each, while it is changed: the first is used.
    /// The variable QUORATE_SECRET may have the secret itself.
    #[arg(long, env = "QUORATE_SECRET_FILE", conflicts_with = "tls_cert")]
    secret_file: Option<PathBuf>,
    /// The certificates of the cluster's authority (PEM), if its members use TLS.
    #[arg(long, env = "QUORATE_TLS_CA", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// A certificate that it has signed, or the authority of its clients or operators (PEM).
    #[arg(long, env = "QUORATE_TLS_CERT", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM).
    #[arg(long, env = "QUORATE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl AccessArgs {
    /// Joins as a client, which may not be connected yet.
    pub(crate) fn join(&self, builder: Builder) -> Result<Coordinator> {
        self.secured(builder.client())?.join(&self.peers).wait()
    }

    pub(crate) fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    fn secured(&self, builder: Builder) -> Result<Builder> {
        if let (Some(ca), Some(cert), Some(key)) = (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            warn_if_exposed(key);
            return Ok(builder.security(Tls::client_from_pem_files(ca, cert, key)?));
        }
        if let Some(file) = &self.secret_file {
            return Ok(builder.security(secret(file)?));
        }
        match std::env::var("QUORATE_SECRET") {
            Ok(text) => Ok(builder.security(secrets(&text, "QUORATE_SECRET")?)),
            Err(_) => Ok(builder),
        }
    }
}

/// The secret in a file, which is read again when it changes.
pub(crate) fn secret(file: &Path) -> Result<Secret> {
    warn_if_exposed(file);
    Secret::from_file(file)
}

/// One secret a line: the first is used to connect, and the other is accepted, too. Errors name the source.
fn secrets(text: &str, source: &str) -> Result<Secret> {
    let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let add = |secret: Option<Secret>, (number, line): (usize, &str)| {
        let added = match secret {
            None => Secret::new(line),
            Some(first) => first.or(line),
        };
        added.map(Some).map_err(|error| match error {
            Error::InvalidSetting { setting, reason } => {
                Error::InvalidSetting { setting, reason: format!("{source}:{number}: {reason}") }
            }
            other => other,
        })
    };
    let none = || Error::InvalidSetting { setting: "secret", reason: format!("{source} is empty") };
    lines.try_fold(None, add)?.ok_or_else(none)
}

/// Warns if a file with a secret, a token, a key or an audit log can be read by others than its owner.
///
/// A file of root may be readable by its group, since a Kubernetes secret reaches a user who is not root in that way.
/// Source: PostgreSQL, `check_ssl_key_file_permissions`.
pub(crate) fn warn_if_exposed(file: &Path) {
    #[cfg(unix)]
    warn(file, readers, "read", 600);
    #[cfg(not(unix))]
    let _ = file;
}

/// Warns if others than its owner can change what is in a directory. They cannot read it: all files of a member are
/// its owner's alone.
#[cfg(unix)]
pub(crate) fn warn_if_shared(directory: &Path) {
    warn(directory, writers, "write to", 700);
}

#[cfg(unix)]
fn warn(path: &Path, who: fn(u32, u32) -> Option<&'static str>, what: &str, right: u16) {
    let Ok(metadata) = std::fs::metadata(path) else { return };
    let Some(who) = who(metadata.mode(), metadata.uid()) else { return };
    let mode = format!("{:03o}", metadata.mode() & 0o777);
    let (shown, kind) = (path.display(), if metadata.is_dir() { "directory" } else { "file" });
    // A command that shows its results sets up no log.
    if tracing::dispatcher::has_been_set() {
        tracing::warn!(file = %shown, mode, "{who} can {what} this {kind}: chmod {right}");
    } else {
        let warning = format!("{shown} has mode {mode}, so {who} can {what} it: chmod {right}");
        eprintln!("warning: {}", crate::text::line(&warning));
    }
}

/// Who can read a file with this mode and owner, and should not.
#[cfg(unix)]
fn readers(mode: u32, owner: u32) -> Option<&'static str> {
    match (mode & 0o007, mode & 0o070) {
        (1.., _) => Some("everybody"),
        (0, 0) => None,
        (0, 0o040) if owner == 0 => None,
        (0, _) => Some("its group"),
    }
}

/// Who can write to a directory with this mode and owner, and should not. A volume of Kubernetes is root's, and its
/// group's.
#[cfg(unix)]
fn writers(mode: u32, owner: u32) -> Option<&'static str> {
    match (mode & 0o002, mode & 0o020) {
        (1.., _) => Some("everybody"),
        (0, 1..) if owner != 0 => Some("its group"),
        _ => None,
    }
}

/// The content of a file that a setting names.
#[cfg(unix)]
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

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
    const NEW: &str = "violin-carbon-otter-meadow-quartz-lantern";

    /// A file of two lines was taken as one other passphrase, without a word: the member never joined.
    #[test]
    fn a_file_has_one_secret_a_line() {
        let read = |text: &str| secrets(text, "FILE").map(|secret| format!("{secret:?}"));
        for one in [OLD.to_owned(), format!("\n  {NEW} \r\n\n")] {
            assert_eq!(read(&one).unwrap(), "Secret(1)", "{one:?}");
        }
        for two in [format!("{OLD}\n{NEW}"), format!("{NEW}\r\n\r\n{OLD}\r\n")] {
            assert_eq!(read(&two).unwrap(), "Secret(2)", "{two:?}");
        }
        for (text, reason) in [
            (String::new(), "FILE is empty"),
            ("\n \n".to_owned(), "FILE is empty"),
            (format!("{OLD}\n\npassword\n"), "FILE:3: it could be guessed"),
            (format!("{OLD}\n{NEW}\n{NEW}x"), "FILE:3: no more than two"),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_read_is_exposed() {
        for (mode, owner, who) in [
            (0o100_600, 1000, None),
            (0o100_400, 0, None),
            (0o100_440, 0, None),
            (0o100_640, 0, None),
            (0o100_660, 0, Some("its group")),
            (0o100_640, 1000, Some("its group")),
            (0o100_644, 0, Some("everybody")),
            (0o100_604, 1000, Some("everybody")),
        ] {
            assert_eq!(readers(mode, owner), who, "{mode:o} of {owner}");
        }
        for (mode, owner, who) in [
            (0o040_700, 1000, None),
            (0o040_755, 1000, None),
            (0o042_775, 0, None),
            (0o040_770, 1000, Some("its group")),
            (0o040_777, 0, Some("everybody")),
            (0o041_777, 1000, Some("everybody")),
        ] {
            assert_eq!(writers(mode, owner), who, "{mode:o} of {owner}");
        }
    }
}
