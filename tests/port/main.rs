//! The port for other members: which connections are accepted, which are refused and why, and what
//! an unauthenticated connection costs.
//!
//! Members in one process, with their own sockets and disks. The effect of each wrong byte is
//! tested beside the code, in `src/transport`.

#![allow(clippy::disallowed_methods, reason = "deadlines of tests")]

#[path = "../common/addresses.rs"]
mod addresses;

#[cfg(feature = "tls")]
mod authority;
mod open;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use quorate::StartError;
use quorate::{Builder, Coordinator, Error, Secret, Security};

use addresses::{addresses, port_everywhere};

const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough for any handshake, and for one that failed to be reported.
const GLANCE: Duration = Duration::from_secs(3);

const ONE: &str = "8c1f0d5b7a92e3644d0b1be8a1f5379c2b60e87d94fa13c5061de2b7f84a9350";
const OTHER: &str = "violin-carbon-otter-meadow-quartz-lantern";

struct Members {
    list: Vec<String>,
    dir: tempfile::TempDir,
}

impl Members {
    fn new(count: usize) -> Members {
        Members { list: addresses(count), dir: tempfile::tempdir().unwrap() }
    }

    fn builder(&self, place: usize) -> Builder {
        Coordinator::builder()
            .advertise(&self.list[place])
            .data_dir(self.dir.path().join(place.to_string()))
    }

    fn start(&self, place: usize, security: impl Into<Security>) -> Coordinator {
        self.builder(place).security(security).join(&self.list).wait().unwrap()
    }
}

fn refused(member: &Coordinator) -> String {
    match member.wait_ready(GLANCE).wait() {
        Err(Error::Start(StartError::PeerRefused { reason, .. })) => reason,
        other => panic!("{other:?}: {}", member.status()),
    }
}

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}
