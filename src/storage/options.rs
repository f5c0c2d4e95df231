//! The settings of a store.

use std::path::PathBuf;
use std::sync::Arc;

use crate::encryption::KeyRing;

/// The settings of a store.
#[derive(Clone, Debug)]
pub(crate) struct StoreOptions {
    /// A checkpoint is full when the deltas take more than the image before them, and than this.
    pub(crate) delta_bytes_min: u64,
    /// A checkpoint is full when its files are more than four times as long as their live content,
    /// and longer than this.
    pub(crate) file_bytes_min: u64,
    /// The file of chunks that a full checkpoint replaces is kept for the next one, up to three times the bytes of
    /// the new image, if these are not fewer than this.
    pub(crate) spare_bytes_min: u64,
    /// A checkpoint is full when it would have more deltas than this.
    pub(crate) deltas_max: usize,
    /// The length of the log's files. A longer write gets a longer file.
    pub(crate) segment_bytes: u64,
    /// The keys under which the keys of the data are encrypted; without them, the store is in clear.
    pub(crate) keys: Option<Arc<KeyRing>>,
    /// The directory for logs; without it, they are where they were recorded, or in the data directory.
    pub(crate) log_dir: Option<PathBuf>,
    /// A random number, by which a start differs from those of copies of the directory.
    pub(crate) random: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            delta_bytes_min: 1 << 20,
            file_bytes_min: 64 << 20,
            spare_bytes_min: 1 << 20,
            deltas_max: 256,
            segment_bytes: 4 << 20,
            keys: None,
            log_dir: None,
            random: 0,
        }
    }
}
