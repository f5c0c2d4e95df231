//! Numbers and checksums in the bytes of a store.

use xxhash_rust::xxh3::Xxh3;

/// An array of a slice of that length.
pub(super) fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

/// The number at a place, little endian; `None` behind the end.
pub(super) fn u64_at(bytes: &[u8], start: usize) -> Option<u64> {
    bytes.get(start..start + 8).and_then(array).map(u64::from_le_bytes)
}

/// The XXH3 of numbers and of the bytes after them.
pub(super) fn hash(fields: [u64; 3], bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    for field in fields {
        hash.update(&field.to_le_bytes());
    }
    hash.update(bytes);
    hash.digest()
}
