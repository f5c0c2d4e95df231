//! A cluster in the process of a test, and the program `quorate` that talks to it.

use std::process::Command;
use std::time::Duration;

use quorate::Coordinator;
use serde_json::Value;

use crate::addresses;

pub(crate) struct Cluster {
    pub(crate) peers: String,
    pub(crate) members: Vec<Coordinator>,
    pub(crate) data: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new(count: usize) -> Cluster {
        let addresses: Vec<_> = (0..count).map(|_| addresses::address()).collect();
        let data = tempfile::tempdir().unwrap();
        let start = |address: &String| {
            let dir = data.path().join(address.replace(':', "_"));
            let builder = Coordinator::builder().advertise(address).data_dir(dir);
            builder.join(&addresses).wait().unwrap()
        };
        let members: Vec<_> = addresses.iter().map(start).collect();
        for member in &members {
            member.wait_ready(Duration::from_secs(60)).wait().unwrap();
        }
        Cluster { peers: addresses.join(","), members, data }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(arguments).env("QUORATE_PEERS", &self.peers);
        command
    }

    /// The exit code and the output.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    pub(crate) fn well(&self, arguments: &[&str]) -> String {
        let (code, text, error) = self.run(arguments);
        assert_eq!((code, error.as_str()), (0, ""), "{arguments:?}: {text}");
        text
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.well(&[arguments, &["--json"]].concat())).unwrap()
    }
}
