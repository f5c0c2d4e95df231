//! The room on a file system.

use std::path::Path;

/// The room on the file system of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// Available to this process.
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// The room on the file system of a path; `None` if that is not known.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn space(path: &Path) -> Option<Space> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    // Some file systems have no size, and so no limit of their room.
    (stat.f_blocks > 0).then(|| Space { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks) })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn space(_: &Path) -> Option<Space> {
    None
}
