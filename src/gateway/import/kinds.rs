//! Finds containers and znodes with a time to live in a snapshot file of ZooKeeper.
//!
//! Sources: `FileSnap`, `SerializeUtils`, `DataTree.serialize` and `EphemeralType` of ZooKeeper 3.9. Only the
//! znodes are read. The checksum after them is not checked, since each kind is confirmed by a czxid.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use crate::types::znode::CreateMode;

/// `ZKSN`.
const MAGIC: i32 = 0x5a4b_534e;
/// The owner of a container.
const CONTAINER: i64 = i64::MIN;
/// The bits that mark an owner as a time to live, and the bits with the time.
const TTL_MARK: u64 = 0xff << 56;
const TTL_BITS: u64 = (1 << 40) - 1;
/// Longer strings cannot be paths or ids.
const STRING_BYTES_MAX: i32 = 1 << 20;

/// The kinds of the znodes that are not plain, by path, with their czxid.
pub(super) type Kinds = BTreeMap<String, (i64, CreateMode)>;

/// Reads the kinds of all znodes at or below a path.
pub(super) fn read(file: &Path, root: &str) -> io::Result<Kinds> {
    read_from(BufReader::new(File::open(file)?), root)
}

fn read_from(reader: impl Read, root: &str) -> io::Result<Kinds> {
    let mut from = JuteReader(reader);
    if from.int()? != MAGIC {
        return Err(invalid("it does not begin with ZKSN; if it is compressed, decompress it"));
    }
    // The version and the database's number.
    from.skip(4 + 8)?;
    for _ in 0..from.count()? {
        // A session and its timeout.
        from.skip(8 + 4)?;
    }
    for _ in 0..from.count()? {
        from.skip(8)?;
        for _ in 0..from.count()? {
            from.skip(4)?;
            from.string()?;
            from.string()?;
        }
    }
    let below = root.trim_end_matches('/');
    let mut kinds = Kinds::new();
    loop {
        let path = from.string()?;
        if path == "/" {
            return Ok(kinds);
        }
        let data = from.int()?;
        from.skip(u64::try_from(data).unwrap_or(0))?;
        // The number of its access list.
        from.skip(8)?;
        let czxid = from.long()?;
        // mzxid, ctime, mtime; version, cversion, aversion.
        from.skip(3 * 8 + 3 * 4)?;
        let owner = from.long()?;
        // pzxid.
        from.skip(8)?;
        let inside =
            path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some(mode) = mode(owner).filter(|_| inside) {
            kinds.insert(path, (czxid, mode));
        }
    }
}

/// The kind of a znode, by its owner as it is stored; `None` for plain and for ephemeral ones.
fn mode(owner: i64) -> Option<CreateMode> {
    let bits = owner.cast_unsigned();
    match bits & TTL_BITS {
        _ if owner == CONTAINER => Some(CreateMode::Container),
        ttl if bits & TTL_MARK == TTL_MARK && ttl > 0 => {
            Some(CreateMode::PersistentWithTtl(Duration::from_millis(ttl)))
        }
        _ => None,
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

struct JuteReader<R>(R);

impl<R: Read> JuteReader<R> {
    fn int(&mut self) -> io::Result<i32> {
        let mut bytes = [0; 4];
        self.0.read_exact(&mut bytes)?;
        Ok(i32::from_be_bytes(bytes))
    }

    fn long(&mut self) -> io::Result<i64> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes)?;
        Ok(i64::from_be_bytes(bytes))
    }

    /// The length of a list; null counts as an empty list.
    fn count(&mut self) -> io::Result<i32> {
        self.int().map(|count| count.max(0))
    }

    fn string(&mut self) -> io::Result<String> {
        let length = self.count()?;
        if length > STRING_BYTES_MAX {
            return Err(invalid("a name in it is too long: it is damaged"));
        }
        let mut bytes = Vec::new();
        let expected = u64::from(length.unsigned_abs());
        if (&mut self.0).take(expected).read_to_end(&mut bytes)? as u64 != expected {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        String::from_utf8(bytes).map_err(|_| invalid("a name in it is not text: it is damaged"))
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        match io::copy(&mut (&mut self.0).take(bytes), &mut io::sink())? {
            skipped if skipped == bytes => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Reads arbitrary bytes as a snapshot, and as what follows the head of one.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = read_from(bytes, "/");
    // With no sessions and no access lists.
    let head = [&MAGIC.to_be_bytes()[..], &[0; 4 + 8 + 4 + 4]].concat();
    let _ = read_from(head.chain(bytes), "/a");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Vec<u8> {
        let mut bytes = Vec::new();
        let string = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend(i32::try_from(text.len()).unwrap().to_be_bytes());
            bytes.extend(text.as_bytes());
        };
        bytes.extend(b"ZKSN\0\0\0\x02");
        bytes.extend((-1_i64).to_be_bytes());
        // A session.
        bytes.extend([0, 0, 0, 1]);
        bytes.extend([7; 12]);
        // An access list.
        bytes.extend([0, 0, 0, 1]);
        bytes.extend(1_i64.to_be_bytes());
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 31]);
        string(&mut bytes, "world");
        string(&mut bytes, "anyone");
        let ttl = 0xff00_0000_0000_0000_u64.cast_signed() | 5000;
        let znodes = [
            ("", 0),
            ("/app", 0),
            ("/app/c", i64::MIN),
            ("/app/t", ttl),
            ("/app/e", 77),
            ("/apple", i64::MIN),
        ];
        for (path, owner) in znodes {
            string(&mut bytes, path);
            string(&mut bytes, "data");
            bytes.extend([0; 8]);
            bytes.extend(9_i64.to_be_bytes());
            bytes.extend([0; 36]);
            bytes.extend(owner.to_be_bytes());
            bytes.extend([0; 8]);
        }
        string(&mut bytes, "/");
        bytes
    }

    #[test]
    fn containers_and_times_to_live_are_found_below_the_root() {
        let ttl = CreateMode::PersistentWithTtl(Duration::from_secs(5));
        let mut expected = vec![("/app/c", (9, CreateMode::Container)), ("/app/t", (9, ttl))];
        let found = |root| read_from(&snapshot()[..], root).unwrap();
        assert!(found("/app").iter().map(|(path, kind)| (&**path, *kind)).eq(expected.clone()));
        expected.push(("/apple", (9, CreateMode::Container)));
        assert!(found("/").iter().map(|(path, kind)| (&**path, *kind)).eq(expected));
    }

    #[test]
    fn a_file_that_ends_early_or_is_another_is_an_error() {
        let whole = snapshot();
        for end in 0..whole.len() {
            assert!(read_from(&whole[..end], "/").is_err(), "of {end} bytes");
        }
        assert!(
            read_from(&b"\x1f\x8b\x08\0\0\0\0\0"[..], "/")
                .unwrap_err()
                .to_string()
                .contains("ZKSN")
        );
    }
}
