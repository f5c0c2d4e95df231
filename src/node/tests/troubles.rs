//! What members know of one that is silent: what it has told them before.

use std::time::Duration;

use crate::node::io::{HostFacts, Input, Problem};
use crate::node::tests::harness::Cluster;
use crate::types::certificate::Expiry;
use crate::types::membership::NodeId;

const SECOND: Duration = Duration::from_secs(1);

/// What one node says that another has last told it, and how long ago.
fn last(cluster: &Cluster, at: NodeId, of: NodeId) -> Option<(Duration, String)> {
    let reports = cluster.node(at).status().last_reports;
    let (_, (told, text)) = reports.into_iter().find(|(node, _)| *node == of)?;
    Some((cluster.clock().mono - told, text))
}

/// The node is silent, and all others notice that.
fn lose(cluster: &mut Cluster, lost: NodeId) {
    cluster.isolate(lost);
    for node in (1..=3).filter(|node| *node != lost) {
        let problem = Problem { reason: "connection refused".to_owned(), refused: false };
        cluster.input(node, Input::Unreachable { peer: lost, problem });
    }
    cluster.settle();
}

/// A member that had filled its disk was only "connection refused" once it had stopped.
#[test]
fn the_last_report_of_a_full_disk_is_kept() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let (full, other) = (cluster.follower(), cluster.leader().unwrap());
    cluster.advance(3 * SECOND);
    cluster.input(full, Input::DiskSpace { free: 0, total: 100 << 30 });
    cluster.advance(2 * SECOND);
    assert_eq!(last(&cluster, other, full), None, "it can be reached, and reports itself");
    lose(&mut cluster, full);
    cluster.advance(40 * SECOND);
    for node in (1..=3).filter(|node| *node != full) {
        let (age, text) = last(&cluster, node, full).unwrap();
        assert_eq!(text, "its disk is nearly full: 0 B of room");
        assert!((40..46).contains(&age.as_secs()), "{age:?}");
    }
    // It is back, with room.
    cluster.heal();
    cluster.input(full, Input::DiskSpace { free: 90 << 30, total: 100 << 30 });
    cluster.advance(5 * SECOND);
    lose(&mut cluster, full);
    assert_eq!(last(&cluster, other, full), None);
}

#[test]
fn the_reason_for_which_a_member_stopped_is_kept_until_it_is_back() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let (failed, other) = (cluster.follower(), cluster.leader().unwrap());
    cluster.fail_disk(failed);
    cluster.settle();
    lose(&mut cluster, failed);
    let text = "it stops: the disk failed: no space".to_owned();
    assert_eq!(last(&cluster, other, failed), Some((Duration::ZERO, text)));
    cluster.heal();
    cluster.kill(failed);
    cluster.start(failed);
    cluster.settle();
    lose(&mut cluster, failed);
    assert_eq!(last(&cluster, other, failed), None, "that is a former process's");
}

#[test]
fn a_disk_that_hangs_and_a_certificate_that_expires_are_told() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let (ill, other) = (cluster.follower(), cluster.leader().unwrap());
    cluster.advance(3 * SECOND);
    let now = cluster.clock();
    let at = i64::try_from(now.wall_ms / 1000).unwrap() + 90 * 60;
    let certificate = Some(Expiry::new("member", "its certificate", None, at));
    let facts = HostFacts { certificate, former_directories: 2, disk_hangs_since: Some(now.mono) };
    cluster.input(ill, Input::Host(facts));
    cluster.advance(4 * SECOND);
    lose(&mut cluster, ill);
    let (_, text) = last(&cluster, other, ill).unwrap();
    let (disk, certificate) = text.split_once("; ").unwrap();
    assert!(disk.starts_with("its disk has not answered for "), "{text}");
    assert_eq!(certificate, "its certificate expires within 2 h");
}
