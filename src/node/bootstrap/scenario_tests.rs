//! Failures known from other systems, event by event.

use crate::node::bootstrap::model_tests::{Announcements, Event, Place, check, check_end, fair};

/// Places, some of which reach each other.
struct World {
    announcements: Announcements,
    places: Vec<Place>,
    reached: Vec<usize>,
}

impl World {
    fn new(of: usize, majority: bool) -> World {
        let mut announcements = Announcements::default();
        let places =
            (0..of).map(|index| Place::new(index, of, majority, &mut announcements)).collect();
        World { announcements, places, reached: Vec::new() }
    }

    fn happens(&mut self, at: usize, event: Event) {
        if let Some(after) = self.places[at].after(event, &mut self.announcements) {
            self.places[at] = after;
        }
    }

    /// Delivers announcements among the places that reach each other until nothing changes.
    fn settle(&mut self) -> &mut World {
        for _ in 0..60 {
            let reached: Vec<&Place> = self.reached.iter().map(|at| &self.places[*at]).collect();
            for (index, event) in fair(&reached, &self.announcements) {
                self.happens(self.reached[index], event);
            }
            check(&self.places.iter().collect::<Vec<_>>()).unwrap();
        }
        self
    }

    fn reach(&mut self, places: &[usize]) -> &mut World {
        self.reached = places.to_vec();
        self.settle()
    }

    fn clusters(&self) -> Vec<u64> {
        self.places.iter().map(Place::cluster).collect()
    }

    fn end(&mut self) {
        self.reach(&(0..self.places.len()).collect::<Vec<_>>());
        check_end(&self.places.iter().collect::<Vec<_>>()).unwrap();
    }
}

/// Scenario 1: each resolver answers with some of the addresses first, in every order.
#[test]
fn partial_answers_of_a_resolver_found_nothing() {
    for first in [0, 1, 2] {
        for second in [0, 1, 2] {
            let mut world = World::new(3, false);
            world.reach(&[first]);
            let mut some = vec![first, second];
            some.dedup();
            world.reach(&some);
            assert_eq!(world.clusters(), [0, 0, 0]);
            world.end();
        }
    }
}

/// Scenario 2: one node is wiped, and another is down. A third, blank node must not found a cluster
/// with the wiped one.
#[test]
fn a_wiped_one_and_one_that_is_down_found_nothing_new() {
    for low in [false, true] {
        let mut world = World::new(3, false);
        world.end();
        let cluster = world.clusters()[2];
        world.happens(0, Event::Wipe { low });
        world.happens(1, Event::Wipe { low });
        world.reach(&[0, 1]);
        assert_eq!(world.clusters(), [0, 0, cluster]);
        world.reach(&[0, 1, 2]);
        assert_eq!(world.clusters(), [cluster; 3], "they join what there is");
        assert!(world.places[0].genesis().is_none());
    }
}

/// Scenario 2, with the option: one of the two founders is wiped. It meets the third node, which
/// knows of no cluster, and reaches the other founder.
#[test]
fn a_majority_that_reaches_one_with_a_cluster_joins_it() {
    let mut world = World::new(3, true);
    world.happens(0, Event::Late);
    world.happens(2, Event::Late);
    world.reach(&[0, 2]);
    let [cluster, 0, same] = world.clusters()[..] else { panic!("{:?}", world.clusters()) };
    assert_eq!(cluster, same);
    world.happens(0, Event::Wipe { low: true });
    world.happens(0, Event::Late);
    world.happens(1, Event::Late);
    // The one that still has it vetoes.
    world.reach(&[0, 1, 2]);
    assert_eq!(world.clusters(), [cluster; 3]);
}

/// Scenario 3: two nodes are blank and one has a cluster, with and without the option.
#[test]
fn two_blank_ones_join_an_old_one() {
    for majority in [false, true] {
        let mut world = World::new(3, majority);
        world.end();
        let cluster = world.clusters()[0];
        for at in [1, 2] {
            world.happens(at, Event::Wipe { low: true });
            world.happens(at, Event::Late);
        }
        world.reach(&[0, 1, 2]);
        assert_eq!(world.clusters(), [cluster; 3]);
        assert!(world.places[1].genesis().is_none());
    }
}

/// A blank node receives a peer's announcement of a cluster just before the peer is killed. Then
/// all disks are lost, so no node of that cluster can come back.
#[test]
fn a_veto_does_not_outlive_the_disks_of_the_whole_list() {
    let mut world = World::new(3, false);
    world.end();
    let cluster = world.clusters()[0];
    let last = world.places[0].current;
    world.happens(2, Event::Wipe { low: true });
    world.happens(2, Event::ReceiveUnconnected(last));
    // The other two cannot found a cluster without it, since it may come back.
    world.happens(1, Event::Wipe { low: true });
    world.reach(&[1, 2]);
    assert_eq!(world.clusters(), [cluster, 0, 0]);
    world.happens(0, Event::Wipe { low: true });
    world.end();
    assert_ne!(world.clusters()[0], cluster);
}

/// The same, with the option: a node that knows of a cluster founds none with only a part of the
/// list.
#[test]
fn a_majority_founds_nothing_while_it_knows_of_a_cluster() {
    let mut world = World::new(3, true);
    for at in 0..2 {
        world.happens(at, Event::Late);
    }
    world.reach(&[0, 1]);
    let cluster = world.clusters()[0];
    let last = world.places[0].current;
    world.happens(2, Event::Late);
    world.happens(2, Event::ReceiveUnconnected(last));
    world.happens(1, Event::Wipe { low: true });
    world.happens(1, Event::Late);
    world.reach(&[1, 2]);
    assert_eq!(world.clusters(), [cluster, 0, 0]);
    let problem = world.places[2].problem().unwrap();
    assert!(problem.contains("a:1 belonged to the cluster"), "{problem}");
    // Losing the connection once more changes nothing.
    world.happens(2, Event::Lose(world.places[0].disk.id));
    world.reach(&[1, 2]);
    assert_eq!(world.clusters(), [cluster, 0, 0]);
    // The node comes back, and the others join its cluster.
    world.reach(&[0, 1, 2]);
    assert_eq!(world.clusters(), [cluster; 3]);
}

/// The same, and its disk is lost too: with the whole list present, there is no node to wait for.
#[test]
fn a_majority_founds_again_once_the_whole_list_is_blank() {
    let mut world = World::new(3, true);
    for at in 0..2 {
        world.happens(at, Event::Late);
    }
    world.reach(&[0, 1]);
    let cluster = world.clusters()[0];
    world.happens(2, Event::ReceiveUnconnected(world.places[0].current));
    for at in 0..2 {
        world.happens(at, Event::Wipe { low: true });
        world.happens(at, Event::Late);
    }
    world.happens(2, Event::Late);
    world.reach(&[0, 1]);
    // The two know of no cluster, and found one: the risk of that option. The third node joins it.
    let [new, other, 0] = world.clusters()[..] else { panic!("{:?}", world.clusters()) };
    assert_eq!(new, other);
    assert_ne!(new, cluster);
    world.reach(&[0, 1, 2]);
    assert_eq!(world.clusters(), [new; 3]);
}

/// Scenario 8: all are stopped in the midst of founding, and start in every order.
#[test]
fn all_stop_at_once_and_start_in_every_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        for stop_after in 0..24 {
            let mut world = World::new(3, false);
            let mut left = stop_after;
            'founding: loop {
                let all: Vec<&Place> = world.places.iter().collect();
                let events = fair(&all, &world.announcements);
                for (at, event) in events {
                    if left == 0 {
                        break 'founding;
                    }
                    left -= 1;
                    world.happens(at, event);
                }
            }
            for at in 0..3 {
                world.happens(at, Event::Crash);
            }
            world.reach(&order[..1]);
            world.reach(&order[..2]);
            world.end();
        }
    }
}
