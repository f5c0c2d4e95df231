//! The leader hands over to a voter that is wanted more, if that is fit to lead.

use std::time::Duration;

use crate::node::tests::harness::Cluster;
use crate::types::membership::NodeId;
use crate::types::znode::CreateMode;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than a leader observes the members before it hands over.
const SETTLED: Duration = Duration::from_secs(40);

/// Three members, of which the last is wanted as the leader.
fn cluster() -> (Cluster, NodeId) {
    let mut cluster = Cluster::new(3);
    let wanted = 3;
    cluster.priorities.insert(wanted, 1);
    for id in 1..=3 {
        cluster.kill(id);
    }
    (1..=3).for_each(|id| cluster.start(id));
    (cluster, wanted)
}

fn until_it_leads(cluster: &mut Cluster, wanted: NodeId) {
    let end = cluster.now + SETTLED;
    while cluster.leader() != Some(wanted) {
        assert!(cluster.now < end, "{:?} leads", cluster.leader());
        cluster.advance(SECOND / 10);
    }
}

#[test]
fn the_wanted_member_leads_whoever_was_elected() {
    let (mut cluster, wanted) = cluster();
    cluster.elect();
    until_it_leads(&mut cluster, wanted);
    let term = cluster.node(wanted).status().term;
    cluster.advance(2 * SETTLED);
    assert_eq!(cluster.node(wanted).status().term, term, "it stays the leader");

    // Without it, an election takes no longer, and it has the lead again when it is back for a while.
    cluster.kill(wanted);
    let other = cluster.elect();
    assert_ne!(other, wanted);
    cluster.start(wanted);
    until_it_leads(&mut cluster, wanted);
    // Also after an operator has moved the lead.
    cluster.resign(wanted);
    cluster.advance(SECOND);
    assert_ne!(cluster.leader(), Some(wanted));
    until_it_leads(&mut cluster, wanted);
}

#[test]
fn a_member_whose_disk_hangs_is_not_made_the_leader() {
    let (mut cluster, wanted) = cluster();
    cluster.hosts.get_mut(&wanted).unwrap().disk_stalled = true;
    let leader = cluster.elect();
    assert_ne!(leader, wanted);
    let session = cluster.open(leader, 1, Duration::from_secs(30));
    let end = cluster.now + 2 * SETTLED;
    for count in 0.. {
        // Its disk stores none of these.
        let path = format!("/{count}");
        cluster.create(leader, session, &path, CreateMode::Persistent).unwrap();
        cluster.advance(SECOND);
        assert_eq!(cluster.leader(), Some(leader));
        if cluster.now > end {
            break;
        }
    }
    cluster.hosts.get_mut(&wanted).unwrap().disk_stalled = false;
    until_it_leads(&mut cluster, wanted);
}
