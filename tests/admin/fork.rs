//! A process that forks has two copies of an admin endpoint and of a gateway, but one of their threads.

#[cfg(feature = "gateway")]
use std::io::{Read, Write};

use crate::client::{get, served};
use crate::common::alone;
use crate::common::forks::in_a_fork;

/// Dropping them in a fork waited for threads that did not exist there.
#[test]
fn dropping_a_server_in_a_fork_does_nothing() {
    alone(concat!(module_path!(), "::dropping_a_server_in_a_fork_does_nothing"), || {
        let (_cluster, _coordinator, admin) = served(1);
        let mut admin = Some(admin);
        in_a_fork(|| drop(admin.take()));
        assert_eq!(get(admin.as_ref().unwrap(), "/live").status, 200);
    });
}

#[test]
#[cfg(feature = "gateway")]
fn dropping_a_gateway_in_a_fork_does_nothing() {
    alone(concat!(module_path!(), "::dropping_a_gateway_in_a_fork_does_nothing"), || {
        let (_cluster, coordinator, _admin) = served(1);
        let gateway = quorate::gateway::Gateway::serve(&coordinator, "127.0.0.1:0").unwrap();
        let address = gateway.address();
        let mut gateway = Some(gateway);
        in_a_fork(|| drop(gateway.take()));
        let (mut stream, mut answer) = (crate::client::connect(address), String::new());
        stream.write_all(b"ruok").unwrap();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "imok");
    });
}
