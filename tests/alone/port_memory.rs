//! How much memory unauthenticated connections can make a node use.

#![allow(clippy::disallowed_methods, reason = "deadlines of tests")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use quorate::{Coordinator, Secret, Security};

use crate::common::{PATIENCE, addresses};
use crate::{allocated, alone};

/// The limits of `docs/security.md`.
const STRANGER_BYTES_MAX: usize = 64 << 10;
const SECRET: &str = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
const STRANGERS_MAX: usize = 64;

/// The peak of allocations while 200 unauthenticated connections send these bytes to a member, once it is at least
/// so much.
fn cost(security: Security, sent: &[u8], least: usize) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let free = addresses::address();
    let builder = Coordinator::builder().data_dir(dir.path().join("data")).security(security);
    let member = builder.join([&free]).wait().unwrap();
    member.wait_ready(PATIENCE).wait().unwrap();
    let before = allocated();
    let mut most = before;
    let mut crowd: Vec<TcpStream> = Vec::with_capacity(200);
    for _ in 0..200 {
        let mut stranger = TcpStream::connect(&free).unwrap();
        // The member may already have closed the connection.
        let _ = stranger.write_all(sent);
        crowd.push(stranger);
        most = most.max(allocated());
    }
    // The member has closed this one to make room for the later ones, so it has accepted all.
    crowd[199 - STRANGERS_MAX].set_read_timeout(Some(PATIENCE)).unwrap();
    let gone = loop {
        match crowd[199 - STRANGERS_MAX].read(&mut [0; 4096]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) => break error.kind() == ErrorKind::ConnectionReset,
        }
    };
    assert!(gone, "more than {STRANGERS_MAX} of one address");
    // The member reads a part of what they sent in each turn, so this takes a while.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500)
        || (most - before <= least && start.elapsed() < PATIENCE)
    {
        most = most.max(allocated());
        std::thread::yield_now();
    }
    assert!(most - before > least, "they were not kept: {}", most - before);
    most - before
}

#[test]
fn strangers_cost_little() {
    alone(concat!(module_path!(), "::strangers_cost_little"), || {
        // A part of a hello; a handshake and a part of a message; TLS handshake records of the maximal length, in
        // parts.
        let hello = [&4000_u32.to_le_bytes()[..], &[0; 3900]].concat();
        let message = [b"qrnoise\x01\x30\0".as_slice(), &[7; 47]].concat();
        let record = [&[0x16, 3, 1, 0x10, 0, 1, 0, 0xff, 0xff][..], &[0; 0x1000 - 4]].concat();
        let all = STRANGERS_MAX * STRANGER_BYTES_MAX;
        let plain = cost(Security::Loopback, &hello, STRANGERS_MAX * 3900);
        assert!(plain < all, "{plain}");
        let secret = cost(Secret::new(SECRET).unwrap().into(), &message, 0);
        assert!(secret < all, "{secret}");
        #[cfg(feature = "tls")]
        {
            let authority = crate::authority::Authority::new();
            let least = STRANGERS_MAX * (20 << 10);
            let tls = cost(authority.tls("app-0").into(), &record.repeat(7), least);
            assert!(tls < all, "{tls}");
            println!("plain {plain}, secret {secret}, tls {tls}");
        }
        let _ = record;
    });
}
