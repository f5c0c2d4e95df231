//! A bug that is planted against taking over what a former run has left. In the simulator, two members of a group
//! seldom want one name while nothing else is wrong.

use super::Cluster;
use crate::planted::{Bug, plant};
use crate::recipes::Group;

#[test]
fn a_name_that_is_taken_from_a_living_session_is_lost_at_once() {
    let cluster = Cluster::new(3);
    let group = |node| Group::new(&cluster.node(node).session(), "/group").unwrap();
    let member = group(0).join("zero", b"").wait().unwrap();
    assert!(group(1).try_join("zero", b"").wait().unwrap().is_none() && member.is_held());
    // On the cluster's thread, where the nodes run.
    cluster.order(|_| plant(Some(Bug::TakenFromLiving)));
    let taken = group(1).try_join("zero", b"").wait().unwrap();
    cluster.order(|_| plant(None));
    assert!(taken.is_some_and(|member| member.is_held()), "the bug has an effect");
    cluster.node(0).session().sync().wait().unwrap();
    assert!(!member.is_held());
}
