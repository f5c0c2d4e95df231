//! The encoding of a checkpoint's chunks as keys and values.
//!
//! A chunk is stored as one or more parts, each a key and a value. The value is in the file of chunks, and sled
//! has its place by the key: see `generation`.
//!
//! Key, 17 bytes, big endian, so that sled's order is the order of writing:
//!
//! | offset | bytes | meaning                                                  |
//! |--------|-------|----------------------------------------------------------|
//! | 0      | 1     | `C`                                                      |
//! | 1      | 8     | the checkpoint part's id                                 |
//! | 9      | 4     | number: the chunk's place in it                          |
//! | 13     | 4     | part, from 0                                             |
//!
//! Value, little endian:
//!
//! | offset | bytes | meaning                                                  |
//! |--------|-------|----------------------------------------------------------|
//! | 0      | 1     | format: [`Form`]                                         |
//! | 1      | 4     | how many parts the chunk has                             |
//! | 5      | 8     | the chain before this chunk                              |
//! | 13     | n     | this part of the body                                    |
//! | 13 + n | 8     | XXH3 of the key and of everything before                 |
//!
//! The chain after a chunk is the XXH3 of its parts' checksums. Each part holds the chain before
//! it, so each chunk depends on all earlier ones. A chunk that was lost, duplicated, moved or
//! restored from an old copy is detected. The log holds the chain after the last chunk.

use xxhash_rust::xxh3::Xxh3;

use crate::encryption::AssociatedData;
use crate::storage::bytes::{array, hash};
use crate::storage::error::corrupt;
use crate::storage::error::{Result, StorageError};

/// What the body of a chunk is. Its tag is the format of the chunk: this version reads no other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::storage) enum Form {
    Clear = 1,
    /// Encrypted, before it was split into parts: see `sealing`.
    Sealed = 2,
}

/// The most bytes in one value.
pub(super) const VALUE_BYTES_MAX: usize = 60_000;

const HEADER_BYTES: usize = 13;
const CHECKSUM_BYTES: usize = 8;
const BODY_BYTES_MAX: usize = VALUE_BYTES_MAX - HEADER_BYTES - CHECKSUM_BYTES;
const KEY_BYTES: usize = 17;

/// A key in sled.
pub(in crate::storage) type Key = [u8; KEY_BYTES];

/// The first byte of each key.
const TAG: u8 = b'C';

/// The identity of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct ChunkId {
    /// The part of a checkpoint that it belongs to.
    pub(in crate::storage) group: u64,
    pub(in crate::storage) number: u32,
}

impl ChunkId {
    /// The prefix of the keys of all chunks of a group.
    pub(super) fn group_prefix(group: u64) -> [u8; 9] {
        let mut prefix = [TAG; 9];
        prefix[1..].copy_from_slice(&group.to_be_bytes());
        prefix
    }

    /// A key that sorts after those of all chunks.
    pub(in crate::storage) fn end() -> [u8; 1] {
        [TAG + 1]
    }

    /// The key of one part.
    pub(in crate::storage) fn key(&self, part: u32) -> Key {
        let mut key = [0; KEY_BYTES];
        key[0] = TAG;
        key[1..9].copy_from_slice(&self.group.to_be_bytes());
        key[9..13].copy_from_slice(&self.number.to_be_bytes());
        key[13..].copy_from_slice(&part.to_be_bytes());
        key
    }

    /// The chunk and the part that a key names.
    pub(in crate::storage) fn parse(key: &[u8]) -> Result<(ChunkId, u32)> {
        let parse = |key: &Key| {
            let group = u64::from_be_bytes(array(&key[1..9])?);
            let number = u32::from_be_bytes(array(&key[9..13])?);
            Some((ChunkId { group, number }, u32::from_be_bytes(array(&key[13..])?)))
        };
        let ours = key.try_into().ok().filter(|key: &&Key| key[0] == TAG);
        match ours.and_then(parse) {
            Some(parsed) => Ok(parsed),
            None => corrupt(format!("an unknown key: {key:02x?}")),
        }
    }
}

impl std::fmt::Display for ChunkId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "chunk {} of checkpoint part {}", self.number, self.group)
    }
}

/// A chunk ready to be stored.
#[derive(Debug)]
pub(in crate::storage) struct Encoded {
    pub(in crate::storage) parts: Vec<(Key, Vec<u8>)>,
    /// The chain after the chunk.
    pub(in crate::storage) chain: u64,
    /// Keys and values together.
    pub(in crate::storage) bytes: u64,
}

/// Splits a body into parts and adds their checksums.
pub(in crate::storage) fn encode(id: ChunkId, previous: u64, form: Form, body: &[u8]) -> Encoded {
    let count = body.len().div_ceil(BODY_BYTES_MAX).max(1);
    let parts_declared = u32::try_from(count)
        .expect("2^32 parts would be a body of 250 TB, and it is in memory in one piece");
    let mut parts = Vec::with_capacity(count);
    let mut chain = Xxh3::new();
    let mut bytes = 0;
    for part in 0..parts_declared {
        let start = part as usize * BODY_BYTES_MAX;
        let piece = &body[start..body.len().min(start + BODY_BYTES_MAX)];
        let key = id.key(part);
        let mut value = Vec::with_capacity(HEADER_BYTES + piece.len() + CHECKSUM_BYTES);
        value.push(form as u8);
        value.extend_from_slice(&parts_declared.to_le_bytes());
        value.extend_from_slice(&previous.to_le_bytes());
        value.extend_from_slice(piece);
        let checksum = seal(&key, &value).to_le_bytes();
        value.extend_from_slice(&checksum);
        chain.update(&checksum);
        bytes += (key.len() + value.len()) as u64;
        parts.push((key, value));
    }
    Encoded { parts, chain: chain.digest(), bytes }
}

/// A chunk that was read back: its checksums and parts are verified, its chain is not yet.
#[derive(Debug)]
pub(in crate::storage) struct Chunk {
    pub(in crate::storage) id: ChunkId,
    /// The chain before the chunk and after it.
    pub(in crate::storage) previous: u64,
    pub(in crate::storage) chain: u64,
    pub(in crate::storage) form: Form,
    pub(in crate::storage) body: Vec<u8>,
}

/// Puts chunks together from parts in the order of their keys.
#[derive(Debug)]
pub(in crate::storage) struct Reader<I> {
    parts: I,
}

impl<I, K, V> Reader<I>
where
    I: Iterator<Item = Result<(K, V)>>,
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
{
    pub(in crate::storage) fn new(parts: I) -> Reader<I> {
        Reader { parts }
    }

    /// The next chunk. Not to be called again after an error.
    pub(in crate::storage) fn next(&mut self) -> Result<Option<Chunk>> {
        let Some((key, value)) = self.parts.next().transpose()? else {
            return Ok(None);
        };
        let (id, part) = ChunkId::parse(key.as_ref())?;
        let VerifiedValue { parts, previous, form, piece, checksum } =
            open(id, part, value.as_ref())?;
        if part != 0 {
            return corrupt(format!("{id}: begins with part {part}"));
        }
        let mut chain = Xxh3::new();
        chain.update(&checksum.to_le_bytes());
        let mut body = piece.to_vec();
        for part in 1..parts {
            let next = self.parts.next().transpose()?;
            let Some((_, value)) = next.filter(|(key, _)| key.as_ref() == id.key(part)) else {
                return corrupt(format!("{id}: part {part} is missing"));
            };
            let opened = open(id, part, value.as_ref())?;
            if (opened.parts, opened.previous, opened.form) != (parts, previous, form) {
                return corrupt(format!("{id}: part {part} is of another chunk"));
            }
            chain.update(&opened.checksum.to_le_bytes());
            body.extend_from_slice(opened.piece);
        }
        Ok(Some(Chunk { id, previous, chain: chain.digest(), form, body }))
    }
}

/// Reads arbitrary parts, and arbitrary bodies with correct checksums.
#[cfg(any(test, fuzzing))]
pub(in crate::storage) fn fuzz(parts: &[&[u8]]) {
    let stored = parts.chunks(2).map(|part| Ok((part[0], *part.last().unwrap_or(&part[0]))));
    let mut reader = Reader::new(stored);
    while let Ok(Some(_)) = reader.next() {}
    for body in parts {
        let encoded = encode(ChunkId { group: 1, number: 0 }, 0, Form::Clear, body);
        let mut reader = Reader::new(encoded.parts.iter().map(|(key, value)| Ok((key, value))));
        let chunk = reader.next().unwrap().unwrap();
        assert_eq!(chunk.body, *body);
    }
}

/// A verified value.
struct VerifiedValue<'a> {
    parts: u32,
    previous: u64,
    form: Form,
    piece: &'a [u8],
    checksum: u64,
}

fn open(id: ChunkId, part: u32, value: &[u8]) -> Result<VerifiedValue<'_>> {
    let short = || StorageError::Corrupt { what: format!("{id}: part {part} is cut short") };
    let (sealed, checksum) = value.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(short)?;
    let (header, piece) = sealed.split_first_chunk::<HEADER_BYTES>().ok_or_else(short)?;
    let checksum = u64::from_le_bytes(*checksum);
    if seal(&id.key(part), sealed) != checksum {
        return corrupt(format!("{id}: part {part} has a wrong checksum"));
    }
    // Checked after the checksum, so that another version is not reported as damage, nor damage as
    // another version.
    let form = match header[0] {
        tag if tag == Form::Clear as u8 => Form::Clear,
        tag if tag == Form::Sealed as u8 => Form::Sealed,
        other => {
            let what = format!("chunks of format {other}, which this version does not read");
            return Err(StorageError::Version { what });
        }
    };
    Ok(VerifiedValue {
        parts: u32::from_le_bytes(array(&header[1..5]).ok_or_else(short)?),
        previous: u64::from_le_bytes(array(&header[5..]).ok_or_else(short)?),
        form,
        piece,
        checksum,
    })
}

fn seal(key: &Key, value: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(key);
    hash.update(value);
    hash.digest()
}

/// The chain before the first chunk of a part of a checkpoint.
pub(super) fn first_chunk_chain(log: u64, generation: u64, part: u64) -> u64 {
    hash([log, generation, part], &[])
}

/// The place of an encrypted chunk: it comes after this chain.
pub(super) fn chunk_context(
    log: u64,
    generation: u64,
    id: ChunkId,
    previous: u64,
) -> AssociatedData {
    let ChunkId { group, number } = id;
    AssociatedData::new(b'C', [log, generation, group, number.into(), previous, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[(Key, Vec<u8>)]) -> Result<Option<Chunk>> {
        Reader::new(parts.iter().map(|(k, v)| Ok((k.to_vec(), v.clone())))).next()
    }

    const CHUNK: ChunkId = ChunkId { group: 7, number: 0 };

    #[test]
    fn golden_chunks() {
        let mut golden = crate::golden::Golden::new("chunks");
        for (key, value) in encode(ChunkId { group: 4, number: 0 }, 99, Form::Clear, b"chunk").parts
        {
            golden.sample("key", &key);
            golden.sample("value", &value);
        }
        golden.check();
    }

    #[test]
    fn chunk_round_trip_in_parts() {
        for length in [0, 1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 3 * BODY_BYTES_MAX + 7] {
            let body: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let encoded = encode(CHUNK, 99, Form::Clear, &body);
            assert!(encoded.parts.iter().all(|(_, v)| v.len() <= VALUE_BYTES_MAX));
            let chunk = read(&encoded.parts).unwrap().unwrap();
            assert_eq!(chunk.body, body);
            assert_eq!(chunk.previous, 99);
            assert_eq!(chunk.chain, encoded.chain);
        }
    }

    #[test]
    fn chunk_refuses_every_flipped_bit() {
        let encoded = encode(CHUNK, 99, Form::Clear, b"some body");
        let (key, value) = &encoded.parts[0];
        for bit in 0..(key.len() + value.len()) * 8 {
            let (mut key, mut value) = (*key, value.clone());
            match key.get_mut(bit / 8) {
                Some(byte) => *byte ^= 1 << (bit % 8),
                None => value[bit / 8 - key.len()] ^= 1 << (bit % 8),
            }
            let error = read(&[(key, value)]).unwrap_err();
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        }
    }

    #[test]
    fn chunk_refuses_missing_and_foreign_parts() {
        let body = vec![1; 3 * BODY_BYTES_MAX];
        let encoded = encode(CHUNK, 99, Form::Clear, &body);
        for missing in 0..3 {
            let mut parts = encoded.parts.clone();
            parts.remove(missing);
            assert!(read(&parts).is_err());
        }
        let other = encode(CHUNK, 98, Form::Clear, &body);
        let mixed = [&encoded.parts[..2], &other.parts[2..]].concat();
        assert!(read(&mixed).is_err());
    }

    #[test]
    fn chunk_of_another_format_is_a_version() {
        let encoded = encode(CHUNK, 99, Form::Clear, b"body");
        let (key, mut value) = encoded.parts[0].clone();
        value.truncate(value.len() - CHECKSUM_BYTES);
        value[0] = Form::Sealed as u8 + 1;
        let checksum = seal(&key, &value);
        value.extend_from_slice(&checksum.to_le_bytes());
        let error = read(&[(key, value)]).unwrap_err();
        assert!(matches!(error, StorageError::Version { .. }), "{error}");
    }
}
