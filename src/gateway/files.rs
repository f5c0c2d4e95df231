//! How many clients fit into the files that the process may have open.
//!
//! Without a file for it, no connection can be accepted, neither of a client nor of a peer, and no segment of the log
//! can be opened. So the gateway leaves some for the instance, and refuses clients before there are none.

use std::fs;
use std::io;

/// The files that the gateway leaves to everything else: peers, clients without a replica, the log, checkpoints.
const OTHERS: usize = 128;

/// How many files the process may have open: known on Linux only.
pub(super) fn files_max() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    most.split_whitespace().next()?.parse().ok()
}

/// How many connections there may be with this limit of files: of a low limit, half.
pub(super) fn room(files_max: usize) -> usize {
    files_max.saturating_sub(OTHERS).max(files_max / 2)
}

/// Whether the process has no file left, or the system.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    // EMFILE and ENFILE, the same on all systems of Unix.
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_to_the_instance() {
        assert_eq!([1024, 256, 100, 0].map(room), [896, 128, 50, 0]);
        if cfg!(target_os = "linux") {
            assert!(files_max().is_some_and(|most| most > 0));
        }
    }
}
