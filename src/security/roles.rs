//! Roles by the subjects of certificates, from a file.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::Connection;
use super::auth::AuthProvider;
use crate::types::error::{Error, Result};

/// How often the file is read again.
const INTERVAL: Duration = Duration::from_secs(5);

/// The maximum size of the file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The most roles of a subject: with its other ids, a session has at most 64.
const ROLES_MAX: usize = 48;

/// The roles of each subject.
type ByFile = BTreeMap<String, BTreeSet<String>>;

/// Ids of the scheme `role` for sessions of clients with certificates, by a file that says which subject has
/// which role. For [`Builder::auth_provider`](crate::Builder::auth_provider); `quorate serve` has
/// `--roles-file`.
///
/// Each line is a role, a colon, and a subject in the form of RFC 2253, as in access lists. A role may have
/// several lines, and a subject several roles, up to 48. Empty lines and those that begin with `#` are left out.
///
/// ```text
/// # Who may read the accounts.
/// billing: CN=app-0,O=Example
/// billing: CN=app-1,O=Example
/// ```
///
/// The file is read again every five seconds, on a thread of its own. What a session has stays with it: a
/// change counts for sessions that begin on connections that are made after it.
///
/// ```
/// use quorate::security::{Connection, Right, Roles};
/// use quorate::acl::{Acl, Id, Permissions};
/// use quorate::security::AuthProvider;
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let file = dir.path().join("roles");
/// std::fs::write(&file, "billing: CN=app-0,O=Example\n")?;
/// let roles = Roles::from_file(&file)?;
/// let address = "10.1.0.7:4000".parse()?;
/// let connection = Connection::new(address, Some("CN=app-0,O=Example"), Right::Client);
/// assert_eq!(roles.connected(&connection), ["billing"]);
///
/// let accounts = Acl::new(Permissions::ALL, Id::new("role", "billing"));
/// # assert_eq!(accounts.id.to_string(), "role:billing");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Roles {
    known: Arc<Mutex<ByFile>>,
    /// Its end ends the thread that reads the file.
    _end: Sender<Infallible>,
}

impl Roles {
    pub(super) const SCHEME: &str = "role";

    /// Reads the file. Blocks while it does so.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if it cannot be read, or has a line that is not a role and a subject; it names
    /// the line. Later, such a file is logged, and the former content stays in use.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Roles> {
        let path = path.as_ref();
        let invalid = |reason| Error::InvalidSetting { setting: "roles", reason };
        let text = read(path).map_err(invalid)?;
        let known = Arc::new(Mutex::new(parse(&text, path).map_err(invalid)?));
        let (_end, ended) = bounded(0);
        let (shared, path) = (Arc::clone(&known), path.to_owned());
        let follow = move || follow(&shared, &path, text, &ended);
        std::thread::Builder::new()
            .name("quorate-roles".to_owned())
            .spawn(follow)
            .map_err(|error| invalid(format!("cannot start a thread to read them: {error}")))?;
        Ok(Roles { known, _end })
    }
}

impl AuthProvider for Roles {
    fn scheme(&self) -> &str {
        Roles::SCHEME
    }

    fn authenticate(&self, _credentials: &[u8]) -> std::result::Result<Vec<String>, String> {
        Err("roles come from the certificate of the connection, and not from credentials"
            .to_owned())
    }

    fn connected(&self, connection: &Connection) -> Vec<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let roles = connection.subject.as_ref().and_then(|subject| known.get(subject));
        roles.into_iter().flatten().cloned().collect()
    }
}

/// Reads the file again until nobody needs it any more.
fn follow(known: &Mutex<ByFile>, path: &Path, mut former: String, ended: &Receiver<Infallible>) {
    let mut reported = None;
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let failed = match read(path) {
            Ok(text) if text == former => None,
            Ok(text) => match parse(&text, path) {
                Ok(roles) => {
                    tracing::info!(file = %path.display(), "the roles have changed");
                    *known.lock().unwrap_or_else(PoisonError::into_inner) = roles;
                    former = text;
                    None
                }
                Err(reason) => Some(reason),
            },
            Err(reason) => Some(reason),
        };
        if failed.is_some() && failed != reported {
            tracing::warn!(
                reason = failed,
                "the file of roles cannot be used; the former roles stay"
            );
        }
        reported = failed;
    }
}

fn read(path: &Path) -> std::result::Result<String, String> {
    let unreadable =
        |why: &dyn std::fmt::Display| format!("{} cannot be read: {why}", path.display());
    let bytes = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(unreadable(&"it is longer than 4 MiB"));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(&error))
}

fn parse(text: &str, path: &Path) -> std::result::Result<ByFile, String> {
    let mut roles = ByFile::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts = line.split_once(':').map(|(role, subject)| (role.trim(), subject.trim()));
        let Some((role, subject)) = parts.filter(|(role, subject)| {
            !role.is_empty() && !role.contains(char::is_whitespace) && subject.contains('=')
        }) else {
            return Err(format!("{}:{number}: this is not `role: subject`", path.display()));
        };
        let of_subject = roles.entry(subject.to_owned()).or_default();
        of_subject.insert(role.to_owned());
        if of_subject.len() > ROLES_MAX {
            return Err(format!("{}:{number}: {subject} has too many roles", path.display()));
        }
    }
    Ok(roles)
}

/// Any text as a file of roles. What is read can be written and read again.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(text: &str) {
    let path = Path::new("roles");
    if let Ok(roles) = parse(text, path) {
        let mut again = String::new();
        for (subject, of_subject) in &roles {
            of_subject.iter().for_each(|role| again.push_str(&format!("{role}: {subject}\n")));
        }
        assert_eq!(parse(&again, path), Ok(roles));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_reader_of_access_files_panic(text in "([ #:=,/a-fCNO0-9\r\t]|\n){0,200}") {
            crate::security::fuzz(&text);
        }
    }

    #[test]
    fn a_subject_has_the_roles_of_its_lines() {
        let parse = |text: &str| parse(text, Path::new("roles"));
        let known = parse("# all\n\na: CN=x,O=a b\nb : CN=x,O=a b \na: CN=y").unwrap();
        let of = |subject: &str| known.get(subject).cloned().unwrap_or_default();
        assert_eq!(of("CN=x,O=a b"), ["a".to_owned(), "b".to_owned()].into());
        assert_eq!(of("CN=y"), ["a".to_owned()].into());
        assert_eq!(of("CN=z"), BTreeSet::new());
        for wrong in ["a", "a:", ": CN=x", "two words: CN=x", "a: nobody"] {
            let reason = parse(&format!("a: CN=x\n{wrong}")).unwrap_err();
            assert!(reason.starts_with("roles:2: "), "{wrong}: {reason}");
        }
    }
}
