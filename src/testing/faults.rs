//! What is done to the nodes of an in-memory cluster, and to the network between them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::links::Link;
use super::nodes::Nodes;
use crate::node::io::Input;
use crate::runtime::clock::{Clock, TimeSource};

/// The clocks of one node: those of the cluster, with a wall clock that may differ.
#[derive(Debug)]
pub(super) struct NodeTime {
    cluster: Clock,
    ahead_ms: AtomicI64,
}

impl NodeTime {
    pub(super) fn new(cluster: Clock) -> NodeTime {
        NodeTime { cluster, ahead_ms: AtomicI64::new(0) }
    }
}

impl TimeSource for NodeTime {
    fn now(&self) -> Duration {
        self.cluster.now()
    }

    fn wall_ms(&self) -> u64 {
        self.cluster.wall_ms().saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed))
    }

    fn park_until(&self, deadline: Option<Duration>) {
        self.cluster.park_until(deadline);
    }
}

impl Nodes {
    /// Puts each node in a group.
    pub(super) fn regroup(&mut self, groups: Vec<usize>) {
        self.links.regroup(groups);
        for node in 0..self.slots.len() {
            for other in 0..self.slots.len() {
                self.meet(node, other);
            }
        }
        self.run_until_idle();
    }

    pub(super) fn cut(&mut self, link: Link) {
        self.links.cut(link);
    }

    pub(super) fn delay(&mut self, link: Link, by: Duration) {
        self.links.delay(link, by);
    }

    /// Ends what was done to the network.
    pub(super) fn heal(&mut self) {
        self.links.heal();
        self.regroup(Vec::new());
    }

    pub(super) fn freeze(&mut self, node: usize, is_frozen: bool) {
        self.run_until_idle();
        self.quiet.end(&self.clock);
        self.slots[node].is_frozen = is_frozen;
        self.run_until_idle();
    }

    pub(super) fn set_clock(&mut self, node: usize, ahead_ms: i64) {
        self.slots[node].clock.ahead_ms.store(ahead_ms, Ordering::Relaxed);
    }

    pub(super) fn fill_disk(&mut self, node: usize, is_full: bool) {
        self.quiet.end(&self.clock);
        self.slots[node].is_full = is_full;
        if let Some(running) = &mut self.slots[node].running {
            running.host.input(disk_space(is_full));
        }
        self.run_until_idle();
    }
}

/// What a disk without room reports, or one with plenty.
pub(super) fn disk_space(is_full: bool) -> Input {
    Input::DiskSpace { free: if is_full { 0 } else { 1 << 40 }, total: 1 << 40 }
}
