//! The user's choice of key encryption keys.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

use super::ring::KeyBytes;
use super::{KeyError, KeyRing, key_file};
use crate::types::error::{Error, Result};

/// Keys for the encryption of a data directory and of backups, for
/// [`Builder::encryption`](crate::Builder::encryption).
///
/// These are key encryption keys: the data is encrypted with keys that each data directory and each backup has of its
/// own, and those are stored beside it, encrypted under the first of these. Each has an id, a short text that is stored
/// in clear and appears in messages. [`guide::encryption`](crate::guide::encryption) says what
/// is encrypted, and how keys are changed.
///
/// Whoever loses all of them loses the data.
///
/// ```
/// use quorate::encryption::AtRest;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let file = directory.path().join("data.keys");
/// # std::fs::write(&file, "k1: Uq4jM1HdEFfJzH1QYh4pZ2f0d4bI0mZVv5x3n0a7c8k=\n").unwrap();
/// let keys = AtRest::from_file(&file)?;
/// // Nothing of a key is shown.
/// assert_eq!(format!("{keys:?}"), format!("AtRest({})", file.display()));
/// let builder = quorate::Coordinator::builder().encryption(keys);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone)]
pub struct AtRest {
    source: KeySource,
}

/// Returns all keys, or why it cannot.
type Callback = dyn Fn() -> std::result::Result<Vec<(String, [u8; 32])>, String> + Send + Sync;

#[derive(Clone)]
enum KeySource {
    File(Arc<Path>),
    Callback(Arc<Callback>),
}

/// Shows where the keys come from only.
impl fmt::Debug for AtRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            KeySource::File(path) => write!(f, "AtRest({})", path.display()),
            KeySource::Callback(_) => f.write_str("AtRest(a callback)"),
        }
    }
}

impl AtRest {
    /// Takes the keys from a file: a line `id: key` for each, with the 32 bytes of the key in base64, as
    /// `echo "k1: $(head -c 32 /dev/urandom | base64)"` prints it. The first one encrypts; all decrypt. Blank lines, and
    /// lines that begin with `#`, are ignored.
    ///
    /// Blocks while it reads the file. The file is read again whenever keys are needed: at a start, and for each
    /// backup.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`], which names the file and the line, if the file cannot be read or used.
    pub fn from_file(path: impl AsRef<Path>) -> Result<AtRest> {
        let keys = AtRest { source: KeySource::File(path.as_ref().into()) };
        match keys.ring() {
            Ok(_) => Ok(keys),
            Err(KeyError(reason)) => {
                Err(Error::InvalidSetting { setting: "the keys for encryption at rest", reason })
            }
        }
    }

    /// Takes the keys from a callback, for example from a service for keys: ids, and 32 random bytes each. The first
    /// one encrypts; all decrypt.
    ///
    /// The callback is called whenever keys are needed, on the thread that needs them: at a start, and for each
    /// backup. It may block; the start waits for it. If it fails, so does what needs the keys.
    ///
    /// ```
    /// use quorate::encryption::AtRest;
    ///
    /// # fn from_the_service(id: &str) -> Result<[u8; 32], std::io::Error> { Ok([1; 32]) }
    /// let keys = AtRest::new(|| {
    ///     let ids = ["2027", "2026"];
    ///     ids.into_iter().map(|id| Ok((id.to_owned(), from_the_service(id)?))).collect::<std::io::Result<_>>()
    /// });
    /// assert_eq!(format!("{keys:?}"), "AtRest(a callback)");
    /// ```
    pub fn new<E: fmt::Display>(
        keys: impl Fn() -> std::result::Result<Vec<(String, [u8; 32])>, E> + Send + Sync + 'static,
    ) -> AtRest {
        let keys = move || keys().map_err(|error| error.to_string());
        AtRest { source: KeySource::Callback(Arc::new(keys)) }
    }

    /// The keys as they are now.
    pub(crate) fn ring(&self) -> std::result::Result<KeyRing, KeyError> {
        let (from, keys) = match &self.source {
            KeySource::File(path) => (path.display().to_string(), key_file::read(path)),
            KeySource::Callback(callback) => ("the callback".to_owned(), callback().map(zeroizing)),
        };
        let ring = keys.and_then(|keys| KeyRing::new(keys, from.clone()));
        ring.map_err(|reason| KeyError(format!("{from}: {reason}")))
    }
}

fn zeroizing(mut keys: Vec<(String, [u8; 32])>) -> Vec<(String, KeyBytes)> {
    let take = |(id, key): &mut (String, [u8; 32])| {
        let taken = Zeroizing::new(*key);
        key.zeroize();
        (std::mem::take(id), taken)
    };
    keys.iter_mut().map(take).collect()
}
