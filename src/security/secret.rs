//! Secrets: the keys that a node uses and accepts, and the files that they come from.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{Reading, stretched};
use crate::types::error::{Error, Result};
use crate::types::right::Right;

/// The minimum length of a phrase in characters, and the minimum number of different ones in any
/// secret.
const PHRASE_CHARS_MIN: usize = 20;
const DIFFERENT_CHARS_MIN: usize = 8;

/// The salt for stretching a phrase. There is no place for a cluster's own salt before its members
/// can talk to each other.
const SALT: &[u8] = b"quorate cluster secret";

/// The maximum size of a file with secrets.
const FILE_BYTES_MAX: u64 = 64 << 10;

pub(crate) type Key = [u8; 32];

/// A secret that all members of a cluster know, for [`Security::Secret`](crate::Security::Secret); or one
/// for clients or operators, who know only theirs.
///
/// **Exactly 64 hexadecimal digits are a key**, as printed by `openssl rand -hex 32`, and used
/// directly. **Any other text is a phrase** of at least 20 characters, 8 of them different, from
/// which Argon2id derives a key (19 MiB, about 20 ms). Random bytes in another encoding, such as
/// base64, are a phrase like any other, and a good one. An attacker who records traffic can try
/// phrases at that cost each, so a phrase should consist of at least six random words, and not be
/// invented by a person.
///
/// ```
/// use quorate::Secret;
///
/// // While the secret is being changed, both are accepted, and the first is used to connect.
/// let secret = Secret::new("8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350")?
///     .or("violin-carbon-otter-meadow-quartz-lantern")?;
/// assert_eq!(format!("{secret:?}"), "Secret(2)");
/// assert!(Secret::new("password").is_err());
///
/// // A member also accepts clients, which know another secret and can never be members with it.
/// let clients = Secret::new("copper-walnut-harbor-ribbon-thistle-ember")?;
/// let member = secret.with_clients(clients)?;
/// assert_eq!(format!("{member:?}"), "Secret(2, clients 1)");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    /// The first is used to connect.
    keys: Arc<[Key]>,
    /// The file that they come from, and its content.
    file: Option<Arc<(Box<Path>, String)>>,
    /// What operators and clients have.
    operators: Option<Arc<Secret>>,
    clients: Option<Arc<Secret>>,
}

/// Shows only how many secrets are accepted.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}", self.keys.len())?;
        for (whose, secret) in [("operators", &self.operators), ("clients", &self.clients)] {
            if let Some(secret) = secret {
                write!(f, ", {whose} {}", secret.keys.len())?;
            }
        }
        f.write_str(")")
    }
}

impl Secret {
    /// Makes a secret of this text, ignoring surrounding white space. Takes about 20 ms for a
    /// phrase.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if it is too easy to guess, or has a line break: then it may be two.
    pub fn new(text: &str) -> Result<Secret> {
        Ok(Secret::of([key(text)?].into(), None))
    }

    fn of(keys: Arc<[Key]>, file: Option<Arc<(Box<Path>, String)>>) -> Secret {
        Secret { keys, file, operators: None, clients: None }
    }

    /// Reads a file with one secret, or two, a line each: the first is used to connect, and both are
    /// accepted. Blocks while it reads the file.
    ///
    /// The file is read again every five seconds, so a secret is changed without a restart: see
    /// [`guide::security`](crate::guide::security#choosing-and-changing-a-secret). Connections that were
    /// made with a secret that is no longer in the file are closed then, and made again by whoever has the
    /// new one. A file that cannot be read or used is logged, and the former content stays in use. An empty file
    /// of operators or clients stands for nobody, once the member runs.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`], which names the file and the line, if it cannot be read, is empty, or has
    /// a secret that is too easy to guess, or more than two.
    ///
    /// ```no_run
    /// use quorate::{Coordinator, Secret};
    ///
    /// let secret = Secret::from_file("/etc/billing/members.secret")?
    ///     .with_clients(Secret::from_file("/etc/billing/clients.secret")?)?;
    /// let coordinator = Coordinator::builder()
    ///     .security(secret)
    ///     .join(["app-0.app:7400", "app-1.app:7400", "app-2.app:7400"]).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> Result<Secret> {
        let path = path.as_ref();
        let text = read(path).map_err(|reason| invalid(&reason))?;
        let keys = keys(&text, path).map_err(|reason| invalid(&reason))?;
        Ok(Secret::of(keys, Some(Arc::new((path.into(), text)))))
    }

    /// Also accepts this secret, for the duration of a change in which members have one or the
    /// other. The first one is used to connect.
    ///
    /// # Errors
    /// As [`Secret::new`], and [`Error::InvalidSetting`] if there are already two.
    pub fn or(self, text: &str) -> Result<Secret> {
        match *self.keys {
            [first] => Ok(Secret { keys: [first, key(text)?].into(), file: None, ..self }),
            _ => Err(invalid(TOO_MANY)),
        }
    }

    /// On members: also accepts clients without a replica that have this secret. They have the right
    /// [`Right::Client`], and are refused as members.
    ///
    /// A client is given its own secret alone, by [`Secret::new`] or [`Secret::from_file`].
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the members or operators have this secret, too.
    pub fn with_clients(self, clients: Secret) -> Result<Secret> {
        Secret { clients: Some(Arc::new(clients)), ..self }.checked().map_err(|why| invalid(&why))
    }

    /// On members: also accepts operators, as the program `quorate`, that have this secret. They have the
    /// right [`Right::Operator`], and are refused as members.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the members or clients have this secret, too.
    pub fn with_operators(self, operators: Secret) -> Result<Secret> {
        Secret { operators: Some(Arc::new(operators)), ..self }
            .checked()
            .map_err(|why| invalid(&why))
    }

    /// All accepted keys, with what they allow. The first is used to connect.
    pub(crate) fn accepted(&self) -> impl Iterator<Item = (&Key, Right)> {
        let of = |right| move |key| (key, right);
        let operators = self.operators.iter().flat_map(|secret| secret.keys.iter());
        let clients = self.clients.iter().flat_map(|secret| secret.keys.iter());
        let members = self.keys.iter().map(of(Right::Member));
        members.chain(operators.map(of(Right::Operator))).chain(clients.map(of(Right::Client)))
    }

    /// The key that is used to connect.
    pub(crate) fn own(&self) -> &Key {
        &self.keys[0]
    }

    /// Whether a connection that this node has made with `key` may stay.
    pub(crate) fn may_use(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether there are files to read again.
    pub(crate) fn is_from_files(&self) -> bool {
        self.all().any(|secret| secret.file.is_some())
    }

    fn all(&self) -> impl Iterator<Item = &Secret> {
        [Some(self), self.operators.as_deref(), self.clients.as_deref()].into_iter().flatten()
    }

    /// Reads the files again, each by itself.
    pub(crate) fn read_again(&self) -> Reading<Secret> {
        let mut wrong = Vec::new();
        let mut renewed = |secret: Option<&Secret>, may_be_empty| {
            let read = secret.map(|secret| secret.own_read_again(may_be_empty)).transpose();
            read.unwrap_or_else(|reason| {
                wrong.push(reason);
                None
            })
        };
        let own = renewed(Some(self), false).flatten();
        let operators = renewed(self.operators.as_deref(), true).flatten();
        let clients = renewed(self.clients.as_deref(), true).flatten();
        let is_same = own.is_none() && operators.is_none() && clients.is_none();
        let Secret { keys, file, .. } = own.unwrap_or_else(|| self.clone());
        let or = |new: Option<Secret>, former: &Option<Arc<Secret>>| {
            new.map(Arc::new).or_else(|| former.clone())
        };
        let (operators, clients) = (or(operators, &self.operators), or(clients, &self.clients));
        let mut renewed = None;
        if !is_same {
            match (Secret { keys, file, operators, clients }).checked() {
                Ok(secret) => renewed = Some(secret),
                Err(reason) => wrong.push(reason),
            }
        }
        Reading { renewed, wrong: (!wrong.is_empty()).then(|| wrong.join("; ")) }
    }

    /// `may_be_empty`: an empty file stands for nobody.
    fn own_read_again(&self, may_be_empty: bool) -> std::result::Result<Option<Secret>, String> {
        let Some((path, former)) = self.file.as_deref() else { return Ok(None) };
        let text = read(path)?;
        if text == *former {
            return Ok(None);
        }
        let keys = match may_be_empty && text.trim().is_empty() {
            true => Vec::new().into(),
            false => keys(&text, path)?,
        };
        Ok(Some(Secret::of(keys, Some(Arc::new((path.clone(), text))))))
    }

    /// A secret that stands for two rights would give the larger one to everybody.
    fn checked(self) -> std::result::Result<Secret, String> {
        let mut rights = std::collections::BTreeMap::new();
        for (key, right) in self.accepted() {
            if let Some(other) = rights.insert(*key, right)
                && other != right
            {
                return Err(format!(
                    "one secret is that of {} and of {}, too: each right needs its own",
                    other.one(),
                    right.one()
                ));
            }
        }
        drop(rights);
        Ok(self)
    }
}

const TOO_MANY: &str = "no more than two can be accepted at a time";

fn read(path: &Path) -> std::result::Result<String, String> {
    let unreadable =
        |reason: &dyn fmt::Display| format!("{} cannot be read: {reason}", path.display());
    let bytes = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(unreadable(&"it is longer than two secrets"));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(&error))
}

/// The keys in a file, one a line. Errors name the line.
fn keys(text: &str, path: &Path) -> std::result::Result<Arc<[Key]>, String> {
    let path = path.display();
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() {
            continue;
        }
        if keys.len() == 2 {
            return Err(format!("{path}:{number}: {TOO_MANY}"));
        }
        keys.push(key(line).map_err(|error| match error {
            Error::InvalidSetting { reason, .. } => format!("{path}:{number}: {reason}"),
            other => format!("{path}:{number}: {other}"),
        })?);
    }
    match keys.is_empty() {
        true => Err(format!("{path} is empty")),
        false => Ok(keys.into()),
    }
}

fn invalid(reason: &str) -> Error {
    Error::InvalidSetting { setting: "secret", reason: reason.to_owned() }
}

fn key(text: &str) -> Result<Key> {
    let text = text.trim();
    if text.contains(['\n', '\r']) {
        return Err(invalid(
            "it has a line break: one secret is one line, and `Secret::or` adds another",
        ));
    }
    let different: BTreeSet<char> = text.chars().collect();
    if text.chars().count() < PHRASE_CHARS_MIN || different.len() < DIFFERENT_CHARS_MIN {
        return Err(invalid(
            "it could be guessed: use 32 random bytes (openssl rand -hex 32), or a phrase of at \
             least 20 characters, 8 of them different",
        ));
    }
    if let Some(key) = from_hex(text) {
        return Ok(key);
    }
    stretched(text.as_bytes(), SALT).map_err(|error| invalid(&error.to_string()))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let (pairs, []) = digits.as_ref()?.as_chunks::<2>() else {
        return None;
    };
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| (high << 4 | low) as u8).collect();
    bytes.try_into().ok()
}

/// Any text as a file of secrets, except phrases: it takes a hash of many milliseconds to read one.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(text: &str) {
    let is_phrase = |line: &str| line.len() >= PHRASE_CHARS_MIN && from_hex(line).is_none();
    if !text.lines().map(str::trim).any(is_phrase)
        && let Ok(keys) = keys(text, Path::new("secrets"))
    {
        assert!((1..=2).contains(&keys.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Security;

    fn all(secret: &Secret) -> Vec<Key> {
        secret.keys.to_vec()
    }

    #[test]
    fn sixty_four_hexadecimal_digits_are_the_key() {
        let key: [u8; 32] = std::array::from_fn(|at| (at * 37 + 129) as u8);
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        for form in [hex.clone(), hex.to_uppercase(), format!("  {hex}\n")] {
            assert_eq!(all(&Secret::new(&form).unwrap()), [key], "{form}");
        }
        for phrase in [&hex[1..], &format!("{hex}0"), &hex.replace('8', "g")] {
            assert_ne!(all(&Secret::new(phrase).unwrap())[0][..4], key[..4], "{phrase}");
        }
    }

    /// 43 letters, digits and hyphens are also base64 for 32 bytes. Such a phrase was used directly
    /// as the key, without stretching, so that guesses cost a millionth of the intended price.
    #[test]
    fn a_phrase_is_stretched_whatever_its_length() {
        use base64::Engine;
        use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
        let phrase = "violin-carbon-otter-meadow-quartz-lantern-w";
        let read = URL_SAFE_NO_PAD.decode(phrase).unwrap();
        assert_eq!((phrase.len(), read.len()), (43, 32));
        assert_ne!(all(&Secret::new(phrase).unwrap())[0][..], read[..]);
        let text = STANDARD.encode(&read);
        assert_ne!(all(&Secret::new(&text).unwrap())[0][..], read[..]);
    }

    #[test]
    fn guessable_secrets_are_refused() {
        for text in ["", "password", "correct horse", &"ab".repeat(32), &"0".repeat(64)] {
            match Secret::new(text) {
                Err(Error::InvalidSetting { setting: "secret", reason }) => {
                    assert!(reason.contains("openssl rand"), "{reason}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        let phrase = "violin carbon otter meadow";
        let secret = Secret::new(phrase).unwrap();
        assert_eq!(all(&secret), all(&Secret::new(phrase).unwrap()));
        assert_ne!(all(&secret), all(&Secret::new("violin carbon otter meadox").unwrap()));
        assert!(secret.or(phrase).unwrap().or(phrase).is_err());
    }

    /// A file with the old and the new secret was taken as a third one.
    #[test]
    fn a_secret_is_one_line() {
        for text in [
            "violin-carbon-otter\nmeadow-quartz-lantern",
            "violin-carbon-otter\rmeadow-quartz-lantern",
        ] {
            let refused = Secret::new(text).unwrap_err().to_string();
            assert!(refused.contains("line break"), "{refused}");
            assert!(Secret::new("violin carbon otter meadow").unwrap().or(text).is_err());
        }
        assert!(Secret::new("violin carbon otter meadow\r\n").is_ok());
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
        let security = Security::from(Secret::new(text).unwrap());
        assert_eq!(format!("{security:?}"), "Secret(Secret(1))");
    }

    #[test]
    fn each_right_has_a_secret_of_its_own() {
        let [member, operator, client] = ["m", "o", "c"]
            .map(|one| Secret::new(&format!("violin-carbon-otter-meadow-{one}")).unwrap());
        let all = member.clone().with_clients(client.clone()).unwrap();
        let all = all.with_operators(operator.clone()).unwrap();
        let rights: Vec<Right> = all.accepted().map(|(_, right)| right).collect();
        assert_eq!(rights, [Right::Member, Right::Operator, Right::Client]);
        assert_eq!(all.own(), &member.keys[0]);
        for wrong in [
            all.clone().with_clients(member.clone()),
            all.clone().with_clients(operator),
            all.with_operators(client),
        ] {
            let reason = wrong.unwrap_err().to_string();
            assert!(reason.contains("each right needs its own"), "{reason}");
        }
    }

    #[test]
    fn files_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let [members, clients] = ["members", "clients"].map(|name| dir.path().join(name));
        let phrase = |one| format!("violin-carbon-otter-meadow-{one}");
        std::fs::write(&members, phrase("a")).unwrap();
        std::fs::write(&clients, phrase("b")).unwrap();
        let accepted = Secret::from_file(&clients).unwrap();
        let secret = Secret::from_file(&members).unwrap().with_clients(accepted).unwrap();
        assert!(secret.is_from_files());
        let reading = secret.read_again();
        assert!(reading.renewed.is_none() && reading.wrong.is_none());
        std::fs::write(&clients, format!("{}\n\n{}\n", phrase("c"), phrase("b"))).unwrap();
        let renewed = secret.read_again().renewed.expect("it has changed");
        assert_eq!(format!("{renewed:?}"), "Secret(1, clients 2)");
        assert!(renewed.may_use(secret.own()));
        for (text, reason) in [
            ("password", "clients:1: it could be guessed"),
            (&*phrase("a"), "each right needs its own"),
        ] {
            std::fs::write(&clients, text).unwrap();
            let failed = renewed.read_again().wrong.unwrap();
            assert!(failed.contains(reason), "{failed}");
        }
        // Nobody is a client any more; and what one file withdraws counts, whatever is wrong with another.
        std::fs::write(&clients, "\n").unwrap();
        let withdrawn = renewed.read_again().renewed.expect("it has changed");
        assert_eq!(format!("{withdrawn:?}"), "Secret(1, clients 0)");
        std::fs::write(&members, "").unwrap();
        assert!(withdrawn.read_again().wrong.unwrap().contains("members is empty"));
        let both = renewed.read_again().renewed.expect("one has changed");
        assert_eq!(format!("{both:?}"), "Secret(1, clients 0)");
        std::fs::remove_file(&clients).unwrap();
        let failed = withdrawn.read_again().wrong.unwrap();
        assert!(failed.contains("cannot be read") && failed.contains("is empty"), "{failed}");
    }
}
