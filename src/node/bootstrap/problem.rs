//! What a node without a cluster waits for, as text for people.

use std::collections::BTreeSet;

use crate::node::bootstrap::Founding;
use crate::node::bootstrap::message::{Announcement, normal};
use crate::node::io::Problem;
use crate::types::membership::{Member, Pledge};

impl Founding {
    /// Why there is no cluster yet; `None` once there is. Problems that a person must solve come
    /// before those that may pass.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.over {
            return None;
        }
        let why = self.in_the_way().unwrap_or_else(|| self.waits_for());
        Some(format!("no cluster yet: {why}"))
    }

    /// The peers that are connected.
    pub(crate) fn met(&self) -> impl Iterator<Item = &Member> {
        self.announcements().map(|announcement| &announcement.member)
    }

    /// The addresses of the list where no peer was found, and why. The failures of peers that have been found
    /// since then do not count.
    pub(crate) fn not_reached(&self) -> impl Iterator<Item = (String, Problem)> {
        let met: BTreeSet<String> = self.met().map(|member| normal(&member.address)).collect();
        let failures = self.failures.iter();
        let left = failures.filter(move |(address, _)| !met.contains(&normal(address)));
        left.map(|(address, problem)| (address.clone(), problem.clone()))
    }

    fn in_the_way(&self) -> Option<String> {
        if let Some(hindrance) = &self.hindrance {
            return Some(hindrance.reason.clone());
        }
        let clusters = self.clusters();
        if clusters.len() > 1 {
            let announced = |cluster: &u64| {
                let by = self.announcements().find(|of| of.cluster == *cluster);
                let by = by.map_or("", |announcement| &announcement.member.address);
                format!("{by} belongs to {cluster:016x}")
            };
            let announced: Vec<String> = clusters.iter().map(announced).collect();
            return Some(format!("peers are of different clusters: {}", announced.join(", ")));
        }
        if self.remembered().is_none()
            && let Some(reason) = self.undiscovered()
        {
            return Some(reason);
        }
        if let Some(Announcement { member, list, .. }) = self.other_list() {
            return Some(self.differs(&member.address, list));
        }
        if let Some(address) = self.crowded() {
            let nodes = self.nodes_at(address).into_iter();
            let ids: Vec<String> = nodes.map(|member| format!("{:016x}", member.node)).collect();
            let ids = ids.join(", ");
            return Some(format!(
                "several instances say that they are {address} ({ids}): if that lasts, stop all \
                 but one"
            ));
        }
        // A reached peer's cluster is joined, so this peer is not reached.
        let (address, cluster) = self.remembered().filter(|_| clusters.is_empty())?;
        Some(format!(
            "{address} belonged to the cluster {cluster:016x} when it was last heard of, and is not \
             reached: this instance joins that cluster when it reaches one of it; if that cluster is \
             gone for good, give the peers that were of it empty directories and restart this instance"
        ))
    }

    fn waits_for(&self) -> String {
        let announced: BTreeSet<String> =
            self.announcements().map(|announcement| normal(&announcement.member.address)).collect();
        let own = normal(&self.me.address);
        let reached = |address: &String| *address == own || announced.contains(address);
        let missing: Vec<&str> =
            self.list.iter().filter(|address| !reached(address)).map(String::as_str).collect();
        let missing = missing.join(", ");
        let Some(present) = self.present() else {
            return format!(
                "this instance, {}, is not one of the peers that it was given, so it founds none \
                 but waits for theirs; not reached: {missing}",
                self.me.address
            );
        };
        if present.nodes.len() < present.needed {
            return format!(
                "it takes {} of the peers {}; not reached: {missing}",
                present.needed,
                self.list.join(", ")
            );
        }
        // The pledge on which all others wait.
        let pledges = present.nodes.values().filter_map(|(_, promise)| promise.pledge.as_ref());
        if let Some(Pledge { genesis, .. }) = pledges.max_by_key(|pledge| pledge.ballot)
            && !present.outlives(genesis)
            && let gone @ [_, ..] = present.gone(genesis).as_slice()
        {
            let gone = addresses(gone);
            return match self.discovery {
                Some(_) => format!(
                    "a cluster was agreed upon with {gone}, which may have founded it: it must \
                     come back; if it is gone for good and no instance is ready, give all \
                     instances empty directories and start them again"
                ),
                None => format!(
                    "a cluster was agreed upon with {gone}, which may have founded it: it must \
                     come back, or all of the peers {} must be there",
                    self.list.join(", ")
                ),
            };
        }
        let nodes = present.nodes.values();
        let behind = nodes.filter(|(_, promise)| promise.ballot < self.durable.ballot);
        match behind.map(|(member, _)| *member).collect::<Vec<_>>().as_slice() {
            [] => "the peers are agreeing on one".to_owned(),
            behind => {
                format!("the peers are agreeing on one; not answered yet: {}", addresses(behind))
            }
        }
    }
}

fn addresses(members: &[&Member]) -> String {
    let addresses: Vec<&str> = members.iter().map(|member| member.address.as_str()).collect();
    addresses.join(", ")
}
