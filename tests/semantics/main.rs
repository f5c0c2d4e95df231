//! ZooKeeper's semantics, row by row.
//!
//! `table.md` has a row for each point: what ZooKeeper does, what differs here on purpose, and
//! which tests check it. The tests here use only the public handles.

mod ends;
mod errors;
mod guarantees;
mod multi;
mod one_write;
mod paths;
mod sequences;
mod sessions;
mod stats;
mod table;
mod watches;

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{CreateMode, EventKind, Session, Stat, Watch};

const P: CreateMode = CreateMode::Persistent;
const SECOND: Duration = Duration::from_secs(1);

/// A cluster of one node, and an open session.
fn one() -> (Cluster, Session) {
    let cluster = Cluster::new(1);
    let session = open(&cluster, 0);
    (cluster, session)
}

/// A new session on this node.
fn open(cluster: &Cluster, node: usize) -> Session {
    let session = cluster.node(node).open_session().unwrap();
    session.sync().wait().unwrap();
    session
}

fn make(session: &Session, paths: &[&str]) {
    for path in paths {
        session.create(path, b"", P).wait().unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

fn stat(session: &Session, path: &str) -> Stat {
    session.exists(path).wait().unwrap().unwrap_or_else(|| panic!("no znode {path}"))
}

/// The events in a watch's channel now. A write's events are there before its reply.
fn received(watch: &Watch) -> Vec<(EventKind, String)> {
    watch.events().try_iter().map(|event| (event.kind, event.path)).collect()
}
