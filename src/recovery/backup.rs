//! The file of a backup.
//!
//! Little endian:
//!
//! | what    | bytes                                                                          |
//! |---------|--------------------------------------------------------------------------------|
//! | magic   | `qrbackp\n`                                                                    |
//! | formats | 2: [`FORMATS`]                                                                 |
//! | form    | 2: [`CLEAR`] or [`SEALED`]                                                     |
//! | key     | if it is sealed: 4 of length, a [`WrappedKey`] in postcard                     |
//! | header  | 4 of length, a [`Header`] in postcard, 8 of XXH3 of everything before          |
//! | chunks  | each: 4 of length, the bytes, 8 of XXH3 of them with the chunk's number as seed |
//! | end     | 4 of zero, 4 with the number of chunks                                         |
//! | trailer | 8 of XXH3 of everything before; then the file ends                             |
//!
//! In a sealed backup, the header and the chunks are encrypted, as [`encryption`](crate::encryption) describes, with a
//! data key of this backup alone. Checksums cover the encrypted bytes.
//!
//! The chunks are those of a full image of the state, as in a checkpoint: see `machine::snapshot`.
//! A reader trusts nothing, and allocates memory only for what the file holds.

use std::fmt::Display;
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::encryption::{
    AssociatedData, DataKeys, HEAD_BYTES, KeyError, KeyRing, TAG_BYTES, WrappedKey, no_keys,
};
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::machine::{Machine, State};
use crate::types::version::{FORMATS, VERSION, other_formats, too_old};
use crate::types::znode::Zxid;

const MAGIC: &[u8; 8] = b"qrbackp\n";
const CLEAR: u32 = 1 << 16 | FORMATS as u32;
const SEALED: u32 = 2 << 16 | FORMATS as u32;
/// The longest key.
const KEY_BYTES_MAX: u32 = 1 << 10;
/// The longest header.
const HEADER_BYTES_MAX: u32 = 4 << 10;
/// The longest chunk: the largest item is a znode with its data, or a session's stored reply to a
/// large multi.
const CHUNK_BYTES_MAX: u32 = 64 << 20;
/// How much longer encrypted bytes are.
const SEALED_MORE: u32 = (HEAD_BYTES + TAG_BYTES) as u32;

/// The header of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) cluster: u64,
    pub(super) zxid: Zxid,
    /// The hash of the state.
    pub(super) hash: u64,
    /// When it was made, in milliseconds since the Unix epoch.
    pub(super) time_ms: u64,
    /// The version that the cluster used.
    pub(super) version: u16,
}

/// Why a backup cannot be read.
#[derive(Debug)]
pub(super) enum UnreadableBackup {
    Io(io::Error),
    /// The file is damaged, or of an unknown version.
    Bad(String),
    /// The file may be sound, and cannot be decrypted.
    Key(String),
}

impl From<KeyError> for UnreadableBackup {
    fn from(KeyError(reason): KeyError) -> UnreadableBackup {
        UnreadableBackup::Key(reason)
    }
}

impl From<io::Error> for UnreadableBackup {
    fn from(error: io::Error) -> UnreadableBackup {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => UnreadableBackup::Bad("it is cut short".to_owned()),
            _ => UnreadableBackup::Io(error),
        }
    }
}

/// The data key of a sealed backup, and as it is stored.
pub(super) struct BackupKey {
    keys: DataKeys,
    wrapped: WrappedKey,
}

impl BackupKey {
    /// Draws a key for one backup.
    pub(super) fn new(ring: &KeyRing) -> Result<BackupKey, KeyError> {
        let wrapped = ring.new_data_key(1)?;
        let keys = DataKeys::open(ring, std::slice::from_ref(&wrapped))?;
        Ok(BackupKey { keys, wrapped })
    }

    /// The id of the key that it is encrypted under.
    pub(super) fn under(&self) -> &str {
        &self.wrapped.under
    }
}

/// The place of an encrypted header.
fn header_context() -> AssociatedData {
    AssociatedData::new(b'H', [0; 7])
}

fn chunk_context(number: u32) -> AssociatedData {
    AssociatedData::new(b'B', [number.into(), 0, 0, 0, 0, 0, 0])
}

/// Encrypts bytes of a backup, if it is sealed.
fn sealed(key: Option<&BackupKey>, context: &AssociatedData, bytes: Vec<u8>) -> Vec<u8> {
    let Some(BackupKey { keys, .. }) = key else { return bytes };
    let mut buffer = Vec::with_capacity(bytes.len() + SEALED_MORE as usize);
    buffer.resize(HEAD_BYTES, 0);
    buffer.extend_from_slice(&bytes);
    keys.seal(context, &mut buffer, 0);
    buffer
}

/// Decrypts bytes of a backup, if it is sealed.
fn opened(
    keys: Option<&DataKeys>,
    context: &AssociatedData,
    bytes: Vec<u8>,
    what: impl Display,
) -> Result<Vec<u8>, UnreadableBackup> {
    let Some(keys) = keys else { return Ok(bytes) };
    keys.unseal(context, &bytes)
        .map_err(|KeyError(reason)| UnreadableBackup::Key(format!("{what}: {reason}")))
}

/// Writes a backup durably, and returns its length. After a failure or a crash, `path` has its
/// former content. What is no file (a device, a pipe) is never replaced: the backup is written into it. A link stays,
/// and its target is replaced.
pub(super) fn write(
    path: &Path,
    header: &Header,
    state: State,
    key: Option<&BackupKey>,
) -> io::Result<u64> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        let file = File::options().write(true).open(path)?;
        return write_into(file, header, state, key).map(|(_, bytes)| bytes);
    }
    let target = if path.is_symlink() { fs::canonicalize(path)? } else { path.to_owned() };
    let path = target.as_path();
    let mut name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
    name.push(".tmp");
    let tmp = path.with_file_name(name);
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let written = private().open(&tmp).and_then(|file| {
        let (file, bytes) = write_into(file, header, state, key)?;
        file.sync_all()?;
        fs::rename(&tmp, path)?;
        sync_names(parent.unwrap_or(Path::new(".")))?;
        Ok(bytes)
    });
    if written.is_err() {
        // A partial backup is useless.
        let _ = fs::remove_file(&tmp);
    }
    written
}

fn write_into(
    file: File,
    header: &Header,
    state: State,
    key: Option<&BackupKey>,
) -> io::Result<(File, u64)> {
    let mut sink = HashingWriter { inner: BufWriter::new(file), hash: Xxh3::new(), bytes: 0 };
    encode(&mut sink, header, ChunkWriter::full(state), key)?;
    let file = sink.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok((file, sink.bytes))
}

/// Options for a new file that only its owner may read.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes the names in a directory durable. Systems other than Unix do that by themselves.
fn sync_names(directory: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = directory;
    Ok(())
}

/// A backup that was read.
pub(super) struct ReadBackup {
    pub(super) header: Header,
    pub(super) machine: Machine,
    /// The length of the file.
    pub(super) bytes: u64,
    /// The id of the key that it is encrypted under.
    pub(super) under: Option<String>,
}

/// Reads a backup to its end and checks all of it. If it is sealed, this needs keys.
pub(super) fn read(path: &Path, ring: Option<&KeyRing>) -> Result<ReadBackup, UnreadableBackup> {
    let file = File::open(path)?;
    let mut source = HashingReader { inner: BufReader::new(file), hash: Xxh3::new(), bytes: 0 };
    let (header, machine, under) = decode(&mut source, ring)?;
    Ok(ReadBackup { header, machine, bytes: source.bytes, under })
}

/// Reads arbitrary bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let ring = KeyRing::for_tests(&["k1"]);
    let key = BackupKey::new(&ring).expect("the system has random numbers");
    let _ = decode(&mut HashingReader { inner: bytes, hash: Xxh3::new(), bytes: 0 }, Some(&ring));
    // The bytes also as the only chunk of an otherwise valid backup.
    let header = Header { cluster: 1, zxid: 0, hash: 0, time_ms: 0, version: 1 };
    for key in [None, Some(&key)] {
        let mut sink = HashingWriter { inner: Vec::new(), hash: Xxh3::new(), bytes: 0 };
        if encode(&mut sink, &header, [bytes.to_vec()].into_iter(), key).is_ok() {
            let bytes = sink.inner.as_slice();
            let _ = decode(
                &mut HashingReader { inner: bytes, hash: Xxh3::new(), bytes: 0 },
                Some(&ring),
            );
        }
    }
}

fn encode<W: Write>(
    sink: &mut HashingWriter<W>,
    header: &Header,
    chunks: impl Iterator<Item = Vec<u8>>,
    key: Option<&BackupKey>,
) -> io::Result<()> {
    sink.put(MAGIC)?;
    let (format, more) = if key.is_some() { (SEALED, SEALED_MORE) } else { (CLEAR, 0) };
    sink.put(&format.to_le_bytes())?;
    if let Some(BackupKey { wrapped, .. }) = key {
        let wrapped = postcard::to_allocvec(wrapped).map_err(io::Error::other)?;
        sink.put(&length(&wrapped, KEY_BYTES_MAX)?.to_le_bytes())?;
        sink.put(&wrapped)?;
    }
    let header = postcard::to_allocvec(header).map_err(io::Error::other)?;
    let header = sealed(key, &header_context(), header);
    sink.put(&length(&header, HEADER_BYTES_MAX)?.to_le_bytes())?;
    sink.put(&header)?;
    let checksum = sink.hash.digest();
    sink.put(&checksum.to_le_bytes())?;
    let mut number: u32 = 0;
    for chunk in chunks {
        let chunk = sealed(key, &chunk_context(number), chunk);
        sink.put(&length(&chunk, CHUNK_BYTES_MAX + more)?.to_le_bytes())?;
        sink.put(&chunk)?;
        sink.put(&xxh3_64_with_seed(&chunk, u64::from(number)).to_le_bytes())?;
        number = number.checked_add(1).ok_or(io::ErrorKind::FileTooLarge)?;
    }
    sink.put(&0_u32.to_le_bytes())?;
    sink.put(&number.to_le_bytes())?;
    let checksum = sink.hash.digest();
    sink.put(&checksum.to_le_bytes())
}

fn length(bytes: &[u8], max: u32) -> io::Result<u32> {
    match u32::try_from(bytes.len()) {
        Ok(length) if (1..=max).contains(&length) => Ok(length),
        _ => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

type Decoded = Result<(Header, Machine, Option<String>), UnreadableBackup>;

fn decode<R: Read>(source: &mut HashingReader<R>, ring: Option<&KeyRing>) -> Decoded {
    let bad = |reason: String| Err(UnreadableBackup::Bad(reason));
    if source.take(MAGIC.len())? != MAGIC {
        return bad("it is no backup".to_owned());
    }
    let format = source.number()?;
    let formats = format & 0xffff;
    if formats != u32::from(FORMATS) {
        return bad(other_formats(formats));
    }
    if ![CLEAR, SEALED].contains(&format) {
        return bad("its front is damaged".to_owned());
    }
    let (mut wrapped, mut more) = (None, 0);
    if format == SEALED {
        let length = source.number()?;
        if length > KEY_BYTES_MAX {
            return bad("its key is damaged".to_owned());
        }
        (wrapped, more) = (Some(source.take(length as usize)?), SEALED_MORE);
    }
    let length = source.number()?;
    if length > HEADER_BYTES_MAX {
        return bad("its header is damaged".to_owned());
    }
    let header = source.take(length as usize)?;
    let expected = source.hash.digest();
    if source.checksum()? != expected {
        return bad("its header is damaged".to_owned());
    }
    let (mut keys, mut under) = (None, None);
    if let Some(wrapped) = wrapped {
        let wrapped: WrappedKey = match postcard::take_from_bytes(&wrapped) {
            Ok((wrapped, [])) => wrapped,
            Ok(_) | Err(_) => return bad("its key is damaged".to_owned()),
        };
        let ring = ring.ok_or_else(|| no_keys(&wrapped.under))?;
        keys = Some(DataKeys::open(ring, std::slice::from_ref(&wrapped))?);
        under = Some(wrapped.under);
    }
    let header = opened(keys.as_ref(), &header_context(), header, "its header")?;
    let header: Header = match postcard::take_from_bytes(&header) {
        Ok((header, [])) => header,
        Ok(_) | Err(_) => return bad("its header is damaged".to_owned()),
    };
    if header.version > VERSION {
        return bad(too_old(header.version, VERSION));
    }
    let mut chunks = ChunkReader::new();
    let mut number: u32 = 0;
    loop {
        let length = source.number()?;
        if length == 0 {
            break;
        }
        let at = source.bytes;
        if length > CHUNK_BYTES_MAX + more {
            return bad(format!("it is damaged at byte {at}"));
        }
        let chunk = source.take(length as usize)?;
        if source.checksum()? != xxh3_64_with_seed(&chunk, u64::from(number)) {
            return bad(format!("it is damaged at byte {at}, in chunk {number}"));
        }
        let name = format_args!("its chunk {number}");
        let chunk = opened(keys.as_ref(), &chunk_context(number), chunk, name)?;
        if let Err(reason) = chunks.push(&chunk) {
            return bad(format!("chunk {number} is not one of a state: {reason}"));
        }
        let Some(next) = number.checked_add(1) else {
            return bad("it has more chunks than can be counted".to_owned());
        };
        number = next;
    }
    if source.number()? != number {
        return bad("chunks are missing".to_owned());
    }
    let expected = source.hash.digest();
    if source.checksum()? != expected {
        return bad("its checksum is wrong".to_owned());
    }
    if source.inner.read(&mut [0])? > 0 {
        return bad("there is something behind its end".to_owned());
    }
    match chunks.finish(header.zxid, header.hash) {
        Ok(machine) => Ok((header, machine, under)),
        Err(reason) => bad(format!("what it holds is no sound state: {reason}")),
    }
}

/// The destination of a backup, with the checksum of everything written.
struct HashingWriter<W> {
    inner: W,
    hash: Xxh3,
    bytes: u64,
}

impl<W: Write> HashingWriter<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.inner.write_all(bytes)
    }
}

/// The source of a backup, with the checksum of everything read.
struct HashingReader<R> {
    inner: R,
    hash: Xxh3,
    bytes: u64,
}

impl<R: Read> HashingReader<R> {
    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // The buffer grows with the bytes that exist, whatever a damaged length claims.
        (&mut self.inner).take(count as u64).read_to_end(&mut bytes)?;
        if bytes.len() < count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.hash.update(&bytes);
        self.bytes += count as u64;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn checksum(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Header, Vec<u8>) {
        let machine = Machine::new();
        let (zxid, hash, time_ms) = (machine.zxid(), machine.hash(), 1_700_000_000_000);
        let header = Header { cluster: 7, zxid, hash, time_ms, version: machine.version() };
        let mut sink = HashingWriter { inner: Vec::new(), hash: Xxh3::new(), bytes: 0 };
        encode(&mut sink, &header, ChunkWriter::full(machine.state()), None).unwrap();
        (header, sink.inner)
    }

    fn read(bytes: &[u8]) -> Result<Header, UnreadableBackup> {
        let mut source = HashingReader { inner: bytes, hash: Xxh3::new(), bytes: 0 };
        decode(&mut source, None).map(|(header, ..)| header)
    }

    #[test]
    fn golden_backup() {
        let mut golden = crate::golden::Golden::new("backup");
        golden.sample("of a new cluster", &sample().1);
        golden.check();
    }

    /// `--overwrite` made a file of `/dev/null`, for all of the machine, and of links and pipes.
    #[cfg(unix)]
    #[test]
    fn only_a_file_is_replaced() {
        let (header, bytes) = sample();
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &Path| super::write(path, &header, Machine::new().state(), None);
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| dir.path().join(name));
        fs::write(&file, b"former").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), bytes);
        fs::remove_file(&file).unwrap();
        assert!(write(&link).is_err(), "a link to nothing");

        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| fs::read(&pipe).unwrap());
            write(&pipe).unwrap();
            reader.join().unwrap()
        });
        assert_eq!(read, bytes);
        assert!(!fs::metadata(&pipe).unwrap().is_file());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    }

    #[test]
    fn every_bit_and_every_byte_counts() {
        let (header, bytes) = sample();
        assert_eq!(read(&bytes).unwrap(), header);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(read(&flipped), Err(UnreadableBackup::Bad(_))), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(matches!(read(&bytes[..cut]), Err(UnreadableBackup::Bad(_))), "cut to {cut}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(matches!(read(&longer), Err(UnreadableBackup::Bad(_))));
    }

    #[test]
    fn a_backup_of_a_later_version_is_refused_with_the_reason() {
        let (header, _) = sample();
        let header = Header { version: VERSION + 1, ..header };
        let mut sink = HashingWriter { inner: Vec::new(), hash: Xxh3::new(), bytes: 0 };
        encode(&mut sink, &header, [b"unknown".to_vec()].into_iter(), None).unwrap();
        let Err(UnreadableBackup::Bad(reason)) = read(&sink.inner) else { panic!() };
        assert_eq!(reason, too_old(VERSION + 1, VERSION));
    }
}
