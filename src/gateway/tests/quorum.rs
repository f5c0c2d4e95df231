//! Clients of an instance that loses its quorum, without read-only mode.

use super::read_only::{wait_until, word};
use super::*;
use crate::api::coordinator::Coordinator;
use crate::gateway::turns::SWEEP;
use crate::gateway::words::NOT_SERVING;
use crate::types::znode::CreateMode;

/// Pings until the connection is closed, while the clock advances. Returns whether it was.
fn is_closed(cluster: &Cluster, client: &mut Client, within: Duration) -> bool {
    let steps = within.as_millis() / SWEEP.as_millis();
    (0..=steps).any(|_| {
        cluster.advance(SWEEP);
        client.try_ask(&Request::Ping).is_none()
    })
}

/// An instance without a quorum answered the pings of its clients until their sessions were nearly over, and
/// left new clients without an answer for ever.
#[test]
fn without_a_quorum_clients_are_disconnected_and_refused() {
    let (least, most) = (Duration::from_secs(60), Duration::from_secs(120));
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().session_timeout_bounds(least, most));
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    cluster.node(0).session().create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    let mut client = Client::dial(&gateway);
    let opened = client.greet(0, 0, Bytes::new());
    let Credential(Some(password)) = opened.password.clone() else { panic!("{opened:?}") };
    assert_eq!(word(&gateway, "isro"), "rw");

    cluster.isolate(0);
    // It knows the loss after a few heartbeats, and disconnects a tick later: far sooner than the session ends.
    assert!(is_closed(&cluster, &mut client, least / 2));
    for read_only in [false, true] {
        assert!(Client::dial(&gateway).hello(0, 0, Bytes::new(), read_only).is_none());
    }
    let resumes = |gateway: &Gateway| {
        let resumed = Client::dial(gateway).hello(0, opened.session_id, password.clone(), false);
        resumed.map(|response| response.session_id)
    };
    assert_eq!(resumes(&gateway), None);
    for not_answered in ["srvr", "stat", "mntr", "conf", "dirs", "wchs"] {
        assert_eq!(word(&gateway, not_answered), NOT_SERVING, "{not_answered}");
    }
    assert_eq!((word(&gateway, "ruok"), word(&gateway, "isro")), ("imok".into(), "null".into()));

    // Elsewhere there is a quorum, and the session goes on.
    let other = Gateway::serve(&cluster.node(1), "127.0.0.1:0").unwrap();
    assert_eq!(resumes(&other), Some(opened.session_id));
    cluster.heal();
    wait_until(&cluster, &gateway, "rw");
    assert_eq!(resumes(&gateway), Some(opened.session_id));
}

#[test]
fn a_short_loss_of_the_quorum_disconnects_nobody() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().tick(Duration::from_secs(60)));
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let mut client = Client::open(&gateway);
    cluster.isolate(0);
    let lost = (0..400).any(|_| {
        cluster.advance(Duration::from_millis(50));
        matches!(cluster.node(0).availability(), crate::Availability::NoQuorum { .. })
    });
    assert!(lost, "the quorum is lost");
    // Less than a tick.
    assert!(!is_closed(&cluster, &mut client, 20 * SWEEP));
    cluster.heal();
    assert!(!is_closed(&cluster, &mut client, 20 * SWEEP));
    assert_eq!(client.code(&create("/a", b"")), ErrorCode::Ok);
}

#[test]
fn an_instance_that_has_started_alone_refuses_clients() {
    let cluster = Cluster::new(3);
    (0..3).for_each(|node| cluster.stop(node));
    cluster.restart(0);
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    wait_until(&cluster, &gateway, "null");
    assert!(Client::dial(&gateway).hello(0, 0, Bytes::new(), false).is_none());
}
