//! Writes that are so large that no message could carry them.

use std::time::Duration;

use crate::machine::command::{Command, Op, Request};
use crate::node::client_message::FromClient;
use crate::node::io::Write;
use crate::node::message::{COMMAND_BYTES_MAX, MESSAGE_BYTES_MAX, PeerMessage};
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::error::Error;
use crate::types::path::PATH_BYTES_MAX;
use crate::types::queue::QueueOrder;

const TIMEOUT: Duration = Duration::from_secs(6);

/// Deletes with the longest paths, of about this many bytes together.
fn deletes(bytes: usize) -> Vec<Op> {
    let path = format!("/{}", "d".repeat(PATH_BYTES_MAX - 1));
    vec![Op::Delete { path: path.into(), version: None }; bytes / PATH_BYTES_MAX]
}

/// The leader took it in and could never send the entry. All later writes waited behind it, until the leader was
/// started again. A follower could never send it to the leader, and its session waited.
#[test]
fn a_write_that_no_message_could_carry_is_refused() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    for (session, node) in [(1, leader), (2, cluster.follower())] {
        let session = cluster.open(node, session, TIMEOUT);
        let refused = cluster.write(node, session, Write::Multi(deletes(MESSAGE_BYTES_MAX)));
        let behind = cluster.set(node, session, "/", "1");
        let Err(Error::Multi { index, error }) = cluster.answer(refused) else { panic!() };
        let Error::TooLarge { size, limit, .. } = *error else { panic!("{error:?}") };
        assert_eq!(limit, COMMAND_BYTES_MAX as u64);
        assert!(size > limit && index < MESSAGE_BYTES_MAX / PATH_BYTES_MAX);
        cluster.answer(behind).unwrap();

        let id = "i".repeat(MESSAGE_BYTES_MAX);
        let order = Box::new(QueueOrder { priority: 0, delay_ms: 0, id, max: None });
        let put = Op::Put { path: "/queue".into(), data: "".into(), order };
        let refused = cluster.write(node, session, Write::Op(put));
        assert!(matches!(cluster.answer(refused), Err(Error::TooLarge { .. })));

        // The largest that is taken goes all the way.
        let largest =
            cluster.write(node, session, Write::Multi(deletes(COMMAND_BYTES_MAX - 65_536)));
        let Err(Error::Multi { error, .. }) = cluster.answer(largest) else { panic!() };
        assert!(matches!(*error, Error::NoNode { .. }), "{error:?}");
    }
    cluster.advance(HEARTBEAT * 2);
    cluster.check_equal();
}

/// What no honest instance sends must not stop a cluster either.
#[test]
fn a_leader_takes_in_nothing_that_no_append_could_carry() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let node = cluster.follower();
    let (session, other) = (cluster.open(node, 1, TIMEOUT), cluster.open(leader, 2, TIMEOUT));
    let holder = session.0 * 1000;
    let command = Command::Multi(deletes(MESSAGE_BYTES_MAX));
    let request = Request { session, holder, seq: 1, acked: 1, command };
    let forward = PeerMessage::Forward { requests: vec![request.clone()] };
    cluster.deliver(node, leader, forward);
    cluster.settle();
    for (at, session) in [(node, session), (leader, other)] {
        let set = cluster.set(at, session, "/", "1");
        cluster.answer(set).unwrap();
    }

    // A member does not even pass it on.
    let client = 9;
    let begin = FromClient::Begin { seen: 0, cluster: 0, name: String::new() };
    let messages = [vec![begin, FromClient::Begun], vec![FromClient::Write(request)]];
    for (number, messages) in (0..).zip(messages) {
        let (attachment, received) = (1, 0);
        let message = PeerMessage::FromClient { attachment, number, received, messages };
        cluster.deliver(client, node, message);
    }
    cluster.settle();
    let let_go = |(from, to, message): &(u64, u64, PeerMessage)| {
        (*from, *to) == (node, client) && matches!(message, PeerMessage::LetGo { .. })
    };
    assert!(cluster.elsewhere.iter().any(let_go));
}
