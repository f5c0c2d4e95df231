//! One short scenario, run again and again, with a node killed at each of its steps.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::machine::command::{Command, Op, Reply};
use crate::node::io::RequestId;
use crate::node::query::Answer;
use crate::node::tests::harness::{Cluster, Crash, HEARTBEAT};
use crate::types::membership::NodeId;
use crate::types::znode::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(6);
const WRITES: usize = 6;

/// Three users write, each through its own node, and one of the nodes is killed and started again a
/// little later. Returns whether it was killed: the run may have ended before.
fn run(crash: Crash) -> bool {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let sessions = [1, 2, 3].map(|id| (id, cluster.open(id, id, TIMEOUT)));
    cluster.create(1, sessions[0].1, "/q", CreateMode::Persistent).unwrap();
    cluster.crash = Some(crash);
    let mut requests: Vec<(NodeId, RequestId)> = Vec::new();
    for n in 0..WRITES {
        for (id, session) in sessions {
            let (path, data) = ("/q/n-".into(), format!("{id}:{n}").into());
            let op = Op::Create { path, data, mode: CreateMode::PersistentSequential };
            requests.push((id, cluster.write(id, session, Command::Op(op))));
        }
        if n % 2 == 1 {
            cluster.settle();
        } else {
            cluster.advance(HEARTBEAT);
        }
    }
    cluster.advance(HEARTBEAT * 4);
    let killed = cluster.crash.take().is_none();
    if killed {
        // Long enough for another leader, in half of the runs.
        cluster.advance(HEARTBEAT * if crash.step.is_multiple_of(2) { 2 } else { 60 });
        cluster.start(crash.victim);
    }
    cluster.elect();
    cluster.advance(HEARTBEAT * 60);
    cluster.check_equal();

    let children = cluster.node(1).machine().tree();
    let children: Vec<&str> = children.get("/q").unwrap().children().collect();
    let data: Vec<String> =
        children.iter().map(|name| cluster.data(1, &format!("/q/{name}")).unwrap()).collect();
    let distinct: BTreeSet<&String> = data.iter().collect();
    assert_eq!(distinct.len(), data.len(), "{crash:?}: a write was run twice: {data:?}");
    for (id, session) in sessions {
        let own: Vec<&String> =
            data.iter().filter(|data| data.starts_with(&format!("{id}:"))).collect();
        assert!(own.is_sorted(), "{crash:?}: {session} wrote in another order: {own:?}");
    }
    for (id, request) in requests {
        match cluster.replies.get(&request) {
            Some(Ok(Answer::Reply(Reply::Created(created)))) => {
                assert!(cluster.data(1, &created.path).is_some(), "{crash:?}: {created:?} is lost");
            }
            None if id == crash.victim && killed => {}
            other => panic!("{crash:?}: a user of node {id} got {other:?}"),
        }
    }
    killed
}

/// [`Crash`] in all its forms: each node, at each of its steps, with each part of its writes done.
#[test]
fn nothing_is_lost_or_done_twice_wherever_a_node_is_killed() {
    let mut runs = 0;
    for victim in 1..=3 {
        for disk_ops in 0..=2 {
            for step in 0.. {
                if !run(Crash { victim, step, disk_ops }) {
                    break;
                }
                runs += 1;
            }
        }
    }
    assert!(runs > 200, "{runs}");
}
