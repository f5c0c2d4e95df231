//! Addresses for the members of a test's cluster.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Addresses that no other test uses: where there are many loopback addresses, one of this process's own, and
/// elsewhere ports that were free a moment ago.
pub(crate) fn addresses(count: usize) -> Vec<String> {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);
    if cfg!(target_os = "linux") {
        let pid = std::process::id();
        let host = format!("127.{}.{}.{}", 1 + (pid >> 16) % 250, (pid >> 8) & 255, pid & 255);
        let port = |_| NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        return (0..count).map(port).map(|port| format!("{host}:{port}")).collect();
    }
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// A port that is free on every address of this machine; the others are free only on one loopback address.
pub(crate) fn port_everywhere() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// One such address.
pub(crate) fn address() -> String {
    addresses(1).remove(0)
}
