//! Frames: small files that are replaced as a whole, with a type and a checksum.
//!
//! A frame is little endian: 8 bytes of magic, 4 of format, the body in
//! postcard, 8 of XXH3 of everything before.

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::record::encode_body;
use super::rules::refuse;
use super::{Result, StorageError};

/// No frame is longer; a longer file is not read into memory.
pub(super) const FRAME_BYTES_MAX: u64 = 1 << 20;

/// The name, type and format of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) magic: &'static [u8; 8],
    pub(super) number: u32,
}

impl Format {
    pub(super) fn seal<T: Serialize>(&self, body: &T) -> Result<Vec<u8>> {
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&encode_body(body));
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        if bytes.len() as u64 > FRAME_BYTES_MAX {
            return refuse(format!("{} bytes for {}", bytes.len(), self.name));
        }
        Ok(bytes)
    }

    pub(super) fn unseal<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T> {
        let damaged = || self.damaged();
        let (sealed, checksum) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
        if xxh3_64(sealed) != u64::from_le_bytes(*checksum) {
            return Err(damaged());
        }
        let body = sealed.strip_prefix(self.magic).ok_or_else(damaged)?;
        let (format, body) = body.split_first_chunk().ok_or_else(damaged)?;
        let format = u32::from_le_bytes(*format);
        if format != self.number {
            let Format { name, number, .. } = self;
            return Err(StorageError::Version {
                what: format!("{name} has format {format}, this version reads {number}"),
            });
        }
        match postcard::take_from_bytes(body) {
            Ok((value, [])) => Ok(value),
            Ok(_) | Err(_) => Err(damaged()),
        }
    }

    fn damaged(&self) -> StorageError {
        StorageError::Corrupt { what: format!("{} is damaged", self.name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Format = Format { name: "x", magic: b"qrxxxxx\n", number: 3 };

    #[test]
    fn frame_of_another_format_is_a_version() {
        let bytes = FILE.seal(&7_u64).unwrap();
        assert_eq!(FILE.unseal::<u64>(&bytes), Ok(7));
        for other in [2, 4] {
            let bytes = Format { number: other, ..FILE }.seal(&7_u64).unwrap();
            let error = FILE.unseal::<u64>(&bytes).unwrap_err();
            assert!(matches!(error, StorageError::Version { .. }), "{error}");
        }
        for cut in 0..bytes.len() {
            let error = FILE.unseal::<u64>(&bytes[..cut]).unwrap_err();
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        }
        assert!(FILE.seal(&vec![0_u8; 2 << 20]).is_err());
    }
}
