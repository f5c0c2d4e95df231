//! A name of a living member that another session takes over. In the simulator, two members of a group seldom want one
//! name while nothing else is wrong.

use super::Cluster;
use crate::recipes::Group;

#[test]
fn a_name_that_is_taken_from_a_living_session_is_lost_at_once() {
    let cluster = Cluster::new(3);
    let group = |node| Group::new(&cluster.node(node).session(), "/group").unwrap();
    let member = group(0).join("zero", b"").wait().unwrap();
    assert!(group(1).try_join("zero", b"").wait().unwrap().is_none() && member.is_held());
    let other = cluster.node(1).session();
    let holder = cluster.node(0).session().id();
    other.multi().take_over("/group/zero", b"", holder).commit().wait().unwrap();
    cluster.node(0).session().sync().wait().unwrap();
    assert!(!member.is_held());
}
