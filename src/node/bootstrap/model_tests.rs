//! The model in which explorations and scenarios run the bootstrap: places, each with a disk and a
//! process. Each place may receive any announcement ever made by another.
//!
//! The network is the set of all announcements ever made, also by lost processes and disks. A place may
//! receive an announcement again, late, in another order or never. That covers loss, duplication, delay,
//! reordering, partitions, and names that do not resolve. Losing a connection is an event of its own.
//! After it, a node forgets a peer's announcement and may receive an old one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::node::bootstrap::message::Announcement;
use crate::node::bootstrap::{BootstrapOutcome, Founding};
use crate::node::io::Discovered;
use crate::types::membership::{Genesis, Member, NodeId, Promise};

/// The name by which nodes discover each other.
const NAME: &str = "all:1";

/// A peer that is always connected and sends nothing, so that every announcement has a receiver.
const LISTENER: NodeId = u64::MAX;

pub(super) const MAJORITY_AFTER: Duration = Duration::from_secs(10);

/// An announcement, by its number in [`Announcements`].
pub(super) type AnnouncementId = u32;

/// All announcements that were ever made in any run.
#[derive(Default)]
pub(super) struct Announcements {
    all: Vec<Arc<Announcement>>,
    ids: BTreeMap<String, AnnouncementId>,
}

impl Announcements {
    fn id(&mut self, announcement: &Announcement) -> AnnouncementId {
        let next = self.all.len() as AnnouncementId;
        let id = *self.ids.entry(format!("{announcement:?}")).or_insert(next);
        if id == next {
            self.all.push(Arc::new(announcement.clone()));
        }
        id
    }

    pub(super) fn of(&self, id: AnnouncementId) -> &Arc<Announcement> {
        &self.all[id as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Event {
    /// An announcement arrives, over a connection that is made if there is none.
    Receive(AnnouncementId),
    /// An announcement arrives from a peer that cannot be reached: the peer sent it just before it
    /// died, or the network carries messages in one direction only.
    ReceiveUnconnected(AnnouncementId),
    /// The connection to this peer is lost.
    Lose(NodeId),
    /// The disk finishes what it writes.
    Written,
    /// The process dies, its unfinished disk write is lost, and it starts again.
    Crash,
    /// The process dies, and starts again on an empty disk. The new id is lower than all others, or
    /// higher.
    Wipe { low: bool },
    /// The time has come from which a majority may found.
    Late,
    /// The name by which the nodes discover each other stands for these addresses here: a bit for
    /// each [`slot`](Place::slot).
    View(u32),
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) id: NodeId,
    pub(super) promise: Promise,
    /// The cluster, and what it was founded from if this node did.
    pub(super) cluster: Option<(u64, Option<Genesis>)>,
}

#[derive(Clone, Debug)]
pub(super) enum Process {
    Blank(Box<Founding>),
    /// The disk is writing this.
    Ending(BootstrapOutcome),
    Member,
}

/// One address of the list.
#[derive(Clone, Debug)]
pub(super) struct Place {
    index: usize,
    of: usize,
    majority: bool,
    /// How many instances are expected, if they discover each other.
    pub(super) expected: Option<usize>,
    /// The addresses that it sees: 0 before the first look-up.
    pub(super) view: u32,
    /// How often its view has changed.
    pub(super) views: usize,
    /// How often its address has changed.
    moves: usize,
    pub(super) disk: Disk,
    pub(super) process: Process,
    /// All announcements that came from here, by former disks too.
    pub(super) sent: BTreeSet<AnnouncementId>,
    /// The announcement of the present process.
    pub(super) current: AnnouncementId,
    /// The clusters that any disk of this address has founded.
    pub(super) founded: BTreeSet<u64>,
    pub(super) crashes: u64,
    pub(super) wipes: u64,
    late: bool,
    /// A rule that was broken here.
    pub(super) broken: Option<String>,
}

pub(super) fn address(index: usize) -> String {
    format!("{}:1", char::from(b'a' + index as u8))
}

impl Place {
    /// One of so many places, with an empty disk.
    pub(super) fn new(
        index: usize,
        of: usize,
        majority: bool,
        announcements: &mut Announcements,
    ) -> Place {
        Place::start_at(index, of, majority, None, announcements)
    }

    /// A place that discovers the others.
    pub(super) fn discovering(
        index: usize,
        of: usize,
        expected: usize,
        announcements: &mut Announcements,
    ) -> Place {
        Place::start_at(index, of, false, Some(expected), announcements)
    }

    fn start_at(
        index: usize,
        of: usize,
        majority: bool,
        expected: Option<usize>,
        announcements: &mut Announcements,
    ) -> Place {
        let disk = Disk { id: 200 + index as NodeId, promise: Promise::default(), cluster: None };
        let mut place = Place {
            index,
            of,
            majority,
            expected,
            view: 0,
            views: 0,
            moves: 0,
            process: Process::Member,
            disk,
            sent: BTreeSet::new(),
            current: 0,
            founded: BTreeSet::new(),
            crashes: 0,
            wipes: 0,
            late: false,
            broken: None,
        };
        place.start(announcements);
        place
    }

    /// The number of its address. With discovery, an instance with an empty disk may come back at
    /// another address.
    pub(super) fn slot(&self) -> usize {
        self.index + self.of * self.moves
    }

    /// The numbers of all addresses that it has had.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        (self.index..=self.slot()).step_by(self.of)
    }

    fn member(&self) -> Member {
        Member::new(self.disk.id, address(self.slot()))
    }

    fn list(&self) -> Vec<String> {
        match self.expected {
            Some(_) => vec![NAME.to_owned()],
            None => (0..self.of).map(address).collect(),
        }
    }

    /// The result of its look-ups, if there were any.
    fn discovered(&self) -> Option<Discovered> {
        let expected = self.expected.filter(|_| self.view != 0)?;
        let shown = (0..u32::BITS as usize).filter(|slot| self.view & (1 << slot) != 0);
        Some(Discovered {
            name: NAME.to_owned(),
            expected,
            founds: true,
            addresses: shown.map(address).collect(),
        })
    }

    fn now(&self) -> Duration {
        if self.late { MAJORITY_AFTER } else { Duration::ZERO }
    }

    fn start(&mut self, announcements: &mut Announcements) {
        let seed = self.index as u64 + 100 * (self.crashes + 10 * self.wipes);
        let mut founding = Founding::new(
            self.member(),
            &self.list(),
            0,
            self.majority.then_some(MAJORITY_AFTER),
            self.disk.promise.clone(),
            seed,
            Duration::ZERO,
        );
        if let Some(discovered) = self.discovered() {
            founding.discovered(discovered);
        }
        founding.connected(LISTENER);
        self.process = Process::Blank(Box::new(founding));
        self.step(announcements);
    }

    fn step(&mut self, announcements: &mut Announcements) {
        let now = self.now();
        let Process::Blank(founding) = &mut self.process else {
            return;
        };
        let todo = founding.step(now);
        for (_, announcement) in &todo.messages {
            self.current = announcements.id(announcement);
            self.sent.insert(self.current);
        }
        if let Some(outcome) = todo.outcome {
            if let BootstrapOutcome::Found(genesis) = &outcome {
                let announced = founding.announcements().map(|announcement| announcement.cluster);
                let announced: BTreeSet<u64> = announced.filter(|cluster| *cluster != 0).collect();
                if !announced.is_empty() && !announced.contains(&genesis.cluster) {
                    self.broken =
                        Some(format!("founds {:x} despite {announced:x?}", genesis.cluster));
                }
                let blank =
                    founding.announcements().filter(|announcement| announcement.cluster == 0);
                let blank: BTreeSet<&str> =
                    blank.map(|announcement| announcement.member.address.as_str()).collect();
                let mut known = founding.vetoes.values().chain(&announced);
                // No node that has this cluster has announced it.
                let other =
                    !founding.vetoes.is_empty() && known.all(|cluster| *cluster != genesis.cluster);
                if other && (self.expected.is_some() || blank.len() + 1 < self.of) {
                    let vetoes = &founding.vetoes;
                    self.broken =
                        Some(format!("founds {:x} and knows of {vetoes:x?}", genesis.cluster));
                }
            }
            self.process = Process::Ending(outcome);
        }
    }

    /// The place after the event, or `None` if the event cannot happen.
    pub(super) fn after(&self, event: Event, announcements: &mut Announcements) -> Option<Place> {
        let mut place = self.clone();
        match (event, &mut place.process) {
            (Event::Receive(id), Process::Blank(founding)) => {
                let announcement = Arc::clone(announcements.of(id));
                founding.connected(announcement.member.node);
                founding.take_shared(announcement.member.node, &announcement);
            }
            (Event::ReceiveUnconnected(id), Process::Blank(founding)) => {
                let announcement = announcements.of(id);
                let from = announcement.member.node;
                // The loss of a connection is an event of its own.
                let connected = founding.peers.get(&from).is_some_and(|peer| peer.connected);
                (!connected).then(|| founding.take_shared(from, announcement))?;
            }
            (Event::Lose(node), Process::Blank(founding)) => {
                founding.peers.contains_key(&node).then(|| founding.lost(node))?;
            }
            (Event::Written, Process::Blank(founding)) => {
                place.disk.promise = founding.writing.clone()?;
                founding.written();
            }
            (Event::Written, Process::Ending(outcome)) => {
                place.disk.cluster = Some(match outcome {
                    BootstrapOutcome::Found(genesis) => {
                        place.founded.insert(genesis.cluster);
                        (genesis.cluster, Some(genesis.clone()))
                    }
                    BootstrapOutcome::Join { cluster } => (*cluster, None),
                });
                place.process = Process::Member;
                let (cluster, promise) = (place.cluster(), place.disk.promise.clone());
                let (member, list) = (place.member(), place.list());
                place.current = announcements.id(&Announcement { member, list, cluster, promise });
                place.sent.insert(place.current);
            }
            (Event::Crash, Process::Blank(_) | Process::Ending(_)) => {
                place.crashes += 1;
                place.start(announcements);
            }
            (Event::Wipe { low }, _) => {
                place.wipes += 1;
                place.moves += usize::from(self.expected.is_some() && low);
                place.view = 0;
                let base = if low { 100 } else { 300 };
                let id = base + place.index as u64 + 10 * place.wipes;
                place.disk = Disk { id, promise: Promise::default(), cluster: None };
                place.start(announcements);
            }
            (Event::Late, Process::Blank(_)) if self.majority && !self.late => place.late = true,
            (Event::View(view), Process::Blank(_)) if self.view != view => {
                place.view = view;
                place.views += usize::from(self.view != 0);
                let discovered = place.discovered()?;
                let Process::Blank(founding) = &mut place.process else { return None };
                founding.discovered(discovered);
            }
            _ => return None,
        }
        place.step(announcements);
        Some(place)
    }

    /// Why it has no cluster, if it has none.
    pub(super) fn problem(&self) -> Option<String> {
        match &self.process {
            Process::Blank(founding) => founding.problem(),
            Process::Ending(_) | Process::Member => None,
        }
    }

    /// The cluster on its disk, or 0.
    pub(super) fn cluster(&self) -> u64 {
        self.disk.cluster.as_ref().map_or(0, |(cluster, _)| *cluster)
    }

    /// Whether it has no cluster, and has not come to an outcome either.
    pub(super) fn is_blank(&self) -> bool {
        matches!(self.process, Process::Blank(_))
    }

    /// The round of the ballot that it has promised or is promising.
    pub(super) fn round(&self) -> u64 {
        let writing = match &self.process {
            Process::Blank(founding) => founding.writing.as_ref(),
            _ => None,
        };
        writing.unwrap_or(&self.disk.promise).ballot.round
    }

    /// The genesis that it was founded from, if it was.
    pub(super) fn genesis(&self) -> Option<&Genesis> {
        self.disk.cluster.as_ref()?.1.as_ref()
    }

    /// The peers that it has a connection to.
    pub(super) fn connections(&self) -> Vec<NodeId> {
        match &self.process {
            Process::Blank(founding) => {
                let connected = founding.peers.iter().filter(|(_, peer)| peer.connected);
                connected.map(|(node, _)| *node).filter(|node| *node != LISTENER).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Checks what must hold in every state.
pub(super) fn check(places: &[&Place]) -> Result<(), String> {
    if let Some(broken) = places.iter().find_map(|place| place.broken.as_ref()) {
        return Err(broken.clone());
    }
    let wipes: u64 = places.iter().map(|place| place.wipes).sum();
    let majority = places.iter().any(|place| place.majority);
    let founded: BTreeSet<u64> = places.iter().flat_map(|place| place.founded.clone()).collect();
    if wipes == 0 && founded.len() > 1 {
        return Err(format!("clusters {founded:x?} were founded, and no disk was wiped"));
    }
    let geneses: BTreeMap<u64, &Genesis> = places
        .iter()
        .filter_map(|place| place.genesis())
        .map(|genesis| (genesis.cluster, genesis))
        .collect();
    let expected = places.iter().find_map(|place| place.expected);
    // With discovery, a disk with a cluster that can never act again does not prevent founding.
    if !majority && expected.is_none() && geneses.len() > 1 {
        return Err(format!("disks hold founded clusters {:x?}", geneses.keys()));
    }
    let acting = geneses.values().filter(|genesis| {
        let has = |place: &&&Place| place.genesis() == Some(genesis);
        places.iter().filter(has).count() > genesis.members.len() / 2
    });
    // With a majority of five or more, a wiped disk can break this: that option's risk.
    if (wipes == 0 || !majority || places.len() <= 3) && acting.count() > 1 {
        return Err(format!("clusters {:x?} can act", geneses.keys()));
    }
    for place in places {
        if let Some(genesis) = place.genesis() {
            if geneses[&genesis.cluster] != genesis {
                return Err(format!("cluster {:x} has two geneses", genesis.cluster));
            }
            let ids = genesis.members.iter().map(|member| member.node);
            if !ids.into_iter().any(|node| node == place.disk.id) {
                return Err(format!("{} founds a cluster of others", place.disk.id));
            }
            let most = if majority { place.of / 2 + 1 } else { place.of };
            let most = expected.unwrap_or(most);
            if genesis.members.len() < most {
                return Err(format!("a cluster of {} is founded", genesis.members.len()));
            }
        }
    }
    Ok(())
}

/// The events of a time without faults: writes complete, lost connections are noticed, and each
/// node receives the present announcement of every other. Empty once nothing changes.
pub(super) fn fair(places: &[&Place], announcements: &Announcements) -> Vec<(usize, Event)> {
    let mut events = Vec::new();
    let ids: BTreeSet<NodeId> = places.iter().map(|place| place.disk.id).collect();
    for (index, place) in places.iter().enumerate() {
        for gone in place.connections().into_iter().filter(|node| !ids.contains(node)) {
            events.push((index, Event::Lose(gone)));
        }
        events.push((index, Event::Written));
        if place.expected.is_some() {
            let all = places.iter().fold(0, |all, place| all | 1 << place.slot());
            events.push((index, Event::View(all)));
        }
        for (other, peer) in places.iter().enumerate() {
            let current = announcements.of(peer.current).member.node == peer.disk.id;
            assert!(current, "an announcement is that of the present process");
            if other != index {
                events.push((index, Event::Receive(peer.current)));
            }
        }
    }
    events
}

/// Checks the end after a time without faults.
pub(super) fn check_end(places: &[&Place]) -> Result<(), String> {
    let clusters: BTreeSet<u64> = places.iter().map(|place| place.cluster()).collect();
    let Some(genesis) = places.iter().find_map(|place| place.genesis()) else {
        return Err(format!("nobody founds; they have {clusters:x?}"));
    };
    if clusters.len() > 1 {
        return Err(format!("they have {clusters:x?}"));
    }
    let founders = places.iter().filter(|place| place.genesis() == Some(genesis)).count();
    if founders <= genesis.members.len() / 2 {
        return Err(format!("{founders} of {} founders", genesis.members.len()));
    }
    Ok(())
}
