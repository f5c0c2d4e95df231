//! How the nodes of one list found a cluster, or find the one that exists.
//!
//! Each node without a cluster sends an [`Announcement`] to every peer that it reaches: its identity,
//! its list of peers, and its promises. A peer that announces a cluster vetoes the founding, and the
//! node joins that cluster. Where no cluster exists:
//!
//! 1. The node with the lowest id among the reachable ones proposes a ballot. The others promise it:
//!    from then on they take part in no earlier ballot.
//! 2. Once all have promised, the proposer picks a genesis. If any of them has pledged one, it picks
//!    that of the highest ballot. Otherwise it makes a new genesis with all of them as members. It
//!    pledges the genesis, and so do the others.
//! 3. A node starts from the genesis once it sees that all members have pledged it at one ballot, and
//!    it has not promised a later ballot itself.
//!
//! A promise or a pledge is on the disk before it is sent. Step 1 needs every listed address. With
//! the option `majority_after` it needs only a majority of them after that time.
//!
//! Why no second cluster arises: a node starts only from a genesis that was *chosen*, that is,
//! pledged at one ballot by all of its members, who are a majority of the list. The promises of a
//! later ballot come from a majority too, so at least one of them comes from such a member and
//! carries its pledge. The later ballot's genesis is therefore the same. (Single-decree Paxos:
//! Lamport, *Paxos Made Simple*, section 2.2.)
//!
//! A wiped disk comes back as another member. With the whole list that does no harm: once every
//! listed address has promised and has no cluster, every disk that still exists refuses all earlier
//! ballots. A genesis with a lost member can then be given up. With a majority it may do harm: three
//! of five found a cluster, one of them is wiped, and it meets the other two of the list while it
//! cannot reach the founders. This is the risk of that option. A node that sees only blank disks
//! cannot know of the cluster.
//!
//! The veto makes it safe to found with less than the whole list. A node remembers a veto for as long
//! as its process runs, even if it never reaches that peer again ([`Founding::remembered`]). With the
//! whole list it forgets the veto when a blank disk is at the address that the veto came from.
//!
//! # Invariants
//!
//! - A promise is durable before it is sent.
//! - A promise only grows. A pledge is made at the ballot that is promised.
//! - After its outcome a founding sends and promises nothing more.
//!
//! All of this assumes that each address stands for one node. `crate::addressing::names` checks that
//! for the names of the list. A node whose names fail the check takes no part.
//!
//! Instances without names of their own found a cluster by [`discovery`].
//!
//! # Caveats
//!
//! Proposers do not compete: a node promises only to the lowest node that it sees. If connections
//! among live nodes are broken, a majority may be unable to found until they are repaired.
//!
//! A node believes the first peer that announces a cluster. If a stray of another cluster reaches it
//! before its own peers do, it joins that cluster.

mod discovery;
pub(crate) mod driver;
#[cfg(test)]
mod explore_tests;
pub(crate) mod genesis;
pub(crate) mod message;
#[cfg(test)]
mod model_tests;
mod problem;
#[cfg(test)]
mod scenario_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::message::{Announcement, normal, normalised};
use crate::node::io::{Discovered, Hindrance, Problem, Time};
use crate::types::membership::{Ballot, Genesis, Member, Named, NodeId, Pledge, Promise};

/// How often a node repeats an unchanged announcement, which may have been lost.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(1);

/// For how many peers that are not on the list an announcement is kept, and for how many such addresses a
/// veto. Further ones are kept once some of these have gone.
const UNLISTED_MAX: usize = 64;

/// How a node without a cluster founds or joins one.
#[derive(Clone, Debug)]
pub(crate) struct Founding {
    me: Member,
    list: Vec<String>,
    /// The source of the list, if it was discovered and not written by a user.
    discovery: Option<Discovered>,
    /// The only cluster that this node may join, or 0.
    cluster: u64,
    /// The time from which a majority of the list is enough.
    majority_at: Option<Time>,
    seed: u64,
    /// The promise on the disk. Only this one is announced.
    durable: Promise,
    /// The promise that the disk is writing. Until it is durable, the node makes no other promise.
    writing: Option<Promise>,
    peers: BTreeMap<NodeId, Peer>,
    /// The clusters that peers have announced since this process started, by the peers' addresses.
    vetoes: BTreeMap<String, u64>,
    /// Why the names of the list forbid founding: see `crate::addressing::names`.
    hindrance: Option<Hindrance>,
    /// The last failures to find a peer at addresses of the list.
    failures: BTreeMap<String, Problem>,
    /// When the announcement is repeated.
    announce_at: Time,
    now: Time,
    over: bool,
}

#[derive(Clone, Debug, Default)]
struct Peer {
    /// Whether there is a connection. An earlier announcement counts from then on.
    connected: bool,
    /// Its last announcement since its connection was last lost.
    announcement: Option<Arc<Announcement>>,
    /// Whether it was sent this node's present announcement.
    sent: bool,
}

/// What the node must do after a step.
#[derive(Debug)]
pub(crate) struct Todo {
    /// Sent to peers; may be lost.
    pub(crate) messages: Vec<(NodeId, Announcement)>,
    /// Replaces the former promise on the disk, and is confirmed by [`Founding::written`].
    pub(crate) write: Option<Promise>,
    /// The node has found its cluster or founds it.
    pub(crate) outcome: Option<BootstrapOutcome>,
    /// When the next step is due, unless an event comes first.
    pub(crate) wake_at: Time,
}

/// How founding ends. The node announces its cluster only once that is durable: a crash before leaves a
/// node without a cluster, which must not have announced one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BootstrapOutcome {
    /// Start from this genesis.
    Found(Genesis),
    /// Become a member of this cluster, and never found another.
    Join { cluster: u64 },
}

/// The present peers of the list: one live node at each address, with the same list and without a
/// cluster.
struct PresentPeers<'a> {
    /// In the order of their ids, this node among them if it is listed.
    nodes: BTreeMap<NodeId, (&'a Member, &'a Promise)>,
    /// How many nodes are needed.
    needed: usize,
    /// Whether the whole list is needed. If so, it is known whose disks are lost.
    whole: bool,
}

impl Founding {
    /// `promise` is the one on the disk, `seed` is random for each start, and `cluster` is 0, or
    /// the cluster to which the directory belonged before it was replaced.
    pub(crate) fn new(
        me: Member,
        list: &[String],
        cluster: u64,
        majority_after: Option<Duration>,
        promise: Promise,
        seed: u64,
        now: Time,
    ) -> Founding {
        Founding {
            me,
            list: normalised(list),
            discovery: None,
            cluster,
            majority_at: majority_after.map(|after| now.saturating_add(after)),
            seed,
            durable: if planted!(PromiseForgotten) { Promise::default() } else { promise },
            writing: None,
            peers: BTreeMap::new(),
            vetoes: BTreeMap::new(),
            hindrance: None,
            failures: BTreeMap::new(),
            announce_at: now + ANNOUNCE_PERIOD,
            now,
            over: false,
        }
    }

    /// Keeps this node from founding a cluster, and from joining one if the hindrance forbids that;
    /// `None` lifts it. Its pledges stay, since other nodes may have started from them.
    pub(crate) fn hinder(&mut self, hindrance: Option<Hindrance>) {
        if let Some(hindrance) = &hindrance {
            let (node, reason) = (Named::of(self.me.node), &hindrance.reason);
            tracing::info!(%node, reason, "this instance founds no cluster for now");
        }
        self.hindrance = hindrance;
    }

    /// No peer was found at this address of the list.
    pub(crate) fn unreachable(&mut self, address: String, problem: Problem) {
        self.failures.insert(address, problem);
    }

    /// There is a new connection to the peer. Earlier messages may be lost.
    pub(crate) fn connected(&mut self, peer: NodeId) {
        if peer != self.me.node {
            let peer = self.peers.entry(peer).or_default();
            (peer.connected, peer.sent) = (true, false);
        }
    }

    /// The connection to the peer is lost. What the peer announced no longer counts.
    pub(crate) fn lost(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
    }

    /// Takes in a peer's announcement. One that no instance can have sent is dropped.
    pub(crate) fn take(&mut self, from: NodeId, announcement: Announcement) {
        self.take_shared(from, &Arc::new(announcement));
    }

    fn take_shared(&mut self, from: NodeId, announcement: &Arc<Announcement>) {
        if from == self.me.node || !announcement.is_valid(from) {
            return;
        }
        if announcement.cluster != 0 {
            self.remember(announcement);
        }
        let last = self.peers.get(&from).and_then(|peer| peer.announcement.as_ref());
        let stands = |of: &Announcement| {
            let pledged = of.promise.pledge.as_ref().map(|pledge| pledge.ballot);
            (of.cluster != 0, of.promise.ballot, pledged)
        };
        let stale = last.is_some_and(|last| stands(last) > stands(announcement));
        let is_new = last.is_none() && !self.listed(announcement);
        if stale || (is_new && self.unlisted() >= UNLISTED_MAX) {
            return;
        }
        self.peers.entry(from).or_default().announcement = Some(Arc::clone(announcement));
    }

    /// Notes the cluster that a peer has announced over any connection.
    fn remember(&mut self, announcement: &Announcement) {
        let address = normal(&announcement.member.address);
        let unlisted = self.vetoes.keys().filter(|address| !self.list.contains(address)).count();
        if unlisted >= UNLISTED_MAX && !self.listed(announcement) {
            // The remembered ones already veto.
            return;
        }
        let before = self.vetoes.insert(address, announcement.cluster);
        if before != Some(announcement.cluster) {
            let (node, address) = (Named::of(self.me.node), &announcement.member.address);
            let cluster = format_args!("{:016x}", announcement.cluster);
            tracing::info!(%node, address, cluster, "a peer belongs to a cluster: none is founded");
        }
    }

    /// The promise being written is durable.
    pub(crate) fn written(&mut self) {
        if let Some(promise) = self.writing.take() {
            self.durable = promise;
            self.announce_again();
        }
    }

    /// Decides what to do after all events so far.
    pub(crate) fn step(&mut self, now: Time) -> Todo {
        self.now = self.now.max(now);
        let mut todo =
            Todo { messages: Vec::new(), write: None, outcome: None, wake_at: Time::MAX };
        if self.over {
            return todo;
        }
        todo.outcome = self.outcome();
        if todo.outcome.is_some() {
            self.over = true;
            return todo;
        }
        if let Some(promise) = self.decide() {
            self.writing = Some(promise.clone());
            todo.write = Some(promise);
        }
        if self.now >= self.announce_at {
            self.announce_again();
            self.announce_at = self.now + ANNOUNCE_PERIOD;
        }
        todo.messages = self.unsent();
        let majority_at = self.majority_at.filter(|at| *at > self.now);
        todo.wake_at = majority_at.map_or(self.announce_at, |at| at.min(self.announce_at));
        todo
    }

    fn announce_again(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.sent = false);
    }

    fn unsent(&mut self) -> Vec<(NodeId, Announcement)> {
        let promise = match &self.writing {
            Some(promise) if planted!(PledgeUnsynced) => promise,
            _ => &self.durable,
        };
        let announcement = Announcement {
            member: self.me.clone(),
            list: self.list.clone(),
            cluster: self.cluster,
            promise: promise.clone(),
        };
        let lacks = |peer: &mut Peer| peer.connected && !std::mem::replace(&mut peer.sent, true);
        let to = self.peers.iter_mut().filter_map(|(id, peer)| lacks(peer).then_some(*id));
        to.map(|to| (to, announcement.clone())).collect()
    }

    fn listed(&self, announcement: &Announcement) -> bool {
        self.list.contains(&normal(&announcement.member.address))
    }

    /// How many announcements are kept of peers that are not on the list.
    fn unlisted(&self) -> usize {
        let all = self.peers.values().filter_map(|peer| peer.announcement.as_deref());
        all.filter(|announcement| !self.listed(announcement)).count()
    }

    /// The announcements of the peers that are connected.
    fn announcements(&self) -> impl Iterator<Item = &Announcement> {
        let connected = self.peers.values().filter(|peer| peer.connected);
        connected.filter_map(|peer| peer.announcement.as_deref())
    }

    fn outcome(&self) -> Option<BootstrapOutcome> {
        let may_join = self.hindrance.as_ref().is_none_or(|one| !one.forbids_joining);
        if self.cluster != 0 {
            return may_join.then_some(BootstrapOutcome::Join { cluster: self.cluster });
        }
        if self.vetoed() {
            let clusters = self.clusters();
            if let Some(Pledge { genesis, .. }) = &self.durable.pledge
                && clusters.contains(&genesis.cluster)
                && is_member(genesis, self.me.node)
            {
                return Some(BootstrapOutcome::Found(genesis.clone()));
            }
            // If there are several, a person must choose one.
            let only = clusters.first().filter(|_| clusters.len() == 1 && may_join);
            return only.map(|cluster| BootstrapOutcome::Join { cluster: *cluster });
        }
        if planted!(TwoFounders) {
            let present = self.present().filter(|present| present.nodes.len() >= present.needed);
            return present.map(|present| BootstrapOutcome::Found(self.draw(&present)));
        }
        self.chosen().cloned().map(BootstrapOutcome::Found)
    }

    /// Whether any peer announces a cluster, or has announced one that may still exist.
    fn vetoed(&self) -> bool {
        let announced = self.announcements().any(|announcement| announcement.cluster != 0);
        (announced || self.remembered().is_some()) && !planted!(VetoIgnored)
    }

    /// A cluster that a peer has announced, and the address of the peer, which may be unreachable now.
    ///
    /// It is forgotten only when there are blank nodes at that address and at all listed ones. Then
    /// there is no peer to wait for, and founding takes the promises of the whole list, which is
    /// safe without a veto. With [`discovery`] it is never forgotten.
    fn remembered(&self) -> Option<(&str, u64)> {
        let blank = |address: &String| {
            let blank = self.announcements().filter(|of| of.cluster == 0).map(|of| &of.member);
            blank.chain([&self.me]).any(|member| normal(&member.address) == *address)
        };
        let is_whole =
            self.discovery.is_none() && !self.vetoes.is_empty() && self.list.iter().all(blank);
        let mut vetoes = self.vetoes.iter().filter(|(address, _)| !(is_whole && blank(address)));
        let veto = vetoes.next().filter(|_| !planted!(VetoForgotten));
        veto.map(|(address, cluster)| (address.as_str(), *cluster))
    }

    /// The clusters that peers announce. A cluster announced from an address with a blank node is left
    /// out: one of the two nodes is gone, and its lost connection will show which.
    fn clusters(&self) -> BTreeSet<u64> {
        let announced = self.announcements().filter(|of| of.cluster != 0);
        let sole = announced.filter(|of| self.nodes_at(&normal(&of.member.address)).len() == 1);
        sole.map(|of| of.cluster).collect()
    }

    /// A genesis that all of its members have pledged, at the ballot that this node keeps to.
    fn chosen(&self) -> Option<&Genesis> {
        let pledge_of = |node| {
            let peer = self.peers.get(&node).filter(|peer| peer.connected)?;
            peer.announcement.as_ref()?.promise.pledge.as_ref()
        };
        let ignored = planted!(OwnPromiseIgnored);
        let stands = |own: &&Pledge| self.writing.is_none() && own.ballot == self.durable.ballot;
        let own = self.durable.pledge.as_ref().filter(stands).filter(|_| !ignored);
        let others = self.announcements().filter(|_| ignored);
        let others = others.filter_map(|announcement| announcement.promise.pledge.as_ref());
        let is_chosen = |pledge: &&Pledge| {
            let mut members = pledge.genesis.members.iter().map(|member| member.node);
            is_member(&pledge.genesis, self.me.node)
                && members.all(|node| node == self.me.node || pledge_of(node) == Some(*pledge))
        };
        own.into_iter().chain(others).find(is_chosen).map(|pledge| &pledge.genesis)
    }

    /// What to promise or pledge next, if anything.
    fn decide(&self) -> Option<Promise> {
        if self.writing.is_some() || self.hindered() {
            return None;
        }
        let present = self.present()?;
        let (lowest, (_, theirs)) = present.nodes.first_key_value()?;
        if *lowest == self.me.node {
            return self.propose(&present);
        }
        if theirs.ballot.proposer == *lowest && theirs.ballot > self.durable.ballot {
            return Some(Promise { ballot: theirs.ballot, pledge: self.durable.pledge.clone() });
        }
        let (_, proposal) = present.nodes.get(&self.durable.ballot.proposer)?;
        let pledge = proposal.pledge.as_ref()?;
        let new =
            pledge.ballot == self.durable.ballot && self.durable.pledge.as_ref() != Some(pledge);
        let new = new && self.may_follow(&pledge.genesis);
        new.then(|| Promise { ballot: self.durable.ballot, pledge: Some(pledge.clone()) })
    }

    /// The next promise of the node with the lowest id among the present ones.
    fn propose(&self, present: &PresentPeers<'_>) -> Option<Promise> {
        if present.nodes.len() < present.needed {
            return None;
        }
        let highest = present.nodes.values().map(|(_, promise)| promise.ballot).max()?;
        let next = Ballot { round: highest.round.saturating_add(1), proposer: self.me.node };
        let again = Some(Promise { ballot: next, pledge: self.durable.pledge.clone() });
        let ballot = self.durable.ballot;
        if ballot.proposer != self.me.node || ballot < highest {
            return again;
        }
        if let Some(pledge) = &self.durable.pledge
            && pledge.ballot == ballot
        {
            return if present.outlives(&pledge.genesis) { again } else { None };
        }
        if present.nodes.values().any(|(_, promise)| promise.ballot != ballot) {
            return None;
        }
        let genesis = self.pick(present)?;
        Some(Promise { ballot, pledge: Some(Pledge { ballot, genesis }) })
    }

    /// The genesis to pledge, once all present nodes have promised this node's ballot.
    fn pick(&self, present: &PresentPeers<'_>) -> Option<Genesis> {
        let pledges = present.nodes.values().filter_map(|(_, promise)| promise.pledge.as_ref());
        match pledges.max_by_key(|pledge| pledge.ballot) {
            Some(pledge) if present.gone(&pledge.genesis).is_empty() => {
                Some(pledge.genesis.clone())
            }
            Some(pledge) if !present.outlives(&pledge.genesis) => None,
            _ => Some(self.draw(present)),
        }
    }

    /// A new cluster of all present nodes. Its id differs for each start and each ballot.
    fn draw(&self, present: &PresentPeers<'_>) -> Genesis {
        let Ballot { round, proposer } = self.durable.ballot;
        let bytes = [round.to_le_bytes(), proposer.to_le_bytes()].concat();
        let members = present.nodes.values().map(|(member, _)| (*member).clone()).collect();
        Genesis { cluster: xxh3_64_with_seed(&bytes, self.seed).max(1), members }
    }

    /// Whether the node must not take part until a person changes something or time resolves it.
    fn hindered(&self) -> bool {
        self.hindrance.is_some()
            || self.vetoed()
            || self.other_list().is_some()
            || self.crowded().is_some()
    }

    /// A peer with another list that also founds, where one of the two nodes is on the other's
    /// list.
    fn other_list(&self) -> Option<&Announcement> {
        self.announcements().find(|announcement| {
            let concerns = announcement.founds() || self.listed(announcement);
            announcement.cluster == 0 && announcement.list != self.list && concerns
        })
    }

    /// A listed address at which there are several nodes.
    fn crowded(&self) -> Option<&str> {
        let mut addresses = self.list.iter().map(String::as_str);
        addresses.find(|address| self.nodes_at(address).len() > 1)
    }

    /// The live nodes of an address.
    fn nodes_at(&self, address: &str) -> Vec<&Member> {
        let all = self.announcements().map(|announcement| &announcement.member).chain([&self.me]);
        all.filter(|member| normal(&member.address) == address).collect()
    }

    /// The present nodes; `None` if this node is not on its list, so that it only joins.
    fn present(&self) -> Option<PresentPeers<'_>> {
        let own = normal(&self.me.address);
        if !self.list.contains(&own) {
            return None;
        }
        let mut nodes = BTreeMap::from([(self.me.node, (&self.me, &self.durable))]);
        for announcement in self.announcements().filter(|of| self.listed(of)) {
            let Announcement { member, list, cluster, promise } = announcement;
            if *cluster == 0 && *list == self.list {
                nodes.insert(member.node, (member, promise));
            }
        }
        let all = if planted!(UnreachedAbsent) { nodes.len() } else { self.list.len() };
        let majority = self.majority_at.is_some_and(|at| self.now >= at);
        let needed = if majority { all / 2 + 1 } else { all };
        let whole = nodes.len() == all && self.discovery.is_none();
        let ignored =
            self.announcements().filter(|of| of.cluster != 0 && planted!(VetoIgnored)).count();
        let needed = needed.saturating_sub(ignored);
        Some(PresentPeers { nodes, needed, whole })
    }
}

impl PresentPeers<'_> {
    /// The members of this genesis that are not present.
    fn gone<'g>(&self, genesis: &'g Genesis) -> Vec<&'g Member> {
        let gone = |member: &&Member| !self.nodes.contains_key(&member.node);
        genesis.members.iter().filter(gone).collect()
    }

    /// Whether a member of this genesis has certainly lost its disk: the whole list is present,
    /// with another node at the member's address.
    fn outlives(&self, genesis: &Genesis) -> bool {
        let at = |address: &str| {
            let address = normal(address);
            self.nodes.values().any(|(member, _)| normal(&member.address) == address)
        };
        let gone = self.gone(genesis);
        self.whole && !gone.is_empty() && gone.iter().all(|member| at(&member.address))
    }
}

fn is_member(genesis: &Genesis, node: NodeId) -> bool {
    genesis.members.iter().any(|member| member.node == node)
}
