//! Founding a cluster with the instances that one name stands for, in place of a list of peers.
//!
//! The name's addresses are looked up again and again. While there are at least as many as expected
//! and this node's own is one of them, they are the list of [`Founding`], which changes with them.
//! The rest is the same: every address that the name shows must have a live, blank node with the
//! same list before any node promises anything.
//!
//! Two rules are stricter than for a list that a person wrote. There an address stands for one
//! instance. Here it may pass to another instance while the former one lives on elsewhere. So a
//! blank node at the address of another node proves nothing:
//!
//! - A pledge is never given up. All members of its genesis must come back, or the nodes that have
//!   pledged it must lose their disks, too. So a pledge is as good as a vote: of two geneses with a
//!   common member that keeps its disk, at most one is chosen.
//! - A veto is never forgotten while the process runs.
//!
//! One risk remains: a second founding by nodes none of which was a member of the first. These must
//! be as many as are expected, and all blank. The name must show no member to any of them, and no
//! member may reach any of them. Such nodes cannot know of the first cluster.

use crate::node::bootstrap::Founding;
use crate::node::bootstrap::message::{LIST_MAX, normal, normalised};
use crate::node::io::Discovered;
use crate::types::membership::Genesis;

impl Founding {
    /// From now on, the cluster is founded with the instances at these addresses.
    pub(crate) fn discovered(&mut self, discovered: Discovered) {
        let mut list = normalised(&discovered.addresses);
        let is_enough = (discovered.expected..=LIST_MAX).contains(&list.len());
        if !discovered.founds || !is_enough || !list.contains(&normal(&self.me.address)) {
            list.clear();
        }
        self.discovery = Some(discovered);
        if list != self.list {
            self.list = list;
            self.announce_again();
        }
    }

    /// Whether this node may pledge this genesis in place of its own. If it is a member of the genesis,
    /// the proposer that drew it has seen this node's pledge.
    pub(super) fn may_follow(&self, genesis: &Genesis) -> bool {
        let pledged = self.durable.pledge.as_ref().filter(|_| self.discovery.is_some());
        pledged.is_none_or(|own| {
            own.genesis == *genesis || genesis.members.iter().any(|of| of.node == self.me.node)
        })
    }

    /// Why no cluster can be founded with the name's addresses.
    pub(super) fn undiscovered(&self) -> Option<String> {
        let Discovered { name, expected, founds, addresses } =
            self.discovery.as_ref().filter(|_| self.list.is_empty())?;
        let (count, shown) = (addresses.len(), addresses.join(", "));
        Some(if !founds {
            format!("this instance only joins a cluster; {name} has the addresses {shown}")
        } else if count == 0 {
            format!("the addresses of {name} are not known yet, or change")
        } else if count > LIST_MAX {
            format!(
                "{name} has {count} addresses, and {LIST_MAX} instances can found a cluster at most"
            )
        } else if count < *expected {
            format!("{expected} instances are expected, and {name} has {count} addresses ({shown})")
        } else {
            format!(
                "{name} does not have the address of this instance, {}, but {shown}: if that lasts, \
                 name this instance's own by Builder::advertise",
                self.me.address
            )
        })
    }

    /// How two lists come to differ.
    pub(super) fn differs(&self, address: &str, theirs: &[String]) -> String {
        let shown = |list: &[String]| match list {
            [] if self.discovery.is_some() => "too few addresses, or none that last".to_owned(),
            list => list.join(", "),
        };
        let (theirs, own, ours) = (shown(theirs), &self.me.address, shown(&self.list));
        match &self.discovery {
            Some(Discovered { name, .. }) => format!(
                "{name} does not stand for the same instances everywhere: {address} sees {theirs}, \
                 and this instance, {own}, sees {ours}"
            ),
            None => format!(
                "{address} was given the peers {theirs}, and this instance, {own}, was given {ours}: \
                 give all instances the same list"
            ),
        }
    }
}
