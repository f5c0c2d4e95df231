//! Writing to a socket without a signal.

use std::io::{self, IoSlice};

use mio::net::TcpStream;

/// Writes several slices at once. If the other end has left, that is an error and nothing more. A plain vectored write
/// raises SIGPIPE as well, unlike all other writes of the standard library, and that ends a process which does not
/// ignore the signal: a host in another language, or a program that has set the system's default.
pub(crate) fn send_vectored(socket: &mut TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
        let mut none = SendAncillaryBuffer::default();
        socket.try_io(|| Ok(sendmsg(&*socket, slices, &mut none, SendFlags::NOSIGNAL)?))
    }
    // Windows has no such signal, and mio sets an option of the socket on Apple's systems.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    std::io::Write::write_vectored(socket, slices)
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use signal_hook::consts::SIGPIPE;

    use super::*;

    #[test]
    fn a_write_to_a_peer_that_has_left_raises_no_signal() {
        let is_raised = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGPIPE, Arc::clone(&is_raised)).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        drop(peer);
        let mut socket = TcpStream::from_std(socket);
        // The peer's system answers the first bytes by a reset.
        let is_broken = |sent: io::Result<usize>| {
            sent.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        let slices = [IoSlice::new(b"some "), IoSlice::new(b"bytes")];
        while !is_broken(send_vectored(&mut socket, &slices)) {
            std::thread::yield_now();
        }
        assert!(!is_raised.load(Ordering::SeqCst));
    }
}
