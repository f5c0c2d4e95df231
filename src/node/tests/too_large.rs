//! Writes that are so large that no message could carry them, or their results.

use std::time::Duration;

use crate::machine::RESULTS_BYTES_MAX;
use crate::machine::command::{Command, Op, Outcome, Reply, Request};
use crate::node::client_message::{FromClient, ToClient};
use crate::node::message::{COMMAND_BYTES_MAX, MESSAGE_BYTES_MAX, PeerMessage};
use crate::node::query::Answer;
use crate::node::tests::harness::{Cluster, HEARTBEAT};
use crate::types::error::Error;
use crate::types::path::PATH_BYTES_MAX;
use crate::types::queue::QueueOrder;
use crate::types::znode::{CreateMode, Created, OpResult, SessionId, Stat};

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
        let refused = cluster.write(node, session, Command::Multi(deletes(MESSAGE_BYTES_MAX)));
        let behind = cluster.set(node, session, "/", "1");
        let Err(Error::Multi { index, error }) = cluster.answer(refused) else { panic!() };
        let Error::TooLarge { size, limit, .. } = *error else { panic!("{error:?}") };
        assert_eq!(limit, COMMAND_BYTES_MAX as u64);
        assert!(size > limit && index < MESSAGE_BYTES_MAX / PATH_BYTES_MAX);
        cluster.answer(behind).unwrap();

        let id = "i".repeat(MESSAGE_BYTES_MAX);
        let order = Box::new(QueueOrder { priority: 0, delay_ms: 0, id, max: None });
        let put = Op::Put { path: "/queue".into(), data: "".into(), order };
        let refused = cluster.write(node, session, Command::Op(put));
        assert!(matches!(cluster.answer(refused), Err(Error::TooLarge { .. })));

        // The largest that is taken goes all the way.
        let largest =
            cluster.write(node, session, Command::Multi(deletes(COMMAND_BYTES_MAX - 65_536)));
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

/// Items of 4.5 MB were taken from a queue, and never answered: no message could carry the result. Nor could one carry
/// the state that had it to a new member.
#[test]
fn results_that_no_message_could_carry_are_refused() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    let session = cluster.open(leader, 1, TIMEOUT * 10);
    cluster.create(leader, session, "/q", CreateMode::Persistent).unwrap();
    for _ in 0..5 {
        let order = QueueOrder { priority: 0, delay_ms: 0, id: String::new(), max: None };
        let (path, data) = ("/q".into(), vec![7; 900_000].into());
        let put = Op::Put { path, data, order: Box::new(order) };
        let put = cluster.write(leader, session, Command::Op(put));
        cluster.answer(put).unwrap();
    }
    let takes = |count| vec![Op::Take { path: "/q".into(), claims: false }; count];
    let refused = cluster.write(leader, session, Command::Multi(takes(5)));
    let refused = cluster.answer(refused);
    // The result of this one stays in the state: nothing acknowledges it.
    let taken = cluster.write(leader, session, Command::Multi(takes(3)));
    let taken = cluster.answer(taken);
    // A new member needs the state. The harness sends nothing that is too long.
    cluster.add(4);
    cluster.advance(HEARTBEAT * 50);
    assert_eq!(cluster.node(4).metrics().snapshots_installed, 1);
    cluster.check_equal();

    let Err(Error::Multi { index: 3, error }) = refused else { panic!("{refused:?}") };
    let Error::TooLarge { size, limit, .. } = *error else { panic!("{error:?}") };
    assert_eq!(limit, RESULTS_BYTES_MAX as u64);
    assert!(size > limit);
    let Ok(Answer::Reply(Reply::Multi(results))) = taken else { panic!("{taken:?}") };
    assert_eq!(results.len(), 3);
}

/// The results of a request have room in a message, whatever they are.
#[test]
fn the_longest_results_fit_into_a_message() {
    let stat = Stat {
        czxid: 1 << 48,
        mzxid: 1 << 48,
        pzxid: 1 << 48,
        ctime: 1 << 42,
        mtime: 1 << 42,
        ephemeral_owner: Some(SessionId(u64::MAX)),
        ..Stat::default()
    };
    let created = |bytes| Created { path: "p".repeat(bytes), stat };
    let taken = |bytes| {
        let (path, data) = ("p".repeat(bytes), vec![7; bytes]);
        OpResult::Taken { path, data, claim: Some(created(bytes)) }
    };
    let all = [
        OpResult::Created(created(0)),
        OpResult::Created(created(PATH_BYTES_MAX)),
        OpResult::Set(stat),
        OpResult::AclSet(stat),
        OpResult::Deleted,
        OpResult::Checked,
        OpResult::Added { after: i64::MIN, stat },
        taken(0),
        taken(PATH_BYTES_MAX),
    ];
    for one in all {
        let count = RESULTS_BYTES_MAX / one.size();
        let result = Ok(Reply::Multi(vec![one; count]));
        let outcome = Outcome { session: SessionId(1), holder: 1, seq: 1, zxid: 1, result };
        let updates = vec![ToClient::Outcome(outcome)];
        let message = PeerMessage::ToClient { attachment: 1, number: 1, updates, up_to: None };
        assert!(!message.is_too_long(), "{count} results");
    }
}
