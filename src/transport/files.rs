//! The files that the process may have open, and who may use how many of them.
//!
//! Without a file, no connection can be accepted or made, and no segment of the log and no checkpoint can be
//! opened. So clients leave [`KEPT`] files: to disks, to members and to operators, in this order.
//!
//! A new file has the lowest number that is free. So the number of a connection's file is how many files the process
//! has open at least, whoever has opened them: members, clients, a gateway, or the application.

use std::io;

use mio::net::TcpStream;

use crate::types::right::Right;

/// The files that connections of clients leave.
const KEPT: usize = 128;

/// How many files the process may have open: known on Linux only.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn files_max() -> Option<usize> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn files_max() -> Option<usize> {
    None
}

/// How many of `most` files, or places, may be in use before a connection with this right is refused. Of a
/// low limit, half is left.
pub(crate) fn room(most: usize, right: Right) -> usize {
    let kept = KEPT.min(most / 2);
    most - match right {
        Right::Client => kept,
        Right::Operator => kept / 2,
        Right::Member => kept / 4,
    }
}

/// How many files the process has open at least, by the number of this one.
#[cfg(unix)]
pub(crate) fn open_files(latest: &TcpStream) -> usize {
    use std::os::fd::AsRawFd;
    usize::try_from(latest.as_raw_fd()).unwrap_or_default()
}

#[cfg(not(unix))]
pub(crate) fn open_files(_: &TcpStream) -> usize {
    0
}

/// Whether the process has no file left, or the system.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    // EMFILE and ENFILE, the same on all systems of Unix.
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_to_disks_members_and_operators() {
        let rooms = |most| [Right::Client, Right::Operator, Right::Member].map(|of| room(most, of));
        assert_eq!(rooms(1024), [896, 960, 992]);
        assert_eq!(rooms(256), [128, 192, 224]);
        assert_eq!(rooms(100), [50, 75, 88]);
        assert_eq!(rooms(0), [0, 0, 0]);
    }

    #[test]
    fn the_number_of_a_file_says_how_many_are_open() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let many: Vec<TcpStream> = std::iter::repeat_with(connect).take(20).collect();
        if cfg!(unix) {
            assert!(many.iter().map(open_files).max() >= Some(20));
        }
        if cfg!(target_os = "linux") {
            assert!(files_max().is_some_and(|most| most > 0));
        }
    }

    #[test]
    #[cfg(unix)]
    fn the_limits_of_the_process_and_of_the_system_count() {
        let is = |code| is_exhausted(&io::Error::from_raw_os_error(code));
        let [no_entry, of_system, of_process, no_terminal] = [2, 23, 24, 25].map(is);
        assert!(of_system && of_process && !no_entry && !no_terminal);
    }
}
