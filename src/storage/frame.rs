//! Small files that are replaced as a whole: frames, and the marks of a directory, which are text.
//!
//! A frame is little endian: 8 bytes of magic, 4 of format, the body in
//! postcard, 8 of XXH3 of everything before.

use std::io::ErrorKind;

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::error::{io_error, refuse};
use super::file_system::FsPath;
use crate::storage::error::{Result, StorageError};
use crate::types::encoding;

/// No frame is longer; a longer file is not read into memory.
const FRAME_BYTES_MAX: u64 = 1 << 20;
/// What the name of a file or directory that is not complete ends with, after a dot.
pub(super) const TMP: &str = "tmp";

/// The content of a small file; `None` if there is no such file.
pub(super) fn read_file(dir: &FsPath, name: &str) -> Result<Option<Vec<u8>>> {
    match dir.join(name).read_up_to(FRAME_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(&format!("reading {name}"))(error)),
    }
}

/// Writes a file, durably. It gets its name when its content is synced.
pub(super) fn write_file(dir: &FsPath, name: &str, bytes: &[u8]) -> Result<()> {
    let failed = |error| io_error(&format!("writing {name}"))(error);
    let created = dir.join(format!("{name}.{TMP}"));
    let names = dir.open_directory().map_err(failed)?;
    let file = created.create_file()?;
    file.write_at(bytes, 0)
        .and_then(|()| file.sync_all())
        .and_then(|()| created.rename(&dir.join(name)))
        .and_then(|()| names.sync())
        // Windows has no sync of names: that of the file has its new one in the journal.
        .and_then(|()| if cfg!(unix) { Ok(()) } else { file.sync_all() })
        .map_err(failed)
}

/// Removes a file, durably, if there is one.
pub(super) fn remove_file(dir: &FsPath, name: &str) -> Result<()> {
    match dir.join(name).remove_file() {
        Ok(()) => dir.sync_names().map_err(io_error(&format!("removing {name}"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error(&format!("removing {name}"))(error)),
    }
}

/// The text of a mark; `None` if there is no such mark.
pub(super) fn read_mark(dir: &FsPath, name: &str) -> Result<Option<String>> {
    let text = read_file(dir, name)?;
    Ok(text.map(|text| String::from_utf8_lossy(&text).trim_end().to_owned()))
}

/// Writes a mark, durably.
pub(super) fn write_mark(dir: &FsPath, name: &str, text: &str) -> Result<()> {
    write_file(dir, name, format!("{text}\n").as_bytes())
}

/// The name of a file of which this is the unfinished form.
pub(super) fn unfinished(name: &str) -> Option<&str> {
    name.strip_suffix(TMP)?.strip_suffix('.')
}

/// The name, type and format of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) magic: &'static [u8; 8],
    pub(super) number: u32,
}

impl Format {
    /// Reads this file of a directory; `None` if there is none.
    pub(super) fn read<T: DeserializeOwned>(&self, dir: &FsPath) -> Result<Option<T>> {
        read_file(dir, self.name)?.map(|bytes| self.unseal(&bytes)).transpose()
    }

    /// Replaces this file of a directory, atomically and durably.
    pub(super) fn write<T: Serialize>(&self, dir: &FsPath, body: &T) -> Result<()> {
        write_file(dir, self.name, &self.seal(body)?)
    }

    pub(super) fn seal<T: Serialize>(&self, body: &T) -> Result<Vec<u8>> {
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&self.number.to_le_bytes());
        encoding::append_to(&mut bytes, body);
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
                what: format!(
                    "{name} has format {format}, and this build reads format {number}: start it with the build that \
                     wrote it, or let this one begin in an empty directory"
                ),
            });
        }
        match postcard::take_from_bytes(body) {
            Ok((value, [])) => Ok(value),
            Ok(_) | Err(_) => Err(damaged()),
        }
    }

    /// Reads an arbitrary body as this file.
    #[cfg(any(test, fuzzing))]
    pub(super) fn fuzz<T>(&self, body: &[u8])
    where
        T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let mut bytes = [&self.magic[..], &self.number.to_le_bytes(), body].concat();
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        if let Ok(value) = self.unseal::<T>(&bytes) {
            let sealed = self.seal(&value).expect("it is no longer than what it was read from");
            assert_eq!(self.unseal(&sealed), Ok(value));
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
